//! Releases of objects that lost their names, and the holds that delay them.
//!
//! A wait, the drop of a hold and the giving up of an object check whether releases are due
//! ([`super::pending`]). If so, they wake the owner's thread ([`super::strays`]), which releases
//! the objects. A node that does not answer delays a release by seconds, and must not delay a
//! reader that ends or a file that is synced. Without that thread, before it has begun and in a
//! simulation, the calls release by themselves.
//!
//! The list of what waits is bounded. The next release of strays finds the objects beyond the
//! limit, and is then due as well.
//!
//! Thread-safety: the volume's lock guards the list; the pool is called without the lock.
//! Failure: a refused release stays in the list and is repeated. If the process ends before that,
//! the next owner finds the object as a stray. So a volume that closes releases only for a short
//! time, and not after a refusal: a node that does not answer must not hold up the close.
//! Cost: one round trip for all blobs that are due, and one per log. A call with nothing due takes
//! the lock once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::Result;

use super::namespace_log::NamespaceCore;
use super::pending::{Release, ReleaseTime, Superfluous};
use super::record::FileKey;
use super::{Moment, Volume};
use crate::ids::BlobId;

/// Position that a volume with sabotage ([`crate::Sabotage`]) takes for durable without a wait.
const ANY_MOMENT: Moment = Moment { generation: u64::MAX, offset: u64::MAX };

/// Time for which a volume releases objects after its close has begun.
const CLOSE_RELEASES_MAX: Duration = Duration::from_secs(1);

/// Keeps the bytes of a file while it exists, also when the file has no name any more. The drop may
/// start the release of these bytes.
#[derive(Debug)]
pub(crate) struct Hold {
    volume: Arc<Volume>,
    key: FileKey,
}

impl Hold {
    /// Makes the handle of a hold that the volume has counted.
    pub(super) fn new(volume: Arc<Volume>, key: FileKey) -> Self {
        Self { volume, key }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let may_release = self.volume.core.lock().pending.unhold(self.key);
        if may_release {
            self.volume.release_soon();
        }
    }
}

impl Volume {
    /// Has all objects released that are due: by the owner's thread, or by this call while that
    /// thread does not run.
    pub(super) fn release_soon(&self) {
        if !self.is_releasing.load(Ordering::Acquire) {
            self.release_due();
            return;
        }
        if self.check_open().is_err() {
            return;
        }
        let now_ns = self.clock.now_ns();
        let has_due = {
            let mut core = self.core.lock();
            let durable = self.released_through(&core);
            core.pending.has_due(ReleaseTime { durable, now_ns })
        };
        if let Some(thread) = self.strays.get().filter(|_| has_due) {
            thread.wake();
        }
    }

    /// Position through which records are durable. An object may be released if the record that
    /// took its name is before it.
    fn released_through(&self, core: &NamespaceCore) -> Moment {
        if self.sabotage.early_release() { ANY_MOMENT } else { core.durable }
    }

    /// Whether the volume closes, and has released objects for long enough.
    fn has_released_enough(&self) -> bool {
        let limit_ns = CLOSE_RELEASES_MAX.as_nanos() as u64;
        let closing_ns = self.closing_ns.get();
        closing_ns.is_some_and(|since_ns| self.clock.now_ns() >= since_ns.saturating_add(limit_ns))
    }

    /// Releases all objects that are due, or some of them if the volume closes. It reports no
    /// errors, because a later call repeats the releases that the pool refuses.
    pub(super) fn release_due(&self) {
        if self.check_open().is_err() || self.has_released_enough() {
            return;
        }
        let now_ns = self.clock.now_ns();
        let due = {
            let mut core = self.core.lock();
            let durable = self.released_through(&core);
            core.pending.take_due(ReleaseTime { durable, now_ns })
        };
        let is_blob = |release: &Release| matches!(release.object, Superfluous::Blob(_));
        let (blobs, others): (Vec<Release>, Vec<Release>) = due.into_iter().partition(is_blob);
        let mut has_refused = !self.release_blobs(blobs);
        for release in others {
            let is_closing = self.closing_ns.get().is_some();
            let is_long = has_refused || release.object == Superfluous::Strays;
            if is_closing && (is_long || self.has_released_enough()) {
                self.core.lock().pending.put_back_unasked(release);
                continue;
            }
            if let Err(error) = self.observe(self.release(&release.object)) {
                let (volume, object) = (self.name(), &release.object);
                tracing::warn!(%error, volume, ?object, "a release failed and will be repeated");
                self.core.lock().pending.put_back(release, self.clock.now_ns());
                has_refused = true;
            }
        }
    }

    /// Releases blobs in one batch. If that fails, all of them are due again later, because the
    /// release of a blob may be repeated. Returns whether the pool took the batch.
    fn release_blobs(&self, releases: Vec<Release>) -> bool {
        let id = |release: &Release| match release.object {
            Superfluous::Blob(blob) => Some(blob),
            Superfluous::Log(..) | Superfluous::Strays => None,
        };
        let blobs: Vec<BlobId> = releases.iter().filter_map(id).collect();
        if blobs.is_empty() {
            return true;
        }
        let (volume, epoch) = (self.id(), self.epoch());
        let released = self.observe(self.stores.blobs.release_all(&blobs, volume, epoch));
        let Err(error) = released else { return true };
        let (volume, blobs, now_ns) = (self.name(), blobs.len(), self.clock.now_ns());
        tracing::warn!(%error, volume, blobs, "a release failed and will be repeated");
        let mut core = self.core.lock();
        releases.into_iter().for_each(|release| core.pending.put_back(release, now_ns));
        false
    }

    fn release(&self, object: &Superfluous) -> Result<()> {
        let (volume, epoch) = (self.id(), self.epoch());
        match object {
            Superfluous::Blob(blob) => self.stores.blobs.release(*blob, volume, epoch),
            Superfluous::Log(log, layout) => self.stores.logs.remove(*log, layout, epoch),
            Superfluous::Strays => self.release_strays().map(|_| ()),
        }
    }

    /// Gives up all objects of the volume that are neither named nor pending, and returns their
    /// number. The opening of a volume releases strays, and a thread of the owner repeats that
    /// after each [`VolumeOptions::strays_every`](super::VolumeOptions::strays_every). Errors:
    /// those of the pool; `Fenced`.
    pub fn release_strays(&self) -> Result<u64> {
        self.check_open()?;
        self.observe(self.try_release_strays())
    }

    fn try_release_strays(&self) -> Result<u64> {
        let (volume, epoch) = (self.id(), self.epoch());
        let ignored = self.sabotage.pending_ignored();
        let blobs = self.stores.blobs.release_strays(volume, epoch, &|blob| {
            let core = self.core.lock();
            core.state.blob_owner(blob).is_some() || (!ignored && core.pending.has_blob(blob))
        })?;
        let logs = self.stores.logs.release_strays(volume, epoch, &|log| {
            if self.registration.has_log(log) {
                return true;
            }
            let core = self.core.lock();
            core.state.log_owner(log).is_some() || (!ignored && core.pending.has_log(log))
        })?;
        if blobs + logs > 0 {
            tracing::info!(volume = self.name(), blobs, logs, "strays were released");
        }
        Ok(blobs + logs)
    }
}
