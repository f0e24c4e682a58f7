//! Write batches: a batch that decodes must have as many operations as its header states.
#![no_main]

use archipelago_engine::wal::WriteBatch;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(batch) = WriteBatch::from_data(bytes) {
        assert_eq!(batch.iter().count(), batch.len());
    }
});
