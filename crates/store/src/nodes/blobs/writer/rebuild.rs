//! The earlier part of a chunk for a node that replaces another one.
//!
//! The writer has only the retained steps. So it copies the bytes before them from a replica, or
//! computes them from four other chunks, and sends them to the new node. It ignores sources whose
//! bytes do not have their checksums.
//!
//! Thread-safety: a part of a sender's task.
//! Failure: if the sources do not answer or are damaged, the blob ends. If the new node fails, it
//! is replaced.
//! Cost: for each MiB of the chunk one read (four with RS(4,2)) and one write.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Error;

use super::super::super::layout::{BlobLayout, Scheme};
use super::super::super::wire::ChunkId;
use super::super::chunk_nodes::ChunkPut;
use super::super::core::blob_name;
use super::super::fetch::{ChunkSource, DegradedFetch, read_source};
use super::super::stats::BlobEvent;
use super::BlobWrite;
use super::progress::SlotNode;
use super::sender::SenderEnd;

/// Bytes that are copied at a time.
const REBUILD_BYTES: u64 = 1 << 20;
/// Number of calls for one range before the new node counts as failed.
const CALLS_MAX: u32 = 3;
/// Pause before a call for the same range is repeated.
const PAUSE: Duration = Duration::from_millis(20);

/// Sends the node of `sender` everything before the retained steps.
pub(super) async fn rebuild(write: &Arc<BlobWrite>, slot_node: &SlotNode) -> Result<(), SenderEnd> {
    let Some(scheme) = write.state.lock().progress.as_ref().map(|progress| progress.scheme())
    else {
        return Err(SenderEnd::Over);
    };
    let layout = BlobLayout { scheme, len_bytes: slot_node.rebuild_bytes };
    let chunk = ChunkId { blob: write.id, index: layout.checksum_index(slot_node.slot) };
    let end = layout.chunk_len(slot_node.slot);
    let mut at = 0;
    loop {
        let range = at..(at + REBUILD_BYTES).min(end);
        let bytes = read_range(write, slot_node, &layout, &range).await?;
        let crcs = chunk.checksums().piece_crcs(range.start, &bytes);
        let put = ChunkPut {
            chunk,
            stamp: write.stamp,
            class: write.context.class,
            purpose: write.purpose(),
            offset: range.start,
            bytes: &bytes,
            crcs: &crcs,
        };
        send(write, slot_node, put).await?;
        write.core.counters.add(BlobEvent::RebuiltBytes, range.end - range.start);
        if range.end == end {
            return Ok(());
        }
        at = range.end;
    }
}

/// Sends bytes to the new node, and sends them again if the failure may pass.
async fn send(
    write: &Arc<BlobWrite>,
    slot_node: &SlotNode,
    put: ChunkPut<'_>,
) -> Result<(), SenderEnd> {
    let mut calls = 0;
    loop {
        let sent = write.core.nodes.put(slot_node.node, put, write.terms()).await;
        let Err(failure) = sent else { return Ok(()) };
        calls += 1;
        if !failure.may_pass() || calls == CALLS_MAX {
            return Err(SenderEnd::of(failure));
        }
        write.core.runtime.sleep(PAUSE).await;
    }
}

/// The bytes of a range of the node's chunk, from the other nodes.
async fn read_range(
    write: &Arc<BlobWrite>,
    slot_node: &SlotNode,
    layout: &BlobLayout,
    range: &Range<u64>,
) -> Result<Vec<u8>, SenderEnd> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let sources: Vec<ChunkSource> = {
        let state = write.state.lock();
        let is_current = |p: &super::WriteProgress| p.is_current(slot_node);
        let Some(progress) = state.progress.as_ref().filter(|progress| is_current(progress)) else {
            return Err(SenderEnd::Over);
        };
        let source = |(index, node)| ChunkSource { node, chunk: ChunkId { blob: write.id, index } };
        progress.sources().into_iter().map(source).collect()
    };
    let ranges = std::slice::from_ref(range);
    let mut failures = Vec::new();
    match layout.scheme {
        Scheme::Replicas(_) => {
            for source in sources {
                match read_source(&write.core, source, ranges, write.terms()).await {
                    Ok(bytes) => return Ok(bytes),
                    Err(failure) => failures.push(format!("node {}: {failure}", source.node)),
                }
            }
        }
        Scheme::Rs42(_) => {
            let fetch =
                DegradedFetch { layout: *layout, lost: slot_node.slot, ranges, sources: &sources };
            match fetch.run(&write.core, write.terms()).await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => failures.push(failure.to_string()),
            }
        }
    }
    write.end(&Error::busy(format!(
        "{}: the first bytes of chunk {} cannot be read from other nodes for node {} ({}): write \
         it again",
        blob_name(write.id),
        slot_node.slot,
        slot_node.node,
        failures.join("; ")
    )));
    Err(SenderEnd::Over)
}
