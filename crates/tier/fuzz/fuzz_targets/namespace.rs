//! Fuzzes the decoder of the namespace, with any bytes and with any records that have right
//! checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_tier::fuzz::namespace(bytes));
