//! A take-over: an owner is killed while its memtables rest at memory nodes, and the next owner
//! opens the database.
//!
//! The owner writes records, and then only reads. It is killed when the bytes at the memory nodes
//! have not changed for a while, so that all sealed memtables have left.
//!
//! Failure: an error names the step. It is an error if the memtables do not come to rest in time.
//! Cost: a state of each role every [`LOOK_EVERY`].

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_bench::harness::store::{Error, FileSystem as _, LocalFs, Result};
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, Place};
use super::words::LAST_WRITES;
use crate::client::{Client, seconds_to_read};

/// Pause between two checks of the memory nodes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time without a change after which memtables count as resting.
const REST: Duration = Duration::from_secs(1);
/// Time within which memtables must come to rest.
const REST_MAX: Duration = Duration::from_secs(60);

/// Places and words of the two owners.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owners<'a> {
    pub(super) program: &'a Path,
    /// Directory of the database.
    pub(super) db: &'a Path,
    /// Words of the owner that is killed.
    pub(super) first: &'a [String],
    /// Words of the owner that takes over.
    pub(super) next: &'a [String],
}

/// A take-over, as it looks from outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Opened {
    /// Seconds from the start of the next owner, right after the kill, until it has read a key.
    pub(super) seconds: f64,
    /// Lengths of all log segments when the owner was killed.
    pub(super) log_bytes: u64,
    /// Bytes of the images that memory nodes had then.
    pub(super) shard_bytes: u64,
}

/// Figures of a take-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TakeoverFigures {
    /// Seconds from the start of the next owner, right after the kill, until it has read a key.
    pub(super) seconds: f64,
    /// Lengths of all log segments when the owner was killed.
    pub(super) log_bytes: u64,
    /// Bytes of the images that memory nodes had then.
    pub(super) shard_bytes: u64,
    /// Records in the log that were in no table.
    pub(super) records: u64,
    /// Those of these that the next owner did not replay, because kept shards have them.
    pub(super) records_spared: u64,
    /// Shards that the next owner kept.
    pub(super) kept: u64,
    /// Milliseconds in which it found them and read the log.
    pub(super) recovery_ms: u64,
    /// Shards that it did not keep, because tables had their records. A run has none, because its
    /// owner must not flush.
    pub(super) dropped_flushed: u64,
    /// Shards that it did not keep for other reasons.
    pub(super) dropped: u64,
}

impl TakeoverFigures {
    /// Records that the next owner replayed.
    pub(super) fn records_replayed(&self) -> u64 {
        self.records.saturating_sub(self.records_spared)
    }
}

/// Kills the first owner when its memtables rest, and times the first read of the next one.
pub(super) fn measure(cluster: &Cluster, owners: &Owners<'_>) -> Result<Opened> {
    let mut first = Client::start(owners.program, owners.first, Stdio::piped())?;
    first.wait_for(LAST_WRITES)?;
    let shard_bytes = wait_for_rest(cluster, &mut first)?;
    first.kill()?;
    let log_bytes = log_bytes(owners.db)?;
    let seconds = seconds_to_read(owners.program, owners.next)?;
    Ok(Opened { seconds, log_bytes, shard_bytes })
}

/// Waits until the bytes at the memory nodes have not changed for a while, and returns them.
fn wait_for_rest(cluster: &Cluster, owner: &mut Client) -> Result<u64> {
    let clock = SystemClock::new();
    let started_ns = clock.now_ns();
    let (mut bytes, mut since_ns) = (0, started_ns);
    loop {
        let (held, now_ns) = (shard_bytes(cluster)?, clock.now_ns());
        if held != bytes {
            (bytes, since_ns) = (held, now_ns);
        }
        let passed = |from_ns: u64| Duration::from_nanos(now_ns - from_ns);
        if bytes > 0 && passed(since_ns) >= REST {
            return Ok(bytes);
        }
        owner.check()?;
        if passed(started_ns) > REST_MAX {
            return Err(Error::invalid(format!(
                "the memory nodes have {bytes} bytes of shards after {REST_MAX:?}, and the number \
                 still changes or is 0: a take-over needs memtables that rest"
            )));
        }
        clock.sleep(LOOK_EVERY);
    }
}

/// Bytes of the images that all memory nodes have.
fn shard_bytes(cluster: &Cluster) -> Result<u64> {
    let states = cluster.states()?;
    let memory = states.iter().filter(|(place, _)| *place == Place::Memory);
    Ok(memory.map(|(_, state)| state.shard_bytes).sum())
}

/// Lengths of all log segments in the directory of a database.
fn log_bytes(db: &Path) -> Result<u64> {
    let entries = LocalFs::new().list(db)?;
    let segments = entries.iter().filter(|entry| entry.name.ends_with(".log"));
    Ok(segments.map(|entry| entry.len).sum())
}
