//! The set and the skyline against the list of tombstones.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn tombstone(start: u16, end: u16, seq: u64) -> RangeTombstone {
    let key = |at: u16| Arc::from(at.to_be_bytes());
    RangeTombstone { start: key(start), end: key(end), seq: SeqNo(seq) }
}

fn newest(list: &[RangeTombstone], key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
    let seen = |t: &&RangeTombstone| t.seq <= snapshot && t.covers(key);
    list.iter().filter(seen).map(|tombstone| tombstone.seq).max()
}

/// Overlaps that once caused a fragment for each pair of tombstones.
#[derive(Clone, Copy, Debug)]
enum Shape {
    NestedLeft,
    NestedRight,
    Staircase,
    Identical,
    Disjoint,
    Onion,
}

const SHAPES: [Shape; 6] = [
    Shape::NestedLeft,
    Shape::NestedRight,
    Shape::Staircase,
    Shape::Identical,
    Shape::Disjoint,
    Shape::Onion,
];

impl Shape {
    fn tombstones(self, count: u16) -> Vec<RangeTombstone> {
        let of = |at: u16| match self {
            Self::NestedLeft => (0, at + 1),
            Self::NestedRight => (at, count),
            Self::Staircase => (at, at + count / 4 + 1),
            Self::Identical => (3, count),
            Self::Disjoint => (2 * at, 2 * at + 1),
            Self::Onion => (at, 2 * count - at),
        };
        (0..count)
            .map(|at| {
                let (start, end) = of(at);
                tombstone(start, end, u64::from(at) + 1)
            })
            .collect()
    }
}

/// Sets of the same tombstones, built in different pieces.
fn sets(list: &[RangeTombstone], piece: usize) -> [TombstoneSet; 2] {
    let grown =
        list.chunks(piece).fold(TombstoneSet::default(), |set, more| set.with(more.to_vec()));
    [TombstoneSet::new(list), grown]
}

fn check(set: &TombstoneSet, list: &[RangeTombstone], keys: u16, snapshot: SeqNo) {
    let all: BTreeSet<u16> = (0..keys).collect();
    let mut span = TombstoneSpan::default();
    for key in all {
        let key = key.to_be_bytes();
        let expected = newest(list, &key, snapshot);
        assert_eq!(set.max_covering(&key, snapshot), expected);
        span.reset();
        set.add_to(&key, snapshot, &mut span);
        assert_eq!(span.newest(), expected.unwrap_or_default());
        assert!(span.start() <= &key[..] && span.end().is_none_or(|end| &key[..] < end));
        let last = span.end().map_or(keys, |end| u16::from_be_bytes(end.try_into().unwrap()));
        let first = if span.start().is_empty() {
            0
        } else {
            u16::from_be_bytes(span.start().try_into().unwrap())
        };
        for other in [first, last - 1] {
            assert_eq!(newest(list, &other.to_be_bytes(), snapshot), expected, "same in the span");
        }
    }
}

proptest! {
    #[test]
    fn set_answers_as_its_list(
        raw in prop::collection::vec((0u16..40, 0u16..40, 1u64..300), 0..300),
        sorted in any::<bool>(),
        piece in 1usize..100,
        snapshot in 0u64..320,
    ) {
        let mut list: Vec<_> = raw.iter().map(|&(a, b, seq)| tombstone(a, b, seq)).collect();
        if sorted {
            list.sort_by_key(|tombstone| tombstone.seq);
        }
        for set in sets(&list, piece) {
            check(&set, &list, 40, SeqNo(snapshot));
            check(&TombstoneSet::new(&set.list()), &list, 40, SeqNo(snapshot));
        }
    }

    #[test]
    fn skyline_is_the_newest_over_each_key(
        raw in prop::collection::vec((0u16..30, 0u16..30, 1u64..8), 0..40),
        split in 0usize..40,
    ) {
        let list: Vec<_> = raw.iter().map(|&(a, b, seq)| tombstone(a, b, seq)).collect();
        let skyline = Skyline::of(&list);
        let (one, other) = list.split_at(split.min(list.len()));
        prop_assert_eq!(&Skyline::merged(&Skyline::of(one), &Skyline::of(other)), &skyline);
        prop_assert!(skyline.cuts() <= 2 * list.len());
        let pieces: Vec<_> = skyline.covered().collect();
        prop_assert!(pieces.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let mut at = 0;
        let mut versions = 0;
        for key in 0..30u16 {
            let key = key.to_be_bytes();
            let expected = newest(&list, &key, SeqNo::MAX);
            prop_assert_eq!(skyline.newest(&key), expected);
            prop_assert_eq!(skyline.piece(&key).newest, expected);
            prop_assert_eq!(skyline.newest_from(&mut at, &key), expected);
            prop_assert_eq!(newest(&pieces, &key, SeqNo::MAX), expected);
            let seqs: BTreeSet<SeqNo> =
                list.iter().filter(|t| t.covers(&key)).map(|t| t.seq).collect();
            versions = versions.max(seqs.len());
        }
        prop_assert_eq!(skyline.is_exact(), versions <= 1);
    }
}

#[test]
fn every_shape_answers_at_every_sequence_number() {
    for shape in SHAPES {
        let list = shape.tombstones(400);
        for set in sets(&list, 1) {
            for snapshot in (0..=401).step_by(19).map(SeqNo) {
                check(&set, &list, 900, snapshot);
            }
        }
    }
}

#[test]
fn memory_grows_with_the_tombstones_not_with_their_pairs() {
    let count = 8192;
    for shape in SHAPES {
        let list = shape.tombstones(count);
        for set in sets(&list, 50) {
            let levels = usize::from(count).ilog2() as usize;
            let parts = set.parts();
            assert!(parts <= usize::from(count) * levels, "{shape:?}: {parts} parts");
            let bytes = set.memory_bytes() / u64::from(count);
            assert!(bytes <= 512, "{shape:?}: {bytes} bytes a tombstone");
        }
    }
}

#[test]
fn sets_charge_what_they_hold_until_the_last_is_dropped() {
    let budget = ByteBudget::unlimited();
    let account = TombstoneAccount { budget: Arc::clone(&budget), class: MemoryClass::Memtable };
    let charged = || budget.used_bytes(MemoryClass::Memtable);
    let list = Shape::Staircase.tombstones(1000);
    let half = TombstoneSet::charged_to(account).with(list[..500].to_vec());
    assert_eq!(charged(), half.memory_bytes());
    let whole = half.with(list[500..].to_vec());
    assert!(charged() < whole.memory_bytes() + half.memory_bytes(), "they share blocks");
    drop(half);
    assert_eq!(charged(), whole.memory_bytes());
    assert!(charged() > 1000 * size_of::<RangeTombstone>() as u64);
    drop(whole);
    assert_eq!(charged(), 0);
}
