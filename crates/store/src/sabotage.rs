//! Fault switches of the store: steps that a checker leaves out, to prove that it notices.
//!
//! Without the cargo feature `sabotage` every query is a constant function that returns `false`.
//! The pool in memory asks the first two switches, and the owner of a volume asks the others.

archipelago_base::fault_switches! {
    /// Steps that a checker leaves out.
    Sabotage {
        /// A recovery of a log does not fence older writers.
        no_fence,
        /// A log acknowledges appends whose place no recorded layout has.
        unrecorded_layout,
        /// The owner gives up strays without regard to pending blobs.
        pending_ignored,
        /// The owner gives up a blob or a log before the record that took its last name is durable.
        early_release,
        /// The renaming of a file is recorded as several changes, and not as one.
        torn_rename,
    }
}
