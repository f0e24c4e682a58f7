//! Files that an oracle, which knows the accesses, would keep on the faster devices. Pure.
//!
//! The room is a budget of bytes times seconds. A table costs its length times its lifetime, and it
//! is worth its reads. The oracle takes tables with the most reads per cost first, and a part of
//! the last one. No choice of whole tables can do better, however often it changes, so the result
//! is an upper bound.
//!
//! Cost: one sort of the tables.

use serde::{Deserialize, Serialize};

/// A table during the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TableUse {
    pub(crate) len: u64,
    /// Fraction of the measured time in which the table existed.
    pub(crate) seconds: f64,
    /// Foreground reads, each assigned at random to one of two halves.
    pub(crate) reads: [u64; 2],
}

impl TableUse {
    fn all(&self) -> u64 {
        self.reads[0] + self.reads[1]
    }

    fn cost(&self) -> f64 {
        self.len as f64 * self.seconds
    }
}

/// Hit ratios that knowledge of the accesses allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Oracle {
    /// Hit ratio of an oracle that knows every read.
    pub knows_all: f64,
    /// Hit ratio of an oracle that knows a random half of the reads, judged by the other half.
    /// Random differences between equal tables do not help this oracle.
    pub knows_half: f64,
}

/// The ratios with `room` bytes over `seconds`. They are zero without reads.
pub(crate) fn best(tables: &[TableUse], room: u64, seconds: f64) -> Oracle {
    let halves = [0, 1].map(|half| {
        chosen(tables, room, seconds, |table| table.reads[half], |table| table.reads[1 - half])
    });
    Oracle {
        knows_all: chosen(tables, room, seconds, TableUse::all, TableUse::all),
        knows_half: (halves[0] + halves[1]) / 2.0,
    }
}

/// Fraction of `judged` that hits when `known` fills the room.
fn chosen(
    tables: &[TableUse],
    room: u64,
    seconds: f64,
    known: impl Fn(&TableUse) -> u64,
    judged: impl Fn(&TableUse) -> u64,
) -> f64 {
    let total: u64 = tables.iter().map(&judged).sum();
    if total == 0 {
        return 0.0;
    }
    let worth = |table: &TableUse| known(table) as f64 / table.cost().max(f64::MIN_POSITIVE);
    let mut order: Vec<&TableUse> = tables.iter().collect();
    order.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    let mut left = room as f64 * seconds;
    let mut hits = 0.0;
    for table in order {
        if left <= 0.0 {
            break;
        }
        let part = (left / table.cost().max(f64::MIN_POSITIVE)).min(1.0);
        hits += part * judged(table) as f64;
        left -= table.cost();
    }
    hits / total as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(len: u64, seconds: f64, reads: [u64; 2]) -> TableUse {
        TableUse { len, seconds, reads }
    }

    #[test]
    fn oracle_takes_the_most_reads_per_byte_first() {
        let tables = [table(10, 4.0, [30, 30]), table(20, 4.0, [10, 10]), table(10, 4.0, [10, 10])];
        let hits = |room| best(&tables, room, 4.0).knows_all;
        assert!((hits(10) - 0.6).abs() < 1e-9);
        assert!((hits(20) - 0.8).abs() < 1e-9, "the smaller of two with the same reads");
        assert!((hits(30) - 0.9).abs() < 1e-9, "half of the large one");
        assert_eq!((hits(0), hits(1000)), (0.0, 1.0));
        assert_eq!(best(&[], 10, 1.0), Oracle::default());
    }

    #[test]
    fn table_that_lives_half_the_time_takes_half_the_room() {
        let tables = [table(10, 2.0, [5, 5]), table(10, 2.0, [5, 5]), table(10, 4.0, [5, 5])];
        let oracle = best(&tables, 10, 4.0);
        assert!((oracle.knows_all - 2.0 / 3.0).abs() < 1e-9, "two in turn: {oracle:?}");
    }

    #[test]
    fn oracle_with_half_the_knowledge_ignores_chance() {
        // All tables are equally hot except for chance, so a table that is hotter in one half is
        // not hotter in the other.
        let tables: Vec<TableUse> = (0..100)
            .map(|n| table(10, 1.0, if n % 2 == 0 { [12, 8] } else { [8, 12] }))
            .chain((0..100).map(|n| table(10, 1.0, if n % 2 == 0 { [12, 12] } else { [8, 8] })))
            .collect();
        let oracle = best(&tables, 500, 1.0);
        assert!(oracle.knows_all > oracle.knows_half, "{oracle:?}");
        let alike: Vec<TableUse> = (0..100).map(|_| table(10, 1.0, [10, 10])).collect();
        assert!((best(&alike, 250, 1.0).knows_half - 0.25).abs() < 1e-9);
    }
}
