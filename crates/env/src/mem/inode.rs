//! The bytes of one file in memory: the bytes that readers see, and those that survive power loss.
//!
//! Invariants:
//! 1. `dirty` is the range that was written since the last sync, and its end is the writing
//!    position.
//! 2. Outside `dirty`, `live` and `durable` agree. There are two exceptions: if `truncated`,
//!    `durable` is the content before the truncation, and if `tail_unsynced`, the old bytes of a
//!    recycled segment were not all synced.
//! 3. Images are shared until they are written, so that clones of a disk are cheap.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::random::Rng;
use parking_lot::RwLock;

use crate::failure::past_end;

/// Number of bytes that a device writes atomically.
const SECTOR_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) id: u64,
    image: RwLock<Image>,
}

#[derive(Clone, Debug, Default)]
struct Image {
    live: Arc<Vec<u8>>,
    durable: Arc<Vec<u8>>,
    dirty: Range<usize>,
    truncated: bool,
    tail_unsynced: bool,
}

impl Inode {
    pub(super) fn new(id: u64) -> Self {
        Self { id, image: RwLock::default() }
    }

    /// A copy without shared state, for the disk of a killed process.
    pub(super) fn copy(&self) -> Self {
        Self { id: self.id, image: RwLock::new(self.image.read().clone()) }
    }

    /// A synced file with the bytes that a power loss leaves of this one.
    pub(super) fn after_power_loss(&self, rng: &mut Rng) -> Self {
        let left = self.image.read().after_power_loss(rng);
        let end = left.len();
        let image =
            Image { live: Arc::clone(&left), durable: left, dirty: end..end, ..Image::default() };
        Self { id: self.id, image: RwLock::new(image) }
    }

    pub(super) fn len(&self) -> usize {
        self.image.read().live.len()
    }

    /// Number of bytes that were written since the file was created or recycled.
    pub(super) fn written(&self) -> usize {
        self.image.read().dirty.end
    }

    /// Empties the file for writing.
    pub(super) fn truncate(&self) {
        let mut image = self.image.write();
        image.truncated = true;
        image.live = Arc::default();
        image.dirty = 0..0;
    }

    /// Returns to the start for overwriting. The old bytes stay.
    pub(super) fn rewind(&self) {
        let mut image = self.image.write();
        image.tail_unsynced |= !image.dirty.is_empty();
        image.dirty = 0..0;
    }

    /// Writes at the writing position.
    pub(super) fn write(&self, bytes: &[u8]) {
        let image = &mut *self.image.write();
        let live = Arc::make_mut(&mut image.live);
        overwrite(live, image.dirty.end, bytes);
        image.dirty.end += bytes.len();
    }

    /// Makes everything written durable. Returns the writing position.
    pub(super) fn sync(&self) -> usize {
        let image = &mut *self.image.write();
        if image.truncated || image.tail_unsynced {
            image.durable = Arc::clone(&image.live);
            (image.truncated, image.tail_unsynced) = (false, false);
        } else if !image.dirty.is_empty() && !Arc::ptr_eq(&image.live, &image.durable) {
            let durable = Arc::make_mut(&mut image.durable);
            overwrite(durable, image.dirty.start, &image.live[image.dirty.clone()]);
        }
        image.dirty.start = image.dirty.end;
        image.dirty.end
    }

    /// Drops the live image of a completely synced file, because it equals the durable one. The
    /// drop of the writer calls this.
    pub(super) fn close(&self) {
        let image = &mut *self.image.write();
        if image.dirty.is_empty() && image.live.len() == image.durable.len() && !image.truncated {
            image.live = Arc::clone(&image.durable);
        }
    }

    pub(super) fn read(&self, path: &Path, offset: u64, buf: &mut [u8]) -> Result<()> {
        let image = self.image.read();
        let from = usize::try_from(offset)
            .ok()
            .and_then(|start| image.live.get(start..start.checked_add(buf.len())?))
            .ok_or_else(|| past_end(path, offset, buf.len(), image.live.len() as u64))?;
        buf.copy_from_slice(from);
        Ok(())
    }
}

impl Image {
    /// The durable bytes, a prefix of the unsynced ones, and sometimes a run of zeroed or random
    /// sectors, because the length may reach the device before the bytes.
    fn after_power_loss(&self, rng: &mut Rng) -> Arc<Vec<u8>> {
        if self.truncated && rng.bool() {
            return Arc::clone(&self.durable);
        }
        if self.dirty.is_empty() && !self.truncated {
            return Arc::clone(&self.durable);
        }
        let mut left = if self.truncated { Vec::new() } else { self.durable.as_ref().clone() };
        let Range { start, end } = self.dirty;
        let kept = start + pick(rng, end - start);
        overwrite(&mut left, start, &self.live[start..kept]);
        if kept < end && rng.u8(..4) == 0 {
            let from = (kept / SECTOR_BYTES * SECTOR_BYTES).max(start);
            let sectors = 1 + pick(rng, 8);
            let to = end.min((from / SECTOR_BYTES + sectors) * SECTOR_BYTES);
            let mut tail = vec![0; to - from];
            if rng.bool() {
                rng.fill(&mut tail);
            }
            overwrite(&mut left, from, &tail);
        }
        Arc::new(left)
    }
}

/// A number from 0 to `max`, which is more often 0 or `max` than any other.
fn pick(rng: &mut Rng, max: usize) -> usize {
    match rng.u8(..8) {
        0 => 0,
        1 => max,
        _ => rng.usize(..=max),
    }
}

fn overwrite(target: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let overlap = bytes.len().min(target.len() - at);
    target[at..at + overlap].copy_from_slice(&bytes[..overlap]);
    target.extend_from_slice(&bytes[overlap..]);
}
