//! Concurrency control: state that the transactions of a database share.
//!
//! The commit path keeps the recent writes ([`RecentWrites`]), the database keeps the row locks
//! ([`RowLocks`]). A transaction notes in a footprint ([`footprint`]) what its commit checks.
//! [`crate::transaction`] says how they work together.

mod conflict;
pub(crate) mod footprint;
pub(crate) mod range_set;
mod recent_writes;
pub(crate) mod row_locks;
mod waits_for;

pub use conflict::Conflict;
pub(crate) use recent_writes::RecentWrites;
pub use row_locks::LockMode;
pub(crate) use row_locks::RowLocks;
