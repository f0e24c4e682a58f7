use archipelago_base::ErrorKind;
use archipelago_env::fault::{FaultFs, Operation, Rule};

use super::super::record::PAYLOAD_BYTES_MAX;
use super::*;

#[test]
fn records_come_back_across_segments_and_groups() {
    for bench in [Bench::memory(), Bench::disk()] {
        let mut writer = bench.writer(1, None);
        let mut expected = Vec::new();
        let mut seq = 1;
        for no in 2..6 {
            for group in [1, 2, 31, 32, 33, 100] {
                let batches: Vec<(u64, WriteBatch)> = (0..group)
                    .map(|_| {
                        let batch = batch_of(seq);
                        let at = seq;
                        // Writes without the log leave gaps.
                        seq += ops_of(seq) + seq % 2;
                        (at, batch)
                    })
                    .collect();
                let entries: Vec<Entry<'_>> = batches
                    .iter()
                    .map(|(seq, batch)| Entry {
                        first_seq: SeqNo(*seq),
                        payload: batch.data(),
                        payload_crc: payload_crc(batch.data()),
                    })
                    .collect();
                writer.append_many(&entries).unwrap();
                expected.extend(batches.iter().map(|&(seq, _)| seq));
            }
            let closed = writer.rotate(&bench.path(no), FileNo(no), None).unwrap();
            assert!(closed.unfinished.is_none());
            assert_eq!(closed.segment.no, FileNo(no - 1));
        }
        // The process is killed here: the last segment has no records, or some that are only in the
        // ring.
        let (seen, log) = bench.tolerant(&[1, 2, 3, 4, 5]).unwrap();
        assert_eq!(seen, expected);
        assert_eq!(log.previous, Some(writer.position()));
        expected.push(append(&mut writer, seq).end_offset.min(seq));
        let (seen, log) = bench.recover(&[1, 2, 3, 4, 5], RecoveryMode::Strict).unwrap();
        assert_eq!((seen.len(), seen.last()), (expected.len(), Some(&seq)));
        assert_eq!((log.lost, log.previous), (None, Some(writer.position())));
        // The oldest segment may be missing, but none between others.
        assert!(bench.tolerant(&[3, 4, 5]).is_ok());
        let error = bench.tolerant(&[1, 2, 4, 5]).unwrap_err();
        assert!(error.context().contains("segment 3 is missing"), "{error}");
    }
}

#[test]
fn log_goes_on_in_a_prepared_segment_and_unused_ones_count_for_nothing() {
    let bench = Bench::memory();
    let prepare =
        |no| PreparedSegment::create(&*bench.fs, &bench.path(no), FileNo(no), 1 << 20, no).unwrap();
    let mut writer = bench.writer(1, None);
    append(&mut writer, 1);
    let (unused, next) = (prepare(2), prepare(3));
    assert!(!writer.can_rotate_to(FileNo(1)), "numbers grow");
    assert!(writer.can_rotate_to(FileNo(3)));
    let retired = writer.rotate_to(next).unwrap();
    assert_eq!(retired.closed().no, FileNo(1));
    assert_eq!(writer.position().no, FileNo(3));
    append(&mut writer, 10);
    retired.settle().unwrap();
    let last = prepare(4);
    for mode in [RecoveryMode::TolerateTornTail, RecoveryMode::Strict] {
        let (seen, log) = bench.recover(&[1, 2, 3, 4], mode).unwrap();
        assert_eq!((seen, log.lost), (vec![1, 10], None));
        assert_eq!(log.previous, Some(writer.position()));
    }
    // The closed segment names the next one. A later segment without a header does not hide that it
    // is missing.
    for nos in [&[1][..], &[1, 4]] {
        let error = bench.recover(nos, RecoveryMode::Strict).unwrap_err();
        assert!(error.to_string().contains("segment 3, which follows, is missing"), "{error}");
    }
    unused.discard(&*bench.fs);
    last.discard(&*bench.fs);
    assert!(!bench.fs.exists(&bench.path(2)).unwrap() && !bench.fs.exists(&bench.path(4)).unwrap());
    assert_eq!(bench.tolerant(&[1, 3]).unwrap().0, [1, 10]);
}

#[test]
fn a_sync_covers_earlier_segments_first() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    let syncer = writer.syncer();
    append(&mut writer, 1);
    assert_eq!(writer.synced_through(), 0);
    writer.rotate(&bench.path(2), FileNo(2), None).unwrap();
    let appended = append(&mut writer, 10);
    let durable = syncer.sync().unwrap();
    assert!(durable.covers(&appended));
    assert_eq!(writer.synced_through(), appended.end_offset);
    let later = append(&mut writer, 20);
    assert!(!durable.covers(&later));
    let fs = MemFs::new();
    let crashing = Bench::on(fs.clone());
    let mut writer = crashing.writer(1, None);
    let written = fill(&mut writer, 1, 50);
    writer.rotate(&crashing.path(2), FileNo(2), None).unwrap();
    writer.syncer().sync().unwrap();
    for seed in 0..20 {
        let crashed = Bench::on(fs.crash_clone(seed));
        assert_eq!(crashed.recover(&[1, 2], RecoveryMode::Strict).unwrap().0, seqs(&written));
    }
}

/// Two segments, the first of which is damaged at its end and not synced.
fn torn_first(sync_later: bool) -> (Bench, Vec<(u64, u64)>) {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 10);
    writer.rotate(&bench.path(2), FileNo(2), None).unwrap();
    append(&mut writer, 200);
    if sync_later {
        writer.syncer().sync().unwrap();
    }
    append(&mut writer, 300);
    writer.rotate(&bench.path(3), FileNo(3), None).unwrap();
    append(&mut writer, 400);
    drop(writer);
    (bench, written)
}

#[test]
fn the_log_is_cut_at_its_first_loss_unless_it_was_synced_later() {
    for cut_at in [5, 9] {
        let (bench, written) = torn_first(false);
        let bytes = bench.bytes(1);
        // The cut is at a record's end, so that the segment alone looks whole, and within a record.
        for within in [0, 7] {
            bench.overwrite(1, &bytes[..written[cut_at - 1].1 as usize + within]);
            let (seen, log) = bench.tolerant(&[1, 2, 3]).unwrap();
            assert_eq!(seen, seqs(&written[..cut_at]), "nothing after the loss is replayed");
            assert_eq!(log.dropped, [bench.file(2), bench.file(3)]);
            assert!(log.lost.is_some());
            let error = bench.recover(&[1, 2, 3], RecoveryMode::Strict).unwrap_err();
            assert!(error.context().contains("/db/1.log"), "{error}");
        }
        // The log goes on after the cut. Dropped records stay dropped, even if their files remain.
        let (_, log) = bench.tolerant(&[1, 2, 3]).unwrap();
        let mut writer = bench.writer(4, log.previous);
        append(&mut writer, 500);
        writer.syncer().sync().unwrap();
        append(&mut writer, 600);
        let (seen, log) = bench.tolerant(&[1, 2, 3, 4]).unwrap();
        assert_eq!(seen, [seqs(&written[..cut_at]), vec![500, 600]].concat());
        assert_eq!((log.lost, log.dropped), (None, vec![bench.file(2), bench.file(3)]));
    }
    let (bench, written) = torn_first(true);
    let bytes = bench.bytes(1);
    bench.overwrite(1, &bytes[..written[4].1 as usize]);
    let error = bench.tolerant(&[1, 2, 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains("/db/1.log"), "{error}");
}

#[test]
fn a_segment_whose_header_was_lost_is_a_loss() {
    let (bench, written) = torn_first(false);
    bench.overwrite(2, &[]);
    let (seen, log) = bench.tolerant(&[1, 2, 3]).unwrap();
    assert_eq!(seen, seqs(&written));
    assert_eq!((log.dropped, log.lost.is_some()), (vec![bench.file(3)], true));
    // The last segment was created and never written: nothing is lost.
    let (bench, written) = torn_first(false);
    bench.overwrite(2, &[]);
    let (seen, log) = bench.recover(&[1, 2], RecoveryMode::Strict).unwrap();
    assert_eq!((seen, log.lost), (seqs(&written), None));
    assert_eq!(log.previous.unwrap().no, FileNo(1));
}

/// Makes random appends, syncs and rotations with recycling. Power fails at random moments; then
/// the log is recovered and goes on.
#[test]
fn power_failures_lose_a_suffix_that_was_not_synced() {
    for seed in 0..150 {
        let mut rng = Rng::with_seed(seed);
        let mut fs = MemFs::new();
        let mut bench = Bench::on(fs.clone());
        let (mut live, mut no, mut seq) = (vec![1u64], 1u64, 1u64);
        let mut writer = bench.writer(1, None);
        writer.syncer().sync().unwrap();
        let (mut written, mut synced): (Vec<u64>, usize) = (Vec::new(), 0);
        for _ in 0..4 {
            for _ in 0..rng.usize(..60) {
                match rng.u8(..20) {
                    0 => {
                        no += 1;
                        writer.rotate(&bench.path(no), FileNo(no), None).unwrap();
                        live.push(no);
                    }
                    1 | 2 => {
                        writer.syncer().sync().unwrap();
                        synced = written.len();
                    }
                    _ => {
                        append(&mut writer, seq);
                        written.push(seq);
                        seq += ops_of(seq);
                    }
                }
            }
            drop(writer);
            fs = fs.crash_clone(rng.u64(..));
            bench = Bench::on(fs.clone());
            live.retain(|&no| fs.exists(&bench.path(no)).unwrap());
            let (seen, log) = bench
                .tolerant(&live)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}; synced {synced}"));
            assert!(seen.len() >= synced, "seed {seed}: {} of {synced} synced", seen.len());
            assert_eq!(seen, written[..seen.len()], "seed {seed}");
            written.truncate(seen.len());
            for file in &log.dropped {
                fs.remove(&file.path).unwrap();
                live.retain(|&no| no != file.no.0);
            }
            seq = log.last_seq.map_or(0, |last| last.0) + 1;
            no += 1;
            writer = bench.writer(no, log.previous);
            live.push(no);
            writer.syncer().sync().unwrap();
            synced = written.len();
        }
    }
}

#[test]
fn unsyncable_segment_is_released_once_it_is_not_needed() {
    let bench = Bench::disk();
    let mut writer = bench.writer(1, None);
    append(&mut writer, 1);
    let error = writer.rotate(&bench.path(1), FileNo(1), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    append(&mut writer, 10);
    let missing = bench.dir.join("missing/2.log");
    writer.rotate(&missing, FileNo(2), None).unwrap_err();
    let batch = batch_of(20);
    let entry = Entry { first_seq: SeqNo(20), payload: batch.data(), payload_crc: 0 };
    assert_eq!(writer.append(&entry).unwrap_err().kind(), ErrorKind::Closed);
    writer.rotate(&bench.path(3), FileNo(3), None).unwrap();
    append(&mut writer, 30);
    writer.syncer().forget_before(FileNo(3));
    assert_eq!(writer.syncer().sync().unwrap().segment, FileNo(3));
    assert_eq!(bench.tolerant(&[1, 3]).unwrap().0, [1, 10, 30]);
}

#[test]
fn a_lost_end_is_corruption_if_the_machine_has_not_restarted() {
    let bench = Bench::disk();
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 10);
    writer.rotate(&bench.path(2), FileNo(2), None).unwrap();
    append(&mut writer, 200);
    drop(writer);
    let bytes = bench.bytes(1);
    bench.overwrite(1, &bytes[..written[8].1 as usize]);
    let error = bench.tolerant(&[1, 2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains("1.log"), "{error}");
}

/// A closed segment and the next one, which the recovery does not get.
fn without_the_last(bench: &Bench) -> Vec<(u64, u64)> {
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 10);
    writer.rotate(&bench.path(2), FileNo(2), None).unwrap();
    append(&mut writer, 200);
    drop(writer);
    bench.fs.remove(&bench.path(2)).unwrap();
    written
}

#[test]
fn a_missing_last_segment_is_corruption_under_the_same_boot() {
    let bench = Bench::disk();
    let written = without_the_last(&bench);
    for mode in [RecoveryMode::TolerateTornTail, RecoveryMode::Strict] {
        let error = bench.recover(&[1], mode).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let says = error.context().contains("1.log") && error.context().contains("segment 2");
        assert!(says, "{error}");
    }
    let (seen, log) = bench.recover(&[1], RecoveryMode::AssumePowerLoss).unwrap();
    assert_eq!(seen, seqs(&written));
    assert!(log.lost.is_some_and(|lost| lost.contains("segment 2")));
    assert_eq!(log.previous.unwrap().len, written.last().unwrap().1);
}

#[test]
fn a_missing_last_segment_is_told_if_power_may_have_failed() {
    let bench = Bench::memory();
    let written = without_the_last(&bench);
    let (seen, log) = bench.tolerant(&[1]).unwrap();
    assert_eq!(seen, seqs(&written));
    assert!(log.lost.is_some_and(|lost| lost.contains("segment 2")));
    assert!(bench.recover(&[1], RecoveryMode::Strict).is_err());
}

#[test]
fn a_missing_first_segment_above_the_floor_is_corruption() {
    let bench = Bench::memory();
    let mut writer = bench.writer(3, None);
    fill(&mut writer, 1, 10);
    writer.rotate(&bench.path(5), FileNo(5), None).unwrap();
    append(&mut writer, 200);
    drop(writer);
    let segments = [bench.file(5)];
    let chain = |floor| LogChain {
        segments: &segments,
        floor: FileNo(floor),
        mode: RecoveryMode::TolerateTornTail,
        database_id: DATABASE,
    };
    let read = |floor| recover(&*bench.fs, &chain(floor), &mut |_, _| Ok(()));
    let error = read(3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains("segment 3 is missing"), "{error}");
    assert_eq!(read(4).unwrap().last_seq, Some(SeqNo(200 + ops_of(200) - 1)));
}

/// The device took a part of a group. A sync may have made that part durable, but the next
/// segment's header states that the segment ended before the group.
#[test]
fn a_segment_is_whole_without_what_a_failed_group_left() {
    let fs = FaultFs::new(Arc::new(MemFs::new()), 1);
    fs.create_dir_all(Path::new("/db")).unwrap();
    let bench = Bench { fs: Arc::new(fs.clone()), dir: PathBuf::from("/db"), _keep: None };
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 5);
    let batches: Vec<(u64, WriteBatch)> =
        (0..40).map(|n| (100 + 3 * n, batch_of(100 + 3 * n))).collect();
    let entries: Vec<Entry<'_>> = batches
        .iter()
        .map(|(seq, batch)| Entry {
            first_seq: SeqNo(*seq),
            payload: batch.data(),
            payload_crc: payload_crc(batch.data()),
        })
        .collect();
    fs.add(Rule::on(Operation::LogAppend).nth(2));
    writer.append_many(&entries).unwrap_err();
    let durable = writer.syncer().sync().unwrap();
    assert_eq!(durable.segment, FileNo(1));
    writer.rotate(&bench.path(2), FileNo(2), None).unwrap();
    let (seen, log) = bench.tolerant(&[1, 2]).unwrap();
    assert_eq!(seen, seqs(&written));
    assert!(log.segments[0].whole_through() >= durable.offset, "a false alarm: {log:?}");
}

/// A record of a group is refused when earlier records of the group are in the segment already.
#[test]
fn refused_group_leaves_no_record_in_the_log() {
    let bench = Bench::memory();
    let mut writer = bench.writer(1, None);
    let written = fill(&mut writer, 1, 5);
    let batches: Vec<(u64, WriteBatch)> =
        (0..32).map(|n| (100 + 3 * n, batch_of(100 + 3 * n))).collect();
    let small = batches.iter().map(|(seq, batch)| Entry {
        first_seq: SeqNo(*seq),
        payload: batch.data(),
        payload_crc: payload_crc(batch.data()),
    });
    // The allocator maps zeroed pages, and only their number is read.
    let oversize = vec![0u8; PAYLOAD_BYTES_MAX + 1];
    let refused = Entry { first_seq: SeqNo(300), payload: &oversize, payload_crc: 0 };
    let entries: Vec<Entry<'_>> = small.chain([refused]).collect();
    // The segment has nothing of a group whose first part is refused, and goes on.
    let error = writer.append_many(&entries[32..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(!writer.is_broken());
    let (seq, end_offset) = (50, append(&mut writer, 50).end_offset);
    // A local log takes 32 records with one append, so the first ones are in the segment.
    let error = writer.append_many(&entries).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(writer.position(), SegmentRef { no: FileNo(1), len: end_offset });
    assert!(writer.is_broken());
    writer.append(&entries[0]).unwrap_err();
    writer.rotate(&bench.path(2), FileNo(2), None).unwrap();
    append(&mut writer, 100);
    let (seen, _) = bench.recover(&[1, 2], RecoveryMode::Strict).unwrap();
    assert_eq!(seen, [seqs(&written), vec![seq, 100]].concat());
}
