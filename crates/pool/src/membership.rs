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
//! 5. A release is repeated until the manager says that the block is gone. After a promise, the
//!    client waits a lease before it asks again, and a renewal repeats a bounded number of
//!    releases. So outstanding releases do not delay renewals.
//!
//! Thread-safety: none; [`Published`] holds a copy that is read without the client's lock.
//! Failure: none. An answer of an older term is ignored.
//! Cost: O(number of members and owned blocks) for an answer that brings them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};

use crate::address::BlockId;
use crate::config::Place;
use crate::wire::{BlockAt, Member, Message, Why};

/// Renewals per lease.
const RENEWALS: u64 = 3;
/// Limit of the releases that one renewal repeats.
const RELEASES_MAX: usize = 16;

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

/// State of a release that a client must repeat.
#[derive(Clone, Copy, Debug, Default)]
struct Release {
    /// Time of the latest answer, in nanoseconds; 0 without one.
    heard_ns: u64,
    /// Term in which the manager promised to free the block, and the time of the first such answer
    /// in that term.
    promised: Option<(u64, u64)>,
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
    released: BTreeMap<BlockId, Release>,
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
            released: BTreeMap::new(),
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
        for (block, epoch) in now.iter().filter(|(block, _)| !self.released.contains_key(block)) {
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
        self.released.insert(block, Release::default());
        Some(Message::Release { client: self.client, block })
    }

    /// Blocks to release again at `now_ns`, with the requests: a bounded number, those with the
    /// oldest latest answer first. A block is left out for a lease after the manager of this term
    /// promised to free it.
    #[must_use]
    pub fn to_release(&self, now_ns: u64) -> Vec<(BlockId, Message)> {
        let is_due = |release: &Release| {
            let promised = release.promised.filter(|(term, _)| *term == self.term);
            promised.is_none_or(|(_, since_ns)| now_ns >= since_ns + self.lease_ns)
        };
        let due = self.released.iter().filter(|(_, release)| is_due(release));
        let mut due: Vec<(u64, BlockId)> =
            due.map(|(block, release)| (release.heard_ns, *block)).collect();
        due.sort_unstable();
        due.truncate(RELEASES_MAX);
        let again = |block| (block, Message::Release { client: self.client, block });
        due.into_iter().map(|(_, block)| again(block)).collect()
    }

    /// Takes the manager's answer to the release of a block, at `now_ns`. If an earlier manager
    /// sent the answer, the client repeats the release to the present manager a lease later.
    pub fn on_released(&mut self, now_ns: u64, block: BlockId, answer: &Message) {
        let Some(release) = self.released.get_mut(&block) else { return };
        release.heard_ns = now_ns;
        match answer {
            Message::Refuse { refused }
                if matches!(refused.why, Why::UnknownBlock | Why::NotOwner) =>
            {
                self.released.remove(&block);
            }
            Message::Done {} if release.promised.is_none_or(|(term, _)| term != self.term) => {
                release.promised = Some((self.term, now_ns));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_NS: u64 = 2_000_000_000;

    /// A member in `term` that has released `blocks` blocks.
    fn member(term: u64, blocks: u32) -> Membership {
        let mut member = Membership::new(ClientId(1), 0);
        renewed(&mut member, term);
        for number in 0..blocks {
            member.allocated(block(number), Epoch(number.into()));
            assert!(member.release(block(number)).is_some());
        }
        member
    }

    fn renewed(member: &mut Membership, term: u64) {
        let answer = Message::Renewed {
            term,
            lease_ms: LEASE_NS / 1_000_000,
            block_bytes: 4096,
            view: 0,
            members: None,
            owned: 0,
            blocks: None,
            as_of: Epoch(0),
        };
        member.on_renewed(0, &answer);
    }

    fn block(number: u32) -> BlockId {
        BlockId { home: NodeId(1), number }
    }

    fn numbers(member: &Membership, now_ns: u64) -> Vec<u32> {
        member.to_release(now_ns).into_iter().map(|(block, _)| block.number).collect()
    }

    #[test]
    fn renewals_repeat_a_bounded_number_of_releases_in_turn() {
        let blocks = RELEASES_MAX as u32 * 2 + 3;
        let mut member = member(1, blocks);
        let changing = Message::refuse(Why::Changing);
        let mut asked = Vec::new();
        for now_ns in 1..=3 {
            let again = numbers(&member, now_ns);
            assert_eq!(again.len(), RELEASES_MAX);
            again.iter().for_each(|number| member.on_released(now_ns, block(*number), &changing));
            asked.extend(again);
        }
        assert!(asked.starts_with(&(0..blocks).collect::<Vec<_>>()), "every block once: {asked:?}");
        // A renewal that ended early leaves its last blocks to the next one.
        let again = numbers(&member, 4);
        member.on_released(4, block(again[0]), &changing);
        assert_eq!(numbers(&member, 5)[0], again[1]);
    }

    #[test]
    fn promised_release_is_repeated_after_a_lease_or_for_a_new_manager() {
        let mut member = member(1, 2);
        member.on_released(10, block(0), &Message::Done {});
        assert_eq!(numbers(&member, 9 + LEASE_NS), [1], "no answer about the second");
        // A late copy of the answer does not begin the lease again.
        member.on_released(11, block(0), &Message::Done {});
        member.on_released(12, block(1), &Message::refuse(Why::Rebuilding));
        assert_eq!(numbers(&member, 10 + LEASE_NS), [0, 1]);
        assert_eq!(numbers(&member, 20), [1]);
        renewed(&mut member, 2);
        assert_eq!(numbers(&member, 20), [0, 1], "a new manager knows of no release");
        member.on_released(30, block(0), &Message::refuse(Why::UnknownBlock));
        member.on_released(30, block(1), &Message::refuse(Why::NotOwner));
        assert!(numbers(&member, 10 * LEASE_NS).is_empty());
    }

    #[test]
    fn released_block_is_not_adopted_while_its_release_is_outstanding() {
        let mut member = member(1, 1);
        member.on_released(10, block(0), &Message::Done {});
        let listed = Message::Renewed {
            term: 2,
            lease_ms: LEASE_NS / 1_000_000,
            block_bytes: 4096,
            view: 0,
            members: None,
            owned: 7,
            blocks: Some(vec![BlockAt { block: block(0), epoch: Epoch(5) }]),
            as_of: Epoch(9),
        };
        member.on_renewed(20, &listed);
        assert!(member.take_changes().is_empty() && member.owned().next().is_none());
    }
}
