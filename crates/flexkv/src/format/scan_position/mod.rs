//! Position of an unordered scan: the number that clients keep between two steps (decision 0057).
//!
//! A scan visits partitions in the order of their numbers, and the buckets of a partition in the
//! order in which they lie in its subtable. A position is the bucket at which the next step begins:
//!
//! | bits | what |
//! | --- | --- |
//! | 63–48 | zeros |
//! | 47–32 | partition |
//! | 31–20 | the low bits of the subtable's generation; 0 at bucket 0 |
//! | 19–0 | bucket |
//!
//! Invariants:
//!
//! 1. A key stays in its slot while its subtable keeps its generation, unless the key is deleted in
//!    between. Therefore a key that exists during the whole iteration lies either in a bucket
//!    that is still to be visited, or in one that was visited while the key lay in it.
//! 2. A subtable of another generation places its keys anew. A position of an earlier generation
//!    therefore means bucket 0 of the partition: keys may be returned twice, none is left out.
//!    A subtable doubles with each generation, so an iteration begins a partition at most 20 times.
//! 3. Partitions, their number and the generations lie in the pool. No compute node remembers
//!    anything for a position, so it holds on every node, after a move and after a restart.
//!
//! Thread-safety: values.
//! Failure: a number that no scan of the store gives out decodes to `None`.
//! Cost: a few shifts.

use super::partition::LOG2_BUCKETS_MAX;
use super::table::{Geometry, PARTITION_BITS_MAX};
use crate::ids::PartitionId;

const BUCKET_BITS: u32 = LOG2_BUCKETS_MAX;
const GENERATION_BITS: u32 = 12;
const PARTITION_SHIFT: u32 = BUCKET_BITS + GENERATION_BITS;

// Cursors stay exact in clients that keep them in doubles.
const _: () = assert!(PARTITION_SHIFT + PARTITION_BITS_MAX < 53);

/// Position at which a step of an unordered scan begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanPosition {
    partition: PartitionId,
    generation: u32,
    bucket: u32,
}

impl ScanPosition {
    /// The beginning of a scan. Its number is 0.
    pub const START: Self = Self::at_partition(PartitionId(0));

    /// The beginning of a partition.
    #[must_use]
    pub const fn at_partition(partition: PartitionId) -> Self {
        Self { partition, generation: 0, bucket: 0 }
    }

    /// A bucket of a partition whose subtable has this generation.
    #[must_use]
    pub fn at_bucket(partition: PartitionId, generation: u32, bucket: u32) -> Self {
        debug_assert!(bucket < 1 << BUCKET_BITS);
        let generation = if bucket == 0 { 0 } else { generation & ((1 << GENERATION_BITS) - 1) };
        Self { partition, generation, bucket }
    }

    /// The partition in which the step begins.
    #[must_use]
    pub fn partition(self) -> PartitionId {
        self.partition
    }

    /// The bucket, in a subtable of the generation for which the position was made.
    #[must_use]
    pub fn bucket(self) -> u32 {
        self.bucket
    }

    /// The first bucket that is still to be visited if the subtable has this generation and
    /// 2^`log2_buckets` buckets.
    #[must_use]
    pub fn bucket_in(self, generation: u32, log2_buckets: u32) -> u32 {
        let here = Self::at_bucket(self.partition, generation, self.bucket);
        if here == self && self.bucket >> log2_buckets == 0 { self.bucket } else { 0 }
    }

    /// The position as a number.
    #[must_use]
    pub fn encode(self) -> u64 {
        u64::from(self.partition.0) << PARTITION_SHIFT
            | u64::from(self.generation) << BUCKET_BITS
            | u64::from(self.bucket)
    }

    /// The position of a number; `None` if no scan of a store of this geometry gives it out.
    #[must_use]
    pub fn decode(number: u64, geometry: Geometry) -> Option<Self> {
        let partition = number >> PARTITION_SHIFT;
        let generation = (number >> BUCKET_BITS) as u32 & ((1 << GENERATION_BITS) - 1);
        let bucket = number as u32 & ((1 << BUCKET_BITS) - 1);
        let is_sound =
            partition < u64::from(geometry.partitions()) && (bucket > 0 || generation == 0);
        is_sound.then_some(Self { partition: PartitionId(partition as u32), generation, bucket })
    }
}

#[cfg(test)]
mod tests;
