//! `archipelago-lab`: measurements that are no part of the product. It compares Archipelago with
//! RocksDB, repeats the evaluations of papers, models many cores, and runs FlexKV's testbed in
//! virtual time.
//!
//! The program of this name and tests call this library. These modules are commands:
//! `compare` runs a list of benchmarks on both sides, `rocksdb` all rows of the comparison with
//! RocksDB, `bucketlsm` and `keigo` the comparisons of two papers, `terark_engine` those of
//! separated values, `terark_nodes` the evaluation of Terark-DS over storage nodes, `o3` that of
//! O³-LSM, `model` the model of many cores,
//! [`flexkv`] the testbed of another paper, and its `verbs` the calibration of the network card.
//! `command_line` parses flags, `claim` holds targets, `page` renders results and writes the pages
//! of `docs/benchmarks/`, `plot` draws charts, `program` finds and starts the program to measure,
//! `client` kills it or times its first read, `counted` counts its instructions, `role` runs a role
//! of a cluster as a child process, `rounds` makes alternating runs, `journal` keeps their results
//! if the command is interrupted, `sampling` takes samples during a run, `sides` compares the
//! figures of runs, `machine` measures the use of processors, and `results` reads the result file
//! of the program.
//!
//! A command, its module and its page have one name, except for `_` and `-`.
//!
//! `compare`, `rocksdb`, `bucketlsm`, `keigo`, `terark_engine`, `terark_nodes` and `o3` start the
//! `archipelago` program and read its output, so that they measure the program that people run.

mod bucketlsm;
mod claim;
mod client;
mod command_line;
mod compare;
mod counted;
pub mod flexkv;
mod journal;
mod keigo;
mod machine;
mod model;
mod o3;
mod page;
mod plot;
mod program;
mod results;
mod rocksdb;
mod role;
mod rounds;
mod sampling;
mod sides;
mod terark_engine;
mod terark_nodes;

use std::ffi::OsString;
use std::process::ExitCode;

use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::store::Result;

/// Function that runs a command with the words after its name.
type Command = fn(&[OsString]) -> std::result::Result<Result<()>, Stop>;

/// The commands, each with a line for the help.
const COMMANDS: [(&str, &str, Command); 10] = [
    ("rocksdb", "compare all benchmarks with db_bench, with targets", rocksdb::reproduce),
    ("compare", "compare some benchmarks with an installed db_bench", compare::compare),
    ("bucketlsm", "repeat the comparisons of BucketLSM's paper", bucketlsm::reproduce),
    ("keigo", "repeat the comparisons of Keigo's paper", keigo::reproduce),
    ("terark-engine", "compare separated values with BlobDB, with targets", terark_engine::measure),
    (
        "terark-nodes",
        "repeat the evaluation of Terark-DS over storage nodes",
        terark_nodes::measure,
    ),
    ("o3", "repeat the evaluation of O³-LSM: offloading to other nodes", o3::measure),
    ("model", "model many cores, from measured costs", model::model),
    ("flexkv", "run figures of FlexKV's paper on its testbed in virtual time", flexkv::main),
    (
        "verbs",
        "run the experiment that calibrated the model of the network card",
        flexkv::verbs::main,
    ),
];

/// An earlier name of a command, and its name of today.
const RENAMED: (&str, &str) = ("terark", "terark-nodes");

/// The text of `--help`.
fn help() -> String {
    let mut text = "Measures Archipelago: comparisons, evaluations of papers, and models.\n\n\
                    Usage: archipelago-lab COMMAND [FLAGS]\n\nCommands:\n"
        .to_owned();
    for (name, about, _) in COMMANDS {
        text += &format!("  {name:13} {about}\n");
    }
    text + "\n`archipelago-lab COMMAND --help` lists the flags of a command. With `--page FILE`, the commands\n\
            rocksdb, bucketlsm, keigo, terark-engine, terark-nodes, o3, flexkv and model write a page for docs/benchmarks.\n\n\
            Most commands start the program `archipelago` in the directory of this one.\n\
            Build in two commands, so that it does not get features that this program needs:\n  \
            cargo build --release -p archipelago-lab\n  \
            cargo build --release -p archipelago-cli\n"
}

/// Runs `archipelago-lab` with `args`, the words after the program's name. Exit code 0 on success,
/// 1 if a measurement failed, 2 for wrong usage.
#[must_use]
#[expect(clippy::needless_pass_by_value, reason = "the program hands its arguments over")]
pub fn main(args: Vec<OsString>) -> ExitCode {
    let word = args.first().and_then(|word| word.to_str()).unwrap_or_default();
    let word = if word == RENAMED.0 { RENAMED.1 } else { word };
    if let Some((_, _, command)) = COMMANDS.iter().find(|(name, ..)| *name == word) {
        page::remember_commit();
        return archipelago_bench::exit_code(command(&args[1..]));
    }
    if word == terark_nodes::NODE_COMMAND {
        return archipelago_bench::exit_code(terark_nodes::serve_node(&args[1..]));
    }
    if word == o3::NODE_COMMAND {
        return archipelago_bench::exit_code(o3::serve_node(&args[1..]));
    }
    if matches!(word, "--help" | "-h" | "help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    eprint!("{}", help());
    ExitCode::from(2)
}
