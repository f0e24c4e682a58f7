//! Steps that measure the time of an event: a repair after the loss of a node, and a take-over
//! after the death of an owner.
//!
//! The time of a repair begins when the node counts as lost. Clients read before the loss, between
//! the loss and the repair, and during the repair.
//!
//! Failure: a repair that does not end within its limit has no time, which the report says.

use std::path::Path;
use std::process::Stdio;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_bench::harness::store::{Error, Result};
use serde::{Deserialize, Serialize};

use super::bounds::{LostBytes, RepairRate};
use super::cluster::Cluster;
use crate::client::{Client, seconds_to_read};

/// Pause between two checks of the nodes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pause between two checks of the length of a log.
const LOG_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Share of a full log at which the owner is killed.
const LOG_FULL_MIN: f64 = 0.9;
/// Time within which the owner must have filled its log.
const LOG_MAX: Duration = Duration::from_secs(120);
/// Share of the time that rates and bytes allow for a repair in which the client reads.
const READS_SHARE: f64 = 0.8;

/// A repair after the loss of a node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RepairFigures {
    /// Seconds from the time at which the node counts as lost until nothing is left to repair;
    /// `None` if the repair did not end in time.
    pub(super) seconds: Option<f64>,
    /// Seconds that the rates of repairs take for the bytes of the node.
    pub(super) allowed_seconds: f64,
    /// Bytes that the lost node had.
    pub(super) lost: LostBytes,
    /// P99 of reads before the loss, in seconds.
    pub(super) healthy_p99_s: Option<f64>,
    /// P99 of reads after the loss and before the repair.
    pub(super) degraded_p99_s: Option<f64>,
    /// P99 of reads during the repair.
    pub(super) repair_p99_s: Option<f64>,
}

/// Parameters of a repair.
pub(super) struct Repair<'a> {
    pub(super) rate: RepairRate,
    /// Silence after which the node counts as lost.
    pub(super) lost_after: Duration,
    /// Time that the repair may take.
    pub(super) limit: Duration,
    /// Seconds of reads before the loss, and of those between the loss and the repair.
    pub(super) read_seconds: u64,
    /// Function that reads for a number of seconds and returns the P99 in seconds.
    pub(super) reads: &'a (dyn Fn(u64) -> Result<Option<f64>> + Sync),
}

/// Kills a node, and waits until nothing is left to repair.
pub(super) fn repair(cluster: &Cluster, event: &Repair<'_>) -> Result<RepairFigures> {
    let clock = SystemClock::new();
    let node = cluster.last_node()?;
    let lost = LostBytes { copied: node.tables.stored, coded: node.values.stored };
    let allowed_seconds = event.rate.seconds(lost);
    let healthy_p99_s = (event.reads)(event.read_seconds)?;
    let made = cluster.repairs().made();
    cluster.kill_one()?;
    let until_ns = clock.now_ns() + (event.lost_after + event.limit).as_nanos() as u64;
    let during_s = ((allowed_seconds * READS_SHARE) as u64).clamp(1, event.read_seconds.max(1));
    let (seconds, degraded, during) = std::thread::scope(|scope| {
        // The reads may last until the node counts as lost, so the time of that is watched
        // meanwhile.
        let degraded = scope.spawn(|| (event.reads)(event.read_seconds));
        let (mut lost_ns, mut during) = (None, None);
        let seconds = loop {
            let (repairs, now_ns) = (cluster.repairs(), clock.now_ns());
            if repairs.is_node_lost && lost_ns.is_none() {
                lost_ns = Some(now_ns);
            }
            let have_ended = repairs.have_ended();
            // Both readers write the same result file, so the second one follows the first.
            let may_read = during.is_none() && degraded.is_finished();
            if may_read && (repairs.have_begun(made) || have_ended) {
                during = Some(scope.spawn(|| (event.reads)(during_s)));
            }
            if have_ended || now_ns >= until_ns {
                let since_ns = |lost_ns: u64| (now_ns - lost_ns) as f64 / 1e9;
                break lost_ns.filter(|_| have_ended).map(since_ns);
            }
            clock.sleep(LOOK_EVERY);
        };
        (seconds, joined(degraded), during.map(joined))
    });
    let (degraded_p99_s, during_p99_s) = (degraded?, during.transpose()?);
    let repair_p99_s = match during_p99_s {
        // The repair has ended before the reads that began before it.
        None if seconds.is_some() => (event.reads)(during_s)?,
        read => read.flatten(),
    };
    Ok(RepairFigures {
        seconds,
        allowed_seconds,
        lost,
        healthy_p99_s,
        degraded_p99_s,
        repair_p99_s,
    })
}

/// The result of a thread that reads.
fn joined(reader: ScopedJoinHandle<'_, Result<Option<f64>>>) -> Result<Option<f64>> {
    let panicked = || Err(Error::invalid("a thread that reads around a repair panicked"));
    reader.join().unwrap_or_else(|_| panicked())
}

/// A take-over after the death of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TakeOverFigures {
    /// Seconds from the start of the next owner, right after the kill, until it has read a key.
    pub(super) seconds: f64,
    /// Length of the lease that the next owner waits for.
    pub(super) lease_seconds: f64,
    /// Seconds until a third process has read a key, to which the second one gave the volume.
    pub(super) usual_seconds: f64,
    /// Bytes of the log when the owner was killed, without copies.
    pub(super) log_bytes: u64,
}

/// Parameters of a take-over.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakeOver<'a> {
    pub(super) program: &'a Path,
    /// Words of the owner, whose updates do not end.
    pub(super) owner: &'a [String],
    /// Words of one read of an existing database.
    pub(super) open: &'a [String],
    /// Length of a full log.
    pub(super) log_full_bytes: u64,
    /// Length of a lease.
    pub(super) lease: Duration,
}

/// Kills an owner when its log is full, and measures the process that waits for the end of the
/// lease, recovers the log and reads a key.
pub(super) fn take_over(cluster: &Cluster, event: &TakeOver<'_>) -> Result<TakeOverFigures> {
    let clock = SystemClock::new();
    let mut owner = Client::start(event.program, event.owner, Stdio::null())?;
    let started_ns = clock.now_ns();
    let wanted_bytes = (LOG_FULL_MIN * event.log_full_bytes as f64) as u64;
    // The process before has left a log, so only bytes in addition to the least show that the owner
    // has opened the volume.
    let mut least_bytes = u64::MAX;
    let log_bytes = loop {
        let log_bytes = cluster.state()?.log_logical_bytes;
        least_bytes = least_bytes.min(log_bytes);
        if log_bytes - least_bytes >= wanted_bytes {
            break log_bytes;
        }
        owner.check()?;
        if Duration::from_nanos(clock.now_ns() - started_ns) > LOG_MAX {
            return Err(Error::invalid(format!(
                "the log of the owner has {log_bytes} bytes after {LOG_MAX:?}, and the take-over \
                 needs {wanted_bytes}"
            )));
        }
        clock.sleep(LOG_LOOK_EVERY);
    };
    owner.kill()?;
    Ok(TakeOverFigures {
        seconds: seconds_to_read(event.program, event.open)?,
        lease_seconds: event.lease.as_secs_f64(),
        usual_seconds: seconds_to_read(event.program, event.open)?,
        log_bytes,
    })
}
