//! Offers active memtable shards to the store of shards, which writes their records ahead to memory
//! nodes (O³-LSM §4.2, decision 0093).
//!
//! When a memtable was readied, the shards of the active memtable of its family are offered. The
//! sizes of the sealed shards give the expected sizes of the images, because the buckets of a
//! family fill in nearly the same proportions from one memtable to the next one.
//!
//! Invariants:
//! 1. Only shards are offered that will probably leave soon after their seal, so none while the
//!    newest sealed memtables stay (decision 0092). [`due::may_leave`] decides again at the seal,
//!    and a shard that must stay is never sent.
//! 2. A memtable is offered at most once ([`Memtable::begin_offer`]). If several memtables are
//!    sealed before the first of them is readied, each of them finds the same active memtable.
//!
//! Thread-safety: any thread, without a lock.
//! Failure: none. A shard that was not offered is sent as a whole.
//! Cost: O(shards) for each memtable.

use std::sync::Arc;

use archipelago_base::CfId;

use crate::bucket::BucketMap;
use crate::db::background::{due, rebalance};
use crate::db::read::Reader;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::memtable::Memtable;
use crate::db::state::observers::Observers;
use crate::db::write::log_segments::LogSegments;
use crate::remote::{ActiveShard, ShardId};

/// Smallest expected image, in bytes, that is offered. Smaller ones have few complete slabs.
const IMAGE_BYTES_MIN: u64 = 32 << 10;
/// Divisor of an expected size: an image may exceed it by this part of it.
const SLACK_PART: u64 = 8;
/// Bytes by which any image may exceed its expected size: a slab that is hardly used.
const SLACK_BYTES: u64 = 8 << 10;

/// Sizes of the last sealed memtable, from which those of the next one are expected.
#[derive(Clone, Copy, Debug)]
struct Filled {
    /// Bytes that were granted to the writers of the sealed memtable.
    charged_bytes: u64,
    /// Granted bytes at which the next one is sealed.
    limit_bytes: u64,
}

/// Largest expected size, in bytes, of the image of a shard, from that of the shard of the same
/// keys in the last memtable.
fn expected_bytes(last_image_bytes: u64, filled: Filled) -> u64 {
    let Filled { charged_bytes, limit_bytes } = filled;
    let grown = u128::from(last_image_bytes) * u128::from(limit_bytes.max(charged_bytes));
    let grown = u64::try_from(grown / u128::from(charged_bytes.max(1))).unwrap_or(u64::MAX / 2);
    grown.saturating_add(grown / SLACK_PART).saturating_add(SLACK_BYTES)
}

/// Offers the shards of the active memtable of a family, after `last` was sealed and readied.
pub(crate) fn offer_active(reader: Reader<'_>, logs: &LogSegments, cf: CfId, last: &Memtable) {
    let Some(link) = reader.context.away() else { return };
    let Some(family) = reader.view.family(cf) else { return };
    let room = link.room();
    let active = Arc::clone(&family.current.load().active);
    // A memtable that stays after its seal would hold the room at a node for a long time.
    let stays = link.staying_now() > 0 || link.wholly_due().contains(&cf);
    if room.image_bytes_max == 0
        || stays
        || !may_rest(reader.context, reader.observers, logs, &family, &active)
    {
        return;
    }
    if !have_same_keys(&active.map, &last.map) || !active.begin_offer() {
        return;
    }
    let filled = Filled { charged_bytes: last.charged_bytes(), limit_bytes: active.limit_bytes() };
    for (index, (shard, before)) in active.shards.iter().zip(&last.shards).enumerate() {
        let image_bytes = expected_bytes(due::image_bytes_max(before), filled);
        if !(IMAGE_BYTES_MIN..=room.image_bytes_max).contains(&image_bytes) {
            continue;
        }
        link.store().offer(ActiveShard {
            id: ShardId { memtable: active.id, shard: index as u32 },
            boundary: active.map.range(index).start,
            image_bytes,
            records: Arc::downgrade(shard),
        });
    }
}

/// Whether the shards of an active memtable can probably leave when it is sealed.
fn may_rest(
    context: &Context,
    observers: &Observers,
    logs: &LogSegments,
    family: &Family,
    active: &Memtable,
) -> bool {
    let cuts_map =
        active.map.epoch().0 == 0 && rebalance::buckets_initial(context, &family.options) > 1;
    let is_writable = !logs.must_leave() && !observers.health().is_read_only();
    is_writable && !cuts_map && !active.has_unlogged()
}

/// Whether each shard of one map has the keys of the shard with the same index of the other map.
fn have_same_keys(one: &Arc<BucketMap>, other: &Arc<BucketMap>) -> bool {
    Arc::ptr_eq(one, other) || one.boundaries() == other.boundaries()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_of_a_full_memtable_is_expected_after_an_early_seal() {
        let filled = |charged_bytes, limit_bytes| Filled { charged_bytes, limit_bytes };
        let slack = |bytes: u64| bytes + bytes / SLACK_PART + SLACK_BYTES;
        assert_eq!(expected_bytes(1 << 20, filled(1000, 1000)), slack(1 << 20));
        assert_eq!(expected_bytes(1 << 20, filled(250, 1000)), slack(4 << 20));
        assert_eq!(expected_bytes(1 << 20, filled(2000, 1000)), slack(1 << 20), "a large batch");
        assert!(expected_bytes(u64::MAX, filled(0, u64::MAX)) > 1 << 60);
    }
}
