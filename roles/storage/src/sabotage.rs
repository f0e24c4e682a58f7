//! Steps of a storage node that a checker leaves out, to prove that it notices.
//!
//! The module is a plain value. It has no switches unless the cargo feature `sabotage` is on.

archipelago_base::fault_switches! {
    /// Steps that a node leaves out.
    Sabotage {
        /// Requests under an older epoch than the promised one are served.
        no_epoch_check,
        /// A read of a recovery does not promise its epoch.
        no_fence_reads,
        /// A restart after power loss does not put open extents into limbo.
        no_limbo,
        /// Bytes of pieces and groups are not checked.
        no_crc,
        /// A chunk is deleted when one volume releases it, even if other volumes retain it.
        release_ignores_sets,
    }
}
