//! The coordinator of the store over remote memory, in the manager's process: one store per
//! cluster.
//!
//! It is reached at the manager's doors: messages of the store are told from the pool's by their
//! first byte. It begins when somebody wants to join a store: joins the pool as a client of a label
//! that nobody else has, so that no block of a dead compute node becomes its own, and hosts the
//! state machine. Until then, and while that takes time, compute nodes are told to ask again. They
//! say every lease that they are there, so a manager that was started anew begins at once. A
//! coordinator that the pool took for dead (this process stood still) is let go, and the next
//! message begins another, under a larger term.
//!
//! A manager that stands by hosts none: it declines the store's messages, and lets go of the
//! coordinator that it had.
//!
//! It stores nothing. Thread-safety: all of it. Failure: a manager that does not let it join is
//! asked again for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::{Runtime, ThreadRuntime};
use archipelago_fabric::{Handler, Reply, Request};
use archipelago_flexkv::FlexKvSettings;
use archipelago_flexkv::coordinator::{Coordinator, CoordinatorRpc, Plan, Rhythm, directory_label};
use archipelago_flexkv::wire::{Grant, Message, Why, is_ours};
use archipelago_pool::{Endpoints, PoolClient, PoolOptions};
use parking_lot::RwLock;

use crate::desk::Desk as PoolDesk;

/// Unhurried: each tick wakes threads of an idle process. A node is taken for dead after its lease,
/// of a second.
const RHYTHM: Rhythm = Rhythm { tick: Duration::from_millis(20), watch: Duration::from_millis(50) };
/// Between two tries to join the pool.
const AGAIN: Duration = Duration::from_millis(100);

struct Hosted {
    /// Ticks for as long as this is there.
    desk: Arc<CoordinatorRpc>,
    handler: Box<dyn Handler>,
}

/// See the module.
pub(crate) struct Store {
    plan: Plan,
    endpoints: Arc<Endpoints>,
    runtime: Arc<ThreadRuntime>,
    /// Where this manager is reached.
    ways: OnceLock<Vec<String>>,
    beginning: AtomicBool,
    hosted: RwLock<Option<Arc<Hosted>>>,
}

/// The fabric's handler of a manager: the pool's messages go to one, the store's to the other.
pub(crate) struct Front {
    pub(crate) pool: Box<dyn Handler>,
    pub(crate) store: Weak<Store>,
    pub(crate) desk: Arc<PoolDesk>,
}

impl Handler for Front {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if !is_ours(request.body) {
            self.pool.handle(request, reply);
        } else if !self.desk.is_acting() {
            let answer = Message::Declined { why: Why::Standby, grant: Grant::default() };
            reply.send(answer.encode());
        } else if let Some(store) = self.store.upgrade() {
            store.handle(request, reply);
        }
    }
}

impl Store {
    pub(crate) fn new(plan: Plan, endpoints: &Arc<Endpoints>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            plan,
            endpoints: Arc::clone(endpoints),
            runtime: ThreadRuntime::shared()?,
            ways: OnceLock::new(),
            beginning: AtomicBool::new(false),
            hosted: RwLock::new(None),
        }))
    }

    /// The manager does not act any more: neither does its coordinator. The next message begins
    /// another.
    pub(crate) fn retire(&self) {
        let retired = self.hosted.write().take();
        if retired.is_some() {
            tracing::warn!("the store's coordinator ends with the manager's office");
        }
    }

    /// The manager can be reached now.
    pub(crate) fn reached_at(&self, ways: Vec<String>) {
        // Said once.
        let _known = self.ways.set(ways);
    }

    fn handle(self: &Arc<Self>, request: Request<'_>, reply: Reply) {
        let hosted = self.hosted.read().clone();
        if let Some(hosted) = hosted.filter(|hosted| !hosted.desk.is_over()) {
            hosted.handler.handle(request, reply);
            return;
        }
        let answer = match Message::decode(request.body) {
            Ok(Message::Status {}) => {
                Message::StatusIs { status: Coordinator::new(self.plan).status() }
            }
            Ok(_) => {
                self.begin();
                Message::Declined { why: Why::OldTerm, grant: Grant::default() }
            }
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                Message::Declined { why: Why::Malformed, grant: Grant::default() }
            }
        };
        reply.send(answer.encode());
    }

    fn begin(self: &Arc<Self>) {
        let Some(ways) = self.ways.get().cloned() else { return };
        if self.beginning.swap(true, Ordering::SeqCst) {
            return;
        }
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let (endpoints, plan) = (Arc::clone(&self.endpoints), self.plan);
        let task = async move {
            let label = directory_label(FlexKvSettings::default().label);
            let options = PoolOptions { manager: ways, ..PoolOptions::new(String::new(), label) };
            let pool = loop {
                let joining = PoolClient::join(options.clone(), endpoints.clone(), runtime.clone());
                match joining.await {
                    Ok(pool) => break pool,
                    Err(error) => tracing::warn!(%error, "the store's coordinator does not join"),
                }
                if weak.strong_count() == 0 {
                    return;
                }
                runtime.sleep(AGAIN).await;
            };
            let Some(store) = weak.upgrade() else { return };
            let (desk, handler) = CoordinatorRpc::new(plan, runtime, endpoints, pool);
            desk.start(RHYTHM);
            let over = store.hosted.write().replace(Arc::new(Hosted { desk, handler }));
            store.beginning.store(false, Ordering::SeqCst);
            if over.is_some() {
                tracing::warn!("the pool took the store's coordinator for dead; another begins");
            }
        };
        self.runtime.spawn("flex-coordinator", Box::pin(task));
    }
}
