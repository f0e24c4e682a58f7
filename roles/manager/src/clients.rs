//! Clients of the manager: their leases and their deaths.
//!
//! [`ManagerCore`](crate::core::ManagerCore) owns the clients.
//!
//! **Leases.** The manager admits an unknown client if the client is new (`first`). While the
//! manager collects reports, it also admits an unknown client that had a lease of the previous
//! manager. A client that reports during that time that it has no lease (`view` 0) is a
//! **claimant**. It becomes a client again after the nodes had time to report the dead clients,
//! unless one of them named it. The manager knows a client that has keys of nodes before its first
//! message. The client keeps its blocks, and gets no new ones until it has sent its label.
//!
//! **Deaths.** The manager declares a client dead when its lease ends, when it leaves, or on the
//! request of another member. Nodes then **fence** the client: they revoke its keys and give it no
//! others in their present life. A client is **gone** when it can change no copy that is in use or
//! being made. Then each node of such a copy has fenced it, and no process of it has the memory
//! mapped.
//!
//! Invariants, by which a client that is gone stays gone under later managers and on later nodes:
//! 1. A node exchanges dead clients with a manager before its first report. So a manager knows the
//!    dead clients of its predecessors before it confirms a block with a copy on that node.
//! 2. A node gets copies only after it knows all clients that are dead at that time. The manager
//!    waits for a node that already has copies.
//! 3. The manager does not wait for a silent node without a copy in any configuration. If the node
//!    returns, invariant 2 holds for it.
//! 4. A manager that has just started grants no lease to a client without one before the nodes had
//!    time to report the dead clients ([`ManagerCore::take_claimants`]). Otherwise a client that
//!    was cut off until its manager ended could return and serve data that another client owns by
//!    then. If a node later names a client with a lease of this manager, that lease ends first.
//!
//! Thread-safety: none, as for the state machine.
//! Failure: the invariants do not cover a block that no node has reported to this manager, nor the
//! clients that died before the latest 4,096. While too few nodes have reported one block of a
//! client, the client does not learn of most other blocks that are lost. A node that does not
//! return must be forgotten (`archipelago cluster forget`).
//! Cost: a renewal visits all blocks if the client's list of its blocks is old or incomplete, else
//! none. New deaths take a request to each node.

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::Place;
use archipelago_pool::wire::{BlockAt, Member, Message, Refused, Why};

use crate::core::{Action, ClientInfo, ManagerCore, NodeInfo};

/// Number of dead clients that the manager remembers.
const REMEMBERED_MAX: usize = 1 << 16;
/// Number of ids in one message.
const TOLD_MAX: usize = 4096;

/// The list of a client's blocks, as an answer to a renewal has it.
struct OwnedList {
    version: u64,
    /// Largest epoch up to which the list is complete; `None` if it is complete.
    bound: Option<Epoch>,
    blocks: Vec<BlockAt>,
}

impl ManagerCore {
    /// Renews a client's lease. `first` means that the client never had one, and `view` 0 that it
    /// has none now.
    pub(crate) fn renew(
        &mut self,
        now_ns: u64,
        client: ClientId,
        label: u64,
        first: bool,
        view: u64,
    ) -> Result<(), Refused> {
        let known = self.clients.contains_key(&client);
        if self.dead.contains(&client) || (!known && !first && self.is_active()) {
            return Err(Why::Evicted.into());
        }
        let heard = self.clients.get(&client).is_some_and(|info| info.label.is_some());
        if !heard && !first && view == 0 && !self.is_active() {
            self.claimants.insert(client, label);
            return Err(Why::Changing.into());
        }
        let info = self.client(now_ns, client);
        *info = ClientInfo { label: Some(label), heard_ns: now_ns, view, ..*info };
        if !known {
            self.advance_all(now_ns, false);
        }
        Ok(())
    }

    /// Makes the claimants clients again, unless a node has named them as dead.
    pub(crate) fn take_claimants(&mut self, now_ns: u64) {
        for (client, label) in std::mem::take(&mut self.claimants) {
            if !self.dead.contains(&client) {
                self.client(now_ns, client).label = Some(label);
            }
        }
    }

    /// The answer to a renewal, with the members and the client's blocks if the client's versions
    /// are old.
    pub(crate) fn renewed(&mut self, client: ClientId, view: u64, owned: u64) -> Message {
        let members = (view != self.view).then(|| {
            self.nodes
                .iter()
                .map(|(node, info)| Member {
                    node: *node,
                    life: info.life,
                    up: info.announced,
                    since: info.since,
                    endpoints: info.endpoints.clone(),
                })
                .collect()
        });
        let list = self.list(client, owned);
        let version = list.as_ref().map_or(owned, |list| list.version);
        let as_of = list.as_ref().and_then(|list| list.bound).unwrap_or(Epoch(self.epochs));
        Message::Renewed {
            term: self.term,
            lease_ms: self.terms.lease.as_millis() as u64,
            block_bytes: self.nodes.values().map(|info| info.block_bytes).next().unwrap_or(0),
            view: self.view,
            members,
            owned: version,
            blocks: list.map(|list| list.blocks),
            as_of,
        }
    }

    /// The list of a client's blocks, if the client's version `owned` is old, or if its list lacked
    /// blocks and more of them are decided now.
    fn list(&mut self, client: ClientId, owned: u64) -> Option<OwnedList> {
        let info = self.clients.get(&client).copied().filter(|_| self.is_active())?;
        if owned == info.owned && info.bound.is_none() {
            return None;
        }
        let bound = self.bound(client);
        if owned == info.owned && bound == info.bound {
            return None;
        }
        // The client may already have got an earlier list with this version, and ignores a second
        // list of one version. So another bound needs another version.
        let version = info.owned + u64::from(bound != info.bound);
        if let Some(info) = self.clients.get_mut(&client) {
            (info.owned, info.bound) = (version, bound);
        }
        let mine = self.blocks.values().filter(|block| block.config.owner == Some(client));
        // Leaves out blocks that are being made, because that may fail.
        let blocks = mine
            .filter(|block| block.free_ns.is_none() && block.used)
            .map(|block| BlockAt { block: block.config.block, epoch: block.config.epoch })
            .collect();
        Some(OwnedList { version, bound, blocks })
    }

    /// An epoch below the epochs of all blocks that may belong to the client and are not in its
    /// list. These are blocks that are being made, and blocks that too few nodes have reported. The
    /// answer that completes such a block may overtake the list. `None` if there is no such block.
    fn bound(&self, client: ClientId) -> Option<Epoch> {
        let mine = self.blocks.values().filter(|block| block.config.owner == Some(client));
        let unborn = mine.filter(|block| !block.used).map(|block| block.config.born);
        let reports = self.reports.values().flat_map(|records| records.values());
        let unconfirmed = reports
            .filter(|(_, report)| report.config.owner == Some(client))
            .map(|(_, report)| report.config.born);
        unborn.chain(unconfirmed).min().map(|born| Epoch(born.0.saturating_sub(1)))
    }

    /// Declares the clients dead whose leases have ended.
    pub(crate) fn watch_clients(&mut self, now_ns: u64) {
        let lease_ns = self.terms.lease.as_nanos() as u64 * 9 / 8;
        let late = |info: &ClientInfo| now_ns.saturating_sub(info.heard_ns) > lease_ns;
        let gone: Vec<ClientId> =
            self.clients.iter().filter(|(_, info)| late(info)).map(|(id, _)| *id).collect();
        for client in gone {
            tracing::info!(%client, "a client's lease ran out");
            self.work.clients_expired += 1;
            self.kill(client);
        }
    }

    /// Records that a client has keys of a node.
    pub(crate) fn meet(&mut self, now_ns: u64, node: NodeId, client: ClientId) {
        if !self.dead.contains(&client) {
            self.client(now_ns, client);
        } else if let Some(info) = self.nodes.get_mut(&node) {
            info.fences.insert(client, false);
        }
    }

    /// The entry of a living client; a new client gets an entry without a label.
    fn client(&mut self, now_ns: u64, client: ClientId) -> &mut ClientInfo {
        let (view, owned, bound) = (0, self.term, None);
        let info = ClientInfo { label: None, heard_ns: now_ns, view, owned, bound };
        self.clients.entry(client).or_insert(info)
    }
}

impl ManagerCore {
    /// Declares a client dead. Other clients get its blocks, and all nodes revoke its keys.
    pub(crate) fn kill(&mut self, client: ClientId) {
        if !self.bury(client) {
            return;
        }
        let term = self.term;
        for (node, _) in self.nodes.iter().filter(|(_, info)| info.up && info.told) {
            let message = Message::Fence { term, clients: vec![client], tell: false };
            self.actions.push(Action::Send { node: *node, message });
        }
    }

    /// Declares a client dead; the next tick sends the messages to the nodes. Returns whether the
    /// client was alive.
    fn bury(&mut self, client: ClientId) -> bool {
        self.clients.remove(&client);
        if !self.dead.insert(client) {
            return false;
        }
        self.dead_order.push_back(client);
        if self.dead_order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.dead_order.pop_front()
        {
            self.dead.remove(&oldest);
        }
        for info in self.nodes.values_mut() {
            info.fences.insert(client, false);
        }
        true
    }

    /// The message about dead clients that a node needs now, if it needs one.
    pub(crate) fn deaths_for(&self, info: &NodeInfo) -> Option<Message> {
        let term = self.term;
        if !info.told {
            let known = self.dead_order.len().saturating_sub(TOLD_MAX);
            let clients = self.dead_order.range(known..).copied().collect();
            return Some(Message::Fence { term, clients, tell: true });
        }
        if info.fences.is_empty() {
            return None;
        }
        let clients = info.fences.keys().copied().take(TOLD_MAX).collect();
        Some(Message::Fence { term, clients, tell: false })
    }

    /// Takes a node's answer to a message about dead clients, which may name others.
    pub(crate) fn on_fenced(
        &mut self,
        now_ns: u64,
        node: NodeId,
        fence: &Message,
        answer: &Message,
    ) {
        let (Message::Fence { clients: asked, tell, .. }, Message::FenceIs { life, held, fenced }) =
            (fence, answer)
        else {
            return;
        };
        let Some(info) = self.nodes.get_mut(&node).filter(|info| info.life == *life) else {
            return;
        };
        for client in asked {
            if held.contains(client) {
                info.fences.insert(*client, true);
            } else {
                info.fences.remove(client);
            }
        }
        if !tell {
            return;
        }
        if !std::mem::replace(&mut info.told, true) {
            let message = Message::Claim { term: self.term, after: None };
            self.actions.push(Action::Send { node, message });
        }
        let mut news = false;
        for client in fenced {
            let heard_ns = self.clients.get(client).map(|info| info.heard_ns);
            if let Some(heard_ns) = heard_ns {
                let lease_ns = self.terms.lease.as_nanos() as u64 * 9 / 8;
                self.given.insert(*client, heard_ns + lease_ns);
            }
            news |= self.bury(*client);
        }
        if news {
            self.advance_all(now_ns, false);
        }
    }

    /// Answers *done* if a dead client is gone, and otherwise refuses as changing.
    pub(crate) fn gone(&self, now_ns: u64, client: ClientId) -> Result<Message, Refused> {
        if self.given.get(&client).is_some_and(|until_ns| now_ns < *until_ns) {
            return Err(Why::Changing.into());
        }
        let unheard = |info: &NodeInfo| info.up && info.fences.get(&client) == Some(&false);
        let reach = |place: &Place| match self.nodes.get(&place.node) {
            // The client may have keys of a node that this manager does not know.
            None => true,
            Some(info) => {
                let there = info.life == place.life && !info.forgotten;
                there && info.fences.contains_key(&client)
            }
        };
        let known = self.blocks.values().any(|block| {
            let made = block.change.iter().flat_map(|change| &change.add);
            block.config.copies.iter().chain(made).any(reach)
        });
        let reports = self.reports.values().flat_map(|records| records.values());
        let mut unconfirmed = reports.flat_map(|(_, report)| &report.config.copies);
        if self.nodes.values().any(unheard) || known || unconfirmed.any(reach) {
            return Err(Why::Changing.into());
        }
        Ok(Message::Done {})
    }
}

impl NodeInfo {
    /// Whether the node knows all dead clients.
    pub(crate) fn has_heard(&self) -> bool {
        self.told && self.fences.values().all(|heard| *heard)
    }
}
