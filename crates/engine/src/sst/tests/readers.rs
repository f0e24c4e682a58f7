//! The table cache.

use std::sync::atomic::Ordering;

use archipelago_env::FileSystem;

use super::stub::VecFs;
use super::*;
use crate::cache::{BlockKey, BlockKind};
use crate::file_meta::{sst_name, value_file_name};
use crate::live_file::{LiveFile, LiveValueFile, Trash};
use crate::table_cache::TableCache;
use crate::value::ValueTableBuilder;
use crate::value_ref::{Reference, ValueHandle};

struct Setup {
    fs: Arc<VecFs>,
    tables: TableCache,
    files: Vec<Arc<LiveFile>>,
    budget: Arc<ByteBudget>,
}

fn setup(count: u64, readers_max: usize) -> Setup {
    let fs = Arc::new(VecFs::default());
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 20, &budget);
    let trash = Arc::new(Trash::default());
    let files = (1..=count)
        .map(|no| {
            let (bytes, meta) = build(&numbered(20), &[], plain());
            fs.files.lock().insert(Path::new("/db").join(sst_name(FileNo(no))), bytes);
            LiveFile::new(FileMeta { no, ..meta }, Arc::clone(&trash))
        })
        .collect();
    let shared: Arc<dyn FileSystem> = Arc::clone(&fs) as _;
    let tables =
        TableCache::new(shared, "/db".into(), cache, Arc::clone(&budget), readers_max, false);
    Setup { fs, tables, files, budget }
}

#[test]
fn readers_stay_bounded_and_used_ones_stay_open() {
    let Setup { fs, tables, files, budget } = setup(40, 8);
    for round in 0..3 {
        for file in &files {
            let reader = tables.load(file).unwrap();
            assert_eq!(versions(&reader, b"key00000003", 9).len(), 1);
            // File 1 is read all the time.
            drop(tables.get(&files[0]).unwrap());
            assert!(tables.open_readers() <= 8, "round {round}");
        }
    }
    assert!(files[0].reader.load().is_some(), "the hot file was closed");
    let opened = fs.opens.load(Ordering::Relaxed);
    assert!(opened <= 1 + 39 * 3, "{opened}");
    let held = budget.used_bytes(archipelago_base::budget::MemoryClass::TableReader);
    assert!(held > 0);
    drop(files);
    assert_eq!(budget.used_bytes(archipelago_base::budget::MemoryClass::TableReader), 0);
    assert_eq!(tables.open_readers(), 0);
}

/// A value file with one value, which is file `no` on the file system of `setup`.
fn value_file(setup: &Setup, no: u64) -> (Arc<LiveValueFile>, Reference) {
    let path = Path::new("/db").join(value_file_name(FileNo(no)));
    let bytes = Bytes::default();
    let file = Box::new(VecWriter(Arc::clone(&bytes)));
    let mut builder = ValueTableBuilder::new(file, &path, FileNo(no), [no as u8; 16], plain());
    let reference = builder.add(b"key", SeqNo(1), &no.to_le_bytes()).unwrap();
    let meta = builder.finish().unwrap();
    setup.fs.files.lock().insert(path, bytes);
    (LiveValueFile::new(meta, Arc::default()), reference)
}

#[test]
fn value_files_share_the_limit_of_tables() {
    let setup = setup(20, 8);
    let values: Vec<_> = (101..121).map(|no| value_file(&setup, no)).collect();
    let Setup { fs, tables, files, .. } = &setup;
    let options = TableReadOptions::foreground();
    for (table, (values, reference)) in files.iter().zip(&values) {
        drop(tables.load(table).unwrap());
        let error = tables.load_values(values, true).map(drop).expect_err("not open");
        assert_eq!(error.kind(), archipelago_base::ErrorKind::Busy);
        let at = ValueHandle::hinted(reference).unwrap();
        let no = values.file_no().0.to_le_bytes();
        assert_eq!(tables.load_values(values, false).unwrap().read_at(at, &options).unwrap(), no);
        let open = tables.load_values(values, true).unwrap();
        assert_eq!(open.read_at(at, &options).unwrap(), no);
        assert!(tables.open_readers() <= 8);
    }
    let held = tables.get_values(&values[19].0).unwrap();
    tables.evict(FileNo(120));
    assert!(values[19].0.reader.load().is_none());
    held.verify(context()).unwrap();
    let path = Path::new("/db").join(value_file_name(FileNo(101)));
    fs.remove(&path).unwrap();
    assert!(values[0].0.reader.load().is_none(), "the clock hand closed it");
    let error = tables.get_values(&values[0].0).map(drop).expect_err("missing");
    assert!(file_named(&path, &error), "{error}");
}

#[test]
fn a_closed_reader_serves_whoever_holds_it() {
    let Setup { tables, files, .. } = setup(2, 8);
    let held = tables.get(&files[0]).unwrap();
    tables.evict(FileNo(1));
    assert!(files[0].reader.load().is_none());
    assert_eq!(versions(&held, b"key00000003", 9).len(), 1);
    tables.evict(FileNo(99));
}

#[test]
fn a_missing_or_damaged_file_is_named() {
    let Setup { fs, tables, files, .. } = setup(2, 8);
    let path = Path::new("/db").join(sst_name(FileNo(1)));
    fs.remove(&path).unwrap();
    let error = tables.get(&files[0]).expect_err("missing");
    assert!(file_named(&path, &error), "{error}");
    let path = Path::new("/db").join(sst_name(FileNo(2)));
    fs.files.lock()[&path].lock().pop();
    let error = tables.load(&files[1]).map(|_| ()).expect_err("damaged");
    assert!(file_named(&path, &error), "{error}");
    assert_eq!(tables.open_readers(), 0);
}

#[test]
fn many_threads_open_a_file_once() {
    let Setup { fs, tables, files, .. } = setup(4, 8);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..400 {
                    let reader = tables.load(&files[round % 4]).unwrap();
                    assert_eq!(versions(&reader, b"key00000003", 9).len(), 1);
                }
            });
        }
    });
    assert_eq!(fs.opens.load(Ordering::Relaxed), 4);
}

#[test]
fn ingest_files_are_checked_and_described() {
    let fs: Arc<dyn FileSystem> = Arc::new(VecFs::default());
    let path = Path::new("/out/made.sst");
    let mut writer = SstWriter::create(&fs, path, TableOptions::default()).unwrap();
    writer.put(b"", b"empty key").unwrap();
    writer.put(b"b", b"").unwrap();
    assert!(writer.put(b"b", b"again").is_err());
    assert!(writer.put(b"a", b"back").is_err());
    assert!(writer.put(&vec![b'z'; key::KEY_BYTES_MAX + 1], b"").is_err());
    writer.merge(b"c", b"+1").unwrap();
    writer.delete(b"d").unwrap();
    writer.delete_range(b"x", b"z").unwrap();
    assert!(writer.delete_range(b"z", b"x").is_err());
    let meta = writer.finish().unwrap();
    assert_eq!((meta.entries, meta.deletions, meta.range_deletions), (4, 1, 1));
    assert_eq!((meta.smallest.as_slice(), meta.largest.as_slice()), (&b""[..], &b"z"[..]));
    assert!(meta.largest_exclusive);
    let file = fs.open(path, context(), Default::default()).unwrap();
    let read = read_foreign_table(&file, path, FileNo(12)).unwrap().meta;
    assert_eq!(read, FileMeta { no: 12, ..meta });

    let ingested = FileMeta { global_seq: Some(500), ..read };
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 20, &budget);
    let table = TableReader::open(file, path, Some(&ingested), &cache, &budget).unwrap();
    assert_eq!(versions(&table, b"c", 500), [(500, Kind::Merge, b"+1".to_vec())]);
    assert_eq!(versions(&table, b"", 600), [(500, Kind::Put, b"empty key".to_vec())]);
    assert_eq!(versions(&table, b"c", 499), []);
    assert_eq!(table.tombstones().max_covering(b"y", SeqNo(500)), Some(SeqNo(500)));
    table.verify(context()).unwrap();

    let mut empty = SstWriter::create(&fs, path, TableOptions::default()).unwrap();
    assert_eq!(empty.estimated_bytes() > 0, empty.delete(b"k").is_ok());
    let empty = SstWriter::create(&fs, path, TableOptions::default()).unwrap();
    assert!(empty.finish().is_err());
}

/// Writes records of which those at `warm` are read by users, while the cache is full or not.
/// Returns counts of the blocks that the cache has afterwards.
fn warmed(full: bool, warm: impl Fn(u64) -> bool) -> (u64, u64) {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(512 << 10, &budget);
    let options = TableOptions { block_bytes: 256, ..plain() };
    let file = Box::new(VecWriter(Bytes::default()));
    let builder = TableBuilder::new(file, &path(), FileNo(7), [9; 16], options);
    let mut builder = builder.warming(&cache);
    for n in (0..200).filter(|_| full) {
        cache.insert(BlockKey { file: [1, n], offset: 0 }, tests_block(4 << 10));
    }
    let before = cache.stats(BlockKind::Data).inserts;
    for (nth, ((user_key, seq), (kind, value))) in (0..).zip(&numbered(1000)) {
        let role = RecordRole { is_warm: warm(nth), ..RecordRole::default() };
        builder.add_as(&key::encode(user_key, SeqNo(seq.0), *kind), value, role).unwrap();
    }
    builder.finish().unwrap();
    (cache.stats(BlockKind::Data).inserts - before, 1000)
}

#[test]
fn written_blocks_are_cached_if_enough_keys_are_read() {
    let (all, records) = warmed(false, |_| true);
    assert!(all > 50 && all < records, "{all}");
    assert_eq!(warmed(true, |_| true).0, all);
    for full in [false, true] {
        assert_eq!(warmed(full, |_| false).0, 0);
        let half = warmed(full, |nth| nth < 500).0;
        assert!(half.abs_diff(all / 2) < 2, "{half} of {all}");
    }
    assert_eq!(warmed(false, |nth| nth % 4 == 0).0, all);
    assert_eq!(warmed(true, |nth| nth % 4 == 0).0, 0, "nobody's blocks are pushed out for these");
}
