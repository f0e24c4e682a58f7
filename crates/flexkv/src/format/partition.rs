//! The directory's entry of a partition: its owner, and the address and size of its subtable.
//!
//! Entries lie one after another in the pool, entry `p` at byte `32·p`. Clients read them
//! one-sided.
//!
//! | offset | content |
//! | --- | --- |
//! | 0 | owner word: epoch (bits 63–32), owner (31–8; 0: none), access (7–0) |
//! | 8 | location word: packed address of the subtable (46 bits) |
//! | 16 | shape word: slot generation (63–32), zeros, base-2 logarithm of the number of buckets
//! (7–0) |
//! | 24 | check word: `FLXD` (bytes 24–27), CRC-32C (28–31) of version, x, number of the partition,
//! location and shape |
//!
//! Invariants:
//! 1. The owner word changes by compare-and-swap only, and its epoch grows with every change. So
//!    the check does not cover it.
//! 2. Location, shape and check change together, while access is [`Access::Paused`]. A client that
//!    reads them torn sees a wrong check and reads again. It acts only if the owner word did not
//!    change meanwhile.
//! 3. The slot generation grows with every location or shape, so that an old slot index is noticed.
//! 4. The check binds an entry to its position and to x. A client that divides hashes in another
//!    way is refused at its first read.
//!
//! Thread-safety: values.
//! Failure: [`EntryRefused`].
//! Cost: a read of 32 bytes. Paper: §4.2 has maps at the nodes only. The owner word in the pool is
//! an addition, by which clients notice a deposed owner.

use archipelago_base::checksum;

use super::slot::TIME_MASK;
use super::table::{BUCKET_BITS, Geometry};
use crate::ids::{ComputeId, PartitionId};

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 32;
/// Largest base-2 logarithm of the number of buckets. The hash has no more bits for it.
pub const LOG2_BUCKETS_MAX: u32 = BUCKET_BITS;

const MAGIC: [u8; 4] = *b"FLXD";
const VERSION: u8 = 1;

/// Way by which clients reach the index of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Clients read and swap the slots in the pool.
    OneSided,
    /// The owner is the proxy and alone writes the slots.
    Proxied,
    /// No node may change slots, because the partition is being moved or grown.
    Paused,
}

/// The owner word of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Epoch, which grows with every change.
    pub epoch: u32,
    /// The proxy. For a paused partition the node that moves it, if there is one.
    pub node: Option<ComputeId>,
    /// Way by which clients reach the index.
    pub access: Access,
}

impl Owner {
    /// The word as bits. `None` if the node is 0 or above [`ComputeId::MAX`], or if an offloaded
    /// partition has no node.
    #[must_use]
    pub fn encode(self) -> Option<u64> {
        let node = match self.node {
            None if self.access == Access::Proxied => return None,
            None => 0,
            Some(ComputeId(0)) => return None,
            Some(node) if node > ComputeId::MAX => return None,
            Some(node) => u64::from(node.0),
        };
        let access = match self.access {
            Access::OneSided => 0,
            Access::Proxied => 1,
            Access::Paused => 2,
        };
        Some(u64::from(self.epoch) << 32 | node << 8 | access)
    }

    /// Decodes a word.
    pub fn decode(word: u64) -> Result<Self, EntryRefused> {
        let access = match word as u8 {
            0 => Access::OneSided,
            1 => Access::Proxied,
            2 => Access::Paused,
            _ => return Err(EntryRefused::Owner(word)),
        };
        let node = Some(ComputeId((word >> 8) as u32 & ComputeId::MAX.0)).filter(|node| node.0 > 0);
        if node.is_none() && access == Access::Proxied {
            return Err(EntryRefused::Owner(word));
        }
        Ok(Self { epoch: (word >> 32) as u32, node, access })
    }
}

/// Address and size of a subtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Packed address ([`packing`](super::packing)).
    pub packed: u64,
    /// Generation, which grows with every new location or size.
    pub generation: u32,
    /// Base-2 logarithm of the number of buckets, at most [`LOG2_BUCKETS_MAX`].
    pub log2_buckets: u32,
}

impl Shape {
    /// Bytes of the subtable.
    #[must_use]
    pub fn bytes(self) -> u64 {
        64 << self.log2_buckets
    }
}

/// An entry of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionEntry {
    /// The owner of the partition.
    pub owner: Owner,
    /// Address and size of the subtable.
    pub shape: Shape,
}

/// Why bytes are no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryRefused {
    /// All bytes are zero, because no node has made the directory yet.
    #[error("the directory has no entry here yet")]
    Absent,
    /// The magic is missing.
    #[error("no entry of a directory lies here")]
    NotAnEntry,
    /// The entry is torn, or belongs to another partition, number of partitions or version.
    #[error(
        "the entry's check is {found:#010x}, not {computed:#010x}: torn, or of another geometry or version"
    )]
    Check {
        /// The check in the entry.
        found: u32,
        /// The check of the entry's bytes.
        computed: u32,
    },
    /// The owner word is invalid.
    #[error("{0:#018x} is no owner word")]
    Owner(u64),
    /// The location or the shape is out of range.
    #[error("the subtable's location {location:#x} or shape {shape:#x} is out of range")]
    Shape {
        /// The location word.
        location: u64,
        /// The shape word.
        shape: u64,
    },
}

/// Bytes from the directory's beginning to the entry of a partition.
#[must_use]
pub fn entry_offset(partition: PartitionId) -> u64 {
    u64::from(partition.0) * ENTRY_BYTES as u64
}

fn check(geometry: Geometry, partition: PartitionId, location: u64, shape: u64) -> u32 {
    let mut bytes = [0; 22];
    bytes[0] = VERSION;
    bytes[1] = geometry.partition_bits() as u8;
    bytes[2..6].copy_from_slice(&partition.0.to_le_bytes());
    bytes[6..14].copy_from_slice(&location.to_le_bytes());
    bytes[14..22].copy_from_slice(&shape.to_le_bytes());
    checksum::crc(&bytes)
}

impl PartitionEntry {
    /// The bytes of the entry. To change its location and shape, write from byte 8 on. `None` if a
    /// field is out of range.
    #[must_use]
    pub fn encode(&self, geometry: Geometry, partition: PartitionId) -> Option<[u8; ENTRY_BYTES]> {
        let Shape { packed, generation, log2_buckets } = self.shape;
        if packed > TIME_MASK || log2_buckets > LOG2_BUCKETS_MAX {
            return None;
        }
        let shape = u64::from(generation) << 32 | u64::from(log2_buckets);
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.owner.encode()?.to_le_bytes());
        bytes[8..16].copy_from_slice(&packed.to_le_bytes());
        bytes[16..24].copy_from_slice(&shape.to_le_bytes());
        bytes[24..28].copy_from_slice(&MAGIC);
        bytes[28..].copy_from_slice(&check(geometry, partition, packed, shape).to_le_bytes());
        Some(bytes)
    }

    /// Decodes the entry of `partition`.
    pub fn decode(
        bytes: &[u8; ENTRY_BYTES],
        geometry: Geometry,
        partition: PartitionId,
    ) -> Result<Self, EntryRefused> {
        if *bytes == [0; ENTRY_BYTES] {
            return Err(EntryRefused::Absent);
        }
        let [owner, location, shape, last] = {
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            words
        };
        if last as u32 != u32::from_le_bytes(MAGIC) {
            return Err(EntryRefused::NotAnEntry);
        }
        let found = (last >> 32) as u32;
        let computed = check(geometry, partition, location, shape);
        if found != computed {
            return Err(EntryRefused::Check { found, computed });
        }
        let log2_buckets = shape as u32;
        if location > TIME_MASK || log2_buckets > LOG2_BUCKETS_MAX {
            return Err(EntryRefused::Shape { location, shape });
        }
        let generation = (shape >> 32) as u32;
        let shape = Shape { packed: location, generation, log2_buckets };
        Ok(Self { owner: Owner::decode(owner)?, shape })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARTITION: PartitionId = PartitionId(77);

    fn entry() -> PartitionEntry {
        let owner = Owner { epoch: 0x0102, node: Some(ComputeId(0x0304)), access: Access::Proxied };
        PartitionEntry { owner, shape: Shape { packed: 0x0506, generation: 7, log2_buckets: 8 } }
    }

    #[test]
    fn golden_bytes() {
        let bytes = entry().encode(Geometry::default(), PARTITION).expect("in range");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected =
            ["0104030002010000", "0605000000000000", "0800000007000000", "464c5844", "0fe8fb07"];
        assert_eq!(hex, expected.concat());
        assert_eq!(entry_offset(PARTITION), 77 * 32);
    }

    #[test]
    fn an_entry_is_bound_to_its_place_its_geometry_and_its_words() {
        let here = Geometry::default();
        let bytes = entry().encode(here, PARTITION).expect("in range");
        assert_eq!(PartitionEntry::decode(&bytes, here, PARTITION), Ok(entry()));
        let elsewhere = PartitionEntry::decode(&bytes, here, PartitionId(78));
        assert!(matches!(elsewhere, Err(EntryRefused::Check { .. })));
        let other = Geometry::new(12).expect("12");
        let refused = PartitionEntry::decode(&bytes, other, PARTITION).expect_err("another x");
        assert!(refused.to_string().contains("geometry"));
        for at in 8..ENTRY_BYTES {
            let mut torn = bytes;
            torn[at] ^= 1;
            assert!(PartitionEntry::decode(&torn, here, PARTITION).is_err(), "byte {at}");
        }
        let absent = PartitionEntry::decode(&[0; ENTRY_BYTES], here, PARTITION);
        assert_eq!(absent, Err(EntryRefused::Absent));
    }

    #[test]
    fn the_owner_word_changes_alone() {
        let here = Geometry::default();
        let mut bytes = entry().encode(here, PARTITION).expect("in range");
        let next = Owner { epoch: 0x0103, node: None, access: Access::Paused };
        bytes[..8].copy_from_slice(&next.encode().expect("in range").to_le_bytes());
        let read = PartitionEntry::decode(&bytes, here, PARTITION).expect("an entry");
        assert_eq!(read, PartitionEntry { owner: next, ..entry() });
        bytes[0] = 3;
        let refused = PartitionEntry::decode(&bytes, here, PARTITION);
        assert!(matches!(refused, Err(EntryRefused::Owner(_))));
        let nobody = Owner { epoch: 1, node: None, access: Access::Proxied };
        assert_eq!(nobody.encode(), None, "a proxy has a name");
        assert!(Owner::decode(1).is_err());
        let far = Owner { epoch: 1, node: Some(ComputeId(1 << 24)), access: Access::Proxied };
        assert_eq!(far.encode(), None);
    }

    #[test]
    fn a_shape_out_of_range_is_refused_even_with_a_right_check() {
        let here = Geometry::default();
        let large = Shape { log2_buckets: LOG2_BUCKETS_MAX + 1, ..entry().shape };
        assert_eq!(PartitionEntry { shape: large, ..entry() }.encode(here, PARTITION), None);
        let mut bytes = entry().encode(here, PARTITION).expect("in range");
        bytes[20] = 0;
        bytes[16] = 21;
        let crc = check(here, PARTITION, 0x0506, 21);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        let refused = PartitionEntry::decode(&bytes, here, PARTITION);
        assert_eq!(refused, Err(EntryRefused::Shape { location: 0x0506, shape: 21 }));
    }

    proptest! {
        #[test]
        fn written_bytes_are_read_back(
            epoch: u32, node in 1u32..=ComputeId::MAX.0, which in 0usize..3, packed in 0..=TIME_MASK, generation: u32,
            log2_buckets in 0..=LOG2_BUCKETS_MAX, partition in 0u32..8192,
        ) {
            let access = [Access::OneSided, Access::Proxied, Access::Paused][which];
            let owner = Owner { epoch, node: Some(ComputeId(node)), access };
            let entry = PartitionEntry { owner, shape: Shape { packed, generation, log2_buckets } };
            let bytes = entry.encode(Geometry::default(), PartitionId(partition)).expect("in range");
            let read = PartitionEntry::decode(&bytes, Geometry::default(), PartitionId(partition));
            prop_assert_eq!(read, Ok(entry));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: [u8; ENTRY_BYTES]) {
            prop_assert!(PartitionEntry::decode(&bytes, Geometry::default(), PARTITION).is_err());
        }
    }
}
