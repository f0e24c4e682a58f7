//! A manager of the world: the table of members behind a handler, its timer, and the replacement of
//! the root set. The role of the manager does the same with threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::{Host, Scheduler};
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{Handler, Listener, NodeId, Provider, Reply, Request};
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::members::{ManagerPart, MemberTable};
use archipelago_store::nodes::registers::NodeRegister;
use archipelago_store::nodes::repairs::RepairManager;
use archipelago_store::nodes::wire::{RepairStatus, StorageReport, StoreMessage, envelope};
use parking_lot::Mutex;

use super::{MANAGER, WorldOptions};

/// Time between two runs of the timer.
const TICK: Duration = Duration::from_millis(50);

/// A running manager.
pub(super) struct ManagerProcess {
    table: Arc<Mutex<MemberTable>>,
    repairs: Arc<RepairManager>,
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
    pub(super) fn start(host: &Host, sim: Sim, options: &WorldOptions, seed: u64) -> Self {
        let terms = options.terms;
        let scheduler = host.scheduler().clone();
        let table = Arc::new(Mutex::new(MemberTable::new(terms, seed, scheduler.now_ns())));
        let handler = ManagerHandler { table: Arc::clone(&table), scheduler: scheduler.clone() };
        let life = Epoch(u64::from(host.life().number) + 1);
        let network = Arc::clone(sim.network());
        let node = network.node(NodeId(u64::MAX), life, Some(Box::new(handler))).unwrap();
        let listener = sim.serve(&node, MANAGER).unwrap();
        let repairs = Self::start_repairs(host, &sim, options, &table);
        let _ends_with_the_host = host.spawn("timer", watch(host.clone(), sim, Arc::clone(&table)));
        Self { table, repairs, scheduler, _listener: listener }
    }

    fn start_repairs(
        host: &Host,
        sim: &Sim,
        options: &WorldOptions,
        table: &Arc<Mutex<MemberTable>>,
    ) -> Arc<RepairManager> {
        let runtime: Arc<dyn Runtime> = Arc::new(host.clone());
        let client = NodeClient::new(Arc::new(sim.clone()), runtime, vec![MANAGER.to_owned()]);
        let repairs = RepairManager::new(client, options.terms.repair);
        let (table, scheduler) = (Arc::clone(table), host.scheduler().clone());
        let acts = options.repairs;
        let look = move || Some(table.lock().repair_view(scheduler.now_ns(), acts));
        let _ends_with_the_host = host.spawn("repairs", Arc::clone(&repairs).run(look));
        repairs
    }

    /// Progress of the repairs, as an operator sees it.
    pub(super) fn repairs(&self) -> RepairStatus {
        self.look(|table| self.status_by(table))
    }

    fn status_by(&self, table: &MemberTable) -> RepairStatus {
        self.repairs.status_for(&table.repair_view(self.scheduler.now_ns(), true))
    }

    /// The newest report of a node and the state of repairs, as an operator sees them together.
    pub(super) fn standing(&self, storage: StorageId) -> (StorageReport, RepairStatus) {
        self.look(|table| {
            let nodes = table.status(self.scheduler.now_ns()).nodes;
            let node = nodes.into_iter().find(|node| node.member.storage == storage);
            (node.expect("a node of the cluster").report, self.status_by(table))
        })
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&MemberTable) -> T) -> T {
        look(&self.table.lock())
    }
}

impl ManagerProcess {
    /// The answer to an operator's request.
    pub(super) fn ask(&self, message: &StoreMessage) -> StoreMessage {
        let now_ns = self.scheduler.now_ns();
        self.table.lock().handle(now_ns, ManagerPart::Acts, message)
    }
}

/// Moves the time of the table, and replaces the root set when the table wants it.
async fn watch(host: Host, sim: Sim, table: Arc<Mutex<MemberTable>>) {
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
        let register = NodeRegister::new(&client);
        if let Ok(next) = register.replace_root_set(&wanted.old, wanted.members).await {
            table.lock().root_set_is(&next);
        }
    }
}
