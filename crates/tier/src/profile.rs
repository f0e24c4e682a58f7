//! Profiles of devices: throughput by number of threads, from which the placement scheme follows
//! (Keigo §3.1, §4.2).
//!
//! [`probe`] writes and reads through the device's own file system, as the store does. Each thread
//! has a file of its own, and goes through it from front to back in blocks. The number of threads
//! is doubled until more threads do not help ([`crate::scheme::goes_on`]).
//!
//! Failure: the probe removes all files that it wrote, also after an error.
//! Cost: about `point` times the number of points in each direction.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::spawn::{Joiner, Spawn};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::device::Direction;
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, GroupAccess, IoContext, IoPurpose, OpenOptions,
};
use parking_lot::Mutex;

use crate::activity::Totals;
use crate::fs::TieredFs;
use crate::scheme::{DeviceProfile, LEVELS, ObservedLoad, Point, goes_on, peak};
use crate::settings::DeviceSettings;

/// The way in which [`probe`] measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Length of one write or read in bytes. Default 4 KiB, as in the paper.
    pub block_bytes: usize,
    /// Length of each thread's file in bytes. Default 16 MiB.
    pub file_bytes: u64,
    /// Time for which each point is measured. Default 500 ms.
    pub point: Duration,
    /// Largest number of threads. Default 64.
    pub threads_max: u32,
    /// Whether I/O bypasses the page cache. Default true.
    pub direct: bool,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            block_bytes: 4096,
            file_bytes: 16 << 20,
            point: Duration::from_millis(500),
            threads_max: 64,
            direct: true,
        }
    }
}

/// The device that [`probe`] measures, and the tools for it.
#[derive(Clone, Debug)]
pub struct Prober {
    /// File system of the device.
    pub fs: Arc<dyn FileSystem>,
    /// Directory on the device, which the probe creates and removes.
    pub dir: PathBuf,
    /// Clock that measures the time.
    pub clock: Arc<dyn Clock>,
    /// Starts the threads.
    pub spawn: Arc<dyn Spawn>,
}

/// Measures a device named `name`. This takes about `point` times the number of points in each
/// direction. Errors: those of the device.
pub fn probe(prober: &Prober, name: &str, options: &ProbeOptions) -> Result<DeviceProfile> {
    prober.fs.create_dir_all(&prober.dir)?;
    let measured = probe_directions(prober, options);
    let removed = prober.fs.remove_dir_all(&prober.dir);
    let (writes, reads) = measured?;
    removed?;
    Ok(DeviceProfile {
        name: name.to_owned(),
        writers_max: peak(&writes),
        readers_max: peak(&reads),
        writes,
        reads,
    })
}

fn probe_directions(prober: &Prober, options: &ProbeOptions) -> Result<(Vec<Point>, Vec<Point>)> {
    let mut curves = [Vec::new(), Vec::new()];
    for (direction, points) in [Direction::Write, Direction::Read].into_iter().zip(&mut curves) {
        let mut threads = 1;
        while threads <= options.threads_max && goes_on(points) {
            let bytes_per_s = measure(prober, options, direction, threads)?;
            points.push(Point { threads, bytes_per_s });
            threads *= 2;
        }
    }
    let [writes, reads] = curves;
    Ok((writes, reads))
}

const CONTEXT: IoContext = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);

/// State that the threads of one point share.
struct Round {
    prober: Prober,
    options: ProbeOptions,
    stop: AtomicBool,
    bytes: AtomicU64,
    failed: Mutex<Option<Error>>,
}

/// Measures one point: bytes per second of `threads` threads together.
fn measure(
    prober: &Prober,
    options: &ProbeOptions,
    direction: Direction,
    threads: u32,
) -> Result<f64> {
    let path = |thread: u32| prober.dir.join(format!("probe-{thread}.sst"));
    if direction == Direction::Read {
        for thread in 0..threads {
            if !prober.fs.exists(&path(thread))?
                || prober.fs.len(&path(thread))? < options.file_bytes
            {
                write_file(prober, options, &path(thread), None)?;
            }
        }
    }
    let round = Arc::new(Round {
        prober: prober.clone(),
        options: *options,
        stop: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        failed: Mutex::new(None),
    });
    let begun_ns = prober.clock.now_ns();
    let mut joiners = Vec::new();
    for thread in 0..threads {
        let (round, path) = (Arc::clone(&round), path(thread));
        let body = Box::new(move || {
            let done = match direction {
                Direction::Write => write_on(&round, &path),
                Direction::Read => read_on(&round, &path),
            };
            if let Err(error) = done {
                *round.failed.lock() = Some(error);
            }
        });
        joiners.push(prober.spawn.spawn(&format!("probe-{thread}"), body)?);
    }
    prober.clock.sleep(options.point);
    round.stop.store(true, Ordering::Release);
    joiners.into_iter().try_for_each(Joiner::join)?;
    if let Some(error) = round.failed.lock().take() {
        return Err(error);
    }
    let passed_s = (prober.clock.now_ns() - begun_ns).max(1) as f64 / 1e9;
    Ok(round.bytes.load(Ordering::Acquire) as f64 / passed_s)
}

fn write_on(round: &Round, path: &Path) -> Result<()> {
    // A thread writes at least one block, however late it was started.
    loop {
        write_file(&round.prober, &round.options, path, Some(round))?;
        if round.stop.load(Ordering::Acquire) {
            return Ok(());
        }
    }
}

fn write_file(
    prober: &Prober,
    options: &ProbeOptions,
    path: &Path,
    round: Option<&Round>,
) -> Result<()> {
    let block = vec![0xa5; options.block_bytes];
    let create = CreateOptions {
        direct: options.direct,
        size_hint_bytes: options.file_bytes,
        ..CreateOptions::default()
    };
    let mut file = prober.fs.create(path, CONTEXT, create)?;
    while file.len() < options.file_bytes {
        file.append(&block)?;
        if let Some(round) = round {
            round.bytes.fetch_add(block.len() as u64, Ordering::Relaxed);
            if round.stop.load(Ordering::Acquire) {
                break;
            }
        }
    }
    file.sync()
}

fn read_on(round: &Round, path: &Path) -> Result<()> {
    let options = OpenOptions { direct: round.options.direct };
    let file = round.prober.fs.open(path, CONTEXT, options)?;
    let mut block = vec![0; round.options.block_bytes];
    let last = file.len().saturating_sub(block.len() as u64);
    let mut at = 0;
    loop {
        file.read_exact_at(at, &mut block, CONTEXT)?;
        round.bytes.fetch_add(block.len() as u64, Ordering::Relaxed);
        at += block.len() as u64;
        if at > last {
            at = 0;
        }
        if round.stop.load(Ordering::Acquire) {
            return Ok(());
        }
    }
}

/// Whether the program `fio` is installed.
#[must_use]
pub fn has_fio() -> bool {
    let run = Command::new("fio").arg("--version").stdin(Stdio::null()).output();
    run.is_ok_and(|output| output.status.success())
}

/// Measures a device as [`probe`] does, with the program `fio`: sequential and synchronous I/O, and
/// a file for each thread. Errors: those of `fio`.
pub fn probe_with_fio(dir: &Path, name: &str, options: &ProbeOptions) -> Result<DeviceProfile> {
    let fs = archipelago_env::local::LocalFs::new();
    fs.create_dir_all(dir)?;
    let mut curves = [Vec::new(), Vec::new()];
    let mut measured = Ok(());
    'curves: for (direction, points) in ["write", "read"].into_iter().zip(&mut curves) {
        let mut threads = 1;
        while threads <= options.threads_max && goes_on(points) {
            match run_fio(dir, direction, threads, options) {
                Ok(bytes_per_s) => points.push(Point { threads, bytes_per_s }),
                Err(error) => {
                    measured = Err(error);
                    break 'curves;
                }
            }
            threads *= 2;
        }
    }
    fs.remove_dir_all(dir)?;
    measured?;
    let [writes, reads] = curves;
    let (writers_max, readers_max) = (peak(&writes), peak(&reads));
    Ok(DeviceProfile { name: name.to_owned(), writers_max, readers_max, writes, reads })
}

fn run_fio(dir: &Path, direction: &str, threads: u32, options: &ProbeOptions) -> Result<f64> {
    let failed = |what: String| Error::new(ErrorKind::Io, format!("fio: {what}"));
    let output = Command::new("fio")
        .arg("--name=profile")
        .arg(format!("--directory={}", dir.display()))
        .arg(format!("--rw={direction}"))
        .arg(format!("--bs={}", options.block_bytes))
        .arg(format!("--size={}", options.file_bytes))
        .arg(format!("--numjobs={threads}"))
        .arg(format!("--runtime={}ms", options.point.as_millis().max(1)))
        .arg(format!("--direct={}", u8::from(options.direct)))
        .args(["--ioengine=sync", "--time_based", "--group_reporting", "--output-format=json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::with_source(ErrorKind::Io, "fio could not be run", source))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    rate_of(&output.stdout, direction)
        .ok_or_else(|| failed("its output has no rate in it".to_owned()))
}

/// Bytes per second, from the output of `fio`.
fn rate_of(output: &[u8], direction: &str) -> Option<f64> {
    // Warnings may precede the document.
    let start = output.iter().position(|&byte| byte == b'{')?;
    let document: serde_json::Value = serde_json::from_slice(&output[start..]).ok()?;
    document.get("jobs")?.get(0)?.get(direction)?.get("bw_bytes")?.as_f64()
}

/// The file system through which the tiers use a device, for measurements. Errors: those of reading
/// the description of an emulated device.
pub fn device_file_system(
    settings: &DeviceSettings,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn FileSystem>> {
    crate::device::file_system(settings, clock, GroupAccess::None)
}

/// Assumptions in place of a write-heavy run.
#[derive(Clone, Copy, Debug)]
pub struct Assumed;

impl Assumed {
    /// One writer each for the log, for flushes and for every level, as in a store with a few
    /// background jobs.
    #[must_use]
    pub fn writers() -> ObservedLoad {
        ObservedLoad { log_writers: 1.0, level_writers: [1.0; LEVELS], ..ObservedLoad::default() }
    }
}

/// The moment at which an observation of writers began.
#[derive(Clone, Copy, Debug)]
pub struct ObservedFrom(Totals);

impl TieredFs {
    /// Begins an observation of writers.
    #[must_use]
    pub fn observe_begin(&self) -> ObservedFrom {
        ObservedFrom(self.shared.activity.totals(self.shared.now_ns()))
    }

    /// Ends an observation of writers: the mean number of writers of the log and of each level (by
    /// depth) since it began, and the present bytes of each level.
    #[must_use]
    pub fn observe_end(&self, from: &ObservedFrom) -> ObservedLoad {
        let totals = self.shared.activity.totals(self.shared.now_ns());
        let (log_writers, level_writers) = totals.since(&from.0);
        let base_levels = self.shared.base_levels.lock().clone();
        let names = self.shared.names.lock();
        let tables = names.entries.values().filter_map(|entry| {
            Some((entry.family(), entry.level()?, entry.inside.lock().main.len()))
        });
        let level_bytes = base_levels.bytes_by_depth(tables);
        ObservedLoad { log_writers, level_writers, level_bytes, read_share: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::clock::SystemClock;
    use archipelago_base::spawn::SystemSpawn;
    use archipelago_env::mem::MemFs;

    use super::*;

    #[test]
    fn probe_measures_each_thread_count_and_leaves_nothing() {
        let disk = MemFs::new();
        let prober = Prober {
            fs: Arc::new(disk.clone()),
            dir: "/device/profile".into(),
            clock: SystemClock::shared(),
            spawn: Arc::new(SystemSpawn),
        };
        let options = ProbeOptions {
            file_bytes: 64 << 10,
            point: Duration::from_millis(5),
            threads_max: 2,
            ..ProbeOptions::default()
        };
        let profile = probe(&prober, "memory", &options).unwrap();
        assert_eq!(profile.name, "memory");
        for points in [&profile.writes, &profile.reads] {
            let threads: Vec<u32> = points.iter().map(|point| point.threads).collect();
            assert_eq!(threads, [1, 2]);
            assert!(points.iter().all(|point| point.bytes_per_s > 0.0));
        }
        assert!(disk.list(Path::new("/device")).unwrap().is_empty());
    }

    #[test]
    fn rate_is_parsed_from_fio_output() {
        let said = br#"fio: a warning
        {"jobs": [{"read": {"bw_bytes": 0}, "write": {"bw_bytes": 123456789}}]}"#;
        assert_eq!(rate_of(said, "write"), Some(123_456_789.0));
        assert_eq!(rate_of(b"nothing", "write"), None);
    }
}
