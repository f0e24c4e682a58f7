//! Calls of a client: their options, answers and errors.
//!
//! The types are plain values.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use archipelago_base::{Epoch, Error, ErrorKind};
use archipelago_fabric::{BULK_BYTES_MAX, Body, Call, MESSAGE_BYTES_MAX, TrafficClass};

use super::super::layout::PIECE_BYTES;
use super::super::wire::{RefusalWhy, Refused, StoreMessage, envelope};

/// Limit of a short answer in bytes.
const SHORT_BYTES_MAX: usize = 4 << 10;

/// The link of a node that a call uses. Each has its own, so that an append to a log does not wait
/// in the buffers behind a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Appends to logs, syncs, and requests to the register.
    Log,
    /// Chunks, and everything else.
    Bulk,
}

/// Options of one request.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    /// Class by which a network card orders messages.
    pub class: TrafficClass,
    /// Time, counted from the sending of the request, after which the call ends without an answer.
    /// A connection that is needed before takes at most 2 s more.
    pub deadline: Duration,
    /// Whether the node may execute the request more than once. The node then does not remember the
    /// request. Every message of the store permits this, and it is the default.
    pub is_idempotent: bool,
    /// Limit of the answer in bytes, message and payload together. The default is
    /// [`MESSAGE_BYTES_MAX`].
    pub answer_bytes_max: usize,
}

impl CallOptions {
    /// Options of a request without a payload in its answer.
    #[must_use]
    pub const fn new(class: TrafficClass, deadline: Duration) -> Self {
        Self { class, deadline, is_idempotent: true, answer_bytes_max: MESSAGE_BYTES_MAX }
    }

    /// Expects an answer of at most 4 KiB, as that to a write is. More of such requests may be in
    /// flight.
    #[must_use]
    pub const fn short_answer(self) -> Self {
        Self { answer_bytes_max: SHORT_BYTES_MAX, ..self }
    }

    /// Expects a payload of at most `bytes`, with checksums of its pieces.
    #[must_use]
    pub const fn payload_max(self, bytes: usize) -> Self {
        let crcs = bytes / PIECE_BYTES as usize * 4;
        let most = bytes + crcs + SHORT_BYTES_MAX;
        let most = if most < BULK_BYTES_MAX { most } else { BULK_BYTES_MAX };
        Self { answer_bytes_max: most, ..self }
    }

    /// The call of the fabric with `body`.
    pub(super) fn call<'a>(&self, body: &'a [u8]) -> Call<'a> {
        let call = Call::new(body, self.deadline).in_class(self.class).bulk();
        let call = if self.is_idempotent { call.idempotent() } else { call };
        call.answer_bytes_max(self.answer_bytes_max)
    }
}

/// The answer of a node, unless it is a refusal.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Message that the request got.
    pub message: StoreMessage,
    /// The bytes behind it.
    pub payload: Payload,
}

/// The payload of an answer, which is not copied out of the answer's body.
#[derive(Clone, Debug)]
pub struct Payload {
    body: Body,
    start: usize,
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.body[self.start..]
    }
}

impl Answer {
    /// Reads the body of an answer. Errors: a refusal, or that the body is no answer.
    pub(super) fn read(body: Body) -> Result<Self, CallError> {
        let (message, payload_bytes) = match envelope::open(&body) {
            Ok((message, payload)) => (message, payload.len()),
            Err(malformed) => {
                let cause = Error::unsupported(format!(
                    "the answer is {malformed}: client and node may have different versions"
                ));
                return Err(CallError::Unanswered { cause });
            }
        };
        if let StoreMessage::Refuse { why, epoch, text } = message {
            return Err(CallError::Refused { why, epoch, text });
        }
        let start = body.len() - payload_bytes;
        Ok(Self { message, payload: Payload { body, start } })
    }

    /// The error for an answer whose kind does not fit the request; `what` names node and request.
    #[must_use]
    pub fn unexpected(&self, what: impl fmt::Display) -> Error {
        Error::unsupported(format!(
            "{what}: the answer {} does not fit: client and node may have different versions",
            self.message.name()
        ))
    }
}

/// Reason for which a call has no answer.
#[derive(Clone, Debug)]
pub enum CallError {
    /// The node refused. The request changed nothing.
    Refused {
        /// Reason of the refusal.
        why: RefusalWhy,
        /// Epoch that the node has promised for the volume, for [`RefusalWhy::Fenced`]; 0
        /// otherwise.
        epoch: Epoch,
        /// Explanation by the node, for operators.
        text: String,
    },
    /// No answer came. The request may have been executed, or be executed later.
    Unanswered {
        /// Failure of the link.
        cause: Error,
    },
    /// The request was not sent.
    Unreachable {
        /// Reason for which there is no link.
        cause: Error,
    },
}

impl CallError {
    /// The error for the caller; `what` names the node and the request.
    #[must_use]
    pub fn error(&self, what: impl fmt::Display) -> Error {
        match self {
            Self::Refused { why, epoch, text } => {
                let (why, epoch, text) = (*why, *epoch, text.clone());
                Refused { why, epoch, text }.error(what)
            }
            Self::Unanswered { cause } => Error::with_source(
                ErrorKind::Busy,
                format!("{what}: the node did not answer, and may have executed the request"),
                cause.clone(),
            ),
            Self::Unreachable { cause } => {
                // A difference of versions does not pass by itself.
                let kind = match cause.kind() {
                    ErrorKind::Unsupported => ErrorKind::Unsupported,
                    _ => ErrorKind::Busy,
                };
                let text = format!("{what}: the node cannot be reached: check that it runs");
                Error::with_source(kind, text, cause.clone())
            }
        }
    }

    /// Reason of a refusal; `None` if the node did not answer.
    #[must_use]
    pub fn refusal(&self) -> Option<RefusalWhy> {
        match self {
            Self::Refused { why, .. } => Some(*why),
            Self::Unanswered { .. } | Self::Unreachable { .. } => None,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { why, text, .. } if text.is_empty() => write!(f, "{why}"),
            Self::Refused { why, text, .. } => write!(f, "{why} ({text})"),
            Self::Unanswered { cause } => write!(f, "no answer came: {cause}"),
            Self::Unreachable { cause } => write!(f, "the node cannot be reached: {cause}"),
        }
    }
}

impl std::error::Error for CallError {}
