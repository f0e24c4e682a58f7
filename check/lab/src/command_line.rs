//! The command line of a command of the laboratory, as its flags.
//!
//! The functions are pure. Failure: [`parse`] returns wrong usage, and a request for help.

use std::ffi::OsString;

use archipelago_bench::harness::flags::{Stop, with_underscores};
use clap::Parser;

/// Parses `args`, the words after the name of the command `command`. Names of flags may be written
/// with `-` or with `_`.
pub(crate) fn parse<F: Parser>(command: &str, args: &[OsString]) -> Result<F, Stop> {
    let name = std::iter::once(OsString::from(format!("archipelago-lab {command}")));
    Ok(F::try_parse_from(name.chain(args.iter().map(with_underscores)))?)
}
