//! The newest record of a key, and whether anything in a range is newer than a moment.
//!
//! A transaction uses both functions to check whether its reads still hold. They count records of
//! every kind, and range deletes over the key. Records after a given sequence number count even if
//! readers do not see them yet. The functions load the family's super version, so they find every
//! record that was visible before the call.
//!
//! Thread-safety: no locks. Failure: errors of the tables that are read.
//! Cost for a key: a search of the memtables, and of the tables down to the newest record. Tables
//! without a record after the moment are left out. Cost for a range: a scan of the range in each
//! memtable shard and table that has a record after the moment. Large values are not read.

use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_base::{Result, SeqNo};

use crate::db::read::Reader;
use crate::db::read::away;
use crate::db::read::away_cursor::{AwayCursor, AwayScan};
use crate::db::read::get::table_options;
use crate::db::read::options::ReadOptions;
use crate::db::state::away::{AwayShard, ReadDeadline};
use crate::db::state::family::{Family, Layer};
use crate::db::state::memtable::ShardHome;
use crate::iter::InternalIterator;
use crate::key::{KeyRange, Kind, check_key, encode, trailer, trailer_seq, user_key};
use crate::live_file::LiveFile;
use crate::lookup::{Found, Lookup};
use crate::memtable::Shard;
use crate::options::LEVELS;
use crate::tombstone::{TombstoneSet, TombstoneSpan};

/// Which records a search of this module counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// All visible records.
    Ever,
    /// Records with a larger sequence number, visible or not.
    After(SeqNo),
}

impl Since {
    /// Whether a table or shard whose largest sequence number is `largest` may have such records.
    fn may_hold(self, largest: SeqNo) -> bool {
        match self {
            Self::Ever => true,
            Self::After(seq) => largest > seq,
        }
    }

    fn holds(self, seq: SeqNo) -> bool {
        self.may_hold(seq)
    }
}

/// Sequence number of the newest record or range delete of `key` that `since` counts; `None` if
/// there is none.
pub(crate) fn newest_record(
    reader: Reader<'_>,
    family: &Family,
    key: &[u8],
    since: Since,
) -> Result<Option<SeqNo>> {
    reader.context.check_open()?;
    check_key(key)?;
    // The super version is loaded before the visible number, so it has every record up to that
    // number.
    let current = family.current.load();
    let through = match since {
        Since::Ever => reader.view.visible(),
        Since::After(_) => SeqNo::MAX,
    };
    let lookup = Lookup::new(key, through);
    let newest = std::cell::Cell::new(None);
    let visit = |found: &Found<'_>| {
        newest.set(newest.get().max(Some(found.seq)));
        ControlFlow::Break(())
    };
    let table_options = table_options(&ReadOptions::new().keys_only());
    let deadline = ReadDeadline::default();
    for layer in current.layers(key) {
        match layer {
            Layer::Shard(shard) => {
                shard.lookup(&lookup, visit);
                newest.set(newest.get().max(shard.newest_tombstone(key, through)));
            }
            Layer::Away(away) if since.may_hold(away.figures().largest_seq) => {
                newest.set(newest.get().max(away.tombstones().max_covering(key, through)));
                let record = away::newest_version(away, &lookup, &deadline)?;
                newest.set(newest.get().max(record.map(|version| version.seq)));
            }
            Layer::Table(file) if since.may_hold(file.largest_seq()) => {
                let table = reader.view.tables().get(file)?;
                newest.set(newest.get().max(table.tombstones().max_covering(key, through)));
                table.lookup(&lookup, &table_options, &mut |found| visit(found))?;
            }
            Layer::Away(_) | Layer::Table(_) => {}
        }
        if newest.get().is_some() {
            break;
        }
    }
    Ok(newest.get().filter(|&seq| since.holds(seq)))
}

/// Whether a key of `range` has a record or range delete newer than `seq`.
pub(crate) fn range_has_newer(
    reader: Reader<'_>,
    family: &Family,
    range: &KeyRange,
    seq: SeqNo,
) -> Result<bool> {
    reader.context.check_open()?;
    if range.is_empty() {
        return Ok(false);
    }
    let current = family.current.load_full();
    // A database without memory nodes makes no deadline.
    let mut deadline: Option<Arc<ReadDeadline>> = None;
    let active = &current.active;
    for bucket in active.map.buckets_of(range) {
        if shard_has_newer(&active.shards[bucket], range, seq)? {
            return Ok(true);
        }
    }
    for immutable in &current.immutables {
        for bucket in immutable.map.buckets_of(range) {
            let has_newer = match &immutable.homes[bucket] {
                None => false,
                Some(ShardHome::Here(shard)) => shard_has_newer(shard, range, seq)?,
                Some(ShardHome::Away(away)) => {
                    away_has_newer(away, range, seq, deadline.get_or_insert_default())?
                }
            };
            if has_newer {
                return Ok(true);
            }
        }
    }
    let version = &current.readable;
    let l0 = version.map().buckets_of(range).flat_map(|bucket| version.l0(bucket));
    let levels = (1..LEVELS).flat_map(|level| version.overlapping(level, range));
    for file in l0.chain(levels) {
        if file.largest_seq() > seq
            && file.overlaps(range)
            && file_has_newer(reader, file, range, seq)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn shard_has_newer(shard: &Arc<Shard>, range: &KeyRange, seq: SeqNo) -> Result<bool> {
    if shard.largest_seq() <= seq {
        return Ok(false);
    }
    if shard.has_tombstones() && set_has_newer(&shard.tombstones(), range, seq) {
        return Ok(true);
    }
    cursor_has_newer(&mut shard.iter(), range, seq)
}

fn away_has_newer(
    away: &Arc<AwayShard>,
    range: &KeyRange,
    seq: SeqNo,
    deadline: &Arc<ReadDeadline>,
) -> Result<bool> {
    if away.figures().largest_seq <= seq {
        return Ok(false);
    }
    if set_has_newer(away.tombstones(), range, seq) {
        return Ok(true);
    }
    let scan = AwayScan {
        snapshot: SeqNo::MAX,
        keys_only: true,
        cache_only: false,
        deadline: Some(Arc::clone(deadline)),
    };
    cursor_has_newer(&mut AwayCursor::over(away, range.clone(), scan), range, seq)
}

fn file_has_newer(
    reader: Reader<'_>,
    file: &Arc<LiveFile>,
    range: &KeyRange,
    seq: SeqNo,
) -> Result<bool> {
    let table = reader.view.tables().get(file)?;
    if file.range_deletions > 0 && set_has_newer(table.tombstones(), range, seq) {
        return Ok(true);
    }
    let options = table_options(&ReadOptions::new().keys_only());
    cursor_has_newer(&mut table.iter(options), range, seq)
}

fn cursor_has_newer(
    cursor: &mut impl InternalIterator,
    range: &KeyRange,
    seq: SeqNo,
) -> Result<bool> {
    cursor.seek(&encode(&range.start, SeqNo::MAX, Kind::SEEK));
    while cursor.valid() {
        let key = cursor.key();
        if range.end.as_deref().is_some_and(|end| user_key(key) >= end) {
            return Ok(false);
        }
        if trailer_seq(trailer(key)) > seq {
            return Ok(true);
        }
        cursor.next();
    }
    cursor.status().map(|()| false)
}

fn set_has_newer(set: &TombstoneSet, range: &KeyRange, seq: SeqNo) -> bool {
    let mut span = TombstoneSpan::default();
    let mut at = range.start.clone();
    loop {
        span.reset();
        set.add_to(&at, SeqNo::MAX, &mut span);
        if span.newest() > seq {
            return true;
        }
        match span.end() {
            Some(end) if range.end.as_deref().is_none_or(|last| end < last) => {
                assert!(end > at.as_slice(), "a span holds the asked key");
                at = end.to_vec();
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tombstone::RangeTombstone;

    #[test]
    fn newer_range_delete_is_found_where_it_meets_the_range() {
        let tombstone = |start: &[u8], end: &[u8], seq| RangeTombstone {
            start: start.into(),
            end: end.into(),
            seq: SeqNo(seq),
        };
        let set = TombstoneSet::new(&[
            tombstone(b"c", b"f", 9),
            tombstone(b"a", b"z", 3),
            tombstone(b"m", b"p", 7),
        ]);
        let has = |start: &[u8], end: Option<&[u8]>, seq| {
            let range = KeyRange { start: start.to_vec(), end: end.map(<[u8]>::to_vec) };
            set_has_newer(&set, &range, SeqNo(seq))
        };
        assert!(has(b"a", Some(b"d"), 8));
        assert!(!has(b"a", Some(b"c"), 8));
        assert!(!has(b"f", None, 8));
        assert!(has(b"f", None, 6));
        assert!(!has(b"f", Some(b"m"), 6));
        assert!(has(b"x", Some(b"y"), 2));
        assert!(!has(b"z", None, 0));
    }
}
