//! An executor in the process of a memory node, which reads the images of flushes in place.
//!
//! The storage cluster may begin after the memory node, because its manager acts only when memory
//! nodes have promised to obey it. So the executor starts on a thread of its own, which connects
//! again and again.
//!
//! Thread-safety: one thread starts the executor, and [`HostedExecutor::stop`] ends both.
//! Failure: while the storage cluster cannot be reached, the node has no executor and serves.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::SystemClock;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{ErrorKind, Result};
use archipelago_offload::net::{ExecutorFigures, ExecutorServer, ExecutorSettings};
use parking_lot::Mutex;

use super::reach::ReachArgs;
use crate::secret::SecretArgs;

/// Pause before the next attempt to reach the storage cluster.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Starting {
    server: Option<ExecutorServer>,
    is_stopped: bool,
}

/// An executor of a memory node, which runs or starts.
#[derive(Debug)]
pub(super) struct HostedExecutor {
    state: Arc<Mutex<Starting>>,
    thread: Option<Joiner>,
}

impl HostedExecutor {
    /// Starts the executor of `settings`, as soon as it reaches the storage cluster of `reach`.
    /// Errors: those of settings that are wrong, and of starting threads.
    pub(super) fn start(
        settings: ExecutorSettings,
        reach: &ReachArgs,
        secret: &SecretArgs,
    ) -> Result<Self> {
        let state = Arc::new(Mutex::new(Starting::default()));
        if reach.store.is_none() {
            state.lock().server = Some(ExecutorServer::start(settings)?);
            return Ok(Self { state, thread: None });
        }
        let (shared, reach, secret) = (Arc::clone(&state), reach.clone(), secret.clone());
        let work = move || connect(&shared, settings, &reach, &secret);
        let thread = SystemSpawn.spawn("memory-executor", Box::new(work))?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// Reads the figures of the executor; `None` before it runs and after its end.
    pub(super) fn monitor(&self) -> impl Fn() -> Option<ExecutorFigures> + Send + Sync + 'static {
        let state = Arc::clone(&self.state);
        move || state.lock().server.as_ref().map(ExecutorServer::figures)
    }

    /// Makes the executor take no more jobs, and not start if it has not.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        if let Some(server) = &state.server {
            server.leave();
        }
    }

    /// Whether the executor may end without harm to a job.
    pub(super) fn can_end(&self) -> bool {
        self.state.lock().server.as_ref().is_none_or(ExecutorServer::can_end)
    }

    /// Ends the executor. Returns its figures.
    pub(super) fn stop(mut self) -> ExecutorFigures {
        self.state.lock().is_stopped = true;
        if let Some(Err(error)) = self.thread.take().map(Joiner::join) {
            tracing::error!(%error, "the thread that starts the executor panicked");
        }
        let server = self.state.lock().server.take();
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
        Err(error) => tracing::error!(%error, "this node runs no jobs"),
    }
}

/// Starts the executor when the storage cluster can be reached.
fn connect(
    state: &Mutex<Starting>,
    mut settings: ExecutorSettings,
    reach: &ReachArgs,
    secret: &SecretArgs,
) {
    let mut is_told = false;
    while !state.lock().is_stopped {
        match reach.volumes(secret) {
            Ok(volumes) => {
                settings.volumes = volumes;
                return start_in(state, settings);
            }
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                return tracing::error!(%error, "this node runs no jobs");
            }
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "this node runs no jobs yet");
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
}
