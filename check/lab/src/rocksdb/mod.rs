//! `archipelago-lab rocksdb`: the whole comparison with RocksDB's db_bench as one table
//! with targets and verdicts.
//!
//! `flags` is the command line. `plan` chooses the steps and the number of their runs, and `steps`
//! the words of each process. `session` runs the steps in rounds, in which the sides alternate.
//! `rows` picks figures, and `report` judges them.
//!
//! Invariants:
//! 1. The `journal` holds every result before the next step starts. So no result is lost when the
//!    program ends, and `--resume` continues from there.
//! 2. A figure counts only in a round in which both sides gave it. A step that failed leaves a row
//!    with fewer runs, or a row marked as failed. It never changes the figures of a row.
//!
//! Failure: a missed target is no error. A step that failed is one, after the table was printed.
//! Cost: about an hour with the default flags.

mod entry;
mod flags;
mod host;
mod plan;
mod report;
mod rows;
mod session;
mod steps;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_base::spawn::{Spawn as _, SystemSpawn};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use crate::journal::{self, Journal};
use crate::page::{self, Page, Style};
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::json;
use archipelago_bench::harness::process;
use archipelago_bench::harness::report::say;
use archipelago_bench::harness::store::{Error, Result};
use entry::{Entry, Head};
use flags::TableFlags;
use host::Host;
use session::Session;

/// Runs the comparison with `args`, the words after `rocksdb`. A missed target is no error. A
/// failed step is an error, which is returned after the table was printed.
pub(crate) fn reproduce(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let flags = flags::read(args)?;
    Ok(make(&flags, args))
}

fn make(flags: &TableFlags, args: &[OsString]) -> Result<()> {
    let (mut journal, head, mut entries) = match &flags.resume {
        Some(path) => Journal::resume::<Head, Entry>(path)?,
        None => {
            let settings = flags.settings();
            let host = Host::look(&settings)?;
            let json = std::path::absolute(&flags.json).unwrap_or_else(|_| flags.json.clone());
            let head = Head { settings, json, host };
            (Journal::create(&journal::beside(&flags.json), &head)?, head, Vec::new())
        }
    };
    // A program that was killed may leave the step's process running.
    let theirs = format!("--db={}{}", head.settings.db.display(), std::path::MAIN_SEPARATOR);
    if let Some(pid) = process::with_argument(&theirs) {
        return Err(Error::invalid(format!(
            "process {pid} still works in {}: end it, or wait for its end",
            head.settings.db.display()
        )));
    }
    // Steps that failed run again.
    entries.retain(|entry| entry.error.is_none());
    let settings = &head.settings;
    let costs = plan::costs(&plan::steps(settings), settings);
    let repeats = plan::repeats(&costs, settings, 0);
    eprintln!("{}", plan::text(&costs, &repeats, settings));
    if !entries.is_empty() {
        eprintln!("{} results are there already", entries.len());
    }
    let stop = Arc::new(AtomicBool::new(false));
    watch_signals(Arc::clone(&stop))?;
    let bar = bar(plan::total(&costs, &repeats));
    let entries = Session::new(settings, &mut journal, entries, stop, bar).run()?;
    let load_at_end = host::load_average();
    let lines = report::lines(settings, &entries);
    let about = report::about(settings, &head.host, &load_at_end, &entries);
    let section = report::section(&lines, &entries);
    let verdict = page::verdict_line(section.rows.iter());
    say(&format!("{about}\n{}\n\n{verdict}", section.text(Style::Terminal)));
    if let Some(path) = &flags.page {
        let page = Page::new("Archipelago and RocksDB", "rocksdb", args);
        page.about(&about).sections(vec![section]).write(path)?;
    }
    let failures = report::failures(&entries);
    let failed = failures.len();
    let file = report::File {
        settings,
        host: &head.host,
        load_average_at_end: &load_at_end,
        rows: &lines,
        failures,
        runs: &entries,
    };
    json::write_file(&head.json, &file)?;
    eprintln!("all runs are in {}", head.json.display());
    match failed {
        0 => journal.remove(),
        _ => Err(Error::invalid(format!(
            "{failed} runs failed, which the table names: --resume {} repeats them",
            journal.path().display()
        ))),
    }
}

/// A bar of estimated seconds, on a terminal.
fn bar(seconds: f64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(seconds as u64);
    let template = "[{bar:30}] {percent}% {elapsed_precise} {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_secs(1));
    bar
}

/// Sets `stop` at SIGINT and SIGTERM; the program ends when the step that runs has been ended.
fn watch_signals(stop: Arc<AtomicBool>) -> Result<()> {
    let failed = |source| Error::io("watch", std::path::Path::new("signals"), source);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        (interrupt, signal(SignalKind::terminate()).map_err(failed)?)
    };
    let body = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        stop.store(true, Ordering::Release);
    };
    // The thread waits until the program ends, so no thread joins it.
    SystemSpawn.spawn("signals", Box::new(body)).map(drop)
}

#[cfg(test)]
mod tests;
