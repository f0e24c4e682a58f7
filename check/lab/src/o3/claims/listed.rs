//! Rows that are listed only: they need a simulation or cells that no run has.

use super::super::plan::Group;
use super::super::rows::Unmeasured;

/// A row that is not measured.
struct Listed {
    group: Group,
    what: &'static str,
    paper: &'static str,
    bound: String,
    target: &'static str,
    why: &'static str,
}

/// Rows for simulations, cells and machines that the command does not have.
fn missing_cells() -> Vec<Listed> {
    vec![
        Listed {
            group: Group::Delegation,
            what: "key-offset cache over delegated reads, with a card and many clients (Table 4)",
            paper: "1.15 and 1.35×",
            bound: String::new(),
            target: "≥ 2×",
            why: "not measured: no simulation has these reads",
        },
        Listed {
            group: Group::Databases,
            what: "shared memory over fixed parts, with bursts of 5 databases (Table 10)",
            paper: "stops −92 %, throughput 1.42×",
            bound: String::new(),
            target: "stops ≤ 0.1×, throughput ≥ 1.3×",
            why: "not measured: no benchmark writes in bursts, and five arenas are larger than a \
                  sixteenth of the paper's memory; the group nodes has a model",
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
    let wanted = missing_cells().into_iter().filter(|row| groups.contains(&row.group));
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
