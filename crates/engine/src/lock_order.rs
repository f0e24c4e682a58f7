//! The lock order of an open database, in types.
//!
//! A thread that holds several of these locks takes them in this order: commit lock, manifest lock,
//! jobs lock. Each lock is an [`OrderedMutex`] of its level. To take it, a thread shows an
//! [`Order`]: that of the lock that it took last ([`OrderedGuard::order`]), or [`Order::none`] if
//! it holds none. The compiler refuses an order that comes too late:
//!
//! ```compile_fail
//! use archipelago_engine::lock_order::{JobsLock, ManifestLock, Order, OrderedMutex};
//!
//! let manifest = OrderedMutex::<u32, ManifestLock>::new(1);
//! let jobs = OrderedMutex::<u32, JobsLock>::new(2);
//! let state = jobs.lock(Order::none());
//! // The manifest lock comes before the jobs lock: `JobsLock` is not `Before<ManifestLock>`.
//! let versions = manifest.lock(state.order());
//! ```
//!
//! The reverse order compiles:
//!
//! ```
//! use archipelago_engine::lock_order::{JobsLock, ManifestLock, Order, OrderedMutex};
//!
//! let manifest = OrderedMutex::<u32, ManifestLock>::new(1);
//! let jobs = OrderedMutex::<u32, JobsLock>::new(2);
//! let versions = manifest.lock(Order::none());
//! let state = jobs.lock(versions.order());
//! assert_eq!(*versions + *state, 3);
//! ```
//!
//! Invariants:
//! 1. A function that may run under one of the locks takes the order, or a guard, as a parameter.
//!    [`Order::none`] stands only in functions that run without them.
//! 2. Locks that are not listed here are leaves: no thread takes another lock while it holds one of
//!    them.
//!
//! Thread-safety: a mutex may be used by any thread. An order is a value of one thread.
//! Failure: none.
//! Cost: none at run time. An order has no size, and a guard is the guard of the mutex.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// Level of a thread that holds none of the ordered locks.
#[derive(Clone, Copy, Debug)]
pub struct NoLock;

/// Level of the commit lock: sequence numbers, log, active memtables.
#[derive(Clone, Copy, Debug)]
pub struct CommitLock;

/// Level of the manifest lock: installs, one at a time.
#[derive(Clone, Copy, Debug)]
pub struct ManifestLock;

/// Level of the jobs lock: sealed memtables and running jobs.
#[derive(Clone, Copy, Debug)]
pub struct JobsLock;

/// A level after which the lock of level `Next` may be taken.
pub trait Before<Next> {}

impl Before<CommitLock> for NoLock {}
impl Before<ManifestLock> for NoLock {}
impl Before<ManifestLock> for CommitLock {}
impl Before<JobsLock> for NoLock {}
impl Before<JobsLock> for CommitLock {}
impl Before<JobsLock> for ManifestLock {}

/// Evidence that a thread holds the lock of level `Held`, or an earlier one, and none after it.
#[derive(Debug)]
pub struct Order<Held>(PhantomData<Held>);

impl<Held> Clone for Order<Held> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Held> Copy for Order<Held> {}

impl Order<NoLock> {
    /// The order with which a thread begins: it holds none of the locks.
    #[inline]
    #[must_use]
    pub const fn none() -> Self {
        Self(PhantomData)
    }
}

/// A mutex with a place in the lock order.
pub struct OrderedMutex<T, Level> {
    mutex: Mutex<T>,
    level: PhantomData<fn() -> Level>,
}

impl<T, Level> OrderedMutex<T, Level> {
    /// A mutex around `value`, which no thread holds yet.
    pub const fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), level: PhantomData }
    }

    /// Takes the lock, and waits for it if necessary.
    #[inline]
    pub fn lock<Held: Before<Level>>(&self, _order: Order<Held>) -> OrderedGuard<'_, T, Level> {
        OrderedGuard { guard: self.mutex.lock(), level: PhantomData }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock<Held: Before<Level>>(
        &self,
        _order: Order<Held>,
    ) -> Option<OrderedGuard<'_, T, Level>> {
        Some(OrderedGuard { guard: self.mutex.try_lock()?, level: PhantomData })
    }

    /// Takes the lock if it becomes free within `patience`.
    #[inline]
    pub fn try_lock_for<Held: Before<Level>>(
        &self,
        patience: Duration,
        _order: Order<Held>,
    ) -> Option<OrderedGuard<'_, T, Level>> {
        Some(OrderedGuard { guard: self.mutex.try_lock_for(patience)?, level: PhantomData })
    }
}

impl<T, Level> fmt::Debug for OrderedMutex<T, Level> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedMutex").finish_non_exhaustive()
    }
}

/// A lock that is held, and its place in the lock order.
pub struct OrderedGuard<'a, T, Level> {
    guard: MutexGuard<'a, T>,
    level: PhantomData<fn() -> Level>,
}

impl<'a, T, Level> OrderedGuard<'a, T, Level> {
    /// The order with which the thread may take the next lock while it holds this one.
    #[inline]
    #[must_use]
    pub fn order(&self) -> Order<Level> {
        Order(PhantomData)
    }

    /// The guard of the mutex, to wait at a condition variable.
    #[inline]
    pub(crate) fn raw(&mut self) -> &mut MutexGuard<'a, T> {
        &mut self.guard
    }
}

impl<T, Level> Deref for OrderedGuard<'_, T, Level> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, Level> DerefMut for OrderedGuard<'_, T, Level> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T, Level> fmt::Debug for OrderedGuard<'_, T, Level> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedGuard").finish_non_exhaustive()
    }
}
