//! A volume: the namespace of one database on a storage pool, as its owner holds it.
//!
//! The namespace maps paths to files, and each file to its [`Content`]: bytes inline, a blob, or a
//! log. Its records lie in a log of its own, which all replicas acknowledge after their syncs. The
//! layout of that log, the epoch and the owner's lease stand in the register ([`VolumeRecord`]).
//!
//! [`Volume::open`] becomes the owner: it raises the epoch by compare-and-swap, fences and recovers
//! the namespace's log, then all logs that have no end, and releases strays. A lease keeps other
//! openers away while the owner lives ([`lease`]). Safety rests on the epoch alone.
//!
//! Invariants:
//! 1. A blob is sealed, and a log's layout is complete, before a record with them is submitted.
//! 2. A blob or a log is released only when the record that took its last name is durable, and its
//!    last reader in this process is gone.
//! 3. A file's record is durable before [`Volume::wait`] returns for it; a crash keeps a prefix of
//!    the submitted records.
//! 4. After the first [`Fenced`](archipelago_base::ErrorKind::Fenced) error of any part, the volume
//!    refuses all changes with it.
//!
//! Thread-safety: any thread may call any method. One lock guards state and log, and is not held
//! over a wait for the network.
//! Failure: a failed append of the namespace begins a new generation, whose snapshot has what the
//! failed log may lack. If that fails as well, the error goes to the callers.
//! Cost: a change is one append; changes that are submitted before a wait share its round trip.

pub(crate) mod generation;
pub(crate) mod record;
pub(crate) mod state;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::spawn::Spawn;
use archipelago_base::{Epoch, Result};
use archipelago_env::{FileClass, IoContext};

use self::record::{Content, FileKey, FileRecord, Record};
use self::state::NamespaceState;
use crate::blob::BlobWriter;
use crate::ids::{BlobId, LogId, VolumeId};
use crate::log::{Layout, LogWriter};
use crate::{Sabotage, Stores};

/// How a process opens a volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// The owner as people know it: host, process id and address.
    pub owner: String,
    /// Length of the lease. Another process opens the volume of a dead owner after this time, and
    /// an owner that does not reach the register stops serving before it. Default: 10 s.
    pub lease: Duration,
    /// Whether to take the volume over from an owner whose lease lives. Default: no.
    pub take_over: bool,
    /// Clock of the lease. Default: the system's.
    pub clock: Arc<dyn Clock>,
    /// Starts the thread that renews the lease. Default: the system's threads.
    pub spawn: Arc<dyn Spawn>,
    /// Steps that a checker leaves out.
    pub sabotage: Sabotage,
}

impl VolumeOptions {
    /// The default options of `owner`.
    #[must_use]
    pub fn new(owner: impl Into<String>) -> Self { todo!() }
}

/// A position in the history of a namespace. Positions of one owner are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    generation: u64,
    offset: u64,
}

/// The owner's handle of a volume.
#[derive(Debug)]
pub struct Volume { }

/// Keeps the bytes of a file while it exists, also when the file has no name any more. The drop
/// may release them, which takes a round trip.
#[derive(Debug)]
pub(crate) struct Hold { volume: Arc<Volume>, key: FileKey }

impl Hold {
    /// Number of the file.
    pub(crate) fn key(&self) -> FileKey { todo!() }
}

impl Volume {
    /// Creates the volume `name` without files and without an owner. Errors: `InvalidArgument` if
    /// it exists, or for a name that is not allowed.
    pub fn create(stores: &Stores, name: &str) -> Result<()> { todo!() }
    /// Becomes the owner of the volume `name`. Errors: `NotFound`; `Busy` with the owner's name.
    pub fn open(stores: &Stores, name: &str, options: &VolumeOptions) -> Result<Arc<Self>> { todo!() }

    /// Name of the volume.
    pub fn name(&self) -> &str { todo!() }
    /// Identity of the volume.
    pub fn id(&self) -> VolumeId { todo!() }
    /// Epoch of this owner.
    pub fn epoch(&self) -> Epoch { todo!() }
    /// Number that the engine takes for that of the machine's boot.
    pub fn boot_id(&self) -> [u8; 16] { todo!() }
    /// The pool: readers, redundancy and room.
    pub(crate) fn stores(&self) -> &Stores { todo!() }
    /// Milliseconds since 1970, for [`FileRecord::modified_ms`].
    pub(crate) fn unix_ms(&self) -> u64 { todo!() }

    /// Whether this owner may answer reads: its lease holds by its own clock. A caller asks when
    /// the answer of a read is ready (not before the read). Errors: `Busy` if the register did not
    /// answer for too long, `Fenced` after a take-over, `Closed`.
    pub fn check_lease(&self) -> Result<()> { todo!() }
    /// Whether this owner may change the volume. Errors: `Fenced` after a take-over, `Closed`.
    pub fn check_open(&self) -> Result<()> { todo!() }
    /// Passes a result of a store on. If it is `Fenced`, the volume ends with it.
    pub(crate) fn observe<T>(&self, result: Result<T>) -> Result<T> { todo!() }

    /// Looks at the namespace under its lock. `look` does no I/O and calls nothing of the volume.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&NamespaceState) -> T) -> T { todo!() }
    /// Allocates the number of a file.
    pub(crate) fn allocate(&self) -> FileKey { todo!() }
    /// Checks and applies all records, or none, and submits them as one commit. It does not wait.
    /// Errors: those of a refused change; `InvalidArgument` for a blob that is neither pending nor
    /// the file's; `Fenced`; `Closed`. A log whose layout changed since [`Volume::begin_log`] is
    /// recorded with its newest layout.
    pub(crate) fn commit(&self, records: &[Record]) -> Result<Moment> { todo!() }
    /// The position after all commits so far.
    pub(crate) fn moment(&self) -> Moment { todo!() }
    /// Waits until everything before `moment` is durable on all replicas, and releases what became
    /// superfluous. Errors: those of the pool; `Fenced`.
    pub(crate) fn wait(&self, moment: Moment) -> Result<()> { todo!() }

    /// Begins a blob, which is pending until a commit names it or [`Volume::give_up`].
    pub(crate) fn begin_blob(
        &self,
        context: IoContext,
        size_hint_bytes: u64,
    ) -> Result<(BlobId, Box<dyn BlobWriter>)> { todo!() }
    /// Gives up a pending blob. No commit may name it afterwards. It does not fail: what the pool
    /// refuses is repeated later.
    pub(crate) fn give_up(&self, blob: BlobId) { todo!() }
    /// Begins the log of the file `key`. The caller commits it as [`Content::Log`] with `head` and
    /// the returned identity and layout before it waits for an append.
    pub(crate) fn begin_log(
        &self,
        key: FileKey,
        class: FileClass,
    ) -> Result<(Box<dyn LogWriter>, LogId, Layout)> { todo!() }
    /// Gives up a log that no commit named.
    pub(crate) fn give_up_log(&self, log: LogId, layout: &Layout) { todo!() }

    /// Keeps the bytes of the file `key` until the drop of the hold. A file that was just allocated
    /// may be held before a commit names it.
    pub(crate) fn hold(self: &Arc<Self>, key: FileKey) -> Hold { todo!() }
    /// The file at `path`, and a hold of it; `None` if there is none.
    pub(crate) fn hold_path(self: &Arc<Self>, path: &Path) -> Option<(FileRecord, Hold)> { todo!() }

    /// Makes everything durable, ends the namespace's log, and gives up the lease. Later calls get
    /// `Closed`. A drop without it leaves the volume as a kill of the process does.
    pub fn close(&self) -> Result<()> { todo!() }
}
