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
pub struct Whereabouts {
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
    pub fn whereabouts(&self) -> Result<Whereabouts> {
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
        Ok(Whereabouts {
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
    pub fn whereabouts(&self, path: &Path) -> Result<Whereabouts> {
        self.file(path)?.whereabouts()
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
        crate::mover::level_changed(&self.shared, &entry, level, context)
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

#[cfg(test)]
mod tests {
    use archipelago_base::{Epoch, ErrorKind};
    use archipelago_env::fault::{FaultFs, Operation, Rule};
    use archipelago_env::mem::MemFs;
    use archipelago_env::{CreateOptions, FileSystem, IoPurpose, LogOptions};

    use super::*;
    use crate::{Components, DeviceKind, DeviceParts, DeviceSettings};

    fn tiers() -> Arc<TieredFs> {
        tiers_over(&(Arc::new(MemFs::new()) as Arc<dyn FileSystem>))
    }

    fn tiers_over(disk: &Arc<dyn FileSystem>) -> Arc<TieredFs> {
        let device = |path: &str| DeviceParts {
            settings: DeviceSettings {
                capacity_bytes: 1 << 20,
                ..DeviceSettings::new(path, DeviceKind::Directory).creating()
            },
            fs: Arc::clone(disk),
            is_local: false,
        };
        let components = Components { spawn: None, seed: Some(1), ..Components::default() };
        TieredFs::open_over("tiers:", vec![device("/fast"), device("/slow")], components).unwrap()
    }

    #[test]
    fn a_file_is_found_with_all_that_is_known_of_it() {
        let tiers = tiers();
        let dir = Path::new("tiers:/db");
        tiers.create_dir_all(dir).unwrap();
        let path = dir.join("7.sst");
        let context = IoContext::sst(IoPurpose::Compaction { from: 4, to: 5 }, 5);
        let mut file = tiers.create(&path, context, CreateOptions::default()).unwrap();
        file.append(b"four").and_then(|()| file.flush()).unwrap();
        assert!(tiers.whereabouts(&path).unwrap().is_written);
        drop(file);
        tiers.link(&path, &dir.join("8.sst")).unwrap();
        let found = tiers.whereabouts(&dir.join("8.sst")).unwrap();
        assert_eq!((found.device, found.level, found.len), (1, Some(5), 4));
        assert_eq!((found.names, found.class, found.is_written), (2, FileClass::Sst, false));
        assert_eq!(found.id, tiers.whereabouts(&path).unwrap().id);
        assert_eq!(found.copies, Vec::<usize>::new());
        assert!(
            tiers.whereabouts(Path::new("/elsewhere")).unwrap_err().to_string().contains("tiers:")
        );
    }

    #[test]
    fn a_file_that_is_held_can_be_opened_and_grows_whatever_its_names_become() {
        let tiers = tiers();
        let (path, other) = (Path::new("tiers:/7.sst"), Path::new("tiers:/8.sst"));
        tiers.create_dir_all(tiers.root()).unwrap();
        let context = IoContext::sst(IoPurpose::Flush, 0);
        let mut writer = tiers.create(path, context, CreateOptions::default()).unwrap();
        let file = tiers.file(path).unwrap();
        writer.append(b"one,").and_then(|()| writer.flush()).unwrap();
        tiers.rename(path, other).unwrap();
        assert_eq!((file.id(), file.whereabouts().unwrap().len), (file.id(), 4));
        tiers.remove(other).unwrap();
        assert_eq!(file.whereabouts().unwrap_err().kind(), ErrorKind::NotFound);
        writer.append(b"two").and_then(|()| writer.sync()).unwrap();
        assert!(file.is_written());
        drop(writer);
        assert!(!file.is_written());
        tiers.settle();
        let reader = file.open(context, OpenOptions::default()).unwrap();
        let mut bytes = [0; 7];
        reader.read_exact_at(0, &mut bytes, context).unwrap();
        assert_eq!((&bytes, reader.len()), (b"one,two", 7));
    }

    #[test]
    fn prefetching_does_nothing_where_reads_are_direct() {
        let table = IoContext::sst(IoPurpose::ForegroundRead, 0);
        let log = IoContext::new(FileClass::Wal, IoPurpose::Recovery);
        for (kind, expected) in [
            (DeviceKind::Directory, [false, true, false]),
            (DeviceKind::Direct, [true, true, false]),
            (DeviceKind::Mapped, [false, false, false]),
        ] {
            let settings = DeviceSettings::new("/only", kind).creating();
            let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
            let parts = vec![DeviceParts { settings, fs, is_local: false }];
            let components = Components { spawn: None, seed: Some(1), ..Components::default() };
            let tiers = TieredFs::open_over("tiers:", parts, components).unwrap();
            tiers.create_dir_all(tiers.root()).unwrap();
            let path = Path::new("tiers:/7.sst");
            drop(tiers.create(path, table, CreateOptions::default()).unwrap());
            let file = tiers.file(path).unwrap();
            let found = [(table, false), (table, true), (log, false)]
                .map(|(context, direct)| file.is_direct(context, OpenOptions { direct }));
            assert_eq!(found, expected, "{kind:?}");
        }
    }

    #[test]
    fn a_level_that_could_not_be_recorded_is_an_error() {
        let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
        let tiers = tiers_over(&(Arc::new(disk.clone()) as Arc<dyn FileSystem>));
        tiers.create_dir_all(tiers.root()).unwrap();
        let path = Path::new("tiers:/7.sst");
        let context = IoContext::sst(IoPurpose::Compaction { from: 0, to: 1 }, 1);
        drop(tiers.create(path, context, CreateOptions::default()).unwrap());
        let deeper = IoContext::sst(IoPurpose::Compaction { from: 1, to: 2 }, 2);
        let refused = [Operation::LogAppend, Operation::LogSync, Operation::CreateLog];
        disk.add(Rule::on_any(&refused).path("/names/"));
        assert_eq!(tiers.set_level(path, deeper).unwrap_err().kind(), ErrorKind::Io);
        tiers.reassign(path, deeper);
        assert_eq!(tiers.whereabouts(path).unwrap().level, Some(1));
        disk.clear();
        drop(tiers);
        let tiers = tiers_over(&(Arc::new(disk) as Arc<dyn FileSystem>));
        assert_eq!(tiers.whereabouts(path).unwrap().level, Some(1), "after the next open, too");
        tiers.set_level(path, deeper).unwrap();
        assert_eq!(tiers.whereabouts(path).unwrap().level, Some(2));
        let none = tiers.set_level(Path::new("tiers:/none"), deeper).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
        let no_level = IoContext { level: None, ..deeper };
        assert_eq!(tiers.set_level(path, no_level).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_directory_takes_what_lies_in_it_along() {
        let disk = Arc::new(MemFs::new()) as Arc<dyn FileSystem>;
        let tiers = tiers_over(&disk);
        let [dir, inner, other, new] =
            ["tiers:/a", "tiers:/a/b", "tiers:/c", "tiers:/d"].map(Path::new);
        tiers.create_dir_all(inner).unwrap();
        tiers.create_dir_all(other).unwrap();
        let context = IoContext::sst(IoPurpose::Flush, 0);
        let write = |path: &Path| {
            let mut file = tiers.create(path, context, CreateOptions::default()).unwrap();
            file.append(b"one").and_then(|()| file.flush()).unwrap();
            file
        };
        let mut growing = write(&inner.join("1.sst"));
        drop(write(&dir.join("2.sst")));
        tiers.link(&dir.join("2.sst"), &other.join("3.sst")).unwrap();
        let refused = |from: &str, to: &str| {
            let error = tiers.rename_dir(Path::new(from), Path::new(to)).unwrap_err();
            (error.kind(), error.io_kind())
        };
        let io = |kind| (ErrorKind::Io, Some(kind));
        assert_eq!(refused("tiers:/a", "tiers:/c"), io(std::io::ErrorKind::DirectoryNotEmpty));
        assert_eq!(refused("tiers:/a/b", "tiers:/a"), io(std::io::ErrorKind::DirectoryNotEmpty));
        assert_eq!(refused("tiers:/a", "tiers:/c/3.sst"), io(std::io::ErrorKind::NotADirectory));
        assert_eq!(refused("tiers:/a", "tiers:/none/a").0, ErrorKind::NotFound);
        assert_eq!(refused("tiers:/none", "tiers:/d").0, ErrorKind::NotFound);
        let no_dir = io(std::io::ErrorKind::NotADirectory);
        assert_eq!(refused("tiers:/a/2.sst", "tiers:/d"), no_dir);
        assert_eq!(refused("tiers:/a", "tiers:/c/3.sst/a"), no_dir);
        for (from, to) in [
            ("tiers:", "tiers:/d"),
            ("tiers:/a", "tiers:"),
            ("tiers:/a", "/d"),
            ("tiers:/a", "tiers:/c/.."),
            ("tiers:/a", "tiers:/a/b/c"),
        ] {
            assert_eq!(refused(from, to).0, ErrorKind::InvalidArgument, "{from} to {to}");
        }
        let lock = tiers.lock(&inner.join("LOCK")).unwrap();
        assert_eq!(refused("tiers:/a", "tiers:/d").0, ErrorKind::Busy);
        drop(lock);

        tiers.create_dir_all(new).unwrap();
        tiers.rename_dir(dir, new).unwrap();
        tiers.rename_dir(new, new).unwrap();
        growing.append(b",two").and_then(|()| growing.sync()).unwrap();
        drop(growing);
        tiers.sync_dir(new).unwrap();
        let is_all_there = |tiers: &TieredFs| {
            assert!(!tiers.exists(dir).unwrap() && !tiers.exists(inner).unwrap());
            let read = |path: &str| tiers.read(Path::new(path), context).unwrap();
            assert_eq!(read("tiers:/d/b/1.sst"), b"one,two");
            assert_eq!(read("tiers:/d/2.sst"), b"one");
            let found = tiers.whereabouts(Path::new("tiers:/d/2.sst")).unwrap();
            assert_eq!((found.names, found.level), (2, Some(0)));
            assert_eq!(tiers.list(new).unwrap().len(), 2);
        };
        is_all_there(&tiers);
        drop(tiers);
        is_all_there(&tiers_over(&disk));
    }

    #[test]
    fn a_directory_with_the_log_of_a_database_keeps_its_name() {
        let base = tempfile::tempdir().unwrap();
        let devices =
            [DeviceSettings::new(base.path().join("only"), DeviceKind::Directory).creating()];
        let components = Components { spawn: None, seed: Some(1), ..Components::default() };
        let tiers = TieredFs::open("tiers:", &devices, components).unwrap();
        let [dir, new] = ["tiers:/db", "tiers:/new"].map(Path::new);
        tiers.create_dir_all(dir).unwrap();
        let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
        drop(tiers.create(&dir.join("plain.log"), context, CreateOptions::default()).unwrap());
        tiers.rename_dir(dir, new).unwrap();
        tiers.rename_dir(new, dir).unwrap();
        let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 1 << 16, recycle: None };
        let mut log = tiers.create_log(&dir.join("1.log"), context, options).unwrap();
        log.append(&[b"kept beside it"]).unwrap();
        let error = tiers.rename_dir(dir, new).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("checkpoint"), "{error}");
    }

    #[test]
    fn a_device_that_cannot_tell_the_time_is_no_reason_not_to_be_found() {
        let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
        let tiers = tiers_over(&(Arc::new(disk.clone()) as Arc<dyn FileSystem>));
        tiers.create_dir_all(tiers.root()).unwrap();
        let path = Path::new("tiers:/7.sst");
        let context = IoContext::sst(IoPurpose::Flush, 0);
        drop(tiers.create(path, context, CreateOptions::default()).unwrap());
        disk.add(Rule::on_any(&[Operation::Stat]));
        assert_eq!(tiers.whereabouts(path).unwrap().modified_ms, None);
        assert_eq!(tiers.modified_ms(path).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn only_an_empty_directory_is_removed() {
        let tiers = tiers();
        let (dir, inner) = (Path::new("tiers:/a"), Path::new("tiers:/a/b"));
        tiers.create_dir_all(inner).unwrap();
        let kind = |path: &Path| tiers.remove_dir(path).unwrap_err().io_kind();
        assert_eq!(kind(dir), Some(std::io::ErrorKind::DirectoryNotEmpty));
        let file = inner.join("f");
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        drop(tiers.create(&file, context, CreateOptions::default()).unwrap());
        assert_eq!(kind(inner), Some(std::io::ErrorKind::DirectoryNotEmpty));
        assert_eq!(kind(&file), Some(std::io::ErrorKind::NotADirectory));
        assert_eq!(kind(Path::new("tiers:/c")), Some(std::io::ErrorKind::NotFound));
        tiers.remove(&file).unwrap();
        tiers.remove_dir(inner).unwrap();
        tiers.remove_dir(dir).unwrap();
        assert!(!tiers.exists(dir).unwrap());
        let upwards = tiers.create_dir_all(Path::new("tiers:/a/..")).unwrap_err();
        assert_eq!(upwards.kind(), ErrorKind::InvalidArgument);
    }
}
