//! Replays the inputs of the fuzz targets: the decoders answer every input.

use std::path::Path;

use archipelago_flexkv::PartitionId;
use archipelago_flexkv::format::{
    BUCKET_BYTES, Bucket, Candidates, Decoded, ENTRY_BYTES, Geometry, Head, PartitionEntry, Record,
    Slot, SlotState, key_hash,
};
use archipelago_flexkv::wire::Message;

/// Calls `judge` with every input's name and bytes: `good_…` is read, `short_…` needs more bytes,
/// `bad_…` is refused.
fn replay(target: &str, at_least: usize, judge: impl Fn(&[u8]) -> &'static str) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut seen = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        #[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(judge(&bytes), name.split('_').next().unwrap(), "{name}");
        seen += 1;
    }
    assert!(seen >= at_least, "{} has {seen} inputs", dir.display());
}

#[test]
fn records_are_read_or_refused() {
    replay("flexkv_record", 12, |bytes| match Record::decode(bytes, 16 << 20) {
        Ok(Decoded::Record(record)) => {
            let mut again = vec![0; record.bytes().unwrap() as usize];
            record.encode(&mut again).unwrap();
            assert_eq!(again, bytes[..again.len()]);
            let head = Head::decode(&bytes[..Head::bytes(record.key.len()) as usize]);
            let head = head.unwrap().expect("all of it");
            assert_eq!((head.key, head.header.previous), (record.key, record.previous));
            "good"
        }
        Ok(Decoded::Needs(needs)) => {
            assert!(needs > bytes.len() as u64);
            "short"
        }
        Err(refused) => {
            assert!(!refused.to_string().is_empty());
            // The head may still be readable. Then its key has the hash that its header names.
            if let Ok(Some(head)) = Head::decode(bytes) {
                assert_eq!(key_hash(head.key).0, head.header.hash);
            }
            "bad"
        }
    });
}

#[test]
fn entries_of_the_directory_are_read_or_refused() {
    let (geometry, partition) = (Geometry::default(), PartitionId(77));
    replay("flexkv_directory", 9, |bytes| {
        let Some(bytes) = bytes.first_chunk::<ENTRY_BYTES>() else { return "short" };
        match PartitionEntry::decode(bytes, geometry, partition) {
            Ok(entry) => {
                assert_eq!(entry.encode(geometry, partition), Some(*bytes));
                "good"
            }
            Err(_) => "bad",
        }
    });
}

#[test]
fn every_bucket_has_an_answer() {
    replay("flexkv_slot", 4, |bytes| {
        let Some(image) = bytes.first_chunk::<BUCKET_BYTES>() else { return "short" };
        let bucket = Bucket::from_bytes(image);
        assert_eq!(bucket.to_bytes(), *image);
        let both = Candidates::new([3, 5], [bucket, Bucket::default()]);
        for (_, slot) in both.all() {
            let reusable = slot.is_reusable(slot.0 >> 16, 200_000);
            match slot.state() {
                SlotState::Empty => assert!(reusable),
                SlotState::Live { fingerprint, .. } => {
                    assert!(
                        !reusable && both.matching(fingerprint).any(|(_, other)| other == slot)
                    );
                }
                SlotState::Pending { .. } => {
                    assert!(!reusable && slot.to_live().to_pending() == slot);
                }
                SlotState::Deleted { time_us, tag } => {
                    assert!(!reusable && Slot::deleted(time_us, tag) == slot);
                }
            }
        }
        "good"
    });
}

#[test]
fn messages_are_read_or_refused() {
    replay("flexkv_message", 20, |bytes| match Message::decode(bytes) {
        Ok(message) => {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
            "good"
        }
        Err(refused) => {
            assert!(!refused.to_string().is_empty());
            "bad"
        }
    });
}
