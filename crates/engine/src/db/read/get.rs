//! Point reads: active memtable, sealed memtables, the bucket's L0, one table per level.
//!
//! The functions work on a [`Reader`]. A read loads the family's super version, then the visible
//! sequence number. In this order, everything that was visible before the load is in the super
//! version. A read at a snapshot takes the snapshot's sequence number and, in a family with a
//! compaction filter, the super version that the snapshot holds ([`crate::db::read::snapshot`]).
//!
//! Invariants:
//! 1. Versions of the key arrive newest first, and the first version that decides ends the search.
//! 2. The search gathers range tombstones of every part that it visits, even if a filter excludes
//!    the key. A record that is older than a gathered tombstone is deleted.
//! 3. A search keeps the reference of a separated value. The value is fetched after the search,
//!    from the version that was searched, and only if the caller wants it
//!    ([`values`](crate::db::read::values)). An expired reference is a delete.
//!
//! Thread-safety: any thread may read. No locks are taken. Failure: errors of the tables that are
//! read, and of memtable shards at memory nodes ([`away`]).
//!
//! A database that measures look-ups ([`crate::db::state::read_watch`]) runs another instance of
//! the same code, with a [`GetObserver`]. The usual instance measures nothing.
//!
//! Cost: one filter probe for each sealed memtable and for each table on the way, and one block
//! search in the table that has the key. A read that meets no away shard pays one match for each
//! sealed memtable. A value in a cached block is pinned, not copied. A separated value that is not
//! cached costs one more device read.

use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_base::clock::Clock;
use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use archipelago_env::{FileClass, IoContext, IoPurpose};

use crate::db::ColumnFamily;
use crate::db::read::Reader;
use crate::db::read::away::{self, RunAsk};
use crate::db::read::options::ReadOptions;
use crate::db::read::values::ValueReads;
use crate::db::state::away::{AwayShard, ReadDeadline};
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::memtable::ShardHome;
use crate::db::state::read_watch::{DecidedSearch, ReadWatch};
use crate::iter::WantedValue;
use crate::key::{Kind, check_key, split_expiry};
use crate::live_file::LiveFile;
use crate::lookup::{Found, Lookup, Visit};
use crate::memtable::Shard;
use crate::pinned::PinnedSlice;
use crate::sst::TableReadOptions;
use crate::stats::{Ticker, Timer};
use crate::value_ref::Reference;

/// A value with its expiry and its sequence number.
#[derive(Clone, Debug)]
pub struct ValueEntry {
    /// Value of the key.
    pub value: PinnedSlice,
    /// Time at which the value expires (Unix milliseconds); `None` if it does not.
    pub expires_at_ms: Option<u64>,
    /// Sequence number of the newest record that the value was made of.
    pub seq: SeqNo,
}

/// Returns `found`, the result of a read. Fails with `Closed` if the read found nothing and the
/// family was dropped meanwhile: a dropped family is empty.
#[inline]
pub(crate) fn found_or_dropped<T>(cf: &ColumnFamily, found: Option<T>) -> Result<Option<T>> {
    if found.is_none() {
        cf.family.check_alive()?;
    }
    Ok(found)
}

/// State of a look-up.
pub(crate) struct Gather<'a> {
    family: &'a Family,
    key: &'a [u8],
    now_ms: Option<u64>,
    clock: &'a Arc<dyn Clock>,
    /// Values may be cut and are not kept.
    keys_only: bool,
    /// Sequence number of the newest range tombstone over the key met so far.
    covered_by: Option<SeqNo>,
    /// Merge operands, newest first.
    operands: Vec<PinnedSlice>,
    newest: Option<SeqNo>,
    decision: Decision,
}

/// Result of the search for a key so far.
enum Decision {
    /// No record has decided.
    Open,
    Result(Result<Option<ValueEntry>>),
    /// The record `seq` decides, and its value has yet to be fetched.
    Separated {
        seq: SeqNo,
        reference: Reference,
    },
}

impl<'a> Gather<'a> {
    fn new(clock: &'a Arc<dyn Clock>, family: &'a Family, key: &'a [u8]) -> Self {
        Self {
            family,
            key,
            now_ms: None,
            clock,
            keys_only: false,
            covered_by: None,
            operands: Vec::new(),
            newest: None,
            decision: Decision::Open,
        }
    }

    /// The value of a record, unless only keys are wanted.
    #[inline]
    fn pin(&self, found: &Found<'_>) -> PinnedSlice {
        if self.keys_only { PinnedSlice::owned(Vec::new()) } else { found.pin() }
    }

    pub(crate) fn is_decided(&self) -> bool {
        !matches!(self.decision, Decision::Open)
    }

    pub(crate) fn cover(&mut self, tombstone: Option<SeqNo>) {
        self.covered_by = self.covered_by.max(tombstone);
    }

    /// Sequence number below which a range tombstone hides every record of the key.
    fn floor(&self) -> SeqNo {
        self.covered_by.unwrap_or_default()
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
            Kind::Indirect => self.visit_reference(found),
            _ => self.finish(None, None),
        }
    }

    /// Keeps the reference of a separated value, unless it has expired or only keys are wanted.
    #[cold]
    fn visit_reference(&mut self, found: &Found<'_>) -> Visit {
        let reference = match Reference::decode(found.value) {
            Ok(reference) => reference,
            Err(why) => {
                self.decision = Decision::Result(Err(self.damaged(found, why)));
                return ControlFlow::Break(());
            }
        };
        if let Some(expiry) = reference.expiry_unix_ms
            && expiry <= self.now_ms()
        {
            return self.finish(None, None);
        }
        if self.keys_only {
            return self.finish(Some(PinnedSlice::owned(Vec::new())), reference.expiry_unix_ms);
        }
        self.decision = Decision::Separated { seq: found.seq, reference };
        ControlFlow::Break(())
    }

    /// Time of the read, in Unix milliseconds. All records of the key are compared with it.
    fn now_ms(&mut self) -> u64 {
        *self.now_ms.get_or_insert_with(|| self.clock.unix_ms())
    }

    #[cold]
    fn damaged(&self, found: &Found<'_>, what: impl std::fmt::Display) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "the record of key \"{}\" at sequence number {} is damaged: {what}",
                self.key.escape_ascii(),
                found.seq
            ),
        )
    }

    fn visit_expiring(&mut self, found: &Found<'_>) -> Visit {
        let Some((expiry, value)) = split_expiry(found.value) else {
            self.decision = Decision::Result(Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the record of key \"{}\" at sequence number {} is shorter than its expiry",
                    self.key.escape_ascii(),
                    found.seq
                ),
            )));
            return ControlFlow::Break(());
        };
        if expiry <= self.now_ms() {
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
        self.decision = Decision::Result(Ok(Some(ValueEntry { value, expires_at_ms, seq })));
        ControlFlow::Break(())
    }

    /// The history ends with `base`: folds the operands over it.
    fn finish(&mut self, base: Option<PinnedSlice>, expires_at_ms: Option<u64>) -> Visit {
        self.decision = Decision::Result(self.fold(base, expires_at_ms));
        ControlFlow::Break(())
    }

    fn fold(
        &self,
        base: Option<PinnedSlice>,
        expires_at_ms: Option<u64>,
    ) -> Result<Option<ValueEntry>> {
        let seq = self.newest.unwrap_or_default();
        if self.operands.is_empty() {
            return Ok(base.map(|value| ValueEntry { value, expires_at_ms, seq }));
        }
        if self.keys_only {
            let value = PinnedSlice::owned(Vec::new());
            return Ok(Some(ValueEntry { value, expires_at_ms, seq }));
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
        Ok(Some(ValueEntry { value: PinnedSlice::owned(value), expires_at_ms, seq }))
    }

    /// The record that decides, if its value has yet to be fetched.
    fn separated(&self) -> Option<WantedValue<'a>> {
        match self.decision {
            Decision::Separated { seq, reference } => {
                Some(WantedValue { key: self.key, seq, reference })
            }
            Decision::Open | Decision::Result(_) => None,
        }
    }

    /// The result of the search. `fetch` reads the separated value that decides, if one does.
    #[inline]
    fn into_result(
        self,
        fetch: impl FnOnce(WantedValue<'_>) -> Result<PinnedSlice>,
    ) -> Result<Option<ValueEntry>> {
        match self.decision {
            Decision::Result(result) => result,
            Decision::Open => self.fold(None, None),
            Decision::Separated { seq, reference } => {
                let value = fetch(WantedValue { key: self.key, seq, reference })?;
                self.fold(Some(value), reference.expiry_unix_ms)
            }
        }
    }
}

impl<'a> Reader<'a> {
    /// Reads separated values of the version that `current` holds.
    fn values(&self, current: &'a SuperVersion, options: &ReadOptions) -> ValueReads<'a> {
        ValueReads {
            version: &current.readable,
            tables: self.view.tables(),
            readers: self.view.value_readers(),
            stats: self.observers.stats(),
            options: table_options(options),
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
        flat_index: true,
    }
}

/// The super version that a read searches.
enum Picture<'a> {
    Current(arc_swap::Guard<Arc<SuperVersion>>),
    /// The super version that the read's snapshot holds.
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

/// The super version and the sequence number to read as of. They are loaded in this order, so that
/// the read sees every write that was visible before the call.
#[inline]
fn picture<'a>(
    reader: Reader<'_>,
    family: &Family,
    options: &'a ReadOptions,
) -> (Picture<'a>, SeqNo) {
    let Some(snapshot) = &options.snapshot else {
        let current = Picture::Current(family.current.load());
        return (current, reader.view.visible());
    };
    let picture = match snapshot.held(family.id) {
        Some(held) => Picture::Held(held),
        None => Picture::Current(family.current.load()),
    };
    (picture, snapshot.seq())
}

pub(crate) fn get(
    reader: Reader<'_>,
    family: &Arc<Family>,
    key: &[u8],
    options: &ReadOptions,
) -> Result<Option<ValueEntry>> {
    reader.context.check_open()?;
    check_key(key)?;
    match reader.context.read_watch() {
        None => observed_get(reader, family, key, options, Unobserved),
        Some(watch) => watched_get(reader, family, key, options, watch),
    }
}

/// Measures one look-up.
trait GetObserver {
    /// Called before the search.
    fn begin(&mut self, lookup: &Lookup<'_>);
    /// Called when the memtables have decided the result.
    fn note_decided(&self, search: &DecidedSearch<'_>);
    /// Called when the look-up has its result.
    fn end(&self);
}

/// An observer that measures nothing.
struct Unobserved;

impl GetObserver for Unobserved {
    #[inline]
    fn begin(&mut self, _lookup: &Lookup<'_>) {}

    #[inline]
    fn note_decided(&self, _search: &DecidedSearch<'_>) {}

    #[inline]
    fn end(&self) {}
}

/// Measures what the watch of the database wants.
struct WatchedGet<'a> {
    reader: Reader<'a>,
    watch: &'a ReadWatch,
    /// Time of the call, if there is a histogram.
    started_ns: Option<u64>,
    /// Time of the search, if its answer is timed.
    sampled_ns: Option<u64>,
}

impl GetObserver for WatchedGet<'_> {
    fn begin(&mut self, lookup: &Lookup<'_>) {
        self.sampled_ns = self.watch.sample(self.reader.context.clock(), lookup);
    }

    fn note_decided(&self, search: &DecidedSearch<'_>) {
        self.watch.note_answer(search, self.reader.context.clock(), self.sampled_ns);
    }

    fn end(&self) {
        let Some(started_ns) = self.started_ns else { return };
        let taken_ns = self.reader.context.clock().now_ns() - started_ns;
        self.reader.observers.stats().record(Timer::Get, taken_ns);
    }
}

#[inline(never)]
fn watched_get(
    reader: Reader<'_>,
    family: &Arc<Family>,
    key: &[u8],
    options: &ReadOptions,
    watch: &ReadWatch,
) -> Result<Option<ValueEntry>> {
    let started_ns = watch.has_histogram().then(|| reader.context.clock().now_ns());
    let observer = WatchedGet { reader, watch, started_ns, sampled_ns: None };
    observed_get(reader, family, key, options, observer)
}

#[inline]
fn observed_get(
    reader: Reader<'_>,
    family: &Arc<Family>,
    key: &[u8],
    options: &ReadOptions,
    mut observer: impl GetObserver,
) -> Result<Option<ValueEntry>> {
    let (current, seq) = picture(reader, family, options);
    let lookup = Lookup::new(key, seq);
    observer.begin(&lookup);
    let mut gather = gather(reader, family, &lookup, options);
    let end = search_memtables(&current, &lookup, options, &mut gather)?;
    if gather.is_decided() {
        reader.observers.stats().add(Ticker::GetsMemtable, 1);
        let newest = gather.newest;
        observer.note_decided(&DecidedSearch { current: &current, key, end, newest });
    } else {
        search_tables(&reader, &current, &lookup, options, &mut gather)?;
    }
    let result = gather.into_result(|wanted| reader.values(&current, options).fetch(wanted))?;
    reader.context.check_answer()?;
    reader.observers.stats().add(Ticker::Gets, 1);
    if result.is_some() {
        reader.observers.stats().add(Ticker::GetsFound, 1);
    }
    observer.end();
    Ok(result)
}

fn gather<'a>(
    reader: Reader<'a>,
    family: &'a Family,
    lookup: &Lookup<'a>,
    options: &ReadOptions,
) -> Gather<'a> {
    let mut gather = Gather::new(reader.context.clock(), family, lookup.key);
    gather.keys_only = options.keys_only;
    gather
}

/// Searches the memtables. Returns the position after the last sealed one that was searched.
#[inline]
fn search_memtables(
    current: &SuperVersion,
    lookup: &Lookup<'_>,
    options: &ReadOptions,
    gather: &mut Gather<'_>,
) -> Result<usize> {
    search_shard(current.active_shard(lookup.key), lookup, gather);
    let mut at = 0;
    if search_sealed(current, lookup, gather, &mut at)? {
        search_runs(current, lookup, options, gather, &mut at)?;
    }
    Ok(at)
}

#[inline]
fn search_shard(shard: &Shard, lookup: &Lookup<'_>, gather: &mut Gather<'_>) {
    if shard.has_tombstones() {
        gather.cover(shard.newest_tombstone(lookup.key, lookup.snapshot));
    }
    shard.lookup(lookup, |found| gather.visit(found));
}

/// Searches sealed memtables from position `at` on, and moves `at`. Ends when the key is decided,
/// or at a shard that only its node has. Returns whether it met such a shard.
#[inline]
fn search_sealed(
    current: &SuperVersion,
    lookup: &Lookup<'_>,
    gather: &mut Gather<'_>,
    at: &mut usize,
) -> Result<bool> {
    while let Some(sealed) = current.immutables.get(*at) {
        if gather.is_decided() {
            return Ok(false);
        }
        match sealed.home_of(lookup.key) {
            None => {}
            Some(ShardHome::Here(shard)) => search_shard(shard, lookup, gather),
            Some(ShardHome::Away(away)) if search_copy(away, lookup, gather)? => {}
            Some(ShardHome::Away(_)) => return Ok(true),
        }
        *at += 1;
    }
    Ok(false)
}

/// Searches the copy of an away shard; false if it has none.
#[cold]
fn search_copy(away: &AwayShard, lookup: &Lookup<'_>, gather: &mut Gather<'_>) -> Result<bool> {
    let Some(copy) = away.copy()? else { return Ok(false) };
    gather.cover(away.tombstones().max_covering(lookup.key, lookup.snapshot));
    if away.may_contain(lookup.hash) {
        copy.lookup(lookup, |found| gather.visit(found))?;
    }
    Ok(true)
}

/// Searches the run of away shards that begins at position `at`, and the memtables after it. Moves
/// `at`. All runs share one deadline.
#[cold]
fn search_runs(
    current: &SuperVersion,
    lookup: &Lookup<'_>,
    options: &ReadOptions,
    gather: &mut Gather<'_>,
    at: &mut usize,
) -> Result<()> {
    let deadline = ReadDeadline::default();
    loop {
        let run = away::next_run(current, lookup, at, |tombstone| gather.cover(tombstone));
        let asks = [RunAsk { lookup: *lookup, floor: gather.floor(), run }];
        for versions in away::ask_runs(&asks, options, &deadline)? {
            away::visit_versions(&versions, |found| gather.visit(found));
        }
        if !search_sealed(current, lookup, gather, at)? {
            return Ok(());
        }
    }
}

/// Searches the memtables for all keys of a batch. One request for each node asks for the runs of
/// all undecided keys. Returns for each key the position after the last sealed memtable that was
/// searched.
fn multi_search_memtables(
    current: &SuperVersion,
    lookups: &[Lookup<'_>],
    options: &ReadOptions,
    gathers: &mut [Gather<'_>],
) -> Result<Vec<usize>> {
    for (lookup, gather) in lookups.iter().zip(&mut *gathers) {
        search_shard(current.active_shard(lookup.key), lookup, gather);
    }
    let mut positions = vec![0; lookups.len()];
    let deadline = ReadDeadline::default();
    loop {
        let (mut owners, mut asks) = (Vec::new(), Vec::new());
        for (index, lookup) in lookups.iter().enumerate() {
            let (gather, at) = (&mut gathers[index], &mut positions[index]);
            while search_sealed(current, lookup, gather, at)? {
                let run = away::next_run(current, lookup, at, |tombstone| gather.cover(tombstone));
                if !run.is_empty() {
                    owners.push(index);
                    asks.push(RunAsk { lookup: *lookup, floor: gather.floor(), run });
                    break;
                }
            }
        }
        if asks.is_empty() {
            return Ok(positions);
        }
        let answers = away::ask_runs(&asks, options, &deadline)?;
        for (owner, versions) in owners.into_iter().zip(answers) {
            away::visit_versions(&versions, |found| gathers[owner].visit(found));
        }
    }
}

#[inline]
fn search_tables(
    reader: &Reader<'_>,
    current: &SuperVersion,
    lookup: &Lookup<'_>,
    options: &ReadOptions,
    gather: &mut Gather<'_>,
) -> Result<()> {
    let options = table_options(options);
    for table in current.tables(lookup.key) {
        search_table(reader, table.file, lookup, &options, gather)?;
        if gather.is_decided() {
            return Ok(());
        }
    }
    Ok(())
}

#[inline]
fn search_table(
    reader: &Reader<'_>,
    file: &Arc<LiveFile>,
    lookup: &Lookup<'_>,
    options: &TableReadOptions,
    gather: &mut Gather<'_>,
) -> Result<()> {
    let table = reader.view.tables().load_for(file, options.cache_only)?;
    if file.range_deletions > 0 {
        gather.cover(table.tombstones().max_covering(lookup.key, lookup.snapshot));
    }
    if !table.may_contain(lookup.hash) {
        reader.observers.stats().add(Ticker::FilterUseful, 1);
        return Ok(());
    }
    reader.observers.stats().add(Ticker::TablesSearched, 1);
    table.lookup_filtered(lookup, options, &mut |found| gather.visit(found))
}

pub(crate) fn multi_get(
    reader: Reader<'_>,
    family: &Arc<Family>,
    keys: &[&[u8]],
    options: &ReadOptions,
) -> Result<Vec<Option<PinnedSlice>>> {
    reader.context.check_open()?;
    for key in keys {
        check_key(key)?;
    }
    let (current, seq) = picture(reader, family, options);
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by_key(|&index| keys[index]);
    let lookups: Vec<Lookup<'_>> =
        order.iter().map(|&index| Lookup::new(keys[index], seq)).collect();
    let mut gathers: Vec<Gather<'_>> =
        lookups.iter().map(|lookup| gather(reader, family, lookup, options)).collect();
    let ends = multi_search_memtables(&current, &lookups, options, &mut gathers)?;
    if let Some(watch) = reader.context.read_watch() {
        for ((lookup, gather), &end) in lookups.iter().zip(&gathers).zip(&ends) {
            let (key, newest) = (lookup.key, gather.newest);
            let search = DecidedSearch { current: &current, key, end, newest };
            if gather.is_decided() {
                watch.note_answer(&search, reader.context.clock(), None);
            }
        }
    }
    multi_search_tables(&reader, &current, &lookups, options, &mut gathers)?;
    reader.observers.stats().add(Ticker::Gets, keys.len() as u64);
    let wanted: Vec<WantedValue<'_>> = gathers.iter().filter_map(Gather::separated).collect();
    let separated = match wanted.is_empty() {
        true => Vec::new(),
        false => reader.values(&current, options).fetch_many(&wanted)?,
    };
    let mut separated = separated.into_iter();
    let mut next = |_: WantedValue<'_>| Ok(separated.next().expect("one value for each reference"));
    let mut values = vec![None; keys.len()];
    for (gather, &index) in gathers.into_iter().zip(&order) {
        values[index] = gather.into_result(&mut next)?.map(|entry| entry.value);
    }
    reader.context.check_answer()?;
    Ok(values)
}

/// Searches the tables for the undecided keys of a batch, depth by depth and file by file. One call
/// looks up all undecided keys of a file.
fn multi_search_tables(
    reader: &Reader<'_>,
    current: &SuperVersion,
    lookups: &[Lookup<'_>],
    options: &ReadOptions,
    gathers: &mut [Gather<'_>],
) -> Result<()> {
    let options = table_options(options);
    let undecided = lookups.iter().enumerate().filter(|(at, _)| !gathers[*at].is_decided());
    let mut tables: Vec<_> =
        undecided.map(|(at, lookup)| (at, current.tables(lookup.key).peekable())).collect();
    let mut group = Vec::new();
    loop {
        tables.retain(|(at, _)| !gathers[*at].is_decided());
        let depths = tables.iter_mut().filter_map(|(_, table)| table.peek().map(|next| next.depth));
        let Some(depth) = depths.min() else { return Ok(()) };
        group.clear();
        let mut file = None;
        for (at, table) in &mut tables {
            let Some(next) = table.next_if(|next| next.depth == depth) else { continue };
            let before = file.replace(next.file).filter(|before| !Arc::ptr_eq(before, next.file));
            if let Some(before) = before {
                multi_search_file(reader, before, &group, lookups, &options, gathers)?;
                group.clear();
            }
            group.push(*at);
        }
        if let Some(file) = file {
            multi_search_file(reader, file, &group, lookups, &options, gathers)?;
        }
    }
}

fn multi_search_file(
    reader: &Reader<'_>,
    file: &Arc<LiveFile>,
    group: &[usize],
    lookups: &[Lookup<'_>],
    options: &TableReadOptions,
    gathers: &mut [Gather<'_>],
) -> Result<()> {
    let table = reader.view.tables().get_for(file, options.cache_only)?;
    let mut wanted = Vec::with_capacity(group.len());
    for &index in group {
        let lookup = &lookups[index];
        gathers[index].cover(table.tombstones().max_covering(lookup.key, lookup.snapshot));
        if table.may_contain(lookup.hash) {
            wanted.push(index);
        } else {
            reader.observers.stats().add(Ticker::FilterUseful, 1);
        }
    }
    reader.observers.stats().add(Ticker::TablesSearched, wanted.len() as u64);
    let batch: Vec<Lookup<'_>> = wanted.iter().map(|&index| lookups[index]).collect();
    table.multi_lookup(&batch, options, &mut |position, found| {
        gathers[wanted[position]].visit(found)
    })
}
