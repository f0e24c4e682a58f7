//! Iterators over a column family, composed of the engine's iterators (`crate::iter`).
//!
//! An iterator holds one super version, so that its memtables and files stay until it is dropped.
//! It reads as of one sequence number: the current one, or that of a snapshot. Its children, newest
//! first, are the active memtable, the sealed memtables, L0, and one child for each level with
//! files in bounds. Memtables and L0 are opened bucket by bucket, levels file by file, when the
//! iterator reaches them. Shards at memory nodes are scanned page by page. One child has the shards
//! of all memtables at one node ([`away_cursor`](crate::db::read::away_cursor)). Parts outside the
//! bounds are never opened. The iterator looks up range tombstones by key, and only in shards and
//! files that have any. Separated values are read from the value files of the same super version
//! ([`values`](crate::db::read::values)).
//!
//! An iterator of a transaction has the transaction's own writes as its newest child. Their
//! sequence numbers are above all others. Therefore the view shows every number, and the other
//! children and range tombstones are cut at the snapshot instead.
//!
//! Invariants: rows come in key order, each key once, as of one moment.
//!
//! Thread-safety: an iterator belongs to one thread at a time.
//! Failure: an error makes the iterator invalid and stays in its status.
//! Cost: one allocation for each child, and one reader for each file that is reached. A version
//! with value files costs two more allocations. With memory nodes, a seek over sealed
//! memtables pays one relaxed addition.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::{Error, Result, SeqNo};
use archipelago_env::ReadLease;

use crate::bucket::BucketMap;
use crate::db::read::Reader;
use crate::db::read::away_cursor::{AwayCursor, AwayPart, AwayScan};
use crate::db::read::get::table_options;
use crate::db::read::options::ReadOptions;
use crate::db::read::snapshot::Snapshot;
use crate::db::read::values::ScanValues;
use crate::db::state::away::{AGES, ReadDeadline, StoreLink};
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::memtable::{Immutable, ShardHome};
use crate::indexed_batch::OwnRecords;
use crate::iter::{
    AsOfIterator, BucketTombstones, Child, FileOpener, InternalIterator, LevelIterator,
    LevelTombstones, MergingIterator, Prefetch, TombstoneFile, TombstoneSource, UserIterator, View,
};
use crate::key::KeyRange;
use crate::live_file::LiveFile;
use crate::options::LEVELS;
use crate::remote::StoreNode;
use crate::sst::{TableReadOptions, TableReader};
use crate::stats::{Statistics, Ticker};
use crate::table_cache::TableCache;
use crate::tombstone::{TombstoneSet, TombstoneSpan};
use crate::version::{Version, rows};

/// A cursor over the live keys of a column family, in key order, as of one moment.
///
/// The cursor is not valid until the first seek. Returned keys and values hold until the cursor
/// moves. An error makes the cursor invalid: check [`Iter::status`] when a loop ends. The files and
/// memtables of its moment stay until the cursor is dropped.
///
/// ```
/// # use archipelago_engine::{db::{Db, ReadOptions}, options::DbOptions};
/// # let dir = tempfile::tempdir()?;
/// # let db = Db::open(dir.path(), DbOptions::default())?;
/// db.put(b"user:1", b"ann")?;
/// db.put(b"user:2", b"bob")?;
/// let mut iter = db.iter(db.default_family(), &ReadOptions::new().prefix(b"user:"))?;
/// iter.seek_to_first();
/// while iter.valid() {
///     println!("{:?} = {:?}", iter.key(), iter.value());
///     iter.next();
/// }
/// iter.status()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Iter {
    cursor: UserIterator,
    stats: Arc<Statistics>,
    /// The lease under which rows are shown; `None` if no other process can take the files over.
    lease: Option<Arc<dyn ReadLease>>,
    /// The deadline that the cursors over shards at memory nodes share in one move; `None` if no
    /// shard can be there.
    deadline: Option<Arc<ReadDeadline>>,
    /// Counts the seeks. `None` without memory nodes, if the seeks need no sealed memtable, or if
    /// they need one that is too old to be counted.
    sealed: Option<SealedSeeks>,
    _picture: Arc<SuperVersion>,
    _snapshot: Option<Snapshot>,
}

impl std::fmt::Debug for Iter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter").field("valid", &self.cursor.valid()).finish_non_exhaustive()
    }
}

impl Iter {
    /// Begins a move, whose parts that need memory nodes have one deadline.
    #[inline]
    fn begin_move(&self) {
        if let Some(deadline) = &self.deadline {
            deadline.begin();
        }
    }

    /// Begins a seek, and counts it.
    fn begin_seek(&self) {
        self.stats.add(Ticker::Seeks, 1);
        if let Some(sealed) = &self.sealed {
            sealed.note();
        }
        self.begin_move();
    }

    /// Makes the cursor invalid if the lease has ended since the move began.
    #[inline]
    fn check_lease(&mut self) {
        if let Some(lease) = &self.lease
            && let Err(error) = lease.check()
        {
            self.cursor.fail(error);
        }
    }

    /// Moves the cursor to the first key in bounds.
    pub fn seek_to_first(&mut self) {
        self.begin_seek();
        self.cursor.seek_to_first();
        self.check_lease();
    }

    /// Moves the cursor to the last key in bounds.
    pub fn seek_to_last(&mut self) {
        self.begin_seek();
        self.cursor.seek_to_last();
        self.check_lease();
    }

    /// Moves the cursor to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.begin_seek();
        self.cursor.seek(key);
        self.check_lease();
    }

    /// Moves the cursor to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) {
        self.begin_seek();
        self.cursor.seek_for_prev(key);
        self.check_lease();
    }

    /// Moves the cursor to the next key. Panics if the cursor is not valid.
    #[inline]
    pub fn next(&mut self) {
        assert!(self.cursor.valid(), "next() on a cursor that stands on no key");
        self.begin_move();
        self.cursor.next();
        self.check_lease();
    }

    /// Moves the cursor to the previous key. Panics if the cursor is not valid.
    #[inline]
    pub fn prev(&mut self) {
        assert!(self.cursor.valid(), "prev() on a cursor that stands on no key");
        self.begin_move();
        self.cursor.prev();
        self.check_lease();
    }

    /// Whether the cursor stands on a key.
    #[inline]
    #[must_use]
    pub fn valid(&self) -> bool {
        self.cursor.valid()
    }

    /// The key on which the cursor stands. Panics if the cursor is not valid.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &[u8] {
        assert!(self.cursor.valid(), "key() of a cursor that stands on no key");
        self.cursor.key()
    }

    /// The value of the key. It may be cut or empty if the options had `keys_only`. Panics if the
    /// cursor is not valid.
    #[inline]
    #[must_use]
    pub fn value(&self) -> &[u8] {
        assert!(self.cursor.valid(), "value() of a cursor that stands on no key");
        self.cursor.value()
    }

    /// Time at which the value expires (Unix milliseconds); `None` if it does not.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.cursor.expires_at_ms()
    }

    /// Sequence number of the newest record that the value was made of.
    #[must_use]
    pub fn seq(&self) -> SeqNo {
        self.cursor.seq()
    }

    /// Fails with the error that made the cursor invalid. `Ok` if no error did.
    pub fn status(&self) -> Result<()> {
        self.cursor.status()
    }
}

/// `InvalidArgument` if the lower bound lies after the upper one.
pub(crate) fn check_bounds(options: &ReadOptions) -> Result<()> {
    if let (Some(lower), Some(upper)) = (&options.lower_bound, &options.upper_bound)
        && lower > upper
    {
        return Err(Error::invalid(format!(
            "the lower bound \"{}\" is after the upper bound \"{}\"",
            lower.escape_ascii(),
            upper.escape_ascii()
        )));
    }
    Ok(())
}

/// The keys that an iterator with these options may show.
pub(crate) fn bounds_of(options: &ReadOptions) -> KeyRange {
    let view = bounded(View::new(SeqNo::ZERO, 0), options);
    KeyRange { start: view.lower, end: view.upper }
}

/// `view` within the bounds of `options`.
fn bounded(mut view: View, options: &ReadOptions) -> View {
    view.lower = options.lower_bound.clone().unwrap_or_default();
    view.upper.clone_from(&options.upper_bound);
    match &options.prefix {
        Some(prefix) => view.with_prefix(prefix),
        None => view,
    }
}

/// Data with which the parts of a scan are opened.
#[derive(Clone)]
struct Opening {
    picture: Arc<SuperVersion>,
    tables: Arc<TableCache>,
    options: TableReadOptions,
    bounds: KeyRange,
    away: AwayScan,
}

impl Opening {
    fn table(&self, file: &Arc<LiveFile>) -> Result<Arc<TableReader>> {
        self.tables.get_for(file, self.options.cache_only)
    }
}

/// The oldest sealed memtable that the seeks of an iterator need.
struct SealedSeeks {
    link: Arc<StoreLink>,
    age: usize,
}

impl SealedSeeks {
    fn of(link: Option<&Arc<StoreLink>>, opening: &Opening) -> Option<Self> {
        let link = link?;
        let has_shard = |memtable: &Arc<Immutable>| {
            let mut buckets = memtable.map.buckets_of(&opening.bounds);
            buckets.any(|bucket| memtable.homes[bucket].is_some())
        };
        let age = opening.picture.immutables.iter().rposition(has_shard)?;
        (age < AGES).then(|| Self { link: Arc::clone(link), age })
    }

    /// Counts a seek for the decision how many sealed memtables stay in memory.
    fn note(&self) {
        self.link.stay_figures().note_answer(self.age);
    }
}

/// An iterator over the family, with the `own` writes of a transaction above it.
pub(crate) fn scan(
    reader: Reader<'_>,
    family: &Arc<Family>,
    options: &ReadOptions,
    own: Option<OwnRecords>,
) -> Iter {
    reader.observers.stats().add(Ticker::Iterators, 1);
    let held = options.snapshot.as_ref().and_then(|snapshot| snapshot.held(family.id));
    let picture = held.cloned().unwrap_or_else(|| family.current.load_full());
    let snapshot = options.snapshot.as_ref().map_or_else(|| reader.view.visible(), Snapshot::seq);
    let mut view = bounded(View::new(snapshot, reader.context.clock().unix_ms()), options);
    view.operator.clone_from(&family.merge);
    view.keys_only = options.keys_only;
    let deadline = reader.context.away().map(|_| Arc::new(ReadDeadline::default()));
    let opening = Opening {
        picture: Arc::clone(&picture),
        tables: Arc::clone(reader.view.tables()),
        options: table_options(options),
        bounds: KeyRange { start: view.lower.clone(), end: view.upper.clone() },
        away: AwayScan {
            snapshot,
            keys_only: options.keys_only,
            cache_only: options.cache_only,
            deadline: deadline.clone(),
        },
    };
    let (mut children, mut tombstones) = (children(&opening), tombstones(&opening));
    if let Some(own) = own {
        (children, tombstones) = with_own(children, tombstones, snapshot, own);
        view.snapshot = SeqNo::MAX;
    }
    let merge = MergingIterator::new(children);
    let tombstones = (!tombstones.is_empty()).then(|| Box::new(tombstones) as _);
    let mut cursor = UserIterator::new(merge, tombstones, view);
    if !picture.readable.values().is_empty() {
        cursor = with_values(cursor, &opening, reader, options);
    }
    Iter {
        cursor,
        stats: Arc::clone(reader.observers.stats()),
        lease: reader.context.lease().cloned(),
        deadline,
        sealed: SealedSeeks::of(reader.context.away(), &opening),
        _picture: picture,
        _snapshot: options.snapshot.clone(),
    }
}

/// `cursor` with the separated values of its version.
fn with_values(
    cursor: UserIterator,
    opening: &Opening,
    reader: Reader<'_>,
    options: &ReadOptions,
) -> UserIterator {
    let source = ScanValues {
        picture: Arc::clone(&opening.picture),
        tables: Arc::clone(&opening.tables),
        readers: Arc::clone(reader.view.value_readers()),
        stats: Arc::clone(reader.observers.stats()),
        options: opening.options,
    };
    // With `cache_only`, a batch would fail at its first value that is not cached, even if the user
    // never reaches that value.
    let prefetch = match options.value_prefetch && !options.cache_only {
        true => Prefetch::On,
        false => Prefetch::Off,
    };
    cursor.with_values(Box::new(source), prefetch, Arc::clone(reader.context.budget()))
}

/// Puts a transaction's own writes above the records and range tombstones that the database has as
/// of `through`.
fn with_own(
    committed: Vec<Child>,
    deletes: Vec<Box<dyn TombstoneSource>>,
    through: SeqNo,
    own: OwnRecords,
) -> (Vec<Child>, Vec<Box<dyn TombstoneSource>>) {
    let cut = |child: Child| {
        let max_seq = child.max_seq.min(through);
        Child::new(Box::new(AsOfIterator::new(child.iter, through)), max_seq)
    };
    let newest = Child::new(Box::new(own.records), SeqNo::MAX);
    let children = std::iter::once(newest).chain(committed.into_iter().map(cut)).collect();
    let mut sources: Vec<Box<dyn TombstoneSource>> = Vec::with_capacity(deletes.len() + 1);
    if !own.tombstones.is_empty() {
        sources.push(Box::new(own.tombstones));
    }
    let cut = |source| Box::new(AsOfTombstones { source, through }) as Box<dyn TombstoneSource>;
    sources.extend(deletes.into_iter().map(cut));
    (children, sources)
}

/// The range tombstones of a source up to a sequence number.
struct AsOfTombstones {
    source: Box<dyn TombstoneSource>,
    through: SeqNo,
}

impl TombstoneSource for AsOfTombstones {
    fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    fn covering(&mut self, key: &[u8], snapshot: SeqNo, span: &mut TombstoneSpan) -> Result<()> {
        self.source.covering(key, snapshot.min(self.through), span)
    }
}

fn children(opening: &Opening) -> Vec<Child> {
    let picture = &opening.picture;
    let mut children = Vec::new();
    let active = &picture.active;
    let active = Immutable::of(active);
    let mut apart = BTreeMap::new();
    children.extend(memtable_child(opening, &active, &mut apart));
    for immutable in &picture.immutables {
        children.extend(memtable_child(opening, immutable, &mut apart));
    }
    for (node, parts) in apart {
        let cursor = AwayCursor::new(node, parts, opening.bounds.clone(), opening.away.clone());
        children.push(Child::new(Box::new(cursor), SeqNo::MAX));
    }
    let version = &picture.readable;
    if version.l0_layers_max() > 0 {
        if version.map().len() == 1 {
            let rows = rows(version.l0(0).to_vec(), |file: &Arc<LiveFile>| file.meta());
            children.extend(rows.into_iter().map(|row| l0_child(opening, row)));
        } else {
            let buckets: Vec<usize> = version
                .map()
                .buckets_of(&opening.bounds)
                .filter(|&bucket| !version.l0(bucket).is_empty())
                .collect();
            let max_seq = buckets
                .iter()
                .flat_map(|&bucket| version.l0(bucket))
                .map(|file| SeqNo(file.largest_seq))
                .max();
            if let Some(max_seq) = max_seq {
                let parts = BucketParts { opening: opening.clone(), buckets };
                children.push(Child::new(Box::new(LevelIterator::new(parts)), max_seq));
            }
        }
    }
    for level in 1..LEVELS {
        let files = version.overlapping(level, &opening.bounds);
        let Some(max_seq) = files.iter().map(|file| SeqNo(file.largest_seq)).max() else {
            continue;
        };
        let parts = FileParts { opening: opening.clone(), files: files.to_vec() };
        children.push(Child::new(Box::new(LevelIterator::new(parts)), max_seq));
    }
    children
}

/// The child for the shards of a memtable that are in memory. The other shards are added to
/// `apart`, by their nodes.
fn memtable_child(
    opening: &Opening,
    memtable: &Immutable,
    apart: &mut BTreeMap<StoreNode, Vec<AwayPart>>,
) -> Option<Child> {
    let map = &memtable.map;
    let mut parts: Vec<(usize, ShardHome)> = Vec::new();
    for bucket in map.buckets_of(&opening.bounds) {
        match &memtable.homes[bucket] {
            None => {}
            Some(ShardHome::Away(shard)) if !shard.has_copy() => {
                let part = AwayPart { keys: map.range(bucket), shard: Arc::clone(shard) };
                apart.entry(shard.node()).or_default().push(part);
            }
            Some(home) => parts.push((bucket, home.clone())),
        }
    }
    match parts.as_slice() {
        [] => None,
        [(_, ShardHome::Here(only))] => Some(Child::new(Box::new(only.iter()), SeqNo::MAX)),
        _ => {
            let parts = ShardParts { map: Arc::clone(map), parts };
            Some(Child::new(Box::new(LevelIterator::new(parts)), SeqNo::MAX))
        }
    }
}

fn l0_child(opening: &Opening, row: Vec<Arc<LiveFile>>) -> Child {
    let newest = row.iter().map(|file| SeqNo(file.largest_seq)).max().unwrap_or_default();
    let parts = FileParts { opening: opening.clone(), files: row };
    Child::new(Box::new(LevelIterator::new(parts)), newest)
}

/// The shards of one memtable that are in memory.
struct ShardParts {
    map: Arc<BucketMap>,
    parts: Vec<(usize, ShardHome)>,
}

impl FileOpener for ShardParts {
    fn count(&self) -> usize {
        self.parts.len()
    }

    fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        self.map.end(self.parts[index].0).is_some_and(|end| end <= key)
    }

    fn smallest(&self, index: usize) -> &[u8] {
        self.map.start(self.parts[index].0)
    }

    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>> {
        match &self.parts[index].1 {
            ShardHome::Here(shard) => Ok(Box::new(shard.iter())),
            ShardHome::Away(away) => match away.copy()? {
                Some(copy) => Ok(copy.iter()),
                None => Err(Error::internal("a memtable shard in memory has no records there")),
            },
        }
    }
}

/// The parts of L0. Each part is the merge of one bucket's files.
struct BucketParts {
    opening: Opening,
    buckets: Vec<usize>,
}

impl BucketParts {
    fn readable(&self) -> &Arc<Version> {
        &self.opening.picture.readable
    }
}

impl FileOpener for BucketParts {
    fn count(&self) -> usize {
        self.buckets.len()
    }

    fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        self.readable().map().end(self.buckets[index]).is_some_and(|end| end <= key)
    }

    fn smallest(&self, index: usize) -> &[u8] {
        self.readable().map().start(self.buckets[index])
    }

    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>> {
        let files = self.readable().l0(self.buckets[index]);
        let inside = files.iter().filter(|file| file.overlaps(&self.opening.bounds));
        let mut children = Vec::with_capacity(files.len());
        for row in rows(inside.cloned().collect(), |file: &Arc<LiveFile>| file.meta()) {
            let newest = row.iter().map(|file| SeqNo(file.largest_seq)).max().unwrap_or_default();
            let iter: Box<dyn InternalIterator> = match row.as_slice() {
                [only] => Box::new(self.opening.table(only)?.iter(self.opening.options)),
                _ => {
                    let parts = FileParts { opening: self.opening.clone(), files: row };
                    Box::new(LevelIterator::new(parts))
                }
            };
            children.push(Child::new(iter, newest));
        }
        Ok(Box::new(MergingIterator::new(children)))
    }
}

/// The files of a level.
struct FileParts {
    opening: Opening,
    files: Vec<Arc<LiveFile>>,
}

impl FileOpener for FileParts {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        self.files[index].ends_before(key)
    }

    fn smallest(&self, index: usize) -> &[u8] {
        &self.files[index].smallest
    }

    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>> {
        let table = self.opening.table(&self.files[index])?;
        Ok(Box::new(table.iter(self.opening.options)))
    }
}

/// The sources of range tombstones in a scan's bounds, newest first: memtables, L0 and levels.
fn tombstones(opening: &Opening) -> Vec<Box<dyn TombstoneSource>> {
    let picture = &opening.picture;
    let mut sources: Vec<Box<dyn TombstoneSource>> = Vec::new();
    let active = &picture.active;
    sources.extend(bucket_tombstones(&active.map, &opening.bounds, |bucket| {
        shard_tombstones(&ShardHome::Here(Arc::clone(&active.shards[bucket])))
    }));
    for immutable in &picture.immutables {
        sources.extend(bucket_tombstones(&immutable.map, &opening.bounds, |bucket| {
            immutable.homes[bucket].as_ref().and_then(shard_tombstones)
        }));
    }
    let version = &picture.readable;
    if version.l0_layers_max() > 0 {
        sources.extend(bucket_tombstones(version.map(), &opening.bounds, |bucket| {
            let files = version.l0(bucket).iter();
            let files: Vec<Box<dyn TombstoneSource>> = files
                .filter_map(|file| file_tombstones(opening, std::slice::from_ref(file)))
                .collect();
            (!files.is_empty()).then(|| Box::new(files) as _)
        }));
    }
    for level in 1..LEVELS {
        sources.extend(file_tombstones(opening, version.overlapping(level, &opening.bounds)));
    }
    sources
}

/// The range tombstones of those buckets of `map` that have keys in `bounds`.
fn bucket_tombstones(
    map: &Arc<BucketMap>,
    bounds: &KeyRange,
    of_bucket: impl FnMut(usize) -> Option<Box<dyn TombstoneSource>>,
) -> Option<Box<dyn TombstoneSource>> {
    let buckets = map.buckets_of(bounds);
    let mut parts: Vec<_> = buckets.clone().map(of_bucket).collect();
    if parts.iter().all(Option::is_none) {
        return None;
    }
    match parts.as_mut_slice() {
        [only] if map.len() == 1 => only.take(),
        _ => Some(Box::new(BucketTombstones::new(Arc::clone(map), buckets.start, parts))),
    }
}

fn shard_tombstones(home: &ShardHome) -> Option<Box<dyn TombstoneSource>> {
    home.has_tombstones().then(|| Box::new(home.tombstones()) as _)
}

fn file_tombstones(opening: &Opening, files: &[Arc<LiveFile>]) -> Option<Box<dyn TombstoneSource>> {
    let with: Vec<WithTombstones> = files
        .iter()
        .filter(|file| file.range_deletions > 0)
        .map(|file| WithTombstones {
            file: Arc::clone(file),
            tables: Arc::clone(&opening.tables),
            cache_only: opening.options.cache_only,
        })
        .collect();
    (!with.is_empty()).then(|| Box::new(LevelTombstones::new(with)) as _)
}

struct WithTombstones {
    file: Arc<LiveFile>,
    tables: Arc<TableCache>,
    cache_only: bool,
}

impl TombstoneFile for WithTombstones {
    fn smallest(&self) -> &[u8] {
        &self.file.smallest
    }

    fn largest(&self) -> &[u8] {
        &self.file.largest
    }

    fn newest(&self) -> SeqNo {
        self.file.largest_seq()
    }

    fn tombstones(&self) -> Result<Arc<TombstoneSet>> {
        Ok(Arc::clone(self.tables.get_for(&self.file, self.cache_only)?.tombstones()))
    }
}
