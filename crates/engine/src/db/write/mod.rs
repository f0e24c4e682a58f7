//! The write path: check, stall if need be, commit (`db::write::commit`), insert, publish, sync.

pub(crate) mod commit;
pub(crate) mod disk_room;
mod group_sync;
pub(crate) mod log_segments;
mod publication;
mod seal;
pub(crate) mod stalling;

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use archipelago_base::checksum::crc;
use archipelago_base::{CfId, Error, ErrorKind, Result, SeqNo};

use crate::db::inner::DbInner;
use crate::db::state::family::Family;
use crate::db::state::memtable::RECORD_OVERHEAD_BYTES;
use crate::db::write::commit::{Outcome, Share, Submission};
use crate::db::{ColumnFamily, Db};
use crate::disk_space::SpaceUse;
use crate::event::Event;
use crate::key::{KEY_BYTES_MAX, Kind, VALUE_BYTES_MAX};
use crate::manifest::LogMark;
use crate::options::WriteOptions;
use crate::stats::{Ticker, Timer};
use crate::wal::WriteBatch;

/// What a check of a batch found.
struct Checked {
    /// Bytes of keys and values.
    user_bytes: u64,
    space_use: SpaceUse,
}

/// Families of a write that need no allocation.
type Shares = Vec<Share>;

thread_local! {
    /// The batch that single-record writes of this thread are encoded in.
    static SINGLE: RefCell<WriteBatch> = const { RefCell::new(WriteBatch::new()) };
    /// The share list of this thread's writes.
    static SHARES: RefCell<Shares> = const { RefCell::new(Vec::new()) };
}

/// Buffers larger than this are given back after a write.
const KEPT_BYTES_MAX: usize = 1 << 20;

impl Db {
    /// Sets `key` to `value` in the default column family. Survives `kill -9` on return.
    ///
    /// Errors: `InvalidArgument` if the key is over 64 KiB or the value over 1 GiB; `ReadOnly`,
    /// `Io` if the log cannot be written. After an error nothing was written, except after a
    /// failed sync or, with `log_write_through`, a failed write to the log's device, when it is
    /// unknown.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(self.default_family(), key, value, &WriteOptions::default())
    }

    /// [`Db::put`] into any column family, with options.
    pub fn put_with(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<()> {
        self.check_family(cf)?;
        self.single(options, |batch| batch.put_cf(cf.id(), key, value))
    }

    /// Sets `key` to `value` until `expires_at_ms` (Unix milliseconds); from then on it reads as
    /// deleted, at once.
    pub fn put_expiring(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        options: &WriteOptions,
    ) -> Result<()> {
        self.check_family(cf)?;
        self.single(options, |batch| batch.put_expiring_cf(cf.id(), key, value, expires_at_ms))
    }

    /// Deletes `key` in the default column family. Deleting a key that is not there is fine.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.delete_with(self.default_family(), key, &WriteOptions::default())
    }

    /// [`Db::delete`] in any column family, with options.
    pub fn delete_with(&self, cf: &ColumnFamily, key: &[u8], options: &WriteOptions) -> Result<()> {
        self.check_family(cf)?;
        self.single(options, |batch| batch.delete_cf(cf.id(), key))
    }

    /// Deletes every key from `start` (inclusive) to `end` (exclusive), in one record. Until it is
    /// flushed it takes some 200 bytes of the memtable for each bucket that it reaches into; how it
    /// overlaps with others does not matter.
    /// `InvalidArgument` if `end` is before `start`.
    pub fn delete_range(
        &self,
        cf: &ColumnFamily,
        start: &[u8],
        end: &[u8],
        options: &WriteOptions,
    ) -> Result<()> {
        self.check_family(cf)?;
        self.single(options, |batch| batch.delete_range_cf(cf.id(), start, end))
    }

    /// Adds an operand for the family's merge operator. `InvalidArgument` if it has none.
    pub fn merge(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        operand: &[u8],
        options: &WriteOptions,
    ) -> Result<()> {
        self.check_family(cf)?;
        self.single(options, |batch| batch.merge_cf(cf.id(), key, operand))
    }

    /// Applies a batch: all of its records become visible at once, and all or none survive a
    /// crash, over any number of column families. Returns the sequence number of its last record
    /// (of the last visible write, if the batch is empty).
    pub fn write(&self, batch: &WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        self.inner.write(batch, options)
    }

    fn single(&self, options: &WriteOptions, fill: impl FnOnce(&mut WriteBatch)) -> Result<()> {
        SINGLE.with_borrow_mut(|batch| {
            batch.clear();
            fill(batch);
            let result = self.inner.write(batch, options).map(|_| ());
            if batch.byte_len() > KEPT_BYTES_MAX {
                *batch = WriteBatch::new();
            }
            result
        })
    }
}

impl DbInner {
    pub(crate) fn write(&self, batch: &WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        let started = self.options.latency_histograms.then(|| self.clock.now_ns());
        let result = self.commit_batch(batch, options, |write| {
            let committed = self.committer.commit(self, write);
            committed.map_err(|error| self.note_append_error(&error))
        });
        if let Ok(last_seq) = &result {
            self.harden_log(*last_seq, options)?;
        }
        if let Some(started) = started {
            self.stats.record(Timer::Write, self.clock.now_ns() - started);
        }
        result
    }

    /// Checks and stalls a write, and gives it to `commit` until that does not have to wait.
    /// Returns its last sequence number. Nothing was written if there is an error.
    #[inline]
    pub(crate) fn commit_batch(
        &self,
        batch: &WriteBatch,
        options: &WriteOptions,
        commit: impl FnMut(&Submission<'_>) -> Result<Outcome>,
    ) -> Result<SeqNo> {
        SHARES.with_borrow_mut(|shares| {
            shares.clear();
            let checked = self.check_batch(batch, shares, options)?;
            if shares.is_empty() {
                return Ok(self.committer.visible());
            }
            let options = &WriteOptions { space_use: checked.space_use, ..*options };
            let user_bytes = checked.user_bytes;
            self.stall(shares, options)?;
            let last_seq = self.commit(batch, shares, options, commit)?;
            self.stats.add(Ticker::Writes, 1);
            self.stats.add(Ticker::RecordsWritten, batch.len() as u64);
            self.stats.add(Ticker::UserBytesWritten, user_bytes);
            Ok(last_seq)
        })
    }

    /// Makes a committed write survive what its options and those of the database say.
    #[inline]
    pub(crate) fn harden_log(&self, last_seq: SeqNo, options: &WriteOptions) -> Result<()> {
        if !options.wal || !(options.sync || self.options.log_write_through) {
            return Ok(());
        }
        match options.sync {
            true => self.sync_or_leave(last_seq),
            false => self.write_through_or_leave(last_seq),
        }
    }

    /// Checks every record and sums the bytes by family.
    fn check_batch(
        &self,
        batch: &WriteBatch,
        shares: &mut Shares,
        options: &WriteOptions,
    ) -> Result<Checked> {
        self.check_open()?;
        self.health.check_writable()?;
        if options.sync && !options.wal {
            return Err(Error::invalid(
                "a write without the log cannot be synced: set wal, or flush afterwards",
            ));
        }
        let families = self.families.load();
        let mut user_bytes = 0;
        let mut deletes_only = true;
        for op in batch.iter() {
            let op = op?;
            deletes_only &= matches!(op.kind, Kind::Delete | Kind::RangeDelete);
            let family = families
                .get(op.cf.0 as usize)
                .and_then(Option::as_ref)
                .ok_or_else(|| unknown_family(op.cf))?;
            family.check_alive()?;
            check_limits(op.kind, op.key, op.value)?;
            if op.kind == Kind::Merge {
                check_merge(family)?;
            }
            let bytes = (op.key.len() + op.value.len()) as u64;
            user_bytes += bytes;
            let bytes = bytes + RECORD_OVERHEAD_BYTES;
            match shares.iter_mut().find(|share| share.cf == op.cf) {
                Some(share) => share.bytes += bytes,
                None => shares.push(Share { cf: op.cf, bytes }),
            }
        }
        let space_use = if deletes_only { SpaceUse::Frees } else { options.space_use };
        Ok(Checked { user_bytes, space_use })
    }

    /// Logs, inserts and publishes a write; its last sequence number.
    fn commit(
        &self,
        batch: &WriteBatch,
        shares: &[Share],
        options: &WriteOptions,
        mut commit: impl FnMut(&Submission<'_>) -> Result<Outcome>,
    ) -> Result<SeqNo> {
        let payload = batch.data();
        let write = Submission {
            payload,
            payload_crc: if options.wal { crc(payload) } else { 0 },
            records: batch.len() as u64,
            shares,
            wal: options.wal,
            space_use: options.space_use,
        };
        loop {
            match commit(&write)? {
                Outcome::Done(last_seq) => return Ok(last_seq),
                Outcome::MustWait(cf) => self.wait_for_memtable(cf, options)?,
                Outcome::DiskFull => self.wait_for_room(options)?,
                Outcome::MustFlush => self.wait_for_flush(options)?,
            }
        }
    }

    /// Makes the log durable through `seq`.
    pub(crate) fn sync_log(&self, seq: SeqNo) -> Result<()> {
        let started = self.clock.now_ns();
        match self.committer.sync_through(seq) {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.stats.add(Ticker::WalSyncs, 1);
                self.stats.record(Timer::WalSync, self.clock.now_ns() - started);
                self.mark_durable_log();
                Ok(())
            }
            Err(error) => {
                let error = error.context_at("the log could not be synced");
                self.fail_log("log sync", &error);
                Err(error)
            }
        }
    }

    /// Notes the first sync of a log segment: from then on the segment may not be missing.
    fn mark_durable_log(&self) {
        let durable = self.committer.syncer().and_then(|syncer| syncer.durable());
        let Some(durable) = durable else { return };
        if self.marked_log.fetch_max(durable.segment.0, Ordering::Relaxed) < durable.segment.0 {
            self.marks.log(LogMark { no: durable.segment, bytes: durable.offset });
        }
    }

    /// Makes the log durable through `seq`. If the disk has no room for that, everything in memory
    /// goes to tables in the room of the reserve, which makes it durable as well.
    pub(crate) fn sync_or_leave(&self, seq: SeqNo) -> Result<()> {
        self.leave_log_before_sync()?;
        let synced = self.sync_log(seq);
        self.or_leave(synced)
    }

    fn write_through_or_leave(&self, seq: SeqNo) -> Result<()> {
        self.leave_log_before_sync()?;
        let written = self.write_log_through(seq);
        self.or_leave(written)
    }

    fn or_leave(&self, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if error.is_no_space() => self.leave_log_before_sync().map_err(|_| error),
            done => done,
        }
    }

    /// Notes that the log cannot reach its device. On a full disk the log is left for tables, and
    /// writes go on meanwhile; after any other error what the device holds is unknown, and the
    /// database takes no more writes.
    fn fail_log(&self, job: &str, error: &Error) {
        if !error.is_no_space() {
            self.fail_read_only(job, error);
            return;
        }
        self.state.lock().leave_log = true;
        self.give_up_reserve();
        self.fail_soft(job, error);
    }

    /// Has the device take the log through `seq`. What the kernel could not write it drops from the
    /// page cache, so a failure is as grave as that of a sync.
    fn write_log_through(&self, seq: SeqNo) -> Result<()> {
        self.committer.write_through(seq).map(drop).map_err(|error| {
            let error = error.context_at("the log could not be written to its device");
            self.fail_log("log write", &error);
            error
        })
    }
}

impl DbInner {
    /// Tells of an append that failed. The next write tries a new segment.
    #[cold]
    pub(crate) fn note_append_error(&self, error: &Error) -> Error {
        let error = error.context_at("the write was not logged and not applied");
        let error = match error.is_no_space() {
            true => error.context_at(format!("the disk of {} is full", self.dir.display())),
            false => error,
        };
        if error.kind() == ErrorKind::Io {
            self.stats.add(Ticker::BackgroundErrors, 1);
            let job = "log append".to_owned();
            self.tell(&Event::BackgroundError { job, error: error.clone() });
        }
        error
    }
}

fn unknown_family(cf: CfId) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("column family {cf} does not exist in this database (it may have been dropped)"),
    )
}

/// Refuses a merge operand for a family without a merge operator.
pub(crate) fn check_merge(family: &Family) -> Result<()> {
    if family.merge.is_none() {
        return Err(Error::invalid(format!(
            "column family \"{}\" has no merge operator: set merge_operator",
            family.name
        )));
    }
    Ok(())
}

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a key of {} bytes is too long: at most {KEY_BYTES_MAX}",
            key.len()
        )));
    }
    Ok(())
}

pub(crate) fn check_limits(kind: Kind, key: &[u8], value: &[u8]) -> Result<()> {
    check_key(key)?;
    if kind == Kind::RangeDelete {
        check_key(value)?;
        if value < key {
            return Err(Error::invalid(format!(
                "delete_range: the end \"{}\" is before the start \"{}\"",
                value.escape_ascii(),
                key.escape_ascii()
            )));
        }
        return Ok(());
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a value of {} bytes is too long: at most {VALUE_BYTES_MAX}",
            value.len()
        )));
    }
    Ok(())
}
