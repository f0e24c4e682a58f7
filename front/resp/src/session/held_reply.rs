//! Memory that the reply of a command holds before the command takes effect.
//!
//! A command that changes something cannot run again after its change, and the client must get its
//! reply. So the command holds memory of the share for replies
//! ([`crate::memory::Shares::outgoing`]) between the moment at which it knows the size of its reply
//! and the moment at which it changes something. EXEC does so for the replies of all its commands,
//! before its write. The session owns the memory until the pipeline takes it over for the output.
//! Invariants:
//!
//! 1. The session never waits for memory of that share, because the command holds locks. If the
//!    memory is not free, the command changes nothing and leaves no reply. The pipeline then waits,
//!    lends the memory to the session and runs the command again.
//! 2. Replies of up to [`FREE_BYTES`] hold nothing. A command of a transaction holds nothing
//!    either, because its reply belongs to that of EXEC.
//!
//! Cost: one comparison for a small reply, and one short lock for a large one.

use super::{ReplyMode, Session};
use crate::memory::{FREE_BYTES, Held};
use crate::refusal::Handled;
use crate::store::StoredValue;

/// Largest number of bytes of a reply of one value besides this value.
const FRAME_BYTES: u64 = 32;

impl Session {
    /// Makes the session hold memory for a reply of `bytes`, without waiting. The command has
    /// changed nothing yet. After an error it ends without a change, and
    /// [`Session::take_missing_reply`] says whether it has to run again.
    pub(crate) fn hold_reply(&self, bytes: u64) -> Handled {
        let share = &self.shared.memory.outgoing;
        // A client whose output exceeds its limit gets no reply, but its connection is closed.
        if bytes <= FREE_BYTES
            || self.is_over_output_limit(bytes)
            || share.try_hold(&mut self.held_reply.borrow_mut(), bytes)
        {
            self.missing_reply.set(0);
            return Ok(());
        }
        if bytes <= share.limit_bytes() {
            self.missing_reply.set(bytes);
        }
        Err(share.refusal(bytes))
    }

    /// Makes the session hold memory for the reply `value` as [`Session::hold_reply`] does, unless
    /// EXEC runs the command or the reply is not sent.
    pub(crate) fn hold_value_reply(&self, value: Option<&StoredValue>) -> Handled {
        if self.is_inside() || self.reply_mode.get() != ReplyMode::On {
            return Ok(());
        }
        self.hold_reply(value.map_or(0, |value| value.value.len() as u64 + FRAME_BYTES))
    }

    /// Whether the last command has found no memory for its reply and has to run again.
    pub(super) fn misses_reply(&self) -> bool {
        self.missing_reply.get() > 0
    }

    /// Bytes of the reply for which the last command has found no memory, or 0. The command has
    /// changed nothing, and it has to run again.
    pub(crate) fn take_missing_reply(&self) -> u64 {
        self.missing_reply.take()
    }

    /// Gives the session memory for the reply of the next command.
    pub(crate) fn lend_reply_memory(&self, held: Held) {
        self.held_reply.borrow_mut().merge(held);
    }

    /// Moves the memory for the reply of the last command to `output`, the memory of the output.
    pub(crate) fn move_reply_memory(&self, output: &mut Held) {
        let mut held = self.held_reply.borrow_mut();
        if held.is_some() {
            output.merge(std::mem::take(&mut *held));
        }
    }

    /// Forgets a command that has to run again. The command does not count.
    pub(super) fn uncount(&self) {
        self.tally.take_back_command();
    }
}
