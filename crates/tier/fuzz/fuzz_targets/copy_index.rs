//! Fuzzes the decoder of a copy's index, with any bytes and with any bytes that have a right
//! checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_tier::fuzz::copy_index(bytes));
