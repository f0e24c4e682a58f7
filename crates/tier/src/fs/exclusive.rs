//! Exclusive access to the devices of closed tiers, for a program that measures them.
//!
//! Thread-safety: any thread may call any method. Failure: a refused call changes nothing. Cost:
//! one listing of every device.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::clock::Clock;
use archipelago_env::{FileLock, GroupAccess};

use super::discovery::{find_devices, find_home, lock_devices, lock_new_devices};
use super::open::{DeviceParts, NAMES_DIR, SCHEME_NAME, read_namespace};
use crate::device::file_system;
use crate::settings::{DeviceSettings, validate};

/// Exclusive access to the devices of closed tiers. No program opens the devices until this is
/// dropped. New devices get their directories and lock files, and nothing else.
pub struct ExclusiveDevices {
    scheme_path: PathBuf,
    _locks: Vec<Box<dyn FileLock>>,
}

impl std::fmt::Debug for ExclusiveDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExclusiveDevices")
            .field("scheme_path", &self.scheme_path)
            .finish_non_exhaustive()
    }
}

impl ExclusiveDevices {
    /// Takes the locks of the devices of `settings`. `must_exist` has the meaning of
    /// [`super::Components::must_exist`]. Errors: those of [`super::TieredFs::open`] for foreign,
    /// missing and open devices.
    pub fn hold(
        settings: &[DeviceSettings],
        clock: &Arc<dyn Clock>,
        must_exist: Option<&str>,
    ) -> Result<Self> {
        validate(settings)?;
        let parts = settings.iter().map(|settings| {
            let fs = file_system(settings, clock, GroupAccess::None)?;
            Ok(DeviceParts { settings: settings.clone(), fs, is_local: true })
        });
        let found = find_devices(parts.collect::<Result<Vec<_>>>()?)?;
        let home = find_home(&found, must_exist)?;
        let mut locks = lock_devices(&found, true)?;
        let names_dir = found[home].parts.settings.path.join(NAMES_DIR);
        read_namespace(&found, home, &names_dir)?;
        locks.extend(lock_new_devices(&found)?);
        let scheme_path = found[home].parts.settings.path.join(SCHEME_NAME);
        Ok(Self { scheme_path, _locks: locks })
    }

    /// Path of the scheme that the next open uses. It lies on the device that holds the namespace,
    /// or that will hold it.
    #[must_use]
    pub fn scheme_path(&self) -> &Path {
        &self.scheme_path
    }
}
