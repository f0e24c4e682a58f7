//! Choice of the blocks that a warm pass reads. The functions are pure.
//!
//! A [`WarmPlan`] compares the blocks of the outputs of a compaction with the blocks of its inputs.
//! [`crate::db::background::warm_outputs`] makes the plan and reads the blocks.
//!
//! Invariants:
//! 1. The wanted blocks have at most the bytes in their files that the cached blocks of the inputs
//!    had.
//! 2. While the cache evicts blocks, a block is wanted only if at least half of the input blocks
//!    that it overlaps were cached. So blocks without readers do not push others out.
//!
//! The caller asks in key order: no call has a lower bound below that of an earlier call.
//!
//! Cost: one separator in memory for each data block of the inputs. A question visits the input
//! blocks that overlap its keys, and each of the earlier ones is stepped over once.

use crate::sst::BlockSpan;

/// Cached keys of the inputs of one compaction.
pub(crate) struct WarmPlan {
    inputs: Vec<InputSpans>,
    /// Bytes that may still be read.
    bytes_left: u64,
}

/// Data blocks of one input in key order.
pub(crate) struct InputSpans {
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
    /// The blocks of an input with this smallest key. The spans are in key order.
    pub(crate) fn new(smallest: Vec<u8>, spans: Vec<BlockSpan>) -> Self {
        Self { smallest, spans, at: 0 }
    }

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

    /// Blocks that reach into the keys above `after` and up to `last`.
    fn overlap(&mut self, after: Option<&[u8]>, last: &[u8]) -> Overlap {
        let ends_before =
            |span: &BlockSpan| after.is_some_and(|after| span.last.as_slice() <= after);
        while self.spans.get(self.at).is_some_and(ends_before) {
            self.at += 1;
        }
        let mut sum = Overlap::default();
        for position in self.at..self.spans.len() {
            if !self.begins_by(position, last) {
                break;
            }
            let span = &self.spans[position];
            sum.all += span.blocks;
            sum.cached += if span.is_cached { span.blocks } else { 0 };
        }
        sum
    }
}

impl WarmPlan {
    /// The plan for these inputs; `None` if none of their blocks is cached.
    pub(crate) fn over(inputs: Vec<InputSpans>) -> Option<Self> {
        let cached = inputs.iter().flat_map(|input| &input.spans).filter(|span| span.is_cached);
        let bytes_left: u64 = cached.map(|span| span.bytes).sum();
        (bytes_left > 0).then_some(Self { inputs, bytes_left })
    }

    /// Bytes that may still be read.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.bytes_left
    }

    /// Whether a block with keys above `after` and up to `last` is read. `has_room`: the cache has
    /// evicted nothing since the work began.
    pub(crate) fn wants(
        &mut self,
        after: Option<&[u8]>,
        last: &[u8],
        bytes: u64,
        has_room: bool,
    ) -> bool {
        if bytes > self.bytes_left {
            return false;
        }
        let mut sum = Overlap::default();
        for input in &mut self.inputs {
            let overlap = input.overlap(after, last);
            sum.cached += overlap.cached;
            sum.all += overlap.all;
        }
        let is_wanted = sum.cached > 0 && (has_room || 2 * sum.cached >= sum.all);
        if is_wanted {
            self.bytes_left -= bytes;
        }
        is_wanted
    }

    /// Whether any block with keys above `after` and up to `last` may be read.
    pub(crate) fn may_want(&mut self, after: Option<&[u8]>, last: &[u8]) -> bool {
        self.bytes_left > 0
            && self.inputs.iter_mut().any(|input| input.overlap(after, last).cached > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(last: &str, blocks: u64, is_cached: bool) -> BlockSpan {
        BlockSpan { last: last.as_bytes().to_vec(), bytes: 10 * blocks, blocks, is_cached }
    }

    fn input(spans: Vec<BlockSpan>) -> InputSpans {
        InputSpans::new(b"a".to_vec(), spans)
    }

    fn blocks(rows: &[(&str, bool)]) -> InputSpans {
        input(rows.iter().map(|row| span(row.0, 1, row.1)).collect())
    }

    /// Last keys of the output blocks that `plan` wants. `has_room`: the cache evicts nothing.
    fn read_by(mut plan: WarmPlan, outputs: &[&str], has_room: bool) -> Vec<String> {
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

    fn read(inputs: &[&[(&str, bool)]], outputs: &[&str], has_room: bool) -> Vec<String> {
        let plan = WarmPlan::over(inputs.iter().map(|rows| blocks(rows)).collect());
        plan.map_or_else(Vec::new, |plan| read_by(plan, outputs, has_room))
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

    #[test]
    fn closed_input_counts_as_blocks_that_are_not_cached() {
        let plan = || {
            let closed = input(vec![span("z", 100, false)]);
            WarmPlan::over(vec![blocks(&[("m", true)]), closed]).unwrap()
        };
        assert!(read_by(plan(), &["m", "z"], false).is_empty());
        assert_eq!(read_by(plan(), &["m", "z"], true), ["m"]);
    }

    #[test]
    fn plan_steps_over_keys_that_are_not_wanted() {
        let rows: Vec<_> = (0..100).map(|n| span(&format!("k{n:02}"), 1, n == 99)).collect();
        let mut plan = WarmPlan::over(vec![input(rows)]).unwrap();
        for n in 1..99 {
            let (after, last) = (format!("k{:02}", n - 1), format!("k{n:02}"));
            assert!(!plan.may_want(Some(after.as_bytes()), last.as_bytes()));
            assert_eq!(plan.inputs[0].at, n);
        }
        assert!(plan.may_want(Some(b"k98"), b"k99"));
    }
}
