//! Decides which map change the window demands.
//!
//! `N` is the number of buckets that the family was first cut into (its setting), not the present
//! number. BucketLSM §V-C says that temperatures fall as splits go beyond `N` and rise as merges go
//! below it. That holds for a fixed `N` only, and it makes the number of buckets return to `N`. A
//! bucket's temperature is `BT_i = N · F_W(B_i) / Σ F_W`.
//!
//! 1. **Split** every bucket hotter than 2, the hottest first, at the median of the medians. Each
//!    half that is hotter than 1 is split again, in the same change. A bucket that takes the whole
//!    load shall become `N` buckets, not two, because a split under load takes as long as a
//!    compaction. Below `N` buckets a bucket hotter than 1 is split already. Otherwise a family of
//!    two, once merged into one bucket of temperature 2, would stay so for ever.
//! 2. A split must **share out**. The window counts the bytes in the bucket seal by seal, without
//!    the seal that counts most. At least a quarter of them must fall on the lesser side of the
//!    key, and they must be worth more than a temperature of 0.5. So keys that arrive in order, and
//!    one hot key, are never split.
//! 3. **Merge** a bucket with a temperature of at most 0.5, the coldest first, into the colder of
//!    its neighbours. A merge is made only if nothing can be split.
//! 4. There is at least one bucket and at most `most`. A family whose `N` is 1 is a classic L0 and
//!    never changed.
//!
//! The changes end for three reasons. (a) By rule 2 each half of a split is warmer than 0.5, so the
//! same window does not merge it again. (b) A merged bucket is hotter than 2 only if the cold half
//! is less than a quarter of it, so the same window does not cut it there again. (c) The sum of
//! squared temperatures falls with every split, by at least as much as the merge before it may have
//! raised it.
//!
//! Cost: one pass over the window for each bucket that is too hot.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use archipelago_base::Result;

use super::window::Window;
use crate::bucket::BucketMap;
use crate::key::KeyRange;

/// Temperature above which a bucket is split.
const HOT: f64 = 2.0;
/// Temperature above which a bucket is split while there are fewer buckets than the family began
/// with.
const WARM: f64 = 1.0;
/// Temperature up to which a bucket is merged.
const COLD: f64 = 0.5;
/// The lesser side of a split must have at least one in this many parts of the bucket's bytes.
const LESSER_PART: u64 = 4;

/// Input of a decision about the bucket map.
#[derive(Clone, Copy, Debug)]
pub struct RebalanceInput<'a> {
    /// The present map of the family.
    pub map: &'a BucketMap,
    /// The window of recent writes.
    pub window: &'a Window,
    /// Number of buckets that the family was first cut into, or will be (`N`).
    pub initial: usize,
    /// Largest number of buckets.
    pub most: usize,
    /// Keys of splits that are being prepared. Each stays while it serves as well as another key.
    pub planned_cuts: &'a [Vec<u8>],
}

impl RebalanceInput<'_> {
    /// The temperature of every bucket; `None` if the window is empty.
    #[must_use]
    pub fn temperatures(&self) -> Option<Vec<f64>> {
        let bytes = self.window.bytes_by_bucket(self.map);
        let total: u64 = bytes.iter().sum();
        (total > 0).then(|| bytes.iter().map(|&own| heat(self.initial, own, total)).collect())
    }

    /// Whether a bucket takes so much of the load that it is to be split, if its keys permit.
    #[must_use]
    pub fn is_hot(&self, bucket: usize) -> bool {
        let is_decided = self.initial > 1 && self.window.is_telling();
        let temperatures = self.temperatures().filter(|_| is_decided);
        temperatures.and_then(|all| all.get(bucket).copied()).is_some_and(|own| own > HOT)
    }
}

fn heat(initial: usize, bytes: u64, total: u64) -> f64 {
    initial as f64 * bytes as f64 / total.max(1) as f64
}

/// Type of a change of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Cuts the buckets that hold `keys` at these keys.
    Split {
        /// First keys of new buckets, ascending.
        keys: Vec<Vec<u8>>,
    },
    /// Merges `left` with its right neighbour.
    Merge {
        /// Index of the left bucket of the two.
        left: usize,
    },
}

impl ChangeKind {
    /// Cuts one bucket at `key`.
    #[must_use]
    pub fn split_at(key: &[u8]) -> Self {
        Self::Split { keys: vec![key.to_vec()] }
    }

    /// The buckets of `map` that the change affects, and those between them.
    #[must_use]
    pub fn touched(&self, map: &BucketMap) -> Range<usize> {
        match self {
            Self::Split { keys } => {
                let of = |key: Option<&Vec<u8>>| key.map_or(0, |key| map.bucket_of(key));
                of(keys.first())..of(keys.last()) + 1
            }
            Self::Merge { left } => *left..left + 2,
        }
    }

    /// The keys of a split; empty for a merge.
    #[must_use]
    pub fn cuts(&self) -> &[Vec<u8>] {
        match self {
            Self::Split { keys } => keys,
            Self::Merge { .. } => &[],
        }
    }

    /// The map after the change. `InvalidArgument` if the change does not fit `map`.
    pub fn apply(&self, map: &BucketMap) -> Result<BucketMap> {
        match self {
            Self::Split { keys } => map.split(keys),
            Self::Merge { left } => map.merge(*left),
        }
    }
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Split { keys } => {
                f.write_str("split at")?;
                keys.iter().try_for_each(|key| write!(f, " \"{}\"", key.escape_ascii()))
            }
            Self::Merge { left } => write!(f, "merge buckets {left} and {}", left + 1),
        }
    }
}

/// Reason of a change, in figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// The bucket that is too hot (the hottest of those that are cut) or too cold.
    pub bucket: usize,
    /// Temperature of that bucket.
    pub temperature: f64,
    /// Bytes of this bucket in the window.
    pub bytes: u64,
    /// Bytes that the bucket would have if all `initial` buckets had the same share.
    pub ideal_bytes: u64,
    /// Number of seals in the window.
    pub seals: usize,
    /// Number of buckets, if there were fewer than the family began with.
    pub too_few: Option<usize>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, temperature, seals, .. } = self;
        write!(f, "bucket {bucket} has temperature {temperature:.2} over {seals} seals, ")?;
        write!(f, "{} of {} ideal", Size(self.bytes), Size(self.ideal_bytes))?;
        match self.too_few {
            Some(count) => write!(f, ", and there are only {count} buckets"),
            None => Ok(()),
        }
    }
}

/// Bytes in a unit that people read easily.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 10 << 20 => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes >= 10 << 10 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

/// A change that the window demands, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct MapChange {
    /// The change of the map.
    pub kind: ChangeKind,
    /// The figures that led to it.
    pub reason: Reason,
}

impl fmt::Display for MapChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.reason)
    }
}

/// The most urgent change by the rules of the module; `None` if no change is needed.
#[must_use]
pub fn rebalance(input: &RebalanceInput<'_>) -> Option<MapChange> {
    if input.initial <= 1 || !input.window.is_telling() {
        return None;
    }
    let bytes = input.window.bytes_by_bucket(input.map);
    let total: u64 = bytes.iter().sum();
    if total == 0 {
        return None;
    }
    let decision = Decision { input, bytes, total };
    decision.split().or_else(|| decision.merge())
}

/// The figures of one decision.
struct Decision<'a> {
    input: &'a RebalanceInput<'a>,
    bytes: Vec<u64>,
    total: u64,
}

impl Decision<'_> {
    fn heat(&self, bytes: u64) -> f64 {
        heat(self.input.initial, bytes, self.total)
    }

    fn reason(&self, bucket: usize, too_few: Option<usize>) -> Reason {
        Reason {
            bucket,
            temperature: self.heat(self.bytes[bucket]),
            bytes: self.bytes[bucket],
            ideal_bytes: self.total / self.input.initial as u64,
            seals: self.input.window.seals(),
            too_few,
        }
    }

    fn split(&self) -> Option<MapChange> {
        let count = self.input.map.len();
        if count >= self.input.most {
            return None;
        }
        let bar = if count < self.input.initial { WARM } else { HOT };
        let mut hot: Vec<usize> =
            (0..count).filter(|&bucket| self.heat(self.bytes[bucket]) > bar).collect();
        hot.sort_by_key(|&bucket| (std::cmp::Reverse(self.bytes[bucket]), bucket));
        let mut keys = Vec::new();
        let mut hottest = None;
        for bucket in hot {
            let before = keys.len();
            self.cut(&self.input.map.range(bucket), bar, &mut keys);
            if keys.len() > before {
                hottest.get_or_insert(bucket);
            }
        }
        let bucket = hottest?;
        keys.sort_unstable();
        let own_fault = self.heat(self.bytes[bucket]) > HOT;
        let reason = self.reason(bucket, (!own_fault).then_some(count));
        Some(MapChange { kind: ChangeKind::Split { keys }, reason })
    }

    /// Cuts `range` into `keys` if it is hotter than `bar`, and its hot parts again, while more
    /// buckets are allowed. Each cut goes to the hottest part.
    fn cut(&self, range: &KeyRange, bar: f64, keys: &mut Vec<Vec<u8>>) {
        let mut parts = vec![(self.input.window.bytes_in(range), range.clone())];
        let mut bar = bar;
        while self.input.map.len() + keys.len() < self.input.most {
            let hottest = (0..parts.len()).max_by_key(|&at| parts[at].0);
            let Some(at) = hottest.filter(|&at| self.heat(parts[at].0) > bar) else { return };
            let (bytes, part) = parts.swap_remove(at);
            let Some(key) = self.split_key(&part, bytes) else { continue };
            for half in [
                KeyRange { start: part.start, end: Some(key.clone()) },
                KeyRange { start: key.clone(), end: part.end },
            ] {
                parts.push((self.input.window.bytes_in(&half), half));
            }
            keys.push(key);
            bar = WARM;
        }
    }

    /// The key at which to cut `range`, of which the window has `bytes`; `None` if no cut would
    /// share it out. Of the planned cuts that share it out, the result is the one that shares out
    /// most.
    fn split_key(&self, range: &KeyRange, bytes: u64) -> Option<Vec<u8>> {
        let shared_out = |key: &[u8]| {
            let lesser = self.input.window.bytes_shared_out(range, key);
            let inside = range.contains(key) && key > range.start.as_slice();
            let enough = self.heat(lesser) > COLD && lesser >= bytes / LESSER_PART;
            (inside && enough).then_some(lesser)
        };
        let planned = self.input.planned_cuts.iter().map(Vec::as_slice);
        let best = planned.filter_map(|key| Some((shared_out(key)?, key))).max();
        let median = || {
            let median = self.input.window.median_of_medians(range)?;
            shared_out(median).map(|_| median)
        };
        best.map(|(_, key)| key).or_else(median).map(<[u8]>::to_vec)
    }

    fn merge(&self) -> Option<MapChange> {
        let count = self.input.map.len();
        if count < 2 {
            return None;
        }
        let coldest = (0..count).min_by_key(|&bucket| (self.bytes[bucket], bucket))?;
        if self.heat(self.bytes[coldest]) > COLD {
            return None;
        }
        let left = match (coldest.checked_sub(1), self.bytes.get(coldest + 1)) {
            (None, _) => coldest,
            (Some(left), None) => left,
            (Some(left), Some(right)) => match self.bytes[left].cmp(right) {
                Ordering::Less | Ordering::Equal => left,
                Ordering::Greater => coldest,
            },
        };
        let reason = self.reason(coldest, None);
        Some(MapChange { kind: ChangeKind::Merge { left }, reason })
    }
}
