//! Rows of several databases as processes: Figure 17a and Table 9. Decision 0108 fixes them.
//!
//! The bounds are those of the streams and links of all nodes together. A rate is that of the
//! second half, as in the model of many nodes.

use super::super::bounds::{Factors, SCALE, cluster};
use super::super::databases::DatabasesFigures;
use super::super::plan::{Cell, DATABASES, DATABASES_TABLE_9, Group, MEMORY_NODES, several};
use super::super::rows::{Claim, Facts, times};
use super::super::run::Run;
use super::WIDE;

/// Least share of the bound that the largest number of databases must reach.
const SHARE_OF_BOUND: f64 = 0.85;
/// Least ratio of three memory nodes over one.
const MEMORY_RATIO: f64 = 1.11;

/// MB/s of keys and values of all databases in the second half.
fn mb_per_s(_: &Facts<'_>, run: &Run) -> Option<f64> {
    Some(run.second_half()? * run.record_bytes as f64 / 1e6)
}

/// Highest MB/s of user bytes at full speed.
fn bound(databases: u32, memory_nodes: u32) -> f64 {
    cluster(f64::from(databases), f64::from(memory_nodes), WIDE, &Factors::FIXED)
}

/// Least ratio that a share of the ratio of bounds asks for, as tables show it.
fn least(ratio: f64) -> f64 {
    (ratio * SHARE_OF_BOUND * 100.0).round() / 100.0
}

fn row(cell: Cell, peer: Cell) -> Claim {
    Claim::new(Group::Databases, cell, "rate of all", mb_per_s).unit("MB/s").over(peer, mb_per_s)
}

pub(super) fn several_databases() -> Vec<Claim> {
    let mut claims = Vec::new();
    let (one, [.., most]) = (several(1, 1), DATABASES);
    for databases in DATABASES {
        let cell = several(databases, 1);
        let here = bound(databases, 1) * SCALE;
        claims.push(
            Claim::new(Group::Databases, cell, "rate of all", mb_per_s)
                .unit("MB/s")
                .bound(format!("{here:.1} MB/s at the speed of the descriptions")),
        );
        if databases > 1 {
            let ratio = bound(databases, 1) / bound(1, 1);
            let row = row(cell, one).bound(times(ratio)).paper("up to 2.9× with 5");
            claims.push(if databases == most { row.at_least(least(ratio)) } else { row });
        }
    }
    let of = |figure: fn(&DatabasesFigures) -> Option<f64>| {
        move |_: &Facts<'_>, run: &Run| figure(run.several.as_ref()?)
    };
    let stalled = |several: &DatabasesFigures| {
        let count = several.databases.len() as f64;
        let all: f64 = several.databases.iter().map(|database| database.stalled).sum();
        (count > 0.0).then(|| all / count)
    };
    let slowest = of(DatabasesFigures::slowest_over_fastest);
    claims.extend([
        Claim::new(Group::Databases, several(most, 1), "slowest over fastest database", slowest)
            .bound(times(1.0)),
        Claim::new(Group::Databases, several(most, 1), "share of the time in stalls", of(stalled)),
    ]);
    let [few, .., many] = MEMORY_NODES;
    let papers = ["1.08×", "1.11×"];
    for (nodes, paper) in MEMORY_NODES.into_iter().filter(|nodes| *nodes > few).zip(papers) {
        let peer = several(DATABASES_TABLE_9, few);
        let ratio = bound(DATABASES_TABLE_9, nodes) / bound(DATABASES_TABLE_9, few);
        let row = row(several(DATABASES_TABLE_9, nodes), peer).bound(times(ratio)).paper(paper);
        claims.push(if nodes == many { row.at_least(MEMORY_RATIO) } else { row });
    }
    claims
}
