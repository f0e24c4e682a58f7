//! Second copies of shards: which node gets them, when they are read, and when the owner gives them
//! up.
//!
//! A second copy is sent when the first one can be read, to a node that has room now. It never
//! takes room from a first copy of the same database. If no node takes an image, the owner releases
//! second copies for it, and stops a transfer of one. A copy is released only while the node of the
//! other copy answers.
//!
//! A node may have more of the database than its share, because another database claims memory or
//! an operator drains the node. Then the owner first gives back the room of active shards there.
//! Next it gives up second copies, and then first copies of shards that another node has. Only
//! after that does it make flushes due.
//!
//! Invariants:
//! 1. At most one second copy is on its way.
//! 2. A shard is lost only when its last place is lost.
//! 3. A share that a node reports makes flushes due only if second copies are not enough.
//!
//! Failure: a shard whose second copy cannot be sent has one place. If that is lost, the database
//! rebuilds the shard from the log, as without second copies.

use archipelago_engine::remote::{AwayError, ShardId, StoreNode};

use super::node::{NodeState, Takes};
use super::places::PlaceLoss;
use super::shards::ShardStage;
use super::{NotSent, OwnerState, Pick, ReadTarget, ReadableShard};
use crate::decide::place;

/// A second copy that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyUnderWay {
    pub(super) id: ShardId,
    pub(super) node: StoreNode,
    pub(super) bytes: u64,
    /// Whether the transfer is to stop. Until it has stopped, its bytes will be free soon.
    pub(super) is_stopped: bool,
}

/// The shards of a read for which one node answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::shard_owner) struct ReadRoute {
    pub(in crate::shard_owner) node: StoreNode,
    /// The shards, in the order of the read.
    pub(in crate::shard_owner) shards: Vec<ShardId>,
    pub(in crate::shard_owner) target: ReadTarget,
}

/// The host of an endpoint, which is the part before the port.
fn host_of(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host)
}

/// Whether two nodes have a host in common, so that they certainly share a machine.
fn share_a_host(one: &NodeState, other: &NodeState) -> bool {
    let hosts = |state: &NodeState| -> Vec<String> {
        state.endpoints.iter().map(|endpoint| host_of(endpoint).to_owned()).collect()
    };
    let known = hosts(other);
    hosts(one).iter().any(|host| known.contains(host))
}

impl OwnerState {
    /// Chooses the node for the second copy of a shard whose bucket begins at `boundary`, and
    /// begins the transfer there. Nodes on other machines than that of the first copy go before
    /// others.
    pub(in crate::shard_owner) fn begin_copy(
        &mut self,
        now_ns: u64,
        id: ShardId,
        bytes: u64,
        boundary: &[u8],
    ) -> Pick {
        if self.takes_no_copies {
            return Pick::NoRoom("the database is closing");
        }
        let first = self.places.first(id).filter(|_| self.places.second(id).is_none());
        let Some(home) = first.and_then(|first| self.nodes.get(&first)) else {
            return Pick::NoRoom("the shard has been released, or has two copies");
        };
        if id.memtable < self.oldest {
            return Pick::NoRoom("the shard is not needed much longer");
        }
        let used = self.used_bytes();
        if used.saturating_add(bytes) > self.terms.bytes_max {
            return Pick::NoRoom("the database has its limit of bytes at memory nodes");
        }
        let others = || self.nodes.iter().filter(|(_, state)| state.node != home.node);
        let taking = |wanted: Takes| {
            others().filter(move |(_, state)| state.takes(now_ns, id, bytes) == wanted)
        };
        let apart = taking(Takes::Now).filter(|(_, state)| !share_a_host(home, state));
        let chosen = place(self.owner.db, boundary, apart.map(|(_, state)| state.node));
        let chosen = chosen.or_else(|| {
            place(self.owner.db, boundary, taking(Takes::Now).map(|(_, state)| state.node))
        });
        let found = taking(Takes::Now).find(|(_, state)| Some(state.node) == chosen);
        let Some(node) = found.map(|(node, _)| *node) else {
            return match taking(Takes::Later).next() {
                Some(_) => Pick::Later,
                None => Pick::NoRoom("no other node that answers takes an image of this size"),
            };
        };
        let Some(state) = self.nodes.get_mut(&node) else { return Pick::Later };
        state.shards.begin(id, bytes);
        self.copying = Some(CopyUnderWay { id, node, bytes, is_stopped: false });
        Pick::Node { node, losses: state.losses }
    }

    /// Whether a shard has one copy, and is needed for longer.
    pub(in crate::shard_owner) fn needs_copy(&self, id: ShardId) -> bool {
        let has_one = self.places.contains(id) && self.places.second(id).is_none();
        has_one && id.memtable >= self.oldest && !self.takes_no_copies
    }

    /// Whether the transfer of a second copy that began when `losses` were counted is still wanted.
    pub(in crate::shard_owner) fn is_copying(
        &self,
        node: StoreNode,
        id: ShardId,
        losses: u64,
    ) -> bool {
        let is_this = |copy: &CopyUnderWay| (copy.id, copy.node) == (id, node) && !copy.is_stopped;
        self.copying.as_ref().is_some_and(is_this)
            && self.places.contains(id)
            && self.is_sending(node, id, losses)
    }

    /// Ends the transfer of a second copy that the node has registered. Errors: `Lost` if the copy
    /// is not needed any more, or if the node was lost since `losses` were counted; then the copy
    /// is released.
    pub(in crate::shard_owner) fn copied(
        &mut self,
        node: StoreNode,
        id: ShardId,
        losses: u64,
        at: ReadableShard,
    ) -> Result<(), AwayError> {
        let is_wanted = self.is_copying(node, id, losses);
        self.end_copy(node, id);
        let gone = || AwayError::Lost("the second copy of a shard came too late".to_owned());
        let state = self.nodes.get_mut(&node).ok_or_else(gone)?;
        let is_set = is_wanted
            && state.shards.set(id, ShardStage::Away(at))
            && self.places.set_second(id, node);
        if !is_set {
            state.give_up(id);
            return Err(gone());
        }
        Ok(())
    }

    /// Ends the transfer of a second copy that has failed. Returns whether it was stopped for a
    /// first copy, or because of the share of the node, so that another node may take it.
    pub(in crate::shard_owner) fn not_copied(
        &mut self,
        now_ns: u64,
        node: StoreNode,
        id: ShardId,
        end: NotSent,
    ) -> bool {
        let was_stopped = self.end_copy(node, id);
        self.not_sent(now_ns, node, id, end);
        was_stopped
    }

    /// Returns whether the transfer was stopped.
    fn end_copy(&mut self, node: StoreNode, id: ShardId) -> bool {
        let ended = self.copying.take_if(|copy| (copy.id, copy.node) == (id, node));
        ended.is_some_and(|copy| copy.is_stopped)
    }

    /// Stops the transfer of a second copy to one of these nodes, if there is one.
    pub(super) fn stop_copying(&mut self, to: impl Fn(StoreNode) -> bool) {
        if let Some(copy) = self.copying.as_mut().filter(|copy| to(copy.node)) {
            copy.is_stopped = true;
        }
    }

    /// Stops the transfer of a second copy, and begins no other one from now on.
    pub(in crate::shard_owner) fn end_copies(&mut self) {
        self.takes_no_copies = true;
        self.stop_copying(|_| true);
    }

    /// Bytes of the second copy that is on its way to a node for which `to` holds.
    pub(super) fn coming_bytes(&self, to: impl Fn(StoreNode) -> bool) -> u64 {
        self.copying.filter(|copy| to(copy.node)).map_or(0, |copy| copy.bytes)
    }

    /// Whether a copy at another node may be given up because this node has one, too.
    fn can_read(&self, node: StoreNode) -> bool {
        self.nodes.get(&node).is_some_and(NodeState::answers)
    }

    /// Releases second copies, so that a node that answers takes the first copy of a shard. Returns
    /// whether a node will have room.
    pub(super) fn make_room(&mut self, now_ns: u64, id: ShardId, bytes: u64) -> bool {
        if self.terms.copies < 2 {
            return false;
        }
        let room = |(node, state): (&StoreNode, &NodeState)| {
            let missing = state.missing_bytes(now_ns, bytes, state.shards.released_bytes());
            let spare = self.places.spare_bytes_with(*node, |first| self.can_read(first));
            let coming = self.coming_bytes(|to| to == *node);
            let has_room = state.can_have(id, bytes) && missing <= spare.saturating_add(coming);
            (has_room && state.answers()).then_some((missing, *node))
        };
        let used = self.used_bytes();
        let released: u64 = self.obeying().map(|state| state.shards.released_bytes()).sum();
        let over = (used - released).saturating_add(bytes).saturating_sub(self.terms.bytes_max);
        let Some((missing, node)) = self.nodes.iter().filter_map(room).min() else { return false };
        let spare_at =
            |node: &StoreNode| self.places.spare_bytes_with(*node, |first| self.can_read(first));
        let spare: u64 = self.nodes.keys().map(spare_at).sum();
        if over > spare.saturating_add(self.coming_bytes(|_| true)) {
            return false;
        }
        if missing > 0 {
            self.stop_copying(|to| to == node);
        }
        if over > 0 {
            self.stop_copying(|_| true);
        }
        let coming = self.coming_bytes(|to| to == node);
        let over = over.saturating_sub(self.coming_bytes(|_| true));
        let wanted = missing.saturating_sub(coming).max(over);
        let mut given_up = 0;
        let others = self.nodes.keys().copied().filter(|other| *other != node);
        let nodes: Vec<StoreNode> = std::iter::once(node).chain(others).collect();
        for at in nodes {
            let wanted = if at == node { wanted } else { over.saturating_sub(given_up) };
            let oldest = self.places.oldest_spare(at, wanted, |first| self.can_read(first));
            given_up += self.give_up_copies(at, oldest);
        }
        true
    }

    /// Gives up copies at a node that has more of the database than its share: second copies, and
    /// then first copies of shards that another usable node has. Flushes are due if first copies of
    /// other shards exceed the share as well.
    pub(super) fn give_back(&mut self, node: StoreNode) {
        let state = self.nodes.get(&node).filter(|state| state.usable().is_some());
        let Some(state) = state else { return };
        let surplus = state.surplus_bytes(0);
        let first_surplus = state.surplus_bytes(self.places.spare_bytes_at(node));
        let has_too_much_ahead = state.exceeds_share_with_ahead();
        if state.exceeds_share() {
            self.stop_copying(|to| to == node);
        }
        if has_too_much_ahead {
            self.stop_ahead_at(node);
        }
        if surplus == 0 {
            return;
        }
        if self.terms.copies > 1 {
            let can_read = |other: StoreNode| self.can_read(other);
            let mut copies = self.places.oldest_spare(node, surplus, can_read);
            copies.extend(self.places.oldest_doubled(node, first_surplus, can_read));
            self.give_up_copies(node, copies);
        }
        let spare_bytes = self.places.spare_bytes_at(node);
        let left = self.nodes.get(&node).map_or(0, |state| state.surplus_bytes(spare_bytes));
        self.news.must_flush |= left > 0;
    }

    /// Releases copies of shards at a node, each of which another node has as well. Shards that
    /// were read at the node are read at the other node from now on. Returns the bytes of the
    /// copies.
    fn give_up_copies(&mut self, node: StoreNode, ids: Vec<ShardId>) -> u64 {
        let Some(state) = self.nodes.get_mut(&node) else { return 0 };
        let mut bytes = 0;
        for id in ids {
            bytes += state.shards.bytes(id);
            state.give_up(id);
            if let PlaceLoss::Moved(other) = self.places.lose(id, node) {
                self.news.moved.push((id, other));
            }
            self.news.copies_given_up += 1;
            self.news.given_up_at.insert(node);
        }
        bytes
    }

    /// Notes that a node has these shards no more. Shards that another node has are read there from
    /// now on. The other shards are lost.
    pub(super) fn note_lost(&mut self, node: StoreNode, lost: Vec<ShardId>) {
        for id in lost {
            let mut loss = self.places.lose(id, node);
            if let (PlaceLoss::Moved(_), true) = (loss, self.terms.sabotage.no_promotion()) {
                self.places.remove(id);
                loss = PlaceLoss::Gone;
            }
            match loss {
                PlaceLoss::Nothing | PlaceLoss::Spare => {}
                PlaceLoss::Moved(node) => {
                    self.news.moved.push((id, node));
                    self.news.copies_used += 1;
                }
                PlaceLoss::Gone => {
                    self.offsets.forget(id);
                    self.news.lost.push(id);
                }
            }
        }
    }

    /// Notes that the node has not answered a read of these shards. Shards that another node has
    /// are read there from now on, until that node does not answer. Returns whether there are such
    /// shards.
    pub(in crate::shard_owner) fn avoid(&mut self, node: StoreNode, ids: &[ShardId]) -> bool {
        let before = self.news.copies_used;
        for id in ids {
            if let Some(other) = self.places.turn(*id, node) {
                self.news.moved.push((*id, other));
                self.news.copies_used += 1;
            }
        }
        self.news.copies_used > before
    }

    /// Notifies the database again of the nodes at which these shards are read.
    pub(in crate::shard_owner) fn tell_places(&mut self, ids: &[ShardId]) {
        let known = ids.iter().filter_map(|id| Some((*id, self.places.first(*id)?)));
        self.news.moved.extend(known);
    }

    /// The node at which all of these shards are read; `None` if there is no such node.
    pub(in crate::shard_owner) fn common_node(&self, ids: &[ShardId]) -> Option<StoreNode> {
        let mut nodes = ids.iter().map(|id| self.places.first(*id));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    /// The nodes that answer for these shards, each with the names and places of its shards.
    /// Errors: `Lost` if all shards are lost, `Busy` if only some are.
    pub(in crate::shard_owner) fn routes(
        &self,
        ids: &[ShardId],
    ) -> Result<Vec<ReadRoute>, AwayError> {
        let mut by_node: Vec<(StoreNode, Vec<ShardId>)> = Vec::new();
        for id in ids {
            let Some(node) = self.places.first(*id) else {
                let why = format!("no memory node has shard {id} any more");
                let is_any_left = ids.iter().any(|id| self.places.contains(*id));
                return Err(if is_any_left { AwayError::Busy(why) } else { AwayError::Lost(why) });
            };
            match by_node.iter_mut().find(|(known, _)| *known == node) {
                Some((_, shards)) => shards.push(*id),
                None => by_node.push((node, vec![*id])),
            }
        }
        let routes = by_node.into_iter().map(|(node, shards)| {
            let target = self.target(node, &shards)?;
            Ok(ReadRoute { node, shards, target })
        });
        routes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn host_of_an_endpoint_has_no_port() {
        assert_eq!(host_of("10.0.0.5:7701"), "10.0.0.5");
        assert_eq!(host_of("[::1]:7701"), "[::1]");
        assert_eq!(host_of("memory1"), "memory1");
    }
}
