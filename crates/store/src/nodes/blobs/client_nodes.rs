//! The calls to nodes over the network, by the messages of the store.
//!
//! Thread-safety: any thread may call any method.
//! Failure: refusals and missing answers become [`NodeFailure`]s, which name the node's reason. An
//! answer of another kind counts as a refusal.
//! Cost: a message per call. Bytes of a put are copied into the message, and those of a read out of
//! the answer.

use std::ops::Range;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::runtime::Boxed;

use super::super::StorageId;
use super::super::client::{Answer, CallError, CallOptions, ClientStats, Lane, NodeClient};
use super::super::placement::NodeReport;
use super::super::wire::{ChunkDescriptor, ChunkId, ChunkRange, RefusalWhy, Stamp, StoreMessage};
use super::chunk_nodes::{
    BlobList, CallTerms, Called, ChunkNodes, ChunkPieces, ChunkPut, NodeFailure,
};
use super::fetch::total_bytes;
use crate::ids::{BlobId, VolumeId};

/// The nodes of a cluster over their client.
#[derive(Debug)]
pub(super) struct ClientNodes(Arc<NodeClient>);

impl ClientNodes {
    pub(super) fn new(client: &Arc<NodeClient>) -> Self {
        Self(Arc::clone(client))
    }

    /// Sends a request without a payload whose answer is *done*.
    fn ask_done(
        &self,
        to: StorageId,
        request: &StoreMessage,
        terms: CallTerms,
    ) -> Called<'static, ()> {
        let how = CallOptions::new(terms.class, terms.deadline).short_answer();
        let call = self.0.call(to, Lane::Bulk, request, &[], how);
        Box::pin(async move { done(call.await) })
    }
}

/// The failure for an error of the client.
fn failure(error: &CallError) -> NodeFailure {
    let text = error.to_string();
    match error {
        CallError::Unanswered { .. } => NodeFailure::Unanswered(text),
        CallError::Unreachable { .. } => NodeFailure::Unreachable(text),
        CallError::Refused { why, .. } => match why {
            RefusalWhy::Fenced => NodeFailure::Fenced(text),
            RefusalWhy::Busy => NodeFailure::Busy(text),
            RefusalWhy::Full => NodeFailure::Full(text),
            RefusalWhy::Sealed => NodeFailure::Sealed(text),
            RefusalWhy::NotThere => NodeFailure::NotThere,
            RefusalWhy::OutOfOrder { .. } => NodeFailure::OutOfOrder,
            RefusalWhy::Damaged => NodeFailure::Damaged(text),
            RefusalWhy::InLimbo
            | RefusalWhy::WrongCluster
            | RefusalWhy::Unsupported
            | RefusalWhy::Failed
            | RefusalWhy::Standby
            | RefusalWhy::Malformed
            | RefusalWhy::LongerReplica
            | RefusalWhy::RemovedLog => NodeFailure::Refused(text),
        },
    }
}

fn unexpected(answer: &Answer) -> NodeFailure {
    NodeFailure::Refused(answer.unexpected("a request for chunks").to_string())
}

fn done(answer: Result<Answer, CallError>) -> Result<(), NodeFailure> {
    let answer = answer.map_err(|error| failure(&error))?;
    match answer.message {
        StoreMessage::Done {} => Ok(()),
        _ => Err(unexpected(&answer)),
    }
}

impl ChunkNodes for ClientNodes {
    fn stats(&self) -> &ClientStats {
        self.0.stats()
    }

    fn reports(&self) -> Boxed<'_, Vec<NodeReport>> {
        Box::pin(async {
            let reports = self.0.reports();
            if !reports.is_empty() {
                return reports;
            }
            // A client that has just been opened knows no members yet.
            match self.0.refresh().await {
                Ok(members) => members.reports(),
                Err(error) => {
                    tracing::warn!(%error, "the members of the storage pool are not known");
                    reports
                }
            }
        })
    }

    fn awaited(&self) -> Boxed<'_, Result<Vec<StorageId>>> {
        Box::pin(async { self.0.refresh().await?.awaited() })
    }

    fn lost<'a>(&'a self, nodes: &'a [StorageId]) -> Boxed<'a, Vec<StorageId>> {
        Box::pin(async move {
            match self.0.refresh().await {
                Ok(members) => members.lost(nodes),
                Err(error) => {
                    tracing::warn!(%error, "the lost nodes of the storage pool are not known");
                    Vec::new()
                }
            }
        })
    }

    fn put<'a>(&'a self, to: StorageId, put: ChunkPut<'a>, terms: CallTerms) -> Called<'a, ()> {
        let request = StoreMessage::PutChunk {
            chunk: put.chunk,
            stamp: Some(put.stamp),
            class: put.class,
            purpose: put.purpose,
            offset: put.offset,
            crcs: put.crcs.to_vec(),
        };
        let how = CallOptions::new(terms.class, terms.deadline).short_answer();
        let call = self.0.call(to, Lane::Bulk, &request, put.bytes, how);
        Box::pin(async move { done(call.await) })
    }

    fn seal<'a>(
        &'a self,
        to: StorageId,
        stamp: Stamp,
        descriptor: &'a ChunkDescriptor,
        terms: CallTerms,
    ) -> Called<'a, ()> {
        let descriptor = descriptor.clone();
        self.ask_done(to, &StoreMessage::SealChunk { stamp: Some(stamp), descriptor }, terms)
    }

    fn read<'a>(
        &'a self,
        from: StorageId,
        chunk: ChunkId,
        ranges: &'a [Range<u64>],
        terms: CallTerms,
    ) -> Called<'a, ChunkPieces> {
        let bytes = total_bytes(ranges) as usize;
        let ranges = ranges.iter().map(|range| ChunkRange { start: range.start, end: range.end });
        let request = StoreMessage::ReadChunk { chunk, ranges: ranges.collect() };
        let how = CallOptions::new(terms.class, terms.deadline).payload_max(bytes);
        let call = self.0.call(from, Lane::Bulk, &request, &[], how);
        Box::pin(async move {
            let answer = call.await.map_err(|error| failure(&error))?;
            match answer.message {
                StoreMessage::ChunkBytes { crcs } => {
                    Ok(ChunkPieces { bytes: answer.payload.to_vec(), crcs })
                }
                _ => Err(unexpected(&answer)),
            }
        })
    }

    fn describe(
        &self,
        from: StorageId,
        blob: BlobId,
        terms: CallTerms,
    ) -> Called<'_, Vec<ChunkDescriptor>> {
        let how = CallOptions::new(terms.class, terms.deadline);
        let call = self.0.call(from, Lane::Bulk, &StoreMessage::Describe { blob }, &[], how);
        Box::pin(async move {
            let answer = call.await.map_err(|error| failure(&error))?;
            match answer.message {
                StoreMessage::Descriptors { descriptors } => Ok(descriptors),
                _ => Err(unexpected(&answer)),
            }
        })
    }

    fn retain(
        &self,
        at: StorageId,
        blob: BlobId,
        stamp: Stamp,
        terms: CallTerms,
    ) -> Called<'_, ()> {
        self.ask_done(at, &StoreMessage::Retain { blobs: vec![blob], stamp }, terms)
    }

    fn release<'a>(
        &'a self,
        at: StorageId,
        blobs: &'a [BlobId],
        stamp: Stamp,
        terms: CallTerms,
    ) -> Called<'a, ()> {
        self.ask_done(at, &StoreMessage::Release { blobs: blobs.to_vec(), stamp }, terms)
    }

    fn list(
        &self,
        at: StorageId,
        volume: VolumeId,
        after: Option<BlobId>,
        terms: CallTerms,
    ) -> Called<'_, BlobList> {
        let how = CallOptions::new(terms.class, terms.deadline);
        let request = StoreMessage::ListBlobs { volume, after };
        let call = self.0.call(at, Lane::Bulk, &request, &[], how);
        Box::pin(async move {
            let answer = call.await.map_err(|error| failure(&error))?;
            match answer.message {
                StoreMessage::Blobs { blobs, has_more } => Ok(BlobList { blobs, has_more }),
                _ => Err(unexpected(&answer)),
            }
        })
    }

    fn promise(&self, at: StorageId, stamp: Stamp, terms: CallTerms) -> Called<'_, ()> {
        self.ask_done(at, &StoreMessage::PromiseEpoch { stamp }, terms)
    }

    fn abandon(
        &self,
        at: StorageId,
        blob: BlobId,
        stamp: Stamp,
        terms: CallTerms,
    ) -> Called<'_, ()> {
        self.ask_done(at, &StoreMessage::AbandonBlob { blob, stamp }, terms)
    }

    fn report_damage(
        &self,
        at: StorageId,
        chunk: ChunkId,
        offset: u64,
        terms: CallTerms,
    ) -> Called<'_, ()> {
        self.ask_done(at, &StoreMessage::ReportDamage { chunk, offset }, terms)
    }
}
