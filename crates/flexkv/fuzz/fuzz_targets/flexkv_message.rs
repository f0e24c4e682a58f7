//! Messages: every input is a message or a sentence; what is read is understood again when it is
//! said.
#![no_main]

use archipelago_flexkv::wire::Message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Counts may be written longer than they need be, so bytes are not compared.
    match Message::decode(bytes) {
        Ok(message) => assert_eq!(Message::decode(&message.encode()), Ok(message)),
        Err(refused) => assert!(!refused.to_string().is_empty()),
    }
});
