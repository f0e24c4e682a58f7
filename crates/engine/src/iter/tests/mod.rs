//! The iterators against a model: a list of writes, applied key by key.

mod separated;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use proptest::prelude::*;

use self::separated::Values;
use super::*;
use crate::extension::{AppendMerge, FamilyMerge};
use crate::key::{KeyRange, Kind, compare, encode, user_key};
use crate::tombstone::{RangeTombstone, TombstoneSet};

const NOW_MS: u64 = 1000;

type Record = (Vec<u8>, Vec<u8>);

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, Vec<u8>),
    PutExpiring(Vec<u8>, Vec<u8>, u64),
    Delete(Vec<u8>),
    Merge(Vec<u8>, Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// Writes, whose sequence numbers are their positions from 1, distributed over children by age.
#[derive(Clone, Debug)]
struct World {
    ops: Vec<Op>,
    /// Ends of the children's shares of `ops`, oldest child first.
    cuts: Vec<usize>,
    /// Number of user keys in each file of all children but the newest, which are levels.
    keys_per_file: usize,
    /// Length of the shortest value that is separated; `None` if no value is.
    separated_from: Option<usize>,
    prefetch: Prefetch,
}

/// Expected content of the iterator: key to value, newest sequence number and expiry.
type Shown = BTreeMap<Vec<u8>, (Vec<u8>, u64, Option<u64>)>;

impl World {
    fn model(&self, snapshot: u64) -> Shown {
        let mut shown = Shown::new();
        for (index, op) in self.ops.iter().enumerate() {
            let seq = index as u64 + 1;
            if seq > snapshot {
                break;
            }
            match op {
                Op::Put(key, value) => drop(shown.insert(key.clone(), (value.clone(), seq, None))),
                Op::PutExpiring(key, _, expiry) if *expiry <= NOW_MS => drop(shown.remove(key)),
                Op::PutExpiring(key, value, expiry) => {
                    shown.insert(key.clone(), (value.clone(), seq, Some(*expiry)));
                }
                Op::Delete(key) => drop(shown.remove(key)),
                Op::Merge(key, operand) => {
                    let entry = shown.entry(key.clone()).or_default();
                    entry.0.extend_from_slice(operand);
                    entry.1 = seq;
                }
                Op::DeleteRange(start, end) => {
                    shown.retain(|key, _| key < start || key >= end);
                }
            }
        }
        shown
    }

    /// The shares of the children, newest first: records, tombstones and largest sequence number.
    fn shares(&self) -> Vec<(Vec<Record>, Vec<RangeTombstone>, SeqNo)> {
        let mut shares = Vec::new();
        let mut from = 0;
        let ends = self.cuts.iter().copied().chain([self.ops.len()]);
        for end in ends {
            let (mut records, mut tombstones) = (Vec::new(), Vec::new());
            for index in from..end.max(from) {
                let seq = SeqNo(index as u64 + 1);
                match &self.ops[index] {
                    op if self.is_separated(op) => records.push(separated::record(op, seq)),
                    Op::Put(key, value) => {
                        records.push((encode(key, seq, Kind::Put), value.clone()));
                    }
                    Op::PutExpiring(key, value, expiry) => records.push((
                        encode(key, seq, Kind::PutExpiring),
                        [&expiry.to_le_bytes()[..], value].concat(),
                    )),
                    Op::Delete(key) => records.push((encode(key, seq, Kind::Delete), Vec::new())),
                    Op::Merge(key, operand) => {
                        records.push((encode(key, seq, Kind::Merge), operand.clone()));
                    }
                    Op::DeleteRange(start, end) => tombstones.push(RangeTombstone {
                        start: start.as_slice().into(),
                        end: end.as_slice().into(),
                        seq,
                    }),
                }
            }
            from = end.max(from);
            shares.push((records, tombstones, SeqNo(from as u64)));
        }
        shares.reverse();
        shares
    }

    fn is_separated(&self, op: &Op) -> bool {
        let bytes = match op {
            Op::Put(_, value) | Op::PutExpiring(_, value, _) => value.len(),
            _ => return false,
        };
        self.separated_from.is_some_and(|least| bytes >= least)
    }

    fn open(&self, view: View) -> UserIterator {
        let mut children = Vec::new();
        let mut sources: Vec<Box<dyn TombstoneSource>> = Vec::new();
        for (index, (records, tombstones, max_seq)) in self.shares().into_iter().enumerate() {
            if index == 0 {
                children.push(Child::new(Box::new(VecIterator::new(records)), max_seq));
                sources.push(Box::new(Arc::new(TombstoneSet::new(&tombstones))));
                continue;
            }
            let level = Level::cut(&records, &tombstones, self.keys_per_file);
            let deletes = level.files.iter().filter(|file| !file.tombstones.is_empty()).cloned();
            sources.push(Box::new(LevelTombstones::new(deletes.collect())));
            children.push(Child::new(Box::new(LevelIterator::new(level)), max_seq));
        }
        let merge = MergingIterator::new(children);
        let iter = UserIterator::new(merge, Some(Box::new(sources)), view);
        match self.separated_from {
            None => iter,
            Some(_) => Values::of(&self.ops).serve(iter, self.prefetch),
        }
    }
}

/// A file with the bounds that [`crate::file_meta::FileMeta`] would have.
#[derive(Clone)]
struct File {
    records: VecIterator,
    tombstones: Arc<TombstoneSet>,
    smallest: Vec<u8>,
    largest: Vec<u8>,
    largest_exclusive: bool,
    newest: SeqNo,
}

impl File {
    fn new(records: &[Record], tombstones: &[RangeTombstone]) -> Option<Self> {
        let points = || records.iter().map(|(key, _)| user_key(key));
        let starts = tombstones.iter().map(|tombstone| &*tombstone.start);
        let ends = tombstones.iter().map(|tombstone| &*tombstone.end);
        let largest = points().chain(ends).max()?.to_vec();
        Some(Self {
            smallest: points().chain(starts).min()?.to_vec(),
            largest_exclusive: !points().any(|key| key == largest),
            largest,
            newest: tombstones.iter().map(|tombstone| tombstone.seq).max().unwrap_or_default(),
            tombstones: Arc::new(TombstoneSet::new(tombstones)),
            records: VecIterator::new(records.to_vec()),
        })
    }
}

impl TombstoneFile for File {
    fn smallest(&self) -> &[u8] {
        &self.smallest
    }

    fn largest(&self) -> &[u8] {
        &self.largest
    }

    fn newest(&self) -> SeqNo {
        self.newest
    }

    fn tombstones(&self) -> Result<Arc<TombstoneSet>> {
        Ok(self.tombstones.clone())
    }
}

struct Level {
    files: Vec<File>,
    opened: Arc<AtomicUsize>,
}

impl Level {
    /// Files of `keys_per_file` user keys each, tombstones clipped to them. A tombstone's start
    /// counts as a key, so that some files have no point records.
    fn cut(records: &[Record], tombstones: &[RangeTombstone], keys_per_file: usize) -> Self {
        let mut keys: BTreeSet<&[u8]> = records.iter().map(|(key, _)| user_key(key)).collect();
        keys.extend(tombstones.iter().map(|tombstone| &*tombstone.start));
        let starts: Vec<_> = keys.into_iter().step_by(keys_per_file.max(1)).collect();
        let files = starts.iter().enumerate().filter_map(|(index, &start)| {
            let end = starts.get(index + 1).copied();
            let inside = |key: &[u8]| key >= start && end.is_none_or(|end| key < end);
            let own: Vec<_> =
                records.iter().filter(|(key, _)| inside(user_key(key))).cloned().collect();
            let (first, past) = (start.into(), end.map(Into::into));
            let clipped = tombstones.iter().cloned();
            let clipped: Vec<_> =
                clipped.filter_map(|whole| whole.clipped(&first, past.as_ref())).collect();
            File::new(&own, &clipped)
        });
        Self { files: files.collect(), opened: Arc::default() }
    }
}

impl FileOpener for Level {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        let file = &self.files[index];
        file.largest.as_slice() < key || (file.largest_exclusive && file.largest == key)
    }

    fn smallest(&self, index: usize) -> &[u8] {
        &self.files[index].smallest
    }

    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(self.files[index].records.clone()))
    }
}

/// Few keys, so that writes meet. They have several lengths, so that some are prefixes of others
/// and some differ only after the eighth byte.
fn key() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![
        (0u8..8).prop_map(|n| vec![b'a' + n]),
        (0u8..4, 0u8..4).prop_map(|(a, b)| vec![b'a' + 2 * a, b]),
        (0u8..12).prop_map(|n| [&b"commonpre"[..], &[n]].concat()),
        Just(Vec::new()),
        (0u8..3).prop_map(|n| vec![b'c', u8::MAX, n]),
    ]
}

fn op(key: impl Strategy<Value = Vec<u8>> + Clone + 'static) -> impl Strategy<Value = Op> {
    let value = || prop::collection::vec(any::<u8>(), 0..6);
    prop_oneof![
        6 => (key.clone(), value()).prop_map(|(key, value)| Op::Put(key, value)),
        3 => key.clone().prop_map(Op::Delete),
        4 => (key.clone(), value()).prop_map(|(key, value)| Op::Merge(key, value)),
        2 => (key.clone(), value(), NOW_MS - 1..NOW_MS + 3)
            .prop_map(|(key, value, expiry)| Op::PutExpiring(key, value, expiry)),
        1 => (key.clone(), key).prop_map(|(a, b)| if a <= b {
            Op::DeleteRange(a, b)
        } else {
            Op::DeleteRange(b, a)
        }),
    ]
}

/// Worlds of which half have so few keys that each key has many versions.
fn world() -> impl Strategy<Value = World> {
    let many = prop::collection::vec(op(key()), 1..150);
    let few = (0u8..4).prop_map(|n| vec![b'b' + n]);
    let few = prop::collection::vec(op(few), 1..150);
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..6);
    let separated_from = prop_oneof![Just(None), Just(Some(0)), Just(Some(3))];
    let prefetch = prop_oneof![1 => Just(Prefetch::Off), 2 => Just(Prefetch::On)];
    let values = (separated_from, prefetch);
    (prop_oneof![many, few], cuts, 1usize..8, values).prop_map(
        |(ops, cuts, keys_per_file, values)| {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(ops.len() + 1)).collect();
            cuts.sort_unstable();
            World { ops, cuts, keys_per_file, separated_from: values.0, prefetch: values.1 }
        },
    )
}

#[derive(Clone, Debug)]
enum Move {
    First,
    Last,
    Seek(Vec<u8>),
    SeekForPrev(Vec<u8>),
    Next,
    Prev,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        2 => key().prop_map(Move::Seek),
        2 => key().prop_map(Move::SeekForPrev),
        8 => Just(Move::Next),
        8 => Just(Move::Prev),
    ];
    prop::collection::vec(one, 0..40)
}

/// Checks that `iter` is at the entry that the model expects.
fn check(iter: &UserIterator, shown: &Shown, at: Option<&Vec<u8>>) {
    iter.status().expect("nothing fails here");
    let got = iter.valid().then(|| iter.key().to_vec());
    assert_eq!(got.as_ref(), at);
    if let Some(key) = at {
        let (value, seq, expiry) = &shown[key];
        assert_eq!(iter.value(), value.as_slice(), "value of {key:?}");
        assert_eq!(iter.seq(), SeqNo(*seq), "seq of {key:?}");
        assert_eq!(iter.expires_at_ms(), *expiry, "expiry of {key:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_user_iterator_shows_what_the_model_says(
        world in world(),
        snapshot in any::<prop::sample::Index>(),
        lower in prop::option::weighted(0.3, key()),
        upper in prop::option::weighted(0.3, key()),
        prefix in prop::option::weighted(0.2, key()),
        moves in moves(),
    ) {
        let snapshot = match snapshot.index(2 * world.ops.len() + 1) as u64 {
            early if early <= world.ops.len() as u64 => early,
            _ => SeqNo::MAX.0,
        };
        let operator = Arc::new(FamilyMerge::new(Arc::new(AppendMerge), "default"));
        let mut view = View::new(SeqNo(snapshot), NOW_MS);
        view.lower = lower.clone().unwrap_or_default();
        view.upper = upper.clone();
        view.operator = Some(operator);
        if let Some(prefix) = &prefix {
            view = view.with_prefix(prefix);
        }
        let mut shown = world.model(snapshot);
        shown.retain(|key, _| {
            lower.as_ref().is_none_or(|lower| key >= lower)
                && upper.as_ref().is_none_or(|upper| key < upper)
                && prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
        });

        let mut iter = world.open(view);
        iter.seek_to_first();
        for key in shown.keys() {
            check(&iter, &shown, Some(key));
            iter.next();
        }
        check(&iter, &shown, None);
        iter.seek_to_last();
        for key in shown.keys().rev() {
            check(&iter, &shown, Some(key));
            iter.prev();
        }
        check(&iter, &shown, None);

        let keys: Vec<_> = shown.keys().collect();
        let mut at: Option<usize> = None;
        for step in moves {
            match &step {
                Move::First => { iter.seek_to_first(); at = Some(0) }
                Move::Last => { iter.seek_to_last(); at = keys.len().checked_sub(1) }
                Move::Seek(key) => { iter.seek(key); at = Some(keys.partition_point(|k| *k < key)) }
                Move::SeekForPrev(key) => {
                    iter.seek_for_prev(key);
                    at = keys.partition_point(|k| *k <= key).checked_sub(1);
                }
                Move::Next => { iter.next(); at = at.map(|at| at + 1) }
                Move::Prev => { iter.prev(); at = at.and_then(|at| at.checked_sub(1)) }
            }
            at = at.filter(|&at| at < keys.len());
            check(&iter, &shown, at.map(|at| keys[at]));
        }
    }

    #[test]
    fn merges_levels_and_clips_walk_like_one_sorted_vector(
        world in world(),
        moves in moves(),
        tripled in any::<bool>(),
        bounds in (key(), prop::option::of(key())),
    ) {
        let mut shares: Vec<_> = world.shares().into_iter().map(|share| share.0).collect();
        if tripled {
            shares = [shares.clone(), shares.clone(), shares].concat();
        }
        let mut all: Vec<_> = shares.concat();
        all.sort_by(|a, b| compare(&a.0, &b.0));
        let children = || shares.iter().map(|share| {
            Child::new(Box::new(VecIterator::new(share.clone())), SeqNo::MAX)
        }).collect();
        walk(&mut MergingIterator::new(children()), &all, &moves);
        walk(&mut LevelIterator::new(Level::cut(&all, &[], world.keys_per_file)), &all, &moves);
        let range = KeyRange { start: bounds.0, end: bounds.1 };
        let merge = MergingIterator::new(children());
        let mut clipped = ClippedIterator::new(merge, range.clone());
        all.retain(|(key, _)| range.contains(user_key(key)));
        walk(&mut clipped, &all, &moves);
    }
}

/// Checks that `iter` holds `all` and moves correctly.
fn walk(iter: &mut dyn InternalIterator, all: &[Record], moves: &[Move]) {
    let seek = |key: &[u8]| encode(key, SeqNo(40), Kind::SEEK);
    let mut at: Option<usize> = None;
    for step in moves {
        match step {
            Move::First => {
                iter.seek_to_first();
                at = Some(0);
            }
            Move::Last => {
                iter.seek_to_last();
                at = all.len().checked_sub(1);
            }
            Move::Seek(key) => {
                let target = seek(key);
                iter.seek(&target);
                at = Some(all.partition_point(|(key, _)| compare(key, &target).is_lt()));
            }
            Move::SeekForPrev(key) => {
                let target = seek(key);
                iter.seek_for_prev(&target);
                at = all.partition_point(|(key, _)| compare(key, &target).is_le()).checked_sub(1);
            }
            Move::Next => {
                if let Some(here) = at {
                    iter.next();
                    at = Some(here + 1);
                }
            }
            Move::Prev => {
                if let Some(here) = at {
                    iter.prev();
                    at = here.checked_sub(1);
                }
            }
        }
        at = at.filter(|&at| at < all.len());
        iter.status().expect("nothing fails here");
        assert_eq!(iter.valid(), at.is_some());
        if let Some(at) = at {
            assert_eq!((iter.key(), iter.value()), (&all[at].0[..], &all[at].1[..]));
        }
    }
}

/// Counts the moves of a cursor, and fails at one of them.
struct Watched {
    inner: VecIterator,
    moves: Arc<AtomicUsize>,
    fails_at: usize,
}

impl Watched {
    fn boxed(inner: VecIterator, fails_at: usize) -> (Box<Self>, Arc<AtomicUsize>) {
        let moves = Arc::new(AtomicUsize::new(0));
        (Box::new(Self { inner, moves: moves.clone(), fails_at }), moves)
    }

    fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self) -> bool {
        self.moves.load(Ordering::Relaxed) >= self.fails_at
    }
}

impl InternalIterator for Watched {
    fn valid(&self) -> bool {
        !self.failed() && self.inner.valid()
    }
    fn seek_to_first(&mut self) {
        self.moved();
        self.inner.seek_to_first();
    }
    fn seek_to_last(&mut self) {
        self.moved();
        self.inner.seek_to_last();
    }
    fn seek(&mut self, target: &[u8]) {
        self.moved();
        self.inner.seek(target);
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        self.moved();
        self.inner.seek_for_prev(target);
    }
    fn next(&mut self) {
        self.moved();
        self.inner.next();
    }
    fn prev(&mut self) {
        self.moved();
        self.inner.prev();
    }
    fn key(&self) -> &[u8] {
        assert!(self.valid(), "key of an invalid cursor");
        self.inner.key()
    }
    fn value(&self) -> &[u8] {
        assert!(self.valid(), "value of an invalid cursor");
        self.inner.value()
    }
    fn status(&self) -> Result<()> {
        if self.failed() {
            return Err(Error::new(ErrorKind::Corrupt, "000007.sst: corrupt at offset 42"));
        }
        Ok(())
    }
}

/// Calls `each` at every entry, in either direction.
fn scan(iter: &mut UserIterator, backward: bool, mut each: impl FnMut(&UserIterator)) {
    if backward {
        iter.seek_to_last();
    } else {
        iter.seek_to_first();
    }
    while iter.valid() {
        each(iter);
        if backward {
            iter.prev();
        } else {
            iter.next();
        }
    }
}

fn puts(count: u64, first_seq: u64) -> VecIterator {
    let record = |n: u64| {
        (encode(&n.to_be_bytes(), SeqNo(first_seq + n), Kind::Put), n.to_le_bytes().to_vec())
    };
    VecIterator::new((0..count).map(record).collect())
}

#[test]
fn an_error_of_a_child_ends_the_scan_and_is_told() {
    for fails_at in 1..40 {
        for backward in [false, true] {
            let (watched, _) = Watched::boxed(puts(30, 1), fails_at);
            let children = vec![
                Child::new(Box::new(puts(30, 100)), SeqNo::MAX),
                Child::new(watched, SeqNo::MAX),
            ];
            let merge = MergingIterator::new(children);
            let mut iter = UserIterator::new(merge, None, View::new(SeqNo::MAX, 0));
            let mut seen = 0;
            scan(&mut iter, backward, |_| seen += 1);
            if fails_at <= 30 {
                assert!(seen < 30, "a missing child must not look like an end: {fails_at}");
                assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Corrupt);
                assert!(iter.status().unwrap_err().context().contains("offset 42"));
            } else if fails_at > 31 {
                assert_eq!(seen, 30);
                iter.status().unwrap();
            }
        }
    }
}

struct Unopenable(Level, usize);

impl FileOpener for Unopenable {
    fn count(&self) -> usize {
        self.0.count()
    }
    fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        self.0.ends_before(index, key)
    }
    fn smallest(&self, index: usize) -> &[u8] {
        self.0.smallest(index)
    }
    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>> {
        if index == self.1 {
            return Err(Error::new(ErrorKind::Io, "cannot open 000008.sst"));
        }
        self.0.open(index)
    }
}

fn ten_files() -> Level {
    let records: Vec<_> =
        (0..100u8).map(|n| (encode(&[n], SeqNo(1), Kind::Put), vec![n])).collect();
    Level::cut(&records, &[], 10)
}

#[test]
fn seek_starts_afresh_after_a_file_failed_to_open() {
    let mut iter = LevelIterator::new(Unopenable(ten_files(), 4));
    iter.seek_to_first();
    let mut seen = 0;
    while iter.valid() {
        seen += 1;
        iter.next();
    }
    assert_eq!(seen, 40);
    assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Io);
    iter.seek(&encode(&[60], SeqNo::MAX, Kind::SEEK));
    assert!(iter.valid());
    iter.status().unwrap();
    assert_eq!(iter.value(), [60]);
}

#[test]
fn files_are_opened_when_the_cursor_gets_there_and_once() {
    let level = ten_files();
    let opened = level.opened.clone();
    let mut iter = LevelIterator::new(level);
    assert_eq!(opened.load(Ordering::Relaxed), 0);
    for from in [30, 32, 31] {
        iter.seek(&encode(&[from], SeqNo::MAX, Kind::SEEK));
        assert_eq!(iter.value(), [from]);
    }
    assert_eq!(opened.load(Ordering::Relaxed), 1, "seeks within a file keep it open");
    iter.seek(&encode(&[35], SeqNo::MAX, Kind::SEEK));
    for n in 35..45 {
        assert_eq!(iter.value(), [n]);
        iter.next();
    }
    assert_eq!(opened.load(Ordering::Relaxed), 2);
}

#[test]
fn a_deleted_range_is_jumped_over_in_older_children() {
    let count = 10_000;
    for backward in [false, true] {
        let (old, moves) = Watched::boxed(puts(count, 1), usize::MAX);
        let newer = encode(&500u64.to_be_bytes(), SeqNo(count + 50), Kind::Put);
        let newer = VecIterator::new(vec![(newer, b"new".to_vec())]);
        let children =
            vec![Child::new(Box::new(newer), SeqNo::MAX), Child::new(old, SeqNo(count + 1))];
        let deleted = RangeTombstone {
            start: 10u64.to_be_bytes()[..].into(),
            end: (count - 10).to_be_bytes()[..].into(),
            seq: SeqNo(count + 10),
        };
        let source: Box<dyn TombstoneSource> = Box::new(Arc::new(TombstoneSet::new(&[deleted])));
        let merge = MergingIterator::new(children);
        let mut iter = UserIterator::new(merge, Some(source), View::new(SeqNo::MAX, 0));
        let mut seen = Vec::new();
        scan(&mut iter, backward, |iter| seen.push(iter.key().to_vec()));
        seen.sort_unstable();
        let expected = (0..10).chain([500]).chain(count - 10..count);
        let expected: Vec<_> = expected.map(|n| n.to_be_bytes().to_vec()).collect();
        assert_eq!(seen, expected);
        let moves = moves.load(Ordering::Relaxed);
        assert!(moves < 60, "{moves} moves (backward: {backward})");
    }
}

#[test]
fn many_versions_of_a_key_cost_a_seek_and_not_a_walk() {
    let mut records: Vec<_> =
        (1..5000).map(|seq| (encode(b"hot", SeqNo(seq), Kind::Put), vec![1])).collect();
    records.push((encode(b"a", SeqNo(1), Kind::Put), vec![2]));
    records.push((encode(b"z", SeqNo(1), Kind::Put), vec![3]));
    for snapshot in [1, 2500, 4999] {
        for backward in [false, true] {
            let (watched, moves) = Watched::boxed(VecIterator::new(records.clone()), usize::MAX);
            let merge = MergingIterator::new(vec![Child::new(watched, SeqNo::MAX)]);
            let mut iter = UserIterator::new(merge, None, View::new(SeqNo(snapshot), 0));
            let mut keys = Vec::new();
            scan(&mut iter, backward, |iter| keys.push((iter.key().to_vec(), iter.seq().0)));
            keys.sort();
            let expected = [(b"a".to_vec(), 1), (b"hot".to_vec(), snapshot), (b"z".to_vec(), 1)];
            assert_eq!(keys, expected);
            assert!(moves.load(Ordering::Relaxed) < 40, "{}", moves.load(Ordering::Relaxed));
        }
    }
}

#[test]
fn operand_without_operator_and_damaged_record_are_errors() {
    let merge_record = (encode(b"k", SeqNo(1), Kind::Merge), b"x".to_vec());
    let unknown_kind = (encode(b"k", SeqNo(1), Kind::SEEK), Vec::new());
    let no_expiry = (encode(b"k", SeqNo(1), Kind::PutExpiring), vec![0; 7]);
    let range_delete = (encode(b"k", SeqNo(1), Kind::RangeDelete), Vec::new());
    for (record, kind) in [
        (merge_record, ErrorKind::InvalidArgument),
        (unknown_kind, ErrorKind::Corrupt),
        (no_expiry, ErrorKind::Corrupt),
        (range_delete, ErrorKind::Corrupt),
    ] {
        let child = Child::new(Box::new(VecIterator::new(vec![record])), SeqNo::MAX);
        let merge = MergingIterator::new(vec![child]);
        let mut iter = UserIterator::new(merge, None, View::new(SeqNo::MAX, 0));
        iter.seek_to_first();
        assert!(!iter.valid());
        assert_eq!(iter.status().unwrap_err().kind(), kind);
        assert!(iter.status().unwrap_err().context().contains("\"k\""));
        iter.seek_to_last();
        assert!(!iter.valid());
        assert_eq!(iter.status().unwrap_err().kind(), kind);
    }
}

#[test]
fn prefixes_end_before_the_next_key_that_lacks_them() {
    assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
    assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
    assert_eq!(prefix_end(b"\xff"), None);
    assert_eq!(prefix_end(b""), None);
}

#[test]
fn tombstone_spares_records_of_its_own_sequence_number() {
    let records = [(b"b", 4), (b"c", 5), (b"d", 6)]
        .map(|(key, seq)| (encode(key, SeqNo(seq), Kind::Put), Vec::new()));
    let all = RangeTombstone { start: b"a"[..].into(), end: b"z"[..].into(), seq: SeqNo(5) };
    let source: Box<dyn TombstoneSource> = Box::new(Arc::new(TombstoneSet::new(&[all])));
    let child = Child::new(Box::new(VecIterator::new(records.to_vec())), SeqNo(6));
    let merge = MergingIterator::new(vec![child]);
    let mut iter = UserIterator::new(merge, Some(source), View::new(SeqNo::MAX, 0));
    iter.seek_to_first();
    assert_eq!(iter.key(), b"c");
    iter.next();
    assert_eq!(iter.key(), b"d");
    iter.prev();
    assert_eq!(iter.key(), b"c");
    iter.prev();
    assert!(!iter.valid());
}
