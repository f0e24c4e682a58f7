//! One partition that this node serves: its slots if it is offloaded, and who writes what at the moment.
//!
//! Thread-safety: slots are atomic words; locks of slots and of keys that come in are a small set under a mutex. Cost: a lock
//! and two look-ups in a set of requests in flight per write; two cache lines per search.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::candidates_in;
use crate::format::{BUCKET_SLOTS, Candidates, KeyHash, Slot, SlotIndex};
use crate::gates::Gates;
use crate::ids::PartitionId;
use crate::table::Image;
use crate::wire::Assigned;

/// The slots of an offloaded partition.
#[derive(Debug)]
pub(crate) struct Words(Box<[AtomicU64]>);

impl Words {
    pub(crate) fn load(&self, index: SlotIndex) -> Slot {
        Slot(self.0[index.0 as usize].load(Ordering::SeqCst))
    }

    /// The commit point of a write: a swap here.
    pub(crate) fn commit(&self, index: SlotIndex, old: Slot, new: Slot) {
        let word = &self.0[index.0 as usize];
        let swapped = word.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst);
        assert_eq!(swapped, Ok(old.0), "a slot was written without its lock");
    }
}

#[derive(Debug, Default)]
struct Locks {
    slots: BTreeSet<SlotIndex>,
    /// Keys that come in: fingerprint and buckets.
    inserting: Vec<(u8, [u32; 2])>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) assigned: Assigned,
    /// The slots, of a partition that is offloaded.
    pub(crate) words: Option<Words>,
    /// For requests to it; one door.
    pub(crate) gate: Gates,
    /// When this node took it.
    pub(crate) since_us: u64,
    locks: Mutex<Locks>,
    /// Words that writes are about to put in.
    incoming: Mutex<Vec<u64>>,
}

/// A word that is about to be put in; not any more when dropped.
#[derive(Debug)]
pub(crate) struct Incoming<'a>(&'a Served, u64);

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        let mut incoming = self.0.incoming.lock();
        if let Some(at) = incoming.iter().position(|word| *word == self.1) {
            incoming.swap_remove(at);
        }
    }
}

/// What a write keeps others from. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    served: &'a Served,
    slots: Vec<SlotIndex>,
    inserting: Option<(u8, [u32; 2])>,
}

impl Served {
    pub(crate) const DOOR: PartitionId = PartitionId(0);

    pub(crate) fn new(assigned: Assigned, image: Option<Image>, since_us: u64) -> Self {
        let words = image.map(|image| Words(image.words.into_iter().map(AtomicU64::new).collect()));
        Self {
            assigned,
            words,
            gate: Gates::new(1),
            since_us,
            locks: Mutex::default(),
            incoming: Mutex::default(),
        }
    }

    /// Says what a write is about to put in.
    pub(crate) fn announce(&self, word: u64) -> Incoming<'_> {
        self.incoming.lock().push(word);
        Incoming(self, word)
    }

    /// What writes are about to put in.
    pub(crate) fn incoming(&self) -> Vec<u64> {
        self.incoming.lock().clone()
    }

    /// All slots, of an offloaded partition.
    pub(crate) fn all_words(&self) -> Option<Vec<u64>> {
        let words = self.words.as_ref()?;
        Some(words.0.iter().map(|word| word.load(Ordering::SeqCst)).collect())
    }

    /// Whether the subtable has such a slot.
    pub(crate) fn holds(&self, index: SlotIndex) -> bool {
        u64::from(index.0) < (BUCKET_SLOTS as u64) << self.assigned.shape.log2_buckets
    }

    /// The slots of a key, of an offloaded partition.
    pub(crate) fn candidates(&self, hash: KeyHash) -> Option<Candidates> {
        let words = self.words.as_ref()?;
        let log2_buckets = self.assigned.shape.log2_buckets;
        Some(candidates_in(|index| words.load(index), hash, log2_buckets))
    }

    /// A slot, for one write; `None` if another has it.
    pub(crate) fn lock(&self, index: SlotIndex) -> Option<Locked<'_>> {
        let free = self.locks.lock().slots.insert(index);
        free.then(|| Locked { served: self, slots: vec![index], inserting: None })
    }

    /// A key that comes in; `None` if one with its fingerprint comes into one of its buckets already.
    pub(crate) fn insert(&self, hash: KeyHash) -> Option<Locked<'_>> {
        let buckets = hash.buckets(self.assigned.shape.log2_buckets);
        let (mut locks, mine) = (self.locks.lock(), (hash.fingerprint(), buckets));
        let meets = |other: &(u8, [u32; 2])| {
            other.0 == mine.0 && other.1.iter().any(|bucket| buckets.contains(bucket))
        };
        if locks.inserting.iter().any(meets) {
            return None;
        }
        locks.inserting.push(mine);
        Some(Locked { served: self, slots: Vec::new(), inserting: Some(mine) })
    }
}

impl Locked<'_> {
    /// One slot more; whether nobody had it.
    pub(crate) fn add(&mut self, index: SlotIndex) -> bool {
        let free = self.served.locks.lock().slots.insert(index);
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
