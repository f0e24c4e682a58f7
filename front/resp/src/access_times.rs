//! Table of the times at which keys were last accessed, for OBJECT IDLETIME.
//!
//! The server owns one table. It has a fixed number of entries, and the hash of a key chooses the
//! entry of the key. The entry does not depend on the database, so SWAPDB, MOVE and COPY between
//! databases need not change the table.
//!
//! Invariants:
//! 1. An entry holds the latest access of all keys that share it, unless two threads note accesses
//!    at the same moment. Then it may hold the earlier one of these two.
//! 2. [`AccessTimes::idle_s`] is a lower bound of the time since the last command that accessed the
//!    key began. Keys that share an entry make it smaller. A key that was not accessed since the
//!    start of the server has been idle since the start.
//!
//! Thread-safety: every entry is an atomic number. Loads and stores are relaxed, because no other
//! memory depends on an entry.
//! Failure: none.
//! Cost: an access costs a hash, a load and, if the entry is older than an eighth of a second, a
//! store. The hash of a key with 8 to 16 bytes is one multiplication. An access reads no clock,
//! because callers know when their command began. The load before the
//! store keeps the cache lines of hot keys shared between processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use archipelago_base::checksum::hash64;

/// Entries of a table whose size the budget does not limit: 4 MiB.
const ENTRIES_MAX: u64 = 1 << 20;

/// Entries of the table of the smallest budget: 16 KiB.
const ENTRIES_MIN: u64 = 1 << 12;

/// The table takes at most one part in this many of the memory budget.
const BUDGET_PARTS: u64 = 64;

/// A tick is two to this power nanoseconds, about an eighth of a second. A server counts ticks in
/// 32 bits for 18 years.
const TICK_SHIFT: u32 = 27;

const NS_PER_S: u64 = 1_000_000_000;

/// Times of the last accesses of keys.
pub(crate) struct AccessTimes {
    /// Ticks from the start of the server to the last access; 0 before the first access.
    last_ticks: Box<[AtomicU32]>,
    started_ns: u64,
    _charge: Charge,
}

impl AccessTimes {
    /// An empty table of a server that starts at `started_ns`. Its size follows the limit of
    /// `budget`, and it is charged to the budget until it is dropped.
    pub(crate) fn new(budget: &Arc<ByteBudget>, started_ns: u64) -> Self {
        let affordable = budget.limit_bytes() / BUDGET_PARTS / size_of::<AtomicU32>() as u64;
        let entries = affordable.clamp(ENTRIES_MIN, ENTRIES_MAX);
        // The mask of an entry needs a power of two: the largest one that is affordable.
        let entries = 1_usize << entries.ilog2();
        let last_ticks: Box<[AtomicU32]> = (0..entries).map(|_| AtomicU32::new(0)).collect();
        let bytes = size_of_val(&*last_ticks) as u64;
        Self { last_ticks, started_ns, _charge: budget.hold(MemoryClass::AccessTimes, bytes) }
    }

    /// Notes that `key` is accessed at `now_ns`.
    #[inline]
    pub(crate) fn note(&self, key: &[u8], now_ns: u64) {
        let (entry, now) = (self.entry(key), self.ticks(now_ns));
        if entry.load(Ordering::Relaxed) < now {
            entry.store(now, Ordering::Relaxed);
        }
    }

    /// Whole seconds for which `key` has been idle at `now_ns`, at least.
    pub(crate) fn idle_s(&self, key: &[u8], now_ns: u64) -> u64 {
        let last = self.entry(key).load(Ordering::Relaxed);
        // Both numbers of ticks are rounded down, so their difference may be one too large.
        let idle_ticks = self.ticks(now_ns).saturating_sub(last).saturating_sub(1);
        (u64::from(idle_ticks) << TICK_SHIFT) / NS_PER_S
    }

    #[inline]
    fn entry(&self, key: &[u8]) -> &AtomicU32 {
        &self.last_ticks[spread(key) as usize & (self.last_ticks.len() - 1)]
    }

    #[inline]
    fn ticks(&self, now_ns: u64) -> u32 {
        // The clock never goes back, so the difference is not negative.
        (now_ns.wrapping_sub(self.started_ns) >> TICK_SHIFT) as u32
    }
}

/// A hash of `key`. A common length takes one multiplication, because every read pays for it.
#[inline]
fn spread(key: &[u8]) -> u64 {
    const PRIMES: [u64; 2] = [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f];
    match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
        // The two words cover all bytes of such a key.
        (Some(first), Some(last)) if key.len() <= 16 => {
            let words = [u64::from_le_bytes(*first), u64::from_le_bytes(*last)];
            let product = u128::from(words[0] ^ PRIMES[0]) * u128::from(words[1] ^ PRIMES[1]);
            let folded = product as u64 ^ (product >> 64) as u64;
            // The table takes the lower bits, which alone depend too little on the upper ones.
            folded ^ (folded >> 32)
        }
        _ => spread_other(key),
    }
}

/// A hash of a key of any length.
#[inline(never)]
fn spread_other(key: &[u8]) -> u64 {
    hash64(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NS: u64 = 77 * NS_PER_S;

    fn seconds(seconds: u64) -> u64 {
        START_NS + seconds * NS_PER_S
    }

    #[test]
    fn idle_time_counts_from_the_last_access() {
        let times = AccessTimes::new(&ByteBudget::unlimited(), START_NS);
        assert_eq!(times.idle_s(b"reef", START_NS), 0);
        assert!((9..=10).contains(&times.idle_s(b"reef", seconds(10))), "since the start");
        times.note(b"reef", seconds(10));
        assert_eq!(times.idle_s(b"reef", seconds(10)), 0);
        assert!((6..=7).contains(&times.idle_s(b"reef", seconds(17))));
        times.note(b"reef", seconds(3));
        assert!((6..=7).contains(&times.idle_s(b"reef", seconds(17))), "an earlier access");
    }

    #[test]
    fn idle_time_never_exceeds_the_true_one() {
        let times = AccessTimes::new(&ByteBudget::unlimited(), START_NS);
        let mut random = fastrand::Rng::with_seed(7);
        let mut now_ns = START_NS;
        for _ in 0..10_000 {
            now_ns += random.u64(..3 * NS_PER_S);
            let accessed_ns = now_ns;
            times.note(b"reef", accessed_ns);
            now_ns += random.u64(..5 * NS_PER_S);
            let idle_ns = times.idle_s(b"reef", now_ns) * NS_PER_S;
            let truth_ns = now_ns - accessed_ns;
            assert!(idle_ns <= truth_ns, "{idle_ns} of {truth_ns}");
            assert!(idle_ns + 2 * NS_PER_S > truth_ns, "{idle_ns} of {truth_ns}");
        }
    }

    #[test]
    fn keys_of_one_entry_share_the_latest_access() {
        let times = AccessTimes::new(&ByteBudget::new(1 << 20), START_NS);
        let keys: Vec<String> = (0..100_000).map(|n| format!("k{n}")).collect();
        keys.iter().for_each(|key| times.note(key.as_bytes(), seconds(100)));
        assert_eq!(times.idle_s(b"never accessed", seconds(100)), 0);
    }

    #[test]
    fn hash_spreads_similar_keys() {
        const ENTRIES: usize = 1 << 16;
        for digits in [4, 8, 12, 20] {
            let mut taken = vec![false; ENTRIES];
            for n in 0..1 << 14 {
                let key = format!("key:{n:0digits$}");
                taken[spread(key.as_bytes()) as usize % ENTRIES] = true;
            }
            let entries = taken.iter().filter(|taken| **taken).count();
            // A random function takes 14,498 of the entries on average.
            assert!(entries > 14_200, "{digits} digits: {entries}");
        }
    }

    #[test]
    fn table_size_follows_the_budget() {
        let bytes = |limit: u64| {
            let budget = ByteBudget::new(limit);
            let times = AccessTimes::new(&budget, START_NS);
            let held = budget.used_bytes(MemoryClass::AccessTimes);
            drop(times);
            assert_eq!(budget.total_bytes(), 0);
            held
        };
        assert_eq!(bytes(u64::MAX), 4 << 20);
        assert_eq!(bytes(256 << 20), 4 << 20);
        assert_eq!(bytes((256 << 20) - 1), 2 << 20);
        assert_eq!(bytes(48 << 20), 512 << 10);
        assert_eq!(bytes(0), 16 << 10);
    }
}
