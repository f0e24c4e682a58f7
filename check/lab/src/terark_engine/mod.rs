//! `archipelago-lab terark-engine`: separated values and their garbage collection, against this
//! engine without separation and against RocksDB's BlobDB (Terark-DS, the part inside the engine).
//!
//! `flags` is the command line, `plan` chooses the runs, and `run` starts the processes of a run.
//! `bounds` is the arithmetic of the targets, `rows` compares, and `report` and `plots` show the
//! result.
//!
//! Invariants:
//! 1. Modes alternate within a round, and a round has one seed for all modes. Each run has
//!    processes and a directory of its own, which is removed after the run.
//! 2. Rows, sizes and targets were fixed before the results were known (decision 0064).
//! 3. A rate "until settled" includes the time until compaction and garbage collection rest.
//! 4. The space of both sides is sampled from outside, so that garbage of every kind counts.
//! 5. The journal holds every run before the next one starts, so that `--resume` continues after an
//!    interruption.
//!
//! Failure: a missed target is no error. After a run that failed, the reports are written with the
//! runs that succeeded, and the command returns the error.

pub(crate) mod bounds;
mod flags;
mod plan;
mod plots;
mod report;
mod rows;
pub(crate) mod run;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use archipelago_base::clock::{Clock as _, SystemClock};
use serde::Serialize;

use crate::compare::db_bench_version;
use crate::journal::RunJournal;
use crate::page;
use crate::rounds::{Rounds, new_dir};
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::store::{DeviceSpec, FileSystem as _, LocalFs, Result};
use flags::TerarkEngineFlags;
use plan::{Case, Mode, Part};
use rows::{Facts, Row};
use run::{Run, Stage};

/// The emulated network volume.
const NETWORK_VOLUME: &str = include_str!("../../../../docs/devices/network-volume.toml");
/// Title of the report and of the page.
const TITLE: &str = "Separated values: BlobDB and the engine without separation";
/// Name of the command.
const COMMAND: &str = "terark-engine";

/// The file report.json.
#[derive(Debug, Serialize)]
struct Results<'a> {
    version: &'static str,
    settings: &'a str,
    device: &'a DeviceSpec,
    rows: Vec<Row>,
    runs: &'a [Run],
}

/// Runs the command with `args`, the words after `terark-engine`.
pub(crate) fn measure(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let flags = TerarkEngineFlags::read(args)?;
    let Some(path) = &flags.resume else { return Ok(make(&flags, args, None)) };
    match RunJournal::resume(path, COMMAND) {
        Ok(journal) => {
            let words = journal.words().to_owned();
            let mut flags = TerarkEngineFlags::read(&words)?;
            flags.out = journal.out().to_owned();
            Ok(make(&flags, &words, Some(journal)))
        }
        Err(error) => Ok(Err(error)),
    }
}

/// Makes the runs that `resumed` does not have, and the reports.
fn make(
    flags: &TerarkEngineFlags,
    args: &[OsString],
    resumed: Option<RunJournal<Run>>,
) -> Result<()> {
    let fs = LocalFs::for_reports();
    fs.create_dir_all(&flags.out)?;
    let device_file = flags.out.join("device.toml");
    page::write(&device_file, NETWORK_VOLUME)?;
    let mut device = DeviceSpec::from_toml(NETWORK_VOLUME)?;
    device.scale = flags.device_scale;
    device.validate()?;
    let parts = flags.parts();
    let needs_peer = parts.iter().any(|part| part.modes().contains(&Mode::BlobDb));
    let peer = if needs_peer { db_bench_version(&flags.db_bench)? } else { String::new() };
    let clock = SystemClock::new();
    let program = crate::program::named_or_beside(flags.archipelago.as_ref())?;
    let journal = match resumed {
        Some(journal) => journal,
        None => {
            let base = flags.db.clone().unwrap_or_else(std::env::temp_dir);
            RunJournal::create(&flags.out, COMMAND, args, new_dir(&base, "archipelago-terark")?)?
        }
    };
    let mut runner = Runner::new(flags, &device_file, program, journal)?;
    let result = runner.run_all(&parts);
    let journal = runner.finish();
    let runs = journal.runs();
    if runs.is_empty() {
        return journal.end(result);
    }
    let facts = Facts { flags, device: &device, runs };
    let rows = facts.rows();
    let settings = report::settings(flags, &peer, clock.now_ns() / 1_000_000_000);
    let sections = report::sections(&facts, &rows);
    let version = env!("CARGO_PKG_VERSION");
    let data = Results { version, settings: &settings, device: &device, rows, runs };
    let plots = plots::all(&facts);
    let settings = settings.as_str();
    let (command, appendix) = (COMMAND, None);
    page::Report { title: TITLE, command, args, settings, sections, appendix, plots }.publish(
        &flags.out,
        flags.page.as_deref(),
        &data,
    )?;
    journal.end(result)
}

/// Makes the runs that the journal does not have yet.
struct Runner<'a> {
    flags: &'a TerarkEngineFlags,
    device: &'a Path,
    program: PathBuf,
    rounds: Rounds,
    journal: RunJournal<Run>,
}

impl<'a> Runner<'a> {
    fn new(
        flags: &'a TerarkEngineFlags,
        device: &'a Path,
        program: PathBuf,
        journal: RunJournal<Run>,
    ) -> Result<Self> {
        let rounds = Rounds::in_dir(journal.dir().to_owned())?;
        Ok(Self { flags, device, program, rounds, journal })
    }

    /// Makes all runs, up to the first one that fails.
    fn run_all(&mut self, parts: &[Part]) -> Result<()> {
        let rounds = self.flags.runs();
        let each: usize = parts.iter().map(|part| part.modes().len()).sum();
        self.rounds.set_count(each as u64 * rounds);
        for &part in parts {
            for round in 0..rounds {
                for &mode in part.modes() {
                    self.run_one(part, mode, round)?;
                }
            }
        }
        Ok(())
    }

    fn run_one(&mut self, part: Part, mode: Mode, round: u64) -> Result<()> {
        let is_peer = |run: &&Run| (run.part, run.mode, run.round) == (part, Mode::BlobDb, round);
        let peer_space = self.journal.runs().iter().find(is_peer).and_then(Run::space_max);
        let Self { flags, device, program, rounds, journal } = self;
        rounds.run_next(round, &format!("{part:?}: {}", mode.name()), |at| {
            let is_it = |run: &Run| (run.part, run.mode, run.round) == (part, mode, round);
            if journal.runs().iter().any(is_it) {
                (at.said)("the journal has it");
                return Ok(());
            }
            let stage = Stage {
                case: Case { flags, part, mode, round: at.round, peer_space },
                archipelago: program,
                device,
                dir: at.dir.clone(),
                said: at.said,
            };
            journal.push(stage.run()?)
        })
    }

    /// Removes the directory, and returns the runs.
    fn finish(self) -> RunJournal<Run> {
        self.rounds.finish();
        self.journal
    }
}

#[cfg(test)]
mod tests;
