//! `archipelago`: the one binary. `serve` runs a store that Redis clients talk to, `db` looks into
//! and mends a database that nobody serves, `node` and `cluster` run a pool of memory, `bench`
//! measures.

mod access;
mod allocator;
mod cluster;
mod console;
mod db;
mod escape;
mod node;
mod panics;
mod ports;
mod repair;
mod restore;
mod serve;
mod status;
mod stop;
mod tier;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An ordered key-value store for disaggregated data centres.
///
/// Start one with `archipelago serve` and talk to it with any Redis client.
#[derive(Debug, Parser)]
#[command(name = "archipelago", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the store: all roles in one process, RESP over TCP.
    Serve(Box<serve::ServeArgs>),
    /// Run one role of a cluster in this process: a memory node, or the manager.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Start a cluster on this machine, look at one, help it along.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Look into a database, change it, check it, copy it. Nobody else may have it open.
    Db(db::Db),
    /// Measure devices and write the placement scheme of a database on tiers.
    Tier(tier::Tier),
    /// Measure: RocksDB's benchmark names and flags (`archipelago bench --help`).
    #[command(disable_help_flag = true)]
    Bench {
        /// Everything that the benchmark is told.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
        flags: Vec<OsString>,
    },
}

impl Command {
    /// Whether it frees megabytes at a time, and then waits: a database's background jobs do.
    fn frees_much_at_once(&self) -> bool {
        match self {
            Self::Serve(serve) => serve.is_database(),
            Self::Db(_) => true,
            Self::Bench { flags } => !flags.iter().any(|flag| flag == "flexkv" || flag == "flex"),
            Self::Node(_) | Self::Cluster(_) | Self::Tier(_) => false,
        }
    }
}

fn main() -> ExitCode {
    let level = tracing_subscriber::EnvFilter::try_from_env("ARCHIPELAGO_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).init();
    panics::name_extensions(|text| eprintln!("{text}"));
    let command = Arguments::parse().command;
    if command.frees_much_at_once() {
        allocator::give_back_at_once();
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
            eprintln!("archipelago: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Arguments;

    #[test]
    fn readme_shows_every_command() {
        let readme = include_str!("../../../README.md");
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            let shown = [" ", "`"].map(|end| format!("archipelago {name}{end}"));
            let is_shown = shown.iter().any(|shown| readme.contains(shown));
            assert!(is_shown, "README.md does not show `archipelago {name}`");
        }
    }
}
