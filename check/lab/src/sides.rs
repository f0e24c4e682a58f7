//! Figures of two sides over alternating rounds, and whether they reach a goal. The functions are
//! pure.

use crate::claim::{Target, median};
use crate::page::{Ratio, RowTarget, Verdict};

/// Goal of a row that compares rounds of two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The ratio of the medians.
    Ratio(Target),
    /// The median of the own side.
    Measured(Target),
    /// The figure of the own side in each run.
    Each { at_most: f64 },
    /// Nothing: the row is reported.
    Open,
}

/// Figures of both sides, each with the number of its round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sides {
    pub(crate) ours: Vec<(u64, f64)>,
    pub(crate) theirs: Vec<(u64, f64)>,
}

/// Judgement of the figures of both sides about a goal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judgement {
    /// Median of the own side.
    pub(crate) measured: Option<f64>,
    /// Median of the other side.
    pub(crate) peer: Option<f64>,
    /// Ratio of the medians, with the range of the ratios of single rounds.
    pub(crate) ratio: Option<Ratio>,
    pub(crate) target: Option<RowTarget>,
    pub(crate) verdict: Verdict,
    /// Number of figures of the own side.
    pub(crate) runs: u64,
}

impl Sides {
    /// Compares the sides. A goal without figures has failed.
    pub(crate) fn judge(&self, goal: Goal) -> Judgement {
        let values = |pairs: &[(u64, f64)]| pairs.iter().map(|pair| pair.1).collect::<Vec<f64>>();
        let (ours, theirs) = (values(&self.ours), values(&self.theirs));
        let (measured, peer) = (median(&ours), median(&theirs));
        let ratio = measured.zip(peer).map(|(measured, peer)| measured / peer);
        let rounds = self.ours.iter().filter_map(|(round, our)| {
            let (_, their) = self.theirs.iter().find(|(other, _)| other == round)?;
            Some(our / their)
        });
        let rounds: Vec<f64> = rounds.collect();
        let worst = ours.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (target, is_met) = match goal {
            Goal::Ratio(target) => {
                (Some(RowTarget::Ratio(target)), ratio.map(|ratio| target.is_met(ratio)))
            }
            Goal::Measured(target) => {
                (Some(RowTarget::Measured(target)), measured.map(|value| target.is_met(value)))
            }
            Goal::Each { at_most } => {
                let target = RowTarget::Worst { at_most, worst };
                (Some(target), measured.map(|_| worst <= at_most))
            }
            Goal::Open => (None, None),
        };
        let verdict = match (target, is_met) {
            (Some(_), None) => Verdict::Failed,
            (_, met) => Verdict::of(met),
        };
        let ratio = ratio.map(|median| Ratio {
            median,
            min: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            max: rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        });
        Judgement { measured, peer, ratio, target, verdict, runs: ours.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_that_of_medians_and_ranges_over_rounds() {
        let sides = Sides {
            ours: vec![(0, 10.0), (1, 30.0), (2, 20.0)],
            theirs: vec![(0, 10.0), (2, 5.0), (3, 7.0)],
        };
        let judged = sides.judge(Goal::Ratio(Target::AtLeast(2.5)));
        assert_eq!((judged.measured, judged.peer, judged.runs), (Some(20.0), Some(7.0), 3));
        let ratio = judged.ratio.expect("both sides have figures");
        assert_eq!((ratio.median, ratio.min, ratio.max), (20.0 / 7.0, 1.0, 4.0));
        assert_eq!(judged.verdict, Verdict::Met);
        assert_eq!(sides.judge(Goal::Each { at_most: 25.0 }).verdict, Verdict::Missed);
        assert_eq!(sides.judge(Goal::Open).verdict, Verdict::NoTarget);
        let nothing = Sides::default().judge(Goal::Measured(Target::AtMost(1.0)));
        assert_eq!(nothing.verdict, Verdict::Failed);
    }
}
