//! What a node counts, for people: `cluster status`, INFO, benchmarks. Never read by a decision.

use archipelago_base::metrics::Counters;

use super::Inner;
use crate::wire::Figure;

/// A counter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// Reads of this node's clients.
    Reads,
    /// Writes of them.
    Writes,
    /// Turns of writes that met another's and were begun again.
    Retries,
    /// Searches and writes that other nodes sent here.
    Served,
    /// Writes that were done by a later one of the same key and node.
    Combined,
    /// Sets that a key's proxy did for this node's clients.
    Delegated,
    /// Sets that waited for nobody.
    SetAtOnce,
    /// Slots whose copies got back what they had, for a set at once was not committed.
    SetBack,
}

const NAMES: [&str; 8] =
    ["reads", "writes", "retries", "served", "combined", "delegated", "set_at_once", "set_back"];

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Counts(Counters<8>);

impl Counts {
    pub(crate) fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    pub(crate) fn add_many(&self, count: Count, many: u64) {
        self.0.add(count as usize, many);
    }
}

impl Inner {
    pub(super) fn figures(&self) -> Vec<Figure> {
        let counted = NAMES.iter().enumerate().map(|(at, name)| (*name, self.counts.0.get(at)));
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
        counted.chain(bytes).chain(cached).map(figure).collect()
    }
}
