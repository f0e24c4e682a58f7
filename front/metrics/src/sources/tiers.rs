//! Tiers, by device.

use std::sync::Arc;

use archipelago_tier::TieredFs;
use archipelago_tier::stats::DeviceReport;

use super::Source;
use crate::catalogue::tiers as metric;
use crate::samples::{Samples, seconds};

/// The tiers of a database. Cost: a pass over all files.
#[must_use]
pub fn tiers(tiers: Arc<TieredFs>) -> Source {
    Box::new(move |samples| {
        let stats = tiers.stats();
        samples.set(&metric::FAST_LEVELS, &[], u64::from(stats.fast_levels));
        samples.set(&metric::FAILED_JOBS, &[], stats.failed_jobs);
        for report in &stats.devices {
            space(samples, report);
            traffic(samples, report);
            jobs(samples, report);
        }
    })
}

fn space(samples: &mut Samples, report: &DeviceReport) {
    let device = report.name.as_str();
    samples.set(&metric::CAPACITY, &[device], report.capacity);
    samples.set(&metric::FREE, &[device], report.free);
    for (content, count) in &report.files {
        samples.set(&metric::FILES, &[device, content], count.files);
        samples.set(&metric::FILE_BYTES, &[device, content], count.bytes);
    }
    samples.set(&metric::COPIES, &[device], report.copies.files);
    samples.set(&metric::COPY_BYTES, &[device], report.copies.bytes);
    samples.set(&metric::LEAVING, &[device], report.leaving.bytes);
    samples.set(&metric::ERRORS, &[device], report.errors);
    samples.set(&metric::FAILING, &[device], report.failing);
}

fn traffic(samples: &mut Samples, report: &DeviceReport) {
    let device = report.name.as_str();
    samples.set(&metric::READERS, &[device], report.readers);
    for (writer, count) in ["caller", "copy", "move"].into_iter().zip(report.writers) {
        samples.set(&metric::WRITERS, &[device, writer], count);
    }
    samples.set(&metric::WRITERS_MAX, &[device], report.limit);
    samples.set(&metric::SLOTS_WAITING, &[device], report.turns_waiting);
    let (waits, waited_ms) = report.turns_waited;
    samples.set(&metric::SLOT_WAITS, &[device], waits);
    samples.set(&metric::SLOT_WAIT_TIME, &[device], seconds(waited_ms * 1_000_000));
    samples.set(&metric::PACE, &[device], f64::from(report.pace_percent) / 100.0);
    samples.set(&metric::READS, &[device], report.reads);
    samples.set(&metric::FOREGROUND_READS, &[device], report.foreground_reads);
    samples.set(&metric::READ_BYTES, &[device], report.read_bytes);
    samples.set(&metric::WRITTEN_BYTES, &[device], report.written_bytes);
    samples.set_known(&metric::HIT_RATIO, &[device], report.hit_ratio());
    samples.set(&metric::COPY_READS, &[device], report.copy_reads);
}

fn jobs(samples: &mut Samples, report: &DeviceReport) {
    let device = report.name.as_str();
    let (moves, copies) = report.waiting;
    samples.set(&metric::QUEUED, &[device, "move"], moves);
    samples.set(&metric::QUEUED, &[device, "copy"], copies);
    samples.set(&metric::RUNNING, &[device], report.running);
    let (moved_in, moved_out) = report.moved;
    samples.set(&metric::MOVED, &[device, "in"], moved_in);
    samples.set(&metric::MOVED, &[device, "out"], moved_out);
    samples.set(&metric::MOVED_BYTES, &[device], report.moved_bytes);
    let (made, dropped, damaged) = report.copies_made;
    for (event, count) in [("made", made), ("dropped", dropped), ("damaged", damaged)] {
        samples.set(&metric::COPY_EVENTS, &[device, event], count);
    }
    samples.set(&metric::COPIED_BYTES, &[device], report.copied_bytes);
}
