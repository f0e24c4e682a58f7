//! The transfer of one image to one node, as a state machine without clock or I/O.
//!
//! | state | next state and its cause |
//! | --- | --- |
//! | asking for a grant | writing, on the grant |
//! | writing | registering, when all pieces are placed; asking for a grant, if the link went down |
//! | registering | ended, on the place; writing, if the node found other bytes than those named |
//!
//! A request that gets no answer, or is refused as busy, is sent again, because all requests are
//! idempotent. The transfer fails if the node refuses it for another reason. It also fails without
//! progress for [`OwnerTerms::patience`](super::OwnerTerms::patience), and when the time for the
//! whole image has passed.
//!
//! Invariants:
//! 1. A failed transfer says whether the node may have a grant or the shard. If so, the caller
//!    releases the name. A refusal proves that there is none. If a copy of the refused request
//!    arrives later and gets a grant, the node ends that grant, because nobody uses it.
//! 2. A place is accepted only if it has the length of the image.
//!
//! Thread-safety: none; one task owns a transfer.
//! Cost: O(pieces) for a registration.

#[cfg(test)]
mod tests;

use archipelago_base::checksum;
use archipelago_fabric::{Refusal, RemoteKey};

use super::state::NotSent;
use crate::ids::OwnerStamp;
use crate::wire::shard::{
    Piece, ShardInfo, ShardMessage, ShardName, ShardPlace, ShardRefusal, ShardWhy,
};

/// Bytes of a piece, unless the image would then have more than [`PIECES_MAX`] pieces.
const PIECE_BYTES: u64 = 1 << 20;
/// Largest number of pieces of an image.
const PIECES_MAX: u64 = 2048;
/// Number of times that an image is written again because the node found other bytes.
const REWRITES_MAX: u32 = 3;

/// Room for an image in the landing zone of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LandingGrant {
    pub(super) number: u64,
    pub(super) key: RemoteKey,
    pub(super) at: u64,
}

/// An image to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TransferOrder {
    pub(super) owner: OwnerStamp,
    pub(super) shard: ShardName,
    pub(super) info: ShardInfo,
    pub(super) bytes: u64,
    pub(super) pieces: Vec<Piece>,
}

/// The next step of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TransferStep {
    /// Send the message, and call [`Transfer::on_answer`].
    Ask(ShardMessage),
    /// Send the message after a pause.
    AskLater(ShardMessage),
    /// Write all pieces into the grant, and call [`Transfer::on_written`].
    Write(LandingGrant),
    /// The node has the shard.
    Registered(ShardPlace),
    /// The transfer has failed.
    Failed(TransferFailure),
}

impl TransferStep {
    /// Whether the transfer has ended.
    pub(super) fn is_end(&self) -> bool {
        matches!(self, Self::Registered(_) | Self::Failed(_))
    }
}

/// Why a transfer failed, and what the owner has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TransferFailure {
    pub(super) end: NotSent,
    /// The refusal of the node; `None` if it did not answer in time.
    pub(super) refusal: Option<ShardRefusal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Landing,
    Writing(LandingGrant),
    Registering(LandingGrant),
}

/// The transfer of one image.
#[derive(Debug)]
pub(super) struct Transfer {
    order: TransferOrder,
    begin_ns: u64,
    patience_ns: u64,
    stage: Stage,
    /// Time at which the transfer ends unless it makes progress.
    until_ns: u64,
    /// Time at which the transfer ends, even if it makes progress.
    end_ns: u64,
    /// Whether a request may have left a grant or the shard at the node.
    may_be_known: bool,
    rewrites: u32,
}

/// The pieces of an image, with their checksums.
pub(super) fn pieces(image: &[u8]) -> Vec<Piece> {
    let least = (image.len() as u64).div_ceil(PIECES_MAX);
    let piece_bytes = PIECE_BYTES.max(least);
    let chunks = image.chunks(usize::try_from(piece_bytes).unwrap_or(usize::MAX));
    let piece = |(number, chunk): (usize, &[u8])| Piece {
        at: number as u64 * piece_bytes,
        len: chunk.len() as u64,
        sum: checksum::hash64(chunk),
    };
    chunks.enumerate().map(piece).collect()
}

impl Transfer {
    /// A transfer that ends without progress for `patience_ns`, and at `end_ns` at the latest.
    pub(super) fn new(order: TransferOrder, now_ns: u64, patience_ns: u64, end_ns: u64) -> Self {
        Self {
            order,
            begin_ns: now_ns,
            patience_ns,
            stage: Stage::Landing,
            until_ns: end_ns.min(now_ns + patience_ns),
            end_ns,
            may_be_known: false,
            rewrites: 0,
        }
    }

    /// Time at which half of the time for the whole transfer has passed.
    pub(super) fn half_ns(&self) -> u64 {
        self.begin_ns + self.end_ns.saturating_sub(self.begin_ns) / 2
    }

    /// Time at which the transfer ends, even if it makes progress.
    pub(super) fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// The failure of a transfer that the owner has stopped.
    pub(super) fn stopped(&self) -> TransferFailure {
        let end = NotSent { may_be_known: self.may_be_known, ..NotSent::default() };
        TransferFailure { end, refusal: None }
    }

    /// The first step.
    pub(super) fn begin(&mut self) -> TransferStep {
        TransferStep::Ask(self.message())
    }

    /// The request of the present state.
    fn message(&self) -> ShardMessage {
        let TransferOrder { owner, shard, info, bytes, pieces } = &self.order;
        match self.stage {
            Stage::Landing | Stage::Writing(_) => {
                ShardMessage::Land { owner: *owner, shard: *shard, bytes: *bytes }
            }
            Stage::Registering(grant) => ShardMessage::Register {
                owner: *owner,
                shard: *shard,
                grant: grant.number,
                info: info.clone(),
                pieces: pieces.clone(),
            },
        }
    }

    fn move_to(&mut self, now_ns: u64, stage: Stage) {
        self.stage = stage;
        self.until_ns = self.end_ns.min(now_ns + self.patience_ns);
    }

    fn fail(&self, refusal: Option<ShardRefusal>, end: NotSent) -> TransferStep {
        let end = NotSent { may_be_known: self.may_be_known || end.may_be_known, ..end };
        TransferStep::Failed(TransferFailure { end, refusal })
    }

    /// Sends the request again after a pause, unless nothing has moved for too long.
    fn again(&self, now_ns: u64, refusal: Option<ShardRefusal>) -> TransferStep {
        if now_ns >= self.until_ns {
            return self.fail(refusal, NotSent::default());
        }
        TransferStep::AskLater(self.message())
    }

    /// Takes the answer to a request. `None` if there was no answer; the node may have executed the
    /// request.
    pub(super) fn on_answer(&mut self, now_ns: u64, answer: Option<&ShardMessage>) -> TransferStep {
        let Some(answer) = answer else {
            self.may_be_known = true;
            return self.again(now_ns, None);
        };
        match (self.stage, answer) {
            (Stage::Landing, ShardMessage::Landing { grant, key, at, bytes, .. })
                if *bytes == self.order.bytes =>
            {
                self.may_be_known = true;
                let grant = LandingGrant { number: *grant, key: *key, at: *at };
                self.move_to(now_ns, Stage::Writing(grant));
                TransferStep::Write(grant)
            }
            (Stage::Registering(_), ShardMessage::Registered { place })
                if place.bytes == self.order.bytes =>
            {
                TransferStep::Registered(*place)
            }
            (_, ShardMessage::Refused { refusal }) => self.on_refused(now_ns, *refusal),
            (_, other) => {
                tracing::warn!(answer = other.name(), "a memory node sent an unexpected answer");
                self.fail(None, NotSent { may_be_known: true, ..NotSent::default() })
            }
        }
    }

    fn on_refused(&mut self, now_ns: u64, refusal: ShardRefusal) -> TransferStep {
        let mut end = NotSent::default();
        match (self.stage, refusal.why) {
            (_, ShardWhy::Busy) => return self.again(now_ns, Some(refusal)),
            (Stage::Registering(grant), ShardWhy::BadPiece)
                if self.rewrites < REWRITES_MAX && now_ns < self.end_ns =>
            {
                // A late write of an earlier transfer may have changed the bytes.
                self.rewrites += 1;
                self.move_to(now_ns, Stage::Writing(grant));
                return TransferStep::Write(grant);
            }
            (_, ShardWhy::Full) => end.left_bytes = Some(refusal.number),
            (_, ShardWhy::TooLarge) => end.image_bytes_max = Some(refusal.number),
            // The node already knows the name from earlier requests.
            (_, ShardWhy::Retired | ShardWhy::HasGrant) => end.may_be_known = true,
            (_, ShardWhy::BadImage | ShardWhy::OtherRecords) => {
                tracing::error!(%refusal, "a memory node found a memtable image damaged");
            }
            _ => {}
        }
        self.fail(Some(refusal), end)
    }

    /// Takes the outcome of the writes: all pieces were placed, the node refused a write, or it did
    /// not answer (`None`).
    pub(super) fn on_written(
        &mut self,
        now_ns: u64,
        written: Result<(), Option<Refusal>>,
    ) -> TransferStep {
        let Stage::Writing(grant) = self.stage else { return self.again(now_ns, None) };
        match written {
            Ok(()) => {
                self.move_to(now_ns, Stage::Registering(grant));
                TransferStep::Ask(self.message())
            }
            // The node gives the same grant again.
            Err(None) => {
                self.stage = Stage::Landing;
                self.again(now_ns, None)
            }
            Err(Some(refusal)) => {
                tracing::warn!(%refusal, "a memory node refused to take a memtable image");
                self.fail(None, NotSent::default())
            }
        }
    }
}
