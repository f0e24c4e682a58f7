//! The manager of a run: the table of members behind a handler, its timer, the replacement of the
//! root set, and the repairs of some runs. The role of the manager does the same with threads.
//!
//! Thread-safety: the thread that runs the simulation calls everything.
//! Failure: a replacement of the root set that failed is tried again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::{Host, Scheduler};
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{Handler, Listener, NodeId, Provider, Reply, Request};
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::members::{ManagerPart, MemberTable, MemberTerms};
use archipelago_store::nodes::register::caspaxos::root_change::RootChangeSabotage;
use archipelago_store::nodes::registers::NodeRegister;
use archipelago_store::nodes::repairs::RepairManager;
use archipelago_store::nodes::wire::{RepairStatus, StoreMessage, envelope};
use parking_lot::Mutex;

/// Host and address of the manager.
pub(crate) const MANAGER: &str = "manager";
/// Time between two readings of the clock.
const TICK: Duration = Duration::from_millis(100);

/// Settings of a manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManagerSettings {
    /// Times of the members, and of repairs.
    pub(crate) terms: MemberTerms,
    /// Steps that replacements of the root set leave out.
    pub(crate) root_change: RootChangeSabotage,
    /// Whether the manager has lost copies made again.
    pub(crate) has_repairs: bool,
}

/// A running manager.
pub(crate) struct ManagerProcess {
    table: Arc<Mutex<MemberTable>>,
    repairs: Option<Arc<RepairManager>>,
    scheduler: Scheduler,
    _listener: Box<dyn Listener>,
}

impl fmt::Debug for ManagerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ManagerProcess")
    }
}

struct ManagerHandler {
    table: Arc<Mutex<MemberTable>>,
    scheduler: Scheduler,
}

impl Handler for ManagerHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (message, _) = envelope::open(request.body).expect("a message of the store");
        let now_ns = self.scheduler.now_ns();
        let answer = self.table.lock().handle(now_ns, ManagerPart::Acts, &message);
        reply.send(envelope::seal(&answer, &[]));
    }
}

impl ManagerProcess {
    /// Starts a manager that knows nothing.
    pub(crate) fn start(sim: &Sim, settings: ManagerSettings) -> Self {
        let ManagerSettings { terms, root_change, has_repairs } = settings;
        let host = sim.host();
        let scheduler = host.scheduler().clone();
        let table = MemberTable::new(terms, scheduler.fresh_seed(), scheduler.now_ns());
        let table = Arc::new(Mutex::new(table));
        let handler = ManagerHandler { table: Arc::clone(&table), scheduler: scheduler.clone() };
        let life = Epoch(u64::from(host.life().number) + 1);
        let node = sim.network().node(NodeId(u64::MAX), life, Some(Box::new(handler)));
        let node = node.expect("a node of the fabric");
        let listener = sim.serve(&node, MANAGER).expect("a host serves its name");
        let work = watch(host.clone(), sim.clone(), Arc::clone(&table), root_change);
        let _ends_with_the_host = host.spawn("timer", work);
        let repairs = has_repairs.then(|| start_repairs(sim, terms, &table));
        Self { table, repairs, scheduler, _listener: listener }
    }

    /// How far the repairs are; `None` for a manager that makes none.
    pub(crate) fn repair_status(&self) -> Option<RepairStatus> {
        let view = self.look(|table| table.repair_view(self.scheduler.now_ns(), true));
        self.repairs.as_ref().map(|repairs| repairs.status_for(&view))
    }

    /// The answer to an operator's request.
    pub(crate) fn ask(&self, message: &StoreMessage) -> StoreMessage {
        let now_ns = self.scheduler.now_ns();
        self.table.lock().handle(now_ns, ManagerPart::Acts, message)
    }

    /// Looks at the members.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&MemberTable) -> T) -> T {
        look(&self.table.lock())
    }
}

/// Starts the task that has lost copies made again.
fn start_repairs(
    sim: &Sim,
    terms: MemberTerms,
    table: &Arc<Mutex<MemberTable>>,
) -> Arc<RepairManager> {
    let host = sim.host();
    let runtime: Arc<dyn Runtime> = Arc::new(host.clone());
    let client = NodeClient::new(Arc::new(sim.clone()), runtime, vec![MANAGER.to_owned()]);
    let repairs = RepairManager::new(client, terms.repair);
    let (table, scheduler) = (Arc::clone(table), host.scheduler().clone());
    let look = move || Some(table.lock().repair_view(scheduler.now_ns(), true));
    let _ends_with_the_host = host.spawn("repairs", Arc::clone(&repairs).run(look));
    repairs
}

/// Moves the time of the table, and replaces the root set when the table wants it.
async fn watch(host: Host, sim: Sim, table: Arc<Mutex<MemberTable>>, sabotage: RootChangeSabotage) {
    let runtime: Arc<dyn Runtime> = Arc::new(host);
    let client = NodeClient::new(Arc::new(sim), Arc::clone(&runtime), vec![MANAGER.to_owned()]);
    loop {
        runtime.sleep(TICK).await;
        let wanted = {
            let mut table = table.lock();
            table.on_timer(runtime.now_ns(), ManagerPart::Acts);
            table.wanted_root_set()
        };
        let Some(wanted) = wanted else { continue };
        if client.refresh().await.is_err() {
            continue;
        }
        let register = NodeRegister::new(&client).sabotaged(sabotage);
        if let Ok(next) = register.replace_root_set(&wanted.old, wanted.members).await {
            table.lock().root_set_is(&next);
        }
    }
}
