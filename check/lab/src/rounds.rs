//! The runs of a command, each in a directory of its own: single ones, or several rounds of all
//! cells in alternation.
//!
//! Invariants:
//! 1. Runs have numbers from 1, in the order in which they begin.
//! 2. A round runs every cell once before the next round begins.
//! 3. A run of a round that fails does not stop the others. The first error is the result.
//!
//! Failure: a directory that cannot be removed at the end is named on standard error.

use std::path::{Path, PathBuf};

use archipelago_base::random::entropy_seed;
use archipelago_bench::harness::progress::{runs_bar, say_above};
use archipelago_bench::harness::store::{Error, FileSystem as _, LocalFs, Result};
use indicatif::ProgressBar;

/// A run of a cell.
pub(crate) struct RoundRun<'a> {
    /// Number of the round, from 0.
    pub(crate) round: u64,
    /// Directory of the run, which does not exist yet.
    pub(crate) dir: PathBuf,
    /// Function that gets a line about each step.
    pub(crate) said: &'a (dyn Fn(&str) + Sync),
}

/// Progress and the directory of all runs.
#[derive(Debug)]
pub(crate) struct Rounds {
    base: PathBuf,
    bar: ProgressBar,
}

impl Rounds {
    /// Makes the directory `base` for all runs. What a process left there that was killed is
    /// removed.
    pub(crate) fn in_dir(base: PathBuf) -> Result<Self> {
        let fs = LocalFs::new();
        if fs.exists(&base)? {
            fs.remove_dir_all(&base)?;
        }
        fs.create_dir_all(&base)?;
        Ok(Self { base, bar: runs_bar() })
    }

    /// Calls `run` for each cell in each of `rounds` rounds. `name` names a cell for people.
    pub(crate) fn run_all<C>(
        &self,
        cells: &[C],
        rounds: u64,
        name: impl Fn(&C) -> String,
        mut run: impl FnMut(&C, &RoundRun<'_>) -> Result<()>,
    ) -> Result<()> {
        self.set_count(cells.len() as u64 * rounds);
        let mut result = Ok(());
        for round in 0..rounds {
            for cell in cells {
                let what = name(cell);
                if let Err(error) = self.run_next(round, &what, |at| run(cell, at)) {
                    self.note(&format!("{what} failed: {error}"));
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Sets the number of all runs, which the progress shows.
    pub(crate) fn set_count(&self, runs: u64) {
        self.bar.set_length(runs);
    }

    /// Calls `run` for the next run, which belongs to the round with the number `round`. `what`
    /// names the run for people.
    pub(crate) fn run_next(
        &self,
        round: u64,
        what: &str,
        run: impl FnOnce(&RoundRun<'_>) -> Result<()>,
    ) -> Result<()> {
        let number = self.bar.position() + 1;
        self.bar.set_message(what.to_owned());
        self.note(&format!("run {number} of {}: {what}", self.bar.length().unwrap_or(0)));
        let dir = self.base.join(format!("run-{number}"));
        let said = |line: &str| self.note(&format!("  {line}"));
        let result = run(&RoundRun { round, dir, said: &said });
        self.bar.inc(1);
        result
    }

    fn note(&self, line: &str) {
        say_above(&self.bar, line);
    }

    /// Ends the progress, and removes the directory of all runs.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
        if let Err(error) = LocalFs::new().remove_dir_all(&self.base) {
            eprintln!("{} stays: {error}", self.base.display());
        }
    }
}

/// A path for a new directory in `parent`, whose name begins with `name`.
pub(crate) fn new_dir(parent: &Path, name: &str) -> Result<PathBuf> {
    absolute(&parent.join(format!("{name}-{:08x}", entropy_seed() as u32)))
}

/// Calls `run` after it has made the directory `dir`, and then removes the directory, also if `run`
/// failed. Errors of `run` come before those of the removal. It is an error if `dir` exists.
pub(crate) fn in_new_dir<T>(dir: &Path, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let fs = LocalFs::new();
    if fs.exists(dir)? {
        return Err(Error::invalid(format!("{} exists: choose another directory", dir.display())));
    }
    fs.create_dir_all(dir)?;
    let result = run();
    let removed = fs.remove_dir_all(dir);
    let value = result?;
    removed?;
    Ok(value)
}

/// The absolute path of `path`, for processes with other working directories.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("find", path, error))
}

/// Directory in which directories of runs are made: the named one, else memory if the machine has
/// `/dev/shm`, else the temporary directory.
pub(crate) fn base_dir(named: Option<&PathBuf>) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    match named {
        Some(dir) => dir.clone(),
        None if memory.is_dir() => memory,
        None => std::env::temp_dir(),
    }
}
