//! Entry points for fuzz targets, and for the tests that replay their corpora: decoders of bytes
//! from an unknown writer. These are the log of the namespace, the index of a copy and the identity
//! of a device.
//!
//! A function returns for every input. It panics if a decoder would have given the tiers a wrong
//! result. Checksums guard these formats, and hardly any random input passes them. So each function
//! decodes the input twice: unchanged, and with correct checksums, as a faulty writer would produce
//! it.
//!
//! This module exists only in tests and with the feature `fuzzing`.

use std::path::Path;

use archipelago_base::checksum::crc;
use archipelago_base::codec::{Reader, put_u32};

use crate::cache::format::{CHUNK_BYTES, CopyIndex, TRAILER_BYTES};
use crate::device::identity::Identity;
use crate::namespace::log::{decode, encode_generation, frame_payload};
use crate::namespace::record::Record;
use crate::namespace::state::NamespaceState;

const ID: [u8; 16] = *b"a namespace's id";
const GENERATION: u64 = 3;

/// Decodes `bytes` as the log of a namespace: as a snapshot, as the records after one, and as
/// payloads of records that follow their lengths of one byte each. Applies the decoded records. A
/// refused or undone record must change nothing, and the snapshot of the final state must decode to
/// the same state.
pub fn namespace(bytes: &[u8]) {
    let path = Path::new("names-000003.log");
    // Any result is accepted.
    let _refused = decode(path, GENERATION, bytes, &[]);
    let snapshot = encode_generation(&ID, GENERATION, &[], 1);
    let _torn = decode(path, GENERATION, &snapshot, bytes);
    let mut tail = Vec::new();
    let mut rest = bytes;
    while let Some((&len, after)) = rest.split_first() {
        let (payload, after) = after.split_at(after.len().min(len as usize));
        frame_payload(&ID, (snapshot.len() + tail.len()) as u64, payload, &mut tail);
        rest = after;
    }
    let Ok(recovered) = decode(path, GENERATION, &snapshot, &tail) else { return };
    let mut state = NamespaceState::default();
    for (_, record) in &recovered.records {
        let mut encoded = Vec::new();
        record.encode(&mut encoded);
        assert_eq!(Record::decode(&encoded).as_ref(), Some(record));
        let before = (state.snapshot(), state.next);
        match state.change(record) {
            Ok(change) => {
                state.undo(change.undo);
                assert_eq!(state.snapshot(), before.0, "undone: {record:?}");
                state.apply(record).unwrap_or_else(|why| panic!("{}: undone {record:?}", why.why));
            }
            Err(_) => {
                assert_eq!((state.snapshot(), state.next), before, "refused: {record:?}");
            }
        }
    }
    let (records, next) = (state.snapshot(), state.next);
    let bytes = encode_generation(&ID, GENERATION, &records, next);
    let again = decode(path, GENERATION, &bytes, &[]).expect("own bytes");
    let mut same = NamespaceState::default();
    for (_, record) in &again.records {
        same.apply(record).unwrap_or_else(|no| panic!("{no:?}: {record:?} of an own snapshot"));
    }
    assert_eq!((same.snapshot(), same.next), (records, next));
}

/// Decodes `bytes` as the index of a copy, as they are and as the body of an index with a correct
/// trailer. Each decoded range must be found at its place, and the index must encode to its bytes.
pub fn copy_index(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let header = (reader.take(12), reader.take(16), reader.u64());
    let (_, Some(namespace), Some(file)) = header else { return };
    let Ok(namespace) = <[u8; 16]>::try_from(namespace) else { return };
    let _refused = CopyIndex::decode(&namespace, file, bytes);
    let mut forged = bytes.to_vec();
    put_u32(&mut forged, bytes.len() as u32);
    put_u32(&mut forged, crc(bytes));
    let trailer = &forged[forged.len() - TRAILER_BYTES as usize..];
    assert_eq!(CopyIndex::encoded_len(trailer), Some(forged.len() as u64));
    let Some(index) = CopyIndex::decode(&namespace, file, &forged) else { return };
    let encoded = index.encode();
    assert_eq!(CopyIndex::decode(&namespace, file, &encoded).as_ref(), Some(&index));
    let is_current = forged[8..12] == encoded[8..12];
    assert!(!is_current || encoded == forged, "written as it was read");
    for extent in index.extents() {
        let end = extent.start + extent.len;
        assert!(extent.at + extent.len <= index.data_len());
        assert_eq!(index.find(extent.start, extent.len), Some(extent.at));
        assert_eq!(index.find(end - 1, 1), Some(extent.at + extent.len - 1));
        assert_eq!(index.find(extent.start, extent.len.saturating_add(1)), None);
    }
    let _any = index.verify(0, &[0; 5000]);
    let _past_the_end = index.verify(index.data_len() / CHUNK_BYTES * CHUNK_BYTES, &[0; 5000]);
}

/// Decodes `bytes` as the identity of a device, as they are and with a correct checksum. A decoded
/// identity must decode again from its own bytes.
pub fn identity(bytes: &[u8]) {
    let path = Path::new("DEVICE");
    let _refused = Identity::decode(path, bytes);
    let mut forged = bytes.to_vec();
    put_u32(&mut forged, crc(bytes));
    let Ok(identity) = Identity::decode(path, &forged) else { return };
    let encoded = identity.encode();
    assert_eq!(Identity::decode(path, &encoded).ok().as_ref(), Some(&identity));
}

#[cfg(test)]
mod tests {
    use archipelago_env::suite::{corpus, replay};

    use super::*;
    use crate::cache::format::lay_out;
    use crate::device::identity::Home;

    const CRATE: &str = env!("CARGO_MANIFEST_DIR");

    #[test]
    fn namespace_corpus_replays() {
        let mut every = Vec::new();
        for record in crate::namespace::tests::every_record() {
            let start = every.len();
            every.push(0);
            record.encode(&mut every);
            every[start] = u8::try_from(every.len() - start - 1).unwrap();
        }
        assert!(
            corpus(CRATE, "namespace").contains(&every),
            "the corpus lacks a record of each kind"
        );
        replay(CRATE, "namespace", 2000, namespace);
    }

    #[test]
    fn copy_index_corpus_replays() {
        let mut index = CopyIndex::new(ID, 7, lay_out(&[(0, 8192), (65_536, 5000)]));
        index.push(&[1; 13_192]);
        let mut bytes = index.encode();
        bytes.truncate(bytes.len() - TRAILER_BYTES as usize);
        assert!(
            corpus(CRATE, "copy_index").contains(&bytes),
            "the corpus lacks an index of two ranges"
        );
        replay(CRATE, "copy_index", 20_000, copy_index);
    }

    #[test]
    fn identity_corpus_replays() {
        for (home, of) in [(Home::No, 3), (Home::Yes, 0), (Home::Moving(3), 0)] {
            let there = if home == Home::Moving(3) { "slow" } else { "fast" };
            let told = Identity {
                namespace: ID,
                no: of,
                home,
                home_name: there.to_owned(),
                home_path: format!("/mnt/{there}"),
            };
            let mut bytes = told.encode();
            bytes.truncate(bytes.len() - 4);
            assert!(corpus(CRATE, "identity").contains(&bytes), "the corpus lacks {home:?}");
        }
        replay(CRATE, "identity", 20_000, identity);
    }
}
