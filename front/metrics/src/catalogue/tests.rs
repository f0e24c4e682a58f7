use std::collections::BTreeSet;

use super::{Kind, all};

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for metric in all() {
        let name = metric.name;
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(is_word) && !name.contains("__"), "{name}");
        assert!(name.starts_with("archipelago_") || name.starts_with("process_"), "{name}");
        for suffix in ["_total", "_count", "_sum", "_bucket", "_info", "_created"] {
            assert!(!name.ends_with(suffix), "{name}: the encoder appends {suffix}");
        }
        for unit in ["_ms", "_ns", "_us", "_mib", "_kib", "_percent", "_permille"] {
            assert!(!name.ends_with(unit), "{name}: not a base unit");
        }
        if metric.kind == Kind::Histogram {
            assert_eq!(metric.unit(), Some("seconds"), "{name}");
        }
    }
}

#[test]
fn samples_of_two_metrics_never_share_a_name() {
    let mut names = BTreeSet::new();
    for metric in all() {
        let mut own: BTreeSet<String> = metric.sample_names().into_iter().collect();
        own.insert(metric.name.to_owned());
        for name in own {
            assert!(names.insert(name.clone()), "{name} belongs to two metrics");
        }
    }
}

#[test]
fn every_metric_says_its_meaning_in_sentences() {
    for metric in all() {
        let help = metric.help();
        assert!(help.ends_with('.') && !help.contains('\n') && !help.contains("  "), "{help:?}");
        assert!(help.split(' ').count() >= 3, "{}: {help}", metric.name);
        assert!(!help.contains(['|', '\\']), "{help}: would break the table or the text format");
        for label in metric.labels {
            assert!(help.contains(&format!("`{label}`")), "{}: explain `{label}`", metric.name);
        }
    }
}
