//! Estimates how many live keys a column family has.
//!
//! A key is counted where its newest record lies. The estimate takes a sample of the keys of each
//! memtable shard and each table. A key is live there if its record is no delete and has not
//! expired. Also, no newer range tombstone must cover it, and no newer shard or table must have the
//! key. A shard or table adds its number of keys times the live share of its sample. A table knows
//! how many different keys it has. For a shard, that number follows from the versions that each
//! sampled key has.
//!
//! Error: with at most [`EXACT_KEYS`] keys in all, every key is examined. The count is then exact,
//! except for false positives of filters (about 1 % of the keys that also lie in an older part).
//! With more keys, about [`BLOCKS`] blocks of [`KEYS_OF_BLOCK`] keys are sampled in all. The error
//! is then at most 10 % of the number of different keys that the records have, be they written,
//! deleted or expired. That holds for overwrites, deletes, range deletes, expiry and their
//! mixtures. Merge operands without a base count as a live key. If values are so large that no
//! block is read, the metadata of the table decides. It has the numbers of deletes and expired
//! records, and older versions count as live.
//!
//! The same samples show how many of the live keys expire, and the mean time that these have left.
//! The number has the same error as the number of keys. The mean is that of the sample.
//!
//! For a shard at a memory node, the sample of its keys and its filter are in memory. So the
//! estimate asks no node.
//!
//! Cost: at most [`BLOCKS`] blocks, and one block for each of at most [`TABLES_MAX`] tables, are
//! read through the block cache. Some thousand searches run in memory. No values are read, except
//! those that share a block with a sampled key. The filter of a newer table, and its cached blocks,
//! say whether it has a key.

use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_base::{Result, SeqNo};

use crate::db::read::Reader;
use crate::db::state::away::AwayShard;
use crate::db::state::family::{Family, SuperVersion, TableLayer};
use crate::db::state::memtable::ShardHome;
use crate::file_meta::FileMeta;
use crate::key::{KeyRange, Kind, split_expiry};
use crate::live_file::LiveFile;
use crate::lookup::Lookup;
use crate::memtable::Shard;
use crate::sst::{SampledBlock, SampledKey, TableReadOptions};
use crate::table_cache::TableCache;

/// Number of blocks that are sampled in all, in addition to one block of each table.
const BLOCKS: u64 = 64;
/// Number of keys that are sampled of a block.
const KEYS_OF_BLOCK: usize = 16;
/// Number of keys that are sampled of a memtable shard.
const KEYS_OF_SHARD: usize = 512;
/// Largest number of keys in all at which every key is examined.
const EXACT_KEYS: u64 = 4096;
/// Number of tables up to which every table is sampled. Of more tables, only every second, third or
/// later table is sampled.
const TABLES_MAX: usize = 256;

/// Place of a record, from newest to oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// In a memtable, by its position. The active memtable has position 0.
    Memtable(usize),
    /// In the table with this number.
    Table(u64),
}

/// State of one estimate of a family.
struct Census<'a> {
    tables: &'a TableCache,
    picture: Arc<SuperVersion>,
    visible: SeqNo,
    now_ms: u64,
    /// Whether every key is examined, not only a sample.
    exact: bool,
    /// Point records of memtables, and keys of tables.
    total: u64,
}

/// An estimate of the live keys of a column family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyEstimate {
    /// Number of live keys.
    pub keys: u64,
    /// Number of live keys that expire.
    pub expiring: u64,
    /// Mean time, in milliseconds, until the expiring keys expire; 0 if there are none.
    pub mean_ttl_ms: u64,
}

/// Live keys of a sample, or of the shard or table that the sample represents.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    keys: f64,
    expiring: f64,
    /// Sum of the times, in milliseconds, that the expiring keys have left.
    ttl_ms: f64,
}

impl Live {
    /// `keys` keys that do not expire.
    fn lasting(keys: f64) -> Self {
        Self { keys, ..Self::default() }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            keys: self.keys + other.keys,
            expiring: self.expiring + other.expiring,
            ttl_ms: self.ttl_ms + other.ttl_ms,
        }
    }

    fn times(self, factor: f64) -> Self {
        let Self { keys, expiring, ttl_ms } = self;
        Self { keys: keys * factor, expiring: expiring * factor, ttl_ms: ttl_ms * factor }
    }
}

/// Estimates the number of live keys of a family.
pub(crate) fn count_keys(reader: Reader<'_>, family: &Family) -> KeyEstimate {
    let picture = family.current.load_full();
    let shards = homes(&picture).map(|(_, home)| home.entries()).sum::<u64>();
    let tables = picture.readable.files().map(|(_, file)| keys_of(file)).sum::<u64>();
    let census = Census {
        tables: reader.view.tables(),
        visible: reader.view.visible(),
        now_ms: reader.context.clock().unix_ms(),
        exact: shards + tables <= EXACT_KEYS,
        total: shards + tables,
        picture,
    };
    let in_memory = homes(&census.picture).map(|(at, home)| match home {
        ShardHome::Here(shard) => census.live_of_shard(at, &shard),
        ShardHome::Away(away) => census.live_of_away(at, &away),
    });
    let live = in_memory.fold(census.live_of_tables(), Live::plus);
    KeyEstimate {
        keys: live.keys.round() as u64,
        expiring: live.expiring.round() as u64,
        mean_ttl_ms: (live.ttl_ms / live.expiring.max(f64::MIN_POSITIVE)).round() as u64,
    }
}

/// Each memtable shard with the position of its memtable.
fn homes(picture: &SuperVersion) -> impl Iterator<Item = (usize, ShardHome)> {
    let immutables = picture.immutables.iter().enumerate();
    let immutables =
        immutables.flat_map(|(at, immutable)| immutable.homes().map(move |s| (at + 1, s.clone())));
    let active = picture.active.shards.iter();
    active.map(|shard| (0, ShardHome::Here(Arc::clone(shard)))).chain(immutables)
}

/// Different keys of a table's point records.
fn keys_of(file: &FileMeta) -> u64 {
    file.content.user_keys.min(file.entries)
}

/// Whether a memtable shard has a key, by its filter if the shard is at a node.
fn home_has_key(home: &ShardHome, lookup: &Lookup<'_>) -> bool {
    match home {
        ShardHome::Away(away) => away.may_contain(lookup.hash),
        ShardHome::Here(shard) => {
            let mut has_key = false;
            shard.lookup(lookup, |_| {
                has_key = true;
                ControlFlow::Break(())
            });
            has_key
        }
    }
}

impl Census<'_> {
    fn live_of_shard(&self, at: usize, shard: &Arc<Shard>) -> Live {
        let entries = shard.entries();
        if entries == 0 {
            return Live::default();
        }
        if self.exact {
            let mut iter = shard.iter();
            let mut last: Option<Vec<u8>> = None;
            let mut live = Live::default();
            crate::iter::InternalIterator::seek_to_first(&mut iter);
            while crate::iter::InternalIterator::valid(&iter) {
                let key = crate::key::user_key(crate::iter::InternalIterator::key(&iter));
                if last.as_deref() != Some(key) {
                    let (one, _) = self.live_in_shard(at, shard, key);
                    live = live.plus(one);
                    last = Some(key.to_vec());
                }
                crate::iter::InternalIterator::advance(&mut iter);
            }
            return live;
        }
        // The sample takes a key at every n-th record, so each sampled key represents n records. A
        // key with v versions is sampled about v times as often as a key with one, so its weight is
        // divided by v. A key with very many versions is sampled several times in a row.
        let keys = shard.sample_keys(KEYS_OF_SHARD);
        let weighted = keys.chunk_by(|a, b| a == b).map(|same| {
            let (live, versions) = self.live_in_shard(at, shard, &same[0]);
            live.times(same.len() as f64 / f64::from(versions.max(1)))
        });
        let live = weighted.fold(Live::default(), Live::plus);
        live.times(entries as f64 / keys.len().max(1) as f64)
    }

    fn live_of_away(&self, at: usize, away: &AwayShard) -> Live {
        let sample = away.sample();
        if sample.is_empty() {
            // An earlier open sent the shard, so it has no sample. Each delete is assumed to hide
            // one put of the shard, and all other records are assumed to be live.
            let figures = away.figures();
            return Live::lasting(figures.entries.saturating_sub(2 * figures.deletions) as f64);
        }
        let live = sample.iter().map(|record| self.live_of(record, Origin::Memtable(at)));
        let live = live.fold(Live::default(), Live::plus);
        live.times(away.figures().user_keys as f64 / sample.len().max(1) as f64)
    }

    /// The key, if its newest record is live in the shard, and how many versions it has there.
    fn live_in_shard(&self, at: usize, shard: &Shard, key: &[u8]) -> (Live, u32) {
        let lookup = Lookup::new(key, self.visible);
        let mut versions = 0u32;
        let mut newest: Option<(SeqNo, Kind, Option<u64>)> = None;
        shard.lookup(&lookup, |found| {
            versions += 1;
            newest.get_or_insert_with(|| {
                let expires = found.kind == Kind::PutExpiring;
                let expiry = expires.then(|| split_expiry(found.value)).flatten();
                (found.seq, found.kind, expiry.map(|(at_ms, _)| at_ms))
            });
            ControlFlow::Continue(())
        });
        let Some((seq, kind, expiry)) = newest else { return (Live::default(), versions) };
        let record = SampledKey { key: key.to_vec(), seq, kind, expiry };
        (self.live_of(&record, Origin::Memtable(at)), versions)
    }

    /// The key of a record in `origin`, if it is live there.
    fn live_of(&self, record: &SampledKey, origin: Origin) -> Live {
        if !self.is_live(record) || self.is_hidden(record, origin) {
            return Live::default();
        }
        match record.expiry {
            None => Live::lasting(1.0),
            Some(at_ms) => {
                let ttl_ms = at_ms.saturating_sub(self.now_ms) as f64;
                Live { keys: 1.0, expiring: 1.0, ttl_ms }
            }
        }
    }

    fn is_live(&self, record: &SampledKey) -> bool {
        match record.kind {
            Kind::Put | Kind::Merge | Kind::WideEntity => true,
            Kind::PutExpiring | Kind::Indirect => {
                record.expiry.is_none_or(|at_ms| at_ms > self.now_ms)
            }
            Kind::Delete | Kind::SingleDelete | Kind::RangeDelete => false,
        }
    }

    /// Whether a newer record or range tombstone hides `record`, which lies in `origin`.
    fn is_hidden(&self, record: &SampledKey, origin: Origin) -> bool {
        let lookup = Lookup::new(&record.key, self.visible);
        let covers = |tombstone: Option<SeqNo>| tombstone.is_some_and(|seq| seq > record.seq);
        let first = Some(ShardHome::Here(Arc::clone(self.picture.active_shard(&record.key))));
        let immutables = self.picture.immutables.iter().map(|i| i.home_of(&record.key).cloned());
        for (at, home) in std::iter::once(first).chain(immutables).enumerate() {
            let is_own = origin == Origin::Memtable(at);
            if let Some(home) = home {
                if home.has_tombstones()
                    && covers(home.tombstones().max_covering(&record.key, self.visible))
                {
                    return true;
                }
                if !is_own && home_has_key(&home, &lookup) {
                    return true;
                }
            }
            if is_own {
                return false;
            }
        }
        for TableLayer { file, .. } in self.picture.tables(&record.key) {
            let is_own = origin == Origin::Table(file.no);
            // A table that cannot be read hides nothing.
            if self.table_hides(file, record, &lookup, is_own).unwrap_or(false) {
                return true;
            }
            if is_own {
                return false;
            }
        }
        false
    }

    /// Whether the table has something newer about the key of `record`. The table is the record's
    /// own or a newer one.
    fn table_hides(
        &self,
        file: &Arc<LiveFile>,
        record: &SampledKey,
        lookup: &Lookup<'_>,
        is_own: bool,
    ) -> Result<bool> {
        if is_own && file.range_deletions == 0 {
            return Ok(false);
        }
        let table = self.tables.load(file)?;
        let covering = table.tombstones().max_covering(&record.key, self.visible);
        if covering.is_some_and(|seq| seq > record.seq) {
            return Ok(true);
        }
        if is_own || !table.may_contain(lookup.hash) {
            return Ok(false);
        }
        let mut has_key = false;
        let mut note = |_: &crate::lookup::Found<'_>| {
            has_key = true;
            ControlFlow::Break(())
        };
        // The index of a table has the keys of large values, so the blocks of these values are not
        // read.
        let keys = TableReadOptions { keys_only: true, ..TableReadOptions::foreground() };
        let cached = TableReadOptions { cache_only: true, ..keys };
        match table.lookup_filtered(lookup, &cached, &mut note) {
            Ok(()) => Ok(has_key),
            // The blocks are not in memory. A filter over the whole table is precise enough to
            // decide.
            Err(_) if table.has_whole_filter() => Ok(true),
            Err(_) => {
                table.lookup_filtered(lookup, &keys, &mut note)?;
                Ok(has_key)
            }
        }
    }

    fn live_of_tables(&self) -> Live {
        let version = Arc::clone(&self.picture.readable);
        let files: Vec<(usize, &Arc<LiveFile>)> =
            version.files().filter(|(_, file)| keys_of(file) > 0).collect();
        let step = files.len().div_ceil(TABLES_MAX).max(1);
        let (mut live, mut share, mut share_of) = (Live::default(), Live::lasting(1.0), usize::MAX);
        for (at, (level, file)) in files.into_iter().enumerate() {
            if at % step == 0 || level != share_of {
                (share, share_of) = (self.live_share(level, file), level);
            }
            live = live.plus(share.times(keys_of(file) as f64));
        }
        live
    }

    /// Share of the table's keys that are live there, and share of those that expire.
    fn live_share(&self, level: usize, file: &Arc<LiveFile>) -> Live {
        let is_plain = file.deletions == 0 && file.content.expiring == 0;
        if is_plain && file.range_deletions == 0 && !self.has_newer(level, file) {
            return Live::lasting(1.0);
        }
        let (blocks, keys) = match self.exact {
            true => (usize::MAX, usize::MAX),
            false => {
                let share = BLOCKS.saturating_mul(keys_of(file)) / self.total.max(1);
                (1 + share as usize, KEYS_OF_BLOCK)
            }
        };
        let table = self.tables.get(file);
        let sampled = table.and_then(|table| table.sample(blocks, keys));
        let (mut live, mut all) = (Live::default(), 0.0);
        for SampledBlock { keys, sampled } in sampled.unwrap_or_default() {
            let origin = Origin::Table(file.no);
            let of_sample = sampled.iter().map(|record| self.live_of(record, origin));
            let of_sample = of_sample.fold(Live::default(), Live::plus);
            live = live.plus(of_sample.times(keys as f64 / sampled.len().max(1) as f64));
            all += keys as f64;
        }
        if all > 0.0 { live.times(1.0 / all) } else { self.share_by_metadata(file) }
    }

    /// Share by the metadata of the table, if no block may be read.
    fn share_by_metadata(&self, file: &LiveFile) -> Live {
        let expired = file.content.expiring * file.content.expired_quarters(self.now_ms) / 4;
        let edge = |key: &[u8]| SampledKey {
            key: key.to_vec(),
            seq: file.largest_seq(),
            kind: Kind::Put,
            expiry: None,
        };
        let origin = Origin::Table(file.no);
        let edges = [&file.smallest, &file.largest];
        let hidden = edges.iter().filter(|key| self.is_hidden(&edge(key), origin)).count();
        let keys = keys_of(file);
        let left = keys.saturating_sub(file.deletions).saturating_sub(expired);
        let expiring = file.content.expiring.saturating_sub(expired).min(left);
        let middle = file.content.expiry_ms[2].max(self.now_ms);
        let left = Live {
            keys: left as f64,
            expiring: expiring as f64,
            ttl_ms: expiring as f64 * (middle - self.now_ms) as f64,
        };
        left.times((2 - hidden) as f64 / 2.0 / keys.max(1) as f64)
    }

    /// Whether a memtable, or a newer table, may have something newer about a key of the table.
    fn has_newer(&self, level: usize, file: &Arc<LiveFile>) -> bool {
        if homes(&self.picture).any(|(_, home)| home.is_filled()) {
            return true;
        }
        let version = &self.picture.readable;
        let mut end = file.largest.clone();
        end.push(0);
        let range = KeyRange { start: file.smallest.clone(), end: Some(end) };
        let l0 = version.map().buckets_of(&range).flat_map(|bucket| version.l0(bucket));
        let newer = |other: &Arc<LiveFile>| other.no != file.no && other.overlaps_file(file);
        l0.into_iter().any(newer)
            || (1..level).any(|above| !version.overlapping(above, &range).is_empty())
    }
}
