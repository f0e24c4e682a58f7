//! `archipelago-sim`: protocols in virtual time, by seed.
//!
//! The library runs the seeds. This program reads the command line, chooses the scenarios and
//! prints their results. The exit code is 0 if all properties held, 1 if a run failed, and 2 if the
//! command line was wrong.

use std::process::ExitCode;

use archipelago_base::random::entropy_seed;
use archipelago_sim::{
    Expect, SCENARIOS, Scenario, Seeds, Step, find, measure, print_replay_on_panic, storage,
};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

const TEACH: &str = "\
A run follows from its seed alone. If something does not hold, the program prints what happened and
the command that repeats the run, and it goes on with the next seed.

  archipelago-sim                                      100 seeds of every scenario
  archipelago-sim --scenario pool --seeds 10000        more seeds of one scenario
  archipelago-sim --scenario pool --from 17 --trace    one run, and what happens in it
  archipelago-sim --scenario flexkv --twice            also: two runs of a seed are the same
  archipelago-sim --scenario pool --without fencing    must fail: the check notices the omission
  archipelago-sim --scenario storage --seeds 300       clusters of storage nodes with all faults
  archipelago-sim --list                               scenarios, and the steps of each";

/// Number of seeds without `--seeds` and `--trace`.
const SEEDS: u64 = 100;

/// Run protocols in virtual time under a seed, with faults, and check their properties.
#[derive(Parser, Debug)]
#[command(name = "archipelago-sim", after_help = TEACH)]
struct Arguments {
    /// Run this scenario instead of all scenarios whose properties must hold.
    #[arg(long, value_name = "NAME", value_parser = scenario)]
    scenario: Option<&'static Scenario>,
    /// First seed, or `random`.
    #[arg(long, value_name = "SEED", default_value = "0", value_parser = first_seed)]
    from: u64,
    /// Number of seeds: 100 by default, and 1 with `--trace`.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Print the events of each run.
    #[arg(long)]
    trace: bool,
    /// Run each seed twice and compare the steps.
    #[arg(long)]
    twice: bool,
    /// Leave out a step of the protocol. The flag may be repeated.
    #[arg(long, value_name = "STEP", requires = "scenario")]
    without: Vec<String>,
    /// List the scenarios and their steps.
    #[arg(long)]
    list: bool,
    /// Measure the speed of the simulator with a number of READs, or `storage-scale`: the
    /// throughput of 6 to 60 storage nodes.
    #[arg(
        long,
        value_name = "WHAT",
        num_args = 0..=1,
        default_missing_value = "1000000",
        value_parser = measurement
    )]
    measure: Option<Measurement>,
}

/// Object of the measurement of `--measure`.
#[derive(Clone, Copy, Debug)]
enum Measurement {
    /// The simulator, with this number of READs.
    Speed(u64),
    /// Clusters of storage nodes of growing size.
    StorageScale,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        print!("{}", list());
        return ExitCode::SUCCESS;
    }
    match arguments.measure {
        Some(Measurement::Speed(operations)) => return measure_speed(operations),
        Some(Measurement::StorageScale) => return measure_storage_scale(),
        None => {}
    }
    let without = left_out(&arguments).unwrap_or_else(|wrong| {
        Arguments::command().error(ErrorKind::InvalidValue, wrong).exit();
    });
    let Arguments { from, seeds, trace, twice, .. } = arguments;
    let count = seeds.unwrap_or(if trace { 1 } else { SEEDS });
    let seeds = Seeds { from, count, trace, twice, without };
    if trace {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .without_time()
            .init();
    }
    print_replay_on_panic();
    run(&chosen(arguments.scenario), &seeds)
}

/// The scenario of that name.
fn scenario(name: &str) -> Result<&'static Scenario, String> {
    let names: Vec<&str> = SCENARIOS.iter().map(|(scenario, _)| scenario.name()).collect();
    find(name).ok_or_else(|| format!("the scenarios are {}", names.join(", ")))
}

fn measurement(text: &str) -> Result<Measurement, String> {
    match text {
        "storage-scale" => Ok(Measurement::StorageScale),
        number => number
            .parse()
            .map(Measurement::Speed)
            .map_err(|_| "a measurement is a number of READs or the word storage-scale".to_owned()),
    }
}

fn first_seed(text: &str) -> Result<u64, String> {
    match text {
        // The number is short, so that a person can type it again.
        "random" => Ok(entropy_seed() >> 16),
        number => number.parse().map_err(|_| "a seed is a number or the word random".to_owned()),
    }
}

/// The steps that `--without` names.
fn left_out(arguments: &Arguments) -> Result<Vec<&'static str>, String> {
    let Some(scenario) = arguments.scenario else { return Ok(Vec::new()) };
    let steps: &'static [Step] = scenario.steps();
    let known = |name: &String| match steps.iter().find(|step| step.name == *name) {
        Some(step) => Ok(step.name),
        None if steps.is_empty() => {
            Err(format!("scenario {} has no step that can be left out", scenario.name()))
        }
        None => {
            let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
            let (of, names) = (scenario.name(), names.join(", "));
            Err(format!("scenario {of} has no step `{name}`; its steps are {names}"))
        }
    };
    arguments.without.iter().map(known).collect()
}

/// The named scenario, or all scenarios whose properties must hold.
fn chosen(named: Option<&'static Scenario>) -> Vec<&'static Scenario> {
    let holds = SCENARIOS.iter().filter(|(_, expect)| *expect == Expect::Holds);
    named.map_or_else(|| holds.map(|(scenario, _)| scenario).collect(), |one| vec![one])
}

fn run(scenarios: &[&'static Scenario], seeds: &Seeds) -> ExitCode {
    let mut caveats: Vec<String> = scenarios.iter().filter_map(|one| one.caveat()).collect();
    caveats.dedup();
    caveats.iter().for_each(|caveat| eprintln!("{caveat}"));
    let mut failed = 0;
    for scenario in scenarios {
        let summary = seeds.run(scenario);
        println!("{}", seeds.line(scenario, &summary));
        failed += summary.failed;
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn list() -> String {
    let mut text = String::new();
    for (scenario, _) in SCENARIOS.iter() {
        text += &format!("{:<14} {}\n", scenario.name(), scenario.about());
        for step in scenario.steps() {
            text += &format!("    --without {:<13} {}\n", step.name, step.about);
        }
    }
    text
}

/// Prints the throughput of clusters of 6 to 60 nodes, with clients whose cards have room, and then
/// of the largest one with clients whose cards are full.
fn measure_storage_scale() -> ExitCode {
    println!("nodes  clients      MB/s   per node   nodes' cards   clients' cards");
    for storage::GrowthSize { nodes, clients } in storage::GROWTH_SIZES {
        let row = match storage::growth(nodes, clients) {
            Ok(row) => row,
            Err(error) => {
                eprintln!("{nodes} nodes: {error}");
                return ExitCode::FAILURE;
            }
        };
        let bytes_per_s = row.bytes_per_s as f64 / 1e6;
        println!(
            "{nodes:>5}  {clients:>7}  {bytes_per_s:>8.2}  {:>9.3}  {:>12.0} %  {:>14.0} %",
            bytes_per_s / nodes as f64,
            row.node_card_use() * 100.0,
            row.client_card_use() * 100.0
        );
    }
    ExitCode::SUCCESS
}

fn measure_speed(operations: u64) -> ExitCode {
    match measure::reads(operations) {
        Ok(speed) => {
            println!(
                "{} READs in {} events, {:.2} s: {:.2} million events a second; {:.4} s of \
                 virtual time",
                speed.operations,
                speed.events,
                speed.real_ns as f64 / 1e9,
                speed.events_per_s() / 1e6,
                speed.virtual_ns as f64 / 1e9
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
