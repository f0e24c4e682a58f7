//! Mean number of files of each kind that are open for writing, from which the scheme follows.
//!
//! Thread-safety: a mutex guards the counts. Cost: the mutex is taken when a file is opened for
//! writing and when it is closed.

use archipelago_env::FileClass;
use parking_lot::Mutex;

use crate::scheme::LEVELS;

/// Number of kinds: the log, then the levels by depth.
const KINDS: usize = LEVELS + 1;

/// Files of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct KindActivity {
    /// Number of files that are open.
    open: u32,
    /// Time up to which `open_ns` is computed.
    since_ns: u64,
    /// Integral of `open` over time, up to `since_ns`.
    open_ns: u64,
}

impl KindActivity {
    fn advance(&mut self, now_ns: u64) {
        self.open_ns += u64::from(self.open) * now_ns.saturating_sub(self.since_ns);
        self.since_ns = now_ns.max(self.since_ns);
    }
}

/// Open files by kind.
#[derive(Debug)]
pub(crate) struct Activity {
    kinds: Mutex<[KindActivity; KINDS]>,
}

/// Total time that files of each kind were open for writing, up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    now_ns: u64,
    open_ns: [u64; KINDS],
}

impl Totals {
    /// Mean number of writers of the log, and of each level by depth, since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> (f64, [f64; LEVELS]) {
        let passed = self.now_ns.saturating_sub(earlier.now_ns).max(1) as f64;
        let mean = |kind: usize| (self.open_ns[kind] - earlier.open_ns[kind]) as f64 / passed;
        (mean(0), std::array::from_fn(|level| mean(level + 1)))
    }
}

/// Index of the kind of a file whose level has this depth. `None` if the file does not count.
pub(crate) fn kind_of(class: FileClass, depth: Option<u8>) -> Option<usize> {
    match (class, depth) {
        (FileClass::Wal, _) => Some(0),
        (FileClass::Sst, Some(depth)) => Some(usize::from(depth).min(LEVELS - 1) + 1),
        _ => None,
    }
}

impl Activity {
    pub(crate) fn new(now_ns: u64) -> Self {
        let kind = KindActivity { since_ns: now_ns, ..KindActivity::default() };
        Self { kinds: Mutex::new([kind; KINDS]) }
    }

    /// Counts a file that is opened for writing.
    pub(crate) fn open(&self, kind: usize, now_ns: u64) {
        let mut kinds = self.kinds.lock();
        kinds[kind].advance(now_ns);
        kinds[kind].open += 1;
    }

    /// Counts a file that is closed.
    pub(crate) fn close(&self, kind: usize, now_ns: u64) {
        let mut kinds = self.kinds.lock();
        kinds[kind].advance(now_ns);
        kinds[kind].open -= 1;
    }

    /// Totals up to now.
    pub(crate) fn totals(&self, now_ns: u64) -> Totals {
        let mut kinds = self.kinds.lock();
        kinds.iter_mut().for_each(|kind| kind.advance(now_ns));
        Totals { now_ns, open_ns: std::array::from_fn(|kind| kinds[kind].open_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_averaged_over_time() {
        let level = kind_of(FileClass::Sst, Some(0)).unwrap();
        let activity = Activity::new(1000);
        let start = activity.totals(1000);
        activity.open(level, 1000);
        activity.open(level, 1500);
        activity.open(0, 1500);
        activity.close(level, 1750);
        let (log, levels) = activity.totals(2000).since(&start);
        assert!((log - 0.5).abs() < 1e-9);
        assert!((levels[0] - 1.25).abs() < 1e-9, "{levels:?}");
        let later = activity.totals(2000);
        assert_eq!(activity.totals(3000).since(&later).1[0], 1.0);
    }
}
