//! State that all clients of a run share: the history, the values that were given out, and counts.
//!
//! Thread-safety: clones share everything, and each part has a lock of its own that is never held
//! over a call of the store.

use std::sync::Arc;

use archipelago_flexkv::{ComputeNode, Sabotage, WriteEffect, WriteError};
use parking_lot::Mutex;

use super::history::{Call, History};
use super::scans::Scans;

#[derive(Clone)]
pub(crate) struct RunState {
    pub(crate) history: Arc<History>,
    /// Whether clients still call.
    pub(crate) working: Arc<Mutex<bool>>,
    pub(crate) errors: Arc<Mutex<u64>>,
    /// Largest number of calls of one client.
    pub(crate) calls_max: u64,
    pub(crate) sabotage: Sabotage,
    pub(crate) cached: Arc<Mutex<CacheFigures>>,
    /// State of the scans, in a run with scans.
    pub(crate) scans: Option<Arc<Scans>>,
    values: Arc<Mutex<u64>>,
}

/// Counts of caches and proxies, summed over all nodes and all their lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheFigures {
    /// Reads that a cached pair answered.
    pub(crate) pair_hits: u64,
    /// Reads that found their record through a cached address.
    pub(crate) address_hits: u64,
    /// Writes whose slot was cached.
    pub(crate) resolved: u64,
    /// Invalidations that writes sent.
    pub(crate) invalidations: u64,
    /// Invalidations that had to wait until the sharer's lease ran out.
    pub(crate) waited_out: u64,
    /// Partitions that did not fit a node's memory limit.
    pub(crate) partitions_refused: u64,
    /// Sets that a node left to the key's proxy.
    pub(crate) delegated: u64,
    /// Sets that succeeded without waiting.
    pub(crate) set_at_once: u64,
    /// Slots whose copies got their old value back, because a set without waiting did not commit.
    pub(crate) set_back: u64,
}

impl RunState {
    /// State of a run without scans in which nothing has happened yet.
    pub(crate) fn new(calls_max: u64, sabotage: Sabotage) -> Self {
        Self {
            history: Arc::default(),
            working: Arc::new(Mutex::new(true)),
            errors: Arc::default(),
            calls_max,
            sabotage,
            cached: Arc::default(),
            scans: None,
            values: Arc::default(),
        }
    }

    /// State of a run with scans in which nothing has happened yet.
    pub(crate) fn with_scans(self) -> Self {
        Self { scans: Some(Arc::default()), ..self }
    }

    /// A value that no other write has.
    pub(crate) fn new_value(&self) -> u64 {
        let mut values = self.values.lock();
        *values += 1;
        *values
    }

    /// Records that a write ended with an error. The run relies on the effect of the write that the
    /// error states.
    pub(crate) fn failed(&self, call: &Call, failed: &WriteError) -> WriteEffect {
        *self.errors.lock() += 1;
        if failed.effect() == WriteEffect::None {
            self.history.never(call);
        }
        failed.effect()
    }
}

impl CacheFigures {
    /// Adds the counts of a node at the end of its life.
    pub(crate) fn add(&mut self, node: &ComputeNode) {
        let status = node.status().cache;
        let figures = node.figures();
        let figure = |name: &str| {
            let figure = figures.iter().find(|figure| figure.name == name);
            figure.expect("a node counts it").value
        };
        self.delegated += figure("delegated");
        self.set_back += figure("set_back");
        self.pair_hits += status.pair_hits;
        self.address_hits += status.address_hits;
        self.resolved += status.resolved_writes;
        self.invalidations += status.invalidations_sent;
        self.waited_out += status.invalidations_waited_out;
        self.partitions_refused += status.partitions_refused;
    }
}
