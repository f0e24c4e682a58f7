//! One device of open tiers: its file system, its directory, and its state and counts.
//!
//! Every kind of device is a [`FileSystem`] and a directory on it. The trait is the interface of
//! drivers: the local file system with or without `O_DIRECT`, mapped tables, an emulated device, or
//! a remote one. [`crate::fs::shared::OpenTiers`] owns the devices.
//!
//! Invariants:
//! 1. `files_bytes + cache_bytes` are the lengths of the physical files on the device. Files that
//!    wait for their last reader or for their removal are included.
//! 2. A file that was created for a caller stands in `unsynced`, under its directory, until the
//!    directory is synced or the file is superfluous. Moves and copies sync their own directories.
//! 3. `writers` counts the files that are open for writing.
//!
//! Thread-safety: any thread may call any method. The state consists of atomics, and of two locks
//! that reads do not take.
//! Failure: a device with several consecutive errors counts as failing for a while, and placement
//! avoids it.
//! Cost: a read adds to three striped counters.

pub(crate) mod identity;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use archipelago_base::clock::Clock;
use archipelago_base::metrics::Counters;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::device::{DeviceSpec, ThrottledFs};
use archipelago_env::local::LocalFs;
use archipelago_env::local::mapped::MappedFs;
use archipelago_env::{FileClass, FileSystem, GroupAccess, IoContext, IoPurpose};
use parking_lot::Mutex;

use crate::namespace::record::FilePlace;
use crate::scheme::DeviceProfile;
use crate::settings::{DeviceKind, DeviceSettings};
use crate::write_slots::{JobThreads, WriteSlots};

/// Number of consecutive errors from which on a device counts as failing.
const ERRORS_IN_A_ROW: u32 = 3;
/// First pause, in nanoseconds, after which a failing device is tried again. Each further error
/// doubles it.
const RETRY_NS_MIN: u64 = 1_000_000_000;
/// Longest pause, in nanoseconds, after which a failing device is tried again.
const RETRY_NS_MAX: u64 = 60_000_000_000;
/// Pause, in nanoseconds, after which a full device is tried again.
const FULL_NS: u64 = 500_000_000;

/// The origin of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A caller of the tiers: the log, a flush, a compaction or any other.
    Caller,
    /// The mover, which copies a hot file.
    Copy,
    /// The mover, which moves a file.
    Move,
}

/// The counters of a device, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    ReadsBegun,
    ReadsEnded,
    ReadBytes,
    ForegroundReads,
    CacheReads,
    /// Foreground reads that copies served.
    CacheHits,
    WrittenBytes,
    Errors,
    FilesIn,
    FilesOut,
    CopiesMade,
    CopiesDropped,
    CopiesCorrupt,
    BytesMovedIn,
    BytesCopiedIn,
    TimedBytes,
    WriteBusyNs,
    /// Tables that waited for a write slot.
    TurnsWaited,
    /// Sum of the waits of tables for a write slot, in nanoseconds.
    TurnsWaitedNs,
}

pub(crate) const COUNTS: usize = 19;

/// Numbers of files, by the directory in which they were created.
pub(crate) type Unsynced = BTreeMap<PathBuf, BTreeSet<u64>>;

/// One device of open tiers.
#[derive(Debug)]
pub(crate) struct Device {
    /// Number of the device, which never changes.
    pub(crate) no: u8,
    pub(crate) name: String,
    pub(crate) kind: DeviceKind,
    pub(crate) fs: Arc<dyn FileSystem>,
    /// Whether the device's file system is the one outside of the tiers, so that files can be
    /// linked out.
    pub(crate) is_local: bool,
    pub(crate) root: PathBuf,
    pub(crate) cache_share: f64,
    /// Number of writers that the settings give the device. 0 if the scheme decides.
    pub(crate) writers_set: u32,
    /// Bytes that the device may hold.
    pub(crate) capacity: AtomicU64,
    /// Bytes of originals on the device.
    pub(crate) files_bytes: AtomicU64,
    /// Bytes of copies on the device.
    pub(crate) cache_bytes: AtomicU64,
    /// Bytes of dropped copies, and of condemned files without a holder, until they are removed.
    /// They count in `files_bytes` and `cache_bytes` as well.
    pub(crate) leaving: AtomicU64,
    /// `files_bytes` at the last iteration of the control loop.
    files_before: AtomicU64,
    /// Bytes by which originals grew between the last two iterations.
    pub(crate) growth: AtomicU64,
    /// Free bytes of the file system; `u64::MAX` if unknown.
    pub(crate) fs_free: AtomicU64,
    /// Whether the device is being emptied, so that no new file is placed there.
    pub(crate) leaves: AtomicBool,
    /// Number of files that may be written in parallel.
    pub(crate) limit: AtomicU32,
    /// Profile of the device, if it was measured.
    pub(crate) profile: OnceLock<DeviceProfile>,
    /// Percentage of the profile's write throughput that the device reaches.
    pub(crate) pace_percent: AtomicU32,
    /// Deepest level of the files on the device; 255 if there is none.
    pub(crate) deepest: AtomicU8,
    /// Least accesses per byte from which on a file is copied to the device, as the bits of an
    /// `f64`. It is infinite until the first iteration.
    pub(crate) worth: AtomicU64,
    /// Bytes that hot tables of levels beyond the scheme may still take.
    pub(crate) hot_room: AtomicU64,
    /// Bytes that logs are expected to take on the device.
    pub(crate) log_room: AtomicU64,
    /// Number of files that are open for writing, by [`Writer`].
    writers: [AtomicUsize; 3],
    pub(crate) write_slots: Arc<WriteSlots>,
    counters: Counters<COUNTS>,
    /// Files whose names may not be durable.
    unsynced: Mutex<Unsynced>,
    /// Directories that exist.
    made: Mutex<BTreeSet<PathBuf>>,
    errors_in_a_row: AtomicU32,
    retry_at_ns: AtomicU64,
    full_until_ns: AtomicU64,
}

/// The file system of a device by its settings. `access` is the access of the group to the files
/// that are created on it. Errors: `InvalidArgument` for a description that cannot be read.
pub(crate) fn file_system(
    settings: &DeviceSettings,
    clock: &Arc<dyn Clock>,
    access: GroupAccess,
) -> Result<Arc<dyn FileSystem>> {
    let local = || Arc::new(LocalFs::for_group(access));
    Ok(match settings.kind {
        DeviceKind::Directory | DeviceKind::Direct => local(),
        DeviceKind::Mapped => Arc::new(MappedFs::for_group(access)),
        DeviceKind::Emulated => {
            let path = settings.spec.clone().unwrap_or_default();
            let context = IoContext::new(FileClass::Other, IoPurpose::Recovery);
            let bytes = LocalFs::new().read(&path, context)?;
            let text = String::from_utf8(bytes)
                .map_err(|_| Error::invalid(format!("{} is not text", path.display())))?;
            let spec = DeviceSpec::from_toml(&text).map_err(|e| e.context_at(path.display()))?;
            ThrottledFs::new(local(), spec, Arc::clone(clock))
        }
    })
}

impl Device {
    pub(crate) fn new(
        no: u8,
        place: usize,
        settings: &DeviceSettings,
        fs: Arc<dyn FileSystem>,
        is_local: bool,
        threads: &Arc<JobThreads>,
    ) -> Self {
        Self {
            no,
            name: settings.name_at(place),
            kind: settings.kind,
            fs,
            is_local,
            root: settings.path.clone(),
            cache_share: settings.cache_share,
            writers_set: settings.writers_max,
            capacity: AtomicU64::new(settings.capacity_bytes),
            files_bytes: AtomicU64::new(0),
            cache_bytes: AtomicU64::new(0),
            leaving: AtomicU64::new(0),
            files_before: AtomicU64::new(u64::MAX),
            growth: AtomicU64::new(0),
            fs_free: AtomicU64::new(u64::MAX),
            leaves: AtomicBool::new(false),
            limit: AtomicU32::new(default_limit(settings)),
            profile: OnceLock::new(),
            pace_percent: AtomicU32::new(100),
            deepest: AtomicU8::new(u8::MAX),
            worth: AtomicU64::new(f64::INFINITY.to_bits()),
            hot_room: AtomicU64::new(0),
            log_room: AtomicU64::new(0),
            writers: Default::default(),
            write_slots: Arc::new(WriteSlots::new(Arc::clone(threads))),
            counters: Counters::default(),
            unsynced: Mutex::default(),
            made: Mutex::default(),
            errors_in_a_row: AtomicU32::new(0),
            retry_at_ns: AtomicU64::new(0),
            full_until_ns: AtomicU64::new(0),
        }
    }

    /// The directory that holds the files of `place`.
    pub(crate) fn dir_of(&self, place: FilePlace) -> PathBuf {
        match place.dir {
            0 => self.root.join("files"),
            dir => self.root.join(format!("logs-{dir:016x}")),
        }
    }

    /// The physical path of a file.
    pub(crate) fn path_of(&self, place: FilePlace, class: FileClass) -> PathBuf {
        self.dir_of(place).join(format!("{:016x}.{}", place.number, extension(class)))
    }

    /// The directory of copies.
    pub(crate) fn cache_dir(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// The physical path of a copy.
    pub(crate) fn copy_path(&self, number: u64) -> PathBuf {
        self.cache_dir().join(format!("{number:016x}.copy"))
    }

    /// Creates a directory of the device, unless that was done before.
    pub(crate) fn make_dir(&self, dir: &Path) -> Result<()> {
        if self.made.lock().contains(dir) {
            return Ok(());
        }
        self.fs.create_dir_all(dir)?;
        self.made.lock().insert(dir.to_owned());
        Ok(())
    }

    /// Notes that the file of this number was created in `dir`.
    pub(crate) fn note_made(&self, dir: &Path, number: u64) {
        let mut unsynced = self.unsynced.lock();
        if let Some(files) = unsynced.get_mut(dir) {
            files.insert(number);
        } else {
            unsynced.insert(dir.to_owned(), BTreeSet::from([number]));
        }
    }

    /// Notes that a file is not needed any more, so that its name need not become durable.
    pub(crate) fn note_superfluous(&self, path: &Path, number: u64) {
        let Some(dir) = path.parent() else { return };
        let mut unsynced = self.unsynced.lock();
        if let Some(files) = unsynced.get_mut(dir)
            && files.remove(&number)
            && files.is_empty()
        {
            unsynced.remove(dir);
        }
    }

    /// Files whose names may not be durable.
    pub(crate) fn unsynced(&self) -> Unsynced {
        self.unsynced.lock().clone()
    }

    /// Makes the names of files durable. The files of a directory that could not be synced stay
    /// unsynced. Several threads may do this in parallel.
    pub(crate) fn sync_names(&self, names: &Unsynced) -> Result<()> {
        for (dir, files) in names {
            self.fs.sync_dir(dir)?;
            let mut unsynced = self.unsynced.lock();
            if let Some(left) = unsynced.get_mut(dir) {
                left.retain(|number| !files.contains(number));
                if left.is_empty() {
                    unsynced.remove(dir);
                }
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn add(&self, count: Count, value: u64) {
        self.counters.add(count as usize, value);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.counters.get(count as usize)
    }

    /// Runs a write of `bytes`. Times it if the device has a profile, so that the control loop can
    /// notice a slower device.
    pub(crate) fn timed<T>(
        &self,
        now_ns: impl Fn() -> u64,
        bytes: usize,
        write: impl FnOnce() -> T,
    ) -> T {
        if self.profile.get().is_none() {
            return write();
        }
        let begun_ns = now_ns();
        let outcome = write();
        self.add(Count::WriteBusyNs, now_ns().saturating_sub(begun_ns));
        self.add(Count::TimedBytes, bytes as u64);
        outcome
    }

    /// Length, in bytes, from which on writes are efficient: as measured, or as the file system
    /// says.
    pub(crate) fn write_bytes_best(&self) -> Option<u64> {
        let measured = self.profile.get().and_then(DeviceProfile::write_bytes_best);
        measured.or_else(|| self.fs.write_bytes_best())
    }

    /// Number of reads in progress.
    pub(crate) fn readers(&self) -> u64 {
        let ended = self.get(Count::ReadsEnded);
        self.get(Count::ReadsBegun).saturating_sub(ended)
    }

    /// Bytes that files may still take. Copies do not count as used, because they are dropped for
    /// files.
    pub(crate) fn free(&self) -> u64 {
        let (files, cache) = (self.load(&self.files_bytes), self.load(&self.cache_bytes));
        let by_capacity = self.load(&self.capacity).saturating_sub(files);
        by_capacity.min(self.load(&self.fs_free).saturating_add(cache))
    }

    /// Bytes by which less than `wanted` of the capacity is free. Files that are leaving count as
    /// free. 0 if there are no copies, which could be dropped.
    #[inline]
    pub(crate) fn short_of(&self, wanted: u64) -> u64 {
        let cache = self.load(&self.cache_bytes);
        if cache == 0 {
            return 0;
        }
        // This count is loaded before the other counts. So a file that is removed in the meantime
        // counts as used, and not twice as free.
        let leaving = self.load(&self.leaving);
        let taken = self.load(&self.files_bytes).saturating_add(cache).saturating_add(wanted);
        taken.saturating_sub(self.load(&self.capacity)).saturating_sub(leaving)
    }

    /// Free bytes. Copies count as used.
    pub(crate) fn unused(&self) -> u64 {
        let used = self.load(&self.files_bytes) + self.load(&self.cache_bytes);
        self.load(&self.capacity).saturating_sub(used).min(self.load(&self.fs_free))
    }

    fn load(&self, value: &AtomicU64) -> u64 {
        value.load(Ordering::Relaxed)
    }

    /// Asks the file system for its free space. Unknown space counts as unlimited.
    pub(crate) fn refresh_free(&self) {
        let free = self.fs.free_bytes(&self.root).ok().flatten().unwrap_or(u64::MAX);
        self.fs_free.store(free, Ordering::Relaxed);
    }

    /// Notes the growth of originals since the last iteration of the control loop.
    pub(crate) fn note_growth(&self) {
        let files = self.load(&self.files_bytes);
        let before = self.files_before.swap(files, Ordering::Relaxed);
        self.growth.store(files.saturating_sub(before), Ordering::Relaxed);
    }

    /// Notes the outcome of an operation.
    pub(crate) fn note<T>(&self, outcome: &Result<T>, now_ns: u64) {
        match outcome {
            Ok(_) => {
                if self.errors_in_a_row.load(Ordering::Relaxed) > 0 {
                    self.errors_in_a_row.store(0, Ordering::Relaxed);
                    self.retry_at_ns.store(0, Ordering::Relaxed);
                }
            }
            Err(error) => self.note_error(error, now_ns),
        }
    }

    #[cold]
    fn note_error(&self, error: &Error, now_ns: u64) {
        if error.is_no_space() {
            self.full_until_ns.store(now_ns + FULL_NS, Ordering::Relaxed);
            self.add(Count::Errors, 1);
            return;
        }
        if error.io_kind() == Some(std::io::ErrorKind::UnexpectedEof)
            || !matches!(error.kind(), ErrorKind::Io | ErrorKind::NotFound)
        {
            return;
        }
        self.add(Count::Errors, 1);
        let row = self.errors_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(pause_ns) = pause_ns(row) {
            self.retry_at_ns.store(now_ns + pause_ns, Ordering::Relaxed);
        }
    }

    /// Whether the device had several consecutive errors, and the pause after them is not over.
    pub(crate) fn is_failing(&self, now_ns: u64) -> bool {
        now_ns < self.retry_at_ns.load(Ordering::Relaxed)
    }

    /// Whether the device was full recently.
    pub(crate) fn is_full(&self, now_ns: u64) -> bool {
        now_ns < self.full_until_ns.load(Ordering::Relaxed)
    }

    /// Takes `bytes` of the room for hot tables, or all of the room that is left.
    pub(crate) fn take_hot_room(&self, bytes: u64) {
        let left = |room: u64| Some(room.saturating_sub(bytes));
        let _taken = self.hot_room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    }

    /// Number of files that writers of this origin have open.
    pub(crate) fn writers_of(&self, writer: Writer) -> usize {
        self.writers[writer as usize].load(Ordering::Relaxed)
    }

    /// Counts a writer until the guard is dropped.
    pub(crate) fn writing(devices: &Arc<[Self]>, index: usize, writer: Writer) -> WriterGuard {
        devices[index].writers[writer as usize].fetch_add(1, Ordering::Relaxed);
        WriterGuard { devices: Arc::clone(devices), index, writer }
    }
}

/// Counts a file as being written until it is dropped ([`Device::writing`]).
#[derive(Debug)]
pub(crate) struct WriterGuard {
    devices: Arc<[Device]>,
    index: usize,
    writer: Writer,
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        let count = &self.devices[self.index].writers[self.writer as usize];
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pause, in nanoseconds, after this number of consecutive errors. `None` if the device does not
/// count as failing.
fn pause_ns(errors_in_a_row: u32) -> Option<u64> {
    let over = errors_in_a_row.checked_sub(ERRORS_IN_A_ROW)?;
    Some((RETRY_NS_MIN << over.min(20)).min(RETRY_NS_MAX))
}

/// Number of writers without a profile, from the devices of the paper: memory-like media are at
/// their best with 4 writers, and NVMe drives with 16.
fn default_limit(settings: &DeviceSettings) -> u32 {
    match (settings.writers_max, settings.kind) {
        (0, DeviceKind::Mapped) => 4,
        (0, _) => 16,
        (set, _) => set,
    }
}

fn extension(class: FileClass) -> &'static str {
    match class {
        FileClass::Wal => "log",
        FileClass::Sst => "sst",
        FileClass::ValueSst => "vsst",
        FileClass::Manifest => "man",
        FileClass::Other => "dat",
    }
}

/// The number of a physical file, from its name. `None` for a foreign name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let (number, extension) = name.split_once('.')?;
    let known = ["log", "sst", "vsst", "man", "dat", "copy"].contains(&extension);
    (known && number.len() == 16).then(|| u64::from_str_radix(number, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_after_consecutive_errors_grows() {
        assert_eq!(pause_ns(2), None);
        assert_eq!(pause_ns(3), Some(1_000_000_000));
        assert_eq!(pause_ns(5), Some(4_000_000_000));
        assert_eq!(pause_ns(90), Some(60_000_000_000));
    }

    #[test]
    fn foreign_names_have_no_number() {
        assert_eq!(number_of("00000000000000ff.sst"), Some(255));
        assert_eq!(number_of("00000000000000fe.vsst"), Some(254));
        for foreign in ["ff.sst", "00000000000000ff.txt", "wal-0.ring", "00000000000000fg.log"] {
            assert_eq!(number_of(foreign), None, "{foreign}");
        }
    }
}
