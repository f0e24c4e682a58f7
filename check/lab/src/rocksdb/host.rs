//! What a reader of the table must know about where and when it was made.

use std::path::Path;
use std::process::{Command, Stdio};

use archipelago_base::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use super::flags::Settings;
use crate::compare::db_bench_version;
use archipelago_bench::harness::store::Result;

/// Machine, programs, time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Host {
    /// As `--version` says.
    pub(super) archipelago: String,
    pub(super) db_bench: String,
    pub(super) cores: u64,
    pub(super) processor: String,
    pub(super) memory_bytes: u64,
    pub(super) kernel: String,
    /// Of the databases.
    pub(super) file_system: String,
    pub(super) started_unix_ms: u64,
    /// Of the last 1, 5 and 15 minutes at the start.
    pub(super) load_average: String,
}

impl Host {
    /// This machine, with the programs of `settings`.
    pub(super) fn look(settings: &Settings) -> Result<Self> {
        let memory = line_of("/proc/meminfo", "MemTotal:");
        let kib: u64 = memory.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let processor = line_of("/proc/cpuinfo", "model name");
        Ok(Self {
            archipelago: match &settings.archipelago {
                Some(program) => version_of(program),
                None => concat!("archipelago ", env!("CARGO_PKG_VERSION")).to_owned(),
            },
            db_bench: db_bench_version(&settings.db_bench)?,
            cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u64),
            processor: processor.trim_start_matches([' ', '\t', ':']).to_owned(),
            memory_bytes: kib * 1024,
            kernel: read("/proc/sys/kernel/osrelease"),
            file_system: file_system(&read("/proc/self/mountinfo"), &settings.db),
            started_unix_ms: SystemClock::new().unix_ms(),
            load_average: load_average(),
        })
    }

    /// Lines of a Markdown list.
    pub(super) fn text(&self, load_at_end: &str) -> String {
        format!(
            "- {} against {}\n- {} cores ({}), {:.1} GiB of memory, Linux {}, {}\n- {}; load average \
             {} at the start, {load_at_end} at the end\n",
            self.archipelago,
            self.db_bench,
            self.cores,
            self.processor,
            self.memory_bytes as f64 / 1_073_741_824.0,
            self.kernel,
            self.file_system,
            date(self.started_unix_ms),
            self.load_average,
        )
    }
}

/// The kernel's three figures.
pub(super) fn load_average() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// A file of the kernel's; empty where there is none.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// What follows `name` in the first line of `path` that begins with it.
fn line_of(path: &str, name: &str) -> String {
    let text = read(path);
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or_default().trim().to_owned()
}

fn version_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    said.ok().filter(|said| !said.is_empty()).unwrap_or_else(|| program.display().to_string())
}

/// Type and device of the file system that holds `dir`, by `/proc/self/mountinfo`.
fn file_system(mounts: &str, dir: &Path) -> String {
    let dir = std::path::absolute(dir).unwrap_or_default();
    let mut best = (0, String::new());
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let point = left.split(' ').nth(4).unwrap_or_default();
        let mut words = right.split(' ');
        let (kind, device) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        // A later mount on the same point covers the earlier one.
        if dir.starts_with(point) && point.len() >= best.0 {
            best = (point.len(), format!("{kind} on {device}"));
        }
    }
    best.1
}

/// "2026-11-21 15:04 UTC".
pub(super) fn date(unix_ms: u64) -> String {
    let minutes = unix_ms / 60_000;
    let (days, minute) = (minutes / 1440, minutes % 1440);
    let (mut year, mut left) = (1970, days);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let days_of_year = |year| if leap(year) { 366 } else { 365 };
    while left >= days_of_year(year) {
        left -= days_of_year(year);
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", left + 1, minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_599_000), "2024-12-31 23:59 UTC");
    }

    #[test]
    fn the_innermost_mount_holds_the_directory() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      40 22 0:35 / /data rw - xfs /dev/vdb rw\n\
                      41 22 0:36 / /dat rw - tmpfs tmpfs rw\n";
        assert_eq!(file_system(mounts, Path::new("/data/x")), "xfs on /dev/vdb");
        assert_eq!(file_system(mounts, Path::new("/var")), "ext4 on /dev/vda");
        assert_eq!(file_system("", Path::new("/var")), "");
    }
}
