//! Runs seeds of the store and says what went wrong, with the command that repeats it.

use std::process::ExitCode;

use archipelago_flex_check::{Settings, replay_command, run};
use archipelago_memory::core::Sabotage;
use parking_lot::Mutex;

const USAGE: &str = "\
usage: archipelago-flex-check [--seeds N] [--from SEED] [--trace] [--no-fencing] [--no-fill] [--no-eviction] [--no-lease] [--early-commit] [--no-repair] [--no-invalidation]
           runs N seeds (1000 by default) from SEED on (0), each a store in virtual time in which compute nodes and
           memory nodes crash and are cut off and partitions move; says what must not be, and how to repeat it
  --trace  prints what happened in each run
  --no-fencing, --no-fill, --no-eviction
           leave a step of the pool's protocol out
  --no-lease, --early-commit, --no-repair, --no-invalidation
           leave a step of the store's out: the check must notice";

/// What was asked for.
struct Arguments {
    seeds: u64,
    from: u64,
    trace: bool,
    sabotage: Sabotage,
    flex: archipelago_flex::Sabotage,
}

fn arguments() -> Result<Option<Arguments>, String> {
    let (mut seeds, mut from, mut trace) = (1000, 0, false);
    let (mut sabotage, mut flex) = (Sabotage::default(), archipelago_flex::Sabotage::default());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let text = words.next().ok_or(format!("{word}: a number is missing"))?;
            text.parse::<u64>().map_err(|_| format!("{word}: `{text}` is not a number"))
        };
        match word.as_str() {
            "--seeds" => seeds = number()?,
            "--from" => from = number()?,
            "--trace" => trace = true,
            "--no-fencing" => sabotage.no_fencing = true,
            "--no-fill" => sabotage.no_fill = true,
            "--no-eviction" => sabotage.no_eviction = true,
            "--no-lease" => flex.no_lease = true,
            "--early-commit" => flex.early_commit = true,
            "--no-repair" => flex.no_repair = true,
            "--no-invalidation" => flex.no_invalidation = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument `{other}`")),
        }
    }
    Ok(Some(Arguments { seeds, from, trace, sabotage, flex }))
}

/// What runs now, for a panic that ends the program.
static RUNNING: Mutex<Option<u64>> = Mutex::new(None);

fn main() -> ExitCode {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        if let Some(seed) = *RUNNING.lock() {
            eprintln!("seed {seed} panicked\n    repeat: {}", replay_command(seed));
        }
    }));
    let Arguments { seeds, from, trace, sabotage, flex } = match arguments() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let (mut failed, mut answered, mut errors, mut faults, mut changes, mut tuned, mut events) =
        (0, 0, 0, 0, 0, 0, 0);
    let (mut hits, mut invalidations) = (0, 0);
    if trace {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .without_time()
            .init();
    }
    for seed in from..from + seeds {
        let mut settings = Settings::new(seed);
        settings.notes = trace;
        (settings.sabotage, settings.flex) = (sabotage, flex);
        *RUNNING.lock() = Some(seed);
        let outcome = run(settings);
        *RUNNING.lock() = None;
        for note in &outcome.notes {
            println!("{note}");
        }
        answered += outcome.answered;
        errors += outcome.errors;
        faults += outcome.faults;
        changes += outcome.changes;
        tuned += outcome.tuned;
        hits += outcome.cached.pair_hits + outcome.cached.address_hits;
        invalidations += outcome.cached.invalidations;
        events += outcome.events;
        if !outcome.violations.is_empty() {
            failed += 1;
            println!("seed {seed}: {}", outcome.violations.join("\n    "));
            println!("    repeat: {}", replay_command(seed));
        }
    }
    println!(
        "{seeds} runs, {failed} failed: {answered} calls answered, {errors} with an error, {faults} faults, \
         maps up to version {changes} in sum, {tuned} decisions by load, {hits} reads by caches, \
         {invalidations} invalidations, {events} steps"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
