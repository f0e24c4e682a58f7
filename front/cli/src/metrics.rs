//! The flag `--metrics`: a port at which a process offers its figures to Prometheus.
//!
//! The command opens the port with its other ports, before it changes anything, and serves when its
//! components run. The endpoint holds handles of these components, so it ends before they do.

use archipelago_base::Result;
use archipelago_metrics::endpoint::{MetricsListener, MetricsServer};
use archipelago_metrics::sources::Source;

use crate::console::print_line;

/// The port for metrics.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct MetricsArgs {
    /// Address at which Prometheus finds the figures of this process, as
    /// http://HOST:PORT/metrics. With port 0 the system chooses a free port. The figures hold no
    /// keys and no values. There is no TLS and no password, so choose an address that only the
    /// monitoring reaches. Without the flag there is no such port
    #[arg(long = "metrics", value_name = "HOST:PORT")]
    address: Option<String>,
}

impl MetricsArgs {
    /// Opens the port, if the flag is given.
    pub(crate) fn listen(&self) -> Result<Option<MetricsListener>> {
        let bind =
            |at: &String| MetricsListener::bind(at).map_err(|error| error.context_at("--metrics"));
        self.address.as_ref().map(bind).transpose()
    }
}

/// Serves the figures of `sources` at the port, if there is one.
pub(crate) fn serve(
    listener: Option<MetricsListener>,
    sources: Vec<Source>,
) -> Result<Option<MetricsServer>> {
    listener.map(|listener| listener.serve(sources)).transpose()
}

/// Prints where the figures are, if they are served.
pub(crate) fn print_url(metrics: Option<&MetricsServer>) {
    if let Some(metrics) = metrics {
        print_line!("Metrics for Prometheus: {}", metrics.url());
        if !metrics.address().ip().is_loopback() {
            print_line!(
                "Every program that reaches this address can read the metrics: there is no \
                 password and no TLS"
            );
        }
    }
}
