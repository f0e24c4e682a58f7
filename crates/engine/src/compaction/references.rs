//! References in a compaction: the file numbers that the outputs name, the values that are fetched,
//! and the references that are dropped.
//!
//! The [`CompactionIterator`](super::iterator::CompactionIterator) of a compaction owns this value.
//!
//! Invariants:
//! 1. A reference in an output names the current number of its file. It keeps the offset only if
//!    its number is the current one, because the offset is correct for that file alone. If the
//!    number is new, it gets the offset in the heir, provided that the source has that at hand.
//! 2. A value is read only if a filter or a merge operator needs it, or if the family no longer
//!    separates values.
//! 3. Every reference that is read is either written to an output, or handed to
//!    [`DroppedReferences`] once.
//!
//! Failure: damage of a reference or its value, an error of a read, and `InvalidArgument` if the
//! spec does not say where a value lies.
//! Cost: each reference is decoded. Its number is looked up if it differs from the last one.

use archipelago_base::{Error, FileNo, Result, SeqNo};

use super::iterator::corrupt;
use crate::job::ValueSource;
use crate::job::spec::{CurrentNumber, ValueSpec};
use crate::key::{self, Kind};
use crate::pinned::PinnedSlice;
use crate::value::ValueKey;
use crate::value_ref::Reference;

/// A reference of an input that no output contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedReference<'a> {
    /// Number that the reference names.
    pub(crate) named: FileNo,
    /// Number of the file that holds the value now.
    pub(crate) current: FileNo,
    /// Encoded internal key of the record.
    pub(crate) internal_key: &'a [u8],
}

/// Receives the references that a compaction drops, in internal-key order. They are garbage only
/// after the outputs were installed.
pub(crate) trait DroppedReferences {
    /// Notes one dropped reference.
    fn note(&mut self, dropped: DroppedReference<'_>) -> Result<()>;
}

/// How the references of a compaction's inputs are treated.
pub(crate) struct References<'a> {
    spec: &'a ValueSpec,
    source: Box<dyn ValueSource + 'a>,
    sink: Option<&'a mut dyn DroppedReferences>,
    /// The result of the last look-up of a number.
    last: Option<CurrentNumber>,
    /// The last encoded reference with a new number.
    renamed: Vec<u8>,
}

impl<'a> References<'a> {
    /// A resolver for references by `spec`, which reads values from `source`.
    pub(crate) fn new(spec: &'a ValueSpec, source: Box<dyn ValueSource + 'a>) -> Self {
        Self { spec, source, sink: None, last: None, renamed: Vec::new() }
    }

    /// Hands every dropped reference to `sink`.
    #[must_use]
    pub(crate) fn dropping_into(self, sink: &'a mut dyn DroppedReferences) -> Self {
        Self { sink: Some(sink), ..self }
    }

    /// Whether values are put back into the tables.
    pub(super) fn are_inlined(&self) -> bool {
        self.spec.separation_bytes == 0
    }

    /// Number of the file that holds the value of `reference` now.
    fn current(&mut self, reference: &Reference) -> Result<FileNo> {
        let named = reference.file_no.0;
        if let Some(last) = self.last.filter(|last| last.named == named) {
            return Ok(FileNo(last.current));
        }
        let Some(current) = self.spec.current(named) else {
            return Err(Error::invalid(format!(
                "job spec: an input names value file {named}, of which the spec does not say \
                 where its values lie"
            )));
        };
        self.last = Some(CurrentNumber { named, current });
        Ok(FileNo(current))
    }

    /// Whether an output may contain `reference` unchanged.
    pub(super) fn is_current(&mut self, reference: &Reference) -> Result<bool> {
        Ok(!self.are_inlined() && self.current(reference)? == reference.file_no)
    }

    /// The encoded reference of the record `(user_key, seq)` with the current number.
    pub(super) fn renamed(
        &mut self,
        reference: &Reference,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<&[u8]> {
        let current = self.current(reference)?;
        let offset = match current == reference.file_no {
            true => reference.offset,
            false => self.source.moved_offset(reference, current, ValueKey { user_key, seq }),
        };
        self.renamed.clear();
        Reference { file_no: current, offset, ..*reference }.encode(&mut self.renamed);
        Ok(&self.renamed)
    }

    /// Reads the value of the record `(user_key, seq)`.
    pub(super) fn fetch(
        &mut self,
        reference: &Reference,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<PinnedSlice> {
        let current = self.current(reference)?;
        self.source.fetch(reference, current, ValueKey { user_key, seq })
    }

    /// Whether there is a sink and the record is a reference.
    #[inline]
    pub(super) fn is_watched(&self, internal_key: &[u8]) -> bool {
        self.sink.is_some() && key::trailer(internal_key) as u8 == Kind::Indirect as u8
    }

    /// Hands a dropped reference to the sink.
    pub(super) fn note_dropped(&mut self, internal_key: &[u8], stored: &[u8]) -> Result<()> {
        let reference = decode(key::user_key(internal_key), stored)?;
        let (named, current) = (reference.file_no, self.current(&reference)?);
        match &mut self.sink {
            None => Ok(()),
            Some(sink) => sink.note(DroppedReference { named, current, internal_key }),
        }
    }
}

/// The reference that is the stored value of a record of `user_key`.
pub(super) fn decode(user_key: &[u8], stored: &[u8]) -> Result<Reference> {
    Reference::decode(stored).map_err(|bad| corrupt(user_key, bad))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::iterator::{CompactionIterator, Rules};
    use crate::compaction::stripes::Stripes;
    use crate::iter::VecIterator;
    use crate::job::below::Below;
    use crate::key::KeyRange;

    /// Every value is "value".
    struct Same;

    impl ValueSource for Same {
        fn fetch(&mut self, _: &Reference, _: FileNo, _: ValueKey<'_>) -> Result<PinnedSlice> {
            Ok(PinnedSlice::owned(b"value".to_vec()))
        }
    }

    #[derive(Default)]
    struct Noted(Vec<(u64, u64, Vec<u8>)>);

    impl DroppedReferences for Noted {
        fn note(&mut self, dropped: DroppedReference<'_>) -> Result<()> {
            let DroppedReference { named, current, internal_key } = dropped;
            self.0.push((named.0, current.0, key::user_key(internal_key).to_vec()));
            Ok(())
        }
    }

    fn stored(no: u64, expiry_unix_ms: Option<u64>) -> Vec<u8> {
        let (stored_bytes, raw_bytes, offset) = (5, 5, Some(0));
        let mut out = Vec::new();
        let file_no = FileNo(no);
        Reference { file_no, offset, stored_bytes, raw_bytes, expiry_unix_ms }.encode(&mut out);
        out
    }

    /// What the sink gets of a compaction of `records`.
    fn noted(records: &[(&str, u64, Kind, Vec<u8>)], separation_bytes: u64) -> Noted {
        let entries = records.iter().map(|(user_key, seq, kind, value)| {
            (key::encode(user_key.as_bytes(), SeqNo(*seq), *kind), value.clone())
        });
        let (range, below) = (KeyRange::all(), Below::nothing());
        let registry = crate::extension::Registry::default();
        let operator = registry.merge_operator("append").unwrap();
        let rules = Rules {
            range: &range,
            stripes: Stripes::new(&[5], SeqNo(100)),
            below: &below,
            now_ms: 1000,
            merge_operator: Some(crate::extension::FamilyMerge::new(operator, "default")),
            filter: None,
        };
        let spec = ValueSpec {
            separation_bytes,
            current: vec![
                CurrentNumber { named: 1, current: 9 },
                CurrentNumber { named: 2, current: 2 },
            ],
            ..ValueSpec::default()
        };
        let mut noted = Noted::default();
        let references = References::new(&spec, Box::new(Same)).dropping_into(&mut noted);
        let input = VecIterator::new(entries.collect());
        let mut iterator =
            CompactionIterator::new(input, Vec::new(), rules).with_references(references);
        iterator.start().unwrap();
        let mut given = 0;
        while iterator.valid() {
            given += u64::from(key::trailer(iterator.key()) as u8 == Kind::Indirect as u8);
            iterator.advance().unwrap();
        }
        let references = records.iter().filter(|record| record.2 == Kind::Indirect).count() as u64;
        drop(iterator);
        assert_eq!(given + noted.0.len() as u64, references, "given out or noted");
        noted
    }

    #[test]
    fn sink_gets_exactly_the_references_that_no_output_has() {
        let records = [
            ("expired", 10, Kind::Indirect, stored(2, Some(900))),
            ("hidden", 11, Kind::Put, vec![]),
            ("hidden", 10, Kind::Indirect, stored(1, None)),
            ("hidden", 4, Kind::Indirect, stored(1, None)),
            ("kept", 10, Kind::Indirect, stored(1, None)),
            ("lives", 10, Kind::Merge, b"+".to_vec()),
            ("lives", 9, Kind::Indirect, stored(2, Some(5000))),
            ("merged", 10, Kind::Merge, b"+".to_vec()),
            ("merged", 9, Kind::Indirect, stored(2, None)),
            ("unpublished", 101, Kind::Indirect, stored(2, None)),
        ];
        let dropped = |no, current, key: &str| (no, current, key.as_bytes().to_vec());
        let expected = [dropped(2, 2, "expired"), dropped(1, 9, "hidden"), dropped(2, 2, "merged")];
        assert_eq!(noted(&records, 1).0, expected);
        assert_eq!(noted(&records, 0).0.len(), 7, "none is left where values are put back");
    }
}
