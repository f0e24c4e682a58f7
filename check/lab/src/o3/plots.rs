//! The charts: names of files and their SVG texts. The functions are pure.

use super::bounds::{Factors, SCALE, StorageLink, cluster};
use super::modes::Mode;
use super::plan::{
    CACHE_BYTES, Cell, DATABASES, FLUSHED, Keys, LOCAL_OF_TEN, Load, MEMTABLES, RespLoad,
    STALL_MEMTABLES, SeveralKind, Share, Value, cached_reads, several,
};
use super::rows::Facts;
use super::run::Run;
use super::words::{BURST_MEMTABLES, SEVERAL_VALUE};
use crate::plot::{Bars, Chart};

const WIDE: StorageLink = StorageLink::TwoAndAHalf;

/// The modes of the charts.
const MODES: [Mode; 6] = [
    Mode::OffClassic,
    Mode::Off,
    Mode::CompactionsClassic,
    Mode::Compactions,
    Mode::All,
    Mode::AllSecond,
];

/// All charts that have figures.
pub(super) fn all(facts: &Facts<'_>) -> Vec<(String, String)> {
    let values = Value::ALL.map(|value| (value.name().to_owned(), Load::Fill(value)));
    let mixed = Value::ALL.map(|value| (value.name().to_owned(), Load::Mixed(value)));
    let ycsb = Share::ALL.into_iter().flat_map(|share| {
        let of = move |keys: Keys| {
            (format!("{} {}", share.name(), keys.name()), Load::Ycsb(share, keys))
        };
        Keys::ALL.map(of)
    });
    let resp = RespLoad::ALL.map(|load| (load.name(), Load::Resp(load)));
    let charts = [
        ("fillrandom-1g.svg", bars(facts, "Random writes, 1G", StorageLink::One, &values)),
        ("fillrandom-2g5.svg", bars(facts, "Random writes, 2.5G", WIDE, &values)),
        ("mixed-2g5.svg", bars(facts, "Equally many reads and writes, 2.5G", WIDE, &mixed)),
        ("ycsb.svg", bars(facts, "YCSB, 2.5G", WIDE, &ycsb.collect::<Vec<_>>())),
        ("resp.svg", bars(facts, "A Redis server, 2.5G", WIDE, &resp)),
        ("stability.svg", stability(facts)),
        ("stalls.svg", stalls(facts)),
        ("flushes.svg", flushes(facts)),
        ("memtables.svg", memtables(facts)),
        ("local-share.svg", local_share(facts)),
        ("offset-cache.svg", offset_cache(facts)),
        ("databases.svg", databases(facts)),
        ("databases-memory.svg", databases_memory(facts)),
    ];
    charts.into_iter().filter_map(|(name, svg)| Some((name.to_owned(), svg?))).collect()
}

/// Bars of all modes in groups of loads; none if no mode has a figure.
fn bars(
    facts: &Facts<'_>,
    title: &str,
    link: StorageLink,
    loads: &[(String, Load)],
) -> Option<String> {
    let names: Vec<&str> = loads.iter().map(|(name, _)| name.as_str()).collect();
    let mut chart = Bars::new(title, "ops/s", &names);
    let mut has_bars = false;
    for mode in MODES {
        let height = |load: Load| facts.median(&Cell::new(mode, link, load), Run::rate);
        let heights: Vec<Option<f64>> = loads.iter().map(|(_, load)| height(*load)).collect();
        if heights.iter().any(Option::is_some) {
            has_bars = true;
            chart = chart.series(mode.name(), &heights);
        }
    }
    has_bars.then(|| chart.svg())
}

/// Operations of each second of random writes, as in Figure 15.
fn stability(facts: &Facts<'_>) -> Option<String> {
    let mut chart = Chart::new("Random writes over time, 2.5G", "seconds", "ops/s");
    let mut has_lines = false;
    for mode in MODES {
        let cell = Cell::new(mode, WIDE, Load::Fill(Value::Small));
        let series = facts.of(&cell).find_map(|run| Some(&run.timeline.as_ref()?.per_second));
        let Some(series) = series.filter(|series| series.len() > 1) else { continue };
        has_lines = true;
        let points = series.iter().enumerate();
        let points: Vec<(f64, f64)> = points.map(|(second, &ops)| (second as f64, ops)).collect();
        chart = chart.line(mode.name(), &points);
    }
    has_lines.then(|| chart.svg())
}

/// A line through the medians of cells; none if fewer than two have a figure.
fn curve(
    facts: &Facts<'_>,
    cells: impl Iterator<Item = (f64, Cell)>,
    figure: impl Fn(&Run) -> Option<f64>,
) -> Option<Vec<(f64, f64)>> {
    let point = |(x, cell): (f64, Cell)| Some((x, facts.median(&cell, &figure)?));
    let points: Vec<(f64, f64)> = cells.filter_map(point).collect();
    (points.len() > 1).then_some(points)
}

fn small(mode: Mode) -> Cell {
    Cell::new(mode, WIDE, Load::Fill(Value::Small))
}

fn stalls(facts: &Facts<'_>) -> Option<String> {
    let cells =
        STALL_MEMTABLES.map(|count| (f64::from(count), small(Mode::DmNaive).with_remote(count)));
    let stops = |run: &Run| Some(run.timeline.as_ref()?.stops as f64);
    let points = curve(facts, cells.into_iter(), stops)?;
    let chart = Chart::new("Stops of writers", "memtables at the memory node", "stops");
    Some(chart.x_doubling().line(Mode::DmNaive.name(), &points).svg())
}

/// Flush throughput by the number of memtables, as in Figure 12.
fn flushes(facts: &Facts<'_>) -> Option<String> {
    let mut chart = Chart::new("Flushes after a burst", "memtables of the burst", "MB/s");
    let mut has_lines = false;
    for mode in [Mode::OffClassic, Mode::DmNaive, Mode::AllBurst] {
        let cells = FLUSHED.map(|load| {
            let cell = Cell::new(mode, WIDE, load);
            let remote = Mode::AllBurst.spec().remote_memtables;
            let cell = if mode == Mode::DmNaive { cell.with_remote(remote) } else { cell };
            (memtables_of(load, facts), cell)
        });
        let rate = |run: &Run| {
            let flushes = run.timeline.as_ref()?.flushes_after;
            (flushes.span_s > 0.0).then(|| flushes.bytes as f64 / 1e6 / flushes.span_s)
        };
        if let Some(points) = curve(facts, cells.into_iter(), rate) {
            has_lines = true;
            chart = chart.line(mode.name(), &points);
        }
    }
    has_lines.then(|| chart.svg())
}

/// Number of memtables of a burst.
fn memtables_of(load: Load, facts: &Facts<'_>) -> f64 {
    let most = facts.flags.memtables();
    let count = if let Load::ShortBurst(count) = load { u64::from(count) } else { BURST_MEMTABLES };
    count.min(most) as f64
}

fn memtables(facts: &Facts<'_>) -> Option<String> {
    let cells = MEMTABLES.map(|count| (f64::from(count), small(Mode::All).with_remote(count)));
    let points = curve(facts, cells.into_iter(), Run::rate)?;
    let chart = Chart::new("Random writes", "memtables at the memory node", "ops/s");
    Some(chart.x_doubling().line(Mode::All.name(), &points).svg())
}

fn local_share(facts: &Facts<'_>) -> Option<String> {
    let cells =
        LOCAL_OF_TEN.map(|local| (f64::from(local), small(Mode::All).with_local(local, 10)));
    let points = curve(facts, cells.into_iter(), Run::rate)?;
    let chart = Chart::new("Random writes", "local memtables of ten", "ops/s");
    Some(chart.line(Mode::All.name(), &points).svg())
}

/// Rates of several databases together, as in Figure 17a, and the bound of writes.
fn databases(facts: &Facts<'_>) -> Option<String> {
    let mut chart = Chart::new("Several databases", "databases", "ops/s");
    let mut has_lines = false;
    for kind in SeveralKind::ALL {
        let cells = DATABASES.map(|count| (f64::from(count), several(kind, count, 1)));
        let Some(points) = curve(facts, cells.into_iter(), Run::second_half) else { continue };
        has_lines = true;
        chart = chart.line(kind.name(), &points);
        if kind == SeveralKind::Writes {
            let record_bytes = SEVERAL_VALUE.record_bytes() as f64;
            let bound = points.iter().map(|&(count, _)| {
                let full = cluster(count, 1.0, WIDE, &Factors::FIXED);
                (count, full * SCALE * facts.flags.speed() * 1e6 / record_bytes)
            });
            chart = chart.line("bound of fillrandom", &bound.collect::<Vec<(f64, f64)>>());
        }
    }
    has_lines.then(|| chart.svg())
}

/// Bytes of all databases at the memory node over time, as in Figure 17b.
fn databases_memory(facts: &Facts<'_>) -> Option<String> {
    let title = "Memtables of several databases at the memory node";
    let mut chart = Chart::new(title, "seconds", "MiB");
    let mut has_lines = false;
    for count in DATABASES {
        let cell = several(SeveralKind::Writes, count, 1);
        let held = facts.of(&cell).find_map(|run| Some(&run.several.as_ref()?.held_mib));
        let Some(held) = held.filter(|held| held.len() > 1) else { continue };
        has_lines = true;
        chart = chart.line(&format!("databases: {count}"), held);
    }
    has_lines.then(|| chart.svg())
}

/// Reads by the size of the key-offset cache, as in Figure 13a.
fn offset_cache(facts: &Facts<'_>) -> Option<String> {
    let mut chart = Chart::new("Reads of memtables", "MiB of the key-offset cache", "ops/s");
    let mut has_lines = false;
    for keys in Keys::ALL {
        let point = |bytes: u64| ((bytes >> 20) as f64, cached_reads(keys, bytes));
        let cells = [0].into_iter().chain(CACHE_BYTES).map(point);
        if let Some(points) = curve(facts, cells, Run::rate) {
            has_lines = true;
            chart = chart.line(keys.name(), &points);
        }
    }
    has_lines.then(|| chart.svg())
}
