//! The TCP connection of a link. It carries the greetings, the names of the endpoints and the
//! reason for the end. It also shows that the other side has ended, which an unconnected endpoint
//! does not.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a malformed frame ends the link.
//! Cost: no traffic while the link is in use.

use std::time::Duration;

use archipelago_base::clock::Clock;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::ffi::End;
use crate::alarm::{Alarm, timespec};
use crate::refusal::{Reason, Refusal};
use crate::stream::{Arrived, Incoming, Stream, farewell, next_frame, send};
use crate::tcp::socket::Socket;
use crate::wire::ofi::Endpoints;
use crate::wire::{Frame, Kind, put_frame};

/// Reads the other side's endpoints, or its reason to close the link.
fn endpoints_of(frame: &Frame<'_>) -> Result<Endpoints, Refusal> {
    match frame.kind {
        Kind::Endpoints => Endpoints::decode(frame.body).map_err(|_| Reason::Protocol.into()),
        Kind::Goodbye => Err(farewell(frame.body)),
        _ => Err(Reason::Protocol.into()),
    }
}

#[derive(Debug)]
struct Heard {
    incoming: Incoming,
    ended: bool,
    last_words: Option<Refusal>,
}

#[derive(Debug)]
pub(super) struct Control {
    socket: Socket,
    /// Ends the wait for one-sided completions. The alarm of the socket ends the wait for messages.
    alarm: Alarm,
    heard: Mutex<Heard>,
}

impl Control {
    /// Makes the control of a connection after its greeting. `incoming` has the bytes after that.
    pub(super) fn new(socket: Socket, incoming: Incoming) -> archipelago_base::Result<Self> {
        let heard = Mutex::new(Heard { incoming, ended: false, last_words: None });
        Ok(Self { socket, alarm: Alarm::new()?, heard })
    }

    /// Sends `greeting` and this side's endpoints.
    pub(super) fn tell(&self, mut greeting: Vec<u8>, mine: &Endpoints) -> Result<(), Refusal> {
        put_frame(&mut greeting, Kind::Endpoints, 0, |body| mine.encode(body));
        send(&self.socket, &greeting)
    }

    /// Receives the other side's endpoints. Further bytes after them are refused.
    pub(super) fn hear(&self, clock: &dyn Clock, deadline: Duration) -> Result<Endpoints, Refusal> {
        let mut heard = self.heard.lock();
        let incoming = &mut heard.incoming;
        let theirs = next_frame(&self.socket, clock, deadline, incoming, endpoints_of)?;
        drop(heard);
        // Bytes that arrived with the endpoints would not end a later wait.
        if self.ended() {
            return Err(self.last_words().unwrap_or(Reason::Disconnected.into()));
        }
        Ok(theirs)
    }

    /// Whether the other side has ended or broken the protocol. The check is one system call.
    pub(super) fn ended(&self) -> bool {
        let mut heard = self.heard.lock();
        if heard.ended {
            return true;
        }
        while !heard.ended {
            let said = match heard.incoming.frame() {
                Ok(None) => None,
                Ok(Some((frame, _))) if frame.kind == Kind::Goodbye => Some(farewell(frame.body)),
                Ok(Some(_)) | Err(_) => Some(Reason::Protocol.into()),
            };
            if said.is_some() {
                heard.last_words = said;
                heard.ended = true;
                break;
            }
            match heard.incoming.fill(&self.socket) {
                Arrived::Nothing => return false,
                Arrived::End => heard.ended = true,
                Arrived::Bytes => {}
            }
        }
        true
    }

    pub(super) fn last_words(&self) -> Option<Refusal> {
        self.heard.lock().last_words
    }

    /// Sends the frame with the reason for the end.
    pub(super) fn say_last(&self, frame: &[u8]) {
        // The frame is best effort.
        let _sent = send(&self.socket, frame);
    }

    pub(super) fn shut(&self) {
        self.heard.lock().ended = true;
        self.socket.shut();
        self.alarm.ring();
    }

    /// Ends the wait for messages.
    pub(super) fn nudge_messages(&self) {
        self.socket.fds().1.ring();
    }

    /// Sleeps until `end` has a completion, the other side has ended, or the alarm rings.
    /// `messages` chooses the alarm.
    pub(super) fn sleep(&self, end: &End, messages: bool, timeout: Option<Duration>) {
        let (connection, bell) = self.socket.fds();
        let alarm = if messages { bell } else { &self.alarm };
        if !end.may_sleep() {
            return;
        }
        let mut fds = [
            PollFd::from_borrowed_fd(end.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(alarm.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(connection, PollFlags::IN),
        ];
        let timeout = timeout.map(timespec);
        // The callers expect an early return, so an interruption needs no retry.
        let _ready = poll(&mut fds, timeout.as_ref());
        let (rang, spoke) = (!fds[1].revents().is_empty(), !fds[2].revents().is_empty());
        if rang {
            alarm.take();
        }
        if spoke {
            self.ended();
        }
    }

    /// Whether the end is known without a system call.
    pub(super) fn known_ended(&self) -> bool {
        self.heard.lock().ended
    }
}
