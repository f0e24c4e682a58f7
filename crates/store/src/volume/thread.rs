//! The threads of a volume's owner.
//!
//! Thread-safety: any thread may stop a [`VolumeThread`].
//! Failure: a thread that panicked is logged when it is joined.
//! Cost: a wait of a thread is one sleep.

use archipelago_base::Result;
use archipelago_base::spawn::{Joiner, Spawn};
use archipelago_base::stop_signal::StopSignal;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
/// A thread of an owner. A drop signals the end to the thread, and does not wait for it.
pub(super) struct VolumeThread {
    signal: Arc<StopSignal>,
    joiner: Mutex<Option<Joiner>>,
}

impl fmt::Debug for VolumeThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeThread").finish_non_exhaustive()
    }
}

impl Drop for VolumeThread {
    fn drop(&mut self) {
        self.signal.stop();
    }
}

impl VolumeThread {
    /// Starts a thread that runs `body` until the signal comes. Errors: those of `spawn`.
    pub(super) fn start(
        spawn: &dyn Spawn,
        name: &str,
        body: impl FnOnce(&StopSignal) + Send + 'static,
    ) -> Result<Self> {
        let signal = Arc::new(StopSignal::default());
        let told = Arc::clone(&signal);
        let joiner = spawn.spawn(name, Box::new(move || body(&told)))?;
        Ok(Self { signal, joiner: Mutex::new(Some(joiner)) })
    }

    /// Ends the present pause of the thread, or its next one.
    pub(super) fn wake(&self) {
        self.signal.wake();
    }

    /// Ends the thread, and waits for the end of its present work.
    pub(super) fn stop(&self) {
        self.signal.stop();
        if let Some(joiner) = self.joiner.lock().take()
            && let Err(error) = joiner.join()
        {
            tracing::error!(%error, "a thread of a volume failed");
        }
    }
}
