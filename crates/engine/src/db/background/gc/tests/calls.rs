//! Calls with which a garbage collection reads its inputs and looks up their keys.

use super::*;

/// Number of short value files. Together with the long one they are enough for a merge.
const SHORT_FILES: u32 = 16;
const SHORT_RECORDS: u32 = 12;
const LONG_RECORDS: u32 = 190;
const VALUE_BYTES: usize = 16 << 10;
const FILES: u64 = SHORT_FILES as u64 + 1;
const RECORDS: u64 = (LONG_RECORDS + SHORT_FILES * SHORT_RECORDS) as u64;

/// An empty database whose value files have room for all records, and the counters of its files.
fn empty() -> (Store, CountingFs) {
    let fs = MemFs::new();
    let counted = CountingFs::new(Arc::new(fs.clone()));
    let family = CfOptions {
        write_buffer_bytes: 8 << 20,
        buckets: 1,
        buckets_dynamic: false,
        value_separation_bytes: 64,
        value_file_bytes: 8 << 20,
        compression: Compression::None,
        compression_last: Compression::None,
        space_amplification_max: 0.0,
        ..CfOptions::default()
    };
    let components = Components {
        background: BackgroundMode::Manual,
        fs: Arc::new(counted.clone()),
        families: [("default".to_owned(), family.clone())].into_iter().collect(),
        seed: Some(1),
        ..Components::default()
    };
    let options = DbOptions { wal_segment_bytes: 8 << 20, ..DbOptions::default() };
    let db = Db::open_with("/db", options, components).expect("opens");
    (Store { fs, db, model: BTreeMap::new(), rng: Rng::with_seed(7), family }, counted)
}

fn key(file: u32, record: u32) -> Vec<u8> {
    format!("key{:05}", record * 32 + file).into_bytes()
}

/// Writes the value files with these numbers. All of them overlap, and the first one is long.
fn write_files(store: &mut Store, files: std::ops::RangeInclusive<u32>) {
    for file in files {
        let records = if file == 0 { LONG_RECORDS } else { SHORT_RECORDS };
        for record in 0..records {
            store.put_patiently(key(file, record), vec![file as u8; VALUE_BYTES]);
        }
        store.db.flush(store.db.default_family()).expect("flushes");
    }
}

/// Merges the files, and returns the number of calls that looked up their keys.
fn merge(store: &Store, counted: &CountingFs) -> u64 {
    assert_eq!(store.ticker(Ticker::GcJobs), 0);
    while store.db.step_background().expect("steps") {}
    assert_eq!((store.ticker(Ticker::GcJobs), store.ticker(Ticker::GcFilesCollected)), (1, FILES));
    let calls = |class| counted.snapshot().of(class, IoPurpose::Gc).read_calls;
    assert_eq!(store.ticker(Ticker::GcValueReads), FILES, "each file fits into one step");
    assert_eq!(calls(FileClass::ValueSst), 2 * FILES);
    store.check();
    calls(FileClass::Sst)
}

#[test]
fn files_without_garbage_are_merged_without_a_look_up() {
    let (mut store, counted) = empty();
    write_files(&mut store, 0..=SHORT_FILES);
    assert_eq!(merge(&store, &counted), 0);
    assert_eq!(store.ticker(Ticker::GcRecordsCopied), RECORDS);
    assert_eq!(store.version().values().len(), 1);
}

#[test]
fn file_with_garbage_is_looked_up() {
    let (mut store, counted) = empty();
    write_files(&mut store, 1..=SHORT_FILES / 2);
    // The long file has a newer value of a record of a short one.
    store.put_patiently(key(1, 0), vec![99; VALUE_BYTES]);
    write_files(&mut store, 0..=0);
    store.compact();
    write_files(&mut store, SHORT_FILES / 2 + 1..=SHORT_FILES);
    store.db.inner.view.cache().clear();
    assert!(merge(&store, &counted) > 0);
    assert_eq!(store.ticker(Ticker::GcRecordsChecked), RECORDS + 1);
    assert_eq!(store.ticker(Ticker::GcRecordsCopied), RECORDS);
}
