//! The protocol of a memory node: its copies, their epochs, and the clients that have keys to them.
//!
//! [`MemoryCore`] is a state machine without clock, lock or I/O. Each message gets its answer
//! immediately, and the machine reaches memory through a [`Space`]. The request handler owns it
//! under one lock.
//!
//! The states of a copy are: *filling*, *whole*, *installed* (it serves an epoch), and *sealed* (a
//! later epoch is promised, and no client writes). A sealed copy is installed again, or dropped.
//!
//! Invariants:
//! 1. `promised` never shrinks, and orders of smaller epochs are refused.
//! 2. A key that may change a copy was given at the installed epoch, while no larger one was
//!    promised.
//! 3. The node answers *sealed* only when every such key is revoked and no process has the memory
//!    mapped by one.
//! 4. Copies and memory that waits to be given up are together at most `blocks_max` blocks.
//! 5. The node takes orders only from one manager, in its term ([`Promise`]). This is the manager
//!    that it promised to obey, or a manager that runs alone and answered its beat.
//! 6. A fenced client gets no key in this life of the node.
//!
//! Thread-safety: none; the caller holds a lock.
//! Failure: a restart loses all copies. The next life has a larger number and knows nothing.
//! Cost: a message is O(number of its block's keys); a report is O(number of its copies).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId, NodeStats, RemoteKey, Rights};
use archipelago_pool::wire::{
    BlockAt, CopyReport, CopyStep, Message, NodeCounters, Purpose, Refused, RefusedFor, Source, Why,
};
use archipelago_pool::{BlockId, Config, asker_of_promises};

use crate::promise::Promise;
use crate::space::Space;

/// Number of copies in one part of a report.
const REPORT_COPIES_MAX: usize = 512;
/// Number of freed blocks that the node remembers, so that a manager does not revive a block from
/// the copy of an absent node.
const FREED_MAX: usize = 4096;
/// Number of fenced clients that an answer to a manager lists.
const FENCED_TOLD_MAX: usize = 4096;
/// Number of fenced clients that the node remembers. A client's id is random and new in each life.
/// The node forgets the oldest first.
const FENCED_MAX: usize = 1 << 16;

/// A key and the client that has it.
#[derive(Clone, Debug)]
struct Given {
    client: ClientId,
    key: RemoteKey,
    /// Whether a node has the key in order to copy. A report to a manager does not list that node
    /// as a client.
    copying: bool,
}

#[derive(Debug)]
struct Copy {
    config: Config,
    promised: Epoch,
    whole: bool,
    installed: bool,
    /// Epoch under which the copy is being made equal to the first copy, and whether this has
    /// ended.
    refresh: Option<(Epoch, bool)>,
    keys: Vec<Given>,
    /// Revoked keys that could change the copy, and by which a process may still have it mapped.
    draining: Vec<Given>,
    /// Revoked keys that could read the copy, and by which a process may still have it mapped.
    stale: Vec<RemoteKey>,
}

/// Memory that the node gives up as soon as no process has it mapped.
#[derive(Debug)]
struct Dropping {
    /// Name of the memory in the [`Space`].
    block: BlockId,
    keys: Vec<RemoteKey>,
}

/// An order to copy bytes from another node. The caller reads them with a key for
/// [`Purpose::Copy`], and then calls [`MemoryCore::on_copied`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOrder {
    /// Block to copy.
    pub block: BlockId,
    /// Epoch at which the source is sealed.
    pub epoch: Epoch,
    /// Copy to read from.
    pub source: Source,
}

/// Limits of a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Largest number of blocks.
    pub blocks_max: u64,
}

archipelago_base::fault_switches! {
    /// Steps of the protocol that a checker leaves out, to prove that the checks notice it.
    Sabotage {
        /// A seal revokes no keys.
        no_fencing,
        /// A copy counts as whole before it holds the bytes of its source.
        no_fill,
        /// A client that is to be fenced keeps its keys.
        no_eviction,
    }
}

/// Counters of the protocol since the life began.
#[derive(Debug, Default)]
struct Tally {
    given: u64,
    freed: u64,
    filled: u64,
    refusals: BTreeMap<Why, u64>,
}

/// The protocol of a memory node, as a state machine.
#[derive(Debug)]
pub struct MemoryCore {
    node: NodeId,
    life: Epoch,
    limits: Limits,
    promise: Promise,
    now_ns: u64,
    copies: BTreeMap<BlockId, Copy>,
    dropping: Vec<Dropping>,
    fenced: BTreeSet<ClientId>,
    fenced_order: VecDeque<ClientId>,
    /// Revoked keys of fenced clients by which a process may still have memory mapped.
    fencing: Vec<Given>,
    freed: VecDeque<BlockAt>,
    tally: Tally,
    sabotage: Sabotage,
}

impl MemoryCore {
    /// A node without copies, whose life begins at `now_ns` of its clock.
    #[must_use]
    pub fn new(node: NodeId, life: Epoch, limits: Limits, now_ns: u64) -> Self {
        Self {
            node,
            life,
            limits,
            promise: Promise::new(now_ns),
            now_ns,
            copies: BTreeMap::new(),
            dropping: Vec::new(),
            fenced: BTreeSet::new(),
            fenced_order: VecDeque::new(),
            fencing: Vec::new(),
            freed: VecDeque::new(),
            tally: Tally::default(),
            sabotage: Sabotage::default(),
        }
    }

    /// The same node without the steps that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotaged(self, sabotage: Sabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// The node's id.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The present life of the node.
    #[must_use]
    pub fn life(&self) -> Epoch {
        self.life
    }

    /// Number of blocks that use memory now, including those that wait to be given up.
    #[must_use]
    pub fn blocks_used(&self) -> u64 {
        (self.copies.len() + self.dropping.len()) as u64
    }

    /// Counters since the life began. `fabric` has the counters of the fabric's node.
    #[must_use]
    pub fn counters(&self, fabric: NodeStats) -> NodeCounters {
        let tally = &self.tally;
        let of = |(why, count): (&Why, &u64)| RefusedFor { why: *why, count: *count };
        NodeCounters {
            operations: fabric.operations,
            requests: fabric.requests,
            duplicates: fabric.duplicates,
            refused: fabric.refused,
            malformed: fabric.malformed + fabric.unauthenticated,
            given: tally.given,
            freed: tally.freed,
            filled: tally.filled,
            filled_bytes: tally.filled * self.limits.block_bytes,
            refusals: tally.refusals.iter().map(of).collect(),
        }
    }

    /// The beat for the manager, with the counters of the fabric's node.
    #[must_use]
    pub fn beat(&self, endpoints: Vec<String>, fabric: NodeStats) -> Message {
        Message::Beat {
            node: self.node,
            life: self.life,
            endpoints,
            block_bytes: self.limits.block_bytes,
            blocks_max: self.limits.blocks_max,
            blocks_used: self.blocks_used(),
            term: self.promise.term(),
            held_ms: self.promise.left_ns(self.now_ns).div_ceil(1_000_000),
            counters: self.counters(fabric),
        }
    }

    /// Sets the time, which never goes back. The caller does this before each beat and each
    /// message.
    pub fn on_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Takes a manager's answer to a beat. The node obeys a manager that runs `alone`, unless its
    /// term is smaller than a known one. It obeys any other manager only by a promise.
    pub fn on_beat_answer(&mut self, term: u64, manager: ClientId, alone: bool) {
        self.promise.meet(term, manager, alone);
    }

    /// All copies, for checks and statistics: configuration, whether whole, and whether installed.
    pub fn copies(&self) -> impl Iterator<Item = (&Config, bool, bool)> {
        self.copies.values().map(|copy| (&copy.config, copy.whole, copy.installed))
    }

    /// Revoked keys by which a process still has memory mapped, and for which the protocol waits.
    pub fn held(&self, space: &dyn Space) -> Vec<RemoteKey> {
        let draining = self.copies.values().flat_map(|copy| &copy.draining);
        let copies = draining.map(|given| &given.key);
        let dropping = self.dropping.iter().flat_map(|dropping| &dropping.keys);
        let fencing = self.fencing.iter().map(|given| &given.key);
        let keys = copies.chain(dropping).chain(fencing);
        keys.filter(|key| space.is_held(key)).copied().collect()
    }

    /// Clients with a valid key that may change `block`, for checks.
    pub fn writers(&self, block: BlockId) -> Vec<ClientId> {
        let given = self.copies.get(&block).map_or(&[][..], |copy| &copy.keys);
        given.iter().filter(|given| given.key.rights.change()).map(|given| given.client).collect()
    }

    /// Gives up memory that no process has mapped any more. The caller does this periodically.
    pub fn on_timer(&mut self, space: &mut dyn Space) {
        let freed = &mut self.tally.freed;
        self.dropping.retain(|dropping| {
            let held = dropping.keys.iter().any(|key| space.is_held(key));
            if !held {
                space.release(dropping.block);
                *freed += 1;
            }
            held
        });
        self.fencing.retain(|given| space.is_held(&given.key));
        for copy in self.copies.values_mut() {
            copy.draining.retain(|given| space.is_held(&given.key));
            copy.stale.retain(|key| space.is_held(key));
        }
    }

    /// Executes a request of `from`. Returns the answer, and the order to copy bytes if the request
    /// leads to one.
    pub fn on_message(
        &mut self,
        space: &mut dyn Space,
        from: ClientId,
        message: &Message,
    ) -> (Message, Option<CopyOrder>) {
        let mut order = None;
        let answered = match message {
            Message::Open { client, block, epoch, purpose } if *client == from => {
                self.open(space, *client, *block, *epoch, *purpose)
            }
            Message::Open { .. } => Err(Why::NotAllowed.into()),
            Message::Promise { term, lease_ms } => {
                let lease_ns = lease_ms.saturating_mul(1_000_000);
                let manager = asker_of_promises(from);
                let promised = self.promise.ask(self.now_ns, manager, *term, lease_ns);
                promised.map(|()| Message::Promised { term: *term })
            }
            _ => self.obey(space, from, message, &mut order),
        };
        (answered.unwrap_or_else(|refused| self.refuse(refused)), order)
    }

    /// Counts a refusal and returns its message. The request handler calls this for unreadable
    /// requests, too.
    pub fn refuse(&mut self, refused: impl Into<Refused>) -> Message {
        let refused = refused.into();
        *self.tally.refusals.entry(refused.why).or_default() += 1;
        Message::refuse(refused)
    }

    /// Ends an order to copy bytes. If the bytes did not arrive, the node drops the copy, and the
    /// manager orders it again if it still wants it.
    pub fn on_copied(&mut self, space: &mut dyn Space, order: &CopyOrder, arrived: bool) {
        let filling = |copy: &&mut Copy| !copy.whole && copy.config.epoch == order.epoch;
        let refreshing = |copy: &&mut Copy| copy.refresh == Some((order.epoch, false));
        if let Some(copy) = self.copies.get_mut(&order.block).filter(refreshing) {
            // After an interrupted refresh, each word is that of one of the two copies. The manager
            // orders the refresh again.
            copy.refresh = arrived.then_some((order.epoch, true));
            self.tally.filled += u64::from(arrived);
        } else if arrived {
            if let Some(copy) = self.copies.get_mut(&order.block).filter(filling) {
                copy.whole = true;
                self.tally.filled += 1;
            }
        } else if self.copies.get_mut(&order.block).filter(filling).is_some() {
            self.give_up(space, order.block);
        }
    }

    /// Whether bytes that were read for `order` still belong to the copy. The caller asks before
    /// each part, and holds the lock until the part is written. So a copy at a later epoch gets no
    /// bytes of an earlier one.
    #[must_use]
    pub fn takes(&self, order: &CopyOrder) -> bool {
        self.copies.get(&order.block).is_some_and(|copy| {
            let filling = !copy.whole && copy.config.epoch == order.epoch;
            filling || copy.refresh == Some((order.epoch, false))
        })
    }

    fn obey(
        &mut self,
        space: &mut dyn Space,
        from: ClientId,
        message: &Message,
        order: &mut Option<CopyOrder>,
    ) -> Result<Message, Refused> {
        let term = match message {
            Message::Claim { term, .. }
            | Message::Seal { term, .. }
            | Message::Fill { term, .. }
            | Message::Install { term, .. }
            | Message::Drop { term, .. }
            | Message::Fence { term, .. } => *term,
            _ => return Err(Why::Malformed.into()),
        };
        self.promise.obeys(from, term)?;
        match message {
            Message::Claim { after, .. } => Ok(self.report(*after)),
            Message::Seal { block, epoch, .. } => self.seal(space, *block, *epoch),
            Message::Fill { config, source, .. } => self.fill(space, config, source, order),
            Message::Install { config, .. } => self.install(space, config),
            Message::Drop { block, epoch, freed, .. } => {
                self.drop_copy(space, *block, *epoch, *freed)
            }
            Message::Fence { clients, tell, .. } => Ok(self.fence(space, clients, *tell)),
            _ => Err(Why::Malformed.into()),
        }
    }

    fn is(&self, block: BlockId, epoch: Epoch, step: CopyStep) -> Message {
        Message::CopyIs { node: self.node, life: self.life, block, epoch, step }
    }

    fn report(&self, after: Option<BlockId>) -> Message {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.copies.range((begin, Bound::Unbounded));
        let copies = rest.by_ref().take(REPORT_COPIES_MAX).map(|(_, copy)| CopyReport {
            config: copy.config.clone(),
            promised: copy.promised,
            whole: copy.whole,
            installed: copy.installed,
        });
        let copies = copies.collect();
        let more = rest.next().is_some();
        let (mut freed, mut clients) = (Vec::new(), BTreeSet::new());
        if !more {
            freed.extend(self.freed.iter().copied());
            let given = self.copies.values().flat_map(|copy| &copy.keys);
            clients.extend(given.filter(|given| !given.copying).map(|given| given.client));
        }
        let clients = clients.into_iter().collect();
        Message::Report { node: self.node, life: self.life, copies, freed, clients, more }
    }

    fn seal(
        &mut self,
        space: &mut dyn Space,
        block: BlockId,
        epoch: Epoch,
    ) -> Result<Message, Refused> {
        let keeps_keys = self.sabotage.no_fencing();
        let copy = self.copies.get_mut(&block).ok_or(Why::UnknownBlock)?;
        if epoch < copy.promised || epoch <= copy.config.epoch {
            return Err(Refused::at(Why::OldEpoch, copy.promised.0.max(copy.config.epoch.0)));
        }
        if !copy.whole {
            return Err(Why::NotReady.into());
        }
        copy.promised = epoch;
        if copy.refresh.is_some_and(|(of, _)| of < epoch) {
            copy.refresh = None;
        }
        if !keeps_keys {
            let changes = |given: &mut Given| given.key.rights.change();
            for given in copy.keys.extract_if(.., changes) {
                space.revoke(&given.key);
                copy.draining.push(given);
            }
        }
        copy.draining.retain(|given| space.is_held(&given.key));
        let step = if copy.draining.is_empty() { CopyStep::Sealed } else { CopyStep::Sealing };
        Ok(self.is(block, epoch, step))
    }

    fn fill(
        &mut self,
        space: &mut dyn Space,
        config: &Config,
        source: &Option<Source>,
        order: &mut Option<CopyOrder>,
    ) -> Result<Message, Refused> {
        let (block, epoch) = (config.block, config.epoch);
        if let Some(copy) = self.copies.get(&block) {
            let known = copy.promised.0.max(copy.config.epoch.0);
            if known > epoch.0 {
                return Err(Refused::at(Why::OldEpoch, known));
            }
            if copy.config.epoch == epoch && !copy.installed {
                let step = if copy.whole { CopyStep::Filled } else { CopyStep::Filling };
                return Ok(self.is(block, epoch, step));
            }
            if copy.whole && copy.promised == epoch {
                return self.refresh(config, source, order);
            }
            // This copy belongs to an earlier configuration. The block was moved to other nodes
            // since.
            self.give_up(space, block);
        }
        let left = self.limits.blocks_max.saturating_sub(self.blocks_used());
        let freed = self.freed.iter().find(|freed| freed.block == block);
        if let Some(freed) = freed.filter(|freed| freed.epoch >= epoch) {
            return Err(Refused::at(Why::OldEpoch, freed.epoch.0));
        }
        if self.dropping.iter().any(|dropping| dropping.block == block) {
            return Err(Why::NotReady.into());
        }
        let left_bytes = left * self.limits.block_bytes;
        if left == 0 {
            return Err(Refused::at(Why::Full, left_bytes));
        }
        if let Err(error) = space.allocate(block) {
            tracing::warn!(%error, %block, left_bytes, "the system gives no memory for a block");
            return Err(Refused::at(Why::Full, left_bytes));
        }
        self.tally.given += 1;
        let whole = source.is_none() || self.sabotage.no_fill();
        let copy = Copy {
            config: config.clone(),
            promised: epoch,
            whole,
            installed: false,
            refresh: None,
            keys: Vec::new(),
            draining: Vec::new(),
            stale: Vec::new(),
        };
        self.copies.insert(block, copy);
        *order = source.clone().map(|source| CopyOrder { block, epoch, source });
        let step = if whole { CopyStep::Filled } else { CopyStep::Filling };
        Ok(self.is(block, epoch, step))
    }

    /// Makes a copy that stays in the next configuration equal to the first copy, in place. The
    /// copy counts as whole meanwhile, because the two differ only in words of unacknowledged
    /// writes.
    fn refresh(
        &mut self,
        config: &Config,
        source: &Option<Source>,
        order: &mut Option<CopyOrder>,
    ) -> Result<Message, Refused> {
        let (block, epoch) = (config.block, config.epoch);
        let copy = self.copies.get_mut(&block).ok_or(Why::UnknownBlock)?;
        let source = source.clone().ok_or(Why::Malformed)?;
        if copy.refresh.is_none() {
            copy.refresh = Some((epoch, self.sabotage.no_fill()));
            if !self.sabotage.no_fill() {
                *order = Some(CopyOrder { block, epoch, source });
            }
        }
        let done = copy.refresh.is_some_and(|(_, done)| done);
        let step = if done { CopyStep::Filled } else { CopyStep::Filling };
        Ok(self.is(block, epoch, step))
    }

    fn install(&mut self, space: &mut dyn Space, config: &Config) -> Result<Message, Refused> {
        let (node, life) = (self.node, self.life);
        let copy = self.copies.get_mut(&config.block).ok_or(Why::UnknownBlock)?;
        if copy.promised > config.epoch || copy.config.epoch > config.epoch {
            return Err(Refused::at(Why::OldEpoch, copy.promised.0.max(copy.config.epoch.0)));
        }
        let here = config.copies.iter().any(|place| place.node == node && place.life == life);
        if copy.promised < config.epoch || !copy.whole || !here {
            return Err(Why::NotReady.into());
        }
        if !(copy.installed && copy.config == *config) {
            // Readers then ask the manager again, and learn the present places of the copies.
            for given in copy.keys.extract_if(.., |given| !given.key.rights.change()) {
                space.revoke(&given.key);
                copy.stale.push(given.key);
            }
            copy.config = config.clone();
            copy.installed = true;
            copy.refresh = None;
        }
        Ok(self.is(config.block, config.epoch, CopyStep::Installed))
    }

    fn drop_copy(
        &mut self,
        space: &mut dyn Space,
        block: BlockId,
        epoch: Epoch,
        freed: bool,
    ) -> Result<Message, Refused> {
        if let Some(copy) = self.copies.get(&block) {
            let known = copy.promised.0.max(copy.config.epoch.0);
            if known > epoch.0 {
                return Err(Refused::at(Why::OldEpoch, known));
            }
            self.give_up(space, block);
        }
        if freed {
            self.freed.retain(|freed| freed.block != block);
            self.freed.push_back(BlockAt { block, epoch });
            if self.freed.len() > FREED_MAX {
                self.freed.pop_front();
            }
        }
        Ok(self.is(block, epoch, CopyStep::Dropped))
    }

    fn give_up(&mut self, space: &mut dyn Space, block: BlockId) {
        let Some(copy) = self.copies.remove(&block) else { return };
        let mut keys = copy.stale;
        keys.extend(copy.draining.iter().map(|given| given.key));
        for given in copy.keys {
            space.revoke(&given.key);
            keys.push(given.key);
        }
        if keys.iter().any(|key| space.is_held(key)) {
            self.dropping.push(Dropping { block, keys });
        } else {
            space.release(block);
            self.tally.freed += 1;
        }
    }

    fn fence(&mut self, space: &mut dyn Space, clients: &[ClientId], tell: bool) -> Message {
        let named: BTreeSet<ClientId> = clients.iter().copied().collect();
        if !self.sabotage.no_eviction() {
            for client in clients.iter().filter(|client| self.fenced.insert(**client)) {
                self.fenced_order.push_back(*client);
            }
            while self.fenced_order.len() > FENCED_MAX {
                self.fenced_order.pop_front().map(|oldest| self.fenced.remove(&oldest));
            }
            for copy in self.copies.values_mut() {
                let of = |given: &mut Given| named.contains(&given.client);
                for given in copy.keys.extract_if(.., of) {
                    revoke(space, &given, &mut copy.draining, &mut copy.stale);
                    self.fencing.push(given);
                }
            }
        }
        self.fencing.retain(|given| space.is_held(&given.key));
        // This includes keys that were revoked before the client was fenced.
        let draining = self.copies.values().flat_map(|copy| &copy.draining);
        let draining = draining.filter(|given| space.is_held(&given.key));
        let held = self.fencing.iter().chain(draining).map(|given| given.client);
        let held: BTreeSet<ClientId> = held.filter(|client| named.contains(client)).collect();
        let told = if tell { FENCED_TOLD_MAX } else { 0 };
        let known = self.fenced_order.len().saturating_sub(told);
        Message::FenceIs {
            life: self.life,
            held: held.into_iter().collect(),
            fenced: self.fenced_order.range(known..).copied().collect(),
        }
    }

    fn open(
        &mut self,
        space: &mut dyn Space,
        client: ClientId,
        block: BlockId,
        epoch: Epoch,
        purpose: Purpose,
    ) -> Result<Message, Refused> {
        if self.fenced.contains(&client) {
            return Err(Why::Evicted.into());
        }
        let copy = self.copies.get_mut(&block).ok_or(Why::UnknownBlock)?;
        if epoch < copy.promised {
            return Err(Refused::at(Why::OldEpoch, copy.promised.0));
        }
        let copying = purpose == Purpose::Copy;
        let ready = if copying {
            copy.whole && copy.promised == epoch
        } else {
            copy.installed && copy.config.epoch == epoch
        };
        if !ready {
            return Err(Refused::at(Why::NotReady, copy.promised.0));
        }
        let change = !copying && copy.config.may_write(client);
        let rights = if change { Rights::ALL } else { Rights::READ };
        if purpose == Purpose::Afresh {
            for given in copy.keys.extract_if(.., |given| given.client == client) {
                revoke(space, &given, &mut copy.draining, &mut copy.stale);
            }
        }
        let same = |given: &&Given| given.client == client && given.key.rights == rights;
        if let Some(given) = copy.keys.iter().find(same) {
            return Ok(Message::Opened { epoch, key: given.key });
        }
        let key = space.grant(block, rights).map_err(|_| Refused::from(Why::NoKeys))?;
        copy.keys.push(Given { client, key, copying });
        Ok(Message::Opened { epoch, key })
    }
}

fn revoke(
    space: &mut dyn Space,
    given: &Given,
    draining: &mut Vec<Given>,
    stale: &mut Vec<RemoteKey>,
) {
    space.revoke(&given.key);
    if given.key.rights.change() { draining.push(given.clone()) } else { stale.push(given.key) }
}

#[cfg(test)]
mod tests;
