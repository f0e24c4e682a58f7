//! The layouts of logs for which no thread waits.
//!
//! A pool moves an open log to other nodes when a node drains or is lost, or when a domain returns.
//! The new layout has an effect only after it is kept. For a log in use, a thread that waits for
//! the log keeps the layout. For an idle log no thread waits, so a thread of the owner keeps its
//! layouts.
//!
//! Thread-safety: any number of threads may keep layouts.
//! Failure: a layout that cannot be kept is tried again by the next iteration.
//! Cost: one short lock per open log and iteration.

use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::spawn::Spawn;
use archipelago_base::stop_signal::StopSignal;

use super::Volume;
use super::thread::VolumeThread;

/// Time between two iterations.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// Starts the thread that keeps layouts of `volume`. It does not keep the volume. Errors: those of
/// `spawn`.
pub(super) fn start_keeping(spawn: &dyn Spawn, volume: &Arc<Volume>) -> Result<VolumeThread> {
    let volume = Arc::downgrade(volume);
    VolumeThread::start(spawn, "volume-layouts", move |signal| keep(signal, &volume))
}

/// Keeps layouts from time to time, until the signal comes or the volume is gone.
fn keep(signal: &StopSignal, volume: &Weak<Volume>) {
    while !signal.wait(KEEP_EVERY) {
        let Some(volume) = volume.upgrade() else { return };
        if volume.check_open().is_err() {
            return;
        }
        volume.keep_idle_layouts();
    }
}

impl Volume {
    /// Keeps the layouts of logs that the pool has moved while no thread waited for them. A thread
    /// of the owner does this once a second; a simulation, which has no such thread, calls it.
    /// Errors of the pool leave a layout to the next call.
    pub fn keep_idle_layouts(&self) {
        self.stores.logs.keep_layouts(self.id());
    }
}
