//! FlexKV's figures: the measurements for each, and the figures that the paper's text states.
//!
//! Every figure starts its own testbeds, one per processor at a time. Runs of one system that
//! differ only in the load share a testbed. Before a system that adapts its offload ratio is
//! measured, its coordinator finds the ratio for that load, at a Δ of [`DELTA`]. Then the ratio
//! stays.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_flexkv::CacheMode;
use archipelago_flexkv::coordinator::Tuning;
use archipelago_flexkv_rivals::Rival;

use super::{Measured, Setup, Testbed, Workload, Ycsb, side_by_side};
use crate::page::Grid;

/// Δ while a ratio is sought. The paper's Δ is 1 s. A change takes some milliseconds in both cases.
const DELTA: Duration = Duration::from_millis(1);
/// Time in which caches fill, and time that is measured.
const WARM_UP: Duration = Duration::from_millis(2);
const COUNTED: Duration = Duration::from_millis(2);
const LOADS: [char; 4] = ['a', 'b', 'c', 'd'];

/// System that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// This store with all of its parts.
    FlexKv,
    /// Address cache and one swap of one copy of the index: after Aceso.
    Base,
    /// A swap of every copy: after FUSEE.
    Fusee,
    /// A metadata server: after Clover.
    Clover,
    /// Requests go to the partition's node; the rest is as in [`FlexKv`](Self::FlexKv).
    Ownership,
    /// The store without proxies and pairs, with which the ablation begins.
    Bare,
    /// The store with addresses cached and a fifth of the partitions proxied, chosen by number.
    Proxy,
    /// The store with addresses cached and the hottest fifth of the partitions proxied.
    Rank,
    /// The store with pairs cached and the hottest fifth of the partitions proxied.
    Pairs,
}

impl System {
    /// Systems of the paper's comparisons.
    pub const RIVALS: [Self; 4] = [Self::FlexKv, Self::Base, Self::Fusee, Self::Clover];
    /// Steps of the paper's ablation, in order.
    pub const STEPS: [Self; 5] = [Self::Bare, Self::Proxy, Self::Rank, Self::Pairs, Self::FlexKv];

    /// Name of the system in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FlexKv => "flex",
            Self::Base => "base (Aceso)",
            Self::Fusee => "fusee",
            Self::Clover => "clover",
            Self::Ownership => "op",
            Self::Bare => "base of the ablation",
            Self::Proxy => "+proxy",
            Self::Rank => "+rank",
            Self::Pairs => "+kvcache",
        }
    }

    fn setup(self, setup: &Setup) -> Setup {
        let (rival, cache, offload) = match self {
            Self::FlexKv => (None, CacheMode::Pairs, 0),
            Self::Base => (Some(Rival::Base), CacheMode::Addresses, 0),
            Self::Fusee => (Some(Rival::Fusee), CacheMode::Addresses, 0),
            Self::Clover => (Some(Rival::Clover), CacheMode::Addresses, 1000),
            Self::Ownership => (Some(Rival::Ownership), CacheMode::Pairs, 0),
            Self::Bare => (None, CacheMode::Addresses, 0),
            Self::Proxy | Self::Rank => (None, CacheMode::Addresses, 200),
            Self::Pairs => (None, CacheMode::Pairs, 200),
        };
        Setup { rival, cache, offload, ..setup.clone() }
    }

    /// Rules by which the map follows the load, or `None` if it does not.
    fn tuning(self) -> Option<Tuning> {
        let tuning = Tuning { interval: DELTA, ..Tuning::default() };
        match self {
            Self::FlexKv | Self::Ownership => Some(tuning),
            Self::Rank | Self::Pairs => Some(Tuning { adapt_ratio: false, ..tuning }),
            _ => None,
        }
    }
}

/// A figure that the paper's text states, the measured one, and the target.
#[derive(Clone, Debug)]
pub struct Stated {
    /// Name of the figure.
    pub what: String,
    /// Figure in the paper's text.
    pub paper: String,
    /// Figure that was measured here.
    pub here: f64,
    /// Figure that must be reached, if there is a target.
    pub at_least: Option<f64>,
}

/// Result of a figure.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// Title of the figure.
    pub title: String,
    /// Quantity on the x axis.
    pub x: String,
    /// Quantity on the y axis.
    pub y: String,
    /// Names of the places on the x axis, if they are not numbers.
    pub places: Vec<String>,
    /// Lines: the name and the points (x, y).
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// Figures next to those of the paper's text.
    pub stated: Vec<Stated>,
    /// Tables of figures that no line has.
    pub(crate) tables: Vec<Grid>,
    /// Notes for readers.
    pub notes: Vec<String>,
}

impl Figure {
    fn new(title: &str, x: &str, y: &str) -> Self {
        let [title, x, y] = [title, x, y].map(str::to_owned);
        Self { title, x, y, ..Self::default() }
    }

    fn add(&mut self, name: &str, x: f64, y: f64) {
        match self.lines.iter_mut().find(|(known, _)| known == name) {
            Some((_, points)) => points.push((x, y)),
            None => self.lines.push((name.to_owned(), vec![(x, y)])),
        }
    }

    fn state(&mut self, what: impl Into<String>, paper: &str, here: f64) {
        let (what, paper) = (what.into(), paper.to_owned());
        self.stated.push(Stated { what, paper, here, at_least: None });
    }

    fn aim(&mut self, what: impl Into<String>, paper: &str, here: f64, at_least: f64) {
        let (what, paper) = (what.into(), paper.to_owned());
        self.stated.push(Stated { what, paper, here, at_least: Some(at_least) });
    }

    /// Value of a line at x.
    fn at(&self, name: &str, x: f64) -> f64 {
        let line = self.lines.iter().find(|(known, _)| known == name);
        let point = line.and_then(|(_, points)| points.iter().find(|point| point.0 == x));
        point.map_or(f64::NAN, |point| point.1)
    }

    /// Ratio of a line to the highest other line at x.
    fn over_rivals(&self, name: &str, x: f64) -> f64 {
        let others = self.lines.iter().filter(|(known, _)| known != name);
        let best = others.map(|(known, _)| self.at(known, x)).fold(f64::NAN, f64::max);
        self.at(name, x) / best
    }
}

type Make = fn(&Setup) -> Result<Figure>;

/// Figures: name, title, and the function that makes the figure.
pub const FIGURES: [(&str, &str, Make); 14] = [
    ("fig11", "throughput by clients", clients),
    ("fig12", "latency", latency),
    ("fig13", "throughput by share of updates", shares),
    ("fig14", "throughput under uniform loads", uniform),
    ("fig16", "ablation", ablation),
    ("fig17", "ownership partitioning", ownership),
    ("fig18", "a load that changes", dynamic),
    ("fig19", "balance of proxies", balance),
    ("fig20", "threads of a proxy", threads),
    ("fig21", "size of pairs", sizes),
    ("fig22", "compute and memory nodes", nodes),
    ("fig23", "memory of compute nodes", memory),
    ("fig24", "share of the index that is proxied", ratios),
    ("table1", "breakdown", breakdown),
];

/// A testbed of a system and loads for it.
struct Bed {
    system: System,
    testbed: Testbed,
    loads: Vec<(String, Arc<dyn Workload>)>,
}

fn ycsb(names: &[char], setup: &Setup, alpha: f64) -> Vec<(String, Arc<dyn Workload>)> {
    let load = |name: &char| {
        let load = Ycsb::named(*name, setup.keys, alpha)?;
        Some((format!("YCSB {}", name.to_ascii_uppercase()), Arc::new(load) as Arc<dyn Workload>))
    };
    names.iter().filter_map(load).collect()
}

impl Bed {
    fn start(system: System, setup: &Setup, names: &[char], alpha: f64) -> Result<Self> {
        let setup = system.setup(setup);
        let loads = ycsb(names, &setup, alpha);
        Ok(Self { system, testbed: Testbed::start(&setup)?, loads })
    }

    /// Lets the coordinator observe the load, if the system adapts. Returns the ratio.
    fn adapt(&self, load: &Arc<dyn Workload>) -> u32 {
        match self.system.tuning() {
            Some(tuning) => {
                let interval = tuning.interval * self.testbed.setup.stretch;
                let longest = interval * if tuning.adapt_ratio { 40 } else { 12 };
                self.testbed.adapt(Arc::clone(load), Tuning { interval, ..tuning }, longest)
            }
            None => self.testbed.offload(),
        }
    }

    fn run(&self, load: &Arc<dyn Workload>, clients: usize) -> Measured {
        let times = self.testbed.setup.stretch;
        self.testbed.measure(Arc::clone(load), clients, WARM_UP * times, COUNTED * times)
    }

    fn adapted(&self, load: &Arc<dyn Workload>) -> Measured {
        self.adapt(load);
        self.run(load, self.testbed.setup.clients)
    }
}

/// Measures a system under a load of the caller, on a testbed of its own.
pub fn compare(system: System, setup: &Setup, load: &Arc<dyn Workload>) -> Result<Measured> {
    Ok(Bed::start(system, setup, &[], 0.0)?.adapted(load))
}

/// Busiest component as text.
fn busiest(measured: &Measured) -> String {
    let shown = |(name, share): &(String, f64)| format!("{name} {:.0} %", share * 100.0);
    measured.busiest.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn mops(measured: &Measured) -> f64 {
    measured.per_s() / 1e6
}

/// Measures every system of `systems` under YCSB A to D, each of which gets a place on the x axis.
fn four_loads(
    figure: &mut Figure,
    systems: &[System],
    setup: &Setup,
    alpha: f64,
    value: fn(&Measured) -> f64,
) -> Result<()> {
    figure.places = LOADS.iter().map(|load| load.to_ascii_uppercase().to_string()).collect();
    let values = side_by_side(systems, |&system| {
        let bed = Bed::start(system, setup, &LOADS, alpha)?;
        Ok(bed.loads.iter().map(|(_, load)| value(&bed.adapted(load))).collect::<Vec<f64>>())
    })?;
    for (system, values) in systems.iter().zip(values) {
        for (place, value) in values.into_iter().enumerate() {
            figure.add(system.name(), place as f64, value);
        }
    }
    Ok(())
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

fn clients(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Throughput by clients (Figure 11)", "clients", "Mops/s");
    let counts = [1, 5, setup.clients];
    let found = side_by_side(&System::RIVALS, |&system| {
        let bed = Bed::start(system, setup, &LOADS, Ycsb::ALPHA)?;
        let mut of = Figure::default();
        let mut limits =
            Grid::new(["", "index proxied, %", "writes that met another, %", "busiest"]);
        for (name, load) in &bed.loads {
            let line = format!("{}, {name}", system.name());
            let ratio = bed.adapt(load);
            let proxied = match system {
                System::FlexKv => format!("{}", ratio as f64 / 10.0),
                _ => String::new(),
            };
            for clients in counts {
                let measured = bed.run(load, clients);
                of.add(&line, (clients * setup.compute) as f64, mops(&measured));
                if clients == setup.clients {
                    let met = measured.met as f64 / measured.operations as f64 * 100.0;
                    let met = format!("{met:.1}");
                    limits.push([line.clone(), proxied.clone(), met, busiest(&measured)]);
                }
            }
        }
        of.tables.push(limits);
        Ok(of)
    })?;
    let mut limits = Grid::default();
    for of in found {
        figure.lines.extend(of.lines);
        for of in of.tables {
            limits.header = of.header;
            limits.rows.extend(of.rows);
        }
    }
    figure.tables.push(limits);
    // The target is the paper's ratio less a quarter.
    let papers = [("2.31", 1.73), ("1.34", 1.01), ("1.37", 1.03), ("1.31", 0.98)];
    for (load, (paper, at_least)) in LOADS.iter().zip(papers) {
        let load = load.to_ascii_uppercase();
        let peak = |system: System| {
            let name = format!("{}, YCSB {load}", system.name());
            let x = |clients: &usize| figure.at(&name, (clients * setup.compute) as f64);
            counts.iter().map(x).fold(f64::NAN, f64::max)
        };
        let best = System::RIVALS[1..].iter().map(|rival| peak(*rival)).fold(f64::NAN, f64::max);
        let here = peak(System::FlexKv) / best;
        figure.aim(format!("peak over the best rival, YCSB {load}"), paper, here, at_least);
    }
    Ok(figure)
}

fn latency(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Latency with 200 clients (Figure 12)", "µs", "share of requests");
    let found = side_by_side(&System::RIVALS, |&system| {
        let bed = Bed::start(system, setup, &LOADS, Ycsb::ALPHA)?;
        Ok(bed.loads.iter().map(|(_, load)| bed.adapted(load)).collect::<Vec<Measured>>())
    })?;
    let mut tails: Vec<(System, Vec<(f64, f64)>)> = Vec::new();
    for (system, measured) in System::RIVALS.into_iter().zip(found) {
        for (load, measured) in LOADS.iter().zip(&measured) {
            let line = format!("{}, YCSB {}", system.name(), load.to_ascii_uppercase());
            for percent in (2..=98).step_by(4) {
                let share = f64::from(percent) / 100.0;
                figure.add(&line, measured.latency_us(share), share);
            }
        }
        let ends = |measured: &Measured| (measured.latency_us(0.5), measured.latency_us(0.99));
        tails.push((system, measured.iter().map(ends).collect()));
    }
    for (nth, (load, paper)) in LOADS.iter().zip(["85.2", "36.4", "4.1", "36.9"]).enumerate() {
        let load = load.to_ascii_uppercase();
        let mine = tails[0].1[nth].1;
        let best = tails[1..].iter().map(|(_, of)| of[nth].1).fold(f64::NAN, f64::min);
        figure.state(
            format!("P99 below the best rival's, %, YCSB {load}"),
            paper,
            (1.0 - mine / best) * 100.0,
        );
    }
    let loads = LOADS.iter().map(|load| load.to_ascii_uppercase().to_string());
    let mut ends = Grid::new(std::iter::once("P50 / P99 in µs by YCSB".to_owned()).chain(loads));
    for (system, of) in &tails {
        let of = of.iter().map(|(p50, p99)| format!("{p50:.1} / {p99:.1}"));
        ends.push(std::iter::once(system.name().to_owned()).chain(of));
    }
    figure.tables.push(ends);
    Ok(figure)
}

fn shares(setup: &Setup) -> Result<Figure> {
    let mut figure =
        Figure::new("Throughput by share of updates (Figure 13)", "updates, %", "Mops/s");
    let percents = [0.0, 25.0, 50.0, 75.0, 100.0];
    let found = side_by_side(&System::RIVALS, |&system| {
        let bed = Bed::start(system, setup, &[], Ycsb::ALPHA)?;
        let rate = |percent: f64| {
            let updates = Ycsb::updates(percent / 100.0, setup.keys, Ycsb::ALPHA);
            mops(&bed.adapted(&(Arc::new(updates) as Arc<dyn Workload>)))
        };
        Ok(percents.map(rate))
    })?;
    for (system, rates) in System::RIVALS.iter().zip(found) {
        for (percent, rate) in percents.into_iter().zip(rates) {
            figure.add(system.name(), percent, rate);
        }
    }
    for percent in percents {
        let here = figure.over_rivals(System::FlexKv.name(), percent);
        figure.state(format!("over the best rival at {percent} % updates"), "above 1", here);
    }
    Ok(figure)
}

fn uniform(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Throughput under uniform loads (Figure 14)", "YCSB", "Mops/s");
    four_loads(&mut figure, &System::RIVALS, setup, 0.0, mops)?;
    for (place, load) in LOADS.iter().enumerate() {
        let here = figure.over_rivals(System::FlexKv.name(), place as f64);
        let what = format!("over the best rival, YCSB {}", load.to_ascii_uppercase());
        figure.state(what, "no figure in the text", here);
    }
    Ok(figure)
}

fn ablation(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Ablation (Figure 16)", "YCSB", "Mops/s");
    four_loads(&mut figure, &System::STEPS, setup, Ycsb::ALPHA, mops)?;
    let mut product = 1.0;
    for (steps, paper) in System::STEPS.windows(2).zip(["14.5", "11.9", "6.1", "15.2"]) {
        let gain = |place: u32| {
            let [one, other] =
                [0, 1].map(|nth: usize| figure.at(steps[nth].name(), f64::from(place)));
            other / one
        };
        let here = mean((0..4).map(gain));
        product *= here;
        let what = format!("{} over {}, mean, %", steps[1].name(), steps[0].name());
        figure.state(what, paper, (here - 1.0) * 100.0);
    }
    figure.state("product of the steps", "1.57", product);
    Ok(figure)
}

fn ownership(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Ownership partitioning (Figure 17)", "YCSB", "Mops/s");
    four_loads(&mut figure, &[System::FlexKv, System::Ownership], setup, Ycsb::ALPHA, mops)?;
    let loss = |place: u32| {
        let place = f64::from(place);
        1.0 - figure.at(System::Ownership.name(), place) / figure.at(System::FlexKv.name(), place)
    };
    let here = mean((0..4).map(loss)) * 100.0;
    figure.state("loss by ownership, mean, %", "24.9", here);
    Ok(figure)
}

fn dynamic(setup: &Setup) -> Result<Figure> {
    const DELTA_MS: u64 = 4;
    let mut figure = Figure::new("A load that changes (Figure 18)", "Δ", "Mops/s");
    let bed = Bed::start(System::FlexKv, setup, &['b', 'a'], Ycsb::ALPHA)?;
    let delta = Duration::from_millis(DELTA_MS);
    bed.testbed.tune(Tuning { interval: delta, ..Tuning::default() });
    let phases = [0, 1].map(|nth: usize| (Arc::clone(&bed.loads[nth].1), delta * 15));
    let began_ns = bed.testbed.now_ns();
    let points = bed.testbed.timeline(&phases, delta / 8);
    for point in &points {
        let x = point.at_s / delta.as_secs_f64();
        figure.add("Mops/s", x, point.per_s / 1e6);
        figure.add("ratio, tenths", x, f64::from(point.offload) / 100.0);
    }
    let switch_s = delta.as_secs_f64() * 15.0;
    let moved = |after: bool| {
        let of = points.windows(2).filter(|two| (two[1].at_s > switch_s) == after);
        let last =
            of.filter(|two| two[0].offload != two[1].offload).map(|two| two[1].at_s).next_back();
        last.map_or(f64::NAN, |at| (at - if after { switch_s } else { 0.0 }) / delta.as_secs_f64())
    };
    figure.state("Δ until the first ratio", "7", moved(false));
    figure.state("Δ from B→A until the new ratio", "7", moved(true));
    let took: Vec<(bool, f64)> = bed
        .testbed
        .report()
        .changes
        .iter()
        .filter(|changed| changed.began_ns >= began_ns)
        .map(|changed| (changed.cause.reassign, changed.took_ns as f64 / 1e6))
        .collect();
    let longest = |reassign: bool| {
        let of = took.iter().filter(|(of, _)| *of == reassign).map(|(_, took)| *took);
        of.fold(f64::NAN, f64::max)
    };
    figure.state("longest reassignment, ms", "3.24 to 5.26", longest(true));
    figure.state("longest change of the ratio, ms", "3.24 to 5.26", longest(false));
    let ratios = |at: f64| points.iter().rfind(|point| point.at_s <= at).map_or(0, |p| p.offload);
    figure.state("ratio for B, %", "30", f64::from(ratios(switch_s)) / 10.0);
    figure.state("ratio for A, %", "60", f64::from(ratios(switch_s * 2.0)) / 10.0);
    figure.notes.push(format!(
        "Δ is {DELTA_MS} ms here, 1 s in the paper; changes take their own time in both"
    ));
    Ok(figure)
}

/// Deviation over mean.
fn variation(values: &[u64]) -> f64 {
    let values: Vec<f64> = values.iter().map(|value| *value as f64).collect();
    let average = mean(values.iter().copied());
    mean(values.iter().map(|value| (value - average).powi(2))).sqrt() / average
}

/// Numbers of keys, in percent of the setup's. Each number puts the hottest keys elsewhere. So the
/// static fifth is hot or cold by chance.
const DRAWS: [u64; 9] = [92, 94, 96, 98, 100, 102, 104, 106, 108];

/// Factor of keys, partitions and memory in Figure 19, relative to the other figures.
const NEARER: u64 = 4;

fn balance(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new(
        "Index requests by compute node (Figure 19)",
        "compute node",
        "requests, thousands",
    );
    let compared = [(System::Proxy, "by number"), (System::Rank, "by load")];
    let jobs: Vec<(u64, System)> =
        DRAWS.iter().flat_map(|draw| compared.map(|(system, _)| (*draw, system))).collect();
    // The sizes are nearer to the paper's than in other figures, because the share of the hottest
    // key limits how evenly whole partitions can be spread.
    let setup = Setup {
        keys: setup.keys * NEARER,
        memory_bytes: setup.memory_bytes * NEARER,
        partition_bits: setup.partition_bits + NEARER.ilog2(),
        ..setup.clone()
    };
    let asked = side_by_side(&jobs, |(draw, system)| {
        let setup = Setup { keys: setup.keys * draw / 100, ..setup.clone() };
        let bed = Bed::start(*system, &setup, &['a'], Ycsb::ALPHA)?;
        Ok(bed.adapted(&bed.loads[0].1).asked)
    })?;
    let (mut lower, mut more, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    for (draw, pair) in DRAWS.iter().zip(asked.chunks_exact(compared.len())) {
        if *draw == 100 {
            for ((_, name), asked) in compared.iter().zip(pair) {
                for (node, asked) in asked.iter().enumerate() {
                    figure.add(name, node as f64 + 1.0, *asked as f64 / 1e3);
                }
            }
        }
        let (number, load) = (variation(&pair[0]), variation(&pair[1]));
        let sum = |asked: &[u64]| asked.iter().sum::<u64>() as f64;
        lower.push((1.0 - load / number) * 100.0);
        more.push((sum(&pair[1]) / sum(&pair[0]) - 1.0) * 100.0);
        shown.push(format!("{number:.3}/{load:.3}"));
    }
    figure.state("CV lower, %, median of the draws", "42.7", median(lower));
    figure.state("index requests more, %, median", "14.8", median(more));
    let shown = shown.join("  ");
    figure.notes.push(format!("{} keys, 2^{} partitions here", setup.keys, setup.partition_bits));
    figure.notes.push(format!("CV by number/by load, draws of {DRAWS:?} % of the keys: {shown}"));
    Ok(figure)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One system, one setting that changes; a line per load.
fn sweep(
    figure: &mut Figure,
    systems: &[System],
    loads: &[char],
    settings: &[(f64, Setup)],
) -> Result<()> {
    let jobs: Vec<_> = settings
        .iter()
        .flat_map(|(x, setup)| systems.iter().map(move |system| (*x, setup, *system)))
        .collect();
    let found = side_by_side(&jobs, |(_, setup, system)| {
        let bed = Bed::start(*system, setup, loads, Ycsb::ALPHA)?;
        let rate = |(name, load): &(String, Arc<dyn Workload>)| {
            (format!("{}, {name}", system.name()), mops(&bed.adapted(load)))
        };
        Ok(bed.loads.iter().map(rate).collect::<Vec<(String, f64)>>())
    })?;
    for ((x, ..), rates) in jobs.iter().zip(found) {
        rates.iter().for_each(|(name, rate)| figure.add(name, *x, *rate));
    }
    Ok(())
}

fn threads(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Threads of a proxy (Figure 20)", "threads", "Mops/s");
    let of = |threads: usize| (threads as f64, Setup { proxy_threads: threads, ..setup.clone() });
    sweep(&mut figure, &[System::FlexKv], &LOADS, &[1, 2, 3, 4].map(of))?;
    for load in LOADS.map(|load| load.to_ascii_uppercase()) {
        let at = |x| figure.at(&format!("flex, YCSB {load}"), x);
        let here = at(1.0) / at(2.0) * 100.0;
        figure.state(format!("one thread over two, %, YCSB {load}"), "71.8 to 90.2", here);
    }
    Ok(figure)
}

fn sizes(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Size of pairs (Figure 21)", "bytes", "Mops/s");
    let of = |bytes: usize| {
        let value_bytes = bytes - setup.key_bytes;
        (bytes as f64, Setup { value_bytes, ..setup.clone() })
    };
    sweep(&mut figure, &System::RIVALS, &['a', 'c'], &[128, 256, 512, 1024].map(of))?;
    Ok(figure)
}

fn nodes(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Memory nodes of 23 (Figure 22)", "memory nodes", "Mops/s");
    let of =
        |memory: usize| (memory as f64, Setup { memory, compute: 23 - memory, ..setup.clone() });
    sweep(&mut figure, &System::RIVALS, &['a', 'c'], &[3, 5, 7, 10].map(of))?;
    Ok(figure)
}

fn memory(setup: &Setup) -> Result<Figure> {
    let mut figure =
        Figure::new("Memory of compute nodes (Figure 23)", "MB of the paper's", "Mops/s");
    let of = |mb: u64| {
        // 64 MB are 5 % of keys and values, as in the setup.
        let memory_bytes = (setup.memory_bytes * mb / 64).max(48 << 10);
        (mb as f64, Setup { memory_bytes, ..setup.clone() })
    };
    sweep(&mut figure, &System::RIVALS[..3], &['a', 'c'], &[16, 32, 64, 128].map(of))?;
    figure.notes.push("the least memory is 48 KiB a node: the store needs some 30 KiB".to_owned());
    Ok(figure)
}

fn ratios(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Share of the index that is proxied (Figure 24)", "%", "Mops/s");
    // Partitions are ranked and pairs are cached, and only the ratio changes.
    let bed = Bed::start(System::Pairs, setup, &LOADS, Ycsb::ALPHA)?;
    for (name, load) in &bed.loads {
        for percent in (0..=100).step_by(20) {
            bed.testbed.set_offload(percent * 10)?;
            figure.add(name, f64::from(percent), mops(&bed.adapted(load)));
        }
    }
    for (name, points) in figure.lines.clone() {
        let best = points.iter().copied().fold((0.0, 0.0), |a, b| if b.1 > a.1 { b } else { a });
        figure.state(format!("best ratio, %, {name}"), "between the ends", best.0);
    }
    Ok(figure)
}

fn breakdown(setup: &Setup) -> Result<Figure> {
    let mut figure = Figure::new("Breakdown (Table 1)", "YCSB", "µs, mean of reads");
    figure.places = LOADS.iter().map(|load| load.to_ascii_uppercase().to_string()).collect();
    let bed = Bed::start(System::FlexKv, setup, &LOADS, Ycsb::ALPHA)?;
    let paper = [
        ("60", "0.1", "10.4"),
        ("30", "10.1", "24.1"),
        ("80", "18.9", "30.6"),
        ("50", "15.5", "31.3"),
    ];
    for (place, ((name, load), (ratio, pairs, addresses))) in
        bed.loads.iter().zip(paper).enumerate()
    {
        let here = bed.adapt(load);
        let measured = bed.run(load, setup.clients);
        let all = measured.hits.iter().sum::<u64>().max(1) as f64;
        let reads = mean(measured.reads_ns.iter().map(|ns| *ns as f64 / 1000.0));
        figure.add("reads", place as f64, reads);
        figure.state(format!("ratio, %, {name}"), ratio, f64::from(here) / 10.0);
        figure.state(format!("pairs hit, %, {name}"), pairs, measured.hits[0] as f64 / all * 100.0);
        figure.state(
            format!("addresses hit, %, {name}"),
            addresses,
            measured.hits[1] as f64 / all * 100.0,
        );
    }
    Ok(figure)
}
