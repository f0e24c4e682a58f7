//! The membership of a client: its lease, the nodes that it knows, and the blocks that it owns.
//!
//! [`Membership`] is a state machine without clock, lock or I/O. It says when to renew the lease
//! and with which message, and takes the answers. The client owns it under a lock.
//!
//! Invariants:
//! 1. The lease counts from the time at which the answered renewal was *sent*.
//! 2. The client acts on a new version of the members before its next renewal confirms the version.
//! 3. An evicted client stays evicted. Its process joins again under a new id.
//! 4. A released block is not reported as adopted, even if a manager has forgotten the release.
//!
//! Thread-safety: none; [`Published`] holds a copy that is read without the client's lock.
//! Failure: none. An answer of an older term is ignored.
//! Cost: O(number of members and owned blocks) for an answer that brings them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};

use crate::address::BlockId;
use crate::config::Place;
use crate::wire::{BlockAt, Member, Message, Why};

/// Renewals per lease.
const RENEWALS: u64 = 3;

/// A change of the blocks that a client owns, which another member caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// The client owns a block that it did not know. It adopted the block from a dead client, or a
    /// request whose answer was lost allocated it.
    Adopted(BlockId),
    /// The client lost a block: every copy was lost, or another client owns it.
    Gone(BlockId),
}

/// The values that every operation reads: a copy outside of the state machine's lock.
#[derive(Debug, Default)]
pub(crate) struct Published {
    lease_until_ns: AtomicU64,
    block_bytes: AtomicU64,
}

impl Published {
    /// End of the lease; see [`Membership::lease_until_ns`].
    pub(crate) fn lease_until_ns(&self) -> u64 {
        self.lease_until_ns.load(Ordering::SeqCst)
    }

    /// Bytes of a block; see [`Membership::block_bytes`].
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes.load(Ordering::SeqCst)
    }
}

/// The membership of one client, as a state machine.
#[derive(Debug)]
pub struct Membership {
    client: ClientId,
    label: u64,
    joined: bool,
    evicted: bool,
    view: u64,
    owned_version: u64,
    term: u64,
    lease_ns: u64,
    lease_until_ns: u64,
    block_bytes: u64,
    members: BTreeMap<NodeId, Member>,
    owned: BTreeMap<BlockId, Epoch>,
    released: BTreeSet<BlockId>,
    changes: Vec<Owned>,
    left: Vec<Place>,
    renew_ns: u64,
    next_request: u64,
    /// Number of allocations that are neither answered nor given up. Their blocks are not adopted.
    asking: u32,
    published: Arc<Published>,
}

impl Membership {
    /// The membership of a client that has not joined. `client` is random and new in each life.
    /// `label` names the data that the client works on.
    #[must_use]
    pub fn new(client: ClientId, label: u64) -> Self {
        Self {
            client,
            label,
            joined: false,
            evicted: false,
            view: 0,
            owned_version: 0,
            term: 0,
            lease_ns: 0,
            lease_until_ns: 0,
            block_bytes: 0,
            members: BTreeMap::new(),
            owned: BTreeMap::new(),
            released: BTreeSet::new(),
            changes: Vec::new(),
            left: Vec::new(),
            renew_ns: 0,
            next_request: 1,
            asking: 0,
            published: Arc::default(),
        }
    }

    /// The published values, which follow every change of this membership.
    pub(crate) fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published)
    }

    /// Publishes the values. Every change of them ends with this call.
    fn publish(&self) {
        self.published.lease_until_ns.store(self.lease_until_ns(), Ordering::SeqCst);
        self.published.block_bytes.store(self.block_bytes, Ordering::SeqCst);
    }

    /// The id of the client.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Whether the manager has admitted the client.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    /// Whether the client was declared dead. Then it may not use the pool any more.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.evicted
    }

    /// End of the lease, in nanoseconds. Until then the client is a member, and knows of every node
    /// that was silent.
    #[must_use]
    pub fn lease_until_ns(&self) -> u64 {
        if self.evicted { 0 } else { self.lease_until_ns }
    }

    /// Bytes of a block; 0 while they are unknown.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The version of the list of members that the client knows. An answer to a request under
    /// another version says nothing about copies, because a node may have been left out and
    /// returned meanwhile.
    #[must_use]
    pub fn view(&self) -> u64 {
        self.view
    }

    /// A node that is up.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&Member> {
        self.members.get(&node).filter(|member| member.up)
    }

    /// All nodes that the client knows.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The blocks that the client owns.
    pub fn owned(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.owned.keys().copied()
    }

    /// Changes of the owned blocks since the last call. Returns nothing during an allocation,
    /// because the list of blocks may have arrived before the allocation's answer.
    pub fn take_changes(&mut self) -> Vec<Owned> {
        if self.asking > 0 {
            return Vec::new();
        }
        std::mem::take(&mut self.changes)
    }

    /// Time of the next renewal, in nanoseconds.
    #[must_use]
    pub fn renew_ns(&self) -> u64 {
        self.renew_ns
    }

    /// The renewal to send now. The next one is due a third of a lease later, or after `retry_ns`
    /// if the length of the lease is unknown. The manager need not have answered the previous one.
    /// Without a lease the message names no version of the members, so that the manager sends all
    /// of them.
    pub fn renew(&mut self, now_ns: u64, retry_ns: u64) -> Message {
        let third = self.lease_ns / RENEWALS;
        self.renew_ns = now_ns + if third == 0 { retry_ns } else { third };
        Message::Renew {
            client: self.client,
            label: self.label,
            first: !self.joined,
            view: if now_ns < self.lease_until_ns { self.view } else { 0 },
            owned: self.owned_version,
        }
    }

    /// Takes the answer to a renewal that was sent at `sent_ns`.
    pub fn on_renewed(&mut self, sent_ns: u64, answer: &Message) {
        match answer {
            Message::Renewed {
                term,
                lease_ms,
                block_bytes,
                view,
                members,
                owned,
                blocks,
                as_of,
            } => {
                if *term < self.term {
                    return;
                }
                self.term = *term;
                self.joined = true;
                self.lease_ns = lease_ms * 1_000_000;
                self.lease_until_ns = self.lease_until_ns.max(sent_ns + self.lease_ns);
                if *block_bytes > 0 {
                    self.block_bytes = *block_bytes;
                }
                if let Some(members) = members.as_ref().filter(|_| *view > self.view) {
                    self.take_members(*view, members);
                }
                if let Some(blocks) = blocks.as_ref().filter(|_| *owned > self.owned_version) {
                    self.owned_version = *owned;
                    self.take_owned(blocks, *as_of);
                }
                self.publish();
            }
            Message::Refuse { refused } if refused.why == Why::Evicted => self.evict(),
            _ => {}
        }
    }

    /// Notes the report of a memory node that the client was declared dead.
    pub fn evict(&mut self) {
        self.evicted = true;
        self.publish();
    }

    fn take_members(&mut self, view: u64, members: &[Member]) {
        let known = std::mem::replace(&mut self.view, view);
        let now: BTreeMap<NodeId, Member> =
            members.iter().map(|member| (member.node, member.clone())).collect();
        let before = std::mem::replace(&mut self.members, now);
        for (node, member) in before {
            let now = self.members.get(&node);
            let stays =
                now.is_some_and(|now| now.up && now.life == member.life && now.since <= known);
            if !stays {
                self.left.push(Place { node, life: member.life });
            }
        }
    }

    /// Nodes that were not up at some time since the last call. The caller must stop using their
    /// copies before the next renewal.
    pub fn take_left(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.left)
    }

    fn take_owned(&mut self, blocks: &[BlockAt], as_of: Epoch) {
        let now: BTreeMap<BlockId, Epoch> = blocks.iter().map(|at| (at.block, at.epoch)).collect();
        for (block, epoch) in now.iter().filter(|(block, _)| !self.released.contains(block)) {
            if self.owned.insert(*block, *epoch).is_none() {
                self.changes.push(Owned::Adopted(*block));
            }
        }
        let changes = &mut self.changes;
        self.owned.retain(|block, epoch| {
            let still = now.contains_key(block) || *epoch > as_of;
            if !still {
                changes.push(Owned::Gone(*block));
            }
            still
        });
    }

    /// Begins an allocation and returns its number. It ends with [`Membership::allocated`] or
    /// [`Membership::gave_up`].
    pub fn next_request(&mut self) -> u64 {
        self.asking += 1;
        let request = self.next_request;
        self.next_request += 1;
        request
    }

    /// Ends an allocation that was refused or has an unknown outcome. If a block exists after all,
    /// it is reported as adopted.
    pub fn gave_up(&mut self) {
        self.asking = self.asking.saturating_sub(1);
    }

    /// Ends an allocation that brought a block.
    pub fn allocated(&mut self, block: BlockId, epoch: Epoch) {
        self.asking = self.asking.saturating_sub(1);
        self.released.remove(&block);
        if self.owned.insert(block, epoch).is_none() {
            return;
        }
        // The list of blocks arrived before the answer.
        self.changes.retain(|change| *change != Owned::Adopted(block));
    }

    /// Gives a block up. Returns the request to the manager, which the caller repeats until it is
    /// answered.
    pub fn release(&mut self, block: BlockId) -> Option<Message> {
        self.owned.remove(&block)?;
        self.released.insert(block);
        Some(Message::Release { client: self.client, block })
    }

    /// Requests to release again the blocks that a manager still counts as this client's.
    pub fn to_release(&self) -> Vec<Message> {
        let again = |block: &BlockId| Message::Release { client: self.client, block: *block };
        self.released.iter().map(again).collect()
    }

    /// Notes that the manager has confirmed the release of a block.
    pub fn released(&mut self, block: BlockId) {
        self.released.remove(&block);
    }
}
