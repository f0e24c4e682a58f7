//! The list of all rows, in the order of the table, with the paper's statements, the targets and
//! the bounds. Decisions 0087, 0107 and 0108 fix them. The functions are pure.
//!
//! `writes` has the rows of random writes, `breakdown` those of §5.3 of the paper, `reads` those of
//! reads, mixed loads and Redis clients, `settings` those of settings and take-overs, `times` those
//! of the steps of flushes and of the ways of reads, `databases` those of several databases as
//! processes, and `listed` the rows that are listed only.

mod breakdown;
mod databases;
mod listed;
mod reads;
mod settings;
mod times;
mod writes;

use super::bounds::StorageLink;
use super::modes::Mode;
use super::plan::{Cell, Group, Load};
use super::rows::{Claim, Facts, times};
use super::run::Run;

pub(super) use listed::listed;
pub(super) use times::FlushSteps;

/// All rows, in the order of the table.
pub(super) fn all() -> Vec<Claim> {
    let parts = [
        writes::fill(),
        writes::burst(),
        writes::latency(),
        reads::read(),
        reads::mixed(),
        reads::ycsb(),
        reads::range(),
        writes::ablation(),
        breakdown::flush(),
        breakdown::stalls(),
        breakdown::amplification(),
        breakdown::phases(),
        times::steps(),
        reads::delegation(),
        times::ways(),
        settings::cache(),
        breakdown::memtables(),
        settings::local(),
        breakdown::links(),
        breakdown::links_of_reads(),
        breakdown::peaks(),
        breakdown::stability(),
        writes::portability(),
        writes::portability_of_reads(),
        reads::resp(),
        settings::takeover(),
        databases::several_databases(),
    ];
    parts.into_iter().flatten().collect()
}

/// Link between compute and memory node of the paper, in MB/s: 40 Gbit/s.
const MEMORY_LINK: f64 = 5000.0;

/// The link of most rows.
const WIDE: StorageLink = StorageLink::TwoAndAHalf;

/// Operations per second of a run.
fn rate(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.rate()
}

/// A row about the rates of two modes under one load.
fn rates(group: Group, modes: [Mode; 2], link: StorageLink, load: Load) -> Claim {
    let [own, peer] = modes.map(|mode| Cell::new(mode, link, load));
    Claim::new(group, own, "rate", rate).unit("ops/s").over(peer, rate)
}

/// Ratio of the bounds of two modes, as text.
fn ratio_bound(modes: [Mode; 2], link: StorageLink) -> String {
    let [own, peer] = modes.map(|mode| mode.spec().bound(link));
    times(own / peer)
}

/// The 99th percentile of writes, of those that a load has.
fn p99_of_writes(_: &Facts<'_>, run: &Run) -> Option<f64> {
    run.p99_us(&["write", "update"])
}
