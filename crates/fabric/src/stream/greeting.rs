//! The greeting: the first frames of a link. The client sends its id and the node that it expects.
//! The node sends its id, or a refusal.

use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::Clock;

use super::{Arrived, Incoming, Stream};
use crate::auth::{Admission, ClientGreeting, ClientStep, Secret};
use crate::link::{Connect, Peer};
use crate::node::Node;
use crate::refusal::{Reason, Refusal};
use crate::wire::{FRAME_HEADER_BYTES, Frame, Hello, Welcome};

/// Decides whether a node accepts a client that belongs to its cluster. Returns the node's
/// greeting.
pub(crate) fn admit(node: &Node, admission: Admission) -> Result<Welcome, Refusal> {
    let (hello, epoch) = (&admission.hello, node.epoch());
    if hello.node.is_some_and(|expected| expected != node.id()) {
        return Err(Reason::WrongNode.into());
    }
    if hello.epoch.is_some_and(|expected| expected != epoch) {
        return Err(Refusal::at(Reason::StaleEpoch, epoch.0));
    }
    Ok(admission.sign(Welcome { node: node.id(), epoch, proof: None }))
}

/// The client's greeting for a connection.
pub(crate) fn hello_of(to: &Connect) -> Hello {
    Hello {
        client: to.session.client(),
        resumed: to.session.resumed(),
        node: to.node,
        epoch: to.epoch,
        introduction: None,
    }
}

/// The node of a greeting.
pub(crate) fn peer_of(welcome: &Welcome) -> Peer {
    Peer { node: welcome.node, epoch: welcome.epoch }
}

/// Exchanges greetings over a stream, on the client's side.
pub(crate) fn call(
    stream: &impl Stream,
    clock: &dyn Clock,
    to: &Connect,
    secret: Option<&Secret>,
) -> Result<(Peer, Incoming), Refusal> {
    let end_ns = clock.now_ns().saturating_add(to.deadline.as_nanos() as u64);
    let (mut greeting, hello) = ClientGreeting::begin(secret, hello_of(to))?;
    send(stream, &hello)?;
    let mut incoming = Incoming::new();
    loop {
        let left = Duration::from_nanos(end_ns.saturating_sub(clock.now_ns()));
        let step = next_frame(stream, clock, left, &mut incoming, |frame| greeting.hear(frame))?;
        match step {
            ClientStep::Send(frame) => send(stream, &frame)?,
            ClientStep::Welcomed(welcome) => {
                to.session.welcomed();
                return Ok((peer_of(&welcome), incoming));
            }
        }
    }
}

/// Limit of the bytes of a greeting. A longer frame is not a greeting.
pub(crate) const GREETING_BYTES_MAX: usize = 512;

/// Reads one frame of a greeting.
pub(crate) fn next_frame<T>(
    stream: &impl Stream,
    clock: &dyn Clock,
    deadline: Duration,
    incoming: &mut Incoming,
    mut read: impl FnMut(&Frame<'_>) -> Result<T, Refusal>,
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
        if left_ns > 0 {
            stream.wait(true, false, Some(Duration::from_nanos(left_ns)));
        }
        // A frame that arrived in time counts, even if this thread was paused beyond the deadline.
        match incoming.fill(stream) {
            Arrived::Bytes => {}
            Arrived::Nothing if left_ns == 0 => return Err(Reason::Deadline.into()),
            Arrived::Nothing => {}
            Arrived::End => return Err(Reason::Disconnected.into()),
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use archipelago_base::clock::ManualClock;

    use super::*;
    use crate::wire::{Kind, put_frame};

    /// A stream with bytes that have arrived.
    struct Arriving(Mutex<Vec<u8>>);

    impl Stream for Arriving {
        fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
            let mut left = self.0.lock().expect("no thread panics");
            if left.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = left.len().min(into.len());
            into[..count].copy_from_slice(&left[..count]);
            left.drain(..count);
            Ok(count)
        }

        fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn wait(&self, _read: bool, _write: bool, _timeout: Option<Duration>) {}

        fn nudge(&self) {}

        fn shut(&self) {}
    }

    /// Reads a frame after the deadline has passed.
    fn read_late(arrived: &[u8]) -> Result<Vec<u8>, Refusal> {
        let stream = Arriving(Mutex::new(arrived.to_vec()));
        let (clock, mut incoming) = (ManualClock::new(0), Incoming::new());
        next_frame(&stream, &clock, Duration::ZERO, &mut incoming, |frame| Ok(frame.body.to_vec()))
    }

    #[test]
    fn frame_that_arrived_before_a_pause_is_read() {
        let mut frame = Vec::new();
        put_frame(&mut frame, Kind::Welcome, 0, |body| body.extend_from_slice(b"coral"));
        assert_eq!(read_late(&frame), Ok(b"coral".to_vec()));
        let late = Err(Refusal::new(Reason::Deadline));
        assert_eq!(read_late(&frame[..frame.len() - 1]), late);
        assert_eq!(read_late(&[]), late);
    }
}
