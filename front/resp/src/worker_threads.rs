//! Waits that leave the worker threads of the runtime.
//!
//! A worker thread serves many connections, so a wait on it delays all of them. A wait that may
//! take long therefore leaves it: another thread of the runtime runs the other tasks meanwhile. The
//! runtime has about 500 threads for that; if more commands wait, all connections do.
//!
//! Thread-safety: any thread may call the function. Failure: none. Cost: a wake-up of a thread, so
//! callers first wait in place for a short time.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `wait`, which may take long. If this is a worker thread of a runtime, another thread runs
/// its other tasks meanwhile.
pub(crate) fn off_the_workers<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runtime_of_one_thread_waits_in_place() {
        assert_eq!(off_the_workers(|| 7), 7);
    }
}
