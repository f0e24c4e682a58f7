//! Memory nodes and shards of one owner, as a state machine without clock, lock or I/O.
//!
//! | state of a shard at a node | next state and its cause |
//! | --- | --- |
//! | ahead | sending, when its image is sent; forgotten, when its room was given back ([`ahead`]) |
//! | sending | away, when the node has registered it; released, when the transfer was given up |
//! | away | released, when the owner needs it no more, or when it is lost |
//! | released | forgotten, when the node has confirmed the release, or when its life is over |
//!
//! A shard is **lost** when its node begins a new life, does not know the shard, or is silent for
//! too long. A node is silent for too long if [`OwnerTerms::missed_beats`] beats over
//! [`OwnerTerms::silence`] got no answer. If the pool gets no beats from the node either, one
//! unanswered beat is enough. An answer to any other request ends the silence, because a busy node
//! may answer a beat late. A shard is also lost if the answer to a beat counts fewer shards than
//! the owner has there. A node drops a database whose owner was silent for minutes. Silence is
//! counted in beats, because a process that was stopped finds many of its other requests late when
//! it goes on.
//!
//! Invariants:
//! 1. A shard can be read at two nodes at most ([`places`], [`copies`]), and only between its
//!    registration and its loss or release. A lost shard is never read again.
//! 2. If a node may have seen a name in a transfer that failed, the name is released there. It is
//!    not sent to that life of the node again. If no other node takes the shard, it stays in this
//!    process.
//! 3. The oldest memtable that a release names is at most that of any shard which is being sent or
//!    can be read at the node. So a late release frees no shard in use.
//! 4. Releases are repeated until the node confirms them or its life is over.
//! 5. The key-offset cache has entries only of shards that can be read.
//! 6. No shard is sent to a node before the shards of earlier owners are purged there, nor after a
//!    newer owner was seen there. The purge follows when the open has adopted the shards that it
//!    keeps ([`earlier`]).
//! 7. While a node has more first copies of the database than its share, [`OwnerState::room`] has a
//!    limit that makes flushes due, even if this node and others have room. The limit stays above
//!    the bytes of first copies that the nodes hold, so that writers slow down and do not stop.
//! 8. Nodes that do not answer, or that another owner has taken, count neither in the held bytes
//!    nor in the limit of [`OwnerState::room`]: the database has no shard there that it can flush.
//!
//! Thread-safety: none; the driver holds a lock.
//! Failure: every failure of a node ends in lost shards, which the database rebuilds.
//! Cost: O(nodes + log shards) for each call, and O(shards of the node) for a loss and for figures.

mod ahead;
mod copies;
mod earlier;
mod node;
mod places;
mod shards;
mod terms;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_engine::remote::{AwayError, ShardId, StoreNode, StoreRoom};
use archipelago_fabric::{NodeId, RemoteKey};

use ahead::AheadRoom;
use copies::CopyUnderWay;
use earlier::EarlierShards;
use node::{BegunFacts, FullNotice, MissedBeat, NodeState, Takes};
use places::Places;
use shards::ShardStage;
use terms::UNLIMITED_BYTES;

pub(super) use ahead::{AheadNode, AheadVerdict};
pub(super) use copies::ReadRoute;
pub(super) use node::NodeTask;
pub(super) use shards::ReadableShard;
pub use terms::{OwnerTerms, StayingMemtables};

use super::offsets::KeyOffsets;
use crate::decide::place;
use crate::ids::OwnerStamp;
use crate::parcel::{ImageNode, ImagePlace, JobImages};
use crate::wire::shard::{NodeShare, ShardMessage, ShardName, ShardRefusal, ShardWhy};

/// Pause after a request that the node has refused.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Largest number of shards that one release names.
const RELEASES_MAX: usize = 4096;
/// Divisor of the bytes of first copies that can be read: while a node wants memory back, the limit
/// exceeds the held bytes of first copies by this part of them. Then flushes of about a fifth of
/// them are due.
const SURPLUS_SLACK_PART: u64 = 16;

/// A memory node as the pool knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNode {
    /// Number of the node.
    pub node: NodeId,
    /// Life of the node.
    pub life: Epoch,
    /// Endpoints at which it answers.
    pub endpoints: Vec<String>,
    /// Whether the pool gets beats of the node.
    pub is_up: bool,
}

/// The next step of a node's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextAsk {
    /// Send the message, and call [`OwnerState::on_answer`] or
    /// [`OwnerState::on_no_answer`].
    Ask(NodeTask, ShardMessage),
    /// Wait until this time, unless a release arrives before.
    Wait(u64),
    /// The life of the node is over.
    Over,
}

/// News for the database since the last call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    pub(super) lost: Vec<ShardId>,
    /// Shards that are read at another node from now on.
    pub(super) moved: Vec<(ShardId, StoreNode)>,
    /// Number of times that reads of a shard changed to its other copy, because its node was lost
    /// or did not answer.
    pub(super) copies_used: u64,
    /// Copies that were released because a first copy needed the room, or because a node had more
    /// of the database than its share.
    pub(super) copies_given_up: u64,
    /// Nodes at which these copies were released. Their tasks send the releases.
    pub(super) given_up_at: BTreeSet<StoreNode>,
    pub(super) has_more_room: bool,
    /// Whether a node wants memory back, so that flushes are due.
    pub(super) must_flush: bool,
}

/// The node for a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// Send the image to this node. `losses` is the number of times that the node's shards were
    /// lost so far.
    Node { node: StoreNode, losses: u64 },
    /// Other transfers fill the landing zones of all nodes that have room.
    Later,
    /// No node takes the image.
    NoRoom(&'static str),
    /// No node that answers will ever take the image, because its name is used up there.
    UsedUp,
}

/// The node and the names of shards that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadTarget {
    pub(super) names: Vec<ShardName>,
    pub(super) shards: Vec<ReadableShard>,
}

/// A request of a node's task without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissedAnswer {
    /// Time at which the request was sent.
    pub(super) sent_ns: u64,
    /// Time of the latest answer of the node to any request; 0 before the first answer.
    pub(super) heard_ns: u64,
    /// Whether another life of the node has answered.
    pub(super) is_other_life: bool,
}

/// The end of a transfer without a registered shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NotSent {
    /// Whether the node may have seen the name, so that the name must be released.
    pub(super) may_be_known: bool,
    /// Bytes that the node has left, if it refused for lack of room.
    pub(super) left_bytes: Option<u64>,
    /// Size in bytes of the largest image that the node takes, if it refused a larger one.
    pub(super) image_bytes_max: Option<u64>,
}

/// Nodes and shards of one owner.
#[derive(Debug)]
pub(super) struct OwnerState {
    owner: OwnerStamp,
    terms: OwnerTerms,
    nodes: BTreeMap<StoreNode, NodeState>,
    next_node: u64,
    /// Nodes of each shard that can be read.
    places: Places,
    copying: Option<CopyUnderWay>,
    /// Whether the owner begins no transfer of a second copy any more.
    takes_no_copies: bool,
    /// Active shards that have room at a node.
    aheads: BTreeMap<ShardId, AheadRoom>,
    /// Whether no active shard gets room any more.
    takes_no_ahead: bool,
    /// Time before which no active shard gets room.
    ahead_rest_ns: u64,
    /// Number of the oldest memtable of which shards may still be sent.
    oldest: u64,
    earlier: EarlierShards,
    news: News,
    is_closed: bool,
    offsets: KeyOffsets,
}

impl OwnerState {
    pub(super) fn new(owner: OwnerStamp, terms: OwnerTerms) -> Self {
        Self {
            offsets: KeyOffsets::new(terms.key_offset_cache_bytes, terms.sabotage),
            owner,
            terms,
            nodes: BTreeMap::new(),
            next_node: 1,
            places: Places::default(),
            copying: None,
            takes_no_copies: false,
            aheads: BTreeMap::new(),
            takes_no_ahead: false,
            ahead_rest_ns: 0,
            oldest: 0,
            earlier: EarlierShards::default(),
            news: News::default(),
            is_closed: false,
        }
    }

    pub(super) fn owner(&self) -> OwnerStamp {
        self.owner
    }

    /// The name of a shard in messages.
    pub(super) fn name(&self, id: ShardId) -> ShardName {
        let own = || ShardName { epoch: self.owner.epoch, memtable: id.memtable, shard: id.shard };
        self.earlier.name(id).unwrap_or_else(own)
    }

    /// The shard that has this name in messages.
    pub(super) fn id_of(&self, name: ShardName) -> Option<ShardId> {
        match name.epoch == self.owner.epoch {
            true => Some(ShardId { memtable: name.memtable, shard: name.shard }),
            false => self.earlier.id_of(name),
        }
    }

    /// Closes the owner: the tasks of all nodes end.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Number, life and endpoints of a node whose life is not over.
    pub(super) fn peer(&self, node: StoreNode) -> Option<MemoryNode> {
        let state = self.nodes.get(&node)?;
        let (endpoints, is_up) = (state.endpoints.clone(), state.is_up);
        Some(MemoryNode { node: state.node, life: state.life, endpoints, is_up })
    }

    /// Takes the list of nodes that the pool knows. Returns the new ones.
    ///
    /// A manager that has just started does not know all nodes yet. So the life of a node is over
    /// only when the list has a later life. A missing node stays as it is, and its beats show
    /// whether it answers.
    pub(super) fn on_members(&mut self, now_ns: u64, members: &[MemoryNode]) -> Vec<StoreNode> {
        let is_over = |state: &NodeState| {
            members.iter().any(|member| member.node == state.node && member.life > state.life)
        };
        let over = self.nodes.iter().filter(|(_, state)| is_over(state));
        let over: Vec<StoreNode> = over.map(|(node, _)| *node).collect();
        for node in over {
            if let Some(mut state) = self.nodes.remove(&node) {
                let lost = state.lose();
                self.note_lost(node, lost);
            }
        }
        let mut new = Vec::new();
        for member in members {
            let has_ended =
                |state: &NodeState| state.node == member.node && state.life > member.life;
            if self.nodes.values().any(has_ended) {
                continue;
            }
            let is_same =
                |state: &NodeState| (state.node, state.life) == (member.node, member.life);
            let known = self.nodes.iter().find(|(_, state)| is_same(state));
            let number = known.map_or(StoreNode(self.next_node), |(number, _)| *number);
            if number.0 == self.next_node {
                self.next_node += 1;
                new.push(number);
            }
            let fresh = || NodeState::new(member.node, member.life, now_ns);
            let state = self.nodes.entry(number).or_insert_with(fresh);
            if !member.is_up && state.is_up && state.begun.is_some() {
                // The next beat decides whether the shards are lost.
                state.beat_ns = now_ns;
            }
            let had_room = state.usable().is_some();
            state.is_up = member.is_up;
            self.news.has_more_room |= !had_room && state.usable().is_some();
            state.endpoints.clone_from(&member.endpoints);
        }
        new
    }

    /// The next request for a node.
    pub(super) fn next_ask(&mut self, now_ns: u64, node: StoreNode) -> NextAsk {
        let (owner, guaranteed_bytes) = (self.owner, self.guarantee_of_each());
        if self.is_closed {
            return NextAsk::Over;
        }
        let Some(state) = self.nodes.get_mut(&node) else { return NextAsk::Over };
        if state.full.is_some() && state.full_at(now_ns).is_none() {
            state.full = None;
            self.news.has_more_room = true;
        }
        let may_purge = self.earlier.may_purge();
        let Some(task) = state.next_task(now_ns, RELEASES_MAX, may_purge) else {
            if state.is_fenced {
                return NextAsk::Wait(u64::MAX);
            }
            let full_ns = state.full.map_or(u64::MAX, |full| full.until_ns);
            let rest_ns = if now_ns < state.rest_ns { state.rest_ns } else { u64::MAX };
            return NextAsk::Wait(state.beat_ns.min(full_ns).min(rest_ns));
        };
        let message = match &task {
            NodeTask::Begin => {
                state.beat_ns = now_ns + self.terms.beat.as_nanos() as u64;
                state.beat_shards = state.shards.away().count() as u64;
                let landing_bytes = self.terms.landing_bytes;
                ShardMessage::Begin { owner, landing_bytes, guaranteed_bytes }
            }
            NodeTask::Purge => ShardMessage::Purge { owner },
            NodeTask::Release(ids) => {
                let used = state.shards.oldest();
                let oldest = used.map_or(self.oldest, |used| used.min(self.oldest));
                let shards = ids.iter().map(|id| self.name(*id)).collect();
                ShardMessage::Release { owner, shards, oldest }
            }
        };
        NextAsk::Ask(task, message)
    }

    /// Handles a request of a node's task that got no answer.
    pub(super) fn on_no_answer(
        &mut self,
        now_ns: u64,
        node: StoreNode,
        task: &NodeTask,
        missed: MissedAnswer,
    ) {
        let MissedAnswer { sent_ns, heard_ns, is_other_life } = missed;
        let Some(state) = self.nodes.get_mut(&node) else { return };
        if *task != NodeTask::Begin {
            return state.missed_other(sent_ns, now_ns);
        }
        let beat = MissedBeat { sent_ns, heard_ns, now_ns };
        if !state.missed_beat(beat, &self.terms) && !is_other_life {
            return;
        }
        let was_lost = std::mem::replace(&mut state.is_lost, true);
        let lost = state.lose();
        if !was_lost && state.begun.is_some() {
            let (node, shards) = (state.node, lost.len());
            tracing::warn!(%node, shards, "a memory node is silent: its shards are lost");
        }
        self.note_lost(node, lost);
    }

    /// Takes the answer to a request of a node's task.
    pub(super) fn on_answer(
        &mut self,
        now_ns: u64,
        node: StoreNode,
        task: &NodeTask,
        answer: &ShardMessage,
    ) {
        let stated_bytes = self.guarantee_of_each();
        let Some(state) = self.nodes.get_mut(&node) else { return };
        state.heard();
        let (free_before, mut lost) = (state.free_bytes(now_ns), Vec::new());
        match (task, answer) {
            (
                NodeTask::Begin,
                ShardMessage::Begun { landing_bytes, image_bytes_max, share, shards, .. },
            ) => {
                let (landing_bytes, image_bytes_max) = (*landing_bytes, *image_bytes_max);
                // The first answer counts only shards of earlier owners.
                state.needs_purge |= state.begun.is_none() && *shards > 0;
                state.note_guarantee(share, stated_bytes);
                state.begun = Some(BegunFacts { landing_bytes, image_bytes_max, share: *share });
                state.is_lost = false;
                // The node has dropped the database since the last beat, and begun it again with
                // this beat. No release arrives between a beat and its answer.
                if u64::from(*shards) < state.beat_shards {
                    let node = state.node;
                    tracing::warn!(%node, shards, "a memory node has dropped the shards");
                    lost = state.lose();
                }
            }
            (NodeTask::Purge, ShardMessage::Done { share, .. }) => {
                state.needs_purge = false;
                state.set_share(share);
            }
            (NodeTask::Release(ids), ShardMessage::Done { share, .. }) => {
                state.set_share(share);
                ids.iter().for_each(|id| state.released(*id, self.oldest));
                state.full = None;
                self.news.has_more_room = true;
                let nodes = &self.nodes;
                let is_left = |id: &&ShardId| nodes.values().any(|at| at.shards.contains(**id));
                let gone: Vec<ShardId> = ids.iter().filter(|id| !is_left(id)).copied().collect();
                self.earlier.released(&gone);
                return self.give_back(node);
            }
            (_, ShardMessage::Refused { refusal }) => {
                let again_ns = now_ns + REFUSED_PAUSE.as_nanos() as u64;
                state.rest_ns = again_ns;
                if *task == NodeTask::Begin && refusal.why == ShardWhy::Busy {
                    state.beat_ns = state.beat_ns.min(again_ns);
                }
                return self.on_refused(now_ns, node, refusal);
            }
            (_, other) => {
                tracing::warn!(answer = other.name(), "a memory node sent an unexpected answer");
                state.rest_ns = now_ns + REFUSED_PAUSE.as_nanos() as u64;
            }
        }
        // If the node already had room for the largest image, more room is no news for the
        // database.
        let is_more = state.free_bytes(now_ns) > free_before;
        let was_little = state.begun.is_some_and(|begun| free_before < begun.image_bytes_max);
        self.news.has_more_room |= is_more && was_little;
        self.note_lost(node, lost);
        self.give_back(node);
    }

    /// Takes the figures of the database's memory from a node's answer to a transfer.
    pub(super) fn on_share(&mut self, node: StoreNode, share: &NodeShare) {
        let Some(state) = self.nodes.get_mut(&node) else { return };
        state.set_share(share);
        self.give_back(node);
    }

    /// Bytes that each node is to guarantee: an equal part at each one that is up.
    fn guarantee_of_each(&self) -> u64 {
        let up = self.nodes.values().filter(|state| state.is_up).count() as u64;
        self.terms.guaranteed_bytes.div_ceil(up.max(1))
    }

    /// Handles a refusal of any request by a node.
    pub(super) fn on_refused(&mut self, now_ns: u64, node: StoreNode, refusal: &ShardRefusal) {
        let Some(state) = self.nodes.get_mut(&node) else { return };
        match refusal.why {
            ShardWhy::OldEpoch | ShardWhy::OtherToken => {
                let number = state.node;
                if !std::mem::replace(&mut state.is_fenced, true) {
                    tracing::error!(node = %number, %refusal, "a memory node has another owner");
                }
                // The other owner of the database purges the shards of this owner.
                let released: Vec<ShardId> = state.shards.released().collect();
                released.into_iter().for_each(|id| state.shards.remove(id));
            }
            // The node has dropped the database, because it got no messages for minutes.
            ShardWhy::NotBegun if state.begun.take().is_some() => state.beat_ns = now_ns,
            _ => return,
        }
        let lost = state.lose();
        self.note_lost(node, lost);
    }

    /// Declares shards lost, because the node does not know them or returned wrong bytes.
    pub(super) fn lose(&mut self, node: StoreNode, ids: &[ShardId]) {
        let Some(state) = self.nodes.get_mut(&node) else { return };
        let mut lost = ids.to_vec();
        lost.retain(|id| state.shards.readable(*id).is_some());
        lost.iter().for_each(|id| state.give_up(*id));
        self.note_lost(node, lost);
    }

    /// Chooses the node for the image of a shard whose bucket begins at `boundary`, and begins the
    /// transfer there.
    pub(super) fn begin_send(
        &mut self,
        now_ns: u64,
        id: ShardId,
        bytes: u64,
        boundary: &[u8],
    ) -> Pick {
        if id.memtable < self.oldest || self.places.contains(id) {
            return Pick::NoRoom("the shard has been sent or released before");
        }
        if self.is_used_up(id, bytes) {
            return Pick::UsedUp;
        }
        let used = self.used_bytes();
        if used.saturating_add(bytes) > self.terms.bytes_max {
            let second_bytes = self.places.spare_bytes() + self.coming_bytes(|_| true);
            let first_bytes = used.saturating_sub(second_bytes);
            let is_spare = first_bytes.saturating_add(bytes) <= self.terms.bytes_max;
            return match is_spare && self.make_room(now_ns, id, bytes) {
                true => Pick::Later,
                false => Pick::NoRoom("the database has its limit of bytes at memory nodes"),
            };
        }
        let with_ahead = used.saturating_add(self.ahead_bytes()).saturating_add(bytes);
        if with_ahead > self.terms.bytes_max && self.stop_ahead(now_ns, NodeState::obeys) {
            return Pick::Later;
        }
        let takes = |wanted: Takes| {
            let nodes = self.nodes.iter();
            nodes.filter(move |(_, state)| state.takes(now_ns, id, bytes) == wanted)
        };
        let chosen = place(self.owner.db, boundary, takes(Takes::Now).map(|(_, at)| at.node));
        let found = takes(Takes::Now).find(|(_, state)| Some(state.node) == chosen);
        let Some(number) = found.map(|(number, _)| *number) else {
            let later: Vec<StoreNode> = takes(Takes::Later).map(|(node, _)| *node).collect();
            if !later.is_empty() {
                // A first copy does not wait for the transfer of a second one, nor for the records
                // of a shard that still fills.
                self.stop_copying(|to| later.contains(&to));
                self.stop_ahead(now_ns, |state| {
                    state.takes(now_ns, id, bytes) == Takes::Later && state.fits_zone(bytes)
                });
                return Pick::Later;
            }
            // The share of the database at a node has room for the image, but active shards fill
            // that room.
            if self.stop_ahead(now_ns, |at| at.can_have(id, bytes) && at.fits_share(bytes)) {
                return Pick::Later;
            }
            return match self.make_room(now_ns, id, bytes) {
                true => Pick::Later,
                false => Pick::NoRoom("no node that answers takes an image of this size now"),
            };
        };
        let Some(state) = self.nodes.get_mut(&number) else { return Pick::Later };
        state.shards.begin(id, bytes);
        Pick::Node { node: number, losses: state.losses }
    }

    /// Whether no node that takes shards will ever take an image of `bytes` with this name, and the
    /// name is used up at one of them. A node that begins a new life takes it again.
    fn is_used_up(&self, id: ShardId, bytes: u64) -> bool {
        let usable = || self.nodes.values().filter(|state| state.usable().is_some());
        usable().any(|state| state.has_used_up(id))
            && usable().all(|state| state.never_takes(id, bytes))
    }

    /// Whether a transfer that began when `losses` were counted can still end with a shard that can
    /// be read.
    pub(super) fn is_sending(&self, node: StoreNode, id: ShardId, losses: u64) -> bool {
        let state = self.nodes.get(&node).filter(|_| !self.is_closed);
        state.is_some_and(|state| state.losses == losses && state.shards.contains(id))
    }

    /// Ends a transfer whose shard the node has registered. Errors: `Lost` if the node was lost
    /// since `losses` were counted; then the shard is released.
    pub(super) fn sent(
        &mut self,
        node: StoreNode,
        id: ShardId,
        losses: u64,
        at: ReadableShard,
    ) -> Result<(), AwayError> {
        let gone = || AwayError::Lost("the memory node was lost during the transfer".to_owned());
        let state = self.nodes.get_mut(&node).ok_or_else(gone)?;
        if state.losses != losses || !state.shards.set(id, ShardStage::Away(at)) {
            state.give_up(id);
            return Err(gone());
        }
        self.places.set_first(id, node, state.shards.bytes(id));
        self.offsets.open(id, at.last_seq);
        Ok(())
    }

    /// Ends a transfer that has failed.
    pub(super) fn not_sent(&mut self, now_ns: u64, node: StoreNode, id: ShardId, end: NotSent) {
        let until_ns = now_ns + self.terms.full.as_nanos() as u64;
        let Some(state) = self.nodes.get_mut(&node) else { return };
        if end.may_be_known {
            state.give_up(id);
        } else {
            state.shards.remove(id);
        }
        if let Some(left_bytes) = end.left_bytes {
            state.full = Some(FullNotice { left_bytes, until_ns });
        }
        if let (Some(limit), Some(begun)) = (end.image_bytes_max, &mut state.begun) {
            begun.image_bytes_max = begun.image_bytes_max.min(limit);
        }
    }

    /// The names and places for a read of these shards, which must all lie at the node. Errors:
    /// `Lost` if all of them are lost, `Busy` if only some are.
    pub(super) fn target(&self, node: StoreNode, ids: &[ShardId]) -> Result<ReadTarget, AwayError> {
        let over = || AwayError::Lost("the life of their memory node is over".to_owned());
        let state = self.nodes.get(&node).ok_or_else(over)?;
        let readable = |id: &ShardId| state.shards.readable(*id);
        let missing = |id: &ShardId| {
            let why = format!("memory node {} has shard {id} no more", state.node);
            let is_any_left = ids.iter().any(|id| readable(id).is_some());
            if is_any_left { AwayError::Busy(why) } else { AwayError::Lost(why) }
        };
        let shards = ids.iter().map(|id| readable(id).ok_or_else(|| missing(id)));
        let shards = shards.collect::<Result<Vec<_>, _>>()?;
        let names = ids.iter().map(|id| self.name(*id)).collect();
        Ok(ReadTarget { names, shards })
    }

    /// The key-offset cache of the owner.
    pub(super) fn offsets(&mut self) -> &mut KeyOffsets {
        &mut self.offsets
    }

    /// A shard at a node, if it can be read there.
    pub(super) fn readable(&self, node: StoreNode, id: ShardId) -> Option<ReadableShard> {
        self.nodes.get(&node)?.shards.readable(id)
    }

    /// The places of these shards, in their order; `None` if one of them cannot be read at a node.
    pub(super) fn images(&self, ids: &[ShardId]) -> Option<JobImages> {
        let mut images = JobImages { db: self.owner.db, ..JobImages::default() };
        for id in ids {
            let state = self.nodes.get(&self.places.first(*id)?)?;
            let ReadableShard { place, head_sum, .. } = state.shards.readable(*id)?;
            let image = ImagePlace { name: self.name(*id), place, head_sum };
            if images.nodes.iter().all(|node| node.at != image.at()) {
                let endpoints = state.endpoints.clone();
                images.nodes.push(ImageNode { at: image.at(), endpoints });
            }
            images.images.push(image);
        }
        Some(images)
    }

    /// The node of a shard that can be read.
    #[cfg(test)]
    pub(super) fn home(&self, id: ShardId) -> Option<StoreNode> {
        self.places.first(id)
    }

    /// Keys of the arenas of a node with shards that can be read, or that an open may still read.
    pub(super) fn arenas(&self, node: StoreNode) -> Vec<RemoteKey> {
        let shards = self.nodes.get(&node).into_iter().flat_map(|state| state.shards.away());
        shards.map(|(_, at)| at.place.key).chain(self.held_arenas(node)).collect()
    }

    /// Releases shards that the database does not need any more. It will send no shard of a
    /// memtable below `oldest`. Returns the nodes that must get a message.
    pub(super) fn release(&mut self, ids: &[ShardId], oldest: u64) -> BTreeSet<StoreNode> {
        if oldest > self.oldest {
            self.oldest = oldest;
            self.nodes.values_mut().for_each(|state| state.retire(oldest));
        }
        let mut nodes = BTreeSet::new();
        for id in ids {
            self.offsets.forget(*id);
            let mut places = self.places.remove(*id);
            if self.terms.sabotage.no_second_release() {
                places.truncate(1);
            }
            for node in places {
                if let Some(state) = self.nodes.get_mut(&node) {
                    state.give_up(*id);
                    nodes.insert(node);
                }
            }
        }
        nodes
    }

    /// Whether every node that answers has confirmed all releases, and no active shard has room.
    pub(super) fn is_settled(&self) -> bool {
        if !self.aheads.is_empty() {
            return false;
        }
        let waits = |state: &NodeState| state.obeys() && state.shards.released().next().is_some();
        !self.nodes.values().any(waits)
    }

    /// The nodes that execute requests of this owner, as far as is known.
    fn obeying(&self) -> impl Iterator<Item = &NodeState> {
        self.nodes.values().filter(|node| node.obeys())
    }

    /// Bytes of images that these nodes hold and that are being sent to them.
    fn used_bytes(&self) -> u64 {
        self.obeying().map(NodeState::used_bytes).sum()
    }

    pub(super) fn room(&self, now_ns: u64) -> StoreRoom {
        let nodes = || self.obeying();
        let spare_bytes = self.places.spare_bytes();
        let sending_bytes: u64 = nodes().map(|node| node.shards.sending_bytes()).sum();
        let held_bytes: u64 = nodes().map(|node| node.shards.held_bytes()).sum();
        let away_bytes: u64 = nodes().map(|node| node.shards.away_bytes()).sum();
        let first_bytes = held_bytes.saturating_sub(spare_bytes);
        let limit = match self.surplus_bytes() {
            0 => self.sum_of_nodes(NodeState::first_limit_bytes),
            _ => first_bytes + away_bytes.saturating_sub(spare_bytes) / SURPLUS_SLACK_PART,
        };
        let left = self.terms.bytes_max.saturating_sub(first_bytes + sending_bytes);
        let free = self.sum_of_nodes(|state, spare| state.free_bytes_with(now_ns, spare));
        let largest = nodes().filter_map(NodeState::usable).map(|begun| begun.image_bytes_max);
        StoreRoom {
            free_bytes: free.min(left),
            sending_bytes,
            held_bytes,
            spare_bytes,
            limit_bytes: limit.min(self.terms.bytes_max).min(UNLIMITED_BYTES),
            image_bytes_max: largest.max().unwrap_or(0),
            link_bytes_per_s: 0,
            is_shared: self.is_shared(),
        }
    }

    /// Whether other databases can use memory that this one gives back. While a node withholds
    /// images, it is false: all ranges would be due, and flushes of those images would fail.
    fn is_shared(&self) -> bool {
        let withholds = self.nodes.values().any(NodeState::withholds_images);
        !withholds && self.obeying().any(NodeState::is_shared)
    }

    /// Sum of a figure over the nodes that execute requests of this owner. `figure` gets a node,
    /// and the bytes of second copies there.
    fn sum_of_nodes(&self, figure: impl Fn(&NodeState, u64) -> u64) -> u64 {
        let nodes = self.nodes.iter().filter(|(_, state)| state.obeys());
        let figures = nodes.map(|(node, state)| figure(state, self.places.spare_bytes_at(*node)));
        figures.fold(0, u64::saturating_add)
    }

    /// Bytes of first copies that nodes have beyond the shares of the database. Second copies do
    /// not count, because the owner gives them up without a flush.
    pub(super) fn surplus_bytes(&self) -> u64 {
        self.sum_of_nodes(NodeState::surplus_bytes)
    }

    /// Bytes of memory that nodes guarantee now.
    pub(super) fn guaranteed_bytes(&self) -> u64 {
        let begun = self.nodes.values().filter_map(NodeState::usable);
        begun.map(|begun| begun.share.guaranteed_bytes).fold(0, u64::saturating_add)
    }

    /// Number of nodes that take shards, and number of shards that can be read.
    pub(super) fn counts(&self) -> (u64, u64) {
        let usable = self.nodes.values().filter(|state| state.usable().is_some());
        (usable.count() as u64, self.places.len() as u64)
    }

    /// Number of shards that two nodes have.
    pub(super) fn doubled(&self) -> u64 {
        self.places.doubled() as u64
    }
}
