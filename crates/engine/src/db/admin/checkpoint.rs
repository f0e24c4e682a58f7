//! Checkpoints: a second database with the same content, made while the database runs.
//!
//! A checkpoint holds exactly what one *moment* of the commit order held. The moment consists of
//! the last sequence number and the super version of each family. It is taken under the commit
//! lock, once every write with a sequence number is visible. The creation and the drop of a family
//! and the last step of an ingestion hold the same lock, so a moment lies before or after them.
//! Flushes and compactions that are installed later have no effect, because the super versions keep
//! their memtables and files until the export is done.
//!
//! The export links the tables, value files and invalid files where the file system can (they are
//! immutable), and copies them otherwise. All keep their numbers, so that references and their
//! hints stay true. It writes the records of memtables to L0 tables of its own, without the records
//! of later writes. So a checkpoint has no log, and does not depend on the log of the original: on
//! writes without the log, on segments that are rotated, reused or removed, or on a log that cannot
//! be synced. `CURRENT` is written last. Before that, the directory is no database.
//!
//! Invariants:
//! 1. A checkpoint is a prefix of the commit order. If it has a write, it has everything that
//!    returned before that write began, in all families.
//! 2. An export calls no merge operator and no compaction filter.
//!
//! Thread-safety: any number of checkpoints may be made at the same time.
//! Failure: the directory is removed, and the original stays as it was.
//! Cost: writers wait while running writes are inserted and one super version of each family is
//! loaded, but not for any I/O. The export reads and writes all memtables once, and holds their
//! memory until its end.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::MemoryClass;
use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, OpenOptions, RandomFile,
};

use crate::compaction::drive;
use crate::compaction::iterator::{CompactionIterator, Rules};
use crate::compaction::stripes::Stripes;
use crate::db::background::job_numbers::JobNumbers;
use crate::db::background::job_specs::{self, JOB_OUTPUT_BYTES, OutputPlan};
use crate::db::background::owners::JobOwners;
use crate::db::background::scheduler;
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::read::away_cursor::{AwayCursor, AwayScan};
use crate::db::state::context::Context;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::memtable::{Immutable, ShardHome};
use crate::db::state::storage::Storage;
use crate::db::write::WritePath;
use crate::file_meta::{FileMeta, invalid_file_name, sst_name, value_file_name};
use crate::iter::{AsOfIterator, Child, InternalIterator, MergingIterator};
use crate::job::NoShards;
use crate::job::below::Below;
use crate::job::output::OutputWriter;
use crate::job::spec::ValueSpec;
use crate::key::KeyRange;
use crate::lock_order::Order;
use crate::manifest::VersionEdit;
use crate::memtable::SealedShard;
use crate::tombstone::RangeTombstone;
use crate::version::Version;

const COPY_CHUNK_BYTES: usize = 1 << 20;

/// Content of the database at one moment of the commit order.
struct Moment {
    /// The last sequence number that was given out. Every record up to it is visible.
    last_seq: SeqNo,
    /// Every family, with the super version that its readers use.
    families: Vec<(Arc<Family>, Arc<SuperVersion>)>,
}

fn moment(context: &Context, view: &ReadView, writes: &WritePath) -> Moment {
    // While a picture of a read-only database is published, a moment would have parts of two
    // pictures.
    let _publishing = context.options().read_only.then(|| view.pictures().lock_publishing());
    let commit = writes.committer().lock(Order::none());
    writes.committer().wait_all_visible(view, &commit);
    let families = view.live_families().into_iter();
    let families = families.map(|family| {
        let picture = family.current.load_full();
        (family, picture)
    });
    Moment { families: families.collect(), last_seq: commit.last_seq() }
}

fn checkpoint(owners: JobOwners<'_>, writes: &WritePath, dir: &Path) -> Result<()> {
    let moment = moment(owners.context, owners.view, writes);
    let mut edit = VersionEdit::new();
    for (family, picture) in &moment.families {
        link_files(owners.storage, &picture.readable, dir)?;
        for meta in export_memtables(owners, family, picture, moment.last_seq, dir)? {
            edit.add_file(family.id, 0, meta);
        }
        edit.flushed_through(family.id, KeyRange::all(), moment.last_seq);
    }
    owners.storage.fs().sync_dir(dir)?;
    owners.context.fault_point("checkpoint.before_manifest")?;
    // The counters may be newer than the moment, because they only grow.
    let exporter = owners.storage.lock_manifest(Order::none()).exporter();
    let families = moment
        .families
        .iter()
        .map(|(family, picture)| (family.id, &*family.name, Arc::clone(&picture.readable)));
    exporter.of_moment(moment.last_seq, families, &edit)?.write(dir)
}

/// Writes the records up to `through` in the memtables of `picture` to L0 tables in `dir`. Returns
/// the metadata of these tables.
fn export_memtables(
    owners: JobOwners<'_>,
    family: &Family,
    picture: &SuperVersion,
    through: SeqNo,
    dir: &Path,
) -> Result<Vec<FileMeta>> {
    let active = Immutable::of(&picture.active);
    let sealed = picture.immutables.iter().map(|immutable| &**immutable);
    let filled = std::iter::once(&active).chain(sealed).flat_map(|memtable| {
        let homes = memtable.homes.iter().enumerate();
        let homes = homes.filter_map(|(at, home)| Some((memtable.map.range(at), home.clone()?)));
        homes.filter(|(_, home)| home.is_filled())
    });
    let shards: Vec<(KeyRange, ShardHome)> = filled.collect();
    if shards.is_empty() {
        return Ok(Vec::new());
    }
    let mut held = owners.context.budget().hold(MemoryClass::Job, JOB_OUTPUT_BYTES);
    let children = shards.iter().map(|(keys, home)| export_child(home, keys, through)).collect();
    let mut records = AsOfIterator::new(MergingIterator::new(children), through);
    records.seek_to_first();
    let tombstones: Vec<RangeTombstone> = shards
        .iter()
        .flat_map(|(_, home)| home.tombstones().list())
        .filter(|tombstone| tombstone.seq <= through)
        .collect();
    let range = KeyRange::all();
    let rules = Rules {
        range: &range,
        stripes: Stripes::new(&[], through),
        below: &Below::Everything,
        now_ms: 0,
        merge_operator: None,
        filter: None,
    };
    let mut input = CompactionIterator::new(records, tombstones, rules);
    let bytes = shards.iter().map(|(_, home)| home.data_bytes()).sum();
    let cuts = picture.readable.map().boundaries().to_vec();
    let numbers = JobNumbers::new(owners, Order::none());
    let mut spec = job_specs::output_spec(&numbers, family, OutputPlan::l0(cuts, bytes))?;
    // The tables lie in the directory of the checkpoint, where no sweep looks.
    numbers.note_installed();
    spec.dir = dir.to_owned();
    // The values of these tables stay inline. A compaction of the copy separates them.
    spec.values = ValueSpec::default();
    held.resize(JOB_OUTPUT_BYTES + input.tombstone_bytes());
    let kept = input.take_tombstones();
    let io = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
    let context = job_specs::job_context(owners, &NoShards);
    let writer = OutputWriter::new(&spec, family.id, &range, kept, io, &context)?;
    Ok(drive(&mut input, writer, &context, |_| Ok(()))?.tables)
}

/// A cursor over the records of a memtable shard up to `through`. The records of a shard at a node
/// are read page by page, so that its image takes no memory here.
fn export_child(home: &ShardHome, keys: &KeyRange, through: SeqNo) -> Child {
    let iter: Box<dyn InternalIterator> = match home {
        ShardHome::Here(shard) => Arc::clone(shard).verified_iter(),
        ShardHome::Away(away) => {
            let scan =
                AwayScan { snapshot: through, keys_only: false, cache_only: false, deadline: None };
            Box::new(AwayCursor::over(away, keys.clone(), scan))
        }
    };
    Child::new(iter, SeqNo::MAX)
}

/// Brings every file of the version into `dir` under its name.
fn link_files(storage: &Storage, version: &Version, dir: &Path) -> Result<()> {
    for (_, file) in version.files() {
        let name = sst_name(file.file_no());
        link_or_copy(storage, &name, file.held(), dir, FileClass::Sst)?;
    }
    for (file, _) in version.values().files() {
        let name = value_file_name(file.file_no());
        link_or_copy(storage, &name, file.held(), dir, FileClass::ValueSst)?;
    }
    for file in version.values().invalid_files() {
        let name = invalid_file_name(file.file_no());
        link_or_copy(storage, &name, None, dir, FileClass::Sst)?;
    }
    Ok(())
}

/// Links the file `name` into `dir`, or copies it. If a writer has removed a file of a read-only
/// database, the copy is made from `held`, the file that is still open.
fn link_or_copy(
    storage: &Storage,
    name: &str,
    held: Option<Arc<dyn RandomFile>>,
    dir: &Path,
    class: FileClass,
) -> Result<()> {
    let (from, to) = (storage.path_of(name), dir.join(name));
    match (storage.fs().link(&from, &to), held) {
        (Err(error), Some(held)) if error.kind() == ErrorKind::NotFound => {
            copy_open(&**storage.fs(), &*held, &to, class)
        }
        (Err(error), _) if error.kind() == ErrorKind::Unsupported => {
            copy(&**storage.fs(), &from, &to, class)
        }
        (linked, _) => linked,
    }
}

/// Copies a file and syncs the copy.
pub(crate) fn copy(fs: &dyn FileSystem, from: &Path, to: &Path, class: FileClass) -> Result<()> {
    let context = IoContext::new(class, IoPurpose::Maintenance);
    let source = fs.open(from, context, OpenOptions::default())?;
    copy_open(fs, &*source, to, class)
}

/// Copies an open file and syncs the copy.
fn copy_open(
    fs: &dyn FileSystem,
    source: &dyn RandomFile,
    to: &Path,
    class: FileClass,
) -> Result<()> {
    let context = IoContext::new(class, IoPurpose::Maintenance);
    let options = CreateOptions {
        size_hint_bytes: source.len(),
        exclusive: true,
        ..CreateOptions::default()
    };
    let mut target = fs.create(to, context, options)?;
    let mut buffer = vec![0; COPY_CHUNK_BYTES];
    let mut offset = 0;
    while offset < source.len() {
        let len = (source.len() - offset).min(COPY_CHUNK_BYTES as u64) as usize;
        source.read_exact_at(offset, &mut buffer[..len], context)?;
        target.append(&buffer[..len])?;
        offset += len as u64;
    }
    target.sync()
}

/// Makes a checkpoint in `dir`, and removes it if that fails.
pub(crate) fn make_checkpoint(db: &DbInner, dir: &Path) -> Result<()> {
    db.context.check_open()?;
    let fs = db.storage.fs();
    if fs.exists(dir)? && !fs.list(dir)?.is_empty() {
        return Err(Error::invalid(format!(
            "cannot make a checkpoint in {}: it exists and is not empty",
            dir.display()
        )));
    }
    fs.create_dir_all(dir)?;
    let result = checkpoint(db.job_owners(), &db.writes, dir);
    // The export may have been the last holder of files that are obsolete by now.
    scheduler::remove_obsolete(&db.storage, &db.observers, &db.view);
    if result.is_err()
        && let Err(error) = fs.remove_dir_all(dir)
    {
        tracing::warn!(%error, "the half-made checkpoint could not be removed");
    }
    result
}
