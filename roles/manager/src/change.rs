//! Changes one block from one configuration to the next.
//!
//! [`ManagerCore`](crate::core::ManagerCore) owns the changes, one per block at a time. A change
//! has these steps:
//!
//! 1. **Seal.** Every copy that answers revokes the keys by which clients could change it, and
//!    promises the new epoch. From then on no write of the old configuration completes, because it
//!    would need all copies.
//! 2. **Quorum.** The sealed copies stay. Together with the copies that are lost forever they must
//!    be a quorum of the old configuration, else the change waits. So two successive managers
//!    cannot continue from different copies.
//! 3. **Barrier.** The change leaves out copies whose nodes may still live. It waits until every
//!    client has acted on the loss of these nodes, or has lost its lease. So no client with a lease
//!    reads from a copy that was left out.
//! 4. **Fill.** New copies read the first copy that stays, one-sided. If every member may write the
//!    block, the other copies that stay read it, too. So all copies are equal when an epoch begins,
//!    even after an interrupted write. No client writes meanwhile. A writer is refused with
//!    *changing*, and waits or uses other blocks.
//! 5. **Install.** The new configuration goes to all of its copies. It is in use when all have
//!    answered. A copy gives keys only for its installed epoch, and a writer needs keys of all
//!    copies.
//!
//! A new block is a change from no copies. A change of the owner takes the same steps.
//!
//! Invariants:
//! 1. The epoch of a block grows with each change.
//! 2. A configuration is used only after its copies were filled and installed.
//!
//! Thread-safety: none, as for the state machine.
//! Failure: each request is sent again until it is answered. A node that falls silent is left out
//! by this change or by the next.
//! Cost: three requests to each copy, and the bytes of the block for each new copy.

use std::collections::BTreeSet;

use archipelago_base::Epoch;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::wire::{CopyStep, Message, Refused, Source, Why};
use archipelago_pool::{BlockId, Config, Place, Sharing};

use crate::core::{Action, Block, Change, ManagerCore, Step};
use crate::decide::{self, Heir, OwnerIs, Picture, PlaceIs};

/// Number of leases that the manager waits, after a copy failed, before it adds another copy of the
/// block.
const GROW_LEASES: u32 = 1;

enum Next {
    /// The block needs nothing until a message arrives.
    Wait,
    /// The block must be examined again.
    Again,
    /// The block does not exist any more.
    End,
}

/// Copies that stay and must be made equal to the first copy. The first copy is not among them.
fn refreshed(sharing: Sharing, change: &Change) -> &[Place] {
    match sharing {
        Sharing::All => change.kept.get(1..).unwrap_or_default(),
        Sharing::Owner => &[],
    }
}

impl ManagerCore {
    pub(crate) fn advance_all(&mut self, now_ns: u64, resend: bool) {
        let all: Vec<BlockId> = self.blocks.keys().copied().collect();
        for id in all {
            self.advance(now_ns, id, resend);
        }
    }

    /// Advances a block as far as possible. With `resend`, sends unanswered requests again.
    pub(crate) fn advance(&mut self, now_ns: u64, id: BlockId, resend: bool) {
        if !self.is_active() {
            return;
        }
        let Some(mut block) = self.blocks.remove(&id) else { return };
        loop {
            let step = block.change.as_ref().map(|change| change.step);
            let next = match step {
                None => self.rest(now_ns, &mut block, resend),
                Some(Step::Seal) => self.seal(now_ns, &mut block, resend),
                Some(Step::Barrier) => self.barrier(now_ns, &mut block),
                Some(Step::Fill) => self.fill(now_ns, &mut block, resend),
            };
            match next {
                Next::Again => {}
                Next::End => return,
                Next::Wait => break,
            }
        }
        self.blocks.insert(id, block);
    }

    /// Begins a change if the block needs one.
    fn rest(&mut self, now_ns: u64, block: &mut Block, resend: bool) -> Next {
        if let Some(free_ns) = block.free_ns {
            if now_ns < free_ns {
                return Next::Wait;
            }
            return self.free(block);
        }
        let copies = &block.config.copies;
        let but: Vec<NodeId> = copies.iter().map(|copy| copy.node).collect();
        let short = copies.len() < block.config.wanted as usize && block.grow_ns <= now_ns;
        let label = block.config.label;
        let picture = Picture {
            copies: copies.iter().map(|copy| self.place_is(block, *copy)).collect(),
            owner: self.owner_is(block.config.owner),
            heir: self.clients.values().any(|info| info.label == Some(label)),
            wanted: block.config.wanted as usize,
            room: short && !decide::choose(self.rooms(now_ns, &but), 1).is_empty(),
            begun: block.promised > block.config.epoch,
        };
        if decide::needs_change(&picture) {
            return self.begin(now_ns, block);
        }
        if !block.is_installed() {
            if resend {
                self.send_installs(block);
            }
            return Next::Wait;
        }
        for ticket in block.tickets.drain(..) {
            let message = Message::Located { config: block.config.clone() };
            self.actions.push(Action::Answer { ticket, message });
        }
        // The answer may arrive after the client gave up. Then the client learns of the block from
        // the list of its blocks.
        if !std::mem::replace(&mut block.used, true)
            && let Some(info) = block.config.owner.and_then(|client| self.clients.get_mut(&client))
        {
            info.owned += 1;
        }
        Next::Wait
    }

    /// Begins a change, or begins it again under a larger epoch.
    fn begin(&mut self, now_ns: u64, block: &mut Block) -> Next {
        self.work.changes_begun += 1;
        let epoch = self.next_epoch(block.promised);
        block.promised = epoch;
        let given_up = block.change.take().map_or(Vec::new(), |change| change.add);
        for place in given_up {
            self.dropping.insert((place.node, block.config.block), (place.life, epoch, false));
        }
        block.change = Some(Change {
            epoch,
            step: Step::Seal,
            sealed: BTreeSet::new(),
            kept: Vec::new(),
            add: Vec::new(),
            filled: BTreeSet::new(),
            since_ns: now_ns,
        });
        self.send_seals(block);
        Next::Again
    }

    fn seal(&mut self, now_ns: u64, block: &mut Block, resend: bool) -> Next {
        if block.free_ns.is_some_and(|free_ns| free_ns <= now_ns) {
            return self.free(block);
        }
        let (mut kept, mut lost, mut pending, mut silent) = (vec![], BTreeSet::new(), false, false);
        let Some(change) = &block.change else { return Next::Wait };
        for copy in &block.config.copies {
            match self.place_is(block, *copy) {
                PlaceIs::Up if change.sealed.contains(&copy.node) => kept.push(*copy),
                PlaceIs::Up | PlaceIs::Coming => pending = true,
                PlaceIs::Lost => _ = lost.insert(copy.node),
                PlaceIs::Silent => silent = true,
            }
        }
        if kept.is_empty() && !pending && !silent {
            return self.lose(block);
        }
        if pending && resend {
            self.send_seals(block);
        }
        let mut votes = lost;
        votes.extend(kept.iter().map(|copy| copy.node));
        if pending || kept.is_empty() || !block.config.is_quorum(&votes) {
            return Next::Wait;
        }
        if let Some(change) = &mut block.change {
            change.kept = kept;
            change.step = Step::Barrier;
        }
        Next::Again
    }

    fn barrier(&mut self, now_ns: u64, block: &mut Block) -> Next {
        let Some(change) = &block.change else { return Next::Wait };
        let left = block.config.copies.iter().filter(|copy| !change.kept.contains(copy));
        let left = left.filter(|copy| self.place_is(block, **copy) != PlaceIs::Lost);
        // A node that has returned since is left out all the same, because the clients know of its
        // silence.
        let told = |copy: &Place| {
            let of = self.nodes.get(&copy.node).map_or(0, |info| info.gone_view);
            of.max(self.first_view)
        };
        let view = left.map(told).max();
        if view.is_some_and(|view| self.clients.values().any(|client| client.view < view)) {
            return Next::Wait;
        }
        let missing = (block.config.wanted as usize).saturating_sub(change.kept.len());
        // This excludes a node that this change left out and that has returned. A fill would
        // overwrite its old copy, which counts until the new configuration is in use.
        let there = block.config.copies.iter();
        let there = there.filter(|copy| self.place_is(block, **copy) != PlaceIs::Lost);
        let but: Vec<NodeId> = there.map(|copy| copy.node).collect();
        let mut add = Vec::new();
        if block.grow_ns <= now_ns {
            let chosen = decide::choose(self.rooms(now_ns, &but), missing);
            add.extend(chosen.iter().filter_map(|node| self.place(*node)));
        }
        if let Some(change) = &mut block.change {
            change.add = add;
            change.step = Step::Fill;
            change.since_ns = now_ns;
        }
        self.send_fills(block);
        Next::Again
    }

    fn fill(&mut self, now_ns: u64, block: &mut Block, resend: bool) -> Next {
        let Some(change) = &block.change else { return Next::Wait };
        let late = now_ns.saturating_sub(change.since_ns) > self.terms.fill_max.as_nanos() as u64;
        let there = |place: &Place| {
            let info = self.nodes.get(&place.node);
            info.is_some_and(|info| info.up && info.claimed && info.life == place.life)
        };
        let going: Vec<Place> = change
            .add
            .iter()
            .copied()
            .filter(|place| change.filled.contains(&place.node) || (there(place) && !late))
            .collect();
        let gone: Vec<Place> =
            change.add.iter().copied().filter(|place| !going.contains(place)).collect();
        if !gone.is_empty() {
            let epoch = change.epoch;
            for place in gone {
                self.dropping.insert((place.node, block.config.block), (place.life, epoch, false));
            }
            let Some(change) = &block.change else { return Next::Wait };
            block.grow_ns = now_ns + (self.terms.lease * GROW_LEASES).as_nanos() as u64;
            if change.kept.is_empty() {
                return self.replace(now_ns, block, &going);
            }
        }
        let Some(change) = &block.change else { return Next::Wait };
        let refreshed = refreshed(block.config.sharing, change);
        let waits = |place: &&Place| !change.filled.contains(&place.node);
        if refreshed.iter().any(|place| waits(&place))
            && change.kept.iter().any(|place| late || !there(place))
        {
            // The change begins again without that copy, or from another source.
            return self.begin(now_ns, block);
        }
        let waits = going.iter().chain(refreshed).any(|place| waits(&place));
        let Some(change) = &mut block.change else { return Next::Wait };
        change.add = going;
        if waits {
            if resend {
                self.send_fills(block);
            }
            return Next::Wait;
        }
        self.install(block);
        Next::Again
    }

    /// Places a new block on other nodes after some of its nodes were lost, or gives it up. The
    /// block gets a new epoch, because a lost node may still have its copy. That node may report to
    /// a later manager that its copy was never installed. With another epoch, the report has no
    /// effect on the other copies.
    fn replace(&mut self, now_ns: u64, block: &mut Block, going: &[Place]) -> Next {
        let nodes: Vec<NodeId> = going.iter().map(|place| place.node).collect();
        let up = self.nodes.values().filter(|info| info.announced).count();
        let need = (block.config.wanted as usize).min(up).saturating_sub(going.len());
        let chosen = decide::choose(self.rooms(now_ns, &nodes), need);
        let mut add = going.to_vec();
        add.extend(chosen.iter().filter_map(|node| self.place(*node)));
        if chosen.len() < need || add.is_empty() {
            let left = self.bytes_left();
            for ticket in block.tickets.drain(..) {
                let refused =
                    if up == 0 { Why::NoNodes.into() } else { Refused::at(Why::Full, left) };
                self.actions.push(Action::Answer { ticket, message: Message::refuse(refused) });
            }
            return self.free(block);
        }
        let epoch = self.next_epoch(block.promised);
        (block.config.born, block.promised) = (epoch, epoch);
        if let Some(change) = &mut block.change {
            change.epoch = epoch;
            change.add = add;
            change.filled.clear();
            change.since_ns = now_ns;
        }
        self.send_fills(block);
        Next::Again
    }

    /// Ends a change whose copies are all filled. From now on, the new configuration is the
    /// block's.
    fn install(&mut self, block: &mut Block) {
        let Some(change) = block.change.take() else { return };
        if change.kept.is_empty() {
            self.work.blocks_made += 1;
        } else {
            self.work.blocks_changed += 1;
            self.work.copies_added += change.add.len() as u64;
        }
        let old = block.config.owner;
        let owner = match self.owner_is(old) {
            OwnerIs::Live => old,
            _ => self.heir(block.config.label),
        };
        if owner != old {
            block.config.request = 0;
        }
        if owner != old
            && let Some(info) = owner.and_then(|client| self.clients.get_mut(&client))
        {
            info.owned += 1;
        }
        for copy in &block.config.copies {
            let stays = change.kept.contains(copy) || change.add.contains(copy);
            if !stays && self.place_is(block, *copy) != PlaceIs::Lost {
                let order = (copy.life, change.epoch, false);
                self.dropping.insert((copy.node, block.config.block), order);
            }
        }
        block.config.owner = owner;
        block.config.epoch = change.epoch;
        block.config.copies = change.kept.into_iter().chain(change.add).collect();
        block.promised = change.epoch;
        block.installed.clear();
        block.lost.clear();
        self.send_installs(block);
    }

    fn heir(&self, label: u64) -> Option<ClientId> {
        let heirs = self.clients.iter().filter(|(_, info)| info.label == Some(label));
        let heirs: Vec<Heir> = heirs
            .map(|(client, _)| {
                let mine = |block: &&Block| block.config.owner == Some(*client);
                Heir { client: *client, blocks: self.blocks.values().filter(mine).count() }
            })
            .collect();
        decide::heir(&heirs)
    }

    /// Gives up a block of which every copy was lost.
    fn lose(&mut self, block: &mut Block) -> Next {
        if block.used {
            tracing::error!(block = %block.config.block, "every copy of a block was lost");
            self.lost += 1;
        }
        if let Some(info) = block.config.owner.and_then(|client| self.clients.get_mut(&client)) {
            info.owned += 1;
        }
        self.free(block)
    }

    /// Frees a block, and repeats this to its nodes until they confirm.
    fn free(&mut self, block: &mut Block) -> Next {
        self.work.blocks_freed += 1;
        let id = block.config.block;
        for ticket in block.tickets.drain(..) {
            let message = Message::refuse(Why::UnknownBlock);
            self.actions.push(Action::Answer { ticket, message });
        }
        self.remember_freed(id, block.promised);
        let added = block.change.iter().flat_map(|change| change.add.iter());
        let places: Vec<Place> = block.config.copies.iter().chain(added).copied().collect();
        for place in places {
            if self.place_is(block, place) != PlaceIs::Lost {
                let order = (place.life, block.promised, true);
                self.dropping.insert((place.node, id), order);
                let message = Message::Drop {
                    term: self.term,
                    block: id,
                    epoch: block.promised,
                    freed: true,
                };
                self.actions.push(Action::Send { node: place.node, message });
            }
        }
        Next::End
    }

    fn send_seals(&mut self, block: &Block) {
        let Some(change) = &block.change else { return };
        for copy in &block.config.copies {
            let up = self.place_is(block, *copy) == PlaceIs::Up;
            if up && !change.sealed.contains(&copy.node) {
                let message = Message::Seal {
                    term: self.term,
                    block: block.config.block,
                    epoch: change.epoch,
                };
                self.actions.push(Action::Send { node: copy.node, message });
            }
        }
    }

    fn send_fills(&mut self, block: &Block) {
        let Some(change) = &block.change else { return };
        let source = change.kept.first().and_then(|place| {
            let info = self.nodes.get(&place.node)?;
            let endpoints = info.endpoints.clone();
            Some(Source { node: place.node, life: place.life, endpoints })
        });
        let config = Config {
            epoch: change.epoch,
            copies: change.kept.iter().chain(&change.add).copied().collect(),
            ..block.config.clone()
        };
        for place in change.add.iter().chain(refreshed(config.sharing, change)) {
            if !change.filled.contains(&place.node) {
                let (config, source) = (config.clone(), source.clone());
                let message = Message::Fill { term: self.term, config, source };
                self.actions.push(Action::Send { node: place.node, message });
            }
        }
    }

    fn send_installs(&mut self, block: &Block) {
        for copy in &block.config.copies {
            if !block.installed.contains(&copy.node) {
                let message = Message::Install { term: self.term, config: block.config.clone() };
                self.actions.push(Action::Send { node: copy.node, message });
            }
        }
    }

    /// Takes a node's answer to a seal, a fill or an install of `epoch`.
    pub(crate) fn on_copy_answer(
        &mut self,
        now_ns: u64,
        node: NodeId,
        id: BlockId,
        epoch: Epoch,
        answer: &Message,
    ) {
        let life = self.nodes.get(&node).map(|info| info.life);
        let Some(block) = self.blocks.get_mut(&id) else { return };
        match answer {
            Message::CopyIs { life: of, step, .. } if life == Some(*of) => {
                match (&mut block.change, step) {
                    (Some(change), CopyStep::Sealed) if change.epoch == epoch => {
                        change.sealed.insert(node);
                    }
                    (Some(change), CopyStep::Filled) if change.epoch == epoch => {
                        change.filled.insert(node);
                    }
                    (None, CopyStep::Installed) if block.config.epoch == epoch => {
                        block.installed.insert(node);
                    }
                    _ => return,
                }
            }
            Message::Refuse { refused } if block.promised == epoch => {
                self.on_refusal(now_ns, node, id, *refused);
            }
            _ => return,
        }
        self.advance(now_ns, id, false);
    }

    fn on_refusal(&mut self, now_ns: u64, node: NodeId, id: BlockId, refused: Refused) {
        let lease_ns = self.terms.lease.as_nanos() as u64;
        let Some(block) = self.blocks.get_mut(&id) else { return };
        let member = block.config.copies.iter().any(|copy| copy.node == node);
        let filling = block.change.as_ref().is_some_and(|change| {
            let kept = refreshed(block.config.sharing, change).iter();
            change.step == Step::Fill
                && change.add.iter().chain(kept).any(|place| place.node == node)
        });
        match refused.why {
            Why::UnknownBlock | Why::NotReady if member && !filling => {
                block.lost.insert(node);
            }
            Why::OldEpoch if !filling => {
                block.promised = block.promised.max(Epoch(refused.number));
                if block.change.as_ref().is_none_or(|change| change.step == Step::Seal) {
                    block.change = None;
                }
            }
            Why::Full | Why::OldEpoch if filling => {
                if let Some(info) = self.nodes.get_mut(&node)
                    && refused.why == Why::Full
                {
                    info.full_until_ns = now_ns + lease_ns;
                    // The manager does not ask the full node again for a lease. It reports the
                    // bytes that the node says are left.
                    let left = refused.number.checked_div(info.block_bytes).unwrap_or(0);
                    info.blocks_used = info.blocks_max.saturating_sub(left);
                }
                if let Some(change) = &mut block.change
                    && !change.filled.contains(&node)
                {
                    let keeps = |place: &Place| place.node != node;
                    // A repeated message may have made the copy nevertheless.
                    let of = change.add.iter().copied().filter(|place| !keeps(place));
                    for place in of {
                        self.dropping.insert((node, id), (place.life, change.epoch, false));
                    }
                    let going: Vec<Place> = change.add.iter().copied().filter(keeps).collect();
                    change.add = going.clone();
                    block.grow_ns = now_ns + lease_ns;
                    if change.kept.is_empty()
                        && let Some(mut block) = self.blocks.remove(&id)
                        && !matches!(self.replace(now_ns, &mut block, &going), Next::End)
                    {
                        self.blocks.insert(id, block);
                    }
                }
            }
            _ => {}
        }
    }
}
