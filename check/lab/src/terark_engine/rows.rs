//! The rows of the table: figures of the runs, targets, and bounds by arithmetic. The functions are
//! pure. Decisions 0064 and 0109 fix the rows.

use archipelago_env::device::Direction;
use serde::Serialize;

use super::bounds;
use super::flags::TerarkEngineFlags;
use super::plan::{self, Mode, Paper, Part, Phase, StepKind};
use super::run::Run;
use crate::claim::{Target, median};
use crate::counted::COUNTED;
use crate::page;
use crate::sides::{Goal, Sides};
use archipelago_bench::harness::store::DeviceSpec;

/// Values that an iterator reads ahead at most.
const VALUES_IN_FLIGHT: u64 = 64;
/// Read calls of garbage collection for each of its records, at most.
const CALLS_PER_RECORD_MAX: f64 = 0.02;
/// Bytes that garbage collection may read: this multiple of the valid bytes, and this share of the
/// files.
const READ_VALID_FACTOR: f64 = 1.25;
const READ_KEYS_SHARE: f64 = 0.005;
/// Share of the keys in the bytes of a value file, at least.
const KEYS_SHARE_MIN: f64 = 0.0025;
/// Round trips of a collection: one for its keys and one for the values. Files without garbage take
/// no look-up.
const COLLECTION_TRIPS_MIN: f64 = 2.0;
const MIB: f64 = 1_048_576.0;
/// Reason for which collection needs more calls than its target says.
const SMALL_FILES: &str = "Each file costs a call for its keys and one for its values, and a flush \
                           of a memtable of 4 MiB writes files with few records.";

/// Facts from which the rows follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) flags: &'a TerarkEngineFlags,
    /// The network volume at the scale of the runs.
    pub(super) device: &'a DeviceSpec,
    pub(super) runs: &'a [Run],
}

/// Function that takes a figure from a run.
type Figure = fn(&Facts<'_>, &Run) -> Option<f64>;
/// Function that computes a bound, as text.
type Bound = fn(&Facts<'_>) -> Option<String>;

/// A row before it is measured.
struct Claim {
    part: Part,
    name: String,
    unit: &'static str,
    decimals: usize,
    figure: Figure,
    mode: Mode,
    peer: Option<Mode>,
    goal: Goal,
    bound: Option<Bound>,
    paper: &'static str,
    /// Why the target is missed, if it is and the cause is known.
    cause: &'static str,
}

/// A row with its figures, for the result file and for the page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) part: Part,
    #[serde(flatten)]
    pub(super) page_row: page::Row,
}

impl Claim {
    fn new(part: Part, name: impl Into<String>, unit: &'static str, figure: Figure) -> Self {
        let decimals = match unit {
            "ops/s" | "MiB" | "instructions" => 0,
            "" => 3,
            _ => 2,
        };
        Self {
            part,
            name: name.into(),
            unit,
            decimals,
            figure,
            mode: Mode::Separated,
            peer: None,
            goal: Goal::Open,
            bound: None,
            paper: "",
            cause: "",
        }
    }

    fn modes(self, mode: Mode, peer: Mode) -> Self {
        Self { mode, peer: Some(peer), ..self }
    }

    fn of(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    fn at_least(self, ratio: f64) -> Self {
        Self { goal: Goal::Ratio(Target::AtLeast(ratio)), ..self }
    }

    fn at_most(self, ratio: f64) -> Self {
        Self { goal: Goal::Ratio(Target::AtMost(ratio)), ..self }
    }

    fn within(self, most: f64) -> Self {
        Self { goal: Goal::Measured(Target::AtMost(most)), ..self }
    }

    fn each_within(self, at_most: f64) -> Self {
        Self { goal: Goal::Each { at_most }, ..self }
    }

    fn bound(self, bound: Bound) -> Self {
        Self { bound: Some(bound), ..self }
    }

    fn paper(self, paper: &'static str) -> Self {
        Self { paper, ..self }
    }

    fn cause(self, cause: &'static str) -> Self {
        Self { cause, ..self }
    }
}

/// All rows, in the order of the table.
fn claims() -> Vec<Claim> {
    let parts = [on_volume(), on_disk(), of_papers(), of_space(), of_collection(), of_switch()];
    parts.into_iter().flatten().collect()
}

fn fill_rate(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.settled_rate(StepKind::Fill, "fillrandom")
}

fn fill_speed(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.rate(StepKind::Fill, "fillrandom")
}

fn update_rate(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.settled_rate(StepKind::Update, "overwrite")
}

fn update_speed(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.rate(StepKind::Update, "overwrite")
}

fn read_rate(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.rate(StepKind::Read, "readrandom")
}

fn space_max(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.space_max()
}

fn space_mean(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.space_mean()
}

fn on_volume() -> Vec<Claim> {
    use Mode::{Inline, Separated};
    let row =
        |name, figure| Claim::new(Part::Volume, name, "ops/s", figure).modes(Separated, Inline);
    vec![
        row("fillrandom until settled", fill_rate)
            .at_least(2.0)
            .bound(fill_bound)
            .paper("up to 3.43× (Mixed-8K, erasure coding on both sides)"),
        row("fillrandom alone", fill_speed),
        row("overwrite until settled", update_rate)
            .at_least(2.5)
            .bound(update_bound)
            .paper("2.10× to 6.02×"),
        row("overwrite alone", update_speed),
    ]
}

fn on_disk() -> Vec<Claim> {
    use Mode::{AsBlobDb, BlobDb, Inline, Separated};
    let row = |part, name, figure| Claim::new(part, name, "ops/s", figure);
    let fill = |peer| row(Part::Fill, "fillrandom until settled", fill_rate).modes(Separated, peer);
    let update = |name, figure| row(Part::Update, name, figure).modes(AsBlobDb, BlobDb);
    let read =
        |peer| row(Part::Update, "readrandom", read_rate).modes(AsBlobDb, peer).at_least(1.0);
    let mixed =
        |peer| row(Part::Mixed, "readrandom", read_rate).modes(Separated, peer).at_least(1.0);
    let space = |name, figure| Claim::new(Part::Update, name, "", figure).modes(AsBlobDb, BlobDb);
    vec![
        fill(Inline).at_least(1.0).bound(|facts| fill_bound_in(facts, Part::Fill)),
        fill(BlobDb).at_least(1.0).bound(same_work).paper("slower than Terark-DS"),
        Claim::new(Part::Fill, "peak memory", "MiB", |_, run| run.peak_mib(StepKind::Fill))
            .modes(Separated, Inline)
            .at_most(1.0)
            .bound(same_work),
        update("overwrite until settled", update_rate)
            .at_least(1.5)
            .bound(|facts| update_bound_at_peers_space(facts, writes_of_peer))
            .paper("21.3 % to 62.6 % over separating stores"),
        update("overwrite alone", update_speed),
        space("largest space amplification", space_max).at_most(1.0).bound(least_space),
        space("mean space amplification", space_mean).bound(least_space),
        row(Part::Update, "overwrite until settled", update_rate)
            .modes(AsBlobDb, Inline)
            .bound(|facts| update_bound_at_peers_space(facts, writes_inline)),
        read(Inline).bound(|_| Some(point_read_bound(&[plan::VALUE_BYTES]))),
        read(BlobDb).bound(same_work).paper("comparable"),
        mixed(Inline).bound(|_| Some(point_read_bound(&plan::mixed_lengths()))),
        mixed(BlobDb).bound(same_work).paper("comparable"),
    ]
}

fn of_papers() -> Vec<Claim> {
    use Mode::{Inline, NoPrefetch, Separated};
    let rate = |paper: Paper, phase: Phase, figure: Figure| {
        let name = paper.benchmark(phase);
        Claim::new(Part::Scans, name, "ops/s", figure).modes(Separated, Inline)
    };
    let (fixed, mixed, pareto) = (Paper::Fixed16k, Paper::Mixed8k, Paper::Pareto1k);
    vec![
        rate(fixed, Phase::Scan, |_, run| served(run, Paper::Fixed16k, Phase::Scan))
            .at_least(0.95)
            .bound(|_| Some(scan_bound(Paper::Fixed16k)))
            .paper("similar"),
        rate(mixed, Phase::Scan, |_, run| served(run, Paper::Mixed8k, Phase::Scan))
            .bound(|_| Some(scan_bound(Paper::Mixed8k)))
            .paper("similar"),
        rate(pareto, Phase::Scan, |_, run| served(run, Paper::Pareto1k, Phase::Scan))
            .at_least(0.6)
            .bound(|_| Some(scan_bound(Paper::Pareto1k)))
            .paper("lower"),
        rate(fixed, Phase::Read, |_, run| served(run, Paper::Fixed16k, Phase::Read))
            .at_least(1.0)
            .bound(|_| Some(point_read_bound(&Paper::Fixed16k.lengths()))),
        rate(mixed, Phase::Read, |_, run| served(run, Paper::Mixed8k, Phase::Read))
            .at_least(1.0)
            .bound(|_| Some(point_read_bound(&Paper::Mixed8k.lengths())))
            .paper("+32.1 %"),
        rate(pareto, Phase::Read, |_, run| served(run, Paper::Pareto1k, Phase::Read))
            .bound(|_| Some(point_read_bound(&Paper::Pareto1k.lengths())))
            .paper("+25.7 %"),
        Claim::new(Part::Prefetch, "fixed16kscan, prefetch on against off", "ops/s", |_, run| {
            run.rate(StepKind::Scan, "fixed16kscan")
        })
        .modes(Separated, NoPrefetch)
        .at_least(3.0)
        .bound(prefetch_bound),
    ]
}

fn served(run: &Run, paper: Paper, phase: Phase) -> Option<f64> {
    run.rate(StepKind::Serve(paper), paper.benchmark(phase))
}

fn of_space() -> Vec<Claim> {
    use Mode::{BlobDb, Bound115, Bound125, Bound150};
    let space = |name: &str, figure| Claim::new(Part::Space, name, "", figure);
    let limit = |mode: Mode| mode.space_limit().unwrap_or(f64::NAN);
    let largest = "largest space amplification at a sample";
    vec![
        space(&format!("{largest}, bound 1.15"), space_max)
            .of(Bound115)
            .each_within(limit(Bound115))
            .bound(|facts| Some(promised_space(facts, Bound115))),
        space(&format!("{largest}, bound 1.25"), space_max)
            .of(Bound125)
            .each_within(limit(Bound125))
            .bound(least_space),
        space(&format!("{largest}, bound 1.5"), space_max)
            .of(Bound150)
            .each_within(limit(Bound150))
            .bound(least_space),
        space("mean space amplification, bound 1.25", space_mean)
            .modes(Bound125, BlobDb)
            .at_most(0.8)
            .bound(least_space)
            .paper("0.48× to 0.23× with redundancy, 0.72× to 0.92× with erasure coding on both"),
        space("mean space amplification, bound 1.5", space_mean)
            .modes(Bound150, BlobDb)
            .bound(least_space),
        Claim::new(Part::Space, "updates under the limit, bound 1.15", "ops/s", update_speed)
            .modes(Bound115, Bound125)
            .bound(limited_updates),
        Claim::new(Part::Space, "updates under the limit, bound 1.25", "ops/s", update_speed)
            .modes(Bound125, BlobDb)
            .bound(limited_updates),
        Claim::new(Part::Space, "live bytes, counted by a scan", "MiB", |_, run| {
            run.live_bytes().map(|bytes| bytes as f64 / MIB)
        })
        .modes(Bound125, BlobDb)
        .bound(live_bound),
    ]
}

fn of_collection() -> Vec<Claim> {
    let row = |name, figure| Claim::new(Part::Gc, name, "", figure);
    vec![
        row("read calls per record", |_, run| run.collection()?.calls_per_record())
            .within(CALLS_PER_RECORD_MAX)
            .bound(calls_bound)
            .cause(SMALL_FILES),
        row("bytes read, over 1.25 times the valid bytes and 0.5 % of the files", |_, run| {
            let found = run.collection()?;
            let allowed = READ_VALID_FACTOR * found.valid_share + READ_KEYS_SHARE;
            Some(found.read_share / allowed)
        })
        .within(1.0)
        .bound(read_bound),
        row("bytes read, over the valid bytes and 0.5 % of the files", |_, run| {
            let found = run.collection()?;
            Some(found.read_share / (found.valid_share + READ_KEYS_SHARE))
        })
        .within(1.0)
        .bound(read_bound_of_large_values),
        row("time, over look-ups and reads key by key", |_, run| {
            let by_key_s = 1.0 / run.rate(StepKind::KeyByKey, "readrandom")?;
            let found = run.collection()?;
            Some(found.seconds / (found.valid_records * by_key_s))
        })
        .within(0.25)
        .bound(collection_time_bound)
        .paper("network is 28.4 % and 22.2 % of the time"),
    ]
}

fn of_switch() -> Vec<Claim> {
    let figures: [Figure; COUNTED.len()] = [
        |_, run| run.instructions.get(COUNTED[0]).copied(),
        |_, run| run.instructions.get(COUNTED[1]).copied(),
        |_, run| run.instructions.get(COUNTED[2]).copied(),
    ];
    let row = |(name, figure)| {
        Claim::new(Part::Off, name, "instructions", figure)
            .modes(Mode::Inline, Mode::Earlier)
            .at_most(1.01)
            .bound(same_work)
    };
    COUNTED.into_iter().zip(figures).map(row).collect()
}

/// Rewriting factor W of the mode without separation on the network volume.
pub(super) fn rewrites(facts: &Facts<'_>, kind: StepKind) -> Option<f64> {
    rewrites_in(facts, Part::Volume, kind)
}

/// Rewriting factor W of the mode without separation in `part`.
fn rewrites_in(facts: &Facts<'_>, part: Part, kind: StepKind) -> Option<f64> {
    let benchmark = if kind == StepKind::Fill { "fillrandom" } else { "overwrite" };
    let amplification =
        facts.median_of(part, Mode::Inline, |run| run.write_amplification(kind, benchmark))?;
    Some(bounds::rewrites_of(amplification))
}

/// Both sides do the same work by arithmetic: they write log and value once, read a value once,
/// hold the same memtables and caches, or run the same code.
fn same_work(_: &Facts<'_>) -> Option<String> {
    Some(times(1.0))
}

fn fill_bound(facts: &Facts<'_>) -> Option<String> {
    fill_bound_in(facts, Part::Volume)
}

fn fill_bound_in(facts: &Facts<'_>, part: Part) -> Option<String> {
    let rewrites = rewrites_in(facts, part, StepKind::Fill)?;
    let separated = bounds::writes_separated(rewrites, plan::share_in_levels(), 0.0);
    Some(times(bounds::writes_inline(rewrites) / separated))
}

fn update_bound(facts: &Facts<'_>) -> Option<String> {
    let rewrites = rewrites(facts, StepKind::Update)?;
    let share = plan::share_in_levels();
    let collected = bounds::plan(plan::BOUND - 1.0, share).cost;
    let separated = bounds::writes_separated(rewrites, share, collected);
    Some(times(bounds::writes_inline(rewrites) / separated))
}

/// Device writes per user byte of the updates of a mode.
type Writes = fn(&Facts<'_>) -> Option<f64>;

fn writes_inline(facts: &Facts<'_>) -> Option<f64> {
    Some(bounds::writes_inline(rewrites_in(facts, Part::Update, StepKind::Update)?))
}

/// The bytes that BlobDB wrote, because its policy of collection follows from no formula.
fn writes_of_peer(facts: &Facts<'_>) -> Option<f64> {
    facts.median_of(Part::Update, Mode::BlobDb, |run| {
        run.step(StepKind::Update)?.side.write_amplification
    })
}

/// Device writes of the updates of another mode over those of separated values that have the space
/// which BlobDB needed.
fn update_bound_at_peers_space(facts: &Facts<'_>, others: Writes) -> Option<String> {
    let rewrites = rewrites_in(facts, Part::Update, StepKind::Update)?;
    let space = facts.median_of(Part::Update, Mode::BlobDb, Run::space_max)?;
    let share = plan::share_in_levels();
    let bound = plan::bound_below(facts.flags, space);
    let collected = bounds::plan(bound - 1.0, share).cost;
    Some(times(others(facts)? / bounds::writes_separated(rewrites, share, collected)))
}

/// Reads of data without separation over those with it, for point reads of values of these lengths.
/// On the plain disk the page cache serves them, and each costs processor time.
fn point_read_bound(lengths: &[u64]) -> String {
    let share =
        bounds::share_in_levels(plan::KEY_BYTES, lengths.iter().copied(), plan::SEPARATION_BYTES);
    let separated = lengths.iter().filter(|&&bytes| bytes >= plan::SEPARATION_BYTES).count();
    let separated = separated as f64 / lengths.len().max(1) as f64;
    let cached = plan::cached_share();
    let reads = bounds::reads_separated(cached, share, separated);
    format!("{:.2}×", bounds::reads_inline(cached) / reads)
}

/// Bytes of a scan without separation over those with it.
fn scan_bound(paper: Paper) -> String {
    let lengths = paper.lengths().into_iter();
    let ratio = bounds::scanned_bytes_ratio(plan::KEY_BYTES, lengths, plan::SEPARATION_BYTES);
    format!("{ratio:.2}×")
}

/// Updates per second that the limit of the part allows.
fn limited_updates(facts: &Facts<'_>) -> Option<String> {
    Some(format!("≤ {}", facts.flags.update_bytes_per_s / plan::RECORD_BYTES))
}

/// Reads of a value one after another, over reads of many values in one call, by what the device
/// allows.
fn prefetch_bound(facts: &Facts<'_>) -> Option<String> {
    let device = facts.device;
    let bytes = plan::VALUE_BYTES as f64;
    let latency = device.latency(Direction::Read).as_secs_f64();
    let rate = device.direction_rate(Direction::Read, 0).min(device.total_rate());
    let alone = latency + bytes / device.stream_rate().min(rate);
    let in_flight = VALUES_IN_FLIGHT as f64;
    let by_operations =
        in_flight * device.operations(plan::VALUE_BYTES) as f64 / device.operation_rate();
    let together = latency + by_operations.max(in_flight * bytes / rate);
    Some(times(alone / (together / in_flight)))
}

/// Space of tables without any garbage. Keys and references are added to the live bytes.
fn least_space(_: &Facts<'_>) -> Option<String> {
    Some("≥ 1.0".to_owned())
}

/// Space of tables without any garbage, and the bound that the engine promises if the data is too
/// small for the limit of `mode`.
fn promised_space(facts: &Facts<'_>, mode: Mode) -> String {
    let limit = mode.space_limit().unwrap_or(f64::NAN);
    let slack = plan::slack_bytes() as f64 / plan::live_bytes(facts.flags) as f64;
    let promised = plan::bound_below(facts.flags, limit) + slack;
    match promised > limit * 1.0001 {
        true => format!("≥ 1.0; the engine promises {promised:.2} for so few bytes"),
        false => "≥ 1.0".to_owned(),
    }
}

/// Live bytes by arithmetic.
fn live_bound(facts: &Facts<'_>) -> Option<String> {
    let live = plan::live_bytes(facts.flags) as f64 / MIB;
    Some(format!("{live:.0}: each key once"))
}

/// Calls per record of these files, of which each needs at least one call for its keys and one for
/// its values.
fn calls_bound(facts: &Facts<'_>) -> Option<String> {
    let least = |run: &Run| {
        let found = run.collection()?;
        Some(2.0 * found.files / found.records)
    };
    Some(format!("≥ {:.3}", facts.median_of(Part::Gc, Mode::Separated, least)?))
}

/// Bytes that no collection of these files can avoid: valid values and a quarter of a per cent of
/// keys, in the unit of the row.
fn read_bound(facts: &Facts<'_>) -> Option<String> {
    least_read(facts, READ_VALID_FACTOR)
}

/// Bytes that no collection of values of 16 KiB can avoid, in the unit of their own row.
fn read_bound_of_large_values(facts: &Facts<'_>) -> Option<String> {
    least_read(facts, 1.0)
}

/// Least bytes over the allowed ones, which are `factor` times the valid bytes and those of keys.
fn least_read(facts: &Facts<'_>, factor: f64) -> Option<String> {
    let valid =
        facts.median_of(Part::Gc, Mode::Separated, |run| Some(run.collection()?.valid_share))?;
    let least = (valid + KEYS_SHARE_MIN) / (factor * valid + READ_KEYS_SHARE);
    Some(format!("{least:.2}"))
}

/// Time of a collection by what the device allows, over look-ups and reads key by key as they were
/// measured.
fn collection_time_bound(facts: &Facts<'_>) -> Option<String> {
    let device = facts.device;
    let latency = device.latency(Direction::Read).as_secs_f64();
    let rate = device.direction_rate(Direction::Read, 0).min(device.total_rate());
    let least = |run: &Run| {
        let found = run.collection()?;
        let by_key_s = 1.0 / run.rate(StepKind::KeyByKey, "readrandom")?;
        let bytes = found.file_bytes * (found.valid_share + KEYS_SHARE_MIN);
        let operations = found.valid_records * device.operations(plan::VALUE_BYTES) as f64;
        let transfer_s = (bytes / rate).max(operations / device.operation_rate());
        let trips_s = COLLECTION_TRIPS_MIN * found.jobs * latency;
        Some((trips_s + transfer_s) / (found.valid_records * by_key_s))
    };
    Some(format!("≥ {:.3}", facts.median_of(Part::Gc, Mode::Separated, least)?))
}

fn times(ratio: f64) -> String {
    format!("{ratio:.1}×")
}

impl Facts<'_> {
    fn of(&self, part: Part, mode: Mode) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.part == part && run.mode == mode)
    }

    /// Median of a figure over the rounds of a mode.
    pub(super) fn median_of(
        &self,
        part: Part,
        mode: Mode,
        figure: impl Fn(&Run) -> Option<f64>,
    ) -> Option<f64> {
        median(&self.of(part, mode).filter_map(figure).collect::<Vec<f64>>())
    }

    /// All rows of the parts that ran.
    pub(super) fn rows(&self) -> Vec<Row> {
        let ran = |claim: &Claim| self.of(claim.part, claim.mode).next().is_some();
        claims().iter().filter(|claim| ran(claim)).map(|claim| self.row(claim)).collect()
    }

    fn row(&self, claim: &Claim) -> Row {
        let figures = |mode| -> Vec<(u64, f64)> {
            let runs = self.of(claim.part, mode);
            runs.filter_map(|run| Some((run.round, (claim.figure)(self, run)?))).collect()
        };
        let sides = Sides {
            ours: figures(claim.mode),
            theirs: claim.peer.map(figures).unwrap_or_default(),
        };
        let name = match claim.peer {
            Some(peer) => format!("{}: {} / {}", claim.name, claim.mode.name(), peer.name()),
            None => claim.name.clone(),
        };
        let row = page::Row {
            name,
            unit: claim.unit,
            decimals: claim.decimals,
            bound: claim.bound.and_then(|bound| bound(self)).unwrap_or_default(),
            paper: claim.paper.to_owned(),
            cause: claim.cause,
            ..page::Row::default()
        };
        Row { part: claim.part, page_row: sides.judge(claim.goal, row) }
    }
}
