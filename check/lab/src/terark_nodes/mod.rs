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

use crate::page;
use crate::rounds::{Rounds, absolute};
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
    Ok(make(&flags, args))
}

fn make(flags: &NodesFlags, args: &[OsString]) -> Result<()> {
    let fs = LocalFs::for_reports();
    fs.create_dir_all(&flags.out)?;
    // Node processes and the client get paths that do not depend on a directory.
    let device_file = absolute(&flags.out.join("device.toml"))?;
    page::write(&device_file, link::device_text())?;
    let device = link::device(flags.scale)?;
    let clock = SystemClock::new();
    let mut runner = Runner::new(flags, &device_file)?;
    let (cells, notes) = runner.supported(plan::cells(flags))?;
    if cells.is_empty() {
        runner.finish();
        let notes: Vec<&str> = notes.iter().map(|note| note.text.as_str()).collect();
        return Err(Error::invalid(format!(
            "nothing is measured: no group of --only has these workloads and modes. {}",
            notes.join(" ")
        )));
    }
    eprint!("{}", estimate::text(flags, &cells));
    if flags.plan {
        runner.finish();
        return Ok(());
    }
    let result = runner.run_all(&cells);
    let runs = runner.finish();
    if runs.is_empty() {
        return result;
    }
    let facts = Facts { flags, cells: &cells, runs: &runs };
    let rows = facts.rows(&claims::all());
    let settings = report::settings(flags, &device, clock.now_ns() / 1_000_000_000);
    let sections = report::sections(&facts, &rows, &notes);
    let version = env!("CARGO_PKG_VERSION");
    let link = Link::new(Card::Full, flags.scale);
    let data = Results { version, settings: &settings, link, device: &device, rows, runs: &runs };
    let plots = plots::all(&facts);
    let settings = settings.as_str();
    let (command, appendix) = ("terark-nodes", Some(report::appendix(&facts)));
    page::Report { title: TITLE, command, args, settings, sections, appendix, plots }.publish(
        &flags.out,
        flags.page.as_deref(),
        &data,
    )?;
    result
}

/// A sentence about rows of a group that are left out.
#[derive(Clone, Debug)]
struct Note {
    group: Group,
    text: String,
}

/// Makes the runs and collects their figures.
struct Runner<'a> {
    flags: &'a NodesFlags,
    device: &'a Path,
    archipelago: PathBuf,
    node_program: PathBuf,
    rounds: Rounds,
    runs: Vec<Run>,
}

impl<'a> Runner<'a> {
    fn new(flags: &'a NodesFlags, device: &'a Path) -> Result<Self> {
        let archipelago = crate::program::named_or_beside(flags.archipelago.as_ref())?;
        let node_program = crate::role::program(flags.node_program.as_ref())?;
        let rounds = Rounds::new(&flags.base_dir(), "archipelago-terark")?;
        Ok(Self { flags, device, archipelago, node_program, rounds, runs: Vec::new() })
    }

    /// The cells that the programs can run, and notes about the rows of those that they cannot.
    fn supported(&self, mut cells: Vec<Cell>) -> Result<(Vec<Cell>, Vec<Note>)> {
        let mut notes = report::notes_of_programs(self.flags);
        if cells.iter().any(|cell| cell.mode.is_buffered()) && !self.has_log_buffer()? {
            cells.retain(|cell| !cell.mode.is_buffered());
            let text = format!(
                "The log buffer is not supported by this build: {} bench knows no \
                 --log_buffer_bytes, so the rows of the buffer are left out.",
                self.archipelago.display()
            );
            notes.push(Note { group: Group::Buffer, text });
        }
        Ok((cells, notes))
    }

    fn has_log_buffer(&self) -> Result<bool> {
        Ok(crate::program::bench_help(&self.archipelago)?.contains("--log_buffer_bytes"))
    }

    /// Makes all runs. A run that fails does not stop the others.
    fn run_all(&mut self, cells: &[Cell]) -> Result<()> {
        let Self { flags, device, archipelago, node_program, rounds, runs } = self;
        rounds.run_all(cells, flags.runs(), Cell::name, |&cell, at| {
            let stage = Stage {
                case: Case { flags, cell, round: at.round },
                archipelago: flags.program_of(cell.mode).unwrap_or(archipelago),
                node_program,
                device,
                dir: at.dir.clone(),
                said: at.said,
            };
            runs.push(stage.run()?);
            Ok(())
        })
    }

    /// Removes the directory, and returns the runs.
    fn finish(self) -> Vec<Run> {
        self.rounds.finish();
        self.runs
    }
}

#[cfg(test)]
mod tests;
