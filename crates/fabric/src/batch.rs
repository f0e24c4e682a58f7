//! A batch: one-sided operations that are posted together, and the outcome of each.
//!
//! A batch owns its memory. Its arena holds the bytes to write and receives the bytes that are
//! read. A caller moves the batch into [`Link::post`](crate::Link::post) and gets it back with the
//! outcomes. A caller that drops the promise therefore leaves no buffer that a network still writes
//! to.
//!
//! Invariants:
//! 1. Operations take effect in the order in which they were added.
//! 2. The first refused operation ends the batch. The operations after it are
//!    [`Reason::Skipped`].
//! 3. After [`Outcome::Visible`] every reader at the target sees the bytes.
//!
//! Thread-safety: a batch has one owner, and no other thread uses it while it is in flight.
//! Failure: a refusal is an outcome, and [`Batch::check`] turns the first refusal into an error.
//! Allocations: none in the steady state, because a thread keeps the memory of a few small batches,
//! and [`Batch::clear`] keeps the memory of its batch.

use std::cell::RefCell;

use archipelago_base::Result;

use crate::refusal::{Reason, Refusal};

/// Limit of the operations in one batch.
pub const BATCH_OPS_MAX: usize = 1024;
/// Limit of the bytes that one batch writes, and of the bytes that it reads.
pub const BATCH_BYTES_MAX: usize = 8 << 20;

/// A region that a link has attached ([`Link::attach`](crate::Link::attach)). It is valid only on
/// that link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attached {
    pub(crate) link: u32,
    pub(crate) index: u32,
}

impl Attached {
    /// For providers: attachment `index` of the link numbered `link`.
    #[must_use]
    pub const fn new(link: u32, index: u32) -> Self {
        Self { link, index }
    }
}

/// One operation. Its bytes lie at `start` in the arena of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Copies `len` bytes from the region.
    Read {
        /// Region that is read.
        region: Attached,
        /// First byte in the region.
        offset: u64,
        /// Number of bytes.
        len: u32,
        /// Place of the bytes in the arena.
        start: u32,
    },
    /// Copies `len` bytes into the region.
    Write {
        /// Region that is written.
        region: Attached,
        /// First byte in the region.
        offset: u64,
        /// Number of bytes.
        len: u32,
        /// Place of the bytes in the arena.
        start: u32,
    },
    /// Stores `new` in the word at `offset` if the word equals `expect`.
    CompareSwap {
        /// Region of the word.
        region: Attached,
        /// Offset of the word in bytes, a multiple of 8.
        offset: u64,
        /// Value that the word must have.
        expect: u64,
        /// Value that the word gets.
        new: u64,
    },
    /// Adds `add` to the word at `offset`. The sum wraps.
    FetchAdd {
        /// Region of the word.
        region: Attached,
        /// Offset of the word in bytes, a multiple of 8.
        offset: u64,
        /// Value that is added.
        add: u64,
    },
}

impl Op {
    /// The region of this operation.
    #[must_use]
    pub fn region(&self) -> Attached {
        match *self {
            Self::Read { region, .. }
            | Self::Write { region, .. }
            | Self::CompareSwap { region, .. }
            | Self::FetchAdd { region, .. } => region,
        }
    }

    fn describe(&self) -> String {
        match *self {
            Self::Read { offset, len, .. } => format!("READ of {len} bytes at {offset}"),
            Self::Write { offset, len, .. } => format!("WRITE of {len} bytes at {offset}"),
            Self::CompareSwap { offset, .. } => format!("compare-and-swap at {offset}"),
            Self::FetchAdd { offset, .. } => format!("fetch-and-add at {offset}"),
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation was not posted yet, or is in flight.
    Pending,
    /// The batch holds the bytes.
    Read,
    /// Every reader at the target sees the bytes.
    Visible,
    /// Old value of the word. A compare-and-swap took effect if this is the expected value.
    Word(u64),
    /// The operation was refused. After [`Reason::Disconnected`] and [`Reason::Deadline`] it is not
    /// known whether the operation took effect.
    Refused(Refusal),
}

/// Number of batches whose memory a thread keeps.
const SPARE_MAX: usize = 16;
/// Limit of the operations of a batch whose memory is kept.
const SPARE_OPS_MAX: usize = 64;
/// Limit of the arena of a batch whose memory is kept, in bytes.
const SPARE_BYTES_MAX: usize = 4 << 10;

thread_local! {
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// The allocations of a batch.
#[derive(Clone, Debug, Default)]
struct Memory {
    ops: Vec<Op>,
    outcomes: Vec<Outcome>,
    /// Bytes of the operations. The vector never shrinks, so that reuse clears nothing. Only `used`
    /// bytes belong to operations.
    arena: Vec<u8>,
}

/// One-sided operations that are posted together, and their outcomes.
#[derive(Clone, Debug)]
pub struct Batch {
    memory: Memory,
    used: usize,
    /// Deadline in nanoseconds; 0 for the default of the link.
    deadline_ns: u64,
}

impl Batch {
    /// Makes an empty batch.
    #[must_use]
    pub fn new() -> Self {
        // A thread that is ending has no kept memory.
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        Self { memory: spare.unwrap_or_default(), used: 0, deadline_ns: 0 }
    }

    /// Removes operations and outcomes. The memory stays.
    pub fn clear(&mut self) {
        self.memory.ops.clear();
        self.memory.outcomes.clear();
        self.used = 0;
        self.deadline_ns = 0;
    }

    /// Sets the time after which the batch completes with [`Reason::Deadline`]. The link has the
    /// default.
    pub fn set_deadline(&mut self, deadline: std::time::Duration) {
        self.deadline_ns = deadline.as_nanos().clamp(1, u128::from(u64::MAX)) as u64;
    }

    /// Adds a READ and returns its index.
    #[inline]
    pub fn read(&mut self, region: Attached, offset: u64, len: u32) -> usize {
        let start = self.reserve(len);
        self.push(Op::Read { region, offset, len, start })
    }

    /// Adds a WRITE of a copy of `bytes`, and returns its index.
    #[inline]
    pub fn write(&mut self, region: Attached, offset: u64, bytes: &[u8]) -> usize {
        let index = self.memory.ops.len();
        self.write_in_place(region, offset, bytes.len() as u32).copy_from_slice(bytes);
        index
    }

    /// Adds a WRITE of `len` bytes, and returns its buffer for the caller to fill, which saves a
    /// copy. The buffer holds arbitrary bytes before that.
    pub fn write_in_place(&mut self, region: Attached, offset: u64, len: u32) -> &mut [u8] {
        let start = self.reserve(len);
        self.push(Op::Write { region, offset, len, start });
        &mut self.memory.arena[start as usize..start as usize + len as usize]
    }

    /// Adds a compare-and-swap of the word at `offset`, and returns its index.
    #[inline]
    pub fn compare_swap(&mut self, region: Attached, offset: u64, expect: u64, new: u64) -> usize {
        self.push(Op::CompareSwap { region, offset, expect, new })
    }

    /// Adds a fetch-and-add to the word at `offset`, and returns its index. The sum wraps.
    #[inline]
    pub fn fetch_add(&mut self, region: Attached, offset: u64, add: u64) -> usize {
        self.push(Op::FetchAdd { region, offset, add })
    }

    /// Number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.ops.len()
    }

    /// Whether the batch has no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.ops.is_empty()
    }

    /// The operations in the order in which they were added.
    #[inline]
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.memory.ops
    }

    /// The outcome of operation `index`.
    #[must_use]
    pub fn outcome(&self, index: usize) -> Outcome {
        self.memory.outcomes[index]
    }

    /// The bytes of the READ or WRITE `index`. They are arbitrary if the READ was refused.
    #[inline]
    #[must_use]
    pub fn data(&self, index: usize) -> &[u8] {
        match self.memory.ops[index] {
            Op::Read { len, start, .. } | Op::Write { len, start, .. } => {
                &self.memory.arena[start as usize..start as usize + len as usize]
            }
            _ => &[],
        }
    }

    /// Old value of the word of the atomic operation `index`; `None` if it was refused.
    #[inline]
    #[must_use]
    pub fn word(&self, index: usize) -> Option<u64> {
        match self.memory.outcomes[index] {
            Outcome::Word(old) => Some(old),
            _ => None,
        }
    }

    /// The first refusal and the index of its operation.
    #[must_use]
    pub fn refusal(&self) -> Option<(usize, Refusal)> {
        self.memory.outcomes.iter().enumerate().find_map(|(index, outcome)| match outcome {
            Outcome::Refused(refusal) => Some((index, *refusal)),
            _ => None,
        })
    }

    /// Returns an error that names the first refused operation, if there is one.
    pub fn check(&self) -> Result<()> {
        let Some((index, refusal)) = self.refusal() else { return Ok(()) };
        let op = self.memory.ops[index];
        let what = format!(
            "operation {index} of {}, {} of attached region {}",
            self.memory.ops.len(),
            op.describe(),
            op.region().index
        );
        Err(refusal.error(what))
    }

    // The methods below are for providers.

    /// Sets the deadline to a value of [`Batch::deadline_ns`].
    pub(crate) fn restore_deadline(&mut self, deadline_ns: Option<u64>) {
        self.deadline_ns = deadline_ns.unwrap_or(0);
    }

    /// Deadline of the batch in nanoseconds; `None` for the default of the link.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        (self.deadline_ns > 0).then_some(self.deadline_ns)
    }

    /// For providers: operation `index` and its bytes in the arena. An atomic operation has none.
    #[inline]
    pub fn op_mut(&mut self, index: usize) -> (Op, &mut [u8]) {
        let op = self.memory.ops[index];
        let range = match op {
            Op::Read { len, start, .. } | Op::Write { len, start, .. } => {
                start as usize..start as usize + len as usize
            }
            _ => 0..0,
        };
        (op, &mut self.memory.arena[range])
    }

    /// For providers: records the outcome of operation `index`.
    #[inline]
    pub fn finish(&mut self, index: usize, outcome: Outcome) {
        self.memory.outcomes[index] = outcome;
    }

    /// For providers: records that operation `index` was refused, which ends the batch.
    pub fn refuse_from(&mut self, index: usize, refusal: Refusal) {
        if let Some(first) = self.memory.outcomes.get_mut(index) {
            *first = Outcome::Refused(refusal);
            let skipped = Outcome::Refused(Refusal::new(Reason::Skipped));
            self.memory.outcomes[index + 1..].fill(skipped);
        }
    }

    /// For providers: records one refusal for the whole batch.
    pub fn refuse_all(&mut self, refusal: Refusal) {
        self.memory.outcomes.fill(Outcome::Refused(refusal));
    }

    /// For providers: checks the limits of every link, and makes all outcomes pending, so that a
    /// batch can be posted again.
    #[inline]
    pub fn begin(&mut self) -> Result<(), Refusal> {
        self.memory.outcomes.fill(Outcome::Pending);
        if self.memory.ops.len() > BATCH_OPS_MAX {
            return Err(Refusal::at(Reason::TooLarge, BATCH_OPS_MAX as u64));
        }
        if self.used > BATCH_BYTES_MAX {
            return Err(Refusal::at(Reason::TooLarge, BATCH_BYTES_MAX as u64));
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, op: Op) -> usize {
        self.memory.ops.push(op);
        self.memory.outcomes.push(Outcome::Pending);
        self.memory.ops.len() - 1
    }

    #[inline]
    fn reserve(&mut self, len: u32) -> u32 {
        let start = self.used;
        let end = start + len as usize;
        let start = u32::try_from(start).expect("a batch of over 4 GiB");
        if end > self.memory.arena.len() {
            self.memory.arena.resize(end, 0);
        }
        self.used = end;
        start
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.memory);
        let (ops, bytes) = (memory.ops.capacity(), memory.arena.capacity());
        if ops == 0 || ops > SPARE_OPS_MAX || bytes > SPARE_BYTES_MAX {
            return;
        }
        memory.ops.clear();
        memory.outcomes.clear();
        let keep = |spare: &RefCell<Vec<Memory>>| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(memory);
            }
        };
        // A thread that is ending keeps no memory.
        let _ = SPARE.try_with(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_its_operation_and_skips_the_rest() {
        let region = Attached { link: 1, index: 7 };
        let mut batch = Batch::new();
        batch.write(region, 0, b"abc");
        batch.read(region, 4096, 128);
        batch.compare_swap(region, 8, 1, 2);
        batch.begin().expect("small");
        batch.finish(0, Outcome::Visible);
        batch.refuse_from(1, Refusal::at(Reason::OutOfRange, 4096));
        assert_eq!(batch.outcome(2), Outcome::Refused(Refusal::new(Reason::Skipped)));
        let error = batch.check().expect_err("refused").to_string();
        assert!(error.contains("operation 1 of 3, READ of 128 bytes at 4096"), "{error}");
        assert!(error.contains("region 7") && error.contains("(4096 bytes)"), "{error}");
    }

    #[test]
    fn batch_over_the_limits_is_refused_as_a_whole() {
        let region = Attached { link: 1, index: 0 };
        let mut batch = Batch::new();
        batch.read(region, 0, BATCH_BYTES_MAX as u32);
        assert_eq!(batch.begin(), Ok(()));
        batch.write(region, 0, &[1]);
        assert_eq!(batch.begin().map_err(|r| r.reason), Err(Reason::TooLarge));
        batch.clear();
        for _ in 0..=BATCH_OPS_MAX {
            batch.fetch_add(region, 0, 1);
        }
        assert_eq!(batch.begin().map_err(|r| r.reason), Err(Reason::TooLarge));
    }

    #[test]
    fn reused_memory_shows_nothing_of_the_earlier_batch() {
        let region = Attached::new(1, 2);
        let mut first = Batch::new();
        first.write(region, 0, b"reef");
        first.read(region, 8, 4);
        first.finish(0, Outcome::Visible);
        first.set_deadline(std::time::Duration::from_secs(1));
        let memory = first.ops().as_ptr();
        drop(first);
        let mut next = Batch::new();
        assert!(next.is_empty() && next.deadline_ns().is_none());
        next.compare_swap(region, 0, 1, 2);
        assert_eq!(next.ops().as_ptr(), memory, "nothing was allocated");
        assert_eq!((next.len(), next.outcome(0), next.word(0)), (1, Outcome::Pending, None));
        let copy = next.clone();
        drop(next);
        assert_eq!(copy.len(), 1);
    }
}
