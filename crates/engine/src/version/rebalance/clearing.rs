//! How a wanted map change gets its chance.
//!
//! A change is made only in buckets without L0 files and jobs, and a bucket that is worth
//! splitting has both nearly always: each seal brings an L0 file, and its compaction takes longer
//! than a seal. BucketLSM makes the change in "the bucket that has just been compacted". Here is how
//! that moment is brought about, without a stall:
//!
//! 1. While a change is wanted, no compaction from the base level down starts in the touched
//!    buckets (`db::rebalancing` reserves them); those that run end.
//! 2. Then the touched buckets' L0 files are compacted into the base level, also below the trigger:
//!    [`Clearing::Compact`]. That costs at most one early rewrite per touched bucket and try.
//! 3. While only such jobs run, and they take every L0 file that the touched buckets have, flushes
//!    of the touched buckets wait: [`Clearing::Hold`]. All other flushes go on.
//! 4. When the last of them is installed, nothing is left in the way: [`Clearing::Apply`], before
//!    the flushes that waited, which are cut by the new map.
//!
//! Bound: a hold ends as soon as the sealed memtables leave less than a whole one before writers
//! are slowed for them; so it never slows a writer by itself. The change then waits for the next
//! compaction of the bucket. Tries to bring the moment about (step 2) are numbered by the owner.

use std::ops::Range;

use crate::compaction::pick::Running;
use crate::key::KeyRange;
use crate::version::Version;

/// What to do next for a wanted change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// Nothing is in the way: make the change, before any flush of the touched buckets starts.
    Apply,
    /// What is in the way is on its way out: start no flush of the touched buckets.
    Hold,
    /// Compact the L0 files of the touched buckets now.
    Compact,
    /// Not now; nothing to hold back.
    Wait,
}

/// What a decision is made from.
#[derive(Clone, Debug)]
pub struct ClearingInput<'a> {
    /// The newest version.
    pub version: &'a Version,
    /// The buckets that the wanted change touches.
    pub touched: Range<usize>,
    /// Running compactions.
    pub running: &'a [Running],
    /// Ranges of the family's running flushes.
    pub flushes: &'a [KeyRange],
    /// Sealed memtables that are not flushed.
    pub sealed: usize,
    /// Whether L0 files may be compacted for the change alone.
    pub may_compact: bool,
}

/// See the module.
#[must_use]
pub fn clearing(input: &ClearingInput<'_>) -> Clearing {
    let version = input.version;
    let ranges: Vec<KeyRange> =
        input.touched.clone().map(|bucket| version.map().range(bucket)).collect();
    if input.flushes.iter().any(|flush| ranges.iter().any(|range| flush.overlaps(range))) {
        return Clearing::Wait;
    }
    let jobs: Vec<&Running> = input
        .running
        .iter()
        .filter(|job| job.cf == version.cf())
        .filter(|job| ranges.iter().any(|range| job.range.overlaps(range)))
        .collect();
    let l0 = || input.touched.clone().flat_map(|bucket| version.l0(bucket));
    // A job that takes L0 files of the touched buckets down clears the way; any other is in it.
    let clears =
        |job: &&&Running| job.from == 0 && job.to > 0 && l0().any(|f| job.files.contains(&f.no));
    if jobs.iter().any(|job| !clears(&job)) {
        return Clearing::Wait;
    }
    let idle = l0().any(|file| !jobs.iter().any(|job| job.files.contains(&file.no)));
    if !idle && jobs.is_empty() {
        return Clearing::Apply;
    }
    let room = input.sealed + 2 <= version.options().write_buffers_max;
    match (room, idle) {
        (false, _) => Clearing::Wait,
        (true, false) => Clearing::Hold,
        (true, true) if input.may_compact => Clearing::Compact,
        (true, true) => Clearing::Wait,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use archipelago_base::{CfId, Epoch};

    use super::*;
    use crate::bucket::BucketMap;
    use crate::compaction::pick::{RangePick, pick_range};
    use crate::options::CfOptions;
    use crate::version::VersionBuilder;
    use crate::version::tests::meta;

    const CF: CfId = CfId(1);

    /// Buckets below "g", from "g" and from "p", and L0 files by first and last key.
    fn version(files: &[(&str, &str)]) -> Arc<Version> {
        let mut builder = VersionBuilder::new(&Version::empty(CF, Arc::new(CfOptions::default())));
        let map = BucketMap::new(Epoch(1), vec![b"g".to_vec(), b"p".to_vec()]);
        builder.set_map(map.expect("ascending")).expect("a later epoch");
        for (no, (first, last)) in (1..).zip(files) {
            let file = meta(no, first.as_bytes(), last.as_bytes(), (no * 10, no * 10 + 5));
            builder.add(0, file).expect("sound");
        }
        builder.finish(&Arc::default()).expect("sound").version
    }

    fn range(start: &str, end: &str) -> KeyRange {
        KeyRange { start: start.into(), end: Some(end.into()) }
    }

    fn job(span: (&str, &str), from: usize, to: usize, files: &[u64]) -> Running {
        Running { cf: CF, range: range(span.0, span.1), from, to, files: files.to_vec() }
    }

    /// For a change of the bucket in the middle, of four write buffers.
    fn decide(
        version: &Version,
        jobs: &[Running],
        flushes: &[KeyRange],
        sealed: usize,
    ) -> Clearing {
        let (touched, may_compact) = (1..2, true);
        clearing(&ClearingInput { version, touched, running: jobs, flushes, sealed, may_compact })
    }

    #[test]
    fn a_bucket_under_load_is_cleared_by_its_own_compaction() {
        let full = version(&[("h", "o"), ("g", "n")]);
        assert_eq!(decide(&full, &[], &[], 0), Clearing::Compact);
        let RangePick::Ready(pick) = pick_range(&full, &[], 0, &full.map().range(1)) else {
            panic!("two idle files");
        };
        let own = [pick.running(CF)];
        assert_eq!(decide(&full, &own, &[], 2), Clearing::Hold);
        assert_eq!(decide(&full, &own, &[], 3), Clearing::Wait, "four buffers");
        let more = version(&[("h", "o"), ("g", "n"), ("g", "h")]);
        assert_eq!(decide(&more, &own, &[], 1), Clearing::Compact, "one came after it started");
        let empty = version(&[("a", "b"), ("x", "y")]);
        assert_eq!(decide(&empty, &[], &[], 3), Clearing::Apply);
        assert_eq!(decide(&empty, &[], &[range("a", "h")], 0), Clearing::Wait);
        assert_eq!(decide(&empty, &[], &[range("a", "g")], 0), Clearing::Apply);
    }

    #[test]
    fn nothing_is_held_while_others_are_in_the_way_or_tries_are_used_up() {
        let full = version(&[("h", "o")]);
        let deeper = job(("m", "z"), 5, 6, &[9]);
        assert_eq!(decide(&full, std::slice::from_ref(&deeper), &[], 0), Clearing::Wait);
        let foreign = Running { cf: CfId(7), ..deeper };
        assert_eq!(decide(&full, &[foreign], &[], 0), Clearing::Compact, "another family");
        let within = job(("h", "o"), 0, 0, &[1]);
        assert_eq!(decide(&full, &[within], &[], 0), Clearing::Wait, "a merge within L0");
        let input = ClearingInput {
            version: &full,
            touched: 0..2,
            running: &[],
            flushes: &[],
            sealed: 0,
            may_compact: false,
        };
        assert_eq!(clearing(&input), Clearing::Wait);
    }
}
