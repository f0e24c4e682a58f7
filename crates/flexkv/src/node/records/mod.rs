//! Records: room for new ones, and what becomes of old ones.
//!
//! A node allocates from blocks that it owns (`pieces.rs`). A record that was superseded is given
//! back to the node that owns its block, by whoever committed the write (`reclaim.rs`), and is used
//! again an address lease later: nobody acts on its address then. What gets lost on the way is
//! found by sweeps (`sweep.rs`).
//!
//! **Full memory.** A write that gets no block from the pool looks in this order: free pieces of
//! this node's blocks that lie next to each other are joined; another node lends a piece of its
//! blocks. A lent piece belongs to its block's owner: it is given back there, and that node's
//! sweeps and expiry see to it. Deletions need no room at all ([`crate::onesided`],
//! [`crate::proxy`]), so memory that is full can always be emptied, whichever node a client is
//! connected to. Cost: a question to each node per write that is refused.

mod fast_path;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Gate;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_pool::{Address, ClientId, HeapStats, Sharing};
use parking_lot::Mutex;

use super::Inner;
use super::peers::Asked;
use super::pieces::Pieces;
use crate::format::{BUCKET_BYTES, Header, KeyHash, LENGTH_UNITS_MAX, Record, Slot, UNIT_BYTES};
use crate::table::Range;
use crate::wire::{Message, Shaped, Why};

/// How often blocks are looked through.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) pieces: Mutex<Pieces>,
    growing: Gate,
    /// Whether records with an expiry may lie in this node's blocks.
    pub(crate) has_expiring: AtomicBool,
    /// Whether the pool refused a block since [`crate::expiry`] looked.
    pub(crate) memory_is_short: AtomicBool,
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
    pub(crate) fn new(block_bytes: u64) -> Self {
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
}

impl Inner {
    /// Room in a block that this node owns: in one that it has, in a new one, or in free pieces
    /// that are joined. Busy if there is none.
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

    /// Room for a record: in a block that this node owns, or else in one that another node lends
    /// from.
    async fn allocate_record(self: &Arc<Self>, bytes: u64, expires: bool) -> Result<Address> {
        let refused = match self.allocate(bytes).await {
            Err(refused) if refused.kind() == ErrorKind::Busy => refused,
            other => return other,
        };
        let map = Arc::clone(&self.joined()?.map.read());
        let room = Message::Room { bytes, expires };
        for member in map.members.iter().filter(|member| member.client != self.pool.client()) {
            let (peer, mut asked) = (self.peers.peer(member), Asked::new(&room));
            match self.ask_once(&peer, &mut asked).await {
                Ok(Some(Message::Roomed { packed })) => return Ok(self.table.address(packed)),
                // The room may have been given without an answer.
                Ok(None) | Err(_) if asked.was_sent() => self.have_member_swept(&peer),
                _ => {}
            }
        }
        Err(refused)
    }

    /// Another node's question for room. It gets what is at hand, and no new block.
    pub(crate) fn lend_room(&self, bytes: u64, expires: bool) -> Message {
        let now_ns = self.now_ns();
        let mut pieces = self.records.pieces.lock();
        let at_hand = pieces.allocate(bytes, now_ns).transpose();
        let room = at_hand.or_else(|| pieces.join_and_allocate(bytes, now_ns).transpose());
        drop(pieces);
        self.records.has_expiring.fetch_or(expires, Ordering::Relaxed);
        match room.and_then(Result::ok).and_then(|address| self.table.packing.pack(address)) {
            Some(packed) => Message::Roomed { packed },
            None => self.declined(Why::Full),
        }
    }

    /// A new record on all its copies.
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

    /// Gives back a record that never was in the index. A write of it may still be under way; its
    /// place is used again as late as any other.
    pub(crate) fn free_unpublished(self: &Arc<Self>, written: Written) {
        let from_ns = self.now_ns() + self.settings.address_lease_ns();
        let mine = self.records.pieces.lock().free(written.address, written.bytes, from_ns);
        if !mine {
            // Another node lent the room.
            self.free_later(written.slot);
        }
    }

    /// The same of a write that may have had no record.
    pub(crate) fn free_if_written(self: &Arc<Self>, written: Option<Written>) {
        if let Some(written) = written {
            self.free_unpublished(written);
        }
    }

    /// Gives back what a subtable took, if it lies in a block of this node's. Every node is told;
    /// one that adopts the block later finds it in its sweep.
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

    /// Blocks in which nothing lives any more go back to the pool, now and then, for as long as the
    /// node lives.
    pub(crate) fn keep_releasing(self: &Arc<Self>) {
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

    pub(crate) fn peer_of(&self, client: ClientId) -> Option<Arc<super::peers::Peer>> {
        let map = Arc::clone(&self.joined().ok()?.map.read());
        let member = map.members.iter().find(|member| member.client == client)?;
        Some(self.peers.peer(member))
    }

    /// Whether a request should be answered as fenced.
    pub(crate) fn fenced(&self) -> Option<Message> {
        (!self.table.holds_lease()).then(|| self.declined(Why::Fenced))
    }
}
