//! The small messages: greetings, attachments, requests and answers.
//!
//! The module consists of pure functions.

use std::time::Duration;

use archipelago_base::codec::{Reader, put_u8, put_u32, put_u64};
use archipelago_base::wire::{Malformed, Wire};
use archipelago_base::{Epoch, wire_struct};

use super::auth::{Introduction, Proof};
use crate::body::{BULK_BYTES_MAX, Body, MESSAGE_BYTES_MAX};
use crate::ids::{ClientId, NodeId, RemoteKey, Rights};
use crate::node::Answer;
use crate::refusal::{Reason, Refusal};

/// Version of the protocol, which both sides must have.
pub const VERSION: u32 = 3;
const MAGIC: u64 = u64::from_le_bytes(*b"ARCHFAB\0");
const ANY: u64 = u64::MAX;

/// The client's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The client that greets.
    pub client: ClientId,
    /// Whether this client had a link before.
    pub resumed: bool,
    /// The node that the client expects. Another node refuses the greeting.
    pub node: Option<NodeId>,
    /// The epoch that the client expects. A node in another epoch refuses the greeting.
    pub epoch: Option<Epoch>,
    /// The cluster of a client that has a secret.
    pub introduction: Option<Introduction>,
}

/// The node's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The node that greets.
    pub node: NodeId,
    /// The life of the node.
    pub epoch: Epoch,
    /// The node's proof that it knows the secret, if the client has one.
    pub proof: Option<Proof>,
}

fn begin(out: &mut Vec<u8>) {
    put_u64(out, MAGIC);
    put_u32(out, VERSION);
}

/// Checks the start of a greeting. The error is the reason to refuse it.
fn check_begin(reader: &mut Reader<'_>) -> Result<(), Reason> {
    if reader.u64() != Some(MAGIC) {
        return Err(Reason::Protocol);
    }
    match reader.u32() {
        Some(VERSION) => Ok(()),
        Some(_) => Err(Reason::Version),
        None => Err(Reason::Protocol),
    }
}

fn end<T>(reader: &Reader<'_>, value: T) -> Result<T, Reason> {
    if reader.is_empty() { Ok(value) } else { Err(Reason::Protocol) }
}

impl Hello {
    /// Appends the body of the greeting.
    pub fn encode(&self, out: &mut Vec<u8>) {
        begin(out);
        self.client.put(out);
        self.resumed.put(out);
        put_u64(out, self.node.map_or(ANY, |node| node.0));
        put_u64(out, self.epoch.map_or(ANY, |epoch| epoch.0));
        self.introduction.put(out);
    }

    /// Reads a body. The error is the reason to refuse it.
    pub fn decode(body: &[u8]) -> Result<Self, Reason> {
        let mut reader = Reader::new(body);
        check_begin(&mut reader)?;
        let mut read = || {
            let (client, resumed) = (ClientId::get(&mut reader)?, bool::get(&mut reader)?);
            let node = reader.u64()?;
            let epoch = reader.u64()?;
            let introduction = Option::<Introduction>::get(&mut reader)?;
            let node = (node != ANY).then_some(NodeId(node));
            let epoch = (epoch != ANY).then_some(Epoch(epoch));
            Some(Self { client, resumed, node, epoch, introduction })
        };
        let hello = read().ok_or(Reason::Protocol)?;
        end(&reader, hello)
    }
}

wire_struct!(Welcome { node, epoch, proof });

impl Welcome {
    /// Appends the body of the greeting.
    pub fn encode(&self, out: &mut Vec<u8>) {
        begin(out);
        self.put(out);
    }

    /// Reads a body. The error is the reason to refuse it.
    pub fn decode(body: &[u8]) -> Result<Self, Reason> {
        let mut reader = Reader::new(body);
        check_begin(&mut reader)?;
        let welcome = Self::get(&mut reader).ok_or(Reason::Protocol)?;
        end(&reader, welcome)
    }
}

/// The answer to an attachment: the region that the key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Length of the region in bytes.
    pub len: u64,
    /// Operations that the key permits.
    pub rights: Rights,
}

wire_struct!(Opened { len, rights });

impl Opened {
    /// Appends the body of an answer or of a refusal.
    pub fn encode(opened: &Result<Self, Refusal>, out: &mut Vec<u8>) {
        put_result(out, opened);
    }

    /// Reads the body of an answer or of a refusal.
    pub fn decode(body: &[u8]) -> Result<Result<Self, Refusal>, Malformed> {
        decode_result(body).ok_or(Malformed("what a key opens cannot be read"))
    }
}

/// Appends 0 and the value, or a refusal, whose first byte is not 0.
pub(super) fn put_result<T: Wire>(out: &mut Vec<u8>, result: &Result<T, Refusal>) {
    match result {
        Ok(value) => {
            put_u8(out, 0);
            value.put(out);
        }
        Err(refusal) => refusal.put(out),
    }
}

/// Decodes the output of [`put_result`], to which all bytes must belong.
pub(super) fn decode_result<T: Wire>(body: &[u8]) -> Option<Result<T, Refusal>> {
    let mut reader = Reader::new(body);
    let result = if body.first() == Some(&0) {
        reader.u8()?;
        Ok(T::get(&mut reader)?)
    } else {
        Err(Refusal::get(&mut reader)?)
    };
    reader.is_empty().then_some(result)
}

/// The body of a request, idempotent or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The client has the answers of all its requests below this number. It is 0 in an idempotent
    /// request.
    pub oldest: u64,
    /// Whether the client sent the request before. It is false in an idempotent request.
    pub retry: bool,
    /// Time that the client waits, in whole milliseconds.
    pub deadline: Duration,
    /// Limit of the answer in bytes.
    pub answer_bytes_max: usize,
    /// The application's bytes.
    pub body: &'a [u8],
}

/// The fields before the application's bytes.
struct AskHeader {
    oldest: u64,
    retry: bool,
    deadline_ms: u32,
    answer_bytes_max: u32,
}

wire_struct!(AskHeader { oldest, retry, deadline_ms, answer_bytes_max });

impl<'a> Ask<'a> {
    /// Appends the body of the request.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let deadline_ms = u32::try_from(self.deadline.as_millis()).unwrap_or(u32::MAX);
        let answer_bytes_max = u32::try_from(self.answer_bytes_max).unwrap_or(u32::MAX);
        let (oldest, retry) = (self.oldest, self.retry);
        AskHeader { oldest, retry, deadline_ms, answer_bytes_max }.put(out);
        out.extend_from_slice(self.body);
    }

    /// Reads the body of a request.
    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let header = AskHeader::get(&mut reader);
        let header = header.ok_or(Malformed("a request that cannot be read"))?;
        let body = reader.rest();
        let answer_bytes_max = header.answer_bytes_max as usize;
        if body.len() > BULK_BYTES_MAX {
            return Err(Malformed("a request that is longer than any may be"));
        }
        if answer_bytes_max > BULK_BYTES_MAX {
            return Err(Malformed("a request for an answer that is longer than any may be"));
        }
        let deadline = Duration::from_millis(u64::from(header.deadline_ms));
        let AskHeader { oldest, retry, .. } = header;
        Ok(Self { oldest, retry, deadline, answer_bytes_max, body })
    }

    /// Checks a request that the node remembers, whose answer it may have to keep.
    pub fn check_once(&self) -> Result<(), Malformed> {
        match self.answer_bytes_max > MESSAGE_BYTES_MAX {
            true => Err(Malformed("a request for a bulk answer, which is not idempotent")),
            false => Ok(()),
        }
    }

    /// Checks an idempotent request, which has no number that the node remembers.
    pub fn check_idempotent(&self) -> Result<(), Malformed> {
        match self.oldest != 0 || self.retry {
            true => Err(Malformed("an idempotent request with fields of a numbered one")),
            false => Ok(()),
        }
    }
}

/// Appends the body of an answer.
pub fn put_answer(out: &mut Vec<u8>, answer: &Answer) {
    match answer {
        Ok(body) => {
            put_u8(out, 0);
            out.extend_from_slice(body);
        }
        Err(refusal) => refusal.put(out),
    }
}

/// Reads the body of an answer of at most `bytes_max` bytes.
pub fn decode_answer(body: &[u8], bytes_max: usize) -> Result<Answer, Malformed> {
    const WRONG: Malformed = Malformed("an answer that cannot be read");
    match body.split_first().ok_or(WRONG)? {
        (0, rest) if rest.len() <= bytes_max => Ok(Ok(Body::copy(rest))),
        (0, _) => Err(WRONG),
        _ => {
            let mut reader = Reader::new(body);
            let refusal = Refusal::get(&mut reader).ok_or(WRONG)?;
            if reader.is_empty() { Ok(Err(refusal)) } else { Err(WRONG) }
        }
    }
}

/// Reads the body of a goodbye: the reason to close the link, and a text for log lines.
pub fn decode_goodbye(body: &[u8]) -> Result<(Refusal, &[u8]), Malformed> {
    let mut reader = Reader::new(body);
    let refusal = Refusal::get(&mut reader).ok_or(Malformed("a goodbye that cannot be read"))?;
    Ok((refusal, reader.rest()))
}

/// Reads a body that is a key and nothing else.
pub fn decode_key(body: &[u8]) -> Result<RemoteKey, Malformed> {
    let mut reader = Reader::new(body);
    let key = RemoteKey::get(&mut reader).filter(|_| reader.is_empty());
    key.ok_or(Malformed("a key that cannot be read"))
}
