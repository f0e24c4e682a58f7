//! Folding of merge operands (rule 6 of [`super::iterator`]), and the queue of the resulting
//! records.

use std::cmp::Ordering;
use std::ops::Range;

use archipelago_base::{Error, Result, SeqNo};

use super::iterator::{CompactionIterator, decode, no_reference};
use super::references;
use crate::iter::InternalIterator;
use crate::key::{self, Kind, VALUE_BYTES_MAX};
use crate::pinned::PinnedSlice;

/// Records of one user key, newest first, in buffers that are reused.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Encoded key of the record at `at`.
    encoded: Vec<u8>,
    records: Vec<(SeqNo, Kind, Range<usize>)>,
    bytes: Vec<u8>,
    at: usize,
}

impl Queue {
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
        self.at = 0;
    }

    fn push(&mut self, seq: SeqNo, kind: Kind, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.records.push((seq, kind, start..self.bytes.len()));
    }

    fn len(&self) -> u64 {
        self.records.len() as u64
    }

    /// Fills the queue with the one record `(user_key, seq, kind)` and `value`.
    pub(super) fn set(&mut self, user_key: &[u8], seq: SeqNo, kind: Kind, value: &[u8]) {
        self.clear();
        self.push(seq, kind, value);
        self.place(user_key);
    }

    /// Fills the queue with the one record of a value, with an expiry if there is one.
    pub(super) fn set_value(
        &mut self,
        user_key: &[u8],
        seq: SeqNo,
        expiry: Option<u64>,
        value: &[u8],
    ) {
        self.clear();
        self.push_value(seq, expiry, value);
        self.place(user_key);
    }

    fn push_value(&mut self, seq: SeqNo, expiry: Option<u64>, value: &[u8]) {
        let start = self.bytes.len();
        let kind = match expiry {
            None => Kind::Put,
            Some(expiry) => {
                self.bytes.extend_from_slice(&expiry.to_le_bytes());
                Kind::PutExpiring
            }
        };
        self.bytes.extend_from_slice(value);
        self.records.push((seq, kind, start..self.bytes.len()));
    }

    pub(super) fn place(&mut self, user_key: &[u8]) {
        let (seq, kind, _) = &self.records[self.at];
        self.encoded.clear();
        key::encode_into(&mut self.encoded, user_key, *seq, *kind);
    }

    /// Moves to the next record; returns whether there is one.
    pub(super) fn advance(&mut self, user_key: &[u8]) -> bool {
        self.at += 1;
        let more = self.at < self.records.len();
        if more {
            self.place(user_key);
        }
        more
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.encoded
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.bytes[self.records[self.at].2.clone()]
    }

    /// All values, oldest first.
    fn oldest_first(&self) -> Vec<&[u8]> {
        self.records.iter().rev().map(|(_, _, range)| &self.bytes[range.clone()]).collect()
    }
}

/// The base of the operands of a stripe: the next older version of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// The base is not known here: it is in an older stripe, or below.
    Unknown,
    /// The key has no value under the operands, and the input is not at a record of it.
    Nothing,
    /// The base is the record at the input's position.
    Record(SeqNo, Kind),
    /// The base is the record at the input's position, and its expiry has passed.
    Expired(SeqNo),
}

impl<I: InternalIterator> CompactionIterator<'_, I> {
    /// Folds the operands of the current key into the queue, from the input's record on. That
    /// record is the newest of `stripe` and has the sequence number `newest`.
    pub(super) fn fold(&mut self, newest: SeqNo, stripe: usize) -> Result<()> {
        self.queue.clear();
        let mut seq = newest;
        let base = loop {
            self.queue.push(seq, Kind::Merge, self.input.read_value()?);
            self.consume();
            match self.next_of_stripe(stripe)? {
                Err(base) => break base,
                Ok((next, Kind::Merge)) => seq = next,
                Ok((next, kind)) => break Base::Record(next, kind),
            }
        };
        let expiry = match base {
            Base::Record(_, kind) => self.expiry(kind)?,
            _ => None,
        };
        match (base, expiry) {
            (Base::Unknown, _) => self.fold_partly(newest)?,
            // Operands on a value that expires later must stay apart from it: once it has expired,
            // readers see them on no value.
            (Base::Record(seq, kind), Some(expiry)) if expiry > self.rules.now_ms => {
                self.fold_partly(newest)?;
                self.queue_input(seq, kind, None)?;
            }
            (Base::Record(seq, _), Some(_)) => {
                self.fold_fully(newest, stripe, Base::Expired(seq))?;
            }
            _ => self.fold_fully(newest, stripe, base)?,
        }
        self.queue.place(&self.key);
        Ok(())
    }

    /// The next version of the current key within `stripe`. At the end of the stripe it is the base
    /// of the operands instead.
    fn next_of_stripe(&mut self, stripe: usize) -> Result<Result<(SeqNo, Kind), Base>> {
        let tombstone = self.cover.newest(&self.key, stripe);
        let end = if tombstone.is_some() { Base::Nothing } else { Base::Unknown };
        while self.input.valid() {
            let encoded = self.input.key();
            let record = decode(encoded)?;
            if record.user_key != self.key.as_slice() {
                break;
            }
            let trailer = key::trailer(encoded);
            let (seq, kind) = (record.seq, record.kind);
            match self.last_trailer.map_or(Ordering::Greater, |last| trailer.cmp(&last)) {
                Ordering::Less => {}
                Ordering::Equal => {
                    self.counts.dropped.shadowed += 1;
                    self.consume();
                    continue;
                }
                Ordering::Greater => return Err(self.out_of_order()),
            }
            if self.rules.stripes.of(seq) != Some(stripe) {
                return Ok(Err(end));
            }
            if tombstone.is_some_and(|tombstone| tombstone > seq) {
                return Ok(Err(Base::Nothing));
            }
            self.last_trailer = Some(trailer);
            return Ok(Ok((seq, kind)));
        }
        self.input.status()?;
        // The inputs have no older version of the key.
        if end == Base::Unknown && !self.below.may_hold(&self.key) {
            return Ok(Err(Base::Nothing));
        }
        Ok(Err(end))
    }

    /// Puts the record at the input's position into the queue, and consumes it. A reference goes
    /// there with the current file number, or as the value. `fetched` is the value if it was read
    /// before.
    pub(super) fn queue_input(
        &mut self,
        seq: SeqNo,
        kind: Kind,
        fetched: Option<PinnedSlice>,
    ) -> Result<()> {
        let stored = self.input.read_value()?;
        if kind != Kind::Indirect {
            self.queue.push(seq, kind, stored);
            self.consume();
            return Ok(());
        }
        let reference = references::decode(&self.key, stored)?;
        let Some(references) = &mut self.references else { return Err(no_reference(&self.key)) };
        if !references.are_inlined() {
            self.queue.push(seq, kind, references.renamed(&reference, &self.key, seq)?);
            self.consume();
            return Ok(());
        }
        let value = match fetched {
            Some(value) => value,
            None => references.fetch(&reference, &self.key, seq)?,
        };
        self.queue.push_value(seq, reference.expiry_unix_ms, &value);
        self.counts.rewritten += 1;
        self.discard()
    }

    /// Folds operands that stay apart from their base into one, if the operator can do so.
    fn fold_partly(&mut self, newest: SeqNo) -> Result<()> {
        let operands = self.queue.len();
        let Some(operator) = self.rules.merge_operator.as_ref().filter(|_| operands > 1) else {
            return Ok(());
        };
        let folded = operator.partial_merge(&self.key, &self.queue.oldest_first())?;
        if let Some(folded) = folded.filter(|value| value.len() <= VALUE_BYTES_MAX) {
            self.queue.set(&self.key, newest, Kind::Merge, &folded);
            self.counts.dropped.merged += operands - 1;
        }
        Ok(())
    }

    /// Folds operands onto a known base. The result is a value or, if the operator fails, all
    /// operands and the base as it was.
    fn fold_fully(&mut self, newest: SeqNo, stripe: usize, base: Base) -> Result<()> {
        let fetched;
        let value = match (base, &mut self.references) {
            (Base::Record(_, Kind::Put), _) => Some(self.input.read_value()?),
            (Base::Record(seq, Kind::Indirect), Some(references)) => {
                let reference = references::decode(&self.key, self.input.read_value()?)?;
                fetched = references.fetch(&reference, &self.key, seq)?;
                Some(fetched.as_ref())
            }
            (Base::Record(_, Kind::Indirect), None) => return Err(no_reference(&self.key)),
            _ => None,
        };
        let folded = match &self.rules.merge_operator {
            None => Err(Error::invalid("the column family has no merge operator")),
            Some(operator) => {
                operator.full_merge(&self.key, value, &self.queue.oldest_first())?.and_then(fits)
            }
        };
        let operands = self.queue.len();
        match folded {
            Ok(folded) => {
                self.queue.set_value(&self.key, newest, None, &folded);
                self.counts.dropped.merged += operands - 1;
                if let Base::Record(..) | Base::Expired(_) = base {
                    self.counts.dropped.merged += 1;
                    self.discard()?;
                }
            }
            Err(error) => {
                self.keep_base(base, stripe)?;
                self.counts.merge_errors += 1;
                self.counts
                    .merge_error
                    .get_or_insert_with(|| format!("key \"{}\": {error}", self.key.escape_ascii()));
            }
        }
        Ok(())
    }

    /// Puts the base at the input's position, if there is one, below operands that could not be
    /// folded. A base that holds no value is kept only if it hides something older, and only as a
    /// delete. Otherwise a table would hold garbage that no job removes, and would be picked for a
    /// rewrite again and again.
    fn keep_base(&mut self, base: Base, stripe: usize) -> Result<()> {
        let hides = stripe > 0 || self.below.may_hold(&self.key);
        match base {
            Base::Unknown | Base::Nothing => Ok(()),
            Base::Record(_, Kind::Delete) if !hides => {
                self.counts.dropped.deletes += 1;
                self.discard()
            }
            Base::Record(seq, kind) => self.queue_input(seq, kind, None),
            Base::Expired(_) if !hides => {
                self.counts.dropped.expired += 1;
                self.discard()
            }
            Base::Expired(seq) => {
                self.counts.rewritten += 1;
                self.queue.push(seq, Kind::Delete, &[]);
                self.discard()
            }
        }
    }
}

fn fits(value: Vec<u8>) -> Result<Vec<u8>> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the merge operator made a value of {} bytes: at most {VALUE_BYTES_MAX} are allowed",
            value.len()
        )));
    }
    Ok(value)
}
