//! `archipelago-lab verbs`: prints the experiment, and the figures of two hosts of the model.

use std::ffi::OsString;

use archipelago_base::{Error, Result};
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::report::say;
use archipelago_bench::simulated_table;
use clap::Parser;

use super::{Effort, experiment};
use crate::page::{Grid, Style};

/// Run the experiment of FlexKV's section 3 in virtual time, on a model of 23 machines.
#[derive(Parser, Debug)]
#[command(name = "archipelago-lab verbs", no_binary_name = true)]
struct Arguments {
    /// Operations of each verb that count.
    #[arg(long, default_value_t = Effort::default().operations)]
    operations: u64,
    /// Multiply every time by this, divide rates and bandwidth. Ratios stay.
    #[arg(long, default_value_t = 1)]
    scale: u64,
    /// Seed of drawn targets and orders.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print Markdown tables.
    #[arg(long)]
    markdown: bool,
}

/// Runs the command with `args`, the words after `verbs`.
pub(crate) fn main(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let arguments = Arguments::try_parse_from(args)?;
    if arguments.operations < 1000 || arguments.scale == 0 {
        return Ok(Err(Error::invalid("--operations is at least 1000 and --scale at least 1")));
    }
    Ok(run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    let scale = arguments.scale;
    say(&simulated_table(scale, arguments.markdown)?);
    let effort = Effort {
        operations: arguments.operations,
        warm_up: arguments.operations / 10,
        scale,
        seed: arguments.seed,
    };
    let outcome = experiment(&effort)?;
    let columns = ["FlexKV's testbed, virtual time", "a second", "median", "p99"];
    let style = Style::markdown_if(arguments.markdown);
    let mut table = Grid::new(columns);
    for verb in &outcome.measured {
        let rate = format!("{:.2} M", verb.per_s / 1e6);
        let row = [verb.verb.name().to_owned(), rate, micros(verb.median_ns), micros(verb.p99_ns)];
        table.push(row);
    }
    say(&table.text(style));
    let mut table = Grid::new(["throughput", "FlexKV §3", "sim"]);
    for (verb, to, stated, came_out) in &outcome.ratios {
        let what = format!("{} : {}", verb.name(), to.name());
        table.push([what, format!("{stated:.1}×"), format!("{came_out:.2}×")]);
    }
    say(&table.text(style));
    let events: u64 = outcome.measured.iter().map(|verb| verb.events).sum();
    say(&format!(
        "20 compute and 3 memory nodes with one ConnectX-3 each, modelled; {} operations of each \
         verb by 200 clients with 8 coroutines, seed {}, {events} events; latencies with one client \
         per compute node. Every time of the model was multiplied by {scale}{}. The model was \
         calibrated to the four ratios (decision 0012 in docs/decisions): that they come out shows \
         that the simulator follows its model.",
        arguments.operations,
        arguments.seed,
        if scale == 1 { "" } else { "; the first table shows that, the others are converted back" },
    ));
    Ok(())
}

fn micros(ns: f64) -> String {
    format!("{:.3} µs", ns / 1000.0)
}
