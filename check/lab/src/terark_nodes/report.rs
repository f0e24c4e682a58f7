//! The sections of the report: a section of rows for each group, then the figures behind them. The
//! functions are pure.

use super::Note;
use super::bounds::{Latencies, mixed_over_coded, mixed_over_replicated};
use super::flags::NodesFlags;
use super::link::{Card, Link, read_times};
use super::modes::{Mode, Workload};
use super::plan::{Group, Step};
use super::rows::{Facts, Row};
use super::run::{Run, repair_terms};
use super::words::{log_full_bytes, slack_bytes, throttled_bytes_per_s};
use crate::page::{Grid, Section};
use crate::terark_engine::run::Collection;
use archipelago_bench::harness::store::DeviceSpec;

const MIB: f64 = 1_048_576.0;
/// Share of the processors' time above which a run measures them and not the card.
const BUSY_MAX: f64 = 2.0 / 3.0;
/// Share of the card's rate from which the card counts as full.
const FULL_MIN: f64 = 0.9;
/// Values of α and p of the table of Figure 7.
const TABLES: [f64; 8] = [0.001, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0];
const SMALL: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
/// Value of α in the table of backends, below which the paper's mixed files win.
const BACKEND_TABLES: f64 = 0.1;

/// The sections of the report.
pub(super) fn sections(facts: &Facts<'_>, rows: &[Row], notes: &[Note]) -> Vec<Section> {
    let of = |group: Group| {
        let rows: Vec<_> =
            rows.iter().filter(|row| row.group == group).map(|row| row.page_row.clone()).collect();
        let grids = match group {
            Group::Insert | Group::Update => vec![arithmetic(facts, group)],
            Group::Gc => vec![collections(facts)],
            Group::Model => vec![model(), backends(facts)],
            _ => Vec::new(),
        };
        let title = group.title().to_owned();
        let mut section = Section { title, rows, grids, ..Section::default() };
        section.grids.retain(|grid| !grid.rows.is_empty());
        let of_group = notes.iter().filter(|note| note.group == group);
        section.notes = of_group.map(|note| note.text.clone()).collect();
        let is_empty = section.rows.is_empty() && section.notes.is_empty();
        (!is_empty).then_some(section)
    };
    let mut sections: Vec<Section> = facts.flags.groups().into_iter().filter_map(of).collect();
    sections.extend(validity(facts));
    sections
}

/// Notes about rows that are left out because a flag names no program for them.
pub(super) fn notes_of_programs(flags: &NodesFlags) -> Vec<Note> {
    let groups = flags.groups();
    let mut notes = Vec::new();
    if groups.contains(&Group::Space) && flags.by_key.is_none() {
        let text = "The row over collection key by key is left out, because --by_key names no \
                    client with that collection.";
        notes.push(Note { group: Group::Space, text: text.to_owned() });
    }
    if groups.contains(&Group::Embedded) && flags.before.is_none() {
        let text = "The rows are left out, because --before names no earlier program.";
        notes.push(Note { group: Group::Embedded, text: text.to_owned() });
    }
    notes
}

/// The figures from which the bounds of the card follow.
fn arithmetic(facts: &Facts<'_>, group: Group) -> Grid {
    let step = if group == Group::Insert { Step::Load } else { Step::Update };
    let mut grid = Grid::new([
        "workload",
        "W, rewriting without separation",
        "share in the levels",
        "mode",
        "bytes on the card per user byte, by arithmetic",
        "measured",
    ]);
    let modes = [
        Mode::InlineR3,
        Mode::InlineEc,
        Mode::SeparatedR3,
        Mode::SeparatedEc,
        Mode::Dr,
        Mode::AllOn,
    ];
    for workload in Workload::ALL {
        let Some(rewrites) = facts.rewrites(workload, step) else { continue };
        let share = workload.share_in_levels(facts.flags);
        let record = facts.record_bytes(workload);
        for mode in modes {
            let Some(sent) = facts.sent_per_byte(workload, mode, step) else { continue };
            let measured = facts.median(workload, mode, |run| {
                Some(run.sent_bytes(step, None)? / run.user_bytes(step, record)?)
            });
            grid.push([
                workload.name().to_owned(),
                format!("{rewrites:.2}"),
                format!("{share:.4}"),
                mode.name().to_owned(),
                format!("{sent:.2}"),
                number(measured, 2),
            ]);
        }
    }
    grid
}

/// Calls and times of garbage collection, next to those of an idle card.
fn collections(facts: &Facts<'_>) -> Grid {
    let mut grid = Grid::new([
        "round",
        "jobs",
        "files",
        "records",
        "valid share",
        "calls for keys",
        "calls for look-ups",
        "calls for values",
        "s for keys",
        "s for look-ups",
        "s for values",
        "ms per call",
        "on an idle card, by arithmetic",
        "key by key, ms each",
    ]);
    let times = read_times(Card::Full, facts.flags.scale);
    for run in facts.runs {
        let Some(found) = run.main(Step::ColdUpdate).and_then(Collection::of) else { continue };
        let ms_per_call = |seconds: f64| 1e3 * seconds / found.read_calls;
        let idle = times.map(|times| ms_per_call(times.idle_s(found.read_calls, found.read_bytes)));
        let by_key = run.rate(Step::KeyByKey).map(|rate| 1e3 / rate);
        grid.push([
            (run.round + 1).to_string(),
            format!("{:.0}", found.jobs),
            format!("{:.0}", found.files),
            format!("{:.0}", found.records),
            format!("{:.3}", found.valid_share),
            format!("{:.0}", found.files),
            format!("{:.0}", found.lookup_calls),
            format!("{:.0}", found.read_calls - found.lookup_calls - found.files),
            format!("{:.1}", found.key_s),
            format!("{:.1}", found.lookup_s),
            format!("{:.1}", found.seconds - found.key_s - found.lookup_s),
            format!("{:.1}", ms_per_call(found.seconds)),
            number(idle, 1),
            number(by_key, 1),
        ]);
    }
    grid
}

/// The table of Figure 7: replicated tables with coded values, over coded tables and values.
fn model() -> Grid {
    let head = ["α = table bytes over value bytes".to_owned(), "mixed over R3".to_owned()];
    let columns = SMALL.map(|small| format!("mixed over EC, p = {small}"));
    let mut grid = Grid::new(head.into_iter().chain(columns));
    for tables in TABLES {
        let first = [format!("{tables}"), format!("{:.3}", mixed_over_replicated(tables))];
        let ratios =
            SMALL.map(|small| format!("{:.3}", mixed_over_coded(Latencies::PAPER, tables, small)));
        grid.push(first.into_iter().chain(ratios));
    }
    grid
}

/// Ratios of latencies by backend, and what the model makes of them.
fn backends(facts: &Facts<'_>) -> Grid {
    let head = ["backend", "K_s", "K_l"].map(str::to_owned);
    let columns = SMALL.map(|small| format!("mixed over EC, α = {BACKEND_TABLES}, p = {small}"));
    let mut grid = Grid::new(head.into_iter().chain(columns));
    let paper = [("paper", Latencies::PAPER)];
    for (name, latencies) in paper.into_iter().chain(facts.latencies()) {
        let Latencies { small_coded, large_coded } = latencies;
        let first = [name.to_owned(), format!("{small_coded:.2}"), format!("{large_coded:.2}")];
        let ratio = |small: f64| mixed_over_coded(latencies, BACKEND_TABLES, small);
        grid.push(first.into_iter().chain(SMALL.map(|small| format!("{:.3}", ratio(small)))));
    }
    grid
}

/// Whether processors or the card were the limit of each step that writes. `None` if no step of a
/// run over storage nodes writes.
fn validity(facts: &Facts<'_>) -> Option<Section> {
    let mut grid = Grid::new([
        "workload",
        "mode",
        "card",
        "step",
        "share of the card's rate",
        "share of a log connection",
        "share of the processors",
        "round",
        "limit",
    ]);
    for run in facts.runs {
        for step in &run.steps {
            let is_emulated = run.cell.card != Card::Absent;
            let wanted = match step.step {
                Step::Load | Step::Update | Step::Throttled | Step::ColdUpdate => true,
                Step::SingleGroups | Step::LoopFill => is_emulated,
                _ => false,
            };
            if !wanted || run.cell.mode.is_local() {
                continue;
            }
            let card = run.card_share(step.step, facts.flags.scale);
            let connection = run.log_connection_share(step.step, facts.flags.scale);
            let used = UsedShares { card, connection, busy: step.busy_share };
            grid.push([
                run.cell.workload.name().to_owned(),
                run.cell.mode.name().to_owned(),
                run.cell.card.name().to_owned(),
                step_name(step.step),
                number(card, 2),
                number(connection, 2),
                number(step.busy_share, 2),
                (run.round + 1).to_string(),
                limit(used).to_owned(),
            ]);
        }
    }
    let note = format!(
        "A run measures the card if the card is at least {FULL_MIN:.1} full and the processors are \
         less than {BUSY_MAX:.2} busy. A run that is limited by processors says nothing about the \
         card; repeat it with a larger --scale. The connection to each node of a serial log carries \
         a copy of the log and a part of the rest, and is full at {FULL_MIN:.1}. A run without a full \
         resource waits for round trips."
    );
    let title = "The limit of each run".to_owned();
    let is_empty = grid.rows.is_empty();
    let section = Section { title, grids: vec![grid], notes: vec![note], ..Section::default() };
    (!is_empty).then_some(section)
}

/// Shares of resources that a step of a run used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsedShares {
    pub(super) card: Option<f64>,
    /// Share of the connection to a node of a serial log.
    pub(super) connection: Option<f64>,
    pub(super) busy: Option<f64>,
}

/// The resource that limits a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunLimit {
    Processors,
    Card,
    LogConnections,
    /// No resource is full.
    RoundTrips,
    /// A share was not measured.
    Unknown,
}

impl RunLimit {
    pub(super) fn of(used: UsedShares) -> Self {
        let is_full = |share: Option<f64>| share.is_some_and(|share| share >= FULL_MIN);
        match (used.card, used.busy) {
            (_, Some(busy)) if busy >= BUSY_MAX => Self::Processors,
            (Some(_), Some(_)) if is_full(used.card) => Self::Card,
            (Some(_), Some(_)) if is_full(used.connection) => Self::LogConnections,
            (Some(_), Some(_)) => Self::RoundTrips,
            _ => Self::Unknown,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Processors => "processors",
            Self::Card => "card",
            Self::LogConnections => "connections of the log",
            Self::RoundTrips => "round trips",
            Self::Unknown => "unknown",
        }
    }
}

/// The limit of a run, as text.
pub(super) fn limit(used: UsedShares) -> &'static str {
    RunLimit::of(used).name()
}

fn step_name(step: Step) -> String {
    format!("{step:?}").to_lowercase()
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "—".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Figures of all steps, for the report alone.
pub(super) fn appendix(facts: &Facts<'_>) -> Section {
    let mut grid = Grid::new([
        "workload",
        "mode",
        "card",
        "step",
        "round",
        "ops/s",
        "settle s",
        "bytes per log message",
        "received MB/s",
        "client CPU s",
        "nodes CPU s",
        "stored MiB",
    ]);
    for run in facts.runs {
        grid.rows.extend(run.steps.iter().filter_map(|step| figures(run, step.step)));
    }
    let title = "The figures behind the rows".to_owned();
    Section { title, grids: vec![grid], ..Section::default() }
}

fn figures(run: &Run, step: Step) -> Option<Vec<String>> {
    let result = run.main(step)?;
    let cpu = run.cpu_s(step);
    let stored = if step == Step::Throttled { run.stored_bytes() } else { None };
    Some(vec![
        run.cell.workload.name().to_owned(),
        run.cell.mode.name().to_owned(),
        run.cell.card.name().to_owned(),
        step_name(step),
        (run.round + 1).to_string(),
        number(run.rate(step), 0),
        number(result.settle_seconds, 1),
        number(run.log_message_bytes(step), 0),
        number(run.received_rate(step).map(|rate| rate / 1e6), 1),
        number(cpu.map(|(client, _)| client), 1),
        number(cpu.map(|(_, nodes)| nodes), 1),
        number(stored.map(|bytes| bytes / MIB), 0),
    ])
}

/// Settings of the runs, for the head of the report. Each group adds what its rows need, so that
/// the part of a page with one group says all about it and nothing about others.
pub(super) fn settings(flags: &NodesFlags, device: &DeviceSpec, took_s: u64) -> String {
    let groups = flags.groups();
    let has = |wanted: &[Group]| wanted.iter().any(|group| groups.contains(group));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!(
        "The evaluation of Terark-DS, in alternating runs of archipelago {version}, {runs} of \
         each; medians. Ratios between own modes are compared with the paper's.\n\n\
         - **Machine**: {cores} cores for all processes; the table took {minutes} minutes.\n",
        version = env!("CARGO_PKG_VERSION"),
        runs = flags.runs(),
        minutes = took_s.div_ceil(60),
    );
    if groups.iter().any(|group| group.is_emulated()) || has(&[Group::Recovery]) {
        text += &emulated(flags, device);
    }
    if has(&[Group::Loopback]) {
        text += "- **Loopback**: neither the network nor devices are emulated.\n";
    }
    if groups.iter().any(|group| group.has_nodes()) {
        text += &store(flags);
    }
    if has(&[Group::Log]) {
        text += "- **Groups of the log**: one thread with batches of 16 values (263 KB) has one \
                 group under way at a time.\n";
    }
    if has(&[Group::Model]) {
        text += "- **Whole rows**: blocks of 1 MiB, which are as long as a row of a coded file.\n";
    }
    if has(&[Group::Space, Group::Cost]) {
        text += &throttled(flags);
    }
    if has(&[Group::Recovery]) {
        text += &recovery(flags);
    }
    if has(&[Group::Growth]) {
        text += "- **Growth**: virtual time, tables with three replicas, 12 hosts with writers. \
                 The cards of all nodes have the same rate, and so have those of the hosts. \
                 `archipelago-sim --measure storage-scale` prints the same figures.\n";
    }
    if has(&[Group::Embedded]) && flags.before.is_some() {
        text += &embedded(flags);
    }
    text
}

fn emulated(flags: &NodesFlags, device: &DeviceSpec) -> String {
    let (card, stream, trip) = match Link::new(Card::Full, flags.scale) {
        Some(link) => {
            (link.card_bytes_per_s / 1e6, link.stream_bytes_per_s / 1e6, link.round_trip_s * 1e3)
        }
        None => (f64::NAN, f64::NAN, f64::NAN),
    };
    format!(
        "- **Emulated**, all times stretched by {scale}: a card of the client with {card:.0} MB/s \
         in each direction, {stream:.0} MB/s per connection, a round trip of {trip:.1} ms; a \
         device of each storage node with {device_rate:.0} MB/s and {latency:.1} ms per operation \
         (docs/devices/storage-node.toml). Real: processors, memory, loopback.\n",
        scale = flags.scale,
        device_rate = device.write_bytes_per_s as f64 * device.scale / 1e6,
        latency = device.write_latency_us as f64 / device.scale / 1e3,
    )
}

fn store(flags: &NodesFlags) -> String {
    format!(
        "- **Data**: {mib:.0} MiB of 24-byte keys and values; updates write three times as many \
         bytes; no compression; each write logged.\n\
         - **Store**: six storage nodes, seven for a repair; memtables 4 MiB × 4 in two shards, \
         tables 4 MiB, value files 8 MiB, base level 2 MiB, cache {cache:.1} MiB, 10 bloom bits \
         per key, {threads} threads and 8 background jobs, values of 512 B and more separated, \
         space bounded by 1.5 times the live bytes.\n\
         - **R3**: three replicas. **EC**: RS(4,2) for tables and value files. **DR**: three \
         replicas of tables, RS(4,2) of value files. The log always has three replicas, of which \
         two acknowledge. **All on**: DR and adaptive log writing; network-efficient garbage \
         collection is a part of every separated mode.\n",
        mib = flags.data_bytes() as f64 / MIB,
        cache = flags.data_bytes() as f64 / 100.0 / MIB,
        threads = flags.threads,
    )
}

fn throttled(flags: &NodesFlags) -> String {
    let mut text = format!(
        "- **Throttled updates** of {fast:.0} MB/s (Pareto-1K: half) for {seconds} s. Their bounds \
         of 1.25 and 1.15 include a slack of {slack:.0} MiB; other separated modes have a bound of \
         2.0 there.\n",
        fast = throttled_bytes_per_s(flags, Workload::Fixed16k) as f64 / 1e6,
        seconds = flags.throttled_seconds(),
        slack = slack_bytes() as f64 / MIB,
    );
    if flags.by_key.is_some() {
        text += "- **Collection key by key**: the same client, built with the feature `gc-by-key`. \
                 Its garbage collection looks up and reads one record at a time.\n";
    }
    text
}

fn recovery(flags: &NodesFlags) -> String {
    let terms = repair_terms(Card::Full, flags.scale);
    format!(
        "- **Repair**: seven nodes; rates of {node:.1} MB/s for a node and {cluster:.0} MB/s for \
         all, read and written, which are the defaults, stretched. {threads} threads read at a \
         quarter of the card's rate for {seconds} s before the loss, between loss and repair, and \
         during it. The time of the repair begins when the node counts as lost.\n\
         - **Take-over**: nothing is emulated. The owner is killed when its log has 0.9 of \
         {log:.0} MiB, and the next process starts then. Its time ends with its first read. A \
         memtable has room for the whole log.\n",
        node = terms.node_bytes_per_s as f64 / 1e6,
        cluster = terms.cluster_bytes_per_s as f64 / 1e6,
        threads = flags.threads,
        seconds = flags.timed_seconds(),
        log = log_full_bytes(flags) as f64 / MIB,
    )
}

fn embedded(flags: &NodesFlags) -> String {
    format!(
        "- **Embedded**: {mib:.0} MiB of records of 116 bytes in a directory in memory, one \
         thread; a quarter as many reads and scans of 10 entries. Instructions by valgrind. Files \
         after a load of 20,000 records, by kind and by the lengths of tables. The earlier \
         program is that of commit {commit}.\n",
        mib = flags.data_bytes() as f64 / MIB,
        commit = flags.before_commit,
    )
}
