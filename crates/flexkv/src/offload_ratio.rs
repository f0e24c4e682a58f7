//! The ratio controller: how much of the index is offloaded (Algorithm 2), as a state machine.
//!
//! Every Δ the coordinator hands in the throughput of the interval that just ended
//! ([`RatioController::on_sample`]), and sets the ratio that is returned, if one is. A **round**:
//!
//! 1. *Base*: the throughput at the current ratio is the best so far.
//! 2. *First probe*: a step of δ = 0.1 in the direction of the last round. If it is worse, the
//!    direction flips, and probing continues on the other side of the start. Otherwise this probe
//!    is the first of step 3.
//! 3. *Climb*: steps on. A throughput above the best is the new best. After two consecutive samples
//!    that are not above it, the round ends and the controller returns to the best.
//!
//! Outside rounds the ratio is steady. A new round begins when the share of reads has changed by 10
//! points since the last round's base, or when partitions were reassigned.
//!
//! **Where the paper is silent.**
//!
//! - *The ends.* A step that would leave [0, 1] stops at the end. At an end, the direction turns
//!   before the first probe, because there is nothing on that side. The first probe then counts as
//!   the first of the two that are not above the best, because it has no other side to flip to. A
//!   climb that reaches an end is over there.
//! - *One sample less.* In the printed algorithm, the first probe is measured again as the first of
//!   the climb. Here its sample counts.
//! - *The base.* A sample in which a changed share of reads is noticed belongs to the new load at
//!   least in part. It becomes the base, and the first probe follows immediately. If the probe's
//!   share of reads differs from the base's by more than 2 points, the base was mixed. The probe's
//!   sample then becomes the base instead, once. After a reassignment the sample belongs to the old
//!   owners, so the next one is the base.
//! - *Shifts during a round.* A share of reads 10 points off the base's restarts the round at its
//!   current ratio, because the samples are not comparable. A reassignment lets the round end and
//!   then begins another one. Otherwise frequent reassignments would keep the controller from
//!   finishing.
//!
//! **Noise.** The comparisons are strict and use single samples. With noise of relative amplitude
//! ε, a step is judged correctly if the throughputs at its ends differ by more than 2ε. A round
//! ends at a ratio whose throughput is at most about 2ε per misjudged step below the best. A steady
//! controller does not move on noise, because a climb needs two samples in a row to end and a round
//! begins only on a shift. A flat stretch of two steps ends a climb, so the controller does not
//! find a better ratio beyond it.
//!
//! Thread-safety: by `&mut`.
//! Failure: none. Throughputs that are not numbers count as zero.
//! Cost: constant time. A round takes some 4 to 13 samples. Paper: §4.3.2.

use std::fmt;

/// The step δ, in permille.
pub const STEP_PERMILLE: u16 = 100;
/// Number of consecutive samples that are not above the best after which a round ends.
pub const WORSE_MAX: u32 = 2;
/// Change of the share of reads that begins a new round.
pub const SHIFT_POINTS: f64 = 0.10;
/// Difference between the shares of reads of a probe and its base above which the base was of two
/// loads.
pub const MIXED_POINTS: f64 = 0.02;

/// Offloaded partitions over all partitions, in permille. Whole permille are exact, so steps back
/// and forth meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ratio(u16);

impl Ratio {
    /// No partition is offloaded.
    pub const NONE: Self = Self(0);
    /// Every partition that fits the memory limit is offloaded.
    pub const ALL: Self = Self(1000);

    /// A ratio of `permille`, at most 1000.
    #[must_use]
    pub fn from_permille(permille: u16) -> Self {
        Self(permille.min(Self::ALL.0))
    }

    /// The ratio in permille.
    #[must_use]
    pub fn permille(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} %", self.0 / 10, self.0 % 10)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No round is running.
    Steady,
    /// The next sample is the base.
    Base,
    /// The next sample is that of the first probe.
    First { check_mixed: bool },
    /// The next sample belongs to the climb.
    Climb { worse: u32 },
}

/// The ratio controller of a store. See the head of the module.
#[derive(Clone, Debug)]
pub struct RatioController {
    ratio: Ratio,
    step: u16,
    direction: Direction,
    phase: Phase,
    best: Ratio,
    best_throughput: f64,
    /// Share of reads when the round's base was taken.
    base_reads: Option<f64>,
    /// Whether partitions were reassigned during the round.
    was_reassigned: bool,
    rounds: u64,
}

impl Default for RatioController {
    fn default() -> Self {
        Self::new()
    }
}

impl RatioController {
    /// A controller at ratio 0 that goes up by δ.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Ratio::NONE, STEP_PERMILLE)
    }

    /// A controller at another ratio with another step in permille, at least 1. The first sample is
    /// a round's base.
    #[must_use]
    pub fn starting_at(ratio: Ratio, step_permille: u16) -> Self {
        Self {
            ratio,
            step: step_permille.max(1),
            direction: Direction::Up,
            phase: Phase::Base,
            best: ratio,
            best_throughput: 0.0,
            base_reads: None,
            was_reassigned: false,
            rounds: 0,
        }
    }

    /// Sets the ratio without a search. The next sample is a round's base. Returns the ratio if it
    /// changes.
    pub fn hold(&mut self, ratio: Ratio) -> Option<Ratio> {
        let before = self.ratio;
        *self = Self { rounds: self.rounds, ..Self::starting_at(ratio, self.step) };
        (ratio != before).then_some(ratio)
    }

    /// The ratio that should be in force.
    #[must_use]
    pub fn ratio(&self) -> Ratio {
        self.ratio
    }

    /// Whether no round is running.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.phase == Phase::Steady
    }

    /// Number of rounds that ended.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Takes the sample of an interval during which [`ratio`](Self::ratio) was in force: operations
    /// per second, reads over all operations (0 to 1), and whether partitions were reassigned in
    /// the interval or are reassigned directly after it. Returns the new ratio if it changes.
    pub fn on_sample(
        &mut self,
        throughput: f64,
        read_share: f64,
        reassigned: bool,
    ) -> Option<Ratio> {
        let throughput = if throughput.is_finite() { throughput } else { 0.0 };
        let before = self.ratio;
        let shifted =
            self.base_reads.is_some_and(|base| (read_share - base).abs() >= SHIFT_POINTS - 1e-9);
        match self.phase {
            Phase::Steady if reassigned => self.phase = Phase::Base,
            Phase::Steady if shifted => self.begin(throughput, read_share, true),
            Phase::Steady => {}
            Phase::Base if reassigned => {}
            Phase::Base => self.begin(throughput, read_share, false),
            Phase::First { .. } | Phase::Climb { .. } => {
                self.was_reassigned |= reassigned;
                let base = self.base_reads.unwrap_or(read_share);
                let mixed = (read_share - base).abs() > MIXED_POINTS;
                if shifted {
                    self.begin(throughput, read_share, true);
                } else if mixed && self.phase == (Phase::First { check_mixed: true }) {
                    self.begin(throughput, read_share, false);
                } else {
                    self.judge(throughput);
                }
            }
        }
        (self.ratio != before).then_some(self.ratio)
    }

    /// Begins a round at the current ratio, with this sample as its base.
    fn begin(&mut self, throughput: f64, read_share: f64, check_mixed: bool) {
        self.best = self.ratio;
        self.best_throughput = throughput;
        self.base_reads = Some(read_share);
        self.was_reassigned = false;
        if self.beside(self.ratio, self.direction).is_none() {
            self.direction = self.direction.opposite();
        }
        self.phase = Phase::First { check_mixed };
        self.go_on(self.ratio);
    }

    fn judge(&mut self, throughput: f64) {
        let better = throughput > self.best_throughput;
        match self.phase {
            Phase::First { .. } if throughput < self.best_throughput => {
                let other = self.direction.opposite();
                if self.beside(self.best, other).is_some() {
                    self.direction = other;
                    self.phase = Phase::Climb { worse: 0 };
                    self.go_on(self.best);
                } else {
                    self.phase = Phase::Climb { worse: 1 };
                    self.go_on(self.ratio);
                }
            }
            _ => {
                let worse = match self.phase {
                    _ if better => 0,
                    Phase::Climb { worse } => worse + 1,
                    _ => 1,
                };
                if better {
                    self.best = self.ratio;
                    self.best_throughput = throughput;
                }
                self.phase = Phase::Climb { worse };
                if worse >= WORSE_MAX { self.end() } else { self.go_on(self.ratio) }
            }
        }
    }

    /// Steps on from `from`, or ends the round at an end.
    fn go_on(&mut self, from: Ratio) {
        match self.beside(from, self.direction) {
            Some(next) => self.ratio = next,
            None => self.end(),
        }
    }

    fn end(&mut self) {
        self.ratio = self.best;
        self.rounds += 1;
        self.phase = if self.was_reassigned { Phase::Base } else { Phase::Steady };
        self.was_reassigned = false;
    }

    /// The ratio one step further, at most the end. `None` at the end.
    fn beside(&self, from: Ratio, direction: Direction) -> Option<Ratio> {
        let next = match direction {
            Direction::Up => Ratio::from_permille(from.0.saturating_add(self.step)),
            Direction::Down => Ratio(from.0.saturating_sub(self.step)),
        };
        (next != from).then_some(next)
    }
}

impl Direction {
    fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;
    use proptest::prelude::*;

    use super::*;

    /// A throughput with a single maximum, at the ratio `peak` in permille.
    fn curve(peak: u16, rise: f64, fall: f64) -> impl Fn(Ratio) -> f64 {
        move |ratio| {
            let off = f64::from(ratio.permille()) - f64::from(peak);
            10.0 + if off < 0.0 { off * rise } else { -off * fall } / 1000.0
        }
    }

    /// Number of samples until the controller is steady, at most 40.
    fn settle(controller: &mut RatioController, reads: f64, load: &dyn Fn(Ratio) -> f64) -> u32 {
        for sample in 1..=40 {
            controller.on_sample(load(controller.ratio()), reads, false);
            if controller.is_steady() {
                return sample;
            }
        }
        panic!("no end");
    }

    #[test]
    fn the_papers_switch_takes_at_most_seven_samples() {
        let mut controller = RatioController::new();
        let b = curve(300, 8.0, 6.0);
        assert_eq!(settle(&mut controller, 0.95, &b), 6, "0, 10, 20, 30 and two beyond");
        assert_eq!(controller.ratio(), Ratio::from_permille(300));
        let a = curve(600, 9.0, 5.0);
        for _ in 0..8 {
            assert_eq!(controller.on_sample(b(controller.ratio()), 0.95, false), None, "steady");
        }
        let samples = settle(&mut controller, 0.5, &a);
        assert_eq!((samples, controller.ratio()), (6, Ratio::from_permille(600)));
        // The load changes during an interval. Six further intervals are enough, whatever the share
        // of the new load in that interval. Eight are enough if the last round ended going down.
        for (start, most) in [(0, 6), (300, 8)] {
            for percent in (0..=100).step_by(5) {
                let mut controller =
                    RatioController::starting_at(Ratio::from_permille(start), STEP_PERMILLE);
                settle(&mut controller, 0.95, &b);
                let new = f64::from(percent) / 100.0;
                let mixed = b(controller.ratio()) * (1.0 - new) + a(controller.ratio()) * new;
                controller.on_sample(mixed, 0.95 * (1.0 - new) + 0.5 * new, false);
                let after = settle(&mut controller, 0.5, &a);
                assert_eq!(
                    controller.ratio(),
                    Ratio::from_permille(600),
                    "{percent} % of the new load"
                );
                assert!(after <= most, "{percent} % of the new load: {after} more intervals");
            }
        }
    }

    #[test]
    fn a_steady_knob_moves_only_on_a_shift() {
        let mut controller = RatioController::new();
        let load = curve(500, 5.0, 5.0);
        settle(&mut controller, 0.9, &load);
        let mut rng = Rng::with_seed(1);
        for _ in 0..100 {
            let noisy = load(controller.ratio()) * (0.8 + 0.4 * rng.f64());
            assert_eq!(controller.on_sample(noisy, 0.9 + 0.09 * rng.f64(), false), None);
        }
        assert!(controller.on_sample(9.0, 0.8, false).is_some(), "from 9:1 to 8:2");
    }

    #[test]
    fn a_reassignment_begins_a_round_one_sample_later() {
        let mut controller = RatioController::new();
        let load = curve(500, 5.0, 5.0);
        settle(&mut controller, 0.9, &load);
        assert_eq!(
            controller.on_sample(99.0, 0.9, true),
            None,
            "that was measured with the old owners"
        );
        assert!(!controller.is_steady());
        assert!(controller.on_sample(load(controller.ratio()), 0.9, false).is_some());
        // A reassignment during the round waits for the end of the round.
        controller.on_sample(load(controller.ratio()), 0.9, true);
        let rounds = controller.rounds();
        settle(&mut controller, 0.9, &load);
        assert_eq!(controller.rounds(), rounds + 2);
        assert_eq!(controller.ratio(), Ratio::from_permille(500));
    }

    #[test]
    fn direction_turns_at_the_ends_of_the_ratio() {
        let mut controller = RatioController::starting_at(Ratio::ALL, STEP_PERMILLE);
        assert_eq!(controller.on_sample(5.0, 0.5, false), Some(Ratio::from_permille(900)));
        assert_eq!(controller.on_sample(4.0, 0.5, false), Some(Ratio::from_permille(800)));
        assert_eq!(controller.on_sample(4.0, 0.5, false), Some(Ratio::ALL));
        assert!(controller.is_steady());
        let mut up = RatioController::starting_at(Ratio::from_permille(950), STEP_PERMILLE);
        assert_eq!(up.on_sample(5.0, 0.5, false), Some(Ratio::ALL), "stops at the end");
        assert_eq!(up.on_sample(6.0, 0.5, false), None, "and is done there");
        assert!(up.is_steady());
        let nan = RatioController::new().on_sample(f64::NAN, 0.5, false);
        assert_eq!(nan, Some(Ratio::from_permille(100)));
    }

    #[test]
    fn small_noise_costs_little() {
        let mut rng = Rng::with_seed(6);
        for run in 0..500 {
            let load = curve(rng.u16(0..=1000), 6.0, 4.0);
            let mut controller = RatioController::starting_at(
                Ratio::from_permille(rng.u16(0..=10) * 100),
                STEP_PERMILLE,
            );
            while !controller.is_steady() {
                let noisy = load(controller.ratio()) * (0.99 + 0.02 * rng.f64());
                controller.on_sample(noisy, 0.5, false);
            }
            assert!(
                load(controller.ratio()) > 9.0,
                "run {run}: {} at {}",
                load(controller.ratio()),
                controller.ratio()
            );
        }
    }

    proptest! {
        #[test]
        fn any_unimodal_load_is_climbed_to_within_a_step(
            start in 0u16..=1000, peak in 0u16..=1000, rise in 0.5f64..20.0, fall in 0.5f64..20.0, down: bool,
        ) {
            let load = curve(peak, rise, fall);
            let mut controller = RatioController::starting_at(Ratio::from_permille(start), STEP_PERMILLE);
            if down {
                controller.direction = Direction::Down;
            }
            let samples = settle(&mut controller, 0.5, &load);
            prop_assert!(controller.ratio().permille().abs_diff(peak) <= STEP_PERMILLE, "{} for {peak}", controller.ratio());
            prop_assert!(samples <= 14, "{samples}");
        }
    }
}
