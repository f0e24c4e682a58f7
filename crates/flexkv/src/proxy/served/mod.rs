//! One partition that this node serves: its slots and what is known of their keys, if it is
//! offloaded, and the writes in progress.
//!
//! The proxy owns each [`ServedPartition`] by an `Arc`. A partition that is taken again is a new
//! one.
//!
//! Invariants:
//! 1. A slot is committed, and sharers of a slot are added, under one lock. Once a write has taken
//!    the sharers of its slot ([`ServedPartition::take_readers`]), no sharer is added before the
//!    write ends.
//! 2. Nodes that read a slot's address without being sharers are noted up to the commit.
//!    [`ServedPartition::commit`] refuses to supersede a valid record that such a node may read by.
//! 3. At most one write has a slot, and at most one insert has a key.
//! 4. Words change under the mutex only. An insert gets a slot ([`Locked::add`]) only if the slot
//!    still holds the word that the insert read, because it reads the slots without the mutex.
//!
//! Thread-safety: any thread may call any method. Slots are atomic words. One mutex guards the
//! locks of slots and keys, and the metadata.
//! Failure: a write that finds its slot or key locked is declined as busy.
//! Cost: a write takes one lock and two look-ups in a small set. A search takes one lock, and reads
//! two cache lines of slots and one of metadata.

mod fast_path;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::format::{BUCKET_SLOTS, Bucket, Candidates, KeyHash, Slot, SlotIndex};
use crate::gates::{Gates, Inside};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::{SlotLease, Stamp};
use crate::node::caching::Charge;
use crate::sharers::{MetadataTable, PARTITION_BYTES, SlotReaders};
use crate::table::Image;
use crate::wire::{Assigned, Candidate, ReadCount, Shaped, WriteKind};

pub(crate) use fast_path::{
    FastOutcome, Overwrite, PlacedWrite, Target, UncommittedSlot, Writer, overwrite,
};

/// The slots of an offloaded partition.
#[derive(Debug)]
pub(crate) struct Words(Box<[AtomicU64]>);

impl Words {
    pub(crate) fn load(&self, index: SlotIndex) -> Slot {
        Slot(self.0[index.0 as usize].load(Ordering::SeqCst))
    }

    /// Swaps a word: the commit point of a write.
    fn commit(&self, index: SlotIndex, old: Slot, new: Slot) {
        let word = &self.0[index.0 as usize];
        let swapped = word.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst);
        assert_eq!(swapped, Ok(old.0), "a slot was written without its lock");
    }
}

/// A key that is being inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IncomingKey {
    fingerprint: u8,
    buckets: [u32; 2],
}

#[derive(Debug, Default)]
struct Locks {
    /// Slots that writes have locked, and whether the write has taken the slot's readers. No node
    /// becomes a sharer of the slot after that.
    slots: BTreeMap<SlotIndex, bool>,
    /// Keys that are being inserted.
    inserting: Vec<IncomingKey>,
    /// Metadata of each slot's key. Empty if the partition is not offloaded.
    metadata: MetadataTable,
}

impl Locks {
    /// Locks a slot. Returns `false` if another write has it.
    fn add(&mut self, index: SlotIndex) -> bool {
        let vacant = match self.slots.entry(index) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(_) => return false,
        };
        vacant.insert(false);
        true
    }

    /// Whether a write has the slot. Mostly no slot is locked, and then the check does not read the
    /// memory of the map.
    fn has(&self, index: SlotIndex) -> bool {
        !self.slots.is_empty() && self.slots.contains_key(&index)
    }

    /// Whether a key with the same fingerprint is being inserted into one of the same buckets.
    fn meets(&self, key: IncomingKey) -> bool {
        let meets = |other: &IncomingKey| {
            other.fingerprint == key.fingerprint
                && other.buckets.iter().any(|bucket| key.buckets.contains(bucket))
        };
        self.inserting.iter().any(meets)
    }
}

/// The slots of an offloaded partition, and their part of the memory limit.
#[derive(Debug)]
pub(crate) struct Offloaded {
    pub(crate) image: Image,
    pub(crate) charge: Charge,
}

/// The node that asks for a key's slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchAsker {
    /// The number under which the asker may cache pairs. `None` if it may not cache any.
    pub(crate) sharer: Option<ComputeId>,
    /// Whether the asker may cache pairs of any worth, because it is this node itself. Such a
    /// cache drops a written pair without a message.
    pub(crate) caches_always: bool,
}

/// A write of one slot of an offloaded partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotWrite {
    pub(crate) index: SlotIndex,
    pub(crate) old: Slot,
    pub(crate) new: Slot,
    pub(crate) kind: WriteKind,
}

/// Whether the old record has lost its valid bit on all copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clearing {
    Done,
    Pending,
}

/// Facts that a commit needs in addition to the change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitContext {
    pub(crate) old_record: Clearing,
    /// Number of reads of the key that the writer's cache served.
    pub(crate) reads: u32,
    /// The number under which the writer may cache the new pair, if it may.
    pub(crate) sharer: Option<ComputeId>,
}

/// Result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitOutcome {
    /// The slot was not changed.
    Refused,
    Committed {
        may_cache: bool,
    },
}

/// A partition that this node serves. See the head of the module.
#[derive(Debug)]
pub(crate) struct ServedPartition {
    assigned: Assigned,
    /// The slots, if the partition is offloaded.
    words: Option<Words>,
    /// The gate of requests to the partition.
    gate: Gates,
    /// Lease of the positions that clients cached since this node took the partition.
    lease: SlotLease,
    locks: Mutex<Locks>,
    /// Words that writes are about to put into slots.
    incoming: Mutex<Vec<u64>>,
    /// The partition's share of the memory limit. The last field, so that it is given back last.
    _charge: Option<Charge>,
}

/// A word that a write is about to put into a slot. Dropping the guard withdraws it.
#[derive(Debug)]
pub(crate) struct Incoming<'a>(&'a ServedPartition, u64);

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        let mut incoming = self.0.incoming.lock();
        if let Some(at) = incoming.iter().position(|word| *word == self.1) {
            incoming.swap_remove(at);
        }
    }
}

const _: () = assert!(size_of::<ServedPartition>() as u64 <= PARTITION_BYTES);

/// The slots and the key that a write has locked. Dropping the guard unlocks them.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    served: &'a ServedPartition,
    slots: Vec<SlotIndex>,
    inserting: Option<IncomingKey>,
}

impl ServedPartition {
    /// The only gate of `gate`.
    const GATE: PartitionId = PartitionId(0);

    pub(crate) fn new(assigned: Assigned, offloaded: Option<Offloaded>, lease: SlotLease) -> Self {
        let (mut words, mut locks, mut charge) = (None, Locks::default(), None);
        if let Some(offloaded) = offloaded {
            let slots = offloaded.image.words;
            locks.metadata = MetadataTable::new(slots.len());
            words = Some(Words(slots.into_iter().map(AtomicU64::new).collect()));
            charge = Some(offloaded.charge);
        }
        let (gate, locks) = (Gates::new(1), Mutex::new(locks));
        let incoming = Mutex::default();
        Self { assigned, words, gate, lease, locks, incoming, _charge: charge }
    }

    /// The partition's entry in the map as this node serves it.
    #[inline]
    pub(crate) fn assigned(&self) -> Assigned {
        self.assigned
    }

    /// Address of the partition's subtable.
    #[inline]
    pub(crate) fn shape(&self) -> Shaped {
        self.assigned.shape
    }

    /// Whether this node is the partition's proxy.
    #[inline]
    pub(crate) fn is_offloaded(&self) -> bool {
        self.words.is_some()
    }

    /// Enters the partition's gate. `None` if the gate is closed.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        self.gate.try_enter(Self::GATE)
    }

    /// Closes the partition's gate permanently.
    pub(super) fn close(&self) {
        self.gate.close(Self::GATE);
    }

    /// Whether the gate is closed, so that a request within should end.
    pub(super) fn is_closed(&self) -> bool {
        self.gate.is_closed(Self::GATE)
    }

    /// Waits until no request is within the closed gate.
    pub(super) async fn drained(&self) {
        self.gate.drained(Self::GATE).await;
    }

    /// Whether a write may act on a position with this stamp.
    pub(super) fn accepts(&self, stamp: Stamp, now_us: u64) -> bool {
        self.lease.accepts(stamp, now_us)
    }

    /// Whether an insert may take a slot that holds `slot`.
    pub(super) fn may_reuse(&self, slot: Slot, now_us: u64) -> bool {
        self.lease.may_reuse(slot, now_us)
    }

    /// The word of a slot, if the partition is offloaded.
    pub(super) fn load(&self, index: SlotIndex) -> Option<Slot> {
        self.words.as_ref().map(|words| words.load(index))
    }

    /// Announces a word that a write is about to put into a slot.
    pub(crate) fn announce(&self, word: u64) -> Incoming<'_> {
        self.incoming.lock().push(word);
        Incoming(self, word)
    }

    /// The words that writes are about to put into slots. The lock waits for writes of the fast
    /// path: each has put its word in when this returns, or it reads the clock later.
    pub(crate) fn incoming(&self) -> Vec<u64> {
        drop(self.locks.lock());
        self.incoming.lock().clone()
    }

    /// The words of all slots, if the partition is offloaded.
    pub(crate) fn all_words(&self) -> Option<Vec<u64>> {
        let words = self.words.as_ref()?;
        Some(words.0.iter().map(|word| word.load(Ordering::SeqCst)).collect())
    }

    /// The words of `buckets` buckets from `bucket` on, if the partition is offloaded and has them.
    pub(crate) fn words_of_buckets(&self, bucket: u32, buckets: u32) -> Option<Vec<u64>> {
        let words = self.words.as_ref()?;
        let slot = |bucket: u32| bucket as usize * BUCKET_SLOTS;
        let words = words.0.get(slot(bucket)..slot(bucket.checked_add(buckets)?))?;
        Some(words.iter().map(|word| word.load(Ordering::SeqCst)).collect())
    }

    /// Whether the subtable has such a slot.
    pub(crate) fn holds(&self, index: SlotIndex) -> bool {
        u64::from(index.0) < (BUCKET_SLOTS as u64) << self.assigned.shape.log2_buckets
    }

    /// The buckets of a key, if the partition is offloaded.
    pub(crate) fn candidates(&self, hash: KeyHash) -> Option<Candidates> {
        let words = self.words.as_ref()?;
        let log2_buckets = self.assigned.shape.log2_buckets;
        Some(candidates_in(|index| words.load(index), hash, log2_buckets))
    }

    /// Answers a look-up that stands for `reads` reads. Returns the slots that may hold the key,
    /// and for each whether the asker may cache its pair.
    pub(crate) fn search(
        &self,
        hash: KeyHash,
        reads: u32,
        asker: SearchAsker,
    ) -> Option<Vec<Candidate>> {
        let mut guard = self.locks.lock();
        let locks = &mut *guard;
        let candidates = self.candidates(hash)?;
        let mut answer = |(index, slot): (SlotIndex, Slot)| {
            let worthy = locks.metadata.get_mut(index).is_some_and(|key| {
                key.count(0, reads);
                key.cache_worthy()
            });
            // A write has already collected the sharers that it will invalidate. The write would
            // miss a node that is added now.
            let sharer = asker.sharer.filter(|_| locks.slots.get(&index) != Some(&true));
            match sharer {
                Some(sharer) => locks.metadata.share(index, sharer, worthy),
                None => locks.metadata.set_untracked(index, true),
            }
            let cache = (worthy || asker.caches_always) && sharer.is_some();
            Candidate { index: index.0, word: slot.0, cache }
        };
        Some(candidates.matching(hash.fingerprint()).map(&mut answer).collect())
    }

    /// Counts reads that caches served.
    pub(crate) fn count_reads(&self, counts: &[ReadCount]) {
        let mut locks = self.locks.lock();
        for ReadCount { index, count } in counts {
            if let Some(key) = locks.metadata.get_mut(SlotIndex(*index)) {
                key.count(0, *count);
            }
        }
    }

    /// Whether a node may have cached the pair of a slot.
    pub(crate) fn has_pairs(&self, index: SlotIndex) -> bool {
        self.locks.lock().metadata.has_pairs(index)
    }

    /// Whether nodes that are no sharers may read by the slot's word.
    pub(crate) fn has_untracked(&self, index: SlotIndex) -> bool {
        self.locks.lock().metadata.has_untracked(index)
    }

    /// Takes the nodes that may have cached anything of a slot that a write has locked. No sharer
    /// is added until the write ends, but other readers may be noted.
    pub(crate) fn take_readers(&self, index: SlotIndex) -> SlotReaders {
        let mut locks = self.locks.lock();
        if let Some(taken) = locks.slots.get_mut(&index) {
            *taken = true;
        }
        locks.metadata.take_readers(index)
    }

    /// The commit point of a write of a locked slot. Refused, without effect, if a node that is no
    /// sharer was given the old word while the old record keeps its valid bit.
    pub(crate) fn commit(&self, change: SlotWrite, context: CommitContext) -> CommitOutcome {
        let SlotWrite { index, old, new, kind } = change;
        let mut locks = self.locks.lock();
        if context.old_record == Clearing::Pending && locks.metadata.has_untracked(index) {
            return CommitOutcome::Refused;
        }
        if let Some(words) = &self.words {
            words.commit(index, old, new);
        }
        // A record that an insert wrote always loses its valid bit when it is superseded: its
        // writer may have to find out whether it was ever in the index.
        locks.metadata.set_untracked(index, kind == WriteKind::Insert);
        let no_cache = CommitOutcome::Committed { may_cache: false };
        let Some(key) = locks.metadata.get_mut(index) else { return no_cache };
        if kind != WriteKind::Update {
            // The slot holds another key now, or none.
            *key = Default::default();
        }
        if kind == WriteKind::Delete {
            return no_cache;
        }
        key.count(1, context.reads);
        let sharer = context.sharer.filter(|_| key.cache_worthy());
        if let Some(sharer) = sharer {
            locks.metadata.share(index, sharer, true);
        }
        CommitOutcome::Committed { may_cache: sharer.is_some() }
    }

    /// Locks a slot for one write. `None` if another write has it.
    pub(crate) fn lock(&self, index: SlotIndex) -> Option<Locked<'_>> {
        let free = self.locks.lock().add(index);
        free.then(|| Locked { served: self, slots: vec![index], inserting: None })
    }

    fn incoming_key(&self, hash: KeyHash) -> IncomingKey {
        let buckets = hash.buckets(self.assigned.shape.log2_buckets);
        IncomingKey { fingerprint: hash.fingerprint(), buckets }
    }

    /// Locks a key for one insert. `None` if a key with its fingerprint is already being inserted
    /// into one of its buckets.
    pub(crate) fn insert(&self, hash: KeyHash) -> Option<Locked<'_>> {
        let (mut locks, mine) = (self.locks.lock(), self.incoming_key(hash));
        if locks.meets(mine) {
            return None;
        }
        locks.inserting.push(mine);
        Some(Locked { served: self, slots: Vec::new(), inserting: Some(mine) })
    }
}

impl Locked<'_> {
    /// Locks one more slot, which held `word` when it was read. Returns `false` if another write
    /// has the slot, or has changed it since. The slots of a partition that is not offloaded are
    /// compared when they are swapped.
    pub(crate) fn add(&mut self, index: SlotIndex, word: Slot) -> bool {
        let mut locks = self.served.locks.lock();
        let same = self.served.load(index).is_none_or(|now| now == word);
        let free = same && locks.add(index);
        drop(locks);
        if free {
            self.slots.push(index);
        }
        free
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut locks = self.served.locks.lock();
        for slot in &self.slots {
            locks.slots.remove(slot);
        }
        if let Some(mine) = self.inserting
            && let Some(at) = locks.inserting.iter().position(|other| *other == mine)
        {
            locks.inserting.swap_remove(at);
        }
    }
}

/// The buckets of a key, read from slots that lie one after another.
fn candidates_in(word: impl Fn(SlotIndex) -> Slot, hash: KeyHash, log2_buckets: u32) -> Candidates {
    let numbers = hash.buckets(log2_buckets);
    let bucket = |number: u32| {
        let mut bucket = Bucket::default();
        for (at, slot) in bucket.0.iter_mut().enumerate() {
            *slot = word(SlotIndex::new(number, at));
        }
        bucket
    };
    Candidates::new(numbers, numbers.map(bucket))
}
