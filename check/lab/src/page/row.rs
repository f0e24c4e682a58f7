//! Rows of benchmark tables: a measured figure next to that of a peer or a paper, with a target and
//! a verdict. The functions are pure. The files of results (`report.json`) have these rows as well,
//! so a field of [`Row`] that only pages need is skipped there.

use serde::{Serialize, Serializer};

use super::Grid;
use crate::claim::Target;

/// A figure, the figure that it is compared with, and its target. Without the fields that only the
/// table needs, it is also a row of a result file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    #[serde(rename = "what")]
    pub(crate) name: String,
    /// Unit of `measured` and `peer`, or nothing for a plain number.
    #[serde(skip)]
    pub(crate) unit: &'static str,
    /// Number of digits after the decimal point of `measured` and `peer`.
    #[serde(skip)]
    pub(crate) decimals: usize,
    /// Median of the own side.
    pub(crate) measured: Option<f64>,
    /// Median of the side that it is compared with.
    pub(crate) peer: Option<f64>,
    pub(crate) ratio: Option<Ratio>,
    /// Bound by arithmetic, as text. Empty if there is no such bound.
    pub(crate) bound: String,
    /// Statement of the paper, in its own words. Empty if it says nothing.
    #[serde(skip)]
    pub(crate) paper: String,
    #[serde(skip)]
    pub(crate) target: Option<RowTarget>,
    pub(crate) verdict: Verdict,
    /// Number of rounds in which both sides gave the figure, if the page shows it.
    #[serde(skip)]
    pub(crate) runs: Option<u64>,
    /// Sentence that says why the target was missed. The table shows it only then.
    #[serde(skip)]
    pub(crate) cause: &'static str,
}

/// Ratio of the medians, and the range of the ratios of single rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// A result file gets the median alone.
impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.median.serialize(serializer)
    }
}

/// Target of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowTarget {
    /// Bound of the ratio of the medians.
    Ratio(Target),
    /// Bound of the median of the own side.
    Measured(Target),
    /// Bound of the largest figure of the own side, of which `worst` was measured.
    Worst { at_most: f64, worst: f64 },
}

/// Whether a row reached its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) enum Verdict {
    #[serde(rename = "pass")]
    Met,
    #[serde(rename = "miss")]
    Missed,
    /// Nothing was measured, because runs failed.
    #[serde(rename = "failed")]
    Failed,
    /// There is no target.
    #[default]
    #[serde(rename = "none")]
    NoTarget,
}

impl Verdict {
    /// The verdict for a target that was met, missed or not set.
    pub(crate) fn of(met: Option<bool>) -> Self {
        match met {
            None => Self::NoTarget,
            Some(true) => Self::Met,
            Some(false) => Self::Missed,
        }
    }

    fn cell(self) -> &'static str {
        match self {
            Self::Met => "reached",
            Self::Missed => "**missed**",
            Self::Failed => "**failed**",
            Self::NoTarget => "",
        }
    }
}

/// Cause of a missed target for which a row names none.
const UNKNOWN_CAUSE: &str = "The cause is not known.";

impl Row {
    fn figure(&self, value: Option<f64>) -> String {
        value.map_or_else(String::new, |value| number(value, self.decimals))
    }

    fn measured_cell(&self) -> String {
        match self.target {
            Some(RowTarget::Measured(target)) => self.figure_beside(self.measured, target),
            _ => self.figure(self.measured),
        }
    }

    /// The figure with enough digits to be on the right side of its bound.
    fn figure_beside(&self, value: Option<f64>, target: Target) -> String {
        value.map_or_else(String::new, |value| beside(value, self.decimals, target))
    }

    fn ratio_cell(&self) -> String {
        let Some(ratio) = self.ratio.filter(|ratio| ratio.median.is_finite()) else {
            return String::new();
        };
        match self.target {
            Some(RowTarget::Ratio(target)) => format!("{}×", beside(ratio.median, 2, target)),
            _ => format!("{}×", number(ratio.median, 2)),
        }
    }

    fn rounds_cell(&self) -> String {
        // A single round has no range.
        let has_range = |ratio: &Ratio| ratio.min.is_finite() && ratio.min < ratio.max;
        let range = self.ratio.filter(has_range);
        range.map_or_else(String::new, |ratio| format!("{:.2}× – {:.2}×", ratio.min, ratio.max))
    }

    fn target_cell(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        match self.target {
            None => String::new(),
            Some(RowTarget::Ratio(Target::AtLeast(bound))) => format!("≥ {bound}×"),
            Some(RowTarget::Ratio(Target::AtMost(bound))) => format!("≤ {bound}×"),
            Some(RowTarget::Measured(Target::AtLeast(bound))) => format!("≥ {bound}{unit}"),
            Some(RowTarget::Measured(Target::AtMost(bound))) => format!("≤ {bound}{unit}"),
            Some(RowTarget::Worst { at_most, .. }) => format!("each run ≤ {at_most}{unit}"),
        }
    }

    fn worst_cell(&self) -> String {
        match self.target {
            Some(RowTarget::Worst { worst, .. }) => self.figure(Some(worst)),
            _ => String::new(),
        }
    }

    fn cause_cell(&self) -> String {
        match (self.verdict, self.cause) {
            (Verdict::Missed, "") => UNKNOWN_CAUSE.to_owned(),
            (Verdict::Missed, cause) => cause.to_owned(),
            _ => String::new(),
        }
    }
}

/// `value` with `decimals` digits after the point, and with a comma before each three digits.
fn number(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return String::new();
    }
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// `value` with `decimals` digits, or with more if rounding moved it across the bound.
fn beside(value: f64, decimals: usize, target: Target) -> String {
    let shown = format!("{value:.decimals$}").parse().unwrap_or(value);
    let is_right = target.is_met(shown) == target.is_met(value);
    number(value, if is_right { decimals } else { decimals + 3 })
}

type Column = (&'static str, fn(&Row) -> String);

/// All columns, in order. A table leaves out those that are empty in all of its rows.
const COLUMNS: [Column; 13] = [
    ("row", |row| row.name.clone()),
    ("measured", Row::measured_cell),
    ("largest", Row::worst_cell),
    ("peer", |row| row.figure(row.peer)),
    ("unit", |row| row.unit.to_owned()),
    ("ratio", Row::ratio_cell),
    ("rounds", Row::rounds_cell),
    ("bound", |row| row.bound.clone()),
    ("paper", |row| row.paper.clone()),
    ("target", Row::target_cell),
    ("verdict", |row| row.verdict.cell().to_owned()),
    ("runs", |row| row.runs.map_or_else(String::new, |runs| runs.to_string())),
    ("cause", Row::cause_cell),
];

/// The rows as a table.
pub(super) fn table(rows: &[Row]) -> Grid {
    let columns = COLUMNS.iter().filter(|(_, cell)| rows.iter().any(|row| !cell(row).is_empty()));
    let columns: Vec<&Column> = columns.collect();
    let cells = |row: &Row| columns.iter().map(|(_, cell)| cell(row)).collect();
    Grid {
        header: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
        rows: rows.iter().map(cells).collect(),
    }
}
