//! Requests and answers of the simulation, which are messages of their own. The network may lose,
//! double and reorder them. The link sends a lost message again. The node knows which requests it
//! has executed, and executes every copy of an idempotent one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::simulation::Life;

use super::lane::Way;
use super::network::Crossing;
use super::wire::{Number, What, Wire};
use crate::body::Body;
use crate::link::{Call, Repeats, Session};
use crate::node::{Answer, Delivery, LinkEnd, Question, Request};
use crate::promise::{Promise, Slot};
use crate::refusal::{Reason, Refusal};

/// A request that is in flight.
pub(super) struct Asked {
    question: Question,
    oldest: u64,
    retry: bool,
    /// Whether the number stays open if the outcome is unknown.
    keep: bool,
    deadline: Duration,
    answer_bytes_max: usize,
    pub(super) reserved_bytes: usize,
    body: Body,
    losses: AtomicU32,
    slot: Arc<Slot<Answer>>,
}

impl Asked {
    pub(super) fn complete(&self, session: &Session, answer: Answer) {
        let unknown = |refusal: &Refusal| {
            matches!(refusal.reason, Reason::Full | Reason::Deadline | Reason::Disconnected)
        };
        let again = answer.as_ref().is_err_and(unknown);
        if let Question::Once(number) = self.question {
            session.completed(number, self.keep && again);
        }
        self.slot.fill(answer);
    }
}

/// The number of a request among the operations in flight.
fn number_of(question: Question) -> Number {
    match question {
        Question::Once(number) => Number::Request(number),
        Question::Idempotent(number) => Number::Own(number),
    }
}

impl Wire {
    pub(super) fn request(self: &Arc<Self>, call: Call<'_>) -> Promise<Answer> {
        self.try_request(call).unwrap_or_else(|refusal| Promise::ready(Err(refusal)))
    }

    fn try_request(self: &Arc<Self>, call: Call<'_>) -> Result<Promise<Answer>, Refusal> {
        let size = call.size()?;
        let (question, keep, retry) = match call.repeats {
            Repeats::Fresh => (Question::Once(self.session.begin()?), false, false),
            Repeats::Numbered { number, retry } => (Question::Once(number), true, retry),
            Repeats::Idempotent => (Question::Idempotent(self.next_own()), false, false),
        };
        let slot = Slot::new();
        let asked = Arc::new(Asked {
            question,
            oldest: self.session.oldest(),
            retry,
            keep,
            deadline: call.deadline,
            answer_bytes_max: size.answer_bytes_max,
            reserved_bytes: size.reserved_bytes,
            body: Body::copy(&call.whole_body()),
            losses: AtomicU32::new(0),
            slot: Arc::clone(&slot),
        });
        let what = What::Request(Arc::clone(&asked));
        if let Err(refusal) = self.expect(number_of(question), Some(call.deadline), what) {
            if let Question::Once(number) = question {
                self.session.completed(number, keep);
            }
            return Err(refusal);
        }
        self.ask(&asked);
        Ok(self.promise(slot))
    }

    /// Time at which a message of `bytes` bytes that `from` sends now leaves its card.
    fn leaves_ps(&self, from: Life, bytes: usize) -> u64 {
        let now_ps = self.network.now_ps();
        self.network.on(from.host, |machine| {
            let made_ps = machine.threads.take(now_ps, machine.model.message_ps);
            let verb_ps = machine.model.outbound.message_ps;
            machine.outbound.take(made_ps, machine.model.packet_ps(verb_ps, bytes as u64))
        })
    }

    /// Handles a message of `bytes` that has reached the card of `to`. `then` runs after a thread
    /// has received it.
    fn received(&self, to: Life, bytes: usize, then: impl FnOnce() + Send + 'static) {
        let now_ps = self.network.now_ps();
        let received_ps = self.network.on(to.host, |machine| {
            let verb_ps = machine.model.inbound.message_ps;
            machine.inbound.take(now_ps, machine.model.packet_ps(verb_ps, bytes as u64))
        });
        let network = Arc::clone(&self.network);
        let thread = move || {
            let now_ps = network.now_ps();
            let done_ps = network
                .on(to.host, |machine| machine.threads.take(now_ps, machine.model.message_ps));
            if done_ps == now_ps {
                return then();
            }
            network.scheduler.at(done_ps.div_ceil(1000), to, then);
        };
        if received_ps == now_ps {
            return thread();
        }
        self.network.scheduler.at(received_ps.div_ceil(1000), to, thread);
    }

    /// Sends a request, for the first time or again.
    fn ask(self: &Arc<Self>, asked: &Arc<Asked>) {
        let bytes = asked.body.len();
        self.count_packet(bytes as u64);
        let ready_ps = self.leaves_ps(self.near, bytes);
        let scheduler = &self.network.scheduler;
        match self.network.cross(self.near, self.far, ready_ps) {
            Crossing::Arrives { at_ns, again_ns } => {
                let at_ns = self.in_turn(Way::There, at_ns);
                for at_ns in [Some(at_ns), again_ns].into_iter().flatten() {
                    let (wire, asked) = (Arc::clone(self), Arc::clone(asked));
                    scheduler.at(at_ns, self.far, move || wire.hear(asked));
                }
            }
            Crossing::Lost => self.ask_again_after(asked.question, ready_ps),
            Crossing::Reset => self.broken(),
        }
    }

    /// Plans to send a request again, because the request or its answer was lost.
    fn ask_again_after(self: &Arc<Self>, question: Question, ready_ps: u64) {
        let transport = self.network.transport();
        let wire = Arc::clone(self);
        let again = move || {
            let Some(asked) = wire.asked(number_of(question)) else { return };
            if asked.losses.fetch_add(1, Ordering::Relaxed) >= transport.tries {
                return wire.broken();
            }
            wire.ask(&asked);
        };
        self.network.scheduler.at(ready_ps / 1000 + transport.again_ns, self.near, again);
    }

    /// Handles a request that has reached the node's card.
    fn hear(self: &Arc<Self>, asked: Arc<Asked>) {
        let wire = Arc::clone(self);
        self.received(self.far, asked.body.len(), move || wire.handle(&asked));
    }

    fn handle(self: &Arc<Self>, asked: &Asked) {
        if !self.serves() {
            return;
        }
        let (Question::Once(number) | Question::Idempotent(number)) = asked.question;
        self.network.scheduler.record(number);
        let (client, deadline, body) = (self.session.client(), asked.deadline, &*asked.body);
        let answer_bytes_max = asked.answer_bytes_max;
        let request = Request { client, number, deadline, answer_bytes_max, body };
        let known = match asked.question {
            Question::Once(_) => {
                let (arrival, oldest, retry) = (self.arrival(), asked.oldest, asked.retry);
                let delivery = Delivery { arrival, oldest, retry };
                self.node.request(request, delivery, &self.budget)
            }
            Question::Idempotent(_) => {
                let me = Arc::downgrade(self);
                let link: Weak<dyn LinkEnd> = me;
                self.node.idempotent(request, link, &self.budget)
            }
        };
        if let Some(answer) = known {
            self.send_answer(asked.question, &answer);
        }
    }

    pub(super) fn send_answer(self: &Arc<Self>, question: Question, answer: &Answer) {
        let scheduler = &self.network.scheduler;
        if !scheduler.lives(self.far) {
            return;
        }
        let bytes = answer.as_ref().map_or(0, |body| body.len());
        let ready_ps = self.leaves_ps(self.far, bytes);
        match self.network.cross(self.far, self.near, ready_ps) {
            Crossing::Arrives { at_ns, again_ns } => {
                let at_ns = self.in_turn(Way::Back, at_ns);
                for at_ns in [Some(at_ns), again_ns].into_iter().flatten() {
                    let (wire, answer) = (Arc::clone(self), answer.clone());
                    scheduler.at(at_ns, self.near, move || wire.answered(question, answer));
                }
            }
            Crossing::Lost => self.ask_again_after(question, ready_ps),
            Crossing::Reset => {}
        }
    }

    /// Handles an answer that has reached the client's card.
    fn answered(self: &Arc<Self>, question: Question, answer: Answer) {
        let (wire, bytes) = (Arc::clone(self), answer.as_ref().map_or(0, |body| body.len()));
        self.received(self.near, bytes, move || {
            if let Some(What::Request(asked)) = wire.landed(number_of(question)) {
                asked.complete(&wire.session, answer);
            }
        });
    }
}
