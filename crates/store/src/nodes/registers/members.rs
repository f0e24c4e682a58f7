//! The members of the root set behind a [`NodeClient`].
//!
//! Thread-safety: any thread may call any method.
//! Failure: a refusal of a node counts as no answer, because it says nothing about the register.
//! Cost: one round trip per request, on the lane of logs.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::Boxed;
use archipelago_fabric::{BULK_BYTES_MAX, TrafficClass};

use super::super::StorageId;
use super::super::client::{CallOptions, Lane, NodeClient};
use super::super::register::caspaxos::RootSet;
use super::super::register::caspaxos::acceptor::{AcceptorAnswer, AcceptorRequest};
use super::super::wire::StoreMessage;
use super::RootMembers;

/// Time after which a member counts as silent in a round.
const ANSWER: Duration = Duration::from_secs(1);

/// The members, as a client reaches them.
#[derive(Debug)]
pub(super) struct ClientMembers(pub(super) Arc<NodeClient>);

impl RootMembers for ClientMembers {
    fn root_set(&self) -> Boxed<'_, Result<RootSet>> {
        Box::pin(async move {
            let known = self.0.members();
            if known.root_set.number > 0 {
                return Ok(known.root_set.clone());
            }
            Ok(self.0.refresh().await?.root_set.clone())
        })
    }

    fn ask(&self, to: StorageId, request: AcceptorRequest) -> Boxed<'_, Option<AcceptorAnswer>> {
        let options = CallOptions::new(TrafficClass::Log, ANSWER);
        let options = match &request {
            // The answer has a page of values.
            AcceptorRequest::Retire { .. } => {
                CallOptions { answer_bytes_max: BULK_BYTES_MAX, ..options }
            }
            _ => options,
        };
        let call = self.0.call(to, Lane::Log, &StoreMessage::Acceptor { request }, &[], options);
        Box::pin(async move {
            match call.await {
                Ok(answer) => match answer.message {
                    StoreMessage::AcceptorIs { answer } => Some(answer),
                    other => {
                        let got = other.name();
                        tracing::warn!(%to, got, "a root node gave an unexpected answer");
                        None
                    }
                },
                Err(error) => {
                    tracing::debug!(%to, %error, "a root node did not answer");
                    None
                }
            }
        })
    }
}
