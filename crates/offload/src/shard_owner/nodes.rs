//! The memory nodes of a cluster, as its manager knows them.
//!
//! An owner joins the pool as a client without blocks, so that the manager reports to it the living
//! nodes and their endpoints. If the manager does not answer, the owner keeps trying and uses the
//! nodes that it knows.
//!
//! Thread-safety: any thread may call any method.
//! Failure: without a manager there are no nodes, and every shard stays in the process.
//! Cost: one request per third of a lease.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_fabric::Reach;
use archipelago_pool::{PoolClient, PoolOptions};
use parking_lot::Mutex;

use super::state::MemoryNode;

/// Interval at which the task checks whether the pool has dropped this client.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a renewal that no manager has answered.
const RENEWAL_PAUSE: Duration = Duration::from_millis(200);
/// Label of pool clients that own memtable shards: `shards` in ASCII.
const LABEL: u64 = 0x0073_6861_7264_7300;

/// Source of the list of memory nodes, for an owner.
pub trait NodeList: Send + Sync + fmt::Debug + 'static {
    /// All nodes that are known now. `None` if the source has no list at the moment; the owner then
    /// keeps the previous list.
    fn nodes(&self) -> Option<Vec<MemoryNode>>;
}

/// The memory nodes of a pool.
pub struct PoolNodes {
    client: Mutex<Option<PoolClient>>,
}

impl fmt::Debug for PoolNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolNodes({:?})", self.client.lock())
    }
}

impl PoolNodes {
    /// Joins the pool with these managers in the background. Dropping the value leaves the pool.
    #[must_use]
    pub fn join(
        managers: Vec<String>,
        reach: &Arc<dyn Reach>,
        runtime: &Arc<dyn Runtime>,
    ) -> Arc<Self> {
        let nodes = Arc::new(Self { client: Mutex::default() });
        let mut options = PoolOptions::new(String::new(), LABEL);
        options.manager = managers;
        options.pace.renewal = RENEWAL_PAUSE;
        let (weak, reach) = (Arc::downgrade(&nodes), Arc::clone(reach));
        let joining = keep_joined(weak, options, reach, Arc::clone(runtime));
        runtime.spawn("shard-nodes", Box::pin(joining));
        nodes
    }
}

async fn keep_joined(
    nodes: Weak<PoolNodes>,
    options: PoolOptions,
    reach: Arc<dyn Reach>,
    runtime: Arc<dyn Runtime>,
) {
    let mut is_known_silent = false;
    loop {
        let needs_client = match nodes.upgrade() {
            None => return,
            Some(nodes) => nodes.client.lock().as_ref().is_none_or(PoolClient::is_evicted),
        };
        if needs_client {
            let (reach, runtime) = (Arc::clone(&reach), Arc::clone(&runtime));
            match PoolClient::join(options.clone(), reach, runtime).await {
                Ok(client) => {
                    let Some(nodes) = nodes.upgrade() else { return };
                    let before = nodes.client.lock().replace(client);
                    is_known_silent = false;
                    drop(before);
                }
                Err(error) if !std::mem::replace(&mut is_known_silent, true) => {
                    tracing::warn!(%error, "no manager answers: memtables stay in this process");
                }
                Err(_) => {}
            }
        }
        runtime.sleep(LOOK).await;
    }
}

impl NodeList for PoolNodes {
    fn nodes(&self) -> Option<Vec<MemoryNode>> {
        let client = self.client.lock().clone().filter(|client| !client.is_evicted())?;
        let nodes = client.members().into_iter().map(|member| MemoryNode {
            node: member.node,
            life: member.life,
            endpoints: member.endpoints,
            is_up: member.up,
        });
        Some(nodes.collect())
    }
}
