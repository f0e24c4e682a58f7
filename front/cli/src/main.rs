//! The program `archipelago`. `serve` runs a store for Redis clients. `db` reads, changes and
//! repairs a database that no server has open. `tier` measures and removes devices. `node` and
//! `cluster` run a pool of memory and storage nodes. `bench` measures.
//!
//! Every command prints its result to standard output, and warnings and errors to standard error.
//! The exit code is 0 on success, 1 after an error, and 2 for flags that do not exist.

mod access;
mod allocator;
mod cluster;
mod console;
mod db;
mod escape;
mod executor;
mod managers;
mod metrics;
mod node;
mod panics;
mod ports;
mod repair;
mod restore;
mod secret;
mod serve;
mod status;
mod stop;
mod tier;
mod volume;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::console::warn_line;

/// An ordered key-value store for disaggregated data centres.
///
/// Start a server with `archipelago serve`, and connect to it with any Redis client. `archipelago
/// COMMAND --help` explains each command with an example. The environment variable ARCHIPELAGO_LOG
/// chooses what is logged to standard error: error, warn (the default), info, debug or trace.
#[derive(Debug, Parser)]
#[command(
    name = "archipelago",
    version,
    arg_required_else_help = true,
    after_help = "Example:\n  archipelago serve --dir ./data\n  \
                  redis-cli -p 6379 set reef coral  (in another terminal)"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::ServeArgs>),
    /// Run one role of a cluster in this process: a manager, a memory node, a storage node or an
    /// executor.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Start a cluster on this machine; for any cluster, show its status and jobs, empty, check or
    /// give up its nodes, or make a secret.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    Db(db::Db),
    Tier(tier::Tier),
    /// Measure the store with the benchmarks and flags of RocksDB's db_bench.
    ///
    /// `archipelago bench --help` lists them. Example: `archipelago bench
    /// --benchmarks=fillrandom,readrandom --num=1000000`.
    #[command(disable_help_flag = true)]
    Bench {
        /// Flags of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
        flags: Vec<OsString>,
    },
}

impl Command {
    /// Whether the process frees megabytes at a time and then waits, as the background jobs of a
    /// database do.
    fn frees_in_bursts(&self) -> bool {
        match self {
            Self::Serve(serve) => serve.is_database(),
            Self::Db(_) => true,
            Self::Bench { flags } => !archipelago_bench::measures_flexkv(flags),
            Self::Node(_) | Self::Cluster(_) | Self::Tier(_) => false,
        }
    }
}

fn main() -> ExitCode {
    let level = tracing_subscriber::EnvFilter::try_from_env("ARCHIPELAGO_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(level)
        // By default, `eprintln!` reports a log line that cannot be written. It panics for the same
        // reason, for example if the log is a file on a full disk.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    panics::name_extensions(|text| warn_line!("{text}"));
    let command = Arguments::parse().command;
    if command.frees_in_bursts() {
        allocator::return_freed_pages_immediately();
    }
    let result = match command {
        Command::Serve(serve) => serve::run(&serve),
        Command::Node(node) => node::run(&node),
        Command::Cluster(cluster) => cluster::run(&cluster),
        Command::Db(db) => db.run(),
        Command::Tier(tier) => tier.run(),
        Command::Bench { flags } => return archipelago_bench::main(flags),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warn_line!("archipelago: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::{Arguments, Command};

    #[test]
    fn bench_of_flexkv_is_found_in_both_spellings() {
        let frees_in_bursts = |words: &[&str]| {
            let flags = words.iter().map(Into::into).collect();
            Command::Bench { flags }.frees_in_bursts()
        };
        assert!(!frees_in_bursts(&["--engine", "flexkv"]));
        assert!(!frees_in_bursts(&["--engine=flexkv", "--threads=4"]));
        assert!(frees_in_bursts(&["--benchmarks=fillrandom"]));
        assert!(frees_in_bursts(&["--db", "flexkv"]), "a directory of this name");
    }

    #[test]
    fn readme_lists_every_command() {
        let readme = include_str!("../../../README.md");
        let commands = readme.split("Commands: `").nth(1).and_then(|rest| rest.split('`').next());
        let commands: Vec<&str> = commands.expect("a list of commands").split(' ').collect();
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            assert!(commands.contains(&name), "README.md does not list the command {name}");
        }
    }
}
