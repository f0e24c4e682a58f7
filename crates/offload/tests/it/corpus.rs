//! Replays the inputs of the fuzz targets: the decoders answer every input.

use std::fmt::Debug;
use std::path::Path;

use archipelago_offload::parcel::JobParcel;
use archipelago_offload::wire::OffloadMessage;
use archipelago_offload::wire::shard::ShardMessage;

/// Decodes the inputs of a target with `read`, which also returns the encoding of what it has read.
/// The names of the inputs say whether they can be read.
fn replay<T: Debug>(target: &str, read: impl Fn(&[u8]) -> Result<(T, Vec<u8>), String>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut seen = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        #[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let read = read(&bytes);
        assert_eq!(read.is_ok(), name.starts_with("good"), "{name}: {read:?}");
        if let Ok((_, encoded)) = read {
            assert_eq!(encoded, bytes, "{name}");
        }
        seen += 1;
    }
    assert!(seen > 10, "{} is almost empty", dir.display());
}

#[test]
fn messages_are_read_or_refused() {
    replay("message", |bytes| {
        let message = OffloadMessage::decode(bytes).map_err(|malformed| malformed.to_string())?;
        let encoded = message.encode();
        Ok((message, encoded))
    });
}

#[test]
fn parcels_are_read_or_refused() {
    replay("parcel", |bytes| {
        let parcel = JobParcel::decode(bytes).map_err(|malformed| malformed.to_string())?;
        let encoded = parcel.encode();
        Ok((parcel, encoded))
    });
}

#[test]
fn messages_of_shards_are_read_or_refused() {
    replay("shard_message", |bytes| {
        let message = ShardMessage::decode(bytes).map_err(|malformed| malformed.to_string())?;
        let encoded = message.encode();
        Ok((message, encoded))
    });
}
