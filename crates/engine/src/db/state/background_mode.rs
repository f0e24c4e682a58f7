//! The choice of the threads that run the background work of a database: a plain value.

/// Which threads run flushes and compactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundMode {
    /// Threads that the database starts.
    #[default]
    Threads,
    /// The thread that calls [`crate::db::Db::step_background`], for tests that decide when each
    /// step runs. Without such calls the database never flushes.
    Manual,
}
