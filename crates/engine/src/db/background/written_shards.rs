//! Shards that a running flush has written leave memory one after another.
//!
//! A flush writes a table for each shard and installs all of them by one edit, so that the tables
//! hold a prefix of all writes and the log needs no sync (decision 0015). The memory of a shard
//! does not wait for that edit. As soon as the tables of a shard are complete, readers find its
//! records there, and the shard is freed (decision 0078).
//!
//! 1. A work of the flush ends: its tables and their names are durable, and they are checked.
//! 2. [`publish`] swaps one super version under the jobs lock: the shard leaves the sealed
//!    memtable, and `readable` gets its tables.
//! 3. The last work ends, and one edit installs the tables of all shards as before.
//!
//! Invariants:
//! 1. Readers find each record in exactly one place: the shard or its tables.
//! 2. Jobs, the manifest and checks of the bucket map use `SuperVersion::version`, which never has
//!    a table that no edit names. So no job takes such a table as an input.
//! 3. The log keeps the records of a written shard until the edit: a crash loses only tables that
//!    nothing names, and the next open removes them.
//! 4. A written shard stays written if its flush fails, because its memory is gone. The next
//!    attempt writes the rest, and its edit installs both. That attempt takes all memtables whose
//!    records the tables have: else its edit would cover fewer records than it installs, and the
//!    others would come a second time from memory or the log.
//! 5. The bucket map does not change in the range of a written shard
//!    ([`JobState::running_flushes`](crate::db::state::jobs::JobState::running_flushes)).
//!
//! Shards with separated values stay in memory until the edit, because no version has their value
//! files before.
//!
//! Thread-safety: the thread that runs the flush publishes its shards.
//! Failure: a family that was dropped meanwhile publishes nothing.
//! Cost: one version and one super version for each shard, in the order of the number of files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};

use crate::db::background::flush::FlushTask;
use crate::db::inner::DbInner;
use crate::db::state::jobs::{JobState, WrittenShard};
use crate::db::state::memtable::ShardHome;
use crate::db::write::stalling;
use crate::job::{JobOutput, ShardRef, ShardSource};
use crate::lock_order::Order;
use crate::memtable::{SealedShard, Shard};
use crate::version::rebalance::RunningFlush;

/// A shard below this share of its flush is not worth a super version of its own.
const SHARE_MIN: u64 = 64;

/// The shards that a thread writes, which keeps them for as long. Those that are away are fetched
/// when the job asks for them.
pub(crate) struct Taken(Vec<(ShardRef, ShardHome)>);

impl Taken {
    /// Given shards of one memtable.
    pub(crate) fn of_memtable(
        memtable: u64,
        shards: impl Iterator<Item = (usize, ShardHome)>,
    ) -> Self {
        let named = |(at, home)| (ShardRef { memtable, shard: at as u32 }, home);
        Self(shards.map(named).collect())
    }

    /// The shards at position `shard` of the memtables of `task` that are in no table.
    pub(crate) fn of_task(state: &JobState, task: &FlushTask, shard: usize) -> Self {
        let sealed = state
            .sealed_of(task.family.id)
            .filter(|sealed| task.memtables.iter().any(|memtable| memtable.id == sealed.info.id));
        let taken = sealed.filter_map(|sealed| {
            let named = ShardRef { memtable: sealed.info.id, shard: shard as u32 };
            Some((named, sealed.view.homes[shard].clone()?))
        });
        Self(taken.collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn refs(&self) -> Vec<ShardRef> {
        self.0.iter().map(|(named, _)| *named).collect()
    }

    /// Number of point records.
    pub(crate) fn entries(&self) -> u64 {
        self.0.iter().map(|(_, home)| home.entries()).sum()
    }

    /// The first shard, if there is one and it is in memory.
    pub(crate) fn first(&self) -> Option<&Arc<Shard>> {
        self.0.first()?.1.here()
    }
}

impl ShardSource for Taken {
    fn shard(&self, wanted: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        match self.0.iter().find(|(named, _)| named == wanted) {
            Some((_, ShardHome::Here(shard))) => Ok(Arc::clone(shard) as Arc<dyn SealedShard>),
            Some((_, ShardHome::Away(away))) => Ok(away.fetch()?.sealed()),
            None => Err(Error::not_found(format!(
                "shard {} of memtable {}",
                wanted.shard, wanted.memtable
            ))),
        }
    }
}

/// Readers find the shard `shard` of `task` in the tables of `output` from now on, and its memory
/// is free.
pub(crate) fn publish(
    db: &DbInner,
    task: &FlushTask,
    shard: usize,
    output: &JobOutput,
) -> Result<()> {
    let is_separated = !output.value_files.is_empty() || !output.invalid_files.is_empty();
    let (own, whole) = (task.data_bytes(shard..shard + 1), task.data_bytes(task.shards.clone()));
    if is_separated || own.saturating_mul(SHARE_MIN) < whole {
        return Ok(());
    }
    db.context.fault_point("flush.shard_written")?;
    let family = &task.family;
    let trash = db.storage.trash();
    let tables = output.files.iter().map(|meta| trash.unnamed_table(meta.clone())).collect();
    let mut written = WrittenShard {
        memtables: Vec::new(),
        shard,
        flush: RunningFlush {
            range: task.range_of(shard),
            planned_cuts: task.planned_cuts.clone(),
        },
        output: output.clone(),
        tables,
    };
    let mut state = db.jobs.lock(Order::none());
    let Some(tracker) = state.flushes_mut().get_mut(&family.id) else { return Ok(()) };
    for sealed in &mut tracker.queue {
        // Those that had nothing there may be installed, and so forgotten, before the others.
        let is_taken = has_memtable(task, sealed.info.id);
        if is_taken && sealed.view.homes[shard].is_some() {
            written.memtables.push(sealed.info.id);
            sealed.take_from_view(shard..shard + 1);
        }
    }
    tracker.written.push(written);
    db.view.republish(&mut state, family, None);
    drop(state);
    family.backlog_since_ns.store(db.context.clock().now_ns(), Ordering::Relaxed);
    stalling::recompute_stall(&db.context, &db.observers, &db.pacing, &db.jobs, family);
    db.jobs.notify_progress();
    Ok(())
}

/// Whether `written` is a shard of the task.
pub(crate) fn is_of(written: &WrittenShard, task: &FlushTask) -> bool {
    task.shards.contains(&written.shard)
        && written.memtables.iter().all(|id| has_memtable(task, *id))
}

fn has_memtable(task: &FlushTask, id: u64) -> bool {
    task.memtables.iter().any(|memtable| memtable.id == id)
}

/// The outputs of earlier attempts that the edit of `task` installs too. Errors: the task takes a
/// part of a written shard.
pub(crate) fn earlier_outputs(
    state: &JobState,
    task: &FlushTask,
    now: &[JobOutput],
) -> Result<Vec<JobOutput>> {
    let mut earlier = Vec::new();
    for written in state.written_of(task.family.id) {
        let is_any = task.shards.contains(&written.shard)
            && written.memtables.iter().any(|id| has_memtable(task, *id));
        if is_any && !is_of(written, task) {
            return Err(Error::internal("a flush would install a part of a written shard"));
        }
        if is_any && !now.iter().any(|output| output.files == written.output.files) {
            earlier.push(written.output.clone());
        }
    }
    Ok(earlier)
}

/// Removes the files of a failed flush, except those that readers use. Returns whether there are
/// such files.
pub(crate) fn discard_unpublished(db: &DbInner, task: &FlushTask, output: &JobOutput) -> bool {
    let used: Vec<u64> = {
        let state = db.jobs.lock(Order::none());
        let written = state.written_of(task.family.id).iter();
        written.flat_map(|shard| &shard.output.files).map(|meta| meta.no).collect()
    };
    let mut left = output.clone();
    left.files.retain(|meta| !used.contains(&meta.no));
    db.storage.discard(&left, Order::none());
    !used.is_empty()
}
