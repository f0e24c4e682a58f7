//! A volume: the namespace of one database on a storage pool, as its owner holds it.
//!
//! The namespace maps paths to files, and each file to its `Content`: bytes inline, a blob, or a
//! log. Its records lie in a log of its own, which all replicas acknowledge after their syncs. The
//! layout of that log, the epoch and the owner's lease stand in the register
//! (`VolumeRecord`).
//!
//! [`Volume::open`] becomes the owner (`take_over`). It raises the epoch by compare-and-swap,
//! fences and recovers the namespace's log, then all logs that have no end, and releases strays. A
//! lease keeps other openers away while the owner lives (`lease`). Safety rests on the epoch alone.
//!
//! | module | purpose |
//! | --- | --- |
//! | `record`, `state`, `generation` | values and their bytes, pure |
//! | `take_over` | becoming the owner |
//! | `registration`, `lease` | the owner's value in the register, and its renewal |
//! | `namespace_log` | generations of the namespace's log: waiting, failing, beginning anew |
//! | `pending`, `releases`, `strays` | objects without a name, and their release |
//! | `idle_logs` | layouts of logs for which no thread waits |
//! | `destroy` | the removal of a volume |
//! | `thread` | the owner's threads |
//!
//! Invariants:
//! 1. A blob is sealed before a record with it is submitted. A log is recorded with its newest
//!    layout before an append to it is acknowledged.
//! 2. A blob or a log is released only when the record that took its last name is durable, and its
//!    last reader in this process is gone.
//! 3. A file's record is durable before `Volume::wait` returns for it; a crash keeps a prefix of
//!    the submitted commits.
//! 4. After the first [`Fenced`](archipelago_base::ErrorKind::Fenced) error of any part, the volume
//!    refuses all changes with it.
//!
//! Thread-safety: any thread may call any method. One lock guards state and log, and is not held
//! over a wait for the network. The lock of the register's value is held over swaps; it is taken
//! without the first one.
//! Failure: a failed append of the namespace begins a new generation, whose snapshot has the
//! commits that the failed log may lack. If that fails as well, the error goes to the callers, and
//! the next call tries again.
//! Cost: a commit is one append; commits that are submitted before a wait share its round trip.

mod destroy;
pub(crate) mod generation;
mod idle_logs;
mod lease;
mod listing;
mod namespace_log;
mod pending;
pub(crate) mod record;
mod registration;
mod releases;
pub(crate) mod state;
mod strays;
mod take_over;
#[cfg(test)]
mod tests;
mod thread;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::{Rng, entropy_seed};
use archipelago_base::spawn::{Spawn, SystemSpawn};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext};
use parking_lot::{Condvar, Mutex};

pub use self::listing::{VolumeInfo, list};
pub use self::record::VolumeStage;
pub(crate) use self::releases::Hold;

use self::namespace_log::NamespaceCore;
use self::record::{Content, FileKey, FileRecord, Record};
use self::registration::Registration;
use self::state::NamespaceState;
use self::take_over::Opening;
use self::thread::VolumeThread;
use crate::blob::{BlobOptions, BlobRef, BlobWriter};
use crate::ids::{BlobId, LogId, VolumeId};
use crate::log::{Layout, LayoutKeeper, LogWriter, NewLog};
use crate::{Sabotage, Stores};

/// Default length of a lease.
const LEASE: Duration = Duration::from_secs(10);
/// Default time between two releases of strays by the owner's thread.
const STRAYS: Duration = Duration::from_secs(24 * 3600);

/// Options with which a process creates or opens a volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Name of the owner for operators: host, process id and address.
    pub owner: String,
    /// Length of the lease, at least 20 ms. Another process opens the volume of a dead owner after
    /// this time, and an owner that does not reach the register stops answering reads before it.
    /// Default: 10 s.
    pub lease: Duration,
    /// Whether to take the volume over from an owner whose lease is valid. Default: no.
    pub take_over: bool,
    /// Time after which the owner releases strays again. Default: a day.
    pub strays_every: Duration,
    /// Clock of the lease. Default: the system's.
    pub clock: Arc<dyn Clock>,
    /// Starts the threads of the owner, which renew the lease, release objects and keep layouts.
    /// Default: the system's threads.
    pub spawn: Arc<dyn Spawn>,
    /// Seed of all identities, for a run that can be repeated. No two calls of [`Volume::create`]
    /// and [`Volume::open`] may have the same one. Default: none, so that each call takes one from
    /// the system's entropy.
    pub seed: Option<u64>,
    /// Steps that a checker leaves out. Default: none.
    pub sabotage: Sabotage,
}

impl VolumeOptions {
    /// The default options of `owner`.
    #[must_use]
    pub fn new(owner: impl Into<String>) -> Self {
        Self {
            owner: owner.into(),
            lease: LEASE,
            take_over: false,
            strays_every: STRAYS,
            clock: SystemClock::shared(),
            spawn: Arc::new(SystemSpawn),
            seed: None,
            sabotage: Sabotage::default(),
        }
    }

    /// A generator of identities, for one call.
    fn rng(&self) -> Rng {
        Rng::with_seed(self.seed.unwrap_or_else(entropy_seed))
    }
}

/// A position in the history of a namespace. The generation is compared first, so that the
/// positions of one owner are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    generation: u64,
    offset: u64,
}

/// The owner's handle of a volume. A drop without [`Volume::close`] leaves the volume as a kill of
/// the process does.
#[derive(Debug)]
pub struct Volume {
    stores: Stores,
    clock: Arc<dyn Clock>,
    boot_id: [u8; 16],
    sabotage: Sabotage,
    registration: Arc<Registration>,
    lease: VolumeThread,
    /// The thread that releases objects and strays, once the volume is open.
    strays: OnceLock<VolumeThread>,
    /// Whether that thread runs. If not, other threads release the objects that are due.
    is_releasing: AtomicBool,
    /// The thread that keeps layouts of idle logs, once the volume is open.
    layouts: OnceLock<VolumeThread>,
    /// Time at which the close began.
    closing_ns: OnceLock<u64>,
    core: Mutex<NamespaceCore>,
    /// Notified when a new generation has begun, or has failed to.
    generation_ended: Condvar,
}

impl Volume {
    /// Creates the volume `name` without files and without an owner. On return it is durable.
    /// Errors: `InvalidArgument` if it exists, or if the name is not allowed; those of the
    /// register.
    pub fn create(stores: &Stores, name: &str, options: &VolumeOptions) -> Result<()> {
        take_over::create(stores, name, options, VolumeStage::Whole)
    }

    /// Becomes the owner of the volume `name`. If another owner's lease was not given up, the call
    /// waits until that owner renews it or it ends, unless the options say to take over. On return,
    /// every older owner is fenced, and everything that it acknowledged is there.
    ///
    /// Errors: `NotFound` if there is no such volume; `Busy` with the name of an owner that lives,
    /// or if the pool has too few nodes; `Corrupt`; those of the pool.
    pub fn open(stores: &Stores, name: &str, options: &VolumeOptions) -> Result<Arc<Self>> {
        take_over::open(stores, name, options, Opening::Use)
    }

    /// Removes the volume `name` with all its files. Blobs that other volumes retain stay there. If
    /// another owner's lease was not given up, the call waits like [`Volume::open`]. An interrupted
    /// removal leaves a volume that cannot be opened, and the next call completes it.
    ///
    /// Errors: `NotFound` if there is no such volume; `Busy` with the name of an owner that lives,
    /// or of a node that does not answer and is not lost, or if the manager may not know all nodes
    /// yet; those of the pool.
    pub fn destroy(stores: &Stores, name: &str, options: &VolumeOptions) -> Result<()> {
        destroy::destroy(stores, name, options, Opening::Remove)
    }

    /// Creates the volume `name`, and becomes its owner in order to copy files into it. Removes
    /// first what an interrupted copy left. The new volume has another identity, so that no late
    /// release of the old one takes a blob from it. No process can open the volume to use it before
    /// [`Volume::complete`]. Errors: `InvalidArgument` if a complete volume has the name; those of
    /// [`Volume::destroy`] and [`Volume::open`].
    pub(crate) fn open_to_fill(
        stores: &Stores,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<Arc<Self>> {
        // Each step needs identities of its own.
        let step = |number: u64| {
            let seed = options.seed.map(|seed| seed ^ number);
            VolumeOptions { seed, ..options.clone() }
        };
        match take_over::create(stores, name, &step(0), VolumeStage::Filling) {
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                destroy::destroy(stores, name, &step(1), Opening::Discard)?;
                take_over::create(stores, name, &step(2), VolumeStage::Filling)?;
            }
            created => created?,
        }
        take_over::open(stores, name, &step(3), Opening::Fill)
    }

    /// Records durably that a volume which was opened to be filled has all its files. Errors: those
    /// of the register; `Fenced`.
    pub(crate) fn complete(&self) -> Result<()> {
        self.wait(self.moment())?;
        self.registration.complete()
    }

    /// Name of the volume.
    #[must_use]
    pub fn name(&self) -> &str {
        self.registration.name()
    }

    /// Identity of the volume.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.registration.volume()
    }

    /// Epoch of this owner.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.registration.epoch()
    }

    /// Number that the engine takes for that of the machine's boot. It changes when a recovery may
    /// have lost bytes without a sync.
    #[must_use]
    pub fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }

    /// The pool of the volume.
    pub(crate) fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Milliseconds since 1970, for [`FileRecord::modified_ms`].
    pub(crate) fn unix_ms(&self) -> u64 {
        self.clock.unix_ms()
    }

    /// Whether this owner may answer reads: its lease holds by its own clock. A caller asks when
    /// the answer of a read is ready, and not before the read. Errors: `Busy` while the register
    /// does not answer; `Fenced` after a take-over; `Closed`.
    pub fn check_lease(&self) -> Result<()> {
        self.registration.check_lease()
    }

    /// Whether this owner may change the volume. Errors: `Fenced` after a take-over; `Closed`.
    pub fn check_open(&self) -> Result<()> {
        self.registration.end().check()
    }

    /// Passes a result of a store on. If it is `Fenced`, the volume ends with it.
    pub(crate) fn observe<T>(&self, result: Result<T>) -> Result<T> {
        self.registration.end().observe(result)
    }

    /// Looks at the namespace under its lock. `look` calls neither the volume nor a store.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&NamespaceState) -> T) -> T {
        look(&self.core.lock().state)
    }

    /// Allocates the number of a file.
    pub(crate) fn allocate(&self) -> FileKey {
        self.core.lock().state.allocate()
    }

    /// Checks and applies all records, or none, and submits them as one commit. It does not wait
    /// for the network. A log whose layout changed since it was begun gets its newest layout. A
    /// commit that could not be submitted is part of the next generation.
    ///
    /// Errors: those of a change that the state refuses; `InvalidArgument` for a blob or a log that
    /// is neither pending nor that of the file; `Fenced`; `Closed`.
    pub(crate) fn commit(&self, records: &[Record]) -> Result<Moment> {
        self.check_open()?;
        let mut core = self.core.lock();
        self.observe(self.commit_locked(&mut core, records))
    }

    /// Commits records. A checker may leave out that a renaming is one change.
    fn commit_locked(&self, core: &mut NamespaceCore, records: &[Record]) -> Result<Moment> {
        if let [Record::Rename { from, to }] = records
            && self.sabotage.torn_rename()
        {
            let (from, to) = (from.clone(), to.clone());
            // There may be no file to replace.
            let _replaced = core.commit(&[Record::Remove { path: to.clone() }]);
            core.commit(&[Record::Link { from: from.clone(), to }])?;
            return core.commit(&[Record::Remove { path: from }]);
        }
        core.commit(records)
    }

    /// Commits the records that `decide` derives from the state, as [`Volume::commit`] does. No
    /// other commit happens in between, so this method serves every record that depends on the
    /// state. `decide` calls neither the volume nor a store. Without records, nothing is submitted.
    pub(crate) fn commit_decided(
        &self,
        decide: impl FnOnce(&NamespaceState) -> Result<Vec<Record>>,
    ) -> Result<Moment> {
        self.check_open()?;
        let mut core = self.core.lock();
        let records = decide(&core.state)?;
        if records.is_empty() {
            return Ok(core.moment());
        }
        self.observe(self.commit_locked(&mut core, &records))
    }

    /// Commits one record with the new file at `path`, as [`Volume::commit`] does. Returns `None`
    /// and changes nothing if a file has that name.
    pub(crate) fn commit_new(&self, path: &Path, record: Record) -> Result<Option<Moment>> {
        self.check_open()?;
        let mut core = self.core.lock();
        if core.state.key(path).is_some() {
            return Ok(None);
        }
        self.observe(core.commit(&[record])).map(Some)
    }

    /// The position after all commits so far.
    pub(crate) fn moment(&self) -> Moment {
        self.core.lock().moment()
    }

    /// Waits until all commits before `moment` are durable on all replicas, and has objects
    /// released that became superfluous. Errors: those of the pool, and then the commits may be
    /// durable or not; `Fenced`; `Closed`.
    pub(crate) fn wait(&self, moment: Moment) -> Result<()> {
        self.reach(moment)?;
        self.renew_long_log();
        self.release_soon();
        Ok(())
    }

    /// Chooses the identity of a blob. It is pending until a commit names it or
    /// [`Volume::give_up`], also if another process writes the blob.
    pub(crate) fn reserve_blob(&self) -> BlobId {
        let mut core = self.core.lock();
        let blob = BlobId::random(&mut core.rng);
        core.pending.add_blob(blob);
        blob
    }

    /// Chooses the identities of several blobs, as [`Volume::reserve_blob`] does.
    pub(crate) fn reserve_blobs(&self, count: usize) -> Vec<BlobId> {
        let mut core = self.core.lock();
        let core = &mut *core;
        let ids: Vec<BlobId> = (0..count).map(|_| BlobId::random(&mut core.rng)).collect();
        ids.iter().for_each(|blob| core.pending.add_blob(*blob));
        ids
    }

    /// Forgets pending blobs whose writing was never begun, so that the pool has nothing to
    /// release.
    pub(crate) fn forget_blobs(&self, blobs: &[BlobId]) {
        let mut core = self.core.lock();
        blobs.iter().for_each(|blob| core.pending.forget_blob(*blob));
    }

    /// Gives up several pending blobs, as [`Volume::give_up`] does, with one call of the pool.
    pub(crate) fn give_up_all(&self, blobs: &[BlobId]) {
        {
            let mut core = self.core.lock();
            blobs.iter().for_each(|blob| core.pending.give_up_blob(*blob));
        }
        self.release_soon();
    }

    /// Begins a blob, which is pending until a commit names it or [`Volume::give_up`]. Errors:
    /// those of the pool; `Fenced`; `Closed`.
    pub(crate) fn begin_blob(
        &self,
        context: IoContext,
        size_hint_bytes: u64,
    ) -> Result<(BlobId, Box<dyn BlobWriter>)> {
        self.check_open()?;
        let blob = self.reserve_blob();
        let (volume, epoch) = (self.id(), self.epoch());
        let options = BlobOptions { volume, epoch, context, size_hint_bytes };
        match self.observe(self.stores.blobs.create(blob, options)) {
            Ok(writer) => Ok((blob, writer)),
            Err(error) => {
                self.give_up(blob);
                Err(error)
            }
        }
    }

    /// Retains blobs of another volume, which are pending until a commit names them or
    /// [`Volume::give_up`]. The caller holds their files in the other volume. Errors: those of the
    /// pool, and then some may be retained until the volume gives them up.
    pub(crate) fn retain_blobs(&self, blobs: &[BlobRef]) -> Result<()> {
        self.check_open()?;
        {
            let mut core = self.core.lock();
            blobs.iter().for_each(|blob| core.pending.add_blob(blob.id));
        }
        let retained = self.stores.blobs.retain_all(blobs, self.id(), self.epoch());
        let retained = self.observe(retained);
        retained.inspect_err(|_| {
            let ids: Vec<BlobId> = blobs.iter().map(|blob| blob.id).collect();
            self.give_up_all(&ids);
        })
    }

    /// Gives up a pending blob. No commit names it afterwards. A blob that is not pending is no
    /// error. If the pool refuses the release, the volume repeats it.
    pub(crate) fn give_up(&self, blob: BlobId) {
        self.core.lock().pending.give_up_blob(blob);
        self.release_soon();
    }

    /// Begins the log of the file `key`. The caller commits its identity and layout as
    /// [`Content::Log`] before it waits for an append. Later layouts are committed by the volume.
    /// Errors: those of the pool; `Fenced`; `Closed`.
    pub(crate) fn begin_log(
        self: &Arc<Self>,
        key: FileKey,
        class: FileClass,
    ) -> Result<(Box<dyn LogWriter>, LogId, Layout)> {
        self.check_open()?;
        let id = {
            let mut core = self.core.lock();
            let id = LogId::random(&mut core.rng);
            core.pending.add_log(id);
            id
        };
        let keeper = Arc::new(FileLogKeeper { volume: Arc::downgrade(self), key });
        let (volume, epoch) = (self.id(), self.epoch());
        let new = NewLog { id, volume, epoch, class: log_class(class), keeper };
        match self.observe(self.stores.logs.create(new)) {
            Ok((writer, layout)) => {
                let layout = self.core.lock().pending.note_layout(id, layout);
                Ok((writer, id, layout))
            }
            Err(error) => {
                self.give_up_log(id);
                Err(error)
            }
        }
    }

    /// Gives up a log that no commit named. A log that is not pending is no error.
    pub(crate) fn give_up_log(&self, log: LogId) {
        self.core.lock().pending.give_up_log(log);
        self.release_soon();
    }

    /// Commits a new layout of the log of the file `key`, and waits for it. A log that is not named
    /// yet gets the layout with its name.
    fn keep_layout(&self, key: FileKey, log: LogId, layout: &Layout) -> Result<()> {
        self.check_open()?;
        let moment = {
            let mut core = self.core.lock();
            if core.pending.replace_layout(log, layout) {
                return Ok(());
            }
            // A log that has ended, or whose file was removed, needs no layout.
            let content = match core.state.get(key).map(|file| &file.content) {
                Some(Content::Log { head, id, len_bytes: None, .. }) if *id == log => {
                    let (head, layout) = (head.clone(), layout.clone());
                    Content::Log { head, id: log, layout, len_bytes: None }
                }
                _ => return Ok(()),
            };
            let modified_ms = self.clock.unix_ms();
            self.observe(core.commit(&[Record::Content { key, content, modified_ms }]))?
        };
        self.wait(moment)
    }

    /// Keeps the bytes of the file `key` until the drop of the hold. A file that was just allocated
    /// may be held before a commit names it. A caller that found the file with [`Volume::look`]
    /// looks again after this call, or uses [`Volume::hold_path`].
    pub(crate) fn hold(self: &Arc<Self>, key: FileKey) -> Hold {
        self.core.lock().pending.hold(key);
        Hold::new(Arc::clone(self), key)
    }

    /// The file at `path`, and a hold of it; `None` if there is none.
    pub(crate) fn hold_path(self: &Arc<Self>, path: &Path) -> Option<(FileRecord, Hold)> {
        let mut core = self.core.lock();
        let file = core.state.file(path)?.clone();
        core.pending.hold(file.key);
        let hold = Hold::new(Arc::clone(self), file.key);
        Some((file, hold))
    }

    /// Renews the lease now. On return the register has the renewal. A thread of the owner does so
    /// from time to time. A process whose [`VolumeOptions::spawn`] runs no threads calls this
    /// method instead, several times per lease.
    ///
    /// Errors: `Fenced` after a take-over; `Closed`; those of the register, and then the lease ends
    /// by itself unless a later renewal succeeds.
    pub fn renew_lease(&self) -> Result<()> {
        self.registration.renew()
    }

    /// Makes everything durable, ends the namespace's log, and gives up the lease. Objects that are
    /// due are released for a short time only, and the next owner finds the others as strays. Later
    /// calls get `Closed`. A second call does nothing.
    ///
    /// Errors: those of the pool, and then the lease ends by itself; `Fenced` after a take-over.
    pub fn close(&self) -> Result<()> {
        if std::mem::replace(&mut self.core.lock().is_closing, true) {
            return match self.check_open() {
                Err(error) if error.kind() == ErrorKind::Closed => Ok(()),
                outcome => outcome,
            };
        }
        self.closing_ns.get_or_init(|| self.clock.now_ns());
        // The threads that are stopped here may wait for a node, so the lease is renewed until they
        // have ended.
        let threads = self.strays.get().into_iter().chain(self.layouts.get());
        threads.for_each(VolumeThread::stop);
        self.lease.stop();
        let ended = self.end_log();
        let given_up = self.registration.give_up(ended.as_ref().ok());
        self.registration.end().end(&closed(self.name()));
        ended.and(given_up)
    }
}

/// The error of a volume that was closed.
fn closed(name: &str) -> Error {
    Error::closed(format!("volume {name} was closed by this process; open it again"))
}

/// Class with which the pool keeps the log of a file. A quorum acknowledges the bytes of a
/// write-ahead log, and all replicas acknowledge those of any other file.
fn log_class(class: FileClass) -> FileClass {
    match class {
        FileClass::Wal => FileClass::Wal,
        _ => FileClass::Manifest,
    }
}

/// Keeps the layouts of a file's log in the namespace.
#[derive(Debug)]
struct FileLogKeeper {
    volume: Weak<Volume>,
    key: FileKey,
}

impl LayoutKeeper for FileLogKeeper {
    fn keep(&self, log: LogId, layout: &Layout) -> Result<()> {
        match self.volume.upgrade() {
            Some(volume) => volume.keep_layout(self.key, log, layout),
            None => Err(Error::closed(format!("the volume of log {log} was closed"))),
        }
    }
}
