//! The threads that carry the beats of a node to its managers.
//!
//! Invariant: each manager has one thread, which sends one beat after the other.
//!
//! Thread-safety: the drop ends the threads and waits for them.
//! Failure: a manager that does not answer is asked again after [`AGAIN`]. The error is logged
//! once.
//! Cost: one thread and one connection per manager.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::stop_signal::StopSignal;
use archipelago_base::{ErrorKind, Result};
use archipelago_fabric::{ClientId, Endpoints, Line};

use super::Beats;

/// Time after which a beat counts as lost.
const ANSWER: Duration = Duration::from_millis(500);
/// Time between two beats while the manager does not answer.
const AGAIN: Duration = Duration::from_millis(200);

/// The running threads.
pub(crate) struct BeatThreads {
    signal: Arc<StopSignal>,
    threads: Vec<Joiner>,
}

impl fmt::Debug for BeatThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BeatThreads({})", self.threads.len())
    }
}

impl BeatThreads {
    /// Starts to beat to the managers at these endpoints, one endpoint per manager. Errors: those
    /// of starting a thread.
    pub(crate) fn start(
        beats: &Arc<Beats>,
        managers: &[String],
        endpoints: &Arc<Endpoints>,
    ) -> Result<Self> {
        let signal = Arc::new(StopSignal::default());
        let mut threads = Vec::new();
        for manager in managers {
            let (beats, stopping) = (Arc::clone(beats), Arc::clone(&signal));
            let line = Line::new(endpoints, vec![manager.clone()], ClientId(entropy_seed()), None);
            let work = Box::new(move || carry(&beats, &line, &stopping));
            threads.push(SystemSpawn.spawn("storage-beat", work)?);
        }
        Ok(Self { signal, threads })
    }
}

impl Drop for BeatThreads {
    fn drop(&mut self) {
        self.signal.stop();
        for thread in self.threads.drain(..) {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "a thread of the storage node panicked");
            }
        }
    }
}

/// Sends beats to one manager until the signal comes.
fn carry(beats: &Beats, line: &Line, signal: &StopSignal) {
    let mut version = 0;
    let mut last: Option<ErrorKind> = None;
    let mut pause = Duration::ZERO;
    while !signal.wait(pause) {
        let answered = line.ask(&beats.beat(version), ANSWER);
        let taken = answered.and_then(|answer| beats.take_answer(version, answer));
        match taken {
            Ok(answer) => (version, pause, last) = (answer.version, answer.pause, None),
            Err(error) => {
                // The same error is logged once, because a beat follows every fifth of a second.
                if last != Some(error.kind()) {
                    tracing::warn!(%error, "a beat failed; the storage node continues to serve");
                }
                (version, pause, last) = (0, AGAIN, Some(error.kind()));
            }
        }
    }
}
