//! Backward moves of a user iterator. The versions of a key come oldest first, so the version that
//! counts is known only after all of them were passed, and it has to be copied.

use archipelago_base::{Result, SeqNo};

use super::super::InternalIterator;
use super::super::operands::Pushed;
use super::{Newest, Place, STEPS_BEFORE_RESEEK, UserIterator, classify, decode, reference_of};
use crate::key::{Kind, encode_into, user_key};
use crate::value_ref::Reference;

/// State of a key after some of its versions, oldest first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The versions have no value, or end in a delete: later operands have no base.
    NoBase,
    /// Operands of a view of keys only: they make a value, which is not folded.
    Operands,
    /// A value, which was copied.
    Base,
    /// A value in a value file, named by a record of this sequence number.
    Separated(SeqNo, Reference),
}

/// Result of all versions of a key.
enum Collected {
    /// The key has no value.
    Nothing,
    /// The value is in `value` of the iterator.
    Value,
    Separated(Reference),
}

impl UserIterator {
    /// Shows the last entry at or before the merge's position. The position must not lie between
    /// versions of a key.
    pub(super) fn find_prev(&mut self) -> Result<()> {
        self.place = Place::Nowhere;
        while self.merge.valid() {
            let key = user_key(self.merge.key());
            if key < self.view.lower.as_slice() {
                return Ok(());
            }
            self.key.clear();
            self.key.extend_from_slice(key);
            let newest_delete = self.covering.newest::<true>(&self.key, self.view.snapshot)?;
            match self.collect(newest_delete)? {
                Collected::Nothing => {}
                Collected::Value => {
                    self.place = Place::Copied;
                    return Ok(());
                }
                Collected::Separated(reference) => return self.show_separated(reference),
            }
        }
        self.merge.status()
    }

    /// Passes all versions of `self.key`; the merge is at the oldest one. Records older than
    /// `newest_delete` do not count.
    fn collect(&mut self, newest_delete: SeqNo) -> Result<Collected> {
        self.operands.clear();
        self.expires_at_ms = None;
        let mut seen = Seen::NoBase;
        let mut range_deleted = false;
        let mut steps = 0;
        while self.merge.valid() {
            let record = decode(self.merge.key())?;
            if record.user_key != self.key {
                break;
            }
            steps += 1;
            if record.seq > self.view.snapshot {
                if steps > STEPS_BEFORE_RESEEK {
                    self.seek_before_key();
                    break;
                }
                self.merge.prev();
                continue;
            }
            if steps > STEPS_BEFORE_RESEEK {
                return self.collect_by_seek();
            }
            if record.seq < newest_delete {
                range_deleted = true;
            } else {
                self.seq = record.seq;
                match classify(record, &self.merge, self.view.now_ms)? {
                    Newest::Operand if self.view.keys_only => seen = Seen::Operands,
                    Newest::Operand => self.operands.push(self.merge.value()),
                    Newest::Deleted => {
                        seen = Seen::NoBase;
                        self.operands.clear();
                        self.expires_at_ms = None;
                    }
                    Newest::Value { value_start, expires_at_ms } => {
                        seen = Seen::Base;
                        self.operands.clear();
                        self.copy_value(value_start);
                        self.expires_at_ms = expires_at_ms;
                    }
                    Newest::Separated { expires_at_ms } => {
                        seen = self.note_reference(record.seq)?;
                        self.expires_at_ms = expires_at_ms;
                    }
                }
            }
            self.merge.prev();
        }
        self.merge.status()?;
        if range_deleted && self.covering.worth_a_jump() && self.merge.valid() {
            let start = self.covering.span().start().max(&self.view.lower);
            self.merge.skip_deleted_before(start, newest_delete);
        }
        self.conclude(seen)
    }

    /// The result of a key after all its versions were passed.
    fn conclude(&mut self, seen: Seen) -> Result<Collected> {
        if self.operands.is_empty() {
            return Ok(match seen {
                Seen::NoBase => Collected::Nothing,
                Seen::Operands | Seen::Base => Collected::Value,
                Seen::Separated(_, reference) => Collected::Separated(reference),
            });
        }
        let fetched = match seen {
            Seen::Separated(seq, reference) => Some(self.fetch_base(seq, reference)?),
            _ => None,
        };
        let copied = (seen == Seen::Base).then_some(self.value.as_slice());
        let base = copied.or(fetched.as_deref());
        let operator = self.view.operator.as_deref();
        self.value = self.operands.fold(operator, &self.key, base, Pushed::OldestFirst)?;
        Ok(Collected::Value)
    }

    /// Notes the reference of the record `seq`, at the merge's position, as the base. A view of
    /// keys only takes an empty value instead.
    #[cold]
    fn note_reference(&mut self, seq: SeqNo) -> Result<Seen> {
        self.operands.clear();
        self.value.clear();
        if self.view.keys_only {
            return Ok(Seen::Base);
        }
        Ok(Seen::Separated(seq, reference_of(decode(self.merge.key())?, &self.merge)?))
    }

    /// Copies the value at the merge's position, unless the view shows keys only.
    fn copy_value(&mut self, value_start: usize) {
        self.value.clear();
        if !self.view.keys_only {
            self.value.extend_from_slice(&self.merge.value()[value_start..]);
        }
    }

    /// Does the work of [`UserIterator::collect`] for a key with many versions: finds the newest by
    /// a seek.
    fn collect_by_seek(&mut self) -> Result<Collected> {
        self.target.clear();
        encode_into(&mut self.target, &self.key, self.view.snapshot, Kind::SEEK);
        self.merge.seek(&self.target);
        let found = self.copy_newest()?;
        self.seek_before_key();
        Ok(found)
    }

    /// The result of the newest visible version of `self.key`, at the merge's position.
    fn copy_newest(&mut self) -> Result<Collected> {
        self.merge.status()?;
        if !self.merge.valid() {
            return Ok(Collected::Nothing);
        }
        let record = decode(self.merge.key())?;
        let newest_delete = self.covering.newest::<true>(&self.key, self.view.snapshot)?;
        if record.user_key != self.key || record.seq < newest_delete {
            return Ok(Collected::Nothing);
        }
        self.seq = record.seq;
        match classify(record, &self.merge, self.view.now_ms)? {
            Newest::Deleted => Ok(Collected::Nothing),
            Newest::Operand => self.fold_from_newest(newest_delete).map(|()| Collected::Value),
            Newest::Value { value_start, expires_at_ms } => {
                self.copy_value(value_start);
                self.expires_at_ms = expires_at_ms;
                Ok(Collected::Value)
            }
            Newest::Separated { expires_at_ms } => {
                self.operands.clear();
                self.expires_at_ms = expires_at_ms;
                let seen = self.note_reference(record.seq)?;
                self.conclude(seen)
            }
        }
    }
}
