//! Runs seeds of the pool's protocol and says what went wrong, with the command that repeats it.

use std::process::ExitCode;

use archipelago_sim::pool::{Settings, replay_command, run};
use archipelago_sim::{POOL_FLAGS, Seeds};

const USAGE: &str = "\
           runs N seeds (1000 by default) from SEED on (0), each a cluster in virtual time in which nodes, clients
           and the manager crash and are cut off; says what must not be, and how to repeat it
  --trace  prints what happened in each run
  --no-fencing, --no-fill, --no-eviction
           leave a step of the protocol out: the check must notice";

fn usage() -> String {
    format!(
        "usage: archipelago-pool-check [--seeds N] [--from SEED] [--trace] {POOL_FLAGS}\n{USAGE}"
    )
}

fn main() -> ExitCode {
    let seeds = match Seeds::asked(&usage(), |_| false) {
        Ok(seeds) => seeds,
        Err(ended) => return ended,
    };
    let (mut writes, mut reads, mut faults, mut evictions, mut events) = (0, 0, 0, 0, 0);
    let failed = seeds.run(
        |seed| replay_command(seed, seeds.sabotage),
        |seed| {
            let mut settings = Settings::new(seed);
            (settings.sabotage, settings.notes) = (seeds.sabotage, seeds.trace);
            let outcome = run(settings);
            writes += outcome.acknowledged;
            reads += outcome.reads;
            faults += outcome.faults;
            evictions += outcome.evictions;
            events += outcome.events;
            (outcome.notes, outcome.violations)
        },
    );
    println!(
        "{} runs, {failed} failed: {writes} writes acknowledged, {reads} reads checked, {faults} faults, {evictions} evictions, {events} steps",
        seeds.seeds
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
