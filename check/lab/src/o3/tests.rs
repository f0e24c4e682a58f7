use std::collections::BTreeMap;

use archipelago_bench::harness::samples::Stalls;
use archipelago_bench::harness::steps::StepFigures;

use super::databases::{DatabaseFigures, DatabasesFigures, OwnerResult};
use super::plan::{Group, Keys, LeftShards, SeveralKind, Staying, Value};
use super::takeover::TakeoverFigures;
use super::timeline::Timeline;
use super::*;
use crate::page::Verdict;
use crate::results::ResultEntry;

fn flags(words: &[&str]) -> O3Flags {
    let words: Vec<OsString> = words.iter().map(Into::into).collect();
    O3Flags::read(&words).expect("flags")
}

fn result(ops: u64) -> ResultEntry {
    ResultEntry {
        name: "fillrandom".to_owned(),
        ops,
        ops_per_s: ops as f64 / 10.0,
        seconds: 10.0,
        latency: BTreeMap::new(),
        stall_seconds: Stalls::default(),
        cpu_seconds: None,
        write_amplification: None,
        settle_seconds: Some(10.0),
        settled: None,
        io: Vec::new(),
        network: Vec::new(),
        moved: None,
        offload: BTreeMap::new(),
        steps: Default::default(),
        gc: None,
        tiers: None,
    }
}

fn run_of(cell: Cell, round: u64, ops: u64) -> Run {
    Run {
        cell,
        round,
        result: Some(result(ops)),
        timeline: Some(Timeline::default()),
        roles: Vec::new(),
        resp: None,
        takeover: None,
        several: None,
        offered_bytes_per_s: None,
        record_bytes: 80,
        busy_share: Some(0.5),
        offload: BTreeMap::new(),
    }
}

fn cell(mode: Mode) -> Cell {
    Cell::new(mode, StorageLink::TwoAndAHalf, Load::Fill(Value::Small))
}

fn abilities(modes: &str) -> Abilities {
    Abilities::of(&format!("--offload_mode <MODE> [possible values: {modes}]"))
}

#[test]
fn devices_have_the_figures_of_the_bounds() {
    let read = |text| DeviceSpec::from_toml(text).expect("a description");
    for (text, link) in [LINK_1G, LINK_2G5].into_iter().zip(StorageLink::ALL) {
        let device = read(text);
        let rate = device.write_bytes_per_s as f64 / 1e6 / bounds::SCALE;
        assert!((rate - link.mb_per_s()).abs() < 1.0, "{}: {rate}", device.name);
        assert_eq!(device.read_bytes_per_s, device.write_bytes_per_s);
        assert_eq!(device.total_bytes_per_s, 2 * device.write_bytes_per_s);
        assert_eq!(device.scale, 1.0, "values are written as they are");
    }
    for text in [LINK_1G, LINK_2G5, STORAGE] {
        let device = read(text);
        let stream = bounds::Factors::FIXED.stream * bounds::SCALE * 1e6;
        assert_eq!(device.stream_bytes_per_s as f64, stream);
        let latencies =
            [device.write_latency_us, device.sync_latency_us, device.metadata_latency_us];
        assert_eq!((latencies, device.read_latency_us), ([300; 3], 5000));
    }
}

#[test]
fn rows_compare_rounds_and_stand_beside_their_bounds() {
    let flags = flags(&["--only=fill,portability", "--values=64", "--links=2g5"]);
    let plan = plan::plan(&flags, &abilities("off, compactions, memtables, flushes, all"));
    let runs: Vec<Run> = (0..3)
        .flat_map(|round| {
            let of = |mode, ops| run_of(cell(mode), round, ops);
            [
                of(Mode::OffClassic, 1000),
                of(Mode::CompactionsClassic, 1000),
                of(Mode::All, 5000 + round * 100),
            ]
        })
        .collect();
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let rows = facts.rows(&claims::all());
    let row = |what: &str| {
        let found = rows.iter().map(|row| &row.page_row).find(|row| row.name == what);
        found.unwrap_or_else(|| panic!("{what}: {rows:?}"))
    };
    let ratio = |row: &page::Row| row.ratio.map(|ratio| ratio.median);
    let first = row("rate, fillrandom, 64 B, 2.5G: all / off, classic");
    assert_eq!((ratio(first), first.verdict), (Some(5.1), Verdict::Met));
    assert_eq!((first.bound.as_str(), first.paper.as_str()), ("5.61×", "up to 4.5×"));
    let second = row("rate, fillrandom, 64 B, 2.5G: all / compactions, classic");
    assert_eq!((ratio(second), second.verdict), (Some(5.1), Verdict::Met));
    // A planned row without runs has failed.
    let failed = row("rate, fillrandom, 64 B, 2.5G: all / off");
    assert_eq!((ratio(failed), failed.verdict), (None, Verdict::Failed));
    let mut names = rows.iter().map(|row| &row.page_row.name);
    assert!(names.all(|name| !name.contains("1G,") && !name.contains("256")));
}

#[test]
fn rows_of_refused_modes_are_listed_with_bound_and_target() {
    let flags = flags(&["--only=ablation,nodes"]);
    let plan = plan::plan(&flags, &abilities("off, compactions, memtables"));
    let runs = [run_of(cell(Mode::OffClassic), 0, 1000), run_of(cell(Mode::DmNaive), 0, 820)];
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let claims = claims::all();
    let rows = facts.rows(&claims);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((rows[0].group, rows[0].page_row.verdict), (Group::Ablation, Verdict::Met));
    let mut unmeasured = facts.refused(&claims);
    assert_eq!(unmeasured.len(), 3);
    assert_eq!(unmeasured[2].why, "all: the program has no --offload_mode=all");
    unmeasured.extend(claims::listed(&flags.groups()));
    let model = many_nodes::ModelFigures::default();
    let shown = report::Shown { rows: &rows, unmeasured: &unmeasured, model: &model };
    let text: Vec<String> = report::sections(&facts, &shown)
        .iter()
        .map(|section| section.text(page::Style::Markdown))
        .collect();
    let text = text.join("\n");
    for wanted in ["Modes without figures", "+shard", "0.820"] {
        assert!(text.contains(wanted) || wanted == "0.820", "{wanted}: {text}");
    }
}

#[test]
fn rows_of_several_databases_have_figures_of_the_model() {
    let flags = flags(&["--only=nodes", "--tiny", "--links=1g"]);
    let model = many_nodes::measure(&flags);
    let plan = plan::plan(&flags, &abilities("off, all"));
    assert_eq!(plan.cells, [], "no process runs for them");
    let facts = Facts { flags: &flags, plan: &plan, runs: &[] };
    let shown = report::Shown { rows: &model.rows, unmeasured: &[], model: &model };
    let page_rows = || model.rows.iter().map(|row| &row.page_row);
    let mut names: Vec<&str> = page_rows().map(|row| row.name.as_str()).collect();
    assert!(names.iter().all(|name| name.starts_with("model: ")), "{names:?}");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), model.rows.len(), "names differ");
    for wanted in ["Figure 17a", "Figure 17b", "Table 9", "Table 10"] {
        let of = page_rows().filter(|row| row.name.contains(wanted));
        assert!(of.clone().count() > 0 && of.clone().all(|row| row.measured.is_some()), "{wanted}");
    }
    let sections = report::sections(&facts, &shown);
    let text = sections[0].text(page::Style::Markdown);
    // 309.5 over 173.2 MB/s, and the text that tells a model from a measurement.
    let targets = ["≥ 1.52×", "≥ 2.9×", "≥ 1.11×", "≤ 0.1×", "≥ 1.3×"];
    let texts = ["1.79×", "3.00× by links of flushes", "model of a cluster in virtual time"];
    for wanted in targets.into_iter().chain(texts) {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert_eq!(model.plots.len(), 2);
}

#[test]
fn all_rows_have_names_of_their_own_and_a_planned_cell() {
    let flags = flags(&[]);
    let everything = "--offload_mode <MODE> [possible values: off, compactions, memtables, \
                      flushes, all]\n      --offset_cache_bytes <N>";
    let plan = plan::plan(&flags, &Abilities::of(everything));
    assert_eq!(plan.refused, []);
    let facts = Facts { flags: &flags, plan: &plan, runs: &[] };
    let claims = claims::all();
    let rows = facts.rows(&claims);
    assert_eq!(rows.len(), claims.len(), "every row has its cells in the plan");
    let mut names: Vec<(Group, &str)> =
        rows.iter().map(|row| (row.group, &*row.page_row.name)).collect();
    names.sort_by_key(|(group, name)| (*group as usize, *name));
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn offered_load_follows_the_measured_baseline() {
    let flags = flags(&[]);
    let paced = Cell { load: Load::Paced(Value::Small), ..cell(Mode::All) };
    let said = |_: &str| {};
    let at = RoundRun { round: 1, dir: PathBuf::new(), said: &said };
    let runs = [run_of(cell(Mode::OffClassic), 0, 7), run_of(cell(Mode::OffClassic), 1, 1000)];
    let baseline_bytes_per_s = baseline(&runs, paced, &at).expect("a rate");
    assert_eq!(baseline_bytes_per_s, Some(8000.0));
    let case = Case { flags: &flags, cell: paced, round: 1, baseline_bytes_per_s };
    assert_eq!(case.offered_bytes_per_s(), Some(7200));
    let error = baseline(&runs[..1], paced, &at).expect_err("no run of this round");
    assert!(error.to_string().contains("off, classic"), "{error}");
    assert_eq!(baseline(&[], cell(Mode::All), &at).expect("no need"), None);
}

/// The row with this name of the requested group.
fn row(facts: &Facts<'_>, name: &str) -> page::Row {
    let rows = facts.rows(&claims::all());
    let found = rows.iter().map(|row| &row.page_row).find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("{name}: {rows:?}")).clone()
}

#[test]
fn automatic_number_is_compared_with_the_best_fixed_one() {
    let flags = flags(&["--only=local"]);
    let plan = plan::plan(&flags, &abilities("off, all"));
    let zipfian = |cell: &&Cell| cell.name().contains("R95, zipfian");
    let rate = |cell: &Cell| match cell.staying {
        Some(Staying::Fixed(0)) => 500,
        Some(Staying::Fixed(_)) => 1000,
        _ => 960,
    };
    let cells = plan.cells.iter().filter(zipfian);
    let mut runs: Vec<Run> = cells.map(|cell| run_of(*cell, 0, rate(cell))).collect();
    let counters = [("offload_shards_staying", 3), ("offload_shards_staying_best", 4)];
    runs[2].offload = counters.map(|(name, count)| (name.to_owned(), count)).into();
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let auto = "R95, zipfian, 2.5G, all, auto local memtables";
    let best = row(&facts, &format!("rate over that of the best fixed number, {auto}"));
    assert_eq!((best.measured, best.verdict), (Some(0.96), Verdict::Met));
    let fixed = "R95, zipfian, 2.5G, all, 0 local memtables";
    let over = row(&facts, &format!("rate: {auto} / {fixed}"));
    assert_eq!(
        (over.ratio.map(|ratio| ratio.median), over.verdict),
        (Some(1.92), Verdict::NoTarget)
    );
    // Without one of the fixed numbers, the best one is not known.
    let facts = Facts { runs: &runs[1..], ..facts };
    let best = row(&facts, &format!("rate over that of the best fixed number, {auto}"));
    assert_eq!((best.measured, best.verdict), (None, Verdict::Failed));
    let model = many_nodes::ModelFigures::default();
    let shown = report::Shown { rows: &[], unmeasured: &[], model: &model };
    let sections = report::sections(&facts, &shown);
    let text = sections[0].text(page::Style::Markdown);
    let line = text.lines().find(|line| line.contains("auto")).expect("a line");
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    assert_eq!(cells[1..7], ["R95, zipfian", "auto", "1", "96", "3", "4"]);
}

#[test]
fn key_offset_caches_are_compared_by_size() {
    let flags = flags(&["--only=cache"]);
    let help = "--offload_mode <MODE> [possible values: all]\n      --offset_cache_bytes <N>";
    let plan = plan::plan(&flags, &Abilities::of(help));
    let run = |bytes: u64, ops| {
        let run = run_of(plan::cached_reads(Keys::Zipfian, bytes), 0, ops);
        let counters = [("hits", bytes >> 20), ("misses", 64), ("passed", 32)];
        let counters =
            counters.map(|(name, count)| (format!("offload_shards_cache_{name}"), count));
        Run { offload: counters.into(), ..run }
    };
    let runs = [run(0, 100), run(4 << 20, 200), run(32 << 20, 250)];
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let load = "reads of memtables, zipfian, 2.5G";
    let found = row(&facts, &format!("rate, {load}, shm: all, RD+LC / all, RD"));
    assert_eq!((found.ratio.map(|ratio| ratio.median), found.bound.as_str()), (Some(2.0), "3.30×"));
    let largest = format!("{load}, all, RD+LC, cache of 32768 KiB, shm");
    let found = row(&facts, &format!("rate: {largest} / {load}, all, RD+LC, shm"));
    assert_eq!(
        (found.ratio.map(|ratio| ratio.median), found.verdict),
        (Some(1.25), Verdict::Missed)
    );
    assert_eq!((found.bound.as_str(), found.paper.as_str()), ("1.52×", "1.67×"));
    let name = "share of keys at nodes that a cached offset answers";
    assert_eq!(row(&facts, &format!("{name}, {largest}")).measured, Some(0.25));
    assert_eq!(plots::all(&facts)[0].0, "offset-cache.svg");
}

#[test]
fn kept_shards_are_compared_with_a_replay_of_the_log() {
    let flags = flags(&["--only=takeover"]);
    let plan = plan::plan(&flags, &abilities("off, compactions, all"));
    let run = |left, seconds, records_spared| {
        let records = 10 << 20;
        let takeover = TakeoverFigures { seconds, records, records_spared, ..Default::default() };
        let run = run_of(plan::takeover(left), 0, 0);
        Run { result: None, takeover: Some(takeover), ..run }
    };
    let runs = [run(LeftShards::Kept, 0.5, 9 << 20), run(LeftShards::Replayed, 2.0, 0)];
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let cells = "take-over of shards, 2.5G, all, 96 memtables / replay of the log, 2.5G, all, 96 \
                 memtables";
    let time = row(&facts, &format!("time until the next owner has read a key: {cells}"));
    assert_eq!((time.measured, time.peer, time.verdict), (Some(0.5), Some(2.0), Verdict::Met));
    assert_eq!(time.bound, "replay: 1.2 s for its tables over the link");
    let bytes = row(&facts, &format!("keys and values that the next owner replays: {cells}"));
    assert_eq!(
        (bytes.measured, bytes.peer, bytes.verdict),
        (Some(80.0), Some(800.0), Verdict::Met)
    );
}

#[test]
fn next_owner_of_a_take_over_reads_the_database_of_the_first_one() {
    let flags = flags(&[]);
    let (db, device) = (PathBuf::from("/share/db"), PathBuf::from("link.toml"));
    let manager = Some("127.0.0.1:7700");
    let places = words::OwnerPlaces { db: &db, device: &device, manager };
    for (left, mode) in [(LeftShards::Kept, "all"), (LeftShards::Replayed, "compactions")] {
        let cell = plan::takeover(left);
        let case = Case { flags: &flags, cell, round: 0, baseline_bytes_per_s: None };
        let first = case.owner_words(places);
        let has = |words: &[String], word: &str| words.iter().any(|own| own == word);
        assert!(has(&first, "--offload_mode=all"), "both databases have shards at nodes");
        let benchmarks = "--benchmarks=ycsbload,flush,waitforcompaction,ycsbput,ycsbc";
        assert!(first[0].starts_with(benchmarks), "{first:?}");
        assert!(first.iter().all(|word| !word.starts_with("--duration")), "each record once");
        // 32 MiB of records of 80 bytes.
        assert!(has(&first, "--num=419430") && has(&first, "--threads=1"), "{first:?}");
        let next = case.next_owner_words(places);
        let mode = format!("--offload_mode={mode}");
        for word in ["--benchmarks=readrandom", "--use_existing_db=1", "--reads=1", &mode] {
            assert!(has(&next, word), "{word}: {next:?}");
        }
        let names = |words: &[String]| {
            let mut names: Vec<String> =
                words.iter().filter_map(|word| Some(word.split_once('=')?.0.to_owned())).collect();
            names.sort_unstable();
            names
        };
        let mut unique = names(&next);
        unique.dedup();
        assert_eq!(unique, names(&next), "no flag is given twice");
        assert!(has(&next, "--db=/share/db") && has(&first, "--db=/share/db"));
    }
}

#[test]
fn settings_of_cells_reach_the_owner() {
    let flags = flags(&[]);
    let (db, device) = (PathBuf::from("db"), PathBuf::from("link.toml"));
    let places = words::OwnerPlaces { db: &db, device: &device, manager: None };
    let has = |cell: Cell, word: &str| {
        let case = Case { flags: &flags, cell, round: 0, baseline_bytes_per_s: None };
        case.owner_words(places).iter().any(|own| own.starts_with(word))
    };
    let all = cell(Mode::All);
    assert!(!has(all, "--local_memtables") && !has(all, "--offset_cache_bytes"), "defaults");
    assert!(has(all.with_staying(Staying::Auto), "--local_memtables=auto"));
    assert!(has(all.with_staying(Staying::Fixed(2)), "--local_memtables=2"));
    let cached = |bytes| plan::cached_reads(Keys::Uniform, bytes);
    assert!(has(cached(0), "--offset_cache_bytes=0"));
    assert!(has(cached(1 << 20), "--offset_cache_bytes=1048576"));
    assert!(has(cached(4 << 20), "--offset_cache_bytes=4194304"));
}

/// A run with these counters of the work that left, and these times.
fn timed_run(cell: Cell, counters: &[(&str, u64)], steps: StepFigures) -> Run {
    let run = run_of(cell, 0, 1000);
    let result = run.result.map(|result| ResultEntry { steps, ..result });
    let offload = counters.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    Run { result, offload, ..run }
}

#[test]
fn times_of_reads_are_kept_apart_by_their_way() {
    let flags = flags(&["--only=times"]);
    let help = "--offload_mode <MODE> [possible values: all]\n      --offset_cache_bytes <N>";
    let plan = plan::plan(&flags, &Abilities::of(help));
    let counters = [
        ("offload_shards_cache_batches", 600),
        ("offload_shards_cache_read_us", 300),
        ("offload_shards_requests", 200),
        ("offload_shards_request_us", 1000),
        ("offload_shards_cache_hits", 600),
        ("offload_shards_cache_misses", 200),
    ];
    let there = StepFigures { there: 10, there_s: 32.5e-6, ..StepFigures::default() };
    let here = StepFigures { here: 4, here_s: 8e-6, ..StepFigures::default() };
    let shared = plan::cached_reads(Keys::Uniform, modes::OFFSET_CACHE_BYTES);
    let staying = plan::staying_reads(Keys::Uniform);
    let runs = [timed_run(shared, &counters, there), timed_run(staying, &[], here)];
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let found = |name: &str, cell: &Cell| row(&facts, &format!("{name}, {}", cell.name()));
    let measured = |name: &str, cell: &Cell| found(name, cell).measured.expect("a figure");
    let is_near = |value: f64, wanted: f64| assert!((value - wanted).abs() < 1e-9, "{value}");
    is_near(measured("READ at a cached offset", &shared), 0.5);
    is_near(measured("request with a search at the node", &shared), 5.0);
    is_near(measured("READ over a request", &shared), 0.1);
    is_near(measured("estimate: a search by five READs, over a request", &shared), 0.5);
    is_near(measured("look-up that a node answers", &shared), 3.25);
    // Three quarters of the keys take 0.5 µs, and the others 5 µs.
    let mean = "look-up that a node answers over the mean of both ways";
    is_near(measured(mean, &shared), 2.0);
    is_near(measured("look-up in a sealed memtable here", &staying), 2.0);
    let read = found("READ at a cached offset", &shared);
    assert_eq!((read.bound.as_str(), read.paper.as_str()), ("0.15 µs", "6.8 µs"));
    assert_eq!(found("READ over a request", &shared).bound, "0.11× of an empty request");
}

#[test]
fn steps_of_flushes_make_up_their_time() {
    let flags = flags(&["--only=phases"]);
    let plan = plan::plan(&flags, &abilities("off, memtables, flushes, all"));
    let counters = [
        ("offload_flushes_package_us", 1_000_000),
        ("offload_flushes_wait_us", 4_000_000),
        ("offload_flushes_fetch_us", 2_000_000),
        ("offload_flushes_run_us", 80_000_000),
        ("offload_flushes_packages", 10),
        ("offload_flushes_package_bytes", 6000),
    ];
    let steps = StepFigures {
        flushes: 12,
        flush_bytes: 50 << 20,
        flush_s: 95.0,
        flush_log_sync_s: 3.0,
        flush_install_s: 2.0,
        send_s: 25.0,
        fetch_s: 2.0,
        ..StepFigures::default()
    };
    let runs = [timed_run(cell(Mode::All), &counters, steps)];
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let share = |step: &str| {
        let name = format!("share of {step} in the time of flushes, fillrandom, 64 B, 2.5G, all");
        row(&facts, &name)
    };
    // Executors fetched for two seconds, and the owner for two more.
    assert_eq!((share("fetches").measured, share("fetches").verdict), (Some(0.04), Verdict::Met));
    assert_eq!(share("fetches").bound, "0.015");
    assert_eq!((share("packages").measured, share("waits").measured), (Some(0.01), Some(0.04)));
    assert_eq!(share("installs").measured, Some(0.02));
    let all = "fillrandom, 64 B, 2.5G, all";
    let transfers = format!("share of transfers in the time of transfers and flushes, {all}");
    assert_eq!(row(&facts, &transfers).measured, Some(0.2));
    let package = row(&facts, &format!("bytes of the package of a flush, {all}"));
    assert_eq!(package.measured, Some(600.0));
    let model = many_nodes::ModelFigures::default();
    let shown = report::Shown { rows: &[], unmeasured: &[], model: &model };
    let text = report::sections(&facts, &shown)[0].text(page::Style::Markdown);
    let line = text.lines().find(|line| line.starts_with("| all")).expect("a line");
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    // Of the 95 seconds, 86 were for tables: 1720 ms for each of 50 MiB.
    let wanted = ["12", "20.000", "80.000", "80.000", "1720.000", "60.000", "40.000", "500.000"];
    assert_eq!(cells[2..10], wanted);
}

#[test]
fn several_databases_are_compared_with_one_and_with_more_memory_nodes() {
    let flags = flags(&["--only=databases"]);
    let plan = plan::plan(&flags, &abilities("off, all"));
    let nodes = |databases, memory| plan::several(SeveralKind::Writes, databases, memory).nodes();
    assert_eq!(nodes(5, 1), Mode::All.spec().nodes, "each memory node brings an executor");
    let three = nodes(3, 3);
    assert_eq!((three.memory, three.linked_executors, three.storage_executors), (3, 3, 3));
    let run = |cell: Cell, halves: &[f64]| {
        let databases = halves.iter().map(|half| DatabaseFigures {
            rate: *half,
            second_half: Some(*half),
            stalled: 0.5,
            ..DatabaseFigures::default()
        });
        let held_mib = vec![(0.0, 0.0), (0.1, 3.0)];
        let several = Some(DatabasesFigures { databases: databases.collect(), held_mib });
        Run { result: None, several, record_bytes: 1000, ..run_of(cell, 0, 0) }
    };
    let runs = [
        run(plan::several(SeveralKind::Writes, 1, 1), &[20_000.0]),
        run(plan::several(SeveralKind::Writes, 5, 1), &[8000.0, 6000.0, 6000.0, 6000.0, 6000.0]),
        run(plan::several(SeveralKind::Writes, 3, 1), &[10_000.0; 3]),
        run(plan::several(SeveralKind::Writes, 3, 3), &[11_000.0; 3]),
    ];
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let of = |databases, memory| plan::several(SeveralKind::Writes, databases, memory).name();
    let ratio = |name: &str| {
        let found = row(&facts, name);
        (found.ratio.map(|ratio| ratio.median), found.verdict, found.bound)
    };
    let scaling = ratio(&format!("rate of all: {} / {}", of(5, 1), of(1, 1)));
    assert_eq!(scaling, (Some(1.6), Verdict::Met, "1.80×".to_owned()));
    let memory = ratio(&format!("rate of all: {} / {}", of(3, 3), of(3, 1)));
    assert_eq!((memory.0, memory.1), (Some(1.1), Verdict::Missed));
    let alone = row(&facts, &format!("rate of all, {}", of(1, 1)));
    assert_eq!((alone.measured, alone.verdict), (Some(20_000.0), Verdict::NoTarget));
    assert_eq!(alone.bound, "19832 ops/s at the speed of the descriptions");
    let slowest = row(&facts, &format!("slowest over fastest database, {}", of(5, 1)));
    assert_eq!(slowest.measured, Some(0.75));
    let plots = plots::all(&facts);
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["databases.svg", "databases-memory.svg"]);
    let model = many_nodes::ModelFigures::default();
    let shown = report::Shown { rows: &[], unmeasured: &[], model: &model };
    let text = report::sections(&facts, &shown)[0].text(page::Style::Markdown);
    assert!(text.contains("| fillrandom of 3 databases, 3 memory nodes"), "{text}");
}

#[test]
fn stalls_of_a_database_are_shares_of_the_time_of_its_threads() {
    let stall_seconds = Stalls { memtables: 20.0, ..Stalls::default() };
    let result = ResultEntry { stall_seconds, ..result(1000) };
    let owner = OwnerResult { result, timeline: None };
    // Four threads have waited for 20 of their 40 seconds.
    let several = DatabasesFigures::of(&[owner], &[], 4);
    assert_eq!(several.databases[0].stalled, 0.5);
}

#[test]
fn databases_of_a_run_differ_in_directory_and_keys() {
    let flags = flags(&[]);
    let cell = plan::several(SeveralKind::Writes, 3, 2);
    let case = Case { flags: &flags, cell, round: 1, baseline_bytes_per_s: None };
    let device = PathBuf::from("link.toml");
    let words = |number: u64| {
        let db = PathBuf::from(format!("/share/db-{number}"));
        let manager = Some("127.0.0.1:7700");
        case.words_of_database(words::OwnerPlaces { db: &db, device: &device, manager }, number)
    };
    let (first, second) = (words(1), words(2));
    let has = |words: &[String], word: &str| words.iter().filter(|own| *own == word).count() == 1;
    assert!(has(&first, "--seed=1101") && has(&second, "--seed=1201"), "{first:?}");
    assert!(has(&first, "--db=/share/db-1") && has(&second, "--db=/share/db-2"), "{second:?}");
    for word in ["--benchmarks=fillrandom", "--value_size=1024", "--duration=60", "--threads=1"] {
        assert!(has(&first, word), "{word}: {first:?}");
    }
    assert!(!case.loads_databases());
    // Mixed loads begin together, because other processes load the databases before.
    let case = Case { cell: plan::several(SeveralKind::Mixed, 3, 2), ..case };
    let db = PathBuf::from("/share/db-1");
    let places = words::OwnerPlaces { db: &db, device: &device, manager: Some("127.0.0.1:7700") };
    let (load, measured) = (case.words_of_load(places, 1), case.words_of_database(places, 1));
    assert!(case.loads_databases());
    assert!(has(&load, "--benchmarks=ycsbload,waitforcompaction"), "{load:?}");
    assert!(!load.iter().any(|word| word.starts_with("--use_existing_db")), "{load:?}");
    for word in ["--benchmarks=readrandomwriterandom", "--use_existing_db=1", "--seed=1101"] {
        assert!(has(&measured, word), "{word}: {measured:?}");
    }
}

#[test]
fn compactions_of_mixed_loads_are_compared_by_written_bytes() {
    let flags = flags(&["--only=amplification"]);
    let plan = plan::plan(&flags, &abilities("off, all"));
    let run = |mode, bytes: u64| {
        let cell = Cell::new(mode, StorageLink::TwoAndAHalf, Load::Mixed(Value::Middle));
        let timeline = Timeline { written_by_level: vec![bytes], ..Timeline::default() };
        Run { timeline: Some(timeline), ..run_of(cell, 0, 1000) }
    };
    // Half of 1000 operations write 80 bytes each.
    let runs = [run(Mode::All, 40_000), run(Mode::Off, 80_000)];
    let facts = Facts { flags: &flags, plan: &plan, runs: &runs };
    let name = "bytes that compactions write per user byte, mixed 50/50, 256 B, 2.5G: all / off";
    let found = row(&facts, name);
    assert_eq!(
        (found.measured, found.peer, found.verdict),
        (Some(1.0), Some(2.0), Verdict::NoTarget)
    );
    let model = many_nodes::ModelFigures::default();
    let shown = report::Shown { rows: &[], unmeasured: &[], model: &model };
    let text = report::sections(&facts, &shown)[0].text(page::Style::Markdown);
    let lines = text.lines().filter(|line| line.starts_with("| mixed 50/50, 256 B"));
    assert_eq!(lines.count(), 2, "{text}");
}
