//! Rows of settings (Figures 13a and 14) and of take-overs. Decisions 0107 and 0108 fix them.

use super::super::bounds::{CachedReads, Factors, replay_seconds};
use super::super::modes::{Mode, OFFSET_CACHE_BYTES};
use super::super::plan::{
    CACHE_BYTES, Cell, Group, Keys, LeftShards, STAYING_LOADS, Staying, Value, cached_reads,
    takeover as takeover_cell,
};
use super::super::rows::{Claim, Facts, times};
use super::super::run::Run;
use super::super::takeover::TakeoverFigures;
use super::super::words::{DELEGATED_MEMTABLES, TAKEOVER_MEMTABLES};
use super::{WIDE, rate};

/// Bytes of a memtable, from which the bounds follow.
const MEMTABLE_BYTES: u64 = 4 << 20;
const MIB: f64 = 1_048_576.0;
/// Longest time of a take-over with kept shards, in seconds, without the time of a lease.
const TAKEOVER_S: f64 = 1.0;

/// Rate of a run over the largest median of the fixed numbers of memtables that stay.
fn over_best_fixed(facts: &Facts<'_>, run: &Run) -> Option<f64> {
    let fixed = Staying::FIXED.map(|staying| {
        let cell = run.cell.with_staying(staying);
        facts.median(&cell, Run::rate)
    });
    let best = fixed.into_iter().collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)?;
    Some(run.rate()? / best)
}

pub(super) fn local() -> Vec<Claim> {
    let mut claims = Vec::new();
    for load in STAYING_LOADS {
        let of = |staying| Cell::new(Mode::All, WIDE, load).with_staying(staying);
        let auto = of(Staying::Auto);
        claims.extend(Staying::FIXED.map(|fixed| {
            Claim::new(Group::Local, auto, "rate", rate).unit("ops/s").over(of(fixed), rate)
        }));
        let name = "rate over that of the best fixed number";
        claims.push(
            Claim::new(Group::Local, auto, name, over_best_fixed)
                .not_below(0.95)
                .bound("1× from the moment at which the number is the best one".to_owned())
                .paper("future work")
                .cause("The number begins at 0 and moves by one after three windows."),
        );
    }
    claims
}

/// Share of the keys looked up at memory nodes that a record at a cached offset answers.
pub(super) fn hits(_: &Facts<'_>, run: &Run) -> Option<f64> {
    let of = |name: &str| run.offload.get(&format!("offload_shards_cache_{name}")).copied();
    let others = ["misses", "passed", "mismatches", "unread"];
    let hits = of("hits")?;
    let all = hits + others.iter().filter_map(|name| of(name)).sum::<u64>();
    (all > 0).then(|| hits as f64 / all as f64)
}

pub(super) fn cache() -> Vec<Claim> {
    let reads =
        CachedReads { records: DELEGATED_MEMTABLES * MEMTABLE_BYTES / Value::Small.record_bytes() };
    let mut claims = Vec::new();
    for (keys, paper) in Keys::ALL.into_iter().zip(["1.32×", "1.67×"]) {
        let share = |bytes: u64| match keys {
            Keys::Uniform => reads.uniform_hits(bytes),
            Keys::Zipfian => reads.zipfian_hits(bytes),
        };
        let row = |own: u64, peer: u64| {
            Claim::new(Group::Cache, cached_reads(keys, own), "rate", rate)
                .unit("ops/s")
                .over(cached_reads(keys, peer), rate)
                .bound(times(CachedReads::ratio(share(own), share(peer))))
        };
        claims.extend(CACHE_BYTES.map(|bytes| row(bytes, 0)));
        let eightfold = row(8 * OFFSET_CACHE_BYTES, OFFSET_CACHE_BYTES).paper(paper);
        claims.push(match keys {
            Keys::Zipfian => eightfold.at_least(1.3),
            Keys::Uniform => eightfold,
        });
        let name = "share of keys at nodes that a cached offset answers";
        claims.extend(CACHE_BYTES.map(|bytes| {
            Claim::new(Group::Cache, cached_reads(keys, bytes), name, hits)
                .bound(format!("{:.2}", share(bytes)))
        }));
    }
    claims
}

pub(super) fn takeover() -> Vec<Claim> {
    let [kept, replayed] = [LeftShards::Kept, LeftShards::Replayed].map(takeover_cell);
    let figure = |of: fn(&TakeoverFigures) -> f64| {
        move |_: &Facts<'_>, run: &Run| Some(of(run.takeover.as_ref()?))
    };
    let seconds = figure(|takeover| takeover.seconds);
    let log = figure(|takeover| takeover.log_bytes as f64 / MIB);
    let recovery = figure(|takeover| takeover.recovery_ms as f64);
    let bytes = |_: &Facts<'_>, run: &Run| {
        let records = run.takeover.as_ref()?.records_replayed();
        Some((records * run.record_bytes) as f64 / MIB)
    };
    let logged = TAKEOVER_MEMTABLES * MEMTABLE_BYTES;
    let least = replay_seconds(logged as f64, WIDE, &Factors::FIXED);
    vec![
        Claim::new(Group::Takeover, kept, "time until the next owner has read a key", seconds)
            .unit("s")
            .over(replayed, seconds)
            .at_most(0.5)
            .bound(format!("replay: {least:.1} s for its tables over the link")),
        Claim::new(Group::Takeover, kept, "time until the next owner has read a key", seconds)
            .unit("s")
            .within(TAKEOVER_S)
            .bound("none: no lease on one host".to_owned()),
        Claim::new(Group::Takeover, kept, "keys and values that the next owner replays", bytes)
            .unit("MiB")
            .over(replayed, bytes)
            .at_most(0.1)
            .bound("the active memtable".to_owned()),
        Claim::new(Group::Takeover, kept, "log that the next owner reads", log)
            .unit("MiB")
            .over(replayed, log),
        Claim::new(Group::Takeover, kept, "time to find shards and to read the log", recovery)
            .unit("ms"),
    ]
}
