//! `archipelago-lab bucketlsm`: the comparisons of BucketLSM's evaluation between modes of this
//! program, as ratios next to the paper's.
//!
//! `flags` is the command line, `plan` chooses the runs, `run` starts a process and reads its
//! files, `table` makes the report, and `plots` draws the charts.
//!
//! Invariants:
//! 1. Modes alternate within a round, and a round has one seed for all modes. Each run has a
//!    process and a fresh directory of its own, which is removed after the run.
//! 2. The device is emulated and fixed beforehand. Its description and scale are in the report.
//! 3. The runs and their flags are a pure function of the command line.
//!
//! Failure: after an error, the reports are written with the runs that succeeded, and the command
//! returns the error.

mod flags;
mod plan;
mod plots;
mod run;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use archipelago_base::random::entropy_seed;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::claim::median;
use crate::page;
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::progress::{runs_bar, say_above};
use archipelago_bench::harness::store::{DeviceSpec, Error, FileSystem, LocalFs, Result};
use archipelago_bench::harness::tiers::read_device;
use flags::ReproduceFlags;
use plan::{Case, Group, OFFERED_SHARE, Setting, Workload};
use run::{Run, Stage};
use table::{Row, Runs};

/// The device unless another one is named.
const NETWORK_VOLUME: &str = include_str!("../../../../docs/devices/network-volume.toml");
/// Title of the report and of the page.
const TITLE: &str = "Buckets and the classic L0: BucketLSM's comparisons";
const MIB: f64 = 1_048_576.0;

/// The file report.json.
#[derive(Debug, Serialize)]
struct Results<'a> {
    version: &'static str,
    settings: &'a str,
    device: &'a DeviceSpec,
    rows: Vec<Row>,
    runs: &'a Runs,
}

/// Runs the command with `args`, the words after `bucketlsm`.
pub(crate) fn reproduce(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let flags = ReproduceFlags::read(args)?;
    Ok(bucketlsm(&flags, args))
}

fn bucketlsm(flags: &ReproduceFlags, args: &[OsString]) -> Result<()> {
    let fs = LocalFs::for_reports();
    fs.create_dir_all(&flags.out)?;
    let (device_file, mut device) = device(flags)?;
    device.scale = flags.device_scale;
    device.validate()?;
    let base = flags.db.clone().unwrap_or_else(|| {
        let unique = entropy_seed() as u32;
        std::env::temp_dir().join(format!("archipelago-reproduce-{unique:08x}"))
    });
    fs.create_dir_all(&base)?;
    let mut runner = Runner::new(flags, &base, &device_file)?;
    let result = runner.run_all(&plan::groups(flags));
    // A directory that is not empty may be the user's, so it stays.
    if fs.list(&base).is_ok_and(|entries| entries.is_empty()) {
        fs.remove_dir_all(&base)?;
    }
    if runner.runs.0.is_empty() {
        return result;
    }
    let settings = settings(flags, &device);
    let sections = runner.runs.sections();
    let data = Results {
        version: env!("CARGO_PKG_VERSION"),
        settings: &settings,
        device: &device,
        rows: runner.runs.rows(),
        runs: &runner.runs,
    };
    let (settings, plots) = (settings.as_str(), plots::all(&runner.runs, &flags.jobs));
    let appendix = Some(runner.runs.figures());
    page::Report { title: TITLE, command: "bucketlsm", args, settings, sections, appendix, plots }
        .publish(&flags.out, flags.page.as_deref(), &data)?;
    result
}

/// The file of the device, which the runs read, and its description. The default device's file is
/// written next to the reports.
fn device(flags: &ReproduceFlags) -> Result<(PathBuf, DeviceSpec)> {
    if let Some(path) = &flags.device {
        return Ok((path.clone(), read_device(path)?));
    }
    let file = flags.out.join("device.toml");
    page::write(&file, NETWORK_VOLUME)?;
    let device = read_device(&file)?;
    Ok((file, device))
}

/// Makes the runs and collects their figures.
struct Runner<'a> {
    flags: &'a ReproduceFlags,
    base: &'a Path,
    program: PathBuf,
    device: &'a Path,
    bar: ProgressBar,
    runs: Runs,
}

impl<'a> Runner<'a> {
    fn new(flags: &'a ReproduceFlags, base: &'a Path, device: &'a Path) -> Result<Self> {
        let (program, bar) =
            (crate::program::named_or_beside(flags.archipelago.as_ref())?, runs_bar());
        Ok(Self { flags, base, program, device, bar, runs: Runs::default() })
    }

    fn run_all(&mut self, groups: &[Group]) -> Result<()> {
        let rounds = self.flags.runs();
        let each: u64 = groups.iter().map(|group| group.modes.len() as u64).sum();
        self.bar.set_length(each * rounds);
        for group in groups {
            let offered = self.offered(group)?;
            for round in 0..rounds {
                for &mode in &group.modes {
                    self.run_one(group.case(mode), round, offered)?;
                }
            }
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    /// Operations a second that the runs of `group` are offered: the value of `--offered_load`, or
    /// a share of the rate that the workload's mode reached.
    fn offered(&self, group: &Group) -> Result<Option<u64>> {
        let sets_load = group.workload.sets_load().filter(|_| group.setting == Setting::Offered);
        let Some(mode) = sets_load else { return Ok(None) };
        if let Some(ops_per_s) = self.flags.offered_load {
            return Ok(Some(ops_per_s));
        }
        let case = Case { workload: group.workload, setting: Setting::Device, mode };
        let rates = self.runs.values(case, |figures| Some(figures.ops_per_s));
        let rate = median(&rates).ok_or_else(|| {
            Error::invalid(format!("no run of {} at full speed", group.workload.name()))
        })?;
        Ok(Some((rate * OFFERED_SHARE).max(1.0) as u64))
    }

    fn run_one(&mut self, case: Case, round: u64, offered: Option<u64>) -> Result<()> {
        let Case { workload, setting, mode } = case;
        let what = format!("{} ({setting:?}): {}", workload.name(), mode.name());
        self.bar.set_message(what.clone());
        let device = (setting != Setting::Plain).then(|| self.device.to_owned());
        let place = self.runs.0.len() + 1;
        let stage = Stage {
            program: self.program.clone(),
            dir: self.base.join(format!("run-{place}")),
            device,
            device_scale: self.flags.device_scale,
        };
        let words = plan::words(self.flags, case, round, offered);
        let measured = plan::measured(self.flags, workload, setting);
        let (figures, series) = stage.run(&words, workload, &measured)?;
        let done = format!(
            "run {place} of {}: {what}: {:.0} ops/s, stalled {:.1} s of {:.1} s",
            self.bar.length().unwrap_or(0),
            figures.ops_per_s,
            figures.stall_s.total(),
            figures.seconds,
        );
        say_above(&self.bar, &done);
        let offered_ops_per_s = offered;
        self.runs.0.push(Run {
            workload,
            setting,
            mode,
            round,
            offered_ops_per_s,
            figures,
            series,
        });
        self.bar.inc(1);
        Ok(())
    }
}

/// Settings of the runs, for the head of the report.
fn settings(flags: &ReproduceFlags, device: &DeviceSpec) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let entry = plan::entry_bytes(flags);
    let written = flags.num() * entry;
    let memtable = flags.memtable_bytes();
    let load = flags.offered_load.map_or_else(
        || format!("{OFFERED_SHARE} of what buckets (YCSB-SCAN: classic) reached at full speed"),
        |ops| format!("{ops} operations a second"),
    );
    let ycsb = plan::load(flags, Workload::YcsbGet);
    let scans = plan::load(flags, Workload::YcsbScan);
    let mixed = plan::load(flags, Workload::MixGraph2);
    let per_s = |bytes: u64| match bytes {
        0 => "unlimited".to_owned(),
        bytes => format!("{:.0} MB/s", bytes as f64 * device.scale / 1e6),
    };
    let latency = |us: u64| us as f64 / 1000.0 / device.scale;
    format!(
        "Modes of one program (archipelago {version}), in alternating runs, {runs} of each; medians. \
         Ratios, not figures, are compared with the paper's: its machine has 40 cores and an NVMe \
         drive, and its memtables are {times:.0} times as large.\n\n\
         - **Emulated**: the device \"{name}\" at a scale of {scale}: {total} in all, {read} of reads, {write} \
         of writes, {stream} per stream, latency {read_ms:.2} ms of a read and {write_ms:.2} ms of \
         a write (docs/guide/emulated-devices.md says what is emulated and what is not). Databases \
         of YCSB are loaded before the emulation starts.\n\
         - **Machine**: {cores} cores, {jobs} background jobs.\n\
         - **Data**: keys of 16 B, values of {value} B, no compression; {num} writes of {written:.0} MiB, \
         {memtables:.0} memtables (the paper: 100 GB, 400 memtables). MixGraph2: {mixed_ops} operations. \
         YCSB: {ycsb_keys} records loaded, {get_ops} operations of YCSB-GET and {scan_ops} of \
         YCSB-SCAN by {threads} threads.\n\
         - **Store**: two memtables of {memtable_mib:.1} MiB (the paper: two of 256 MB), base level {memtable_mib:.1} MiB, \
         tables {table_mib:.1} MiB, L0 triggers 4 / 20 / 36 files in the fullest bucket (classic: in all), \
         block cache {cache:.0} MiB, 10 bits of filter per key; writes are logged and not synced.\n\
         - **Fixed load**: {load}; the writer waits for its turn and makes up for at most 0.1 s.\n",
        version = env!("CARGO_PKG_VERSION"),
        runs = flags.runs(),
        times = 256.0 * MIB / memtable as f64,
        name = device.name,
        scale = device.scale,
        total = per_s(device.total_bytes_per_s),
        read = per_s(device.read_bytes_per_s),
        write = per_s(device.write_bytes_per_s),
        stream = per_s(device.stream_bytes_per_s),
        read_ms = latency(device.read_latency_us),
        write_ms = latency(device.write_latency_us),
        jobs = flags.background_jobs,
        value = flags.value_size,
        num = flags.num(),
        written = written as f64 / MIB,
        memtables = written as f64 / memtable as f64,
        mixed_ops = mixed.ops_each * mixed.threads,
        ycsb_keys = ycsb.keys,
        get_ops = ycsb.ops_each * ycsb.threads,
        scan_ops = scans.ops_each * scans.threads,
        threads = ycsb.threads,
        memtable_mib = memtable as f64 / MIB,
        table_mib = memtable as f64 / MIB / 4.0,
        cache = flags.cache_size as f64 / MIB,
    )
}

#[cfg(test)]
mod tests;
