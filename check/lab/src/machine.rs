//! Processor time of the whole machine, from `/proc/stat`.
//!
//! A run whose processors are nearly full measures the processors instead of the emulated card.
//! Failure: if the kernel does not report the times, the share is missing.

/// Processor time of all processors since the start of the machine, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BusyTime {
    busy: u64,
    total: u64,
}

impl BusyTime {
    pub(crate) fn now() -> Option<Self> {
        Self::of(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The times in the first line: user, nice, system, idle, waiting for devices, and further
    /// times of interrupts and of other guests.
    fn of(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let times = line.split_whitespace().map(|word| word.parse::<u64>().ok());
        let times: Vec<u64> = times.take(8).collect::<Option<_>>()?;
        let idle = times.get(3)? + times.get(4)?;
        let total = times.iter().sum::<u64>();
        Some(Self { busy: total - idle, total })
    }

    /// Share of the time since `before` in which the processors were busy.
    pub(crate) fn share_since(&self, before: &Self) -> Option<f64> {
        let total = self.total.saturating_sub(before.total);
        (total > 0).then(|| self.busy.saturating_sub(before.busy) as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_follows_from_two_lines_of_the_kernel() {
        let before = BusyTime::of("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n").expect("times");
        let after = BusyTime::of("cpu  160 0 90 850 100 0 0 0 0 0\n").expect("times");
        assert_eq!(after.share_since(&before), Some(0.5));
        assert_eq!(before.share_since(&before), None);
        assert_eq!(BusyTime::of("intr 1 2 3"), None);
    }
}
