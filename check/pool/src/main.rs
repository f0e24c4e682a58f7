//! Runs seeds of the pool's protocol and says what went wrong, with the command that repeats it; also of a run that panics, which ends
//! the program at once in release builds.

use std::process::ExitCode;

use archipelago_memory::core::Sabotage;
use archipelago_pool_check::{Settings, replay_command, run};
use parking_lot::Mutex;

const USAGE: &str = "\
usage: archipelago-pool-check [--seeds N] [--from SEED] [--trace] [--no-fencing] [--no-fill] [--no-eviction]
           runs N seeds (1000 by default) from SEED on (0), each a cluster in virtual time in which nodes, clients
           and the manager crash and are cut off; says what must not be, and how to repeat it
  --trace  prints what happened in each run
  --no-fencing, --no-fill, --no-eviction
           leave a step of the protocol out: the check must notice";

struct Arguments {
    seeds: u64,
    from: u64,
    trace: bool,
    sabotage: Sabotage,
}

fn arguments() -> Result<Option<Arguments>, String> {
    let mut parsed =
        Arguments { seeds: 1000, from: 0, trace: false, sabotage: Sabotage::default() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let text = words.next().ok_or(format!("{word}: a number is missing"))?;
            text.parse::<u64>().map_err(|_| format!("{word}: `{text}` is not a number"))
        };
        match word.as_str() {
            "--seeds" => parsed.seeds = number()?,
            "--from" => parsed.from = number()?,
            "--trace" => parsed.trace = true,
            "--no-fencing" => parsed.sabotage.no_fencing = true,
            "--no-fill" => parsed.sabotage.no_fill = true,
            "--no-eviction" => parsed.sabotage.no_eviction = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument `{other}`")),
        }
    }
    Ok(Some(parsed))
}

/// What runs now, for a panic that ends the program.
static RUNNING: Mutex<Option<(u64, Sabotage)>> = Mutex::new(None);

fn main() -> ExitCode {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        if let Some((seed, sabotage)) = *RUNNING.lock() {
            eprintln!("seed {seed} panicked\n    repeat: {}", replay_command(seed, sabotage));
        }
    }));
    let arguments = match arguments() {
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
    let (mut failed, mut writes, mut reads, mut faults, mut events) = (0, 0, 0, 0, 0);
    let mut evictions = 0;
    for seed in arguments.from..arguments.from + arguments.seeds {
        let mut settings = Settings::new(seed);
        settings.sabotage = arguments.sabotage;
        settings.notes = arguments.trace;
        *RUNNING.lock() = Some((seed, arguments.sabotage));
        let outcome = run(settings);
        *RUNNING.lock() = None;
        for note in &outcome.notes {
            println!("{note}");
        }
        writes += outcome.acknowledged;
        reads += outcome.reads;
        faults += outcome.faults;
        evictions += outcome.evictions;
        events += outcome.events;
        if !outcome.violations.is_empty() {
            failed += 1;
            println!("seed {seed}: {}", outcome.violations.join("\n    "));
            println!("    repeat: {}", replay_command(seed, arguments.sabotage));
        }
    }
    println!(
        "{} runs, {failed} failed: {writes} writes acknowledged, {reads} reads checked, {faults} faults, {evictions} evictions, {events} steps",
        arguments.seeds
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
