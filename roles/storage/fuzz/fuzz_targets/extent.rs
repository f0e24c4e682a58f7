//! Records, headers and groups of extents of logs.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| archipelago_storage::fuzz::extent(bytes));
