//! Metrics of a database's jobs that executors run. Static data.

use super::metrics;

metrics! {
    /// Number of jobs whose outputs came from executors.
    AWAY: Counter "archipelago_offload_jobs_away" [];
    /// Bytes that executors read and wrote for these jobs.
    BYTES: Counter "archipelago_offload_bytes_away" [];
    /// Bytes that executors wrote within the database's rate limit.
    LIMITED_BYTES: Counter "archipelago_offload_limited_bytes" [];
    /// Number of jobs that an executor may have begun and that ended without outputs. The database
    /// planned them again.
    PLANNED_AGAIN: Counter "archipelago_offload_jobs_planned_again" [];
    /// Number of jobs that left again after their scheduler had ended while another one lived.
    MOVED: Counter "archipelago_offload_jobs_moved" [];
    /// Number of jobs that executors ended after their scheduler had ended.
    MOVED_DONE: Counter "archipelago_offload_jobs_moved_done" [];
    /// Attempts that executors got and that gave no outputs, as far as the scheduler has told.
    /// `INFO` has the latest reason.
    FAILED_AWAY: Counter "archipelago_offload_attempts_failed" [];
    /// Number of jobs that ran in the process although its mode sends them away, by `reason`.
    HERE: Counter "archipelago_offload_jobs_here" ["reason"];
    /// Number of flushes that executors ran, by `place`: in the process of the memory node that
    /// held all shards, or in another one, which fetched shards.
    FLUSHES: Counter "archipelago_offload_flushes" ["place"];
    /// Number of flushes that ran in the process although its mode sends them away, by `reason`.
    FLUSHES_HERE: Counter "archipelago_offload_flushes_here" ["reason"];
    /// Number of second attempts of flushes that left the process, because the first one had failed
    /// in another executor.
    SECOND_ATTEMPTS: Counter "archipelago_offload_flush_second_attempts" [];
    /// Number of flushes that a second attempt has ended.
    SECOND_DONE: Counter "archipelago_offload_flush_second_attempts_done" [];
    /// Number of packages of flushes that left the process.
    PACKAGES: Counter "archipelago_offload_flush_packages" [];
    /// Bytes of these packages.
    PACKAGE_BYTES: Counter "archipelago_offload_flush_package_bytes" [];
    /// Number of memtable shards that executors opened for flushes, by `place`: in place, or
    /// fetched.
    IMAGES: Counter "archipelago_offload_flush_shards" ["place"];
    /// Bytes of the shards that executors fetched for flushes.
    IMAGE_BYTES: Counter "archipelago_offload_flush_fetched_bytes" [];
    /// Seconds of flushes in executors, by `phase`: package (made by the process), wait (for an
    /// executor, for room and for messages), fetch (or opening of shards) and run (writing of
    /// tables).
    PHASES: Counter "archipelago_offload_flush_seconds" ["phase"];
}
