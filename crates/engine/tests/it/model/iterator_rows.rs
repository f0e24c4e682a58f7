//! The rows that iterators return, compared with the rows that they must return.

use archipelago_engine::db::{ColumnFamily, Db, Iter, ReadOptions};

use super::oracle::Row;
use super::steps::{KeyNo, Move};

/// An open iterator, its rows and its current row.
pub(super) struct Held {
    pub(super) iter: Iter,
    pub(super) rows: Vec<Row>,
    pub(super) at: Option<usize>,
    /// Whether the rows depend on the time at which a filter ran.
    pub(super) filtered: bool,
}

fn row_of(iter: &Iter) -> Row {
    Row {
        key: iter.key().to_vec(),
        value: iter.value().to_vec(),
        expires_at_ms: iter.expires_at_ms(),
        seq: iter.seq().0,
    }
}

/// All rows, which must be the same in both directions.
pub(super) fn contents(db: &Db, cf: &ColumnFamily, options: &ReadOptions) -> Vec<Row> {
    let mut iter = db.iter(cf, options).unwrap();
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    iter.seek_to_first();
    while iter.valid() {
        forward.push(row_of(&iter));
        iter.next();
    }
    iter.status().unwrap();
    iter.seek_to_last();
    while iter.valid() {
        backward.push(row_of(&iter));
        iter.prev();
    }
    iter.status().unwrap();
    backward.reverse();
    assert_eq!(backward, forward, "backward differs from forward");
    forward
}

/// All rows of an iterator.
pub(super) fn rows_of(iter: &mut Iter) -> Vec<Row> {
    let mut rows = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        rows.push(row_of(iter));
        iter.next();
    }
    iter.status().unwrap();
    rows
}

impl Held {
    /// Moves the iterator and compares its row after each move.
    pub(super) fn walk(&mut self, moves: &[Move], keys: &[Vec<u8>]) -> Vec<Option<Row>> {
        let mut shown = Vec::new();
        for step in moves {
            self.step(*step, keys);
            self.iter.status().unwrap();
            let found = self.iter.valid().then(|| row_of(&self.iter));
            assert_eq!(found.as_ref(), self.at.map(|at| &self.rows[at]), "after {step:?}");
            shown.push(found);
        }
        shown
    }

    fn step(&mut self, step: Move, keys: &[Vec<u8>]) {
        let target = |key: KeyNo, after: bool| {
            let mut target = keys[key].clone();
            target.extend(after.then_some(0));
            target
        };
        let (rows, iter) = (&self.rows, &mut self.iter);
        self.at = match step {
            Move::First => {
                iter.seek_to_first();
                (!rows.is_empty()).then_some(0)
            }
            Move::Last => {
                iter.seek_to_last();
                rows.len().checked_sub(1)
            }
            Move::Seek { key, after } => {
                let target = target(key, after);
                iter.seek(&target);
                rows.iter().position(|row| row.key >= target)
            }
            Move::SeekForPrev { key, after } => {
                let target = target(key, after);
                iter.seek_for_prev(&target);
                rows.iter().rposition(|row| row.key <= target)
            }
            Move::Next | Move::Prev if self.at.is_none() => None,
            Move::Next => {
                iter.next();
                self.at.map(|at| at + 1).filter(|at| *at < rows.len())
            }
            Move::Prev => {
                iter.prev();
                self.at.and_then(|at| at.checked_sub(1))
            }
        };
    }
}
