//! Prints the page of all metrics:
//! `cargo run -p archipelago-metrics --example page > docs/operate/metrics.md`.

fn main() {
    print!("{}", archipelago_metrics::page::page());
}
