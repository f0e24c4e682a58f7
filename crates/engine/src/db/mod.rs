//! The database: the handle that a user opens, and the parts behind it.
//!
//! `inner` holds the owners that an open database consists of. The folders form a graph without
//! cycles. From bottom to top they are:
//!
//! | folder | concept |
//! | --- | --- |
//! | `state` | owners that everything builds on, families, memtables, jobs |
//! | `read` | point reads, iterators, snapshots |
//! | `write` | commit, log segments, back-pressure, room on the disk |
//! | `background` | scheduler, flushes, compactions, bucket changes, memory pressure |
//! | `admin` | families, buckets, checkpoints, ingestion, reports, verification |
//! | `lifecycle` | opening, following a writer, closing |
//!
//! A [`Db`] offers the functions of all folders. Its methods check their arguments and pass the
//! call on.
//!
//! Invariants: the last handle that is dropped closes the database.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the methods say which errors they return.
//! Cost: a handle is two pointers.

mod admin;
pub(crate) mod background;
mod inner;
mod lifecycle;
mod read;
mod state;
pub(crate) mod write;

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, Result, SeqNo};
use archipelago_env::local::LocalFs;

pub use admin::buckets::BucketInfo;
pub(crate) use admin::checkpoint::copy as copy_file;
pub use admin::compact_range::{CompactRangeOptions, LastLevel, OnProgress};
pub use admin::database_report::{DatabaseReport, HealthState, JobKind};
pub use admin::ingest::IngestOptions;
pub use admin::report::{FamilyReport, LevelInfo};
#[cfg(any(test, feature = "fault-points"))]
pub use admin::value_audit::{ValueAudit, audit_values};
pub use admin::values::{PinnedInfo, SpaceInfo, ValueFileInfo, ValuesReport};
pub use admin::verify::VerifyReport;
pub use background::due::{DueRange, DueReason, RestBounds, flush_due};
pub use background::flush_plan;
use background::scheduler::Workers;
pub(crate) use inner::DbInner;
use lifecycle::open;
pub use lifecycle::open::Components;
pub(crate) use read::Reader;
pub use read::get::ValueEntry;
pub use read::key_estimate::KeyEstimate;
pub(crate) use read::newest::{Since, newest_record, range_has_newer};
pub use read::options::ReadOptions;
pub use read::scan::Iter;
pub(crate) use read::scan::{bounds_of, check_bounds, scan};
pub use read::snapshot::Snapshot;
pub use state::away::WRITE_PAUSE;
pub use state::background_mode::BackgroundMode;
pub use state::balance::BucketChange;
pub use state::context::FaultPoint;
pub use state::family::ColumnFamily;
pub(crate) use state::family::Family;
pub(crate) use write::check_merge;
pub(crate) use write::commit_state::CommitState;
pub use write::disk_room::DiskReport;

use crate::db::background::leave_log;
use crate::db::background::scheduler;
use crate::db::lifecycle::catch_up;
use crate::db::lifecycle::close;
use crate::lock_order::Order;
use crate::manifest::Owner;
use crate::options::DbOptions;
use crate::options::WriteOptions;
use crate::stats::Statistics;
use crate::stats::Timer;
use crate::wal::WriteBatch;

thread_local! {
    /// The batch that single-record writes of this thread are encoded in.
    static SINGLE: RefCell<WriteBatch> = const { RefCell::new(WriteBatch::new()) };
}

/// Size, in bytes, above which a thread frees its batch buffer after a single-record write.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// An open database. Clones are cheap. The drop of the last clone closes the database. A drop
/// cannot return an error: call [`Db::close`] to learn of errors.
///
/// All methods may be called from any thread. Durability: a write that returned survives
/// `kill -9` of the process; with `WriteOptions::sync` it survives power loss. With
/// `DbOptions::log_buffer_bytes` over storage nodes, a write without `sync` is *buffered*: it is
/// visible when it returns, and survives `kill -9` within 100 ms, or from [`Db::flush_log`] on.
///
/// ```
/// use archipelago_engine::db::Db;
/// use archipelago_engine::options::DbOptions;
///
/// let dir = tempfile::tempdir()?;
/// let db = Db::open(dir.path(), DbOptions::default())?;
/// db.put(b"reef", b"coral")?;
/// assert_eq!(db.get(b"reef")?.as_deref(), Some(&b"coral"[..]));
/// db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Db {
    pub(crate) inner: Arc<DbInner>,
    handle: Arc<Handle>,
}

/// State that the user's clones of a [`Db`] share. Background threads do not hold it, so its drop
/// means that no user has the database any more. The drop closes the database.
struct Handle {
    inner: Arc<DbInner>,
    default_family: ColumnFamily,
    workers: Workers,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = close::shut_down(&self.inner, &self.workers) {
            tracing::warn!(%error, "closing the database failed");
        }
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Db({})", self.inner.storage.dir().display())
    }
}

impl Db {
    /// Opens (by default also creates) the database in `dir`, with every column family that it
    /// has.
    ///
    /// Errors: `InvalidArgument` names a bad setting or says that `dir` holds something else.
    /// `NotFound` if there is no database and `create_if_missing` is false. `Busy` if the database
    /// is open elsewhere. `Unsupported` if another format version wrote it. `Corrupt` names the
    /// damaged file. After an error no data was changed.
    pub fn open(dir: impl AsRef<Path>, options: DbOptions) -> Result<Self> {
        let fs = Arc::new(LocalFs::for_group(options.group_access));
        Self::open_with(dir, options, Components { fs, ..Components::default() })
    }

    /// [`Db::open`] with other components: a file system, a clock, extensions, listeners, settings
    /// of column families. `InvalidArgument` also if the file system gives the group another access
    /// than `options.group_access` says.
    pub fn open_with(
        dir: impl AsRef<Path>,
        options: DbOptions,
        components: Components,
    ) -> Result<Self> {
        let opened = open::open(dir.as_ref(), options, components)?;
        let default = opened
            .view
            .family(archipelago_base::CfId::DEFAULT)
            .ok_or_else(|| Error::not_found("the default column family is missing"))?;
        let default_family = ColumnFamily { family: default, db_token: opened.context.token() };
        let workers = Workers::default();
        if let Err(error) = workers.start(&opened) {
            // The threads that have started own the database, and its lock with it.
            if let Err(closing) = close::shut_down(&opened, &workers) {
                tracing::warn!(%closing, "the database could not be closed after a failed open");
            }
            return Err(error);
        }
        let handle = Arc::new(Handle { inner: Arc::clone(&opened), default_family, workers });
        Ok(Self { inner: opened, handle })
    }

    /// Closes the database: stops background work, makes the log durable, releases the lock. Calls
    /// through other clones of the handle fail with `Closed` from now on. Memtables with records
    /// that no log has are flushed first. Errors: `Io` if the log could not be synced.
    pub fn close(self) -> Result<()> {
        close::shut_down(&self.inner, &self.handle.workers)
    }

    /// Directory of the database.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.inner.storage.dir()
    }

    /// The settings that the database runs with.
    #[must_use]
    pub fn options(&self) -> &DbOptions {
        self.inner.context.options()
    }

    /// The owner of the database, as the manifest names it. It is this process, if this process has
    /// opened the database for writing. `None` in a checkpoint that is open for reading, and on a
    /// full disk until an edit has succeeded.
    ///
    /// ```
    /// use archipelago_engine::db::Db;
    /// use archipelago_engine::options::DbOptions;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let first = Db::open(dir.path(), DbOptions::default())?;
    /// let epoch = first.owner().map(|owner| owner.epoch);
    /// first.close()?;
    /// let second = Db::open(dir.path(), DbOptions::default())?;
    /// assert!(second.owner().map(|owner| owner.epoch) > epoch);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        self.inner.storage.lock_manifest(Order::none()).owner().cloned()
    }

    /// The column family that every database has.
    #[must_use]
    pub fn default_family(&self) -> &ColumnFamily {
        &self.handle.default_family
    }

    /// Sets `key` to `value` in the default column family. Survives `kill -9` on return, unless the
    /// log is buffered (`DbOptions::log_buffer_bytes`).
    ///
    /// Errors: `InvalidArgument` if the key is over 64 KiB or the value over 1 GiB; `ReadOnly`,
    /// `Io` if the log cannot be written. After an error nothing was written, with two exceptions.
    /// After a failed sync the outcome is unknown. With `log_write_through` the outcome is also
    /// unknown after a failed write to the log's device.
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

    /// Sets `key` to `value` until `expires_at_ms` (Unix milliseconds). From then on the key reads
    /// as deleted. Durability and errors are those of [`Db::put`].
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

    /// Deletes `key` in the default column family. Deleting a key that does not exist is no error.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.delete_with(self.default_family(), key, &WriteOptions::default())
    }

    /// [`Db::delete`] in any column family, with options.
    pub fn delete_with(&self, cf: &ColumnFamily, key: &[u8], options: &WriteOptions) -> Result<()> {
        self.check_family(cf)?;
        self.single(options, |batch| batch.delete_cf(cf.id(), key))
    }

    /// Deletes every key from `start` (inclusive) to `end` (exclusive), in one record. Until the
    /// record is flushed, it takes about 200 bytes of the memtable for each bucket that it reaches
    /// into, whether or not it overlaps other range deletes. `InvalidArgument` if `end` is before
    /// `start`.
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

    /// Applies a batch: all of its records become visible together, and all or none survive a
    /// crash, over any number of column families. Survives `kill -9` on return, unless the log is
    /// buffered (`DbOptions::log_buffer_bytes`), and power loss with `WriteOptions::sync`. Returns
    /// the sequence number of the batch's last record. For an empty batch it returns that of the
    /// last visible write.
    pub fn write(&self, batch: &WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        write(&self.inner, batch, options)
    }

    /// A snapshot to read as of. It sees every write that returned before this call.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let inner = &self.inner;
        // While a picture is published, a snapshot would get a part of the old and a part of the
        // new picture. The lock prevents that.
        let _publishing =
            inner.context.options().read_only.then(|| inner.view.pictures().lock_publishing());
        inner.view.snapshots().take(
            inner.context.clock().now_ns(),
            || inner.view.visible(),
            || inner.view.filtered_pictures(inner.context.options().read_only),
        )
    }

    /// The sequence number of the last visible write.
    #[must_use]
    pub fn latest_seq_of_all(&self) -> SeqNo {
        self.inner.view.visible()
    }

    /// Makes everything that was written before this call survive power loss.
    pub fn sync(&self) -> Result<()> {
        self.inner.context.check_open()?;
        leave_log::sync_or_leave(&self.inner, self.inner.view.visible())
    }

    /// Makes everything that was written before this call survive `kill -9` of the process. Only
    /// writes to a buffered log (`DbOptions::log_buffer_bytes`) may return before they survive a
    /// kill. For other logs the call does nothing. Errors: those of the log. `ReadOnly` and
    /// `Fenced` say that the outcome of buffered writes is unknown.
    pub fn flush_log(&self) -> Result<()> {
        self.inner.context.check_open()?;
        write::flush_log(&self.inner)
    }

    /// The counters and histograms.
    #[must_use]
    pub fn statistics(&self) -> &Arc<Statistics> {
        self.inner.observers.stats()
    }

    /// Whether a write to `cf` would be delayed or stopped now.
    #[must_use]
    pub fn would_stall(&self, cf: &ColumnFamily) -> bool {
        cf.family.is_slowed()
    }

    /// Whether a write to `cf` would be delayed or stopped now until background work makes
    /// progress. A caller that waits for the end of such a delay asks this. It is `false` while the
    /// storage pool delays writers, because that delay is short for each write and may last for
    /// days.
    #[must_use]
    pub fn is_behind(&self, cf: &ColumnFamily) -> bool {
        cf.family.is_behind()
    }

    /// Lets a database take writes again after an error whose cause is gone. The call flushes all
    /// memtables to new files and starts a new log. It fails if the cause is not gone.
    pub fn resume(&self) -> Result<()> {
        self.inner.context.check_open()?;
        leave_log::resume(&self.inner)
    }

    /// Runs one step of background work on the calling thread; `false` if there was nothing to do.
    /// It is for databases that were opened with `BackgroundMode::Manual`. The call returns the
    /// error of a step and does not try the step again.
    pub fn step_background(&self) -> Result<bool> {
        self.inner.context.check_open()?;
        scheduler::step(&self.inner)
    }

    /// Waits until no background work is due or running, and then for the warm pass after a
    /// compaction that ran in another process. In manual mode: steps until there is none. Fails
    /// with the error of background work that fails.
    pub fn wait_for_background(&self) -> Result<()> {
        if self.inner.context.is_manual() {
            // While a caller waits, shards at memory nodes are due for a flush.
            let _waiting = self.inner.context.away().map(|_| self.inner.jobs.wait_idle());
            while self.step_background()? {}
            return Ok(());
        }
        let waiting = self.inner.jobs.wait_idle();
        scheduler::wait_until_idle(&self.inner)?;
        // A waiter makes all flushes due and keeps shards from leaving. A pass may take minutes.
        drop(waiting);
        scheduler::wait_for_warm_passes(
            &self.inner.context,
            &self.inner.jobs,
            &self.inner.warm_passes,
        )
    }

    /// Brings a database that was opened read only to the state that its writer has reached. Every
    /// write that is in the log and returned before the call is visible on return. The writer may
    /// be another process. Column families that were created since then exist, and handles of
    /// dropped ones are refused. Iterators and snapshots keep what they see. Settings of families
    /// stay those of the open. For a database that takes writes itself, the call does nothing.
    ///
    /// Errors: `Corrupt` names the damaged file; `Busy` if the writer replaced its files faster
    /// than they could be read, many times in a row. After an error the handle shows the same state
    /// as before the call.
    ///
    /// ```
    /// # use archipelago_engine::{db::Db, options::DbOptions};
    /// # let dir = tempfile::tempdir()?;
    /// let writer = Db::open(dir.path(), DbOptions::default())?;
    /// let read_only = DbOptions { read_only: true, ..DbOptions::default() };
    /// let reader = Db::open(dir.path(), read_only)?;
    /// writer.put(b"reef:1", b"coral")?;
    /// assert!(reader.get(b"reef:1")?.is_none());
    /// reader.catch_up()?;
    /// assert_eq!(reader.get(b"reef:1")?.as_deref(), Some(&b"coral"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn catch_up(&self) -> Result<()> {
        self.inner.context.check_open()?;
        catch_up::catch_up(&self.inner)
    }

    fn single(&self, options: &WriteOptions, fill: impl FnOnce(&mut WriteBatch)) -> Result<()> {
        SINGLE.with_borrow_mut(|batch| {
            batch.clear();
            fill(batch);
            let result = write(&self.inner, batch, options).map(|_| ());
            if batch.byte_len() > KEPT_BYTES_MAX {
                *batch = WriteBatch::new();
            }
            result
        })
    }

    /// Refuses a snapshot of another open database.
    #[inline]
    pub(crate) fn check_snapshot(&self, options: &ReadOptions) -> Result<()> {
        match &options.snapshot {
            Some(snapshot) if !snapshot.is_of(self.inner.view.snapshots()) => {
                Err(foreign_snapshot())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check_family(&self, cf: &ColumnFamily) -> Result<()> {
        if cf.db_token != self.inner.context.token() {
            return Err(Error::invalid(format!(
                "the handle of column family \"{}\" belongs to another open database",
                cf.name()
            )));
        }
        cf.family.check_alive()
    }
}

/// Commits a batch, and makes it as durable as its options and those of the database demand.
fn write(db: &DbInner, batch: &WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
    let started = db.context.options().latency_histograms.then(|| db.context.clock().now_ns());
    let result = write::commit_batch(db, batch, options, |write| {
        let committed = db.writes.committer().commit(db, write);
        committed.map_err(|error| write::note_append_error(&db.storage, &db.observers, &error))
    });
    if let Ok(last_seq) = &result {
        leave_log::harden_log(db, *last_seq, options)?;
    }
    if let Some(started) = started {
        db.observers.stats().record(Timer::Write, db.context.clock().now_ns() - started);
    }
    result
}

#[cold]
fn foreign_snapshot() -> Error {
    Error::invalid(
        "the snapshot belongs to another open database, or to an earlier opening of this one: \
         take a snapshot of the database that is read",
    )
}
