use archipelago_base::{CfId, Epoch, ErrorKind};

use super::super::record::{
    FORMAT_VERSION, RecordHeader, RecordType, SegmentHeader, incarnation_of, number_of,
    segment_seed,
};
use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_batch() {
    let mut batch = WriteBatch::new();
    batch.put_cf(CfId(0), b"key", b"value");
    batch.delete_cf(CfId(300), b"");
    batch.merge_cf(CfId(1), b"m", b"+1");
    batch.delete_range_cf(CfId(0), b"a", b"b");
    batch.put_expiring_cf(CfId(0), b"t", b"v", 0x0102);
    let expected = "05000000\
                    010003056b657976616c7565\
                    00ac0200\
                    020101026d2b31\
                    0f0001016162\
                    03000109740201000000000000\
                    76";
    assert_eq!(hex(batch.data()), expected);
}

#[test]
fn golden_segment_header() {
    let header = SegmentHeader {
        incarnation: incarnation_of(FileNo(7), 0xaa_bbcc),
        database_id: DATABASE,
        previous: Some(SegmentRef { no: FileNo(6), len: 0x1234 }),
        reused_len: 0x40,
        boot_id: [0xee; 16],
        manifest: ManifestPosition { no: FileNo(5), bytes: 0x0102 },
    };
    let bytes = header.encode();
    let expected = "4152434857414c0a02000000aee662e6\
                    ccbbaa0700000000\
                    61207465737420646174616261736521\
                    06000000000000003412000000000000\
                    4000000000000000\
                    eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee\
                    05000000000000000201000000000000";
    assert_eq!(hex(&bytes), expected);
    assert_eq!(SegmentHeader::decode(&bytes).unwrap(), header);
    assert_eq!(number_of(header.incarnation), FileNo(7));
}

#[test]
fn golden_record_header() {
    let header = RecordHeader {
        payload_crc: 0x1122_3344,
        payload_len: 5,
        first_seq: SeqNo(0x77),
        kind: RecordType::Batch as u8,
        incarnation_low: 0x07aa_bbcc,
        synced_through: 96,
    };
    let seed = segment_seed(Epoch(0x07aa_bbcc));
    let bytes = header.encode(seed, 4096);
    assert_eq!(hex(&bytes), "d2fd75b144332211050000000177000000000000ccbbaa0760000000");
    assert_eq!(RecordHeader::decode(&bytes, seed, 4096), Some(header));
    assert_eq!(RecordHeader::decode(&bytes, seed, 4097), None, "bound to its place");
    let other = segment_seed(Epoch(1 << 32 | 0x07aa_bbcc));
    assert_eq!(RecordHeader::decode(&bytes, other, 4096), None, "bound to the whole incarnation");
}

#[test]
fn golden_end_record() {
    let payload = 8u64.to_le_bytes();
    let header = RecordHeader {
        payload_crc: payload_crc(&payload),
        payload_len: 8,
        first_seq: SeqNo::ZERO,
        kind: RecordType::End as u8,
        incarnation_low: 0x07aa_bbcc,
        synced_through: 96,
    };
    let bytes = [&header.encode(segment_seed(Epoch(0x07aa_bbcc)), 4096)[..], &payload].concat();
    let expected = "d49f0f5550b613ce080000000400000000000000ccbbaa07600000000800000000000000";
    assert_eq!(hex(&bytes), expected);
}

/// A segment with one record that `change` has changed, with good checksums.
fn segment_with(
    change_header: impl FnOnce(&mut SegmentHeader),
    change_record: impl FnOnce(&mut RecordHeader),
) -> Bench {
    let bench = Bench::memory();
    let mut header = SegmentHeader {
        incarnation: incarnation_of(FileNo(1), 5),
        database_id: DATABASE,
        previous: None,
        reused_len: 0,
        boot_id: [0; 16],
        manifest: ManifestPosition::default(),
    };
    change_header(&mut header);
    let batch = batch_of(1);
    let mut record = RecordHeader {
        payload_crc: payload_crc(batch.data()),
        payload_len: batch.byte_len() as u32,
        first_seq: SeqNo(1),
        kind: 1,
        incarnation_low: header.incarnation.0 as u32,
        synced_through: 0,
    };
    change_record(&mut record);
    let record = record.encode(segment_seed(header.incarnation), SEGMENT_HEADER_BYTES as u64);
    bench.overwrite(1, &[&header.encode()[..], &record, batch.data()].concat());
    bench
}

#[test]
fn log_refuses_reserved_types_versions_and_databases() {
    let good = segment_with(|_| (), |_| ());
    assert_eq!(good.tolerant(&[1]).unwrap().0, [1]);
    for kind in [RecordType::Prepare as u8, RecordType::Commit as u8, 9] {
        let error = segment_with(|_| (), |r| r.kind = kind).tolerant(&[1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.context().contains("/db/1.log"), "{error}");
    }
    let foreign = segment_with(|h| h.database_id[0] = 0, |_| ()).tolerant(&[1]).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::Corrupt);
    let mut bytes = good.bytes(1);
    bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    bytes[12..16].fill(0);
    let sum = archipelago_base::checksum::crc(&bytes[..SEGMENT_HEADER_BYTES]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    good.overwrite(1, &bytes);
    let error = good.tolerant(&[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_sequence_number_that_goes_back_is_corruption() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    append(&mut writer, 10);
    append(&mut writer, 10);
    let error = bench.tolerant(&[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    append(&mut writer, 10);
    append(&mut writer, 900);
    writer.rotate(&bench.path(2), FileNo(2), None).unwrap();
    append(&mut writer, 899);
    let error = bench.tolerant(&[1, 2]).unwrap_err();
    assert!(error.context().contains("/db/2.log"), "{error}");
}
