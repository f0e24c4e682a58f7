//! The calls of a pool in memory: their kinds, their number, and the script of their faults.
//!
//! Thread-safety: the pool guards a [`CallState`] with a lock.

use std::collections::BTreeMap;
use std::fmt;

use archipelago_base::Result;

use super::{OnCall, refused};

/// A kind of call that reaches the pool. A wait for bytes that are already acknowledged reaches no
/// pool, and does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolCall {
    /// A call of [`BlobStore::create`](crate::BlobStore::create).
    BlobCreate,
    /// A call of [`BlobWriter::append`](crate::BlobWriter::append).
    BlobAppend,
    /// A call of [`BlobWriter::seal`](crate::BlobWriter::seal).
    BlobSeal,
    /// A call of [`BlobStore::open`](crate::BlobStore::open).
    BlobOpen,
    /// A read of a blob, of one range or of several.
    BlobRead,
    /// A blob of a call of [`BlobStore::retain_all`](crate::BlobStore::retain_all).
    BlobRetain,
    /// A call of [`BlobStore::release`](crate::BlobStore::release).
    BlobRelease,
    /// A call of [`BlobStore::release_strays`](crate::BlobStore::release_strays).
    BlobStrays,
    /// A call of [`LogStore::create`](crate::LogStore::create).
    LogCreate,
    /// A call of [`LogWriter::submit`](crate::LogWriter::submit).
    LogSubmit,
    /// A call of [`LogPosition::wait`](crate::LogPosition::wait).
    LogWait,
    /// A call of [`LogPosition::sync`](crate::LogPosition::sync).
    LogSync,
    /// A call of [`LogWriter::finish`](crate::LogWriter::finish).
    LogFinish,
    /// A call of [`LogStore::recover`](crate::LogStore::recover).
    LogRecover,
    /// A call of [`LogStore::open`](crate::LogStore::open).
    LogOpen,
    /// A read of a log, of one range or of several.
    LogRead,
    /// A call of [`LogStore::remove`](crate::LogStore::remove).
    LogRemove,
    /// A call of [`LogStore::release_strays`](crate::LogStore::release_strays).
    LogStrays,
    /// A call of [`Register::read`](crate::Register::read).
    RegisterRead,
    /// A call of [`Register::compare_and_swap`](crate::Register::compare_and_swap).
    RegisterSwap,
    /// A call of [`Register::remove`](crate::Register::remove).
    RegisterRemove,
    /// A call of [`Register::list`](crate::Register::list).
    RegisterList,
}

impl PoolCall {
    /// All kinds of calls.
    pub const ALL: [Self; 22] = [
        Self::BlobCreate,
        Self::BlobAppend,
        Self::BlobSeal,
        Self::BlobOpen,
        Self::BlobRead,
        Self::BlobRetain,
        Self::BlobRelease,
        Self::BlobStrays,
        Self::LogCreate,
        Self::LogSubmit,
        Self::LogWait,
        Self::LogSync,
        Self::LogFinish,
        Self::LogRecover,
        Self::LogOpen,
        Self::LogRead,
        Self::LogRemove,
        Self::LogStrays,
        Self::RegisterRead,
        Self::RegisterSwap,
        Self::RegisterRemove,
        Self::RegisterList,
    ];

    /// Whether a thread waits for the answer. Appends of blobs and submitted bytes of logs are
    /// sent ahead. The creation of a blob or a log travels with its first bytes, and the opening of
    /// a blob with its first read.
    #[must_use]
    pub const fn waits(self) -> bool {
        !matches!(
            self,
            Self::BlobCreate
                | Self::BlobAppend
                | Self::BlobOpen
                | Self::LogCreate
                | Self::LogSubmit
                | Self::LogOpen
        )
    }
}

/// A fault of a chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is not executed, and the caller gets an `Io` error.
    Refuse,
    /// The call is executed, and the caller gets an `Io` error.
    LoseAnswer,
    /// A replica of the log fails, so the log goes on in a new extent. It has an effect on
    /// [`PoolCall::LogWait`], [`PoolCall::LogSync`] and [`PoolCall::LogFinish`] only.
    EndExtent,
}

/// How the pool answers a call that it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The caller gets the answer.
    Heard,
    /// The caller gets an error instead of the answer.
    Lost,
    /// The caller gets the answer after the log has changed to a new extent.
    ExtentEnded,
}

impl Answer {
    /// The answer `value`, or the error of one that was lost.
    pub(super) fn of<T>(self, call: PoolCall, object: &dyn fmt::Display, value: T) -> Result<T> {
        match self {
            Self::Lost => Err(refused(call, object)),
            Self::Heard | Self::ExtentEnded => Ok(value),
        }
    }
}

/// Counters, script and hook.
#[derive(Default)]
pub(super) struct CallState {
    counts: BTreeMap<PoolCall, u64>,
    /// Faults of the script, by the kind and the number of the call.
    script: BTreeMap<(PoolCall, u64), Fault>,
    pub(super) hook: Option<OnCall>,
}

impl CallState {
    /// Counts a call, and takes its fault out of the script.
    pub(super) fn enter(&mut self, call: PoolCall) -> Option<Fault> {
        let count = self.counts.entry(call).or_default();
        *count += 1;
        let number = *count;
        self.script.remove(&(call, number))
    }

    pub(super) fn inject(&mut self, call: PoolCall, nth: u64, fault: Fault) {
        let number = self.count(call) + nth.max(1);
        self.script.insert((call, number), fault);
    }

    pub(super) fn clear_faults(&mut self) {
        self.script.clear();
    }

    pub(super) fn count(&self, call: PoolCall) -> u64 {
        self.counts.get(&call).copied().unwrap_or_default()
    }

    pub(super) fn round_trips(&self) -> u64 {
        self.counts.iter().filter(|(call, _)| call.waits()).map(|(_, count)| count).sum()
    }
}
