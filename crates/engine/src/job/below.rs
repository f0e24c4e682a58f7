//! The older data below a job's outputs, which decides whether a delete may be dropped.
//!
//! A job's spec carries the key ranges of all older data of the column family that is not among its
//! inputs. That is data of deeper levels and, for a job over a part of L0, data of the older L0
//! files. A superfluous range costs space, because a delete is kept. A missing range brings old
//! versions back.

use archipelago_base::{Error, Result};

use crate::file_meta::FileMeta;
use crate::key::KeyRange;

/// Key ranges that may hold versions older than those of a job's inputs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Below {
    /// Any key may have older versions: a flush, unless the tree is known to be empty below.
    Everything,
    /// Sorted runs (a level, or a single L0 file), each with the ranges of its files ascending and
    /// disjoint. Without runs, nothing lies below.
    Runs(Vec<Vec<KeyRange>>),
}

/// The keys about which `file` may say something, as a half-open range.
#[must_use]
pub fn range_of(file: &FileMeta) -> KeyRange {
    let mut end = file.largest.clone();
    if !file.largest_exclusive {
        end.push(0);
    }
    KeyRange { start: file.smallest.clone(), end: Some(end) }
}

impl Below {
    /// No key has older versions below.
    #[must_use]
    pub fn nothing() -> Self {
        Self::Runs(Vec::new())
    }

    /// Checks that every run is ascending and disjoint.
    pub fn validate(&self) -> Result<()> {
        let Self::Runs(runs) = self else { return Ok(()) };
        for run in runs {
            let ascending = run
                .windows(2)
                .all(|pair| pair[0].end.as_ref().is_some_and(|end| end <= &pair[1].start));
            if !ascending {
                return Err(Error::invalid(
                    "job spec: the key ranges of a run below are not ascending and disjoint",
                ));
            }
        }
        Ok(())
    }

    /// Whether a key from `start` (inclusive) to `end` (exclusive) may have older versions below.
    #[must_use]
    pub fn overlaps(&self, start: &[u8], end: &[u8]) -> bool {
        let Self::Runs(runs) = self else { return true };
        runs.iter().any(|run| {
            let at = run.partition_point(|range| ends_by(range, start));
            run.get(at).is_some_and(|range| range.start.as_slice() < end)
        })
    }
}

/// Whether `range` ends at or before `key`.
fn ends_by(range: &KeyRange, key: &[u8]) -> bool {
    range.end.as_deref().is_some_and(|end| end <= key)
}

/// Answers questions about [`Below`] for keys in ascending order; each range is passed once per
/// job.
#[derive(Debug)]
pub struct BelowCursor<'a> {
    below: &'a Below,
    at: Vec<usize>,
}

impl<'a> BelowCursor<'a> {
    /// A cursor before the first key.
    #[must_use]
    pub fn new(below: &'a Below) -> Self {
        let runs = match below {
            Below::Everything => 0,
            Below::Runs(runs) => runs.len(),
        };
        Self { below, at: vec![0; runs] }
    }

    /// Whether `key` may have older versions below. It must not be smaller than the last key.
    pub fn may_hold(&mut self, key: &[u8]) -> bool {
        let Below::Runs(runs) = self.below else { return true };
        let mut found = false;
        for (run, at) in runs.iter().zip(&mut self.at) {
            while run.get(*at).is_some_and(|range| ends_by(range, key)) {
                *at += 1;
            }
            found |= run.get(*at).is_some_and(|range| range.start.as_slice() <= key);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_cursor_agrees_with_a_scan(
            cuts in prop::collection::vec(prop::collection::btree_set(0u8..60, 0..12), 0..4),
        ) {
            let runs: Vec<Vec<KeyRange>> = cuts
                .iter()
                .map(|run| {
                    let keys: Vec<u8> = run.iter().copied().collect();
                    keys.chunks_exact(2)
                        .map(|pair| KeyRange { start: vec![pair[0]], end: Some(vec![pair[1]]) })
                        .collect()
                })
                .collect();
            let below = Below::Runs(runs.clone());
            prop_assert!(below.validate().is_ok());
            let mut cursor = BelowCursor::new(&below);
            for key in 0u8..60 {
                let scan = runs.iter().flatten().any(|range| range.contains(&[key]));
                prop_assert_eq!(cursor.may_hold(&[key]), scan);
                let wide = KeyRange { start: vec![key], end: Some(vec![key + 5]) };
                let scan = runs.iter().flatten().any(|range| range.overlaps(&wide));
                prop_assert_eq!(below.overlaps(&[key], &[key + 5]), scan);
            }
        }
    }

    #[test]
    fn unsorted_runs_are_refused() {
        let range = |start: &str, end: &str| KeyRange {
            start: start.into(),
            end: Some(end.as_bytes().to_vec()),
        };
        let below = Below::Runs(vec![vec![range("c", "d"), range("a", "b")]]);
        assert!(below.validate().is_err());
    }
}
