//! The placement scheme: which levels belong to the fastest device, and why (Keigo §4.2).
//!
//! Levels are counted by [`depth`]: L0 is 0, the base level (the one that L0 compacts into) 1, the
//! next 2. With dynamic level sizes a database of one gigabyte has L0, L5 and L6, and L5 is what
//! the paper calls L1. A level belongs there if the writers of the log, of all levels above and its
//! own are together no more than the device takes, and if the bytes of all of them fit. L0 and L1
//! always do: they are in the writers' way. [`decide`] is pure; [`Follower`] follows observations
//! with hysteresis: it changes the scheme only when the same other one was wanted several times in
//! a row. [`Scheme`] is what `archipelago tier profile` writes, for people to read and change.

use std::fmt;

use archipelago_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// Levels that are told apart; deeper ones count as the last.
pub const LEVELS: usize = 8;

/// How deep `level` lies where L0 compacts into `base_level`.
#[must_use]
pub fn depth(level: u8, base_level: u8) -> u8 {
    match level {
        0 => 0,
        level => level.saturating_sub(base_level.max(1)).saturating_add(1),
    }
}

/// Levels that are on the fastest device whatever is measured.
pub const FAST_LEVELS_MIN: u8 = 2;

/// Version of the scheme's file.
const VERSION: u32 = 1;

/// What a device did with so many threads, in the profile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Threads.
    pub threads: u32,
    /// Bytes per second of all of them together.
    pub bytes_per_s: f64,
}

/// A device's profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// The device's name in the settings.
    pub name: String,
    /// How many writers it takes before they get slower together.
    pub writers_max: u32,
    /// The same of readers.
    pub readers_max: u32,
    /// Write throughput by number of writers.
    #[serde(default)]
    pub writes: Vec<Point>,
    /// Read throughput by number of readers.
    #[serde(default)]
    pub reads: Vec<Point>,
}

impl DeviceProfile {
    /// Bytes that the device writes while one write waits for it, from what one and the most
    /// writers of 4 KiB reached; `None` if it was not measured.
    #[must_use]
    pub fn write_bytes_best(&self) -> Option<u64> {
        const BLOCK_BYTES: f64 = 4096.0;
        let alone = self.writes.iter().find(|point| point.threads == 1)?.bytes_per_s;
        let most = self.writes.iter().map(|point| point.bytes_per_s).fold(alone, f64::max);
        // A block takes its transfer and then its latency.
        (alone > 0.0).then(|| (BLOCK_BYTES * (most / alone - 1.0)) as u64)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// Version of this file.
    pub version: u32,
    /// Levels of a depth below this one belong to the fastest device: 2 are L0 and the base level.
    pub fast_levels: u8,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
    /// Writers of the log, on average.
    #[serde(default)]
    pub log_writers: f64,
    /// Writers of each level by depth, on average over a write-heavy run.
    #[serde(default)]
    pub level_writers: Vec<f64>,
    /// The devices, fastest first.
    #[serde(default)]
    pub devices: Vec<DeviceProfile>,
}

impl Scheme {
    /// Reads a scheme. Errors: `InvalidArgument`, `Unsupported` for another version.
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

    /// Makes the scheme of measured devices and writers.
    #[must_use]
    pub fn of_profile(
        devices: Vec<DeviceProfile>,
        observed: &Observed,
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

/// What was observed of writers and sizes over a while.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Files of the log open for writing, on average over time.
    pub log_writers: f64,
    /// Tables of each level, by depth, open for writing, on average over time.
    pub level_writers: [f64; LEVELS],
    /// Bytes of each level, by depth.
    pub level_bytes: [u64; LEVELS],
    /// Foreground reads as a part of them and of what was written, in blocks of 4 KiB; 0 to 1.
    pub read_share: f64,
}

/// What [`decide`] decides from.
#[derive(Clone, Copy, Debug)]
pub struct SchemeInput {
    /// What was observed.
    pub observed: Observed,
    /// How many writers the fastest device takes.
    pub limit: u32,
    /// Bytes of the fastest device that files may take.
    pub capacity_bytes: u64,
}

/// What ends the levels of the fastest device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The next level's writers would be too many.
    Writers {
        /// How many there would be.
        writers: f64,
        /// How many the device takes.
        limit: u32,
    },
    /// The next level's bytes would not fit.
    Bytes {
        /// How many there would be.
        bytes: u64,
        /// How many may be.
        capacity: u64,
    },
    /// There is no further level.
    Nothing,
}

/// What [`decide`] chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// Levels of a depth below this one belong to the fastest device.
    pub fast_levels: u8,
    /// Why not more.
    pub bound: Bound,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [Name(0), Name(self.fast_levels.saturating_sub(1)), Name(self.fast_levels)];
        let [first, last, next] = names;
        write!(f, "log and {first} to {last} on the fastest device")?;
        match self.bound {
            Bound::Writers { writers, limit } => {
                write!(f, "; with {next} there would be {writers:.1} writers, and it takes {limit}")
            }
            Bound::Bytes { bytes, capacity } => {
                write!(f, "; with {next} there would be {bytes} bytes of {capacity}")
            }
            Bound::Nothing => Ok(()),
        }
    }
}

/// What a level of a depth is called.
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

/// Chooses the levels of the fastest device; see the module.
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

/// Above this part of reads an interval says nothing about writers either.
pub const READ_MOSTLY: f64 = 0.95;

/// Follows observations; see the module.
#[derive(Clone, Debug)]
pub struct Follower {
    current: u8,
    wanted: u8,
    times: u32,
}

/// How often in a row another scheme has to be wanted before it is taken.
pub const PATIENCE: u32 = 6;

/// While less than so many writers are active on average, nothing is learnt about writers.
pub const WRITERS_MIN: f64 = 0.5;

impl Follower {
    /// One that starts at a scheme.
    #[must_use]
    pub fn new(fast_levels: u8) -> Self {
        Self { current: fast_levels, wanted: fast_levels, times: 0 }
    }

    /// The scheme of now.
    #[must_use]
    pub fn fast_levels(&self) -> u8 {
        self.current
    }

    /// Takes note of an interval; the new scheme if it changes by this. An interval in which hardly
    /// anything was written says nothing about writers and is passed over: files that are
    /// read are helped by copies, not by moving levels.
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

/// The number of threads at which a device is at its best: the smallest whose throughput is
/// within a twentieth of the best. 1 of nothing.
#[must_use]
pub fn peak(points: &[Point]) -> u32 {
    let best = points.iter().map(|point| point.bytes_per_s).fold(0.0, f64::max);
    let good = points.iter().find(|point| point.bytes_per_s >= best * 0.95);
    good.map_or(1, |point| point.threads)
}

/// Whether measuring with more threads is worthwhile: not once the throughput fell by a tenth
/// below the best, or has not grown by a twentieth over the last two steps.
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

    fn observed(writers: [f64; 5]) -> Observed {
        let mut observed = Observed { log_writers: 1.0, ..Observed::default() };
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
    fn writes_are_efficient_from_what_a_device_writes_while_one_waits_for_it() {
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
    fn levels_are_taken_while_writers_and_bytes_fit() {
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
    fn the_scheme_changes_only_when_something_is_wanted_again_and_again() {
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
    fn the_peak_is_where_more_threads_do_not_help() {
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
    fn a_scheme_is_read_as_it_was_written_and_other_versions_are_refused() {
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
