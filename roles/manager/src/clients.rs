//! Living clients: their leases, and the answers to their renewals.
//!
//! [`ManagerCore`](crate::core::ManagerCore) owns the clients. It admits an unknown client if the
//! client is new (`first`), or while it collects reports, because the client then had a lease of the
//! manager before. A client that says during that time that it has no lease (`view` 0) is a
//! **claimant**. It becomes a client again after the nodes had time to report the dead clients, unless
//! one of them named it. A client that has keys of nodes is known before its first message. Its blocks
//! are kept, and it gets no new ones until it has said its label.
//!
//! Invariants: 1. a client's lease begins when its renewal arrives, which is after the client sent it.
//! 2. No dead client gets a lease.
//!
//! Thread-safety: none, as for the state machine.
//! Failure: a client that is silent for a lease is declared dead.
//! Cost: a renewal visits all blocks if the client's list of its blocks is old, else none.

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::wire::{BlockAt, Member, Message, Refused, Why};

use crate::core::{ClientInfo, ManagerCore};

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
        *info = ClientInfo { label: Some(label), heard_ns: now_ns, view, owned: info.owned };
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
    pub(crate) fn renewed(&self, client: ClientId, view: u64, owned: u64) -> Message {
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
        let version = self.clients.get(&client).map_or(0, |info| info.owned);
        let blocks = (owned != version && self.is_active()).then(|| {
            let mine = self.blocks.values().filter(|block| block.config.owner == Some(client));
            // A block that is being made may fail.
            mine.filter(|block| block.free_ns.is_none() && block.used)
                .map(|block| BlockAt { block: block.config.block, epoch: block.config.epoch })
                .collect()
        });
        Message::Renewed {
            term: self.term,
            lease_ms: self.terms.lease.as_millis() as u64,
            block_bytes: self.nodes.values().map(|info| info.block_bytes).next().unwrap_or(0),
            view: self.view,
            members,
            owned: if blocks.is_some() { version } else { owned },
            blocks,
            as_of: Epoch(self.epochs),
        }
    }

    /// Declares the clients dead whose leases have ended.
    pub(crate) fn watch_clients(&mut self, now_ns: u64) {
        let lease_ns = self.terms.lease.as_nanos() as u64 * 9 / 8;
        let late = |info: &ClientInfo| now_ns.saturating_sub(info.heard_ns) > lease_ns;
        let gone: Vec<ClientId> =
            self.clients.iter().filter(|(_, info)| late(info)).map(|(id, _)| *id).collect();
        for client in gone {
            tracing::info!(%client, "a client's lease ran out");
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
        let info = ClientInfo { label: None, heard_ns: now_ns, view: 0, owned: self.term };
        self.clients.entry(client).or_insert(info)
    }
}
