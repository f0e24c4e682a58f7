//! The jobs of one open of a database whose schedulers have ended.
//!
//! Such a job is planned again with other file numbers, as a job of its own. Its inputs show that
//! it is the same job: the shards of a flush, the tables of a compaction, and the value files that
//! a garbage collection rewrites. The value files that a compaction reads do not count, because
//! other jobs read them at the same time. The count of its moves bounds them
//! ([`crate::decide::after_move`]).
//!
//! Invariants:
//! 1. At most [`INPUTS_MAX`] inputs are remembered.
//! 2. Jobs that run at the same time have no input in common, except for the parts of one
//!    compaction. The parts lose their scheduler together, which counts as one move.
//!
//! Thread-safety: any thread may call any method. There is one lock.
//! Failure: a job that was forgotten counts as one that has not moved.
//! Cost: O(inputs of the job) for each call, and a short lock.

use std::collections::BTreeMap;

use archipelago_engine::remote::ShardId;
use parking_lot::Mutex;

use crate::job::JobKind;

/// Largest number of inputs of moved jobs that are remembered.
const INPUTS_MAX: usize = 4096;

/// An input by which the next plan of a job is recognised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobInput {
    /// A memtable shard.
    Shard(ShardId),
    /// The name of a file that a job of this kind replaces.
    File(JobKind, String),
}

/// A plan of a job, by its inputs.
#[derive(Debug)]
pub(super) struct PlannedInputs {
    inputs: Vec<JobInput>,
    /// Number of times that earlier plans of the job lost their scheduler.
    pub(super) moves: u32,
}

/// Numbers of moves, by the inputs of the jobs.
#[derive(Debug, Default)]
pub(super) struct JobMoves(Mutex<BTreeMap<JobInput, u32>>);

impl JobMoves {
    /// A plan of a job with these inputs. The input with the most moves counts.
    pub(super) fn plan_of(&self, inputs: Vec<JobInput>) -> PlannedInputs {
        let known = self.0.lock();
        let moves = inputs.iter().filter_map(|input| known.get(input)).max();
        let moves = moves.copied().unwrap_or(0);
        drop(known);
        PlannedInputs { inputs, moves }
    }

    /// Notes that the scheduler of a plan has ended.
    pub(super) fn note_moved(&self, plan: &PlannedInputs) {
        let mut known = self.0.lock();
        for input in &plan.inputs {
            let moves = known.entry(input.clone()).or_insert(0);
            *moves = (*moves).max(plan.moves + 1);
        }
        while known.len() > INPUTS_MAX {
            known.pop_first();
        }
    }

    /// Forgets the moves of a job, because it has ended or runs here now.
    pub(super) fn forget(&self, plan: &PlannedInputs) {
        let mut known = self.0.lock();
        if !known.is_empty() {
            for input in &plan.inputs {
                known.remove(input);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u32) -> JobInput {
        JobInput::File(JobKind::Compaction, format!("{number:06}.sst"))
    }

    #[test]
    fn moves_of_a_job_are_known_by_any_of_its_inputs() {
        let moves = JobMoves::default();
        let of = |inputs: &[JobInput]| moves.plan_of(inputs.to_vec());
        let both = [file(1), file(2)];
        assert_eq!(of(&both).moves, 0);
        moves.note_moved(&of(&both));
        assert_eq!(of(&[file(2), file(3)]).moves, 1);
        assert_eq!(of(&[file(3)]).moves, 0);
        moves.note_moved(&of(&[file(1)]));
        assert_eq!(of(&both).moves, 2);
        moves.forget(&of(&both));
        assert_eq!(of(&both).moves, 0);
    }

    #[test]
    fn jobs_of_two_kinds_share_no_moves() {
        let moves = JobMoves::default();
        let of = |kind| moves.plan_of(vec![JobInput::File(kind, "000001.vsst".to_owned())]);
        moves.note_moved(&of(JobKind::Gc));
        assert_eq!(of(JobKind::Compaction).moves, 0);
        moves.forget(&of(JobKind::Compaction));
        assert_eq!(of(JobKind::Gc).moves, 1);
    }

    #[test]
    fn parts_that_lose_their_scheduler_together_count_once() {
        let moves = JobMoves::default();
        let parts = [(); 3].map(|()| moves.plan_of(vec![file(1)]));
        parts.iter().for_each(|part| moves.note_moved(part));
        assert_eq!(moves.plan_of(vec![file(1)]).moves, 1);
    }

    #[test]
    fn number_of_remembered_inputs_is_bounded() {
        let moves = JobMoves::default();
        let shard = |memtable| JobInput::Shard(ShardId { memtable, shard: 2 });
        let all = (0..=INPUTS_MAX as u64).map(shard).collect();
        moves.note_moved(&moves.plan_of(all));
        assert_eq!(moves.plan_of(vec![shard(0)]).moves, 0);
        assert_eq!(moves.plan_of(vec![shard(1)]).moves, 1);
    }
}
