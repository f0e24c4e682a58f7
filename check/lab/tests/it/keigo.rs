//! `archipelago-lab keigo` from end to end, small and fast.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use crate::scripts::program;

fn make(dir: &Path) {
    #[expect(clippy::disallowed_methods, reason = "where runs are made, no database file")]
    std::fs::create_dir_all(dir).expect("a directory");
}

/// Runs `words` with twice the records that the block cache holds; the report as JSON and as text,
/// and the plots' names.
fn reproduce(dir: &Path, words: &[&str]) -> (Value, String, Vec<String>) {
    let (out, fast) = (dir.join("out"), dir.join("fast"));
    make(&fast);
    let mut args: Vec<OsString> =
        ["keigo", "--quick", "--records=16000", "--seconds=1"].map(Into::into).into();
    args.extend(words.iter().map(OsString::from));
    args.push(format!("--archipelago={}", program(dir, "").display()).into());
    args.push(format!("--out={}", out.display()).into());
    args.push(format!("--fast={}", fast.display()).into());
    assert_eq!(archipelago_lab::main(args), ExitCode::SUCCESS, "{words:?}");
    let left = std::fs::read_dir(&fast).expect("a directory").count();
    assert_eq!(left, 0, "nothing is left behind");
    let file = |name: &str| std::fs::read_to_string(out.join(name)).expect("a report");
    let plots = std::fs::read_dir(&out).expect("a directory").filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.ends_with(".svg").then_some(name)
    });
    let report = serde_json::from_str(&file("report.json")).expect("JSON");
    (report, file("report.md"), plots.collect())
}

fn row<'v>(report: &'v Value, what: &str) -> &'v Value {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{what}: {rows:?}"))
}

#[test]
fn tiers_are_compared_with_the_slow_device() {
    let dir = tempfile::tempdir().expect("a directory");
    let words = ["--only=tiers,switch", "--workloads=a,c", "--device-scale=1", "--phase-seconds=2"];
    let (report, text, plots) = reproduce(dir.path(), &words);
    for what in [
        "YCSB A, zipfian 0.80: tiers / slow device",
        "YCSB A, zipfian 0.80: fast device / slow device",
        "YCSB C, zipfian 0.80: ops/s of the bound",
        "YCSB C, zipfian 0.80: hit ratio of the oracle's",
    ] {
        assert!(row(&report, what)["value"].as_f64().is_some_and(|value| value > 0.0), "{what}");
        assert!(text.contains(what), "{what}");
    }
    // A rate above the bound would show that the bound is wrong.
    let bound = row(&report, "YCSB C, zipfian 0.80: ops/s of the bound");
    assert!(bound["value"].as_f64().is_some_and(|value| value < 1.1), "{bound}");
    let runs = report["runs"].as_array().expect("runs");
    let tiers: Vec<&Value> = runs
        .iter()
        .filter_map(|run| run["figures"].get("tiers"))
        .filter(|t| t.is_object())
        .collect();
    assert_eq!(tiers.len(), 3, "A, C and the switch");
    for one in tiers {
        assert_eq!(one["failed_jobs"], 0, "{one}");
        assert_eq!(one["devices"].as_array().map(Vec::len), Some(2));
        assert_eq!(one["devices"][1]["hit_ratio"], 1.0, "the last device serves the rest: {one}");
    }
    for plot in ["tiers.svg", "hit-ratio.svg", "switch.svg"] {
        assert!(plots.iter().any(|name| name == plot), "{plot}: {plots:?}");
    }
}

#[test]
fn real_media_are_compared_without_a_bound() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = dir.path().join("disk");
    make(&disk);
    let real = format!("--real={}", disk.display());
    let words = ["--only=tiers,production", "--workloads=c,nutanix", &real];
    let (report, text, _) = reproduce(dir.path(), &words);
    assert!(text.contains("Real media") && !text.contains("Emulated"), "{text}");
    let ratio = row(&report, "Nutanix-like: tiers / slow device");
    assert!(ratio["value"].as_f64().is_some_and(|value| value > 0.0), "{ratio}");
    let rows = report["rows"].as_array().expect("rows");
    let names = rows.iter().filter_map(|row| row["what"].as_str());
    assert!(names.clone().any(|name| name.contains("hit ratio of the oracle's")), "{rows:?}");
    assert!(!names.clone().any(|name| name.contains("bound")), "nothing is known of the disk");
    assert_eq!(std::fs::read_dir(&disk).expect("a directory").count(), 0, "nothing is left");
}
