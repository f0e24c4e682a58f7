//! The check of a commit: whether anything that a transaction depends on has changed.
//!
//! 1. Under the commit lock: if nothing got a sequence number since the reads, the write gets its
//!    own immediately. Otherwise the check registers an observer
//!    ([`RecentWrites`](crate::concurrency::RecentWrites)) and releases the lock.
//! 2. Without a lock: the check waits until everything that had a sequence number at step 1 is
//!    visible. Then it searches memtables and tables for a newer record, key by key and range by
//!    range.
//! 3. Under the commit lock: the check compares the writes since step 1 with the footprint, and the
//!    write gets its sequence number in the same step.
//!
//! If more was written between 1 and 3 than the observer keeps, 2 and 3 are repeated, at most
//! [`ROUNDS_MAX`] times.
//!
//! Invariants:
//! 1. Every write with a sequence number below that of the transaction was compared with the
//!    footprint: in step 2 if it had its number by step 1, else in step 3.
//! 2. The observer ends with the check, whatever its outcome.
//! 3. Expiry is checked under the lock that gives the write its number.
//!
//! Failure: a [`Conflict`], `Closed` if a column family was dropped, or the error of a table that
//! could not be read. Nothing was written.
//! Cost: see the module of transactions. Step 3 costs a search in the footprint for each key that
//! was written since step 1, under the commit lock.

use archipelago_base::{CfId, Error, Result, SeqNo};

use crate::concurrency::Conflict;
use crate::concurrency::footprint::{Footprint, KeyRead, Touch, Touched};
use crate::db::write::{self, WritePath};
use crate::db::{CommitState, DbInner, Family, Reader, Since, newest_record, range_has_newer};
use crate::lock_order::Order;
use crate::options::WriteOptions;
use crate::wal::WriteBatch;

/// Most rounds of steps 2 and 3.
const ROUNDS_MAX: usize = 4;

/// Whether `key` has changed since the read that `read` describes.
pub(super) fn key_has_changed(
    reader: Reader<'_>,
    family: &Family,
    key: &[u8],
    read: &KeyRead,
) -> Result<bool> {
    match read.exactly {
        Some(seq) => Ok(newest_record(reader, family, key, Since::Ever)? != Some(seq)),
        None => Ok(newest_record(reader, family, key, Since::After(read.as_of))?.is_some()),
    }
}

/// Commits `batch` if nothing in the footprint has changed. Returns its last sequence number.
pub(super) fn commit(
    inner: &DbInner,
    footprint: &Footprint,
    batch: &WriteBatch,
    options: &WriteOptions,
) -> Result<SeqNo> {
    if batch.is_empty() {
        return check_alone(inner.reader(), &inner.writes, footprint);
    }
    write::commit_batch(inner, batch, options, |write| {
        check(inner.reader(), &inner.writes, footprint, |check| {
            let may_commit = |state: &mut CommitState| check.under_lock(state);
            let committed = inner.writes.committer().commit_if(inner, write, may_commit);
            committed
                .map_err(|error| write::note_append_error(&inner.storage, &inner.observers, &error))
        })
    })
}

/// Checks a transaction that writes nothing. Returns the last sequence number at the check.
fn check_alone(reader: Reader<'_>, writes: &WritePath, footprint: &Footprint) -> Result<SeqNo> {
    reader.context.check_open()?;
    check(reader, writes, footprint, |check| {
        let mut state = writes.committer().lock(Order::none());
        Ok(check.under_lock(&mut state).then_some(state.last_seq()))
    })
}

/// Calls `attempt`, which runs the check under the commit lock, until it has an outcome.
fn check<T>(
    reader: Reader<'_>,
    writes: &WritePath,
    footprint: &Footprint,
    mut attempt: impl FnMut(&mut Check<'_>) -> Result<Option<T>>,
) -> Result<T> {
    let mut check =
        Check { reader, writes, footprint, observer: None, through: SeqNo::ZERO, refusal: None };
    for _ in 0..=ROUNDS_MAX {
        if let Some(outcome) = attempt(&mut check)? {
            return Ok(outcome);
        }
        if let Some(refusal) = check.refusal.take() {
            return Err(refusal);
        }
        check.without_lock()?;
        reader.context.fault_point("transaction.checked")?;
    }
    Err(Conflict::Overrun.error(
        "so much was written while the transaction was checked that the check could not end: run \
         the transaction again, or let it read fewer keys",
    ))
}

/// A check that is in progress.
struct Check<'a> {
    reader: Reader<'a>,
    writes: &'a WritePath,
    footprint: &'a Footprint,
    /// Position of the registered observer.
    observer: Option<u64>,
    /// Last sequence number that had been given out when the observer was registered.
    through: SeqNo,
    /// The error that says why the transaction cannot commit.
    refusal: Option<Error>,
}

impl Drop for Check<'_> {
    fn drop(&mut self) {
        if let Some(position) = self.observer.take() {
            self.writes.committer().lock(Order::none()).recent_mut().end(position);
        }
    }
}

impl Check<'_> {
    /// Steps 1 and 3: whether the transaction may commit now.
    fn under_lock(&mut self, state: &mut CommitState) -> bool {
        let position = self.observer.take();
        let news = position.map(|position| self.news(state, position));
        if let Some(position) = position {
            state.recent_mut().end(position);
        }
        self.refusal = self.lost(state);
        if self.refusal.is_some() {
            return false;
        }
        match news {
            Some(News::Nothing) => true,
            None if state.last_seq() <= self.footprint.oldest() => true,
            Some(News::Touched(refusal)) => {
                self.refusal = Some(refusal);
                false
            }
            None | Some(News::Unknown) => {
                self.observer = Some(state.recent_mut().observe());
                self.through = state.last_seq();
                false
            }
        }
    }

    /// Compares the writes since the observer registered with the footprint.
    fn news(&self, state: &CommitState, position: u64) -> News {
        let Some(mut writes) = state.recent().since(position) else { return News::Unknown };
        let touched = writes.find_map(|touch| Some((touch, self.footprint.touched(touch)?)));
        match touched {
            None => News::Nothing,
            Some((touch, touched)) => News::Touched(self.changed(touch, touched)),
        }
    }

    /// The error if a column family was dropped or a value has expired.
    fn lost(&self, state: &CommitState) -> Option<Error> {
        let mut families = self.footprint.families().map(|(cf, _)| cf);
        if let Some(gone) = families.find(|&cf| state.active_of(cf).is_none()) {
            return Some(dropped(gone));
        }
        let has_expired = self.footprint.has_expired(|| self.reader.context.clock().unix_ms());
        has_expired.then(|| {
            Conflict::Expired.error(
                "a value that the transaction read has expired: roll back and run the \
                 transaction again",
            )
        })
    }

    /// Step 2: checks the keys and ranges that were read, without the commit lock.
    fn without_lock(&self) -> Result<()> {
        self.reader.view.publication().wait(self.through.0);
        for (cf, notes) in self.footprint.families() {
            let family = self.reader.view.family(cf).ok_or_else(|| dropped(cf))?;
            for (key, read) in &notes.keys {
                if key_has_changed(self.reader, &family, key, read)? {
                    let touch = Touch { cf, start: key, end: None };
                    return Err(self.changed(touch, Touched::Key));
                }
            }
            for range in notes.ranges.iter() {
                if range_has_newer(self.reader, &family, &range, notes.ranges_as_of)? {
                    let touch = Touch { cf, start: &range.start, end: None };
                    return Err(self.changed(touch, Touched::Range));
                }
            }
        }
        Ok(())
    }

    fn changed(&self, touch: Touch<'_>, touched: Touched) -> Error {
        let name = self.reader.view.family(touch.cf).map_or_else(String::new, |of| of.name.clone());
        let key = touch.start.escape_ascii();
        match touched {
            Touched::Key => Conflict::Key.error(format!(
                "key \"{key}\" of column family \"{name}\" was changed since the transaction used \
                 it: roll back and run the transaction again"
            )),
            Touched::Range => Conflict::Range.error(format!(
                "a key at or after \"{key}\" of column family \"{name}\", in a range that the \
                 transaction used, was changed: roll back and run the transaction again"
            )),
        }
    }
}

/// Result of comparing the writes that an observer recorded with the footprint.
enum News {
    /// No write changed the footprint.
    Nothing,
    /// A write changed it; the error for the transaction.
    Touched(Error),
    /// More was written than the observer keeps.
    Unknown,
}

fn dropped(cf: CfId) -> Error {
    Error::closed(format!("column family {cf}, which the transaction used, was dropped"))
}
