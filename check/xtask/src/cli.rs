//! The command line of `xtask`.

/// Usage text of `cargo xtask`.
pub(crate) const USAGE: &str = "\
usage: cargo xtask check [--fast | --sources | --bless]
           everything that .ci/run checks; --fast leaves out the tests and the crash run
           --sources runs only the checks that read sources and pages, in seconds
           --bless does the same, and first removes from the allow-lists what nothing needs
       cargo xtask over-store
           the engine's integration tests over a volume of a storage pool, a step of the check
       cargo xtask fuzz [TARGET] [--seconds N]
           runs one fuzz target, or all of them in turn, for N seconds each (60 by default)";

use crate::check::Steps;

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Run the checks.
    Check {
        /// Steps of the check that run.
        steps: Steps,
    },
    /// Run the tests of the engine over a volume.
    OverStore,
    /// Run fuzz targets.
    Fuzz {
        /// One target by name, or all targets if there is none.
        target: Option<String>,
        /// Seconds for each target.
        seconds: u64,
    },
    /// Print the usage.
    Help,
}

/// Reads the arguments after the program's name.
pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut args = args;
    match args.next().as_deref() {
        None | Some("help" | "--help" | "-h") => Ok(Command::Help),
        Some("check") => {
            let steps = match args.next().as_deref() {
                None => Steps::All,
                Some("--fast") => Steps::Fast,
                Some("--sources") => Steps::Sources,
                Some("--bless") => Steps::Bless,
                Some(other) => return Err(format!("check: unknown argument `{other}`")),
            };
            match args.next() {
                None => Ok(Command::Check { steps }),
                Some(other) => Err(format!("check: `{other}` is one argument too many")),
            }
        }
        Some("over-store") => match args.next() {
            None => Ok(Command::OverStore),
            Some(other) => Err(format!("over-store: unknown argument `{other}`")),
        },
        Some("fuzz") => parse_fuzz(args),
        Some(other) => Err(format!("unknown command `{other}`")),
    }
}

fn parse_fuzz(mut args: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut target = None;
    let mut seconds = 60;
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let text = args.next().ok_or("--seconds: a number is missing")?;
            seconds = text.parse().map_err(|_| format!("--seconds: `{text}` is not a number"))?;
        } else if arg.starts_with('-') || target.is_some() {
            return Err(format!("fuzz: unknown argument `{arg}`"));
        } else {
            target = Some(arg);
        }
    }
    Ok(Command::Fuzz { target, seconds })
}

#[cfg(test)]
mod tests {
    use super::{Command, parse};
    use crate::check::Steps;

    fn of(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn commands_and_flags_are_read() {
        assert_eq!(of("check"), Ok(Command::Check { steps: Steps::All }));
        assert_eq!(of("check --fast"), Ok(Command::Check { steps: Steps::Fast }));
        assert_eq!(of("check --sources"), Ok(Command::Check { steps: Steps::Sources }));
        assert_eq!(of("check --bless"), Ok(Command::Check { steps: Steps::Bless }));
        assert_eq!(
            of("fuzz sst --seconds 5"),
            Ok(Command::Fuzz { target: Some("sst".into()), seconds: 5 })
        );
        assert_eq!(of("over-store"), Ok(Command::OverStore));
        assert_eq!(of(""), Ok(Command::Help));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        assert!(of("check --quick").is_err_and(|m| m.contains("--quick")));
        assert!(of("check --fast --bless").is_err_and(|m| m.contains("--bless")));
        assert!(of("over-store b").is_err_and(|m| m.contains("`b`")));
        assert!(of("chekc").is_err_and(|m| m.contains("chekc")));
        assert!(of("fuzz sst --seconds soon").is_err_and(|m| m.contains("soon")));
        assert!(of("fuzz sst wal").is_err_and(|m| m.contains("wal")));
    }
}
