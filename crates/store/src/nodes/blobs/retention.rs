//! The sets of volumes that keep blobs: retain, release, and the release of strays.
//!
//! A *retain* asks every holder, and looks at the holders once more afterwards: a repair may have
//! added one meanwhile, which merges the sets of its peers only later. A *release* goes to all
//! nodes, because only they know which of them holds a chunk of the blob. Nodes that are down hear
//! of it when they merge the sets of their peers, or when strays are released.
//!
//! The release of strays makes all nodes promise the epoch first, and lists their blobs then. So
//! no writer of an older epoch begins a blob that the lists do not have.
//!
//! Thread-safety: any thread may call the functions.
//! Failure: a node that the managers call up and that does not answer makes the call fail as
//! `Busy`. The call may be repeated.
//! Cost: retain: three round trips. Release: one. Strays: a round trip for the promise, one per
//! 4,096 blobs of a node, and one per 4,096 strays.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_base::runtime::join_all;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};

use super::super::StorageId;
use super::super::wire::{ChunkDescriptor, Stamp};
use super::chunk_nodes::{CallTerms, NodeFailure};
use super::core::{BlobsCore, blob_name};
use super::hint::decode_hint;
use super::lookup::{BlobLookup, look_up};
use super::reader::read_terms;
use super::stats::BlobEvent;
use super::writer::BlobWrite;
use crate::blob::BlobRef;
use crate::ids::{BlobId, VolumeId};

/// Largest number of blobs in a request.
const BLOBS_MAX: usize = 4096;
/// Number of times that a retain follows the holders of a blob.
const HOLDERS_ROUNDS_MAX: usize = 8;
/// Number of calls to a node before it counts as not answering.
const CALLS_MAX: u32 = 3;
/// Pause before such a call is repeated.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

fn terms(core: &BlobsCore) -> CallTerms {
    read_terms(core, IoContext::new(FileClass::Other, IoPurpose::Maintenance))
}

/// Adds a volume to the set of a blob on every holder that is up.
pub(super) async fn retain(core: &Arc<BlobsCore>, blob: &BlobRef, volume: VolumeId) -> Result<()> {
    let hint = decode_hint(blob.id, &blob.hint);
    let hinted = hint.iter().flat_map(|hint| &hint.holders);
    let mut known: Vec<StorageId> = hinted.map(|holder| holder.storage).collect();
    for _ in 0..HOLDERS_ROUNDS_MAX {
        let before = describe(core, blob.id, &known).await?;
        known = before.holders.iter().map(|holder| holder.storage).collect();
        let up = nodes_up(core).await;
        let holders: Vec<StorageId> =
            known.iter().copied().filter(|node| up.contains(node)).collect();
        let calls = holders.iter().map(|node| {
            let retain = |node| core.nodes.retain(node, blob.id, volume, terms(core));
            repeated(core, *node, retain)
        });
        let outcomes = join_all(calls).await;
        let after = describe(core, blob.id, &known).await?;
        if after.placement != before.placement {
            continue;
        }
        let mut kept = 0;
        for (node, outcome) in holders.iter().zip(outcomes) {
            match outcome {
                Ok(()) => kept += 1,
                // The holder lost its chunk, and a repair makes another copy.
                Err(NodeFailure::NotThere) => {}
                Err(failure) => {
                    return Err(refused("retain", &blob_name(blob.id), *node, &failure));
                }
            }
        }
        if kept > 0 {
            return Ok(());
        }
    }
    Err(Error::busy(format!(
        "{}: its holders change or lack it: retain it again later",
        blob_name(blob.id)
    )))
}

async fn describe(
    core: &Arc<BlobsCore>,
    blob: BlobId,
    known: &[StorageId],
) -> Result<ChunkDescriptor> {
    let name = blob_name(blob);
    match look_up(core, blob, known, terms(core)).await {
        BlobLookup::Found(descriptor) => Ok(*descriptor),
        BlobLookup::Nowhere => {
            Err(Error::not_found(format!("{name} was given up, or was never sealed")))
        }
        BlobLookup::Unknown(failures) => Err(Error::busy(format!(
            "{name} is on no node that answers ({failures}): look at the nodes that do not"
        ))),
    }
}

/// Takes a volume out of the set of a blob on every node that is up.
pub(super) async fn release(core: &Arc<BlobsCore>, id: BlobId, stamp: Stamp) -> Result<()> {
    if let Some(writer) = core.writer(id).filter(|writer| writer.stamp().volume == stamp.volume) {
        give_up(id, &writer).await;
    }
    release_on_all(core, &[id], stamp, &blob_name(id)).await?;
    core.counters.count(BlobEvent::Release);
    Ok(())
}

/// Ends the writer of a blob of this process, so that it sends nothing after the release.
async fn give_up(id: BlobId, writer: &Arc<BlobWrite>) {
    writer.end(&Error::not_found(format!("{} was given up", blob_name(id))));
    writer.drained().await;
}

async fn release_on_all(
    core: &Arc<BlobsCore>,
    blobs: &[BlobId],
    stamp: Stamp,
    what: &str,
) -> Result<()> {
    let nodes: Vec<StorageId> = nodes_up(core).await.into_iter().collect();
    for blobs in blobs.chunks(BLOBS_MAX) {
        let release = |node| core.nodes.release(node, blobs, stamp, terms(core));
        let calls = nodes.iter().map(|node| repeated(core, *node, release));
        let outcomes = join_all(calls).await;
        check_all("release", what, &nodes, &outcomes)?;
    }
    Ok(())
}

/// Makes all nodes promise the epoch, and lists the blobs of the volume that were begun before.
pub(super) async fn list_blobs(core: &Arc<BlobsCore>, stamp: Stamp) -> Result<BTreeSet<BlobId>> {
    let what = strays_name(stamp);
    let nodes: Vec<StorageId> = nodes_up(core).await.into_iter().collect();
    let promise = |node| core.nodes.promise(node, stamp, terms(core));
    let promised = join_all(nodes.iter().map(|node| repeated(core, *node, promise))).await;
    check_all("promise an epoch for", &what, &nodes, &promised)?;
    let lists = join_all(nodes.iter().map(|node| list(core, *node, stamp.volume))).await;
    check_all("list", &what, &nodes, &lists)?;
    let mut blobs: BTreeSet<BlobId> = lists.into_iter().flatten().flatten().collect();
    // A blob whose first step is not full yet is on no node.
    let own = core.writers().into_iter();
    let own = own.filter(|(_, writer)| writer.stamp().volume == stamp.volume);
    blobs.extend(own.map(|(id, _)| id));
    Ok(blobs)
}

/// Takes the volume out of the sets of these blobs.
pub(super) async fn release_strays(
    core: &Arc<BlobsCore>,
    strays: &[BlobId],
    stamp: Stamp,
) -> Result<()> {
    for id in strays {
        if let Some(writer) = core.writer(*id) {
            give_up(*id, &writer).await;
        }
    }
    release_on_all(core, strays, stamp, &strays_name(stamp)).await?;
    core.counters.add(BlobEvent::StrayReleased, strays.len() as u64);
    Ok(())
}

fn strays_name(stamp: Stamp) -> String {
    format!("strays of volume {}", stamp.volume)
}

/// The blobs of a volume on a node.
async fn list(
    core: &Arc<BlobsCore>,
    node: StorageId,
    volume: VolumeId,
) -> Result<Vec<BlobId>, NodeFailure> {
    let mut blobs: Vec<BlobId> = Vec::new();
    loop {
        let after = blobs.last().copied();
        let list = |node| core.nodes.list(node, volume, after, terms(core));
        let part = repeated(core, node, list).await?;
        let is_empty = part.blobs.is_empty();
        blobs.extend(part.blobs.into_iter().map(|entry| entry.blob));
        if !part.has_more || is_empty {
            return Ok(blobs);
        }
    }
}

/// Calls a node, and again if it does not answer.
async fn repeated<'a, T>(
    core: &Arc<BlobsCore>,
    node: StorageId,
    call: impl Fn(StorageId) -> super::chunk_nodes::Called<'a, T>,
) -> Result<T, NodeFailure> {
    let mut calls = 0;
    loop {
        let outcome = call(node).await;
        calls += 1;
        match outcome {
            Err(failure) if failure.may_pass() && calls < CALLS_MAX => {
                core.runtime.sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// The nodes that the managers call up.
async fn nodes_up(core: &Arc<BlobsCore>) -> BTreeSet<StorageId> {
    let reports = core.nodes.reports().await;
    reports.into_iter().filter(|node| node.is_up).map(|node| node.id).collect()
}

/// The first failure, a fence before all others.
fn check_all<T>(
    doing: &str,
    what: &str,
    nodes: &[StorageId],
    outcomes: &[Result<T, NodeFailure>],
) -> Result<()> {
    let failed = nodes.iter().zip(outcomes).filter_map(|(node, outcome)| {
        let failure = outcome.as_ref().err()?;
        Some((!matches!(failure, NodeFailure::Fenced(_)), refused(doing, what, *node, failure)))
    });
    match failed.min_by_key(|(is_other, _)| *is_other) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

fn refused(doing: &str, what: &str, node: StorageId, failure: &NodeFailure) -> Error {
    let kind = match failure {
        NodeFailure::Fenced(_) => ErrorKind::Fenced,
        _ => ErrorKind::Busy,
    };
    Error::new(kind, format!("cannot {doing} {what} on node {node}: {failure}"))
}
