//! `archipelago cluster drain --memory`: memtable shards leave a memory node.
//!
//! The node itself knows that it is drained, because its shards end with its life anyway. The
//! command asks it again and again what it still holds.
//!
//! Failure: a node that does not answer ends the command with an error, and not the drain.
//! Cost: one request a second.

use archipelago_base::{Error, ErrorKind, Result, size};
use archipelago_fabric::NodeId;
use archipelago_offload::wire::shard::ShardMessage;
use archipelago_pool::wire::{Member, PoolStatus};

use super::managers::{Managers, other_version};
use super::storage::{Drain, watch};
use crate::console::print_line;

/// Number of looks without progress after which a drain says so.
const LOOKS_WITHOUT_PROGRESS: u32 = 10;

/// State of a drain, as the node reports it.
#[derive(Clone, Copy, Debug)]
struct DrainState {
    is_draining: bool,
    /// Bytes of images that the node has, and of those that are arriving.
    image_bytes: u64,
}

fn ask(managers: &Managers, member: &Member, message: &ShardMessage) -> Result<DrainState> {
    match managers.ask_shards(member, message)? {
        ShardMessage::Accounted { is_draining, image_bytes, .. } => {
            Ok(DrainState { is_draining, image_bytes })
        }
        _ => Err(other_version("the memory node's answer")),
    }
}

/// The node with this number, if the manager hears from it.
fn member(pool: &PoolStatus, node: NodeId) -> Result<&Member> {
    let found = pool.nodes.iter().map(|status| &status.member).find(|found| found.node == node);
    match found {
        None => Err(Error::invalid(format!(
            "no memory node has the number {node}: archipelago cluster status lists them"
        ))),
        Some(member) if !member.up => Err(Error::new(
            ErrorKind::Busy,
            format!("memory node {node} is silent, so it cannot be drained now"),
        )),
        Some(member) => Ok(member),
    }
}

/// Has all memtable shards leave a memory node, or lets it take shards again. `pool` returns the
/// status of the memory nodes.
pub(super) fn drain(
    managers: &Managers,
    pool: impl Fn() -> Result<PoolStatus>,
    node: NodeId,
    drain: Drain,
) -> Result<()> {
    let status = pool()?;
    let member = member(&status, node)?;
    let is_draining = drain != Drain::Cancel;
    ask(managers, member, &ShardMessage::Drain { is_draining })?;
    match drain {
        Drain::Cancel => {
            print_line!("Memory node {node} takes memtables again");
            return Ok(());
        }
        Drain::Begin => {
            print_line!(
                "Memory node {node} is being emptied: archipelago cluster status shows what is left"
            );
            return Ok(());
        }
        Drain::Wait => {}
    }
    print_line!(
        "Memory node {node} takes no memtables; Ctrl-C ends this command, and not the drain"
    );
    wait_until_empty(managers, member)?;
    print_line!("{}", empty_words(&pool()?, node));
    Ok(())
}

/// Shows the progress of a drain until the node has no images. Errors: `Busy` if the drain was
/// cancelled meanwhile.
fn wait_until_empty(managers: &Managers, member: &Member) -> Result<()> {
    let node = member.node;
    let (mut left, mut looks) = (u64::MAX, 0);
    watch(|| {
        let now = ask(managers, member, &ShardMessage::Accounts {})?;
        if !now.is_draining {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("memory node {node} takes memtables again: its drain was cancelled"),
            ));
        }
        if now.image_bytes < left {
            (left, looks) = (now.image_bytes, 0);
            print_line!("Memory node {node}: {} of memtables left", size::show(left));
        } else {
            looks += 1;
            if looks % LOOKS_WITHOUT_PROGRESS == 0 {
                print_line!(
                    "Memory node {node}: no progress for {looks} s; a server has ended (its \
                     memtables stay for ten minutes), or cannot flush (see its log)"
                );
            }
        }
        Ok(now.image_bytes == 0)
    })
}

/// Text about a node without memtables: whether it can be stopped without a loss of blocks. The
/// used blocks of a node also hold the memory that it keeps for further memtables, so that they say
/// nothing about the pool.
fn empty_words(pool: &PoolStatus, node: NodeId) -> String {
    if pool.blocks_total == 0 {
        return format!(
            "Memory node {node} has no memtables, and the pool has no blocks: it can be stopped"
        );
    }
    format!(
        "Memory node {node} has no memtables. It may have some of the {} blocks of the pool, of \
         which each should have {} copies: see archipelago cluster status --blocks before you \
         stop it",
        pool.blocks_total, pool.copies
    )
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_pool::wire::{NodeCounters, NodeStatus};

    use super::*;

    #[test]
    fn only_a_node_that_is_up_can_be_drained() {
        let node = |number, up| NodeStatus {
            member: Member {
                node: NodeId(number),
                life: Epoch(1),
                up,
                since: 1,
                endpoints: Vec::new(),
            },
            block_bytes: 0,
            blocks_max: 0,
            blocks_used: 0,
            heard_ms: 0,
            counters: NodeCounters::default(),
        };
        let pool = PoolStatus {
            term: 1,
            rebuilding: false,
            copies: 1,
            lost: 0,
            nodes: vec![node(1, true), node(2, false)],
            clients: Vec::new(),
            blocks_total: 0,
            blocks: Vec::new(),
        };
        assert_eq!(member(&pool, NodeId(1)).unwrap().node, NodeId(1));
        let error = member(&pool, NodeId(2)).unwrap_err();
        assert!(error.to_string().contains("memory node 2 is silent"), "{error}");
        let error = member(&pool, NodeId(3)).unwrap_err();
        assert!(error.to_string().contains("no memory node has the number 3"), "{error}");
        assert!(empty_words(&pool, NodeId(1)).ends_with("no blocks: it can be stopped"));
        let words = empty_words(&PoolStatus { blocks_total: 7, ..pool }, NodeId(1));
        assert!(words.contains("the 7 blocks") && words.contains("1 copies"), "{words}");
    }
}
