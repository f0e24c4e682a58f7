//! Limits and figures of a shard host.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::wire::shard::ShardWhy;

/// Size of a region of an arena in bytes, unless the host is small or an image is larger.
const ARENA_BYTES: u64 = 64 << 20;
/// Time after which the shards of a silent owner are dropped.
const ORPHANS: Duration = Duration::from_secs(600);

/// Limits of a shard host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimits {
    /// Bytes of all landing zones and arenas at most.
    pub bytes_max: u64,
    /// Bytes of a region of an arena. A larger image gets a region of its own.
    pub arena_bytes: u64,
    /// Databases at most.
    pub databases_max: usize,
    /// Time after which the shards of a silent owner are dropped.
    pub orphans: Duration,
}

impl ShardLimits {
    /// The usual limits of a host that may use `bytes_max`.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let arena_bytes = ARENA_BYTES.min(bytes_max / 4);
        Self { bytes_max, arena_bytes, databases_max: 256, orphans: ORPHANS }
    }

    /// Bytes of an image at most, and of the landing zone of a database: a quarter, so that several
    /// images always fit.
    #[must_use]
    pub fn image_bytes_max(&self) -> u64 {
        self.bytes_max / 4
    }
}

/// Counters of a shard host since its life began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Owners that have begun.
    pub owners: u64,
    /// Grants that were given.
    pub grants: u64,
    /// Shards that were registered.
    pub registered: u64,
    /// Bytes of the images of registered shards.
    pub registered_bytes: u64,
    /// Shards that their owners released.
    pub released: u64,
    /// Shards of earlier owners that were adopted.
    pub adopted: u64,
    /// Shards that were dropped without a release: their owner was silent, or a later one purged
    /// them.
    pub purged: u64,
    /// Keys that were searched.
    pub keys: u64,
    /// Pages of scans.
    pub pages: u64,
    /// Requests that had waited longer than their caller.
    pub expired: u64,
    /// Refusals by reason.
    pub refusals: BTreeMap<ShardWhy, u64>,
}

/// Figures of a shard host at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFigures {
    /// Databases that have an owner here.
    pub databases: u64,
    /// Number of registered shards.
    pub shards: u64,
    /// Bytes of the images of registered shards.
    pub shard_bytes: u64,
    /// Grants that were not used yet.
    pub grants: u64,
    /// Bytes of all landing zones and arenas, those included that wait to be given up.
    pub region_bytes: u64,
    /// Regions that wait to be given up, because a search or another process still uses them.
    pub retired_regions: u64,
    /// Counters since the life began.
    pub counters: HostCounters,
}
