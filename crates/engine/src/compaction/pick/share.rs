//! How the background jobs are shared: between compactions and flushes, and between the column
//! families. Pure functions.
//!
//! Flushes come first at every free job, but a running job is not interrupted: with all jobs in
//! long compactions (a classic L0 takes one job over all its keys) sealed memtables would need the
//! spare worker (`db/background.rs`), one thread more than was asked for. So while memtables are
//! being sealed one job is left for flushes: 2 jobs are one flush and one compaction, which is what
//! RocksDB makes of 2, and 8 are 7 and one, to which flushes add whatever gets free next. Without
//! writes all of them compact.
//!
//! Among families the most urgent pick goes first. Urgency counts what is idle, so it falls with
//! every job that a family is given, and a family that waits becomes more urgent: none starves.

use super::picker::Picker;
use super::{Pick, PickInput, pick, pick_drop};
use crate::version::{LAST_LEVEL, Version};

/// For how long after a seal a job is left for flushes, at least.
const RESERVE_NS_MIN: u64 = 1_000_000_000;
/// And at most: writes that pause longer have ended.
const RESERVE_NS_MAX: u64 = 60 * RESERVE_NS_MIN;
/// However fast memtables came, a load is not over before this.
const LOAD_PAUSE_NS_MIN: u64 = 1_000_000_000;
/// A load is over when no memtable was sealed for this long, however slowly they came.
const LOAD_PAUSE_NS_MAX: u64 = 4_000_000_000;
/// A memtable is expected within this many times the last interval between two seals.
const RESERVE_INTERVALS: u64 = 2;

/// For how long after a seal jobs are left for flushes, when the seal before it was `interval_ns`
/// earlier.
#[must_use]
pub fn flush_reserve_ns(interval_ns: u64) -> u64 {
    interval_ns.saturating_mul(RESERVE_INTERVALS).clamp(RESERVE_NS_MIN, RESERVE_NS_MAX)
}

/// For how long after a seal a load goes on, when the seal before it was `interval_ns` earlier.
#[must_use]
pub fn load_pause_ns(interval_ns: u64) -> u64 {
    interval_ns.saturating_mul(RESERVE_INTERVALS).clamp(LOAD_PAUSE_NS_MIN, LOAD_PAUSE_NS_MAX)
}

/// How many compactions may run at once with `jobs` background jobs, when the last memtable was
/// sealed `since_ns` ago (`None`: never) and the one before it `interval_ns` earlier.
#[must_use]
pub fn compaction_jobs(jobs: usize, since_ns: Option<u64>, interval_ns: u64) -> usize {
    match since_ns {
        Some(since_ns) if since_ns <= flush_reserve_ns(interval_ns) => {
            jobs.saturating_sub(1).max(1)
        }
        _ => jobs,
    }
}

/// Whether a load goes on (see [`PickInput::loading`]), when the last memtable was sealed
/// `since_ns` ago (`None`: never) and the one before it `interval_ns` earlier.
#[must_use]
pub fn is_loading(since_ns: Option<u64>, interval_ns: u64) -> bool {
    since_ns.is_some_and(|since_ns| since_ns <= load_pause_ns(interval_ns))
}

/// The most urgent compaction of several column families, with the index of its family; `None` if
/// no family has one or enough jobs run. Tables that no reader needs are dropped before anything
/// else. Even ones go to the family with fewer running jobs. `common` says everything but the
/// version, which is ignored.
///
/// Cost: that of [`pick`] for the families that may be as urgent as the most urgent pick.
#[must_use]
pub fn pick_of_all(families: &[&Version], common: &PickInput<'_>) -> Option<(usize, Pick)> {
    let running = common.running;
    if running.len() >= common.jobs_max {
        return None;
    }
    let of = |at: usize| PickInput { version: families[at], ..*common };
    let mut all = 0..families.len();
    if let Some(dropped) = all.find_map(|at| pick_drop(&of(at)).map(|pick| (at, pick))) {
        return Some(dropped);
    }
    let mut order: Vec<(f64, usize)> =
        (0..families.len()).map(|at| (urgency_most(&of(at)), at)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let jobs_of = |at: usize| running.iter().filter(|job| job.cf == families[at].cf()).count();
    let mut best: Option<(f64, usize, Pick)> = None;
    for (most, at) in order {
        if best.as_ref().is_some_and(|&(urgency, ..)| urgency > most) {
            break;
        }
        let Some(pick) = pick(&of(at)) else { continue };
        let picker = Picker::new(families[at], running).urged(of(at).space_urgency());
        let urgency = picker.urgency(&pick);
        let better = best.as_ref().is_none_or(|&(other, other_at, _)| {
            let even = urgency == other && jobs_of(at) < jobs_of(other_at);
            urgency > other || even
        });
        if better {
            best = Some((urgency, at, pick));
        }
    }
    best.map(|(_, at, pick)| (at, pick))
}

/// No pick of the version is more urgent than this.
fn urgency_most(input: &PickInput<'_>) -> f64 {
    let (version, urgency) = (input.version, input.space_urgency());
    let deeper = (version.base_level()..LAST_LEVEL).map(|level| version.score(level) * urgency);
    deeper.fold(Picker::new(version, &[]).urged(urgency).l0_urgency(), f64::max)
}
