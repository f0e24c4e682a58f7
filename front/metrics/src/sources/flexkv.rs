//! A compute node of FlexKV: its partitions, operations, records and cache.

use std::sync::Arc;

use archipelago_compute::flexkv::FlexKvNode;
use archipelago_flexkv::wire::Figure;

use super::Source;
use crate::catalogue::{Metric, flexkv as metric};
use crate::samples::Samples;

/// Metrics of a compute node, each with the value of its label and the name of the node's figure.
static FIGURES: &[(&Metric, &[&str], &str)] = &[
    (&metric::OPERATIONS, &["read"], "reads"),
    (&metric::OPERATIONS, &["write"], "writes"),
    (&metric::OPERATIONS, &["served"], "served"),
    (&metric::OPERATIONS, &["combined"], "combined"),
    (&metric::OPERATIONS, &["delegated"], "delegated"),
    (&metric::OPERATIONS, &["fast_set"], "fast_sets"),
    (&metric::RETRIES, &[], "retries"),
    (&metric::RESTORED, &[], "set_back"),
    (&metric::RECORD_BYTES, &["used"], "record_bytes"),
    (&metric::RECORD_BYTES, &["waiting"], "record_bytes_waiting"),
    (&metric::RECORD_BYTES, &["free"], "record_bytes_free"),
    (&metric::CACHE_LOOKUPS, &["pair"], "pair_hits"),
    (&metric::CACHE_LOOKUPS, &["address"], "address_hits"),
    (&metric::CACHE_LOOKUPS, &["miss"], "misses"),
    (&metric::STALE, &[], "stale_addresses"),
    (&metric::RESOLVED_WRITES, &[], "resolved_writes"),
    (&metric::INVALIDATIONS, &["sent"], "invalidations_sent"),
    (&metric::INVALIDATIONS, &["waited_out"], "invalidations_waited_out"),
    (&metric::INVALIDATIONS, &["received"], "invalidations_received"),
    (&metric::EVICTED, &[], "evicted"),
    (&metric::CACHED, &["pair"], "pairs"),
    (&metric::CACHED, &["address"], "addresses"),
    (&metric::LIMIT_BYTES, &[], "limit_bytes"),
    (&metric::USED_BYTES, &["index"], "index_bytes"),
    (&metric::USED_BYTES, &["cache"], "entry_bytes"),
    (&metric::REFUSED, &[], "partitions_refused"),
];

/// A compute node. Cost: a copy of the map of partitions.
#[must_use]
pub fn flexkv(node: Arc<FlexKvNode>) -> Source {
    Box::new(move |samples| {
        let compute = node.node().ok();
        let map = compute.as_ref().and_then(|compute| compute.map_status());
        samples.set(&metric::JOINED, &[], map.is_some());
        let (Some(compute), Some(map)) = (compute, map) else { return };
        samples.set(&metric::NODES, &[], map.members.len());
        samples.set(&metric::MAP_VERSION, &[], map.version);
        let mine = map.entries.iter().filter(|entry| entry.node == map.number);
        let (mut proxied, mut one_sided) = (0_u64, 0_u64);
        mine.for_each(|entry| *if entry.offloaded { &mut proxied } else { &mut one_sided } += 1);
        samples.set(&metric::PARTITIONS, &["proxied"], proxied);
        samples.set(&metric::PARTITIONS, &["one_sided"], one_sided);
        set_figures(samples, &compute.figures());
    })
}

fn set_figures(samples: &mut Samples, figures: &[Figure]) {
    for (metric, labels, name) in FIGURES {
        samples.set_known(metric, labels, figure(figures, name));
    }
}

/// The value of a figure by its name.
pub(super) fn figure(figures: &[Figure], name: &str) -> Option<u64> {
    figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
}
