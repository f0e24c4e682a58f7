//! Marks of extents, and tombstones.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_storage::fuzz::metadata(bytes));
