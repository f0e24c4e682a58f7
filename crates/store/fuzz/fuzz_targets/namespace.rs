//! The namespace of a volume: any bytes, and any records with checksums that are right.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_store::fuzz::namespace(bytes));
