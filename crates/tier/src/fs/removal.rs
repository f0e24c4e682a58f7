//! Taking a device out of the tiers, in two steps.
//!
//! 1. [`TieredFs::empty_device`] moves every file off it: tables, logs and bookkeeping, each by the steps of any move ([`crate::work`]), so that at
//!    every moment one copy of each file counts. Nothing new is placed there meanwhile. What was moved stays moved if it is interrupted.
//! 2. [`forget_device`] works on tiers that nobody has open: if the namespace lies on the device it begins its next
//!    generation on another one, which is home from then on; then everything is removed, `DEVICE` last, so that the directory is an empty one.
//!
//! Invariant of the second: until the new home's generation is durable the old one counts. Between that and the removal of the old generation both
//! are home, and the one with the higher generation counts ([`super::found`]). A crash anywhere leaves tiers that open with the device and, once the first
//! step is through, without it. Fault points: those of moves, then `home.begun`, `home.taken`, `home.left`, `forget.emptied`.
//!
//! Cost: each byte on the device is read once, and written and read back once where it goes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::clock::Clock;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileSystem, IoContext, IoPurpose};

use super::entry::Entry;
use super::found::{Found, find_devices, find_home, list_device, lock_devices};
use super::open::{DeviceParts, Known, NAMES_DIR, SCHEME_NAME, read_namespace};
use super::shared::{FaultPoint, Shared};
use super::{TieredFs, note_level};
use crate::device::file_system;
use crate::device::identity::{DEVICE_NAME, Identity};
use crate::history::Reason;
use crate::namespace::Namespace;
use crate::place::place;
use crate::settings::{DeviceSettings, validate};
use crate::work::move_now;

/// How far [`TieredFs::empty_device`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// Files that were moved.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that lay on the device.
    pub bytes_in_all: u64,
}

impl TieredFs {
    /// Moves every file off the device called `name`, and drops its copies; nothing new is placed there from now on until the tiers are opened again, or this fails. `told`
    /// is called after each file. Durable when it returns. The database must have been closed in order, and nobody may hold
    /// files of the device open: what is kept beside a log that was open when its process ended does not go along.
    ///
    /// Errors: `InvalidArgument` for a name that no device has, and for the only device; `Busy` for files that are written or read; `Io` (no space) if
    /// the others have no room, before anything is moved; those of the devices. What was moved stays where it is.
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
        drop_copies(shared, index);
        let mut done = Emptied { bytes_in_all, ..Emptied::default() };
        for entry in files {
            let len = len_of(&entry);
            move_away(shared, &entry, index)?;
            done = Emptied { files: done.files + 1, bytes: done.bytes + len, ..done };
            told(done);
        }
        shared.sync()?;
        shared.empty_trash(true)?;
        let held = device.files_bytes.load(Ordering::Relaxed);
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
        "device \"{name}\" is the only one: add the one that is to take its files to the list first"
    )))
}

/// The files that lie on a device.
fn files_of(shared: &Shared, index: usize) -> Vec<Arc<Entry>> {
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

/// Whether the others have room for so many bytes, beside what tables keep free.
fn check_room(shared: &Shared, index: usize, bytes: u64) -> Result<()> {
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

fn drop_copies(shared: &Arc<Shared>, index: usize) {
    let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
    for entry in entries {
        drop_copies_of(shared, &entry, |device| device == index);
    }
}

fn drop_copies_of(shared: &Arc<Shared>, entry: &Arc<Entry>, which: impl Fn(usize) -> bool) {
    let mut copies = entry.inside.lock().copies.clone();
    copies.retain(|copy| which(copy.physical.device));
    for copy in &copies {
        shared.drop_copy(entry, copy);
    }
}

/// Moves a file to where placement wants it without this device.
fn move_away(shared: &Arc<Shared>, entry: &Arc<Entry>, from: usize) -> Result<()> {
    let name = || {
        let names = shared.names.lock();
        let file = names.space.state.files.get(&entry.id);
        file.and_then(|file| file.names.first())
            .map_or_else(String::new, |name| name.display().to_string())
    };
    if entry.inside.lock().missing {
        return Err(Error::not_found(format!(
            "{} should lie on device \"{}\" and is missing there: remove it, or put it back, first",
            name(),
            shared.devices[from].name
        )));
    }
    let len = len_of(entry);
    let context =
        IoContext { class: entry.class, purpose: IoPurpose::Maintenance, level: entry.level() };
    let views = shared.views();
    let (to, _) = place(&shared.place_input(context, len, &views));
    if to == from || views[to].avoid || views[to].free < len {
        return Err(no_space(format!("no device has room for {} ({len} bytes)", name())));
    }
    move_now(shared, entry, to, Reason::DeviceLeaves)?;
    if entry.inside.lock().main.device == from {
        return Err(Error::busy(format!("{} is being written: close the database first", name())));
    }
    // Copies are of files of slower devices.
    drop_copies_of(shared, entry, |device| device >= to);
    if let Some(level) = entry.level() {
        note_level(&shared.devices[to], level);
    }
    Ok(())
}

/// Takes the device called `name`, which was emptied, out of tiers that nobody has open; its directory is an empty one then. To be left out of the list of devices
/// before or after: with it in the list it joins again, as a new one. Whether it was one of the tiers. `must_exist`: see
/// [`super::Components::must_exist`].
///
/// Errors: those of [`TieredFs::open`] for missing, foreign and open devices; `InvalidArgument` for a device that is not there, is the only one, or
/// has files.
pub fn forget_device(
    settings: &[DeviceSettings],
    clock: &Arc<dyn Clock>,
    must_exist: Option<&str>,
    name: &str,
) -> Result<bool> {
    let parts = settings.iter().map(|settings| {
        let fs = file_system(settings, clock)?;
        Ok(DeviceParts { settings: settings.clone(), fs, is_local: true })
    });
    forget_over(parts.collect::<Result<Vec<_>>>()?, must_exist, name, None)
}

/// The same over file systems that the caller brings.
pub(crate) fn forget_over(
    devices: Vec<DeviceParts>,
    must_exist: Option<&str>,
    name: &str,
    fault: Option<&FaultPoint>,
) -> Result<bool> {
    let settings: Vec<_> = devices.iter().map(|parts| parts.settings.clone()).collect();
    validate(&settings)?;
    let found = find_devices(devices)?;
    let index = found.iter().position(|one| one.name == name);
    let index = index.ok_or_else(|| unknown(name, found.iter().map(|one| &one.name[..])))?;
    check_others(name, found.len())?;
    let home = find_home(&found, must_exist)?;
    let Some(identity) = found[index].identity.clone() else { return Ok(false) };
    let _locks = lock_devices(&found, true)?;
    let names_dir = found[home].parts.settings.path.join(NAMES_DIR);
    let known = read_namespace(&found, home, &names_dir)?;
    let files = known.state.files.values();
    let named = files.filter(|file| file.place.device == identity.no).count();
    let lie_there = named.max(list_device(&found[index])?.files.len());
    if lie_there > 0 {
        return Err(Error::invalid(format!(
            "{lie_there} files lie on device \"{name}\": nothing was changed; empty it first"
        )));
    }
    let fault = |point: &str| fault.map_or(Ok(()), |fault| fault(point));
    if index == home {
        let others = (0..found.len()).filter(|&other| other != index);
        let to = others.clone().find(|&other| found[other].identity.is_some());
        let to = to.ok_or_else(|| {
            Error::invalid(format!(
                "device \"{name}\" holds the namespace, and no other one is of these tiers yet: open them once"
            ))
        })?;
        move_home(&found, index, to, known, &fault)?;
    }
    wipe(&found[index], &fault)?;
    Ok(true)
}

/// Begins the next generation of the namespace on another device, which is home then.
fn move_home(
    found: &[Found],
    from: usize,
    to: usize,
    known: Known,
    fault: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let Known { id, generation, state, .. } = known;
    let (old, new) = (&found[from], &found[to]);
    let (Some(old_identity), Some(new_identity)) = (&old.identity, &new.identity) else {
        return Err(Error::invalid("a device without an identity has no namespace"));
    };
    let (fs, root) = (&new.parts.fs, &new.parts.settings.path);
    let dir = root.join(NAMES_DIR);
    fs.create_dir_all(&dir)?;
    let id = id.unwrap_or(old_identity.namespace);
    Namespace::begin(Arc::clone(fs), dir, id, generation + 1, state)?.finish()?;
    if from > 0 {
        // Of the fastest device a scheme says what the next one cannot do.
        copy_scheme(old, new)?;
    }
    fault("home.begun")?;
    let is_home = |identity: &Identity, home: bool| Identity {
        home,
        home_name: new.name.clone(),
        home_path: root.display().to_string(),
        ..identity.clone()
    };
    is_home(new_identity, true).store(&**fs, root)?;
    fault("home.taken")?;
    let (old_fs, old_root) = (&old.parts.fs, &old.parts.settings.path);
    old_fs.remove_dir_all(&old_root.join(NAMES_DIR))?;
    old_fs.sync_dir(old_root)?;
    is_home(old_identity, false).store(&**old_fs, old_root)?;
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

/// Removes what tiers left on a device; what is not theirs stays.
fn wipe(one: &Found, fault: &dyn Fn(&str) -> Result<()>) -> Result<()> {
    let (fs, root): (&Arc<dyn FileSystem>, &Path) = (&one.parts.fs, &one.parts.settings.path);
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
    fs.sync_dir(root)
}
