//! The provider's part of a completion, for threads that wait and for tasks that poll.
//!
//! A provider implements [`Driver`]. A [`Promise`](crate::Promise) calls it, and
//! [`block_on`](crate::block_on) drives the first link that its future waits for.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a provider that ends fills its slots with refusals, so that every drive ends.
//! Cost: a drive receives on the calling thread.

/// Receives completions for a provider.
pub trait Driver: Send + Sync {
    /// Receives on the calling thread until `done` returns true. The implementation makes sure that
    /// it becomes true, by a deadline if by nothing else.
    fn drive(&self, done: &dyn Fn() -> bool);

    /// Sends the queued operations, and receives on another thread than the caller's. A task that
    /// polled calls it, and so does a promise that is dropped early. It returns without waiting.
    fn attend(&self);
}
