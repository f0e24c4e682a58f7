//! Figures by which a [`ShardStore`](super::ShardStore) decides how many of the newest sealed
//! memtables stay in memory. All are plain values.

/// Reads of a database by the sealed memtable that answered them, and their times. Shares and
/// numbers are moving averages over windows of a second or more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SealedReads<'a> {
    /// Share of the reads that each sealed memtable answers, newest memtable first. Memtables at
    /// memory nodes count as well. A seek of an iterator counts for the oldest sealed memtable with
    /// records within its bounds, because the seek needs all of them.
    pub answered: &'a [f64],
    /// Number of blocks that a read gets from storage on average, by the number of memtables that
    /// stay. The slice has one element more than `answered`. An element is infinite if memory has
    /// no room for that number of memtables.
    pub misses: &'a [f64],
    /// Number of memtables that are in memory in any case, because writers fill them faster than
    /// the link takes them.
    pub least: usize,
    /// Time, in nanoseconds, of a read that a sealed memtable in memory answers.
    pub local_ns: f64,
    /// Time, in nanoseconds, of a read of a block from storage; 0 before it was measured.
    pub storage_ns: f64,
}
