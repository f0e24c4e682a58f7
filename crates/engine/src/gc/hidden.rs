//! The estimate of hidden garbage: values that a newer record in a higher level shadows, which no
//! compaction has found yet. Pure functions and values.
//!
//! Every record above the last level hides at most the next older version of its key. If values
//! keep their size, the *upper bound* `U` is the sum of
//! 1. the bytes of the tables above the last level and of the values that they refer to,
//! 2. the mean bytes of a separated value for each delete there,
//! 3. the values of last-level tables that a range tombstone above covers as a whole, and
//! 4. the records of the last level that were kept for snapshots and that no snapshot needs now.
//!
//! Parts 3 and 4 are garbage for certain. Of parts 1 and 2 only a share `q` is garbage. Compactions
//! measure `q` as the share of records that shadowed something when they sank ([`ShadowShare`]).
//! The estimate is `q` times parts 1 and 2, plus parts 3 and 4. The true hidden garbage may exceed
//! it by at most `(1 − q) · U`.
//!
//! Cost of an estimate: O(t + r log r) for `t` tables and `r` covered ranges, and the sums of the
//! references of each table.

use archipelago_base::SeqNo;

use crate::file_meta::FileMeta;
use crate::manifest::ShadowFigures;

/// Assumed bytes that a delete takes in a table in addition to its key.
const DELETE_OVERHEAD_BYTES: u64 = 32;
/// Smallest number of records of a measurement. Fewer are added to the next one.
const MEASURED_RECORDS_MIN: u64 = 1000;
/// Records from which on an incomplete first measurement counts.
const FIRST_RECORDS_MIN: u64 = 32;
/// A new measurement enters the running average with one part in this many.
const AVERAGE_PARTS: f64 = 8.0;

/// The tables of a version from which hidden garbage is estimated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HiddenInput<'a> {
    /// The tables above the last level.
    pub upper: &'a [&'a FileMeta],
    /// The tables of the last level, in key order.
    pub last: &'a [&'a FileMeta],
    /// The sequence numbers of the live snapshots, ascending.
    pub snapshots: &'a [SeqNo],
    /// Newest published sequence number.
    pub visible: SeqNo,
}

/// Bounds of hidden garbage in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HiddenGarbage {
    /// The upper bound `U`.
    pub upper_bound_bytes: u64,
    /// The part of it that is garbage for certain.
    pub certain_bytes: u64,
    /// The part of it that is the deletes themselves, in the tables above the last level.
    pub tombstone_bytes: u64,
    /// Bytes of last-level records that only snapshots need. They count as live, and are no part of
    /// the upper bound.
    pub kept_bytes: u64,
}

impl HiddenGarbage {
    /// The estimate, if the share `shadow_share` of upper records shadows something.
    #[must_use]
    pub(crate) fn estimate_bytes(&self, shadow_share: f64) -> u64 {
        let uncertain = self.upper_bound_bytes.saturating_sub(self.certain_bytes);
        self.certain_bytes + (uncertain as f64 * shadow_share.clamp(0.0, 1.0)) as u64
    }
}

/// Mean bytes of the separated values that `tables` refer to; 0 if they refer to none.
#[must_use]
pub(crate) fn referenced_mean_bytes<'a>(tables: impl IntoIterator<Item = &'a FileMeta>) -> u64 {
    let sum = tables.into_iter().fold((0_u64, 0_u64), |sum, table| {
        let refs = &table.refs;
        (sum.0.saturating_add(refs.bytes()), sum.1.saturating_add(refs.records()))
    });
    sum.0 / sum.1.max(1)
}

/// Largest number of bytes that the records of a table above the last level may hide.
#[must_use]
pub(crate) fn hidden_by_table(table: &FileMeta, referenced_mean_bytes: u64) -> u64 {
    let deletes = table.deletions.saturating_mul(referenced_mean_bytes);
    table.size_bytes.saturating_add(table.refs.bytes()).saturating_add(deletes)
}

/// Bytes of a table that are deletes of single keys: their share of the records, and no more than
/// deletes of keys as long as the bounds of the table would take. Without that limit, large inline
/// values would count as deletes, and the garbage of their updates as debt.
fn tombstone_bytes(table: &FileMeta) -> u64 {
    let bytes = u128::from(table.size_bytes) * u128::from(table.deletions);
    let share = u64::try_from(bytes / u128::from(table.entries.max(1)));
    let key_bytes = table.smallest.len().max(table.largest.len()) as u64;
    let most = table.deletions.saturating_mul(key_bytes + DELETE_OVERHEAD_BYTES);
    share.unwrap_or(table.size_bytes).min(most)
}

/// The bounds of hidden garbage in the tables of `input`.
#[must_use]
pub(crate) fn hidden_garbage(input: &HiddenInput<'_>) -> HiddenGarbage {
    let mean = referenced_mean_bytes(input.upper.iter().chain(input.last).copied());
    let by_records = input
        .upper
        .iter()
        .fold(0_u64, |sum, table| sum.saturating_add(hidden_by_table(table, mean)));
    let covers = Covers::of(input);
    let (mut certain_bytes, mut kept_bytes) = (0_u64, 0_u64);
    for table in input.last {
        if covers.hold(table) {
            certain_bytes = certain_bytes.saturating_add(table.refs.bytes());
            continue;
        }
        let unneeded = unneeded_bytes(table, input);
        certain_bytes = certain_bytes.saturating_add(unneeded);
        if !input.snapshots.is_empty() {
            let kept = table.content.shadowed_bytes.saturating_sub(unneeded);
            kept_bytes = kept_bytes.saturating_add(kept);
        }
    }
    let upper_bound_bytes = by_records.saturating_add(certain_bytes);
    let tombstones = input.upper.iter().copied().map(tombstone_bytes);
    let tombstone_bytes = tombstones.fold(0, u64::saturating_add);
    HiddenGarbage { upper_bound_bytes, certain_bytes, tombstone_bytes, kept_bytes }
}

/// Bytes of the shadowed records of a last-level table that no snapshot needs.
fn unneeded_bytes(table: &FileMeta, input: &HiddenInput<'_>) -> u64 {
    let content = &table.content;
    if content.shadowed == 0 || table.largest_seq() > input.visible {
        return 0;
    }
    let unneeded = content.unneeded_shadowed(input.snapshots);
    let bytes = u128::from(content.shadowed_bytes) * u128::from(unneeded);
    u64::try_from(bytes / u128::from(content.shadowed)).unwrap_or(content.shadowed_bytes)
}

/// Ranges that the tombstones of upper tables delete for every reader, by start.
struct Covers<'a>(Vec<Cover<'a>>);

struct Cover<'a> {
    start: &'a [u8],
    end: &'a [u8],
    /// Older records are deleted everywhere in the range.
    oldest_seq: u64,
}

impl<'a> Covers<'a> {
    fn of(input: &HiddenInput<'a>) -> Self {
        let oldest_snapshot = input.snapshots.first().map_or(u64::MAX, |seq| seq.0);
        let readable_seq = oldest_snapshot.min(input.visible.0);
        let mut covers = Vec::new();
        for table in input.upper {
            for range in &table.content.covered {
                let newest_seq = table.global_seq.unwrap_or(range.newest_seq);
                let oldest_seq = table.global_seq.unwrap_or(range.oldest_seq);
                // A snapshot before the tombstone still reads what it deletes.
                if newest_seq <= readable_seq {
                    covers.push(Cover { start: &range.start, end: &range.end, oldest_seq });
                }
            }
        }
        covers.sort_by(|one, other| one.start.cmp(other.start));
        Self(covers)
    }

    /// Whether the ranges together delete every key of the table.
    fn hold(&self, table: &FileMeta) -> bool {
        let mut at = table.smallest.as_slice();
        let largest = table.largest.as_slice();
        for cover in &self.0 {
            if cover.start > at {
                return false;
            }
            if table.largest_seq >= cover.oldest_seq || cover.end <= at {
                continue;
            }
            at = cover.end;
            if at > largest || (at == largest && table.largest_exclusive) {
                return true;
            }
        }
        false
    }
}

/// The share of records above the last level that shadow something. A plain value.
///
/// Compactions measure it by the records that leave the upper levels. Each of them either arrives
/// in the last level or is dropped, because a newer one shadows it. Each dropped record, of any
/// level, was shadowed by one of them. So the share is the number of dropped records over the
/// number of records that left.
///
/// The share is the larger of the last measurement and the running average. So a burst of updates
/// counts immediately, and a pause does not hide it. Until the first measurement is complete, the
/// records so far count. It is 0 before the first [`FIRST_RECORDS_MIN`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ShadowShare {
    last: f64,
    average: Option<f64>,
    /// Records that are not in a measurement yet, and how many of them shadowed something.
    pending: (u64, u64),
    /// Records of `pending` that arrived in the last level or were dropped on the way.
    sunk: u64,
}

impl ShadowShare {
    /// The measurements that an earlier open of the database kept.
    #[must_use]
    pub(crate) fn kept(figures: &ShadowFigures) -> Self {
        Self {
            last: figures.last,
            average: figures.average,
            pending: (figures.pending_records, figures.pending_shadowing),
            sunk: figures.pending_sunk,
        }
    }

    /// The measurements for the next open of the database.
    #[must_use]
    pub(crate) fn figures(&self) -> ShadowFigures {
        ShadowFigures {
            last: self.last,
            average: self.average,
            pending_records: self.pending.0,
            pending_shadowing: self.pending.1,
            pending_sunk: self.sunk,
        }
    }

    /// Notes a compaction above the last level that dropped `shadowed` records. They have left the
    /// upper levels. It completes no measurement, because the records that it kept are not counted.
    pub(crate) fn note_dropped(&mut self, shadowed: u64) {
        self.pending.0 = self.pending.0.saturating_add(shadowed);
        self.pending.1 = self.pending.1.saturating_add(shadowed);
    }

    /// Notes a compaction that took `left` records of upper levels into the last level or dropped
    /// them, and dropped `shadowed` older records of any level.
    pub(crate) fn note_sunk(&mut self, left: u64, shadowed: u64) {
        let records = self.pending.0.saturating_add(left);
        let shadowing = self.pending.1.saturating_add(shadowed.min(left));
        self.sunk = self.sunk.saturating_add(left);
        if self.sunk < MEASURED_RECORDS_MIN {
            self.pending = (records, shadowing);
            return;
        }
        let measured = shadowing as f64 / records as f64;
        let average = self.average.unwrap_or(measured);
        self.average = Some(average + (measured - average) / AVERAGE_PARTS);
        self.last = measured;
        self.pending = (0, 0);
        self.sunk = 0;
    }

    /// The share, from 0 to 1.
    #[must_use]
    pub(crate) fn share(&self) -> f64 {
        let (records, shadowing) = self.pending;
        match self.average {
            Some(average) => average.max(self.last),
            None if self.sunk >= FIRST_RECORDS_MIN => shadowing as f64 / records as f64,
            None => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table_content::{CoveredRange, TableContent};
    use crate::value_ref::{ValueRef, ValueRefs};

    fn table(keys: (&str, &str), size_bytes: u64, values: (u64, u64)) -> FileMeta {
        let (records, bytes) = values;
        let refs = match records {
            0 => Vec::new(),
            _ => vec![ValueRef { no: 1, records, bytes }],
        };
        FileMeta {
            size_bytes,
            refs: ValueRefs::new(refs).expect("sound references"),
            ..crate::version::tests::meta(1, keys.0.as_bytes(), keys.1.as_bytes(), (1, 50))
        }
    }

    fn covering(start: &str, end: &str, seq: u64) -> FileMeta {
        let (start, end) = (start.into(), end.into());
        let range = CoveredRange { start, end, oldest_seq: seq, newest_seq: seq };
        let content = TableContent { covered: vec![range], ..TableContent::default() };
        FileMeta { content, ..table(("a", "z"), 10, (0, 0)) }
    }

    fn garbage(upper: &[FileMeta], last: &[FileMeta], snapshots: &[u64]) -> HiddenGarbage {
        let snapshots: Vec<SeqNo> = snapshots.iter().copied().map(SeqNo).collect();
        let (upper, last): (Vec<_>, Vec<_>) = (upper.iter().collect(), last.iter().collect());
        let visible = SeqNo(1000);
        let input = HiddenInput { upper: &upper, last: &last, snapshots: &snapshots, visible };
        hidden_garbage(&input)
    }

    #[test]
    fn upper_tables_hide_their_bytes_values_and_deletes() {
        let mut upper = table(("a", "m"), 100, (10, 4000));
        upper.deletions = 3;
        let last = [table(("a", "z"), 900, (90, 6000))];
        let hidden = garbage(&[upper], &last, &[]);
        // The mean of the 100 separated values is 100 bytes.
        assert_eq!(hidden.upper_bound_bytes, 100 + 4000 + 3 * 100);
        assert_eq!(hidden.certain_bytes, 0);
        assert_eq!(hidden.estimate_bytes(0.5), 2200);
        assert_eq!(hidden.estimate_bytes(7.0), 4400);
    }

    #[test]
    fn deletes_are_a_part_of_the_bytes_of_upper_tables() {
        let mut upper = table(("a", "m"), 1000, (10, 4000));
        (upper.entries, upper.deletions) = (40, 30);
        let mut ranges = covering("b", "f", 60);
        (ranges.entries, ranges.deletions) = (0, 0);
        let mut last = table(("a", "z"), 900, (90, 6000));
        last.deletions = 5;
        let last = [last];
        assert_eq!(garbage(&[upper.clone(), ranges], &last, &[]).tombstone_bytes, 750);
        upper.size_bytes = 100_000;
        let deletes = garbage(&[upper], &last, &[]).tombstone_bytes;
        assert_eq!(deletes, 30 * (1 + 32), "the other bytes are inline values");
    }

    #[test]
    fn table_covered_whole_by_tombstones_is_garbage() {
        let last = [table(("c", "e"), 900, (90, 6000)), table(("f", "k"), 900, (10, 500))];
        let certain =
            |upper: &[FileMeta], snapshots: &[u64]| garbage(upper, &last, snapshots).certain_bytes;
        assert_eq!(certain(&[covering("b", "f", 60)], &[]), 6000);
        assert_eq!(certain(&[covering("b", "d", 60), covering("d", "z", 70)], &[]), 6500);
        assert_eq!(certain(&[covering("b", "d", 60), covering("e", "z", 70)], &[]), 500);
        assert_eq!(certain(&[covering("b", "e", 60)], &[]), 0, "the last key remains");
        assert_eq!(certain(&[covering("b", "z", 40)], &[]), 0, "the table is newer");
        assert_eq!(certain(&[covering("b", "z", 60)], &[55]), 0, "a snapshot reads it");
    }

    #[test]
    fn released_snapshot_turns_kept_records_into_garbage() {
        let mut last = table(("a", "z"), 900, (100, 6000));
        last.content = TableContent {
            shadowed: 20,
            shadowed_bytes: 1200,
            shadowed_keys: 20,
            shadowed_oldest_seq: 10,
            shadowing_newest_seq: 40,
            ..TableContent::default()
        };
        let last = [last];
        let kept = garbage(&[], &last, &[20]);
        assert_eq!((kept.certain_bytes, kept.kept_bytes), (0, 1200));
        assert_eq!(kept.upper_bound_bytes, 0, "what a snapshot needs is live");
        let hidden = garbage(&[], &last, &[]);
        assert_eq!(hidden.kept_bytes, 0);
        assert_eq!((hidden.upper_bound_bytes, hidden.certain_bytes), (1200, 1200));
        assert_eq!(hidden.estimate_bytes(0.0), 1200, "no share is needed to be certain");
    }

    #[test]
    fn share_is_the_larger_of_last_and_average() {
        let mut share = ShadowShare::default();
        assert_eq!(share.share(), 0.0);
        share.note_sunk(31, 31);
        assert_eq!(share.share(), 0.0, "too few records say little");
        share.note_sunk(69, 44);
        assert_eq!(share.share(), 0.75, "the first measurement counts before it is complete");
        share.note_sunk(900, 900);
        assert!((0.97..0.98).contains(&share.share()));
        share.note_sunk(1000, 0);
        assert!((0.85..0.9).contains(&share.share()), "the average remembers");
        (0..100).for_each(|_| share.note_sunk(1000, 100));
        assert!((0.1..0.11).contains(&share.share()));
        share.note_sunk(1000, 800);
        assert_eq!(share.share(), 0.8, "a burst counts at once");
    }

    #[test]
    fn kept_measurements_go_on_as_if_nothing_had_ended() {
        let mut share = ShadowShare::default();
        for (left, shadowed) in [(40, 10), (900, 300), (70, 70), (500, 0), (800, 800)] {
            share.note_sunk(left, shadowed);
            share.note_dropped(left / 10);
            assert_eq!(ShadowShare::kept(&share.figures()), share);
            let figures = share.figures();
            assert!(figures.pending_shadowing.max(figures.pending_sunk) <= figures.pending_records);
        }
    }

    #[test]
    fn drops_above_the_last_level_complete_no_measurement() {
        let mut share = ShadowShare::default();
        share.note_dropped(5000);
        assert_eq!(share.share(), 0.0, "nothing has arrived in the last level");
        share.note_sunk(5000, 0);
        assert_eq!(share.share(), 0.5, "half of what left was shadowed");
    }
}
