//! The rows of the table: figures of the runs, targets, and bounds by arithmetic. The functions are
//! pure. `claims` lists the rows, which decision 0072 fixes.

use serde::Serialize;

use super::bounds::{self, Latencies, Usage};
use super::flags::NodesFlags;
use super::link::Card;
use super::modes::{Mode, Workload};
use super::plan::{Cell, Group, Step};
use super::run::Run;
use super::words::BOUND;
use crate::claim::{Target, median};
use crate::page;
use crate::sides::{Goal, Sides};
use crate::terark_engine::bounds::collected_per_byte;

/// Facts from which the rows follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) flags: &'a NodesFlags,
    /// The runs that were planned for each round.
    pub(super) cells: &'a [Cell],
    pub(super) runs: &'a [Run],
}

/// Function that takes a figure from a run.
pub(super) type Figure = Box<dyn Fn(&Facts<'_>, &Run) -> Option<f64>>;
/// Function that computes a bound, as text.
pub(super) type Bound = Box<dyn Fn(&Facts<'_>) -> Option<String>>;
/// Function that names the cause for which a target was missed; empty if it is not known.
pub(super) type Cause = Box<dyn Fn(&Facts<'_>) -> &'static str>;

/// Subject of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) group: Group,
    pub(super) workload: Workload,
    pub(super) mode: Mode,
}

/// A row before it is measured.
pub(super) struct Claim {
    subject: Subject,
    name: String,
    unit: &'static str,
    card: Card,
    figure: Figure,
    peer: Option<(Mode, Figure)>,
    goal: Goal,
    bound: Option<Bound>,
    paper: &'static str,
    cause: Cause,
    /// Whether the name says all, without workload and card.
    is_alone: bool,
}

/// A row with its figures, for the result file and for the page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) group: Group,
    #[serde(flatten)]
    pub(super) page_row: page::Row,
}

impl Claim {
    /// A row about a figure of one mode on the card of the paper, without a target.
    pub(super) fn new(
        subject: Subject,
        name: &str,
        unit: &'static str,
        figure: impl Fn(&Facts<'_>, &Run) -> Option<f64> + 'static,
    ) -> Self {
        Self {
            subject,
            name: name.to_owned(),
            unit,
            card: Card::Full,
            figure: Box::new(figure),
            peer: None,
            goal: Goal::Open,
            bound: None,
            paper: "",
            cause: Box::new(|_| ""),
            is_alone: false,
        }
    }

    /// The group of the row.
    pub(super) fn group(&self) -> Group {
        self.subject.group
    }

    /// The same row over a figure of another mode.
    pub(super) fn over(
        self,
        mode: Mode,
        figure: impl Fn(&Facts<'_>, &Run) -> Option<f64> + 'static,
    ) -> Self {
        Self { peer: Some((mode, Box::new(figure))), ..self }
    }

    pub(super) fn on(self, card: Card) -> Self {
        Self { card, ..self }
    }

    pub(super) fn at_least(self, ratio: f64) -> Self {
        Self { goal: Goal::Ratio(Target::AtLeast(ratio)), ..self }
    }

    pub(super) fn at_most(self, ratio: f64) -> Self {
        Self { goal: Goal::Ratio(Target::AtMost(ratio)), ..self }
    }

    pub(super) fn not_below(self, least: f64) -> Self {
        Self { goal: Goal::Measured(Target::AtLeast(least)), ..self }
    }

    pub(super) fn within(self, most: f64) -> Self {
        Self { goal: Goal::Measured(Target::AtMost(most)), ..self }
    }

    pub(super) fn each_within(self, at_most: f64) -> Self {
        Self { goal: Goal::Each { at_most }, ..self }
    }

    pub(super) fn bound(self, bound: impl Fn(&Facts<'_>) -> Option<String> + 'static) -> Self {
        Self { bound: Some(Box::new(bound)), ..self }
    }

    pub(super) fn paper(self, paper: &'static str) -> Self {
        Self { paper, ..self }
    }

    pub(super) fn cause(self, cause: &'static str) -> Self {
        self.cause_by(move |_| cause)
    }

    /// The same row with a cause that follows from the figures.
    pub(super) fn cause_by(self, cause: impl Fn(&Facts<'_>) -> &'static str + 'static) -> Self {
        Self { cause: Box::new(cause), ..self }
    }

    /// The same row without workload and card in its name, because its runs have none.
    pub(super) fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    fn what(&self) -> String {
        let Subject { workload, mode, .. } = self.subject;
        let place = match (self.is_alone, self.card) {
            (true, _) => String::new(),
            (false, Card::Full) => format!(", {}", workload.name()),
            (false, card) => format!(", {}, card {}", workload.name(), card.name()),
        };
        let name = &self.name;
        match &self.peer {
            Some((peer, _)) if *peer != mode => {
                format!("{name}{place}: {} / {}", mode.name(), peer.name())
            }
            _ => format!("{name}{place}: {}", mode.name()),
        }
    }

    fn decimals(&self) -> usize {
        match self.unit {
            "ops/s" | "MB/s" | "instructions" | "files" => 0,
            "" => 3,
            _ => 2,
        }
    }
}

/// A ratio as text.
pub(super) fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

impl Facts<'_> {
    /// The runs of a mode with a workload and a card.
    pub(super) fn of(
        &self,
        workload: Workload,
        mode: Mode,
        card: Card,
    ) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| {
            let Cell { workload: its, mode: of, card: on, .. } = run.cell;
            (its, of, on) == (workload, mode, card)
        })
    }

    /// Median of a figure over the rounds of a mode on the card of the paper.
    pub(super) fn median(
        &self,
        workload: Workload,
        mode: Mode,
        figure: impl Fn(&Run) -> Option<f64>,
    ) -> Option<f64> {
        median(&self.of(workload, mode, Card::Full).filter_map(figure).collect::<Vec<f64>>())
    }

    /// Measured rewriting factor W of the mode without separation and with three replicas.
    pub(super) fn rewrites(&self, workload: Workload, step: Step) -> Option<f64> {
        self.median(workload, Mode::InlineR3, |run| run.rewrites(step))
    }

    /// Bytes that the card sends per user byte by arithmetic, from the measured W.
    pub(super) fn sent_per_byte(&self, workload: Workload, mode: Mode, step: Step) -> Option<f64> {
        let rewrites = self.rewrites(workload, step)?;
        let redundancy = mode.redundancy();
        if !mode.is_separated() {
            return Some(bounds::sent_inline(redundancy, rewrites));
        }
        let collected = match step {
            Step::Update => collected_per_byte(BOUND - 1.0),
            _ => 0.0,
        };
        let share = workload.share_in_levels(self.flags);
        Some(bounds::sent_separated(redundancy, rewrites, share, collected))
    }

    /// Highest ratio of rates that the card allows.
    pub(super) fn card_bound(
        &self,
        workload: Workload,
        mode: Mode,
        peer: Mode,
        step: Step,
    ) -> Option<f64> {
        let sent = |mode| self.sent_per_byte(workload, mode, step);
        Some(sent(peer)? / sent(mode)?)
    }

    /// Mean bytes of a record with its key.
    pub(super) fn record_bytes(&self, workload: Workload) -> f64 {
        workload.live_bytes(self.flags) as f64 / workload.records(self.flags) as f64
    }

    /// Processor seconds of client and nodes per gigabyte that a step writes or reads.
    pub(super) fn cpu_per_gb(&self, run: &Run, step: Step) -> Option<f64> {
        let (client, nodes) = run.cpu_s(step)?;
        let bytes = run.user_bytes(step, self.record_bytes(run.cell.workload))?;
        Some((client + nodes) / (bytes / 1e9))
    }

    /// Cost of a mode at the paper's prices, by its storage and its processor time over those of
    /// the mode without separation and with three replicas.
    pub(super) fn cost(&self, workload: Workload, mode: Mode) -> Option<f64> {
        let over = |figure: &dyn Fn(&Run) -> Option<f64>| {
            let own = self.median(workload, mode, figure)?;
            Some(own / self.median(workload, Mode::InlineR3, figure)?)
        };
        let usage = Usage {
            storage: over(&Run::stored_bytes)?,
            put_cpu: over(&|run| self.cpu_per_gb(run, Step::Update))?,
            get_cpu: over(&|run| self.cpu_per_gb(run, Step::Read))?,
        };
        Some(usage.cost())
    }

    /// Mean latency of a small read with this mode, in seconds.
    pub(super) fn small_read_s(&self, mode: Mode) -> Option<f64> {
        self.median(Workload::Pareto1k, mode, |run| run.latency_s(Step::Latency, "read"))
    }

    /// The ratios of read latencies of the model of redundancy that were measured here, by the name
    /// of the backend. With whole rows, a small read and a large one move the same bytes.
    pub(super) fn latencies(&self) -> Vec<(&'static str, Latencies)> {
        let small_s = self.small_read_s(Mode::InlineR3);
        let of = |mode: Mode| Some(self.small_read_s(mode)? / small_s?);
        let large = || {
            let read = |run: &Run| run.latency_s(Step::Latency, "read");
            Some(self.median(Workload::Fixed16k, Mode::Dr, read)? / small_s? - 1.0)
        };
        let own = of(Mode::InlineEc).zip(large()).map(|(small_coded, large_coded)| {
            ("own, reads of cells", Latencies { small_coded, large_coded })
        });
        let rows = of(Mode::InlineEcRows).map(|ratio| {
            let latencies = Latencies { small_coded: ratio, large_coded: ratio };
            ("own, reads of whole rows", latencies)
        });
        own.into_iter().chain(rows).collect()
    }

    /// The rows of the requested groups whose runs were planned. A row whose runs failed has no
    /// figures.
    pub(super) fn rows(&self, claims: &[Claim]) -> Vec<Row> {
        let groups = self.flags.groups();
        let is_wanted = |claim: &&Claim| {
            let Subject { workload, mode, .. } = claim.subject;
            let is_planned = |mode: Mode| {
                let at = (workload, mode, claim.card);
                self.cells.iter().any(|cell| (cell.workload, cell.mode, cell.card) == at)
            };
            groups.contains(&claim.group())
                && is_planned(mode)
                && claim.peer.as_ref().is_none_or(|(peer, _)| is_planned(*peer))
        };
        claims.iter().filter(is_wanted).map(|claim| self.row(claim)).collect()
    }

    fn row(&self, claim: &Claim) -> Row {
        let Subject { group, workload, mode } = claim.subject;
        let figures = |mode, figure: &Figure| -> Vec<(u64, f64)> {
            let runs = self.of(workload, mode, claim.card);
            runs.filter_map(|run| Some((run.round, figure(self, run)?))).collect()
        };
        let theirs = claim.peer.as_ref().map(|(mode, figure)| figures(*mode, figure));
        let sides =
            Sides { ours: figures(mode, &claim.figure), theirs: theirs.unwrap_or_default() };
        let row = page::Row {
            name: claim.what(),
            unit: claim.unit,
            decimals: claim.decimals(),
            bound: claim.bound.as_ref().and_then(|bound| bound(self)).unwrap_or_default(),
            paper: claim.paper.to_owned(),
            cause: (claim.cause)(self),
            ..page::Row::default()
        };
        Row { group, page_row: sides.judge(claim.goal, row) }
    }
}
