//! The cases of a run: which process fails in which way at which step, and how often each case was
//! hit.
//!
//! A run takes its cases from a deck that has every case once. The seed shuffles it. A deck that is
//! used up is shuffled anew.
//!
//! The module consists of plain values.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use archipelago::Rng;

/// A fault of one cycle.
pub(crate) trait FaultCase: Copy + Ord {
    /// Every case once.
    fn all() -> Vec<Self>;

    /// Names of all columns of the summary.
    fn columns() -> Vec<String>;

    /// Name of the case's row in the summary: the process and its fault.
    fn row(&self) -> String;

    /// Name of the case's column in the summary: the step.
    fn column(&self) -> String;
}

/// The cases that are left, in a random order.
#[derive(Debug)]
pub(crate) struct Deck<C> {
    rng: Rng,
    left: Vec<C>,
}

impl<C: FaultCase> Deck<C> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), left: Vec::new() }
    }

    /// The next case.
    pub(crate) fn draw(&mut self) -> C {
        loop {
            if let Some(case) = self.left.pop() {
                return case;
            }
            self.left = C::all();
            self.rng.shuffle(&mut self.left);
        }
    }
}

/// Number of tries of a case, and of tries in which its fault hit the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CaseCount {
    tried: u64,
    hit: u64,
}

/// The cases of a run so far.
#[derive(Debug)]
pub(crate) struct Tally<C>(BTreeMap<C, CaseCount>);

impl<C> Default for Tally<C> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<C: FaultCase> Tally<C> {
    /// Notes that a cycle has tried `case`. `hit` says whether the fault hit at the step.
    pub(crate) fn note(&mut self, case: C, hit: bool) {
        let count = self.0.entry(case).or_default();
        count.tried += 1;
        count.hit += u64::from(hit);
    }

    /// Number of cycles.
    pub(crate) fn tried(&self) -> u64 {
        self.0.values().map(|count| count.tried).sum()
    }

    /// Number of cycles whose fault hit at its step.
    pub(crate) fn hit(&self) -> u64 {
        self.0.values().map(|count| count.hit).sum()
    }

    /// A table: one line per process and fault, and one column per step, with the number of hits of
    /// the number of tries.
    pub(crate) fn table(&self) -> String {
        let mut rows: BTreeMap<String, BTreeMap<String, CaseCount>> = BTreeMap::new();
        for (case, count) in &self.0 {
            rows.entry(case.row()).or_default().insert(case.column(), *count);
        }
        let mut text = format!("  {:<20}", "hits of tries");
        for column in C::columns() {
            let _infallible = write!(text, " {column:>10}");
        }
        for (row, counts) in rows {
            let _infallible = write!(text, "\n  {row:<20}");
            for column in C::columns() {
                let cell = match counts.get(&column) {
                    Some(CaseCount { tried, hit }) => format!("{hit}/{tried}"),
                    None => "-".to_owned(),
                };
                let _infallible = write!(text, " {cell:>10}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    impl FaultCase for u8 {
        fn all() -> Vec<Self> {
            (0..6).collect()
        }

        fn columns() -> Vec<String> {
            vec!["even".to_owned(), "odd".to_owned()]
        }

        fn row(&self) -> String {
            format!("row {}", self / 2)
        }

        fn column(&self) -> String {
            Self::columns().swap_remove(usize::from(self % 2))
        }
    }

    #[test]
    fn deck_has_every_case_once() {
        let mut deck = Deck::new(7);
        let drawn: BTreeSet<u8> = (0..6).map(|_| deck.draw()).collect();
        assert_eq!(drawn.len(), 6);
        assert!(deck.draw() < 6, "the next deck");
    }

    #[test]
    fn table_counts_hits_and_tries() {
        let mut tally = Tally::default();
        tally.note(3_u8, true);
        tally.note(3, false);
        assert_eq!((tally.tried(), tally.hit()), (2, 1));
        let table = tally.table();
        assert!(table.ends_with("  row 1                         -        1/2"), "{table}");
    }
}
