//! Tiers that a C program has open, and the files that it is writing.
//!
//! A file that is being written is a [`Growing`]: its writer, how long it is, and the last name under which it was
//! known, by which readers open it again that want to see what was appended since. Readers of other files know nothing of it.
//!
//! Invariants: 1. a file has at most one `Growing`, and it is in `growing` as long as a handle writes; 2. its length
//! is what the operating system has, never what a buffer has; 3. a name is in `creating` from the look whether it
//! exists to its creation, and nobody else makes it meanwhile, so that `O_EXCL` is exact among callers of this library (no other process has the tiers open).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use archipelago_base::Error;
use archipelago_env::local::LocalFs;
use archipelago_env::{
    CreateOptions, DirEntry, FileLock, FileSystem, IoContext, IoPurpose, OpenOptions, RandomFile,
    WritableFile,
};
use archipelago_tier::{Components, DeviceSettings, Policy, TieredFs, Whereabouts};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use serde::Deserialize;

use crate::border::Options;
use crate::failure::{Failure, Kind, Outcome};
use crate::file::File;
use crate::handles::Handles;

/// All that C holds.
pub(crate) static SPACES: LazyLock<Handles<Space>> = LazyLock::new(|| Handles::new("tiers", 1));
pub(crate) static FILES: LazyLock<Handles<File>> = LazyLock::new(|| Handles::new("file", 2));
pub(crate) static DIRS: LazyLock<Handles<Listing>> = LazyLock::new(|| Handles::new("directory", 3));
pub(crate) static LOCKS: LazyLock<Handles<Lock>> = LazyLock::new(|| Handles::new("lock", 4));

/// Open tiers; see the module.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) tiers: Arc<TieredFs>,
    /// Files, directories and locks that C holds.
    held: AtomicUsize,
    growing: Mutex<HashMap<u64, Weak<Growing>>>,
    creating: Mutex<HashSet<PathBuf>>,
    created: Condvar,
}

/// Counts as held by C until it is dropped.
#[derive(Debug)]
pub(crate) struct Held(Arc<Space>);

impl Held {
    pub(crate) fn by(space: &Arc<Space>) -> Self {
        space.held.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(space))
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A file that is being written; see the module.
#[derive(Debug)]
pub(crate) struct Growing {
    pub(crate) id: u64,
    len: AtomicU64,
    /// The last name that is known; another file may have it by now.
    name: Mutex<PathBuf>,
    writer: Mutex<Box<dyn WritableFile>>,
}

impl Growing {
    /// Bytes that the operating system has.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn name(&self) -> PathBuf {
        self.name.lock().clone()
    }

    /// Appends; on return the bytes survive a kill of the process and every reader sees them. `at`: where the caller
    /// thinks that the file ends.
    pub(crate) fn append(&self, data: &[u8], at: Option<u64>, sync: bool) -> Outcome<()> {
        let mut writer = self.writer.lock();
        if let Some(at) = at.filter(|&at| at != writer.len()) {
            return Err(Failure::unsupported(format!(
                "files are written front to back: the file has {} bytes, the write is at {at}",
                writer.len()
            )));
        }
        writer.append(data)?;
        let done = if sync { writer.sync() } else { writer.flush() };
        done?;
        self.len.store(writer.len(), Ordering::Release);
        Ok(())
    }

    /// Appends zeros up to `len`; a shorter file cannot be had.
    pub(crate) fn extend(&self, len: u64) -> Outcome<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut writer = self.writer.lock();
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
        writer.flush()?;
        self.len.store(writer.len(), Ordering::Release);
        Ok(())
    }

    pub(crate) fn sync(&self) -> Outcome<()> {
        Ok(self.writer.lock().sync()?)
    }
}

/// A directory that C reads.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) left: Mutex<std::vec::IntoIter<DirEntry>>,
    _held: Held,
}

/// A lock that C holds.
#[derive(Debug)]
pub(crate) struct Lock {
    _lock: Box<dyn FileLock>,
    _held: Held,
}

/// What a settings file has for us; the rest of it is for others.
#[derive(Debug, Deserialize)]
struct SettingsFile {
    tiers: Vec<DeviceSettings>,
}

/// The devices of a settings file.
pub(crate) fn devices_of(path: &Path) -> Outcome<Vec<DeviceSettings>> {
    let bytes = LocalFs::new().read(path, IoContext::manifest(IoPurpose::Recovery))?;
    let refuse = |what: String| Failure::invalid(format!("{}: {what}", path.display()));
    let text = String::from_utf8(bytes).map_err(|_| refuse("it is not text".to_owned()))?;
    let file: SettingsFile = toml::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    Ok(file.tiers)
}

/// One name that is being made; see [`Space::alone`].
struct Alone<'a> {
    space: &'a Space,
    path: PathBuf,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.space.creating.lock().remove(&self.path);
        self.space.created.notify_all();
    }
}

impl Space {
    /// Opens tiers; their number.
    pub(crate) fn open(devices: &[DeviceSettings], options: Options<'_>) -> Outcome<i32> {
        let root = options.root;
        if root.components().any(|part| part.as_os_str() == "..") {
            return Err(Failure::invalid(format!("the root {} goes up by \"..\"", root.display())));
        }
        let policy = Policy { fast_levels: options.fast_levels, ..Policy::default() };
        let tiers = TieredFs::open(root, devices, Components { policy, ..Components::default() })?;
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

    /// Ends the tiers behind the number. Errors: `EBUSY` while C holds something of them.
    pub(crate) fn close(handle: i32) -> Outcome<()> {
        let space = SPACES.get(handle)?;
        let held = space.held.load(Ordering::Acquire);
        if held > 0 {
            let message = format!("{held} files, directories or locks of the tiers are still open");
            return Err(Failure::new(Kind::Busy, Errno::BUSY, message));
        }
        SPACES.remove(handle)?.tiers.close().map_err(Failure::from)
    }

    /// Refuses what does not lie in the tiers.
    pub(crate) fn own<'a>(&self, path: &'a Path) -> Outcome<&'a Path> {
        self.tiers.is_dir(path)?;
        Ok(path)
    }

    pub(crate) fn whereabouts(&self, path: &Path) -> Outcome<Whereabouts> {
        Ok(self.tiers.whereabouts(path)?)
    }

    /// Opens a file for reading; its id.
    pub(crate) fn open_reader(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Outcome<(u64, Arc<dyn RandomFile>)> {
        loop {
            let before = self.whereabouts(path)?.id;
            let reader = self.tiers.open(path, context, options)?;
            // Another file may have taken the name in between.
            if self.whereabouts(path)?.id == before {
                return Ok((before, reader));
            }
        }
    }

    /// The file of this id, if it is being written.
    pub(crate) fn growing(&self, id: u64) -> Option<Arc<Growing>> {
        self.growing.lock().get(&id).and_then(Weak::upgrade)
    }

    /// Waits until nobody else makes a file or directory of this name. Others go on: a table may wait for its turn to be
    /// written, and the log must not wait for that.
    fn alone(&self, path: &Path) -> Alone<'_> {
        // However it is spelled.
        let path: PathBuf = path.components().collect();
        let mut creating = self.creating.lock();
        while !creating.insert(path.clone()) {
            self.created.wait(&mut creating);
        }
        drop(creating);
        Alone { space: self, path }
    }

    /// Makes a new file. Errors: `EEXIST` with `exclusive`; `EOPNOTSUPP` if it has bytes and `replace` is not given.
    pub(crate) fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
        (exclusive, replace): (bool, bool),
    ) -> Outcome<Arc<Growing>> {
        let _one = self.alone(path);
        if self.tiers.exists(self.own(path)?)? && !self.tiers.is_dir(path)? {
            let failed = |kind: std::io::ErrorKind| Error::io("create", path, kind.into());
            if exclusive {
                return Err(failed(std::io::ErrorKind::AlreadyExists).into());
            }
            if !replace && self.tiers.len(path)? > 0 {
                return Err(Failure::unsupported(format!(
                    "{} has bytes already: files are written once, front to back (O_TRUNC replaces it)",
                    path.display()
                )));
            }
        }
        let writer = self.tiers.create(path, context, options)?;
        let id = self.tiers.whereabouts(path)?.id;
        let growing = Arc::new(Growing {
            id,
            len: AtomicU64::new(0),
            name: Mutex::new(path.to_owned()),
            writer: Mutex::new(writer),
        });
        let mut known = self.growing.lock();
        known.retain(|_, file| file.strong_count() > 0);
        known.insert(id, Arc::downgrade(&growing));
        Ok(growing)
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Outcome<()> {
        let (from, to) = (self.own(from)?, self.own(to)?);
        if self.tiers.is_dir(from)? {
            return Err(Failure::unsupported(format!(
                "{} is a directory: only files can be renamed",
                from.display()
            )));
        }
        let id = self.tiers.whereabouts(from)?.id;
        self.tiers.rename(from, to)?;
        if let Some(growing) = self.growing(id) {
            *growing.name.lock() = to.to_owned();
        }
        Ok(())
    }

    pub(crate) fn remove(&self, path: &Path) -> Outcome<()> {
        Ok(self.tiers.remove(self.own(path)?)?)
    }

    /// Makes a directory and those above it.
    pub(crate) fn make_dir(&self, path: &Path) -> Outcome<()> {
        let _one = self.alone(path);
        if self.tiers.exists(self.own(path)?)? {
            let kind = std::io::ErrorKind::AlreadyExists;
            return Err(Error::io("create directory", path, kind.into()).into());
        }
        Ok(self.tiers.create_dir_all(path)?)
    }

    pub(crate) fn list(self: &Arc<Self>, path: &Path) -> Outcome<i32> {
        let entries = self.tiers.list(self.own(path)?)?;
        let left = Mutex::new(entries.into_iter());
        Ok(DIRS.insert(Arc::new(Listing { left, _held: Held::by(self) })))
    }

    pub(crate) fn lock(self: &Arc<Self>, path: &Path) -> Outcome<i32> {
        let lock = self.tiers.lock(self.own(path)?)?;
        Ok(LOCKS.insert(Arc::new(Lock { _lock: lock, _held: Held::by(self) })))
    }
}
