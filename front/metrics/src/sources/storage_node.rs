//! A storage node: its devices, chunks and extents, its traffic and its scrub.

use archipelago_env::FileClass;
use archipelago_storage::{StorageFigures, StorageMonitor};
use archipelago_store::nodes::wire::{ScrubStatus, StorageCounters, StorageReport, UnservedBytes};

use super::Source;
use crate::catalogue::storage as metric;
use crate::samples::Samples;

/// The storage node that `monitor` watches. Cost: one question to the file system per device, and
/// one pass over chunks and extents.
#[must_use]
pub fn storage_node(monitor: StorageMonitor) -> Source {
    Box::new(move |samples| {
        let StorageFigures { report, fabric } = monitor.figures();
        stored(samples, &report);
        not_served(samples, report.unserved);
        requests(samples, &report.counters);
        scrub(samples, &report.scrub);
        if let Some(fabric) = &fabric {
            super::fabric(samples, fabric);
        }
    })
}

/// Name of a class of files in labels.
pub(super) fn class_name(class: FileClass) -> &'static str {
    match class {
        FileClass::Wal => "wal",
        FileClass::Sst => "sst",
        FileClass::ValueSst => "value_sst",
        FileClass::Manifest => "manifest",
        FileClass::Other => "other",
    }
}

fn stored(samples: &mut Samples, report: &StorageReport) {
    for device in &report.devices {
        let path = [device.path.as_str()];
        samples.set(&metric::DEVICE_CAPACITY, &path, device.space.capacity_bytes);
        samples.set(&metric::DEVICE_USED, &path, device.space.used_bytes);
        samples.set(&metric::DEVICE_FAILED, &path, device.is_failed);
    }
    samples.set(&metric::CHUNKS, &["sealed"], report.chunks);
    samples.set(&metric::CHUNKS, &["unreadable"], report.chunks_unreadable);
    samples.set(&metric::CHUNKS, &["unsealed"], report.chunks_unsealed);
    let sealed = report.extents.saturating_sub(report.extents_open);
    samples.set(&metric::EXTENTS, &["sealed"], sealed);
    samples.set(&metric::EXTENTS, &["open"], report.extents_open);
    samples.set(&metric::EXTENTS, &["limbo"], report.extents_in_limbo);
    for space in &report.volumes {
        let volume = space.volume.to_string();
        let labels = [volume.as_str(), class_name(space.class)];
        samples.set(&metric::VOLUME_BYTES, &labels, space.bytes);
        samples.set(&metric::VOLUME_LOGICAL, &labels, space.logical_bytes);
    }
}

fn not_served(samples: &mut Samples, bytes: UnservedBytes) {
    samples.set(&metric::UNSERVED, &["unsealed"], bytes.unsealed);
    samples.set(&metric::UNSERVED, &["damaged"], bytes.damaged);
    samples.set(&metric::UNSERVED, &["removed"], bytes.removed);
}

fn requests(samples: &mut Samples, counters: &StorageCounters) {
    samples.set(&metric::REQUESTS, &[], counters.requests);
    let named = counters.refused_fenced + counters.refused_busy + counters.refused_full;
    samples.set(&metric::REFUSED, &["fenced"], counters.refused_fenced);
    samples.set(&metric::REFUSED, &["busy"], counters.refused_busy);
    samples.set(&metric::REFUSED, &["full"], counters.refused_full);
    samples.set(&metric::REFUSED, &["other"], counters.refused.saturating_sub(named));
    for traffic in &counters.traffic {
        let class = class_name(traffic.class);
        samples.set(&metric::OPERATIONS, &[class, "read"], traffic.reads);
        samples.set(&metric::OPERATIONS, &[class, "write"], traffic.writes);
        samples.set(&metric::TRAFFIC, &[class, "read"], traffic.read_bytes);
        samples.set(&metric::TRAFFIC, &[class, "write"], traffic.written_bytes);
    }
    samples.set(&metric::SYNCS, &[], counters.syncs);
    samples.set(&metric::DAMAGED, &[], counters.damaged);
}

fn scrub(samples: &mut Samples, status: &ScrubStatus) {
    samples.set(&metric::SCRUB_ROUNDS, &[], status.rounds);
    let progress = status.read_bytes as f64 / status.total_bytes.max(1) as f64;
    samples.set(&metric::SCRUB_PROGRESS, &[], progress.min(1.0));
    samples.set(&metric::SCRUB_DAMAGED, &[], status.damaged_chunks);
    samples.set(&metric::SCRUB_UNREAD, &[], status.unread);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_served_are_told_apart() {
        let mut samples = Samples::default();
        not_served(&mut samples, UnservedBytes { unsealed: 1, damaged: 2, removed: 3 });
        let text = samples.into_text().unwrap();
        for (state, bytes) in [("unsealed", 1), ("damaged", 2), ("removed", 3)] {
            let line =
                format!("archipelago_storage_node_unserved_bytes{{state=\"{state}\"}} {bytes}");
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
