//! The report as Markdown: rows beside the paper's numbers and the targets, then every figure.

use std::fmt::Write as _;

use comfy_table::CellAlignment;

use super::claims::{Measured, Row};
use super::plan::Side;
use super::run::Figures;
use crate::claim::{markdown, met_cell, target_cell};

/// The tables.
pub(super) fn text(measured: &[Measured<'_>]) -> String {
    let rows: Vec<Row> = measured.iter().flat_map(Measured::rows).collect();
    let mut out = String::new();
    let mut parts: Vec<_> = rows.iter().map(|row| row.part).collect();
    parts.dedup();
    for part in parts {
        let of_part: Vec<&Row> = rows.iter().filter(|row| row.part == part).collect();
        let _ = writeln!(out, "## {}\n\n{}\n", part.title(), ratios(&of_part));
    }
    let _ = writeln!(out, "## The figures behind them (medians)\n\n{}", absolute(measured));
    out
}

fn ratios(rows: &[&Row]) -> String {
    let header =
        ["compared", "result", "rounds, min – max", "figures", "the paper", "target", "met"];
    let mut table = markdown(&header);
    for row in rows {
        let show = |value: f64| match (row.is_seconds, value.is_finite()) {
            (_, false) => "—".to_owned(),
            (true, _) => format!("{value:.1} s"),
            (false, _) => format!("{value:.2}×"),
        };
        table.add_row([
            row.what.clone(),
            show(row.value),
            format!("{} – {}", show(row.min), show(row.max)),
            row.detail.clone(),
            row.paper.to_owned(),
            target_cell(row.target, show),
            met_cell(row.met),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn absolute(measured: &[Measured<'_>]) -> String {
    let mut table = markdown(&[
        "part",
        "workload",
        "keys",
        "jobs",
        "side",
        "ops/s",
        "read P99 ms",
        "write P99 ms",
        "stall s",
        "write amp.",
        "processors busy",
        "hit ratio",
        "copies MiB",
        "copies made",
        "moved in",
        "fast levels",
        "failed",
    ]);
    for one in measured {
        for &side in &one.group.sides {
            if one.middle(side, |figures| Some(figures.ops_per_s)).is_some() {
                table.add_row(absolute_row(one, side));
            }
        }
    }
    table.to_string()
}

fn absolute_row(one: &Measured<'_>, side: Side) -> Vec<String> {
    let figure = |pick: &dyn Fn(&Figures) -> Option<f64>, decimals: usize| {
        let middle = one.middle(side, pick);
        middle.map_or_else(|| "—".to_owned(), |value| format!("{value:.decimals$}"))
    };
    let fastest = |pick: fn(&archipelago_bench::harness::tiers::DeviceOutcome) -> f64| {
        move |figures: &Figures| Some(pick(figures.tiers.as_ref()?.devices.first()?))
    };
    let group = one.group;
    vec![
        format!("{:?}", group.part).to_lowercase(),
        group.workload.name().to_owned(),
        group.keys.name().to_owned(),
        group.jobs.to_string(),
        side.name(),
        figure(&|f| Some(f.ops_per_s), 0),
        figure(&|f| Some(f.read_p99_us? / 1e3), 2),
        figure(&|f| Some(f.write_p99_us? / 1e3), 2),
        figure(&|f| Some(f.stall_s), 1),
        figure(&|f| f.write_amplification, 1),
        figure(&|f| f.processors_busy, 2),
        figure(&fastest(|device| device.hit_ratio), 3),
        figure(&fastest(|device| device.copy_bytes as f64 / 1_048_576.0), 1),
        figure(&fastest(|device| device.copies_made as f64), 0),
        figure(&|f| Some(f.tiers.as_ref()?.devices.iter().map(|d| d.moved_in as f64).sum()), 0),
        figure(&|f| Some(f64::from(f.tiers.as_ref()?.fast_levels)), 0),
        figure(&|f| Some(f.tiers.as_ref()?.failed_jobs as f64), 0),
    ]
}
