//! When a change that the load asks for may be made: as soon as every L0 file that there is, or
//! that a running job makes, fits the new map.
//!
//! BucketLSM changes "the bucket that has just been compacted", because an L0 file must lie
//! within one bucket. A bucket that is worth splitting is never without L0 files, though: each
//! seal brings one, and a compaction takes longer than a seal. To keep its flushes back until
//! it is empty takes as many memtables as arrive during a compaction, that is, a stall. So a
//! bucket is made ready instead:
//!
//! 1. From the moment a split is wanted, flushes and merges within L0 cut their files also at the
//!    wanted key (the *planned cut*, fixed when the job is planned).
//! 2. The files from before leave with the bucket's next compaction into the base level.
//! 3. When none is left that lies on both sides of the key, the split is an edit of the map alone,
//!    and may be made with L0 files and jobs in the bucket.
//!
//! A merge needs nothing of the kind: what lies within a bucket lies within the larger one. Jobs that
//! write the base level or deeper are in nobody's way: a file that they leave across a boundary is cut
//! by the first job that meets it, as after any change. Two jobs never write the same keys, whatever
//! the map says (promise 2 of `compaction::pick`).
//!
//! Costs twice as many L0 files in the bucket, of half the size, until the split is made. A change by
//! hand has not been prepared for and goes by `can_change_map`, which wants the buckets idle.

use archipelago_base::{Error, Result};

use super::decide::ChangeKind;
use crate::compaction::pick::Running;
use crate::key::KeyRange;
use crate::version::Version;

/// A running flush, as a decision sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningFlush {
    /// The keys that it installs.
    pub range: KeyRange,
    /// Where it cuts its files beside the boundaries of the map.
    pub planned_cut: Option<Vec<u8>>,
}

/// `Busy`, with the reason, while a file or job does not fit the map after `change`.
pub fn fits(
    version: &Version,
    change: &ChangeKind,
    running: &[Running],
    flushes: &[RunningFlush],
) -> Result<()> {
    let ChangeKind::Split { bucket, key } = change else { return Ok(()) };
    let across =
        |range: &KeyRange| range.start < *key && range.end.as_ref().is_none_or(|end| end > key);
    let (mut left, right) =
        (version.map().range(*bucket), KeyRange { start: key.clone(), end: None });
    left.end = Some(key.clone());
    let old =
        version.l0(*bucket).iter().filter(|file| file.overlaps(&left) && file.overlaps(&right));
    match old.count() {
        0 => {}
        count => {
            return Err(Error::busy(format!(
                "{count} L0 files of bucket {bucket} lie across the key"
            )));
        }
    }
    let uncut =
        |flush: &&RunningFlush| across(&flush.range) && flush.planned_cut.as_ref() != Some(key);
    if flushes.iter().any(|flush| uncut(&flush)) {
        return Err(Error::busy(format!("a flush of bucket {bucket} was planned without the key")));
    }
    let within_l0 = |job: &&Running| job.cf == version.cf() && job.to == 0 && across(&job.range);
    if running.iter().any(|job| within_l0(&job)) {
        return Err(Error::busy(format!("L0 files of bucket {bucket} are being merged")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use archipelago_base::{CfId, Epoch};

    use super::*;
    use crate::bucket::BucketMap;
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

    fn flush(start: &str, end: &str, cut: Option<&str>) -> RunningFlush {
        RunningFlush { range: range(start, end), planned_cut: cut.map(Into::into) }
    }

    fn at_k() -> ChangeKind {
        ChangeKind::Split { bucket: 1, key: b"k".to_vec() }
    }

    #[test]
    fn a_split_waits_for_what_lies_across_its_key_and_for_nothing_else() {
        let cut = version(&[("h", "j"), ("k", "o"), ("a", "f"), ("p", "z")]);
        fits(&cut, &at_k(), &[], &[]).expect("every file is on one side");
        let old = version(&[("h", "j"), ("h", "k")]);
        assert!(fits(&old, &at_k(), &[], &[]).is_err());
        fits(&cut, &at_k(), &[], &[flush("g", "p", Some("k"))]).expect("cut as planned");
        assert!(fits(&cut, &at_k(), &[], &[flush("g", "p", None)]).is_err());
        assert!(fits(&cut, &at_k(), &[], &[flush("g", "p", Some("l"))]).is_err(), "another key");
        fits(&cut, &at_k(), &[], &[flush("g", "k", None), flush("k", "p", None)]).expect("beside");
        let job = |to| Running { cf: CF, range: range("h", "o"), from: 0, to, files: vec![] };
        assert!(fits(&cut, &at_k(), &[job(0)], &[]).is_err(), "a merge within L0");
        fits(&cut, &at_k(), &[job(6)], &[]).expect("a compaction into the base level");
        let foreign = Running { cf: CfId(7), ..job(0) };
        fits(&cut, &at_k(), &[foreign], &[]).expect("another family");
    }

    #[test]
    fn a_merge_always_fits() {
        let full = version(&[("a", "f"), ("g", "o")]);
        let job = Running { cf: CF, range: range("a", "o"), from: 0, to: 0, files: vec![1] };
        let merge = ChangeKind::Merge { left: 0 };
        fits(&full, &merge, &[job], &[flush("a", "g", None)]).expect("it lies within");
    }
}
