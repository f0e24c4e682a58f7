//! The list of all rows, in the order of the table, with the paper's statements, the targets and
//! the bounds. Decisions 0087 and 0107 fix them. The functions are pure.
//!
//! `writes` has the rows of random writes, `breakdown` those of §5.3 of the paper, `reads` those of
//! reads, mixed loads and Redis clients, `settings` those of settings and take-overs, and `listed`
//! the rows that are listed only.

mod breakdown;
mod listed;
mod reads;
mod settings;
mod writes;

use super::bounds::StorageLink;
use super::modes::Mode;
use super::plan::{Cell, Group, Load};
use super::rows::{Claim, Facts, times};
use super::run::Run;

pub(super) use listed::listed;

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
        reads::delegation(),
        settings::cache(),
        breakdown::memtables(),
        settings::local(),
        breakdown::links(),
        breakdown::peaks(),
        breakdown::stability(),
        writes::portability(),
        reads::resp(),
        settings::takeover(),
    ];
    parts.into_iter().flatten().collect()
}

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
