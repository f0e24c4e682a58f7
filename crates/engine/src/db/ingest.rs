//! Ingestion: tables made by an `SstWriter` become part of a column family, all at once.
//!
//! The files are checked in full, then linked or copied into the directory, cut at the bucket
//! map where they would straddle L0 buckets, and installed with one fresh sequence number. Writers
//! wait only for the last step: the memtables that overlap are flushed before, and the placement
//! is decided and installed under the commit lock.
//!
//! Invariant: an ingested file lies above everything older that overlaps it. It goes to the
//! deepest level where nothing at or above overlaps it and no running compaction writes there;
//! else to L0, which takes only files within one bucket.
//!
//! What was written before an ingestion is synced before it, so that power loss cannot keep the
//! later and lose the earlier.
//!
//! Failure: nothing is visible before the manifest edit; copies that were made are removed, as are
//! after success those that were cut.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, FileNo, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions};

use crate::bucket::BucketMap;
use crate::compaction::below::{Below, range_of};
use crate::compaction::job::{CompactionSpec, Input, run_compaction};
use crate::db::checkpoint::copy;
use crate::db::commit::CommitState;
use crate::db::family::Family;
use crate::db::inner::{DbInner, State};
use crate::db::{ColumnFamily, Db};
use crate::event::Event;
use crate::file_meta::{FileMeta, sst_name};
use crate::key::KeyRange;
use crate::manifest::VersionEdit;
use crate::memtable::Shard;
use crate::options::LEVELS;
use crate::sst::read_file_meta;
use crate::stats::Ticker;
use crate::version::Version;

/// Settings of an ingestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngestOptions {
    /// Link the files instead of copying them, where the file system can. The originals may be
    /// removed afterwards but must not be written to. Default false.
    pub link: bool,
}

impl Db {
    /// Adds `files`, made by an `SstWriter`, to `cf`; their records are newer than everything
    /// that was written before, and become visible at once. Survives power loss on return.
    ///
    /// Errors: `InvalidArgument` if two of the files overlap or one is no table; `Corrupt` names a
    /// damaged one. After an error nothing was ingested.
    pub fn ingest<P: AsRef<Path>>(
        &self,
        cf: &ColumnFamily,
        files: &[P],
        options: &IngestOptions,
    ) -> Result<()> {
        self.check_family(cf)?;
        self.inner.check_open()?;
        self.inner.refuse_read_only()?;
        self.inner.health.check_writable()?;
        if files.is_empty() {
            return Ok(());
        }
        let mut taken = Vec::new();
        let result = self.inner.ingest(&cf.family, files, options, &mut taken);
        // What was not installed: everything after an error, files that were cut after success.
        if result.is_ok() || !self.inner.manifest.lock().is_unsettled() {
            for no in taken {
                // What stays is removed by the next open.
                let _ = self.inner.fs.remove(&self.inner.path_of(&sst_name(no)));
            }
        }
        result
    }
}

impl DbInner {
    fn ingest<P: AsRef<Path>>(
        &self,
        family: &Arc<Family>,
        files: &[P],
        options: &IngestOptions,
        taken: &mut Vec<FileNo>,
    ) -> Result<()> {
        let mut metas = Vec::with_capacity(files.len());
        for path in files {
            metas.push(self.take_file(path.as_ref(), options, taken)?);
        }
        self.fs.sync_dir(&self.dir)?;
        check_disjoint(&mut metas)?;
        loop {
            // Cut by the map of now; checked again under the lock.
            let version = Arc::clone(&family.current.load().version);
            let pieces = self.cut_at_buckets(family, &version, &metas, taken)?;
            if let Some(installed) = self.install_ingest(family, &version, pieces)? {
                taken.retain(|no| !installed.contains(&no.0));
                return Ok(());
            }
        }
    }

    /// Brings one file into the directory and checks it in full.
    fn take_file(
        &self,
        path: &Path,
        options: &IngestOptions,
        taken: &mut Vec<FileNo>,
    ) -> Result<FileMeta> {
        let no = self.file_numbers.allocate();
        let target: PathBuf = self.path_of(&sst_name(no));
        taken.push(no);
        let linked = options.link
            && match self.fs.link(path, &target) {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::Unsupported => false,
                Err(error) => return Err(error),
            };
        if !linked {
            copy(&*self.fs, path, &target, FileClass::Sst)?;
        }
        let context = IoContext::new(FileClass::Sst, IoPurpose::Ingest);
        let file = self.fs.open(&target, context, OpenOptions::default())?;
        read_file_meta(&file, path, no)
            .map_err(|e| e.context_at(format!("cannot ingest {}", path.display())))
    }

    /// Cuts files that would straddle buckets of L0; the others stay as they are.
    fn cut_at_buckets(
        &self,
        family: &Arc<Family>,
        version: &Version,
        metas: &[FileMeta],
        taken: &mut Vec<FileNo>,
    ) -> Result<Vec<FileMeta>> {
        let map = version.map();
        let mut pieces = Vec::with_capacity(metas.len());
        for meta in metas {
            let range = range_of(meta);
            if map.buckets_of(&range).len() == 1 || deepest_level(version, &range).is_some() {
                pieces.push(meta.clone());
                continue;
            }
            let spec = CompactionSpec {
                cf: family.id.0,
                from: 0,
                inputs: vec![Input { level: 0, meta: meta.clone() }],
                range,
                subrange: None,
                retention: self.retention(family, Below::Everything),
                output: self.output_spec(
                    family,
                    0,
                    map.boundaries().to_vec(),
                    Vec::new(),
                    meta.size_bytes,
                ),
                readahead_bytes: self.options.compaction_readahead_bytes as u32,
                direct_reads: self.options.direct_background_io,
            };
            let output = run_compaction(&spec, &self.job_context(&crate::flush::NoShards))?;
            taken.extend(output.files.iter().map(FileMeta::file_no));
            pieces.extend(output.files);
        }
        Ok(pieces)
    }

    /// Flushes the family if a memtable may hold keys of the files (commit lock held, so that no
    /// write comes in between).
    fn flush_overlapping(
        &self,
        commit: &mut CommitState,
        family: &Arc<Family>,
        pieces: &[FileMeta],
    ) -> Result<()> {
        let current = family.current.load_full();
        let holds = |map: &BucketMap, bucket: usize, shard: &Shard| {
            let any = shard.entries() > 0 || shard.has_tombstones();
            any && pieces.iter().any(|meta| meta.overlaps(&map.range(bucket)))
        };
        let active = &current.active;
        let mut overlaps =
            active.shards.iter().enumerate().any(|(at, shard)| holds(&active.map, at, shard));
        for immutable in &current.immutables {
            let shards = immutable.shards.iter().enumerate();
            overlaps |= shards
                .filter_map(|(at, shard)| Some((at, shard.as_ref()?)))
                .any(|(at, shard)| holds(&immutable.map, at, shard));
        }
        if !overlaps {
            return Ok(());
        }
        self.seal_active(commit, family);
        while !family.current.load().immutables.is_empty() {
            family.check_alive()?;
            if self.state.lock().leave_log {
                return Err(Error::busy(
                    "the log has to be left after an earlier error before files can be ingested;                      try again",
                ));
            }
            self.progress_or_step()?;
        }
        Ok(())
    }

    /// Places and installs the files; their numbers, or `None` if something changed so that the
    /// caller has to cut again.
    fn install_ingest(
        &self,
        family: &Arc<Family>,
        cut_by: &Version,
        mut pieces: Vec<FileMeta>,
    ) -> Result<Option<Vec<u64>>> {
        let mut commit = self.committer.lock();
        self.committer.wait_all_visible(&commit);
        family.check_alive()?;
        let current = family.current.load_full();
        if current.version.map().epoch() != cut_by.map().epoch() {
            return Ok(None);
        }
        self.flush_overlapping(&mut commit, family, &pieces)?;
        // The files survive power loss from here on: what was written before must do so too.
        self.sync_log(commit.last_seq)?;
        let mut manifest = self.manifest.lock();
        let version = Arc::clone(&family.current.load().version);
        let seq = commit.last_seq.next();
        let mut edit = VersionEdit::new();
        let mut levels = Vec::with_capacity(pieces.len());
        {
            let state = self.state.lock();
            for piece in &mut pieces {
                let Some(level) = place(&version, &state, family, piece) else { return Ok(None) };
                (piece.global_seq, piece.smallest_seq, piece.largest_seq) =
                    (Some(seq.0), seq.0, seq.0);
                edit.add_file(family.id, level, piece.clone());
                levels.push((piece.file_no(), level as u8));
            }
        }
        edit.push(crate::manifest::Change::LastSeq(seq));
        let built = manifest.apply(edit)?;
        self.republish_built(&mut self.state.lock(), built);
        drop(manifest);
        commit.last_seq = seq;
        self.committer.set_visible(seq);
        drop(commit);
        for (no, level) in levels {
            let context = IoContext::sst(IoPurpose::Ingest, level).of_family(family.id.0);
            self.fs.reassign(&self.path_of(&sst_name(no)), context);
        }
        let bytes = pieces.iter().map(|meta| meta.size_bytes).sum();
        self.stats.add(Ticker::IngestBytes, bytes);
        let files: Vec<u64> = pieces.iter().map(|meta| meta.no).collect();
        self.listeners.tell(&Event::Ingested { cf: family.id, files: files.clone() });
        self.recompute_stall(family);
        self.wake();
        Ok(Some(files))
    }
}

/// The deepest level to which a file over `range` can go without passing something that overlaps;
/// `None` if that is L0.
fn deepest_level(version: &Version, range: &KeyRange) -> Option<usize> {
    let l0 = version
        .map()
        .buckets_of(range)
        .any(|bucket| version.l0(bucket).iter().any(|file| file.overlaps(range)));
    if l0 {
        return None;
    }
    let first_taken =
        (1..LEVELS).find(|&level| !version.overlapping(level, range).is_empty()).unwrap_or(LEVELS);
    let deepest = first_taken - 1;
    (deepest >= version.base_level()).then_some(deepest)
}

/// Where a file goes; `None` if it has to be cut first.
fn place(version: &Version, state: &State, family: &Family, meta: &FileMeta) -> Option<usize> {
    let range = range_of(meta);
    let written = |level: usize| {
        state
            .compactions()
            .iter()
            .any(|job| job.cf == family.id && job.to >= level && job.range.overlaps(&range))
    };
    if let Some(deepest) = deepest_level(version, &range)
        && !written(0)
        && deepest > 0
    {
        return Some(deepest);
    }
    (version.map().buckets_of(&range).len() == 1).then_some(0)
}

/// Sorts the files by key; refuses if two overlap.
fn check_disjoint(metas: &mut [FileMeta]) -> Result<()> {
    metas.sort_by(|a, b| a.smallest.cmp(&b.smallest));
    for pair in metas.windows(2) {
        if pair[0].overlaps_file(&pair[1]) {
            return Err(Error::invalid(format!(
                "the files to ingest overlap: one ends at \"{}\", the next starts at \"{}\"",
                pair[0].largest.escape_ascii(),
                pair[1].smallest.escape_ascii()
            )));
        }
    }
    let empty = metas.iter().any(|meta| meta.entries == 0 && meta.range_deletions == 0);
    if empty {
        return Err(Error::invalid("a file to ingest has no records"));
    }
    Ok(())
}
