//! A bucket whose way down is blocked, the classic order, and several column families.

use super::*;

/// Position of a test's files: number, level, first and last key, bytes.
type Files<'a> = &'a [(u64, usize, u64, u64, u64)];

fn version(cf: CfId, boundaries: &[u64], files: Files<'_>) -> Arc<Version> {
    version_with(options(), cf, boundaries, files)
}

fn version_with(
    options: CfOptions,
    cf: CfId,
    boundaries: &[u64],
    files: Files<'_>,
) -> Arc<Version> {
    let mut builder = VersionBuilder::new(&Version::empty(cf, Arc::new(options)));
    if !boundaries.is_empty() {
        let map = BucketMap::new(Epoch(1), boundaries.iter().map(|&b| key(b)).collect());
        builder.set_map(map.expect("ascending")).expect("newer");
    }
    for &(no, level, first, last, bytes) in files {
        let mut meta = meta(no, &key(first), &key(last), (no, no));
        meta.size_bytes = bytes;
        builder.add(level, meta).expect("new");
    }
    builder.finish(&Arc::default()).expect("possible").version
}

/// A classic store: a full last level, a base level of five files that is half as large again as
/// it should be, and `l0` files of `bytes` over all keys.
fn classic(l0: u64, bytes: u64) -> Arc<Version> {
    let last = (0..12).map(|at| (100 + at, LAST_LEVEL, at * 100, at * 100 + 99, 5000));
    let base = (0..5).map(|at| (200 + at, LAST_LEVEL - 1, at * 240, at * 240 + 239, 4600));
    let l0 = (0..l0).map(|at| (300 + at, 0, 0, 1199, bytes));
    let files: Vec<_> = last.chain(base).chain(l0).collect();
    let version = version(CF, &[], &files);
    assert_eq!(version.base_level(), LAST_LEVEL - 1);
    version
}

fn picked(version: &Version, running: &[Running]) -> Option<Pick> {
    pick(&input(version, running, 9))
}

/// A running job that takes the base level's first file down.
fn going_down(version: &Version) -> Running {
    let inputs = vec![Arc::clone(&version.level(LAST_LEVEL - 1).files()[0])];
    let overlapping = version.overlapping(LAST_LEVEL, &hull(&inputs)).to_vec();
    Pick::Level { from: LAST_LEVEL - 1, to: LAST_LEVEL, inputs, overlapping }.running(CF)
}

#[test]
fn one_bucket_has_one_job_from_l0_to_the_base_level() {
    let before = classic(8, 1000);
    let job = picked(&before, &[]).expect("L0 is the most urgent");
    assert!(matches!(&job, Pick::L0ToBase { l0, base, .. } if l0.len() == 8 && base.len() == 5));
    let running = [job.running(CF)];
    assert!(picked(&before, &running).is_none(), "all of the base level is in use");
    let later = classic(8 + 4, 1000);
    assert!(picked(&later, &running).is_none(), "four newer files wait for the job");
    let later = classic(8 + 6, 1000);
    let Some(Pick::IntraL0 { files, .. }) = picked(&later, &running) else {
        panic!("six newer files are merged meanwhile");
    };
    assert_eq!(files.iter().map(|file| file.no).min(), Some(308), "only the newer ones");
}

#[test]
fn l0_merges_within_itself_while_a_deeper_job_is_in_its_way() {
    let version = classic(8, 1000);
    let running = [going_down(&version)];
    let Some(Pick::IntraL0 { files, .. }) = picked(&version, &running) else {
        panic!("the base level is busy");
    };
    assert_eq!(files.len(), 8);
    let most = WIDEN_FILES_MAX * version.options().target_file_bytes;
    let large = classic(8, most / 6);
    let Some(Pick::IntraL0 { files, .. }) = picked(&large, &running) else { panic!("as above") };
    assert_eq!(files.len(), 6, "the job is bounded");
    assert!(picked(&classic(8, most / 3), &running).is_none(), "too few files fit the bound");
}

#[test]
fn waiting_l0_goes_before_further_jobs_of_the_base_level() {
    let version = classic(5, 1000);
    let running = [going_down(&version)];
    assert!(picked(&version, &running).is_none(), "L0 is next");
    assert!(matches!(picked(&version, &[]), Some(Pick::Level { .. })), "the base level is over");
    let idle = classic(3, 1000);
    let other = picked(&idle, &running);
    assert!(matches!(other, Some(Pick::Level { .. })), "no L0 waits: {other:?}");
}

#[test]
fn a_bucket_that_waits_stops_no_deeper_job_under_another() {
    let mut files: Vec<_> =
        (0..12).map(|at| (100 + at, LAST_LEVEL, at * 100, at * 100 + 99, 5000)).collect();
    files.extend((0..6).map(|at| (200 + at, LAST_LEVEL - 1, at * 200, at * 200 + 199, 3700)));
    files.extend((0..5).map(|at| (300 + at, 0, 0, 599, 1000)));
    let version = version(CF, &[600], &files);
    let running = [going_down(&version)];
    let Some(Pick::Level { inputs, .. }) = picked(&version, &running) else {
        panic!("the other bucket's base files may go down");
    };
    assert!(inputs.iter().all(|file| file.smallest >= key(600)));
}

#[test]
fn l0_files_make_l0_urgent_but_the_base_level_gets_its_turn() {
    let options = CfOptions { level_multiplier: 10, ..options() };
    let slowed = options.l0_slowdown as u64;
    let first = |base_bytes: u64, l0: u64| {
        let base = (2, LAST_LEVEL - 1, 0, 99, base_bytes);
        let mut files = vec![(1, LAST_LEVEL, 0, 99, 200_000), base];
        files.extend((0..l0).map(|at| (300 + at, 0, 0, 1199, 1000)));
        let version = version_with(options.clone(), CF, &[], &files);
        assert_eq!(version.targets().bytes[LAST_LEVEL - 1], 20_000);
        picked(&version, &[]).expect("something is due").from()
    };
    assert_eq!(first(60_000, 8), LAST_LEVEL - 1, "by score");
    assert_eq!(first(60_000, slowed), 0, "writes are slowed");
    assert_eq!(first(130_000, slowed), LAST_LEVEL - 1, "more than six times its size");
}

#[test]
fn families_take_turns_by_urgency_and_then_by_running_jobs() {
    let l0 = |files: &[(u64, u64)], first: u64| -> Vec<(u64, usize, u64, u64, u64)> {
        let of = |&(from, count): &(u64, u64)| {
            (0..count).map(move |at| (first + from + at, 0, from, from + 9, 1000 + from))
        };
        files.iter().flat_map(of).collect()
    };
    let (a, b) = (CfId(1), CfId(2));
    let busy = version(a, &[100], &l0(&[(0, 4), (200, 4)], 1000));
    let fuller = version(b, &[], &l0(&[(0, 6)], 5000));
    let even = version(b, &[], &l0(&[(0, 4)], 5000));
    let idle = version(b, &[], &l0(&[(0, 3)], 5000));
    let of = |families: &[&Version], running: &[Running]| {
        let picked = pick_of_all(families, &input(families[0], running, 9));
        picked.map(|(at, pick)| (at, pick.running(families[at].cf())))
    };
    let (at, first) = of(&[&busy, &even], &[]).expect("two are due");
    assert_eq!(at, 0, "even, and none has a job");
    assert_eq!(of(&[&busy, &fuller], &[]).expect("due").0, 1, "the fuller one");
    let running = [first];
    assert_eq!(of(&[&busy, &even], &running).expect("due").0, 1, "the one without a job");
    assert_eq!(of(&[&busy, &idle], &running).expect("due").0, 0, "the other is not due");
    assert!(of(&[&idle], &[]).is_none());
    assert!(pick_of_all(&[&busy], &input(&busy, &running, 1)).is_none(), "enough jobs run");
}

#[test]
fn a_job_is_left_for_flushes_while_memtables_are_being_sealed() {
    let second = 1_000_000_000;
    assert_eq!(compaction_jobs(2, None, 0), 2, "nothing was sealed yet");
    assert_eq!(compaction_jobs(2, Some(second / 2), second / 10), 1);
    assert_eq!(compaction_jobs(8, Some(second / 2), second / 10), 7);
    assert_eq!(compaction_jobs(1, Some(0), 0), 1, "the only job does both");
    assert_eq!(compaction_jobs(2, Some(2 * second), second / 10), 2, "the writes have ended");
    assert_eq!(compaction_jobs(2, Some(8 * second), 6 * second), 1, "slow writes go on");
    assert_eq!(compaction_jobs(2, Some(13 * second), 6 * second), 2);
    assert_eq!(compaction_jobs(2, Some(61 * second), u64::MAX), 2, "a rare seal");
}
