//! Space by volume and class, and the quota of each volume.
//!
//! The node owns one [`SpaceByVolume`]. Bytes belong to the volume under which they were written,
//! also while another volume retains them, so that the sums over volumes are the sums of files.
//!
//! Invariants:
//! 1. A change is counted once when its file grows, and once when its file is gone.
//!
//! Thread-safety: one lock, which is held for look-ups and additions only.
//! Failure: none. Cost: O(log volumes) per change.

use std::collections::BTreeMap;

use archipelago_env::FileClass;
use archipelago_store::VolumeId;
use archipelago_store::nodes::placement::WritePurpose;
use archipelago_store::nodes::wire::VolumeSpace;
use parking_lot::Mutex;

use crate::devices::fullness::Fullness;

/// Largest number of pairs of volume and class in a report.
const REPORTED_MAX: usize = 1024;

/// Bytes and objects of a class of a volume's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceUse {
    /// Number of chunks and extents.
    pub(crate) objects: u64,
    /// Length of the files in bytes.
    pub(crate) physical_bytes: u64,
    /// Share of the lengths of blobs, without copies and parity.
    pub(crate) logical_bytes: u64,
}

/// The space of all volumes.
#[derive(Debug, Default)]
pub(crate) struct SpaceByVolume {
    used: Mutex<BTreeMap<(VolumeId, u8), SpaceUse>>,
    /// Bytes that each volume may occupy; `None` for no limit.
    volume_bytes_max: Option<u64>,
}

impl SpaceByVolume {
    /// No bytes, and a quota that holds for every volume.
    pub(crate) fn new(volume_bytes_max: Option<u64>) -> Self {
        Self { used: Mutex::default(), volume_bytes_max }
    }

    /// Counts bytes that were written.
    pub(crate) fn add(&self, volume: VolumeId, class: FileClass, more: SpaceUse) {
        let mut used = self.used.lock();
        let sum = used.entry((volume, class.code())).or_default();
        sum.objects += more.objects;
        sum.physical_bytes += more.physical_bytes;
        sum.logical_bytes += more.logical_bytes;
    }

    /// Counts bytes that were freed.
    pub(crate) fn sub(&self, volume: VolumeId, class: FileClass, less: SpaceUse) {
        let mut used = self.used.lock();
        let key = (volume, class.code());
        let Some(sum) = used.get_mut(&key) else { return };
        sum.objects = sum.objects.saturating_sub(less.objects);
        sum.physical_bytes = sum.physical_bytes.saturating_sub(less.physical_bytes);
        sum.logical_bytes = sum.logical_bytes.saturating_sub(less.logical_bytes);
        if *sum == SpaceUse::default() {
            used.remove(&key);
        }
    }

    /// Whether the quota of a volume permits a write. Like a device, a quota stops writes by their
    /// purpose, so that flushes and removals can still free space.
    pub(crate) fn permits(&self, volume: VolumeId, purpose: WritePurpose, bytes: u64) -> bool {
        let Some(capacity_bytes) = self.volume_bytes_max else { return true };
        let used = self.used.lock();
        let of_volume = used.range((volume, 0)..=(volume, u8::MAX));
        let used_bytes = of_volume.map(|(_, sum)| sum.physical_bytes).sum();
        Fullness { used_bytes, capacity_bytes }.takes(purpose, bytes)
    }

    /// The space of each volume and class, for at most [`REPORTED_MAX`] pairs.
    pub(crate) fn report(&self) -> Vec<VolumeSpace> {
        let used = self.used.lock();
        let spaces = used.iter().filter_map(|((volume, class), sum)| {
            let class = FileClass::from_code(*class)?;
            let (objects, bytes) = (sum.objects, sum.physical_bytes);
            let logical_bytes = sum.logical_bytes;
            Some(VolumeSpace { volume: *volume, class, objects, bytes, logical_bytes })
        });
        spaces.take(REPORTED_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId([1; 16]);
    const OTHER: VolumeId = VolumeId([2; 16]);

    fn bytes(physical_bytes: u64) -> SpaceUse {
        SpaceUse { objects: 1, physical_bytes, logical_bytes: physical_bytes / 3 }
    }

    #[test]
    fn space_adds_up_by_volume_and_class() {
        let space = SpaceByVolume::new(None);
        space.add(VOLUME, FileClass::Sst, bytes(300));
        space.add(VOLUME, FileClass::Sst, bytes(30));
        space.add(OTHER, FileClass::ValueSst, bytes(9));
        let report = space.report();
        assert_eq!(report.len(), 2);
        assert_eq!((report[0].objects, report[0].bytes, report[0].logical_bytes), (2, 330, 110));
        assert_eq!((report[1].volume, report[1].class), (OTHER, FileClass::ValueSst));
        space.sub(VOLUME, FileClass::Sst, bytes(30));
        space.sub(VOLUME, FileClass::Sst, bytes(300));
        assert_eq!(space.report().len(), 1);
    }

    #[test]
    fn quota_stops_each_purpose_at_its_limit() {
        let space = SpaceByVolume::new(Some(1000));
        space.add(VOLUME, FileClass::Sst, bytes(900));
        space.add(VOLUME, FileClass::ValueSst, bytes(60));
        assert!(!space.permits(VOLUME, WritePurpose::Ingestion, 1));
        assert!(space.permits(VOLUME, WritePurpose::Job, 20));
        assert!(!space.permits(VOLUME, WritePurpose::Job, 21));
        assert!(space.permits(OTHER, WritePurpose::Ingestion, 950));
    }
}
