//! The provider's part of a completion, for threads that wait and for tasks that poll.
//!
//! A provider implements [`Driver`]. A [`Promise`](crate::Promise) calls it, and
//! [`block_on`](crate::block_on) drives the first link that its future waits for.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a provider that ends fills its slots with refusals, so that every drive ends.
//! Cost: a drive receives on the calling thread.

use std::time::Duration;

use archipelago_base::clock::Clock;

/// Receives completions for a provider.
pub trait Driver: Send + Sync {
    /// Receives on the calling thread until `done` returns true. The implementation must make
    /// `done` true by the deadline of the operation at the latest.
    fn drive(&self, done: &dyn Fn() -> bool);

    /// Receives as [`Driver::drive`] does, but returns when about `limit` has passed, even if `done`
    /// returns false then. By default the limit has no effect.
    fn drive_for(&self, done: &dyn Fn() -> bool, limit: Duration) {
        let _no_limit = limit;
        self.drive(done);
    }

    /// Sends the queued operations, and makes another thread receive. A promise calls it when a
    /// task polls it, and when it is dropped early. The call returns without waiting.
    fn attend(&self);
}

/// The time that is left of `limit`, which begins now.
pub(crate) fn time_left(clock: &dyn Clock, limit: Duration) -> impl Fn() -> Duration {
    let start_ns = clock.now_ns();
    move || limit.saturating_sub(Duration::from_nanos(clock.now_ns().saturating_sub(start_ns)))
}
