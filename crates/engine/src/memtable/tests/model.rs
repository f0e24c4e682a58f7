//! The publication protocol of [`crate::memtable::node`] under every interleaving that a model
//! checker tries. Tests also prove that the checker would find the two bugs that the protocol
//! prevents.
//!
//! The functions [`publish`] and [`snapshot`] are those of production; only the cells belong to the
//! checker. It explores interleavings of sequentially consistent steps. `node` gives the reasons
//! for the fences that weaker memory needs; they are not modelled here.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use shuttle::thread;

use crate::memtable::node::{Cells, ORDER_WORDS, Order, Snapshot, publish, snapshot};

#[derive(Default)]
struct Model {
    word: AtomicU64,
    orders: [[AtomicU64; ORDER_WORDS]; 2],
    children: [AtomicU32; 2],
}

impl Cells for Model {
    fn word(&self, ordering: Ordering) -> u64 {
        self.word.load(ordering)
    }
    fn set_word(&self, word: u64) {
        self.word.store(word, Ordering::Release);
    }
    fn order(&self, buffer: usize, at: usize) -> u64 {
        self.orders[buffer][at].load(Ordering::Relaxed)
    }
    fn set_order(&self, buffer: usize, at: usize, word: u64) {
        self.orders[buffer][at].store(word, Ordering::Relaxed);
    }
    fn fence(&self, ordering: Ordering) {
        fence(ordering);
    }
}

/// An order whose every byte names the publication that it belongs to.
fn marked(publication: usize) -> Order {
    [publication as u8; ORDER_WORDS * 8]
}

fn orders_are_whole(read: fn(&Model) -> Snapshot) {
    let node = Arc::new(Model::default());
    let writer = {
        let node = Arc::clone(&node);
        thread::spawn(move || (1..=5).for_each(|count| publish(&*node, &marked(count), count)))
    };
    let mut last = 0;
    for _ in 0..3 {
        let snap = read(&node);
        assert!(snap.count() >= last, "an order went back in time");
        last = snap.count();
        assert_eq!(snap.order, marked(snap.count()), "a torn order");
    }
    writer.join().unwrap();
    assert_eq!(read(&node).count(), 5);
}

fn without_recheck(node: &Model) -> Snapshot {
    let word = node.word(Ordering::Acquire);
    let mut order = marked(0);
    for (at, bytes) in order.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&node.order((word >> 8 & 1) as usize, at).to_ne_bytes());
    }
    Snapshot { word, order }
}

#[test]
fn readers_never_see_a_torn_order() {
    shuttle::check_random(|| orders_are_whole(snapshot), 3000);
}

#[test]
#[should_panic(expected = "a torn order")]
fn without_the_recheck_a_torn_order_is_seen() {
    shuttle::check_random(|| orders_are_whole(without_recheck), 3000);
}

/// Child 0 holds keys 1 and 5 and is split into child 1 (key 1) and child 2 (keys 5 and 6).
const KEYS_OF: [&[u8]; 3] = [&[1, 5], &[1], &[5, 6]];

/// Searches key 5, which was in child 0 from the start, while the split goes on.
fn acknowledged_keys_are_found(recheck: bool) {
    let parent = Arc::new(Model::default());
    publish(&*parent, &marked(0), 1);
    let writer = {
        let parent = Arc::clone(&parent);
        thread::spawn(move || {
            parent.children[1].store(2, Ordering::Release);
            let mut order = marked(0);
            order[1] = 1;
            publish(&*parent, &order, 2);
            parent.children[0].store(1, Ordering::Release);
        })
    };
    for _ in 0..2 {
        let child = loop {
            let snap = snapshot(&*parent);
            let child = parent.children[snap.slot(snap.count() - 1)].load(Ordering::Acquire);
            if !recheck || parent.word(Ordering::Relaxed) == snap.word {
                break child;
            }
        };
        assert!(KEYS_OF[child as usize].contains(&5), "an acknowledged key is missing");
    }
    writer.join().unwrap();
}

#[test]
fn a_split_hides_no_key() {
    shuttle::check_random(|| acknowledged_keys_are_found(true), 3000);
}

#[test]
#[should_panic(expected = "an acknowledged key is missing")]
fn without_the_recheck_a_split_hides_a_key() {
    shuttle::check_random(|| acknowledged_keys_are_found(false), 3000);
}
