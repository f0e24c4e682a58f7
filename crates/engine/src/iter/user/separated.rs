//! Separated values of a [`UserIterator`]: the value of the current entry, and a queue of entries
//! ahead of it.
//!
//! The iterator owns one [`SeparatedValues`] if its version has value files. An entry with a
//! separated value is fetched when the cursor is placed on it, because `value` cannot fail. After
//! [`PLACEMENTS_BEFORE_PREFETCH`] placements in a row, the iterator reads ahead. It collects the
//! next entries, fetches their values in one batch, and shows them from the queue. A batch has 2,
//! 4, 8, … [`BATCH_ENTRIES_MAX`] entries, the current one included.
//!
//! Invariants:
//! 1. While the queue has entries, [`Place::Queued`] shows its front, and the merge stands where
//!    the last entry of the queue left it. The field `key` has the key of that last entry.
//! 2. A seek or a change of direction drops the queue ([`SeparatedValues::reset`]).
//! 3. The values in the queue have at most [`AHEAD_BYTES_MAX`] bytes, the front excluded.
//! 4. An error is shown at the entry that caused it. If a batch fails, each of its values is
//!    fetched alone when the cursor reaches it. An error that ended the collection of a batch is
//!    shown when the queue is empty.
//!
//! Thread-safety: an iterator belongs to one thread at a time.
//! Failure: an error of the source makes the iterator invalid, as other errors do.
//! Cost: without a queue one fetch for each entry. With a queue one batch for up to 64 entries, and
//! a copy of each key and of each inline value in between. The queue charges to the byte budget the
//! bytes that the block cache does not count.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use archipelago_base::{Error, Result, SeqNo};

use super::{Hidden, Place, UserIterator, damaged};
use crate::iter::InternalIterator;
use crate::iter::{ValueSource, WantedValue};
use crate::key::user_key;
use crate::pinned::PinnedSlice;
use crate::value_ref::Reference;

/// Number of consecutive placements on separated values that are fetched alone: the entry of a
/// seek, and the first sequential step.
const PLACEMENTS_BEFORE_PREFETCH: u32 = 2;
/// Largest number of entries of a batch.
const BATCH_ENTRIES_MAX: usize = 64;
/// Limit on the bytes of values that a batch holds ahead of the cursor.
const AHEAD_BYTES_MAX: usize = 1 << 20;

/// Whether an iterator fetches values ahead of its cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefetch {
    /// Each value is fetched when the cursor is placed on it.
    Off,
    /// A scan fetches the values of several entries at a time.
    On,
}

/// The value of an entry in the queue.
enum AheadValue {
    Known(PinnedSlice),
    /// The value has yet to be fetched, or a batch with it failed.
    Unread(Reference),
}

/// An entry in the queue.
struct AheadEntry {
    key: Vec<u8>,
    seq: SeqNo,
    expires_at_ms: Option<u64>,
    value: AheadValue,
}

impl AheadEntry {
    fn wanted(&self) -> Option<WantedValue<'_>> {
        match self.value {
            AheadValue::Known(_) => None,
            AheadValue::Unread(reference) => {
                Some(WantedValue { key: &self.key, seq: self.seq, reference })
            }
        }
    }

    /// Bytes of the entry that are not charged elsewhere.
    fn uncounted_bytes(&self) -> usize {
        let value = match &self.value {
            AheadValue::Known(value) if !value.is_pinned() => value.len(),
            _ => 0,
        };
        size_of::<Self>() + self.key.len() + value
    }
}

/// Separated values of one iterator.
pub(super) struct SeparatedValues {
    source: Box<dyn ValueSource>,
    prefetch: Prefetch,
    budget: Arc<ByteBudget>,
    /// Value of the current entry at [`Place::Fetched`].
    value: PinnedSlice,
    queue: VecDeque<AheadEntry>,
    /// Result of the collection of the queue, if the merge has no entry after it.
    end: Option<Result<()>>,
    /// Reference of the entry found last while the queue is collected, if its value is separated.
    unread: Option<Reference>,
    is_collecting: bool,
    /// Placements on separated values outside of the queue since the last seek or turn.
    placements: u32,
    /// Number of entries of the next batch.
    batch_entries: usize,
    charge: Option<Charge>,
}

impl SeparatedValues {
    pub(super) fn new(
        source: Box<dyn ValueSource>,
        prefetch: Prefetch,
        budget: Arc<ByteBudget>,
    ) -> Self {
        Self {
            source,
            prefetch,
            budget,
            value: PinnedSlice::owned(Vec::new()),
            queue: VecDeque::new(),
            end: None,
            unread: None,
            is_collecting: false,
            placements: 0,
            batch_entries: 1,
            charge: None,
        }
    }

    /// Drops the queue and starts again with fetches of single values.
    pub(super) fn reset(&mut self) {
        self.drop_queue();
        self.restart();
    }

    fn drop_queue(&mut self) {
        self.queue.clear();
        self.end = None;
        self.charge = None;
    }

    /// Starts again with fetches of single values.
    fn restart(&mut self) {
        self.placements = 0;
        self.batch_entries = 1;
    }

    /// Value of the current entry at [`Place::Fetched`].
    pub(super) fn value(&self) -> &[u8] {
        &self.value
    }

    /// Key of the entry at [`Place::Queued`].
    pub(super) fn queued_key(&self) -> &[u8] {
        self.queue.front().map_or(&[], |front| &front.key)
    }

    /// Value of the entry at [`Place::Queued`].
    pub(super) fn queued_value(&self) -> &[u8] {
        match self.queue.front() {
            Some(AheadEntry { value: AheadValue::Known(value), .. }) => value,
            _ => &[],
        }
    }

    /// Counts a placement on a separated value. Returns the number of entries to fetch with it.
    fn next_batch(&mut self) -> usize {
        self.placements += 1;
        if self.prefetch == Prefetch::On && self.placements > PLACEMENTS_BEFORE_PREFETCH {
            self.batch_entries = (self.batch_entries * 2).min(BATCH_ENTRIES_MAX);
        }
        self.batch_entries
    }

    /// Fetches the values of the queue in one batch: the front's, and those of later entries within
    /// the limit of bytes.
    fn fetch_batch(&mut self) {
        let mut ahead_bytes = 0;
        let mut count = 0;
        for (at, entry) in self.queue.iter().enumerate() {
            ahead_bytes += match &entry.value {
                _ if at == 0 => 0,
                AheadValue::Known(value) => value.len(),
                AheadValue::Unread(reference) => reference.raw_bytes as usize,
            };
            if ahead_bytes > AHEAD_BYTES_MAX {
                break;
            }
            count += 1;
        }
        let batch = self.queue.iter().take(count);
        let wanted: Vec<WantedValue<'_>> = batch.filter_map(AheadEntry::wanted).collect();
        let Ok(values) = self.source.fetch_many(&wanted) else { return self.restart() };
        assert_eq!(values.len(), wanted.len(), "a source returns one value for each record");
        let unread = self.queue.iter_mut().filter(|entry| entry.wanted().is_some());
        for (entry, value) in unread.zip(values) {
            entry.value = AheadValue::Known(value);
        }
        let uncounted = self.queue.iter().map(AheadEntry::uncounted_bytes).sum::<usize>();
        self.charge = Some(self.budget.hold(MemoryClass::BlockCache, uncounted as u64));
    }
}

impl UserIterator {
    /// Fetches the separated value of the record `seq` of `self.key`, for a merge operator.
    pub(super) fn fetch_base(&self, seq: SeqNo, reference: Reference) -> Result<PinnedSlice> {
        match &self.separated {
            Some(separated) => {
                separated.source.fetch(WantedValue { key: &self.key, seq, reference })
            }
            None => Err(no_value_files(&self.key)),
        }
    }

    /// Shows the entry of `self.key`, `self.seq` and `self.expires_at_ms` with the value that
    /// `reference` names. While the queue is collected, it only notes the reference.
    #[cold]
    pub(super) fn show_separated(&mut self, reference: Reference) -> Result<()> {
        let Some(separated) = &mut self.separated else { return Err(no_value_files(&self.key)) };
        if separated.is_collecting {
            separated.unread = Some(reference);
            self.place = Place::Unread;
            return Ok(());
        }
        let entries = separated.next_batch();
        if entries > 1 {
            self.collect_queue(reference, entries);
            return self.show_front();
        }
        let wanted = WantedValue { key: &self.key, seq: self.seq, reference };
        separated.value = separated.source.fetch(wanted)?;
        self.place = Place::Fetched;
        Ok(())
    }

    /// Leaves the front of the queue, in the direction in which the queue was collected.
    pub(super) fn pass_front(&mut self) -> Result<()> {
        self.place = Place::Nowhere;
        let Some(separated) = &mut self.separated else { return Ok(()) };
        separated.queue.pop_front();
        if !separated.queue.is_empty() {
            return self.show_front();
        }
        let end = separated.end.take();
        separated.drop_queue();
        match end {
            Some(end) => end,
            None => self.find_following(),
        }
    }

    /// Before a change of direction: keeps the key of the current entry in `self.key`, if that
    /// entry is the front of the queue.
    pub(super) fn leave_queue(&mut self) {
        if self.place == Place::Queued
            && let Some(separated) = &self.separated
        {
            self.key.clear();
            self.key.extend_from_slice(separated.queued_key());
        }
    }

    fn find_following(&mut self) -> Result<()> {
        if self.backward { self.find_prev() } else { self.find_next(Hidden::OlderVersions) }
    }

    /// Fills the queue with the current entry, whose value `first` names, and the entries after it.
    /// The queue gets `entries` in all, or fewer if their values exceed the limit of bytes.
    fn collect_queue(&mut self, first: Reference, entries: usize) {
        let Some(mut separated) = self.separated.take() else { return };
        separated.drop_queue();
        separated.is_collecting = true;
        separated.unread = Some(first);
        self.place = Place::Unread;
        self.separated = Some(separated);
        let mut ahead_bytes = 0;
        loop {
            let bytes = self.push_current();
            let Some(separated) = &mut self.separated else { return };
            if separated.queue.len() > 1 {
                ahead_bytes += bytes;
            }
            if separated.queue.len() >= entries || ahead_bytes >= AHEAD_BYTES_MAX {
                break;
            }
            let found = self.find_following();
            if found.is_err() || self.place == Place::Nowhere {
                if let Some(separated) = &mut self.separated {
                    separated.end = Some(found);
                }
                break;
            }
        }
        if let Some(separated) = &mut self.separated {
            separated.is_collecting = false;
            separated.fetch_batch();
        }
    }

    /// Appends the current entry to the queue, and keeps its key in `self.key`, so that the search
    /// can go on after it. Returns the bytes of the value.
    fn push_current(&mut self) -> usize {
        let Some(separated) = &mut self.separated else { return 0 };
        let value = match self.place {
            Place::Cursor { value_start } => {
                self.key.clear();
                self.key.extend_from_slice(user_key(self.merge.key()));
                AheadValue::Known(PinnedSlice::owned(self.merge.value()[value_start..].to_vec()))
            }
            _ => match separated.unread.take() {
                Some(reference) => AheadValue::Unread(reference),
                None => AheadValue::Known(PinnedSlice::owned(std::mem::take(&mut self.value))),
            },
        };
        let bytes = match &value {
            AheadValue::Known(value) => value.len(),
            AheadValue::Unread(reference) => reference.raw_bytes as usize,
        };
        let (key, seq, expires_at_ms) = (self.key.clone(), self.seq, self.expires_at_ms);
        separated.queue.push_back(AheadEntry { key, seq, expires_at_ms, value });
        bytes
    }

    /// Shows the front of the queue. Fetches its value if the batch has not.
    fn show_front(&mut self) -> Result<()> {
        self.place = Place::Nowhere;
        let Some(separated) = &mut self.separated else { return Ok(()) };
        let Some(front) = separated.queue.front() else { return Ok(()) };
        (self.seq, self.expires_at_ms) = (front.seq, front.expires_at_ms);
        if let AheadValue::Unread(reference) = front.value {
            let is_last = separated.queue.len() == 1 && separated.end.is_none();
            if is_last && separated.placements > 0 {
                // The value did not fit into its batch: it begins the next one.
                self.key.clone_from(&front.key);
                separated.drop_queue();
                return self.show_separated(reference);
            }
            let wanted = WantedValue { key: &front.key, seq: front.seq, reference };
            let value = separated.source.fetch(wanted)?;
            if let Some(front) = separated.queue.front_mut() {
                front.value = AheadValue::Known(value);
            }
        }
        self.place = Place::Queued;
        Ok(())
    }
}

#[cold]
fn no_value_files(key: &[u8]) -> Error {
    damaged(key, "it references a value file, but the version has none")
}
