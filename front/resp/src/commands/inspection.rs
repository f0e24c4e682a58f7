//! OBJECT, MEMORY and RANDOMKEY: facts about a key, and the choice of some key.

use std::ops::{Bound, ControlFlow};

use archipelago_base::random::{Rng, entropy_seed};

use super::help;
use crate::args::Args;
use crate::numbers::parse_i64;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::KeyRange;

/// Number of keys on each side of a random position. RANDOMKEY chooses one of all of them.
const NEIGHBOURS: usize = 16;

const ALL_KEYS: KeyRange<'static> = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };

/// Bytes that a record takes besides its key and value: sequence number, kind, lengths, expiry, and
/// its share of an index.
const RECORD_BYTES: usize = 32;

/// Values up to this length have the encoding that Redis calls `embstr`.
const SHORT_BYTES_MAX: usize = 44;

const NO_FREQUENCIES: Refusal = Refusal::fixed(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
     when switching between policies at runtime LRU and LFU data will take some time to adjust.",
);

/// `OBJECT ENCODING | REFCOUNT | IDLETIME | FREQ key`.
pub(super) fn object(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if help::answers(args, "OBJECT", reply) {
        return Ok(());
    }
    let word = args.text(1).to_ascii_lowercase();
    let key = args.get(2);
    if word == "encoding" {
        let entry = session.store().get(key)?;
        reply.bulk_or_null(entry.map(|entry| encoding(&entry.value)));
        return Ok(());
    }
    if !session.store().exists(key)? {
        reply.null();
        return Ok(());
    }
    match &word[..] {
        "refcount" => reply.integer(1),
        "idletime" => reply.count(session.idle_s(key) as usize),
        _ => return Err(NO_FREQUENCIES),
    }
    Ok(())
}

/// The encoding that Redis would give a new value with these bytes.
fn encoding(value: &[u8]) -> &'static [u8] {
    if parse_i64(value).is_some() {
        b"int"
    } else if value.len() <= SHORT_BYTES_MAX {
        b"embstr"
    } else {
        b"raw"
    }
}

/// `MEMORY USAGE key [SAMPLES count]`. The answer is the size of the record in bytes before
/// compression.
pub(super) fn memory(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if help::answers(args, "MEMORY", reply) {
        return Ok(());
    }
    match args.len() {
        3 => {}
        5 if args.is(3, "samples") => drop(args.integer(4)?),
        _ => return Err(Refusal::SYNTAX),
    }
    let key = args.get(2);
    match session.store().get(key)? {
        Some(entry) => reply.count(key.len() + entry.value.len() + RECORD_BYTES),
        None => reply.null(),
    }
    Ok(())
}

/// `RANDOMKEY`. It prefers keys that have few neighbours.
pub(super) fn randomkey(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    let store = session.store();
    if let Some(keys) = store.unordered_keys() {
        reply.bulk_or_null(keys.random()?.as_deref());
        return Ok(());
    }
    let ends = |reverse: bool| -> Result<Option<Vec<u8>>, Refusal> {
        let mut end = None;
        store.scan_keys(ALL_KEYS, reverse, &mut |key| {
            end = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        Ok(end)
    };
    let (Some(first), Some(last)) = (ends(false)?, ends(true)?) else {
        reply.null();
        return Ok(());
    };
    let mut random = Rng::with_seed(entropy_seed());
    let from = key_between(&first, &last, random.f64());
    let mut near: Vec<Vec<u8>> = Vec::with_capacity(2 * NEIGHBOURS);
    for reverse in [false, true] {
        let range = match reverse {
            false => KeyRange { from: Bound::Included(&from), to: Bound::Unbounded },
            true => KeyRange { from: Bound::Unbounded, to: Bound::Excluded(&from) },
        };
        let most = near.len() + NEIGHBOURS;
        store.scan_keys(range, reverse, &mut |key| {
            near.push(key.to_vec());
            if near.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
    }
    // Other clients may have removed all keys since the estimate.
    let key = (!near.is_empty()).then(|| &near[random.usize(..near.len())][..]);
    reply.bulk_or_null(key);
    Ok(())
}

/// A key between two keys. `share` says how far it lies from the first one, from 0 to 1. Only the
/// eight bytes that follow the common prefix count.
fn key_between(first: &[u8], last: &[u8], share: f64) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let tail = &key[common.min(key.len())..];
        let len = tail.len().min(8);
        bytes[..len].copy_from_slice(&tail[..len]);
        u64::from_be_bytes(bytes)
    };
    let (low, high) = (number(first), number(last));
    let place = low + (high.saturating_sub(low) as f64 * share) as u64;
    [&last[..common], &place.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::key_between;

    #[test]
    fn key_between_two_keys_lies_between_them() {
        let cases: [(&[u8], &[u8]); 4] =
            [(b"", b"z"), (b"user:1", b"user:2"), (b"a", b"a\xff\xff"), (b"k", b"k")];
        for (first, last) in cases {
            for share in [0.0, 0.3, 0.999] {
                let key = key_between(first, last, share);
                let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
                assert!(key.starts_with(&first[..common]) && key.as_slice() >= first);
                assert!(key[..].trim_ascii_end() <= last || share < 1.0, "{key:?}");
            }
        }
    }
}
