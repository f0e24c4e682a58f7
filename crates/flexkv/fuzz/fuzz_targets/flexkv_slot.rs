//! Reads buckets of slots: every word is a slot, and every query of a slot has an answer.
#![no_main]

use archipelago_flexkv::format::{BUCKET_BYTES, Bucket, Candidates, Slot, SlotState};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(image) = bytes.first_chunk::<BUCKET_BYTES>() else { return };
    let bucket = Bucket::from_bytes(image);
    assert_eq!(bucket.to_bytes(), *image);
    let both = Candidates::new([3, 5], [bucket, Bucket::default()]);
    assert_eq!(both.all().count(), 16);
    for (_, slot) in both.all() {
        let reusable = slot.is_reusable(slot.0 >> 16, 200_000);
        match slot.state() {
            SlotState::Empty => assert!(reusable),
            SlotState::Live { fingerprint, .. } => {
                assert!(!reusable && both.matching(fingerprint).any(|(_, other)| other == slot));
            }
            SlotState::Pending { .. } => {
                assert!(!reusable && slot.to_live().to_pending() == slot);
            }
            SlotState::Deleted { time_us, tag } => {
                assert!(!reusable && Slot::deleted(time_us, tag) == slot);
            }
        }
    }
});
