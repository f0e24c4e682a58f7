//! Times of flushes, and of look-ups that sealed memtables answer, for the result file.
//!
//! All figures are those of the database's statistics.

use serde::{Deserialize, Serialize};

use crate::harness::store::{Db, Ticker, Timer};

/// Times since the database was opened, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepFigures {
    /// Number of flushes that were installed.
    pub flushes: u64,
    /// Bytes that they wrote.
    pub flush_bytes: u64,
    /// Seconds until their files were written, wherever they ran.
    pub flush_s: f64,
    /// Seconds for which they then waited for the log.
    pub flush_log_sync_s: f64,
    /// Seconds of their installs after that.
    pub flush_install_s: f64,
    /// Number of memtable shards that were sent to memory nodes.
    pub sends: u64,
    /// Seconds of these sends.
    pub send_s: f64,
    /// Bytes of memory for the parts of sent shards that stayed here.
    pub kept_bytes: u64,
    /// Seconds of fetches of shards by this process, for its flushes, and for readers that still
    /// need a shard after its flush.
    pub fetch_s: f64,
    /// Number of timed look-ups that a sealed memtable in memory answered.
    pub here: u64,
    /// Seconds of these look-ups.
    pub here_s: f64,
    /// Number of timed look-ups that a memory node answered.
    pub there: u64,
    /// Seconds of these look-ups.
    pub there_s: f64,
}

impl StepFigures {
    /// Figures since `db` was opened.
    pub(crate) fn of(db: &Db) -> Self {
        let stats = db.statistics();
        let seconds = |ticker| stats.get(ticker) as f64 / 1e9;
        Self {
            flushes: stats.get(Ticker::Flushes),
            flush_bytes: stats.get(Ticker::FlushBytesWritten),
            flush_s: stats.distribution(Timer::Flush).sum as f64 / 1e9,
            flush_log_sync_s: seconds(Ticker::FlushLogSyncNs),
            flush_install_s: seconds(Ticker::FlushInstallNs),
            sends: stats.get(Ticker::AwayShardsSent),
            send_s: seconds(Ticker::AwaySendNs),
            kept_bytes: stats.get(Ticker::AwayKeptBytes),
            fetch_s: seconds(Ticker::AwayFetchNs),
            here: stats.get(Ticker::AwayTimedHere),
            here_s: seconds(Ticker::AwayTimedHereNs),
            there: stats.get(Ticker::AwayTimedThere),
            there_s: seconds(Ticker::AwayTimedThereNs),
        }
    }
}
