//! What the engine counts: tickers, latency histograms and stall times, as values.
//!
//! A database owns the statistics and shares them with its jobs and readers. An increment is one
//! relaxed addition in the calling thread's stripe. `db::admin::report` makes text and tables.

use archipelago_base::metrics::{Counters, Distribution, Histogram, Summary};

macro_rules! tickers {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What is counted since the database was opened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Ticker {
            $($(#[$doc])* $name,)*
        }

        impl Ticker {
            /// Every ticker, in report order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The ticker as reports spell it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

tickers! {
    /// Calls that write.
    Writes = "writes",
    /// Records that users wrote.
    RecordsWritten = "records.written",
    /// Bytes of keys and values that users wrote.
    UserBytesWritten = "user.bytes.written",
    /// Bytes appended to the log.
    WalBytes = "wal.bytes",
    /// Syncs of the log.
    WalSyncs = "wal.syncs",
    /// Writes whose log record another thread appended for them.
    WritesGrouped = "writes.grouped",
    /// Look-ups of single keys.
    Gets = "gets",
    /// Point look-ups that found a value.
    GetsFound = "gets.found",
    /// Look-ups answered by a memtable.
    GetsMemtable = "gets.memtable",
    /// Tables that look-ups searched (past their filters).
    TablesSearched = "gets.tables.searched",
    /// Tables that a filter excluded from a look-up.
    FilterUseful = "filter.useful",
    /// Separated values that look-ups and iterators found in the block cache.
    ValuesCached = "values.cached",
    /// Separated values that look-ups and iterators read from a value file.
    ValuesRead = "values.read",
    /// Separated values that look-ups and iterators searched for in the key blocks of their file,
    /// because garbage collection had moved them or the reference had no offset.
    ValueHintMisses = "values.hint.misses",
    /// Iterators that were made.
    Iterators = "iterators",
    /// Seeks of iterators.
    Seeks = "seeks",
    /// Flush jobs installed.
    Flushes = "flushes",
    /// Bytes that flushes wrote.
    FlushBytesWritten = "flush.bytes.written",
    /// Nanoseconds for which flushes that were installed waited for the log, after their files were
    /// written.
    FlushLogSyncNs = "flush.log.sync.ns",
    /// Nanoseconds that the installs of flushes took after these waits.
    FlushInstallNs = "flush.install.ns",
    /// Compaction jobs installed.
    Compactions = "compactions",
    /// Files that moved down a level without being rewritten.
    TrivialMoves = "compactions.trivial",
    /// Tables that were removed without being read, because no reader needed anything in them.
    TablesDropped = "tables.dropped",
    /// Parts of compactions that were cut into several.
    Subcompactions = "compactions.parts",
    /// Bytes that compactions read.
    CompactionBytesRead = "compaction.bytes.read",
    /// Bytes that compactions wrote.
    CompactionBytesWritten = "compaction.bytes.written",
    /// Blocks that were read into the block cache, because a compaction in another process had
    /// written them anew.
    BlocksWarmed = "compaction.blocks.warmed",
    /// Bytes of these blocks in their files.
    BytesWarmed = "compaction.bytes.warmed",
    /// Garbage collections of value files that were installed.
    GcJobs = "gc.jobs",
    /// Value files that these collections replaced.
    GcFilesCollected = "gc.files.collected",
    /// Bytes that garbage collections read.
    GcBytesRead = "gc.bytes.read",
    /// Bytes that garbage collections wrote.
    GcBytesWritten = "gc.bytes.written",
    /// Records that garbage collections looked up.
    GcRecordsChecked = "gc.records.checked",
    /// Valid records that garbage collections copied.
    GcRecordsCopied = "gc.records.copied",
    /// Requests of garbage collections for the keys of a value file.
    GcKeyReads = "gc.key.reads",
    /// Bytes of keys that garbage collections read.
    GcKeyBytesRead = "gc.key.bytes.read",
    /// Nanoseconds that garbage collections spent on reading keys.
    GcKeyReadNs = "gc.key.read.ns",
    /// Nanoseconds that garbage collections spent on looking keys up in tables.
    GcLookupNs = "gc.lookup.ns",
    /// Requests of garbage collections for values, each for one or several ranges.
    GcValueReads = "gc.value.reads",
    /// Ranges in these requests.
    GcValueRanges = "gc.value.ranges",
    /// Bytes of values that garbage collections read.
    GcValueBytesRead = "gc.value.bytes.read",
    /// Nanoseconds that garbage collections spent on reading values.
    GcValueReadNs = "gc.value.read.ns",
    /// Nanoseconds that garbage collections spent on checking values and writing them.
    GcWriteNs = "gc.write.ns",
    /// Nanoseconds that garbage collections spent on keys and sync at the end of their output.
    GcFinishNs = "gc.finish.ns",
    /// Records that compactions and flushes dropped.
    RecordsDropped = "records.dropped",
    /// Dropped records that had expired, and the records of tables that were removed because all
    /// had expired.
    RecordsExpired = "records.expired",
    /// Background jobs that failed.
    BackgroundErrors = "background.errors",
    /// Background jobs that failed because an extension panicked.
    ExtensionPanics = "extension.panics",
    /// Calls of event listeners that panicked.
    ListenerPanics = "listener.panics",
    /// Jobs that failed because their edit did not fit the versions any more.
    EditsRefused = "edits.refused",
    /// Merges that an operator refused during a job; the operands were kept.
    MergeErrors = "merge.errors",
    /// Files removed because no version needed them.
    FilesRemoved = "files.removed",
    /// Tables removed that jobs had written which were given up.
    StraysRemoved = "strays.removed",
    /// Memtable shards that were sent to a memory node.
    AwayShardsSent = "away.shards.sent",
    /// Bytes of the images of sent shards.
    AwayBytesSent = "away.bytes.sent",
    /// Bytes of memory that stayed for sent shards: filters, tombstones, samples and places.
    AwayKeptBytes = "away.kept.bytes",
    /// Nanoseconds that these sends took, each from the making of its image until this process had
    /// registered the shard as sent. Sends run in parallel with writes and flushes.
    AwaySendNs = "away.send.ns",
    /// Sends that failed because no memory node had room.
    AwaySendsRefused = "away.sends.refused",
    /// Sends that failed because a memory node did not answer or was lost.
    AwaySendsFailed = "away.sends.failed",
    /// Sends that were given up because a flush waited for the shard.
    AwaySendsGivenUp = "away.sends.given.up",
    /// Number of times that memtables which stayed in memory by choice had to leave, because memory
    /// was short.
    AwayStaysEnded = "away.stays.ended",
    /// Memtable shards that were fetched from a memory node to be flushed here.
    AwayShardsFetched = "away.shards.fetched",
    /// Bytes of the images of fetched shards.
    AwayBytesFetched = "away.bytes.fetched",
    /// Nanoseconds that these fetches took, for flushes and for readers alike.
    AwayFetchNs = "away.fetch.ns",
    /// Flushes that were put off because a memory node did not give a shard.
    AwayFlushesPutOff = "away.flushes.put.off",
    /// Flushes of shards at memory nodes that other databases share, because the writers paused.
    AwayFlushesPause = "away.flushes.pause",
    /// Flushes that failed with an executor and ran in this process.
    AwayFlushesRunHere = "away.flushes.run.here",
    /// Flushes that were planned for an executor, ran here instead, and were too large to be
    /// fetched. They are planned again.
    AwayFlushesTooLarge = "away.flushes.too.large",
    /// Memtable shards fetched for an old reader that still used them after their records were in
    /// tables.
    AwayShardsHeld = "away.shards.held",
    /// Look-ups of keys that were sent to memory nodes.
    AwayLookups = "away.lookups",
    /// Look-ups at memory nodes that no filter had excluded and that found nothing.
    AwayLookupsEmpty = "away.lookups.empty",
    /// Timed look-ups that a sealed memtable in memory answered. In a database with memory nodes
    /// the look-ups of one key in 64 are timed, except for those of several keys at a time.
    AwayTimedHere = "away.timed.here",
    /// Nanoseconds of these look-ups.
    AwayTimedHereNs = "away.timed.here.ns",
    /// Timed look-ups that a memory node answered.
    AwayTimedThere = "away.timed.there",
    /// Nanoseconds of these look-ups.
    AwayTimedThereNs = "away.timed.there.ns",
    /// Pages of records that iterators fetched from memory nodes.
    AwayPages = "away.pages",
    /// Reads that failed as busy because a memtable shard could not be read.
    AwayReadsBusy = "away.reads.busy",
    /// Memtable shards that memory nodes have lost.
    AwayShardsLost = "away.shards.lost",
    /// Lost memtable shards that were rebuilt from the log.
    AwayShardsRebuilt = "away.shards.rebuilt",
    /// Memtable shards of the previous owner that the open kept at their memory nodes.
    AwayShardsKept = "away.shards.kept",
    /// Records of the log that the open did not replay, because kept shards contain them.
    AwayRecordsSpared = "away.records.spared",
    /// Memtable shards that the open did not keep, because tables have their records.
    AwayDroppedFlushed = "away.dropped.flushed",
    /// Memtable shards that the open did not keep, because records before theirs are only in the
    /// log.
    AwayDroppedGap = "away.dropped.gap",
    /// Memtable shards that the open did not keep, because the log ends before the shard does. A
    /// power failure took the rest of the log.
    AwayDroppedBeyondLog = "away.dropped.beyond.log",
    /// Memtable shards that the open did not keep, because the shard contradicts the manifest, its
    /// family was dropped, or its node did not deliver its filter.
    AwayDroppedUnusable = "away.dropped.unusable",
    /// Memtable shards that the open did not keep, because of missing room. Either the disk had
    /// none, or the rest of the log did not fit into memory, so that the open replayed all of it
    /// into tables.
    AwayDroppedNoMemory = "away.dropped.no.memory",
    /// Nanoseconds from the request for shards of the previous owner to the end of the open's
    /// recovery, if shards were kept.
    AwayTakeoverNs = "away.takeover.ns",
    /// Writes refused because the disk is full.
    DiskFullRefusals = "disk.full.refusals",
    /// Times that the reserve of the disk was released.
    DiskReserveUses = "disk.reserve.uses",
    /// Memtables sealed early because the disk is nearly full.
    DiskEarlyFlushes = "disk.early.flushes",
    /// Bytes of ingested files.
    IngestBytes = "ingest.bytes",
    /// Bucket map changes.
    BucketMapChanges = "bucket.map.changes",
    /// Buckets that were cut in two.
    BucketSplits = "bucket.splits",
    /// Pairs of buckets that were merged into one.
    BucketMerges = "bucket.merges",
    /// Transactions that were committed.
    TransactionsCommitted = "transactions.committed",
    /// Commits that were refused because of another write, an expiry or a watch.
    TransactionConflicts = "transactions.conflicts",
    /// Row locks that were refused because transactions would have waited for each other.
    TransactionDeadlocks = "transactions.deadlocks",
    /// Row locks that were not granted in time.
    TransactionLockTimeouts = "transactions.lock.timeouts",
    /// Nanoseconds writers waited because of the fullest bucket's L0 files.
    StallL0Ns = "stall.l0.ns",
    /// Nanoseconds writers waited because of immutable memtables.
    StallMemtablesNs = "stall.memtables.ns",
    /// Nanoseconds writers waited because of compaction debt.
    StallPendingNs = "stall.pending.ns",
    /// Nanoseconds writers waited because of the byte budget.
    StallBudgetNs = "stall.budget.ns",
    /// Nanoseconds writers waited because garbage was close to the bound on space.
    StallSpaceNs = "stall.space.ns",
    /// Nanoseconds writers waited for a flush that frees space on a full disk.
    StallDiskNs = "stall.disk.ns",
    /// Nanoseconds writers waited because the storage pool was nearly full.
    StallPoolNs = "stall.pool.ns",
}

const TICKERS: usize = Ticker::ALL.len();

/// Operations that take long enough to be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timer {
    /// A write call, nanoseconds.
    Write,
    /// A point look-up, nanoseconds.
    Get,
    /// A log sync, nanoseconds.
    WalSync,
    /// A flush job, nanoseconds.
    Flush,
    /// A compaction job, nanoseconds.
    Compaction,
    /// A garbage collection job, nanoseconds.
    Gc,
    /// A wait because of a stall, nanoseconds.
    Stall,
}

impl Timer {
    /// Every timer, in report order.
    pub const ALL: &[Self] = &[
        Self::Write,
        Self::Get,
        Self::WalSync,
        Self::Flush,
        Self::Compaction,
        Self::Gc,
        Self::Stall,
    ];

    /// The timer as reports spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write.ns",
            Self::Get => "get.ns",
            Self::WalSync => "wal.sync.ns",
            Self::Flush => "flush.ns",
            Self::Compaction => "compaction.ns",
            Self::Gc => "gc.ns",
            Self::Stall => "stall.ns",
        }
    }
}

/// Tickers and histograms of one database.
#[derive(Debug, Default)]
pub struct Statistics {
    tickers: Counters<TICKERS>,
    timers: [Histogram; Timer::ALL.len()],
}

impl Statistics {
    /// Adds to a ticker.
    #[inline]
    pub fn add(&self, ticker: Ticker, value: u64) {
        self.tickers.add(ticker as usize, value);
    }

    /// A ticker's value.
    #[must_use]
    pub fn get(&self, ticker: Ticker) -> u64 {
        self.tickers.get(ticker as usize)
    }

    /// Records a duration.
    #[inline]
    pub fn record(&self, timer: Timer, ns: u64) {
        self.timers[timer as usize].record(ns);
    }

    /// A histogram's summary.
    #[must_use]
    pub fn summary(&self, timer: Timer) -> Summary {
        self.timers[timer as usize].summary()
    }

    /// A histogram's numbers of values by powers of two of a nanosecond.
    #[must_use]
    pub fn distribution(&self, timer: Timer) -> Distribution {
        self.timers[timer as usize].distribution()
    }

    /// Sets everything back to zero.
    pub fn reset(&self) {
        self.tickers.reset();
        self.timers.iter().for_each(Histogram::reset);
    }
}
