//! Two combinators of futures: a time limit, and running two futures in parallel.
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

/// The outputs of two futures that run at the same time.
pub(super) async fn both<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut other) = (None, None);
    poll_fn(|context| {
        if one.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            one = Some(output);
        }
        if other.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            other = Some(output);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (first, second) => {
                (one, other) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}
