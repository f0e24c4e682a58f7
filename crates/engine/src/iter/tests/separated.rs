//! Iterators over separated values: batches, limits, changes of direction and errors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::{Error, FileNo, Result, SeqNo};
use parking_lot::Mutex;

use super::{NOW_MS, Op, Record};
use crate::iter::{
    Child, MergingIterator, Prefetch, UserIterator, ValueSource, VecIterator, View, WantedValue,
};
use crate::key::{Kind, encode};
use crate::pinned::PinnedSlice;
use crate::value_ref::Reference;

/// The values of a list of writes, whose sequence numbers are their positions from 1.
#[derive(Default)]
pub(super) struct Values {
    by_seq: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    /// Writes whose values cannot be read.
    damaged: BTreeSet<u64>,
    /// Number of values of each fetch.
    fetches: Arc<Mutex<Vec<usize>>>,
    budget: Option<Arc<ByteBudget>>,
}

impl Values {
    pub(super) fn of(ops: &[Op]) -> Self {
        let mut by_seq = BTreeMap::new();
        for (at, op) in ops.iter().enumerate() {
            if let Op::Put(key, value) | Op::PutExpiring(key, value, _) = op {
                by_seq.insert(at as u64 + 1, (key.clone(), value.clone()));
            }
        }
        Self { by_seq, ..Self::default() }
    }

    pub(super) fn serve(self, iter: UserIterator, prefetch: Prefetch) -> UserIterator {
        let budget = self.budget.clone().unwrap_or_else(ByteBudget::unlimited);
        iter.with_values(Box::new(self), prefetch, budget)
    }

    fn value(&self, wanted: WantedValue<'_>) -> Result<PinnedSlice> {
        let (key, value) = &self.by_seq[&wanted.seq.0];
        assert_eq!(wanted.key, key, "the key of write {}", wanted.seq);
        assert_eq!(wanted.reference.raw_bytes as usize, value.len());
        match self.damaged.contains(&wanted.seq.0) {
            true => Err(Error::invalid(format!("write {} is damaged", wanted.seq))),
            false => Ok(PinnedSlice::owned(value.clone())),
        }
    }
}

impl ValueSource for Values {
    fn fetch(&self, wanted: WantedValue<'_>) -> Result<PinnedSlice> {
        self.fetches.lock().push(1);
        self.value(wanted)
    }

    fn fetch_many(&self, wanted: &[WantedValue<'_>]) -> Result<Vec<PinnedSlice>> {
        self.fetches.lock().push(wanted.len());
        wanted.iter().map(|&one| self.value(one)).collect()
    }
}

/// The record of a put whose value is separated.
pub(super) fn record(op: &Op, seq: SeqNo) -> Record {
    let (key, value, expiry_unix_ms) = match op {
        Op::Put(key, value) => (key, value, None),
        Op::PutExpiring(key, value, expiry) => (key, value, Some(*expiry)),
        _ => unreachable!("only puts are separated"),
    };
    let len = value.len() as u32;
    let reference = Reference {
        file_no: FileNo(1 + seq.0 % 3),
        offset: Some(seq.0),
        stored_bytes: len,
        raw_bytes: len,
        expiry_unix_ms,
    };
    let mut stored = Vec::new();
    reference.encode(&mut stored);
    (encode(key, seq, Kind::Indirect), stored)
}

fn key_of(n: usize) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// `count` entries with separated values of `bytes` each.
fn entries(count: usize, bytes: usize) -> Vec<Op> {
    (0..count).map(|n| Op::Put(key_of(n), vec![n as u8; bytes])).collect()
}

struct Scan {
    iter: UserIterator,
    fetches: Arc<Mutex<Vec<usize>>>,
    budget: Arc<ByteBudget>,
}

fn scan(ops: &[Op], damaged: &[u64], prefetch: Prefetch, keys_only: bool) -> Scan {
    let seqs = (1..).map(SeqNo);
    let mut records: Vec<Record> = ops.iter().zip(seqs).map(|(op, seq)| record(op, seq)).collect();
    records.sort_by(|a, b| crate::key::compare(&a.0, &b.0));
    let children = vec![Child::new(Box::new(VecIterator::new(records)), SeqNo::MAX)];
    let view = View { keys_only, ..View::new(SeqNo::MAX, NOW_MS) };
    let iter = UserIterator::new(MergingIterator::new(children), None, view);
    let budget = ByteBudget::unlimited();
    let values = Values {
        damaged: damaged.iter().copied().collect(),
        budget: Some(Arc::clone(&budget)),
        ..Values::of(ops)
    };
    let fetches = Arc::clone(&values.fetches);
    Scan { iter: values.serve(iter, prefetch), fetches, budget }
}

impl Scan {
    fn taken(&self) -> Vec<usize> {
        std::mem::take(&mut self.fetches.lock())
    }

    fn check(&self, n: usize) {
        self.iter.status().unwrap();
        assert!(self.iter.valid(), "nothing is shown instead of {n}");
        assert_eq!(self.iter.key(), key_of(n));
        assert!(self.iter.value().iter().all(|&byte| byte == n as u8), "value of {n}");
        assert_eq!(self.iter.seq(), SeqNo(n as u64 + 1));
    }
}

#[test]
fn batches_double_in_both_directions() {
    let ops = entries(300, 10);
    let expected = [1, 1, 2, 4, 8, 16, 32, 64, 64, 64, 44];
    let mut scan = scan(&ops, &[], Prefetch::On, false);
    scan.iter.seek_to_first();
    for n in 0..300 {
        scan.check(n);
        scan.iter.next();
    }
    assert!(!scan.iter.valid());
    assert_eq!(scan.taken(), expected);
    scan.iter.seek_to_last();
    for n in (0..300).rev() {
        scan.check(n);
        scan.iter.prev();
    }
    assert!(!scan.iter.valid());
    assert_eq!(scan.taken(), expected);
}

#[test]
fn iterator_without_prefetch_fetches_each_value_alone() {
    let mut scan = scan(&entries(20, 10), &[], Prefetch::Off, false);
    scan.iter.seek_to_first();
    for n in 0..20 {
        scan.check(n);
        scan.iter.next();
    }
    assert_eq!(scan.taken(), [1; 20]);
}

#[test]
fn seek_and_turn_drop_the_queue() {
    let mut scan = scan(&entries(200, 10), &[], Prefetch::On, false);
    scan.iter.seek(&key_of(50));
    for n in 50..60 {
        scan.check(n);
        scan.iter.next();
    }
    scan.check(60);
    assert_eq!(scan.taken(), [1, 1, 2, 4, 8]);
    for n in (55..60).rev() {
        scan.iter.prev();
        scan.check(n);
    }
    assert_eq!(scan.taken(), [1, 1, 2, 4]);
    scan.iter.next();
    scan.check(56);
    scan.iter.next();
    scan.check(57);
    scan.iter.seek(&key_of(7));
    scan.check(7);
    scan.iter.seek_for_prev(&key_of(9));
    scan.check(9);
    assert_eq!(scan.taken(), [1, 1, 1, 1]);
    assert_eq!(scan.budget.used_bytes(MemoryClass::BlockCache), 0);
}

#[test]
fn batch_ends_at_the_limit_of_bytes() {
    let bytes = 300 << 10;
    let mut scan = scan(&entries(30, bytes), &[], Prefetch::On, false);
    scan.iter.seek_to_first();
    let mut most = 0;
    for n in 0..30 {
        scan.check(n);
        most = most.max(scan.budget.used_bytes(MemoryClass::BlockCache));
        scan.iter.next();
    }
    let fetches = scan.taken();
    assert_eq!(fetches[..5], [1, 1, 2, 4, 4]);
    assert_eq!(fetches.iter().sum::<usize>(), 30);
    let limit = 4 * bytes as u64;
    assert!((limit..limit + 4096).contains(&most), "{most} bytes were charged");
}

#[test]
fn values_over_the_limit_are_fetched_alone() {
    let mut scan = scan(&entries(8, 3 << 20), &[], Prefetch::On, false);
    scan.iter.seek_to_first();
    for n in 0..8 {
        scan.check(n);
        scan.iter.next();
    }
    assert_eq!(scan.taken(), [1; 8]);
}

#[test]
fn error_is_shown_at_its_entry() {
    let ops = entries(100, 10);
    for damaged in [0, 1, 2, 3, 40, 41, 98, 99] {
        for prefetch in [Prefetch::Off, Prefetch::On] {
            let mut scan = scan(&ops, &[damaged as u64 + 1], prefetch, false);
            scan.iter.seek_to_first();
            for n in 0..damaged {
                scan.check(n);
                scan.iter.next();
            }
            assert!(!scan.iter.valid());
            let error = scan.iter.status().unwrap_err();
            assert!(error.to_string().contains("is damaged"), "{error}");
            scan.iter.next();
            assert!(!scan.iter.valid());
            scan.iter.seek_to_last();
            for n in (damaged + 1..100).rev() {
                scan.check(n);
                scan.iter.prev();
            }
            assert!(scan.iter.status().is_err());
            scan.iter.seek(&key_of(damaged + 1));
            assert_eq!(scan.iter.status().is_ok() && scan.iter.valid(), damaged < 99);
        }
    }
}

#[test]
fn view_of_keys_only_fetches_nothing() {
    let mut ops = entries(50, 10);
    ops.push(Op::PutExpiring(key_of(50), b"value".to_vec(), NOW_MS + 5));
    ops.push(Op::PutExpiring(key_of(51), b"value".to_vec(), NOW_MS));
    let mut scan = scan(&ops, &[], Prefetch::On, true);
    scan.iter.seek_to_first();
    for n in 0..51 {
        scan.check(n);
        assert_eq!(scan.iter.value(), b"");
        assert_eq!(scan.iter.expires_at_ms(), (n == 50).then_some(NOW_MS + 5));
        scan.iter.next();
    }
    assert!(!scan.iter.valid());
    scan.iter.seek_to_last();
    for n in (0..51).rev() {
        scan.check(n);
        assert_eq!(scan.iter.value(), b"");
        scan.iter.prev();
    }
    assert_eq!(scan.taken(), [0; 0]);
}

#[test]
fn reference_without_value_files_is_damage() {
    let records = vec![record(&Op::Put(b"key".to_vec(), b"value".to_vec()), SeqNo(1))];
    let children = vec![Child::new(Box::new(VecIterator::new(records)), SeqNo::MAX)];
    let merge = MergingIterator::new(children);
    let mut iter = UserIterator::new(merge, None, View::new(SeqNo::MAX, NOW_MS));
    for back in [false, true] {
        if back {
            iter.seek_to_last();
        } else {
            iter.seek_to_first();
        }
        assert!(!iter.valid());
        let error = iter.status().unwrap_err();
        assert_eq!(error.kind(), archipelago_base::ErrorKind::Corrupt);
    }
}
