//! Look-ups and scans of shards at nodes, compared with searches of their images.

use std::collections::BTreeMap;

use archipelago_base::SeqNo;
use archipelago_base::random::Rng;
use archipelago_engine::key::{self, KeyRange, KeyRef};
use archipelago_engine::remote::{
    AwayError, KeyAsk, LookupAnswer, LookupAsk, ResumeAt, ScanAsk, ScanDirection, ShardId,
    ShardStore, StoreNode,
};

use super::sample::{Sample, expected, key_of, versions};
use super::world::{SECOND, World};

pub(crate) fn ask<'a>(
    node: StoreNode,
    ids: &[ShardId],
    keys: &'a [Vec<u8>],
    snapshot: SeqNo,
) -> LookupAsk<'a> {
    let within: Vec<u32> = (0..ids.len() as u32).collect();
    let key = |key: &'a Vec<u8>| KeyAsk { key, floor: SeqNo(0), within: within.clone() };
    let keys = keys.iter().map(key).collect();
    let (shards, time_left) = (ids.to_vec(), 10 * SECOND);
    LookupAsk { node, shards, keys, snapshot, keys_only: false, time_left }
}

pub(crate) fn lookup_one(
    world: &World,
    node: StoreNode,
    id: ShardId,
) -> Result<LookupAnswer, AwayError> {
    let keys = [key_of(1)];
    world.store.lookup(&[ask(node, &[id], &keys, SeqNo::MAX)]).remove(0)
}

/// The kind of a scan.
struct Wanted {
    direction: ScanDirection,
    snapshot: SeqNo,
    bytes_max: usize,
}

/// All records of a scan, page by page.
fn scan_all(
    world: &World,
    node: StoreNode,
    ids: &[ShardId],
    keys: &KeyRange,
    wanted: &Wanted,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut records, mut resume): (Vec<_>, Option<ResumeAt>) = (Vec::new(), None);
    let Wanted { direction, snapshot, bytes_max } = *wanted;
    loop {
        let ask = ScanAsk {
            node,
            shards: ids,
            keys,
            resume: resume.as_ref(),
            direction,
            snapshot,
            bytes_max,
            keys_only: false,
            time_left: 10 * SECOND,
        };
        let page = world.store.scan(&ask).unwrap();
        for record in page.records {
            records.push((record.key, record.value.as_ref().to_vec()));
        }
        match page.resume {
            Some(next) => resume = Some(next),
            None => return records,
        }
    }
}

/// Compares all reads of some shards at one node with a search of their images.
pub(crate) fn reads_are_right(
    world: &World,
    rng: &mut Rng,
    node: StoreNode,
    samples: &[&Sample],
    keys: u64,
) {
    let ids: Vec<ShardId> = samples.iter().map(|sample| sample.id).collect();
    for round in 0..6 {
        let all: Vec<Vec<u8>> = (0..keys + 1).map(key_of).collect();
        let snapshot = if round == 0 { SeqNo::MAX } else { SeqNo(rng.u64(10_000..50_000)) };
        let wanted: Vec<Vec<u8>> = match round % 2 {
            0 => all,
            _ => vec![key_of(rng.u64(0..keys))],
        };
        let mut ask = ask(node, &ids, &wanted, snapshot);
        for key in &mut ask.keys {
            key.floor = SeqNo(if rng.bool() { 0 } else { rng.u64(0..40_000) });
        }
        let answer = world.store.lookup(std::slice::from_ref(&ask)).remove(0).unwrap();
        for (number, key) in ask.keys.iter().enumerate() {
            let right = expected(samples, key.key, snapshot, key.floor);
            assert_eq!(versions(&answer, number), right, "{:?} at {snapshot}", key.key);
        }
        let range = KeyRange { start: key_of(rng.u64(0..keys)), end: Some(key_of(keys - 1)) };
        if range.is_empty() {
            continue;
        }
        let bytes_max = rng.usize(1..20_000);
        let mut forward = Vec::new();
        let mut number_keys = BTreeMap::new();
        for key in (0..keys).map(key_of).filter(|key| range.contains(key)) {
            let found = expected(samples, &key, snapshot, SeqNo(0));
            let records: Vec<_> = found
                .into_iter()
                .map(|(seq, kind, value)| (key::encode(&key, SeqNo(seq), kind), value))
                .collect();
            forward.extend(records.clone());
            number_keys.insert(key, records);
        }
        let backward: Vec<_> = number_keys.into_values().rev().flatten().collect();
        for (direction, right) in
            [(ScanDirection::Forward, forward), (ScanDirection::Backward, backward)]
        {
            let wanted = Wanted { direction, snapshot, bytes_max };
            let records = scan_all(world, node, &ids, &range, &wanted);
            let shown = |records: &[(Vec<u8>, Vec<u8>)]| -> Vec<_> {
                let key = |(key, value): &(Vec<u8>, Vec<u8>)| {
                    let KeyRef { user_key, seq, kind } = KeyRef::decode(key).unwrap();
                    (user_key.to_vec(), seq, kind, value.len())
                };
                records.iter().map(key).collect()
            };
            assert_eq!(shown(&records), shown(&right), "{direction:?}");
            assert!(records == right, "values differ");
        }
    }
}
