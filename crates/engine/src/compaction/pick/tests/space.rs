//! Tables that are dropped, rewritten or taken down for the space that they free.

use super::*;
use crate::compaction::pick::reclaim::Covers;
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

/// A file whose records all expire at `latest_ms` or before.
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
fn last_level_deletes_are_rewritten_without_snapshots() {
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
fn expired_table_is_dropped_only_above_nothing_older() {
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

#[test]
fn a_table_is_compared_with_the_covers_beside_it_only() {
    const TABLES: u64 = 1000;
    let key = |n: u64| format!("k{n:05}");
    let mut files = Vec::new();
    for n in 0..TABLES {
        let at = (key(n), key(n + 1));
        files.push((4, covering(3 * n + 1, (&at.0, &at.1), 30)));
        files.push((5, covering(3 * n + 2, (&at.0, &at.1), 20)));
        let last = format!("{}x", at.0);
        files.push((LAST_LEVEL, meta(3 * n + 3, at.0.as_bytes(), last.as_bytes(), (1, 9))));
    }
    // A range delete over everything does not make every cover a neighbour of every table.
    files.push((0, covering(3 * TABLES + 1, ("k", "l"), 40)));
    let version = version(files, &[]);
    let covers = Covers::of(version.reclaimable());
    let looks = version.files().map(|(_, file)| covers.looks(file));
    assert!(looks.filter(|&looks| looks > 8).count() <= 1, "only the widest table has many");
    // The snapshot keeps the newest range delete from deleting the tables of level 4.
    let snapshots = [SeqNo(35)];
    assert_eq!(dropped(&at(&version, &snapshots)).len() as u64, 2 * TABLES);
}

#[test]
fn dropped_tables_are_those_of_which_a_reader_sees_nothing() {
    let mut rng = Rng::with_seed(11);
    let key = |n: u64| char::from(b'a' + n as u8).to_string();
    let mut dropped_in_all = 0;
    for _ in 0..2000 {
        let mut files = Vec::new();
        // (keys, sequence number) of each range delete.
        let mut deletes: Vec<(std::ops::Range<u64>, u64)> = Vec::new();
        let mut no = 0;
        for level in 3..=LAST_LEVEL {
            let (mut from, newest) = (0, (8 - level as u64) * 10);
            while from < 12 {
                let to = (from + rng.u64(1..5)).min(13);
                no += 1;
                let seq = newest + rng.u64(..9);
                if rng.bool() {
                    files.push((level, covering(no, (&key(from), &key(to)), seq)));
                    deletes.push((from..to, seq));
                } else {
                    let (first, last) = (key(from), key(to - 1));
                    let seqs = (newest, seq);
                    files.push((level, meta(no, first.as_bytes(), last.as_bytes(), seqs)));
                }
                from = to + rng.u64(..3);
            }
        }
        let snapshots: Vec<SeqNo> = (0..rng.usize(..3)).map(|_| SeqNo(rng.u64(10..60))).collect();
        let mut snapshots = snapshots;
        snapshots.sort_unstable();
        let version = version(files, &[]);
        let input = at(&version, &snapshots);
        let now_dropped = dropped(&input);
        for (_, file) in version.files().filter(|(_, file)| file.range_deletions == 0) {
            let number = |key: &[u8]| u64::from(key[0] - b'a');
            let is_gone = (number(&file.smallest)..=number(&file.largest)).all(|at| {
                // A reader at each snapshot, or now, that may see the table also sees a delete of
                // the record.
                let readers = snapshots.iter().map(|seq| seq.0).chain([input.visible.0]);
                readers.filter(|reader| *reader >= file.smallest_seq).all(|reader| {
                    deletes.iter().any(|(keys, seq)| {
                        keys.contains(&at) && *seq > file.largest_seq && *seq <= reader
                    })
                })
            });
            let was_dropped = now_dropped.contains(&file.no);
            assert!(is_gone || !was_dropped, "{file:?} {snapshots:?}");
            dropped_in_all += u64::from(was_dropped);
        }
    }
    assert!(dropped_in_all > 1000, "{dropped_in_all}");
}

#[test]
fn delayed_writers_let_range_tombstones_sink_during_a_load() {
    let below = meta(1, b"c", b"z", (1, 50));
    let version = version(vec![(LAST_LEVEL, below), (5, covering(2, ("b", "m"), 60))], &[]);
    let picked = |loading: bool, is_pressed: bool| {
        let demand =
            SpaceDemand { cf: CF, urgency: 1.0, shadow_share: 0.0, is_pressed, turn: None };
        pick(&PickInput { loading, space: &[demand], ..at(&version, &[]) })
    };
    let is_sink = |pick: Option<Pick>| matches!(pick, Some(Pick::Level { from: 5, .. }));
    assert!(is_sink(picked(false, false)));
    assert!(picked(true, false).is_none(), "the load may bring more tombstones");
    assert!(is_sink(picked(true, true)), "writers wait for what the tombstones delete");
}
