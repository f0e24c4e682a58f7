//! Unordered scans: all keys of the store, step by step, from a number that the client keeps.
//!
//! A step goes over buckets from a position on ([`ScanPosition`] has their order and says why it
//! holds while partitions grow and move), and returns the keys whose records the slots there name.
//!
//! 1. The slots come from where reads take them: from the partition's proxy, or from the first copy
//!    in the pool. A slot that is pending counts as the record before it.
//! 2. The heads of the records are read within an address lease. If a head is not what a slot said
//!    or the lease is over, the slots are read again.
//! 3. The step ends at a bucket's end, when it has visited enough records, bytes of keys or
//!    buckets.
//!
//! Invariants: 1. a key that exists from the first step of an iteration to the last one is returned
//! at least once, whatever is written, moved or grown meanwhile; 2. a key is returned only if it
//! was there, and had not expired, at some moment of the step; 3. each step visits a bucket at
//! least, so an iteration ends. Thread-safety: nothing is shared between steps. Failure: a
//! partition that moves for longer than the settings' patience makes the step busy; its position
//! stays good.
//!
//! Cost: a READ or a request of at most 32 KiB for each partition that the step touches, up to 32
//! of them in parallel where keys are few, and a READ of 256 bytes for each record.

use std::sync::Arc;

use archipelago_base::runtime::together;
use archipelago_base::{Error, Result};

use super::expired;
use super::look::of_version;
use crate::format::{
    BUCKET_BYTES, BUCKET_SLOTS, Head, KEY_BYTES_MAX, KeyHash, RecordRefused, ScanPosition, Slot,
    SlotIndex,
};
use crate::ids::PartitionId;
use crate::node::{ComputeNode, Inner};
use crate::protocol::IndexProtocol as _;
use crate::table::{Range, SHORT_KEY_BYTES};
use crate::wire::{Assigned, Message, SLOTS_BUCKETS_MAX, Shaped};

/// Records whose heads are read together.
const READ_AT_ONCE: usize = 128;
/// Records that one round of a step visits, at most: their keys take 16 MiB at the most.
pub(super) const ROUND_RECORDS: usize = 256;
/// Partitions whose slots are read in parallel.
const PARTITIONS_AT_ONCE: u32 = 32;
/// Buckets of a partition that the first round of a step reads.
const BUCKETS_FIRST: u32 = 8;
/// Empty buckets that a step may visit for each record that it is asked for, as in Redis.
const BUCKETS_PER_RECORD: usize = 10;
/// Buckets that every step may visit, so that a store with few keys is scanned in few steps.
const BUCKETS_MIN: usize = 4096;

/// Where a step of a scan ends.
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
    /// The key.
    pub key: Vec<u8>,
    /// Unix milliseconds from which on the key counts as absent; 0: never.
    pub expires_ms: u64,
}

/// What one step of a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanStep {
    /// Keys that exist and have not expired.
    pub keys: Vec<ScannedKey>,
    /// Number of records that have expired and are not removed yet.
    pub expired: usize,
    /// The number to go on with; `None` after the last key.
    pub next: Option<u64>,
}

/// How much a round reads.
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

/// A round: the keys of some buckets, expired ones included.
pub(super) struct Round {
    pub(super) keys: Vec<ScannedKey>,
    pub(super) next: Option<ScanPosition>,
    records: usize,
    buckets: usize,
    pace: Pace,
}

impl Pace {
    /// Few buckets of one partition.
    const FIRST: Self = Self { partitions: 1, buckets: BUCKETS_FIRST };
    /// One partition, as fast as possible.
    pub(super) const PARTITION: Self = Self { partitions: 1, buckets: SLOTS_BUCKETS_MAX };

    fn after(self, visited: &Visited) -> Self {
        if !visited.is_short {
            return self;
        }
        let partitions = match visited.cuts_partition {
            true => 1,
            false => (self.partitions * 2).min(PARTITIONS_AT_ONCE),
        };
        Self { partitions, buckets: (self.buckets * 4).min(SLOTS_BUCKETS_MAX) }
    }
}

impl Window {
    /// The position of the bucket `nth` of the window, or of what comes behind it.
    fn position(&self, nth: usize, partitions: u32) -> Option<ScanPosition> {
        if self.ends_partition && nth * BUCKET_SLOTS >= self.words.len() {
            let next = PartitionId(self.partition.0 + 1);
            return (next.0 < partitions).then(|| ScanPosition::at_partition(next));
        }
        let bucket = self.first_bucket + nth as u32;
        Some(ScanPosition::at_bucket(self.partition, self.generation, bucket))
    }
}

impl ComputeNode {
    /// The keys from `cursor` on; 0 begins. `None`: no scan of this store gives out this cursor.
    ///
    /// A key that exists from the call with 0 to the call that returns no cursor is returned at
    /// least once, and maybe several times. Keys that come or go meanwhile may be returned or not.
    /// A cursor holds on every node of the store, and as long as the store exists. Busy if a
    /// partition is moved for longer than the settings' patience.
    pub async fn scan(&self, cursor: u64, limits: ScanLimits) -> Result<Option<ScanStep>> {
        let geometry = self.0.joined()?.geometry;
        match ScanPosition::decode(cursor, geometry) {
            Some(from) => self.0.scan_from(from, limits).await.map(Some),
            None => Ok(None),
        }
    }

    /// The keys of at least `records` neighbouring records from a random place on, or of nearly all
    /// if there are fewer. Neighbours are neighbours by the hash of their keys. The step has no
    /// cursor.
    pub async fn sample(&self, records: usize) -> Result<ScanStep> {
        self.0.sample(records, 0).await
    }

    /// Some key; `None` if there is none. Keys behind empty buckets and expired records come more
    /// often than others. If nearly all records have expired, it visits many of them.
    pub async fn random_key(&self) -> Result<Option<Vec<u8>>> {
        let mut near = self.0.sample(2 * BUCKET_SLOTS, 1).await?.keys;
        if near.is_empty() {
            return Ok(None);
        }
        let nth = self.0.rng.lock().usize(..near.len());
        Ok(Some(near.swap_remove(nth).key))
    }
}

impl Inner {
    async fn scan_from(
        self: &Arc<Self>,
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
                if expired(found.expires_ms, self) {
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

    /// At least `records` neighbouring records, of which at least `live` have not expired; or all
    /// that there are.
    async fn sample(self: &Arc<Self>, records: usize, live: usize) -> Result<ScanStep> {
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
            let geometry = self.joined()?.geometry;
            next = step.next.and_then(|number| ScanPosition::decode(number, geometry));
        }
    }

    fn random_position(&self) -> Result<ScanPosition> {
        let joined = self.joined()?;
        let map = Arc::clone(&joined.map.read());
        let mut rng = self.rng.lock();
        let partition = rng.u32(..joined.geometry.partitions());
        let Shaped { generation, log2_buckets, .. } = map.entries[partition as usize].shape;
        let bucket = rng.u32(..1 << log2_buckets);
        Ok(ScanPosition::at_bucket(PartitionId(partition), generation, bucket))
    }

    /// The keys of the buckets from `at` on, until `wanted` records are visited or the pace is
    /// exhausted.
    pub(super) async fn scan_round(
        self: &Arc<Self>,
        at: ScanPosition,
        pace: Pace,
        wanted: usize,
    ) -> Result<Round> {
        let until_ns = self.until_ns();
        loop {
            let started_ns = self.now_ns();
            let visited = self.visit(at, pace, wanted, until_ns).await?;
            let keys = self.keys_named(&visited.slots, until_ns).await?;
            let in_time = self.now_ns() - started_ns < self.settings.address_use_ns();
            if let Some(keys) = keys
                && in_time
                && self.table.holds_lease()
            {
                let pace = pace.after(&visited);
                let Visited { slots, buckets, next, .. } = visited;
                assert!(next != Some(at) && buckets > 0, "a round of a scan gets on: {at:?}");
                return Ok(Round { keys, next, records: slots.len(), buckets, pace });
            }
            self.table.late(until_ns, "a step of a scan")?;
            self.pause().await;
        }
    }

    /// Reads slots of the partition of `at` and of those behind it in parallel, and takes buckets
    /// in their order until they name `wanted` records.
    async fn visit(
        self: &Arc<Self>,
        at: ScanPosition,
        pace: Pace,
        wanted: usize,
        until_ns: u64,
    ) -> Result<Visited> {
        let partitions = self.joined()?.geometry.partitions();
        let first = at.partition().0;
        let behind = first + 1..partitions.min(first + pace.partitions);
        let starts = behind.map(|next| ScanPosition::at_partition(PartitionId(next)));
        let starts = std::iter::once(at).chain(starts);
        let reading = starts.map(|start| self.window(start, pace.buckets, until_ns));
        let mut visited = Visited::default();
        for window in together(reading).await {
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

    /// The slots of at most `buckets_max` buckets from a position on, all of its partition.
    async fn window(
        self: &Arc<Self>,
        at: ScanPosition,
        buckets_max: u32,
        until_ns: u64,
    ) -> Result<Window> {
        let (partition, bits) = (at.partition(), self.joined()?.geometry.partition_bits());
        // Any hash of the partition.
        let hash = KeyHash(u64::from(partition.0).checked_shl(64 - bits).unwrap_or(0));
        loop {
            let (inside, entry) = self.enter(hash, until_ns).await?;
            let Shaped { generation, log2_buckets, .. } = entry.shape;
            let first_bucket = self.first_bucket(at, entry.shape);
            let buckets = buckets_max.min((1 << log2_buckets) - first_bucket);
            let words = self.words_of_buckets(entry, first_bucket, buckets, until_ns).await?;
            drop(inside);
            if let Some(words) = words {
                let ends_partition = first_bucket + buckets == 1 << log2_buckets;
                return Ok(Window { words, partition, generation, first_bucket, ends_partition });
            }
            self.table.late(until_ns, "the slots of a partition")?;
            self.pause().await;
        }
    }

    fn first_bucket(&self, at: ScanPosition, shape: Shaped) -> u32 {
        let (sabotage, last) = (self.table.sabotage, (1 << shape.log2_buckets) - 1);
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
        self: &Arc<Self>,
        entry: Assigned,
        bucket: u32,
        buckets: u32,
        until_ns: u64,
    ) -> Result<Option<Vec<u64>>> {
        let slots = buckets as usize * BUCKET_SLOTS;
        if entry.offloaded && self.table.protocol.looks_up_at_proxy() {
            // The copies in the pool may be ahead of the proxy, by a deletion that is not
            // committed.
            let Assigned { partition, epoch, .. } = entry;
            let question = Message::Slots { partition, epoch, bucket, buckets };
            return match self.ask_node(entry, &question).await? {
                Some(Message::SlotsAre { words }) if words.len() == slots => Ok(Some(words)),
                Some(Message::SlotsAre { .. }) => {
                    Err(Error::unsupported("an answer with another number of slots"))
                }
                _ => Ok(None),
            };
        }
        let address = self.table.slot(entry.shape, SlotIndex::new(bucket, 0));
        let range = Range { address, bytes: u64::from(buckets) * BUCKET_BYTES as u64 };
        let read = self.table.read(&[range], until_ns).await?.pop().unwrap_or_default();
        if read.len() != slots * 8 {
            return Err(Error::unsupported("a READ of another length"));
        }
        let words = read.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok(self.table.holds_lease().then(|| words.collect()))
    }

    /// The keys of the records that slots name; of a pending slot, of the record before it. `None`:
    /// a record is not there any more, so the slots are old.
    async fn keys_named(&self, slots: &[Slot], until_ns: u64) -> Result<Option<Vec<ScannedKey>>> {
        let mut keys = Vec::with_capacity(slots.len());
        let mut wanted: Vec<Slot> = slots.to_vec();
        while !wanted.is_empty() {
            let mut before = Vec::new();
            for some in wanted.chunks(READ_AT_ONCE) {
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
                        Err(RecordRefused::Version(version)) => return Err(of_version(version)),
                        _ => return Ok(None),
                    }
                }
            }
            wanted = before;
        }
        Ok(Some(keys))
    }

    /// The beginnings of records, each with the whole key.
    async fn read_heads(&self, slots: &[Slot], until_ns: u64) -> Result<Vec<Vec<u8>>> {
        let head = |slot: &Slot| self.table.head(*slot, SHORT_KEY_BYTES);
        let heads: Vec<Range> = slots.iter().filter_map(head).collect();
        assert_eq!(heads.len(), slots.len(), "every slot names a record");
        let mut read = self.table.read_named(&heads, until_ns).await?;
        for (slot, bytes) in slots.iter().zip(&mut read) {
            if Head::decode(bytes) == Ok(None)
                && let Some(whole) = self.table.head(*slot, KEY_BYTES_MAX)
            {
                let longer = self.table.read_named(&[whole], until_ns).await?.pop();
                *bytes = longer.unwrap_or_default();
            }
        }
        Ok(read)
    }
}
