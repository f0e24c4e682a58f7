//! The link of a client to one life of a node on one lane.
//!
//! Invariants:
//! 1. Requests leave in the order of their turns, also while the link is being connected.
//! 2. A peer has one session and one link at a time. Another life of the node is another peer.
//! 3. After a failed connection, calls fail with its error for [`RETRY_AFTER`], so that a dead node
//!    costs its callers one attempt.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a link that is unusable is closed, and the next request connects again.
//! Cost: two short locks per request; a connection costs two round trips.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{ClientId, Link, NodeId, Reach, Session};
use parking_lot::Mutex;

use super::super::wire::StorageMember;
use super::turns::{Turn, Turns};

/// Time for which a node that could not be connected is not connected again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Limit of the time of a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Parts of the client that a connection needs.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) reach: Arc<dyn Reach>,
    pub(super) runtime: Arc<dyn Runtime>,
}

#[derive(Debug)]
struct FailedConnection {
    until_ns: u64,
    error: Error,
}

/// The link to one life of a node.
#[derive(Debug)]
pub(super) struct Peer {
    node: NodeId,
    life: Epoch,
    endpoints: Vec<String>,
    session: Arc<Session>,
    link: Mutex<Option<Arc<dyn Link>>>,
    failed: Mutex<Option<FailedConnection>>,
    turns: Arc<Turns>,
    /// Time of the last answer, in nanoseconds of the runtime.
    heard_ns: AtomicU64,
}

impl Peer {
    pub(super) fn new(member: &StorageMember, runtime: &dyn Runtime) -> Arc<Self> {
        Arc::new(Self {
            node: member.node,
            life: member.life,
            endpoints: member.endpoints.clone(),
            session: Session::new(ClientId(runtime.seed())),
            link: Mutex::default(),
            failed: Mutex::default(),
            turns: Arc::default(),
            heard_ns: AtomicU64::new(0),
        })
    }

    /// Whether this is the life and the place of `member`.
    pub(super) fn is(&self, member: &StorageMember) -> bool {
        (self.node, self.life) == (member.node, member.life) && self.endpoints == member.endpoints
    }

    /// Takes the last place of the line of requests.
    pub(super) fn turn(&self) -> Turn {
        self.turns.take()
    }

    /// The link, if it is up.
    pub(super) fn up(&self) -> Option<Arc<dyn Link>> {
        self.link.lock().as_ref().filter(|link| link.closed().is_none()).cloned()
    }

    /// The link. The caller has the turn, and this call connects if the link is down.
    pub(super) async fn link(
        &self,
        surroundings: &Surroundings,
        deadline: Duration,
    ) -> Result<Arc<dyn Link>> {
        if let Some(link) = self.up() {
            return Ok(link);
        }
        let now_ns = surroundings.runtime.now_ns();
        if let Some(failed) = &*self.failed.lock()
            && failed.until_ns > now_ns
        {
            return Err(failed.error.clone());
        }
        let deadline = deadline.min(CONNECT_MAX);
        let peer = Some((self.node, self.life));
        let reach = &surroundings.reach;
        match reach.connect(&self.endpoints, &self.session, peer, deadline).await {
            Ok(link) => {
                *self.failed.lock() = None;
                *self.link.lock() = Some(Arc::clone(&link));
                Ok(link)
            }
            Err(error) => {
                let until_ns = surroundings.runtime.now_ns() + RETRY_AFTER.as_nanos() as u64;
                *self.failed.lock() = Some(FailedConnection { until_ns, error: error.clone() });
                Err(error)
            }
        }
    }

    /// Notes an answer.
    pub(super) fn heard(&self, now_ns: u64) {
        self.heard_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// Whether an answer has come since `since_ns`.
    pub(super) fn was_heard_since(&self, since_ns: u64) -> bool {
        self.heard_ns.load(Ordering::Relaxed) >= since_ns
    }

    /// Closes the link; the next request connects again.
    pub(super) fn hang_up(&self) {
        let link = self.link.lock().take();
        if let Some(link) = link {
            link.close();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.hang_up();
    }
}
