//! Written shards: shards that a running flush has written leave memory one after another.
//!
//! A flush writes a table for each shard, and a value file if the shard has separated values. It
//! installs all of these files by one edit. So they hold a prefix of all writes, and the log needs
//! no sync (decision 0015). The memory of a shard does not wait for that edit. As soon as the files
//! of a shard are complete, readers find its records there, and the shard is freed (decision 0078,
//! for value files decision 0097).
//!
//! 1. A part of the flush ends: its files and their names are durable, and the files are checked.
//! 2. [`publish`] swaps one super version under the jobs lock: the shard leaves the sealed
//!    memtable, and `readable` gets its tables and value files.
//! 3. The last part ends, and one edit installs the files of all shards.
//!
//! Invariants:
//! 1. Readers find each record in exactly one place: the shard or its tables.
//! 2. Jobs, the manifest and checks of the bucket map use `SuperVersion::version`, which never has
//!    a file that no edit names. So no job takes such a table as an input, and no garbage
//!    collection such a value file.
//! 3. The log keeps the records of a written shard until the edit. After a crash, no edit names its
//!    files, and the next open removes them.
//! 4. A written shard stays written if its flush fails, because its memory is gone. The next
//!    attempt writes the remaining shards, and its edit installs both. That attempt takes all
//!    memtables whose records the tables have. Otherwise its edit would cover fewer records than it
//!    installs, and the others would come a second time from memory or the log.
//! 5. No failed flush removes a file that was published, even if its family was dropped meanwhile,
//!    because readers may not have opened it yet. The drop marks the file obsolete, and the trash
//!    removes it with its last reader.
//! 6. The bucket map does not change in the range of a written shard
//!    ([`JobState::running_flushes`](crate::db::state::jobs::JobState::running_flushes)).
//! 7. The tables of a written shard reference the value files of the same shard and no others. So
//!    all of their references resolve in `readable`, whatever garbage collection installs.
//!
//! Thread-safety: the thread that runs the flush publishes its shards.
//! Failure: a family that was dropped meanwhile publishes nothing.
//! Cost: one version and one super version for each shard, which is linear in the number of files.

use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};

use crate::db::background::flush_task::{FlushPart, FlushTask};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::state::jobs::JobState;
use crate::db::state::sealed::WrittenShard;
use crate::db::write::stalling::{self, StallOwners};
use crate::job::JobOutput;
use crate::lock_order::Order;
use crate::version::rebalance::RunningFlush;

/// Divisor of the bytes of a flush. A shard with less than this share of them is not published
/// alone.
const SHARE_MIN: u64 = 64;

/// Publishes the shard `shard` of `task`. Readers find its records in the files of `output` from
/// now on, and its memory is freed. Small shards stay in memory. `numbers` keeps the numbers of
/// published files.
pub(crate) fn publish(
    numbers: &JobNumbers<'_>,
    stall: StallOwners<'_>,
    task: &FlushTask,
    shard: usize,
    output: &JobOutput,
) -> Result<()> {
    let owners = numbers.owners();
    let (own, whole) = (task.data_bytes(FlushPart::Shard(shard)), task.whole_bytes());
    if own.saturating_mul(SHARE_MIN) < whole {
        return Ok(());
    }
    owners.context.fault_point("flush.shard_written")?;
    let family = &task.family;
    let trash = owners.storage.trash();
    let tables = output.files.iter().map(|meta| trash.unnamed_table(meta.clone())).collect();
    let values = output.value_files.iter();
    let value_files = values.map(|meta| trash.unnamed_value_file(meta.clone())).collect();
    let mut written = WrittenShard {
        memtables: Vec::new(),
        shard,
        flush: RunningFlush {
            range: task.range_of(FlushPart::Shard(shard)),
            planned_cuts: task.planned_cuts.clone(),
        },
        output: output.clone(),
        tables,
        value_files,
    };
    let mut state = owners.jobs.lock(Order::none());
    let Some(tracker) = state.flushes_mut().get_mut(&family.id) else { return Ok(()) };
    output.files.iter().for_each(|meta| numbers.keep(meta.no));
    output.value_files.iter().for_each(|meta| numbers.keep(meta.no));
    for sealed in tracker.queue_mut() {
        // Memtables without records in this shard are left out, because they may be installed and
        // forgotten before the others.
        let is_taken = task.memtable(sealed.info().id).is_some();
        if is_taken && sealed.view().homes[shard].is_some() {
            written.memtables.push(sealed.info().id);
            sealed.take_from_view(shard..shard + 1);
        }
    }
    tracker.add_written(written);
    owners.view.republish(&mut state, family, None);
    drop(state);
    family.backlog_since_ns.store(owners.context.clock().now_ns(), Ordering::Relaxed);
    stalling::recompute_stall(stall, family);
    owners.jobs.notify_progress();
    Ok(())
}

/// Whether `written` is a shard of the task.
pub(crate) fn is_of(written: &WrittenShard, task: &FlushTask) -> bool {
    task.has_part(written.shard) && written.memtables.iter().all(|id| task.memtable(*id).is_some())
}

/// The outputs of earlier attempts that the edit of `task` installs as well. Fails with `Internal`
/// if the task takes only a part of a written shard.
pub(crate) fn earlier_outputs(
    state: &JobState,
    task: &FlushTask,
    now: &[JobOutput],
) -> Result<Vec<JobOutput>> {
    let mut earlier = Vec::new();
    for written in state.written_of(task.family.id) {
        let is_any = task.has_part(written.shard)
            && written.memtables.iter().any(|id| task.memtable(*id).is_some());
        if is_any && !is_of(written, task) {
            return Err(Error::internal("a flush would install a part of a written shard"));
        }
        if is_any && !now.iter().any(|output| output.files == written.output.files) {
            earlier.push(written.output.clone());
        }
    }
    Ok(earlier)
}

/// Removes the files of a failed flush, except those that this attempt or an earlier one has
/// published. Readers may use those also after their family was dropped.
pub(crate) fn discard_unpublished(numbers: &JobNumbers<'_>, output: &JobOutput) {
    let mut left = output.clone();
    left.files.retain(|meta| numbers.contains(meta.no));
    left.value_files.retain(|meta| numbers.contains(meta.no));
    numbers.owners().storage.discard(&left, Order::none());
}
