//! Comparisons, with the figures of the paper's text and the targets. The functions are pure.

use serde::Serialize;

use super::plan::{Group, Keys, Part, Side, Workload};
use super::run::{Figures, Run};
use crate::claim::{Target, median};
use crate::page::{self, Ratio, RowTarget, Verdict};

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) part: Part,
    pub(super) what: String,
    /// A ratio, or seconds.
    pub(super) value: f64,
    /// Range of the single rounds.
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) is_seconds: bool,
    /// Figure of the first side, and of the side or the bound that it is compared with.
    pub(super) measured: Option<f64>,
    pub(super) peer: Option<f64>,
    /// Unit and digits of these two figures.
    pub(super) unit: &'static str,
    pub(super) decimals: usize,
    /// Further figures that explain it.
    pub(super) detail: String,
    pub(super) paper: &'static str,
    pub(super) target: Option<Target>,
    pub(super) met: Option<bool>,
    /// Cause of a miss that was seen and understood.
    pub(super) cause: &'static str,
}

/// A group and its runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured<'a> {
    pub(super) group: &'a Group,
    pub(super) place: usize,
    pub(super) runs: &'a [Run],
}

impl Measured<'_> {
    /// A figure of each run of a side, by round.
    pub(super) fn values(
        &self,
        side: Side,
        pick: impl Fn(&Figures) -> Option<f64>,
    ) -> Vec<(u64, f64)> {
        let of = self.runs.iter().filter(|run| run.group == self.place && run.side == side);
        of.filter_map(|run| Some((run.round, pick(&run.figures)?))).collect()
    }

    /// The median of a figure of a side.
    pub(super) fn middle(&self, side: Side, pick: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.values(side, pick).into_iter().map(|(_, v)| v).collect();
        median(&values)
    }

    fn name(&self) -> String {
        let Group { workload, keys, jobs, part, .. } = self.group;
        let jobs = match part {
            Part::Placement => format!(", {jobs} background jobs"),
            _ => String::new(),
        };
        match keys {
            Keys::Own => format!("{}{jobs}", workload.name()),
            keys => format!("{}, {}{jobs}", workload.name(), keys.name()),
        }
    }

    /// Cause of a miss of the figure `what` that was seen and understood.
    fn cause(&self, what: &str) -> &'static str {
        let Group { part, workload, keys, .. } = *self.group;
        match (part, workload, keys) {
            (Part::Tiers | Part::Sync, Workload::F, Keys::Uniform) => {
                "Each read-modify-write waits for a read, and at most a quarter of the reads is \
                 fast."
            }
            (Part::Single | Part::Instructions, ..) => {
                "Each table is a record of the namespace, and each read looks at one more object."
            }
            (Part::Tiers | Part::Cache, _, Keys::Uniform) if what.starts_with("hit ratio") => {
                "The oracle knows the random differences between tables, which take longer runs \
                 to measure."
            }
            _ => "",
        }
    }

    fn row(&self, what: &str, values: &[f64], value: f64) -> Row {
        Row {
            part: self.group.part,
            what: format!("{}: {what}", self.name()),
            value,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            is_seconds: false,
            measured: None,
            peer: None,
            unit: "",
            decimals: 0,
            detail: String::new(),
            paper: "—",
            target: None,
            met: None,
            cause: self.cause(what),
        }
    }

    /// The row of the ratio of two sides: of the medians of a figure, and of the figures of each
    /// round.
    fn ratio(
        &self,
        ours: Side,
        theirs: Side,
        pick: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Row> {
        let pairs = self.values(ours, &pick).into_iter().filter_map(|(round, value)| {
            let other = self.values(theirs, &pick).into_iter().find(|(r, _)| *r == round)?;
            Some(value / other.1)
        });
        let (mine, other) = (self.middle(ours, &pick)?, self.middle(theirs, &pick)?);
        let what = format!("{} / {}", ours.name(), theirs.name());
        let row = self.row(&what, &pairs.collect::<Vec<_>>(), mine / other);
        Some(Row { measured: Some(mine), peer: Some(other), ..row })
    }

    fn speed(&self, ours: Side, theirs: Side) -> Option<Row> {
        let row = self.ratio(ours, theirs, |figures| Some(figures.ops_per_s))?;
        Some(Row { unit: "ops/s", ..row })
    }

    /// Rows of the throughput as a fraction of the bound, and of the hits as a fraction of the
    /// oracle's.
    fn copies(&self, side: Side) -> Vec<Row> {
        let mut rows = Vec::new();
        let of_bound = |figures: &Figures| Some(figures.ops_per_s / figures.bound_ops_per_s?);
        let shares: Vec<f64> =
            self.values(side, of_bound).into_iter().map(|(_, value)| value).collect();
        if let Some(share) = median(&shares) {
            let ops = self.middle(side, |f| Some(f.ops_per_s)).unwrap_or(0.0);
            let bound = self.middle(side, |f| f.bound_ops_per_s).unwrap_or(0.0);
            let row = self.row("ops/s of the bound", &shares, share);
            let row = Row { measured: Some(ops), peer: Some(bound), unit: "ops/s", ..row };
            rows.push(row.aims(Target::AtLeast(0.9)));
        }
        let of_oracle = |figures: &Figures| {
            let (hit, oracle) = figures.hits()?;
            Some(hit / oracle.knows_all)
        };
        let shares: Vec<f64> =
            self.values(side, of_oracle).into_iter().map(|(_, value)| value).collect();
        if let Some(share) = median(&shares) {
            let part = |pick: fn(&Figures) -> Option<f64>| self.middle(side, pick).unwrap_or(0.0);
            let detail = format!(
                "an oracle that knows half of the future hits {:.3}, equal shares for all tables \
                 {:.3}",
                part(|f| Some(f.hits()?.1.knows_half)),
                part(|f| Some(f.tiers.as_ref()?.room_share)),
            );
            let row = Row {
                measured: Some(part(|f| Some(f.hits()?.0))),
                peer: Some(part(|f| Some(f.hits()?.1.knows_all))),
                decimals: 3,
                detail,
                ..self.row("hit ratio of the oracle's", &shares, share)
            };
            rows.push(row.aims(Target::AtLeast(0.95)));
        }
        rows
    }

    fn recoveries(&self) -> Vec<Row> {
        let phase = |(place, name): (usize, &str)| {
            let values: Vec<f64> = self
                .values(Side::Tiers, |figures| figures.recovered_s.get(place).copied().flatten())
                .into_iter()
                .map(|(_, value)| value)
                .collect();
            let row = self.row(name, &values, median(&values)?);
            let value = row.value;
            let row = Row {
                what: name.to_owned(),
                is_seconds: true,
                measured: Some(value),
                unit: "s",
                decimals: 1,
                ..row
            };
            Some(row.aims(Target::AtMost(20.0)))
        };
        let phases = ["first C (cold)", "A after C", "C after A"];
        phases.into_iter().enumerate().filter_map(phase).collect()
    }

    /// Ratio of automatic threads to the best fixed number.
    fn automatic(&self) -> Option<Row> {
        let fixed = self.group.sides.iter().copied().filter(|s| matches!(s, Side::Fixed(_)));
        let speed = |figures: &Figures| Some(figures.ops_per_s);
        let best = fixed
            .filter_map(|side| Some((side, self.middle(side, speed)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))?;
        self.speed(Side::Tiers, best.0)
    }

    /// All rows with measured figures.
    pub(super) fn rows(&self) -> Vec<Row> {
        let Group { part, workload, keys, .. } = *self.group;
        let speed = |ours, theirs| self.speed(ours, theirs);
        let pair = speed(Side::Tiers, Side::Slow);
        let mut rows = Vec::new();
        match part {
            Part::Tiers => {
                let least = if workload.is_read_mostly() { None } else { Some(2.2) };
                let row = pair.map(|row| row.says(paper_of_tiers(workload)));
                rows.extend(row.map(|row| least.map_or(row.clone(), |l| row.at_least(l))));
                // No placement can surpass this ratio.
                rows.extend(speed(Side::Fast, Side::Slow));
                if workload.is_read_mostly() {
                    rows.extend(self.copies(Side::Tiers));
                }
            }
            Part::Buffered => {
                rows.extend(pair.map(|row| row.says("up to 2.2×")));
                rows.extend(speed(Side::Fast, Side::Slow));
            }
            Part::Production => {
                let paper = if workload == Workload::Meta { "1.2×" } else { "up to 1.6×" };
                rows.extend(pair.map(|row| row.says(paper)));
            }
            Part::Sync => rows.extend(pair.map(|row| row.says("up to 17×").at_least(4.0))),
            Part::Placement => {
                let row = speed(Side::Tiers, Side::Fast);
                rows.extend(row.map(|row| row.says("up to 1.54× (−35 %)").at_least(1.35)));
            }
            Part::Threads => {
                rows.extend(self.automatic().map(|row| row.says("about 1×").at_least(0.95)));
            }
            Part::Cache => {
                let paper = match keys {
                    Keys::Uniform => "4.5×",
                    Keys::Zipf99 => "1.7×",
                    _ => "—",
                };
                let one = speed(Side::CopiesOnFirst, Side::NoCopies);
                rows.extend(one.map(|row| row.says(paper)));
                let both = speed(Side::Tiers, Side::CopiesOnFirst);
                rows.extend(both.map(|row| row.says("about 1×")));
                rows.extend(self.copies(Side::Tiers));
            }
            Part::Single => {
                rows.extend(speed(Side::OneTier, Side::Local).map(|r| r.at_least(0.95)));
            }
            Part::Instructions => {
                let pick = |figures: &Figures| figures.instructions_per_op;
                let row = self.ratio(Side::OneTier, Side::Local, pick);
                rows.extend(row.map(|row| row.aims(Target::AtMost(1.03))));
            }
            Part::Switch => rows.extend(self.recoveries()),
            Part::Block => {
                let paper = if workload == Workload::A { "up to 2.2×" } else { "up to 1.9×" };
                rows.extend(pair.map(|row| row.says(paper)));
                rows.extend(speed(Side::Tiers, Side::Fast).map(|row| row.says("about 1×")));
            }
        }
        rows
    }
}

impl Row {
    /// The row of the report.
    pub(super) fn page_row(&self) -> page::Row {
        let ratio = Ratio { median: self.value, min: self.min, max: self.max };
        let target = match self.is_seconds {
            true => self.target.map(RowTarget::Measured),
            false => self.target.map(RowTarget::Ratio),
        };
        page::Row {
            name: self.what.clone(),
            unit: self.unit,
            decimals: self.decimals,
            measured: self.measured,
            peer: self.peer,
            ratio: (!self.is_seconds).then_some(ratio),
            paper: if self.paper == "—" { String::new() } else { self.paper.to_owned() },
            target,
            verdict: Verdict::of(self.met),
            cause: self.cause,
            ..page::Row::default()
        }
    }

    fn says(self, paper: &'static str) -> Self {
        Self { paper, ..self }
    }

    fn aims(self, target: Target) -> Self {
        Self { target: Some(target), met: Some(target.is_met(self.value)), ..self }
    }

    fn at_least(self, least: f64) -> Self {
        self.aims(Target::AtLeast(least))
    }
}

/// Figures of the paper's text, with direct I/O where it says so.
fn paper_of_tiers(workload: Workload) -> &'static str {
    match workload {
        Workload::A => "up to 4× (direct I/O), 2.2× (buffered)",
        Workload::F => "up to 2.2× (buffered)",
        Workload::C => "up to 12× (direct I/O), 10× (buffered)",
        Workload::E => "up to 4× (buffered)",
        _ => "up to 10× (buffered)",
    }
}
