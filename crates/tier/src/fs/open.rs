//! Opening tiers: identifies the devices, reads the namespace and removes leftovers.
//!
//! Steps:
//! 1. Read the identity of every device. Refuse foreign devices and other format versions.
//! 2. Lock the known devices and list their files.
//! 3. Read the namespace from the home device and replay it. Refuse to open if a device with files
//!    is missing. Nothing has changed until here.
//! 4. Give new devices a number, and write identities.
//! 5. Match files with records. Files that their device lost are marked as missing. Copies that are
//!    not whole are dropped.
//! 6. Begin a new generation of the namespace.
//! 7. Remove files without a record.
//!
//! Thread-safety: the locks of the devices keep other processes out.
//! Failure: a crash at any point leaves the previous state, or files without a record, which the
//! next open removes.
//! Cost: one listing of every device, and one read of the namespace.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::{Rng, entropy_seed, unique_id};
use archipelago_base::spawn::{Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::local::LocalFs;
use archipelago_env::names::plain;
use archipelago_env::{FileSystem, GroupAccess};

use super::discovery::{
    Contents, Found, check_directories, check_missing, check_nothing_lies_there, find_devices,
    find_home, list_device, lock_devices, lock_new_devices,
};
use super::entry::{CachedCopy, Entry};
use super::note_level;
use super::physical::{Physical, Role, Trash};
use super::shared::{BackgroundWork, FaultPoint, MoverStart, Names, OpenTiers, Parts};
use crate::base_levels::BaseLevels;
use crate::device::Device;
use crate::device::identity::{Home, Identity};
use crate::namespace::Namespace;
use crate::namespace::log;
use crate::namespace::record::{DeviceRecord, Record};
use crate::namespace::state::NamespaceState;
use crate::scheme::{FAST_LEVELS_MIN, LEVELS, ObservedLoad, Scheme, SchemeInput, decide};
use crate::settings::{DeviceSettings, Policy, validate};

/// The home device's directory of the namespace.
pub(super) const NAMES_DIR: &str = "names";
/// File name of the scheme, on the home device.
pub(crate) const SCHEME_NAME: &str = "scheme.toml";
/// Capacity, in bytes, of a device whose capacity is not known.
const UNLIMITED: u64 = 1 << 60;

/// The parts of tiers besides their devices.
#[derive(Clone)]
pub struct Components {
    /// Clock of all times and pauses. Default: the system's clock.
    pub clock: Arc<dyn Clock>,
    /// Starts the background threads. With `None` there are none, and [`super::TieredFs::step`]
    /// does their work. Default: threads of the system.
    pub spawn: Option<Arc<dyn Spawn>>,
    /// File system of the paths outside of the root. Default: the local file system.
    pub outside: Arc<dyn FileSystem>,
    /// Thresholds and limits of moves and copies. Default: [`Policy::default`].
    pub policy: Policy,
    /// The placement scheme. Default: `scheme.toml` on the home device, if there is one.
    pub scheme: Option<Scheme>,
    /// Reason for which the devices must hold tiers already, as a sentence for an error. With
    /// `None`, devices that are all empty become new tiers. Default: `None`.
    pub must_exist: Option<String>,
    /// Access of the group to the files that are created on the devices of
    /// [`super::TieredFs::open`]. Default: none.
    pub group_access: GroupAccess,
    /// Function that background work calls at named steps, for tests. Default: `None`.
    #[cfg(any(test, feature = "fault-points"))]
    pub fault_point: Option<FaultPoint>,
    /// Seed of the id of a new namespace. Default: `None`, which draws the id from entropy.
    pub seed: Option<u64>,
}

impl Components {
    #[cfg(any(test, feature = "fault-points"))]
    fn fault_point(&self) -> Option<FaultPoint> {
        self.fault_point.clone()
    }

    /// A build without the feature has no fault points.
    #[cfg(not(any(test, feature = "fault-points")))]
    fn fault_point(&self) -> Option<FaultPoint> {
        None
    }
}

impl Default for Components {
    fn default() -> Self {
        Self {
            clock: SystemClock::shared(),
            spawn: Some(Arc::new(SystemSpawn)),
            outside: LocalFs::shared(),
            policy: Policy::default(),
            scheme: None,
            must_exist: None,
            group_access: GroupAccess::None,
            #[cfg(any(test, feature = "fault-points"))]
            fault_point: None,
            seed: None,
        }
    }
}

impl std::fmt::Debug for Components {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Components").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// A device with the file system of the caller.
#[derive(Clone, Debug)]
pub struct DeviceParts {
    /// Path, capacity and shares. `kind` says only whether tables are read and written directly.
    pub settings: DeviceSettings,
    /// The file system that holds the directory of the device.
    pub fs: Arc<dyn FileSystem>,
    /// Whether `fs` and [`Components::outside`] are the same file system, so that files can be
    /// linked from the tiers to a path outside.
    pub is_local: bool,
}

/// Opens the tiers over `devices`, the fastest first, without background threads. `new_mover` makes
/// the background work. Errors: those of [`super::TieredFs::open`].
pub(crate) fn open_shared(
    root: &Path,
    devices: Vec<DeviceParts>,
    components: Components,
    new_mover: impl FnOnce(&MoverStart) -> Box<dyn BackgroundWork>,
) -> Result<Arc<OpenTiers>> {
    let fault = components.fault_point();
    let settings: Vec<_> = devices.iter().map(|parts| parts.settings.clone()).collect();
    validate(&settings)?;
    let mut found = find_devices(devices)?;
    let home = find_home(&found, components.must_exist.as_deref())?;
    let mut locks = lock_devices(&found, true)?;
    let names_dir = found[home].parts.settings.path.join(NAMES_DIR);
    let known = read_namespace(&found, home, &names_dir)?;
    let Known { contents, id, generation, mut state } = known;
    let id = id.unwrap_or_else(|| new_id(components.seed));
    check_directories(&found)?;
    locks.extend(lock_new_devices(&found)?);
    join_devices(&mut found, &mut state, id, home)?;
    let devices: Arc<[Device]> = make_devices(&found).into();
    write_identities(&found, &devices, id, home)?;
    drop_unsound_copies(&mut state, &devices, &contents);
    let trash = Arc::new(Trash::default());
    let entries = make_entries(&state, &devices, &contents, &trash);
    set_capacities(&devices);
    let strays = find_strays(&state, &devices, &contents);
    let home_fs = Arc::clone(&devices[home].fs);
    let scheme = match components.scheme {
        Some(scheme) => Some(scheme),
        None => load_scheme(&*home_fs, &devices[home].root)?,
    };
    sync_names(&devices)?;
    remove_old_namespaces(&devices, home);
    home_fs.create_dir_all(&names_dir)?;
    let space = Namespace::begin(home_fs, names_dir, id, generation + 1, state)?;
    remove_strays(&strays);
    let (base_level, level_bytes) = find_levels(&entries);
    let fast_levels = set_limits(&devices, scheme.as_ref(), &components.policy, &level_bytes);
    let parts = Parts {
        devices,
        home,
        root: plain(root),
        outside: components.outside,
        policy: components.policy,
        clock: components.clock,
        fault,
        fast_levels,
        base_level,
        names: Names { space, entries },
        trash,
        locks,
    };
    Ok(OpenTiers::new(parts, new_mover))
}

/// The files on the devices, and the recovered namespace.
pub(super) struct Known {
    pub(super) contents: Vec<Contents>,
    /// Id of the namespace; `None` for new tiers.
    pub(super) id: Option<[u8; 16]>,
    /// The last generation of the namespace; 0 if there is none.
    pub(super) generation: u64,
    pub(super) state: NamespaceState,
}

/// Reads the namespace from the home device. Refuses if a device with files is missing. Changes
/// nothing.
pub(super) fn read_namespace(found: &[Found], home: usize, names_dir: &Path) -> Result<Known> {
    let contents = found.iter().map(list_device).collect::<Result<Vec<_>>>()?;
    let recovered = log::recover(&*found[home].parts.fs, names_dir)?;
    let id = match (&recovered, &found[home].identity) {
        (Some(recovered), _) => Some(recovered.id),
        (None, Some(identity)) => {
            check_nothing_lies_there(found, &contents, names_dir)?;
            Some(identity.namespace)
        }
        (None, None) => None,
    };
    let mut state = match &recovered {
        Some(recovered) => replay(recovered, names_dir, found, &contents)?,
        None => NamespaceState::default(),
    };
    skip_numbers(&mut state, &contents);
    check_missing(found, &contents, &state)?;
    let generation = recovered.map_or(0, |recovered| recovered.generation);
    Ok(Known { contents, id, generation, state })
}

/// Rebuilds the state from all records up to the mark, and from later records up to the first one
/// whose file does not exist. No later change was reported as durable. Files that a later record
/// removed still exist, because files are removed only for records that a mark covers.
fn replay(
    recovered: &log::Recovered,
    dir: &Path,
    found: &[Found],
    contents: &[Contents],
) -> Result<NamespaceState> {
    let is_there = |device: u8, number: u64| {
        let mut devices = found.iter().zip(contents);
        let here = |one: &Found| one.identity.as_ref().is_some_and(|id| id.no == device);
        devices.find(|(one, _)| here(one)).is_none_or(|(_, c)| c.files.contains_key(&number))
    };
    let mut state = NamespaceState::default();
    let mut lost = recovered.torn_bytes > 0;
    for (offset, record) in &recovered.records {
        if let Record::File(file) = record
            && *offset >= recovered.names_through
            && !is_there(file.place.device, file.place.number)
        {
            lost = true;
            break;
        }
        state
            .apply(record)
            .map_err(|no| Error::corrupt(dir, *offset, format!("the namespace: {}", no.why)))?;
    }
    if lost {
        tracing::info!("changes of names that were not synced were lost");
    }
    Ok(state)
}

/// Skips the numbers of files without a record. The namespace may have lost their records, and the
/// removal of such files is not durable.
fn skip_numbers(state: &mut NamespaceState, contents: &[Contents]) {
    let numbers = contents.iter().flat_map(|of| of.files.keys().chain(of.copies.keys()));
    let past = numbers.max().map_or(0, |number| number.saturating_add(1));
    state.next = state.next.max(past);
}

fn new_id(seed: Option<u64>) -> [u8; 16] {
    unique_id(&mut Rng::with_seed(seed.unwrap_or_else(entropy_seed)))
}

/// Gives new devices a number, and records the present names and paths of all devices.
fn join_devices(
    found: &mut [Found],
    state: &mut NamespaceState,
    id: [u8; 16],
    home: usize,
) -> Result<()> {
    for index in 0..found.len() {
        let taken = |no: u8| {
            let has = |one: &Found| one.identity.as_ref().is_some_and(|other| other.no == no);
            state.devices.contains_key(&no) || found.iter().any(has)
        };
        let known = found[index].identity.as_ref().map(|identity| identity.no);
        let Some(no) = known.or_else(|| (0..u8::MAX).find(|&no| !taken(no))) else {
            return Err(Error::invalid("the namespace has had 255 devices: it takes no more"));
        };
        let one = &mut found[index];
        let path = one.parts.settings.path.display().to_string();
        let record = DeviceRecord { no, name: one.name.clone(), path };
        state.apply(&Record::Device(record))?;
        one.identity.get_or_insert_with(|| Identity {
            namespace: id,
            no,
            home: if index == home { Home::Yes } else { Home::No },
            home_name: String::new(),
            home_path: String::new(),
        });
    }
    Ok(())
}

pub(super) fn make_devices(found: &[Found]) -> Vec<Device> {
    let threads = Arc::default();
    let make = |(place, one): (usize, &Found)| {
        let no = one.identity.as_ref().map_or(0, |identity| identity.no);
        let parts = &one.parts;
        Device::new(no, place, &parts.settings, Arc::clone(&parts.fs), parts.is_local, &threads)
    };
    found.iter().enumerate().map(make).collect()
}

/// Makes the physical names durable that the snapshot of the next generation relies on. After a
/// kill, names since the last sync may not be durable.
pub(super) fn sync_names(devices: &[Device]) -> Result<()> {
    for device in devices {
        for entry in device.fs.list(&device.root)? {
            let ours = matches!(entry.name.as_str(), "files" | "cache");
            if entry.is_dir && (ours || entry.name.starts_with("logs-")) {
                device.fs.sync_dir(&device.root.join(&entry.name))?;
            }
        }
    }
    Ok(())
}

/// Removes namespaces that a move of the namespace left on other devices than its home. The
/// identities of the devices, which are durable, say that they do not count.
fn remove_old_namespaces(devices: &[Device], home: usize) {
    for (_, device) in devices.iter().enumerate().filter(|(index, _)| *index != home) {
        let dir = device.root.join(NAMES_DIR);
        let removed = match device.fs.exists(&dir) {
            Ok(true) => device.fs.remove_dir_all(&dir),
            other => other.map(|_| ()),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, device = device.name, "an old namespace could not be removed");
        }
    }
}

fn index_of(devices: &[Device], no: u8) -> Option<usize> {
    devices.iter().position(|device| device.no == no)
}

/// Drops copies whose file does not exist or has another length than recorded.
fn drop_unsound_copies(state: &mut NamespaceState, devices: &[Device], contents: &[Contents]) {
    let sound = |number: u64, no: u8, len: u64| {
        index_of(devices, no)
            .and_then(|index| contents[index].copies.get(&number))
            .is_some_and(|(_, found)| *found == len)
    };
    let unsound: Vec<u64> = state
        .copies
        .values()
        .filter(|copy| !sound(copy.number, copy.device, copy.len))
        .map(|copy| copy.number)
        .collect();
    for number in unsound {
        let _known = state.apply(&Record::CopyDropped { number });
    }
}

fn make_entries(
    state: &NamespaceState,
    devices: &Arc<[Device]>,
    contents: &[Contents],
    trash: &Arc<Trash>,
) -> HashMap<u64, Arc<Entry>> {
    let mut entries = HashMap::new();
    for file in state.files.values() {
        // `check_missing` has refused to open without this device.
        let Some(index) = index_of(devices, file.place.device) else { continue };
        let device = &devices[index];
        let path = device.path_of(file.place, file.class);
        let number = file.place.number;
        let main = Physical::new(devices, index, number, path, Role::File, trash);
        let entry = Entry::new(file.id, file.class, file.level, None, Arc::clone(&main));
        match contents[index].files.get(&number) {
            Some((_, len)) => main.set_len(*len),
            None => {
                let name = file.names.first().map(|name| name.display().to_string());
                tracing::error!(device = device.name, file = name, "a file is missing");
                entry.inside.lock().missing = true;
            }
        }
        if let Some(known) = file.heat.checked_sub(1) {
            entry.accesses.keep(known as f64);
        }
        if let Some(level) = file.level {
            note_level(device, level);
        }
        entries.insert(file.id, entry);
    }
    for copy in state.copies.values() {
        let (Some(index), Some(entry)) = (index_of(devices, copy.device), entries.get(&copy.file))
        else {
            continue;
        };
        let path = devices[index].copy_path(copy.number);
        let physical = Physical::new(devices, index, copy.number, path, Role::Copy, trash);
        physical.set_len(copy.len);
        entry.inside.lock().copies.push(CachedCopy::new(physical, copy.whole, None));
    }
    entries
}

fn set_capacities(devices: &[Device]) {
    for device in devices {
        device.refresh_free();
        if device.capacity.load(Ordering::Relaxed) == 0 {
            let used = device.files_bytes.load(Ordering::Relaxed)
                + device.cache_bytes.load(Ordering::Relaxed);
            let free = device.fs_free.load(Ordering::Relaxed);
            device.capacity.store(free.saturating_add(used).min(UNLIMITED), Ordering::Relaxed);
        }
    }
}

/// Physical files without a record.
fn find_strays<'a>(
    state: &NamespaceState,
    devices: &'a [Device],
    contents: &'a [Contents],
) -> Vec<(&'a Device, &'a Path)> {
    let mut strays = Vec::new();
    let places: HashMap<(u8, u64), ()> =
        state.files.values().map(|file| ((file.place.device, file.place.number), ())).collect();
    for (device, contents) in devices.iter().zip(contents) {
        let files = contents.files.iter();
        let files = files.filter(|(number, _)| !places.contains_key(&(device.no, **number)));
        let copies = contents.copies.iter();
        let copies = copies.filter(|(number, _)| {
            state.copies.get(number).is_none_or(|copy| copy.device != device.no)
        });
        strays.extend(files.chain(copies).map(|(_, (path, _))| (device, path.as_path())));
    }
    strays
}

fn remove_strays(strays: &[(&Device, &Path)]) {
    for (device, path) in strays {
        if let Err(error) = device.fs.remove(path) {
            tracing::warn!(%error, device = device.name, "a stray file could not be removed");
        }
    }
    if !strays.is_empty() {
        tracing::info!(files = strays.len(), "what interrupted work had left was removed");
    }
}

/// Writes the identities that are missing or outdated, and creates the directories of the devices.
/// The home device comes first, so that after a crash the identities of the others name an existing
/// home.
pub(super) fn write_identities(
    found: &[Found],
    devices: &[Device],
    id: [u8; 16],
    home: usize,
) -> Result<()> {
    let home_name = devices[home].name.clone();
    let home_path = devices[home].root.display().to_string();
    let others = (0..devices.len()).filter(|&index| index != home);
    // The identity that was read may not be durable: a power loss may still undo its rename. So it
    // is written again.
    if found[home].identity.is_some() {
        devices[home].fs.sync_dir(&devices[home].root)?;
    }
    for index in std::iter::once(home).chain(others) {
        let device = &devices[index];
        let identity = Identity {
            namespace: id,
            no: device.no,
            home: if index == home { Home::Yes } else { Home::No },
            home_name: home_name.clone(),
            home_path: home_path.clone(),
        };
        if found[index].identity.as_ref() != Some(&identity) {
            identity.store(&*device.fs, &device.root)?;
        }
        device.fs.create_dir_all(&device.root.join("files"))?;
        device.fs.create_dir_all(&device.cache_dir())?;
    }
    Ok(())
}

fn load_scheme(fs: &dyn FileSystem, home: &Path) -> Result<Option<Scheme>> {
    let path = home.join(SCHEME_NAME);
    if !fs.exists(&path)? {
        return Ok(None);
    }
    let context = archipelago_env::IoContext::manifest(archipelago_env::IoPurpose::Recovery);
    let text = String::from_utf8(fs.read(&path, context)?).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, format!("{} is not text", path.display()))
    })?;
    Scheme::from_toml(&text).map(Some).map_err(|error| error.context_at(path.display()))
}

/// The level that L0 compacts into, as far as the files show it, and the bytes of each level by
/// depth.
fn find_levels(entries: &HashMap<u64, Arc<Entry>>) -> (Option<u8>, [u64; LEVELS]) {
    let tables = || entries.values().filter_map(|entry| Some((entry.level()?, entry)));
    let base_level = tables().map(|(level, _)| level).filter(|&level| level > 0).min();
    let lengths = tables().map(|(level, entry)| (None, level, entry.inside.lock().main.len()));
    (base_level, BaseLevels::new(base_level).bytes_by_depth(lengths))
}

/// Applies the scheme to the devices, and returns the number of levels of the fastest device.
/// Without a scheme, these are L0 and two further levels, as far as they fit.
fn set_limits(
    devices: &[Device],
    scheme: Option<&Scheme>,
    policy: &Policy,
    level_bytes: &[u64; LEVELS],
) -> u8 {
    if let Some(scheme) = scheme {
        for device in devices {
            if let Some(profile) = scheme.devices.iter().find(|profile| profile.name == device.name)
            {
                // The cell is empty, because the tiers are being opened.
                let _first = device.profile.set(profile.clone());
            }
        }
        for device in devices.iter().filter(|device| device.writers_set == 0) {
            if let Some(profile) = device.profile.get().filter(|profile| profile.writers_max > 0) {
                device.limit.store(profile.writers_max, Ordering::Relaxed);
            }
        }
    }
    let of_scheme = scheme.map(|scheme| scheme.fast_levels.max(FAST_LEVELS_MIN));
    policy.fast_levels.or(of_scheme).unwrap_or_else(|| {
        let capacity = devices[0].capacity.load(Ordering::Relaxed) as f64;
        let input = SchemeInput {
            observed: ObservedLoad { level_bytes: *level_bytes, ..ObservedLoad::default() },
            limit: u32::MAX,
            capacity_bytes: (capacity * (1.0 - policy.migrate_below)) as u64,
        };
        decide(&input).fast_levels.min(FAST_LEVELS_MIN + 1)
    })
}
