//! Value files in memory: reading back, device reads, the cache, golden bytes and damage.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::random::Rng;
use archipelago_base::{ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::{IoContext, IoPurpose, RandomFile};

use super::*;
use crate::cache::BlockKind;
use crate::key::{self, Kind};
use crate::options::Compression;
use crate::sst::block::BlockCache;
use crate::sst::builder::{Output, TableBuilder};
use crate::sst::format::{FOOTER_BYTES, Layout};
use crate::sst::properties::ValueArea;
use crate::sst::tests::stub::{Bytes, VecFile, VecWriter};
use crate::sst::tests::{corpus, file_named};
use crate::sst::{
    DumpedRecords, TableOptions, TableReadOptions, dump_file, read_foreign_value_file,
    verify_value_file,
};
use crate::value_ref::{Reference, ValueFileMeta, ValueHandle};

const NO: FileNo = FileNo(21);

/// A record with a separated value: user key, sequence number, value.
type Record = (Vec<u8>, u64, Vec<u8>);

fn path() -> PathBuf {
    PathBuf::from("/db/000021.vsst")
}

fn context() -> IoContext {
    IoContext::new(Layout::Values.class(), IoPurpose::Maintenance)
}

fn foreground() -> TableReadOptions {
    TableReadOptions::foreground()
}

fn options(compression: Compression) -> TableOptions {
    TableOptions { compression, block_bytes: 256, ..TableOptions::default() }
}

fn builder(bytes: &Bytes, options: TableOptions) -> ValueTableBuilder {
    let file = Box::new(VecWriter(Arc::clone(bytes)));
    ValueTableBuilder::new(file, &path(), NO, [7; 16], options)
}

fn build(records: &[Record], options: TableOptions) -> (Bytes, ValueFileMeta, Vec<Reference>) {
    let bytes = Bytes::default();
    let mut builder = builder(&bytes, options);
    let references = records
        .iter()
        .map(|(user_key, seq, value)| builder.add(user_key, SeqNo(*seq), value).unwrap())
        .collect();
    let value_bytes = builder.value_bytes();
    let meta = builder.finish().unwrap();
    assert_eq!(meta.records, records.len() as u64);
    assert_eq!(meta.value_bytes(), value_bytes);
    assert_eq!(meta.size_bytes, bytes.lock().len() as u64);
    (bytes, meta, references)
}

fn open_with(
    bytes: &Bytes,
    meta: &ValueFileMeta,
    cache_bytes: u64,
) -> Result<(Arc<ValueTable>, Arc<VecFile>, Arc<BlockCache>)> {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(cache_bytes, &budget);
    let file = VecFile::new(bytes);
    let shared: Arc<dyn RandomFile> = Arc::clone(&file) as _;
    let table = ValueTable::open(shared, &path(), meta, &cache, &budget)?;
    Ok((table, file, cache))
}

/// Records of which some compress and some do not; some keys have two versions.
fn sample(count: u64) -> Vec<Record> {
    let mut rng = Rng::with_seed(count);
    let mut records = Vec::new();
    for n in 0..count {
        let user_key = format!("user{:08}", n / 2 * 3).into_bytes();
        let len = rng.usize(1..900);
        let value = match n % 3 {
            0 => vec![n as u8; len],
            _ => (0..len).map(|_| rng.u8(..)).collect(),
        };
        records.push((user_key, 10_000 - n, value));
    }
    records
}

fn key_of(record: &Record) -> ValueKey<'_> {
    ValueKey { user_key: &record.0, seq: SeqNo(record.1) }
}

#[test]
fn values_read_back_by_hint_by_key_and_in_batches() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let records = sample(300);
        let (bytes, meta, references) = build(&records, options(compression));
        let (table, _, _) = open_with(&bytes, &meta, 1 << 20).unwrap();
        let mut handles = Vec::new();
        for (record, reference) in records.iter().zip(&references) {
            assert_eq!(table.read(reference, key_of(record), &foreground()).unwrap(), record.2);
            let ancestor = Reference { file_no: FileNo(3), offset: Some(1 << 40), ..*reference };
            let at = table.handle_of(&ancestor, key_of(record), &foreground()).unwrap();
            assert_eq!(Some(at), ValueHandle::hinted(reference));
            let late = Reference { offset: None, ..*reference };
            assert_eq!(table.read(&late, key_of(record), &foreground()).unwrap(), record.2);
            handles.push(at);
        }
        handles.reverse();
        handles.push(handles[3]);
        let job = TableReadOptions { fill_cache: false, ..foreground() };
        for options in [job, foreground()] {
            let (table, _, _) = open_with(&bytes, &meta, 1 << 20).unwrap();
            for _ in 0..2 {
                let values = table.read_many(&handles, &options).unwrap().values;
                assert_eq!(values.len(), handles.len());
                for (value, record) in values.iter().zip(records.iter().rev()) {
                    assert_eq!(*value, record.2);
                }
                assert_eq!(values[handles.len() - 1], values[3]);
            }
        }
        if compression != Compression::None {
            assert!(references.iter().any(|at| at.stored_bytes < at.raw_bytes));
        }
        assert!(references.iter().any(|at| at.stored_bytes == at.raw_bytes));
        table.verify(context()).unwrap();
    }
}

#[test]
fn keys_come_in_order_after_one_read() {
    let records = sample(2000);
    let (bytes, meta, references) = build(&records, options(Compression::Lz4));
    let (table, file, cache) = open_with(&bytes, &meta, 1 << 20).unwrap();
    let mut keys = table.keys(context()).unwrap();
    assert_eq!(keys.records(), records.len() as u64);
    for (record, reference) in records.iter().zip(&references) {
        let (internal_key, handle) = keys.current().unwrap().expect("a key for each record");
        assert_eq!(internal_key, key::encode(&record.0, SeqNo(record.1), Kind::Indirect));
        assert_eq!(Some(handle), ValueHandle::hinted(reference));
        keys.advance();
    }
    assert_eq!(keys.current().unwrap(), None);
    assert_eq!(file.reads.load(Ordering::Relaxed), 1);
    assert!(cache.is_empty());
    assert_eq!(meta.records, records.len() as u64);
    let smallest_seq = records.iter().map(|record| record.1).min().unwrap();
    assert_eq!((meta.smallest_seq, meta.largest_seq), (smallest_seq, 10_000));
    assert_eq!(meta.smallest, records[0].0);
    assert_eq!(meta.largest, records[records.len() - 1].0);
}

#[test]
fn value_with_a_hint_costs_one_device_read() {
    let records = sample(50);
    let (bytes, meta, references) = build(&records, options(Compression::None));
    let (table, file, cache) = open_with(&bytes, &meta, 1 << 20).unwrap();
    let reads = || file.reads.swap(0, Ordering::Relaxed);
    let read = |n: usize, options: &TableReadOptions| {
        table.read(&references[n], key_of(&records[n]), options)
    };
    assert_eq!(reads(), 0, "opening reads nothing");
    let first = read(7, &foreground()).unwrap();
    assert!(first.is_pinned());
    assert_eq!(reads(), 1);
    assert_eq!(read(7, &foreground()).unwrap(), first);
    assert_eq!(reads(), 0);
    let cached = TableReadOptions { cache_only: true, ..foreground() };
    assert_eq!(read(7, &cached).unwrap(), first);
    assert_eq!(read(8, &cached).expect_err("not cached").kind(), ErrorKind::Busy);
    let late = Reference { offset: None, ..references[7] };
    let error = table.read(&late, key_of(&records[7]), &cached).expect_err("no index");
    assert_eq!(error.kind(), ErrorKind::Busy);
    let stats = cache.stats(BlockKind::Value);
    assert_eq!((stats.hits, stats.misses, stats.inserts), (2, 2, 1));
    let handles: Vec<_> = references.iter().filter_map(ValueHandle::hinted).collect();
    table.read_many(&handles, &foreground()).unwrap();
    assert_eq!((file.batches.load(Ordering::Relaxed), reads()), (1, 49));
    table.forget_blocks();
    assert!(cache.is_empty());
}

#[test]
fn value_over_its_share_of_the_cache_stays_outside() {
    let records: Vec<Record> =
        vec![(b"a".into(), 2, vec![1; 200 << 10]), (b"b".into(), 1, vec![2; 20 << 10])];
    let (bytes, meta, references) = build(&records, options(Compression::None));
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(512 << 10, &budget);
    let file: Arc<dyn RandomFile> = VecFile::new(&bytes);
    let table = ValueTable::open(file, &path(), &meta, &cache, &budget).unwrap();
    let held = || budget.used_bytes(MemoryClass::BlockCache);
    let large = table.read(&references[0], key_of(&records[0]), &foreground()).unwrap();
    assert_eq!((cache.len(), cache.usage_bytes()), (0, 0));
    assert!(held() >= 200 << 10, "a value outside of the cache is charged");
    assert_eq!(large, records[0].2);
    drop(large);
    assert_eq!(held(), 0);
    drop(table.read(&references[1], key_of(&records[1]), &foreground()).unwrap());
    assert_eq!(cache.len(), 1);
    assert_eq!(held(), cache.usage_bytes());
}

#[test]
fn stored_values_are_copied_without_their_compression_being_undone() {
    let records = sample(40);
    let (bytes, meta, references) = build(&records, options(Compression::Zstd));
    let (table, _, _) = open_with(&bytes, &meta, 0).unwrap();
    let heir_bytes = Bytes::default();
    let file = Box::new(VecWriter(Arc::clone(&heir_bytes)));
    let heir_path = Path::new("/db/000030.vsst");
    let budget = ByteBudget::unlimited();
    let mut heir =
        ValueTableBuilder::new(file, heir_path, FileNo(30), [8; 16], options(Compression::None))
            .charged_to(&budget);
    let area = meta.value_bytes() as usize;
    let mut window = vec![0; area];
    table.read_ranges(&mut [(0, &mut window)], context()).unwrap();
    for (record, reference) in records.iter().zip(&references).step_by(2) {
        let at = ValueHandle::hinted(reference).unwrap();
        let raw = &window[at.offset as usize..at.end().unwrap() as usize];
        let stored = table.stored(at, raw).unwrap();
        let copied = heir.add_stored(&record.0, SeqNo(record.1), &stored).unwrap();
        assert_eq!(copied.stored_bytes, reference.stored_bytes);
        assert_eq!(copied.raw_bytes, reference.raw_bytes);
        let mut damaged = raw.to_vec();
        damaged[0] ^= 1;
        let error = table.stored(at, &damaged).expect_err("damaged");
        assert!(file_named(&path(), &error), "{error}");
    }
    let heir_meta = heir.finish().unwrap();
    let file: Arc<dyn RandomFile> = VecFile::new(&heir_bytes);
    let cache = BlockCache::new(0, &budget);
    let heir = ValueTable::open(file, heir_path, &heir_meta, &cache, &budget).unwrap();
    heir.verify(context()).unwrap();
    for (record, reference) in records.iter().zip(&references).step_by(2) {
        assert_eq!(heir.read(reference, key_of(record), &foreground()).unwrap(), record.2);
    }
    let error = heir.read(&references[1], key_of(&records[1]), &foreground());
    assert_eq!(error.expect_err("not copied").kind(), ErrorKind::Corrupt);
    let other = Reference { raw_bytes: references[0].raw_bytes + 1, ..references[0] };
    let error = heir.read(&other, key_of(&records[0]), &foreground());
    assert!(error.expect_err("other lengths").to_string().contains("its reference says"));
}

#[test]
fn keys_in_memory_are_charged_to_the_job() {
    let budget = ByteBudget::unlimited();
    let mut builder = builder(&Bytes::default(), options(Compression::None)).charged_to(&budget);
    for n in 0..40_000u64 {
        let user_key = format!("user{n:020}");
        builder.add(user_key.as_bytes(), SeqNo(n + 1), b"value").unwrap();
    }
    let held = budget.used_bytes(MemoryClass::Job);
    assert!((10 * 40_000..40 * 40_000).contains(&held), "{held}");
    drop(builder);
    assert_eq!(budget.used_bytes(MemoryClass::Job), 0);
}

#[test]
fn file_without_records_is_refused() {
    let error = builder(&Bytes::default(), options(Compression::None)).finish();
    assert_eq!(error.expect_err("empty").kind(), ErrorKind::InvalidArgument);
}

#[test]
#[should_panic(expected = "out of order")]
fn record_before_the_last_one_panics() {
    let mut builder = builder(&Bytes::default(), options(Compression::None));
    builder.add(b"k", SeqNo(3), b"newer").unwrap();
    let _never = builder.add(b"k", SeqNo(4), b"newest");
}

#[test]
fn bytes_are_what_the_format_page_says() {
    let options = TableOptions {
        cf: archipelago_base::CfId(2),
        cf_name: "fruit".into(),
        created_unix_ms: 1_700_000_000_000,
        ..TableOptions::default()
    };
    let records = [(b"apple".to_vec(), 9, b"red".to_vec()), (b"pear".to_vec(), 5, vec![b'y'; 64])];
    let (bytes, meta, references) = build(&records, options);
    let bytes = bytes.lock();
    assert_eq!(bytes[..4], *b"red\0");
    assert_eq!(
        bytes[4..8],
        archipelago_base::checksum::block_crc(&[7; 16], 0, b"red\0").to_le_bytes()
    );
    assert_eq!(bytes[8..12], 64u32.to_le_bytes());
    let packed = references[1];
    assert_eq!((packed.offset, packed.raw_bytes), (Some(8), 64));
    let area = 8 + packed.record_bytes() as usize;
    assert_eq!(bytes[area - 5], 1, "LZ4");
    assert_eq!(meta.keys_offset, area as u64);
    let record = |own: &[u8], seq: u64, handle: [u8; 3]| {
        let head = [0, own.len() as u8 + 8, 3];
        [&head, own, &(seq << 8 | 17).to_le_bytes(), &handle].concat()
    };
    let mut keys = record(b"apple", 9, [0, 3, 3]);
    keys.extend(record(b"pear", 5, [8, packed.stored_bytes as u8, 64]));
    let footer = &bytes[bytes.len() - FOOTER_BYTES..];
    assert_eq!(footer[84..], *b"ArchpVal");
    assert_eq!(footer[76..80], 1u32.to_le_bytes());
    assert_eq!(meta.checksum, archipelago_base::checksum::crc(&bytes));
    assert_eq!(bytes[area..area + keys.len()], keys);
    assert!(corpus("value_file").contains(&bytes), "the corpus lacks the golden file");
    assert_eq!((bytes.len(), meta.checksum), (320, 0xd0c5_108d), "golden file changed");
}

/// Reads all values in every way. Results must be correct; the outcome is the first error.
fn read_all(table: &Arc<ValueTable>, records: &[Record], references: &[Reference]) -> Result<()> {
    let mut outcome = Ok(());
    for (record, reference) in records.iter().zip(references) {
        for reference in [*reference, Reference { offset: None, ..*reference }] {
            let read = table.read(&reference, key_of(record), &foreground());
            if let Ok(value) = &read {
                assert_eq!(*value, record.2, "wrong data");
            }
            outcome = outcome.and(read.map(drop));
        }
    }
    let keys = table.keys(context()).and_then(|mut keys| {
        for record in records {
            let Some((internal_key, _)) = keys.current()? else { panic!("lost keys") };
            assert_eq!(internal_key, key::encode(&record.0, SeqNo(record.1), Kind::Indirect));
            keys.advance();
        }
        keys.current().map(drop)
    });
    outcome.and(keys)
}

#[test]
fn every_flipped_byte_is_found_and_named() {
    let records = sample(14);
    for compression in [Compression::None, Compression::Lz4] {
        let (bytes, meta, references) = build(&records, options(compression));
        let whole = bytes.lock().clone();
        for (at, &before) in whole.iter().enumerate() {
            bytes.lock()[at] ^= 1 << (at % 8);
            let (table, _, _) = open_with(&bytes, &meta, 1 << 20).unwrap();
            let error = table.verify(context()).expect_err("a flipped byte goes unnoticed");
            assert!(file_named(&path(), &error), "{error}");
            let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
            assert!(kinds.contains(&error.kind()), "{error}");
            if let Err(error) = read_all(&table, &records, &references) {
                assert!(file_named(&path(), &error), "{error}");
                assert!(kinds.contains(&error.kind()), "{error}");
            } else {
                assert!(at >= meta.keys_offset as usize, "a flipped value byte {at} is read");
            }
            bytes.lock()[at] = before;
        }
    }
}

#[test]
fn damaged_value_leaves_the_others_readable() {
    let records = sample(30);
    let (bytes, meta, references) = build(&records, options(Compression::None));
    let at = references[10].offset.unwrap() as usize;
    bytes.lock()[at] ^= 4;
    let (table, _, cache) = open_with(&bytes, &meta, 1 << 20).unwrap();
    for (n, (record, reference)) in records.iter().zip(&references).enumerate() {
        match table.read(reference, key_of(record), &foreground()) {
            Ok(value) => assert_eq!(value, record.2),
            Err(error) => {
                assert_eq!((n, error.kind()), (10, ErrorKind::Corrupt));
                assert!(error.to_string().contains(&format!("offset {at}")), "{error}");
            }
        }
    }
    assert_eq!(cache.len(), 29);
    bytes.lock()[at] ^= 4;
    let again = table.read(&references[10], key_of(&records[10]), &foreground());
    assert_eq!(again.unwrap(), records[10].2);
}

#[test]
fn another_file_is_not_taken_for_the_one_in_the_manifest() {
    let records = sample(5);
    let (bytes, meta, references) = build(&records, options(Compression::None));
    let longer = ValueFileMeta { size_bytes: meta.size_bytes + 1, ..meta.clone() };
    assert_eq!(
        open_with(&bytes, &longer, 0).map(drop).expect_err("length").kind(),
        ErrorKind::Corrupt
    );
    let behind = ValueFileMeta { keys_offset: meta.size_bytes, ..meta.clone() };
    assert_eq!(
        open_with(&bytes, &behind, 0).map(drop).expect_err("keys").kind(),
        ErrorKind::Corrupt
    );
    let others = [
        ValueFileMeta { unique_id: [9; 16], ..meta.clone() },
        ValueFileMeta { checksum: meta.checksum ^ 1, ..meta.clone() },
        ValueFileMeta { keys_offset: meta.keys_offset - 1, ..meta.clone() },
    ];
    for other in others {
        let (table, _, _) = open_with(&bytes, &other, 0).unwrap();
        assert_eq!(table.verify(context()).expect_err("another").kind(), ErrorKind::Corrupt);
        if other.unique_id != meta.unique_id {
            let read = table.read(&references[0], key_of(&records[0]), &foreground());
            assert_eq!(read.expect_err("another id").kind(), ErrorKind::Corrupt);
        }
    }
    let (table, _, _) = open_with(&bytes, &meta, 0).unwrap();
    let far = Reference { offset: Some(meta.keys_offset - 3), ..references[0] };
    let error = table.read(&far, key_of(&records[0]), &foreground()).expect_err("outside");
    assert!(error.to_string().contains("value area"), "{error}");
}

/// A value file with two values of three bytes. Its key blocks hold `handles`, and its properties
/// state `area`.
fn forged(handles: [[u8; 3]; 2], kind: Kind, area: ValueArea) -> Bytes {
    let bytes = Bytes::default();
    let file = Box::new(VecWriter(Arc::clone(&bytes)));
    let mut out = Output::new(file, &path(), [7; 16], 256);
    out.block(b"one", Compression::None).unwrap();
    out.block(b"two", Compression::None).unwrap();
    let options = TableOptions { bloom_bits_per_key: 0, ..options(Compression::None) };
    let mut table = TableBuilder::after(out, NO, options).over_values(area);
    for (key, handle) in [b"a", b"b"].iter().zip(handles) {
        table.add(&key::encode(*key, SeqNo(3), kind), &handle).unwrap();
    }
    table.end().unwrap();
    bytes
}

#[test]
fn verification_names_handles_that_do_not_tile_the_value_area() {
    let area = ValueArea { bytes: 16, raw_bytes: 6 };
    let (first, second) = ([0, 3, 3], [8, 3, 3]);
    let verified = |handles, kind, area| {
        let file: Arc<dyn RandomFile> = VecFile::new(&forged(handles, kind, area));
        read_foreign_value_file(&file, &path(), NO).map(drop)
    };
    verified([first, second], Kind::Indirect, area).unwrap();
    let refused = |handles, kind, area, part: &str| {
        let error = verified(handles, kind, area).expect_err(part);
        assert!(error.to_string().contains(part) && file_named(&path(), &error), "{error}");
    };
    let wrong_raw = ValueArea { raw_bytes: 7, ..area };
    refused([first, first], Kind::Indirect, area, "not behind the last one");
    refused([second, first], Kind::Indirect, area, "not behind the last one");
    refused([first, [8, 4, 4]], Kind::Indirect, area, "not behind the last one");
    refused([first, [8, 2, 3]], Kind::Indirect, area, "checksum");
    refused([first, [8, 3, 4]], Kind::Indirect, area, "raw bytes");
    refused([first, second], Kind::Put, area, "without a separated value");
    refused([first, second], Kind::Indirect, wrong_raw, "another value area");
}

#[test]
fn table_is_not_taken_for_a_value_file() {
    for (target, part) in [("sst", "not a value file"), ("value_file", "not an SST")] {
        let bytes = Bytes::default();
        bytes.lock().clone_from(&corpus(target)[0]);
        let file: Arc<dyn RandomFile> = VecFile::new(&bytes);
        let error = match target {
            "sst" => read_foreign_value_file(&file, &path(), NO).map(drop),
            _ => crate::sst::read_foreign_table(&file, &path(), NO).map(drop),
        };
        assert!(error.expect_err(part).to_string().contains(part));
    }
}

#[test]
fn foreign_file_has_the_metadata_of_its_builder() {
    let (bytes, meta, _) = build(&sample(20), options(Compression::Lz4));
    let file: Arc<dyn RandomFile> = VecFile::new(&bytes);
    assert_eq!(read_foreign_value_file(&file, &path(), NO).unwrap(), meta);
    verify_value_file(file, &path(), &meta, context()).unwrap();
}

#[test]
fn dump_shows_keys_with_handles_and_values_on_request() {
    let records =
        [(b"apple".to_vec(), 9, b"red".to_vec()), (b"pear".to_vec(), 5, b"green".to_vec())];
    let (bytes, _, _) = build(&records, options(Compression::Lz4));
    let file: Arc<dyn RandomFile> = VecFile::new(&bytes);
    let dump = |records_max, with_values| {
        let shown = DumpedRecords { records_max, with_values };
        dump_file(&file, &path(), shown, context()).unwrap()
    };
    let text = dump(9, false);
    let parts = [
        "records             2",
        "value area          18 bytes, 8 before compression",
        "\"apple\" @9 at 0: 3 bytes, 3 stored\n",
        "\"pear\" @5 at 8: 5 bytes, 5 stored\n",
    ];
    for part in parts {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("green"));
    let text = dump(1, true);
    assert!(text.contains("3 stored \"red\"\n") && !text.contains("pear\" @"), "{text}");
}

fn use_all(bytes: &Bytes) {
    let file: Arc<dyn RandomFile> = VecFile::new(bytes);
    let shown = DumpedRecords { records_max: usize::MAX, with_values: true };
    let _ = dump_file(&file, &path(), shown, context());
    let Ok(meta) = read_foreign_value_file(&file, &path(), NO) else { return };
    verify_value_file(file, &path(), &meta, context()).expect("verified before");
}

#[test]
fn hostile_files_do_not_panic() {
    let mut rng = Rng::with_seed(0x5e9a);
    let mut whole_files = 0;
    for whole in corpus("value_file") {
        let bytes = Bytes::default();
        for round in 0..400 {
            let mut damaged = whole.clone();
            for _ in 0..round.min(3) {
                let at = rng.usize(..damaged.len());
                damaged[at] = if rng.bool() { rng.u8(..) } else { damaged[at] ^ 1 << rng.u8(..8) };
            }
            if round % 50 == 49 {
                damaged.truncate(rng.usize(..damaged.len()));
            }
            *bytes.lock() = damaged;
            use_all(&bytes);
        }
        bytes.lock().clone_from(&whole);
        let file: Arc<dyn RandomFile> = VecFile::new(&bytes);
        whole_files += u64::from(read_foreign_value_file(&file, &path(), NO).is_ok());
    }
    assert!(whole_files >= 2, "the corpus has {whole_files} whole files");
}
