//! Text of `archipelago cluster status`: the memory of databases at memory nodes.
//!
//! Failure: a node that does not answer has a line that says so.
//! Cost: one request to each node that is up.

use std::fmt::Write;

use archipelago_base::size;
use archipelago_fabric::NodeId;
use archipelago_offload::wire::shard::{DatabaseAccount, ShardMessage};
use archipelago_pool::wire::PoolStatus;

use super::managers::Managers;

/// What a memory node says of the databases that use it.
type NodeAccounts = (NodeId, Result<Vec<DatabaseAccount>, String>);

/// Asks the nodes of a pool. The text is empty if no database uses them.
pub(super) fn text(managers: &Managers, pool: &PoolStatus) -> String {
    let up = pool.nodes.iter().map(|node| &node.member).filter(|member| member.up);
    let asked = up.map(|member| {
        let accounts = match managers.ask_shards(member, &ShardMessage::Accounts {}) {
            Ok(ShardMessage::Accounted { databases, .. }) => Ok(databases),
            Ok(_) => Err("its answer is of another version".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        (member.node, accounts)
    });
    show(&asked.collect::<Vec<_>>())
}

fn show(nodes: &[NodeAccounts]) -> String {
    let is_used = |(_, accounts): &NodeAccounts| !accounts.as_ref().is_ok_and(Vec::is_empty);
    let mut out = String::new();
    if nodes.iter().any(is_used) {
        // Writing to a string does not fail.
        let _infallible = write(&mut out, nodes);
    }
    out
}

fn write(out: &mut String, nodes: &[NodeAccounts]) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<10} {:>6} {:>11} {:>11} {:>11} {:>11}",
        "DATABASE", "NODE", "USED", "GUARANTEED", "BORROWED", "SHARE"
    )?;
    for (node, accounts) in nodes {
        match accounts {
            Ok(accounts) => {
                for account in accounts {
                    let columns = [
                        account.used_bytes,
                        account.guaranteed_bytes,
                        account.borrowed_bytes,
                        account.share_bytes,
                    ];
                    let columns = columns.map(|bytes| format!(" {:>11}", size::show(bytes)));
                    let db = account.db.to_string();
                    writeln!(out, "{db:<10} {:>6}{}", node.to_string(), columns.concat())?;
                }
            }
            Err(why) => writeln!(out, "(memory node {node} does not say: {why})")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use archipelago_offload::ids::OffloadDb;

    use super::*;

    #[test]
    fn text_shows_accounts_and_nodes_without_an_answer() {
        assert_eq!(show(&[(NodeId(1), Ok(Vec::new()))]), "", "nothing is offloaded");
        let account = DatabaseAccount {
            db: OffloadDb([0xab; 16]),
            used_bytes: 96 << 20,
            guaranteed_bytes: 64 << 20,
            borrowed_bytes: 32 << 20,
            share_bytes: 128 << 20,
            ..DatabaseAccount::default()
        };
        let silent = (NodeId(2), Err("no answer".to_owned()));
        let text = show(&[(NodeId(1), Ok(vec![account])), silent]);
        let lines: Vec<&str> = text.lines().collect();
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        let bytes = ["96", "MiB", "64", "MiB", "32", "MiB", "128", "MiB"];
        assert_eq!(words, [&["abababab", "1"][..], &bytes].concat(), "{text}");
        assert_eq!(lines[3], "(memory node 2 does not say: no answer)");
    }
}
