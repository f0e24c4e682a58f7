//! The time for which a process was awake. A process that stands still (a paused virtual machine,
//! no processor, no memory) receives no messages, so its own pause says nothing about the silence
//! of others. The thread that drives the process asks for the time in short intervals, so a longer
//! interval is a pause.
//!
//! Thread-safety: none of its own.
//! Failure: none. Cost: a few instructions.

/// Longest interval that is no pause, in nanoseconds.
const STEP_MAX_NS: u64 = 100_000_000;

/// A clock's time without the pauses of this process.
#[derive(Debug, Default)]
pub(super) struct AwakeTime {
    latest_ns: u64,
    awake_ns: u64,
}

impl AwakeTime {
    /// The time for which the process was awake until `now_ns`, the clock's time.
    pub(super) fn until(&mut self, now_ns: u64) -> u64 {
        let step_ns = now_ns.saturating_sub(self.latest_ns);
        self.latest_ns += step_ns;
        self.awake_ns += step_ns.min(STEP_MAX_NS);
        self.awake_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_do_not_count() {
        let mut time = AwakeTime::default();
        let mut now_ns = 7;
        assert_eq!(time.until(now_ns), 7);
        for _ in 0..100 {
            now_ns += STEP_MAX_NS;
            time.until(now_ns);
        }
        let before_ns = time.until(now_ns);
        assert_eq!(before_ns, now_ns);
        now_ns += 3_600_000_000_000;
        assert_eq!(time.until(now_ns), before_ns + STEP_MAX_NS);
        assert_eq!(time.until(now_ns - 5), before_ns + STEP_MAX_NS, "time never decreases");
        assert_eq!(time.until(now_ns + 9), before_ns + STEP_MAX_NS + 9);
    }
}
