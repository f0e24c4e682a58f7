//! Counts of the records that a job read, wrote and dropped, and of the steps of garbage
//! collection.

/// Records dropped, by reason. A record that became a delete was not dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Dropped {
    /// Records that a newer version in the same stripe hides.
    pub shadowed: u64,
    /// Records that a range tombstone in the same stripe covers.
    pub covered: u64,
    /// Deletes with nothing left to delete.
    pub deletes: u64,
    /// Expired records with nothing left to hide.
    pub expired: u64,
    /// Records that the filter removed and that have nothing left to hide.
    pub filtered: u64,
    /// Operands and bases that were folded into another record.
    pub merged: u64,
}

impl Dropped {
    fn add(&mut self, other: &Self) {
        self.shadowed += other.shadowed;
        self.covered += other.covered;
        self.deletes += other.deletes;
        self.expired += other.expired;
        self.filtered += other.filtered;
        self.merged += other.merged;
    }

    /// All reasons together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shadowed + self.covered + self.deletes + self.expired + self.filtered + self.merged
    }
}

/// Counts of an iteration so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Point records read.
    pub records_in: u64,
    /// Point records written.
    pub records_out: u64,
    /// Records dropped, by reason.
    pub dropped: Dropped,
    /// Records written with another kind or value, because they expired, were filtered or put back
    /// inline.
    pub rewritten: u64,
    /// Folds that failed; their records were kept.
    pub merge_errors: u64,
    /// Text of the first fold that failed, with its key.
    pub merge_error: Option<String>,
}

impl Counts {
    /// Adds the counts of another part of the same job.
    pub(crate) fn add(&mut self, other: &Self) {
        self.records_in += other.records_in;
        self.records_out += other.records_out;
        self.dropped.add(&other.dropped);
        self.rewritten += other.rewritten;
        self.merge_errors += other.merge_errors;
        if self.merge_error.is_none() {
            self.merge_error.clone_from(&other.merge_error);
        }
    }
}

/// Steps of garbage collection jobs, with their requests, bytes and times (Terark-DS §3.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GcFigures {
    /// Reads of the keys of an input.
    pub key_reads: u64,
    /// Bytes of the keys that were read.
    pub key_bytes_read: u64,
    /// Time of the reads of keys, in nanoseconds.
    pub key_read_ns: u64,
    /// Time of the look-ups in tables, in nanoseconds.
    pub lookup_ns: u64,
    /// Calls that read values.
    pub value_reads: u64,
    /// Ranges of values in these calls.
    pub value_ranges: u64,
    /// Bytes of values that were read.
    pub value_bytes_read: u64,
    /// Time of the reads of values, in nanoseconds.
    pub value_read_ns: u64,
    /// Records that were looked up.
    pub records_checked: u64,
    /// Records that were copied.
    pub records_copied: u64,
    /// Time of the checks of values and of their writes into the output, in nanoseconds.
    pub write_ns: u64,
    /// Time of the end of the output, its sync included, in nanoseconds.
    pub finish_ns: u64,
}
