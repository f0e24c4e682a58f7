//! The repair of one chunk, as a state machine without I/O. It runs on the node that becomes a
//! holder of the chunk.
//!
//! 1. *Look*: ask the holders for descriptors, and find the newest placement.
//! 2. *Begin* the chunk. From now on the node notes releases of the blob.
//! 3. *Look* again, for the sets of volumes.
//! 4. *Copy* the bytes, and *seal* them under a larger placement epoch.
//! 5. *Redescribe* the other holders.
//! 6. *Look* a third time: take over the changes of the sets, and see whether all holders have
//!    confirmed.
//! 7. *Drop* the chunks of nodes that are no holders any more.
//!
//! If the blob needs no further chunk, steps 2 to 4 are left out. The other steps then update
//! holders that have missed an earlier repair. A node that returns runs these steps as well, and so
//! does the target of a move that another repair has made superfluous.
//!
//! If this node knows that no volume keeps the blob any more, the repair ends before step 4. The
//! other holders have missed the release.
//!
//! Invariants:
//! 1. A chunk is dropped only if the newest placement does not list its node. Every listed node has
//!    confirmed that placement before, with a chunk that it can read.
//! 2. The descriptor for another holder has an empty set, so that it changes no set there.
//! 3. A volume is taken out of the new chunk's set in two cases only. Either a holder that had the
//!    volume has released it, or this node knows that the volume wrote the blob and has released
//!    it.
//!
//! Failure: the machine ends with [`RepairEnd::Failed`] and may be run again from the start.
//! Cost: five round trips and the copy.

use std::collections::{BTreeMap, BTreeSet};

use super::super::StorageId;
use super::super::layout::{REPLICAS, Scheme};
use super::super::wire::{ChunkDescriptor, ChunkId, Holder, PlacementEpoch};
use crate::ids::VolumeId;

/// Number of looks at the holders before a repair gives up, because they change.
const LOOKS_MAX: u32 = 5;

/// The next action of the driver for a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairAction {
    /// Ask these nodes for their descriptors of the blob.
    Describe(Vec<StorageId>),
    /// Begin the chunk on this node, without bytes.
    Begin,
    /// Copy or compute the bytes of the chunk from these holders.
    Copy {
        /// The newest descriptor, with the index of the wanted chunk and with all volumes that keep
        /// the blob, as the holders say.
        descriptor: ChunkDescriptor,
        /// Holders that have described their chunks.
        sources: Vec<Holder>,
    },
    /// Seal the chunk on this node with the descriptor.
    Seal(ChunkDescriptor),
    /// Replace the descriptors of other holders.
    Redescribe(Vec<(StorageId, ChunkDescriptor)>),
    /// Correct the set of this node's chunk.
    FixSet {
        /// Descriptor whose set is added to that of the chunk.
        add: ChunkDescriptor,
        /// Volumes that are taken out of it.
        take: Vec<VolumeId>,
    },
    /// Delete chunks of nodes that are no holders any more.
    Drop(Vec<(StorageId, ChunkId, PlacementEpoch)>),
    /// Drop the unsealed chunk of this node.
    Abandon,
    /// The repair has ended.
    Done(RepairEnd),
}

/// Outcome of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairEnd {
    /// This node has made its chunk, or the blob does not need it.
    Whole {
        /// Whether all holders have confirmed the placement.
        is_confirmed: bool,
        /// Whether the chunk was made by this repair.
        is_new: bool,
        /// Holders that answer and lack their chunk.
        missing: Vec<StorageId>,
    },
    /// No holder has the blob, or this node knows that it was released.
    Gone,
    /// Another repair won.
    Superseded,
    /// The repair did not succeed, for this reason.
    Failed(String),
}

/// Outcome of an action, which the driver reports to the repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairInput {
    /// Answers to [`RepairAction::Describe`]. A node without an answer is left out.
    Described(Vec<(StorageId, Vec<ChunkDescriptor>)>),
    /// The chunk is begun. `is_sealed`: the node has it already.
    Begun {
        /// Whether the node has the chunk.
        is_sealed: bool,
    },
    /// The action succeeded. For actions on several nodes: it was tried.
    Done,
    /// The action was not carried out, because this node knows that no volume keeps the blob any
    /// more.
    Released,
    /// The action failed, for this reason.
    Failed(String),
}

/// Descriptors that one look at the holders has shown.
type Look = BTreeMap<StorageId, Vec<ChunkDescriptor>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Look,
    Begin,
    LookForSets,
    Copy,
    Seal,
    Redescribe,
    LookBack,
    FixSet,
    Drop,
    Abandon,
    Ended,
}

/// The repair of one chunk on the node that gets it.
#[derive(Clone, Debug)]
pub struct ChunkRepair {
    me: StorageId,
    wanted: ChunkId,
    replaces: Option<StorageId>,
    /// Placement that must be the newest one if the replaced holder is to leave; `None` if the
    /// holder leaves in any case.
    moves_from: Option<PlacementEpoch>,
    /// Whether the chunk is only compared with the chunks of the other holders.
    is_check: bool,
    /// Nodes that are asked.
    asked: BTreeSet<StorageId>,
    looks: u32,
    phase: Phase,
    /// Descriptor with the newest placement.
    newest: ChunkDescriptor,
    /// Sets of the other holders before the copy.
    before: BTreeMap<StorageId, BTreeSet<VolumeId>>,
    /// The last look.
    look: Look,
    is_new: bool,
    is_confirmed: bool,
    end: RepairEnd,
}

impl ChunkRepair {
    /// A repair on node `me`. `known` has the index of the wanted chunk. `replaces` names a holder
    /// that leaves.
    #[must_use]
    pub fn new(me: StorageId, known: ChunkDescriptor, replaces: Option<StorageId>) -> Self {
        let mut asked: BTreeSet<StorageId> = known.holders.iter().map(|it| it.storage).collect();
        asked.extend(replaces);
        asked.insert(me);
        Self {
            me,
            wanted: known.chunk,
            replaces,
            moves_from: None,
            is_check: false,
            asked,
            looks: 0,
            phase: Phase::Look,
            newest: known,
            before: BTreeMap::new(),
            look: Look::new(),
            is_new: false,
            is_confirmed: false,
            end: RepairEnd::Failed("the repair has not ended".to_owned()),
        }
    }

    /// A comparison of a chunk that node `me` has with those of the other holders. It makes no
    /// chunk.
    #[must_use]
    pub fn check(me: StorageId, known: ChunkDescriptor) -> Self {
        Self { is_check: true, ..Self::new(me, known, None) }
    }

    /// Replaces a holder that may stay. The repair makes no chunk if the placement has changed
    /// since the order: the reason to move the chunk may no longer exist, or another repair may
    /// rely on the holder. The repair then updates holders that have missed the change.
    #[must_use]
    pub fn as_move(self) -> Self {
        Self { moves_from: Some(self.newest.placement), ..self }
    }

    /// The first action.
    pub fn start(&mut self) -> RepairAction {
        self.describe(Phase::Look)
    }

    /// The next action, after the outcome of the last one.
    pub fn step(&mut self, input: RepairInput) -> RepairAction {
        match (self.phase, input) {
            (Phase::Look, RepairInput::Described(answers)) => self.looked(answers),
            (Phase::Begin, RepairInput::Begun { is_sealed: false }) => {
                self.describe(Phase::LookForSets)
            }
            // An earlier repair has made the chunk, and did not redescribe the others.
            (Phase::Begin, RepairInput::Begun { is_sealed: true }) => self.adopt(),
            (Phase::LookForSets, RepairInput::Described(answers)) => self.sets_found(answers),
            (Phase::Copy, RepairInput::Done) => self.seal(),
            (Phase::Seal, RepairInput::Done) => {
                self.is_new = true;
                self.redescribe()
            }
            (Phase::Redescribe, _) => self.describe(Phase::LookBack),
            (Phase::LookBack, RepairInput::Described(answers)) => self.looked_back(answers),
            (Phase::FixSet, RepairInput::Done) => self.drop_surplus(),
            (Phase::Copy | Phase::Seal, RepairInput::Released) => self.abandon(RepairEnd::Gone),
            (Phase::Copy | Phase::Seal, RepairInput::Failed(why)) => {
                self.abandon(RepairEnd::Failed(why))
            }
            (Phase::Drop | Phase::Abandon | Phase::Ended, _) => self.done(self.end.clone()),
            (_, RepairInput::Failed(why)) => self.done(RepairEnd::Failed(why)),
            (phase, input) => {
                self.done(RepairEnd::Failed(format!("{input:?} does not answer {phase:?}")))
            }
        }
    }

    fn describe(&mut self, phase: Phase) -> RepairAction {
        self.phase = phase;
        self.looks += 1;
        if self.looks > LOOKS_MAX {
            return self.done(RepairEnd::Failed("the holders of the blob change".to_owned()));
        }
        RepairAction::Describe(self.asked.iter().copied().collect())
    }

    fn done(&mut self, end: RepairEnd) -> RepairAction {
        self.phase = Phase::Ended;
        RepairAction::Done(end)
    }

    fn abandon(&mut self, end: RepairEnd) -> RepairAction {
        (self.phase, self.end) = (Phase::Abandon, end);
        RepairAction::Abandon
    }

    /// Notes the descriptors that the nodes sent. Returns whether all holders of the newest
    /// placement were asked.
    fn note(&mut self, answers: Vec<(StorageId, Vec<ChunkDescriptor>)>) -> bool {
        self.look = answers.into_iter().collect();
        for descriptor in self.look.values().flatten() {
            if descriptor.placement > self.newest.placement {
                self.newest = descriptor.clone();
            }
        }
        self.newest.chunk = self.wanted;
        let holders: Vec<StorageId> = self.holders().collect();
        let is_complete = holders.iter().all(|node| self.asked.contains(node));
        self.asked.extend(holders);
        is_complete
    }

    fn holders(&self) -> impl Iterator<Item = StorageId> {
        self.newest.holders.iter().map(|holder| holder.storage)
    }

    /// The chunk that the newest placement lists for a node.
    fn listed(&self, node: StorageId) -> Option<ChunkId> {
        let holder = self.newest.holders.iter().find(|holder| holder.storage == node)?;
        Some(ChunkId { blob: self.wanted.blob, index: holder.chunk })
    }

    /// The descriptor of a chunk that a node described in the last look.
    fn described(&self, node: StorageId, chunk: ChunkId) -> Option<&ChunkDescriptor> {
        self.look.get(&node)?.iter().find(|descriptor| descriptor.chunk == chunk)
    }

    fn looked(&mut self, answers: Vec<(StorageId, Vec<ChunkDescriptor>)>) -> RepairAction {
        if !self.note(answers) {
            return self.describe(Phase::Look);
        }
        let is_somewhere = self.look.values().any(|descriptors| !descriptors.is_empty());
        if !is_somewhere {
            let is_certain = self.look.len() == self.asked.len();
            return self.done(match is_certain {
                true => RepairEnd::Gone,
                false => RepairEnd::Failed("no node that answers has the blob".to_owned()),
            });
        }
        let has_changed = self.moves_from.is_some_and(|from| self.newest.placement > from);
        // If the order is repeated, this node is in the placement already, and the repair completes
        // its earlier work.
        let is_superseded = has_changed && self.listed(self.me).is_none();
        if self.needs_chunk() && !is_superseded {
            self.phase = Phase::Begin;
            return RepairAction::Begin;
        }
        // A holder with an older placement caused this order. Without the new descriptor it would
        // cause the order again.
        self.redescribe()
    }

    /// Whether this node must make the wanted chunk.
    fn needs_chunk(&self) -> bool {
        if self.is_check {
            return false;
        }
        if let Some(listed) = self.listed(self.me) {
            return listed == self.wanted && self.described(self.me, self.wanted).is_none();
        }
        match self.replaces {
            Some(leaving) => self.listed(leaving).is_some(),
            None => match self.newest.scheme {
                Scheme::Replicas(_) => self.newest.holders.len() < usize::from(REPLICAS),
                Scheme::Rs42(_) => false,
            },
        }
    }

    /// The placement with this node in place of the holder that leaves.
    fn next_descriptor(&self) -> ChunkDescriptor {
        let mut next = self.newest.clone();
        next.holders
            .retain(|holder| Some(holder.storage) != self.replaces && holder.storage != self.me);
        next.holders.push(Holder { storage: self.me, chunk: self.wanted.index });
        next.holders.sort_by_key(|holder| holder.chunk);
        if let Scheme::Replicas(_) = next.scheme {
            next.scheme = Scheme::Replicas(next.holders.len() as u8);
        }
        let own = self.look.get(&self.me).into_iter().flatten().map(|it| it.placement.counter);
        let counter = own.fold(self.newest.placement.counter, u64::max) + 1;
        next.placement = PlacementEpoch { counter, repairer: self.me };
        next.chunk = self.wanted;
        next
    }

    fn sets_found(&mut self, answers: Vec<(StorageId, Vec<ChunkDescriptor>)>) -> RepairAction {
        let placement = self.newest.placement;
        let is_complete = self.note(answers);
        if !is_complete || self.newest.placement != placement {
            return self.abandon(RepairEnd::Superseded);
        }
        self.note_sets();
        if self.before.is_empty() {
            return self.abandon(RepairEnd::Gone);
        }
        let others = self.look.iter().filter(|(node, _)| **node != self.me);
        let sources = others.flat_map(|(node, descriptors)| {
            descriptors.iter().map(move |it| Holder { storage: *node, chunk: it.chunk.index })
        });
        let sources: Vec<Holder> = sources.collect();
        let descriptor = ChunkDescriptor { retaining: self.union_before(), ..self.newest.clone() };
        self.phase = Phase::Copy;
        RepairAction::Copy { descriptor, sources }
    }

    /// Keeps the sets of the other nodes that describe a chunk.
    fn note_sets(&mut self) {
        let sets = self.look.iter().filter(|(node, it)| **node != self.me && !it.is_empty());
        let sets = sets.map(|(node, descriptors)| (*node, volumes_of(descriptors)));
        self.before = sets.collect();
    }

    fn seal(&mut self) -> RepairAction {
        self.newest = self.next_descriptor();
        let sealed = ChunkDescriptor { retaining: self.union_before(), ..self.newest.clone() };
        self.phase = Phase::Seal;
        RepairAction::Seal(sealed)
    }

    fn union_before(&self) -> Vec<VolumeId> {
        let all: BTreeSet<VolumeId> = self.before.values().flatten().copied().collect();
        all.into_iter().collect()
    }

    /// Takes a sealed chunk of this node, which the newest placement does not list, into the next
    /// placement.
    fn adopt(&mut self) -> RepairAction {
        self.note_sets();
        self.newest = self.next_descriptor();
        self.phase = Phase::Redescribe;
        let own = (self.me, ChunkDescriptor { retaining: Vec::new(), ..self.newest.clone() });
        let mut all = self.stale_holders();
        all.push(own);
        RepairAction::Redescribe(all)
    }

    /// Holders that described a chunk under an older placement, with the newest descriptor.
    fn stale_holders(&self) -> Vec<(StorageId, ChunkDescriptor)> {
        let others = self.holders().filter(|node| *node != self.me);
        let stale = others.filter_map(|node| {
            let chunk = self.listed(node)?;
            let known = self.described(node, chunk)?;
            let is_stale = known.placement < self.newest.placement;
            let told = ChunkDescriptor { chunk, retaining: Vec::new(), ..self.newest.clone() };
            is_stale.then_some((node, told))
        });
        stale.collect()
    }

    fn redescribe(&mut self) -> RepairAction {
        if self.before.is_empty() {
            self.note_sets();
        }
        let mut told = self.stale_holders();
        let own = self.described(self.me, self.wanted);
        if own.is_some_and(|own| own.placement < self.newest.placement) {
            // A node that was away gets the newest holders, even if they do not include it.
            let own = ChunkDescriptor { retaining: Vec::new(), ..self.newest.clone() };
            told.push((self.me, own));
        }
        if told.is_empty() && !self.is_new {
            return self.look_back();
        }
        self.phase = Phase::Redescribe;
        RepairAction::Redescribe(told)
    }

    fn looked_back(&mut self, answers: Vec<(StorageId, Vec<ChunkDescriptor>)>) -> RepairAction {
        let placement = self.newest.placement;
        if !self.note(answers) {
            return self.describe(Phase::LookBack);
        }
        if self.newest.placement != placement && self.listed(self.me).is_some() {
            // Another repair was faster, and its placement lists this node. All holders get the
            // descriptor of that repair.
            return self.redescribe();
        }
        self.look_back()
    }

    /// Notes whether all holders have confirmed, and corrects the set of this node's chunk, as the
    /// last look shows.
    fn look_back(&mut self) -> RepairAction {
        let is_confirmed = |node: StorageId| {
            let chunk = self.listed(node)?;
            let known = self.described(node, chunk)?;
            (known.placement == self.newest.placement).then_some(())
        };
        let are_all_confirmed = self.holders().all(|node| is_confirmed(node).is_some());
        self.is_confirmed = are_all_confirmed;
        match self.set_correction() {
            Some(fix) => {
                self.phase = Phase::FixSet;
                fix
            }
            None => self.drop_surplus(),
        }
    }

    /// The correction of the set of this node's chunk; `None` if the set is right.
    fn set_correction(&self) -> Option<RepairAction> {
        let own = self.described(self.me, self.wanted)?;
        let own_set: BTreeSet<VolumeId> = own.retaining.iter().copied().collect();
        let others = self.look.iter().filter(|(node, it)| **node != self.me && !it.is_empty());
        let now: BTreeMap<StorageId, BTreeSet<VolumeId>> =
            others.map(|(node, descriptors)| (*node, volumes_of(descriptors))).collect();
        let kept: BTreeSet<VolumeId> = now.values().flatten().copied().collect();
        let was_released = |volume: &VolumeId| {
            self.before.iter().any(|(node, set)| {
                set.contains(volume) && now.get(node).is_some_and(|set| !set.contains(volume))
            })
        };
        let take = own_set.iter().filter(|it| !kept.contains(*it) && was_released(it));
        let take: Vec<VolumeId> = take.copied().collect();
        // If a volume of the first sets is missing in the set of a new chunk, this node has
        // released it meanwhile. A node that was away and made no chunk adds the volumes that it
        // has missed.
        let was_known =
            |volume: &VolumeId| self.is_new && self.before.values().any(|set| set.contains(volume));
        let add = kept.iter().filter(|it| !own_set.contains(*it) && !was_known(it));
        let add: Vec<VolumeId> = add.copied().collect();
        if add.is_empty() && take.is_empty() {
            return None;
        }
        Some(RepairAction::FixSet { add: ChunkDescriptor { retaining: add, ..own.clone() }, take })
    }

    /// Chunks of the last look that the newest placement does not list.
    fn surplus(&self) -> Vec<(StorageId, ChunkId, PlacementEpoch)> {
        let mut surplus = Vec::new();
        for (node, descriptors) in &self.look {
            let listed = self.listed(*node);
            let extra = descriptors.iter().map(|it| it.chunk).filter(|it| Some(*it) != listed);
            surplus.extend(extra.map(|chunk| (*node, chunk, self.newest.placement)));
        }
        surplus
    }

    fn drop_surplus(&mut self) -> RepairAction {
        let surplus = self.surplus();
        let is_listed = self.listed(self.me).is_some();
        let lacks = |node: &StorageId| {
            let described = self.listed(*node).and_then(|chunk| self.described(*node, chunk));
            self.look.contains_key(node) && described.is_none()
        };
        let missing = self.holders().filter(lacks).collect();
        let end = match is_listed || !self.is_new {
            true => {
                let (is_confirmed, is_new) = (self.is_confirmed, self.is_new);
                RepairEnd::Whole { is_confirmed, is_new, missing }
            }
            false => RepairEnd::Superseded,
        };
        if !self.is_confirmed || surplus.is_empty() {
            return self.done(end);
        }
        (self.phase, self.end) = (Phase::Drop, end);
        RepairAction::Drop(surplus)
    }
}

fn volumes_of(descriptors: &[ChunkDescriptor]) -> BTreeSet<VolumeId> {
    descriptors.iter().flat_map(|it| it.retaining.iter().copied()).collect()
}
