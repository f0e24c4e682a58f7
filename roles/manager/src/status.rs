//! The status of the cluster, for operators. The functions read the state and change nothing.

use archipelago_fabric::NodeId;
use archipelago_pool::wire::{
    BlockAt, BlockState, BlockStatus, ClientStatus, Member, Message, NodeStatus, PoolStatus,
    Refused,
};

use crate::core::{Block, ManagerCore, ManagerWork, Phase, Step};
use crate::decide::PlaceIs;

/// Figures of a memory node as the manager knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFigures {
    /// The node's id.
    pub node: NodeId,
    /// Whether the manager counts the node as up.
    pub up: bool,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Number of blocks that fit.
    pub blocks_max: u64,
    /// Number of blocks that use memory.
    pub blocks_used: u64,
    /// Milliseconds since the last message of the node.
    pub heard_ms: u64,
}

/// Figures of a pool as its manager knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFigures {
    /// The manager's term.
    pub term: u64,
    /// Whether the manager is still collecting reports after its start.
    pub rebuilding: bool,
    /// Number of copies that a block should have.
    pub copies: u32,
    /// Number of blocks of which every copy was lost since the manager's start.
    pub lost: u64,
    /// Work of the manager since it began to act.
    pub work: ManagerWork,
    /// Number of clients with a lease.
    pub clients: u64,
    /// Figures of each node.
    pub nodes: Vec<NodeFigures>,
    /// Number of blocks in each state.
    pub blocks: Vec<(BlockState, u64)>,
}

/// All states of a block, in the order of figures.
const BLOCK_STATES: [BlockState; 6] = [
    BlockState::Whole,
    BlockState::Short,
    BlockState::Changing,
    BlockState::Waiting,
    BlockState::Unconfirmed,
    BlockState::Released,
];

/// Number of blocks that a status lists.
const BLOCKS_LISTED_MAX: usize = 512;

impl ManagerCore {
    /// The status of the whole cluster.
    #[must_use]
    pub fn status(&self, now_ns: u64) -> PoolStatus {
        let ms = |heard_ns: u64| now_ns.saturating_sub(heard_ns) / 1_000_000;
        let nodes = self.nodes.iter().map(|(node, info)| NodeStatus {
            member: Member {
                node: *node,
                life: info.life,
                up: info.up,
                since: info.since,
                endpoints: info.endpoints.clone(),
            },
            block_bytes: info.block_bytes,
            blocks_max: info.blocks_max,
            blocks_used: info.blocks_used,
            heard_ms: ms(info.heard_ns),
            counters: info.counters.clone(),
        });
        let clients = self.clients.iter().map(|(client, info)| {
            let mine = |block: &&Block| block.config.owner == Some(*client);
            ClientStatus {
                client: *client,
                label: info.label.unwrap_or_default(),
                heard_ms: ms(info.heard_ns),
                blocks: self.blocks.values().filter(mine).count() as u64,
            }
        });
        let known = self.blocks.values().map(|block| self.block_status(block));
        let unconfirmed = self.reports.values().filter_map(|records| {
            let (_, report) = records.values().max_by_key(|(_, report)| report.config.epoch)?;
            let silent = |node: &NodeId| !records.contains_key(node);
            Some(BlockStatus {
                config: report.config.clone(),
                state: BlockState::Unconfirmed,
                waits_for: report.config.copies.iter().map(|c| c.node).filter(silent).collect(),
            })
        });
        PoolStatus {
            term: self.term,
            rebuilding: matches!(self.phase, Phase::Rebuilding { .. }),
            copies: self.terms.copies,
            lost: self.lost,
            nodes: nodes.collect(),
            clients: clients.collect(),
            blocks_total: (self.blocks.len() + self.reports.len()) as u64,
            blocks: unconfirmed.chain(known).take(BLOCKS_LISTED_MAX).collect(),
        }
    }

    /// The sums of the status, over all blocks. It costs one pass over the blocks.
    #[must_use]
    pub fn figures(&self, now_ns: u64) -> PoolFigures {
        let nodes = self.nodes.iter().map(|(node, info)| NodeFigures {
            node: *node,
            up: info.up,
            block_bytes: info.block_bytes,
            blocks_max: info.blocks_max,
            blocks_used: info.blocks_used,
            heard_ms: now_ns.saturating_sub(info.heard_ns) / 1_000_000,
        });
        let mut blocks = BLOCK_STATES.map(|state| (state, 0));
        let mut count = |state: BlockState, more: u64| {
            if let Some(entry) = blocks.iter_mut().find(|entry| entry.0 == state) {
                entry.1 += more;
            }
        };
        self.blocks.values().for_each(|block| count(self.block_state(block).0, 1));
        count(BlockState::Unconfirmed, self.reports.len() as u64);
        PoolFigures {
            term: self.term,
            rebuilding: matches!(self.phase, Phase::Rebuilding { .. }),
            copies: self.terms.copies,
            lost: self.lost,
            work: self.work,
            clients: self.clients.len() as u64,
            nodes: nodes.collect(),
            blocks: blocks.to_vec(),
        }
    }

    /// The blocks of a label. After the manager has collected reports, the list lacks only blocks
    /// whose nodes have all been silent since.
    pub(crate) fn find(&self, now_ns: u64, label: u64) -> Result<Message, Refused> {
        self.ready(now_ns)?;
        let used = self.blocks.values().filter(|block| block.free_ns.is_none());
        let known = used.map(|block| &block.config);
        let unconfirmed = self.reports.values().filter_map(|records| {
            let newest = records.values().max_by_key(|(_, report)| report.config.epoch);
            newest.map(|(_, report)| &report.config)
        });
        let mine = known.chain(unconfirmed).filter(|config| config.label == label);
        let mut blocks: Vec<BlockAt> =
            mine.map(|config| BlockAt { block: config.block, epoch: config.born }).collect();
        blocks.sort_by_key(|at| (at.epoch, at.block));
        blocks.truncate(BLOCKS_LISTED_MAX);
        Ok(Message::Found { blocks })
    }

    fn block_status(&self, block: &Block) -> BlockStatus {
        let (state, waits_for) = self.block_state(block);
        BlockStatus { config: block.config.clone(), state, waits_for }
    }

    /// The state of a block, and the silent nodes that have a copy of it.
    fn block_state(&self, block: &Block) -> (BlockState, Vec<NodeId>) {
        let silent = |node: &NodeId| {
            let copy = block.config.copies.iter().find(|copy| copy.node == *node);
            copy.is_some_and(|copy| self.place_is(block, *copy) == PlaceIs::Silent)
        };
        let waits_for: Vec<NodeId> =
            block.config.copies.iter().map(|copy| copy.node).filter(silent).collect();
        let sealing = block.change.as_ref().is_some_and(|change| change.step == Step::Seal);
        let state = if block.free_ns.is_some() {
            BlockState::Released
        } else if sealing && !waits_for.is_empty() {
            BlockState::Waiting
        } else if !block.is_ready() {
            BlockState::Changing
        } else if block.config.copies.len() < block.config.wanted as usize {
            BlockState::Short
        } else {
            BlockState::Whole
        };
        (state, waits_for)
    }
}
