//! Memory that a command holds for the values that it builds or reads.
//!
//! The session owns the part of the share for values ([`crate::memory::Shares::working`]) that its
//! command holds, until the command ends. Invariant: a session never waits for memory of that share
//! while it holds some of it. If it cannot enlarge its part immediately, it gives all of it back
//! before it waits. A command of a transaction does not wait at all, because EXEC holds locks. It
//! notes that other commands hold the memory. Then EXEC drops all changes, waits for the whole
//! share without locks, and runs the transaction again. The memory of the command adds to that of
//! what the transaction has written before. Values of up to [`FREE_BYTES`] need no memory of the
//! share, so a command that builds one is never refused for lack of it.
//! Cost: nothing for commands that build small values.

use super::Session;
use crate::growing_reply::GrowingReply;
use crate::memory::{FREE_BYTES, Held};
use crate::overlays::Overlays;
use crate::refusal::{Handled, Refusal};
use crate::store::VALUE_BYTES_MAX;

/// Largest number of copies of a large write in memory, in addition to the request.
const WRITE_COPIES: u64 = 4;

impl Session {
    /// Longest value that a command may build: as long as one that a client may send.
    pub(crate) fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX.min(self.shared.options.limits.bulk_bytes_max)
    }

    /// Makes the session hold at least `bytes` of the share for values that commands build. It
    /// waits for them, so the caller holds no lock and no value that it has read. A command of a
    /// transaction does not wait, because EXEC holds locks. It ends, and EXEC runs it again.
    pub(crate) fn build(&self, bytes: u64) -> Handled {
        if bytes <= FREE_BYTES {
            return Ok(());
        }
        self.hold(bytes)
    }

    /// Bytes that the commands of a transaction have written.
    fn written_bytes(&self) -> u64 {
        self.overlays.as_ref().map_or(0, Overlays::bytes)
    }

    /// The bytes of a command with those that its transaction has written. Together they may take
    /// the whole share.
    fn with_written(&self, bytes: u64) -> u64 {
        let both = bytes.saturating_add(self.written_bytes());
        bytes.max(both.min(self.shared.memory.working.limit_bytes()))
    }

    /// Makes the session hold all that the commands of a transaction have written, without waiting.
    /// Returns `false` if other commands hold the memory now. More than the share is refused.
    pub(crate) fn hold_written(&self) -> Result<bool, Refusal> {
        let (bytes, working) = (self.written_bytes(), &self.shared.memory.working);
        if bytes <= FREE_BYTES || working.try_hold(&mut self.held.borrow_mut(), bytes) {
            return Ok(true);
        }
        if bytes > working.limit_bytes() { Err(working.refusal(bytes)) } else { Ok(false) }
    }

    /// Whether a command of this transaction has found no memory for its values, although they are
    /// smaller than the share. Then EXEC runs the transaction again with the whole share.
    pub(crate) fn lacks_memory(&self) -> bool {
        self.lacks_memory.get()
    }

    /// The refusal of `bytes`, for which the command does not wait.
    fn refuse_values(&self, bytes: u64) -> Refusal {
        let working = &self.shared.memory.working;
        if self.is_inside() && bytes <= working.limit_bytes() {
            self.lacks_memory.set(true);
        }
        working.refusal(bytes)
    }

    fn hold(&self, bytes: u64) -> Handled {
        let bytes = self.with_written(bytes);
        let working = &self.shared.memory.working;
        if working.try_hold(&mut self.held.borrow_mut(), bytes) {
            return Ok(());
        }
        if self.is_inside() {
            return Err(self.refuse_values(bytes));
        }
        // The session might otherwise wait for memory that it holds itself.
        drop(self.held.take());
        let held = working.hold_blocking(bytes)?;
        self.held.replace(held);
        Ok(())
    }

    /// Memory for a large write of `bytes`: it is copied on its way to the store, and again by the
    /// log. The copies of a very large one may take the whole share. While the whole budget is
    /// exceeded, large writes wait for the store to give memory back.
    /// EXEC holds it for all of its commands, before it takes a lock.
    pub(crate) fn hold_for_write(&self, bytes: u64) -> Handled {
        if self.is_inside() {
            return Ok(());
        }
        let working = &self.shared.memory.working;
        self.hold(bytes.max((WRITE_COPIES * bytes).min(working.limit_bytes())))?;
        working.wait_for_budget(&self.shared.options.budget);
        Ok(())
    }

    /// Memory for values of an unknown size that a command reads: a quarter of the share, so that
    /// few such commands run at a time. It waits as [`Session::build`] does.
    pub(crate) fn hold_for_values(&self) -> Handled {
        match self.shared.memory.working.limit_bytes() {
            u64::MAX => Ok(()),
            limit => self.hold(limit / 4),
        }
    }

    /// Makes the session hold at least `bytes` of that share without waiting. Returns `false` if
    /// the bytes do not fit now. Then the caller drops its locks and the values that it has read,
    /// calls [`Session::hold_all`] and starts again, and the bytes fit. Bytes that can never fit
    /// are refused. A command of a transaction ends with an error, and EXEC runs it again.
    pub(crate) fn try_build(&self, bytes: u64) -> Result<bool, Refusal> {
        if bytes <= FREE_BYTES {
            return Ok(true);
        }
        let (bytes, working) = (self.with_written(bytes), &self.shared.memory.working);
        if working.try_hold(&mut self.held.borrow_mut(), bytes) {
            return Ok(true);
        }
        match self.is_inside() || bytes > working.limit_bytes() {
            true => Err(self.refuse_values(bytes)),
            false => Ok(false),
        }
    }

    /// Waits until the session holds the whole share for values.
    pub(crate) fn hold_all(&self) -> Handled {
        match self.shared.memory.working.limit_bytes() {
            u64::MAX => Ok(()),
            limit => self.hold(limit),
        }
    }

    /// Memory of the same share for a reply that grows with values of unknown sizes. From here on
    /// the reply holds the memory of the session. Within EXEC, the session keeps it.
    pub(crate) fn growing_reply(&self) -> GrowingReply<'_> {
        let held = if self.is_inside() { Held::default() } else { self.held.take() };
        GrowingReply::new(&self.shared.memory.working, held, self.is_inside())
    }

    /// Makes the session hold at least `bytes` of that share, without waiting.
    pub(crate) fn build_more(&self, bytes: u64) -> Handled {
        if bytes <= FREE_BYTES {
            return Ok(());
        }
        let (bytes, working) = (self.with_written(bytes), &self.shared.memory.working);
        match working.try_hold(&mut self.held.borrow_mut(), bytes) {
            true => Ok(()),
            false => Err(self.refuse_values(bytes)),
        }
    }
}
