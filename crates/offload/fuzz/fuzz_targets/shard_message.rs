//! Messages of shards: a decoded message is equal after it is encoded and decoded again.
#![no_main]

use archipelago_offload::wire::shard::ShardMessage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = ShardMessage::decode(bytes) {
        assert_eq!(ShardMessage::decode(&message.encode()), Ok(message));
    }
});
