//! The index and the records as they lie in the pool: reads, writes to all copies, swaps of a slot.
//!
//! | what | goes to |
//! | --- | --- |
//! | READ | the block's first copy; of slots that only lead a write to its proxy, and of records that a slot names, whichever copy it is the turn of |
//! | WRITE of what one writer owns (a new record, a slot that is locked) | all copies, until all have it |
//! | swap of a slot | the first copy; whether it took place may stay unknown |
//!
//! Operations are posted together and awaited afterwards, so that they share round trips. What is
//! refused because a block changes is repeated at its new epoch; the pool sees to it that nothing
//! late of an unknown outcome takes place once the block is open again.
//!
//! Invariants: 1. a WRITE is repeated only by who may: nobody else writes these bytes until it has
//! ended; 2. what was read counts only if the pool's lease still held afterwards
//! ([`Table::holds_lease`]). Cost: one round trip, and one more per change.

mod directory;
mod subtable;

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::{BATCH_BYTES_MAX, Batch, Promise, Reason, Refusal};
use archipelago_pool::{Address, OpenBlock, Packing, PoolClient, Writing};

use crate::format::{
    BUCKET_BYTES, Bucket, Candidates, HEADER_BYTES, Head, KeyHash, LENGTH_UNITS_MAX, Slot,
    SlotIndex, UNIT_BYTES,
};
use crate::protocol::{IndexProtocol as _, Protocol};
use crate::settings::Sabotage;
use crate::wire::Shaped;

pub(crate) use subtable::{Image, Repaired};

/// A key with whose head 256 bytes of a record are read: most keys are no longer.
pub(crate) const SHORT_KEY_BYTES: usize = 256 - HEADER_BYTES;
/// Between two tries.
const PAUSE: Duration = Duration::from_micros(200);

/// What came of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swapped {
    /// The word that was there; it took place if that is the expected one.
    Was(u64),
    /// The block changed meanwhile: look.
    Unknown,
}

/// Which copy slots are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromCopy {
    /// The configuration's first, which has the last word where clients swap: others are ahead of
    /// it while a write is under way. Who does not reach it waits.
    First,
    /// Any, in turn, so that a hot key does not burden one card: slots for those who ask a proxy
    /// afterwards, which compares the slot with its own; records, which are on all copies before
    /// any slot names them, and lose their valid bit on all before what supersedes them is
    /// committed.
    Any,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) pool: PoolClient,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) packing: Packing,
    pub(crate) sabotage: Sabotage,
    pub(crate) protocol: Protocol,
}

/// A range of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) address: Address,
    pub(crate) bytes: u64,
}

fn unusable(refusal: Refusal) -> bool {
    use Reason::{Misaligned, NoRight, OutOfRange, Protocol, TooLarge};
    matches!(refusal.reason, OutOfRange | NoRight | TooLarge | Misaligned | Protocol)
}

impl Table {
    pub(crate) fn now_ns(&self) -> u64 {
        self.runtime.now_ns()
    }

    /// Whether this node is a member: what it reads is of copies in use, and nobody has taken its
    /// partitions.
    pub(crate) fn holds_lease(&self) -> bool {
        self.held_lease(self.now_ns())
    }

    /// Whether it was at `now_ns`.
    pub(crate) fn held_lease(&self, now_ns: u64) -> bool {
        self.pool.holds_lease(now_ns) || self.sabotage.no_lease()
    }

    pub(crate) fn address(&self, packed: u64) -> Address {
        self.packing.unpack(packed)
    }

    /// Where a slot's record lies, and how many bytes of it are to be read first.
    pub(crate) fn record(&self, slot: Slot) -> Option<Range> {
        let live = if slot.is_pending() { slot.to_live() } else { slot };
        let address = self.address(live.packed()?);
        let left = self.pool.block_bytes().saturating_sub(address.offset);
        Some(Range { address, bytes: live.read_bytes().min(left) })
    }

    /// What is to be read of a slot's record to see its head, if the key has at most `key_bytes`.
    ///
    /// The head can be longer than a slot's length can say, which then bounds nothing.
    pub(crate) fn head(&self, slot: Slot, key_bytes: usize) -> Option<Range> {
        let Range { address, bytes } = self.record(slot)?;
        let bytes = match bytes == LENGTH_UNITS_MAX * UNIT_BYTES {
            true => self.pool.block_bytes().saturating_sub(address.offset),
            false => bytes,
        };
        Some(Range { address, bytes: bytes.min(Head::bytes(key_bytes)) })
    }

    /// Where a slot lies.
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

    /// Says that the time is over, or this node.
    pub(crate) fn late(&self, until_ns: u64, what: impl std::fmt::Display) -> Result<()> {
        if self.pool.is_evicted() {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!("{what}: this node was taken for dead"),
            ));
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

    /// Reads ranges, all at once.
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
        // Longer than a batch may be: part after part.
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

    /// The same of at most [`BATCH_BYTES_MAX`] in all.
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
                    // The clock tells the turn: nothing is shared.
                    FromCopy::Any => {
                        open.copies.get(self.now_ns() as usize % open.copies.len().max(1))
                    }
                };
                let Some(copy) = copy else {
                    // It did not answer this node, and may answer others: until the block goes on
                    // without it, it has the last word.
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

    /// Writes to all copies, all at once, until all have it. Only for bytes that nobody else writes
    /// meanwhile.
    pub(crate) async fn write(&self, writes: &[(Address, &[u8])], until_ns: u64) -> Result<()> {
        self.write_copies(writes, false, until_ns).await
    }

    /// The same to all copies but the first; an epoch that has one copy alone needs none.
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

    /// Swaps a word of the first copy.
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
            (None, Some(was)) => Ok(Swapped::Was(was)),
            (Some((_, refusal)), _) => {
                self.again(&open, refusal, until_ns).await?;
                Ok(Swapped::Unknown)
            }
            (None, None) => Ok(Swapped::Unknown),
        }
    }

    /// A word of the first copy.
    pub(crate) async fn word(&self, address: Address, until_ns: u64) -> Result<u64> {
        let read = self.read(&[Range { address, bytes: 8 }], until_ns).await?;
        let word = read.first().and_then(|bytes| bytes.first_chunk::<8>());
        word.map(|word| u64::from_le_bytes(*word))
            .ok_or_else(|| Error::unsupported("a READ of another length"))
    }

    /// The slots in which a key may lie.
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
