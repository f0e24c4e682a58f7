//! The small messages: greeting, attachment, requests and answers.

use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::codec::{Reader, put_u8, put_u32, put_u64};

use super::Malformed;
use crate::MESSAGE_BYTES_MAX;
use crate::body::Body;
use crate::ids::{ClientId, NodeId, RemoteKey, Rights};
use crate::node::Answer;
use crate::refusal::{Reason, Refusal};

/// Version of the protocol; both sides must have the same.
pub const VERSION: u32 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"ARCHFAB\0");
const ANY: u64 = u64::MAX;

/// The client's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who calls.
    pub client: ClientId,
    /// Whether this client had a link before.
    pub resumed: bool,
    /// Refuse unless the node is this one.
    pub node: Option<NodeId>,
    /// Refuse unless the node is in this epoch.
    pub epoch: Option<Epoch>,
}

/// The node's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Who it is.
    pub node: NodeId,
    /// In which life.
    pub epoch: Epoch,
}

fn begin(out: &mut Vec<u8>) {
    put_u64(out, MAGIC);
    put_u32(out, VERSION);
}

/// Why a greeting cannot be answered by another.
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
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        begin(out);
        put_u64(out, self.client.0);
        put_u8(out, u8::from(self.resumed));
        put_u64(out, self.node.map_or(ANY, |node| node.0));
        put_u64(out, self.epoch.map_or(ANY, |epoch| epoch.0));
    }

    /// Reads a body; the reason to refuse it.
    pub fn decode(body: &[u8]) -> Result<Self, Reason> {
        let mut reader = Reader::new(body);
        check_begin(&mut reader)?;
        let mut read = || {
            let client = ClientId(reader.u64()?);
            let resumed = match reader.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let node = reader.u64()?;
            let epoch = reader.u64()?;
            let node = (node != ANY).then_some(NodeId(node));
            Some(Self { client, resumed, node, epoch: (epoch != ANY).then_some(Epoch(epoch)) })
        };
        let hello = read().ok_or(Reason::Protocol)?;
        end(&reader, hello)
    }
}

impl Welcome {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        begin(out);
        put_u64(out, self.node.0);
        put_u64(out, self.epoch.0);
    }

    /// Reads a body; the reason to refuse it.
    pub fn decode(body: &[u8]) -> Result<Self, Reason> {
        let mut reader = Reader::new(body);
        check_begin(&mut reader)?;
        let mut read = || Some(Self { node: NodeId(reader.u64()?), epoch: Epoch(reader.u64()?) });
        let welcome = read().ok_or(Reason::Protocol)?;
        end(&reader, welcome)
    }
}

/// What a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes.
    pub len: u64,
    /// What may be done.
    pub rights: Rights,
}

impl Opened {
    /// Appends a body: this, or a refusal.
    pub fn encode(opened: &Result<Self, Refusal>, out: &mut Vec<u8>) {
        match opened {
            Ok(opened) => {
                put_u8(out, 0);
                put_u64(out, opened.len);
                put_u8(out, opened.rights.bits());
            }
            Err(refusal) => put_refusal(out, *refusal),
        }
    }

    /// Reads a body.
    pub fn decode(body: &[u8]) -> Result<Result<Self, Refusal>, Malformed> {
        const WRONG: Malformed = Malformed("what a key opens cannot be read");
        let mut reader = Reader::new(body);
        let mut read = || match reader.u8()? {
            0 => {
                let len = reader.u64()?;
                Some(Ok(Self { len, rights: Rights::from_bits(reader.u8()?)? }))
            }
            code => Some(Err(get_refusal(code, &mut reader)?)),
        };
        let opened = read().ok_or(WRONG)?;
        if reader.is_empty() { Ok(opened) } else { Err(WRONG) }
    }
}

/// A request's body on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// All numbers below are answered.
    pub oldest: u64,
    /// Whether it was sent before.
    pub retry: bool,
    /// How long the client waits; in whole milliseconds.
    pub deadline: Duration,
    /// What is asked.
    pub body: &'a [u8],
}

impl<'a> Ask<'a> {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.oldest);
        put_u8(out, u8::from(self.retry));
        put_u32(out, u32::try_from(self.deadline.as_millis()).unwrap_or(u32::MAX));
        out.extend_from_slice(self.body);
    }

    /// Reads a body.
    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let mut read = || {
            let oldest = reader.u64()?;
            let retry = match reader.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            Some((oldest, retry, reader.u32()?))
        };
        let (oldest, retry, ms) = read().ok_or(Malformed("a request that cannot be read"))?;
        let body = reader.rest();
        if body.len() > MESSAGE_BYTES_MAX {
            return Err(Malformed("a request that is longer than any may be"));
        }
        Ok(Self { oldest, retry, deadline: Duration::from_millis(u64::from(ms)), body })
    }
}

/// Appends an answer's body.
pub fn put_answer(out: &mut Vec<u8>, answer: &Answer) {
    match answer {
        Ok(body) => {
            put_u8(out, 0);
            out.extend_from_slice(body);
        }
        Err(refusal) => put_refusal(out, *refusal),
    }
}

/// Reads an answer's body.
pub fn decode_answer(body: &[u8]) -> Result<Answer, Malformed> {
    const WRONG: Malformed = Malformed("an answer that cannot be read");
    match body.split_first().ok_or(WRONG)? {
        (0, rest) if rest.len() <= MESSAGE_BYTES_MAX => Ok(Ok(Body::copy(rest))),
        (0, _) => Err(WRONG),
        (&code, rest) => {
            let mut reader = Reader::new(rest);
            let refusal = get_refusal(code, &mut reader).ok_or(WRONG)?;
            if reader.is_empty() { Ok(Err(refusal)) } else { Err(WRONG) }
        }
    }
}

/// Reads the body of a goodbye: why the node closes the link, and the text for people.
pub fn decode_goodbye(body: &[u8]) -> Result<(Refusal, &[u8]), Malformed> {
    let mut reader = Reader::new(body);
    let mut read = || get_refusal(reader.u8()?, &mut reader);
    let refusal = read().ok_or(Malformed("a goodbye that cannot be read"))?;
    Ok((refusal, reader.rest()))
}

/// Reads a body that is a key and nothing else.
pub fn decode_key(body: &[u8]) -> Result<RemoteKey, Malformed> {
    let mut reader = Reader::new(body);
    let key = RemoteKey::decode(&mut reader).filter(|_| reader.is_empty());
    key.ok_or(Malformed("a key that cannot be read"))
}

pub(super) fn put_refusal(out: &mut Vec<u8>, refusal: Refusal) {
    put_u8(out, refusal.reason.code());
    put_u64(out, refusal.limit);
}

pub(super) fn get_refusal(code: u8, reader: &mut Reader<'_>) -> Option<Refusal> {
    Some(Refusal { reason: Reason::from_code(code)?, limit: reader.u64()? })
}
