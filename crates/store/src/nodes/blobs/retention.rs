//! The sets of volumes that keep blobs: retain, release, and the release of strays.
//!
//! A *retain* goes to every holder, also to one that the managers call down. A holder that missed
//! it would delete its chunk at a later release of another volume. The retain then asks for the
//! holders once more, because a repair may have added a holder meanwhile. Such a holder merges the
//! sets of its peers only later. A retain carries the epoch of its volume, so a late one changes
//! nothing after the removal of the volume.
//!
//! A *release* goes to all nodes that are up, because only they know which of them holds a chunk of
//! the blob. A node that is down or does not answer gets the release later, with another release of
//! this client ([`MissedReleases`]), or when strays are released.
//!
//! The removal of a volume needs the answers of all nodes that are not lost, because no later owner
//! would release the rest. Each of them gets the release of all blobs that any of them lists,
//! because it may be making a copy for a repair. The removal ends when no node lists a blob.
//!
//! The release of strays makes the nodes promise the epoch first, and lists their blobs then. So
//! the list of such a node has every blob that a writer of an older epoch has begun there. On a
//! node that does not answer, such a writer may still begin a blob. No namespace ever names this
//! blob, and a later call finds it.
//!
//! Thread-safety: any thread may call the functions.
//! Failure: a retain fails as `Busy` if a holder does not answer, unless the managers call it lost.
//! A removal fails in this way for any node. The other calls fail as `Busy` if no node answers. All
//! of them fail as `Fenced` if any node says so.
//! Cost: retain: three round trips. Release: one. Strays: a round trip for the promise, one per
//! 4,096 blobs of a node, and one per 4,096 strays. Removal: twice the same, and two more promises
//! and lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::join_all;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::placement::NodeReport;
use super::super::wire::Stamp;
use super::chunk_nodes::{CallTerms, NodeFailure};
use super::core::{BlobsCore, CallTime, blob_name};
use super::hint::decode_hint;
use super::lookup::look_up;
use super::reader::read_terms;
use super::stats::BlobEvent;
use super::writer::BlobWrite;
use crate::blob::BlobRef;
use crate::ids::{BlobId, VolumeId};

/// Largest number of blobs in a request.
const BLOBS_MAX: usize = 4096;
/// Number of blobs that are retained at the same time.
const RETAINS_MAX: usize = 32;
/// Number of rounds in which a retain follows changes of the holders of a blob.
const HOLDERS_ROUNDS_MAX: usize = 8;
/// Number of passes in which the removal of a volume follows repairs that make copies meanwhile.
const PASSES_MAX: usize = 8;
/// Number of calls to a node before it counts as not answering.
const CALLS_MAX: u32 = 3;
/// Pause before a call that may succeed later is repeated.
const PAUSE: Duration = Duration::from_millis(20);

/// Time after which a call counts as unanswered. A take-over waits for these calls, and a later
/// release repeats what a node has missed.
const DEADLINE: Duration = Duration::from_secs(2);
/// Largest number of missed releases of a volume for one node. The next release of strays finds the
/// others.
const MISSED_MAX: usize = 65_536;

/// Releases that nodes did not answer.
#[derive(Debug, Default)]
pub(super) struct MissedReleases(Mutex<BTreeMap<(StorageId, VolumeId), BTreeSet<BlobId>>>);

impl MissedReleases {
    /// The blobs of `volume` whose release `node` has missed.
    fn of(&self, node: StorageId, volume: VolumeId) -> BTreeSet<BlobId> {
        self.0.lock().get(&(node, volume)).cloned().unwrap_or_default()
    }

    /// Forgets blobs whose release the node has answered.
    fn forget(&self, node: StorageId, volume: VolumeId, blobs: &[BlobId]) {
        let mut missed = self.0.lock();
        let Some(of_node) = missed.get_mut(&(node, volume)) else { return };
        for blob in blobs {
            of_node.remove(blob);
        }
        if of_node.is_empty() {
            missed.remove(&(node, volume));
        }
    }

    /// Forgets all missed releases of a blob, because the volume retains it from now on.
    fn forget_blob(&self, volume: VolumeId, blob: BlobId) {
        self.0.lock().retain(|(_, releasing), blobs| {
            if *releasing == volume {
                blobs.remove(&blob);
            }
            !blobs.is_empty()
        });
    }

    /// Notes that `node` has missed the release of these blobs.
    fn add(&self, node: StorageId, volume: VolumeId, blobs: &[BlobId]) {
        if blobs.is_empty() {
            return;
        }
        let mut missed = self.0.lock();
        let of_node = missed.entry((node, volume)).or_default();
        let room = MISSED_MAX.saturating_sub(of_node.len());
        of_node.extend(blobs.iter().take(room));
    }
}

fn terms(core: &BlobsCore) -> CallTerms {
    let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    CallTerms { deadline: DEADLINE, ..read_terms(core, context) }
}

/// Adds the volume of the stamp to the set of a blob on every holder.
async fn retain(core: &Arc<BlobsCore>, blob: &BlobRef, stamp: Stamp) -> Result<()> {
    core.missed.forget_blob(stamp.volume, blob.id);
    let hint = decode_hint(blob.id, &blob.hint);
    let hinted = hint.iter().flat_map(|hint| &hint.holders);
    let mut known: Vec<StorageId> = hinted.map(|holder| holder.storage).collect();
    for _ in 0..HOLDERS_ROUNDS_MAX {
        let before = look_up(core, blob.id, &known, terms(core)).await.descriptor(blob.id)?;
        known = before.holders.iter().map(|holder| holder.storage).collect();
        let calls = known.iter().map(|node| {
            let retain = |node| core.nodes.retain(node, blob.id, stamp, terms(core));
            repeated(core, *node, retain)
        });
        let outcomes = join_all(calls).await;
        let after = look_up(core, blob.id, &known, terms(core)).await.descriptor(blob.id)?;
        let is_same = after.placement == before.placement;
        if is_same && have_retained(core, blob.id, &known, &outcomes).await? {
            return Ok(());
        }
    }
    Err(Error::busy(format!(
        "{}: its holders change or lack it: retain it again later",
        blob_name(blob.id)
    )))
}

/// Whether every holder that still has its chunk has retained the blob, and at least one holder
/// has. Errors: the failure of a holder that is not lost. A fence takes precedence over other
/// failures.
async fn have_retained(
    core: &Arc<BlobsCore>,
    blob: BlobId,
    holders: &[StorageId],
    outcomes: &[Result<(), NodeFailure>],
) -> Result<bool> {
    let mut failed: Vec<(StorageId, &NodeFailure)> = Vec::new();
    for (node, outcome) in holders.iter().zip(outcomes) {
        match outcome {
            // A repair gives the holder that lost its chunk another copy.
            Ok(()) | Err(NodeFailure::NotThere) => {}
            Err(failure) => failed.push((*node, failure)),
        }
    }
    if !failed.is_empty() {
        let lost = core.nodes.lost(holders).await;
        failed.retain(|(node, failure)| failure.is_fence() || !lost.contains(node));
    }
    let Some((node, failure)) = failed.iter().min_by_key(|(_, failure)| !failure.is_fence()) else {
        return Ok(outcomes.iter().any(|outcome| outcome.is_ok()));
    };
    let error = refused("retain", &blob_name(blob), *node, failure);
    if failure.is_fence() {
        return Err(error);
    }
    Err(error.context_at(
        "every holder of a shared blob must answer: start the node, or give it up if it never \
         returns (`archipelago cluster forget --storage`), and repeat the call",
    ))
}

/// Adds the volume of the stamp to the sets of blobs, a number of them at a time. Errors: those of
/// the module head.
pub(super) async fn retain_all(
    core: &Arc<BlobsCore>,
    blobs: &[BlobRef],
    stamp: Stamp,
) -> Result<()> {
    for part in blobs.chunks(RETAINS_MAX) {
        let retained = join_all(part.iter().map(|blob| retain(core, blob, stamp))).await;
        retained.into_iter().collect::<Result<()>>()?;
    }
    Ok(())
}

/// Takes a volume out of the sets of blobs on every node that is up.
pub(super) async fn release_all(core: &Arc<BlobsCore>, ids: &[BlobId], stamp: Stamp) -> Result<()> {
    for id in ids {
        let writer = core.writer(*id).filter(|writer| writer.stamp().volume == stamp.volume);
        if let Some(writer) = writer {
            give_up(*id, &writer).await;
        }
    }
    let what = match ids {
        [] => return Ok(()),
        [id] => blob_name(*id),
        several => format!("{} blobs of volume {}", several.len(), stamp.volume),
    };
    release_on_all(core, ids, stamp, &what).await?;
    core.counters.add(BlobEvent::Release, ids.len() as u64);
    Ok(())
}

/// Takes a volume out of the sets of all its blobs, and returns their number. Every node that is
/// not lost answers, or the call fails. On success none of these nodes has a blob of the volume.
pub(super) async fn release_volume(core: &Arc<BlobsCore>, stamp: Stamp) -> Result<u64> {
    let what = format!("the blobs of volume {}", stamp.volume);
    for (id, writer) in core.writers() {
        if writer.stamp().volume == stamp.volume {
            give_up(id, &writer).await;
        }
    }
    let mut released: BTreeSet<BlobId> = BTreeSet::new();
    // Whether the release was repeated after no node listed a blob any more. A repair that looked
    // at a holder before its release may seal its copy after the last list, and the repeated
    // release reaches that copy. Later repairs find the volume in no set.
    let mut is_repeated = false;
    for _ in 0..PASSES_MAX {
        let nodes = core.nodes.awaited().await;
        let nodes = nodes.map_err(|error| error.context_at(format!("cannot release {what}")))?;
        if nodes.is_empty() {
            let text =
                format!("cannot release {what}: no storage node is known; look at the managers");
            return Err(Error::busy(text));
        }
        let blobs = list_awaited(core, &nodes, stamp, &what).await?;
        if blobs.is_empty() && (is_repeated || released.is_empty()) {
            core.counters.add(BlobEvent::Release, released.len() as u64);
            return Ok(released.len() as u64);
        }
        is_repeated = blobs.is_empty();
        released.extend(blobs);
        let ids: Vec<BlobId> = released.iter().copied().collect();
        // A node that lists none of them may be making a copy, which its seal would keep.
        let calls = nodes.iter().map(|node| release_parts(core, *node, &ids, stamp));
        check_each("release", &what, &nodes, join_all(calls).await)?;
    }
    Err(Error::busy(format!(
        "cannot release {what}: repairs make copies of them meanwhile; repeat the call"
    )))
}

/// Makes all of these nodes promise the epoch, and lists the blobs that they have of the volume.
async fn list_awaited(
    core: &Arc<BlobsCore>,
    nodes: &[StorageId],
    stamp: Stamp,
    what: &str,
) -> Result<BTreeSet<BlobId>> {
    // No writer of an older epoch begins a blob after the promise.
    let promise = |node| core.nodes.promise(node, stamp, terms(core));
    let promised = join_all(nodes.iter().map(|node| repeated(core, *node, promise))).await;
    check_each("promise an epoch for", what, nodes, promised)?;
    let lists = join_all(nodes.iter().map(|node| list(core, *node, stamp.volume))).await;
    let lists = check_each("list", what, nodes, lists)?;
    Ok(lists.into_iter().flatten().collect())
}

/// Takes the volume out of the sets of blobs on one node.
async fn release_parts(
    core: &Arc<BlobsCore>,
    node: StorageId,
    blobs: &[BlobId],
    stamp: Stamp,
) -> Result<(), NodeFailure> {
    for part in blobs.chunks(BLOBS_MAX) {
        let release = |node| core.nodes.release(node, part, stamp, terms(core));
        repeated(core, node, release).await?;
    }
    Ok(())
}

/// The answers of all nodes. Errors: the first failure. A fence takes precedence over other
/// failures.
fn check_each<T>(
    doing: &str,
    what: &str,
    nodes: &[StorageId],
    outcomes: Vec<Result<T, NodeFailure>>,
) -> Result<Vec<T>> {
    let failed = nodes.iter().zip(&outcomes);
    let failed = failed.filter_map(|(node, outcome)| Some((*node, outcome.as_ref().err()?)));
    let first = failed.min_by_key(|(_, failure)| !failure.is_fence());
    if let Some((node, failure)) = first {
        return Err(refused(doing, what, node, failure).context_at(
            "all storage nodes must answer: start the node, or give it up if it never returns \
             (`archipelago cluster forget --storage`)",
        ));
    }
    Ok(outcomes.into_iter().flatten().collect())
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
    let reports = core.nodes.reports().await;
    let (up, down): (Vec<NodeReport>, Vec<NodeReport>) =
        reports.into_iter().partition(|node| node.is_up);
    // A node that returns with a released blob would let its holders make their chunks again.
    down.iter().for_each(|node| core.missed.add(node.id, stamp.volume, blobs));
    let nodes: Vec<StorageId> = up.iter().map(|node| node.id).collect();
    let calls = nodes.iter().map(|node| release_on(core, *node, blobs, stamp));
    let outcomes = join_all(calls).await;
    check_all("release", what, &nodes, &outcomes)
}

/// Releases blobs on one node, with those that it has missed.
async fn release_on(
    core: &Arc<BlobsCore>,
    node: StorageId,
    blobs: &[BlobId],
    stamp: Stamp,
) -> Result<(), NodeFailure> {
    let mut all = core.missed.of(node, stamp.volume);
    all.extend(blobs);
    let all: Vec<BlobId> = all.into_iter().collect();
    let mut released = 0;
    let outcome = loop {
        let part = &all[released..(released + BLOBS_MAX).min(all.len())];
        if part.is_empty() {
            break Ok(());
        }
        if core.is_unreachable(node) {
            break Err(NodeFailure::Unreachable("it did not answer lately".to_owned()));
        }
        if let Err(failure) =
            repeated(core, node, |node| core.nodes.release(node, part, stamp, terms(core))).await
        {
            break Err(failure);
        }
        core.missed.forget(node, stamp.volume, part);
        released += part.len();
    };
    if outcome.is_err() {
        core.missed.add(node, stamp.volume, &all[released..]);
    }
    outcome
}

/// Makes all nodes promise the epoch, and lists the blobs of the volume that were begun before.
pub(super) async fn list_blobs(core: &Arc<BlobsCore>, stamp: Stamp) -> Result<BTreeSet<BlobId>> {
    let what = strays_name(stamp);
    let nodes = nodes_reached(core).await;
    let promise = |node| core.nodes.promise(node, stamp, terms(core));
    let promised = join_all(nodes.iter().map(|node| repeated(core, *node, promise))).await;
    check_all("promise an epoch for", &what, &nodes, &promised)?;
    let lists = join_all(nodes.iter().map(|node| list(core, *node, stamp.volume))).await;
    check_all("list", &what, &nodes, &lists)?;
    let mut blobs: BTreeSet<BlobId> = lists.into_iter().flatten().flatten().collect();
    // A blob whose first step is not full yet is on no node.
    let own = core.writers().into_iter();
    let is_own = |writer: &BlobWrite| writer.stamp().volume == stamp.volume && writer.may_send();
    let own = own.filter(|(_, writer)| is_own(writer));
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

/// Calls a node. Repeats the call if the node is overloaded, or if the link turns out to be one to
/// an earlier life of the node.
async fn repeated<'a, T>(
    core: &Arc<BlobsCore>,
    node: StorageId,
    call: impl Fn(StorageId) -> super::chunk_nodes::Called<'a, T>,
) -> Result<T, NodeFailure> {
    let mut calls = 0;
    loop {
        let time = CallTime { begun_ns: core.runtime.now_ns(), deadline: DEADLINE };
        let outcome = call(node).await;
        calls += 1;
        let is_fast = !time.is_long(core.runtime.now_ns());
        match outcome {
            Err(NodeFailure::Busy(_)) if calls < CALLS_MAX => core.runtime.sleep(PAUSE).await,
            Err(NodeFailure::Unanswered(_)) if is_fast && calls < CALLS_MAX => {
                core.runtime.sleep(PAUSE).await;
            }
            Err(failure) => {
                core.note_failure(node, &failure, time);
                return Err(failure);
            }
            Ok(answer) => return Ok(answer),
        }
    }
}

/// The nodes that the managers call up.
async fn nodes_up(core: &Arc<BlobsCore>) -> Vec<StorageId> {
    let reports = core.nodes.reports().await;
    reports.into_iter().filter(|node| node.is_up).map(|node| node.id).collect()
}

/// The nodes that the managers call up, except for those that this client could not reach lately.
async fn nodes_reached(core: &Arc<BlobsCore>) -> Vec<StorageId> {
    let up = nodes_up(core).await;
    let reached: Vec<StorageId> =
        up.iter().copied().filter(|node| !core.is_unreachable(*node)).collect();
    if reached.is_empty() { up } else { reached }
}

/// The failure of a call to all nodes: a fence, a refusal, or that no node answered.
fn check_all<T>(
    doing: &str,
    what: &str,
    nodes: &[StorageId],
    outcomes: &[Result<T, NodeFailure>],
) -> Result<()> {
    let failed = nodes.iter().zip(outcomes);
    let failed: Vec<(StorageId, &NodeFailure)> =
        failed.filter_map(|(node, outcome)| Some((*node, outcome.as_ref().err()?))).collect();
    let fence = failed.iter().find(|(_, failure)| failure.is_fence());
    let refusal = failed.iter().find(|(_, failure)| !failure.is_silence());
    if let Some((node, failure)) = fence.or(refusal) {
        return Err(refused(doing, what, *node, failure));
    }
    match failed.first() {
        None if nodes.is_empty() => Err(Error::busy(format!(
            "cannot {doing} {what}: no storage node is up; look at the managers and the nodes"
        ))),
        Some((node, failure)) if failed.len() == nodes.len() => {
            Err(refused(doing, what, *node, failure))
        }
        None => Ok(()),
        Some((node, failure)) => {
            tracing::warn!(doing, what, %node, %failure, "no answer; a later call repeats this");
            Ok(())
        }
    }
}

fn refused(doing: &str, what: &str, node: StorageId, failure: &NodeFailure) -> Error {
    let kind = match failure {
        NodeFailure::Fenced(_) => ErrorKind::Fenced,
        _ => ErrorKind::Busy,
    };
    Error::new(kind, format!("cannot {doing} {what} on node {node}: {failure}"))
}
