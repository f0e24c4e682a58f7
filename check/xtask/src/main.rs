//! `cargo xtask`: the project's own checks.
//!
//! - `cargo xtask check` runs everything that continuous integration runs: `.ci/run` calls it and
//!   nothing else. `--fast` leaves out the tests and the crash run.
//! - `cargo xtask fuzz [TARGET] [--seconds N]` runs cargo-fuzz, where a nightly toolchain has it.
//!
//! One thread, no state: each check is a function from the workspace and its parsed sources to a
//! list of [`Finding`](report::Finding)s; a step that calls cargo is a command line. What a check
//! says must let the reader act without opening the check.

mod check;
mod cli;
mod dependencies;
mod fuzz;
mod layers;
mod links;
mod names;
mod report;
mod size;
mod sources;
mod unsafety;
mod workspace;

use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    let outcome = match cli::parse(std::env::args().skip(1)) {
        Ok(Command::Check { fast }) => check::run(fast),
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
