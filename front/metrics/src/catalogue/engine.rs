//! Metrics of a database: writes and stalls, reads and caches, background jobs, levels, space and
//! health. Static data.

use super::metrics;

metrics! {
    /// Number of calls that wrote.
    WRITES: Counter "archipelago_engine_writes" [];
    /// Number of records that users wrote.
    RECORDS_WRITTEN: Counter "archipelago_engine_records_written" [];
    /// Bytes of keys and values that users wrote.
    USER_BYTES: Counter "archipelago_engine_user_written_bytes" [];
    /// Bytes that were appended to the write-ahead log.
    WAL_BYTES: Counter "archipelago_engine_wal_written_bytes" [];
    /// Number of syncs of the write-ahead log.
    WAL_SYNCS: Counter "archipelago_engine_wal_syncs" [];
    /// Number of writes whose log record another thread appended for them.
    WRITES_GROUPED: Counter "archipelago_engine_writes_grouped" [];
    /// Time that writers waited because of a write stall, by `cause`: l0 (files of the fullest
    /// bucket), memtables (that wait for a flush), pending (compaction debt), budget (memory),
    /// space (garbage of separated values), disk (nearly full) or pool (storage nodes that are
    /// nearly full).
    STALL_TIME: Counter "archipelago_engine_write_stall_seconds" ["cause"];
    /// Times of operations by `operation`: write, get, wal_sync, flush, compaction, gc and stall.
    /// Upper bounds are powers of two of a nanosecond. Writes and gets are timed only if the
    /// setting `latency_histograms` of the database is on.
    DURATIONS: Histogram "archipelago_engine_operation_duration_seconds" ["operation"];
    /// Number of look-ups of single keys.
    GETS: Counter "archipelago_engine_gets" [];
    /// Number of point look-ups that found a value.
    GETS_FOUND: Counter "archipelago_engine_gets_found" [];
    /// Number of look-ups that a memtable answered.
    GETS_MEMTABLE: Counter "archipelago_engine_gets_in_memtable" [];
    /// Number of look-ups that asked memory nodes for memtable shards that are away.
    AWAY_LOOKUPS: Counter "archipelago_engine_away_lookups" [];
    /// Number of look-ups of memory nodes that found nothing, because a filter was wrong.
    AWAY_LOOKUPS_EMPTY: Counter "archipelago_engine_away_lookups_empty" [];
    /// Number of timed look-ups that a sealed memtable answered, by its `place`: memory (of this
    /// process) or node. With memory nodes, the look-ups of one key in 64 are timed, except for
    /// those of several keys at a time.
    AWAY_TIMED: Counter "archipelago_engine_away_timed_lookups" ["place"];
    /// Seconds of these look-ups, by `place`.
    AWAY_TIMED_TIME: Counter "archipelago_engine_away_timed_lookup_seconds" ["place"];
    /// Number of pages of records that iterators fetched from memory nodes.
    AWAY_PAGES: Counter "archipelago_engine_away_pages" [];
    /// Number of reads that ended as busy because a memtable shard could not be read.
    AWAY_READS_BUSY: Counter "archipelago_engine_away_reads_busy" [];
    /// Number of memtable shards by `event`: sent to a memory node, refused (no node had room),
    /// failed (a node did not answer), given_up (a flush waited for them), fetched for a flush,
    /// lost with a node, rebuilt from the log, held (fetched for a reader after their flush), or
    /// kept from the owner before. For shards of the owner before that were not kept, `event` is
    /// the reason: flushed (tables have them), gap (older records are only in the log), beyond_log
    /// (a power failure took the end of the log), unusable, or no_memory (the rest of the log does
    /// not fit).
    AWAY_SHARDS: Counter "archipelago_engine_away_shards" ["event"];
    /// Number of times that memtables which stayed in memory by choice had to leave, because memory
    /// was short.
    AWAY_STAYS_ENDED: Counter "archipelago_engine_away_stays_ended" [];
    /// Number of records of the log that the open did not replay, because memory nodes have them.
    AWAY_SPARED: Counter "archipelago_engine_away_records_spared" [];
    /// Seconds that the open took to keep the memtable shards of the owner before.
    AWAY_TAKEOVER: Counter "archipelago_engine_away_takeover_seconds" [];
    /// Bytes of memory for the filters, tombstones and places that stayed in the process when
    /// shards were sent.
    AWAY_KEPT: Counter "archipelago_engine_away_kept_bytes" [];
    /// Bytes of images of memtable shards by `direction`: sent or fetched.
    AWAY_BYTES: Counter "archipelago_engine_away_moved_bytes" ["direction"];
    /// Seconds that these images took, by `direction`. Several of them may be on their way at the
    /// same time, and images are sent in parallel with writes and flushes.
    AWAY_TIME: Counter "archipelago_engine_away_moved_seconds" ["direction"];
    /// Number of flushes that were put off because a memory node did not give a shard.
    AWAY_FLUSHES_PUT_OFF: Counter "archipelago_engine_away_flushes_put_off" [];
    /// Number of flushes of memtable shards at memory nodes that other databases share, because the
    /// writers paused.
    AWAY_FLUSHES_PAUSE: Counter "archipelago_engine_away_flushes_pause" [];
    /// Number of flushes by `cause` that an executor should have run and that ran in this process:
    /// failed (with the executor) or too_large (planned again in smaller parts).
    AWAY_FLUSHES_HERE: Counter "archipelago_engine_away_flushes_here" ["cause"];
    /// Number of tables that look-ups searched, past their filters.
    TABLES_SEARCHED: Counter "archipelago_engine_tables_searched" [];
    /// Number of tables that a filter spared.
    FILTER_USEFUL: Counter "archipelago_engine_tables_filtered" [];
    /// Number of separated values that look-ups and iterators read, by `source`: cache or file.
    VALUES_READ: Counter "archipelago_engine_values_read" ["source"];
    /// Number of separated values whose place in their file had to be searched for.
    VALUE_HINT_MISSES: Counter "archipelago_engine_value_hint_misses" [];
    /// Number of iterators that were made.
    ITERATORS: Counter "archipelago_engine_iterators" [];
    /// Number of seeks of iterators.
    SEEKS: Counter "archipelago_engine_seeks" [];
    /// Number of look-ups of blocks in the block cache by `kind` of block and `result` (hit or
    /// miss). The kinds are data, index, filter, value and flat.
    CACHE_LOOKUPS: Counter "archipelago_engine_block_cache_lookups" ["kind", "result"];
    /// Number of blocks that were put into the block cache, by `kind` of block.
    CACHE_INSERTS: Counter "archipelago_engine_block_cache_inserts" ["kind"];
    /// Number of blocks that others pushed out of the block cache, by `kind` of block.
    CACHE_EVICTIONS: Counter "archipelago_engine_block_cache_evictions" ["kind"];
    /// Bytes that the block cache may hold. The memory in use is that of the class block_cache.
    CACHE_CAPACITY: Gauge "archipelago_engine_block_cache_capacity_bytes" [];

    /// Number of background jobs that were installed, by `job`: flush, compaction or gc.
    JOBS: Counter "archipelago_engine_jobs" ["job"];
    /// Seconds that flushes took after their files were written, by `step`: log_sync (the wait for
    /// the log) or install (in the manifest). They are not in the times of flush operations.
    FLUSH_ENDS: Counter "archipelago_engine_flush_end_seconds" ["step"];
    /// Number of background jobs that run, by `job`: flush, compaction, map_change, gc, ingestion,
    /// send or rebuild.
    JOBS_RUNNING: Gauge "archipelago_engine_jobs_running" ["job"];
    /// Bytes that background jobs read, by `job`: compaction or gc.
    JOB_READ: Counter "archipelago_engine_job_read_bytes" ["job"];
    /// Bytes that background jobs wrote, by `job`: flush, compaction or gc.
    JOB_WRITTEN: Counter "archipelago_engine_job_written_bytes" ["job"];
    /// Bytes that running compactions and garbage collections may still write.
    IN_FLIGHT: Gauge "archipelago_engine_job_in_flight_bytes" [];
    /// Memory that running compactions may take.
    JOB_MEMORY_MAX: Gauge "archipelago_engine_job_memory_limit_bytes" [];
    /// Number of blocks of compactions in other processes that were read into the block cache.
    BLOCKS_WARMED: Counter "archipelago_engine_warmed_blocks" [];
    /// Bytes of these blocks in their files.
    BYTES_WARMED: Counter "archipelago_engine_warmed_bytes" [];
    /// Number of files that moved down a level without being rewritten.
    TRIVIAL_MOVES: Counter "archipelago_engine_trivial_moves" [];
    /// Number of tables that were removed without being read, because no reader needed them.
    TABLES_DROPPED: Counter "archipelago_engine_tables_dropped" [];
    /// Number of parts of compactions that were cut into several.
    SUBCOMPACTIONS: Counter "archipelago_engine_subcompactions" [];
    /// Number of records that compactions and flushes dropped.
    RECORDS_DROPPED: Counter "archipelago_engine_records_dropped" [];
    /// Number of expired records among those that were dropped.
    RECORDS_EXPIRED: Counter "archipelago_engine_records_expired" [];
    /// Number of value files that garbage collections replaced.
    GC_FILES: Counter "archipelago_engine_gc_files_collected" [];
    /// Number of records that garbage collections looked up (`result` is checked), and of the valid
    /// ones that they copied (copied).
    GC_RECORDS: Counter "archipelago_engine_gc_records" ["result"];
    /// Number of requests of garbage collections by `step`: keys or values.
    GC_REQUESTS: Counter "archipelago_engine_gc_requests" ["step"];
    /// Number of ranges in the requests of garbage collections for values.
    GC_RANGES: Counter "archipelago_engine_gc_value_ranges" [];
    /// Bytes that garbage collections read by `step`: keys or values.
    GC_STEP_BYTES: Counter "archipelago_engine_gc_step_read_bytes" ["step"];
    /// Time of garbage collections by `step`: keys (reading them), lookup (in tables), values
    /// (reading them), write (checking and writing values) or finish (writing keys and syncing).
    GC_STEP_TIME: Counter "archipelago_engine_gc_step_seconds" ["step"];
    /// Bytes of ingested files.
    INGESTED: Counter "archipelago_engine_ingested_bytes" [];
    /// Bytes that the rate limit of background writes granted, by `priority`: flush or compaction.
    LIMITED_BYTES: Counter "archipelago_engine_rate_limited_bytes" ["priority"];
    /// Time that background writes waited for the rate limit, by `priority`: flush or compaction.
    LIMITED_TIME: Counter "archipelago_engine_rate_limit_wait_seconds" ["priority"];
    /// Number of reads and writes of background jobs that let reads of users go first.
    YIELDS: Counter "archipelago_engine_foreground_yields" [];
    /// Time that background jobs waited for reads of users.
    YIELD_TIME: Counter "archipelago_engine_foreground_yield_seconds" [];
    /// Number of background jobs that failed.
    BACKGROUND_ERRORS: Counter "archipelago_engine_background_errors" [];
    /// Number of background jobs that failed because an extension panicked.
    EXTENSION_PANICS: Counter "archipelago_engine_extension_panics" [];
    /// Number of calls of event listeners that panicked.
    LISTENER_PANICS: Counter "archipelago_engine_listener_panics" [];
    /// Number of jobs that failed because their edit did not fit the versions any more.
    EDITS_REFUSED: Counter "archipelago_engine_edits_refused" [];
    /// Number of merges that an operator refused during a job.
    MERGE_ERRORS: Counter "archipelago_engine_merge_errors" [];
    /// Number of files that were removed because no version needed them.
    FILES_REMOVED: Counter "archipelago_engine_files_removed" [];
    /// Number of tables that were removed because the job that wrote them was given up.
    STRAYS_REMOVED: Counter "archipelago_engine_strays_removed" [];

    /// Number of files of a column `family` on a `level`; level 0 is L0.
    LEVEL_FILES: Gauge "archipelago_engine_level_files" ["family", "level"];
    /// Bytes of the files of a column `family` on a `level`.
    LEVEL_BYTES: Gauge "archipelago_engine_level_bytes" ["family", "level"];
    /// Bytes that a `level` of a column `family` should have at most. Absent without a bound.
    LEVEL_TARGET: Gauge "archipelago_engine_level_target_bytes" ["family", "level"];
    /// Urgency of the compaction of a `level` of a column `family`. It is due from 1 on.
    LEVEL_SCORE: Gauge "archipelago_engine_level_score" ["family", "level"];
    /// Number of point records of a column `family` on a `level`, deletes among them.
    LEVEL_RECORDS: Gauge "archipelago_engine_level_records" ["family", "level"];
    /// Number of deletes of a column `family` on a `level`.
    LEVEL_DELETES: Gauge "archipelago_engine_level_deletes" ["family", "level"];
    /// Compaction debt of a column `family`.
    PENDING: Gauge "archipelago_engine_pending_compaction_bytes" ["family"];
    /// Number of immutable memtables of a column `family`.
    IMMUTABLE: Gauge "archipelago_engine_immutable_memtables" ["family"];
    /// Bytes of records in the memtables of a column `family`.
    MEMTABLE_BYTES: Gauge "archipelago_engine_memtable_bytes" ["family"];
    /// Memory that all memtables of a column `family` may take.
    MEMTABLE_MAX: Gauge "archipelago_engine_memtable_limit_bytes" ["family"];
    /// Number of buckets of a column `family`.
    BUCKETS: Gauge "archipelago_engine_buckets" ["family"];
    /// Number of L0 files of the fullest bucket of a column `family`, which determines delays.
    BUCKET_L0_MAX: Gauge "archipelago_engine_fullest_bucket_l0_files" ["family"];
    /// Load of the hottest bucket of a column `family` as a multiple of an even share. Absent until
    /// a memtable was sealed.
    BUCKET_HEAT_MAX: Gauge "archipelago_engine_hottest_bucket_load" ["family"];
    /// Number of changes of bucket maps.
    MAP_CHANGES: Counter "archipelago_engine_bucket_map_changes" [];
    /// Number of buckets by `change`: split in two, or merged with a neighbour.
    BUCKET_CHANGES: Counter "archipelago_engine_bucket_changes" ["change"];
    /// Estimated number of live keys of a column `family`. The estimate is at most a minute old.
    KEYS: Gauge "archipelago_engine_keys" ["family"];
    /// Estimated number of live keys of a column `family` that expire. It is at most a minute old.
    KEYS_EXPIRING: Gauge "archipelago_engine_expiring_keys" ["family"];
    /// Estimated mean time that expiring keys of a column `family` have left; 0 if no key expires.
    KEYS_TTL: Gauge "archipelago_engine_mean_ttl_seconds" ["family"];

    /// Bytes of tables and value files of a column `family` that are no garbage.
    LIVE_BYTES: Gauge "archipelago_engine_live_bytes" ["family"];
    /// Number of value files of a column `family`.
    VALUE_FILES: Gauge "archipelago_engine_value_files" ["family"];
    /// Bytes of the value files of a column `family`.
    VALUE_FILE_BYTES: Gauge "archipelago_engine_value_file_bytes" ["family"];
    /// Bytes of separated values that tables of a column `family` refer to.
    VALUE_VALID_BYTES: Gauge "archipelago_engine_value_valid_bytes" ["family"];
    /// Number of records in tables of a column `family` that refer to value files.
    VALUE_REFERENCES: Gauge "archipelago_engine_value_references" ["family"];
    /// Garbage of a column `family` by `kind`: exposed (no table refers to it) is exact, and hidden
    /// (a compaction will expose it) is an estimate.
    GARBAGE: Gauge "archipelago_engine_garbage_bytes" ["family", "kind"];
    /// Bytes by which a column `family` may exceed its live bytes. Absent without a bound on space.
    SPACE_ALLOWED: Gauge "archipelago_engine_space_allowed_bytes" ["family"];
    /// Bytes that events put over the bound on space of a column `family` and that are not repaid.
    SPACE_DEBT: Gauge "archipelago_engine_space_debt_bytes" ["family"];
    /// Whether the bound on space of a column `family` cannot be kept now: 1 if so.
    SPACE_EXCEEDED: Gauge "archipelago_engine_space_bound_exceeded" ["family"];
    /// Bytes of a column `family` that only snapshots keep, by `place`: tables or memtables.
    SNAPSHOT_BYTES: Gauge "archipelago_engine_snapshot_bytes" ["family", "place"];
    /// Number of open snapshots.
    SNAPSHOTS: Gauge "archipelago_engine_snapshots" [];
    /// Bytes of files that only old versions hold, by `holder`: snapshots or readers.
    PINNED: Gauge "archipelago_engine_pinned_bytes" ["holder"];
    /// Time for which the oldest of these files has been held.
    PINNED_AGE: Gauge "archipelago_engine_oldest_pinned_seconds" [];
    /// Newest sequence number that readers see.
    SEQUENCE: Gauge "archipelago_engine_sequence_number" [];

    /// Health of the database: 1 for its `state`, 0 for the others. The states are healthy, failing
    /// (work is tried again, or the disk lacks room) and read_only.
    HEALTH: Gauge "archipelago_engine_health" ["state"];
    /// Room on the disk: 1 for its `state`, 0 for the others. The states are roomy, tight, low
    /// (only writes that free space are taken) and critical (no writes are taken).
    DISK_STATE: Gauge "archipelago_engine_disk_state" ["state"];
    /// Free bytes of the disk by the last measurement. Absent if the file system does not say.
    DISK_FREE: Gauge "archipelago_engine_disk_free_bytes" [];
    /// Bytes of the reserve for a full disk.
    DISK_RESERVE: Gauge "archipelago_engine_disk_reserve_bytes" [];
    /// Bytes that must become free before a compaction that is due can run; 0 if one can.
    DISK_LACKING: Gauge "archipelago_engine_disk_lacking_bytes" [];
    /// Number of writes that were refused because the disk is full.
    DISK_REFUSALS: Counter "archipelago_engine_disk_full_refusals" [];
    /// Number of times that the reserve of the disk was given up.
    DISK_RESERVE_USES: Counter "archipelago_engine_disk_reserve_uses" [];
    /// Number of memtables that were sealed early because the disk is nearly full.
    DISK_EARLY_FLUSHES: Counter "archipelago_engine_disk_early_flushes" [];
    /// Number of transactions by `outcome`: committed, conflict, deadlock or lock_timeout.
    TRANSACTIONS: Counter "archipelago_engine_transactions" ["outcome"];
}
