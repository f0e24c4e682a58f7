//! Opening a database on a disk without room: the log is kept.
//!
//! Recovery replays the log into memory, writes all of it to tables and installs them in one edit
//! ([`super`]). Without room for the tables nothing is installed. The segments of the log are made
//! durable where they are, their records stay in memtables that pin them, and flushes bring them to
//! tables as room comes ([decision 0045](../../../../../docs/decisions/0045-full-disks.md)). A disk
//! without room for the first log segment of this process leaves that to the first write.
//!
//! Invariants: 1. no flush installs a part of a kept log before all of the log is durable; where it
//! cannot be made durable, all memory goes to tables in one edit
//! ([`crate::db::background::leave_log`]); 2. a torn tail is not continued: the next segment says
//! where the last one ended. Thread-safety: called by the thread that opens, but for
//! [`DbInner::begin_log`], which a writer calls under the commit lock. Failure: a log that exceeds
//! the memory budget is refused. Cost: the log is read once more, and synced.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, FileNo, Result};

use super::{KeptLog, Replay};
use crate::db::inner::{DbInner, LogSegment};
use crate::db::state::family::SuperVersion;
use crate::db::write::commit::CommitState;
use crate::file_meta::log_name;
use crate::manifest::LogMark;
use crate::wal::{LogChain, LogConfig, LogWriter, SegmentRef};

impl DbInner {
    /// Gives the reserve up if the disk may have no room for what recovery writes.
    pub(super) fn prepare_room(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.find_reserve();
        let floor = self.manifest.lock().log_floor();
        let segments = self.log_segments(floor)?.into_iter();
        let log_bytes = segments.map(|segment| self.fs.len(&segment.path)).sum::<Result<u64>>()?;
        if !self.has_room_to_recover(log_bytes) {
            self.give_up_reserve();
        }
        Ok(())
    }

    /// Recovery where the disk has no room for tables: the log stays, made durable so that flushes
    /// may install parts of it later, and its records stay in memory. Nothing is installed.
    pub(super) fn recover_to_memory(&self, chain: &LogChain<'_>, cause: &Error) -> Result<()> {
        self.forget_replayed();
        let oldest = chain.segments.first().map_or(chain.floor, |oldest| oldest.no);
        let kept = KeptLog { oldest, no_room: cause.clone() };
        let mut replay = Replay::new(self, Some(kept));
        let recovered = replay.read(chain)?;
        self.check_log(&self.manifest.lock(), chain.floor, &recovered)?;
        self.committer.start_at(replay.last_seq_of(&recovered));
        // Segments behind a cut are not needed, but only a later log floor says so durably.
        let bytes_of = |no| recovered.segments.iter().find(|read| read.no == no);
        let kept = chain.segments.iter().map(|segment| LogSegment {
            no: segment.no,
            bytes: bytes_of(segment.no).map_or(0, |read| read.end_offset),
        });
        self.state.lock().logs.extend(kept);
        let settled = recovered.segments.iter().try_for_each(|segment| {
            let path = self.path_of(&log_name(segment.no));
            let settle = |no| self.fs.settle_log(&path, no, &segment.in_tail);
            segment.incarnation.map_or(Ok(()), settle)
        });
        match settled {
            Ok(()) => self.fs.clear_log_tails(&self.dir)?,
            Err(error) if error.is_no_space() => {
                // The segment and its tail hold everything; only a flush of all of it may go on.
                tracing::warn!(%error, "a log segment cannot be made durable for want of room");
                self.state.lock().leave_log = true;
            }
            Err(error) => return Err(error),
        }
        self.start_log(self.file_numbers.allocate(), recovered.previous)
    }

    /// Gives every family an empty memtable again.
    fn forget_replayed(&self) {
        let mut commit = self.committer.lock();
        for family in self.live_families() {
            let version = Arc::clone(&family.current.load().version);
            let active = self.new_memtable(&version, &[]);
            commit.set_active(family.id, Some(Arc::clone(&active)));
            let next = SuperVersion { active, immutables: Vec::new(), version };
            self.publish(&mut self.state.lock(), &family, next);
        }
    }

    /// Begins the first segment of this process. Without room for it, the first write does.
    pub(super) fn start_log(&self, no: FileNo, previous: Option<SegmentRef>) -> Result<()> {
        self.open_log.store(no.0, Ordering::Release);
        match self.create_log(no, previous) {
            Ok(log) => self.committer.set_log(log),
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "the disk has no room for a log segment");
                *self.late_log.lock() = Some(previous);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn create_log(&self, no: FileNo, previous: Option<SegmentRef>) -> Result<LogWriter> {
        let config = LogConfig {
            database_id: self.database_id,
            segment_bytes: self.options.wal_segment_bytes,
            seed: self.rng.lock().u64(..),
            manifest: self.marks.position(),
        };
        let path = self.path_of(&log_name(no));
        let created = LogWriter::create(Arc::clone(&self.fs), config, &path, no, previous, None);
        // The manifest names the segment as the oldest one that is needed. From here on it may not
        // be missing, not even after power loss.
        let durable = created.and_then(|log| log.syncer().sync().map(|durable| (log, durable)));
        match durable {
            Ok((log, durable)) => {
                self.marks.log(LogMark { no: durable.segment, bytes: durable.offset });
                Ok(log)
            }
            Err(error) => {
                // Nothing claims that the segment exists, and the next attempt has another number.
                let _unused = self.fs.remove(&path);
                Err(error)
            }
        }
    }

    /// Begins the log that the open had no room for (commit lock held).
    pub(crate) fn begin_log(&self, commit: &mut CommitState) -> Result<()> {
        let mut late = self.late_log.lock();
        let Some(previous) = *late else { return self.refuse_read_only() };
        let no = self.file_numbers.allocate();
        let log = self.create_log(no, previous)?;
        self.committer.set_syncer(log.syncer());
        commit.log = Some(log);
        self.open_log.store(no.0, Ordering::Release);
        *late = None;
        Ok(())
    }
}
