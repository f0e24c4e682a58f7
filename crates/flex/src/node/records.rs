//! Records: room for new ones, and what becomes of old ones.
//!
//! A node allocates from blocks that it owns ([`Heap`]). A record that was superseded is given back to the node that owns its
//! block, by whoever committed the write, and is used again an address lease later: nobody acts on its address then. What is
//! given back to a node that is gone stays taken until its block's next owner looks through the index.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::Gate;
use archipelago_base::{Error, Result};
use archipelago_pool::{Address, ClientId, Heap, HeapStats, Sharing};
use parking_lot::Mutex;

use super::Inner;
use crate::format::{BUCKET_BYTES, Header, KeyHash, LENGTH_UNITS_MAX, Record, Slot, UNIT_BYTES};
use crate::table::Range;
use crate::wire::{Message, Shaped, Why};

/// How often blocks are looked through.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

/// Records of other nodes' blocks are given back together after so long.
const RETURN_AFTER: Duration = Duration::from_millis(2);
/// Of one message.
const RETURNS_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct Records {
    heap: Mutex<Heap>,
    growing: Gate,
    /// Words of records to be given back to who owns their blocks.
    returns: Mutex<Vec<u64>>,
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
        let heap = Mutex::new(Heap::new(block_bytes));
        Self { heap, growing: Gate::default(), returns: Mutex::default() }
    }

    pub(super) fn stats(&self) -> HeapStats {
        self.heap.lock().stats()
    }
}

impl Inner {
    /// Room in a block that this node owns.
    pub(crate) async fn allocate(&self, bytes: u64) -> Result<Address> {
        loop {
            let piece = self.records.heap.lock().allocate(bytes, self.now_ns())?;
            if let Some(piece) = piece {
                return Ok(piece.address);
            }
            let _pass = self.records.growing.enter().await;
            let piece = self.records.heap.lock().allocate(bytes, self.now_ns())?;
            if let Some(piece) = piece {
                return Ok(piece.address);
            }
            let block = self.pool.allocate(Sharing::All).await?;
            self.records.heap.lock().add(block);
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
        self.records.heap.lock().free(written.address, written.bytes, from_ns);
    }

    /// Gives back what a subtable took, if it lies in a block of this node's.
    pub(crate) fn free_table(&self, shape: Shaped) {
        let address = self.table.address(shape.packed);
        let bytes = (BUCKET_BYTES as u64) << shape.log2_buckets;
        let from_ns = self.now_ns() + self.settings.address_lease_ns();
        self.records.heap.lock().free(address, bytes, from_ns);
    }

    /// Gives back the record that `old` named, wherever it lies: at once if it is this node's, with others otherwise.
    pub(crate) fn free_later(self: &Arc<Self>, old: Slot) {
        let Some(range) = self.table.record(old).filter(|_| old.is_live()) else { return };
        let mine = self
            .pool
            .try_open(range.address.block)
            .is_some_and(|open| open.config.owner == Some(self.pool.client()));
        if mine && range.bytes < LENGTH_UNITS_MAX * UNIT_BYTES {
            let from_ns = self.now_ns() + self.settings.address_lease_ns();
            self.records.heap.lock().free(range.address, range.bytes, from_ns);
            return;
        }
        let first = {
            let mut returns = self.records.returns.lock();
            returns.push(old.0);
            returns.len() == 1
        };
        if first {
            let inner = Arc::clone(self);
            let task = async move {
                inner.runtime.sleep(RETURN_AFTER).await;
                let words = std::mem::take(&mut *inner.records.returns.lock());
                inner.return_all(words).await;
            };
            self.runtime.spawn("flex-free", Box::pin(task));
        }
    }

    /// Gives records back to who owns their blocks.
    async fn return_all(self: &Arc<Self>, words: Vec<u64>) {
        let mut by_owner: BTreeMap<ClientId, Vec<u64>> = BTreeMap::new();
        for word in words {
            let Some(range) = self.table.record(Slot(word)) else { continue };
            let open = match self.pool.try_open(range.address.block) {
                Some(open) => Ok(open),
                None => self.pool.open(range.address.block).await,
            };
            match open {
                Ok(open) => {
                    if let Some(owner) = open.config.owner {
                        by_owner.entry(owner).or_default().push(word);
                    }
                }
                Err(error) => tracing::debug!(%error, "a record was not given back"),
            }
        }
        for (owner, words) in by_owner {
            if owner == self.pool.client() {
                self.free_here(&words).await;
                continue;
            }
            let Some(peer) = self.peer_of(owner) else { continue };
            for words in words.chunks(RETURNS_MAX) {
                let free = Message::Free { words: words.to_vec() };
                if let Err(error) = self.ask(&peer, &free, self.until_ns()).await {
                    tracing::debug!(%error, "records were not given back");
                }
            }
        }
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
            self.records.heap.lock().free(address, bytes, from_ns);
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
                let empty = inner.records.heap.lock().take_empty(inner.now_ns());
                for block in empty {
                    if let Err(error) = inner.pool.release(block).await {
                        tracing::debug!(%error, %block, "a block was not released");
                    }
                }
            }
        };
        self.runtime.spawn("flex-release", Box::pin(task));
    }

    fn peer_of(&self, client: ClientId) -> Option<Arc<super::peers::Peer>> {
        let map = Arc::clone(&self.joined().ok()?.map.read());
        let member = map.members.iter().find(|member| member.client == client)?;
        Some(self.peers.peer(member))
    }

    /// Whether a request should be answered as fenced.
    pub(crate) fn fenced(&self) -> Option<Message> {
        (!self.table.holds_lease()).then(|| self.declined(Why::Fenced))
    }
}
