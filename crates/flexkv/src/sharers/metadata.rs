//! Metadata of the keys of an offloaded partition: which nodes cache the key's value or address,
//! and how often it is read and written.
//!
//! One entry of 8 bytes stands for each slot of the subtable, by slot index. A slot that gets
//! another key begins anew.
//!
//! **Sharers** take 32 bits. Bit `n % 32` stands for compute node `n`. If all node numbers are
//! below 32, the list is exact. Otherwise a bit stands for all nodes with that remainder (a coarse
//! vector). An invalidation then also goes to nodes that cache nothing of the key, and these answer
//! immediately. No sharer is ever missed.
//!
//! **Counters** take 16 bits each. When one would overflow, both are shifted right by 2, which
//! keeps their ratio. A value is worth caching while writes/reads < 0.25 and it was read at least
//! once. A proxy caches pairs of its own partitions whatever they are worth, because dropping them
//! takes no message.
//!
//! **Two bits per slot** stand apart from the entries ([decision 0021]). One says whether a sharer
//! was given the *pair*. The other says whether an **untracked** node, which is no sharer, was
//! given the slot's word to read by. A write that supersedes the word must then make sure that no
//! node believes a cached address.
//!
//! Invariants:
//! 1. A node that was marked is found by [`Sharers::among`] until the list is taken or reset.
//! 2. Counters never wrap.
//! 3. The table takes [`MetadataTable::bytes`], and no more.
//!
//! Thread-safety: by `&mut`.
//! Cost: constant time. Paper: §4.4. The coarse vector and the bits are additions.
//!
//! [decision 0021]: ../../../../docs/decisions/0021-flexkv-invalidation-of-cached-addresses.md

use archipelago_base::prefetch::prefetch_value;

use crate::format::SlotIndex;
use crate::ids::ComputeId;

/// Bytes of an entry.
pub const METADATA_BYTES: usize = size_of::<Metadata>();
/// Node numbers below this give exact lists.
pub const EXACT_NODES: u32 = 32;
/// Largest value of a counter.
pub const COUNTER_MAX: u16 = u16::MAX;

/// Number of reads per write above which a value is worth caching.
const READS_PER_WRITE: u32 = 4;

/// The compute nodes that may cache a value or its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sharers(u32);

impl Sharers {
    /// Adds a node to the list.
    pub fn mark(&mut self, node: ComputeId) {
        self.0 |= Self::bit(node);
    }

    /// Removes a node, unless `nodes`, which are all live nodes, has another node with the same
    /// bit. A coarse list cannot remove one of these alone.
    pub fn unmark(&mut self, node: ComputeId, nodes: &[ComputeId]) {
        let bit = Self::bit(node);
        if !nodes.iter().any(|&other| other != node && Self::bit(other) == bit) {
            self.0 &= !bit;
        }
    }

    /// Whether the node may cache the value.
    #[must_use]
    pub fn may_have(self, node: ComputeId) -> bool {
        self.0 & Self::bit(node) != 0
    }

    /// Number of bits, which is the number of nodes if all numbers are below 32.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether only `node` may cache the value, as far as the bits tell. In a coarse list other
    /// nodes may share its bit.
    #[must_use]
    pub fn is_at_most(self, node: ComputeId) -> bool {
        self.0 & !Self::bit(node) == 0
    }

    /// Whether no node may cache the value.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Nodes, among all live nodes in `nodes`, that a write must invalidate.
    pub fn among(self, nodes: &[ComputeId]) -> impl Iterator<Item = ComputeId> + '_ {
        nodes.iter().copied().filter(move |&node| self.may_have(node))
    }

    fn bit(node: ComputeId) -> u32 {
        1 << (node.0 % EXACT_NODES)
    }
}

/// Metadata that a proxy keeps of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Nodes that may cache the key.
    pub sharers: Sharers,
    writes: u16,
    reads: u16,
}

impl Metadata {
    /// Counts writes and reads. A client reports several reads together.
    pub fn count(&mut self, writes: u32, reads: u32) {
        let mut writes = u64::from(self.writes) + u64::from(writes);
        let mut reads = u64::from(self.reads) + u64::from(reads);
        while writes.max(reads) > u64::from(COUNTER_MAX) {
            writes >>= 2;
            reads >>= 2;
        }
        (self.writes, self.reads) = (writes as u16, reads as u16);
    }

    /// Counted writes, after shifts.
    #[must_use]
    pub fn writes(&self) -> u16 {
        self.writes
    }

    /// Counted reads, after shifts.
    #[must_use]
    pub fn reads(&self) -> u16 {
        self.reads
    }

    /// Whether the value is worth caching: writes/reads < 0.25.
    #[must_use]
    pub fn cache_worthy(&self) -> bool {
        u32::from(self.writes) * READS_PER_WRITE < u32::from(self.reads)
    }
}

/// The nodes that may have cached anything of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotReaders {
    /// Nodes that an invalidation reaches.
    pub sharers: Sharers,
    /// Whether a sharer may have the pair.
    pub has_pairs: bool,
    /// Whether untracked nodes may read by the address.
    pub has_untracked: bool,
}

/// One bit for each slot.
#[derive(Clone, Debug, Default)]
struct Bits(Box<[u64]>);

impl Bits {
    fn new(slots: usize) -> Self {
        Self(vec![0; slots.div_ceil(64)].into_boxed_slice())
    }

    fn bytes_for(slots: usize) -> usize {
        slots.div_ceil(64) * size_of::<u64>()
    }

    fn get(&self, slot: SlotIndex) -> bool {
        let bits = self.0.get(slot.0 as usize / 64).copied().unwrap_or(0);
        bits >> (slot.0 % 64) & 1 == 1
    }

    fn set(&mut self, slot: SlotIndex, on: bool) {
        if let Some(bits) = self.0.get_mut(slot.0 as usize / 64) {
            let bit = 1 << (slot.0 % 64);
            *bits = if on { *bits | bit } else { *bits & !bit };
        }
    }
}

/// The metadata of a partition's slots.
#[derive(Clone, Debug, Default)]
pub struct MetadataTable {
    entries: Box<[Metadata]>,
    pairs: Bits,
    untracked: Bits,
}

impl MetadataTable {
    /// An empty table of `slots` slots.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let entries = vec![Metadata::default(); slots].into_boxed_slice();
        Self { entries, pairs: Bits::new(slots), untracked: Bits::new(slots) }
    }

    /// Bytes of a table of `slots` slots, which are charged before it is made.
    #[must_use]
    pub fn bytes_for(slots: usize) -> u64 {
        (size_of::<Self>() + slots * METADATA_BYTES + 2 * Bits::bytes_for(slots)) as u64
    }

    /// Bytes that the table takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        Self::bytes_for(self.entries.len())
    }

    /// The entry of a slot. `None` if the partition has no such slot.
    #[must_use]
    pub fn get(&self, slot: SlotIndex) -> Option<&Metadata> {
        self.entries.get(slot.0 as usize)
    }

    /// Prefetches the metadata of a slot.
    pub(crate) fn prefetch(&self, slot: SlotIndex) {
        if let Some(entry) = self.get(slot) {
            prefetch_value(entry);
        }
        for bits in [&self.pairs, &self.untracked] {
            if let Some(bits) = bits.0.get(slot.0 as usize / 64) {
                prefetch_value(bits);
            }
        }
    }

    /// Notes that a node was given the slot's word, and with `pair` also its pair.
    pub fn share(&mut self, slot: SlotIndex, node: ComputeId, pair: bool) {
        if let Some(entry) = self.get_mut(slot) {
            entry.sharers.mark(node);
        }
        if pair {
            self.pairs.set(slot, true);
        }
    }

    /// Whether untracked nodes may read by the slot's word.
    #[must_use]
    pub fn has_untracked(&self, slot: SlotIndex) -> bool {
        self.untracked.get(slot)
    }

    /// Sets whether untracked nodes may read by the slot's word.
    pub fn set_untracked(&mut self, slot: SlotIndex, untracked: bool) {
        self.untracked.set(slot, untracked);
    }

    /// Whether a sharer of the slot may have the pair.
    #[must_use]
    pub fn has_pairs(&self, slot: SlotIndex) -> bool {
        self.pairs.get(slot)
    }

    /// Takes the nodes that may have cached anything of the slot. The caller must invalidate the
    /// sharers, and the table forgets them.
    pub fn take_readers(&mut self, slot: SlotIndex) -> SlotReaders {
        let (has_pairs, has_untracked) = (self.pairs.get(slot), self.has_untracked(slot));
        self.pairs.set(slot, false);
        let sharers = self.get_mut(slot).map(|entry| std::mem::take(&mut entry.sharers));
        SlotReaders { sharers: sharers.unwrap_or_default(), has_pairs, has_untracked }
    }

    /// The entry of a slot, to be changed.
    pub fn get_mut(&mut self, slot: SlotIndex) -> Option<&mut Metadata> {
        self.entries.get_mut(slot.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entry_takes_eight_bytes() {
        assert_eq!(METADATA_BYTES, 8);
        let table = MetadataTable::new(1000);
        assert_eq!(table.bytes(), 48 + 8_000 + 2 * 128);
        assert!(table.get(SlotIndex(999)).is_some() && table.get(SlotIndex(1000)).is_none());
    }

    #[test]
    fn readers_of_a_slot_are_taken_once() {
        let mut table = MetadataTable::new(130);
        table.share(SlotIndex(129), ComputeId(3), true);
        table.share(SlotIndex(64), ComputeId(4), false);
        table.set_untracked(SlotIndex(64), true);
        table.set_untracked(SlotIndex(65), true);
        table.set_untracked(SlotIndex(65), false);
        let told = table.take_readers(SlotIndex(129));
        assert!(told.has_pairs && !told.has_untracked && told.sharers.may_have(ComputeId(3)));
        assert_eq!(table.take_readers(SlotIndex(129)), SlotReaders::default());
        let told = table.take_readers(SlotIndex(64));
        assert!(!told.has_pairs && told.has_untracked && told.sharers.count() == 1);
        assert!(table.has_untracked(SlotIndex(64)), "until the write is committed");
        assert_eq!(table.take_readers(SlotIndex(65)), SlotReaders::default());
    }

    #[test]
    fn overflow_shifts_both_and_keeps_the_ratio() {
        let mut key = Metadata::default();
        key.count(10_000, 65_535);
        key.count(0, 1);
        assert_eq!((key.writes(), key.reads()), (2_500, 16_384));
        let mut written = Metadata::default();
        written.count(65_535, 8);
        written.count(1, 0);
        assert_eq!((written.writes(), written.reads()), (16_384, 2));
        written.count(u32::MAX, u32::MAX);
        assert!(written.writes() >= 16_383 && written.reads() >= 16_383);
    }

    #[test]
    fn a_value_is_worth_caching_below_one_write_in_four_reads() {
        let worthy = |writes, reads| {
            let mut key = Metadata::default();
            key.count(writes, reads);
            key.cache_worthy()
        };
        assert!(!worthy(0, 0), "never read");
        assert!(worthy(0, 1) && worthy(1, 5) && worthy(16_000, 65_000));
        assert!(!worthy(1, 4) && !worthy(1, 0) && !worthy(20_000, 65_000));
    }

    #[test]
    fn sharers_are_exact_up_to_32_nodes_and_never_missed_beyond() {
        let few: Vec<ComputeId> = (0..32).map(ComputeId).collect();
        let mut sharers = Sharers::default();
        sharers.mark(ComputeId(31));
        sharers.mark(ComputeId(4));
        assert_eq!(sharers.among(&few).collect::<Vec<_>>(), [ComputeId(4), ComputeId(31)]);
        sharers.unmark(ComputeId(4), &few);
        assert_eq!(sharers.among(&few).collect::<Vec<_>>(), [ComputeId(31)]);
        let many: Vec<ComputeId> = (0..100).map(ComputeId).collect();
        assert_eq!(sharers.among(&many).map(|node| node.0).collect::<Vec<_>>(), [31, 63, 95]);
        sharers.unmark(ComputeId(31), &many);
        assert!(sharers.may_have(ComputeId(63)), "another may be behind the bit");
    }

    proptest! {
        #[test]
        fn every_marked_node_is_notified(marked in proptest::collection::vec(0u32..1000, 0..40), count in 1u32..1000) {
            let nodes: Vec<ComputeId> = (0..count).map(ComputeId).collect();
            let mut table = MetadataTable::new(1);
            for &node in &marked {
                table.share(SlotIndex(0), ComputeId(node), node % 2 == 0);
            }
            let sharers = table.take_readers(SlotIndex(0)).sharers;
            let told: Vec<u32> = sharers.among(&nodes).map(|node| node.0).collect();
            for node in marked.iter().filter(|&&node| node < count) {
                prop_assert!(told.contains(node));
            }
            prop_assert!(table.take_readers(SlotIndex(0)).sharers.is_empty());
            if count <= EXACT_NODES && marked.iter().all(|&node| node < count) {
                prop_assert!(told.iter().all(|node| marked.contains(node)));
            }
        }

        #[test]
        fn single_and_batch_counts_agree_on_cache_worth(
            writes in 0u32..400_000, per_write in 0u32..64,
        ) {
            // These ratios are far enough from the threshold that the shifts of the counters do not
            // matter.
            prop_assume!(!(3..=5).contains(&per_write));
            let mut key = Metadata::default();
            for _ in 0..writes.div_ceil(1000) {
                key.count(1000, 1000 * per_write);
            }
            let worthy = writes > 0 && per_write > 5;
            prop_assert_eq!(key.cache_worthy(), worthy);
        }
    }
}
