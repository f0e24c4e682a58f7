//! The description of a device, and the times and rates that follow from it by arithmetic.
//!
//! A **stream** is a caller with one operation in flight on a file, in one direction. Invariants:
//!
//! 1. No stream gets more than the bandwidth per stream. All streams of a direction together get no
//!    more than that direction's bandwidth, and readers and writers together no more than the
//!    total.
//! 2. Streams that want more than the device has get equal shares (max-min fairness).
//! 3. [`DeviceSpec::scale`] stretches time and nothing else: at a scale of 1/4 every rate is a
//!    quarter and every latency four times as long, so that *ratios* between workloads stay those
//!    of the device at full size.
//!
//! The functions are pure. Failure: an impossible description is `InvalidArgument` with the field's
//! name. Cost: a few divisions.

use std::time::Duration;

use archipelago_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// The description of a device. Rates are in bytes or operations per second of the device at full
/// size. The functions below apply [`DeviceSpec::scale`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Name of the device in reports.
    pub name: String,
    /// Source of the figures: data sheets, vendors' pages.
    pub source: String,
    /// Factor that multiplies every rate and divides every latency. More than 0; default 1.
    #[serde(default = "one")]
    pub scale: f64,
    /// Bytes per second of readers and writers together.
    pub total_bytes_per_s: u64,
    /// Bytes per second of all readers together.
    pub read_bytes_per_s: u64,
    /// Bytes per second of all writers together, before [`DeviceSpec::write_curve`].
    pub write_bytes_per_s: u64,
    /// Bytes per second of one stream; 0 for no limit of its own (the default).
    #[serde(default)]
    pub stream_bytes_per_s: u64,
    /// Operations per second, reads and writes together; 0 for no limit (the default).
    #[serde(default)]
    pub operations_per_s: u64,
    /// Largest number of bytes of one operation. A larger operation counts as several of this size.
    /// Default 256 KiB.
    #[serde(default = "io_bytes_max")]
    pub io_bytes_max: u64,
    /// Time from the end of the transfer until a reader has its bytes, in microseconds. Default 0.
    #[serde(default)]
    pub read_latency_us: u64,
    /// Time from the end of the transfer until a writer continues, in microseconds. Default 0.
    #[serde(default)]
    pub write_latency_us: u64,
    /// Time of a sync beyond the bytes that it waits for, in microseconds. Default 0.
    #[serde(default)]
    pub sync_latency_us: u64,
    /// Time of creating, renaming, removing or listing files, and of syncing a directory, in
    /// microseconds. Default 0.
    #[serde(default)]
    pub metadata_latency_us: u64,
    /// Points (writers, factor of the write bandwidth), ascending. The factor is interpolated
    /// between two points, and constant before the first point and after the last one. Default: 1
    /// everywhere.
    #[serde(default)]
    pub write_curve: Vec<(u32, f64)>,
    /// Bytes of log that may wait for the device before appends wait. The scale does not change it.
    /// Default: 64 MiB.
    #[serde(default = "log_dirty_bytes_max")]
    pub log_dirty_bytes_max: u64,
}

fn one() -> f64 {
    1.0
}

fn io_bytes_max() -> u64 {
    256 << 10
}

fn log_dirty_bytes_max() -> u64 {
    64 << 20
}

/// Longest latency that a description may have: more is a mistake in the unit.
const LATENCY_US_MAX: u64 = 10_000_000;

impl DeviceSpec {
    /// Reads and checks a description. Unknown fields are refused, so that a misspelt one cannot
    /// leave its default in force. Errors: `InvalidArgument`.
    pub fn from_toml(text: &str) -> Result<Self> {
        let spec: Self = toml::from_str(text)
            .map_err(|error| Error::invalid(format!("the description of a device: {error}")))?;
        spec.validate()?;
        Ok(spec)
    }

    /// Whether the figures make sense together. Errors: `InvalidArgument`, which names the field.
    pub fn validate(&self) -> Result<()> {
        let refuse = |what: String| {
            Err(Error::invalid(format!("device \"{}\": {what}", self.name.escape_debug())))
        };
        if self.name.trim().is_empty() {
            return refuse("`name` is empty".to_owned());
        }
        if self.source.trim().is_empty() {
            return refuse("`source` is empty: say where the figures are from".to_owned());
        }
        if !(self.scale.is_finite() && self.scale > 0.0 && self.scale <= 1000.0) {
            return refuse(format!("`scale` is {}, not within 0 (exclusive) and 1000", self.scale));
        }
        let (total, read, write) =
            (self.total_bytes_per_s, self.read_bytes_per_s, self.write_bytes_per_s);
        for (field, rate) in [
            ("total_bytes_per_s", total),
            ("read_bytes_per_s", read),
            ("write_bytes_per_s", write),
            ("io_bytes_max", self.io_bytes_max),
            ("log_dirty_bytes_max", self.log_dirty_bytes_max),
        ] {
            if rate == 0 {
                return refuse(format!("`{field}` is 0"));
            }
        }
        if total < read.max(write) || total > read.saturating_add(write) {
            return refuse(format!(
                "`total_bytes_per_s` is {total}, not between the larger of the two directions \
                 ({}) and their sum ({})",
                read.max(write),
                read.saturating_add(write)
            ));
        }
        for (field, us) in [
            ("read_latency_us", self.read_latency_us),
            ("write_latency_us", self.write_latency_us),
            ("sync_latency_us", self.sync_latency_us),
            ("metadata_latency_us", self.metadata_latency_us),
        ] {
            if us > LATENCY_US_MAX {
                return refuse(format!("`{field}` is {us}: more than {LATENCY_US_MAX} (10 s)"));
            }
        }
        self.check_curve().or_else(refuse)
    }

    fn check_curve(&self) -> Result<(), String> {
        for &(writers, factor) in &self.write_curve {
            if writers == 0 {
                return Err("`write_curve` has a point for 0 writers".to_owned());
            }
            if !(factor.is_finite() && factor > 0.0 && factor <= 1.0) {
                return Err(format!(
                    "`write_curve` at {writers} writers is {factor}, not within 0 (exclusive) and \
                     1: `write_bytes_per_s` is the device at its best"
                ));
            }
        }
        match self.write_curve.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            Some(pair) => Err(format!(
                "`write_curve` is not ascending: {} writers stand before {}",
                pair[0].0, pair[1].0
            )),
            None => Ok(()),
        }
    }

    /// The part of the write bandwidth that `writers` concurrent writers get, together.
    #[must_use]
    pub fn write_factor(&self, writers: usize) -> f64 {
        let at = writers as f64;
        let above = self.write_curve.iter().position(|&(count, _)| f64::from(count) >= at);
        match (above, self.write_curve.last()) {
            (_, None) => 1.0,
            (None, Some(&(_, factor))) => factor,
            (Some(0), _) => self.write_curve[0].1,
            (Some(above), _) => {
                let (from, low) = self.write_curve[above - 1];
                let (to, high) = self.write_curve[above];
                let part = (at - f64::from(from)) / f64::from(to - from);
                low + (high - low) * part
            }
        }
    }

    /// Bytes per second of all streams of a direction together, with `writers` writing.
    #[must_use]
    pub fn direction_rate(&self, direction: Direction, writers: usize) -> f64 {
        match direction {
            Direction::Read => self.read_bytes_per_s as f64 * self.scale,
            Direction::Write => {
                self.write_bytes_per_s as f64 * self.scale * self.write_factor(writers)
            }
        }
    }

    /// Bytes per second of readers and writers together.
    #[must_use]
    pub fn total_rate(&self) -> f64 {
        self.total_bytes_per_s as f64 * self.scale
    }

    /// Bytes per second of one stream by its own limit; infinite if there is none.
    #[must_use]
    pub fn stream_rate(&self) -> f64 {
        limit(self.stream_bytes_per_s) * self.scale
    }

    /// Operations per second; infinite if there is no limit.
    #[must_use]
    pub fn operation_rate(&self) -> f64 {
        limit(self.operations_per_s) * self.scale
    }

    /// Number of operations as which a transfer of `bytes` counts, at least 1.
    #[must_use]
    pub fn operations(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.io_bytes_max).max(1)
    }

    /// Bytes per second of one stream in `direction`, without latency and the limit of operations.
    /// `readers` and `writers` streams, including this one, move bytes without pause.
    #[must_use]
    pub fn rate(&self, direction: Direction, readers: usize, writers: usize) -> f64 {
        let (readers, writers) = match direction {
            Direction::Read => (readers.max(1), writers),
            Direction::Write => (readers, writers.max(1)),
        };
        let most = |direction, count: usize| {
            let shared = self.direction_rate(direction, writers) / count.max(1) as f64;
            shared.min(self.stream_rate())
        };
        let (reader, writer) = (most(Direction::Read, readers), most(Direction::Write, writers));
        let (own, own_count, other, other_count) = match direction {
            Direction::Read => (reader, readers as f64, writer, writers as f64),
            Direction::Write => (writer, writers as f64, reader, readers as f64),
        };
        let even = self.total_rate() / (own_count + other_count);
        // Streams of the other direction may want less than an even share. This direction gets the
        // rest.
        let left = (self.total_rate() - other_count * other.min(even)) / own_count;
        own.min(left)
    }

    /// Time of an operation of `bytes` on an otherwise idle device. It is the transfer at the rate
    /// of one stream, or the time of its operations if that is longer, and then the latency.
    #[must_use]
    pub fn service_time(&self, direction: Direction, bytes: u64) -> Duration {
        let (readers, writers) = match direction {
            Direction::Read => (1, 0),
            Direction::Write => (0, 1),
        };
        let transfer_s = bytes as f64 / self.rate(direction, readers, writers);
        let operations_s = self.operations(bytes) as f64 / self.operation_rate();
        self.latency(direction) + Duration::from_secs_f64(transfer_s.max(operations_s))
    }

    /// Bytes that the device writes while one write waits for it: longer writes spend more time on
    /// their bytes.
    #[must_use]
    pub fn write_bytes_best(&self) -> u64 {
        let bytes =
            self.latency(Direction::Write).as_secs_f64() * self.direction_rate(Direction::Write, 1);
        bytes as u64
    }

    /// Latency of one read or write.
    #[must_use]
    pub fn latency(&self, direction: Direction) -> Duration {
        match direction {
            Direction::Read => self.stretched(self.read_latency_us),
            Direction::Write => self.stretched(self.write_latency_us),
        }
    }

    /// Latency of a sync.
    #[must_use]
    pub fn sync_latency(&self) -> Duration {
        self.stretched(self.sync_latency_us)
    }

    /// Latency of an operation on names.
    #[must_use]
    pub fn metadata_latency(&self) -> Duration {
        self.stretched(self.metadata_latency_us)
    }

    fn stretched(&self, us: u64) -> Duration {
        Duration::from_secs_f64(us as f64 / 1e6 / self.scale)
    }
}

/// A rate of which 0 means that there is no limit.
fn limit(rate: u64) -> f64 {
    if rate == 0 { f64::INFINITY } else { rate as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    fn volume() -> DeviceSpec {
        DeviceSpec::from_toml(
            r#"
            name = "volume"
            source = "made up"
            total_bytes_per_s = 1_000_000_000
            read_bytes_per_s = 1_000_000_000
            write_bytes_per_s = 1_000_000_000
            stream_bytes_per_s = 100_000_000
            operations_per_s = 4_000
            io_bytes_max = 250_000
            read_latency_us = 1_000
            write_latency_us = 2_000
            "#,
        )
        .unwrap()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= b.abs() * 1e-9
    }

    #[test]
    fn one_stream_gets_its_own_limit_and_many_share_the_total() {
        let spec = volume();
        assert!(near(spec.rate(Direction::Write, 0, 1), 100.0 * MB));
        assert!(near(spec.rate(Direction::Read, 5, 5), 100.0 * MB));
        assert!(near(spec.rate(Direction::Read, 20, 0), 50.0 * MB));
        assert!(near(spec.rate(Direction::Read, 15, 5), 50.0 * MB));
        assert!(near(spec.rate(Direction::Write, 15, 5), 50.0 * MB));
    }

    #[test]
    fn readers_get_bandwidth_that_slow_writers_leave() {
        let spec = DeviceSpec { stream_bytes_per_s: 0, write_bytes_per_s: 100_000_000, ..volume() };
        assert!(near(spec.rate(Direction::Write, 1, 1), 100.0 * MB));
        assert!(near(spec.rate(Direction::Read, 1, 1), 900.0 * MB));
        assert!(near(spec.rate(Direction::Read, 3, 2), 300.0 * MB));
    }

    #[test]
    fn write_curve_is_interpolated_and_flat_outside() {
        let spec = DeviceSpec { write_curve: vec![(2, 1.0), (4, 0.8), (8, 0.4)], ..volume() };
        spec.validate().unwrap();
        for (writers, factor) in [(0, 1.0), (1, 1.0), (3, 0.9), (4, 0.8), (6, 0.6), (99, 0.4)] {
            assert!(near(spec.write_factor(writers), factor), "{writers} writers");
        }
        assert!(near(spec.rate(Direction::Write, 0, 40), 10.0 * MB));
        assert!(near(spec.direction_rate(Direction::Read, 99), 1000.0 * MB), "reads are not bent");
    }

    #[test]
    fn operation_takes_its_longer_part_and_then_the_latency() {
        let spec = volume();
        let ms = |bytes, direction| spec.service_time(direction, bytes).as_secs_f64() * 1e3;
        assert!(near(ms(1_000_000, Direction::Read), 11.0));
        assert!(near(ms(1_000_000, Direction::Write), 12.0));
        assert!(near(ms(0, Direction::Read), 1.25), "one operation of 4,000 a second");
        assert_eq!([0, 1, 250_000, 250_001].map(|bytes| spec.operations(bytes)), [1, 1, 1, 2]);
    }

    #[test]
    fn a_scaled_device_is_the_same_device_in_slow_motion() {
        let (full, quarter) = (volume(), DeviceSpec { scale: 0.25, ..volume() });
        for bytes in [0, 4096, 1 << 20] {
            for direction in [Direction::Read, Direction::Write] {
                let ratio = quarter.service_time(direction, bytes).as_secs_f64()
                    / full.service_time(direction, bytes).as_secs_f64();
                assert!((ratio - 4.0).abs() < 1e-4, "{bytes} bytes: {ratio}");
            }
        }
        let ratio = quarter.rate(Direction::Write, 7, 9) / full.rate(Direction::Write, 7, 9);
        assert!(near(ratio, 0.25));
    }

    #[test]
    fn descriptions_that_make_no_sense_are_refused_by_field() {
        let text = toml::to_string(&volume()).unwrap();
        assert_eq!(DeviceSpec::from_toml(&text).unwrap(), volume());
        let refused = |text: &str, word: &str| {
            let error = DeviceSpec::from_toml(text).expect_err(word).to_string();
            assert!(error.contains(word), "{error} does not name {word}");
        };
        refused(&format!("{text}\nread_latency_ms = 1"), "read_latency_ms");
        refused("name = 'x'", "source");
        let changed = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} is not in {text}");
            text.replace(from, to)
        };
        refused(&changed("name = \"volume\"", "name = ' '"), "`name`");
        refused(&changed("source = \"made up\"", "source = ''"), "`source`");
        refused(&changed("scale = 1.0", "scale = 0.0"), "`scale`");
        refused(&changed("scale = 1.0", "scale = nan"), "`scale`");
        refused(&changed("total_bytes_per_s = 1000000000", "total_bytes_per_s = 9"), "`total");
        refused(
            &changed("total_bytes_per_s = 1000000000", "total_bytes_per_s = 2000000001"),
            "sum",
        );
        refused(&changed("read_bytes_per_s = 1000000000", "read_bytes_per_s = 0"), "`read_bytes");
        refused(&changed("io_bytes_max = 250000", "io_bytes_max = 0"), "`io_bytes_max`");
        refused(&changed("read_latency_us = 1000", "read_latency_us = 10000001"), "`read_latency");
        for curve in ["[[0, 1.0]]", "[[1, 0.0]]", "[[1, 1.5]]", "[[2, 1.0], [2, 0.5]]"] {
            refused(
                &changed("write_curve = []", &format!("write_curve = {curve}")),
                "`write_curve`",
            );
        }
    }
}
