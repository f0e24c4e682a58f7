//! Ingestion: tables made by an `SstWriter` become part of a column family in one step.
//!
//! The files are linked or copied into the directory and checked in full. Files that the family
//! cannot hold are refused ([`check_ingestible`]). A file that would lie in several L0 buckets is
//! cut at the bucket map. All files are installed with one new sequence number. All values of an
//! ingestion are inline; a compaction separates them. Writers wait only for the last step, which
//! holds the commit lock. It flushes the family if a memtable overlaps, and then chooses the levels
//! and installs the files under the manifest lock.
//!
//! Invariants:
//! 1. An ingested file lies above everything older that overlaps it. It goes to the deepest level
//!    for which no file at this level or above overlaps it, if no compaction runs over its keys.
//!    Otherwise it goes to L0, which takes only files within one bucket.
//! 2. From the choice of the levels until the install the ingestion is among the running jobs
//!    ([`RunningKind::Ingestion`]), with the keys and the level of each file. It is added under the
//!    same hold of the jobs lock in which the levels are chosen, and removed also after an error.
//!    So no compaction is picked meanwhile that would write the same keys of the same level, and no
//!    map change that would cut a file. A flush cannot collide: no memtable holds keys of the
//!    files, and the commit lock lets no write in.
//! 3. Only one ingestion at a time is between these two points, because it holds the manifest lock.
//! 4. The files are in the current version before their sequence number is visible, as the records
//!    of a write are in a memtable before theirs is. So a snapshot that sees the number finds them
//!    in every version that it reads.
//!
//! An ingestion syncs the writes before it, so that power loss cannot keep the ingestion and lose
//! an earlier write.
//!
//! Failure: nothing is visible before the manifest edit. Files that were taken and not installed
//! are removed, and so are files that were cut, after a success. If the edit could not be written,
//! the next open may find it. Then the files stay, and the sequence number is not given out again.
//! An ingestion that a close overtakes fails with `Closed`.
//! Cost: two reads of each file, a copy where it cannot be linked, a flush of the family if a
//! memtable overlaps, one log sync and one edit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions};

use crate::bucket::BucketMap;
use crate::compaction::job::{CompactionSpec, Input, run_compaction};
use crate::db::admin::checkpoint::copy;
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::job_specs::{self, OutputPlan};
use crate::db::background::{leave_log, scheduler, space};
use crate::db::inner::DbInner;
use crate::db::state::away::StayHome;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::memtable::Immutable;
use crate::db::state::running_jobs::RunningKind;
use crate::db::state::storage::Storage;
use crate::db::write::commit_state::CommitGuard;
use crate::db::write::stalling::StallOwners;
use crate::db::write::{self, seal, stalling};
use crate::event::Event;
use crate::file_meta::{FileMeta, sst_name};
use crate::gc::space_plan::SpaceEvent;
use crate::job::NoShards;
use crate::job::below::{Below, range_of};
use crate::job::spec::{OutputSpec, ValueSpec};
use crate::key::KeyRange;
use crate::lock_order::{ManifestLock, Order};
use crate::manifest::{Change, VersionEdit};
use crate::options::LEVELS;
use crate::sst::{ForeignTable, read_foreign_table};
use crate::stats::Ticker;
use crate::version::{Running, Version};

/// Settings of an ingestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngestOptions {
    /// Whether the files are linked instead of copied, if the file system can. The originals may be
    /// removed afterwards but must not be written to. Default false.
    pub link: bool,
}

/// Files that an ingestion has brought into the directory and not installed. The drop removes them,
/// unless the outcome of an edit is unknown.
struct Taken<'a> {
    storage: &'a Storage,
    files: Vec<FileNo>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.storage.lock_manifest(Order::none()).is_unsettled() {
            return;
        }
        for no in &self.files {
            // The next open removes a file that stays.
            let _ = self.storage.fs().remove(&self.storage.path_of(&sst_name(*no)));
        }
    }
}

/// An ingestion among the running jobs. The drop ends it.
struct RunningIngestion<'a> {
    jobs: &'a Jobs,
    /// It begins and ends while the manifest lock is held.
    order: Order<ManifestLock>,
    job_id: u64,
    /// Level of each file.
    levels: Vec<usize>,
}

impl Drop for RunningIngestion<'_> {
    fn drop(&mut self) {
        self.jobs.lock(self.order).end(self.job_id);
        self.jobs.notify_progress();
        self.jobs.wake();
    }
}

pub(crate) fn ingest<P: AsRef<Path>>(
    db: &DbInner,
    family: &Arc<Family>,
    files: &[P],
    options: &IngestOptions,
) -> Result<()> {
    let numbers = JobNumbers::new(db.job_owners(), Order::none());
    let mut taken = Taken { storage: &db.storage, files: Vec::new() };
    let mut metas = Vec::with_capacity(files.len());
    for path in files {
        metas.push(take_file(&numbers, family, path.as_ref(), options, &mut taken.files)?);
    }
    db.storage.fs().sync_dir(db.storage.dir())?;
    check_disjoint(&mut metas)?;
    leave_log::leave_log_before_sync(db)?;
    loop {
        // The files are cut at the present map. The map is checked again under the lock.
        let version = Arc::clone(&family.current.load().version);
        let pieces = cut_at_buckets(&numbers, family, &version, &metas, &mut taken.files)?;
        if let Some(installed) = install_ingest(db, family, &version, pieces)? {
            numbers.note_installed();
            taken.files.retain(|no| !installed.contains(&no.0));
            return Ok(());
        }
    }
}

/// Brings one file into the directory and checks it in full.
fn take_file(
    numbers: &JobNumbers<'_>,
    family: &Family,
    path: &Path,
    options: &IngestOptions,
    taken: &mut Vec<FileNo>,
) -> Result<FileMeta> {
    let storage = numbers.owners().storage;
    let no = FileNo(numbers.reserve(1)?.first);
    let target: PathBuf = storage.path_of(&sst_name(no));
    taken.push(no);
    let linked = options.link
        && match storage.fs().link(path, &target) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::Unsupported => false,
            Err(error) => return Err(error),
        };
    if !linked {
        copy(&**storage.fs(), path, &target, FileClass::Sst)?;
    }
    let context = IoContext::new(FileClass::Sst, IoPurpose::Ingest);
    let file = storage.fs().open(&target, context, OpenOptions::default())?;
    let refused = |e: Error| e.context_at(format!("cannot ingest {}", path.display()));
    let table = read_foreign_table(&file, path, no).map_err(refused)?;
    check_ingestible(family, &table).map_err(refused)?;
    Ok(table.meta)
}

/// Cuts files that would lie in several buckets of L0 now. The other files stay as they are.
fn cut_at_buckets(
    numbers: &JobNumbers<'_>,
    family: &Arc<Family>,
    version: &Version,
    metas: &[FileMeta],
    taken: &mut Vec<FileNo>,
) -> Result<Vec<FileMeta>> {
    let owners = numbers.owners();
    let compactions = owners.jobs.lock(Order::none()).running().compactions();
    let mut pieces = Vec::with_capacity(metas.len());
    for meta in metas {
        // With any other condition than that of the install, the caller would repeat the cut
        // without an end while a compaction runs.
        if place(version, &compactions, family, meta).is_some() {
            pieces.push(meta.clone());
            continue;
        }
        let range = range_of(meta);
        let cuts = version.map().boundaries().to_vec();
        let plan = OutputPlan::l0(cuts, meta.size_bytes);
        let output = job_specs::output_spec(numbers, family, plan)?;
        // A cut writes the same records again. A later compaction separates their values.
        let output = OutputSpec { values: ValueSpec::default(), ..output };
        let spec = CompactionSpec {
            cf: family.id.0,
            from: 0,
            inputs: vec![Input { level: 0, meta: meta.clone() }],
            range,
            subrange: None,
            retention: job_specs::retention(owners.context, owners.view, family, Below::Everything),
            output,
            readahead_bytes: owners.context.options().compaction_readahead_bytes as u32,
            direct_reads: owners.context.options().direct_background_io,
        };
        let output = run_compaction(&spec, &job_specs::job_context(owners, &NoShards))?;
        taken.extend(output.files.iter().map(FileMeta::file_no));
        pieces.extend(output.files);
    }
    Ok(pieces)
}

/// Flushes the family's shards at memory nodes and keeps the others here, so that nothing waits for
/// a node under the commit lock. If no memtable overlaps the files, nothing is flushed.
fn flush_away(db: &DbInner, family: &Arc<Family>, pieces: &[FileMeta]) -> Result<Option<StayHome>> {
    let Some(away) = db.context.away() else { return Ok(None) };
    if !has_overlap(&family.current.load(), pieces) {
        return Ok(None);
    }
    let home = away.stay_home(family.id);
    while has_away(&db.jobs.lock(Order::none()), family) {
        family.check_alive()?;
        leave_log::leave_log_before_sync(db)?;
        scheduler::progress_or_step(db, Order::none())?;
    }
    Ok(Some(home))
}

/// Whether a shard of the family is at a memory node, or is being sent. While shards must stay,
/// `false` does not change to `true`: a send begins under the same lock, and only if shards may
/// leave.
fn has_away(state: &JobState, family: &Family) -> bool {
    let mut homes = state.sealed_of(family.id).flat_map(|sealed| sealed.view().homes());
    let is_send = |kind: &RunningKind| matches!(kind, RunningKind::Send { cf } if *cf == family.id);
    homes.any(|home| home.away().is_some()) || state.running().has(is_send)
}

/// Whether a memtable may hold keys of the files.
fn has_overlap(current: &SuperVersion, pieces: &[FileMeta]) -> bool {
    let holds = |map: &BucketMap, bucket: usize, is_filled: bool| {
        is_filled && pieces.iter().any(|meta| meta.overlaps(&map.range(bucket)))
    };
    let active = &current.active;
    let active = Immutable::of(active);
    let immutables = current.immutables.iter().map(|immutable| &**immutable);
    let overlaps = std::iter::once(&active).chain(immutables).any(|memtable| {
        let homes = memtable.homes.iter().enumerate();
        let mut filled = homes.filter_map(|(at, home)| Some((at, home.as_ref()?.is_filled())));
        filled.any(|(at, is_filled)| holds(&memtable.map, at, is_filled))
    });
    // Written shards have left the memtables, but are not yet in the version by which the levels
    // are chosen.
    overlaps || !Arc::ptr_eq(&current.version, &current.readable)
}

/// Flushes all memtables of the family (commit lock held, so that no write comes in between).
fn flush_all(db: &DbInner, commit: &mut CommitGuard<'_>, family: &Arc<Family>) -> Result<()> {
    seal::seal_active(db, commit, family);
    while !family.current.load().immutables.is_empty() {
        family.check_alive()?;
        if db.logs.must_leave() {
            return Err(Error::busy(
                "the log has to be left after an earlier error before files can be ingested; \
                 try again",
            ));
        }
        scheduler::progress_or_step(db, commit.order())?;
    }
    Ok(())
}

/// Chooses the levels of the files and installs them. Returns their numbers; `None` if something
/// has changed so that the caller has to cut the files again.
fn install_ingest(
    db: &DbInner,
    family: &Arc<Family>,
    cut_by: &Version,
    mut pieces: Vec<FileMeta>,
) -> Result<Option<Vec<u64>>> {
    let _home = flush_away(db, family, &pieces)?;
    let mut commit = db.writes.committer().lock(Order::none());
    db.writes.committer().wait_all_visible(&db.view, &commit);
    family.check_alive()?;
    let current = family.current.load_full();
    if current.version.map().epoch() != cut_by.map().epoch() {
        return Ok(None);
    }
    if has_overlap(&current, &pieces) {
        if has_away(&db.jobs.lock(commit.order()), family) {
            // An overlapping write has arrived meanwhile.
            return Ok(None);
        }
        flush_all(db, &mut commit, family)?;
    }
    // The ingested files will survive power loss, so everything that was written before must
    // survive it too.
    write::sync_log(db, commit.last_seq(), commit.order())?;
    let mut manifest = db.storage.lock_manifest(commit.order());
    let version = Arc::clone(&family.current.load().version);
    let Some(mut job) = start_ingestion(&db.jobs, family, &version, &pieces, manifest.order())
    else {
        return Ok(None);
    };
    db.context.fault_point("ingest.before_install")?;
    let seq = commit.last_seq().next();
    let edit = edit_of(family, &mut pieces, &job.levels, seq);
    let built = manifest.apply(edit);
    let is_installed = built.is_ok();
    if is_installed || manifest.is_unsettled() {
        // The manifest has the number, or may have it. So no write gets it.
        commit.set_last_seq(seq);
        if let Ok(built) = &built {
            let mut state = db.jobs.lock(manifest.order());
            db.view.republish_built(&mut state, built.clone());
            let event = Some(SpaceEvent::Ingestion);
            space::note_install(db.space_owners(), &mut state, family, event);
            drop(state);
            for piece in &pieces {
                commit.recent_mut().note_range(family.id, &piece.smallest, &piece.largest);
            }
            // The files are installed, so an error of the fault point changes nothing.
            let _ = db.context.fault_point("ingest.before_visible");
        }
        db.view.publication().set(seq.0);
    }
    built?;
    let levels = std::mem::take(&mut job.levels);
    drop((job, manifest, commit));
    tell_ingestion(db.stall_owners(), &db.storage, family, &pieces, &levels);
    Ok(Some(pieces.iter().map(|meta| meta.no).collect()))
}

/// Chooses the level of each file and adds the ingestion to the running jobs, as one step. `None`
/// if a file has to be cut first. The manifest lock is held, so that `version` stays the newest.
fn start_ingestion<'a>(
    jobs: &'a Jobs,
    family: &Family,
    version: &Version,
    pieces: &[FileMeta],
    order: Order<ManifestLock>,
) -> Option<RunningIngestion<'a>> {
    let mut state = jobs.lock(order);
    let compactions = state.running().compactions();
    let place = |piece: &FileMeta| place(version, &compactions, family, piece);
    let levels: Vec<usize> = pieces.iter().map(place).collect::<Option<_>>()?;
    let claim = |(piece, &to): (&FileMeta, &usize)| Running {
        cf: family.id,
        range: range_of(piece),
        from: 0,
        to,
        files: Vec::new(),
    };
    let claims = pieces.iter().zip(&levels).map(claim).collect();
    let job_id = state.start(RunningKind::Ingestion(claims));
    drop(state);
    Some(RunningIngestion { jobs, order, job_id, levels })
}

/// Counts an installed ingestion, tells the file system the levels of its files, and sends an
/// event.
fn tell_ingestion(
    owners: StallOwners<'_>,
    storage: &Storage,
    family: &Family,
    pieces: &[FileMeta],
    levels: &[usize],
) {
    for (piece, &level) in pieces.iter().zip(levels) {
        let context = IoContext::sst(IoPurpose::Ingest, level as u8).of_family(family.id.0);
        storage.fs().reassign(&storage.path_of(&sst_name(piece.file_no())), context);
    }
    let bytes = pieces.iter().map(|meta| meta.size_bytes).sum();
    owners.observers.stats().add(Ticker::IngestBytes, bytes);
    let files = pieces.iter().map(|meta| meta.no).collect();
    owners.observers.tell(&Event::Ingested { cf: family.id, files });
    stalling::recompute_stall(owners, family);
}

/// The edit that adds the files to their levels, every record with the sequence number `seq`.
fn edit_of(family: &Family, pieces: &mut [FileMeta], levels: &[usize], seq: SeqNo) -> VersionEdit {
    let mut edit = VersionEdit::new();
    for (piece, &level) in pieces.iter_mut().zip(levels) {
        (piece.global_seq, piece.smallest_seq, piece.largest_seq) = (Some(seq.0), seq.0, seq.0);
        edit.add_file(family.id, level, piece.clone());
    }
    edit.push(Change::LastSeq(seq));
    edit
}

/// The deepest level to which a file over `range` can go without passing a file that overlaps it;
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

/// Level for a file while `compactions` run; `None` if the file has to be cut first.
fn place(
    version: &Version,
    compactions: &[Running],
    family: &Family,
    meta: &FileMeta,
) -> Option<usize> {
    let range = range_of(meta);
    let is_busy =
        || compactions.iter().any(|job| job.cf == family.id && job.range.overlaps(&range));
    if let Some(deepest) = deepest_level(version, &range)
        && !is_busy()
    {
        return Some(deepest);
    }
    (version.map().buckets_of(&range).len() == 1).then_some(0)
}

/// Refuses a table that `family` cannot hold. Otherwise every read or compaction that meets its
/// records would fail.
fn check_ingestible(family: &Family, table: &ForeignTable) -> Result<()> {
    let properties = &table.properties;
    if !properties.refs.is_empty() {
        return Err(Error::invalid(format!(
            "{} of its records refer to values in the value files of another database, which an \
             ingestion cannot bring along: write the records with their values into a new file with \
             an SstWriter, or copy the whole database with a checkpoint",
            properties.refs.records()
        )));
    }
    let (first, last) = (properties.smallest_seq, properties.largest_seq);
    if !properties.for_ingestion || (first, last) != (0, 0) {
        return Err(Error::invalid(format!(
            "it was not made by an SstWriter; it is a table of a database (column family \"{}\") \
             whose sequence numbers, {first} to {last}, mean nothing in another one: write its \
             records into a new file with an SstWriter, or copy the whole database with a checkpoint",
            properties.cf_name
        )));
    }
    if let Some(unfit) = &table.unfit {
        return Err(Error::invalid(format!("{unfit}: write the file anew with an SstWriter")));
    }
    if !properties.cf_name.is_empty() && properties.cf_name != family.name {
        return Err(Error::invalid(format!(
            "it was made for column family \"{}\", not for \"{}\": ingest it there, or write it \
             again with TableOptions::cf_name empty or \"{}\"",
            properties.cf_name, family.name, family.name
        )));
    }
    if properties.content.merges > 0 && family.merge.is_none() {
        return Err(Error::invalid(format!(
            "it has {} merge operands, and column family \"{}\" has no merge operator: open the \
             family with the merge_operator that they are for, or write values",
            properties.content.merges, family.name
        )));
    }
    Ok(())
}

/// Sorts the files by key. Refuses files that overlap or have no records.
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
