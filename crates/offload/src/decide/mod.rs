//! Pure decisions of offloading: the executor of a job (O³-LSM §4.3) and the memory node of a
//! shard. `again.rs` chooses the place of a flush that has failed away, and of a job whose
//! scheduler has ended, `reads.rs` the path of a read, `pace.rs` the speed of transfers,
//! `give_up.rs` their early end, `ratio.rs` the number of memtables that stay in the process,
//! `rate.rs` the part of a rate limit that a job takes along, and `share.rs` the memory of a node
//! for each database.
//!
//! A scheduler, an owner, a memory node, the simulation and the model call the same functions.
//!
//! Cost: O(executors) or O(nodes) for each choice.

mod again;
mod give_up;
mod pace;
mod rate;
mod ratio;
mod reads;
mod share;

use archipelago_base::checksum::hash64;
use archipelago_base::wire_struct;
use archipelago_fabric::NodeId;

pub use again::{
    AttemptPlace, FailedFlush, MovedJob, after_failure, after_move, choose_again, needs_slot,
};
pub use give_up::{SendProgress, gives_up};
pub use pace::{PaceInput, pace};
pub use rate::{SHARE_BYTES_PER_S_MIN, ShareInput, rate_share};
pub use ratio::{RatioInput, ReadTimes, SettledRatio, ratio};
pub use reads::{KeyLookup, KnownRecord, LinkFigures, ReadPath, inline_max, read_path};
pub use share::{Claim, admitted, guarantees, share};

use crate::ids::{ExecutorId, NodeLife, OffloadDb};
use crate::job::InputPlace;

/// Weights of the three loads, all 1 as in O³-LSM §5.1. The fetch of images has the weight 1, too
/// ([`cost`]).
const WEIGHTS: [u64; 3] = [1, 1, 1];

/// Largest part of a load, and largest fetch, that a cost counts, in thousandths. No executor
/// reports a thousand times a full load. With this limit the product of all factors stays within
/// 128 bits.
const PART_MAX: u32 = 1_000_000;

/// Load of an executor, each part in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Busy job threads over all job threads.
    pub cpu: u32,
    /// Write rate over the highest measured write rate.
    pub io: u32,
    /// Waiting jobs over the slots of the executor.
    pub queue: u32,
}
wire_struct!(Load { cpu, io, queue });

impl Load {
    /// The sum of the weighted parts, in thousandths.
    fn sum(self) -> u64 {
        let parts = [self.cpu, self.io, self.queue].map(|part| u64::from(part.min(PART_MAX)));
        parts.iter().zip(WEIGHTS).map(|(part, weight)| part * weight).sum()
    }
}

/// Value of [`InputReach::fetch`] before the executor has measured a fetch, in thousandths.
const FETCH_UNKNOWN: u32 = 100;

/// How an executor reaches inputs in the memory of memory nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputReach {
    /// Memory node in whose process the executor runs. The executor reads images of this node in
    /// place.
    pub home: Option<NodeLife>,
    /// Time to fetch an image over the time to write the image's records as tables, in thousandths.
    /// This is the speed of one stream over the speed of a fetch. Default: 100.
    pub fetch: u32,
}
wire_struct!(InputReach { home, fetch });

impl Default for InputReach {
    fn default() -> Self {
        Self { home: None, fetch: FETCH_UNKNOWN }
    }
}

impl InputReach {
    /// The reach after a job that fetched images for `fetch_ns` nanoseconds and then ran for
    /// `run_ns`. The newest job has a quarter of the weight.
    #[must_use]
    pub fn after(self, fetch_ns: u64, run_ns: u64) -> Self {
        let measured = u128::from(fetch_ns) * 1000 / u128::from(run_ns.max(1));
        let measured = u64::try_from(measured).unwrap_or(u64::MAX).min(u64::from(PART_MAX));
        let fetch = (3 * u64::from(self.fetch.min(PART_MAX)) + measured) / 4;
        Self { fetch: fetch as u32, ..self }
    }

    /// The fetch term of a job with inputs at `places`, in thousandths: `fetch` times the share of
    /// the bytes that lie elsewhere. It is 0 if all inputs lie in the process of the executor.
    #[must_use]
    pub fn term(&self, places: &[InputPlace]) -> u32 {
        let sum = |far: bool| -> u128 {
            let some = places.iter().filter(|place| !far || self.home != Some(place.at));
            some.map(|place| u128::from(place.bytes)).sum()
        };
        let far = u128::from(self.fetch.min(PART_MAX)) * sum(true);
        u32::try_from(far / sum(false).max(1)).unwrap_or(PART_MAX)
    }
}

/// An executor, as an input of [`choose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Executor in question.
    pub executor: ExecutorId,
    /// Load of the executor, from its last beat and the assignments since.
    pub load: Load,
    /// Fetch term of the job at this executor ([`InputReach::term`]), in thousandths.
    pub fetch: u32,
    /// Whether the executor has a free slot.
    pub has_slot: bool,
    /// Whether the executor has all names that the job needs.
    pub can_run: bool,
    /// Whether this attempt must avoid the executor, because it has just failed or declined the
    /// job.
    pub is_excluded: bool,
}

/// The executor that a job goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Assign the job to this executor.
    Assign(ExecutorId),
    /// All executors that can run the job are busy or have just declined it.
    Wait,
    /// No executor has all names that the job needs.
    Unknown,
    /// No executor is known.
    Nobody,
}

/// Cost of a job at a candidate: `bytes · (1 + load) · (1 + fetch)` in units of a millionth of a
/// byte.
fn cost(bytes: u64, candidate: &Candidate) -> u128 {
    let load = u128::from(1000 + candidate.load.sum());
    let fetch = u128::from(1000 + candidate.fetch.min(PART_MAX));
    u128::from(bytes.max(1)) * load * fetch
}

/// Chooses the executor with the least cost. Among executors of equal cost, the lowest number wins.
#[must_use]
pub fn choose(bytes: u64, candidates: &[Candidate]) -> Choice {
    if candidates.is_empty() {
        return Choice::Nobody;
    }
    let able = || candidates.iter().filter(|candidate| candidate.can_run);
    if able().next().is_none() {
        return Choice::Unknown;
    }
    let free = able().filter(|candidate| candidate.has_slot && !candidate.is_excluded);
    let best = free.min_by_key(|candidate| (cost(bytes, candidate), candidate.executor));
    best.map_or(Choice::Wait, |candidate| Choice::Assign(candidate.executor))
}

/// Chooses one of `nodes` for the shards of the bucket that begins at `boundary`: the node with the
/// largest hash of database, boundary and node number. So shards of one bucket lie on one node as
/// long as it has room. A node that joins or leaves moves only its own share of the buckets.
#[must_use]
pub fn place(
    db: OffloadDb,
    boundary: &[u8],
    nodes: impl IntoIterator<Item = NodeId>,
) -> Option<NodeId> {
    let weight =
        |node: &NodeId| (hash64(&[&db.0[..], &node.0.to_le_bytes()[..], boundary].concat()), *node);
    nodes.into_iter().max_by_key(weight)
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;

    use super::*;

    #[test]
    fn a_bucket_stays_on_its_node_when_others_leave() {
        let db = OffloadDb([3; 16]);
        let all: Vec<NodeId> = (1..=5).map(NodeId).collect();
        let mut counts = [0; 6];
        for bucket in 0..1000u32 {
            let boundary = bucket.to_be_bytes();
            let chosen = place(db, &boundary, all.iter().copied()).expect("a node");
            counts[chosen.0 as usize] += 1;
            for left_out in &all {
                let rest = all.iter().copied().filter(|node| node != left_out);
                let now = place(db, &boundary, rest).expect("a node");
                assert!(now == chosen || *left_out == chosen, "{bucket} moved without need");
            }
            let turned = place(db, &boundary, all.iter().rev().copied());
            assert_eq!(turned, Some(chosen), "the order of the nodes does not matter");
        }
        assert!(counts[1..].iter().all(|&count| count > 120), "{counts:?}");
        assert_eq!(place(db, b"", []), None);
    }

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
    fn the_least_loaded_executor_gets_the_job() {
        let busy = Candidate { load: Load { cpu: 500, io: 0, queue: 0 }, ..candidate(1) };
        let idle = candidate(2);
        assert_eq!(choose(1 << 20, &[busy, idle]), Choice::Assign(ExecutorId(2)));
        // Among equal costs the lower number wins, for any order of the candidates.
        assert_eq!(choose(1, &[candidate(9), candidate(4)]), Choice::Assign(ExecutorId(4)));
    }

    #[test]
    fn a_far_executor_must_be_much_less_loaded() {
        let far = Candidate { fetch: 1000, ..candidate(1) };
        let near = Candidate { load: Load { cpu: 600, io: 300, queue: 0 }, ..candidate(2) };
        assert_eq!(choose(1, &[far, near]), Choice::Assign(ExecutorId(2)), "1.9 is below 2");
        let near = Candidate { load: Load { cpu: 900, io: 300, queue: 0 }, ..candidate(2) };
        assert_eq!(choose(1, &[far, near]), Choice::Assign(ExecutorId(1)), "2.2 is above 2");
    }

    #[test]
    fn images_are_fetched_only_from_other_processes() {
        let at = |node| NodeLife { node: NodeId(node), life: Epoch(7) };
        let place = |node, bytes| InputPlace { at: at(node), bytes };
        let reach = InputReach { home: Some(at(1)), fetch: 400 };
        assert_eq!(reach.term(&[]), 0, "files are no images");
        assert_eq!(reach.term(&[place(1, 100), place(1, 5)]), 0);
        assert_eq!(reach.term(&[place(1, 300), place(2, 100)]), 100, "a quarter is fetched");
        assert_eq!(reach.term(&[place(2, u64::MAX), place(3, u64::MAX)]), 400);
        let earlier = InputPlace { at: NodeLife { life: Epoch(6), ..at(1) }, bytes: 10 };
        assert_eq!(reach.term(&[earlier]), 400, "an earlier life is another memory");
        let remote = InputReach::default();
        assert_eq!((remote.home, remote.term(&[place(1, 10)])), (None, FETCH_UNKNOWN));
        // Fetches take half of the time of the flushes, and the reach converges to that.
        let learned = (0..40).fold(remote, |reach, _| reach.after(500, 1000));
        assert!((490..=500).contains(&learned.fetch), "{learned:?}");
        assert!(remote.after(u64::MAX, 0).fetch <= PART_MAX);
    }

    #[test]
    fn each_load_counts_alike() {
        let of = |executor, cpu, io, queue| Candidate {
            load: Load { cpu, io, queue },
            ..candidate(executor)
        };
        let candidates = [of(1, 900, 0, 0), of(2, 0, 901, 0), of(3, 0, 0, 899)];
        assert_eq!(choose(1, &candidates), Choice::Assign(ExecutorId(3)));
    }

    #[test]
    fn a_choice_says_why_nobody_gets_the_job() {
        assert_eq!(choose(1, &[]), Choice::Nobody);
        let unable = Candidate { can_run: false, ..candidate(1) };
        assert_eq!(choose(1, &[unable]), Choice::Unknown);
        let full = Candidate { has_slot: false, ..candidate(2) };
        let excluded = Candidate { is_excluded: true, ..candidate(3) };
        assert_eq!(choose(1, &[unable, full, excluded]), Choice::Wait);
    }

    #[test]
    fn the_largest_figures_do_not_overflow() {
        let load = Load { cpu: u32::MAX, io: u32::MAX, queue: u32::MAX };
        let loaded = Candidate { load, fetch: u32::MAX, ..candidate(1) };
        assert_eq!(choose(u64::MAX, &[loaded]), Choice::Assign(ExecutorId(1)));
    }
}
