//! Searches of images: what a node answers to look-ups and scans.

use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_engine::iter::InternalIterator;
use archipelago_engine::key::{KeyRef, Kind};
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::SealedImage;
use archipelago_engine::pinned::PinnedSlice;
use archipelago_engine::remote::{
    KeyVersions, LookupAnswer, LookupAsk, ResumeAt, ScanAsk, ScanDirection, ScanPage, ScanRecord,
    ShardVersion,
};

/// The answer to a look-up in these images, which are in the order of its shards.
pub(super) fn answer(images: &[Arc<SealedImage>], ask: &LookupAsk<'_>) -> LookupAnswer {
    let keys = ask.keys.iter().map(|key| {
        let mut versions: Vec<ShardVersion> = Vec::new();
        let lookup = Lookup::new(key.key, ask.snapshot);
        let mut is_over = false;
        for &at in &key.within {
            if is_over {
                break;
            }
            let visited = images[at as usize].lookup(&lookup, |found| {
                is_over |= found.seq < key.floor;
                if is_over {
                    return ControlFlow::Break(());
                }
                let value = cut(found.kind, found.pin(), ask.keys_only);
                versions.push(ShardVersion { seq: found.seq, kind: found.kind, value });
                is_over = found.kind != Kind::Merge;
                if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            visited.unwrap();
        }
        KeyVersions { versions }
    });
    LookupAnswer { keys: keys.collect() }
}

/// All records of `images` from the place on at which the scan goes on.
pub(super) fn records(images: &[Arc<SealedImage>], ask: &ScanAsk<'_>) -> Vec<ScanRecord> {
    if let Some(resume) = ask.resume {
        assert!(ask.keys.contains(&resume.key), "a place outside of the scan");
    }
    let mut records = visible(images, ask);
    if let Some(resume) = ask.resume {
        records.retain(|record| is_at_or_after(record, resume, ask.direction));
    }
    records
}

/// A page with the first `count` of these records. If `count` is 0, the page may have none.
pub(super) fn page(mut records: Vec<ScanRecord>, ask: &ScanAsk<'_>, count: usize) -> ScanPage {
    let place = |record: &ScanRecord, exactly: bool| {
        let KeyRef { user_key, seq, .. } = KeyRef::decode(&record.key).unwrap();
        ResumeAt { key: user_key.to_vec(), seq: exactly.then_some(seq) }
    };
    if count == 0 && !records.is_empty() {
        // The node has visited enough records that no reader sees.
        let here = place(&records[0], true);
        if ask.resume != Some(&here) {
            return ScanPage { records: Vec::new(), resume: Some(here) };
        }
    }
    let rest = records.split_off(count.max(1).min(records.len()));
    let user_key = |record: &ScanRecord| KeyRef::decode(&record.key).unwrap().user_key.to_vec();
    let resume = match (records.last(), rest.first()) {
        (Some(last), Some(next)) if user_key(last) == user_key(next) => Some(place(next, true)),
        (Some(last), Some(_)) => Some(place(last, false)),
        _ => None,
    };
    ScanPage { records, resume }
}

/// The value as an answer for keys only may have it.
fn cut(kind: Kind, value: PinnedSlice, keys_only: bool) -> PinnedSlice {
    match (keys_only, kind) {
        (false, _) => value,
        (true, Kind::PutExpiring) => PinnedSlice::owned(value[..8].to_vec()),
        (true, _) => PinnedSlice::owned(Vec::new()),
    }
}

/// All records of `images` that a page of the scan may have, in the order of the scan.
fn visible(images: &[Arc<SealedImage>], ask: &ScanAsk<'_>) -> Vec<ScanRecord> {
    let mut all: Vec<ScanRecord> = Vec::new();
    for image in images {
        let mut iter = image.iter();
        iter.seek_to_first();
        while iter.valid() {
            let record = KeyRef::decode(iter.key()).unwrap();
            if ask.keys.contains(record.user_key) && record.seq <= ask.snapshot {
                let value = PinnedSlice::owned(iter.value().to_vec());
                let value = cut(record.kind, value, ask.keys_only);
                all.push(ScanRecord { key: iter.key().to_vec(), value });
            }
            iter.next();
        }
        iter.status().unwrap();
    }
    all.sort_by(|a, b| archipelago_engine::key::compare(&a.key, &b.key));
    let mut decided: Option<Vec<u8>> = None;
    all.retain(|record| {
        let KeyRef { user_key, kind, .. } = KeyRef::decode(&record.key).unwrap();
        let is_decided = decided.as_deref() == Some(user_key);
        if !is_decided && kind != Kind::Merge {
            decided = Some(user_key.to_vec());
        }
        !is_decided
    });
    if ask.direction == ScanDirection::Backward {
        all.reverse();
        let user_key = |record: &ScanRecord| KeyRef::decode(&record.key).unwrap().user_key.to_vec();
        all.chunk_by_mut(|a, b| user_key(a) == user_key(b)).for_each(<[ScanRecord]>::reverse);
    }
    all
}

/// Whether a record comes at or after a place, in the order of the scan.
fn is_at_or_after(record: &ScanRecord, place: &ResumeAt, direction: ScanDirection) -> bool {
    let KeyRef { user_key, seq, .. } = KeyRef::decode(&record.key).unwrap();
    let order = match direction {
        ScanDirection::Forward => user_key.cmp(&place.key),
        ScanDirection::Backward => place.key.as_slice().cmp(user_key),
    };
    order.is_gt() || order.is_eq() && place.seq.is_some_and(|at| seq <= at)
}
