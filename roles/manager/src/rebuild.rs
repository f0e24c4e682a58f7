//! The reconstruction of the blocks that earlier managers made, by a new manager, from the reports
//! of the nodes.
//!
//! A manager that starts knows nothing. Nodes report for each copy the last configuration, the
//! promised epoch, whether the copy is whole, and whether it was installed. A block is
//! **confirmed** when a quorum of the newest reported configuration reports that configuration.
//!
//! A quorum is sufficient. Every change is sealed by copies that, with the copies that are lost
//! forever, are a quorum of the configuration that it replaces. Two quorums share a copy. So one of
//! the reporting copies would have a newer configuration, or would have promised its epoch. In the
//! second case the newer configuration was never in use.
//!
//! Invariants: 1. A block is changed only after it is confirmed. 2. A first configuration that no
//! reporting node has installed was never in use, and its block is freed.
//!
//! Thread-safety: none, as for the state machine.
//! Failure: an unconfirmed block waits. Clients that know it can read it, and the status shows the
//! nodes that it waits for. If a node is lost forever, an operator reports it with `cluster
//! forget`.
//! Cost: a report examines the blocks that it names.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Epoch;
use archipelago_fabric::NodeId;
use archipelago_pool::wire::CopyReport;
use archipelago_pool::{BlockId, Config, Place};

use crate::core::{Block, ManagerCore};

/// Reports of one block, by node, each with the node's life.
type Records = BTreeMap<NodeId, (Epoch, CopyReport)>;

impl ManagerCore {
    /// Tries to confirm every unconfirmed block.
    pub(crate) fn confirm_all(&mut self, now_ns: u64) {
        let waiting: Vec<BlockId> = self.reports.keys().copied().collect();
        for id in waiting {
            self.confirm(now_ns, id);
        }
    }

    fn confirm(&mut self, now_ns: u64, id: BlockId) {
        let Some(mut records) = self.reports.remove(&id) else { return };
        let current = |node: &NodeId, life: Epoch| {
            self.nodes.get(node).is_some_and(|info| info.life == life && !info.forgotten)
        };
        records.retain(|node, (life, _)| current(node, *life));
        let freed = self.freed.get(&id).copied().unwrap_or_default();
        let old: Vec<(NodeId, Epoch)> = records
            .extract_if(.., |_, (_, report)| report.config.epoch <= freed)
            .map(|(node, (life, _))| (node, life))
            .collect();
        for (node, life) in old {
            self.dropping.insert((node, id), (life, freed, true));
        }
        let Some(config) = records
            .values()
            .filter(|(_, report)| report.installed)
            .max_by_key(|(_, report)| report.config.epoch)
            .map(|(_, report)| report.config.clone())
        else {
            return self.never_used(id, records);
        };
        let place = |node: &NodeId, life: &Epoch| Place { node: *node, life: *life };
        let mut votes: BTreeSet<NodeId> = records
            .iter()
            .filter(|(node, (life, report))| report.whole && config.has(place(node, life)))
            .map(|(node, _)| *node)
            .collect();
        let forgotten = |node: &NodeId| self.nodes.get(node).is_some_and(|info| info.forgotten);
        votes.extend(config.copies.iter().map(|copy| copy.node).filter(forgotten));
        if !config.is_quorum(&votes) {
            self.reports.insert(id, records);
            return;
        }
        let block = self.understood(config, &records);
        for (node, (life, _)) in &records {
            if !block.config.has(place(node, life)) {
                self.dropping.insert((*node, id), (*life, block.promised, false));
            }
        }
        if let Some(info) = block.config.owner.and_then(|client| self.clients.get_mut(&client)) {
            info.owned += 1;
        }
        self.blocks.insert(id, block);
        self.advance(now_ns, id, false);
    }

    /// Builds the state of a block that a quorum confirmed, from the reports of its nodes.
    fn understood(&self, config: Config, records: &Records) -> Block {
        let mut block = Block::settled(config);
        for copy in &block.config.copies {
            let record = records.get(&copy.node).filter(|(life, _)| *life == copy.life);
            match record {
                Some((_, report)) => {
                    block.promised = block.promised.max(report.promised);
                    if report.installed && report.config.epoch == block.config.epoch {
                        block.installed.insert(copy.node);
                    }
                    if !report.whole {
                        block.lost.insert(copy.node);
                    }
                }
                None => {
                    let told =
                        |info: &crate::core::NodeInfo| info.claimed && info.life == copy.life;
                    if self.nodes.get(&copy.node).is_some_and(told) {
                        block.lost.insert(copy.node);
                    }
                }
            }
        }
        block
    }

    /// Frees a block whose first configuration no reporting node has installed, if no node reports
    /// a later one. Otherwise keeps the reports.
    fn never_used(&mut self, id: BlockId, records: Records) {
        if records.is_empty() {
            return;
        }
        let first = |report: &CopyReport| report.config.epoch == report.config.born;
        if !self.is_active() || !records.values().all(|(_, report)| first(report)) {
            self.reports.insert(id, records);
            return;
        }
        let up_to = records.values().map(|(_, report)| report.promised).max().unwrap_or_default();
        self.remember_freed(id, up_to);
        for (node, (life, _)) in &records {
            self.dropping.insert((*node, id), (*life, up_to, true));
        }
    }
}
