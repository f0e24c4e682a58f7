//! `archipelago-lab o3`: the evaluation of O³-LSM (§5) with roles that run as processes of this
//! machine, over a shared directory behind emulated links.
//!
//! | module | purpose |
//! | --- | --- |
//! | `flags` | the command line |
//! | `bounds` | bounds by arithmetic |
//! | `modes` | the table of modes, and those that a program refuses |
//! | `plan`, `words` | the cells, and the words of each process |
//! | `node` | an executor, a memory node or a Redis server as a process |
//! | `cluster` | the processes of a run, and their manager |
//! | `resp` | Redis clients |
//! | `run`, `timeline` | one run and its figures |
//! | `takeover` | the death of an owner, and the next one |
//! | `databases` | owners of several databases at the same time |
//! | `rows`, `claims` | the rows |
//! | `many_nodes` | a model in virtual time, for the rows of several databases |
//! | `report`, `plots` | sections and charts |
//!
//! The owner is the program `archipelago bench`, so that the measured program is the one that
//! people run.
//! Other roles are processes of the laboratory, because only they have emulated links.
//!
//! Invariants:
//! 1. Modes alternate within a round, and a round has one seed for all modes. Each run has
//!    processes and directories of its own, which are removed after the run.
//! 2. Links, sizes, modes, rows and targets were fixed before the results were known (decisions
//!    0087, 0107 and 0108).
//! 3. A mode that the program refuses is named with the reason, and its rows are listed without
//!    figures.
//! 4. Rows that are figures of a model say so in their names.
//! 5. A run is valid only if processors were not the limit; each run's use of them is printed.
//! 6. The journal holds every run before the next one starts, so that `--resume` continues after an
//!    interruption.
//!
//! Failure: a missed target is no error. A run that fails leaves its rows without figures. The
//! other runs go on, and the command returns the first error.

mod bounds;
mod claims;
mod cluster;
mod databases;
mod flags;
mod many_nodes;
mod modes;
mod node;
mod plan;
mod plots;
mod report;
mod resp;
mod rows;
mod run;
mod takeover;
mod timeline;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::store::{DeviceSpec, Error, FileSystem as _, LocalFs, Result};
use serde::Serialize;

use crate::journal::RunJournal;
use crate::page;
use crate::rounds::{RoundRun, Rounds, absolute, base_dir, new_dir};
use bounds::StorageLink;
use cluster::Devices;
use flags::O3Flags;
use modes::{Abilities, Mode};
use plan::{Cell, Group, Load, Plan};
use rows::{Facts, Row, Unmeasured};
use run::{Run, Stage};
use words::Case;

pub(crate) use node::{COMMAND as NODE_COMMAND, serve as serve_node};

/// Title of the report and of the page.
const TITLE: &str = "Offloading: the evaluation of O³-LSM";
/// Name of the command.
const COMMAND: &str = "o3";

const LINK_1G: &str = include_str!("../../../../docs/devices/ds-link-1g.toml");
const LINK_2G5: &str = include_str!("../../../../docs/devices/ds-link-2g5.toml");
const STORAGE: &str = include_str!("../../../../docs/devices/ds-local.toml");

/// The file report.json.
#[derive(Debug, Serialize)]
struct Results<'a> {
    version: &'static str,
    settings: &'a str,
    devices: [DeviceSpec; 3],
    rows: &'a [Row],
    unmeasured: &'a [Unmeasured],
    runs: &'a [Run],
}

/// Runs the command with `args`, the words after `o3`.
pub(crate) fn measure(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let flags = O3Flags::read(args)?;
    let Some(path) = &flags.resume else { return Ok(make(&flags, args, None)) };
    match RunJournal::resume(path, COMMAND) {
        Ok(journal) => {
            let words = journal.words().to_owned();
            let mut flags = O3Flags::read(&words)?;
            flags.out = journal.out().to_owned();
            Ok(make(&flags, &words, Some(journal)))
        }
        Err(error) => Ok(Err(error)),
    }
}

/// Makes the runs that `resumed` does not have, and the reports.
fn make(flags: &O3Flags, args: &[OsString], resumed: Option<RunJournal<Run>>) -> Result<()> {
    LocalFs::for_reports().create_dir_all(&flags.out)?;
    let clock = SystemClock::new();
    let archipelago = crate::program::named_or_beside(flags.archipelago.as_ref())?;
    let abilities = Abilities::of(&crate::program::bench_help(&archipelago)?);
    let plan = plan::plan(flags, &abilities);
    for (cell, why) in &plan.refused {
        eprintln!("left out: {}: {why}", cell.name());
    }
    let journal = match resumed {
        Some(journal) => journal,
        None => {
            let dir = new_dir(&base_dir(flags.dir.as_ref()), "archipelago-o3")?;
            RunJournal::create(&flags.out, COMMAND, args, dir)?
        }
    };
    let mut runner = Runner::new(flags, archipelago, journal)?;
    let result = runner.run_all(&plan);
    let journal = runner.finish();
    let runs = journal.runs();
    let facts = Facts { flags, plan: &plan, runs };
    let claims = claims::all();
    let mut rows = facts.rows(&claims);
    let model = match flags.groups().contains(&Group::Nodes) {
        true => many_nodes::measure(flags),
        false => many_nodes::ModelFigures::default(),
    };
    rows.extend(model.rows.iter().cloned());
    let mut unmeasured = facts.refused(&claims);
    unmeasured.extend(claims::listed(&flags.groups()));
    let settings = report::settings(flags, clock.now_ns() / 1_000_000_000);
    let shown = report::Shown { rows: &rows, unmeasured: &unmeasured, model: &model };
    let sections = report::sections(&facts, &shown);
    let devices = [LINK_1G, LINK_2G5, STORAGE].map(DeviceSpec::from_toml);
    let [narrow, wide, storage] = devices;
    let data = Results {
        version: env!("CARGO_PKG_VERSION"),
        settings: &settings,
        devices: [narrow?, wide?, storage?],
        rows: &rows,
        unmeasured: &unmeasured,
        runs,
    };
    let mut plots = plots::all(&facts);
    plots.extend(model.plots);
    let (command, settings) = (COMMAND, settings.as_str());
    page::Report { title: TITLE, command, args, settings, sections, appendix: None, plots }
        .publish(&flags.out, flags.page.as_deref(), &data)?;
    journal.end(result)
}

/// Makes the runs that the journal does not have yet.
struct Runner<'a> {
    flags: &'a O3Flags,
    archipelago: PathBuf,
    node_program: PathBuf,
    rounds: Rounds,
    /// Files with the descriptions of the links, by the order of [`StorageLink::ALL`].
    devices: [Devices; 2],
    journal: RunJournal<Run>,
}

impl<'a> Runner<'a> {
    fn new(flags: &'a O3Flags, archipelago: PathBuf, journal: RunJournal<Run>) -> Result<Self> {
        let node_program = crate::role::program(flags.node_program.as_ref())?;
        let rounds = Rounds::in_dir(journal.dir().to_owned())?;
        // Processes get paths that do not depend on a directory.
        let file = |name: &str, text: &str| {
            let path = absolute(&flags.out.join(name))?;
            page::write(&path, text)?;
            Ok::<PathBuf, Error>(path)
        };
        let local = file("ds-local.toml", STORAGE)?;
        let devices = [
            Devices { link: file("ds-link-1g.toml", LINK_1G)?, local: local.clone() },
            Devices { link: file("ds-link-2g5.toml", LINK_2G5)?, local },
        ];
        Ok(Self { flags, archipelago, node_program, rounds, devices, journal })
    }

    /// Makes all runs. A run that fails does not stop the others.
    fn run_all(&mut self, plan: &Plan) -> Result<()> {
        let Self { flags, archipelago, node_program, rounds, devices, journal } = self;
        rounds.run_all(&plan.cells, flags.runs(), Cell::name, |&cell, at| {
            let is_it = |run: &Run| (run.cell, run.round) == (cell, at.round);
            if journal.runs().iter().any(is_it) {
                (at.said)("the journal has it");
                return Ok(());
            }
            let devices = match cell.link {
                StorageLink::One => &devices[0],
                StorageLink::TwoAndAHalf => &devices[1],
            };
            let baseline_bytes_per_s = baseline(journal.runs(), cell, at)?;
            let stage = Stage {
                case: Case { flags, cell, round: at.round, baseline_bytes_per_s },
                archipelago,
                node_program,
                devices,
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

/// Bytes per second of `off_classic` in the same round, if the load of `cell` depends on it.
fn baseline(runs: &[Run], cell: Cell, at: &RoundRun<'_>) -> Result<Option<f64>> {
    let Load::Paced(value) = cell.load else { return Ok(None) };
    let wanted = Cell::new(Mode::OffClassic, cell.link, Load::Fill(value));
    let found = runs.iter().find(|run| run.cell == wanted && run.round == at.round);
    let rate = found.and_then(Run::user_mb_per_s);
    match rate {
        Some(rate) => Ok(Some(rate * 1e6)),
        None => Err(Error::invalid(format!(
            "the rate of {} is not known, so that 0.9 of it cannot be offered",
            wanted.name()
        ))),
    }
}

#[cfg(test)]
mod tests;
