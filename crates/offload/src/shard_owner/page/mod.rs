//! A page of a scan over shards of one node: the request, the check of the answer, and long values.
//!
//! Invariants:
//! 1. A page that contradicts the request is an error. Its records must lie in the range, after the
//!    start of the page, and in the order of the scan. The start of the next page must lie after
//!    them.
//! 2. A page has at most the bytes that the reader wants, including values that are read one-sided.
//!    A page of one record may be larger.
//!
//! Thread-safety: none; one task owns a page.
//! Cost: O(bytes) of the page.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use archipelago_base::SeqNo;
use archipelago_engine::key::{self, KeyRange, Kind};
use archipelago_engine::memtable::decode_record;
use archipelago_engine::pinned::PinnedSlice;
use archipelago_engine::remote::{self, ScanAsk, ScanDirection, ScanPage, ScanRecord};

use super::search::Contradiction;
use crate::ids::OwnerStamp;
use crate::wire::shard::{
    Direction, KEYS_ONLY_BYTES, KeySpan, PageEnd, PageRecord, RecordPlace, ResumeAt, ShardMessage,
    ShardName, StoredValue,
};

/// A record that the caller reads one-sided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageRecordAt {
    /// Record of the page.
    record: usize,
    /// Shard that has the record, as an index into those of the scan.
    pub(super) shard: usize,
    /// Offset within the image.
    pub(super) at: u64,
    /// Length of the whole record.
    pub(super) len: u64,
}

/// A page of a scan.
#[derive(Debug)]
pub(super) struct PageReader<'a> {
    ask: &'a ScanAsk<'a>,
    page: ScanPage,
    records: Vec<PageRecordAt>,
}

/// The request for a page of at most `bytes_max` bytes.
pub(super) fn request(
    owner: OwnerStamp,
    ask: &ScanAsk<'_>,
    names: &[ShardName],
    bytes_max: u32,
    inline_max: u32,
) -> ShardMessage {
    let resume = ask.resume.map(|at| ResumeAt { key: at.key.clone().into(), seq: at.seq });
    let direction = match ask.direction {
        ScanDirection::Forward => Direction::Forward,
        ScanDirection::Backward => Direction::Backward,
    };
    ShardMessage::Scan {
        owner,
        shards: names.to_vec(),
        keys: KeySpan(ask.keys.clone()),
        resume,
        direction,
        snapshot: ask.snapshot,
        bytes_max,
        inline_max: if ask.keys_only { KEYS_ONLY_BYTES } else { inline_max },
    }
}

/// A place in the order of a scan: before the versions of a key that have at most this sequence
/// number. Without a number it is the place after the key.
#[derive(Clone, Copy, Debug)]
struct ScanPosition<'a> {
    key: &'a [u8],
    seq: Option<SeqNo>,
}

impl<'a> ScanPosition<'a> {
    fn of(at: &'a ResumeAt) -> Self {
        Self { key: &at.key.0, seq: at.seq }
    }

    /// The order of two places in a scan of this direction.
    fn order(self, other: Self, direction: ScanDirection) -> Ordering {
        let keys = self.key.cmp(other.key);
        let keys = if direction == ScanDirection::Backward { keys.reverse() } else { keys };
        // Newer versions come first, and the end of a key comes last.
        let rank = |seq: Option<SeqNo>| seq.map_or((1, 0), |seq| (0, u64::MAX - seq.0));
        keys.then(rank(self.seq).cmp(&rank(other.seq)))
    }
}

impl<'a> PageReader<'a> {
    /// Takes the answer to the request for `ask`.
    pub(super) fn new(ask: &'a ScanAsk<'a>, answer: ShardMessage) -> Result<Self, Contradiction> {
        let ShardMessage::Page { records, end } = answer else {
            return Err(Contradiction("an answer of another kind than the request"));
        };
        check_order(ask, &records)?;
        let (records, end) = cut(ask, records, end);
        let resume = resume_after(ask, &records, end)?;
        let mut reader =
            Self { ask, page: ScanPage { records: Vec::new(), resume }, records: Vec::new() };
        for record in records {
            reader.push(record)?;
        }
        Ok(reader)
    }

    fn push(&mut self, record: PageRecord) -> Result<(), Contradiction> {
        let PageRecord { key, version } = record;
        let value = match version.value {
            StoredValue::Inline(value) | StoredValue::Placed { value, .. } => {
                PinnedSlice::owned(value.0.to_vec())
            }
            StoredValue::At(RecordPlace { shard, at, len }) => {
                let shard = shard as usize;
                if shard >= self.ask.shards.len() {
                    return Err(Contradiction("a value in a shard that was not asked"));
                }
                if !self.ask.keys_only || version.kind == Kind::PutExpiring {
                    let record = self.page.records.len();
                    self.records.push(PageRecordAt { record, shard, at, len });
                }
                PinnedSlice::owned(Vec::new())
            }
        };
        let key = key::encode(&key.0, version.seq, version.kind);
        self.page.records.push(ScanRecord { key, value });
        Ok(())
    }

    /// Records that the caller must read one-sided.
    pub(super) fn records(&self) -> &[PageRecordAt] {
        &self.records
    }

    /// Takes the bytes of a record of [`PageReader::records`]. Returns false if they are not that
    /// record.
    pub(super) fn on_record(&mut self, record: PageRecordAt, bytes: &[u8]) -> bool {
        let Some((key, value)) = decode_record(bytes) else { return false };
        let wanted = &mut self.page.records[record.record];
        let is_it = key::encode(key.user_key, key.seq, key.kind) == wanted.key;
        if is_it {
            wanted.value = PinnedSlice::owned(value.to_vec());
        }
        is_it
    }

    /// The page, after all records were read.
    pub(super) fn finish(self) -> ScanPage {
        self.page
    }
}

/// Checks that the records of a page lie in the range of the scan and in its order.
fn check_order(ask: &ScanAsk<'_>, records: &[PageRecord]) -> Result<(), Contradiction> {
    let mut before = ask.resume.map(|at| ScanPosition { key: &at.key, seq: at.seq });
    let mut is_first = true;
    for record in records {
        let at = ScanPosition { key: &record.key.0, seq: Some(record.version.seq) };
        let is_visible = record.version.seq <= ask.snapshot && in_range(ask.keys, at.key);
        // The first record may lie at the place where the previous page ended.
        let follows = before.is_none_or(|before| match before.order(at, ask.direction) {
            Ordering::Less => true,
            Ordering::Equal => is_first,
            Ordering::Greater => false,
        });
        if !is_visible || !follows {
            return Err(Contradiction("records outside of the scan or in another order"));
        }
        // A version that is no merge operand ends its key.
        let seq = at.seq.filter(|_| record.version.kind == Kind::Merge);
        (before, is_first) = (Some(ScanPosition { key: at.key, seq }), false);
    }
    Ok(())
}

/// Cuts a page to the bytes that the reader wants, counting values that will be read one-sided. At
/// least one record stays.
fn cut(
    ask: &ScanAsk<'_>,
    mut records: Vec<PageRecord>,
    end: PageEnd,
) -> (Vec<PageRecord>, PageEnd) {
    let mut bytes = 0u64;
    let fits = |PageRecord { key, version }: &&PageRecord| {
        let value = match &version.value {
            StoredValue::Inline(value) | StoredValue::Placed { value, .. } => value.0.len() as u64,
            StoredValue::At(_) if ask.keys_only => 0,
            StoredValue::At(place) => place.len,
        };
        bytes = bytes.saturating_add(key.0.len() as u64).saturating_add(value);
        bytes <= ask.bytes_max as u64
    };
    let kept = records.iter().take_while(fits).count().max(1);
    if kept >= records.len() {
        return (records, end);
    }
    records.truncate(kept);
    (records, PageEnd::AfterLast)
}

fn in_range(keys: &KeyRange, key: &[u8]) -> bool {
    keys.contains(key)
}

/// The place at which the next page begins. It must lie after the start of this page and after its
/// records.
fn resume_after(
    ask: &ScanAsk<'_>,
    records: &[PageRecord],
    end: PageEnd,
) -> Result<Option<remote::ResumeAt>, Contradiction> {
    if matches!(end, PageEnd::At(_)) && !records.is_empty() {
        return Err(Contradiction("a page with records that continues at another place"));
    }
    let is_finished = end == PageEnd::Finished;
    let Some(next) = end.resume(records) else {
        return if is_finished { Ok(None) } else { Err(Contradiction("a page without an end")) };
    };
    if !in_range(ask.keys, &next.key.0) {
        return Err(Contradiction("a page that continues outside of the scan"));
    }
    let start = ask.resume.map(|at| ScanPosition { key: &at.key, seq: at.seq });
    let moves = start
        .is_none_or(|start| start.order(ScanPosition::of(&next), ask.direction) == Ordering::Less);
    if !moves {
        return Err(Contradiction("a page that continues where it began"));
    }
    Ok(Some(remote::ResumeAt { key: next.key.0.to_vec(), seq: next.seq }))
}
