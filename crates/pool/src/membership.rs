//! A client's membership: its lease, the nodes that it knows, the blocks that it owns.
//!
//! A state machine without clock, lock or I/O: it says when to renew and what with, and takes the
//! answers.
//!
//! Invariants: 1. the lease counts from when the renewal that was answered was *sent*; 2. what an
//! answer says about members is taken in before the next renewal confirms its version; 3. a client
//! that was evicted stays so: the process joins under a new id; 4. a block that was released is not
//! taken for adopted when the manager forgets about it.

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

/// What changed among the blocks that a client owns, without its doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// It owns a block that it did not know: adopted from a client that died, or allocated by a
    /// request whose answer was lost.
    Adopted(BlockId),
    /// A block of its is gone: every copy was lost, or it was given to another client.
    Gone(BlockId),
}

/// What every operation looks at: a copy that is read without the state machine's lock.
#[derive(Debug, Default)]
pub(crate) struct Published {
    lease_until_ns: AtomicU64,
    block_bytes: AtomicU64,
}

impl Published {
    /// As [`Membership::lease_until_ns`].
    pub(crate) fn lease_until_ns(&self) -> u64 {
        self.lease_until_ns.load(Ordering::SeqCst)
    }

    /// As [`Membership::block_bytes`].
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes.load(Ordering::SeqCst)
    }
}

/// See the module.
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
    /// Requests to allocate that are neither answered nor given up: their blocks are not adopted.
    asking: u32,
    published: Arc<Published>,
}

impl Membership {
    /// A client that has not joined. `client` is random, one per life; `label` says whose data it
    /// works on.
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

    /// What it publishes from now on.
    pub(crate) fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published)
    }

    /// After each change of what is published.
    fn publish(&self) {
        self.published.lease_until_ns.store(self.lease_until_ns(), Ordering::SeqCst);
        self.published.block_bytes.store(self.block_bytes, Ordering::SeqCst);
    }

    /// Who it is.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Whether the manager has taken it in.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    /// Whether it was taken for dead. Nothing of the pool may be used any more.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.evicted
    }

    /// Until when it holds a lease: the manager takes it for a member, and what it was told of
    /// silent nodes is complete.
    #[must_use]
    pub fn lease_until_ns(&self) -> u64 {
        if self.evicted { 0 } else { self.lease_until_ns }
    }

    /// Bytes of a block; 0 if not known yet.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The version of the members that is known. What was asked for under another one says nothing
    /// about copies: a node may have been left behind, and have come back, meanwhile.
    #[must_use]
    pub fn view(&self) -> u64 {
        self.view
    }

    /// A node, if it is up.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&Member> {
        self.members.get(&node).filter(|member| member.up)
    }

    /// Every node that is known.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The blocks that it owns.
    pub fn owned(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.owned.keys().copied()
    }

    /// What changed since the last call. While a request to allocate is under way nothing is told:
    /// the list of blocks may have been faster than the answer.
    pub fn take_changes(&mut self) -> Vec<Owned> {
        if self.asking > 0 {
            return Vec::new();
        }
        std::mem::take(&mut self.changes)
    }

    /// When to renew next.
    #[must_use]
    pub fn renew_ns(&self) -> u64 {
        self.renew_ns
    }

    /// The renewal to send now; the next one is due a third of a lease later, or after `retry_ns`
    /// if it does not know the lease yet. The manager need not have answered the one before.
    /// Without a lease it knows of no members: see there.
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

    /// The answer to a renewal that was sent at `sent_ns`.
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

    /// Somebody else said that it was taken for dead.
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

    /// Nodes of which nothing may stay in use, since the last call: they were not up at some time
    /// since. To be acted upon before the next renewal.
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

    /// A number for a request to allocate, which ends with [`Membership::allocated`] or
    /// [`Membership::gave_up`].
    pub fn next_request(&mut self) -> u64 {
        self.asking += 1;
        let request = self.next_request;
        self.next_request += 1;
        request
    }

    /// A request to allocate was refused, or nobody knows what came of it. Should there be a block
    /// after all it is told as adopted.
    pub fn gave_up(&mut self) {
        self.asking = self.asking.saturating_sub(1);
    }

    /// A block was allocated for this client.
    pub fn allocated(&mut self, block: BlockId, epoch: Epoch) {
        self.asking = self.asking.saturating_sub(1);
        self.released.remove(&block);
        if self.owned.insert(block, epoch).is_none() {
            return;
        }
        // The list of blocks was faster than the answer.
        self.changes.retain(|change| *change != Owned::Adopted(block));
    }

    /// This client gives a block up; the request to the manager, to be repeated until it is
    /// answered.
    pub fn release(&mut self, block: BlockId) -> Option<Message> {
        self.owned.remove(&block)?;
        self.released.insert(block);
        Some(Message::Release { client: self.client, block })
    }

    /// Blocks that were released and that a manager still counts as this client's: to be released
    /// again.
    pub fn to_release(&self) -> Vec<Message> {
        let again = |block: &BlockId| Message::Release { client: self.client, block: *block };
        self.released.iter().map(again).collect()
    }

    /// The manager no longer counts the block as this client's.
    pub fn released(&mut self, block: BlockId) {
        self.released.remove(&block);
    }
}
