//! Keeps the block cache warm when a compaction ran in another process.
//!
//! A compaction in this process puts blocks of its outputs into the block cache as it writes them
//! ([`crate::sst::TableBuilder::warming`]). A compaction elsewhere cannot, and so every offloaded
//! job would make the next reads of its keys slower. Before the install, the owner therefore notes
//! which blocks of the inputs are cached. After the install, it reads the blocks of the outputs
//! that hold the same keys.
//!
//! Invariants:
//! 1. The blocks that are read have at most the bytes that the cached blocks of the inputs had.
//! 2. While the cache evicts blocks, a block is read only if at least half of the input blocks that
//!    it overlaps were cached. So blocks without readers do not push others out.
//!
//! Thread-safety: a plan belongs to one job. All jobs share the limit on the speed of the reads.
//! Failure: a read that fails ends the work with a warning in the log. The block stays cold, and
//! the next user read of it reports the error.
//! Cost: one separator in memory for each data block of the inputs, and one pass over the index of
//! each output.

use std::sync::Arc;

use archipelago_base::clock::Clock;
use archipelago_env::limit::{Priority, RateLimiter};

use crate::compaction::pick::Pick;
use crate::db::inner::DbInner;
use crate::db::state::family::Family;
use crate::job::Cancel;
use crate::live_file::LiveFile;
use crate::sst::{BlockCache, BlockSpan, TableBlocks, WarmChoice};
use crate::stats::Ticker;
use crate::version::Version;

/// Cached keys of the inputs of one compaction.
pub(crate) struct WarmPlan {
    inputs: Vec<InputSpans>,
    /// Bytes that may still be read.
    bytes_left: u64,
}

/// Data blocks of one input in key order.
struct InputSpans {
    smallest: Vec<u8>,
    spans: Vec<BlockSpan>,
    /// First span that the keys of the next output block can reach.
    at: usize,
}

/// Input blocks that an output block overlaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Overlap {
    cached: u64,
    all: u64,
}

impl InputSpans {
    /// Largest key before the span at `position`; `None` if it is the first one.
    fn before(&self, position: usize) -> Option<&[u8]> {
        position.checked_sub(1).map(|previous| &*self.spans[previous].last)
    }

    /// Whether the span at `position` begins at or below `last`.
    fn begins_by(&self, position: usize, last: &[u8]) -> bool {
        match self.before(position) {
            Some(before) => before < last,
            None => &*self.smallest <= last,
        }
    }

    /// Adds the blocks from `from` on that reach into the keys above `after` and up to `last`.
    fn add_overlap(&self, from: usize, after: Option<&[u8]>, last: &[u8], sum: &mut Overlap) {
        let reaches = |span: &BlockSpan| after.is_none_or(|after| &*span.last > after);
        for position in from..self.spans.len() {
            if !self.begins_by(position, last) {
                break;
            }
            let span = &self.spans[position];
            if reaches(span) {
                sum.all += span.blocks;
                sum.cached += if span.is_cached { span.blocks } else { 0 };
            }
        }
    }

    /// Steps over the spans that end at or below `after`.
    fn advance(&mut self, after: Option<&[u8]>) {
        let Some(after) = after else { return };
        while self.spans.get(self.at).is_some_and(|span| &*span.last <= after) {
            self.at += 1;
        }
    }
}

impl WarmPlan {
    /// The plan of a compaction that is about to be installed; `None` if its executor runs in this
    /// process, or if no block of its inputs is cached.
    pub(crate) fn of(db: &DbInner, pick: &Pick) -> Option<Self> {
        if db.jobs.executor().runs_here() {
            return None;
        }
        let inputs = pick.inputs().filter_map(|(_, file)| {
            // A table that is not open has no blocks that a user read lately.
            let table = file.reader.load_full()?;
            Some((file.meta().smallest.clone(), TableBlocks(&table).spans()))
        });
        Self::over(inputs.collect())
    }

    /// The plan for inputs with these smallest keys and data blocks.
    fn over(inputs: Vec<(Vec<u8>, Vec<BlockSpan>)>) -> Option<Self> {
        let cached = inputs.iter().flat_map(|input| &input.1).filter(|span| span.is_cached);
        let bytes_left: u64 = cached.map(|span| span.bytes).sum();
        let inputs = inputs.into_iter();
        let inputs = inputs.map(|(smallest, spans)| InputSpans { smallest, spans, at: 0 });
        (bytes_left > 0).then(|| Self { inputs: inputs.collect(), bytes_left })
    }

    /// Whether a block with keys above `after` and up to `last` is read. `has_room`: the cache has
    /// evicted nothing since the work began.
    fn wants(&mut self, after: Option<&[u8]>, last: &[u8], bytes: u64, has_room: bool) -> bool {
        let mut sum = Overlap::default();
        for input in &mut self.inputs {
            input.advance(after);
            input.add_overlap(input.at, after, last, &mut sum);
        }
        let is_warm = sum.cached > 0 && (has_room || 2 * sum.cached >= sum.all);
        if !is_warm || bytes > self.bytes_left {
            return false;
        }
        self.bytes_left -= bytes;
        true
    }

    fn may_want(&self, after: Option<&[u8]>, last: &[u8]) -> bool {
        let mut sum = Overlap::default();
        self.inputs.iter().for_each(|input| input.add_overlap(input.at, after, last, &mut sum));
        sum.cached > 0 && self.bytes_left > 0
    }
}

/// A plan at work.
struct Warming<'a> {
    plan: WarmPlan,
    cache: &'a BlockCache,
    /// Blocks that the cache had evicted when the work began.
    evicted: u64,
    limiter: &'a RateLimiter,
    clock: &'a dyn Clock,
    cancel: Cancel,
}

impl WarmChoice for Warming<'_> {
    fn may_want(&self, after: Option<&[u8]>, last: &[u8]) -> bool {
        self.plan.may_want(after, last)
    }

    fn wants(&mut self, after: Option<&[u8]>, last: &[u8], bytes: u64) -> bool {
        let has_room = self.cache.evicted() == self.evicted;
        self.plan.wants(after, last, bytes, has_room)
    }

    fn waits_for(&mut self, bytes: u64) -> bool {
        self.limiter.request(bytes, Priority::Compaction, self.clock);
        self.cancel.check().is_ok()
    }
}

/// Reads the blocks of the outputs that `plan` wants. The outputs have these numbers, in key order,
/// and are installed in `level`.
pub(crate) fn warm_outputs(
    db: &DbInner,
    family: &Family,
    level: usize,
    files: &[u64],
    plan: WarmPlan,
) {
    let cache = db.view.cache();
    let mut warming = Warming {
        plan,
        cache,
        evicted: cache.evicted(),
        limiter: db.jobs.warm_limiter(),
        clock: &**db.context.clock(),
        cancel: Cancel::under(db.context.closing()),
    };
    let version = Arc::clone(&family.current.load().version);
    for file in files {
        // A later job may have replaced the file already.
        let Some(file) = file_at(&version, level, *file) else { continue };
        let warmed =
            db.view.tables().get(file).and_then(|table| TableBlocks(&table).warm(&mut warming));
        match warmed {
            Ok((blocks, bytes)) => {
                db.observers.stats().add(Ticker::BlocksWarmed, blocks);
                db.observers.stats().add(Ticker::BytesWarmed, bytes);
            }
            Err(error) => {
                tracing::warn!(%error, file = file.meta().no, "the block cache stays cold");
                return;
            }
        }
    }
}

fn file_at(version: &Version, level: usize, no: u64) -> Option<&Arc<LiveFile>> {
    let is_it = |file: &&Arc<LiveFile>| file.meta().no == no;
    match level {
        0 => (0..version.map().len()).flat_map(|bucket| version.l0(bucket)).find(is_it),
        _ => version.level(level).files().iter().find(is_it),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(rows: &[(&str, bool)]) -> (Vec<u8>, Vec<BlockSpan>) {
        let span = |row: &(&str, bool)| BlockSpan {
            last: row.0.as_bytes().to_vec(),
            bytes: 10,
            blocks: 1,
            is_cached: row.1,
        };
        (b"a".to_vec(), rows.iter().map(span).collect())
    }

    /// Last keys of the output blocks that are read. `has_room`: the cache evicts nothing.
    fn read(inputs: &[&[(&str, bool)]], outputs: &[&str], has_room: bool) -> Vec<String> {
        let inputs = inputs.iter().map(|rows| spans(rows)).collect();
        let Some(mut plan) = WarmPlan::over(inputs) else { return Vec::new() };
        let mut after: Option<&str> = None;
        let mut read = Vec::new();
        for last in outputs {
            let may_want = plan.may_want(after.map(str::as_bytes), last.as_bytes());
            if plan.wants(after.map(str::as_bytes), last.as_bytes(), 10, has_room) {
                assert!(may_want, "{last}");
                read.push((*last).to_owned());
            }
            after = Some(last);
        }
        read
    }

    #[test]
    fn blocks_with_the_keys_of_cached_blocks_are_read() {
        let input = [("c", false), ("f", true), ("k", false), ("p", true)];
        assert_eq!(read(&[&input], &["c", "f", "k", "p"], false), ["f", "p"]);
        // Nothing was cached: nothing is read.
        assert!(read(&[&[("c", false), ("f", false)]], &["c", "f"], true).is_empty());
        // Keys outside of all inputs.
        assert!(read(&[&[("c", true)]], &["A", "d"], true).iter().eq(["d"].iter()));
        assert!(read(&[&[("c", true)]], &["A"], true).is_empty());
    }

    #[test]
    fn a_full_cache_takes_only_blocks_that_were_cached_by_half() {
        let (hot, cold) = ([("m", true)], [("c", false), ("f", false), ("m", true)]);
        // The first block overlaps one cached and two other blocks, the second one two cached ones.
        assert_eq!(read(&[&hot, &cold], &["f", "m"], false), ["m"]);
        assert_eq!(read(&[&hot, &cold], &["f", "m"], true), ["f", "m"]);
    }

    #[test]
    fn no_more_bytes_are_read_than_were_cached() {
        let input = [("z", true)];
        assert_eq!(read(&[&input], &["c", "f", "k", "p"], true), ["c"]);
        let input = [("f", true), ("z", true)];
        assert_eq!(read(&[&input], &["c", "f", "k", "p"], true), ["c", "f"]);
    }
}
