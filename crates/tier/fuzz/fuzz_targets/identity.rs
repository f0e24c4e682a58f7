//! Fuzzes the decoder of a device's identity, with any bytes and with any bytes that have a right
//! checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_tier::fuzz::identity(bytes));
