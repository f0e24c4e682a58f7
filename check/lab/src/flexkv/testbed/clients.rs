//! Clients, each of whose coroutines makes one request after another, and their counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::simulation::Host;
use archipelago_base::{ErrorKind, Result};
use archipelago_fabric::sim::{Model, Sim};
use archipelago_flexkv::coordinator::Tuning;
use archipelago_flexkv_rivals::RivalNode;
use parking_lot::Mutex;

use super::{Request, Setup, Testbed, Workload, workload};

/// Time that clients have for their last requests when they stop.
const LAST: Duration = Duration::from_millis(2);

/// Result of a measured time.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Virtual time, in seconds.
    pub seconds: f64,
    /// Requests that were answered.
    pub operations: u64,
    /// Requests that were reads.
    pub reads: u64,
    /// Reads that found no key.
    pub missing: u64,
    /// Writes that met another write of their key and ended without an effect.
    pub met: u64,
    /// Requests that ended with another error. They do not count as answered.
    pub errors: u64,
    /// Latency of every request in nanoseconds, in ascending order.
    pub latencies_ns: Vec<u64>,
    /// Latency of every read in nanoseconds, in ascending order.
    pub reads_ns: Vec<u64>,
    /// Number of messages that each compute node received.
    pub asked: Vec<u64>,
    /// Number of reads by a cached pair, by a cached address, and by neither.
    pub hits: [u64; 3],
    /// Busiest component, and the fraction of the time for which it worked.
    pub busiest: Vec<(String, f64)>,
}

impl Measured {
    /// Operations per virtual second.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Latency in µs that a given fraction of all requests did not exceed.
    #[must_use]
    pub fn latency_us(&self, share: f64) -> f64 {
        let place = (self.latencies_ns.len() as f64 * share) as usize;
        let at = place.min(self.latencies_ns.len().saturating_sub(1));
        self.latencies_ns.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    }
}

/// A moment of a timeline.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Virtual seconds since the beginning of the timeline.
    pub at_s: f64,
    /// Operations per second since the previous point.
    pub per_s: f64,
    /// Number of proxied partitions in a thousand.
    pub offload: u32,
}

#[derive(Debug, Default)]
struct Tally {
    counting: bool,
    operations: u64,
    reads: u64,
    missing: u64,
    met: u64,
    errors: u64,
    latencies_ns: Vec<u64>,
    reads_ns: Vec<u64>,
}

/// Clients that make requests.
pub(super) struct Clients {
    tally: Arc<Mutex<Tally>>,
    working: Arc<AtomicBool>,
    workload: Arc<Mutex<Arc<dyn Workload>>>,
}

impl Testbed {
    fn clients(&self, workload: Arc<dyn Workload>, clients: usize) -> Clients {
        let coroutines = clients * self.setup.coroutines;
        let clients = Clients {
            tally: Arc::default(),
            working: Arc::new(AtomicBool::new(true)),
            workload: Arc::new(Mutex::new(workload)),
        };
        for machine in &self.machines {
            for _ in 0..coroutines {
                let worker = Worker {
                    node: machine.node.clone(),
                    sim: machine.sim.clone(),
                    setup: self.setup.clone(),
                    tally: Arc::clone(&clients.tally),
                    working: Arc::clone(&clients.working),
                    workload: Arc::clone(&clients.workload),
                    rng: Rng::with_seed(self.simulation.fresh_seed()),
                };
                let _ends_by_itself = Host::spawn(machine.sim.host(), "works", worker.work());
            }
        }
        clients
    }

    /// Runs all clients until the coordinator has found a ratio, or for at most `longest`. If no
    /// ratio is sought, the clients run until the coordinator has reassigned partitions. Returns
    /// the ratio, which is fixed from then on.
    pub fn adapt(&self, workload: Arc<dyn Workload>, tuning: Tuning, longest: Duration) -> u32 {
        let clients = self.clients(workload, self.setup.clients);
        let (rounds, reassigned) = (self.report().samples, self.report().reassignments);
        self.tune(tuning);
        let end_ns = self.now_ns() + longest.as_nanos() as u64;
        while self.now_ns() < end_ns {
            self.simulation.run_for(tuning.interval);
            let report = self.report();
            let ranked = tuning.adapt_ratio || report.reassignments > reassigned;
            if report.steady && ranked && report.samples > rounds + 3 {
                break;
            }
        }
        self.tune(Tuning::FIXED);
        clients.working.store(false, Ordering::Relaxed);
        self.simulation.run_for(LAST * self.setup.stretch);
        self.offload()
    }

    /// Runs the clients for `warm_up` and then for `counted`, of which only the second time is
    /// measured. Then the clients stop.
    pub fn measure(
        &self,
        workload: Arc<dyn Workload>,
        clients: usize,
        warm_up: Duration,
        counted: Duration,
    ) -> Measured {
        let clients = self.clients(workload, clients);
        self.simulation.run_for(warm_up);
        let (before, hits_before, work_before) = (self.served(), self.hits(), self.work());
        clients.tally.lock().counting = true;
        self.simulation.run_for(counted);
        let mut tally = std::mem::take(&mut *clients.tally.lock());
        let (after, hits, work) = (self.served(), self.hits(), self.work());
        clients.working.store(false, Ordering::Relaxed);
        self.simulation.run_for(LAST * self.setup.stretch);
        tally.latencies_ns.sort_unstable();
        tally.reads_ns.sort_unstable();
        let share = |(name, ns): (String, u64)| {
            let ns = ns - work_before.get(&name).copied().unwrap_or(0);
            (name, ns as f64 / counted.as_nanos() as f64)
        };
        let mut busiest: Vec<(String, f64)> = work.into_iter().map(share).collect();
        busiest.sort_by(|a, b| b.1.total_cmp(&a.1));
        busiest.truncate(3);
        Measured {
            seconds: counted.as_secs_f64(),
            operations: tally.operations,
            reads: tally.reads,
            missing: tally.missing,
            met: tally.met,
            errors: tally.errors,
            latencies_ns: tally.latencies_ns,
            reads_ns: tally.reads_ns,
            asked: after.iter().zip(&before).map(|(after, before)| after - before).collect(),
            hits: [0, 1, 2].map(|kind| hits[kind] - hits_before[kind]),
            busiest,
        }
    }

    /// Runs the clients through phases of one length, with a point every `step`.
    pub fn timeline(&self, phases: &[(Arc<dyn Workload>, Duration)], step: Duration) -> Vec<Point> {
        let Some((first, _)) = phases.first() else { return Vec::new() };
        let clients = self.clients(Arc::clone(first), self.setup.clients);
        clients.tally.lock().counting = true;
        let began_ns = self.now_ns();
        let mut points = Vec::new();
        for (workload, length) in phases {
            *clients.workload.lock() = Arc::clone(workload);
            let end_ns = self.now_ns() + length.as_nanos() as u64;
            while self.now_ns() < end_ns {
                self.simulation.run_for(step);
                let tally = std::mem::replace(
                    &mut *clients.tally.lock(),
                    Tally { counting: true, ..Tally::default() },
                );
                points.push(Point {
                    at_s: (self.now_ns() - began_ns) as f64 / 1e9,
                    per_s: tally.operations as f64 / step.as_secs_f64(),
                    offload: self.offload(),
                });
            }
        }
        clients.working.store(false, Ordering::Relaxed);
        self.simulation.run_for(LAST * self.setup.stretch);
        points
    }
}

struct Worker {
    node: RivalNode,
    sim: Sim,
    setup: Setup,
    tally: Arc<Mutex<Tally>>,
    working: Arc<AtomicBool>,
    workload: Arc<Mutex<Arc<dyn Workload>>>,
    rng: Rng,
}

impl Worker {
    async fn work(mut self) {
        let scheduler = self.sim.host().scheduler().clone();
        while self.working.load(Ordering::Relaxed) {
            let workload = Arc::clone(&self.workload.lock());
            let request = workload.next(&mut self.rng);
            let began_ns = scheduler.now_ns();
            self.sim.work(Model::CONNECTX3.local_read_ps).await;
            let done = self.ask(request).await;
            let took_ns = scheduler.now_ns() - began_ns;
            let mut tally = self.tally.lock();
            if !tally.counting {
                continue;
            }
            match done {
                Ok(found) => tally.missing += u64::from(!found),
                Err(error) => {
                    let reads = matches!(request, Request::Read(_));
                    if reads || error.kind() != ErrorKind::Busy {
                        tally.errors += 1;
                        continue;
                    }
                    tally.met += 1;
                }
            }
            tally.operations += 1;
            tally.latencies_ns.push(took_ns);
            if matches!(request, Request::Read(_)) {
                tally.reads += 1;
                tally.reads_ns.push(took_ns);
            }
        }
    }

    /// Whether the key of the request existed. A write always counts as found.
    async fn ask(&self, request: Request) -> Result<bool> {
        let key = |number| workload::key(number, self.setup.key_bytes);
        match request {
            Request::Read(number) => Ok(self.node.get(&key(number)).await?.is_some()),
            Request::Write(number) => {
                let value = workload::value(number, self.setup.value_bytes);
                self.node.set(&key(number), &value, 0).await.map(|()| true)
            }
            Request::Delete(number) => self.node.delete(&key(number)).await.map(|_| true),
        }
    }
}
