//! The program `archipelago-lab`; [`archipelago_lab`] is all of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    archipelago_lab::main(std::env::args_os().skip(1).collect())
}
