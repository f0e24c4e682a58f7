//! The sections of the report: a section of rows for each group, then the figures behind them. The
//! functions are pure.

use super::bounds::{
    Factors, Offloaded, SCALE, SharedLog, StorageLink, all_with_log, baseline_with_log, throughput,
};
use super::claims::FlushSteps;
use super::flags::O3Flags;
use super::many_nodes::ModelFigures;
use super::modes::Mode;
use super::plan::{
    AMPLIFIED_LOADS, Cell, Group, LINK_LOADS, LOCAL_OF_TEN, Load, MEMTABLES, Plan, STALL_MEMTABLES,
    Value,
};
use super::rows::{Facts, Row, Unmeasured};
use super::run::Run;
use super::timeline::LinkUse;
use crate::page::{Grid, Section};

/// Share of the processors' time above which a run measures them and not the links.
const BUSY_MAX: f64 = 2.0 / 3.0;
const MIB: f64 = 1_048_576.0;

/// Parts of the report in addition to the facts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub(super) rows: &'a [Row],
    pub(super) unmeasured: &'a [Unmeasured],
    /// Rows of several databases, which are among `rows`, and what stands next to them.
    pub(super) model: &'a ModelFigures,
}

/// The sections of the report.
pub(super) fn sections(facts: &Facts<'_>, shown: &Shown<'_>) -> Vec<Section> {
    let of = |group: Group| {
        let rows = shown.rows.iter().filter(|row| row.group == group);
        let rows: Vec<_> = rows.map(|row| row.page_row.clone()).collect();
        let mut grids = grids(facts, group);
        let mut notes = Vec::new();
        if group == Group::Nodes {
            grids.extend(shown.model.grids.iter().cloned());
            notes.clone_from(&shown.model.notes);
        }
        grids.push(unmeasured(shown.unmeasured, group));
        grids.retain(|grid| !grid.rows.is_empty());
        let title = group.title().to_owned();
        let is_empty = rows.is_empty() && grids.is_empty();
        (!is_empty).then_some(Section { title, rows, grids, notes })
    };
    let mut sections = refused(facts.plan).into_iter().collect::<Vec<Section>>();
    sections.extend(facts.flags.groups().into_iter().filter_map(of));
    sections.push(validity(facts));
    sections
}

/// The modes that the program refuses, with the reasons.
fn refused(plan: &Plan) -> Option<Section> {
    let mut grid = Grid::new(["mode that this program refuses", "reason", "cells"]);
    let mut modes: Vec<Mode> = Vec::new();
    for (cell, why) in &plan.refused {
        if modes.contains(&cell.mode) {
            continue;
        }
        modes.push(cell.mode);
        let count = plan.refused.iter().filter(|one| one.0.mode == cell.mode).count();
        grid.push([cell.mode.name().to_owned(), why.clone(), count.to_string()]);
    }
    let title = "Modes without figures".to_owned();
    (!modes.is_empty()).then(|| Section { title, grids: vec![grid], ..Section::default() })
}

fn unmeasured(rows: &[Unmeasured], group: Group) -> Grid {
    let mut grid = Grid::new(["row without figures", "paper", "bound", "target", "reason"]);
    for row in rows.iter().filter(|row| row.group == group) {
        let Unmeasured { what, paper, bound, target, why, .. } = row;
        grid.push([what, paper, bound, target, why].map(String::as_str));
    }
    grid
}

fn grids(facts: &Facts<'_>, group: Group) -> Vec<Grid> {
    match group {
        Group::Fill => vec![arithmetic(facts), shared_log()],
        Group::Stalls => vec![stops(facts)],
        Group::Amplification => vec![levels(facts)],
        Group::Phases => vec![flush_steps(facts)],
        Group::Memtables => vec![memtables(facts)],
        Group::Local => vec![staying(facts)],
        Group::Takeover => vec![takeovers(facts)],
        Group::Links => vec![bytes_by_link(facts), links(facts)],
        Group::Peaks => vec![links(facts)],
        Group::Databases => vec![databases(facts)],
        _ => Vec::new(),
    }
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "—".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Bounds of all modes next to the measured figures.
fn arithmetic(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "mode",
        "link",
        "bound at full speed, MB/s",
        "bound here, MB/s",
        "64 B, MB/s",
        "256 B, MB/s",
        "1 KiB, MB/s",
    ]);
    let modes = [
        Mode::OffClassic,
        Mode::Off,
        Mode::CompactionsClassic,
        Mode::Compactions,
        Mode::All,
        Mode::AllSecond,
    ];
    for link in facts.flags.links() {
        for mode in modes {
            let bound = mode.spec().bound(link);
            let measured = Value::ALL.map(|value| {
                let cell = Cell::new(mode, link, Load::Fill(value));
                number(facts.median(&cell, Run::user_mb_per_s), 2)
            });
            let name = [mode.name().to_owned(), link.name().to_owned()];
            let here = bound * SCALE * facts.flags.speed();
            let bounds = [format!("{bound:.0}"), format!("{here:.2}")];
            grid.push(name.into_iter().chain(bounds).chain(measured));
        }
    }
    let name = "all, compactions at storage executors only";
    for link in facts.flags.links() {
        let level = super::bounds::LevelZero::Buckets;
        let bound = throughput(Offloaded::AllAtStorage, level, link, &Factors::FIXED);
        let here = bound * SCALE * facts.flags.speed();
        let bounds = [format!("{bound:.0}"), format!("{here:.2}")];
        let none = ["—", "—", "—"].map(str::to_owned);
        let name = [name.to_owned(), link.name().to_owned()];
        grid.push(name.into_iter().chain(bounds).chain(none));
    }
    grid
}

/// Bounds with a log on the storage, which have no target.
fn shared_log() -> Grid {
    let mut grid = Grid::new([
        "log on the storage, by arithmetic",
        "link",
        "off, classic, MB/s",
        "all, MB/s",
        "ratio",
    ]);
    let places = [("shared directory", SharedLog::DIRECTORY), ("volume", SharedLog::VOLUME)];
    for (name, shared) in places {
        for link in StorageLink::ALL {
            let factors = &Factors::FIXED;
            let off = baseline_with_log(shared, link, factors);
            let all = all_with_log(shared, link, factors);
            let figures = [format!("{off:.0}"), format!("{all:.0}"), format!("{:.1}", all / off)];
            let name = [name.to_owned(), link.name().to_owned()];
            grid.push(name.into_iter().chain(figures));
        }
    }
    grid
}

const WIDE: StorageLink = StorageLink::TwoAndAHalf;

fn small(mode: Mode) -> Cell {
    Cell::new(mode, WIDE, Load::Fill(Value::Small))
}

fn stops(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new(["memtables at the memory node", "stops", "ops/s", "P99, µs"]);
    for count in STALL_MEMTABLES {
        let cell = small(Mode::DmNaive).with_remote(count);
        let stops = facts.median(&cell, |run| Some(run.timeline.as_ref()?.stops as f64));
        if stops.is_none() {
            continue;
        }
        let p99 = facts.median(&cell, |run| run.p99_us(&["write"]));
        let rate = facts.median(&cell, Run::rate);
        grid.push([count.to_string(), number(stops, 0), number(rate, 0), number(p99, 0)]);
    }
    grid
}

fn levels(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "load",
        "mode",
        "write amplification with log and flush",
        "into L1, MiB",
        "into L2, MiB",
        "into L3, MiB",
        "into L4, MiB",
    ]);
    let modes = [Mode::OffClassic, Mode::Off, Mode::All];
    let cells = AMPLIFIED_LOADS.map(|load| modes.map(|mode| Cell::new(mode, WIDE, load)));
    for cell in cells.into_iter().flatten() {
        if facts.of(&cell).next().is_none() {
            continue;
        }
        let all =
            facts.median(&cell, |run| run.result.as_ref()?.settled.as_ref()?.write_amplification);
        let into = [0, 1, 2, 3].map(|at: usize| {
            let bytes = |run: &Run| Some(*run.timeline.as_ref()?.written_by_level.get(at)? as f64);
            number(facts.median(&cell, bytes).map(|bytes| bytes / MIB), 0)
        });
        let names = [cell.load.name(), cell.mode.name().to_owned(), number(all, 2)];
        grid.push(names.into_iter().chain(into));
    }
    grid
}

/// Times of the steps of flushes by the bytes of their tables, as in Table 3.
fn flush_steps(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "mode",
        "flushes",
        "package, ms/MiB",
        "wait, ms/MiB",
        "fetch, ms/MiB",
        "write, ms/MiB",
        "log, ms/MiB",
        "install, ms/MiB",
        "transfers in parallel, ms/MiB",
    ]);
    for mode in [Mode::OffClassic, Mode::Off, Mode::DmNaive, Mode::DmShard, Mode::All] {
        let cell = small(mode);
        let per_mib = |step: fn(&FlushSteps) -> f64| {
            let figure = |run: &Run| {
                let steps = FlushSteps::of(run)?;
                (steps.bytes > 0).then(|| step(&steps) * 1e3 / (steps.bytes as f64 / MIB))
            };
            number(facts.median(&cell, figure), 3)
        };
        let flushes = facts.median(&cell, |run| Some(FlushSteps::of(run)?.flushes as f64));
        if flushes.is_none() {
            continue;
        }
        let steps: [fn(&FlushSteps) -> f64; 7] = [
            |steps| steps.package_s,
            |steps| steps.wait_s,
            |steps| steps.fetch_s,
            |steps| steps.write_s,
            |steps| steps.log_sync_s,
            |steps| steps.install_s,
            |steps| steps.send_s,
        ];
        let names = [mode.name().to_owned(), number(flushes, 0)];
        grid.push(names.into_iter().chain(steps.map(per_mib)));
    }
    grid
}

fn memtables(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new(["local memtables", "memtables at the memory node", "ops/s"]);
    let all = small(Mode::All);
    let by_count = MEMTABLES.map(|count| all.with_remote(count));
    let by_share = LOCAL_OF_TEN.map(|local| all.with_local(local, 10));
    for cell in by_count.into_iter().chain(by_share) {
        if let Some(rate) = facts.median(&cell, Run::rate) {
            grid.push([cell.local().to_string(), cell.remote().to_string(), format!("{rate:.0}")]);
        }
    }
    grid
}

/// The numbers of memtables that stayed at the end of the runs, and the best ones by measurements.
fn staying(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "load",
        "--local_memtables",
        "round",
        "ops/s",
        "memtables that stay at the end",
        "best number by measurements",
    ]);
    for run in facts.runs {
        let Some(staying) = run.cell.staying else { continue };
        let of = |name: &str| run.offload.get(name).map_or_else(|| "—".to_owned(), u64::to_string);
        grid.push([
            run.cell.load.name(),
            staying.word(),
            (run.round + 1).to_string(),
            number(run.rate(), 0),
            of("offload_shards_staying"),
            of("offload_shards_staying_best"),
        ]);
    }
    grid
}

/// The records and shards of take-overs.
fn takeovers(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "next owner",
        "round",
        "s until the first read",
        "records in the log",
        "replayed",
        "shards at nodes, MiB",
        "shards kept",
        "dropped, in tables",
        "dropped, others",
    ]);
    for run in facts.runs {
        let Some(takeover) = &run.takeover else { continue };
        grid.push([
            run.cell.load.name(),
            (run.round + 1).to_string(),
            format!("{:.2}", takeover.seconds),
            takeover.records.to_string(),
            takeover.records_replayed().to_string(),
            format!("{:.1}", takeover.shard_bytes as f64 / MIB),
            takeover.kept.to_string(),
            takeover.dropped_flushed.to_string(),
            takeover.dropped.to_string(),
        ]);
    }
    grid
}

/// The figures of each of several databases.
fn databases(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "load",
        "round",
        "database",
        "ops/s",
        "second half, ops/s",
        "stops",
        "share of the time in stalls",
    ]);
    for run in facts.runs {
        let Some(several) = &run.several else { continue };
        for (at, database) in several.databases.iter().enumerate() {
            grid.push([
                run.cell.load.name(),
                (run.round + 1).to_string(),
                (at + 1).to_string(),
                format!("{:.0}", database.rate),
                number(database.second_half, 0),
                database.stops.to_string(),
                format!("{:.2}", database.stalled),
            ]);
        }
    }
    grid
}

/// Bytes by link of the loads of Table 5.
fn bytes_by_link(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "load",
        "mode",
        "owner to memory node, MiB",
        "memory node to owner, MiB",
        "the same, look-ups since the open, MiB",
        "owner to storage, MiB",
        "storage to owner, MiB",
        "other nodes to storage since their start, MiB",
    ]);
    let modes = [Mode::OffClassic, Mode::Off, Mode::All];
    let cells = LINK_LOADS.map(|load| modes.map(|mode| Cell::new(mode, WIDE, load)));
    for cell in cells.into_iter().flatten() {
        if facts.of(&cell).next().is_none() {
            continue;
        }
        let answers = |run: &Run| {
            let of = |name: &str| run.offload.get(&format!("offload_shards_{name}")).copied();
            Some((of("cache_read_bytes")? + of("answer_bytes")?) as f64)
        };
        let bytes: [fn(&Run) -> Option<f64>; 6] = [
            |run| Some(run.moved()?.memtables_sent as f64),
            |run| Some(run.moved()?.memtables_fetched as f64),
            answers,
            |run| Some(run.moved()?.written as f64),
            |run| Some(run.moved()?.read as f64),
            |run| Some(run.written_elsewhere()),
        ];
        let figures = bytes.map(|of| number(facts.median(&cell, of).map(|bytes| bytes / MIB), 1));
        grid.push([cell.load.name(), cell.mode.name().to_owned()].into_iter().chain(figures));
    }
    grid
}

fn links(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new(["mode", "link", "peak, MB/s", "mean, MB/s"]);
    let modes = [Mode::OffClassic, Mode::Off, Mode::AllWhole, Mode::All];
    for cell in modes.map(small) {
        let Some(links) = facts.of(&cell).find_map(|run| Some(run.timeline.as_ref()?.links)) else {
            continue;
        };
        let named = [
            ("owner to memory node", links.owner_to_memory),
            ("memory node to owner", links.memory_to_owner),
            ("owner to storage", links.owner_to_storage),
            ("storage to owner", links.storage_to_owner),
            ("other nodes to storage", links.nodes_to_storage),
        ];
        for (name, LinkUse { peak, mean }) in named {
            let figures = [format!("{peak:.1}"), format!("{mean:.1}")];
            let names = [cell.mode.name().to_owned(), name.to_owned()];
            grid.push(names.into_iter().chain(figures));
        }
    }
    grid
}

/// The figures that show whether processors were the limit of each run, and the work that left the
/// owner.
fn validity(facts: &Facts<'_>) -> Section {
    let mut grid = Grid::new([
        "load",
        "mode",
        "round",
        "ops/s",
        "share of the processors",
        "jobs away",
        "jobs here",
        "shards sent",
        "shards that stayed",
    ]);
    for run in facts.runs {
        let of = |name: &str| run.offload.get(name).copied().unwrap_or_default();
        let here = run.offload.iter().filter(|(name, _)| name.starts_with("offload_here_"));
        let stayed = of("offload_shards_no_room") + of("offload_shards_not_sent");
        grid.push([
            format!("{}, {}", run.cell.load.name(), run.cell.link.name()),
            run.cell.mode.name().to_owned(),
            (run.round + 1).to_string(),
            number(run.rate(), 0),
            number(run.busy_share, 2),
            of("offload_jobs_away").to_string(),
            here.map(|(_, count)| count).sum::<u64>().to_string(),
            of("offload_shards_sent").to_string(),
            stayed.to_string(),
        ]);
    }
    let note = format!(
        "A run measures the links only if the processors are less than {BUSY_MAX:.2} busy. Capacity \
         and replication of the storage, the switch, and the cores of separate machines are not \
         emulated. The link between compute and memory node is loopback."
    );
    Section {
        title: "The runs".to_owned(),
        grids: if grid.rows.is_empty() { Vec::new() } else { vec![grid] },
        notes: vec![note],
        ..Section::default()
    }
}

/// Settings of the runs, for the head of the report.
pub(super) fn settings(flags: &O3Flags, took_s: u64) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let speed = match flags.speed() {
        1.0 => String::new(),
        speed => format!(" **Rates are {speed} times those of the descriptions.**"),
    };
    format!(
        "The evaluation of O³-LSM, in alternating runs of archipelago {version}, {runs} of each; \
         medians. Ratios between own modes are compared with the paper's.\n\n\
         - **Emulated**: the links of compute and memory nodes to the storage, each with 12.5 or \
         31.25 MB/s in each direction and 7.5 MB/s per stream, which are a tenth of the paper's \
         (docs/devices/ds-link-1g.toml, ds-link-2g5.toml). Executors on storage nodes have the \
         streams and no link (ds-local.toml).{speed} Real: processors, memory, loopback, and the \
         disk of the log.\n\
         - **Machine**: {cores} cores for all roles and clients; the table took {minutes} minutes.\n\
         - **Processes**: a manager, three executors on storage nodes, a memory node and an executor \
         behind its own link; each executor and the owner run four jobs.\n\
         - **Store**: memtables of {memtable:.1} MiB, 8 local or 2 local and 6 at the memory node; \
         16 buckets, or one in the classic modes; L0 4, 32, 48; tables of a memtable, base level of \
         four; cache {cache:.1} MiB; 10 bloom bits; no compression; keys of 16 B.\n\
         - **Loads**: random writes fill {memtables} memtables; reads choose from {read:.0} MiB for \
         {seconds} s.\n",
        version = env!("CARGO_PKG_VERSION"),
        runs = flags.runs(),
        minutes = took_s.div_ceil(60),
        memtable = flags.memtable_bytes() as f64 / MIB,
        cache = flags.read_bytes() as f64 / 8.0 / MIB,
        memtables = flags.memtables(),
        read = flags.read_bytes() as f64 / MIB,
        seconds = flags.seconds(),
    )
}
