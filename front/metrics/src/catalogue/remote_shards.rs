//! Metrics of a database's memtable shards at memory nodes. Static data.

use super::metrics;

metrics! {
    /// Number of memory nodes that take memtable shards of the database.
    NODES: Gauge "archipelago_remote_shards_nodes" [];
    /// Number of memtable shards that memory nodes hold and search for the database.
    SHARDS: Gauge "archipelago_remote_shards" [];
    /// Bytes of all copies of these shards, and of those whose release is not confirmed yet.
    HELD: Gauge "archipelago_remote_shards_held_bytes" [];
    /// Bytes of second copies of shards.
    SPARE: Gauge "archipelago_remote_shards_spare_bytes" [];
    /// Bytes of first copies that the database may have at all memory nodes together. While nodes
    /// want memory back, this is little more than the database has there.
    LIMIT: Gauge "archipelago_remote_shards_limit_bytes" [];
    /// Bytes of memory that memory nodes guarantee the database.
    GUARANTEED: Gauge "archipelago_remote_shards_guaranteed_bytes" [];
    /// Bytes of first copies that memory nodes want back, because other databases claim memory or
    /// the node is drained.
    SURPLUS: Gauge "archipelago_remote_shards_surplus_bytes" [];
    /// Number of shards that were sent to memory nodes.
    SENT: Counter "archipelago_remote_shards_sent" [];
    /// Bytes of the shards that were sent to memory nodes.
    SENT_BYTES: Counter "archipelago_remote_shards_sent_bytes" [];
    /// Number of shards that no memory node took, by `reason`: no room, or another failure. They
    /// stay in the process and are flushed.
    NOT_SENT: Counter "archipelago_remote_shards_not_sent" ["reason"];
    /// Number of reads of memory nodes by `kind`: keys that nodes searched, pages of scans, long
    /// values and whole images that were read one-sided.
    READS: Counter "archipelago_remote_shards_reads" ["kind"];
    /// Bytes of shards that were written to memory nodes, those of transfers in progress included.
    WRITTEN_BYTES: Counter "archipelago_remote_shards_written_bytes" [];
    /// Number of shards that still take writes and have room at a memory node for their records.
    ACTIVE: Gauge "archipelago_remote_shards_active" [];
    /// Bytes of records that were written to memory nodes while their shard still took writes.
    AHEAD_BYTES: Counter "archipelago_remote_shards_ahead_bytes" [];
    /// Bytes of these records whose shard was then sent without writing them again.
    AHEAD_USED_BYTES: Counter "archipelago_remote_shards_ahead_used_bytes" [];
    /// Number of active shards whose records were given up at a memory node, by `reason`: the shard
    /// outgrew its room, the room was needed elsewhere, the node failed, or the shard was not sent
    /// soon. Such a shard is sent as a whole.
    AHEAD_GIVEN_UP: Counter "archipelago_remote_shards_ahead_given_up" ["reason"];
    /// Most bytes of shards that were written to memory nodes within 100 ms.
    PEAK_BYTES: Gauge "archipelago_remote_shards_peak_bytes" [];
    /// Number of the newest sealed memtables of each column family that the database keeps in the
    /// process, although memory nodes could take them. While memory is short, none stays.
    STAYING: Gauge "archipelago_remote_shards_staying_memtables" [];
    /// Number of staying memtables for which reads would take the least time, by the last
    /// measurements.
    STAYING_BEST: Gauge "archipelago_remote_shards_staying_memtables_best" [];
    /// Number of times that the automatic number of staying memtables changed, by `direction`:
    /// raised or lowered.
    STAYING_CHANGES: Counter "archipelago_remote_shards_staying_changes" ["direction"];
    /// Number of entries of the key-offset cache.
    CACHE_ENTRIES: Gauge "archipelago_remote_shards_cache_entries" [];
    /// Number of entries that were made of hot keys when their shard left.
    CACHE_FILLED: Counter "archipelago_remote_shards_cache_filled" [];
    /// Number of records that were read at cached offsets.
    CACHE_READS: Counter "archipelago_remote_shards_cache_reads" [];
    /// Number of keys looked up with the key-offset cache by `outcome`: a hit, a miss, a cached
    /// offset that was passed over because a request is faster, one with another record (mismatch),
    /// and one that could not be read. A node searched all but the hits.
    CACHE_KEYS: Counter "archipelago_remote_shards_cache_keys" ["outcome"];
    /// Number of round trips of look-ups by `way`: cached (a batch of reads at cached offsets) or
    /// request (for keys that the node searched).
    ROUND_TRIPS: Counter "archipelago_remote_shards_round_trips" ["way"];
    /// Seconds of these round trips, by `way`.
    ROUND_TRIP_TIME: Counter "archipelago_remote_shards_round_trip_seconds" ["way"];
    /// Bytes that these round trips brought from memory nodes, by `way`.
    ROUND_TRIP_BYTES: Counter "archipelago_remote_shards_round_trip_bytes" ["way"];
    /// Number of reads that were repeated, because a node was busy or did not answer.
    REPEATED: Counter "archipelago_remote_shards_repeated_reads" [];
    /// Number of reads that ended without an answer.
    BUSY: Counter "archipelago_remote_shards_busy_reads" [];
    /// Number of shards that were lost with a memory node. The database rebuilds them from its log.
    LOST: Counter "archipelago_remote_shards_lost" [];
    /// Number of shards of which two memory nodes have a copy.
    COPIES: Gauge "archipelago_remote_shards_copies" [];
    /// Bytes of shards that wait in the process for the transfer of their second copy.
    COPY_QUEUE: Gauge "archipelago_remote_shards_copy_queue_bytes" [];
    /// Number of second copies of shards that were sent to memory nodes.
    COPIED: Counter "archipelago_remote_shards_copied" [];
    /// Number of times that reads of a shard changed to its other copy, because the memory node was
    /// lost or did not answer.
    COPIES_USED: Counter "archipelago_remote_shards_copies_used" [];
    /// Number of shards with one copy instead of two, by `reason`: no other memory node had room,
    /// the transfer failed, too many waited for theirs, or a copy was released for another shard or
    /// another database.
    COPIES_MISSING: Counter "archipelago_remote_shards_copies_missing" ["reason"];
}
