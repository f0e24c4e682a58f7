//! A manager with a scheduler in this process, which listens on a port of loopback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::clock::SystemClock;
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_fabric::{Endpoints, Handler, Listener, Node, NodeId, Reply, Request};
use archipelago_offload::net::SchedulerDesk;
use archipelago_offload::scheduler::SchedulerCounters;

struct Shared {
    desk: SchedulerDesk,
    /// Term of the manager.
    term: AtomicU64,
    /// Whether the manager answers as one whose scheduler has not begun.
    has_no_scheduler: AtomicBool,
    is_stopped: AtomicBool,
}

impl Shared {
    fn term(&self) -> Option<u64> {
        let has_no_scheduler = self.has_no_scheduler.load(Ordering::SeqCst);
        (!has_no_scheduler).then(|| self.term.load(Ordering::SeqCst))
    }
}

struct Front(Arc<Shared>);

impl Handler for Front {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.desk.handle(self.0.term(), &request, reply);
    }
}

/// A running manager.
pub(crate) struct Office {
    shared: Arc<Shared>,
    ticking: Option<Joiner>,
    listener: Option<Box<dyn Listener>>,
    address: String,
    _node: Arc<Node>,
}

impl Office {
    pub(crate) fn start() -> Self {
        let shared = Arc::new(Shared {
            desk: SchedulerDesk::new(&SystemClock::shared()),
            term: AtomicU64::new(1),
            has_no_scheduler: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        });
        let front = Front(Arc::clone(&shared));
        let node = Node::new(NodeId(u64::MAX), Epoch(1), Some(Box::new(front))).unwrap();
        let listener = Endpoints::new().serve(&node, "tcp:127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", listener.address());
        let ticks = Arc::clone(&shared);
        let work = move || {
            while !ticks.is_stopped.load(Ordering::SeqCst) {
                ticks.desk.tick(ticks.term());
                SystemClock::shared().sleep(Duration::from_millis(5));
            }
        };
        let ticking = SystemSpawn.spawn("office-tick", Box::new(work)).unwrap();
        let (ticking, listener) = (Some(ticking), Some(listener));
        Self { shared, ticking, listener, address, _node: node }
    }

    /// Endpoints for owners and executors.
    pub(crate) fn managers(&self) -> Vec<String> {
        vec![self.address.clone()]
    }

    /// Begins another life of the scheduler, without any state.
    pub(crate) fn restart(&self) {
        self.shared.term.fetch_add(1, Ordering::SeqCst);
        self.shared.has_no_scheduler.store(false, Ordering::SeqCst);
    }

    /// Ends the scheduler until the next [`Office::restart`].
    pub(crate) fn end_scheduler(&self) {
        self.shared.has_no_scheduler.store(true, Ordering::SeqCst);
    }

    pub(crate) fn counters(&self) -> SchedulerCounters {
        self.shared.desk.figures().unwrap().counters
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        self.ticking.take().unwrap().join().unwrap();
        drop(self.listener.take());
    }
}
