//! Removing a volume with all its objects.
//!
//! 1. Become the owner as an opener does, and record in the same swap that the volume is being
//!    removed. No process opens it to use it from then on.
//! 2. Give up all blobs and logs of the volume on all nodes. Older owners are fenced. A blob that
//!    another volume retains stays there.
//! 3. Remove the value from the register.
//!
//! Invariants:
//! 1. The value is removed only when every node that is not lost has answered that it holds nothing
//!    of the volume any more. After that, nothing would find the rest.
//! 2. Each step may be repeated, also by another process.
//!
//! Thread-safety: the function shares nothing.
//! Failure: an interrupted removal is completed by the next one. Until then the volume can be
//! listed, but it cannot be opened. A node that an operator has given up, and that returns, keeps
//! its part.
//! Cost: two swaps of the register, a list from each node, and a request per 4,096 blobs.

use std::sync::Arc;

use archipelago_base::random::unique_id;
use archipelago_base::{ErrorKind, Result};

use super::VolumeOptions;
use super::lease::start_renewing;
use super::registration::Registration;
use super::take_over::{Opening, claim};
use crate::Stores;

/// Removes the volume `name` ([`super::Volume::destroy`]), or the rest of it.
pub(super) fn destroy(
    stores: &Stores,
    name: &str,
    options: &VolumeOptions,
    purpose: Opening,
) -> Result<()> {
    let opening = unique_id(&mut options.rng());
    let registration = claim(stores, name, options, (opening, purpose))?;
    let lease = start_renewing(&*options.spawn, &registration)?;
    let released = release_all(stores, &registration);
    lease.stop();
    let removed = released.and_then(|()| registration.remove());
    removed.map_err(|error| {
        // The swap also finds out whether another process has taken over.
        let lost = registration.give_up(None).err();
        lost.filter(|lost| lost.kind() == ErrorKind::Fenced).unwrap_or_else(|| {
            error.context_at(format!(
                "volume {name} was not removed completely; remove it again to go on"
            ))
        })
    })
}

/// Gives up all objects of the volume.
fn release_all(stores: &Stores, registration: &Arc<Registration>) -> Result<()> {
    let (volume, epoch) = (registration.volume(), registration.epoch());
    let observe = |released: Result<u64>| registration.end().observe(released);
    let blobs = observe(stores.blobs.release_volume(volume, epoch))?;
    let logs = observe(stores.logs.release_volume(volume, epoch))?;
    tracing::info!(volume = registration.name(), blobs, logs, "the objects of a volume are gone");
    Ok(())
}
