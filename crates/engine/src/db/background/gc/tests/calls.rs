//! Calls with which a garbage collection reads its inputs and looks up their keys.

use super::*;

/// Number of short value files. Together with the long one they are enough for a merge.
const SHORT_FILES: u32 = 16;
const SHORT_RECORDS: u32 = 12;
const LONG_RECORDS: u32 = 190;
const VALUE_BYTES: usize = 16 << 10;
const FILES: u64 = SHORT_FILES as u64 + 1;
const RECORDS: u64 = (LONG_RECORDS + SHORT_FILES * SHORT_RECORDS) as u64;

/// An empty database whose memtables and value files have room for `bytes` bytes, and the counters
/// of its files. `bound` is the bound on space amplification.
fn empty(bytes: u64, bound: f64) -> (Store, CountingFs) {
    let fs = MemFs::new();
    let counted = CountingFs::new(Arc::new(fs.clone()));
    let family = CfOptions {
        write_buffer_bytes: bytes,
        buckets: 1,
        buckets_dynamic: false,
        value_separation_bytes: 64,
        value_file_bytes: bytes,
        compression: Compression::None,
        compression_last: Compression::None,
        space_amplification_max: bound,
        ..CfOptions::default()
    };
    let components = Components {
        background: BackgroundMode::Manual,
        fs: Arc::new(counted.clone()),
        families: [("default".to_owned(), family.clone())].into_iter().collect(),
        seed: Some(1),
        ..Components::default()
    };
    let options = DbOptions { wal_segment_bytes: bytes, ..DbOptions::default() };
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
    let (mut store, counted) = empty(8 << 20, 0.0);
    write_files(&mut store, 0..=SHORT_FILES);
    assert_eq!(merge(&store, &counted), 0);
    assert_eq!(store.ticker(Ticker::GcRecordsCopied), RECORDS);
    assert_eq!(store.version().values().len(), 1);
}

#[test]
fn file_with_garbage_is_looked_up() {
    let (mut store, counted) = empty(8 << 20, 0.0);
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

#[test]
fn values_that_are_longer_than_a_step_are_collected() {
    const LENGTHS: [usize; 4] = [100, 700 << 10, 20 << 10, 5 << 20];
    let (mut store, _) = empty(64 << 20, 1.25);
    for round in 0..2 {
        for at in (0..16_u32).filter(|at| round == 0 || at % 3 > 0) {
            let value = vec![2 * at as u8 + round; LENGTHS[at as usize % LENGTHS.len()]];
            store.put_patiently(key(0, at), value);
        }
        store.compact();
    }
    let tickers = [Ticker::GcFilesCollected, Ticker::GcRecordsCopied, Ticker::GcValueReads];
    // Of the first file 100 bytes, 5 MiB, 20 KiB, 700 KiB, 100 bytes and 5 MiB are valid. A step
    // has 4 MiB, so it ends before a value of 5 MiB and after it.
    assert_eq!(tickers.map(|ticker| store.ticker(ticker)), [1, 6, 4]);
    store.check();
}
