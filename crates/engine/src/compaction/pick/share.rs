//! How background jobs are divided between compactions and flushes, and between the column
//! families. Pure functions.
//!
//! Every free job slot serves flushes first, but a running job is not interrupted. With all jobs in
//! long compactions (a classic L0 takes one job over all its keys), sealed memtables would need the
//! spare worker (`db/background/scheduler.rs`), one thread more than the setting. So one job is
//! left for flushes while memtables are being sealed. 2 jobs are one flush and one compaction, as
//! in RocksDB. 8 jobs are one flush and seven compactions, and flushes also take the next jobs that
//! end. Without writes all jobs compact.
//!
//! Among families the most urgent pick goes first. Urgency counts idle files only. So it falls with
//! every job that a family gets and rises for a family that waits: none starves.
//!
//! A family whose writers are delayed for space goes before all others while none of its
//! compactions runs. The jobs that free its space may have no urgency, and its urgency does not
//! rise while its writers wait. With a running compaction it is like any other family, so that it
//! takes no more than one job from families that are due. That job may be the only one, so after
//! each compaction of such a family one is picked by urgency alone
//! ([`SpaceDemand::turn`](super::SpaceDemand::turn)).

use std::cmp::{Ordering, Reverse};

use super::picker::Picker;
use super::{Pick, PickInput, pick, pick_drop};
use crate::version::{LAST_LEVEL, Version};

/// Shortest time after a seal, in nanoseconds, for which a job is left for flushes.
const RESERVE_NS_MIN: u64 = 1_000_000_000;
/// Longest time after a seal, in nanoseconds, for which a job is left for flushes.
const RESERVE_NS_MAX: u64 = 60 * RESERVE_NS_MIN;
/// Shortest time without a seal, in nanoseconds, after which a load is over.
const LOAD_PAUSE_NS_MIN: u64 = 1_000_000_000;
/// Longest time without a seal, in nanoseconds, for which a load goes on.
const LOAD_PAUSE_NS_MAX: u64 = 4_000_000_000;
/// A memtable is expected within this many times the last interval between two seals.
const RESERVE_INTERVALS: u64 = 2;

/// Nanoseconds after a seal for which a job is left for flushes, if the seal before was
/// `interval_ns` earlier.
#[must_use]
pub fn flush_reserve_ns(interval_ns: u64) -> u64 {
    interval_ns.saturating_mul(RESERVE_INTERVALS).clamp(RESERVE_NS_MIN, RESERVE_NS_MAX)
}

/// Nanoseconds after a seal for which a load goes on, if the seal before was `interval_ns` earlier.
#[must_use]
pub fn load_pause_ns(interval_ns: u64) -> u64 {
    interval_ns.saturating_mul(RESERVE_INTERVALS).clamp(LOAD_PAUSE_NS_MIN, LOAD_PAUSE_NS_MAX)
}

/// Number of compactions that may run at the same time with `jobs` background jobs. The last
/// memtable was sealed `since_ns` ago (`None`: never) and the one before it `interval_ns` earlier.
#[must_use]
pub fn compaction_jobs(jobs: usize, since_ns: Option<u64>, interval_ns: u64) -> usize {
    match since_ns {
        Some(since_ns) if since_ns <= flush_reserve_ns(interval_ns) => {
            jobs.saturating_sub(1).max(1)
        }
        _ => jobs,
    }
}

/// Whether a load goes on ([`PickInput::loading`]). The last memtable was sealed `since_ns` ago
/// (`None`: never) and the one before it `interval_ns` earlier.
#[must_use]
pub fn is_loading(since_ns: Option<u64>, interval_ns: u64) -> bool {
    since_ns.is_some_and(|since_ns| since_ns <= load_pause_ns(interval_ns))
}

/// Rank of a family among all families, or of its pick.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FamilyRank {
    /// Turn of a family whose writers are delayed for space, if no compaction of it runs.
    turn: Option<Reverse<u64>>,
    urgency: f64,
}

impl FamilyRank {
    /// The order of ranks. The more urgent rank is the greater one.
    fn total_cmp(&self, other: &Self) -> Ordering {
        self.turn.cmp(&other.turn).then(self.urgency.total_cmp(&other.urgency))
    }
}

/// The most urgent compaction of several column families, with the index of its family. `None` if
/// no family has one or enough jobs run. Tables that no reader needs are dropped before anything
/// else. A family whose writers are delayed for space, and that has no running job, goes before the
/// others in its turn. Among equal picks, the family with fewer running jobs goes first. `common`
/// is the input for every family, except for its version, which is ignored.
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
    let jobs_of = |at: usize| running.iter().filter(|job| job.cf == families[at].cf()).count();
    let rank_of = |at: usize, urgency: f64| {
        let turn = of(at).turn().filter(|_| jobs_of(at) == 0);
        FamilyRank { turn: turn.map(Reverse), urgency }
    };
    let mut order: Vec<(FamilyRank, usize)> =
        (0..families.len()).map(|at| (rank_of(at, urgency_most(&of(at))), at)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut best: Option<(FamilyRank, usize, Pick)> = None;
    for (most, at) in order {
        if best.as_ref().is_some_and(|(rank, ..)| rank.total_cmp(&most).is_gt()) {
            break;
        }
        let Some(pick) = pick(&of(at)) else { continue };
        let picker = Picker::new(families[at], running).urged(of(at).space_urgency());
        let rank = rank_of(at, picker.urgency(&pick));
        let better = best.as_ref().is_none_or(|&(other, other_at, _)| {
            let even = rank == other && jobs_of(at) < jobs_of(other_at);
            rank.total_cmp(&other).is_gt() || even
        });
        if better {
            best = Some((rank, at, pick));
        }
    }
    best.map(|(_, at, pick)| (at, pick))
}

/// Upper bound of the urgency of all picks of the version.
fn urgency_most(input: &PickInput<'_>) -> f64 {
    let (version, urgency) = (input.version, input.space_urgency());
    let deeper = (version.base_level()..LAST_LEVEL).map(|level| version.score(level) * urgency);
    deeper.fold(Picker::new(version, &[]).urged(urgency).l0_urgency(), f64::max)
}
