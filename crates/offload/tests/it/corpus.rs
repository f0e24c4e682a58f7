//! Replays the inputs of the fuzz targets: the decoders answer every input.

use archipelago_base::wire::Malformed;
use archipelago_offload::wire::OffloadMessage;
use archipelago_offload::wire::shard::ShardMessage;

/// Reads all inputs of a target. `decode` returns the encoding of the message that it read.
fn replay(target: &str, decode: impl Fn(&[u8]) -> Result<Vec<u8>, Malformed>) {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut seen = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        #[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let read = decode(&bytes);
        assert_eq!(read.is_ok(), name.starts_with("good"), "{name}: {read:?}");
        if let Ok(encoded) = read {
            assert_eq!(encoded, bytes, "{name}");
        }
        seen += 1;
    }
    assert!(seen > 10, "{} is almost empty", dir.display());
}

#[test]
fn messages_are_read_or_refused() {
    replay("message", |bytes| OffloadMessage::decode(bytes).map(|message| message.encode()));
}

#[test]
fn messages_of_shards_are_read_or_refused() {
    replay("shard_message", |bytes| ShardMessage::decode(bytes).map(|message| message.encode()));
}
