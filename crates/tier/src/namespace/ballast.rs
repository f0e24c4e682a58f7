//! The ballast of the namespace: its length, and the moment at which the namespace gives it up.
//!
//! Removed files keep their space until the namespace says durably that they are removed. If that
//! record needs a block and the home device has no free block, no file would ever be removed again.
//! Therefore the namespace keeps a [`Ballast`] on its home device, and writes the next generation
//! in its room.
//!
//! The ballast is longer than the next generation may get. A generation has at most one record for
//! each record of the log, so the length of the log decides. A new ballast is written beside the
//! present one, and replaces it when it is whole.
//!
//! Failure: without a ballast, removed files may keep the space of a full home device. Everything
//! else works. Cost: one allocation each time that the namespace has doubled or the ballast was
//! used.

use std::path::Path;

use archipelago_env::FileSystem;
use archipelago_env::ballast::Ballast;

/// File name of the ballast.
const NAME: &str = "ballast";
/// Smallest length, in bytes. The parts of a generation other than its records are far smaller.
const BYTES_MIN: u64 = 256 << 10;

/// Length, in bytes, for a generation that may get `generation` bytes long. It is a power of two,
/// so that a growing namespace seldom writes a new ballast.
pub(super) fn bytes_for(generation: u64) -> u64 {
    generation.saturating_add(BYTES_MIN / 4).next_power_of_two().max(BYTES_MIN)
}

/// The ballast of the namespace in `dir`.
pub(crate) fn of(dir: &Path) -> Ballast {
    Ballast::new(dir, NAME)
}

/// Gives the ballast up. Returns whether its room is free now.
pub(super) fn give_up(fs: &dyn FileSystem, dir: &Path) -> bool {
    let removed = of(dir).give_up(fs);
    match &removed {
        Ok(()) => {
            tracing::warn!(dir = %dir.display(), "the home device of the tiers is full: the ballast of the namespace is given up");
        }
        Err(error) => {
            tracing::warn!(%error, "the ballast of the namespace cannot be given up");
        }
    }
    removed.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballast_is_longer_than_the_generation_and_doubles() {
        let kib = |kib: u64| kib << 10;
        assert_eq!(bytes_for(0), kib(256));
        assert_eq!(bytes_for(kib(192)), kib(256));
        assert_eq!(bytes_for(kib(193)), kib(512));
        assert_eq!(bytes_for(kib(4096)), kib(8192));
    }
}
