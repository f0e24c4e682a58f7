//! The directory's block: how it is made and read, and the roster at its end.
//!
//! Any number of nodes may make the index at the same time. Each word is swapped from zero, so all
//! of them end with the same word. A node enters itself into the roster, and then checks whether
//! the coordinator that gave it the map is still the newest. A coordinator enters its term, and
//! then reads the roster. So one of the two sees the other.
//!
//! Cost: one round trip per word that is swapped, and one per 64 entries that are read.

use archipelago_base::{Error, Result};
use archipelago_fabric::{Batch, ClientId};
use archipelago_pool::{Address, BlockId};

use super::{Range, Table};
use crate::format::{
    ENTRY_BYTES, Geometry, Owner, PartitionEntry, ROSTER_BYTES, Roster, Shape, entry_offset,
    roster_head, roster_offset,
};
use crate::ids::PartitionId;
use crate::wire::Shaped;

/// Number of entries that are read together.
const ENTRIES_PER_READ: usize = 64;
/// Bytes from the roster's beginning to its first client.
const CLIENTS: u64 = 16;

impl Table {
    /// Swaps a word on all copies. Returns the former word, which is `expect` if the swap took
    /// effect. `new` must be a word that only this caller writes there, or that all callers write.
    pub(crate) async fn enter(
        &self,
        address: Address,
        expect: u64,
        new: u64,
        until_ns: u64,
    ) -> Result<u64> {
        loop {
            let open = self.open_writable(address).await?;
            let Some(copy) = open.copies.first() else { continue };
            let mut batch = Batch::new();
            let word = batch.compare_swap(copy.region, address.offset, expect, new);
            let promise = copy.link.post(batch);
            copy.link.flush();
            let batch = promise.await;
            let refused = match (batch.refusal(), batch.word(word)) {
                (None, Some(was)) if was == expect || was == new => {
                    // The WRITE uses the opening of the swap, so no other client can have swapped
                    // another first copy in between.
                    match open.post_write_from(1, address.offset, &new.to_le_bytes()).await {
                        Ok(()) => return Ok(expect),
                        Err(refusal) => refusal,
                    }
                }
                (None, Some(was)) => return Ok(was),
                (Some((_, refusal)), _) => refusal,
                (None, None) => return Err(Error::unsupported("a swap without an answer")),
            };
            self.again(&open, refused, until_ns).await?;
        }
    }

    fn in_roster(&self, directory: BlockId, at: u64) -> Address {
        let offset = roster_offset(self.pool.block_bytes()) + at;
        Address { block: directory, offset }
    }

    /// Reads the roster while this client holds the pool's lease.
    pub(crate) async fn roster(&self, directory: BlockId, until_ns: u64) -> Result<Roster> {
        let range = Range { address: self.in_roster(directory, 0), bytes: ROSTER_BYTES };
        let read = self.read(&[range], until_ns).await?;
        if !self.holds_lease() {
            return Err(Error::busy("the roster was read without a lease"));
        }
        let roster = read.first().and_then(|bytes| Roster::decode(bytes));
        roster.ok_or_else(|| Error::unsupported("the directory's roster is of another version"))
    }

    /// Enters a client into the roster, unless the roster has it already. The client gets a free
    /// place, or that of a client that is gone. Only a client that can no longer write there may be
    /// replaced.
    pub(crate) async fn enroll(
        &self,
        directory: BlockId,
        client: ClientId,
        until_ns: u64,
    ) -> Result<()> {
        loop {
            let roster = self.roster(directory, until_ns).await?;
            let place = |word: u64| roster.clients.iter().position(|there| *there == word);
            let (place, before) = match (place(client.0), place(0)) {
                (Some(mine), _) => (mine, client.0),
                (None, Some(free)) => (free, 0),
                (None, None) => self.gone_place(&roster).await?,
            };
            let address = self.in_roster(directory, CLIENTS + place as u64 * 8);
            if self.enter(address, before, client.0, until_ns).await? == before {
                return Ok(());
            }
        }
    }

    async fn gone_place(&self, roster: &Roster) -> Result<(usize, u64)> {
        for (place, word) in roster.clients.iter().enumerate() {
            if self.pool.is_gone(ClientId(*word)).await? {
                return Ok((place, *word));
            }
        }
        Err(Error::busy("the store has its largest number of compute nodes"))
    }

    /// Enters a term that is larger than any before. `tag` distinguishes coordinators that try at
    /// the same time.
    pub(crate) async fn take_office(
        &self,
        directory: BlockId,
        tag: u32,
        until_ns: u64,
    ) -> Result<u64> {
        let mut now = self.roster(directory, until_ns).await?.term;
        loop {
            let next = ((now >> 32) + 1) << 32 | u64::from(tag);
            let was = self.enter(self.in_roster(directory, 0), now, next, until_ns).await?;
            if was == now {
                return Ok(next);
            }
            now = was;
        }
    }

    /// Epoch and shape of all partitions. `None` if an entry is missing or torn, because the index
    /// was never in use then.
    pub(crate) async fn entries(
        &self,
        directory: BlockId,
        geometry: Geometry,
        until_ns: u64,
    ) -> Result<Option<Vec<(u32, Shaped)>>> {
        let all: Vec<PartitionId> = (0..geometry.partitions()).map(PartitionId).collect();
        let mut entries = Vec::with_capacity(all.len());
        for some in all.chunks(ENTRIES_PER_READ) {
            for entry in self.entries_of(directory, geometry, some, until_ns).await? {
                let Some(entry) = entry else { return Ok(None) };
                entries.push(entry);
            }
        }
        Ok(Some(entries))
    }

    /// Epoch and shape of a partition. `None` if the entry is missing or torn.
    pub(crate) async fn entry(
        &self,
        directory: BlockId,
        geometry: Geometry,
        partition: PartitionId,
        until_ns: u64,
    ) -> Result<Option<(u32, Shaped)>> {
        let entry = self.entries_of(directory, geometry, &[partition], until_ns).await?.pop();
        Ok(entry.flatten())
    }

    async fn entries_of(
        &self,
        directory: BlockId,
        geometry: Geometry,
        partitions: &[PartitionId],
        until_ns: u64,
    ) -> Result<Vec<Option<(u32, Shaped)>>> {
        let range = |partition: &PartitionId| Range {
            address: Address { block: directory, offset: entry_offset(*partition) },
            bytes: ENTRY_BYTES as u64,
        };
        let ranges: Vec<Range> = partitions.iter().map(range).collect();
        let read = self.read(&ranges, until_ns).await?;
        if !self.holds_lease() {
            return Err(Error::busy("the directory was read without a lease"));
        }
        let entry = |(bytes, partition): (&Vec<u8>, &PartitionId)| {
            let bytes = bytes.first_chunk::<ENTRY_BYTES>();
            let bytes = bytes.ok_or_else(|| Error::unsupported("a READ of another length"))?;
            let entry = PartitionEntry::decode(bytes, geometry, *partition).ok();
            Ok(entry.map(|PartitionEntry { owner, shape }| {
                let Shape { packed, generation, log2_buckets } = shape;
                (owner.epoch, Shaped { packed, generation, log2_buckets })
            }))
        };
        read.iter().zip(partitions).map(entry).collect()
    }

    /// Sets the number of partitions, unless another node did. Returns the geometry that holds.
    pub(crate) async fn begin_index(
        &self,
        directory: BlockId,
        partition_bits: u32,
        until_ns: u64,
    ) -> Result<Geometry> {
        let block = self.pool.block_bytes();
        let geometry = Geometry::new(partition_bits);
        let geometry = geometry.ok_or_else(|| Error::invalid("too many partitions"))?;
        if entry_offset(PartitionId(geometry.partitions())) > roster_offset(block) {
            return Err(Error::invalid(format!(
                "the directory of {} partitions and its roster do not fit a block of {block} bytes",
                geometry.partitions()
            )));
        }
        let (address, head) = (self.in_roster(directory, 8), roster_head(partition_bits));
        self.enter(address, 0, head, until_ns).await?;
        let begun = self.roster(directory, until_ns).await?.partition_bits;
        let geometry = begun.and_then(Geometry::new);
        geometry.ok_or_else(|| Error::unsupported("the directory's head is out of range"))
    }

    /// Sets the number of buckets of a partition, unless another node did. Returns the number that
    /// holds.
    pub(crate) async fn begin_partition(
        &self,
        directory: BlockId,
        partition: PartitionId,
        log2_buckets: u32,
        until_ns: u64,
    ) -> Result<u32> {
        let offset = entry_offset(partition) + 16;
        let mine = 1 << 32 | u64::from(log2_buckets);
        let was = self.enter(Address { block: directory, offset }, 0, mine, until_ns).await?;
        Ok(if was == 0 { log2_buckets } else { was as u32 })
    }

    /// Sets the subtable of a partition that was begun, unless another node did. Returns the
    /// subtable that holds.
    pub(crate) async fn place_partition(
        &self,
        directory: BlockId,
        geometry: Geometry,
        partition: PartitionId,
        mine: Shaped,
        until_ns: u64,
    ) -> Result<Shaped> {
        let offset = entry_offset(partition);
        let at = |more: u64| Address { block: directory, offset: offset + more };
        let was = self.enter(at(8), 0, mine.packed, until_ns).await?;
        let packed = if was == 0 { mine.packed } else { was };
        let Shaped { generation, log2_buckets, .. } = mine;
        let owner = Owner { epoch: 0, node: None, access: crate::format::Access::OneSided };
        let entry = PartitionEntry { owner, shape: Shape { packed, generation, log2_buckets } };
        let bytes = entry.encode(geometry, partition);
        let bytes = bytes.ok_or_else(|| Error::unsupported("an entry is out of range"))?;
        let mut check = [0; 8];
        check.copy_from_slice(&bytes[24..]);
        // If the index is already in use, its check word is another one. Then nothing is changed,
        // and no node uses the result.
        self.enter(at(24), 0, u64::from_le_bytes(check), until_ns).await?;
        Ok(Shaped { packed, ..mine })
    }
}
