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
