//! A file that is given up when the home device is full to its last block, so that the generation that lets
//! other files go can be written.
//!
//! Removed files keep their space until the namespace says so durably; where that needs a block and there is none, nothing would ever go
//! again. The reserve is made when there is room, with bytes that no file system stores for less, and is not read. Failure: without it everything works but that. Cost:
//! its length is written once.

use std::path::Path;

use archipelago_base::Result;
use archipelago_base::random::Rng;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

const NAME: &str = "reserve";
/// Two generations are to have room, and so much at least.
const BYTES_MIN: u64 = 256 << 10;

const CONTEXT: IoContext =
    IoContext { class: FileClass::Other, purpose: IoPurpose::Maintenance, level: None };

/// Sees to it that there is one for generations of `generation` bytes; where that cannot be, there is none.
pub(super) fn keep(fs: &dyn FileSystem, dir: &Path, generation: u64) {
    let path = dir.join(NAME);
    let bytes = BYTES_MIN.max(generation.saturating_mul(2));
    let is_kept = || -> Result<bool> { Ok(fs.exists(&path)? && fs.len(&path)? >= bytes) };
    match is_kept() {
        Ok(true) => {}
        Ok(false) => {
            if let Err(error) = make(fs, &path, bytes) {
                tracing::warn!(%error, "no space is kept for the namespace");
                // Half of it helps nobody.
                let _gone = fs.remove(&path);
            }
        }
        Err(error) => {
            tracing::warn!(%error, "whether space is kept for the namespace is not known");
        }
    }
}

fn make(fs: &dyn FileSystem, path: &Path, bytes: u64) -> Result<()> {
    let mut file = fs.create(path, CONTEXT, CreateOptions::default())?;
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
}

/// Gives it up; whether there was one.
pub(super) fn give_up(fs: &dyn FileSystem, dir: &Path) -> bool {
    let path = dir.join(NAME);
    if !fs.exists(&path).unwrap_or(false) {
        return false;
    }
    let removed = fs.remove(&path).and_then(|()| fs.sync_dir(dir));
    if let Err(error) = &removed {
        tracing::warn!(%error, "the space that is kept for the namespace cannot be given up");
    }
    tracing::warn!(dir = %dir.display(), "the home device of the tiers is full: the space kept for the namespace is used up");
    removed.is_ok()
}
