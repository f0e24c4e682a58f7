//! When accesses come to count half. Pure.
//!
//! The longer they are counted, the better blocks are told apart, so they age when there were enough for that, and not sooner; unless copies
//! serve clearly less than those counts promised: then what is hot has moved on, and they age at every half-life.

/// Accesses age when there were so many for each range that is counted…
const READS_PER_RANGE: u64 = 8;
/// …but at the latest after so many half-lives.
const HALF_LIVES_MAX: u64 = 30;
/// Copies are out of date that serve less than this part of what they were expected to…
const KEPT_MIN: f64 = 0.75;
/// …when that was so many reads.
const EXPECTED_MIN: f64 = 100.0;

/// What was in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    /// Foreground reads…
    pub(crate) reads: u64,
    /// …and those of them that copies served.
    pub(crate) hits: u64,
    /// Ranges that are counted.
    pub(crate) ranges: u64,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ageing {
    at_ms: u64,
    /// Since then.
    reads: u64,
    hits: u64,
    expected: f64,
    /// What part of the reads copies are expected to serve.
    share: f64,
}

impl Ageing {
    /// Takes an interval; whether accesses age now.
    pub(crate) fn look(&mut self, now_ms: u64, half_life_ms: u64, interval: Interval) -> bool {
        self.reads += interval.reads;
        self.hits += interval.hits;
        self.expected += interval.reads as f64 * self.share;
        let half_life_ms = half_life_ms.max(1);
        let passed_ms = now_ms.saturating_sub(self.at_ms);
        let is_enough = self.reads >= READS_PER_RANGE * interval.ranges;
        let is_late = passed_ms >= HALF_LIVES_MAX * half_life_ms;
        let is_stale =
            self.expected >= EXPECTED_MIN && (self.hits as f64) < KEPT_MIN * self.expected;
        let ages = passed_ms >= half_life_ms && (is_enough || is_late || is_stale);
        if ages {
            *self = Self { at_ms: now_ms, share: self.share, ..Self::default() };
        }
        ages
    }

    /// From now on copies should serve this part of the reads, if those are as they were.
    pub(crate) fn expect(&mut self, share: f64) {
        self.share = share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every second until accesses age; when that was.
    fn ages_at(share: f64, interval: Interval) -> u64 {
        let mut ageing = Ageing::default();
        ageing.expect(share);
        (1..).find(|second| ageing.look(second * 1000, 10_000, interval)).unwrap_or(0)
    }

    #[test]
    fn accesses_age_when_there_were_enough_and_sooner_if_copies_are_out_of_date() {
        let interval = |reads, hits| Interval { reads, hits, ranges: 1000 };
        assert_eq!(ages_at(0.0, interval(4000, 0)), 10, "never sooner than a half-life");
        assert_eq!(ages_at(0.0, interval(400, 0)), 20);
        assert_eq!(ages_at(0.0, interval(1, 0)), 300);
        assert_eq!(ages_at(0.5, interval(400, 200)), 20, "as expected");
        assert_eq!(ages_at(0.5, interval(400, 100)), 10, "half as many hits as expected");
        assert_eq!(ages_at(0.5, interval(10, 0)), 20, "not known before 100 were expected");
    }
}
