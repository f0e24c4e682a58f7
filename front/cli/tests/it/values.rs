//! Settings and reports of separated values, as an operator meets them.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::{Served, archipelago, db, text};

/// A settings file of the default family with these lines.
#[expect(clippy::disallowed_methods, reason = "an operator's file")]
fn settings_file(root: &Path, lines: &str) -> PathBuf {
    let path = root.join("settings.toml");
    std::fs::write(&path, format!("[families.default]\n{lines}\n")).unwrap();
    path
}

fn printed(root: &Path, lines: &str) -> String {
    let file = settings_file(root, lines);
    let output = archipelago().args(["serve", "--print-settings", "--config"]).arg(file).output();
    text(&output.unwrap())
}

#[test]
fn print_settings_shows_those_of_separated_values() {
    let root = tempfile::tempdir().unwrap();
    let defaults = printed(root.path(), "");
    for line in [
        "value_separation_bytes = 0\n",
        "value_file_bytes = 268435456\n",
        "space_amplification_max = 1.5\n",
    ] {
        assert!(defaults.contains(line), "{line} in {defaults}");
    }
    let lines = [
        "value_separation_bytes = 512\n",
        "value_file_bytes = 1048576\n",
        "space_amplification_max = 1.25\n",
    ];
    let given = printed(root.path(), &lines.concat());
    for line in lines {
        assert!(given.contains(line), "{line} in {given}");
    }
}

#[test]
fn wrong_settings_of_separated_values_are_explained() {
    let root = tempfile::tempdir().unwrap();
    let nothing = root.path().join("nothing");
    for (line, why) in [
        ("value_separation_bytes = 99999999999", "value_separation_bytes is 99999999999: it must"),
        ("value_file_bytes = 1000", "value_file_bytes is 1000: it must be at least 65536"),
        ("value_file_bytes = 99999999999", "value_file_bytes is 99999999999: it must be at most"),
        (
            "space_amplification_max = 1.01",
            "space_amplification_max is 1.01: it must be 0, for no bound, or at least 1.05",
        ),
        ("space_amplification_max = -1.0", "space_amplification_max is -1: it must be 0"),
        ("space_amplification_max = nan", "space_amplification_max is NaN: it must be 0"),
        ("value_separation_bytes = -1", "value_separation_bytes"),
        ("value_separation_byte = 1", "unknown field `value_separation_byte`"),
    ] {
        let file = settings_file(root.path(), line);
        let mut command = archipelago();
        command.args(["serve", "--dir"]).arg(&nothing).arg("--config").arg(&file);
        let wrong = command.output().unwrap();
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(!wrong.status.success() && said.contains(why), "{line}: {said}");
        assert!(said.contains("settings.toml"), "{line}: {said}");
        assert!(!nothing.exists(), "{line}");
    }
}

/// A database with separated values and garbage.
fn served_values(root: &Path) -> PathBuf {
    let dir = root.join("data");
    let lines = "value_separation_bytes = 64\nvalue_file_bytes = 65536\n\
                 space_amplification_max = 0.0";
    let file = settings_file(root, lines);
    let mut served = Served::start_with(&dir, &["--config", file.to_str().unwrap()]);
    for round in 0..2 {
        let mut commands = String::new();
        let keys: Vec<u32> = (0..300).filter(|key| round == 0 || key % 3 > 0).collect();
        for key in &keys {
            let value = format!("{round}:{key};").repeat(100);
            commands.push_str(&format!("SET key{key:05} {value}\r\n"));
        }
        served.say(&commands, &"+OK\r\n".repeat(keys.len()));
        served.signal(Signal::TERM);
        assert!(served.child.wait().unwrap().success());
        text(&db(&dir, &["compact"]));
        served = Served::start_with(&dir, &["--config", file.to_str().unwrap()]);
    }
    served.signal(Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    dir
}

#[test]
fn values_prints_parts_that_add_up() {
    let root = tempfile::tempdir().unwrap();
    let dir = served_values(root.path());
    let json = text(&db(&dir, &["values", "--json"]));
    let report: Value = serde_json::from_str(&json).unwrap();
    let number = |at: &Value, name: &str| {
        at[name].as_u64().unwrap_or_else(|| panic!("{name} of {at} is no number"))
    };
    let files = report["files"].as_array().unwrap();
    let sum = |name: &str| -> u64 { files.iter().map(|file| number(file, name)).sum() };
    assert!(!files.is_empty(), "{json}");
    assert_eq!(report["value_separation_bytes"], 64);
    assert_eq!(sum("bytes"), number(&report, "file_bytes"));
    assert_eq!(sum("valid_bytes"), number(&report, "valid_bytes"));
    assert_eq!(sum("garbage_bytes"), number(&report, "exposed_bytes"));
    assert_eq!(sum("references"), number(&report, "references"));
    assert_eq!(sum("references"), 300);
    assert_eq!(sum("valid_bytes") + sum("garbage_bytes"), sum("value_bytes"));
    assert!(number(&report, "exposed_bytes") > 0, "{json}");
    let parts = number(&report, "live_bytes")
        + number(&report, "exposed_bytes")
        + number(&report["space"], "hidden_bytes");
    assert_eq!(parts, number(&report, "table_bytes") + number(&report, "file_bytes"));
    assert_eq!(number(&report["space"], "live_bytes"), number(&report, "live_bytes"));
    for name in [
        "in_flight_bytes",
        "pinned_bytes",
        "pinned_snapshot_bytes",
        "pinned_under_minute_bytes",
        "pinned_under_hour_bytes",
        "pinned_oldest_ms",
    ] {
        assert_eq!(number(&report, name), 0, "{name} of a database that nobody reads");
    }
    let plain = text(&db(&dir, &["values"]));
    let first = format!("{:06}.vsst", number(&files[0], "no"));
    let total = format!(
        "Total: {} value files of {} bytes, {} bytes valid, {} exposed garbage, 300 references; \
         tables {} bytes\n",
        files.len(),
        sum("bytes"),
        sum("valid_bytes"),
        sum("garbage_bytes"),
        number(&report, "table_bytes")
    );
    let live = format!("Space: live {} bytes, ", number(&report, "live_bytes"));
    for part in [&first, &total, &live, "Bound: none", "Pinned by old versions: 0 bytes"] {
        assert!(plain.contains(part), "{part} in {plain}");
    }
    assert!(text(&db(&dir, &["stats"])).contains("exposed garbage"));
}
