//! Fault switches of a shard host: each leaves out one step, to prove that the checks notice it.

archipelago_base::fault_switches! {
    /// Steps that a checker leaves out.
    HostSabotage {
        /// The host accepts messages of earlier owners.
        no_epoch_check,
        /// The host does not compare the pieces of an image with their checksums.
        no_piece_check,
        /// A release leaves the grants of its shards valid.
        no_void,
        /// The host treats an unknown shard as a shard without the key.
        no_unknown,
        /// An answer that has no room for more says that the search has ended.
        no_resume,
        /// The host takes more memory than its limit.
        no_limit,
        /// The host keeps databases whose owner was silent for too long.
        no_orphan_end,
        /// The host keeps grants that no owner uses.
        no_grant_end,
        /// The host registers a shard again when a message comes twice.
        no_idempotence,
        /// The host gives memory to the database that asks first, without regard to the guarantees
        /// of others.
        no_guarantees,
    }
}
