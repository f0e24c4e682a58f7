//! Messages of the Unix socket. Each is one frame with up to two descriptors. The socket keeps the
//! boundaries of messages (`SOCK_SEQPACKET`), so a message is read as a whole or refused.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use archipelago_base::wire::Malformed;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::wire::{Frame, frame_at};

/// Limit of a message's bytes.
const MESSAGE_BYTES_MAX: usize = 512;
const DESCRIPTORS_MAX: usize = 2;

/// A message that was received.
#[derive(Debug)]
pub(super) struct Envelope {
    bytes: [u8; MESSAGE_BYTES_MAX],
    len: usize,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Envelope {
    /// The only frame of the message.
    pub(super) fn frame(&self) -> Result<Frame<'_>, Malformed> {
        match frame_at(&self.bytes[..self.len])? {
            Some((frame, bytes)) if bytes == self.len => Ok(frame),
            _ => Err(Malformed("a message that is not one frame")),
        }
    }
}

/// Sends without blocking, whatever the mode of the socket is. A full socket is an error.
pub(super) fn send(socket: impl AsFd, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(socket, &[IoSlice::new(frame)], &mut control, flags)?;
    if sent == frame.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives one message; `None` at the end. The call blocks if the socket does. If a stop of the
/// process interrupts the call, it starts again with its whole time limit.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<Envelope>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut envelope = Envelope { bytes: [0; MESSAGE_BYTES_MAX], len: 0, descriptors: Vec::new() };
    let mut parts = [IoSliceMut::new(&mut envelope.bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = retry_on_intr(|| recvmsg(&socket, &mut parts, &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            envelope.descriptors.extend(fds);
        }
    }
    if got.flags.contains(ReturnFlags::TRUNC) || got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    envelope.len = got.bytes;
    Ok((got.bytes > 0).then_some(envelope))
}
