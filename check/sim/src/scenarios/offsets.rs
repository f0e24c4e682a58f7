//! Look-ups of an owner in memtable shards at a memory node, with its key-offset cache.
//!
//! The runs execute the shard store of the product (`RemoteShards`) against the shard host of the
//! product, over the fabric in virtual time. Shards are sent and released, and keys are looked up
//! at the newest and at older snapshots, alone and together, while packets are lost, doubled and
//! delayed, links are cut, and the node restarts empty. Hashes of keys have three bits, so that
//! many keys share an entry of the cache.
//!
//! Invariants that the run checks at each look-up:
//! 1. An answer has exactly the versions that the shards have, or it is an error.
//! 2. A shard that was reported as lost never answers again.
//!
//! At the end, in a time without faults:
//! 3. The host has exactly the shards that the owner can read, and after the close none.
//!
//! Cost: some ten milliseconds per seed.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_base::runtime::{Runtime, wait_for};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{CfId, Epoch, FileNo, SeqNo};
use archipelago_engine::executor::OwnerIdentity;
use archipelago_engine::key::{KeyRange, Kind};
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{SealedImage, Shard, SlabPool};
use archipelago_engine::remote::{
    AwayError, KeyAsk, KeyVersions, LookupAsk, NewShard, ShardId, ShardStore, StoreNode,
};
use archipelago_fabric::NodeId;
use archipelago_fabric::sim::{Faults, Model, Network, Sim};
use archipelago_offload::shard_host::{HostThreads, NodeBytes, ShardHost, ShardLimits};
use archipelago_offload::shard_owner::{
    OwnerParts, OwnerSabotage, OwnerTerms, RemoteShards, Waits,
};

use crate::run::{RunOutcome, RunRequest, Scenario, Step, Trace};
use crate::scenarios::figures;
use crate::scenarios::shard_parts::{KnownNodes, LostShards, NodeLife};

const MIB: u64 = 1 << 20;
/// Number of operations of a run.
const ROUNDS: usize = 160;
/// Number of keys of a run.
pub(super) const KEYS: u64 = 24;
/// Largest number of shards that the owner has away.
const SHARDS_MAX: usize = 4;

const STEPS: [Step; 2] = [
    Step { name: "offsets", about: "the owner compares what lies at a cached offset" },
    Step { name: "newest", about: "only the newest version in its shard gets an entry" },
];

pub(super) fn scenario() -> Scenario {
    let about = "look-ups in memtable shards at a memory node, with cached offsets and failures";
    Scenario::with_steps("offsets", about, &STEPS, |request| {
        let mut world = World::new(request);
        world.trouble();
        world.peace();
        world.outcome()
    })
}

/// A shard that can be read.
pub(super) struct Sample {
    pub(super) id: ShardId,
    pub(super) node: StoreNode,
    pub(super) image: Arc<SealedImage>,
}

pub(super) type Versions = Vec<(u64, Kind, Vec<u8>)>;

#[derive(Default)]
struct Counted {
    sent: u64,
    keys: u64,
    failed: u64,
    lives: u64,
}

struct World {
    simulation: Simulation,
    network: Arc<Network>,
    owner: Host,
    memory: Host,
    there: Sim,
    life: Option<NodeLife>,
    listed: Arc<KnownNodes>,
    heard: Arc<LostShards>,
    store: Arc<RemoteShards>,
    away: Vec<Sample>,
    memtable: u64,
    seq: u64,
    rng: Rng,
    counted: Counted,
    violations: Vec<String>,
}

pub(super) fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:02}").into_bytes()
}

/// The image of a shard with some versions of many keys.
pub(super) fn image_of(rng: &mut Rng, seq: &mut u64) -> Vec<u8> {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    for number in 0..KEYS {
        for _ in 0..rng.u64(..3) {
            *seq += 1;
            let (kind, bytes) = match rng.u32(..10) {
                0 => (Kind::Delete, 0),
                1 | 2 => (Kind::Merge, 9),
                3 => (Kind::Put, 20_000),
                _ => (Kind::Put, rng.usize(8..300)),
            };
            let mut value = vec![rng.u8(..); bytes];
            // Every value is different.
            let stamp = seq.to_le_bytes();
            value.iter_mut().zip(stamp).for_each(|(byte, stamp)| *byte = stamp);
            shard.insert(&key_of(number), SeqNo(*seq), kind, &value);
        }
    }
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).expect("a sealed shard");
    bytes
}

/// The versions that a search of these shards, newest first, must find.
pub(super) fn expected(samples: &[&Sample], key: &[u8], snapshot: SeqNo) -> Versions {
    let (mut versions, mut is_decided) = (Vec::new(), false);
    for sample in samples {
        let visited = sample.image.lookup(&Lookup::new(key, snapshot), |found| {
            if is_decided {
                return ControlFlow::Break(());
            }
            versions.push((found.seq.0, found.kind, found.value.to_vec()));
            is_decided = found.kind != Kind::Merge;
            ControlFlow::Continue(())
        });
        visited.expect("an image of this process");
    }
    versions
}

pub(super) fn versions(found: &KeyVersions) -> Versions {
    let of = found.versions.iter();
    of.map(|at| (at.seq.0, at.kind, at.value.as_ref().to_vec())).collect()
}

impl World {
    fn new(request: &RunRequest) -> Self {
        let simulation = Simulation::new(request.seed);
        if request.trace {
            simulation.keep_notes();
        }
        let network = Network::new(&simulation);
        let (owner, memory) = (simulation.host("owner"), simulation.host("memory"));
        let reach = network.join(&owner, Model::quick());
        let there = network.join(&memory, Model::quick());
        let rng = simulation.rng("world");
        let listed = Arc::new(KnownNodes::default());
        let sabotage = OwnerSabotage {
            no_offset_check: request.leaves_out("offsets"),
            no_newest_check: request.leaves_out("newest"),
            short_hashes: true,
            ..OwnerSabotage::default()
        };
        let terms = OwnerTerms { landing_bytes: MIB, sabotage, ..OwnerTerms::default() };
        let store = RemoteShards::new(OwnerParts {
            nodes: Arc::clone(&listed) as _,
            reach: Arc::new(reach),
            runtime: Arc::new(owner.clone()),
            waits: Waits::InRuntime,
            terms,
        });
        let identity = OwnerIdentity { database: [9; 16], epoch: Epoch(1), token: [1; 16] };
        store.owner_is(&identity).expect("the first owner");
        let heard: Arc<LostShards> = Arc::default();
        let weak: Weak<LostShards> = Arc::downgrade(&heard);
        store.watch(weak);
        let mut world = Self {
            simulation,
            network,
            owner,
            memory,
            there,
            life: None,
            listed,
            heard,
            store,
            away: Vec::new(),
            memtable: 0,
            seq: 0,
            rng,
            counted: Counted::default(),
            violations: Vec::new(),
        };
        world.begin_node();
        world.wait(Duration::from_secs(1));
        world
    }

    fn wait(&self, time: Duration) {
        wait_for(&self.owner, Runtime::sleep(&self.owner, time));
    }

    /// Begins the next life of the node. The list of the pool names it from now on.
    fn begin_node(&mut self) {
        self.counted.lives += 1;
        let life = Epoch(self.counted.lives);
        let limits = ShardLimits { arena_bytes: MIB, ..ShardLimits::new(16 * MIB) };
        let clock = self.simulation.clock();
        let bytes = NodeBytes::new(16 * MIB);
        let shards = ShardHost::new(limits, bytes, clock, HostThreads::Caller);
        let life = NodeLife::begin(&self.there, NodeId(1), life, shards);
        *self.listed.lock() = vec![life.member.clone()];
        self.life = Some(life);
    }

    fn trouble(&mut self) {
        for _ in 0..ROUNDS {
            match self.rng.u32(..24) {
                0..=4 => self.send(),
                5 => self.release(),
                6 => {
                    let faults = Faults {
                        loss: [0.0, 0.0, 0.02][self.rng.usize(..3)],
                        duplicate: [0.0, 0.1][self.rng.usize(..2)],
                        delay_ns_max: [0, 5_000, 200_000][self.rng.usize(..3)],
                        ..Faults::default()
                    };
                    self.network.set_faults(faults);
                }
                7 if self.rng.u32(..4) == 0 => self.break_something(),
                _ => self.look_up(),
            }
            self.drop_lost();
        }
    }

    /// Cuts the link for some seconds, or ends the node's life.
    fn break_something(&mut self) {
        if self.rng.bool() {
            self.network.cut(&self.owner, &self.memory);
            let cut = Duration::from_millis(self.rng.u64(100..9000));
            self.wait(cut);
            self.network.heal_all();
        } else {
            if let Some(life) = self.life.take() {
                life.shards.close();
            }
            self.memory.crash();
            self.memory.restart();
            self.begin_node();
        }
        self.wait(Duration::from_secs(2));
    }

    /// Drops shards that were reported as lost. They must not answer any more.
    fn drop_lost(&mut self) {
        let lost = self.heard.take();
        let dropped = self.away.extract_if(.., |sample| lost.contains(&sample.id));
        let dropped: Vec<Sample> = dropped.collect();
        for Sample { id, node, .. } in dropped {
            let key = key_of(0);
            let keys = vec![KeyAsk { key: &key, floor: SeqNo(0), within: vec![0] }];
            let (shards, snapshot, keys_only) = (vec![id], SeqNo::MAX, false);
            let time_left = Duration::from_secs(10);
            let ask = LookupAsk { node, shards, keys, snapshot, keys_only, time_left };
            let answer = self.store.lookup(&[ask]).remove(0);
            if !matches!(answer, Err(AwayError::Lost(_))) {
                self.violations.push(format!("shard {id} is lost and answers: {answer:?}"));
            }
        }
    }

    /// Sends a shard with some versions of many keys.
    fn send(&mut self) {
        if self.away.len() >= SHARDS_MAX {
            return self.release();
        }
        self.memtable += 1;
        let bytes = image_of(&mut self.rng, &mut self.seq);
        let id = ShardId { memtable: self.memtable, shard: 0 };
        let keys = KeyRange { start: b"k".to_vec(), end: Some(b"l".to_vec()) };
        let new = NewShard {
            id,
            family: CfId(0),
            keys: &keys,
            after_seq: SeqNo(0),
            last_seq: SeqNo(self.seq),
            oldest_log: FileNo(1),
            seal_log: FileNo(2),
        };
        let Ok(node) = self.store.send(&new, &bytes) else { return };
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

    /// Looks one key up, or several.
    fn look_up(&mut self) {
        let Some(newest) = self.away.last() else { return };
        let node = newest.node;
        let count = [1, 1, 6][self.rng.usize(..3)];
        // Some keys are looked up more often than others.
        let keys = (0..count).map(|_| self.rng.u64(0..KEYS).min(self.rng.u64(0..KEYS)));
        let keys: Vec<Vec<u8>> = keys.map(key_of).collect();
        let is_old = self.rng.u32(..3) == 0;
        let snapshot = if is_old { SeqNo(self.rng.u64(..=self.seq)) } else { SeqNo::MAX };
        let newest_first = self.away.iter().rev();
        let samples: Vec<&Sample> = newest_first.take_while(|sample| sample.node == node).collect();
        let asks = keys.iter().map(|key| {
            let hash = Lookup::new(key, snapshot).hash;
            let within = (0u32..).zip(&samples).filter(|(_, at)| at.image.may_contain(hash));
            KeyAsk { key, floor: SeqNo(0), within: within.map(|(at, _)| at).collect() }
        });
        let shards = samples.iter().map(|sample| sample.id).collect();
        let (keys, keys_only, time_left) = (asks.collect(), false, Duration::from_secs(10));
        let ask = LookupAsk { node, shards, keys, snapshot, keys_only, time_left };
        if ask.keys.iter().any(|key| key.within.is_empty()) {
            return;
        }
        let answer = self.store.lookup(std::slice::from_ref(&ask)).remove(0);
        let answer = match answer {
            Ok(answer) => answer,
            Err(AwayError::Busy(_) | AwayError::Lost(_)) => {
                self.counted.failed += 1;
                return;
            }
            Err(other @ AwayError::NoRoom(_)) => {
                self.violations.push(format!("a look-up ended with: {other}"));
                return;
            }
        };
        for (asked, found) in ask.keys.iter().zip(&answer.keys) {
            self.counted.keys += 1;
            let (found, right) = (versions(found), expected(&samples, asked.key, snapshot));
            if found != right {
                let said = |versions: &Versions| -> Vec<(u64, Kind, usize)> {
                    versions.iter().map(|(seq, kind, value)| (*seq, *kind, value.len())).collect()
                };
                let key = asked.key.escape_ascii();
                let (found, right) = (said(&found), said(&right));
                let what = format!("{key} at {snapshot}: {found:?} instead of {right:?}");
                self.violations.push(what);
            }
        }
    }

    /// Ends the faults, and checks that no shard is left over.
    fn peace(&mut self) {
        self.network.set_faults(Faults::default());
        self.network.heal_all();
        self.wait(Duration::from_secs(20));
        self.drop_lost();
        for _ in 0..20 {
            self.look_up();
        }
        let held = |world: &Self| {
            let figures = world.life.as_ref().and_then(|life| life.shards.figures());
            figures.map_or(0, |figures| figures.shards)
        };
        let (here, readable) = (held(self), self.away.len() as u64);
        if here != readable {
            self.violations.push(format!("the node has {here} shards of {readable}"));
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
                ("keys looked up", self.counted.keys),
                ("look-ups failed", self.counted.failed),
                ("cached offsets read", owner.cache_hits),
                ("cached offsets of other keys", owner.cache_mismatches),
                ("cached offsets not read", owner.cache_unread),
                ("offsets of hot keys", owner.cache_filled),
                ("lives of the node", self.counted.lives),
            ]),
            notes: self.simulation.notes(),
            trace: Trace::of(&self.simulation),
        }
    }
}
