//! One memory node in one of its lives, as the owner sees it.

use std::collections::BTreeSet;

use archipelago_base::Epoch;
use archipelago_engine::remote::ShardId;
use archipelago_fabric::NodeId;

use super::shards::{NodeShards, ShardStage};
use super::terms::OwnerTerms;
use crate::wire::shard::NodeShare;

/// Largest number of released names that the owner remembers for a node.
const USED_UP_MAX: usize = 1 << 16;

/// Divisor of a landing zone: active shards leave this part of it to sealed shards and second
/// copies.
const KEPT_PART: u64 = 4;

/// A request of a node's task; transfers and reads are other requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::shard_owner) enum NodeTask {
    /// `Begin`: makes this open the owner, and is its sign of life.
    Begin,
    /// `Purge`: drops the shards of earlier owners.
    Purge,
    /// `Release`: drops these shards.
    Release(Vec<ShardId>),
}

/// Facts from the host's answer to `Begin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BegunFacts {
    pub(super) landing_bytes: u64,
    pub(super) image_bytes_max: u64,
    /// Memory of the database there, as the latest answer said.
    pub(super) share: NodeShare,
}

/// Facts from a refusal for lack of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FullNotice {
    pub(super) left_bytes: u64,
    pub(super) until_ns: u64,
}

/// A memory node in one of its lives.
#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) node: NodeId,
    pub(super) life: Epoch,
    pub(super) endpoints: Vec<String>,
    /// Whether the pool gets beats of the node.
    pub(super) is_up: bool,
    pub(super) begun: Option<BegunFacts>,
    /// Whether the node knows another owner of the database. The node then gets no more requests.
    pub(super) is_fenced: bool,
    /// Whether the shards were lost because the node was silent, and the node is still silent.
    pub(super) is_lost: bool,
    /// Number of times that its shards were lost.
    pub(super) losses: u64,
    pub(super) needs_purge: bool,
    /// Time of the next beat.
    pub(super) beat_ns: u64,
    /// Shards that could be read here when the latest beat was sent.
    pub(super) beat_shards: u64,
    /// Time before which the node gets no other request of its task, because it refused one.
    pub(super) rest_ns: u64,
    /// Beats without an answer since the last answer.
    pub(super) missed: u32,
    /// Time at which the first unanswered beat was sent.
    owed_since_ns: Option<u64>,
    pub(super) shards: NodeShards,
    /// Names that were released here. The node refuses them from now on.
    used_up: BTreeSet<ShardId>,
    /// Names up to this one are not sent here any more, because some of them were released.
    used_up_to: Option<ShardId>,
    pub(super) full: Option<FullNotice>,
    /// Time before which no active shard gets room, because the node refused one.
    pub(super) full_ahead_ns: u64,
    /// Guarantee of the node that was smaller than the stated one, and is logged.
    logged_guarantee: Option<u64>,
}

/// Times of a beat that got no answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissedBeat {
    /// Time at which the beat was sent.
    pub(super) sent_ns: u64,
    /// Time of the latest answer to another request.
    pub(super) heard_ns: u64,
    pub(super) now_ns: u64,
}

impl NodeState {
    pub(super) fn new(node: NodeId, life: Epoch, now_ns: u64) -> Self {
        Self {
            node,
            life,
            endpoints: Vec::new(),
            is_up: true,
            begun: None,
            is_fenced: false,
            is_lost: false,
            losses: 0,
            needs_purge: false,
            beat_ns: now_ns,
            beat_shards: 0,
            rest_ns: 0,
            missed: 0,
            owed_since_ns: None,
            shards: NodeShards::default(),
            used_up: BTreeSet::new(),
            used_up_to: None,
            full: None,
            full_ahead_ns: 0,
            logged_guarantee: None,
        }
    }

    /// Facts from the host's answer to `Begin`, if shards may be sent now.
    pub(super) fn usable(&self) -> Option<BegunFacts> {
        let is_usable = self.is_up && !self.is_fenced && !self.is_lost && !self.needs_purge;
        self.begun.filter(|_| is_usable)
    }

    /// Takes the node's figures of the memory that the database has and may have there.
    pub(super) fn set_share(&mut self, share: &NodeShare) {
        if let Some(begun) = &mut self.begun {
            begun.share = *share;
        }
    }

    /// Logs that the node guarantees less than the `stated_bytes`, and again when it guarantees an
    /// eighth less than in the last line of the log.
    pub(super) fn note_guarantee(&mut self, share: &NodeShare, stated_bytes: u64) {
        let guaranteed_bytes = share.guaranteed_bytes;
        if guaranteed_bytes >= stated_bytes {
            self.logged_guarantee = None;
            return;
        }
        if self.logged_guarantee.is_some_and(|logged| guaranteed_bytes > logged / 8 * 7) {
            return;
        }
        let node = self.node;
        tracing::warn!(
            %node,
            stated_bytes,
            guaranteed_bytes,
            "a memory node guarantees less than wanted: lower --offload-guaranteed-mib of the \
             servers, or give the node more memory"
        );
        self.logged_guarantee = Some(guaranteed_bytes);
    }

    /// Whether the node takes shards, and has answered the latest request of its task.
    pub(super) fn answers(&self) -> bool {
        self.usable().is_some() && self.missed == 0
    }

    /// Whether the node executes requests of this owner, as far as is known.
    pub(super) fn obeys(&self) -> bool {
        self.begun.is_some() && !self.is_fenced && !self.is_lost
    }

    pub(super) fn full_at(&self, now_ns: u64) -> Option<FullNotice> {
        self.full.filter(|full| now_ns < full.until_ns)
    }

    /// Bytes of images that the node holds and that are being sent to it.
    pub(super) fn used_bytes(&self) -> u64 {
        self.shards.held_bytes() + self.shards.sending_bytes()
    }

    /// Whether the node has images of this database, or gets one, and has other databases as well.
    pub(super) fn is_shared(&self) -> bool {
        self.has_images() && self.usable().is_some_and(|begun| begun.share.databases > 1)
    }

    /// Whether the node has images of this database that cannot be flushed now: it does not answer,
    /// and its shards are not lost yet.
    pub(super) fn withholds_images(&self) -> bool {
        self.has_images() && !self.is_lost && !self.answers()
    }

    /// Whether the node has images of this database, or gets one.
    fn has_images(&self) -> bool {
        self.shards.away_bytes() + self.shards.sending_bytes() > 0
    }

    /// Bytes of images that the node would take at `now_ns`.
    pub(super) fn free_bytes(&self, now_ns: u64) -> u64 {
        self.free_bytes_with(now_ns, 0)
    }

    /// Bytes of images that the node would take at `now_ns` after a release of `spare_bytes`.
    pub(super) fn free_bytes_with(&self, now_ns: u64, spare_bytes: u64) -> u64 {
        let Some(begun) = self.usable() else { return 0 };
        let zone = begun.landing_bytes.saturating_sub(self.shards.sending_bytes());
        zone.min(self.left_bytes(now_ns, spare_bytes))
    }

    /// Whether an image of `bytes` may be sent here as soon as there is room.
    pub(super) fn can_have(&self, id: ShardId, bytes: u64) -> bool {
        let is_known = self.shards.contains(id) || self.has_used_up(id);
        !is_known && self.usable().is_some_and(|begun| bytes <= begun.image_bytes_max)
    }

    /// Whether this life of the node takes no image of this name any more, because the name was
    /// released here, or is about to be.
    pub(super) fn has_used_up(&self, id: ShardId) -> bool {
        let is_confirmed = self.used_up.contains(&id) || self.used_up_to >= Some(id);
        is_confirmed || self.shards.is_released(id)
    }

    /// Whether the node takes no image of `bytes` with this name, even if it gets room.
    pub(super) fn never_takes(&self, id: ShardId, bytes: u64) -> bool {
        let is_too_large = self.usable().is_some_and(|begun| bytes > begun.image_bytes_max);
        is_too_large || self.has_used_up(id)
    }

    /// Bytes of images that the owner may have here, those included that it has. If another
    /// database holds some of them, the node is full now and has room later.
    pub(super) fn limit_bytes(&self) -> u64 {
        self.usable().map_or(self.shards.held_bytes(), |begun| begun.share.limit_bytes)
    }

    /// Bytes of first copies that the owner may have here, if the node has `spare_bytes` of second
    /// copies. If the node takes no images now, second copies count as well, because their release
    /// frees no room there.
    pub(super) fn first_limit_bytes(&self, spare_bytes: u64) -> u64 {
        match self.usable() {
            Some(begun) => begun.share.limit_bytes,
            None => self.shards.held_bytes().saturating_sub(spare_bytes),
        }
    }

    /// Bytes of images that the owner has here beyond its share, after a release of `spare_bytes`.
    /// Unconfirmed releases do not count: they lower the use of the node without another flush.
    pub(super) fn surplus_bytes(&self, spare_bytes: u64) -> u64 {
        self.shards.away_bytes().saturating_sub(spare_bytes).saturating_sub(self.limit_bytes())
    }

    /// Whether the images here, with those that are being sent, have more bytes than the share of
    /// the owner.
    pub(super) fn exceeds_share(&self) -> bool {
        self.exceeds_share_with(0)
    }

    /// The same with the room of active shards.
    pub(super) fn exceeds_share_with_ahead(&self) -> bool {
        self.exceeds_share_with(self.shards.ahead_bytes())
    }

    fn exceeds_share_with(&self, more: u64) -> bool {
        self.shards.away_bytes() + self.shards.sending_bytes() + more > self.limit_bytes()
    }

    /// Bytes of images for which the node has room after a release of `freed_bytes`, as far as the
    /// owner knows.
    fn left_bytes(&self, now_ns: u64, freed_bytes: u64) -> u64 {
        let used = self.used_bytes().saturating_sub(freed_bytes);
        let left = self.limit_bytes().saturating_sub(used);
        let full = self.full_at(now_ns).map(|full| full.left_bytes.saturating_add(freed_bytes));
        full.map_or(left, |full| full.min(left))
    }

    /// Bytes that must be released here, in addition to `freed_bytes`, before the node has room for
    /// an image of `bytes`.
    pub(super) fn missing_bytes(&self, now_ns: u64, bytes: u64, freed_bytes: u64) -> u64 {
        let used = self.used_bytes().saturating_sub(freed_bytes);
        let over = used.saturating_add(bytes).saturating_sub(self.limit_bytes());
        let full = self.full_at(now_ns).map(|full| full.left_bytes.saturating_add(freed_bytes));
        over.max(full.map_or(0, |left| bytes.saturating_sub(left)))
    }

    /// Whether an image of `bytes` may be sent here: now, when other transfers have ended or active
    /// shards have given their room back, or not.
    pub(super) fn takes(&self, now_ns: u64, id: ShardId, bytes: u64) -> Takes {
        let Some(begun) = self.usable() else { return Takes::Never };
        if self.missing_bytes(now_ns, bytes, 0) > 0 || !self.can_have(id, bytes) {
            return Takes::Never;
        }
        let more = self.shards.ahead_bytes().saturating_add(bytes);
        let in_zone = self.shards.sending_bytes().saturating_add(more);
        let is_over = self.used_bytes().saturating_add(more) > self.limit_bytes();
        if is_over || in_zone > begun.landing_bytes { Takes::Later } else { Takes::Now }
    }

    /// Whether the landing zone has room for an image of `bytes`, without that of active shards.
    pub(super) fn fits_zone(&self, bytes: u64) -> bool {
        let in_zone = self.shards.sending_bytes().saturating_add(bytes);
        self.usable().is_some_and(|begun| in_zone <= begun.landing_bytes)
    }

    /// Whether the share of the owner has room for an image of `bytes`, without that of active
    /// shards.
    pub(super) fn fits_share(&self, bytes: u64) -> bool {
        self.used_bytes().saturating_add(bytes) <= self.limit_bytes()
    }

    /// Whether the records of an active shard with an expected image of `bytes` may be written
    /// here.
    pub(super) fn takes_ahead(&self, now_ns: u64, id: ShardId, bytes: u64) -> bool {
        let Some(begun) = self.usable() else { return false };
        let more = self.shards.ahead_bytes().saturating_add(bytes);
        let in_zone = self.shards.sending_bytes().saturating_add(more);
        self.can_have(id, bytes)
            && self.full_at(now_ns).is_none()
            && now_ns >= self.full_ahead_ns
            && self.used_bytes().saturating_add(more) <= self.limit_bytes()
            && in_zone <= begun.landing_bytes - begun.landing_bytes / KEPT_PART
    }

    /// Gives up a shard that the owner does not need any more.
    pub(super) fn give_up(&mut self, id: ShardId) {
        if self.is_fenced {
            // The other owner purges the shards at this node.
            self.shards.remove(id);
        } else {
            self.shards.set(id, ShardStage::Released);
        }
    }

    /// Gives up all shards that can be read. Returns their names.
    pub(super) fn lose(&mut self) -> Vec<ShardId> {
        self.losses += 1;
        let lost: Vec<ShardId> = self.shards.away().map(|(id, _)| id).collect();
        for id in &lost {
            self.give_up(*id);
        }
        lost
    }

    /// Ends the release of a shard, which the node has confirmed. The node does not take the name
    /// again. No shard of a memtable below `oldest` will be sent.
    pub(super) fn released(&mut self, id: ShardId, oldest: u64) {
        self.shards.remove(id);
        if id.memtable >= oldest {
            self.used_up.insert(id);
        }
        while self.used_up.len() > USED_UP_MAX {
            self.used_up_to = self.used_up_to.max(self.used_up.pop_first());
        }
    }

    /// Forgets released names of memtables below `oldest`, because no such shard will be sent.
    pub(super) fn retire(&mut self, oldest: u64) {
        self.used_up = self.used_up.split_off(&ShardId { memtable: oldest, shard: 0 });
    }

    /// Notes that the node has answered.
    pub(super) fn heard(&mut self) {
        (self.missed, self.owed_since_ns) = (0, None);
    }

    /// Notes a beat without an answer. Returns whether the node has been silent for too long.
    pub(super) fn missed_beat(&mut self, beat: MissedBeat, terms: &OwnerTerms) -> bool {
        let MissedBeat { sent_ns, heard_ns, now_ns } = beat;
        if self.owed_since_ns.unwrap_or(sent_ns) <= heard_ns {
            self.heard();
        }
        if sent_ns <= heard_ns {
            return false;
        }
        self.missed += 1;
        let since_ns = *self.owed_since_ns.get_or_insert(sent_ns);
        let is_silent = self.missed >= terms.missed_beats
            && now_ns.saturating_sub(since_ns) >= terms.silence.as_nanos() as u64;
        is_silent || !self.is_up
    }

    /// Notes another request, sent at `sent_ns`, without an answer. The next beat finds out whether
    /// the node answers at all.
    pub(super) fn missed_other(&mut self, sent_ns: u64, now_ns: u64) {
        self.missed = self.missed.max(1);
        self.owed_since_ns.get_or_insert(sent_ns);
        self.beat_ns = self.beat_ns.min(now_ns);
    }

    /// The request that the node should get next. Shards of earlier owners stay until the owner
    /// `may_purge` them.
    pub(super) fn next_task(
        &self,
        now_ns: u64,
        releases_max: usize,
        may_purge: bool,
    ) -> Option<NodeTask> {
        if self.is_fenced {
            return None;
        }
        if now_ns >= self.beat_ns {
            return Some(NodeTask::Begin);
        }
        if !self.obeys() || self.missed > 0 || now_ns < self.rest_ns {
            return None;
        }
        if self.needs_purge && may_purge {
            return Some(NodeTask::Purge);
        }
        let released: Vec<ShardId> = self.shards.released().take(releases_max).collect();
        (!released.is_empty()).then_some(NodeTask::Release(released))
    }
}

/// Whether a node takes an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Now,
    /// Other transfers of this owner fill the landing zone, or active shards have the room.
    Later,
    Never,
}
