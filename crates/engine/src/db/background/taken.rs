//! The shards that a thread flushes, and the bound on the images that it fetches for the flush.
//!
//! A flush that runs in this process fetches the images of its shards that are at memory nodes. A
//! flush that an executor runs elsewhere fetches none of them here, so a plan may take more than
//! this process can hold. If such a flush runs here after all, its first fetch refuses it
//! ([`FetchRefused`]), before anything was written. The next plans are then bounded.
//!
//! Invariants:
//! 1. All running flushes together fetch within [`FetchRoom`], or a single flush fetches more while
//!    no other one fetches.
//! 2. A refused flush has fetched nothing and written nothing.
//!
//! Thread-safety: one thread runs a job over [`Taken`].
//! Failure: a flush that waits for room ends with `Closed` when its job is cancelled.
//! Cost: one lock for each job that fetches.

use std::fmt;
use std::sync::{Arc, OnceLock};

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use archipelago_base::{Error, ErrorKind, Result};

use crate::db::background::flush_task::{FlushPart, FlushTask};
use crate::db::state::jobs::JobState;
use crate::db::state::memtable::ShardHome;
use crate::job::{Cancel, ShardRef, ShardSource};
use crate::job::{FetchPermit, FetchRoom};
use crate::memtable::{SealedShard, Shard};

/// The cause of the error of a flush that would fetch too much.
#[derive(Debug)]
pub(crate) struct FetchRefused {
    bytes: u64,
    bytes_max: u64,
}

impl fmt::Display for FetchRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, bytes_max } = self;
        write!(f, "{bytes} bytes of images would be fetched, and {bytes_max} may be")
    }
}

impl std::error::Error for FetchRefused {}

/// Limits and memory charges of a job that may fetch images in this process.
pub(crate) struct FetchTerms {
    pub(crate) room: Arc<FetchRoom>,
    /// Bytes of images that a job over several memtables may fetch.
    pub(crate) bytes_max: u64,
    pub(crate) cancel: Cancel,
    pub(crate) budget: Arc<ByteBudget>,
    /// Bytes of memory that its outputs take.
    pub(crate) output_bytes: u64,
}

/// Terms of a job, and the permit and the memory charge that it has taken.
struct Fetching {
    terms: FetchTerms,
    paid: OnceLock<(FetchPermit, Charge)>,
}

/// The shards that a thread writes to tables. The value holds them until it is dropped. Away shards
/// are fetched when the job asks for them.
pub(crate) struct Taken {
    shards: Vec<(ShardRef, ShardHome)>,
    fetching: Option<Fetching>,
}

impl Taken {
    /// Takes the given shards of one memtable.
    pub(crate) fn of_memtable(
        memtable: u64,
        shards: impl Iterator<Item = (usize, ShardHome)>,
    ) -> Self {
        let named = |(at, home)| (ShardRef { memtable, shard: at as u32 }, home);
        Self { shards: shards.map(named).collect(), fetching: None }
    }

    /// Takes the shards of a part of `task` that are in no table, the oldest memtable first.
    pub(crate) fn of_task(state: &JobState, task: &FlushTask, part: FlushPart) -> Self {
        let mut shards = Vec::new();
        for sealed in state.sealed_of(task.family.id) {
            let Some(taken) = task.memtable(sealed.info().id) else { continue };
            for shard in taken.shards_of(part) {
                if let Some(home) = &sealed.view().homes[shard] {
                    let named = ShardRef { memtable: sealed.info().id, shard: shard as u32 };
                    shards.push((named, home.clone()));
                }
            }
        }
        Self { shards, fetching: None }
    }

    /// Bounds what a job over these shards fetches.
    pub(crate) fn bounded(mut self, terms: FetchTerms) -> Self {
        self.fetching = Some(Fetching { terms, paid: OnceLock::new() });
        self
    }

    /// Whether a shard would have to be fetched.
    pub(crate) fn is_apart(&self) -> bool {
        self.shards.iter().any(|(_, home)| home.is_apart())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    pub(crate) fn refs(&self) -> Vec<ShardRef> {
        self.shards.iter().map(|(named, _)| *named).collect()
    }

    /// Number of point records.
    pub(crate) fn entries(&self) -> u64 {
        self.shards.iter().map(|(_, home)| home.entries()).sum()
    }

    /// The first shard, if there is one and it is in memory.
    pub(crate) fn first(&self) -> Option<&Arc<Shard>> {
        self.shards.first()?.1.here()
    }

    /// Takes the room and the memory for all images that the job fetches, once. Fails with
    /// [`FetchRefused`] if they are too many.
    fn pay(&self) -> Result<()> {
        let Some(Fetching { terms, paid }) = &self.fetching else { return Ok(()) };
        if paid.get().is_some() {
            return Ok(());
        }
        let apart = || self.shards.iter().filter(|(_, home)| home.is_apart());
        let images = apart().filter_map(|(_, home)| home.away());
        let bytes = images.map(|away| away.figures().image_bytes).sum();
        let bytes_max = terms.bytes_max;
        let memtable = apart().map(|(named, _)| named.memtable);
        let is_one = memtable.clone().min() == memtable.max();
        if bytes > bytes_max && !is_one {
            let why = FetchRefused { bytes, bytes_max };
            let text = "a flush of memtable shards at memory nodes runs here, and is too large for \
                        that: it is planned again in smaller parts";
            return Err(Error::with_source(ErrorKind::Busy, text, why));
        }
        let permit = terms.room.take(bytes, bytes_max, &terms.cancel)?;
        let _same = paid.set((permit, terms.budget.hold(MemoryClass::Job, terms.output_bytes)));
        Ok(())
    }
}

impl ShardSource for Taken {
    fn shard(&self, wanted: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        match self.shards.iter().find(|(named, _)| named == wanted) {
            Some((_, ShardHome::Here(shard))) => Ok(Arc::clone(shard) as Arc<dyn SealedShard>),
            Some((_, ShardHome::Away(away))) => {
                self.pay()?;
                Ok(away.fetch()?.sealed())
            }
            None => Err(Error::not_found(format!(
                "shard {} of memtable {}",
                wanted.shard, wanted.memtable
            ))),
        }
    }
}
