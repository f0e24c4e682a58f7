//! The file of a sealed chunk: any bytes, and any with checksums that are right.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_storage::fuzz::chunk(bytes));
