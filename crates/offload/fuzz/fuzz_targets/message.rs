//! Messages: a decoded message is equal after it is encoded and decoded again.
#![no_main]

use archipelago_offload::wire::OffloadMessage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = OffloadMessage::decode(bytes) {
        assert_eq!(OffloadMessage::decode(&message.encode()), Ok(message));
    }
});
