//! Administration: the calls of an operator.
//!
//! They concern families, buckets, compactions of a range, checkpoints, ingestion, reports and
//! verification. The calls stand here, and the other files of the folder carry them out.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the methods say which errors they return, and what holds after an error.
//! Cost: see the files.

pub(crate) mod buckets;
pub(crate) mod checkpoint;
pub(crate) mod compact_range;
pub(crate) mod database_report;
pub(crate) mod families;
pub(crate) mod ingest;
pub(crate) mod report;
#[cfg(any(test, feature = "fault-points"))]
pub(crate) mod value_audit;
pub(crate) mod values;
pub(crate) mod verify;

use std::path::Path;

use archipelago_base::Result;

use crate::db::admin::buckets::BucketInfo;
use crate::db::admin::compact_range::{CompactRangeOptions, RangeRequest};
use crate::db::admin::database_report::DatabaseReport;
use crate::db::admin::ingest::IngestOptions;
use crate::db::admin::report::FamilyReport;
use crate::db::admin::values::ValuesReport;
use crate::db::admin::verify::VerifyReport;
use crate::db::background::{flush, rebalance};
use crate::db::read::key_estimate::{self, KeyEstimate};
use crate::db::state::balance::BucketChange;
use crate::db::write::disk_room::DiskReport;
use crate::db::{ColumnFamily, Db};
use crate::disk_space::SpaceState;
use crate::key::KeyRange;
use crate::options::CfOptions;
use crate::version::rebalance::ChangeKind;

impl Db {
    /// The column family named `name`. `InvalidArgument` if there is none, and its text lists the
    /// existing names.
    pub fn family(&self, name: &str) -> Result<ColumnFamily> {
        self.inner.context.check_open()?;
        let family = families::find_family(&self.inner.view, name)?;
        Ok(ColumnFamily { family, db_token: self.inner.context.token() })
    }

    /// The names of all column families, the default one first.
    #[must_use]
    pub fn list_families(&self) -> Vec<String> {
        self.inner.view.live_families().iter().map(|family| family.name.clone()).collect()
    }

    /// Creates a column family. `InvalidArgument` if the name is taken, a setting is out of range,
    /// or an extension is not registered. Survives power loss on return.
    pub fn create_family(&self, name: &str, options: CfOptions) -> Result<ColumnFamily> {
        self.inner.context.check_open()?;
        self.inner.observers.health().check_writable()?;
        let family = families::create_family(&self.inner, name, options)?;
        Ok(ColumnFamily { family, db_token: self.inner.context.token() })
    }

    /// Drops a column family with all its data. The default family cannot be dropped. Durable on
    /// return: power loss cannot undo it, and everything that was written before the drop survives
    /// with it. Errors: `InvalidArgument` for the default family, `Closed` if it was dropped
    /// before, `Io` if the log cannot be synced or the manifest cannot be written.
    ///
    /// Afterwards every call with a handle of the family fails with `Closed`, also a read at an
    /// older snapshot. A writer that waits for its flushes gets an error. Open iterators over the
    /// family go on, and values that were read stay valid. The call does not wait for running
    /// flushes and compactions. Their outputs are removed when they end, and they do not count as
    /// failed.
    ///
    /// Its memtables and tables are freed as soon as no iterator, no running job and no snapshot
    /// holds them. Snapshots hold those of families that have a compaction filter. Handles hold
    /// nothing. Background work removes the files that were held. If the database is closed before
    /// that, the next open removes them.
    pub fn drop_family(&self, cf: &ColumnFamily) -> Result<()> {
        self.check_family(cf)?;
        self.inner.observers.health().check_writable()?;
        families::drop_family(&self.inner, &cf.family)
    }

    /// The buckets of a column family, in key order.
    pub fn buckets(&self, cf: &ColumnFamily) -> Result<Vec<BucketInfo>> {
        self.check_family(cf)?;
        Ok(buckets::buckets(&self.inner.context, &self.inner.jobs, cf))
    }

    /// Cuts bucket `index` in two at `key`, or in the middle of its data if `key` is `None`.
    /// Survives power loss on return. Errors: `Busy`, with the reason, while the bucket has L0
    /// files or a running job, or while background work is paused; `InvalidArgument` if the key
    /// does not lie inside the bucket.
    pub fn split_bucket(&self, cf: &ColumnFamily, index: usize, key: Option<&[u8]>) -> Result<()> {
        self.check_family(cf)?;
        buckets::split_bucket(self.inner.install_owners(), cf, index, key)
    }

    /// Merges bucket `index` with its right neighbour. `Busy` as in [`Db::split_bucket`]. If the
    /// family's `buckets_dynamic` is set, later changes by the load may undo a change on request.
    pub fn merge_buckets(&self, cf: &ColumnFamily, index: usize) -> Result<()> {
        self.check_family(cf)?;
        rebalance::change_map(self.inner.install_owners(), &cf.family, |map| {
            map.merge(index)?;
            Ok(ChangeKind::Merge { left: index })
        })
    }

    /// The newest changes of the family's bucket map since the open, oldest first, at most 32.
    pub fn bucket_changes(&self, cf: &ColumnFamily) -> Result<Vec<BucketChange>> {
        self.check_family(cf)?;
        Ok(rebalance::bucket_changes(&self.inner.jobs, cf.id()))
    }

    /// Writes all memtables of the family to L0, and waits until the tables are installed. The
    /// records then survive power loss.
    pub fn flush(&self, cf: &ColumnFamily) -> Result<()> {
        self.check_family(cf)?;
        self.inner.context.check_open()?;
        self.inner.context.refuse_read_only()?;
        flush::flush_family(&self.inner, &cf.family)
    }

    /// Begins to write all memtables of the family to L0, without waiting for the end. If the
    /// family already has the largest number of sealed memtables, the call waits as [`Db::flush`]
    /// does.
    pub fn start_flush(&self, cf: &ColumnFamily) -> Result<()> {
        self.check_family(cf)?;
        self.inner.context.check_open()?;
        self.inner.context.refuse_read_only()?;
        flush::start_flush(&self.inner, &cf.family)
    }

    /// Flushes the family, compacts the keys of `range` down to the last level, and waits for the
    /// end. Tables of the last level are written again if that gains something: see
    /// [`LastLevel`](crate::db::LastLevel). If the family does not separate values any more, all
    /// values of the range lie in tables again on return.
    ///
    /// Everything that was written before the call is compacted on return. Writers may go on
    /// meanwhile. Errors: those of [`Db::compact_range_with`].
    pub fn compact_range(&self, cf: &ColumnFamily, range: &KeyRange) -> Result<()> {
        self.compact_range_with(cf, range, &CompactRangeOptions::default())
    }

    /// [`Db::compact_range`] with settings.
    ///
    /// Errors: `Closed` if it was cancelled, the database closed or the family dropped meanwhile;
    /// `ReadOnly` if the database takes no writes; the error of a job that failed. Tables
    /// that were compacted before an error stay compacted.
    pub fn compact_range_with(
        &self,
        cf: &ColumnFamily,
        range: &KeyRange,
        options: &CompactRangeOptions,
    ) -> Result<()> {
        let through = self.inner.view.visible();
        self.flush(cf)?;
        compact_range::compact_range(&self.inner, &RangeRequest { cf, range, options, through })
    }

    /// Makes a checkpoint in `dir`, which must not exist or be empty. On return it survives power
    /// loss and can be opened as a database of its own.
    ///
    /// It holds what the database held at one moment during the call. It has every write,
    /// ingestion, creation and drop of a family that returned before the call. Of those that run at
    /// the same time, it has a prefix of the order in which they take effect. All of this holds for
    /// writes without the log, too. Writers go on while files are linked, copied and written.
    ///
    /// Errors: `InvalidArgument` if the directory is not empty; `Io` if a file cannot be read or
    /// written. After an error in the export the directory is removed.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<()> {
        checkpoint::make_checkpoint(&self.inner, dir.as_ref())
    }

    /// Adds `files`, made by an `SstWriter`, to `cf`. Their records are newer than everything that
    /// was written before, and become visible in one step. Survives power loss on return. Other
    /// ingestions, flushes, compactions and changes of buckets may run meanwhile.
    ///
    /// Every file is checked in full before anything is visible. After an error nothing was
    /// ingested, and no file stays in the directory. There is one exception: if the manifest could
    /// not be written, the next open may find the files ingested.
    ///
    /// Errors: `InvalidArgument` names the file that `cf` cannot hold, the reason, and a remedy.
    /// Reasons are: the file is no table, or was not made by an `SstWriter` (a table of a live
    /// database has sequence numbers of its own). It has merge operands, and `cf` has no merge
    /// operator. It was made for a column family of another name. It overlaps another file, or has
    /// no records. `Corrupt` names a damaged file. `Unsupported` names a file of another format,
    /// comparator or encryption.
    pub fn ingest<P: AsRef<Path>>(
        &self,
        cf: &ColumnFamily,
        files: &[P],
        options: &IngestOptions,
    ) -> Result<()> {
        self.check_family(cf)?;
        self.inner.context.check_open()?;
        self.inner.context.refuse_read_only()?;
        self.inner.observers.health().check_writable()?;
        if files.is_empty() {
            return Ok(());
        }
        ingest::ingest(&self.inner, &cf.family, files, options)
    }

    /// Figures of `cf` at one moment, by level and by bucket.
    pub fn report(&self, cf: &ColumnFamily) -> Result<FamilyReport> {
        report::report(self, cf)
    }

    /// Figures of the whole database, which belong to no family.
    #[must_use]
    pub fn database_report(&self) -> DatabaseReport {
        database_report::database_report(self)
    }

    /// Reports of all families, memory, counters and timers as text for people.
    #[must_use]
    pub fn stats_text(&self) -> String {
        report::stats_text(self)
    }

    /// A property by name, as text; `None` if there is none. `rocksdb.` may stand in place of
    /// `archipelago.`.
    ///
    /// | property, after `archipelago.` | meaning |
    /// | --- | --- |
    /// | `stats` | [`Db::stats_text`] |
    /// | `levelstats` | table of the levels, as in the statistics |
    /// | `bucketstats` | table of the buckets, and the latest changes of their boundaries |
    /// | `num-files-at-levelN` | number of tables in level N |
    /// | `estimate-num-keys` | [`Db::estimate_keys`] |
    /// | `num-immutable-mem-table` | number of immutable memtables |
    /// | `num-away-shards` | number of memtable shards of all families at memory nodes |
    /// | `away-shard-bytes` | bytes of the images of these shards |
    /// | `cur-size-all-mem-tables` | bytes of the memtables of all families |
    /// | `mem-table-bytes-max` | bytes that all memtables of the family may take |
    /// | `estimate-pending-compaction-bytes` | compaction debt in bytes |
    /// | `num-snapshots` | number of open snapshots |
    /// | `snapshot-table-bytes` | bytes of tables and value files that only snapshots keep |
    /// | `snapshot-mem-table-bytes` | bytes of records in memtables that only snapshots keep |
    /// | `total-sst-files-size` | bytes of all tables |
    /// | `num-running-jobs` | number of running background jobs |
    /// | `running-jobs-bytes-max` | bytes that all background jobs may take together |
    /// | `block-cache-usage` | bytes of the blocks that count as block cache |
    /// | `block-cache-capacity` | capacity of the block cache in bytes |
    /// | `block-cache-hit` | number of look-ups that found their block in the cache |
    /// | `block-cache-miss` | number of look-ups that did not |
    /// | `block-cache-KIND-hit` | hits of one kind of block: data, index, filter, value or flat |
    /// | `block-cache-KIND-miss` | misses of that kind |
    /// | `num-value-files` | number of value files |
    /// | `value-file-bytes` | bytes of the value files |
    /// | `value-valid-bytes` | bytes of separated values that tables refer to |
    /// | `value-exposed-bytes` | bytes of separated values that no table refers to |
    /// | `value-hidden-bytes` | estimated bytes of separated values that newer records shadow |
    /// | `value-stats` | [`Db::values`] as text |
    /// | `space-live-bytes` | bytes of tables and value files without garbage |
    /// | `space-in-flight-bytes` | bytes that running compactions and collections may write |
    /// | `pinned-file-bytes` | bytes of tables and value files that only old versions hold |
    /// | `background-errors` | number of background jobs that failed |
    /// | `health` | health of the database, as text |
    /// | `latest-sequence-number` | newest visible sequence number |
    /// | `disk-state` | state of the room on the disk: roomy, tight, low or critical |
    /// | `disk-free-bytes` | free bytes of the disk, if the file system reports them |
    /// | `disk-reserve-bytes` | bytes of the reserve for a full disk |
    #[must_use]
    pub fn property(&self, cf: &ColumnFamily, name: &str) -> Option<String> {
        report::property(self, cf, name)
    }

    /// The value files of the family, with the most garbage first, and the parts of the family's
    /// space.
    pub fn values(&self, cf: &ColumnFamily) -> Result<ValuesReport> {
        values::values_report(self, cf)
    }

    /// Estimated number of live keys. Overwritten, deleted and expired records do not count. With
    /// at most some thousand keys the estimate is nearly exact. With more, the error is within 10 %
    /// of the number of different keys that the records in memtables and tables have. The call
    /// reads at most some hundreds of small blocks.
    #[must_use]
    pub fn estimate_keys(&self, cf: &ColumnFamily) -> u64 {
        key_estimate::count_keys(self.inner.reader(), &cf.family).keys
    }

    /// [`Db::estimate_keys`] with the number of keys that expire, and the mean time that these have
    /// left. The number of expiring keys has the same error as that of all keys.
    #[must_use]
    pub fn estimate_key_counts(&self, cf: &ColumnFamily) -> KeyEstimate {
        key_estimate::count_keys(self.inner.reader(), &cf.family)
    }

    /// Bytes of keys and values of all records in memtables and tables, before compression.
    /// Overwritten, deleted and expired records are included. A scan of everything may have to read
    /// this many bytes.
    #[must_use]
    pub fn raw_bytes(&self, cf: &ColumnFamily) -> u64 {
        report::raw_bytes(cf)
    }

    /// State of the room on the disk, as in [`DiskReport::state`]. Costs one load.
    #[must_use]
    pub fn space_state(&self) -> SpaceState {
        self.inner.disk.state()
    }

    /// Last measurement of the room on the disk.
    #[must_use]
    pub fn disk(&self) -> DiskReport {
        self.inner.disk.report()
    }

    /// Reads every live table and value file in full (each checksum, order and counts), the closed
    /// log segments and the manifest. Checks that every reference to a separated value resolves.
    /// The error of a damaged value file says how many records refer to it. Changes nothing. Damage
    /// is listed in the report, and not returned as an error. `progress` is called with the bytes
    /// that were read and the bytes in all.
    ///
    /// A database that was opened read only is verified as of its picture ([`Db::catch_up`]). A
    /// table that its writer has removed meanwhile, and that was not held open, is no damage and
    /// does not count.
    pub fn verify(&self, progress: impl FnMut(u64, u64)) -> Result<VerifyReport> {
        self.inner.context.check_open()?;
        verify::verify(&self.inner, progress)
    }
}
