//! Metrics of FlexKV, the store over remote memory: its compute nodes, and its coordinator in the
//! acting manager. Static data.

use super::metrics;

metrics! {
    /// Whether the node has joined the store: 1 if it has. Otherwise its other figures are absent.
    JOINED: Gauge "archipelago_flexkv_node_joined" [];
    /// Number of compute nodes that the node knows.
    NODES: Gauge "archipelago_flexkv_node_members" [];
    /// Version of the map of partitions that the node works by.
    MAP_VERSION: Gauge "archipelago_flexkv_node_map_version" [];
    /// Number of partitions that the node serves, by `access`: proxied partitions have their index
    /// here, and clients read the slots of the one-sided ones themselves.
    PARTITIONS: Gauge "archipelago_flexkv_node_partitions" ["access"];
    /// Number of operations by `operation`: read, write, served (for other nodes), combined (with a
    /// later write of the key), delegated (to the key's proxy) or fast_set.
    OPERATIONS: Counter "archipelago_flexkv_node_operations" ["operation"];
    /// Number of tries of writes that met another write and began again.
    RETRIES: Counter "archipelago_flexkv_node_write_retries" [];
    /// Number of slots that got their old word back, because a fast set was not committed.
    RESTORED: Counter "archipelago_flexkv_node_restored_slots" [];
    /// Bytes of records in the node's blocks by `state`: used, waiting (for the end of readers) or
    /// free.
    RECORD_BYTES: Gauge "archipelago_flexkv_node_record_bytes" ["state"];
    /// Number of reads by what the node's cache had, as `result`: pair (key and value), address or
    /// miss.
    CACHE_LOOKUPS: Counter "archipelago_flexkv_node_cache_lookups" ["result"];
    /// Number of cached addresses whose record was superseded when it was read.
    STALE: Counter "archipelago_flexkv_node_stale_addresses" [];
    /// Number of writes whose slot was cached.
    RESOLVED_WRITES: Counter "archipelago_flexkv_node_resolved_writes" [];
    /// Number of invalidations of cached addresses by `event`: sent, received or waited_out.
    INVALIDATIONS: Counter "archipelago_flexkv_node_invalidations" ["event"];
    /// Number of entries that the cache evicted.
    EVICTED: Counter "archipelago_flexkv_node_cache_evictions" [];
    /// Number of cached entries by `content`: pair or address.
    CACHED: Gauge "archipelago_flexkv_node_cache_entries" ["content"];
    /// Memory of the node for index and cache.
    LIMIT_BYTES: Gauge "archipelago_flexkv_node_memory_limit_bytes" [];
    /// Memory in use of that limit, by `purpose`: index or cache.
    USED_BYTES: Gauge "archipelago_flexkv_node_memory_used_bytes" ["purpose"];
    /// Number of partitions that the coordinator gave a proxy on the node and that did not fit.
    REFUSED: Counter "archipelago_flexkv_node_refused_partitions" [];

    /// Number of partitions of the store.
    STORE_PARTITIONS: Gauge "archipelago_flexkv_store_partitions" [];
    /// Number of these partitions that have a proxy.
    STORE_PROXIED: Gauge "archipelago_flexkv_store_proxied_partitions" [];
    /// Share of the partitions that should have a proxy, from 0 to 1.
    STORE_RATIO: Gauge "archipelago_flexkv_store_wanted_proxy_ratio" [];
    /// Number of compute nodes in the store.
    STORE_NODES: Gauge "archipelago_flexkv_store_members" [];
    /// Whether no change of the map is in progress or wanted: 1 if so.
    STORE_SETTLED: Gauge "archipelago_flexkv_store_settled" [];
    /// Version of the map of partitions.
    STORE_VERSION: Gauge "archipelago_flexkv_store_map_version" [];
    /// Number of times that the coordinator reassigned partitions by their load.
    REASSIGNMENTS: Counter "archipelago_flexkv_store_reassignments" [];
    /// Number of times that the coordinator changed the wanted share of proxied partitions.
    RATIO_MOVES: Counter "archipelago_flexkv_store_proxy_ratio_changes" [];
    /// Operations per second of all nodes in the coordinator's last sample.
    STORE_RATE: Gauge "archipelago_flexkv_store_operations_per_second" [];
    /// Time that the last change of the map took.
    LAST_CHANGE: Gauge "archipelago_flexkv_store_last_change_seconds" [];
}
