//! Jobs of a database that executors run.

use std::sync::Arc;

use archipelago_offload::net::OffloadExecutor;

use super::Source;
use crate::catalogue::offload_jobs as metric;

/// The jobs of a database that leave its process. Cost: a few relaxed loads.
#[must_use]
pub fn offload_jobs(jobs: Arc<OffloadExecutor>) -> Source {
    Box::new(move |samples| {
        let counters = jobs.counters();
        samples.set(&metric::AWAY, &[], counters.ran_away);
        samples.set(&metric::BYTES, &[], counters.bytes_away);
        samples.set(&metric::LIMITED_BYTES, &[], counters.limited_bytes_away);
        samples.set(&metric::PLANNED_AGAIN, &[], counters.planned_again);
        samples.set(&metric::MOVED, &[], counters.moved);
        samples.set(&metric::MOVED_DONE, &[], counters.moved_done);
        samples.set(&metric::FAILED_AWAY, &[], counters.failed_away);
        for (why, count) in counters.ran_here {
            samples.set(&metric::HERE, &[why], count);
        }
        let flushes = counters.flushes;
        samples.set(&metric::FLUSHES, &["in_place"], flushes.in_place);
        samples.set(&metric::FLUSHES, &["remote"], flushes.remote);
        for (why, count) in flushes.here {
            samples.set(&metric::FLUSHES_HERE, &[why], count);
        }
        samples.set(&metric::SECOND_ATTEMPTS, &[], flushes.second_attempts);
        samples.set(&metric::SECOND_DONE, &[], flushes.second_attempts_done);
        samples.set(&metric::PACKAGES, &[], flushes.packages);
        samples.set(&metric::PACKAGE_BYTES, &[], flushes.package_bytes);
        samples.set(&metric::IMAGES, &["in_place"], flushes.images_in_place);
        samples.set(&metric::IMAGES, &["fetched"], flushes.images_fetched);
        samples.set(&metric::IMAGE_BYTES, &[], flushes.image_bytes_fetched);
        let seconds = |ns: u64| ns as f64 / 1e9;
        samples.set(&metric::PHASES, &["package"], seconds(flushes.package_ns));
        samples.set(&metric::PHASES, &["wait"], seconds(flushes.wait_ns));
        samples.set(&metric::PHASES, &["fetch"], seconds(flushes.open_ns));
        samples.set(&metric::PHASES, &["run"], seconds(flushes.run_ns));
    })
}
