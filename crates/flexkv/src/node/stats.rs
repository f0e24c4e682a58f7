//! Counters of a node for people: `cluster status`, INFO and benchmarks show them. No decision
//! depends on them.

use archipelago_base::metrics::Counters;

use super::Node;
use crate::wire::Figure;

/// A counter of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stat {
    /// Reads by this node's clients.
    Reads,
    /// Writes by this node's clients.
    Writes,
    /// Tries of writes that met another write and began again.
    Retries,
    /// Searches and writes that other nodes sent to this one.
    Served,
    /// Writes that a later write of the same key and node performed.
    Combined,
    /// Sets that a key's proxy performed for this node's clients.
    Delegated,
    /// Sets that took the fast path.
    FastSets,
    /// Slots whose copies got their old word back, because a set of the fast path was not
    /// committed.
    Restored,
}

const NAMES: [&str; 8] =
    ["reads", "writes", "retries", "served", "combined", "delegated", "set_at_once", "set_back"];

/// The counters of a node.
#[derive(Debug, Default)]
pub(crate) struct Stats(Counters<8>);

impl Stats {
    pub(crate) fn add(&self, stat: Stat) {
        self.add_many(stat, 1);
    }

    pub(crate) fn add_many(&self, stat: Stat, many: u64) {
        self.0.add(stat as usize, many);
    }
}

impl Node {
    /// Everything that this node counts, by name.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let counted = NAMES.iter().enumerate().map(|(at, name)| (*name, self.stats.0.get(at)));
        // The metrics say `fast_set`. Programs may still read the old name, `set_at_once`.
        let fast_sets = ("fast_sets", self.stats.0.get(Stat::FastSets as usize));
        let heap = self.records.stats();
        let bytes = [
            ("record_bytes", heap.used_bytes),
            ("record_bytes_waiting", heap.waiting_bytes),
            ("record_bytes_free", heap.free_bytes),
        ];
        let cache = self.caching.status();
        let cached = [
            ("pair_hits", cache.pair_hits),
            ("address_hits", cache.address_hits),
            ("misses", cache.misses),
            ("stale_addresses", cache.stale_addresses),
            ("resolved_writes", cache.resolved_writes),
            ("invalidations_sent", cache.invalidations_sent),
            ("invalidations_waited_out", cache.invalidations_waited_out),
            ("invalidations_received", cache.invalidations_received),
            ("evicted", cache.evicted),
            ("pairs", cache.pairs),
            ("addresses", cache.addresses),
            ("limit_bytes", cache.limit_bytes),
            ("used_bytes", cache.used_bytes),
            ("index_bytes", cache.index_bytes),
            ("entry_bytes", cache.entry_bytes),
            ("partitions_refused", cache.partitions_refused),
        ];
        let figure = |(name, value): (&str, u64)| Figure { name: name.to_owned(), value };
        counted.chain([fast_sets]).chain(bytes).chain(cached).map(figure).collect()
    }
}
