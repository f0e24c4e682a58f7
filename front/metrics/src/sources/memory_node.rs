//! A memory node: its blocks and copies, its refusals, its memtable shards, and its links.

use archipelago_memory::MemoryMonitor;

use super::Source;
use crate::catalogue::pool as metric;
use crate::samples::seconds;

/// The memory node that `monitor` watches. Cost: a pass over its copies.
#[must_use]
pub fn memory_node(monitor: MemoryMonitor) -> Source {
    Box::new(move |samples| {
        let Some(figures) = monitor.figures() else { return };
        samples.set(&metric::BLOCK_BYTES, &[], figures.limits.block_bytes);
        samples.set(&metric::BLOCKS_MAX, &[], figures.limits.blocks_max);
        samples.set(&metric::BLOCKS_USED, &[], figures.blocks_used);
        samples.set(&metric::COPIES, &["whole"], figures.whole_copies);
        samples.set(&metric::COPIES, &["filling"], figures.filling_copies);
        samples.set(&metric::COPIES, &["installed"], figures.installed_copies);
        let counters = &figures.counters;
        samples.set(&metric::COPY_EVENTS, &["given"], counters.given);
        samples.set(&metric::COPY_EVENTS, &["freed"], counters.freed);
        samples.set(&metric::COPY_EVENTS, &["filled"], counters.filled);
        samples.set(&metric::FILLED_BYTES, &[], counters.filled_bytes);
        for refusal in &counters.refusals {
            let reason = refusal.why.words().replace(' ', "_");
            samples.set(&metric::REFUSALS, &[&reason], refusal.count);
        }
        let silence = figures.since_manager.map(|since| seconds(since.as_nanos() as u64));
        samples.set_known(&metric::SINCE_MANAGER, &[], silence);
        let shards = &figures.shards;
        samples.set(&metric::SHARD_DATABASES, &[], shards.databases);
        samples.set(&metric::SHARDS, &[], shards.shards);
        samples.set(&metric::SHARD_BYTES, &[], shards.shard_bytes);
        samples.set(&metric::SHARD_REGION_BYTES, &[], shards.region_bytes);
        for account in &shards.accounts {
            let db = account.db.to_string();
            let mut set = |name, bytes| samples.set(&metric::SHARD_ACCOUNTS, &[&db, name], bytes);
            set("used", account.used_bytes);
            set("guaranteed", account.guaranteed_bytes);
            set("borrowed", account.borrowed_bytes);
            set("share", account.share_bytes);
        }
        samples.set(&metric::SHARD_CLAIMS, &[], shards.counters.claims);
        samples.set(&metric::SHARD_EVENTS, &["registered"], shards.counters.registered);
        samples.set(&metric::SHARD_EVENTS, &["released"], shards.counters.released);
        samples.set(&metric::SHARD_EVENTS, &["purged"], shards.counters.purged);
        samples.set(&metric::SHARD_READS, &["keys"], shards.counters.keys);
        samples.set(&metric::SHARD_READS, &["pages"], shards.counters.pages);
        super::fabric(samples, &figures.fabric);
    })
}
