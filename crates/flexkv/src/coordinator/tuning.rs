//! How the map follows the load: what is made of the nodes' counters at the end of each interval.
//!
//! An **interval** of Δ gives a sample: accesses by partition for [`hotness`](crate::hotness)
//! (Algorithm 1: who is to have which partition), operations a second and the share of reads for
//! the [`RatioController`] (Algorithm 2: how many partitions are proxied). What comes of both is
//! one change of the map. An interval in which such a change, or one for a node that joined or
//! died, was under way gives no sample: what was measured belongs to no map. Subtables that grow
//! disturb nothing. So a round takes Δ per sample and the durations of its changes.
//!
//! A node that is the only one has no request to send: what it proxies it reads and writes in its
//! own memory first, so it is to be the proxy of all that fits. The knob has nothing to find out
//! then, and the differences between samples would be noise; it begins where it stands when a
//! second node is there.
//!
//! Until the first reassignment there is no ranking, and partitions are dealt out by number;
//! afterwards every list is from hot to cold, also where a node joined or died. An interval without
//! any operation says nothing and moves nothing.
//!
//! Invariants: 1. the same readings give the same decisions; 2. a node in a new life begins at zero
//! ([`Window`]). Thread-safety: by `&mut`. Failure: a node that was not heard counts as without
//! load; a coordinator that starts anew has no ranking and makes one. Cost: a sort of the
//! partitions per interval. Paper: §4.2, §4.3.2.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::format::Counts;
use crate::hotness::{Detection, INTERVAL_NS, NOISE_SIGMAS_DEFAULT, Ranking, Window, detect};
use crate::ids::ComputeId;
use crate::offload_ratio::{Ratio, RatioController, STEP_PERMILLE};
use crate::wire::Figure;

/// Changes that a report remembers.
const CHANGES_KEPT: usize = 64;

/// How the map follows the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Partitions are assigned by their hotness (Algorithm 1); otherwise by number, for good.
    /// Default: yes.
    pub hotness: bool,
    /// The knob sets the share of proxied partitions (Algorithm 2); otherwise it stays as it was
    /// set. Default: yes.
    pub adapt_ratio: bool,
    /// Δ. Default: 1 s.
    pub interval: Duration,
    /// Standard deviations of a count that are taken for noise. Default: 3; the paper's algorithm
    /// has 0.
    pub noise_sigmas: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            hotness: true,
            adapt_ratio: true,
            interval: Duration::from_nanos(INTERVAL_NS),
            noise_sigmas: NOISE_SIGMAS_DEFAULT,
        }
    }
}

impl Tuning {
    /// Nothing follows the load: the ratio stays as it is set, partitions where they are.
    pub const FIXED: Self = Self {
        hotness: false,
        adapt_ratio: false,
        interval: Duration::from_nanos(INTERVAL_NS),
        noise_sigmas: NOISE_SIGMAS_DEFAULT,
    };
}

/// What a change of the map was for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// A node joined or died.
    pub balance: bool,
    /// Subtables grew.
    pub grow: bool,
    /// Partitions were assigned by a new ranking.
    pub reassign: bool,
    /// The share of proxied partitions changed.
    pub offload: bool,
}

impl Cause {
    /// Whether what is measured meanwhile belongs to no map.
    pub(super) fn disturbs(self) -> bool {
        self.balance || self.reassign || self.offload
    }
}

/// A change of the map that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The version that it made.
    pub version: u64,
    /// What for.
    pub cause: Cause,
    /// How many partitions were paused.
    pub partitions: u32,
    /// How many of them got another node.
    pub moved: u32,
    /// When it began.
    pub began_ns: u64,
    /// How long it took, from the first order to the last confirmation.
    pub took_ns: u64,
}

/// What came of following the load.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Samples that were judged.
    pub samples: u64,
    /// Operations a second in the latest.
    pub throughput: f64,
    /// Reads over operations in the latest.
    pub read_share: f64,
    /// By how many ranks partitions had moved in the latest (D), and what a random reshuffle gives
    /// (B).
    pub displacement: u64,
    /// See there.
    pub baseline: f64,
    /// How often partitions were assigned anew.
    pub reassignments: u64,
    /// How often the knob set another ratio.
    pub ratio_moves: u64,
    /// Whether the knob has found its ratio.
    pub steady: bool,
    /// The latest changes of the map, oldest first.
    pub changes: VecDeque<Changed>,
}

impl Report {
    /// For people and their tools: whole numbers by name.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let (last, longest) = (self.changes.back(), self.changes.iter().map(|c| c.took_ns).max());
        let facts = [
            ("samples", self.samples),
            ("ops_per_s", self.throughput as u64),
            ("reads_permille", (self.read_share * 1000.0) as u64),
            ("displacement", self.displacement),
            ("displacement_baseline", self.baseline as u64),
            ("reassignments", self.reassignments),
            ("ratio_moves", self.ratio_moves),
            ("ratio_steady", u64::from(self.steady)),
            ("last_change_us", last.map_or(0, |change| change.took_ns / 1000)),
            ("last_change_partitions", last.map_or(0, |change| change.partitions.into())),
            ("last_change_moved", last.map_or(0, |change| change.moved.into())),
            ("longest_change_us", longest.unwrap_or(0) / 1000),
        ];
        facts.map(|(name, value)| Figure { name: name.to_owned(), value }).to_vec()
    }
}

/// What an interval's end asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) reassign: bool,
    pub(super) ratio: Option<Ratio>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tuner {
    tuning: Tuning,
    /// `None`: the ratio is fixed.
    controller: Option<RatioController>,
    /// In force, once there is one.
    ranking: Option<Ranking>,
    window: Option<Window>,
    /// By node: its life, and reads and writes at its last reading.
    totals: BTreeMap<u32, (u64, u64, u64)>,
    reads: u64,
    writes: u64,
    began_ns: Option<u64>,
    pub(super) report: Report,
}

impl Tuner {
    pub(super) fn new(tuning: Tuning, ratio: Ratio) -> Self {
        Self {
            tuning,
            controller: tuning
                .adapt_ratio
                .then(|| RatioController::starting_at(ratio, STEP_PERMILLE)),
            ranking: None,
            window: None,
            totals: BTreeMap::new(),
            reads: 0,
            writes: 0,
            began_ns: None,
            report: Report { steady: !tuning.adapt_ratio, ..Report::default() },
        }
    }

    pub(super) fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// From now on so; a ranking that is there stays.
    pub(super) fn tune(&mut self, tuning: Tuning, ratio: Ratio) {
        let (ranking, window) = (self.ranking.take(), self.window.take());
        let report = std::mem::take(&mut self.report);
        let totals = std::mem::take(&mut self.totals);
        *self = Self { ranking, window, totals, ..Self::new(tuning, ratio) };
        self.report = Report { steady: !tuning.adapt_ratio, ..report };
    }

    /// The ratio is somebody else's matter from now on.
    pub(super) fn fix(&mut self) {
        self.controller = None;
        self.tuning.adapt_ratio = false;
        self.report.steady = true;
    }

    pub(super) fn ranking(&self) -> Option<&Ranking> {
        self.ranking.as_ref()
    }

    /// What a node in its `life` has counted. Of another number of partitions it is left out
    /// (`false`).
    pub(super) fn read(&mut self, node: u32, life: u64, counts: &Counts) -> bool {
        let partitions = counts.accesses.len() as u32;
        let window = self.window.get_or_insert_with(|| Window::new(partitions));
        if !window.read(ComputeId(node), life, &counts.accesses) {
            return false;
        }
        let now = (life, counts.reads, counts.writes);
        if let Some(before) = self.totals.insert(node, now) {
            let (reads, writes) = if before.0 == life { (before.1, before.2) } else { (0, 0) };
            self.reads += counts.reads.wrapping_sub(reads);
            self.writes += counts.writes.wrapping_sub(writes);
        }
        true
    }

    pub(super) fn forget(&mut self, node: u32) {
        self.totals.remove(&node);
        if let Some(window) = &mut self.window {
            window.forget(ComputeId(node));
        }
    }

    /// All nodes were read: the interval ends, and the next begins. `disturbed`: the map was not
    /// the same all the time.
    pub(super) fn end(&mut self, now_ns: u64, nodes: u32, disturbed: bool) -> Decision {
        let counts = self.window.as_mut().map(Window::take).unwrap_or_default();
        let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
        let began_ns = self.began_ns.replace(now_ns);
        let operations = reads + writes;
        let Some(took_ns) = began_ns.map(|began_ns| now_ns.saturating_sub(began_ns)) else {
            return Decision::default();
        };
        if disturbed || took_ns == 0 || nodes == 0 {
            return Decision::default();
        }
        let alone = nodes == 1;
        if operations == 0 {
            // Who is alone has nothing to wait for.
            let ratio = self
                .controller
                .as_mut()
                .filter(|_| alone)
                .and_then(|controller| controller.hold(Ratio::ALL));
            return Decision { ratio, ..Decision::default() };
        }
        let reassign = self.tuning.hotness && self.rank(&counts, nodes);
        let throughput = operations as f64 * 1e9 / took_ns as f64;
        let read_share = reads as f64 / operations as f64;
        let ratio = self.controller.as_mut().and_then(|controller| {
            let ratio = if alone {
                controller.hold(Ratio::ALL)
            } else {
                controller.on_sample(throughput, read_share, reassign)
            };
            self.report.steady = alone || controller.is_steady();
            ratio
        });
        self.report.samples += 1;
        (self.report.throughput, self.report.read_share) = (throughput, read_share);
        self.report.reassignments += u64::from(reassign);
        self.report.ratio_moves += u64::from(ratio.is_some());
        Decision { reassign, ratio }
    }

    /// Whether partitions are to be assigned anew; the ranking that they are assigned by is in
    /// force then.
    fn rank(&mut self, counts: &[u64], nodes: u32) -> bool {
        let flat = || Ranking::flat(counts.len() as u32);
        let old = self.ranking.clone().unwrap_or_else(flat);
        let new = old.observe(counts, self.tuning.noise_sigmas);
        let Detection { displacement, baseline, reassign } = detect(&old, &new, nodes);
        (self.report.displacement, self.report.baseline) = (displacement, baseline);
        if reassign {
            self.ranking = Some(new);
        }
        reassign
    }

    pub(super) fn changed(&mut self, changed: Changed) {
        if self.report.changes.len() == CHANGES_KEPT {
            self.report.changes.pop_front();
        }
        self.report.changes.push_back(changed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn counts(reads: u64, writes: u64, accesses: &[u32]) -> Counts {
        Counts { reads, writes, accesses: accesses.to_vec() }
    }

    /// Two nodes, eight partitions, of which `hot` get nearly everything.
    fn counted(round: u64, hot: u32) -> Counts {
        let accesses = |p: u32| if p == hot || p == hot + 1 { 1000 } else { 10 };
        let accesses: Vec<u32> = (0..8).map(|p| accesses(p) * round as u32).collect();
        counts(1900 * round, 100 * round, &accesses)
    }

    #[test]
    fn hot_partitions_get_a_ranking_and_the_same_load_keeps_it() {
        let mut tuner = Tuner::new(Tuning { adapt_ratio: false, ..Tuning::default() }, Ratio::NONE);
        for round in 0..5 {
            for node in 1..=2 {
                assert!(tuner.read(node, 1, &counted(round, 6)));
            }
            let decision = tuner.end(round * SECOND, 2, false);
            assert_eq!(decision.reassign, round == 1, "in round {round}");
        }
        let order = tuner.ranking().map(|ranking| ranking.order()[..2].to_vec());
        assert_eq!(order.map(|order| order.iter().map(|p| p.0).collect()), Some(vec![6, 7]));
        assert_eq!((tuner.report.reassignments, tuner.report.samples), (1, 4));
        assert!((tuner.report.throughput - 4000.0).abs() < 1e-6);
        assert!((tuner.report.read_share - 0.95).abs() < 1e-9);
    }

    #[test]
    fn a_disturbed_interval_an_idle_one_and_a_new_life_give_no_sample() {
        let mut tuner = Tuner::new(Tuning::default(), Ratio::NONE);
        let none = Decision::default();
        assert_eq!(tuner.end(0, 2, false), none, "the first reading begins an interval");
        assert_eq!(tuner.end(SECOND, 2, false), none, "nobody did anything");
        tuner.read(1, 1, &counted(1, 0));
        assert_eq!(tuner.end(2 * SECOND, 2, false), none, "a first reading says nothing");
        tuner.read(1, 1, &counted(2, 0));
        assert_eq!(tuner.end(3 * SECOND, 2, true), none, "the map changed");
        tuner.read(1, 2, &counted(1, 0));
        assert!(!tuner.read(2, 1, &counts(1, 1, &[1])), "of another number of partitions");
        let first = tuner.end(4 * SECOND, 2, false);
        assert_eq!(first.ratio, Some(Ratio::from_permille(100)), "the knob's first probe");
        assert!((tuner.report.throughput - 2000.0).abs() < 1e-6, "from zero in its new life");
        tuner.fix();
        tuner.read(1, 2, &counted(2, 0));
        assert_eq!(tuner.end(5 * SECOND, 2, false).ratio, None, "fixed");
    }

    #[test]
    fn a_node_alone_proxies_all_and_the_knob_goes_on_from_there_when_a_second_one_is_there() {
        let mut tuner = Tuner::new(Tuning::default(), Ratio::from_permille(500));
        tuner.end(0, 1, false);
        let mut ratios = Vec::new();
        for round in 1..8 {
            // Fewer and fewer reads, and less and less done: nothing to go by.
            tuner.read(1, 1, &counts(1000 - 10 * round, 5 * round, &[1; 8]));
            ratios.push(tuner.end(round * SECOND, if round < 6 { 1 } else { 2 }, false).ratio);
        }
        assert_eq!(ratios[0], Some(Ratio::ALL), "before anything was counted");
        assert!(ratios[1..5].iter().all(Option::is_none), "{ratios:?}");
        assert_eq!(ratios[5], Some(Ratio::from_permille(900)), "a probe below");
    }
}
