//! Values of two value files and their heir, read through versions.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::SystemClock;
use archipelago_base::{CfId, FileNo, SeqNo};
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

use super::*;
use crate::db::state::background_mode::BackgroundMode;
use crate::file_meta::{FileMeta, value_file_name};
use crate::options::{CfOptions, Compression};
use crate::sst::{BlockCache, TableOptions};
use crate::table_content::TableContent;
use crate::value::ValueTableBuilder;
use crate::value_ref::{Reference, ValueFileMeta, ValueRefs};
use crate::version::VersionBuilder;

const ENTRIES: u64 = 40;
/// Numbers of the files that hold the entries with even and with odd numbers.
const FILES: [u64; 2] = [5, 6];
const HEIR: u64 = 9;

struct World {
    fs: MemFs,
    tables: Arc<TableCache>,
    readers: Arc<ValueReaders>,
    stats: Arc<Statistics>,
    /// Reference of each entry.
    references: Vec<Reference>,
    version: Arc<Version>,
}

fn key_of(n: u64) -> Vec<u8> {
    format!("key{n:04}").into_bytes()
}

fn value_of(n: u64) -> Vec<u8> {
    format!("value {n} ").into_bytes().repeat(40)
}

fn seq_of(n: u64) -> SeqNo {
    SeqNo(100 + n)
}

fn dir() -> PathBuf {
    PathBuf::from("/db")
}

/// Writes the value file `no` with `entries`.
fn write(fs: &MemFs, no: u64, entries: &[u64]) -> (ValueFileMeta, Vec<Reference>) {
    let path = dir().join(value_file_name(FileNo(no)));
    let context = IoContext::new(FileClass::ValueSst, IoPurpose::Flush);
    let file = fs.create(&path, context, CreateOptions::default()).unwrap();
    let options = TableOptions { block_bytes: 256, ..TableOptions::default() };
    let mut builder = ValueTableBuilder::new(file, &path, FileNo(no), [no as u8; 16], options);
    let add = |&n: &u64| builder.add(&key_of(n), seq_of(n), &value_of(n)).unwrap();
    let references = entries.iter().map(add).collect();
    (builder.finish().unwrap(), references)
}

/// A table that references `files` and has nothing else.
fn table(refs: ValueRefs) -> FileMeta {
    FileMeta {
        no: 20,
        unique_id: [20; 16],
        size_bytes: 1000,
        checksum: 7,
        smallest: key_of(0),
        largest: key_of(ENTRIES),
        largest_exclusive: false,
        smallest_seq: 100,
        largest_seq: 100 + ENTRIES,
        entries: ENTRIES,
        deletions: 0,
        range_deletions: 0,
        raw_bytes: 2000,
        global_seq: None,
        median_key: key_of(ENTRIES / 2),
        created_unix_ms: 1,
        content: TableContent { compression: Compression::None, ..TableContent::default() },
        refs,
    }
}

fn world() -> World {
    let fs = MemFs::new();
    fs.create_dir_all(&dir()).unwrap();
    let mut references = vec![None; ENTRIES as usize];
    let mut refs = ValueRefs::default();
    let base = Version::empty(CfId(1), Arc::new(CfOptions::default()));
    let mut builder = VersionBuilder::new(&base);
    for (at, no) in FILES.into_iter().enumerate() {
        let entries: Vec<u64> = (0..ENTRIES).filter(|n| *n as usize % 2 == at).collect();
        let (meta, found) = write(&fs, no, &entries);
        for (&n, reference) in entries.iter().zip(found) {
            refs.add(no, u64::from(reference.stored_bytes));
            references[n as usize] = Some(reference);
        }
        builder.add_value_file(meta).unwrap();
    }
    builder.add(1, table(refs)).unwrap();
    let version = builder.finish(&Arc::default()).unwrap().version;
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 20, &budget);
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let tables = TableCache::new(shared, dir(), cache, budget, 100, false);
    let references = references.into_iter().flatten().collect();
    let readers = ValueReaders::new(BackgroundMode::Threads, &SystemClock::shared());
    let (tables, readers) = (Arc::new(tables), Arc::new(readers));
    World { fs, tables, readers, stats: Arc::default(), references, version }
}

impl World {
    /// The version in which one heir has replaced both files.
    fn collect(&mut self) {
        let entries: Vec<u64> = (0..ENTRIES).collect();
        let (meta, _) = write(&self.fs, HEIR, &entries);
        let mut builder = VersionBuilder::new(&self.version);
        builder.add_value_file(meta).unwrap();
        for no in FILES {
            builder.remove_value_file(no).unwrap();
            builder.inherit(no, HEIR).unwrap();
        }
        self.version = builder.finish(&Arc::default()).unwrap().version;
    }

    fn reads(&self, cache_only: bool) -> ValueReads<'_> {
        ValueReads {
            version: &self.version,
            tables: &self.tables,
            readers: &self.readers,
            stats: &self.stats,
            options: TableReadOptions { cache_only, ..TableReadOptions::foreground() },
        }
    }

    fn read(&self, n: u64, cache_only: bool) -> Result<PinnedSlice> {
        let key = key_of(n);
        let reference = self.references[n as usize];
        self.reads(cache_only).fetch(WantedValue { key: &key, seq: seq_of(n), reference })
    }

    fn check_batch(&self, entries: &[u64]) {
        let keys: Vec<Vec<u8>> = entries.iter().map(|&n| key_of(n)).collect();
        let wanted: Vec<WantedValue<'_>> = keys
            .iter()
            .zip(entries)
            .map(|(key, &n)| WantedValue {
                key,
                seq: seq_of(n),
                reference: self.references[n as usize],
            })
            .collect();
        let values = self.reads(false).fetch_many(&wanted).unwrap();
        assert_eq!(values.len(), entries.len());
        for (value, &n) in values.iter().zip(entries) {
            assert_eq!(*value, value_of(n), "value {n}");
        }
    }
}

#[test]
fn values_are_read_alone_and_in_batches_before_and_after_a_move() {
    let mut world = world();
    for misses in [0, ENTRIES * 2] {
        for n in 0..ENTRIES {
            let value = world.read(n, false).unwrap();
            assert_eq!(value, value_of(n));
            assert!(value.is_pinned());
        }
        let shuffled: Vec<u64> = (0..ENTRIES).map(|n| n * 7 % ENTRIES).collect();
        world.check_batch(&shuffled);
        assert_eq!(world.stats.get(Ticker::ValueHintMisses), misses);
        if misses == 0 {
            world.collect();
        }
    }
    assert_eq!(world.stats.get(Ticker::ValuesRead), ENTRIES * 2);
    assert_eq!(world.stats.get(Ticker::ValuesCached), ENTRIES * 2);
}

#[test]
fn read_of_the_cache_alone_is_busy_until_the_value_is_cached() {
    let world = world();
    for n in [3, 4] {
        assert_eq!(world.read(n, true).unwrap_err().kind(), ErrorKind::Busy);
        world.read(n, false).unwrap();
        assert_eq!(world.read(n, true).unwrap(), value_of(n));
        assert_eq!(world.read(n + 2, true).unwrap_err().kind(), ErrorKind::Busy);
    }
}

#[test]
fn version_that_does_not_know_the_file_is_damaged() {
    let mut world = world();
    world.references[0].file_no = FileNo(77);
    let error = world.read(0, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("value file 77"), "{error}");
}

#[test]
fn missing_value_file_is_damage_and_not_a_missing_key() {
    let world = world();
    world.fs.remove(&dir().join(value_file_name(FileNo(FILES[1])))).unwrap();
    let error = world.read(1, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("000006.vsst"), "{error}");
    assert_eq!(world.read(2, false).unwrap(), value_of(2));
}

#[test]
fn slow_files_are_read_together_with_the_same_result() {
    let world = world();
    world.readers.note_read(Duration::from_millis(80));
    let shuffled: Vec<u64> = (0..ENTRIES).map(|n| n * 7 % ENTRIES).collect();
    world.check_batch(&shuffled);
    assert_eq!(world.readers.helped(), 1, "a second thread reads the second file");
    assert_eq!(world.stats.get(Ticker::ValuesRead), ENTRIES);
    world.readers.close();
    world.check_batch(&shuffled);
    assert_eq!(world.readers.helped(), 1, "no thread is left after the close");
}

#[test]
fn error_of_one_of_several_slow_files_is_returned() {
    let world = world();
    world.readers.note_read(Duration::from_millis(80));
    let lost = dir().join(value_file_name(FileNo(FILES[1])));
    world.fs.remove(&lost).unwrap();
    let keys = [key_of(0), key_of(1)];
    let wanted = [0, 1].map(|n: usize| WantedValue {
        key: &keys[n],
        seq: seq_of(n as u64),
        reference: world.references[n],
    });
    assert!(world.reads(false).fetch_many(&wanted).is_err());
}
