//! Rows that are listed only: they need several compute nodes, a simulation, or cells that no run
//! has.

use super::super::bounds::{
    Factors, bursts_meet, memory_scaling, scaling_by_links, scaling_by_streams,
};
use super::super::plan::Group;
use super::super::rows::Unmeasured;

const ONE_DATABASE: &str = "not measured: all runs have one database";

/// A row that is not measured.
struct Listed {
    group: Group,
    what: &'static str,
    paper: &'static str,
    bound: String,
    target: &'static str,
    why: &'static str,
}

/// Rows for many nodes.
fn many_nodes() -> Vec<Listed> {
    let factors = &Factors::FIXED;
    let nodes = |what, paper, bound, target| Listed {
        group: Group::Nodes,
        what,
        paper,
        bound,
        target,
        why: ONE_DATABASE,
    };
    vec![
        nodes(
            "throughput of 5 compute nodes over one, 1 memory node (Figure 17a)",
            "2.9×",
            format!(
                "{:.1}× by links of flushes, {:.1}× with fixed storage",
                scaling_by_links(5.0, 1.0),
                scaling_by_streams(5.0, factors)
            ),
            "≥ 0.85 of the bound",
        ),
        nodes(
            "memtables over time with 5 compute nodes (Figure 17b)",
            "small fluctuations",
            String::new(),
            "",
        ),
        nodes(
            "throughput of 3 memory nodes over one, 3 compute nodes (Table 9)",
            "+10.8 %",
            format!("{:.1}×", memory_scaling(3.0, 1.0, 3.0)),
            "≥ 1.11×",
        ),
        nodes(
            "stops of 5 compute nodes, shared over fixed memory (Table 10)",
            "840 to 65",
            format!(
                "shared memory stops with probability {:.3} at bursts of 1.6 quotas, {:.2} at 2.5",
                bursts_meet(3, 4, 0.2),
                bursts_meet(2, 4, 0.2)
            ),
            "≤ 0.1×",
        ),
        nodes(
            "throughput of 5 compute nodes, shared over fixed memory (Table 10)",
            "+42 %",
            String::new(),
            "≥ 1.3×",
        ),
    ]
}

/// Rows for simulations, cells and machines that the command does not have.
fn missing_cells() -> Vec<Listed> {
    vec![
        Listed {
            group: Group::Delegation,
            what: "one-sided search over a delegated read (Table 4)",
            paper: "50× slower",
            bound: "≤ 5×: 3 or 4 READs and the record".to_owned(),
            target: "",
            why: "not measured: no simulation has this search",
        },
        Listed {
            group: Group::Delegation,
            what: "size of the key-offset cache × 8, and times of a read (Figure 13)",
            paper: "+67 % zipfian, +32 % uniform; 4.7, 6.8 and 23.9 µs",
            bound: String::new(),
            target: "≥ 1.3× zipfian",
            why: "not measured: no cell has another size of the cache",
        },
        Listed {
            group: Group::Memtables,
            what: "automatic local share over the best fixed one (Figure 14)",
            paper: "future work",
            bound: String::new(),
            target: "≥ 0.95×",
            why: "not measured: no cell has --local_memtables=auto",
        },
        Listed {
            group: Group::Resp,
            what: "GET/SET 50/50 with clients on another machine (Table 8)",
            paper: "3.9×",
            bound: String::new(),
            target: "",
            why: "not measured: needs a second machine",
        },
    ]
}

/// The rows of these groups that are listed only.
pub(in crate::o3) fn listed(groups: &[Group]) -> Vec<Unmeasured> {
    let rows = many_nodes().into_iter().chain(missing_cells());
    let wanted = rows.filter(|row| groups.contains(&row.group));
    let row = |row: Listed| Unmeasured {
        group: row.group,
        what: row.what.to_owned(),
        paper: row.paper.to_owned(),
        bound: row.bound,
        target: row.target.to_owned(),
        why: row.why.to_owned(),
    };
    wanted.map(row).collect()
}
