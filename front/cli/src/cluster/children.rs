//! Child processes of `archipelago cluster up`, and the directory of their sockets.
//!
//! Failure: a child that does not start has printed the reason to standard error, and the error
//! names the child.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use archipelago_base::random::entropy_seed;
use archipelago_base::{Error, ErrorKind, Result};

use crate::console::print_line;

/// A child process of this command. Dropping it ends the process and waits for its end.
pub(super) struct ChildProcess {
    name: String,
    child: Child,
    /// Address at which the process listens, as it printed it.
    pub(super) address: String,
    /// Line with the URL of the process's metrics, if it serves some.
    metrics: Option<String>,
    is_reported: bool,
}

/// Beginning of the line with which a process names the URL of its metrics.
const METRICS_LINE: &str = "Metrics for Prometheus: ";

impl ChildProcess {
    /// Starts `archipelago` with `args`, and waits for the line with the address at which it
    /// listens. The address follows the text `before`.
    pub(super) fn start(name: &str, args: &[&str], before: &str) -> Result<Self> {
        let fail =
            |source| Error::with_source(ErrorKind::Io, format!("cannot start {name}"), source);
        let program = std::env::current_exe().map_err(fail)?;
        let mut child = Command::new(program)
            .args(args)
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        let mut line = String::new();
        let mut metrics = None;
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            output.read_line(&mut line).map_err(fail)?;
            if args.contains(&"--metrics") && line.contains(before) {
                metrics = read_metrics(&mut output).map_err(fail)?;
            }
            // The pipe holds the few further lines, which nothing reads.
            std::mem::forget(output);
        }
        let Some((_, address)) = line.trim_end().rsplit_once(before) else {
            // The child has printed the reason to standard error.
            let status = child.wait().map_err(fail)?;
            return Err(Error::new(
                ErrorKind::Io,
                format!("{name} did not start ({status}): its error is printed above"),
            ));
        };
        let address = address.to_owned();
        Ok(Self { name: name.to_owned(), child, address, metrics, is_reported: false })
    }

    /// Prints the URL of the process's metrics, if it serves some.
    pub(super) fn print_metrics(&self) {
        if let Some(url) = &self.metrics {
            print_line!("Metrics of {:<13} {url}", self.name);
        }
    }

    /// Id of the process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has ended by itself. The first call that finds it prints a line.
    pub(super) fn report_end(&mut self) -> bool {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                if !self.is_reported {
                    self.is_reported = true;
                    print_line!("{} (process {}) ended: {status}", self.name, self.child.id());
                }
                true
            }
            _ => false,
        }
    }
}

/// Reads the lines of a process up to that with the URL of its metrics. `None` if it ends before.
fn read_metrics(output: &mut impl BufRead) -> std::io::Result<Option<String>> {
    for line in output.lines() {
        if let Some(url) = line?.strip_prefix(METRICS_LINE) {
            return Ok(Some(url.to_owned()));
        }
    }
    Ok(None)
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The child ends when its standard input ends.
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, name = self.name, "cannot wait for the end of a child process");
        }
    }
}

/// A directory for sockets that only this user may enter. Dropping it removes it with its files.
pub(super) struct Sockets(PathBuf);

impl Sockets {
    pub(super) fn create() -> Result<Self> {
        let name = format!("archipelago-{}-{:x}", std::process::id(), entropy_seed() >> 32);
        let dir = std::env::temp_dir().join(name);
        let created = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        created.map_err(|source| Error::io("create", &dir, source))?;
        Ok(Self(dir))
    }

    /// Path of a file that is removed with the directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Path of the socket of a node.
    pub(super) fn path(&self, role: &str, node: u64) -> PathBuf {
        self.0.join(format!("{role}{node}.sock"))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        #[expect(clippy::disallowed_methods, reason = "sockets of processes, not files of a store")]
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, dir = %self.0.display(), "cannot remove the directory of the sockets");
        }
    }
}
