use std::collections::BTreeMap;

use archipelago_bench::harness::network::NetworkEntry;
use archipelago_bench::harness::samples::Stalls;

use super::modes::{Mode, Workload};
use super::plan::{Course, Group, Step};
use super::run::{SpaceSample, StepRun};
use super::words::DatabasePlace;
use super::*;
use crate::page::{Style, Verdict};
use crate::results::{LatencyEntry, ResultEntry, SettledEntry};

fn nodes_flags(words: &[&str]) -> NodesFlags {
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    NodesFlags::read(&args).expect("known flags")
}

fn entry(class: &str, messages: u64, bytes: u64) -> NetworkEntry {
    NetworkEntry {
        class: class.to_owned(),
        sent_messages: messages,
        sent_bytes: bytes,
        ..NetworkEntry::default()
    }
}

/// What a benchmark `name` of 1,000 operations measured.
struct Measured<'a> {
    name: &'a str,
    seconds: f64,
    settle_s: f64,
    write_amplification: f64,
    latency_ms: f64,
    cpu_s: f64,
}

const LOAD: Measured<'_> = Measured {
    name: "fixed16kload",
    seconds: 1.0,
    settle_s: 0.0,
    write_amplification: 10.0,
    latency_ms: 10.0,
    cpu_s: 1.0,
};

fn result(measured: &Measured<'_>) -> ResultEntry {
    let network = vec![entry("log", 100, 20_000_000), entry("flush", 10, 60_000_000)];
    let mean_ns = measured.latency_ms * 1e6;
    let latency = LatencyEntry { mean_ns, p99_ns: 0, max_ns: 0 };
    ResultEntry {
        name: measured.name.to_owned(),
        ops: 1000,
        ops_per_s: 1000.0 / measured.seconds,
        seconds: measured.seconds,
        latency: ["read", "write"].map(|kind| (kind.to_owned(), latency)).into(),
        stall_seconds: Stalls::default(),
        cpu_seconds: Some(measured.cpu_s),
        write_amplification: None,
        settle_seconds: Some(measured.settle_s),
        settled: Some(SettledEntry {
            write_amplification: Some(measured.write_amplification),
            cpu_seconds: Some(measured.cpu_s),
            network: network.clone(),
            moved: None,
        }),
        io: Vec::new(),
        network,
        moved: None,
        offload: BTreeMap::new(),
        gc: None,
        tiers: None,
    }
}

fn step_run(step: Step, measured: &Measured<'_>) -> StepRun {
    StepRun {
        step,
        results: vec![result(measured)],
        nodes_cpu_s: Some(1.0),
        busy_share: Some(0.5),
        space: Vec::new(),
        sent: Vec::new(),
        event: None,
    }
}

fn run_of(mode: Mode, card: Card, steps: Vec<StepRun>) -> Run {
    let cell = Cell { workload: Workload::Fixed16k, mode, card, course: Course::Whole };
    Run { cell, round: 0, steps }
}

fn row<'r>(rows: &'r [Row], what: &str) -> &'r Row {
    let found = rows.iter().find(|row| row.what == what);
    found.unwrap_or_else(|| panic!("{what}: {:?}", rows.iter().map(|row| &row.what)))
}

#[test]
fn client_takes_the_words_of_every_step() {
    let flags = nodes_flags(&["--quick"]);
    let cells = plan::cells(&flags);
    assert!(cells.len() > 50, "{}", cells.len());
    let known = |words: Vec<String>| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        archipelago_bench::harness::flags::read(&words).map(drop)
    };
    for cell in cells.into_iter().filter(|cell| !cell.mode.is_buffered()) {
        let case = Case { flags: &flags, cell, round: 0 };
        for (at, &step) in cell.course.steps().iter().chain(&[Step::Owner]).enumerate() {
            let (dir, device) = (Path::new("/tmp/db"), Some(Path::new("/tmp/device.toml")));
            let place = match cell.mode.is_local() {
                true => DatabasePlace::Local { dir, device },
                false => DatabasePlace::Store("127.0.0.1:7700"),
            };
            let words = case.words(at, step, place);
            if let Err(stop) = known(words.clone()) {
                panic!("{}: {words:?}: {stop:?}", cell.name());
            }
            let is_emulated = words.iter().any(|word| word.starts_with("--network_bytes_per_s="));
            assert_eq!(is_emulated, !cell.mode.is_local() && cell.card != Card::Absent);
        }
    }
}

#[test]
fn cells_are_planned_once_and_a_whole_course_contains_the_load() {
    let flags = nodes_flags(&["--only=insert,update,log", "--workloads=mixed8k"]);
    let cells = plan::cells(&flags);
    for (at, cell) in cells.iter().enumerate() {
        assert!(!cells[..at].contains(cell), "{cell:?}");
        assert_eq!(cell.workload, Workload::Mixed8k);
    }
    let courses = |card| {
        let on = cells.iter().filter(move |cell| cell.card == card);
        on.map(|cell| cell.course).collect::<Vec<_>>()
    };
    assert_eq!(courses(Card::Full), [Course::Whole; 6]);
    assert_eq!(courses(Card::Fourfold), [Course::Fill; 2]);
    let alone = plan::cells(&nodes_flags(&["--only=insert", "--workloads=mixed8k"]));
    assert!(alone.iter().all(|cell| cell.course == Course::Fill) && alone.len() == 6);
}

#[test]
fn live_bytes_are_those_that_the_workload_writes() {
    let flags = nodes_flags(&["--data_bytes=16777216"]);
    let fixed = Workload::Fixed16k;
    assert_eq!(fixed.live_bytes(&flags), fixed.records(&flags) * (24 + 16_384));
    for workload in Workload::ALL {
        let ratio = workload.live_bytes(&flags) as f64 / 16_777_216.0;
        assert!((0.9..1.1).contains(&ratio), "{workload:?}: {ratio}");
    }
    let shares = Workload::ALL.map(|workload| workload.share_in_levels(&flags));
    assert!(shares[0] < shares[1] && shares[1] < shares[2] && shares[2] < 0.4, "{shares:?}");
}

#[test]
fn inserts_are_judged_and_their_bound_follows_from_the_measured_w() {
    let flags = nodes_flags(&["--quick", "--only=insert"]);
    let of = |mode, seconds| {
        let measured = Measured { seconds, settle_s: seconds, ..LOAD };
        run_of(mode, Card::Full, vec![step_run(Step::Load, &measured)])
    };
    let runs = [of(Mode::InlineR3, 5.0), of(Mode::SeparatedR3, 1.0), of(Mode::AllOn, 1.0)];
    let facts = Facts { flags: &flags, runs: &runs };
    assert_eq!(facts.rewrites(Workload::Fixed16k, Step::Load), Some(8.0));
    let rows = facts.rows(&claims::all());
    let over_inline = row(&rows, "insert until settled, fixed16k: all on / no separation, R3");
    assert_eq!((over_inline.measured, over_inline.peer), (Some(500.0), Some(100.0)));
    assert_eq!((over_inline.bound.as_str(), over_inline.verdict), ("6.53×", Verdict::Met));
    let over_separated = row(&rows, "insert until settled, fixed16k: all on / separated, R3");
    assert_eq!(over_separated.verdict, Verdict::Missed);
    let share = row(&rows, "share of the bound over no separation, R3, fixed16k: all on");
    assert!(share.measured.is_some_and(|share| (0.75..0.8).contains(&share)), "{share:?}");
    assert_eq!(share.verdict, Verdict::Missed);
    let sections = report::sections(&facts, &rows, &[]);
    let text: String = sections.iter().map(|section| section.text(Style::Markdown)).collect();
    for row in &rows {
        assert!(text.contains(&row.what), "{}", row.what);
    }
    assert!(text.contains(" 8.00 |"), "W is on the page: {text}");
    // 80 MB in two seconds, by a card of 125 MB/s.
    assert!(text.contains(" 0.32 |") && text.contains("round trips"), "{text}");
}

#[test]
fn adaptive_log_is_judged_by_the_gain_of_the_model() {
    let flags = nodes_flags(&["--quick", "--only=log", "--workloads=fixed16k"]);
    let of = |mode, latency_ms, seconds| {
        let measured = Measured { latency_ms, seconds, ..LOAD };
        run_of(mode, Card::Fourfold, vec![step_run(Step::Load, &measured)])
    };
    let runs = [of(Mode::Dr, 10.0, 1.2), of(Mode::AllOn, 6.0, 1.0)];
    let facts = Facts { flags: &flags, runs: &runs };
    let rows = facts.rows(&claims::all());
    let faster = row(&rows, "insert, fixed16k, card 4×: all on / separated, DR");
    assert_eq!(faster.verdict, Verdict::Met);
    let saved = row(&rows, "saved latency over that of the model, fixed16k, card 4×: all on");
    // Groups of 200,000 B: 2 ms, 0.8 ms and 8 ms, of which segments save 6 ms.
    let gain = 6.0 / 10.8;
    assert!(saved.measured.is_some_and(|saved| (saved - 0.4 / gain).abs() < 1e-9), "{saved:?}");
    assert_eq!(saved.verdict, Verdict::Met);
}

#[test]
fn space_counts_every_sample_and_the_last_one_is_compared() {
    let flags = nodes_flags(&["--quick", "--only=space", "--workloads=fixed16k"]);
    let live = Workload::Fixed16k.live_bytes(&flags);
    let of = |mode, logical: [f64; 2], copies: f64| {
        let mut step = step_run(Step::Throttled, &Measured { name: "fixed16kupdate", ..LOAD });
        step.space = logical
            .map(|amplification| SpaceSample {
                t_s: 0.0,
                stored_bytes: (copies * amplification * live as f64) as u64,
                logical_bytes: (amplification * live as f64) as u64,
                log_bytes: 0,
            })
            .into();
        run_of(mode, Card::Full, vec![step])
    };
    let runs = [
        of(Mode::InlineR3, [1.1, 1.12], 3.0),
        of(Mode::SeparatedR3, [1.5, 1.96], 3.0),
        of(Mode::AllOn, [1.3, 1.2], 1.5),
    ];
    let facts = Facts { flags: &flags, runs: &runs };
    let rows = facts.rows(&claims::all());
    let largest = row(&rows, "largest space amplification at a sample, fixed16k: all on");
    assert_eq!(largest.verdict, Verdict::Missed, "one sample was above the bound");
    let over_inline = row(&rows, "stored bytes, fixed16k: all on / no separation, R3");
    assert!(over_inline.ratio.is_some_and(|ratio| (ratio - 1.8 / 3.36).abs() < 1e-6));
    assert_eq!(over_inline.verdict, Verdict::Met);
    let over_separated = row(&rows, "stored bytes, fixed16k: all on / separated, R3");
    assert_eq!(over_separated.verdict, Verdict::Met);
}

#[test]
fn cost_follows_from_space_and_processor_time() {
    let flags = nodes_flags(&["--quick", "--only=cost"]);
    let of = |mode, stored: u64, cpu_s: f64| {
        let named = |name| Measured { name, cpu_s, ..LOAD };
        let mut throttled = step_run(Step::Throttled, &named("mixed8kupdate"));
        throttled.space =
            vec![SpaceSample { t_s: 0.0, stored_bytes: stored, logical_bytes: 0, log_bytes: 0 }];
        let mut steps = vec![
            throttled,
            step_run(Step::Update, &named("mixed8kupdate")),
            step_run(Step::Read, &named("mixed8kread")),
        ];
        steps.iter_mut().for_each(|step| step.nodes_cpu_s = Some(0.0));
        let mut run = run_of(mode, Card::Full, steps);
        run.cell.workload = Workload::Mixed8k;
        run
    };
    let runs = [of(Mode::InlineR3, 1000, 4.0), of(Mode::AllOn, 500, 1.0)];
    let facts = Facts { flags: &flags, runs: &runs };
    let wanted = 0.5 * 0.3788 + 0.25 * 0.5760 + 0.25 * 0.0364;
    let found = facts.cost(Workload::Mixed8k, Mode::AllOn).expect("a cost");
    assert!((found - wanted).abs() < 1e-9, "{found}");
    let rows = facts.rows(&claims::all());
    let over_inline = row(&rows, "cost at the paper's prices, mixed8k: all on / no separation, R3");
    assert_eq!(over_inline.verdict, Verdict::Met);
}

#[test]
fn rows_of_failed_runs_are_shown_as_failed() {
    let flags = nodes_flags(&["--quick", "--only=redundancy", "--workloads=fixed16k"]);
    let runs = [
        run_of(Mode::SeparatedR3, Card::Full, vec![step_run(Step::Load, &LOAD)]),
        run_of(Mode::Dr, Card::Full, Vec::new()),
    ];
    let facts = Facts { flags: &flags, runs: &runs };
    let rows = facts.rows(&claims::all());
    let failed = row(&rows, "insert until settled, fixed16k: separated, DR / separated, R3");
    assert_eq!(failed.verdict, Verdict::Failed);
}

#[test]
fn limit_of_a_run_is_its_fullest_resource() {
    assert_eq!(report::limit(Some(0.95), Some(0.5)), "card");
    assert_eq!(report::limit(Some(0.95), Some(0.9)), "processors");
    assert_eq!(report::limit(Some(0.5), Some(0.5)), "round trips");
    assert_eq!(report::limit(None, None), "unknown");
}

#[test]
fn every_group_has_rows() {
    let claims = claims::all();
    let groups: BTreeMap<&str, usize> = claims.iter().fold(BTreeMap::new(), |mut all, claim| {
        *all.entry(claim.group().title()).or_default() += 1;
        all
    });
    for group in Group::ALL {
        assert!(groups.contains_key(group.title()), "{group:?}");
    }
}
