//! Speed of the merging and the user iterator over cursors in memory, on one core.
//!
//! `cargo bench -p archipelago-engine --bench iter_bench -- [entries]`: for 1, 2, 5 and 20
//! children, with entries distributed to the children at random ("mixed") or in runs of 1000
//! ("runs"). Prints million entries per second, the best of three runs.

use std::sync::Arc;

use archipelago_base::SeqNo;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::Rng;
use archipelago_engine::iter::{
    Child, InternalIterator, MergingIterator, TombstoneSource, UserIterator, VecIterator, View,
};
use archipelago_engine::key::{Kind, encode};
use archipelago_engine::tombstone::{RangeTombstone, TombstoneSet};

fn main() {
    let entries = std::env::args()
        .skip(1)
        .find(|argument| argument != "--bench")
        .and_then(|arg| arg.parse().ok())
        .unwrap_or(2_000_000u64);
    println!("{entries} entries of 16 B keys and 100 B values, million entries/s");
    println!(
        "{:>8} {:>6} | {:>10} {:>10} | {:>8} {:>8} {:>10}",
        "children", "order", "merge next", "merge prev", "next", "prev", "tombstones"
    );
    for children in [1, 2, 5, 20] {
        for run in [1, 1000] {
            let sources = deal(entries, children, run);
            let walk = |f: &dyn Fn(&[VecIterator]) -> u64| best_of_three(entries, &|| f(&sources));
            println!(
                "{children:>8} {:>6} | {:>10.1} {:>10.1} | {:>8.1} {:>8.1} {:>10.1}",
                if run == 1 { "mixed" } else { "runs" },
                walk(&merge_forward),
                walk(&merge_backward),
                walk(&|sources| user_forward(sources, None)),
                walk(&user_backward),
                walk(&|sources| user_forward(sources, Some(far_tombstones()))),
            );
        }
    }
}

/// Distributes `entries` keys in runs of `run`, each run to a random child.
fn deal(entries: u64, children: usize, run: u64) -> Vec<VecIterator> {
    let mut rng = Rng::with_seed(7);
    let mut shares = vec![Vec::new(); children];
    let mut child = 0;
    for n in 0..entries {
        if n % run == 0 {
            child = rng.usize(..children);
        }
        let key = [&n.to_be_bytes()[..], b"00000000"].concat();
        shares[child].push((encode(&key, SeqNo(n + 1), Kind::Put), vec![b'v'; 100]));
    }
    shares.into_iter().map(VecIterator::new).collect()
}

/// Million entries per second.
fn best_of_three(entries: u64, walk: &dyn Fn() -> u64) -> f64 {
    let clock = SystemClock::new();
    let runs = (0..3).map(|_| {
        let start = clock.now_ns();
        let seen = walk();
        assert_eq!(seen, entries, "every entry is seen once");
        clock.now_ns() - start
    });
    entries as f64 * 1000.0 / runs.min().unwrap_or(1) as f64
}

fn merge(sources: &[VecIterator]) -> MergingIterator {
    let child = |source: &VecIterator| Child::new(Box::new(source.clone()), SeqNo::MAX);
    MergingIterator::new(sources.iter().map(child).collect())
}

fn user(sources: &[VecIterator], tombstones: Option<Box<dyn TombstoneSource>>) -> UserIterator {
    UserIterator::new(merge(sources), tombstones, View::new(SeqNo::MAX, 0))
}

/// Tombstones that exist but delete nothing.
fn far_tombstones() -> Box<dyn TombstoneSource> {
    let far = RangeTombstone { start: [0xf0].into(), end: [0xff].into(), seq: SeqNo(1) };
    Box::new(Arc::new(TombstoneSet::new(&[far])))
}

fn merge_forward(sources: &[VecIterator]) -> u64 {
    let mut iter = merge(sources);
    let mut seen = 0;
    iter.seek_to_first();
    while iter.valid() {
        seen += u64::from(!iter.key().is_empty() && !iter.value().is_empty());
        iter.next();
    }
    seen
}

fn merge_backward(sources: &[VecIterator]) -> u64 {
    let mut iter = merge(sources);
    let mut seen = 0;
    iter.seek_to_last();
    while iter.valid() {
        seen += u64::from(!iter.key().is_empty() && !iter.value().is_empty());
        iter.prev();
    }
    seen
}

fn user_forward(sources: &[VecIterator], tombstones: Option<Box<dyn TombstoneSource>>) -> u64 {
    let mut iter = user(sources, tombstones);
    let mut seen = 0;
    iter.seek_to_first();
    while iter.valid() {
        seen += u64::from(!iter.key().is_empty() && !iter.value().is_empty());
        iter.next();
    }
    seen
}

fn user_backward(sources: &[VecIterator]) -> u64 {
    let mut iter = user(sources, None);
    let mut seen = 0;
    iter.seek_to_last();
    while iter.valid() {
        seen += u64::from(!iter.key().is_empty() && !iter.value().is_empty());
        iter.prev();
    }
    seen
}
