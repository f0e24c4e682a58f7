//! The charts of a reproduction: names of files and their SVG texts. The functions are pure.

use super::claims::Measured;
use super::plan::{Keys, Part, Side};
use super::run::Figures;
use crate::plot::{Bars, Chart};

/// All charts with runs: file name and SVG.
pub(super) fn all(measured: &[Measured<'_>]) -> Vec<(String, String)> {
    let plots = [
        ("tiers.svg", speed_up(measured)),
        ("hit-ratio.svg", hit_ratio(measured)),
        ("threads.svg", threads(measured)),
        ("switch.svg", switch(measured)),
    ];
    plots.into_iter().filter_map(|(name, svg)| Some((name.to_owned(), svg?))).collect()
}

fn of<'m, 'a>(measured: &'m [Measured<'a>], part: Part) -> impl Iterator<Item = &'m Measured<'a>> {
    measured.iter().filter(move |one| one.group.part == part)
}

/// The height of a bar, if the group has one.
type Height<'f> = &'f dyn Fn(&Measured<'_>) -> Option<f64>;

/// Bars by workload, with one colour per name of `series`.
fn bars(
    title: &str,
    y_label: &str,
    measured: &[Measured<'_>],
    series: &[(String, Height<'_>)],
) -> Option<String> {
    let mut workloads: Vec<&str> = Vec::new();
    for one in of(measured, Part::Tiers) {
        if !workloads.contains(&one.group.workload.name()) {
            workloads.push(one.group.workload.name());
        }
    }
    let mut chart = Bars::new(title, y_label, &workloads);
    let mut any = false;
    for (name, pick) in series {
        let heights = workloads.iter().map(|workload| {
            let mut groups = of(measured, Part::Tiers);
            groups.find_map(|one| (one.group.workload.name() == *workload).then(|| pick(one))?)
        });
        let heights: Vec<Option<f64>> = heights.collect();
        any |= heights.iter().any(Option::is_some);
        chart = chart.series(name, &heights);
    }
    any.then(|| chart.svg())
}

fn speed(figures: &Figures) -> Option<f64> {
    Some(figures.ops_per_s)
}

/// Bars of tiers next to the slow device.
fn speed_up(measured: &[Measured<'_>]) -> Option<String> {
    let by = |keys: Keys| {
        move |one: &Measured<'_>| {
            let of_keys = one.group.keys == keys;
            let ratio = || Some(one.middle(Side::Tiers, speed)? / one.middle(Side::Slow, speed)?);
            of_keys.then(ratio)?
        }
    };
    let picks = [Keys::Zipf99, Keys::Zipf80, Keys::Uniform].map(|keys| (keys, by(keys)));
    let series: Vec<(String, Height<'_>)> =
        picks.iter().map(|(keys, pick)| (keys.name().to_owned(), pick as _)).collect();
    bars("Tiers against the slow device alone", "times the throughput", measured, &series)
}

/// Hit ratio of the fastest device, and the hit ratio of an oracle.
fn hit_ratio(measured: &[Measured<'_>]) -> Option<String> {
    let ratio = |one: &Measured<'_>, pick: fn(&Figures) -> Option<f64>| {
        (one.group.keys == Keys::Zipf80).then(|| one.middle(Side::Tiers, pick))?
    };
    let hit = |one: &Measured<'_>| ratio(one, |f| Some(f.hits()?.0));
    let half = |one: &Measured<'_>| ratio(one, |f| Some(f.hits()?.1.knows_half));
    let all = |one: &Measured<'_>| ratio(one, |f| Some(f.hits()?.1.knows_all));
    bars(
        "Reads that the fast device served, zipfian 0.80",
        "part of the reads",
        measured,
        &[
            ("tiers".to_owned(), &hit),
            ("oracle, knowing half".to_owned(), &half),
            ("oracle, knowing all".to_owned(), &all),
        ],
    )
}

fn threads(measured: &[Measured<'_>]) -> Option<String> {
    let mut chart = Chart::new(
        "Throughput by number of copying and moving threads",
        "threads",
        "operations per second",
    )
    .x_doubling();
    let mut any = false;
    for one in of(measured, Part::Threads) {
        let fixed = one.group.sides.iter().filter_map(|&side| match side {
            Side::Fixed(threads) => Some((threads as f64, one.middle(side, speed)?)),
            _ => None,
        });
        let fixed: Vec<(f64, f64)> = fixed.collect();
        let (Some(first), Some(last)) = (fixed.first(), fixed.last()) else { continue };
        any = true;
        let name = one.group.workload.name();
        if let Some(own) = one.middle(Side::Tiers, speed) {
            chart = chart.line(&format!("{name}, automatic"), &[(first.0, own), (last.0, own)]);
        }
        chart = chart.line(&format!("{name}, fixed"), &fixed);
    }
    any.then(|| chart.svg())
}

fn switch(measured: &[Measured<'_>]) -> Option<String> {
    let mut groups = of(measured, Part::Switch);
    let one = groups.next()?;
    let run = one.runs.iter().find(|run| run.group == one.place)?;
    let chart = Chart::new("YCSB C, then A, then C", "seconds", "operations per second");
    Some(chart.line("tiers", &run.figures.rates).svg())
}
