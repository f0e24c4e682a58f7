//! Point reads: active memtable, immutable ones, the bucket's L0, one file per level.
//!
//! Lock-free: a read loads the family's super version, then the visible sequence number (in this
//! order: what was visible before the load is in what was loaded). A read at a snapshot takes the
//! snapshot's sequence number and, in a family with a compaction filter, the super version that
//! the snapshot holds ([`crate::db::read::snapshot`]). Versions of the key arrive
//! newest first; the first that decides ends the search. Range tombstones are gathered on the way
//! down, whatever a filter says: a record older than a tombstone above it is deleted.
//!
//! Cost: one filter probe per immutable memtable and per table on the way, one block search in
//! the table that has the key; a value in a cached block is pinned, not copied.

use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use archipelago_env::IoPurpose;
use archipelago_env::{FileClass, IoContext};

use crate::db::inner::DbInner;
use crate::db::read::newest::{Since, newest_record};
use crate::db::read::options::ReadOptions;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::write::check_key;
use crate::db::{ColumnFamily, Db};
use crate::key::{Kind, split_expiry};
use crate::live_file::LiveFile;
use crate::lookup::{Found, Lookup, Visit};
use crate::options::LEVELS;
use crate::pinned::PinnedSlice;
use crate::sst::TableReadOptions;
use crate::stats::{Ticker, Timer};

/// A value with what is known about it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The value.
    pub value: PinnedSlice,
    /// When it expires (Unix milliseconds), if it does.
    pub expires_at_ms: Option<u64>,
    /// Sequence number of the newest record that it was made of.
    pub seq: SeqNo,
}

impl Db {
    /// The value of `key` in the default column family; `None` if it has none.
    ///
    /// The value may be pinned in the block cache: copy it ([`PinnedSlice::into_vec`]) to keep it
    /// for long. Errors: `Corrupt` names the damaged file, `Io` the one that cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<PinnedSlice>> {
        self.get_with(self.default_family(), key, &ReadOptions::default())
    }

    /// [`Db::get`] in any column family, with options.
    pub fn get_with(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<PinnedSlice>> {
        Ok(self.get_entry(cf, key, options)?.map(|entry| entry.value))
    }

    /// The value of `key` with its expiry and sequence number.
    pub fn get_entry(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<Entry>> {
        self.check_family(cf)?;
        self.check_snapshot(options)?;
        let read = || self.inner.get(&cf.family, key, options);
        let found = self.inner.read_following(options, read)?;
        found_or_dropped(cf, found)
    }

    /// The values of `keys`, in their order, all as of one moment. File reads of keys in the same
    /// table are batched.
    pub fn multi_get(
        &self,
        cf: &ColumnFamily,
        keys: &[&[u8]],
        options: &ReadOptions,
    ) -> Result<Vec<Option<PinnedSlice>>> {
        self.check_family(cf)?;
        self.check_snapshot(options)?;
        let read = || self.inner.multi_get(&cf.family, keys, options);
        let found = self.inner.read_following(options, read)?;
        cf.family.check_alive()?;
        Ok(found)
    }

    /// The sequence number of the newest record (of whatever kind) of `key`, `None` if the engine
    /// knows none. What a transaction compares to see whether a key changed since a snapshot.
    pub fn latest_seq(&self, cf: &ColumnFamily, key: &[u8]) -> Result<Option<SeqNo>> {
        self.check_family(cf)?;
        let read = || newest_record(&self.inner, &cf.family, key, Since::Ever);
        let found = self.inner.read_following(&ReadOptions::default(), read)?;
        found_or_dropped(cf, found)
    }

    /// Whether the family has a live value for `key`. Does not read a large value.
    pub fn contains(&self, cf: &ColumnFamily, key: &[u8], options: &ReadOptions) -> Result<bool> {
        Ok(self.get_head(cf, key, options)?.is_some())
    }

    /// What is known of the value of `key` besides the value, which is empty in the entry; `None`
    /// if the key has none. Does not read a large value, and calls no merge operator.
    pub fn get_head(
        &self,
        cf: &ColumnFamily,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<Entry>> {
        self.get_entry(cf, key, &options.clone().keys_only())
    }
}

/// What a read found. If that is nothing, the family may have been dropped after the read began:
/// a dropped family is empty.
#[inline]
fn found_or_dropped<T>(cf: &ColumnFamily, found: Option<T>) -> Result<Option<T>> {
    if found.is_none() {
        cf.family.check_alive()?;
    }
    Ok(found)
}

/// What a look-up has seen so far.
pub(crate) struct Gather<'a> {
    family: &'a Family,
    key: &'a [u8],
    now_ms: Option<u64>,
    inner: &'a DbInner,
    /// Values may be cut and are not kept.
    keys_only: bool,
    /// Sequence number of the newest range tombstone over the key met so far.
    covered_by: Option<SeqNo>,
    /// Merge operands, newest first.
    operands: Vec<PinnedSlice>,
    newest: Option<SeqNo>,
    result: Option<Result<Option<Entry>>>,
}

impl<'a> Gather<'a> {
    pub(crate) fn new(inner: &'a DbInner, family: &'a Family, key: &'a [u8]) -> Self {
        Self {
            family,
            key,
            now_ms: None,
            inner,
            keys_only: false,
            covered_by: None,
            operands: Vec::new(),
            newest: None,
            result: None,
        }
    }

    /// The value of a record, unless only keys are wanted.
    #[inline]
    fn pin(&self, found: &Found<'_>) -> PinnedSlice {
        if self.keys_only { PinnedSlice::owned(Vec::new()) } else { found.pin() }
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.result.is_some()
    }

    pub(crate) fn cover(&mut self, tombstone: Option<SeqNo>) {
        self.covered_by = self.covered_by.max(tombstone);
    }

    /// Takes the next older version of the key.
    pub(crate) fn visit(&mut self, found: &Found<'_>) -> Visit {
        if self.covered_by.is_some_and(|tombstone| tombstone > found.seq) {
            return self.finish(None, None);
        }
        self.newest.get_or_insert(found.seq);
        match found.kind {
            Kind::Put if self.operands.is_empty() => self.decide(found, None),
            Kind::Put => self.finish(Some(self.pin(found)), None),
            Kind::PutExpiring => self.visit_expiring(found),
            Kind::Merge => {
                self.operands.push(self.pin(found));
                ControlFlow::Continue(())
            }
            _ => self.finish(None, None),
        }
    }

    fn visit_expiring(&mut self, found: &Found<'_>) -> Visit {
        let Some((expiry, value)) = split_expiry(found.value) else {
            self.result = Some(Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the record of key \"{}\" at sequence number {} is shorter than its expiry",
                    self.key.escape_ascii(),
                    found.seq
                ),
            )));
            return ControlFlow::Break(());
        };
        let now_ms = *self.now_ms.get_or_insert_with(|| self.inner.clock.unix_ms());
        if expiry <= now_ms {
            return self.finish(None, None);
        }
        let value = match found.pinner {
            _ if self.keys_only => PinnedSlice::owned(Vec::new()),
            Some(pinner) => pinner.pin(value),
            None => PinnedSlice::owned(value.to_vec()),
        };
        self.finish(Some(value), Some(expiry))
    }

    fn decide(&mut self, found: &Found<'_>, expires_at_ms: Option<u64>) -> Visit {
        let (value, seq) = (self.pin(found), found.seq);
        self.result = Some(Ok(Some(Entry { value, expires_at_ms, seq })));
        ControlFlow::Break(())
    }

    /// The history ends with `base`: folds the operands over it.
    fn finish(&mut self, base: Option<PinnedSlice>, expires_at_ms: Option<u64>) -> Visit {
        self.result = Some(self.fold(base, expires_at_ms));
        ControlFlow::Break(())
    }

    fn fold(&self, base: Option<PinnedSlice>, expires_at_ms: Option<u64>) -> Result<Option<Entry>> {
        let seq = self.newest.unwrap_or_default();
        if self.operands.is_empty() {
            return Ok(base.map(|value| Entry { value, expires_at_ms, seq }));
        }
        if self.keys_only {
            let value = PinnedSlice::owned(Vec::new());
            return Ok(Some(Entry { value, expires_at_ms, seq }));
        }
        let operator = self.family.merge.as_ref().ok_or_else(|| {
            Error::invalid(format!(
                "key \"{}\" of column family \"{}\" has merge operands, but the family was opened \
                 without its merge operator",
                self.key.escape_ascii(),
                self.family.name
            ))
        })?;
        let operands: Vec<&[u8]> = self.operands.iter().rev().map(AsRef::as_ref).collect();
        let value = operator.full_merge(self.key, base.as_deref(), &operands)??;
        Ok(Some(Entry { value: PinnedSlice::owned(value), expires_at_ms, seq }))
    }

    pub(crate) fn into_result(mut self) -> Result<Option<Entry>> {
        match self.result.take() {
            Some(result) => result,
            None => self.fold(None, None),
        }
    }
}

pub(crate) fn table_options(options: &ReadOptions) -> TableReadOptions {
    TableReadOptions {
        context: IoContext::new(FileClass::Sst, IoPurpose::ForegroundRead),
        fill_cache: options.fill_cache,
        readahead_bytes: options.readahead_bytes,
        cache_only: options.cache_only,
        keys_only: options.keys_only,
        late_values: false,
    }
}

/// The super version that a read searches.
enum Picture<'a> {
    Current(arc_swap::Guard<Arc<SuperVersion>>),
    /// The one that the read's snapshot holds.
    Held(&'a SuperVersion),
}

impl std::ops::Deref for Picture<'_> {
    type Target = SuperVersion;

    #[inline]
    fn deref(&self) -> &SuperVersion {
        match self {
            Self::Current(current) => current,
            Self::Held(held) => held,
        }
    }
}

impl DbInner {
    /// The super version and the sequence number to read as of, in the order that makes every
    /// write that was visible before the call visible to the read.
    #[inline]
    fn picture<'a>(&self, family: &Family, options: &'a ReadOptions) -> (Picture<'a>, SeqNo) {
        let Some(snapshot) = &options.snapshot else {
            let current = Picture::Current(family.current.load());
            return (current, self.visible());
        };
        let picture = match snapshot.held(family.id) {
            Some(held) => Picture::Held(held),
            None => Picture::Current(family.current.load()),
        };
        (picture, snapshot.seq())
    }

    pub(crate) fn get(
        &self,
        family: &Arc<Family>,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<Entry>> {
        self.check_open()?;
        check_key(key)?;
        let started = self.options.latency_histograms.then(|| self.clock.now_ns());
        let (current, seq) = self.picture(family, options);
        let lookup = Lookup::new(key, seq);
        let mut gather = self.gather(family, &lookup, options);
        self.search_memtables(&current, &lookup, &mut gather);
        if gather.is_decided() {
            self.stats.add(Ticker::GetsMemtable, 1);
        } else {
            self.search_tables(&current, &lookup, options, &mut gather)?;
        }
        let result = gather.into_result()?;
        self.stats.add(Ticker::Gets, 1);
        if result.is_some() {
            self.stats.add(Ticker::GetsFound, 1);
        }
        if let Some(started) = started {
            self.stats.record(Timer::Get, self.clock.now_ns() - started);
        }
        Ok(result)
    }

    fn gather<'a>(
        &'a self,
        family: &'a Family,
        lookup: &Lookup<'a>,
        options: &ReadOptions,
    ) -> Gather<'a> {
        let mut gather = Gather::new(self, family, lookup.key);
        gather.keys_only = options.keys_only;
        gather
    }

    fn search_memtables(
        &self,
        current: &SuperVersion,
        lookup: &Lookup<'_>,
        gather: &mut Gather<'_>,
    ) {
        let active = &current.active;
        let shard = &active.shards[active.map.bucket_of(lookup.key)];
        let immutables =
            current.immutables.iter().filter_map(|immutable| immutable.shard_of(lookup.key));
        for shard in std::iter::once(shard).chain(immutables) {
            if shard.has_tombstones() {
                gather.cover(shard.newest_tombstone(lookup.key, lookup.snapshot));
            }
            shard.lookup(lookup, |found| gather.visit(found));
            if gather.is_decided() {
                return;
            }
        }
    }

    fn search_tables(
        &self,
        current: &SuperVersion,
        lookup: &Lookup<'_>,
        options: &ReadOptions,
        gather: &mut Gather<'_>,
    ) -> Result<()> {
        let options = table_options(options);
        let version = &current.version;
        for file in version.l0_of(lookup.key) {
            if !file.contains(lookup.key) {
                continue;
            }
            self.search_table(file, lookup, &options, gather)?;
            if gather.is_decided() {
                return Ok(());
            }
        }
        for level in 1..LEVELS {
            let Some(file) = version.file_for(level, lookup.key) else { continue };
            self.search_table(file, lookup, &options, gather)?;
            if gather.is_decided() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn search_table(
        &self,
        file: &Arc<LiveFile>,
        lookup: &Lookup<'_>,
        options: &TableReadOptions,
        gather: &mut Gather<'_>,
    ) -> Result<()> {
        let table = self.tables.load_for(file, options.cache_only)?;
        if file.range_deletions > 0 {
            gather.cover(table.tombstones().max_covering(lookup.key, lookup.snapshot));
        }
        if !table.may_contain(lookup.hash) {
            self.stats.add(Ticker::FilterUseful, 1);
            return Ok(());
        }
        self.stats.add(Ticker::TablesSearched, 1);
        table.lookup_filtered(lookup, options, &mut |found| gather.visit(found))
    }

    fn multi_get(
        &self,
        family: &Arc<Family>,
        keys: &[&[u8]],
        options: &ReadOptions,
    ) -> Result<Vec<Option<PinnedSlice>>> {
        self.check_open()?;
        for key in keys {
            check_key(key)?;
        }
        let (current, seq) = self.picture(family, options);
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&index| keys[index]);
        let lookups: Vec<Lookup<'_>> =
            order.iter().map(|&index| Lookup::new(keys[index], seq)).collect();
        let mut gathers: Vec<Gather<'_>> =
            lookups.iter().map(|lookup| self.gather(family, lookup, options)).collect();
        for (lookup, gather) in lookups.iter().zip(&mut gathers) {
            self.search_memtables(&current, lookup, gather);
        }
        self.multi_search_tables(&current, &lookups, options, &mut gathers)?;
        self.stats.add(Ticker::Gets, keys.len() as u64);
        let mut values = vec![None; keys.len()];
        for (gather, &index) in gathers.into_iter().zip(&order) {
            values[index] = gather.into_result()?.map(|entry| entry.value);
        }
        Ok(values)
    }

    /// Level by level, file by file: the undecided keys of a file are looked up together.
    fn multi_search_tables(
        &self,
        current: &SuperVersion,
        lookups: &[Lookup<'_>],
        options: &ReadOptions,
        gathers: &mut [Gather<'_>],
    ) -> Result<()> {
        let options = table_options(options);
        let version = &current.version;
        let depth_max =
            lookups.iter().map(|lookup| version.l0_of(lookup.key).len()).max().unwrap_or(0);
        for depth in 0..depth_max {
            self.multi_search(lookups, &options, gathers, |key| {
                version.l0_of(key).get(depth).filter(|file| file.contains(key))
            })?;
        }
        for level in 1..LEVELS {
            self.multi_search(lookups, &options, gathers, |key| version.file_for(level, key))?;
        }
        Ok(())
    }

    fn multi_search<'v>(
        &self,
        lookups: &[Lookup<'_>],
        options: &TableReadOptions,
        gathers: &mut [Gather<'_>],
        file_of: impl Fn(&[u8]) -> Option<&'v Arc<LiveFile>>,
    ) -> Result<()> {
        let mut at = 0;
        while at < lookups.len() {
            let file = if gathers[at].is_decided() { None } else { file_of(lookups[at].key) };
            let Some(file) = file else {
                at += 1;
                continue;
            };
            let mut group = Vec::new();
            while at < lookups.len() {
                let key = lookups[at].key;
                if !gathers[at].is_decided() {
                    match file_of(key) {
                        Some(other) if Arc::ptr_eq(other, file) => group.push(at),
                        _ => break,
                    }
                }
                at += 1;
            }
            self.multi_search_file(file, &group, lookups, options, gathers)?;
        }
        Ok(())
    }

    fn multi_search_file(
        &self,
        file: &Arc<LiveFile>,
        group: &[usize],
        lookups: &[Lookup<'_>],
        options: &TableReadOptions,
        gathers: &mut [Gather<'_>],
    ) -> Result<()> {
        let table = self.tables.get_for(file, options.cache_only)?;
        let mut wanted = Vec::with_capacity(group.len());
        for &index in group {
            let lookup = &lookups[index];
            gathers[index].cover(table.tombstones().max_covering(lookup.key, lookup.snapshot));
            if table.may_contain(lookup.hash) {
                wanted.push(index);
            } else {
                self.stats.add(Ticker::FilterUseful, 1);
            }
        }
        self.stats.add(Ticker::TablesSearched, wanted.len() as u64);
        let batch: Vec<Lookup<'_>> = wanted.iter().map(|&index| lookups[index]).collect();
        table.multi_lookup(&batch, options, &mut |position, found| {
            gathers[wanted[position]].visit(found)
        })
    }
}
