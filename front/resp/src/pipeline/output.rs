//! Output of one connection: the replies that are not sent, and the memory that they hold.
//!
//! The pipeline owns it. Invariants:
//!
//! 1. Output of up to [`FREE_BYTES`] need not hold memory. Larger output holds the bytes of its
//!    buffer of the share for replies ([`crate::memory::Shares::outgoing`]), or at least the bytes
//!    of its replies if the share is overdrawn.
//! 2. The output never waits for memory. If the last reply does not fit and its command may run
//!    again, the output drops this reply and says how many bytes it needs.
//! 3. Output that exceeds the limit of one client is dropped, and its connection closes.
//!
//! Cost: nothing for small output, and one short lock for each large reply.

use super::{INPUT_BYTES_USUAL, REPLY_FLUSH_BYTES};
use crate::memory::{FREE_BYTES, Held, Share};
use crate::reply::Reply;
use crate::session::Session;

/// Replies of one connection that are not sent, and the memory that they hold.
#[derive(Default)]
pub(crate) struct Output {
    reply: Reply,
    held: Held,
}

impl Output {
    /// The replies that wait for the client.
    pub(crate) fn reply(&self) -> &Reply {
        &self.reply
    }

    /// The replies, for a command that adds its own.
    pub(crate) fn reply_mut(&mut self) -> &mut Reply {
        &mut self.reply
    }

    /// The memory that the output holds of the share for replies.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// The same memory, to hold more for a reply that is to be made, or to lend it to a command.
    pub(crate) fn held_mut(&mut self) -> &mut Held {
        &mut self.held
    }

    /// Removes the output, which was sent, and releases its memory.
    pub(super) fn sent(&mut self) {
        self.reply.sent(INPUT_BYTES_USUAL);
        self.held.shrink(0);
    }

    /// Drops the output, and releases its memory and its buffer.
    pub(super) fn release(&mut self) {
        self.reply.take_back(0);
        self.held.shrink(0);
    }

    /// Holds memory for the output, and releases what the output does not need. Its last reply
    /// begins at `mark`. If that reply does not fit and `may_repeat` says that its command may run
    /// again, it is dropped. Then the result is the number of bytes that it needs. A reply that
    /// never fits becomes a refusal.
    pub(super) fn bound(
        &mut self,
        session: &Session,
        mark: usize,
        may_repeat: impl FnOnce() -> bool,
    ) -> Option<u64> {
        let bytes = self.reply.len() as u64;
        if bytes <= FREE_BYTES {
            self.held.shrink(0);
            return None;
        }
        let share = &session.shared.memory.outgoing;
        if session.is_over_output_limit(bytes) || self.hold(share) || !may_repeat() {
            self.count(session);
            return None;
        }
        let alone = bytes - mark as u64;
        self.reply.take_back(mark);
        if alone <= share.limit_bytes() {
            return Some(alone);
        }
        self.reply.error(&share.refusal(alone).line());
        self.count(session);
        None
    }

    /// Makes the output hold the bytes of its buffer, without waiting. If they are not free, or if
    /// no reply follows before the output is sent, the buffer gives its free bytes back first.
    /// Returns whether the bytes are held.
    fn hold(&mut self, share: &Share) -> bool {
        if self.reply.len() >= REPLY_FLUSH_BYTES {
            self.reply.fit();
        }
        let mut is_held = share.try_hold(&mut self.held, self.reply.capacity() as u64);
        if !is_held {
            self.reply.fit();
            is_held = share.try_hold(&mut self.held, self.reply.len() as u64);
        }
        if is_held {
            self.held.shrink(self.reply.capacity() as u64);
        }
        is_held
    }

    /// Holds memory for the output, whether it is free or not, because the commands have run. If
    /// the output exceeds the limit of one client, drops it and closes the connection.
    pub(super) fn count(&mut self, session: &Session) {
        let bytes = self.reply.len() as u64;
        if bytes <= FREE_BYTES {
            return;
        }
        if session.is_over_output_limit(bytes) {
            self.release();
            session.cut_off(bytes);
            return;
        }
        let share = &session.shared.memory.outgoing;
        if !self.hold(share) {
            share.overdraw(&mut self.held, bytes);
        }
    }
}
