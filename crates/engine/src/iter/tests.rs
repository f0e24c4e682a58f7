//! The iterators against a model: a list of writes, applied key by key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use proptest::prelude::*;

use super::*;
use crate::extension::{AppendMerge, MergeOperator};
use crate::key::{Kind, compare, encode, user_key};
use crate::tombstone::{RangeTombstone, TombstoneSet};

const NOW_MS: u64 = 1000;

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, Vec<u8>),
    PutExpiring(Vec<u8>, Vec<u8>, u64),
    Delete(Vec<u8>),
    Merge(Vec<u8>, Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// A write with its sequence number (its position) and the child that it goes to.
#[derive(Clone, Debug)]
struct World {
    ops: Vec<Op>,
    /// Ends of the children's shares of `ops`, oldest child first.
    cuts: Vec<usize>,
    /// The oldest child is a level of files that hold this many user keys each.
    keys_per_file: usize,
}

/// What the iterator must show: key to value, newest sequence number and expiry.
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
    fn shares(&self) -> Vec<(Vec<(Vec<u8>, Vec<u8>)>, Vec<RangeTombstone>, SeqNo)> {
        let mut shares = Vec::new();
        let mut from = 0;
        let ends = self.cuts.iter().copied().chain([self.ops.len()]);
        for end in ends {
            let (mut records, mut tombstones) = (Vec::new(), Vec::new());
            for index in from..end.max(from) {
                let seq = SeqNo(index as u64 + 1);
                match &self.ops[index] {
                    Op::Put(key, value) => records.push((encode(key, seq, Kind::Put), value.clone())),
                    Op::PutExpiring(key, value, expiry) => records.push((
                        encode(key, seq, Kind::PutExpiring),
                        [&expiry.to_le_bytes()[..], value].concat(),
                    )),
                    Op::Delete(key) => records.push((encode(key, seq, Kind::Delete), Vec::new())),
                    Op::Merge(key, operand) => {
                        records.push((encode(key, seq, Kind::Merge), operand.clone()));
                    }
                    Op::DeleteRange(start, end) => tombstones.push(RangeTombstone {
                        start: start.clone(),
                        end: end.clone(),
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

    fn open(&self, view: View) -> UserIterator {
        let mut shares = self.shares();
        let oldest = shares.pop().expect("there is always one share");
        let mut children = Vec::new();
        let mut sources: Vec<Box<dyn TombstoneSource>> = Vec::new();
        for (records, tombstones, max_seq) in shares {
            children.push(Child::new(Box::new(VecIterator::new(records)), max_seq));
            sources.push(Box::new(Arc::new(TombstoneSet::new(&tombstones))));
        }
        let level = Level::cut(oldest.0, &oldest.1, self.keys_per_file);
        let deletes = level.files.iter().filter(|file| !file.tombstones.is_empty()).cloned();
        sources.push(Box::new(LevelTombstones::new(deletes.collect())));
        children.push(Child::new(Box::new(LevelIterator::new(level)), oldest.2));
        UserIterator::new(MergingIterator::new(children), Some(Box::new(sources)), view)
    }
}

#[derive(Clone)]
struct File {
    records: VecIterator,
    tombstones: Arc<TombstoneSet>,
    smallest: Vec<u8>,
    /// Past all that the file says; `None` for the last of the level.
    end: Option<Vec<u8>>,
}

impl TombstoneFile for File {
    fn smallest(&self) -> &[u8] {
        &self.smallest
    }

    fn largest(&self) -> &[u8] {
        self.end.as_deref().unwrap_or(b"\xff\xff")
    }

    fn tombstones(&self) -> Result<Arc<TombstoneSet>> {
        Ok(self.tombstones.clone())
    }
}

struct Level {
    files: Vec<File>,
}

impl Level {
    /// Files of `keys_per_file` user keys each, tombstones clipped to them; a key of a tombstone
    /// bound counts as well, so that some files have no point records.
    fn cut(
        records: Vec<(Vec<u8>, Vec<u8>)>,
        tombstones: &[RangeTombstone],
        keys_per_file: usize,
    ) -> Self {
        let mut keys: BTreeSet<Vec<u8>> =
            records.iter().map(|(key, _)| user_key(key).to_vec()).collect();
        keys.extend(tombstones.iter().map(|tombstone| tombstone.start.clone()));
        let starts: Vec<_> = keys.into_iter().step_by(keys_per_file.max(1)).collect();
        let files = starts.iter().enumerate().map(|(index, start)| {
            let end = starts.get(index + 1);
            let inside = |key: &[u8]| key >= start.as_slice() && end.is_none_or(|end| key < end);
            let own = records.iter().filter(|(key, _)| inside(user_key(key))).cloned().collect();
            let clipped: Vec<_> = tombstones
                .iter()
                .filter_map(|tombstone| tombstone.clipped(start, end.map(Vec::as_slice)))
                .collect();
            File {
                records: VecIterator::new(own),
                tombstones: Arc::new(TombstoneSet::new(&clipped)),
                smallest: start.clone(),
                end: end.cloned(),
            }
        });
        Self { files: files.collect() }
    }
}

impl FileOpener for Level {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        self.files[index].end.as_deref().is_some_and(|end| end <= key)
    }

    fn smallest(&self, index: usize) -> &[u8] {
        &self.files[index].smallest
    }

    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>> {
        Ok(Box::new(self.files[index].records.clone()))
    }
}

/// Few keys, so that they meet; of several lengths, so that one is a prefix of another and some
/// differ only past the eighth byte.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (0u8..8).prop_map(|n| vec![b'a' + n]),
        (0u8..4, 0u8..4).prop_map(|(a, b)| vec![b'a' + 2 * a, b]),
        (0u8..12).prop_map(|n| [&b"commonpre"[..], &[n]].concat()),
        Just(Vec::new()),
        (0u8..3).prop_map(|n| vec![b'c', u8::MAX, n]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let value = || prop::collection::vec(any::<u8>(), 0..6);
    prop_oneof![
        6 => (key(), value()).prop_map(|(key, value)| Op::Put(key, value)),
        3 => key().prop_map(Op::Delete),
        4 => (key(), value()).prop_map(|(key, value)| Op::Merge(key, value)),
        2 => (key(), value(), NOW_MS - 1..NOW_MS + 3)
            .prop_map(|(key, value, expiry)| Op::PutExpiring(key, value, expiry)),
        1 => (key(), key()).prop_map(|(a, b)| if a <= b {
            Op::DeleteRange(a, b)
        } else {
            Op::DeleteRange(b, a)
        }),
    ]
}

fn world() -> impl Strategy<Value = World> {
    (prop::collection::vec(op(), 1..150), prop::collection::vec(any::<prop::sample::Index>(), 0..6), 1usize..8)
        .prop_map(|(ops, cuts, keys_per_file)| {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(ops.len() + 1)).collect();
            cuts.sort_unstable();
            World { ops, cuts, keys_per_file }
        })
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

/// Checks that `iter` stands where the model says.
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
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

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
        let operator: Arc<dyn MergeOperator> = Arc::new(AppendMerge);
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
    fn a_merge_of_cursors_walks_like_one_sorted_vector(
        world in world(),
        moves in moves(),
        tripled in any::<bool>(),
    ) {
        let mut shares: Vec<_> = world.shares().into_iter().map(|share| share.0).collect();
        if tripled {
            shares = [shares.clone(), shares.clone(), shares].concat();
        }
        let mut all: Vec<_> = shares.concat();
        all.sort_by(|a, b| compare(&a.0, &b.0));
        let children = shares.into_iter().map(|share| {
            Child::new(Box::new(VecIterator::new(share)), SeqNo::MAX)
        });
        let mut iter = MergingIterator::new(children.collect());
        let mut at: Option<usize> = None;
        for step in moves {
            let seek = |key: &[u8]| encode(key, SeqNo(world.ops.len() as u64 / 2), Kind::SEEK);
            match &step {
                Move::First => { iter.seek_to_first(); at = Some(0) }
                Move::Last => { iter.seek_to_last(); at = all.len().checked_sub(1) }
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
                Move::Next => if let Some(here) = at { iter.next(); at = Some(here + 1) },
                Move::Prev => if let Some(here) = at { iter.prev(); at = here.checked_sub(1) },
            }
            at = at.filter(|&at| at < all.len());
            prop_assert_eq!(iter.valid(), at.is_some());
            if let Some(at) = at {
                prop_assert_eq!((iter.key(), iter.value()), (&all[at].0[..], &all[at].1[..]));
            }
        }
    }
}
