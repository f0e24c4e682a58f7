use std::path::Path;
use std::sync::Arc;

use archipelago_env::FileSystem;
use archipelago_env::mem::MemFs;

use super::{Meta, MetaBatch, MetaSpace, MetaThreads, Scan};

const DIR: &str = "/node/meta";

fn open(fs: &MemFs) -> Meta {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    Meta::open(&fs, Path::new(DIR), MetaThreads::Caller).unwrap()
}

fn put(space: MetaSpace, key: &[u8], value: &[u8]) -> MetaBatch {
    let mut batch = MetaBatch::default();
    batch.put(space, key, value);
    batch
}

fn all(meta: &Meta, space: MetaSpace, from: &[u8]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut visit = |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
        Ok(Scan::Continue)
    };
    meta.scan(space, from, &mut visit).unwrap();
    keys
}

#[test]
fn written_batch_survives_power_loss() {
    let fs = MemFs::new();
    let meta = open(&fs);
    meta.write(&put(MetaSpace::Epochs, b"volume", b"7")).unwrap();
    for seed in 0..20 {
        let meta = open(&fs.crash_clone(seed));
        assert_eq!(meta.get(MetaSpace::Epochs, b"volume").unwrap().as_deref(), Some(&b"7"[..]));
    }
}

#[test]
fn applied_batch_survives_a_kill() {
    let fs = MemFs::new();
    let meta = open(&fs);
    meta.apply(&put(MetaSpace::Extents, b"extent", b"open")).unwrap();
    let killed = open(&fs.kill_clone());
    assert_eq!(killed.get(MetaSpace::Extents, b"extent").unwrap().as_deref(), Some(&b"open"[..]));
}

#[test]
fn scan_stays_within_its_space() {
    let meta = open(&MemFs::new());
    let mut batch = MetaBatch::default();
    for key in [&b"a"[..], b"b", b"c"] {
        batch.put(MetaSpace::Chunks, key, b"");
    }
    batch.put(MetaSpace::Registers, b"z", b"");
    batch.put(MetaSpace::Node, b"a", b"");
    meta.apply(&batch).unwrap();
    assert_eq!(all(&meta, MetaSpace::Chunks, b"b"), [b"b".to_vec(), b"c".to_vec()]);
    let mut removal = MetaBatch::default();
    removal.remove(MetaSpace::Chunks, b"b");
    meta.apply(&removal).unwrap();
    assert_eq!(all(&meta, MetaSpace::Chunks, b""), [b"a".to_vec(), b"c".to_vec()]);
}

#[test]
fn length_of_the_files_is_known_after_a_look() {
    let fs = MemFs::new();
    let meta = open(&fs);
    assert_eq!(meta.file_bytes(), None);
    meta.write(&put(MetaSpace::Epochs, b"volume", &[7; 5000])).unwrap();
    meta.look_at_files();
    let entries = fs.list(Path::new(DIR)).unwrap();
    let listed: u64 = entries.iter().map(|entry| entry.len).sum();
    assert!(listed > 0, "{entries:?}");
    assert_eq!(meta.file_bytes(), Some(listed));
}
