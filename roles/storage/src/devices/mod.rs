//! The devices of a storage node: directories of a file system, each with an identity.
//!
//! The node owns one [`Devices`]. The first device also has the node's metadata, so a node does not
//! open without it. Every other device may be missing: the node then opens without the chunks of
//! that device, and reports the loss. An empty directory becomes a new device of the node.
//!
//! Invariants:
//! 1. All devices carry the identity of one node.
//! 2. The first device's identity file lists every device before a chunk lies on it.
//! 3. A device that failed a write or a sync gets no new chunks until the node opens again.
//! 4. A directory whose sync failed is never reported as durable before the node opens again. The
//!    kernel reports a failed sync once, and the next sync succeeds without the lost names.
//!
//! Thread-safety: any thread may call any method. The lock of the identity is held over its writes.
//! Failure: an unreadable device is reported as lost, except the first one, whose error ends the
//! opening.
//! Cost: one small read and one lock file per device at the opening. The choice of a device asks
//! the file system for the free bytes of each, unless a thread calls [`Device::look_at_room`]
//! regularly.

pub(crate) mod fullness;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::random::Rng;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileLock, FileSystem};
use archipelago_store::nodes::StorageId;
use parking_lot::Mutex;

use self::fullness::Fullness;
use crate::identity::{DeviceId, KnownCluster, NODE_NAME, NodeIdentity};

/// Lock file of a device, which keeps a second process away.
const LOCK_NAME: &str = "LOCK";
/// Names that an empty directory may have.
const PERMITTED_NAMES: [&str; 4] = [LOCK_NAME, "NODE.tmp", "lost+found", NODE_NAME];

/// Codes of Linux for too little memory (`ENOMEM`), and for too many open files of the machine
/// (`ENFILE`) and of the process (`EMFILE`).
const SHORTAGE_CODES: [i32; 3] = [12, 23, 24];

/// Devices whose room differs by less than this part of it have about the same room.
const SIMILAR_ROOM: u64 = 64;

/// Answer of the file system of a device about its free bytes.
#[derive(Clone, Debug)]
struct SeenRoom {
    /// The free bytes, if the file system knows them, or the error of the file system.
    free: Result<Option<u64>>,
    /// Bytes of the node's files at that time.
    used_bytes: u64,
}

/// One device that is present.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) dir: PathBuf,
    /// Bytes that the node's files occupy.
    used_bytes: AtomicU64,
    /// Bytes that the node may use; `None` for all that the device has.
    bytes_max: Option<u64>,
    has_failed: AtomicBool,
    /// The first failed sync of a directory of the device.
    dir_failure: Mutex<Option<Error>>,
    /// The last answer of the file system about the free bytes; `None` before the first
    /// [`Device::look_at_room`].
    seen_room: Mutex<Option<SeenRoom>>,
    /// Whether the device was unknown to the node before this opening. The files on such a device
    /// belong to chunks that the node has forgotten.
    pub(crate) is_new: bool,
}

impl Device {
    /// Bytes that the node's files occupy on the device.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes that the node has written.
    pub(crate) fn add_used(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that the node has freed.
    pub(crate) fn sub_used(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        // The closure always returns a value.
        let _previous = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Asks the file system how much room the device has, and keeps the answer. From the first call
    /// on, [`Devices::fullness`] uses the kept answer, so that requests never wait for the answer
    /// of a hung device. The caller must then repeat the call regularly.
    pub(crate) fn look_at_room(&self, fs: &dyn FileSystem) {
        let used_bytes = self.used_bytes();
        let free = fs.free_bytes(&self.dir);
        *self.seen_room.lock() = Some(SeenRoom { free, used_bytes });
    }

    /// Free bytes of the device, as of the last [`Self::look_at_room`] if there was one.
    fn free_bytes(&self, fs: &dyn FileSystem) -> Result<Option<u64>> {
        let Some(SeenRoom { free, used_bytes }) = self.seen_room.lock().clone() else {
            return fs.free_bytes(&self.dir);
        };
        let written = self.used_bytes().saturating_sub(used_bytes);
        Ok(free?.map(|free| free.saturating_sub(written)))
    }

    /// Keeps new chunks away from the device after a failed write or sync. A lack of descriptors or
    /// of memory is no failure of the device.
    pub(crate) fn fail(&self, error: &Error) {
        if is_shortage(error) {
            tracing::warn!(%error, device = %self.id, "the node is short of descriptors or memory");
            return;
        }
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, device = %self.id, dir = %self.dir.display(),
                "a device failed a write; it gets no new chunks until the node starts again");
        }
    }

    /// Makes creations, renames and removals in a directory of the device durable. After a failure
    /// every later call for the device fails as well.
    pub(crate) fn sync_dir(&self, fs: &dyn FileSystem, dir: &Path) -> Result<()> {
        let check = || match &*self.dir_failure.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        };
        check()?;
        if let Err(error) = fs.sync_dir(dir) {
            if error.kind() == ErrorKind::NotFound {
                // Nothing can have been lost in a directory that does not exist.
                return Err(error);
            }
            self.fail(&error);
            return Err(self.dir_failure.lock().get_or_insert(error).clone());
        }
        // Another sync may have failed meanwhile. The kernel reports a failure only once, so this
        // sync may have succeeded although names are lost.
        check()
    }

    /// Whether the device failed a write or a sync since the node opened.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

/// Outcome of the notice of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterNotice {
    /// The node knows the cluster now, durably.
    Known,
    /// The node belongs to another cluster.
    Other,
}

/// All devices of a node.
#[derive(Debug)]
pub(crate) struct Devices {
    fs: Arc<dyn FileSystem>,
    present: Vec<Arc<Device>>,
    lost: Mutex<Vec<DeviceId>>,
    /// The identity as the first device has it.
    identity: Mutex<NodeIdentity>,
    _locks: Vec<Box<dyn FileLock>>,
}

/// A directory while the devices are opened.
struct OpenedDir {
    dir: PathBuf,
    identity: Option<NodeIdentity>,
    lock: Box<dyn FileLock>,
}

impl Devices {
    /// Opens the devices in `dirs`, and initializes those that are empty. Errors: `Busy` if another
    /// process has one of them open; `InvalidArgument` for a directory that belongs to another
    /// program or another node, and if only the first device has no identity.
    pub(crate) fn open(
        fs: Arc<dyn FileSystem>,
        dirs: &[PathBuf],
        bytes_max: Option<u64>,
        rng: &mut Rng,
    ) -> Result<Self> {
        let opened = open_dirs(&*fs, dirs)?;
        let mut identity = first_identity(&*fs, &opened, rng)?;
        let mut known = identity.devices.clone();
        known.extend(opened.iter().filter_map(|dir| Some(dir.identity.as_ref()?.device)));
        let mut present = Vec::new();
        let mut locks = Vec::new();
        for (at, opened) in opened.into_iter().enumerate() {
            let id = match (&opened.identity, at) {
                (_, 0) => identity.device,
                (Some(theirs), _) if theirs.storage == identity.storage => theirs.device,
                (Some(theirs), _) => return Err(other_node(&opened.dir, theirs, &identity)),
                (None, _) => {
                    let device = new_device(&known, rng);
                    known.push(device);
                    initialize(&*fs, &opened.dir, &identity, device)?;
                    device
                }
            };
            let device = Device {
                id,
                dir: opened.dir,
                used_bytes: AtomicU64::new(0),
                bytes_max,
                has_failed: AtomicBool::new(false),
                dir_failure: Mutex::new(None),
                seen_room: Mutex::new(None),
                is_new: !identity.devices.contains(&id),
            };
            if present.iter().any(|other: &Arc<Device>| other.id == id) {
                return Err(Error::invalid(format!(
                    "{} is a second copy of device {id}: leave one of the two out",
                    device.dir.display()
                )));
            }
            present.push(Arc::new(device));
            locks.push(opened.lock);
        }
        let new: Vec<DeviceId> =
            present.iter().filter(|device| device.is_new).map(|device| device.id).collect();
        if !new.is_empty() {
            identity.devices.extend(new);
            identity.store(&*fs, &present[0].dir)?;
        }
        let is_lost = |id: &DeviceId| present.iter().all(|device| device.id != *id);
        let lost: Vec<DeviceId> = identity.devices.iter().copied().filter(is_lost).collect();
        for device in &lost {
            tracing::error!(%device, node = %identity.storage,
                "a device of the storage node is missing, and with it its chunks");
        }
        let (lost, identity) = (Mutex::new(lost), Mutex::new(identity));
        Ok(Self { fs, present, lost, identity, _locks: locks })
    }

    /// Identity of the node.
    pub(crate) fn storage(&self) -> StorageId {
        self.identity.lock().storage
    }

    /// The cluster that the node belongs to, if it knows one.
    pub(crate) fn cluster(&self) -> Option<KnownCluster> {
        self.identity.lock().cluster.clone()
    }

    /// Notes durably which cluster the node belongs to, and the newest root set.
    pub(crate) fn learn_cluster(&self, told: KnownCluster) -> Result<ClusterNotice> {
        let mut identity = self.identity.lock();
        if let Some(known) = &identity.cluster {
            if known.id != told.id {
                return Ok(ClusterNotice::Other);
            }
            if known.root_set.number >= told.root_set.number {
                return Ok(ClusterNotice::Known);
            }
        }
        let next = NodeIdentity { cluster: Some(told), ..identity.clone() };
        next.store(&*self.fs, &self.present[0].dir)?;
        *identity = next;
        Ok(ClusterNotice::Known)
    }

    /// The first device, which has the node's metadata.
    pub(crate) fn first(&self) -> &Arc<Device> {
        &self.present[0]
    }

    /// The devices that are present.
    pub(crate) fn present(&self) -> &[Arc<Device>] {
        &self.present
    }

    /// The devices that the node knows and that are missing.
    pub(crate) fn lost(&self) -> Vec<DeviceId> {
        self.lost.lock().clone()
    }

    /// The present device with the identity `id`.
    pub(crate) fn get(&self, id: DeviceId) -> Option<&Arc<Device>> {
        self.present.iter().find(|device| device.id == id)
    }

    /// Forgets the missing devices for which `is_used` is false, because no chunk lies there.
    pub(crate) fn forget_lost(&self, is_used: impl Fn(DeviceId) -> bool) -> Result<()> {
        let mut lost = self.lost.lock();
        let (kept, gone): (Vec<_>, Vec<_>) = lost.iter().copied().partition(|id| is_used(*id));
        if gone.is_empty() {
            return Ok(());
        }
        let mut identity = self.identity.lock();
        let mut next = identity.clone();
        next.devices.retain(|id| !gone.contains(id));
        next.store(&*self.fs, &self.present[0].dir)?;
        *identity = next;
        *lost = kept;
        Ok(())
    }

    /// Asks the file system how much room a device has ([`Device::look_at_room`]).
    pub(crate) fn look_at_room(&self, place: usize) {
        self.present[place].look_at_room(&*self.fs);
    }

    /// Used and usable bytes of a device now.
    pub(crate) fn fullness(&self, device: &Device) -> Result<Fullness> {
        let free = device.free_bytes(&*self.fs)?;
        Ok(Fullness::new(device.used_bytes(), free, device.bytes_max))
    }

    /// The device that was chosen before, unless it has failed since; otherwise the one with most
    /// room. Errors: `Io` if every device failed.
    pub(crate) fn chosen(&self, device: Option<DeviceId>) -> Result<Arc<Device>> {
        let device = device.and_then(|id| self.get(id)).filter(|device| !device.has_failed());
        match device {
            Some(device) => Ok(Arc::clone(device)),
            None => self.roomiest().map(|(device, _)| device),
        }
    }

    /// The device with most room, among those that did not fail. Of devices with about the same
    /// room, such as directories of one disk, it is the one with the fewest bytes of the node.
    /// Errors: `Io` if every device failed.
    pub(crate) fn roomiest(&self) -> Result<(Arc<Device>, Fullness)> {
        self.roomiest_of(|_| true)
    }

    /// As [`Self::roomiest`], among the devices for which `takes` returns `true`.
    pub(crate) fn roomiest_of(
        &self,
        takes: impl Fn(DeviceId) -> bool,
    ) -> Result<(Arc<Device>, Fullness)> {
        let mut able: Vec<(Arc<Device>, Fullness)> = Vec::new();
        let is_able = |device: &&Arc<Device>| !device.has_failed() && takes(device.id);
        for device in self.present.iter().filter(is_able) {
            match self.fullness(device) {
                Ok(fullness) => able.push((Arc::clone(device), fullness)),
                Err(error) => device.fail(&error),
            }
        }
        let most = able.iter().map(|(_, fullness)| fullness.room_bytes()).max().unwrap_or(0);
        let has_most = |fullness: Fullness| fullness.room_bytes() >= most - most / SIMILAR_ROOM;
        let roomy = able.into_iter().filter(|(_, fullness)| has_most(*fullness));
        let best = roomy.min_by_key(|(_, fullness)| fullness.used_bytes);
        best.ok_or_else(|| {
            Error::new(
                ErrorKind::Io,
                format!(
                    "storage node {}: all {} devices failed a write; replace them, or start the \
                     node again",
                    self.storage(),
                    self.present.len()
                ),
            )
        })
    }
}

/// Whether an operation failed because the process or the machine lacked descriptors or memory.
/// Such an error is no failure of the device.
pub(crate) fn is_shortage(error: &Error) -> bool {
    let code = error.cause::<io::Error>().and_then(io::Error::raw_os_error);
    code.is_some_and(|code| SHORTAGE_CODES.contains(&code))
}

/// Locks the directories and reads their identities. A directory other than the first one that
/// cannot be read is left out, unless descriptors or memory are lacking.
fn open_dirs(fs: &dyn FileSystem, dirs: &[PathBuf]) -> Result<Vec<OpenedDir>> {
    let mut opened = Vec::new();
    for (at, dir) in dirs.iter().enumerate() {
        match open_dir(fs, dir) {
            Ok(dir) => opened.push(dir),
            Err(error)
                if at > 0
                    && matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt)
                    && !is_shortage(&error) =>
            {
                tracing::error!(%error, dir = %dir.display(),
                    "a device of the storage node cannot be opened; the node starts without it");
            }
            Err(error) => return Err(error),
        }
    }
    if opened.is_empty() {
        return Err(Error::invalid("a storage node needs at least one directory: name one"));
    }
    Ok(opened)
}

fn open_dir(fs: &dyn FileSystem, dir: &Path) -> Result<OpenedDir> {
    fs.create_dir_all(dir)?;
    let identity = NodeIdentity::load(fs, dir)?;
    if identity.is_none() {
        let is_foreign = |name: &str| !PERMITTED_NAMES.contains(&name);
        if let Some(entry) = fs.list(dir)?.into_iter().find(|entry| is_foreign(&entry.name)) {
            return Err(Error::invalid(format!(
                "{} is no device of a storage node: it has no {NODE_NAME} file, but \"{}\"; choose \
                 an empty directory",
                dir.display(),
                entry.name
            )));
        }
    }
    let lock = fs.lock(&dir.join(LOCK_NAME))?;
    Ok(OpenedDir { dir: dir.to_owned(), identity, lock })
}

/// The identity of the node: that of the first device, or a new one if no device has any.
fn first_identity(
    fs: &dyn FileSystem,
    opened: &[OpenedDir],
    rng: &mut Rng,
) -> Result<NodeIdentity> {
    if let Some(identity) = &opened[0].identity {
        return Ok(identity.clone());
    }
    let known = opened.iter().find_map(|other| Some((&other.dir, other.identity.as_ref()?)));
    if let Some((dir, identity)) = known {
        return Err(Error::invalid(format!(
            "{} has no {NODE_NAME} file, but {} belongs to storage node {}, whose metadata lie on \
             the first device: mount that device, or empty the others to start as a new node",
            opened[0].dir.display(),
            dir.display(),
            identity.storage
        )));
    }
    let device = DeviceId(rng.u64(1..));
    let identity = NodeIdentity {
        storage: StorageId(rng.u64(1..)),
        device,
        devices: vec![device],
        cluster: None,
    };
    identity.store(fs, &opened[0].dir)?;
    tracing::info!(node = %identity.storage, dir = %opened[0].dir.display(),
        "a new storage node was initialized");
    Ok(identity)
}

/// An identity that no known device has, also if `rng` repeats itself after a restart.
fn new_device(known: &[DeviceId], rng: &mut Rng) -> DeviceId {
    loop {
        let device = DeviceId(rng.u64(1..));
        if !known.contains(&device) {
            return device;
        }
    }
}

/// Makes the empty directory `dir` a device of the node.
fn initialize(
    fs: &dyn FileSystem,
    dir: &Path,
    node: &NodeIdentity,
    device: DeviceId,
) -> Result<()> {
    let identity =
        NodeIdentity { storage: node.storage, device, devices: Vec::new(), cluster: None };
    identity.store(fs, dir)?;
    tracing::info!(node = %node.storage, %device, dir = %dir.display(),
        "a device was added to the storage node");
    Ok(())
}

fn other_node(dir: &Path, theirs: &NodeIdentity, ours: &NodeIdentity) -> Error {
    Error::invalid(format!(
        "{} is a device of storage node {}, and the first device is one of node {}: name the \
         devices of one node",
        dir.display(),
        theirs.storage,
        ours.storage
    ))
}
