//! Log segments: rotation under the commit lock, pins, removal and reuse.
//!
//! A segment is *pinned* by every memtable that holds a record of it and is not installed. Those
//! that nothing pins are removed oldest first, a few of them kept to be overwritten (recycling
//! makes a sync cheaper and saves the file system work). When all closed segments together exceed
//! the bound ([`DbInner::log_bytes_max`]), the oldest of them must go: every family whose active
//! memtable pins one of these is sealed, however little it holds and however long nobody wrote to
//! it, so that cold data cannot keep the log growing. Background workers apply the bound after
//! every job and while they are idle.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::{Error, FileNo, Result, SeqNo};

use crate::db::background::flush::FlushTask;
use crate::db::inner::{DbInner, LogSegment, Sealed, ShardState, State};
use crate::db::state::memtable::Memtable;
use crate::db::write::commit::{CommitHost, CommitState, Grant, Share, Submission};
use crate::db::write::disk_room::Admission;
use crate::disk_space::SpaceState;
use crate::file_meta::log_name;
use crate::stats::Ticker;
use crate::wal::BatchView;

/// Unneeded segments that are kept for reuse.
const SPARE_LOGS_MAX: usize = 2;
/// Times by which the log may exceed the memory of all memtables, unless a bound is set.
const LOG_OVER_MEMTABLES: u64 = 4;
/// Longest wait for the commit lock. The lock may be held by an ingestion that waits for a flush,
/// so a background worker must not wait for it without end.
const LOCK_WAIT: Duration = Duration::from_millis(20);

impl CommitHost for DbInner {
    fn prepare_log(&self, state: &mut CommitState) -> Result<()> {
        match &state.log {
            Some(log) if !log.should_rotate() && !log.is_broken() => Ok(()),
            _ => self.rotate_log(state),
        }
    }

    fn admit_by_measure(
        &self,
        state: &mut CommitState,
        write: &Submission<'_>,
        bytes: u64,
    ) -> Admission {
        Self::admit_by_measure(self, state, write, bytes)
    }

    fn give_up_reserve(&self) {
        Self::give_up_reserve(self);
    }

    fn prepare_memtable(&self, state: &mut CommitState, share: &Share) -> Result<bool> {
        let Some(active) = state.active_of(share.cf) else {
            return Err(Error::invalid(format!("column family {} was dropped", share.cf)));
        };
        if active.has_room(share.bytes) {
            return Ok(true);
        }
        let gone = || Error::invalid(format!("column family {} was dropped", share.cf));
        let family = self.family(share.cf).ok_or_else(gone)?;
        if !self.may_seal(&family) {
            return Ok(false);
        }
        self.seal_active(state, &family);
        Ok(true)
    }

    fn insert(&self, grant: &Grant, payload: &[u8]) {
        let batch = BatchView::decode(payload).expect("a batch that a writer submitted");
        let mut seq = grant.first_seq;
        for op in batch.iter() {
            let op = op.expect("every record was read before the write was submitted");
            grant.memtable(op.cf).insert(seq, op.kind, op.key, op.value, grant.log);
            seq = SeqNo(seq.0 + 1);
        }
        assert_eq!(seq.0, grant.last_seq.0 + 1, "a batch has as many records as it says");
    }

    fn appended(&self, bytes: u64, writes: u64) {
        self.stats.add(Ticker::WalBytes, bytes);
        if writes > 1 {
            self.stats.add(Ticker::WritesGrouped, writes - 1);
        }
    }
}

impl DbInner {
    /// Ends the open segment and starts the next (commit lock held).
    pub(crate) fn rotate_log(&self, commit: &mut CommitState) -> Result<()> {
        let Some(log) = commit.log.as_mut() else { return self.begin_log(commit) };
        let no = self.file_numbers.allocate();
        let recycle = self.state.lock().spare_logs.pop();
        log.note_manifest(self.marks.position());
        let closed = log.rotate(&self.path_of(&log_name(no)), no, recycle)?;
        self.open_log.store(no.0, Ordering::Release);
        let ended = LogSegment { no: closed.segment.no, bytes: closed.segment.len };
        let mut state = self.state.lock();
        state.logs.push_back(ended);
        if let Some(error) = closed.unfinished {
            // Its records are in memory; once they are in tables the segment does not matter.
            state.leave_log = true;
            drop(state);
            self.fail_soft("closing a log segment", &error);
        }
        self.wake();
        Ok(())
    }

    /// The oldest log segment that some unflushed record lies in once `leaving` is installed.
    /// Everything older may go then. `open` is the open segment.
    pub(crate) fn log_floor(&self, state: &State, open: FileNo, leaving: &FlushTask) -> FileNo {
        let mut floor = open;
        for family in self.live_families() {
            let active = family.current.load();
            if let Some(no) = active.active.oldest_log() {
                floor = floor.min(no);
            }
        }
        for (&cf, tracker) in &state.flushes {
            for Sealed { memtable, shards, .. } in &tracker.queue {
                let stays = |shard: usize| {
                    shards[shard] != ShardState::Installed && !leaving.takes(cf, memtable, shard)
                };
                if let Some(no) = pinned_by(memtable, stays) {
                    floor = floor.min(no);
                }
            }
        }
        floor
    }

    /// Removes (or keeps for reuse) the segments below `floor`, oldest first. The manifest must
    /// say durably that they are not needed.
    pub(crate) fn drop_logs_below(&self, floor: FileNo) {
        if let Some(syncer) = self.committer.syncer() {
            syncer.forget_before(floor);
        }
        let mut remove: Vec<PathBuf> = Vec::new();
        {
            let mut state = self.state.lock();
            while state.logs.front().is_some_and(|segment| segment.no < floor) {
                let Some(segment) = state.logs.pop_front() else { break };
                let path = self.path_of(&log_name(segment.no));
                let may_keep = self.disk.state() == SpaceState::Roomy;
                if may_keep && state.spare_logs.len() < SPARE_LOGS_MAX {
                    state.spare_logs.push(path);
                } else {
                    remove.push(path);
                }
            }
        }
        self.remove_logs(&remove);
    }

    /// Removes the segments below `floor` without keeping any for reuse: the device may have
    /// refused one of them.
    pub(crate) fn remove_logs_below(&self, floor: FileNo) {
        if let Some(syncer) = self.committer.syncer() {
            syncer.forget_before(floor);
        }
        let remove: Vec<PathBuf> = {
            let mut state = self.state.lock();
            let gone = state.logs.iter().take_while(|segment| segment.no < floor).count();
            let gone = state.logs.drain(..gone).collect::<Vec<_>>();
            gone.into_iter().map(|segment| self.path_of(&log_name(segment.no))).collect()
        };
        self.remove_logs(&remove);
    }

    pub(crate) fn remove_logs(&self, paths: &[PathBuf]) {
        for path in paths {
            match self.fs.remove(path) {
                Ok(()) => self.stats.add(Ticker::FilesRemoved, 1),
                Err(error) => tracing::warn!(%error, "a log segment could not be removed"),
            }
        }
    }

    /// Most bytes of closed log segments: `wal_bytes_max`, or four times the memory that memtables
    /// may take, which is bounded by their settings and by the byte budget.
    pub(crate) fn log_bytes_max(&self) -> u64 {
        if self.options.wal_bytes_max > 0 {
            return self.options.wal_bytes_max;
        }
        let buffers = self.live_families().iter().fold(0u64, |sum, family| {
            let most = family.options.write_buffers_max as u64;
            sum.saturating_add(self.memtable_bytes_max(&family.options).saturating_mul(most))
        });
        let memory = buffers.min(self.budget.limit_bytes());
        memory.max(self.options.wal_segment_bytes).saturating_mul(LOG_OVER_MEMTABLES)
    }

    /// Seals the families that pin the segments that must go, if the log is over its bound. Called
    /// by background workers, without locks.
    pub(crate) fn enforce_log_bound(&self) {
        let bound = self.log_bytes_max();
        let Some(last) = last_excess_segment(&self.state.lock().logs, bound) else { return };
        let pins = |active: &Memtable| active.oldest_log().is_some_and(|no| no <= last);
        let families: Vec<_> = self
            .live_families()
            .into_iter()
            .filter(|family| pins(&family.current.load().active) && self.may_seal(family))
            .collect();
        if families.is_empty() {
            return;
        }
        // Where the lock stays busy, a writer or an ingestion is at work: the next call tries
        // again.
        let Some(mut commit) = self.committer.try_lock_for(LOCK_WAIT) else { return };
        for family in families {
            // A writer may have sealed it since.
            if commit.active_of(family.id).is_some_and(|active| pins(active))
                && self.may_seal(&family)
            {
                self.seal_active(&mut commit, &family);
            }
        }
    }
}

/// The youngest of the segments that must go, oldest first, for the closed `segments` to have at
/// most `bytes_max` bytes; `None` if they have no more than that.
fn last_excess_segment(segments: &VecDeque<LogSegment>, bytes_max: u64) -> Option<FileNo> {
    let mut left: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut last = None;
    for segment in segments {
        if left <= bytes_max {
            break;
        }
        left -= segment.bytes;
        last = Some(segment.no);
    }
    last
}

/// The oldest segment that an immutable memtable pins: by shard once nobody inserts any more.
fn pinned_by(memtable: &Memtable, stays: impl Fn(usize) -> bool) -> Option<FileNo> {
    if !memtable.is_quiet() {
        return memtable.oldest_log();
    }
    memtable
        .shards
        .iter()
        .enumerate()
        .filter(|(index, _)| stays(*index))
        .filter_map(|(_, shard)| shard.oldest_log())
        .min()
        .map(FileNo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_over_the_bound_must_go() {
        let segments: VecDeque<LogSegment> =
            (1..=5).map(|no| LogSegment { no: FileNo(no), bytes: 100 }).collect();
        assert_eq!(last_excess_segment(&segments, 500), None);
        assert_eq!(last_excess_segment(&segments, 499), Some(FileNo(1)));
        assert_eq!(last_excess_segment(&segments, 250), Some(FileNo(3)));
        assert_eq!(last_excess_segment(&segments, 0), Some(FileNo(5)));
        assert_eq!(last_excess_segment(&VecDeque::new(), 0), None);
    }
}
