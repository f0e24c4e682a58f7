//! The coordinator of FlexKV in the manager's process: one store per cluster.
//!
//! The manager's listeners receive the messages of the store, which differ from those of the pool
//! in the first byte. The coordinator begins with the first message of a compute node. It joins the
//! pool as a client of a label of its own, so that it adopts no block of a dead compute node. It
//! hosts the state machine. Until it has joined, it declines requests, and compute nodes repeat
//! them. They send a message in every lease, so a restarted manager begins immediately.
//!
//! Invariants:
//! 1. A process hosts at most one coordinator. If the pool declares it dead, because the process
//!    was stopped, the next message begins another one under a larger term.
//! 2. A standby manager hosts no coordinator. It declines the messages of the store, and drops its
//!    coordinator.
//! 3. The coordinator keeps nothing on disk.
//!
//! Thread-safety: any thread may call any method.
//! Failure: the coordinator tries to join the pool again without a limit.
//! Cost: three tasks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::{Runtime, ThreadRuntime};
use archipelago_fabric::{Endpoints, Handler, Reply, Request};
use archipelago_flexkv::FlexKvSettings;
use archipelago_flexkv::coordinator::{Coordinator, CoordinatorRpc, Plan, Rhythm, directory_label};
use archipelago_flexkv::wire::{Grant, Message, StoreStatus, Why, is_ours};
use archipelago_offload::net::SchedulerDesk;
use archipelago_offload::wire::is_offload_message;
use archipelago_pool::{PoolClient, PoolOptions};
use archipelago_store::nodes::wire::is_store_message;
use parking_lot::RwLock;

use crate::rpc::ManagerRpc;
use crate::storage::StorageRpc;

/// Slow ticks, because each tick wakes threads of an idle process. A node is declared dead after
/// its lease of a second anyway.
const RHYTHM: Rhythm = Rhythm { tick: Duration::from_millis(20), watch: Duration::from_millis(50) };
/// Pause between two tries to join the pool.
const AGAIN: Duration = Duration::from_millis(100);

struct Hosted {
    /// Keeps the ticks of the coordinator alive.
    rpc: Arc<CoordinatorRpc>,
    handler: Box<dyn Handler>,
}

/// Starts and ends the coordinator of a store.
pub(crate) struct Store {
    plan: Plan,
    endpoints: Arc<Endpoints>,
    runtime: Arc<ThreadRuntime>,
    /// Endpoints of this manager.
    ways: OnceLock<Vec<String>>,
    beginning: AtomicBool,
    hosted: RwLock<Option<Arc<Hosted>>>,
}

/// The fabric's handler of a manager, which distributes the messages of the pool, of FlexKV's
/// store, of storage nodes and of offloaded jobs.
pub(crate) struct Front {
    pub(crate) pool: Box<dyn Handler>,
    pub(crate) offload: Arc<SchedulerDesk>,
    /// Term of the scheduler, which lives as long as the process, also while the manager stands by.
    pub(crate) scheduler_term: u64,
    pub(crate) store: Weak<Store>,
    pub(crate) storage: Arc<StorageRpc>,
    pub(crate) rpc: Arc<ManagerRpc>,
}

impl Handler for Front {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if is_store_message(request.body) {
            self.storage.handle(&request, reply);
        } else if is_offload_message(request.body) {
            self.offload.handle(Some(self.scheduler_term), &request, reply);
        } else if !is_ours(request.body) {
            self.pool.handle(request, reply);
        } else if !self.rpc.is_acting() {
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

    /// Drops the coordinator, because the manager is not in office any more. The next message
    /// begins another one.
    pub(crate) fn retire(&self) {
        let retired = self.hosted.write().take();
        if retired.is_some() {
            tracing::warn!("the store's coordinator ends with the manager's office");
        }
    }

    /// Status of the store, without the counters of its nodes. `None` while no coordinator runs.
    pub(crate) fn status(&self) -> Option<StoreStatus> {
        let hosted = self.hosted.read().clone()?;
        (!hosted.rpc.is_over()).then(|| hosted.rpc.look(Coordinator::status))
    }

    /// Sets the endpoints of the manager, which listens now.
    pub(crate) fn reached_at(&self, ways: Vec<String>) {
        // The call happens once.
        let _known = self.ways.set(ways);
    }

    fn handle(self: &Arc<Self>, request: Request<'_>, reply: Reply) {
        let hosted = self.hosted.read().clone();
        if let Some(hosted) = hosted.filter(|hosted| !hosted.rpc.is_over()) {
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
                    Err(error) => {
                        tracing::warn!(%error, "the store's coordinator could not join the pool");
                    }
                }
                if weak.strong_count() == 0 {
                    return;
                }
                runtime.sleep(AGAIN).await;
            };
            let Some(store) = weak.upgrade() else { return };
            let (rpc, handler) = CoordinatorRpc::new(plan, runtime, endpoints, pool);
            rpc.start(RHYTHM);
            let over = store.hosted.write().replace(Arc::new(Hosted { rpc, handler }));
            store.beginning.store(false, Ordering::SeqCst);
            if over.is_some() {
                tracing::warn!(
                    "the pool declared the store's coordinator dead, and another one begins"
                );
            }
        };
        self.runtime.spawn("flex-coordinator", Box::pin(task));
    }
}
