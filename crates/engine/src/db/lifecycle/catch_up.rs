//! Read-only databases: the state that they show, and how they follow a writer.
//!
//! A read-only open takes no lock, so another handle or another process may write to the database
//! at the same time. The read-only handle shows a *picture*: the tables that the manifest named at
//! one moment, and the records of the log up to that moment.
//! [`Db::catch_up`](crate::db::Db::catch_up) replaces the picture by a newer one. The open reads
//! the first picture in the same way.
//!
//! A picture keeps the descriptors of its tables and value files, at most `table_readers_max`. So
//! the writer can remove these files without harm to reads, iterators and snapshots of the picture.
//! A read may need a file beyond that number that the writer has removed. If it reads the newest
//! state, it catches up and is repeated. A read of a snapshot or an iterator cannot be repeated: it
//! fails with `Fenced`.
//!
//! A new picture is read in three steps: 1. evidence and manifest ([`VersionSet::recover`]); 2. the
//! descriptors of the tables and value files; 3. the log from the manifest's floor on, into
//! memtables of the picture. The writer goes on meanwhile. So a picture counts only if the
//! manifest, read again after the log, proves two things. First, the log floor did not pass a
//! segment before that segment was read, because a segment below the floor may be overwritten.
//! Second, no ingestion, creation or drop of a family followed step 1, because the log could have
//! later writes, but not that change. If the proof fails, the steps are repeated. They are also
//! repeated after an error while the directory changes.
//!
//! Invariants:
//! 1. A picture is a prefix of the commit order of the writes that are in the log. It has every
//!    such write that returned before the picture was begun. Writes without the log appear once
//!    they are flushed.
//! 2. The visible sequence number never lies below that of a picture. It is raised before the
//!    picture is published, so that a reader that finds the picture reads all of it.
//! 3. A read-only database writes and removes no file.
//!
//! Thread-safety: any thread may call any method. One thread catches up at a time, and readers do
//! not wait for it.
//! Failure: the old picture stays.
//! Cost: one read of the manifest, one read of the log from its floor on, and one open for each new
//! table. The records of that log stay in memory, and no setting bounds them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::{CfId, Error, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::{
    DirEntry, FileClass, FileSystem, IoContext, IoPurpose, OpenOptions, RandomFile,
};
use parking_lot::{Condvar, Mutex};

use crate::db::inner::DbInner;
use crate::db::lifecycle::open::{self, check_known};
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::memtable::Memtable;
use crate::db::state::storage::Storage;
use crate::db::write::{log_segments, seal};
use crate::file_meta::{sst_name, value_file_name};
use crate::key::Kind;
use crate::live_file::{LiveFile, LiveValueFile};
use crate::lock_order::Order;
use crate::manifest::{Change, VersionEdit, VersionSet};
use crate::options::CfOptions;
use crate::version::Version;
use crate::wal::{BatchOp, BatchView, LogChain};

/// Largest number of attempts at a picture while the writer changes the files.
const ATTEMPTS_MAX: usize = 200;
/// Number of repeated attempts that fail in the same way, with no change in the directory, before
/// the error counts.
const SAME_FAILURES_MAX: usize = 5;
/// Pause before an attempt is repeated, so that a writer can end the step that it is in.
const PAUSE: Duration = Duration::from_millis(2);

/// A family of a picture that is not published yet.
struct NewFamily {
    id: CfId,
    name: String,
    version: Arc<Version>,
    memtable: Arc<Memtable>,
}

/// A picture that is not published yet.
struct Picture {
    manifest: VersionSet,
    families: Vec<NewFamily>,
    last_seq: SeqNo,
    log_records: u64,
}

/// Reason for which a picture does not count.
pub(crate) enum Unusable {
    /// The writer has changed the files during the read.
    Overtaken,
    /// The read failed: a file is damaged, or the writer was in the middle of a step.
    Failed(Error),
}

impl From<Error> for Unusable {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Reads and publishes the state that the writer has reached. Does nothing for a database that
/// takes writes.
pub(crate) fn catch_up(db: &DbInner) -> Result<()> {
    if !db.context.options().read_only {
        return Ok(());
    }
    let _turn = db.view.pictures().lock_turn();
    take_new_picture(db)
}

/// Reads and publishes a picture (turn held).
pub(crate) fn take_new_picture(db: &DbInner) -> Result<()> {
    let picture = while_changing(&**db.storage.fs(), db.storage.dir(), || read_picture(db))?;
    publish_picture(db, picture)
}

/// Attempts once to read a picture.
fn read_picture(db: &DbInner) -> std::result::Result<Picture, Unusable> {
    let fs = Arc::clone(db.storage.fs());
    let mut manifest =
        VersionSet::recover(fs, db.storage.dir(), true, Arc::clone(db.storage.trash()))?;
    hold_tables(&db.context, &db.storage, &db.view, &manifest)?;
    let families: Vec<NewFamily> = manifest
        .column_families()
        .map(|(id, name, version)| NewFamily {
            id,
            name: name.to_owned(),
            version: Arc::clone(version),
            memtable: db.writes.new_memtable(&db.context, version, &[]),
        })
        .collect();
    let floor = manifest.log_floor();
    let segments = log_segments::listed_segments(&db.storage, floor)?;
    let mut replay =
        PictureReplay { families: &families, next_cf: manifest.next_cf_id(), last: SeqNo::ZERO };
    let mut since = Vec::new();
    let mut overtaken = false;
    let chain = LogChain {
        segments: &segments,
        floor,
        mode: db.context.options().recovery_mode,
        database_id: db.storage.database_id(),
    };
    let mut visit = |first: SeqNo, batch: BatchView<'_>| replay.apply(first, batch.iter());
    let mut after = |segment: FileNo| {
        match manifest.edits_since()? {
            Some(edits) => since.extend(edits),
            None => overtaken = true,
        }
        overtaken |= passed_by(&since, segment);
        match overtaken {
            true => Err(Error::busy("the writer has overtaken the read of its log")),
            false => Ok(()),
        }
    };
    let recovered = crate::wal::recover_beside(&**db.storage.fs(), &chain, &mut visit, &mut after);
    let last = replay.last;
    if overtaken {
        return Err(Unusable::Overtaken);
    }
    let recovered = recovered?;
    open::check_log(&db.storage, &manifest, floor, &recovered)?;
    match manifest.edits_since()? {
        Some(edits) => since.extend(edits),
        None => return Err(Unusable::Overtaken),
    }
    if since.iter().any(is_no_write_of_the_log) {
        return Err(Unusable::Overtaken);
    }
    let last_seq = last.max(recovered.last_seq.unwrap_or_default()).max(manifest.last_seq());
    let log_records = recovered.segments.iter().map(|segment| segment.records).sum();
    Ok(Picture { manifest, families, last_seq, log_records })
}

/// Opens the tables and value files of `manifest`, at most `table_readers_max` of them, and keeps
/// them open. Files of the last picture are not opened again.
fn hold_tables(
    context: &Context,
    storage: &Storage,
    view: &ReadView,
    manifest: &VersionSet,
) -> Result<()> {
    let mut known: HashMap<[u8; 16], Arc<dyn RandomFile>> = HashMap::new();
    for family in view.live_families() {
        for file in holdable(&family.current.load().version) {
            if let Some(handle) = file.held() {
                known.insert(*file.unique_id(), handle);
            }
        }
    }
    let options = OpenOptions { direct: context.options().direct_reads };
    let files = manifest.column_families().flat_map(|(_, _, version)| holdable(version));
    for file in files.take(context.options().table_readers_max) {
        let handle = match known.remove(file.unique_id()) {
            Some(handle) => handle,
            None => {
                let io = IoContext::new(file.class(), IoPurpose::ForegroundRead);
                match storage.fs().open(&storage.path_of(&file.name()), io, options) {
                    Ok(handle) => handle,
                    Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
                    // The process may be out of descriptors. Reads open the remaining files when
                    // they need them.
                    Err(error) => {
                        tracing::warn!(%error, "not every table is held open");
                        break;
                    }
                }
            }
        };
        file.hold(handle);
    }
    Ok(())
}

/// A file that a picture keeps open.
enum HeldFile<'a> {
    Table(&'a LiveFile),
    Values(&'a LiveValueFile),
}

/// The tables of a version, then its value files.
fn holdable(version: &Version) -> impl Iterator<Item = HeldFile<'_>> {
    let tables = version.files().map(|(_, file)| HeldFile::Table(file));
    tables.chain(version.values().files().map(|(file, _)| HeldFile::Values(file)))
}

impl HeldFile<'_> {
    fn unique_id(&self) -> &[u8; 16] {
        match self {
            Self::Table(file) => &file.unique_id,
            Self::Values(file) => &file.unique_id,
        }
    }

    fn class(&self) -> FileClass {
        match self {
            Self::Table(_) => FileClass::Sst,
            Self::Values(_) => FileClass::ValueSst,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Table(file) => sst_name(file.file_no()),
            Self::Values(file) => value_file_name(file.file_no()),
        }
    }

    fn held(&self) -> Option<Arc<dyn RandomFile>> {
        match self {
            Self::Table(file) => file.held(),
            Self::Values(file) => file.held(),
        }
    }

    fn hold(&self, handle: Arc<dyn RandomFile>) {
        match self {
            Self::Table(file) => file.hold(handle),
            Self::Values(file) => file.hold(handle),
        }
    }
}

fn publish_picture(db: &DbInner, picture: Picture) -> Result<()> {
    let mut fresh = Vec::new();
    for new in &picture.families {
        let known = db.view.family(new.id).filter(|family| family.name == new.name);
        if known.is_none() {
            let stored = CfOptions::clone(new.version.options());
            let options = db.context.family_overrides().get(&new.name).cloned().unwrap_or(stored);
            let first = super_version(new);
            fresh.push(Family::new(
                new.id,
                new.name.clone(),
                options,
                db.context.registry(),
                first,
            )?);
        }
    }
    let _publishing = db.view.pictures().lock_publishing();
    db.writes.committer().start_at(&db.view, picture.last_seq.max(db.view.visible()));
    let mut manifest = db.storage.lock_manifest(Order::none());
    let mut state = db.jobs.lock(manifest.order());
    for family in db.view.live_families() {
        let is_same = |new: &&NewFamily| new.id == family.id && new.name == family.name;
        match picture.families.iter().find(is_same) {
            Some(new) => db.view.publish(&mut state, &family, super_version(new)),
            None => {
                family.dropped.store(true, Ordering::Release);
                db.view.set_family(family.id, None);
                seal::empty_family(&db.context, &db.view, &db.writes, &mut state, &family);
            }
        }
    }
    for family in fresh {
        db.view.set_family(family.id, Some(family));
    }
    drop(state);
    // A checkpoint of this handle makes further tables. Their numbers must not be those of the
    // picture's tables.
    db.storage.file_numbers().raise(picture.manifest.file_numbers().next());
    *manifest = picture.manifest;
    db.view.pictures().note_published(picture.log_records);
    Ok(())
}

fn super_version(new: &NewFamily) -> SuperVersion {
    SuperVersion::new(Arc::clone(&new.memtable), Arc::clone(&new.version))
}

/// Whether one of `edits` allows the writer to overwrite `segment`.
fn passed_by(edits: &[VersionEdit], segment: FileNo) -> bool {
    let mut changes = edits.iter().flat_map(|edit| &edit.changes);
    changes.any(|change| matches!(change, Change::LogFloor(floor) if *floor > segment))
}

/// Whether `edit` changes the content of the database without a record in the log.
fn is_no_write_of_the_log(edit: &VersionEdit) -> bool {
    edit.changes.iter().any(|change| match change {
        Change::CreateCf { .. } | Change::DropCf { .. } => true,
        Change::AddFile { meta, .. } => meta.global_seq.is_some(),
        _ => false,
    })
}

/// Repeats `attempt` until it succeeds. An error counts only after several attempts that fail in
/// the same way with no change in `dir`.
pub(crate) fn while_changing<T>(
    fs: &dyn FileSystem,
    dir: &Path,
    attempt: impl Fn() -> std::result::Result<T, Unusable>,
) -> Result<T> {
    let mut same = 0;
    let mut last: Option<(String, Vec<DirEntry>)> = None;
    for _ in 0..ATTEMPTS_MAX {
        let error = match attempt() {
            Ok(value) => return Ok(value),
            Err(Unusable::Overtaken) => continue,
            Err(Unusable::Failed(error)) => error,
        };
        if ![ErrorKind::Corrupt, ErrorKind::NotFound].contains(&error.kind()) {
            return Err(error);
        }
        let now = (error.to_string(), fs.list(dir)?);
        same = if last.as_ref() == Some(&now) { same + 1 } else { 0 };
        if same >= SAME_FAILURES_MAX {
            return Err(error);
        }
        last = Some(now);
        pause();
    }
    Err(Error::busy(format!(
        "{}: its writer replaced manifest and log {ATTEMPTS_MAX} times while they were read: try \
         again, or make a checkpoint and open that",
        dir.display()
    )))
}

/// Waits for [`PAUSE`]. No thread ends the wait early.
fn pause() {
    let (lock, never) = (Mutex::new(()), Condvar::new());
    never.wait_for(&mut lock.lock(), PAUSE);
}

/// The log's records on their way into the memtables of a picture.
struct PictureReplay<'a> {
    families: &'a [NewFamily],
    next_cf: CfId,
    last: SeqNo,
}

impl PictureReplay<'_> {
    fn apply<'b>(
        &mut self,
        first_seq: SeqNo,
        ops: impl Iterator<Item = Result<BatchOp<'b>>>,
    ) -> Result<()> {
        let mut seq = first_seq;
        for op in ops {
            let op = op?;
            self.last = self.last.max(seq);
            check_known(op.cf, self.next_cf)?;
            // A family that was dropped after the write is not shown.
            if let Some(family) = self.families.iter().find(|family| family.id == op.cf) {
                apply_one(family, seq, &op);
            }
            seq = SeqNo(seq.0 + 1);
        }
        Ok(())
    }
}

fn apply_one(family: &NewFamily, seq: SeqNo, op: &BatchOp<'_>) {
    let flushed = family.version.flushed_through();
    if op.kind != Kind::RangeDelete {
        if flushed.get(op.key) < seq {
            family.memtable.insert(seq, op.kind, op.key, op.value, None);
        }
        return;
    }
    for (start, end) in flushed.parts_below(seq, op.key, op.value) {
        family.memtable.insert(seq, op.kind, start, end, None);
    }
}
