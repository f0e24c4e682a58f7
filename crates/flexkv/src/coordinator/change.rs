//! The steps of a change of the map, and the recovery of a coordinator that starts.
//!
//! Both are parts of the state machine [`Coordinator`], which has the invariants.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_pool::ClientId;

use super::{Action, Cause, Changed, Coordinator, Phase, Want};
use crate::format::Geometry;
use crate::wire::{Assigned, Member, Message, Shaped};

/// Time in nanoseconds after a failed growth during which a partition does not try to grow.
const STUCK_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Pause,
    Prepare,
    Resume,
}

/// A change of the map that is in progress.
#[derive(Debug)]
pub(super) struct Change {
    version: u64,
    /// The entries as they will be, by partition.
    entries: BTreeMap<u32, Assigned>,
    step: Step,
    /// Clients that have not confirmed the step.
    waiting: BTreeSet<ClientId>,
    /// Clients that may know of the change, because they lived when it began.
    pub(super) told: BTreeSet<ClientId>,
    cause: Cause,
    began_ns: u64,
}

impl Change {
    /// Whether the change gives a partition to node `number`.
    pub(super) fn names(&self, number: u32) -> bool {
        self.entries.values().any(|entry| entry.node == number)
    }

    /// Whether measurements during the change belong to no map.
    pub(super) fn disturbs(&self) -> bool {
        self.cause.disturbs()
    }

    /// Whether `client` has not confirmed *pause*.
    pub(super) fn pauses(&self, client: ClientId) -> bool {
        self.step == Step::Pause && self.waiting.contains(&client)
    }
}

impl Coordinator {
    /// Begins the next wanted change, if none is in progress.
    pub(super) fn begin(&mut self) {
        if self.phase != Phase::Ruling || self.change.is_some() {
            return;
        }
        if self.version == 0 {
            if self.creating.is_none() {
                self.create();
            }
            return;
        }
        let wants = std::mem::take(&mut self.wants);
        if wants.is_empty() {
            return;
        }
        let mut entries = BTreeMap::new();
        let mut cause = Cause::default();
        for want in wants {
            match want {
                Want::Grow(partition) => {
                    if let Some(entry) = self.partition(partition).copied() {
                        let entry = entries.entry(partition).or_insert(entry);
                        entry.grow = true;
                        cause.grow = true;
                    }
                }
                Want::Offload(share) => {
                    self.offload = share;
                    cause.offload = true;
                }
                Want::Balance => cause.balance = true,
                Want::Reassign => cause.reassign = true,
            }
        }
        self.assign(&mut entries, cause.reassign);
        let living = self.living();
        if entries.is_empty() && (living.is_empty() || self.spread == living) {
            return self.welcome();
        }
        // A change without partitions tells every node the members.
        self.start(entries, cause);
    }

    fn start(&mut self, entries: BTreeMap<u32, Assigned>, cause: Cause) {
        self.disturbed |= cause.disturbs();
        self.stage(entries, cause, self.now_ns);
        self.resend();
    }

    fn stage(&mut self, mut entries: BTreeMap<u32, Assigned>, cause: Cause, began_ns: u64) {
        for entry in entries.values_mut() {
            entry.epoch += 1;
        }
        let told = self.living();
        let version = self.version + 1;
        let waiting = told.clone();
        let step = Step::Pause;
        self.change = Some(Change { version, entries, step, waiting, told, cause, began_ns });
    }

    /// Continues a change in which a node died.
    pub(super) fn restart(&mut self, change: Change) {
        if change.step == Step::Resume {
            // Some nodes may already work by the new map. So the change ends without the dead node,
            // and the next change reassigns that node's partitions.
            let waiting = change.waiting.intersection(&self.living()).copied().collect();
            self.change = Some(Change { waiting, ..change });
            return self.proceed();
        }
        // Owners may have claimed these epochs. A node that joins now learns them with the map. So
        // they stay known even if every other node dies, and the next epochs are larger.
        for (partition, entry) in &change.entries {
            self.map[*partition as usize].epoch = entry.epoch;
        }
        self.version = change.version;
        if self.living().is_empty() {
            // The next node that joins takes everything.
            self.wants.insert(Want::Balance);
            self.wants.extend(change.cause.reassign.then_some(Want::Reassign));
            return;
        }
        self.wants.remove(&Want::Balance);
        let mut next: BTreeMap<u32, Assigned> = BTreeMap::new();
        for entry in change.entries.values().filter(|entry| entry.grow) {
            if let Some(now) = self.partition(entry.partition).copied() {
                next.insert(entry.partition, Assigned { grow: true, ..now });
            }
        }
        self.assign(&mut next, change.cause.reassign);
        // The next change includes every paused partition, because no other change would open it.
        for partition in change.entries.keys() {
            if let Some(now) = self.partition(*partition).copied() {
                next.entry(*partition).or_insert(now);
            }
        }
        self.disturbed = true;
        let cause = Cause { balance: true, ..change.cause };
        self.stage(next, cause, change.began_ns);
    }

    /// Sends unconfirmed messages again.
    pub(super) fn resend(&mut self) {
        let term = self.term;
        match &self.phase {
            Phase::Starting => return,
            Phase::Looking => return self.actions.push(Action::Look),
            Phase::Recalling(silent) => {
                for to in silent.iter().filter(|client| self.heard.contains_key(client)) {
                    let message = Message::Recall { term };
                    self.actions.push(Action::Send { to: *to, message });
                }
                return;
            }
            Phase::Ruling => {}
        }
        if let Some(to) = self.creating.and_then(|number| self.client(number)) {
            let message = self.create_message();
            self.actions.push(Action::Send { to, message });
        }
        let members = self.told_of();
        let gone: Vec<ClientId> =
            self.nodes.values().filter(|node| node.gone).map(|node| node.member.client).collect();
        let Some(change) = &self.change else { return };
        let (version, changes) = (change.version, change.entries.values().copied().collect());
        let message = match change.step {
            Step::Pause => Message::Pause { term, version, changes, members, gone },
            Step::Prepare => Message::Prepare { term, version },
            Step::Resume => Message::Resume { term, version, changes },
        };
        for to in &change.waiting {
            self.actions.push(Action::Send { to: *to, message: message.clone() });
        }
    }

    /// Takes the answer of a node to an order or question.
    pub fn on_answer(&mut self, from: ClientId, sent: &Message, answer: &Message) {
        match (sent, answer) {
            (Message::Create { .. }, Message::Created { shapes }) => {
                let number = self.creating.filter(|number| self.client(*number) == Some(from));
                if let Some(number) = number {
                    self.created(number, shapes);
                }
            }
            (Message::Recall { term }, Message::Recalled { members, .. }) if *term == self.term => {
                if let Phase::Recalling(silent) = &mut self.phase
                    && silent.remove(&from)
                {
                    self.recalled.push(answer.clone());
                    self.recalled_all();
                    for Member { client, endpoints, .. } in members {
                        if !self.heard.contains_key(client) {
                            self.hear(*client, endpoints);
                        }
                    }
                }
            }
            (Message::Pause { version, .. }, Message::Done {}) => {
                self.confirmed(from, *version, Step::Pause);
            }
            (Message::Prepare { version, .. }, Message::Prepared { changes }) => {
                let change = self.change.as_mut();
                if let Some(change) =
                    change.filter(|c| c.version == *version && c.step == Step::Prepare)
                {
                    for entry in changes {
                        let before = change.entries.insert(entry.partition, *entry);
                        let grew = before.is_none_or(|before| {
                            !before.grow || before.shape.generation < entry.shape.generation
                        });
                        match grew {
                            true => self.stuck.remove(&entry.partition),
                            false => self.stuck.insert(entry.partition, self.now_ns + STUCK_NS),
                        };
                    }
                }
                self.confirmed(from, *version, Step::Prepare);
            }
            (Message::Resume { version, .. }, Message::Done {}) => {
                self.confirmed(from, *version, Step::Resume);
            }
            _ => {}
        }
    }

    fn created(&mut self, number: u32, shapes: &[Shaped]) {
        let bits = shapes.len().checked_ilog2().unwrap_or_default();
        let geometry = Geometry::new(bits).filter(|g| g.partitions() as usize == shapes.len());
        let (0, Some(geometry)) = (self.version, geometry) else { return };
        self.geometry = geometry;
        self.creating = None;
        let entry = |(partition, shape): (usize, &Shaped)| Assigned {
            partition: partition as u32,
            epoch: 1,
            node: number,
            offloaded: false,
            grow: false,
            shape: *shape,
        };
        self.map = shapes.iter().enumerate().map(entry).collect();
        self.version = 1;
        self.welcome();
        // Every node that joined takes its partitions, including the first node. That writes the
        // directory.
        let mut entries: BTreeMap<u32, Assigned> =
            self.map.iter().map(|entry| (entry.partition, *entry)).collect();
        self.wants.remove(&Want::Balance);
        self.assign(&mut entries, false);
        for entry in entries.values_mut() {
            entry.grow = false;
        }
        self.start(entries, Cause { balance: true, ..Cause::default() });
    }

    fn confirmed(&mut self, from: ClientId, version: u64, step: Step) {
        let change = self.change.as_mut();
        let Some(change) = change.filter(|c| c.version == version && c.step == step) else {
            return;
        };
        change.waiting.remove(&from);
        self.proceed();
    }

    /// Takes the change to its next step if every node has confirmed.
    pub(super) fn proceed(&mut self) {
        while let Some(change) = self.change.as_mut().filter(|change| change.waiting.is_empty()) {
            let living: BTreeSet<ClientId> =
                self.nodes.values().filter(|n| !n.gone).map(|n| n.member.client).collect();
            change.step = match change.step {
                Step::Pause => Step::Prepare,
                Step::Prepare => Step::Resume,
                Step::Resume => {
                    let Some(change) = self.change.take() else { return };
                    self.apply(&change);
                    self.spread = change.told;
                    self.welcome();
                    self.begin();
                    continue;
                }
            };
            // A node that joined since does not know of the change. It gets the map when it holds.
            change.waiting = change.told.intersection(&living).copied().collect();
            if change.waiting.is_empty() {
                return;
            }
            self.resend();
        }
    }

    /// Makes the change the current map.
    fn apply(&mut self, change: &Change) {
        let mut moved = 0;
        for (partition, entry) in &change.entries {
            let now = &mut self.map[*partition as usize];
            moved += u32::from(now.node != entry.node);
            *now = *entry;
        }
        self.version = change.version;
        self.tuner.changed(Changed {
            version: change.version,
            cause: change.cause,
            partitions: change.entries.len() as u32,
            moved,
            began_ns: change.began_ns,
            took_ns: self.now_ns.saturating_sub(change.began_ns),
        });
    }

    /// Requests the directory once every client has reported its knowledge or is gone. From then on
    /// the directory is written only by orders of this term. If two clients claim the same number,
    /// the first owner of the number is gone permanently and still answers. The pool knows which
    /// client is gone, so this waits for the pool.
    pub(super) fn recalled_all(&mut self) {
        let mut numbers = BTreeSet::new();
        let once = |member: &Member| member.number == 0 || numbers.insert(member.number);
        let all = matches!(&self.phase, Phase::Recalling(silent) if silent.is_empty());
        if all && self.recalled_members().all(once) {
            self.phase = Phase::Looking;
            self.actions.push(Action::Look);
        }
    }

    /// Clients that have reported their knowledge. Number 0 marks a client that is no member.
    pub(super) fn recalled_members(&self) -> impl Iterator<Item = &Member> {
        self.recalled.iter().filter_map(|recalled| match recalled {
            Message::Recalled { member, .. } => Some(member),
            _ => None,
        })
    }

    /// Marks a client that is gone as no member. Its reports about the map still count.
    pub(super) fn forget_recalled(&mut self, client: ClientId) {
        for recalled in &mut self.recalled {
            if let Message::Recalled { member, .. } = recalled
                && member.client == client
            {
                member.number = 0;
            }
        }
    }

    /// Takes the newest map that a client reported, and the entries of the directory that it lacks.
    pub(super) fn take_over(
        &mut self,
        partition_bits: Option<u32>,
        entries: Option<&[(u32, Shaped)]>,
    ) {
        if let Some(geometry) = partition_bits.and_then(Geometry::new) {
            (self.geometry, self.plan.partition_bits) = (geometry, geometry.partition_bits());
        }
        let paused_for = self.take_recalled();
        let entries = entries.filter(|there| there.len() == self.geometry.partitions() as usize);
        if self.version == 0 {
            let Some(entries) = entries else { return self.begin() };
            // No remaining client knew a map.
            let entry = |(partition, (epoch, shape)): (usize, &(u32, Shaped))| Assigned {
                partition: partition as u32,
                epoch: *epoch,
                node: 0,
                offloaded: false,
                grow: false,
                shape: *shape,
            };
            self.map = entries.iter().enumerate().map(entry).collect();
            let newest = entries.iter().map(|(epoch, _)| u64::from(*epoch)).max();
            self.version = newest.unwrap_or_default().max(1);
        }
        // A change may have been in progress and restarted a few times, and its owners may have
        // claimed epochs: at most one more for each version. Version and epochs rise together, so
        // that the next coordinator finds both.
        let claimed = paused_for.saturating_sub(self.version);
        self.version += claimed;
        for entry in &mut self.map {
            entry.epoch = entry.epoch.saturating_add(u32::try_from(claimed).unwrap_or(u32::MAX));
        }
        for (entry, (epoch, shape)) in self.map.iter_mut().zip(entries.unwrap_or_default()) {
            entry.epoch = entry.epoch.max(*epoch);
            if shape.generation > entry.shape.generation {
                entry.shape = *shape;
            }
        }
        if self.living().is_empty() {
            // The next node that joins takes everything.
            self.wants.insert(Want::Balance);
            return;
        }
        // Every partition is taken again.
        let mut changes: BTreeMap<u32, Assigned> = BTreeMap::new();
        self.assign(&mut changes, false);
        for entry in &self.map {
            changes.entry(entry.partition).or_insert(*entry);
        }
        self.start(changes, Cause { balance: true, ..Cause::default() });
    }

    /// Takes the members and the newest map from the reports. Returns the newest version for which
    /// a client paused.
    fn take_recalled(&mut self) -> u64 {
        let mut paused_for = 0;
        for recalled in std::mem::take(&mut self.recalled) {
            let Message::Recalled { member, version, partition_bits, map, paused, .. } = recalled
            else {
                continue;
            };
            paused_for = paused_for.max(paused);
            if member.number > 0 {
                let (number, node) = (member.number, super::Node { member, gone: false });
                let before = self.nodes.insert(number, node);
                debug_assert!(before.is_none(), "{number} is two nodes'");
            }
            if version > self.version
                && let Some(geometry) = Geometry::new(partition_bits)
                && map.len() == geometry.partitions() as usize
            {
                (self.version, self.map, self.geometry) = (version, map, geometry);
            }
        }
        paused_for
    }
}
