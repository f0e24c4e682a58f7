//! Versions: the immutable sets of a column family's files.
//!
//! A [`VersionBuilder`] builds a [`Version`] from the previous one and a manifest edit.
//! [`crate::manifest::VersionSet`] owns it, and all readers share it as `Arc<Version>`. A reader
//! that holds a version sees a consistent set of files for as long as it wants, without a lock. A
//! file lives until the last version that holds it is dropped ([`crate::live_file`]).
//!
//! Invariants ([`Version::check`]):
//! 1. An L0 file lies within exactly one bucket of the map.
//! 2. A bucket's L0 files are ordered newest first: by largest sequence number, then by number.
//! 3. Files of one level below L0 share no key and are sorted by key.
//! 4. No file number occurs twice.
//! 5. Levels between L0 and the base level are empty.
//! 6. Every reference resolves to one live value file (see `values`).
//! 7. For one key, a record in a higher level is newer than one in a lower level. (The code that
//!    makes edits guarantees this; the check cannot see it without reading the files.)
//!
//! Everything that pickers and stalls ask for (base level, targets, scores, debt) is computed once,
//! when the version is built. A look-up is a binary search and allocates nothing. A version shares
//! the levels that its edit did not change with the previous one.

mod build;
mod flushed;
mod held;
mod layers;
mod level;
pub mod rebalance;
pub mod reclaimable;
mod running;
pub mod sizes;
mod values;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use archipelago_base::{CfId, Error, ErrorKind, Result};

use crate::bucket::BucketMap;
use crate::key::KeyRange;
use crate::live_file::LiveFile;
use crate::options::{CfOptions, LEVELS};

pub use build::{Built, VersionBuilder};
pub use flushed::FlushedThrough;
pub use held::{HeldNumbers, Hold};
pub use layers::{layers, rows};
pub use level::Level;
pub use running::Running;
pub use sizes::{LAST_LEVEL, LevelTargets};
pub use values::{ReferenceSum, ValueFiles};

/// The error for an edit or a version that no correct sequence of jobs can make.
pub(crate) fn impossible(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// Length of `files` in bytes; saturates, because lengths come from a manifest.
pub(crate) fn total_bytes<'a>(files: impl IntoIterator<Item = &'a Arc<LiveFile>>) -> u64 {
    files.into_iter().fold(0, |sum: u64, file| sum.saturating_add(file.size_bytes))
}

/// Length of `files` and of the separated values that they reference, in bytes; saturates.
pub(crate) fn compensated_bytes<'a>(files: impl IntoIterator<Item = &'a Arc<LiveFile>>) -> u64 {
    files.into_iter().fold(0, |sum: u64, file| sum.saturating_add(file.compensated_bytes()))
}

/// The files of one column family at one moment, with its map and settings.
#[derive(Debug)]
pub struct Version {
    cf: CfId,
    options: Arc<CfOptions>,
    map: Arc<BucketMap>,
    /// L0 files by bucket of `map`, newest first.
    l0: Vec<Vec<Arc<LiveFile>>>,
    /// Levels 1 to 6, each at the index level − 1.
    levels: [Arc<Level>; LEVELS - 1],
    flushed_through: Arc<FlushedThrough>,
    targets: LevelTargets,
    scores: [f64; LEVELS],
    pending_bytes: u64,
    l0_layers_max: usize,
    /// Files that may free space, as [`Version::reclaimable`] returns them.
    reclaimable: Vec<(usize, Arc<LiveFile>)>,
    /// Files of separated values.
    values: Arc<ValueFiles>,
    referenced_mean_bytes: u64,
}

impl Version {
    /// A column family without files and with one bucket.
    #[must_use]
    pub fn empty(cf: CfId, options: Arc<CfOptions>) -> Arc<Self> {
        let targets =
            sizes::level_targets(&[0; LEVELS], options.base_bytes(), options.level_multiplier);
        Arc::new(Self {
            cf,
            options,
            map: Arc::new(BucketMap::single()),
            l0: vec![Vec::new()],
            levels: Default::default(),
            flushed_through: Arc::default(),
            targets,
            scores: [0.0; LEVELS],
            pending_bytes: 0,
            l0_layers_max: 0,
            reclaimable: Vec::new(),
            values: Arc::default(),
            referenced_mean_bytes: 0,
        })
    }

    /// The files of separated values, and the references to them.
    #[inline]
    #[must_use]
    pub fn values(&self) -> &Arc<ValueFiles> {
        &self.values
    }

    /// Mean bytes of a separated value; 0 without separated values.
    #[must_use]
    pub fn referenced_mean_bytes(&self) -> u64 {
        self.referenced_mean_bytes
    }

    /// The column family.
    #[must_use]
    pub fn cf(&self) -> CfId {
        self.cf
    }

    /// The settings of the column family when this version was made.
    #[must_use]
    pub fn options(&self) -> &Arc<CfOptions> {
        &self.options
    }

    /// The bucket map of the column family.
    #[must_use]
    pub fn map(&self) -> &Arc<BucketMap> {
        &self.map
    }

    /// The L0 files of bucket `bucket`, newest first.
    #[inline]
    #[must_use]
    pub fn l0(&self, bucket: usize) -> &[Arc<LiveFile>] {
        &self.l0[bucket]
    }

    /// The L0 files of the bucket that holds `key`, newest first.
    #[inline]
    #[must_use]
    pub fn l0_of(&self, key: &[u8]) -> &[Arc<LiveFile>] {
        &self.l0[self.map.bucket_of(key)]
    }

    /// The level `level`, from 1 on. Panics for L0.
    #[inline]
    #[must_use]
    pub fn level(&self, level: usize) -> &Level {
        assert!(level > 0, "L0 is kept by bucket");
        &self.levels[level - 1]
    }

    /// The files of `level` (from 1 on) that may say something about a key of `range`.
    #[must_use]
    pub fn overlapping(&self, level: usize, range: &KeyRange) -> &[Arc<LiveFile>] {
        self.level(level).overlapping(range)
    }

    /// The file of `level` (from 1 on) that may say something about `key`.
    #[inline]
    #[must_use]
    pub fn file_for(&self, level: usize, key: &[u8]) -> Option<&Arc<LiveFile>> {
        self.level(level).file_for(key)
    }

    /// The sequence number through which each key range lies in tables.
    #[must_use]
    pub fn flushed_through(&self) -> &FlushedThrough {
        &self.flushed_through
    }

    /// The level that L0 compacts into.
    #[must_use]
    pub fn base_level(&self) -> usize {
        self.targets.base_level
    }

    /// The target size of each level, and the base level.
    #[must_use]
    pub fn targets(&self) -> &LevelTargets {
        &self.targets
    }

    /// Urgency of a compaction of `level`. L0 is due from 1 on (the fullest bucket's layers over
    /// the trigger), the other levels above 1 (compensated size over target).
    #[must_use]
    pub fn score(&self, level: usize) -> f64 {
        self.scores[level]
    }

    /// Compaction debt: bytes that compactions must rewrite until every level is within its target.
    #[must_use]
    pub fn pending_compaction_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Number of L0 files of the fullest bucket, counted as [`layers`].
    #[must_use]
    pub fn l0_layers_max(&self) -> usize {
        self.l0_layers_max
    }

    /// The files that may ever free space without a compaction due to size, each with its level, in
    /// the order of [`Version::files`] ([`crate::compaction::pick::reclaim`]).
    #[must_use]
    pub fn reclaimable(&self) -> &[(usize, Arc<LiveFile>)] {
        &self.reclaimable
    }

    /// Length of all files of `level` in bytes.
    #[must_use]
    pub fn bytes(&self, level: usize) -> u64 {
        match level {
            0 => total_bytes(self.l0.iter().flatten()),
            _ => self.level(level).bytes(),
        }
    }

    /// Number of files of `level`.
    #[must_use]
    pub fn file_count(&self, level: usize) -> usize {
        match level {
            0 => self.l0.iter().map(Vec::len).sum(),
            _ => self.level(level).files().len(),
        }
    }

    /// Every file with its level: L0 by bucket and newest first, then level by level in key order.
    pub fn files(&self) -> impl Iterator<Item = (usize, &Arc<LiveFile>)> {
        let l0 = self.l0.iter().flatten().map(|file| (0, file));
        let below = self.levels.iter().enumerate();
        l0.chain(below.flat_map(|(index, level)| level.files().iter().map(move |f| (index + 1, f))))
    }

    /// Numbers of all files that the version holds: tables, value files and invalid files.
    pub(crate) fn file_numbers(&self) -> impl Iterator<Item = u64> {
        let values = self.values.files().map(|(file, _)| file.no);
        let invalid = self.values.invalid_files().map(|file| file.no);
        self.files().map(|(_, file)| file.no).chain(values).chain(invalid)
    }

    /// The deepest level that has files; 0 if no level below L0 has any.
    #[must_use]
    pub fn last_used_level(&self) -> usize {
        (1..LEVELS).rev().find(|&level| !self.level(level).files().is_empty()).unwrap_or(0)
    }

    /// Checks every invariant that can be checked without reading files. `Corrupt` names the first
    /// broken one.
    pub fn check(&self) -> Result<()> {
        let mut seen = HashSet::new();
        if let Some((_, twice)) = self.files().find(|(_, file)| !seen.insert(file.no)) {
            return Err(impossible(format!("file {} occurs twice", twice.no)));
        }
        if self.l0.len() != self.map.len() {
            return Err(impossible("L0 is not cut by the bucket map"));
        }
        for (bucket, files) in self.l0.iter().enumerate() {
            let range = self.map.range(bucket);
            if let Some(file) = files.iter().find(|file| !file.within(&range)) {
                return Err(impossible(format!(
                    "L0 file {} reaches outside its bucket {bucket}",
                    file.no
                )));
            }
            if !files.is_sorted_by_key(|file| std::cmp::Reverse((file.largest_seq, file.no))) {
                return Err(impossible(format!("L0 of bucket {bucket} is not newest first")));
            }
        }
        for level in 1..LEVELS {
            Level::new(self.level(level).files().to_vec())?;
            if level < self.base_level() && !self.level(level).files().is_empty() {
                return Err(impossible(format!("level {level} above the base level has files")));
            }
        }
        self.values.check(self.files().map(|(_, file)| file))
    }
}
