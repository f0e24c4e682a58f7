//! Decodes messages. A decoded message is equal after it is encoded and decoded again, and a
//! refusal has a text.
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
