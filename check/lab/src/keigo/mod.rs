//! `archipelago-lab keigo`: the comparisons of Keigo's evaluation (VLDB 2025, §5 and §3.2) between
//! ways to use a hierarchy of devices, next to the paper's numbers and this project's targets.
//!
//! `flags` is the command line, `plan` chooses the runs, and `run` makes the files of a run and
//! starts its processes. `bound` computes what the devices allow, `claims` compares, and `report`
//! and `plots` show the result.
//!
//! Invariants:
//! 1. Sides alternate within a round, and a round has one seed for all sides. Each run has
//!    processes and fresh directories of its own, which are removed after the run.
//! 2. Devices, sizes and bounds were fixed before the results were known (decision 0016). The runs
//!    are a pure function of the flags.
//!
//! Failure: a missed target is no error. After a run that failed, the reports are written with the
//! runs that succeeded, and the command returns the error.

mod bound;
mod claims;
mod flags;
mod plan;
mod plots;
mod report;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_base::random::entropy_seed;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::page;
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::progress::{runs_bar, say_above};
use archipelago_bench::harness::store::{Error, FileSystem as _, LocalFs, Result};
use claims::{Measured, Row};
use flags::KeigoFlags;
use plan::{Group, Medium, Side};
use run::{Run, Specs, Stage};

/// Title of the report and of the page.
const TITLE: &str = "Hierarchies of devices: Keigo's comparisons";

/// The file report.json.
#[derive(Debug, Serialize)]
struct Results<'a> {
    version: &'static str,
    settings: &'a str,
    devices: &'a Specs,
    rows: Vec<Row>,
    groups: &'a [Group],
    runs: &'a [Run],
}

/// Runs the command with `args`, the words after `keigo`.
pub(crate) fn reproduce(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let flags = KeigoFlags::read(args)?;
    Ok(make(&flags, args))
}

fn make(flags: &KeigoFlags, args: &[OsString]) -> Result<()> {
    let fs = LocalFs::new();
    fs.create_dir_all(&flags.out)?;
    let specs = run::specs(flags.device_scale)?;
    let groups = plan::groups(flags);
    if groups.is_empty() {
        return Err(Error::invalid("no part has these workloads and distributions"));
    }
    let clock = SystemClock::new();
    let mut runner = Runner::new(flags, &specs)?;
    let result = runner.run_all(&groups);
    let runs = runner.finish();
    if runs.is_empty() {
        return result;
    }
    let took_s = clock.now_ns() / 1_000_000_000;
    let measured: Vec<Measured<'_>> =
        (0..).zip(&groups).map(|(place, group)| Measured { group, place, runs: &runs }).collect();
    let settings = settings(flags, &specs, took_s);
    let sections = report::sections(&measured);
    let appendix = Some(report::figures(&measured));
    let data = Results {
        version: env!("CARGO_PKG_VERSION"),
        settings: &settings,
        devices: &specs,
        rows: measured.iter().flat_map(Measured::rows).collect(),
        groups: &groups,
        runs: &runs,
    };
    let (settings, plots) = (settings.as_str(), plots::all(&measured));
    page::Report { title: TITLE, command: "keigo", args, settings, sections, appendix, plots }
        .publish(&flags.out, flags.page.as_deref(), &data)?;
    result
}

/// Makes the runs and collects their figures.
struct Runner<'a> {
    flags: &'a KeigoFlags,
    specs: &'a Specs,
    program: PathBuf,
    /// Directories on the fast medium, and on the disk with `--real`.
    dirs: Vec<PathBuf>,
    bar: ProgressBar,
    runs: Vec<Run>,
}

impl<'a> Runner<'a> {
    fn new(flags: &'a KeigoFlags, specs: &'a Specs) -> Result<Self> {
        let (program, bar) =
            (crate::program::named_or_beside(flags.archipelago.as_ref())?, runs_bar());
        let unique = format!("archipelago-keigo-{:08x}", entropy_seed() as u32);
        let places = std::iter::once(flags.fast_dir()).chain(flags.real.clone());
        let dirs: Vec<PathBuf> = places.map(|dir| dir.join(&unique)).collect();
        let fs = LocalFs::new();
        dirs.iter().try_for_each(|dir| fs.create_dir_all(dir))?;
        Ok(Self { flags, specs, program, dirs, bar, runs: Vec::new() })
    }

    fn run_all(&mut self, groups: &[Group]) -> Result<()> {
        let rounds = self.flags.runs();
        let each: u64 = groups.iter().map(|group| group.sides.len() as u64).sum();
        self.bar.set_length(each * rounds);
        for round in 0..rounds {
            for (place, group) in groups.iter().enumerate() {
                for &side in &group.sides {
                    self.run_one(place, group, side, round)?;
                }
            }
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    fn run_one(&mut self, place: usize, group: &Group, side: Side, round: u64) -> Result<()> {
        let what = format!(
            "{:?}: {}, {}, {} jobs: {}",
            group.part,
            group.workload.name(),
            group.keys.name(),
            group.jobs,
            side.name()
        );
        self.bar.set_message(what.clone());
        let number = self.runs.len() + 1;
        let dir = |at: &PathBuf| at.join(format!("run-{number}"));
        let stage = Stage {
            flags: self.flags,
            specs: self.specs,
            program: self.program.clone(),
            dir: dir(&self.dirs[0]),
            disk: self.dirs.get(1).map(dir),
        };
        let figures = stage.run(group, side, round)?;
        let hit = figures.hits().map_or_else(String::new, |(hit, oracle)| {
            format!(", hit ratio {hit:.3} (oracle {:.3})", oracle.knows_all)
        });
        let speed = match figures.instructions_per_op {
            Some(count) => format!("{count:.0} instructions per operation"),
            None => format!("{:.0} ops/s", figures.ops_per_s),
        };
        let total = self.bar.length().unwrap_or(0);
        let done = format!("run {number} of {total}: {what}: {speed}{hit}");
        say_above(&self.bar, &done);
        self.runs.push(Run { group: place, side, round, figures });
        self.bar.inc(1);
        Ok(())
    }

    /// Removes the directories, and returns the runs.
    fn finish(self) -> Vec<Run> {
        let fs = LocalFs::new();
        for dir in &self.dirs {
            if let Err(error) = fs.remove_dir_all(dir) {
                eprintln!("{} stays: {error}", dir.display());
            }
        }
        self.runs
    }
}

/// Settings of the runs, for the head of the report.
fn settings(flags: &KeigoFlags, specs: &Specs, took_s: u64) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut devices = String::new();
    for medium in Medium::ALL {
        let Some(spec) = specs.get(&medium) else { continue };
        let mb = |bytes: u64| bytes as f64 * spec.scale / 1e6;
        let us = |us: u64| us as f64 / spec.scale;
        devices.push_str(&format!(
            "  - {}: reads {:.0} MB/s after {:.0} µs, writes {:.0} MB/s after {:.0} µs, sync {:.0} µs; \
             takes {} writers\n",
            spec.name,
            mb(spec.read_bytes_per_s),
            us(spec.read_latency_us),
            mb(spec.write_bytes_per_s),
            us(spec.write_latency_us),
            us(spec.sync_latency_us),
            medium.writers_max()
        ));
    }
    let media = match &flags.real {
        Some(disk) => format!(
            "- **Real media**, nothing emulated: {} above {} (O_DIRECT)\n",
            flags.fast_dir().display(),
            disk.display()
        ),
        None => format!(
            "- **Emulated** (decision 0016), all at a scale of {}; bytes lie in {}:\n{devices}",
            flags.device_scale,
            flags.fast_dir().display()
        ),
    };
    let data = plan::data_bytes(flags);
    format!(
        "Ways to use devices, in alternating runs of one program (archipelago {version}), {runs} of each; \
         medians. Ratios, not figures, are compared with the paper's: its data are 50 to 400 GiB.\n\n\
         {media}\
         - **Machine**: {cores} cores; the table took {minutes} minutes.\n\
         - **Data**: {records} records of 16 + 1,024 B ({mib:.0} MiB; Meta and Nutanix-like as many bytes), no \
         compression; the fast device holds {fast:.0} MiB.\n\
         - **Store**: two memtables of 1 MiB, base level 2 MiB, tables 512 KiB, block cache 8 MiB, {jobs} background \
         jobs, {clients} clients; {seconds} s of warm-up and as much measured \
         (YCSB B to E: {twice} s of warm-up, {read_seconds} s measured).\n",
        version = env!("CARGO_PKG_VERSION"),
        runs = flags.runs(),
        minutes = took_s.div_ceil(60),
        records = flags.records(),
        mib = data as f64 / 1_048_576.0,
        fast = data as f64 / 4.0 / 1_048_576.0,
        jobs = flags.jobs,
        clients = flags.clients,
        seconds = flags.seconds(),
        read_seconds = flags.read_seconds(),
        twice = 2 * flags.read_seconds(),
    )
}

#[cfg(test)]
mod tests;
