//! Figures of two sides over alternating rounds, and whether they reach a goal. The functions are
//! pure.

use crate::claim::{Target, median};
use crate::page::{Ratio, Row, RowTarget, Verdict};

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

impl Sides {
    /// `row` with the medians of both sides, their ratio with its range over the rounds, and the
    /// verdict about `goal`. A goal without figures has failed.
    pub(crate) fn judge(&self, goal: Goal, row: Row) -> Row {
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
        Row { measured, peer, ratio, target, verdict, runs: Some(ours.len() as u64), ..row }
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
        let judge = |sides: &Sides, goal| sides.judge(goal, Row::default());
        let judged = judge(&sides, Goal::Ratio(Target::AtLeast(2.5)));
        assert_eq!((judged.measured, judged.peer, judged.runs), (Some(20.0), Some(7.0), Some(3)));
        let ratio = judged.ratio.expect("both sides have figures");
        assert_eq!((ratio.median, ratio.min, ratio.max), (20.0 / 7.0, 1.0, 4.0));
        assert_eq!(judged.verdict, Verdict::Met);
        assert_eq!(judge(&sides, Goal::Each { at_most: 25.0 }).verdict, Verdict::Missed);
        assert_eq!(judge(&sides, Goal::Open).verdict, Verdict::NoTarget);
        let nothing = judge(&Sides::default(), Goal::Measured(Target::AtMost(1.0)));
        assert_eq!(nothing.verdict, Verdict::Failed);
    }
}
