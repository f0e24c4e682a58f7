//! A server of a cluster as a child process, which faults take away and bring back.
//!
//! A server runs until its input ends. It prints one line, [`READY`] and its addresses, when it
//! serves.
//!
//! Thread-safety: one thread owns a server.
//! Failure: every error names the process, or has the end of its messages.

use std::path::Path;
use std::time::Duration;

use archipelago::SystemClock;

use super::process::Process;

/// Time in which a process must start, and in which the cluster must be whole again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Begin of the line that a server prints when it serves.
pub(crate) const READY: &str = "serves at ";

/// Way in which a fault takes a process away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The process is killed with SIGKILL.
    Kill,
    /// The process is stopped with SIGSTOP, and continues later.
    Stop,
}

impl Fault {
    /// Both faults, in the order of the summary.
    pub(crate) const ALL: [Self; 2] = [Self::Kill, Self::Stop];
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
        })
    }
}

/// State of a process that a fault may take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Runs,
    Killed,
    Stopped,
}

/// A process and its state.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    presence: Presence,
    /// Time of the start in milliseconds since 1970. The life of a node is not smaller.
    pub(crate) started_ms: u64,
}

impl Server {
    /// Starts a server, and waits until it serves. Returns its addresses, too.
    pub(crate) fn start(
        name: &str,
        words: &[String],
        dir: &Path,
    ) -> Result<(Self, String), String> {
        let started_ms = SystemClock::shared().unix_ms();
        let mut process = Process::start(name, words, dir)?;
        let addresses = process.expect(READY, PATIENCE)?;
        Ok((Self { process, presence: Presence::Runs, started_ms }, addresses))
    }

    /// Takes the process away.
    pub(crate) fn suffer(&mut self, fault: Fault) -> Result<(), String> {
        let ran = match fault {
            Fault::Kill => self.process.kill()?,
            Fault::Stop => self.process.stop()?,
        };
        if !ran && self.presence == Presence::Runs {
            return Err(format!("a server ended by itself: {}", self.process.messages()));
        }
        self.note_absence(fault);
        Ok(())
    }

    /// Waits for a fault that the process causes itself.
    pub(crate) fn await_own(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Kill => self.process.wait_for_death(PATIENCE)?,
            Fault::Stop => {
                self.process.wait_until_stopped()?;
            }
        }
        self.note_absence(fault);
        Ok(())
    }

    fn note_absence(&mut self, fault: Fault) {
        self.presence = match fault {
            Fault::Kill => Presence::Killed,
            Fault::Stop => Presence::Stopped,
        };
    }

    /// Lets a stopped process go on. Returns whether the process must be started again, because it
    /// was killed. The error names a process that ended by itself.
    pub(crate) fn restore(&mut self) -> Result<bool, String> {
        match self.presence {
            Presence::Killed => return Ok(true),
            Presence::Runs if self.process.has_ended()? => {
                return Err(format!("a server ended by itself: {}", self.process.messages()));
            }
            Presence::Runs => {}
            Presence::Stopped => self.process.go_on(),
        }
        self.presence = Presence::Runs;
        Ok(false)
    }
}

/// Waits until the parent closes the input of this process.
pub(crate) fn wait_for_end_of_input() {
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        line.clear();
    }
}
