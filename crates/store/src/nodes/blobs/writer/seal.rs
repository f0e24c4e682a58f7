//! The seal of a blob: descriptors with the final holders, durable on every one of them.
//!
//! 1. Wait until every node has confirmed all bytes.
//! 2. Ask all nodes in parallel to make their chunks durable with a descriptor that names all
//!    holders.
//! 3. If a node fails, replace it, and begin again with the new holders under a larger placement
//!    epoch. A node that was sealed before takes the new descriptor.
//!
//! Thread-safety: the writer's thread runs it.
//! Failure: a node whose seal takes long is replaced when most others have answered. A coded blob
//! waits for it if no other node can take its place. The blob ends after several rounds, or when no
//! node can replace a failed one.
//! Cost: one round trip, which includes a sync on every node.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, Result};

use super::super::super::client::{OperationKind, StoreEvent, StoreOperation};
use super::super::super::layout::{BlobLayout, Scheme};
use super::super::super::placement::PlacementDebt;
use super::super::super::wire::{ChunkDescriptor, ChunkId, Holder, PlacementEpoch};
use super::super::chunk_nodes::NodeFailure;
use super::super::core::{CallTime, blob_name};
use super::super::hint::encode_hint;
use super::super::in_flight::{First, InFlight, first};
use super::super::stats::BlobEvent;
use super::progress::SlotNode;
use super::sender::SenderEnd;
use super::{BlobWrite, ReplaceReason, fatal};
use crate::blob::BlobRef;

/// Number of rounds after which the blob ends.
const ROUNDS_MAX: u64 = 8;
/// Number of calls of one round to a node whose refusals may pass.
const CALLS_MAX: u32 = 4;
/// Pause before a call to the same node is repeated.
const PAUSE: Duration = Duration::from_millis(20);

/// Seals the blob. All its bytes were handed over.
pub(super) async fn seal(write: &Arc<BlobWrite>) -> Result<BlobRef> {
    let begun_ns = write.core.runtime.now_ns();
    let running = write.run();
    let descriptor = rounds(write).await?;
    write.change(|state| state.is_sealed = true);
    drop(running);
    count(write, &descriptor, begun_ns);
    let hint = encode_hint(write.id, &descriptor.hint());
    Ok(BlobRef { id: write.id, len_bytes: descriptor.blob_bytes, hint })
}

async fn rounds(write: &Arc<BlobWrite>) -> Result<ChunkDescriptor> {
    for counter in PlacementEpoch::WRITTEN.counter..PlacementEpoch::WRITTEN.counter + ROUNDS_MAX {
        write.flushed().await?;
        let Some((slot_nodes, mut descriptor)) = descriptor_of(write) else {
            return Err(write.has_no_nodes());
        };
        descriptor.placement.counter = counter;
        let slot_nodes = sealed_nodes(write, slot_nodes);
        let failed = seal_all(write, &slot_nodes, &descriptor).await;
        BlobWrite::check(&write.state.lock())?;
        if failed.is_empty() {
            return Ok(descriptor);
        }
        for (slot_node, reason, failure) in failed {
            write.replace(slot_node, reason, failure).await;
        }
    }
    Err(Error::busy(format!(
        "{}: its nodes failed in {ROUNDS_MAX} rounds of the seal: look at the nodes, and write it \
         again",
        blob_name(write.id)
    )))
}

/// The nodes whose chunks are sealed before the seal returns.
fn sealed_nodes(write: &BlobWrite, mut slot_nodes: Vec<SlotNode>) -> Vec<SlotNode> {
    if write.core.options.sabotage.early_seal() {
        slot_nodes.truncate(1);
    }
    slot_nodes
}

/// The nodes of the blob, and the descriptor of its first chunk.
fn descriptor_of(write: &BlobWrite) -> Option<(Vec<SlotNode>, ChunkDescriptor)> {
    let state = write.state.lock();
    let progress = state.progress.as_ref()?;
    let (scheme, blob_bytes) = (progress.scheme(), progress.len_bytes());
    let layout = BlobLayout { scheme, len_bytes: blob_bytes };
    let slot_nodes = progress.slot_nodes();
    let holder = |slot_node: &SlotNode| Holder {
        storage: slot_node.node,
        chunk: layout.checksum_index(slot_node.slot),
    };
    let descriptor = ChunkDescriptor {
        chunk: ChunkId { blob: write.id, index: 0 },
        written: write.stamp,
        class: write.context.class,
        scheme,
        is_coding_due: state.is_coding_due,
        blob_bytes,
        placement: PlacementEpoch::WRITTEN,
        holders: slot_nodes.iter().map(holder).collect(),
        retaining: vec![write.stamp.volume],
    };
    Some((slot_nodes, descriptor))
}

/// Seals the chunks of these nodes, and returns those that failed. Once most of them have answered,
/// the others get the same time again. Nodes that exceed it count as slow, which is a failure if
/// the blob can do without them.
async fn seal_all(
    write: &Arc<BlobWrite>,
    slot_nodes: &[SlotNode],
    descriptor: &ChunkDescriptor,
) -> Vec<(SlotNode, ReplaceReason, NodeFailure)> {
    let runtime = &write.core.runtime;
    let begun_ns = runtime.now_ns();
    let mut calls = InFlight::new();
    for slot_node in slot_nodes {
        calls.push(*slot_node, Box::pin(seal_chunk(write, *slot_node, descriptor)));
    }
    let mut failed = Vec::new();
    let mut patience = None;
    let mut waits_for_all = false;
    while !calls.is_empty() {
        let answered = match patience {
            None => calls.next().await,
            Some(patience) => match first(calls.next(), runtime.sleep(patience)).await {
                First::One(answered) => answered,
                First::Other(()) => None,
            },
        };
        let Some((slot_node, outcome)) = answered else {
            let late: Vec<SlotNode> = calls.tags_mut().map(|slot_node| *slot_node).collect();
            let slow = slow_nodes(write, late).await;
            if slow.is_empty() {
                (patience, waits_for_all) = (None, true);
                continue;
            }
            failed.extend(slow);
            return failed;
        };
        if let Err(SenderEnd::Failed(reason, failure)) = outcome {
            failed.push((slot_node, reason, failure));
        }
        let sealed = slot_nodes.len() - calls.len() - failed.len();
        if patience.is_none() && !waits_for_all && sealed * 2 > slot_nodes.len() {
            let took = Duration::from_nanos(runtime.now_ns().saturating_sub(begun_ns));
            patience = Some(took.max(write.core.options.timing.slow_min));
        }
    }
    failed
}

/// The nodes with late seals that are given up: all that a replicated blob can do without. A coded
/// blob gives up one in each round, because the next one may need the same replacement.
async fn slow_nodes(
    write: &BlobWrite,
    late: Vec<SlotNode>,
) -> Vec<(SlotNode, ReplaceReason, NodeFailure)> {
    let mut slow = Vec::new();
    for slot_node in late {
        let may_give_up_more = slow.is_empty() || !write.is_coded();
        if may_give_up_more && write.can_do_without(&slot_node).await {
            let text = "its seal takes more than twice the time of the others".to_owned();
            slow.push((slot_node, ReplaceReason::Slow, NodeFailure::Unanswered(text)));
        }
    }
    slow
}

/// Seals the chunk of one node.
async fn seal_chunk(
    write: &BlobWrite,
    slot_node: SlotNode,
    descriptor: &ChunkDescriptor,
) -> Result<(), SenderEnd> {
    let index = descriptor.layout().checksum_index(slot_node.slot);
    let chunk = ChunkId { blob: write.id, index };
    let own = ChunkDescriptor { chunk, ..descriptor.clone() };
    let mut calls = 0;
    loop {
        let terms = write.terms();
        let call = CallTime { begun_ns: write.core.runtime.now_ns(), deadline: terms.deadline };
        let sealed = write.core.nodes.seal(slot_node.node, write.stamp, &own, terms).await;
        let Err(failure) = sealed else { return Ok(()) };
        if let Some(error) = fatal(&blob_name(write.id), slot_node.node, &failure) {
            write.end(&error);
            return Err(SenderEnd::Over);
        }
        write.core.note_failure(slot_node.node, &failure, call);
        calls += 1;
        let is_again = failure.may_pass() && !matches!(failure, NodeFailure::OutOfOrder);
        if !is_again || calls == CALLS_MAX {
            return Err(SenderEnd::of(failure));
        }
        write.core.runtime.sleep(PAUSE).await;
    }
}

fn count(write: &BlobWrite, descriptor: &ChunkDescriptor, begun_ns: u64) {
    let counters = &write.core.counters;
    let (kind, redundancy) = (OperationKind::Seal, descriptor.scheme.redundancy());
    let operation = StoreOperation { kind, class: write.context.class, redundancy };
    write.core.operation_took(operation, begun_ns);
    counters.count(match descriptor.scheme {
        Scheme::Replicas(_) => BlobEvent::SealedReplicated,
        Scheme::Rs42(_) => BlobEvent::SealedCoded,
    });
    let missing = usize::from(descriptor.scheme.chunks()) - descriptor.holders.len();
    let (stats, class) = (write.core.nodes.stats(), write.context.class);
    (0..missing).for_each(|_| stats.count(StoreEvent::CopyDebt, class));
    if write.state.lock().debt == PlacementDebt::Coding {
        stats.count(StoreEvent::CodingDebt, class);
    }
}
