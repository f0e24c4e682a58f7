//! The user's view of a column family: one value per key, as of a snapshot.
//!
//! The public iterator owns this one. It reads a [`MergingIterator`] of all shards and levels and a
//! [`TombstoneSource`]. For each user key it shows the newest visible version. Deleted,
//! range-deleted and expired versions are not shown, and merge operands are folded onto their base.
//! Invariants:
//! 1. [`Place::Cursor`] (forwards only): the merge is at the newest visible record of the current
//!    key, and the value is shown without a copy.
//! 2. [`Place::Copied`]: `key` and `value` hold the current entry. Forwards, the merge is at some
//!    record after the one that decided the value, of this key or the next. Backwards, it is at the
//!    last record before all of this key's.
//! 3. [`Place::Fetched`]: as [`Place::Copied`], but `separated` holds the value, which lies in a
//!    value file. [`Place::Queued`]: the entry is the front of the queue of `separated`, whose
//!    values were fetched together, and the merge is further ahead.
//! 4. Both directions, and every mix of them, with and without a queue, show the same entries.
//!
//! A range tombstone deletes every older record that it covers, wherever either lies. A chain of
//! merge operands ends there as at a delete. An expired record is a delete. Operands on a base that
//! expires are folded onto it until then, and onto nothing afterwards.
//!
//! Failure: an error of a child, a damaged record, or a merge operator that refuses makes the
//! iterator invalid until the next seek. [`UserIterator::status`] returns the error.
//! Cost: forwards a step is one step of the merge and a copy of the key that is left. Backwards it
//! copies key and value. After [`STEPS_BEFORE_RESEEK`] hidden records of one key a seek skips the
//! rest of them. [`separated`] states the cost of separated values; without them there is none.

mod backward;
mod separated;

use std::cmp::Ordering;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{Error, ErrorKind, Result, SeqNo};

use self::separated::SeparatedValues;
use super::operands::{Operands, Pushed};
use super::tombstones::Covering;
use super::values::ValueSource;
use super::{InternalIterator, MergingIterator, TombstoneSource, View};
use crate::key::{KeyRef, Kind, TRAILER_BYTES, encode_into, user_key};
use crate::value_ref::Reference;

pub(crate) use self::separated::Prefetch;

/// Number of hidden records of one key that are stepped over before a seek.
const STEPS_BEFORE_RESEEK: u32 = 8;
/// Bytes of the expiry at the start of a [`Kind::PutExpiring`] value.
const EXPIRY_BYTES: usize = 8;

/// Location of the current entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// There is no current entry.
    Nowhere,
    /// The entry is at the merge's position. The user's value starts at this offset of the stored
    /// value.
    Cursor { value_start: usize },
    /// The entry is in `key` and `value`.
    Copied,
    /// The entry is in `key` and in the value of `separated`.
    Fetched,
    /// The entry is at the front of the queue of `separated`.
    Queued,
    /// The key of the entry is in `key`, and its value was not read. This happens only while a
    /// queue is collected.
    Unread,
}

/// Records that a forward search passes over, besides those after the snapshot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hidden {
    Nothing,
    /// Records of `self.key`, whose newest version has been handled.
    OlderVersions,
    /// No records. `self.key` is the key of the newer-than-snapshot records that were passed last.
    NewerVersions,
}

/// Result of the newest visible version of a key.
#[derive(Clone, Copy)]
enum Newest {
    Deleted,
    Value {
        value_start: usize,
        expires_at_ms: Option<u64>,
    },
    /// The value lies in a value file. The stored value is the reference.
    Separated {
        expires_at_ms: Option<u64>,
    },
    Operand,
}

/// One value per user key, as of a snapshot, within bounds: what the public iterator wraps.
pub struct UserIterator {
    merge: MergingIterator,
    covering: Covering,
    view: View,
    place: Place,
    /// Whether the last placement went backwards: then the merge is before the current key.
    backward: bool,
    seq: SeqNo,
    expires_at_ms: Option<u64>,
    key: Vec<u8>,
    value: Vec<u8>,
    operands: Operands,
    /// The separated values; `None` if the version has no value file.
    separated: Option<Box<SeparatedValues>>,
    /// Buffer for an encoded internal key to seek.
    target: Vec<u8>,
    error: Option<Error>,
}

impl UserIterator {
    /// An iterator that shows the records of `merge` in `view` which the range tombstones do not
    /// delete. The children of the merge may leave out records outside the view's bounds. It is not
    /// valid before the first seek.
    #[must_use]
    pub fn new(
        merge: MergingIterator,
        tombstones: Option<Box<dyn TombstoneSource>>,
        view: View,
    ) -> Self {
        Self {
            merge,
            covering: Covering::new(tombstones),
            view,
            place: Place::Nowhere,
            backward: false,
            seq: SeqNo::ZERO,
            expires_at_ms: None,
            key: Vec::new(),
            value: Vec::new(),
            operands: Operands::default(),
            separated: None,
            target: Vec::new(),
            error: None,
        }
    }

    /// Enables the iterator to show records that reference value files. `source` fetches their
    /// values. The queue of values ahead is charged to `budget`.
    #[must_use]
    pub(crate) fn with_values(
        mut self,
        source: Box<dyn ValueSource>,
        prefetch: Prefetch,
        budget: Arc<ByteBudget>,
    ) -> Self {
        self.separated = Some(Box::new(SeparatedValues::new(source, prefetch, budget)));
        self
    }

    /// Whether the iterator is at an entry.
    #[inline]
    #[must_use]
    pub fn valid(&self) -> bool {
        self.place != Place::Nowhere
    }

    /// The error that made the iterator invalid, if there was one; `Ok` at either end.
    pub fn status(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Makes the iterator invalid with `error` until the next seek.
    #[cold]
    pub(crate) fn fail(&mut self, error: Error) {
        self.place = Place::Nowhere;
        self.error = Some(error);
    }

    /// The current key, until the next move. The iterator must be valid.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self.place {
            Place::Cursor { .. } => user_key(self.merge.key()),
            Place::Queued => self.separated.as_ref().map_or(&[], |at| at.queued_key()),
            _ => &self.key,
        }
    }

    /// The current value; cut or empty if the view shows keys only. The iterator must be valid.
    #[inline]
    #[must_use]
    pub fn value(&self) -> &[u8] {
        match self.place {
            Place::Cursor { value_start } => &self.merge.value()[value_start..],
            Place::Fetched => self.separated.as_ref().map_or(&[], |at| at.value()),
            Place::Queued => self.separated.as_ref().map_or(&[], |at| at.queued_value()),
            _ => &self.value,
        }
    }

    /// Sequence number of the newest visible write to the current key.
    #[must_use]
    pub fn seq(&self) -> SeqNo {
        self.seq
    }

    /// Expiry of the current value (Unix milliseconds), if it has one.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }

    /// Moves to the first entry within the bounds.
    pub fn seek_to_first(&mut self) {
        self.seek(&[]);
    }

    /// Moves to the first entry at or after `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.begin(false);
        let from = key.max(self.view.lower.as_slice());
        if self.view.upper.as_deref().is_some_and(|upper| upper <= from) {
            return;
        }
        self.target.clear();
        encode_into(&mut self.target, from, self.view.snapshot, Kind::SEEK);
        self.merge.seek(&self.target);
        let found = self.find_next(Hidden::Nothing);
        self.end(found);
    }

    /// Moves to the last entry within the bounds.
    pub fn seek_to_last(&mut self) {
        self.begin(true);
        match &self.view.upper {
            None => self.merge.seek_to_last(),
            Some(upper) if *upper <= self.view.lower => return,
            Some(upper) => {
                self.target.clear();
                encode_into(&mut self.target, upper, SeqNo::MAX, Kind::SEEK);
                self.merge.seek_for_prev(&self.target);
            }
        }
        let found = self.find_prev();
        self.end(found);
    }

    /// Moves to the last entry at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) {
        if self.view.upper.as_deref().is_some_and(|upper| upper <= key) {
            return self.seek_to_last();
        }
        self.begin(true);
        if key < self.view.lower.as_slice() {
            return;
        }
        self.target.clear();
        encode_into(&mut self.target, key, SeqNo::ZERO, Kind::Delete);
        self.merge.seek_for_prev(&self.target);
        let found = self.find_prev();
        self.end(found);
    }

    /// Moves to the next entry. An invalid iterator stays invalid.
    #[inline]
    pub fn next(&mut self) {
        match self.place {
            Place::Nowhere => return,
            Place::Cursor { .. } => {
                self.key.clear();
                self.key.extend_from_slice(user_key(self.merge.key()));
                self.merge.next();
            }
            Place::Queued if !self.backward => {
                let found = self.pass_front();
                return self.end(found);
            }
            _ if self.backward => {
                self.leave_queue();
                self.begin(false);
                self.seek_past_key();
            }
            _ => {}
        }
        let found = self.find_next(Hidden::OlderVersions);
        self.end(found);
    }

    /// Moves to the previous entry. An invalid iterator stays invalid.
    pub fn prev(&mut self) {
        if !self.valid() {
            return;
        }
        if !self.backward {
            if let Place::Cursor { .. } = self.place {
                self.key.clear();
                self.key.extend_from_slice(user_key(self.merge.key()));
            }
            self.leave_queue();
            self.begin(true);
            self.seek_before_key();
        } else if self.place == Place::Queued {
            let found = self.pass_front();
            return self.end(found);
        }
        let found = self.find_prev();
        self.end(found);
    }

    /// Forgets the current entry, before a placement in the given direction.
    fn begin(&mut self, backward: bool) {
        self.place = Place::Nowhere;
        self.error = None;
        self.backward = backward;
        self.covering.jump();
        if let Some(separated) = &mut self.separated {
            separated.reset();
        }
    }

    #[inline]
    fn end(&mut self, found: Result<()>) {
        if let Err(error) = found {
            self.place = Place::Nowhere;
            self.error = Some(error);
        }
    }

    /// Moves the merge past all records of `self.key`, or to the very last of them.
    fn seek_past_key(&mut self) {
        self.target.clear();
        encode_into(&mut self.target, &self.key, SeqNo::ZERO, Kind::Delete);
        self.merge.seek(&self.target);
    }

    /// Moves the merge to the last record before all those of `self.key`.
    fn seek_before_key(&mut self) {
        self.target.clear();
        encode_into(&mut self.target, &self.key, SeqNo::MAX, Kind::SEEK);
        self.merge.seek_for_prev(&self.target);
    }

    /// Shows the first entry at or after the merge's position whose records are not `hidden`.
    fn find_next(&mut self, mut hidden: Hidden) -> Result<()> {
        self.place = Place::Nowhere;
        let mut steps = 0;
        while self.merge.valid() {
            let record = decode(self.merge.key())?;
            if hidden == Hidden::OlderVersions && record.user_key == self.key {
                steps += 1;
                if steps == STEPS_BEFORE_RESEEK {
                    self.seek_past_key();
                } else {
                    self.merge.next();
                }
                continue;
            }
            if self.view.upper.as_deref().is_some_and(|upper| record.user_key >= upper) {
                return Ok(());
            }
            if record.seq > self.view.snapshot {
                steps = self.pass_newer(hidden, steps)?;
                hidden = Hidden::NewerVersions;
                continue;
            }
            let seq = record.seq;
            let newest = self.covering.newest::<false>(record.user_key, self.view.snapshot)?;
            if seq < newest {
                self.pass_range_deleted(newest);
                continue;
            }
            match classify(record, &self.merge, self.view.now_ms)? {
                Newest::Value { value_start, expires_at_ms } => {
                    self.seq = seq;
                    self.expires_at_ms = expires_at_ms;
                    self.place = Place::Cursor { value_start };
                    return Ok(());
                }
                Newest::Separated { expires_at_ms } => {
                    self.seq = seq;
                    self.expires_at_ms = expires_at_ms;
                    return self.show_reference();
                }
                Newest::Operand => {
                    self.seq = seq;
                    self.key.clear();
                    self.key.extend_from_slice(record.user_key);
                    return self.fold_from_newest(newest);
                }
                Newest::Deleted => {
                    self.key.clear();
                    self.key.extend_from_slice(record.user_key);
                    hidden = Hidden::OlderVersions;
                    steps = 0;
                    self.merge.next();
                }
            }
        }
        self.merge.status()
    }

    /// Shows the separated value of the record at the merge's position. A view of keys only shows
    /// an empty value.
    #[cold]
    fn show_reference(&mut self) -> Result<()> {
        if self.view.keys_only {
            self.place = Place::Cursor { value_start: self.merge.value().len() };
            return Ok(());
        }
        let record = decode(self.merge.key())?;
        let reference = reference_of(record, &self.merge)?;
        self.key.clear();
        self.key.extend_from_slice(record.user_key);
        self.show_separated(reference)
    }

    /// Passes over a record after the snapshot. `steps` and the result count such records of one
    /// key.
    fn pass_newer(&mut self, hidden: Hidden, steps: u32) -> Result<u32> {
        let key = user_key(self.merge.key());
        if hidden != Hidden::NewerVersions || self.key != key {
            self.key.clear();
            self.key.extend_from_slice(key);
            self.merge.next();
            return Ok(1);
        }
        if steps + 1 == STEPS_BEFORE_RESEEK {
            self.target.clear();
            encode_into(&mut self.target, &self.key, self.view.snapshot, Kind::SEEK);
            self.merge.seek(&self.target);
        } else {
            self.merge.next();
        }
        Ok(steps + 1)
    }

    /// Passes over a record that the range delete `newest` hides. After several such records it
    /// skips the rest of the deleted range, in all children that have no newer record.
    fn pass_range_deleted(&mut self, newest: SeqNo) {
        if !self.covering.worth_a_jump() {
            return self.merge.next();
        }
        let Some(end) = self.covering.span().end() else { return self.merge.next() };
        let until = self.view.upper.as_deref().map_or(end, |upper| upper.min(end));
        self.merge.skip_deleted_to(until, newest);
    }

    /// Folds the operands of `self.key`, the newest of which is at the merge's position, onto their
    /// base and shows the result. Records older than `newest_delete` do not count.
    fn fold_from_newest(&mut self, newest_delete: SeqNo) -> Result<()> {
        self.operands.clear();
        self.expires_at_ms = None;
        let mut base_start = None;
        let mut fetched = None;
        while self.merge.valid() {
            let record = decode(self.merge.key())?;
            if record.user_key != self.key || record.seq < newest_delete {
                break;
            }
            match classify(record, &self.merge, self.view.now_ms)? {
                Newest::Operand if self.view.keys_only => {}
                Newest::Operand => self.operands.push(self.merge.value()),
                Newest::Deleted => break,
                Newest::Value { value_start, expires_at_ms } => {
                    base_start = Some(value_start);
                    self.expires_at_ms = expires_at_ms;
                    break;
                }
                Newest::Separated { expires_at_ms } => {
                    self.expires_at_ms = expires_at_ms;
                    if !self.view.keys_only {
                        let reference = reference_of(record, &self.merge)?;
                        fetched = Some(self.fetch_base(record.seq, reference)?);
                    }
                    break;
                }
            }
            self.merge.next();
        }
        self.merge.status()?;
        if self.view.keys_only {
            self.value.clear();
            self.place = Place::Copied;
            return Ok(());
        }
        let inline = base_start.map(|start| &self.merge.value()[start..]);
        let base = inline.or(fetched.as_deref());
        let operator = self.view.operator.as_deref();
        self.value = self.operands.fold(operator, &self.key, base, Pushed::NewestFirst)?;
        self.place = Place::Copied;
        Ok(())
    }
}

/// Decodes the internal key and checks its kind.
#[inline]
fn decode(encoded: &[u8]) -> Result<KeyRef<'_>> {
    KeyRef::decode(encoded).ok_or_else(|| {
        let (key, trailer) = encoded.split_at(encoded.len().saturating_sub(TRAILER_BYTES));
        damaged(key, format_args!("its internal key ends in the unknown kind {trailer:02x?}"))
    })
}

/// The result for the key of `record`, at the position of `merge`, if it is the newest that counts.
#[inline]
fn classify(record: KeyRef<'_>, merge: &MergingIterator, now_ms: u64) -> Result<Newest> {
    match record.kind {
        Kind::Put => Ok(Newest::Value { value_start: 0, expires_at_ms: None }),
        Kind::Delete => Ok(Newest::Deleted),
        Kind::Merge => Ok(Newest::Operand),
        Kind::PutExpiring => {
            let Some(expiry) = merge.value().first_chunk::<EXPIRY_BYTES>() else {
                return Err(damaged(record.user_key, "its value is too short for its expiry"));
            };
            let expires_at_ms = u64::from_le_bytes(*expiry);
            Ok(match expires_at_ms.cmp(&now_ms) {
                Ordering::Greater => {
                    Newest::Value { value_start: EXPIRY_BYTES, expires_at_ms: Some(expires_at_ms) }
                }
                _ => Newest::Deleted,
            })
        }
        Kind::Indirect => classify_indirect(record, merge, now_ms),
        kind => Err(damaged(record.user_key, format_args!("{kind:?} is not a point record"))),
    }
}

/// The result of [`classify`] for a record with a reference.
#[cold]
fn classify_indirect(record: KeyRef<'_>, merge: &MergingIterator, now_ms: u64) -> Result<Newest> {
    let expires_at_ms = reference_of(record, merge)?.expiry_unix_ms;
    match expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
        true => Ok(Newest::Deleted),
        false => Ok(Newest::Separated { expires_at_ms }),
    }
}

/// The reference that `record`, at the position of `merge`, stores.
fn reference_of(record: KeyRef<'_>, merge: &MergingIterator) -> Result<Reference> {
    Reference::decode(merge.value()).map_err(|why| damaged(record.user_key, why))
}

#[cold]
fn damaged(key: &[u8], what: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("a record of key \"{}\" is damaged: {what}", key.escape_ascii()),
    )
}
