//! Several records at a time, for writes that must not wait (`client/fast_path.rs`).
//!
//! Failure: a call that would have to wait does nothing and returns `None`.
//! Cost: one or two locks of the pieces and one batch of writes per block. A call allocates a few
//! times, whatever the number of records.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_pool::{Address, BlockId, OpenBlock};

use super::{Node, Written};
use crate::format::{KeyHash, LENGTH_UNITS_MAX, Record, Slot, UNIT_BYTES};

/// Largest number of cache lines that a call prefetches. The processor itself prefetches the lines
/// of longer records, because they follow one another.
const ASKED_MAX: usize = 128;

impl Node {
    /// Writes new records to all their copies, in their order. `None`, without effect, if this
    /// node's blocks have no free memory or a copy does not complete immediately. The same holds if
    /// a record is too long for that or for the format.
    pub(crate) fn write_records_fast(
        self: &Arc<Self>,
        records: &[(KeyHash, Record<'_>)],
        now_ns: u64,
    ) -> Option<Vec<Written>> {
        let mut lengths = Vec::with_capacity(records.len());
        for (_, record) in records {
            let bytes = record.bytes()?;
            // The slot of a shorter record tells its length.
            if bytes > self.pool.block_bytes() || bytes >= LENGTH_UNITS_MAX * UNIT_BYTES {
                return None;
            }
            lengths.push(bytes);
        }
        let addresses = self.allocate_all(&lengths, now_ns)?;
        if records.iter().any(|(_, record)| record.expires_ms > 0) {
            self.records.has_expiring.store(true, Ordering::Relaxed);
        }
        let name = |((address, bytes), (hash, _)): ((&Address, &u64), &(KeyHash, Record<'_>))| {
            let packed = self.table.pack(*address);
            let slot = packed.and_then(|packed| Slot::live(packed, *bytes, hash.fingerprint()));
            slot.map(|slot| Written { slot, address: *address, bytes: *bytes })
        };
        let named = addresses.iter().zip(&lengths).zip(records).map(name);
        let Some(written) = named.collect::<Option<Vec<Written>>>() else {
            self.unallocate(&addresses, &lengths, now_ns);
            return None;
        };
        if self.copy_records(records, &written).is_none() {
            written.iter().for_each(|written| self.free_unpublished(*written));
            return None;
        }
        Some(written)
    }

    /// Allocates memory for all records, in blocks that are open.
    fn allocate_all(&self, lengths: &[u64], now_ns: u64) -> Option<Vec<Address>> {
        let mut pieces = self.records.pieces.lock();
        let mut addresses = Vec::with_capacity(lengths.len());
        if let Some(bytes) = lengths.first() {
            // Most records have the same size.
            pieces.settle(now_ns);
            pieces.prefetch_next(*bytes, lengths.len());
        }
        for bytes in lengths {
            match pieces.allocate(*bytes, now_ns) {
                Ok(Some(address)) => addresses.push(address),
                Ok(None) | Err(_) => {
                    drop(pieces);
                    self.unallocate(&addresses, lengths, now_ns);
                    return None;
                }
            }
        }
        Some(addresses)
    }

    /// Frees memory whose address no other node ever had.
    fn unallocate(&self, addresses: &[Address], lengths: &[u64], now_ns: u64) {
        let mut pieces = self.records.pieces.lock();
        for (address, bytes) in addresses.iter().zip(lengths) {
            pieces.free(*address, *bytes, now_ns);
        }
    }

    fn copy_records(&self, records: &[(KeyHash, Record<'_>)], written: &[Written]) -> Option<()> {
        // Most records lie in one block, one after another.
        let groups: Vec<&[Written]> =
            written.chunk_by(|one, next| one.address.block == next.address.block).collect();
        let mut open = Vec::with_capacity(groups.len());
        for group in &groups {
            let block = self.fast_block(group[0].address.block)?;
            // Memory that was freed long ago is in no processor cache. Without a prefetch, each
            // store would wait for it in turn.
            let lines = |Written { address, bytes, .. }: &Written| {
                (address.offset..address.offset + bytes).step_by(UNIT_BYTES as usize)
            };
            let lines = group.iter().flat_map(lines).take(ASKED_MAX);
            block.prefetch(&lines.collect::<Vec<u64>>());
            open.push(block);
        }
        let total: u64 = written.iter().map(|written| written.bytes).sum();
        let mut bytes = vec![0; total as usize];
        let mut rest = &mut bytes[..];
        for ((hash, record), Written { bytes, .. }) in records.iter().zip(written) {
            let (out, behind) = rest.split_at_mut(*bytes as usize);
            record.encode_hashed(*hash, out)?;
            rest = behind;
        }
        let mut rest = &bytes[..];
        for (group, open) in groups.into_iter().zip(open) {
            let mut writes = Vec::with_capacity(group.len());
            for Written { address, bytes, .. } in group {
                let (record, behind) = rest.split_at(*bytes as usize);
                writes.push((address.offset, record));
                rest = behind;
            }
            if let Err(refusal) = open.write_at_once(&writes) {
                self.pool.stale(&open, refusal);
                return None;
            }
        }
        Some(())
    }

    /// Frees the records that these words name and that lie in blocks of this node. Words of other
    /// records, and words that do not tell the record's length, remain in `superseded`.
    pub(crate) fn free_own(&self, superseded: &mut Vec<Slot>) {
        let from_ns = self.now_ns() + self.settings.address_lease_ns();
        let mut pieces = self.records.pieces.lock();
        let range = |old: &Slot| {
            let range = self.table.record(*old);
            range.filter(|range| range.bytes < LENGTH_UNITS_MAX * UNIT_BYTES)
        };
        superseded.iter().filter_map(range).for_each(|range| pieces.prefetch(range.address));
        superseded.retain(|old| {
            let known = range(old);
            !known.is_some_and(|range| pieces.free(range.address, range.bytes, from_ns))
        });
    }

    /// The block, if it is open and each write to it completes before the call returns.
    pub(crate) fn fast_block(&self, block: BlockId) -> Option<Arc<OpenBlock>> {
        let known = self.pool.try_open(block);
        known.filter(|open| open.is_writable() && open.completes_at_once())
    }
}
