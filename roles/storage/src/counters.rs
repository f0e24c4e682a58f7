//! Counters of a node since its life began.
//!
//! The parts of the node share one [`Counters`]. [`Counters::report`] turns it into the form of
//! messages.
//!
//! Invariant: no counter shrinks.
//!
//! Thread-safety: any thread may call any method. Failure: none. Cost: one or two relaxed atomic
//! additions per call.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_env::FileClass;
use archipelago_store::nodes::wire::{ClassTraffic, RefusalWhy, StorageCounters};

/// All classes of files, by their codes.
const CLASSES: [FileClass; 5] =
    [FileClass::Wal, FileClass::Sst, FileClass::Manifest, FileClass::Other, FileClass::ValueSst];

#[derive(Debug, Default)]
struct Traffic {
    operations: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    fn add(&self, bytes: u64) {
        add(&self.operations, 1);
        add(&self.bytes, bytes);
    }
}

/// Counters of a node.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    refused: AtomicU64,
    refused_fenced: AtomicU64,
    refused_busy: AtomicU64,
    refused_full: AtomicU64,
    damaged: AtomicU64,
    syncs: AtomicU64,
    reads: [Traffic; CLASSES.len()],
    writes: [Traffic; CLASSES.len()],
}

impl Counters {
    /// A request reached the node.
    pub(crate) fn note_request(&self) {
        add(&self.requests, 1);
    }

    /// A request was refused.
    pub(crate) fn note_refusal(&self, why: RefusalWhy) {
        add(&self.refused, 1);
        match why {
            RefusalWhy::Fenced => add(&self.refused_fenced, 1),
            RefusalWhy::Busy => add(&self.refused_busy, 1),
            RefusalWhy::Full => add(&self.refused_full, 1),
            _ => {}
        }
    }

    /// Pieces or groups did not have their checksums.
    pub(crate) fn note_damage(&self, pieces: u64) {
        add(&self.damaged, pieces);
    }

    /// A file was synced.
    pub(crate) fn note_sync(&self) {
        add(&self.syncs, 1);
    }

    /// A request read bytes of a file of this class.
    pub(crate) fn note_read(&self, class: FileClass, bytes: u64) {
        self.reads[index(class)].add(bytes);
    }

    /// A request wrote bytes of a file of this class.
    pub(crate) fn note_write(&self, class: FileClass, bytes: u64) {
        self.writes[index(class)].add(bytes);
    }

    /// The counters as messages have them.
    pub(crate) fn report(&self) -> StorageCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let traffic = CLASSES.iter().enumerate().map(|(at, &class)| ClassTraffic {
            class,
            reads: get(&self.reads[at].operations),
            read_bytes: get(&self.reads[at].bytes),
            writes: get(&self.writes[at].operations),
            written_bytes: get(&self.writes[at].bytes),
        });
        StorageCounters {
            requests: get(&self.requests),
            refused: get(&self.refused),
            refused_fenced: get(&self.refused_fenced),
            refused_busy: get(&self.refused_busy),
            refused_full: get(&self.refused_full),
            damaged: get(&self.damaged),
            syncs: get(&self.syncs),
            traffic: traffic.filter(|class| class.reads + class.writes > 0).collect(),
        }
    }
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

fn index(class: FileClass) -> usize {
    usize::from(class.code()) - 1
}
