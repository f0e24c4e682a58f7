//! Striped key locks: what makes read-modify-write commands atomic.
//!
//! Owned by the server. Invariants:
//!
//! 1. Every command that changes a key holds the key's stripe from before it reads the key until
//!    its write has returned. That includes plain SET, DEL and MSET: otherwise one could slip in
//!    between INCR's read and INCR's write, and be lost.
//! 2. Commands on a range (FLUSHDB, DELRANGE) hold all stripes.
//! 3. A command takes all its stripes at once, in ascending order: no deadlock.
//! 4. Commands that only read take none; the store shows them one moment.
//! 5. Of a store whose read-modify-write is atomic by itself
//!    ([`crate::store::Store::is_atomic_by_key`]) plain writes take none either: 1 is its business,
//!    and whoever waits for the network would keep others of its stripes waiting.
//!    Read-modify-writes still do, so that those of one server do not fail each other.
//!
//! Cost: one uncontended mutex per stripe touched; a thousand for a range. A holder may wait for
//! the store (a stall, an fsync), and then the writers of the same stripe wait with it.

use archipelago_base::checksum::hash64;
use parking_lot::{Mutex, MutexGuard};

/// How many stripes there are; a power of two.
const STRIPES: usize = 1024;
const WORDS: usize = STRIPES / 64;

/// A mutex on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Stripe(Mutex<()>);

/// See the module.
pub(crate) struct KeyLocks {
    stripes: Box<[Stripe]>,
    /// Whether plain writes take them.
    plain: bool,
}

/// Stripes held until this is dropped.
#[must_use]
pub(crate) enum KeyGuard<'a> {
    /// A plain write of a store that does not need it.
    None,
    /// One key's.
    One(#[expect(dead_code, reason = "held, not read")] MutexGuard<'a, ()>),
    /// Several keys' or all.
    Many(#[expect(dead_code, reason = "held, not read")] Vec<MutexGuard<'a, ()>>),
}

fn stripe_of(key: &[u8]) -> usize {
    hash64(key) as usize % STRIPES
}

impl KeyLocks {
    /// `plain`: plain writes take them, too.
    pub(crate) fn new(plain: bool) -> Self {
        Self { stripes: (0..STRIPES).map(|_| Stripe::default()).collect(), plain }
    }

    /// Locks one key.
    #[inline]
    pub(crate) fn lock(&self, key: &[u8]) -> KeyGuard<'_> {
        KeyGuard::One(self.stripes[stripe_of(key)].0.lock())
    }

    /// Locks a key that is written without being read.
    #[inline]
    pub(crate) fn lock_plain(&self, key: &[u8]) -> KeyGuard<'_> {
        if self.plain { self.lock(key) } else { KeyGuard::None }
    }

    /// Locks several keys that are written; a key may come twice.
    pub(crate) fn lock_many<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> KeyGuard<'_> {
        if !self.plain {
            return KeyGuard::None;
        }
        let mut wanted = [0u64; WORDS];
        for key in keys {
            let stripe = stripe_of(key);
            wanted[stripe / 64] |= 1 << (stripe % 64);
        }
        let mut guards = Vec::with_capacity(wanted.iter().map(|w| w.count_ones() as usize).sum());
        for (word, mut bits) in wanted.into_iter().enumerate() {
            while bits != 0 {
                let stripe = word * 64 + bits.trailing_zeros() as usize;
                guards.push(self.stripes[stripe].0.lock());
                bits &= bits - 1;
            }
        }
        KeyGuard::Many(guards)
    }

    /// Locks every key.
    pub(crate) fn lock_all(&self) -> KeyGuard<'_> {
        KeyGuard::Many(self.stripes.iter().map(|stripe| stripe.0.lock()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_waits_for_a_key_and_a_key_for_a_range() {
        let locks = KeyLocks::new(true);
        let held = locks.lock(b"k");
        assert!(locks.stripes[stripe_of(b"k")].0.try_lock().is_none());
        drop(held);
        let all = locks.lock_all();
        assert!(locks.stripes.iter().all(|stripe| stripe.0.try_lock().is_none()));
        drop(all);
        let _free = locks.lock(b"k");
    }

    #[test]
    fn plain_writes_of_a_store_that_is_atomic_by_itself_wait_for_nobody() {
        let locks = KeyLocks::new(false);
        let _held = locks.lock(b"k");
        assert!(matches!(locks.lock_plain(b"k"), KeyGuard::None));
        let keys: [&[u8]; 2] = [b"k", b"l"];
        assert!(matches!(locks.lock_many(keys.into_iter()), KeyGuard::None));
    }

    #[test]
    fn crossing_sets_of_keys_do_not_deadlock() {
        let locks = KeyLocks::new(true);
        let keys: Vec<Vec<u8>> = (0..64u32).map(|n| n.to_be_bytes().to_vec()).collect();
        std::thread::scope(|scope| {
            for turn in 0..4 {
                let (locks, keys) = (&locks, &keys);
                scope.spawn(move || {
                    for round in 0..500 {
                        let pick = |n: usize| &keys[(n * 7 + round * (turn + 1)) % 64][..];
                        let forth = (0..8).map(pick);
                        if turn % 2 == 0 {
                            drop(locks.lock_many(forth));
                        } else {
                            drop(locks.lock_many(forth.rev().chain([pick(0)])));
                        }
                    }
                });
            }
        });
    }
}
