//! Replays of the inputs of fuzz targets, so that every test run feeds them to the decoders.
//!
//! Failure: a replay panics with the decoder, or if the corpus is missing. Cost: one call of the
//! decoder per input and change.

use std::path::Path;

use archipelago_base::random::Rng;

use crate::context::{IoContext, IoPurpose};
use crate::fs::FileSystem as _;
use crate::local::LocalFs;

/// Number of inputs below which a corpus is too small to be useful.
const INPUTS_MIN: usize = 4;

/// The inputs in `fuzz/corpus/TARGET` of the crate whose manifest lies in `manifest_dir`, which is
/// `env!("CARGO_MANIFEST_DIR")` of the caller.
#[must_use]
pub fn corpus(manifest_dir: &str, target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(manifest_dir).join("fuzz/corpus").join(target);
    let local = LocalFs::new();
    let context = IoContext::manifest(IoPurpose::Recovery);
    let read = |name: String| local.read(&dir.join(name), context).unwrap();
    local.list(&dir).unwrap().into_iter().map(|entry| read(entry.name)).collect()
}

/// Calls `run` with every input of a [`corpus`], and with `changes` seeded changes of each.
pub fn replay(manifest_dir: &str, target: &str, changes: u64, run: fn(&[u8])) {
    let inputs = corpus(manifest_dir, target);
    assert!(inputs.len() >= INPUTS_MIN, "the corpus of {target} is small");
    let mut rng = Rng::with_seed(17);
    for input in &inputs {
        run(input);
        for _ in 0..changes {
            run(&changed(&mut rng, input));
        }
    }
}

/// A copy of `input` with one to three changes.
fn changed(rng: &mut Rng, input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..rng.u64(1..4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.usize(..bytes.len());
        match rng.u64(..6) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_slice(&input[at.min(input.len())..]),
            2 => drop(bytes.remove(at)),
            3 => bytes[at] = u8::MAX,
            _ => bytes[at] ^= 1 << rng.u64(..8),
        }
    }
    bytes
}
