//! Addresses of bytes in the pool, and how an address fits into a word.
//!
//! An [`Address`] consists of node, block number and offset. Node and number together are the
//! **name** of the block ([`BlockId`]). This node had the first copy of the block. It stays part of
//! the name when the copies move. So an address in an index stays valid after the loss of a node.
//! The block's [`Config`](crate::Config), which clients cache, says where the copies are.
//!
//! [`Packing`] puts an address into the low bits of a word. The division of the bits follows from
//! the size of blocks and the alignment of the addressed objects. With blocks of 16 MiB and units
//! of 64 bytes, an offset takes 18 bits and a number 16 bits, so 47 bits leave 13 bits for the
//! node.
//!
//! The functions are pure.

use std::fmt;

use archipelago_base::{Error, Result};
use archipelago_fabric::NodeId;

/// Number of block numbers per node; they begin at 0.
pub const NUMBERS_MAX: u32 = 1 << 16;
/// Bits of a block number.
const NUMBER_BITS: u32 = 16;

/// The name of a block. The manager gives the name to another block only if it knows of no copy of
/// this one. A later block of the same name has larger epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId {
    /// Node that had the first copy of the block.
    pub home: NodeId,
    /// Number of the block among those named after the node.
    pub number: u32,
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.home, self.number)
    }
}

/// The address of a byte in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Block that holds the byte.
    pub block: BlockId,
    /// Offset in the block, in bytes.
    pub offset: u64,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.block, self.offset)
    }
}

/// Packs addresses into the low bits of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    unit_bytes: u64,
    offset_bits: u32,
    node_bits: u32,
}

impl Packing {
    /// A packing into `bits` bits, for blocks of `block_bytes` and offsets that are multiples of
    /// `unit_bytes` (both powers of two). Errors: `InvalidArgument` if no bit is left for the node.
    pub fn new(block_bytes: u64, unit_bytes: u64, bits: u32) -> Result<Self> {
        let fits = block_bytes.is_power_of_two()
            && unit_bytes.is_power_of_two()
            && unit_bytes <= block_bytes
            && bits <= 64;
        let offset_bits = if fits { (block_bytes / unit_bytes).trailing_zeros() } else { 64 };
        match bits.checked_sub(offset_bits + NUMBER_BITS).filter(|&left| fits && left > 0) {
            Some(left) => Ok(Self { unit_bytes, offset_bits, node_bits: left.min(32) }),
            None => Err(Error::invalid(format!(
                "addresses in blocks of {block_bytes} bytes, at multiples of {unit_bytes}, do not fit {bits} bits: \
                 both must be powers of two, and the number of units of a block may take {} bits",
                bits.saturating_sub(NUMBER_BITS + 1)
            ))),
        }
    }

    /// Largest node id that fits.
    #[must_use]
    pub fn node_max(&self) -> NodeId {
        NodeId((1 << self.node_bits) - 1)
    }

    /// Packs an address. `None` if the node's id or the block's number is too large, or if the
    /// offset is beyond a block or no multiple of the unit.
    #[inline]
    #[must_use]
    pub fn pack(&self, address: Address) -> Option<u64> {
        let unit = address.offset / self.unit_bytes;
        let whole = address.offset.is_multiple_of(self.unit_bytes) && unit >> self.offset_bits == 0;
        let BlockId { home, number } = address.block;
        if !whole || home > self.node_max() || number >= NUMBERS_MAX {
            return None;
        }
        Some((home.0 << NUMBER_BITS | u64::from(number)) << self.offset_bits | unit)
    }

    /// The address in a word of [`Packing::pack`]. Ignores the bits above.
    #[inline]
    #[must_use]
    pub fn unpack(&self, word: u64) -> Address {
        let unit = word & ((1 << self.offset_bits) - 1);
        let name = word >> self.offset_bits;
        let number = (name & (u64::from(NUMBERS_MAX) - 1)) as u32;
        let home = NodeId(name >> NUMBER_BITS & self.node_max().0);
        Address { block: BlockId { home, number }, offset: unit * self.unit_bytes }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_word_of_47_bits_names_every_unit_of_a_large_pool() {
        let packing = Packing::new(16 << 20, 64, 47).expect("fits");
        assert_eq!(packing.node_max(), NodeId((1 << 13) - 1));
        let block = BlockId { home: packing.node_max(), number: NUMBERS_MAX - 1 };
        let last = Address { block, offset: (16 << 20) - 64 };
        let word = packing.pack(last).expect("fits");
        assert_eq!(word, (1 << 47) - 1);
        assert_eq!(packing.unpack(word), last);
        assert_eq!(packing.pack(Address { offset: 8, ..last }), None, "not a unit");
        assert_eq!(packing.pack(Address { offset: 16 << 20, ..last }), None, "beyond the block");
        let far = BlockId { home: NodeId(1 << 13), ..block };
        assert_eq!(packing.pack(Address { block: far, offset: 0 }), None);
    }

    #[test]
    fn packing_without_bits_for_the_node_is_refused() {
        assert!(Packing::new(16 << 20, 1, 40).is_err());
        assert!(Packing::new(3 << 20, 64, 47).is_err());
        assert!(Packing::new(64, 128, 47).is_err());
    }

    proptest! {
        #[test]
        fn packed_address_round_trips(home in 0u64..8192, number in 0..NUMBERS_MAX, unit in 0u64..1 << 18) {
            let packing = Packing::new(16 << 20, 64, 47).expect("fits");
            let address = Address { block: BlockId { home: NodeId(home), number }, offset: unit * 64 };
            let word = packing.pack(address).expect("fits");
            prop_assert!(word < 1 << 47);
            prop_assert_eq!(packing.unpack(word), address);
        }
    }
}
