use super::plan::Mode;
use super::*;
use crate::claim::Target;
use crate::page::Style;
use archipelago_bench::harness::samples::{Job, Sample, Series, Stalls, Window};
use run::{Figures, Latency};

fn reproduce_flags(words: &[&str]) -> ReproduceFlags {
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    ReproduceFlags::read(&args).expect("known flags")
}

fn figures(ops_per_s: f64, stall: f64) -> Figures {
    let latency = Some(Latency { mean_us: 1e6 / ops_per_s, p99_us: 5e6 / ops_per_s });
    Figures {
        ops_per_s,
        seconds: 1e6 / ops_per_s,
        get: latency,
        scan: latency,
        write: latency,
        write_max_ms: Some(20.0),
        stall_s: Stalls { l0: stall, ..Stalls::default() },
        settle_s: Some(1.0),
        write_amplification: Some(4.0),
        threads_busy: 3.0,
        processors_busy: Some(0.7),
        l0_fullest_mean: 6.0,
        l0_fullest_max: 20,
        l0_input_bytes_mean: 1e6,
        l0_input_spread: 0.5,
        buckets: 8,
        map_changes: 0,
        failed_jobs: 0,
    }
}

fn run(case: Case, round: u64, ops_per_s: f64, stall: f64) -> Run {
    let Case { workload, setting, mode } = case;
    let name = workload.benchmark().to_owned();
    let job = |start_s: f64, end_s: f64| Job {
        from: Some(0),
        to: 1,
        bucket: Some(0),
        start_s,
        end_s,
        threads_s: vec![end_s - start_s],
        bytes_read: 4_000_000,
        bytes_written: 3_000_000,
    };
    let look = |t_s: f64| Sample {
        t_s,
        ops: 9,
        l0_files: vec![3, 1],
        stall_s: Stalls::default(),
        sent_bytes: Vec::new(),
        moved: None,
    };
    let series = Series {
        benchmarks: vec![Window { name, start_s: 1.0, end_s: 11.0 }],
        samples: (10..=110).map(|tenth| look(f64::from(tenth) / 10.0)).collect(),
        jobs: vec![job(1.0, 4.0), job(2.0, 9.0)],
        ..Series::default()
    };
    let figures = figures(ops_per_s, stall);
    Run { workload, setting, mode, round, offered_ops_per_s: None, figures, series }
}

/// Three rounds of fillrandom in three modes.
fn runs() -> Runs {
    let of = |mode, rates: [f64; 3], stall| {
        let case = Case { workload: Workload::FillRandom, setting: Setting::Device, mode };
        (0..).zip(rates).map(move |(round, rate)| run(case, round, rate, stall))
    };
    let classic = of(Mode::Classic, [1000.0, 900.0, 1100.0], 8.0);
    let sub = of(Mode::Subcompactions, [1500.0, 1600.0, 1400.0], 4.0);
    let buckets = of(Mode::Buckets, [2000.0, 1800.0, 2200.0], 0.0);
    Runs(classic.chain(sub).chain(buckets).collect())
}

#[test]
fn ratios_are_of_medians_and_judged_by_the_target() {
    let rows = runs().rows();
    let row = |what: &str| {
        let found = rows.iter().find(|row| row.what == what);
        found.unwrap_or_else(|| panic!("{what} is missing: {rows:?}"))
    };
    let classic = row("fillrandom, ops/s: buckets / classic");
    assert_eq!((classic.ratio, classic.met), (Some(2.0), Some(true)));
    assert_eq!((classic.ratio_min, classic.ratio_max), (Some(2.0), Some(2.0)));
    assert_eq!((classic.paper, classic.target), ("1.94×", Some(Target::AtLeast(1.9))));
    let sub = row("fillrandom, ops/s: buckets / subcompactions");
    assert_eq!(sub.met, Some(false), "1.33 is below 1.4: {sub:?}");
    assert!((sub.ratio_min.unwrap_or(0.0) - 1.125).abs() < 1e-9, "1800 / 1600: {sub:?}");
    let stall = row("fillrandom, full speed, stall time: buckets / classic");
    assert_eq!((stall.ratio, stall.met), (Some(0.0), None));
    let slower = row("fillrandom, time: buckets / classic");
    assert_eq!(slower.ratio, Some(0.5));
    assert!(!rows.iter().any(|row| row.what.contains("MixGraph")), "nothing was measured of it");
}

#[test]
fn no_stall_on_either_side_meets_the_target() {
    let case = |mode| Case { workload: Workload::MixGraph1, setting: Setting::Offered, mode };
    let none = [run(case(Mode::Classic), 0, 100.0, 0.0), run(case(Mode::Buckets), 0, 100.0, 0.0)];
    let rows = Runs(none.into()).rows();
    assert_eq!((rows.len(), rows[0].ratio, rows[0].met), (1, None, Some(true)));
    let some = [run(case(Mode::Classic), 0, 100.0, 0.0), run(case(Mode::Buckets), 0, 100.0, 0.1)];
    assert_eq!(Runs(some.into()).rows()[0].met, Some(false));
}

#[test]
fn report_has_every_row() {
    let runs = runs();
    let sections = runs.sections();
    let text = |style| sections.iter().map(|section| section.text(style)).collect::<Vec<_>>();
    let text = text(Style::Markdown).join("\n");
    for row in runs.rows() {
        assert!(text.contains(&row.what), "{}", row.what);
    }
    assert!(text.contains(" 1.94× |") && text.contains("**missed**") && text.contains("≥ 1.9×"));
    for section in &sections {
        let text = section.text(Style::Markdown);
        let lines = text.lines().filter(|line| line.starts_with('|'));
        let bars: Vec<usize> = lines.map(|line| line.matches('|').count()).collect();
        assert!(bars.len() > 2 && bars.iter().all(|&count| count == bars[0]), "{text}");
    }
}

#[test]
fn modes_differ_in_buckets_and_subcompactions_alone() {
    let flags = reproduce_flags(&[]);
    let words = |mode| {
        let case = Case { workload: Workload::FillRandom, setting: Setting::Device, mode };
        plan::words(&flags, case, 2, None)
    };
    let modes = [Mode::Classic, Mode::Subcompactions, Mode::Static, Mode::Buckets];
    let all = modes.map(words);
    for words in &all {
        assert_eq!(words[0], "--max_background_jobs=8");
        assert_eq!(words[4..], all[0][4..], "the rest is the same");
        let given: Vec<OsString> = words.iter().map(OsString::from).collect();
        assert!(archipelago_bench::harness::flags::read(&given).is_ok(), "{words:?}");
    }
    assert_eq!(all[0][1..4], ["--buckets=1", "--subcompactions=1", "--bucket_boundaries=static"]);
    assert_eq!(all[1][1..3], ["--buckets=1", "--subcompactions=8"]);
    assert_eq!(all[3][1..4], ["--buckets=8", "--subcompactions=1", "--bucket_boundaries=dynamic"]);
    assert!(all[0].contains(&"--seed=3".to_owned()), "a round has a seed of its own");
}

#[test]
fn fixed_load_follows_the_rate_of_buckets() {
    let flags = reproduce_flags(&["--value_size=1008", "--archipelago=/nonexistent/archipelago"]);
    let dir = Path::new("/nonexistent");
    let mut runner = Runner::new(&flags, dir, dir).expect("a program");
    runner.runs = runs();
    let group = Group {
        workload: Workload::FillRandom,
        setting: Setting::Offered,
        modes: vec![Mode::Classic],
    };
    let offered = runner.offered(&group).expect("buckets ran");
    assert_eq!(offered, Some(1800));
    let case =
        Case { workload: Workload::FillRandom, setting: Setting::Offered, mode: Mode::Classic };
    let words = plan::words(&flags, case, 0, offered);
    assert!(words.contains(&"--benchmark_write_rate_limit=1843200".to_owned()), "{words:?}");
    let unknown = Group { workload: Workload::MixGraph1, ..group };
    assert!(runner.offered(&unknown).is_err());
}

#[test]
fn fixed_load_of_scans_is_a_share_of_classic() {
    let flags = reproduce_flags(&["--value_size=984", "--only=ycsbscan"]);
    let offered = plan::groups(&flags).into_iter().find(|g| g.setting == Setting::Offered);
    assert_eq!(offered.expect("scans have a fixed load").workload.sets_load(), Some(Mode::Classic));
    let case =
        Case { workload: Workload::YcsbScan, setting: Setting::Offered, mode: Mode::Buckets };
    let words = plan::words(&flags, case, 0, Some(1000));
    assert!(words.contains(&"--benchmark_write_rate_limit=900000".to_owned()), "{words:?}");
}

#[test]
fn every_mode_of_a_group_runs_before_the_next_round() {
    let flags = reproduce_flags(&["--jobs=1,4", "--only=fillrandom,ycsbget"]);
    let groups = plan::groups(&flags);
    let of = |setting: Setting| groups.iter().filter(|group| group.setting == setting).count();
    assert_eq!([Setting::Device, Setting::Offered, Setting::Plain].map(of), [2, 1, 2]);
    assert_eq!([Setting::Jobs(1), Setting::Jobs(4)].map(of), [1, 1]);
    let at = |setting| groups.iter().position(|group| group.setting == setting);
    assert!(at(Setting::Device) < at(Setting::Offered), "the load is derived from full speed");
    assert!(groups.iter().all(|group| group.modes.contains(&Mode::Buckets)));
    let without = plan::groups(&reproduce_flags(&["--skip-plain"]));
    assert!(without.iter().all(|group| group.setting != Setting::Plain));
    let shifting = without.iter().find(|group| group.workload == Workload::MixGraph1);
    assert!(shifting.is_some_and(|group| group.modes.contains(&Mode::Static)));
}

#[test]
fn the_default_device_is_a_device() {
    let device = DeviceSpec::from_toml(NETWORK_VOLUME).expect("a description");
    assert!(device.stream_bytes_per_s * 4 <= device.total_bytes_per_s, "limited per stream");
    let text = settings(&reproduce_flags(&[]), &device);
    for part in ["network-volume", "Emulated", "per stream", "the paper: two of 256 MB"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn plots_are_drawn_of_runs_that_exist() {
    let plots = plots::all(&runs(), &[]);
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["threads-busy-fillrandom.svg", "l0-files-fillrandom.svg", "l0-input-fillrandom.svg"]
    );
    for (name, svg) in &plots {
        crate::plot::tests::elements(svg);
        assert!(svg.contains("classic") && svg.contains("buckets"), "{name}");
    }
}
