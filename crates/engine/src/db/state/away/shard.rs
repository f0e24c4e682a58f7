//! One memtable shard at a memory node: reads of its records, its copy in memory, and its release.
//!
//! Thread-safety: any thread may call any method. The lock of the link is never held while the
//! store is called.
//! Failure: `Busy` if the records cannot be had in time. A shard whose records are lost for good
//! keeps the error that says so.
//! Cost: a reference to the link, and the parts that [`Remainder`] has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago_base::budget::{Charge, MemoryClass};
use archipelago_base::{Error, ErrorKind, Result};

use super::StoreLink;
use super::copy::{FetchedImage, ShardCopy};
use super::deadline::{READ_LIMIT, ReadDeadline};
use super::remainder::{AwayFigures, Remainder};
use crate::memtable::{SealedImage, SealedShard, ShardFilter};
use crate::remote::{AwayError, ShardId, StoreNode};
use crate::sst::SampledKey;
use crate::stats::Ticker;
use crate::tombstone::TombstoneSet;

/// One wait of a read for the copy of a lost shard.
const COPY_WAIT: Duration = Duration::from_millis(20);

/// Latest news of the store about a shard. The shard and the registry of the link share it.
pub(super) struct ShardNews {
    /// Number of the node at which the shard is read.
    node: AtomicU64,
    /// Whether the store has lost the shard.
    is_lost: AtomicBool,
}

impl ShardNews {
    pub(super) fn new(node: StoreNode) -> Self {
        Self { node: AtomicU64::new(node.0), is_lost: AtomicBool::new(false) }
    }

    /// Notes that the shard is read at `node` from now on.
    pub(super) fn set_node(&self, node: StoreNode) {
        self.node.store(node.0, Ordering::Release);
    }

    /// Notes that the store has lost the shard. Returns whether it was lost before.
    pub(super) fn set_lost(&self) -> bool {
        self.is_lost.swap(true, Ordering::AcqRel)
    }
}

/// A memtable shard at a memory node, with the parts of it that stay in memory.
pub(crate) struct AwayShard {
    id: ShardId,
    figures: AwayFigures,
    filter: Option<ShardFilter>,
    tombstones: Arc<TombstoneSet>,
    sample: Vec<SampledKey>,
    /// The records in memory, or the reason for which they are lost for good.
    copy: OnceLock<Result<ShardCopy>>,
    /// The node of the shard, and whether the store has lost it.
    news: Arc<ShardNews>,
    is_released: AtomicBool,
    link: Arc<StoreLink>,
    /// Memory charge of everything here except the range tombstones, which have a charge of their
    /// own.
    charge: Charge,
}

impl Drop for AwayShard {
    fn drop(&mut self) {
        {
            let mut registry = self.link.registry.lock();
            registry.shards.remove(&self.id);
            registry.lost.remove(&self.id);
        }
        self.release();
    }
}

impl AwayShard {
    /// The shard `id`. The registry of the link shares `news`.
    pub(super) fn new(
        id: ShardId,
        rest: Remainder,
        news: Arc<ShardNews>,
        link: &Arc<StoreLink>,
    ) -> Self {
        let bytes = rest.bytes() + size_of::<Self>() as u64;
        let charge = link.parts.budget.hold(MemoryClass::Memtable, bytes);
        let Remainder { figures, filter, tombstones, sample } = rest;
        Self {
            id,
            figures,
            filter,
            tombstones,
            sample,
            copy: OnceLock::new(),
            news,
            is_released: AtomicBool::new(false),
            link: Arc::clone(link),
            charge,
        }
    }

    pub(crate) fn id(&self) -> ShardId {
        self.id
    }

    /// The node at which the shard is read. It may change if another node has a copy.
    pub(crate) fn node(&self) -> StoreNode {
        StoreNode(self.news.node.load(Ordering::Acquire))
    }

    pub(crate) fn link(&self) -> &Arc<StoreLink> {
        &self.link
    }

    pub(crate) fn figures(&self) -> &AwayFigures {
        &self.figures
    }

    /// Bytes of memory of the parts that stay here, without a copy.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.charge.bytes() + self.tombstones.memory_bytes()
    }

    /// Some of its keys at even distances, each with its newest record.
    pub(crate) fn sample(&self) -> &[SampledKey] {
        &self.sample
    }

    pub(crate) fn tombstones(&self) -> &Arc<TombstoneSet> {
        &self.tombstones
    }

    /// Whether a key with this hash may be in the shard. Says nothing about range tombstones.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        self.figures.entries > 0
            && self.filter.as_ref().is_none_or(|filter| filter.may_contain(hash))
    }

    /// The copy in memory, if the shard has one. Fails if the records are lost for good.
    pub(crate) fn copy(&self) -> Result<Option<&ShardCopy>> {
        match self.copy.get() {
            None => Ok(None),
            Some(Ok(copy)) => Ok(Some(copy)),
            Some(Err(gone)) => Err(gone.clone()),
        }
    }

    /// Whether the shard has its copy, or its records are lost for good. Then no request goes to
    /// the node any more.
    pub(crate) fn has_copy(&self) -> bool {
        self.copy.get().is_some()
    }

    /// Whether the store has lost the shard or is closed. Then no request goes to the store.
    pub(crate) fn is_lost(&self) -> bool {
        self.news.is_lost.load(Ordering::Acquire) || self.link.is_closed.load(Ordering::Acquire)
    }

    /// Gives every reader the records in memory, or the reason for which they are lost for good.
    pub(crate) fn set_copy(&self, copy: Result<ShardCopy>) {
        // A copy that another thread set first has the same records.
        let _same = self.copy.set(copy);
        self.link.settle(self.id);
        self.link.copied.notify_all();
    }

    /// Notes that the store has lost it, so that background work rebuilds it.
    pub(crate) fn note_lost(&self, why: &str) {
        self.link.mark_lost(&[self.id], why);
    }

    /// Waits until a lost shard has its copy. Errors: `Busy` if the deadline of the read passes
    /// before.
    pub(crate) fn wait_for_copy(&self, deadline: &ReadDeadline) -> Result<()> {
        let link = &self.link;
        if !link.parts.may_wait
            && let Some(rebuild) = link.rebuilder.get()
        {
            let rebuilt = rebuild();
            if !self.has_copy() {
                // The log may have failed to give another shard.
                rebuilt?;
            }
        }
        let mut registry = link.registry.lock();
        loop {
            if self.has_copy() {
                return Ok(());
            }
            if link.is_closed.load(Ordering::Acquire) {
                return Err(Error::closed(
                    "the database is closed, and a memtable shard that the reader needs is at a \
                     memory node",
                ));
            }
            let Some(left) = link.left(deadline).filter(|_| link.parts.may_wait) else { break };
            if link.copied.wait_for(&mut registry, COPY_WAIT.min(left)).timed_out() {
                deadline.note_timed_out_wait();
            }
        }
        drop(registry);
        Err(self.not_now(AwayError::Lost("it is being rebuilt from the log".to_owned())))
    }

    /// The error of a read that cannot have the shard now.
    pub(crate) fn not_now(&self, error: AwayError) -> Error {
        self.link.stats().add(Ticker::AwayReadsBusy, 1);
        let text = format!(
            "memtable shard {} is at {} and cannot be read now: try again; if this error repeats, \
             check that the node runs and can be reached",
            self.id,
            self.link.store().node_name(self.node())
        );
        Error::with_source(ErrorKind::Busy, text, error)
    }

    /// The error of a read whose deadline has passed before the shard gave its records.
    pub(crate) fn too_late(&self) -> Error {
        let limit_s = READ_LIMIT.as_secs();
        self.not_now(AwayError::Busy(format!("the read has taken {limit_s} s, which is its limit")))
    }

    /// The records in memory, fetched from the node if they are not there yet.
    pub(crate) fn fetch(&self) -> Result<ShardCopy> {
        if let Some(copy) = self.copy()? {
            return Ok(copy.clone());
        }
        let started_ns = self.link.parts.clock.now_ns();
        let fetched = match self.is_lost() {
            true => Err(AwayError::Lost("it is being rebuilt from the log".to_owned())),
            false => self.link.store().fetch(self.id).and_then(|image| self.check_image(image)),
        };
        let image = match fetched {
            Ok(image) => image,
            Err(error) => {
                // Another thread may have fetched or rebuilt the shard meanwhile.
                if let Some(copy) = self.copy()? {
                    return Ok(copy.clone());
                }
                if let AwayError::Lost(why) = &error {
                    self.note_lost(why);
                }
                return Err(self.not_now(error));
            }
        };
        self.link.stats().add(Ticker::AwayShardsFetched, 1);
        self.link.stats().add(Ticker::AwayBytesFetched, self.figures.image_bytes);
        let fetch_ns = self.link.parts.clock.now_ns().saturating_sub(started_ns);
        self.link.stats().add(Ticker::AwayFetchNs, fetch_ns);
        let charge = self.link.parts.budget.hold(MemoryClass::Memtable, self.figures.image_bytes);
        self.set_copy(Ok(ShardCopy::Image(Arc::new(FetchedImage::new(image, charge)))));
        match self.copy()? {
            Some(copy) => Ok(copy.clone()),
            None => Err(Error::internal("a copy that was set is gone")),
        }
    }

    /// Whether a fetched image is that of this shard.
    fn check_image(&self, image: Arc<SealedImage>) -> Result<Arc<SealedImage>, AwayError> {
        let own = &self.figures;
        let is_own = image.entries() == own.entries
            && image.deletions() == own.deletions
            && image.data_bytes() == own.data_bytes
            && image.seq_range() == (own.smallest_seq, own.largest_seq);
        match is_own {
            true => Ok(image),
            false => Err(AwayError::Lost(format!("what came for shard {} is not it", self.id))),
        }
    }

    /// Leaves the shard at its node for the next open of the database.
    pub(super) fn leave(&self) {
        self.is_released.store(true, Ordering::Release);
        self.link.settle(self.id);
    }

    /// Releases the shard at the node, once. Before the store is open, the link keeps the release
    /// until it opens.
    pub(crate) fn release(&self) {
        if self.is_released.swap(true, Ordering::AcqRel) {
            return;
        }
        self.link.settle(self.id);
        {
            let mut registry = self.link.registry.lock();
            if !self.link.is_open.load(Ordering::Acquire) {
                registry.unreleased.push(self.id);
                return;
            }
        }
        self.link.store().release(&[self.id], self.link.oldest.load(Ordering::Relaxed));
    }
}
