//! Fault switches of the engine: steps that a test leaves out, to prove that the suite notices.
//! Most belong to separated values. The others belong to file fencing, to the commit path, to
//! flushes, and to memtable shards at memory nodes.
//!
//! Only a build with the cargo feature `sabotage` can switch one on. Without the feature every
//! query is a constant function that returns `false`, so the compiler removes the branch. A switch
//! holds for one thread. A test runs the background work of its database step by step on its own
//! thread, so other tests of the same program are not disturbed.
//!
//! Thread-safety: each thread has its own switch. Failure: none.
//! Cost: none without the feature; a read of a thread-local value with it.

/// A step that is left out, or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A look-up of garbage collection compares keys and sequence numbers alone.
    ValidityByKeyAlone,
    /// Heirs are pruned although running jobs may install references to their numbers.
    PruningUnderJobs,
    /// A recovery prunes heirs after each edit, although a later edit may name their numbers.
    PruningDuringRecovery,
    /// Heirs are pruned although invalid files name their numbers.
    PruningUnderInvalidFiles,
    /// Compactions do not hold the value files that they read.
    UnheldValueFiles,
    /// Readers use an offset hint for another file than the one that it was made for.
    StaleHints,
    /// The accounting forgets the first value file that a table references.
    ForgottenReferences,
    /// A compaction writes no entry for some of the references that it drops.
    DroppedInvalidEntry,
    /// A merge of invalid files leaves entries out.
    DroppedMergedEntry,
    /// An entry of an invalid file counts for a value file that it does not name.
    EntryOfAnotherFile,
    /// Entries under the number of an ancestor count whenever they were installed.
    EntriesWithoutLimit,
    /// The entries of a compaction are visible before its outputs are installed.
    EntriesAheadOfTheirEdit,
    /// A recovery begins after the file numbers in the directory, not after the last lot, and jobs
    /// truncate files that exist.
    UnfencedFiles,
    /// A write whose log lies in a network is inserted and published before its record is
    /// acknowledged.
    InsertionBeforeQuorum,
    /// A memtable shard is released at its node when its tables are installed, although readers may
    /// still need it there.
    ReleaseBeforeLastReader,
    /// Memtable shards at nodes pin no segment of the log.
    UnpinnedAwayShards,
    /// A memtable shard goes to a node as if no older record of its keys were outside of tables.
    ForgottenAfterSeq,
    /// A job does not sync the tables and value files that it writes.
    UnsyncedOutputs,
    /// A flush is installed before the log durably has its records.
    InstallBeforeLogSync,
    /// A flush takes keys of which an older memtable has records that are not installed.
    InstallsOutOfOrder,
}

#[cfg(feature = "sabotage")]
thread_local! {
    static SWITCHED_ON: std::cell::Cell<Option<Defect>> = const { std::cell::Cell::new(None) };
}

/// Runs `f` with `defect`. The defect ends with `f`, also if `f` panics.
#[cfg(feature = "sabotage")]
pub fn with_defect<T>(defect: Defect, f: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            SWITCHED_ON.set(None);
        }
    }
    SWITCHED_ON.set(Some(defect));
    let _off = Off;
    f()
}

/// Whether this thread has `defect`.
#[cfg(feature = "sabotage")]
#[inline]
pub(crate) fn has(defect: Defect) -> bool {
    SWITCHED_ON.get() == Some(defect)
}

/// Whether this thread has `defect`: this build has none.
#[cfg(not(feature = "sabotage"))]
#[inline]
pub(crate) const fn has(_defect: Defect) -> bool {
    false
}
