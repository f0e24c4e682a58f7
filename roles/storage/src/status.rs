//! The report of a node: its objects, its fullness, and its counters since it opened.
//!
//! Beats carry the report to the managers, and operators ask for it. Failure: a device whose file
//! system does not say how full it is counts as failed.
//! Cost: one question to the file system per device, and one pass over chunks and extents.

use archipelago_store::nodes::wire::{DeviceStatus, NodeSpace, StorageReport};

use crate::chunks::Chunks;
use crate::devices::Device;
use crate::devices::fullness::Fullness;
use crate::logs::Logs;
use crate::parts::NodeParts;
use crate::scrub::Scrub;

/// State and counters of the node. A device that is missing is listed by its identity.
pub(crate) fn report(
    parts: &NodeParts,
    chunks: &Chunks,
    logs: &Logs,
    scrub: &Scrub,
) -> StorageReport {
    let counters = parts.counters.report();
    let scrub = scrub.status();
    let volume_bytes_max = parts.options.volume_bytes_max;
    let mut report = StorageReport {
        counters,
        scrub,
        volume_bytes_max,
        metadata_bytes: parts.meta.file_bytes(),
        ..StorageReport::default()
    };
    let mut whole = Fullness::default();
    for device in parts.devices.present() {
        let (fullness, is_failed) = match parts.devices.fullness(device) {
            Ok(fullness) => (fullness, device.has_failed()),
            Err(_) => (Fullness::default(), true),
        };
        // A failed device takes no chunks, so its room does not count as room of the node.
        whole = if is_failed { whole } else { whole.and(fullness) };
        report.devices.push(status_of(device, fullness, is_failed));
    }
    for device in parts.devices.lost() {
        let (path, space) = (format!("missing device {device}"), NodeSpace::default());
        report.devices.push(DeviceStatus { path, space, is_failed: true });
    }
    report.space = space_of(whole);
    chunks.report(&mut report);
    logs.report(&mut report);
    report
}

fn status_of(device: &Device, fullness: Fullness, is_failed: bool) -> DeviceStatus {
    let path = device.dir.display().to_string();
    DeviceStatus { path, space: space_of(fullness), is_failed }
}

fn space_of(fullness: Fullness) -> NodeSpace {
    NodeSpace { capacity_bytes: fullness.capacity_bytes, used_bytes: fullness.used_bytes }
}
