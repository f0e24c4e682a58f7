//! The handler of the requests that other nodes and the coordinator send to a compute node.
//!
//! A request that needs no waiting is answered on the thread that received it. Any other request
//! becomes a task, but is polled on that thread first, because over shared memory most requests end
//! without waiting.
//!
//! Thread-safety: any thread may deliver requests.
//! Failure: a request that cannot be decoded is declined as malformed. Requests to a node that was
//! dropped get no answer.
//! Cost: a request that must wait allocates its task.

use std::future::Future as _;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};

use archipelago_fabric::{ClientId, Handler, Reply, Request};

use super::Parts;
use crate::format::KeyHash;
use crate::ids::PartitionId;
use crate::node::Stat;
use crate::node::caching::CacheStat;
use crate::node::peers::Class;
use crate::wire::{Grant, Message, Why};

/// Hands requests to the parts of a node while the node exists.
pub(super) struct RequestHandler(Weak<Parts>);

impl RequestHandler {
    pub(super) fn new(parts: Weak<Parts>) -> Self {
        Self(parts)
    }
}

impl Handler for RequestHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let Some(parts) = self.0.upgrade() else { return };
        let message = match Message::decode(request.body) {
            Ok(message) => message,
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                let grant = Grant::default();
                reply.send(Message::Declined { why: Why::Malformed, grant }.encode());
                return;
            }
        };
        let from = Class::of(&message).client(request.client);
        if let Some(answer) = parts.answer_immediately(from, &message) {
            reply.send(answer.encode());
            return;
        }
        let runtime = Arc::clone(parts.node.runtime());
        let mut task = Box::pin(async move {
            let answer = parts.answer(from, message).await;
            drop(parts);
            reply.send(answer.encode());
        });
        // The task is polled again after this poll, so a waker that does nothing suffices.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn("flex-request", task);
        }
    }
}

impl Parts {
    /// Answers a message if the answer needs no waiting. `None` for every other message.
    fn answer_immediately(&self, from: ClientId, message: &Message) -> Option<Message> {
        Some(match message {
            Message::Meter {} => self.node.load_counters_message(),
            Message::Invalidate { hash } => {
                self.node.caching().count(CacheStat::InvalidationsReceived);
                self.node.caching().invalidate(KeyHash(*hash));
                Message::Done {}
            }
            Message::Sweep {} => {
                self.node.want_sweep();
                Message::Done {}
            }
            Message::Room { bytes, expires } if self.node.is_member(from) => {
                self.node.lend_room(*bytes, *expires)
            }
            Message::Count {} => Message::Counted { figures: self.node.figures() },
            _ => return self.proxy.answer(from, message),
        })
    }

    async fn answer(&self, from: ClientId, message: Message) -> Message {
        match message {
            Message::Write { .. } => {
                self.node.stats().add(Stat::Served);
                self.proxy.write_index(from, &message).await
            }
            // A client that is not known yet asks again; one that was removed does not.
            Message::Free { .. } if !self.node.is_member(from) => self.node.declined(Why::Busy),
            Message::Delegate { .. } => {
                self.node.stats().add(Stat::Served);
                self.client.set_for(from, &message).await
            }
            Message::Free { words } => self.node.free_here(&words).await,
            Message::Refers { .. } => self.proxy.what_refers(&message).await,
            Message::Holds { blocks } => {
                let blocks = blocks.into_iter().collect();
                Message::Referred { words: self.node.held_in(&blocks) }
            }
            Message::Settle { partition, epoch, place } => {
                self.proxy.settle(PartitionId(partition), epoch, place).await
            }
            Message::Create { .. }
            | Message::Pause { .. }
            | Message::Prepare { .. }
            | Message::Resume { .. }
            | Message::Recall { .. } => self.membership.obey(message).await,
            _ => self.node.declined(Why::Malformed),
        }
    }
}
