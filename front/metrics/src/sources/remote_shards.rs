//! Memtable shards of a database at memory nodes.

use std::sync::Arc;

use archipelago_offload::shard_owner::RemoteShards;

use super::Source;
use crate::catalogue::remote_shards as metric;

/// The shards of a database at memory nodes. Cost: a lock, and a pass over the nodes.
#[must_use]
pub fn remote_shards(shards: Arc<RemoteShards>) -> Source {
    Box::new(move |samples| {
        let figures = shards.figures();
        samples.set(&metric::NODES, &[], figures.nodes);
        samples.set(&metric::SHARDS, &[], figures.shards);
        samples.set(&metric::HELD, &[], figures.held_bytes);
        samples.set(&metric::SPARE, &[], figures.spare_bytes);
        samples.set(&metric::LIMIT, &[], figures.limit_bytes);
        samples.set(&metric::GUARANTEED, &[], figures.guaranteed_bytes);
        samples.set(&metric::SURPLUS, &[], figures.surplus_bytes);
        samples.set(&metric::SENT, &[], figures.sent);
        samples.set(&metric::SENT_BYTES, &[], figures.sent_bytes);
        samples.set(&metric::NOT_SENT, &["no_room"], figures.no_room);
        samples.set(&metric::NOT_SENT, &["failed"], figures.not_sent);
        samples.set(&metric::READS, &["keys"], figures.keys);
        samples.set(&metric::READS, &["pages"], figures.pages);
        samples.set(&metric::READS, &["long_values"], figures.records);
        samples.set(&metric::READS, &["images"], figures.fetched);
        samples.set(&metric::WRITTEN_BYTES, &[], figures.written_bytes);
        samples.set(&metric::ACTIVE, &[], figures.active);
        samples.set(&metric::AHEAD_BYTES, &[], figures.ahead_bytes);
        samples.set(&metric::AHEAD_USED_BYTES, &[], figures.ahead_used_bytes);
        samples.set(&metric::AHEAD_GIVEN_UP, &["outgrown"], figures.ahead_outgrown);
        samples.set(&metric::AHEAD_GIVEN_UP, &["no_room"], figures.ahead_no_room);
        samples.set(&metric::AHEAD_GIVEN_UP, &["failed"], figures.ahead_failed);
        samples.set(&metric::AHEAD_GIVEN_UP, &["unneeded"], figures.ahead_unneeded);
        samples.set(&metric::PEAK_BYTES, &[], figures.peak_bytes);
        samples.set(&metric::STAYING, &[], figures.staying);
        samples.set(&metric::STAYING_BEST, &[], figures.staying_best);
        samples.set(&metric::STAYING_CHANGES, &["raised"], figures.staying_raised);
        samples.set(&metric::STAYING_CHANGES, &["lowered"], figures.staying_lowered);
        samples.set(&metric::CACHE_ENTRIES, &[], figures.cache_entries);
        samples.set(&metric::CACHE_FILLED, &[], figures.cache_filled);
        samples.set(&metric::CACHE_READS, &[], figures.cache_reads);
        samples.set(&metric::CACHE_KEYS, &["hit"], figures.cache_hits);
        samples.set(&metric::CACHE_KEYS, &["miss"], figures.cache_misses);
        samples.set(&metric::CACHE_KEYS, &["passed"], figures.cache_passed);
        samples.set(&metric::CACHE_KEYS, &["mismatch"], figures.cache_mismatches);
        samples.set(&metric::CACHE_KEYS, &["unread"], figures.cache_unread);
        let seconds = |ns: u64| ns as f64 / 1e9;
        samples.set(&metric::ROUND_TRIPS, &["cached"], figures.cache_batches);
        samples.set(&metric::ROUND_TRIPS, &["request"], figures.requests);
        samples.set(&metric::ROUND_TRIP_TIME, &["cached"], seconds(figures.cache_read_ns));
        samples.set(&metric::ROUND_TRIP_TIME, &["request"], seconds(figures.request_ns));
        samples.set(&metric::ROUND_TRIP_BYTES, &["cached"], figures.cache_read_bytes);
        samples.set(&metric::ROUND_TRIP_BYTES, &["request"], figures.answer_bytes);
        samples.set(&metric::REPEATED, &[], figures.repeated);
        samples.set(&metric::BUSY, &[], figures.busy);
        samples.set(&metric::LOST, &[], figures.lost);
        samples.set(&metric::COPIES, &[], figures.copies);
        samples.set(&metric::COPY_QUEUE, &[], figures.copy_queue_bytes);
        samples.set(&metric::COPIED, &[], figures.copied);
        samples.set(&metric::COPIES_USED, &[], figures.copies_used);
        samples.set(&metric::COPIES_MISSING, &["no_room"], figures.copies_no_room);
        samples.set(&metric::COPIES_MISSING, &["failed"], figures.copies_not_sent);
        samples.set(&metric::COPIES_MISSING, &["queue_full"], figures.copies_not_queued);
        samples.set(&metric::COPIES_MISSING, &["given_up"], figures.copies_given_up);
    })
}
