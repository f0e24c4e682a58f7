//! The head of a benchmark page: commit, command, machine and date.
//!
//! Failure: a fact that this machine does not report is shown as unknown, because a missing fact
//! must not lose the measurement.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use archipelago_base::clock::{Clock, SystemClock};

/// The machine that measures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    pub(crate) cores: u64,
    pub(crate) processor: String,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
}

impl Machine {
    /// This machine, by the files of `/proc`.
    pub(crate) fn look() -> Self {
        let memory = line_of("/proc/meminfo", "MemTotal:");
        let kib: u64 = memory.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let processor = line_of("/proc/cpuinfo", "model name");
        Self {
            cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u64),
            processor: processor.trim_start_matches([' ', '\t', ':']).to_owned(),
            memory_bytes: kib * 1024,
            kernel: read("/proc/sys/kernel/osrelease"),
        }
    }

    /// One line, such as `2 cores (Xeon), 15.6 GiB of memory, Linux 6.1`.
    pub(crate) fn text(&self) -> String {
        format!(
            "{} cores ({}), {:.1} GiB of memory, Linux {}",
            self.cores,
            self.processor,
            self.memory_bytes as f64 / 1_073_741_824.0,
            self.kernel
        )
    }
}

/// Facts that stand above the tables of a page.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) title: String,
    pub(super) commit: String,
    pub(super) command: String,
    pub(super) machine: String,
    pub(super) date: String,
}

impl Head {
    pub(super) fn look(title: &str, name: &str, args: &[OsString]) -> Self {
        Self {
            title: title.to_owned(),
            commit: remembered_commit(),
            command: command(name, args),
            machine: Machine::look().text(),
            date: date(SystemClock::new().unix_ms()),
        }
    }

    /// The title, and the sentence about the readers of a page without prose.
    pub(super) fn title(&self) -> String {
        let title = &self.title;
        format!(
            "# {title}\n\nFor readers who want the figures. The command below writes the part \
             between the marks."
        )
    }

    /// The facts as a table.
    pub(super) fn table(&self) -> String {
        let Self { commit, command, machine, date, .. } = self;
        format!(
            "| | |\n| --- | --- |\n\
             | commit | {commit} |\n\
             | command | `{command}` |\n\
             | machine | {machine} |\n\
             | date | {date} |"
        )
    }
}

/// The commit at the start of the command. Another commit may be checked out before the end.
static COMMIT: OnceLock<String> = OnceLock::new();

/// Remembers the commit for the heads of all pages.
pub(crate) fn remember_commit() {
    COMMIT.get_or_init(commit);
}

/// The commit that [`remember_commit`] remembered, or that of now.
pub(crate) fn remembered_commit() -> String {
    COMMIT.get_or_init(commit).clone()
}

/// The commit of the working directory, and whether files other than benchmark pages differ from
/// it.
fn commit() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]).filter(|text| !text.is_empty())
    else {
        return "unknown, because the command did not run in a clone".to_owned();
    };
    let status = ["status", "--porcelain", "--untracked-files=no", "--", ":/"];
    // A command before this one may have written another part of a page.
    match git(&[&status[..], &[":(top,exclude)docs/benchmarks"]].concat()).as_deref() {
        Some("") => format!("`{commit}`"),
        _ => format!("`{commit}`, with changes"),
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Flags that name where results go. They do not change the results, and name directories of a
/// machine.
const PLACES: [&str; 2] = ["--page", "--out"];
/// Flags that name a program of this machine, of which the head shows no path.
const PROGRAMS: [&str; 3] = ["--before", "--by_key", "--by-key"];

/// The command line, without the flags that name where results go, and without paths of programs.
pub(super) fn command(name: &str, args: &[OsString]) -> String {
    let mut line = format!("archipelago-lab {name}");
    let mut is_value = false;
    for word in args {
        let word = word.to_string_lossy();
        if std::mem::take(&mut is_value) {
            continue;
        }
        let (flag, has_value) = word.split_once('=').map_or((&*word, false), |(f, _)| (f, true));
        if PLACES.contains(&flag) {
            is_value = !has_value;
        } else if PROGRAMS.contains(&flag) {
            is_value = !has_value;
            line += &format!(" {flag}=PROGRAM");
        } else {
            line.push(' ');
            line += &if word.contains(' ') { format!("'{word}'") } else { word.into_owned() };
        }
    }
    line
}

/// The kernel's file at `path`, or nothing if it does not exist.
pub(super) fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The rest of the first line of `path` that begins with `name`.
fn line_of(path: &str, name: &str) -> String {
    let text = read(path);
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or_default().trim().to_owned()
}

/// A time as text, such as `2026-11-21 15:04 UTC`.
pub(crate) fn date(unix_ms: u64) -> String {
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
