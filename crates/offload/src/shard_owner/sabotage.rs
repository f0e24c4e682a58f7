//! Fault switches of the owner's side of shards: each leaves out one step, to prove that the checks
//! notice it.

archipelago_base::fault_switches! {
    /// Steps that a checker leaves out.
    OwnerSabotage {
        /// The owner accepts any bytes that lie at a cached offset.
        no_offset_check,
        /// Every reply makes an entry of the key-offset cache, even if its reader does not see the
        /// newest version.
        no_newest_check,
        /// A release goes to the first place of a shard only.
        no_second_release,
        /// The loss of the first place of a shard loses the shard, although another node has it.
        no_promotion,
        /// Hashes of keys have three bits, so that many keys share an entry. This switch is no
        /// fault. It makes collisions frequent, which are otherwise very rare.
        short_hashes,
    }
}
