//! Tiers that a C program has open, and the files that it is writing.
//!
//! A [`GrowingFile`] is a file that is being written: its writer and its length. Readers that were
//! opened meanwhile know it. They open the file again to see bytes that were appended since.
//! Readers of other files do not know it.
//!
//! Invariants:
//! 1. A file has at most one `GrowingFile`. It stands in `growing` as long as a handle writes it.
//! 2. Its length covers what was appended and handed to the operating system. No reader that knows
//!    it reads beyond that length, because the file itself may be longer while it is written.
//! 3. The writer ends with the handle that writes, even if other handles still read the file.
//! 4. A name stands in `creating` while a caller gives it to a file or directory: from the check of
//!    the file that has the name, through the wait for a write slot, to the change. No other caller
//!    can give the name to a file meanwhile. So the creation replaces the file that was checked.
//!    The tiers decide under their own lock whether a name is free (`O_EXCL`), and return the file
//!    that they created. So a removal or a rename of the name need not wait for the creation, and
//!    it must not: its caller may hold the write slot for which the creation waits. No other
//!    process has the tiers open.
//! 5. The tiers are closed only if nothing else holds their [`Space`]: no open file, directory or
//!    lock, and no call that is under way.
//!
//! Thread-safety: any thread may call any method. Failure: the caller gets the error, and nothing
//! has changed unless the header says otherwise.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use archipelago_base::Error;
use archipelago_env::local::LocalFs;
use archipelago_env::{
    CreateOptions, FileLock, FileSystem, IoContext, IoPurpose, OpenOptions, RandomFile,
    WritableFile,
};
use archipelago_tier::{
    Components, DeviceSettings, ExistingFile, FileInfo, Policy, TierDirEntry, TierFile, TieredFs,
};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use serde::Deserialize;

use crate::failure::{CallResult, Failure, FailureKind};
use crate::ffi::Options;
use crate::handles::Handles;

/// The tiers, directories and locks that C holds. `file.rs` has the files.
pub(crate) static SPACES: LazyLock<Handles<Space>> = LazyLock::new(|| Handles::new("tiers", 1));
pub(crate) static DIRS: LazyLock<Handles<Listing>> = LazyLock::new(|| Handles::new("directory", 3));
pub(crate) static LOCKS: LazyLock<Handles<Lock>> = LazyLock::new(|| Handles::new("lock", 4));

/// Open tiers of a C program.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) tiers: Arc<TieredFs>,
    /// Number of files, directories and locks that C holds.
    held: AtomicUsize,
    growing: Mutex<HashMap<u64, Weak<GrowingFile>>>,
    creating: Mutex<HashSet<PathBuf>>,
    created: Condvar,
}

/// Counts as held by C until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBySpace(Arc<Space>);

impl HeldBySpace {
    pub(crate) fn by(space: &Arc<Space>) -> Self {
        space.held.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(space))
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.0
    }
}

impl Drop for HeldBySpace {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct GrowingFile {
    pub(crate) file: TierFile,
    len: AtomicU64,
    /// `None` after the handle that writes was closed.
    writer: Mutex<Option<Box<dyn WritableFile>>>,
}

impl GrowingFile {
    /// Number of bytes that were appended and that the operating system has.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Calls `act` with the writer, and updates the length.
    fn write(&self, act: impl FnOnce(&mut dyn WritableFile) -> CallResult<()>) -> CallResult<()> {
        let mut slot = self.writer.lock();
        let Some(writer) = slot.as_deref_mut() else {
            return Err(Failure::new(
                FailureKind::InvalidArgument,
                Errno::BADF,
                "its writer is closed",
            ));
        };
        act(writer)?;
        self.len.store(writer.len(), Ordering::Release);
        Ok(())
    }

    /// Appends `data`. On return the bytes survive a kill of the process, and every reader sees
    /// them. If `at` is given, it must be the end of the file.
    pub(crate) fn append(&self, data: &[u8], at: Option<u64>, sync: bool) -> CallResult<()> {
        self.write(|writer| {
            if let Some(at) = at.filter(|&at| at != writer.len()) {
                return Err(Failure::unsupported(format!(
                    "files are written front to back: the file has {} bytes, the write is at {at}",
                    writer.len()
                )));
            }
            writer.append(data)?;
            let done = if sync { writer.sync() } else { writer.flush() };
            Ok(done?)
        })
    }

    /// Appends zeros up to `len` bytes. A file cannot become shorter.
    pub(crate) fn extend(&self, len: u64) -> CallResult<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        self.write(|writer| {
            if len < writer.len() {
                return Err(Failure::unsupported(format!(
                    "files are written front to back: one of {} bytes cannot be cut to {len}",
                    writer.len()
                )));
            }
            while writer.len() < len {
                let part = ZEROS.len().min((len - writer.len()) as usize);
                writer.append(&ZEROS[..part])?;
            }
            Ok(writer.flush()?)
        })
    }

    /// Makes the file durable. Returns `false` if no handle writes it any more.
    pub(crate) fn sync(&self) -> CallResult<bool> {
        match &mut *self.writer.lock() {
            Some(writer) => writer.sync().map(|()| true).map_err(Failure::from),
            None => Ok(false),
        }
    }
}

/// A file that was opened for reading.
pub(crate) struct OpenedFile {
    pub(crate) file: TierFile,
    /// The writer's side, if the file is being written.
    pub(crate) growing: Option<Arc<GrowingFile>>,
    pub(crate) reader: Arc<dyn RandomFile>,
}

/// A directory that C reads.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) left: Mutex<std::vec::IntoIter<TierDirEntry>>,
    _held: HeldBySpace,
}

/// A lock that C holds.
#[derive(Debug)]
pub(crate) struct Lock {
    _lock: Box<dyn FileLock>,
    _held: HeldBySpace,
}

/// The part of a settings file that this library reads.
#[derive(Debug, Deserialize)]
struct SettingsFile {
    tiers: Vec<DeviceSettings>,
}

/// The devices of a settings file.
pub(crate) fn devices_of(path: &Path) -> CallResult<Vec<DeviceSettings>> {
    let bytes = LocalFs::new().read(path, IoContext::manifest(IoPurpose::Recovery))?;
    let refuse = |what: String| Failure::invalid(format!("{}: {what}", path.display()));
    let text = String::from_utf8(bytes).map_err(|_| refuse("it is not text".to_owned()))?;
    let file: SettingsFile = toml::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    Ok(file.tiers)
}

/// Longest name that a directory entry of the header has room for, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Refuses a name that a directory entry of the header has no room for.
pub(crate) fn check_name(name: &OsStr) -> CallResult<()> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let message = format!("{} is longer than {NAME_BYTES_MAX} bytes", Path::new(name).display());
    Err(Failure::new(FailureKind::InvalidArgument, Errno::NAMETOOLONG, message))
}

/// The right to give one name to a file or directory, from [`Space::claim_name`].
struct ClaimedName<'a> {
    space: &'a Space,
    path: PathBuf,
}

impl Drop for ClaimedName<'_> {
    fn drop(&mut self) {
        self.space.creating.lock().remove(&self.path);
        self.space.created.notify_all();
    }
}

impl Space {
    /// Opens tiers and returns their number.
    pub(crate) fn open(devices: &[DeviceSettings], options: Options<'_>) -> CallResult<i32> {
        let root = options.root;
        if root.components().any(|part| part.as_os_str() == "..") {
            return Err(Failure::invalid(format!("the root {} contains \"..\"", root.display())));
        }
        let policy = Policy { fast_levels: options.fast_levels, ..Policy::default() };
        let says = || "must_exist of the options says that they have tiers".to_owned();
        let must_exist = options.must_exist.then(says);
        let components = Components {
            policy,
            must_exist,
            group_access: options.group_access,
            ..Components::default()
        };
        let tiers = TieredFs::open(root, devices, components)?;
        tiers.create_dir_all(tiers.root())?;
        let space = Self {
            tiers,
            held: AtomicUsize::new(0),
            growing: Mutex::default(),
            creating: Mutex::default(),
            created: Condvar::new(),
        };
        Ok(SPACES.insert(Arc::new(space)))
    }

    /// Closes the tiers of this number. Errors: `EBUSY` while C holds files, directories or locks
    /// of them, or another call is under way, and then they stay open. After any other error they
    /// are closed nevertheless.
    pub(crate) fn close(handle: i32) -> CallResult<()> {
        let busy = |message: String| Failure::new(FailureKind::Busy, Errno::BUSY, message);
        let held = SPACES.get(handle)?.held.load(Ordering::Acquire);
        if held > 0 {
            let message = format!("{held} files, directories or locks of the tiers are still open");
            return Err(busy(message));
        }
        // A call that is under way may open a file.
        let Some(space) = SPACES.remove_unused(handle)? else {
            return Err(busy("another call on the tiers is still running".to_owned()));
        };
        space.tiers.close().map_err(Failure::from)
    }

    /// Refuses a path that does not lie in the tiers.
    pub(crate) fn own<'a>(&self, path: &'a Path) -> CallResult<&'a Path> {
        self.tiers.is_dir(path)?;
        Ok(path)
    }

    /// Refuses a path with a name below the root that no directory could list.
    fn check_names(&self, path: &Path) -> CallResult<()> {
        let below = path.strip_prefix(self.tiers.root()).unwrap_or(path);
        below.components().try_for_each(|part| check_name(part.as_os_str()))
    }

    /// Facts about a file. Its length covers what was appended to it.
    pub(crate) fn file_info(&self, path: &Path) -> CallResult<FileInfo> {
        let (file, growing) = self.find(path)?;
        let found = file.info()?;
        Ok(FileInfo { len: growing.map_or(found.len, |growing| growing.len()), ..found })
    }

    /// The file at `path`, and the writer's side while a handle writes it. Meanwhile the device may
    /// have more bytes than were appended.
    fn find(&self, path: &Path) -> CallResult<(TierFile, Option<Arc<GrowingFile>>)> {
        loop {
            let file = self.tiers.file(path)?;
            let growing = self.growing(file.id());
            if growing.is_some() || !file.is_written() {
                return Ok((file, growing));
            }
            // The thread that is creating the file is about to register it.
            std::thread::yield_now();
        }
    }

    /// Opens a file for reading.
    pub(crate) fn open_reader(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> CallResult<OpenedFile> {
        // This precedes the opening of the file, so the reader knows of a writer.
        let (file, growing) = self.find(path)?;
        let reader = file.open(context, options)?;
        Ok(OpenedFile { file, growing, reader })
    }

    /// The writer's side of the file with this id, if a handle writes it.
    pub(crate) fn growing(&self, id: u64) -> Option<Arc<GrowingFile>> {
        self.growing.lock().get(&id).and_then(Weak::upgrade)
    }

    /// Waits until no other thread gives this name to a file or directory. Threads with other names
    /// go on, because a table may wait for a write slot, and the log must not wait for the table.
    /// A thread claims one name at a time, so claims do not wait for each other in a circle.
    fn claim_name(&self, path: &Path) -> ClaimedName<'_> {
        // Different spellings of a path must be equal.
        let path: PathBuf = path.components().collect();
        let mut creating = self.creating.lock();
        while !creating.insert(path.clone()) {
            self.created.wait(&mut creating);
        }
        drop(creating);
        ClaimedName { space: self, path }
    }

    /// Refuses a file that has bytes, or that a handle writes.
    fn refuse_used(&self, path: &Path) -> CallResult<()> {
        let (file, growing) = match self.find(path) {
            Err(failure) if failure.kind == FailureKind::NotFound => return Ok(()),
            found => found?,
        };
        // The length is asked for afterwards, so it is the final one if nobody writes the file.
        let is_written = file.is_written();
        let len = match growing {
            Some(growing) => growing.len(),
            None => file.length()?,
        };
        let name = path.display();
        if len > 0 {
            return Err(Failure::unsupported(format!(
                "{name} has bytes already: files are written once, front to back (O_TRUNC replaces it)"
            )));
        }
        if is_written {
            let message =
                format!("{name} is being written by another handle (O_TRUNC replaces it)");
            return Err(Failure::new(FailureKind::Busy, Errno::BUSY, message));
        }
        Ok(())
    }

    /// Creates a new file, or replaces an old one as `existing` says. Without `truncates`, it
    /// replaces only an empty file that no handle writes. Errors: `EEXIST` if the file must be new,
    /// `ENOENT` if it must exist, and without `truncates` `EOPNOTSUPP` if it has bytes, and `EBUSY`
    /// if a handle writes it.
    pub(crate) fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
        existing: ExistingFile,
        truncates: bool,
    ) -> CallResult<Arc<GrowingFile>> {
        self.check_names(self.own(path)?)?;
        let _claimed = self.claim_name(path);
        if !truncates && existing != ExistingFile::Refuse {
            self.refuse_used(path)?;
        }
        let (writer, file) = self.tiers.create_file(path, context, options, existing)?;
        let id = file.id();
        let growing = Arc::new(GrowingFile {
            file,
            len: AtomicU64::new(0),
            writer: Mutex::new(Some(writer)),
        });
        self.growing.lock().insert(id, Arc::downgrade(&growing));
        Ok(growing)
    }

    /// Ends the writing of a file. Its readers go on with the length that it has.
    pub(crate) fn end(&self, growing: &GrowingFile) {
        drop(growing.writer.lock().take());
        self.growing.lock().remove(&growing.file.id());
    }

    /// Renames a file, or a directory with its contents.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> CallResult<()> {
        let (from, to) = (self.own(from)?, self.own(to)?);
        self.check_names(to)?;
        // A thread that creates a file of that name has checked what it replaces.
        if !self.tiers.is_dir(from)? {
            let _claimed = self.claim_name(to);
            return Ok(self.tiers.rename(from, to)?);
        }
        let plain = |path: &Path| path.components().collect::<PathBuf>();
        let (within, below) = (plain(from), plain(to));
        let mut creating = self.creating.lock();
        while creating.iter().any(|name| name.starts_with(&within) || name.starts_with(&below)) {
            self.created.wait(&mut creating);
        }
        // The lock is held, so nothing is created in the directory meanwhile.
        Ok(self.tiers.rename_dir(from, to)?)
    }

    /// Gives a file one more name, which may lie outside the tiers.
    pub(crate) fn link(&self, from: &Path, to: &Path) -> CallResult<()> {
        let from = self.own(from)?;
        self.check_names(to)?;
        let _claimed = self.claim_name(to);
        Ok(self.tiers.link(from, to)?)
    }

    pub(crate) fn remove(&self, path: &Path) -> CallResult<()> {
        Ok(self.tiers.remove(self.own(path)?)?)
    }

    /// Creates a directory and its missing parents.
    pub(crate) fn make_dir(&self, path: &Path) -> CallResult<()> {
        self.check_names(self.own(path)?)?;
        let _claimed = self.claim_name(path);
        if self.tiers.exists(path)? {
            let kind = std::io::ErrorKind::AlreadyExists;
            return Err(Error::io("create directory", path, kind.into()).into());
        }
        Ok(self.tiers.create_dir_all(path)?)
    }

    pub(crate) fn list(self: &Arc<Self>, path: &Path) -> CallResult<i32> {
        let mut entries = self.tiers.dir_entries(path)?;
        for entry in entries.iter_mut().filter(|entry| !entry.is_dir) {
            // A file that was removed meanwhile is listed as it was. A file that was closed
            // meanwhile has its current length.
            let name = path.join(&entry.name);
            if let Ok((file, growing)) = self.find(&name) {
                let known = growing.map(|growing| growing.len());
                entry.len = known.or_else(|| file.length().ok()).unwrap_or(entry.len);
            }
        }
        let left = Mutex::new(entries.into_iter());
        Ok(DIRS.insert(Arc::new(Listing { left, _held: HeldBySpace::by(self) })))
    }

    pub(crate) fn lock(self: &Arc<Self>, path: &Path) -> CallResult<i32> {
        self.check_names(self.own(path)?)?;
        // The tiers create a file of this name if there is none.
        let _claimed = self.claim_name(path);
        let lock = self.tiers.lock(path)?;
        Ok(LOCKS.insert(Arc::new(Lock { _lock: lock, _held: HeldBySpace::by(self) })))
    }
}

#[cfg(test)]
mod tests {
    use archipelago_env::GroupAccess;
    use archipelago_tier::DeviceKind;

    use super::*;
    use crate::context::UNKNOWN;

    fn opened(dir: &Path) -> i32 {
        let options = Options {
            root: Path::new("tiers:"),
            fast_levels: None,
            must_exist: false,
            group_access: GroupAccess::None,
        };
        let device = DeviceSettings::new(dir.join("only"), DeviceKind::Directory).creating();
        Space::open(&[device], options).unwrap()
    }

    fn created(space: &Space, path: &Path, existing: ExistingFile) -> CallResult<()> {
        let options = CreateOptions::default();
        let growing = space.create(path, UNKNOWN.io, options, existing, false)?;
        space.end(&growing);
        Ok(())
    }

    #[test]
    fn name_is_given_once_by_creations_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let handle = opened(dir.path());
        let space = SPACES.get(handle).unwrap();
        let other = Path::new("tiers:/other");
        created(&space, other, ExistingFile::Refuse).unwrap();
        for round in 0..100 {
            let path = PathBuf::from(format!("tiers:/{round}"));
            let create = || created(&space, &path, ExistingFile::Refuse).is_ok();
            let (one, two, linked) = std::thread::scope(|scope| {
                let one = scope.spawn(create);
                let two = scope.spawn(create);
                let linked = scope.spawn(|| space.link(other, &path).is_ok());
                (one.join().unwrap(), two.join().unwrap(), linked.join().unwrap())
            });
            let given = [one, two, linked].map(usize::from).iter().sum::<usize>();
            assert_eq!(given, 1, "round {round}: {one} {two} {linked}");
            assert_eq!(
                space.file_info(&path).unwrap().id == space.file_info(other).unwrap().id,
                linked
            );
        }
        drop(space);
        Space::close(handle).unwrap();
    }

    #[test]
    fn creation_succeeds_although_its_name_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let handle = opened(dir.path());
        let space = SPACES.get(handle).unwrap();
        let (path, renamed) = (Path::new("tiers:/a"), Path::new("tiers:/b"));
        for round in 0..100 {
            let result = std::thread::scope(|scope| {
                let creation = scope.spawn(|| created(&space, path, ExistingFile::Refuse));
                scope.spawn(|| space.remove(path).is_ok());
                scope.spawn(|| space.rename(path, renamed).is_ok());
                creation.join().unwrap()
            });
            assert!(result.is_ok(), "round {round}: {result:?}");
            // The other threads came first, or one of them took the name.
            let _taken = space.remove(path);
        }
        let missing = created(&space, path, ExistingFile::Require).unwrap_err();
        assert_eq!(missing.errno, Errno::NOENT);
        drop(space);
        Space::close(handle).unwrap();
    }

    #[test]
    fn tiers_stay_open_while_a_call_is_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let handle = opened(dir.path());
        let call = SPACES.get(handle).unwrap();
        let refused = Space::close(handle).unwrap_err();
        assert_eq!((refused.kind, refused.errno), (FailureKind::Busy, Errno::BUSY));
        assert!(refused.message.contains("still running"), "{}", refused.message);
        created(&call, Path::new("tiers:/a"), ExistingFile::Refuse).unwrap();
        drop(call);
        Space::close(handle).unwrap();
        assert_eq!(Space::close(handle).unwrap_err().errno, Errno::BADF);
    }
}
