//! Properties of a table besides its records: bounds, I/O, memory, pinning.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use archipelago_base::ErrorKind;

use super::*;
use crate::iter::InternalIterator;
use crate::pinned::PinnedSlice;

#[test]
fn large_values_and_many_versions_cross_blocks() {
    let mut records = Records::new();
    for seq in 1..400u64 {
        records.insert((b"hot".to_vec(), Reverse(seq)), (Kind::Put, vec![seq as u8; 30]));
    }
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    records.insert((b"large".to_vec(), Reverse(7)), (Kind::Put, large));
    records.insert((b"large".to_vec(), Reverse(3)), (Kind::Put, vec![0; 2 << 20]));
    records.insert((vec![b'm'; key::KEY_BYTES_MAX], Reverse(1)), (Kind::Put, b"v".to_vec()));
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let (bytes, meta) = build(&records, &[], tiny(compression));
        let table = open(&bytes, &meta);
        for snapshot in [3, 57, 399, 1000] {
            for user_key in [&b"hot"[..], b"large", b"hos", b"hou"] {
                let expected = expected_versions(&records, user_key, snapshot);
                assert!(versions(&table, user_key, snapshot) == expected, "@{snapshot}");
            }
        }
        table.verify(context()).unwrap();
    }
}

#[test]
fn a_file_of_nothing_but_range_tombstones_is_a_file() {
    let tombstones = [
        RangeTombstone { start: b"b"[..].into(), end: b"d"[..].into(), seq: SeqNo(4) },
        RangeTombstone { start: b"c"[..].into(), end: b"k"[..].into(), seq: SeqNo(9) },
    ];
    let (bytes, meta) = build(&Records::new(), &tombstones, plain());
    assert_eq!((meta.smallest.as_slice(), meta.largest.as_slice()), (&b"b"[..], &b"k"[..]));
    assert!(meta.largest_exclusive);
    assert_eq!((meta.smallest_seq, meta.largest_seq, meta.entries), (4, 9, 0));
    let table = open(&bytes, &meta);
    table.verify(context()).unwrap();
    assert_eq!(table.tombstones().max_covering(b"c", SeqNo(100)), Some(SeqNo(9)));
    assert_eq!(versions(&table, b"c", 100), []);
    let mut iter = table.iter(TableReadOptions::foreground());
    iter.seek_to_first();
    assert!(!iter.valid());
    iter.seek_to_last();
    assert!(!iter.valid());
    iter.seek_for_prev(&key::encode(b"c", SeqNo(3), Kind::SEEK));
    assert!(!iter.valid());
    iter.status().unwrap();
}

#[test]
fn bounds_follow_points_and_tombstones() {
    let mut records = numbered(3);
    let ends_at =
        |end: &[u8]| [RangeTombstone { start: b"aa"[..].into(), end: end.into(), seq: SeqNo(40) }];
    let (_, meta) = build(&records, &ends_at(b"key00000002"), plain());
    assert_eq!(meta.smallest, b"aa");
    assert_eq!(meta.largest, b"key00000002");
    assert!(!meta.largest_exclusive, "a point lies at the end");
    assert_eq!((meta.smallest_seq, meta.largest_seq), (1, 40));
    let (_, meta) = build(&records, &ends_at(b"l"), plain());
    assert!(meta.largest_exclusive && meta.largest == b"l");
    records.insert((b"a".to_vec(), Reverse(2)), (Kind::Delete, Vec::new()));
    let (_, meta) = build(&records, &ends_at(b"b"), plain());
    assert_eq!((meta.smallest.as_slice(), meta.largest_exclusive), (&b"a"[..], false));
    assert_eq!((meta.entries, meta.deletions, meta.raw_bytes), (4, 1, 3 * 18 + 1));
}

#[test]
fn the_median_and_samples_cut_the_file_evenly() {
    let records = numbered(2000);
    for options in
        [plain(), tiny(Compression::None), TableOptions { block_bytes: 1 << 20, ..plain() }]
    {
        let one_block = options.block_bytes == 1 << 20;
        let (bytes, meta) = build(&records, &[], options);
        let median = records.keys().position(|(key, _)| *key >= meta.median_key).unwrap();
        assert!((800..1200).contains(&median), "{median}");
        let table = open(&bytes, &meta);
        let keys = table.index_keys(3);
        assert_eq!(keys.len(), if one_block { 0 } else { 3 });
        for (part, key) in keys.iter().enumerate() {
            let at = records.keys().position(|(other, _)| other >= key).unwrap();
            assert!((part * 500 + 300..part * 500 + 700).contains(&at), "{part}: {at}");
        }
        let half = table.approximate_offset(b"key00001000").unwrap();
        let data = table.properties().data_bytes;
        assert!(one_block || (data * 4 / 10..data * 6 / 10).contains(&half));
        assert_eq!(table.approximate_offset(b"z").unwrap(), data);
    }
}

#[test]
fn a_pinned_value_outlives_cache_and_table() {
    let (bytes, meta) = build(&numbered(100), &[], plain());
    let table = open(&bytes, &meta);
    let mut pinned: Option<PinnedSlice> = None;
    let lookup = Lookup::new(b"key00000042", SeqNo::MAX);
    table
        .lookup(&lookup, &TableReadOptions::foreground(), &mut |found| {
            pinned = Some(found.pin());
            Visit::Break(())
        })
        .unwrap();
    drop(table);
    let pinned = pinned.unwrap();
    assert!(pinned.is_pinned());
    assert_eq!(pinned, b"value 42");
}

#[test]
fn cache_only_reads_say_when_they_would_wait() {
    let (bytes, meta) = build(&numbered(500), &[], tiny(Compression::Lz4));
    let table = open(&bytes, &meta);
    let cached = TableReadOptions { cache_only: true, ..TableReadOptions::foreground() };
    let lookup = Lookup::new(b"key00000123", SeqNo::MAX);
    let mut found = 0;
    let error = table.lookup(&lookup, &cached, &mut |_| Visit::Break(())).expect_err("cold");
    assert_eq!(error.kind(), ErrorKind::Busy);
    let error = table.multi_lookup(&[lookup], &cached, &mut |_, _| Visit::Break(()));
    assert_eq!(error.expect_err("cold").kind(), ErrorKind::Busy);
    let mut iter = table.iter(cached);
    iter.seek_to_first();
    assert!(!iter.valid());
    assert_eq!(iter.status().expect_err("cold").kind(), ErrorKind::Busy);
    assert_eq!(versions(&table, b"key00000123", 1000).len(), 1);
    table
        .lookup(&lookup, &cached, &mut |_| {
            found += 1;
            Visit::Break(())
        })
        .unwrap();
    assert_eq!(found, 1);
    iter.seek(&key::encode(b"key00000123", SeqNo::MAX, Kind::SEEK));
    assert!(iter.valid());
    iter.status().unwrap();
}

#[test]
fn filters_and_caches_save_reads() {
    let records = numbered(3000);
    for options in [plain(), tiny(Compression::None)] {
        let (bytes, meta) = build(&records, &[], options);
        let (table, file) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
        let mut warm = table.iter(TableReadOptions::foreground());
        warm.seek_to_first();
        while warm.valid() {
            warm.next();
        }
        for n in 0..3000 {
            versions(&table, format!("key{n:08}").as_bytes(), u64::MAX >> 8);
        }
        let reads = file.reads.load(Ordering::Relaxed);
        for n in 0..3000 {
            assert_eq!(versions(&table, format!("key{n:08}").as_bytes(), 5000).len(), 1);
        }
        assert_eq!(file.reads.load(Ordering::Relaxed), reads, "warm reads go to the file");

        let (table, file) = open_with(&bytes, Some(&meta), 0).unwrap();
        let opened = file.reads.load(Ordering::Relaxed);
        let partitioned = table.properties().index_bytes > 1 << 12 && opened < 4;
        for n in 0..3000 {
            versions(&table, format!("key{n:08}x").as_bytes(), 5000);
        }
        let reads = file.reads.load(Ordering::Relaxed) - opened;
        let most = if partitioned { 3200 } else { 100 };
        assert!(reads < most, "{reads} reads for missing keys");
    }
}

#[test]
fn a_large_file_does_not_need_its_index_in_memory() {
    let records = numbered(20_000);
    let (bytes, meta) =
        build(&records, &[], TableOptions { partition_bytes: 4096, ..tiny(Compression::None) });
    let (two, _) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
    let (bytes, meta) = build(&records, &[], TableOptions { block_bytes: 256, ..plain() });
    let (one, _) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
    assert!(two.memory_bytes() * 10 < one.memory_bytes(), "{two:?} {}", two.memory_bytes());
    assert!(one.memory_bytes() > one.properties().index_bytes + one.properties().filter_bytes);
}

#[test]
fn a_batch_reads_its_blocks_at_once() {
    let records = numbered(1000);
    let (bytes, meta) = build(&records, &[], plain());
    let (table, file) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
    let keys: Vec<Vec<u8>> = (0..1000).step_by(10).map(|n| format!("key{n:08}").into()).collect();
    let lookups: Vec<_> = keys.iter().map(|key| Lookup::new(key, SeqNo::MAX)).collect();
    let mut found = 0;
    table
        .multi_lookup(&lookups, &TableReadOptions::foreground(), &mut |index, version| {
            assert_eq!(version.value, format!("value {}", index * 10).as_bytes());
            assert!(version.pin().is_pinned());
            found += 1;
            Visit::Break(())
        })
        .unwrap();
    assert_eq!(found, 100);
    assert_eq!(file.batches.load(Ordering::Relaxed), 1);
}

#[test]
fn scans_read_ahead() {
    let (bytes, meta) = build(&numbered(20_000), &[], plain());
    let scan = |options: TableReadOptions| {
        let (table, file) = open_with(&bytes, Some(&meta), 64 << 20).unwrap();
        let before = file.reads.load(Ordering::Relaxed);
        let mut iter = table.iter(options);
        iter.seek_to_first();
        let mut count = 0;
        while iter.valid() {
            count += 1;
            iter.next();
        }
        iter.status().unwrap();
        assert_eq!(count, 20_000);
        let prefetched = file.prefetched.load(Ordering::Relaxed);
        (file.reads.load(Ordering::Relaxed) - before, prefetched, table)
    };
    let (reads, prefetched, table) = scan(TableReadOptions::foreground());
    let data = table.properties().data_bytes;
    assert_eq!(reads, table.properties().data_blocks);
    assert!(prefetched > data * 9 / 10 && prefetched <= data, "{prefetched} of {data}");
    let (reads, prefetched, _) = scan(TableReadOptions::job(context(), 64 << 10));
    assert!(reads <= data / (64 << 10) + 2, "{reads}");
    assert_eq!(prefetched, 0);
}

/// Options of a job whose readahead is smaller than the values of [`large`].
fn late() -> TableReadOptions {
    TableReadOptions { late_values: true, ..TableReadOptions::job(context(), 64 << 10) }
}

/// Five records with values of 100 KB.
fn large() -> Records {
    let key = |n: u8| (format!("large{n}").into_bytes(), Reverse(u64::from(n) + 1));
    (0..5).map(|n| (key(n), (Kind::Put, vec![n; 100_000]))).collect()
}

#[test]
fn job_reads_large_value_when_it_is_asked_for() {
    let records = large();
    let (bytes, meta) = build(&records, &[], plain());
    let (table, file) = open_with(&bytes, Some(&meta), 0).unwrap();
    let reads = || file.reads.load(Ordering::Relaxed);
    let before = reads();
    let mut iter = table.iter(late());
    iter.seek_to_first();
    for ((user_key, _), (_, value)) in &records {
        assert_eq!(key::user_key(iter.key()), user_key);
        if value[0] == 3 {
            assert!(iter.value() == value && iter.value() == value, "another value");
        }
        iter.next();
    }
    assert!(!iter.valid());
    iter.status().unwrap();
    assert_eq!(reads() - before, 1);
    iter.seek_to_last();
    assert!(iter.value() == vec![4; 100_000]);
    iter.prev();
    assert!(iter.value() == vec![3; 100_000]);
}

/// Forty records of 40 KB that compress to less than 2 KB.
fn compressible() -> (Records, Bytes, FileMeta) {
    let key = |n: u8| (format!("large{n:02}").into_bytes(), Reverse(u64::from(n) + 1));
    let mut rng = fastrand::Rng::with_seed(1);
    let mut value = || {
        let mut value = vec![0; 40_000];
        rng.fill(&mut value[..1500]);
        value
    };
    let records: Records = (0..40).map(|n| (key(n), (Kind::Put, value()))).collect();
    let options = TableOptions { compression: Compression::Lz4, ..TableOptions::default() };
    let (bytes, meta) = build(&records, &[], options);
    assert!(meta.size_bytes < 80_000, "{}", meta.size_bytes);
    (records, bytes, meta)
}

#[test]
fn job_decodes_compressed_value_when_it_is_asked_for() {
    let (records, bytes, meta) = compressible();
    let (table, file) = open_with(&bytes, Some(&meta), 0).unwrap();
    let before = file.reads.load(Ordering::Relaxed);
    let mut iter = table.iter(late());
    iter.seek_to_first();
    for _ in &records {
        assert!(iter.valid());
        iter.next();
    }
    assert!(!iter.valid());
    iter.status().unwrap();
    assert_eq!(file.reads.load(Ordering::Relaxed), before, "a value was read");
    iter.seek_to_first();
    for (_, value) in records.values() {
        assert!(iter.read_value().unwrap() == value && iter.value() == value, "another value");
        iter.next();
    }
    let reads = file.reads.load(Ordering::Relaxed) - before;
    assert_eq!(reads, 2, "the values are read ahead, 64 KiB at a time");
}

#[test]
fn job_takes_large_value_from_the_block_cache() {
    let records = large();
    let (bytes, meta) = build(&records, &[], plain());
    let (table, file) = open_with(&bytes, Some(&meta), 64 << 20).unwrap();
    let values = |options: TableReadOptions| {
        let before = file.reads.load(Ordering::Relaxed);
        let mut iter = table.iter(options);
        iter.seek_to_first();
        for (_, value) in records.values() {
            assert!(iter.read_value().unwrap() == value, "another value");
            iter.next();
        }
        iter.status().unwrap();
        file.reads.load(Ordering::Relaxed) - before
    };
    assert_eq!(values(late()), 5);
    assert_eq!(values(TableReadOptions::foreground()), 5);
    assert_eq!(values(late()), 0);
}

#[test]
fn large_value_that_cannot_be_read_ends_the_iterator() {
    let (bytes, meta) = build(&large(), &[], plain());
    let middle = bytes.lock().len() / 2;
    bytes.lock()[middle] ^= 1;
    let (table, _) = open_with(&bytes, Some(&meta), 0).unwrap();
    let mut iter = table.iter(late());
    iter.seek_to_first();
    for n in 0..2 {
        assert!(iter.value() == vec![n; 100_000]);
        iter.next();
    }
    assert!(iter.valid() && iter.value().is_empty());
    assert_eq!(iter.read_value().unwrap_err().kind(), ErrorKind::Corrupt);
    iter.next();
    assert!(!iter.valid() && iter.status().is_err());
    // A seek does not forget that a job has got a wrong value.
    iter.seek_to_first();
    assert!(!iter.valid() && iter.status().is_err());
}

#[test]
fn a_global_sequence_number_replaces_all_others() {
    let records: Records = (0..300)
        .map(|n| ((format!("k{n:04}").into_bytes(), Reverse(0)), (Kind::Put, vec![n as u8])))
        .collect();
    let (bytes, meta) = build(&records, &[], tiny(Compression::None));
    let meta = FileMeta { global_seq: Some(50), ..meta };
    let table = open(&bytes, &meta);
    let mut iter = table.iter(TableReadOptions::foreground());
    let user_key = |iter: &TableIter| key::user_key(iter.key()).to_vec();
    iter.seek_to_first();
    for n in 0..300 {
        assert_eq!(iter.key(), key::encode(format!("k{n:04}").as_bytes(), SeqNo(50), Kind::Put));
        iter.next();
    }
    for (seq, at, before) in
        [(50, "k0100", "k0100"), (49, "k0101", "k0100"), (51, "k0100", "k0099")]
    {
        let target = key::encode(b"k0100", SeqNo(seq), Kind::SEEK);
        iter.seek(&target);
        assert_eq!(user_key(&iter), at.as_bytes(), "seek @{seq}");
        iter.seek_for_prev(&target);
        let before = if seq == 50 { "k0099" } else { before };
        assert_eq!(user_key(&iter), before.as_bytes(), "seek_for_prev @{seq}");
    }
    let exact = key::encode(b"k0100", SeqNo(50), Kind::Put);
    iter.seek_for_prev(&exact);
    assert_eq!(iter.key(), exact);
    iter.prev();
    assert_eq!(user_key(&iter), b"k0099");
    let (bytes, meta) = build(&numbered(3), &[], plain());
    let meta = FileMeta { global_seq: Some(50), ..meta };
    assert!(open_with(&bytes, Some(&meta), 0).is_err(), "records have numbers of their own");
}

#[test]
fn a_dump_tells_what_is_inside() {
    let tombstone = RangeTombstone { start: b"a"[..].into(), end: b"b"[..].into(), seq: SeqNo(4) };
    let options = TableOptions { cf_name: "users".into(), ..plain() };
    let (bytes, meta) = build(&numbered(3), &[tombstone], options);
    let mut text = String::new();
    open(&bytes, &meta).dump(&mut text, 2, TableReadOptions::foreground()).unwrap();
    for part in
        ["users", "records             3", "\"a\"..\"b\" @4", "\"key00000001\" @2 Put \"value 1\""]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("value 2"));
}
