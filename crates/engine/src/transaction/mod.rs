//! Transactions: several reads and writes that take effect at one place of the commit order.
//!
//! A [`Transaction`] collects writes in an indexed batch (`indexed_batch.rs`) and shows them to its
//! own reads and iterators (`iterator`) above a snapshot. It notes what it read in a footprint
//! (`concurrency/footprint.rs`). A commit writes the batch if nothing in the footprint has changed
//! (`validation`). Rows can be locked as well (`concurrency/row_locks.rs`), so that a second
//! transaction waits instead of losing its work. A [`KeyWatch`] asks whether a key has changed,
//! without a transaction.
//!
//! Isolation:
//!
//! | level | reads | what a commit checks |
//! | --- | --- | --- |
//! | [`Isolation::Serializable`] | snapshot | keys and ranges that were read |
//! | [`Isolation::Snapshot`] | snapshot | keys and ranges that were written, keys read for update |
//!
//! Invariants:
//! 1. A commit's check and its place in the commit order are one step: between them no other write
//!    gets a sequence number. So all that a serialisable transaction read still holds at its place.
//! 2. The check sees every kind of write: of other transactions, plain writes and batches, deletes,
//!    range deletes, merges, ingested tables, and dropped column families.
//! 3. The evidence of a change is not lost while the transaction lives. Its snapshot makes
//!    compactions keep a record newer than the snapshot for each key that changed after it. A read
//!    without a snapshot notes the sequence number of the record that it found.
//! 4. A value that expires between its read and the commit has changed.
//! 5. A transaction that fails to commit has written nothing, except if the error is that of a
//!    sync: then the writes are visible, and whether they survive power loss is not known.
//! 6. A lock is granted only if it agrees with all locks of other owners on the row. A request that
//!    would close a deadlock is refused. No wait lasts longer than the transaction's lock timeout.
//!
//! Thread-safety: a transaction is used by one thread at a time and may move between threads. The
//! row locks and the recent writes are shared by all transactions of a database.
//! Failure: a conflict, a deadlock and a lock timeout are `Busy` errors whose cause is a
//! [`Conflict`].
//! Cost: a transaction that only writes copies each operation once into its batch, takes no
//! snapshot and notes nothing. The first read builds the index over the batch. A read costs a plain
//! read, a search in the index and one entry of the footprint. A commit takes the commit lock once
//! if nothing was written since the reads. Otherwise it takes the lock twice, and looks for a newer
//! record of each key outside of it. A database without transactions pays one branch for each
//! write.

mod handle;
mod iterator;
mod key_watch;
mod validation;

use std::time::Duration;

pub use crate::concurrency::{Conflict, LockMode};
pub use handle::Transaction;
pub use iterator::TransactionIter;
pub use key_watch::KeyWatch;

/// Anomalies that a transaction is protected from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// The committed transactions could have run one after another, in the order of their commits.
    /// Everything that a writing transaction read, also under iterators, is checked at its commit.
    #[default]
    Serializable,
    /// All reads see one moment, and of two transactions that write the same key only the first to
    /// commit succeeds. Reads are not checked: two transactions may each write what the other read.
    Snapshot,
}

/// Moment at which a transaction notices another one that uses the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Locking {
    /// The commit notices the conflict and fails. No call waits.
    #[default]
    Optimistic,
    /// The first use of a row notices the conflict: writes and [`Transaction::get_for_update`] lock
    /// their row and wait for transactions that have locked it before. Range deletes, iterators and
    /// plain reads lock nothing.
    Pessimistic,
}

/// Settings of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionOptions {
    /// Protection from anomalies. Default: serialisable.
    pub isolation: Isolation,
    /// Moment at which conflicts are noticed. Default: optimistic.
    pub locking: Locking,
    /// Longest wait for a row lock. Default one second; zero never waits.
    pub lock_timeout: Duration,
    /// Limit in bytes on the memory of its writes and of the notes about its reads. A call that
    /// would exceed it is refused. From 64 KiB on, the memory counts to the byte budget. Default 64
    /// MiB.
    pub bytes_max: u64,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self {
            isolation: Isolation::Serializable,
            locking: Locking::Optimistic,
            lock_timeout: Duration::from_secs(1),
            bytes_max: 64 << 20,
        }
    }
}

impl TransactionOptions {
    /// The default settings with row locks.
    #[must_use]
    pub fn pessimistic() -> Self {
        Self { locking: Locking::Pessimistic, ..Self::default() }
    }

    /// The default settings with snapshot isolation.
    #[must_use]
    pub fn snapshot_isolation() -> Self {
        Self { isolation: Isolation::Snapshot, ..Self::default() }
    }
}
