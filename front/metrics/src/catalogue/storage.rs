//! Metrics of storage nodes, of their manager, and of a server whose database lies in a volume.
//! Static data.
//!
//! The label `node` is the identity of a storage node, as `archipelago cluster status` shows it.
//! The label `class` of files is wal, sst, value_sst, manifest or other.

use super::metrics;

metrics! {
    /// Bytes that a `device` of the node may hold.
    DEVICE_CAPACITY: Gauge "archipelago_storage_node_capacity_bytes" ["device"];
    /// Bytes of a `device` of the node that are in use.
    DEVICE_USED: Gauge "archipelago_storage_node_used_bytes" ["device"];
    /// Whether a `device` of the node failed or is missing: 1 if so. Its chunks are unreadable.
    DEVICE_FAILED: Gauge "archipelago_storage_node_device_failed" ["device"];
    /// Number of chunks of blobs by `state`: sealed (unreadable ones among them), unreadable
    /// (damaged, or on a missing device) or unsealed (being written).
    CHUNKS: Gauge "archipelago_storage_node_chunks" ["state"];
    /// Bytes of files of chunks that the node does not serve, by `state`: unsealed (being written,
    /// or given up by their writers), damaged (set aside until a repair or the removal of the file)
    /// or removed (being deleted).
    UNSERVED: Gauge "archipelago_storage_node_unserved_bytes" ["state"];
    /// Number of extents of logs by `state`: sealed, open, or limbo (open extents among them that
    /// may have lost unsynced bytes).
    EXTENTS: Gauge "archipelago_storage_node_extents" ["state"];
    /// Bytes of chunks and extents on the node by `volume` and `class`.
    VOLUME_BYTES: Gauge "archipelago_storage_node_volume_bytes" ["volume", "class"];
    /// Share of the node in the lengths of blobs and logs by `volume` and `class`, without copies
    /// and parity. The shares of all nodes add up to the lengths.
    VOLUME_LOGICAL: Gauge "archipelago_storage_node_volume_logical_bytes" ["volume", "class"];
    /// Number of requests that reached the node.
    REQUESTS: Counter "archipelago_storage_node_requests" [];
    /// Number of requests that the node refused, by `reason`: fenced (an owner whose epoch is
    /// over), busy, full or other.
    REFUSED: Counter "archipelago_storage_node_refused_requests" ["reason"];
    /// Number of requests that read or wrote, by `class` and `direction` (read or write).
    OPERATIONS: Counter "archipelago_storage_node_operations" ["class", "direction"];
    /// Bytes that were read or written, by `class` and `direction` (read or write).
    TRAFFIC: Counter "archipelago_storage_node_traffic_bytes" ["class", "direction"];
    /// Number of syncs of files.
    SYNCS: Counter "archipelago_storage_node_syncs" [];
    /// Number of pieces and groups that did not have their checksums when they were read.
    DAMAGED: Counter "archipelago_storage_node_damaged_pieces" [];
    /// Number of rounds of the scrub that were completed.
    SCRUB_ROUNDS: Counter "archipelago_storage_node_scrub_rounds" [];
    /// Progress of the present or last round of the scrub, from 0 to 1.
    SCRUB_PROGRESS: Gauge "archipelago_storage_node_scrub_progress_ratio" [];
    /// Number of damaged chunks that the present or last round of the scrub has found.
    SCRUB_DAMAGED: Gauge "archipelago_storage_node_scrub_damaged_chunks" [];
    /// Number of chunks and extents that the present or last round could not read, for another
    /// reason than damage.
    SCRUB_UNREAD: Gauge "archipelago_storage_node_scrub_unread_objects" [];

    /// Whether the cluster of storage nodes is founded: 1 if it is. Volumes can be opened then.
    FOUNDED: Gauge "archipelago_storage_cluster_founded" [];
    /// Number of nodes of the root set, which holds the registers of volumes.
    ROOT_NODES: Gauge "archipelago_storage_cluster_root_nodes" [];
    /// Whether the manager waits for nodes: 1 if it does. `cluster status` says for which.
    WAITING: Gauge "archipelago_storage_cluster_waiting" [];
    /// State of the storage node `node`: 1 for its `state`, 0 for the others. The states are up,
    /// silent, lost and draining.
    NODE_STATE: Gauge "archipelago_storage_cluster_node_state" ["node", "state"];
    /// Time since the last message of the storage node `node`.
    NODE_SILENCE: Gauge "archipelago_storage_cluster_node_silence_seconds" ["node"];
    /// Bytes that the storage node `node` may hold.
    NODE_CAPACITY: Gauge "archipelago_storage_cluster_node_capacity_bytes" ["node"];
    /// Bytes that the storage node `node` uses.
    NODE_USED: Gauge "archipelago_storage_cluster_node_used_bytes" ["node"];
    /// Bytes of the storage node `node` that are garbage: damaged files that were set aside, and
    /// files of removed chunks that are being deleted. They are part of the bytes that it uses.
    NODE_GARBAGE: Gauge "archipelago_storage_cluster_node_garbage_bytes" ["node"];
    /// Whether the manager knows what needs a repair: 1 if all nodes have listed what they hold
    /// since the last change of the members.
    REPAIR_KNOWN: Gauge "archipelago_storage_cluster_repair_known" [];
    /// Number of objects by `state` that need a repair: chunks and extents (copies to be made),
    /// waiting (blobs and extents with fewer copies until a node of another domain can take one),
    /// sharing (blobs and extents with two parts in one domain until another domain has room and
    /// the domains have stayed the same for a while), coding (files with replicas in place of an
    /// erasure code, because domains were missing when they were written), refused (extents that
    /// lack a copy which no node takes, because the other nodes keep longer replicas of their own),
    /// unrepairable (too few chunks answer) and unknown (extents that lack copies unless a node has
    /// them that does not list its extents).
    REPAIR_DEBT: Gauge "archipelago_storage_cluster_repair_debt" ["state"];
    /// Bytes of the chunks and extents that are to be made.
    REPAIR_BYTES: Gauge "archipelago_storage_cluster_repair_debt_bytes" [];
    /// Length of the files with replicas in place of an erasure code. Garbage collection codes them
    /// when it rewrites them.
    CODING_BYTES: Gauge "archipelago_storage_cluster_coding_debt_bytes" [];
    /// Number of chunks that are to be made because the storage node `node` is lost, drains, has
    /// damage or shares a domain.
    NODE_DEBT: Gauge "archipelago_storage_cluster_node_repair_debt" ["node"];
    /// Number of objects of the storage node `node` that no other node can take now.
    NODE_STUCK: Gauge "archipelago_storage_cluster_node_repair_stuck" ["node"];
    /// Whether the storage node `node` answers the manager and does not list what it holds: 1 if
    /// so. Its disk may hang. Repairs that need its list wait.
    NODE_UNLISTED: Gauge "archipelago_storage_cluster_node_unlisted" ["node"];
    /// Number of copies that repairs have made, by `kind`: chunk or extent.
    REPAIRED: Counter "archipelago_storage_cluster_repairs" ["kind"];
    /// Bytes of the copies that repairs have made.
    REPAIRED_BYTES: Counter "archipelago_storage_cluster_repaired_bytes" [];
    /// Number of repairs that failed. Each is tried again.
    REPAIRS_FAILED: Counter "archipelago_storage_cluster_failed_repairs" [];

    /// Epoch of the `volume` that the server owns.
    VOLUME_EPOCH: Gauge "archipelago_volume_epoch" ["volume"];
    /// Whether the lease of the `volume` lasts: 1 if it does. Reads are refused without it.
    VOLUME_LEASE: Gauge "archipelago_volume_lease_held" ["volume"];
    /// Number of calls to a storage `node`, by `class` of traffic: log, foreground, flush,
    /// compaction or gc.
    CALLS: Counter "archipelago_store_client_calls" ["node", "class"];
    /// Number of calls to a storage `node`, by `class` of traffic, that failed. The `cause` is
    /// refused or unanswered.
    FAILED_CALLS: Counter "archipelago_store_client_failed_calls" ["node", "class", "cause"];
    /// Bytes that were sent to a storage `node`, by `class` of traffic.
    SENT: Counter "archipelago_store_client_sent_bytes" ["node", "class"];
    /// Bytes that were received from a storage `node`, by `class` of traffic.
    RECEIVED: Counter "archipelago_store_client_received_bytes" ["node", "class"];
    /// Times of answered calls to a storage `node`, by `operation`: read (of a chunk) or write (a
    /// piece of a chunk, or an append). Upper bounds are powers of two of a nanosecond.
    CALL_TIME: Histogram "archipelago_store_client_call_duration_seconds" ["node", "operation"];
    /// Times of operations that succeeded, by `operation`, `class` of the file and `scheme`
    /// (replicated or coded). The operations are read (ranges of a file, with all repetitions), put
    /// (a piece of a file to one node), seal (the end of a file until all its nodes have it on
    /// disk), append (to a log, until the acknowledgement) and sync (of a log). Upper bounds are
    /// powers of two of a nanosecond. Combinations that did not occur are absent.
    OPERATION_TIME: Histogram "archipelago_store_client_operation_duration_seconds"
        ["operation", "class", "scheme"];
    /// Number of events by `event`, `class` of the file and storage `node`, which is empty if no
    /// single node caused the event. The events are hedged_reads, degraded_reads, damaged_pieces,
    /// retries, replaced_nodes, new_extents, recovered_logs, coding_debts and copy_debts.
    EVENTS: Counter "archipelago_store_client_events" ["event", "class", "node"];
    /// Acknowledged bytes of logs that a replica lacks.
    BACKLOG: Gauge "archipelago_store_client_backlog_bytes" [];
    /// Number of calls that a storage `node` has not answered.
    IN_FLIGHT: Gauge "archipelago_store_client_calls_in_flight" ["node"];
    /// Number of messages that wait to be sent, by `class` of traffic. The classes in the order of
    /// sending are log, foreground, flush, compaction and gc.
    QUEUED: Gauge "archipelago_store_client_queued_messages" ["class"];
    /// Bytes of the messages that wait to be sent, by `class` of traffic.
    QUEUED_BYTES: Gauge "archipelago_store_client_queued_bytes" ["class"];
    /// Bytes of flushes, compactions and garbage collections that were sent and not answered, with
    /// the largest answers that they permit. At 4 MiB, further messages of these classes wait.
    BACKGROUND: Gauge "archipelago_store_client_background_in_flight_bytes" [];
    /// Number of blobs that were sealed, by `scheme`: replicated or coded (RS(4,2)).
    SEALED: Counter "archipelago_store_client_sealed_blobs" ["scheme"];
    /// Number of blobs whose writers failed.
    GIVEN_UP: Counter "archipelago_store_client_failed_blobs" [];
    /// Bytes of files that the database wrote or read, by `class` and `direction` (write or read),
    /// without copies and parity.
    USER_BYTES: Counter "archipelago_store_client_file_bytes" ["class", "direction"];
    /// Bytes of chunks by `purpose`: put (sent to nodes), rebuilt (written to replacements of
    /// nodes) or fetched (that nodes answered with).
    CHUNK_BYTES: Counter "archipelago_store_client_chunk_bytes" ["purpose"];
    /// Number of requests for ranges of a chunk.
    READ_REQUESTS: Counter "archipelago_store_client_read_requests" [];
    /// Number of hedged reads that another source answered first.
    HEDGES_WON: Counter "archipelago_store_client_hedges_won" [];
    /// Number of blobs that were released, strays of failed writers among them.
    RELEASED: Counter "archipelago_store_client_released_blobs" [];
}
