//! A client of a run. It joins the pool, and then it allocates, writes, reads and releases blocks
//! with two parallel tasks. It uses the product's client, and reports every call to the oracle.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::Host;
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{Batch, ClientId};
use archipelago_pool::{Address, BlockId, Pace, PoolClient, PoolOptions, Sharing};
use parking_lot::Mutex;

use crate::scenarios::pool::actors::{MANAGER, REQUEST};
use crate::scenarios::pool::oracle::{Oracle, Word};

/// Number of blocks that a client tries to own.
const BLOCKS: usize = 3;
/// Number of words per block that clients write.
pub(crate) const WORDS: u64 = 6;
/// Number of tasks of a client. Each task writes words of its own, because the oracle expects at
/// most one write of a word at a time.
const TASKS: u64 = 2;
/// Label of all clients, so that they work on the same data.
const LABEL: u64 = 7;
/// Average number of steps of a task between two evictions.
const EVICTIONS: u32 = 400;
/// Number of attempts of a write to blocks that the task opened by itself.
const TRIES: u32 = 200;

/// Blocks that any client may read.
pub(crate) type Known = Arc<Mutex<BTreeSet<BlockId>>>;

/// Clients that have joined at some time. Tasks evict some of them.
pub(crate) type Joined = Arc<Mutex<Vec<ClientId>>>;

/// A client in a run.
#[derive(Clone)]
pub(crate) struct ClientActor {
    sim: Sim,
    /// The product's client, or `None` until it has joined.
    joined: Arc<Mutex<Option<PoolClient>>>,
    shared: ClientWorld,
}

/// State that all clients of a run share.
#[derive(Clone, Debug)]
pub(crate) struct ClientWorld {
    /// Judge of the values that clients write and read.
    pub(crate) oracle: Arc<Oracle>,
    /// Blocks that any client may read.
    pub(crate) known: Known,
    /// Clients that have joined at some time.
    pub(crate) everybody: Joined,
    /// Whether clients still work. They renew their leases in any case.
    pub(crate) working: Arc<Mutex<bool>>,
}

/// One task of a client that has joined.
struct Worker {
    actor: ClientActor,
    client: PoolClient,
    number: u64,
    rng: Rng,
}

impl ClientActor {
    /// Starts a client on its host. It works until `working` is false, and renews its lease for
    /// ever.
    pub(crate) fn start(sim: &Sim, shared: &ClientWorld) -> Self {
        let actor = Self { sim: sim.clone(), joined: Arc::default(), shared: shared.clone() };
        let starting = actor.clone();
        let task = async move { starting.join().await };
        let _ends_with_the_host = Host::spawn(sim.host(), "join", task);
        actor
    }

    async fn join(self) {
        let pace = Pace {
            request: REQUEST,
            pause: Duration::from_micros(500),
            renewal: Duration::from_millis(1),
        };
        let mut options = PoolOptions::new(MANAGER, LABEL);
        (options.patience, options.pace) = (Duration::from_millis(100), pace);
        let (sim, host) = (Arc::new(self.sim.clone()), Arc::new(self.sim.host().clone()));
        let client = loop {
            let joining = PoolClient::join(options.clone(), sim.clone(), host.clone());
            if let Ok(client) = joining.await {
                break client;
            }
        };
        *self.joined.lock() = Some(client.clone());
        self.shared.everybody.lock().push(client.client());
        for number in 0..TASKS {
            let rng = Rng::with_seed(host.seed());
            let (actor, client) = (self.clone(), client.clone());
            let worker = Worker { actor, client, number, rng };
            let _ends_with_the_host = Host::spawn(&host, "work", worker.work());
        }
    }

    /// Id of the client, once it has joined.
    pub(crate) fn id(&self) -> Option<ClientId> {
        self.joined.lock().as_ref().map(PoolClient::client)
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.joined.lock().as_ref().is_some_and(PoolClient::is_evicted)
    }

    pub(crate) fn owned(&self) -> Vec<BlockId> {
        self.joined.lock().as_ref().map_or_else(Vec::new, PoolClient::owned)
    }
}

impl Worker {
    async fn work(mut self) {
        loop {
            let pause_us = self.rng.u64(50..800);
            self.actor.sim.host().sleep(Duration::from_micros(pause_us)).await;
            for change in self.client.take_changes() {
                self.note(|| format!("{change:?}"));
            }
            let owned = self.client.owned();
            if self.client.is_evicted() || !*self.actor.shared.working.lock() {
                return;
            }
            if self.rng.u32(..EVICTIONS) == 0 {
                self.evict().await;
                continue;
            }
            match self.rng.u32(..100) {
                0..10 if owned.len() < BLOCKS => self.allocate().await,
                10..12 if owned.len() > 1 => {
                    let block = owned[self.rng.usize(..owned.len())];
                    self.release(block).await;
                }
                12..60 if !owned.is_empty() => {
                    let block = owned[self.rng.usize(..owned.len())];
                    let at = self.rng.u64(..WORDS / TASKS) * TASKS + self.number;
                    self.write(block, at).await;
                }
                _ => {
                    let known: Vec<BlockId> =
                        self.actor.shared.known.lock().iter().copied().collect();
                    if !known.is_empty() {
                        let block = known[self.rng.usize(..known.len())];
                        self.read(block).await;
                    }
                }
            }
        }
    }

    async fn allocate(&mut self) {
        let sharing = if self.rng.u32(..8) == 0 { Sharing::All } else { Sharing::Owner };
        let host = self.actor.sim.host().clone();
        // Sometimes the task gives up. If the block exists, the client learns of it as an adopted
        // block.
        let patience = Duration::from_millis(self.rng.u64(1..60));
        let allocating = host.scheduler().timeout(patience, self.client.allocate(sharing));
        if let Ok(Ok(block)) = allocating.await {
            self.note(|| format!("has a new block {block}"));
            self.actor.shared.known.lock().insert(block);
        }
    }

    /// Evicts a client: the last one that joined, or one that may be dead already.
    async fn evict(&mut self) {
        let victim = {
            let everybody = self.actor.shared.everybody.lock();
            let place = if self.rng.bool() { 1 } else { self.rng.usize(1..=everybody.len()) };
            everybody[everybody.len() - place]
        };
        if victim == self.client.client() {
            return;
        }
        self.note(|| format!("evicts {victim}"));
        if self.rng.u32(..4) == 0 {
            // The client may have crashed without this eviction.
            if !self.client.is_gone(victim).await.is_ok_and(|gone| gone) {
                return;
            }
        } else if self.client.evict(victim).await.is_err() {
            return;
        }
        self.note(|| format!("{victim} is gone"));
        self.actor.shared.oracle.evicted(victim);
    }

    async fn release(&self, block: BlockId) {
        self.actor.shared.known.lock().remove(&block);
        self.note(|| format!("releases {block}"));
        let _told_with_the_renewals = self.client.release(block).await;
    }

    /// Repeats a write until it is acknowledged, or until the block does not belong to this client
    /// any more.
    async fn write(&mut self, block: BlockId, at: u64) {
        let Ok(mut open) = self.client.open_writable(block).await else { return };
        if !self.client.owned().contains(&block) {
            return;
        }
        let word = (block, open.config.born, at);
        let mine = self.actor.shared.oracle.begin(word);
        let gone = self.actor.shared.oracle.is_gone(self.client.client());
        if self.rng.bool() {
            let address = Address { block, offset: at * 8 };
            match self.client.write(address, &mine.to_le_bytes()).await {
                Ok(()) => self.acknowledged(word, mine, gone),
                Err(error) => self.note(|| format!("{mine} in word {at} of {block}: {error}")),
            }
            return;
        }
        for _ in 0..TRIES {
            match open.post_write(at * 8, &mine.to_le_bytes()).await {
                Ok(()) => return self.acknowledged(word, mine, gone),
                Err(refusal) => {
                    self.note(|| format!("{mine} in word {at} of {block} refused: {refusal}"));
                    self.client.stale(&open, refusal);
                }
            }
            let Ok(again) = self.client.open_writable(block).await else { return };
            if again.config.born != open.config.born || !self.client.owned().contains(&block) {
                return;
            }
            open = again;
        }
    }

    /// Records that the write took place. `gone` says that the client was evicted before the write
    /// began.
    fn acknowledged(&self, word: Word, number: u64, gone: bool) {
        self.note(|| format!("{number} is in word {} of {}", word.2, word.0));
        if gone {
            self.actor.shared.oracle.wrote_late(self.client.client(), word.0);
        }
        self.actor.shared.oracle.acknowledge(word, number);
    }

    async fn read(&mut self, block: BlockId) {
        let at = self.rng.u64(..WORDS);
        let Ok(open) = self.client.open(block).await else { return };
        let word = (block, open.config.born, at);
        // Any copy has every acknowledged write.
        let copy = &open.copies[self.rng.usize(..open.copies.len())];
        let floor = self.actor.shared.oracle.floor(word);
        let mut batch = Batch::new();
        batch.set_deadline(REQUEST);
        batch.read(copy.region, at * 8, 8);
        let batch = copy.link.post(batch).await;
        if let Some((_, refusal)) = batch.refusal() {
            return self.client.stale(&open, refusal);
        }
        let number = u64::from_le_bytes(batch.data(0).try_into().expect("eight bytes"));
        let leased = self.client.lease_until_ns() > self.actor.sim.host().now_ns();
        self.note(|| {
            let from = copy.place.node;
            format!("read {number} of word {at} of {block} on {from}, at least {floor}")
        });
        // The block may have been released since, and its number may name another block.
        if leased && self.actor.shared.known.lock().contains(&block) {
            let who = format!("client {} with a lease", self.client.client());
            self.actor.shared.oracle.saw(word, floor, number, &who);
        }
    }

    fn note(&self, text: impl FnOnce() -> String) {
        let scheduler = self.actor.sim.host().scheduler();
        scheduler.note(|| format!("client {}: {}", self.client.client(), text()));
    }
}
