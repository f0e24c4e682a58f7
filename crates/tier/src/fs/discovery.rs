//! Discovery of the devices that tiers are opened with: identities, locks and files.
//!
//! This module changes nothing except lock files and the directories of new devices. It refuses a
//! device that is foreign, has another format version, is missing, or is open in another process.
//! It also refuses devices with files but without the namespace to which the files belong. The
//! error names the device and the remedy. A device is new if it has no [`Identity`] and no other
//! file. This is checked again once the device is locked.
//!
//! Failure: errors of a device name the device.
//! Cost: one listing of every device.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, FileLock};

use super::open::{DeviceParts, SCHEME_NAME};
use crate::device::identity::{DEVICE_NAME, Home, Identity};
use crate::device::number_of;
use crate::namespace::record::FileRecord;
use crate::namespace::state::NamespaceState;

/// File name of a device's lock.
pub(super) const LOCK_NAME: &str = "LOCK";

/// A device with the identity that was found on it.
pub(super) struct Found {
    pub(super) parts: DeviceParts,
    pub(super) name: String,
    pub(super) identity: Option<Identity>,
}

/// The files on a device: paths and lengths in bytes, by number.
pub(super) struct Contents {
    pub(super) files: HashMap<u64, (PathBuf, u64)>,
    pub(super) copies: HashMap<u64, (PathBuf, u64)>,
}

/// Reads the identities of the devices. Errors: `InvalidArgument` for devices of different
/// namespaces, for a copied device, and for a directory that is not empty; `Unsupported` for
/// another format version.
pub(super) fn find_devices(devices: Vec<DeviceParts>) -> Result<Vec<Found>> {
    let find = |(place, parts): (usize, DeviceParts)| {
        let name = parts.settings.name_at(place);
        let identity = Identity::load(&*parts.fs, &parts.settings.path)
            .map_err(|error| error.context_at(format!("device \"{name}\"")))?;
        Ok(Found { parts, name, identity })
    };
    let found = devices.into_iter().enumerate().map(find).collect::<Result<Vec<_>>>()?;
    for one in found.iter().filter(|one| one.identity.is_none()) {
        check_empty(one)?;
    }
    let mut known = found.iter().filter_map(|one| Some((one, one.identity.as_ref()?)));
    if let Some((first, identity)) = known.next() {
        for (other, theirs) in known {
            if theirs.namespace != identity.namespace {
                return Err(Error::invalid(format!(
                    "device \"{}\" ({}) and device \"{}\" ({}) belong to different tier namespaces: \
                     nothing was changed",
                    first.name,
                    first.parts.settings.path.display(),
                    other.name,
                    other.parts.settings.path.display()
                )));
            }
            if theirs.no == identity.no {
                return Err(Error::invalid(format!(
                    "device \"{}\" ({}) is a second copy of device \"{}\"",
                    other.name,
                    other.parts.settings.path.display(),
                    first.name
                )));
            }
        }
    }
    Ok(found)
}

/// Refuses a directory without an identity that is not empty, so that no foreign file is touched.
fn check_empty(one: &Found) -> Result<()> {
    let (fs, dir) = (&one.parts.fs, &one.parts.settings.path);
    if !fs.exists(dir)? {
        return Ok(());
    }
    let own = [LOCK_NAME, "lost+found", "profile", SCHEME_NAME];
    let temporary = [DEVICE_NAME, SCHEME_NAME].map(|name| format!("{name}.tmp"));
    let is_own = |name: &String| own.contains(&name.as_str()) || temporary.contains(name);
    let foreign = fs.list(dir)?.into_iter().find(|entry| !is_own(&entry.name));
    match foreign {
        None => Ok(()),
        Some(entry) => Err(Error::invalid(format!(
            "device \"{}\": {} is not a device of tiers: it has no {DEVICE_NAME} file, but \"{}\"; \
             choose an empty directory",
            one.name,
            dir.display(),
            entry.name
        ))),
    }
}

/// Index of the device that holds the namespace, or will hold it. `must_exist` says why there must
/// be a namespace ([`super::Components::must_exist`]).
pub(super) fn find_home(found: &[Found], must_exist: Option<&str>) -> Result<usize> {
    let identities: Vec<_> = found.iter().filter_map(|one| one.identity.as_ref()).collect();
    let Some(any) = identities.first() else {
        return must_exist.map_or(Ok(0), |who| Err(all_missing(found, who)));
    };
    let (mut moving, mut there) = (Vec::new(), Vec::new());
    for (index, one) in found.iter().enumerate() {
        match one.identity.as_ref().map(|identity| identity.home) {
            Some(Home::Moving(to)) => moving.push((index, to)),
            Some(Home::Yes) => there.push(index),
            Some(Home::No) | None => {}
        }
    }
    match (&moving[..], &there[..]) {
        ([], &[home]) => Ok(home),
        (&[(from, to)], there) => find_moving(found, from, to, there),
        (&[(one, _), (other, _), ..], _) | ([], &[one, other, ..]) => {
            Err(two_homes(&found[one], &found[other]))
        }
        ([], []) => Err(Error::not_found(format!(
            "the device \"{}\" (last at {}) is missing: it holds the namespace that says where every \
             file of the other devices belongs; nothing was changed",
            any.home_name, any.home_path
        ))),
    }
}

/// The home device after a move of the namespace was interrupted. The old home counts until the new
/// one says that it holds the namespace.
fn find_moving(found: &[Found], from: usize, to: u8, there: &[usize]) -> Result<usize> {
    let has_no = |one: &Found| one.identity.as_ref().is_some_and(|identity| identity.no == to);
    let Some(to) = found.iter().position(has_no) else {
        let (name, path) = found[from]
            .identity
            .as_ref()
            .map_or_else(Default::default, |id| (id.home_name.clone(), id.home_path.clone()));
        return Err(Error::not_found(format!(
            "the device \"{name}\" (last at {path}) is missing: a move of the namespace from device \"{}\" to it was interrupted, \
             and it may hold the namespace already; nothing was changed",
            found[from].name
        )));
    };
    match there.iter().find(|&&index| index != to) {
        Some(&other) => Err(two_homes(&found[from], &found[other])),
        None => Ok(if there.contains(&to) { to } else { from }),
    }
}

fn two_homes(one: &Found, other: &Found) -> Error {
    Error::invalid(format!(
        "device \"{}\" ({}) and device \"{}\" ({}) both say that they hold the namespace: one of them is a copy; nothing was changed",
        one.name,
        one.parts.settings.path.display(),
        other.name,
        other.parts.settings.path.display()
    ))
}

/// The error if no path holds a device although tiers must exist, so that no device is mounted.
fn all_missing(found: &[Found], who: &str) -> Error {
    let place = |one: &Found| format!("\"{}\" ({})", one.name, one.parts.settings.path.display());
    let places: Vec<String> = found.iter().map(place).collect();
    Error::not_found(format!(
        "all devices are missing: {} have no {DEVICE_NAME} file. Are they mounted? {who}. Nothing was changed",
        places.join(", ")
    ))
}

/// Lists the files and copies on a device.
pub(super) fn list_device(one: &Found) -> Result<Contents> {
    let mut contents = Contents { files: HashMap::new(), copies: HashMap::new() };
    if one.identity.is_none() {
        return Ok(contents);
    }
    let (fs, root) = (&one.parts.fs, &one.parts.settings.path);
    let named = |error: Error| error.context_at(format!("device \"{}\"", one.name));
    for entry in fs.list(root).map_err(named)? {
        let dir = root.join(&entry.name);
        let into = match entry.name.as_str() {
            "files" => &mut contents.files,
            "cache" => &mut contents.copies,
            name if name.starts_with("logs-") => &mut contents.files,
            _ => continue,
        };
        for file in fs.list(&dir).map_err(named)? {
            if let Some(number) = number_of(&file.name).filter(|_| !file.is_dir) {
                into.insert(number, (dir.join(&file.name), file.len));
            }
        }
    }
    Ok(contents)
}

/// Ids of the files whose only bytes lie on the device `no`: originals there, and whole copies
/// there of files that their own device lost.
pub(super) fn files_only_on(
    no: u8,
    found: &[Found],
    contents: &[Contents],
    state: &NamespaceState,
) -> HashSet<u64> {
    let is_lost = |file: &FileRecord| {
        let of = |one: &Found| one.identity.as_ref().is_some_and(|id| id.no == file.place.device);
        let on = found.iter().position(of).map(|index| &contents[index]);
        on.is_some_and(|on| !on.files.contains_key(&file.place.number))
    };
    let here = state.files.values().filter(|file| file.place.device == no).map(|file| file.id);
    let copies = state.copies.values().filter(|copy| copy.device == no && copy.whole);
    let copies = copies.map(|copy| copy.file);
    here.chain(copies.filter(|id| state.files.get(id).is_some_and(is_lost))).collect()
}

/// Refuses if a device with files is missing. Errors: `NotFound`.
pub(super) fn check_missing(
    found: &[Found],
    contents: &[Contents],
    state: &NamespaceState,
) -> Result<()> {
    for device in state.devices.values() {
        let here = |one: &Found| one.identity.as_ref().is_some_and(|id| id.no == device.no);
        if found.iter().any(here) {
            continue;
        }
        let ids = files_only_on(device.no, found, contents, state);
        let files: Vec<_> = ids.iter().filter_map(|id| state.files.get(id)).collect();
        if files.is_empty() {
            continue;
        }
        let mut levels: BTreeMap<String, usize> = BTreeMap::new();
        for file in &files {
            let what = match (file.class, file.level) {
                (FileClass::Wal, _) => "log".to_owned(),
                (FileClass::Sst, Some(level)) => format!("L{level}"),
                (FileClass::Sst, None) => "tables".to_owned(),
                (FileClass::ValueSst, _) => "values".to_owned(),
                _ => "other".to_owned(),
            };
            *levels.entry(what).or_default() += 1;
        }
        let what: Vec<_> = levels.iter().map(|(what, count)| format!("{what}: {count}")).collect();
        let first = files.iter().filter_map(|file| file.names.first()).min();
        return Err(Error::not_found(format!(
            "the device \"{}\" (last at {}) is missing: {} files lie there ({}), among them {}; \
             nothing was changed",
            device.name,
            device.path,
            files.len(),
            what.join(", "),
            first.map_or_else(String::new, |name| name.display().to_string())
        )));
    }
    Ok(())
}

/// Locks the devices that have an identity, if `known` is true, or those that have none.
pub(super) fn lock_devices(found: &[Found], known: bool) -> Result<Vec<Box<dyn FileLock>>> {
    let lock = |one: &Found| {
        let dir = &one.parts.settings.path;
        if !known {
            one.parts.fs.create_dir_all(dir)?;
        }
        one.parts.fs.lock(&dir.join(LOCK_NAME))
    };
    let named = |one: &Found| {
        lock(one).map_err(|error| error.context_at(format!("device \"{}\"", one.name)))
    };
    found.iter().filter(|one| one.identity.is_some() == known).map(named).collect()
}

/// Refuses devices whose directory does not exist and may not be created. Errors: `NotFound`.
pub(super) fn check_directories(found: &[Found]) -> Result<()> {
    for one in found {
        let settings = &one.parts.settings;
        if !settings.create && !one.parts.fs.exists(&settings.path)? {
            return Err(Error::not_found(format!(
                "device \"{}\": {} does not exist: mount the device there or correct `path`; \
                 with create = true, the open creates the directory. Nothing was changed",
                one.name,
                settings.path.display()
            )));
        }
    }
    Ok(())
}

/// Locks the new devices. Errors: `Busy` if another process took one of them in the meantime.
pub(super) fn lock_new_devices(found: &[Found]) -> Result<Vec<Box<dyn FileLock>>> {
    let locks = lock_devices(found, false)?;
    for one in found.iter().filter(|one| one.identity.is_none()) {
        if Identity::load(&*one.parts.fs, &one.parts.settings.path)?.is_some() {
            return Err(Error::busy(format!(
                "device \"{}\" ({}) was taken by another process just now: nothing was changed, open \
                 it again",
                one.name,
                one.parts.settings.path.display()
            )));
        }
    }
    Ok(locks)
}

/// Refuses if the namespace is missing while files lie on the devices, because all of them would be
/// removed as files without a record. Errors: `Corrupt`.
pub(super) fn check_nothing_lies_there(
    found: &[Found],
    contents: &[Contents],
    names: &Path,
) -> Result<()> {
    let count = |contents: &Contents| contents.files.len();
    let Some(at) = contents.iter().position(|contents| count(contents) > 0) else { return Ok(()) };
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "the namespace of the tiers is missing: there is no names-*.log in {}, while {} files lie on its \
             devices, the first of them on \"{}\" ({}); nothing was changed. Put the directory back (after a check of the \
             file system look in lost+found), or, to begin anew, empty the devices and remove the TIERS.toml of the database's directory",
            names.display(),
            contents.iter().map(count).sum::<usize>(),
            found[at].name,
            found[at].parts.settings.path.display()
        ),
    ))
}
