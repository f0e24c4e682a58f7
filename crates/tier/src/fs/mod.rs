//! The tiers as one [`FileSystem`].
//!
//! A [`TieredFs`] turns every operation on a path below its root into an operation on the
//! namespace. [`crate::place`] decides on which device a new file lies, and [`crate::mover`]
//! changes that in the background. Paths outside of the root belong to another file system. So a
//! checkpoint can be made into a plain directory.
//!
//! Invariant: a name changes only by a record of the namespace.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a change of names survives `kill -9` when the call returns, and power loss after
//! [`FileSystem::sync_dir`] of any directory of the tiers. A change of names that fails changes
//! nothing. If the home device failed, a crash may bring the change back whole until a later change
//! or sync succeeds. A file that one device refuses is created on the next best device. Cost: a
//! change of names appends to a log. A read costs three counters and an atomic load, in addition to
//! the read of the device.

pub(crate) mod accesses;
mod discovery;
pub(crate) mod entry;
mod exclusive;
mod inspect;
pub(crate) mod job_queue;
mod make_room;
pub(crate) mod open;
pub(crate) mod physical;
mod removal;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::checksum::hash64;
use archipelago_base::spawn::Joiner;
use archipelago_base::{Epoch, Error, Result};
use archipelago_env::names::plain;
use archipelago_env::{
    CreateOptions, DirEntry, FileClass, FileLock, FileSystem, GroupAccess, IoContext, IoPurpose,
    LogFile, LogOptions, LogTail, OpenOptions, RandomFile, WritableFile,
};
use parking_lot::{Mutex, MutexGuard};

use self::entry::{Entry, passes_heat_on};
pub use self::exclusive::ExclusiveDevices;
pub use self::inspect::{FileInfo, TierDirEntry, TierFile};
pub use self::open::{Components, DeviceParts};
use self::physical::{Physical, Role};
pub use self::removal::{Emptied, forget_device};
pub use self::shared::FaultPoint;
use self::shared::{ChosenDevice, Names, OpenTiers};
use self::writer::{TierLog, TierWriter, Writing};
use crate::activity::kind_of;
use crate::device::{Device, Writer};
use crate::namespace::record::{FilePlace, FileRecord, Record};
use crate::place::device_of_class;
use crate::write_slots::WriteSlot;

/// Open tiers. [`TieredFs::close`] or the drop closes them.
#[derive(Debug)]
pub struct TieredFs {
    pub(crate) shared: Arc<OpenTiers>,
    pub(crate) threads: Mutex<Vec<Joiner>>,
}

/// Treatment of a file that has the name of a new file already. The creation decides this in the
/// same step in which the new file gets the name, so no other change of names can come between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingFile {
    /// The new file replaces it, if there is one.
    Replace,
    /// The creation fails with [`AlreadyExists`](std::io::ErrorKind::AlreadyExists).
    Refuse,
    /// The new file replaces it. Without one, the creation fails with
    /// [`NotFound`](std::io::ErrorKind::NotFound).
    Require,
}

impl ExistingFile {
    /// The error of a creation that `existing` refuses: its name has a file, or has none.
    fn refusal(self, exists: bool) -> Option<std::io::ErrorKind> {
        match (self, exists) {
            (Self::Refuse, true) => Some(std::io::ErrorKind::AlreadyExists),
            (Self::Require, false) => Some(std::io::ErrorKind::NotFound),
            _ => None,
        }
    }
}

/// A new physical file, and the slot in which it is written.
struct PlacedFile {
    physical: Arc<Physical>,
    place: FilePlace,
    slot: Option<WriteSlot>,
}

impl TieredFs {
    /// The normalised path, if it lies below the root.
    fn logical(&self, path: &Path) -> Option<PathBuf> {
        let path = plain(path);
        path.starts_with(&self.shared.root).then_some(path)
    }

    /// Refuses a file name that is a directory, or whose directory does not exist, or that
    /// `existing` refuses.
    fn check_target(&self, doing: &str, path: &Path, existing: ExistingFile) -> Result<()> {
        let names = self.shared.names.lock();
        let state = &names.space.state;
        let cause = if state.is_dir(path) {
            match existing {
                ExistingFile::Refuse => std::io::ErrorKind::AlreadyExists,
                ExistingFile::Replace | ExistingFile::Require => std::io::ErrorKind::IsADirectory,
            }
        } else if path.parent().is_none_or(|dir| !state.is_dir(dir)) {
            std::io::ErrorKind::NotFound
        } else if let Some(cause) = existing.refusal(state.id(path).is_some()) {
            cause
        } else {
            return Ok(());
        };
        Err(Error::io(doing, path, cause.into()))
    }

    /// Creates a physical file on the device that placement chooses. If that fails, tries the next
    /// best device. Errors: the first error.
    fn make<T>(
        &self,
        path: &Path,
        context: IoContext,
        size_hint_bytes: u64,
        make: impl Fn(&Device, &Path) -> Result<T>,
    ) -> Result<(T, PlacedFile)> {
        let shared = &self.shared;
        let dir = match context.class {
            FileClass::Wal => dir_hash(path),
            _ => 0,
        };
        let mut tried = Vec::new();
        let mut first_error = None;
        for _ in 0..shared.devices.len() {
            let ChosenDevice { index, is_avoided, slot } =
                shared.choose(context, size_hint_bytes, &tried);
            let device = &shared.devices[index];
            let number = shared.names.lock().space.allocate();
            let place = FilePlace { device: device.no, number, dir };
            let physical_path = device.path_of(place, context.class);
            let in_dir = device.dir_of(place);
            let made = device.make_dir(&in_dir).and_then(|()| make(device, &physical_path));
            device.note(&made, shared.now_ns());
            match made {
                Ok(inner) => {
                    device.note_made(&in_dir, number);
                    let trash = &shared.trash;
                    let physical = Physical::new(
                        &shared.devices,
                        index,
                        number,
                        physical_path,
                        Role::File,
                        trash,
                    );
                    return Ok((inner, PlacedFile { physical, place, slot }));
                }
                Err(error) => {
                    if error.is_no_space() {
                        shared.wake_workers();
                    }
                    if is_avoided {
                        return Err(first_error.unwrap_or(error));
                    }
                    tried.push(index);
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| Error::invalid("there is no device")))
    }

    /// Records a new file under `path` and begins to write it.
    fn enter(
        &self,
        path: &Path,
        context: IoContext,
        file: PlacedFile,
        existing: ExistingFile,
    ) -> Result<Writing> {
        let PlacedFile { physical, place, slot } = file;
        let shared = &self.shared;
        let record = FileRecord {
            id: physical.number,
            class: context.class,
            level: context.level,
            place,
            names: vec![path.to_owned()],
            heat: 0,
        };
        let IoContext { class, level, family, .. } = context;
        let entry = Entry::new(record.id, class, level, family, Arc::clone(&physical));
        let writing = self.writing(&entry, Arc::clone(&physical), context, slot);
        let mut names = shared.names.lock();
        let id = entry.id;
        if let Some(cause) = existing.refusal(names.space.state.id(path).is_some()) {
            // Another creation or removal of the path came first.
            drop(names);
            physical.device().note_superfluous(&physical.path, id);
            if let Err(error) = physical.device().fs.remove(&physical.path) {
                tracing::warn!(%error, "a file without a name stays until the next open");
            }
            return Err(Error::io("create", path, cause.into()));
        }
        names.entries.insert(id, Arc::clone(&entry));
        if let Err(error) = shared.commit(&mut names, &Record::File(record)) {
            // The record may have been written despite the error. So the physical file stays, and
            // the next open either finds the record or removes the file.
            names.entries.remove(&id);
            drop(names);
            physical.device().note_superfluous(&physical.path, id);
            return Err(error.context_at(format!("cannot create {}", path.display())));
        }
        Ok(writing)
    }

    /// Creates a file at a normalised path, and returns its writer and its entry.
    fn create_entry(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
        existing: ExistingFile,
    ) -> Result<(Box<dyn WritableFile>, Arc<Entry>)> {
        self.check_target("create", path, existing)?;
        let shared = &self.shared;
        shared.base_levels.lock().note(context);
        let (inner, file) =
            self.make(path, context, options.size_hint_bytes, |device, physical| {
                let size_hint_bytes = options.size_hint_bytes;
                let own = shared.create_options(device, context.class, size_hint_bytes);
                let options = CreateOptions {
                    direct: options.direct || own.direct,
                    io_bytes_max: shorter(options.io_bytes_max, own.io_bytes_max),
                    ..own
                };
                device.fs.create(physical, context, options)
            })?;
        let writing = self.enter(path, context, file, existing)?;
        let entry = Arc::clone(&writing.entry);
        let writer: Box<dyn WritableFile> = Box::new(TierWriter::new(inner, writing));
        Ok((writer, entry))
    }

    /// Begins to write a file: counts the writer on its device and its level.
    fn writing(
        &self,
        entry: &Arc<Entry>,
        physical: Arc<Physical>,
        context: IoContext,
        slot: Option<WriteSlot>,
    ) -> Writing {
        let shared = &self.shared;
        let guard = Device::writing(&shared.devices, physical.device, Writer::Caller);
        let guard = (guard, slot);
        if let Some(level) = context.level.filter(|_| context.class == FileClass::Sst) {
            note_level(physical.device(), level);
        }
        let inherits = passes_heat_on(context.class, context.purpose);
        let base_levels = shared.base_levels.lock();
        let depth = context.level.map(|level| base_levels.depth(context.family, level));
        drop(base_levels);
        let kind = kind_of(context.class, depth);
        Writing::begin(shared, entry, physical, kind, inherits, guard)
    }

    /// Creates a log in the space of an old one, if placement would put it on the same device.
    fn recycle(
        &self,
        old: &Path,
        path: &Path,
        context: IoContext,
        options: &LogOptions,
    ) -> Result<Option<Box<dyn LogFile>>> {
        let shared = &self.shared;
        let entry = shared.entry("recycle", old)?;
        let physical = Arc::clone(&entry.inside.lock().main);
        let (index, len) = (physical.device, physical.len());
        if !shared.keeps_place(context, options.size_hint_bytes, index, len)
            || entry.writers.load(Ordering::Acquire) > 0
        {
            return Ok(None);
        }
        let recycle = Some(physical.path.clone());
        let options = LogOptions { recycle, ..options.clone() };
        let inner = physical.device().fs.create_log(&physical.path, context, options);
        physical.device().note(&inner, shared.now_ns());
        let inner = inner?;
        let slot = shared.write_slot(physical.device(), context);
        let writing = self.writing(&entry, physical, context, slot);
        let record = Record::Rename { from: old.to_owned(), to: path.to_owned() };
        shared.commit(&mut shared.names.lock(), &record)?;
        Ok(Some(Box::new(TierLog::new(inner, writing))))
    }

    /// Both paths, normalised, if both lie below the root; `None` if neither does. Errors:
    /// `Unsupported` if only one of them does.
    fn both(&self, doing: &str, from: &Path, to: &Path) -> Result<Option<(PathBuf, PathBuf)>> {
        match (self.logical(from), self.logical(to)) {
            (Some(from), Some(to)) => Ok(Some((from, to))),
            (None, None) => Ok(None),
            _ => Err(Error::unsupported(format!(
                "cannot {doing} {} to {}: one lies in the tiers, the other does not",
                from.display(),
                to.display()
            ))),
        }
    }

    /// Changes names. Fault point: `names.changed`.
    fn change(&self, doing: &str, path: &Path, record: &Record) -> Result<()> {
        self.change_with(self.shared.names.lock(), doing, path, record)
    }

    /// Changes names under a lock that the caller holds.
    fn change_with(
        &self,
        mut names: MutexGuard<'_, Names>,
        doing: &str,
        path: &Path,
        record: &Record,
    ) -> Result<()> {
        let done = self.shared.commit(&mut names, record);
        drop(names);
        self.shared.tidy();
        done.and_then(|_| self.shared.fault_point("names.changed"))
            .map_err(|error| error.context_at(format!("{doing} {}", path.display())))
    }

    /// Creates a directory and those above it durably. If they cannot be synced, the new ones are
    /// removed again, unless other files lie in them by then. Fault point: `names.changed`.
    fn make_dir(&self, dir: &Path) -> Result<()> {
        let shared = &self.shared;
        let mut names = shared.names.lock();
        let is_new = |part: &&Path| !names.space.state.is_dir(part);
        let Some(uppermost) = dir.ancestors().take_while(is_new).last() else { return Ok(()) };
        let made = shared.commit(&mut names, &Record::MakeDir { path: dir.to_owned() });
        drop(names);
        let named = |error: Error| error.context_at(format!("create directory {}", dir.display()));
        let at = made.map_err(named)?;
        shared.fault_point("names.changed").map_err(named)?;
        let Err(error) = shared.sync() else { return Ok(()) };
        let mut names = shared.names.lock();
        if names.space.settled() >= at {
            // Another thread has synced the directory.
            return Ok(());
        }
        let is_alone = |part: &Path| {
            let listed = names.space.state.list(part);
            listed.is_some_and(|entries| entries.len() <= usize::from(part != dir))
        };
        if dir.ancestors().take_while(|part| part.starts_with(uppermost)).all(is_alone) {
            let record = Record::RemoveDir { path: uppermost.to_owned() };
            if let Err(error) = shared.commit_anyway(&mut names, &record) {
                tracing::warn!(%error, "a crash may bring a directory back that was not synced");
            }
        }
        Err(named(error))
    }

    /// Links a file of the tiers to a name outside, if its device is a local directory. Errors:
    /// `Unsupported` for a file that is being written or lies on another kind of device.
    fn link_out(&self, from: &Path, to: &Path) -> Result<()> {
        let entry = self.shared.entry("link", from)?;
        let physical = Arc::clone(&entry.inside.lock().main);
        let device = physical.device();
        if !device.is_local || entry.writers.load(Ordering::Acquire) > 0 {
            return Err(Error::unsupported(format!(
                "cannot link {} out of the tiers: device \"{}\" is not of the local file system",
                from.display(),
                device.name
            )));
        }
        device.fs.link(&physical.path, to)
    }
}

/// The smaller of two limits. 0 means no limit.
fn shorter(one: u64, other: u64) -> u64 {
    match (one, other) {
        (0, length) | (length, 0) => length,
        (one, other) => one.min(other),
    }
}

/// Number that distinguishes the directories of logs on a device. It depends on the log's
/// directory.
fn dir_hash(path: &Path) -> u64 {
    let dir = path.parent().unwrap_or(Path::new(""));
    hash64(dir.as_os_str().as_encoded_bytes()).max(1)
}

/// Notes that the device has a file of this level.
pub(crate) fn note_level(device: &Device, level: u8) {
    let raise = |deepest: u8| (deepest == u8::MAX || deepest < level).then_some(level);
    let _known = device.deepest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
}

impl FileSystem for TieredFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let Some(path) = self.logical(path) else {
            return self.shared.outside.create(path, context, options);
        };
        let existing = if options.exclusive { ExistingFile::Refuse } else { ExistingFile::Replace };
        self.create_entry(&path, context, options, existing).map(|(writer, _)| writer)
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let Some(path) = self.logical(path) else {
            return self.shared.outside.open(path, context, options);
        };
        let entry = self.shared.entry("open", &path)?;
        Ok(entry.open(&self.shared, &path, context, options)?)
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        let Some(path) = self.logical(path) else {
            return self.shared.outside.create_log(path, context, options);
        };
        self.check_target("create log", &path, ExistingFile::Replace)?;
        let old = options.recycle.as_deref().and_then(|old| self.logical(old));
        if let Some(old) = &old
            && let Some(log) = self.recycle(old, &path, context, &options)?
        {
            return Ok(log);
        }
        let (inner, file) =
            self.make(&path, context, options.size_hint_bytes, |device, physical| {
                let options = LogOptions { recycle: None, ..options.clone() };
                device.fs.create_log(physical, context, options)
            })?;
        let writing = self.enter(&path, context, file, ExistingFile::Replace)?;
        if let Some(old) = old {
            self.remove(&old)?;
        }
        Ok(Box::new(TierLog::new(inner, writing)))
    }

    fn log_tail(&self, path: &Path, incarnation: Epoch) -> Result<Option<LogTail>> {
        let Some(path) = self.logical(path) else {
            return self.shared.outside.log_tail(path, incarnation);
        };
        let entry = self.shared.entry("read the tail of log", &path)?;
        let physical = Arc::clone(&entry.inside.lock().main);
        physical.device().fs.log_tail(&physical.path, incarnation)
    }

    fn settle_log(&self, path: &Path, incarnation: Epoch, ranges: &[Range<u64>]) -> Result<()> {
        let Some(path) = self.logical(path) else {
            return self.shared.outside.settle_log(path, incarnation, ranges);
        };
        let entry = self.shared.entry("settle log", &path)?;
        let physical = Arc::clone(&entry.inside.lock().main);
        physical.device().fs.settle_log(&physical.path, incarnation, ranges)
    }

    fn clear_log_tails(&self, dir: &Path) -> Result<()> {
        let Some(dir) = self.logical(dir) else {
            return self.shared.outside.clear_log_tails(dir);
        };
        let place = |device: &Device| FilePlace {
            device: device.no,
            number: 0,
            dir: dir_hash(&dir.join("log")),
        };
        for device in self.shared.devices.iter() {
            let logs = device.dir_of(place(device));
            if device.fs.exists(&logs)? {
                device.fs.clear_log_tails(&logs)?;
            }
        }
        Ok(())
    }

    fn allocate(&self, path: &Path, bytes: u64) -> Result<()> {
        if self.logical(path).is_none() {
            return self.shared.outside.allocate(path, bytes);
        }
        // The room of a fast device is meant for files that are read. So the bytes go to the device
        // on which tables of the last level belong.
        let context = IoContext::sst(IoPurpose::Maintenance, crate::scheme::LEVELS as u8 - 1);
        archipelago_env::ballast::fill_as(self, path, bytes, context)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let Some((from, to)) = self.both("rename", from, to)? else {
            return self.shared.outside.rename(from, to);
        };
        self.shared.entry("rename", &from)?;
        self.check_target("rename", &to, ExistingFile::Replace)?;
        let names = self.shared.names.lock();
        // If the name has become a directory, the record would rename all that lies in it (see
        // `rename_dir`).
        if names.space.state.id(&from).is_none() {
            return Err(Error::io("rename", &from, std::io::ErrorKind::NotFound.into()));
        }
        self.change_with(names, "rename", &from, &Record::Rename { from: from.clone(), to })
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        if let (Some(from), None) = (self.logical(from), self.logical(to)) {
            return self.link_out(&from, to);
        }
        let Some((from, to)) = self.both("link", from, to)? else {
            return self.shared.outside.link(from, to);
        };
        self.shared.entry("link", &from)?;
        self.check_target("link", &to, ExistingFile::Replace)?;
        if self.shared.names.lock().space.state.id(&to).is_some() {
            let cause = std::io::ErrorKind::AlreadyExists.into();
            return Err(Error::io(&format!("link to {} the file", to.display()), &from, cause));
        }
        self.change("link", &from, &Record::Link { from: from.clone(), to })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let Some(path) = self.logical(path) else { return self.shared.outside.remove(path) };
        self.shared.entry("remove", &path)?;
        self.change("remove", &path, &Record::Remove { path: path.clone() })
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        if self.logical(dir).is_none() {
            return self.shared.outside.list(dir);
        }
        let as_text = |entry: TierDirEntry| {
            let TierDirEntry { name, is_dir, len } = entry;
            DirEntry { name: name.to_string_lossy().into_owned(), is_dir, len }
        };
        Ok(self.dir_entries(dir)?.into_iter().map(as_text).collect())
    }

    fn len(&self, path: &Path) -> Result<u64> {
        let Some(path) = self.logical(path) else { return self.shared.outside.len(path) };
        let entry = self.shared.entry("find the length of", &path)?;
        file_len(&self.shared, &entry)
    }

    fn modified_ms(&self, path: &Path) -> Result<Option<u64>> {
        let Some(path) = self.logical(path) else { return self.shared.outside.modified_ms(path) };
        let entry = self.shared.entry("find the time of", &path)?;
        modified_ms(&entry)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let Some(path) = self.logical(path) else { return self.shared.outside.exists(path) };
        let names = self.shared.names.lock();
        Ok(names.space.state.is_dir(&path) || names.space.state.id(&path).is_some())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let Some(dir) = self.logical(dir) else { return self.shared.outside.create_dir_all(dir) };
        if self.shared.names.lock().space.state.is_dir(&dir) {
            return Ok(());
        }
        let below = dir.strip_prefix(&self.shared.root).unwrap_or(&dir);
        if below.components().any(|part| part == Component::ParentDir) {
            return Err(Error::invalid(format!("{} contains \"..\"", dir.display())));
        }
        self.make_dir(&dir)
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        let Some(dir) = self.logical(dir) else { return self.shared.outside.remove_dir_all(dir) };
        if !self.shared.names.lock().space.state.is_dir(&dir) {
            return Err(Error::io("remove directory", &dir, std::io::ErrorKind::NotFound.into()));
        }
        self.change("remove directory", &dir, &Record::RemoveDir { path: dir.clone() })
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let Some(dir) = self.logical(dir) else { return self.shared.outside.sync_dir(dir) };
        if !self.shared.names.lock().space.state.is_dir(&dir) {
            return Err(Error::io("sync directory", &dir, std::io::ErrorKind::NotFound.into()));
        }
        self.shared.sync()?;
        self.shared.tidy();
        Ok(())
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let Some(path) = self.logical(path) else { return self.shared.outside.lock(path) };
        if !self.shared.locks.lock().insert(path.clone()) {
            return Err(Error::busy(format!(
                "{} is locked by this process (pid {}): close it there first",
                path.display(),
                std::process::id()
            )));
        }
        let guard = TierLock { shared: Arc::clone(&self.shared), path: path.clone() };
        if !self.exists(&path)? {
            let context = IoContext::manifest(IoPurpose::ForegroundWrite);
            drop(self.create(&path, context, CreateOptions::default())?);
        }
        Ok(Box::new(guard))
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.shared.devices[self.shared.home].fs.boot_id()
    }

    fn reassign(&self, path: &Path, context: IoContext) {
        if self.logical(path).is_none() || context.level.is_none() {
            return;
        }
        if let Err(error) = self.set_level(path, context)
            && error.kind() != archipelago_base::ErrorKind::NotFound
        {
            tracing::warn!(%error, file = %path.display(), "its level could not be recorded");
        }
    }

    fn group_access(&self) -> Option<GroupAccess> {
        self.shared.devices.first().and_then(|device| device.fs.group_access())
    }

    fn redundancy(&self, class: FileClass) -> f64 {
        let devices = &self.shared.devices;
        devices[device_of_class(class, devices.len())].fs.redundancy(class)
    }

    fn recycles_logs(&self) -> bool {
        let devices = &self.shared.devices;
        devices[device_of_class(FileClass::Wal, devices.len())].fs.recycles_logs()
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        if self.logical(dir).is_none() {
            return self.shared.outside.free_bytes(dir);
        }
        // A database decides from this figure which writes it accepts. So the figure must be
        // recent, and files that wait for their removal must not count as used if they hold much
        // room.
        if self.shared.is_short_of_room_for_trash()
            && let Err(error) = self.shared.empty_trash(true)
        {
            tracing::warn!(%error, "removed files keep their room, because the namespace cannot be synced");
        }
        self.shared.devices.iter().for_each(Device::refresh_free);
        let free = self.shared.devices.iter().map(Device::free);
        Ok(Some(free.fold(0, u64::saturating_add)))
    }
}

/// The length of a file. A device is asked for the length of a file that is being written. The
/// length of a missing file comes from a whole copy, if there is one. The length of a lost file is
/// the number of bytes that its device is charged with for it, which is 0 if the file was missing
/// at the open.
fn file_len(shared: &Arc<OpenTiers>, entry: &Arc<Entry>) -> Result<u64> {
    let (physical, is_missing, is_lost) = {
        let inside = entry.inside.lock();
        (Arc::clone(&inside.main), inside.missing, inside.is_lost())
    };
    if is_lost {
        // The device has no such file. If it were asked, one lost file would make the listing of
        // its whole directory fail.
        return Ok(physical.len());
    }
    if is_missing {
        let context = IoContext::new(entry.class, IoPurpose::Maintenance);
        // A listing of a directory succeeds even if no copy can be opened.
        let opened = entry.open(shared, &physical.path, context, OpenOptions::default());
        return Ok(opened.map_or(0, |file| file.len()));
    }
    if entry.class == FileClass::Wal || entry.writers.load(Ordering::Acquire) > 0 {
        return physical.device().fs.len(&physical.path);
    }
    Ok(physical.len())
}

/// Time at which the file was written to its present device, in milliseconds since 1970. `None` if
/// the device does not know, or lost the file.
fn modified_ms(entry: &Entry) -> Result<Option<u64>> {
    let (physical, missing) = {
        let inside = entry.inside.lock();
        (Arc::clone(&inside.main), inside.missing)
    };
    if missing { Ok(None) } else { physical.device().fs.modified_ms(&physical.path) }
}

/// A lock within this process. The locks of the devices keep other processes out.
#[derive(Debug)]
struct TierLock {
    shared: Arc<OpenTiers>,
    path: PathBuf,
}

impl FileLock for TierLock {}

impl Drop for TierLock {
    fn drop(&mut self) {
        self.shared.locks.lock().remove(&self.path);
    }
}
