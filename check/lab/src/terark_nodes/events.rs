//! Steps that measure the time of an event: a repair after the loss of a node, and a take-over
//! after the death of an owner.
//!
//! Failure: a repair that does not end within its limit has no time, which the report says.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_bench::harness::store::{Error, Result};
use serde::Serialize;

use super::cluster::Cluster;
use crate::program::run_to_end;

/// Pause between two checks of the nodes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time within which the owner must have written a quarter of its load.
const LOAD_MAX: Duration = Duration::from_secs(120);

/// Time of an event, and the bytes that it was about.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct EventFigures {
    /// Seconds of the event; `None` if it did not end in time.
    pub(super) seconds: Option<f64>,
    /// Seconds of the same work without the event: the opening of a volume that its owner gave up.
    /// 0 for a repair.
    pub(super) usual_seconds: f64,
    /// Bytes that the lost node had, or that the owner had written.
    pub(super) bytes: u64,
}

/// Kills a node, and waits until the others have as many bytes as all had before.
pub(super) fn repair(cluster: &Cluster, limit: Duration) -> Result<EventFigures> {
    let clock = SystemClock::new();
    let before = cluster.state()?.stored_bytes();
    cluster.kill_one()?;
    let started_ns = clock.now_ns();
    let bytes = before.saturating_sub(cluster.state()?.stored_bytes());
    loop {
        let took = Duration::from_nanos(clock.now_ns() - started_ns);
        let is_whole = cluster.state()?.stored_bytes() >= before;
        if is_whole || took >= limit {
            let seconds = is_whole.then_some(took.as_secs_f64());
            return Ok(EventFigures { seconds, usual_seconds: 0.0, bytes });
        }
        clock.sleep(LOOK_EVERY);
    }
}

/// Programs of a take-over.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakeOver<'a> {
    pub(super) program: &'a Path,
    /// Words of the owner, whose updates do not end.
    pub(super) owner: &'a [String],
    /// Words of one read of an existing database.
    pub(super) open: &'a [String],
    /// Bytes of keys and values that the owner loads.
    pub(super) bytes: u64,
}

/// Kills an owner in the middle of its load, and measures the process that takes its volume over
/// and reads a key. The usual time is that of another process that opens the same volume then.
pub(super) fn take_over(cluster: &Cluster, event: &TakeOver<'_>) -> Result<EventFigures> {
    let clock = SystemClock::new();
    let mut owner = Owner::start(event)?;
    let started_ns = clock.now_ns();
    let bytes = loop {
        let state = cluster.state()?;
        let written = state.logical_bytes() + state.log_bytes;
        if written >= event.bytes / 4 {
            break written;
        }
        owner.check()?;
        if Duration::from_nanos(clock.now_ns() - started_ns) > LOAD_MAX {
            return Err(Error::invalid(format!(
                "the owner has written {written} bytes in {LOAD_MAX:?}, too few for a take-over"
            )));
        }
        clock.sleep(LOOK_EVERY);
    };
    owner.kill()?;
    let mut taking = event.open.to_vec();
    taking.push("--take_over".to_owned());
    let timed = |words: &[String]| {
        let started_ns = clock.now_ns();
        run_to_end(event.program, words)?;
        Ok::<f64, Error>((clock.now_ns() - started_ns) as f64 / 1e9)
    };
    let seconds = Some(timed(&taking)?);
    Ok(EventFigures { seconds, usual_seconds: timed(event.open)?, bytes })
}

/// The process that owns the volume. Drop kills it.
struct Owner(Child);

impl Owner {
    fn start(event: &TakeOver<'_>) -> Result<Self> {
        let mut command = Command::new(event.program);
        command.arg("bench").args(event.owner).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map(Self).map_err(|error| Error::io("run", event.program, error))
    }

    /// Returns an error if the process has ended.
    fn check(&mut self) -> Result<()> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::invalid(format!(
                "the owner has ended before it was killed ({status}); its error output says why"
            ))),
            Err(error) => Err(Error::io("wait for", Path::new("the owner"), error)),
        }
    }

    fn kill(&mut self) -> Result<()> {
        let killed = self.0.kill().and_then(|()| self.0.wait());
        killed.map(drop).map_err(|error| Error::io("kill", Path::new("the owner"), error))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
