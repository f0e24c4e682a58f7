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
            what: "one-sided search over a delegated read (Table 4)",
            paper: "50× slower",
            bound: "≤ 5×: 3 or 4 READs and the record".to_owned(),
            target: "",
            why: "not measured: no simulation has this search",
        },
        Listed {
            group: Group::Delegation,
            what: "times of a read here, at a cached offset and by a request (Figure 13b)",
            paper: "4.7, 6.8 and 23.9 µs",
            bound: String::new(),
            target: "",
            why: "not measured: latencies of reads are not kept apart by their way",
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
