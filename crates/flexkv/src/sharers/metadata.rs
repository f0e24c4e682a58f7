//! Per key of an offloaded partition: who caches its value or its address, and how often it is read
//! and written.
//!
//! One entry of 8 bytes beside each slot of the subtable, by slot index. A slot that gets another
//! key begins anew.
//!
//! **Sharers**: 32 bits. Bit `n % 32` stands for compute node `n`. Up to 32 nodes with numbers
//! below 32 the list is exact; beyond, a bit stands for all nodes with that remainder (a coarse
//! vector): an invalidation then also goes to nodes that cache nothing of the key, which answer at
//! once. Nodes are never missed.
//!
//! **Counters**: 16 bits each. When one would overflow, both are shifted right by 2, which keeps
//! their ratio. A value is worth caching while writes/reads < 0.25; a key that was never read is
//! not. (What a proxy caches of its own is not asked for its worth: no message drops it.)
//!
//! **Two bits beside the entries** ([decision 0021]): whether a sharer was given the *pair*; and
//! whether somebody *else* than the sharers was given the slot's word to read by: who supersedes it
//! then has to see to it that cached addresses are not believed any more.
//!
//! Invariants: 1. a node that was marked is found by [`Sharers::among`] until the list is taken or
//! reset. 2. Counters never wrap. 3. The table takes [`MetadataTable::bytes`], no more. Cost: O(1).
//! Thread-safety: by `&mut`. Paper: §4.4; the coarse vector and the bits are ours.
//!
//! [decision 0021]: ../../../../docs/decisions/0021-flexkv-invalidation-of-cached-addresses.md

use archipelago_base::prefetch::prefetch_value;

use crate::format::SlotIndex;
use crate::ids::ComputeId;

/// Bytes of an entry.
pub const METADATA_BYTES: usize = size_of::<Metadata>();
/// Node numbers below this make exact lists.
pub const EXACT_NODES: u32 = 32;
/// Counters go to this.
pub const COUNTER_MAX: u16 = u16::MAX;

/// Writes over reads, from which on a value is not worth caching: one in four.
const READS_PER_WRITE: u32 = 4;

/// Compute nodes that may cache a value, or its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sharers(u32);

impl Sharers {
    /// Adds a node.
    pub fn mark(&mut self, node: ComputeId) {
        self.0 |= Self::bit(node);
    }

    /// Takes a node off. In a coarse list this would take others off too, so it happens only where
    /// `nodes`, all that are alive, has no other node of the same bit.
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

    /// How many bits there are: as many nodes, if all numbers are below 32.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether nobody but `node` does, as far as bits tell: in a coarse list others may stand
    /// behind its bit.
    #[must_use]
    pub fn is_at_most(self, node: ComputeId) -> bool {
        self.0 & !Self::bit(node) == 0
    }

    /// Whether nobody does.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of `nodes` (all that are alive) that must hear of a write.
    pub fn among(self, nodes: &[ComputeId]) -> impl Iterator<Item = ComputeId> + '_ {
        nodes.iter().copied().filter(move |&node| self.may_have(node))
    }

    fn bit(node: ComputeId) -> u32 {
        1 << (node.0 % EXACT_NODES)
    }
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Who may cache it.
    pub sharers: Sharers,
    writes: u16,
    reads: u16,
}

impl Metadata {
    /// Counts writes and reads; a client hands in several reads at once.
    pub fn count(&mut self, writes: u32, reads: u32) {
        let mut writes = u64::from(self.writes) + u64::from(writes);
        let mut reads = u64::from(self.reads) + u64::from(reads);
        while writes.max(reads) > u64::from(COUNTER_MAX) {
            writes >>= 2;
            reads >>= 2;
        }
        (self.writes, self.reads) = (writes as u16, reads as u16);
    }

    /// Counted writes, as far as they were not shifted away.
    #[must_use]
    pub fn writes(&self) -> u16 {
        self.writes
    }

    /// Counted reads, likewise.
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

/// Who may have something of a slot that is being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// These know when they are told.
    pub sharers: Sharers,
    /// Whether one of them may have the pair.
    pub pairs: bool,
    /// Whether others may read by the address.
    pub others: bool,
}

/// A bit for each slot.
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

/// The entries of a partition.
#[derive(Clone, Debug, Default)]
pub struct MetadataTable {
    entries: Box<[Metadata]>,
    pairs: Bits,
    others: Bits,
}

impl MetadataTable {
    /// Knows nothing of `slots` slots.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let entries = vec![Metadata::default(); slots].into_boxed_slice();
        Self { entries, pairs: Bits::new(slots), others: Bits::new(slots) }
    }

    /// Bytes that a table of so many slots takes, to be charged before it is made.
    #[must_use]
    pub fn bytes_for(slots: usize) -> u64 {
        (size_of::<Self>() + slots * METADATA_BYTES + 2 * Bits::bytes_for(slots)) as u64
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        Self::bytes_for(self.entries.len())
    }

    /// The entry of a slot; `None` if the partition has no such slot.
    #[must_use]
    pub fn get(&self, slot: SlotIndex) -> Option<&Metadata> {
        self.entries.get(slot.0 as usize)
    }

    /// Asks for the memory of what is known of a slot.
    pub(crate) fn prefetch(&self, slot: SlotIndex) {
        if let Some(entry) = self.get(slot) {
            prefetch_value(entry);
        }
        for bits in [&self.pairs, &self.others] {
            if let Some(bits) = bits.0.get(slot.0 as usize / 64) {
                prefetch_value(bits);
            }
        }
    }

    /// A node was given the slot's word, and with `pair` its pair.
    pub fn share(&mut self, slot: SlotIndex, node: ComputeId, pair: bool) {
        if let Some(entry) = self.get_mut(slot) {
            entry.sharers.mark(node);
        }
        if pair {
            self.pairs.set(slot, true);
        }
    }

    /// Whether somebody else than the sharers may read by the slot's word.
    #[must_use]
    pub fn others(&self, slot: SlotIndex) -> bool {
        self.others.get(slot)
    }

    /// Says so.
    pub fn set_others(&mut self, slot: SlotIndex, others: bool) {
        self.others.set(slot, others);
    }

    /// Whether a sharer of the slot may have the pair.
    #[must_use]
    pub fn has_pairs(&self, slot: SlotIndex) -> bool {
        self.pairs.get(slot)
    }

    /// Who may have something of the slot. The sharers are its taker's to tell: none is left here.
    pub fn take_told(&mut self, slot: SlotIndex) -> Told {
        let (pairs, others) = (self.pairs.get(slot), self.others(slot));
        self.pairs.set(slot, false);
        let sharers = self.get_mut(slot).map(|entry| std::mem::take(&mut entry.sharers));
        Told { sharers: sharers.unwrap_or_default(), pairs, others }
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
    fn an_entry_takes_eight_bytes_and_a_table_what_it_says() {
        assert_eq!(METADATA_BYTES, 8);
        let table = MetadataTable::new(1000);
        assert_eq!(table.bytes(), 48 + 8_000 + 2 * 128);
        assert!(table.get(SlotIndex(999)).is_some() && table.get(SlotIndex(1000)).is_none());
    }

    #[test]
    fn what_was_told_is_of_one_slot_and_taken_once() {
        let mut table = MetadataTable::new(130);
        table.share(SlotIndex(129), ComputeId(3), true);
        table.share(SlotIndex(64), ComputeId(4), false);
        table.set_others(SlotIndex(64), true);
        table.set_others(SlotIndex(65), true);
        table.set_others(SlotIndex(65), false);
        let told = table.take_told(SlotIndex(129));
        assert!(told.pairs && !told.others && told.sharers.may_have(ComputeId(3)));
        assert_eq!(table.take_told(SlotIndex(129)), Told::default());
        let told = table.take_told(SlotIndex(64));
        assert!(!told.pairs && told.others && told.sharers.count() == 1);
        assert!(table.others(SlotIndex(64)), "until the write is committed");
        assert_eq!(table.take_told(SlotIndex(65)), Told::default());
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
        fn whoever_was_marked_is_told(marked in proptest::collection::vec(0u32..1000, 0..40), count in 1u32..1000) {
            let nodes: Vec<ComputeId> = (0..count).map(ComputeId).collect();
            let mut table = MetadataTable::new(1);
            for &node in &marked {
                table.share(SlotIndex(0), ComputeId(node), node % 2 == 0);
            }
            let sharers = table.take_told(SlotIndex(0)).sharers;
            let told: Vec<u32> = sharers.among(&nodes).map(|node| node.0).collect();
            for node in marked.iter().filter(|&&node| node < count) {
                prop_assert!(told.contains(node));
            }
            prop_assert!(table.take_told(SlotIndex(0)).sharers.is_empty());
            if count <= EXACT_NODES && marked.iter().all(|&node| node < count) {
                prop_assert!(told.iter().all(|node| marked.contains(node)));
            }
        }

        #[test]
        fn counting_one_by_one_and_at_once_agree_on_what_is_worth_caching(
            writes in 0u32..400_000, per_write in 0u32..64,
        ) {
            // Away from the threshold by more than shifting can blur.
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
