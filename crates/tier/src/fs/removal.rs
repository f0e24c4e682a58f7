//! Taking a device out of the tiers, in two steps.
//!
//! 1. [`TieredFs::empty_device`] moves every file off it: tables, logs and bookkeeping, each by the
//!    steps of any move ([`crate::mover`]), so that at every moment one copy of each file counts.
//!    Nothing new is placed there meanwhile. What was moved stays moved if it is interrupted.
//! 2. [`forget_device`] works on tiers that nobody has open: if the namespace lies on the device it
//!    moves to another one first; then everything is removed, `DEVICE` and `LOCK` last, so that the
//!    directory is an empty one.
//!
//! The namespace moves so: 1. the old home says that it moves to the new one: from now on the tiers
//! do not open without that; 2. the next generation begins on the new one; 3. that says that it is
//! home; 4. the other devices say that it is; 5. so does the old one, which is none any more; 6.
//! the old generation is removed. Before 3 the old generation counts, from then on the new one
//! (`find_home`), and neither is opened where the other may be ahead: the old home not without the
//! new one. An open in between ends the move, or undoes it. A crash anywhere leaves tiers that open
//! with all devices, and those that hold neither files nor the namespace, nor are where it moves
//! to, may be missing. Fault points: those of moves, then `home.moves`, `home.begun`, `home.taken`,
//! `home.told`, `home.left`, `forget.emptied`.
//!
//! Cost: each byte on the device is read once, and written and read back once where it goes.

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
    DeviceParts, Known, NAMES_DIR, SCHEME_NAME, make_devices, read_namespace, sync_names,
    write_identities,
};
use super::shared::{FaultPoint, Shared};
use crate::device::file_system;
use crate::device::identity::{DEVICE_NAME, Home, Identity};
use crate::history::Reason;
use crate::namespace::Namespace;
use crate::place::place;
use crate::settings::{DeviceSettings, validate};

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
    /// Moves every file off the device called `name`, and drops its copies; nothing new is placed
    /// there from now on until the tiers are opened again, or this fails. `told` is called after
    /// each file. Durable when it returns. The database must have been closed in order, and nobody
    /// may hold files of the device open: what is kept beside a log that was open when its process
    /// ended does not go along.
    ///
    /// Errors: `InvalidArgument` for a name that no device has, and for the only device; `Busy` for
    /// files that are written or read; `Io` (no space) if the others together have no room, before
    /// anything is moved; those of the devices, once all files were tried that can be moved. What
    /// was moved stays where it is.
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
            // What is dropped and moved gives its room back at once.
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
        "device \"{name}\" is the only one: add the one that is to take its files to the list first"
    )))
}

/// The files that lie on a device, the longest first.
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

/// Makes files anew that others than this device lost and of which there are whole copies, which
/// may lie on this one. How many could not be, and why the first was not.
fn restore_missing(shared: &Arc<Shared>, index: usize) -> (usize, Option<Error>) {
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
                // Another device has a copy, too.
                _ => {}
            }
        }
    }
    (failed, first)
}

/// Which copies give way to files that come, as no look was there that says it: the coldest first.
fn order_copies(shared: &Arc<Shared>) {
    let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
    let mut copies = Vec::new();
    for entry in &entries {
        let held = entry.inside.lock().copies.clone();
        copies.extend(held.into_iter().map(|copy| (entry, copy)));
    }
    copies.sort_by(|(a, _), (b, _)| b.accesses.heat().total_cmp(&a.accesses.heat()));
    for index in 0..shared.devices.len() {
        let here = copies.iter().filter(|(_, copy)| copy.physical.device == index);
        shared.giving_way.note(index, here.map(|(entry, copy)| (*entry, copy)));
    }
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
    // Copies are of files of slower devices.
    drop_copies_of(shared, entry, |device| device >= to);
    Ok(())
}

/// Takes the device called `name`, which was emptied, out of tiers that nobody has open; its
/// directory is an empty one then. To be left out of the list of devices before or after: with it
/// in the list it joins again, as a new one. Whether it was one of the tiers. `must_exist`: see
/// [`super::Components::must_exist`].
///
/// Errors: those of [`TieredFs::open`] for missing, foreign and open devices; `InvalidArgument` for
/// a device that is not there, is the only one, or has files.
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

/// The same over file systems that the caller brings.
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
    // Those that join with the next open have nothing to do with this.
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
    // What an interrupted move of the namespace left is ended or undone first, as an open does.
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
                "device \"{name}\" holds the namespace, and no other one is of these tiers yet: open them once"
            ))
        })?;
        // Names that the next generation promises.
        sync_names(&devices)?;
        move_home(&found, index, to, (id, known), &fault)?;
    }
    wipe(&found[index], &fault)?;
    Ok(true)
}

/// Moves the namespace from one device to another; see the module.
fn move_home(
    found: &[Found],
    from: usize,
    to: usize,
    (id, known): ([u8; 16], Known),
    fault: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let Known { generation, state, .. } = known;
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
        // Of the fastest device a scheme says what the next one cannot do.
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

/// Removes what tiers left on a device, which is not home, whatever it says; what is not theirs
/// stays.
fn wipe(one: &Found, fault: &dyn Fn(&str) -> Result<()>) -> Result<()> {
    let (fs, root): (&Arc<dyn FileSystem>, &Path) = (&one.parts.fs, &one.parts.settings.path);
    // As long as it said so its generation had to be there.
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
    // Held until the end: nobody else has it.
    fs.remove(&root.join(LOCK_NAME))
}
