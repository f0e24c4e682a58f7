//! Damaged and foreign bytes: always an error that names the file, never wrong data, never a panic.

use archipelago_base::ErrorKind;
use archipelago_base::random::Rng;

use super::*;
use crate::iter::InternalIterator;
use crate::sst::format::{FOOTER_BYTES, Footer, Layout, seal_block};

fn sample() -> (Records, Vec<RangeTombstone>) {
    let mut records = numbered(24);
    for seq in 100..106 {
        let key = (b"key00000012".to_vec(), std::cmp::Reverse(seq));
        records.insert(key, (Kind::Merge, vec![seq as u8; 20]));
    }
    let tombstone = |start: &str, end: &str, seq| RangeTombstone {
        start: start.as_bytes().into(),
        end: end.as_bytes().into(),
        seq: SeqNo(seq),
    };
    (records, vec![tombstone("a", "c", 5), tombstone("b", "key00000003", 70)])
}

/// Reads everything in every way. Results must be correct; the first error ends the reading.
fn read_all(table: &Arc<TableReader>, records: &Records) -> Result<()> {
    let mut expected: Vec<_> = records
        .iter()
        .map(|((user_key, seq), (kind, value))| {
            (key::encode(user_key, SeqNo(seq.0), *kind), value.clone())
        })
        .collect();
    let mut iter = table.iter(TableReadOptions::foreground());
    let mut walk = |iter: &mut TableIter, forward: bool| {
        for (key, value) in &expected {
            if !iter.valid() {
                break;
            }
            assert_eq!((iter.key(), iter.value()), (key.as_slice(), value.as_slice()));
            if forward { iter.next() } else { iter.prev() }
        }
        expected.reverse();
        iter.status()
    };
    iter.seek_to_first();
    let forward = walk(&mut iter, true);
    iter.seek_to_last();
    let backward = walk(&mut iter, false);
    let mut outcome = forward.and(backward);
    for (user_key, _) in records.keys() {
        let mut found = Vec::new();
        let lookup = Lookup::new(user_key, SeqNo::MAX);
        let looked = table.lookup(&lookup, &TableReadOptions::foreground(), &mut |version| {
            found.push((version.seq.0, version.kind, version.value.to_vec()));
            Visit::Continue(())
        });
        let expected = expected_versions(records, user_key, SeqNo::MAX.0);
        assert!(expected.starts_with(&found), "wrong data");
        assert!(looked.is_err() || found == expected, "lost data");
        outcome = outcome.and(looked);
    }
    outcome
}

#[test]
fn every_flipped_byte_is_found_and_named() {
    let (records, tombstones) = sample();
    for options in [tiny(Compression::Lz4), TableOptions { bloom_bits_per_key: 4, ..plain() }] {
        let (bytes, meta) = build(&records, &tombstones, options);
        let whole = bytes.lock().clone();
        for (at, &before) in whole.iter().enumerate() {
            bytes.lock()[at] ^= 1 << (at % 8);
            // With and without the metadata of the manifest.
            for meta in [Some(&meta), None] {
                let outcome = open_with(&bytes, meta, 1 << 20).and_then(|(table, _)| {
                    let verified = table.verify(context());
                    let read = read_all(&table, &records);
                    assert!(read.is_ok() || verified.is_err());
                    verified
                });
                let error = outcome.expect_err("a flipped byte goes unnoticed");
                assert!(file_named(&path(), &error), "{error}");
                let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
                assert!(kinds.contains(&error.kind()), "{error}");
                assert!(error.kind() != ErrorKind::Corrupt || error.context().contains("offset"));
            }
            bytes.lock()[at] = before;
        }
        open(&bytes, &meta).verify(context()).unwrap();
    }
}

#[test]
fn a_file_that_was_cut_or_swapped_is_refused() {
    let (records, tombstones) = sample();
    let (bytes, meta) = build(&records, &tombstones, plain());
    let whole = bytes.lock().clone();
    for len in [0, 1, FOOTER_BYTES - 1, FOOTER_BYTES, whole.len() / 2, whole.len() - 1] {
        *bytes.lock() = whole[..len].to_vec();
        let error = open_with(&bytes, Some(&meta), 0).expect_err("cut file");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(file_named(&path(), &error));
    }
    *bytes.lock() = [b"more".as_slice(), &whole].concat();
    assert!(open_with(&bytes, None, 0).is_err());
    *bytes.lock() = whole;
    let other = FileMeta { unique_id: [1; 16], ..meta.clone() };
    assert!(open_with(&bytes, Some(&other), 0).is_err());
    let other = FileMeta { checksum: meta.checksum ^ 1, ..meta };
    let (table, _) = open_with(&bytes, Some(&other), 0).unwrap();
    assert!(table.verify(context()).is_err(), "the checksum of the file counts");
}

#[test]
fn another_version_is_unsupported_and_says_so() {
    let (records, _) = sample();
    let (bytes, meta) = build(&records, &[], plain());
    let mut whole = bytes.lock().clone();
    let footer_at = whole.len() - FOOTER_BYTES;
    whole[footer_at + 76] = 9;
    let crc = archipelago_base::checksum::crc(&whole[footer_at..footer_at + 80]);
    whole[footer_at + 80..footer_at + 84].copy_from_slice(&crc.to_le_bytes());
    *bytes.lock() = whole;
    let error = open_with(&bytes, Some(&meta), 0).expect_err("another version");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 9"), "{error}");
}

/// Damages a file and corrects the checksums, as a hostile file would.
fn resealed(whole: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = whole.to_vec();
    let len = out.len();
    let footer =
        Footer::decode(&out[len - FOOTER_BYTES..], &path(), len as u64, Layout::Table).unwrap();
    let blocks = [footer.index, footer.properties, footer.tombstones, footer.filter];
    let first_data = 0..footer.index.offset.min(400) as usize;
    match blocks.get(rng.usize(..6)) {
        Some(handle) if handle.is_some() => {
            let (start, end) =
                (handle.offset as usize, (handle.offset + u64::from(handle.size)) as usize);
            mutate(&mut out[start..end], rng);
            let mut block = out[start..end].to_vec();
            seal_block(&mut block, 0, Compression::None, &footer.unique_id, handle.offset);
            out[start..end + 5].copy_from_slice(&block);
        }
        _ => mutate(&mut out[first_data], rng),
    }
    out
}

fn mutate(bytes: &mut [u8], rng: &mut Rng) {
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..bytes.len());
        bytes[at] = if rng.bool() { rng.u8(..) } else { bytes[at] ^ 1 << rng.u8(..8) };
    }
}

/// Uses every file that opens; nothing may panic.
fn use_all(bytes: &Bytes, keys: &Records) {
    let Ok((table, _)) = open_with(bytes, None, 1 << 20) else { return };
    let _ = table.verify(context());
    let mut iter = table.iter(TableReadOptions::foreground());
    iter.seek_to_first();
    for _ in 0..500 {
        if !iter.valid() {
            break;
        }
        let _ = (iter.key().len(), iter.value().len());
        iter.next();
    }
    iter.seek_to_last();
    for _ in 0..500 {
        if !iter.valid() {
            break;
        }
        iter.prev();
    }
    for (user_key, _) in keys.keys().step_by(7) {
        let lookup = Lookup::new(user_key, SeqNo::MAX);
        let _ =
            table.lookup(&lookup, &TableReadOptions::foreground(), &mut |_| Visit::Continue(()));
        let _ = table.approximate_offset(user_key);
        iter.seek(&key::encode(user_key, SeqNo(3), Kind::SEEK));
    }
    let _ = table.index_keys(5);
    let _ = table.dump(&mut String::new(), 10, TableReadOptions::foreground());
}

#[test]
fn hostile_files_do_not_panic() {
    let (records, tombstones) = sample();
    let mut rng = Rng::with_seed(0xbad);
    for options in [tiny(Compression::None), plain()] {
        let (bytes, _) = build(&records, &tombstones, options);
        let whole = bytes.lock().clone();
        for _ in 0..1500 {
            *bytes.lock() = resealed(&whole, &mut rng);
            use_all(&bytes, &records);
        }
    }
}

#[test]
fn the_fuzz_corpus_is_survived() {
    let mut rng = Rng::with_seed(0xf11e);
    for whole in corpus("sst") {
        let bytes = Bytes::default();
        for _ in 0..100 {
            bytes.lock().clone_from(&whole);
            use_all(&bytes, &numbered(60));
            mutate(&mut bytes.lock(), &mut rng);
            use_all(&bytes, &numbered(60));
        }
    }
}

#[test]
fn hostile_blocks_do_not_panic() {
    use crate::sst::data_block::{Cursor, DataBlock, DataBlockBuilder};
    use crate::sst::index::{IndexBlock, IndexBuilder};
    let mut rng = Rng::with_seed(0xb10c);
    let mut builder = DataBlockBuilder::new(4, 4096);
    for n in 0..40u64 {
        let user_key = format!("key{:04}", n / 2);
        let shared = if n == 0 { 0 } else { 6 + usize::from(n % 2 == 1) };
        let shared = if n % 20 == 0 { shared.min(5) } else { shared };
        let encoded = key::encode(user_key.as_bytes(), SeqNo(100 - n), Kind::Put);
        let hash = archipelago_base::checksum::hash64(user_key.as_bytes());
        builder.add(&encoded, &vec![b'v'; n as usize * 7], shared, (n % 2 == 0).then_some(hash));
    }
    let data = builder.finish().to_vec();
    let mut index = IndexBuilder::default();
    for n in 0..20u8 {
        index.add(&[b'k', n], (n % 3 == 0).then_some(7), Default::default(), Default::default());
    }
    let mut index_bytes = Vec::new();
    index.encode(0, 20, true, &mut index_bytes);
    for round in 0..4000 {
        let mut bytes = data.clone();
        mutate(&mut bytes, &mut rng);
        bytes.truncate(if round % 3 == 0 { rng.usize(..=bytes.len()) } else { bytes.len() });
        if let Ok(block) = DataBlock::parse(bytes) {
            let mut cursor = Cursor::default();
            let _ = cursor.seek_to_last(&block);
            for _ in 0..50 {
                if !cursor.valid() || cursor.prev(&block).is_err() {
                    break;
                }
            }
            let _ = cursor.seek(&block, &key::encode(b"key0007", SeqNo(9), Kind::SEEK));
            let hash = archipelago_base::checksum::hash64(b"key0007");
            if let Ok(mut versions) = block.versions(b"key0007", u64::MAX, hash) {
                while let Ok(Some(_)) = versions.next() {}
            }
        }
        let mut bytes = index_bytes.clone();
        mutate(&mut bytes, &mut rng);
        if let Ok(block) = IndexBlock::parse(bytes, 1 << 20) {
            let _ = block.search(b"k\x07", 3);
            (0..block.len()).for_each(|at| drop(block.entry(at).suffix.to_vec()));
        }
    }
}
