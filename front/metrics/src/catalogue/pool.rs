//! Metrics of memory nodes, of the manager and of the fabric's nodes. Static data.

use super::metrics;

metrics! {
    /// Bytes of a block.
    BLOCK_BYTES: Gauge "archipelago_memory_node_block_bytes" [];
    /// Number of blocks that the node may lend.
    BLOCKS_MAX: Gauge "archipelago_memory_node_blocks_limit" [];
    /// Number of blocks that use memory.
    BLOCKS_USED: Gauge "archipelago_memory_node_blocks_used" [];
    /// Number of copies of blocks on the node by `state`: filling copies wait for bytes of another
    /// node, and clients may use those that are installed.
    COPIES: Gauge "archipelago_memory_node_copies" ["state"];
    /// Number of copies of blocks by `event`: given memory, freed, or filled from another node.
    COPY_EVENTS: Counter "archipelago_memory_node_copy_events" ["event"];
    /// Bytes of copies that were filled from another node.
    FILLED_BYTES: Counter "archipelago_memory_node_filled_bytes" [];
    /// Number of requests that the node's protocol refused, by `reason`. Reasons that did not occur
    /// are absent.
    REFUSALS: Counter "archipelago_memory_node_refusals" ["reason"];
    /// Time since a manager answered the node. Absent before the first answer.
    SINCE_MANAGER: Gauge "archipelago_memory_node_manager_silence_seconds" [];
    /// Number of databases that have begun to send memtable shards to the node.
    SHARD_DATABASES: Gauge "archipelago_memory_node_shard_databases" [];
    /// Number of memtable shards that the node holds.
    SHARDS: Gauge "archipelago_memory_node_shards" [];
    /// Bytes of these shards.
    SHARD_BYTES: Gauge "archipelago_memory_node_shard_bytes" [];
    /// Bytes of memory for shards, with the zones in which they arrive.
    SHARD_REGION_BYTES: Gauge "archipelago_memory_node_shard_region_bytes" [];
    /// Bytes of memory for the shards of each `database` by `account`: used, guaranteed, borrowed
    /// (used beyond the guarantee) and share (what it may use now).
    SHARD_ACCOUNTS: Gauge "archipelago_memory_node_database_bytes" ["database", "account"];
    /// Number of times that a database began to claim memory, because it was refused room.
    SHARD_CLAIMS: Counter "archipelago_memory_node_shard_claims" [];
    /// Number of memtable shards by `event`: registered, released by their owner, or purged without
    /// a release.
    SHARD_EVENTS: Counter "archipelago_memory_node_shard_events" ["event"];
    /// Number of searches of shards by `kind`: keys, and pages of scans.
    SHARD_READS: Counter "archipelago_memory_node_shard_reads" ["kind"];

    /// Number of links to the process that are up.
    LINKS: Gauge "archipelago_fabric_links" [];
    /// Number of one-sided operations that the process executed for clients. Clients of shared
    /// memory execute their own, which are not counted.
    OPERATIONS: Counter "archipelago_fabric_operations" [];
    /// Number of requests that the process received.
    REQUESTS: Counter "archipelago_fabric_requests" [];
    /// Number of requests that arrived again.
    DUPLICATES: Counter "archipelago_fabric_repeated_requests" [];
    /// Number of operations, requests and attachments that the fabric refused.
    REFUSED: Counter "archipelago_fabric_refused_operations" [];
    /// Number of links that were closed because the client broke the protocol (`cause` is protocol)
    /// or did not share the cluster's secret (secret).
    BROKEN: Counter "archipelago_fabric_broken_links" ["cause"];
    /// Bytes of answers that are kept for requests that may arrive again.
    KEPT_BYTES: Gauge "archipelago_fabric_kept_answer_bytes" [];

    /// Whether the manager acts: 1, or 0 while it stands by. A manager that stands by offers no
    /// other figures of the pool.
    ACTING: Gauge "archipelago_pool_manager_acting" [];
    /// Whether the manager still collects reports after its start: 1 if it does.
    REBUILDING: Gauge "archipelago_pool_rebuilding" [];
    /// The manager's term.
    TERM: Gauge "archipelago_pool_term" [];
    /// Number of copies that a block should have.
    COPIES_WANTED: Gauge "archipelago_pool_copies_wanted" [];
    /// Number of blocks of which every copy was lost since the manager's start.
    LOST: Counter "archipelago_pool_lost_blocks" [];
    /// Number of blocks by `event`: made (they got their first copies), changed (they got other
    /// copies or another owner) or freed.
    BLOCK_EVENTS: Counter "archipelago_pool_block_events" ["event"];
    /// Number of changes of blocks that began, those that began again included.
    BEGUN_CHANGES: Counter "archipelago_pool_begun_changes" [];
    /// Number of copies that changes have added to blocks which had others.
    ADDED_COPIES: Counter "archipelago_pool_added_copies" [];
    /// Number of times that a `member` was given up: a node that was silent, or a client whose
    /// lease ran out.
    MEMBER_LOSSES: Counter "archipelago_pool_member_losses" ["member"];
    /// Number of clients with a lease.
    CLIENTS: Gauge "archipelago_pool_clients" [];
    /// Number of blocks by `state`: whole, short (too few copies), changing, waiting (for a quorum
    /// of the copies), unconfirmed or released.
    BLOCKS: Gauge "archipelago_pool_blocks" ["state"];
    /// Whether the memory node with the number `node` is up: 1, or 0 if it is silent.
    NODE_UP: Gauge "archipelago_pool_node_up" ["node"];
    /// Bytes that the memory node with the number `node` may lend.
    NODE_CAPACITY: Gauge "archipelago_pool_node_capacity_bytes" ["node"];
    /// Bytes of blocks that use memory of the memory node with the number `node`.
    NODE_USED: Gauge "archipelago_pool_node_used_bytes" ["node"];
    /// Time since the last message of the memory node with the number `node`.
    NODE_SILENCE: Gauge "archipelago_pool_node_silence_seconds" ["node"];
}
