//! A time limit for a future.
//!
//! Cost: nothing if the future is ready when it is polled first; otherwise a timer.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use archipelago_base::runtime::Runtime;

/// The output of a future; `None` if it takes longer than `limit`.
pub(super) async fn within<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    let (mut future, mut sleep) = (pin!(future), None);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        let sleep = sleep.get_or_insert_with(|| runtime.sleep(limit));
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}
