//! Rows of the steps of flushes (Table 3) and of the times of reads by their way (Figure 13b).
//! Decision 0108 fixes them.
//!
//! A key that a node has is read in one of two ways: one READ at a cached offset, or a request with
//! a search at the node. The links time both. The engine times the look-ups of one key in 64, in
//! memory here and at nodes, with filters and the choice of the way.

use archipelago_bench::harness::steps::StepFigures;

use super::super::bounds::{Factors, ReadWays, fetch_share};
use super::super::modes::Mode;
use super::super::plan::{Cell, Group, Keys, Load, Value, staying_reads};
use super::super::rows::{Claim, Facts, times as as_times};
use super::super::run::Run;
use super::settings::hits;
use super::{MEMORY_LINK, WIDE};

/// READs of a search that does without the node's processor: four of the packed index, and the
/// record.
const READS_OF_SEARCH: f64 = 5.0;

/// A counter of the work that left the owner.
fn counter(run: &Run, name: &str) -> Option<f64> {
    run.offload.get(name).map(|count| *count as f64)
}

/// Mean of a sum of microseconds, in microseconds; `None` if nothing was counted.
fn mean_us(run: &Run, sum_us: &str, count: &str) -> Option<f64> {
    let count = counter(run, count)?;
    (count > 0.0).then(|| counter(run, sum_us).unwrap_or(0.0) / count)
}

/// Microseconds of a READ at a cached offset.
fn read_us(run: &Run) -> Option<f64> {
    mean_us(run, "offload_shards_cache_read_us", "offload_shards_cache_batches")
}

/// Microseconds of a request for keys.
fn request_us(run: &Run) -> Option<f64> {
    mean_us(run, "offload_shards_request_us", "offload_shards_requests")
}

/// Microseconds of a timed look-up that a node answered.
fn there_us(run: &Run) -> Option<f64> {
    let steps = &run.result.as_ref()?.steps;
    (steps.there > 0).then(|| steps.there_s * 1e6 / steps.there as f64)
}

/// Microseconds of a timed look-up that a sealed memtable here answered.
fn here_us(run: &Run) -> Option<f64> {
    let steps = &run.result.as_ref()?.steps;
    (steps.here > 0).then(|| steps.here_s * 1e6 / steps.here as f64)
}

/// Time of look-ups at nodes over the mean of the two ways, by the share of each. The two compare
/// equal look-ups only if all keys are read equally often: the share is that of all keys, and the
/// time is that of one key in 64.
fn over_ways(facts: &Facts<'_>, run: &Run) -> Option<f64> {
    let share = hits(facts, run)?;
    let mean_us = share * read_us(run)? + (1.0 - share) * request_us(run)?;
    (mean_us > 0.0).then(|| there_us(run).map(|there_us| there_us / mean_us)).flatten()
}

pub(super) fn ways() -> Vec<Claim> {
    let mut claims = Vec::new();
    for shm in [true, false] {
        for keys in Keys::ALL {
            let cell = Cell { shm, ..Cell::new(Mode::AllCache, WIDE, Load::Delegated(keys)) };
            let row = |name, figure: fn(&Run) -> Option<f64>| {
                Claim::new(Group::Times, cell, name, move |_, run| figure(run))
            };
            let over = |run: &Run| Some(read_us(run)? / request_us(run)?);
            let search = |run: &Run| Some(READS_OF_SEARCH * read_us(run)? / request_us(run)?);
            let bound = |us: f64| if shm { format!("{us} µs") } else { String::new() };
            let ReadWays { read_us: read, request_us: request } = ReadWays::SHARED_MEMORY;
            // A search makes the time of a request longer, and the ratio smaller.
            let ratio = |reads: f64| match shm {
                true => format!("{} of an empty request", as_times(reads * read / request)),
                false => format!("{}: a READ is a request", as_times(reads)),
            };
            claims.extend([
                row("READ at a cached offset", read_us)
                    .unit("µs")
                    .bound(bound(read))
                    .paper("6.8 µs"),
                row("request with a search at the node", request_us)
                    .unit("µs")
                    .bound(bound(request))
                    .paper("22.0 µs, and 1.9 for filters"),
                row("READ over a request", over).bound(ratio(1.0)).paper("0.28×"),
                row("estimate: a search by five READs, over a request", search)
                    .bound(ratio(READS_OF_SEARCH))
                    .paper("50×, with a skip list"),
                row("look-up that a node answers", there_us).unit("µs").paper("6.8 and 23.9 µs"),
            ]);
            if keys == Keys::Uniform {
                let name = "look-up that a node answers over the mean of both ways";
                let over = Claim::new(Group::Times, cell, name, over_ways);
                claims.push(over.bound(as_times(1.0)));
            }
        }
    }
    claims.extend(Keys::ALL.map(|keys| {
        let name = "look-up in a sealed memtable here";
        Claim::new(Group::Times, staying_reads(keys), name, |_, run| here_us(run))
            .unit("µs")
            .paper("4.7 µs")
    }));
    claims
}

/// Seconds of the steps of all flushes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::o3) struct FlushSteps {
    pub(in crate::o3) flushes: u64,
    pub(in crate::o3) bytes: u64,
    /// Making of packages for executors.
    pub(in crate::o3) package_s: f64,
    /// Waits for messages, for an executor and for room there.
    pub(in crate::o3) wait_s: f64,
    /// Fetches of shards, in executors and here. Those for readers that still need a shard after
    /// its flush count as well; random writes have no such readers.
    pub(in crate::o3) fetch_s: f64,
    /// Writing of tables.
    pub(in crate::o3) write_s: f64,
    pub(in crate::o3) log_sync_s: f64,
    pub(in crate::o3) install_s: f64,
    /// Transfers to memory nodes, which run in parallel with everything else.
    pub(in crate::o3) send_s: f64,
}

impl FlushSteps {
    /// The steps of a run; `None` if it has flushed nothing.
    pub(in crate::o3) fn of(run: &Run) -> Option<Self> {
        let steps: &StepFigures = &run.result.as_ref()?.steps;
        let away_s =
            |step: &str| counter(run, &format!("offload_flushes_{step}_us")).unwrap_or(0.0) / 1e6;
        let (package_s, wait_s) = (away_s("package"), away_s("wait"));
        let fetch_s = away_s("fetch") + steps.fetch_s;
        (steps.flushes > 0).then(|| Self {
            flushes: steps.flushes,
            bytes: steps.flush_bytes,
            package_s,
            wait_s,
            fetch_s,
            write_s: (steps.flush_s - package_s - wait_s - fetch_s).max(0.0),
            log_sync_s: steps.flush_log_sync_s,
            install_s: steps.flush_install_s,
            send_s: steps.send_s,
        })
    }

    /// Seconds of all steps without transfers.
    fn whole_s(&self) -> f64 {
        let Self { package_s, wait_s, fetch_s, write_s, log_sync_s, install_s, .. } = *self;
        package_s + wait_s + fetch_s + write_s + log_sync_s + install_s
    }

    /// Share of a step in the time of flushes.
    fn share(&self, step_s: f64) -> Option<f64> {
        let whole_s = self.whole_s();
        (whole_s > 0.0).then(|| step_s / whole_s)
    }
}

pub(super) fn steps() -> Vec<Claim> {
    let cell = |mode| Cell::new(mode, WIDE, Load::Fill(Value::Small));
    let share = |mode, name, step: fn(&FlushSteps) -> f64| {
        Claim::new(Group::Phases, cell(mode), name, move |_, run| {
            let steps = FlushSteps::of(run)?;
            steps.share(step(&steps))
        })
    };
    let installs =
        |mode| share(mode, "share of installs in the time of flushes", |steps| steps.install_s);
    let fetched = fetch_share(MEMORY_LINK, &Factors::FIXED);
    let fetch = |mode| {
        let bound = format!("{:.3}", fetched / (1.0 + fetched));
        share(mode, "share of fetches in the time of flushes", |steps| steps.fetch_s).bound(bound)
    };
    let transfers = |_: &Facts<'_>, run: &Run| {
        let steps = FlushSteps::of(run)?;
        let all_s = steps.send_s + steps.whole_s();
        (all_s > 0.0).then(|| steps.send_s / all_s)
    };
    let package = |_: &Facts<'_>, run: &Run| {
        let packages = counter(run, "offload_flushes_packages").filter(|count| *count > 0.0)?;
        Some(counter(run, "offload_flushes_package_bytes")? / packages)
    };
    let kept = |_: &Facts<'_>, run: &Run| {
        let steps = &run.result.as_ref()?.steps;
        (steps.sends > 0).then(|| steps.kept_bytes as f64 / steps.sends as f64)
    };
    vec![
        fetch(Mode::All).within(0.05).paper("0.058 (54 of 936.9 ms)"),
        fetch(Mode::DmShard).within(0.05).paper("0.058 (54 of 936.9 ms)"),
        fetch(Mode::DmNaive).paper("0.245 (286 of 1168.7 ms)"),
        share(Mode::All, "share of packages in the time of flushes", |steps| steps.package_s)
            .paper("0.005 (4.7 of 936.9 ms)"),
        share(Mode::All, "share of waits in the time of flushes", |steps| steps.wait_s),
        installs(Mode::All).paper("0.003 (3.2 of 936.9 ms)"),
        installs(Mode::OffClassic).paper("0.003 (2.5 of 882.7 ms)"),
        Claim::new(
            Group::Phases,
            cell(Mode::All),
            "share of transfers in the time of transfers and flushes",
            transfers,
        )
        .paper("0.187"),
        Claim::new(Group::Phases, cell(Mode::All), "bytes of the package of a flush", package)
            .unit("B")
            .paper("572 B"),
        Claim::new(Group::Phases, cell(Mode::All), "bytes that stay for a shard that left", kept)
            .unit("B")
            .paper("114 B for a memtable, without filters"),
    ]
}
