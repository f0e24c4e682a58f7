//! Rows of reads, mixed loads and Redis clients: Figures 8 to 11, Tables 4 and 8.

use super::super::bounds::{Factors, MixedLoad, StorageLink, range_ratio};
use super::super::modes::Mode;
use super::super::plan::{Before, Cell, Group, Keys, Load, RespLoad, Share, Value};
use super::super::rows::{Claim, Facts, times};
use super::super::run::Run;
use super::{WIDE, p99_of_writes, rates, ratio_bound};

/// Blocks that a read fetches on average, for the bound of mixed loads.
pub(super) const MISSES: f64 = 0.16;
/// Layers of L0 that everything offloaded keeps at most.
const LAYERS: f64 = 4.0;

/// Blocks of tables that were read per operation.
fn blocks(_: &Facts<'_>, run: &Run) -> Option<f64> {
    let result = run.result.as_ref()?;
    let of_user = result.io.iter().filter(|entry| entry.purpose == "foreground-read");
    let reads: u64 = of_user.map(|entry| entry.read_ops).sum();
    (result.ops > 0).then(|| reads as f64 / result.ops as f64)
}

/// Least ratio of reads of a database in memory, whose modes do the same work. It leaves room for
/// the noise of a run.
const CACHED_LEAST: f64 = 0.97;
/// Cause of a missed target of settled reads.
const SETTLED: &str = "Settling flushes all memtables, so each mode reads as many blocks.";

pub(super) fn read() -> Vec<Claim> {
    let mut claims = Vec::new();
    let bounds = ["1.37×, about 1.1× if memtables of both or of neither hold data", "about 1.55×"];
    for ((keys, least), bound) in Keys::ALL.into_iter().zip([1.2, 1.3]).zip(bounds) {
        let load = Load::Read(keys, Before::Settled);
        let [all, off] = [Mode::All, Mode::Off].map(|mode| Cell::new(mode, WIDE, load));
        claims.push(
            rates(Group::Read, [Mode::All, Mode::Off], WIDE, load)
                .at_least(least)
                .bound(bound.to_owned())
                .paper("up to 1.8×")
                .cause(SETTLED),
        );
        claims.push(rates(Group::Read, [Mode::All, Mode::OffClassic], WIDE, load));
        let name = "blocks read per operation";
        claims.push(Claim::new(Group::Read, all, name, blocks).over(off, blocks));
    }
    let load = Load::Read(Keys::Uniform, Before::Unsettled);
    let unsettled = |mode, least, paper| {
        rates(Group::Read, [mode, Mode::OffClassic], WIDE, load).at_least(least).paper(paper)
    };
    claims.push(unsettled(Mode::All, 1.8, "up to 1.8×, settled"));
    claims.push(unsettled(Mode::AllBurst, 2.2, "up to 2.2×, settled"));
    let cached = Load::Cached(Keys::Uniform);
    claims.push(
        rates(Group::Read, [Mode::All, Mode::Off], WIDE, cached)
            .at_least(CACHED_LEAST)
            .bound(times(1.0)),
    );
    claims
}

pub(super) fn mixed() -> Vec<Claim> {
    let mut claims = Vec::new();
    for link in StorageLink::ALL {
        for (value, least) in Value::ALL.into_iter().zip([1.15, 2.0, 3.0]) {
            let load = Load::Mixed(value);
            let modes = [Mode::All, Mode::OffClassic];
            let mixed = MixedLoad { record_bytes: value.record_bytes() as f64, misses: MISSES };
            let row = rates(Group::Mixed, modes, link, load)
                .bound(times(mixed.ratio(link, &Factors::FIXED)))
                .paper("up to 3×");
            claims.push(if link == WIDE { row.at_least(least) } else { row });
            claims.push(rates(Group::Mixed, [Mode::All, Mode::Off], link, load));
            let [all, classic] = modes.map(|mode| Cell::new(mode, link, load));
            let p99 = Claim::new(Group::Mixed, all, "P99 of a write", p99_of_writes)
                .unit("µs")
                .over(classic, p99_of_writes)
                .paper("up to −76 %");
            claims.push(if link == WIDE { p99.at_most(0.4) } else { p99 });
            claims.push(
                Claim::new(Group::Mixed, all, "blocks read per operation", blocks)
                    .over(classic, blocks),
            );
        }
    }
    claims
}

pub(super) fn ycsb() -> Vec<Claim> {
    let mut claims = Vec::new();
    for share in Share::ALL {
        for keys in Keys::ALL {
            let load = Load::Ycsb(share, keys);
            let order = |modes| {
                rates(Group::Ycsb, modes, WIDE, load).at_least(1.0).paper("best in every load")
            };
            claims.push(order([Mode::All, Mode::CompactionsClassic]));
            claims.push(
                rates(Group::Ycsb, [Mode::CompactionsClassic, Mode::OffClassic], WIDE, load)
                    .at_least(1.0),
            );
        }
    }
    let of = |keys| Cell::new(Mode::All, WIDE, Load::Ycsb(Share::W100, keys));
    let rate = |_: &Facts<'_>, run: &Run| run.rate();
    claims.push(
        Claim::new(Group::Ycsb, of(Keys::Zipfian), "rate", rate)
            .unit("ops/s")
            .over(of(Keys::Uniform), rate)
            .at_least(1.0)
            .bound(times(1.5))
            .paper("below uniform"),
    );
    claims
}

pub(super) fn range() -> Vec<Claim> {
    let row = |modes, records| rates(Group::Range, modes, WIDE, Load::Range(records));
    let mut claims = Vec::new();
    for (records, least) in [(10, 3.0), (1000, 2.0)] {
        claims.push(
            row([Mode::All, Mode::OffClassic], records)
                .at_least(least)
                .bound(times(range_ratio(LAYERS)))
                .paper("up to 5.2×"),
        );
        claims.push(row([Mode::All, Mode::CompactionsClassic], records).paper("up to 4.6×"));
        claims.push(
            row([Mode::All, Mode::Off], records).at_least(1.0).bound("about 1.1×".to_owned()),
        );
    }
    claims
}

pub(super) fn delegation() -> Vec<Claim> {
    let mut claims = Vec::new();
    let papers = [("1.23×", "1.15×"), ("1.27×", "1.35×")];
    let medians = [["37.5 to 5.4 µs", "5.4 to 5.4 µs"], ["31.1 to 6.9 µs", "6.9 to 5.6 µs"]];
    for shm in [true, false] {
        let papers = papers.into_iter().zip(medians);
        for (keys, ((delegated, cached), p50s)) in Keys::ALL.into_iter().zip(papers) {
            let of = |mode| Cell { shm, ..Cell::new(mode, WIDE, Load::Delegated(keys)) };
            let rate = |_: &Facts<'_>, run: &Run| run.rate();
            let row = |own, peer| {
                Claim::new(Group::Delegation, of(own), "rate", rate)
                    .unit("ops/s")
                    .over(of(peer), rate)
            };
            let bound = if shm { "up to 5× of a whole read" } else { "1×: a READ is a request" };
            let p50 = |own, peer| {
                let figure = |_: &Facts<'_>, run: &Run| run.p50_us("read");
                Claim::new(Group::Delegation, of(own), "P50 of a read", figure)
                    .unit("µs")
                    .over(of(peer), figure)
            };
            claims.push(row(Mode::AllNoCache, Mode::Off).paper(delegated));
            let [first, second] = p50s;
            claims.push(p50(Mode::AllNoCache, Mode::Off).paper(first));
            claims.push(p50(Mode::AllCache, Mode::AllNoCache).paper(second));
            claims.push(
                row(Mode::AllCache, Mode::AllNoCache)
                    .at_least(if shm { 1.5 } else { 1.0 })
                    .bound(bound.to_owned())
                    .paper(cached),
            );
        }
    }
    claims
}

pub(super) fn resp() -> Vec<Claim> {
    let mut claims = Vec::new();
    let papers = ["4.4×", "2.2×", "3.8×", "3.1×", "2.4×", "3.9×"];
    let over_compactions = ["3.6×", "1.7×", "3.1×", "2.4×", "1.9×", "3.1×"];
    let papers = papers.into_iter().zip(over_compactions);
    for (load, (paper, over)) in RespLoad::ALL.into_iter().zip(papers) {
        let modes = [Mode::All, Mode::OffClassic];
        let row = rates(Group::Resp, modes, WIDE, Load::Resp(load))
            .bound(ratio_bound(modes, WIDE))
            .paper(paper);
        claims.push(match load {
            RespLoad { pipeline: 1, gets: 0 | 10 } => row.at_least(3.0),
            RespLoad { gets: 100, .. } => row.at_least(1.2).bound(String::new()),
            _ => row,
        });
        let modes = [Mode::All, Mode::CompactionsClassic];
        claims.push(rates(Group::Resp, modes, WIDE, Load::Resp(load)).paper(over));
        let p99 = |_: &Facts<'_>, run: &Run| Some(run.resp?.p99_ms);
        let [all, classic] =
            [Mode::All, Mode::OffClassic].map(|mode| Cell::new(mode, WIDE, Load::Resp(load)));
        claims.push(
            Claim::new(Group::Resp, all, "P99 of a pipeline", p99).unit("ms").over(classic, p99),
        );
    }
    claims
}
