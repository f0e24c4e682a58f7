//! A reader of a log, through the end that it had when it was opened.
//!
//! A read asks one replica of each extent for the bytes, in pieces. Neighbouring pieces are read
//! from different replicas in parallel, so that a recovery reads at the rate of several nodes. A
//! replica that fails, or lacks the bytes, is replaced by the next one.
//!
//! Invariant: the length of a reader does not change.
//!
//! Thread-safety: any thread may read.
//! Failure: `Busy` if no replica answers within the patience, `Corrupt` if all of them are damaged,
//! `NotFound` if the log was removed.
//! Cost: one round trip for every few pieces. The bytes are copied twice.

use std::ops::Range;
use std::sync::Arc;

use archipelago_base::runtime::{Runtime, join_all, wait_for};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{IoContext, RandomFile};

use super::super::StorageId;
use super::super::log::{ExtentRecord, LogLayout, ReplicaId};
use super::options::NodeLogOptions;
use super::requests::{LogFailure, LogRequests, READ_BYTES_MAX};
use crate::log::{LogRead, LogSetReader};

/// Number of pieces that one read has under way.
const PIECES_MAX: usize = 8;
/// Pause before all replicas are asked again.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// A reader of a log.
#[derive(Debug)]
pub(super) struct NodeLogReader {
    requests: LogRequests,
    options: Arc<NodeLogOptions>,
    layout: LogLayout,
    len: u64,
}

/// Bytes of one extent.
#[derive(Clone, Debug)]
struct Piece {
    extent: usize,
    range: Range<u64>,
    /// Index of the replica that is asked first.
    first: usize,
}

impl NodeLogReader {
    pub(super) fn new(
        requests: LogRequests,
        options: &Arc<NodeLogOptions>,
        layout: LogLayout,
        len: u64,
    ) -> Self {
        Self { requests, options: Arc::clone(options), layout, len }
    }

    /// The pieces of a range.
    fn pieces(&self, range: &Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (extent, record) in self.layout.extents.iter().enumerate() {
            let end = record.end.unwrap_or(u64::MAX).min(range.end);
            let mut start = record.start.max(range.start);
            while start < end {
                let next = end.min(start + READ_BYTES_MAX);
                pieces.push(Piece { extent, range: start..next, first: pieces.len() });
                start = next;
            }
        }
        pieces
    }

    /// Checks that the log has a range, and returns its pieces.
    fn plan(&self, offset: u64, len: usize) -> Result<Vec<Piece>> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.len);
        let log = self.requests.log;
        let end = end.ok_or_else(|| {
            let text = format!("a read of {len} bytes at {offset} is past the end at {}", self.len);
            Error::new(ErrorKind::Io, format!("log {log}: {text}"))
        })?;
        let pieces = self.pieces(&(offset..end));
        let covered: u64 = pieces.iter().map(|piece| piece.range.end - piece.range.start).sum();
        if covered < len as u64 {
            let text = format!("log {log}: its layout lacks bytes {offset} to {end}");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(pieces)
    }

    /// Reads several ranges, with a limited number of pieces under way.
    async fn read_ranges(&self, requests: &mut [(u64, &mut [u8])]) -> Result<()> {
        let mut pieces = Vec::new();
        for (at, (offset, buf)) in requests.iter().enumerate() {
            let planned = self.plan(*offset, buf.len())?;
            pieces.extend(planned.into_iter().map(|piece| (at, piece)));
        }
        for group in pieces.chunks(PIECES_MAX) {
            let reads = join_all(group.iter().map(|(_, piece)| self.read(piece))).await;
            for ((at, piece), read) in group.iter().zip(reads) {
                let (offset, buf) = &mut requests[*at];
                let start = (piece.range.start - *offset) as usize;
                let bytes = read?;
                buf[start..start + bytes.len()].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// Reads a piece from the replicas of its extent, until one of them has it.
    async fn read(&self, piece: &Piece) -> Result<Vec<u8>> {
        let record = &self.layout.extents[piece.extent];
        let runtime = self.requests.runtime();
        let until_ns = runtime.now_ns() + 2 * self.options.patience.as_nanos() as u64;
        loop {
            let mut failures = match self.read_from_any(&record.nodes, record, piece).await {
                Ok(bytes) => return Ok(bytes),
                Err(failures) => failures,
            };
            // Repairs make copies of sealed extents on nodes that the layout does not name.
            let others = self.other_nodes(record).await;
            match self.read_from_any(&others, record, piece).await {
                Ok(bytes) => return Ok(bytes),
                Err(more) => failures.extend(more),
            }
            let is_gone = |failure: &LogFailure| matches!(failure, LogFailure::NotThere(_));
            let may_pass = failures.iter().any(LogFailure::may_pass);
            if !may_pass || runtime.now_ns() >= until_ns {
                let all: Vec<String> = failures.iter().map(LogFailure::to_string).collect();
                let Range { start, end } = piece.range;
                let text = format!(
                    "log {}: no replica of extent {} gives its bytes {start} to {end}: {}",
                    self.requests.log,
                    record.number,
                    all.join("; ")
                );
                let kind = match failures.iter().all(is_gone) {
                    true => ErrorKind::NotFound,
                    false if may_pass => ErrorKind::Busy,
                    false => ErrorKind::Corrupt,
                };
                return Err(Error::new(kind, text));
            }
            runtime.sleep(RETRY_PAUSE).await;
        }
    }

    /// Nodes that answer and that the layout does not name for an extent.
    async fn other_nodes(&self, record: &ExtentRecord) -> Vec<StorageId> {
        let reports = self.requests.nodes().reports().await.unwrap_or_default();
        let others = reports.into_iter().filter(|it| it.is_up && !record.nodes.contains(&it.id));
        others.map(|report| report.id).collect()
    }

    /// Reads a piece from the first of `nodes` that has it. An extent of one number has the same
    /// bytes at the same offsets on all nodes, so each may answer.
    async fn read_from_any(
        &self,
        nodes: &[StorageId],
        record: &ExtentRecord,
        piece: &Piece,
    ) -> Result<Vec<u8>, Vec<LogFailure>> {
        let mut failures = Vec::new();
        let len = (piece.range.end - piece.range.start) as usize;
        for turn in 0..nodes.len() {
            let node = nodes[(piece.first + turn) % nodes.len()];
            let replica = ReplicaId { extent: record.number, node };
            let mut bytes = Vec::new();
            let failure = loop {
                let start = piece.range.start + bytes.len() as u64;
                match self.requests.read(replica, start..piece.range.end).await {
                    Ok(more) if more.is_empty() => break LogFailure::OtherLength(start),
                    Ok(more) => bytes.extend(more),
                    Err(failure) => break failure,
                }
                if bytes.len() == len {
                    return Ok(bytes);
                }
            };
            failures.push(failure);
        }
        Err(failures)
    }
}

/// Several logs that are read in parallel.
#[derive(Debug)]
pub(super) struct NodeLogSet {
    runtime: Arc<dyn Runtime>,
    logs: Vec<NodeLogReader>,
}

impl NodeLogSet {
    pub(super) fn new(runtime: Arc<dyn Runtime>, logs: Vec<NodeLogReader>) -> Self {
        Self { runtime, logs }
    }
}

impl LogSetReader for NodeLogSet {
    fn len(&self, log: usize) -> u64 {
        self.logs[log].len
    }

    fn read_all(&self, reads: &mut [LogRead<'_>], _context: IoContext) -> Result<()> {
        let mut by_log: Vec<Vec<(u64, &mut [u8])>> = Vec::new();
        by_log.resize_with(self.logs.len(), Vec::new);
        for LogRead { log, offset, buf } in reads {
            by_log[*log].push((*offset, &mut **buf));
        }
        let reads = self.logs.iter().zip(&mut by_log).map(|(log, reads)| log.read_ranges(reads));
        wait_for(&*self.runtime, join_all(reads)).into_iter().collect()
    }
}

impl RandomFile for NodeLogReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        self.read_many(&mut [(offset, buf)], context)
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], _context: IoContext) -> Result<()> {
        wait_for(&**self.requests.runtime(), self.read_ranges(requests))
    }

    fn len(&self) -> u64 {
        self.len
    }
}
