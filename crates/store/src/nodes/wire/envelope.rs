//! The envelope: a message of the store and its payload as the body of a request or an answer.
//!
//! | bytes | what |
//! | --- | --- |
//! | 1 | version of the messages |
//! | 4 | length of the message |
//! | n | message |
//! | rest | payload |
//!
//! All functions are pure. Failure: a body that is no envelope is [`Malformed`].
//! Cost: [`seal`] allocates once and copies the payload. [`head`] and [`open`] copy no payload.

use archipelago_base::codec::{Reader, put_u8, put_u32};
use archipelago_base::wire::{MESSAGE_BYTES, Malformed};
use archipelago_fabric::BULK_BYTES_MAX;

use super::{StoreMessage, VERSION};

/// Bytes before the message.
const HEAD_BYTES: usize = 5;

/// Limit of a payload in bytes. The rest of a bulk request is for the message, with the checksums
/// of the payload's pieces.
pub const PAYLOAD_BYTES_MAX: usize = BULK_BYTES_MAX - (64 << 10);

/// The body that carries `message` and `payload`.
#[must_use]
pub fn seal(message: &StoreMessage, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(HEAD_BYTES + MESSAGE_BYTES + payload.len());
    put_head(message, &mut body);
    body.extend_from_slice(payload);
    body
}

/// The part of a body before the payload, for a caller that sends both without joining them.
#[must_use]
pub fn head(message: &StoreMessage) -> Vec<u8> {
    let mut body = Vec::with_capacity(HEAD_BYTES + MESSAGE_BYTES);
    put_head(message, &mut body);
    body
}

fn put_head(message: &StoreMessage, body: &mut Vec<u8>) {
    put_u8(body, VERSION);
    put_u32(body, 0);
    message.append_to(body);
    let len = (body.len() - HEAD_BYTES) as u32;
    body[1..HEAD_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// The message and the payload of a body.
pub fn open(body: &[u8]) -> Result<(StoreMessage, &[u8]), Malformed> {
    let mut reader = Reader::new(body);
    match reader.u8() {
        Some(VERSION) => {}
        Some(_) => return Err(Malformed("an envelope of another version")),
        None => return Err(Malformed("an empty envelope")),
    }
    let len = reader.u32().ok_or(Malformed("an envelope that is cut off"))?;
    let message = reader.take(len as usize).ok_or(Malformed("an envelope that is cut off"))?;
    Ok((StoreMessage::decode(message)?, reader.rest()))
}
