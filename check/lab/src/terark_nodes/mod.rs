//! `archipelago-lab terark-nodes`: the evaluation of Terark-DS (PVLDB 19(5), §5) over storage nodes
//! that run as processes of this machine.
//!
//! | module | purpose |
//! | --- | --- |
//! | `flags` | the command line |
//! | `link` | the emulated network and device |
//! | `modes` | workloads, and ways to store them |
//! | `plan`, `words` | the runs, their steps, and the words of each process |
//! | `estimate` | the time that the runs will take |
//! | `node` | a storage node as a process |
//! | `cluster` | the storage nodes of a run, and their manager |
//! | `run`, `events` | one run and its figures |
//! | `growth` | clusters of growing size in virtual time |
//! | `embedded` | a database without storage nodes |
//! | `bounds` | the arithmetic of the targets |
//! | `rows`, `claims` | the rows |
//! | `report`, `plots` | sections and charts |
//!
//! The client is the program `archipelago bench`, so that the measured program is the one that
//! people run.
//! Storage nodes are processes of the laboratory, because only they have emulated devices.
//!
//! Invariants:
//! 1. Modes alternate within a round, and a round has one seed for all modes. Each run has
//!    processes and directories of its own, which are removed after the run.
//! 2. Testbed, sizes and targets were fixed before the results were known (decision 0072).
//! 3. A rate "until settled" includes the time until compaction and garbage collection rest.
//! 4. A run is valid only if processors were not the limit. The report prints each run's use of
//!    processors and card.
//!
//! 5. The journal holds every run before the next one starts, so that `--resume` continues after an
//!    interruption.
//!
//! Failure: a missed target is no error. A run that fails leaves its rows without figures. The
//! other runs go on, and the command returns the first error.

mod bounds;
mod claims;
mod cluster;
mod embedded;
mod estimate;
mod events;
mod flags;
mod growth;
mod link;
mod modes;
mod node;
mod plan;
mod plots;
mod report;
mod rows;
mod run;
mod words;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use archipelago_base::clock::{Clock as _, SystemClock};
use serde::Serialize;

use crate::journal::RunJournal;
use crate::page;
use crate::rounds::{Rounds, absolute, new_dir};
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::store::{DeviceSpec, Error, FileSystem as _, LocalFs, Result};
use flags::NodesFlags;
use link::{Card, Link};
use plan::{Cell, Group};
use rows::{Facts, Row};
use run::{Run, Stage};
use words::Case;

pub(crate) use node::{COMMAND as NODE_COMMAND, serve as serve_node};

/// Title of the report and of the page.
const TITLE: &str = "Storage nodes: the evaluation of Terark-DS";
/// Name of the command.
const COMMAND: &str = "terark-nodes";

/// The file report.json.
#[derive(Debug, Serialize)]
struct Results<'a> {
    version: &'static str,
    settings: &'a str,
    link: Option<Link>,
    device: &'a DeviceSpec,
    rows: Vec<Row>,
    runs: &'a [Run],
}

/// Runs the command with `args`, the words after `terark-nodes`.
pub(crate) fn measure(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let flags = NodesFlags::read(args)?;
    let Some(path) = &flags.resume else { return Ok(make(&flags, args, None)) };
    match RunJournal::resume(path, COMMAND) {
        Ok(journal) => {
            let words = journal.words().to_owned();
            let mut flags = NodesFlags::read(&words)?;
            flags.out = journal.out().to_owned();
            Ok(make(&flags, &words, Some(journal)))
        }
        Err(error) => Ok(Err(error)),
    }
}

/// Makes the runs that `resumed` does not have, and the reports.
fn make(flags: &NodesFlags, args: &[OsString], resumed: Option<RunJournal<Run>>) -> Result<()> {
    let archipelago = crate::program::named_or_beside(flags.archipelago.as_ref())?;
    let (cells, notes) = supported(flags, &archipelago, plan::cells(flags))?;
    if cells.is_empty() {
        let notes: Vec<&str> = notes.iter().map(|note| note.text.as_str()).collect();
        return Err(Error::invalid(format!(
            "nothing is measured: no group of --only has these workloads and modes. {}",
            notes.join(" ")
        )));
    }
    eprint!("{}", estimate::text(flags, &cells));
    if flags.plan {
        return Ok(());
    }
    LocalFs::for_reports().create_dir_all(&flags.out)?;
    // Node processes and the client get paths that do not depend on a directory.
    let device_file = absolute(&flags.out.join("device.toml"))?;
    page::write(&device_file, link::device_text())?;
    let device = link::device(flags.scale)?;
    let clock = SystemClock::new();
    let journal = match resumed {
        Some(journal) => journal,
        None => {
            let dir = new_dir(&flags.base_dir(), "archipelago-terark")?;
            RunJournal::create(&flags.out, COMMAND, args, dir)?
        }
    };
    let mut runner = Runner::new(flags, &device_file, archipelago, journal)?;
    let result = runner.run_all(&cells);
    let journal = runner.finish();
    let runs = journal.runs();
    if runs.is_empty() {
        return journal.end(result);
    }
    let facts = Facts { flags, cells: &cells, runs };
    let rows = facts.rows(&claims::all());
    let settings = report::settings(flags, &device, clock.now_ns() / 1_000_000_000);
    let sections = report::sections(&facts, &rows, &notes);
    let version = env!("CARGO_PKG_VERSION");
    let link = Link::new(Card::Full, flags.scale);
    let data = Results { version, settings: &settings, link, device: &device, rows, runs };
    let plots = plots::all(&facts);
    let settings = settings.as_str();
    let appendix = Some(report::appendix(&facts));
    page::Report { title: TITLE, command: COMMAND, args, settings, sections, appendix, plots }
        .publish(&flags.out, flags.page.as_deref(), &data)?;
    journal.end(result)
}

/// A sentence about rows of a group that are left out.
#[derive(Clone, Debug)]
struct Note {
    group: Group,
    text: String,
}

/// Makes the runs that the journal does not have yet.
struct Runner<'a> {
    flags: &'a NodesFlags,
    device: &'a Path,
    archipelago: PathBuf,
    node_program: PathBuf,
    rounds: Rounds,
    journal: RunJournal<Run>,
}

/// The cells that the programs can run, and notes about the rows of those that they cannot.
fn supported(
    flags: &NodesFlags,
    archipelago: &Path,
    mut cells: Vec<Cell>,
) -> Result<(Vec<Cell>, Vec<Note>)> {
    let mut notes = report::notes_of_programs(flags);
    let is_buffered = cells.iter().any(|cell| cell.mode.is_buffered());
    if is_buffered && !crate::program::bench_help(archipelago)?.contains("--log_buffer_bytes") {
        cells.retain(|cell| !cell.mode.is_buffered());
        let text = format!(
            "The log buffer is not supported by this build: {} bench knows no --log_buffer_bytes, \
             so the rows of the buffer are left out.",
            archipelago.display()
        );
        notes.push(Note { group: Group::Buffer, text });
    }
    Ok((cells, notes))
}

impl<'a> Runner<'a> {
    fn new(
        flags: &'a NodesFlags,
        device: &'a Path,
        archipelago: PathBuf,
        journal: RunJournal<Run>,
    ) -> Result<Self> {
        let node_program = crate::role::program(flags.node_program.as_ref())?;
        let rounds = Rounds::in_dir(journal.dir().to_owned())?;
        Ok(Self { flags, device, archipelago, node_program, rounds, journal })
    }

    /// Makes all runs. A run that fails does not stop the others.
    fn run_all(&mut self, cells: &[Cell]) -> Result<()> {
        let Self { flags, device, archipelago, node_program, rounds, journal } = self;
        rounds.run_all(cells, flags.runs(), Cell::name, |&cell, at| {
            let is_it = |run: &Run| (run.cell, run.round) == (cell, at.round);
            if journal.runs().iter().any(is_it) {
                (at.said)("the journal has it");
                return Ok(());
            }
            let stage = Stage {
                case: Case { flags, cell, round: at.round },
                archipelago: flags.program_of(cell.mode).unwrap_or(archipelago),
                node_program,
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
