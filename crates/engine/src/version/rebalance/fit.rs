//! Decides when a change that the load demands may be made: as soon as every L0 file, including
//! those that a running job writes, fits the new map.
//!
//! BucketLSM changes "the bucket that has just been compacted", because an L0 file must lie within
//! one bucket. But a bucket that is worth splitting is never without L0 files: each seal brings
//! one, and a compaction takes longer than a seal. Holding back its flushes until it is empty would
//! hold all memtables that arrive during a compaction, which is a stall. So a bucket is made ready
//! instead:
//!
//! 1. When a split is wanted, flushes and merges within L0 also cut their files at the wanted keys
//!    (the *planned cuts*, fixed when the job is planned). New memtables have shards that end
//!    there.
//! 2. The older files leave with the bucket's next compaction into the base level.
//! 3. When no file lies on both sides of a key, the split there is an edit of the map alone. It may
//!    be made with L0 files and jobs in the bucket, independently of the other keys.
//!
//! A merge needs no preparation: a file within a bucket also lies within the larger one. Jobs that
//! write the base level or deeper do not block a change: the first job that meets a file across a
//! boundary cuts it, as after any change. Two jobs never write the same keys, for any map (promise
//! 2 of `compaction::pick`).
//!
//! Cost: more and smaller L0 files in the bucket until the split is made. Pickers and stalls count
//! them by layers ([`crate::version::layers`]), so that they weigh no more than before. A change on
//! an operator's request is not prepared. It goes by `can_change_map`, which requires idle buckets.

use archipelago_base::{Error, Result};

use super::decide::ChangeKind;
use crate::key::KeyRange;
use crate::version::{Running, Version};

/// A running flush, as a decision sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningFlush {
    /// The keys whose flush it installs.
    pub range: KeyRange,
    /// Keys at which it cuts its files besides the boundaries of the map.
    pub planned_cuts: Vec<Vec<u8>>,
}

/// The part of `change` that may be made now: for a split, the cuts that fit. `Busy`, with the
/// reason of the first cut, if none fits.
pub fn fitting(
    version: &Version,
    change: &ChangeKind,
    running: &[Running],
    flushes: &[RunningFlush],
) -> Result<ChangeKind> {
    let ChangeKind::Split { keys } = change else { return Ok(change.clone()) };
    let (mut now, mut busy) = (Vec::new(), None);
    for key in keys {
        match cut_fits(version, key, running, flushes) {
            Ok(()) => now.push(key.clone()),
            Err(error) => {
                busy.get_or_insert(error);
            }
        }
    }
    match busy {
        Some(error) if now.is_empty() => Err(error),
        _ => Ok(ChangeKind::Split { keys: now }),
    }
}

/// Returns `Busy`, with the reason, while a file or job does not fit a boundary at `key`.
fn cut_fits(
    version: &Version,
    key: &Vec<u8>,
    running: &[Running],
    flushes: &[RunningFlush],
) -> Result<()> {
    let across =
        |range: &KeyRange| range.start < *key && range.end.as_ref().is_none_or(|end| end > key);
    let bucket = version.map().bucket_of(key);
    let (mut left, right) =
        (version.map().range(bucket), KeyRange { start: key.clone(), end: None });
    left.end = Some(key.clone());
    let old =
        version.l0(bucket).iter().filter(|file| file.overlaps(&left) && file.overlaps(&right));
    match old.count() {
        0 => {}
        count => {
            return Err(Error::busy(format!(
                "{count} L0 files of bucket {bucket} lie across the key"
            )));
        }
    }
    let uncut = |flush: &&RunningFlush| across(&flush.range) && !flush.planned_cuts.contains(key);
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
        RunningFlush {
            range: range(start, end),
            planned_cuts: cut.into_iter().map(Into::into).collect(),
        }
    }

    fn at_k() -> ChangeKind {
        ChangeKind::split_at(b"k")
    }

    #[test]
    fn split_waits_only_for_files_across_its_key() {
        let cut = version(&[("h", "j"), ("k", "o"), ("a", "f"), ("p", "z")]);
        fitting(&cut, &at_k(), &[], &[]).expect("every file is on one side");
        let old = version(&[("h", "j"), ("h", "k")]);
        assert!(fitting(&old, &at_k(), &[], &[]).is_err());
        fitting(&cut, &at_k(), &[], &[flush("g", "p", Some("k"))]).expect("cut as planned");
        assert!(fitting(&cut, &at_k(), &[], &[flush("g", "p", None)]).is_err());
        assert!(fitting(&cut, &at_k(), &[], &[flush("g", "p", Some("l"))]).is_err(), "another key");
        fitting(&cut, &at_k(), &[], &[flush("g", "k", None), flush("k", "p", None)])
            .expect("beside");
        let job = |to| Running { cf: CF, range: range("h", "o"), from: 0, to, files: vec![] };
        assert!(fitting(&cut, &at_k(), &[job(0)], &[]).is_err(), "a merge within L0");
        fitting(&cut, &at_k(), &[job(6)], &[]).expect("a compaction into the base level");
        let foreign = Running { cf: CfId(7), ..job(0) };
        fitting(&cut, &at_k(), &[foreign], &[]).expect("another family");
    }

    #[test]
    fn a_merge_always_fitting() {
        let full = version(&[("a", "f"), ("g", "o")]);
        let job = Running { cf: CF, range: range("a", "o"), from: 0, to: 0, files: vec![1] };
        let merge = ChangeKind::Merge { left: 0 };
        fitting(&full, &merge, &[job], &[flush("a", "g", None)]).expect("it lies within");
    }
}
