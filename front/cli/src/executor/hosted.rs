//! An executor in the process of another role: a memory node, whose images flushes then read in
//! place, a storage node, or a server.
//!
//! The storage cluster may begin after the process, because its manager acts only when memory nodes
//! have promised to obey it, and founds the cluster when its storage nodes have registered. So the
//! executor starts on a thread of its own, which connects again and again.
//!
//! Invariant: the jobs end before the role of the process ([`HostedExecutor::end`]), because they
//! may need its memory or its files.
//!
//! Thread-safety: one thread starts the executor. After [`HostedExecutor::stop`] that thread starts
//! nothing any more.
//! Failure: while the storage cluster cannot be reached, the process has no executor and serves.
//! The end of the process does not wait for the storage cluster.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::SystemClock;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{ErrorKind, Result};
use archipelago_offload::net::{ExecutorFigures, ExecutorServer, ExecutorSettings};
use archipelago_offload::shard_host::ShardHost;
use parking_lot::Mutex;

use super::{JobFiles, wait_for_jobs};
use crate::console::print_line;
use crate::secret::SecretArgs;
use crate::stop::{Stop, StopCause};

/// Pause before the next attempt to reach the storage cluster.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Starting {
    server: Option<ExecutorServer>,
    is_stopped: bool,
}

/// An executor in the process of another role, before it starts.
#[derive(Debug)]
pub(crate) struct HostedPlan {
    settings: ExecutorSettings,
    files: JobFiles,
}

impl HostedPlan {
    /// A plan for the jobs of databases in `files`. It replaces the shared directories of
    /// `settings`. Errors: `InvalidArgument` for a directory that does not exist.
    pub(crate) fn new(settings: ExecutorSettings, files: JobFiles) -> Result<Self> {
        let settings = ExecutorSettings { shares: files.shares()?, ..settings };
        Ok(Self { settings, files })
    }

    /// Starts the executor. `address` has the kind of the process and how operators find it, and
    /// `cluster status` and logs show it. `images` is the memory node of the process, if it is one.
    /// Errors are those of [`HostedExecutor::start`].
    pub(crate) fn start(
        self,
        address: String,
        images: Option<Arc<ShardHost>>,
        secret: &SecretArgs,
    ) -> Result<HostedExecutor> {
        let settings = ExecutorSettings { address, hosted: images, ..self.settings };
        HostedExecutor::start(settings, self.files, secret)
    }
}

/// An executor in the process of another role, which runs or starts.
#[derive(Debug)]
pub(crate) struct HostedExecutor {
    state: Arc<Mutex<Starting>>,
    thread: Option<Joiner>,
    description: String,
}

impl HostedExecutor {
    /// Starts the executor of `settings`, as soon as it reaches the storage cluster of `files`.
    /// Errors: those of settings that are wrong, and of starting threads.
    fn start(settings: ExecutorSettings, files: JobFiles, secret: &SecretArgs) -> Result<Self> {
        let what = files.describe(&settings.shares);
        let description = format!("It runs jobs of databases {what} in {} slots", settings.slots);
        let state = Arc::new(Mutex::new(Starting::default()));
        if files.store.is_none() {
            state.lock().server = Some(ExecutorServer::start(settings)?);
            return Ok(Self { state, thread: None, description });
        }
        let (shared, secret) = (Arc::clone(&state), secret.clone());
        let work = move || connect(&shared, settings, &files, &secret);
        let thread = SystemSpawn.spawn("hosted-executor", Box::new(work))?;
        Ok(Self { state, thread: Some(thread), description })
    }

    /// What the executor does, for people.
    pub(crate) fn describe(&self) -> &str {
        &self.description
    }

    /// Reads the figures of the executor; `None` before it runs and after its end.
    pub(crate) fn monitor(&self) -> impl Fn() -> Option<ExecutorFigures> + Send + Sync + 'static {
        let state = Arc::clone(&self.state);
        move || state.lock().server.as_ref().map(ExecutorServer::figures)
    }

    /// Makes the executor take no more jobs, and not start if it has not.
    fn leave(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        if let Some(server) = &state.server {
            server.leave();
        }
    }

    /// Whether the executor may end without harm to a job.
    fn can_end(&self) -> bool {
        self.state.lock().server.as_ref().is_none_or(ExecutorServer::can_end)
    }

    /// Ends the executor, before the process ends. After a signal its jobs may end first; another
    /// signal cancels them, and so does the process when `must_end` is true.
    pub(crate) fn end(self, cause: StopCause, stop: &mut Stop, must_end: impl Fn() -> bool) {
        if cause == StopCause::Signal {
            self.leave();
            wait_for_jobs(stop, || self.can_end() || must_end());
        }
        let figures = self.stop();
        print_line!("{} jobs succeeded and {} failed here", figures.succeeded, figures.failed);
    }

    /// Ends the executor. Returns its figures. It does not wait for a thread that still asks for
    /// the storage cluster, because that may take long.
    fn stop(mut self) -> ExecutorFigures {
        let server = {
            let mut state = self.state.lock();
            state.is_stopped = true;
            state.server.take()
        };
        let ended = self.thread.take().filter(Joiner::is_finished);
        if let Some(Err(error)) = ended.map(Joiner::join) {
            tracing::error!(%error, "the thread that starts the executor panicked");
        }
        server.map(|server| server.figures()).unwrap_or_default()
    }
}

/// Starts the executor, unless it was stopped. It may have been stopped while the storage cluster
/// was asked, and an executor that starts later would not be told to leave.
fn start_in(state: &Mutex<Starting>, settings: ExecutorSettings) {
    let mut state = state.lock();
    if state.is_stopped {
        return;
    }
    match ExecutorServer::start(settings) {
        Ok(server) => state.server = Some(server),
        Err(error) => tracing::error!(%error, "this process runs no jobs"),
    }
}

/// Starts the executor when the storage cluster can be reached.
fn connect(
    state: &Mutex<Starting>,
    mut settings: ExecutorSettings,
    files: &JobFiles,
    secret: &SecretArgs,
) {
    let mut is_told = false;
    while !state.lock().is_stopped {
        match files.volumes(secret) {
            Ok(volumes) => {
                settings.volumes = volumes;
                return start_in(state, settings);
            }
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                return tracing::error!(%error, "this process runs no jobs");
            }
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "this process runs no jobs yet");
                }
                SystemClock::shared().sleep(PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executor_that_was_stopped_does_not_start() {
        let settings = ExecutorSettings {
            managers: vec!["tcp:127.0.0.1:9".to_owned()],
            slots: 1,
            shares: vec!["/reef".into()],
            ..ExecutorSettings::default()
        };
        for is_stopped in [false, true] {
            let state = Mutex::new(Starting { server: None, is_stopped });
            start_in(&state, settings.clone());
            assert_eq!(state.lock().server.is_some(), !is_stopped);
        }
    }

    #[test]
    fn stop_does_not_wait_for_the_storage_cluster() {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let work = move || {
            let _released = released.recv();
        };
        let thread = Some(SystemSpawn.spawn("asks", Box::new(work)).unwrap());
        let state = Arc::new(Mutex::new(Starting::default()));
        let description = String::new();
        let executor = HostedExecutor { state: Arc::clone(&state), thread, description };
        // The thread ends only after that, so a stop that waits for it would never return.
        let figures = executor.stop();
        assert_eq!((figures.succeeded, figures.failed), (0, 0));
        assert!(state.lock().is_stopped);
        drop(release);
    }
}
