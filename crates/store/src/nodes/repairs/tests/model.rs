//! Seeded runs of [`ChunkRepair`] against model nodes, with releases, retains, losses, restarts
//! and a second repair between any two of its messages.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_env::FileClass;

use super::super::super::StorageId;
use super::super::super::layout::{CellSize, Scheme};
use super::super::super::wire::{ChunkDescriptor, ChunkId, Holder, PlacementEpoch, Stamp};
use super::super::chunk::{ChunkRepair, RepairAction, RepairEnd, RepairInput};
use crate::ids::{BlobId, VolumeId};

const BLOB: BlobId = BlobId([7; 16]);
const WRITER: VolumeId = VolumeId([1; 16]);
const OTHER: VolumeId = VolumeId([2; 16]);
const NODES: u64 = 9;
const SEEDS: u64 = 3_000;
/// Messages of one run at most, so that a run that does not end is noticed.
const MESSAGES_MAX: usize = 2_000;

/// A node that keeps chunks of one blob, as the storage role does.
#[derive(Clone, Debug, Default)]
struct ModelNode {
    is_up: bool,
    sealed: BTreeMap<ChunkId, ChunkDescriptor>,
    /// Chunks that are being written, with the volumes that released the blob since.
    begun: BTreeMap<ChunkId, BTreeSet<VolumeId>>,
}

impl ModelNode {
    fn redescribe(&mut self, told: &ChunkDescriptor) {
        let Some(known) = self.sealed.get_mut(&told.chunk) else { return };
        let all: BTreeSet<VolumeId> =
            known.retaining.iter().chain(&told.retaining).copied().collect();
        if told.placement > known.placement {
            *known = told.clone();
        }
        known.retaining = all.into_iter().collect();
    }

    fn take(&mut self, volume: VolumeId) {
        self.begun.values_mut().for_each(|released| {
            released.insert(volume);
        });
        for known in self.sealed.values_mut() {
            known.retaining.retain(|it| *it != volume);
        }
        self.sealed.retain(|_, known| !known.retaining.is_empty());
    }

    fn seal(&mut self, descriptor: &ChunkDescriptor) -> bool {
        let Some(released) = self.begun.remove(&descriptor.chunk) else { return false };
        let mut sealed = descriptor.clone();
        sealed.retaining.retain(|volume| !released.contains(volume));
        let is_kept = !sealed.retaining.is_empty();
        if is_kept {
            self.sealed.insert(sealed.chunk, sealed);
        }
        is_kept
    }

    fn drop_chunk(&mut self, me: StorageId, chunk: ChunkId, placement: PlacementEpoch) {
        let Some(known) = self.sealed.get(&chunk) else { return };
        let is_listed = known.holders.iter().any(|holder| holder.storage == me);
        if known.placement < placement || (known.placement == placement && !is_listed) {
            self.sealed.remove(&chunk);
        }
    }
}

/// A repair or a comparison under way on a node.
struct Running {
    me: StorageId,
    wanted: ChunkId,
    repair: ChunkRepair,
    action: RepairAction,
    /// Nodes whose part of the action is still to be done.
    left: Vec<StorageId>,
    described: Vec<(StorageId, Vec<ChunkDescriptor>)>,
}

impl Running {
    fn new(me: StorageId, wanted: ChunkId, mut repair: ChunkRepair) -> Self {
        let action = repair.start();
        let left = targets(&action);
        Self { me, wanted, repair, action, left, described: Vec::new() }
    }

    fn check(me: StorageId, held: ChunkDescriptor) -> Self {
        Self::new(me, held.chunk, ChunkRepair::check(me, held))
    }
}

struct Model {
    rng: Rng,
    nodes: BTreeMap<StorageId, ModelNode>,
    scheme: Scheme,
    /// Volumes that keep the blob.
    truth: BTreeSet<VolumeId>,
    /// Whether a release reaches all nodes at the same moment.
    is_release_atomic: bool,
    /// Nodes that a release has still to reach.
    releasing: Vec<(VolumeId, StorageId)>,
    sabotage: Option<Sabotage>,
}

/// A step that a run leaves out, to prove that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// Releases are not noted while a chunk is begun.
    ForgetsReleases,
    /// Chunks are dropped before all holders have confirmed.
    DropsEarly,
}

impl Model {
    fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let is_coded = rng.bool();
        let scheme = if is_coded { Scheme::Rs42(CellSize::Small) } else { Scheme::Replicas(3) };
        let holder = |n: u64| Holder {
            storage: StorageId(n + 1),
            chunk: if is_coded { n as u8 } else { 0 },
        };
        let holders: Vec<Holder> = (0..u64::from(scheme.chunks())).map(holder).collect();
        let up = ModelNode { is_up: true, ..ModelNode::default() };
        let nodes = (1..=NODES).map(|n| (StorageId(n), up.clone())).collect();
        let is_release_atomic = rng.bool();
        let truth = BTreeSet::from([WRITER]);
        let releasing = Vec::new();
        let mut model = Self { rng, nodes, scheme, truth, is_release_atomic, releasing, sabotage };
        for holder in &holders {
            let chunk = ChunkId { blob: BLOB, index: holder.chunk };
            let descriptor = ChunkDescriptor {
                chunk,
                written: Stamp { volume: WRITER, epoch: Epoch(1) },
                class: FileClass::Sst,
                scheme,
                is_coding_due: false,
                blob_bytes: 1 << 20,
                placement: PlacementEpoch::WRITTEN,
                holders: holders.clone(),
                retaining: vec![WRITER],
            };
            let node = model.nodes.get_mut(&holder.storage).unwrap();
            node.sealed.insert(chunk, descriptor);
        }
        model
    }

    fn up(&self) -> Vec<StorageId> {
        self.nodes.iter().filter(|(_, node)| node.is_up).map(|(id, _)| *id).collect()
    }

    /// The descriptor with the newest placement that a node has.
    fn newest(&self) -> Option<ChunkDescriptor> {
        let all = self.nodes.values().flat_map(|node| node.sealed.values());
        all.max_by_key(|descriptor| descriptor.placement).cloned()
    }

    /// The repair of a chunk whose holder is down or leaves.
    fn begin(&mut self, leaving: StorageId, busy: &[Running]) -> Option<Running> {
        let mut known = self.newest()?;
        let holder = *known.holders.iter().find(|holder| holder.storage == leaving)?;
        let is_holder = |node: &StorageId| known.holders.iter().any(|it| it.storage == *node);
        // A node makes a chunk once at a time.
        let is_busy = |node: &StorageId| busy.iter().any(|running| running.me == *node);
        let free = self.up().into_iter().filter(|it| !is_holder(it) && !is_busy(it));
        let free: Vec<StorageId> = free.collect();
        let me = *free.get(self.rng.usize(..free.len().max(1)))?;
        known.chunk = ChunkId { blob: BLOB, index: holder.chunk };
        Some(Running::new(me, known.chunk, ChunkRepair::new(me, known, Some(leaving))))
    }

    /// Does the next part of a repair's action. Returns how the repair ended, if it has.
    fn step(&mut self, running: &mut Running) -> Option<RepairEnd> {
        if let RepairAction::Done(end) = &running.action {
            return Some(end.clone());
        }
        if !running.left.is_empty() {
            let at = self.rng.usize(..running.left.len());
            let node = running.left.swap_remove(at);
            self.ask(running, node);
            if !running.left.is_empty() {
                return None;
            }
        }
        let input = self.conclude(running);
        running.action = running.repair.step(input);
        running.left = targets(&running.action);
        None
    }

    fn ask(&mut self, running: &mut Running, id: StorageId) {
        let drops_early = self.sabotage == Some(Sabotage::DropsEarly);
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.is_up) else { return };
        match &running.action {
            RepairAction::Describe(_) => {
                running.described.push((id, node.sealed.values().cloned().collect()));
            }
            RepairAction::Redescribe(told) => {
                let own = told.iter().filter(|(to, _)| *to == id);
                own.for_each(|(_, descriptor)| node.redescribe(descriptor));
                if drops_early {
                    // The holder that leaves loses its chunk before the others have confirmed.
                    for (_, descriptor) in told {
                        let leaves = |it: &StorageId| {
                            !descriptor.holders.iter().any(|holder| holder.storage == *it)
                        };
                        for (_, node) in self.nodes.iter_mut().filter(|(it, _)| leaves(it)) {
                            node.sealed.clear();
                        }
                    }
                }
            }
            RepairAction::Drop(surplus) => {
                for (to, chunk, placement) in surplus {
                    if *to == id {
                        node.drop_chunk(id, *chunk, *placement);
                    }
                }
            }
            _ => {}
        }
    }

    /// The outcome of an action whose parts are done.
    fn conclude(&mut self, running: &mut Running) -> RepairInput {
        let node = self.nodes.get_mut(&running.me).unwrap();
        let done = |is_done: bool| match is_done {
            true => RepairInput::Done,
            false => RepairInput::Failed("the node refuses".to_owned()),
        };
        match &running.action {
            RepairAction::Describe(_) => {
                RepairInput::Described(std::mem::take(&mut running.described))
            }
            RepairAction::Begin => {
                let is_sealed = node.sealed.contains_key(&running.wanted);
                if !is_sealed {
                    node.begun.insert(running.wanted, BTreeSet::new());
                }
                RepairInput::Begun { is_sealed }
            }
            RepairAction::Copy { sources, .. } => {
                let same = sources.iter().any(|source| source.chunk == running.wanted.index);
                let indices: BTreeSet<u8> = sources.iter().map(|source| source.chunk).collect();
                let needed = usize::from(self.scheme.chunks_min());
                let is_coded = matches!(self.scheme, Scheme::Rs42(_));
                done(same || (is_coded && indices.len() >= needed))
            }
            RepairAction::Seal(descriptor) => {
                if self.sabotage == Some(Sabotage::ForgetsReleases) {
                    node.begun.insert(running.wanted, BTreeSet::new());
                }
                done(node.seal(descriptor))
            }
            RepairAction::FixSet { add, take } => {
                node.redescribe(add);
                take.iter().for_each(|volume| {
                    if let Some(known) = node.sealed.get_mut(&running.wanted) {
                        known.retaining.retain(|it| it != volume);
                    }
                });
                node.sealed.retain(|_, known| !known.retaining.is_empty());
                RepairInput::Done
            }
            RepairAction::Abandon => {
                node.begun.remove(&running.wanted);
                RepairInput::Done
            }
            RepairAction::Redescribe(_) | RepairAction::Drop(_) | RepairAction::Done(_) => {
                RepairInput::Done
            }
        }
    }

    /// A volume gives the blob up. The request goes to all nodes that are up.
    fn release(&mut self, volume: VolumeId) {
        self.truth.remove(&volume);
        let nodes = self.up();
        if self.is_release_atomic {
            nodes.iter().for_each(|node| self.nodes.get_mut(node).unwrap().take(volume));
        } else {
            self.releasing.extend(nodes.iter().map(|node| (volume, *node)));
        }
    }

    fn deliver_release(&mut self) {
        if !self.releasing.is_empty() {
            let at = self.rng.usize(..self.releasing.len());
            let (volume, node) = self.releasing.swap_remove(at);
            self.nodes.get_mut(&node).unwrap().take(volume);
        }
    }

    /// A second volume keeps the blob, as the client does it: all holders that are up, and again
    /// while the placement changes.
    fn retain(&mut self) {
        // The client asks the holders that its namespace names.
        let first_holders = self.nodes.iter().take(usize::from(self.scheme.chunks()));
        let known = first_holders.filter(|(_, node)| node.is_up);
        let known = known.flat_map(|(_, node)| node.sealed.values());
        let Some(newest) = known.max_by_key(|it| it.placement).cloned() else { return };
        for holder in &newest.holders {
            let node = self.nodes.get_mut(&holder.storage).unwrap();
            for known in node.sealed.values_mut().filter(|_| node.is_up) {
                if !known.retaining.contains(&OTHER) {
                    known.retaining.push(OTHER);
                    known.retaining.sort_unstable();
                }
            }
        }
        self.truth.insert(OTHER);
    }

    /// Repairs and comparisons until nothing changes, with all nodes up that are not lost.
    fn settle(&mut self, lost: StorageId, seed: u64) {
        for _ in 0..12 {
            let Some(newest) = self.newest() else { return };
            if newest.holders.iter().any(|holder| holder.storage == lost)
                && let Some(running) = self.begin(lost, &[])
            {
                self.finish(running, seed);
            }
            let held: Vec<(StorageId, ChunkDescriptor)> = self
                .nodes
                .iter()
                .filter(|(_, node)| node.is_up)
                .flat_map(|(id, node)| node.sealed.values().map(|it| (*id, it.clone())))
                .collect();
            let mut missing = Vec::new();
            for (node, held) in held {
                let end = self.finish(Running::check(node, held.clone()), seed);
                if let RepairEnd::Whole { missing: lacking, .. } = end {
                    missing.extend(lacking.into_iter().map(|node| (node, held.clone())));
                }
            }
            // The manager lets a holder that lacks its chunk make it again.
            for (node, mut descriptor) in missing {
                let holder = descriptor.holders.iter().find(|holder| holder.storage == node);
                let Some(holder) = holder else { continue };
                descriptor.chunk.index = holder.chunk;
                let wanted = descriptor.chunk;
                let repair = ChunkRepair::new(node, descriptor, None);
                self.finish(Running::new(node, wanted, repair), seed);
            }
        }
    }

    /// Runs a repair to its end.
    fn finish(&mut self, mut running: Running, seed: u64) -> RepairEnd {
        for _ in 0..MESSAGES_MAX {
            if let Some(end) = self.step(&mut running) {
                return end;
            }
        }
        panic!("seed {seed}: {:?}", running.action);
    }
}

/// The nodes that an action goes to, one message each.
fn targets(action: &RepairAction) -> Vec<StorageId> {
    match action {
        RepairAction::Describe(nodes) => nodes.clone(),
        RepairAction::Redescribe(told) => told.iter().map(|(node, _)| *node).collect(),
        RepairAction::Drop(surplus) => surplus.iter().map(|(node, ..)| *node).collect(),
        _ => Vec::new(),
    }
}

/// Runs one seed. The error names the rule that the run broke.
fn run(seed: u64, sabotage: Option<Sabotage>) -> Result<(), String> {
    let mut model = Model::new(seed, sabotage);
    // The holder is lost, or it leaves the blob while it still answers.
    let leaving = StorageId(1);
    let is_lost = model.rng.bool();
    model.nodes.get_mut(&leaving).unwrap().is_up = !is_lost;
    let mut repairs: Vec<Running> = Vec::new();
    repairs.extend(model.begin(leaving, &[]));
    let (mut may_release, mut may_retain, mut may_repair) =
        (model.rng.bool(), model.rng.bool(), model.rng.bool());
    let (mut may_crash, mut messages) = (model.rng.bool(), 0);
    while !repairs.is_empty() {
        messages += 1;
        assert!(messages < MESSAGES_MAX, "seed {seed}: the repairs do not end");
        match model.rng.usize(..24) {
            // A volume that was never entered is not retained by a blob that no volume keeps.
            0 if may_retain && !model.truth.is_empty() && model.releasing.is_empty() => {
                may_retain = false;
                model.retain();
            }
            1 if may_release => {
                may_release = false;
                model.release(WRITER);
            }
            2 if may_repair => {
                may_repair = false;
                let second = model.begin(leaving, &repairs);
                repairs.extend(second);
            }
            3 if may_crash => {
                // The node of a repair restarts: its unsealed chunk is gone.
                may_crash = false;
                let ended = repairs.swap_remove(model.rng.usize(..repairs.len()));
                model.nodes.get_mut(&ended.me).unwrap().begun.clear();
            }
            4..8 => model.deliver_release(),
            _ => {
                let at = model.rng.usize(..repairs.len());
                if model.step(&mut repairs[at]).is_some() {
                    repairs.swap_remove(at);
                }
            }
        }
        check_redundancy(&model, leaving, is_lost)?;
    }
    while !model.releasing.is_empty() {
        model.deliver_release();
    }
    check_end(&mut model, leaving, is_lost, seed)
}

/// A blob that a volume keeps is readable at any moment after the loss of one more chunk.
fn check_redundancy(model: &Model, leaving: StorageId, is_lost: bool) -> Result<(), String> {
    // A volume that retains the blob during two repairs may be missing for a moment on the node of
    // the faster repair. So this check considers the writer's volume alone.
    if !model.truth.contains(&WRITER) {
        return Ok(());
    }
    let keeps = |node: &ModelNode| {
        let of_node = node.sealed.values();
        of_node.filter(|it| it.retaining.contains(&WRITER)).map(|it| it.chunk.index).collect()
    };
    let up = model.nodes.iter().filter(|(id, node)| node.is_up || **id == leaving);
    let up: Vec<Vec<u8>> = up.map(|(_, node)| keeps(node)).collect();
    let chunks = match model.scheme {
        Scheme::Replicas(_) => up.iter().filter(|indices| !indices.is_empty()).count(),
        Scheme::Rs42(_) => up.concat().into_iter().collect::<BTreeSet<u8>>().len(),
    };
    let least = usize::from(model.scheme.chunks()) - usize::from(is_lost);
    match chunks >= least {
        true => Ok(()),
        false => Err(format!("{chunks} chunks are left")),
    }
}

/// At the end of a run: the listed holders have their chunks with the right sets, and no other node
/// has a chunk.
fn check_end(
    model: &mut Model,
    leaving: StorageId,
    is_lost: bool,
    seed: u64,
) -> Result<(), String> {
    if model.truth.is_empty() {
        // The remaining chunks are strays. The owner's next release of strays finds them in the
        // lists of the nodes.
        let has_strays = model.nodes.values().any(|node| node.is_up && !node.sealed.is_empty());
        return match has_strays && model.is_release_atomic {
            true => Err("a released blob has chunks".to_owned()),
            false => Ok(()),
        };
    }
    model.settle(leaving, seed);
    let newest = model.newest().ok_or("the blob is gone")?;
    if is_lost && newest.holders.iter().any(|holder| holder.storage == leaving) {
        return Err("the lost node is still a holder".to_owned());
    }
    let mut found = BTreeSet::new();
    for (id, node) in model.nodes.iter().filter(|(_, node)| node.is_up) {
        for (chunk, known) in &node.sealed {
            found.insert((*id, chunk.index));
            let set: BTreeSet<VolumeId> = known.retaining.iter().copied().collect();
            if !set.is_superset(&model.truth) {
                return Err(format!("node {id} keeps {set:?} of {:?}", model.truth));
            }
            if model.is_release_atomic && set != model.truth {
                return Err(format!("node {id} keeps {set:?} and not only {:?}", model.truth));
            }
            if known.placement != newest.placement {
                return Err(format!("node {id} has an older placement"));
            }
        }
    }
    let listed: BTreeSet<(StorageId, u8)> =
        newest.holders.iter().map(|holder| (holder.storage, holder.chunk)).collect();
    match found == listed {
        true => Ok(()),
        false => Err(format!("chunks are at {found:?}, and the holders are {listed:?}")),
    }
}

#[test]
fn repair_keeps_redundancy_and_sets_beside_everything_else() {
    for seed in 0..SEEDS {
        if let Err(wrong) = run(seed, None) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn steps_that_are_left_out_are_noticed() {
    for sabotage in [Sabotage::ForgetsReleases, Sabotage::DropsEarly] {
        let is_noticed = (0..SEEDS).any(|seed| run(seed, Some(sabotage)).is_err());
        assert!(is_noticed, "{sabotage:?}");
    }
}

#[test]
fn blob_that_was_released_on_the_node_is_not_copied() {
    let model = Model::new(1, None);
    let (other, me) = (StorageId(1), StorageId(2));
    let held = model.nodes[&other].sealed.values().next().expect("a chunk").clone();
    let holder = held.holders.iter().find(|holder| holder.storage == me).expect("a holder");
    let chunk = ChunkId { blob: BLOB, index: holder.chunk };
    let mut repair = ChunkRepair::new(me, ChunkDescriptor { chunk, ..held.clone() }, None);
    let look = RepairInput::Described(vec![(other, vec![held]), (me, Vec::new())]);
    assert!(matches!(repair.start(), RepairAction::Describe(_)));
    assert_eq!(repair.step(look.clone()), RepairAction::Begin);
    let begun = repair.step(RepairInput::Begun { is_sealed: false });
    assert!(matches!(begun, RepairAction::Describe(_)));
    let RepairAction::Copy { descriptor, .. } = repair.step(look) else {
        panic!("the sets are known")
    };
    assert_eq!(descriptor.retaining, [WRITER]);
    assert_eq!(repair.step(RepairInput::Released), RepairAction::Abandon);
    assert_eq!(repair.step(RepairInput::Done), RepairAction::Done(RepairEnd::Gone));
}

#[test]
fn move_only_updates_holders_if_the_placement_has_changed_since_its_order() {
    let model = Model::new(1, None);
    let other = StorageId(1);
    let held = model.nodes[&other].sealed.values().next().expect("a chunk").clone();
    let moved = held.holders.iter().find(|it| it.storage != other).copied().expect("a holder");
    let is_free = |id: &StorageId| held.holders.iter().all(|holder| holder.storage != *id);
    let me = (1..=NODES).map(StorageId).find(is_free).expect("a node without a chunk");
    let chunk = ChunkId { blob: BLOB, index: moved.chunk };
    let ordered = ChunkDescriptor { chunk, ..held.clone() };
    let order = || ChunkRepair::new(me, ordered.clone(), Some(moved.storage));
    let placement = PlacementEpoch { counter: held.placement.counter + 1, repairer: other };
    let newer = ChunkDescriptor { placement, ..held.clone() };
    let next = |mut repair: ChunkRepair, descriptor: &ChunkDescriptor| {
        assert!(matches!(repair.start(), RepairAction::Describe(_)));
        repair.step(RepairInput::Described(vec![(other, vec![descriptor.clone()])]))
    };
    let unneeded = RepairEnd::Whole { is_confirmed: false, is_new: false, missing: Vec::new() };
    assert_eq!(next(order().as_move(), &newer), RepairAction::Done(unneeded));
    assert_eq!(next(order().as_move(), &held), RepairAction::Begin);
    assert_eq!(next(order(), &newer), RepairAction::Begin, "a holder that leaves must be replaced");
    // A holder has missed the change, so it listed the chunk that was to move.
    let mut repair = order().as_move();
    assert!(matches!(repair.start(), RepairAction::Describe(_)));
    let stale = model.nodes[&moved.storage].sealed.values().next().expect("a chunk").clone();
    let answers = vec![(other, vec![newer.clone()]), (moved.storage, vec![stale])];
    let told = ChunkDescriptor { chunk, retaining: Vec::new(), ..newer };
    assert_eq!(
        repair.step(RepairInput::Described(answers)),
        RepairAction::Redescribe(vec![(moved.storage, told)])
    );
}
