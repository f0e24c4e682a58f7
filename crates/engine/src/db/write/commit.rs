//! The commit point: one order for all writes, one log, publication in that order.
//!
//! [`WritePath`](crate::db::write::WritePath) owns one [`Committer`]. A write goes through four
//! steps:
//!
//! 1. *Submit*, under the commit lock: room in the memtables, sequence numbers, log append.
//! 2. *Insert*, without a lock: many writers at the same time. If the log is in a network, the
//!    writer first waits until its record survives `kill -9`. If that log is buffered, the writer
//!    waits after the publication instead, and only while too many bytes are under way.
//! 3. *Publish*: the visible sequence number moves over the write, in order
//!    (`db::read::publication`).
//! 4. *Sync*, if the options ask for it: one leader syncs for all writers that wait.
//!
//! Group commit: a writer that finds the commit lock taken leaves a ticket and waits for the lock.
//! The writer that gets the lock appends all tickets with one append call. A lone writer takes the
//! lock, appends from its own buffer and copies nothing. No thread waits for a writer that sleeps.
//! If the holder of the lock grants the write of a sleeping writer, it also inserts that write,
//! after it has released the lock.
//!
//! Invariants:
//! 1. Sequence numbers are given out under the lock, and only after the append of their record
//!    succeeded. If a log in a network then loses the record, publication passes over its numbers.
//!    Otherwise later writes would wait for ever.
//! 2. The visible number only grows. It passes a write only when that write and all earlier ones
//!    are inserted.
//! 3. A record is in the log, or in its buffer, before any reader can see it.
//! 4. A writer with a grant takes no lock before the write is published, because holders of the
//!    commit lock may wait for the publication (ingestion does).
//! 5. If the log loses a record, nothing of its write is inserted. The caller gets the error only
//!    when the header of the next segment survives `kill -9`. The header says where the
//!    acknowledged records end, so no recovery applies the write. A thread takes the commit lock to
//!    begin that segment only after it has passed over the numbers of all its lost writes. A
//!    buffered record is not lost in this way: it is appended again to the next segment.
//!
//! Thread-safety: any thread may call any method.
//! Failure: every writer of a group gets the error of its append, and nothing of the group is
//! inserted. A sync that fails makes the database read only (`db::state::health`). Published writes
//! stay readable, but their callers get the error, because the writes may not be durable.
//! Cost: a lone writer pays one uncontended lock and one copy into the log, and allocates nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::{CfId, Error, FileNo, Result, SeqNo};
use crossbeam_utils::{Backoff, CachePadded};
use parking_lot::Mutex;

use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::write::commit_state::{CommitGuard, CommitState};
use crate::db::write::disk_room::{self, Admission};
use crate::db::write::group_sync::GroupSync;
use crate::db::write::log_segments::{self, LogSegments};
use crate::db::write::submission::{Grant, HeldReason, Submission, SubmissionAnswer};
use crate::db::write::ticket::{Ticket, TicketQueue};
use crate::lock_order::{CommitLock, NoLock, Order, OrderedMutex};
use crate::sabotage::{Defect, has};
use crate::wal::{Entry, LogSyncer, LogWriter, Unacknowledged};

/// Number of attempts to take the commit lock before a writer leaves a ticket.
const SPINS_BEFORE_TICKET: usize = 30;
/// Number of spins before a waiting writer sleeps on the commit lock.
const SPINS_MAX: usize = 40;
/// Longest sleep of a writer on the commit lock before it checks its ticket again.
const TICKET_LOOK: Duration = Duration::from_micros(100);

/// Outcome of a write.
#[derive(Debug)]
pub(crate) enum CommitOutcome {
    /// The write is visible. The number is its last sequence number.
    Done(SeqNo),
    /// The memtable of this family is full and cannot be sealed yet: wait, then commit again.
    MustWait(CfId),
    /// The disk has no room for the write.
    DiskFull,
    /// Memory must be flushed first. The reserve of a small disk is too small to flush this write
    /// as well.
    MustFlush,
}

/// A write that was granted while its owner slept.
struct ClaimedWrite {
    grant: Grant,
    ticket: Arc<Ticket>,
}

/// Writes that were granted while their owners slept, in their order.
type Claimed = Vec<ClaimedWrite>;

/// Granted writes whose records the log lost.
#[derive(Default)]
struct LostWrites {
    /// The newest segment that lost records, and its error.
    segment: Option<(FileNo, Error)>,
    /// Tickets of other writers whose writes were lost.
    tickets: Vec<Arc<Ticket>>,
}

/// The commit point: sequence numbers, log and tickets.
pub(crate) struct Committer {
    state: CachePadded<OrderedMutex<CommitState, CommitLock>>,
    tickets: TicketQueue,
    /// The last sequence number given out; stored under the commit lock.
    appended: CachePadded<AtomicU64>,
    /// Syncs the open log and its predecessors; set with the log.
    syncer: Mutex<Option<LogSyncer>>,
    /// Group sync that knows through which sequence number the log is durable.
    durable: GroupSync,
    /// Group sync that knows through which sequence number the device has the log. Only writes with
    /// `log_write_through` use it.
    through: GroupSync,
}

impl Committer {
    pub(crate) fn new(last_seq: SeqNo) -> Self {
        Self {
            state: CachePadded::new(OrderedMutex::new(CommitState::new(last_seq))),
            tickets: TicketQueue::default(),
            appended: CachePadded::new(AtomicU64::new(last_seq.0)),
            syncer: Mutex::new(None),
            durable: GroupSync::default(),
            through: GroupSync::default(),
        }
    }

    /// Takes the commit lock.
    pub(crate) fn lock(&self, order: Order<NoLock>) -> CommitGuard<'_> {
        self.state.lock(order)
    }

    /// Sets the open log.
    pub(crate) fn set_log(&self, log: LogWriter) {
        *self.syncer.lock() = Some(log.syncer());
        self.state.lock(Order::none()).set_log(log);
    }

    /// Sets the handle that syncs the log. The caller holds the commit lock and sets the log
    /// itself.
    pub(crate) fn set_syncer(&self, syncer: LogSyncer) {
        *self.syncer.lock() = Some(syncer);
    }

    /// The handle that syncs the log, if there is a log.
    pub(crate) fn syncer(&self) -> Option<LogSyncer> {
        self.syncer.lock().clone()
    }

    /// Takes the commit lock if it becomes free within `patience`.
    pub(crate) fn try_lock_for(
        &self,
        patience: Duration,
        order: Order<NoLock>,
    ) -> Option<CommitGuard<'_>> {
        self.state.try_lock_for(patience, order)
    }

    /// Sets the last sequence number and the visible number, after recovery or with a new picture.
    pub(crate) fn start_at(&self, view: &ReadView, last_seq: SeqNo) {
        self.state.lock(Order::none()).set_last_seq(last_seq);
        self.appended.store(last_seq.0, Ordering::Release);
        view.publication().set(last_seq.0);
    }

    /// Gives a write its place in the order, appends it to the log, inserts it and makes it
    /// visible.
    pub(crate) fn commit(&self, db: &DbInner, write: &Submission<'_>) -> Result<CommitOutcome> {
        let (answer, claimed) = match self.try_lock_briefly() {
            Some(mut state) => {
                let answer = grant_one(&mut state, db, write);
                (answer, self.serve_tickets(state, db))
            }
            None => self.submit_as_ticket(db, write),
        };
        self.finish(db, write, answer, claimed)
    }

    /// Commits a write as [`Committer::commit`] does, if `may_commit` returns `true`; `None` if it
    /// does not. `may_commit` is called once, under the commit lock.
    pub(crate) fn commit_if(
        &self,
        db: &DbInner,
        write: &Submission<'_>,
        may_commit: impl FnOnce(&mut CommitState) -> bool,
    ) -> Result<Option<CommitOutcome>> {
        let mut state = self.state.lock(Order::none());
        let answer = may_commit(&mut state).then(|| grant_one(&mut state, db, write));
        let claimed = self.serve_tickets(state, db);
        match answer {
            Some(answer) => self.finish(db, write, answer, claimed).map(Some),
            None => {
                carry_out_claimed(db, claimed);
                Ok(None)
            }
        }
    }

    /// Inserts a write that was granted, and the claimed writes of sleeping writers, in their
    /// order.
    fn finish(
        &self,
        db: &DbInner,
        write: &Submission<'_>,
        answer: Result<SubmissionAnswer>,
        claimed: Claimed,
    ) -> Result<CommitOutcome> {
        let mut claimed = claimed.into_iter().peekable();
        let mut lost = LostWrites::default();
        let mut is_own_lost = false;
        let outcome = match answer {
            Ok(SubmissionAnswer::Granted(grant)) => {
                // In their order, because a complete write may have to wait until earlier ones are
                // complete.
                let is_earlier = |other: &ClaimedWrite| other.grant.first_seq() < grant.first_seq();
                while let Some(earlier) = claimed.next_if(is_earlier) {
                    lost.carry_out_claimed(&db.logs, &db.view, earlier);
                }
                let carried_out = lost.carry_out(&db.logs, &db.view, grant, write.payload);
                is_own_lost = carried_out.is_err();
                carried_out.map(CommitOutcome::Done)
            }
            Ok(SubmissionAnswer::Inserted(last_seq)) => Ok(CommitOutcome::Done(last_seq)),
            Ok(SubmissionAnswer::Held(HeldReason::Memtable(cf))) => Ok(CommitOutcome::MustWait(cf)),
            Ok(SubmissionAnswer::Held(HeldReason::Disk)) => Ok(CommitOutcome::DiskFull),
            Ok(SubmissionAnswer::Held(HeldReason::Flush)) => Ok(CommitOutcome::MustFlush),
            Err(error) => Err(error),
        };
        claimed.for_each(|later| lost.carry_out_claimed(&db.logs, &db.view, later));
        match outcome {
            Ok(CommitOutcome::Done(last_seq)) => {
                lost.settle(db);
                db.view.publication().wait(last_seq.0);
                Ok(CommitOutcome::Done(last_seq))
            }
            Err(error) => Err(lost.settle(db).filter(|_| is_own_lost).unwrap_or(error)),
            other => {
                lost.settle(db);
                other
            }
        }
    }

    /// Takes the commit lock if it is free or becomes free soon. Usually its holder copies only one
    /// record.
    #[inline]
    fn try_lock_briefly(&self) -> Option<CommitGuard<'_>> {
        for _ in 0..SPINS_BEFORE_TICKET {
            if let Some(state) = self.state.try_lock(Order::none()) {
                return Some(state);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Submits a write by a ticket. Returns the answer, and the writes to insert for sleeping
    /// writers.
    fn submit_as_ticket(
        &self,
        db: &DbInner,
        write: &Submission<'_>,
    ) -> (Result<SubmissionAnswer>, Claimed) {
        let ticket = Ticket::new(write);
        self.tickets.push(Arc::clone(&ticket));
        let mut looks = 0;
        loop {
            let state = if looks < SPINS_MAX {
                looks += 1;
                std::hint::spin_loop();
                self.state.try_lock(Order::none())
            } else if ticket.sleep() || ticket.is_claimed() {
                // A lock without a time limit could hang: its holder may wait for this very write,
                // which an earlier holder granted (`wait_all_visible`).
                let state = self.state.try_lock_for(TICKET_LOOK, Order::none());
                ticket.wake();
                state
            } else {
                None
            };
            let claimed = state.map(|state| self.serve_tickets(state, db)).unwrap_or_default();
            if let Some(answer) = ticket.take() {
                return (answer, claimed);
            }
            carry_out_claimed(db, claimed);
        }
    }

    /// Appends the writes of all tickets, and releases the lock. Returns the granted writes of
    /// sleeping writers, which the caller inserts.
    fn serve_tickets(&self, mut state: CommitGuard<'_>, db: &DbInner) -> Claimed {
        let mut claimed = Claimed::new();
        while !self.tickets.is_empty() {
            let tickets = self.tickets.take_all();
            match tickets.as_slice() {
                [] => break,
                [one] => grant_ticket(&mut state, db, one, &mut claimed),
                many => grant_group(&mut state, db, many, &mut claimed),
            }
        }
        self.appended.store(state.last_seq().0, Ordering::Release);
        claimed
    }

    /// Waits until all writes with a sequence number are visible. The caller holds the commit lock,
    /// so no new numbers are given out.
    pub(crate) fn wait_all_visible(&self, view: &ReadView, state: &CommitState) {
        let backoff = Backoff::new();
        while view.visible() < state.last_seq() {
            backoff.snooze();
        }
    }

    /// Makes the log durable at least through `seq`. One caller syncs for all that wait. Returns
    /// whether this caller had to sync.
    pub(crate) fn sync_through(&self, seq: SeqNo) -> Result<bool> {
        self.reach(&self.durable, seq, |syncer| syncer.sync().map(drop))
    }

    /// Writes the log to its device at least through `seq`. One caller writes for all that wait.
    /// Returns whether this caller had to write.
    pub(crate) fn write_through(&self, seq: SeqNo) -> Result<bool> {
        self.reach(&self.through, seq, LogSyncer::write_through)
    }

    fn reach(
        &self,
        leading: &GroupSync,
        seq: SeqNo,
        act: impl FnOnce(&LogSyncer) -> Result<()>,
    ) -> Result<bool> {
        leading.reach(seq, || {
            // Every number that was given out belongs to a record that was appended before. So
            // `act` covers it.
            let target = SeqNo(self.appended.load(Ordering::Acquire)).max(seq);
            if let Some(syncer) = self.syncer() {
                act(&syncer)?;
            }
            Ok(target)
        })
    }
}

impl LostWrites {
    /// Inserts a granted write and makes it visible, once its record survives `kill -9`. If the log
    /// lost the record, publication passes over the write, and the error is noted.
    #[inline]
    fn carry_out(
        &mut self,
        logs: &LogSegments,
        view: &ReadView,
        mut grant: Grant,
        payload: &[u8],
    ) -> Result<SeqNo> {
        if has(Defect::InsertionBeforeQuorum) && grant.is_unacknowledged() {
            return Ok(insert_early(view, grant, payload));
        }
        match grant.take_unacknowledged() {
            None => {
                grant.insert(payload);
                Ok(complete(view, grant))
            }
            Some(record) => self.carry_out_later(logs, view, grant, payload, &record),
        }
    }

    /// Carries out a granted write whose log acknowledges `record` later.
    fn carry_out_later(
        &mut self,
        logs: &LogSegments,
        view: &ReadView,
        grant: Grant,
        payload: &[u8],
        record: &Unacknowledged,
    ) -> Result<SeqNo> {
        if record.is_buffered() {
            grant.insert(payload);
            let last_seq = complete(view, grant);
            logs.ahead().note_buffered();
            // The write itself is not lost: it is appended again when the segment is left.
            let _noted = self.wait_for(record);
            return Ok(last_seq);
        }
        if let Err(error) = self.wait_for(record) {
            complete(view, grant);
            return Err(error);
        }
        grant.insert(payload);
        Ok(complete(view, grant))
    }

    /// Waits for a record, and notes its segment if the segment has lost it.
    fn wait_for(&mut self, record: &Unacknowledged) -> Result<()> {
        record.wait().inspect_err(|error| {
            let segment = record.segment();
            if self.segment.as_ref().is_none_or(|noted| noted.0 < segment) {
                self.segment = Some((segment, error.clone()));
            }
        })
    }

    /// Carries out the write of a sleeping writer, and gives the writer the answer. After a loss
    /// the answer waits for [`LostWrites::settle`].
    fn carry_out_claimed(&mut self, logs: &LogSegments, view: &ReadView, claimed: ClaimedWrite) {
        let ClaimedWrite { grant, ticket } = claimed;
        match self.carry_out(logs, view, grant, ticket.submission().payload) {
            Ok(last_seq) => ticket.finish(Ok(SubmissionAnswer::Inserted(last_seq))),
            Err(_) => self.tickets.push(ticket),
        }
    }

    /// Leaves the segment that lost records, and then gives the error to the sleeping writers of
    /// lost writes. Returns the error; `None` if nothing was lost.
    #[inline]
    fn settle(self, db: &DbInner) -> Option<Error> {
        let (segment, error) = self.segment?;
        let error = log_segments::leave_lossy_segment(db, segment, &error);
        self.tickets.iter().for_each(|ticket| ticket.finish(Err(error.clone())));
        Some(error)
    }
}

/// Carries out the writes of sleeping writers, in their order.
fn carry_out_claimed(db: &DbInner, claimed: Claimed) {
    let mut lost = LostWrites::default();
    claimed.into_iter().for_each(|write| lost.carry_out_claimed(&db.logs, &db.view, write));
    lost.settle(db);
}

/// Faulty variant for a test ([`Defect`]): inserts and publishes a write, and only then waits for
/// its record.
fn insert_early(view: &ReadView, mut grant: Grant, payload: &[u8]) -> SeqNo {
    let record = grant.take_unacknowledged();
    grant.insert(payload);
    let last_seq = complete(view, grant);
    if let Some(Err(error)) = record.map(|record| record.wait()) {
        tracing::warn!(%error, "the log lost a record of a published write");
    }
    last_seq
}

/// Marks a write as complete, so that it becomes visible after all earlier ones. Returns its last
/// sequence number.
fn complete(view: &ReadView, grant: Grant) -> SeqNo {
    let (first, last) = (grant.first_seq(), grant.last_seq());
    // A sealed memtable is flushed only when no writer has a grant for it any more.
    drop(grant);
    view.publication().complete(first.0, last.0);
    last
}

fn prepare(
    state: &mut CommitGuard<'_>,
    db: &DbInner,
    write: &Submission<'_>,
) -> Result<Option<HeldReason>> {
    for share in write.shares {
        if !log_segments::prepare_memtable(db, state, share)? {
            return Ok(Some(HeldReason::Memtable(share.cf)));
        }
    }
    // The disk is checked last, because a new memtable needs room for tables of its own.
    Ok(match disk_room::admit(state, db, write)? {
        Admission::Admitted => None,
        Admission::Waits => Some(HeldReason::Flush),
        Admission::Full => Some(HeldReason::Disk),
    })
}

/// Appends to the log. If the disk is full, the reserve is given up and the append is tried once
/// more, in a new segment.
fn append(
    state: &mut CommitGuard<'_>,
    db: &DbInner,
    act: impl Fn(&mut LogWriter) -> Result<()>,
) -> Result<()> {
    let try_once = |state: &mut CommitGuard<'_>| {
        log_segments::prepare_log(db, state)?;
        state.log_mut().map_or(Ok(()), &act)
    };
    match try_once(state) {
        Err(first) if first.is_no_space() => {
            state.drop_credits();
            disk_room::give_up_reserve(&db.storage, &db.observers, &db.disk);
            // The file system may have another device for the next segment.
            try_once(state)
        }
        Err(error) => Err(log_segments::leave_broken_segment(db, state, error)),
        Ok(()) => Ok(()),
    }
}

fn grant_one(
    state: &mut CommitGuard<'_>,
    db: &DbInner,
    write: &Submission<'_>,
) -> Result<SubmissionAnswer> {
    if let Some(held) = prepare(state, db, write)? {
        return Ok(SubmissionAnswer::Held(held));
    }
    if write.wal {
        let entry = Entry {
            first_seq: state.last_seq().next(),
            payload: write.payload,
            payload_crc: write.payload_crc,
        };
        append(state, db, |log| log.append(&entry).map(drop))?;
        log_segments::count_append(&db.observers, write.payload.len() as u64, 1);
    }
    Ok(SubmissionAnswer::Granted(Grant::take(state, write)))
}

/// Grants the write of one ticket. If the write is not granted now, its owner gets the answer.
fn grant_ticket(
    state: &mut CommitGuard<'_>,
    db: &DbInner,
    ticket: &Arc<Ticket>,
    claimed: &mut Claimed,
) {
    match grant_one(state, db, &ticket.submission()) {
        Ok(SubmissionAnswer::Granted(grant)) => hand_over(ticket, grant, claimed),
        other => ticket.finish(other),
    }
}

/// Gives the grant to the ticket's owner, or adds the write to `claimed` if the owner sleeps.
fn hand_over(ticket: &Arc<Ticket>, grant: Grant, claimed: &mut Claimed) {
    if ticket.claim() {
        claimed.push(ClaimedWrite { grant, ticket: Arc::clone(ticket) });
    } else {
        ticket.finish(Ok(SubmissionAnswer::Granted(grant)));
    }
}

/// Appends a group with one call, unless it is too large. A write that must wait is left out of it.
fn grant_group(
    state: &mut CommitGuard<'_>,
    db: &DbInner,
    tickets: &[Arc<Ticket>],
    claimed: &mut Claimed,
) {
    let bytes: usize = tickets.iter().map(|one| one.submission().payload.len()).sum();
    if bytes > log_segments::GROUP_BYTES_MAX {
        return tickets.iter().for_each(|ticket| grant_ticket(state, db, ticket, claimed));
    }
    let mut group: Vec<&Arc<Ticket>> = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        match prepare(state, db, &ticket.submission()) {
            Ok(None) => group.push(ticket),
            Ok(Some(held)) => ticket.finish(Ok(SubmissionAnswer::Held(held))),
            Err(error) => ticket.finish(Err(error)),
        }
    }
    if let Err(error) = append_group(state, db, &group) {
        group.iter().for_each(|ticket| ticket.finish(Err(error.clone())));
        return;
    }
    for ticket in group {
        hand_over(ticket, Grant::take(state, &ticket.submission()), claimed);
    }
}

fn append_group(state: &mut CommitGuard<'_>, db: &DbInner, group: &[&Arc<Ticket>]) -> Result<()> {
    if !group.iter().any(|ticket| ticket.submission().wal) {
        return Ok(());
    }
    let mut next = state.last_seq().next();
    let mut records = Vec::with_capacity(group.len());
    let mut bytes = 0;
    for ticket in group {
        let write = ticket.submission();
        if write.wal {
            records.push(Entry {
                first_seq: next,
                payload: write.payload,
                payload_crc: write.payload_crc,
            });
            bytes += write.payload.len() as u64;
        }
        next = SeqNo(next.0 + write.records);
    }
    append(state, db, |log| log.append_many(&records).map(drop))?;
    log_segments::count_append(&db.observers, bytes, records.len() as u64);
    Ok(())
}
