//! Counters of an owner's shards at memory nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_engine::remote::StoreRoom;
use archipelago_engine::stats::{Statistics, Ticker};

use super::flow::FlowFigures;
use super::meter::{LookupTimes, TripKind};
use super::staying::{NodeLookups, StayFigures};

/// Counters since the open of the database.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) no_room: AtomicU64,
    pub(super) not_sent: AtomicU64,
    pub(super) keys: AtomicU64,
    pub(super) pages: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) fetched: AtomicU64,
    pub(super) fetched_bytes: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) copied: AtomicU64,
    pub(super) copies_used: AtomicU64,
    pub(super) copies_given_up: AtomicU64,
    pub(super) copies_no_room: AtomicU64,
    pub(super) copies_not_sent: AtomicU64,
    pub(super) copies_not_queued: AtomicU64,
    pub(super) ahead_bytes: AtomicU64,
    pub(super) ahead_used: AtomicU64,
    pub(super) ahead_used_bytes: AtomicU64,
    pub(super) ahead_outgrown: AtomicU64,
    pub(super) ahead_no_room: AtomicU64,
    pub(super) ahead_failed: AtomicU64,
    pub(super) ahead_unneeded: AtomicU64,
    pub(super) cache_hits: AtomicU64,
    pub(super) cache_misses: AtomicU64,
    pub(super) cache_passed: AtomicU64,
    pub(super) cache_reads: AtomicU64,
    pub(super) cache_mismatches: AtomicU64,
    pub(super) cache_unread: AtomicU64,
    pub(super) cache_filled: AtomicU64,
    /// Times of look-ups, to which all links add.
    pub(super) times: Arc<LookupTimes>,
}

/// Figures from the state and the flow of an owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateFigures {
    pub(super) nodes: u64,
    pub(super) shards: u64,
    /// Shards that two nodes have.
    pub(super) doubled: u64,
    /// Bytes of images that wait for their second copy.
    pub(super) copy_bytes: u64,
    pub(super) room: StoreRoom,
    /// Bytes of memory that nodes guarantee.
    pub(super) guaranteed_bytes: u64,
    /// Bytes of first copies that nodes have beyond the shares of the database.
    pub(super) surplus_bytes: u64,
    /// Entries of the key-offset cache.
    pub(super) entries: u64,
    /// Active shards that have room at a node.
    pub(super) active: u64,
    pub(super) flow: FlowFigures,
    /// Memtables that stay in the process.
    pub(super) staying: StayFigures,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Figures of an owner's shards at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerFigures {
    /// Memory nodes that take shards.
    pub nodes: u64,
    /// Shards that can be read at nodes.
    pub shards: u64,
    /// Bytes of images that the nodes hold, including those of unconfirmed releases.
    pub held_bytes: u64,
    /// Bytes of second copies, which are a part of these.
    pub spare_bytes: u64,
    /// Bytes of first copies that the database may have at all nodes together. While nodes want
    /// memory back, it is the held bytes of first copies, and a sixteenth of those that can be
    /// read.
    pub limit_bytes: u64,
    /// Bytes of memory that the nodes guarantee.
    pub guaranteed_bytes: u64,
    /// Bytes of shards that nodes have beyond the shares of the database. The nodes want them back,
    /// because other databases claim memory, or the node is drained. Second copies, and shards
    /// whose release is under way, do not count.
    pub surplus_bytes: u64,
    /// Shards that were sent.
    pub sent: u64,
    /// Bytes of the images of these shards.
    pub sent_bytes: u64,
    /// Transfers that failed because no node had room.
    pub no_room: u64,
    /// Transfers that failed for another reason.
    pub not_sent: u64,
    /// Keys that nodes have searched.
    pub keys: u64,
    /// Pages of scans that nodes have given.
    pub pages: u64,
    /// Long values that were read one-sided.
    pub records: u64,
    /// Images that were fetched as a whole.
    pub fetched: u64,
    /// Bytes of these images.
    pub fetched_bytes: u64,
    /// Reads that were repeated, because a node did not answer or was busy.
    pub repeated: u64,
    /// Reads that ended without an answer.
    pub busy: u64,
    /// Shards that were lost.
    pub lost: u64,
    /// Shards that two nodes have now.
    pub copies: u64,
    /// Bytes of images that wait in this process for their second copy.
    pub copy_queue_bytes: u64,
    /// Second copies that were sent.
    pub copied: u64,
    /// Number of times that reads of a shard changed to its other copy, because its node was lost
    /// or did not answer.
    pub copies_used: u64,
    /// Copies that were released because a first copy needed the room, or because a node had more
    /// of the database than its share.
    pub copies_given_up: u64,
    /// Shards that got no second copy because no other node had room.
    pub copies_no_room: u64,
    /// Shards that got no second copy because the transfer failed.
    pub copies_not_sent: u64,
    /// Shards that got no second copy because too many images waited for theirs.
    pub copies_not_queued: u64,
    /// Active shards, which still take writes and have room at a node for their records.
    pub active: u64,
    /// Bytes of records that were written to nodes while their shard still took writes.
    pub ahead_bytes: u64,
    /// Shards of which some records had been written ahead, and were not written again.
    pub ahead_used: u64,
    /// Bytes of these records.
    pub ahead_used_bytes: u64,
    /// Active shards that gave their room back because they were larger than expected.
    pub ahead_outgrown: u64,
    /// Active shards that gave their room back because a sealed shard needed it, because the node
    /// wanted memory back, or because the owner closed.
    pub ahead_no_room: u64,
    /// Active shards that had room at a node, which was lost or did not take their records.
    pub ahead_failed: u64,
    /// Active shards that gave their room back because they were not sent, or not soon.
    pub ahead_unneeded: u64,
    /// Bytes of images that were written to nodes, including transfers in progress.
    pub written_bytes: u64,
    /// Most bytes that were written within 100 ms: of images of first copies, or of records that
    /// were written ahead, whichever is more.
    pub peak_bytes: u64,
    /// Entries of the key-offset cache.
    pub cache_entries: u64,
    /// Keys that were answered by a record at a cached offset.
    pub cache_hits: u64,
    /// Keys that were requested from a node because no cached offset answers.
    pub cache_misses: u64,
    /// Keys that were requested from a node although a cached offset answers, because the request
    /// is faster.
    pub cache_passed: u64,
    /// READs at cached offsets.
    pub cache_reads: u64,
    /// Records at cached offsets that were not those of the entry. The key was then requested.
    pub cache_mismatches: u64,
    /// Records at cached offsets that could not be read. The key was then requested.
    pub cache_unread: u64,
    /// Entries that were made for hot keys after the transfer of their shard.
    pub cache_filled: u64,
    /// Batches of READs at cached offsets of which none was refused. A look-up of one key has a
    /// batch of one READ.
    pub cache_batches: u64,
    /// Nanoseconds of these batches.
    pub cache_read_ns: u64,
    /// Bytes of the records that they read.
    pub cache_read_bytes: u64,
    /// Requests for keys that nodes have answered.
    pub requests: u64,
    /// Nanoseconds of these requests.
    pub request_ns: u64,
    /// Bytes of the answers to these requests.
    pub answer_bytes: u64,
    /// Number of the newest sealed memtables of each family that stay in this process.
    pub staying: u64,
    /// Number for which reads would take the least time, by the last measurements.
    pub staying_best: u64,
    /// Number of times that one more memtable has stayed.
    pub staying_raised: u64,
    /// Number of times that one memtable less has stayed.
    pub staying_lowered: u64,
}

impl Tally {
    /// Counters of the keys that were looked up at nodes.
    pub(super) fn lookups(&self) -> NodeLookups {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let known = read(&self.cache_hits);
        let others =
            [&self.cache_misses, &self.cache_passed, &self.cache_mismatches, &self.cache_unread];
        NodeLookups { known, keys: known + others.map(read).iter().sum::<u64>() }
    }

    /// The figures, with those of the state.
    pub(super) fn figures(&self, state: &StateFigures) -> OwnerFigures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (known, requests) =
            (self.times.get(TripKind::Known), self.times.get(TripKind::Request));
        OwnerFigures {
            nodes: state.nodes,
            shards: state.shards,
            held_bytes: state.room.held_bytes,
            spare_bytes: state.room.spare_bytes,
            limit_bytes: state.room.limit_bytes,
            guaranteed_bytes: state.guaranteed_bytes,
            surplus_bytes: state.surplus_bytes,
            written_bytes: state.flow.written_bytes,
            peak_bytes: state.flow.peak_bytes,
            active: state.active,
            ahead_bytes: read(&self.ahead_bytes),
            ahead_used: read(&self.ahead_used),
            ahead_used_bytes: read(&self.ahead_used_bytes),
            ahead_outgrown: read(&self.ahead_outgrown),
            ahead_no_room: read(&self.ahead_no_room),
            ahead_failed: read(&self.ahead_failed),
            ahead_unneeded: read(&self.ahead_unneeded),
            cache_entries: state.entries,
            cache_hits: read(&self.cache_hits),
            cache_misses: read(&self.cache_misses),
            cache_passed: read(&self.cache_passed),
            cache_reads: read(&self.cache_reads),
            cache_mismatches: read(&self.cache_mismatches),
            cache_unread: read(&self.cache_unread),
            cache_filled: read(&self.cache_filled),
            cache_batches: known.count,
            cache_read_ns: known.ns,
            cache_read_bytes: known.bytes,
            requests: requests.count,
            request_ns: requests.ns,
            answer_bytes: requests.bytes,
            sent: read(&self.sent),
            sent_bytes: read(&self.sent_bytes),
            no_room: read(&self.no_room),
            not_sent: read(&self.not_sent),
            keys: read(&self.keys),
            pages: read(&self.pages),
            records: read(&self.records),
            fetched: read(&self.fetched),
            fetched_bytes: read(&self.fetched_bytes),
            repeated: read(&self.repeated),
            busy: read(&self.busy),
            lost: read(&self.lost),
            copies: state.doubled,
            copy_queue_bytes: state.copy_bytes,
            copied: read(&self.copied),
            copies_used: read(&self.copies_used),
            copies_given_up: read(&self.copies_given_up),
            copies_no_room: read(&self.copies_no_room),
            copies_not_sent: read(&self.copies_not_sent),
            copies_not_queued: read(&self.copies_not_queued),
            staying: state.staying.staying,
            staying_best: state.staying.best,
            staying_raised: state.staying.raised,
            staying_lowered: state.staying.lowered,
        }
    }
}

impl OwnerFigures {
    /// The figures by name.
    fn named(&self) -> [(&'static str, u64); 55] {
        [
            ("nodes", self.nodes),
            ("shards", self.shards),
            ("held_bytes", self.held_bytes),
            ("spare_bytes", self.spare_bytes),
            ("limit_bytes", self.limit_bytes),
            ("guaranteed_bytes", self.guaranteed_bytes),
            ("surplus_bytes", self.surplus_bytes),
            ("sent", self.sent),
            ("sent_bytes", self.sent_bytes),
            ("no_room", self.no_room),
            ("not_sent", self.not_sent),
            ("keys", self.keys),
            ("pages", self.pages),
            ("long_values", self.records),
            ("fetched", self.fetched),
            ("fetched_bytes", self.fetched_bytes),
            ("repeated", self.repeated),
            ("busy", self.busy),
            ("lost", self.lost),
            ("copies", self.copies),
            ("copy_queue_bytes", self.copy_queue_bytes),
            ("copied", self.copied),
            ("copies_used", self.copies_used),
            ("copies_given_up", self.copies_given_up),
            ("copies_no_room", self.copies_no_room),
            ("copies_not_sent", self.copies_not_sent),
            ("copies_not_queued", self.copies_not_queued),
            ("active", self.active),
            ("ahead_bytes", self.ahead_bytes),
            ("ahead_used", self.ahead_used),
            ("ahead_used_bytes", self.ahead_used_bytes),
            ("ahead_outgrown", self.ahead_outgrown),
            ("ahead_no_room", self.ahead_no_room),
            ("ahead_failed", self.ahead_failed),
            ("ahead_unneeded", self.ahead_unneeded),
            ("written_bytes", self.written_bytes),
            ("peak_bytes", self.peak_bytes),
            ("cache_entries", self.cache_entries),
            ("cache_hits", self.cache_hits),
            ("cache_misses", self.cache_misses),
            ("cache_passed", self.cache_passed),
            ("cache_reads", self.cache_reads),
            ("cache_mismatches", self.cache_mismatches),
            ("cache_unread", self.cache_unread),
            ("cache_filled", self.cache_filled),
            ("cache_batches", self.cache_batches),
            ("cache_read_us", self.cache_read_ns / 1000),
            ("cache_read_bytes", self.cache_read_bytes),
            ("requests", self.requests),
            ("request_us", self.request_ns / 1000),
            ("answer_bytes", self.answer_bytes),
            ("staying", self.staying),
            ("staying_best", self.staying_best),
            ("staying_raised", self.staying_raised),
            ("staying_lowered", self.staying_lowered),
        ]
    }

    /// The figures as lines of the form `name:value`.
    #[must_use]
    pub fn facts(&self) -> String {
        let line = |(name, value): (&str, u64)| format!("offload_shards_{name}:{value}\n");
        self.named().into_iter().map(line).collect()
    }
}

/// Shards that the open of a database has kept of the previous owner, as lines of the form
/// `name:value`.
#[must_use]
pub fn takeover_facts(statistics: &Statistics) -> String {
    let figures = [
        ("kept", statistics.get(Ticker::AwayShardsKept)),
        ("records_spared", statistics.get(Ticker::AwayRecordsSpared)),
        ("ms", statistics.get(Ticker::AwayTakeoverNs) / 1_000_000),
        ("dropped_flushed", statistics.get(Ticker::AwayDroppedFlushed)),
        ("dropped_gap", statistics.get(Ticker::AwayDroppedGap)),
        ("dropped_beyond_log", statistics.get(Ticker::AwayDroppedBeyondLog)),
        ("dropped_unusable", statistics.get(Ticker::AwayDroppedUnusable)),
        ("dropped_no_memory", statistics.get(Ticker::AwayDroppedNoMemory)),
    ];
    let line = |(name, value): (&str, u64)| format!("offload_takeover_{name}:{value}\n");
    figures.into_iter().map(line).collect()
}
