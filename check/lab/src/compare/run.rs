//! One run of one side, and the measurements of its process, which are the same for both sides.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use super::parse::{self, Latency, ResultLine};
use archipelago_bench::harness::process::{self, Io};
use archipelago_bench::harness::store::{
    Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};

/// A side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Side {
    Archipelago,
    RocksDb,
}

impl Side {
    /// Name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Archipelago => "Archipelago",
            Self::RocksDb => "RocksDB (db_bench)",
        }
    }

    /// Name of its directories.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Archipelago => "archipelago",
            Self::RocksDb => "rocksdb",
        }
    }
}

/// Program to start, with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
}

/// Sizes of the keys and values that a side writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntrySize {
    pub(crate) key_bytes: u64,
    pub(crate) value_bytes: u64,
}

/// Observer of a run.
#[derive(Clone, Copy)]
pub(crate) struct Onlooker<'a> {
    /// Function that gets every result line.
    pub(crate) said: &'a (dyn Fn(&str) + Sync),
    /// Switch that ends the process.
    pub(crate) stop: &'a AtomicBool,
}

/// Figures of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SideRun {
    pub(crate) side: Side,
    pub(crate) lines: Vec<ResultLine>,
    /// Most resident memory of the process.
    pub(crate) peak_rss_bytes: Option<u64>,
    /// Bytes that the process caused to be written to storage.
    pub(crate) bytes_written: Option<u64>,
    /// Bytes of keys and values that the benchmarks wrote.
    pub(crate) user_bytes: Option<u64>,
    /// Bytes written to storage per byte of keys and values.
    pub(crate) write_amplification: Option<f64>,
    /// Bytes of the database's tables when nothing was left to compact.
    pub(crate) settled_bytes: u64,
    /// Seconds from the end of the last write benchmark to the end of the last flush or compaction.
    pub(crate) settle_seconds: Option<f64>,
    /// The process's calls of `read` and similar functions, and the bytes that they took from
    /// storage.
    pub(crate) read_calls: Option<u64>,
    pub(crate) bytes_read: Option<u64>,
    /// Whether the program says that its assertions are on, which slow it down.
    pub(crate) asserts: bool,
}

/// Interval between two samples of the memory. Growth after the last sample is not seen.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Runs `program`, whose database is in `dir`.
pub(crate) fn run(
    side: Side,
    program: &Program,
    dir: &Path,
    size: EntrySize,
    onlooker: Onlooker<'_>,
) -> Result<SideRun> {
    let mut command = Command::new(&program.path);
    command.args(&program.args).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| Error::io("run", &program.path, error))?;
    let seen = watch(child, program, onlooker)?;
    let EntrySize { key_bytes, value_bytes } = size;
    let lines: Vec<ResultLine> = seen.lines.iter().map(|(_, line)| line.clone()).collect();
    let user_bytes = lines.iter().map(|line| parse::user_bytes(line, key_bytes, value_bytes)).sum();
    let writes = |line: &ResultLine| archipelago_bench::writes(&line.name) == Some(true);
    let write_ended_us = seen.lines.iter().rev().find(|(_, line)| writes(line)).map(|(us, _)| *us);
    let settle_seconds = match side {
        Side::Archipelago => seen.settled,
        Side::RocksDb => write_ended_us.map(|ended_us| {
            let last_us = rocksdb_log(dir).and_then(|log| parse::last_job_us(&log));
            last_us.unwrap_or(0).saturating_sub(ended_us) as f64 / 1e6
        }),
    };
    Ok(SideRun {
        side,
        lines,
        peak_rss_bytes: seen.peak_rss_bytes,
        bytes_written: seen.io.bytes_written,
        user_bytes,
        write_amplification: ratio(seen.io.bytes_written, user_bytes),
        settled_bytes: table_bytes(dir)?,
        settle_seconds,
        read_calls: seen.io.read_calls,
        bytes_read: seen.io.bytes_read,
        asserts: seen.asserts,
    })
}

fn ratio(bytes_written: Option<u64>, user_bytes: Option<u64>) -> Option<f64> {
    let (written, user) = (bytes_written?, user_bytes?);
    (user > 0).then(|| written as f64 / user as f64)
}

/// Output and usage of a process.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Result lines, each with the Unix time in microseconds at which it arrived.
    pub(super) lines: Vec<(u64, ResultLine)>,
    settled: Option<f64>,
    peak_rss_bytes: Option<u64>,
    io: Io,
    pub(super) asserts: bool,
}

/// Reads the output of `child` until it ends, and samples its memory until then.
fn watch(mut child: Child, program: &Program, onlooker: Onlooker<'_>) -> Result<Seen> {
    let clock = SystemClock::new();
    let pid = child.id().to_string();
    let unreadable = |error| Error::io("read the output of", &program.path, error);
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let (ended, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    let (seen, complaint) = std::thread::scope(|scope| {
        let complaint = scope.spawn(|| tail_of(stderr));
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                peak.fetch_max(process::peak_rss_bytes(&pid).unwrap_or(0), Ordering::Relaxed);
                if onlooker.stop.load(Ordering::Acquire) {
                    // The wait below reads the status of the process.
                    let _ = child.kill();
                }
                clock.sleep(LOOK_EVERY);
            }
        });
        let seen =
            stdout.map_or_else(|| Ok(Seen::default()), |out| lines_of(out, &clock, onlooker));
        ended.store(true, Ordering::Release);
        (seen, complaint.join().unwrap_or_default())
    });
    // The process has closed its output, so it has ended or is about to end. Its counters exist
    // until the caller waits for it.
    let io = settled_counters(&pid, &clock);
    let status = child.wait().map_err(unreadable)?;
    if !status.success() {
        return Err(Error::invalid(format!(
            "{} {} failed ({status}): {complaint}",
            program.path.display(),
            program.args.join(" "),
        )));
    }
    let mut seen = seen.map_err(unreadable)?;
    seen.io = io.unwrap_or_default();
    seen.peak_rss_bytes = Some(peak.into_inner()).filter(|&bytes| bytes > 0);
    Ok(seen)
}

/// Reads the counters after they stopped growing, which is after the last read and write.
fn settled_counters(pid: &str, clock: &SystemClock) -> Option<Io> {
    let mut last = process::io(pid);
    for _ in 0..100 {
        clock.sleep(LOOK_EVERY);
        let now = process::io(pid);
        if now == last || now.is_none() {
            break;
        }
        last = now;
    }
    last
}

pub(super) fn lines_of(
    out: impl Read,
    clock: &SystemClock,
    onlooker: Onlooker<'_>,
) -> std::io::Result<Seen> {
    let mut seen = Seen::default();
    for line in BufReader::new(out).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some(found) = parse::result_line(&line) {
            (onlooker.said)(&line);
            seen.lines.push((clock.unix_ms() * 1000, found));
        } else if let Some(latency) = Latency::heading(&line) {
            seen.lines.last_mut().into_iter().for_each(|(_, of)| of.latency.push(latency.clone()));
        } else if line.starts_with("WARNING: Assertions are enabled") {
            seen.asserts = true;
        } else if let Some(seconds) = parse::settled_line(&line) {
            seen.settled = Some(seconds);
        } else if let Some(latency) =
            seen.lines.last_mut().and_then(|(_, of)| of.latency.last_mut())
        {
            latency.take(&line);
        }
    }
    Ok(seen)
}

/// The end of the error output, to which db_bench also writes its progress.
fn tail_of(stderr: Option<impl Read>) -> String {
    const KEPT: usize = 2000;
    let mut kept: Vec<u8> = Vec::new();
    let Some(mut stderr) = stderr else { return String::new() };
    let mut chunk = [0; 4096];
    while let Ok(len @ 1..) = stderr.read(&mut chunk) {
        kept.extend_from_slice(&chunk[..len]);
        if kept.len() > 2 * KEPT {
            kept.drain(..kept.len() - KEPT);
        }
    }
    let text = String::from_utf8_lossy(&kept);
    text.rsplit('\r').next().unwrap_or_default().trim().to_owned()
}

fn rocksdb_log(dir: &Path) -> Option<String> {
    let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    let bytes = LocalFs::new().read(&dir.join("LOG"), context).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Bytes of the tables and of the files of separated values: `.sst` on both sides, `.vsst` here and
/// `.blob` in RocksDB.
fn table_bytes(dir: &Path) -> Result<u64> {
    let fs = LocalFs::new();
    let entries = fs.list(dir)?;
    let tables = entries.iter().map(|entry| dir.join(&entry.name)).filter(|path| {
        ["sst", "vsst", "blob"].map(OsStr::new).map(Some).contains(&path.extension())
    });
    tables.map(|path| fs.len(&path)).sum()
}
