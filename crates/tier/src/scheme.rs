//! The placement scheme: the levels that belong to the fastest device, and the reason (Keigo §4.2).
//!
//! Levels are counted by [`depth`]: L0 has depth 0, the base level (into which L0 compacts) has
//! depth 1, and the next level has depth 2. With dynamic level sizes, a database of one gigabyte
//! has L0, L5 and L6, and L5 is the level that the paper calls L1.
//!
//! A level belongs to the fastest device if the writers of the log, of all levels above it and of
//! the level itself are together no more than the device takes, and if the bytes of all of them
//! fit. L0 and the base level always belong there, because user writes wait for them.
//!
//! [`decide`] is a pure function. [`Follower`] applies it to observations with hysteresis: it
//! changes the scheme only after several consecutive intervals wanted the same change. `archipelago
//! tier profile` writes a [`Scheme`] to a file, which people may read and change.

use std::fmt;

use archipelago_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// Number of levels that are distinguished. Deeper levels count as the last one.
pub const LEVELS: usize = 8;

/// Depth of `level` in a family whose L0 compacts into `base_level`.
#[must_use]
pub fn depth(level: u8, base_level: u8) -> u8 {
    match level {
        0 => 0,
        level => level.saturating_sub(base_level.max(1)).saturating_add(1),
    }
}

/// Number of levels that always belong to the fastest device.
pub const FAST_LEVELS_MIN: u8 = 2;

/// Format version of the scheme's file.
const VERSION: u32 = 1;

/// Measured throughput of a device at one number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of threads.
    pub threads: u32,
    /// Bytes per second of all threads together.
    pub bytes_per_s: f64,
}

/// The profile of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Name of the device in the settings.
    pub name: String,
    /// Number of writers at which the total write throughput is at its best.
    pub writers_max: u32,
    /// Number of readers at which the total read throughput is at its best.
    pub readers_max: u32,
    /// Write throughput by number of writers.
    #[serde(default)]
    pub writes: Vec<Point>,
    /// Read throughput by number of readers.
    #[serde(default)]
    pub reads: Vec<Point>,
}

impl DeviceProfile {
    /// Bytes that the device writes during the latency of one write, computed from the throughput
    /// of one writer and the best throughput, with writes of 4 KiB. `None` if writes were not
    /// measured.
    #[must_use]
    pub fn write_bytes_best(&self) -> Option<u64> {
        const BLOCK_BYTES: f64 = 4096.0;
        let alone = self.writes.iter().find(|point| point.threads == 1)?.bytes_per_s;
        let most = self.writes.iter().map(|point| point.bytes_per_s).fold(alone, f64::max);
        // Writing a block takes the time of its transfer, and then the latency.
        (alone > 0.0).then(|| (BLOCK_BYTES * (most / alone - 1.0)) as u64)
    }
}

/// A placement scheme, as its file holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// Format version of the file.
    pub version: u32,
    /// Number of levels, by depth, that belong to the fastest device: 2 means L0 and the base
    /// level.
    pub fast_levels: u8,
    /// Reason for this number of levels, for readers of the file.
    #[serde(default)]
    pub reason: String,
    /// Mean number of writers of the log.
    #[serde(default)]
    pub log_writers: f64,
    /// Mean number of writers of each level, by depth, over a write-heavy run.
    #[serde(default)]
    pub level_writers: Vec<f64>,
    /// Profiles of the devices, the fastest first.
    #[serde(default)]
    pub devices: Vec<DeviceProfile>,
}

impl Scheme {
    /// Parses a scheme. Errors: `InvalidArgument` for wrong text; `Unsupported` for another
    /// version.
    pub fn from_toml(text: &str) -> Result<Self> {
        let scheme: Self = toml::from_str(text)
            .map_err(|error| Error::invalid(format!("the placement scheme: {error}")))?;
        if scheme.version != VERSION {
            return Err(Error::unsupported(format!(
                "placement scheme of version {}; this program reads version {VERSION} only",
                scheme.version
            )));
        }
        Ok(scheme)
    }

    /// The scheme as TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string_pretty(self).map_err(|error| Error::invalid(error.to_string()))
    }

    /// The scheme that follows from measured devices and writers. `capacity_bytes` are the bytes
    /// that files may take of the fastest device.
    #[must_use]
    pub fn of_profile(
        devices: Vec<DeviceProfile>,
        observed: &ObservedLoad,
        capacity_bytes: u64,
    ) -> Self {
        let limit = devices.first().map_or(1, |device| device.writers_max);
        let chosen = decide(&SchemeInput { observed: *observed, limit, capacity_bytes });
        Self {
            version: VERSION,
            fast_levels: chosen.fast_levels,
            reason: chosen.to_string(),
            log_writers: observed.log_writers,
            level_writers: observed.level_writers.to_vec(),
            devices,
        }
    }
}

/// Observed writers and sizes over a period of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObservedLoad {
    /// Mean number of log files that were open for writing.
    pub log_writers: f64,
    /// Mean number of tables of each level, by depth, that were open for writing.
    pub level_writers: [f64; LEVELS],
    /// Bytes of each level, by depth.
    pub level_bytes: [u64; LEVELS],
    /// Foreground reads, as a fraction of these reads plus the written blocks of 4 KiB. 0 to 1.
    pub read_share: f64,
}

/// The input of [`decide`].
#[derive(Clone, Copy, Debug)]
pub struct SchemeInput {
    /// Observed writers and sizes.
    pub observed: ObservedLoad,
    /// Number of writers that the fastest device takes.
    pub limit: u32,
    /// Bytes of the fastest device that files may take.
    pub capacity_bytes: u64,
}

/// The reason why no further level belongs to the fastest device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The next level's writers would be too many.
    Writers {
        /// Number of writers with the next level.
        writers: f64,
        /// Number of writers that the device takes.
        limit: u32,
    },
    /// The next level's bytes would not fit.
    Bytes {
        /// Bytes with the next level.
        bytes: u64,
        /// Bytes that files may take.
        capacity: u64,
    },
    /// There is no further level.
    Nothing,
}

/// The decision of [`decide`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// Number of levels, by depth, that belong to the fastest device.
    pub fast_levels: u8,
    /// Reason why no further level belongs there.
    pub bound: Bound,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [Name(0), Name(self.fast_levels.saturating_sub(1)), Name(self.fast_levels)];
        let [first, last, next] = names;
        write!(f, "log and {first} to {last} on the fastest device")?;
        match self.bound {
            Bound::Writers { writers, limit } => {
                write!(
                    f,
                    "; with {next} there would be {writers:.1} writers, and the device takes \
                     {limit}"
                )
            }
            Bound::Bytes { bytes, capacity } => {
                write!(f, "; with {next} there would be {bytes} bytes of {capacity}")
            }
            Bound::Nothing => Ok(()),
        }
    }
}

/// Name of the level of a depth, as text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name(pub(crate) u8);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("L0"),
            1 => f.write_str("the base level"),
            depth => write!(f, "the level {} below the base", depth - 1),
        }
    }
}

/// Chooses the levels of the fastest device.
#[must_use]
pub fn decide(input: &SchemeInput) -> Chosen {
    let observed = &input.observed;
    let mut writers = observed.log_writers;
    let mut bytes = 0u64;
    for level in 0..LEVELS {
        writers += observed.level_writers[level];
        bytes = bytes.saturating_add(observed.level_bytes[level]);
        if level < usize::from(FAST_LEVELS_MIN) {
            continue;
        }
        let fast_levels = level as u8;
        if writers > f64::from(input.limit) {
            return Chosen { fast_levels, bound: Bound::Writers { writers, limit: input.limit } };
        }
        if bytes > input.capacity_bytes {
            let bound = Bound::Bytes { bytes, capacity: input.capacity_bytes };
            return Chosen { fast_levels, bound };
        }
    }
    Chosen { fast_levels: LEVELS as u8, bound: Bound::Nothing }
}

/// Fraction of reads above which an interval says nothing about writers.
pub const READ_MOSTLY: f64 = 0.95;

/// Adapts the scheme to observations, with hysteresis.
#[derive(Clone, Debug)]
pub struct Follower {
    current: u8,
    /// Number of levels that the last intervals wanted instead of `current`.
    wanted: u8,
    /// Number of consecutive intervals that wanted `wanted` levels.
    times: u32,
}

/// Number of consecutive intervals that must want the same change before it is made.
pub const PATIENCE: u32 = 6;

/// Mean number of writers below which an interval says nothing about writers.
pub const WRITERS_MIN: f64 = 0.5;

impl Follower {
    /// A follower that begins with a scheme.
    #[must_use]
    pub fn new(fast_levels: u8) -> Self {
        Self { current: fast_levels, wanted: fast_levels, times: 0 }
    }

    /// Number of levels of the present scheme.
    #[must_use]
    pub fn fast_levels(&self) -> u8 {
        self.current
    }

    /// Takes an interval, and returns the new scheme if it changes. An interval with hardly any
    /// writes is ignored, because it says nothing about writers. Copies improve a load that only
    /// reads. A change of the scheme would not improve it.
    pub fn observe(&mut self, input: &SchemeInput) -> Option<Chosen> {
        let writers: f64 = input.observed.level_writers.iter().sum();
        if writers < WRITERS_MIN || input.observed.read_share > READ_MOSTLY {
            return None;
        }
        let chosen = decide(input);
        if chosen.fast_levels == self.current {
            self.times = 0;
            return None;
        }
        if chosen.fast_levels == self.wanted {
            self.times += 1;
        } else {
            (self.wanted, self.times) = (chosen.fast_levels, 1);
        }
        if self.times < PATIENCE {
            return None;
        }
        self.times = 0;
        self.current = chosen.fast_levels;
        Some(chosen)
    }
}

/// Number of threads at which a device is at its best: the smallest number whose throughput is
/// within 5 % of the best. 1 if there are no points.
#[must_use]
pub fn peak(points: &[Point]) -> u32 {
    let best = points.iter().map(|point| point.bytes_per_s).fold(0.0, f64::max);
    let good = points.iter().find(|point| point.bytes_per_s >= best * 0.95);
    good.map_or(1, |point| point.threads)
}

/// Whether a measurement with more threads is worthwhile. It is not if the throughput has fallen
/// 10 % below the best, or has grown by less than 5 % over the last two steps.
#[must_use]
pub fn goes_on(points: &[Point]) -> bool {
    let Some(last) = points.last() else { return true };
    let best = points.iter().map(|point| point.bytes_per_s).fold(0.0, f64::max);
    if last.bytes_per_s < best * 0.9 {
        return false;
    }
    match points.len().checked_sub(3) {
        Some(before) => last.bytes_per_s > points[before].bytes_per_s * 1.05,
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn observed(writers: [f64; 5]) -> ObservedLoad {
        let mut observed = ObservedLoad { log_writers: 1.0, ..ObservedLoad::default() };
        observed.level_writers[..5].copy_from_slice(&writers);
        for (level, bytes) in observed.level_bytes.iter_mut().enumerate().take(5) {
            *bytes = GIB << (2 * level);
        }
        observed
    }

    fn input(writers: [f64; 5], limit: u32, capacity: u64) -> SchemeInput {
        SchemeInput { observed: observed(writers), limit, capacity_bytes: capacity * GIB }
    }

    #[test]
    fn best_write_length_follows_from_latency() {
        let of = |points: &[(u32, f64)]| {
            let point = |&(threads, bytes_per_s)| Point { threads, bytes_per_s };
            let writes = points.iter().map(point).collect();
            DeviceProfile { writes, ..DeviceProfile::default() }.write_bytes_best()
        };
        // 4 KiB take 10 us of transfer at 409.6 MB/s, and 30 us of latency.
        let best = of(&[(1, 102.4e6), (4, 409.6e6), (8, 200e6)]);
        assert_eq!(best, Some(3 * 4096));
        assert_eq!(of(&[(1, 0.0)]), None);
        assert_eq!(of(&[(2, 1e6)]), None);
    }

    #[test]
    fn levels_are_fast_while_writers_and_bytes_fit() {
        let spread = [0.5, 0.8, 1.2, 2.0, 2.0];
        let chosen = decide(&input(spread, 4, 1000));
        assert_eq!(chosen.fast_levels, 3, "{chosen}");
        assert!(matches!(chosen.bound, Bound::Writers { limit: 4, .. }));
        let said = chosen.to_string();
        assert!(said.contains("L0 to the level 1 below the base"), "{said}");
        assert!(said.contains("the level 2 below the base there would be"), "{said}");
        let chosen = decide(&input(spread, 64, 30));
        assert!(matches!(chosen, Chosen { fast_levels: 3, bound: Bound::Bytes { .. } }));
        assert_eq!(decide(&input(spread, 64, 1000)).fast_levels, LEVELS as u8);
        assert_eq!(decide(&input([9.0; 5], 4, 1)).fast_levels, FAST_LEVELS_MIN, "always");
    }

    #[test]
    fn levels_are_counted_from_the_base_level() {
        // A classic tree, and one of a gigabyte with dynamic level sizes.
        assert_eq!([0, 1, 2, 3].map(|level| depth(level, 1)), [0, 1, 2, 3]);
        assert_eq!([0, 5, 6].map(|level| depth(level, 5)), [0, 1, 2]);
        assert_eq!(depth(6, 6), 1, "a young database has L0 and L6");
        assert_eq!(depth(4, 5), 1, "what lies above the base is no deeper");
    }

    #[test]
    fn scheme_changes_after_consecutive_wishes() {
        let few = input([0.5, 0.5, 0.5, 0.5, 0.5], 4, 1000);
        let many = input([1.0, 1.5, 2.0, 2.0, 2.0], 4, 1000);
        let idle = input([0.0; 5], 4, 1000);
        let mut follower = Follower::new(8);
        for _ in 0..100 {
            for _ in 0..PATIENCE - 1 {
                assert_eq!(follower.observe(&many), None);
                assert_eq!(follower.observe(&idle), None);
            }
            assert_eq!(follower.observe(&few), None);
        }
        assert_eq!(follower.fast_levels(), 8, "what changes to and fro is not followed");
        let changes = (0..20).filter_map(|_| follower.observe(&many)).count();
        assert_eq!((changes, follower.fast_levels()), (1, 2));
    }

    #[test]
    fn peak_is_where_more_threads_do_not_help() {
        let points = |rates: &[f64]| -> Vec<Point> {
            let threads = [1, 2, 4, 8, 16, 32, 64];
            let pairs = threads.into_iter().zip(rates);
            pairs.map(|(threads, &bytes_per_s)| Point { threads, bytes_per_s }).collect()
        };
        // The paper's memory: 500 kops/s at 4 writers, 226 at 16, 194 at 32, 188 at 64.
        let nvmm = points(&[200.0, 380.0, 500.0, 360.0]);
        assert_eq!((peak(&nvmm), goes_on(&nvmm)), (4, false));
        let flat = points(&[500.0, 502.0, 503.0]);
        assert_eq!((peak(&flat), goes_on(&flat)), (1, false));
        assert!(goes_on(&points(&[100.0, 200.0, 390.0])));
        assert_eq!(peak(&[]), 1);
    }

    #[test]
    fn scheme_parses_as_written_and_other_versions_are_refused() {
        let profile =
            DeviceProfile { name: "fast".to_owned(), writers_max: 4, ..Default::default() };
        let scheme = Scheme::of_profile(vec![profile], &observed([1.0; 5]), 100 * GIB);
        assert_eq!(scheme.fast_levels, 3);
        let text = scheme.to_toml().unwrap();
        assert_eq!(Scheme::from_toml(&text).unwrap(), scheme);
        let other = Scheme::from_toml(&text.replace("version = 1", "version = 2")).unwrap_err();
        assert!(other.to_string().contains("version 2"), "{other}");
    }
}
