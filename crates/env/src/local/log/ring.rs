//! A ring with its drainer thread, and the pool that gives rings to segments.
//!
//! The open segment ([`super::segment::RingLog`]) owns a ring until it is dropped. A new segment in
//! the same directory takes over the ring of a finished one, so that a rotation maps nothing.
//!
//! Invariants:
//! 1. A ring serves one open segment at a time.
//! 2. A ring with bytes that no file has (after a failed drain or a killed process) serves no
//!    segment until [`clear`] was called. The next segment gets another ring file.
//! 3. A drainer that sleeps has made its handle known, and is woken when the ring is dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;

use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Epoch, Error, Result};
use parking_lot::Mutex;

use super::super::modes::Modes;
use super::super::tables::with_room;
use super::layout::{self, FILE_BYTES, INCARNATION_AT};
use super::mapping::Mapping;
use super::segment::Open;
use crate::fs::LogTail;

const PREFIX: &str = "wal-";
const SUFFIX: &str = ".ring";
/// Limit of the rings of one directory. More than two exist only after repeated failures of drains.
const RINGS_MAX: usize = 64;
/// Part of the free space that a ring file may take. A segment works without a ring, and on an
/// almost full device the space is needed for other files.
const ROOM_SHARE: u64 = 8;

/// What the drainer thread has to do.
#[derive(Clone, Debug)]
enum DrainerTask {
    /// The ring serves no segment, so there is nothing to drain.
    Wait,
    /// The complete chunks of this segment must be written.
    Drain(Arc<Open>),
    /// The ring is dropped, so the thread must end.
    Stop,
}

/// State that the drainer thread and the appender share.
#[derive(Debug)]
pub(super) struct RingState {
    pub(super) mapping: Mapping,
    task: Mutex<DrainerTask>,
    drainer: OnceLock<Thread>,
}

impl RingState {
    /// Notifies the drainer of a chunk to write, with a system call only if it sleeps.
    #[inline]
    pub(super) fn wake(&self) {
        if let Some(drainer) = self.drainer.get() {
            drainer.unpark();
        }
    }

    fn drain_until_stopped(&self) {
        // The handle is known before the first look at the task. So a thread that changes the task
        // later, under the same lock, finds the handle and wakes this one, and a change that came
        // earlier is seen here. A full chunk whose notification comes before this store may stay in
        // the ring until the next notification or the next sync.
        let _set = self.drainer.set(std::thread::current());
        loop {
            let task = self.task.lock().clone();
            let is_busy = match task {
                DrainerTask::Stop => return,
                DrainerTask::Wait => false,
                DrainerTask::Drain(open) => open.drain_chunk(),
            };
            if !is_busy {
                std::thread::park();
            }
        }
    }

    /// Ends the drainer thread after the chunk that it is writing.
    fn stop(&self) {
        // The wake-up must come after the change of the task, which `drain_until_stopped` explains.
        *self.task.lock() = DrainerTask::Stop;
        self.wake();
    }
}

/// A mapped ring and its drainer.
#[derive(Debug)]
pub(super) struct Ring {
    path: PathBuf,
    pub(super) shared: Arc<RingState>,
    serving: AtomicBool,
    joiner: Option<Joiner>,
}

impl Ring {
    fn map(path: PathBuf, file: &File) -> Result<Self> {
        let mapping = Mapping::new(file).map_err(|error| Error::io("map", &path, error))?;
        let shared = Arc::new(RingState {
            mapping,
            task: Mutex::new(DrainerTask::Wait),
            drainer: OnceLock::new(),
        });
        let drained = Arc::clone(&shared);
        let body = Box::new(move || drained.drain_until_stopped());
        let joiner = Some(SystemSpawn.spawn("wal-drain", body)?);
        Ok(Self { path, shared, serving: AtomicBool::new(true), joiner })
    }

    /// Gives the ring, which the caller has claimed, to a segment.
    pub(super) fn serve(&self, open: Arc<Open>) {
        self.shared.mapping.assign(open.incarnation().0);
        *self.shared.task.lock() = DrainerTask::Drain(open);
    }

    /// Ends the segment's use of the ring. A ring that was not drained completely keeps its state.
    pub(super) fn release(&self, whole: bool) {
        *self.shared.task.lock() = DrainerTask::Wait;
        if whole {
            self.serving.store(false, Ordering::Release);
        }
    }

    fn claim(&self) -> bool {
        !self.serving.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(joiner) = self.joiner.take() {
            // A panic of the drainer has left an incomplete drain, which is handled already.
            let _joined = joiner.join();
        }
    }
}

static POOL: Mutex<Vec<Weak<Ring>>> = Mutex::new(Vec::new());

fn ring_path(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("{PREFIX}{index}{SUFFIX}"))
}

fn create_file(path: &Path, modes: Modes) -> std::io::Result<File> {
    let mut how = modes.creating();
    how.read(true).write(true).truncate(false);
    let file = with_room(|| how.open(path))?;
    modes.settle(&file, path)?;
    Ok(file)
}

/// Claims a ring in `dir` that serves no segment and holds nothing. `Ok(None)` if all rings are in
/// use, or if the device has too little space for another one.
pub(super) fn take(dir: &Path, modes: Modes) -> Result<Option<Arc<Ring>>> {
    let dir = &dir.canonicalize().map_err(|error| Error::io("find", dir, error))?;
    let mut pool = POOL.lock();
    pool.retain(|ring| ring.strong_count() > 0);
    let live: Vec<Arc<Ring>> = pool.iter().filter_map(Weak::upgrade).collect();
    let here = |ring: &&Arc<Ring>| ring.path.parent() == Some(dir);
    if let Some(ring) = live.iter().filter(here).find(|ring| ring.claim()) {
        return Ok(Some(Arc::clone(ring)));
    }
    for index in 0..RINGS_MAX {
        let path = ring_path(dir, index);
        if live.iter().any(|ring| ring.path == path) {
            continue;
        }
        let file = create_file(&path, modes).map_err(|error| Error::io("create", &path, error))?;
        if layout::read_header(&file, &path)?.is_some_and(|header| header.is_dirty()) {
            continue;
        }
        if !has_room(dir, &path, &file)? {
            give_space_back(&path);
            return Ok(None);
        }
        let mapped = Ring::map(path.clone(), &file);
        let ring = match mapped {
            Ok(ring) => Arc::new(ring),
            Err(error) => {
                give_space_back(&path);
                return Err(error);
            }
        };
        pool.push(Arc::downgrade(&ring));
        return Ok(Some(ring));
    }
    Ok(None)
}

/// Whether the file is a complete ring already, or the device has space for one.
fn has_room(dir: &Path, path: &Path, file: &File) -> Result<bool> {
    let len = file.metadata().map_err(|error| Error::io("look at", path, error))?.len();
    if len >= FILE_BYTES as u64 {
        return Ok(true);
    }
    let room = rustix::fs::statvfs(dir)
        .map_err(|cause| Error::io("find the free space of", dir, cause.into()))?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize) / ROOM_SHARE >= FILE_BYTES as u64)
}

/// Removes a ring file that could not be mapped, because it may hold the last free bytes of the
/// device.
#[expect(clippy::disallowed_methods, reason = "this is the lowest layer")]
fn give_space_back(path: &Path) {
    // If the file stays, the next segment tries it again.
    let _removed = std::fs::remove_file(path);
}

fn ring_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("list", dir, error);
    let mut paths = Vec::new();
    for entry in with_room(|| std::fs::read_dir(dir)).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The bytes of `incarnation` in the rings of `dir`.
pub(super) fn tail(dir: &Path, incarnation: Epoch) -> Result<Option<LogTail>> {
    for path in ring_files(dir)? {
        let file = with_room(|| std::fs::OpenOptions::new().read(true).open(&path));
        let file = file.map_err(|error| Error::io("open", &path, error))?;
        if let Some(tail) = layout::read_tail(&file, &path, incarnation)? {
            return Ok(Some(tail));
        }
    }
    Ok(None)
}

/// Empties every ring in `dir` that no open segment of this process uses, and keeps the file of the
/// first one for the next segment.
#[expect(clippy::disallowed_methods, reason = "this is the lowest layer")]
pub(super) fn clear(dir: &Path) -> Result<()> {
    let dir = &dir.canonicalize().map_err(|error| Error::io("find", dir, error))?;
    let pool = POOL.lock();
    let live: Vec<Arc<Ring>> = pool.iter().filter_map(Weak::upgrade).collect();
    for path in ring_files(dir)? {
        if live.iter().any(|ring| ring.path == path) {
            continue;
        }
        if path != ring_path(dir, 0) {
            std::fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
            continue;
        }
        let mut how = std::fs::OpenOptions::new();
        how.read(true).write(true);
        let file = with_room(|| how.open(&path));
        let file = file.map_err(|error| Error::io("open", &path, error))?;
        let len = file.metadata().map_err(|error| Error::io("look at", &path, error))?.len();
        if len >= FILE_BYTES as u64 {
            std::os::unix::fs::FileExt::write_all_at(&file, &[0; 8], INCARNATION_AT as u64)
                .map_err(|error| Error::io("write", &path, error))?;
        }
    }
    Ok(())
}
