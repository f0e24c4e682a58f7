//! The page of all metrics, `docs/operate/metrics.md`, made from the catalogue. Pure functions.
//!
//! A test compares the page with the text. `cargo run -p archipelago-metrics --example page` prints
//! the text.

use std::fmt::Write as _;

use crate::catalogue::{Group, Metric, groups};

/// Beginning of the page.
const HEAD: &str = "# Metrics

For operators: every metric that a process with `--metrics` offers. A program makes this page from
the code. [Monitoring](monitoring.md) says how to scrape them, and has a dashboard and alerts.

Times are in seconds and sizes in bytes. Counters begin at 0 when the process starts, or when the
component inside it does. A metric that does not apply to a process is absent.
";

/// Text of the page.
#[must_use]
pub fn page() -> String {
    let mut out = HEAD.to_owned();
    groups().iter().for_each(|group| write_group(&mut out, group));
    out
}

fn write_group(out: &mut String, group: &Group) {
    // Writing to a string does not fail.
    let _infallible = write!(out, "\n## {}\n\n{}\n\n", group.title, wrapped(group.offered_by));
    out.push_str("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n");
    group.metrics.iter().for_each(|metric| write_row(out, metric));
}

fn write_row(out: &mut String, metric: &Metric) {
    let names = metric.sample_names();
    // A histogram is known by the name of its family.
    let name = if names.len() == 1 { names[0].as_str() } else { metric.name };
    let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
    let (kind, help) = (metric.kind.name(), metric.help());
    let _infallible = writeln!(out, "| `{name}` | {kind} | {labels} | {help} |");
}

/// A paragraph in lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > 100 {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}
