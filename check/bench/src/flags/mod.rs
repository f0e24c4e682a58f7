//! The command line, spelled as db_bench spells it.
//!
//! [`read`] turns arguments into [`Flags`]: first `spelling` brings gflags' forms (`-num=5`,
//! `--nosync`) to clap's and takes out what has no meaning here, then clap parses.

mod groups;
mod known;
mod spelling;

use std::ffi::OsString;

use clap::Parser;
use clap::error::ErrorKind;

pub(crate) use groups::{CompareFlags, CompressionType, Flags, Mixgraph};
pub(crate) use known::OURS_ONLY;
pub(crate) use spelling::Spelled;

/// Why there is nothing to run.
#[derive(Debug)]
pub(crate) enum Stop {
    /// `--help` or a usage error: to print, and how to exit.
    Clap(clap::Error),
    /// A usage error of ours.
    Usage(String),
}

impl From<clap::Error> for Stop {
    fn from(error: clap::Error) -> Self {
        Self::Clap(error)
    }
}

/// Flags of a run, and the names of those that were given but mean nothing here.
pub(crate) fn read(args: &[OsString]) -> Result<(Flags, Vec<String>), Stop> {
    let Spelled { args, ignored } = spelling::spell(args).map_err(Stop::Usage)?;
    let args = std::iter::once("archipelago bench".to_owned()).chain(args);
    let flags = Flags::try_parse_from(args).map_err(explain)?;
    flags.check().map_err(Stop::Usage)?;
    Ok((flags, ignored))
}

/// [`read`] for `compare`.
pub(crate) fn read_compare(args: &[OsString]) -> Result<(CompareFlags, Spelled), Stop> {
    let spelled = spelling::spell(args).map_err(Stop::Usage)?;
    let args = spelled.args.iter().cloned();
    let args = std::iter::once("archipelago bench compare".to_owned()).chain(args);
    let flags = CompareFlags::try_parse_from(args).map_err(explain)?;
    flags.bench.check().map_err(Stop::Usage)?;
    Ok((flags, spelled))
}

/// Says of an unknown flag whether db_bench has it.
fn explain(error: clap::Error) -> Stop {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(clap::error::ContextValue::String(flag)) =
            error.get(clap::error::ContextKind::InvalidArg)
        && known::is_of_db_bench(flag.trim_start_matches('-'))
    {
        return Stop::Usage(format!(
            "{flag} is a flag of db_bench for something that Archipelago does not have or does \
             not let a benchmark choose; leave it out (archipelago bench --help lists what there \
             is)"
        ));
    }
    Stop::Clap(error)
}

#[cfg(test)]
pub(crate) mod tests;
