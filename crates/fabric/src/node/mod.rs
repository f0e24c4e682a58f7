//! A node: the target of operations. It owns memory with keys, and a handler for requests. Any
//! number of providers [`serve`](crate::Provider::serve) it at the same time.
//!
//! Invariants:
//! 1. An operation that this process executes for a client goes through [`Node::execute`], which
//!    checks key, rights and range before it accesses memory.
//! 2. A request reaches the handler once ([`duplicates`]). An idempotent request reaches it as
//!    often as it arrives, and leaves nothing behind.
//! 3. An epoch only grows. A later epoch ends all keys and links of the earlier one.
//! 4. The open idempotent and bulk requests of a link are bounded in bytes ([`reserved`]).
//!
//! Fencing: after a revocation returns, no operation of the key runs on a provider that executes in
//! this process (`tcp`). A client of `shm` has the memory mapped. A correct client checks the
//! control page before each operation, but a client that was stopped in between, or that is broken,
//! may still write. Therefore the owner must not give such memory to another client until the
//! process has detached or ended. [`Node::holders`] lists these processes.
//!
//! Thread-safety: any thread may call any method.
//! Failure: operations and requests are refused, and [`NodeStats`] counts the refusals.
//! Cost: one shared lock per executed operation, and one lock per request. An idempotent request
//! takes no lock.

#[cfg(feature = "ofi")]
pub(crate) mod card;
mod duplicates;
mod frozen;
mod keys;
mod region;
mod reserved;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::random::entropy_seed;
use archipelago_base::{Epoch, Error, Result};
use parking_lot::Mutex;

pub use duplicates::{Answer, CLIENTS_MAX, REQUESTS_MAX};
pub use frozen::FrozenSlice;
pub use keys::{AtomicPath, KEYS_MAX};
pub use region::Region;
pub use reserved::RESERVED_BYTES_MAX;

pub(crate) use keys::{
    CONTROL_BYTES, CONTROL_EPOCH_WORD, CONTROL_HEADER_WORDS, CONTROL_MAGIC, CONTROL_MAGIC_WORD,
    Keys, allowed, invalid,
};

use crate::body::Body;
use crate::ids::{ClientId, NodeId, RegionId, RemoteKey, Rights};
use crate::memory;
use crate::refusal::{Reason, Refusal};
pub(crate) use duplicates::Delivery;
use duplicates::{Duplicates, Verdict};
use keys::KeyTable;
use reserved::Reserved;
pub(crate) use reserved::{LinkBudget, reservation};

/// The application's code that answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Called on a thread of the provider, once for each request and for every copy of an
    /// idempotent request that arrives. Other requests of this client wait until it returns. A slow
    /// answer should come from another thread, to which the [`Reply`] can be sent.
    fn handle(&self, request: Request<'_>, reply: Reply);
}

/// A request, as the handler gets it.
#[derive(Debug)]
pub struct Request<'a> {
    /// The client that sent the request.
    pub client: ClientId,
    /// Number of the request, which the client chose. Idempotent requests have a separate
    /// numbering, which begins again with each link.
    pub number: u64,
    /// Time after which the client no longer waits for the answer.
    pub deadline: Duration,
    /// Limit of the answer in bytes, which the client chose.
    pub answer_bytes_max: usize,
    /// The bytes of the request.
    pub body: &'a [u8],
}

/// The path of answers to their clients, which may delay them.
pub(crate) trait Outlet: Send + Sync {
    /// Whether an answer of `bytes` bytes leaves immediately.
    fn passes(&self, bytes: usize) -> bool;
    /// Calls `deliver` when an answer of `bytes` bytes to `client` leaves.
    fn queue(&self, client: ClientId, bytes: usize, deliver: Box<dyn FnOnce() + Send>);
}

/// The right to answer one request. A reply that is dropped answers [`Reason::Unanswered`].
pub struct Reply {
    node: Arc<Node>,
    client: ClientId,
    number: u64,
    /// The link that carried an idempotent request. Other answers go to the client's current link.
    link: Option<Weak<dyn LinkEnd>>,
    answer_bytes_max: usize,
    outlet: Option<Arc<dyn Outlet>>,
    sent: bool,
    /// The reservation of an idempotent or bulk request, which ends just before the answer leaves.
    reserved: Option<Reserved>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({}, {})", self.client, self.number)
    }
}

impl Reply {
    /// Sends the answer. A body over [`Request::answer_bytes_max`] becomes a refusal.
    pub fn send(mut self, body: impl Into<Body>) {
        let body = body.into();
        self.sent = true;
        let answer = within(Ok(body), self.answer_bytes_max);
        let bytes = answer.as_ref().map_or(0, |body| body.len());
        match self.outlet.take() {
            Some(outlet) if !outlet.passes(bytes) => {
                let client = self.client;
                outlet.queue(client, bytes, Box::new(move || self.answer(&answer)));
            }
            _ => self.answer(&answer),
        }
    }

    /// Refuses a request that did not reach its handler.
    pub(crate) fn refuse(mut self, refusal: Refusal) {
        self.sent = true;
        self.answer(&Err(refusal));
    }

    /// Sends the answer through `outlet`.
    pub(crate) fn through(mut self, outlet: Arc<dyn Outlet>) -> Self {
        self.outlet = Some(outlet);
        self
    }

    fn answer(&mut self, answer: &Answer) {
        // A client that has its answer may send the next request before this thread goes on.
        self.reserved = None;
        match &self.link {
            None => self.node.answer(self.client, self.number, answer),
            // The client of a link that is down sends an idempotent request again.
            Some(link) => {
                if let Some(link) = link.upgrade() {
                    link.answer(Question::Idempotent(self.number), answer);
                }
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            self.answer(&Err(Reason::Unanswered.into()));
        }
    }
}

/// The request that an answer belongs to, by its number. The two numberings are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// A request with a number of the client's session.
    Once(u64),
    /// An idempotent request with a number of its link.
    Idempotent(u64),
}

/// The target's end of a link, as the node needs it.
pub(crate) trait LinkEnd: Send + Sync {
    fn answer(&self, question: Question, answer: &Answer);
    fn close(&self, refusal: Refusal);
}

/// A process that has a region mapped, and reaches it without this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Client of the link that attached the region.
    pub client: ClientId,
    /// Process id of the client.
    pub pid: u32,
}

/// Counters since the start of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Links that are up now.
    pub links: u64,
    /// One-sided operations that this process executed for clients. Clients of `shm` execute their
    /// own, which are not counted.
    pub operations: u64,
    /// Requests that the handler received.
    pub requests: u64,
    /// Requests that arrived again.
    pub duplicates: u64,
    /// Operations, requests and attachments that the node refused.
    pub refused: u64,
    /// Links that the node closed because the client broke the protocol.
    pub malformed: u64,
    /// Links that were refused because client and node do not share the cluster's secret.
    pub unauthenticated: u64,
    /// Answers that the node keeps now for requests that may arrive again, and requests that it
    /// executes now. Idempotent requests are not among them.
    pub kept_requests: u64,
    /// Bytes of the answers that the node keeps now.
    pub kept_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) operations: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) unauthenticated: AtomicU64,
}

/// Memory with keys, and a handler for requests, which clients reach through providers.
pub struct Node {
    id: NodeId,
    keys: Arc<KeyTable>,
    handler: Option<Box<dyn Handler>>,
    duplicates: Mutex<Duplicates<Weak<dyn LinkEnd>>>,
    /// Holder, key index and key tag of each region that another process has attached.
    holders: Mutex<Vec<(Holder, RegionId, u64)>>,
    links: Mutex<Vec<Weak<dyn LinkEnd>>>,
    #[cfg(feature = "ofi")]
    card: Mutex<Option<card::Claim>>,
    pub(crate) counters: Counters,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} in epoch {})", self.id, self.epoch())
    }
}

impl Node {
    /// Makes a node without memory. `epoch` must be larger than in every earlier life of the node.
    /// `handler` answers requests. A node without a handler refuses them.
    pub fn new(id: NodeId, epoch: Epoch, handler: Option<Box<dyn Handler>>) -> Result<Arc<Self>> {
        Self::with_seed(id, epoch, handler, entropy_seed())
    }

    /// Makes a node whose keys follow from `seed`. Only runs that must repeat may use it, because a
    /// person who knows the seed can guess the keys.
    pub fn with_seed(
        id: NodeId,
        epoch: Epoch,
        handler: Option<Box<dyn Handler>>,
        seed: u64,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            id,
            keys: Arc::new(KeyTable::new(epoch, seed)?),
            handler,
            duplicates: Mutex::new(Duplicates::new(CLIENTS_MAX)),
            holders: Mutex::new(Vec::new()),
            links: Mutex::new(Vec::new()),
            #[cfg(feature = "ofi")]
            card: Mutex::new(None),
            counters: Counters::default(),
        }))
    }

    /// The identifier of this node.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The current life of this node.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.keys.epoch()
    }

    /// Allocates `bytes` of zeroed memory. Errors: `Busy` if the machine lacks memory.
    pub fn allocate(&self, bytes: usize, path: AtomicPath) -> Result<Region> {
        Region::new(self.id, Arc::clone(&self.keys), bytes, path)
    }

    /// Makes a key invalid. Returns whether it was valid. After the return, no operation of the key
    /// runs on a provider that executes in this process. A process that has the memory mapped may
    /// still write ([`Node::holders`]).
    pub fn revoke(&self, key: &RemoteKey) -> bool {
        self.keys.revoke(key.region, key.tag)
    }

    /// The processes that have a region attached with this key, which need not be valid any more.
    #[must_use]
    pub fn holders(&self, key: &RemoteKey) -> Vec<Holder> {
        let holders = self.holders.lock();
        let of_key =
            holders.iter().filter(|(_, region, tag)| (*region, *tag) == (key.region, key.tag));
        of_key.map(|(holder, ..)| *holder).collect()
    }

    /// Begins a new life without a restart. Every key becomes invalid, and every link is closed.
    /// Errors: `InvalidArgument` if `epoch` is not later.
    pub fn advance_epoch(&self, epoch: Epoch) -> Result<()> {
        if !self.keys.advance(epoch) {
            return Err(Error::invalid(format!(
                "node {} is in epoch {}: epoch {epoch} is not later",
                self.id,
                self.epoch()
            )));
        }
        self.close_links(Refusal::at(Reason::StaleEpoch, epoch.0));
        Ok(())
    }

    pub(crate) fn close_links(&self, refusal: Refusal) {
        for link in self.links.lock().drain(..).filter_map(|link| link.upgrade()) {
            link.close(refusal);
        }
    }

    /// The counters since the start of the node.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (kept_requests, kept_bytes) = self.duplicates.lock().kept();
        let links = self.links.lock();
        let links = links.iter().filter(|link| link.strong_count() > 0).count() as u64;
        NodeStats {
            links,
            operations: get(&self.counters.operations),
            requests: get(&self.counters.requests),
            duplicates: get(&self.counters.duplicates),
            refused: get(&self.counters.refused),
            malformed: get(&self.counters.malformed),
            unauthenticated: get(&self.counters.unauthenticated),
            kept_requests: kept_requests as u64,
            kept_bytes: kept_bytes as u64,
        }
    }

    // The methods below are for providers.

    pub(crate) fn control(&self) -> &memory::Mapping {
        self.keys.control()
    }

    /// Records that a link is up. Returns the number of its arrival.
    pub(crate) fn arrive(
        &self,
        client: ClientId,
        link: &Arc<dyn LinkEnd>,
        resumed: bool,
    ) -> Result<u64, Refusal> {
        let arrival = self.duplicates.lock().arrive(client, Arc::downgrade(link), resumed);
        let arrival = arrival.ok_or(Refusal::at(Reason::Exhausted, CLIENTS_MAX as u64))?;
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
        Ok(arrival)
    }

    pub(crate) fn depart(&self, client: ClientId, arrival: u64) {
        self.duplicates.lock().depart(client, arrival);
    }

    pub(crate) fn keys(&self) -> Keys<'_> {
        self.keys.hold()
    }

    pub(crate) fn add_holder(&self, holder: Holder, region: RegionId, tag: u64) {
        self.holders.lock().push((holder, region, tag));
    }

    pub(crate) fn drop_holder(&self, holder: Holder, region: RegionId, tag: u64) {
        let mut holders = self.holders.lock();
        if let Some(at) = holders.iter().position(|held| *held == (holder, region, tag)) {
            holders.swap_remove(at);
        }
    }

    /// Checks an attachment. Returns length, rights and memory of the region.
    pub(crate) fn attach(
        &self,
        key: &RemoteKey,
        path: AtomicPath,
    ) -> Result<(u64, Rights, Arc<memory::Mapping>), Refusal> {
        key_of(key, self.id, self.epoch())?;
        let keys = self.keys.hold();
        let opened = keys.open(key.region, key.tag)?;
        if opened.rights.allow(Rights::ATOMIC) && opened.path != path {
            return Err(Reason::AtomicPath.into());
        }
        Ok((opened.memory.bytes() as u64, opened.rights, Arc::clone(&opened.memory)))
    }

    /// Executes one operation for a client.
    pub(crate) fn execute(
        &self,
        keys: &Keys<'_>,
        region: RegionId,
        tag: u64,
        path: AtomicPath,
        access: Access<'_>,
    ) -> Result<u64, Refusal> {
        let opened = keys.open(region, tag)?;
        let bytes = opened.memory.bytes() as u64;
        let (need, offset, len) = access.reach();
        allowed(opened.rights, bytes, need, offset, len)?;
        if need == Rights::ATOMIC && opened.path != path {
            return Err(Reason::AtomicPath.into());
        }
        self.counters.operations.fetch_add(1, Ordering::Relaxed);
        Ok(access.perform(opened.memory.words()))
    }

    /// Handles a request. Returns an answer that is known already, or a refusal.
    pub(crate) fn request(
        self: &Arc<Self>,
        request: Request<'_>,
        delivery: Delivery,
        budget: &Arc<LinkBudget>,
    ) -> Option<Answer> {
        let (client, number) = (request.client, request.number);
        // The reservation precedes the entry, so that a refused request leaves no entry.
        let bytes = reservation(false, request.body.len(), request.answer_bytes_max);
        let reserved = match bytes {
            0 => None,
            bytes => match budget.reserve(bytes) {
                Ok(reserved) => Some(reserved),
                Err(refusal) => return Some(self.refused(refusal)),
            },
        };
        let verdict = self.duplicates.lock().request(client, number, delivery);
        match verdict {
            Verdict::Fresh => {
                self.hand_over(request, None, reserved);
                None
            }
            Verdict::Running => {
                self.counters.duplicates.fetch_add(1, Ordering::Relaxed);
                None
            }
            Verdict::Answered(answer) => {
                self.counters.duplicates.fetch_add(1, Ordering::Relaxed);
                // A retry may permit a shorter answer than the first copy of the request.
                Some(within(answer, request.answer_bytes_max))
            }
            Verdict::Refused(refusal) => Some(self.refused(refusal)),
        }
    }

    /// Handles an idempotent request, which `link` carried. Returns a refusal if the link has too
    /// many bytes open.
    pub(crate) fn idempotent(
        self: &Arc<Self>,
        request: Request<'_>,
        link: Weak<dyn LinkEnd>,
        budget: &Arc<LinkBudget>,
    ) -> Option<Answer> {
        let bytes = reservation(true, request.body.len(), request.answer_bytes_max);
        match budget.reserve(bytes) {
            Ok(reserved) => {
                self.hand_over(request, Some(link), Some(reserved));
                None
            }
            Err(refusal) => Some(self.refused(refusal)),
        }
    }

    /// Passes a request to the handler. Without a handler, dropping the reply refuses the request.
    fn hand_over(
        self: &Arc<Self>,
        request: Request<'_>,
        link: Option<Weak<dyn LinkEnd>>,
        reserved: Option<Reserved>,
    ) {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let reply = Reply {
            node: Arc::clone(self),
            client: request.client,
            number: request.number,
            link,
            answer_bytes_max: request.answer_bytes_max,
            outlet: None,
            sent: false,
            reserved,
        };
        if let Some(handler) = &self.handler {
            handler.handle(request, reply);
        }
    }

    fn refused(&self, refusal: Refusal) -> Answer {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        Err(refusal)
    }

    fn answer(&self, client: ClientId, number: u64, answer: &Answer) {
        let link = self.duplicates.lock().answer(client, number, answer);
        if let Some(link) = link.and_then(|link| link.upgrade()) {
            link.answer(Question::Once(number), answer);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Clients that still have the memory mapped see that their keys are invalid.
        self.keys.advance(Epoch(self.epoch().0.saturating_add(1)));
    }
}

/// The answer, or its refusal if it is longer than the client permits.
fn within(answer: Answer, bytes_max: usize) -> Answer {
    match answer {
        Ok(body) if body.len() > bytes_max => Err(Refusal::at(Reason::TooLarge, bytes_max as u64)),
        answer => answer,
    }
}

/// Checks that a key belongs to this life of this node.
pub(crate) fn key_of(key: &RemoteKey, node: NodeId, epoch: Epoch) -> Result<(), Refusal> {
    if key.node != node {
        Err(Reason::WrongNode.into())
    } else if key.epoch != epoch {
        Err(Refusal::at(Reason::StaleEpoch, epoch.0))
    } else {
        Ok(())
    }
}

/// One operation on memory, with its bytes.
pub(crate) enum Access<'a> {
    Read { offset: u64, into: &'a mut [u8] },
    Write { offset: u64, bytes: &'a [u8] },
    CompareSwap { offset: u64, expect: u64, new: u64 },
    FetchAdd { offset: u64, add: u64 },
}

impl Access<'_> {
    /// The right, the offset and the number of bytes that the operation needs.
    #[inline]
    pub(crate) fn reach(&self) -> (Rights, u64, u64) {
        match self {
            Self::Read { offset, into } => (Rights::READ, *offset, into.len() as u64),
            Self::Write { offset, bytes } => (Rights::WRITE, *offset, bytes.len() as u64),
            Self::CompareSwap { offset, .. } | Self::FetchAdd { offset, .. } => {
                (Rights::ATOMIC, *offset, 8)
            }
        }
    }

    /// Executes the operation, whose range the caller has checked. Returns the old word of an
    /// atomic operation.
    #[inline]
    pub(crate) fn perform(self, words: &[AtomicU64]) -> u64 {
        match self {
            Self::Read { offset, into } => memory::read(words, offset as usize, into),
            Self::Write { offset, bytes } => memory::write(words, offset as usize, bytes),
            Self::CompareSwap { offset, expect, new } => {
                return memory::compare_swap(&words[offset as usize / 8], expect, new);
            }
            Self::FetchAdd { offset, add } => {
                return memory::fetch_add(&words[offset as usize / 8], add);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::MESSAGE_BYTES_MAX;

    const CLIENT: ClientId = ClientId(7);

    /// Answers with four bytes.
    struct Four;

    impl Handler for Four {
        fn handle(&self, _request: Request<'_>, reply: Reply) {
            reply.send(&b"four"[..]);
        }
    }

    /// A link that keeps its answers, and how many bytes were reserved when they came.
    #[derive(Default)]
    struct Heard {
        budget: Arc<LinkBudget>,
        answers: Mutex<Vec<(Answer, usize)>>,
    }

    impl LinkEnd for Heard {
        fn answer(&self, _question: Question, answer: &Answer) {
            self.answers.lock().push((answer.clone(), self.budget.reserved_bytes()));
        }

        fn close(&self, _refusal: Refusal) {}
    }

    fn linked() -> (Arc<Node>, Arc<Heard>, u64) {
        let node = Node::new(NodeId(1), Epoch(1), Some(Box::new(Four))).expect("a node");
        let heard = Arc::new(Heard::default());
        let end: Arc<dyn LinkEnd> = Arc::clone(&heard) as Arc<dyn LinkEnd>;
        let arrival = node.arrive(CLIENT, &end, false).expect("room");
        (node, heard, arrival)
    }

    fn request(body: &[u8], answer_bytes_max: usize) -> Request<'_> {
        let deadline = Duration::from_secs(1);
        Request { client: CLIENT, number: 1, deadline, answer_bytes_max, body }
    }

    #[test]
    fn reservation_ends_before_the_answer_is_sent() {
        let (node, heard, arrival) = linked();
        let (bulk, delivery) =
            (vec![0; MESSAGE_BYTES_MAX + 1], Delivery { arrival, oldest: 1, retry: false });
        assert_eq!(node.request(request(&bulk, 9), delivery, &heard.budget), None);
        let end: Arc<dyn LinkEnd> = Arc::clone(&heard) as Arc<dyn LinkEnd>;
        assert_eq!(node.idempotent(request(b"", 9), Arc::downgrade(&end), &heard.budget), None);
        let four: Answer = Ok(Body::copy(b"four"));
        assert_eq!(*heard.answers.lock(), [(four.clone(), 0), (four, 0)]);
    }

    #[test]
    fn kept_answer_beyond_the_limit_of_a_retry_is_refused() {
        let (node, heard, arrival) = linked();
        let mut delivery = Delivery { arrival, oldest: 1, retry: false };
        assert_eq!(node.request(request(b"", 4), delivery, &heard.budget), None);
        delivery.retry = true;
        let too_large = Err(Refusal::at(Reason::TooLarge, 3));
        assert_eq!(node.request(request(b"", 3), delivery, &heard.budget), Some(too_large));
        let four: Answer = Ok(Body::copy(b"four"));
        assert_eq!(node.request(request(b"", 4), delivery, &heard.budget), Some(four));
    }
}
