//! Messages: a decoded message is equal after it is encoded and decoded again.
#![no_main]

use archipelago_pool::wire::Message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
});
