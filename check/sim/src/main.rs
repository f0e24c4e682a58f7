//! `archipelago-sim`: scenarios in virtual time, by seed.
//!
//! `--scenario NAME --seed N` replays one run, `--seeds COUNT` runs many; a failure prints its seed
//! and the command that replays it, also where a panic ends the program at once (release builds
//! abort).

use std::process::ExitCode;

use archipelago_base::random::entropy_seed;
use archipelago_sim::{
    Expect, Failure, SCENARIOS, Scenario, find, measure, replay_command, run_noted, run_seeds,
    same_twice,
};
use clap::Parser;
use parking_lot::Mutex;

/// Run protocols in virtual time under a seed, with faults.
#[derive(Parser, Debug)]
#[command(name = "archipelago-sim")]
struct Arguments {
    /// One scenario; without it, all that must hold.
    #[arg(long)]
    scenario: Option<String>,
    /// The first seed; a random one if it is left out.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds, from the first on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Print what happens in each run.
    #[arg(long)]
    notes: bool,
    /// Run each seed twice and compare the steps.
    #[arg(long)]
    twice: bool,
    /// List the scenarios.
    #[arg(long)]
    list: bool,
    /// Measure the simulator's own speed with this many READs.
    #[arg(long, value_name = "OPERATIONS", num_args = 0..=1, default_missing_value = "1000000")]
    measure: Option<u64>,
}

/// What runs now, for a panic that ends the program.
static RUNNING: Mutex<Option<(&'static str, u64)>> = Mutex::new(None);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        if let Some((scenario, seed)) = *RUNNING.lock() {
            eprintln!("replay: {}", replay_command(scenario, seed));
        }
    }));
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if arguments.list {
        for (scenario, _) in SCENARIOS.iter() {
            println!("{:<14} {}", scenario.name(), scenario.about());
        }
        return Ok(());
    }
    if let Some(operations) = arguments.measure {
        return print_speed(operations);
    }
    let chosen: Vec<&Scenario> = match &arguments.scenario {
        Some(name) => {
            let unknown = || format!("no scenario {name}: --list has them");
            vec![find(name).ok_or_else(unknown)?]
        }
        None => {
            let holds = SCENARIOS.iter().filter(|(_, expect)| *expect == Expect::Holds);
            holds.map(|(scenario, _)| scenario).collect()
        }
    };
    let first = arguments.seed.unwrap_or_else(|| entropy_seed() >> 16);
    for scenario in chosen {
        seeds_of(scenario, first, arguments).map_err(|failure| failure.to_string())?;
    }
    Ok(())
}

fn seeds_of(scenario: &'static Scenario, first: u64, arguments: &Arguments) -> Result<(), Failure> {
    let (mut events, mut virtual_ns) = (0, 0);
    for seed in first..first + arguments.seeds {
        *RUNNING.lock() = Some((scenario.name(), seed));
        if arguments.notes {
            let (notes, outcome) = run_noted(scenario, seed);
            if outcome.is_ok() {
                notes.iter().for_each(|note| println!("{note}"));
            }
            outcome?;
        }
        let summary = run_seeds(scenario, seed..seed + 1)?;
        if arguments.twice {
            same_twice(scenario, seed)?;
        }
        events += summary.events;
        virtual_ns += summary.virtual_ns;
    }
    *RUNNING.lock() = None;
    println!(
        "{}: {} seeds from {first}, {events} events, {:.3} s of virtual time, all hold",
        scenario.name(),
        arguments.seeds,
        virtual_ns as f64 / 1e9
    );
    Ok(())
}

fn print_speed(operations: u64) -> Result<(), String> {
    let speed = measure::reads(operations).map_err(|error| error.to_string())?;
    println!(
        "{} READs in {} events, {:.2} s: {:.2} million events a second; {:.4} s of virtual time",
        speed.operations,
        speed.events,
        speed.real_ns as f64 / 1e9,
        speed.events_per_s() / 1e6,
        speed.virtual_ns as f64 / 1e9
    );
    Ok(())
}
