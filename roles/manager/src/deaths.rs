//! Clients that are dead: who is told, and when none of their writes can take place any more.
//!
//! A client is taken for dead when its lease runs out, when it leaves, or when somebody asks for
//! it. Nodes then **fence** it: they revoke its keys and give it no others, for as long as they
//! live. It is **gone** when no copy that is in use, or is being made, can be changed by it: each
//! node of such a copy has fenced it, and no process of it has the memory mapped.
//!
//! Gone is for good, also over the next manager and over nodes that come later:
//!
//! 1. A node's first exchange with a manager comes before its first report. It is told who is dead,
//!    and tells whom it has fenced. So a manager knows of the dead of its forerunners before it
//!    understands a block of which that node has a copy.
//! 2. A node is not given copies before it has heard of everybody who is dead by then; one that has
//!    already been given any is waited for.
//! 3. A node that is silent is not waited for once no configuration has a copy on it. Should it
//!    come back, 2 holds for it.
//!
//! 4. A manager that has just started gives no lease to a client that has none, before nodes had
//!    the time to tell who is dead ([`ManagerCore::take_claimants`]): one that was cut off until
//!    its manager was gone would come back to life, and serve what has long been somebody else's.
//!    If a node tells later of one that has a lease of this manager, that runs out first.
//!
//! Not covered: a block of which this manager has not heard from any node; the dead before the
//! latest 4,096.

use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::Place;
use archipelago_pool::wire::{Message, Refused, Why};

use crate::core::{Action, ManagerCore, NodeInfo};

/// Ids of dead clients that are remembered.
const REMEMBERED_MAX: usize = 1 << 16;
/// Ids in one message.
const TOLD_MAX: usize = 4096;

impl ManagerCore {
    /// Takes a client for dead: its blocks go to others, its keys are revoked everywhere.
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

    /// The same, told to nodes with what else they are told. Whether that is new.
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

    /// What a node is to be told of the dead now, if anything.
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

    /// A node has heard who is dead, and may have told of others.
    pub(crate) fn on_fenced(
        &mut self,
        now_ns: u64,
        node: NodeId,
        asked: &[ClientId],
        (tell, answer): (bool, &Message),
    ) {
        let Message::FenceIs { life, held, fenced } = answer else { return };
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

    /// Done if a dead client is gone; else refused as changing.
    pub(crate) fn gone(&self, now_ns: u64, client: ClientId) -> Result<Message, Refused> {
        if self.given.get(&client).is_some_and(|until_ns| now_ns < *until_ns) {
            return Err(Why::Changing.into());
        }
        let unheard = |info: &NodeInfo| info.up && info.fences.get(&client) == Some(&false);
        let reach = |place: &Place| match self.nodes.get(&place.node) {
            // It may have keys there, and this manager has never heard of the node.
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
    /// Whether it knows of everybody who is dead.
    pub(crate) fn has_heard(&self) -> bool {
        self.told && self.fences.values().all(|heard| *heard)
    }
}
