//! The fabric's own promises under faults.
//!
//! Clients add to a word, write and read records and send numbered requests. Meanwhile packets are
//! lost, doubled, delayed and torn, links are cut, clients crash, and the memory node crashes and
//! returns empty.
//!
//! Invariants that the run checks:
//! 1. The value of the word lies between the number of confirmed additions and the number of tried
//!    additions.
//! 2. A client reads what it wrote, and it reads no torn word of another client.
//! 3. A request is executed at most once, and exactly once if it was answered.
//! 4. After the faults end, every client makes progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Scheduler, Simulation};
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_fabric::{
    Attached, Batch, Call, Connect, Handler, Link, Listener, Node, NodeId, Provider, Reason,
    Region, RemoteKey, Reply, Request, Rights, Session,
};
use parking_lot::Mutex;

use crate::run::Scenario;

const CLIENTS: usize = 3;
const WORDS: usize = 8;
const COUNT: u64 = 0;

pub(super) fn scenario() -> Scenario {
    let about = "adds, records and numbered requests under loss, cuts and crashes of both sides";
    Scenario::new("fabric", about, run)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Additions and requests of one life of the node.
#[derive(Default)]
struct Ledger {
    tried: u64,
    confirmed: u64,
    executed: BTreeMap<u64, u32>,
}

/// State that all clients share outside the network.
#[derive(Default)]
struct Book {
    epoch: u64,
    key: Option<RemoteKey>,
    ledgers: BTreeMap<u64, Ledger>,
    next_request: u64,
    answered: u64,
    wrong: Option<String>,
}

type SharedBook = Arc<Mutex<Book>>;

/// Handler that counts executions and delays some answers.
struct Counts {
    shared: SharedBook,
    epoch: u64,
    host: Host,
}

impl Handler for Counts {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let mut id = [0; 8];
        id.copy_from_slice(request.body);
        let mut book = self.shared.lock();
        let ledger = book.ledgers.entry(self.epoch).or_default();
        let number = u64::from_le_bytes(id);
        *ledger.executed.entry(number).or_default() += 1;
        drop(book);
        let scheduler = self.host.scheduler();
        match number % 4 {
            0 => {
                let at_ns = scheduler.now_ns() + number % 16 * 500_000;
                scheduler.at(at_ns, self.host.life(), move || reply.send(&id[..]));
            }
            _ => reply.send(&id[..]),
        }
    }
}

/// A life of the memory node.
struct Life {
    _node: Arc<Node>,
    region: Region,
    _listener: Box<dyn Listener>,
}

fn begin(there: &Sim, shared: &SharedBook) -> Result<Life, String> {
    let epoch = shared.lock().epoch + 1;
    let handler = Counts { shared: Arc::clone(shared), epoch, host: there.host().clone() };
    let node = there.network().node(NodeId(1), Epoch(epoch), Some(Box::new(handler)));
    let node = node.map_err(text)?;
    let region = node.allocate(8 + CLIENTS * WORDS * 8, there.atomic_path()).map_err(text)?;
    let listener = there.serve(&node, "memory").map_err(text)?;
    let mut book = shared.lock();
    (book.epoch, book.key) = (epoch, Some(region.grant(Rights::ALL).map_err(text)?));
    Ok(Life { _node: node, region, _listener: listener })
}

struct Client {
    me: usize,
    scheduler: Scheduler,
    provider: Sim,
    session: Arc<Session>,
    shared: SharedBook,
    rng: Rng,
    /// Request with an unknown outcome: number, id, and the epoch in which it was first sent.
    open: Option<(u64, u64, u64)>,
}

impl Client {
    fn start(me: usize, life: u32, host: &Host, provider: &Sim, shared: &SharedBook) {
        let scheduler = host.scheduler().clone();
        let client = Self {
            me,
            rng: scheduler.rng(&format!("client {me} in life {life}")),
            scheduler,
            provider: provider.clone(),
            session: provider.network().session(),
            shared: Arc::clone(shared),
            open: None,
        };
        host.spawn("client", client.all());
    }

    async fn all(mut self) {
        loop {
            // If a link cannot be made or went down, the client makes another one after a pause.
            let _down = self.link().await;
            self.scheduler.sleep(Duration::from_micros(self.rng.u64(10..2000))).await;
        }
    }

    async fn link(&mut self) -> Result<(), String> {
        let (epoch, key) = {
            let book = self.shared.lock();
            (book.epoch, book.key.ok_or("no node yet")?)
        };
        let mut to = Connect::to("memory", &self.session);
        (to.epoch, to.deadline) = (Some(Epoch(epoch)), Duration::from_millis(20));
        let link = self.provider.connect(to).await.map_err(text)?;
        let memory = link.attach(&key).await.map_err(text)?;
        let mut written = None;
        while link.closed().is_none() {
            match self.rng.u32(..4) {
                0 => self.add(&*link, memory, epoch).await?,
                1 => written = Some(self.write(&*link, memory).await?),
                2 => self.read(&*link, memory, written).await?,
                _ => self.ask(&*link, epoch).await?,
            }
            self.scheduler.sleep(Duration::from_micros(self.rng.u64(..200))).await;
        }
        Ok(())
    }

    async fn add(&self, link: &dyn Link, memory: Attached, epoch: u64) -> Result<(), String> {
        self.shared.lock().ledgers.entry(epoch).or_default().tried += 1;
        let mut batch = Batch::new();
        batch.fetch_add(memory, COUNT, 1);
        link.post(batch).await.check().map_err(text)?;
        self.shared.lock().ledgers.entry(epoch).or_default().confirmed += 1;
        Ok(())
    }

    fn place(&self, of: usize) -> u64 {
        8 + (of * WORDS * 8) as u64
    }

    /// Writes records of equal words that name their writer, and reads each record back without
    /// waiting for the write.
    async fn write(&mut self, link: &dyn Link, memory: Attached) -> Result<u64, String> {
        let mut word = 0;
        let mut posted = Vec::new();
        for _ in 0..3 {
            word = (self.me as u64 + 1) << 32 | u64::from(self.rng.u32(..));
            let record: Vec<u8> = (0..WORDS).flat_map(|_| word.to_le_bytes()).collect();
            let (mut write, mut read) = (Batch::new(), Batch::new());
            write.write(memory, self.place(self.me), &record);
            read.read(memory, self.place(self.me), (WORDS * 8) as u32);
            posted.push((link.post(write), link.post(read), record));
        }
        for (write, read, record) in posted {
            write.await.check().map_err(text)?;
            let read = read.await;
            read.check().map_err(text)?;
            if read.data(0) != record {
                self.wrong(format!("client {} does not read what it wrote before", self.me));
            }
        }
        Ok(word)
    }

    async fn read(
        &mut self,
        link: &dyn Link,
        memory: Attached,
        written: Option<u64>,
    ) -> Result<(), String> {
        let of = self.rng.usize(..CLIENTS);
        let mut batch = Batch::new();
        batch.read(memory, self.place(of), (WORDS * 8) as u32);
        let batch = link.post(batch).await;
        batch.check().map_err(text)?;
        for chunk in batch.data(0).chunks_exact(8) {
            let word = chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            let (own, other) = (of == self.me, word >> 32 == of as u64 + 1 || word == 0);
            let mine = written.is_none_or(|written| word == written);
            if !other || (own && !mine) {
                self.wrong(format!("client {} reads {word:x} of {of}: torn or stale", self.me));
            }
        }
        Ok(())
    }

    async fn ask(&mut self, link: &dyn Link, epoch: u64) -> Result<(), String> {
        let again = self.open.is_some();
        let (number, id, first) = match self.open {
            Some(open) => open,
            None => {
                let mut book = self.shared.lock();
                book.next_request += 1;
                (self.session.begin().map_err(text)?, book.next_request, epoch)
            }
        };
        self.open = Some((number, id, first));
        let body = id.to_le_bytes();
        let call = Call::new(&body, Duration::from_millis(5));
        let call = if again { call.again(number) } else { call.numbered(number) };
        match link.request(call).await {
            Ok(answer) if *answer == body => {
                self.open = None;
                self.shared.lock().answered += 1;
                self.executed_once(id, first);
                Ok(())
            }
            Ok(answer) => {
                self.wrong(format!("request {id} was answered with {answer:?} of another"));
                Ok(())
            }
            Err(refusal) => {
                let unknown = matches!(refusal.reason, Reason::Disconnected | Reason::Deadline);
                if !unknown {
                    // The node lost track of the request, so the client gives it up.
                    self.open = None;
                    self.session.give_up(number);
                }
                Err(text(refusal))
            }
        }
    }

    fn executed_once(&self, id: u64, first: u64) {
        let times: u32 = {
            let book = self.shared.lock();
            let since = book.ledgers.range(first..).map(|(_, ledger)| ledger);
            since.filter_map(|ledger| ledger.executed.get(&id)).sum()
        };
        if times != 1 {
            self.wrong(format!("request {id} was answered, and executed {times} times"));
        }
    }

    fn wrong(&self, what: String) {
        self.shared.lock().wrong.get_or_insert(what);
    }
}

/// Draws the faults of the network.
fn faults(rng: &mut Rng) -> Faults {
    Faults {
        loss: [0.0, 0.02, 0.3][rng.usize(..3)],
        duplicate: [0.0, 0.1][rng.usize(..2)],
        delay_ns_max: [0, 5_000, 200_000][rng.usize(..3)],
        tear: [0.0, 0.5][rng.usize(..2)],
        // No memory is mapped, so no operation on mapped memory can be refused.
        refuse: 0.0,
    }
}

fn run(simulation: &Simulation) -> Result<(), String> {
    let network = Network::new(simulation);
    let memory = simulation.host("memory");
    let there = network.join(&memory, Model::quick());
    let shared = SharedBook::default();
    let mut life = begin(&there, &shared)?;
    let mut clients = Vec::new();
    for me in 0..CLIENTS {
        let host = simulation.host(&format!("client-{me}"));
        let provider = network.join(&host, Model::quick());
        Client::start(me, 0, &host, &provider, &shared);
        clients.push((host, provider));
    }
    let mut rng = simulation.rng("chaos");
    for round in 1..=12 {
        simulation.run_for(Duration::from_micros(rng.u64(100..12_000)));
        let (host, provider) = &clients[rng.usize(..CLIENTS)];
        match rng.u32(..5) {
            0 => network.set_faults(faults(&mut rng)),
            1 => network.cut(host, &memory),
            2 => network.heal_all(),
            3 => {
                host.crash();
                simulation.run_for(Duration::from_micros(rng.u64(..5_000)));
                host.restart();
                let me = clients.iter().position(|(other, _)| other.id() == host.id());
                Client::start(me.unwrap_or(0), round, host, provider, &shared);
            }
            _ => {
                memory.crash();
                check_count(&life, &shared)?;
                simulation.run_for(Duration::from_micros(rng.u64(..5_000)));
                memory.restart();
                life = begin(&there, &shared)?;
            }
        }
    }
    network.set_faults(Faults::default());
    network.heal_all();
    simulation.run_for(Duration::from_millis(50));
    let before = progress(&shared);
    simulation.run_for(Duration::from_millis(10));
    let after = progress(&shared);
    if after.0 <= before.0 || after.1 <= before.1 {
        return Err(format!(
            "the network has no faults, but no client makes progress: {before:?}, {after:?}"
        ));
    }
    check_count(&life, &shared)?;
    let book = shared.lock();
    let twice = book.ledgers.values().flat_map(|l| &l.executed).find(|(_, times)| **times > 1);
    match (&book.wrong, twice) {
        (Some(wrong), _) => Err(wrong.clone()),
        (None, Some((id, times))) => Err(format!("request {id} was executed {times} times")),
        (None, None) => Ok(()),
    }
}

/// Number of answered requests, and of confirmed additions.
fn progress(shared: &SharedBook) -> (u64, u64) {
    let book = shared.lock();
    (book.answered, book.ledgers.values().map(|ledger| ledger.confirmed).sum())
}

fn check_count(life: &Life, shared: &SharedBook) -> Result<(), String> {
    let mut word = [0; 8];
    life.region.read(COUNT, &mut word).map_err(text)?;
    let found = u64::from_le_bytes(word);
    let book = shared.lock();
    let Some(ledger) = book.ledgers.get(&book.epoch) else { return Ok(()) };
    if (ledger.confirmed..=ledger.tried).contains(&found) {
        return Ok(());
    }
    let (confirmed, tried) = (ledger.confirmed, ledger.tried);
    Err(format!("{confirmed} additions were confirmed, {tried} tried, and the word says {found}"))
}
