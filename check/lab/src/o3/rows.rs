//! The rows of the table: figures of the runs, targets, and bounds by arithmetic. The functions are
//! pure. `claims` lists the rows, which decision 0087 fixes.

use serde::Serialize;

use super::flags::O3Flags;
use super::plan::{Cell, Group, Plan};
use super::run::Run;
use crate::claim::{Target, median};
use crate::page;
use crate::sides::{Goal, Sides};

/// Facts from which rows follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) flags: &'a O3Flags,
    pub(super) plan: &'a Plan,
    pub(super) runs: &'a [Run],
}

/// Function that takes a figure from a run.
type Figure = Box<dyn Fn(&Facts<'_>, &Run) -> Option<f64>>;

/// A row before it is measured.
pub(super) struct Claim {
    pub(super) group: Group,
    cell: Cell,
    name: String,
    unit: &'static str,
    figure: Figure,
    peer: Option<(Cell, Figure)>,
    goal: Goal,
    bound: String,
    paper: &'static str,
    cause: &'static str,
}

/// A row with its figures, for the result file and for the page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) group: Group,
    #[serde(flatten)]
    pub(super) page_row: page::Row,
    /// Statement of the paper, for the result file.
    paper: String,
}

/// A row that was not measured, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Unmeasured {
    pub(super) group: Group,
    pub(super) what: String,
    pub(super) paper: String,
    pub(super) bound: String,
    pub(super) target: String,
    pub(super) why: String,
}

impl Row {
    /// The row of a group that a page shows in this way.
    pub(super) fn new(group: Group, page_row: page::Row) -> Self {
        Self { group, paper: page_row.paper.clone(), page_row }
    }
}

impl Claim {
    /// A row about a figure of one cell, without a target.
    pub(super) fn new(
        group: Group,
        cell: Cell,
        name: &str,
        figure: impl Fn(&Facts<'_>, &Run) -> Option<f64> + 'static,
    ) -> Self {
        Self {
            group,
            cell,
            name: name.to_owned(),
            unit: "",
            figure: Box::new(figure),
            peer: None,
            goal: Goal::Open,
            bound: String::new(),
            paper: "",
            cause: "",
        }
    }

    /// The same row over the same figure of another cell.
    pub(super) fn over(
        self,
        cell: Cell,
        figure: impl Fn(&Facts<'_>, &Run) -> Option<f64> + 'static,
    ) -> Self {
        Self { peer: Some((cell, Box::new(figure))), ..self }
    }

    pub(super) fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
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

    pub(super) fn bound(self, bound: String) -> Self {
        Self { bound, ..self }
    }

    pub(super) fn paper(self, paper: &'static str) -> Self {
        Self { paper, ..self }
    }

    pub(super) fn cause(self, cause: &'static str) -> Self {
        Self { cause, ..self }
    }

    fn what(&self) -> String {
        let (name, own) = (&self.name, &self.cell);
        let load = format!("{}, {}", own.load.name(), own.link.name());
        match &self.peer {
            None => format!("{name}, {}", own.name()),
            // If only the modes differ, the row names the rest once.
            Some((peer, _)) if Cell { mode: own.mode, ..*peer } == *own => {
                let shm = if own.shm { ", shm" } else { "" };
                format!("{name}, {load}{shm}: {} / {}", own.mode.name(), peer.mode.name())
            }
            Some((peer, _)) => format!("{name}: {} / {}", own.name(), peer.name()),
        }
    }

    /// The target as text.
    fn target(&self) -> String {
        let of = |target: Target, unit: &str| match target {
            Target::AtLeast(least) => format!("≥ {least}{unit}"),
            Target::AtMost(most) => format!("≤ {most}{unit}"),
        };
        match self.goal {
            Goal::Ratio(target) => of(target, "×"),
            Goal::Measured(target) => of(target, ""),
            Goal::Each { at_most } => format!("≤ {at_most}"),
            Goal::Open => String::new(),
        }
    }

    fn cells(&self) -> impl Iterator<Item = &Cell> {
        std::iter::once(&self.cell).chain(self.peer.iter().map(|(cell, _)| cell))
    }

    fn decimals(&self) -> usize {
        match self.unit {
            "ops/s" | "stops" | "B" => 0,
            "MB/s" => 1,
            "" => 3,
            _ => 2,
        }
    }
}

/// A ratio with the digits that tables show.
pub(super) fn rounded(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

/// A ratio as text.
pub(super) fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

impl Facts<'_> {
    /// The runs of a cell.
    pub(super) fn of<'s>(&'s self, cell: &'s Cell) -> impl Iterator<Item = &'s Run> {
        self.runs.iter().filter(move |run| run.cell == *cell)
    }

    /// Median of a figure over the rounds of a cell.
    pub(super) fn median(&self, cell: &Cell, figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(&self.of(cell).filter_map(figure).collect::<Vec<f64>>())
    }

    fn is_planned(&self, cell: &Cell) -> bool {
        self.plan.cells.contains(cell)
    }

    /// The rows of the requested groups whose cells were planned.
    pub(super) fn rows(&self, claims: &[Claim]) -> Vec<Row> {
        let groups = self.flags.groups();
        let planned = |claim: &&Claim| {
            groups.contains(&claim.group) && claim.cells().all(|cell| self.is_planned(cell))
        };
        claims.iter().filter(planned).map(|claim| self.row(claim)).collect()
    }

    fn row(&self, claim: &Claim) -> Row {
        let figures = |cell: &Cell, figure: &Figure| -> Vec<(u64, f64)> {
            self.of(cell).filter_map(|run| Some((run.round, figure(self, run)?))).collect()
        };
        let theirs = claim.peer.as_ref().map(|(cell, figure)| figures(cell, figure));
        let sides =
            Sides { ours: figures(&claim.cell, &claim.figure), theirs: theirs.unwrap_or_default() };
        let row = page::Row {
            name: claim.what(),
            unit: claim.unit,
            decimals: claim.decimals(),
            bound: claim.bound.clone(),
            paper: claim.paper.to_owned(),
            cause: claim.cause,
            ..page::Row::default()
        };
        Row::new(claim.group, sides.judge(claim.goal, row))
    }

    /// The rows of the requested groups whose modes the program refuses.
    pub(super) fn refused(&self, claims: &[Claim]) -> Vec<Unmeasured> {
        let groups = self.flags.groups();
        let why = |claim: &Claim| {
            let refused = |cell: &Cell| self.plan.refused.iter().find(|one| one.0 == *cell);
            let (cell, why) = claim.cells().find_map(refused)?;
            Some(format!("{}: {why}", cell.mode.name()))
        };
        let wanted = claims.iter().filter(|claim| groups.contains(&claim.group));
        let rows = wanted.filter_map(|claim| {
            Some(Unmeasured {
                group: claim.group,
                what: claim.what(),
                paper: claim.paper.to_owned(),
                bound: claim.bound.clone(),
                target: claim.target(),
                why: why(claim)?,
            })
        });
        rows.collect()
    }
}
