//! Notices that a device writes slower than its profile says: worn, shared with others, or not the
//! one that was measured. Pure.
//!
//! Over each interval, what was written is compared with what the profile promises for as many
//! writers as were within a write or a sync on average. A device that did less than [`SLOW_PART`]
//! of that in [`LOOKS`] telling intervals in a row counts as slower, by the best part that it
//! reached in them; one that did more than [`FINE_PART`] as often is as it was. In between nothing
//! changes. An interval tells nothing if there was little to write: a device that is hardly used is
//! not slow.
//!
//! What follows from it (`work/tick.rs`): the device takes fewer writers, in proportion, so the
//! scheme and the background threads leave it more of its throughput for the log and flushes. Not
//! by the paper, which profiles once (Keigo §4.2).

use crate::scheme::Point;

/// Under this part of what the profile says a device is slow.
const SLOW_PART: f64 = 0.5;
/// Over this part it is not any more.
const FINE_PART: f64 = 0.75;
/// So many intervals in a row.
const LOOKS: u32 = 6;
/// Intervals tell nothing in which writers were within calls for less than this part of the time.
const BUSY_MIN: f64 = 0.2;

/// What a device wrote in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Wrote {
    pub(crate) bytes: u64,
    /// Time within writes and syncs, of all writers together.
    pub(crate) busy_ns: u64,
    pub(crate) passed_ns: u64,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Watch {
    /// Of what the profile says; 1 as long as it is not slow.
    part: f64,
    /// Intervals in a row that were slow, or fine, while the device counts as the other.
    row: u32,
    /// The best part in them.
    best: f64,
}

impl Default for Watch {
    fn default() -> Self {
        Self { part: 1.0, row: 0, best: 0.0 }
    }
}

/// Bytes per second that the profile promises for `writers`, which need not be a whole number.
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
    /// The part of its profile that the device counts as reaching.
    pub(crate) fn part(&self) -> f64 {
        self.part
    }

    /// Looks at an interval; whether the part changed.
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
        if self.row < LOOKS {
            return false;
        }
        self.part = if is_slow { 1.0 } else { self.best.clamp(0.01, SLOW_PART) };
        (self.row, self.best) = (0, 0.0);
        true
    }
}

/// How many writers a device takes that reaches `part` of its profile.
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
    fn the_promise_lies_between_the_points_of_the_profile() {
        let at = |writers| promised(&PROFILE, writers).unwrap();
        assert_eq!(
            (at(0.5), at(1.0), at(1.5), at(3.0), at(9.0)),
            (50.0, 100.0, 140.0, 190.0, 200.0)
        );
        assert_eq!(promised(&[], 1.0), None);
    }

    #[test]
    fn a_device_is_slow_after_several_slow_intervals_and_fine_after_several_fine_ones() {
        let mut watch = Watch::default();
        for _ in 1..LOOKS {
            assert!(!watch.look(&PROFILE, wrote(40, 1.0)));
        }
        assert!(!watch.look(&PROFILE, wrote(90, 1.0)), "one fine interval, and it begins anew");
        let changed: Vec<bool> =
            (0..LOOKS).map(|at| watch.look(&PROFILE, wrote(30 + u64::from(at), 1.0))).collect();
        assert_eq!(changed.iter().filter(|changed| **changed).count(), 1);
        assert!((watch.part() - 0.35).abs() < 1e-9, "the best of them: {}", watch.part());
        for _ in 0..3 * LOOKS {
            assert!(!watch.look(&PROFILE, wrote(60, 1.0)), "between slow and fine nothing changes");
        }
        assert!((1..=LOOKS).any(|_| watch.look(&PROFILE, wrote(95, 1.0))));
        assert_eq!(watch.part(), 1.0);
    }

    #[test]
    fn a_device_that_is_hardly_used_or_was_never_measured_is_not_slow() {
        let mut watch = Watch::default();
        for _ in 0..3 * LOOKS {
            assert!(!watch.look(&PROFILE, wrote(1, 0.1)));
            assert!(!watch.look(&[], wrote(1, 4.0)));
            assert!(!watch.look(&PROFILE, Wrote::default()));
        }
    }

    #[test]
    fn the_limit_follows_and_is_never_nothing() {
        assert_eq!([1.0, 0.5, 0.3, 0.01].map(|part| limit_at(part, 4)), [4, 2, 1, 1]);
    }
}
