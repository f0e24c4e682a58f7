//! Builds the next version from one version and its changes.
//!
//! A [`VersionBuilder`] collects the changes of an edit (at recovery: of all edits) and checks that
//! they are possible. Invariants:
//! 1. A removal names a file that exists, and an addition a number that does not.
//! 2. A number that is removed and added in one edit is the same file at another level. It keeps
//!    its [`LiveFile`] and thus its open reader.
//! 3. Nothing changes until [`VersionBuilder::finish`].
//!
//! Failure: errors are `Corrupt`. No correct job makes such edits; damaged or foreign manifests do.
//! Cost: `finish` is one pass over the files and a sort of the changed ones.

use std::collections::HashMap;
use std::sync::Arc;

use archipelago_base::{Epoch, Result, SeqNo};

use crate::bucket::BucketMap;
use crate::file_meta::FileMeta;
use crate::key::KeyRange;
use crate::live_file::{LiveFile, LiveInvalidFile, LiveValueFile, Trash};
use crate::options::{CfOptions, LEVELS};
use crate::value_ref::{InvalidFileMeta, ValueFileMeta};
use crate::version::sizes::{self, DueL0, LevelSizes, level_targets};
use crate::version::values::{RemovedValues, ValueChanges};
use crate::version::{
    FlushedThrough, HeldNumbers, Level, ValueFiles, Version, compensated_bytes, impossible, layers,
    reclaimable, total_bytes,
};

/// Result of [`VersionBuilder::finish`].
#[derive(Debug)]
pub struct Built {
    /// The new version.
    pub version: Arc<Version>,
    /// Files of the old version that the new one does not hold. They must be marked obsolete once
    /// the edit is durable, and not before.
    pub removed: Vec<Arc<LiveFile>>,
    /// Value files of the old version that the new one does not hold; treated as `removed`.
    pub removed_values: Vec<Arc<LiveValueFile>>,
    /// Invalid files of the old version that the new one does not hold; treated as `removed`.
    pub removed_invalid: Vec<Arc<LiveInvalidFile>>,
    /// Numbers of the removed value files that no change names. They are removed because no table
    /// references them any more. The edit must name them too before it is written.
    pub unreferenced: Vec<u64>,
}

/// Collects the changes from one version to the next.
#[derive(Debug)]
pub struct VersionBuilder {
    base: Arc<Version>,
    options: Arc<CfOptions>,
    map: Arc<BucketMap>,
    flushed_through: Option<FlushedThrough>,
    added: HashMap<u64, (usize, FileMeta)>,
    /// Level from which each file of `base` was removed, by number.
    removed: HashMap<u64, usize>,
    values: ValueChanges,
}

impl VersionBuilder {
    /// A builder that has changed nothing yet.
    #[must_use]
    pub fn new(base: &Arc<Version>) -> Self {
        Self {
            base: Arc::clone(base),
            options: Arc::clone(base.options()),
            map: Arc::clone(base.map()),
            flushed_through: None,
            added: HashMap::new(),
            removed: HashMap::new(),
            values: ValueChanges::default(),
        }
    }

    /// Adds a value file.
    pub fn add_value_file(&mut self, meta: ValueFileMeta) -> Result<()> {
        self.values.add(&self.base.values, meta)
    }

    /// Removes a value file.
    pub fn remove_value_file(&mut self, no: u64) -> Result<()> {
        self.values.remove(&self.base.values, no)
    }

    /// Notes that the values of the value file `old` lie in `heir` from now on.
    pub fn inherit(&mut self, old: u64, heir: u64) -> Result<()> {
        self.values.inherit(&self.base.values, old, heir)
    }

    /// Adds an invalid file.
    pub fn add_invalid_file(&mut self, meta: InvalidFileMeta) -> Result<()> {
        self.values.add_invalid(&self.base.values, meta)
    }

    /// Removes an invalid file.
    pub fn remove_invalid_file(&mut self, no: u64) -> Result<()> {
        self.values.remove_invalid(&self.base.values, no)
    }

    /// Adds a file to `level`.
    pub fn add(&mut self, level: usize, meta: FileMeta) -> Result<()> {
        if level >= LEVELS {
            return Err(impossible(format!("file {} added to level {level}", meta.no)));
        }
        if meta.smallest > meta.largest || meta.smallest_seq > meta.largest_seq {
            return Err(impossible(format!("file {}: its bounds are swapped", meta.no)));
        }
        let no = meta.no;
        if self.added.insert(no, (level, meta)).is_some() {
            return Err(impossible(format!("file {no} added twice")));
        }
        Ok(())
    }

    /// Removes a file from `level`.
    pub fn remove(&mut self, level: usize, no: u64) -> Result<()> {
        if let Some((at, _)) = self.added.get(&no)
            && *at == level
        {
            self.added.remove(&no);
            return Ok(());
        }
        let known = match level {
            0 => self.base.l0.iter().flatten().any(|file| file.no == no),
            1..LEVELS => self.base.level(level).files().iter().any(|file| file.no == no),
            _ => false,
        };
        if !known || self.removed.insert(no, level).is_some() {
            return Err(impossible(format!("file {no} removed from level {level} is not there")));
        }
        Ok(())
    }

    /// Replaces the bucket map by one of a later epoch.
    pub fn set_map(&mut self, map: BucketMap) -> Result<()> {
        let (Epoch(before), Epoch(after)) = (self.map.epoch(), map.epoch());
        if after <= before {
            return Err(impossible(format!("bucket map epoch {after} after {before}")));
        }
        self.map = Arc::new(map);
        Ok(())
    }

    /// Replaces the settings.
    pub fn set_options(&mut self, options: CfOptions) {
        self.options = Arc::new(options);
    }

    /// The settings after the changes so far.
    #[must_use]
    pub fn options(&self) -> &Arc<CfOptions> {
        &self.options
    }

    /// Raises the flushed-through number of `range` to at least `seq`.
    pub fn raise_flushed(&mut self, range: &KeyRange, seq: SeqNo) {
        let base = &self.base.flushed_through;
        self.flushed_through.get_or_insert_with(|| base.as_ref().clone()).raise(range, seq);
    }

    /// Builds the new version. New files belong to `trash`.
    pub fn finish(self, trash: &Arc<Trash>) -> Result<Built> {
        self.finish_holding(trash, &HeldNumbers::default())
    }

    /// Does the work of [`VersionBuilder::finish`] while running jobs hold numbers of value files.
    pub fn finish_holding(mut self, trash: &Arc<Trash>, held: &HeldNumbers) -> Result<Built> {
        let mut fresh: [Vec<Arc<LiveFile>>; LEVELS] = Default::default();
        let (mut gone, mut joined) = (Vec::new(), Vec::new());
        let mut touched = [false; LEVELS];
        for (level, file) in self.base.files() {
            if self.removed.get(&file.no) != Some(&level) {
                if self.added.contains_key(&file.no) {
                    return Err(impossible(format!("file {} added twice", file.no)));
                }
                continue;
            }
            touched[level] = true;
            match self.added.remove(&file.no) {
                None => gone.push(Arc::clone(file)),
                Some((to, meta)) if meta == *file.meta() => {
                    touched[to] = true;
                    fresh[to].push(Arc::clone(file));
                }
                Some(_) => {
                    return Err(impossible(format!("file {} moved and changed", file.no)));
                }
            }
        }
        for (level, meta) in self.added.drain().map(|(_, added)| added) {
            touched[level] = true;
            let file = LiveFile::named(meta, trash);
            joined.push(Arc::clone(&file));
            fresh[level].push(file);
        }
        let changes = std::mem::take(&mut self.values);
        let base = &self.base.values;
        let (values, removed) = changes.finish(base, &gone, &joined, held, trash)?;
        let version = self.assemble(fresh, &touched, values)?;
        let RemovedValues { values: removed_values, invalid: removed_invalid, unreferenced } =
            removed;
        let version = Arc::new(version);
        Ok(Built { version, removed: gone, removed_values, removed_invalid, unreferenced })
    }

    /// A version for readers: `base` with tables in L0 that no edit names yet. All values that
    /// these tables reference lie in `value_files`, which no edit names either.
    pub(crate) fn with_unnamed(
        base: &Arc<Version>,
        tables: &[Arc<LiveFile>],
        value_files: &[Arc<LiveValueFile>],
    ) -> Result<Arc<Version>> {
        let mut fresh: [Vec<Arc<LiveFile>>; LEVELS] = Default::default();
        fresh[0].extend_from_slice(tables);
        let touched = [false; LEVELS];
        let values = ValueFiles::with_unnamed(&base.values, value_files, tables);
        Self::new(base).assemble(fresh, &touched, values).map(Arc::new)
    }

    /// Whether the file stays at its place in `base`.
    fn stays(&self, level: usize, file: &LiveFile) -> bool {
        self.removed.get(&file.no) != Some(&level)
    }

    fn assemble(
        &self,
        fresh: [Vec<Arc<LiveFile>>; LEVELS],
        touched: &[bool; LEVELS],
        values: Arc<ValueFiles>,
    ) -> Result<Version> {
        let mut fresh = fresh.into_iter();
        let mut l0 = fresh.next().unwrap_or_default();
        l0.extend(self.base.l0.iter().flatten().filter(|f| self.stays(0, f)).cloned());
        let l0 = by_bucket(&self.map, l0)?;
        let mut levels = self.base.levels.clone();
        for ((level, mut files), slot) in (1..).zip(fresh).zip(&mut levels) {
            if touched[level] {
                let kept = slot.files().iter().filter(|file| self.stays(level, file));
                files.extend(kept.cloned());
                let new = Level::new(files)
                    .map_err(|error| error.context_at(format_args!("level {level}")))?;
                *slot = Arc::new(new);
            }
        }
        let mut sizes = LevelSizes::default();
        for (at, level) in (1..).zip(&levels) {
            (sizes.real[at], sizes.compensated[at]) = (level.bytes(), level.compensated_bytes());
        }
        let options = Arc::clone(&self.options);
        let compensated = &sizes.compensated;
        let targets = level_targets(compensated, options.base_bytes(), options.level_multiplier);
        let mut scores: [f64; LEVELS] =
            std::array::from_fn(|level| sizes::score(level, compensated[level], &targets));
        let l0_layers_max = l0.iter().map(|files| layers(files)).max().unwrap_or(0);
        scores[0] = l0_layers_max as f64 / options.l0_compaction_trigger.max(1) as f64;
        let base = &levels[targets.base_level - 1];
        let due = l0_due(&self.map, &l0, base, options.l0_compaction_trigger);
        let pending_bytes = sizes::pending_bytes(&sizes, &targets, &due);
        let flushed_through = match &self.flushed_through {
            None => Arc::clone(&self.base.flushed_through),
            Some(raised) => Arc::new(raised.clone()),
        };
        let mut version = Version {
            cf: self.base.cf,
            options,
            map: Arc::clone(&self.map),
            l0,
            levels,
            flushed_through,
            targets,
            scores,
            pending_bytes,
            l0_layers_max,
            reclaimable: Vec::new(),
            referenced_mean_bytes: values.referenced_bytes() / values.referenced_records().max(1),
            values,
        };
        let may_qualify = |(level, file): &(usize, &Arc<LiveFile>)| {
            reclaimable::may_qualify(*level, file, &version.options)
        };
        let reclaimable = version.files().filter(may_qualify);
        version.reclaimable = reclaimable.map(|(level, file)| (level, Arc::clone(file))).collect();
        Ok(version)
    }
}

/// L0 files by the bucket that holds them, newest first.
fn by_bucket(map: &BucketMap, mut files: Vec<Arc<LiveFile>>) -> Result<Vec<Vec<Arc<LiveFile>>>> {
    files.sort_by_key(|file| std::cmp::Reverse((file.largest_seq, file.no)));
    let mut buckets = vec![Vec::new(); map.len()];
    for file in files {
        let bucket = map.bucket_of(&file.smallest);
        if !file.within(&map.range(bucket)) {
            return Err(impossible(format!(
                "L0 file {} (\"{}\" to \"{}\") reaches outside its bucket {bucket}",
                file.no,
                file.smallest.escape_ascii(),
                file.largest.escape_ascii()
            )));
        }
        buckets[bucket].push(file);
    }
    Ok(buckets)
}

/// The L0 files in due buckets, and the base-level files that they overlap.
fn l0_due(map: &BucketMap, l0: &[Vec<Arc<LiveFile>>], base: &Level, trigger: usize) -> DueL0 {
    let mut due = DueL0::default();
    for (bucket, files) in l0.iter().enumerate().filter(|(_, files)| layers(files) >= trigger) {
        let overlapping = total_bytes(base.overlapping(&map.range(bucket)));
        due.real = due.real.saturating_add(total_bytes(files));
        due.compensated = due.compensated.saturating_add(compensated_bytes(files));
        due.base_share = due.base_share.saturating_add(overlapping);
    }
    due
}
