//! The fullness of a device, and the writes that it still takes.
//!
//! A node stops writes by their purpose: ingestion at 95 per cent, and repairs at 97. Flushes,
//! compactions and garbage collections stop only at 98, because they move acknowledged writes from
//! memory to tables and free space. Logs and removals always go on. Clients see the fullness in
//! reports, and delay their writers before the node stops them.
//!
//! All functions are pure.

use archipelago_store::nodes::placement::WritePurpose;

/// The used and the usable bytes of a device or of a whole node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fullness {
    /// Bytes that the node's files occupy.
    pub(crate) used_bytes: u64,
    /// Bytes that the node may use, those that it uses included.
    pub(crate) capacity_bytes: u64,
}

impl Fullness {
    /// The fullness of a device of which the node uses `used_bytes`. `free_bytes` are the free
    /// bytes of the file system (`None` if unknown), and `bytes_max` is the node's own limit.
    pub(crate) fn new(used_bytes: u64, free_bytes: Option<u64>, bytes_max: Option<u64>) -> Self {
        let on_device = free_bytes.map_or(u64::MAX, |free| used_bytes.saturating_add(free));
        Self { used_bytes, capacity_bytes: on_device.min(bytes_max.unwrap_or(u64::MAX)) }
    }

    /// The fullness of two devices together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            used_bytes: self.used_bytes.saturating_add(other.used_bytes),
            capacity_bytes: self.capacity_bytes.saturating_add(other.capacity_bytes),
        }
    }

    /// Bytes that are left.
    pub(crate) fn room_bytes(self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes)
    }

    /// Whether the device stays within the limit of `purpose` with `bytes` more.
    pub(crate) fn takes(self, purpose: WritePurpose, bytes: u64) -> bool {
        let percent = purpose.fullness_max_percent().unwrap_or(100);
        let after = u128::from(self.used_bytes) + u128::from(bytes);
        after * 100 <= u128::from(self.capacity_bytes) * u128::from(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_stop_at_their_own_limits() {
        let device = |used_bytes| Fullness { used_bytes, capacity_bytes: 1000 };
        for (purpose, most) in [
            (WritePurpose::Ingestion, 950),
            (WritePurpose::Repair, 970),
            (WritePurpose::Job, 980),
            (WritePurpose::Log, 1000),
        ] {
            assert!(device(most - 1).takes(purpose, 1), "{purpose:?}");
            assert!(!device(most).takes(purpose, 1), "{purpose:?}");
        }
    }

    #[test]
    fn capacity_is_what_others_leave_within_the_limit() {
        assert_eq!(Fullness::new(100, Some(50), None).capacity_bytes, 150);
        assert_eq!(Fullness::new(100, Some(50), Some(120)).capacity_bytes, 120);
        assert_eq!(Fullness::new(100, None, Some(120)).room_bytes(), 20);
        assert_eq!(Fullness::new(100, Some(50), Some(80)).room_bytes(), 0);
        let node = Fullness::new(1, Some(9), None).and(Fullness::new(2, Some(8), None));
        assert_eq!((node.used_bytes, node.capacity_bytes), (3, 20));
    }
}
