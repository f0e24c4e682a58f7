//! A disk that the database shares with other programs, which fill it at random moments.
//!
//! The disk is a [`CapacityFs`] over the local file system. A thread of the writing process plays
//! the other programs: it takes all of the room or a part of it, and gives the room back after some
//! milliseconds. Before an open the disk may be full already, so that recovery meets a full disk. A
//! database that does not exist yet is created on a disk with room.
//!
//! The disks of storage nodes are shared in the same way, each with other programs.
//!
//! Thread-safety: [`SharedDisk`] is shared by the thread that opens and by the one that occupies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago::env::FileSystem;
use archipelago::env::local::LocalFs;
use archipelago::{Joiner, Result, Rng, Spawn as _, SystemClock, SystemSpawn};
use archipelago_env::capacity::CapacityFs;

/// Bytes that the database may take in addition to what it has at the open.
const ROOM_BYTES: u64 = 24 << 20;
/// Bytes that a storage node may take in addition to what it has. It keeps a reserve of 16 MiB for
/// its metadata.
const NODE_ROOM_BYTES: u64 = 96 << 20;
/// Largest number of bytes that a full disk has left.
const REST_BYTES: u64 = 256 << 10;
/// Longest time in microseconds that the disk stays full, or has room.
const STAY_US: u64 = 50_000;
/// Longest time in microseconds that the disk of a storage node stays full, or has room. Clients
/// learn that from the node's beats.
const NODE_STAY_US: u64 = 600_000;

/// Disk of the database, which other files fill for random times.
#[derive(Debug)]
pub(crate) struct SharedDisk {
    fs: CapacityFs,
    stay_us: u64,
}

impl SharedDisk {
    /// The disk of the database in `dir`, which may be full for an existing database; `seed`
    /// decides.
    pub(crate) fn new(dir: &Path, seed: u64) -> Result<Self> {
        let fs = CapacityFs::new(Arc::new(LocalFs::new()), dir, u64::MAX)?;
        fs.set_capacity(fs.used_bytes() + ROOM_BYTES);
        let mut rng = Rng::with_seed(seed ^ 0xd15c);
        let disk = Self { fs, stay_us: STAY_US };
        if LocalFs::new().exists(&dir.join("CURRENT"))? && rng.u8(..4) > 0 {
            disk.occupy(&mut rng);
        }
        Ok(disk)
    }

    /// The disk of the storage node in `dir`, which has room at the start.
    pub(crate) fn of_node(dir: &Path) -> Result<Self> {
        // A storage node writes its logs in this way.
        let local = LocalFs::new().with_plain_logs();
        let fs = CapacityFs::new(Arc::new(local), dir, u64::MAX)?;
        fs.set_capacity(fs.used_bytes() + NODE_ROOM_BYTES);
        Ok(Self { fs, stay_us: NODE_STAY_US })
    }

    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.fs.clone())
    }

    /// Lets other programs take all of the room, nearly all of it, or any part.
    fn occupy(&self, rng: &mut Rng) {
        let free = self.fs.free();
        let left = match rng.u8(..4) {
            0 | 1 => 0,
            2 => rng.u64(..REST_BYTES).min(free),
            _ => rng.u64(..=free),
        };
        self.fs.occupy(free - left);
    }

    /// Lets other programs give their room back.
    pub(crate) fn leave(&self) {
        self.fs.occupy(0);
    }

    /// Starts the thread that plays the other programs, until `ended` is set.
    pub(crate) fn share(self: Arc<Self>, seed: u64, ended: Arc<AtomicBool>) -> Result<Joiner> {
        let body = Box::new(move || {
            let (mut rng, clock) = (Rng::with_seed(seed ^ 0x07e5), SystemClock::shared());
            while !ended.load(Ordering::Acquire) {
                clock.sleep(Duration::from_micros(rng.u64(..self.stay_us)));
                self.occupy(&mut rng);
                clock.sleep(Duration::from_micros(rng.u64(..self.stay_us)));
                self.leave();
            }
        });
        SystemSpawn.spawn("other-programs", body)
    }
}
