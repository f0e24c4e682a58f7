//! A child process as its parent handles it: its lines, its signals and its end.
//!
//! A [`Process`] runs this program in a role. A thread reads the lines that the child prints. The
//! standard error of the child goes to a file. If the child fails, the error has the end of that
//! file.
//!
//! Invariants:
//! 1. No child outlives its [`Process`], and the system ends it if this program is killed.
//! 2. After [`Process::stop`] has returned, no thread of the child runs.
//!
//! Thread-safety: one thread owns a process.
//! Failure: every error names the process.
//! Cost: one thread per process.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use archipelago::env::local::LocalFs;
use archipelago::env::{FileClass, FileSystem as _, IoContext, IoPurpose};
use archipelago::{Spawn as _, SystemClock, SystemSpawn};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Pause between two checks whether a process has ended.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// Most bytes of the messages of a process that an error shows.
const MESSAGES_SHOWN_MAX: usize = 4000;

/// Event of a process within a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The process printed a line.
    Line(String),
    /// The process has closed its output, because it has ended.
    End,
    /// The process printed nothing.
    Silence,
}

/// A child process. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    messages: PathBuf,
}

fn failed(name: &str, doing: &str, error: impl std::fmt::Display) -> String {
    format!("{name}: cannot {doing}: {error}")
}

impl Process {
    /// Starts this program with `words`. Its messages go to a file in `dir`.
    pub(crate) fn start(name: &str, words: &[String], dir: &Path) -> Result<Self, String> {
        let messages = dir.join(format!("{}.log", name.replace(' ', "-")));
        let open = OpenOptions::new().create(true).append(true).open(&messages);
        let stderr = open.map_err(|error| failed(name, "open its messages", error))?;
        let program = std::env::current_exe();
        let program = program.map_err(|error| failed(name, "find this program", error))?;
        let mut child = Command::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|error| failed(name, "start", error))?;
        let (tell, lines) = channel();
        let input = child.stdin.take();
        let output = child.stdout.take();
        let process = Self { name: name.to_owned(), child, input, lines, messages };
        let Some(output) = output else { return Err(failed(name, "read its output", "no pipe")) };
        let body = Box::new(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        // The thread ends with the child.
        let reader = SystemSpawn.spawn(&format!("read-{name}"), body);
        drop(reader.map_err(|error| failed(name, "read its output", error))?);
        Ok(process)
    }

    /// Waits for the next line.
    pub(crate) fn hear(&self, patience: Duration) -> Heard {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Timeout) => Heard::Silence,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// Waits for a line that begins with `start`, and returns the rest of it. Other lines pass.
    pub(crate) fn expect(&mut self, start: &str, patience: Duration) -> Result<String, String> {
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + patience.as_nanos() as u64;
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(clock.now_ns()));
            match self.hear(left) {
                Heard::Line(line) => {
                    if let Some(rest) = line.strip_prefix(start) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Heard::Silence => {
                    let said = self.messages();
                    let name = &self.name;
                    return Err(format!("{name} did not say {start:?} in {patience:?}: {said}"));
                }
                Heard::End => {
                    let status = self.wait(patience)?;
                    let said = self.messages();
                    let name = &self.name;
                    return Err(format!("{name} ended ({status}) before {start:?}: {said}"));
                }
            }
        }
    }

    /// Sends a line to the input of the process. A process that has ended reads nothing.
    pub(crate) fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _told = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Sends a signal. A process that has ended gets none.
    fn signal(&self, signal: Signal) {
        let _ended = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool, String> {
        let status = self.child.try_wait();
        status.map(|status| status.is_some()).map_err(|error| failed(&self.name, "look at", error))
    }

    /// Kills the process with SIGKILL, and waits for its end. Returns whether it ran until then.
    pub(crate) fn kill(&mut self) -> Result<bool, String> {
        let ran = !self.has_ended()?;
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(|_| ran).map_err(|error| failed(&self.name, "kill", error))
    }

    /// Kills the process, which must not have failed by itself before. It may have done all of its
    /// work.
    pub(crate) fn kill_healthy(&mut self) -> Result<(), String> {
        match self.kill()? || self.has_succeeded()? {
            true => Ok(()),
            false => Err(format!("the {} failed with the fault: {}", self.name, self.messages())),
        }
    }

    /// Stops the process with SIGSTOP. On return it does not run. Returns whether it ran until
    /// then.
    pub(crate) fn stop(&mut self) -> Result<bool, String> {
        if self.has_ended()? {
            return Ok(false);
        }
        self.signal(Signal::STOP);
        self.wait_until_stopped()
    }

    /// Waits until the process, which stops itself, does not run. Returns whether it is stopped and
    /// has not ended.
    pub(crate) fn wait_until_stopped(&mut self) -> Result<bool, String> {
        let pid = Pid::from_child(&self.child);
        match waitpid(Some(pid), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => Ok(true),
            Ok(_) => Err(format!("{} ended instead of stopping: {}", self.name, self.messages())),
            Err(error) => Err(failed(&self.name, "stop", error)),
        }
    }

    /// Lets a stopped process go on.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the input of the process, which then ends in order.
    pub(crate) fn end_input(&mut self) {
        drop(self.input.take());
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self, patience: Duration) -> Result<ExitStatus, String> {
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + patience.as_nanos() as u64;
        loop {
            let status = self.child.try_wait();
            match status.map_err(|error| failed(&self.name, "wait for the end of", error))? {
                Some(status) => return Ok(status),
                None if clock.now_ns() > until_ns => {
                    let said = self.messages();
                    return Err(format!("{} did not end in {patience:?}: {said}", self.name));
                }
                None => clock.sleep(LOOK_PAUSE),
            }
        }
    }

    /// Whether the process, which has ended, succeeded.
    fn has_succeeded(&mut self) -> Result<bool, String> {
        self.wait(LOOK_PAUSE).map(|status| status.success())
    }

    /// Waits for the end of a process that kills itself.
    pub(crate) fn wait_for_death(&mut self, patience: Duration) -> Result<(), String> {
        let status = self.wait(patience)?;
        match status.signal() == Some(Signal::KILL.as_raw()) {
            true => Ok(()),
            false => Err(format!("{} ended ({status}): {}", self.name, self.messages())),
        }
    }

    /// The end of what the process has written to standard error.
    pub(crate) fn messages(&self) -> String {
        let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
        let bytes = LocalFs::new().read(&self.messages, context).unwrap_or_default();
        let shown = &bytes[bytes.len().saturating_sub(MESSAGES_SHOWN_MAX)..];
        match shown {
            [] => "it wrote no message".to_owned(),
            shown => format!("its messages end so:\n{}", String::from_utf8_lossy(shown)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
