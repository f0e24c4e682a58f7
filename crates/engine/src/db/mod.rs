//! The database: what a user opens, and how its parts act together.
//!
//! `inner` has the state and the lock order; `commit`, `write`, `stalling`, `logs` are the write
//! path; `read`, `scan` the read path; `open` recovery; `background` decides and runs jobs,
//! `flushing` and `compacting` plan and install them; `disk` does what a disk that fills makes
//! necessary; `rebalancing` moves bucket
//! boundaries, `families`, `buckets`, `checkpoint`, `ingest`, `verify`, `report` are what an
//! operator calls.

mod admin;
mod background;
mod inner;
mod lifecycle;
mod read;
mod state;
mod write;

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, Result, SeqNo};
use archipelago_env::local::LocalFs;

pub use admin::buckets::BucketInfo;
pub(crate) use admin::checkpoint::copy as copy_file;
pub use admin::compact_range::{CompactRangeOptions, LastLevel, OnProgress};
pub use admin::ingest::IngestOptions;
pub use admin::report::{LevelInfo, Report};
pub use admin::verify::VerifyReport;
pub use background::flush_plan;
pub use background::rebalance::BucketChange;
use background::scheduler::Workers;
pub(crate) use inner::DbInner;
use lifecycle::open;
pub use lifecycle::open::{Components, FaultPoint};
pub use read::get::Entry;
pub use read::key_estimate::KeyEstimate;
pub(crate) use read::newest::{Since, newest_record, range_has_newer};
pub use read::options::ReadOptions;
pub use read::scan::Iter;
pub(crate) use read::scan::{bounds_of, check_bounds, scan};
pub use read::snapshot::Snapshot;
pub use state::background_mode::BackgroundMode;
pub use state::family::ColumnFamily;
pub(crate) use state::family::Family;
pub(crate) use write::commit::CommitState;
pub use write::disk_room::DiskReport;
pub(crate) use write::{check_limits, check_merge};

use crate::options::DbOptions;
use crate::stats::Statistics;

/// An open database. Cheap to clone; the last clone to be dropped closes it, without an answer:
/// call [`Db::close`] to learn of errors.
///
/// All methods may be called from any thread. Durability: a write that returned survives
/// `kill -9` of the process; with `WriteOptions::sync` it survives power loss.
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

/// Shared by the user's clones, not by background threads: its drop is the close.
struct Handle {
    inner: Arc<DbInner>,
    default_family: ColumnFamily,
    workers: Workers,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.inner.shut_down(&self.workers) {
            tracing::warn!(%error, "closing the database failed");
        }
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Db({})", self.inner.dir.display())
    }
}

impl Db {
    /// Opens (by default also creates) the database in `dir`, with every column family that it
    /// has.
    ///
    /// Errors: `InvalidArgument` names a bad setting or says that `dir` holds something else;
    /// `Busy` if it is open elsewhere; `Unsupported` if it was written by another format version;
    /// `Corrupt` names the damaged file. After an error nothing was changed.
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
            .family(archipelago_base::CfId::DEFAULT)
            .ok_or_else(|| Error::not_found("the default column family is missing"))?;
        let default_family = ColumnFamily { family: default, db_token: opened.token };
        let workers = Workers::start(&opened)?;
        let handle = Arc::new(Handle { inner: Arc::clone(&opened), default_family, workers });
        Ok(Self { inner: opened, handle })
    }

    /// Closes the database: stops background work, makes the log durable, releases the lock. Other
    /// clones of the handle are refused from now on. Memtables with records that no log has are
    /// flushed first. Errors: `Io` if the log could not be synced.
    pub fn close(self) -> Result<()> {
        self.inner.shut_down(&self.handle.workers)
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// The settings that it runs with.
    #[must_use]
    pub fn options(&self) -> &DbOptions {
        &self.inner.options
    }

    /// The column family that every database has.
    #[must_use]
    pub fn default_family(&self) -> &ColumnFamily {
        &self.handle.default_family
    }

    /// A point in time to read as of: it sees every write that returned before this call.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let inner = &self.inner;
        // Between two pictures a snapshot would have a part of each.
        let _publishing = inner.options.read_only.then(|| inner.following.publishing.lock());
        inner.snapshots.take(|| inner.visible(), || inner.filtered_pictures())
    }

    /// The sequence number of the last visible write.
    #[must_use]
    pub fn latest_seq_of_all(&self) -> SeqNo {
        self.inner.visible()
    }

    /// Makes everything that was written before this call survive power loss.
    pub fn sync(&self) -> Result<()> {
        self.inner.check_open()?;
        self.inner.sync_or_leave(self.inner.visible())
    }

    /// The counters and histograms.
    #[must_use]
    pub fn statistics(&self) -> &Arc<Statistics> {
        &self.inner.stats
    }

    /// Whether a write to `cf` would be slowed or have to wait now.
    #[must_use]
    pub fn would_stall(&self, cf: &ColumnFamily) -> bool {
        cf.family.is_slowed()
    }

    /// Takes writes again after the cause of an error is gone: flushes what is in memory to new
    /// files and starts a new log. `Err` if the cause is not gone.
    pub fn resume(&self) -> Result<()> {
        self.inner.check_open()?;
        self.inner.resume()
    }

    /// Refuses a snapshot of another open database.
    #[inline]
    pub(crate) fn check_snapshot(&self, options: &ReadOptions) -> Result<()> {
        match &options.snapshot {
            Some(snapshot) if !snapshot.is_of(&self.inner.snapshots) => Err(foreign_snapshot()),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_family(&self, cf: &ColumnFamily) -> Result<()> {
        if cf.db_token != self.inner.token {
            return Err(Error::invalid(format!(
                "the handle of column family \"{}\" belongs to another open database",
                cf.name()
            )));
        }
        cf.family.check_alive()
    }
}

#[cold]
fn foreign_snapshot() -> Error {
    Error::invalid(
        "the snapshot belongs to another open database, or to an earlier opening of this one: \
         take a snapshot of the database that is read",
    )
}
