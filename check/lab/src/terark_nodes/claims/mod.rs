//! The list of all rows, in the order of the table, with the paper's statements, the targets and
//! the bounds. Decisions 0072, 0102 and 0109 fix them. The functions are pure.
//!
//! `microbenchmarks` has the rows of §5.2 and §5.3 of the paper, `features` those of §5.4,
//! `collection` those of garbage collection (§4.4), `operation` those of repair, take-over, growth
//! and embedded databases (decision 0102), and `costs` the others.

mod collection;
mod costs;
mod features;
mod microbenchmarks;
mod operation;

use super::modes::Mode;
use super::plan::Step;
use super::rows::{Claim, Facts, Subject, times};
use super::run::Run;

/// Share of a bound that a load must reach.
const BOUND_SHARE_MIN: f64 = 0.8;

/// All rows, in the order of the table.
pub(super) fn all() -> Vec<Claim> {
    let parts = [
        microbenchmarks::inserts(),
        microbenchmarks::updates(),
        microbenchmarks::reads(),
        microbenchmarks::scans(),
        microbenchmarks::ycsb(),
        features::redundancy(),
        features::log(),
        features::buffer(),
        features::space(),
        collection::collection(),
        costs::cpu(),
        costs::cost(),
        costs::model(),
        costs::motivation(),
        costs::loopback(),
        operation::recovery(),
        operation::growth(),
        operation::embedded(),
    ];
    parts.into_iter().flatten().collect()
}

/// A row about rates of two modes in one step.
fn rates(subject: Subject, peer: Mode, name: &str, step: Step) -> Claim {
    let rate = move |_: &Facts<'_>, run: &Run| run.rate(step);
    Claim::new(subject, name, "ops/s", rate).over(peer, rate)
}

/// A row about rates of two modes in one step, with the bound of the card. The rates include the
/// time until compaction and garbage collection had settled.
fn settled(subject: Subject, peer: Mode, name: &str, step: Step) -> Claim {
    let Subject { workload, mode, .. } = subject;
    let rate = move |_: &Facts<'_>, run: &Run| run.settled_rate(step);
    Claim::new(subject, name, "ops/s", rate)
        .over(peer, rate)
        .bound(move |facts| facts.card_bound(workload, mode, peer, step).map(times))
}

/// Ratio of rates until settled, over the bound of the card.
fn share_of_bound(subject: Subject, peer: Mode, step: Step) -> Claim {
    let Subject { workload, mode, .. } = subject;
    let share = move |facts: &Facts<'_>, run: &Run| {
        let peers = facts.median(workload, peer, |run| run.settled_rate(step))?;
        let bound = facts.card_bound(workload, mode, peer, step)?;
        Some(run.settled_rate(step)? / peers / bound)
    };
    let name = format!("share of the bound over {}", peer.name());
    Claim::new(subject, &name, "", share)
}
