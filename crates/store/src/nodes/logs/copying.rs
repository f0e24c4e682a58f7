//! Copies of extents from node to node, for recoveries and repairs.
//!
//! Invariant: a copy that succeeded is sealed and durable on the target.
//!
//! Failure: [`CopyFailed`] names the node that failed. A copy may be repeated from its start.
//! Cost: two round trips for each piece, one for the seal, and memory for one piece.

use std::fmt;
use std::ops::Range;

use super::super::StorageId;
use super::super::log::ReplicaId;
use super::requests::{LogFailure, LogRequests, READ_BYTES_MAX, WritePlace};
use super::send_ring::LogBytes;

/// A copy to a replica of an extent.
#[derive(Clone, Debug)]
pub(super) struct ExtentCopy {
    /// Offset in the log at which the extent begins.
    pub(super) extent_start: u64,
    /// Bytes to copy, through the end of the extent. The target has the bytes before them.
    pub(super) range: Range<u64>,
    /// Replicas that have the bytes; the first one that answers supplies them.
    pub(super) sources: Vec<ReplicaId>,
    /// Replica that gets them.
    pub(super) to: ReplicaId,
}

/// Failure of a copy.
#[derive(Clone, Debug)]
pub(super) struct CopyFailed {
    /// Node that failed: the last source, or the target.
    pub(super) node: StorageId,
    pub(super) failure: LogFailure,
}

impl fmt::Display for CopyFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: {}", self.node, self.failure)
    }
}

/// Copies bytes to a replica, and seals it.
pub(super) async fn copy_extent(
    requests: &LogRequests,
    copy: &ExtentCopy,
) -> Result<(), CopyFailed> {
    let ExtentCopy { extent_start, range, sources, to } = copy;
    let failed = |failure| CopyFailed { node: to.node, failure };
    let mut start = range.start;
    while start < range.end {
        let bytes = read_any(requests, sources, start..range.end).await?;
        let len = bytes.len() as u64;
        let place = WritePlace { to: *to, extent_start: *extent_start, start };
        let put = requests.put(place, LogBytes::of(bytes)).await;
        let progress = put.map_err(failed)?;
        if progress.written < start + len {
            return Err(failed(LogFailure::OtherLength(progress.written)));
        }
        start += len;
    }
    let sealed = requests.seal(*to, *extent_start, range.end).await.map_err(failed)?;
    if sealed.synced < range.end {
        return Err(failed(LogFailure::OtherLength(sealed.synced)));
    }
    Ok(())
}

/// The first bytes of a range, from the first source that has any.
async fn read_any(
    requests: &LogRequests,
    sources: &[ReplicaId],
    range: Range<u64>,
) -> Result<Vec<u8>, CopyFailed> {
    let end = range.end.min(range.start + READ_BYTES_MAX);
    let mut last = CopyFailed {
        node: StorageId::default(),
        failure: LogFailure::Passing("no node has the bytes".to_owned()),
    };
    for source in sources {
        let failure = match requests.read(*source, range.start..end).await {
            Ok(bytes) if !bytes.is_empty() => return Ok(bytes),
            Ok(_) => LogFailure::OtherLength(range.start),
            Err(failure) => failure,
        };
        last = CopyFailed { node: source.node, failure };
    }
    Err(last)
}
