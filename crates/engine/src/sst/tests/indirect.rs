//! Tables with records whose values lie in value files.

use archipelago_base::ErrorKind;

use super::*;
use crate::iter::InternalIterator;
use crate::sst::format::{FOOTER_BYTES, Footer, Layout, seal_block};
use crate::value_ref::{Reference, ValueRef};

fn reference(no: u64, stored_bytes: u32) -> Reference {
    Reference {
        file_no: FileNo(no),
        offset: Some(1000),
        stored_bytes,
        raw_bytes: stored_bytes * 2,
        expiry_unix_ms: None,
    }
}

fn encoded(reference: &Reference) -> Vec<u8> {
    let mut out = Vec::new();
    reference.encode(&mut out);
    out
}

/// Records of which every third is inline. The others refer to the files 4 and 9, and one expires.
fn mixed(count: u64) -> Records {
    let mut records = numbered(count);
    for (n, (kind, value)) in (0..).zip(records.values_mut()) {
        if n % 3 > 0 {
            let expiry_unix_ms = (n == 4).then_some(77_000);
            let no = if n % 3 == 1 { 9 } else { 4 };
            let reference = Reference { expiry_unix_ms, ..reference(no, 100 + n) };
            (*kind, *value) = (Kind::Indirect, encoded(&reference));
        }
    }
    records
}

#[test]
fn references_are_summed_by_value_file() {
    for options in [plain(), tiny(Compression::Lz4)] {
        let (bytes, meta) = build(&mixed(30), &[], options);
        let sum = |no: u64, first: u64| ValueRef {
            no,
            records: 10,
            bytes: (0..10).map(|n| 100 + first + 3 * n + 5).sum(),
        };
        assert_eq!(meta.refs.by_file(), [sum(4, 2), sum(9, 1)]);
        let table = open(&bytes, &meta);
        assert_eq!(table.properties().refs, meta.refs);
        assert_eq!((meta.content.expiring, meta.content.expiry_ms), (1, [77_000; 5]));
        let key_bytes = "key00000004".len() as u64;
        let expiring = encoded(&Reference { expiry_unix_ms: Some(0), ..reference(9, 104) });
        assert_eq!(meta.content.expiring_bytes, key_bytes + expiring.len() as u64 + 109);
        table.verify(context()).unwrap();
    }
    let (_, meta) = build(&numbered(5), &[], plain());
    assert!(meta.refs.is_empty());
}

#[test]
fn references_read_back_every_way() {
    let records = mixed(200);
    let (bytes, meta) = build(&records, &[], tiny(Compression::Zstd));
    let table = open(&bytes, &meta);
    let mut iter = table.iter(TableReadOptions::foreground());
    iter.seek_to_first();
    for ((user_key, seq), (kind, value)) in &records {
        assert_eq!(iter.key(), key::encode(user_key, SeqNo(seq.0), *kind));
        assert_eq!(iter.value(), value);
        assert_eq!(versions(&table, user_key, SeqNo::MAX.0), [(seq.0, *kind, value.clone())]);
        iter.next();
    }
    let lookups: Vec<_> =
        records.keys().map(|(user_key, _)| Lookup::new(user_key, SeqNo::MAX)).collect();
    let mut found = 0;
    let mut visit = |position: usize, version: &crate::lookup::Found<'_>| {
        let (kind, value) = records.values().nth(position).unwrap();
        assert_eq!((version.kind, version.value), (*kind, value.as_slice()));
        found += 1;
        Visit::Continue(())
    };
    table.multi_lookup(&lookups, &TableReadOptions::foreground(), &mut visit).unwrap();
    assert_eq!(found, records.len());
    let file = VecFile::new(&bytes);
    let mut expected = records.iter();
    let salvage = salvage_table(&*file, &path(), Some(&meta), &mut |internal_key, value| {
        let ((user_key, seq), (kind, stored)) = expected.next().unwrap();
        assert_eq!(internal_key, key::encode(user_key, SeqNo(seq.0), *kind));
        assert_eq!(value, stored);
        Ok(())
    });
    assert_eq!(salvage.unwrap().records, records.len() as u64);
}

#[test]
fn shadowed_reference_counts_with_its_value_record() {
    let bytes = Bytes::default();
    let file = Box::new(VecWriter(Arc::clone(&bytes)));
    let mut builder = TableBuilder::new(file, &path(), FileNo(7), [9; 16], plain());
    let stored = encoded(&reference(4, 300));
    let newest = RecordRole { starts_key: true, ..RecordRole::default() };
    let shadowed = RecordRole { is_shadowed: true, ..RecordRole::default() };
    builder.add_as(&key::encode(b"key", SeqNo(9), Kind::Indirect), &stored, newest).unwrap();
    builder.add_as(&key::encode(b"key", SeqNo(8), Kind::Indirect), &stored, shadowed).unwrap();
    builder.add_as(&key::encode(b"key", SeqNo(7), Kind::Put), b"inline", shadowed).unwrap();
    let content = builder.finish().unwrap().content;
    assert_eq!(content.shadowed, 2);
    assert_eq!(content.shadowed_bytes, 3 + stored.len() as u64 + 305 + 3 + 6);
}

#[test]
fn malformed_reference_is_refused_by_builder_and_verification() {
    let bytes = Bytes::default();
    let file = Box::new(VecWriter(Arc::clone(&bytes)));
    let mut builder = TableBuilder::new(file, &path(), FileNo(7), [9; 16], plain());
    let error = builder.add(&key::encode(b"key", SeqNo(9), Kind::Indirect), &[4, 1, 1, 1]);
    let error = error.expect_err("unknown flags");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("unknown flags 0x04"), "{error}");

    let mut records = Records::new();
    let stored = encoded(&reference(4, 100));
    records.insert((b"key".to_vec(), std::cmp::Reverse(9)), (Kind::Indirect, stored.clone()));
    let (bytes, _) = build(&records, &[], plain());
    let at = bytes.lock().windows(stored.len()).position(|part| part == stored).unwrap();
    reseal_first_block(&bytes, |block| block[at] = 4);
    let file: Arc<dyn RandomFile> = VecFile::new(&bytes);
    let error = read_foreign_table(&file, &path(), FileNo(7)).map(drop).expect_err("flags");
    assert!(error.to_string().contains("unknown flags 0x04"), "{error}");
}

/// Changes the payload of the only data block of a table without compression.
fn reseal_first_block(bytes: &Bytes, change: impl FnOnce(&mut [u8])) {
    let mut bytes = bytes.lock();
    let len = bytes.len();
    let footer =
        Footer::decode(&bytes[len - FOOTER_BYTES..], &path(), len as u64, Layout::Table).unwrap();
    let end = footer.filter.offset as usize - 5;
    change(&mut bytes[..end]);
    let mut block = bytes[..end].to_vec();
    seal_block(&mut block, 0, Compression::None, &footer.unique_id, 0);
    bytes[..end + 5].copy_from_slice(&block);
}

#[test]
fn verification_compares_the_sums_with_the_records() {
    let mut records = Records::new();
    let stored = encoded(&reference(4, 100));
    records.insert((b"key".to_vec(), std::cmp::Reverse(9)), (Kind::Indirect, stored.clone()));
    let (bytes, _) = build(&records, &[], plain());
    let at = bytes.lock().windows(stored.len()).position(|part| part == stored).unwrap();
    reseal_first_block(&bytes, |block| block[at + 1] = 5);
    let file: Arc<dyn RandomFile> = VecFile::new(&bytes);
    let error = read_foreign_table(&file, &path(), FileNo(7)).map(drop).expect_err("sums");
    assert!(error.to_string().contains("references") && file_named(&path(), &error), "{error}");
}

#[test]
fn table_with_references_is_unfit_for_ingestion() {
    let records: Records = mixed(3)
        .into_iter()
        .map(|((user_key, _), record)| ((user_key, std::cmp::Reverse(0)), record))
        .collect();
    let (bytes, _) = build(&records, &[], plain());
    let file: Arc<dyn RandomFile> = VecFile::new(&bytes);
    let foreign = read_foreign_table(&file, &path(), FileNo(7)).unwrap();
    let unfit = foreign.unfit.expect("a reference names a file of another database");
    assert!(unfit.contains("key00000001") && unfit.contains("value file"), "{unfit}");
}

#[test]
fn dump_shows_references_readably() {
    let (bytes, meta) = build(&mixed(6), &[], plain());
    let mut text = String::new();
    open(&bytes, &meta).dump(&mut text, 9, TableReadOptions::foreground()).unwrap();
    let parts = [
        "separated values    2 in file 000004, 217 bytes there",
        "\"key00000001\" @2 Indirect in file 000009 at 1000: 202 bytes, 101 stored\n",
        "104 stored, expires at 77000 (unix ms)",
    ];
    for part in parts {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}
