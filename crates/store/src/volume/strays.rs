//! The repeated release of strays: objects of the volume that it neither names nor keeps pending.
//!
//! The opening of a volume releases strays. Later ones come from nodes that did not answer a
//! release, and from processes of older epochs whose requests arrived late. A thread of the owner
//! releases those after each [`VolumeOptions::strays_every`].
//!
//! Thread-safety: any number of threads may release strays.
//! Failure: a release that failed is repeated like any other ([`super::releases`]).
//! Cost: a list of the volume's blobs and logs from each node.
//!
//! [`VolumeOptions::strays_every`]: super::VolumeOptions::strays_every

use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::spawn::Spawn;
use archipelago_base::stop_signal::StopSignal;

use super::pending::Superfluous;
use super::thread::VolumeThread;
use super::{Moment, Volume};

/// Starts the thread that releases strays of `volume`. It does not keep the volume. Errors: those
/// of `spawn`.
pub(super) fn start_releasing(
    spawn: &dyn Spawn,
    volume: &Arc<Volume>,
    every: Duration,
) -> Result<VolumeThread> {
    let volume = Arc::downgrade(volume);
    VolumeThread::start(spawn, "volume-strays", move |signal| release(signal, &volume, every))
}

/// Releases strays from time to time, until the signal comes or the volume is gone.
fn release(signal: &StopSignal, volume: &Weak<Volume>, every: Duration) {
    while !signal.wait(every) {
        let Some(volume) = volume.upgrade() else { return };
        if volume.check_open().is_err() {
            return;
        }
        volume.core.lock().pending.release(Superfluous::Strays, Moment::default());
        volume.release_due();
    }
}
