//! Replays the inputs of the fuzz target: the decoder answers every input.

use archipelago_offload::wire::OffloadMessage;

#[test]
fn messages_are_read_or_refused() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/message");
    let mut seen = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        #[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let read = OffloadMessage::decode(&bytes);
        assert_eq!(read.is_ok(), name.starts_with("good"), "{name}: {read:?}");
        if let Ok(message) = read {
            assert_eq!(message.encode(), bytes, "{name}");
        }
        seen += 1;
    }
    assert!(seen > 10, "{} is almost empty", dir.display());
}
