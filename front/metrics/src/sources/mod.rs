//! Sources: functions that read figures of a component and set the metrics of the catalogue.
//!
//! A source is made from a handle of its component, and the endpoint calls it for each collection.
//! It holds the handle until the endpoint ends. All figures exist anyway, so a source costs the hot
//! paths nothing.
//!
//! Thread-safety: the endpoint calls one source at a time.
//! Failure: a source sets what it can read, and leaves the rest out.
//! Cost: that of the figures, which each function states.

mod engine;
mod executor;
mod flexkv;
mod manager;
mod memory_node;
mod offload_jobs;
mod process;
mod redis;
mod remote_shards;
mod storage_node;
mod tiers;
mod volume;

pub use engine::engine;
pub use executor::executor;
pub use flexkv::flexkv;
pub use manager::manager;
pub use memory_node::memory_node;
pub use offload_jobs::offload_jobs;
pub use process::{budget, process};
pub use redis::redis;
pub use remote_shards::remote_shards;
pub use storage_node::storage_node;
pub use tiers::tiers;
pub use volume::volume;

use archipelago_fabric::NodeStats;

use crate::catalogue::pool as metric;
use crate::samples::Samples;

/// A function that sets metrics.
pub type Source = Box<dyn Fn(&mut Samples) + Send + Sync>;

/// Sets the figures of a fabric's node.
fn fabric(samples: &mut Samples, stats: &NodeStats) {
    samples.set(&metric::LINKS, &[], stats.links);
    samples.set(&metric::OPERATIONS, &[], stats.operations);
    samples.set(&metric::REQUESTS, &[], stats.requests);
    samples.set(&metric::DUPLICATES, &[], stats.duplicates);
    samples.set(&metric::REFUSED, &[], stats.refused);
    samples.set(&metric::BROKEN, &["protocol"], stats.malformed);
    samples.set(&metric::BROKEN, &["secret"], stats.unauthenticated);
    samples.set(&metric::KEPT_BYTES, &[], stats.kept_bytes);
}
