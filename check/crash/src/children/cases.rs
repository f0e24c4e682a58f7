//! The cases of a run: which process fails in which way at which step, and how often each case was
//! hit.
//!
//! A run takes its cases from a deck that has every case once. The seed shuffles it. A deck that is
//! used up is shuffled anew. The summary is a table of all cases. The summary also names each case
//! that was never tried, or whose fault never hit. So a reader sees every gap of a run.
//!
//! The module consists of plain values.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use archipelago::Rng;

/// A fault of one cycle.
pub(crate) trait FaultCase: Copy + Ord {
    /// Name of the case's row in the summary, such as the process and its fault.
    fn row(&self) -> String;

    /// Name of the case's column in the summary, such as the step.
    fn column(&self) -> String;
}

/// The cases that are left, in a random order.
#[derive(Debug)]
pub(crate) struct Deck<C> {
    rng: Rng,
    /// Every case once; there is at least one.
    all: Vec<C>,
    left: Vec<C>,
}

impl<C: FaultCase> Deck<C> {
    /// A deck of these cases, which are not empty.
    pub(crate) fn new(seed: u64, all: Vec<C>) -> Self {
        assert!(!all.is_empty(), "a run needs a case");
        Self { rng: Rng::with_seed(seed), all, left: Vec::new() }
    }

    /// The next case.
    pub(crate) fn draw(&mut self) -> C {
        loop {
            if let Some(case) = self.left.pop() {
                return case;
            }
            self.left.clone_from(&self.all);
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

/// Fewest tries of the cases of a row or a column of which one must hit. Fewer may all miss.
const TRIES_MIN: u64 = 6;

/// The cases of a run so far.
#[derive(Debug)]
pub(crate) struct Tally<C> {
    /// All cases of the run, in the order of its deck before the shuffle.
    all: Vec<C>,
    counts: BTreeMap<C, CaseCount>,
}

impl<C: FaultCase> Tally<C> {
    /// No case of `all` was tried yet.
    pub(crate) fn new(all: Vec<C>) -> Self {
        Self { all, counts: BTreeMap::new() }
    }

    /// Notes that a cycle has tried `case`. `hit` says whether the fault hit at the step.
    pub(crate) fn note(&mut self, case: C, hit: bool) {
        let count = self.counts.entry(case).or_default();
        count.tried += 1;
        count.hit += u64::from(hit);
    }

    /// Number of cycles.
    pub(crate) fn tried(&self) -> u64 {
        self.counts.values().map(|count| count.tried).sum()
    }

    /// Number of cycles whose fault hit at its step.
    pub(crate) fn hit(&self) -> u64 {
        self.counts.values().map(|count| count.hit).sum()
    }

    /// Different names of the cases, in their order.
    fn names(&self, name: impl Fn(&C) -> String) -> Vec<String> {
        let mut names = Vec::new();
        for name in self.all.iter().map(name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The counts of all cases with these names together.
    fn sum(&self, is_meant: impl Fn(&C) -> bool) -> CaseCount {
        let mut sum = CaseCount::default();
        for (_, count) in self.counts.iter().filter(|(case, _)| is_meant(*case)) {
            sum.tried += count.tried;
            sum.hit += count.hit;
        }
        sum
    }

    /// A row of which many cases were tried and none hit, as a sentence: its trigger does not work.
    /// `None` if there is no such row.
    pub(crate) fn lacking_row(&self) -> Option<String> {
        let rows = self.names(C::row).into_iter();
        lacking(rows.map(|name| (self.sum(|case| case.row() == name), name)))
    }

    /// The same of the columns.
    pub(crate) fn lacking_column(&self) -> Option<String> {
        let columns = self.names(C::column).into_iter();
        lacking(columns.map(|name| (self.sum(|case| case.column() == name), name)))
    }

    /// A table: one line per row of the cases and one column per column, with the number of hits of
    /// the number of tries. Below it are the cases that no fault has hit.
    pub(crate) fn table(&self) -> String {
        let (rows, columns) = (self.names(C::row), self.names(C::column));
        let head = "hits of tries";
        let width = rows.iter().map(String::len).chain([head.len()]).max().unwrap_or(0);
        let mut text = format!("  {head:<width$}");
        for column in &columns {
            let _infallible = write!(text, " {column:>10}");
        }
        for row in &rows {
            let _infallible = write!(text, "\n  {row:<width$}");
            for column in &columns {
                let is_meant = |case: &C| case.row() == *row && case.column() == *column;
                let cell = match self.all.iter().any(is_meant) {
                    true => {
                        let CaseCount { tried, hit } = self.sum(is_meant);
                        format!("{hit}/{tried}")
                    }
                    false => "-".to_owned(),
                };
                let columns_width = column.len().max(10);
                let _infallible = write!(text, " {cell:>columns_width$}");
            }
        }
        text + &self.gaps()
    }

    /// The cases that no fault has hit, as lines of a summary. Empty if there are none.
    fn gaps(&self) -> String {
        let missed = |is_tried: bool| {
            let cases = self.all.iter().filter(|case| {
                let count = self.counts.get(*case).copied().unwrap_or_default();
                count.hit == 0 && (count.tried > 0) == is_tried
            });
            cases.map(|case| format!("{} at {}", case.row(), case.column())).collect::<Vec<_>>()
        };
        let mut text = String::new();
        let (tried, untried) = (missed(true), missed(false));
        if !tried.is_empty() {
            let _infallible = write!(text, "\n  tried, but never hit: {}", tried.join("; "));
        }
        if !untried.is_empty() {
            let _infallible =
                write!(text, "\n  {} cases were never tried in this run", untried.len());
        }
        text
    }
}

/// The first name with many tries and without a hit, as a sentence.
fn lacking(mut counts: impl Iterator<Item = (CaseCount, String)>) -> Option<String> {
    let (count, name) = counts.find(|(count, _)| count.tried >= TRIES_MIN && count.hit == 0)?;
    Some(format!("none of {} faults hit at \"{name}\"", count.tried))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    impl FaultCase for u8 {
        fn row(&self) -> String {
            format!("row {}", self / 2)
        }

        fn column(&self) -> String {
            if self.is_multiple_of(2) { "even".to_owned() } else { "odd".to_owned() }
        }
    }

    #[test]
    fn deck_has_every_case_once() {
        let mut deck = Deck::new(7, (0..6).collect());
        let drawn: BTreeSet<u8> = (0..6).map(|_| deck.draw()).collect();
        assert_eq!(drawn.len(), 6);
        assert!(deck.draw() < 6, "the next deck");
    }

    #[test]
    fn table_counts_hits_and_tries() {
        let mut tally = Tally::new((0..4).collect());
        tally.note(3_u8, true);
        tally.note(3, false);
        assert_eq!((tally.tried(), tally.hit()), (2, 1));
        let table = tally.table();
        assert!(table.contains("\n  row 1                0/0        1/2\n"), "{table}");
        assert!(table.ends_with("3 cases were never tried in this run"), "{table}");
    }

    #[test]
    fn run_names_what_no_fault_has_hit() {
        let mut tally = Tally::new((0..4).collect());
        for case in 0_u8..3 {
            tally.note(case, case != 1);
        }
        assert!(tally.table().contains("tried, but never hit: row 0 at odd\n"));
        assert_eq!(tally.lacking_column(), None, "one miss proves nothing");
        for _ in 0..TRIES_MIN {
            tally.note(1, false);
        }
        let lacking = tally.lacking_column();
        assert_eq!(lacking.as_deref(), Some("none of 7 faults hit at \"odd\""));
        assert_eq!(tally.lacking_row(), None);
        tally.note(3, true);
        assert_eq!(tally.lacking_column(), None);
    }
}
