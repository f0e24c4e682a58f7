//! Requests and answers over every provider: their single execution, deadlines, sizes and lost
//! links.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_fabric::{
    BULK_BYTES_MAX, Body, Call, Handler, INLINE_BYTES_MAX, Link, MESSAGE_BYTES_MAX, Promise,
    REQUESTS_MAX, RESERVED_BYTES_MAX, Reason, Refusal, Reply, Request, Session,
};
use parking_lot::Mutex;

use crate::world::{LONG, World, ask, block_on, until};

macro_rules! tests_over {
    ($provider:literal: $($test:ident)*) => { $(#[test] fn $test() { super::$test($provider); })* };
}

macro_rules! every_provider {
    ($($test:ident)* ; without delays: $($prompt:ident)*) => {
        mod shm { tests_over! { "shm": $($test)* $($prompt)* } }
        mod tcp { tests_over! { "tcp": $($test)* $($prompt)* } }
        mod paced { tests_over! { "paced": $($test)* $($prompt)* } }
        // A request with a short deadline may not leave an emulated card in time.
        mod emulated { tests_over! { "emulated": $($test)* } }
        mod sim { tests_over! { "sim": $($test)* $($prompt)* } }
        #[cfg(feature = "ofi")]
        mod ofi { tests_over! { "ofi": $($test)* $($prompt)* } }
    };
}

every_provider! {
    answers_of_any_size_come_back
    an_answer_may_come_later_and_out_of_order
    missing_handler_is_reported
    a_request_sent_again_is_executed_once
    a_retry_that_the_node_forgot_is_refused
    open_requests_are_bounded
    bulk_requests_and_answers_come_back
    size_beyond_its_limit_is_refused
    bulk_request_that_is_not_idempotent_has_a_kept_answer
    idempotent_requests_leave_nothing_at_the_node
    an_idempotent_request_is_executed_for_every_copy
    ; without delays:
    a_deadline_passes_for_threads_and_tasks
    bytes_of_open_bulk_requests_are_bounded
}

fn answers_of_any_size_come_back(name: &str) {
    let world = World::new(name);
    let link = world.link();
    for len in [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 5000, MESSAGE_BYTES_MAX] {
        let body: Vec<u8> = (0..len).map(|at| (at * 31) as u8).collect();
        let backwards: Vec<u8> = body.iter().rev().copied().collect();
        assert_eq!(*ask(&*link, &body).unwrap(), backwards, "{len} bytes");
    }
    let long = vec![0; MESSAGE_BYTES_MAX + 1];
    assert_eq!(ask(&*link, &long), Err(Reason::TooLarge));
    // The requests are larger together than any buffer between the two sides.
    let body = vec![7; MESSAGE_BYTES_MAX];
    let promises: Vec<_> = (0..32).map(|_| link.request(Call::new(&body, LONG))).collect();
    for promise in promises {
        assert_eq!(promise.wait().unwrap().len(), MESSAGE_BYTES_MAX);
    }
}

fn an_answer_may_come_later_and_out_of_order(name: &str) {
    let world = World::new(name);
    let link = world.link();
    let late: Vec<_> = (0..8).map(|_| link.request(Call::new(b"late", LONG))).collect();
    assert_eq!(&*ask(&*link, b"now").unwrap(), b"won");
    for promise in late.into_iter().rev() {
        assert_eq!(&*promise.wait().unwrap(), b"etal");
    }
}

fn missing_handler_is_reported(name: &str) {
    let world = World::new(name);
    assert_eq!(ask(&*world.link(), b"drop"), Err(Reason::Unanswered));
    let world = World::with_handler(name, None);
    assert_eq!(ask(&*world.link(), b"anybody?"), Err(Reason::Unanswered));
}

/// Keeps requests and answers them on demand. Counts executions.
#[derive(Clone, Default)]
struct Patient {
    executed: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<Reply>>>,
}

impl Handler for Patient {
    fn handle(&self, _request: Request<'_>, reply: Reply) {
        self.open.lock().push(reply);
        self.executed.fetch_add(1, Ordering::SeqCst);
    }
}

fn patient(name: &str) -> (World, Patient) {
    let patient = Patient::default();
    (World::with_handler(name, Some(Box::new(patient.clone()))), patient)
}

fn reason(answer: Result<Body, Refusal>) -> Result<Body, Reason> {
    answer.map_err(|refusal| refusal.reason)
}

fn a_deadline_passes_for_threads_and_tasks(name: &str) {
    let (world, patient) = patient(name);
    let link = world.link();
    let soon = || link.request(Call::new(b"?", Duration::from_millis(30)));
    assert_eq!(reason(soon().wait()), Err(Reason::Deadline));
    assert_eq!(reason(block_on(soon())), Err(Reason::Deadline));
    // A late answer belongs to no request any more, and the link continues.
    until("both were executed", || patient.executed.load(Ordering::SeqCst) == 2);
    for reply in std::mem::take(&mut *patient.open.lock()) {
        reply.send(&b"too late"[..]);
    }
    let promise = link.request(Call::new(b"?", LONG));
    link.flush();
    until("the third was executed", || patient.executed.load(Ordering::SeqCst) == 3);
    patient.open.lock().pop().unwrap().send(&b"in time"[..]);
    assert_eq!(&*promise.wait().unwrap(), b"in time");
}

fn send(link: &dyn Link, call: Call<'_>) -> Promise<Result<Body, Refusal>> {
    let promise = link.request(call);
    link.flush();
    promise
}

fn a_request_sent_again_is_executed_once(name: &str) {
    let (world, patient) = patient(name);
    let session = Session::fresh();
    let link = world.link_as(&session);
    let number = session.begin().unwrap();
    let call = Call::new(b"once", LONG);
    let first = send(&*link, call.numbered(number));
    until("it is being executed", || patient.executed.load(Ordering::SeqCst) == 1);
    link.close();
    assert_eq!(reason(first.wait()), Err(Reason::Disconnected));
    // The client sends the request again during its execution. The answer uses the new link.
    let link = world.link_as(&session);
    let second = send(&*link, call.again(number));
    until("the node knows it", || world.node.stats().duplicates == 1);
    patient.open.lock().pop().unwrap().send(&b"done"[..]);
    assert_eq!(&*second.wait().unwrap(), b"done");
    assert_eq!(patient.executed.load(Ordering::SeqCst), 1);
    // The client sends the request again after its execution, because the answer was lost.
    let number = session.begin().unwrap();
    let third = send(&*link, call.numbered(number));
    until("it is being executed", || patient.executed.load(Ordering::SeqCst) == 2);
    link.close();
    drop(third);
    patient.open.lock().pop().unwrap().send(&b"kept"[..]);
    let link = world.link_as(&session);
    assert_eq!(&*send(&*link, call.again(number)).wait().unwrap(), b"kept");
    assert_eq!(patient.executed.load(Ordering::SeqCst), 2, "nothing was executed twice");
}

fn a_retry_that_the_node_forgot_is_refused(name: &str) {
    let (world, patient) = patient(name);
    let session = Session::fresh();
    let number = session.begin().unwrap();
    let first = send(&*world.link_as(&session), Call::new(b"?", LONG).numbered(number));
    assert_eq!(reason(first.wait()), Err(Reason::Disconnected), "the link was dropped");
    // The other node does not know this client's requests.
    let other = World::new(name);
    let link = other.link_as(&session);
    let again = send(&*link, Call::new(b"?", LONG).again(number)).wait();
    assert_eq!(reason(again), Err(Reason::Forgotten));
    assert_eq!(&*ask(&*link, b"ab").unwrap(), b"ba", "new requests are executed");
    drop(patient);
}

fn open_requests_are_bounded(name: &str) {
    let (world, patient) = patient(name);
    let link = world.link();
    let open: Vec<_> = (0..REQUESTS_MAX).map(|_| link.request(Call::new(b"?", LONG))).collect();
    assert_eq!(reason(link.request(Call::new(b"?", LONG)).wait()), Err(Reason::Full));
    link.flush();
    until("all are executed", || patient.executed.load(Ordering::SeqCst) == REQUESTS_MAX as u64);
    for reply in std::mem::take(&mut *patient.open.lock()) {
        reply.send(&b"!"[..]);
    }
    for promise in open {
        assert_eq!(&*promise.wait().unwrap(), b"!");
    }
    let again = link.request(Call::new(b"?", Duration::from_millis(1)));
    assert_eq!(reason(again.wait()), Err(Reason::Deadline), "there is room again");
}

fn bulk_requests_and_answers_come_back(name: &str) {
    let world = World::new(name);
    let link = world.link();
    for len in [0, MESSAGE_BYTES_MAX + 1, BULK_BYTES_MAX - 1, BULK_BYTES_MAX] {
        let body: Vec<u8> = (0..len).map(|at| (at * 31) as u8).collect();
        let backwards: Vec<u8> = body.iter().rev().copied().collect();
        let call = Call::new(&body, LONG).bulk().idempotent();
        assert_eq!(*link.request(call).wait().unwrap(), backwards, "{len} bytes");
        let (head, payload) = body.split_at(len / 3);
        let parts = Call::new(head, LONG).with_payload(payload).bulk().idempotent();
        assert_eq!(*link.request(parts).wait().unwrap(), backwards, "{len} bytes in two parts");
    }
    // More bytes than any buffer between the two sides holds, in both directions.
    let body = vec![7; 1 << 20];
    let call = Call::new(&body, LONG).bulk().idempotent().answer_bytes_max(1 << 20);
    let promises: Vec<_> = (0..16).map(|_| link.request(call)).collect();
    for promise in promises {
        assert_eq!(promise.wait().unwrap().len(), 1 << 20);
    }
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba", "the link continues");
}

fn size_beyond_its_limit_is_refused(name: &str) {
    let (world, patient) = patient(name);
    let link = world.link();
    let long = vec![0; BULK_BYTES_MAX + 1];
    let message = Refusal::at(Reason::TooLarge, MESSAGE_BYTES_MAX as u64);
    let bulk = Refusal::at(Reason::TooLarge, BULK_BYTES_MAX as u64);
    let over = |call: Call<'_>| link.request(call).wait().unwrap_err();
    assert_eq!(over(Call::new(&long[..=MESSAGE_BYTES_MAX], LONG).idempotent()), message);
    assert_eq!(over(Call::new(&long, LONG).bulk().idempotent()), bulk);
    let (head, payload) = long.split_at(9);
    assert_eq!(over(Call::new(head, LONG).with_payload(payload).bulk().idempotent()), bulk);
    let small = Call::new(b"?", LONG);
    assert_eq!(over(small.bulk().answer_bytes_max(MESSAGE_BYTES_MAX + 1)), message, "it is kept");
    assert_eq!(over(small.bulk().idempotent().answer_bytes_max(BULK_BYTES_MAX + 1)), bulk);
    assert_eq!(patient.executed.load(Ordering::SeqCst), 0, "nothing was sent");
    // The node refuses an answer that is longer than the request permits.
    let short = send(&*link, small.idempotent().answer_bytes_max(3));
    until("it is being executed", || patient.executed.load(Ordering::SeqCst) == 1);
    patient.open.lock().pop().unwrap().send(&b"four"[..]);
    assert_eq!(short.wait(), Err(Refusal::at(Reason::TooLarge, 3)));
    assert_eq!(world.node.stats().kept_requests, 0);
}

/// Answers with the length of the request.
struct Length;

impl Handler for Length {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        reply.send(&(request.body.len() as u64).to_le_bytes()[..]);
    }
}

fn bulk_request_that_is_not_idempotent_has_a_kept_answer(name: &str) {
    let world = World::with_handler(name, Some(Box::new(Length)));
    let link = world.link();
    let body = vec![3; BULK_BYTES_MAX];
    for _ in 0..4 {
        let answer = link.request(Call::new(&body, LONG).bulk()).wait().unwrap();
        assert_eq!(*answer, (BULK_BYTES_MAX as u64).to_le_bytes());
    }
    let stats = world.node.stats();
    assert_eq!((stats.kept_requests, stats.kept_bytes), (1, 8), "the last one is unconfirmed");
}

fn idempotent_requests_leave_nothing_at_the_node(name: &str) {
    let (world, patient) = patient(name);
    let link = world.link();
    // Far more requests than a session may have open numbers.
    let many = REQUESTS_MAX * 8;
    let call = Call::new(b"?", LONG).idempotent().answer_bytes_max(1 << 10);
    let open: Vec<_> = (0..many).map(|_| link.request(call)).collect();
    link.flush();
    until("all are executed", || patient.executed.load(Ordering::SeqCst) == many as u64);
    let kept = || (world.node.stats().kept_requests, world.node.stats().kept_bytes);
    assert_eq!(kept(), (0, 0), "while they are executed");
    for reply in std::mem::take(&mut *patient.open.lock()) {
        reply.send(vec![1; 1 << 10]);
    }
    for promise in open {
        assert_eq!(promise.wait().unwrap().len(), 1 << 10);
    }
    assert_eq!(kept(), (0, 0), "after their answers");
    // An ordinary request in parallel with them is remembered until the client confirms its answer.
    let once = send(&*link, Call::new(b"?", LONG));
    until("it is being executed", || patient.executed.load(Ordering::SeqCst) > many as u64);
    patient.open.lock().pop().unwrap().send(&b"once"[..]);
    once.wait().unwrap();
    assert_eq!(kept(), (1, 4));
}

fn an_idempotent_request_is_executed_for_every_copy(name: &str) {
    let (world, patient) = patient(name);
    let session = Session::fresh();
    let link = world.link_as(&session);
    let call = Call::new(b"again and again", LONG).idempotent();
    let first = send(&*link, call);
    until("it is being executed", || patient.executed.load(Ordering::SeqCst) == 1);
    link.close();
    assert_eq!(reason(first.wait()), Err(Reason::Disconnected));
    // The answer to a link that is down is lost, and no other link gets it.
    let link = world.link_as(&session);
    let second = send(&*link, call);
    until("it is executed again", || patient.executed.load(Ordering::SeqCst) == 2);
    let mut replies = std::mem::take(&mut *patient.open.lock());
    replies.remove(0).send(&b"to nobody"[..]);
    replies.remove(0).send(&b"second"[..]);
    assert_eq!(&*second.wait().unwrap(), b"second");
    assert_eq!(world.node.stats().duplicates, 0);
    // A reply that is dropped is reported, as for every request.
    let third = send(&*link, call);
    until("it is executed", || patient.executed.load(Ordering::SeqCst) == 3);
    patient.open.lock().clear();
    assert_eq!(reason(third.wait()), Err(Reason::Unanswered));
}

fn bytes_of_open_bulk_requests_are_bounded(name: &str) {
    let (world, patient) = patient(name);
    let link = world.link();
    let call = Call::new(b"?", LONG).idempotent().bulk();
    let fit = RESERVED_BYTES_MAX / (BULK_BYTES_MAX + 1);
    let open: Vec<_> = (0..fit).map(|_| link.request(call)).collect();
    let full = Refusal::at(Reason::Full, RESERVED_BYTES_MAX as u64);
    assert_eq!(link.request(call).wait(), Err(full));
    // Requests that reserve nothing are not delayed.
    let small = send(&*link, Call::new(b"?", LONG));
    until("all are executed", || patient.executed.load(Ordering::SeqCst) == fit as u64 + 1);
    for reply in std::mem::take(&mut *patient.open.lock()) {
        reply.send(&b"!"[..]);
    }
    for promise in open.into_iter().chain([small]) {
        assert_eq!(&*promise.wait().unwrap(), b"!");
    }
    let brief = Call::new(b"?", Duration::from_millis(1)).idempotent().bulk();
    assert_eq!(reason(link.request(brief).wait()), Err(Reason::Deadline), "there is room again");
    // The client has given its reservation back, but the node still executes the request.
    let more: Vec<_> = (0..fit).map(|_| link.request(call)).collect();
    link.flush();
    let done = 2 * fit as u64 + 1;
    until("one is refused", || world.node.stats().refused == 1);
    until("the others run", || patient.executed.load(Ordering::SeqCst) == done);
    for reply in std::mem::take(&mut *patient.open.lock()) {
        reply.send(&b"!"[..]);
    }
    let answers: Vec<_> = more.into_iter().map(|promise| reason(promise.wait())).collect();
    assert_eq!(answers.iter().filter(|answer| **answer == Err(Reason::Full)).count(), 1);
}
