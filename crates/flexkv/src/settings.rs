//! The settings of a compute node. All of them have defaults.

use std::time::Duration;

use archipelago_base::{Error, Result};

use crate::format::{LOG2_BUCKETS_MAX, PARTITION_BITS_DEFAULT, PARTITION_BITS_MAX};
use crate::lease::Terms;

archipelago_base::fault_switches! {
    /// Steps of the protocol that a checker leaves out, to prove that it notices.
    Sabotage {
        /// A node whose lease ran out continues as if it still held the lease.
        no_lease,
        /// A one-sided write commits before the other copies hold the new word.
        early_commit,
        /// A new proxy leaves copies of slots that differ, and slots of unfinished writes, as they
        /// are.
        no_repair,
        /// A write commits without an invalidation of the nodes that cache the old value.
        no_invalidation,
        /// A proxy never clears the valid bit of the old record.
        no_clearing,
        /// A scan leaves out the first bucket of a step that begins inside a partition.
        skip_bucket,
        /// A scan continues at its bucket although the partition's subtable has grown since the
        /// last step.
        no_rescan,
    }
}

impl Sabotage {
    /// Whether any step is left out.
    pub(crate) fn is_active(self) -> bool {
        self != Self::default()
    }
}

/// Entries that a compute node may cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// The cache is off.
    Off,
    /// Only addresses of records are cached.
    Addresses,
    /// Addresses are cached, and whole pairs of keys that are read far more often than written.
    #[default]
    Pairs,
}

/// The settings of a compute node.
#[derive(Clone, Debug)]
pub struct FlexKvSettings {
    /// Label of the store in the pool. Nodes with the same label share a store.
    pub label: u64,
    /// Base-2 logarithm of the number of partitions of a new store. Default: 13, as in the paper.
    pub partition_bits: u32,
    /// Base-2 logarithm of the number of buckets, of eight slots each, in each partition of a new
    /// store. Partitions grow by themselves. Default: 5.
    pub log2_buckets: u32,
    /// Time for which a client may act on the position of a key's slot, by the proxy's clock. A
    /// node may serve its cache for the same time without an answer of the proxy. Default: 200 ms,
    /// as in the paper.
    pub lease: Duration,
    /// Time for which a node may act on a record's address. The memory of freed records is reused
    /// after that. It must be longer than the pool's lease, so that a client that was stopped has
    /// lost its keys by then. Default: 5 s.
    pub address_lease: Duration,
    /// Largest number of bytes of this node for the index of its offloaded partitions, the metadata
    /// of their keys, and the cache together. At least some 30 KiB. Default: 128 MiB.
    pub memory_limit: u64,
    /// Entries that the node caches. Default: addresses and pairs.
    pub cache: CacheMode,
    /// Time after which a request without progress ends as busy. Default: 5 s.
    pub patience: Duration,
}

impl Default for FlexKvSettings {
    fn default() -> Self {
        Self {
            label: 1,
            partition_bits: PARTITION_BITS_DEFAULT,
            log2_buckets: 5,
            lease: Duration::from_millis(200),
            address_lease: Duration::from_secs(5),
            memory_limit: 128 << 20,
            cache: CacheMode::default(),
            patience: Duration::from_secs(5),
        }
    }
}

impl FlexKvSettings {
    /// Refuses settings that are impossible, with the reason.
    pub fn validate(&self) -> Result<()> {
        if self.partition_bits > PARTITION_BITS_MAX {
            let bits = self.partition_bits;
            return Err(Error::invalid(format!(
                "2^{bits} partitions: at most 2^{PARTITION_BITS_MAX} are possible"
            )));
        }
        if self.log2_buckets > LOG2_BUCKETS_MAX {
            let bits = self.log2_buckets;
            return Err(Error::invalid(format!(
                "2^{bits} buckets in a partition: at most 2^{LOG2_BUCKETS_MAX} are possible"
            )));
        }
        if self.lease.is_zero() || self.address_lease < self.lease {
            return Err(Error::invalid(
                "the lease must be above zero, and the address lease no shorter than it",
            ));
        }
        Ok(())
    }

    pub(crate) fn lease_us(&self) -> u64 {
        self.lease.as_micros() as u64
    }

    /// Time for which a freed record stays unchanged, by the clock of the owner of its block.
    pub(crate) fn address_lease_ns(&self) -> u64 {
        self.address_lease.as_nanos() as u64
    }

    /// Time for which other nodes act on a record's address. It is shorter than the address lease,
    /// because clocks drift.
    pub(crate) fn address_use_ns(&self) -> u64 {
        let lease_ns = self.address_lease_ns();
        lease_ns - lease_ns / 256
    }

    /// The terms of cache leases between proxies and the nodes that cache their pairs.
    pub(crate) fn terms(&self) -> Terms {
        let lease_ns = self.lease.as_nanos() as u64;
        Terms { lease_ns, tick_ns: (lease_ns / 100).min(1_000_000), ..Terms::default() }
    }
}
