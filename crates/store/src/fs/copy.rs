//! Copying a directory into another volume: a checkpoint that outlives its volume.
//!
//! Tables are not copied: both volumes retain their blobs. The other files are small, and their
//! bytes are written again.
//!
//! 1. Remove what an interrupted copy left under the name of the target. Then enter the target in
//!    the register, as a volume that is being filled.
//! 2. For each table, add the target to the set of volumes that retain the blob. The files in this
//!    volume are held meanwhile, so the blobs exist.
//! 3. Name the blobs in the target, and write the other files.
//! 4. Record in the register that the target is complete. Until then no process can open the target
//!    to use it.
//!
//! Invariants:
//! 1. A blob is named in the target only when every holder that is not lost retains it for the
//!    target.
//! 2. A copy that is interrupted anywhere leaves a volume that the next copy or a removal removes
//!    with all that it retained.
//! 3. A volume retains a blob of another one at most once. So no release that is repeated later can
//!    take the blob from it.
//!
//! Thread-safety: any number of copies into different volumes may run at the same time.
//! Failure: errors name the file and the target. The lease of the target is given up in any case.
//! Cost: three round trips for 32 tables, and the bytes of the other files. A file with a log is
//! read into memory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_env::{FileSystem, IoContext, IoPurpose};

use super::StoreFs;
use super::failure::{missing, refused};
use crate::blob::BlobRef;
use crate::volume::record::{Content, FileKey, FileRecord};
use crate::volume::{Hold, Volume, VolumeOptions};

/// The volume into which a directory is copied.
#[derive(Clone, Debug)]
pub struct CopyTarget {
    /// Name of the volume. It must not exist, or be one that an interrupted copy left.
    pub name: String,
    /// Directory of the files in it.
    pub dir: PathBuf,
    /// Options with which this process owns the target while it copies.
    pub options: VolumeOptions,
}

/// A file that is copied.
struct CopiedFile {
    path: PathBuf,
    target: PathBuf,
    record: FileRecord,
    /// Keeps the bytes of the file until the copy has ended.
    _hold: Hold,
}

/// Copies the files of `dir` ([`StoreFs::copy_to_volume`]).
pub(super) fn copy_dir(from: &StoreFs, dir: &Path, target: &CopyTarget) -> Result<()> {
    let stores = from.files.volume.stores();
    let volume = Volume::open_to_fill(stores, &target.name, &target.options)?;
    let to = StoreFs::new(Arc::clone(&volume));
    let copied = fill(from, dir, &to, &target.dir).and_then(|()| volume.complete());
    let closed = to.close();
    copied.map_err(|error| {
        error.context_at(format!(
            "{} was not copied into volume {}; copy it again, or remove that volume",
            dir.display(),
            target.name
        ))
    })?;
    if let Err(error) = closed {
        // The copy is complete, and the lease ends by itself.
        tracing::warn!(%error, volume = target.name, "the lease of a copy was not given up");
    }
    Ok(())
}

fn fill(from: &StoreFs, dir: &Path, to: &StoreFs, target: &Path) -> Result<()> {
    to.create_dir_all(target)?;
    let files = files_of(from, dir, target)?;
    // Several names of a file share its blob.
    let mut blobs = BTreeMap::new();
    for file in &files {
        if let Content::Blob(blob) = &file.record.content {
            blobs.insert(file.record.key, blob.clone());
        }
    }
    let blobs: Vec<BlobRef> = blobs.into_values().collect();
    to.files.volume.retain_blobs(&blobs)?;
    let mut first_names: BTreeMap<FileKey, &Path> = BTreeMap::new();
    for file in &files {
        match first_names.get(&file.record.key) {
            Some(first) => to.link(first, &file.target)?,
            None => copy_file(from, to, file)?,
        }
        first_names.entry(file.record.key).or_insert(&file.target);
    }
    to.sync_dir(target)
}

/// Lists the files of `dir`, and holds the bytes of each.
fn files_of(from: &StoreFs, dir: &Path, target: &Path) -> Result<Vec<CopiedFile>> {
    let volume = &from.files.volume;
    let entries = volume.look(|state| state.list(dir));
    let entries = entries.ok_or_else(|| refused("copy", dir, io::ErrorKind::NotFound))?;
    let mut files = Vec::with_capacity(entries.len());
    for (name, key) in entries {
        let path = dir.join(&name);
        if key.is_none() {
            return Err(refused("copy", &path, io::ErrorKind::IsADirectory));
        }
        let held = volume.hold_path(&path);
        let (record, hold) = held.ok_or_else(|| missing("copy", &path, false))?;
        files.push(CopiedFile { path, target: target.join(&name), record, _hold: hold });
    }
    Ok(files)
}

/// Copies one file. If the file has a blob, the target retains the blob already.
fn copy_file(from: &StoreFs, to: &StoreFs, file: &CopiedFile) -> Result<()> {
    let CopiedFile { path, target, record, .. } = file;
    let context = IoContext::new(record.class, IoPurpose::Maintenance);
    match &record.content {
        Content::Inline(bytes) => to.write_atomic(target, bytes, context),
        Content::Log { .. } => to.write_atomic(target, &from.read(path, context)?, context),
        Content::Blob(blob) => {
            let (key, content) = (to.files.volume.allocate(), Content::Blob(blob.clone()));
            let file = to.files.new_file(key, record.class, target, content);
            to.files.create(&[file], "name the copy", target).map(drop)
        }
    }
}
