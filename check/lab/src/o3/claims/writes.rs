//! Rows of random writes: Figures 8, 9 and 12a, and Table 7.

use super::super::bounds::StorageLink;
use super::super::modes::Mode;
use super::super::plan::{Cell, Group, Load, PORTED_LOADS, Value};
use super::super::rows::{Claim, Facts};
use super::super::run::Run;
use super::{WIDE, p99_of_writes, rate, rates, ratio_bound};

/// A row of the throughput of two modes.
#[derive(Clone, Copy)]
struct FillRow {
    modes: [Mode; 2],
    /// Least ratios at 1 and at 2.5 Gbit/s.
    targets: [f64; 2],
    papers: [&'static str; 2],
}

const FILL_ROWS: [FillRow; 5] = [
    FillRow {
        modes: [Mode::All, Mode::OffClassic],
        targets: [4.1, 4.5],
        papers: ["up to 4.1×", "up to 4.5×"],
    },
    FillRow { modes: [Mode::All, Mode::Off], targets: [3.5, 3.5], papers: ["", ""] },
    FillRow {
        modes: [Mode::All, Mode::CompactionsClassic],
        targets: [3.4, 3.4],
        papers: ["up to 3.2×", "up to 3.4×"],
    },
    FillRow { modes: [Mode::All, Mode::Compactions], targets: [1.25, 1.25], papers: ["", ""] },
    FillRow { modes: [Mode::AllSecond, Mode::Compactions], targets: [1.4, 1.4], papers: ["", ""] },
];

/// Cause of a missed target with records of 80 bytes.
const SMALL_RECORDS: &str = "The index takes more of a memtable of small records, so memory nodes \
                             absorb less of the burst.";

pub(super) fn fill() -> Vec<Claim> {
    let mut claims = Vec::new();
    for (at, link) in StorageLink::ALL.into_iter().enumerate() {
        for value in Value::ALL {
            let load = Load::Fill(value);
            claims.extend(FILL_ROWS.map(|row| {
                rates(Group::Fill, row.modes, link, load)
                    .at_least(row.targets[at])
                    .bound(ratio_bound(row.modes, link))
                    .paper(row.papers[at])
                    .cause(if value == Value::Small { SMALL_RECORDS } else { "" })
            }));
            let modes = [Mode::All, Mode::OffClassic];
            let [all, classic] = modes.map(|mode| Cell::new(mode, link, load));
            let half = |_: &Facts<'_>, run: &Run| run.second_half();
            let settled = |_: &Facts<'_>, run: &Run| run.settled_rate();
            let open = [
                Claim::new(Group::Fill, all, "second half", half).over(classic, half),
                Claim::new(Group::Fill, all, "until settled", settled).over(classic, settled),
            ];
            let bound = ratio_bound(modes, link);
            claims.extend(open.map(|claim| claim.unit("ops/s").bound(bound.clone())));
        }
    }
    claims
}

pub(super) fn burst() -> Vec<Claim> {
    let row = |(link, paper)| {
        let modes = [Mode::AllBurst, Mode::OffClassic];
        rates(Group::Burst, modes, link, Load::Burst(Value::Small))
            .at_least(7.0)
            .bound("above 10×: processors".to_owned())
            .paper(paper)
    };
    [(StorageLink::One, "up to 6.4×"), (WIDE, "up to 6.9×")].map(row).into()
}

pub(super) fn latency() -> Vec<Claim> {
    let load = Load::Paced(Value::Small);
    let [all, off, classic] =
        [Mode::All, Mode::Off, Mode::OffClassic].map(|mode| Cell::new(mode, WIDE, load));
    let stalled = |_: &Facts<'_>, run: &Run| run.stalled_share();
    let p99 = |own, peer| {
        Claim::new(Group::Latency, own, "P99 of a write", p99_of_writes)
            .unit("µs")
            .over(peer, p99_of_writes)
    };
    let none = "no stall: less than a quarter of the bound is offered".to_owned();
    vec![
        p99(all, classic).at_most(0.4).bound(none.clone()).paper("−32 to −60 %"),
        p99(all, off),
        p99(off, classic),
        Claim::new(Group::Latency, all, "share of the time in stalls", stalled)
            .within(0.05)
            .bound(none),
        Claim::new(Group::Latency, classic, "share of the time in stalls", stalled),
    ]
}

pub(super) fn ablation() -> Vec<Claim> {
    let load = Load::Fill(Value::Small);
    let row = |modes, least, paper| {
        rates(Group::Ablation, modes, WIDE, load)
            .at_least(least)
            .bound(ratio_bound(modes, WIDE))
            .paper(paper)
    };
    let naive = [Mode::DmNaive, Mode::OffClassic];
    vec![
        row(naive, 0.8, "−18 % (+DM)")
            .cause("The owner reads each memtable back before it flushes it, as in the paper."),
        row([Mode::DmFlush, Mode::DmNaive], 1.0, "flushes 34.6× faster (+FO)"),
        row([Mode::DmShard, Mode::DmFlush], 1.0, "flushes 15 % faster (+Shard)"),
        row([Mode::All, Mode::DmShard], 1.0, ""),
    ]
}

pub(super) fn portability() -> Vec<Claim> {
    let modes = [Mode::All, Mode::CompactionsClassic];
    let load = Load::Fill(Value::Small);
    let [all, compactions] = modes.map(|mode| Cell::new(mode, WIDE, load));
    vec![
        Claim::new(Group::Portability, all, "rate", rate)
            .unit("ops/s")
            .over(compactions, rate)
            .at_least(3.4)
            .bound(ratio_bound(modes, WIDE))
            .paper("4.4×"),
        Claim::new(Group::Portability, all, "P99 of a write", p99_of_writes)
            .unit("µs")
            .over(compactions, p99_of_writes)
            .paper("−51 %"),
    ]
}

/// Rows of Table 7 for settled reads and for mixed loads.
pub(super) fn portability_of_reads() -> Vec<Claim> {
    let modes = [Mode::All, Mode::CompactionsClassic];
    let [_, reads, mixed] = PORTED_LOADS;
    let papers = [(reads, "1.35×", "−52 %"), (mixed, "3.2×", "−59 %")];
    let rows = papers.into_iter().flat_map(|(load, rate, p99)| {
        let [all, compactions] = modes.map(|mode| Cell::new(mode, WIDE, load));
        let p99_of_reads = |_: &Facts<'_>, run: &Run| run.p99_us(&["read"]);
        let p99 = Claim::new(Group::Portability, all, "P99 of a read", p99_of_reads)
            .unit("µs")
            .over(compactions, p99_of_reads)
            .paper(p99);
        [rates(Group::Portability, modes, WIDE, load).paper(rate), p99]
    });
    rows.collect()
}
