//! Entry points for fuzz targets, and for the tests that replay their corpora: decoders of bytes
//! from an unknown writer. The inputs are generations of a namespace, values of volumes in the
//! register, messages and stored values of storage nodes, and headers of groups in striped logs.
//!
//! A function returns for every input. It panics if a decoder would have given the owner of the
//! volume a wrong result. Checksums guard these formats, and hardly any random input passes them.
//! So each function decodes the input twice: unchanged, and with correct checksums, as a faulty
//! writer would produce it.
//!
//! This module exists only in tests and with the feature `fuzzing`.

use archipelago_base::checksum::crc;
use archipelago_base::codec::{Reader, put_u32};
use archipelago_base::{Epoch, ErrorKind};

use crate::ids::{LogId, VolumeId};
use crate::nodes::log::segments::{SegmentMap, header_sum};
use crate::nodes::logs::{StripedLayout, VolumeLog};
use crate::nodes::register::caspaxos::RootSet;
use crate::nodes::register::caspaxos::acceptor::{AcceptorHead, AcceptorState, RegisterCell};
use crate::nodes::wire::stored::{
    Checked, Enclosed, decode_checked, decode_enclosed, encode_checked, encode_enclosed,
};
use crate::nodes::wire::{BlobHint, ChunkDescriptor, StoreMessage, VERSION, envelope};
use crate::volume::generation::{
    CommitPlace, GenerationHeader, decode_generation, encode_generation, frame_bytes,
};
use crate::volume::record::{Record, VolumeRecord};
use crate::volume::state::NamespaceState;

const LOG: LogId = LogId(*b"identity: a log.");
const HEADER: GenerationHeader =
    GenerationHeader { volume: VolumeId(*b"id of the volume"), number: 3, epoch: Epoch(2) };

/// Decodes `bytes` as a whole generation of a namespace, and as bytes that follow a snapshot. Also
/// decodes them as the records of commits, each after its length of one byte. Applies the decoded
/// commits. A refused commit must change nothing, and a snapshot of the final state must decode to
/// the same state.
pub fn namespace(bytes: &[u8]) {
    // Any result is accepted.
    let _refused = decode_generation(LOG, bytes);
    let snapshot = encode_generation(LOG, &HEADER, &NamespaceState::default()).expect("no files");
    let _torn = decode_generation(LOG, &[&snapshot[..], bytes].concat());
    let mut framed = snapshot;
    let mut state = NamespaceState::default();
    let mut rest = bytes;
    // Whether a recovery would have to find the same state.
    let mut is_whole = true;
    while let Some((&len, after)) = rest.split_first() {
        let (payload, after) = after.split_at(after.len().min(len as usize));
        rest = after;
        let offset = framed.len() as u64;
        frame_bytes(CommitPlace { log: LOG, offset, acknowledged: 0 }, payload, &mut framed);
        match records(payload) {
            Some(records) => is_whole &= apply(&mut state, &records),
            None => is_whole = false,
        }
    }
    match decode_generation(LOG, &framed) {
        Ok(recovered) if is_whole => {
            assert_eq!(snapshot_of(&recovered.state), snapshot_of(&state));
        }
        // The recovery stopped before the first bytes that are no commit.
        Ok(recovered) => assert!(recovered.torn_bytes > 0),
        Err(error) => {
            assert!(!is_whole, "{error}");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
    let own = encode_generation(LOG, &HEADER, &state).expect("short records");
    let again = decode_generation(LOG, &own).expect("own bytes");
    assert_eq!(snapshot_of(&again.state), snapshot_of(&state));
    assert_eq!((again.header, again.torn_bytes), (HEADER, 0));
}

/// The records of a commit; `None` if the bytes are no commit.
fn records(payload: &[u8]) -> Option<Vec<Record>> {
    let mut reader = Reader::new(payload);
    let mut records = Vec::new();
    while !reader.is_empty() {
        let record = Record::read(&mut reader)?;
        let mut encoded = Vec::new();
        record.encode(&mut encoded);
        assert_eq!(Record::read(&mut Reader::new(&encoded)).as_ref(), Some(&record));
        records.push(record);
    }
    (!records.is_empty()).then_some(records)
}

/// Applies a commit, and says whether it was accepted.
fn apply(state: &mut NamespaceState, records: &[Record]) -> bool {
    let before = snapshot_of(state);
    let is_applied = state.apply_all(records).is_ok();
    assert!(is_applied || snapshot_of(state) == before, "refused: {records:?}");
    is_applied
}

fn snapshot_of(state: &NamespaceState) -> Vec<Record> {
    state.snapshot().collect()
}

/// Decodes `bytes` as the value of a volume, as they are and with a correct checksum. A decoded
/// value must decode again from its own bytes.
pub fn volume(bytes: &[u8]) {
    let _refused = VolumeRecord::decode("volume/a", bytes);
    let mut forged = bytes.to_vec();
    put_u32(&mut forged, crc(bytes));
    let Ok(record) = VolumeRecord::decode("volume/a", &forged) else { return };
    assert_eq!(VolumeRecord::decode("volume/a", &record.encode()).ok().as_ref(), Some(&record));
}

/// Decodes `bytes` as an envelope, and as a message without its version. A decoded message must
/// decode again from its own bytes, with its payload.
pub fn message(bytes: &[u8]) {
    if let Ok((message, payload)) = envelope::open(bytes) {
        same_message(&message, payload);
    }
    if let Ok(message) = StoreMessage::decode(&[&[VERSION], bytes].concat()) {
        same_message(&message, bytes);
    }
}

fn same_message(message: &StoreMessage, payload: &[u8]) {
    let body = envelope::seal(message, payload);
    let (again, rest) = envelope::open(&body).expect("own bytes");
    assert_eq!((&again, rest), (message, payload));
}

/// Decodes `bytes` as each kind of stored value: as they are, and as fields with the version and
/// the checksum that the value has. A decoded value must decode again from its own bytes.
pub fn value(bytes: &[u8]) {
    checked::<ChunkDescriptor>(bytes);
    checked::<AcceptorState>(bytes);
    checked::<AcceptorHead>(bytes);
    checked::<RegisterCell>(bytes);
    enclosed::<VolumeLog>(bytes);
    enclosed::<StripedLayout>(bytes);
    enclosed::<BlobHint>(bytes);
    enclosed::<RootSet>(bytes);
}

/// Decodes `bytes` as the header of a group at the beginning of a parent log, as they are and with
/// a correct checksum behind them. A decoded map must have these bytes again.
pub fn segment_map(bytes: &[u8]) {
    let mut forged = bytes.to_vec();
    put_u32(&mut forged, header_sum(bytes, 0));
    for bytes in [bytes, &forged[..]] {
        if let Ok(Some(map)) = SegmentMap::decode(bytes, 0) {
            assert!(bytes.starts_with(&map.encode(0)), "{map:?}");
            let whole: u64 = map.segments.iter().map(|segment| segment.len).sum();
            assert_eq!(map.group_bytes(), whole);
        }
    }
}

fn checked<T: Checked + PartialEq>(bytes: &[u8]) {
    let is_same = |value: &T| {
        let again = decode_checked::<T>(&"value", &encode_checked(value));
        again.is_ok_and(|again| again == *value)
    };
    if let Ok(value) = decode_checked::<T>(&"value", bytes) {
        assert!(is_same(&value), "{}", T::NAME);
    }
    let mut forged = T::MAGIC.to_vec();
    put_u32(&mut forged, T::VERSION);
    forged.extend_from_slice(bytes);
    let sum = crc(&forged);
    put_u32(&mut forged, sum);
    if let Ok(value) = decode_checked::<T>(&"value", &forged) {
        assert!(is_same(&value), "{}", T::NAME);
    }
}

fn enclosed<T: Enclosed + PartialEq>(bytes: &[u8]) {
    let forged = [&[T::VERSION], bytes].concat();
    for bytes in [bytes, &forged[..]] {
        if let Ok(value) = decode_enclosed::<T>(&"value", bytes) {
            let again = decode_enclosed::<T>(&"value", &encode_enclosed(&value));
            assert!(again.is_ok_and(|again| again == value), "{}", T::NAME);
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_env::suite::{corpus, replay};

    use super::*;
    use crate::nodes::wire::tests::{
        coding_due, descriptor, every_message, hint, layout, root_set, state,
    };
    use crate::volume::generation::tests::every_commit;
    use crate::volume::record::tests::{new_volume, owned_volume};

    const CRATE: &str = env!("CARGO_MANIFEST_DIR");

    #[test]
    fn namespace_corpus_replays() {
        let mut every = Vec::new();
        for commit in every_commit() {
            let start = every.len();
            every.push(0);
            commit.iter().for_each(|record| record.encode(&mut every));
            every[start] = u8::try_from(every.len() - start - 1).unwrap();
        }
        assert!(
            corpus(CRATE, "namespace").contains(&every),
            "the corpus lacks a record of each kind"
        );
        replay(CRATE, "namespace", 2_000, namespace);
    }

    #[test]
    fn volume_corpus_replays() {
        for record in [owned_volume(), new_volume()] {
            let mut bytes = record.encode();
            bytes.truncate(bytes.len() - 4);
            assert!(corpus(CRATE, "volume").contains(&bytes), "the corpus lacks {record:?}");
        }
        replay(CRATE, "volume", 20_000, volume);
    }

    #[test]
    fn message_corpus_replays() {
        let names: std::collections::BTreeSet<_> = corpus(CRATE, "message")
            .iter()
            .filter_map(|bytes| envelope::open(bytes).ok().map(|(message, _)| message.name()))
            .collect();
        for message in every_message() {
            assert!(names.contains(message.name()), "the corpus lacks {}", message.name());
        }
        replay(CRATE, "message", 2_000, message);
    }

    #[test]
    fn segment_map_corpus_replays() {
        let is_map = |bytes: &Vec<u8>| {
            let sum = header_sum(bytes, 0).to_le_bytes();
            matches!(SegmentMap::decode(&[bytes, &sum[..]].concat(), 0), Ok(Some(_)))
        };
        let maps = corpus(CRATE, "segment_map").iter().filter(|bytes| is_map(bytes)).count();
        assert!(maps >= 2, "the corpus has {maps} maps");
        replay(CRATE, "segment_map", 20_000, segment_map);
    }

    #[test]
    fn value_corpus_replays() {
        let values = [
            encode_checked(&descriptor()),
            encode_checked(&coding_due()),
            encode_checked(&state()),
            encode_enclosed(&layout()),
            encode_enclosed(&hint()),
            encode_enclosed(&root_set()),
        ];
        let known = corpus(CRATE, "value");
        for value in values {
            assert!(known.contains(&value), "the corpus lacks {value:02x?}");
        }
        replay(CRATE, "value", 20_000, value);
    }
}
