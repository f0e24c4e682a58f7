//! The whole database against a simple model, operation by operation, in one thread.
//!
//! A case is a seed. `ARCHIPELAGO_MODEL_SEED=n` runs one case and prints its steps;
//! `ARCHIPELAGO_MODEL_SECONDS=n` runs fresh cases for that long.

mod files;
mod iterator_rows;
mod oracle;
mod ordered;
mod regressions;
mod runner;
mod seals;
mod setting;
mod steps;
mod taken;
mod tiered;
mod values;

use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_engine::db::BackgroundMode;
use archipelago_engine::options::{CfOptions, Compression, DbOptions};

pub(crate) use runner::Runner;
pub(crate) use setting::{Disk, Setting};
pub(crate) use steps::Generator;
pub(crate) use tiered::{Did, Tiered};

use crate::away::{Mood, Stays, Whim};
use crate::disk::TestDisk;
use crate::separation::Separation;

const CASES: u64 = 400;
const CASES_OVER_TIERS: u64 = 200;
const CASES_OF_RANGES: u64 = 100;
const STEPS: usize = 100;

/// Prints how to run a failed case again.
struct OnFailure {
    seed: u64,
    step: usize,
}

impl Drop for OnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "step {} of case {} failed; replay: ARCHIPELAGO_MODEL_SEED={} cargo test -p \
                 archipelago-engine --test it -- model:: --nocapture",
                self.step, self.seed, self.seed
            );
        }
    }
}

/// Small sizes, different in every case.
fn setting(seed: u64, disk: Disk) -> Setting {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5e77);
    let mut one_of = |choices: &[usize]| choices[rng.usize(..choices.len())];
    let family = CfOptions {
        write_buffer_bytes: one_of(&[4 << 10, 8 << 10, 64 << 10]) as u64,
        write_buffers_max: one_of(&[2, 4]),
        level_base_bytes: one_of(&[4 << 10, 16 << 10]) as u64,
        level_multiplier: 2,
        target_file_bytes: one_of(&[4 << 10, 16 << 10]) as u64,
        block_bytes: one_of(&[256, 1024]),
        buckets: one_of(&[1, 3, 16]),
        bloom_bits_per_key: one_of(&[0, 10]) as u32,
        l0_compaction_trigger: one_of(&[1, 2, 4]),
        compression: Compression::None,
        compression_last: Compression::Lz4,
        ..CfOptions::default()
    };
    let db = DbOptions {
        wal_segment_bytes: 64 << 10,
        block_cache_bytes: one_of(&[0, 1 << 20]) as u64,
        max_background_jobs: 3,
        subcompactions_max: one_of(&[1, 3, 8]),
        ..DbOptions::default()
    };
    let separation = Separation::nth(seed / 2);
    // Every third case has memory nodes; their size and their refusals alternate.
    let away = (seed.is_multiple_of(3)).then(|| Mood {
        limit_bytes: one_of(&[64 << 10, 8 << 20]) as u64,
        refuse: one_of(&[0, 4]) as u32,
        silence: one_of(&[0, 3]) as u32,
        unlisted: one_of(&[0, 3]) as u32,
        headless: one_of(&[0, 5]) as u32,
        unadopted: one_of(&[0, 5]) as u32,
        leaves: one_of(&[0, 1]) == 1,
        whim: [None, Some(Whim::SOUND), Some(Whim::ILL)][one_of(&[0, 1, 2])],
        stays: Stays::Count(one_of(&[0, 2, 0, 0])),
        ..Mood::default()
    });
    Setting { background: BackgroundMode::Manual, db, family, separation, disk, away }
}

/// Counts of what happened in a case.
#[derive(Default)]
struct Happened {
    /// Parts that compactions were cut into.
    parts: usize,
    /// Bucket boundaries that moved, by request or because of the load.
    moved: (usize, usize),
    /// Snapshots that were taken in the middle of jobs.
    midway: usize,
    /// Panics of merge operators and filters.
    panicked: u64,
    /// Garbage collections that were installed.
    collected: u64,
    /// Look-ups that a piece of the Flat Index Cache answered.
    flat_hits: u64,
    tiers: Did,
    /// Memtable shards that were sent to memory nodes, and those that nodes lost.
    sent: (u64, u64),
    /// Memtable shards that opens kept at memory nodes.
    kept: u64,
}

/// Runs a case.
fn run(seed: u64, disk: Disk, verbose: bool) -> Happened {
    run_steps(seed, Generator::new(seed, seed.is_multiple_of(2)), disk, verbose)
}

fn run_steps(seed: u64, mut generator: Generator, disk: Disk, verbose: bool) -> Happened {
    let mut failure = OnFailure { seed, step: 0 };
    let mut runner = Runner::new(setting(seed, disk));
    for at in 0..STEPS {
        failure.step = at;
        let step = generator.step();
        if verbose {
            eprintln!("{at}: {step:?}");
        }
        runner.run(&step);
    }
    failure.step = STEPS;
    runner.check_all();
    runner.check_ordered_space();
    runner.check_values_at_rest();
    runner.check_all();
    let report = runner.db.verify(|_, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let happened = Happened {
        parts: runner.parts(),
        moved: runner.moved(),
        midway: runner.midway(),
        panicked: runner.panicked(),
        collected: runner.collected(),
        flat_hits: runner.flat_lookups().0,
        tiers: runner.tiers_did(),
        sent: runner.sent(),
        kept: runner.kept(),
    };
    runner.db.close().unwrap();
    happened
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The cases to run: `usual`, or fresh ones for the time that the environment sets.
pub(crate) fn seeds(usual: std::ops::Range<u64>) -> Box<dyn Iterator<Item = u64>> {
    let Some(seconds) = number("ARCHIPELAGO_MODEL_SECONDS") else { return Box::new(usual) };
    let clock = SystemClock::new();
    let until = clock.now_ns() + Duration::from_secs(seconds).as_nanos() as u64;
    let first = archipelago_base::random::entropy_seed() >> 16;
    Box::new((first..).take_while(move |seed| {
        let more = clock.now_ns() < until;
        if !more {
            eprintln!("{} cases from {first} on", seed - first);
        }
        more
    }))
}

#[test]
fn the_database_does_what_the_model_does() {
    let memory = || Disk::Memory(TestDisk::new());
    match number("ARCHIPELAGO_MODEL_SEED") {
        Some(seed) => drop(run(seed, memory(), true)),
        None => {
            let (mut parts, mut by_hand, mut by_load) = (0, 0, 0);
            let (mut midway, mut panicked, mut collected, mut flat_hits) = (0, 0, 0, 0);
            let (mut sent, mut lost, mut kept) = (0, 0, 0);
            for happened in seeds(0..CASES).map(|seed| run(seed, memory(), false)) {
                parts += happened.parts;
                (by_hand, by_load) = (by_hand + happened.moved.0, by_load + happened.moved.1);
                midway += happened.midway;
                panicked += happened.panicked;
                collected += happened.collected;
                flat_hits += happened.flat_hits;
                (sent, lost) = (sent + happened.sent.0, lost + happened.sent.1);
                kept += happened.kept;
            }
            eprintln!("{sent} memtable shards left, {lost} were lost, opens kept {kept}");
            assert!(sent > 100 && lost > 10 && kept > 10);
            assert!(midway > 100, "{midway} snapshots were taken in the middle of jobs");
            eprintln!("bucket boundaries moved {by_hand} times by hand, {by_load} by the load");
            assert!(by_hand > 0 && by_load > 0);
            assert!(parts > 0, "no compaction was cut into parts");
            assert!(panicked > 0, "no extension panicked");
            eprintln!("{collected} garbage collections, {flat_hits} hits of flat pieces");
            assert!(collected > 50, "{collected} garbage collections");
            assert!(flat_hits > 0, "no piece of the Flat Index Cache was used");
        }
    }
}

#[test]
fn range_deletes_do_what_the_model_does() {
    let run = |seed, verbose| {
        run_steps(seed, Generator::of_ranges(seed), Disk::Memory(TestDisk::new()), verbose);
    };
    match number("ARCHIPELAGO_MODEL_SEED") {
        Some(seed) => run(seed, true),
        None => seeds(0..CASES_OF_RANGES).for_each(|seed| run(seed, false)),
    }
}

#[test]
fn the_database_over_tiers_does_what_the_model_does() {
    let tiers = |seed| Disk::Tiers(Tiered::new(seed));
    match number("ARCHIPELAGO_MODEL_SEED") {
        Some(seed) => drop(run(seed, tiers(seed), true)),
        None => {
            let mut did = Did::default();
            seeds(0..CASES_OVER_TIERS).for_each(|seed| did += run(seed, tiers(seed), false).tiers);
            eprintln!("{did:?}");
            assert!(did.moves > 0 && did.copies > 0 && did.served > 0, "{did:?}");
        }
    }
}
