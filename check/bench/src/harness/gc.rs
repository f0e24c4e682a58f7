//! Garbage collection of value files, for the result file.
//!
//! The database's statistics count jobs, records and the time of each step. `FreedBytes` adds the
//! garbage of the collected files, which only events tell.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::harness::store::{Db, Event, EventListener, Ticker};

/// Work of garbage collection, since the database was opened or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GcFigures {
    /// Number of jobs that were installed.
    pub jobs: u64,
    /// Number of files that were collected.
    #[serde(default)]
    pub files: u64,
    /// Bytes of the files that were collected.
    pub file_bytes: u64,
    /// Bytes of the files that hold what was valid.
    pub valid_bytes: u64,
    /// Number of records of the collected files.
    pub records: u64,
    /// Number of records that were valid.
    pub valid_records: u64,
    /// Seconds of reading keys.
    pub key_read_s: f64,
    /// Seconds of looking keys up.
    pub lookup_s: f64,
    /// Seconds of reading values.
    pub value_read_s: f64,
    /// Seconds of completing and syncing the files that were written.
    pub finish_s: f64,
}

impl GcFigures {
    /// Figures since `db` was opened. `freed` has the garbage of the collected files.
    pub(crate) fn of(db: &Db, freed: &FreedBytes) -> Self {
        let get = |ticker| db.statistics().get(ticker);
        let seconds = |ticker| get(ticker) as f64 / 1e9;
        let valid_bytes = get(Ticker::GcBytesWritten);
        Self {
            jobs: get(Ticker::GcJobs),
            files: get(Ticker::GcFilesCollected),
            file_bytes: valid_bytes + freed.0.load(Ordering::Acquire),
            valid_bytes,
            records: get(Ticker::GcRecordsChecked),
            valid_records: get(Ticker::GcRecordsCopied),
            key_read_s: seconds(Ticker::GcKeyReadNs),
            lookup_s: seconds(Ticker::GcLookupNs),
            value_read_s: seconds(Ticker::GcValueReadNs),
            finish_s: seconds(Ticker::GcFinishNs),
        }
    }

    /// Figures since `before`. `None` if no job was installed.
    pub(crate) fn since(self, before: Self) -> Option<Self> {
        let since = Self {
            jobs: self.jobs.saturating_sub(before.jobs),
            files: self.files.saturating_sub(before.files),
            file_bytes: self.file_bytes.saturating_sub(before.file_bytes),
            valid_bytes: self.valid_bytes.saturating_sub(before.valid_bytes),
            records: self.records.saturating_sub(before.records),
            valid_records: self.valid_records.saturating_sub(before.valid_records),
            key_read_s: self.key_read_s - before.key_read_s,
            lookup_s: self.lookup_s - before.lookup_s,
            value_read_s: self.value_read_s - before.value_read_s,
            finish_s: self.finish_s - before.finish_s,
        };
        (since.jobs > 0).then_some(since)
    }

    /// Seconds of look-ups and reads together.
    #[must_use]
    pub fn read_s(&self) -> f64 {
        self.key_read_s + self.lookup_s + self.value_read_s
    }
}

/// Listener that sums the garbage of collected files, in bytes.
#[derive(Debug, Default)]
pub(crate) struct FreedBytes(AtomicU64);

impl EventListener for FreedBytes {
    fn on_event(&self, event: &Event) {
        if let Event::GcInstalled { bytes_freed, .. } = event {
            self.0.fetch_add(*bytes_freed, Ordering::AcqRel);
        }
    }
}
