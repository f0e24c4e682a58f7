use super::plan::{Keys, Layout, Part, Workload};
use super::run::Figures;
use super::*;
use crate::claim::{Target, median};
use crate::page::Style;
use archipelago_bench::harness::tiers::oracle::Oracle;
use archipelago_bench::harness::tiers::{DeviceOutcome, TierOutcome};

fn keigo_flags(words: &[&str]) -> KeigoFlags {
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    KeigoFlags::read(&args).expect("known flags")
}

fn outcome(hit_ratio: f64, knows_all: f64) -> TierOutcome {
    let oracle = Oracle { knows_all, knows_half: knows_all - 0.05 };
    let device = DeviceOutcome { hit_ratio, oracle, ..DeviceOutcome::default() };
    TierOutcome { devices: vec![device], ..TierOutcome::default() }
}

fn run_of(group: usize, side: Side, round: u64, ops_per_s: f64) -> Run {
    let figures = Figures {
        ops_per_s,
        bound_ops_per_s: Some(5000.0),
        tiers: Some(outcome(0.36, 0.4)),
        ..Figures::default()
    };
    Run { group, side, round, figures }
}

fn rows_of(groups: &[Group], runs: &[Run]) -> Vec<Row> {
    let measured = (0..).zip(groups).map(|(place, group)| Measured { group, place, runs });
    measured.flat_map(|one| one.rows()).collect()
}

#[test]
fn reads_are_judged_by_bound_and_oracle() {
    let groups =
        plan::groups(&keigo_flags(&["--only=tiers", "--workloads=a,c", "--distributions=zipf80"]));
    assert_eq!(groups.len(), 2);
    let mut runs = Vec::new();
    for (round, slow, fast) in [(0, 1000.0, 4000.0), (1, 2000.0, 4800.0), (2, 1000.0, 4600.0)] {
        for group in [0, 1] {
            runs.push(run_of(group, Side::Slow, round, slow));
            runs.push(run_of(group, Side::Tiers, round, fast));
        }
    }
    let rows = rows_of(&groups, &runs);
    let row = |what: &str| rows.iter().find(|row| row.what == what).expect(what);
    let a = row("YCSB A, zipfian 0.80: tiers / slow device");
    assert!((a.value - 4.6).abs() < 1e-9 && a.met == Some(true), "{a:?}");
    assert!((a.min - 2.4).abs() < 1e-9 && (a.max - 4.6).abs() < 1e-9, "{a:?}");
    let c = row("YCSB C, zipfian 0.80: tiers / slow device");
    assert_eq!((c.target, c.met), (None, None));
    let bound = row("YCSB C, zipfian 0.80: ops/s of the bound");
    assert!((bound.value - 0.92).abs() < 1e-9 && bound.met == Some(true), "{bound:?}");
    assert_eq!((bound.measured, bound.peer), (Some(4600.0), Some(5000.0)));
    let hits = row("YCSB C, zipfian 0.80: hit ratio of the oracle's");
    assert!((hits.value - 0.9).abs() < 1e-9 && hits.met == Some(false), "{hits:?}");
    assert_eq!((hits.measured, hits.peer), (Some(0.36), Some(0.4)));
    assert!(hits.detail.contains("hits 0.350"), "{}", hits.detail);
    assert!(!rows.iter().any(|row| row.what.starts_with("YCSB A") && row.what.contains("bound")));
    let measured: Vec<Measured<'_>> =
        (0..).zip(&groups).map(|(place, group)| Measured { group, place, runs: &runs }).collect();
    let sections = report::sections(&measured);
    let text = sections.iter().map(|section| section.text(Style::Markdown)).collect::<String>();
    for row in &rows {
        assert!(text.contains(&row.what), "{}", row.what);
    }
    assert!(text.contains("**missed**") && text.contains("≥ 0.95×"));
    let plots = plots::all(&measured);
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["tiers.svg", "hit-ratio.svg"]);
    plots.iter().for_each(|(_, svg)| drop(crate::plot::tests::elements(svg)));
}

#[test]
fn tiers_alone_are_judged_by_bound_and_oracle() {
    let groups =
        plan::groups(&keigo_flags(&["--tiers_alone", "--only=tiers,single", "--workloads=a,c"]));
    assert!(groups.iter().all(|group| group.part == Part::Tiers && group.sides == [Side::Tiers]));
    assert_eq!(groups.len(), 6, "single has no side of tiers");
    let runs: Vec<Run> =
        (0..groups.len()).map(|group| run_of(group, Side::Tiers, 0, 4600.0)).collect();
    let rows = rows_of(&groups, &runs);
    let whats: Vec<&str> =
        rows.iter().map(|row| row.what.split(": ").nth(1).expect("two parts")).collect();
    assert_eq!(
        whats,
        ["ops/s of the bound", "hit ratio of the oracle's"].repeat(3),
        "A has no other side"
    );
}

#[test]
fn automatic_threads_are_compared_with_the_best_number() {
    let groups = plan::groups(&keigo_flags(&["--only=threads", "--workloads=c"]));
    let speeds = [
        (Side::Tiers, 97.0),
        (Side::Fixed(1), 50.0),
        (Side::Fixed(4), 100.0),
        (Side::Fixed(16), 90.0),
    ];
    let runs: Vec<Run> =
        speeds.into_iter().map(|(side, speed)| run_of(0, side, 0, speed)).collect();
    let rows = rows_of(&groups, &runs);
    assert_eq!(rows.len(), 1);
    assert!(rows[0].what.ends_with("tiers / tiers, 4 threads"), "{}", rows[0].what);
    assert_eq!((rows[0].target, rows[0].met), (Some(Target::AtLeast(0.95)), Some(true)));
}

#[test]
fn table_has_every_comparison() {
    let groups = plan::groups(&keigo_flags(&[]));
    let of = |part: Part| groups.iter().filter(|group| group.part == part).count();
    let counts = Part::TABLE.map(of);
    assert_eq!(counts, [18, 6, 2, 2, 3, 6, 2, 1, 2, 2]);
    assert_eq!(of(Part::Instructions), 0, "only if it is named");
    let jobs: Vec<u64> =
        groups.iter().filter(|g| g.part == Part::Placement).map(|group| group.jobs).collect();
    assert_eq!(jobs, [8, 16]);
    let quick = plan::groups(&keigo_flags(&["--quick"]));
    assert!(quick.len() < groups.len());
    assert!(Part::TABLE.iter().all(|part| quick.iter().any(|group| group.part == *part)));
    let real = plan::groups(&keigo_flags(&["--real=/disk"]));
    assert!(real.iter().all(|group| group.part != Part::Block), "it needs other devices");
    let some = plan::groups(&keigo_flags(&["--only=sync", "--distributions=uniform"]));
    assert!(some.iter().all(|group| group.keys == Keys::Uniform) && some.len() == 2);
}

#[test]
fn words_are_known_and_layouts_match_their_names() {
    let flags = keigo_flags(&[]);
    let data = plan::data_bytes(&flags);
    for group in plan::groups(&flags) {
        for words in [plan::load_words(&flags, &group, 2), plan::measured_words(&flags, &group, 2)]
        {
            let given: Vec<OsString> = words.iter().map(OsString::from).collect();
            let (read, ignored) =
                archipelago_bench::harness::flags::read(&given).expect("known flags");
            assert!(ignored.is_empty() && read.load.seed == 3, "{words:?}");
            assert_eq!(
                words.contains(&"--sync".to_owned()),
                group.part == Part::Sync && words[1].contains("threads")
            );
            assert_eq!(
                words.contains(&"--log_write_through".to_owned()),
                !matches!(group.part, Part::Buffered | Part::Single),
                "direct I/O is for logs, too"
            );
        }
        for &side in &group.sides {
            let layout = plan::layout(&flags, &group, side);
            match side {
                Side::Slow => assert!(matches!(layout, Layout::Device(_))),
                Side::Tiers if group.part != Part::Placement => {
                    let Layout::Tiers { layers, threads_fixed: None, fast_levels: None } = layout
                    else {
                        panic!("{layout:?}")
                    };
                    assert_eq!(layers[0].capacity_bytes, data / 4);
                }
                Side::Fixed(threads) => {
                    let Layout::Tiers { threads_fixed, .. } = layout else { panic!("{layout:?}") };
                    assert_eq!(threads_fixed, Some(threads));
                }
                _ => {}
            }
        }
        let bytes = plan::records(&flags, group.workload);
        assert!(bytes >= flags.records(), "small records are more: {bytes}");
    }
    assert!(Workload::E.is_read_mostly() && !Workload::F.is_read_mostly());
}

#[test]
fn devices_have_one_scale_and_the_head_names_it() {
    let flags = keigo_flags(&[]);
    let specs = run::specs(flags.device_scale).expect("devices");
    assert_eq!(specs.len(), 3);
    assert!(specs.values().all(|spec| spec.scale == 0.0625));
    let text = settings(&flags, &specs, 3000);
    for part in ["keigo-nvmm", "reads 411 MB/s", "writes 128 MB/s", "takes 4 writers", "50 minutes"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
}
