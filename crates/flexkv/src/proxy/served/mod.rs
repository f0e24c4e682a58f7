//! One partition that this node serves: if it is offloaded its slots and what is known of their
//! keys; and who writes what at the moment.
//!
//! Who may cache the pair of a slot is written down, and a slot is committed, under one lock, and
//! never while a write has the slot: so a write that took the slot finds everybody who was told the
//! old word together with "cache it" ([`Served::search`], [`Served::take_told`]), and whether
//! somebody was told it to read by alone, up to the commit ([`Served::commit`]).
//!
//! Thread-safety: slots are atomic words; locks of slots and of keys that come in are a small set
//! under a mutex, with the metadata. Cost: a lock and two look-ups in a set of requests in flight
//! per write; a lock, two cache lines of slots and one of metadata per search.

mod fast_path;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::candidates_in;
use crate::format::{BUCKET_SLOTS, Candidates, KeyHash, Slot, SlotIndex};
use crate::gates::Gates;
use crate::ids::{ComputeId, PartitionId};
use crate::lease::SlotLease;
use crate::node::caching::Charge;
use crate::sharers::{MetadataTable, PARTITION_BYTES, Told};
use crate::table::Image;
use crate::wire::{Assigned, Candidate, ReadCount, WriteKind};

pub(crate) use fast_path::{Ahead, AtOnce, Due, Overwrite, Target, Writer, overwrite};

/// The slots of an offloaded partition.
#[derive(Debug)]
pub(crate) struct Words(Box<[AtomicU64]>);

impl Words {
    pub(crate) fn load(&self, index: SlotIndex) -> Slot {
        Slot(self.0[index.0 as usize].load(Ordering::SeqCst))
    }

    /// The commit point of a write: a swap here.
    fn commit(&self, index: SlotIndex, old: Slot, new: Slot) {
        let word = &self.0[index.0 as usize];
        let swapped = word.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst);
        assert_eq!(swapped, Ok(old.0), "a slot was written without its lock");
    }
}

/// A key that comes in: fingerprint and buckets.
type Coming = (u8, [u32; 2]);

#[derive(Debug, Default)]
struct Locks {
    /// Slots that writes have locked, and whether the write has taken what was told of it: nobody
    /// becomes a sharer behind that.
    slots: BTreeMap<SlotIndex, bool>,
    /// Keys that come in.
    inserting: Vec<Coming>,
    /// Of an offloaded partition, by slot; else empty.
    metadata: MetadataTable,
}

impl Locks {
    /// Locks a slot; whether nobody had it.
    fn add(&mut self, index: SlotIndex) -> bool {
        let vacant = match self.slots.entry(index) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(_) => return false,
        };
        vacant.insert(false);
        true
    }

    /// Whether somebody has it. Mostly nobody has any, which is known without a look at the map's
    /// own memory.
    fn has(&self, index: SlotIndex) -> bool {
        !self.slots.is_empty() && self.slots.contains_key(&index)
    }

    /// Whether a key with this one's fingerprint comes into one of its buckets.
    fn meets(&self, (fingerprint, buckets): Coming) -> bool {
        let meets = |other: &Coming| {
            other.0 == fingerprint && other.1.iter().any(|bucket| buckets.contains(bucket))
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) assigned: Assigned,
    /// The slots, of a partition that is offloaded.
    pub(crate) words: Option<Words>,
    /// For requests to it; one door.
    pub(crate) gate: Gates,
    /// Of positions that clients cached, since this node took it.
    pub(crate) lease: SlotLease,
    locks: Mutex<Locks>,
    /// Words that writes are about to put in.
    incoming: Mutex<Vec<u64>>,
    /// Given back last.
    _charge: Option<Charge>,
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

const _: () = assert!(size_of::<Served>() as u64 <= PARTITION_BYTES);

/// What a write keeps others from. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    served: &'a Served,
    slots: Vec<SlotIndex>,
    inserting: Option<Coming>,
}

impl Served {
    pub(crate) const DOOR: PartitionId = PartitionId(0);

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

    /// Says what a write is about to put in.
    pub(crate) fn announce(&self, word: u64) -> Incoming<'_> {
        self.incoming.lock().push(word);
        Incoming(self, word)
    }

    /// What writes are about to put in. Those that are done at once have put it in when this
    /// returns, or look at the time later.
    pub(crate) fn incoming(&self) -> Vec<u64> {
        drop(self.locks.lock());
        self.incoming.lock().clone()
    }

    /// All slots, of an offloaded partition.
    pub(crate) fn all_words(&self) -> Option<Vec<u64>> {
        let words = self.words.as_ref()?;
        Some(words.0.iter().map(|word| word.load(Ordering::SeqCst)).collect())
    }

    /// The slots of `buckets` buckets from `bucket` on, of an offloaded partition that has them.
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

    /// The slots of a key, of an offloaded partition.
    pub(crate) fn candidates(&self, hash: KeyHash) -> Option<Candidates> {
        let words = self.words.as_ref()?;
        let log2_buckets = self.assigned.shape.log2_buckets;
        Some(candidates_in(|index| words.load(index), hash, log2_buckets))
    }

    /// Answers a look-up for `reads` reads: the slots that may be the key's, and whether the asker
    /// may cache their pairs. `sharer`: as whom it may, if it may at all. `always`: whatever they
    /// are worth, for it is this node itself, which drops what is written without a message.
    pub(crate) fn search(
        &self,
        hash: KeyHash,
        reads: u32,
        (sharer, always): (Option<ComputeId>, bool),
    ) -> Option<Vec<Candidate>> {
        let mut guard = self.locks.lock();
        let locks = &mut *guard;
        let candidates = self.candidates(hash)?;
        let mut answer = |(index, slot): (SlotIndex, Slot)| {
            let worthy = locks.metadata.get_mut(index).is_some_and(|key| {
                key.count(0, reads);
                key.cache_worthy()
            });
            // Of a write that has taken the sharers, those who are told now would not hear.
            let sharer = sharer.filter(|_| locks.slots.get(&index) != Some(&true));
            match sharer {
                Some(sharer) => locks.metadata.share(index, sharer, worthy),
                None => locks.metadata.set_others(index, true),
            }
            let cache = (worthy || always) && sharer.is_some();
            Candidate { index: index.0, word: slot.0, cache }
        };
        Some(candidates.matching(hash.fingerprint()).map(&mut answer).collect())
    }

    /// Reads that caches served.
    pub(crate) fn count_reads(&self, counts: &[ReadCount]) {
        let mut locks = self.locks.lock();
        for ReadCount { index, count } in counts {
            if let Some(key) = locks.metadata.get_mut(SlotIndex(*index)) {
                key.count(0, *count);
            }
        }
    }

    /// Whether somebody may have the pair of a slot.
    pub(crate) fn has_pairs(&self, index: SlotIndex) -> bool {
        self.locks.lock().metadata.has_pairs(index)
    }

    /// Whether a slot's word was told to others than sharers.
    pub(crate) fn has_others(&self, index: SlotIndex) -> bool {
        self.locks.lock().metadata.others(index)
    }

    /// Who may have something of a slot that a write has locked: no sharer is added until it is
    /// committed, but others may be.
    pub(crate) fn take_told(&self, index: SlotIndex) -> Told {
        let mut locks = self.locks.lock();
        if let Some(taken) = locks.slots.get_mut(&index) {
            *taken = true;
        }
        locks.metadata.take_told(index)
    }

    /// The commit point of a write of a locked slot. Whether the writer may cache the new pair: as
    /// `sharer`, if it may at all. `None`, and nothing happened: somebody who is no sharer was told
    /// the old word, and the old record is not `cleared` of its valid bit.
    pub(crate) fn commit(
        &self,
        (index, old, new): (SlotIndex, Slot, Slot),
        kind: WriteKind,
        (cleared, reads): (bool, u32),
        sharer: Option<ComputeId>,
    ) -> Option<bool> {
        let mut locks = self.locks.lock();
        if !cleared && locks.metadata.others(index) {
            return None;
        }
        if let Some(words) = &self.words {
            words.commit(index, old, new);
        }
        // What an insert wrote always loses its bit when it is superseded: its writer may have to
        // see whether it was ever there.
        locks.metadata.set_others(index, kind == WriteKind::Insert);
        let Some(key) = locks.metadata.get_mut(index) else { return Some(false) };
        if kind != WriteKind::Update {
            // Another key, or none.
            *key = Default::default();
        }
        if kind == WriteKind::Delete {
            return Some(false);
        }
        key.count(1, reads);
        let sharer = sharer.filter(|_| key.cache_worthy());
        if let Some(sharer) = sharer {
            locks.metadata.share(index, sharer, true);
        }
        Some(sharer.is_some())
    }

    /// A slot, for one write; `None` if another has it.
    pub(crate) fn lock(&self, index: SlotIndex) -> Option<Locked<'_>> {
        let free = self.locks.lock().add(index);
        free.then(|| Locked { served: self, slots: vec![index], inserting: None })
    }

    fn coming(&self, hash: KeyHash) -> Coming {
        (hash.fingerprint(), hash.buckets(self.assigned.shape.log2_buckets))
    }

    /// A key that comes in; `None` if one with its fingerprint comes into one of its buckets
    /// already.
    pub(crate) fn insert(&self, hash: KeyHash) -> Option<Locked<'_>> {
        let (mut locks, mine) = (self.locks.lock(), self.coming(hash));
        if locks.meets(mine) {
            return None;
        }
        locks.inserting.push(mine);
        Some(Locked { served: self, slots: Vec::new(), inserting: Some(mine) })
    }
}

impl Locked<'_> {
    /// One slot more; whether nobody had it.
    pub(crate) fn add(&mut self, index: SlotIndex) -> bool {
        let free = self.served.locks.lock().add(index);
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use super::*;
    use crate::node::caching::Caching;
    use crate::settings::FlexKvSettings;

    const ASKER: ComputeId = ComputeId(7);
    const WRITER: ComputeId = ComputeId(9);
    const HASH: KeyHash = KeyHash(0x00ab_0000_0000_0000);

    fn word(packed: u64) -> Slot {
        Slot::live(packed, 64, HASH.fingerprint()).expect("fits")
    }

    /// A partition of one bucket, in whose slot 3 the key is.
    fn served() -> Arc<Served> {
        let caching = Arc::new(Caching::new(&FlexKvSettings::default()).expect("sound settings"));
        let mut words = vec![0; BUCKET_SLOTS];
        words[3] = word(1).0;
        let (image, charge) = (Image { words }, caching.charge(100).expect("room"));
        let offloaded = Offloaded { image, charge };
        Arc::new(Served::new(assigned(), Some(offloaded), SlotLease::new(1, 0, 10)))
    }

    fn assigned() -> Assigned {
        let shape = crate::wire::Shaped { packed: 0, generation: 1, log2_buckets: 0 };
        Assigned { partition: 0, epoch: 1, node: 1, offloaded: true, grow: false, shape }
    }

    fn search(served: &Served, sharer: Option<ComputeId>) -> Candidate {
        let mut found = served.search(HASH, 1, (sharer, false)).expect("offloaded");
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    const SLOT: SlotIndex = SlotIndex(3);

    #[test]
    fn a_slot_that_is_being_written_is_never_answered_with_cache_it() {
        let served = served();
        assert!(!search(&served, None).cache, "who has no lease caches no pair");
        assert!(search(&served, Some(ASKER)).cache);
        let locked = served.lock(SLOT).expect("free");
        assert!(search(&served, Some(ComputeId(6))).cache, "it hears of it in time");
        let told = served.take_told(SLOT);
        assert!(told.pairs && told.others, "who has no lease was told");
        assert!([ASKER, ComputeId(6)].iter().all(|&node| told.sharers.may_have(node)));
        let late = search(&served, Some(ComputeId(8)));
        assert_eq!((late.word, late.cache), (word(1).0, false), "the old word, to be read once");
        let after = served.take_told(SLOT).sharers;
        assert!(!after.may_have(ComputeId(8)), "who came late is not among the sharers");
        let change = (SLOT, word(1), word(2));
        let cache = served.commit(change, WriteKind::Update, (true, 20), Some(WRITER));
        assert_eq!(cache, Some(true), "one write in more than twenty reads");
        drop(locked);
        assert_eq!(search(&served, None).word, word(2).0);
        let told = served.take_told(SLOT);
        assert!(told.sharers.may_have(WRITER) && !told.sharers.may_have(ASKER));
    }

    #[test]
    fn a_proxy_caches_a_pair_of_its_own_whatever_it_is_worth_and_is_among_those_who_drop_it() {
        let served = served();
        for new in 2..9 {
            let _locked = served.lock(SLOT).expect("free");
            served.commit((SLOT, word(new - 1), word(new)), WriteKind::Update, (true, 0), None);
        }
        let own = || served.search(HASH, 1, (Some(ASKER), true)).expect("offloaded").remove(0);
        assert!(own().cache, "seven writes in a read");
        assert!(!search(&served, Some(WRITER)).cache, "not for others");
        let _locked = served.lock(SLOT).expect("free");
        let told = served.take_told(SLOT);
        assert!(told.sharers.may_have(ASKER) && !told.pairs, "others need no message for it");
        assert!(!own().cache, "the write that has the slot would not drop it");
    }

    #[test]
    fn a_word_that_others_were_told_is_superseded_only_when_its_record_is_not_believed_any_more() {
        let served = served();
        let commit = |old, new, kind, cleared| {
            let _locked = served.lock(SLOT).expect("free");
            served.commit((SLOT, word(old), word(new)), kind, (cleared, 0), None).is_some()
        };
        assert_eq!(
            served.take_told(SLOT),
            Told::default(),
            "nobody has anything of an earlier epoch"
        );
        assert!(commit(1, 2, WriteKind::Update, false));
        assert!(
            !search(&served, Some(ASKER)).cache,
            "a key that is written as often as it is read"
        );
        let told = served.take_told(SLOT);
        assert!(told.sharers.may_have(ASKER) && !told.pairs && !told.others, "it is told");
        assert!(commit(2, 3, WriteKind::Update, false));
        let locked = served.lock(SLOT).expect("free");
        served.take_told(SLOT);
        search(&served, Some(ASKER));
        drop(locked);
        assert!(
            !commit(3, 4, WriteKind::Update, false),
            "the asker may read by it, and is not told"
        );
        assert_eq!(search(&served, None).word, word(3).0, "nothing happened");
        assert!(commit(3, 4, WriteKind::Update, true));
        assert!(!served.take_told(SLOT).others);
        search(&served, None);
        assert!(!commit(4, 5, WriteKind::Update, false), "who has no lease is not told either");
        assert!(commit(4, 5, WriteKind::Insert, true));
        assert!(served.take_told(SLOT).others, "its writer may ask later whether it was there");
    }

    #[test]
    fn pairs_are_for_keys_that_are_read_four_times_as_often_as_written() {
        let served = served();
        let write = |old, new, kind| {
            let _locked = served.lock(SLOT).expect("free");
            served.take_told(SLOT);
            served.commit((SLOT, old, new), kind, (true, 0), Some(WRITER)).expect("cleared")
        };
        assert!(!write(word(1), word(2), WriteKind::Update));
        for read in 1..=5 {
            assert_eq!(search(&served, Some(ASKER)).cache, read == 5);
        }
        assert!(!write(word(2), word(3), WriteKind::Update));
        // Reads that a cache served count as well.
        served.count_reads(&[ReadCount { index: SLOT.0, count: 3 }]);
        assert!(search(&served, Some(ASKER)).cache);
        let deleted = Slot::deleted(5, 1);
        assert!(!write(word(3), deleted, WriteKind::Delete));
        assert!(!write(deleted, word(4), WriteKind::Insert));
        assert!(!search(&served, Some(ASKER)).cache, "what was counted was another key's");
    }

    fn writer(alone: bool) -> Writer {
        Writer { me: ASKER, alone, now_us: 1_000 }
    }

    fn change(served: &Arc<Served>, old: u64, new: u64) -> Overwrite<'_> {
        Overwrite { served, target: Target::Slot(SLOT, word(old)), new: word(new) }
    }

    /// A set at once of slot 3 by `ASKER`; what it was told to do with the old record's bit.
    fn at_once(served: &Arc<Served>, old: u64, new: u64) -> (AtOnce, Option<bool>) {
        let mut cleared = None;
        let copy = |due: &[Due]| {
            cleared = due.first().map(|due| due.clear);
            true
        };
        let came = overwrite(&[change(served, old, new)], writer(true), || true, copy);
        (came[0], cleared)
    }

    #[test]
    fn a_set_at_once_leaves_alone_what_somebody_else_has_to_do_with() {
        let served = served();
        let not = (AtOnce::Not, None);
        assert_eq!(at_once(&served, 5, 2), not, "the slot holds another word");
        let locked = served.lock(SLOT).expect("free");
        assert_eq!(at_once(&served, 1, 2), not, "a write has it");
        drop(locked);
        search(&served, Some(WRITER));
        assert_eq!(at_once(&served, 1, 2), not, "another node may have cached it");
        served.take_told(SLOT);
        let late = overwrite(&[change(&served, 1, 2)], writer(true), || false, |_| true);
        assert_eq!(late, [AtOnce::Not]);
        assert_eq!(search(&served, None).word, word(1).0, "nothing happened");
        search(&served, Some(ASKER));
        let shared_bit = overwrite(&[change(&served, 1, 2)], writer(false), || true, |_| true);
        assert_eq!(shared_bit, [AtOnce::Not], "another node may stand behind its bit");
    }

    #[test]
    fn a_set_at_once_clears_what_was_told_and_has_its_pair_dropped_by_the_next_write() {
        let served = served();
        search(&served, None);
        let (done, cleared) = at_once(&served, 1, 2);
        assert_eq!(
            (done, cleared),
            (AtOnce::Done { index: SLOT, old: word(1), worthy: false }, Some(true)),
            "it was told"
        );
        assert_eq!(at_once(&served, 2, 3).1, Some(false), "nobody was told");
        assert!(served.take_told(SLOT).sharers.may_have(ASKER), "it has cached the pair");
    }

    #[test]
    fn a_slot_whose_copies_may_be_ahead_is_nobodys_until_they_are_set_back() {
        let served = served();
        let other = KeyHash(0x0000_cd00_0000_0000);
        let new = Slot::live(8, 64, other.fingerprint()).expect("fits");
        let comes_in = Overwrite { served: &served, target: Target::Free(other), new };
        let both = [change(&served, 1, 2), comes_in];
        let doors = [(); 2].map(|()| served.gate.try_enter(Served::DOOR).expect("open"));
        let came = overwrite(&both, writer(true), || true, |_| false);
        let free = SlotIndex(0);
        let places = [(SLOT, word(1)), (free, Slot::EMPTY)];
        assert_eq!(came, places.map(|(index, old)| AtOnce::Broken { index, old }));
        let kept = both.iter().zip(doors).zip(places);
        let kept: Vec<Ahead> =
            kept.map(|((write, door), place)| write.ahead(door, place)).collect();
        assert_eq!(search(&served, None).word, word(1).0, "not committed");
        assert_eq!(at_once(&served, 1, 3), (AtOnce::Not, None));
        assert!(served.lock(SLOT).is_none() && served.lock(free).is_none());
        assert!(served.insert(other).is_none(), "it may not take another slot");
        assert_eq!(served.incoming(), [word(2).0, new.0], "a sweep leaves their records alone");
        let drained = || {
            let mut context = Context::from_waker(Waker::noop());
            pin!(served.gate.drained(Served::DOOR)).poll(&mut context).is_ready()
        };
        assert!(!drained(), "who takes the partition waits");
        drop(kept);
        assert!(drained() && served.incoming().is_empty());
        assert!(served.insert(other).is_some_and(|mut inserting| inserting.add(free)));
        assert!(matches!(at_once(&served, 1, 3), (AtOnce::Done { index: SLOT, .. }, _)));
    }

    #[test]
    fn keys_come_in_at_once_where_no_record_has_to_be_looked_at() {
        let served = served();
        let other = KeyHash(0x0000_cd00_0000_0000);
        let coming = |hash: KeyHash, packed| {
            let new = Slot::live(packed, 64, hash.fingerprint()).expect("fits");
            Overwrite { served: &served, target: Target::Free(hash), new }
        };
        let mine = coming(HASH, 7);
        let came = overwrite(&[mine], writer(true), || true, |_| true);
        assert_eq!(came, [AtOnce::Not], "slot 3 has its fingerprint");
        let locked = served.insert(other).expect("nobody else");
        let came = overwrite(&[coming(other, 8)], writer(true), || true, |_| true);
        assert_eq!(came, [AtOnce::Not], "another with its fingerprint comes in");
        drop(locked);
        let _taken = served.lock(SlotIndex(0)).expect("free");
        let two = [coming(other, 8), coming(KeyHash(0x0000_ef00_0000_0000), 9)];
        let mut copied = Vec::new();
        let came = overwrite(
            &two,
            writer(true),
            || true,
            |due| {
                copied.extend(due.iter().map(|due| (due.index.0, due.old, due.clear)));
                true
            },
        );
        assert_eq!(copied, [(1, Slot::EMPTY, false), (2, Slot::EMPTY, false)], "each has a slot");
        assert!(came.iter().all(|came| matches!(came, AtOnce::Done { .. })), "{came:?}");
        assert_eq!(served.words.as_ref().expect("offloaded").load(SlotIndex(1)), two[0].new);
        let told = served.take_told(SlotIndex(1));
        assert!(told.others && told.sharers.may_have(ASKER), "as of every insert");
    }
}
