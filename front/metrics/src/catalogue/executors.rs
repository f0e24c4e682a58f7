//! Metrics of a process that runs jobs of databases. Static data.

use super::metrics;

metrics! {
    /// Number of jobs that the executor runs at the same time at most.
    SLOTS: Gauge "archipelago_executor_slots" [];
    /// Number of jobs that run now.
    RUNNING: Gauge "archipelago_executor_jobs_running" [];
    /// Number of jobs that have ended with outputs.
    DONE: Counter "archipelago_executor_jobs_done" [];
    /// Number of jobs that have failed, by `cause`: the kind of their error. The log has each
    /// error.
    FAILED: Counter "archipelago_executor_jobs_failed" ["cause"];
    /// File bytes that jobs which ended with outputs have read.
    READ_BYTES: Counter "archipelago_executor_read_bytes" [];
    /// File bytes that jobs which ended with outputs have written.
    WRITTEN_BYTES: Counter "archipelago_executor_written_bytes" [];
    /// Bytes of these that were charged to rate limits of databases.
    LIMITED_BYTES: Counter "archipelago_executor_limited_bytes" [];
    /// Number of flushes that have ended with outputs.
    FLUSHES: Counter "archipelago_executor_flushes" [];
    /// Number of memtable shards that these opened, by `place`: in place, or fetched.
    IMAGES: Counter "archipelago_executor_flush_shards" ["place"];
    /// Bytes of the shards that flushes fetched.
    IMAGE_BYTES: Counter "archipelago_executor_flush_fetched_bytes" [];
}
