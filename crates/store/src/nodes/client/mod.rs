//! The client of storage nodes: links, calls, members and counters. The drivers of blobs,
//! logs and the register share one.
//!
//! | part | file |
//! | --- | --- |
//! | [`CallOptions`], [`Answer`], [`CallError`] | `call.rs` |
//! | the link to a life of a node, on one [`Lane`] | `peer.rs`, `turns.rs` |
//! | the members, refreshed from the managers | `members.rs` |
//! | counters, and times of calls | `stats.rs` |
//! | times of the operations of drivers | `operations.rs` |
//!
//! A call sends one request to one node. It returns the node's answer, its refusal, or an error
//! that says that no answer came. It does not repeat a request: the drivers know whether another
//! node is better. The only exception is a node that has restarted, which the client looks up and
//! calls once more, because the first attempt was not sent.
//!
//! Invariants:
//! 1. Calls of one lane to one node leave in the order in which [`NodeClient::call`] was called,
//!    and arrive in this order while the link stays up.
//! 2. A request is sent only to the life of the node that the managers named last. A node whose
//!    directory was emptied has another identity.
//! 3. [`CallError::Unreachable`] means that the request was not sent. [`CallError::Unanswered`]
//!    means that it may be executed, now or later.
//! 4. A call that is dropped no longer counts as in flight, but its request may still be executed.
//!
//! Thread-safety: any thread may call any method. Futures run on any executor; code of a
//! simulation polls them in its tasks.
//! Failure: see [`CallError`]. Errors for operators name the node, its address and the request.
//! Cost: one round trip, and six short locks. The payload is copied once, into the buffer of the
//! link, and once more if the call must wait for the link or its turn. An answer is not copied.

mod call;
mod members;
mod operations;
mod peer;
mod stats;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_fabric::{Body, Link, Promise, Reach, Reason, Refusal};
use parking_lot::Mutex;

use self::members::MembersCache;
use self::peer::{Peer, Surroundings};
use self::stats::{CallEnd, CallKind, NodeCalls};
use self::turns::Turn;
use super::StorageId;
use super::placement::NodeReport;
use super::wire::{Members, RefusalWhy, StorageMember, StoreMessage, envelope};

pub use self::call::{Answer, CallError, CallOptions, Lane, Payload};
pub use self::operations::{OperationKind, OperationTimes, StoreOperation};
pub use self::stats::{
    ClientStats, EventCount, NodeCallCounts, NodeCallTimes, StatsSnapshot, StoreEvent,
};

/// Pause between two questions for the members of a cluster that is not ready.
const READY_PAUSE: Duration = Duration::from_millis(100);

/// A client of the storage nodes of one cluster.
#[derive(Debug)]
pub struct NodeClient {
    surroundings: Surroundings,
    members: MembersCache,
    peers: Mutex<BTreeMap<(StorageId, Lane), Arc<Peer>>>,
    stats: ClientStats,
    /// Bytes of payloads that were copied because their requests had to wait.
    #[cfg(test)]
    copied_bytes: AtomicU64,
}

/// A request before it is sent.
struct Outgoing {
    to: StorageId,
    lane: Lane,
    kind: CallKind,
    /// The envelope before the payload.
    head: Vec<u8>,
    /// The payload of a request that could not be sent immediately.
    payload: Vec<u8>,
    how: CallOptions,
}

/// A request that was sent.
struct InFlight {
    peer: Arc<Peer>,
    link: Arc<dyn Link>,
    promise: Promise<Result<Body, Refusal>>,
    waiting: Waiting,
}

/// A call that the node has not answered. Its drop ends the count.
struct Waiting {
    calls: Arc<NodeCalls>,
    kind: CallKind,
    sent_ns: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.calls.left();
    }
}

/// A node in messages: its identity and its address.
#[derive(Clone, Debug)]
pub struct NodeName {
    storage: StorageId,
    endpoints: Vec<String>,
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "storage node {}", self.storage)?;
        match self.endpoints.first() {
            Some(endpoint) => write!(f, " at {endpoint}"),
            None => Ok(()),
        }
    }
}

impl NodeClient {
    /// A client of the cluster whose managers are at `managers` (`tcp:HOST:PORT`). Sends nothing
    /// yet.
    #[must_use]
    pub fn new(
        reach: Arc<dyn Reach>,
        runtime: Arc<dyn Runtime>,
        managers: Vec<String>,
    ) -> Arc<Self> {
        Arc::new(Self {
            members: MembersCache::new(&reach, &runtime, managers),
            surroundings: Surroundings { reach, runtime },
            peers: Mutex::default(),
            stats: ClientStats::default(),
            #[cfg(test)]
            copied_bytes: AtomicU64::new(0),
        })
    }

    /// Time, tasks and seeds of this client, which its drivers use as well.
    #[must_use]
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.surroundings.runtime
    }

    /// Sends a request, and waits for the answer. The request has its place in the order of the
    /// lane when this function returns; it is sent when the future is polled first, or earlier. A
    /// future that is neither polled nor dropped holds up later calls of the lane while the link is
    /// being connected.
    pub fn call(
        self: &Arc<Self>,
        to: StorageId,
        lane: Lane,
        request: &StoreMessage,
        payload: &[u8],
        how: CallOptions,
    ) -> impl Future<Output = Result<Answer, CallError>> + Send + use<> {
        let (kind, head) = (CallKind::of(request), envelope::head(request));
        let mut outgoing = Outgoing { to, lane, kind, head, payload: Vec::new(), how };
        let client = Arc::clone(self);
        let peer = self.peer(to, lane).map(|peer| (peer.turn(), peer));
        let started = match &peer {
            Some((turn, peer)) if turn.is_first() => {
                peer.up().map(|link| client.send(peer, link, &outgoing, payload))
            }
            _ => None,
        };
        if started.is_none() {
            // The request leaves later, and the caller's bytes may be gone then.
            outgoing.payload = payload.to_vec();
            #[cfg(test)]
            self.copied_bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
        }
        // After a request was sent, the next request may pass.
        let waiting = if started.is_some() { None } else { peer };
        async move {
            let in_flight = match started {
                Some(in_flight) => in_flight,
                None => client.start(waiting, &outgoing).await?,
            };
            client.finish(in_flight, &outgoing).await
        }
    }

    /// [`Self::call`] with errors for operators, which name the node and the request.
    pub async fn ask(
        self: &Arc<Self>,
        to: StorageId,
        lane: Lane,
        request: &StoreMessage,
        how: CallOptions,
    ) -> Result<Answer> {
        let answer = self.call(to, lane, request, &[], how).await;
        answer.map_err(|error| error.error(format!("{}, {}", self.name(to), request.name())))
    }

    /// Asks the managers. A refusal is an error.
    pub async fn ask_manager(&self, request: &StoreMessage) -> Result<StoreMessage> {
        self.members.ask(request).await
    }

    /// The members as they are known. If they are old, a task refreshes them.
    #[must_use]
    pub fn members(self: &Arc<Self>) -> Arc<Members> {
        if self.members.is_due() {
            self.refresh_soon();
        }
        self.members.known()
    }

    /// Asks the managers for the members.
    pub async fn refresh(&self) -> Result<Arc<Members>> {
        self.members.refresh().await
    }

    /// Waits until the managers know a cluster. Errors: `Busy` after `patience`, with what the
    /// managers say.
    pub async fn ready(&self, patience: Duration) -> Result<Arc<Members>> {
        let runtime = self.runtime();
        let until_ns = runtime.now_ns().saturating_add(patience.as_nanos() as u64);
        loop {
            let error = match self.refresh().await {
                Ok(members) if members.cluster.is_some() => return Ok(members),
                Ok(members) => Error::busy(format!(
                    "storage pool at {}: the cluster is not founded yet, and {} storage nodes are \
                     known: start storage nodes of enough domains",
                    self.members.managers(),
                    members.members.len()
                )),
                Err(error) => error,
            };
            let is_final =
                matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported);
            if is_final || runtime.now_ns() >= until_ns {
                return Err(error);
            }
            runtime.sleep(READY_PAUSE).await;
        }
    }

    /// Figures of the nodes on which placement depends. Old members are refreshed like in
    /// [`Self::members`].
    #[must_use]
    pub fn reports(self: &Arc<Self>) -> Vec<NodeReport> {
        self.members().reports()
    }

    /// The counters, which the drivers share.
    #[must_use]
    pub fn stats(&self) -> &ClientStats {
        &self.stats
    }

    /// A node in messages.
    #[must_use]
    pub fn name(&self, storage: StorageId) -> NodeName {
        let members = self.members.known();
        let endpoints = members.member(storage).map(|member| member.endpoints.clone());
        NodeName { storage, endpoints: endpoints.unwrap_or_default() }
    }

    fn refresh_soon(self: &Arc<Self>) {
        let client = Arc::clone(self);
        let refresh = async move {
            if let Err(error) = client.refresh().await {
                tracing::debug!(%error, "the members are not refreshed");
            }
        };
        self.runtime().spawn("store-members", Box::pin(refresh));
    }

    /// The link of a node, if the node is known.
    fn peer(self: &Arc<Self>, to: StorageId, lane: Lane) -> Option<Arc<Peer>> {
        let members = self.members();
        let member = members.member(to)?;
        // A peer of an earlier life is dropped after the lock.
        let (peer, _earlier) = self.peer_of(member, lane);
        Some(peer)
    }

    fn peer_of(&self, member: &StorageMember, lane: Lane) -> (Arc<Peer>, Option<Arc<Peer>>) {
        let mut peers = self.peers.lock();
        let key = (member.storage, lane);
        match peers.get(&key) {
            Some(peer) if peer.is(member) => (Arc::clone(peer), None),
            _ => {
                let peer = Peer::new(member, &**self.runtime());
                let earlier = peers.insert(key, Arc::clone(&peer));
                (peer, earlier)
            }
        }
    }

    /// Sends a request over a link that is up. The caller has the turn.
    fn send(
        &self,
        peer: &Arc<Peer>,
        link: Arc<dyn Link>,
        outgoing: &Outgoing,
        payload: &[u8],
    ) -> InFlight {
        let calls = self.stats.node(outgoing.to);
        calls.sent(outgoing.how.class, (outgoing.head.len() + payload.len()) as u64);
        let sent_ns = self.runtime().now_ns();
        let waiting = Waiting { calls, kind: outgoing.kind, sent_ns };
        let promise = link.request(outgoing.how.call(&outgoing.head).with_payload(payload));
        InFlight { peer: Arc::clone(peer), link, promise, waiting }
    }

    /// Connects, and sends a request that could not be sent immediately.
    async fn start(
        self: &Arc<Self>,
        waiting: Option<(Turn, Arc<Peer>)>,
        outgoing: &Outgoing,
    ) -> Result<InFlight, CallError> {
        let failed = match waiting {
            Some((turn, peer)) => match self.connect(turn, &peer, outgoing).await {
                Ok(in_flight) => return Ok(in_flight),
                // Another life of the node answered: the managers know it, or soon will.
                Err(cause) if cause.kind() == ErrorKind::Fenced => cause,
                Err(cause) => {
                    self.refresh_soon();
                    return Err(CallError::Unreachable { cause });
                }
            },
            None => Error::not_found(format!(
                "the managers {} do not know the node",
                self.members.managers()
            )),
        };
        if let Err(error) = self.refresh().await {
            tracing::debug!(%error, "the members are not refreshed");
        }
        let Some(peer) = self.peer(outgoing.to, outgoing.lane) else {
            return Err(CallError::Unreachable { cause: failed });
        };
        let turn = peer.turn();
        let connected = self.connect(turn, &peer, outgoing).await;
        connected.map_err(|cause| CallError::Unreachable { cause })
    }

    /// Waits for the turn, and sends the request.
    async fn connect(&self, turn: Turn, peer: &Arc<Peer>, outgoing: &Outgoing) -> Result<InFlight> {
        turn.wait().await;
        let link = peer.link(&self.surroundings, outgoing.how.deadline).await?;
        Ok(self.send(peer, link, outgoing, &outgoing.payload))
    }

    /// Waits for the answer.
    async fn finish(
        self: &Arc<Self>,
        in_flight: InFlight,
        outgoing: &Outgoing,
    ) -> Result<Answer, CallError> {
        let InFlight { peer, link, promise, waiting } = in_flight;
        let class = outgoing.how.class;
        match promise.await {
            Ok(body) => {
                let now_ns = self.runtime().now_ns();
                peer.heard(now_ns);
                let bytes = body.len() as u64;
                let answer = Answer::read(body);
                let end = match &answer {
                    Ok(_) => CallEnd::Answered(bytes),
                    Err(CallError::Refused { .. }) => CallEnd::Refused,
                    Err(_) => CallEnd::Unanswered,
                };
                if answer.is_ok() {
                    waiting.calls.took(waiting.kind, now_ns.saturating_sub(waiting.sent_ns));
                }
                waiting.calls.ended(class, end);
                answer
            }
            Err(refusal) => {
                let error = self.failed(refusal, &peer, &link, &waiting);
                let end = match &error {
                    CallError::Refused { .. } => CallEnd::Refused,
                    _ => CallEnd::Unanswered,
                };
                waiting.calls.ended(class, end);
                Err(error)
            }
        }
    }

    /// The error for a request that the fabric gave up.
    fn failed(
        self: &Arc<Self>,
        refusal: Refusal,
        peer: &Peer,
        link: &Arc<dyn Link>,
        waiting: &Waiting,
    ) -> CallError {
        let refused = |why| CallError::Refused { why, epoch: Epoch(0), text: refusal.to_string() };
        let unanswered = || CallError::Unanswered { cause: refusal.error("the link") };
        match refusal.reason {
            Reason::Full | Reason::Exhausted => refused(RefusalWhy::Busy),
            Reason::TooLarge => refused(RefusalWhy::Malformed),
            Reason::Unanswered => unanswered(),
            // Other requests of the link may be answered in time.
            Reason::Deadline if peer.was_heard_since(waiting.sent_ns) => unanswered(),
            _ => {
                link.close();
                self.refresh_soon();
                unanswered()
            }
        }
    }
}
