//! Metrics for Prometheus: what the processes of the project offer at `/metrics`.
//!
//! The program opens a port ([`endpoint::MetricsListener`]) and gives the endpoint sources
//! ([`sources`]), which read the figures of the components that run in the process. The figures
//! exist for INFO, reports and `cluster status` anyway. They are collected when a scrape asks for
//! them, so the hot paths do nothing for it. The [`catalogue`] describes every metric, and
//! `docs/operate/metrics.md` is made from it ([`page`]).
//!
//! The text is OpenMetrics 1.0. The crate `prometheus-client` writes it.

pub mod catalogue;
pub mod endpoint;
pub mod page;
#[cfg(any(test, feature = "parser"))]
pub mod parser;
pub mod samples;
pub mod sources;
