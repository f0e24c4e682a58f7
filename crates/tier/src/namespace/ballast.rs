//! Ballast: a file that is given up when the home device is full to its last block, so that the generation that lets
//! other files go can be written.
//!
//! Removed files keep their space until the namespace says so durably; where that needs a block and there is none, nothing would ever go
//! again. The ballast is longer than the next generation may get (which has a record or none for each that there is, so the log's length is asked for), and is made anew while there is room: beside the one
//! that there is, which it replaces when it is whole. Its bytes are such that no file system stores for less, and are not read. Failure: without it everything works but that.
//! Cost: a write as long each time that the namespace has doubled or the reserve was used up.

use std::path::Path;

use archipelago_base::Result;
use archipelago_base::random::Rng;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

const NAME: &str = "ballast";
const NEW_NAME: &str = "ballast.tmp";
/// The least; also what a generation takes beside its records, rounded up by far.
const BYTES_MIN: u64 = 256 << 10;

const CONTEXT: IoContext = IoContext::new(FileClass::Other, IoPurpose::Maintenance);

/// How long it is to be where a generation may get `generation` bytes long: a power of two, so that it is seldom made anew.
pub(super) fn bytes_for(generation: u64) -> u64 {
    generation.saturating_add(BYTES_MIN / 4).next_power_of_two().max(BYTES_MIN)
}

/// The length of the one that there is.
pub(super) fn held(fs: &dyn FileSystem, dir: &Path) -> u64 {
    let _old = fs.remove(&dir.join(NEW_NAME));
    fs.len(&dir.join(NAME)).unwrap_or(0)
}

/// Writes a new one, which counts when it is [`put`] in place.
pub(crate) fn write(fs: &dyn FileSystem, dir: &Path, bytes: u64) -> Result<()> {
    let path = dir.join(NEW_NAME);
    let written = (|| {
        let mut file = fs.create(&path, CONTEXT, CreateOptions::default())?;
        let mut rng = Rng::with_seed(bytes);
        let mut chunk = vec![0; 64 << 10];
        let mut left = bytes;
        while left > 0 {
            let next = left.min(chunk.len() as u64);
            chunk.fill_with(|| rng.u8(..));
            file.append(&chunk[..next as usize])?;
            left -= next;
        }
        file.sync()
    })();
    if written.is_err() {
        // Half of it helps nobody.
        let _gone = fs.remove(&path);
    }
    written
}

/// Puts the new one in the place of the old one.
pub(super) fn put(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let new = dir.join(NEW_NAME);
    fs.rename(&new, &dir.join(NAME)).inspect_err(|_| {
        let _gone = fs.remove(&new);
    })
}

/// Gives it up; whether its space is free now.
pub(super) fn give_up(fs: &dyn FileSystem, dir: &Path) -> bool {
    let removed = fs.remove(&dir.join(NAME));
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
    fn it_is_longer_than_the_generation_and_grows_by_doubling() {
        let kib = |kib: u64| kib << 10;
        assert_eq!(bytes_for(0), kib(256));
        assert_eq!(bytes_for(kib(192)), kib(256));
        assert_eq!(bytes_for(kib(193)), kib(512));
        assert_eq!(bytes_for(kib(4096)), kib(8192));
    }
}
