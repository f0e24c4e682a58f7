//! Identifiers with types of their own, so that they cannot be mixed.

use std::fmt;

/// Number of a partition: the first bits of a key's hash ([`Geometry`](crate::format::Geometry)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u32);

/// Number of a compute node, from 1 to [`ComputeId::MAX`]. Small numbers give exact lists of
/// sharers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeId(pub u32);

impl ComputeId {
    /// The largest number. An owner word has 24 bits for it.
    pub const MAX: Self = Self((1 << 24) - 1);
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}", self.0)
    }
}

impl fmt::Display for ComputeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "compute node {}", self.0)
    }
}
