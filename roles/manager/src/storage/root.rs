//! The replacement of the root set, when the table of members wants other members in it.
//!
//! The manager runs it as a task, with a client of its own. The steps are those of the store's
//! crate ([`NodeRegister::replace_root_set`]), and any number of managers may repeat them.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a replacement that failed is logged, and tried again after [`AGAIN`].
//! Cost: a look at the members four times per second.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::{Runtime, ThreadRuntime};
use archipelago_fabric::Reach;
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::members::RootReplacement;
use archipelago_store::nodes::register::caspaxos::RootSet;
use archipelago_store::nodes::registers::NodeRegister;

use super::StorageRpc;

/// Time between two looks at the root set.
const LOOK: Duration = Duration::from_millis(250);
/// Time from a replacement that failed to the next look.
const AGAIN: Duration = Duration::from_secs(5);

impl StorageRpc {
    /// Begins to replace the root set if it needs other members and no replacement runs.
    pub(super) fn watch_root_set(self: &Arc<Self>) {
        let now_ns = self.clock.now_ns();
        if now_ns < self.look_ns.load(Ordering::Relaxed) || self.is_replacing.load(Ordering::SeqCst)
        {
            return;
        }
        self.look_in(LOOK);
        let Some(wanted) = self.table.lock().wanted_root_set() else { return };
        let (Some(ways), Ok(runtime)) = (self.ways.get().cloned(), ThreadRuntime::shared()) else {
            return;
        };
        self.is_replacing.store(true, Ordering::SeqCst);
        let replacing = Arc::clone(self);
        let runtime = runtime as Arc<dyn Runtime>;
        let on = Arc::clone(&runtime);
        let task = async move {
            let replaced = replacing.replace(&wanted, ways, runtime).await;
            match replaced {
                Ok(next) => {
                    tracing::info!(old = ?wanted.old, ?next, "the root set was replaced");
                    replacing.table.lock().root_set_is(&next);
                }
                Err(error) => {
                    tracing::warn!(%error, old = ?wanted.old, "the root set was not replaced");
                    replacing.look_in(AGAIN);
                }
            }
            replacing.is_replacing.store(false, Ordering::SeqCst);
        };
        on.spawn("storage-root-set", Box::pin(task));
    }

    fn look_in(&self, pause: Duration) {
        let at_ns = self.clock.now_ns().saturating_add(pause.as_nanos() as u64);
        self.look_ns.store(at_ns, Ordering::Relaxed);
    }

    async fn replace(
        &self,
        wanted: &RootReplacement,
        ways: Vec<String>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<RootSet> {
        let reach = Arc::clone(&self.endpoints) as Arc<dyn Reach>;
        let client = NodeClient::new(reach, runtime, ways);
        client.refresh().await?;
        let register = NodeRegister::new(&client);
        register.replace_root_set(&wanted.old, wanted.members.clone()).await
    }
}
