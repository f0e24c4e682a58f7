//! The sections of the report: rows next to the paper's numbers and the targets, and every figure,
//! which the page leaves out. The functions are pure.

use super::claims::{Measured, Row};
use super::plan::{Part, Side};
use super::run::Figures;
use crate::page::{Grid, Section};

/// The rows of the report, one section per part.
pub(super) fn sections(measured: &[Measured<'_>]) -> Vec<Section> {
    let rows: Vec<Row> = measured.iter().flat_map(Measured::rows).collect();
    let mut parts: Vec<_> = rows.iter().map(|row| row.part).collect();
    parts.dedup();
    let of = |part: Part| {
        let rows = || rows.iter().filter(|row: &&Row| row.part == part);
        let explained = rows().filter(|row| !row.detail.is_empty());
        Section {
            title: part.title().to_owned(),
            rows: rows().map(Row::page_row).collect(),
            notes: explained.map(|row| format!("{}: {}.", row.what, row.detail)).collect(),
            ..Section::default()
        }
    };
    parts.into_iter().map(of).collect()
}

/// The section with every figure.
pub(super) fn figures(measured: &[Measured<'_>]) -> Section {
    Section {
        title: "The figures of the ratios (medians)".to_owned(),
        grids: vec![absolute(measured)],
        ..Section::default()
    }
}

fn absolute(measured: &[Measured<'_>]) -> Grid {
    let mut table = Grid::new([
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
                table.push(absolute_row(one, side));
            }
        }
    }
    table
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
