//! The write rate of an executor, from which its I/O load follows (O³-LSM §5.1).
//!
//! The load is the rate of the last second over the highest rate of the last minutes. The highest
//! rate falls slowly while jobs write, because a device or a network may get slower. An executor
//! that has never written much has no highest rate yet, so a least rate takes its place.
//!
//! Thread-safety: none; the state of the executor owns the meter.
//! Failure: the load is an estimate; only the choice of an executor depends on it.
//! Cost: O(1) for each measurement.

/// Shortest time over which a rate is measured, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000_000;
/// Least value of the highest rate, in bytes a second.
const HIGHEST_MIN: u64 = 16 << 20;
/// Part of the highest rate by which a lower rate decreases it.
const FALL: u64 = 64;

/// Measures how fast the jobs of an executor write.
#[derive(Debug)]
pub(super) struct WriteRate {
    /// Bytes that ended jobs have written.
    ended_bytes: u64,
    /// Begin of the window, and the bytes that all jobs had written then.
    begin: Option<(u64, u64)>,
    highest: u64,
    load: u32,
}

impl Default for WriteRate {
    fn default() -> Self {
        Self { ended_bytes: 0, begin: None, highest: HIGHEST_MIN, load: 0 }
    }
}

impl WriteRate {
    /// Notes the end of a job that has written `bytes`.
    pub(super) fn job_ended(&mut self, bytes: u64) {
        self.ended_bytes += bytes;
    }

    /// The I/O load in thousandths at the time `now_ns`, when the jobs that run have written
    /// `running_bytes`.
    pub(super) fn load(&mut self, now_ns: u64, running_bytes: u64) -> u32 {
        let bytes = self.ended_bytes + running_bytes;
        let Some((begin_ns, before)) = self.begin else {
            self.begin = Some((now_ns, bytes));
            return self.load;
        };
        let elapsed_ns = now_ns.saturating_sub(begin_ns);
        if elapsed_ns < WINDOW_NS {
            return self.load;
        }
        let written = bytes.saturating_sub(before);
        let rate = u128::from(written) * u128::from(WINDOW_NS) / u128::from(elapsed_ns);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if written > 0 {
            let fallen = self.highest - self.highest / FALL;
            self.highest = fallen.max(rate).max(HIGHEST_MIN);
        }
        self.load = (u128::from(rate) * 1000 / u128::from(self.highest)) as u32;
        self.begin = Some((now_ns, bytes));
        self.load
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    #[test]
    fn load_is_the_rate_over_the_highest_rate() {
        let mut rate = WriteRate::default();
        assert_eq!(rate.load(0, 0), 0);
        assert_eq!(rate.load(S / 2, 50 * MIB), 0, "the window is not over");
        assert_eq!(rate.load(S, 100 * MIB), 1000);
        assert_eq!(rate.load(2 * S, 100 * MIB), 0, "nothing was written");
        let half = rate.load(3 * S, 150 * MIB);
        assert!((500..=510).contains(&half), "{half}");
    }

    #[test]
    fn little_is_a_small_load_although_nothing_was_faster() {
        let mut rate = WriteRate::default();
        assert_eq!(rate.load(0, 0), 0);
        assert_eq!(rate.load(S, 2 * MIB), 125);
    }

    #[test]
    fn highest_rate_falls_while_jobs_write_more_slowly() {
        let mut rate = WriteRate::default();
        rate.load(0, 0);
        let mut loads = (1..=300).map(|second| match second {
            1 => rate.load(S, 1000 * MIB),
            _ => rate.load(second * S, 1000 * MIB + (second - 1) * 100 * MIB),
        });
        assert_eq!(loads.next(), Some(1000));
        assert!(loads.next().is_some_and(|load| load < 120));
        assert_eq!(loads.last(), Some(1000));
    }

    #[test]
    fn bytes_of_ended_jobs_count_once() {
        let mut rate = WriteRate::default();
        rate.load(0, 0);
        rate.job_ended(32 * MIB);
        assert_eq!(rate.load(S, 0), 1000);
        assert_eq!(rate.load(2 * S, 0), 0);
    }
}
