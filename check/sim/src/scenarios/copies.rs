//! Memtable shards of which two memory nodes have a copy, while one node after another fails.
//!
//! The runs execute the shard store of the product (`RemoteShards`) with two copies against shard
//! hosts of the product, over the fabric in virtual time. Shards are sent and released, and their
//! keys are looked up, scanned and fetched, while packets are lost, doubled and delayed. One node
//! at a time is cut off, or restarts empty. A reader groups shards by the nodes that the store has
//! reported, as the database does.
//!
//! Invariants that the run checks at each step:
//! 1. An answer has exactly the versions that the shards have, or it is an error.
//! 2. The failure of one node loses at most the shards that had only one copy before it.
//!
//! At the end, in a time without faults:
//! 3. Each read gets an answer.
//! 4. The hosts have exactly the copies that the owner counts, and after the close none.
//!
//! Cost: some ten milliseconds per seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{CfId, Epoch, FileNo, SeqNo};
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::key::{KeyRange, KeyRef, Kind};
use archipelago_engine::memtable::{SealedImage, SealedShard};
use archipelago_engine::remote::{
    AwayError, KeyAsk, LookupAsk, NewShard, ScanAsk, ScanDirection, ShardId, ShardStore, StoreNode,
    StoreWatcher,
};
use archipelago_fabric::NodeId;
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_offload::shard_host::{HostThreads, NodeBytes, ShardHost, ShardLimits};
use archipelago_offload::shard_owner::{
    OwnerParts, OwnerSabotage, OwnerTerms, RemoteShards, Waits,
};
use parking_lot::Mutex;

use super::offsets::{KEYS, Sample, expected, image_of, key_of, versions};
use super::shard_parts::{KnownNodes, NodeLife};
use crate::run::{RunOutcome, RunRequest, Scenario, Step, Trace};
use crate::scenarios::figures;

const MIB: u64 = 1 << 20;
/// Bytes of a node for shards, one of these: room for all copies, and for some of them.
const NODE_BYTES: [u64; 2] = [4 * MIB, 3 * MIB / 4];
const NODES: u64 = 3;
/// Number of operations of a run.
const ROUNDS: usize = 160;
/// Largest number of shards that the owner has away. Small nodes have no room for all their second
/// copies.
const SHARDS_MAX: usize = 40;

const STEPS: [Step; 2] = [
    Step { name: "second-release", about: "a release goes to both nodes of a shard" },
    Step { name: "promotion", about: "the other copy is read when the node of one is lost" },
];

pub(super) fn scenario() -> Scenario {
    let about = "memtable shards with copies at two memory nodes, which fail one at a time";
    Scenario::with_steps("copies", about, &STEPS, |request| {
        let mut world = World::new(request);
        world.trouble();
        world.peace();
        world.outcome()
    })
}

/// News that a database would get.
#[derive(Default)]
struct Heard {
    lost: Mutex<Vec<ShardId>>,
    moved: Mutex<Vec<(ShardId, StoreNode)>>,
}

impl StoreWatcher for Heard {
    fn lost(&self, shards: &[ShardId]) {
        self.lost.lock().extend_from_slice(shards);
    }
    fn moved(&self, shards: &[ShardId], node: StoreNode) {
        self.moved.lock().extend(shards.iter().map(|id| (*id, node)));
    }
    fn room_has_changed(&self) {}
}

/// A memory node and its machine.
struct Memory {
    host: Host,
    there: Sim,
    life: NodeLife,
}

#[derive(Default)]
struct Counted {
    sent: u64,
    reads: u64,
    failed: u64,
    breaks: u64,
    lost: u64,
}

struct World {
    simulation: Simulation,
    network: Arc<Network>,
    owner: Host,
    nodes: Vec<Memory>,
    node_bytes: u64,
    listed: Arc<KnownNodes>,
    heard: Arc<Heard>,
    store: Arc<RemoteShards>,
    away: Vec<Sample>,
    memtable: u64,
    seq: u64,
    /// Shards that the latest failure may still lose.
    losable: u64,
    rng: Rng,
    counted: Counted,
    violations: Vec<String>,
}

impl World {
    fn new(request: &RunRequest) -> Self {
        let simulation = Simulation::new(request.seed);
        if request.trace {
            simulation.keep_notes();
        }
        let network = Network::new(&simulation);
        let owner = simulation.host("owner");
        let reach = network.join(&owner, Model::quick());
        let mut rng = simulation.rng("world");
        let listed = Arc::new(KnownNodes::default());
        let sabotage = OwnerSabotage {
            no_second_release: request.leaves_out("second-release"),
            no_promotion: request.leaves_out("promotion"),
            ..OwnerSabotage::default()
        };
        let terms = OwnerTerms { landing_bytes: MIB, copies: 2, sabotage, ..OwnerTerms::default() };
        let store = RemoteShards::new(OwnerParts {
            nodes: Arc::clone(&listed) as _,
            reach: Arc::new(reach),
            runtime: Arc::new(owner.clone()),
            waits: Waits::InRuntime,
            terms,
        });
        let identity = OwnerIdentity { database: [9; 16], epoch: Epoch(1), token: [1; 16] };
        store.owner_is(&identity).expect("the first owner");
        store.purge();
        let heard: Arc<Heard> = Arc::default();
        let weak: Weak<Heard> = Arc::downgrade(&heard);
        store.watch(weak);
        let mut world = Self {
            node_bytes: NODE_BYTES[rng.usize(..NODE_BYTES.len())],
            simulation,
            network,
            owner,
            nodes: Vec::new(),
            listed,
            heard,
            store,
            away: Vec::new(),
            memtable: 0,
            seq: 0,
            losable: 0,
            rng,
            counted: Counted::default(),
            violations: Vec::new(),
        };
        for number in 1..=NODES {
            let host = world.simulation.host(&format!("memory{number}"));
            let there = world.network.join(&host, Model::quick());
            let memory = world.begin_node(number, host, there, 1);
            world.nodes.push(memory);
        }
        world.list();
        world.wait(Duration::from_secs(1));
        world
    }

    fn wait(&self, time: Duration) {
        wait_for(&self.owner, Runtime::sleep(&self.owner, time));
    }

    /// Begins a life of a node.
    fn begin_node(&self, number: u64, host: Host, there: Sim, life: u64) -> Memory {
        let limits = ShardLimits { arena_bytes: MIB / 4, ..ShardLimits::new(self.node_bytes) };
        let (clock, bytes) = (self.simulation.clock(), NodeBytes::new(self.node_bytes));
        let shards = ShardHost::new(limits, bytes, clock, HostThreads::Caller);
        let life = NodeLife::begin(&there, NodeId(number), Epoch(life), shards);
        Memory { host, there, life }
    }

    /// Makes the pool report all nodes to the owner.
    fn list(&self) {
        *self.listed.lock() = self.nodes.iter().map(|memory| memory.life.member.clone()).collect();
    }

    fn trouble(&mut self) {
        for _ in 0..ROUNDS {
            match self.rng.u32(..24) {
                0..=9 => self.send(),
                10 => {
                    let faults = Faults {
                        loss: [0.0, 0.0, 0.02][self.rng.usize(..3)],
                        duplicate: [0.0, 0.1][self.rng.usize(..2)],
                        delay_ns_max: [0, 5_000, 200_000][self.rng.usize(..3)],
                        ..Faults::default()
                    };
                    self.network.set_faults(faults);
                }
                11 => self.break_a_node(),
                12..=14 => self.scan(),
                15 => self.fetch(),
                _ => self.look_up(),
            }
            self.take_news();
        }
    }

    /// Cuts a node off for some seconds, or ends its life. Some reads happen meanwhile.
    fn break_a_node(&mut self) {
        self.network.set_faults(Faults::default());
        self.wait(Duration::from_secs(2));
        self.take_news();
        self.counted.breaks += 1;
        let figures = self.store.figures();
        self.losable = figures.shards - figures.copies;
        let at = self.rng.usize(..self.nodes.len());
        if self.rng.bool() {
            self.network.cut(&self.owner, &self.nodes[at].host);
            self.look_up();
            let cut = Duration::from_millis(self.rng.u64(100..9000));
            self.wait(cut);
            self.look_up();
            self.network.heal_all();
        } else {
            let Memory { host, there, life } = self.nodes.remove(at);
            life.shards.close();
            host.crash();
            if self.rng.bool() {
                self.look_up();
            }
            host.restart();
            let number = at as u64 + 1;
            let next = self.begin_node(number, host, there, life.member.life.0 + 1);
            self.nodes.insert(at, next);
            self.list();
        }
        self.wait(Duration::from_secs(9));
    }

    /// Takes the news of the store, as a database would.
    fn take_news(&mut self) {
        for (id, node) in std::mem::take(&mut *self.heard.moved.lock()) {
            if let Some(sample) = self.away.iter_mut().find(|sample| sample.id == id) {
                sample.node = node;
            }
        }
        let lost = std::mem::take(&mut *self.heard.lost.lock());
        let dropped = self.away.extract_if(.., |sample| lost.contains(&sample.id)).count() as u64;
        self.counted.lost += dropped;
        if dropped > self.losable {
            let what = format!("{dropped} shards are lost, {} had one copy", self.losable);
            self.violations.push(what);
        }
        self.losable = self.losable.saturating_sub(dropped);
    }

    fn send(&mut self) {
        if self.away.len() >= SHARDS_MAX || self.rng.u32(..8) == 0 {
            return self.release();
        }
        self.memtable += 1;
        let bytes = image_of(&mut self.rng, &mut self.seq);
        let id = ShardId { memtable: self.memtable, shard: 0 };
        // The buckets begin with different keys, so they have different nodes.
        let start = format!("k{}", self.rng.u32(..4)).into_bytes();
        let keys = KeyRange { start, end: Some(b"l".to_vec()) };
        let new = NewShard {
            id,
            family: CfId(0),
            keys: &keys,
            after_seq: SeqNo(0),
            last_seq: SeqNo(self.seq),
            oldest_log: FileNo(1),
            seal_log: FileNo(2),
        };
        let Ok(node) = self.store.send(&new, &bytes) else { return self.release() };
        let image = SealedImage::open(bytes).expect("an image of this process");
        self.counted.sent += 1;
        self.away.push(Sample { id, node, image });
    }

    fn release(&mut self) {
        if self.away.is_empty() {
            return;
        }
        let sample = self.away.remove(0);
        self.store.release(&[sample.id], sample.id.memtable + 1);
    }

    /// The positions of the shards of one node, as the reader knows them, newest first.
    fn together(&mut self) -> Option<(StoreNode, Vec<usize>)> {
        let mut by_node: BTreeMap<StoreNode, Vec<usize>> = BTreeMap::new();
        for (at, sample) in self.away.iter().enumerate().rev() {
            by_node.entry(sample.node).or_default().push(at);
        }
        let all: Vec<_> = by_node.into_iter().collect();
        if all.is_empty() {
            return None;
        }
        let at = self.rng.usize(..all.len());
        all.into_iter().nth(at)
    }

    fn snapshot(&mut self) -> SeqNo {
        match self.rng.u32(..3) {
            0 => SeqNo(self.rng.u64(..=self.seq)),
            _ => SeqNo::MAX,
        }
    }

    /// Looks some keys up in the shards of a node.
    fn look_up(&mut self) {
        let Some((node, at)) = self.together() else { return };
        let snapshot = self.snapshot();
        let count = [1, 6][self.rng.usize(..2)];
        let keys: Vec<Vec<u8>> = (0..count).map(|_| key_of(self.rng.u64(0..KEYS))).collect();
        let samples: Vec<&Sample> = at.iter().map(|at| &self.away[*at]).collect();
        let within: Vec<u32> = (0..samples.len() as u32).collect();
        let asked = |key| KeyAsk { key, floor: SeqNo(0), within: within.clone() };
        let shards = samples.iter().map(|sample| sample.id).collect();
        let keys = keys.iter().map(|key| asked(key.as_slice())).collect();
        let time_left = Duration::from_secs(10);
        let ask = LookupAsk { node, shards, keys, snapshot, keys_only: false, time_left };
        let answer = self.store.lookup(std::slice::from_ref(&ask)).remove(0);
        self.counted.reads += 1;
        let answer = match answer {
            Ok(answer) => answer,
            Err(AwayError::NoRoom(why)) => return self.violations.push(why),
            Err(_) => return self.counted.failed += 1,
        };
        for (asked, found) in ask.keys.iter().zip(&answer.keys) {
            let (found, right) = (versions(found), expected(&samples, asked.key, snapshot));
            if found != right {
                let key = asked.key.escape_ascii();
                let (found, right) = (found.len(), right.len());
                let what = format!("{key} at {snapshot}: {found} versions instead of {right}");
                self.violations.push(what);
            }
        }
    }

    /// Scans the shards of a node.
    fn scan(&mut self) {
        let Some((node, at)) = self.together() else { return };
        let snapshot = self.snapshot();
        let samples: Vec<&Sample> = at.iter().map(|at| &self.away[*at]).collect();
        let shards: Vec<ShardId> = samples.iter().map(|sample| sample.id).collect();
        let keys = KeyRange { start: key_of(0), end: Some(key_of(KEYS)) };
        let (mut found, mut resume) = (Vec::new(), None);
        self.counted.reads += 1;
        loop {
            let ask = ScanAsk {
                node,
                shards: &shards,
                keys: &keys,
                resume: resume.as_ref(),
                direction: ScanDirection::Forward,
                snapshot,
                bytes_max: 30_000,
                keys_only: false,
                time_left: Duration::from_secs(10),
            };
            let Ok(page) = self.store.scan(&ask) else { return self.counted.failed += 1 };
            found.extend(page.records);
            resume = page.resume;
            if resume.is_none() {
                break;
            }
        }
        let found: Vec<(Vec<u8>, u64, Kind, Vec<u8>)> = found
            .iter()
            .map(|record| {
                let KeyRef { user_key, seq, kind } = KeyRef::decode(&record.key).expect("a key");
                (user_key.to_vec(), seq.0, kind, record.value.as_ref().to_vec())
            })
            .collect();
        let right = (0..KEYS).map(key_of).flat_map(|key| {
            let versions = expected(&samples, &key, snapshot).into_iter();
            versions.map(move |(seq, kind, value)| (key.clone(), seq, kind, value))
        });
        if !found.iter().cloned().eq(right) {
            self.violations.push(format!("a scan at {snapshot} shows {} records", found.len()));
        }
    }

    /// Fetches a whole shard.
    fn fetch(&mut self) {
        if self.away.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.away.len());
        let sample = &self.away[at];
        self.counted.reads += 1;
        match self.store.fetch(sample.id) {
            Ok(image) if image.seq_range() == sample.image.seq_range() => {}
            Ok(_) => self.violations.push(format!("shard {} is another one", sample.id)),
            Err(_) => self.counted.failed += 1,
        }
    }

    /// Ends the faults, and checks that no shard and no copy is left over.
    fn peace(&mut self) {
        self.network.set_faults(Faults::default());
        self.network.heal_all();
        self.wait(Duration::from_secs(20));
        self.take_news();
        let failed = self.counted.failed;
        for _ in 0..10 {
            self.look_up();
            self.scan();
            self.take_news();
        }
        if self.counted.failed > failed {
            self.violations.push("a read fails although nothing does".to_owned());
        }
        let held = |world: &Self| -> u64 {
            let figures = world.nodes.iter().filter_map(|node| node.life.shards.figures());
            figures.map(|figures| figures.shards).sum()
        };
        let figures = self.store.figures();
        let (here, known) = (held(self), figures.shards + figures.copies);
        if here != known || figures.shards != self.away.len() as u64 {
            let away = self.away.len();
            self.violations.push(format!("the nodes have {here} copies of {known}, {away} shards"));
        }
        let ids: Vec<ShardId> = self.away.iter().map(|sample| sample.id).collect();
        self.store.release(&ids, self.memtable + 1);
        self.store.close();
        if held(self) != 0 {
            self.violations.push(format!("{} shards are left", held(self)));
        }
    }

    fn outcome(self) -> RunOutcome {
        let owner = self.store.figures();
        RunOutcome {
            violations: self.violations,
            figures: figures([
                ("shards sent", self.counted.sent),
                ("second copies sent", owner.copied),
                ("other copies used", owner.copies_used),
                ("second copies given up", owner.copies_given_up),
                ("reads", self.counted.reads),
                ("reads failed", self.counted.failed),
                ("failures of nodes", self.counted.breaks),
                ("shards lost", self.counted.lost),
            ]),
            notes: self.simulation.notes(),
            trace: Trace::of(&self.simulation),
        }
    }
}
