//! The owner's thread that releases the objects that are due, and strays from time to time.
//!
//! Other threads wake it when a release is due ([`super::releases`]), so that none of them waits
//! for a node.
//!
//! *Strays* are objects of the volume that it neither names nor keeps pending. The opening of a
//! volume releases strays. Later strays have three origins: nodes that did not answer a release,
//! releases that exceeded the list, and late requests of processes with older epochs. The thread
//! releases those after each [`VolumeOptions::strays_every`].
//!
//! Thread-safety: any number of threads may release objects and strays.
//! Failure: a release that failed is repeated after a while.
//! Cost: a release of strays takes a list of the volume's blobs and logs from each node.
//!
//! [`VolumeOptions::strays_every`]: super::VolumeOptions::strays_every

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::spawn::Spawn;
use archipelago_base::stop_signal::StopSignal;

use super::pending::{RETRY, Superfluous};
use super::thread::VolumeThread;
use super::{Moment, Volume};

/// Starts the thread that releases objects and strays of `volume`. It does not keep the volume.
/// Errors: those of `spawn`.
pub(super) fn start_releasing(
    spawn: &dyn Spawn,
    volume: &Arc<Volume>,
    every: Duration,
) -> Result<VolumeThread> {
    let volume = Arc::downgrade(volume);
    VolumeThread::start(spawn, "volume-strays", move |signal| release(signal, &volume, every))
}

/// Says that the thread runs, until the drop.
struct Releasing<'a>(&'a Weak<Volume>);

impl<'a> Releasing<'a> {
    fn begin(volume: &'a Weak<Volume>) -> Self {
        set_releasing(volume, true);
        Self(volume)
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        set_releasing(self.0, false);
    }
}

fn set_releasing(volume: &Weak<Volume>, is_releasing: bool) {
    if let Some(volume) = volume.upgrade() {
        volume.is_releasing.store(is_releasing, Ordering::Release);
    }
}

/// Releases the objects that are due when the thread is woken, and strays from time to time, until
/// the signal comes or the volume is dropped.
fn release(signal: &StopSignal, volume: &Weak<Volume>, every: Duration) {
    let _releasing = Releasing::begin(volume);
    let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
    let mut strays_ns = None;
    let mut pause = Duration::ZERO;
    while !signal.wait(pause) {
        let Some(volume) = volume.upgrade() else { return };
        if volume.check_open().is_err() {
            return;
        }
        let now_ns = volume.clock.now_ns();
        // The opening of the volume has released strays.
        let due_ns = *strays_ns.get_or_insert(now_ns.saturating_add(every_ns));
        if now_ns >= due_ns {
            strays_ns = Some(now_ns.saturating_add(every_ns));
            volume.core.lock().pending.release(Superfluous::Strays, Moment::default());
        }
        volume.release_due();
        let repeated_ns = volume.core.lock().pending.repeated_ns();
        let now_ns = volume.clock.now_ns();
        let until = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(now_ns));
        pause = strays_ns.map_or(Duration::ZERO, until);
        if let Some(at_ns) = repeated_ns {
            // A release that cannot run yet must not keep the thread busy.
            pause = pause.min(until(at_ns).max(RETRY));
        }
    }
}
