//! How a store is cut and how patient it is. Few, and all with defaults.

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
        /// A scan continues at its bucket although the partition's subtable has grown meanwhile.
        no_rescan,
    }
}

impl Sabotage {
    /// Whether any step is left out.
    pub(crate) fn is_active(self) -> bool {
        self != Self::default()
    }
}

/// What a compute node may cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Nothing.
    Off,
    /// Where records lie.
    Addresses,
    /// That, or of keys that are read far more often than written the whole pair.
    #[default]
    Pairs,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct FlexKvSettings {
    /// What the store is called in the pool: nodes of one label share it.
    pub label: u64,
    /// 2^this partitions, when the store is made. Default: 13 (the paper's).
    pub partition_bits: u32,
    /// 2^this buckets of eight slots in each, when the store is made; partitions grow by
    /// themselves. Default: 5.
    pub log2_buckets: u32,
    /// How long a client may act on where a key's slot is, by its proxy's clock, and a node on what
    /// it has cached without hearing of the proxy. Default: 200 ms (the paper's).
    pub lease: Duration,
    /// How long anybody may act on a record's address; freed records are used again later than
    /// that. Longer than the pool's lease: a client that stopped meanwhile has lost its keys by
    /// then. Default: 5 s.
    pub address_lease: Duration,
    /// Bytes of this node for the index of the partitions that it is the proxy of, what it knows of
    /// their keys, and its cache, together; never more. At least some 30 KiB. Default: 128 MiB.
    pub memory_limit: u64,
    /// What is cached. Default: addresses and pairs.
    pub cache: CacheMode,
    /// A request that gets nowhere ends as busy after so long. Default: 5 s.
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
    /// Says what cannot be.
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

    /// How long after it was freed a record stays as it is, by the clock of its block's owner.
    pub(crate) fn address_lease_ns(&self) -> u64 {
        self.address_lease.as_nanos() as u64
    }

    /// How long anybody else acts on its address: less, as clocks run apart.
    pub(crate) fn address_use_ns(&self) -> u64 {
        let lease_ns = self.address_lease_ns();
        lease_ns - lease_ns / 256
    }

    /// What proxies and those who cache their pairs agree on.
    pub(crate) fn terms(&self) -> Terms {
        let lease_ns = self.lease.as_nanos() as u64;
        Terms { lease_ns, tick_ns: (lease_ns / 100).min(1_000_000), ..Terms::default() }
    }
}
