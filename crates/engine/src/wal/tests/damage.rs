use archipelago_base::ErrorKind;

use super::super::record::{RECORD_HEADER_BYTES, SegmentHeader};
use super::*;

const HEADER: usize = SEGMENT_HEADER_BYTES;
const MODES: [RecoveryMode; 3] =
    [RecoveryMode::TolerateTornTail, RecoveryMode::Strict, RecoveryMode::AssumePowerLoss];

#[track_caller]
fn assert_corrupt<T: std::fmt::Debug>(result: Result<T>, what: &str) {
    let error = result.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    assert!(error.context().contains("/db/"), "{what}: the error must name the file: {error}");
}

#[test]
fn a_tail_torn_at_any_byte_costs_only_the_torn_record() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 8);
    drop(writer);
    let whole = bench.bytes(1);
    for cut in 0..=whole.len() {
        bench.overwrite(1, &whole[..cut]);
        let kept: Vec<u64> =
            written.iter().filter(|&&(_, end)| end <= cut as u64).map(|&(seq, _)| seq).collect();
        let (seen, log) = bench.tolerant(&[1]).unwrap();
        assert_eq!(seen, kept, "cut at {cut}");
        let end = written.iter().map(|&(_, end)| end).rfind(|&end| end <= cut as u64);
        let end = end.unwrap_or(if cut < HEADER { 0 } else { HEADER as u64 });
        assert_eq!(log.segments[0].end_offset, end, "cut at {cut}");
        let at_boundary = cut < HEADER || end == cut as u64;
        assert_eq!(log.lost.is_none(), at_boundary, "cut at {cut}");
        match bench.recover(&[1], RecoveryMode::Strict) {
            Ok((seen, _)) => assert!(at_boundary && seen == kept, "cut at {cut}"),
            strict => assert!(!at_boundary, "cut at {cut}: {strict:?}"),
        }
    }
}

#[test]
fn a_tail_of_zeros_or_garbage_is_torn() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 4);
    drop(writer);
    let whole = bench.bytes(1);
    let mut rng = Rng::with_seed(4);
    for cut in 0..whole.len() {
        let mut bytes = whole[..cut].to_vec();
        bytes.resize(cut + rng.usize(1..600), 0);
        if rng.bool() {
            rng.fill(&mut bytes[cut..]);
        }
        bench.overwrite(1, &bytes);
        let kept: Vec<u64> =
            written.iter().filter(|&&(_, end)| end <= cut as u64).map(|&(seq, _)| seq).collect();
        assert_eq!(bench.tolerant(&[1]).unwrap().0, kept, "cut at {cut}");
    }
}

#[test]
fn every_flipped_bit_of_the_synced_part_is_corruption() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    fill(&mut writer, 1, 4);
    let synced = writer.syncer().sync().unwrap().offset;
    append(&mut writer, 100);
    drop(writer);
    let whole = bench.bytes(1);
    for at in 0..synced as usize {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        bench.overwrite(1, &bytes);
        for mode in MODES {
            assert_corrupt(bench.recover(&[1], mode), &format!("byte {at}"));
        }
    }
    // The synced part is missing completely, except for the record that names its end.
    let mut bytes = whole;
    bytes[HEADER..synced as usize].fill(0);
    bench.overwrite(1, &bytes);
    assert_corrupt(bench.tolerant(&[1]), "zeroed");
}

#[test]
fn a_flipped_bit_anywhere_never_becomes_data() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 5);
    drop(writer);
    let whole = bench.bytes(1);
    let last_start = written[3].1 as usize;
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        bench.overwrite(1, &bytes);
        assert_corrupt(bench.recover(&[1], RecoveryMode::Strict), &format!("byte {at}"));
        match bench.tolerant(&[1]) {
            // `recover` has checked the content of what was visited.
            Ok((seen, log)) => {
                assert!(at >= last_start, "byte {at}: a valid record follows");
                assert_eq!(seen, seqs(&written[..4]));
                assert!(log.lost.is_some());
            }
            error => assert_corrupt(error, &format!("byte {at}")),
        }
    }
}

#[test]
fn mutated_segments_never_panic_and_never_invent() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 12);
    drop(writer);
    let whole = bench.bytes(1);
    let mut rng = Rng::with_seed(5);
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        match rng.u8(..3) {
            0 => bytes.truncate(rng.usize(..bytes.len())),
            1 => {
                let (from, to) = (rng.usize(..bytes.len()), rng.usize(..bytes.len()));
                let len = rng.usize(..bytes.len() - from.max(to));
                bytes.copy_within(from..from + len, to);
            }
            _ => {}
        }
        for _ in 0..rng.usize(..6) {
            let at = rng.usize(..bytes.len().max(1));
            bytes.get_mut(at).into_iter().for_each(|byte| *byte = rng.u8(..));
        }
        bench.overwrite(1, &bytes);
        if let Ok((seen, _)) = bench.tolerant(&[1]) {
            assert_eq!(seen, seqs(&written[..seen.len()]), "a prefix of what was written");
        }
    }
}

#[test]
fn the_fuzz_corpus_is_survived() {
    let bench = Bench::memory();
    for bytes in corpus("wal_segment") {
        bench.overwrite(1, &bytes);
        for mode in MODES {
            let request =
                ReadRequest { mode, database_id: DATABASE, known_len: None, after: SeqNo::ZERO };
            let file = bench.file(1);
            let _any = read_segment(&*bench.fs, &file, &request, &mut |_, batch| {
                batch.iter().try_for_each(|op| op.map(|_| ()))
            });
        }
    }
}

#[test]
fn records_of_an_earlier_use_are_never_replayed() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    fill(&mut writer, 1, 30);
    drop(writer);
    let old = bench.bytes(1);
    let mut writer = bench.recycling_writer(2, None, Some(1));
    // The batches are the same, so that old records lie at the offsets of new ones.
    let written = fill(&mut writer, 1, 12);
    drop(writer);
    let end = written.last().unwrap().1 as usize;
    let new = bench.bytes(2);
    assert_eq!(new.len(), old.len());
    for mode in MODES {
        let (seen, log) = bench.recover(&[2], mode).unwrap();
        assert_eq!((seen, log.lost), (seqs(&written), None));
    }
    // Power fails when the device has only the first `cut` bytes of the new use.
    for cut in 0..end {
        let image = [&new[..cut], &old[cut..]].concat();
        bench.overwrite(2, &image);
        // Old bytes may happen to be the same as new ones.
        let same = |end: u64| image[..end as usize] == new[..end as usize];
        let kept = written.iter().filter(|&&(_, end)| same(end)).count();
        let recovered = bench.tolerant(&[2]);
        // A header that is neither the old nor the new one cannot be distinguished from a damaged
        // one.
        let Ok((seen, _)) = recovered else {
            assert!(cut < HEADER, "cut at {cut}: {recovered:?}");
            continue;
        };
        assert_eq!(seen, seqs(&written[..kept]), "cut at {cut}");
    }
    bench.overwrite(2, &old);
    assert_eq!(bench.tolerant(&[2]).unwrap().0, [0; 0], "the old use alone");
}

/// Changes the segment so that it reads as after a restart of the machine.
fn reboot(bench: &Bench, no: u64) {
    let mut bytes = bench.bytes(no);
    let mut header = [0; HEADER];
    header.copy_from_slice(&bytes[..HEADER]);
    let mut header = SegmentHeader::decode(&header).unwrap();
    header.boot_id = [1; 16];
    bytes[..HEADER].copy_from_slice(&header.encode());
    bench.overwrite(no, &bytes);
}

#[test]
fn lost_page_is_corruption_unless_power_failed_or_mode_allows() {
    for synced in [false, true] {
        let bench = Bench::disk();
        let mut writer = bench.writer(1, None);
        let written = fill(&mut writer, 1, 200);
        if synced {
            writer.syncer().sync().unwrap();
        }
        fill(&mut writer, 1000, 10);
        drop(writer);
        let mut bytes = bench.bytes(1);
        bytes[4096..8192].fill(0);
        bench.overwrite(1, &bytes);
        let error = bench.tolerant(&[1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "same boot");
        assert_eq!(error.context().contains("assume-power-loss"), !synced, "{error}");
        let judge = |result: Result<(Vec<u64>, RecoveredLog)>| match result {
            Ok((seen, log)) => {
                assert!(!synced && log.lost.is_some());
                let kept = written.iter().filter(|&&(_, end)| end <= 4096).count();
                assert_eq!(seen, seqs(&written[..kept]));
            }
            Err(error) => assert!(synced, "{error}"),
        };
        // Only the storage lost power, as the recovery mode says.
        judge(bench.recover(&[1], RecoveryMode::AssumePowerLoss));
        reboot(&bench, 1);
        assert!(bench.recover(&[1], RecoveryMode::Strict).is_err());
        judge(bench.tolerant(&[1]));
    }
}

#[test]
fn a_value_that_is_a_log_is_only_a_value() {
    let inner = Bench::memory();
    let mut writer = inner.writer(1, None);
    fill(&mut writer, 1, 20);
    drop(writer);
    let value = inner.bytes(1);
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    append(&mut writer, 1);
    let mut batch = WriteBatch::new();
    batch.put_cf(CfId(0), b"k", &value);
    let payload = batch.data();
    let entry = Entry { first_seq: SeqNo(50), payload, payload_crc: payload_crc(payload) };
    let end = writer.append(&entry).unwrap().end_offset;
    drop(writer);
    // The record is torn within its value. Records inside the value are no evidence of damage.
    let bytes = bench.bytes(1);
    for cut in [end - 1, end - 700, end - value.len() as u64 + RECORD_HEADER_BYTES as u64] {
        bench.overwrite(1, &bytes[..cut as usize]);
        assert_eq!(bench.tolerant(&[1]).unwrap().0, [1]);
    }
}
