//! Subcompactions: cuts the keys of one compaction into parts. Pure functions.
//!
//! Buckets cut L0 before a compaction begins, and so make jobs that share nothing. A subcompaction
//! cuts a job that exists (BucketLSM §IV-B calls this intra-compaction parallelism and compares
//! with it). The rules are those of RocksDB since its version 7. Every input file names some of its
//! index keys and the bytes between them (its *anchors*, at most [`ANCHORS_PER_FILE`]). The anchors
//! of all files are sorted, and their bytes are cut into even parts. Anchors describe each file,
//! not the records that survive the merge. So parts take unequal time, which is a known weakness of
//! the method.
//!
//! Invariants of a plan:
//! 1. Its ranges ascend, touch, and together are exactly the job's range. A boundary is an anchor
//!    strictly inside it, so every version of a user key is in one part.
//! 2. It has at most `parts_max` parts, and at most as many as the bytes fill files of the least
//!    size. That is the target file size: a smaller part would make small files.
//! 3. No part holds less than half of that least size by the anchors' account. A boundary that
//!    would make such a part is left out.
//!
//! Cost: a sort of the anchors. They come from index blocks that open readers hold in memory. A
//! file whose reader is closed is opened once per job, with three to five reads.

use crate::key::KeyRange;
use crate::sst::Anchor;

/// Largest number of anchors that a file names.
pub const ANCHORS_PER_FILE: usize = 128;

/// Cuts `range` into at most `parts_max` even parts of about `part_bytes_min` bytes or more. The
/// inputs of the range have `anchors`, in any order. The result is the range itself, as one part,
/// if it is not worth cutting.
#[must_use]
pub fn plan_subcompactions(
    mut anchors: Vec<Anchor>,
    parts_max: usize,
    part_bytes_min: u64,
    range: &KeyRange,
) -> Vec<KeyRange> {
    anchors.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let points = points_of(anchors);
    let total = points.last().map_or(0, |point| point.before);
    let least = part_bytes_min.max(1);
    let least_part = (least / 2).max(1);
    let parts = (total / least).min(parts_max as u64);
    let mut boundaries: Vec<Vec<u8>> = Vec::new();
    let mut cut_at = 0;
    for part in 1..parts {
        let goal = (u128::from(total) * u128::from(part) / u128::from(parts)) as u64;
        let fits = |point: &&Point| {
            inside(range, &point.key)
                && point.before >= cut_at + least_part
                && total - point.before >= least_part
        };
        let at = points.partition_point(|point| point.before < goal);
        let around = &points[at.saturating_sub(1)..points.len().min(at + 1)];
        let nearest = around.iter().filter(fits).min_by_key(|point| point.before.abs_diff(goal));
        if let Some(point) = nearest {
            cut_at = point.before;
            boundaries.push(point.key.clone());
        }
    }
    ranges_between(range, boundaries)
}

/// A key where the range may be cut.
struct Point {
    key: Vec<u8>,
    /// Bytes of all inputs up to the key.
    before: u64,
}

/// The sorted anchors, one point per key.
fn points_of(anchors: Vec<Anchor>) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::with_capacity(anchors.len());
    let mut before = 0u64;
    for Anchor { key, bytes } in anchors {
        before = before.saturating_add(bytes);
        match points.last_mut() {
            Some(last) if last.key == key => last.before = before,
            _ => points.push(Point { key, before }),
        }
    }
    points
}

/// Whether a cut at `key` leaves keys of `range` on both sides.
fn inside(range: &KeyRange, key: &[u8]) -> bool {
    key > range.start.as_slice() && range.end.as_ref().is_none_or(|end| key < end.as_slice())
}

fn ranges_between(range: &KeyRange, boundaries: Vec<Vec<u8>>) -> Vec<KeyRange> {
    let mut start = range.start.clone();
    let mut ranges = Vec::with_capacity(boundaries.len() + 1);
    for boundary in boundaries {
        ranges.push(KeyRange { start, end: Some(boundary.clone()) });
        start = boundary;
    }
    ranges.push(KeyRange { start, end: range.end.clone() });
    ranges
}

#[cfg(test)]
mod tests;
