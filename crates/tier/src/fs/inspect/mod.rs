//! What the tiers know of one file, for those who look at files one by one: a front end for other
//! engines, tests.
//!
//! Reads the namespace under its lock. I/O is made by what opens, changes or removes, for the time
//! of a file, and for the length of one that is being written.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};
use archipelago_env::{FileClass, IoContext, OpenOptions, RandomFile};

use super::entry::Entry;
use super::shared::{Names, Shared, is_direct};
use super::{TieredFs, file_len, modified_ms};
use crate::namespace::record::Record;
use crate::settings::DeviceKind;

/// Where a file lies, and what it is known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its unique id in the namespace: never used for another file.
    pub id: u64,
    /// The device of the original: its place in the list of devices, 0 for the fastest.
    pub device: usize,
    /// What kind of file it was created as.
    pub class: FileClass,
    /// The level that it belongs to, if it is a table that has one.
    pub level: Option<u8>,
    /// Length in bytes.
    pub len: u64,
    /// When it was written where it lies now, in milliseconds since 1970; `None` if its device does
    /// not know, or cannot be asked. A move to another device writes it anew.
    pub modified_ms: Option<u64>,
    /// How many names it has.
    pub names: usize,
    /// The devices of its copies for reading.
    pub copies: Vec<usize>,
    /// Whether somebody has it open for writing.
    pub is_written: bool,
}

/// A file of the tiers, whatever becomes of its names: its bytes stay as long as this is held, also
/// when it was removed or replaced.
#[derive(Clone, Debug)]
pub struct TierFile {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    /// The name that it was found under, for errors.
    path: PathBuf,
}

impl TierFile {
    /// Its unique id in the namespace: never used for another file.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.entry.id
    }

    /// Its length in bytes, as its device has it while it is written. Errors: those of that.
    pub fn length(&self) -> Result<u64> {
        file_len(&self.shared, &self.entry)
    }

    /// Whether somebody has it open for writing.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.entry.writers.load(Ordering::Acquire) > 0
    }

    /// Opens it for reading, with the length that it has now. Errors: those of its device.
    pub fn open(&self, context: IoContext, options: OpenOptions) -> Result<Arc<dyn RandomFile>> {
        Ok(self.entry.open(&self.shared, &self.path, context, options)?)
    }

    /// Whether what a handle opened so reads is fetched from the device by the read itself, so that
    /// [`RandomFile::prefetch`] does nothing: `O_DIRECT`, there where the file lies now. What is
    /// mapped is memory and needs no fetching.
    #[must_use]
    pub fn is_direct(&self, context: IoContext, options: OpenOptions) -> bool {
        let physical = Arc::clone(&self.entry.inside.lock().main);
        let device = physical.device();
        let is_mapped = device.kind == DeviceKind::Mapped && context.class == FileClass::Sst;
        !is_mapped && (options.direct || is_direct(device, context.class))
    }

    /// Where it lies. Errors: `NotFound` if it has no name any more.
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
            // A device that cannot tell is no reason not to say where the file lies.
            modified_ms: modified_ms(entry).unwrap_or(None),
            names,
            copies,
            is_written: self.is_written(),
        })
    }
}

impl TieredFs {
    /// The path below which everything is the tiers' own.
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

    /// Where the file at `path`, a path below the root, lies. Errors: `NotFound`; `Io` for a
    /// directory.
    pub fn file_info(&self, path: &Path) -> Result<FileInfo> {
        self.file(path)?.info()
    }

    /// What [`archipelago_env::FileSystem::reassign`] does, for who wants to know whether it was
    /// recorded. `path`: below the root; `context`: with the level. Errors: `NotFound`; those of
    /// the home device, after which the tiers go on with the level of before.
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

    /// Removes the directory at `path`, a path below the root, if nothing lies in it. Durable as a
    /// removal of a file is. Errors: `NotFound`; `Io` for one that is not empty.
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

    /// Gives the directory `from` the name `to`, both below the root, with all that lies in it;
    /// `to` may be an empty directory. Files in it that are open stay so. All at once, and durable
    /// as the renaming of a file is. Fault point: `names.changed`. Errors: `NotFound`; `Busy` while
    /// a lock in it is held; `InvalidArgument` if `to` lies in `from`; `Io` if `from` or `to` is a
    /// file, or `to` a directory that is not empty; `Unsupported` if a log lies in it of which an
    /// end may be kept beside it (`create_log`): such ends go with the directory's name.
    pub fn rename_dir(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.own(from)?, self.own(to)?);
        self.check_dirs(&self.shared.names.lock(), &from, &to)?;
        if from == to {
            return Ok(());
        }
        self.refuse_log_tails(&from)?;
        let mut names = self.shared.names.lock();
        self.check_dirs(&names, &from, &to)?;
        // Locks are known by their names.
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

    /// Whether the directory `from` can become `to` now.
    fn check_dirs(&self, names: &Names, from: &Path, to: &Path) -> Result<()> {
        if from == self.shared.root || to == self.shared.root {
            return Err(Error::invalid("the root of the tiers cannot be renamed or replaced"));
        }
        let Err((kind, why)) = names.space.state.check_dir_target(from, to) else { return Ok(()) };
        if kind == std::io::ErrorKind::InvalidInput {
            return Err(Error::invalid(format!("cannot rename {}: {why}", from.display())));
        }
        let doing = format!("rename to {} the directory", to.display());
        Err(Error::io(&doing, from, std::io::Error::new(kind, why)))
    }

    /// Refuses a directory with a log beside which its device keeps more than logs.
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

/// Records that a file's level changed without a rewrite. `false` if the file was removed
/// meanwhile.
fn record_level(shared: &Shared, entry: &Entry, level: u8) -> Result<bool> {
    if entry.level() == Some(level) {
        return Ok(true);
    }
    let mut names = shared.names.lock();
    if !names.entries.contains_key(&entry.id) {
        return Ok(false);
    }
    let before = names.space.state.files.get(&entry.id).and_then(|file| file.level);
    if let Err(error) = shared.commit(&mut names, &Record::Level { file: entry.id, level }) {
        // Neither the log nor a new generation has it: the next generation is to have the level
        // of before.
        if let Some(file) = names.space.state.files.get_mut(&entry.id) {
            file.level = before;
        }
        return Err(error);
    }
    entry.set_level(level);
    Ok(true)
}

#[cfg(test)]
mod tests;
