//! Queries about single files and directories of the tiers, for front ends of other engines and for
//! tests.
//!
//! Thread-safety: any thread may call any method. The namespace is read under its lock.
//! Failure: errors name the file. A failed change of a name or level leaves the state as it was.
//! Cost: opening, changing and removing a file do I/O, and so do its time and the length of a file
//! that is being written. Other queries do none.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};
use archipelago_env::names::Refusal;
use archipelago_env::{CreateOptions, FileClass, IoContext, OpenOptions, RandomFile, WritableFile};

use super::entry::Entry;
use super::shared::{Names, OpenTiers, is_direct};
use super::{ExistingFile, TieredFs, file_len, modified_ms};
use crate::namespace::record::Record;
use crate::settings::DeviceKind;

/// The place and the properties of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Unique id of the file in the namespace. No other file ever gets it.
    pub id: u64,
    /// Index of the original's device in the list of devices. 0 is the fastest one.
    pub device: usize,
    /// Class with which the file was created.
    pub class: FileClass,
    /// Level of the file, if it is a table that has one.
    pub level: Option<u8>,
    /// Length in bytes; 0 for a file that its device lost, if there is no whole copy.
    pub len: u64,
    /// Time at which the file was written to its present device, in milliseconds since 1970. A move
    /// writes the file again. `None` if the device does not know, or cannot be asked.
    pub modified_ms: Option<u64>,
    /// Number of names of the file.
    pub names: usize,
    /// Indices of the devices that hold copies of the file, sorted.
    pub copies: Vec<usize>,
    /// Whether a writer has the file open.
    pub is_written: bool,
}

/// An entry of a directory of the tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierDirEntry {
    /// Name within the directory, byte for byte. It need not be UTF-8.
    pub name: OsString,
    /// Whether the entry is a directory.
    pub is_dir: bool,
    /// Length in bytes; 0 for a directory, and for a file that its device lost, if there is no
    /// whole copy.
    pub len: u64,
}

/// A file of the tiers. Its bytes are kept while this is held, even if the file is removed or
/// replaced.
#[derive(Clone, Debug)]
pub struct TierFile {
    shared: Arc<OpenTiers>,
    entry: Arc<Entry>,
    /// Name under which the file was found, for errors.
    path: PathBuf,
}

impl TierFile {
    /// Unique id of the file in the namespace. No other file ever gets it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.entry.id
    }

    /// Length of the file in bytes. A device is asked for the length of a file that is being
    /// written. A file that its device lost has length 0, if there is no whole copy. Errors: those
    /// of the device.
    pub fn length(&self) -> Result<u64> {
        file_len(&self.shared, &self.entry)
    }

    /// Whether a writer has the file open.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.entry.writers.load(Ordering::Acquire) > 0
    }

    /// Opens the file for reading, with its present length. Errors: those of its device.
    pub fn open(&self, context: IoContext, options: OpenOptions) -> Result<Arc<dyn RandomFile>> {
        Ok(self.entry.open(&self.shared, &self.path, context, options)?)
    }

    /// Whether a handle that is opened with these arguments reads with `O_DIRECT` on the file's
    /// present device. [`RandomFile::prefetch`] then does nothing, because each read fetches its
    /// bytes from the device. A mapped file is memory, and is not read with `O_DIRECT`.
    #[must_use]
    pub fn is_direct(&self, context: IoContext, options: OpenOptions) -> bool {
        let physical = Arc::clone(&self.entry.inside.lock().main);
        let device = physical.device();
        let is_mapped = device.kind == DeviceKind::Mapped && context.class.is_table();
        !is_mapped && (options.direct || is_direct(device, context.class))
    }

    /// Place and properties of the file. Errors: `NotFound` if the file has no name any more.
    pub fn info(&self) -> Result<FileInfo> {
        let entry = &self.entry;
        let names = {
            let names = self.shared.names.lock();
            names.space.state.files.get(&entry.id).map(|file| file.names.len())
        };
        let Some(names) = names else {
            return Err(Error::io("find", &self.path, std::io::ErrorKind::NotFound.into()));
        };
        let (device, mut copies) = {
            let inside = entry.inside.lock();
            let copies = inside.copies.iter().map(|copy| copy.physical.device);
            (inside.main.device, copies.collect::<Vec<_>>())
        };
        copies.sort_unstable();
        Ok(FileInfo {
            id: entry.id,
            device,
            class: entry.class,
            level: entry.level(),
            len: file_len(&self.shared, entry)?,
            // A device that does not know the time does not make the query fail.
            modified_ms: modified_ms(entry).unwrap_or(None),
            names,
            copies,
            is_written: self.is_written(),
        })
    }
}

impl TieredFs {
    /// Path of the tiers' root. All paths below it belong to the tiers.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// The file at `path`, a path below the root. Errors: `NotFound`; `Io` for a directory.
    pub fn file(&self, path: &Path) -> Result<TierFile> {
        let path = self.own(path)?;
        let entry = self.shared.entry("find", &path)?;
        Ok(TierFile { shared: Arc::clone(&self.shared), entry, path })
    }

    /// Creates a file at `path`, a path below the root, as [`archipelago_env::FileSystem::create`]
    /// does, and returns its writer and the file itself, even if the file has another name by then.
    /// `existing` has the place of [`CreateOptions::exclusive`].
    /// Errors: those of `existing`; `NotFound` without the directory; `Io` for a directory; those
    /// of the devices.
    pub fn create_file(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
        existing: ExistingFile,
    ) -> Result<(Box<dyn WritableFile>, TierFile)> {
        let path = self.own(path)?;
        let (writer, entry) = self.create_entry(&path, context, options, existing)?;
        Ok((writer, TierFile { shared: Arc::clone(&self.shared), entry, path }))
    }

    /// Place and properties of the file at `path`, a path below the root. Errors: `NotFound`; `Io`
    /// for a directory.
    pub fn file_info(&self, path: &Path) -> Result<FileInfo> {
        self.file(path)?.info()
    }

    /// Changes the level of the table at `path`, a path below the root, to that of `context`, as
    /// [`archipelago_env::FileSystem::reassign`] does, and returns errors. Errors: `NotFound`;
    /// `InvalidArgument` if `context` has no level; those of the home device. After an error, the
    /// table keeps its level.
    pub fn set_level(&self, path: &Path, context: IoContext) -> Result<()> {
        let path = self.own(path)?;
        let Some(level) = context.level else {
            return Err(Error::invalid(format!(
                "{}: a table cannot lose its level",
                path.display()
            )));
        };
        let entry = self.shared.entry("find", &path)?;
        entry.note_family(context.family);
        let context = IoContext { family: entry.family(), ..context };
        self.shared.base_levels.lock().note(context);
        if record_level(&self.shared, &entry, level)? {
            self.shared.mover.level_changed(&self.shared, &entry, context);
        }
        Ok(())
    }

    /// Whether `path`, a path below the root, is a directory.
    pub fn is_dir(&self, path: &Path) -> Result<bool> {
        let path = self.own(path)?;
        Ok(self.shared.names.lock().space.state.is_dir(&path))
    }

    /// Entries of the directory at `path`, a path below the root, sorted by name. Unlike
    /// [`archipelago_env::FileSystem::list`], this method returns every name byte for byte. A file
    /// that its device lost has an entry as well. Errors: `NotFound`; those of a device that is
    /// asked for a length.
    pub fn dir_entries(&self, path: &Path) -> Result<Vec<TierDirEntry>> {
        let path = self.own(path)?;
        let names = self.shared.names.lock();
        let Some(found) = names.space.state.list(&path) else {
            return Err(Error::io("list", &path, std::io::ErrorKind::NotFound.into()));
        };
        let mut listed = Vec::with_capacity(found.len());
        for (name, id) in found {
            let entry = id.and_then(|id| names.entries.get(&id)).cloned();
            listed.push((name, id.is_none(), entry));
        }
        drop(names);
        let mut entries = Vec::with_capacity(listed.len());
        for (name, is_dir, entry) in listed {
            let len = entry.map_or(Ok(0), |entry| file_len(&self.shared, &entry))?;
            entries.push(TierDirEntry { name, is_dir, len });
        }
        Ok(entries)
    }

    /// Removes the empty directory at `path`, a path below the root. The removal is as durable as
    /// that of a file. Errors: `NotFound`; `Io` for a directory that is not empty.
    pub fn remove_dir(&self, path: &Path) -> Result<()> {
        let path = self.own(path)?;
        let refuse =
            |kind: std::io::ErrorKind| Err(Error::io("remove directory", &path, kind.into()));
        let mut names = self.shared.names.lock();
        let listed = names.space.state.list(&path);
        match listed {
            None if names.space.state.id(&path).is_some() => {
                return refuse(std::io::ErrorKind::NotADirectory);
            }
            None => return refuse(std::io::ErrorKind::NotFound),
            Some(entries) if !entries.is_empty() => {
                return refuse(std::io::ErrorKind::DirectoryNotEmpty);
            }
            Some(_) => (),
        }
        self.shared.commit(&mut names, &Record::RemoveDir { path: path.clone() }).map(|_| ())
    }

    /// Renames the directory `from` to `to`, both below the root, with all files in it. `to` may be
    /// an empty directory. Open files stay open. The change is atomic, and as durable as the
    /// renaming of a file. Fault point: `names.changed`.
    ///
    /// Errors: `NotFound`; `Busy` while this process holds a lock in `from`; `InvalidArgument` if
    /// `to` lies in `from`; `Io` if `from` or `to` is a file, or if `to` is a directory that is not
    /// empty; `Unsupported` if `from` holds a log whose end may lie in another file (`create_log`),
    /// because that file is found by the name of the directory.
    pub fn rename_dir(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.own(from)?, self.own(to)?);
        self.check_dirs(&self.shared.names.lock(), &from, &to)?;
        if from == to {
            return Ok(());
        }
        self.refuse_log_tails(&from)?;
        let mut names = self.shared.names.lock();
        self.check_dirs(&names, &from, &to)?;
        // The set of locks holds names, so a renamed lock would no longer be found.
        let locks = self.shared.locks.lock();
        if let Some(held) = locks.iter().find(|lock| lock.starts_with(&from)) {
            return Err(Error::busy(format!(
                "{} cannot be renamed: this process holds the lock {}",
                from.display(),
                held.display()
            )));
        }
        self.shared.commit(&mut names, &Record::Rename { from, to })?;
        drop(locks);
        drop(names);
        self.shared.fault_point("names.changed")
    }

    /// Refuses if the directory `from` cannot be renamed to `to`.
    fn check_dirs(&self, names: &Names, from: &Path, to: &Path) -> Result<()> {
        if from == self.shared.root || to == self.shared.root {
            return Err(Error::invalid("the root of the tiers cannot be renamed or replaced"));
        }
        let Err(Refusal { kind, why }) = names.space.state.check_dir_target(from, to) else {
            return Ok(());
        };
        if kind == std::io::ErrorKind::InvalidInput {
            return Err(Error::invalid(format!("cannot rename {}: {why}", from.display())));
        }
        let doing = format!("rename to {} the directory", to.display());
        Err(Error::io(&doing, from, std::io::Error::new(kind, why)))
    }

    /// Refuses a directory with a log whose end its device may keep in another file.
    fn refuse_log_tails(&self, dir: &Path) -> Result<()> {
        let entries: Vec<Arc<Entry>> = {
            let names = self.shared.names.lock();
            let ids = names.space.state.ids_below(dir);
            ids.iter().filter_map(|id| names.entries.get(id)).cloned().collect()
        };
        let logs = entries.iter().filter(|entry| entry.class == FileClass::Wal);
        let mut looked = HashSet::new();
        for entry in logs {
            let (physical, missing) = {
                let inside = entry.inside.lock();
                (Arc::clone(&inside.main), inside.missing)
            };
            let Some(beside) = physical.path.parent() else { continue };
            if missing || !looked.insert((physical.device, beside.to_owned())) {
                continue;
            }
            let kept = physical.device().fs.list(beside)?;
            if kept.iter().any(|file| file.name.ends_with(".ring")) {
                return Err(Error::unsupported(format!(
                    "{} cannot be renamed: the log of a database lies in it, whose end is found by the directory's name (make a checkpoint instead)",
                    dir.display()
                )));
            }
        }
        Ok(())
    }

    /// The normalised path. Errors: `InvalidArgument` for a path outside of the root.
    fn own(&self, path: &Path) -> Result<PathBuf> {
        self.logical(path).ok_or_else(|| {
            Error::invalid(format!(
                "{} does not lie in the tiers: their paths begin with {}",
                path.display(),
                self.shared.root.display()
            ))
        })
    }
}

/// Records that a file's level changed without a rewrite. `false` if the file was removed in the
/// meantime.
fn record_level(shared: &OpenTiers, entry: &Entry, level: u8) -> Result<bool> {
    if entry.level() == Some(level) {
        return Ok(true);
    }
    let mut names = shared.names.lock();
    if !names.entries.contains_key(&entry.id) {
        return Ok(false);
    }
    shared.commit(&mut names, &Record::Level { file: entry.id, level })?;
    entry.set_level(level);
    Ok(true)
}

#[cfg(test)]
mod tests;
