//! The provider's part of a completion, for threads that wait and for tasks that poll.
//!
//! A provider implements [`Driver`]. A [`Promise`](crate::Promise) calls it, and
//! [`block_on`](crate::block_on) drives the first link that its future waits for.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a provider that ends fills its slots with refusals, so that every drive ends.
//! Cost: a drive receives on the calling thread.

use std::time::Duration;

/// Receives completions for a provider.
pub trait Driver: Send + Sync {
    /// Receives on the calling thread until `done` returns true. The implementation must make
    /// `done` true by the deadline of the operation at the latest.
    fn drive(&self, done: &dyn Fn() -> bool);

    /// Receives as [`Driver::drive`] does, but returns soon after `left`, the time that is left for
    /// it, has become zero, even if `done` returns false then. By default the time has no effect
    /// unless it is zero at the beginning. Calls of `left` may read the clock. Therefore the
    /// implementation calls it once at the beginning, and again only after it has tried to receive
    /// or has slept and `done` still returns false. A thread that sleeps while another one receives
    /// may be woken by each completion of the link, and calls `left` after each of them. The
    /// implementation holds no lock during the call.
    fn drive_for(&self, done: &dyn Fn() -> bool, left: &dyn Fn() -> Duration) {
        if !left().is_zero() {
            self.drive(done);
        }
    }

    /// Sends the queued operations, and makes another thread receive. A promise calls it when a
    /// task polls it, and when it is dropped early. The call returns without waiting.
    fn attend(&self);
}
