use std::collections::BTreeMap;
use std::path::Path;

use super::entry::Entry;
use super::flags::Settings;
use super::report::{Line, about, failures, lines, section};
use super::rows::{Metric, NAMES, ROWS, Target};
use super::steps::{Needs, Step, args};
use super::*;
use crate::compare::run::{Side, SideRun};
use crate::page::Verdict;

fn settings(words: &[&str]) -> Settings {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    flags::read(&words).expect("known flags").settings()
}

#[test]
fn whole_table_fits_into_an_hour() {
    let settings = settings(&[]);
    assert_eq!((settings.num, settings.reads, settings.runs), (10_000_000, 1_000_000, 5));
    let steps = plan::steps(&settings);
    assert_eq!(steps, Step::ALL);
    let costs = plan::costs(&steps, &settings);
    let repeats = plan::repeats(&costs, &settings, 0);
    let minutes = plan::total(&costs, &repeats) / 60.0;
    assert!(minutes <= 60.0, "{minutes}\n{}", plan::text(&costs, &repeats, &settings));
    // The rows that vary, and those with the highest targets, keep their five runs.
    for step in
        [Step::FillSeq, Step::FillRandom, Step::Warm, Step::Warm2, Step::Mixed, Step::Overwrite]
    {
        assert_eq!(repeats[&step], 5, "{step:?}");
    }
    assert!(repeats.values().all(|&runs| runs >= 3), "{repeats:?}");
    assert!(plan::text(&costs, &repeats, &settings).contains("lowered to save time"));
}

#[test]
fn runs_are_lowered_in_order_and_not_below_three() {
    let mut settings = settings(&["--minutes=10"]);
    let costs: BTreeMap<Step, f64> = [(Step::Throttled, 100.0), (Step::Warm, 60.0)].into();
    // 5 × 160 s are 800; three of the slow one make 600.
    let wanted: BTreeMap<Step, u64> = [(Step::Throttled, 3), (Step::Warm, 5)].into();
    assert_eq!(plan::repeats(&costs, &settings, 0), wanted);
    assert_eq!(plan::total(&costs, &wanted), 600.0);
    // Runs that happened stay, and so do steps that are not candidates.
    assert_eq!(plan::repeats(&costs, &settings, 4)[&Step::Throttled], 4);
    settings.minutes = 1;
    assert_eq!(plan::repeats(&costs, &settings, 0), wanted);
    let repeats = plan::repeats(&costs, &settings, 0);
    assert!(plan::text(&costs, &repeats, &settings).contains("more than the 1 of --minutes"));
    settings.minutes = 0;
    assert_eq!(plan::repeats(&costs, &settings, 0)[&Step::Throttled], 5);
    (settings.runs, settings.minutes) = (2, 1);
    assert_eq!(plan::repeats(&costs, &settings, 0)[&Step::Throttled], 2);
}

#[test]
fn chosen_rows_include_the_load_that_they_need() {
    let settings = settings(&["--rows", "seekrandom10,readcold", "--quick"]);
    let steps = plan::steps(&settings);
    assert_eq!(steps, [Step::Cold, Step::Mixed]);
    let costs = plan::costs(&steps, &settings);
    let load: f64 = [Side::Archipelago, Side::RocksDb]
        .into_iter()
        .map(|side| plan::estimate(Step::FillRandom, side, &settings))
        .sum();
    assert!(costs[&Step::Cold] > load, "the first of them pays for the load: {costs:?}");
    let what: Vec<&str> = lines(&settings, &[]).iter().map(|line| line.name).collect();
    assert_eq!(what, ["readcold", "readcold", "readcold", "seekrandom10"]);
}

#[test]
fn every_row_name_has_rows() {
    for name in NAMES {
        assert!(ROWS.iter().any(|row| row.name == *name), "{name}");
    }
    assert!(ROWS.iter().all(|row| NAMES.contains(&row.name)));
    let refused = flags::read(&["--rows=fillseq,fillfoo".into()]);
    assert!(matches!(refused, Err(Stop::Usage(text)) if text.contains("'fillfoo'")));
    assert!(flags::read(&["--resume=x".into(), "--num=5000".into()]).is_err(), "one or the other");
}

#[test]
fn both_sides_get_the_same_flags() {
    let settings = settings(&["--db_bench_flags=--cache_index_and_filter_blocks=true"]);
    let mut seeds = Vec::new();
    for (round, step) in (0..2).flat_map(|round| Step::ALL.map(|step| (round, step))) {
        let dir = Path::new("/tmp/x");
        let ours = args(Side::Archipelago, step, &settings, round, dir, None);
        let theirs = args(Side::RocksDb, step, &settings, round, dir, None);
        assert_eq!(ours[0], "bench");
        assert_eq!(ours[1..], theirs[..theirs.len() - 1], "{step:?}");
        assert_eq!(theirs[theirs.len() - 1], "--cache_index_and_filter_blocks=true");
        let given: Vec<OsString> = ours[1..].iter().map(OsString::from).collect();
        let (flags, ignored) = archipelago_bench::harness::flags::read(&given)
            .expect("our side takes what it is given");
        assert_eq!(ignored, Vec::<String>::new(), "{step:?}");
        assert_eq!(
            flags.storage.use_existing_db,
            matches!(step.needs(), Needs::Loaded | Needs::LoadedToChange)
        );
        assert_eq!(flags.load.sync, step == Step::FillSync);
        assert_eq!(flags.storage.use_direct_reads, step == Step::Cold);
        assert!(!flags.load.disable_wal);
        seeds.push(flags.load.seed);
    }
    let all = seeds.len();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), all, "the same seed twice reads what it wrote, in that order");
    let opening = args(Side::RocksDb, Step::Cold, &settings, 0, Path::new("/tmp/x"), Some(1));
    assert!(opening.contains(&"--reads=1".to_owned()), "{opening:?}");
}

#[test]
fn caches_are_a_tenth_and_more_than_all() {
    assert_eq!(steps::cold_cache_bytes(10_000_000), 116_000_000);
    assert!(steps::warm_cache_bytes(10_000_000) > 11 * 116_000_000);
}

/// A run whose benchmark `name` did `ops` operations in a second.
fn side_run(side: Side, name: &str, ops: u64, read_calls: u64) -> SideRun {
    let line = format!(
        "{name:<12} :       1.000 micros/op {ops} ops/sec 1.000 seconds {ops} operations;   1.0 MB/s"
    );
    SideRun {
        side,
        lines: vec![crate::compare::parse::result_line(&line).expect("a result line")],
        peak_rss_bytes: Some(3 << 20),
        bytes_written: Some(500),
        user_bytes: Some(250),
        write_amplification: Some(2.0),
        settled_bytes: 2 << 20,
        settle_seconds: Some(3.0),
        read_calls: Some(read_calls),
        bytes_read: Some(read_calls * 4096),
        asserts: side == Side::RocksDb,
    }
}

fn entry(round: u64, step: Step, run: std::result::Result<SideRun, Side>) -> Entry {
    let side = match &run {
        Ok(run) => run.side,
        Err(side) => *side,
    };
    let error = run.as_ref().err().map(|_| "the disk\nis full".to_owned());
    Entry { round, step, side, seconds: 1.0, run: run.ok(), opening: None, error }
}

#[test]
fn figures_come_from_the_run() {
    let mut run = side_run(Side::RocksDb, "fillrandom", 800, 1100);
    assert_eq!(Metric::Rate("fillrandom").of(&run, None), Some(800.0));
    assert_eq!(Metric::SettledRate("fillrandom").of(&run, None), Some(200.0));
    assert_eq!(Metric::PeakMib.of(&run, None), Some(3.0));
    assert_eq!(Metric::SettledMib.of(&run, None), Some(2.0));
    assert_eq!(Metric::Rate("overwrite").of(&run, None), None);
    assert_eq!(Metric::Longest("fillrandom", "write").of(&run, None), None, "nothing was timed");
    assert_eq!(Metric::ReadCallsPerGet.of(&run, None), None, "what opening takes is not known");
    // Another 100 calls at the opening, and a get: 1000 calls for 799 gets.
    let opening = side_run(Side::RocksDb, "fillrandom", 1, 100);
    let per_get = Metric::ReadCallsPerGet.of(&run, Some(&opening)).expect("both are known");
    assert!((per_get - 1000.0 / 799.0).abs() < 1e-9, "{per_get}");
    run.settle_seconds = None;
    assert_eq!(Metric::SettledRate("fillrandom").of(&run, None), None);
    // The first result of a name warmed the cache.
    let later = side_run(Side::RocksDb, "fillrandom", 900, 0).lines;
    run.lines.extend(later);
    assert_eq!(Metric::Rate("fillrandom").of(&run, None), Some(900.0));
}

#[test]
fn target_is_reached_at_its_bound() {
    assert!(
        Target::AtLeast(2.5).is_reached(2.5, 0.0) && !Target::AtLeast(2.5).is_reached(2.49, 0.0)
    );
    assert!(Target::AtMost(0.6).is_reached(0.6, 9.0) && !Target::AtMost(0.6).is_reached(0.61, 0.0));
    assert!(Target::WorstAtMost(100.0).is_reached(9.0, 100.0));
    assert!(!Target::WorstAtMost(100.0).is_reached(0.1, 101.0), "one long write is too many");
    assert!(!Target::AtLeast(1.0).is_reached(f64::NAN, 0.0));
    assert!(!Target::AtMost(1.0).is_reached(f64::NAN, 0.0));
}

#[test]
fn row_counts_rounds_in_which_both_sides_ran() {
    let settings = settings(&["--rows=fillrandom2,fillsync"]);
    let (ours, theirs) = (Side::Archipelago, Side::RocksDb);
    let ran = |side, ops| Ok(side_run(side, "fillrandom", ops, 0));
    let entries = [
        entry(0, Step::FillRandom2, ran(ours, 4000)),
        entry(0, Step::FillRandom2, ran(theirs, 1000)),
        entry(1, Step::FillRandom2, ran(ours, 9000)),
        entry(1, Step::FillRandom2, Err(theirs)),
        entry(2, Step::FillRandom2, ran(ours, 4000)),
        entry(2, Step::FillRandom2, ran(theirs, 2000)),
        entry(0, Step::FillSync, Err(ours)),
    ];
    let lines = lines(&settings, &entries);
    let found: Vec<_> = lines.iter().map(|line: &Line| (line.runs, line.verdict)).collect();
    assert_eq!(found, [(2, Verdict::Missed), (0, Verdict::Failed)]);
    let figures = lines[0].figures.as_ref().expect("two rounds");
    assert_eq!((figures.archipelago.median, figures.rocksdb.median), (4000.0, 1500.0));
    assert_eq!((figures.ratio_min, figures.ratio_max), (2.0, 4.0));
    let text = section(&lines, &entries).text(Style::Markdown);
    let cells = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("| {name}")));
        let cells = line.expect(name).trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let two = ["4,000", "1,500", "ops/s", "2.67×", "2.00× – 4.00×", "≥ 3×", "**missed**", "2"];
    assert_eq!(cells("fillrandom, 2 threads")[1..9], two, "{text}");
    let sync = ["", "", "ops/s", "", "", "≥ 1×", "**failed**", "0"];
    assert_eq!(cells("fillsync")[1..9], sync, "{text}");
    let settled = about(&settings, &Host::default(), "0.1", &entries);
    assert!(settled.contains("RocksDB (db_bench) says that its assertions are on"), "{settled}");
    assert!(text.contains("Failed: fillrandom, 2 threads, RocksDB (db_bench), run 2: the disk is"));
    assert_eq!(failures(&entries).len(), 2);
    let verdict = page::verdict_line(section(&lines, &entries).rows.iter());
    assert_eq!(verdict, "0 of 2 targets reached.");
    let narrow = [
        entry(0, Step::FillRandom2, ran(ours, 29_999)),
        entry(0, Step::FillRandom2, ran(theirs, 10_000)),
    ];
    let lines = report::lines(&settings, &narrow);
    let text = section(&lines, &narrow).text(Style::Markdown);
    assert!(text.contains("| 2.99990× |") && text.contains("**missed**"), "{text}");
}
