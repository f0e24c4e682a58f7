//! Fault switches of the owner's side of shards: steps that a checker leaves out, to prove that it
//! notices.

archipelago_base::fault_switches! {
    /// Steps that a checker leaves out.
    OwnerSabotage {
        /// The owner takes whatever bytes lie at a cached offset.
        no_offset_check,
        /// A reply to any reader makes an entry of the key-offset cache, also one that does not
        /// see the newest version.
        no_newest_check,
        /// Hashes of keys have three bits, so that many keys share an entry. This is no fault: it
        /// makes a run meet in seconds what else happens once in years.
        short_hashes,
    }
}
