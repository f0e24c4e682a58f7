use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};

use super::*;
use crate::file_meta::FileMeta;
use crate::options::CfOptions;
use crate::version::tests::meta;
use crate::version::{Version, VersionBuilder};

/// A version of the files, which have 10 records and 1,000 bytes each unless a test changes them.
fn version(files: Vec<(usize, FileMeta)>) -> Arc<Version> {
    let empty = Version::empty(CfId(1), Arc::new(CfOptions::default()));
    let mut builder = VersionBuilder::new(&empty);
    for (level, file) in files {
        builder.add(level, file).unwrap();
    }
    builder.finish(&Arc::default()).unwrap().version
}

fn input(version: &Version) -> PickInput<'_> {
    PickInput {
        version,
        running: &[],
        jobs_max: 1,
        snapshots: &[],
        visible: SeqNo(1000),
        now_ms: 0,
        loading: false,
        space: &[],
    }
}

const WIDE: Room = Room { bytes: u64::MAX, misjudged: 0 };

fn deleting(no: u64, from: &[u8], to: &[u8], deletions: u64) -> FileMeta {
    FileMeta { deletions, entries: deletions, size_bytes: 100, ..meta(no, from, to, (90, 99)) }
}

fn inputs_of(pick: &Pick) -> Vec<u64> {
    let mut inputs: Vec<u64> = pick.inputs().map(|(_, file)| file.no).collect();
    inputs.sort_unstable();
    inputs
}

#[test]
fn each_part_of_l0_goes_down_alone() {
    let last = LAST_LEVEL;
    let version = version(vec![
        (last, meta(1, b"a", b"c", (1, 9))),
        (last, meta(2, b"d", b"f", (1, 9))),
        (last, meta(3, b"g", b"k", (1, 9))),
        (0, deleting(4, b"a", b"b", 3)),
        (0, deleting(5, b"e", b"h", 2)),
    ]);
    let pick = |bytes, misjudged| {
        let room = Room { bytes, misjudged };
        pick_freeing(&input(&version), &room).map(|pick| inputs_of(&pick))
    };
    // 7 of 10 records of 1,100 bytes; the other part writes more.
    assert_eq!(pick(10_000, 0), Some(vec![1, 4]));
    assert_eq!(pick(770, 0), Some(vec![1, 4]));
    assert_eq!(pick(769, 0), None, "nothing fits");
    assert_eq!(pick(900, 2), None, "estimates were too short");
    assert_eq!(largest_job_bytes(&input(&version)), 2_100);
}

#[test]
fn part_takes_every_overlapping_l0_file() {
    let older = meta(4, b"a", b"m", (20, 29));
    let version = version(vec![
        (LAST_LEVEL, meta(1, b"a", b"c", (1, 9))),
        (0, older),
        (0, deleting(5, b"b", b"c", 9)),
    ]);
    let pick = pick_freeing(&input(&version), &WIDE).unwrap();
    assert_eq!(inputs_of(&pick), [1, 4, 5], "nothing older stays above");
}

#[test]
fn range_tombstone_covers_whole_files() {
    let tombstone = FileMeta {
        entries: 0,
        range_deletions: 1,
        size_bytes: 50,
        largest_exclusive: true,
        ..meta(3, b"a", b"z", (50, 50))
    };
    let version = version(vec![
        (LAST_LEVEL, meta(1, b"b", b"c", (1, 9))),
        (LAST_LEVEL, meta(2, b"d", b"e", (1, 60))),
        (0, tombstone),
    ]);
    let pick = pick_freeing(&input(&version), &WIDE).unwrap();
    // The second file has records that are younger than the tombstone.
    assert_eq!(output_estimate(&pick), 1050);
}

#[test]
fn last_level_is_rewritten_without_snapshots() {
    let file = FileMeta { deletions: 4, ..meta(1, b"a", b"c", (1, 9)) };
    let version = version(vec![(LAST_LEVEL, file)]);
    let pick = pick_freeing(&input(&version), &WIDE).unwrap();
    assert!(matches!(pick, Pick::Rewrite { .. }) && output_estimate(&pick) == 333);
    let held = PickInput { snapshots: &[SeqNo(5)], ..input(&version) };
    assert!(pick_freeing(&held, &WIDE).is_none());
}

#[test]
fn tiny_tables_of_l0_are_merged() {
    let deletes = |count: u64| {
        let of = |no: u64| FileMeta {
            deletions: 1,
            entries: 1,
            size_bytes: 300,
            ..meta(10 + no, b"a", b"f", (20 + no, 20 + no))
        };
        let base = (LAST_LEVEL, meta(1, b"a", b"f", (1, 9)));
        let old = (0, FileMeta { size_bytes: 1 << 20, ..meta(2, b"a", b"f", (10, 19)) });
        version((0..count).map(|no| (0, of(no))).chain([base, old]).collect())
    };
    let merged = |count: u64, bytes: u64| {
        let version = deletes(count);
        let room = Room { bytes, misjudged: 0 };
        pick_tiny(&input(&version), &room).map(|pick| inputs_of(&pick))
    };
    assert_eq!(merged(8, 2400), Some((10..18).collect()));
    assert_eq!(merged(8, 2399), None, "there is no room for them");
    assert_eq!(merged(7, 2400), None, "few tables are left alone");
}

#[test]
fn wide_l0_file_is_cut_if_its_job_does_not_fit() {
    let version = version(vec![
        (LAST_LEVEL, meta(1, b"a", b"c", (1, 9))),
        (LAST_LEVEL, meta(2, b"d", b"f", (1, 9))),
        (0, deleting(3, b"a", b"f", 2)),
    ]);
    let cuts = [b"d".to_vec()];
    let recut = |bytes| pick_recut(&input(&version), &cuts, &Room { bytes, misjudged: 0 });
    assert!(recut(5_000).is_none(), "its job fits");
    assert!(recut(50).is_none(), "the merge within L0 does not fit either");
    assert_eq!(inputs_of(&recut(500).unwrap()), [3]);
    assert!(
        pick_recut(&input(&version), &[b"a".to_vec()], &Room { bytes: 500, misjudged: 0 })
            .is_none()
    );
}
