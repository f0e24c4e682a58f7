//! Determines for a scan which range delete covers a key.
//!
//! A range tombstone of a file covers keys of older levels, wherever the cursors are. The file may
//! hold no point record near them, or none at all. So a scan does not collect tombstones from the
//! cursors that it passes. It asks a [`TombstoneSource`] by key. Sequence numbers order all writes
//! of a database, so one question over all shards and levels is enough. A record is deleted if the
//! newest visible tombstone that covers its key is newer than the record, wherever either lies.
//!
//! The code that builds the sources takes the snapshot's sequence number *first* and the tombstone
//! sets afterwards. Then every delete that the snapshot sees is in a set, and newer deletes do not
//! count.
//!
//! The answer is a [`TombstoneSpan`]: the newest delete, and the largest range of keys around the
//! asked key with the same answer. So following keys cost one comparison. Invariants of an answer:
//! the span holds the key, and for *every* key in it the newest visible delete is
//! [`TombstoneSpan::newest`].
//!
//! Cost: nothing while no source has a tombstone. Otherwise each span costs one question of a
//! [`TombstoneSet`] for one part of each memtable, for the L0 files of one bucket, and for one file
//! of each level. A scan opens no file's tombstones before the first question that needs them.

use std::sync::Arc;

use archipelago_base::{Result, SeqNo};

use crate::bucket::BucketMap;
use crate::tombstone::{TombstoneSet, TombstoneSpan};

/// Range tombstones that can be asked by key.
pub trait TombstoneSource: Send {
    /// Whether the source has no tombstone at all. Called once, when the scan starts.
    fn is_empty(&self) -> bool;
    /// Narrows `span`, which holds `key`, by the tombstones of the source ([`TombstoneSpan::add`]).
    /// Deletes newer than `snapshot` do not count. Tombstones older than the newest delete of the
    /// span change nothing and may be left out. So the newest sources should be asked first.
    fn covering(&mut self, key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) -> Result<()>;
}

impl TombstoneSource for Arc<TombstoneSet> {
    fn is_empty(&self) -> bool {
        TombstoneSet::is_empty(self)
    }

    fn covering(&mut self, key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) -> Result<()> {
        self.add_to(key, snapshot, span);
        Ok(())
    }
}

/// Several sources as one: a question goes to all of them.
impl TombstoneSource for Vec<Box<dyn TombstoneSource>> {
    fn is_empty(&self) -> bool {
        self.iter().all(|source| source.is_empty())
    }

    fn covering(&mut self, key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) -> Result<()> {
        self.iter_mut().try_for_each(|source| source.covering(key, snapshot, span))
    }
}

/// One source for each bucket of a map: the shards of a memtable, or the L0 files of each bucket. A
/// question costs that of one bucket, for any number of buckets.
pub struct BucketTombstones {
    map: Arc<BucketMap>,
    /// The bucket of the first part.
    first: usize,
    parts: Vec<Option<Box<dyn TombstoneSource>>>,
}

impl BucketTombstones {
    /// Sources of the buckets of `map` from `first` on; `None` for a bucket without range
    /// tombstones. Keys of other buckets must not be asked.
    #[must_use]
    pub fn new(
        map: Arc<BucketMap>,
        first: usize,
        parts: Vec<Option<Box<dyn TombstoneSource>>>,
    ) -> Self {
        Self { map, first, parts }
    }
}

impl TombstoneSource for BucketTombstones {
    fn is_empty(&self) -> bool {
        self.parts.iter().flatten().all(|part| part.is_empty())
    }

    fn covering(&mut self, key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) -> Result<()> {
        let bucket = self.map.bucket_of(key);
        span.add(self.map.start(bucket), self.map.end(bucket), None);
        let part = bucket.checked_sub(self.first).and_then(|at| self.parts.get_mut(at));
        match part {
            Some(Some(part)) => part.covering(key, snapshot, span),
            _ => Ok(()),
        }
    }
}

/// A file that has range tombstones.
pub trait TombstoneFile: Send {
    /// A user key at or before the start of each tombstone.
    fn smallest(&self) -> &[u8];
    /// A user key at or after the (exclusive) end of each tombstone: no tombstone covers it.
    fn largest(&self) -> &[u8];
    /// A sequence number that no tombstone of the file exceeds.
    fn newest(&self) -> SeqNo;
    /// The tombstones of the file, which is opened if necessary.
    fn tombstones(&self) -> Result<Arc<TombstoneSet>>;
}

/// The range tombstones of sorted, disjoint files: the files of a level that have any, or one file
/// of L0. The tombstones of a file are loaded at the first question about a key within its bounds
/// that no newer delete has answered.
pub struct LevelTombstones<F: TombstoneFile> {
    files: Vec<F>,
    /// A sequence number that no tombstone of any file exceeds.
    newest: SeqNo,
    loaded: Vec<Option<Arc<TombstoneSet>>>,
}

impl<F: TombstoneFile> LevelTombstones<F> {
    /// A source over `files`, which are in key order.
    #[must_use]
    pub fn new(files: Vec<F>) -> Self {
        let newest = files.iter().map(F::newest).max().unwrap_or_default();
        Self { loaded: files.iter().map(|_| None).collect(), newest, files }
    }
}

impl<F: TombstoneFile> TombstoneSource for LevelTombstones<F> {
    fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn covering(&mut self, key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) -> Result<()> {
        if self.newest <= span.newest() {
            return Ok(());
        }
        let at = self.files.partition_point(|file| file.largest() <= key);
        let before = at.checked_sub(1).map_or(&[][..], |before| self.files[before].largest());
        match self.files.get(at) {
            Some(file) if file.smallest() <= key => {
                span.add(file.smallest(), Some(file.largest()), None);
                if file.newest() > span.newest() {
                    let set = match &mut self.loaded[at] {
                        Some(set) => set,
                        empty => empty.insert(file.tombstones()?),
                    };
                    set.add_to(key, snapshot, span);
                }
            }
            after => span.add(before, after.map(F::smallest), None),
        }
        Ok(())
    }
}

/// A source with its last answer, for a scan in one direction.
pub(super) struct Covering {
    /// The source; `None` if there are no tombstones, so that every question is free.
    source: Option<Box<dyn TombstoneSource>>,
    span: TombstoneSpan,
    state: SpanState,
    /// Number of deleted records that the scan has met in the span.
    deleted_seen: u32,
}

/// Relation of the span to the next key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpanState {
    /// The span is no answer to any question.
    Empty,
    /// The span is an answer, but the cursor has jumped since.
    Jumped,
    /// The cursor was in the span and has moved in one direction since.
    Following,
}

impl Covering {
    pub(super) fn new(source: Option<Box<dyn TombstoneSource>>) -> Self {
        let source = source.filter(|source| !source.is_empty());
        Self { source, span: TombstoneSpan::default(), state: SpanState::Empty, deleted_seen: 0 }
    }

    /// Notes that the cursor is about to be placed anew or to turn.
    pub(super) fn jump(&mut self) {
        self.deleted_seen = 0;
        if self.state == SpanState::Following {
            self.state = SpanState::Jumped;
        }
    }

    /// The newest visible delete that covers `key`; [`SeqNo::ZERO`] for none. Between two jumps
    /// keys must ascend (with `BACK`: descend).
    #[inline]
    pub(super) fn newest<const BACK: bool>(
        &mut self,
        key: &[u8],
        snapshot: SeqNo,
    ) -> Result<SeqNo> {
        if self.source.is_none() {
            return Ok(SeqNo::ZERO);
        }
        let out_of_start = || key < self.span.start();
        let inside = match self.state {
            SpanState::Empty => false,
            SpanState::Jumped => !out_of_start() && !self.span.ends_before_or_at(key),
            SpanState::Following if BACK => !out_of_start(),
            SpanState::Following => !self.span.ends_before_or_at(key),
        };
        if !inside {
            self.ask(key, snapshot)?;
        }
        self.state = SpanState::Following;
        Ok(self.span.newest())
    }

    fn ask(&mut self, key: &[u8], snapshot: SeqNo) -> Result<()> {
        self.state = SpanState::Empty;
        self.deleted_seen = 0;
        self.span.reset();
        match &mut self.source {
            Some(source) => source.covering(key, snapshot, &mut self.span),
            None => Ok(()),
        }
    }

    /// Counts a deleted record in the span. Returns true once, when the number of deleted records
    /// makes a seek to the span's end worthwhile.
    pub(super) fn worth_a_jump(&mut self) -> bool {
        const DELETED_BEFORE_JUMP: u32 = 8;
        self.deleted_seen = self.deleted_seen.saturating_add(1);
        self.deleted_seen == DELETED_BEFORE_JUMP
    }

    pub(super) fn span(&self) -> &TombstoneSpan {
        &self.span
    }
}
