//! Searches of registered images: the versions of keys, and pages of merged records.
//!
//! Worker threads call [`answer`] without a lock. The functions are pure.
//!
//! Invariants:
//! 1. The versions of a key come newest first, up to the first that is no merge operand. A version
//!    is left out only for one of three reasons: the snapshot does not see it, it is older than the
//!    floor, or the answer had no room for it.
//! 2. An answer that has no room for more says where the search goes on. Without such a mark, an
//!    answer never ends in the middle of merge operands.
//! 3. An answer has at least one version if the search found any. If the value of that version is
//!    too long, the answer names the place of the record.
//! 4. Values that a page names by their places count towards its size, unless the reader wants keys
//!    only.
//! 5. A page visits at most [`STEPS_MAX`] records, so that no scan occupies a thread for long.
//!
//! Failure: `TooLarge` if the caller's limit has no room for one version. Images were checked when
//! they were registered, so an image that turns out to be damaged means damaged memory.
//! Cost: a search of one image per shard and key; a page costs O(log shards) for each record.

use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_base::{Error, SeqNo};
use archipelago_engine::iter::{Child, InternalIterator, MergingIterator};
use archipelago_engine::key::{self, KeyRange, KeyRef, Kind};
use archipelago_engine::lookup::{Found, Lookup};
use archipelago_engine::memtable::SealedImage;
use archipelago_fabric::MESSAGE_BYTES_MAX;

use super::core::ReadOrder;
use super::sabotage::HostSabotage;
use crate::wire::shard::{
    Direction, KEYS_ONLY_BYTES, KeyAsk, KeyVersions, PageEnd, PageRecord, RecordPlace, ResumeAt,
    ShardMessage, ShardRefusal, ShardWhy, StoredValue, Version,
};

/// Largest number of records that one page visits.
const STEPS_MAX: usize = 1 << 16;
/// Bytes of an answer in addition to its versions: format version, code, counts and ends.
const ANSWER_BYTES: usize = 64;
/// Bytes of a version in addition to its key and its value: lengths, sequence number and kind.
const VERSION_BYTES: usize = 24;
/// Bytes of the place of a record.
const PLACE_BYTES: usize = 20;
/// Bytes of a key's result in addition to its versions.
const RESULT_BYTES: usize = 16;

type Images = [Option<Arc<SealedImage>>];

/// Searches the images of a request. The answer has at most `answer_bytes_max` bytes.
pub(super) fn answer(
    order: &ReadOrder,
    answer_bytes_max: usize,
    sabotage: HostSabotage,
) -> ShardMessage {
    let limit = answer_bytes_max.min(MESSAGE_BYTES_MAX);
    let left = limit.saturating_sub(ANSWER_BYTES);
    let room = Room { left, limit, is_first: true, counts_values: false };
    let reader = |snapshot: SeqNo, inline_max: u32, wants_place: bool| Reader {
        images: &order.images,
        snapshot,
        inline_max,
        wants_place,
        sabotage,
    };
    let answered = match &order.ask {
        ShardMessage::Get { key, floor, snapshot, inline_max, wants_place, .. } => {
            reader(*snapshot, *inline_max, *wants_place).get(&key.0, *floor, room)
        }
        ShardMessage::MultiGet { asks, snapshot, inline_max, wants_place, .. } => {
            reader(*snapshot, *inline_max, *wants_place).multi_get(asks, room)
        }
        ShardMessage::Scan { keys, resume, direction, snapshot, bytes_max, inline_max, .. } => {
            let reader = reader(*snapshot, *inline_max, false);
            let left = room.left.min(*bytes_max as usize);
            let room = Room { left, counts_values: *inline_max > KEYS_ONLY_BYTES, ..room };
            let page = Page { keys: &keys.0, room, records: Vec::new() };
            reader.scan(page, resume.as_ref(), *direction)
        }
        _ => Err(ShardWhy::Malformed.into()),
    };
    answered.unwrap_or_else(|refusal| ShardMessage::Refused { refusal })
}

/// The room that is left in an answer.
#[derive(Clone, Copy)]
struct Room {
    left: usize,
    /// Largest size of the whole answer, in bytes.
    limit: usize,
    /// Whether the answer has no version yet. The first version may exceed the limit of a page, but
    /// not that of the answer.
    is_first: bool,
    /// Whether values that the answer names by their places take bytes, because the reader will
    /// fetch them.
    counts_values: bool,
}

/// The end of a search.
enum SearchEnd {
    /// All versions are in the answer.
    Whole,
    /// The answer has no room for the version with this sequence number.
    Cut(SeqNo),
}

/// Input that all functions of a search share.
struct Reader<'a> {
    images: &'a Images,
    snapshot: SeqNo,
    inline_max: u32,
    /// Whether an answer names the place of the newest version of a key, if that version is a put.
    wants_place: bool,
    sabotage: HostSabotage,
}

/// A page that is being filled.
struct Page<'a> {
    keys: &'a KeyRange,
    room: Room,
    records: Vec<PageRecord>,
}

fn damaged(error: &Error) -> ShardRefusal {
    tracing::error!(%error, "a registered image is damaged");
    ShardWhy::BadImage.into()
}

impl Room {
    /// Takes bytes for a version. Returns false if the answer has no room for them.
    fn take(&mut self, bytes: usize) -> bool {
        if bytes <= self.left {
            self.left -= bytes;
            self.is_first = false;
            return true;
        }
        false
    }

    /// Takes bytes for a value that the answer names by its place.
    fn take_fetched(&mut self, bytes: usize) {
        if self.counts_values {
            self.left = self.left.saturating_sub(bytes);
        }
    }

    /// Takes bytes for a version that may exceed the limit of a page, because it is the first.
    /// Errors: `TooLarge` if the version exceeds the limit of the answer.
    fn take_first(&mut self, bytes: usize) -> Result<(), ShardRefusal> {
        if bytes + ANSWER_BYTES > self.limit {
            return Err(ShardRefusal::at(ShardWhy::TooLarge, self.limit as u64));
        }
        self.left = 0;
        self.is_first = false;
        Ok(())
    }
}

impl Reader<'_> {
    fn get(&self, key: &[u8], floor: SeqNo, mut room: Room) -> Result<ShardMessage, ShardRefusal> {
        let mut versions = Vec::new();
        let images = (0..self.images.len() as u32).collect::<Vec<u32>>();
        let ask = Search { key, floor, snapshot: self.snapshot, within: &images, key_bytes: 0 };
        let end = self.search(&ask, &mut room, &mut |version| versions.push(version))?;
        Ok(ShardMessage::Versions { found: self.result(versions, &end) })
    }

    fn multi_get(&self, asks: &[KeyAsk], mut room: Room) -> Result<ShardMessage, ShardRefusal> {
        let mut found = Vec::new();
        for ask in asks {
            if !found.is_empty() && room.left < RESULT_BYTES {
                break;
            }
            room.left = room.left.saturating_sub(RESULT_BYTES);
            let mut versions = Vec::new();
            let search = Search {
                key: &ask.key.0,
                floor: ask.floor,
                snapshot: self.snapshot,
                within: &ask.within,
                key_bytes: 0,
            };
            let end = self.search(&search, &mut room, &mut |version| versions.push(version))?;
            let is_cut = matches!(end, SearchEnd::Cut(_));
            if is_cut && versions.is_empty() {
                break;
            }
            found.push(self.result(versions, &end));
            if is_cut {
                break;
            }
        }
        Ok(ShardMessage::ManyVersions { found })
    }

    fn result(&self, versions: Vec<Version>, end: &SearchEnd) -> KeyVersions {
        let resume = match end {
            SearchEnd::Cut(seq) if !self.sabotage.no_resume() => Some(*seq),
            _ => None,
        };
        KeyVersions { versions, resume }
    }

    /// Passes the versions of a key to `push`, as long as the answer has room.
    fn search(
        &self,
        ask: &Search<'_>,
        room: &mut Room,
        push: &mut dyn FnMut(Version),
    ) -> Result<SearchEnd, ShardRefusal> {
        let lookup = Lookup::new(ask.key, ask.snapshot);
        let mut is_newest = true;
        for &index in ask.within {
            let image = self.images.get(index as usize).ok_or(ShardWhy::Malformed)?;
            let Some(image) = image else { continue };
            let mut end = None;
            let mut failed = None;
            let visited = image.lookup_records(&lookup, |found, span| {
                if found.seq < ask.floor {
                    end = Some(SearchEnd::Whole);
                    return ControlFlow::Break(());
                }
                let place = RecordPlace { shard: index, at: span.at, len: span.len };
                let is_placed = std::mem::take(&mut is_newest) && self.wants_place;
                let place = RecordAt { place, is_placed };
                match self.version(found, place, ask.key_bytes, room) {
                    Ok(Some(version)) => push(version),
                    Ok(None) => end = Some(SearchEnd::Cut(found.seq)),
                    Err(refusal) => failed = Some(refusal),
                }
                if found.kind != Kind::Merge && end.is_none() {
                    end = Some(SearchEnd::Whole);
                }
                if end.is_some() || failed.is_some() {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            visited.map_err(|error| damaged(&error))?;
            match (failed, end) {
                (Some(refusal), _) => return Err(refusal),
                (None, Some(end)) => return Ok(end),
                (None, None) => {}
            }
        }
        Ok(SearchEnd::Whole)
    }

    /// A version for the answer; `None` if the answer has no room for it.
    fn version(
        &self,
        found: &Found<'_>,
        record: RecordAt,
        key_bytes: usize,
        room: &mut Room,
    ) -> Result<Option<Version>, ShardRefusal> {
        let RecordAt { place, is_placed } = record;
        let (seq, kind) = (found.seq, found.kind);
        let beside = VERSION_BYTES + key_bytes;
        let inline = beside + found.value.len();
        let is_short = found.value.len() <= self.inline_max as usize;
        let by_place = Version { seq, kind, value: StoredValue::At(place) };
        let is_put = matches!(kind, Kind::Put | Kind::PutExpiring);
        if is_short && is_placed && is_put && room.take(inline + PLACE_BYTES) {
            let value = StoredValue::Placed { value: found.value.to_vec().into(), place };
            return Ok(Some(Version { value, ..by_place }));
        }
        if is_short && room.take(inline) {
            let value = StoredValue::Inline(found.value.to_vec().into());
            return Ok(Some(Version { value, ..by_place }));
        }
        let is_first = room.is_first;
        if (is_first || !is_short) && room.take(beside + PLACE_BYTES) {
            room.take_fetched(found.value.len());
            return Ok(Some(by_place));
        }
        if !is_first {
            return Ok(None);
        }
        room.take_first(beside + PLACE_BYTES)?;
        Ok(Some(by_place))
    }

    fn scan(
        &self,
        mut page: Page<'_>,
        resume: Option<&ResumeAt>,
        direction: Direction,
    ) -> Result<ShardMessage, ShardRefusal> {
        if resume.is_some_and(|resume| !page.keys.contains(&resume.key.0)) {
            return Err(ShardWhy::Malformed.into());
        }
        let children = self.images.iter().flatten();
        let children = children.map(|image| Child::new(Box::new(image.iter()), SeqNo::MAX));
        let merge = MergingIterator::new(children.collect());
        let limit = page.room.limit;
        let end = match direction {
            Direction::Forward => self.scan_forward(merge, &mut page, resume)?,
            Direction::Backward => self.scan_backward(merge, &mut page, resume)?,
        };
        let records = page.records;
        let end = match end {
            _ if self.sabotage.no_resume() => PageEnd::Finished,
            PageEnd::At(_) if !records.is_empty() => PageEnd::AfterLast,
            PageEnd::At(resume) if resume.key.0.len() + ANSWER_BYTES > limit => {
                return Err(ShardRefusal::at(ShardWhy::TooLarge, limit as u64));
            }
            end => end,
        };
        Ok(ShardMessage::Page { records, end })
    }

    fn scan_forward(
        &self,
        mut merge: MergingIterator,
        page: &mut Page<'_>,
        resume: Option<&ResumeAt>,
    ) -> Result<PageEnd, ShardRefusal> {
        // The key whose remaining versions are shadowed.
        let mut decided: Option<Vec<u8>> = None;
        merge.seek(&forward_target(page.keys, resume));
        let mut steps = 0;
        while merge.valid() {
            let Some(KeyRef { user_key, seq, kind }) = KeyRef::decode(merge.key()) else {
                return Err(ShardWhy::BadImage.into());
            };
            if page.keys.end.as_deref().is_some_and(|end| user_key >= end) {
                return Ok(PageEnd::Finished);
            }
            let is_decided = decided.as_deref() == Some(user_key);
            if steps == STEPS_MAX {
                let seq = if is_decided { None } else { Some(seq) };
                return Ok(PageEnd::At(ResumeAt { key: user_key.to_vec().into(), seq }));
            }
            steps += 1;
            if !is_decided && seq <= self.snapshot {
                if !self.put_record(page, (user_key, seq, kind), merge.value())? {
                    return Ok(PageEnd::AfterLast);
                }
                if kind != Kind::Merge {
                    decided = Some(user_key.to_vec());
                }
            }
            merge.next();
        }
        merge.status().map_err(|error| damaged(&error))?;
        Ok(PageEnd::Finished)
    }

    /// Adds a record to a page. Returns false if it has no room.
    fn put_record(
        &self,
        page: &mut Page<'_>,
        record: (&[u8], SeqNo, Kind),
        value: &[u8],
    ) -> Result<bool, ShardRefusal> {
        let (key, seq, kind) = record;
        let bytes = VERSION_BYTES + key.len() + value.len();
        if value.len() <= self.inline_max as usize && page.room.take(bytes) {
            let value = StoredValue::Inline(value.to_vec().into());
            let version = Version { seq, kind, value };
            page.records.push(PageRecord { key: key.to_vec().into(), version });
            return Ok(true);
        }
        // The merged cursor does not say which image has the record, so the record is searched for
        // in the images.
        let within: Vec<u32> = (0..self.images.len() as u32).collect();
        let (snapshot, floor) = (seq, seq);
        let ask = Search { key, floor, snapshot, within: &within, key_bytes: key.len() };
        let records = &mut page.records;
        let end = self.search(&ask, &mut page.room, &mut |version| {
            records.push(PageRecord { key: key.to_vec().into(), version });
        })?;
        Ok(matches!(end, SearchEnd::Whole))
    }

    fn scan_backward(
        &self,
        mut merge: MergingIterator,
        page: &mut Page<'_>,
        resume: Option<&ResumeAt>,
    ) -> Result<PageEnd, ShardRefusal> {
        let within: Vec<u32> = (0..self.images.len() as u32).collect();
        let mut steps = 0;
        // The key whose versions the previous page could not finish.
        let mut next = resume.map(|resume| (resume.key.0.to_vec(), resume.seq));
        match (&next, &page.keys.end) {
            (Some((key, None)), _) => seek_before(&mut merge, key),
            (Some(_), _) => {}
            (None, Some(end)) => seek_before(&mut merge, end),
            (None, None) => merge.seek_to_last(),
        }
        loop {
            let (key, seq) = match next.take() {
                Some((key, Some(seq))) => (key, seq.min(self.snapshot)),
                _ if merge.valid() => (key::user_key(merge.key()).to_vec(), self.snapshot),
                _ => break,
            };
            if key < page.keys.start {
                return Ok(PageEnd::Finished);
            }
            let (snapshot, key_bytes) = (seq, key.len());
            let ask =
                Search { key: &key, floor: SeqNo::ZERO, snapshot, within: &within, key_bytes };
            let before = page.records.len();
            let records = &mut page.records;
            let end = self.search(&ask, &mut page.room, &mut |version| {
                records.push(PageRecord { key: key.clone().into(), version });
            })?;
            if matches!(end, SearchEnd::Cut(_)) {
                return Ok(PageEnd::AfterLast);
            }
            steps += 1 + page.records.len() - before;
            if steps >= STEPS_MAX {
                return Ok(PageEnd::At(ResumeAt { key: key.into(), seq: None }));
            }
            seek_before(&mut merge, &key);
        }
        merge.status().map_err(|error| damaged(&error))?;
        Ok(PageEnd::Finished)
    }
}

/// A record that a search has found.
#[derive(Clone, Copy)]
struct RecordAt {
    place: RecordPlace,
    /// Whether the answer has the place in addition to the value.
    is_placed: bool,
}

/// The versions of one key that a search wants.
struct Search<'a> {
    key: &'a [u8],
    floor: SeqNo,
    snapshot: SeqNo,
    within: &'a [u32],
    /// Bytes that the key takes in each version of the answer.
    key_bytes: usize,
}

/// The first internal key of a page that goes forward.
fn forward_target(keys: &KeyRange, resume: Option<&ResumeAt>) -> Vec<u8> {
    match resume {
        None => key::encode(&keys.start, SeqNo::MAX, Kind::SEEK),
        Some(ResumeAt { key, seq: Some(seq) }) => key::encode(&key.0, *seq, Kind::SEEK),
        // The key with an appended zero byte is the smallest key after it.
        Some(ResumeAt { key, seq: None }) => {
            key::encode(&[&key.0[..], &[0]].concat(), SeqNo::MAX, Kind::SEEK)
        }
    }
}

/// Moves `merge` to the last record before all versions of a key.
fn seek_before(merge: &mut MergingIterator, key: &[u8]) {
    merge.seek_for_prev(&key::encode(key, SeqNo::MAX, Kind::SEEK));
}

#[cfg(test)]
mod tests;
