use super::*;

/// A file of 64 ranges of 1,000 bytes, with reads by range.
fn file(reads: &[(u64, u32)]) -> FileReads {
    let span =
        |&(index, reads): &(u64, u32)| Span { start: index * 1000, len: 1000, reads, odd: 0 };
    let spans = reads.iter().map(span).collect();
    FileReads::new(64_000, 0.0, 1000, spans)
}

/// A threshold of this many accesses per byte.
fn from(density: f64) -> Worth {
    Worth { density, above: density, part: 1.0, room: 64_000 }
}

#[test]
fn equally_hot_files_get_equal_parts() {
    // Three blocks of each file are hot, and all others were read once.
    let alike: Vec<_> = (0..64).map(|at| (at, if at % 20 == 3 { 50 } else { 1 })).collect();
    let files = [file(&alike), file(&alike)];
    let worth = worth(files.iter(), 20_000);
    for file in &files {
        let plan = plan(file, worth, CacheBy::Adaptive).expect("something");
        assert!((9000..=11_000).contains(&plan.bytes()), "half of the room: {plan:?}");
        assert!(plan.reads >= 200.0, "with all that is hot: {plan:?}");
    }
}

#[test]
fn hottest_ranges_of_all_files_fill_the_room() {
    let hot = file(&[(3, 500), (4, 300), (40, 20), (41, 2)]);
    let cold = file(&[(7, 19), (8, 1)]);
    let files = [hot, cold, file(&[])];
    let planned = |room, by| {
        let worth = worth(files.iter(), room);
        files.each_ref().map(|file| plan(file, worth, by).map(|plan| plan.ranges))
    };
    let two = Some(vec![(3000, 2000)]);
    assert_eq!(planned(2000, CacheBy::Adaptive), [two, None, None]);
    let three = Some(vec![(3000, 2000), (40_000, 1000)]);
    let other = Some(vec![(7000, 1000)]);
    assert_eq!(planned(4000, CacheBy::Adaptive), [three, other.clone(), None]);
    let most = Some(vec![(3000, 2000), (40_000, 2000)]);
    assert_eq!(planned(5000, CacheBy::Range), [most, other, None]);
    let all = Some(vec![(3000, 2000), (40_000, 2000)]);
    let both = Some(vec![(7000, 2000)]);
    assert_eq!(planned(100_000, CacheBy::Adaptive), [all, both, None], "more than was counted");
    let whole = Some(vec![(0, 64_000)]);
    assert_eq!(planned(128_000, CacheBy::Adaptive), [whole.clone(), whole.clone(), None]);
    assert_eq!(planned(4000, CacheBy::File), [whole.clone(), whole, None]);
}

#[test]
fn evenly_hot_file_is_copied_whole() {
    let even: Vec<_> = (0..64).map(|index| (index, 10)).collect();
    let plan_of = |file: &FileReads| plan(file, from(0.01), CacheBy::Adaptive);
    assert!(plan_of(&file(&even)).is_some_and(|plan| plan.whole && plan.reads == 640.0));
    assert_eq!(plan_of(&file(&even[..32])).map(|plan| plan.bytes()), Some(32_000));
    let inherited = FileReads::new(64_000, 640.0, 1000, Vec::new());
    assert!(plan_of(&inherited).is_some_and(|plan| plan.whole), "nothing else is known");
    let spans = file(&[(5, 5), (6, 4)]).spans;
    let cooler = FileReads::new(64_000, 320.0, 1000, spans);
    let plan = plan_of(&cooler).expect("a part is worth it");
    assert_eq!((plan.ranges, plan.reads), (vec![(5000, 1000)], 10.0));
}

#[test]
fn overlapping_spans_are_copied_once() {
    let span = |start, len, reads| Span { start, len, reads, odd: 0 };
    let spans = vec![span(900, 4200, 10), span(5000, 4200, 10), span(20_000, 100, 3)];
    let file = FileReads::new(20_050, 0.0, 5000, spans);
    let plan = plan(&file, from(0.002), CacheBy::Range).expect("something");
    assert_eq!(plan.ranges, [(900, 8300), (20_000, 50)], "to the end of the file at most");
    assert_eq!(file.served_by(&[(0, 5050), (20_000, 100)]), 3.0);
    assert_eq!(file.served_by(&[(0, 5100)]), 10.0);
    assert_eq!(file.beside(&[(0, 5100)]).heat(), 13.0, "what a faster copy leaves");
}

#[test]
fn file_with_long_reads_is_judged_as_a_whole() {
    let scanned = |reads| {
        let span = |index: u64| Span { start: index * 1000, len: 16_000, reads, odd: 0 };
        FileReads::new(64_000, 0.0, 1000, (0..20).map(span).collect())
    };
    let files = [scanned(30), scanned(10), file(&[(3, 40), (5, 2)])];
    let worth = worth(files.iter(), 65_000);
    let plans = files.each_ref().map(|file| plan(file, worth, CacheBy::Adaptive));
    let bytes = plans.map(|plan| plan.map(|plan| (plan.whole, plan.bytes())));
    assert_eq!(bytes, [Some((true, 64_000)), None, Some((false, 1000))]);
}

/// Files of 64 ranges of 1,000 bytes with 256 reads each, in scans of `blocks` blocks of `block`
/// bytes. Every second scan is in an odd interval. A percentage of the scans begins in the first
/// eight ranges.
fn scanned(block: u64, blocks: u64, hot: u64) -> Vec<FileReads> {
    let mut rng = archipelago_base::random::Rng::with_seed(3);
    let mut draw = || {
        let reads = crate::cache::ranges::RangeReads::new(64_000, 1000);
        for _ in 0..256 / blocks {
            let among = if rng.u64(..100) < hot { 8000 } else { 64_000 };
            let first = rng.u64(..among / block);
            for at in (first..first + blocks).map(|at| at % (64_000 / block) * block) {
                reads.count(at, block.min(64_000 - at));
            }
            reads.next_interval();
        }
        FileReads::new(64_000, 0.0, 1000, reads.spans())
    };
    (0..50).map(|_| draw()).collect()
}

#[test]
fn range_counts_are_believed_beyond_chance() {
    let trust_of = |files: &[FileReads]| trust(files.iter());
    // Reads of single blocks, with two blocks in about every second range, and scans that read
    // both.
    for (block, blocks) in [(1000, 1), (700, 1), (700, 8), (250, 16)] {
        let alike = trust_of(&scanned(block, blocks, 0));
        assert!(alike < 0.15, "blocks of {block}, {blocks} at once: {alike}");
        let skewed = trust_of(&scanned(block, blocks, 50));
        let least = if blocks == 1 { 0.85 } else { 0.5 };
        assert!(skewed > least, "blocks of {block}, {blocks} at once: {skewed}");
    }
    assert_eq!(trust_of(&[]), 0.0);
    // There is only one interval yet.
    let first = |hot| -> Vec<FileReads> {
        let once = |span: &Span| Span { odd: 0, ..*span };
        let whole = scanned(1000, 1, hot).into_iter();
        whole
            .map(|file| FileReads::new(64_000, 0.0, 1000, file.spans.iter().map(once).collect()))
            .collect()
    };
    assert!(trust_of(&first(0)) < 0.1 && trust_of(&first(50)) > 0.75);
    // If all blocks are equally hot, a block that was read is no better than the next one. So whole
    // files are judged.
    let doubtful = |reads| FileReads { trust: 0.0, ..file(reads) };
    let files = [doubtful(&[(3, 4), (9, 1)]), doubtful(&[(1, 1), (2, 1)])];
    let worth = worth(files.iter(), 64_000);
    let whole = |file| plan(file, worth, CacheBy::Adaptive).map(|plan| plan.whole);
    assert_eq!((whole(&files[0]), whole(&files[1])), (Some(true), None));
    assert_eq!(files[0].served_by(&[(0, 32_000)]), 2.5);
}

#[test]
fn expected_accesses_combine_own_count_and_cohort() {
    let mut file = file(&[(3, 30), (4, 10)]).scaled(2.0, 0.5);
    let counted = file.counted(0.5);
    assert_eq!((counted.accesses, counted.exposure, counted.variance), (40.0, 32_000.0, 0.5));
    assert_eq!((file.heat(), file.variance(0.5)), (80.0, 1.0));
    let part = [(3000, 1000)];
    let mut expect = |mean| {
        file.expect(Expected { own: 0.25, mean, doubt: 0.001 });
        let left = file.beside(&part).heat() + file.served_by(&part);
        assert!((left - file.heat()).abs() < 1e-9, "{left}");
        (file.heat(), file.served_by(&part))
    };
    // The cohort has 640 accesses. The missing ones are spread evenly over the file.
    assert_eq!(expect(0.01), (500.0, 60.0 + 420.0 / 64.0));
    // The cohort has 64 accesses. A range keeps its share.
    assert_eq!(expect(0.001), (68.0, 60.0 * 68.0 / 80.0));
    let variance = file.variance(0.5) * 68.0 - (0.0625 * 80.0 + 0.001 * 48.0 * 48.0);
    assert!(variance.abs() < 1e-9, "{variance}");
    file.expect(Expected { own: 0.0, mean: 0.01, doubt: 0.0 });
    let unread = FileReads { spans: Vec::new(), counted: 0.0, ..file.clone() };
    assert_eq!((file.heat(), unread.heat()), (640.0, 640.0), "both are like their cohort");
    assert!(file.is_read() && !unread.is_read());
}
