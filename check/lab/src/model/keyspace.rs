//! The key space, and the contents of files of uniform random keys.
//!
//! The key space is the numbers below `space`; a record's key is drawn uniformly. So a file is a
//! range of numbers and a count. Files that overlap are independent random subsets. In a part of
//! the range in which they hold the shares `d₁, d₂, …` of all numbers, their merge holds `1 −
//! (1−d₁)(1−d₂)…`. That is exact in expectation. Deviations are of the order of the square root of
//! the counts, which is small for files of thousands of records. The functions are pure and cost
//! O(files × pieces).

use archipelago_engine::file_meta::FileMeta;
use archipelago_engine::job::output::GRANDPARENT_TARGETS;
use archipelago_engine::key::KeyRange;

/// Numbers `lo..hi`, of which `records` exist.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) lo: u64,
    pub(crate) hi: u64,
    pub(crate) records: f64,
}

impl Run {
    /// Fraction of the numbers between `lo` and `hi` that exist.
    fn density(&self) -> f64 {
        (self.records / (self.hi - self.lo).max(1) as f64).min(1.0)
    }

    /// Records that a file holds.
    pub(crate) fn of(meta: &FileMeta) -> Self {
        Self {
            lo: number(&meta.smallest),
            hi: number(&meta.largest) + 1,
            records: meta.entries as f64,
        }
    }

    /// The part of the run that lies in `range`.
    pub(crate) fn within(&self, range: (u64, u64)) -> Option<Self> {
        let (lo, hi) = (self.lo.max(range.0), self.hi.min(range.1));
        (lo < hi).then(|| Self { lo, hi, records: self.density() * (hi - lo) as f64 })
    }
}

/// The key of a number, as `archipelago bench` makes it.
pub(crate) fn key(number: u64) -> Vec<u8> {
    let mut key = vec![b'0'; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// The number of a key; of a shorter one, that of the first key that starts with it.
pub(crate) fn number(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = key.len().min(8);
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

/// The numbers of a key range below `space`.
pub(crate) fn numbers(range: &KeyRange, space: u64) -> (u64, u64) {
    let end = range.end.as_ref().map_or(space, |end| {
        // A range that includes its last key ends with that key and one more byte.
        number(end) + u64::from(end.len() > 16)
    });
    (number(&range.start), end.min(space))
}

/// Expected number of different numbers among `draws` from `width` numbers.
pub(crate) fn distinct(draws: f64, width: f64) -> f64 {
    if width <= 0.0 {
        return 0.0;
    }
    // 1 − e^−x, exact for small x too.
    -(-draws / width).exp_m1() * width
}

/// Rules by which a job cuts its outputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cutting {
    /// Keys at which an output always ends, in ascending order.
    pub(crate) cuts: Vec<u64>,
    /// Records that fill an output.
    pub(crate) records_max: f64,
    /// Files of the level below the outputs: the first number after each file, and its bytes.
    pub(crate) grandparents: Vec<(u64, u64)>,
    /// Target size of an output in bytes, which limits its overlap with these files.
    pub(crate) target_bytes: u64,
}

/// Merges `inputs` in `range` and cuts the result as the engine's output writer does.
pub(crate) fn merge(inputs: &[Run], range: (u64, u64), cutting: &Cutting) -> Vec<Run> {
    let inside: Vec<Run> = inputs.iter().filter_map(|run| run.within(range)).collect();
    let mut edges: Vec<u64> = inside.iter().flat_map(|run| [run.lo, run.hi]).collect();
    edges.extend(cutting.cuts.iter().chain(cutting.grandparents.iter().map(|(end, _)| end)));
    edges.retain(|edge| (range.0..=range.1).contains(edge));
    edges.sort_unstable();
    edges.dedup();
    let mut out = Outputs { cutting, open: None, overlap: 0, done: Vec::new() };
    for piece in edges.windows(2) {
        let (lo, hi) = (piece[0], piece[1]);
        out.meet_edge(lo);
        let missing: f64 = inside
            .iter()
            .filter(|run| run.lo <= lo && hi <= run.hi)
            .map(|run| 1.0 - run.density())
            .product();
        if missing < 1.0 {
            out.add(lo, hi, 1.0 - missing);
        }
    }
    out.close();
    out.done
}

struct Outputs<'a> {
    cutting: &'a Cutting,
    open: Option<Run>,
    overlap: u64,
    done: Vec<Run>,
}

impl Outputs<'_> {
    fn close(&mut self) {
        self.done.extend(self.open.take().filter(|run| run.records >= 0.5));
        self.overlap = 0;
    }

    fn meet_edge(&mut self, at: u64) {
        if self.cutting.cuts.binary_search(&at).is_ok() {
            self.close();
        }
        let grandparents = &self.cutting.grandparents;
        if let Ok(found) = grandparents.binary_search_by_key(&at, |(end, _)| *end)
            && self.open.is_some()
        {
            self.overlap += grandparents[found].1;
            if self.overlap > self.cutting.target_bytes.saturating_mul(GRANDPARENT_TARGETS) {
                self.close();
            }
        }
    }

    /// Numbers `lo..hi`, of which the fraction `density` exists.
    fn add(&mut self, mut lo: u64, hi: u64, density: f64) {
        while lo < hi {
            let run = self.open.get_or_insert(Run { lo, hi: lo, records: 0.0 });
            let room = ((self.cutting.records_max - run.records) / density).max(1.0);
            let taken = room.min((hi - lo) as f64).ceil() as u64;
            let to = (lo + taken).min(hi);
            run.records += density * (to - lo) as f64;
            run.hi = to;
            lo = to;
            if run.records >= self.cutting.records_max {
                self.close();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lo: u64, hi: u64, records: f64) -> Run {
        Run { lo, hi, records }
    }

    #[test]
    fn merge_of_random_subsets_counts_as_one_drawing() {
        let mut rng = archipelago_base::random::Rng::with_seed(3);
        let space = 20_000u64;
        let mut sets = vec![std::collections::BTreeSet::new(); 3];
        let mut runs = Vec::new();
        for (set, (lo, hi)) in sets.iter_mut().zip([(0, space), (0, space), (5_000, 9_000)]) {
            while set.len() < 3_000 {
                set.insert(rng.u64(lo..hi));
            }
            runs.push(run(lo, hi, 3_000.0));
        }
        let union: std::collections::BTreeSet<u64> = sets.iter().flatten().copied().collect();
        let cutting = Cutting { records_max: f64::INFINITY, ..Cutting::default() };
        let merged = merge(&runs, (0, space), &cutting);
        assert_eq!(merged.len(), 1);
        let error = (merged[0].records - union.len() as f64).abs() / union.len() as f64;
        assert!(error < 0.02, "{} and {}", merged[0].records, union.len());
    }

    #[test]
    fn output_ends_at_cuts_and_limits() {
        let inputs = [run(0, 1000, 100.0), run(1000, 2000, 100.0)];
        let mut cutting = Cutting { records_max: 60.0, cuts: vec![500], ..Cutting::default() };
        let merged = merge(&inputs, (0, 2000), &cutting);
        assert_eq!(
            merged.iter().map(|r| (r.lo, r.hi)).collect::<Vec<_>>(),
            [(0, 500), (500, 1101), (1101, 1702), (1702, 2000)]
        );
        let total: f64 = merged.iter().map(|run| run.records).sum();
        assert!((total - 200.0).abs() < 1.0);
        cutting = Cutting {
            records_max: 1e9,
            grandparents: (1..=20).map(|at| (at * 100, 30)).collect(),
            target_bytes: 10,
            ..Cutting::default()
        };
        assert!(merge(&inputs, (0, 2000), &cutting).len() > 3);
    }

    #[test]
    fn keys_and_numbers_agree() {
        assert_eq!(number(&key(77)), 77);
        let mut behind = key(9);
        behind.push(0);
        let range = KeyRange { start: key(3), end: Some(behind) };
        assert_eq!(numbers(&range, 100), (3, 10));
        assert_eq!(numbers(&KeyRange::all(), 100), (0, 100));
        assert!((distinct(50.0, 1e9) - 50.0).abs() < 1e-3);
        assert!((distinct(1e6, 100.0) - 100.0).abs() < 1e-6);
    }
}
