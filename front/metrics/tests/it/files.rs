//! The page of metrics, the dashboard and the alerts agree with the catalogue.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_metrics::catalogue::{Kind, all};
use archipelago_metrics::page::page;
use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/operate/metrics.md");
const MONITORING: &str = include_str!("../../../../docs/operate/monitoring.md");
const DASHBOARD: &str = include_str!("../../../../docs/operate/monitoring/dashboard.json");
const ALERTS: &str = include_str!("../../../../docs/operate/monitoring/alerts.yml");

/// Labels that Prometheus adds to every series.
const ADDED_LABELS: [&str; 2] = ["instance", "job"];

#[test]
fn page_of_metrics_is_made_from_the_catalogue() {
    assert!(
        page() == PAGE,
        "run: cargo run -p archipelago-metrics --example page > docs/operate/metrics.md"
    );
}

/// Labels of each sample that a scrape may have, by the name of the sample.
fn known() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut known = BTreeMap::new();
    for metric in all() {
        for name in metric.sample_names() {
            let mut labels: BTreeSet<&str> = metric.labels.iter().copied().collect();
            labels.extend(ADDED_LABELS);
            if metric.kind == Kind::Histogram && name.ends_with("_bucket") {
                labels.insert("le");
            }
            known.insert(name, labels);
        }
    }
    known
}

/// The words of an expression, each with the character after it.
fn words(text: &str) -> Vec<(&str, Option<char>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| is_part(c)) {
        let end = rest[start..].find(|c: char| !is_part(c)).map_or(rest.len(), |end| start + end);
        found.push((&rest[start..end], rest[end..].chars().next()));
        rest = &rest[end..];
    }
    found
}

/// Checks that an expression names only metrics and labels that exist, and returns the metrics.
fn check_expression(expression: &str) -> BTreeSet<String> {
    let known = known();
    let mut used = BTreeSet::new();
    for (word, _) in words(expression) {
        if word.starts_with("archipelago_") || word.starts_with("process_") {
            assert!(known.contains_key(word), "{word} is no metric: {expression}");
            used.insert(word.to_owned());
        }
    }
    assert!(!used.is_empty() || expression.contains("up"), "no metric: {expression}");
    check_matchers(expression, &known);
    for clause in ["by", "without", "on", "ignoring"] {
        for (at, _) in expression.match_indices(&format!("{clause} (")) {
            let list = expression[at..].split(['(', ')']).nth(1).unwrap();
            for label in list.split(',').map(str::trim).filter(|label| !label.is_empty()) {
                let has = |name: &String| known[name].contains(label);
                let exists = used.iter().any(has) || ADDED_LABELS.contains(&label);
                assert!(exists, "{label} is no label of {used:?}: {expression}");
            }
        }
    }
    used
}

/// Checks the labels in the braces after each metric.
fn check_matchers(expression: &str, known: &BTreeMap<String, BTreeSet<&'static str>>) {
    for (open, _) in expression.match_indices('{') {
        let name = expression[..open].rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let name = name.into_iter().next().unwrap();
        let close = open + expression[open..].find('}').expect("a closing brace");
        let Some(labels) = known.get(name) else { continue };
        // Labels stand before an operator, outside quotation marks.
        let outside = expression[open + 1..close].split('"').step_by(2);
        for label in outside.flat_map(|text| words(text)).map(|(word, _)| word) {
            assert!(labels.contains(label), "{label} is no label of {name}: {expression}");
        }
    }
}

/// Every panel of the dashboard, also those inside rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let top = dashboard["panels"].as_array().expect("panels");
    let inner = top.iter().filter_map(|panel| panel["panels"].as_array()).flatten();
    top.iter().chain(inner).filter(|panel| panel["type"] != "row").collect()
}

#[test]
fn dashboard_queries_only_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = panels(&dashboard);
    assert!(panels.len() >= 40, "{} panels", panels.len());
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its number is taken");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            check_expression(target["expr"].as_str().unwrap());
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            check_expression(query);
        }
    }
}

#[test]
fn monitoring_page_explains_every_panel_and_alert() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert!(MONITORING.contains(&format!("| {title} |")), "{title} is not explained");
        let description = panel["description"].as_str().unwrap_or_default();
        assert!(description.ends_with('.'), "{title} has no description");
    }
    let alerts: Vec<&str> =
        ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 20, "{} alerts", alerts.len());
    assert_eq!(alerts.iter().collect::<BTreeSet<_>>().len(), alerts.len(), "a name occurs twice");
    for alert in alerts {
        assert!(MONITORING.contains(&format!("| {alert} |")), "{alert} is not explained");
    }
}

#[test]
fn alerts_query_only_metrics_that_exist() {
    let mut rules = 0;
    for rule in ALERTS.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        let expression = rule.split("expr: ").nth(1).expect(name).lines().next().unwrap();
        check_expression(expression.trim_matches('\''));
        for key in ["for: ", "severity: ", "summary: ", "description: "] {
            assert!(rule.contains(key), "{name} has no {key}");
        }
        rules += 1;
    }
    assert!(rules >= 20);
}

#[test]
fn repairs_of_storage_nodes_have_panels_and_alerts() {
    for metric in ["repair_debt{", "repaired_bytes_total{", "node_repair_stuck{", "node_unlisted{"]
    {
        let metric = format!("archipelago_storage_cluster_{metric}");
        assert!(DASHBOARD.contains(&metric), "no panel shows {metric}");
    }
    for condition in
        ["repair_debt{state=\"unrepairable\"}) > 0", "node_repair_stuck > 0", "node_unlisted == 1"]
    {
        let condition = format!("archipelago_storage_cluster_{condition}");
        assert!(ALERTS.contains(&condition), "no alert watches {condition}");
    }
}

#[test]
fn unknown_metrics_and_labels_are_found() {
    for wrong in [
        "rate(archipelago_engine_writes[5m])",
        "archipelago_engine_health{status=\"x\"} == 1",
        "sum by (level) (rate(archipelago_engine_writes_total[5m]))",
    ] {
        assert!(std::panic::catch_unwind(|| check_expression(wrong)).is_err(), "{wrong}");
    }
    check_expression(
        "sum by (instance) (rate(archipelago_engine_writes_total{job=~\"$job\"}[5m]))",
    );
}
