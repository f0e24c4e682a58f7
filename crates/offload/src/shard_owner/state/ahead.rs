//! Room at nodes for active shards, whose records are written ahead (O³-LSM §4.2).
//!
//! | state of an active shard | next state and its cause |
//! | --- | --- |
//! | ahead | sending, when its image is sent; ended, when its grant was given back |
//!
//! A shard that is ahead has a grant for its whole expected image, and no read finds it there. Its
//! bytes do not count as used, because the owner gives the grant back as soon as a sealed shard
//! needs the room ([`OwnerState::stop_ahead`]).
//!
//! Invariants:
//! 1. Active shards take at most three quarters of a landing zone, and no room from a sealed shard.
//! 2. A node that has more of the database than its share keeps no active shard.
//! 3. A name that was ahead may be sent to the same node later, because a grant that is given back
//!    does not use the name up.
//! 4. A refusal of the room of an active shard changes nothing for sealed shards.
//! 5. An active shard gives its room back for a sealed shard only if the sealed shard then fits.
//!
//! Cost: as that of the other calls of the state.

use std::collections::BTreeSet;

use archipelago_engine::remote::{ShardId, StoreNode};

use super::OwnerState;
use super::node::NodeState;
use crate::decide::place;

/// Time in nanoseconds for which no active shard gets room after one has lost its room to a sealed
/// shard. The sealed shard asks again meanwhile.
const REST_NS: u64 = 100_000_000;

/// An active shard that has room at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AheadRoom {
    node: StoreNode,
    /// Number of times that the node's shards had been lost when the shard got its room.
    losses: u64,
    /// Whether the shard may keep its room.
    is_wanted: bool,
}

/// The node of an active shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard_owner) struct AheadNode {
    pub(in crate::shard_owner) node: StoreNode,
    /// Number of times that the node's shards were lost so far.
    pub(in crate::shard_owner) losses: u64,
}

/// Whether an active shard keeps its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard_owner) enum AheadVerdict {
    Stays,
    /// A sealed shard or the node needs the room, the owner closes, or the memtable was released.
    MustEnd,
    /// The node is lost, so the room no longer exists.
    Lost,
}

impl OwnerState {
    /// Chooses the node for the records of an active shard, and keeps room for an image of `bytes`
    /// there. `None` if no node has room now.
    pub(in crate::shard_owner) fn begin_ahead(
        &mut self,
        now_ns: u64,
        id: ShardId,
        bytes: u64,
        boundary: &[u8],
    ) -> Option<AheadNode> {
        let is_known = self.places.contains(id) || self.aheads.contains_key(&id);
        if self.is_closed || self.takes_no_ahead || is_known || id.memtable < self.oldest {
            return None;
        }
        if now_ns < self.ahead_rest_ns {
            return None;
        }
        let used = self.used_bytes();
        if used.saturating_add(self.ahead_bytes()).saturating_add(bytes) > self.terms.bytes_max {
            return None;
        }
        let taking = || self.nodes.iter().filter(|(_, at)| at.takes_ahead(now_ns, id, bytes));
        let chosen = place(self.owner.db, boundary, taking().map(|(_, state)| state.node))?;
        let node = taking().find(|(_, state)| state.node == chosen).map(|(node, _)| *node)?;
        let state = self.nodes.get_mut(&node)?;
        state.shards.begin_ahead(id, bytes);
        let losses = state.losses;
        self.aheads.insert(id, AheadRoom { node, losses, is_wanted: true });
        Some(AheadNode { node, losses })
    }

    /// Whether an active shard keeps its room.
    pub(in crate::shard_owner) fn judge_ahead(&self, id: ShardId) -> AheadVerdict {
        let Some(room) = self.aheads.get(&id) else { return AheadVerdict::Lost };
        let is_there = |state: &NodeState| state.losses == room.losses && state.obeys();
        let is_sent = !self.is_closed && id.memtable >= self.oldest;
        match self.nodes.get(&room.node).is_some_and(is_there) {
            true if room.is_wanted && is_sent => AheadVerdict::Stays,
            true => AheadVerdict::MustEnd,
            false => AheadVerdict::Lost,
        }
    }

    /// Whether a node executes requests of this owner, as far as is known.
    pub(in crate::shard_owner) fn is_obeying(&self, node: StoreNode) -> bool {
        self.nodes.get(&node).is_some_and(NodeState::obeys)
    }

    /// Makes the transfer of an image of `bytes` of a shard that was ahead. Returns false if the
    /// shard has no room any more.
    pub(in crate::shard_owner) fn send_ahead(&mut self, id: ShardId, bytes: u64) -> bool {
        if self.judge_ahead(id) != AheadVerdict::Stays {
            return false;
        }
        let Some(room) = self.aheads.remove(&id) else { return false };
        let Some(state) = self.nodes.get_mut(&room.node) else { return false };
        state.shards.begin(id, bytes);
        true
    }

    /// Ends the room of an active shard. The node may still have its grant.
    pub(in crate::shard_owner) fn end_ahead(&mut self, id: ShardId) {
        let Some(room) = self.aheads.remove(&id) else { return };
        if let Some(state) = self.nodes.get_mut(&room.node) {
            state.shards.remove(id);
        }
    }

    /// Ends the room of an active shard, whose grant the node has back.
    pub(in crate::shard_owner) fn ahead_given_back(&mut self, id: ShardId) {
        let node = self.aheads.get(&id).map(|room| room.node);
        self.end_ahead(id);
        if let Some(state) = node.and_then(|node| self.nodes.get_mut(&node)) {
            self.news.has_more_room |= state.full.take().is_some();
        }
    }

    /// Ends the room of an active shard that the node has refused. No active shard gets room there
    /// for a while.
    pub(in crate::shard_owner) fn ahead_refused(&mut self, now_ns: u64, id: ShardId) {
        let node = self.aheads.get(&id).map(|room| room.node);
        self.end_ahead(id);
        let until_ns = now_ns + self.terms.full.as_nanos() as u64;
        if let Some(state) = node.and_then(|node| self.nodes.get_mut(&node)) {
            state.full_ahead_ns = until_ns;
        }
    }

    /// Makes the youngest active shard at the nodes for which `helps` holds give its room back, so
    /// that a sealed shard gets the room. Returns whether room will become free. Only one shard at
    /// a time gives its room back.
    pub(super) fn stop_ahead(&mut self, now_ns: u64, helps: impl Fn(&NodeState) -> bool) -> bool {
        let helping = |state: &NodeState| state.shards.ahead_bytes() > 0 && helps(state);
        let nodes = self.nodes.iter().filter(|(_, state)| helping(state));
        let nodes: BTreeSet<StoreNode> = nodes.map(|(node, _)| *node).collect();
        let is_coming = |room: &AheadRoom| !room.is_wanted && nodes.contains(&room.node);
        if self.aheads.values().any(is_coming) {
            self.ahead_rest_ns = now_ns + REST_NS;
            return true;
        }
        let youngest = self.aheads.values_mut().rfind(|room| nodes.contains(&room.node));
        let Some(youngest) = youngest else { return false };
        youngest.is_wanted = false;
        self.ahead_rest_ns = now_ns + REST_NS;
        true
    }

    /// Makes an active shard give its room back.
    pub(in crate::shard_owner) fn stop_ahead_of(&mut self, id: ShardId) {
        if let Some(room) = self.aheads.get_mut(&id) {
            room.is_wanted = false;
        }
    }

    /// Makes all active shards give their room back. No active shard gets room any more.
    pub(in crate::shard_owner) fn stop_all_ahead(&mut self) {
        self.takes_no_ahead = true;
        self.aheads.values_mut().for_each(|room| room.is_wanted = false);
    }

    /// Makes the active shards at a node give their room back.
    pub(super) fn stop_ahead_at(&mut self, node: StoreNode) {
        let there = self.aheads.values_mut().filter(|room| room.node == node);
        there.for_each(|room| room.is_wanted = false);
    }

    /// Bytes of the room of all active shards.
    pub(super) fn ahead_bytes(&self) -> u64 {
        self.obeying().map(|state| state.shards.ahead_bytes()).sum()
    }

    /// Number of active shards that have room at a node.
    pub(in crate::shard_owner) fn ahead_count(&self) -> u64 {
        self.aheads.len() as u64
    }
}
