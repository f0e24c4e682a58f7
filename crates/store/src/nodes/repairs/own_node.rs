//! The parts of its own node that a repair uses: the node itself, the client for the other nodes,
//! and the erasure code.
//!
//! Thread-safety: any thread may call any method. Failure: a refusal of the node is an error.
//! Cost: that of the node.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, Result};

use super::super::StorageId;
use super::super::client::NodeClient;
use super::super::code::Rs42;
use super::super::wire::{RefusalWhy, Refused, StoreMessage};
use super::host::RepairHost;

/// The node on which repairs run.
#[derive(Debug)]
pub(super) struct OwnNode {
    pub(super) client: Arc<NodeClient>,
    pub(super) host: Arc<dyn RepairHost>,
    pub(super) code: Rs42,
    pub(super) storage: StorageId,
}

impl OwnNode {
    /// Asks this node. A refusal is an error.
    pub(super) fn ask(
        &self,
        request: StoreMessage,
        payload: &[u8],
    ) -> Result<(StoreMessage, Vec<u8>)> {
        let name = request.name();
        Self::checked(name, self.host.answer(request, payload))
    }

    /// Asks this node to put or seal bytes of a copy of an extent that ends at `end`. Returns the
    /// refusal of a node that keeps a longer replica of its own, or on which the volume has removed
    /// the log. Any other refusal is an error.
    pub(super) fn ask_copy(
        &self,
        request: StoreMessage,
        payload: &[u8],
        end: u64,
    ) -> Result<Option<Refused>> {
        let name = request.name();
        match self.host.answer_copy(request, payload, end) {
            (
                StoreMessage::Refuse {
                    why: why @ (RefusalWhy::LongerReplica | RefusalWhy::RemovedLog),
                    epoch,
                    text,
                },
                _,
            ) => Ok(Some(Refused { why, epoch, text })),
            answer => Self::checked(name, answer).map(|_| None),
        }
    }

    fn checked(name: &str, answer: (StoreMessage, Vec<u8>)) -> Result<(StoreMessage, Vec<u8>)> {
        match refusal(&answer.0, &format!("this node, {name}")) {
            None => Ok(answer),
            Some((_, error)) => Err(error),
        }
    }

    /// Begins the pace of a copy with this rate.
    pub(super) fn begin_pace(&self, bytes_per_s: u64) -> Pace {
        Pace { begun_ns: self.client.runtime().now_ns(), bytes: 0, bytes_per_s }
    }

    /// Waits until `bytes` more bytes do not exceed the rate. The time that the copy itself took
    /// counts as waited.
    pub(super) async fn pace(&self, pace: &mut Pace, bytes: u64) {
        pace.bytes += bytes;
        let ns = u128::from(pace.bytes) * 1_000_000_000 / u128::from(pace.bytes_per_s.max(1));
        let due_ns = u128::from(pace.begun_ns) + ns;
        let runtime = self.client.runtime();
        let pause_ns = due_ns.saturating_sub(u128::from(runtime.now_ns()));
        if pause_ns > 0 {
            let pause_ns = u64::try_from(pause_ns).unwrap_or(u64::MAX);
            runtime.sleep(Duration::from_nanos(pause_ns)).await;
        }
    }
}

/// Progress of a copy, and its largest rate.
#[derive(Debug)]
pub(super) struct Pace {
    begun_ns: u64,
    bytes: u64,
    bytes_per_s: u64,
}

/// The reason and the error of a refusal; `None` for another answer.
pub(super) fn refusal(message: &StoreMessage, what: &str) -> Option<(RefusalWhy, Error)> {
    match message {
        StoreMessage::Refuse { why, epoch, text } => {
            let refused = Refused { why: *why, epoch: *epoch, text: text.clone() };
            Some((*why, refused.error(what)))
        }
        _ => None,
    }
}
