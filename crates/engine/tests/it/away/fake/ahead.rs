//! Copies of the complete slabs of active shards, as a store may send them before the seal.

use std::collections::BTreeMap;
use std::sync::Weak;

use archipelago_engine::memtable::{ImageHead, Shard};
use archipelago_engine::remote::{ActiveShard, ShardId};
use parking_lot::Mutex;

/// An active shard, and a copy of its complete slabs.
struct Copied {
    records: Weak<Shard>,
    slabs: usize,
    bytes: Vec<u8>,
    image_bytes: u64,
}

impl Copied {
    /// Copies the slabs that are complete by now.
    fn copy_more(&mut self) {
        let Some(shard) = self.records.upgrade().filter(|shard| !shard.is_sealed()) else { return };
        for slab in shard.complete_slabs(self.slabs) {
            self.bytes.extend_from_slice(slab);
            self.slabs += 1;
        }
    }
}

/// The active shards that were offered and not sent yet.
#[derive(Default)]
pub(super) struct AheadCopies(Mutex<BTreeMap<ShardId, Copied>>);

impl AheadCopies {
    /// Takes an active shard. Each one is offered once.
    pub(super) fn add(&self, shard: ActiveShard) {
        let ActiveShard { id, records, image_bytes, .. } = shard;
        let copied = Copied { records, slabs: 0, bytes: Vec::new(), image_bytes };
        let before = self.0.lock().insert(id, copied);
        assert!(before.is_none(), "shard {id} is offered twice");
    }

    /// Copies the complete slabs of all active shards.
    pub(super) fn copy_more(&self) {
        let mut active = self.0.lock();
        active.values_mut().for_each(Copied::copy_more);
        active.retain(|_, copied| copied.records.strong_count() > 0);
    }

    /// Compares the image of a shard with what had left before its seal. Returns the number of
    /// bytes that had left; `None` if the shard was not offered.
    pub(super) fn check(&self, id: ShardId, image: &[u8]) -> Option<u64> {
        let copied = self.0.lock().remove(&id)?;
        let records_at = ImageHead::records_at(image, image.len() as u64).unwrap() as usize;
        assert!(image[records_at..].starts_with(&copied.bytes), "records of {id} have changed");
        assert!(image.len() as u64 <= 2 * copied.image_bytes, "{id} is larger than expected");
        Some(copied.bytes.len() as u64)
    }
}
