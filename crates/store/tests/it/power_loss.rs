//! The random model of kills and power losses over a volume.
//!
//! The file system of a volume differs from a local disk in these points:
//! 1. A table has no name before its sync, which ends it. A crash before that leaves nothing, and
//!    the name itself is durable after a sync of the directory.
//! 2. Creations, renames and removals may be on their way, so a kill takes the last of them back.
//! 3. Bytes that no sync covers are a prefix of the appended ones.

use std::cell::RefCell;
use std::rc::Rc;

use archipelago_base::random::Rng;
use archipelago_env::suite::power_loss::{CrashTested, Guarantees, Naming, PowerLossModel, Step};
use archipelago_env::{FileClass, FileSystem};
use archipelago_store::Sabotage;
use archipelago_store::memory::MemoryPool;

use crate::owner::Owner;

/// Number of seeds of each class.
const SEEDS: u64 = 100;

/// A volume of which a test makes clones.
#[derive(Debug)]
struct KilledVolume {
    owner: Owner,
    seeds: Rc<RefCell<Rng>>,
}

impl KilledVolume {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let pool = MemoryPool::new(seed);
        let owner = Owner::of_new_volume(pool, Sabotage::default(), rng.u64(..u64::MAX));
        Self { owner, seeds: Rc::new(RefCell::new(rng)) }
    }

    fn reopened(&self, pool: MemoryPool) -> Self {
        let seed = self.seeds.borrow_mut().u64(..);
        let owner = Owner::take_over(pool, Sabotage::default(), seed).unwrap();
        Self { owner, seeds: Rc::clone(&self.seeds) }
    }
}

impl CrashTested for KilledVolume {
    fn fs(&self) -> &dyn FileSystem {
        &*self.owner.fs
    }

    fn kill_clone(&self) -> Self {
        let seed = self.seeds.borrow_mut().u64(..);
        self.reopened(self.owner.pool.kill_clone(seed))
    }

    fn crash_clone(&self, seed: u64) -> Self {
        self.reopened(self.owner.pool.crash_clone(seed))
    }
}

fn survives(class: FileClass, naming: Naming) {
    let guarantees =
        Guarantees { class, naming, names_survive_kill: false, unsynced_bytes_are_right: true };
    for seed in 0..SEEDS {
        let mut model = PowerLossModel::new(KilledVolume::new(seed), guarantees);
        let mut rng = Rng::with_seed(seed);
        for _ in 0..rng.usize(1..60) {
            model.run(&Step::random(&mut rng));
        }
        model.check(seed);
    }
}

#[test]
fn synced_bytes_of_plain_files_survive() {
    survives(FileClass::Other, Naming::AtCreation);
}

#[test]
fn synced_bytes_of_manifests_survive() {
    survives(FileClass::Manifest, Naming::AtCreation);
}

#[test]
fn synced_tables_survive() {
    survives(FileClass::Sst, Naming::AtSync);
    survives(FileClass::ValueSst, Naming::AtSync);
}
