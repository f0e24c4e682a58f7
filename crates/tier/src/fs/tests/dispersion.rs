//! Tables that differ only by chance, and levels that really differ.

use archipelago_base::random::Rng;

use super::*;
use crate::settings::CacheBy;

const KIB: u64 = 1024;
const LEN: usize = 16_384;

/// A fast device with room for 20 tables, and a slow device with tables of each level.
fn tables(levels: &[(u8, usize)]) -> (World, Arc<TieredFs>, Vec<Vec<String>>) {
    let mut world = World::new(Arc::new(MemFs::new()), &[20 * 17 * KIB, 16 << 20]);
    world.policy.cache_by = CacheBy::File;
    let fs = world.open();
    let name = |level: u8, at: usize| format!("{level}-{at:02}.sst");
    let names: Vec<Vec<String>> = levels
        .iter()
        .map(|&(level, count)| (0..count).map(|at| name(level, at)).collect())
        .collect();
    for ((level, _), names) in levels.iter().zip(&names) {
        names.iter().for_each(|name| write(&fs, name, *level, &filled(1, LEN)));
    }
    (world, fs, names)
}

/// Reads of one block each, in scans that make `batch` reads of one table.
fn read(fs: &TieredFs, names: &[String], reads: usize, batch: usize, rng: &mut Rng) {
    for _ in 0..reads / batch {
        let name = &names[rng.u64(..names.len() as u64) as usize];
        let file = fs.open(&path(name), READ, OpenOptions::default()).unwrap();
        for _ in 0..batch {
            let at = rng.u64(..4) * 4096;
            file.read_exact_at(at, &mut [0; 100], READ).unwrap();
        }
    }
}

/// Number of tables of the level that have a copy.
fn copied(fs: &TieredFs, names: &[String]) -> usize {
    let has_copy = |name: &&String| {
        let entry = fs.shared.entry("find", &path(name)).unwrap();
        !entry.inside.lock().copies.is_empty()
    };
    names.iter().filter(has_copy).count()
}

#[test]
fn hot_level_is_copied_before_its_tables_stand_out() {
    let (world, fs, names) = tables(&[(5, 20), (6, 60)]);
    let [upper, lower] = [&names[0], &names[1]];
    let mut rng = Rng::with_seed(9);
    for _ in 0..10 {
        read(&fs, lower, 60, 1, &mut rng);
        world.pass(500);
        fs.step();
    }
    assert!(copied(&fs, lower) >= 18, "nothing else is read: {}", copied(&fs, lower));
    // Each table gets a third more reads: 50 of about 150. By chance alone two counts differ by 17,
    // and by 60 among many tables.
    for _ in 0..40 {
        read(&fs, lower, 180, 1, &mut rng);
        read(&fs, upper, 80, 1, &mut rng);
        world.pass(500);
        fs.step();
    }
    let now = (copied(&fs, upper), copied(&fs, lower));
    assert!(now.0 >= 17, "the level as a whole: {now:?}");
}

#[test]
fn scans_of_equal_tables_renew_no_copies() {
    let (world, fs, names) = tables(&[(6, 60)]);
    let mut rng = Rng::with_seed(2);
    let mut looks = |count: usize| {
        for _ in 0..count {
            read(&fs, &names[0], 480, 16, &mut rng);
            world.pass(500);
            fs.step();
        }
        fs.stats().devices[0].copies_made.0
    };
    let (first, later) = (looks(40), looks(200));
    assert!((17..=30).contains(&first), "the room is used: {first}");
    assert!(later - first <= 8, "and that is it: {later} after {first}");
}

#[test]
fn hot_table_stands_out_among_many_cold_ones() {
    let (world, fs, names) = tables(&[(6, 60)]);
    let mut rng = Rng::with_seed(4);
    let hot = names[0][40..44].to_vec();
    for batch in [1, 16] {
        for _ in 0..40 {
            read(&fs, &names[0], 320, batch, &mut rng);
            world.pass(500);
            fs.step();
        }
        for _ in 0..20 {
            read(&fs, &names[0], 160, batch, &mut rng);
            read(&fs, &hot, 160, batch, &mut rng);
            world.pass(500);
            fs.step();
        }
        assert_eq!(copied(&fs, &hot), 4, "{batch} in a scan");
    }
}

#[test]
fn copies_refill_room_in_one_batch_where_they_paid() {
    let (world, fs, names) = tables(&[(6, 60)]);
    let mut rng = Rng::with_seed(8);
    let mut looks = |count: usize, reads: usize| {
        for _ in 0..count {
            read(&fs, &names[0], reads, 1, &mut rng);
            world.pass(500);
            fs.step();
        }
        copied(&fs, &names[0])
    };
    // One thread copies, and copies have won no bytes yet. So an iteration queues one or two
    // copies, and then twice as many.
    fs.shared.devices[0].limit.store(1, Ordering::Relaxed);
    let begun = looks(3, 40);
    assert!((1..10).contains(&begun), "{begun}");
    assert!(looks(40, 480) >= 18);
    for (round, expected) in [17..=20, 17..=20].into_iter().enumerate() {
        let name = format!("burst-{round}.sst");
        write(&fs, &name, 0, &filled(3, 15 * LEN));
        assert!(looks(1, 0) <= 6, "files go first");
        fs.remove(&path(&name)).unwrap();
        fs.step();
        let back = looks(1, 40);
        assert!(expected.contains(&back), "at once: {back}");
        looks(20, 480);
    }
}

#[test]
fn moved_level_is_judged_by_believed_accesses() {
    let (world, fs, names) = tables(&[(1, 8), (6, 60)]);
    let mut rng = Rng::with_seed(5);
    for _ in 0..40 {
        read(&fs, &names[1], 480, 16, &mut rng);
        read(&fs, &names[0], 64, 16, &mut rng);
        world.pass(500);
        fs.step();
    }
    let entry = |name: &String| fs.shared.entry("find", &path(name)).unwrap();
    let (counted, believed): (Vec<f64>, Vec<f64>) = names[1]
        .iter()
        .map(entry)
        .map(|entry| (entry.accesses.heat(), entry.accesses.believed()))
        .unzip();
    let spread = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / mean / mean
    };
    assert!(spread(&believed) < 0.3 * spread(&counted), "{believed:?} of {counted:?}");
}

#[test]
fn kept_accesses_are_a_baseline_and_inherited_are_not() {
    let (world, fs, names) = tables(&[(6, 12)]);
    let mut rng = Rng::with_seed(3);
    let entry = |fs: &TieredFs, name: &str| fs.shared.entry("find", &path(name)).unwrap();
    entry(&fs, &names[0][0]).accesses.inherit(500.0);
    entry(&fs, &names[0][1]).accesses.keep(500.0);
    for _ in 0..25 {
        read(&fs, &names[0], 60, 1, &mut rng);
        world.pass(500);
        fs.step();
    }
    let has_baseline = |at: usize| entry(&fs, &names[0][at]).accesses.baseline().is_some();
    assert_eq!([0, 1, 2].map(has_baseline), [false, true, true]);
    assert!((0..12).all(|at| entry(&fs, &names[0][at]).accesses.has_settled()));
}

#[test]
fn move_replaces_a_queued_copy() {
    use crate::fs::job_queue::{Job, JobKind};
    use crate::history::Reason;
    let (_world, fs, names) = tables(&[(6, 3)]);
    let entry = |at: usize| fs.shared.entry("find", &path(&names[0][at])).unwrap();
    let queue = &fs.shared.queue;
    let copy = |at: usize| {
        let spans = vec![crate::cache::ranges::Span { start: 0, len: 4096, reads: 9, odd: 0 }];
        let reads = crate::cache::hot_ranges::FileReads::new(LEN as u64, 0.0, 4096, spans);
        let kind = JobKind::Copy(crate::cache::hot_ranges::CopyPlan::whole(&reads));
        Job { entry: entry(at), to: 0, kind, reason: Reason::HitRatio }
    };
    let move_to = |at: usize, to: usize| Job {
        entry: entry(at),
        to,
        kind: JobKind::Move,
        reason: Reason::SpaceLow,
    };
    assert!((0..3).all(|at| queue.push(copy(at))) && !queue.push(copy(0)));
    assert!(entry(0).copying.load(Ordering::Relaxed));
    assert_eq!((queue.waiting(0), queue.waiting_bytes(0) > 3 * LEN as u64), ((0, 3), true));
    assert!(queue.push(move_to(0, 0)), "instead of the copy");
    assert!(!queue.push(move_to(0, 1)) && !queue.push(copy(0)), "one job at a time");
    assert!(!entry(0).copying.load(Ordering::Relaxed));
    assert_eq!((queue.waiting(0), queue.waiting(1)), ((1, 2), (0, 0)));
    let removed = entry(1);
    fs.remove(&path(&names[0][1])).unwrap();
    queue.forget_removed();
    assert_eq!(queue.waiting(0), (1, 1));
    assert!(!removed.busy.load(Ordering::Relaxed));
    // A move on the calling thread does not wait for a queued copy either.
    fs.shared.mover.move_now(&fs.shared, &entry(2), 0, Reason::SpaceLow).unwrap();
    assert_eq!((holders(&fs.stats(), "L6"), queue.waiting(0)), (vec![0, 1], (1, 0)));
    let first = queue.take(&fs.shared).unwrap();
    assert!(matches!(first.kind, JobKind::Move));
    queue.done(&first);
}

#[test]
fn unread_table_does_not_stay_for_its_cohort() {
    let mut world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    world.policy.fast_levels = Some(2);
    let fs = world.open();
    let mut rng = Rng::with_seed(1);
    let names: Vec<String> = (0..5).map(|at| format!("{at}.sst")).collect();
    names.iter().for_each(|name| write(&fs, name, 0, &filled(1, LEN)));
    for _ in 0..4 {
        read(&fs, &names[..4], 400, 1, &mut rng);
        world.pass(500);
        fs.step();
    }
    let entry = fs.shared.entry("find", &path(&names[4])).unwrap();
    assert!(entry.accesses.believed() > 0.0 && entry.accesses.heat() == 0.0);
    for name in &names[3..] {
        fs.reassign(&path(name), table(5));
    }
    fs.settle();
    let device = |name: &String| fs.file_info(&path(name)).unwrap().device;
    assert_eq!((device(&names[3]), device(&names[4])), (0, 1));
}
