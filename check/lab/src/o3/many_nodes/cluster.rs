//! The modelled cluster in virtual time.
//!
//! A step makes all decisions, computes the rates of all flows, and lasts until a flow ends, until
//! writers fill a memtable, or for the longest single delay of the engine. The flows are running
//! jobs, transfers of memtables and writers.
//!
//! Invariants, which the tests check at every step:
//! 1. Time goes on, and no link carries more than its capacity.
//! 2. All bytes that were written are in memtables or in L0, or compactions took them.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_base::random::Rng;
use archipelago_engine::db::flush_plan::needs::RangeFigures;
use archipelago_engine::db::{DueRange, RestBounds, WRITE_PAUSE, flush_due};

use super::fair::{Flow, Use, rates};
use super::jobs::{Executors, Job, JobWork, Links, Node, may_run};
use super::load::Setting;
use super::memory::{Pool, Room, Tenant};
use super::owner::{Owner, OwnerStart, ROUNDING_MB};
use super::{BUCKETS, L0_TRIGGERS, MEMORY_LINK, MEMTABLE_MB, bytes, seconds};

/// Longest step: the engine's longest single delay of a writer.
const STEP_NS_MAX: u64 = 20_000_000;
/// Shortest step, so that a rest due to rounding does not stop the run.
const STEP_NS_MIN: u64 = 1_000;
/// Time for which a refusal claims memory.
const CLAIM_NS: u64 = 5_000_000_000;
/// Time between two samples of the memtables at memory nodes.
const SAMPLE_NS: u64 = 1_000_000_000;

/// Figures of a run. All but the series are those of its second half.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(super) struct Outcome {
    /// MB/s that writers wrote, all together.
    pub(super) mb_per_s: f64,
    /// MB/s that compactions took out of L0. The rest stays in memtables and in L0.
    pub(super) compacted_mb_per_s: f64,
    /// Times at which writers that wanted to write got less than half of what they wanted.
    pub(super) stops: u64,
    /// Share of the time in which they wanted to write.
    pub(super) stopped_share: f64,
    /// Layers of the fullest bucket at the end.
    pub(super) layers_max: usize,
    /// Memtables at memory nodes at each second.
    pub(super) memtables: Vec<f64>,
}

/// Source of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Position of a running job.
    Job(usize),
    Send {
        owner: usize,
        node: usize,
    },
    Write(usize),
}

/// Sums over all owners at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    at_ns: u64,
    written_mb: f64,
    compacted_mb: f64,
    stops: u64,
    wanted_s: f64,
    stopped_s: f64,
}

/// The modelled cluster and its state.
#[derive(Debug)]
pub(super) struct Cluster {
    setting: Setting,
    clock: Arc<ManualClock>,
    pub(super) now_ns: u64,
    pub(super) owners: Vec<Owner>,
    pool: Pool,
    rooms: Vec<Room>,
    executors: Executors,
    jobs: Vec<Job>,
    pub(super) links: Links,
    /// MB/s on each resource in the last step.
    pub(super) used: Vec<f64>,
    /// MB that compactions have moved out of L0.
    pub(super) compacted_mb: f64,
}

impl Cluster {
    pub(super) fn new(setting: Setting) -> Self {
        let clock = Arc::new(ManualClock::new(0));
        let mut rng = Rng::with_seed(setting.seed);
        let memory_nodes = if setting.sends() { setting.memory_nodes } else { 0 };
        let owner = |number: usize| {
            let load = setting.write_load(number, rng.f64());
            Owner::new(OwnerStart {
                number,
                memory_nodes,
                local_memtables: setting.local_memtables(),
                load,
                seed: rng.u64(..),
                clock: &clock,
            })
        };
        let owners: Vec<Owner> = (0..setting.compute_nodes).map(owner).collect();
        let compute = (0..setting.compute_nodes).map(Node::Compute);
        let memory = (0..setting.memory_nodes).map(Node::Memory);
        let storage = (0..setting.factors.storage_executors as usize).map(|_| Node::Storage);
        let executors =
            Executors::new(compute.chain(memory).chain(storage).collect(), &setting.factors);
        let nodes = setting.compute_nodes + setting.memory_nodes;
        let links = Links::new(nodes, setting.factors.link(setting.link));
        let pool = Pool {
            nodes: memory_nodes,
            node_mb: setting.memory_mb() / setting.memory_nodes.max(1) as f64,
            owner_mb_max: setting.owner_mb_max(),
            image_mb: MEMTABLE_MB / BUCKETS as f64,
        };
        Self {
            rooms: vec![Room::default(); owners.len()],
            used: vec![0.0; links.capacities.len()],
            setting,
            clock,
            now_ns: 0,
            owners,
            pool,
            executors,
            jobs: Vec::new(),
            links,
            compacted_mb: 0.0,
        }
    }

    /// Runs for the time of the setting.
    pub(super) fn run(mut self) -> Outcome {
        let end_ns = self.setting.seconds * 1_000_000_000;
        let mut half = None;
        let mut memtables = Vec::new();
        while self.now_ns < end_ns {
            if self.now_ns >= memtables.len() as u64 * SAMPLE_NS {
                memtables.push(self.memtables_away());
            }
            if half.is_none() && self.now_ns >= end_ns / 2 {
                half = Some(self.sums());
            }
            self.step();
        }
        self.outcome(half.unwrap_or_default(), memtables)
    }

    /// Number of memtables at memory nodes.
    fn memtables_away(&self) -> f64 {
        let held = self.owners.iter().flat_map(|owner| &owner.buckets);
        held.map(|bucket| bucket.away_mb()).sum::<f64>() / MEMTABLE_MB
    }

    fn sums(&self) -> Sums {
        let mut sums =
            Sums { at_ns: self.now_ns, compacted_mb: self.compacted_mb, ..Sums::default() };
        for owner in &self.owners {
            sums.written_mb += owner.figures.written_mb;
            sums.stops += owner.figures.stops;
            sums.wanted_s += owner.figures.wanted_s;
            sums.stopped_s += owner.figures.stopped_s;
        }
        sums
    }

    fn outcome(self, half: Sums, memtables: Vec<f64>) -> Outcome {
        let end = self.sums();
        let passed_s = seconds(end.at_ns - half.at_ns).max(1e-9);
        let stopped_s = end.stopped_s - half.stopped_s;
        Outcome {
            mb_per_s: (end.written_mb - half.written_mb) / passed_s,
            compacted_mb_per_s: (end.compacted_mb - half.compacted_mb) / passed_s,
            stops: end.stops - half.stops,
            stopped_share: stopped_s / (end.wanted_s - half.wanted_s).max(1e-9),
            layers_max: self.owners.iter().map(Owner::layers_max).max().unwrap_or(0),
            memtables,
        }
    }

    /// Advances to the next event.
    pub(super) fn step(&mut self) {
        let now_ns = self.now_ns;
        self.owners.iter_mut().for_each(|owner| owner.begin_step(now_ns));
        self.rooms = self.pool.rooms(&self.tenants());
        while let Some(job) = self.next_job() {
            self.begin(job);
        }
        for (owner, room) in self.owners.iter_mut().zip(&self.rooms) {
            let waits = owner.unsent_mb.iter().sum::<f64>() > ROUNDING_MB;
            if waits && room.largest_mb() <= ROUNDING_MB {
                owner.claims_until_ns = now_ns + CLAIM_NS;
            }
            owner.redirect(room);
            owner.decide(room, now_ns);
        }
        let (sources, flows) = self.flows();
        let rates = rates(&flows, &self.links.capacities);
        let step_ns = self.step_ns(&sources, &rates);
        self.note_use(&flows, &rates);
        self.pass(&sources, &rates, step_ns);
    }

    /// Memory that each owner uses.
    fn tenants(&self) -> Vec<Tenant> {
        let tenant = |owner: &Owner| Tenant {
            used_mb: (0..self.pool.nodes).map(|node| owner.held_at(node)).collect(),
            is_refused: self.now_ns < owner.claims_until_ns,
        };
        self.owners.iter().map(tenant).collect()
    }

    /// The next job that may begin. Flushes go before compactions. Among owners, the one with the
    /// fewest running jobs goes first.
    fn next_job(&self) -> Option<Job> {
        if !self.executors.has_slot() {
            return None;
        }
        let running = |owner: &usize| self.jobs.iter().filter(|job| job.owner == *owner).count();
        let mut order: Vec<usize> = (0..self.owners.len()).collect();
        order.sort_by_key(running);
        let flush = order.iter().find_map(|owner| self.next_flush(*owner));
        flush.or_else(|| order.iter().find_map(|owner| self.next_compaction(*owner)))
    }

    fn next_flush(&self, owner: usize) -> Option<Job> {
        let bucket = self.due_bucket(owner)?;
        let own = &self.owners[owner].buckets[bucket];
        let (user_mb, taken_mb) = match self.owners[owner].sends() {
            true => (own.away_mb(), own.held_mb.clone()),
            false => (own.waiting_mb, Vec::new()),
        };
        let executor = self.executor(JobWork::Flush, owner, user_mb, &taken_mb)?;
        Some(Job {
            work: JobWork::Flush,
            owner,
            bucket,
            executor,
            user_mb,
            layers: 0,
            left_mb: user_mb * self.setting.factors.flushed,
            began_ns: self.now_ns,
            uses: self.links.of_flush(executor, self.setting.compute_nodes, &taken_mb),
            taken_mb,
        })
    }

    /// The largest bucket of an owner that is due, by the rule of the engine.
    fn due_bucket(&self, owner: usize) -> Option<usize> {
        let (room, owner) = (&self.rooms[owner], &self.owners[owner]);
        let waiting = owner.buckets.iter().enumerate();
        let waiting = waiting.filter(|(_, bucket)| bucket.flushing_mb <= 0.0);
        if !owner.sends() {
            let waiting = waiting.filter(|(_, bucket)| bucket.waiting_mb > ROUNDING_MB);
            let most = waiting.max_by(|a, b| a.1.waiting_mb.total_cmp(&b.1.waiting_mb));
            return most.map(|(at, _)| at);
        }
        let waiting: Vec<(usize, f64)> = waiting
            .map(|(at, bucket)| (at, bucket.away_mb()))
            .filter(|(_, away)| *away > ROUNDING_MB)
            .collect();
        let range = |(_, away): &(usize, f64)| DueRange {
            figures: RangeFigures {
                data_bytes: bytes(*away),
                apart_bytes: bytes(*away),
                ..RangeFigures::default()
            },
            full_bytes: bytes(MEMTABLE_MB),
        };
        let ranges: Vec<DueRange> = waiting.iter().map(range).collect();
        let leaving: f64 = owner.buckets.iter().map(|bucket| bucket.flushing_mb).sum();
        let pauses = Duration::from_nanos(owner.paused_ns(self.now_ns)) >= WRITE_PAUSE;
        let sends = owner.unsent_mb.iter().sum::<f64>() > ROUNDING_MB;
        let can_send = sends && room.largest_mb() > ROUNDING_MB;
        let is_behind = owner.layers_max() >= L0_TRIGGERS[1];
        let bounds = RestBounds {
            gives_back: pauses && self.owners.len() > 1 && !can_send && !is_behind,
            held_bytes: bytes(room.held_mb),
            leaving_bytes: bytes(leaving),
            limit_bytes: bytes(room.limit_mb),
            ..RestBounds::default()
        };
        let due = flush_due(&ranges, &bounds);
        let due = waiting.iter().zip(due).filter(|(_, reason)| reason.is_some());
        let most = due.max_by(|a, b| a.0.1.total_cmp(&b.0.1));
        most.map(|((at, _), _)| *at)
    }

    /// The compaction of the bucket with the most layers.
    fn next_compaction(&self, owner: usize) -> Option<Job> {
        let buckets = self.owners[owner].buckets.iter().enumerate();
        let ready = buckets.filter(|(_, own)| !own.is_compacting && own.layers >= L0_TRIGGERS[0]);
        let (bucket, own) = ready.max_by_key(|(_, own)| own.layers)?;
        let executor = self.executor(JobWork::Compaction, owner, own.l0_mb, &[])?;
        let factors = &self.setting.factors;
        Some(Job {
            work: JobWork::Compaction,
            owner,
            bucket,
            executor,
            user_mb: own.l0_mb,
            taken_mb: Vec::new(),
            layers: own.layers,
            left_mb: own.l0_mb * (factors.read + factors.written),
            began_ns: self.now_ns,
            uses: self.links.of_compaction(executor, factors),
        })
    }

    fn executor(
        &self,
        work: JobWork,
        owner: usize,
        user_mb: f64,
        taken_mb: &[f64],
    ) -> Option<usize> {
        let can_run = |node| may_run(self.setting.offloaded, work, node, owner);
        self.executors.choose(can_run, user_mb, taken_mb)
    }

    fn begin(&mut self, job: Job) {
        self.executors.busy[job.executor] += 1;
        let bucket = &mut self.owners[job.owner].buckets[job.bucket];
        match job.work {
            JobWork::Flush => bucket.flushing_mb = job.user_mb,
            JobWork::Compaction => bucket.is_compacting = true,
        }
        self.jobs.push(job);
    }

    /// All flows, and their sources.
    fn flows(&self) -> (Vec<Source>, Vec<Flow>) {
        let factors = &self.setting.factors;
        let stream = factors.streams_used * factors.stream;
        let job = |(at, job): (usize, &Job)| {
            let flow = Flow { rate_max: stream, weight: 1.0, uses: job.uses.clone() };
            (Source::Job(at), flow)
        };
        let mut all: Vec<(Source, Flow)> = self.jobs.iter().enumerate().map(job).collect();
        for (owner, room) in self.rooms.iter().enumerate() {
            for (node, free) in room.free_mb.iter().enumerate() {
                if self.owners[owner].unsent_mb[node] > ROUNDING_MB && *free > ROUNDING_MB {
                    let to = self.setting.compute_nodes + node;
                    let links = [self.links.node_out(owner), self.links.node_in(to)];
                    let uses = links.map(|resource| Use { resource, share: 1.0 }).to_vec();
                    let flow = Flow { rate_max: MEMORY_LINK, weight: 1.0, uses };
                    all.push((Source::Send { owner, node }, flow));
                }
            }
        }
        let share = self.setting.read_share();
        for (at, owner) in self.owners.iter().enumerate() {
            let mut flow = Flow { rate_max: owner.allowed_rate(), weight: 1.0, uses: Vec::new() };
            if share > 0.0 {
                flow.weight = self.setting.read_streams();
                flow.uses.push(Use { resource: self.links.storage_in(at), share });
            }
            all.push((Source::Write(at), flow));
        }
        all.into_iter().unzip()
    }

    /// Time until the next event.
    fn step_ns(&self, sources: &[Source], rates: &[f64]) -> u64 {
        let mut next_s = seconds(STEP_NS_MAX);
        for (source, rate) in sources.iter().zip(rates).filter(|(_, rate)| **rate > 0.0) {
            let left_mb = match *source {
                Source::Job(at) => self.jobs[at].left_mb,
                Source::Send { owner, node } => {
                    self.owners[owner].unsent_mb[node].min(self.rooms[owner].free_mb[node])
                }
                Source::Write(owner) => self.owners[owner].writable_mb(),
            };
            next_s = next_s.min(left_mb / rate);
        }
        let step_ns = ((next_s * 1e9).ceil() as u64).max(STEP_NS_MIN);
        let bursts = self.owners.iter().filter_map(|owner| owner.until_burst_ns(self.now_ns));
        bursts.fold(step_ns, |step_ns, until_ns| step_ns.min(until_ns.max(STEP_NS_MIN)))
    }

    /// Notes the use of links, by which the scheduler chooses executors.
    fn note_use(&mut self, flows: &[Flow], rates: &[f64]) {
        self.used.fill(0.0);
        for (flow, rate) in flows.iter().zip(rates) {
            for used in &flow.uses {
                self.used[used.resource] += rate * used.share;
            }
        }
        for node in 0..self.links.nodes {
            let link = self.links.storage_out(node);
            self.executors.written_share[node] = self.used[link] / self.links.capacities[link];
        }
    }

    /// Advances the clock, and moves the bytes of all flows.
    fn pass(&mut self, sources: &[Source], rates: &[f64], step_ns: u64) {
        self.now_ns += step_ns;
        self.clock.advance(Duration::from_nanos(step_ns));
        let (now_ns, passed_s) = (self.now_ns, seconds(step_ns));
        for (source, rate) in sources.iter().zip(rates) {
            match *source {
                Source::Job(at) => self.jobs[at].left_mb -= rate * passed_s,
                Source::Send { owner, node } => {
                    let sent = (rate * passed_s).min(self.rooms[owner].free_mb[node]);
                    self.owners[owner].sent(node, sent, now_ns);
                }
                Source::Write(owner) => self.owners[owner].write(*rate, passed_s, now_ns),
            }
        }
        let (ended, running): (Vec<Job>, Vec<Job>) =
            self.jobs.drain(..).partition(|job| job.left_mb <= ROUNDING_MB);
        self.jobs = running;
        for job in ended {
            self.end(&job);
        }
    }

    fn end(&mut self, job: &Job) {
        self.executors.busy[job.executor] -= 1;
        let alike = |other: &&Job| other.owner == job.owner && other.work == job.work;
        let parallel = self.jobs.iter().filter(alike).count() + 1;
        if job.work == JobWork::Compaction {
            self.compacted_mb += job.user_mb;
        }
        self.owners[job.owner].ended(job, parallel, self.now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::bounds::StorageLink;
    use super::*;

    const PAUSE_NS: u64 = WRITE_PAUSE.as_nanos() as u64;

    /// The bucket of the first database that is due at `now_ns`. The database holds 20 MB of one
    /// bucket at the memory node and has written nothing since the beginning.
    fn due_at(now_ns: u64, compute_nodes: usize, is_in_burst: bool) -> Option<usize> {
        let mut cluster = Cluster::new(Setting::writes(compute_nodes, StorageLink::One, 1));
        cluster.owners[0].buckets[3].held_mb[0] = 20.0;
        if is_in_burst {
            cluster.owners[0].begin_step(0);
        }
        cluster.now_ns = now_ns;
        cluster.rooms = cluster.pool.rooms(&cluster.tenants());
        cluster.due_bucket(0)
    }

    #[test]
    fn pause_makes_images_due_if_other_databases_share_the_nodes() {
        assert_eq!(due_at(PAUSE_NS - 1, 2, false), None);
        assert_eq!(due_at(PAUSE_NS, 2, false), Some(3));
        assert_eq!(due_at(PAUSE_NS, 2, true), None, "writers that wait do not pause");
    }

    #[test]
    fn database_alone_keeps_its_images_in_a_pause() {
        assert_eq!(due_at(100 * PAUSE_NS, 1, false), None);
    }
}
