//! A role of a cluster as a child process, and the protocol by which it reports its state.
//!
//! The laboratory starts its own program as a child with a word that names the role. The child
//! prints one line when it serves. Then it answers each line of standard input with a line about
//! its state, and it ends when standard input ends. Each line of the protocol begins with [`MARK`],
//! so that the parent can ignore other output.
//!
//! Invariants:
//! 1. A process ends with its [`RoleProcess`]: its standard input ends, and if that does not help,
//!    the drop kills it by its id.
//!
//! Thread-safety: one thread at a time.
//! Failure: an error names the role. A child that has ended is noticed at the next line.
//! Cost: a line in each direction for a state.

use std::io::{BufRead as _, BufReader, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use archipelago_bench::harness::report::say;
use archipelago_bench::harness::store::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Begin of each line of a role.
const MARK: &str = "archipelago-lab role: ";

/// Tells the state of this process now and after each line of standard input, until that ends.
pub(crate) fn answer<T: Serialize>(mut state: impl FnMut() -> T) -> Result<()> {
    tell(&state())?;
    for line in std::io::stdin().lock().lines() {
        line.map_err(|error| Error::io("read", "standard input".as_ref(), error))?;
        tell(&state())?;
    }
    Ok(())
}

fn tell<T: Serialize>(state: &T) -> Result<()> {
    let text = serde_json::to_string(state)
        .map_err(|error| Error::invalid(format!("the state does not fit JSON: {error}")))?;
    say(&format!("{MARK}{text}"));
    Ok(())
}

/// The program of roles: `named`, or this one.
pub(crate) fn program(named: Option<&PathBuf>) -> Result<PathBuf> {
    match named {
        Some(path) => Ok(path.clone()),
        None => std::env::current_exe()
            .map_err(|error| Error::io("find", "the own program".as_ref(), error)),
    }
}

/// A running role whose states are of type `T`.
#[derive(Debug)]
pub(crate) struct RoleProcess<T> {
    /// Name for people, such as `storage node 3`.
    name: String,
    child: Child,
    /// `None` once the role was told to end.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    state: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> RoleProcess<T> {
    /// Starts `program` with `words`, and waits until it serves. Returns its first state as well.
    pub(crate) fn start(program: &Path, words: &[String], name: String) -> Result<(Self, T)> {
        let mut command = Command::new(program);
        let child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| Error::io("run", program, error))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::invalid(format!("{name} has no standard streams")));
        };
        let (stdin, stdout) = (Some(stdin), BufReader::new(stdout));
        let mut role = Self { name, child, stdin, stdout, state: PhantomData };
        let first = role.line()?;
        Ok((role, first))
    }

    /// The next line of the role.
    fn line(&mut self) -> Result<T> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.stdout.read_line(&mut line);
            if read.map_err(self.failed("read the output of"))? == 0 {
                let name = &self.name;
                return Err(Error::invalid(format!("{name} has ended; its error output says why")));
            }
            // A test harness may print the name of its test before the mark.
            if let Some((_, text)) = line.split_once(MARK) {
                return serde_json::from_str(text.trim())
                    .map_err(|error| Error::invalid(format!("a line of {}: {error}", self.name)));
            }
        }
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let name = self.name.clone();
        move |error| Error::io(what, name.as_ref(), error)
    }

    /// State of the role now.
    pub(crate) fn state(&mut self) -> Result<T> {
        if let Some(stdin) = &mut self.stdin {
            let asked = stdin.write_all(b"state\n").and_then(|()| stdin.flush());
            asked.map_err(self.failed("write to"))?;
        }
        self.line()
    }

    /// Kills the process, as a loss of its node does.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(self.failed("kill"))
    }

    /// Ends the process in order.
    pub(crate) fn close(mut self) -> Result<()> {
        self.stdin = None;
        let status = self.child.wait().map_err(self.failed("wait for"))?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::invalid(format!("{} failed ({status})", self.name))),
        }
    }
}

impl<T> Drop for RoleProcess<T> {
    fn drop(&mut self) {
        self.stdin = None;
        // A process that has ended and was waited for is left alone.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
