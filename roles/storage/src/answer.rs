//! Answers of a node, and the reasons for which it refuses a request.
//!
//! The parts of a node return an [`Outcome`]. [`node`](super::node) turns a [`Refusal`] into a
//! message. The module consists of plain values.

use archipelago_base::{Epoch, Error, ErrorKind};
use archipelago_store::nodes::wire::{RefusalWhy, StoreMessage};

/// An answer with its bulk bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    /// The message that answers the request.
    pub(crate) message: StoreMessage,
    /// Bytes that follow the message, such as pieces of a chunk.
    pub(crate) payload: Vec<u8>,
}

/// Result of a request in a part of a node.
pub(crate) type Outcome = Result<Answer, Refusal>;

impl From<StoreMessage> for Answer {
    fn from(message: StoreMessage) -> Self {
        Self { message, payload: Vec::new() }
    }
}

/// Reason for which a node does not execute a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    /// The reason, by which the client decides what to do.
    pub(crate) why: RefusalWhy,
    /// Promised epoch of the volume if the reason is a fence; otherwise 0.
    pub(crate) epoch: Epoch,
    /// A sentence for the operator.
    pub(crate) text: String,
}

impl Refusal {
    /// A refusal for `why`, which `text` explains.
    pub(crate) fn new(why: RefusalWhy, text: impl Into<String>) -> Self {
        Self { why, epoch: Epoch(0), text: text.into() }
    }

    /// The refusal as a message.
    pub(crate) fn into_message(self) -> StoreMessage {
        StoreMessage::Refuse { why: self.why, epoch: self.epoch, text: self.text }
    }
}

impl From<Error> for Refusal {
    /// A failure of the node's own files. A full device has a reason of its own, because a client
    /// then writes elsewhere.
    fn from(error: Error) -> Self {
        let why = match error.kind() {
            _ if error.is_no_space() => RefusalWhy::Full,
            ErrorKind::Corrupt => RefusalWhy::Damaged,
            ErrorKind::NotFound => RefusalWhy::NotThere,
            _ => RefusalWhy::Failed,
        };
        Self::new(why, error.to_string())
    }
}
