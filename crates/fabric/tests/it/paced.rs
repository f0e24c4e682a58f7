//! Tests of cards: rates in virtual time, the order of classes, and the bound on background bytes
//! in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::runtime::{Runtime, join_all};
use archipelago_base::simulation::Host;
use archipelago_base::{Epoch, Result};
use archipelago_fabric::paced::{Card, CardSettings, Paced, Traffic};
use archipelago_fabric::sim::{Model, Sim};
use archipelago_fabric::{
    Call, Handler, Link, Node, NodeId, Promise, Provider, Reach, Reason, Reply, Request, Session,
    Tcp, TrafficClass,
};
use parking_lot::Mutex;

use crate::world::{LONG, Virtual, World, to, until};

const MIB: u64 = 1 << 20;
const RATE: u64 = 10_000_000;

/// Answers with the number of bytes that the request asks for in its first four.
struct SizedAnswers;

impl Handler for SizedAnswers {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let len = u32::from_le_bytes(request.body[..4].try_into().unwrap());
        reply.send(vec![7; len as usize]);
    }
}

/// A request of `out` bytes whose answer has `back` bytes.
fn body(out: usize, back: u32) -> Vec<u8> {
    let mut body = vec![0; out];
    body[..4].copy_from_slice(&back.to_le_bytes());
    body
}

fn card_of(host: &Host, settings: &CardSettings) -> Card {
    let runtime: Arc<dyn Runtime> = Arc::new(host.clone());
    Card::over(settings, &runtime).unwrap()
}

/// A node in a simulated world, and a provider behind a card.
struct Simulated {
    made: Virtual,
    _node: Arc<Node>,
    _listener: Box<dyn archipelago_fabric::Listener>,
    card: Card,
    paced: Arc<Paced<Sim>>,
}

impl Simulated {
    fn new(settings: &CardSettings, node_settings: Option<&CardSettings>) -> Self {
        let made = Virtual::new(1, &Model::quick());
        let handler: Box<dyn Handler> = match node_settings {
            Some(settings) => card_of(&made.node_host, settings).handler(Box::new(SizedAnswers)),
            None => Box::new(SizedAnswers),
        };
        let node = made.network.node(NodeId(1), Epoch(1), Some(handler)).unwrap();
        let listener = made.there.serve(&node, "node").unwrap();
        let card = card_of(&made.client_host, settings);
        let paced = Arc::new(Paced::new(Arc::new(made.here.clone()), &card));
        Self { made, _node: node, _listener: listener, card, paced }
    }

    /// Runs `task` with a number of links on the client's host.
    fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        links: usize,
        task: impl FnOnce(Vec<Arc<dyn Link>>, Host) -> F + Send + 'static,
    ) -> T {
        let (paced, host) = (Arc::clone(&self.paced), self.made.client_host.clone());
        let sessions: Vec<_> = (0..links).map(|_| self.made.network.session()).collect();
        let running = self.made.client_host.spawn("client", async move {
            let mut all = Vec::new();
            for session in &sessions {
                let at = ["node".to_owned()];
                all.push(Reach::connect(&*paced, &at, session, None, LONG).await?);
            }
            let done: Result<T> = Ok(task(all, host).await);
            done
        });
        self.made.simulation.block_on(running).unwrap().unwrap()
    }
}

/// Sends `count` requests in parallel over each link, and returns how long they take.
async fn exchange(links: Vec<Arc<dyn Link>>, host: Host, sizes: (usize, u32)) -> u64 {
    let began_ns = host.scheduler().now_ns();
    let body = body(sizes.0, sizes.1);
    let asked: Vec<_> = links
        .iter()
        .flat_map(|link| (0..32).map(|_| link.request(Call::new(&body, LONG))).collect::<Vec<_>>())
        .collect();
    for answer in join_all(asked).await {
        assert_eq!(answer.unwrap().len(), sizes.1 as usize);
    }
    host.scheduler().now_ns() - began_ns
}

/// Checks that a time is at least the time that the rate requires, and exceeds it by at most 3 %.
fn assert_rate(took_ns: u64, bytes: u64) {
    let expected_ns = bytes * 1_000_000_000 / RATE;
    let most_ns = expected_ns * 103 / 100;
    assert!((expected_ns..most_ns).contains(&took_ns), "{took_ns} ns instead of {expected_ns}");
}

#[test]
fn card_sends_at_its_rate_over_all_links() {
    let settings = CardSettings { out_bytes_per_s: RATE, ..CardSettings::default() };
    let world = Simulated::new(&settings, None);
    let took_ns = world.run(4, |links, host| exchange(links, host, (16 << 10, 4)));
    assert_rate(took_ns, 128 * (16 << 10));
    let sent = world.card.stats().sent(TrafficClass::Foreground);
    assert_eq!((sent.messages, sent.bytes), (128, 128 * ((16 << 10) + 64)));
    assert_eq!(world.card.stats().queued, 0);
}

#[test]
fn card_receives_at_its_rate_over_all_links() {
    let settings = CardSettings { in_bytes_per_s: RATE, ..CardSettings::default() };
    let world = Simulated::new(&settings, None);
    let took_ns = world.run(4, |links, host| exchange(links, host, (4, 16 << 10)));
    assert_rate(took_ns, 128 * (16 << 10));
    let received = world.card.stats().received(TrafficClass::Foreground);
    assert_eq!(received.bytes, 128 * ((16 << 10) + 64));
}

#[test]
fn limit_per_stream_holds_for_each_link() {
    let settings = CardSettings {
        out_bytes_per_s: 10 * RATE,
        stream_bytes_per_s: RATE,
        ..CardSettings::default()
    };
    for links in [1, 4] {
        let world = Simulated::new(&settings, None);
        let took_ns = world.run(links, |links, host| exchange(links, host, (64 << 10, 4)));
        assert_rate(took_ns, 32 * (64 << 10));
    }
}

#[test]
fn card_of_a_node_paces_requests_and_answers() {
    let node = CardSettings { out_bytes_per_s: RATE, ..CardSettings::default() };
    let world = Simulated::new(&CardSettings::default(), Some(&node));
    let took_ns = world.run(2, |links, host| exchange(links, host, (4, 32 << 10)));
    assert_rate(took_ns, 64 * (32 << 10));
    let node = CardSettings { in_bytes_per_s: RATE, ..CardSettings::default() };
    let world = Simulated::new(&CardSettings::default(), Some(&node));
    let took_ns = world.run(2, |links, host| exchange(links, host, (32 << 10, 4)));
    assert_rate(took_ns, 64 * (32 << 10));
}

#[test]
fn latency_is_added_in_each_direction() {
    let settings = CardSettings { latency: Duration::from_millis(1), ..CardSettings::default() };
    let world = Simulated::new(&settings, None);
    let took_ns = world.run(1, async |links, host| {
        let began_ns = host.scheduler().now_ns();
        links[0].request(Call::new(&body(100, 100), LONG)).await.unwrap();
        host.scheduler().now_ns() - began_ns
    });
    assert!((2_000_000..2_100_000).contains(&took_ns), "{took_ns}");
}

#[test]
fn log_append_overtakes_background_data() {
    let settings = CardSettings { out_bytes_per_s: RATE, ..CardSettings::default() };
    let world = Simulated::new(&settings, None);
    let (log_ns, background_ns) = world.run(2, async |links, host| {
        let (flush, log) = (body(200 << 10, 4), body(4 << 10, 4));
        let began_ns = host.scheduler().now_ns();
        let background: Vec<_> = (0..8)
            .map(|_| links[0].request(Call::new(&flush, LONG).in_class(TrafficClass::Flush)))
            .collect();
        host.scheduler().sleep(Duration::from_millis(50)).await;
        let mut log_ns = 0;
        for link in &links {
            let sent_ns = host.scheduler().now_ns();
            let call = Call::new(&log, LONG).in_class(TrafficClass::Log);
            link.request(call).await.unwrap();
            log_ns = log_ns.max(host.scheduler().now_ns() - sent_ns);
        }
        for answer in join_all(background).await {
            answer.unwrap();
        }
        (log_ns, host.scheduler().now_ns() - began_ns)
    });
    // A slice of 16 KiB takes 1.6 ms, and the append itself 0.4 ms.
    assert!(log_ns < 2_500_000, "the log waited {log_ns} ns");
    assert_rate(background_ns, 8 * (200 << 10) + 2 * (4 << 10));
}

/// Keeps requests and answers them on demand.
#[derive(Clone, Default)]
struct Patient {
    executed: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<Reply>>>,
}

impl Patient {
    fn wait_for(&self, executed: u64) {
        until("requests arrive", || self.executed.load(Ordering::SeqCst) == executed);
    }

    fn answer_all(&self) {
        for reply in std::mem::take(&mut *self.open.lock()) {
            reply.send(&b"!"[..]);
        }
    }
}

impl Handler for Patient {
    fn handle(&self, _request: Request<'_>, reply: Reply) {
        self.open.lock().push(reply);
        self.executed.fetch_add(1, Ordering::SeqCst);
    }
}

/// A link over TCP behind a card that only bounds background data, to a handler that waits.
struct Bounded {
    patient: Patient,
    card: Card,
    link: Arc<dyn Link>,
    _world: World,
}

impl Bounded {
    fn new() -> Self {
        let patient = Patient::default();
        let world = World::with_handler("tcp", Some(Box::new(patient.clone())));
        let settings =
            CardSettings { background_in_flight_bytes: MIB / 2, ..CardSettings::default() };
        let card = Card::on_thread(&settings).unwrap();
        let paced = Paced::new(Arc::new(Tcp::new()), &card);
        let to = to(world.listener.address(), &Session::fresh());
        let link = Provider::connect(&paced, to).wait().unwrap();
        Self { patient, card, link, _world: world }
    }

    /// Sends background data, of which two messages fit in flight.
    fn send(&self, class: TrafficClass, deadline: Duration) -> Promise<Asked> {
        let promise = self.link.request(Call::new(&vec![1; 200 << 10], deadline).in_class(class));
        self.link.flush();
        promise
    }
}

type Asked = std::result::Result<archipelago_fabric::Body, archipelago_fabric::Refusal>;

#[test]
fn background_in_flight_is_bounded_and_the_log_passes() {
    let bounded = Bounded::new();
    let background: Vec<_> = (0..6).map(|_| bounded.send(TrafficClass::Compaction, LONG)).collect();
    bounded.patient.wait_for(2);
    let log = bounded.send(TrafficClass::Log, LONG);
    let read = bounded.send(TrafficClass::Foreground, LONG);
    bounded.patient.wait_for(4);
    assert_eq!(bounded.card.stats().queued, 4, "background data waits");
    // A message has 64 bytes of headers.
    let bytes = (200 << 10) + 64;
    let stats = bounded.card.stats();
    let waiting = Traffic { messages: 4, bytes: 4 * bytes };
    assert_eq!(stats.waiting(TrafficClass::Compaction), waiting);
    assert_eq!(stats.waiting(TrafficClass::Log), Traffic::default(), "it has passed");
    assert_eq!(stats.background_in_flight_bytes, 2 * bytes);
    for promise in background.into_iter().chain([log, read]) {
        assert_eq!(&*answered(&bounded.patient, promise), b"!");
    }
    let stats = bounded.card.stats();
    assert_eq!(stats.sent(TrafficClass::Compaction).messages, 6);
    assert_eq!(stats.received(TrafficClass::Log).messages, 1);
    assert_eq!((stats.queued, stats.background_in_flight_bytes), (0, 0));
    assert_eq!(stats.waiting(TrafficClass::Compaction), Traffic::default());
}

/// Waits for a promise on another thread, while this thread answers the requests that arrive.
fn answered(patient: &Patient, promise: Promise<Asked>) -> archipelago_fabric::Body {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| promise.wait());
        until("an answer", || {
            patient.answer_all();
            waiting.is_finished()
        });
        waiting.join().unwrap().unwrap()
    })
}

#[test]
fn waiting_background_message_completes_at_its_deadline() {
    let bounded = Bounded::new();
    let sent: Vec<_> = (0..2).map(|_| bounded.send(TrafficClass::Gc, LONG)).collect();
    bounded.patient.wait_for(2);
    let late = bounded.send(TrafficClass::Gc, Duration::from_millis(20));
    assert_eq!(late.wait().map_err(|refusal| refusal.reason), Err(Reason::Deadline));
    bounded.patient.answer_all();
    for promise in sent {
        assert!(promise.wait().is_ok());
    }
    assert_eq!(bounded.patient.executed.load(Ordering::SeqCst), 2);
}

#[test]
fn closed_link_completes_what_waits() {
    let bounded = Bounded::new();
    let all: Vec<_> = (0..4).map(|_| bounded.send(TrafficClass::Flush, LONG)).collect();
    bounded.patient.wait_for(2);
    bounded.link.close();
    for promise in all {
        assert_eq!(promise.wait().map_err(|refusal| refusal.reason), Err(Reason::Disconnected));
    }
    assert!(bounded.link.closed().is_some());
    let after = bounded.send(TrafficClass::Flush, LONG);
    assert_eq!(after.wait().map_err(|refusal| refusal.reason), Err(Reason::Disconnected));
    assert_eq!(bounded.card.stats().queued, 0);
}

#[test]
fn messages_of_a_class_keep_their_order_on_a_link() {
    /// Records the first bytes of requests.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Vec<(u8, u8)>>>);
    impl Handler for Recorder {
        fn handle(&self, request: Request<'_>, reply: Reply) {
            self.0.lock().push((request.body[0], request.body[1]));
            reply.send(&b"!"[..]);
        }
    }
    let recorder = Recorder::default();
    let world = World::with_handler("emulated", Some(Box::new(recorder.clone())));
    let link = world.link();
    for round in 0..4 {
        let asked: Vec<_> = (0..60_u8)
            .map(|number| {
                let class = TrafficClass::ALL[usize::from(number) * 7 % 5];
                let mut body = vec![0; 1 + usize::from(number) * 397 % 9000];
                body.resize(body.len().max(2), 0);
                (body[0], body[1]) = (class as u8, round * 60 + number);
                link.request(Call::new(&body, LONG).in_class(class))
            })
            .collect();
        for promise in asked {
            promise.wait().unwrap();
        }
    }
    let heard = recorder.0.lock();
    assert_eq!(heard.len(), 240);
    for class in 0..5 {
        let of_class = heard.iter().filter(|(of, _)| *of == class).map(|(_, number)| *number);
        assert!(of_class.is_sorted(), "class {class}");
    }
}
