//! Targets that a paper or this project sets for a figure, and how a report shows the verdict. The
//! functions do no I/O.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use serde::Serialize;

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    /// Whether `value` is so; a figure that is no number never is.
    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

/// A target as a cell; `show` writes a figure.
pub(crate) fn target_cell(target: Option<Target>, show: impl Fn(f64) -> String) -> String {
    match target {
        None => "—".to_owned(),
        Some(Target::AtLeast(least)) => format!("≥ {}", show(least)),
        Some(Target::AtMost(most)) => format!("≤ {}", show(most)),
    }
}

/// Whether a target is met, as a cell.
pub(crate) fn met_cell(met: Option<bool>) -> String {
    match met {
        None => "—",
        Some(true) => "yes",
        Some(false) => "**no**",
    }
    .to_owned()
}

/// The middle of `values`; none without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        _ => Some(sorted[middle]),
    }
}

/// An empty Markdown table.
pub(crate) fn markdown(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(header.iter().copied());
    table
}
