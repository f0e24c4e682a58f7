//! Rows of §5.3 of the paper: flushes, stops, write amplification, memtables, links, peaks and
//! variation.

use archipelago_bench::harness::store::MovedBytes;

use super::super::bounds::{Factors, SCALE, fetch_share, finite_seconds, flush_streams};
use super::super::modes::Mode;
use super::super::plan::{
    AMPLIFIED_LOADS, Cell, FLUSHED, Group, LINK_LOADS, LOCAL_OF_TEN, Load, MEMTABLES, STABLE_LOADS,
    STALL_MEMTABLES, Value,
};
use super::super::rows::{Claim, Facts, rounded, times};
use super::super::run::Run;
use super::super::timeline::LinkUse;
use super::{MEMORY_LINK, WIDE, rate};

const MIB: f64 = 1_048_576.0;

/// Least share of linear growth that flushes must keep with another compute node.
const LINEAR_SHARE: f64 = 0.8;
/// Share of writes in the operations of a mixed load.
const WRITES_OF_MIXED: f64 = 0.5;

/// Cause of a missed target of the time of a flush over that of the mode `off`.
const PARALLEL_SHARDS: &str =
    "Off writes the shards of a flush on four threads, and the other modes on one.";

const SMALL: Load = Load::Fill(Value::Small);

fn cell(mode: Mode) -> Cell {
    Cell::new(mode, WIDE, SMALL)
}

/// MB/s of flushes after a burst.
fn flush_rate(_: &Facts<'_>, run: &Run) -> Option<f64> {
    let flushes = run.timeline.as_ref()?.flushes_after;
    (flushes.span_s > 0.0).then(|| flushes.bytes as f64 / 1e6 / flushes.span_s)
}

pub(super) fn flush() -> Vec<Claim> {
    let of = |mode| Cell::new(mode, WIDE, Load::Burst(Value::Small));
    let streams = |facts: &Facts<'_>, run: &Run| {
        let stream = Factors::FIXED.stream * SCALE * facts.flags.speed();
        Some(flush_rate(facts, run)? / stream)
    };
    let bound = |nodes: f64| flush_streams(nodes, &Factors::FIXED);
    let mut claims = flushes_by_number();
    claims.extend([
        Claim::new(Group::Flush, of(Mode::AllBurst), "flush throughput in streams", streams)
            .not_below(8.0)
            .bound(format!(
                "{:.0} streams, {:.0} with another compute node",
                bound(1.0),
                bound(2.0)
            ))
            .paper("34.6× (5 to 178 MB/s)"),
        Claim::new(Group::Flush, of(Mode::AllBurst), "flush throughput", flush_rate)
            .unit("MB/s")
            .over(of(Mode::OffClassic), flush_rate),
        Claim::new(Group::Flush, of(Mode::AllSecondBurst), "flush throughput", flush_rate)
            .unit("MB/s")
            .over(of(Mode::AllBurst), flush_rate)
            .at_least(rounded(LINEAR_SHARE * bound(2.0) / bound(1.0)))
            .bound(times(bound(2.0) / bound(1.0)))
            .paper("almost linear"),
    ]);
    claims
}

/// Flushes by the number of memtables, as in Figure 12.
fn flushes_by_number() -> Vec<Claim> {
    let [few, .., many] = FLUSHED;
    let of = |mode, load| Cell::new(mode, WIDE, load);
    let naive = |load| of(Mode::DmNaive, load).with_remote(Mode::AllBurst.spec().remote_memtables);
    let row = |own, peer| {
        Claim::new(Group::Flush, own, "flush throughput", flush_rate)
            .unit("MB/s")
            .over(peer, flush_rate)
    };
    let mut claims = vec![
        row(of(Mode::AllBurst, many), of(Mode::AllBurst, few))
            .bound("1×: 10 memtables fill the streams".to_owned())
            .paper("almost linear in the number of memtables"),
    ];
    let slower = "slower with more than 10 memtables";
    claims.extend(FLUSHED.map(|load| row(naive(load), of(Mode::OffClassic, load)).paper(slower)));
    claims
}

pub(super) fn stalls() -> Vec<Claim> {
    let of = |count| cell(Mode::DmNaive).with_remote(count);
    let stops = |_: &Facts<'_>, run: &Run| Some(run.timeline.as_ref()?.stops as f64);
    let [first, .., last] = STALL_MEMTABLES;
    vec![
        Claim::new(Group::Stalls, of(last), "stops of at least 1 ms", stops)
            .unit("stops")
            .over(of(first), stops)
            .at_most(0.1)
            .paper("737 to 34 (−95 %)"),
        Claim::new(Group::Stalls, of(last), "rate", rate)
            .unit("ops/s")
            .over(of(first), rate)
            .paper("119 to 87 kops/s"),
    ]
}

pub(super) fn amplification() -> Vec<Claim> {
    let row = |load, peer| {
        let of = |mode| Cell::new(mode, WIDE, load);
        let written = move |_: &Facts<'_>, run: &Run| {
            let levels = &run.timeline.as_ref()?.written_by_level;
            let share = if matches!(load, Load::Mixed(_)) { WRITES_OF_MIXED } else { 1.0 };
            Some(levels.iter().sum::<u64>() as f64 / (run.user_bytes()? * share))
        };
        let name = "bytes that compactions write per user byte";
        Claim::new(Group::Amplification, of(Mode::All), name, written).over(of(peer), written)
    };
    let [fill, mixed] = AMPLIFIED_LOADS;
    vec![
        row(fill, Mode::Off)
            .at_most(0.9)
            .bound("fewer duplicates, larger batches".to_owned())
            .paper("−15.5 %"),
        row(fill, Mode::OffClassic),
        row(mixed, Mode::Off).paper("−19.8 % (39.8 to 31.9 GB)"),
        row(mixed, Mode::OffClassic),
    ]
}

pub(super) fn phases() -> Vec<Claim> {
    let per_mib = |_: &Facts<'_>, run: &Run| {
        let flushes = run.timeline.as_ref()?.flushes;
        (flushes.bytes > 0).then(|| flushes.seconds * 1e3 / (flushes.bytes as f64 / MIB))
    };
    let row = |mode, peer| {
        Claim::new(Group::Phases, cell(mode), "time of a flush per MiB", per_mib)
            .unit("ms")
            .over(cell(peer), per_mib)
    };
    let fetched = format!("{:.3}×", 1.0 + fetch_share(MEMORY_LINK, &Factors::FIXED));
    let close = |mode, peer| row(mode, peer).at_most(1.05).bound(fetched.clone()).paper("+7 %");
    vec![
        close(Mode::All, Mode::OffClassic),
        close(Mode::DmShard, Mode::OffClassic),
        row(Mode::DmNaive, Mode::OffClassic).paper("+32 %"),
        close(Mode::All, Mode::Off).cause(PARALLEL_SHARDS),
        close(Mode::DmShard, Mode::Off).cause(PARALLEL_SHARDS),
        row(Mode::DmNaive, Mode::Off).paper("+32 %"),
    ]
}

/// Relative distance of a run's rate from the formula of a finite run.
fn distance_from_formula(facts: &Facts<'_>, run: &Run) -> Option<f64> {
    let record = run.record_bytes as f64;
    let slow = facts.median(&cell(Mode::All).with_remote(MEMTABLES[1]), Run::second_half)?;
    let burst = Cell::new(Mode::AllBurst, WIDE, Load::Burst(Value::Small));
    let fast = facts.median(&burst, Run::rate)?;
    let all = run.result.as_ref()?.ops as f64 * record;
    let absorbed = f64::from(run.cell.remote() + run.cell.local());
    let absorbed = absorbed * facts.flags.memtable_bytes() as f64;
    let seconds = finite_seconds(all, absorbed, slow * record, fast * record);
    Some((run.rate()? / (all / record / seconds) - 1.0).abs())
}

pub(super) fn memtables() -> Vec<Claim> {
    let all = cell(Mode::All);
    let fewest = all.with_remote(MEMTABLES[0]);
    let mut claims = Vec::new();
    for count in &MEMTABLES[1..] {
        let own = all.with_remote(*count);
        claims.push(
            Claim::new(Group::Memtables, own, "rate", rate)
                .unit("ops/s")
                .over(fewest, rate)
                .paper("more memtables, more throughput"),
        );
        let name = "distance from the formula of a finite run";
        claims.push(Claim::new(Group::Memtables, own, name, distance_from_formula).within(0.15));
    }
    let fewest = all.with_local(LOCAL_OF_TEN[0], 10);
    claims.extend(LOCAL_OF_TEN[1..].iter().map(|local| {
        Claim::new(Group::Memtables, all.with_local(*local, 10), "rate", rate)
            .unit("ops/s")
            .over(fewest, rate)
            .paper("writes lose with more local memtables")
    }));
    claims
}

pub(super) fn links() -> Vec<Claim> {
    let per_user_byte = |bytes: fn(&Run) -> Option<f64>| {
        move |_: &Facts<'_>, run: &Run| Some(bytes(run)? / run.user_bytes()?)
    };
    let owner = per_user_byte(|run| Some(run.moved()?.written as f64));
    let sum = per_user_byte(|run| Some(run.moved()?.written as f64 + run.written_elsewhere()));
    let sent = per_user_byte(|run| Some(run.moved()?.memtables_sent as f64));
    let fetched = per_user_byte(|run| Some(run.moved()?.memtables_fetched as f64));
    let row = |name: &str, mode| (cell(mode), format!("{name} per user byte"));
    let Factors { flushed, written, .. } = Factors::FIXED;
    let (own, own_name) = row("bytes of the owner to the storage", Mode::All);
    let (all, all_name) = row("bytes of all nodes to the storage", Mode::All);
    let (to, to_name) = row("bytes of the owner to memory nodes", Mode::All);
    let (from, from_name) = row("bytes of memory nodes to the owner", Mode::All);
    vec![
        Claim::new(Group::Links, own, &own_name, owner)
            .over(cell(Mode::Off), owner)
            .at_most(0.35)
            .bound(format!("{:.2}×", flushed / (flushed + written)))
            .paper("59.3 to 25.4 GB"),
        Claim::new(Group::Links, all, &all_name, sum)
            .over(cell(Mode::Off), sum)
            .at_most(1.0)
            .paper("59.3 to 50.4 GB"),
        Claim::new(Group::Links, to, &to_name, sent).paper("12.6 GB of 4 GB"),
        Claim::new(Group::Links, from, &from_name, fetched).paper("8.4 GB of 4 GB"),
    ]
}

/// Rows of the bytes by link of settled reads and of mixed loads.
pub(super) fn links_of_reads() -> Vec<Claim> {
    let [_, reads, mixed] = LINK_LOADS;
    let row = |load, name, peer, bytes: fn(MovedBytes) -> u64| {
        let per_operation = move |_: &Facts<'_>, run: &Run| {
            let ops = run.result.as_ref()?.ops as f64;
            (ops > 0.0).then(|| run.moved().map(|moved| bytes(moved) as f64 / ops)).flatten()
        };
        let [own, peer] = [Mode::All, peer].map(|mode| Cell::new(mode, WIDE, load));
        Claim::new(Group::Links, own, name, per_operation).unit("B").over(peer, per_operation)
    };
    let read = "bytes of the storage to the owner per operation";
    let written = "bytes of the owner to the storage per operation";
    let reads_of = |peer| row(reads, read, peer, |moved| moved.read).paper("10.7 to 4.2 GB");
    vec![
        reads_of(Mode::Off),
        reads_of(Mode::OffClassic),
        row(mixed, written, Mode::Off, |moved| moved.written).paper("39.8 to 19.5 GB"),
        row(mixed, written, Mode::OffClassic, |moved| moved.written).paper("39.8 to 19.5 GB"),
        row(mixed, read, Mode::Off, |moved| moved.read),
        row(mixed, read, Mode::OffClassic, |moved| moved.read),
    ]
}

pub(super) fn peaks() -> Vec<Claim> {
    let to_memory = |run: &Run| Some(run.timeline.as_ref()?.links.owner_to_memory);
    let peak = move |_: &Facts<'_>, run: &Run| Some(to_memory(run)?.peak);
    let peak_over_mean = move |_: &Facts<'_>, run: &Run| {
        let LinkUse { peak, mean } = to_memory(run)?;
        (mean > 0.0).then(|| peak / mean)
    };
    let name = "peak of the link to the memory node";
    let unshaped = "Images are sent at the speed of loopback, which nothing shapes.";
    vec![
        Claim::new(Group::Peaks, cell(Mode::AllWhole), name, peak)
            .unit("MB/s")
            .over(cell(Mode::All), peak)
            .at_least(6.6)
            .bound("the link over the mean".to_owned())
            .paper("6.6× (963.2 to 146.2 MB/s)")
            .cause(unshaped),
        Claim::new(
            Group::Peaks,
            cell(Mode::All),
            "peak over mean of the link to the memory node",
            peak_over_mean,
        )
        .within(2.0)
        .bound(times(1.0))
        .paper("146.2 over 58.4 MB/s")
        .cause(unshaped),
    ]
}

pub(super) fn stability() -> Vec<Claim> {
    let variation = |_: &Facts<'_>, run: &Run| run.timeline.as_ref()?.variation();
    let name = "standard deviation over mean of seconds";
    let row = |load: Load| {
        let [all, classic] = [Mode::All, Mode::OffClassic].map(|mode| Cell::new(mode, WIDE, load));
        let row = Claim::new(Group::Stability, all, name, variation)
            .over(classic, variation)
            .paper("most compact distributions");
        if load == SMALL { row.at_most(0.5) } else { row }
    };
    STABLE_LOADS.map(row).into()
}
