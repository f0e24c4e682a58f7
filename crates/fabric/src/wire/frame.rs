//! Frames: a header with a checksum, whose length field can then be trusted, and a body with a
//! checksum.
//!
//! The module consists of pure functions.

use archipelago_base::checksum::{crc, crc_append};
use archipelago_base::wire::Malformed;

use crate::batch::{BATCH_BYTES_MAX, BATCH_OPS_MAX};

/// Length of the header, in bytes.
pub const FRAME_HEADER_BYTES: usize = 24;
/// Limit of a body's length, which the largest batch needs.
pub const FRAME_BODY_MAX: usize = BATCH_BYTES_MAX + BATCH_OPS_MAX * 64 + 64;

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The client's greeting: its name, and the node that it expects.
    Hello = 1,
    /// The node's greeting: its name.
    Welcome = 2,
    /// The node's reason to close the link.
    Goodbye = 3,
    /// The client's question about the region that a key opens.
    Attach = 4,
    /// The node's answer to an attachment, or a refusal.
    Attached = 5,
    /// The client's notice (`shm`) that it unmapped a region.
    Detach = 6,
    /// Operations of the client.
    Batch = 7,
    /// Outcomes of a batch.
    Done = 8,
    /// A request of the client.
    Request = 9,
    /// The node's answer to a request.
    Answer = 10,
    /// Names of endpoints (`ofi`), from both sides.
    Endpoints = 11,
    /// An idempotent request of the client, which the node does not remember.
    Idempotent = 12,
    /// The node's answer to an idempotent request.
    IdempotentAnswer = 13,
    /// The node's question for a proof that the client knows the secret.
    Challenge = 14,
    /// The client's proof.
    Proof = 15,
}

impl Kind {
    fn from_code(code: u8) -> Option<Self> {
        const ALL: [Kind; 15] = [
            Kind::Hello,
            Kind::Welcome,
            Kind::Goodbye,
            Kind::Attach,
            Kind::Attached,
            Kind::Detach,
            Kind::Batch,
            Kind::Done,
            Kind::Request,
            Kind::Answer,
            Kind::Endpoints,
            Kind::Idempotent,
            Kind::IdempotentAnswer,
            Kind::Challenge,
            Kind::Proof,
        ];
        ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// A frame within a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The purpose of the frame.
    pub kind: Kind,
    /// Number that a question and its answer share.
    pub number: u64,
    /// The bytes after the header.
    pub body: &'a [u8],
}

/// Appends a frame whose body `fill` appends.
pub fn put_frame(out: &mut Vec<u8>, kind: Kind, number: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    fill(out);
    let (header, body) = out[start..].split_at_mut(FRAME_HEADER_BYTES);
    assert!(body.len() <= FRAME_BODY_MAX, "a body that no frame takes");
    header[0..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[4] = kind as u8;
    header[8..16].copy_from_slice(&number.to_le_bytes());
    let head_crc = crc(&header[..16]);
    header[16..20].copy_from_slice(&head_crc.to_le_bytes());
    // The checksum covers the header's, so that a body does not fit another frame's header.
    let body_crc = crc_append(head_crc, body);
    header[20..24].copy_from_slice(&body_crc.to_le_bytes());
}

/// The frame at the start of `bytes` and its length; `None` if bytes are missing.
pub fn frame_at(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((header, rest)) = bytes.split_at_checked(FRAME_HEADER_BYTES) else { return Ok(None) };
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let head_crc = crc(&header[..16]);
    if word(16) != head_crc {
        return Err(Malformed("a frame's header does not match its checksum"));
    }
    let kind = Kind::from_code(header[4]).ok_or(Malformed("a frame of an unknown kind"))?;
    if header[5..8] != [0; 3] {
        return Err(Malformed("a frame with reserved bytes set"));
    }
    let len = word(0) as usize;
    if len > FRAME_BODY_MAX {
        return Err(Malformed("a frame that is longer than any may be"));
    }
    let Some(body) = rest.get(..len) else { return Ok(None) };
    if word(20) != crc_append(head_crc, body) {
        return Err(Malformed("a frame's body does not match its checksum"));
    }
    let number = u64::from(word(8)) | u64::from(word(12)) << 32;
    Ok(Some((Frame { kind, number, body }, FRAME_HEADER_BYTES + len)))
}
