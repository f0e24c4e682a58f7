//! Futures in flight whose outputs are taken in the order in which they complete. They are polled
//! first in the order in which they were added.
//!
//! Thread-safety: none; a task owns the value.
//! Failure: a future that is dropped with the value is abandoned.
//! Cost: each wake-up polls every future, so the value suits tens of them.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use archipelago_base::runtime::Boxed;

/// Futures in flight, with a tag each.
pub(super) struct InFlight<'a, K, T>(Vec<(K, Boxed<'a, T>)>);

impl<'a, K: Unpin, T> InFlight<'a, K, T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn push(&mut self, tag: K, future: Boxed<'a, T>) {
        self.0.push((tag, future));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The tags of the futures in flight.
    pub(super) fn tags_mut(&mut self) -> impl Iterator<Item = &mut K> {
        self.0.iter_mut().map(|(tag, _)| tag)
    }

    /// The next output; `None` if no future is in flight.
    pub(super) async fn next(&mut self) -> Option<(K, T)> {
        if self.0.is_empty() {
            return None;
        }
        poll_fn(|context| {
            for at in 0..self.0.len() {
                if let Poll::Ready(output) = self.0[at].1.as_mut().poll(context) {
                    // The others keep their order, in which they are polled first.
                    let (tag, _) = self.0.remove(at);
                    return Poll::Ready(Some((tag, output)));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The first of two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First<A, B> {
    /// The first future completed first, or both did.
    One(A),
    /// The second future completed first.
    Other(B),
}

/// Awaits the first output of two futures. The other future goes on if the caller keeps it.
pub(super) async fn first<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> First<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if let Poll::Ready(output) = Pin::as_mut(&mut one).poll(context) {
            return Poll::Ready(First::One(output));
        }
        Pin::as_mut(&mut other).poll(context).map(First::Other)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use archipelago_base::runtime::{Runtime, wait_for};
    use archipelago_base::simulation::Simulation;

    use super::*;

    #[test]
    fn outputs_come_in_the_order_of_completion() {
        let simulation = Simulation::new(1);
        let host = simulation.host("client");
        let ended = wait_for(&host, async {
            let mut calls = InFlight::new();
            for (tag, ms) in [('a', 3), ('b', 1), ('c', 2)] {
                calls.push(tag, host.sleep(Duration::from_millis(ms)));
            }
            let mut ended = Vec::new();
            while let Some((tag, ())) = calls.next().await {
                ended.push(tag);
            }
            ended
        });
        assert_eq!(ended, ['b', 'c', 'a']);
    }

    #[test]
    fn first_output_wins() {
        let simulation = Simulation::new(1);
        let host = simulation.host("client");
        let mut long = host.sleep(Duration::from_millis(5));
        let outcome = wait_for(&host, first(&mut long, host.sleep(Duration::from_millis(1))));
        assert_eq!(outcome, First::Other(()));
        assert_eq!(wait_for(&host, first(long, std::future::pending::<()>())), First::One(()));
    }
}
