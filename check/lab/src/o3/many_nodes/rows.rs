//! Rows, tables and charts of the modelled cluster. Every name says that its figure is one of a
//! model.

use super::super::bounds::{
    Factors, LevelZero, Offloaded, StorageLink, bursts_meet, memory_scaling, scaling_by_links,
    scaling_by_streams, throughput,
};
use super::super::flags::O3Flags;
use super::super::plan::Group;
use super::super::rows::{Row, rounded, times};
use super::cluster::{Cluster, Outcome};
use super::load::{Bursts, Load, Memory, Setting};
use crate::claim::Target;
use crate::page::{self, Grid};
use crate::plot::Chart;
use crate::sides::{Goal, Sides};

/// Compute nodes of Figure 17 and Table 10, and of Table 9.
const COMPUTE_NODES: usize = 5;
const COMPUTE_NODES_TABLE_9: usize = 3;
/// Excess of a burst in quotas. The first one has targets.
const EXCESSES: [f64; 2] = [1.6, 2.5];
/// Least share of the bound of Figure 17a that must be reached.
const SHARE_OF_BOUND: f64 = 0.85;
/// Columns of the modes by the number of compute nodes.
const MODE_NODES: [usize; 3] = [1, 3, 5];

/// Cause of the missed target of Table 10's throughput.
const PAUSES: &str = "Pauses take four fifths of the time in both modes, so the bound is below the \
                      target.";

/// The rows with everything that a report shows of them.
#[derive(Clone, Debug, Default)]
pub(in crate::o3) struct ModelFigures {
    pub(in crate::o3) rows: Vec<Row>,
    pub(in crate::o3) grids: Vec<Grid>,
    /// Sentences after the tables.
    pub(in crate::o3) notes: Vec<String>,
    /// Name and content of each chart.
    pub(in crate::o3) plots: Vec<(String, String)>,
}

/// Runs the model for the links of the flags.
pub(in crate::o3) fn measure(flags: &O3Flags) -> ModelFigures {
    let mut runs = Runs { seconds: flags.model_seconds(), all: Vec::new() };
    let mut figures = ModelFigures::default();
    for link in flags.links() {
        eprintln!("model of many nodes, {}", link.name());
        figures.rows.extend(runs.scaling(link));
        figures.rows.extend(runs.memory_nodes(link));
        figures.rows.extend(EXCESSES.into_iter().flat_map(|excess| runs.bursts(link, excess)));
        let [scaling, memtables] = runs.charts(link);
        figures.plots.push((format!("nodes-throughput-{}.svg", file_part(link)), scaling));
        figures.plots.push((format!("nodes-memtables-{}.svg", file_part(link)), memtables));
    }
    let grid = runs.grid();
    figures.grids = vec![grid, runs.modes(flags)];
    figures.notes = vec![format!(
        "All figures of this section come from a model of a cluster in virtual time \
         (decision 0103), and not from processes. It runs {} seconds and counts the second half. \
         Rates are those of full speed. MB/s above a bound fill L0, whose debt the bounds leave \
         out; what compactions took is next to them.",
        runs.seconds
    )];
    figures
}

/// The link in the name of a chart.
fn file_part(link: StorageLink) -> &'static str {
    match link {
        StorageLink::One => "1g",
        StorageLink::TwoAndAHalf => "2g5",
    }
}

/// Runs of the model, each made once.
struct Runs {
    seconds: u64,
    all: Vec<(Setting, Outcome)>,
}

/// A row before it is judged.
struct ModelRow {
    what: String,
    unit: &'static str,
    measured: f64,
    peer: Option<f64>,
    bound: String,
    paper: &'static str,
    goal: Goal,
    cause: &'static str,
}

impl ModelRow {
    /// A row about the rates of two runs, without a target.
    fn rates(what: String, own: &Outcome, peer: &Outcome) -> Self {
        Self {
            what,
            unit: "MB/s",
            measured: own.mb_per_s,
            peer: Some(peer.mb_per_s),
            bound: String::new(),
            paper: "",
            goal: Goal::Open,
            cause: "",
        }
    }

    fn judged(self) -> Row {
        let theirs = self.peer.map(|peer| (0, peer)).into_iter().collect();
        let sides = Sides { ours: vec![(0, self.measured)], theirs };
        let row = page::Row {
            name: format!("model: {}", self.what),
            unit: self.unit,
            decimals: if self.unit == "stops" { 0 } else { 2 },
            bound: self.bound,
            paper: self.paper.to_owned(),
            cause: self.cause,
            ..page::Row::default()
        };
        // The model runs once, so that the page shows no number of runs.
        Row::new(Group::Nodes, page::Row { runs: None, ..sides.judge(self.goal, row) })
    }
}

impl Runs {
    /// The outcome of a setting, which runs if it has not run yet.
    fn outcome(&mut self, setting: Setting) -> Outcome {
        if let Some((_, outcome)) = self.all.iter().find(|(known, _)| *known == setting) {
            return outcome.clone();
        }
        let outcome = Cluster::new(setting).run();
        self.all.push((setting, outcome.clone()));
        outcome
    }

    fn writes(&self, compute_nodes: usize, link: StorageLink) -> Setting {
        Setting::writes(compute_nodes, link, self.seconds)
    }

    /// The rows of Figure 17.
    fn scaling(&mut self, link: StorageLink) -> Vec<Row> {
        let (one, five) = (self.writes(1, link), self.writes(COMPUTE_NODES, link));
        let mixed = |setting: Setting| Setting { load: Load::Mixed, ..setting };
        let executors = Factors::FIXED.storage_executors * COMPUTE_NODES as f64;
        let more = Factors { storage_executors: executors, ..Factors::FIXED };
        let wide = Setting { factors: more, ..five };
        let nodes = COMPUTE_NODES as f64;
        let name = link.name();
        let mut rows = Vec::new();
        let mut row = |what: &str, own: Setting, peer: Setting| {
            let what = format!("{what}, {name}: 5 compute nodes / 1 (Figure 17a)");
            let ratio = own.bound() / peer.bound();
            let (own, peer) = (self.outcome(own), self.outcome(peer));
            let row = ModelRow::rates(what, &own, &peer);
            (ModelRow { bound: times(ratio), paper: "up to 2.9×", ..row }, ratio)
        };
        let (fixed, ratio) = row("random writes, 3 storage executors", five, one);
        rows.push(ModelRow {
            bound: format!(
                "{}; {} by streams, {} by links of flushes",
                times(ratio),
                times(scaling_by_streams(nodes, &Factors::FIXED)),
                times(scaling_by_links(nodes, 1.0))
            ),
            goal: Goal::Ratio(Target::AtLeast(rounded(SHARE_OF_BOUND * ratio))),
            ..fixed
        });
        let (scaled, _) = row("random writes, 15 storage executors for 5", wide, one);
        rows.push(ModelRow { goal: Goal::Ratio(Target::AtLeast(2.9)), ..scaled });
        rows.push(row("mixed 50/50, 1 KiB", mixed(five), mixed(one)).0);
        rows.push(self.fluctuation(link));
        rows.into_iter().map(ModelRow::judged).collect()
    }

    /// The row of Figure 17b.
    fn fluctuation(&mut self, link: StorageLink) -> ModelRow {
        let memtables = self.outcome(self.writes(COMPUTE_NODES, link)).memtables;
        let settled = &memtables[memtables.len() / 2..];
        let count = settled.len().max(1) as f64;
        let mean = settled.iter().sum::<f64>() / count;
        let squares: f64 = settled.iter().map(|held| (held - mean).powi(2)).sum();
        let what = format!(
            "memtables at the memory node, {}: standard deviation / mean, 5 compute nodes (Figure \
             17b)",
            link.name()
        );
        ModelRow {
            what,
            unit: "",
            measured: (squares / count).sqrt() / mean,
            peer: None,
            bound: String::new(),
            paper: "small fluctuations",
            goal: Goal::Open,
            cause: "",
        }
    }

    /// The rows of Table 9. Each memory node brings its memory along, as in the paper. A further
    /// row divides the memory of one node.
    fn memory_nodes(&mut self, link: StorageLink) -> Vec<Row> {
        let one = self.writes(COMPUTE_NODES_TABLE_9, link);
        let two = Setting { memory_nodes: 2, memory_factor: 2, ..one };
        let three = Setting { memory_nodes: 3, memory_factor: 3, ..one };
        let divided = Setting { memory_factor: 1, ..three };
        let mixed = |setting: Setting| Setting { load: Load::Mixed, ..setting };
        let name = link.name();
        let mut row = |what: &str, own: Setting, peer: Setting, paper: &'static str| {
            let nodes = own.memory_nodes;
            let what =
                format!("{what}, {name}: {nodes} memory nodes / 1, 3 compute nodes (Table 9)");
            let bound = times(own.bound() / peer.bound());
            let (own, peer) = (self.outcome(own), self.outcome(peer));
            ModelRow { bound, paper, ..ModelRow::rates(what, &own, &peer) }
        };
        let mut rows = vec![
            row("random writes", two, one, "+7.5 %"),
            row("random writes", three, one, "+10.8 %"),
            row("random writes, memory of one node divided", divided, one, ""),
            row("mixed 50/50, 1 KiB", mixed(two), mixed(one), "+8.0 %"),
            row("mixed 50/50, 1 KiB", mixed(three), mixed(one), "+11.9 %"),
        ];
        rows[1].goal = Goal::Ratio(Target::AtLeast(1.11));
        rows[1].bound += &format!("; {} by links of flushes", times(memory_scaling(3.0, 1.0, 3.0)));
        rows.into_iter().map(ModelRow::judged).collect()
    }

    /// The rows of Table 10 with bursts of this excess.
    fn bursts(&mut self, link: StorageLink, excess: f64) -> Vec<Row> {
        let of = |memory| Setting {
            load: Load::Bursts(Bursts { excess, memory }),
            ..self.writes(COMPUTE_NODES, link)
        };
        let (shared, fixed) = (of(Memory::Shared), of(Memory::Fixed));
        let burst = shared.burst_figures(Bursts { excess, memory: Memory::Shared });
        let cycle_s = burst.pause_s + burst.seconds;
        let bound = (cycle_s + burst.fixed_wait_s) / cycle_s;
        let (shared, fixed) = (self.outcome(shared), self.outcome(fixed));
        let has_target = excess == EXCESSES[0];
        let goal = |target| if has_target { Goal::Ratio(target) } else { Goal::Open };
        let name = |figure: &str| {
            format!(
                "{figure}, bursts of {excess} quotas, {}: shared memory / fixed parts, 5 compute \
                 nodes (Table 10)",
                link.name()
            )
        };
        // Memory of five quotas is short if more bursts meet than fit.
        let fitting = (COMPUTE_NODES as f64 / excess) as u32;
        let short = bursts_meet(fitting, COMPUTE_NODES as u32 - 1, 0.2);
        let stops = ModelRow {
            what: name("stops"),
            unit: "stops",
            measured: shared.stops as f64,
            peer: Some(fixed.stops as f64),
            bound: format!("{short:.3} of the bursts, if memory is empty before"),
            paper: "840 to 65",
            goal: goal(Target::AtMost(0.1)),
            cause: "",
        };
        let share = ModelRow {
            what: name("share of the time in stops"),
            unit: "",
            measured: shared.stopped_share,
            peer: Some(fixed.stopped_share),
            bound: String::new(),
            paper: "",
            goal: Goal::Open,
            cause: "",
        };
        let rate = ModelRow {
            bound: times(bound),
            paper: "+42 %",
            goal: goal(Target::AtLeast(1.3)),
            cause: PAUSES,
            ..ModelRow::rates(name("throughput"), &shared, &fixed)
        };
        [stops, share, rate].map(ModelRow::judged).into()
    }

    /// Throughput by the number of compute nodes, and memtables over time.
    fn charts(&mut self, link: StorageLink) -> [String; 2] {
        let mut modelled = Vec::new();
        let mut bounds = Vec::new();
        for count in 1..=COMPUTE_NODES {
            let setting = self.writes(count, link);
            modelled.push((count as f64, self.outcome(setting).mb_per_s));
            bounds.push((count as f64, setting.bound()));
        }
        let title = format!("Random writes of many compute nodes, {}, model", link.name());
        let scaling = Chart::new(&title, "compute nodes", "MB/s");
        let scaling = scaling.line("all", &modelled).line("bound", &bounds).svg();
        let memtables = self.outcome(self.writes(COMPUTE_NODES, link)).memtables;
        let points = memtables.iter().enumerate();
        let points: Vec<(f64, f64)> = points.map(|(second, held)| (second as f64, *held)).collect();
        let title = format!("Memtables of 5 compute nodes, {}, model", link.name());
        let chart = Chart::new(&title, "seconds", "memtables at the memory node");
        [scaling, chart.line("all", &points).svg()]
    }

    /// All runs so far, with their bounds.
    fn grid(&self) -> Grid {
        let mut grid = Grid::new([
            "modelled run",
            "link",
            "MB/s",
            "bound, MB/s",
            "compacted, MB/s",
            "L0 layers",
            "stops",
            "share of the time in stops",
        ]);
        for (setting, outcome) in &self.all {
            let load = match setting.load {
                Load::Writes => "random writes".to_owned(),
                Load::Mixed => "mixed 50/50".to_owned(),
                Load::Bursts(Bursts { excess, memory }) => {
                    format!("bursts of {excess} quotas, {memory:?}").to_lowercase()
                }
            };
            grid.push([
                format!(
                    "{load}, {} compute, {} memory nodes, {} × memory, {} storage executors",
                    setting.compute_nodes,
                    setting.memory_nodes,
                    setting.memory_factor,
                    setting.factors.storage_executors
                ),
                setting.link.name().to_owned(),
                format!("{:.1}", outcome.mb_per_s),
                format!("{:.0}", setting.bound()),
                format!("{:.1}", outcome.compacted_mb_per_s),
                outcome.layers_max.to_string(),
                outcome.stops.to_string(),
                format!("{:.3}", outcome.stopped_share),
            ]);
        }
        grid
    }

    /// Throughput of modes by the number of compute nodes.
    fn modes(&mut self, flags: &O3Flags) -> Grid {
        let mut grid = Grid::new([
            "random writes by mode, buckets, model",
            "link",
            "bound of 1 compute node, MB/s",
            "1, MB/s",
            "3, MB/s",
            "5, MB/s",
        ]);
        let modes = [
            ("off", Offloaded::Nothing),
            ("compactions", Offloaded::Compactions),
            ("memtables, flushed by their owner", Offloaded::Memtables),
            ("memtables and flushes", Offloaded::Flushes),
            ("all, compactions at storage executors only", Offloaded::AllAtStorage),
            ("all", Offloaded::All { compute_nodes: 1 }),
        ];
        for link in flags.links() {
            for (name, offloaded) in modes {
                let bound = throughput(offloaded, LevelZero::Buckets, link, &Factors::FIXED);
                let rates = MODE_NODES.map(|count| {
                    let writes = self.writes(count, link);
                    let setting = match offloaded {
                        Offloaded::All { .. } => writes,
                        offloaded => Setting { offloaded, ..writes },
                    };
                    format!("{:.1}", self.outcome(setting).mb_per_s)
                });
                let names = [name.to_owned(), link.name().to_owned(), format!("{bound:.0}")];
                grid.push(names.into_iter().chain(rates));
            }
        }
        grid
    }
}
