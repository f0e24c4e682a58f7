//! Reads and writes of files by class and purpose (`--io_statistics`), for the result file.
//!
//! The counters lie above the emulated device and the page cache: they count what the database asks
//! for. The functions are pure.

use serde::{Deserialize, Serialize};

use crate::harness::store::{FileClass, IoPurpose, IoStats};

/// Operations on files of one class for one purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IoEntry {
    /// Kind of the files: `wal`, `sst`, `value-sst`, `manifest` or `other`.
    pub class: String,
    /// Reason of the operations, such as `compaction` or `gc`. Levels do not matter.
    pub purpose: String,
    /// Number of calls that read one range or several. The ranges of a call are in flight together.
    pub read_calls: u64,
    /// Number of ranges that were read.
    pub read_ops: u64,
    /// Number of bytes that were read.
    pub read_bytes: u64,
    /// Number of appends.
    pub write_ops: u64,
    /// Number of bytes that were appended.
    pub write_bytes: u64,
    /// Number of syncs.
    pub syncs: u64,
}

const CLASSES: [(FileClass, &str); 5] = [
    (FileClass::Wal, "wal"),
    (FileClass::Sst, "sst"),
    (FileClass::ValueSst, "value-sst"),
    (FileClass::Manifest, "manifest"),
    (FileClass::Other, "other"),
];

const PURPOSES: [(IoPurpose, &str); 8] = [
    (IoPurpose::ForegroundRead, "foreground-read"),
    (IoPurpose::ForegroundWrite, "foreground-write"),
    (IoPurpose::Recovery, "recovery"),
    (IoPurpose::Flush, "flush"),
    (IoPurpose::Compaction { from: 0, to: 0 }, "compaction"),
    (IoPurpose::Gc, "gc"),
    (IoPurpose::Ingest, "ingest"),
    (IoPurpose::Maintenance, "maintenance"),
];

/// The entries of `stats` with any operation.
pub(crate) fn entries(stats: &IoStats) -> Vec<IoEntry> {
    let cells =
        CLASSES.iter().flat_map(|class| PURPOSES.iter().map(move |purpose| (class, purpose)));
    let entries = cells.map(|(&(class, class_name), &(purpose, purpose_name))| {
        let counts = stats.of(class, purpose);
        IoEntry {
            class: class_name.to_owned(),
            purpose: purpose_name.to_owned(),
            read_calls: counts.read_calls,
            read_ops: counts.read_ops,
            read_bytes: counts.read_bytes,
            write_ops: counts.write_ops,
            write_bytes: counts.write_bytes,
            syncs: counts.syncs,
        }
    });
    entries.filter(|entry| entry.read_ops + entry.write_ops + entry.syncs > 0).collect()
}
