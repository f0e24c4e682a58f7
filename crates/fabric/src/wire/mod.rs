//! The messages of links: frames, and the bodies in them. `docs/formats/fabric.md` has the byte
//! tables.
//!
//! A decoder answers every input with a message or with a sentence that names the fault. It
//! allocates for a length only after it has the bytes. The modules do no I/O.

mod auth;
mod batch;
mod frame;
mod ids;
mod message;
pub mod ofi;
#[cfg(test)]
mod tests;

pub use auth::{Challenge, Introduction, NONCE_BYTES, Nonce, PROOF_BYTES, Proof};
pub use batch::{WireAction, WireOp, decode_done, decode_ops, encode_ops};
pub(crate) use batch::{put_done, put_done_read, put_refused};
pub use frame::{FRAME_BODY_MAX, FRAME_HEADER_BYTES, Frame, Kind, frame_at, put_frame};
pub use message::{
    Ask, Hello, Opened, VERSION, Welcome, decode_answer, decode_goodbye, decode_key, put_answer,
};
