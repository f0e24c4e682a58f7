//! State that the handles and threads of open tiers share: devices, namespace, entries, trash.
//!
//! [`crate::TieredFs`], every handle and every background thread hold one [`OpenTiers`].
//!
//! Thread-safety: locks are taken in this order: the mover's `pace` (one iteration of the control
//! loop at a time), an order of [`EvictionOrder`], `syncing` (one sync at a time), `names` (the
//! namespace and the entries), an entry's `inside`, or `locks`. No other lock is taken while
//! `base_levels` is held. A read of a file takes none of them. `names` is held over appends to the
//! namespace's log, but not over its sync, except when a new generation begins.
//!
//! Failure: an error of a device is noted for the device. A change of names that cannot be recorded
//! is recorded by a new generation, or fails and is undone. After that, a crash before the next
//! successful change or sync may bring it back whole ([`crate::namespace`]).
//! Cost: a change of names costs an append to a log.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use archipelago_base::clock::Clock;
use archipelago_base::{Error, Result};
use archipelago_env::{
    CreateOptions, FileClass, FileLock, FileSystem, IoContext, OpenOptions, RandomFile,
};
use parking_lot::{Condvar, Mutex};

use super::entry::{CachedCopy, Entry};
use super::job_queue::JobQueue;
use super::make_room::EvictionOrder;
use super::physical::{Physical, Trash};
use crate::activity::{Activity, Totals};
use crate::base_levels::BaseLevels;
use crate::device::{Count, Device, Unsynced};
use crate::history::{History, Reason};
use crate::namespace::record::Record;
use crate::namespace::state::Gone;
use crate::namespace::{Committed, Moment, Namespace};
use crate::place::{DeviceView, PlaceInput, place};
use crate::settings::{DeviceKind, Policy};
use crate::write_slots::{self, WriteSlot};

/// Bounds of the length, in bytes, to which writes of tables and copies are cut. They limit the
/// value from the profile of a device.
const IO_BYTES: RangeInclusive<u64> = 16 << 10..=1 << 20;

/// Removed files may hold the free bytes of a device divided by this until the next iteration of
/// the control loop.
const LEAVING_PART: u64 = 64;
/// Bytes that removed files may hold of a device until the next iteration, at most.
const LEAVING_BYTES: u64 = 64 << 20;

/// A function that background work calls at named steps, for tests: an error makes the step fail,
/// and the function may end the process.
pub type FaultPoint = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// The background work as the modules of `fs/` call it. [`crate::mover`] stands above them and
/// implements this trait.
pub(crate) trait BackgroundWork: Send + Sync {
    /// Runs one iteration of the control loop: ages accesses, decides on copies, moves and the
    /// scheme, and queues the jobs. One thread at a time runs it.
    fn iterate(&self, shared: &Arc<OpenTiers>);

    /// Moves a file to the device at `to` on the calling thread, ahead of all queued jobs. A file
    /// that is being written stays where it is. Errors: `Busy` if the file has a job; those of the
    /// devices.
    fn move_now(
        &self,
        shared: &Arc<OpenTiers>,
        entry: &Arc<Entry>,
        to: usize,
        reason: Reason,
    ) -> Result<()>;

    /// Queues the move of a file whose level changed to that of `context`, if the file belongs on
    /// another device now.
    fn level_changed(&self, shared: &Arc<OpenTiers>, entry: &Arc<Entry>, context: IoContext);

    /// For each device, the foreground reads that it served in the last iteration, and those that
    /// it could have served: reads of files on this device and on slower ones.
    fn read_ratios(&self) -> Vec<(u64, u64)>;
}

/// The state of open tiers from which the background work begins.
pub(crate) struct MoverStart {
    /// Number of devices.
    pub(crate) devices: usize,
    pub(crate) fast_levels: u8,
    pub(crate) totals: Totals,
    /// Aged accesses of all files that the namespace kept over the restart.
    pub(crate) kept_accesses: f64,
}

/// The namespace, and the entries of its files by unique id.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) space: Namespace,
    pub(crate) entries: HashMap<u64, Arc<Entry>>,
}

/// The state of open tiers.
pub(crate) struct OpenTiers {
    /// Id of the namespace.
    pub(crate) id: [u8; 16],
    /// Devices, the fastest first.
    pub(crate) devices: Arc<[Device]>,
    /// Index of the device that holds the namespace.
    pub(crate) home: usize,
    /// Paths below this one belong to the tiers.
    pub(crate) root: PathBuf,
    /// File system of all other paths.
    pub(crate) outside: Arc<dyn FileSystem>,
    pub(crate) policy: Policy,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) fault: Option<FaultPoint>,
    /// Whether there are several devices. Only then are accesses counted.
    pub(crate) is_tiered: bool,
    /// Number of levels, by depth, that belong to the fastest device.
    pub(crate) fast_levels: AtomicU8,
    /// Level that L0 compacts into, by column family.
    pub(crate) base_levels: Mutex<BaseLevels>,
    pub(crate) names: Mutex<Names>,
    /// Paths that this process has locked.
    pub(crate) locks: Mutex<HashSet<PathBuf>>,
    pub(crate) trash: Arc<Trash>,
    pub(crate) activity: Activity,
    pub(crate) history: History,
    pub(crate) evictions: EvictionOrder,
    pub(crate) queue: JobQueue,
    /// Moves and copies files in the background.
    pub(crate) mover: Box<dyn BackgroundWork>,
    /// Number of wake-ups so far, and the condition on which background threads wait for the next
    /// one.
    pub(crate) wake: (Mutex<u64>, Condvar),
    /// Whether background threads shall end.
    pub(crate) closing: AtomicBool,
    /// Earliest time, in milliseconds, of the next attempt to write the namespace's ballast.
    pub(crate) ballast_at_ms: AtomicU64,
    syncing: Mutex<()>,
    /// Locks of the devices, held until the last handle is dropped.
    _device_locks: Vec<Box<dyn FileLock>>,
}

impl std::fmt::Debug for OpenTiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tiers").field("root", &self.root).finish_non_exhaustive()
    }
}

/// The device for a new file.
pub(crate) struct ChosenDevice {
    pub(crate) index: usize,
    /// Whether the device is full, failing or leaving, and was chosen because no other is better.
    pub(crate) is_avoided: bool,
    /// The slot of the file, if files of its kind take slots.
    pub(crate) slot: Option<WriteSlot>,
}

/// The parts from which an open makes a [`OpenTiers`].
pub(crate) struct Parts {
    pub(crate) devices: Arc<[Device]>,
    pub(crate) home: usize,
    pub(crate) root: PathBuf,
    pub(crate) outside: Arc<dyn FileSystem>,
    pub(crate) policy: Policy,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) fault: Option<FaultPoint>,
    pub(crate) fast_levels: u8,
    pub(crate) base_level: Option<u8>,
    pub(crate) names: Names,
    pub(crate) trash: Arc<Trash>,
    pub(crate) locks: Vec<Box<dyn FileLock>>,
}

impl OpenTiers {
    /// The state of tiers that were just opened. `new_mover` makes the background work.
    pub(crate) fn new(
        parts: Parts,
        new_mover: impl FnOnce(&MoverStart) -> Box<dyn BackgroundWork>,
    ) -> Arc<Self> {
        let is_tiered = parts.devices.len() > 1;
        let now_ns = parts.clock.now_ns();
        let activity = Activity::new(now_ns);
        let kept = parts.names.entries.values().map(|entry| entry.accesses.heat());
        let start = MoverStart {
            devices: parts.devices.len(),
            fast_levels: parts.fast_levels,
            totals: activity.totals(now_ns),
            kept_accesses: kept.sum(),
        };
        Arc::new(Self {
            id: parts.names.space.id(),
            activity,
            mover: new_mover(&start),
            devices: parts.devices,
            home: parts.home,
            root: parts.root,
            outside: parts.outside,
            policy: parts.policy,
            clock: parts.clock,
            fault: parts.fault,
            is_tiered,
            fast_levels: AtomicU8::new(parts.fast_levels),
            base_levels: Mutex::new(BaseLevels::new(parts.base_level)),
            names: Mutex::new(parts.names),
            locks: Mutex::default(),
            trash: parts.trash,
            history: History::default(),
            evictions: EvictionOrder::default(),
            queue: JobQueue::default(),
            wake: (Mutex::new(0), Condvar::new()),
            closing: AtomicBool::new(false),
            ballast_at_ms: AtomicU64::new(0),
            syncing: Mutex::new(()),
            _device_locks: parts.locks,
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ns() / 1_000_000
    }

    /// Calls the fault point `name`. Errors: those of the test that set it.
    pub(crate) fn fault_point(&self, name: &str) -> Result<()> {
        self.fault.as_ref().map_or(Ok(()), |fault| fault(name))
    }

    /// Wakes the background threads.
    pub(crate) fn wake_workers(&self) {
        *self.wake.0.lock() += 1;
        self.wake.1.notify_all();
    }

    /// The devices as placement sees them.
    pub(crate) fn views(&self) -> Vec<DeviceView> {
        let now_ns = self.now_ns();
        let view = |device: &Device| DeviceView {
            capacity: device.capacity.load(Ordering::Relaxed),
            free: device.free(),
            avoid: device.is_failing(now_ns)
                || device.is_full(now_ns)
                || device.leaves.load(Ordering::Relaxed),
            deepest: Some(device.deepest.load(Ordering::Relaxed)).filter(|&level| level != u8::MAX),
            log_room: device.log_room.load(Ordering::Relaxed),
        };
        self.devices.iter().map(view).collect()
    }

    /// Chooses the device of a new file and takes a write slot there. The devices at `tried` have
    /// just failed. A file that had to wait for its slot is placed again, because the device may be
    /// full by then.
    pub(crate) fn choose(
        &self,
        context: IoContext,
        size_hint_bytes: u64,
        tried: &[usize],
    ) -> ChosenDevice {
        let choose = || {
            let mut devices = self.views();
            tried.iter().for_each(|&index| devices[index].avoid = true);
            let index = place(&self.place_input(context, size_hint_bytes, &devices)).0;
            (index, devices[index].avoid)
        };
        let (mut index, mut is_avoided) = choose();
        let mut slot = self.write_slot(&self.devices[index], context);
        for _ in 1..self.devices.len() {
            if !slot.as_ref().is_some_and(|slot| slot.waited) {
                break;
            }
            let (now, is_avoided_now) = choose();
            is_avoided = is_avoided_now;
            if now == index {
                break;
            }
            drop(slot.take());
            index = now;
            slot = self.write_slot(&self.devices[index], context);
        }
        ChosenDevice { index, is_avoided, slot }
    }

    /// Whether a new log may reuse the space of an old one, of `len` bytes on the device at
    /// `index`: placement would put the new log on the same device.
    pub(crate) fn keeps_place(
        &self,
        context: IoContext,
        hint: u64,
        index: usize,
        len: u64,
    ) -> bool {
        let mut devices = self.views();
        devices[index].free = devices[index].free.saturating_add(len);
        place(&self.place_input(context, hint, &devices)).0 == index
    }

    /// The input of placement for a file, with the devices as [`Self::views`] returned them.
    pub(crate) fn place_input<'a>(
        &self,
        context: IoContext,
        size_hint_bytes: u64,
        devices: &'a [DeviceView],
    ) -> PlaceInput<'a> {
        PlaceInput {
            context,
            size_hint_bytes,
            fast_levels: self.fast_levels.load(Ordering::Relaxed),
            base_level: self.base_levels.lock().of(context.family),
            devices,
            reserve: self.policy.force_below,
            migrate: self.policy.migrate_below,
        }
    }

    /// Opens a physical file in the way that its device wants.
    pub(crate) fn open_physical(
        &self,
        physical: &Physical,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let device = physical.device();
        let direct = options.direct || is_direct(device, context.class);
        device.fs.open(&physical.path, context, OpenOptions { direct })
    }

    /// Options with which a file is written to a device. Several files share a device, and a
    /// foreground read or a record of the log waits for a write of each other file. So tables and
    /// copies are written in pieces that are just long enough for the device to be efficient
    /// (decision 0027), if the profile of the device says so.
    pub(crate) fn create_options(
        &self,
        device: &Device,
        class: FileClass,
        size_hint_bytes: u64,
    ) -> CreateOptions {
        let best = device.write_bytes_best().filter(|_| self.is_tiered);
        let io_bytes_max = best
            .map_or(0, |bytes| bytes.clamp(*IO_BYTES.start(), *IO_BYTES.end()).next_power_of_two());
        // The number in the name of a physical file is its own, so no other file has the name.
        let exclusive = false;
        CreateOptions { direct: is_direct(device, class), size_hint_bytes, io_bytes_max, exclusive }
    }

    /// Waits until a file may be written to a device. `None` if files of its kind take no slot.
    pub(crate) fn write_slot(&self, device: &Device, context: IoContext) -> Option<WriteSlot> {
        let kind =
            write_slots::kind_of(context).filter(|_| self.is_tiered && self.policy.in_turn)?;
        let asked_ns = self.now_ns();
        let slot = device.write_slots.begin(kind, device.limit.load(Ordering::Relaxed));
        if slot.waited {
            device.add(Count::TurnsWaited, 1);
            device.add(Count::TurnsWaitedNs, self.now_ns().saturating_sub(asked_ns));
        }
        Some(slot)
    }

    /// The entry of the file at `path`. `doing` names the caller's operation, for errors. Errors:
    /// `NotFound`; `Io` for a directory.
    pub(crate) fn entry(&self, doing: &str, path: &Path) -> Result<Arc<Entry>> {
        let names = self.names.lock();
        match names.space.state.id(path).and_then(|id| names.entries.get(&id)) {
            Some(entry) => Ok(Arc::clone(entry)),
            None if names.space.state.is_dir(path) => {
                Err(Error::io(doing, path, std::io::ErrorKind::IsADirectory.into()))
            }
            None => Err(Error::io(doing, path, std::io::ErrorKind::NotFound.into())),
        }
    }

    /// Carries out a change of names and records it. The change survives `kill -9` when this
    /// returns, and power loss after [`OpenTiers::sync`]. Files that it made superfluous are
    /// condemned. Errors: those of the home device, if neither the log nor a new generation takes
    /// the change. After an error, names, entries and files are as before.
    pub(crate) fn commit(&self, names: &mut Names, record: &Record) -> Result<Moment> {
        let Committed { gone, undo, recorded } = names.space.commit(record)?;
        let entry_of = |gone: &Gone| match gone {
            Gone::File(id) => names.entries.get(id).cloned(),
            Gone::Moved(..) | Gone::Copy(..) => None,
        };
        let gone: Vec<Arc<Entry>> = gone.iter().filter_map(entry_of).collect();
        let at = match recorded {
            Ok(at) => at,
            // The log takes no more records. A new generation with the present state may succeed.
            Err(error) => match self.renew_without(names, &gone, true) {
                Ok(()) => names.space.settled(),
                Err(again) => {
                    tracing::error!(%again, "no new generation of the tier namespace");
                    names.space.undo(undo);
                    return Err(error);
                }
            },
        };
        for entry in &gone {
            names.entries.remove(&entry.id);
            self.forget(entry, at);
        }
        Ok(at)
    }

    /// Carries out a change that removes no file, and that holds even if it cannot be recorded.
    /// After an error, the next generation has the change, and a crash before that undoes it.
    /// Errors: those of [`OpenTiers::commit`].
    pub(crate) fn commit_anyway(&self, names: &mut Names, record: &Record) -> Result<()> {
        let recorded = self.commit(names, record).map(|_| ());
        if recorded.is_err() {
            // The log has failed and takes no more records. So it has no record that contradicts
            // the state.
            let _refused = names.space.state.apply(record);
        }
        recorded
    }

    /// Condemns a file that was removed from the namespace, and its copies.
    fn forget(&self, entry: &Arc<Entry>, at: Moment) {
        entry.gone.store(true, Ordering::Relaxed);
        let mut inside = entry.inside.lock();
        inside.main.condemn(at);
        // A power loss may undo the removal. If the device lost the original, the copies are then
        // the only bytes of the file, so they stay until the removal is durable.
        let of_copies = if inside.missing { at } else { Moment::default() };
        for copy in inside.copies.drain(..) {
            copy.physical.condemn(of_copies);
            copy.physical.device().add(Count::CopiesDropped, 1);
        }
    }

    /// Begins a new generation of the namespace, with the present access counts. All files that it
    /// names are made durable before, also those that another thread is syncing at the moment.
    /// `must` has the meaning of [`Namespace::renew`].
    fn renew(&self, names: &mut Names, must: bool) -> Result<()> {
        self.renew_without(names, &[], must)
    }

    /// Begins a new generation as [`OpenTiers::renew`] does. The files of `gone`, which the
    /// namespace does not name any more, need not be durable.
    fn renew_without(&self, names: &mut Names, gone: &[Arc<Entry>], must: bool) -> Result<()> {
        for (id, entry) in &names.entries {
            if let Some(file) = names.space.state.files.get_mut(id) {
                file.heat = entry.accesses.heat() as u64 + 1;
            }
        }
        let mut unsynced: Vec<Unsynced> = self.devices.iter().map(Device::unsynced).collect();
        for entry in gone {
            let main = Arc::clone(&entry.inside.lock().main);
            let of_device = &mut unsynced[main.device];
            if let Some(dir) = main.path.parent()
                && let Some(files) = of_device.get_mut(dir)
                && files.remove(&main.number)
                && files.is_empty()
            {
                of_device.remove(dir);
            }
        }
        self.sync_names(&unsynced)?;
        names.space.renew(must)
    }

    /// Makes every change of names so far survive power loss.
    pub(crate) fn sync(&self) -> Result<()> {
        let _one = self.syncing.lock();
        let (begun, unsynced) = {
            let mut names = self.names.lock();
            if names.space.wants_renewal() {
                return self.renew(&mut names, true);
            }
            let unsynced: Vec<Unsynced> = self.devices.iter().map(Device::unsynced).collect();
            if unsynced.iter().all(Unsynced::is_empty) && !names.space.is_dirty() {
                return Ok(());
            }
            (names.space.moment(), unsynced)
        };
        self.sync_names(&unsynced)?;
        self.fault_point("sync.after_names")?;
        let ticket = {
            let mut names = self.names.lock();
            if names.space.moment().generation != begun.generation {
                // A new generation began in the meantime, so all earlier changes are durable.
                return Ok(());
            }
            match names.space.mark(begun.offset) {
                Ok(ticket) => ticket,
                Err(_) => return self.renew(&mut names, true),
            }
        };
        let outcome = ticket.sync();
        self.names.lock().space.synced(&outcome, &ticket);
        outcome.map(|_| ())
    }

    /// Makes the physical names of files durable, on each device until a directory fails.
    fn sync_names(&self, unsynced: &[Unsynced]) -> Result<()> {
        let mut result = Ok(());
        for (device, names) in self.devices.iter().zip(unsynced) {
            let synced = device.sync_names(names);
            if synced.is_err() {
                device.note(&synced, self.now_ns());
                result =
                    synced.map_err(|error| error.context_at(format!("device \"{}\"", device.name)));
            }
        }
        result
    }

    /// Records the present access counts in the namespace, for the next open. Returns whether they
    /// were recorded. Syncs first, so that other threads wait for the new generation only.
    pub(crate) fn keep_heat(&self) -> bool {
        if !self.is_tiered {
            return true;
        }
        let kept = self.sync().and_then(|()| self.renew(&mut self.names.lock(), false));
        if let Err(error) = &kept {
            tracing::warn!(%error, "accesses are not kept over the restart");
        }
        kept.is_ok()
    }

    /// Removes condemned files without a holder, and returns their number. With `durably`, syncs
    /// the namespace first if files wait for that.
    pub(crate) fn empty_trash(&self, durably: bool) -> Result<usize> {
        let mut settled = self.names.lock().space.settled();
        let mut outcome = Ok(());
        if durably && self.trash.waits_for(settled) {
            outcome = self.sync();
            settled = self.names.lock().space.settled();
        }
        let removed = self.empty_settled(settled, None);
        outcome.map(|()| removed)
    }

    /// Removes condemned files, or only the copies among them on one device, as
    /// [`Trash::empty`] does. Fault point: `trash.remove`, before each file.
    pub(crate) fn empty_settled(&self, settled: Moment, copies_of: Option<usize>) -> usize {
        let before = || self.fault_point("trash.remove");
        self.trash.empty(settled, self.now_ns(), copies_of, &before)
    }

    /// Wakes the control loop after a change of names, if removed files hold much of a device's
    /// room. Otherwise its next iteration removes them. A wake-up for each of thousands of tables a
    /// second would take processor time from their writers.
    pub(crate) fn tidy(&self) {
        let holds_much = |device: &Device| {
            let leaving = device.leaving.load(Ordering::Relaxed);
            leaving > 0 && leaving >= (device.free() / LEAVING_PART).min(LEAVING_BYTES)
        };
        if self.devices.iter().any(holds_much) {
            self.wake_workers();
        }
    }

    /// Whether removed files hold much of the room that is left on a device.
    pub(crate) fn is_short_of_room_for_trash(&self) -> bool {
        self.devices.iter().any(|device| {
            let leaving = device.leaving.load(Ordering::Relaxed);
            leaving > 0 && leaving >= device.free() / LEAVING_PART
        })
    }

    /// Drops a copy: no route leads to it any more, and its file is removed after the last read of
    /// it. Returns whether it was dropped. The whole copy of a missing file is never dropped. Fault
    /// points: `drop.begin`, `drop.recorded` and, when files of dropped copies are removed,
    /// `drop.removed`.
    pub(crate) fn drop_copy(self: &Arc<Self>, entry: &Arc<Entry>, copy: &Arc<CachedCopy>) -> bool {
        if let Err(error) = self.fault_point("drop.begin") {
            tracing::warn!(%error, "a copy is not dropped");
            return false;
        }
        let mut names = self.names.lock();
        let mut inside = entry.inside.lock();
        if inside.missing && copy.whole {
            // These are the only bytes of a file that its device lost.
            return false;
        }
        let before = inside.copies.len();
        inside.copies.retain(|held| !Arc::ptr_eq(held, copy));
        if inside.copies.len() == before {
            return false;
        }
        drop(inside);
        let record = Record::CopyDropped { number: copy.physical.number };
        let recorded = self.commit_anyway(&mut names, &record);
        drop(names);
        if let Err(error) = recorded.and_then(|()| self.fault_point("drop.recorded")) {
            // The next open finds the copy's file missing, or a sound copy. It accepts both.
            tracing::warn!(%error, "the end of a copy was not recorded");
        }
        copy.physical.condemn(Moment::default());
        copy.physical.device().add(Count::CopiesDropped, 1);
        if let Err(error) = entry.reroute(&mut entry.inside.lock(), self) {
            tracing::warn!(%error, "a handle still uses a dropped copy");
        }
        true
    }
}

/// Whether files of the class are always read and written with `O_DIRECT` on the device.
pub(crate) fn is_direct(device: &Device, class: FileClass) -> bool {
    device.kind == DeviceKind::Direct && class.is_table()
}
