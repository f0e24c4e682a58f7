//! The bytes of one file in memory: what readers see, and what a power loss would leave.
//!
//! Invariants: 1. `dirty` is what was written since the last sync, and its end is the writing
//! position; 2. outside `dirty`, `live` and `durable` agree, unless `truncated` (then `durable`
//! is still the content before the truncation) or `tail_unsynced` (a recycled segment whose old
//! bytes had not all been synced). Images are shared until written, so that clones of a disk are
//! cheap.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::random::Rng;
use parking_lot::RwLock;

use crate::failure::past_end;

/// What a device writes at once.
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

    /// A copy that shares no state: for a clone of the disk of a killed process.
    pub(super) fn copy(&self) -> Self {
        Self { id: self.id, image: RwLock::new(self.image.read().clone()) }
    }

    /// A fully synced file with what a power loss leaves of this one.
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

    /// Bytes written since the file was created or recycled.
    pub(super) fn written(&self) -> usize {
        self.image.read().dirty.end
    }

    /// Empties the file for writing anew.
    pub(super) fn truncate(&self) {
        let mut image = self.image.write();
        image.truncated = true;
        image.live = Arc::default();
        image.dirty = 0..0;
    }

    /// Goes back to the start for overwriting; the old bytes stay.
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

    /// Everything written is durable on return. Returns the writing position.
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

    /// The writer is gone: a file that is synced needs one image only.
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
    /// sectors where the length reached the device before the bytes did.
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

/// 0 to `max`, both ends likelier than the rest.
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
