//! A process of `archipelago bench` that is killed, or whose first read is timed.
//!
//! Invariants:
//! 1. A process ends with its [`Client`]: the drop kills it by its id.
//!
//! Thread-safety: one thread at a time.
//! Failure: an error says which process failed. Its error output says why.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_bench::harness::store::{Error, Result};

/// Benchmark whose result line says that the next owner has read a key.
pub(crate) const FIRST_READ: &str = "readrandom";

/// A process of the client. Drop kills it.
#[derive(Debug)]
pub(crate) struct Client {
    child: Child,
    /// Standard output, if the process has a pipe for it.
    output: Option<BufReader<ChildStdout>>,
}

impl Client {
    /// Starts `PROGRAM bench WORDS`.
    pub(crate) fn start(program: &Path, words: &[String], stdout: Stdio) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("bench").args(words).stdin(Stdio::null()).stdout(stdout);
        let mut child = command.spawn().map_err(|error| Error::io("run", program, error))?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Self { child, output })
    }

    /// Waits until the process has printed the result of `benchmark`. The process must have a pipe
    /// as its standard output.
    pub(crate) fn wait_for(&mut self, benchmark: &str) -> Result<()> {
        if let Some(output) = &mut self.output {
            for line in output.lines() {
                let line = line.map_err(|error| Error::io("read", "its output".as_ref(), error))?;
                if line.starts_with(benchmark) {
                    return Ok(());
                }
            }
        }
        Err(Error::invalid(format!("an owner has printed no result of its {benchmark}")))
    }

    /// Returns an error if the process has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::invalid(format!(
                "the owner has ended before it was killed ({status}); its error output says why"
            ))),
            Err(error) => Err(Error::io("wait for", Path::new("the owner"), error)),
        }
    }

    /// Waits for the end of the process, which must succeed.
    fn finish(&mut self) -> Result<()> {
        let name = Path::new("the next owner");
        if let Some(output) = &mut self.output {
            // A process whose output has no reader would wait when the pipe is full.
            for line in output.lines() {
                line.map_err(|error| Error::io("read the output of", name, error))?;
            }
        }
        let status = self.child.wait().map_err(|error| Error::io("wait for", name, error))?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "the next owner failed ({status}); its error output says why"
            ))),
        }
    }

    /// Kills the process, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(|error| Error::io("kill", Path::new("the owner"), error))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Seconds until `PROGRAM bench WORDS` prints the result of its first read. The process runs to its
/// end.
pub(crate) fn seconds_to_read(program: &Path, words: &[String]) -> Result<f64> {
    let clock = SystemClock::new();
    let started_ns = clock.now_ns();
    let mut client = Client::start(program, words, Stdio::piped())?;
    let has_read = client.wait_for(FIRST_READ);
    let read_ns = clock.now_ns();
    // The status of the process tells more than the missing line.
    client.finish()?;
    has_read?;
    Ok((read_ns - started_ns) as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    fn script(dir: &Path, text: &str) -> PathBuf {
        let (source, path) = (dir.join("text"), dir.join("program"));
        #[expect(clippy::disallowed_methods, reason = "a script, no database file")]
        std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).expect("a script");
        // Another process makes the script, so that no fork of this one keeps it open for writing.
        let copied = Command::new("cp").args([&source, &path]).status().expect("cp");
        assert!(copied.success());
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("an executable script");
        path
    }

    #[test]
    fn first_read_is_the_line_of_its_benchmark() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = script(dir.path(), "echo 'Keys: 1'; echo 'readrandom : 1'; echo more");
        assert!(seconds_to_read(&program, &[]).expect("it has read") >= 0.0);
        let error = |text: &str| {
            let program = script(dir.path(), text);
            seconds_to_read(&program, &[]).expect_err("it has not read").to_string()
        };
        assert!(error("echo 'readmissing : 1'").contains("no result of its readrandom"));
        assert!(error("echo 'readrandom : 1'; exit 3").contains("the next owner failed"));
    }

    #[test]
    fn owner_that_has_ended_is_not_killed_unnoticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = script(dir.path(), "echo 'ycsbput : 1'; exec sleep 600");
        let mut client = Client::start(&program, &[], Stdio::piped()).expect("a process");
        client.wait_for("ycsbput").expect("its line");
        client.check().expect("it runs");
        client.kill().expect("it is killed");
        let error = client.check().expect_err("it has ended").to_string();
        assert!(error.contains("before it was killed"), "{error}");
    }
}
