//! Memory nodes: their beats, their silence, and their reports.
//!
//! [`ManagerCore`](crate::core::ManagerCore) owns the nodes.
//!
//! Invariants: 1. Clients learn that a node is up only after the node has given up all copies that
//! it must not keep. 2. A change of a node's liveness gets a new version of the members.
//!
//! Thread-safety: none, as for the state machine.
//! Failure: a node that is silent for its lease counts as down, and its copies are left out.
//! Cost: a report is O(number of its copies).

use archipelago_base::Epoch;
use archipelago_fabric::NodeId;
use archipelago_pool::wire::{CopyReport, Message, Refused, Why};
use archipelago_pool::{BlockId, Place};

use crate::core::{Action, ManagerCore, NodeInfo, Phase};

/// Number of beats per lease of a node.
pub(crate) const BEATS: u64 = 5;

impl ManagerCore {
    pub(crate) fn beat(&mut self, now_ns: u64, beat: &Message) -> Result<Message, Refused> {
        let Message::Beat {
            node,
            life,
            endpoints,
            block_bytes,
            blocks_max,
            blocks_used,
            term,
            held_ms: _,
            counters,
        } = beat
        else {
            return Err(Why::Malformed.into());
        };
        if *term > self.term {
            if matches!(self.phase, Phase::Rebuilding { .. }) && !self.elected {
                // The wall clock went back since the last manager. The new term must exceed the
                // known one.
                self.term = ((*term >> 16) + 1) << 16 | (self.term & 0xffff);
                self.epochs = self.epochs.max(self.term);
                self.view = self.view.max(self.term);
                self.first_view = self.view;
            } else {
                self.phase = Phase::Deposed;
                return Err(Refused::at(Why::OldTerm, *term));
            }
        }
        let others = self.nodes.iter().filter(|(other, info)| *other != node && info.up);
        if let Some((_, info)) =
            others.into_iter().find(|(_, info)| info.block_bytes != *block_bytes)
        {
            return Err(Refused::at(Why::BlockSize, info.block_bytes));
        }
        let known = self.nodes.get(node).map(|info| info.life);
        if known.is_some_and(|known| known > *life) {
            return Err(Refused::at(Why::OldEpoch, known.map_or(0, |known| known.0)));
        }
        if known != Some(*life) {
            tracing::info!(%node, %life, "a memory node registered");
            self.nodes.insert(*node, NodeInfo::new(*life));
            self.dropping.retain(|(of, _), _| of != node);
        }
        let view = &mut self.view;
        let Some(info) = self.nodes.get_mut(node) else { return Err(Why::Malformed.into()) };
        if !info.up || info.endpoints != *endpoints {
            *view += 1;
            info.up = true;
            info.claimed = false;
            info.announced = false;
            info.auditing = false;
            info.cursor = None;
            info.seen.clear();
            info.endpoints.clone_from(endpoints);
        }
        info.heard_ns = now_ns;
        info.block_bytes = *block_bytes;
        info.blocks_max = *blocks_max;
        info.blocks_used = *blocks_used;
        info.counters.clone_from(counters);
        info.forgotten = false;
        let beat_ms = self.terms.node_lease.as_millis() as u64 / BEATS;
        Ok(Message::BeatIs {
            term: self.term,
            manager: self.me,
            beat_ms: beat_ms.max(1),
            alone: !self.elected,
        })
    }

    /// Records an operator's word that a node's memory is lost forever.
    pub(crate) fn forget(&mut self, now_ns: u64, node: NodeId) -> Result<(), Refused> {
        if self.nodes.get(&node).is_some_and(|info| info.up) {
            return Err(Why::NotAllowed.into());
        }
        let mut info = NodeInfo::new(Epoch(u64::MAX));
        info.forgotten = true;
        info.life = self.nodes.get(&node).map_or(Epoch(0), |info| info.life);
        info.gone_view = self.view;
        self.nodes.insert(node, info);
        self.dropping.retain(|(of, _), _| *of != node);
        self.confirm_all(now_ns);
        self.advance_all(now_ns, false);
        Ok(())
    }

    pub(crate) fn watch_nodes(&mut self, now_ns: u64, resend: bool) {
        let lease_ns = self.terms.node_lease.as_nanos() as u64;
        let audit_ns = self.terms.audit.as_nanos() as u64;
        let (term, view, actions) = (self.term, &mut self.view, &mut self.actions);
        for (node, info) in &mut self.nodes {
            if info.up && now_ns.saturating_sub(info.heard_ns) > lease_ns {
                tracing::info!(%node, "a memory node is silent");
                self.work.nodes_silenced += 1;
                *view += 1;
                info.up = false;
                info.claimed = false;
                info.announced = false;
                info.gone_view = *view;
            }
            if !info.up || !resend {
                continue;
            }
            if info.claimed && !info.auditing && now_ns.saturating_sub(info.audited_ns) > audit_ns {
                info.auditing = true;
                info.cursor = None;
                info.seen.clear();
            }
            // The manager asks for a report only after the first exchange of dead clients.
            if info.told && (!info.claimed || info.auditing) {
                let message = Message::Claim { term, after: info.cursor };
                actions.push(Action::Send { node: *node, message });
            }
        }
        if resend {
            let up = self.nodes.iter().filter(|(_, info)| info.up);
            let told = up.filter_map(|(node, info)| Some((*node, self.deaths_for(info)?)));
            let told = told.map(|(node, message)| Action::Send { node, message });
            let told: Vec<Action> = told.collect();
            self.actions.extend(told);
        }
        for (node, info) in &mut self.nodes {
            let stale = || self.dropping.keys().any(|(of, _)| of == node);
            if info.up && info.claimed && !info.announced && info.has_heard() && !stale() {
                info.announced = true;
                self.view += 1;
                info.since = self.view;
            }
        }
        if resend {
            for ((node, block), (life, epoch, freed)) in &self.dropping {
                let there = |info: &&NodeInfo| info.up && info.claimed && info.life == *life;
                if self.nodes.get(node).filter(there).is_some() {
                    let message =
                        Message::Drop { term, block: *block, epoch: *epoch, freed: *freed };
                    self.actions.push(Action::Send { node: *node, message });
                }
            }
        }
    }

    pub(crate) fn on_report(
        &mut self,
        now_ns: u64,
        node: NodeId,
        after: Option<BlockId>,
        answer: &Message,
    ) {
        let Message::Report { life, copies, freed, clients, more, .. } = answer else { return };
        let Some(info) = self.nodes.get_mut(&node) else { return };
        if info.life != *life
            || !info.up
            || info.cursor != after
            || (info.claimed && !info.auditing)
        {
            return;
        }
        info.seen.extend(copies.iter().map(|copy| copy.config.block));
        info.cursor = copies.last().map_or(after, |copy| Some(copy.config.block));
        for copy in copies {
            self.take_report(Place { node, life: *life }, copy);
        }
        if *more {
            let message = Message::Claim { term: self.term, after: self.nodes[&node].cursor };
            self.actions.push(Action::Send { node, message });
            return;
        }
        for freed in freed {
            self.remember_freed(freed.block, freed.epoch);
        }
        for client in clients {
            self.meet(now_ns, node, *client);
        }
        let Some(info) = self.nodes.get_mut(&node) else { return };
        let audited = std::mem::take(&mut info.auditing);
        info.audited_ns = now_ns;
        info.claimed = true;
        let seen = std::mem::take(&mut info.seen);
        let place = Place { node, life: *life };
        for (id, records) in &mut self.reports {
            if !seen.contains(id) {
                records.remove(&node);
            }
        }
        // A copy that an audit does not find may have been made since the audit began.
        for (id, block) in self.blocks.iter_mut().filter(|_| !audited) {
            if block.config.has(place) && !seen.contains(id) {
                block.lost.insert(node);
                block.installed.remove(&node);
            }
        }
        self.confirm_all(now_ns);
        self.advance_all(now_ns, false);
    }

    fn take_report(&mut self, place: Place, report: &CopyReport) {
        let id = report.config.block;
        self.epochs = self.epochs.max(report.promised.0).max(report.config.epoch.0);
        let Some(block) = self.blocks.get_mut(&id) else {
            let of = self.reports.entry(id).or_default();
            of.insert(place.node, (place.life, report.clone()));
            return;
        };
        let current = block.config.epoch;
        // The copy has a newer configuration than the confirmed one. Its installation did not end,
        // so no client used it.
        let known = current.max(report.config.epoch).max(report.promised);
        let audit = self.nodes.get(&place.node).is_some_and(|info| info.auditing);
        if block.config.has(place) {
            if audit {
                return;
            }
            block.promised = block.promised.max(report.promised).max(report.config.epoch);
            let serves = report.installed && report.config.epoch == current;
            if serves {
                block.installed.insert(place.node);
            } else {
                block.installed.remove(&place.node);
            }
            if report.whole {
                block.lost.remove(&place.node);
            } else {
                block.lost.insert(place.node);
            }
        } else if !block.takes(place) {
            self.dropping.insert((place.node, id), (place.life, known, false));
        }
    }

    pub(crate) fn on_dropped(
        &mut self,
        node: NodeId,
        block: BlockId,
        epoch: Epoch,
        answer: &Message,
    ) {
        let over = match answer {
            Message::CopyIs { .. } => true,
            Message::Refuse { refused } => refused.why == Why::OldEpoch,
            _ => false,
        };
        let key = (node, block);
        if over && self.dropping.get(&key).is_some_and(|(_, of, _)| *of <= epoch) {
            self.dropping.remove(&key);
        }
    }
}

impl NodeInfo {
    pub(crate) fn new(life: Epoch) -> Self {
        Self {
            life,
            endpoints: Vec::new(),
            block_bytes: 0,
            blocks_max: 0,
            blocks_used: 0,
            counters: archipelago_pool::wire::NodeCounters::default(),
            heard_ns: 0,
            up: false,
            claimed: false,
            announced: false,
            since: 0,
            auditing: false,
            audited_ns: 0,
            cursor: None,
            seen: std::collections::BTreeSet::new(),
            gone_view: 0,
            forgotten: false,
            full_until_ns: 0,
            fences: std::collections::BTreeMap::new(),
            told: false,
        }
    }
}
