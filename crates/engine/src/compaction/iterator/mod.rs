//! `CompactionIterator`: from merged inputs to the records that a flush or compaction writes.
//!
//! One job owns the iterator and uses it on one thread. It reads a merged cursor once, front to
//! back, and holds the state of one user key. [`super::stripes`] explains stripes. The rules:
//!
//! 1. A record above `visible` is kept as it is.
//! 2. Within a stripe, only the newest version of a key survives (operands: rule 6).
//! 3. A record older than a range tombstone of its own stripe is dropped. The outputs get the
//!    newest tombstone over each key for each stripe. Tombstones of the oldest stripe over ranges
//!    with nothing older below are dropped ([`CompactionIterator::take_tombstones`]).
//! 4. A delete is dropped in the oldest stripe if nothing older lies below its key.
//! 5. A record whose expiry has passed at the job's `now_ms` is a delete, in every stripe. Expiry
//!    goes by the wall clock, so no snapshot sees the record either. This is final if the clock is
//!    set back afterwards: a record that a job met stays deleted, and a record that no job met is
//!    visible again.
//! 6. Merge operands of a key within a stripe are folded into a value if the base is known. Known
//!    bases are a put, a delete, an expired record, a range tombstone, and the end of the key's
//!    history. With an unknown base the operator's partial merge folds them, if it has one. A base
//!    that has yet to expire is kept under its operands. After its expiry, readers see the operands
//!    on no value, whether or not a job ran in between. If the operator fails, its operands and a
//!    base with a value are kept as they are. A base without a value becomes a delete (rules 4 and
//!    5), and the failure is reported.
//! 7. The compaction filter sees the first version of a key, if that is a live value at or below
//!    `visible`. It sees neither operands nor values that were just folded; the next job shows it
//!    those. Removal is a delete (rule 4). Expired records never reach the filter. The filter may
//!    remove records that a snapshot sees, because a snapshot reads the super version that it holds
//!    (`db::read::snapshot`).
//! 8. Sequence numbers stay. Zeroing them in the last level would compress better, but
//!    flushed-through numbers and "the latest sequence number of a key" are read from records.
//! 9. Every input record is either written or counted under a reason
//!    (`records_in == records_out + dropped`), so that none is lost silently.
//! 10. These rules treat a reference ([`Kind::Indirect`]) like the value that it names, with the
//!     expiry inside of it. `super::references` says what is written for it, and when its value is
//!     read.
//! 11. An input may read a value only on request ([`InternalIterator::read_value`]). The iterator
//!     does not request the value of a record that is dropped as hidden or expired. A value that
//!     could not be read ends the iteration before a filter, a merge operator or an output sees it.
//!
//! Failure: the iteration ends with an error after an error of the input, an impossible record, or
//! a panic of the merge operator or the filter.
//! Cost: no allocation per record, except what a merge operator or filter returns; one copy of each
//! user key. Values are passed on without a copy.

use std::cmp::Ordering;

use archipelago_base::{Error, ErrorKind, Result, SeqNo};

use super::cover::Cover;
use super::fold::Queue;
use super::references::{self, References};
use super::stripes::Stripes;
use crate::extension::{FamilyFilter, FamilyMerge, FilterDecision};
use crate::iter::InternalIterator;
use crate::job::Counts;
use crate::job::below::{Below, BelowCursor};
use crate::key::{self, KeyRange, KeyRef, Kind};
use crate::pinned::PinnedSlice;
use crate::tombstone::RangeTombstone;

/// Length of the expiry before the value of a [`Kind::PutExpiring`].
const EXPIRY_BYTES: usize = 8;

/// Rules of one job: which records it may drop. They are resolved from its spec.
pub struct Rules<'a> {
    /// The keys of this job: input records outside are not read.
    pub range: &'a KeyRange,
    /// The sequence numbers at which readers look.
    pub stripes: Stripes,
    /// The key ranges with older records below the outputs.
    pub below: &'a Below,
    /// Time by which records expire, in Unix milliseconds.
    pub now_ms: u64,
    /// The column family's merge operator.
    pub merge_operator: Option<FamilyMerge>,
    /// The column family's compaction filter.
    pub filter: Option<FamilyFilter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Current {
    End,
    /// The record at the input's position.
    Input,
    /// The record at the queue's position.
    Queue,
}

/// Iterates over the records that a flush or compaction writes, by the rules of the module.
pub struct CompactionIterator<'a, I> {
    pub(super) input: I,
    pub(super) rules: Rules<'a>,
    /// Resolves references; `None` if the input can have none.
    pub(super) references: Option<References<'a>>,
    pub(super) cover: Cover,
    pub(super) below: BelowCursor<'a>,
    /// The tombstones that the outputs must carry.
    tombstones: Vec<RangeTombstone>,
    /// The user key that was entered last.
    pub(super) key: Vec<u8>,
    /// Trailer of the last record of `key` that was decoded; `None` before the first key.
    pub(super) last_trailer: Option<u64>,
    /// Whether the decoded record is the first of its key.
    first_of_key: bool,
    /// Whether a record of `key` was yielded before the current one.
    continues_key: bool,
    given_of_key: bool,
    /// Whether the current record is kept for a snapshot only.
    is_shadowed: bool,
    /// Stripe of `key` in which all older versions are hidden.
    pub(super) done: Option<usize>,
    /// Whether a range tombstone hides the older versions of `done`.
    done_by_range: bool,
    current: Current,
    /// Records to yield before the input goes on.
    pub(super) queue: Queue,
    pub(super) counts: Counts,
}

impl<'a, I: InternalIterator> CompactionIterator<'a, I> {
    /// An iteration over `input` and its range tombstones, which must lie within the range, by
    /// `rules`. It is not valid before [`CompactionIterator::start`].
    pub fn new(input: I, tombstones: Vec<RangeTombstone>, rules: Rules<'a>) -> Self {
        let cover = Cover::new(tombstones, &rules.stripes);
        let written = cover.retained(rules.below);
        Self {
            below: BelowCursor::new(rules.below),
            input,
            rules,
            references: None,
            cover,
            tombstones: written,
            key: Vec::new(),
            last_trailer: None,
            first_of_key: false,
            continues_key: false,
            given_of_key: false,
            is_shadowed: false,
            done: None,
            done_by_range: false,
            current: Current::End,
            queue: Queue::default(),
            counts: Counts::default(),
        }
    }

    /// Sets the resolver for references in the input. Without it, a reference among the records is
    /// damage.
    #[must_use]
    pub(crate) fn with_references(self, references: References<'a>) -> Self {
        Self { references: Some(references), ..self }
    }

    /// Moves to the first record of the range. Called once.
    pub fn start(&mut self) -> Result<()> {
        if self.rules.range.start.is_empty() {
            self.input.seek_to_first();
        } else {
            let target = key::encode(&self.rules.range.start, SeqNo::MAX, Kind::SEEK);
            self.input.seek(&target);
        }
        self.settle()
    }

    /// Whether there is a record.
    #[inline]
    pub fn valid(&self) -> bool {
        self.current != Current::End
    }

    /// The record's encoded internal key. The iterator must be valid.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self.current {
            Current::Queue => self.queue.key(),
            _ => self.input.key(),
        }
    }

    /// The record's stored value, or why it cannot be read. The iterator must be valid.
    #[inline]
    pub fn value(&self) -> Result<&[u8]> {
        match self.current {
            Current::Queue => Ok(self.queue.value()),
            _ => self.input.read_value(),
        }
    }

    /// Whether the record comes from a block or memtable that users read
    /// ([`InternalIterator::is_warm`]).
    #[inline]
    pub fn is_warm(&self) -> bool {
        self.input.valid() && self.input.is_warm()
    }

    /// Whether the record is the first of its user key: an output may be cut before it.
    #[inline]
    pub fn starts_key(&self) -> bool {
        !self.continues_key
    }

    /// Whether a newer record of the same key, of another stripe, was yielded before. The current
    /// record is kept because a snapshot looks between the two, or because the newer one is not
    /// published.
    #[inline]
    pub fn is_shadowed(&self) -> bool {
        self.is_shadowed
    }

    /// Takes the range tombstones that the outputs must carry, within the range, sorted by start.
    #[must_use]
    pub fn take_tombstones(&mut self) -> Vec<RangeTombstone> {
        std::mem::take(&mut self.tombstones)
    }

    /// Bytes of memory that range tombstones take in the iteration and, until they are taken, in
    /// those that the outputs must carry.
    #[must_use]
    pub fn tombstone_bytes(&self) -> u64 {
        let written: u64 = self.tombstones.iter().map(RangeTombstone::memory_bytes).sum();
        self.cover.memory_bytes() + written
    }

    /// Counts of the records so far; complete once the iterator is not valid any more.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Whether the input has no more records, not even past the range.
    pub fn read_to_end(&self) -> bool {
        !self.input.valid()
    }

    /// Moves to the next record. The iterator must be valid. After an error it is not valid any
    /// more.
    pub fn advance(&mut self) -> Result<()> {
        match self.current {
            Current::End => return Ok(()),
            Current::Input => self.consume(),
            Current::Queue => {
                if self.queue.advance(&self.key) {
                    self.give(Current::Queue);
                    // Records of one queue are of one stripe.
                    self.is_shadowed = false;
                    return Ok(());
                }
            }
        }
        self.settle()
    }

    /// Moves the input past its current record.
    #[inline]
    pub(super) fn consume(&mut self) {
        self.counts.records_in += 1;
        self.input.next();
    }

    /// Moves the input past its current record, which no output gets.
    #[inline]
    pub(super) fn discard(&mut self) -> Result<()> {
        if let Some(references) = &mut self.references
            && references.is_watched(self.input.key())
        {
            // The value is requested only here, because an input may have to read it.
            references.note_dropped(self.input.key(), self.input.read_value()?)?;
        }
        self.consume();
        Ok(())
    }

    #[inline]
    fn give(&mut self, from: Current) {
        self.counts.records_out += 1;
        self.continues_key = self.given_of_key;
        self.is_shadowed = self.given_of_key;
        self.given_of_key = true;
        self.current = from;
    }

    /// Yields the next record at or after the input's position.
    fn settle(&mut self) -> Result<()> {
        self.current = Current::End;
        while let Some((seq, kind)) = self.look()? {
            let Some(stripe) = self.rules.stripes.of(seq) else {
                let from = self.keep(seq, kind, None)?;
                self.give(from);
                return Ok(());
            };
            if self.done == Some(stripe) {
                if self.done_by_range {
                    self.counts.dropped.covered += 1;
                } else {
                    self.counts.dropped.shadowed += 1;
                }
                self.discard()?;
                continue;
            }
            self.done = Some(stripe);
            self.done_by_range =
                self.cover.newest(&self.key, stripe).is_some_and(|newest| newest > seq);
            if self.done_by_range {
                self.counts.dropped.covered += 1;
                self.discard()?;
                continue;
            }
            if let Some(from) = self.take(seq, kind, stripe)? {
                self.give(from);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Decodes the record at the input's position and enters its key; `None` at the end.
    #[inline]
    fn look(&mut self) -> Result<Option<(SeqNo, Kind)>> {
        loop {
            if !self.input.valid() {
                self.input.status()?;
                return Ok(None);
            }
            let encoded = self.input.key();
            let record = decode(encoded)?;
            let trailer = key::trailer(encoded);
            let order = match self.last_trailer {
                None => Ordering::Greater,
                Some(_) => record.user_key.cmp(self.key.as_slice()),
            };
            let (seq, kind) = (record.seq, record.kind);
            match order {
                Ordering::Greater => {
                    let end = self.rules.range.end.as_deref();
                    if end.is_some_and(|end| record.user_key >= end) {
                        return Ok(None);
                    }
                    self.key.clear();
                    self.key.extend_from_slice(record.user_key);
                    self.done = None;
                    self.first_of_key = true;
                    self.given_of_key = false;
                }
                Ordering::Equal => match self.last_trailer.map(|last| trailer.cmp(&last)) {
                    Some(Ordering::Less) => self.first_of_key = false,
                    // The input has the same record twice. A value that both name stays referenced.
                    Some(Ordering::Equal) => {
                        self.counts.dropped.shadowed += 1;
                        self.consume();
                        continue;
                    }
                    _ => return Err(self.out_of_order()),
                },
                Ordering::Less => return Err(self.out_of_order()),
            }
            self.last_trailer = Some(trailer);
            return Ok(Some((seq, kind)));
        }
    }

    /// Yields the newest record of `stripe`, which no tombstone covers; `None` if nothing is
    /// written for it.
    #[inline]
    fn take(&mut self, seq: SeqNo, kind: Kind, stripe: usize) -> Result<Option<Current>> {
        match kind {
            Kind::Put if self.rules.filter.is_none() => Ok(Some(Current::Input)),
            Kind::Put => self.filtered(seq, kind, stripe, None),
            Kind::Delete => {
                if stripe == 0 && !self.below.may_hold(&self.key) {
                    self.counts.dropped.deletes += 1;
                    self.consume();
                    return Ok(None);
                }
                Ok(Some(Current::Input))
            }
            Kind::PutExpiring | Kind::Indirect => {
                let expiry = self.expiry(kind)?;
                if expiry.is_some_and(|expiry| expiry <= self.rules.now_ms) {
                    let dropped = self.hide(seq, stripe)?;
                    self.counts.dropped.expired += u64::from(dropped);
                    return Ok((!dropped).then_some(Current::Queue));
                }
                self.filtered(seq, kind, stripe, expiry)
            }
            Kind::Merge => self.fold(seq, stripe).map(|()| Some(Current::Queue)),
            Kind::SingleDelete | Kind::RangeDelete | Kind::WideEntity => {
                Err(corrupt(&self.key, format_args!("a {kind:?} among point records")))
            }
        }
    }

    /// The expiry of the record at the input's position, in Unix milliseconds.
    pub(super) fn expiry(&self, kind: Kind) -> Result<Option<u64>> {
        match kind {
            Kind::PutExpiring => expiry_of(&self.key, self.input.expiry_bytes()).map(Some),
            Kind::Indirect => {
                Ok(references::decode(&self.key, self.input.read_value()?)?.expiry_unix_ms)
            }
            _ => Ok(None),
        }
    }

    /// Yields the record at the input's position. A reference is written with the current file
    /// number, or as the value. `fetched` is the value if it was read before.
    #[inline]
    fn keep(&mut self, seq: SeqNo, kind: Kind, fetched: Option<PinnedSlice>) -> Result<Current> {
        if kind != Kind::Indirect {
            return Ok(Current::Input);
        }
        let reference = references::decode(&self.key, self.input.read_value()?)?;
        let Some(references) = &mut self.references else { return Err(no_reference(&self.key)) };
        if references.is_current(&reference)? {
            return Ok(Current::Input);
        }
        self.queue.clear();
        self.queue_input(seq, kind, fetched)?;
        self.queue.place(&self.key);
        Ok(Current::Queue)
    }

    /// Consumes the record and puts a delete in its place. Returns whether not even the delete is
    /// needed.
    fn hide(&mut self, seq: SeqNo, stripe: usize) -> Result<bool> {
        self.discard()?;
        if stripe == 0 && !self.below.may_hold(&self.key) {
            return Ok(true);
        }
        self.counts.rewritten += 1;
        self.queue.set(&self.key, seq, Kind::Delete, &[]);
        Ok(false)
    }

    /// Applies the filter to a live value (rule 7).
    fn filtered(
        &mut self,
        seq: SeqNo,
        kind: Kind,
        stripe: usize,
        expiry: Option<u64>,
    ) -> Result<Option<Current>> {
        let Some(filter) = self.rules.filter.as_ref().filter(|_| self.first_of_key) else {
            return self.keep(seq, kind, None).map(Some);
        };
        let fetched = match &mut self.references {
            Some(references) if kind == Kind::Indirect && filter.wants_value() => {
                let reference = references::decode(&self.key, self.input.read_value()?)?;
                Some(references.fetch(&reference, &self.key, seq)?)
            }
            None if kind == Kind::Indirect => return Err(no_reference(&self.key)),
            _ => None,
        };
        let value = match (&fetched, kind) {
            _ if !filter.wants_value() => &[],
            (Some(fetched), _) => fetched.as_ref(),
            (None, Kind::PutExpiring) => &self.input.read_value()?[EXPIRY_BYTES..],
            (None, _) => self.input.read_value()?,
        };
        match filter.filter(&self.key, value, expiry, self.rules.now_ms)? {
            FilterDecision::Keep => self.keep(seq, kind, fetched).map(Some),
            FilterDecision::Remove => {
                let dropped = self.hide(seq, stripe)?;
                self.counts.dropped.filtered += u64::from(dropped);
                Ok((!dropped).then_some(Current::Queue))
            }
            FilterDecision::Change(value) => {
                if value.len() > key::VALUE_BYTES_MAX {
                    return Err(Error::invalid(format!(
                        "compaction filter \"{}\" made a value of {} bytes for key \"{}\": at \
                         most {} are allowed",
                        filter.name(),
                        value.len(),
                        self.key.escape_ascii(),
                        key::VALUE_BYTES_MAX
                    )));
                }
                self.counts.rewritten += 1;
                self.discard()?;
                self.queue.set_value(&self.key, seq, expiry, &value);
                Ok(Some(Current::Queue))
            }
        }
    }

    pub(super) fn out_of_order(&self) -> Error {
        corrupt(&self.key, "the next input record is out of order")
    }
}

/// Decodes a key. `Corrupt` if this version does not know its kind.
#[inline]
pub(super) fn decode(encoded: &[u8]) -> Result<KeyRef<'_>> {
    KeyRef::decode(encoded)
        .ok_or_else(|| corrupt(encoded, "not an internal key of a kind that this version knows"))
}

/// The expiry of a stored [`Kind::PutExpiring`] value.
pub(super) fn expiry_of(key: &[u8], stored: &[u8]) -> Result<u64> {
    match stored.first_chunk::<EXPIRY_BYTES>() {
        Some(bytes) => Ok(u64::from_le_bytes(*bytes)),
        None => Err(corrupt(key, "its value is too short for an expiry")),
    }
}

/// The error for a reference in an input that cannot have references.
#[cold]
pub(super) fn no_reference(key: &[u8]) -> Error {
    corrupt(key, "a reference among records that have their values")
}

/// The error for an impossible input record. The job adds which one it is.
#[cold]
pub(super) fn corrupt(key: &[u8], what: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("input record of key \"{}\": {what}", key.escape_ascii()),
    )
}

#[cfg(test)]
mod tests;
