//! A database in a volume of a storage cluster, as `--store` and `--volume` name it.
//!
//! The runner owns the volume while the database is open, and gives it up after the database is
//! closed. Failure: `Busy` if another process owns the volume.

use std::path::Path;

use archipelago_compute::volume::{Secret, VolumeSettings, VolumeStorage};
use archipelago_env::FileSystem;
use archipelago_fabric::endpoint;

use crate::harness::flags::Flags;
use crate::harness::store::{DirectoryState, Result, inspect};

/// The volume that the flags name; `None` if they name none.
pub(crate) fn settings(flags: &Flags) -> Result<Option<VolumeSettings>> {
    let (Some(store), Some(name)) = (&flags.volume.store, &flags.volume.volume) else {
        return Ok(None);
    };
    let managers = store.split(',').map(endpoint).collect::<Result<Vec<_>>>()?;
    let owner = format!("`archipelago bench` (process {})", std::process::id());
    let secret = flags.volume.secret_file.as_deref().map(Secret::read).transpose()?;
    let mut settings = VolumeSettings::new(managers, name, owner);
    settings.secret = secret;
    settings.take_over = flags.volume.take_over;
    settings.stores.card = Some(flags.volume.card());
    if let Some(redundancy) = flags.volume.redundancy {
        settings.stores.mode = redundancy.into();
    }
    if let Some(form) = flags.volume.log_writing {
        settings.stores.log_writing = form.into();
    }
    Ok(Some(settings))
}

/// Becomes the owner of the volume, and creates it if it does not exist.
pub(crate) fn open(settings: &VolumeSettings) -> Result<VolumeStorage> {
    VolumeStorage::open_or_create(settings, || Ok(()))
}

/// Removes the database of the volume. A volume that holds something else is refused, untouched.
pub(crate) fn destroy(settings: &VolumeSettings) -> Result<()> {
    let volume = open(settings)?;
    let removed = remove(&**volume.files(), volume.dir());
    removed.and(volume.close())
}

fn remove(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    if !fs.exists(dir)? {
        return Ok(());
    }
    match inspect(fs, dir)? {
        DirectoryState::Database(_) => fs.remove_dir_all(dir),
        DirectoryState::Absent => Ok(()),
    }
}
