//! Versions: look-ups against linear search, builders against impossible edits.

use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{CfId, Epoch, ErrorKind, SeqNo};

use super::rebalance::can_change_map;
use super::*;
use crate::file_meta::FileMeta;
use crate::live_file::Trash;
use crate::options::Compression;
use crate::table_content::TableContent;
use crate::value_ref::ValueRefs;

/// A file of `smallest..=largest` with the sequence numbers `seqs`.
pub(crate) fn meta(no: u64, smallest: &[u8], largest: &[u8], seqs: (u64, u64)) -> FileMeta {
    FileMeta {
        no,
        unique_id: [no as u8; 16],
        size_bytes: 1000,
        checksum: 7,
        smallest: smallest.to_vec(),
        largest: largest.to_vec(),
        largest_exclusive: false,
        smallest_seq: seqs.0,
        largest_seq: seqs.1,
        entries: 10,
        deletions: 0,
        range_deletions: 0,
        raw_bytes: 2000,
        global_seq: None,
        median_key: smallest.to_vec(),
        created_unix_ms: 1,
        content: TableContent { compression: Compression::Zstd, ..TableContent::default() },
        refs: ValueRefs::default(),
    }
}

fn empty() -> Arc<Version> {
    Version::empty(CfId(1), Arc::new(CfOptions::default()))
}

fn build(base: &Arc<Version>, files: Vec<(usize, FileMeta)>) -> Result<Built> {
    let mut builder = VersionBuilder::new(base);
    for (level, meta) in files {
        builder.add(level, meta)?;
    }
    builder.finish(&Arc::default())
}

/// Sorted distinct keys with a shared prefix and few different bytes, so that fences tie.
fn keys(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let prefix = vec![b'p'; rng.usize(..3)];
    let mut keys = std::collections::BTreeSet::new();
    while keys.len() < count {
        let len = rng.usize(..14);
        let tail = (0..len).map(|_| *rng.choice(b"\0aab\xff").expect("not empty"));
        keys.insert(prefix.iter().copied().chain(tail).collect::<Vec<u8>>());
    }
    keys.into_iter().collect()
}

#[test]
fn look_ups_agree_with_a_linear_search() {
    let mut rng = Rng::with_seed(1);
    for _ in 0..300 {
        let count = rng.usize(0..20) * 2;
        let bounds = keys(&mut rng, count);
        let mut files = Vec::new();
        for (no, pair) in bounds.chunks(2).enumerate() {
            let mut file = meta(no as u64 + 1, &pair[0], &pair[1], (1, 2));
            file.largest_exclusive = rng.bool();
            if rng.bool() && !file.largest_exclusive {
                file.smallest = pair[1].clone();
            }
            files.push((3, file));
        }
        rng.shuffle(&mut files);
        let version = build(&empty(), files).expect("disjoint").version;
        version.check().expect("sound");
        let all = version.level(3).files();
        let mut probes = keys(&mut rng, 40);
        probes.extend(bounds);
        probes.extend([Vec::new(), b"p".to_vec(), b"o".to_vec(), b"zz".to_vec()]);
        for key in &probes {
            let expected = all.iter().find(|file| file.contains(key)).map(|file| file.no);
            assert_eq!(version.file_for(3, key).map(|file| file.no), expected, "{key:?}");
            let to = rng.choice(&probes).expect("not empty").clone();
            let range = KeyRange { start: key.clone(), end: rng.bool().then_some(to) };
            let overlapping = |range: &KeyRange| -> Vec<u64> {
                version.overlapping(3, range).iter().map(|file| file.no).collect()
            };
            let expected: Vec<u64> = match range.is_empty() {
                true => Vec::new(),
                false => all.iter().filter(|f| f.overlaps(&range)).map(|f| f.no).collect(),
            };
            assert_eq!(overlapping(&range), expected, "{range:?}");
        }
        for file in all {
            let other = meta(99, &file.smallest, &file.largest, (1, 1));
            let expected: Vec<u64> =
                all.iter().filter(|f| f.overlaps_file(&other)).map(|f| f.no).collect();
            let found = version.level(3).overlapping_file(&other);
            assert_eq!(found.iter().map(|f| f.no).collect::<Vec<_>>(), expected);
        }
    }
}

#[test]
fn l0_is_cut_by_bucket_and_newest_first() {
    let mut builder = VersionBuilder::new(&empty());
    builder.set_map(BucketMap::new(Epoch(1), vec![b"m".to_vec()]).expect("valid")).expect("newer");
    for (no, range, seqs) in
        [(1, (b"a", b"c"), (1, 5)), (2, (b"m", b"z"), (1, 5)), (3, (b"b", b"k"), (6, 9))]
    {
        builder.add(0, meta(no, range.0, range.1, seqs)).expect("new");
    }
    let version = builder.finish(&Arc::default()).expect("possible").version;
    version.check().expect("sound");
    let numbers = |key: &[u8]| version.l0_of(key).iter().map(|file| file.no).collect::<Vec<_>>();
    assert_eq!((numbers(b"b"), numbers(b"m")), (vec![3, 1], vec![2]));
    assert_eq!((version.l0_layers_max(), version.file_count(0)), (2, 3));
    assert_eq!(version.bytes(0), 3000);
}

#[test]
fn impossible_edits_are_corrupt_and_change_nothing() {
    let file = |no, a: &[u8], b: &[u8]| meta(no, a, b, (1, 2));
    let base = build(&empty(), vec![(1, file(1, b"a", b"c")), (0, file(2, b"a", b"z"))]);
    let base = base.expect("possible").version;
    type Edit = fn(&mut VersionBuilder) -> Result<()>;
    let edits: [(&str, Edit); 9] = [
        ("unknown file", |b| b.remove(1, 9)),
        ("wrong level", |b| b.remove(2, 1)),
        ("removed twice", |b| b.remove(1, 1).and_then(|()| b.remove(1, 1))),
        ("number in use", |b| b.add(2, meta(1, b"x", b"y", (1, 2)))),
        ("level overlap", |b| b.add(1, meta(3, b"c", b"d", (1, 2)))),
        ("across buckets", |b| b.set_map(BucketMap::new(Epoch(1), vec![b"m".to_vec()])?)),
        ("old map", |b| b.set_map(BucketMap::single())),
        ("no such level", |b| b.add(7, meta(3, b"x", b"y", (1, 2)))),
        ("moved and changed", |b| {
            b.remove(1, 1).and_then(|()| b.add(2, meta(1, b"a", b"b", (1, 2))))
        }),
    ];
    for (what, edit) in edits {
        let mut builder = VersionBuilder::new(&base);
        let done = edit(&mut builder).and_then(|()| builder.finish(&Arc::default()).map(|_| ()));
        assert_eq!(done.expect_err(what).kind(), ErrorKind::Corrupt, "{what}");
    }
    // An exclusive end may touch the next file's start.
    let mut touching = file(3, b"c", b"d");
    touching.smallest = b"c1".to_vec();
    let mut builder = VersionBuilder::new(&base);
    builder.remove(1, 1).expect("there");
    let mut cut = file(4, b"a", b"c1");
    cut.largest_exclusive = true;
    builder.add(1, cut).expect("new");
    builder.add(1, touching).expect("new");
    builder.finish(&Arc::default()).expect("disjoint").version.check().expect("sound");
}

#[test]
fn moved_file_keeps_its_reader_until_its_last_version() {
    let trash = Arc::new(Trash::default());
    let base = {
        let mut builder = VersionBuilder::new(&empty());
        builder.add(1, meta(1, b"a", b"c", (1, 2))).expect("new");
        builder.add(1, meta(2, b"d", b"e", (1, 2))).expect("new");
        builder.finish(&trash).expect("possible").version
    };
    let mut builder = VersionBuilder::new(&base);
    builder.add(2, meta(1, b"a", b"c", (1, 2))).expect("moves");
    builder.remove(1, 1).expect("there");
    builder.remove(1, 2).expect("there");
    let built = builder.finish(&trash).expect("possible");
    assert!(Arc::ptr_eq(&base.level(1).files()[0], &built.version.level(2).files()[0]));
    assert_eq!(built.removed.iter().map(|file| file.no).collect::<Vec<_>>(), [2]);
    built.removed.iter().for_each(|file| file.mark_obsolete());
    drop(built.removed);
    assert!(trash.is_empty(), "an old version still holds it");
    drop(base);
    assert_eq!(trash.take()[0].no(), archipelago_base::FileNo(2));
    drop(built.version);
    assert!(trash.is_empty(), "a live file stays");
}

#[test]
fn levels_that_did_not_change_are_shared() {
    let base = build(&empty(), vec![(1, meta(1, b"a", b"c", (1, 2)))]).expect("possible").version;
    let next = build(&base, vec![(2, meta(2, b"a", b"c", (1, 2)))]).expect("possible").version;
    assert!(std::ptr::eq(base.level(1), next.level(1)));
    assert_eq!((next.flushed_through().min(), next.last_used_level()), (SeqNo::ZERO, 2));
}

#[test]
fn a_bucket_map_changes_only_while_nothing_touches_the_bucket() {
    let mut builder = VersionBuilder::new(&empty());
    builder
        .set_map(BucketMap::new(Epoch(1), vec![b"g".to_vec(), b"p".to_vec()]).expect("valid"))
        .expect("newer");
    builder.add(0, meta(1, b"a", b"b", (1, 2))).expect("new");
    builder.add(6, meta(2, b"a", b"z", (1, 2))).expect("new");
    let version = builder.finish(&Arc::default()).expect("possible").version;
    let busy = |touched, running: &[Running], flushes: &[KeyRange]| {
        can_change_map(&version, touched, running, flushes).map_err(|e| e.to_string()).err()
    };
    assert_eq!(busy(1..3, &[], &[]), None);
    assert!(busy(0..2, &[], &[]).expect("busy").contains("1 L0 files"));
    let flush = KeyRange { start: b"q".to_vec(), end: None };
    assert_eq!(busy(1..2, &[], std::slice::from_ref(&flush)), None);
    assert!(busy(1..3, &[], std::slice::from_ref(&flush)).expect("busy").contains("flushed"));
    let mut job = Running { cf: CfId(1), range: flush, from: 0, to: 6, files: vec![2] };
    assert!(busy(2..3, std::slice::from_ref(&job), &[]).expect("busy").contains("compacted"));
    job.cf = CfId(2);
    assert_eq!(busy(2..3, &[job], &[]), None);
}
