//! Metrics of a database on tiers, by device. Static data.

use super::metrics;

metrics! {
    /// Bytes that a `device` may hold.
    CAPACITY: Gauge "archipelago_tier_capacity_bytes" ["device"];
    /// Free bytes of a `device`. Copies count as used.
    FREE: Gauge "archipelago_tier_free_bytes" ["device"];
    /// Number of files of a `device` by their `content`: log, bookkeeping, values, L0, L1 and so
    /// on, and tables for those without a level.
    FILES: Gauge "archipelago_tier_files" ["device", "content"];
    /// Bytes of these files, by `device` and `content`.
    FILE_BYTES: Gauge "archipelago_tier_file_bytes" ["device", "content"];
    /// Number of copies of files of slower devices that a `device` has.
    COPIES: Gauge "archipelago_tier_copies" ["device"];
    /// Bytes of the copies of a `device`.
    COPY_BYTES: Gauge "archipelago_tier_copy_bytes" ["device"];
    /// Bytes of files of a `device` that wait for their removal.
    LEAVING: Gauge "archipelago_tier_leaving_bytes" ["device"];
    /// Number of reads of a `device` in progress.
    READERS: Gauge "archipelago_tier_readers" ["device"];
    /// Number of files that are written to a `device`, by `writer`: caller, copy or move.
    WRITERS: Gauge "archipelago_tier_writers" ["device", "writer"];
    /// Number of writers that a `device` takes at the same time.
    WRITERS_MAX: Gauge "archipelago_tier_writers_limit" ["device"];
    /// Number of tables that wait for a write slot of a `device`.
    SLOTS_WAITING: Gauge "archipelago_tier_write_slots_waiting" ["device"];
    /// Number of tables that had to wait for a write slot of a `device`.
    SLOT_WAITS: Counter "archipelago_tier_write_slot_waits" ["device"];
    /// Sum of these waits, by `device`.
    SLOT_WAIT_TIME: Counter "archipelago_tier_write_slot_wait_seconds" ["device"];
    /// Share of its profile's write throughput that a `device` reaches, from 0 to 1.
    PACE: Gauge "archipelago_tier_pace_ratio" ["device"];
    /// Number of reads of a `device`.
    READS: Counter "archipelago_tier_reads" ["device"];
    /// Number of these reads that a user waited for, by `device`.
    FOREGROUND_READS: Counter "archipelago_tier_foreground_reads" ["device"];
    /// Bytes read from a `device`.
    READ_BYTES: Counter "archipelago_tier_read_bytes" ["device"];
    /// Bytes that the database wrote to a `device`, without moves and copies.
    WRITTEN_BYTES: Counter "archipelago_tier_written_bytes" ["device"];
    /// Share of the foreground reads of the last interval that a `device` served, among those that
    /// it could have served. Absent if there were none.
    HIT_RATIO: Gauge "archipelago_tier_hit_ratio" ["device"];
    /// Number of reads that copies on a `device` served.
    COPY_READS: Counter "archipelago_tier_copy_reads" ["device"];
    /// Number of queued jobs to a `device` by `job`: move or copy.
    QUEUED: Gauge "archipelago_tier_jobs_queued" ["device", "job"];
    /// Number of running moves and copies to a `device`.
    RUNNING: Gauge "archipelago_tier_jobs_running" ["device"];
    /// Number of files that were moved to (`direction` is in) or away from (out) a `device`.
    MOVED: Counter "archipelago_tier_files_moved" ["device", "direction"];
    /// Bytes that were moved to a `device`.
    MOVED_BYTES: Counter "archipelago_tier_moved_bytes" ["device"];
    /// Number of copies on a `device` by `event`: made, dropped or damaged.
    COPY_EVENTS: Counter "archipelago_tier_copy_events" ["device", "event"];
    /// Bytes that were copied to a `device`.
    COPIED_BYTES: Counter "archipelago_tier_copied_bytes" ["device"];
    /// Number of errors of a `device`.
    ERRORS: Counter "archipelago_tier_errors" ["device"];
    /// Whether the tiers avoid a `device` after several errors: 1 if they do.
    FAILING: Gauge "archipelago_tier_failing" ["device"];
    /// Number of levels, from L0 on, that belong to the fastest device. The log always belongs to
    /// it.
    FAST_LEVELS: Gauge "archipelago_tier_fast_levels" [];
    /// Number of moves and copies that failed.
    FAILED_JOBS: Counter "archipelago_tier_failed_jobs" [];
}
