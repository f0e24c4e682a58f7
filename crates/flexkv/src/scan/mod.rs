//! Unordered scans: all keys of the store, step by step, from a number that the client keeps.
//!
//! A step visits buckets from a position on. [`ScanPosition`] defines their order and says why it
//! holds while partitions grow and move. The step returns the keys whose records the slots there
//! name.
//!
//! 1. The slots come from the same place as for reads: from the partition's proxy, or from the
//!    first copy in the pool. A pending slot stands for the record before it.
//! 2. The heads of the records are read within an address lease. If a head does not match its slot,
//!    or the lease is over, the slots are read again.
//! 3. The step ends at the end of a bucket, when it has visited enough records, bytes of keys or
//!    buckets.
//!
//! The compute node owns one [`Scanner`].
//!
//! Invariants:
//! 1. A key that exists from the first step of an iteration to the last one is returned at least
//!    once, whatever is written, moved or grown meanwhile.
//! 2. A key is returned only if it existed, and had not expired, at some moment of the step.
//! 3. Each step visits at least one bucket, so an iteration ends.
//!
//! Thread-safety: any thread may scan. Steps share nothing.
//! Failure: a partition that moves for longer than the settings' patience makes the step busy. Its
//! position stays valid.
//! Cost: a READ or a request of at most 32 KiB for each partition that the step touches, and a READ
//! of 256 bytes for each record. Where keys are few, up to 32 partitions are read in parallel.

mod keys;

use std::sync::Arc;

use archipelago_base::runtime::join_all;
use archipelago_base::{Error, Result};

use crate::format::{
    BUCKET_BYTES, BUCKET_SLOTS, Head, KEY_BYTES_MAX, KeyHash, RecordRefused, ScanPosition, Slot,
    SlotIndex,
};
use crate::ids::PartitionId;
use crate::node::Node;
use crate::protocol::IndexProtocol as _;
use crate::proxy::Proxy;
use crate::table::{Range, SHORT_KEY_BYTES, unsupported_record};
use crate::wire::{Assigned, Message, SLOTS_BUCKETS_MAX, Shaped};

/// Number of records whose heads are read together.
const HEADS_PER_READ: usize = 128;
/// Largest number of records that one round of a step visits. Their keys take at most 16 MiB.
pub(super) const ROUND_RECORDS: usize = 256;
/// Number of partitions whose slots are read in parallel.
const PARTITIONS_IN_PARALLEL: u32 = 32;
/// Number of buckets of a partition that the first round of a step reads.
const BUCKETS_FIRST: u32 = 8;
/// Number of empty buckets that a step may visit for each requested record, as in Redis.
const BUCKETS_PER_RECORD: usize = 10;
/// Number of buckets that every step may visit, so that a store with few keys is scanned in few
/// steps.
const BUCKETS_MIN: usize = 4096;

/// Position at which a step of a scan ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// Records after which the step ends, at the end of a bucket; at least 1.
    pub records: usize,
    /// Bytes of keys after which the step ends.
    pub key_bytes: usize,
}

/// A key that a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedKey {
    /// The key that was found.
    pub key: Vec<u8>,
    /// Unix time in milliseconds from which on the key counts as absent. 0 means never.
    pub expires_ms: u64,
}

/// Result of one step of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanStep {
    /// Keys that exist and have not expired.
    pub keys: Vec<ScannedKey>,
    /// Number of records that have expired and are not removed yet.
    pub expired: usize,
    /// The cursor of the next step. `None` after the last key.
    pub next: Option<u64>,
}

/// Limits of a round of reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    partitions: u32,
    buckets: u32,
}

/// Buckets of one partition.
struct Window {
    words: Vec<u64>,
    partition: PartitionId,
    generation: u32,
    first_bucket: u32,
    ends_partition: bool,
}

/// The buckets that a round visited.
#[derive(Default)]
struct Visited {
    slots: Vec<Slot>,
    buckets: usize,
    next: Option<ScanPosition>,
    /// Whether the round visited all that it read, and still has fewer records than wanted.
    is_short: bool,
    /// Whether the last partition has further buckets.
    cuts_partition: bool,
}

/// The keys of the buckets of one round, expired ones included.
pub(super) struct Round {
    pub(super) keys: Vec<ScannedKey>,
    pub(super) next: Option<ScanPosition>,
    records: usize,
    buckets: usize,
    pace: Pace,
}

impl Pace {
    /// The first round reads few buckets of one partition.
    const FIRST: Self = Self { partitions: 1, buckets: BUCKETS_FIRST };
    /// Rounds over a single partition, as fast as possible.
    pub(super) const PARTITION: Self = Self { partitions: 1, buckets: SLOTS_BUCKETS_MAX };

    fn after(self, visited: &Visited) -> Self {
        if !visited.is_short {
            return self;
        }
        let partitions = match visited.cuts_partition {
            true => 1,
            false => (self.partitions * 2).min(PARTITIONS_IN_PARALLEL),
        };
        Self { partitions, buckets: (self.buckets * 4).min(SLOTS_BUCKETS_MAX) }
    }
}

impl Window {
    /// The position of bucket `nth` of the window, or of the bucket after the window.
    fn position(&self, nth: usize, partitions: u32) -> Option<ScanPosition> {
        if self.ends_partition && nth * BUCKET_SLOTS >= self.words.len() {
            let next = PartitionId(self.partition.0 + 1);
            return (next.0 < partitions).then(|| ScanPosition::at_partition(next));
        }
        let bucket = self.first_bucket + nth as u32;
        Some(ScanPosition::at_bucket(self.partition, self.generation, bucket))
    }
}

/// Scans the keys of the store. See the head of the module.
pub(crate) struct Scanner {
    node: Arc<Node>,
    proxy: Arc<Proxy>,
}

impl Scanner {
    pub(crate) fn new(node: Arc<Node>, proxy: Arc<Proxy>) -> Self {
        Self { node, proxy }
    }

    /// Performs one step of a scan.
    pub(crate) async fn scan_from(
        &self,
        from: ScanPosition,
        limits: ScanLimits,
    ) -> Result<ScanStep> {
        let (mut step, mut next, mut pace) = (ScanStep::default(), Some(from), Pace::FIRST);
        let (mut records, mut buckets, mut key_bytes) = (0, 0, 0);
        let buckets_max = limits.records.saturating_mul(BUCKETS_PER_RECORD).max(BUCKETS_MIN);
        while let Some(at) = next {
            if step.next.is_some()
                && (records >= limits.records
                    || key_bytes >= limits.key_bytes
                    || buckets >= buckets_max)
            {
                break;
            }
            let wanted = limits.records.saturating_sub(records).clamp(1, ROUND_RECORDS);
            let round = self.scan_round(at, pace, wanted).await?;
            (next, pace) = (round.next, round.pace);
            records += round.records;
            buckets += round.buckets;
            for found in round.keys {
                if self.node.is_expired(found.expires_ms) {
                    step.expired += 1;
                } else {
                    key_bytes += found.key.len();
                    step.keys.push(found);
                }
            }
            step.next = next.map(ScanPosition::encode);
        }
        Ok(step)
    }

    /// Returns at least `records` neighbouring records, of which at least `live` have not expired.
    /// If the store has fewer, returns all of them.
    pub(crate) async fn sample(&self, records: usize, live: usize) -> Result<ScanStep> {
        let start = self.random_position()?;
        let (mut sample, mut next, mut has_wrapped) = (ScanStep::default(), Some(start), false);
        loop {
            let seen = sample.keys.len() + sample.expired;
            let at = match next {
                _ if seen >= records && sample.keys.len() >= live => return Ok(sample),
                None if has_wrapped => return Ok(sample),
                None => ScanPosition::START,
                Some(at) => at,
            };
            has_wrapped |= next.is_none();
            if has_wrapped && at.partition() > start.partition() {
                return Ok(sample);
            }
            let wanted = match records.saturating_sub(seen) {
                0 => ROUND_RECORDS,
                left => left,
            };
            let limits = ScanLimits { records: wanted, key_bytes: usize::MAX };
            let step = self.scan_from(at, limits).await?;
            sample.keys.extend(step.keys);
            sample.expired += step.expired;
            let geometry = self.node.joined()?.geometry();
            next = step.next.and_then(|number| ScanPosition::decode(number, geometry));
        }
    }

    fn random_position(&self) -> Result<ScanPosition> {
        let joined = self.node.joined()?;
        let map = joined.map();
        Ok(self.node.with_rng(|rng| {
            let partition = rng.u32(..joined.geometry().partitions());
            let Shaped { generation, log2_buckets, .. } = map.entries[partition as usize].shape;
            let bucket = rng.u32(..1 << log2_buckets);
            ScanPosition::at_bucket(PartitionId(partition), generation, bucket)
        }))
    }

    /// The keys of the buckets from `at` on, until `wanted` records are visited or the pace is
    /// exhausted.
    pub(super) async fn scan_round(
        &self,
        at: ScanPosition,
        pace: Pace,
        wanted: usize,
    ) -> Result<Round> {
        let until_ns = self.node.until_ns();
        loop {
            let started_ns = self.node.now_ns();
            let visited = self.visit(at, pace, wanted, until_ns).await?;
            let keys = self.keys_named(&visited.slots, until_ns).await?;
            let in_time = self.node.now_ns() - started_ns < self.node.settings().address_use_ns();
            if let Some(keys) = keys
                && in_time
                && self.node.table().holds_lease()
            {
                let pace = pace.after(&visited);
                let Visited { slots, buckets, next, .. } = visited;
                assert!(next != Some(at) && buckets > 0, "a round of a scan gets on: {at:?}");
                return Ok(Round { keys, next, records: slots.len(), buckets, pace });
            }
            self.node.table().late(until_ns, "a step of a scan")?;
            self.node.pause().await;
        }
    }

    /// Reads slots of the partition of `at` and of the following partitions in parallel, and takes
    /// buckets in their order until they name `wanted` records.
    async fn visit(
        &self,
        at: ScanPosition,
        pace: Pace,
        wanted: usize,
        until_ns: u64,
    ) -> Result<Visited> {
        let partitions = self.node.joined()?.geometry().partitions();
        let first = at.partition().0;
        let behind = first + 1..partitions.min(first + pace.partitions);
        let starts = behind.map(|next| ScanPosition::at_partition(PartitionId(next)));
        let starts = std::iter::once(at).chain(starts);
        let reading = starts.map(|start| self.window(start, pace.buckets, until_ns));
        let mut visited = Visited::default();
        for window in join_all(reading).await {
            let window = window?;
            for (nth, bucket) in window.words.chunks(BUCKET_SLOTS).enumerate() {
                if visited.slots.len() >= wanted {
                    visited.next = window.position(nth, partitions);
                    return Ok(visited);
                }
                let slots = bucket.iter().map(|word| Slot(*word));
                visited.slots.extend(slots.filter(|slot| slot.is_live() || slot.is_pending()));
                visited.buckets += 1;
            }
            visited.next = window.position(window.words.len() / BUCKET_SLOTS, partitions);
            visited.cuts_partition = !window.ends_partition;
            if visited.cuts_partition {
                break;
            }
        }
        visited.is_short = visited.slots.len() < wanted;
        Ok(visited)
    }

    /// The slots of at most `buckets_max` buckets from a position on, within the position's
    /// partition.
    async fn window(&self, at: ScanPosition, buckets_max: u32, until_ns: u64) -> Result<Window> {
        let (partition, bits) = (at.partition(), self.node.joined()?.geometry().partition_bits());
        // Any hash of the partition serves to enter its gate.
        let hash = KeyHash(u64::from(partition.0).checked_shl(64 - bits).unwrap_or(0));
        loop {
            let (inside, entry) = self.node.enter(hash, until_ns).await?;
            let Shaped { generation, log2_buckets, .. } = entry.shape;
            let first_bucket = self.first_bucket(at, entry.shape);
            let buckets = buckets_max.min((1 << log2_buckets) - first_bucket);
            let words = self.words_of_buckets(entry, first_bucket, buckets, until_ns).await?;
            drop(inside);
            if let Some(words) = words {
                let ends_partition = first_bucket + buckets == 1 << log2_buckets;
                return Ok(Window { words, partition, generation, first_bucket, ends_partition });
            }
            self.node.table().late(until_ns, "the slots of a partition")?;
            self.node.pause().await;
        }
    }

    fn first_bucket(&self, at: ScanPosition, shape: Shaped) -> u32 {
        let (sabotage, last) = (self.node.table().sabotage(), (1 << shape.log2_buckets) - 1);
        let bucket = match sabotage.no_rescan() {
            true => at.bucket(),
            false => at.bucket_in(shape.generation, shape.log2_buckets),
        };
        let skipped = u32::from(sabotage.skip_bucket() && bucket > 0);
        (bucket + skipped).min(last)
    }

    /// The committed slots of some buckets. The caller has entered the partition's gate. `None`
    /// means that the proxy does not answer, or that this node has no lease.
    async fn words_of_buckets(
        &self,
        entry: Assigned,
        bucket: u32,
        buckets: u32,
        until_ns: u64,
    ) -> Result<Option<Vec<u64>>> {
        let slots = buckets as usize * BUCKET_SLOTS;
        if entry.offloaded && self.node.table().protocol().looks_up_at_proxy() {
            // The copies in the pool may be ahead of the proxy by a deletion that is not
            // committed.
            let Assigned { partition, epoch, .. } = entry;
            let question = Message::Slots { partition, epoch, bucket, buckets };
            return match self.proxy.ask_node(entry, &question).await? {
                Some(Message::SlotsAre { words }) if words.len() == slots => Ok(Some(words)),
                Some(Message::SlotsAre { .. }) => {
                    Err(Error::unsupported("an answer with another number of slots"))
                }
                _ => Ok(None),
            };
        }
        let address = self.node.table().slot(entry.shape, SlotIndex::new(bucket, 0));
        let range = Range { address, bytes: u64::from(buckets) * BUCKET_BYTES as u64 };
        let read = self.node.table().read(&[range], until_ns).await?.pop().unwrap_or_default();
        if read.len() != slots * 8 {
            return Err(Error::unsupported("a READ of another length"));
        }
        let words = read.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok(self.node.table().holds_lease().then(|| words.collect()))
    }

    /// The keys of the records that slots name. A pending slot stands for the record before it.
    /// `None` if a record is gone, because the slots are old then.
    async fn keys_named(&self, slots: &[Slot], until_ns: u64) -> Result<Option<Vec<ScannedKey>>> {
        let mut keys = Vec::with_capacity(slots.len());
        let mut wanted: Vec<Slot> = slots.to_vec();
        while !wanted.is_empty() {
            let mut before = Vec::new();
            for some in wanted.chunks(HEADS_PER_READ) {
                let heads = self.read_heads(some, until_ns).await?;
                for (slot, bytes) in some.iter().zip(heads) {
                    match Head::decode(&bytes) {
                        Ok(Some(head)) if slot.is_pending() => {
                            let previous = Slot(head.header.previous).undying();
                            before.extend(Some(previous).filter(|slot| slot.is_live()));
                        }
                        Ok(Some(head)) => keys.push(ScannedKey {
                            key: head.key.to_vec(),
                            expires_ms: head.header.expires_ms,
                        }),
                        Err(RecordRefused::Version(version)) => {
                            return Err(unsupported_record(version));
                        }
                        _ => return Ok(None),
                    }
                }
            }
            wanted = before;
        }
        Ok(Some(keys))
    }

    /// The heads of records, each with the whole key.
    async fn read_heads(&self, slots: &[Slot], until_ns: u64) -> Result<Vec<Vec<u8>>> {
        let head = |slot: &Slot| self.node.table().head(*slot, SHORT_KEY_BYTES);
        let heads: Vec<Range> = slots.iter().filter_map(head).collect();
        assert_eq!(heads.len(), slots.len(), "every slot names a record");
        let mut read = self.node.table().read_named(&heads, until_ns).await?;
        for (slot, bytes) in slots.iter().zip(&mut read) {
            if Head::decode(bytes) == Ok(None)
                && let Some(whole) = self.node.table().head(*slot, KEY_BYTES_MAX)
            {
                let longer = self.node.table().read_named(&[whole], until_ns).await?.pop();
                *bytes = longer.unwrap_or_default();
            }
        }
        Ok(read)
    }
}
