//! The transfer of one image to one node, as a state machine without clock or I/O.
//!
//! | state | next state and its cause |
//! | --- | --- |
//! | asking for a grant | writing, on the grant |
//! | writing | registering, when all pieces are placed; asking for a grant, if the link went down |
//! | registering | ended, on the place; writing, if the node found other bytes than those named |
//! | finding out the number of a lost grant | giving it back, on that grant |
//! | giving a lost grant back | asking for a grant, when the node has it back |
//!
//! A request that gets no answer, or is refused as busy, is sent again, because all requests are
//! idempotent. The transfer fails if the node refuses it for another reason. It also fails without
//! progress for [`OwnerTerms::patience`](super::OwnerTerms::patience), and when the time for the
//! whole image has passed.
//!
//! A transfer may begin with a grant in which the first records lie already, because they were
//! written while the shard filled ([`Transfer::after`]). It asks for the grant again first, so the
//! host keeps it. If the host names another grant, or finds other bytes, the whole image is
//! written. The node may have a grant that the owner does not know, because the answer was lost.
//! The refusal [`ShardWhy::HasGrant`] has the bytes of that grant. If it is large enough, the
//! transfer uses it for the whole image. Otherwise the transfer asks for that grant again, to get
//! its number. It then gives the grant back, and asks for one of the right size. So the name stays
//! usable at the node.
//!
//! Within a grant the records come first. The bytes that precede them in the image come last
//! ([`TransferOrder::records_at`]). The place of a record in the grant then does not depend on the
//! length of the slab directory, which is known only at the seal. The pieces of the registration
//! restore the order of the image.
//!
//! Invariants:
//! 1. A failed transfer says whether the node may have a grant or the shard. If so, the caller
//!    releases the name. A refusal for lack of room proves that the node has neither, even if it
//!    had a grant before. The node may still execute an earlier request that got no answer. If a
//!    copy of the refused request arrives later and gets a grant, the node ends that grant, because
//!    its owner does not use it.
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
    /// Bytes of the image that lie after all others in a grant: those before its records, or none
    /// if the grant has the image in its own order.
    pub(super) records_at: u64,
    pub(super) pieces: Vec<Piece>,
}

/// A grant with the first records of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AheadGrant {
    pub(super) grant: LandingGrant,
    /// Bytes of the grant.
    pub(super) bytes: u64,
    /// Bytes of records that lie at its beginning.
    pub(super) written: u64,
}

/// The next step of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TransferStep {
    /// Send the message, and call [`Transfer::on_answer`].
    Ask(ShardMessage),
    /// Send the message after a pause.
    AskLater(ShardMessage),
    /// Write all pieces into the grant, except for the bytes that lie at its beginning already, and
    /// call [`Transfer::on_written`].
    Write {
        /// Room for the image.
        grant: LandingGrant,
        /// Bytes that lie there already.
        written: u64,
    },
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

/// Reason for which a transfer failed, and the facts from which the owner decides its next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TransferFailure {
    pub(super) end: NotSent,
    /// The refusal of the node; `None` if it did not answer in time.
    pub(super) refusal: Option<ShardRefusal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Landing,
    /// The transfer asks again for a grant that is too small, so that it gets its number.
    Finding,
    /// The node gets the grant of this number back, because it is too small.
    Returning {
        number: u64,
    },
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
    /// Whether a request got no answer. The node may execute it late.
    may_be_late: bool,
    /// Whether the node may have the grant with the first records.
    may_have_ahead: bool,
    rewrites: u32,
    /// Bytes of the grant.
    grant_bytes: u64,
    /// Number of the grant with the first records, and their bytes.
    ahead: Option<(u64, u64)>,
}

/// The pieces of an image, with their checksums. The bytes from `records_at` on lie at the
/// beginning of the grant, and the others after them.
pub(super) fn pieces(image: &[u8], records_at: u64) -> Vec<Piece> {
    let (first, records) = image.split_at(records_at as usize);
    let (at, len) = (records.len() as u64, first.len() as u64);
    let first = (len > 0).then(|| Piece { at, len, sum: checksum::hash64(first) });
    first.into_iter().chain(chunks(records)).collect()
}

fn chunks(image: &[u8]) -> Vec<Piece> {
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
        let grant_bytes = order.bytes;
        Self {
            order,
            begin_ns: now_ns,
            patience_ns,
            stage: Stage::Landing,
            until_ns: end_ns.min(now_ns + patience_ns),
            end_ns,
            may_be_known: false,
            may_be_late: false,
            may_have_ahead: false,
            rewrites: 0,
            grant_bytes,
            ahead: None,
        }
    }

    /// The same transfer with a grant that has the first records of the image.
    pub(super) fn after(self, ahead: &AheadGrant) -> Self {
        Self {
            may_have_ahead: true,
            grant_bytes: ahead.bytes,
            ahead: Some((ahead.grant.number, ahead.written)),
            ..self
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
        let may_be_known = self.may_be_known || self.may_have_ahead;
        let end = NotSent { may_be_known, ..NotSent::default() };
        TransferFailure { end, refusal: None }
    }

    /// Bytes of records that were written ahead and are not written again.
    pub(super) fn ahead_bytes(&self) -> u64 {
        self.ahead.map_or(0, |(_, bytes)| bytes)
    }

    /// The first step.
    pub(super) fn begin(&mut self) -> TransferStep {
        TransferStep::Ask(self.message())
    }

    /// The request of the present state.
    fn message(&self) -> ShardMessage {
        let TransferOrder { owner, shard, info, pieces, .. } = &self.order;
        match self.stage {
            Stage::Landing | Stage::Finding | Stage::Writing(_) => {
                ShardMessage::Land { owner: *owner, shard: *shard, bytes: self.grant_bytes }
            }
            Stage::Returning { number } => {
                ShardMessage::GiveBack { owner: *owner, shard: *shard, grant: number }
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

    /// Writes the bytes that do not lie in the grant yet.
    fn write(&mut self, grant: LandingGrant) -> TransferStep {
        self.ahead = self.ahead.filter(|(number, _)| *number == grant.number);
        TransferStep::Write { grant, written: self.ahead_bytes() }
    }

    fn fail(&self, refusal: Option<ShardRefusal>, end: NotSent) -> TransferStep {
        let may_be_known = self.may_be_known || self.may_have_ahead || end.may_be_known;
        let end = NotSent { may_be_known, ..end };
        TransferStep::Failed(TransferFailure { end, refusal })
    }

    /// Sends the request again after a pause, unless the transfer has made no progress for too
    /// long.
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
            (self.may_be_known, self.may_be_late) = (true, true);
            return self.again(now_ns, None);
        };
        match (self.stage, answer) {
            (Stage::Landing, ShardMessage::Landing { grant, key, at, bytes, .. })
                if *bytes == self.grant_bytes =>
            {
                self.may_be_known = true;
                let grant = LandingGrant { number: *grant, key: *key, at: *at };
                self.move_to(now_ns, Stage::Writing(grant));
                self.write(grant)
            }
            (Stage::Finding, ShardMessage::Landing { grant, bytes, .. })
                if *bytes == self.grant_bytes =>
            {
                self.stage = Stage::Returning { number: *grant };
                TransferStep::Ask(self.message())
            }
            (Stage::Returning { .. }, ShardMessage::Done { .. }) => {
                (self.stage, self.grant_bytes) = (Stage::Landing, self.order.bytes);
                self.may_be_known = self.may_be_late;
                TransferStep::Ask(self.message())
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
                self.ahead = None;
                self.move_to(now_ns, Stage::Writing(grant));
                return self.write(grant);
            }
            // The owner does not know a grant that the node has, for example because the answer to
            // its request was lost. The transfer may use this grant, because it writes the whole
            // image, and the registration checks all bytes. It gives a smaller grant back.
            (Stage::Landing | Stage::Finding, ShardWhy::HasGrant)
                if refusal.number != self.grant_bytes && now_ns < self.until_ns =>
            {
                return self.on_lost_grant(refusal.number);
            }
            (_, ShardWhy::Full) => {
                self.note_no_grant();
                end.left_bytes = Some(refusal.number);
            }
            (_, ShardWhy::TooLarge) => {
                self.note_no_grant();
                end.image_bytes_max = Some(refusal.number);
            }
            // The node already knows the name from earlier requests.
            (_, ShardWhy::Retired | ShardWhy::HasGrant) => end.may_be_known = true,
            (_, ShardWhy::BadImage | ShardWhy::OtherRecords) => {
                tracing::error!(%refusal, "a memory node found a memtable image damaged");
            }
            _ => {}
        }
        self.fail(Some(refusal), end)
    }

    /// Notes that the node refused for lack of room. A node looks for a grant of the shard before
    /// it looks for room. So a refusal of a request for a grant proves that the node has neither a
    /// grant nor the shard.
    fn note_no_grant(&mut self) {
        self.may_have_ahead = false;
        if matches!(self.stage, Stage::Landing | Stage::Finding) {
            self.may_be_known = self.may_be_late;
        }
    }

    /// Asks for the grant of `bytes` that the node has: to use it if the image fits into it, and to
    /// give it back otherwise.
    fn on_lost_grant(&mut self, bytes: u64) -> TransferStep {
        self.stage = match bytes >= self.order.bytes {
            true => Stage::Landing,
            false => Stage::Finding,
        };
        self.may_be_known = true;
        self.ahead = None;
        self.grant_bytes = bytes;
        TransferStep::Ask(self.message())
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
