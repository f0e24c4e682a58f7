//! A table agrees with a sorted map, under all settings.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::*;
use crate::iter::InternalIterator;

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![Kind::Put, Kind::Delete, Kind::Merge, Kind::PutExpiring])
}

fn user_keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop::sample::select(vec![0u8, b'a', b'b', 0xff]), 0..6),
        (0u32..200).prop_map(|n| format!("user{n:06}").into_bytes()),
        Just(vec![b'x'; 300]),
    ]
}

fn records() -> impl Strategy<Value = Records> {
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        (0usize..600).prop_map(|len| vec![b'v'; len]),
    ];
    prop::collection::btree_map(
        (user_keys(), (1u64..60).prop_map(Reverse)),
        (kinds(), value),
        1..300,
    )
}

fn settings() -> impl Strategy<Value = TableOptions> {
    let compression =
        prop::sample::select(vec![Compression::None, Compression::Lz4, Compression::Zstd]);
    (
        compression,
        prop::sample::select(vec![64usize, 256, 4096]),
        1usize..20,
        0u32..14,
        any::<bool>(),
    )
        .prop_map(|(compression, block_bytes, restart_interval, bits, two_levels)| {
            TableOptions {
                block_bytes,
                compression,
                restart_interval,
                bloom_bits_per_key: bits,
                pinned_bytes_max: if two_levels { 0 } else { 1 << 20 },
                partition_bytes: 64,
                ..TableOptions::default()
            }
        })
}

type Flat = Vec<(Vec<u8>, Vec<u8>)>;

fn flat(records: &Records) -> Flat {
    records
        .iter()
        .map(|((user_key, seq), (kind, value))| {
            (key::encode(user_key, SeqNo(seq.0), *kind), value.clone())
        })
        .collect()
}

fn here(iter: &TableIter) -> Option<(Vec<u8>, Vec<u8>)> {
    iter.status().unwrap();
    iter.valid().then(|| (iter.key().to_vec(), iter.value().to_vec()))
}

/// Moves a cursor and a position in the flat list in parallel.
fn walk(iter: &mut TableIter, flat: &Flat, moves: &[(u8, Vec<u8>, u64)]) {
    let mut at: Option<usize> = None;
    for (what, user_key, seq) in moves {
        let target = key::encode(user_key, SeqNo(*seq), Kind::SEEK);
        let before = flat.partition_point(|(key, _)| key::compare(key, &target).is_lt());
        match (what % 8, at) {
            (0, _) => {
                iter.seek_to_first();
                at = Some(0);
            }
            (1, _) => {
                iter.seek_to_last();
                at = flat.len().checked_sub(1);
            }
            (2, _) => {
                iter.seek(&target);
                at = Some(before);
            }
            (3, _) => {
                iter.seek_for_prev(&target);
                at = before.checked_sub(1);
            }
            (4 | 5, Some(position)) => {
                iter.next();
                at = Some(position + 1);
            }
            (_, Some(position)) => {
                iter.prev();
                at = position.checked_sub(1);
            }
            _ => {}
        }
        at = at.filter(|&position| position < flat.len());
        assert_eq!(here(iter), at.map(|position| flat[position].clone()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn look_ups_see_every_visible_version(
        records in records(),
        options in settings(),
        asked in prop::collection::vec((user_keys(), 0u64..70), 0..30),
    ) {
        let (bytes, meta) = build(&records, &[], options);
        let table = open(&bytes, &meta);
        table.verify(context()).unwrap();
        let known = records.keys().map(|(user_key, seq)| (user_key.clone(), seq.0));
        for (user_key, snapshot) in known.chain(asked) {
            for snapshot in [snapshot, snapshot.saturating_sub(1), SeqNo::MAX.0] {
                let expected = expected_versions(&records, &user_key, snapshot);
                prop_assert_eq!(versions(&table, &user_key, snapshot), expected);
            }
        }
    }

    #[test]
    fn cursors_walk_like_a_list(
        records in records(),
        options in settings(),
        moves in prop::collection::vec((any::<u8>(), user_keys(), 0u64..70), 1..80),
        job in any::<bool>(),
    ) {
        let (bytes, meta) = build(&records, &[], options);
        let table = open(&bytes, &meta);
        let read = match job {
            true => TableReadOptions::job(context(), 700),
            false => TableReadOptions::foreground(),
        };
        let flat = flat(&records);
        walk(&mut table.iter(read), &flat, &moves);
        let mut iter = table.iter(read);
        iter.seek_to_first();
        for record in &flat {
            prop_assert_eq!(here(&iter), Some(record.clone()));
            iter.next();
        }
        prop_assert!(!iter.valid());
        iter.seek_to_last();
        for record in flat.iter().rev() {
            prop_assert_eq!(here(&iter), Some(record.clone()));
            iter.prev();
        }
        prop_assert!(!iter.valid());
        iter.status().unwrap();
    }

    #[test]
    fn batches_say_what_single_look_ups_say(
        records in records(),
        options in settings(),
        asked in prop::collection::btree_set(user_keys(), 0..40),
        snapshot in 0u64..70,
    ) {
        let (bytes, meta) = build(&records, &[], options);
        let table = open(&bytes, &meta);
        let asked: std::collections::BTreeSet<_> =
            asked.into_iter().chain(records.keys().map(|(key, _)| key.clone())).collect();
        let lookups: Vec<_> = asked.iter().map(|key| Lookup::new(key, SeqNo(snapshot))).collect();
        let mut found = vec![Vec::new(); lookups.len()];
        table
            .multi_lookup(&lookups, &TableReadOptions::foreground(), &mut |index, version| {
                found[index].push((version.seq.0, version.kind, version.value.to_vec()));
                Visit::Continue(())
            })
            .unwrap();
        for (user_key, found) in asked.iter().zip(found) {
            prop_assert_eq!(found, expected_versions(&records, user_key, snapshot));
        }
    }
}
