//! The threads of a proxy: the cost of each index request, and the queue of requests at a thread.
//!
//! The fabric charges a machine's threads for receiving and sending a message. Here the same
//! messages also occupy a thread of the proxy, which takes them from the card, reads the slots and
//! posts the answer. The costs, from the model:
//!
//! | request | takes |
//! | --- | --- |
//! | search, locate | a message received and one sent, a local READ for each of two buckets |
//! | write | the same messages, a local READ (the lock of the key) and a local swap |
//! | a whole request under ownership | the same messages, two local READs |
//! | a set that is left to the proxy | the same messages, two local READs (the line of the key, its slot) and a local swap |
//!
//! All other work (orders, counters, freed records) takes no time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::simulation::Host;
use archipelago_fabric::sim::Model;
use archipelago_fabric::{Handler, Reply, Request};
use parking_lot::Mutex;

const MODEL: Model = Model::CONNECTX3;
const MESSAGES_PS: u64 = 2 * MODEL.message_ps;

/// Costs by the kind of a message, which is its second byte.
fn cost_ps(body: &[u8]) -> u64 {
    if archipelago_flexkv_rivals::is_request(body) {
        return MESSAGES_PS + 2 * MODEL.local_read_ps;
    }
    match body.get(1) {
        Some(1 | 18) => MESSAGES_PS + 2 * MODEL.local_read_ps,
        Some(3) => MESSAGES_PS + MODEL.local_read_ps + MODEL.local_swap_ps,
        Some(15) => MESSAGES_PS + 2 * MODEL.local_read_ps + MODEL.local_swap_ps,
        _ => 0,
    }
}

/// A handler that a proxy's threads execute.
pub(super) struct Threaded {
    inner: Arc<dyn Handler>,
    host: Host,
    free_ps: Mutex<Vec<u64>>,
    busy_ps: Arc<AtomicU64>,
}

impl Threaded {
    /// The handler, and a counter of the busy time of all threads.
    pub(super) fn new(
        inner: Box<dyn Handler>,
        host: &Host,
        threads: usize,
    ) -> (Self, Arc<AtomicU64>) {
        let (busy_ps, free_ps) = (Arc::default(), Mutex::new(vec![0; threads.max(1)]));
        let (inner, host) = (Arc::from(inner), host.clone());
        (Self { inner, host, free_ps, busy_ps: Arc::clone(&busy_ps) }, busy_ps)
    }
}

impl Handler for Threaded {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let cost_ps = cost_ps(request.body);
        if cost_ps == 0 {
            return self.inner.handle(request, reply);
        }
        self.busy_ps.fetch_add(cost_ps, Ordering::Relaxed);
        let scheduler = self.host.scheduler();
        let now_ps = scheduler.now_ns() * 1000;
        let end_ps = {
            let mut free_ps = self.free_ps.lock();
            let first = free_ps.iter_mut().min().expect("at least one thread");
            *first = (*first).max(now_ps) + cost_ps;
            *first
        };
        let (inner, body) = (Arc::clone(&self.inner), request.body.to_vec());
        let Request { client, number, deadline, answer_bytes_max, .. } = request;
        let serve = move || {
            let request = Request { client, number, deadline, answer_bytes_max, body: &body };
            inner.handle(request, reply);
        };
        scheduler.at(end_ps.div_ceil(1000), self.host.life(), serve);
    }
}
