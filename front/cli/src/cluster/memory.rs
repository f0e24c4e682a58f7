//! `archipelago cluster drain --memory`: memtable shards leave a memory node.
//!
//! The node itself knows that it is drained, because its shards end with its life anyway. The
//! command asks it again and again what it still holds.
//!
//! Failure: a node that does not answer ends the command with an error, and not the drain.
//! Cost: one request a second.

use archipelago_base::{Error, ErrorKind, Result, size};
use archipelago_fabric::NodeId;
use archipelago_offload::wire::shard::{DatabaseAccount, ShardMessage};
use archipelago_pool::wire::{Member, PoolStatus};

use super::managers::{Managers, other_version};
use super::storage::{Drain, watch};
use crate::console::print_line;

/// Number of looks without progress after which a drain says so.
const LOOKS_WITHOUT_PROGRESS: u32 = 10;

/// Images that databases have at a node.
fn image_bytes(databases: &[DatabaseAccount]) -> u64 {
    databases.iter().map(|account| account.image_bytes).sum()
}

fn ask(
    managers: &Managers,
    member: &Member,
    message: &ShardMessage,
) -> Result<Vec<DatabaseAccount>> {
    match managers.ask_shards(member, message)? {
        ShardMessage::Accounted { databases, .. } => Ok(databases),
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
            format!("memory node {node} is down, so it holds no memtables any more"),
        )),
        Some(member) => Ok(member),
    }
}

/// Has all memtable shards leave a memory node, or lets it take shards again.
pub(super) fn drain(
    managers: &Managers,
    pool: &PoolStatus,
    node: NodeId,
    drain: Drain,
) -> Result<()> {
    let member = member(pool, node)?;
    let is_draining = drain != Drain::Cancel;
    ask(managers, member, &ShardMessage::Drain { is_draining })?;
    match drain {
        Drain::Cancel => {
            print_line!("Memory node {node} takes memtables again");
            return Ok(());
        }
        Drain::Begin => {
            print_line!("Memory node {node} is being emptied: archipelago cluster status");
            return Ok(());
        }
        Drain::Wait => {}
    }
    print_line!(
        "Memory node {node} takes no memtables; Ctrl-C ends this command, and not the drain"
    );
    let (mut left, mut looks) = (u64::MAX, 0);
    watch(|| {
        let databases = ask(managers, member, &ShardMessage::Accounts {})?;
        let now = image_bytes(&databases);
        if now < left {
            (left, looks) = (now, 0);
            print_line!("Memory node {node}: {} of memtables left", size::show(now));
        } else {
            looks += 1;
            if looks % LOOKS_WITHOUT_PROGRESS == 0 {
                print_line!(
                    "Memory node {node}: no progress for {looks} s; the memtables of a server that \
                     has ended stay for ten minutes"
                );
            }
        }
        Ok(now == 0)
    })?;
    print_line!(
        "Memory node {node} has no memtables: it can be stopped. Blocks of the pool have copies at \
         other nodes, which archipelago cluster status lists"
    );
    Ok(())
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
        assert!(error.to_string().contains("memory node 2 is down"), "{error}");
        let error = member(&pool, NodeId(3)).unwrap_err();
        assert!(error.to_string().contains("no memory node has the number 3"), "{error}");
    }
}
