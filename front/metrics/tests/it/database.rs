//! Figures of a database in this process.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_compute::{ComputeNode, Settings};
use archipelago_metrics::catalogue::groups;
use archipelago_metrics::parser::{Sample, Scrape, parse};
use archipelago_metrics::samples::Samples;
use archipelago_metrics::sources;
use archipelago_tier::{DeviceKind, DeviceSettings};

fn scrape(node: &ComputeNode) -> Scrape {
    let mut all = vec![
        sources::process("test", None),
        sources::budget(Arc::clone(node.budget())),
        sources::engine(node.db().clone()),
    ];
    all.extend(node.tiers().map(|tiers| sources::tiers(Arc::clone(tiers))));
    let mut samples = Samples::default();
    all.iter().for_each(|source| source(&mut samples));
    parse(&samples.into_text().unwrap()).unwrap()
}

fn settings() -> Settings {
    let text = "[database]\nmemory_budget_bytes = 67108864\nlatency_histograms = true\n\
                [families.default]\nvalue_separation_bytes = 4096\n";
    Settings::parse(text).unwrap()
}

#[test]
fn figures_of_a_database_agree_with_what_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let node = ComputeNode::open(dir.path(), &settings()).unwrap();
    let db = node.db();
    for number in 0..100_u32 {
        db.put(&number.to_be_bytes(), &vec![7; 8192]).unwrap();
    }
    db.flush(db.default_family()).unwrap();
    for number in 0..150_u32 {
        assert_eq!(db.get(&number.to_be_bytes()).unwrap().is_some(), number < 100);
    }
    let found = scrape(&node);
    let family = [("family", "default")];
    assert_eq!(found.value("archipelago_engine_records_written_total", &[]), Some(100.0));
    assert_eq!(found.value("archipelago_engine_gets_total", &[]), Some(150.0));
    assert_eq!(found.value("archipelago_engine_gets_found_total", &[]), Some(100.0));
    assert_eq!(found.value("archipelago_engine_keys", &family), Some(100.0));
    assert!(found.sum("archipelago_engine_user_written_bytes_total") >= 819_200.0);
    assert_eq!(found.value("archipelago_engine_jobs_total", &[("job", "flush")]), Some(1.0));
    let files: usize =
        db.report(db.default_family()).unwrap().levels.iter().map(|level| level.files).sum();
    assert_eq!(found.sum("archipelago_engine_level_files"), files as f64);
    assert_eq!(found.value("archipelago_engine_value_files", &family), Some(1.0));
    let valid = db.values(db.default_family()).unwrap().valid_bytes();
    assert!(valid > 0);
    assert_eq!(found.value("archipelago_engine_value_valid_bytes", &family), Some(valid as f64));
    let healthy = found.value("archipelago_engine_health", &[("state", "healthy")]);
    assert_eq!(healthy, Some(1.0));
    let gets = "archipelago_engine_operation_duration_seconds_count";
    assert!(found.value(gets, &[("operation", "get")]).is_some_and(|count| count > 0.0));
    assert!(found.sum("archipelago_memory_used_bytes") > 0.0);
    drop(found);
    node.close().unwrap();
}

#[test]
fn database_on_tiers_offers_all_metrics_of_its_groups() {
    let dir = tempfile::tempdir().unwrap();
    let device =
        |name: &str| DeviceSettings::new(dir.path().join(name), DeviceKind::Directory).creating();
    let settings = Settings { tiers: vec![device("fast"), device("slow")], ..settings() };
    let node = ComputeNode::open(&dir.path().join("db"), &settings).unwrap();
    node.db().put(b"reef", b"coral").unwrap();
    node.db().flush(node.db().default_family()).unwrap();
    assert_eq!(node.db().get(b"reef").unwrap().as_deref(), Some(&b"coral"[..]));
    let found = scrape(&node);
    let names: BTreeSet<&str> = found.families.keys().map(String::as_str).collect();
    let expected = groups().into_iter().filter(|group| ["Engine", "Tiers"].contains(&group.title));
    // Metrics that depend on the past or on settings of the database.
    let optional = [
        "archipelago_engine_hottest_bucket_load",
        "archipelago_engine_space_allowed_bytes",
        "archipelago_engine_space_debt_bytes",
        "archipelago_engine_space_bound_exceeded",
        "archipelago_tier_hit_ratio",
    ];
    for metric in expected.flat_map(|group| group.metrics) {
        let name = metric.name;
        assert!(names.contains(name) || optional.contains(&name), "{name} is missing");
    }
    for device in node.tiers().unwrap().stats().devices {
        let found = found.value("archipelago_tier_capacity_bytes", &[("device", &device.name)]);
        assert_eq!(found, Some(device.capacity as f64));
    }
    let capacities = |sample: &&Sample| sample.name == "archipelago_tier_capacity_bytes";
    assert_eq!(found.samples.iter().filter(capacities).count(), 2);
    node.close().unwrap();
}
