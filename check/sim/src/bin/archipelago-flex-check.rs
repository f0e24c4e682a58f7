//! Runs seeds of the store and says what went wrong, with the command that repeats it.

use std::process::ExitCode;

use archipelago_sim::flexkv::{Settings, replay_command, run, weaker};
use archipelago_sim::{POOL_FLAGS, Seeds};

const USAGE: &str = "\
           runs N seeds (1000 by default) from SEED on (0), each a store in virtual time in which compute nodes,
           memory nodes, the manager and the coordinator crash, stop and are cut off, and partitions move; says what
           must not be, and how to repeat it
  --trace  prints what happened in each run
  --no-fencing, --no-fill, --no-eviction
           leave a step of the pool's protocol out
  --no-lease, --early-commit, --no-repair, --no-invalidation, --no-clearing
           leave a step of the store's out: the check must notice
  --scans  has nodes scan all keys while others come and go
  --skip-bucket, --no-rescan
           leave a step of scans out (with --scans)";

fn usage() -> String {
    format!(
        "usage: archipelago-flex-check [--seeds N] [--from SEED] [--trace] {POOL_FLAGS} \
         [--no-lease] [--early-commit] [--no-repair] [--no-invalidation] [--no-clearing] \
         [--scans] [--skip-bucket] [--no-rescan]\n{USAGE}"
    )
}

fn main() -> ExitCode {
    let (mut flex, mut scans) = (archipelago_flexkv::Sabotage::default(), false);
    let own = |word: &str| {
        match word {
            "--no-lease" => flex.no_lease = true,
            "--early-commit" => flex.early_commit = true,
            "--no-repair" => flex.no_repair = true,
            "--no-invalidation" => flex.no_invalidation = true,
            "--no-clearing" => flex.no_clearing = true,
            "--scans" => scans = true,
            "--skip-bucket" => flex.skip_bucket = true,
            "--no-rescan" => flex.no_rescan = true,
            _ => return false,
        }
        true
    };
    let seeds = match Seeds::asked(&usage(), own) {
        Ok(seeds) => seeds,
        Err(ended) => return ended,
    };
    let (mut hits, mut invalidations, mut at_once, mut set_back) = (0, 0, 0, 0);
    if seeds.trace {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .without_time()
            .init();
    }
    if let Some(why) = weaker() {
        eprintln!("{why}");
    }
    let (mut answered, mut errors, mut faults, mut changes, mut events) = (0, 0, 0, 0, 0);
    let (mut unknown, mut tuned, mut delegated, mut refused) = (0, 0, 0, 0);
    let failed = seeds.run(
        |seed| replay_command(seed, seeds.sabotage, flex),
        |seed| {
            let mut settings = Settings::new(seed);
            (settings.notes, settings.scans) = (seeds.trace, scans);
            (settings.sabotage, settings.flex) = (seeds.sabotage, flex);
            let outcome = run(settings);
            answered += outcome.answered;
            errors += outcome.errors;
            refused += outcome.refused;
            faults += outcome.faults;
            changes += outcome.changes;
            events += outcome.events;
            unknown += outcome.unknown;
            tuned += outcome.tuned;
            hits += outcome.cached.pair_hits + outcome.cached.address_hits;
            invalidations += outcome.cached.invalidations;
            delegated += outcome.cached.delegated;
            at_once += outcome.cached.set_at_once;
            set_back += outcome.cached.set_back;
            (outcome.notes, outcome.violations)
        },
    );
    println!(
        "{} runs, {failed} failed: {answered} calls answered, {errors} with an error ({refused} writes that did not happen), {unknown} keys of which the judge \
         did not know in time, {faults} faults, maps up to version {changes} in sum, {tuned} decisions by load, {hits} reads by caches, {invalidations} invalidations, {delegated} sets left to proxies, {at_once} sets at once, {set_back} slots set back, {events} steps",
        seeds.seeds
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
