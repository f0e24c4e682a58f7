//! Records: where new ones are placed, and what becomes of old ones.
//!
//! A node allocates records from blocks that it owns (`pieces.rs`). The node that commits a write
//! gives the superseded record back to the owner of its block (`reclaim.rs`). The owner reuses the
//! memory an address lease later, when no node acts on the record's address any more. Sweeps find
//! the records that get lost on the way (`sweep.rs`).
//!
//! **Full memory.** If the pool gives no block, a write first joins free pieces of this node's
//! blocks that lie next to each other. Then it asks the other nodes to lend a piece of their
//! blocks. A lent piece belongs to the owner of its block: it is given back there, and that node's
//! sweeps and expiry cover it. Deletions need no memory ([`crate::onesided`], `proxy/`), so a full
//! store can always be emptied, whichever node a client is connected to.
//!
//! Thread-safety: any thread may call any method. One mutex guards the pieces, and one gate lets a
//! single task ask the pool for a block.
//! Failure: a write without memory ends as busy and without effect.
//! Cost: one short lock per allocation. A write that finds no memory asks each node once.

mod fast_path;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Gate;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_pool::{Address, BlockId, HeapStats, Sharing};
use parking_lot::Mutex;

use super::Node;
use super::peers::{Asked, Peer};
use super::pieces::Pieces;
use crate::format::{BUCKET_BYTES, Header, KeyHash, LENGTH_UNITS_MAX, Record, Slot, UNIT_BYTES};
use crate::table::Range;
use crate::wire::{Message, Shaped, Why};

/// Time between two searches for empty blocks.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

/// The blocks of this node, and the pieces in them.
#[derive(Debug)]
pub(crate) struct Records {
    pieces: Mutex<Pieces>,
    growing: Gate,
    /// Whether records with an expiry may lie in this node's blocks.
    has_expiring: AtomicBool,
    /// Whether the pool refused a block since [`crate::expiry`] looked.
    memory_is_short: AtomicBool,
}

/// A record that was written to the pool and is not in the index yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// The word that names it.
    pub(crate) slot: Slot,
    address: Address,
    bytes: u64,
}

impl Records {
    pub(super) fn new(block_bytes: u64) -> Self {
        Self {
            pieces: Mutex::new(Pieces::new(block_bytes)),
            growing: Gate::default(),
            has_expiring: AtomicBool::new(false),
            memory_is_short: AtomicBool::new(false),
        }
    }

    pub(crate) fn stats(&self) -> HeapStats {
        self.pieces.lock().stats()
    }

    /// Takes a new block into use.
    pub(crate) fn add_block(&self, block: BlockId) {
        self.pieces.lock().add(block);
    }

    /// Notes a block of a node that died. It is used after the next sweep.
    pub(crate) fn adopt_block(&self, block: BlockId) {
        self.pieces.lock().adopt(block);
        self.has_expiring.store(true, Ordering::Relaxed);
    }

    /// Forgets a block that is not this node's any more.
    pub(crate) fn remove_block(&self, block: BlockId) {
        self.pieces.lock().remove(block);
    }

    /// The blocks whose pieces are known.
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        self.pieces.lock().blocks()
    }

    /// Offsets at which the pieces in use of a block begin.
    pub(crate) fn begins_in(&self, block: BlockId) -> Vec<Address> {
        self.pieces.lock().begins_in(block)
    }

    /// The pieces in use, with their bytes.
    pub(crate) fn in_use(&self) -> Vec<(Address, u64)> {
        self.pieces.lock().in_use()
    }

    /// Lets the next piece that was never used come from another block, if there is one.
    pub(crate) fn next_block(&self) {
        self.pieces.lock().turn();
    }

    /// Keeps a piece through sweeps until [`Records::unpin_all`].
    pub(crate) fn pin(&self, address: Address) {
        self.pieces.lock().pin(address);
    }

    pub(crate) fn unpin_all(&self) {
        self.pieces.lock().unpin_all();
    }

    /// Begins a sweep, and returns the blocks that it covers.
    pub(crate) fn begin_sweep(&self) -> BTreeSet<BlockId> {
        self.pieces.lock().begin_sweep()
    }

    /// Ends a sweep as [`Pieces::end_sweep`] says. Returns the number of pieces that it freed.
    pub(crate) fn end_sweep(
        &self,
        swept: &BTreeSet<BlockId>,
        referred: &BTreeMap<Address, u64>,
        free_from_ns: u64,
    ) -> Result<u64> {
        self.pieces.lock().end_sweep(swept, referred, free_from_ns)
    }

    /// Gives up a sweep that began.
    pub(crate) fn drop_sweep(&self) {
        self.pieces.lock().drop_sweep();
    }

    /// Frees a piece, if it is one in use in a block of this node. Returns whether it was.
    pub(crate) fn free(&self, address: Address, bytes: u64, free_from_ns: u64) -> bool {
        self.pieces.lock().free(address, bytes, free_from_ns)
    }

    /// Notes that a record with an expiry may lie in this node's blocks.
    pub(crate) fn note_expiring(&self) {
        self.has_expiring.store(true, Ordering::Relaxed);
    }

    /// Whether an expiry was noted since the last call.
    pub(crate) fn take_has_expiring(&self) -> bool {
        self.has_expiring.swap(false, Ordering::Relaxed)
    }

    /// Whether the pool refused a block since the last call.
    pub(crate) fn take_memory_is_short(&self) -> bool {
        self.memory_is_short.swap(false, Ordering::Relaxed)
    }
}

impl Node {
    /// Allocates memory in a block that this node owns, in a new block, or in free pieces that it
    /// joins. Busy if there is none.
    pub(crate) async fn allocate(&self, bytes: u64) -> Result<Address> {
        loop {
            if let Some(address) = self.records.pieces.lock().allocate(bytes, self.now_ns())? {
                return Ok(address);
            }
            let _pass = self.records.growing.enter().await;
            if let Some(address) = self.records.pieces.lock().allocate(bytes, self.now_ns())? {
                return Ok(address);
            }
            match self.pool.allocate(Sharing::All).await {
                Ok(block) => self.records.pieces.lock().add(block),
                Err(refused) => {
                    self.records.memory_is_short.store(true, Ordering::Relaxed);
                    let joined =
                        self.records.pieces.lock().join_and_allocate(bytes, self.now_ns())?;
                    return joined.ok_or(refused);
                }
            }
        }
    }

    /// Allocates memory for a record, in a block of this node or in one that another node lends.
    async fn allocate_record(self: &Arc<Self>, bytes: u64, expires: bool) -> Result<Address> {
        let refused = match self.allocate(bytes).await {
            Err(refused) if refused.kind() == ErrorKind::Busy => refused,
            other => return other,
        };
        let map = self.joined()?.map();
        let room = Message::Room { bytes, expires };
        for member in map.members.iter().filter(|member| member.client != self.pool.client()) {
            let (peer, mut asked) = (self.peers.peer(member), Asked::new(&room));
            match self.ask_once(&peer, &mut asked).await {
                Ok(Some(Message::Roomed { packed })) => return Ok(self.table.address(packed)),
                // The other node may have lent the memory although no answer arrived.
                Ok(None) | Err(_) if asked.was_sent() => self.request_sweep_of(&peer),
                _ => {}
            }
        }
        Err(refused)
    }

    /// Answers another node that asks for memory. It gets a free piece of this node's blocks, but
    /// no new block is allocated for it.
    pub(crate) fn lend_room(&self, bytes: u64, expires: bool) -> Message {
        let now_ns = self.now_ns();
        let mut pieces = self.records.pieces.lock();
        let at_hand = pieces.allocate(bytes, now_ns).transpose();
        let room = at_hand.or_else(|| pieces.join_and_allocate(bytes, now_ns).transpose());
        drop(pieces);
        self.records.has_expiring.fetch_or(expires, Ordering::Relaxed);
        match room.and_then(Result::ok).and_then(|address| self.table.pack(address)) {
            Some(packed) => Message::Roomed { packed },
            None => self.declined(Why::Full),
        }
    }

    /// Writes a new record to all its copies.
    pub(crate) async fn write_record(
        self: &Arc<Self>,
        record: &Record<'_>,
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Written> {
        let bytes = record.bytes().filter(|&bytes| bytes <= self.pool.block_bytes());
        let bytes = bytes.ok_or_else(|| Error::invalid("a record longer than a block"))?;
        let expires = record.expires_ms > 0;
        let address = self.allocate_record(bytes, expires).await?;
        self.records.has_expiring.fetch_or(expires, Ordering::Relaxed);
        let mut out = vec![0; bytes as usize];
        record.encode(&mut out).ok_or_else(|| Error::invalid("the expiry is out of range"))?;
        let packed = self.table.pack(address);
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

    /// Gives back a record that never was in the index. A WRITE of it may still be in flight, so
    /// its memory is reused as late as that of any other record.
    pub(crate) fn free_unpublished(self: &Arc<Self>, written: Written) {
        let from_ns = self.now_ns() + self.settings.address_lease_ns();
        let mine = self.records.pieces.lock().free(written.address, written.bytes, from_ns);
        if !mine {
            // Another node lent the memory.
            self.free_later(written.slot);
        }
    }

    /// Gives back the record of a write, if it has one.
    pub(crate) fn free_if_written(self: &Arc<Self>, written: Option<Written>) {
        if let Some(written) = written {
            self.free_unpublished(written);
        }
    }

    /// Gives back the memory of a subtable, if it lies in a block of this node. Every node calls
    /// this. A node that adopts the block later finds the memory in its sweep.
    pub(crate) fn free_table(&self, shape: Shaped) {
        let address = self.table.address(shape.packed);
        let bytes = (BUCKET_BYTES as u64) << shape.log2_buckets;
        let from_ns = self.now_ns() + self.settings.address_lease_ns();
        self.records.pieces.lock().free(address, bytes, from_ns);
    }

    /// Frees records in this node's blocks that another node, or this one, gives back.
    pub(crate) async fn free_here(&self, words: &[u64]) -> Message {
        for word in words {
            let slot = Slot(*word);
            let Some(Range { address, mut bytes }) = self.table.record(slot) else { continue };
            if bytes == LENGTH_UNITS_MAX * UNIT_BYTES {
                // The slot cannot express this length, but the record's head does.
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

    /// Returns empty blocks to the pool at intervals, for as long as the node lives.
    pub(crate) fn keep_releasing(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let task = async move {
            loop {
                runtime.sleep(RELEASE_EVERY).await;
                let Some(node) = weak.upgrade().filter(|node| !node.pool.is_evicted()) else {
                    return;
                };
                let empty = node.records.pieces.lock().take_empty(node.now_ns());
                for block in empty {
                    if let Err(error) = node.pool.release(block).await {
                        tracing::debug!(%error, %block, "a block was not released");
                    }
                }
            }
        };
        self.runtime.spawn("flex-release", Box::pin(task));
    }

    /// Asks a node to sweep that may have lent memory, although no answer arrived. If this node
    /// dies before the request arrives, every node sweeps.
    fn request_sweep_of(self: &Arc<Self>, peer: &Arc<Peer>) {
        let (node, peer) = (Arc::clone(self), Arc::clone(peer));
        let task = async move {
            let sweep = Message::Sweep {};
            if let Err(error) = node.ask(&peer, &sweep, node.until_ns()).await {
                tracing::debug!(%error, "a node that may have lent room got no request to sweep");
            }
        };
        self.runtime.spawn("flex-swept", Box::pin(task));
    }
}
