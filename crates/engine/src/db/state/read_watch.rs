//! Measurements that look-ups make: their times, and the sealed memtable that answered.
//!
//! The context owns one [`ReadWatch`] if the options want latency histograms, or if the database
//! has memory nodes. Without one, look-ups run the code that measures nothing
//! ([`crate::db::read::get`]).
//!
//! Thread-safety: any thread may call any method. No locks are taken.
//! Failure: none.
//! Cost: a look-up that a sealed memtable answers pays one relaxed addition. With memory nodes the
//! look-ups of one key in 64, chosen by its hash, read the clock, and once more if a sealed
//! memtable answers. With skewed keys, that may be another share of the look-ups.

use std::sync::Arc;

use archipelago_base::SeqNo;
use archipelago_base::clock::Clock;

use crate::db::state::away::StoreLink;
use crate::db::state::family::SuperVersion;
use crate::db::state::memtable::ShardHome;
use crate::lookup::Lookup;
use crate::options::DbOptions;
use crate::stats::Ticker;

/// Bits of the hash of a key that are 0 for look-ups that are timed.
const SAMPLE_MASK: u64 = 63;

/// A search of the memtables that has decided.
pub(crate) struct DecidedSearch<'a> {
    pub(crate) current: &'a SuperVersion,
    pub(crate) key: &'a [u8],
    /// Position after the last sealed memtable that was searched.
    pub(crate) end: usize,
    /// Newest version of the key that was found.
    pub(crate) newest: Option<SeqNo>,
}

impl DecidedSearch<'_> {
    /// Age of the sealed memtable that answered, and whether it is in memory. `None` if the active
    /// memtable answered.
    fn answer(&self) -> Option<(usize, bool)> {
        for age in (0..self.end).rev() {
            match self.current.immutables.get(age)?.home_of(self.key) {
                None => {}
                Some(ShardHome::Here(_)) => return Some((age, true)),
                // The search has asked for several of them together.
                Some(ShardHome::Away(away)) => {
                    let figures = away.figures();
                    let numbers = figures.smallest_seq..=figures.largest_seq;
                    if self.newest.is_some_and(|seq| numbers.contains(&seq)) {
                        return Some((age, false));
                    }
                }
            }
        }
        None
    }
}

/// What look-ups of a database measure.
pub(crate) struct ReadWatch {
    /// Whether the time of each look-up is recorded.
    has_histogram: bool,
    /// Link to the memory nodes, whose figures count answers.
    link: Option<Arc<StoreLink>>,
}

impl ReadWatch {
    /// The watch of a database; `None` if it measures nothing.
    pub(crate) fn of(options: &DbOptions, link: Option<&Arc<StoreLink>>) -> Option<Box<Self>> {
        let has_histogram = options.latency_histograms;
        let link = link.map(Arc::clone);
        (has_histogram || link.is_some()).then(|| Box::new(Self { has_histogram, link }))
    }

    pub(crate) fn has_histogram(&self) -> bool {
        self.has_histogram
    }

    /// Time at which a look-up begins, if it is one of those whose answer is timed.
    #[inline]
    pub(crate) fn sample(&self, clock: &Arc<dyn Clock>, lookup: &Lookup<'_>) -> Option<u64> {
        let is_sampled = self.link.is_some() && lookup.hash & SAMPLE_MASK == 0;
        is_sampled.then(|| clock.now_ns())
    }

    /// Counts the sealed memtable that answered a look-up. `sampled_ns` is that of
    /// [`ReadWatch::sample`].
    pub(crate) fn note_answer(
        &self,
        search: &DecidedSearch<'_>,
        clock: &Arc<dyn Clock>,
        sampled_ns: Option<u64>,
    ) {
        let Some(link) = &self.link else { return };
        let Some((age, is_here)) = search.answer() else { return };
        link.stay_figures().note_answer(age);
        let Some(sampled_ns) = sampled_ns else { return };
        let ns = clock.now_ns().saturating_sub(sampled_ns);
        let (count, sum) = match is_here {
            true => (Ticker::AwayTimedHere, Ticker::AwayTimedHereNs),
            false => (Ticker::AwayTimedThere, Ticker::AwayTimedThereNs),
        };
        link.stats().add(count, 1);
        link.stats().add(sum, ns);
        if is_here {
            link.stay_figures().note_local(ns);
        }
    }
}
