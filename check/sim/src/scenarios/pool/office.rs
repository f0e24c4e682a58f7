//! The protocol by which one of several managers acts (decision 0052).
//!
//! The runs execute the state machines of managers and nodes. Messages are lost, late and doubled,
//! clocks run apart, nodes lose their memory, and managers stop and continue. Everything follows
//! from the seed.
//!
//! Invariants that the run checks at each step:
//! 1. At most one manager holds office by its own clock.
//! 2. A node that obeyed an order of a term does not obey an order of a smaller term later.
//! 3. In the time of peace, one manager holds office within a few leases.
//!
//! Cost: some milliseconds per seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_manager::office::{Office, OfficeSabotage, OfficeTerms};
use archipelago_memory::promise::{Promise, PromiseSabotage};
use archipelago_pool::wire::Message;

use crate::run::{RunOutcome, RunRequest, Scenario, Step, Trace};
use crate::scenarios::figures;

const LEASE_NS: u64 = 100_000_000;
const TROUBLE_NS: u64 = 40 * LEASE_NS;
const PEACE_NS: u64 = 12 * LEASE_NS;
/// Largest deviation of a clock, in thousandths.
const DRIFT_PERMILLE: u64 = 25;

/// Steps of the protocol that a run can leave out.
const STEPS: [Step; 4] = [
    Step { name: "majority", about: "a manager acts only with the promises of a majority" },
    Step { name: "sent-time", about: "a manager counts a promise from when it sent the question" },
    Step { name: "grace", about: "a node that has just started promises nothing for a lease" },
    Step { name: "patience", about: "a node promises nothing while another promise lasts" },
];

pub(crate) fn scenario() -> Scenario {
    let about = "several managers, of which one at a time acts, with clocks that run apart";
    Scenario::with_steps("office", about, &STEPS, run)
}

/// A clock with its own rate and its own origin.
#[derive(Clone, Copy, Debug)]
struct SkewedClock {
    ahead_ns: u64,
    permille: u64,
}

impl SkewedClock {
    fn draw(rng: &mut Rng) -> Self {
        let permille = rng.u64(1000 - DRIFT_PERMILLE..=1000 + DRIFT_PERMILLE);
        Self { ahead_ns: rng.u64(1..1 << 40), permille }
    }

    fn now_ns(self, true_ns: u64) -> u64 {
        self.ahead_ns + true_ns * self.permille / 1000
    }
}

struct NodeHost {
    promise: Promise,
    clock: SkewedClock,
    /// Largest term whose order the node obeyed in this life.
    obeyed: u64,
    up: bool,
}

struct ManagerHost {
    office: Office,
    me: ClientId,
    clock: SkewedClock,
    /// Time in nanoseconds until which the manager neither receives nor sends anything.
    stopped_until_ns: u64,
    last_term: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Tick(usize),
    Beat(usize),
    /// A beat of a node arrives at a manager.
    Heard {
        manager: usize,
        node: usize,
        term: u64,
        held_ms: u64,
    },
    /// A question of a manager arrives at a node. `sent_ns` is the time of the manager's clock.
    Question {
        manager: usize,
        node: usize,
        question: Message,
        sent_ns: u64,
    },
    Answer {
        manager: usize,
        node: usize,
        question: Message,
        sent_ns: u64,
        answer: Message,
    },
    Fault,
}

/// A manager and a node, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    manager: usize,
    node: usize,
}

struct OfficeWorld {
    rng: Rng,
    now_ns: u64,
    next: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: std::collections::BTreeMap<u64, Event>,
    nodes: Vec<NodeHost>,
    managers: Vec<ManagerHost>,
    /// Pairs that cannot reach each other.
    cut: Vec<Pair>,
    peace: bool,
    terms: OfficeTerms,
    of_managers: OfficeSabotage,
    of_nodes: PromiseSabotage,
    /// Whether two managers held office at the last check.
    has_two: bool,
    noting: bool,
    notes: Vec<String>,
    violations: Vec<String>,
    /// Number of times that a manager took office.
    taken: u64,
    trace: Trace,
}

/// Runs one seed of the protocol.
fn run(request: &RunRequest) -> RunOutcome {
    let mut rng = Rng::with_seed(request.seed);
    let of_managers = OfficeSabotage {
        no_majority: request.leaves_out("majority"),
        counts_from_answer: request.leaves_out("sent-time"),
    };
    let of_nodes = PromiseSabotage {
        no_grace: request.leaves_out("grace"),
        no_patience: request.leaves_out("patience"),
    };
    let count = [1, 3, 3, 5][rng.usize(..4)];
    let terms = OfficeTerms { nodes: count, lease: Duration::from_nanos(LEASE_NS) };
    let mut world = OfficeWorld {
        now_ns: 0,
        next: 0,
        queue: BinaryHeap::new(),
        events: std::collections::BTreeMap::new(),
        nodes: Vec::new(),
        managers: Vec::new(),
        cut: Vec::new(),
        peace: false,
        terms,
        of_managers,
        of_nodes,
        has_two: false,
        noting: request.trace,
        notes: Vec::new(),
        violations: Vec::new(),
        taken: 0,
        trace: Trace::default(),
        rng: Rng::with_seed(rng.u64(..)),
    };
    for node in 0..count as usize {
        let host = world.new_node();
        world.nodes.push(host);
        world.after(0, Event::Beat(node));
    }
    for manager in 0..rng.usize(2..=3) {
        let me = ClientId(rng.u64(1..));
        let office = Office::new(me, terms, rng.u64(..)).sabotaged(of_managers);
        let clock = SkewedClock::draw(&mut rng);
        let host = ManagerHost { office, me, clock, stopped_until_ns: 0, last_term: 0 };
        world.managers.push(host);
        world.after(0, Event::Tick(manager));
    }
    world.after(LEASE_NS, Event::Fault);
    world.run_until(TROUBLE_NS);
    world.peace = true;
    world.cut.clear();
    world.nodes.iter_mut().for_each(|node| node.up = true);
    world.run_until(TROUBLE_NS + PEACE_NS);
    if world.holders().is_empty() {
        world.violations.push("no manager holds office in the time of peace".to_owned());
    }
    RunOutcome {
        violations: world.violations,
        figures: figures([("terms of office", world.taken)]),
        notes: world.notes,
        trace: world.trace,
    }
}

impl OfficeWorld {
    fn new_node(&mut self) -> NodeHost {
        let clock = SkewedClock::draw(&mut self.rng);
        let promise = Promise::new(clock.now_ns(self.now_ns)).sabotaged(self.of_nodes);
        NodeHost { promise, clock, obeyed: 0, up: true }
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.next += 1;
        self.queue.push(Reverse((self.now_ns + ns, self.next)));
        self.events.insert(self.next, event);
    }

    /// Sends a message, which is lost or arrives once or twice, after a delay.
    fn send(&mut self, between: Pair, event: &Event) {
        if self.cut.contains(&between) || !self.nodes[between.node].up {
            return;
        }
        let copies = match self.rng.u32(..20) {
            0 if !self.peace => 0,
            1 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let slow = !self.peace && self.rng.u32(..10) == 0;
            let delay_ns = self.rng.u64(..if slow { 2 * LEASE_NS } else { LEASE_NS / 50 });
            self.after(delay_ns, event.clone());
        }
    }

    fn run_until(&mut self, end_ns: u64) {
        while let Some(Reverse((at_ns, number))) = self.queue.peek().copied() {
            if at_ns > end_ns {
                break;
            }
            self.queue.pop();
            self.now_ns = at_ns;
            if let Some(event) = self.events.remove(&number) {
                self.record(number, &event);
                self.step(event);
            }
            self.check();
        }
    }

    /// Adds an event to the fingerprint and, if they are kept, to the notes.
    fn record(&mut self, number: u64, event: &Event) {
        let hash = [self.now_ns, number].into_iter().fold(self.trace.hash, |hash, word| {
            (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        });
        self.trace = Trace { hash, events: self.trace.events + 1, virtual_ns: self.now_ns };
        if self.noting {
            self.notes.push(format!("{:>12} ns  {event:?}", self.now_ns));
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Tick(manager) => self.tick(manager),
            Event::Beat(node) => self.beat(node),
            Event::Heard { manager, node, term, held_ms } => {
                let Some(now_ns) = self.manager_now(manager) else { return };
                let id = NodeId(node as u64 + 1);
                self.managers[manager].office.on_beat(now_ns, id, term, held_ms);
            }
            Event::Question { manager, node, question, sent_ns } => {
                let Message::Promise { term, lease_ms } = question else { return };
                let (from, host) = (self.managers[manager].me, &mut self.nodes[node]);
                if !host.up {
                    return;
                }
                let now_ns = host.clock.now_ns(self.now_ns);
                // The manager knows the node by one of its beats.
                host.promise.meet(0, from, false);
                let asked = host.promise.ask(now_ns, from, term, lease_ms * 1_000_000);
                let answer = asked.map_or_else(Message::refuse, |()| Message::Promised { term });
                let back = Event::Answer { manager, node, question, sent_ns, answer };
                self.send(Pair { manager, node }, &back);
            }
            Event::Answer { manager, node, question, sent_ns, answer } => {
                let Some(now_ns) = self.manager_now(manager) else { return };
                let id = NodeId(node as u64 + 1);
                let office = &mut self.managers[manager].office;
                office.on_answer(now_ns, id, &question, sent_ns, &answer);
            }
            Event::Fault => self.fault(),
        }
    }

    /// Time of a manager's clock, or `None` while the manager is stopped.
    fn manager_now(&self, manager: usize) -> Option<u64> {
        let host = &self.managers[manager];
        (self.now_ns >= host.stopped_until_ns).then(|| host.clock.now_ns(self.now_ns))
    }

    fn tick(&mut self, manager: usize) {
        self.after(LEASE_NS / 20, Event::Tick(manager));
        let Some(now_ns) = self.manager_now(manager) else { return };
        let questions = self.managers[manager].office.on_timer(now_ns, 0);
        for (node, question) in questions {
            let node = node.0 as usize - 1;
            let event = Event::Question { manager, node, question, sent_ns: now_ns };
            self.send(Pair { manager, node }, &event);
        }
    }

    fn beat(&mut self, node: usize) {
        self.after(LEASE_NS / 5, Event::Beat(node));
        let host = &self.nodes[node];
        let left_ns = host.promise.left_ns(host.clock.now_ns(self.now_ns));
        let (term, held_ms) = (host.promise.term(), left_ns.div_ceil(1_000_000));
        for manager in 0..self.managers.len() {
            self.send(Pair { manager, node }, &Event::Heard { manager, node, term, held_ms });
        }
    }

    fn fault(&mut self) {
        if self.peace {
            return;
        }
        let node = self.rng.usize(..self.nodes.len());
        let manager = self.rng.usize(..self.managers.len());
        match self.rng.u32(..10) {
            // The node's process restarts, or stays down for a while.
            0..3 => {
                self.nodes[node] = self.new_node();
                self.nodes[node].up = self.rng.bool();
            }
            3..5 => self.nodes[node].up = true,
            5..7 => {
                let pause_ns = self.rng.u64(..3 * LEASE_NS);
                self.managers[manager].stopped_until_ns = self.now_ns + pause_ns;
            }
            7 => self.cut.push(Pair { manager, node }),
            // The manager's process restarts and knows nothing.
            8 => {
                let me = ClientId(self.rng.u64(1..));
                let office = Office::new(me, self.terms, self.rng.u64(..));
                let host = &mut self.managers[manager];
                (host.me, host.office) = (me, office.sabotaged(self.of_managers));
            }
            _ => self.cut.clear(),
        }
        let pause_ns = self.rng.u64(LEASE_NS / 10..LEASE_NS);
        self.after(pause_ns, Event::Fault);
    }

    /// Managers that hold office by their own clocks, with their terms. A stopped manager counts as
    /// well.
    fn holders(&self) -> Vec<(usize, u64)> {
        let of = |(manager, host): (usize, &ManagerHost)| {
            Some((manager, host.office.holds(host.clock.now_ns(self.now_ns))?))
        };
        self.managers.iter().enumerate().filter_map(of).collect()
    }

    fn check(&mut self) {
        let holders = self.holders();
        let had_two = std::mem::replace(&mut self.has_two, holders.len() > 1);
        // One violation says when two managers began to hold office, not each later step.
        if let [one, other, ..] = holders[..]
            && !had_two
        {
            let at_ms = self.now_ns / 1_000_000;
            let what = format!("{one:?} and {other:?} hold office at {at_ms} ms");
            self.violations.push(what);
        }
        for (manager, term) in holders {
            let host = &mut self.managers[manager];
            self.taken += u64::from(host.last_term != term);
            host.last_term = term;
            for node in &mut self.nodes {
                if node.promise.obeys(host.me, term).is_err() {
                    continue;
                }
                if term < node.obeyed {
                    let what = format!("a node obeys term {term} after {}", node.obeyed);
                    self.violations.push(what);
                }
                node.obeyed = term;
            }
        }
    }
}
