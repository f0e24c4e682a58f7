//! Fault switches of the protocol: each leaves out one step, to prove that the checks notice it.
//!
//! Without the cargo feature `sabotage` every query is a constant function that returns `false`.

archipelago_base::fault_switches! {
    /// Steps that a checker leaves out.
    Sabotage {
        /// An owner answers `Discard` instead of `Forget` for attempts that it does not know.
        no_forget,
        /// An owner accepts outputs of attempts that it has abandoned.
        no_attempt_check,
        /// An owner accepts outputs of jobs of an earlier epoch.
        no_epoch_check,
        /// A scheduler takes attempts that were prepared for another life of it.
        no_term_check,
        /// A scheduler serves the youngest job of a queue first.
        no_order,
        /// A scheduler gives up attempts that wait for something bounded.
        no_wait,
    }
}
