//! Replaces the root set if the table of members wants other members in it, or if a member lacks
//! the values of the set.
//!
//! The manager runs it as a task, with a client of its own. The steps are those of the store's
//! crate ([`NodeRegister::replace_root_set`]), and any number of managers may repeat them.
//!
//! A member that was down when the others got their copies does not count in its set. The manager
//! looks for such members from time to time ([`NodeRegister::members_without_copy`]), and brings
//! them in by a set with the same members and the next number.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a replacement that failed is logged, and tried again after [`AGAIN`].
//! Cost: one check of the members four times per second. One short request per root node in each
//! [`LOOK_FOR_COPIES`].

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

/// Time between two checks of the root set.
const LOOK: Duration = Duration::from_millis(250);
/// Time from a failed replacement to the next check.
const AGAIN: Duration = Duration::from_secs(5);
/// Time between two searches for members without a copy.
const LOOK_FOR_COPIES: Duration = Duration::from_secs(60);

/// The work of one task on the root set.
enum RootTask {
    /// Replaces members of the set.
    Replace(RootReplacement),
    /// Looks for members of this set that lack its values, and brings them in.
    LookForCopies(RootSet),
}

impl StorageRpc {
    /// Starts a task that replaces the root set if it needs other members, or that looks for
    /// members without a copy when that is due. Does nothing while such a task runs.
    pub(super) fn watch_root_set(self: &Arc<Self>) {
        let now_ns = self.clock.now_ns();
        if now_ns < self.look_ns.load(Ordering::Relaxed) || self.is_replacing.load(Ordering::SeqCst)
        {
            return;
        }
        self.look_in(LOOK);
        let Some(task) = self.due_task(now_ns) else { return };
        let (Some(ways), Ok(runtime)) = (self.ways.get().cloned(), ThreadRuntime::shared()) else {
            return;
        };
        self.is_replacing.store(true, Ordering::SeqCst);
        let replacing = Arc::clone(self);
        let runtime = runtime as Arc<dyn Runtime>;
        let on = Arc::clone(&runtime);
        let task = async move {
            match replacing.carry_out(&task, ways, runtime).await {
                Ok(Some(next)) => {
                    tracing::info!(?next, "the root set was replaced");
                    replacing.table.lock().root_set_is(&next);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "the root set was not replaced");
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

    /// The task that is due now, if one is.
    fn due_task(&self, now_ns: u64) -> Option<RootTask> {
        let table = self.table.lock();
        if let Some(wanted) = table.wanted_root_set() {
            return Some(RootTask::Replace(wanted));
        }
        if now_ns < self.copies_ns.load(Ordering::Relaxed) {
            return None;
        }
        let root_set = table.settled_root_set()?;
        let next_ns = now_ns.saturating_add(LOOK_FOR_COPIES.as_nanos() as u64);
        self.copies_ns.store(next_ns, Ordering::Relaxed);
        Some(RootTask::LookForCopies(root_set))
    }

    /// Carries out a task. Returns the new root set, if the task made one.
    async fn carry_out(
        &self,
        task: &RootTask,
        ways: Vec<String>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Option<RootSet>> {
        let reach = Arc::clone(&self.endpoints) as Arc<dyn Reach>;
        let client = NodeClient::new(reach, runtime, ways);
        client.refresh().await?;
        let register = NodeRegister::new(&client);
        let (old, members) = match task {
            RootTask::Replace(wanted) => (&wanted.old, wanted.members.clone()),
            RootTask::LookForCopies(root_set) => {
                let without = register.members_without_copy(root_set).await;
                if without.is_empty() {
                    return Ok(None);
                }
                tracing::warn!(?without, "root nodes lack the values of their set; copying them");
                (root_set, root_set.members.clone())
            }
        };
        register.replace_root_set(old, members).await.map(Some)
    }
}
