//! A batch: one-sided operations that are posted together (one doorbell), and what came of each.
//!
//! A batch owns its memory: bytes to write are copied (or written in place) into its arena, bytes
//! read land there. It is moved into [`Link::post`](crate::Link::post) and comes back with the
//! outcomes, so a caller that forgets the promise leaves no buffer that a network still writes to.
//! Kept and [`clear`](Batch::clear)ed, or made and dropped again and again, it allocates nothing in
//! the steady state: a thread keeps the memory of a few small ones.
//!
//! Rules: 1. operations take effect in the order in which they were added; 2. the first refused
//! one ends the batch, those after it are [`Reason::Skipped`]; 3. an outcome
//! [`Outcome::Visible`] says that every reader at the target sees the bytes.
//!
//! A single owner; not shared while it is in flight.

use std::cell::RefCell;

use archipelago_base::Result;

use crate::refusal::{Reason, Refusal};

/// Operations in one batch, at most.
pub const BATCH_OPS_MAX: usize = 1024;
/// Bytes that one batch may write, and bytes that it may read.
pub const BATCH_BYTES_MAX: usize = 8 << 20;

/// A region as one link knows it, from [`Link::attach`](crate::Link::attach). Only for the link
/// that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attached {
    pub(crate) link: u32,
    pub(crate) index: u32,
}

impl Attached {
    /// For a provider: the place `index` of the attachments of the link numbered `link`.
    #[must_use]
    pub const fn new(link: u32, index: u32) -> Self {
        Self { link, index }
    }
}

/// One operation. `start` is where its bytes lie in the batch's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Copy `len` bytes from the region.
    Read {
        /// Which region.
        region: Attached,
        /// From where, in bytes.
        offset: u64,
        /// How many bytes.
        len: u32,
        /// Where they land in the arena.
        start: u32,
    },
    /// Copy `len` bytes into the region.
    Write {
        /// Which region.
        region: Attached,
        /// To where, in bytes.
        offset: u64,
        /// How many bytes.
        len: u32,
        /// Where they lie in the arena.
        start: u32,
    },
    /// Store `new` in the word at `offset` if it holds `expect`.
    CompareSwap {
        /// Which region.
        region: Attached,
        /// Of the word, a multiple of 8.
        offset: u64,
        /// What the word must hold.
        expect: u64,
        /// What it gets.
        new: u64,
    },
    /// Add `add` to the word at `offset`, wrapping.
    FetchAdd {
        /// Which region.
        region: Attached,
        /// Of the word, a multiple of 8.
        offset: u64,
        /// What is added.
        add: u64,
    },
}

impl Op {
    /// The region that the operation goes to.
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

/// What came of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not posted, or still in flight.
    Pending,
    /// The bytes are in the batch.
    Read,
    /// The bytes are placed: every reader at the target sees them.
    Visible,
    /// The word's old value. A compare-and-swap took place if it is what was expected.
    Word(u64),
    /// It did not happen, or nobody knows: [`Reason::Disconnected`], [`Reason::Deadline`].
    Refused(Refusal),
}

/// Batches whose memory a thread keeps.
const SPARE_MAX: usize = 16;
/// Most operations of these.
const SPARE_OPS_MAX: usize = 64;
/// Largest arena of these, in bytes.
const SPARE_BYTES_MAX: usize = 4 << 10;

thread_local! {
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// What a batch allocates.
#[derive(Clone, Debug, Default)]
struct Memory {
    ops: Vec<Op>,
    outcomes: Vec<Outcome>,
    /// Never shrinks, so that reuse zeroes nothing; `used` bytes of it belong to operations.
    arena: Vec<u8>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Batch {
    memory: Memory,
    used: usize,
    /// Nanoseconds; 0: the link's default.
    deadline_ns: u64,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        // A thread that ends keeps nothing.
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        Self { memory: spare.unwrap_or_default(), used: 0, deadline_ns: 0 }
    }

    /// Forgets operations and outcomes, keeps the memory.
    pub fn clear(&mut self) {
        self.memory.ops.clear();
        self.memory.outcomes.clear();
        self.used = 0;
        self.deadline_ns = 0;
    }

    /// Completes with [`Reason::Deadline`] if it takes longer. Default: the link's.
    pub fn set_deadline(&mut self, deadline: std::time::Duration) {
        self.deadline_ns = deadline.as_nanos().clamp(1, u128::from(u64::MAX)) as u64;
    }

    /// Adds a READ; its index.
    #[inline]
    pub fn read(&mut self, region: Attached, offset: u64, len: u32) -> usize {
        let start = self.reserve(len);
        self.push(Op::Read { region, offset, len, start })
    }

    /// Adds a WRITE of a copy of `bytes`; its index.
    #[inline]
    pub fn write(&mut self, region: Attached, offset: u64, bytes: &[u8]) -> usize {
        let index = self.memory.ops.len();
        self.write_in_place(region, offset, bytes.len() as u32).copy_from_slice(bytes);
        index
    }

    /// Adds a WRITE of `len` bytes, which the caller fills in: saves the copy. What it holds
    /// before is of earlier uses of this batch.
    pub fn write_in_place(&mut self, region: Attached, offset: u64, len: u32) -> &mut [u8] {
        let start = self.reserve(len);
        self.push(Op::Write { region, offset, len, start });
        &mut self.memory.arena[start as usize..start as usize + len as usize]
    }

    /// Adds a compare-and-swap of the word at `offset`; its index.
    #[inline]
    pub fn compare_swap(&mut self, region: Attached, offset: u64, expect: u64, new: u64) -> usize {
        self.push(Op::CompareSwap { region, offset, expect, new })
    }

    /// Adds a wrapping fetch-and-add to the word at `offset`; its index.
    #[inline]
    pub fn fetch_add(&mut self, region: Attached, offset: u64, add: u64) -> usize {
        self.push(Op::FetchAdd { region, offset, add })
    }

    /// How many operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.ops.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.ops.is_empty()
    }

    /// The operations, in order.
    #[inline]
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.memory.ops
    }

    /// What came of operation `index`.
    #[must_use]
    pub fn outcome(&self, index: usize) -> Outcome {
        self.memory.outcomes[index]
    }

    /// The bytes of the READ or WRITE `index`; of a READ that was refused they mean nothing.
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

    /// The old value that the atomic operation `index` found; `None` if it was refused.
    #[inline]
    #[must_use]
    pub fn word(&self, index: usize) -> Option<u64> {
        match self.memory.outcomes[index] {
            Outcome::Word(old) => Some(old),
            _ => None,
        }
    }

    /// The first refusal and its operation.
    #[must_use]
    pub fn refusal(&self) -> Option<(usize, Refusal)> {
        self.memory.outcomes.iter().enumerate().find_map(|(index, outcome)| match outcome {
            Outcome::Refused(refusal) => Some((index, *refusal)),
            _ => None,
        })
    }

    /// `Err` if an operation was refused; the sentence names it.
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

    // For providers.

    /// The deadline that was set.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        (self.deadline_ns > 0).then_some(self.deadline_ns)
    }

    /// For a provider: the operation and the arena's bytes that are its own (none for atomics).
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

    /// For a provider: records what came of operation `index`.
    #[inline]
    pub fn finish(&mut self, index: usize, outcome: Outcome) {
        self.memory.outcomes[index] = outcome;
    }

    /// For a provider: operation `index` was refused, and ends the batch.
    pub fn refuse_from(&mut self, index: usize, refusal: Refusal) {
        if let Some(first) = self.memory.outcomes.get_mut(index) {
            *first = Outcome::Refused(refusal);
            let skipped = Outcome::Refused(Refusal::new(Reason::Skipped));
            self.memory.outcomes[index + 1..].fill(skipped);
        }
    }

    /// For a provider: nobody knows what came of the whole batch, or nothing of it was tried.
    pub fn refuse_all(&mut self, refusal: Refusal) {
        self.memory.outcomes.fill(Outcome::Refused(refusal));
    }

    /// For a provider: the limits that hold on every link. Also makes the outcomes pending, so
    /// that a batch can be posted again.
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
        // A thread that ends keeps nothing.
        let _ = SPARE.try_with(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_operation_and_skips_the_rest() {
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
    fn a_batch_over_the_limits_is_refused_whole() {
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
    fn a_batch_that_has_anothers_memory_has_nothing_else_of_it() {
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
