//! Limits and figures of a shard host.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::wire::shard::{DatabaseAccount, ShardWhy};

/// Size of a region of an arena in bytes, unless the host is small or an image is larger.
const ARENA_BYTES: u64 = 64 << 20;
/// Time after which the shards of a silent owner are dropped.
const ORPHANS: Duration = Duration::from_secs(600);
/// Time for which a database that was refused room claims memory. An owner asks again within it.
const CLAIMS: Duration = Duration::from_secs(5);
/// Time after which an unused grant ends. It is longer than any transfer: an owner stops a transfer
/// of the largest image, 80 MiB, 20 s after its begin, and then waits for one answer for 2 s.
const GRANTS: Duration = Duration::from_secs(30);

/// Limits of a shard host: memory, databases, and the silence of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimits {
    /// Largest number of bytes of all landing zones and arenas.
    pub bytes_max: u64,
    /// Bytes of a region of an arena. Default: 64 MiB, or a quarter of `bytes_max` if that is less.
    /// A larger image gets a region of its own.
    pub arena_bytes: u64,
    /// Largest number of databases. Default: 256.
    pub databases_max: usize,
    /// Silence of an owner after which its shards are dropped. Default: 600 s.
    pub orphans: Duration,
    /// Time for which a database claims memory after it was refused room. The shares of the others
    /// are smaller for as long.
    pub claims: Duration,
    /// Time after which a grant ends that its owner neither uses nor requests again. Default: 30 s.
    pub grants: Duration,
}

impl ShardLimits {
    /// The default limits of a host that may use `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let arena_bytes = ARENA_BYTES.min(bytes_max / 4);
        let (orphans, claims, grants) = (ORPHANS, CLAIMS, GRANTS);
        Self { bytes_max, arena_bytes, databases_max: 256, orphans, claims, grants }
    }

    /// Size in bytes of the largest image, and of the largest landing zone of a database. It is a
    /// quarter of `bytes_max`, so that several images always fit.
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
    /// Grants that ended because their owners did not use them.
    pub unused: u64,
    /// Grants that their owners have given back.
    pub given_back: u64,
    /// Shards that were registered.
    pub registered: u64,
    /// Bytes of the images of registered shards.
    pub registered_bytes: u64,
    /// Shards that their owners released.
    pub released: u64,
    /// Shards of earlier owners that were adopted.
    pub adopted: u64,
    /// Shards that were dropped without a release: their owner was silent, or a later owner purged
    /// them.
    pub purged: u64,
    /// Keys that were searched.
    pub keys: u64,
    /// Pages of scans.
    pub pages: u64,
    /// Requests whose deadline passed in the queue.
    pub expired: u64,
    /// Times that a database began to claim memory, because it was refused room.
    pub claims: u64,
    /// Refusals by reason.
    pub refusals: BTreeMap<ShardWhy, u64>,
}

/// Figures of a shard host at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFigures {
    /// Databases that the host knows.
    pub databases: u64,
    /// Number of registered shards.
    pub shards: u64,
    /// Bytes of the images of registered shards.
    pub shard_bytes: u64,
    /// Grants that were not used yet.
    pub grants: u64,
    /// Time of the latest request for the grant that was not requested for the longest time.
    pub oldest_grant_ns: Option<u64>,
    /// Bytes of all landing zones and arenas, including those that wait to be unmapped.
    pub region_bytes: u64,
    /// Regions that wait to be unmapped, because a search or another process still uses them.
    pub retired_regions: u64,
    /// Memory of each database that has an owner here, by its name.
    pub accounts: Vec<DatabaseAccount>,
    /// Counters since the life of the host began.
    pub counters: HostCounters,
}
