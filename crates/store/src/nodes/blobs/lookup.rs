//! The search for the holders of a blob: any descriptor of it names all of them.
//!
//! Thread-safety: functions of one task.
//! Failure: a node that does not answer leaves open whether the blob exists, unless another node
//! has a descriptor.
//! Cost: a round trip to the known holders, and one to all nodes if these know nothing.

use std::sync::Arc;

use archipelago_base::runtime::join_all;
use archipelago_base::{Error, Result};

use super::super::StorageId;
use super::super::wire::ChunkDescriptor;
use super::chunk_nodes::CallTerms;
use super::core::{BlobsCore, blob_name};
use super::fetch::FetchFailures;
use crate::ids::BlobId;

/// Outcome of the search for the holders of a blob.
#[derive(Debug)]
pub(super) enum BlobLookup {
    /// The descriptor with the largest placement epoch.
    Found(Box<ChunkDescriptor>),
    /// Every node answered, and none has a sealed chunk of the blob.
    Nowhere,
    /// No node that answered has a chunk, and the named nodes did not answer.
    Unknown(FetchFailures),
}

impl BlobLookup {
    /// The descriptor of `blob`. Errors: `NotFound`; `Busy` if it may be on a node that did not
    /// answer.
    pub(super) fn descriptor(self, blob: BlobId) -> Result<ChunkDescriptor> {
        let name = blob_name(blob);
        match self {
            Self::Found(descriptor) => Ok(*descriptor),
            Self::Nowhere => {
                Err(Error::not_found(format!("{name} was given up, or was never sealed")))
            }
            Self::Unknown(failures) => Err(Error::busy(format!(
                "{name} is on no node that answers ({failures}): check the other nodes"
            ))),
        }
    }
}

/// Asks the nodes in `known` first, and then all others.
pub(super) async fn look_up(
    core: &Arc<BlobsCore>,
    blob: BlobId,
    known: &[StorageId],
    terms: CallTerms,
) -> BlobLookup {
    let first = ask(core, blob, known, terms).await;
    if let BlobLookup::Found(_) = first {
        return first;
    }
    let reports = core.nodes.reports().await;
    let others: Vec<StorageId> =
        reports.iter().map(|node| node.id).filter(|node| !known.contains(node)).collect();
    let second = ask(core, blob, &others, terms).await;
    match (first, second) {
        (_, BlobLookup::Found(descriptor)) => BlobLookup::Found(descriptor),
        (BlobLookup::Unknown(mut failures), BlobLookup::Unknown(more)) => {
            failures.extend(more);
            BlobLookup::Unknown(failures)
        }
        (BlobLookup::Unknown(failures), _) | (_, BlobLookup::Unknown(failures)) => {
            BlobLookup::Unknown(failures)
        }
        _ => BlobLookup::Nowhere,
    }
}

/// Asks some nodes for descriptors.
async fn ask(
    core: &Arc<BlobsCore>,
    blob: BlobId,
    nodes: &[StorageId],
    terms: CallTerms,
) -> BlobLookup {
    let calls = nodes.iter().map(|node| core.nodes.describe(*node, blob, terms));
    let answers = join_all(calls).await;
    let mut best: Option<ChunkDescriptor> = None;
    let mut failures = FetchFailures::default();
    let mut is_complete = true;
    for (node, answer) in nodes.iter().zip(answers) {
        match answer {
            Ok(descriptors) => {
                let newest = descriptors.into_iter().chain(best.take());
                best = newest.max_by_key(|descriptor| descriptor.placement);
            }
            Err(failure) => {
                is_complete = false;
                failures.push(*node, failure);
            }
        }
    }
    match best {
        Some(descriptor) => BlobLookup::Found(Box::new(descriptor)),
        None if is_complete => BlobLookup::Nowhere,
        None => BlobLookup::Unknown(failures),
    }
}
