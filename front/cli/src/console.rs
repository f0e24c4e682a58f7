//! Output for the person who runs the program: lines, results and progress bars.
//!
//! A server may run longer than the reader of its output: `serve | head -1` ends the reader, and a
//! supervisor may end first. Writing a line of a server therefore never fails. `println!` would end
//! the process, possibly in the middle of an orderly shutdown. A tool, whose output is its result,
//! fails if it cannot write ([`print`]). Warnings and errors go to standard error, and `eprintln!`
//! has the same fault as `println!` ([`warn_line`]).
//!
//! Thread-safety: any thread may call any function. Cost: one lock of the stream per call.

use std::fmt::Arguments;
use std::io::Write;
use std::path::Path;

use archipelago::repair::RepairProgress;
use archipelago::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};

/// Writes a line to standard output, if standard output is still open.
macro_rules! print_line {
    ($($line:tt)*) => { $crate::console::write_line(format_args!($($line)*)) };
}

pub(crate) use print_line;

/// Writes the line of [`print_line`]. A closed standard output is no failure.
pub(crate) fn write_line(line: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _nobody_reads = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Writes a line to standard error, if standard error is still open.
macro_rules! warn_line {
    ($($line:tt)*) => { $crate::console::write_warning(format_args!($($line)*)) };
}

pub(crate) use warn_line;

/// Writes the line of [`warn_line`]. A closed standard error is no failure.
pub(crate) fn write_warning(line: Arguments<'_>) {
    let _nobody_reads = writeln!(std::io::stderr().lock(), "{line}");
}

/// Writes the result of a tool to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(write_failed)
}

/// The error of a tool that cannot write its result.
pub(crate) fn write_failed(source: std::io::Error) -> Error {
    Error::io("write to", Path::new("standard output"), source)
}

/// A progress bar over bytes.
pub(crate) fn byte_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    bar
}

/// Shows the progress of a check or a repair.
pub(crate) fn show_progress(bar: &ProgressBar, progress: RepairProgress) {
    bar.set_length(progress.bytes_total);
    bar.set_position(progress.bytes_done);
}
