//! The storage of a node's database: its directory, tiers that the directory names, or a volume of
//! a storage cluster ([`crate::volume`]).
//!
//! If the settings list devices, the database is on tiers, and the directory holds only
//! `TIERS.toml`, which names them. So an operator's tool that opens the directory without these
//! settings finds the same database. The database has a path of its own in the tiers
//! ([`DATABASE`]), which stays when the directory is moved.
//!
//! Invariants:
//! 1. A directory with a database of its own never becomes one on tiers.
//! 2. A database on tiers is never opened without them.
//!
//! Thread-safety: the functions may run on any thread; two processes cannot open one database.
//! Failure: an interrupted call is completed by the next call.
//! Cost: a few file operations at open and close.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::clock::SystemClock;
use archipelago_base::{Error, Result};
use archipelago_engine::db::{self, Db};
use archipelago_engine::options::DbOptions;
use archipelago_env::local::LocalFs;
use archipelago_env::separate_log::SeparateLogFs;
use archipelago_env::{FileSystem, GroupAccess, IoContext, IoPurpose};
use archipelago_tier::{Components, DeviceSettings, Emptied, TieredFs, forget_device};
use serde::{Deserialize, Serialize};

use crate::volume::{VolumeSettings, VolumeStorage};

/// Name of the file that lists the devices.
pub const TIERS_NAME: &str = "TIERS.toml";
/// Root of the paths in the tiers.
pub const TIERS_ROOT: &str = "tiers:";
/// Path of the database in the tiers. Other paths below [`TIERS_ROOT`] are in the tiers as well,
/// for example those of checkpoints.
pub const DATABASE: &str = "tiers:/db";

/// Content of the file [`TIERS_NAME`].
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TiersFile {
    tiers: Vec<DeviceSettings>,
}

/// The storage of one database.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The file system that the engine works on.
    pub fs: Arc<dyn FileSystem>,
    /// Directory of the database on that file system.
    pub dir: PathBuf,
    /// The tiers, if the database is on tiers.
    pub tiers: Option<Arc<TieredFs>>,
    /// The volume, if the database lies in one.
    pub volume: Option<VolumeStorage>,
}

impl Storage {
    /// Opens the storage of the database of `dir`: on `devices`, or, if that list is empty, on the
    /// devices that the directory names. Errors are those of [`TieredFs::open`], and
    /// `InvalidArgument` for devices if the directory has a database without tiers.
    pub fn open(dir: &Path, devices: &[DeviceSettings]) -> Result<Self> {
        Self::open_with(dir, devices, Components::default())
    }

    /// Opens the storage with files that the group may access; see [`Storage::open`].
    pub fn open_for_group(
        dir: &Path,
        devices: &[DeviceSettings],
        access: GroupAccess,
    ) -> Result<Self> {
        let outside = Arc::new(LocalFs::for_group(access));
        let components = Components { outside, group_access: access, ..Components::default() };
        Self::open_with(dir, devices, components)
    }

    /// Opens the storage with other components of the tiers; see [`Storage::open`]. Their group
    /// access also holds for a database without tiers.
    pub fn open_with(
        dir: &Path,
        devices: &[DeviceSettings],
        components: Components,
    ) -> Result<Self> {
        let stored = load(dir)?;
        let devices = if devices.is_empty() {
            stored.as_ref().map_or_else(Vec::new, |file| file.tiers.clone())
        } else {
            devices.iter().map(absolute).collect::<Result<Vec<_>>>()?
        };
        let local: Arc<dyn FileSystem> = Arc::new(LocalFs::for_group(components.group_access));
        if devices.is_empty() {
            return Ok(Self { fs: local, dir: dir.to_owned(), tiers: None, volume: None });
        }
        if stored.is_none() {
            refuse_database(&*local, dir)?;
        }
        // The file was written after the tiers were made on the devices.
        let says = stored.as_ref().map(|_| reason_to_have_tiers(dir));
        let must_exist = components.must_exist.clone().or(says);
        let components = Components { must_exist, ..components };
        let tiers = TieredFs::open(TIERS_ROOT, &devices, components)?;
        if stored.is_none_or(|file| file.tiers != devices) {
            store(&*local, dir, devices)?;
        }
        let fs = Arc::clone(&tiers) as Arc<dyn FileSystem>;
        Ok(Self { fs, dir: PathBuf::from(DATABASE), tiers: Some(tiers), volume: None })
    }

    /// Opens the storage of the database in a volume, which exists. Errors: those of
    /// [`VolumeStorage::open`].
    pub fn open_volume(settings: &VolumeSettings) -> Result<Self> {
        VolumeStorage::open(settings).map(Self::from)
    }

    /// Puts the write-ahead log of the database into a directory of this machine, and not into the
    /// directory or the volume of the database. `is_creating` permits to create the log directory.
    ///
    /// Errors: `InvalidArgument` for a database on tiers, whose log lies on the fastest device, and
    /// for a log directory that is that of the database. Others are those of
    /// [`SeparateLogFs::open`].
    pub fn separate_log(
        &mut self,
        log_dir: &Path,
        access: GroupAccess,
        is_creating: bool,
    ) -> Result<()> {
        if self.tiers.is_some() {
            return Err(Error::invalid(
                "a database on tiers keeps its log on the fastest device, so it cannot have a log \
                 directory: leave log_dir (--log-dir) out",
            ));
        }
        let full = |path: &Path| {
            std::path::absolute(path)
                .map_err(|source| Error::io("find the absolute path of", path, source))
        };
        let log_dir = full(log_dir)?;
        if self.volume.is_none() && full(&self.dir)? == log_dir {
            return Err(Error::invalid(format!(
                "the log directory {} is that of the database, where the log lies without \
                 --log-dir: leave it out, or choose another one",
                log_dir.display()
            )));
        }
        let log: Arc<dyn FileSystem> = Arc::new(LocalFs::for_group(access));
        let files = Arc::clone(&self.fs);
        self.fs = SeparateLogFs::open(files, &self.dir, log, &log_dir, is_creating)?;
        Ok(())
    }

    /// Closes the tiers, or gives the volume up, after the database was closed.
    pub fn close(&self) -> Result<()> {
        let tiers = self.tiers.as_ref().map_or(Ok(()), |tiers| tiers.close());
        self.volume.as_ref().map_or(Ok(()), VolumeStorage::close).and(tiers)
    }
}

impl From<VolumeStorage> for Storage {
    fn from(volume: VolumeStorage) -> Self {
        let fs = Arc::clone(volume.files()) as Arc<dyn FileSystem>;
        Self { fs, dir: volume.dir().to_owned(), tiers: None, volume: Some(volume) }
    }
}

/// The reason why devices must have tiers already, for the error if they have none.
#[must_use]
pub fn reason_to_have_tiers(dir: &Path) -> String {
    let file = dir.join(TIERS_NAME);
    format!("{} says that they have a database; without that file a new one begins", file.display())
}

/// The devices that a directory names; `None` if its database is in the directory, or does not
/// exist.
pub fn devices_of(dir: &Path) -> Result<Option<Vec<DeviceSettings>>> {
    Ok(load(dir)?.map(|file| file.tiers))
}

/// Moves all files off the device called `name`, and removes it from the tiers of `dir` and from
/// the list of the directory. Afterwards the device's directory is empty.
///
/// `devices` is as for [`Storage::open`]. Tiers of other engines have no directory of this project,
/// so `devices` alone names them, and a directory that names none of them stays unchanged. The call
/// invokes `told` after each moved file. It opens and closes the database, so that the database's
/// logs end in order, and no other process may have the database open. The other devices keep their
/// names, including those by position. Another call completes an interrupted one. Errors are those
/// of [`TieredFs::open`], [`TieredFs::empty_device`] and [`forget_device`].
pub fn remove_device(
    dir: &Path,
    devices: &[DeviceSettings],
    name: &str,
    told: impl FnMut(Emptied),
) -> Result<Emptied> {
    // The directory belongs to another database, which does not use these devices.
    let is_theirs = |file: &TiersFile| {
        let path = |device: &DeviceSettings| absolute(device).map(|device| device.path).ok();
        let theirs =
            |device: &DeviceSettings| file.tiers.iter().any(|one| path(one) == path(device));
        devices.is_empty() || devices.iter().any(theirs)
    };
    let stored = load(dir)?.filter(is_theirs);
    let listed = stored.as_ref().map_or(&[][..], |file| &file.tiers);
    let devices = if devices.is_empty() { listed } else { devices };
    if devices.is_empty() {
        return Err(Error::invalid(format!("{} is not on tiers", dir.display())));
    }
    let named = |(place, device): (usize, &DeviceSettings)| {
        Ok(DeviceSettings { name: device.name_at(place), ..absolute(device)? })
    };
    let mut devices = devices.iter().enumerate().map(named).collect::<Result<Vec<_>>>()?;
    let must_exist = match stored {
        Some(_) => reason_to_have_tiers(dir),
        None => "A device can be removed from existing tiers only".to_owned(),
    };
    let emptied = empty_device(&devices, &must_exist, name, told)?;
    forget_device(&devices, &SystemClock::shared(), Some(&must_exist), name)?;
    if stored.is_some() {
        devices.retain(|device| device.name != name);
        store(&*LocalFs::shared(), dir, devices)?;
    }
    Ok(emptied)
}

fn empty_device(
    devices: &[DeviceSettings],
    must_exist: &str,
    name: &str,
    told: impl FnMut(Emptied),
) -> Result<Emptied> {
    let must_exist = Some(must_exist.to_owned());
    let components = Components { spawn: None, must_exist, ..Components::default() };
    let tiers = TieredFs::open(TIERS_ROOT, devices, components)?;
    let database = Path::new(DATABASE);
    if tiers.exists(database)? {
        let options = DbOptions { create_if_missing: false, ..DbOptions::default() };
        let fs = Arc::clone(&tiers) as Arc<dyn FileSystem>;
        Db::open_with(database, options, db::Components { fs, ..Default::default() })?.close()?;
    }
    let emptied = tiers.empty_device(name, told)?;
    tiers.close()?;
    Ok(emptied)
}

fn load(dir: &Path) -> Result<Option<TiersFile>> {
    let (fs, path) = (LocalFs::new(), dir.join(TIERS_NAME));
    if !fs.exists(&path)? {
        return Ok(None);
    }
    let bytes = fs.read(&path, IoContext::manifest(IoPurpose::Recovery))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::invalid(format!("{} is not text", path.display())))?;
    let file: TiersFile = toml::from_str(&text)
        .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
    archipelago_tier::settings::validate(&file.tiers)
        .map_err(|error| error.context_at(path.display()))?;
    Ok(Some(file))
}

fn store(fs: &dyn FileSystem, dir: &Path, tiers: Vec<DeviceSettings>) -> Result<()> {
    let text = toml::to_string_pretty(&TiersFile { tiers })
        .map_err(|error| Error::invalid(error.to_string()))?;
    let text = format!(
        "# The devices on which the database of this directory lies. Written when it is served with\n\
         # other [[tiers]] in its settings.\n\n{text}"
    );
    fs.create_dir_all(dir)?;
    let context = IoContext::manifest(IoPurpose::ForegroundWrite);
    fs.write_atomic(&dir.join(TIERS_NAME), text.as_bytes(), context)
}

/// Makes the paths in the file absolute, so that they hold in every working directory.
fn absolute(device: &DeviceSettings) -> Result<DeviceSettings> {
    let full = |path: &PathBuf| {
        std::path::absolute(path)
            .map_err(|source| Error::io("find the absolute path of", path, source))
    };
    let spec = device.spec.as_ref().map(full).transpose()?;
    // The check of the list refuses an empty path by its name.
    let path =
        if device.path.as_os_str().is_empty() { PathBuf::new() } else { full(&device.path)? };
    Ok(DeviceSettings { path, spec, ..device.clone() })
}

fn refuse_database(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    if !fs.exists(dir)? {
        return Ok(());
    }
    // A crash during the write of the directory's first `TIERS.toml` leaves its temporary file and
    // no database.
    let half_written = format!("{TIERS_NAME}.tmp");
    match fs.list(dir)?.iter().find(|entry| entry.name != half_written) {
        None => Ok(()),
        Some(entry) => Err(Error::invalid(format!(
            "{} is not empty (it has \"{}\") and is not on tiers: a database cannot be moved onto \
             tiers in place; choose another directory for the one on tiers",
            dir.display(),
            entry.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use archipelago_tier::DeviceKind;

    use super::*;

    fn devices(base: &Path) -> Vec<DeviceSettings> {
        let device =
            |name: &str| DeviceSettings::new(base.join(name), DeviceKind::Directory).creating();
        vec![device("fast"), device("slow")]
    }

    #[test]
    fn directory_on_tiers_opens_without_settings_on_its_tiers() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("db");
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        let storage = Storage::open(&dir, &devices(base.path())).unwrap();
        storage.fs.create_dir_all(&storage.dir).unwrap();
        storage.fs.write_atomic(&storage.dir.join("CURRENT"), b"x", context).unwrap();
        storage.close().unwrap();
        drop(storage);
        let again = Storage::open(&dir, &[]).unwrap();
        assert!(again.tiers.is_some());
        assert!(again.fs.exists(&again.dir.join("CURRENT")).unwrap());
        drop(again);
        let fs = LocalFs::new();
        fs.remove_dir_all(&base.path().join("slow")).unwrap();
        fs.remove_dir_all(&base.path().join("fast")).unwrap();
        fs.create_dir_all(&base.path().join("fast")).unwrap();
        fs.write_atomic(&base.path().join("fast/letter"), b"dear", context).unwrap();
        assert!(Storage::open(&dir, &[]).unwrap_err().to_string().contains("letter"));
    }

    #[test]
    fn missing_devices_are_not_treated_as_new() {
        let base = tempfile::tempdir().unwrap();
        let (dir, fs) = (base.path().join("db"), LocalFs::new());
        let devices = devices(base.path());
        Storage::open(&dir, &devices).unwrap().close().unwrap();
        // A mount point looks like this while its device is not mounted: one directory is empty,
        // and one does not exist.
        fs.remove_dir_all(&base.path().join("slow")).unwrap();
        fs.remove_dir_all(&base.path().join("fast")).unwrap();
        fs.create_dir_all(&base.path().join("fast")).unwrap();
        for devices in [&devices[..], &[]] {
            let error = Storage::open(&dir, devices).unwrap_err();
            assert_eq!(error.kind(), archipelago_base::ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains("mounted"), "{error}");
            assert!(error.to_string().contains("db/TIERS.toml says"), "{error}");
        }
        assert!(fs.list(&base.path().join("fast")).unwrap().is_empty());
        assert!(!base.path().join("slow").exists(), "nothing was changed");
    }

    #[test]
    fn directory_opens_after_crash_during_write_of_devices() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("db");
        let (fs, context) = (LocalFs::new(), IoContext::manifest(IoPurpose::ForegroundWrite));
        fs.create_dir_all(&dir).unwrap();
        let half = dir.join(format!("{TIERS_NAME}.tmp"));
        fs.create(&half, context, Default::default()).unwrap().append(b"# The dev").unwrap();
        Storage::open(&dir, &devices(base.path())).unwrap().close().unwrap();
        assert!(devices_of(&dir).unwrap().is_some());
        assert!(!fs.exists(&half).unwrap());
    }

    #[test]
    fn device_of_another_engine_is_removed_by_the_list() {
        let base = tempfile::tempdir().unwrap();
        let (dir, devices) = (base.path().join("none"), devices(base.path()));
        // The default directory, which holds another database.
        let ours = base.path().join("ours");
        let of_ours = DeviceSettings::new(ours.join("device"), DeviceKind::Directory).creating();
        store(&LocalFs::new(), &ours, vec![of_ours.clone()]).unwrap();
        let missing = remove_device(&dir, &devices, "tier0", |_| {}).unwrap_err();
        assert!(missing.to_string().contains("all devices are missing"), "{missing}");
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        let file = Path::new("/other/CURRENT");
        let tiers = TieredFs::open("/other", &devices, Components::default()).unwrap();
        tiers.create_dir_all(Path::new("/other")).unwrap();
        tiers.write_atomic(file, b"coral", context).unwrap();
        drop(tiers);
        let emptied = remove_device(&ours, &devices, "tier0", |_| {}).unwrap();
        assert_eq!((emptied.files, emptied.bytes), (1, 5));
        assert_eq!(devices_of(&ours).unwrap().unwrap(), [of_ours]);
        assert!(!dir.exists(), "it has no directory of ours");
        let tiers = TieredFs::open("/other", &devices[1..], Components::default()).unwrap();
        assert_eq!(tiers.read(file, context).unwrap(), b"coral");
    }

    #[test]
    fn plain_database_is_not_opened_on_tiers() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("db");
        let fs = LocalFs::new();
        fs.create_dir_all(&dir).unwrap();
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        fs.write_atomic(&dir.join("IDENTITY"), b"x", context).unwrap();
        let error = Storage::open(&dir, &devices(base.path())).unwrap_err();
        assert!(error.to_string().contains("IDENTITY"), "{error}");
        assert!(!base.path().join("fast").exists(), "nothing was changed");
    }
}
