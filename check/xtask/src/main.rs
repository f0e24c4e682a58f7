//! `cargo xtask`: the project's own checks.
//!
//! - `cargo xtask check` runs everything that continuous integration runs: `.ci/run` calls it and
//!   nothing else. `--fast` leaves out the tests and the crash run. `--sources` runs only the
//!   checks of sources and pages, and `--bless` shortens their allow-lists before.
//! - `cargo xtask over-store` runs one step of the check: the tests of the engine over a volume.
//! - `cargo xtask fuzz [TARGET] [--seconds N]` runs the fuzz targets with cargo-fuzz.
//!
//! One thread runs everything, without state. Each check is a function from the workspace and its
//! parsed sources to a list of [`Finding`](report::Finding)s. A step that calls cargo is a command
//! line. The message of a finding must let the reader act without opening the check.

mod allow;
mod cargo_env;
mod check;
mod cli;
mod comment_paths;
mod comments;
mod dead_items;
mod decisions;
mod dependencies;
mod doc_comments;
mod failures;
mod features;
mod fuzz;
mod glossary;
mod graph;
mod impls;
mod layers;
mod layout;
mod links;
mod names;
mod over_store;
mod pages;
mod parameters;
mod references;
mod report;
mod size;
mod source_checks;
mod sources;
mod unsafety;
mod width;
mod workspace;

use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    let outcome = match cli::parse(std::env::args().skip(1)) {
        Ok(Command::Check { steps }) => check::run(steps),
        Ok(Command::OverStore) => check::run_over_store(),
        Ok(Command::Fuzz { target, seconds }) => fuzz::run(target.as_deref(), seconds),
        Ok(Command::Help) => {
            println!("{}", cli::USAGE);
            Ok(())
        }
        Err(message) => Err(format!("{message}\n\n{}", cli::USAGE)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
