//! Chooses the place of a flush after an attempt away has failed: another executor for a second
//! attempt, or the process of the owner. The functions are pure.
//!
//! Writers may wait for a flush, and a failed attempt has cost time already. So a second attempt
//! leaves the process only if no writer waits, and it never waits in a queue. A flush whose second
//! attempt fails as well runs in the process of its owner.
//!
//! A job of any kind whose scheduler has ended leaves again, through a scheduler that lives. No
//! executor has failed, so the next attempt avoids none, and it may wait in a queue as a first one.

use super::{Candidate, Choice, choose, cost};
use crate::job::JobKind;

/// Number of attempts of a flush away before it runs in the process of its owner.
const FLUSH_ATTEMPTS_MAX: usize = 2;

/// Largest cost of a second attempt, as a multiple of the cost at an idle executor that reads all
/// inputs in place. Above it the owner is no slower.
const COST_FACTOR_MAX: u128 = 2;

/// A flush whose latest attempt away has failed, as an input of [`after_failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedFlush {
    /// Number of attempts away that have failed.
    pub failures: usize,
    /// Whether writers wait, or are slowed down.
    pub writers_wait: bool,
}

/// Number of times that a job leaves again because its scheduler has ended. Schedulers that end
/// again and again must not keep a job from its end. The number is also below the number of plans
/// that the engine makes of a job.
const MOVES_MAX: u32 = 3;

/// A job whose schedulers have ended, as an input of [`after_move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedJob {
    /// Number of times that the job was planned again because its scheduler had ended.
    pub moves: u32,
    /// Whether the job is a flush for which writers wait, or are slowed down.
    pub writers_wait: bool,
}

/// The place of the next attempt of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptPlace {
    /// An executor that has not failed.
    Away,
    /// The process of the owner.
    Here,
}

/// The place of the next attempt of a flush, from the facts that its owner knows. The scheduler
/// then looks for an executor ([`choose_again`]).
#[must_use]
pub fn after_failure(flush: &FailedFlush) -> AttemptPlace {
    match flush.failures < FLUSH_ATTEMPTS_MAX && !flush.writers_wait {
        true => AttemptPlace::Away,
        false => AttemptPlace::Here,
    }
}

/// The place of the next attempt of a job whose scheduler has ended, if another scheduler lives.
/// [`AttemptPlace::Away`] for a job that was not planned again.
#[must_use]
pub fn after_move(job: &MovedJob) -> AttemptPlace {
    match job.moves == 0 || (job.moves <= MOVES_MAX && !job.writers_wait) {
        true => AttemptPlace::Away,
        false => AttemptPlace::Here,
    }
}

/// Whether a job leaves only if its owner knows of a free slot. Writers may wait for a flush, so a
/// flush without a slot stays here. But the owner of a flush that leaves again may have heard from
/// a scheduler that has just begun and knows no executor yet. That scheduler keeps the flush until
/// executors had the time for a beat.
#[must_use]
pub fn needs_slot(kind: JobKind, moves: u32) -> bool {
    kind == JobKind::Flush && moves == 0
}

/// Chooses the executor with the least cost for a second attempt. The executor needs a free slot,
/// and may cost at most twice as much as an idle executor that reads all inputs in place. The
/// result is never an executor that is excluded. [`Choice::Wait`] means that the owner runs the
/// job.
#[must_use]
pub fn choose_again(bytes: u64, candidates: &[Candidate]) -> Choice {
    let choice = choose(bytes, candidates);
    let Choice::Assign(executor) = choice else { return choice };
    let chosen = candidates.iter().find(|candidate| candidate.executor == executor);
    let idle = u128::from(bytes.max(1)) * 1_000_000;
    match chosen.is_some_and(|chosen| cost(bytes, chosen) <= COST_FACTOR_MAX * idle) {
        true => choice,
        false => Choice::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Load;
    use crate::ids::ExecutorId;

    fn candidate(executor: u64) -> Candidate {
        Candidate {
            executor: ExecutorId(executor),
            load: Load::default(),
            fetch: 0,
            has_slot: true,
            can_run: true,
            is_excluded: false,
        }
    }

    #[test]
    fn flush_gets_two_attempts_away_unless_writers_wait() {
        let place = |failures, writers_wait| after_failure(&FailedFlush { failures, writers_wait });
        assert_eq!(place(1, false), AttemptPlace::Away);
        assert_eq!(place(1, true), AttemptPlace::Here, "writers wait");
        assert_eq!(place(2, false), AttemptPlace::Here);
        assert_eq!(place(3, false), AttemptPlace::Here);
    }

    #[test]
    fn job_leaves_again_a_few_times_unless_writers_wait() {
        let place = |moves, writers_wait| after_move(&MovedJob { moves, writers_wait });
        assert_eq!(place(0, true), AttemptPlace::Away, "no scheduler has ended");
        assert_eq!(place(1, false), AttemptPlace::Away);
        assert_eq!(place(1, true), AttemptPlace::Here, "writers wait");
        assert_eq!(place(MOVES_MAX, false), AttemptPlace::Away);
        assert_eq!(place(MOVES_MAX + 1, false), AttemptPlace::Here);
    }

    #[test]
    fn flush_needs_a_slot_until_its_scheduler_has_ended() {
        assert!(needs_slot(JobKind::Flush, 0));
        assert!(!needs_slot(JobKind::Flush, 1), "a new scheduler knows no executor yet");
        assert!(!needs_slot(JobKind::Compaction, 0), "compactions may wait");
    }

    #[test]
    fn second_attempt_goes_to_a_free_executor_that_has_not_failed() {
        let failed = Candidate { is_excluded: true, ..candidate(1) };
        let full = Candidate { has_slot: false, ..candidate(2) };
        assert_eq!(choose_again(9, &[failed, full]), Choice::Wait);
        let again = choose_again(9, &[failed, full, candidate(3)]);
        assert_eq!(again, Choice::Assign(ExecutorId(3)));
        assert_eq!(choose_again(9, &[]), Choice::Nobody);
    }

    #[test]
    fn second_attempt_that_costs_too_much_stays_here() {
        let loaded =
            |cpu, fetch| Candidate { load: Load { cpu, io: 0, queue: 0 }, fetch, ..candidate(3) };
        for (cpu, fetch, goes) in [
            (1000, 0, true),
            (1001, 0, false),
            (0, 1000, true),
            (500, 400, false),
            (400, 400, true),
        ] {
            let expected = if goes { Choice::Assign(ExecutorId(3)) } else { Choice::Wait };
            let again = choose_again(1 << 20, &[loaded(cpu, fetch)]);
            assert_eq!(again, expected, "load {cpu}, fetch {fetch}");
        }
    }
}
