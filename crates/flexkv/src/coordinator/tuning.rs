//! How the map follows the load: what the coordinator concludes from the nodes' counters at the end
//! of each interval.
//!
//! An **interval** of Δ gives a sample. The accesses by partition go to [`hotness`](crate::hotness)
//! (Algorithm 1: which node serves which partition). The operations per second and the share of
//! reads go to the [`RatioController`] (Algorithm 2: how many partitions are offloaded). Both
//! decisions together make one change of the map. An interval gives no sample if the members, the
//! ranking or the ratio changed in it, because the sample would belong to no map. An interval in
//! which only subtables grew gives a sample (`Cause::disturbs`). So a round takes Δ per sample
//! and the durations of its changes.
//!
//! A single node has no request to send: it reads and writes the partitions that it proxies in its
//! own memory. So it becomes the proxy of everything that fits. The controller has nothing to find
//! out then, and the differences between samples would be noise. It begins at that ratio when a
//! second node exists.
//!
//! Before the first reassignment there is no ranking, and partitions are distributed by number.
//! From then on every list is from hot to cold, also when a node joins or dies. An interval without
//! any operation changes nothing.
//!
//! Invariants:
//! 1. The same readings give the same decisions.
//! 2. A node in a new life begins at zero ([`Window`]).
//!
//! Thread-safety: by `&mut`.
//! Failure: a node that did not answer counts as one without load. A coordinator that starts has no
//! ranking and makes one.
//! Cost: a sort of the partitions per interval. Paper: §4.2, §4.3.2.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::format::Counts;
use crate::hotness::{Detection, INTERVAL_NS, NOISE_SIGMAS_DEFAULT, Ranking, Window, detect};
use crate::ids::ComputeId;
use crate::offload_ratio::{Ratio, RatioController, STEP_PERMILLE};
use crate::wire::Figure;

/// Number of changes that a report keeps.
const CHANGES_KEPT: usize = 64;

/// Rules by which the map follows the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Whether partitions are assigned by their hotness (Algorithm 1). If not, they stay assigned
    /// by number. Default: yes.
    pub hotness: bool,
    /// Whether the ratio controller sets the share of offloaded partitions (Algorithm 2). If not,
    /// the share keeps the value that was set. Default: yes.
    pub adapt_ratio: bool,
    /// Length Δ of an interval. Default: 1 s.
    pub interval: Duration,
    /// Number of standard deviations of a count that pass for noise. Default: 3. The paper's
    /// algorithm uses 0.
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
    /// The map does not follow the load. The ratio and the assignment of partitions stay.
    pub const FIXED: Self = Self {
        hotness: false,
        adapt_ratio: false,
        interval: Duration::from_nanos(INTERVAL_NS),
        noise_sigmas: NOISE_SIGMAS_DEFAULT,
    };
}

/// The reasons of a change of the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// A node joined or died.
    pub balance: bool,
    /// Subtables became larger.
    pub grow: bool,
    /// Partitions were assigned by a new ranking.
    pub reassign: bool,
    /// The share of offloaded partitions changed.
    pub offload: bool,
}

impl Cause {
    /// Whether measurements during the change belong to no map.
    pub(super) fn disturbs(self) -> bool {
        self.balance || self.reassign || self.offload
    }
}

/// A change of the map that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Version of the map after the change.
    pub version: u64,
    /// Reasons of the change.
    pub cause: Cause,
    /// Number of partitions that were paused.
    pub partitions: u32,
    /// Number of paused partitions that got another node.
    pub moved: u32,
    /// Time at which the change began, in nanoseconds.
    pub began_ns: u64,
    /// Time from the first order to the last confirmation, in nanoseconds.
    pub took_ns: u64,
}

/// Changes that followed the load.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of samples that were judged.
    pub samples: u64,
    /// Operations per second in the latest sample.
    pub throughput: f64,
    /// Reads over operations in the latest sample.
    pub read_share: f64,
    /// Number of ranks by which partitions had moved in the latest sample (D).
    pub displacement: u64,
    /// Displacement that a random reshuffle would give (B).
    pub baseline: f64,
    /// Number of times that partitions were reassigned.
    pub reassignments: u64,
    /// Number of times that the ratio controller set another ratio.
    pub ratio_moves: u64,
    /// Whether the ratio controller has found its ratio.
    pub steady: bool,
    /// The latest changes of the map, oldest first.
    pub changes: VecDeque<Changed>,
}

impl Report {
    /// The report as whole numbers by name, for operators and their tools.
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

/// Changes that the end of an interval asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) reassign: bool,
    pub(super) ratio: Option<Ratio>,
}

/// Decides at the end of each interval. See the head of the module.
#[derive(Debug)]
pub(super) struct Tuner {
    tuning: Tuning,
    /// `None` if the ratio is fixed.
    controller: Option<RatioController>,
    /// The ranking in force, once there is one.
    ranking: Option<Ranking>,
    window: Option<Window>,
    /// The life of each node, and its reads and writes at the last reading.
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

    /// Sets how the map follows the load from now on. A ranking stays.
    pub(super) fn tune(&mut self, tuning: Tuning, ratio: Ratio) {
        let (ranking, window) = (self.ranking.take(), self.window.take());
        let report = std::mem::take(&mut self.report);
        let totals = std::mem::take(&mut self.totals);
        *self = Self { ranking, window, totals, ..Self::new(tuning, ratio) };
        self.report = Report { steady: !tuning.adapt_ratio, ..report };
    }

    /// Switches the ratio controller off.
    pub(super) fn fix(&mut self) {
        self.controller = None;
        self.tuning.adapt_ratio = false;
        self.report.steady = true;
    }

    pub(super) fn ranking(&self) -> Option<&Ranking> {
        self.ranking.as_ref()
    }

    /// Takes the counts of a node in its `life`. Returns `false`, without effect, if the counts are
    /// of another number of partitions.
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

    /// Ends an interval after all nodes were read, and begins the next one. `disturbed` says that
    /// the map changed during the interval.
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
            // A single node need not wait for a sample.
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

    /// Whether partitions must be reassigned. In that case the new ranking is in force.
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

    /// The counts of each of two nodes after `round` intervals. Of eight partitions, `hot` and the
    /// next one get nearly all accesses.
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
    fn disturbed_or_idle_interval_gives_no_sample() {
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
    fn single_node_proxies_all_until_second_node_joins() {
        let mut tuner = Tuner::new(Tuning::default(), Ratio::from_permille(500));
        tuner.end(0, 1, false);
        let mut ratios = Vec::new();
        for round in 1..8 {
            // Reads and throughput fall slowly in every round, so nothing tells the controller to
            // move.
            tuner.read(1, 1, &counts(1000 - 10 * round, 5 * round, &[1; 8]));
            ratios.push(tuner.end(round * SECOND, if round < 6 { 1 } else { 2 }, false).ratio);
        }
        assert_eq!(ratios[0], Some(Ratio::ALL), "before anything was counted");
        assert!(ratios[1..5].iter().all(Option::is_none), "{ratios:?}");
        assert_eq!(ratios[5], Some(Ratio::from_permille(900)), "a probe below");
    }
}
