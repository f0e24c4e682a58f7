//! A process that runs jobs of databases.

use archipelago_offload::net::ExecutorFigures;

use super::Source;
use crate::catalogue::executors as metric;

/// The executor whose figures `read` gives; `None` while it does not run. Cost: a short lock.
#[must_use]
pub fn executor(read: impl Fn() -> Option<ExecutorFigures> + Send + Sync + 'static) -> Source {
    Box::new(move |samples| {
        let Some(figures) = read() else { return };
        samples.set(&metric::SLOTS, &[], figures.slots);
        samples.set(&metric::RUNNING, &[], figures.running);
        samples.set(&metric::DONE, &[], figures.succeeded);
        for (cause, count) in figures.failed_by {
            samples.set(&metric::FAILED, &[&cause.replace(['/', ' '], "_")], count);
        }
        samples.set(&metric::READ_BYTES, &[], figures.bytes_read);
        samples.set(&metric::WRITTEN_BYTES, &[], figures.bytes_written);
        samples.set(&metric::LIMITED_BYTES, &[], figures.limited_bytes);
        samples.set(&metric::FLUSHES, &[], figures.flushes);
        samples.set(&metric::IMAGES, &["in_place"], figures.images_in_place);
        samples.set(&metric::IMAGES, &["fetched"], figures.images_fetched);
        samples.set(&metric::IMAGE_BYTES, &[], figures.image_bytes_fetched);
    })
}
