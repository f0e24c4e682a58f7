//! The command line, spelled as db_bench spells it.
//!
//! [`read`] turns arguments into [`Flags`]. First, `spelling` translates the forms of gflags
//! (`-num=5`, `--nosync`) into those of clap and removes flags without a meaning here. Then clap
//! parses the rest.

mod groups;
mod known;
mod offload;
mod separation;
mod spelling;
mod volume;

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{ArgAction, Command, CommandFactory, FromArgMatches};

pub(crate) use groups::SizeDistribution;
pub use groups::{BucketBoundaries, CompareFlags, CompressionType, Distribution, Flags, Mixgraph};
pub use known::OURS_ONLY;
pub use offload::Offload;
pub use spelling::{Spelled, with_underscores};

/// Reason for which there is nothing to run.
#[derive(Debug)]
pub enum Stop {
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
pub fn read(args: &[OsString]) -> Result<(Flags, Vec<String>), Stop> {
    let Spelled { args, ignored } = spelling::spell(args).map_err(Stop::Usage)?;
    let args = std::iter::once("archipelago bench".to_owned()).chain(args);
    let flags: Flags = parse(args)?;
    flags.check().map_err(Stop::Usage)?;
    Ok((flags, ignored))
}

/// [`read`] for `compare`. Flags of db_bench's blob files that have no counterpart here go to
/// db_bench alone.
pub fn read_compare(args: &[OsString]) -> Result<(CompareFlags, Spelled), Stop> {
    let (args, for_peer) = spelling::without_peer_only(args);
    let spelled = spelling::spell(&args).map_err(Stop::Usage)?;
    let args = spelled.args.iter().cloned();
    let args = std::iter::once("archipelago-lab compare".to_owned()).chain(args);
    let mut flags: CompareFlags = parse(args)?;
    flags.bench.check().map_err(Stop::Usage)?;
    for flag in for_peer {
        flags.db_bench_flags.push(' ');
        flags.db_bench_flags += &flag;
    }
    let storage = &flags.bench.storage;
    let has_ours = storage.device.is_some()
        || storage.tiers.is_some()
        || flags.bench.volume.store.is_some()
        || flags.bench.offload.offload_mode.mode().is_some();
    if has_ours || flags.bench.output.samples.is_some() {
        return Err(Stop::Usage(
            "--device, --tiers, --store, --offload_mode and --samples do not go with compare: \
             db_bench has none of them"
                .to_owned(),
        ));
    }
    let separation = &flags.bench.separation;
    if separation.value_separation_bytes.is_some() || separation.value_file_bytes.is_some() {
        return Err(Stop::Usage(
            "--value_separation_bytes and --value_file_bytes do not go with compare: \
             --enable_blob_files, --min_blob_size and --blob_file_size are for both sides"
                .to_owned(),
        ));
    }
    let ours = ["mixgraph1", "mixgraph2"];
    if let Some(name) = flags.bench.benchmarks.iter().find(|name| ours.contains(&name.as_str())) {
        return Err(Stop::Usage(format!(
            "db_bench has no {name}: mixgraph with --keyrange_* is what both have"
        )));
    }
    Ok((flags, spelled))
}

fn parse<F: CommandFactory + FromArgMatches>(
    args: impl Iterator<Item = String>,
) -> Result<F, Stop> {
    let command = with_short_value_names(F::command());
    let matches = command.try_get_matches_from(args).map_err(explain)?;
    F::from_arg_matches(&matches).map_err(explain)
}

/// `--num <N>` instead of `--num <NUM>`: names that repeat the flag's only widen the help.
fn with_short_value_names(command: Command) -> Command {
    command.mut_args(|arg| {
        let own = arg.get_id().as_str().to_ascii_uppercase();
        let is_plain = arg.get_value_names().is_none_or(|names| names.iter().all(|n| **n == own));
        let takes_value = matches!(arg.get_action(), ArgAction::Set);
        match (is_plain && takes_value, arg.is_require_equals_set()) {
            (false, _) => arg,
            (true, true) => arg.value_name("BOOL"),
            (true, false) => arg.value_name("N"),
        }
    })
}

/// Says of an unknown flag whether db_bench has it.
fn explain(error: clap::Error) -> Stop {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(clap::error::ContextValue::String(flag)) =
            error.get(clap::error::ContextKind::InvalidArg)
        && let Some(reason) = separation::peer_only_reason(name_of(flag))
    {
        return Stop::Usage(format!(
            "{flag} is a flag of db_bench's blob files without a counterpart here: {reason}; leave it \
             out (archipelago-lab compare hands it to db_bench alone)"
        ));
    }
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

/// The name of a flag, without dashes and value.
fn name_of(flag: &str) -> &str {
    let name = flag.trim_start_matches('-');
    name.split('=').next().unwrap_or(name)
}

#[cfg(test)]
pub(crate) mod tests;
