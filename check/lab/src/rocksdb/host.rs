//! The machine, the programs and the time of a comparison.

use std::path::Path;
use std::process::{Command, Stdio};

use archipelago_base::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use super::flags::Settings;
use crate::compare::db_bench_version;
use crate::page::{Machine, date};
use crate::program::named_or_beside;
use archipelago_bench::harness::store::Result;

/// Machine, programs and time of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Host {
    /// Text of `--version`.
    pub(super) archipelago: String,
    pub(super) db_bench: String,
    pub(super) cores: u64,
    pub(super) processor: String,
    pub(super) memory_bytes: u64,
    pub(super) kernel: String,
    /// File system of the databases.
    pub(super) file_system: String,
    pub(super) started_unix_ms: u64,
    /// Load averages of 1, 5 and 15 minutes at the start.
    pub(super) load_average: String,
}

impl Host {
    /// This machine, with the programs of `settings`.
    pub(super) fn look(settings: &Settings) -> Result<Self> {
        let machine = Machine::look();
        Ok(Self {
            archipelago: version_of(&named_or_beside(settings.archipelago.as_ref())?),
            db_bench: db_bench_version(&settings.db_bench)?,
            cores: machine.cores,
            processor: machine.processor,
            memory_bytes: machine.memory_bytes,
            kernel: machine.kernel,
            file_system: file_system(&read("/proc/self/mountinfo"), &settings.db),
            started_unix_ms: SystemClock::new().unix_ms(),
            load_average: load_average(),
        })
    }

    /// Lines of a Markdown list.
    pub(super) fn text(&self, load_at_end: &str) -> String {
        let machine = Machine {
            cores: self.cores,
            processor: self.processor.clone(),
            memory_bytes: self.memory_bytes,
            kernel: self.kernel.clone(),
        };
        format!(
            "- {} against {}\n- {}, {}\n- {}; load average {} at the start, {load_at_end} at the \
             end\n",
            self.archipelago,
            self.db_bench,
            machine.text(),
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

/// Text of a file of the kernel, or nothing if it does not exist.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_mount_holds_the_directory() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      40 22 0:35 / /data rw - xfs /dev/vdb rw\n\
                      41 22 0:36 / /dat rw - tmpfs tmpfs rw\n";
        assert_eq!(file_system(mounts, Path::new("/data/x")), "xfs on /dev/vdb");
        assert_eq!(file_system(mounts, Path::new("/var")), "ext4 on /dev/vda");
        assert_eq!(file_system("", Path::new("/var")), "");
    }
}
