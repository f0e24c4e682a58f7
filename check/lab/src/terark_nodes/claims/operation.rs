//! Rows of repairs and take-overs, of growth in virtual time, and of embedded databases.

use super::super::embedded::{EmbeddedFigures, differing};
use super::super::events::{RepairFigures, TakeOverFigures};
use super::super::growth;
use super::super::link::Card;
use super::super::modes::{Mode, Workload};
use super::super::plan::Group;
use super::super::rows::{Claim, Facts, Subject};
use super::super::run::Run;
use crate::claim::median;
use crate::counted::COUNTED;

/// Time of a repair over the time that rates and bytes allow, at most.
const REPAIR_TIME_MAX: f64 = 1.2;
/// P99 of reads during a repair over that before the loss, at most.
const REPAIR_P99_MAX: f64 = 1.3;
/// Seconds of a take-over in addition to the lease, at most.
const TAKE_OVER_MAX_S: f64 = 2.0;
/// Numbers of nodes whose throughput is compared with that of six.
const GROWN_NODES: [u64; 4] = [12, 24, 36, 60];
/// Share of linear growth that a cluster must reach, and share of the clients' cards from which
/// they count as full.
const LINEAR_SHARE_MIN: f64 = 0.9;
const CLIENT_CARD_SHARE_MIN: f64 = 0.9;
/// Rate over that of an earlier program, at least.
const EMBEDDED_RATE_MIN: f64 = 0.97;
/// Instructions over those of an earlier program, at most.
const EMBEDDED_INSTRUCTIONS_MAX: f64 = 1.02;
/// Bound of rows whose both sides do the same work.
const SAME_WORK: &str = "1.00×: the same work";

/// A workload that the rows of this module do not depend on.
const WORKLOAD: Workload = Workload::Fixed16k;

/// The mode of repairs and take-overs.
const RECOVERED: Subject = Subject { group: Group::Recovery, workload: WORKLOAD, mode: Mode::Dr };

pub(super) fn recovery() -> Vec<Claim> {
    let mut rows = Vec::from(repairs());
    rows.extend(reads_of_repairs());
    rows.extend(take_overs());
    rows
}

fn repairs() -> [Claim; 2] {
    let share = |_: &Facts<'_>, run: &Run| {
        let found = run.repair()?;
        over(found.seconds?, found.allowed_seconds)
    };
    let name = "repair of a lost node, over the time that rate and bytes allow";
    [
        Claim::new(RECOVERED, name, "", share)
            .within(REPAIR_TIME_MAX)
            .bound(|_| Some("≥ 1.00".to_owned()))
            .cause(
                "A repair also waits for the manager's look at the members, and for its orders.",
            ),
        Claim::new(RECOVERED, "repair of a lost node", "s", |_, run| run.repair()?.seconds).bound(
            |facts| {
                let least = middle(facts, Card::Full, |run| Some(run.repair()?.allowed_seconds))?;
                Some(format!("≥ {least:.2} s"))
            },
        ),
    ]
}

fn reads_of_repairs() -> [Claim; 2] {
    let p99_ms = |figure: fn(&RepairFigures) -> Option<f64>| {
        move |_: &Facts<'_>, run: &Run| figure(run.repair()?).map(|p99_s| p99_s * 1e3)
    };
    let row = |name: &str, figure: fn(&RepairFigures) -> Option<f64>| {
        Claim::new(RECOVERED, name, "ms", p99_ms(figure))
            .over(RECOVERED.mode, p99_ms(|found| found.healthy_p99_s))
            .bound(|_| Some("≥ 1.00×".to_owned()))
    };
    [
        row("P99 of reads during the repair over that before the loss", |found| found.repair_p99_s)
            .at_most(REPAIR_P99_MAX)
            .cause("A read of a part that is lost reads four others, also without a repair."),
        row("P99 of reads between the loss and the repair, over that before", |found| {
            found.degraded_p99_s
        }),
    ]
}

fn take_overs() -> [Claim; 2] {
    let row = |name: &str, unit: &'static str, figure: fn(&TakeOverFigures) -> f64| {
        let taken = move |_: &Facts<'_>, run: &Run| run.take_over().map(figure);
        Claim::new(RECOVERED, name, unit, taken).on(Card::Absent)
    };
    [
        row("take-over after kill -9, without the lease", "s", |found| {
            found.seconds - found.lease_seconds
        })
        .within(TAKE_OVER_MAX_S)
        .bound(|facts| {
            let least = middle(facts, Card::Absent, |run| Some(run.take_over()?.usual_seconds))?;
            Some(format!("≥ {least:.2} s: an opening without a log"))
        })
        .cause("The next owner recovers the log and reads it into memtables."),
        row("log that the next owner recovers", "MiB", |found| {
            found.log_bytes as f64 / 1_048_576.0
        }),
    ]
}

/// A figure over another one that is positive.
fn over(value: f64, base: f64) -> Option<f64> {
    (base > 0.0).then(|| value / base)
}

/// Median of a figure over the runs of recovery with this card.
fn middle(facts: &Facts<'_>, card: Card, figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    median(&facts.of(WORKLOAD, Mode::Dr, card).filter_map(figure).collect::<Vec<f64>>())
}

pub(super) fn growth() -> Vec<Claim> {
    let mode = Mode::Simulated;
    let subject = Subject { group: Group::Growth, workload: WORKLOAD, mode };
    let linear = |nodes: u64| {
        let name = format!("throughput of {nodes} nodes, over {} times that of 6", nodes / 6);
        let share = move |_: &Facts<'_>, run: &Run| growth::linear_share(run.growth()?, nodes);
        Claim::new(subject, &name, "", share)
            .not_below(LINEAR_SHARE_MIN)
            .bound(move |facts| {
                let mut runs = facts.of(WORKLOAD, mode, Card::Absent);
                let most = runs.find_map(|run| growth::linear_share_max(run.growth()?, nodes))?;
                Some(format!("≤ {most:.3}: the cards"))
            })
            .cause("Placement by chance leaves some cards idle.")
    };
    let full = |_: &Facts<'_>, run: &Run| growth::full_client_share(run.growth()?);
    let name = "share of the clients' cards, of two clients and 60 nodes";
    let mut rows: Vec<Claim> = GROWN_NODES.into_iter().map(linear).collect();
    rows.push(
        Claim::new(subject, name, "", full)
            .not_below(CLIENT_CARD_SHARE_MIN)
            .bound(|_| Some("≤ 1.000".to_owned())),
    );
    rows.into_iter().map(|row| row.on(Card::Absent).alone()).collect()
}

pub(super) fn embedded() -> Vec<Claim> {
    let peer = Mode::EmbeddedBefore;
    let subject = Subject { group: Group::Embedded, workload: WORKLOAD, mode: Mode::Embedded };
    let row = |name: &str,
               unit: &'static str,
               figure: fn(&EmbeddedFigures, &str) -> Option<f64>,
               benchmark: &'static str| {
        let value = move |_: &Facts<'_>, run: &Run| figure(run.embedded()?, benchmark);
        Claim::new(subject, name, unit, value)
            .over(peer, value)
            .bound(|_| Some(SAME_WORK.to_owned()))
    };
    let mut rows: Vec<Claim> = Vec::new();
    for benchmark in COUNTED {
        let rate = |found: &EmbeddedFigures, benchmark: &str| found.rates.get(benchmark).copied();
        rows.push(row(benchmark, "ops/s", rate, benchmark).at_least(EMBEDDED_RATE_MIN));
    }
    for benchmark in COUNTED {
        let count =
            |found: &EmbeddedFigures, benchmark: &str| found.instructions.get(benchmark).copied();
        let name = format!("instructions per operation, {benchmark}");
        rows.push(row(&name, "instructions", count, benchmark).at_most(EMBEDDED_INSTRUCTIONS_MAX));
    }
    let files = move |facts: &Facts<'_>, run: &Run| {
        let has_files = |found: &&EmbeddedFigures| !found.files.is_empty();
        let ours = run.embedded().filter(has_files)?;
        let mut others = facts.of(WORKLOAD, peer, Card::Absent);
        let theirs = others.find_map(|run| run.embedded().filter(has_files))?;
        Some(differing(&ours.files, &theirs.files) as f64)
    };
    rows.push(
        Claim::new(subject, "files that differ from those of the earlier program", "files", files)
            .within(0.0)
            .bound(|_| Some("≥ 0".to_owned())),
    );
    rows.into_iter().map(|row| row.on(Card::Absent).alone()).collect()
}
