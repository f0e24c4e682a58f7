use std::collections::BTreeMap;

use archipelago_bench::harness::samples::Stalls;

use super::plan::{Group, Value};
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
