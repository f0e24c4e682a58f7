//! Decodes arbitrary bytes as a reference: bytes that decode must be its only encoding.
#![no_main]

use archipelago_engine::value_ref::Reference;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(reference) = Reference::decode(bytes) {
        let mut again = Vec::new();
        reference.encode(&mut again);
        assert_eq!(again, bytes);
    }
});
