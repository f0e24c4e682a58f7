//! Times and limits of an owner.

use std::time::Duration;

use crate::shard_owner::sabotage::OwnerSabotage;

/// Limit of bytes for an owner without one: no sum of figures overflows.
pub(super) const UNLIMITED_BYTES: u64 = 1 << 60;

/// Bytes of an image that a link carries in a second at least.
const SLOWEST_BYTES: u64 = 8 << 20;

/// Times and limits of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerTerms {
    /// Time between two beats to a node.
    pub beat: Duration,
    /// Silence of a node after which its shards are lost.
    pub silence: Duration,
    /// Beats without an answer that this takes at least.
    pub missed_beats: u32,
    /// Time for which a node that had no room counts as full, unless a release frees some.
    pub full: Duration,
    /// Time after which an unanswered request counts as lost.
    pub request: Duration,
    /// Pause before a request that was not answered, or was refused as busy, is sent again.
    pub pause: Duration,
    /// Time after which a read or a transfer without progress ends as busy.
    pub patience: Duration,
    /// Time for which a close waits for nodes that have not confirmed a release.
    pub farewell: Duration,
    /// Time for which an open waits for nodes to say that they know it, and then for their lists of
    /// shards.
    pub takeover: Duration,
    /// Whether a close leaves the shards at their nodes, which keep them for ten minutes for the
    /// next open. Default: no, a close releases them.
    pub leaves_shards: bool,
    /// Bytes of a landing zone that the owner asks for.
    pub landing_bytes: u64,
    /// Bytes of images at all nodes together, at most.
    pub bytes_max: u64,
    /// Bytes of the key-offset cache; 0 turns it off.
    pub key_offset_cache_bytes: u64,
    /// Steps that a checker leaves out.
    pub sabotage: OwnerSabotage,
}

impl Default for OwnerTerms {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            missed_beats: 3,
            full: Duration::from_secs(2),
            request: Duration::from_secs(1),
            pause: Duration::from_millis(5),
            patience: Duration::from_secs(5),
            farewell: Duration::from_secs(2),
            takeover: Duration::from_secs(1),
            leaves_shards: false,
            landing_bytes: 80 << 20,
            bytes_max: UNLIMITED_BYTES,
            key_offset_cache_bytes: 64 << 20,
            sabotage: OwnerSabotage::default(),
        }
    }
}

impl OwnerTerms {
    /// Time after which the transfer of an image of `bytes` ends, also if it makes progress.
    pub(in crate::shard_owner) fn image(&self, bytes: u64) -> Duration {
        2 * self.patience + Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES)
    }
}
