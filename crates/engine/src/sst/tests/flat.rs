//! Look-ups through the Flat Index Cache answer as the blocks of the table do, with fewer reads.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use archipelago_base::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::cache::{BlockKind, CacheStats};
use crate::value_ref::Reference;

/// The results of [`lookup_references`] for each look-up.
type Answers = Vec<Option<(u64, Option<Reference>)>>;

fn with_pieces() -> TableReadOptions {
    TableReadOptions::foreground()
}

fn without_pieces() -> TableReadOptions {
    TableReadOptions { flat_index: false, ..TableReadOptions::foreground() }
}

fn ask(
    table: &TableReader,
    wanted: &[(Vec<u8>, u64)],
    options: &TableReadOptions,
) -> Result<Answers> {
    let lookups: Vec<Lookup<'_>> =
        wanted.iter().map(|(user_key, seq)| Lookup::new(user_key, SeqNo(*seq))).collect();
    let mut answers: Answers = vec![None; lookups.len()];
    lookup_references(table, &lookups, options, &mut |position, seq, reference| {
        assert_eq!(answers[position], None, "a key is visited once");
        answers[position] = Some((seq.0, reference.copied()));
    })?;
    Ok(answers)
}

fn stats(table: &TableReader) -> CacheStats {
    table.cache.stats(BlockKind::Flat)
}

fn reads(file: &VecFile) -> u64 {
    file.reads.load(Ordering::Relaxed)
}

fn stored(reference: &Reference) -> Vec<u8> {
    let mut out = Vec::new();
    reference.encode(&mut out);
    out
}

/// Records of which every third is inline; the others refer to value files.
fn mixed(count: u64) -> Records {
    let mut records = numbered(count);
    for (n, (kind, value)) in (0..).zip(records.values_mut()) {
        if n % 3 > 0 {
            let reference = Reference {
                file_no: FileNo(4 + u64::from(n % 5)),
                offset: (n % 2 == 0).then_some(u64::from(n) * 700),
                stored_bytes: n,
                raw_bytes: n + 9,
                expiry_unix_ms: (n % 7 == 0).then_some(u64::from(n)),
            };
            (*kind, *value) = (Kind::Indirect, stored(&reference));
        }
    }
    records
}

fn keys_of(records: &Records) -> Vec<(Vec<u8>, u64)> {
    records.keys().map(|(user_key, seq)| (user_key.clone(), seq.0)).collect()
}

fn references() -> impl Strategy<Value = (Kind, Vec<u8>)> {
    let hint = prop::option::of(0u64..1 << 40);
    let expiry = prop::option::of(any::<u64>());
    (1u64..9, hint, 0u32..5000, 0u32..5000, expiry).prop_map(|parts| {
        let (no, offset, stored_bytes, saved, expiry_unix_ms) = parts;
        let raw_bytes = stored_bytes + saved;
        let file_no = FileNo(no);
        let reference = Reference { file_no, offset, stored_bytes, raw_bytes, expiry_unix_ms };
        (Kind::Indirect, stored(&reference))
    })
}

fn inline() -> impl Strategy<Value = (Kind, Vec<u8>)> {
    let kinds = prop::sample::select(vec![Kind::Put, Kind::Delete, Kind::Merge, Kind::PutExpiring]);
    let len = prop_oneof![8usize..40, 8usize..3000];
    (kinds, len).prop_map(|(kind, len)| (kind, vec![b'v'; len]))
}

/// Keys that are shorter than a head, that share heads, and that have no common prefix.
fn user_keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop::sample::select(vec![0u8, b'a', 0xff]), 0..11),
        (0u32..40).prop_map(|n| format!("user{n:06}").into_bytes()),
        Just(vec![b'x'; 300]),
    ]
}

fn records() -> impl Strategy<Value = Records> {
    let record = prop_oneof![references(), references(), inline()];
    let at = (user_keys(), (1u64..60).prop_map(Reverse));
    prop::collection::btree_map(at, record, 1..300)
}

fn settings() -> impl Strategy<Value = TableOptions> {
    let compression = prop::sample::select(vec![Compression::None, Compression::Lz4]);
    (compression, prop::sample::select(vec![64usize, 256, 4096]), any::<bool>()).prop_map(
        |(compression, block_bytes, two_levels)| TableOptions {
            block_bytes,
            compression,
            pinned_bytes_max: if two_levels { 0 } else { 1 << 20 },
            partition_bytes: 200,
            ..TableOptions::default()
        },
    )
}

proptest! {
    #[test]
    fn pieces_answer_as_the_table_does(
        records in records(),
        options in settings(),
        cache_bytes in prop::sample::select(vec![0u64, 3000, 40_000, 8 << 20]),
        asked in prop::collection::vec((user_keys(), 0u64..70), 0..60),
        forget_every in 40usize..300,
    ) {
        let (bytes, meta) = build(&records, &[], options);
        let (table, _) = open_with(&bytes, Some(&meta), cache_bytes).unwrap();
        let mut wanted: Vec<(Vec<u8>, u64)> = keys_of(&records);
        wanted.extend(asked);
        wanted.sort_by(|one, other| one.0.cmp(&other.0));
        for _ in 0..2 {
            let answers = ask(&table, &wanted, &with_pieces()).unwrap();
            for ((user_key, seq), answer) in wanted.iter().zip(&answers) {
                let newest = expected_versions(&records, user_key, *seq).into_iter().next();
                let Some((at, kind, value)) = newest else {
                    prop_assert_eq!(answer, &None);
                    continue;
                };
                let reference = (kind == Kind::Indirect).then(|| Reference::decode(&value).unwrap());
                match answer {
                    Some(found) if found.0 == at => prop_assert_eq!(found.1, reference),
                    Some(found) => prop_assert!(found.0 < at && reference.is_none()),
                    None => prop_assert!(reference.is_none()),
                }
            }
            // Point reads see every version, whether a piece, a block or both are cached.
            for (at, (user_key, seq)) in wanted.iter().enumerate() {
                if at % forget_every == 0 {
                    table.forget_blocks();
                    ask(&table, &wanted[at / 2..], &with_pieces()).unwrap();
                }
                let expected = expected_versions(&records, user_key, *seq);
                prop_assert_eq!(versions(&table, user_key, *seq), expected);
            }
            table.forget_blocks();
            ask(&table, &wanted, &with_pieces()).unwrap();
            let lookups: Vec<Lookup<'_>> =
                wanted.iter().map(|(user_key, seq)| Lookup::new(user_key, SeqNo(*seq))).collect();
            let mut found = vec![Vec::new(); wanted.len()];
            let mut visit = |position: usize, at: &crate::lookup::Found<'_>| {
                found[position].push((at.seq.0, at.kind, at.value.to_vec()));
                Visit::Continue(())
            };
            table.multi_lookup(&lookups, &with_pieces(), &mut visit).unwrap();
            for ((user_key, seq), found) in wanted.iter().zip(found) {
                prop_assert_eq!(found, expected_versions(&records, user_key, *seq));
            }
        }
        table.forget_blocks();
        if table.index.is_top() {
            table.cache.clear();
        }
        prop_assert_eq!(table.cache.usage_bytes(), 0);
    }
}

#[test]
fn cached_pieces_answer_without_a_read() {
    for options in [plain(), tiny(Compression::None)] {
        let records = mixed(6000);
        let (bytes, meta) = build(&records, &[], options);
        let wanted = keys_of(&records);
        let (table, file) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
        let by_blocks = ask(&table, &wanted, &without_pieces()).unwrap();
        let reads_by_blocks = reads(&file);
        assert_eq!(stats(&table), CacheStats::default());

        let (table, file) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
        let references =
            |of: Answers| of.into_iter().filter(|at| at.is_some_and(|found| found.1.is_some()));
        let by_pieces = ask(&table, &wanted, &with_pieces()).unwrap();
        assert!(references(by_pieces.clone()).eq(references(by_blocks)));
        assert!(stats(&table).inserts >= meta.size_bytes / (70 << 10), "{:?}", stats(&table));
        assert_eq!(table.cache.stats(BlockKind::Data).inserts, 0);
        let cold = reads(&file);
        assert!(cold * 2 < reads_by_blocks, "{cold} reads and {reads_by_blocks} by blocks");
        assert_eq!(ask(&table, &wanted, &with_pieces()).unwrap(), by_pieces);
        assert_eq!(reads(&file), cold);
    }
}

#[test]
fn point_read_of_a_reference_needs_no_data_block() {
    let records = mixed(3000);
    let (bytes, meta) = build(&records, &[], plain());
    let (table, file) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
    ask(&table, &keys_of(&records), &with_pieces()).unwrap();
    let newest = |user_key: &[u8]| {
        let mut found = None;
        let lookup = Lookup::new(user_key, SeqNo::MAX);
        let mut visit = |at: &crate::lookup::Found<'_>| {
            found = Some((at.seq.0, at.kind, at.value.to_vec()));
            Visit::Break(())
        };
        table.lookup(&lookup, &with_pieces(), &mut visit).unwrap();
        found.unwrap()
    };
    let before = reads(&file);
    for ((user_key, seq), (kind, value)) in &records {
        if *kind == Kind::Indirect {
            assert_eq!(newest(user_key), (seq.0, *kind, value.clone()));
        }
    }
    assert_eq!(reads(&file), before);
    let lookups: Vec<Lookup<'_>> = records
        .iter()
        .filter(|(_, (kind, _))| *kind == Kind::Indirect)
        .map(|((user_key, _), _)| Lookup::new(user_key, SeqNo::MAX))
        .collect();
    let mut found = 0;
    let mut visit = |position: usize, at: &crate::lookup::Found<'_>| {
        let key = (lookups[position].key.to_vec(), Reverse(at.seq.0));
        assert_eq!(records[&key], (at.kind, at.value.to_vec()));
        found += 1;
        Visit::Break(())
    };
    table.multi_lookup(&lookups, &with_pieces(), &mut visit).unwrap();
    assert_eq!(found, lookups.len());
    assert_eq!(reads(&file), before);
    assert_eq!(newest(b"key00000003"), (4, Kind::Put, b"value 3".to_vec()));
    assert_eq!(reads(&file), before + 1);
}

#[test]
fn piece_is_built_only_if_enough_blocks_are_wanted() {
    let records = mixed(3000);
    let (bytes, meta) = build(&records, &[], plain());
    let (table, file) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
    let before = reads(&file);
    let wanted = [(b"key00000100".to_vec(), 101)];
    assert!(ask(&table, &wanted, &with_pieces()).unwrap()[0].is_some());
    assert_eq!((stats(&table).inserts, reads(&file)), (0, before + 1));
}

#[test]
fn table_without_references_uses_no_piece() {
    let records = numbered(500);
    let (bytes, meta) = build(&records, &[], plain());
    let table = open(&bytes, &meta);
    let answers = ask(&table, &keys_of(&records), &with_pieces()).unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Some((_, None)))));
    assert_eq!(versions(&table, b"key00000042", 1000).len(), 1);
    assert_eq!(stats(&table), CacheStats::default());
}

#[test]
fn cache_without_capacity_leaves_out_pieces() {
    let records = mixed(500);
    let (bytes, meta) = build(&records, &[], plain());
    let (table, _) = open_with(&bytes, Some(&meta), 0).unwrap();
    let wanted = keys_of(&records);
    let by_blocks = ask(&table, &wanted, &without_pieces()).unwrap();
    assert_eq!(ask(&table, &wanted, &with_pieces()).unwrap(), by_blocks);
    assert_eq!((stats(&table).inserts, table.cache.usage_bytes()), (0, 0));
}

#[test]
fn damaged_block_is_reported_while_pieces_are_built() {
    let records = mixed(500);
    let (bytes, meta) = build(&records, &[], plain());
    bytes.lock()[5000] ^= 1;
    for options in [with_pieces(), without_pieces()] {
        let table = open(&bytes, &meta);
        let error = ask(&table, &keys_of(&records), &options).expect_err("a byte was flipped");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(file_named(&path(), &error), "{error}");
        assert_eq!(stats(&table).inserts, 0);
    }
}

#[test]
fn versions_of_a_key_in_two_pieces_stay_in_order() {
    let reference = |no: u64| Reference {
        file_no: FileNo(no),
        offset: None,
        stored_bytes: 600,
        raw_bytes: 600,
        expiry_unix_ms: None,
    };
    for options in [plain(), tiny(Compression::None)] {
        let mut records = Records::new();
        for seq in (1..400u64).rev() {
            let record = match seq % 5 {
                0 => (Kind::Put, vec![b'v'; 1500]),
                _ => (Kind::Indirect, stored(&reference(seq))),
            };
            records.insert((b"key".to_vec(), Reverse(seq)), record);
        }
        let (bytes, meta) = build(&records, &[], options);
        assert!(meta.size_bytes > 100 << 10, "more than one piece");
        let table = open(&bytes, &meta);
        ask(&table, &keys_of(&records), &with_pieces()).unwrap();
        assert!(stats(&table).inserts > 1);
        for snapshot in 1..400 {
            let expected = expected_versions(&records, b"key", snapshot);
            assert_eq!(versions(&table, b"key", snapshot), expected);
        }
    }
}
