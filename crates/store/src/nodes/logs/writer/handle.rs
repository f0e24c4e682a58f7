//! The writer and the position of a log on storage nodes, as the traits of the crate have them.
//!
//! The drop of the last handle ends the tasks of the log. Bytes that were not acknowledged may then
//! be lost, as after a kill of the process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};

use super::super::super::client::OperationKind;
use super::super::layout::VolumeLog;
use super::super::waiters::WaitGoal;
use super::LogCore;
use crate::log::{Layout, LogPosition, LogWriter};

/// A handle of a log, which its writer and its positions share.
#[derive(Debug)]
pub(in crate::nodes::logs) struct LogHandle(Arc<LogCore>);

impl LogHandle {
    pub(in crate::nodes::logs) fn new(core: Arc<LogCore>) -> Arc<Self> {
        Arc::new(Self(core))
    }
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.0.change(|state| state.is_released = true);
    }
}

/// The writer of a log.
#[derive(Debug)]
pub(in crate::nodes::logs) struct NodeLogWriter {
    handle: Arc<LogHandle>,
    len: u64,
}

impl NodeLogWriter {
    pub(in crate::nodes::logs) fn new(handle: Arc<LogHandle>) -> Self {
        Self { handle, len: 0 }
    }
}

impl LogWriter for NodeLogWriter {
    /// Copies the bytes into the ring. It waits for nothing: a caller waits for room when it waits
    /// for its bytes.
    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let core = &self.handle.0;
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let now_ns = core.now_ns();
        let offset = core.change(|state| {
            state.check()?;
            if state.is_finishing {
                return Err(Error::closed(format!("{} is finished; begin a new log", core.name())));
            }
            if state.writer.acknowledged() == state.submitted {
                // The log was idle. It stalls from now on if it waits for nodes.
                state.stalled_since_ns = state.writer.needs_nodes().then_some(now_ns);
            }
            state.ring.append(parts);
            state.submitted += len;
            if len > 0 {
                state.append_times.submitted(state.submitted, now_ns);
            }
            let offset = state.writer.submit(len);
            offset.ok_or_else(|| Error::internal(format!("{} takes no appends", core.name())))
        })?;
        self.len = offset + len;
        Ok(offset)
    }

    fn len_bytes(&self) -> u64 {
        self.len
    }

    fn position(&self) -> Arc<dyn LogPosition> {
        Arc::clone(&self.handle) as Arc<dyn LogPosition>
    }

    fn finish(&mut self) -> Result<Layout> {
        let core = &self.handle.0;
        let now_ns = core.now_ns();
        core.change(|state| {
            if !state.is_finishing && state.error.is_none() {
                state.is_finishing = true;
                state.want_sync(now_ns);
                state.writer.finish(now_ns);
            }
        });
        core.wait_until(WaitGoal::Finished)?;
        let layout = core.state.lock().finished.clone().unwrap_or_default();
        Ok(VolumeLog { volume: core.requests.stamp.volume, layout }.encode())
    }
}

impl LogPosition for LogHandle {
    fn wait(&self, end: u64) -> Result<()> {
        let core = &self.0;
        if core.acknowledged.load(Ordering::Acquire) < end {
            let submitted = core.state.lock().submitted;
            if end > submitted {
                return Err(Error::invalid(format!(
                    "{}: a wait for byte {end} of {submitted}; submit the bytes first",
                    core.name()
                )));
            }
            core.wait_until(WaitGoal::Acknowledged(end))?;
        }
        if core.is_crowded.load(Ordering::Acquire) {
            core.wait_until(WaitGoal::Room)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<u64> {
        let core = &self.0;
        let now_ns = core.now_ns();
        let (submitted, is_due) = core.change(|state| {
            let is_due = state.writer.synced() < state.submitted;
            if is_due {
                state.want_sync(now_ns);
                state.writer.sync();
            }
            (state.submitted, is_due)
        });
        core.wait_until(WaitGoal::Synced(submitted))?;
        if is_due {
            let time_ns = core.now_ns().saturating_sub(now_ns);
            core.requests.took(OperationKind::Sync, time_ns);
        }
        Ok(submitted)
    }
}
