//! State that the manager keeps from round to round.
//!
//! Invariant: no state outlives the manager, because the next manager asks the nodes again.
//!
//! Thread-safety: none; the owner is the task that runs the rounds.
//! Failure: no operation fails.
//! Cost: O(nodes) per round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use archipelago_base::Epoch;

use super::super::StorageId;
use super::super::placement::{RepairLimits, RepairRates};
use super::super::wire::{ChunkId, ExtentAt, MemberState, Members, MissingChunk, StorageMember};
use super::members::RepairMembers;
use super::planner::{ExtentTarget, ExtentsWithoutJob, JOBS_MAX};
use crate::ids::LogId;

/// Time that open logs need after a change of the members to leave nodes and to seal the extents
/// there. A round after this time finds these extents.
const LOGS_LEAVE: Duration = Duration::from_secs(10);
/// Time for which a node is avoided after an order to it failed.
const AVOID_FOR: Duration = Duration::from_secs(30);

/// Extents of a draining node, as the node reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainingExtents {
    /// Number of sealed extents.
    pub sealed: u64,
    /// Number of extents that are not sealed.
    pub open: u64,
}

/// Extents of all draining nodes.
pub(super) type DrainingNodes = BTreeMap<StorageId, DrainingExtents>;

/// Whether a draining node has sealed an extent between two reports, as far as they show it.
pub(super) fn has_sealed(before: &DrainingNodes, now: &DrainingNodes) -> bool {
    now.iter().any(|(node, extents)| {
        let before = before.get(node).copied().unwrap_or_default();
        // A removal meanwhile may hide a seal in the number of sealed extents alone.
        extents.sealed > before.sealed || extents.open < before.open
    })
}

/// The last round of questions.
#[derive(Debug)]
pub(super) struct LastScan {
    pub(super) members: RepairMembers,
    pub(super) chunks_unreadable: u64,
    /// Extents of draining nodes when the cycle of the round began.
    pub(super) draining: DrainingNodes,
    pub(super) at_ns: u64,
    /// Time from which a round looks for the extents that logs sealed after the members changed.
    pub(super) again_ns: Option<u64>,
    /// Whether something was left.
    pub(super) is_unfinished: bool,
}

/// A round that ends.
#[derive(Debug)]
pub(super) struct EndedRound {
    pub(super) members: RepairMembers,
    pub(super) chunks_unreadable: u64,
    pub(super) at_ns: u64,
    pub(super) again_ns: Option<u64>,
    /// Extent after which the next page begins. `None` if the cycle has ended.
    pub(super) next: Option<ExtentAt>,
}

/// The pages of extents that rounds have compared since the first page.
#[derive(Clone, Debug)]
pub(super) struct ExtentCycle {
    /// Extent after which the next page begins.
    pub(super) after: Option<ExtentAt>,
    /// Extents of draining nodes before the first page. The cycle compares all that were sealed.
    pub(super) draining: DrainingNodes,
    /// Whether all nodes have listed all of these pages.
    pub(super) is_known: bool,
    /// Whether something was left on one of them.
    pub(super) is_unfinished: bool,
    /// Extents of these pages for which there was no job.
    pub(super) without_job: ExtentsWithoutJob,
}

impl Default for ExtentCycle {
    fn default() -> Self {
        let (draining, without_job) = (DrainingNodes::new(), ExtentsWithoutJob::default());
        Self { after: None, draining, is_known: true, is_unfinished: false, without_job }
    }
}

/// A node that answers and does not list its chunks and extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingList {
    /// Life of the node.
    pub(super) life: Epoch,
    /// Time at which that was noticed first.
    pub(super) since_ns: u64,
}

/// A comparison of a node's chunks with those of the other holders, page by page.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) node: StorageId,
    pub(super) life: Epoch,
    /// Chunk after which the next page begins.
    pub(super) after: Option<ChunkId>,
    /// Chunks that nodes lack, as the pages so far show.
    pub(super) found: Vec<MissingChunk>,
}

/// A page of a comparison, as the node answers.
#[derive(Debug)]
pub(super) struct ComparedPage {
    pub(super) missing: Vec<MissingChunk>,
    /// Chunk after which the next page begins. `None` after the last page.
    pub(super) next: Option<ChunkId>,
}

/// State that is kept from round to round.
#[derive(Debug)]
pub(super) struct RoundState {
    limits: RepairLimits,
    pub(super) rates: RepairRates,
    pub(super) last: Option<LastScan>,
    pub(super) cycle: ExtentCycle,
    /// Nodes that answer and did not list their chunks and extents.
    pub(super) unlisted: BTreeMap<StorageId, MissingList>,
    /// Lives of nodes that have compared their chunks, and the time of the next comparison.
    pub(super) checked: BTreeMap<StorageId, (Epoch, u64)>,
    /// The comparison under way, between two of its pages.
    pub(super) comparison: Option<Comparison>,
    /// Node of the comparison that began last.
    compared_last: Option<StorageId>,
    /// Chunks that nodes lack, as comparisons found.
    pub(super) missing: Vec<MissingChunk>,
    /// Nodes to which an order for a chunk failed, and when.
    pub(super) failed: BTreeMap<StorageId, u64>,
    /// Nodes to which an order for an extent failed, and when. It says nothing about chunks.
    pub(super) failed_for_extents: BTreeMap<StorageId, u64>,
    /// Copies of extents that their targets refused, because they keep longer replicas, and the
    /// lives of the targets.
    pub(super) refused: BTreeMap<ExtentTarget, Epoch>,
    /// Logs that their volume has removed. Nodes that were ordered to copy an extent have reported
    /// this. Nodes that were away during the removal have extents of these logs until the owner
    /// releases strays.
    pub(super) removed_logs: BTreeSet<LogId>,
    /// Time at which full nodes are looked at next.
    pub(super) level_ns: u64,
}

impl RoundState {
    pub(super) fn new(limits: RepairLimits) -> Self {
        Self {
            limits,
            rates: RepairRates::new(limits),
            last: None,
            cycle: ExtentCycle::default(),
            unlisted: BTreeMap::new(),
            checked: BTreeMap::new(),
            comparison: None,
            compared_last: None,
            missing: Vec::new(),
            failed: BTreeMap::new(),
            failed_for_extents: BTreeMap::new(),
            refused: BTreeMap::new(),
            removed_logs: BTreeSet::new(),
            level_ns: 0,
        }
    }

    /// Forgets everything, because another manager may act from now on. Earlier answers of nodes,
    /// and missing ones, say nothing about the time after that.
    pub(super) fn stand_by(&mut self) {
        *self = Self::new(self.limits);
    }

    fn has_same_members(&self, members: &RepairMembers) -> bool {
        self.last.as_ref().is_some_and(|last| last.members.has_same_nodes(members))
    }

    /// Whether the result of the last round is outdated, because the members have changed, or
    /// because a node that drains has sealed extents since the cycle of that round began.
    pub(super) fn is_outdated(&self, members: &RepairMembers, draining: &DrainingNodes) -> bool {
        !self.has_same_members(members) || self.has_new_seals(draining)
    }

    /// Whether draining nodes have sealed extents that the last cycle did not compare. Rounds in
    /// the middle of a cycle follow each other anyway.
    pub(super) fn has_sealed_since(&self, draining: &DrainingNodes) -> bool {
        self.cycle.after.is_none() && self.has_new_seals(draining)
    }

    fn has_new_seals(&self, draining: &DrainingNodes) -> bool {
        self.last.as_ref().is_some_and(|last| has_sealed(&last.draining, draining))
    }

    /// Begins with the first page of extents if the members have changed since the last page.
    pub(super) fn begin_page(&mut self, members: &RepairMembers, draining: &DrainingNodes) {
        if !self.has_same_members(members) {
            self.cycle = ExtentCycle::default();
        }
        if self.cycle.after.is_none() {
            self.cycle.draining.clone_from(draining);
        }
    }

    /// Notes a round that ends.
    pub(super) fn end_round(&mut self, ended: EndedRound) {
        let EndedRound { members, chunks_unreadable, at_ns, again_ns, next } = ended;
        let is_unfinished = self.cycle.is_unfinished || next.is_some();
        let draining = self.cycle.draining.clone();
        self.last =
            Some(LastScan { members, chunks_unreadable, draining, at_ns, again_ns, is_unfinished });
        match next {
            Some(_) => self.cycle.after = next,
            None => self.cycle = ExtentCycle::default(),
        }
    }

    /// Notes an order that failed on `target`: for a copy of an extent, or for a chunk.
    pub(super) fn note_failed(&mut self, target: StorageId, is_chunk: bool, now_ns: u64) {
        if !is_chunk {
            self.failed_for_extents.insert(target, now_ns);
            return;
        }
        self.failed.insert(target, now_ns);
        // The node may keep a chunk that another repair made superfluous.
        self.compare_anew(target);
    }

    /// Forgets orders that failed long ago.
    pub(super) fn forget_failed(&mut self, now_ns: u64) {
        for failed in [&mut self.failed, &mut self.failed_for_extents] {
            failed.retain(|_, at_ns| now_ns < *at_ns + AVOID_FOR.as_nanos() as u64);
        }
    }

    /// Notes that a node keeps a longer replica of an extent, and refused a copy.
    pub(super) fn note_refused(&mut self, copy: ExtentTarget, members: &RepairMembers) {
        if let Some(life) = members.life_of(copy.node) {
            self.refused.insert(copy, life);
        }
    }

    /// Forgets refused copies whose target has begun another life, which may have found another end
    /// of its replica. If the members have changed, all refused copies may be needed again. Removed
    /// logs are then forgotten as well, so that their number does not grow for ever.
    pub(super) fn forget_refused(&mut self, members: &RepairMembers) {
        if !self.has_same_members(members) {
            self.refused.clear();
            self.removed_logs.clear();
        }
        self.refused.retain(|copy, life| members.life_of(copy.node) == Some(*life));
    }

    /// Notes that a node did not list its chunks and extents. Returns the time at which that was
    /// noticed first in this life of the node.
    pub(super) fn note_unlisted(
        &mut self,
        node: StorageId,
        members: &RepairMembers,
        now_ns: u64,
    ) -> u64 {
        let life = members.life_of(node).unwrap_or(Epoch(0));
        let noticed = self.unlisted.entry(node).or_insert(MissingList { life, since_ns: now_ns });
        noticed.since_ns
    }

    /// Forgets which nodes list nothing, as far as they are lost or have begun another life. A node
    /// that is silent for a moment, or begins to drain, still counts from its first missing list.
    pub(super) fn forget_unlisted(&mut self, members: &RepairMembers) {
        let stays: BTreeSet<StorageId> = members.present().chain(members.answering()).collect();
        self.unlisted.retain(|node, missing| {
            stays.contains(node) && members.life_of(*node) == Some(missing.life)
        });
    }

    /// A node that lists again compares its chunks anew, because repairs went on without it.
    pub(super) fn note_listed(&mut self, node: StorageId) {
        if self.unlisted.remove(&node).is_some() {
            self.compare_anew(node);
        }
    }

    /// Lets a node compare all its chunks anew. The missing chunks that the comparison under way
    /// has found so far are still repaired.
    fn compare_anew(&mut self, node: StorageId) {
        self.checked.remove(&node);
        if let Some(comparison) = self.comparison.take_if(|it| it.node == node) {
            self.missing.extend(comparison.found);
        }
    }

    /// Takes the comparison under way, or else the next one that is due at `now_ns`. The caller
    /// notes its next page, or puts the comparison back.
    pub(super) fn next_comparison(&mut self, members: &Members, now_ns: u64) -> Option<Comparison> {
        if let Some(comparison) = self.comparison.take() {
            let member = members.member(comparison.node);
            if member.is_some_and(|it| it.life == comparison.life && self.may_compare(it)) {
                return Some(comparison);
            }
            self.missing.extend(comparison.found);
        }
        let is_due = |member: &&StorageMember| {
            let checked = self.checked.get(&member.storage);
            let is_done = checked.is_some_and(|it| it.0 == member.life && now_ns < it.1);
            !is_done && self.may_compare(member)
        };
        // Nodes take turns, so that a node whose comparison fails, or begins again, does not delay
        // the comparisons of other nodes.
        let turn = |storage: StorageId| {
            let had_its_turn = self.compared_last.is_some_and(|last| storage <= last);
            (had_its_turn, storage)
        };
        let due = members.members.iter().filter(is_due);
        let next = due.min_by_key(|member| turn(member.storage))?;
        let (node, life) = (next.storage, next.life);
        self.compared_last = Some(node);
        Some(Comparison { node, life, after: None, found: Vec::new() })
    }

    /// Whether a node answers. A comparison of a node that does not list its chunks would only wait
    /// for it.
    fn may_compare(&self, member: &StorageMember) -> bool {
        matches!(member.state, MemberState::Up | MemberState::Draining)
            && !self.unlisted.contains_key(&member.storage)
    }

    /// Notes a page of a comparison. After the last page, the node is due again at `due_ns`. The
    /// found chunks begin a round when the comparison ends, or when their number reaches the limit
    /// of a round.
    pub(super) fn note_page(
        &mut self,
        mut comparison: Comparison,
        page: ComparedPage,
        due_ns: u64,
    ) {
        comparison.found.extend(page.missing);
        if page.next.is_none() || comparison.found.len() >= JOBS_MAX {
            self.missing.append(&mut comparison.found);
        }
        match page.next {
            None => {
                self.checked.insert(comparison.node, (comparison.life, due_ns));
            }
            Some(_) => {
                comparison.after = page.next;
                self.comparison = Some(comparison);
            }
        }
    }

    /// Puts a comparison off that failed at `now_ns`, so that other nodes come first. It begins
    /// again with its first page.
    pub(super) fn put_off(&mut self, comparison: Comparison, now_ns: u64) {
        let due_ns = now_ns + AVOID_FOR.as_nanos() as u64;
        self.checked.insert(comparison.node, (comparison.life, due_ns));
        self.missing.extend(comparison.found);
    }

    /// Time from which a round has to look again for extents, as a round at `now_ns` leaves it. A
    /// change of the members sets it. Other rounds keep it until one begins with the first page
    /// after that time.
    pub(super) fn again_ns(&self, members: &RepairMembers, now_ns: u64) -> Option<u64> {
        let same = self.last.as_ref().filter(|last| last.members.has_same_nodes(members));
        let Some(last) = same else { return Some(now_ns + LOGS_LEAVE.as_nanos() as u64) };
        last.again_ns.filter(|at_ns| now_ns < *at_ns || self.cycle.after.is_some())
    }

    /// Whether a round has to look again for extents. Rounds in the middle of a cycle follow each
    /// other anyway.
    pub(super) fn is_again_due(&self, now_ns: u64) -> bool {
        let again_ns = self.last.as_ref().and_then(|last| last.again_ns);
        self.cycle.after.is_none() && again_ns.is_some_and(|at_ns| now_ns >= at_ns)
    }

    /// A node that was lost and returns is compared anew.
    pub(super) fn forget_lost(&mut self, members: &Members) {
        let is_lost = |storage: &StorageId| {
            members.member(*storage).is_none_or(|member| member.state == MemberState::Lost)
        };
        self.checked.retain(|storage, _| !is_lost(storage));
    }
}
