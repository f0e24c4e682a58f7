//! The machine of a node: a disk in memory, and an identity of the boot.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_env::mem::MemFs;
use archipelago_env::{FileLock, FileSystem, GroupAccess, IoContext};

/// A disk in memory under one boot of its machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) disk: MemFs,
    boot: u64,
}

impl Machine {
    /// A machine with an empty disk.
    pub(crate) fn new(boot: u64) -> Self {
        Self { disk: MemFs::new(), boot }
    }

    /// The machine after `kill -9` of the process: the boot is the same.
    pub(crate) fn after_kill(&self) -> Self {
        Self { disk: self.disk.kill_clone(), boot: self.boot }
    }

    /// The machine after a power loss.
    pub(crate) fn after_power_loss(&self, seed: u64) -> Self {
        Self { disk: self.disk.crash_clone(seed), boot: self.boot.wrapping_add(1) }
    }

    /// The machine as a file system.
    pub(crate) fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.clone())
    }
}

impl FileSystem for Machine {
    archipelago_env::forward_fs!(disk: create, open, create_log, remove, logs, looks, moves, dirs);
    archipelago_env::forward_fs!(disk: figures, space);

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.disk.lock(path)
    }

    fn hold(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        self.disk.hold(path)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        Some(u128::from(self.boot).to_le_bytes())
    }

    fn group_access(&self) -> Option<GroupAccess> {
        self.disk.group_access()
    }

    fn reassign(&self, path: &Path, context: IoContext) {
        self.disk.reassign(path, context);
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        self.disk.free_bytes(dir)
    }
}
