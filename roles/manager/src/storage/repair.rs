//! Repairs of lost copies: a task of the manager with a client of its own.
//!
//! The protocol is that of the store's crate ([`RepairManager`]). The task ends with the manager.
//!
//! Thread-safety: any thread may call any method.
//! Failure: without threads for tasks there are no repairs, and the log says so.
//! Cost: one check of the members twice per second.

use std::sync::{Arc, Weak};

use archipelago_base::runtime::{Runtime, ThreadRuntime};
use archipelago_fabric::Reach;
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::members::{ManagerPart, MemberTable};
use archipelago_store::nodes::repairs::{RepairManager, RepairView};

use super::StorageRpc;

impl StorageRpc {
    /// Starts the task. `ways` are the endpoints at which its client asks for the members.
    pub(super) fn start_repairs(self: &Arc<Self>, ways: Vec<String>) {
        let runtime: Arc<dyn Runtime> = match ThreadRuntime::shared() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "this manager repairs no lost copies");
                return;
            }
        };
        let reach = Arc::clone(&self.endpoints) as Arc<dyn Reach>;
        let client = NodeClient::new(reach, Arc::clone(&runtime), ways);
        let repairs = RepairManager::new(client, self.terms.repair);
        if self.repairs.set(Arc::clone(&repairs)).is_err() {
            return;
        }
        let rpc: Weak<Self> = Arc::downgrade(self);
        let look = move || rpc.upgrade().map(|rpc| rpc.repair_view());
        runtime.spawn("storage-repairs", Box::pin(repairs.run(look)));
    }

    fn repair_view(&self) -> RepairView {
        let acts = self.part() == ManagerPart::Acts;
        self.table.lock().repair_view(self.clock.now_ns(), acts)
    }

    /// Copies the progress of the repairs into the table of members. A beat that the table takes
    /// after that may report another state of its node, so the caller holds the lock of the table
    /// until it has read both.
    pub(super) fn note_repairs(&self, table: &mut MemberTable, part: ManagerPart) {
        if let Some(repairs) = self.repairs.get() {
            let view = table.repair_view(self.clock.now_ns(), part == ManagerPart::Acts);
            table.note_repairs(repairs.status_for(&view));
        }
    }
}
