//! Headers of groups in striped logs: any bytes, and any fields with a checksum that is right.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_store::fuzz::segment_map(bytes));
