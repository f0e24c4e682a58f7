//! Tests of `sim`: lives and crashes of hosts, cuts, loss, delay and torn operations, and their
//! dependence on the seed alone. A cut replaces the stopped process of `processes.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_fabric::sim::{Faults, Model, Transport};
use archipelago_fabric::{
    Attached, Batch, Call, Connect, Handler, NodeId, Outcome, Provider, Reason, Reply, Request,
    Rights,
};

use crate::world::{Backwards, REGION_BYTES, Virtual, World, ask, read, refused, write};

fn world() -> World {
    World::new("sim")
}

fn faulty(seed: u64, faults: Faults) -> World {
    World::simulated(Virtual::faulty(seed, faults), Some(Box::new(Backwards)))
}

#[test]
fn atomics_of_several_hosts_lose_nothing() {
    const ROUNDS: u64 = 100;
    let world = faulty(3, Faults { loss: 0.05, delay_ns_max: 20_000, ..Faults::default() });
    let made = world.simulation();
    let hosts: Vec<_> = (0..4).map(|at| made.simulation.host(&format!("client-{at}"))).collect();
    let tasks: Vec<_> = hosts
        .iter()
        .map(|host| {
            let provider = made.network.join(host, Model::quick());
            let (to, key) = (Connect::to("node", &made.network.session()), world.key);
            host.spawn("counts", async move {
                let link = provider.connect(to).await.unwrap();
                let region = link.attach(&key).await.unwrap();
                for _ in 0..ROUNDS {
                    let mut batch = Batch::new();
                    batch.fetch_add(region, 0, 1);
                    link.post(batch).await.check().unwrap();
                }
            })
        })
        .collect();
    for _ in 0..ROUNDS {
        world.region.fetch_add(0, 1).unwrap();
        made.simulation.run_for(Duration::from_micros(3));
    }
    for task in tasks {
        made.simulation.block_on(task).unwrap();
    }
    assert_eq!(world.region.fetch_add(0, 0), Ok(5 * ROUNDS));
}

#[test]
fn tasks_share_a_link() {
    let world = world();
    let (link, region) = world.attached();
    let made = world.simulation();
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let link = Arc::clone(&link);
            made.client_host.spawn("shares", async move {
                for round in 0..50_u64 {
                    let mut batch = Batch::new();
                    batch.fetch_add(region, 0, 1);
                    batch.write(region, 8 + task * 8, &round.to_ne_bytes());
                    batch.read(region, 8 + task * 8, 8);
                    let batch = link.post(batch).await;
                    assert_eq!(batch.data(2), round.to_ne_bytes());
                }
            })
        })
        .collect();
    for task in tasks {
        made.simulation.block_on(task).unwrap();
    }
    assert_eq!(read(&*link, region, 0, 8), 400_u64.to_ne_bytes());
}

#[test]
fn next_life_of_a_crashed_node_refuses_old_keys() {
    let world = world();
    let (old, region) = world.attached();
    write(&*old, region, 0, b"of the first life");
    let made = world.simulation();
    made.node_host.crash();
    let lost = refused(&*old, |batch| _ = batch.read(region, 0, 8));
    assert_eq!(lost, Some((0, Reason::Disconnected)));
    assert_eq!(ask(&*old, b"anybody?"), Err(Reason::Disconnected));
    assert_eq!(old.attach(&world.key).wait().unwrap_err().reason, Reason::Disconnected);
    let session = made.network.session();
    let to = || Connect { deadline: Duration::from_millis(50), ..Connect::to("node", &session) };
    assert_eq!(made.here.connect(to()).wait().unwrap_err().kind(), ErrorKind::Io);
    // The node's next life has the same address, the next epoch and empty memory.
    made.node_host.restart();
    let node = made.network.node(NodeId(1), Epoch(2), None).unwrap();
    let fresh = node.allocate(REGION_BYTES, made.there.atomic_path()).unwrap();
    let fresh_key = fresh.grant(Rights::ALL).unwrap();
    let _listener = made.there.serve(&node, "node").unwrap();
    let insists = Connect { epoch: Some(Epoch(1)), ..to() };
    assert_eq!(made.here.connect(insists).wait().unwrap_err().kind(), ErrorKind::Fenced);
    let new = made.here.connect(to()).wait().unwrap();
    assert_eq!(new.peer().epoch, Epoch(2));
    let refusal = new.attach(&world.key).wait().unwrap_err();
    assert_eq!((refusal.reason, refusal.limit), (Reason::StaleEpoch, 2));
    let anew = new.attach(&fresh_key).wait().unwrap();
    assert_eq!(read(&*new, anew, 0, 17), [0; 17], "memory does not outlive its node");
    let stale = refused(&*old, |batch| _ = batch.read(region, 0, 8));
    assert_eq!(stale.map(|(_, reason)| reason), Some(Reason::Disconnected), "down stays down");
}

#[test]
fn restarted_machine_resets_links_to_its_earlier_life() {
    let world = world();
    let (link, region) = world.attached();
    let made = world.simulation();
    made.network.set_transport(Transport { notice_ns: u64::MAX / 4, ..Transport::default() });
    made.node_host.crash();
    made.node_host.restart();
    let began_ns = made.simulation.now_ns();
    let lost = refused(&*link, |batch| _ = batch.read(region, 0, 8));
    assert_eq!(lost, Some((0, Reason::Disconnected)));
    assert!(made.simulation.now_ns() - began_ns < 1_000_000, "at once, not by a deadline");
}

#[test]
fn operations_of_a_crashed_client_happen_completely_or_not() {
    let world = world();
    let made = world.simulation();
    let crashing = made.simulation.host("crashing");
    let provider = made.network.join(&crashing, Model::CONNECTX3);
    let (to, key) = (Connect::to("node", &made.network.session()), world.key);
    let task = crashing.spawn("writes", async move {
        let link = provider.connect(to).await.unwrap();
        let region = link.attach(&key).await.unwrap();
        for round in 1_u64.. {
            let mut batch = Batch::new();
            batch.write(region, 0, &round.to_ne_bytes());
            batch.write(region, 8, &round.to_ne_bytes());
            link.post(batch).await.check().unwrap();
        }
    });
    made.simulation.run_for(Duration::from_micros(333));
    crashing.crash();
    assert!(task.is_done());
    made.simulation.run_for(Duration::from_millis(1));
    let word = |at| world.region.fetch_add(at, 0).unwrap();
    assert!(word(0) > 10 && (word(0) == word(8) || word(0) == word(8) + 1));
    let (link, region) = world.attached();
    write(&*link, region, 0, b"others go on");
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
}

#[test]
fn operations_of_a_crashed_host_end_for_other_holders() {
    let world = world();
    let (link, region) = world.attached();
    let mut batch = Batch::new();
    batch.fetch_add(region, 0, 1);
    let posted = link.post(batch);
    let made = world.simulation();
    made.client_host.crash();
    let reason = |batch: &Batch| batch.refusal().map(|(_, refusal)| refusal.reason);
    assert_eq!(reason(&posted.wait()), Some(Reason::Disconnected));
    let session = made.network.session();
    let error = made.here.connect(Connect::to("node", &session)).wait().unwrap_err();
    assert!(error.to_string().contains("this host is down"), "{error}");
    made.client_host.restart();
    let down = refused(&*link, |batch| _ = batch.read(region, 0, 8));
    assert_eq!(down, Some((0, Reason::Disconnected)), "links do not outlive their host");
    made.here.connect(Connect::to("node", &session)).wait().unwrap();
}

#[test]
fn cut_link_goes_down_and_a_new_one_works_after_healing() {
    let world = world();
    let (link, region) = world.attached();
    let made = world.simulation();
    made.network.cut(&made.node_host, &made.client_host);
    let mut batch = Batch::new();
    batch.set_deadline(Duration::from_millis(2));
    batch.fetch_add(region, 0, 1);
    let late = link.post(batch).wait().refusal().map(|(_, refusal)| refusal.reason);
    assert_eq!(late, Some(Reason::Deadline), "before the transport has given up");
    let lost = refused(&*link, |batch| _ = batch.read(region, 0, 8));
    assert_eq!(lost, Some((0, Reason::Disconnected)));
    made.network.heal(&made.node_host, &made.client_host);
    assert!(link.closed().is_some(), "down stays down");
    let (link, region) = world.attached();
    assert_eq!(read(&*link, region, 0, 8), [0; 8]);
}

/// A compare-and-swap occupies the card's unit for atomic operations. Neither the operations after
/// it nor the second part of a torn WRITE may overtake it.
#[test]
fn operation_after_a_slow_one_waits_for_it() {
    let torn = Faults { tear: 1.0, delay_ns_max: 3000, ..Faults::default() };
    for (model, faults) in [(Model::CONNECTX3, Faults::default()), (Model::quick(), torn)] {
        let made = Virtual::new(2, &model);
        made.network.set_faults(faults);
        let world = World::simulated(made, None);
        let (link, region) = world.attached();
        for round in 0..20_u64 {
            let (mut first, mut second) = (Batch::new(), Batch::new());
            first.write(region, 8, &round.to_ne_bytes().repeat(16));
            first.compare_swap(region, 0, round, round + 1);
            second.read(region, 0, 136);
            let (first, second) = (link.post(first), link.post(second));
            second.wait().data(0).chunks(8).enumerate().for_each(|(at, word)| {
                assert_eq!(word, (round + u64::from(at == 0)).to_ne_bytes());
            });
            first.wait().check().unwrap();
        }
    }
}

#[test]
fn operation_before_a_cut_of_the_way_back_happened() {
    let world = world();
    let (link, region) = world.attached();
    let made = world.simulation();
    made.network.cut_one_way(&made.node_host, &made.client_host);
    let unknown = refused(&*link, |batch| _ = batch.fetch_add(region, 0, 1));
    assert_eq!(unknown, Some((0, Reason::Disconnected)));
    assert_eq!(world.region.fetch_add(0, 0), Ok(1), "not known is not undone");
}

#[test]
fn loss_costs_only_time() {
    for seed in 0..20 {
        let world = faulty(seed, Faults { loss: 0.1, duplicate: 0.2, ..Faults::default() });
        let (link, region) = world.attached();
        for round in 0..20_u64 {
            write(&*link, region, 64, &round.to_ne_bytes());
            assert_eq!(read(&*link, region, 64, 8), round.to_ne_bytes());
            assert_eq!(refused(&*link, |batch| _ = batch.fetch_add(region, 0, 1)), None);
        }
        assert_eq!(world.region.fetch_add(0, 0), Ok(20), "each once");
        assert!(world.simulation().simulation.now_ns() > 1_000_000, "some were sent again");
    }
}

/// Counts the executions of requests.
struct Counts(Arc<AtomicU64>);

impl Handler for Counts {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.fetch_add(1, Ordering::SeqCst);
        reply.send(request.body);
    }
}

#[test]
fn repeated_request_is_executed_once() {
    let mut again = 0;
    for seed in 0..20 {
        let faults =
            Faults { loss: 0.15, duplicate: 0.3, delay_ns_max: 50_000, ..Faults::default() };
        let executed = Arc::new(AtomicU64::new(0));
        let handler = Box::new(Counts(Arc::clone(&executed)));
        let world = World::simulated(Virtual::faulty(seed, faults), Some(handler));
        let link = world.link();
        for round in 0..30_u64 {
            let answer = ask(&*link, &round.to_le_bytes()).unwrap();
            assert_eq!(*answer, round.to_le_bytes());
        }
        assert_eq!(executed.load(Ordering::SeqCst), 30);
        again += world.node.stats().duplicates;
    }
    assert!(again > 0, "the network did send requests twice");
}

#[test]
fn requests_overtake_each_other_only_if_packets_do() {
    let order = |delay_ns_max: u64| {
        let world = faulty(9, Faults { delay_ns_max, ..Faults::default() });
        let link = world.link();
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..16_u8)
            .map(|number| {
                let promise = link.request(Call::new(&[number], Duration::from_secs(1)));
                let order = Arc::clone(&order);
                world.simulation().client_host.spawn("asks", async move {
                    promise.await.unwrap();
                    order.lock().push(number);
                })
            })
            .collect();
        for task in tasks {
            world.simulation().simulation.block_on(task).unwrap();
        }
        order.lock().clone()
    };
    let sorted: Vec<u8> = (0..16).collect();
    assert_eq!(order(0), sorted);
    assert_ne!(order(100_000), sorted);
}

/// One client writes records of equal words, and another reads them. Returns the number of mixtures
/// that the reader found.
fn mixtures(tear: f64) -> usize {
    let world = faulty(5, Faults { tear, ..Faults::default() });
    let made = world.simulation();
    let (writer, reader) = (made.simulation.host("writer"), made.simulation.host("reader"));
    let start = |host: &archipelago_base::simulation::Host| {
        let provider = made.network.join(host, Model::quick());
        let (to, key) = (Connect::to("node", &made.network.session()), world.key);
        async move {
            let link = provider.connect(to).await.unwrap();
            let region: Attached = link.attach(&key).await.unwrap();
            (link, region)
        }
    };
    let ready = start(&writer);
    let writes = writer.spawn("writes", async move {
        let (link, region) = ready.await;
        for round in 0..200_u64 {
            let mut batch = Batch::new();
            batch.write(region, 0, &round.to_ne_bytes().repeat(4));
            assert_eq!(link.post(batch).await.outcome(0), Outcome::Visible);
        }
    });
    let ready = start(&reader);
    let reads = reader.spawn("reads", async move {
        let (link, region) = ready.await;
        let mut mixed = 0;
        for _ in 0..200 {
            let mut batch = Batch::new();
            batch.read(region, 0, 32);
            let batch = link.post(batch).await;
            batch.check().unwrap();
            let words: Vec<&[u8]> = batch.data(0).chunks(8).collect();
            assert!(words.iter().all(|word| word[1..].iter().all(|&byte| byte == 0)), "torn word");
            mixed += usize::from(words.iter().any(|word| *word != words[0]));
        }
        mixed
    });
    made.simulation.block_on(writes).unwrap();
    made.simulation.block_on(reads).unwrap()
}

#[test]
fn records_are_torn_between_words_on_request() {
    assert_eq!(mixtures(0.0), 0);
    assert!(mixtures(0.5) > 0);
}

#[test]
fn card_executes_atomics_on_request() {
    let made = Virtual::new(1, &Model::CONNECTX3);
    let path = archipelago_fabric::AtomicPath::Card;
    let there = made.there.clone().with_atomics(path);
    let node = made.network.node(NodeId(1), Epoch(1), None).unwrap();
    let region = node.allocate(64, there.atomic_path()).unwrap();
    let _listener = there.serve(&node, "node:card").unwrap();
    let to = Connect::to("node:card", &made.network.session());
    let link = made.here.with_atomics(path).connect(to).wait().unwrap();
    let attached = link.attach(&region.grant(Rights::ALL).unwrap()).wait().unwrap();
    assert_eq!(refused(&*link, |batch| _ = batch.fetch_add(attached, 0, 1)), None);
    assert_eq!(region.fetch_add(0, 1).unwrap_err().reason, Reason::AtomicPath);
}

#[test]
fn address_names_a_machine_of_the_network() {
    let world = world();
    let made = world.simulation();
    let to = |address: &str| Connect::to(address, &made.network.session());
    let error = made.here.connect(to("nowhere")).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = made.here.connect(to("client")).wait().unwrap_err();
    assert!(error.to_string().contains("no node listens"), "{error}");
    let error = made.here.serve(&world.node, "node:2").unwrap_err();
    assert!(error.to_string().contains("no address of client"), "{error}");
    let error = made.there.serve(&world.node, "node").unwrap_err();
    assert!(error.to_string().contains("another node listens"), "{error}");
}

/// Keys, trace and end time of a run of `seed`.
fn traces(seed: u64) -> (u64, u64, u64) {
    let faults = Faults { loss: 0.1, duplicate: 0.1, delay_ns_max: 9_000, tear: 0.3, refuse: 0.0 };
    let world = faulty(seed, faults);
    let (link, region) = world.attached();
    for round in 0..10_u64 {
        write(&*link, region, 8 * round, &[7; 24]);
        _ = ask(&*link, b"x");
    }
    let simulation = &world.simulation().simulation;
    (world.key.tag ^ link.session().client().0, simulation.trace_hash(), simulation.now_ns())
}

#[test]
fn seed_determines_keys_sessions_and_steps() {
    assert_eq!(traces(4), traces(4));
    assert_ne!(traces(4).0, traces(5).0);
    assert_ne!(traces(4).1, traces(5).1);
}

#[test]
fn batch_costs_the_time_of_the_model() {
    let model = Model::CONNECTX3;
    let world = world();
    let (link, region) = world.attached();
    let simulation = &world.simulation().simulation;
    let took_ns = |fill: &dyn Fn(&mut Batch)| {
        let began_ns = simulation.now_ns();
        assert_eq!(refused(&*link, fill), None);
        simulation.now_ns() - began_ns
    };
    let around_ps = model.post_ps + 2 * model.latency_ps + model.complete_ps;
    let write_ps = around_ps + model.outbound.write_ps + model.inbound.write_ps;
    let near = |ns: u64, ps: u64| ns.abs_diff(ps.div_ceil(1000)) <= 5;
    let ns = took_ns(&|batch| _ = batch.write(region, 0, &[1; 8]));
    assert!(near(ns, write_ps), "{ns} ns, {write_ps} ps");
    let swap_ps = around_ps + model.outbound.atomic_ps + model.inbound.atomic_ps + model.atomics_ps;
    let ns = took_ns(&|batch| _ = batch.compare_swap(region, 0, 0, 1));
    assert!(near(ns, swap_ps), "{ns} ns, {swap_ps} ps");
    let bytes_ps = (65_536 + model.header_bytes) * model.byte_ps;
    let read_ps = around_ps + model.outbound.read_ps + model.inbound.read_ps + 2 * bytes_ps;
    let ns = took_ns(&|batch| _ = batch.read(region, 0, 65_536));
    assert!(near(ns, read_ps), "{ns} ns, {read_ps} ps");
}

/// Counts executions, and answers with the body.
struct Counting(Arc<AtomicU64>);

impl Handler for Counting {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.fetch_add(1, Ordering::SeqCst);
        reply.send(request.body);
    }
}

#[test]
fn lost_idempotent_requests_are_answered_and_copies_executed() {
    const REQUESTS: u64 = 100;
    let executed = Arc::new(AtomicU64::new(0));
    let faults = Faults { loss: 0.1, duplicate: 0.3, delay_ns_max: 20_000, ..Faults::default() };
    let handler = Box::new(Counting(Arc::clone(&executed)));
    let world = World::simulated(Virtual::faulty(9, faults), Some(handler));
    let link = world.link();
    for number in 0..REQUESTS {
        let body = number.to_ne_bytes();
        let call = Call::new(&body, Duration::from_secs(1)).idempotent();
        assert_eq!(*link.request(call).wait().unwrap(), body, "its own answer");
    }
    assert!(executed.load(Ordering::SeqCst) > REQUESTS, "copies are executed again");
    let stats = world.node.stats();
    assert_eq!((stats.duplicates, stats.kept_requests, stats.kept_bytes), (0, 0, 0));
    // A request with a number is executed once over the same network. Late copies come first.
    world.simulation().simulation.run_for(Duration::from_millis(10));
    let before = executed.load(Ordering::SeqCst);
    for _ in 0..REQUESTS {
        link.request(Call::new(b"once", Duration::from_secs(1))).wait().unwrap();
    }
    assert_eq!(executed.load(Ordering::SeqCst), before + REQUESTS);
}
