//! The volumes of a pool, as its register names them, for operators.
//!
//! Thread-safety: the function shares nothing.
//! Failure: those of the register. A volume that is removed meanwhile is left out.
//! Cost: one call of the register, and one more per volume.

use archipelago_base::{Epoch, Result};

use super::record::{VolumeRecord, VolumeStage};
use super::registration::{register_name, volume_of};
use crate::ids::VolumeId;
use crate::register::Register;

/// A volume of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Name of the volume.
    pub name: String,
    /// Identity of the volume, which nodes report their space by.
    pub volume: VolumeId,
    /// Epoch of the newest owner; 0 before the first one.
    pub epoch: Epoch,
    /// The newest owner, unless it has given up its lease. The owner may be dead.
    pub owner: Option<String>,
    /// Stage of the volume, which decides whether it may be used.
    pub stage: VolumeStage,
}

/// All volumes of the register, by name. Errors: those of the register; `Corrupt` if an entry is
/// not the value of a volume.
pub fn list(register: &dyn Register) -> Result<Vec<VolumeInfo>> {
    let mut volumes = Vec::new();
    for key in register.list(&register_name(""))? {
        let Some(found) = register.read(&key)? else { continue };
        let VolumeRecord { volume, epoch, owner, lease_ms, stage, .. } =
            VolumeRecord::decode(&key, &found.value)?;
        let owner = (lease_ms > 0).then_some(owner);
        let name = volume_of(&key).to_owned();
        volumes.push(VolumeInfo { name, volume, epoch, owner, stage });
    }
    Ok(volumes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryPool;
    use crate::volume::{Volume, VolumeOptions};

    #[test]
    fn list_names_volumes_with_their_owners() {
        let stores = MemoryPool::new(1).stores();
        assert_eq!(list(&*stores.register).unwrap(), []);
        for name in ["reef", "atoll"] {
            Volume::create(&stores, name, &VolumeOptions::new("nobody")).unwrap();
        }
        let owner = Volume::open(&stores, "reef", &VolumeOptions::new("process 7")).unwrap();
        let volumes = list(&*stores.register).unwrap();
        let names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["atoll", "reef"]);
        assert_eq!((volumes[0].epoch, &volumes[0].owner), (Epoch(0), &None));
        let reef = &volumes[1];
        assert_eq!((reef.volume, reef.epoch), (owner.id(), owner.epoch()));
        assert_eq!(reef.owner.as_deref(), Some("process 7"));
        owner.close().unwrap();
        assert_eq!(list(&*stores.register).unwrap()[1].owner, None);
    }
}
