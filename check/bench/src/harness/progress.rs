//! Progress of a benchmark that runs: a bar on a terminal, and the lines of
//! `--report_interval_seconds`.
//!
//! One thread reads the counters of the workers. It does not exist if neither output is wanted.

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use indicatif::{ProgressBar, ProgressStyle};

use crate::harness::store::{Error, Result};
use crate::harness::tally::Progress;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Operations per second of every interval, as lines of a CSV file.
#[derive(Debug)]
pub(crate) struct IntervalReport {
    file: File,
    interval_ns: u64,
    started_ns: u64,
    next_ns: u64,
    /// Operations of the current benchmark at the last line.
    reported: u64,
}

impl IntervalReport {
    /// Creates the report file, and replaces a file at `path`.
    pub(crate) fn create(path: &Path, seconds: u64, clock: &SystemClock) -> Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "a report for the user, no database file")]
        let file = File::create(path);
        let mut file = file.map_err(|error| Error::io("create", path, error))?;
        let header = file.write_all(b"secs_elapsed,interval_qps\n");
        header.map_err(|error| Error::io("write", path, error))?;
        let (started_ns, interval_ns) = (clock.now_ns(), seconds.saturating_mul(1_000_000_000));
        let next_ns = started_ns.saturating_add(interval_ns);
        Ok(Self { file, interval_ns, started_ns, next_ns, reported: 0 })
    }

    fn look(&mut self, now_ns: u64, done: u64) {
        if now_ns < self.next_ns {
            return;
        }
        let late_ns = now_ns - self.next_ns;
        let rate = (done - self.reported) as f64 * 1e9 / (self.interval_ns + late_ns) as f64;
        let seconds = (now_ns - self.started_ns) / 1_000_000_000;
        // A report that cannot be written must not end a measurement.
        let _ = writeln!(self.file, "{seconds},{}", rate as u64);
        self.reported = done;
        self.next_ns = now_ns + self.interval_ns;
    }
}

/// Shows the progress of one benchmark.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    pub(crate) name: &'a str,
    /// Number of operations of the benchmark, or 0 if it is not known.
    pub(crate) expected: u64,
    pub(crate) progress: &'a [Progress],
    pub(crate) clock: &'a SystemClock,
    pub(crate) report: Option<&'a mut IntervalReport>,
}

impl Watch<'_> {
    /// Whether an output is wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.report.is_some() || std::io::stderr().is_terminal()
    }

    /// Shows progress until `ended`.
    pub(crate) fn run(mut self, ended: &AtomicBool) {
        let bar = self.bar();
        if let Some(report) = &mut self.report {
            report.reported = 0;
        }
        while !ended.load(Ordering::Acquire) {
            self.clock.sleep(LOOK_EVERY);
            let done = self.progress.iter().map(Progress::get).sum();
            if let Some(report) = &mut self.report {
                report.look(self.clock.now_ns(), done);
            }
            bar.set_position(done);
        }
        bar.finish_and_clear();
    }

    fn bar(&self) -> ProgressBar {
        if !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let (bar, template) = match self.expected {
            0 => (ProgressBar::new_spinner(), "{msg:<16} {spinner} {human_pos} ops {per_sec}"),
            ops => (
                ProgressBar::new(ops),
                "{msg:<16} [{bar:30}] {human_pos}/{human_len} ops {per_sec} {eta}",
            ),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(self.name.to_owned());
        bar
    }
}

/// A bar of runs on a terminal. The caller sets its length.
pub fn runs_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    let template = "[{bar:30}] {pos}/{len} runs {elapsed} ~{eta}  {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Prints a line above a bar, or alone if the bar is hidden.
pub fn say_above(bar: &ProgressBar, line: &str) {
    if bar.is_hidden() {
        eprintln!("{line}");
    } else {
        bar.println(line);
    }
}
