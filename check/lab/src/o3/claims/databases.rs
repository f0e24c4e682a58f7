//! Rows of several databases as processes: Figure 17a and Table 9. Decision 0108 fixes them.
//!
//! The bounds are those of the streams and links of all nodes together, and of the reads that cross
//! the links of the owners. A rate is that of the second half, as in the model of many nodes.

use super::super::bounds::{Factors, MixedLoad, SCALE, cluster};
use super::super::databases::DatabasesFigures;
use super::super::plan::{
    Cell, DATABASES, DATABASES_TABLE_9, Group, MEMORY_NODES, SeveralKind, several,
};
use super::super::rows::{Claim, Facts, rounded, times};
use super::super::run::Run;
use super::super::words::SEVERAL_VALUE;
use super::reads::MISSES;
use super::{WIDE, rate};

/// Least share of the bound that the largest number of databases must reach.
const SHARE_OF_BOUND: f64 = 0.85;
/// Least ratio of three memory nodes over one.
const MEMORY_RATIO: f64 = 1.11;

/// Operations per second of all databases in the second half.
fn second_half(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.second_half()
}

/// Highest number of operations per second at full speed.
fn bound(kind: SeveralKind, databases: u32, memory_nodes: u32) -> f64 {
    let record_bytes = SEVERAL_VALUE.record_bytes() as f64;
    let [databases, memory_nodes] = [databases, memory_nodes].map(f64::from);
    let factors = &Factors::FIXED;
    let writes = cluster(databases, memory_nodes, WIDE, factors) * 1e6 / record_bytes;
    match kind {
        SeveralKind::Writes => writes,
        SeveralKind::Mixed => {
            let mixed = MixedLoad { record_bytes, misses: MISSES };
            2.0 * writes.min(databases * mixed.million_reads(WIDE, factors) * 1e6)
        }
    }
}

/// A row about the rates of two numbers of databases and nodes, with the ratio of their bounds.
fn row(kind: SeveralKind, own: [u32; 2], peer: [u32; 2]) -> (Claim, f64) {
    let of = |[databases, nodes]: [u32; 2]| bound(kind, databases, nodes);
    let cell = |[databases, nodes]: [u32; 2]| several(kind, databases, nodes);
    let ratio = of(own) / of(peer);
    let claim = Claim::new(Group::Databases, cell(own), "rate of all", second_half)
        .unit("ops/s")
        .over(cell(peer), second_half)
        .bound(times(ratio));
    (claim, ratio)
}

/// The rows of Figure 17a.
fn scaling(kind: SeveralKind) -> Vec<Claim> {
    let mut claims = Vec::new();
    let [.., most] = DATABASES;
    for databases in DATABASES.into_iter().filter(|databases| kind.has(*databases)) {
        let cell: Cell = several(kind, databases, 1);
        let here = bound(kind, databases, 1) * SCALE;
        claims.push(
            Claim::new(Group::Databases, cell, "rate of all", second_half)
                .unit("ops/s")
                .bound(format!("{here:.0} ops/s at the speed of the descriptions")),
        );
        if databases > 1 {
            let (row, ratio) = row(kind, [databases, 1], [1, 1]);
            let row = row.paper("up to 2.9× with 5");
            let has_target = kind == SeveralKind::Writes && databases == most;
            let least = rounded(ratio * SHARE_OF_BOUND);
            claims.push(if has_target { row.at_least(least) } else { row });
        }
    }
    claims
}

/// The rows of Table 9.
fn memory_nodes(kind: SeveralKind) -> Vec<Claim> {
    let [few, .., many] = MEMORY_NODES;
    let papers = match kind {
        SeveralKind::Writes => ["1.08×", "1.11×"],
        SeveralKind::Mixed => ["1.08×", "1.12×"],
    };
    let more = MEMORY_NODES.into_iter().filter(|nodes| *nodes > few).zip(papers);
    let rows = more.map(|(nodes, paper)| {
        let (row, _) = row(kind, [DATABASES_TABLE_9, nodes], [DATABASES_TABLE_9, few]);
        let row = row.paper(paper);
        let has_target = kind == SeveralKind::Writes && nodes == many;
        if has_target { row.at_least(MEMORY_RATIO) } else { row }
    });
    rows.collect()
}

pub(super) fn several_databases() -> Vec<Claim> {
    let [.., most] = DATABASES;
    let all = several(SeveralKind::Writes, most, 1);
    let of = |figure: fn(&DatabasesFigures) -> Option<f64>| {
        move |_: &Facts<'_>, run: &Run| figure(run.several.as_ref()?)
    };
    let stalled = |several: &DatabasesFigures| {
        let count = several.databases.len() as f64;
        let all: f64 = several.databases.iter().map(|database| database.stalled).sum();
        (count > 0.0).then(|| all / count)
    };
    let slowest = of(DatabasesFigures::slowest_over_fastest);
    let mut claims: Vec<Claim> = SeveralKind::ALL.into_iter().flat_map(scaling).collect();
    claims.extend([
        Claim::new(Group::Databases, all, "slowest over fastest database", slowest)
            .bound(times(1.0)),
        Claim::new(Group::Databases, all, "share of the time in stalls", of(stalled)),
        Claim::new(Group::Databases, all, "rate of all until the end", rate).unit("ops/s"),
    ]);
    claims.extend(SeveralKind::ALL.into_iter().flat_map(memory_nodes));
    claims
}
