//! Pure decision: the number of sealed memtables that stay in the process, so that reads take the
//! least time (the automatic ratio of O³-LSM §5.3).
//!
//! Cost: O(memtables²), because each possible number costs O(memtables).

/// Times of a read, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadTimes {
    /// Time of a search in a memtable of this process.
    pub local_ns: f64,
    /// Time of a READ of a known record at a memory node.
    pub read_ns: f64,
    /// Time of a request to a memory node.
    pub request_ns: f64,
    /// Time of a read of a block from storage.
    pub storage_ns: f64,
}

/// Figures of the reads of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RatioInput<'a> {
    /// Share of the reads that each sealed memtable answers, newest memtable first.
    pub answered: &'a [f64],
    /// Share of the reads at memory nodes whose record the key-offset cache knows, from 0 to 1.
    pub known: f64,
    /// Share of the reads that miss the block cache, by the number of memtables that stay here.
    /// These memtables take memory from the cache. The slice has one element more than `answered`.
    pub misses: &'a [f64],
    /// Least number of memtables here with which transfers keep up with writers.
    pub least: usize,
    /// Times of a read.
    pub times: ReadTimes,
}

impl RatioInput<'_> {
    /// Mean time of a read, in nanoseconds, if `here` memtables stay here. `None` if a figure is
    /// missing or is not finite.
    fn cost(&self, here: usize) -> Option<f64> {
        let times = &self.times;
        let there_ns = self.known * times.read_ns + (1.0 - self.known) * times.request_ns;
        let (local, away) = self.answered.split_at_checked(here)?;
        let local_ns = local.iter().sum::<f64>() * times.local_ns;
        let away_ns = away.iter().sum::<f64>() * there_ns;
        let cost = local_ns + away_ns + self.misses.get(here)? * times.storage_ns;
        cost.is_finite().then_some(cost)
    }
}

/// The number of memtables that should stay here: the one with the least mean time of a read, among
/// those with which transfers keep up. Of two equal numbers the smaller one wins. All memtables
/// stay if the figures permit no comparison.
#[must_use]
pub fn ratio(input: &RatioInput<'_>) -> usize {
    let most = input.answered.len();
    let judged = (input.least.min(most)..=most).filter_map(|here| Some((here, input.cost(here)?)));
    let best = judged.min_by(|(_, one), (_, other)| one.total_cmp(other));
    best.map_or(most, |(here, _)| here)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ReadTimes =
        ReadTimes { local_ns: 1.0, read_ns: 2.0, request_ns: 10.0, storage_ns: 100.0 };

    #[test]
    fn memtables_stay_as_long_as_they_answer_more_than_the_cache_would() {
        let of = |answered: &[f64], known, misses: &[f64], least| {
            ratio(&RatioInput { answered, known, misses, least, times: TIMES })
        };
        // The miss rate does not grow, so everything stays.
        assert_eq!(of(&[0.1; 4], 0.0, &[0.5; 5], 0), 4);
        // Memtables that answer nothing leave, except for those that transfers need.
        assert_eq!(of(&[0.0; 4], 0.0, &[0.5, 0.51, 0.52, 0.53, 0.54], 0), 0);
        assert_eq!(of(&[0.0; 4], 0.0, &[0.5, 0.51, 0.52, 0.53, 0.54], 2), 2);
        assert_eq!(of(&[0.0; 4], 0.0, &[0.5, 0.51, 0.52, 0.53, 0.54], 9), 4);
        // The newest memtables answer most reads: 0.3 · 9 saves more than 0.01 · 100 costs, and
        // 0.05 · 9 saves less.
        let misses = [0.50, 0.51, 0.52, 0.53, 0.54];
        assert_eq!(of(&[0.3, 0.2, 0.05, 0.02], 0.0, &misses, 0), 2);
        // Known records make memory nodes almost as fast as memory here.
        assert_eq!(of(&[0.3, 0.2, 0.05, 0.02], 1.0, &misses, 0), 0);
        // Equal costs: the smaller number. Figures that are missing: everything stays.
        assert_eq!(of(&[0.0; 2], 0.0, &[0.5; 3], 0), 0);
        assert_eq!(of(&[0.1; 2], 0.0, &[], 0), 2);
        assert_eq!(of(&[f64::NAN; 2], 0.0, &[0.5; 3], 0), 2);
    }
}
