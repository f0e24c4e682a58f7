//! Decodes entries of the directory. A decoded entry is encoded as the same bytes.
#![no_main]

use archipelago_flexkv::PartitionId;
use archipelago_flexkv::format::{ENTRY_BYTES, Geometry, PartitionEntry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(bytes) = bytes.first_chunk::<ENTRY_BYTES>() else { return };
    for (geometry, partition) in
        [(Geometry::default(), PartitionId(77)), (Geometry::new(0).expect("0"), PartitionId(0))]
    {
        if let Ok(entry) = PartitionEntry::decode(bytes, geometry, partition) {
            assert_eq!(entry.encode(geometry, partition), Some(*bytes));
        }
    }
});
