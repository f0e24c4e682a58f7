//! Tickets of the group commit: writes that wait for another thread to append them.
//!
//! [`Committer`](crate::db::write::commit::Committer) owns one [`TicketQueue`]. A writer that finds
//! the commit lock taken leaves a [`Ticket`] in it. The holder of the lock takes all tickets and
//! answers each.
//!
//! Invariants:
//! 1. A ticket that is in the queue is counted, so no ticket is overlooked.
//! 2. The write of a ticket is inserted once: by its owner, or by the thread that changed the
//!    ticket from asleep to claimed.
//! 3. A ticket gets one answer.
//!
//! Thread-safety: any thread may call any method, except [`Ticket::take`].
//! Cost: a ticket copies its write, and allocates three times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use archipelago_base::Result;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::db::write::submission::{FamilyShare, Submission, SubmissionAnswer};
use crate::disk_space::SpaceUse;

/// State of a ticket whose owner is awake and checks it often.
const AWAKE: u8 = 0;
/// State of a ticket whose owner sleeps until it gets the commit lock.
const ASLEEP: u8 = 1;
/// State of a ticket whose owner slept when the write was granted. The holder of the lock inserts
/// the write.
const CLAIMED: u8 = 2;
/// State of a ticket that has its answer.
const DONE: u8 = 3;

/// A write that waits for another thread to append it.
pub(crate) struct Ticket {
    payload: Vec<u8>,
    payload_crc: u32,
    records: u64,
    shares: Vec<FamilyShare>,
    wal: bool,
    space_use: SpaceUse,
    answer: Mutex<Option<Result<SubmissionAnswer>>>,
    state: AtomicU8,
}

impl Ticket {
    pub(crate) fn new(write: &Submission<'_>) -> Arc<Self> {
        Arc::new(Self {
            payload: write.payload.to_vec(),
            payload_crc: write.payload_crc,
            records: write.records,
            shares: write.shares.to_vec(),
            wal: write.wal,
            space_use: write.space_use,
            answer: Mutex::new(None),
            state: AtomicU8::new(AWAKE),
        })
    }

    /// The write of the ticket.
    pub(crate) fn submission(&self) -> Submission<'_> {
        Submission {
            payload: &self.payload,
            payload_crc: self.payload_crc,
            records: self.records,
            shares: &self.shares,
            wal: self.wal,
            space_use: self.space_use,
        }
    }

    /// Gives the owner its answer.
    pub(crate) fn finish(&self, answer: Result<SubmissionAnswer>) {
        *self.answer.lock() = Some(answer);
        self.state.store(DONE, Ordering::Release);
    }

    /// Notes that the owner sleeps until it gets the commit lock. Returns `false` if the ticket is
    /// not awake.
    pub(crate) fn sleep(&self) -> bool {
        self.turn(AWAKE, ASLEEP)
    }

    /// Notes that the owner does not sleep any more, unless its write was claimed.
    pub(crate) fn wake(&self) {
        self.turn(ASLEEP, AWAKE);
    }

    /// Claims the write of an owner that sleeps, so that the caller inserts it. Returns `false` if
    /// the owner does not sleep.
    pub(crate) fn claim(&self) -> bool {
        self.turn(ASLEEP, CLAIMED)
    }

    /// Whether another thread inserts the write.
    pub(crate) fn is_claimed(&self) -> bool {
        self.is(CLAIMED)
    }

    /// Changes the state from `from` to `to`. Returns `false`, and changes nothing, if it is not
    /// `from`.
    fn turn(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Acquire) == state
    }

    /// The answer, if there is one. Only the owner calls this, and it gets the answer once.
    pub(crate) fn take(&self) -> Option<Result<SubmissionAnswer>> {
        if !self.is(DONE) {
            return None;
        }
        Some(self.answer.lock().take().expect("a ticket is taken once, by its owner"))
    }
}

/// Tickets that wait for the holder of the commit lock.
#[derive(Default)]
pub(crate) struct TicketQueue {
    waiting: CachePadded<Mutex<Vec<Arc<Ticket>>>>,
    /// Number of tickets, or more. A writer increments it before it leaves its ticket, and then
    /// tries to take the lock. So no ticket is overlooked.
    len: CachePadded<AtomicU64>,
}

impl TicketQueue {
    /// Leaves a ticket. The caller then tries to take the commit lock.
    pub(crate) fn push(&self, ticket: Arc<Ticket>) {
        self.len.fetch_add(1, Ordering::AcqRel);
        self.waiting.lock().push(ticket);
    }

    /// Whether no writer has left a ticket, or is about to leave one.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Takes all tickets, in their order.
    pub(crate) fn take_all(&self) -> Vec<Arc<Ticket>> {
        let tickets = std::mem::take(&mut *self.waiting.lock());
        self.len.fetch_sub(tickets.len() as u64, Ordering::AcqRel);
        tickets
    }
}
