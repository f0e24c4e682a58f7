//! The greeting, which are the first frames of a link. The client names itself and the node that it
//! expects. The node names itself, or refuses.

use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::{Epoch, Result};

use super::{Arrived, Incoming, Stream};
use crate::link::{Connect, Peer};
use crate::node::Node;
use crate::refusal::{Reason, Refusal};
use crate::wire::{FRAME_HEADER_BYTES, Frame, Hello, Kind, Welcome, decode_goodbye, put_frame};

/// Decides whether a node accepts a client. Returns the node's greeting.
pub(crate) fn admit(node: &Node, hello: &Hello) -> Result<Welcome, Refusal> {
    let epoch = node.epoch();
    if hello.node.is_some_and(|expected| expected != node.id()) {
        return Err(Reason::WrongNode.into());
    }
    if hello.epoch.is_some_and(|expected| expected != epoch) {
        return Err(Refusal::at(Reason::StaleEpoch, epoch.0));
    }
    Ok(Welcome { node: node.id(), epoch })
}

/// The client's greeting for a connection.
pub(crate) fn hello_of(to: &Connect) -> Hello {
    Hello {
        client: to.session.client(),
        resumed: to.session.resumed(),
        node: to.node,
        epoch: to.epoch,
    }
}

/// Reads the node's greeting from its first frame.
pub(crate) fn welcome_of(frame: &Frame<'_>) -> Result<Peer, Refusal> {
    match frame.kind {
        Kind::Welcome => {
            let welcome = Welcome::decode(frame.body)?;
            Ok(Peer { node: welcome.node, epoch: Epoch(welcome.epoch.0) })
        }
        Kind::Goodbye => {
            Err(decode_goodbye(frame.body).map_or(Reason::Protocol.into(), |(refusal, _)| refusal))
        }
        _ => Err(Reason::Protocol.into()),
    }
}

/// Exchanges greetings over a stream, on the client's side.
pub(crate) fn call(
    stream: &impl Stream,
    clock: &dyn Clock,
    to: &Connect,
) -> Result<(Peer, Incoming), Refusal> {
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Hello, 0, |body| hello_of(to).encode(body));
    send(stream, &out)?;
    let mut incoming = Incoming::new();
    let peer = next_frame(stream, clock, to.deadline, &mut incoming, welcome_of)?;
    to.session.welcomed();
    Ok((peer, incoming))
}

/// Limit of the bytes of a greeting. A longer frame is not a greeting.
pub(crate) const GREETING_BYTES_MAX: usize = 512;

/// Reads one frame of a greeting.
pub(crate) fn next_frame<T>(
    stream: &impl Stream,
    clock: &dyn Clock,
    deadline: Duration,
    incoming: &mut Incoming,
    read: impl Fn(&Frame<'_>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let end_ns = clock.now_ns().saturating_add(deadline.as_nanos() as u64);
    loop {
        let found = match incoming.frame() {
            Err(_) => return Err(Reason::Protocol.into()),
            Ok(Some((frame, bytes))) => Some((read(&frame)?, bytes)),
            Ok(None) if incoming.len() > FRAME_HEADER_BYTES + GREETING_BYTES_MAX => {
                return Err(Reason::Protocol.into());
            }
            Ok(None) => None,
        };
        if let Some((value, bytes)) = found {
            incoming.consume(bytes);
            return Ok(value);
        }
        let left_ns = end_ns.saturating_sub(clock.now_ns());
        if left_ns == 0 {
            return Err(Reason::Deadline.into());
        }
        stream.wait(true, false, Some(Duration::from_nanos(left_ns)));
        if incoming.fill(stream) == Arrived::End {
            return Err(Reason::Disconnected.into());
        }
    }
}

/// Sends a greeting, which fits into the buffer of any stream.
pub(crate) fn send(stream: &impl Stream, bytes: &[u8]) -> Result<(), Refusal> {
    match stream.try_write(bytes) {
        Ok(count) if count == bytes.len() => Ok(()),
        _ => Err(Reason::Disconnected.into()),
    }
}
