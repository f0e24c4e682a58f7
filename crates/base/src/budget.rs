//! A byte budget over all memory that grows with load: memtables, log buffers, caches, index and
//! filter blocks, jobs, and requests in flight.
//!
//! The program that opens a database owns the budget, and several databases may share one. Each
//! component charges the bytes that it holds to a [`MemoryClass`]. The limit stops no charge: it
//! raises the [`Pressure`], on which writers slow down and caches shrink.
//!
//! Invariant: the total is the sum of all classes, and a class is the sum of its live [`Charge`]s
//! and of the charges without a guard.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a charge never fails and never blocks.
//! Cost: a charge is two relaxed atomic additions.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryClass {
    /// Memory of memtables, active and immutable.
    Memtable,
    /// Buffers and rings of the write-ahead log.
    Log,
    /// Cached data blocks.
    BlockCache,
    /// Index and filter blocks held by open table readers.
    TableReader,
    /// Requests and replies in flight in a front end.
    Request,
    /// Buffers of running flush and compaction jobs.
    Job,
    /// Buffered writes and recorded reads of open transactions.
    Transaction,
    /// A front end's table of the times at which keys were last accessed.
    AccessTimes,
}

impl MemoryClass {
    /// Every class, in the order in which reports list them.
    pub const ALL: [Self; 8] = [
        Self::Memtable,
        Self::Log,
        Self::BlockCache,
        Self::TableReader,
        Self::Request,
        Self::Job,
        Self::Transaction,
        Self::AccessTimes,
    ];

    /// Name of the class in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memtable => "memtable",
            Self::Log => "log",
            Self::BlockCache => "block_cache",
            Self::TableReader => "table_reader",
            Self::Request => "request",
            Self::Job => "job",
            Self::Transaction => "transaction",
            Self::AccessTimes => "access_times",
        }
    }
}

/// How close the charged bytes are to the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Less than 90 % of the limit.
    None,
    /// From 90 % on: caches shrink, and flushes start earlier.
    High,
    /// More than the limit: writers are slowed.
    Over,
}

/// Bytes of memory below which a process counts as small ([`ByteBudget::is_small`]).
const SMALL_PROCESS_BYTES: u64 = 512 << 20;
/// Divisor of the process's memory that gives the uncounted part.
const UNCOUNTED_SHARE: u64 = 4;
/// Limit of the uncounted part, in bytes.
const UNCOUNTED_BYTES_MAX: u64 = 16 << 20;

/// Counters of charged bytes and the limit of their sum.
pub struct ByteBudget {
    limit_bytes: AtomicU64,
    /// Bytes of the process's memory that the limit leaves to uncounted memory.
    uncounted_bytes: u64,
    used: [AtomicI64; MemoryClass::ALL.len()],
}

impl ByteBudget {
    /// Makes a budget of `limit_bytes`. `u64::MAX` means no limit.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Self::leaving(limit_bytes, 0)
    }

    fn leaving(limit_bytes: u64, uncounted_bytes: u64) -> Arc<Self> {
        let limit_bytes = AtomicU64::new(limit_bytes);
        Arc::new(Self { limit_bytes, uncounted_bytes, used: Default::default() })
    }

    /// Makes the budget of a process that may take `process_bytes`. `u64::MAX` means no limit. The
    /// budget leaves a quarter, at most 16 MiB, to memory that no class counts: stacks of threads,
    /// compression contexts, buffers that are kept for reuse, and memory that the allocator has not
    /// returned yet.
    #[must_use]
    pub fn within(process_bytes: u64) -> Arc<Self> {
        match process_bytes {
            u64::MAX => Self::unlimited(),
            bytes => {
                let uncounted = (bytes / UNCOUNTED_SHARE).min(UNCOUNTED_BYTES_MAX);
                Self::leaving(bytes - uncounted, uncounted)
            }
        }
    }

    /// Bytes that [`ByteBudget::within`] left to uncounted memory. It is 0 for other budgets.
    #[must_use]
    pub fn uncounted_bytes(&self) -> u64 {
        self.uncounted_bytes
    }

    /// Bytes that the process may take: the limit and the uncounted part.
    #[must_use]
    pub fn process_bytes(&self) -> u64 {
        self.limit_bytes().saturating_add(self.uncounted_bytes)
    }

    /// Whether the process may take less than 512 MiB. Such a process prefers compact memory to
    /// speed: small pages, and few buffers that are kept for reuse.
    #[must_use]
    pub fn is_small(&self) -> bool {
        self.process_bytes() < SMALL_PROCESS_BYTES
    }

    /// Makes a budget without a limit.
    #[must_use]
    pub fn unlimited() -> Arc<Self> {
        Self::new(u64::MAX)
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit. Components notice at their next call of [`ByteBudget::pressure`].
    pub fn set_limit_bytes(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that are charged to one class.
    #[must_use]
    pub fn used_bytes(&self, class: MemoryClass) -> u64 {
        self.used[class as usize].load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes that are charged to all classes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        MemoryClass::ALL.iter().map(|&class| self.used_bytes(class)).sum()
    }

    /// How close the charged bytes are to the limit.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        let (used, limit) = (self.total_bytes(), self.limit_bytes());
        if used > limit {
            Pressure::Over
        } else if used / 9 >= limit / 10 {
            Pressure::High
        } else {
            Pressure::None
        }
    }

    /// Charges `bytes` without a guard. The caller must [`ByteBudget::release`] them later.
    pub fn charge(&self, class: MemoryClass, bytes: u64) {
        self.used[class as usize].fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// Ends a charge of [`ByteBudget::charge`]. The class and the bytes must be those of the
    /// charge.
    pub fn release(&self, class: MemoryClass, bytes: u64) {
        self.used[class as usize].fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Charges `bytes` until the returned guard is dropped.
    #[must_use]
    pub fn hold(self: &Arc<Self>, class: MemoryClass, bytes: u64) -> Charge {
        self.charge(class, bytes);
        Charge { budget: Arc::clone(self), class, bytes }
    }
}

impl fmt::Debug for ByteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ByteBudget");
        out.field("limit_bytes", &self.limit_bytes());
        for class in MemoryClass::ALL {
            out.field(class.name(), &self.used_bytes(class));
        }
        out.finish()
    }
}

/// A guard that charges bytes to a budget until it is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<ByteBudget>,
    class: MemoryClass,
    bytes: u64,
}

impl Charge {
    /// Changes the number of bytes that this guard charges.
    pub fn resize(&mut self, bytes: u64) {
        self.budget.charge(self.class, bytes);
        self.budget.release(self.class, self.bytes);
        self.bytes = bytes;
    }

    /// Bytes that this guard charges.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.release(self.class, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_budget_leaves_room_for_uncounted_memory() {
        let parts = |process_bytes| {
            let budget = ByteBudget::within(process_bytes);
            (budget.limit_bytes(), budget.uncounted_bytes(), budget.is_small())
        };
        assert_eq!(parts(16 << 20), (12 << 20, 4 << 20, true));
        assert_eq!(parts(64 << 20), (48 << 20, 16 << 20, true));
        assert_eq!(parts(512 << 20), (496 << 20, 16 << 20, false));
        assert_eq!(parts(u64::MAX), (u64::MAX, 0, false));
        assert_eq!(ByteBudget::within(64 << 20).process_bytes(), 64 << 20);
        assert_eq!(ByteBudget::new(7).process_bytes(), 7);
    }

    #[test]
    fn pressure_follows_charges() {
        let budget = ByteBudget::new(100);
        let mut held = budget.hold(MemoryClass::Memtable, 50);
        assert_eq!(budget.pressure(), Pressure::None);
        held.resize(95);
        assert_eq!(budget.pressure(), Pressure::High);
        let more = budget.hold(MemoryClass::BlockCache, 6);
        assert_eq!(budget.pressure(), Pressure::Over);
        drop((held, more));
        assert_eq!(budget.total_bytes(), 0);
    }
}
