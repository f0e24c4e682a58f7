//! Fault switches of the protocol: steps that a checker leaves out, to prove that it notices.
//!
//! Without the cargo feature `sabotage` every query is a constant function that returns `false`.

archipelago_base::fault_switches! {
    /// Steps that a checker leaves out.
    Sabotage {
        /// An owner discards the outputs of attempts that it does not know.
        no_forget,
        /// An owner accepts outputs of attempts that it has abandoned.
        no_attempt_check,
        /// An owner accepts outputs of jobs of an earlier epoch.
        no_epoch_check,
        /// A scheduler takes attempts that were prepared for another life of it.
        no_term_check,
        /// A scheduler takes any job of a queue that an executor can run.
        no_order,
    }
}
