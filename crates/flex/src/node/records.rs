//! Records: room for new ones, and what becomes of old ones.
//!
//! A node allocates from blocks that it owns (`pieces.rs`). A record that was superseded is given back to the node that owns its
//! block, by whoever committed the write (`frees.rs`), and is used again an address lease later: nobody acts on its address then. What
//! gets lost on the way is found by sweeps (`sweep.rs`).

mod at_once;

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::Gate;
use archipelago_base::{Error, Result};
use archipelago_pool::{Address, ClientId, HeapStats, Sharing};
use parking_lot::Mutex;

use super::Inner;
use super::pieces::Pieces;
use crate::format::{BUCKET_BYTES, Header, KeyHash, LENGTH_UNITS_MAX, Record, Slot, UNIT_BYTES};
use crate::table::Range;
use crate::wire::{Message, Shaped, Why};

/// How often blocks are looked through.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Records {
    pub(super) pieces: Mutex<Pieces>,
    growing: Gate,
}

/// A record that was written to the pool and is not in the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// The word that names it.
    pub(crate) slot: Slot,
    address: Address,
    bytes: u64,
}

impl Records {
    pub(super) fn new(block_bytes: u64) -> Self {
        Self { pieces: Mutex::new(Pieces::new(block_bytes)), growing: Gate::default() }
    }

    pub(super) fn stats(&self) -> HeapStats {
        self.pieces.lock().stats()
    }
}

impl Inner {
    /// Room in a block that this node owns.
    pub(crate) async fn allocate(&self, bytes: u64) -> Result<Address> {
        loop {
            if let Some(address) = self.records.pieces.lock().allocate(bytes, self.now_ns())? {
                return Ok(address);
            }
            let _pass = self.records.growing.enter().await;
            if let Some(address) = self.records.pieces.lock().allocate(bytes, self.now_ns())? {
                return Ok(address);
            }
            let block = self.pool.allocate(Sharing::All).await?;
            self.records.pieces.lock().add(block);
        }
    }

    /// A new record on all its copies.
    pub(crate) async fn write_record(
        &self,
        record: &Record<'_>,
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Written> {
        let bytes = record.bytes().filter(|&bytes| bytes <= self.pool.block_bytes());
        let Some(bytes) = bytes else {
            return Err(Error::invalid(format!(
                "a key of {} and a value of {} bytes do not fit a block of {} bytes",
                record.key.len(),
                record.value.len(),
                self.pool.block_bytes()
            )));
        };
        let address = self.allocate(bytes).await?;
        let mut out = vec![0; bytes as usize];
        record.encode(&mut out).ok_or_else(|| Error::invalid("the expiry is out of range"))?;
        let packed = self.table.packing.pack(address);
        let slot = packed.and_then(|packed| Slot::live(packed, bytes, hash.fingerprint()));
        let Some(slot) = slot else {
            return Err(Error::unsupported(format!("{address} does not fit a slot")));
        };
        let written = Written { slot, address, bytes };
        match self.table.write(&[(address, &out)], until_ns).await {
            Ok(()) => Ok(written),
            Err(error) => {
                self.free_unpublished(written);
                Err(error)
            }
        }
    }

    /// Gives back a record that never was in the index. A write of it may still be under way; its place is used again as late
    /// as any other.
    pub(crate) fn free_unpublished(&self, written: Written) {
        let from_ns = self.now_ns() + self.settings.address_lease_ns();
        self.records.pieces.lock().free(written.address, written.bytes, from_ns);
    }

    /// Gives back what a subtable took, if it lies in a block of this node's. Every node is told; one that adopts the block later finds it in
    /// its sweep.
    pub(crate) fn free_table(&self, shape: Shaped) {
        let address = self.table.address(shape.packed);
        let bytes = (BUCKET_BYTES as u64) << shape.log2_buckets;
        let from_ns = self.now_ns() + self.settings.address_lease_ns();
        self.records.pieces.lock().free(address, bytes, from_ns);
    }

    /// Another node, or this one, gives records in this node's blocks back.
    pub(crate) async fn free_here(&self, words: &[u64]) -> Message {
        for word in words {
            let slot = Slot(*word);
            let Some(Range { address, mut bytes }) = self.table.record(slot) else { continue };
            if bytes == LENGTH_UNITS_MAX * UNIT_BYTES {
                // The slot cannot say how long it is; the record does.
                let head = [Range { address, bytes: UNIT_BYTES }];
                match self
                    .table
                    .read(&head, self.until_ns())
                    .await
                    .map(|read| Header::read(&read[0]).ok().flatten())
                {
                    Ok(Some(header)) => bytes = header.record_bytes(),
                    _ => continue,
                }
            }
            let from_ns = self.now_ns() + self.settings.address_lease_ns();
            self.records.pieces.lock().free(address, bytes, from_ns);
        }
        Message::Done {}
    }

    /// Blocks in which nothing lives any more go back to the pool, now and then, for as long as the node lives.
    pub(super) fn keep_releasing(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let task = async move {
            loop {
                runtime.sleep(RELEASE_EVERY).await;
                let Some(inner) = weak.upgrade().filter(|inner| !inner.pool.is_evicted()) else {
                    return;
                };
                let empty = inner.records.pieces.lock().take_empty(inner.now_ns());
                for block in empty {
                    if let Err(error) = inner.pool.release(block).await {
                        tracing::debug!(%error, %block, "a block was not released");
                    }
                }
            }
        };
        self.runtime.spawn("flex-release", Box::pin(task));
    }

    pub(super) fn peer_of(&self, client: ClientId) -> Option<Arc<super::peers::Peer>> {
        let map = Arc::clone(&self.joined().ok()?.map.read());
        let member = map.members.iter().find(|member| member.client == client)?;
        Some(self.peers.peer(member))
    }

    /// Whether a request should be answered as fenced.
    pub(crate) fn fenced(&self) -> Option<Message> {
        (!self.table.holds_lease()).then(|| self.declined(Why::Fenced))
    }
}
