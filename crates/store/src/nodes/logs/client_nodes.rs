//! The storage nodes of a cluster as logs need them, over the client of the pool.
//!
//! Requests of the class [`TrafficClass::Log`] use the lane of logs, so that an append does not
//! wait behind a table. All others use the lane of bulk data.
//!
//! Failure: an answer that does not come is [`LogFailure::Passing`], and a request that cannot
//! leave is [`LogFailure::Unreachable`].
//! Cost: that of the client, and a copy of an answer's payload.

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::runtime::{Boxed, Runtime};
use archipelago_fabric::TrafficClass;

use super::super::StorageId;
use super::super::client::{CallError, CallOptions, ClientStats, Lane, NodeClient};
use super::super::placement::NodeReport;
use super::super::wire::{Refused, StoreMessage};
use super::requests::{LogAnswer, LogCall, LogFailure, LogNodes};
use super::send_ring::LogBytes;

/// The client as a network of logs.
#[derive(Debug)]
pub(super) struct ClientNodes(Arc<NodeClient>);

impl ClientNodes {
    pub(super) fn new(client: &Arc<NodeClient>) -> Self {
        Self(Arc::clone(client))
    }
}

fn failure(error: CallError) -> LogFailure {
    match error {
        CallError::Refused { why, epoch, text } => {
            LogFailure::refused(&Refused { why, epoch, text })
        }
        lost @ CallError::Unanswered { .. } => LogFailure::Passing(lost.to_string()),
        lost @ CallError::Unreachable { .. } => LogFailure::Unreachable(lost.to_string()),
    }
}

impl LogNodes for ClientNodes {
    fn runtime(&self) -> &Arc<dyn Runtime> {
        self.0.runtime()
    }

    fn call(
        &self,
        to: StorageId,
        request: StoreMessage,
        payload: LogBytes,
        how: LogCall,
    ) -> Boxed<'static, LogAnswer> {
        let LogCall { class, deadline, answer_bytes_max } = how;
        let lane = if class == TrafficClass::Log { Lane::Log } else { Lane::Bulk };
        let options = CallOptions { answer_bytes_max, ..CallOptions::new(class, deadline) };
        // The request takes its place in the order of the lane here.
        let call = self.0.call(to, lane, &request, &payload.contiguous(), options);
        Box::pin(async move {
            let answer = call.await.map_err(failure)?;
            Ok((answer.message, answer.payload.to_vec()))
        })
    }

    fn lost(&self, nodes: &[StorageId]) -> Vec<StorageId> {
        self.0.members().lost(nodes)
    }

    fn awaited(&self) -> Boxed<'static, Result<Vec<StorageId>>> {
        let client = Arc::clone(&self.0);
        Box::pin(async move { client.refresh().await?.awaited() })
    }

    fn stats(&self) -> Option<&ClientStats> {
        Some(self.0.stats())
    }

    fn reports(&self) -> Boxed<'static, Result<Vec<NodeReport>>> {
        let client = Arc::clone(&self.0);
        Box::pin(async move {
            let known = client.reports();
            if known.is_empty() { Ok(client.refresh().await?.reports()) } else { Ok(known) }
        })
    }
}
