//! Detection of devices that write slower than their profile: worn, shared, or exchanged devices.
//!
//! Over each interval, the written bytes are compared with those that the profile promises for the
//! mean number of writers that were within a write or a sync. A device that reached less than
//! [`SLOW_PART`] of the promise in [`INTERVALS_MIN`] consecutive intervals is slow, by the best
//! fraction that it reached in them. A slow device that exceeds [`FINE_PART`] in as many
//! consecutive intervals is no longer slow. Between the two thresholds nothing changes. An interval
//! with few writes does not count, because a device that is hardly used is not slow.
//!
//! A slow device takes proportionally fewer writers (`mover/control_loop.rs`). So the scheme and
//! the background threads leave more of its throughput to the log and to flushes. The paper
//! profiles devices once (Keigo §4.2) and has no such detection. All functions are pure.

use crate::scheme::Point;

/// Fraction of the profile's throughput below which a device is slow.
const SLOW_PART: f64 = 0.5;
/// Fraction of the profile's throughput above which a slow device is no longer slow.
const FINE_PART: f64 = 0.75;
/// Number of consecutive intervals from which a change is concluded.
const INTERVALS_MIN: u32 = 6;
/// Least mean number of writers within calls for an interval to count.
const BUSY_MIN: f64 = 0.2;

/// Writes of a device in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Wrote {
    pub(crate) bytes: u64,
    /// Time within writes and syncs in nanoseconds, summed over all writers.
    pub(crate) busy_ns: u64,
    /// Length of the interval in nanoseconds.
    pub(crate) passed_ns: u64,
}

/// The state of the detection for one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Watch {
    /// Fraction of the profile's throughput that the device reaches; 1 while it is not slow.
    part: f64,
    /// Number of consecutive intervals that contradict the present state.
    row: u32,
    /// Best fraction of the profile's throughput in the intervals that `row` counts.
    best: f64,
}

impl Default for Watch {
    fn default() -> Self {
        Self { part: 1.0, row: 0, best: 0.0 }
    }
}

/// Bytes per second that the profile promises for `writers`, interpolated between its points.
fn promised(writes: &[Point], writers: f64) -> Option<f64> {
    let first = writes.first()?;
    let above = writes.iter().position(|point| f64::from(point.threads) >= writers);
    Some(match above {
        Some(0) => first.bytes_per_s * writers / f64::from(first.threads.max(1)),
        Some(at) => {
            let (low, high) = (writes[at - 1], writes[at]);
            let span = f64::from(high.threads) - f64::from(low.threads);
            let along = (writers - f64::from(low.threads)) / span;
            low.bytes_per_s + along * (high.bytes_per_s - low.bytes_per_s)
        }
        None => writes.last()?.bytes_per_s,
    })
}

impl Watch {
    /// Fraction of the profile's throughput that the device reaches. It is 1 for a device that is
    /// not slow.
    pub(crate) fn part(&self) -> f64 {
        self.part
    }

    /// Takes the writes of an interval. Returns whether the fraction changed.
    pub(crate) fn look(&mut self, writes: &[Point], wrote: Wrote) -> bool {
        if wrote.passed_ns == 0 {
            return false;
        }
        let writers = wrote.busy_ns as f64 / wrote.passed_ns as f64;
        if writers < BUSY_MIN {
            return false;
        }
        let Some(promised) = promised(writes, writers).filter(|promised| *promised > 0.0) else {
            return false;
        };
        let did = wrote.bytes as f64 * 1e9 / wrote.passed_ns as f64;
        let part = did / promised;
        let is_slow = self.part < 1.0;
        let against = if is_slow { part > FINE_PART } else { part < SLOW_PART };
        if !against {
            (self.row, self.best) = (0, 0.0);
            return false;
        }
        (self.row, self.best) = (self.row + 1, self.best.max(part));
        if self.row < INTERVALS_MIN {
            return false;
        }
        self.part = if is_slow { 1.0 } else { self.best.clamp(0.01, SLOW_PART) };
        (self.row, self.best) = (0, 0.0);
        true
    }
}

/// Number of writers that a device takes which reaches the fraction `part` of its profile.
pub(crate) fn limit_at(part: f64, profiled: u32) -> u32 {
    ((f64::from(profiled) * part).round() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: [Point; 3] = [
        Point { threads: 1, bytes_per_s: 100.0 },
        Point { threads: 2, bytes_per_s: 180.0 },
        Point { threads: 4, bytes_per_s: 200.0 },
    ];

    fn wrote(bytes: u64, writers: f64) -> Wrote {
        Wrote { bytes, busy_ns: (writers * 1e9) as u64, passed_ns: 1_000_000_000 }
    }

    #[test]
    fn promise_is_interpolated_between_the_points_of_the_profile() {
        let at = |writers| promised(&PROFILE, writers).unwrap();
        assert_eq!(
            (at(0.5), at(1.0), at(1.5), at(3.0), at(9.0)),
            (50.0, 100.0, 140.0, 190.0, 200.0)
        );
        assert_eq!(promised(&[], 1.0), None);
    }

    #[test]
    fn device_changes_state_after_consecutive_intervals() {
        let mut watch = Watch::default();
        for _ in 1..INTERVALS_MIN {
            assert!(!watch.look(&PROFILE, wrote(40, 1.0)));
        }
        assert!(!watch.look(&PROFILE, wrote(90, 1.0)), "one fine interval, and it begins anew");
        let changed: Vec<bool> = (0..INTERVALS_MIN)
            .map(|at| watch.look(&PROFILE, wrote(30 + u64::from(at), 1.0)))
            .collect();
        assert_eq!(changed.iter().filter(|changed| **changed).count(), 1);
        assert!((watch.part() - 0.35).abs() < 1e-9, "the best of them: {}", watch.part());
        for _ in 0..3 * INTERVALS_MIN {
            assert!(!watch.look(&PROFILE, wrote(60, 1.0)), "between slow and fine nothing changes");
        }
        assert!((1..=INTERVALS_MIN).any(|_| watch.look(&PROFILE, wrote(95, 1.0))));
        assert_eq!(watch.part(), 1.0);
    }

    #[test]
    fn idle_or_unprofiled_device_is_not_slow() {
        let mut watch = Watch::default();
        for _ in 0..3 * INTERVALS_MIN {
            assert!(!watch.look(&PROFILE, wrote(1, 0.1)));
            assert!(!watch.look(&[], wrote(1, 4.0)));
            assert!(!watch.look(&PROFILE, Wrote::default()));
        }
    }

    #[test]
    fn limit_is_proportional_and_at_least_one() {
        assert_eq!([1.0, 0.5, 0.3, 0.01].map(|part| limit_at(part, 4)), [4, 2, 1, 1]);
    }
}
