//! Threads behind a trait, so that a test can count them, name them or start none.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// A thread that was started. [`Joiner::join`] waits for its end.
pub struct Joiner(std::thread::JoinHandle<()>);

impl fmt::Debug for Joiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Joiner({:?})", self.0.thread().name())
    }
}

impl Joiner {
    /// Whether the thread has ended, so that [`Joiner::join`] does not wait.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until the thread has ended. Errors: `Internal` if it panicked.
    pub fn join(self) -> Result<()> {
        let name = self.0.thread().name().unwrap_or("unnamed").to_owned();
        self.0.join().map_err(|_| Error::internal(format!("thread {name} panicked")))
    }
}

/// A source of threads: the operating system in production.
pub trait Spawn: Send + Sync + fmt::Debug + 'static {
    /// Runs `body` on a new thread named `name`. Tools such as `top` show at most 15 bytes of the
    /// name. Errors: `Io` if the system starts no thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Joiner>;
}

/// The largest increment of the nice value, which [`lower_priority`] adds.
#[cfg(target_os = "linux")]
const NICE: i32 = 19;

/// Lowers the calling thread's priority permanently, because a thread cannot raise it again without
/// a privilege. The thread then gets the time that others leave, and a seventieth of the share of a
/// normal thread. The function does nothing if priorities belong to processes, or if the system
/// refuses.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICE);
}

/// The source of threads of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemSpawn;

impl Spawn for SystemSpawn {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map(Joiner).map_err(
            |source| {
                Error::with_source(ErrorKind::Io, format!("cannot start thread {name}"), source)
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_reports_a_panic_as_internal() {
        let thread =
            SystemSpawn.spawn("doomed", Box::new(|| panic!("on purpose"))).expect("starts");
        let error = thread.join().expect_err("it panicked");
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(error.to_string(), "internal error: thread doomed panicked");
        let thread = SystemSpawn.spawn("sound", Box::new(|| {})).expect("starts");
        assert!(thread.join().is_ok());
    }
}
