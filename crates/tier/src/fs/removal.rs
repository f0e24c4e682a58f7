//! Removal of a device from the tiers, in two steps (decision 0030).
//!
//! 1. [`TieredFs::empty_device`] moves every file off the device: tables, logs and bookkeeping
//!    files. Each move has the steps of any move ([`crate::mover`]), so that one copy of each file
//!    counts at every moment. No new file is placed on the device. If the call is interrupted, the
//!    files that were moved stay moved.
//! 2. [`forget_device`] works on closed tiers. If the namespace lies on the device, it moves to
//!    another device first. Then all files of the tiers are removed, `DEVICE` and `LOCK` last, so
//!    that an empty directory remains.
//!
//! The namespace moves in six steps:
//! 1. The identity of the old home says that the namespace moves to the new home. From now on the
//!    tiers do not open without the new home.
//! 2. The next generation begins on the new home.
//! 3. The identity of the new home says that it holds the namespace.
//! 4. The identities of the other devices name the new home.
//! 5. The identity of the old home does so as well, and says that it holds no namespace.
//! 6. The old generation is removed.
//!
//! Before step 3 the old generation counts, and from then on the new one (`find_home`). Neither
//! generation is opened without the device that may hold a newer generation. An open in between
//! completes the move or undoes it.
//!
//! Failure: a crash at any point leaves tiers that open with all devices. A device may be missing
//! if it has no files, does not hold the namespace, and is not the new home. Fault points: those of
//! moves, then `home.moves`, `home.begun`, `home.taken`, `home.told`, `home.left`,
//! `forget.emptied`. Cost: each byte on the device is read once, and is written and read back once
//! on its new device.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::clock::Clock;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileSystem, GroupAccess, IoContext, IoPurpose};

use super::TieredFs;
use super::discovery::{Found, LOCK_NAME, files_only_on, find_devices, find_home, lock_devices};
use super::entry::{Entry, Inside};
use super::open::{
    DeviceParts, NAMES_DIR, SCHEME_NAME, make_devices, read_namespace, sync_names, write_identities,
};
use super::shared::{FaultPoint, OpenTiers};
use crate::device::file_system;
use crate::device::identity::{DEVICE_NAME, Home, Identity};
use crate::history::Reason;
use crate::namespace::Namespace;
use crate::namespace::state::NamespaceState;
use crate::place::place;
use crate::settings::{DeviceSettings, validate};

/// Progress of [`TieredFs::empty_device`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// Number of files that were moved.
    pub files: u64,
    /// Bytes of the moved files.
    pub bytes: u64,
    /// Bytes of all files that lay on the device.
    pub bytes_in_all: u64,
}

impl TieredFs {
    /// Moves every file off the device called `name`, and drops its copies. No new file is placed
    /// on the device until the tiers are opened again, or this call fails. `told` is called after
    /// each file. The result is durable when the call returns.
    ///
    /// The database must have been closed in order, and no handle may have a file of the device
    /// open. Files that belong to a log which was open when its process ended are not moved with
    /// it.
    ///
    /// Errors: `InvalidArgument` for an unknown name and for the only device; `Busy` for files that
    /// are being written or read; `Io` (no space), before any move, if the other devices have too
    /// little room together; those of the devices, after an attempt at every file. Files that were
    /// moved stay moved.
    pub fn empty_device(&self, name: &str, mut told: impl FnMut(Emptied)) -> Result<Emptied> {
        let shared = &self.shared;
        let index = shared.devices.iter().position(|device| device.name == name);
        let index = index
            .ok_or_else(|| unknown(name, shared.devices.iter().map(|device| &device.name[..])))?;
        check_others(name, shared.devices.len())?;
        let files = files_of(shared, index);
        let bytes_in_all = files.iter().map(|entry| len_of(entry)).sum();
        check_room(shared, index, bytes_in_all)?;
        shared.devices[index].leaves.store(true, Ordering::Relaxed);
        let done = self.empty(index, files, bytes_in_all, &mut told);
        if done.is_err() {
            shared.devices[index].leaves.store(false, Ordering::Relaxed);
        }
        done
    }

    fn empty(
        &self,
        index: usize,
        files: Vec<Arc<Entry>>,
        bytes_in_all: u64,
        told: &mut impl FnMut(Emptied),
    ) -> Result<Emptied> {
        let (shared, device) = (&self.shared, &self.shared.devices[index]);
        let mut done = Emptied { bytes_in_all, ..Emptied::default() };
        let (mut failed, mut first) = restore_missing(shared, index);
        drop_copies(shared, index);
        order_copies(shared);
        for entry in files {
            let len = len_of(&entry);
            match move_away(shared, &entry, index) {
                Ok(()) => done = Emptied { files: done.files + 1, bytes: done.bytes + len, ..done },
                Err(error) => {
                    failed += 1;
                    first.get_or_insert(error);
                }
            }
            // Dropped copies and moved files free their room before the next file moves.
            shared.empty_trash(false)?;
            told(done);
        }
        shared.sync()?;
        shared.empty_trash(true)?;
        if let Some(error) = first {
            return Err(error.context_at(format!(
                "device \"{}\" is not empty: {failed} files could not be moved, {} were; the first of them",
                device.name, done.files
            )));
        }
        let held =
            device.files_bytes.load(Ordering::Relaxed) + device.cache_bytes.load(Ordering::Relaxed);
        if held > 0 || !files_of(shared, index).is_empty() {
            return Err(Error::busy(format!(
                "device \"{}\" is not empty: files of it are open, or were made meanwhile ({held} bytes); \
                 close the database and try again",
                device.name
            )));
        }
        Ok(done)
    }
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<_> = known.map(|name| format!("\"{name}\"")).collect();
    Error::invalid(format!("there is no device \"{name}\"; there are {}", known.join(", ")))
}

fn check_others(name: &str, devices: usize) -> Result<()> {
    if devices > 1 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "device \"{name}\" is the only one: add the device that will take its files to the \
         list first"
    )))
}

/// Files on a device, the longest first.
fn files_of(shared: &OpenTiers, index: usize) -> Vec<Arc<Entry>> {
    let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
    let here = |entry: &Arc<Entry>| entry.inside.lock().main.device == index;
    let mut files: Vec<_> = entries.into_iter().filter(here).collect();
    files.sort_by_key(|entry| (std::cmp::Reverse(len_of(entry)), entry.id));
    files
}

fn len_of(entry: &Entry) -> u64 {
    entry.inside.lock().main.len()
}

fn no_space(what: String) -> Error {
    let cause = std::io::Error::from(std::io::ErrorKind::StorageFull);
    Error::with_source(ErrorKind::Io, what, cause)
}

/// Refuses if the other devices have no room for `bytes`, apart from their reserves.
fn check_room(shared: &OpenTiers, index: usize, bytes: u64) -> Result<()> {
    let others = (0..shared.devices.len()).filter(|&other| other != index);
    let room = |other: usize| shared.devices[other].free().saturating_sub(shared.reserve_of(other));
    let room: u64 = others.map(room).fold(0, u64::saturating_add);
    if room >= bytes {
        return Ok(());
    }
    Err(no_space(format!(
        "{bytes} bytes lie on device \"{}\", and the others have room for {room}: nothing was moved; make room, or add a device",
        shared.devices[index].name
    )))
}

/// Restores files that other devices lost and whose whole copies may lie on this device. Returns
/// the number of files that could not be restored, and the error of the first.
fn restore_missing(shared: &Arc<OpenTiers>, index: usize) -> (usize, Option<Error>) {
    let (mut failed, mut first) = (0, None);
    let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
    for entry in entries {
        let inside = entry.inside.lock();
        let (missing, to) = (inside.missing && !inside.is_lost(), inside.main.device);
        drop(inside);
        if missing && to != index {
            let made = shared.mover.move_now(shared, &entry, to, Reason::Missing);
            let is_copy_here = |inside: &Inside| {
                let whole = inside.copies.iter().filter(|copy| copy.whole);
                whole.map(|copy| copy.physical.device).all(|device| device == index)
            };
            match made {
                Err(error) if is_copy_here(&entry.inside.lock()) => {
                    failed += 1;
                    first.get_or_insert(error);
                }
                // The file was restored, or another device also has a copy.
                _ => {}
            }
        }
    }
    (failed, first)
}

/// Notes the order in which copies are dropped if files need their room, the coldest first. No
/// iteration of the control loop has done so.
fn order_copies(shared: &Arc<OpenTiers>) {
    let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
    let mut copies = Vec::new();
    for entry in &entries {
        let held = entry.inside.lock().copies.clone();
        copies.extend(held.into_iter().map(|copy| (entry, copy)));
    }
    copies.sort_by(|(a, _), (b, _)| b.accesses.heat().total_cmp(&a.accesses.heat()));
    for index in 0..shared.devices.len() {
        let here = copies.iter().filter(|(_, copy)| copy.physical.device == index);
        shared.evictions.note(index, here.map(|(entry, copy)| (*entry, copy)));
    }
}

/// Drops all copies on a device.
fn drop_copies(shared: &Arc<OpenTiers>, index: usize) {
    let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
    for entry in entries {
        drop_copies_of(shared, &entry, |device| device == index);
    }
}

fn drop_copies_of(shared: &Arc<OpenTiers>, entry: &Arc<Entry>, which: impl Fn(usize) -> bool) {
    let mut copies = entry.inside.lock().copies.clone();
    copies.retain(|copy| which(copy.physical.device));
    for copy in &copies {
        shared.drop_copy(entry, copy);
    }
}

/// Moves a file to the device that placement chooses without the device `from`.
fn move_away(shared: &Arc<OpenTiers>, entry: &Arc<Entry>, from: usize) -> Result<()> {
    let name = || {
        let names = shared.names.lock();
        let file = names.space.state.files.get(&entry.id);
        file.and_then(|file| file.names.first())
            .map_or_else(String::new, |name| name.display().to_string())
    };
    if entry.inside.lock().is_lost() {
        return Err(Error::not_found(format!(
            "{} is missing on device \"{}\", and there is no copy: put it back as {}, or go on without it by a repair of the database",
            name(),
            shared.devices[from].name,
            entry.inside.lock().main.path.display()
        )));
    }
    let len = len_of(entry);
    let views = shared.views();
    let (to, _) = place(&shared.place_input(entry.own_context(), len, &views));
    if to == from || views[to].avoid || views[to].free < len {
        return Err(no_space(format!("no device has room for {} ({len} bytes)", name())));
    }
    shared.mover.move_now(shared, entry, to, Reason::DeviceLeaves)?;
    if entry.inside.lock().main.device == from {
        return Err(Error::busy(format!("{} is being written: close the database first", name())));
    }
    // A copy on the file's own device or on a slower one is of no use.
    drop_copies_of(shared, entry, |device| device >= to);
    Ok(())
}

/// Removes the emptied device called `name` from closed tiers. Its directory is empty afterwards.
/// Returns whether the device belonged to the tiers. The caller removes the device from its list of
/// devices before or after this: a later open with the device in the list adds it as a new device.
/// `must_exist` has the meaning of [`super::Components::must_exist`].
///
/// Errors: those of [`TieredFs::open`] for missing, foreign and open devices; `InvalidArgument` for
/// a device that is unknown, is the only one, or has files.
pub fn forget_device(
    settings: &[DeviceSettings],
    clock: &Arc<dyn Clock>,
    must_exist: Option<&str>,
    name: &str,
) -> Result<bool> {
    let parts = settings.iter().map(|settings| {
        let fs = file_system(settings, clock, GroupAccess::None)?;
        Ok(DeviceParts { settings: settings.clone(), fs, is_local: true })
    });
    forget_over(parts.collect::<Result<Vec<_>>>()?, must_exist, name, None)
}

/// Removes a device as [`forget_device`] does, over file systems of the caller.
pub(crate) fn forget_over(
    devices: Vec<DeviceParts>,
    must_exist: Option<&str>,
    name: &str,
    fault: Option<&FaultPoint>,
) -> Result<bool> {
    let settings: Vec<_> = devices.iter().map(|parts| parts.settings.clone()).collect();
    validate(&settings)?;
    let mut found = find_devices(devices)?;
    let index_of = |found: &[Found]| found.iter().position(|one| one.name == name);
    let index =
        index_of(&found).ok_or_else(|| unknown(name, found.iter().map(|one| &one.name[..])))?;
    check_others(name, found.len())?;
    let home = find_home(&found, must_exist)?;
    let Some(identity) = found[index].identity.clone() else { return Ok(false) };
    // New devices, which the next open would add, are left alone.
    let home_name = found[home].name.clone();
    found.retain(|one| one.identity.is_some());
    let index = index_of(&found).unwrap_or(index);
    let home = found.iter().position(|one| one.name == home_name).unwrap_or(home);
    let _locks = lock_devices(&found, true)?;
    let names_dir = found[home].parts.settings.path.join(NAMES_DIR);
    let known = read_namespace(&found, home, &names_dir)?;
    let named = files_only_on(identity.no, &found, &known.contents, &known.state).len();
    let lie_there = named.max(known.contents[index].files.len());
    if lie_there > 0 {
        return Err(Error::invalid(format!(
            "{lie_there} files lie on device \"{name}\": nothing was changed; empty it first"
        )));
    }
    let fault = |point: &str| fault.map_or(Ok(()), |fault| fault(point));
    // An interrupted move of the namespace is completed or undone first, as an open does.
    let devices = make_devices(&found);
    let id = known.id.unwrap_or(identity.namespace);
    write_identities(&found, &devices, id, home)?;
    for one in &mut found {
        one.identity = Identity::load(&*one.parts.fs, &one.parts.settings.path)?;
    }
    if index == home {
        let mut others = (0..found.len()).filter(|&other| other != index);
        let to = others.next().ok_or_else(|| {
            Error::invalid(format!(
                "device \"{name}\" holds the namespace, and no other device belongs to these tiers yet: open them once"
            ))
        })?;
        // The next generation relies on these names.
        sync_names(&devices)?;
        let namespace = NamespaceImage { id, generation: known.generation, state: known.state };
        move_home(&found, index, to, namespace, &fault)?;
    }
    wipe(&found[index], &fault)?;
    Ok(true)
}

/// A namespace that moves to another device.
struct NamespaceImage {
    id: [u8; 16],
    generation: u64,
    state: NamespaceState,
}

/// Moves the namespace from one device to another, in the steps of the module's head.
fn move_home(
    found: &[Found],
    from: usize,
    to: usize,
    namespace: NamespaceImage,
    fault: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let NamespaceImage { id, generation, state } = namespace;
    let new = &found[to];
    let (fs, root) = (&new.parts.fs, &new.parts.settings.path);
    let says = |index: usize, home: fn(u8) -> Home| {
        let one = &found[index];
        let (Some(theirs), Some(of_new)) = (&one.identity, &new.identity) else { return Ok(()) };
        let identity = Identity {
            home: home(of_new.no),
            home_name: new.name.clone(),
            home_path: root.display().to_string(),
            ..theirs.clone()
        };
        identity.store(&*one.parts.fs, &one.parts.settings.path)
    };
    says(from, Home::Moving)?;
    fault("home.moves")?;
    let dir = root.join(NAMES_DIR);
    fs.create_dir_all(&dir)?;
    Namespace::begin(Arc::clone(fs), dir, id, generation + 1, state)?.finish()?;
    if from > 0 {
        // The scheme of the fastest device does not hold for another device.
        copy_scheme(&found[from], new)?;
    }
    fault("home.begun")?;
    says(to, |_| Home::Yes)?;
    fault("home.taken")?;
    for other in (0..found.len()).filter(|&other| other != from && other != to) {
        says(other, |_| Home::No)?;
    }
    fault("home.told")?;
    says(from, |_| Home::No)?;
    fault("home.left")
}

fn copy_scheme(from: &Found, to: &Found) -> Result<()> {
    let path = |one: &Found| one.parts.settings.path.join(SCHEME_NAME);
    if !from.parts.fs.exists(&path(from))? {
        return Ok(());
    }
    let context = IoContext::manifest(IoPurpose::Maintenance);
    let text = from.parts.fs.read(&path(from), context)?;
    to.parts.fs.write_atomic(&path(to), &text, context)
}

/// Removes all files of the tiers from a device that is not the home device. Foreign files stay.
fn wipe(one: &Found, fault: &dyn Fn(&str) -> Result<()>) -> Result<()> {
    let (fs, root): (&Arc<dyn FileSystem>, &Path) = (&one.parts.fs, &one.parts.settings.path);
    // As long as the identity says that the device is the home, an open expects a generation of the
    // namespace here.
    if let Some(identity) = Identity::load(&**fs, root)?.filter(|id| id.home != Home::No) {
        Identity { home: Home::No, ..identity }.store(&**fs, root)?;
    }
    for entry in fs.list(root)? {
        let path = root.join(&entry.name);
        let is_dir = ["files", "cache", "profile", NAMES_DIR].contains(&&entry.name[..])
            || entry.name.starts_with("logs-");
        if entry.is_dir && is_dir {
            fs.remove_dir_all(&path)?;
        } else if entry.name == SCHEME_NAME {
            fs.remove(&path)?;
        }
    }
    fs.sync_dir(root)?;
    fault("forget.emptied")?;
    fs.remove(&root.join(DEVICE_NAME))?;
    fs.sync_dir(root)?;
    // The lock was held until here, so no other process has it.
    fs.remove(&root.join(LOCK_NAME))
}
