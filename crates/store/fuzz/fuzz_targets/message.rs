//! The messages of storage nodes in their envelopes: any bytes, and any bytes as a message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_store::fuzz::message(bytes));
