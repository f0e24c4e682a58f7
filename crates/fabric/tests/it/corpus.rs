//! Replays the inputs of the fuzz targets: every decoder answers every input.

use archipelago_base::codec::Reader;
use archipelago_fabric::wire;
use archipelago_fabric::{Attached, Batch, REMOTE_KEY_BYTES, RemoteKey};

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&dir).unwrap();
    let inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            #[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
            let bytes = std::fs::read(&path).unwrap();
            (path.file_name().unwrap().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    assert!(!inputs.is_empty(), "{} is empty", dir.display());
    inputs
}

/// Whether an input of this name is meant to be read.
fn is_good(name: &str) -> bool {
    name.starts_with("good")
}

#[test]
fn frames_are_read_or_refused() {
    for (name, bytes) in corpus("frame") {
        let read = wire::frame_at(&bytes);
        assert_eq!(matches!(read, Ok(Some(_))), is_good(&name), "{name}: {read:?}");
    }
}

#[test]
fn bodies_are_read_or_refused() {
    for (name, bytes) in corpus("body") {
        let mut ops = Vec::new();
        let hello = wire::Hello::decode(&bytes).is_ok();
        let welcome = wire::Welcome::decode(&bytes).is_ok();
        let read = wire::decode_ops(&bytes, &mut ops).is_ok();
        let _ =
            (wire::Ask::decode(&bytes), wire::Opened::decode(&bytes), wire::decode_answer(&bytes));
        assert_eq!(hello || welcome || read, is_good(&name), "{name}");
        let mut batch = Batch::new();
        batch.read(Attached::new(0, 0), 0, 8);
        batch.fetch_add(Attached::new(0, 0), 0, 1);
        let _ = wire::decode_done(&bytes, &mut batch);
        if bytes.len() < REMOTE_KEY_BYTES {
            assert_eq!(RemoteKey::decode(&mut Reader::new(&bytes)), None);
        }
    }
}
