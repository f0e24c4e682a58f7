//! The index and the records as they lie in the pool: READs, WRITEs to all copies, and swaps of
//! slots.
//!
//! | operation | goes to |
//! | --- | --- |
//! | READ | the first copy of the block. Slots that only lead a write to its proxy, and records
//! that a slot names, are read from any copy in turn. |
//! | WRITE of bytes with a single writer (a new record, a locked slot) | all copies, until all have
//! it |
//! | swap of a slot | the first copy. Its outcome may stay unknown. |
//!
//! Operations are posted together and awaited afterwards, so that they share round trips. An
//! operation that is refused because a block changes is repeated at the block's new epoch. The pool
//! guarantees that no late operation of unknown outcome takes effect once the block is open again.
//!
//! `Node` and the coordinator own a [`Table`] each.
//!
//! Invariants:
//! 1. A WRITE is repeated only while no other client writes the same bytes.
//! 2. Bytes that were read count only if the pool's lease still holds afterwards
//!    ([`Table::holds_lease`]).
//!
//! Thread-safety: any thread may call any method.
//! Failure: an operation is repeated until `until_ns`, and then ends as busy.
//! Cost: one round trip, and one more after each change of the block.

mod directory;
mod subtable;

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Error, Result};
use archipelago_fabric::{BATCH_BYTES_MAX, Batch, Promise, Reason, Refusal};
use archipelago_pool::{Address, OpenBlock, Packing, PoolClient, Writing};

use crate::format::{
    BUCKET_BYTES, Bucket, Candidates, HEADER_BYTES, Head, KeyHash, LENGTH_UNITS_MAX, Slot,
    SlotIndex, UNIT_BYTES, packing,
};
use crate::protocol::{IndexProtocol as _, Protocol};
use crate::settings::Sabotage;
use crate::wire::Shaped;

pub(crate) use subtable::{Image, Repaired};

/// Length of a key whose head takes 256 bytes with the record's header. Most keys are no longer.
pub(crate) const SHORT_KEY_BYTES: usize = 256 - HEADER_BYTES;
/// Time between two tries.
const PAUSE: Duration = Duration::from_micros(200);

/// Result of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swapped {
    /// The word that the slot held. The swap took effect if it is the expected word.
    Found(u64),
    /// The block changed during the swap, so the outcome is unknown.
    Unknown,
}

/// The copy from which slots are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromCopy {
    /// The first copy of the configuration, which decides where clients swap. Other copies are
    /// ahead of it while a write is in progress. A client that does not reach it waits.
    First,
    /// Any copy in turn, so that a hot key does not burden one network card. Slots may be read so
    /// if a proxy compares them with its own afterwards. Records may be read so because they are on
    /// all copies before a slot names them. They lose their valid bit on all copies before the
    /// write that supersedes them is committed.
    Any,
}

/// Access to the index and the records in the pool. See the head of the module.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pool: PoolClient,
    runtime: Arc<dyn Runtime>,
    packing: Packing,
    sabotage: Sabotage,
    protocol: Protocol,
}

/// A range of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) address: Address,
    pub(crate) bytes: u64,
}

/// The error of a record whose version this program cannot read.
pub(crate) fn unsupported_record(version: u8) -> Error {
    Error::unsupported(format!(
        "a record in the pool has format version {version}, which this program cannot read"
    ))
}

fn unusable(refusal: Refusal) -> bool {
    use Reason::{Misaligned, NoRight, OutOfRange, Protocol, TooLarge};
    matches!(refusal.reason, OutOfRange | NoRight | TooLarge | Misaligned | Protocol)
}

impl Table {
    /// Access by a client of the pool. Invalid if addresses in blocks of the pool's size do not fit
    /// a slot.
    pub(crate) fn new(
        pool: PoolClient,
        runtime: Arc<dyn Runtime>,
        sabotage: Sabotage,
        protocol: Protocol,
    ) -> Result<Self> {
        let packing = packing(pool.block_bytes())?;
        Ok(Self { pool, runtime, packing, sabotage, protocol })
    }

    /// The steps of the protocol that are left out.
    #[inline]
    pub(crate) fn sabotage(&self) -> Sabotage {
        self.sabotage
    }

    /// The protocol of the index.
    #[inline]
    pub(crate) fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// An address as slots hold it. `None` if it is out of range.
    pub(crate) fn pack(&self, address: Address) -> Option<u64> {
        self.packing.pack(address)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.runtime.now_ns()
    }

    /// Whether this node holds the pool's lease. Then it reads copies that are in use, and no other
    /// node has taken its partitions.
    pub(crate) fn holds_lease(&self) -> bool {
        self.held_lease(self.now_ns())
    }

    /// Whether this node held the pool's lease at `now_ns`.
    pub(crate) fn held_lease(&self, now_ns: u64) -> bool {
        self.pool.holds_lease(now_ns) || self.sabotage.no_lease()
    }

    pub(crate) fn address(&self, packed: u64) -> Address {
        self.packing.unpack(packed)
    }

    /// Address of a slot's record, and the number of its bytes to read first.
    pub(crate) fn record(&self, slot: Slot) -> Option<Range> {
        let live = if slot.is_pending() { slot.to_live() } else { slot };
        let address = self.address(live.packed()?);
        let left = self.pool.block_bytes().saturating_sub(address.offset);
        Some(Range { address, bytes: live.read_bytes().min(left) })
    }

    /// The range of a slot's record that has its head, if the key has at most `key_bytes`. The head
    /// may be longer than the longest length that a slot can express. Then the slot gives no bound.
    pub(crate) fn head(&self, slot: Slot, key_bytes: usize) -> Option<Range> {
        let Range { address, bytes } = self.record(slot)?;
        let bytes = match bytes == LENGTH_UNITS_MAX * UNIT_BYTES {
            true => self.pool.block_bytes().saturating_sub(address.offset),
            false => bytes,
        };
        Some(Range { address, bytes: bytes.min(Head::bytes(key_bytes)) })
    }

    /// The address of a slot.
    pub(crate) fn slot(&self, shape: Shaped, index: SlotIndex) -> Address {
        let start = self.address(shape.packed);
        Address { offset: start.offset + index.offset(), ..start }
    }

    pub(crate) async fn again(
        &self,
        open: &OpenBlock,
        refusal: Refusal,
        until_ns: u64,
    ) -> Result<()> {
        if unusable(refusal) {
            return Err(refusal.error(format!("block {}", open.config.block)));
        }
        self.pool.stale(open, refusal);
        self.late(until_ns, format!("block {}: {refusal}", open.config.block))?;
        self.runtime.sleep(PAUSE).await;
        Ok(())
    }

    /// Fails if the time is over or this node was evicted.
    pub(crate) fn late(&self, until_ns: u64, what: impl std::fmt::Display) -> Result<()> {
        if self.pool.is_evicted() {
            return Err(self.pool.over(what));
        }
        if self.now_ns() >= until_ns {
            return Err(Error::busy(format!("{what}: no success in time")));
        }
        Ok(())
    }

    pub(crate) async fn open(&self, address: Address) -> Result<Arc<OpenBlock>> {
        match self.pool.try_open(address.block) {
            Some(open) => Ok(open),
            None => self.pool.open(address.block).await,
        }
    }

    pub(crate) async fn open_writable(&self, address: Address) -> Result<Arc<OpenBlock>> {
        match self.pool.try_open(address.block).filter(|open| open.is_writable()) {
            Some(open) => Ok(open),
            None => self.pool.open_writable(address.block).await,
        }
    }

    /// Reads ranges in parallel, from first copies.
    pub(crate) async fn read(&self, ranges: &[Range], until_ns: u64) -> Result<Vec<Vec<u8>>> {
        self.read_copy(FromCopy::First, ranges, until_ns).await
    }

    /// Reads records that slots name, all in parallel.
    pub(crate) async fn read_named(&self, ranges: &[Range], until_ns: u64) -> Result<Vec<Vec<u8>>> {
        let which = match self.protocol.reads_first_copy_only() {
            true => FromCopy::First,
            false => FromCopy::Any,
        };
        self.read_copy(which, ranges, until_ns).await
    }

    async fn read_copy(
        &self,
        which: FromCopy,
        ranges: &[Range],
        until_ns: u64,
    ) -> Result<Vec<Vec<u8>>> {
        const MAX: u64 = BATCH_BYTES_MAX as u64;
        if ranges.iter().map(|range| range.bytes).sum::<u64>() <= MAX {
            return self.read_batches(which, ranges, until_ns).await;
        }
        // The ranges exceed a batch, so they are read one after another.
        let mut all = Vec::with_capacity(ranges.len());
        for Range { address, bytes } in ranges {
            let mut read = Vec::new();
            for at in (0..*bytes).step_by(MAX as usize) {
                let address = Address { offset: address.offset + at, ..*address };
                let part = Range { address, bytes: MAX.min(bytes - at) };
                let part = self.read_batches(which, &[part], until_ns).await?;
                read.extend(part.into_iter().flatten());
            }
            all.push(read);
        }
        Ok(all)
    }

    /// Reads ranges of at most [`BATCH_BYTES_MAX`] in total, in one batch per block.
    async fn read_batches(
        &self,
        which: FromCopy,
        ranges: &[Range],
        until_ns: u64,
    ) -> Result<Vec<Vec<u8>>> {
        let mut found: Vec<Option<Vec<u8>>> = vec![None; ranges.len()];
        while found.contains(&None) {
            let mut posted: Vec<(Arc<OpenBlock>, Vec<usize>, Promise<Batch>)> = Vec::new();
            let missing: Vec<usize> = (0..ranges.len()).filter(|at| found[*at].is_none()).collect();
            let mut groups: Vec<Vec<usize>> = Vec::new();
            for at in missing {
                let block = ranges[at].address.block;
                let same = groups.iter_mut().find(|group| ranges[group[0]].address.block == block);
                match same {
                    Some(group) => group.push(at),
                    None => groups.push(vec![at]),
                }
            }
            for group in groups {
                let open = self.open(ranges[group[0]].address).await?;
                let copy = match which {
                    FromCopy::First => open.first(),
                    // The clock selects the copy, so that threads share no counter.
                    FromCopy::Any => {
                        open.copies.get(self.now_ns() as usize % open.copies.len().max(1))
                    }
                };
                let Some(copy) = copy else {
                    // The first copy did not answer this node, but may answer others. It decides
                    // until the block goes on without it.
                    self.again(&open, Reason::NotAttached.into(), until_ns).await?;
                    continue;
                };
                let mut batch = Batch::new();
                for &at in &group {
                    batch.read(copy.region, ranges[at].address.offset, ranges[at].bytes as u32);
                }
                let promise = copy.link.post(batch);
                copy.link.flush();
                posted.push((Arc::clone(&open), group, promise));
            }
            for (open, group, promise) in posted {
                let batch = promise.await;
                match batch.refusal() {
                    None => {
                        for (nth, at) in group.into_iter().enumerate() {
                            found[at] = Some(batch.data(nth).to_vec());
                        }
                    }
                    Some((_, refusal)) => self.again(&open, refusal, until_ns).await?,
                }
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Writes to all copies in parallel, until all of them have the bytes. No other client may
    /// write these bytes at the same time.
    pub(crate) async fn write(&self, writes: &[(Address, &[u8])], until_ns: u64) -> Result<()> {
        self.write_copies(writes, false, until_ns).await
    }

    /// Writes to all copies but the first. An epoch with a single copy needs no WRITE.
    pub(crate) async fn write_backups(
        &self,
        writes: &[(Address, &[u8])],
        until_ns: u64,
    ) -> Result<()> {
        self.write_copies(writes, true, until_ns).await
    }

    async fn write_copies(
        &self,
        writes: &[(Address, &[u8])],
        backups: bool,
        until_ns: u64,
    ) -> Result<()> {
        if let [(address, bytes)] = *writes {
            return self.write_one(address, bytes, backups, until_ns).await;
        }
        let mut left: Vec<usize> = (0..writes.len()).collect();
        while !left.is_empty() {
            let mut posted: Vec<(usize, Arc<OpenBlock>, Writing)> = Vec::new();
            for at in std::mem::take(&mut left) {
                let (address, bytes) = writes[at];
                let open = self.open_writable(address).await?;
                let skip = usize::from(backups);
                let writing = open.post_write_from(skip, address.offset, bytes);
                posted.push((at, open, writing));
            }
            for (at, open, writing) in posted {
                if let Err(refusal) = writing.await {
                    self.again(&open, refusal, until_ns).await?;
                    left.push(at);
                }
            }
        }
        Ok(())
    }

    async fn write_one(
        &self,
        address: Address,
        bytes: &[u8],
        backups: bool,
        until_ns: u64,
    ) -> Result<()> {
        loop {
            let open = self.open_writable(address).await?;
            match open.post_write_from(usize::from(backups), address.offset, bytes).await {
                Ok(()) => return Ok(()),
                Err(refusal) => self.again(&open, refusal, until_ns).await?,
            }
        }
    }

    /// Swaps a word on the first copy.
    pub(crate) async fn swap(
        &self,
        address: Address,
        expect: u64,
        new: u64,
        until_ns: u64,
    ) -> Result<Swapped> {
        let open = self.open_writable(address).await?;
        let Some(copy) = open.copies.first() else { return Ok(Swapped::Unknown) };
        let mut batch = Batch::new();
        let word = batch.compare_swap(copy.region, address.offset, expect, new);
        let promise = copy.link.post(batch);
        copy.link.flush();
        let batch = promise.await;
        match (batch.refusal(), batch.word(word)) {
            (None, Some(was)) => Ok(Swapped::Found(was)),
            (Some((_, refusal)), _) => {
                self.again(&open, refusal, until_ns).await?;
                Ok(Swapped::Unknown)
            }
            (None, None) => Ok(Swapped::Unknown),
        }
    }

    /// Reads a word from the first copy.
    pub(crate) async fn word(&self, address: Address, until_ns: u64) -> Result<u64> {
        let read = self.read(&[Range { address, bytes: 8 }], until_ns).await?;
        let word = read.first().and_then(|bytes| bytes.first_chunk::<8>());
        word.map(|word| u64::from_le_bytes(*word))
            .ok_or_else(|| Error::unsupported("a READ of another length"))
    }

    /// Reads the buckets of a key.
    pub(crate) async fn candidates(
        &self,
        which: FromCopy,
        shape: Shaped,
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Candidates> {
        let numbers = hash.buckets(shape.log2_buckets);
        let bytes = BUCKET_BYTES as u64;
        let range = |number| Range { address: self.slot(shape, SlotIndex::new(number, 0)), bytes };
        let ranges = numbers.map(range);
        let ranges = if numbers[0] == numbers[1] { &ranges[..1] } else { &ranges[..] };
        let read = self.read_copy(which, ranges, until_ns).await?;
        let mut buckets = [Bucket::default(); 2];
        for (bucket, bytes) in buckets.iter_mut().zip(&read) {
            let bytes = bytes.first_chunk::<BUCKET_BYTES>();
            *bucket = Bucket::from_bytes(
                bytes.ok_or_else(|| Error::unsupported("a READ of another length"))?,
            );
        }
        Ok(Candidates::new(numbers, buckets))
    }
}
