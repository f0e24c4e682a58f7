//! The bytes of a small file do not change without a new format version.

use super::*;

#[test]
fn a_file_is_byte_for_byte_what_the_format_page_says() {
    let mut records = Records::new();
    let mut add = |key: &str, seq, kind, value: &[u8]| {
        records.insert((key.into(), std::cmp::Reverse(seq)), (kind, value.to_vec()));
    };
    add("", 1, Kind::Put, b"empty");
    add("apple", 9, Kind::Delete, b"");
    add("apple", 4, Kind::Put, b"red");
    add("apricot", 5, Kind::Merge, b"+1");
    let tombstone = RangeTombstone { start: b"b"[..].into(), end: b"d"[..].into(), seq: SeqNo(7) };
    let options = TableOptions {
        cf: archipelago_base::CfId(2),
        cf_name: "fruit".into(),
        created_unix_ms: 1_700_000_000_000,
        restart_interval: 2,
        ..plain()
    };
    let (bytes, meta) = build(&records, &[tombstone], options);
    let bytes = bytes.lock();
    let record = |head: [u8; 3], own: &[u8], trailer: u64, value: &[u8]| {
        [&head, own, &trailer.to_le_bytes(), value].concat()
    };
    let mut data = record([0, 8, 5], b"", 1 << 8 | 1, b"empty");
    data.extend(record([0, 13, 0], b"apple", 9 << 8, b""));
    let second = data.len() as u32;
    data.extend(record([0, 13, 3], b"apple", 4 << 8 | 1, b"red"));
    data.extend(record([2, 13, 2], b"ricot", 5 << 8 | 2, b"+1"));
    data.extend([0u32.to_le_bytes(), second.to_le_bytes()].concat());
    assert_eq!(bytes[..data.len()], data);
    let footer = &bytes[bytes.len() - 92..];
    assert_eq!(footer[84..], *b"ArchpSST");
    assert_eq!(footer[76..80], 3u32.to_le_bytes());
    assert_eq!(footer[68..76], (bytes.len() as u64).to_le_bytes());
    assert_eq!(footer[52..68], [9; 16]);
    assert_eq!(meta.checksum, archipelago_base::checksum::crc(&bytes));
    assert!(corpus("sst").contains(&bytes), "the corpus lacks the golden file");
    assert_eq!((bytes.len(), meta.checksum), (414, 0xf636_23f5), "golden file changed");
}
