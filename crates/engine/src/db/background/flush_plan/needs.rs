//! Which shards of a family's sealed memtables have to be flushed now: a pure decision.
//!
//! A shard is needed if it is wanted, or if it completes a bucket of the present map with the bytes
//! of a memtable. Installs follow memtable order, so every older shard that shares keys with a
//! needed one is needed as well. This rule repeats: maps differ, so the older shard may have
//! further keys, which still older shards have as well. Without the rule, a shard that cannot rest
//! could wait for ever for older shards that rest.
//!
//! Invariants: if a shard is not installed and is older than a needed shard with common keys, it
//! runs or is needed.
//!
//! Thread-safety: pure. Failure: none.
//! Cost: O(sealed memtables × shards × log shards).

use archipelago_base::FileNo;

use crate::bucket::BucketMap;
use crate::db::background::flush_plan::ranges::{RangePlan, RestingView};
use crate::db::state::sealed::ShardState;

/// Reason for which a shard has to be flushed. The last reason is the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The shard completes a bucket with the bytes of a memtable, or such a bucket waits for it.
    Full,
    /// The shard is wanted, or a wanted shard waits for it.
    Wanted,
}

/// The needed shards of each memtable of a queue.
#[derive(Clone, Debug, Default)]
pub struct NeededShards(Vec<Vec<Option<Need>>>);

impl NeededShards {
    /// Reason for which the shard `shard` of the memtable at `position` is needed; `None` if it is
    /// not.
    #[must_use]
    pub fn of(&self, position: usize, shard: usize) -> Option<Need> {
        *self.0.get(position)?.get(shard)?
    }
}

/// The shards of a queue that have to be flushed. A full memtable has `full_bytes`, and `map` is
/// the present bucket map.
#[must_use]
pub fn needed_shards(queue: &[RestingView<'_>], map: &BucketMap, full_bytes: u64) -> NeededShards {
    let mut needs = own_needs(queue, map, full_bytes);
    let (mut full, mut wanted) = (Spans::default(), Spans::default());
    for (resting, needs) in queue.iter().zip(&mut needs).rev() {
        for shard in pending(resting) {
            let span = Span::of(resting.sealed.map, shard);
            if wanted.overlap(&span) {
                needs[shard] = Some(Need::Wanted);
            } else if full.overlap(&span) {
                needs[shard] = needs[shard].max(Some(Need::Full));
            }
        }
        // Shards of one memtable have no keys in common.
        for shard in pending(resting) {
            let span = Span::of(resting.sealed.map, shard);
            match needs[shard] {
                Some(Need::Wanted) => wanted.add(span),
                Some(Need::Full) => full.add(span),
                None => {}
            }
        }
    }
    NeededShards(needs)
}

/// The shards of a memtable that are not installed and that no job has.
fn pending(resting: &RestingView<'_>) -> impl Iterator<Item = usize> {
    let states = resting.sealed.shards;
    (0..states.len()).filter(|shard| states[*shard] == ShardState::Pending)
}

/// The need of each shard by itself, without shards that wait for it. The bytes of a shard over
/// several buckets of the present map count for each of them in equal parts.
fn own_needs(
    queue: &[RestingView<'_>],
    map: &BucketMap,
    full_bytes: u64,
) -> Vec<Vec<Option<Need>>> {
    let mut sums = vec![0u64; map.len()];
    let of_memtable = |resting: &RestingView<'_>| {
        let mut needs = vec![None; resting.sealed.shards.len()];
        for shard in pending(resting) {
            let figures = &resting.figures[shard];
            let span = Span::of(resting.sealed.map, shard);
            let buckets = map.buckets_between(span.start, span.end);
            let part = figures.data_bytes / buckets.len() as u64;
            let mut is_full = false;
            for sum in &mut sums[buckets] {
                let before = *sum;
                *sum = before.saturating_add(part);
                is_full |= before < full_bytes && *sum >= full_bytes;
            }
            needs[shard] = match figures.is_wanted {
                true => Some(Need::Wanted),
                false => is_full.then_some(Need::Full),
            };
        }
        needs
    };
    queue.iter().map(of_memtable).collect()
}

/// Figures of a key range over all sealed memtables, by which it becomes due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeFigures {
    /// Number of the oldest memtable with records there.
    pub oldest_memtable: u64,
    /// Bytes of the records as stored.
    pub data_bytes: u64,
    /// Bytes of the images at memory nodes.
    pub apart_bytes: u64,
    /// Bytes of memory of the parts that stay here of shards at nodes.
    pub kept_bytes: u64,
    /// Oldest log segment that a shard pins.
    pub oldest_log: Option<FileNo>,
    /// Whether the range must be flushed: a caller waits for it, a shard cannot rest, a younger
    /// memtable must be flushed whole, or such a shard of other keys waits for this range.
    pub is_wanted: bool,
    /// Whether keys with the bytes of a memtable wait for this range.
    pub is_full: bool,
}

/// Figures of the range of a plan, over the memtables that it takes and over younger ones.
#[must_use]
pub fn range_figures(
    queue: &[RestingView<'_>],
    plan: &RangePlan,
    needs: &NeededShards,
) -> RangeFigures {
    let from = plan.memtables.start;
    let is_wanted = queue[from..].iter().any(|resting| resting.sealed.unlogged);
    let mut sum =
        RangeFigures { oldest_memtable: queue[from].id, is_wanted, ..RangeFigures::default() };
    for (at, resting) in queue.iter().enumerate().skip(from) {
        for shard in resting.waiting_in(&plan.range) {
            let (own, need) = (&resting.figures[shard], needs.of(at, shard));
            sum.data_bytes = sum.data_bytes.saturating_add(own.data_bytes);
            sum.apart_bytes = sum.apart_bytes.saturating_add(own.apart_bytes);
            sum.kept_bytes = sum.kept_bytes.saturating_add(own.kept_bytes);
            sum.oldest_log = [sum.oldest_log, own.oldest_log].into_iter().flatten().min();
            sum.is_wanted |= own.is_wanted || need == Some(Need::Wanted);
            sum.is_full |= need == Some(Need::Full);
        }
    }
    sum
}

/// The keys of a shard, by the map of its memtable.
#[derive(Clone, Copy, Debug)]
struct Span<'a> {
    start: &'a [u8],
    end: Option<&'a [u8]>,
}

impl<'a> Span<'a> {
    fn of(map: &'a BucketMap, shard: usize) -> Self {
        Self { start: map.start(shard), end: map.end(shard) }
    }

    /// Whether it ends at `key` or before it.
    fn ends_by(&self, key: &[u8]) -> bool {
        self.end.is_some_and(|end| end <= key)
    }
}

/// Keys as ascending spans that do not touch.
#[derive(Debug, Default)]
struct Spans<'a>(Vec<Span<'a>>);

impl<'a> Spans<'a> {
    fn overlap(&self, span: &Span<'_>) -> bool {
        let at = self.0.partition_point(|known| known.ends_by(span.start));
        self.0.get(at).is_some_and(|known| !span.ends_by(known.start))
    }

    fn add(&mut self, span: Span<'a>) {
        // The span joins with all spans that it touches.
        let first = self.0.partition_point(|known| known.end.is_some_and(|end| end < span.start));
        let touches = |known: &&Span<'a>| span.end.is_none_or(|end| known.start <= end);
        let count = self.0[first..].iter().take_while(touches).count();
        let mut whole = span;
        for known in &self.0[first..first + count] {
            whole.start = whole.start.min(known.start);
            whole.end = whole.end.zip(known.end).map(|(one, other)| one.max(other));
        }
        self.0.splice(first..first + count, Some(whole));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys that spans of letters have, in order of their addition.
    fn spans(added: &[(char, char)]) -> String {
        let texts: Vec<(String, String)> =
            added.iter().map(|(start, end)| (start.to_string(), end.to_string())).collect();
        let mut spans = Spans::default();
        for (start, end) in &texts {
            let end = (end != "~").then_some(end.as_bytes());
            spans.add(Span { start: start.as_bytes(), end });
        }
        let has = |key: &char| {
            let key = key.to_string();
            let next = format!("{key}0");
            spans.overlap(&Span { start: key.as_bytes(), end: Some(next.as_bytes()) })
        };
        ('a'..='k').filter(has).collect::<String>() + &spans.0.len().to_string()
    }

    #[test]
    fn spans_join_where_they_touch() {
        assert_eq!(spans(&[]), "0");
        assert_eq!(spans(&[('c', 'e'), ('g', 'i')]), "cdgh2");
        assert_eq!(spans(&[('g', 'i'), ('c', 'e')]), "cdgh2");
        assert_eq!(spans(&[('c', 'e'), ('g', 'i'), ('e', 'g')]), "cdefgh1");
        assert_eq!(spans(&[('c', 'e'), ('g', 'i'), ('b', '~')]), "bcdefghijk1");
        assert_eq!(spans(&[('h', '~'), ('a', 'b'), ('d', 'e'), ('c', 'i')]), "acdefghijk2");
    }
}
