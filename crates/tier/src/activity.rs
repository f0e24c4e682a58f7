//! How many files of which kind are open for writing, on average over time: what the scheme
//! follows.
//!
//! A mutex that is taken when a file is opened for writing and when it is closed.

use archipelago_env::FileClass;
use parking_lot::Mutex;

use crate::scheme::LEVELS;

/// The log, then the levels by depth.
const KINDS: usize = LEVELS + 1;

#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    open: u32,
    since_ns: u64,
    /// Integral of `open` over time until `since_ns`.
    open_ns: u64,
}

impl Kind {
    fn advance(&mut self, now_ns: u64) {
        self.open_ns += u64::from(self.open) * now_ns.saturating_sub(self.since_ns);
        self.since_ns = now_ns.max(self.since_ns);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Activity {
    kinds: Mutex<[Kind; KINDS]>,
}

/// Time that files were open for writing, by kind, up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    now_ns: u64,
    open_ns: [u64; KINDS],
}

impl Totals {
    /// Writers of the log and of the levels, by depth, since `earlier`, on average.
    pub(crate) fn since(&self, earlier: &Self) -> (f64, [f64; LEVELS]) {
        let passed = self.now_ns.saturating_sub(earlier.now_ns).max(1) as f64;
        let mean = |kind: usize| (self.open_ns[kind] - earlier.open_ns[kind]) as f64 / passed;
        (mean(0), std::array::from_fn(|level| mean(level + 1)))
    }
}

/// What a file counts as, if its level is so deep; `None`: not at all.
pub(crate) fn kind_of(class: FileClass, depth: Option<u8>) -> Option<usize> {
    match (class, depth) {
        (FileClass::Wal, _) => Some(0),
        (FileClass::Sst, Some(depth)) => Some(usize::from(depth).min(LEVELS - 1) + 1),
        _ => None,
    }
}

impl Activity {
    pub(crate) fn new(now_ns: u64) -> Self {
        let kind = Kind { since_ns: now_ns, ..Kind::default() };
        Self { kinds: Mutex::new([kind; KINDS]) }
    }

    pub(crate) fn open(&self, kind: usize, now_ns: u64) {
        let mut kinds = self.kinds.lock();
        kinds[kind].advance(now_ns);
        kinds[kind].open += 1;
    }

    pub(crate) fn close(&self, kind: usize, now_ns: u64) {
        let mut kinds = self.kinds.lock();
        kinds[kind].advance(now_ns);
        kinds[kind].open -= 1;
    }

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
