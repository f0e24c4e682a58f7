//! Manifest decoders on arbitrary bytes: an edit, a whole manifest, `IDENTITY`, a mark file.
#![no_main]

use std::path::{Path, PathBuf};

use archipelago_base::FileNo;
use archipelago_engine::manifest::log::ManifestReader;
use archipelago_engine::manifest::mark::decode_marks;
use archipelago_engine::manifest::{Identity, VersionEdit};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(edit) = VersionEdit::decode(bytes) {
        let again = edit.encode().expect("what was decoded can be encoded");
        assert_eq!(VersionEdit::decode(&again).expect("own bytes"), edit);
    }
    let _ = Identity::decode(Path::new("IDENTITY"), bytes);
    if let Ok(Some((header, marks))) = decode_marks(bytes) {
        for mark in &marks {
            // A record that was decoded is the encoding of itself, somewhere in the file.
            let is_at = |at: usize| bytes[at..].starts_with(&header.encode_record(at as u64, mark));
            assert!((40..bytes.len()).step_by(24).any(is_at));
        }
    }
    let mut reader = ManifestReader::new(PathBuf::from("MANIFEST-000005"), FileNo(5), bytes);
    let _ = reader.begin();
    while let Ok(Some(record)) = reader.next() {
        let _ = reader.decode(&record);
    }
});
