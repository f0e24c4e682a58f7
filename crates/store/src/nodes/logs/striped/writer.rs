//! The writer of a striped log, and the position that other threads wait at.
//!
//! Invariants:
//! 1. `groups` has every group that is not known to be acknowledged, in order.
//! 2. A wait for a group waits for all four logs. Their acknowledged ends are prefixes, so all
//!    earlier groups are acknowledged as well.
//! 3. After the first error no group is submitted.
//!
//! Thread-safety: a lock guards the groups. It is not held over a wait.
//! Cost: a submit computes a checksum over the bytes, and copies them as the logs below do.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use super::super::super::log::segments::{SEGMENTS_MAX, SegmentMap, place, plan, slice_parts};
use super::StripedKeeper;
use crate::ids::LogId;
use crate::log::{Layout, LogPosition, LogWriter};

/// Where a group ends: in the striped log, and in each log below.
#[derive(Clone, Copy, Debug)]
struct GroupEnd {
    end: u64,
    parts: [u64; SEGMENTS_MAX],
}

/// The groups of a writer.
#[derive(Debug, Default)]
struct GroupEnds {
    submitted: u64,
    acknowledged: u64,
    groups: VecDeque<GroupEnd>,
    /// Ends of the logs below after the last group.
    parts: [u64; SEGMENTS_MAX],
    error: Option<Error>,
}

impl GroupEnds {
    fn check(&self) -> Result<()> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn acknowledge(&mut self, end: u64) {
        self.acknowledged = self.acknowledged.max(end);
        while self.groups.front().is_some_and(|group| group.end <= self.acknowledged) {
            self.groups.pop_front();
        }
    }
}

/// The part of a striped log that threads share.
#[derive(Debug)]
struct StripedPosition {
    id: LogId,
    positions: Vec<Arc<dyn LogPosition>>,
    ends: Mutex<GroupEnds>,
}

impl StripedPosition {
    fn failed(&self, error: Error) -> Error {
        self.ends.lock().error.get_or_insert(error).clone()
    }
}

impl LogPosition for StripedPosition {
    fn wait(&self, end: u64) -> Result<()> {
        let group = {
            let ends = self.ends.lock();
            if end <= ends.acknowledged {
                return Ok(());
            }
            ends.check()?;
            if end > ends.submitted {
                return Err(Error::invalid(format!(
                    "log {}: a wait for byte {end} of {}; submit the bytes first",
                    self.id, ends.submitted
                )));
            }
            let at = ends.groups.partition_point(|group| group.end < end);
            ends.groups[at]
        };
        for (position, end) in self.positions.iter().zip(group.parts) {
            position.wait(end).map_err(|error| self.failed(error))?;
        }
        self.ends.lock().acknowledge(group.end);
        Ok(())
    }

    fn sync(&self) -> Result<u64> {
        let (submitted, parts) = {
            let ends = self.ends.lock();
            ends.check()?;
            (ends.submitted, ends.parts)
        };
        for (position, end) in self.positions.iter().zip(parts) {
            if end > 0 {
                position.sync().map_err(|error| self.failed(error))?;
            }
        }
        self.ends.lock().acknowledge(submitted);
        Ok(submitted)
    }
}

/// The writer of a striped log.
#[derive(Debug)]
pub(super) struct StripedWriter {
    whole: Arc<StripedKeeper>,
    parts: Vec<Box<dyn LogWriter>>,
    position: Arc<StripedPosition>,
    /// Number of the next group.
    group: u16,
    len: u64,
    finished: Option<Layout>,
}

impl StripedWriter {
    pub(super) fn new(
        id: LogId,
        whole: Arc<StripedKeeper>,
        parts: Vec<Box<dyn LogWriter>>,
    ) -> Self {
        let positions = parts.iter().map(|part| part.position()).collect();
        let position = Arc::new(StripedPosition { id, positions, ends: Mutex::default() });
        Self { whole, parts, position, group: 0, len: 0, finished: None }
    }

    /// Submits the segments of a group, and then its header with the first one.
    fn submit_group(&mut self, parts: &[&[u8]], len: usize) -> Result<()> {
        let ranges = plan(len);
        let header_at = self.parts[0].len_bytes();
        let header_bytes = SegmentMap::header_bytes(ranges.len()) as u64;
        let mut segments = Vec::with_capacity(ranges.len());
        let slices: Vec<Vec<&[u8]>> =
            ranges.into_iter().map(|range| slice_parts(parts, range)).collect();
        for (part, slices) in slices.iter().enumerate() {
            let offset = match part {
                0 => header_at + header_bytes,
                _ => self.parts[part].submit(slices)?,
            };
            segments.push(place(slices, offset));
        }
        let header = SegmentMap { group: self.group, segments }.encode(header_at);
        let mut first: Vec<&[u8]> = vec![&header];
        first.extend(&slices[0]);
        self.parts[0].submit(&first)?;
        self.group = self.group.wrapping_add(1);
        Ok(())
    }
}

impl LogWriter for StripedWriter {
    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        self.position.ends.lock().check()?;
        if self.finished.is_some() {
            let id = self.position.id;
            return Err(Error::closed(format!("log {id} is finished; begin a new log")));
        }
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let offset = self.len;
        if len == 0 {
            return Ok(offset);
        }
        self.submit_group(parts, len).map_err(|error| self.position.failed(error))?;
        self.len += len as u64;
        let ends = std::array::from_fn(|part| self.parts[part].len_bytes());
        let mut state = self.position.ends.lock();
        (state.submitted, state.parts) = (self.len, ends);
        state.groups.push_back(GroupEnd { end: self.len, parts: ends });
        Ok(offset)
    }

    fn len_bytes(&self) -> u64 {
        self.len
    }

    fn position(&self) -> Arc<dyn LogPosition> {
        Arc::clone(&self.position) as Arc<dyn LogPosition>
    }

    fn finish(&mut self) -> Result<Layout> {
        if let Some(layout) = &self.finished {
            return Ok(layout.clone());
        }
        self.position.ends.lock().check()?;
        for (part, writer) in self.parts.iter_mut().enumerate() {
            let layout = writer.finish().map_err(|error| self.position.failed(error))?;
            self.whole.parts.lock().ended(part, layout);
        }
        self.position.ends.lock().acknowledge(self.len);
        let layout = self.whole.layout(Some(self.len));
        self.finished = Some(layout.clone());
        Ok(layout)
    }
}
