//! Decides which message the node of a replica gets next, from what the replica still needs.
//!
//! The writer of a log owns one [`ReplicaStream`] per replica. Appends leave in order, and several
//! are under way, so that a round trip does not limit the rate. Bytes that are submitted while the
//! window is full travel in one message. A sync travels with the append that completes its range,
//! if that append has not left.
//!
//! If a message fails in a way that may pass, the stream waits until no other message is under way.
//! Then it goes back to the end that the node confirmed. A message may have arrived although its
//! answer did not. The node then answers that it has more bytes, which is progress. Until the next
//! success one message is under way at a time, because messages over a new link may change their
//! order.
//!
//! Invariants:
//! 1. Appends leave in order and without gaps from the confirmed end on.
//! 2. Nothing leaves behind an end that was chosen for the extent, from the choice on.
//! 3. A seal leaves when the node has confirmed all bytes before its end and nothing is under way.
//! 4. A stream that has ended sends nothing.
//!
//! Thread-safety: none; the lock of the writer guards the value.
//! Failure: a stream fails if its node refuses for good, or has answered nothing for the patience.
//! A node that cannot be reached gets a quarter of it.
//! Cost: O(1) per call.

use std::time::Duration;

use super::super::log::ReplicaId;
use super::super::log::quorum::ReplicaProgress;
use super::requests::LogFailure;

/// Limit of the bytes of one append message.
pub(super) const APPEND_BYTES_MAX: u64 = 512 << 10;
/// Number of messages to a replica that are under way at the same time.
const WINDOW: usize = 4;
/// Pause before the first repetition of a message, in nanoseconds. Every further pause doubles.
const PAUSE_NS: u64 = 10_000_000;
/// Longest pause before a repetition, in nanoseconds.
const PAUSE_NS_MAX: u64 = 200_000_000;

/// A message to the node of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamMessage {
    /// Bytes from `start` to `end`.
    Append { start: u64, end: u64, is_synced: bool },
    /// A sync through the confirmed end.
    Sync,
    /// The end of the extent.
    Seal { end: u64 },
}

/// The next step of the task of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamStep {
    /// Sends a message.
    Send(StreamMessage),
    /// Waits for an answer, or for work.
    Wait,
    /// Waits for an answer, or until this time in nanoseconds.
    Pause {
        until_ns: u64,
    },
    Over,
}

/// Consequence of an answer for the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamVerdict {
    /// The replica has confirmed this progress.
    Progress(ReplicaProgress),
    /// The message is repeated.
    Repeat,
    /// The node has promised a later epoch, and gives this reason.
    Fenced(String),
    /// The replica has failed, for this reason.
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SealStage {
    Open,
    Wanted { end: u64 },
    Asked { end: u64 },
    Sealed,
}

/// The messages to one replica.
#[derive(Debug)]
pub(super) struct ReplicaStream {
    to: ReplicaId,
    extent_start: u64,
    /// Whether every append is synced before its answer.
    syncs_appends: bool,
    /// Offset through which the replica should have bytes.
    target: u64,
    /// Offset of the next byte to send.
    next: u64,
    /// Offset after the last byte that ever left.
    sent: u64,
    confirmed: ReplicaProgress,
    sync_wanted: u64,
    /// Offset through which a sync was asked for.
    sync_asked: u64,
    seal: SealStage,
    under_way: usize,
    is_steady: bool,
    /// Whether the stream goes back to the confirmed end when nothing is under way.
    is_going_back: bool,
    /// Time of the first failure after the last success.
    failing_since_ns: Option<u64>,
    pause_ns: u64,
    resume_ns: u64,
    is_over: bool,
}

impl ReplicaStream {
    /// A stream to a replica that has no byte of its extent yet.
    pub(super) fn new(to: ReplicaId, extent_start: u64, syncs_appends: bool) -> Self {
        Self {
            to,
            extent_start,
            syncs_appends,
            target: extent_start,
            next: extent_start,
            sent: extent_start,
            confirmed: ReplicaProgress { written: extent_start, synced: extent_start },
            sync_wanted: extent_start,
            sync_asked: extent_start,
            seal: SealStage::Open,
            under_way: 0,
            is_steady: false,
            is_going_back: false,
            failing_since_ns: None,
            pause_ns: PAUSE_NS,
            resume_ns: 0,
            is_over: false,
        }
    }

    pub(super) fn to(&self) -> ReplicaId {
        self.to
    }

    pub(super) fn extent_start(&self) -> u64 {
        self.extent_start
    }

    /// Whether a message is needed or under way.
    pub(super) fn is_busy(&self) -> bool {
        let lacks = self.next < self.target || self.lacks_sync() || self.is_going_back;
        !self.is_over && (lacks || self.under_way > 0 || self.is_seal_due())
    }

    /// Extends the bytes that the replica should have through `end`.
    pub(super) fn extend(&mut self, end: u64) {
        self.target = self.target.max(end);
    }

    /// Notes that the extent ends at `end` or before it.
    pub(super) fn cap(&mut self, end: u64) {
        self.target = self.target.min(end);
        self.sync_wanted = self.sync_wanted.min(end);
    }

    /// Asks for a sync of the bytes through `end`.
    pub(super) fn want_sync(&mut self, end: u64) {
        self.sync_wanted = self.sync_wanted.max(end.min(self.target));
    }

    /// Asks for a seal of the replica at `end`.
    pub(super) fn want_seal(&mut self, end: u64) {
        self.cap(end);
        if self.seal == SealStage::Open {
            self.seal = SealStage::Wanted { end };
        }
    }

    /// Ends the stream, so that it sends nothing any more.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Whether the stream sends nothing any more: the replica is sealed, or has failed.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    fn lacks_sync(&self) -> bool {
        self.sync_wanted > self.confirmed.synced && self.sync_asked < self.sync_wanted
    }

    fn is_seal_due(&self) -> bool {
        matches!(self.seal, SealStage::Wanted { end } if self.confirmed.written >= end)
    }

    /// The next step of the task at `now_ns`.
    pub(super) fn step(&mut self, now_ns: u64) -> StreamStep {
        if self.is_over {
            return StreamStep::Over;
        }
        if self.is_going_back {
            if self.under_way > 0 {
                return StreamStep::Wait;
            }
            if now_ns < self.resume_ns {
                return StreamStep::Pause { until_ns: self.resume_ns };
            }
            self.go_back();
        }
        if self.under_way >= if self.is_steady { WINDOW } else { 1 } {
            return StreamStep::Wait;
        }
        let Some(message) = self.next_message() else { return StreamStep::Wait };
        self.under_way += 1;
        StreamStep::Send(message)
    }

    fn go_back(&mut self) {
        self.is_going_back = false;
        self.next = self.confirmed.written;
        self.sync_asked = self.confirmed.synced;
        if let SealStage::Asked { end } = self.seal {
            self.seal = SealStage::Wanted { end };
        }
    }

    fn next_message(&mut self) -> Option<StreamMessage> {
        if self.next < self.target {
            let (start, end) = (self.next, self.target.min(self.next + APPEND_BYTES_MAX));
            let is_asked = self.sync_wanted > self.sync_asked && end >= self.sync_wanted;
            let is_synced = self.syncs_appends || is_asked;
            if is_synced {
                self.sync_asked = self.sync_asked.max(end);
            }
            self.next = end;
            self.sent = self.sent.max(end);
            return Some(StreamMessage::Append { start, end, is_synced });
        }
        // The node may execute messages in parallel, so a sync leaves after the answers to appends.
        if self.lacks_sync() && self.confirmed.written >= self.sync_wanted {
            self.sync_asked = self.confirmed.written;
            return Some(StreamMessage::Sync);
        }
        if self.is_seal_due() && self.under_way == 0 {
            let SealStage::Wanted { end } = self.seal else { return None };
            self.seal = SealStage::Asked { end };
            return Some(StreamMessage::Seal { end });
        }
        None
    }

    /// Takes the outcome of a message at `now_ns`. The stream fails if it had no success for
    /// `patience`.
    pub(super) fn answered(
        &mut self,
        message: &StreamMessage,
        answer: Result<ReplicaProgress, LogFailure>,
        now_ns: u64,
        patience: Duration,
    ) -> StreamVerdict {
        self.under_way -= 1;
        match answer {
            Ok(progress) => self.succeeded(message, progress, now_ns, patience),
            Err(LogFailure::Fenced(text)) => {
                self.is_over = true;
                StreamVerdict::Fenced(text)
            }
            Err(LogFailure::OtherLength(len)) => self.has_other_length(len, now_ns, patience),
            Err(LogFailure::Passing(text)) => self.repeat(text, now_ns, patience),
            // The patience is shorter here, so that a node that is down delays a log with all
            // replicas only briefly.
            Err(LogFailure::Unreachable(text)) => self.repeat(text, now_ns, patience / 4),
            Err(LogFailure::Refused(text) | LogFailure::NotThere(text)) => self.fail(text),
        }
    }

    fn succeeded(
        &mut self,
        message: &StreamMessage,
        progress: ReplicaProgress,
        now_ns: u64,
        patience: Duration,
    ) -> StreamVerdict {
        self.note(progress);
        let has_effect = match *message {
            StreamMessage::Append { end, is_synced, .. } => {
                progress.written >= end && (!is_synced || progress.synced >= end)
            }
            StreamMessage::Sync => true,
            StreamMessage::Seal { end } => progress.synced >= end,
        };
        if !has_effect {
            let text = format!("it answered {message:?} with {progress:?}");
            return self.repeat(text, now_ns, patience);
        }
        if let StreamMessage::Seal { .. } = message {
            (self.seal, self.is_over) = (SealStage::Sealed, true);
        }
        // A sync that overtook an append is repeated.
        if self.under_way == 0 {
            self.sync_asked = self.confirmed.synced;
        }
        (self.is_steady, self.failing_since_ns, self.pause_ns) = (true, None, PAUSE_NS);
        StreamVerdict::Progress(self.confirmed)
    }

    /// Handles the answer that the node has bytes through `len`. The reason may be an append that
    /// arrived twice, or that arrived before an earlier append.
    fn has_other_length(&mut self, len: u64, now_ns: u64, patience: Duration) -> StreamVerdict {
        if len < self.confirmed.written {
            return self.fail(format!("it lost the bytes from {len} on"));
        }
        if len > self.sent {
            return self
                .fail(format!("it has bytes through {len}, which this writer did not send"));
        }
        let has_grown = len > self.confirmed.written;
        self.note(ReplicaProgress { written: len, synced: self.confirmed.synced });
        if has_grown {
            self.failing_since_ns = None;
        }
        let text = format!("it takes an append at {len} only");
        match self.repeat(text, now_ns, patience) {
            StreamVerdict::Repeat if has_grown => StreamVerdict::Progress(self.confirmed),
            verdict => verdict,
        }
    }

    fn note(&mut self, progress: ReplicaProgress) {
        let ReplicaProgress { written, synced } = &mut self.confirmed;
        *written = (*written).max(progress.written.min(self.sent));
        *synced = (*synced).max(progress.synced.min(*written));
    }

    fn repeat(&mut self, text: String, now_ns: u64, patience: Duration) -> StreamVerdict {
        let since_ns = *self.failing_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) >= patience.as_nanos() as u64 {
            return self.fail(text);
        }
        // Messages that were under way at the same time fail for the same reason, so only the first
        // failure sets a pause.
        if !self.is_going_back {
            self.resume_ns = now_ns + self.pause_ns;
            self.pause_ns = (self.pause_ns * 2).min(PAUSE_NS_MAX);
        }
        (self.is_going_back, self.is_steady) = (true, false);
        StreamVerdict::Repeat
    }

    fn fail(&mut self, text: String) -> StreamVerdict {
        self.is_over = true;
        StreamVerdict::Failed(text)
    }
}

#[cfg(test)]
mod tests;
