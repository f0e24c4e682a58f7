//! Picks by compensated sizes, and picks that find hidden garbage while writers are delayed.

use super::*;
use crate::file_meta::FileMeta;
use crate::value_ref::{ValueFileMeta, ValueRef, ValueRefs};
use crate::version::sizes;

/// A table of ten records that reference `bytes` of a value file of their own.
fn referencing(no: u64, keys: (&str, &str), seqs: (u64, u64), bytes: u64) -> FileMeta {
    let refs = match bytes {
        0 => Vec::new(),
        _ => vec![ValueRef { no: 100 + no, records: 10, bytes }],
    };
    let mut file = meta(no, keys.0.as_bytes(), keys.1.as_bytes(), seqs);
    file.refs = ValueRefs::new(refs).expect("sound");
    file
}

fn value_file(table: &FileMeta) -> Option<ValueFileMeta> {
    let refs = table.refs.by_file().first()?;
    Some(ValueFileMeta {
        no: refs.no,
        unique_id: [0; 16],
        size_bytes: refs.bytes + 100,
        checksum: 0,
        keys_offset: refs.bytes,
        smallest: table.smallest.clone(),
        largest: table.largest.clone(),
        smallest_seq: table.smallest_seq,
        largest_seq: table.largest_seq,
        records: refs.records,
        created_unix_ms: 0,
        basis: 0,
    })
}

fn version(files: Vec<(usize, FileMeta)>) -> Arc<Version> {
    version_of(CF, files)
}

fn version_of(cf: CfId, files: Vec<(usize, FileMeta)>) -> Arc<Version> {
    let mut builder = VersionBuilder::new(&Version::empty(cf, Arc::new(options())));
    for (level, file) in files {
        let values = value_file(&file);
        values.into_iter().for_each(|meta| builder.add_value_file(meta).expect("new"));
        builder.add(level, file).expect("new");
    }
    builder.finish(&Arc::default()).expect("possible").version
}

const CALM: SpaceDemand =
    SpaceDemand { cf: CF, urgency: 1.0, shadow_share: 0.5, is_pressed: false, turn: None };
const PRESSED: SpaceDemand = SpaceDemand { is_pressed: true, turn: Some(0), ..CALM };

fn picked(version: &Version, demand: SpaceDemand) -> Option<Pick> {
    pick(&PickInput { space: &[demand], ..input(version, &[], 1) })
}

#[test]
fn level_is_due_by_the_values_that_it_references() {
    let levels = |values: u64| {
        let lower = referencing(1, ("a", "z"), (1, 50), 4 * values);
        version(vec![(LAST_LEVEL, lower), (5, referencing(2, ("b", "y"), (60, 99), values))])
    };
    let inline = levels(0);
    assert!(pick(&input(&inline, &[], 1)).is_none(), "a thousand bytes are within the target");
    let separated = levels(100_000);
    assert_eq!(separated.level(5).compensated_bytes(), 101_000);
    assert_eq!(separated.referenced_mean_bytes(), 25_000);
    assert_eq!(separated.bytes(5), 1000);
    assert!(separated.score(5) > 0.9, "a quarter of the last level");
    let tight = version(vec![
        (LAST_LEVEL, referencing(1, ("a", "z"), (1, 50), 100_000)),
        (5, referencing(2, ("b", "y"), (60, 99), 100_000)),
    ]);
    let job = pick(&input(&tight, &[], 1)).expect("the level is over its target");
    assert!(matches!(job, Pick::Level { from: 5, .. }), "{job:?}");
    let debt = tight.pending_compaction_bytes();
    assert!((1..=2000).contains(&debt), "at most both tables are rewritten: {debt}");
}

#[test]
fn sizes_without_separated_values_are_plain() {
    let mut rng = Rng::with_seed(21);
    for _ in 0..200 {
        let mut files = Vec::new();
        for level in 1..LEVELS {
            for at in 0..rng.u64(0..8) {
                let key = [level as u8, at as u8];
                let no = level as u64 * 10 + at;
                let size_bytes = rng.u64(1..9_000);
                let deletions = rng.u64(0..10);
                files.push((
                    level,
                    FileMeta { size_bytes, deletions, ..meta(no, &key, &key, (1, 2)) },
                ));
            }
        }
        let version = version(files);
        let mut plain = [0; LEVELS];
        (1..LEVELS).for_each(|level| plain[level] = version.bytes(level));
        let targets = sizes::level_targets(&plain, options().base_bytes(), 4);
        assert_eq!(*version.targets(), targets);
        assert_eq!(version.referenced_mean_bytes(), 0);
        for (level, &bytes) in plain.iter().enumerate().skip(1) {
            assert_eq!(version.score(level), sizes::score(level, bytes, &targets));
            assert_eq!(version.level(level).compensated_bytes(), bytes);
        }
    }
}

#[test]
fn hidden_garbage_over_the_plan_raises_scores() {
    let version = version(vec![
        (LAST_LEVEL, referencing(1, ("a", "z"), (1, 50), 400_000)),
        (5, referencing(2, ("b", "y"), (60, 99), 50_000)),
    ]);
    assert!((0.4..0.6).contains(&version.score(5)));
    assert!(picked(&version, CALM).is_none());
    assert!(picked(&version, SpaceDemand { urgency: 1.5, ..CALM }).is_none());
    let urgent = SpaceDemand { urgency: 3.0, ..CALM };
    assert!(matches!(picked(&version, urgent), Some(Pick::Level { from: 5, .. })));
    let other = SpaceDemand { cf: CfId(2), ..urgent };
    assert!(picked(&version, other).is_none(), "the demand of another family");
}

#[test]
fn delayed_writers_let_levels_sink_that_are_not_due() {
    let last = (LAST_LEVEL, referencing(1, ("a", "z"), (1, 50), 400_000));
    let middle = (5, referencing(2, ("b", "y"), (60, 79), 50_000));
    let newest = (0, referencing(3, ("c", "x"), (80, 99), 9_000));
    let all = version(vec![last.clone(), middle, newest.clone()]);
    assert!(picked(&all, CALM).is_none());
    // The middle level may shadow more than L0.
    assert!(matches!(picked(&all, PRESSED), Some(Pick::Level { from: 5, .. })));
    let l0 = version(vec![last.clone(), newest]);
    assert!(picked(&l0, CALM).is_none(), "one file is below the trigger");
    assert_eq!(picked(&l0, PRESSED).map(|job| job.from()), Some(0));
    let nothing = SpaceDemand { shadow_share: 0.0, ..PRESSED };
    assert!(picked(&l0, nothing).is_none(), "no record was found to shadow anything");
    assert!(picked(&version(vec![last]), PRESSED).is_none(), "all records are at the bottom");
}

/// A last level of one table that holds a record for a snapshot only.
fn kept_for_a_snapshot(cf: CfId) -> Arc<Version> {
    let mut file = referencing(1, ("a", "z"), (1, 50), 400_000);
    (file.content.shadowed, file.content.shadowed_bytes) = (1, 40_000);
    (file.content.shadowed_keys, file.content.shadowed_oldest_seq) = (1, 10);
    file.content.shadowing_newest_seq = 40;
    version_of(cf, vec![(LAST_LEVEL, file)])
}

#[test]
fn delayed_writers_free_records_of_released_snapshots() {
    let version = kept_for_a_snapshot(CF);
    assert!(picked(&version, CALM).is_none(), "a tenth is not worth a rewrite by itself");
    let job = picked(&version, PRESSED);
    assert!(matches!(job, Some(Pick::Rewrite { level: LAST_LEVEL, .. })), "{job:?}");
    let snapshots = [SeqNo(20)];
    let held = PickInput { snapshots: &snapshots, ..input(&version, &[], 1) };
    assert!(pick(&PickInput { space: &[PRESSED], ..held }).is_none(), "a snapshot needs it");
}

#[test]
fn delayed_writers_go_before_due_levels_of_other_families() {
    let other = CfId(2);
    let last = (LAST_LEVEL, referencing(1, ("a", "z"), (1, 50), 100_000));
    let due = version_of(other, vec![last, (5, referencing(2, ("b", "y"), (60, 99), 100_000))]);
    assert!(due.score(5) >= 2.0, "{}", due.score(5));
    let pressed = kept_for_a_snapshot(CF);
    let families: [&Version; 2] = [&due, &pressed];
    let of = |running: &[Running], demand: SpaceDemand| {
        let common = PickInput { space: &[demand], ..input(&due, running, 9) };
        pick_of_all(&families, &common).expect("the level is due")
    };
    assert_eq!(of(&[], CALM).0, 0, "no writer waits for the rewrite");
    let (at, rewrite) = of(&[], PRESSED);
    assert_eq!(at, 1, "{rewrite:?}");
    assert!(matches!(rewrite, Pick::Rewrite { level: LAST_LEVEL, .. }), "{rewrite:?}");
    let own = [rewrite.running(CF)];
    assert_eq!(of(&own, PRESSED).0, 0, "a job of the family frees space, so the level is next");
    let others = [rewrite.running(other)];
    assert_eq!(of(&others, PRESSED).0, 1, "a rewrite of another family frees no space of it");
}

#[test]
fn delayed_families_take_turns_and_leave_one_to_due_levels() {
    let other = CfId(3);
    let last = (LAST_LEVEL, referencing(1, ("a", "z"), (1, 50), 100_000));
    let upper = (5, referencing(2, ("b", "y"), (60, 99), 100_000));
    let due = version_of(CfId(2), vec![last, upper]);
    let (one, another) = (kept_for_a_snapshot(CF), kept_for_a_snapshot(other));
    let families: [&Version; 3] = [&due, &one, &another];
    let first = |turn: Option<u64>, turn_of_other: Option<u64>| {
        let demands = [
            SpaceDemand { turn, ..PRESSED },
            SpaceDemand { cf: other, turn: turn_of_other, ..PRESSED },
        ];
        let common = PickInput { space: &demands, ..input(&due, &[], 1) };
        pick_of_all(&families, &common).expect("the level is due").0
    };
    assert_eq!(first(None, None), 0, "this compaction is picked by urgency");
    assert_eq!(first(Some(5), Some(7)), 1);
    assert_eq!(first(Some(7), Some(5)), 2, "its latest compaction is older");
}
