//! The identity of a storage node: any bytes, and any with a checksum that is right.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_storage::fuzz::node_identity(bytes));
