//! A TCP socket as a [`Stream`].

use std::io::{self, Read, Write};
#[cfg(feature = "ofi")]
use std::net::IpAddr;
use std::net::{Shutdown, TcpStream};
#[cfg(feature = "ofi")]
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use archipelago_base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};

use crate::alarm::{Alarm, timespec};
use crate::stream::Stream;

#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    alarm: Alarm,
}

impl Socket {
    /// Disables the system's delay of small packets, because this layer joins frames itself.
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(|source| {
            Error::with_source(ErrorKind::Io, "cannot set up a TCP connection", source)
        })?;
        Ok(Self { stream, alarm: Alarm::new()? })
    }

    /// The connection, and the alarm that ends a wait for it, for a wait on several connections.
    #[cfg(feature = "ofi")]
    pub(crate) fn fds(&self) -> (BorrowedFd<'_>, &Alarm) {
        (self.stream.as_fd(), &self.alarm)
    }

    /// Address of this side.
    #[cfg(feature = "ofi")]
    pub(crate) fn local(&self) -> io::Result<IpAddr> {
        self.stream.local_addr().map(|address| address.ip())
    }
}

impl Stream for Socket {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(into)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.stream).write(bytes)
    }

    fn wait(&self, read: bool, write: bool, timeout: Option<Duration>) {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, read);
        events.set(PollFlags::OUT, write);
        let mut fds = [
            PollFd::new(&self.stream, events),
            PollFd::from_borrowed_fd(self.alarm.fd(), PollFlags::IN),
        ];
        let timeout = timeout.map(timespec);
        // The callers expect an early return, so an interruption needs no retry.
        let _ready = poll(&mut fds, timeout.as_ref());
        if !fds[1].revents().is_empty() {
            self.alarm.take();
        }
    }

    fn nudge(&self) {
        self.alarm.ring();
    }

    fn shut(&self) {
        // The stream may be down already.
        let _shut = self.stream.shutdown(Shutdown::Both);
        self.alarm.ring();
    }
}
