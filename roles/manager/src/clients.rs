//! Clients that are alive: their leases, and what they are told with each renewal.
//!
//! A client that this manager does not know is taken in if it is new (`first`), or while reports
//! are gathered: then it had a lease of the manager before. One that says that it has none (`view`
//! 0) is a **claimant** meanwhile: it is a client as before once the nodes had the time to tell who
//! is dead, and dead if one of them named it. A client that nodes have keys for is known before it
//! is heard: its blocks are not given away, and it gets no new ones until it has said under which
//! label.
//!
//! Cost: a renewal walks over all blocks if the client's list of its own is old, else over nothing.

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::wire::{BlockAt, Member, Message, Refused, Why};

use crate::core::{ClientInfo, ManagerCore};

impl ManagerCore {
    /// A client wants its lease to go on; `first`: it has never had one, `view` 0: it has none now.
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

    /// Whoever had lost its lease when this manager began, and is not dead by what nodes said
    /// since, is a client as before.
    pub(crate) fn take_claimants(&mut self, now_ns: u64) {
        for (client, label) in std::mem::take(&mut self.claimants) {
            if !self.dead.contains(&client) {
                self.client(now_ns, client).label = Some(label);
            }
        }
    }

    /// What it is told then: of members and of its blocks only what is new to it.
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
            // One that is being made may come to nothing.
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

    /// Leases run out.
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

    /// A node says that this client has keys.
    pub(crate) fn meet(&mut self, now_ns: u64, node: NodeId, client: ClientId) {
        if !self.dead.contains(&client) {
            self.client(now_ns, client);
        } else if let Some(info) = self.nodes.get_mut(&node) {
            info.fences.insert(client, false);
        }
    }

    /// One that is alive; as one of which nothing else is known yet if it is new.
    fn client(&mut self, now_ns: u64, client: ClientId) -> &mut ClientInfo {
        let info = ClientInfo { label: None, heard_ns: now_ns, view: 0, owned: self.term };
        self.clients.entry(client).or_insert(info)
    }
}
