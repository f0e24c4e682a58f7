//! The replay of the log: its records go to memtables, and from full memtables to tables that wait
//! for the one edit of recovery.
//!
//! Invariants:
//! 1. A record that a flushed-through sequence number covers is skipped.
//! 2. Nothing is installed here. After an error the tables are removed.
//! 3. Every record of a kept log pins a segment that is not younger than its own.
//! 4. Tables that were written from memtables lie in the one bucket that existed when they were
//!    written.
//!
//! Thread-safety: the thread that opens the database owns the replay.
//! Failure: an error ends the replay, and [`Replay::discard`] removes what it wrote.
//! Cost: O(records), and a check of the byte budget every `BUDGET_LOOK_RECORDS` records.

use std::cell::Cell;
use std::sync::Arc;

use archipelago_base::budget::Pressure;
use archipelago_base::{CfId, Error, ErrorKind, FileNo, Result, SeqNo};

use super::takeover::Inherited;
use crate::db::background::flush;
use crate::db::background::flush_task::{FlushCut, FlushPart, FlushTask, TakenMemtable};
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::job_specs;
use crate::db::background::taken::Taken;
use crate::db::inner::DbInner;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::memtable::{Memtable, RECORD_OVERHEAD_BYTES, SealedInfo, ShardHome};
use crate::db::write::disk_room;
use crate::db::write::seal;
use crate::disk_space::flush_room;
use crate::flush::run_flush;
use crate::job::JobOutput;
use crate::key::KeyRange;
use crate::lock_order::Order;
use crate::manifest::VersionEdit;
use crate::wal::{LogChain, RecoveredLog};

/// Number of records after which recovery checks the byte budget again.
const BUDGET_LOOK_RECORDS: u64 = 64;
/// Divisor of the budget: a memtable must hold this share of it to be written to files early.
const FLUSH_SHARE: u64 = 32;
/// Smallest size, in bytes, of a memtable that is written early. If other memory spends the budget,
/// tiny files must not result.
const FLUSH_BYTES_MIN: u64 = 256 << 10;

/// Refuses a log record of a column family that the manifest does not know yet. Its id is `next` or
/// larger, so the manifest has lost the edit that created the family.
pub(crate) fn check_known(cf: CfId, next: CfId) -> Result<()> {
    if cf < next {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "record: it writes to column family {cf}, which the manifest does not know: the \
             manifest has lost the edit that created it"
        ),
    ))
}

/// The log's records on their way into memtables and files.
pub(super) struct Replay<'a> {
    inner: &'a DbInner,
    /// Changes for the one edit of recovery.
    outputs: VersionEdit,
    /// Outputs that were written for the edit of recovery.
    written: Vec<JobOutput>,
    /// Numbers of these outputs.
    numbers: JobNumbers<'a>,
    last_seq: SeqNo,
    /// Smallest id that no column family has had.
    next_cf_id: CfId,
    /// Set if the log is kept and its records stay in memory.
    kept: Option<KeptLog<'a>>,
    /// Number of records that shards of the previous owner have.
    spared: u64,
    /// Number of records that went to memory.
    replayed: u64,
    /// Whether the records did not fit into memory.
    lacks_memory: bool,
}

/// A log that recovery keeps.
pub(super) enum KeptLog<'a> {
    /// The disk has no room for its tables.
    NoRoom {
        /// Its oldest segment.
        oldest: FileNo,
        /// Error of the recovery to tables.
        no_room: Error,
    },
    /// Kept shards of the previous owner have a part of it.
    Takeover(&'a Inherited),
}

/// The place of a record of the log.
#[derive(Clone, Copy)]
struct LogPlace {
    /// A segment that is not younger than that of the record.
    segment: FileNo,
    seq: SeqNo,
}

impl<'a> Replay<'a> {
    /// A replay that has read nothing; `kept` if the log stays.
    pub(super) fn new(inner: &'a DbInner, kept: Option<KeptLog<'a>>) -> Self {
        Self {
            inner,
            outputs: VersionEdit::new(),
            written: Vec::new(),
            numbers: JobNumbers::new(inner.job_owners(), Order::none()),
            last_seq: SeqNo::ZERO,
            next_cf_id: inner.storage.lock_manifest(Order::none()).next_cf_id(),
            kept,
            spared: 0,
            replayed: 0,
            lacks_memory: false,
        }
    }

    /// A replay that has read nothing, into memory. It skips records that shards of the previous
    /// owner have.
    pub(super) fn into_memory(inner: &'a DbInner, inherited: &'a Inherited) -> Self {
        Self::new(inner, Some(KeptLog::Takeover(inherited)))
    }

    /// Whether the replay ended because its records did not fit into memory.
    pub(super) fn lacks_memory(&self) -> bool {
        self.lacks_memory
    }

    /// Number of records that shards of the previous owner have, and number of records that went to
    /// memory.
    pub(super) fn spared_and_replayed(&self) -> (u64, u64) {
        (self.spared, self.replayed)
    }

    /// Replays the log.
    pub(super) fn read(&mut self, chain: &LogChain<'_>) -> Result<RecoveredLog> {
        let fs = Arc::clone(self.inner.storage.fs());
        // The reader passes the records of a segment before it reports the end of the segment.
        let after = |ended: FileNo| {
            let mut numbers = chain.segments.iter().map(|segment| segment.no);
            numbers.find(|no| *no > ended).unwrap_or(ended)
        };
        let segment = Cell::new(after(FileNo(0)));
        let read = crate::wal::recover_beside(
            &*fs,
            chain,
            &mut |first_seq, batch| self.apply(segment.get(), first_seq, batch.iter()),
            &mut |ended| {
                segment.set(after(ended));
                Ok(())
            },
        );
        match read {
            Ok(recovered) => {
                if let Some(lost) = &recovered.lost {
                    tracing::warn!(
                        lost,
                        "the end of the log was not whole; unsynced writes were lost"
                    );
                }
                Ok(recovered)
            }
            Err(error) => {
                self.discard();
                Err(error)
            }
        }
    }

    /// The changes for the edit of recovery. The caller installs them, or calls
    /// [`Replay::discard`].
    pub(super) fn take_changes(&mut self) -> VersionEdit {
        std::mem::take(&mut self.outputs)
    }

    /// Notes that the edit of recovery names the tables that were written.
    pub(super) fn note_installed(&self) {
        self.numbers.note_installed();
    }

    /// The largest sequence number of the log and the manifest.
    pub(super) fn last_seq_of(&self, recovered: &RecoveredLog) -> SeqNo {
        self.last_seq
            .max(recovered.last_seq.unwrap_or_default())
            .max(self.inner.storage.lock_manifest(Order::none()).last_seq())
    }

    /// Removes the tables of a recovery that was not installed.
    pub(super) fn discard(&mut self) {
        std::mem::take(&mut self.written)
            .iter()
            .for_each(|output| self.inner.storage.discard(output, Order::none()));
    }

    fn apply<'b>(
        &mut self,
        segment: FileNo,
        first_seq: SeqNo,
        ops: impl Iterator<Item = Result<crate::wal::BatchOp<'b>>>,
    ) -> Result<()> {
        let mut seq = first_seq;
        for op in ops {
            let op = op?;
            self.last_seq = self.last_seq.max(seq);
            check_known(op.cf, self.next_cf_id)?;
            // A family that was dropped after the write was logged has nothing to restore.
            if let Some(family) = self.inner.view.family(op.cf) {
                self.apply_one(&family, LogPlace { segment, seq }, &op)?;
            }
            seq = SeqNo(seq.0 + 1);
        }
        Ok(())
    }

    fn apply_one(
        &mut self,
        family: &Arc<Family>,
        place: LogPlace,
        op: &crate::wal::BatchOp<'_>,
    ) -> Result<()> {
        let LogPlace { segment, seq } = place;
        let current = family.current.load_full();
        let flushed = current.version.flushed_through();
        let bytes = (op.key.len() + op.value.len()) as u64 + RECORD_OVERHEAD_BYTES;
        let (kept_log, inherited) = match &self.kept {
            None => (None, None),
            Some(KeptLog::NoRoom { oldest, .. }) => (Some(*oldest), None),
            Some(KeptLog::Takeover(inherited)) => (Some(segment), Some(*inherited)),
        };
        let covered = inherited.and_then(|inherited| inherited.covered(family.id));
        let covered = covered.unwrap_or(flushed);
        let older = inherited.and_then(|inherited| inherited.memtable_of(family.id, seq));
        let memtable = older.unwrap_or(&current.active);
        let is_inserted = if op.kind == crate::key::Kind::RangeDelete {
            let parts = covered.parts_below(seq, op.key, op.value);
            for (start, end) in &parts {
                memtable.insert(seq, op.kind, start, end, kept_log);
            }
            // Without a kept log, a range delete that tables have is charged as well.
            !parts.is_empty() || kept_log.is_none()
        } else if covered.get(op.key) < seq {
            memtable.insert(seq, op.kind, op.key, op.value, kept_log);
            true
        } else {
            false
        };
        if !is_inserted {
            self.spared += u64::from(flushed.get(op.key) < seq);
            return Ok(());
        }
        self.replayed += 1;
        match kept_log {
            None => memtable.charge_replayed(bytes),
            Some(log) => {
                memtable.grant(bytes, Some(log));
                memtable.release();
            }
        }
        self.bound_memory(family, &current.active)
    }

    /// Seals a full memtable or writes it to files, and keeps the replay within the memory budget.
    fn bound_memory(&mut self, family: &Arc<Family>, active: &Arc<Memtable>) -> Result<()> {
        let budget = self.inner.context.budget();
        let full = self.inner.context.memtable_bytes_max(&family.options);
        let is_full = active.charged_bytes() >= full || active.is_crowded();
        let looks = self.replayed.is_multiple_of(BUDGET_LOOK_RECORDS);
        match &self.kept {
            Some(KeptLog::NoRoom { no_room, .. }) if is_full => {
                if budget.total_bytes() > budget.limit_bytes() {
                    return Err(no_room.context_at(
                        "the log holds more than the memory budget, so its records must go to \
                         tables: make room on the disk, or raise memory_budget_bytes, and open \
                         the database again",
                    ));
                }
                self.seal(family);
            }
            Some(KeptLog::Takeover(_))
                if (is_full || looks) && budget.total_bytes() > budget.limit_bytes() =>
            {
                self.lacks_memory = true;
                return Err(Error::busy("the log holds more than the memory budget"));
            }
            Some(KeptLog::Takeover(_)) if is_full => self.seal(family),
            None if is_full => self.flush(family, active)?,
            None if looks && budget.pressure() == Pressure::Over => self.flush_largest()?,
            _ => {}
        }
        Ok(())
    }

    /// Seals a full memtable of a log that is kept.
    fn seal(&self, family: &Arc<Family>) {
        let mut commit = self.inner.writes.committer().lock(Order::none());
        commit.set_last_seq(self.last_seq);
        seal::seal_active(self.inner, &mut commit, family);
    }

    /// Writes the largest memtable to files, if it holds enough of the budget to be worth a file.
    fn flush_largest(&mut self) -> Result<()> {
        let families = self.inner.view.live_families();
        let size = |family: &Arc<Family>| family.current.load().active.charged_bytes();
        let Some(largest) = families.into_iter().max_by_key(size) else { return Ok(()) };
        let worth = (self.inner.context.budget().limit_bytes() / FLUSH_SHARE).max(FLUSH_BYTES_MIN);
        let active = Arc::clone(&largest.current.load().active);
        if active.charged_bytes() >= worth { self.flush(&largest, &active) } else { Ok(()) }
    }

    /// Writes a family's memtable to files that the final edit will install.
    fn flush(&mut self, family: &Arc<Family>, memtable: &Arc<Memtable>) -> Result<()> {
        memtable.close_at(self.last_seq);
        memtable.shards.iter().for_each(|shard| shard.seal());
        let info = SealedInfo::of(memtable);
        info.note_shards(memtable);
        let shards = memtable.shards.iter().cloned().map(ShardHome::Here).enumerate();
        let taken = Taken::of_memtable(info.id, shards);
        let task = FlushTask {
            job_id: 0,
            family: Arc::clone(family),
            memtables: vec![TakenMemtable { info, shards: 0..memtable.shards.len() }],
            cut: FlushCut::Uncut,
            range: KeyRange::all(),
            planned_cuts: Vec::new(),
        };
        // A file that waits for the final edit lies in the only bucket of its time, so the map must
        // stay.
        if let [shard] = &*memtable.shards
            && !flush::adds_table(&self.outputs, family.id)
        {
            flush::set_first_map(self.inner.install_owners(), family, shard, Order::none())?;
        }
        let room = flush_room(memtable.charged_bytes(), task.tables_max() as u64);
        disk_room::ensure_room(self.inner, room, "recovery")?;
        let output = {
            let spec = flush::flush_spec(&self.numbers, &task, FlushPart::Whole, taken.refs())?;
            run_flush(&spec, &job_specs::job_context(self.inner.job_owners(), &taken))?
        };
        flush::add_output(&mut self.outputs, family.id, &output);
        self.written.push(output);
        self.outputs.flushed_through(family.id, KeyRange::all(), self.last_seq);
        let version = Arc::clone(&family.current.load().version);
        let active = self.inner.writes.new_memtable(&self.inner.context, &version, &[]);
        self.inner
            .writes
            .committer()
            .lock(Order::none())
            .set_active(family.id, Some(Arc::clone(&active)));
        let next = SuperVersion::new(active, version);
        self.inner.view.publish(&mut self.inner.jobs.lock(Order::none()), family, next);
        Ok(())
    }

    /// Writes all memtables to files.
    pub(super) fn flush_all(&mut self) -> Result<()> {
        for family in self.inner.view.live_families() {
            let active = Arc::clone(&family.current.load().active);
            if !active.is_empty() {
                self.flush(&family, &active)?;
            }
        }
        Ok(())
    }
}
