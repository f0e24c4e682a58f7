//! A node's end of a card: requests arrive, and answers leave, at the card's pace.
//!
//! The handler does not know the class of a request, so all requests and answers are foreground
//! messages. Clients take turns. One-sided operations do not pass the handler, so the card of a
//! node does not delay them.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a request that waits beyond its deadline is not handled, and is refused with
//! [`Reason::Deadline`](crate::Reason::Deadline).
//! Cost: a card without delays only counts bytes; other cards copy the request.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Action, CardCore, Direction, HEADER_BYTES, refusal};
use super::schedule::{Message, StreamKey};
use crate::ids::ClientId;
use crate::node::{Handler, Outlet, Reply, Request};
use crate::traffic::TrafficClass;

/// Class of everything that a node's card counts.
const CLASS: TrafficClass = TrafficClass::Foreground;

/// A handler behind a card.
pub(super) struct PacedHandler {
    core: Arc<CardCore>,
    inner: Arc<dyn Handler>,
}

impl PacedHandler {
    pub(super) fn new(core: &Arc<CardCore>, inner: Box<dyn Handler>) -> Self {
        Self { core: Arc::clone(core), inner: Arc::from(inner) }
    }
}

impl Handler for PacedHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let bytes = HEADER_BYTES + request.body.len() as u64;
        let reply = reply.through(Arc::clone(&self.core) as Arc<dyn Outlet>);
        if !self.core.delays(Direction::In) {
            self.core.count(Direction::In, CLASS, bytes);
            return self.inner.handle(request, reply);
        }
        let Request { client, number, deadline, answer_bytes_max, body } = request;
        let (core, inner, body) = (Arc::clone(&self.core), Arc::clone(&self.inner), body.to_vec());
        let ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = core.now_ns().saturating_add(ns);
        let action = Action::new(move |exit| {
            if let Some(refusal) = refusal(exit) {
                return reply.refuse(refusal);
            }
            let left_ns = deadline_ns.saturating_sub(core.now_ns());
            let deadline = Duration::from_nanos(left_ns);
            let body = &body;
            let request = Request { client, number, deadline, answer_bytes_max, body };
            inner.handle(request, reply);
        });
        let message = Message {
            class: CLASS,
            stream: StreamKey::Client(client.0),
            bytes,
            room_bytes: 0,
            deadline_ns,
            payload: action,
        };
        self.core.submit(Direction::In, message);
    }
}

impl Outlet for CardCore {
    fn passes(&self, bytes: usize) -> bool {
        if self.delays(Direction::Out) {
            return false;
        }
        self.count(Direction::Out, CLASS, HEADER_BYTES + bytes as u64);
        true
    }

    fn queue(&self, client: ClientId, bytes: usize, deliver: Box<dyn FnOnce() + Send>) {
        let action = Action::new(move |_| deliver());
        let message = Message {
            class: CLASS,
            stream: StreamKey::Client(client.0),
            bytes: HEADER_BYTES + bytes as u64,
            room_bytes: 0,
            deadline_ns: u64::MAX,
            payload: action,
        };
        self.submit(Direction::Out, message);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use archipelago_base::Epoch;

    use super::super::{Card, CardSettings};
    use super::*;
    use crate::ids::NodeId;
    use crate::node::{Answer, Delivery, LinkBudget, LinkEnd, Node, Question};
    use crate::refusal::{Reason, Refusal};

    /// A handler that gives no answers.
    struct Silent;

    impl Handler for Silent {
        fn handle(&self, _request: Request<'_>, _reply: Reply) {}
    }

    /// A link that passes answers on.
    struct Heard(Sender<Answer>);

    impl LinkEnd for Heard {
        fn answer(&self, _question: Question, answer: &Answer) {
            let _sent = self.0.send(answer.clone());
        }

        fn close(&self, _refusal: Refusal) {}
    }

    #[test]
    fn request_that_is_late_at_the_card_names_its_deadline() {
        let settings = CardSettings { latency: Duration::from_secs(1), ..CardSettings::default() };
        let card = Card::on_thread(&settings).expect("a card");
        let handler = card.handler(Box::new(Silent));
        let node = Node::new(NodeId(1), Epoch(1), Some(handler)).expect("a node");
        let (sender, answers) = channel();
        let end: Arc<dyn LinkEnd> = Arc::new(Heard(sender));
        let client = ClientId(7);
        let arrival = node.arrive(client, &end, false).expect("room");
        let deadline = Duration::from_millis(1);
        let request = Request { client, number: 1, deadline, answer_bytes_max: 4, body: b"late" };
        let (delivery, budget) =
            (Delivery { arrival, oldest: 1, retry: false }, Arc::new(LinkBudget::default()));
        assert_eq!(node.request(request, delivery, &budget), None);
        let answer = answers.recv_timeout(Duration::from_secs(60)).expect("an answer");
        assert_eq!(answer, Err(Reason::Deadline.into()));
    }
}
