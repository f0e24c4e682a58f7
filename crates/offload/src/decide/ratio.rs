//! Pure decisions: the number of sealed memtables that stay in the process, so that reads take the
//! least time (the automatic ratio of O³-LSM §5.3), and the next step towards it.
//!
//! [`SettledRatio`] moves by one memtable at a time, and not before three windows in a row want the
//! same direction. A step must promise to save a fiftieth of the time of a read.
//!
//! Cost: O(memtables²), because each possible number costs O(memtables).

use std::cmp::Ordering;

/// Number of windows in a row that must want the same direction before the first step.
const AGREED_MIN: u32 = 3;
/// Least part of the mean time of a read that the best number must save.
const GAIN_MIN: f64 = 0.02;

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
/// those with which transfers keep up. Of two equal numbers the smaller one wins. The result is 0
/// if transfers do not keep up and memory has no room for more memtables. All memtables stay if the
/// figures permit no comparison.
#[must_use]
pub fn ratio(input: &RatioInput<'_>) -> usize {
    let most = input.answered.len();
    let judged = (input.least.min(most)..=most).filter_map(|here| Some((here, input.cost(here)?)));
    let best = judged.min_by(|(_, one), (_, other)| one.total_cmp(other));
    let without = if input.cost(0).is_some() { 0 } else { most };
    best.map_or(without, |(here, _)| here)
}

/// The number of memtables that stay, which follows the best number slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledRatio {
    here: usize,
    /// Side of the best number in the last windows.
    direction: Ordering,
    /// Number of windows in a row that wanted this direction.
    agreed: u32,
}

impl Default for SettledRatio {
    fn default() -> Self {
        Self { here: 0, direction: Ordering::Equal, agreed: 0 }
    }
}

impl SettledRatio {
    /// The number of memtables that stay now.
    #[must_use]
    pub fn here(&self) -> usize {
        self.here
    }

    /// The ratio after a window with these figures: the same number, or one more or less.
    #[must_use]
    pub fn after(self, input: &RatioInput<'_>) -> Self {
        let direction = self.direction_of(input);
        let agreed = if direction == self.direction { self.agreed.saturating_add(1) } else { 1 };
        let waits = agreed < AGREED_MIN;
        let here = match direction {
            Ordering::Greater if !waits => self.here + 1,
            Ordering::Less if !waits => self.here.saturating_sub(1),
            _ => self.here,
        };
        Self { here, direction, agreed }
    }

    /// The direction in which the number should move. It should stay if the figures permit no
    /// comparison, if the best number saves too little, or if all existing memtables stay already.
    fn direction_of(&self, input: &RatioInput<'_>) -> Ordering {
        let best = ratio(input);
        let now = self.here.min(input.answered.len());
        let Some(least_cost) = input.cost(best) else { return Ordering::Equal };
        let is_worth = match input.cost(now) {
            // The present number must change. Memory has no room for so many memtables, or they are
            // too few for transfers to keep up with writers.
            None => true,
            Some(_) if now < input.least => true,
            // The number may fall without a gain if no read needs the memtables that leave.
            Some(_)
                if best < now && input.answered[best..now].iter().all(|&share| share <= 0.0) =>
            {
                true
            }
            Some(cost) => cost - least_cost >= cost * GAIN_MIN,
        };
        if is_worth { best.cmp(&now) } else { Ordering::Equal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input<'a>(answered: &'a [f64], misses: &'a [f64]) -> RatioInput<'a> {
        RatioInput { answered, known: 0.0, misses, least: 0, times: TIMES }
    }

    /// The numbers after each of some windows with the same figures.
    fn steps(ratio: &mut SettledRatio, input: &RatioInput<'_>, windows: usize) -> Vec<usize> {
        let step = |_| {
            *ratio = ratio.after(input);
            ratio.here()
        };
        (0..windows).map(step).collect()
    }

    #[test]
    fn number_moves_by_one_after_three_windows_agree() {
        let mut ratio = SettledRatio::default();
        let reads = input(&[0.3, 0.3, 0.3, 0.0], &[0.01; 5]);
        assert_eq!(steps(&mut ratio, &reads, 7), [0, 0, 1, 2, 3, 3, 3]);
        let nothing = input(&[0.0; 4], &[0.01, 0.02, 0.03, 0.04, 0.05]);
        assert_eq!(steps(&mut ratio, &nothing, 6), [3, 3, 2, 1, 0, 0]);
    }

    #[test]
    fn memtables_that_nobody_reads_leave_without_a_gain() {
        let mut ratio = SettledRatio::default();
        let reads = input(&[0.3, 0.3], &[0.5; 3]);
        assert_eq!(steps(&mut ratio, &reads, 4), [0, 0, 1, 2]);
        let tables_only = input(&[0.0; 2], &[0.5; 3]);
        assert_eq!(steps(&mut ratio, &tables_only, 4), [2, 2, 1, 0]);
    }

    #[test]
    fn none_stays_by_choice_if_memory_has_no_room() {
        let no_room = [0.5, f64::INFINITY, f64::INFINITY];
        let late = RatioInput { least: 1, ..input(&[0.3, 0.3], &no_room) };
        assert_eq!(ratio(&late), 0);
    }

    #[test]
    fn single_window_changes_nothing() {
        let mut ratio = SettledRatio::default();
        let reads = input(&[0.3, 0.3], &[0.01; 3]);
        let nothing = input(&[0.0; 2], &[0.5; 3]);
        for _ in 0..20 {
            assert_eq!(steps(&mut ratio, &reads, 2), [0, 0]);
            assert_eq!(steps(&mut ratio, &nothing, 1), [0]);
        }
    }

    #[test]
    fn number_stays_if_another_one_saves_little() {
        let mut ratio = SettledRatio::default();
        // 0.1 · 9 saves 0.9 of 51.
        let reads = input(&[0.1, 0.0], &[0.5; 3]);
        assert_eq!(steps(&mut ratio, &reads, 10), [0; 10]);
        // 0.2 · 9 saves 1.8 of 52.
        let reads = input(&[0.2, 0.0], &[0.5; 3]);
        assert_eq!(steps(&mut ratio, &reads, 4), [0, 0, 1, 1]);
    }

    #[test]
    fn number_without_room_falls_and_short_queue_changes_nothing() {
        let mut ratio = SettledRatio::default();
        let reads = input(&[0.3, 0.3], &[0.01; 3]);
        assert_eq!(steps(&mut ratio, &reads, 4), [0, 0, 1, 2]);
        // A flush has removed memtables, and one is left.
        let few = input(&[0.6], &[0.01; 2]);
        assert_eq!(steps(&mut ratio, &few, 5), [2; 5]);
        // Other memory has grown.
        let full = input(&[0.3, 0.3], &[0.01, f64::INFINITY, f64::INFINITY]);
        assert_eq!(steps(&mut ratio, &full, 5), [2, 2, 1, 0, 0]);
        // Figures that permit no comparison.
        let unknown = input(&[f64::NAN, 0.3], &[0.01; 3]);
        assert_eq!(steps(&mut ratio, &unknown, 5), [0; 5]);
    }

    #[test]
    fn transfers_that_do_not_keep_up_raise_the_number() {
        let mut ratio = SettledRatio::default();
        let behind = RatioInput { least: 2, ..input(&[0.0; 4], &[0.5; 5]) };
        assert_eq!(steps(&mut ratio, &behind, 5), [0, 0, 1, 2, 2]);
    }

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
