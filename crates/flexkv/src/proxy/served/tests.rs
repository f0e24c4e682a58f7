use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use super::fast_path::OldSlot;
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
fn served() -> Arc<ServedPartition> {
    let caching = Arc::new(Caching::new(&FlexKvSettings::default()).expect("sound settings"));
    let mut words = vec![0; BUCKET_SLOTS];
    words[3] = word(1).0;
    let (image, charge) = (Image { words }, caching.charge(100).expect("room"));
    let offloaded = Offloaded { image, charge };
    Arc::new(ServedPartition::new(assigned(), Some(offloaded), SlotLease::new(1, 0, 10)))
}

fn assigned() -> Assigned {
    let shape = Shaped { packed: 0, generation: 1, log2_buckets: 0 };
    Assigned { partition: 0, epoch: 1, node: 1, offloaded: true, grow: false, shape }
}

fn search(served: &ServedPartition, sharer: Option<ComputeId>) -> Candidate {
    let mut found =
        served.search(HASH, 1, SearchAsker { sharer, caches_always: false }).expect("offloaded");
    assert_eq!(found.len(), 1);
    found.remove(0)
}

const SLOT: SlotIndex = SlotIndex(3);
const CLEARED: CommitContext = CommitContext { old_record: Clearing::Done, reads: 0, sharer: None };

#[test]
fn slot_with_write_in_progress_is_not_cached() {
    let served = served();
    assert!(!search(&served, None).cache, "who has no lease caches no pair");
    assert!(search(&served, Some(ASKER)).cache);
    let locked = served.lock(SLOT).expect("free");
    assert!(search(&served, Some(ComputeId(6))).cache, "it hears of it in time");
    let told = served.take_readers(SLOT);
    assert!(told.has_pairs && told.has_untracked, "who has no lease was told");
    assert!([ASKER, ComputeId(6)].iter().all(|&node| told.sharers.may_have(node)));
    let late = search(&served, Some(ComputeId(8)));
    assert_eq!((late.word, late.cache), (word(1).0, false), "the old word, to be read once");
    let after = served.take_readers(SLOT).sharers;
    assert!(!after.may_have(ComputeId(8)), "who came late is not among the sharers");
    let change = SlotWrite { index: SLOT, old: word(1), new: word(2), kind: WriteKind::Update };
    let context = CommitContext { old_record: Clearing::Done, reads: 20, sharer: Some(WRITER) };
    let cached = CommitOutcome::Committed { may_cache: true };
    assert_eq!(served.commit(change, context), cached, "one write in more than twenty reads");
    drop(locked);
    assert_eq!(search(&served, None).word, word(2).0);
    let told = served.take_readers(SLOT);
    assert!(told.sharers.may_have(WRITER) && !told.sharers.may_have(ASKER));
}

#[test]
fn proxy_caches_own_pair_of_any_worth_and_drops_it() {
    let served = served();
    for new in 2..9 {
        let _locked = served.lock(SLOT).expect("free");
        let (old, new, kind) = (word(new - 1), word(new), WriteKind::Update);
        served.commit(SlotWrite { index: SLOT, old, new, kind }, CLEARED);
    }
    let own = || {
        let asker = SearchAsker { sharer: Some(ASKER), caches_always: true };
        served.search(HASH, 1, asker).expect("offloaded").remove(0)
    };
    assert!(own().cache, "seven writes in a read");
    assert!(!search(&served, Some(WRITER)).cache, "not for others");
    let _locked = served.lock(SLOT).expect("free");
    let told = served.take_readers(SLOT);
    assert!(told.sharers.may_have(ASKER) && !told.has_pairs, "others need no message for it");
    assert!(!own().cache, "the write that has the slot would not drop it");
}

#[test]
fn word_known_to_untracked_nodes_needs_cleared_record() {
    let served = served();
    let commit = |old, new, kind, cleared| {
        let _locked = served.lock(SLOT).expect("free");
        let change = SlotWrite { index: SLOT, old: word(old), new: word(new), kind };
        let old_record = if cleared { Clearing::Done } else { Clearing::Pending };
        served.commit(change, CommitContext { old_record, ..CLEARED }) != CommitOutcome::Refused
    };
    assert_eq!(
        served.take_readers(SLOT),
        SlotReaders::default(),
        "nobody has anything of an earlier epoch"
    );
    assert!(commit(1, 2, WriteKind::Update, false));
    assert!(!search(&served, Some(ASKER)).cache, "a key that is written as often as it is read");
    let told = served.take_readers(SLOT);
    assert!(told.sharers.may_have(ASKER) && !told.has_pairs && !told.has_untracked, "it is told");
    assert!(commit(2, 3, WriteKind::Update, false));
    let locked = served.lock(SLOT).expect("free");
    served.take_readers(SLOT);
    search(&served, Some(ASKER));
    drop(locked);
    assert!(!commit(3, 4, WriteKind::Update, false), "the asker may read by it, and is not told");
    assert_eq!(search(&served, None).word, word(3).0, "nothing happened");
    assert!(commit(3, 4, WriteKind::Update, true));
    assert!(!served.take_readers(SLOT).has_untracked);
    search(&served, None);
    assert!(!commit(4, 5, WriteKind::Update, false), "who has no lease is not told either");
    assert!(commit(4, 5, WriteKind::Insert, true));
    assert!(
        served.take_readers(SLOT).has_untracked,
        "its writer may ask later whether it was there"
    );
}

#[test]
fn pair_needs_four_reads_per_write() {
    let served = served();
    let write = |old, new, kind| {
        let _locked = served.lock(SLOT).expect("free");
        served.take_readers(SLOT);
        let context = CommitContext { sharer: Some(WRITER), ..CLEARED };
        match served.commit(SlotWrite { index: SLOT, old, new, kind }, context) {
            CommitOutcome::Committed { may_cache } => may_cache,
            CommitOutcome::Refused => panic!("the old record was cleared"),
        }
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

fn change(served: &Arc<ServedPartition>, old: u64, new: u64) -> Overwrite<'_> {
    Overwrite { served, target: Target::Slot(SLOT, word(old)), new: word(new) }
}

/// Sets slot 3 immediately on behalf of `ASKER`. Returns the instruction for the old record's valid
/// bit.
fn at_once(served: &Arc<ServedPartition>, old: u64, new: u64) -> (FastOutcome, Option<bool>) {
    let mut cleared = None;
    let copy = |due: &[PlacedWrite]| {
        cleared = due.first().map(|due| due.clear);
        true
    };
    let came = overwrite(&[change(served, old, new)], writer(true), || true, copy);
    (came[0], cleared)
}

#[test]
fn fast_set_leaves_slots_in_use_by_others_alone() {
    let served = served();
    let not = (FastOutcome::NotDone, None);
    assert_eq!(at_once(&served, 5, 2), not, "the slot holds another word");
    let locked = served.lock(SLOT).expect("free");
    assert_eq!(at_once(&served, 1, 2), not, "a write has it");
    drop(locked);
    search(&served, Some(WRITER));
    assert_eq!(at_once(&served, 1, 2), not, "another node may have cached it");
    served.take_readers(SLOT);
    let late = overwrite(&[change(&served, 1, 2)], writer(true), || false, |_| true);
    assert_eq!(late, [FastOutcome::NotDone]);
    assert_eq!(search(&served, None).word, word(1).0, "nothing happened");
    search(&served, Some(ASKER));
    let shared_bit = overwrite(&[change(&served, 1, 2)], writer(false), || true, |_| true);
    assert_eq!(shared_bit, [FastOutcome::NotDone], "another node may stand behind its bit");
}

#[test]
fn fast_set_clears_known_record_and_joins_sharers() {
    let served = served();
    search(&served, None);
    let (done, cleared) = at_once(&served, 1, 2);
    assert_eq!(
        (done, cleared),
        (FastOutcome::Committed { index: SLOT, old: word(1), worthy: false }, Some(true)),
        "it was told"
    );
    assert_eq!(at_once(&served, 2, 3).1, Some(false), "nobody was told");
    assert!(served.take_readers(SLOT).sharers.may_have(ASKER), "it has cached the pair");
}

#[test]
fn uncommitted_slot_stays_locked_until_copies_are_restored() {
    let served = served();
    let other = KeyHash(0x0000_cd00_0000_0000);
    let new = Slot::live(8, 64, other.fingerprint()).expect("fits");
    let comes_in = Overwrite { served: &served, target: Target::Free(other), new };
    let both = [change(&served, 1, 2), comes_in];
    let passes = [(); 2].map(|()| served.try_enter().expect("open"));
    let came = overwrite(&both, writer(true), || true, |_| false);
    let free = SlotIndex(0);
    let places = [(SLOT, word(1)), (free, Slot::EMPTY)].map(|(index, old)| OldSlot { index, old });
    assert_eq!(came, places.map(FastOutcome::Broken));
    let kept = both.iter().zip(passes).zip(places);
    let kept: Vec<UncommittedSlot> =
        kept.map(|((write, pass), place)| write.keep_uncommitted(pass, place)).collect();
    assert_eq!(search(&served, None).word, word(1).0, "not committed");
    assert_eq!(at_once(&served, 1, 3), (FastOutcome::NotDone, None));
    assert!(served.lock(SLOT).is_none() && served.lock(free).is_none());
    assert!(served.insert(other).is_none(), "it may not take another slot");
    assert_eq!(served.incoming(), [word(2).0, new.0], "a sweep leaves their records alone");
    let drained = || {
        let mut context = Context::from_waker(Waker::noop());
        pin!(served.drained()).poll(&mut context).is_ready()
    };
    assert!(!drained(), "who takes the partition waits");
    drop(kept);
    assert!(drained() && served.incoming().is_empty());
    assert!(served.insert(other).is_some_and(|mut inserting| inserting.add(free, Slot::EMPTY)));
    assert!(matches!(at_once(&served, 1, 3), (FastOutcome::Committed { index: SLOT, .. }, _)));
}

#[test]
fn fast_insert_needs_no_record_with_same_fingerprint() {
    let served = served();
    let other = KeyHash(0x0000_cd00_0000_0000);
    let coming = |hash: KeyHash, packed| {
        let new = Slot::live(packed, 64, hash.fingerprint()).expect("fits");
        Overwrite { served: &served, target: Target::Free(hash), new }
    };
    let mine = coming(HASH, 7);
    let came = overwrite(&[mine], writer(true), || true, |_| true);
    assert_eq!(came, [FastOutcome::NotDone], "slot 3 has its fingerprint");
    let locked = served.insert(other).expect("nobody else");
    let came = overwrite(&[coming(other, 8)], writer(true), || true, |_| true);
    assert_eq!(came, [FastOutcome::NotDone], "another with its fingerprint comes in");
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
    assert!(came.iter().all(|came| matches!(came, FastOutcome::Committed { .. })), "{came:?}");
    assert_eq!(served.load(SlotIndex(1)), Some(two[0].new));
    let told = served.take_readers(SlotIndex(1));
    assert!(told.has_untracked && told.sharers.may_have(ASKER), "as of every insert");
}

#[test]
fn insert_takes_no_slot_that_was_written_since_it_read_the_slots() {
    let served = served();
    let [first, second, third] =
        [0xcd, 0xef, 0x12].map(|fingerprint: u64| KeyHash(fingerprint << 40));
    let new = |hash: KeyHash| Slot::live(hash.0 >> 40, 64, hash.fingerprint()).expect("fits");
    let insert_into = |hash: KeyHash, index: SlotIndex, old: Slot| {
        let mut inserting = served.insert(hash).expect("no other key has its fingerprint");
        let added = inserting.add(index, old);
        if added {
            let change = SlotWrite { index, old, new: new(hash), kind: WriteKind::Insert };
            assert_ne!(served.commit(change, CLEARED), CommitOutcome::Refused);
        }
        added
    };
    let free = |hash: KeyHash| {
        let candidates = served.candidates(hash).expect("offloaded");
        candidates.free(|slot| slot == Slot::EMPTY).next().expect("seven are free")
    };
    // All three keys find the same slot free.
    let (index, old) = free(second);
    assert_eq!([free(first), free(third)], [(index, old); 2]);
    let comes_in = Overwrite { served: &served, target: Target::Free(first), new: new(first) };
    let came = overwrite(&[comes_in], writer(true), || true, |_| true);
    assert!(matches!(came[0], FastOutcome::Committed { index: at, .. } if at == index), "{came:?}");
    assert!(!insert_into(second, index, old), "the fast path wrote it");
    let (next, old) = free(second);
    assert_eq!(free(third), (next, old));
    assert!(insert_into(second, next, old));
    assert!(!insert_into(third, next, old), "another insert wrote it, and holds no lock any more");
    let (last, old) = free(third);
    assert!(insert_into(third, last, old));
    let words = [index, next, last].map(|at| served.load(at));
    assert_eq!(words, [first, second, third].map(|hash| Some(new(hash))), "no key is lost");
}
