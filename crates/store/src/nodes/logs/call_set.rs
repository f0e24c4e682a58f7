//! Calls that are under way together: each has a key, and the first one that ends is taken out.
//!
//! Thread-safety: none; a task owns the value.
//! Failure: none of its own. Dropping the set abandons the answers, not the calls.
//! Cost: every wake-up polls all calls, of which a task has a few.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use archipelago_base::runtime::Boxed;

/// Calls under way.
pub(super) struct CallSet<K, T> {
    running: Vec<(K, Boxed<'static, T>)>,
}

impl<K, T> Default for CallSet<K, T> {
    fn default() -> Self {
        Self { running: Vec::new() }
    }
}

impl<K, T> CallSet<K, T> {
    /// Adds a call. It begins with the next poll.
    pub(super) fn push(&mut self, key: K, call: Boxed<'static, T>) {
        self.running.push((key, call));
    }

    /// Whether no call is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The keys of the calls under way.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.running.iter().map(|(key, _)| key)
    }

    /// The first call that has ended. Pending if none has, or if there is none.
    pub(super) fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<(K, T)> {
        for at in 0..self.running.len() {
            if let Poll::Ready(output) = Pin::new(&mut self.running[at].1).poll(context) {
                let (key, _) = self.running.remove(at);
                return Poll::Ready((key, output));
            }
        }
        Poll::Pending
    }

    /// Waits until a call ends; `None` if there is none, or when `limit` is over.
    pub(super) async fn next_within(
        &mut self,
        mut limit: Option<&mut Boxed<'static, ()>>,
    ) -> Option<(K, T)> {
        if self.is_empty() {
            return None;
        }
        poll_fn(|context| {
            if let Poll::Ready(ended) = self.poll_ended(context) {
                return Poll::Ready(Some(ended));
            }
            match &mut limit {
                Some(limit) => Pin::new(&mut **limit).poll(context).map(|()| None),
                None => Poll::Pending,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::runtime::block_on;

    use super::CallSet;

    #[test]
    fn calls_end_in_the_order_of_their_answers() {
        let mut calls = CallSet::default();
        calls.push(
            "slow",
            Box::pin(async {
                let mut polls = 0;
                std::future::poll_fn(|context| {
                    polls += 1;
                    context.waker().wake_by_ref();
                    if polls > 3 { std::task::Poll::Ready(polls) } else { std::task::Poll::Pending }
                })
                .await
            }),
        );
        calls.push("quick", Box::pin(async { 1 }));
        assert_eq!(calls.keys().copied().collect::<Vec<_>>(), ["slow", "quick"]);
        assert_eq!(block_on(calls.next_within(None)), Some(("quick", 1)));
        assert_eq!(block_on(calls.next_within(None)), Some(("slow", 4)));
        assert_eq!(block_on(calls.next_within(None)), None);
    }
}
