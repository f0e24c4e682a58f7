//! Tables that are dropped, rewritten or taken down for the space that they give back.

use super::*;
use crate::file_meta::FileMeta;
use crate::table_content::CoveredRange;

const NOW_MS: u64 = 1_000;

fn version(files: Vec<(usize, FileMeta)>, boundaries: &[&[u8]]) -> Arc<Version> {
    let mut builder = VersionBuilder::new(&Version::empty(CF, Arc::new(options())));
    if !boundaries.is_empty() {
        let map = BucketMap::new(Epoch(1), boundaries.iter().map(|b| b.to_vec()).collect());
        builder.set_map(map.expect("ascending")).expect("newer");
    }
    files.into_iter().for_each(|(level, file)| builder.add(level, file).expect("new"));
    builder.finish(&Arc::default()).expect("possible").version
}

/// A file all of whose records expire at `latest_ms` or before.
fn expiring(no: u64, keys: (&str, &str), seqs: (u64, u64), latest_ms: u64) -> FileMeta {
    let mut file = meta(no, keys.0.as_bytes(), keys.1.as_bytes(), seqs);
    file.content.expiring = file.entries;
    file.content.expiring_bytes = file.raw_bytes;
    file.content.expiry_ms = [1, latest_ms / 4, latest_ms / 2, latest_ms / 4 * 3, latest_ms];
    file
}

/// A file of one range tombstone.
fn covering(no: u64, keys: (&str, &str), seq: u64) -> FileMeta {
    let mut file = meta(no, keys.0.as_bytes(), keys.1.as_bytes(), (seq, seq));
    file.largest_exclusive = true;
    file.entries = 0;
    file.range_deletions = 1;
    file.content.covered = vec![CoveredRange {
        start: keys.0.into(),
        end: keys.1.into(),
        oldest_seq: seq,
        newest_seq: seq,
    }];
    file
}

fn at<'a>(version: &'a Version, snapshots: &'a [SeqNo]) -> PickInput<'a> {
    PickInput { snapshots, now_ms: NOW_MS, ..input(version, &[], 1) }
}

/// Numbers of the files that are dropped now.
fn dropped(input: &PickInput<'_>) -> Vec<u64> {
    let Some(pick) = pick_drop(input) else { return Vec::new() };
    let mut numbers: Vec<u64> = pick.inputs().map(|(_, file)| file.no).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_last_level_file_full_of_deletes_is_rewritten_once_no_snapshot_needs_them() {
    for (deletions, due) in [(10, true), (4, true), (3, false)] {
        let mut file = meta(1, b"a", b"c", (1, 50));
        file.deletions = deletions;
        let version = version(vec![(LAST_LEVEL, file)], &[]);
        assert!(pick(&at(&version, &[SeqNo(50)])).is_none(), "a snapshot may need them");
        let later = [SeqNo(51)];
        let mut input = at(&version, &later);
        match pick(&input) {
            Some(Pick::Drop { .. }) => assert_eq!(deletions, 10),
            Some(Pick::Rewrite { level: LAST_LEVEL, files }) => {
                assert!(due && files.len() == 1, "{deletions}");
            }
            other => assert!(!due && other.is_none(), "{deletions}: {other:?}"),
        }
        input.jobs_max = 0;
        assert!(pick(&input).is_none(), "enough jobs run");
    }
}

#[test]
fn an_expired_table_is_dropped_only_where_nothing_older_lies_below() {
    let gone = |no, keys, level| (level, expiring(no, keys, (50, 60), NOW_MS));
    let old = |no, first: &str, last: &str, level| {
        (level, meta(no, first.as_bytes(), last.as_bytes(), (1, 9)))
    };
    let free = version(vec![gone(1, ("b", "d"), 5), old(2, "e", "f", 6)], &[]);
    assert_eq!(dropped(&at(&free, &[])), [1]);
    assert!(dropped(&PickInput { now_ms: NOW_MS - 1, ..at(&free, &[]) }).is_empty(), "too early");
    assert_eq!(dropped(&at(&free, &[SeqNo(61)])), [1]);
    assert!(dropped(&at(&free, &[SeqNo(60)])).is_empty(), "a snapshot is older than a record");
    let busy = [Running { files: vec![1], ..Pick::Drop { files: Vec::new() }.running(CF) }];
    assert!(dropped(&PickInput { running: &busy, ..at(&free, &[]) }).is_empty(), "in use");
    for below in [4, 5] {
        let hiding = version(vec![gone(1, ("b", "d"), below), old(2, "d", "f", 6)], &[]);
        assert!(dropped(&at(&hiding, &[])).is_empty(), "it hides older versions");
    }
    let in_l0 = version(vec![gone(1, ("b", "d"), 0), old(2, "c", "f", 0)], &[]);
    assert!(dropped(&at(&in_l0, &[])).is_empty(), "it hides an older file of L0");
    let newest =
        version(vec![(0, expiring(1, ("b", "d"), (1, 8), NOW_MS)), old(2, "c", "f", 0)], &[]);
    assert_eq!(dropped(&at(&newest, &[])), [1], "what is newer needs nothing of it");
}

#[test]
fn tables_that_range_tombstones_cover_are_dropped() {
    let table = |no, first: &str, last: &str| {
        (LAST_LEVEL, meta(no, first.as_bytes(), last.as_bytes(), (10, 20)))
    };
    // Two tombstones of one range delete, cut at the bucket boundary "m".
    let tombstones = [(0, covering(1, ("c", "m"), 30)), (0, covering(2, ("m", "x"), 30))];
    let tables = [table(3, "a", "c"), table(4, "d", "e"), table(5, "l", "n"), table(6, "w", "x")];
    let all = version(tombstones.into_iter().chain(tables).collect(), &[b"m"]);
    assert_eq!(dropped(&at(&all, &[])), [4, 5]);
    assert_eq!(dropped(&at(&all, &[SeqNo(9), SeqNo(30)])), [4, 5]);
    for between in [10, 29] {
        assert!(dropped(&at(&all, &[SeqNo(between)])).is_empty(), "{between}");
    }
    let unpublished = PickInput { visible: SeqNo(29), ..at(&all, &[]) };
    assert!(dropped(&unpublished).is_empty());
    // Once nothing is below them, the tombstones go as well.
    let alone = version(vec![(0, covering(1, ("c", "m"), 30)), table(3, "a", "b")], &[]);
    assert_eq!(dropped(&at(&alone, &[])), [1]);
    // A table that is newer than the tombstone stays.
    let newer = meta(3, b"d", b"e", (31, 40));
    let newer = version(vec![(5, covering(1, ("c", "m"), 30)), (0, newer)], &[]);
    assert_eq!(dropped(&at(&newer, &[])), [1]);
}

#[test]
fn a_table_is_rewritten_from_a_third_of_garbage_on() {
    let rewritten = |change: fn(&mut FileMeta), level: usize, snapshots: &[SeqNo]| {
        let mut file = meta(1, b"b", b"d", (50, 60));
        change(&mut file);
        let version = version(vec![(level, file)], &[]);
        matches!(pick(&at(&version, snapshots)), Some(Pick::Rewrite { .. }))
    };
    assert!(!rewritten(|_| {}, LAST_LEVEL, &[]));
    fn half_expired(file: &mut FileMeta) {
        file.content.expiring = file.entries;
        file.content.expiring_bytes = file.raw_bytes;
        file.content.expiry_ms = [1, 2, NOW_MS, NOW_MS + 1, NOW_MS + 2];
    }
    fn quarter_expired(file: &mut FileMeta) {
        half_expired(file);
        file.content.expiry_ms[2] += 1;
    }
    for level in [LAST_LEVEL - 1, LAST_LEVEL] {
        assert!(rewritten(half_expired, level, &[SeqNo(55)]), "a snapshot sees no expired value");
        assert!(!rewritten(quarter_expired, level, &[]));
    }
    fn shadowed(file: &mut FileMeta) {
        file.content.shadowed = 4;
        file.content.shadowed_bytes = 800;
        file.content.shadowed_keys = 4;
        file.content.shadowed_oldest_seq = 51;
        file.content.shadowing_newest_seq = 58;
    }
    assert!(rewritten(shadowed, LAST_LEVEL, &[SeqNo(50), SeqNo(58)]));
    assert!(!rewritten(shadowed, LAST_LEVEL, &[SeqNo(51)]), "a snapshot is between the versions");
    fn uncompressed(file: &mut FileMeta) {
        file.content.compression = crate::options::Compression::None;
    }
    assert!(rewritten(uncompressed, LAST_LEVEL, &[]));
    assert!(!rewritten(uncompressed, LAST_LEVEL - 1, &[]), "upper levels have their own");
}

#[test]
fn one_rewrite_runs_at_a_time_and_drops_go_on() {
    let mut first = meta(1, b"b", b"d", (50, 60));
    first.deletions = 5;
    let mut second = meta(2, b"e", b"g", (50, 60));
    second.deletions = 5;
    let gone = expiring(3, ("h", "i"), (50, 60), NOW_MS);
    let files = vec![(LAST_LEVEL, first), (LAST_LEVEL, second), (LAST_LEVEL, gone)];
    let version = version(files, &[]);
    let rewrite = Pick::Rewrite {
        level: LAST_LEVEL,
        files: vec![Arc::clone(&version.level(LAST_LEVEL).files()[0])],
    };
    let running = [rewrite.running(CF)];
    let input = PickInput { running: &running, jobs_max: 9, ..at(&version, &[]) };
    assert!(matches!(pick(&input), Some(Pick::Drop { .. })));
    let running = [rewrite.running(CF), Running { files: vec![3], ..rewrite.running(CF) }];
    let input = PickInput { running: &running, ..input };
    assert!(pick(&input).is_none(), "one rewrite runs already");
}
