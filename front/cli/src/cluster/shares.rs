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

/// Accounts that a memory node reports.
#[derive(Debug, Default)]
struct Reported {
    is_draining: bool,
    databases: Vec<DatabaseAccount>,
}

/// A memory node and its report, or the reason for which there is none.
type NodeAccounts = (NodeId, Result<Reported, String>);

/// Asks the nodes of a pool. The text is empty if no database uses them.
pub(super) fn text(managers: &Managers, pool: &PoolStatus) -> String {
    let up = pool.nodes.iter().map(|node| &node.member).filter(|member| member.up);
    let asked = up.map(|member| {
        let accounts = match managers.ask_shards(member, &ShardMessage::Accounts {}) {
            Ok(ShardMessage::Accounted { is_draining, databases, .. }) => {
                Ok(Reported { is_draining, databases })
            }
            Ok(_) => Err("its answer is of another version".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        (member.node, accounts)
    });
    show(&asked.collect::<Vec<_>>())
}

fn show(nodes: &[NodeAccounts]) -> String {
    let is_plain = |report: &Reported| report.databases.is_empty() && !report.is_draining;
    let mut out = String::new();
    if nodes.iter().any(|(_, report)| !report.as_ref().is_ok_and(is_plain)) {
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
            Ok(Reported { is_draining, databases }) => {
                if *is_draining {
                    writeln!(out, "(memory node {node} is drained: it takes no memtables)")?;
                }
                for account in databases {
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
        let nothing = [(NodeId(1), Ok(Reported::default()))];
        assert_eq!(show(&nothing), "", "nothing is offloaded");
        let account = DatabaseAccount {
            db: OffloadDb([0xab; 16]),
            used_bytes: 96 << 20,
            guaranteed_bytes: 64 << 20,
            borrowed_bytes: 32 << 20,
            share_bytes: 128 << 20,
            ..DatabaseAccount::default()
        };
        let silent = (NodeId(2), Err("no answer".to_owned()));
        let report = Reported { is_draining: false, databases: vec![account] };
        let drained = (NodeId(3), Ok(Reported { is_draining: true, ..Reported::default() }));
        let text = show(&[(NodeId(1), Ok(report)), silent, drained]);
        let lines: Vec<&str> = text.lines().collect();
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        let bytes = ["96", "MiB", "64", "MiB", "32", "MiB", "128", "MiB"];
        assert_eq!(words, [&["abababab", "1"][..], &bytes].concat(), "{text}");
        assert_eq!(lines[3], "(memory node 2 does not say: no answer)");
        assert_eq!(lines[4], "(memory node 3 is drained: it takes no memtables)");
    }
}
