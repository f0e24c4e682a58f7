//! Striped key locks, which make read-modify-write commands atomic.
//!
//! The server owns the locks. Invariants:
//!
//! 1. A command that changes a key holds the key's stripe from before it reads the key until its
//!    write has returned. That includes plain SET, DEL and MSET. Otherwise one of them could run
//!    between the read and the write of INCR, and be lost.
//! 2. Commands on a range (FLUSHDB, DELRANGE) hold all stripes.
//! 3. A command takes all its stripes in one call, in ascending order, so there is no deadlock.
//! 4. Commands that only read take no stripe. The store shows them one moment.
//! 5. Some stores make read-modify-write atomic themselves
//!    ([`crate::store::Store::is_atomic_by_key`]). With such a store plain writes take no stripe: a
//!    write that waits for the network would delay others of its stripe. Read-modify-write commands
//!    still take it, so that those of one server do not fail each other.
//!
//! Thread-safety: any thread may call any method. Cost: one mutex per stripe, usually uncontended,
//! and a thousand for a range. A holder may wait for the store (a stall, a sync). Then the writers
//! of the same stripe wait as well. They leave the worker threads of the runtime while they wait
//! ([`crate::worker_threads`]), so that other connections go on.

use archipelago_base::checksum::hash64;
use parking_lot::{Mutex, MutexGuard};

use crate::worker_threads::off_the_workers;

/// Number of stripes, a power of two.
const STRIPES: usize = 1024;
const WORDS: usize = STRIPES / 64;

/// Number of further attempts before a thread leaves the worker threads of the runtime. A holder
/// that does not wait usually ends within them.
const ATTEMPTS: u32 = 6;

/// A mutex on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Stripe(Mutex<()>);

impl Stripe {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    /// Locks a stripe that another thread holds, which may take long.
    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, ()> {
        for attempt in 0..ATTEMPTS {
            (0..1 << attempt).for_each(|_| std::hint::spin_loop());
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
        off_the_workers(|| self.0.lock())
    }
}

/// The key locks of one server.
pub(crate) struct KeyLocks {
    stripes: Box<[Stripe]>,
    /// Whether plain writes take stripes.
    plain: bool,
}

/// Stripes that are held until this guard is dropped.
#[must_use]
pub(crate) enum KeyGuard<'a> {
    /// No stripe, because the store does not need it for a plain write.
    None,
    /// The stripe of one key.
    One(#[expect(dead_code, reason = "held, not read")] MutexGuard<'a, ()>),
    /// The stripes of several keys, or all stripes.
    Many(#[expect(dead_code, reason = "held, not read")] Vec<MutexGuard<'a, ()>>),
}

fn stripe_of(key: &[u8]) -> usize {
    hash64(key) as usize % STRIPES
}

impl KeyLocks {
    /// `plain` says whether plain writes take stripes.
    pub(crate) fn new(plain: bool) -> Self {
        Self { stripes: (0..STRIPES).map(|_| Stripe::default()).collect(), plain }
    }

    /// Locks one key.
    #[inline]
    pub(crate) fn lock(&self, key: &[u8]) -> KeyGuard<'_> {
        KeyGuard::One(self.stripes[stripe_of(key)].lock())
    }

    /// Locks a key for a write that does not read it.
    #[inline]
    pub(crate) fn lock_plain(&self, key: &[u8]) -> KeyGuard<'_> {
        if self.plain { self.lock(key) } else { KeyGuard::None }
    }

    /// Locks several keys for writes. A key may occur twice.
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
                guards.push(self.stripes[stripe].lock());
                bits &= bits - 1;
            }
        }
        KeyGuard::Many(guards)
    }

    /// Locks every key.
    pub(crate) fn lock_all(&self) -> KeyGuard<'_> {
        KeyGuard::Many(self.stripes.iter().map(Stripe::lock).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_and_key_exclude_each_other() {
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
    fn plain_writes_of_an_atomic_store_take_no_stripe() {
        let locks = KeyLocks::new(false);
        let _held = locks.lock(b"k");
        assert!(matches!(locks.lock_plain(b"k"), KeyGuard::None));
        let keys: [&[u8]; 2] = [b"k", b"l"];
        assert!(matches!(locks.lock_many(keys.into_iter()), KeyGuard::None));
    }

    #[test]
    fn contended_stripe_keeps_no_worker_thread() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.unwrap();
        let locks = std::sync::Arc::new(KeyLocks::new(true));
        let held = locks.lock_all();
        let (begun, has_begun) = std::sync::mpsc::channel();
        let waiting = [0, 1, 2].map(|kind| {
            let (locks, begun) = (std::sync::Arc::clone(&locks), begun.clone());
            runtime.spawn(async move {
                begun.send(()).unwrap();
                match kind {
                    0 => drop(locks.lock(b"k")),
                    1 => drop(locks.lock_many([&b"k"[..], b"l"].into_iter())),
                    _ => drop(locks.lock_all()),
                }
            })
        });
        // All three tasks wait, and the only worker runs another one.
        (0..3).for_each(|_| has_begun.recv().unwrap());
        runtime.block_on(runtime.spawn(async {})).unwrap();
        drop(held);
        waiting.into_iter().for_each(|task| runtime.block_on(task).unwrap());
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
