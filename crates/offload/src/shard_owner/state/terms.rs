//! Times and limits of an owner.

use std::str::FromStr;
use std::time::Duration;

use archipelago_base::Error;

use crate::shard_owner::sabotage::OwnerSabotage;

/// Limit of bytes for an owner without a limit. It is small enough that no sum of figures
/// overflows.
pub(super) const UNLIMITED_BYTES: u64 = 1 << 60;

/// Speed of the slowest link that a transfer must survive, in bytes a second.
const SLOWEST_BYTES: u64 = 8 << 20;

/// Largest number of sealed memtables that stay in the process.
const STAYING_MAX: u32 = 16;

/// How many of the newest sealed memtables of each column family stay in the process. The text form
/// is a number, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StayingMemtables {
    /// This number, at most 16.
    Fixed(u32),
    /// The number for which reads take the least time, by measurements. It is 0 at first.
    Auto,
}

impl Default for StayingMemtables {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

impl FromStr for StayingMemtables {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count)) if count <= STAYING_MAX => Ok(Self::Fixed(count)),
            _ => Err(Error::invalid(format!(
                "\"{text}\" is no number of memtables: give auto, or a number up to {STAYING_MAX}"
            ))),
        }
    }
}

/// Times and limits of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerTerms {
    /// Time between two beats to a node. Default: 1 s.
    pub beat: Duration,
    /// Silence of a node after which its shards are lost. Default: 5 s.
    pub silence: Duration,
    /// Least number of unanswered beats before the shards of a node are lost. Default: 3.
    pub missed_beats: u32,
    /// Time for which a node that had no room counts as full, unless a release frees some. Default:
    /// 2 s.
    pub full: Duration,
    /// Time after which an unanswered request counts as lost. Default: 1 s.
    pub request: Duration,
    /// Pause before a request that was not answered, or was refused as busy, is sent again.
    /// Default: 5 ms.
    pub pause: Duration,
    /// Time after which a read or a transfer without progress ends as busy. Default: 5 s.
    pub patience: Duration,
    /// Time for which a close waits for nodes that have not confirmed a release. Default: 2 s.
    pub farewell: Duration,
    /// Time for which an open waits for the nodes' answers to `Begin`, and then for their lists of
    /// shards. Default: 1 s.
    pub takeover: Duration,
    /// Whether a close leaves the shards at their nodes, which keep them for ten minutes for the
    /// next open. Default: no, a close releases them.
    pub leaves_shards: bool,
    /// Size in bytes that the owner requests for its landing zone at each node. Default: 80 MiB.
    pub landing_bytes: u64,
    /// Largest sum of the bytes of images at all nodes. Default: no limit.
    pub bytes_max: u64,
    /// Bytes of memory that all nodes together are to guarantee the database, an equal part each. 0
    /// for an equal part of what other databases leave at each node.
    pub guaranteed_bytes: u64,
    /// Number of memory nodes that get each shard, 1 or 2. A second copy is sent when the first one
    /// can be read, and only if a node has room for it. Default: 1.
    pub copies: u32,
    /// Limit of the bytes of images that wait in this process for the transfer of their second
    /// copies. Default: 64 MiB.
    pub copy_queue_bytes: u64,
    /// Bytes of the key-offset cache; 0 turns it off.
    pub key_offset_cache_bytes: u64,
    /// How many of the newest sealed memtables stay in the process. Default: none.
    pub staying: StayingMemtables,
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
            guaranteed_bytes: 0,
            copies: 1,
            copy_queue_bytes: 64 << 20,
            key_offset_cache_bytes: 64 << 20,
            staying: StayingMemtables::default(),
            sabotage: OwnerSabotage::default(),
        }
    }
}

impl OwnerTerms {
    /// Time after which the transfer of an image of `bytes` ends, even if it makes progress.
    pub(in crate::shard_owner) fn image(&self, bytes: u64) -> Duration {
        2 * self.patience + Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_staying_memtables_is_a_number_or_auto() {
        let of = |text: &str| text.parse::<StayingMemtables>().ok();
        assert_eq!(of("auto"), Some(StayingMemtables::Auto));
        assert_eq!(of("0"), Some(StayingMemtables::default()));
        assert_eq!(of("16"), Some(StayingMemtables::Fixed(16)));
        assert_eq!((of("17"), of("-1"), of("all"), of("")), (None, None, None, None));
    }
}
