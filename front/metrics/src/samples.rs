//! Values of metrics at one moment, and their encoding as text.
//!
//! A scrape makes one [`Samples`], lets every source add to it, and encodes it.
//!
//! Invariants:
//! 1. Every series belongs to a metric of the catalogue and has exactly the labels of that metric.
//! 2. A series has one value. A later value replaces an earlier one.
//! 3. A metric has at most [`SERIES_MAX`] series. Further ones are counted and left out.
//!
//! Thread-safety: none; one thread owns the samples.
//! Failure: a number that is not finite is left out.
//! Cost: a few allocations per series.

use std::collections::BTreeMap;
use std::fmt;

use archipelago_base::{Error, Result};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::catalogue::{Kind, Metric};

/// Largest number of series of one metric.
pub const SERIES_MAX: usize = 2000;

/// Observations by upper bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observations {
    /// Sum of the observations, in the unit of the metric.
    pub sum: f64,
    /// Upper bounds in ascending order, each with the number of observations that it includes and
    /// the bound before does not. The last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
}

/// Value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// A number with a fraction.
    Real(f64),
    /// The value of a histogram.
    Observations(Observations),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<Observations> for Value {
    fn from(value: Observations) -> Self {
        Self::Observations(value)
    }
}

/// Nanoseconds as seconds, the unit of every time in a scrape.
pub(crate) fn seconds(ns: u64) -> Value {
    Value::Real(ns as f64 / 1e9)
}

/// Values of the labels of a series, in the order of the metric.
type LabelValues = Vec<String>;

/// The series of one metric.
#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    series: BTreeMap<LabelValues, Value>,
}

/// Values of metrics at one moment.
#[derive(Debug, Default)]
pub struct Samples {
    families: BTreeMap<&'static str, Family>,
    left_out: u64,
}

impl Samples {
    /// Sets the series of `metric` with these values of its labels. A number that is not finite is
    /// left out, because the text has no use for it.
    ///
    /// # Panics
    /// If the number of labels is not that of the metric: the source has a mistake.
    pub fn set(&mut self, metric: &'static Metric, labels: &[&str], value: impl Into<Value>) {
        assert_eq!(labels.len(), metric.labels.len(), "labels of {}", metric.name);
        let value = value.into();
        if matches!(value, Value::Real(number) if !number.is_finite()) {
            return;
        }
        let family = self.families.entry(metric.name);
        let family = family.or_insert_with(|| Family { metric, series: BTreeMap::new() });
        let labels: LabelValues = labels.iter().map(|label| (*label).to_owned()).collect();
        if family.series.len() >= SERIES_MAX && !family.series.contains_key(&labels) {
            self.left_out += 1;
            return;
        }
        family.series.insert(labels, value);
    }

    /// Sets a series if its value is known.
    pub fn set_known(
        &mut self,
        metric: &'static Metric,
        labels: &[&str],
        value: Option<impl Into<Value>>,
    ) {
        if let Some(value) = value {
            self.set(metric, labels, value);
        }
    }

    /// Sets a series for each of `states` of a metric whose only label is the state: 1 for the
    /// present one and 0 for the others.
    pub(crate) fn set_state(
        &mut self,
        metric: &'static Metric,
        states: impl IntoIterator<Item = &'static str>,
        present: &str,
    ) {
        for state in states {
            self.set(metric, &[state], state == present);
        }
    }

    /// Number of series that were left out because their metric had too many.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Encodes everything in the text format of OpenMetrics 1.0. Errors: `Internal` if the encoder
    /// refuses a value, of which no case is known.
    pub fn into_text(self) -> Result<String> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        let refused = |_| Error::internal("the encoder of metrics refused a value");
        text::encode(&mut out, &registry).map_err(refused)?;
        Ok(out)
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.families.values() {
            let metric = family.metric;
            let (stem, unit) = stem_and_unit(metric);
            let kind = metric_type(metric.kind);
            let mut of_metric =
                encoder.encode_descriptor(stem, metric.help(), unit.as_ref(), kind)?;
            for (values, value) in &family.series {
                let names = metric.labels.iter().copied();
                let labels: Vec<(&str, &str)> =
                    names.zip(values.iter().map(String::as_str)).collect();
                match (metric.kind, labels.is_empty()) {
                    (Kind::Info, _) => of_metric.encode_info(&labels)?,
                    (_, true) => encode_value(&mut of_metric, metric.kind, value)?,
                    (_, false) => {
                        let mut series = of_metric.encode_family(&labels)?;
                        encode_value(&mut series, metric.kind, value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The name without its unit, which the encoder appends.
fn stem_and_unit(metric: &Metric) -> (&'static str, Option<Unit>) {
    let stem = |suffix| metric.name.strip_suffix(suffix).unwrap_or(metric.name);
    match metric.unit() {
        Some("seconds") => (stem("_seconds"), Some(Unit::Seconds)),
        Some("bytes") => (stem("_bytes"), Some(Unit::Bytes)),
        _ => (metric.name, None),
    }
}

fn metric_type(kind: Kind) -> MetricType {
    match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
        Kind::Info => MetricType::Info,
    }
}

fn encode_value(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(number)) => {
            encoder.encode_counter::<NoLabelSet, u64, f64>(number, None)
        }
        (Kind::Counter, Value::Real(number)) => {
            encoder.encode_counter::<NoLabelSet, f64, f64>(number, None)
        }
        // The encoder takes a gauge as a signed number.
        (_, Value::Whole(number)) => match i64::try_from(*number) {
            Ok(number) => encoder.encode_gauge(&number),
            Err(_) => encoder.encode_gauge(&(*number as f64)),
        },
        (_, Value::Real(number)) => encoder.encode_gauge(number),
        (_, Value::Observations(Observations { sum, buckets })) => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{engine, process, redis};
    use crate::parser::parse;

    #[test]
    fn every_kind_is_encoded_as_the_format_says() {
        let mut samples = Samples::default();
        samples.set(&process::BUILD, &["1.2.3"], true);
        samples.set(&process::CPU, &[], seconds(1_500_000_000));
        samples.set(&engine::JOBS_RUNNING, &["gc"], 2_u64);
        let buckets = vec![(1e-6, 3), (4e-6, 1), (f64::INFINITY, 2)];
        let times = Observations { sum: 0.5, buckets };
        samples.set(&redis::COMMAND_TIME, &["get"], times);
        let text = samples.into_text().unwrap();
        for line in [
            "# TYPE archipelago_build info",
            "archipelago_build_info{version=\"1.2.3\"} 1",
            "# TYPE process_cpu_seconds counter",
            "# UNIT process_cpu_seconds seconds",
            "process_cpu_seconds_total 1.5",
            "archipelago_engine_jobs_running{job=\"gc\"} 2",
            "archipelago_redis_command_duration_seconds_sum{command=\"get\"} 0.5",
            "archipelago_redis_command_duration_seconds_count{command=\"get\"} 6",
            "archipelago_redis_command_duration_seconds_bucket{le=\"+Inf\",command=\"get\"} 6",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        parse(&text).unwrap();
    }

    #[test]
    fn label_with_special_characters_is_read_back() {
        let name = "a\"b\\c\nd\u{1f41a}";
        let mut samples = Samples::default();
        samples.set(&engine::PENDING, &[name], 1_u64);
        let scrape = parse(&samples.into_text().unwrap()).unwrap();
        let labels = &scrape.samples[0].labels;
        assert_eq!(labels.get("family").map(String::as_str), Some(name));
    }

    #[test]
    fn series_beyond_the_limit_are_left_out_and_counted() {
        let mut samples = Samples::default();
        for number in 0..SERIES_MAX + 5 {
            samples.set(&engine::PENDING, &[&number.to_string()], 1_u64);
        }
        samples.set(&engine::PENDING, &["0"], 7_u64);
        assert_eq!(samples.left_out(), 5);
        let scrape = parse(&samples.into_text().unwrap()).unwrap();
        assert_eq!(scrape.samples.len(), SERIES_MAX);
        assert!(scrape.samples.iter().any(|sample| sample.value == 7.0));
    }

    #[test]
    fn largest_gauge_is_encoded() {
        let mut samples = Samples::default();
        samples.set(&engine::PENDING, &["all"], u64::MAX);
        samples.set(&engine::PENDING, &["half"], u64::MAX / 2);
        let scrape = parse(&samples.into_text().unwrap()).unwrap();
        assert_eq!(scrape.samples.len(), 2);
        assert!(scrape.samples.iter().all(|sample| sample.value > 9e18));
    }

    #[test]
    fn number_that_is_not_finite_is_left_out() {
        let mut samples = Samples::default();
        samples.set(&engine::LEVEL_SCORE, &["default", "1"], f64::INFINITY);
        samples.set_known(&engine::DISK_FREE, &[], None::<u64>);
        assert_eq!(samples.into_text().unwrap(), "# EOF\n");
    }
}
