use std::collections::BTreeMap;

use super::plan::{Step, StepKind};
use super::run::{SpaceSample, StepRun};
use super::*;
use crate::compare::parse::result_line;
use crate::compare::run::{Side, SideRun};
use crate::page::{Style, Verdict};
use crate::results::{ResultEntry, SettledEntry};
use archipelago_bench::harness::gc::GcFigures;
use archipelago_bench::harness::io::IoEntry;
use archipelago_bench::harness::samples::Stalls;

fn terark_flags(words: &[&str]) -> TerarkEngineFlags {
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    TerarkEngineFlags::read(&args).expect("known flags")
}

fn device() -> DeviceSpec {
    let mut device = DeviceSpec::from_toml(NETWORK_VOLUME).expect("a device");
    device.scale = 0.25;
    device
}

/// Figures of a step whose benchmark `name` did 1,000 operations in `seconds`.
fn step_run(kind: StepKind, name: &str, seconds: f64, settle_s: f64) -> StepRun {
    let line = format!(
        "{name:<12} :  1.000 micros/op {:.0} ops/sec {seconds:.3} seconds 1000 operations;   1.0 MB/s",
        1000.0 / seconds
    );
    let side = SideRun {
        side: Side::Archipelago,
        lines: vec![result_line(&line).expect("a result line")],
        peak_rss_bytes: Some(64 << 20),
        bytes_written: None,
        user_bytes: None,
        write_amplification: None,
        settled_bytes: 0,
        settle_seconds: Some(settle_s),
        read_calls: None,
        bytes_read: None,
        asserts: false,
    };
    StepRun { kind, side, results: Vec::new(), space: Vec::new() }
}

/// The scan that counts the live records of the parts whose space is measured.
fn count(flags: &TerarkEngineFlags) -> StepRun {
    let mut step = step_run(StepKind::Count, Step::COUNTED, 1.0, 0.0);
    step.side.lines[0].ops = plan::live_bytes(flags) / plan::RECORD_BYTES;
    step
}

fn result(name: &str, write_amplification: f64) -> ResultEntry {
    ResultEntry {
        name: name.to_owned(),
        ops: 1000,
        ops_per_s: 1000.0,
        seconds: 1.0,
        latency: BTreeMap::new(),
        stall_seconds: Stalls::default(),
        cpu_seconds: None,
        write_amplification: None,
        settle_seconds: None,
        settled: Some(SettledEntry {
            write_amplification: Some(write_amplification),
            ..SettledEntry::default()
        }),
        io: Vec::new(),
        network: Vec::new(),
        moved: None,
        offload: BTreeMap::new(),
        steps: Default::default(),
        gc: None,
        tiers: None,
    }
}

fn run_of(part: Part, mode: Mode, steps: Vec<StepRun>) -> Run {
    Run { part, mode, round: 0, steps, instructions: BTreeMap::new() }
}

fn row<'r>(rows: &'r [Row], what: &str) -> &'r page::Row {
    let found = rows.iter().map(|row| &row.page_row).find(|row| row.name == what);
    found.unwrap_or_else(|| panic!("{what}: {rows:?}"))
}

#[test]
fn rates_until_settled_are_judged_and_their_bounds_follow_from_the_measured_w() {
    let flags = terark_flags(&["--quick"]);
    let fill = |seconds, amplification| {
        let mut step = step_run(StepKind::Fill, "fillrandom", seconds, seconds);
        step.results.push(result("fillrandom", amplification));
        step
    };
    let update = |seconds, amplification| {
        let mut step = step_run(StepKind::Update, "overwrite", seconds, 0.0);
        step.results.push(result("overwrite", amplification));
        step
    };
    let runs = [
        run_of(Part::Volume, Mode::Inline, vec![fill(3.0, 10.0), update(3.0, 10.0)]),
        run_of(Part::Volume, Mode::Separated, vec![fill(1.0, 2.0), update(2.0, 3.0)]),
    ];
    let device = device();
    let facts = Facts { flags: &flags, device: &device, runs: &runs };
    let rows = facts.rows();
    let fill = row(&rows, "fillrandom until settled: separated / no separation");
    assert_eq!((fill.measured, fill.peer), (Some(500.0), Some(1000.0 / 6.0)));
    assert_eq!((fill.bound.as_str(), fill.verdict), ("4.9×", Verdict::Met));
    let update = row(&rows, "overwrite until settled: separated / no separation");
    assert_eq!((update.bound.as_str(), update.verdict), ("3.4×", Verdict::Missed));
    let sections = report::sections(&facts, &rows);
    let text: String = sections.iter().map(|section| section.text(Style::Markdown)).collect();
    assert!(text.contains(" 8.00 |"), "W is on the page: {text}");
    for row in &rows {
        assert!(text.contains(&row.page_row.name), "{}", row.page_row.name);
    }
}

#[test]
fn bounds_of_the_plain_disk_follow_from_bytes_and_reads() {
    let flags = terark_flags(&["--quick"]);
    let step = |kind, name: &str, amplification| {
        let mut step = step_run(kind, name, 1.0, 1.0);
        step.results.push(result(name, amplification));
        step
    };
    let fill = |amplification| step(StepKind::Fill, "fillrandom", amplification);
    let update = || step(StepKind::Update, "overwrite", 10.0);
    let read = || step_run(StepKind::Read, "readrandom", 1.0, 0.0);
    let mut of_peer = update();
    of_peer.side.write_amplification = Some(4.0);
    let value_bytes = plan::live_bytes(&flags) * 3 / 2;
    let sample =
        SpaceSample { t_s: 0.0, table_bytes: 0, value_bytes, log_bytes: 0, is_updating: true };
    of_peer.space.push(sample);
    let runs = [
        run_of(Part::Fill, Mode::Inline, vec![fill(10.0)]),
        run_of(Part::Fill, Mode::BlobDb, vec![fill(2.0)]),
        run_of(Part::Fill, Mode::Separated, vec![fill(2.0)]),
        run_of(Part::Update, Mode::Inline, vec![update(), read()]),
        run_of(Part::Update, Mode::BlobDb, vec![of_peer, read(), count(&flags)]),
        run_of(Part::Update, Mode::AsBlobDb, vec![update(), read()]),
    ];
    let device = device();
    let rows = Facts { flags: &flags, device: &device, runs: &runs }.rows();
    let bound = |what: &str| row(&rows, what).bound.as_str();
    assert_eq!(bound("fillrandom until settled: separated / no separation"), "4.9×");
    assert_eq!(bound("fillrandom until settled: separated / BlobDB"), "1.0×");
    let share = plan::share_in_levels();
    let allowed = plan::bound_below(&flags, 1.5) - 1.0;
    let separated = bounds::writes_separated(8.0, share, bounds::plan(allowed, share).cost);
    let ours = "overwrite until settled: separated, at BlobDB's space";
    assert_eq!(bound(&format!("{ours} / BlobDB")), format!("{:.1}×", 4.0 / separated));
    assert_eq!(bound(&format!("{ours} / no separation")), format!("{:.1}×", 10.0 / separated));
    assert_eq!(bound("readrandom: separated, at BlobDB's space / no separation"), "1.00×");
}

#[test]
fn space_counts_every_sample_during_the_updates_and_no_other() {
    let flags = terark_flags(&["--data_bytes=104857600"]);
    let live = plan::live_bytes(&flags);
    let sample = |t_s: f64, share: f64, is_updating| SpaceSample {
        t_s,
        table_bytes: live / 100,
        value_bytes: (live as f64 * (share - 0.01)) as u64,
        log_bytes: 8 << 20,
        is_updating,
    };
    let run = |mode, worst| {
        let mut step = step_run(StepKind::Update, "overwrite", 1.0, 0.0);
        step.space =
            vec![sample(0.0, 1.1, true), sample(0.1, worst, true), sample(0.2, 9.0, false)];
        run_of(Part::Space, mode, vec![step, count(&flags)])
    };
    let runs = [run(Mode::Bound125, 1.24), run(Mode::Bound150, 1.51), run(Mode::BlobDb, 2.1)];
    let device = device();
    let facts = Facts { flags: &flags, device: &device, runs: &runs };
    let rows = facts.rows();
    let tight = row(&rows, "largest space amplification at a sample, bound 1.25");
    assert_eq!(tight.verdict, Verdict::Met);
    let loose = row(&rows, "largest space amplification at a sample, bound 1.5");
    assert_eq!(loose.verdict, Verdict::Missed, "a single sample over the bound is a miss");
    let peer = row(&rows, "mean space amplification, bound 1.25: separated, bound 1.25 / BlobDB");
    assert!((peer.ratio.expect("both sides").median - 1.17 / 1.6).abs() < 1e-3, "{peer:?}");
    let plots = plots::all(&facts);
    assert_eq!(plots.len(), 1);
    assert!(plots[0].0 == "space-throttled.svg" && plots[0].1.contains("BlobDB"));
}

#[test]
fn live_bytes_are_those_that_a_scan_counts() {
    let flags = terark_flags(&["--data_bytes=104857600"]);
    let live = plan::live_bytes(&flags);
    let run = |mode, counted: u64| {
        let mut step = step_run(StepKind::Update, "overwrite", 1.0, 0.0);
        let (table_bytes, value_bytes) = (0, live * 11 / 10);
        let sample =
            SpaceSample { t_s: 0.0, table_bytes, value_bytes, log_bytes: 0, is_updating: true };
        step.space.push(sample);
        let mut scan = count(&flags);
        scan.side.lines[0].ops = counted;
        run_of(Part::Space, mode, vec![step, scan])
    };
    let records = live / plan::RECORD_BYTES;
    let all = run(Mode::Bound115, records);
    assert!((all.space_max().expect("a space") - 1.1).abs() < 1e-6);
    let half = run(Mode::Bound115, records / 2);
    assert!((half.space_max().expect("a space") - 2.2).abs() < 1e-6);
    assert_eq!(run(Mode::Bound115, 0).space_max(), None, "nothing is live");
    let device = device();
    let runs = [all];
    let rows = Facts { flags: &flags, device: &device, runs: &runs }.rows();
    let stretch = row(&rows, "largest space amplification at a sample, bound 1.15");
    assert_eq!(stretch.verdict, Verdict::Met);
    // The slack of 36 MiB is more than a third of 100 MiB.
    assert_eq!(stretch.bound, "≥ 1.0; the engine promises 1.41 for so few bytes");
}

#[test]
fn collection_is_judged_by_calls_bytes_and_time() {
    let flags = terark_flags(&["--quick"]);
    let mut update = step_run(StepKind::Update, "overwrite", 1.0, 0.0);
    let mut entry = result("overwrite", 3.0);
    entry.gc = Some(GcFigures {
        jobs: 4,
        files: 8,
        file_bytes: 32 << 20,
        records: 2000,
        valid_records: 1000,
        valid_bytes: 16 << 20,
        key_read_s: 0.1,
        lookup_s: 0.1,
        value_read_s: 0.3,
        finish_s: 9.0,
    });
    let io = |class: &str, purpose: &str, read_calls, read_bytes| IoEntry {
        class: class.to_owned(),
        purpose: purpose.to_owned(),
        read_calls,
        read_bytes,
        ..IoEntry::default()
    };
    entry.io = vec![
        io("value-sst", "gc", 12, 16 << 20),
        io("sst", "gc", 8, 1 << 20),
        io("sst", "compaction", 9999, 9999),
    ];
    update.results.push(entry);
    // A look-up and a read take 5 ms, so the 1,000 valid records take 5 s one by one.
    let by_key = step_run(StepKind::KeyByKey, "readrandom", 5.0, 0.0);
    let runs = [run_of(Part::Gc, Mode::Separated, vec![update, by_key])];
    let device = device();
    let facts = Facts { flags: &flags, device: &device, runs: &runs };
    let rows = facts.rows();
    let calls = row(&rows, "read calls per record");
    assert_eq!((calls.measured, calls.bound.as_str()), (Some(0.01), "≥ 0.008"));
    let bytes =
        row(&rows, "bytes read, over 1.25 times the valid bytes and 0.5 % of the files").measured;
    assert!((bytes.expect("bytes") - 0.5 / 0.63).abs() < 1e-9, "{bytes:?}");
    let bytes = row(&rows, "bytes read, over the valid bytes and 0.5 % of the files");
    assert!((bytes.measured.expect("bytes") - 0.5 / 0.505).abs() < 1e-9, "{bytes:?}");
    assert_eq!(bytes.bound, "1.00", "half of a per cent of the files is keys: {bytes:?}");
    let time = row(&rows, "time, over look-ups and reads key by key");
    assert!((time.measured.expect("a time") - 0.1).abs() < 1e-9, "{time:?}");
    // 1,000 operations of 4,000 a second, and two round trips of 2 ms for each of four jobs.
    assert_eq!(time.bound, "≥ 0.053");
    assert!(rows.iter().all(|row| row.page_row.verdict == Verdict::Met), "{rows:?}");
}

#[test]
fn run_without_collection_fails_the_rows_of_collection() {
    let flags = terark_flags(&["--quick"]);
    let update = step_run(StepKind::Update, "overwrite", 1.0, 0.0);
    let runs = [run_of(Part::Gc, Mode::Separated, vec![update])];
    let device = device();
    let rows = Facts { flags: &flags, device: &device, runs: &runs }.rows();
    let have_failed = rows.iter().all(|row| row.page_row.verdict == Verdict::Failed);
    assert!(!rows.is_empty() && have_failed, "{rows:?}");
}

#[test]
fn bounds_on_space_leave_room_for_the_slack() {
    let whole = terark_flags(&[]);
    let slack = plan::slack_bytes() as f64 / plan::live_bytes(&whole) as f64;
    assert!((0.03..0.04).contains(&slack), "about 3 % of 1 GiB: {slack}");
    assert!((plan::bound_below(&whole, 1.25) + slack - 1.25).abs() < 1e-9);
    assert_eq!(plan::bound_below(&whole, 1.01), 1.05, "the least that the engine takes");
}

#[test]
fn both_sides_get_the_same_sizes_and_every_word_is_known() {
    let flags = terark_flags(&["--quick", "--db_bench_flags=--use_blob_cache=false"]);
    for part in Part::ALL {
        let mut shared: Option<Vec<String>> = None;
        for &mode in part.modes() {
            let case = Case { flags: &flags, part, mode, round: 1, peer_space: Some(1.8) };
            let dir = Path::new("/tmp/x");
            let steps = plan::steps(part);
            let words: Vec<Vec<String>> =
                steps.iter().enumerate().map(|(at, step)| case.words(at, *step, dir)).collect();
            let of_mode = |word: &String| {
                let name = word.trim_start_matches("--").split('=').next().unwrap_or_default();
                name.contains("blob")
                    || name.contains("value_separation")
                    || name.contains("space_amplification")
                    || name.contains("prefetch")
                    || name.contains("value_file")
                    || name == "wal_segment_size"
            };
            let plain: Vec<String> =
                words.iter().flatten().filter(|word| !of_mode(word)).cloned().collect();
            assert_eq!(*shared.get_or_insert_with(|| plain.clone()), plain, "{part:?} {mode:?}");
            if mode == Mode::BlobDb {
                assert!(words.iter().flatten().any(|word| word == "--use_blob_cache=false"));
                continue;
            }
            for words in &words {
                let given: Vec<OsString> = words.iter().map(OsString::from).collect();
                let (_, ignored) = archipelago_bench::harness::flags::read(&given)
                    .unwrap_or_else(|stop| panic!("{words:?}: {stop:?}"));
                assert_eq!(ignored, Vec::<String>::new());
            }
        }
    }
}

#[test]
fn rows_of_the_earlier_program_need_that_program() {
    assert!(!terark_flags(&[]).parts().contains(&Part::Off));
    assert!(terark_flags(&["--before=/tmp/x"]).parts().contains(&Part::Off));
    let args = ["--rows=off"].map(OsString::from);
    assert!(
        matches!(TerarkEngineFlags::read(&args), Err(Stop::Usage(text)) if text.contains("--before"))
    );
}

#[test]
fn steps_start_empty_only_where_they_load() {
    for part in Part::ALL {
        let steps = plan::steps(part);
        let is_load = |step: &Step| {
            matches!(step.kind, StepKind::Fill | StepKind::Load | StepKind::Prepare(_))
        };
        assert!(steps.iter().all(|step| step.is_fresh == is_load(step)), "{part:?}");
        assert!(steps.first().is_none_or(|step| step.is_fresh), "{part:?}");
    }
}
