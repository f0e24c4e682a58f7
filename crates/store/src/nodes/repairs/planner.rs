//! Decides what to repair, on which node and in what order, from the lists of the nodes.
//!
//! A [`RepairPlanner`] lives for one round of questions. It takes the members once, so that all its
//! decisions agree. Then it takes the descriptors and extents that the nodes list. Its result is a
//! list of [`RepairJob`]s with their [`RepairDebt`]s, of which [`next_repair`] chooses by urgency
//! and rate.
//!
//! | node | its chunks |
//! | --- | --- |
//! | up or silent | stay |
//! | up, in the domain of another holder | are read, and move to a free domain if there is one |
//! | drains | are read, and made on other nodes |
//! | lost, or unknown for so long that it would be lost | are made on other nodes |
//!
//! A chunk names all holders of its blob, and an extent names none. The holders of an extent are
//! the nodes that list it. A node that lists nothing, because it is silent or its disk hangs, may
//! have one more copy. So a copy of an extent is planned only if the extent lacks one even when
//! those nodes are counted. If a node answers, but lists nothing for as long as a silent node may
//! be silent, it counts as a node without copies. No extent is planned while the manager may not
//! know all nodes.
//!
//! A label that was changed by mistake, or labels that change one after the other, would move much
//! data for nothing. So nothing moves because of a label until all labels have stayed the same for
//! as long as a silent node may be silent. Repairs of lost copies use the new labels immediately.
//!
//! Invariants:
//! 1. A new chunk is in the domain of no other holder that stays.
//! 2. There is at most one job per blob or extent, so that no two orders of a round compete.
//! 3. The jobs are bounded in number. The most urgent ones are kept.
//! 4. The target of an extent has listed its extents. A copy that it did not list may be longer,
//!    and the order would fail: a node refuses to cut its replica.
//! 5. A node that has refused the copy of an extent, because it keeps a longer replica, is no
//!    target of that extent until its life or the members change.
//! 6. Extents of a log that its volume has removed need no copies. A node that was away keeps them
//!    until the owner of the volume releases strays.
//! 7. A round compares a bounded number of extents, and the next rounds compare those that follow.
//!    The figures of the last page of such a cycle are those of all its pages, so that a drain does
//!    not seem to have ended while an extent of an earlier page has no other place.
//!
//! Thread-safety: none; the owner is one task.
//! Failure: an object without a target, or with too few sources, is counted and named.
//! Cost: O(log n) per object, and O(nodes) for the choice of a target.
//!
//! [`next_repair`]: super::super::placement::next_repair

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Result;

use super::super::StorageId;
use super::super::layout::{REPLICAS, Scheme};
use super::super::placement::{PlacementRequest, RepairDebt, Replacement, WritePurpose, replace};
use super::super::wire::{
    ChunkDescriptor, ChunkId, CodingDue, ExtentAt, HeldChunk, Holder, MissingChunk, NodeDebt,
    RepairStatus, SealedExtent,
};
use super::extent_page::{ExtentCopies, ExtentPage, PagedExtents};
use super::members::RepairMembers;
use crate::ids::{BlobId, LogId};

/// Largest number of jobs of a round.
pub const JOBS_MAX: usize = 4096;
/// Largest number of examples per node.
const EXAMPLES_MAX: usize = 8;

/// Meaning of the extents of a node that has not listed all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlistedExtents {
    /// The node may have a copy of any extent.
    Unknown,
    /// The node has listed none for so long that it counts as a node without copies.
    Missing,
}

/// An extent and a node that would get a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtentTarget {
    /// Log and number of the extent.
    pub at: ExtentAt,
    /// The node without a copy.
    pub node: StorageId,
}

/// One order for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairJob {
    /// A chunk that the target of the debt makes.
    Chunk {
        /// Descriptor of the blob, with the index of the chunk.
        descriptor: ChunkDescriptor,
        /// Holder that leaves.
        replaces: Option<StorageId>,
    },
    /// A copy of an extent that the target of the debt makes.
    Extent {
        /// The extent to copy.
        extent: SealedExtent,
        /// Nodes that have it.
        sources: Vec<StorageId>,
    },
}

/// Collects the answers of a round of questions.
#[derive(Debug)]
pub struct RepairPlanner {
    members: RepairMembers,
    debts: Vec<RepairDebt>,
    jobs: Vec<RepairJob>,
    planned: BTreeSet<BlobId>,
    /// Nodes that list the blobs of which they are the first holder.
    listing: BTreeSet<StorageId>,
    /// Nodes that listed nothing in the last round.
    hanging: BTreeSet<StorageId>,
    extents: PagedExtents,
    /// Nodes that keep their extents or answer, and that did not list all of them.
    unlisted: BTreeMap<StorageId, UnlistedExtents>,
    without_job: ExtentsWithoutJob,
    by_node: BTreeMap<StorageId, NodeDebt>,
    waiting_for_domains: u64,
    sharing_domains: u64,
    coding_due: CodingDue,
    unrepairable: u64,
    /// Targets that get no chunks if there are others, because orders for chunks failed there.
    avoid: Vec<StorageId>,
    /// Targets that get no extents if there are others, because copies failed there.
    avoid_for_extents: Vec<StorageId>,
    /// Nodes that keep longer replicas of extents, and have refused copies of these.
    refused: BTreeMap<ExtentAt, Vec<StorageId>>,
    /// Logs that their volume has removed.
    removed_logs: BTreeSet<LogId>,
}

/// Extents without all their copies for which a plan has no job: those of its page and of the
/// earlier pages of the cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentsWithoutJob {
    /// Number of extents of which a node that did not list its extents may have a copy.
    unknown: u64,
    /// Number of extents whose targets keep longer replicas.
    refused: u64,
    /// Number of extents that wait for a node of another domain.
    waiting_for_domains: u64,
    /// Number of extents with two copies in one domain that no other domain takes.
    sharing_domains: u64,
    /// Extents of nodes that leave, by node, which no other node takes.
    stuck: BTreeMap<StorageId, StuckExtents>,
}

/// Extents of one node that no other node takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StuckExtents {
    count: u64,
    /// Some of them, each with the reason.
    examples: Vec<String>,
}

impl ExtentsWithoutJob {
    fn note_stuck(&mut self, node: StorageId, why: impl FnOnce() -> String) {
        let of_node = self.stuck.entry(node).or_default();
        of_node.count += 1;
        if of_node.examples.len() < EXAMPLES_MAX {
            of_node.examples.push(why());
        }
    }
}

/// The outcome of a round: debts, jobs and figures.
#[derive(Clone, Debug, Default)]
pub struct RepairPlan {
    /// Debts, by which the next repair is chosen.
    pub debts: Vec<RepairDebt>,
    /// The job of each debt.
    pub jobs: Vec<RepairJob>,
    /// Figures for operators. The counters of finished repairs are 0.
    pub status: RepairStatus,
    /// Extent after which the next round continues. `None` if no extents follow the page.
    pub extents_next: Option<ExtentAt>,
    /// Extents without a job, for the plan of the next page ([`RepairPlanner::after_pages`]).
    pub without_job: ExtentsWithoutJob,
}

impl RepairPlanner {
    /// A planner for these members and the first page of extents. Nodes in `avoid` get no chunks
    /// and no extents if there are others.
    #[must_use]
    pub fn new(members: RepairMembers, avoid: Vec<StorageId>) -> Self {
        let silent = members.present().filter(|node| !members.answers(*node));
        let unlisted = silent.map(|node| (node, UnlistedExtents::Unknown)).collect();
        let listing = members.answering().collect();
        Self {
            members,
            debts: Vec::new(),
            jobs: Vec::new(),
            planned: BTreeSet::new(),
            listing,
            hanging: BTreeSet::new(),
            extents: PagedExtents::default(),
            unlisted,
            without_job: ExtentsWithoutJob::default(),
            by_node: BTreeMap::new(),
            waiting_for_domains: 0,
            sharing_domains: 0,
            coding_due: CodingDue::default(),
            unrepairable: 0,
            avoid_for_extents: avoid.clone(),
            avoid,
            refused: BTreeMap::new(),
            removed_logs: BTreeSet::new(),
        }
    }

    /// Gives further nodes no extents if there are others, because copies of extents failed there.
    /// Their chunks are planned as before.
    #[must_use]
    pub fn avoiding_for_extents(mut self, nodes: impl Iterator<Item = StorageId>) -> Self {
        self.avoid_for_extents.extend(nodes);
        self
    }

    /// Leaves out copies of extents that their targets have refused, because they keep longer
    /// replicas.
    #[must_use]
    pub fn without_copies(mut self, refused: impl Iterator<Item = ExtentTarget>) -> Self {
        for copy in refused {
            self.refused.entry(copy.at).or_default().push(copy.node);
        }
        self
    }

    /// Leaves out the extents of logs that their volume has removed.
    #[must_use]
    pub fn without_logs(mut self, removed: impl Iterator<Item = LogId>) -> Self {
        self.removed_logs.extend(removed);
        self
    }

    /// Compares another page of extents. Call it before the first extent: the planner forgets those
    /// that it has.
    #[must_use]
    pub fn on_page(self, page: ExtentPage) -> Self {
        Self { extents: PagedExtents::new(page), ..self }
    }

    /// Counts the extents without a job of the earlier pages of the cycle as well.
    #[must_use]
    pub fn after_pages(self, without_job: ExtentsWithoutJob) -> Self {
        Self { without_job, ..self }
    }

    /// Leaves out nodes that listed nothing in the last round. The next holders list their blobs,
    /// and these nodes get no chunks of others.
    #[must_use]
    pub fn without_lists_of(mut self, nodes: impl Iterator<Item = StorageId>) -> Self {
        for node in nodes {
            self.listing.remove(&node);
            self.hanging.insert(node);
        }
        self
    }

    /// Nodes that list the blobs of which they are the first of these nodes among the holders.
    pub fn listing(&self) -> impl Iterator<Item = StorageId> {
        self.listing.iter().copied()
    }

    /// The members of the round.
    #[must_use]
    pub fn members(&self) -> &RepairMembers {
        &self.members
    }

    /// Takes a chunk that `reporter` lists.
    pub fn add_chunk(&mut self, reporter: StorageId, held: &HeldChunk) {
        let blob = &held.descriptor;
        if self.planned.contains(&blob.chunk.blob) {
            return;
        }
        if !held.is_readable && !self.members.is_leaving(reporter) {
            match self.avoid.contains(&reporter) {
                // An earlier order to this node failed, so its disk may not take the chunk.
                true => self.plan_chunk(blob, None, Some(reporter), Some(reporter)),
                false => self.plan_chunk(blob, Some(reporter), None, Some(reporter)),
            }
            return;
        }
        let is_leaving = |it: &&Holder| self.members.is_leaving(it.storage);
        // A node that drains lists its own chunks, which the descriptors of other holders may not
        // name any more.
        let own = blob.holders.iter().find(|it| it.storage == reporter).filter(is_leaving);
        let leaving = own.or_else(|| blob.holders.iter().find(is_leaving));
        if own.is_none() && self.members.is_leaving(reporter) {
            self.plan_surplus(reporter, blob);
        } else if let Some(leaving) = leaving.copied() {
            let chunk = ChunkId { index: leaving.chunk, ..blob.chunk };
            let wanted = ChunkDescriptor { chunk, ..blob.clone() };
            self.plan_chunk(&wanted, None, Some(leaving.storage), Some(leaving.storage));
        } else if let Scheme::Replicas(_) = blob.scheme
            && blob.holders.len() < usize::from(REPLICAS)
        {
            self.plan_chunk(blob, None, None, None);
        } else if let Some(sharing) = self.members.sharing_holder(&blob.holders) {
            self.plan_move(blob, sharing);
        }
    }

    /// Plans the move of a chunk out of the domain of another chunk of its blob. The label of a
    /// node may have changed since the blob was written.
    fn plan_move(&mut self, blob: &ChunkDescriptor, sharing: Holder) {
        if !self.members.has_settled_labels() {
            self.sharing_domains += 1;
            return;
        }
        let chunk = ChunkId { index: sharing.chunk, ..blob.chunk };
        let wanted = ChunkDescriptor { chunk, ..blob.clone() };
        let node = Some(sharing.storage);
        match self.choose(&wanted, node) {
            Ok(target) => self.plan_chunk(&wanted, Some(target), node, node),
            Err(_) => self.sharing_domains += 1,
        }
    }

    /// Counts files that have replicas in place of RS(4,2). Each file is counted by one node.
    pub fn add_coding_due(&mut self, due: CodingDue) {
        self.coding_due.files += due.files;
        self.coding_due.bytes += due.bytes;
    }

    /// Plans the end of a chunk on a draining node, if the blob does not need the chunk any more.
    /// Another holder compares all chunks of the blob, and deletes this one.
    fn plan_surplus(&mut self, reporter: StorageId, blob: &ChunkDescriptor) {
        let answers = |it: &&Holder| self.members.answers(it.storage);
        if let Some(holder) = blob.holders.iter().find(answers).copied() {
            let chunk = ChunkId { index: holder.chunk, ..blob.chunk };
            let wanted = ChunkDescriptor { chunk, ..blob.clone() };
            self.plan_chunk(&wanted, Some(holder.storage), Some(reporter), Some(reporter));
        }
    }

    /// Takes a chunk that its node lacks.
    pub fn add_missing(&mut self, missing: &MissingChunk) {
        let is_new = !self.planned.contains(&missing.descriptor.chunk.blob);
        if is_new && self.members.answers(missing.storage) {
            let node = Some(missing.storage);
            self.plan_chunk(&missing.descriptor, node, None, node);
        }
    }

    /// Plans the chunk that `wanted` describes. Its node is `target` if that is given, and else a
    /// node in another domain. The debt counts for the node `debtor`.
    fn plan_chunk(
        &mut self,
        wanted: &ChunkDescriptor,
        target: Option<StorageId>,
        replaces: Option<StorageId>,
        debtor: Option<StorageId>,
    ) {
        let others: Vec<Holder> =
            wanted.holders.iter().copied().filter(|it| Some(it.storage) != target).collect();
        let sources: Vec<Holder> =
            others.iter().copied().filter(|it| self.members.answers(it.storage)).collect();
        let needed = usize::from(wanted.scheme.chunks_min());
        // A holder of the same bytes is enough, also with RS(4,2).
        let same = sources.iter().find(|source| source.chunk == wanted.chunk.index);
        if same.is_none() && sources.len() < needed {
            self.unrepairable += 1;
            self.stuck(debtor, || {
                format!("blob {}: {} of {needed} chunks answer", wanted.chunk.blob, sources.len())
            });
            return;
        }
        let target = match target {
            Some(target) => target,
            None => match self.choose(wanted, replaces) {
                Ok(target) => target,
                Err(_) if replaces.is_none() => {
                    self.waiting_for_domains += 1;
                    return;
                }
                Err(why) => {
                    self.stuck(debtor, || format!("blob {}: {why}", wanted.chunk.blob));
                    return;
                }
            },
        };
        let sources: Vec<StorageId> = match same {
            Some(source) => vec![source.storage],
            None => sources.iter().take(needed).map(|source| source.storage).collect(),
        };
        let available = others.iter().filter(|it| self.members.answers(it.storage)).count();
        let debt = RepairDebt {
            blob: wanted.chunk.blob,
            losses_left: available.saturating_sub(needed) as u8,
            chunk_bytes: wanted.chunk_bytes(),
            sources,
            target,
        };
        if let Some(node) = debtor {
            let of_node = self.debt_of(node);
            of_node.chunks += 1;
            of_node.bytes += debt.chunk_bytes;
        }
        self.planned.insert(wanted.chunk.blob);
        self.debts.push(debt);
        self.jobs.push(RepairJob::Chunk { descriptor: wanted.clone(), replaces });
        if self.debts.len() >= 2 * JOBS_MAX {
            self.keep_most_urgent();
        }
    }

    /// A node for a chunk, in none of the domains of the holders that stay.
    fn choose(&self, wanted: &ChunkDescriptor, replaces: Option<StorageId>) -> Result<StorageId> {
        let all: Vec<StorageId> = wanted.holders.iter().map(|holder| holder.storage).collect();
        let stay: Vec<StorageId> =
            all.iter().copied().filter(|node| Some(*node) != replaces).collect();
        let request = PlacementRequest {
            key: wanted.chunk.blob.0,
            scheme: wanted.scheme,
            len_bytes: wanted.blob_bytes,
            purpose: WritePurpose::Repair,
            copies_min: 1,
        };
        self.choose_beside(&request, &stay, &all, &self.avoid)
    }

    /// A node in none of the domains of `stay`. Nodes in `all` are never chosen, and those in
    /// `avoid` only if there is no other.
    fn choose_beside(
        &self,
        request: &PlacementRequest,
        stay: &[StorageId],
        all: &[StorageId],
        avoid: &[StorageId],
    ) -> Result<StorageId> {
        let unlisted = self.unlisted.keys().chain(&self.hanging);
        let never: Vec<StorageId> = all.iter().chain(unlisted).copied().collect();
        let avoid = [&never[..], avoid].concat();
        let choose =
            |avoid| replace(self.members.reports(), request, Replacement { holders: stay, avoid });
        // A node whose last order failed is better than no node. A node that does not list its
        // chunks would carry out no order.
        choose(&avoid[..]).or_else(|_| choose(&never[..]))
    }

    /// Takes an extent that `node` has. Ignores extents outside of the page, and extents without a
    /// byte, which no layout names.
    pub fn add_extent(&mut self, node: StorageId, extent: SealedExtent) {
        self.extents.add(node, extent);
    }

    /// Extent after which a node begins its list for this page.
    #[must_use]
    pub fn extents_after(&self) -> Option<ExtentAt> {
        self.extents.after()
    }

    /// Whether the page may have extents after `at`.
    #[must_use]
    pub fn takes_extents_after(&self, at: ExtentAt) -> bool {
        self.extents.takes_after(at)
    }

    /// Notes that a node which answers has not listed all that it holds.
    pub fn note_unlisted(&mut self, node: StorageId, extents: UnlistedExtents) {
        self.unlisted.insert(node, extents);
    }

    /// Nodes that stay and did not list their extents, so that each may have a copy.
    fn hidden_holders(&self) -> Vec<StorageId> {
        let unknown = self.unlisted.iter().filter(|(node, extents)| {
            **extents == UnlistedExtents::Unknown && !self.members.is_leaving(**node)
        });
        unknown.map(|(node, _)| *node).collect()
    }

    /// Plans the copies of the extents of the page.
    fn plan_extents(&mut self) {
        let wanted = usize::from(REPLICAS).min(self.members.domains_with_room());
        let hidden = self.hidden_holders();
        let removed_logs = std::mem::take(&mut self.removed_logs);
        let extents = self.extents.take_copies().into_iter();
        for (at, copies) in extents.filter(|(at, _)| !removed_logs.contains(&at.log)) {
            let ExtentCopies { extent, nodes } = copies;
            let is_leaving = |node: &StorageId| self.members.is_leaving(*node);
            let (leaving, stay): (Vec<StorageId>, Vec<StorageId>) =
                nodes.iter().copied().partition(is_leaving);
            if self.members.spread(stay.iter().copied()) >= wanted {
                self.count_waiting(&stay, &hidden);
                continue;
            }
            if stay.len() >= wanted && !self.members.has_settled_labels() {
                self.without_job.sharing_domains += 1;
                continue;
            }
            let may_be_complete =
                self.members.spread(stay.iter().chain(&hidden).copied()) >= wanted;
            // A node that has not sent a beat to this manager yet may have a copy as well.
            if may_be_complete || !self.members.is_complete() {
                self.without_job.unknown += 1;
                continue;
            }
            let request = PlacementRequest {
                key: at.log.0,
                scheme: Scheme::Replicas(REPLICAS),
                len_bytes: extent.end - extent.start,
                purpose: WritePurpose::Repair,
                copies_min: 1,
            };
            let refused = self.refused.remove(&at).unwrap_or_default();
            let never = nodes.iter().chain(self.unlisted.keys()).chain(&refused);
            let never: Vec<StorageId> = never.copied().collect();
            // A node of another domain that is full, or lists nothing, may take a copy later.
            let has_no_other_domain = self.members.spread(stay.iter().chain(&refused).copied())
                >= self.members.domains_with_room();
            match self.choose_beside(&request, &stay, &never, &self.avoid_for_extents) {
                Ok(target) => {
                    self.debts.push(RepairDebt {
                        blob: BlobId(at.log.0),
                        losses_left: nodes.len().saturating_sub(1) as u8,
                        chunk_bytes: extent.end - extent.start,
                        sources: nodes.iter().copied().take(1).collect(),
                        target,
                    });
                    self.jobs.push(RepairJob::Extent { extent, sources: nodes });
                }
                Err(_) if stay.len() >= wanted => self.without_job.sharing_domains += 1,
                // A node that leaves must keep its copy only if no other node has one.
                Err(_) if !refused.is_empty() && has_no_other_domain && !stay.is_empty() => {
                    self.without_job.refused += 1;
                }
                // If no node leaves, the missing copy counts for no single node.
                Err(_) if leaving.is_empty() => self.without_job.waiting_for_domains += 1,
                Err(why) => {
                    for node in leaving {
                        self.without_job.note_stuck(node, || format!("extent {at}: {why}"));
                    }
                }
            }
        }
    }

    /// Counts an extent that has a copy in each domain with room, if that is too few. `hidden` are
    /// nodes that may have another copy.
    fn count_waiting(&mut self, stay: &[StorageId], hidden: &[StorageId]) {
        let wanted = usize::from(REPLICAS);
        if stay.len() >= wanted {
            return;
        }
        match self.members.spread(stay.iter().chain(hidden).copied()) >= wanted {
            true => self.without_job.unknown += 1,
            false => self.without_job.waiting_for_domains += 1,
        }
    }

    fn stuck(&mut self, node: Option<StorageId>, why: impl Fn() -> String) {
        let Some(node) = node else { return };
        let debt = self.debt_of(node);
        debt.stuck += 1;
        if debt.examples.len() < EXAMPLES_MAX {
            debt.examples.push(why());
        }
    }

    fn debt_of(&mut self, node: StorageId) -> &mut NodeDebt {
        let new = || NodeDebt { storage: node, ..NodeDebt::default() };
        self.by_node.entry(node).or_insert_with(new)
    }

    /// Drops the least urgent jobs. A later round finds them again.
    fn keep_most_urgent(&mut self) {
        let mut all: Vec<(RepairDebt, RepairJob)> =
            self.debts.drain(..).zip(self.jobs.drain(..)).collect();
        all.sort_by_key(|(debt, _)| (debt.losses_left, debt.chunk_bytes, debt.blob));
        all.truncate(JOBS_MAX);
        (self.debts, self.jobs) = all.into_iter().unzip();
    }

    /// The jobs, and the figures for operators.
    #[must_use]
    pub fn finish(mut self) -> RepairPlan {
        let extents_compared = self.extents.count();
        let extents_next = self.extents.next_after();
        self.plan_extents();
        let without_job = std::mem::take(&mut self.without_job);
        self.add_stuck_extents(&without_job);
        let is_chunk = |job: &&RepairJob| matches!(job, RepairJob::Chunk { .. });
        let chunks_left = self.jobs.iter().filter(is_chunk).count() as u64;
        let extents_left = self.jobs.len() as u64 - chunks_left;
        let bytes_left = self.debts.iter().map(|debt| debt.chunk_bytes).sum();
        if self.debts.len() > JOBS_MAX {
            self.keep_most_urgent();
        }
        let unlisted = self.unlisted.keys().copied().filter(|node| self.members.answers(*node));
        let status = RepairStatus {
            is_known: self.unlisted.is_empty() && self.members.is_complete(),
            chunks_left,
            bytes_left,
            extents_left,
            waiting_for_domains: self.waiting_for_domains + without_job.waiting_for_domains,
            unrepairable: self.unrepairable,
            extents_unknown: without_job.unknown,
            extents_compared,
            has_more_extents: extents_next.is_some(),
            unlisted: unlisted.collect(),
            sharing_domains: self.sharing_domains + without_job.sharing_domains,
            coding_files: self.coding_due.files,
            coding_bytes: self.coding_due.bytes,
            extents_refused: without_job.refused,
            nodes: self.by_node.into_values().collect(),
            ..RepairStatus::default()
        };
        RepairPlan { debts: self.debts, jobs: self.jobs, status, extents_next, without_job }
    }

    /// Adds extents that no other node takes to the debts of their nodes.
    fn add_stuck_extents(&mut self, without_job: &ExtentsWithoutJob) {
        for (node, StuckExtents { count, examples }) in &without_job.stuck {
            let debt = self.debt_of(*node);
            debt.stuck += count;
            let room = EXAMPLES_MAX.saturating_sub(debt.examples.len());
            debt.examples.extend(examples.iter().take(room).cloned());
        }
    }
}
