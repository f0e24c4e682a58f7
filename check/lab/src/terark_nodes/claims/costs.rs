//! Rows of processor time (Figure 17), cost (Table 4), the model of redundancy (Figure 7), the
//! motivation (Figures 3 and 4), and of runs without emulation.

use super::super::bounds;
use super::super::link::{Card, Link};
use super::super::modes::{Mode, Workload};
use super::super::plan::{Group, Step};
use super::super::rows::{Claim, Facts, Subject, times};
use super::super::run::Run;
use super::super::words::{BLOCK_BYTES, CELL_BYTES};
use super::{BOUND_SHARE_MIN, rates};
use crate::claim::median;

pub(super) fn cpu() -> Vec<Claim> {
    let workload = Workload::Mixed8k;
    let subject = |mode| Subject { group: Group::Cpu, workload, mode };
    let seconds = |facts: &Facts<'_>, run: &Run| facts.cpu_per_gb(run, Step::Update);
    let row = |mode: Mode, peer: Mode| {
        let name = "processor time of client and nodes per GB updated, s";
        Claim::new(subject(mode), name, "s", seconds).over(peer, seconds)
    };
    let cores = |step: Step| move |_: &Facts<'_>, run: &Run| run.cores(step);
    let busy = |mode: Mode, peer: Mode, name: &str, step: Step| {
        Claim::new(subject(mode), name, "cores", cores(step)).over(peer, cores(step))
    };
    vec![
        row(Mode::Dr, Mode::SeparatedR3)
            .at_most(0.85)
            .bound(move |facts| {
                let sent = |mode| facts.sent_per_byte(workload, mode, Step::Update);
                Some(times(sent(Mode::Dr)? / sent(Mode::SeparatedR3)?))
            })
            .paper("less than EC"),
        row(Mode::SeparatedEc, Mode::SeparatedR3),
        busy(Mode::AllOn, Mode::Dr, "cores busy during updates", Step::Update)
            .paper("adaptive log +0.41, garbage collection −0.54 cores"),
        busy(Mode::AllOn, Mode::Dr, "cores busy during reads", Step::Read)
            .paper("index in memory +0.97 cores"),
    ]
}

pub(super) fn cost() -> Vec<Claim> {
    let workload = Workload::Mixed8k;
    let subject = Subject { group: Group::Cost, workload, mode: Mode::AllOn };
    let others = [Mode::InlineR3, Mode::InlineEc, Mode::SeparatedR3, Mode::SeparatedEc];
    let of = move |mode: Mode| move |facts: &Facts<'_>, _: &Run| facts.cost(workload, mode);
    let over_cheapest = move |facts: &Facts<'_>, _: &Run| {
        let costs = others.map(|mode| facts.cost(workload, mode));
        let cheapest = costs.into_iter().flatten().reduce(f64::min)?;
        Some(facts.cost(workload, Mode::AllOn)? / cheapest)
    };
    vec![
        Claim::new(subject, "cost over that of the cheapest other mode", "", over_cheapest)
            .within(0.8)
            .paper("−22.7 % (0.4106 over 0.5313)"),
        Claim::new(subject, "cost at the paper's prices", "USD", of(Mode::AllOn))
            .over(Mode::InlineR3, of(Mode::InlineR3))
            .at_most(0.5)
            .paper("−58.6 % (0.4106 over 0.9912)"),
    ]
}

pub(super) fn model() -> Vec<Claim> {
    let subject = |workload, mode| Subject { group: Group::Model, workload, mode };
    let latency_ms = |_: &Facts<'_>, run: &Run| Some(1e3 * run.latency_s(Step::Latency, "read")?);
    let small = |mode: Mode| {
        let name = "latency of a small read, ms (K_s)";
        Claim::new(subject(Workload::Pareto1k, mode), name, "ms", latency_ms)
            .over(Mode::InlineR3, latency_ms)
            .paper("1.3×")
    };
    vec![
        small(Mode::InlineEc).bound(|_| Some("about 1×: a read of one cell".to_owned())),
        small(Mode::InlineEcRows).bound(|facts| {
            let link = Link::new(Card::Full, facts.flags.scale)?;
            let (cell, block) = (link.read_s(CELL_BYTES as f64), link.read_s(BLOCK_BYTES as f64));
            Some(format!("≤ {}: a cell by each of four connections", times(cell / block)))
        }),
        Claim::new(
            subject(Workload::Fixed16k, Mode::Dr),
            "large coded read over small replicated read (K_l)",
            "",
            |facts, run| {
                let small = facts.small_read_s(Mode::InlineR3)?;
                Some((run.latency_s(Step::Latency, "read")? - small) / small)
            },
        )
        .paper("1.5"),
        Claim::new(
            subject(Workload::Fixed16k, Mode::Dr),
            "least ratio of mixed over coded files at α ≤ 0.1, by the paper's K",
            "",
            |_, _| {
                let tables = (0..=100).map(|at| f64::from(at) / 1000.0);
                let both = tables.flat_map(|tables| (0..=100).map(move |at| (tables, at)));
                let ratios = both.map(|(tables, at)| {
                    let small = f64::from(at) / 100.0;
                    bounds::mixed_over_coded(bounds::Latencies::PAPER, tables, small)
                });
                ratios.reduce(f64::min)
            },
        )
        .not_below(1.0)
        .paper("above 1 below α = 0.1"),
    ]
}

pub(super) fn motivation() -> Vec<Claim> {
    use Mode::{
        InlineNoLog, InlineR3, LocalInline, LocalInlineNoLog, LocalSeparated, LocalSeparatedNoLog,
        SeparatedNoLog, SeparatedR3,
    };
    let workload = Workload::Mixed8k;
    let row = |mode: Mode, peer: Mode, step: Step, paper: &'static str| {
        let subject = Subject { group: Group::Motivation, workload, mode };
        let name = if step == Step::Read { "read" } else { "update" };
        rates(subject, peer, name, step).paper(paper)
    };
    vec![
        row(InlineR3, LocalInline, Step::Update, "−34.9 % (RS over LS)"),
        row(InlineNoLog, InlineR3, Step::Update, "+38.4 % (RD over RS)"),
        row(InlineNoLog, LocalInlineNoLog, Step::Update, "−45.5 % (RD over LD)"),
        row(SeparatedR3, InlineR3, Step::Update, "3.8× (TerarkDB over RocksDB)"),
        row(SeparatedR3, LocalSeparated, Step::Update, "−44.9 % (TerarkDB, RS over LS)"),
        row(SeparatedNoLog, LocalSeparatedNoLog, Step::Update, ""),
        row(InlineR3, LocalInline, Step::Read, "latency 1.21× to 1.68× below 16 threads"),
    ]
}

pub(super) fn loopback() -> Vec<Claim> {
    let workload = Workload::Fixed16k;
    let subject = Subject { group: Group::Loopback, workload, mode: Mode::Dr };
    let row =
        |name: &str, step: Step| rates(subject, Mode::LocalSeparated, name, step).on(Card::Absent);
    let share = |facts: &Facts<'_>, run: &Run| {
        let runs = facts.of(Workload::Fixed16k, Mode::LocalSeparated, Card::Absent);
        let rates: Vec<f64> = runs.filter_map(|run| run.rate(Step::LoopFill)).collect();
        let ratio = run.rate(Step::LoopFill)? / median(&rates)?;
        Some(ratio / cpu_bound(facts)?)
    };
    vec![
        row("fillrandom", Step::LoopFill)
            .at_least(0.5)
            .bound(|facts| cpu_bound(facts).map(times))
            .cause("Client and nodes share the processors, whose time is the bound."),
        Claim::new(subject, "fillrandom, share of the bound by processor time", "", share)
            .on(Card::Absent)
            .not_below(BOUND_SHARE_MIN),
        row("readrandom, warm", Step::LoopRead).at_least(0.9),
    ]
}

/// Rate of a load whose only limit is the processor time of client and nodes, over the rate of the
/// local disk.
fn cpu_bound(facts: &Facts<'_>) -> Option<f64> {
    let of = |mode: Mode, figure: &dyn Fn(&Run) -> Option<f64>| {
        let runs = facts.of(Workload::Fixed16k, mode, Card::Absent);
        median(&runs.filter_map(figure).collect::<Vec<f64>>())
    };
    let per_op_s = of(Mode::Dr, &|run| {
        let (client, nodes) = run.cpu_s(Step::LoopFill)?;
        Some((client + nodes) / run.main(Step::LoopFill)?.ops as f64)
    })?;
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    let local = of(Mode::LocalSeparated, &|run| run.rate(Step::LoopFill))?;
    Some(cores / per_op_s / local)
}
