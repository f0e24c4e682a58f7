//! Requests in flight to several members, whose answers are taken in the order of their arrival.
//!
//! Thread-safety: none; an operation owns the value.
//! Failure: a request without an answer ends as `None`. A request whose future is dropped may have
//! arrived.
//! Cost: each wake-up polls every request in flight, so the value suits tens of requests.

use std::future::poll_fn;
use std::task::Poll;

use archipelago_base::runtime::Boxed;

use super::super::StorageId;
use super::super::register::caspaxos::acceptor::AcceptorAnswer;

/// The answer of a member to a request, with the tag that the request has.
pub(super) struct MemberAnswer<T> {
    pub(super) from: StorageId,
    pub(super) tag: T,
    /// `None` if no answer came.
    pub(super) answer: Option<AcceptorAnswer>,
}

struct CallInFlight<'a, T> {
    to: StorageId,
    tag: T,
    answer: Boxed<'a, Option<AcceptorAnswer>>,
}

/// Requests in flight. The tag `T` distinguishes the requests of different rounds.
pub(super) struct CallsInFlight<'a, T>(Vec<CallInFlight<'a, T>>);

impl<'a, T: Copy> CallsInFlight<'a, T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn push(
        &mut self,
        to: StorageId,
        tag: T,
        answer: Boxed<'a, Option<AcceptorAnswer>>,
    ) {
        self.0.push(CallInFlight { to, tag, answer });
    }

    /// The next answer; `None` if no request is in flight.
    pub(super) async fn next(&mut self) -> Option<MemberAnswer<T>> {
        if self.0.is_empty() {
            return None;
        }
        poll_fn(|context| {
            for at in 0..self.0.len() {
                if let Poll::Ready(answer) = self.0[at].answer.as_mut().poll(context) {
                    let CallInFlight { to: from, tag, .. } = self.0.swap_remove(at);
                    return Poll::Ready(Some(MemberAnswer { from, tag, answer }));
                }
            }
            Poll::Pending
        })
        .await
    }
}
