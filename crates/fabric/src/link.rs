//! The interface of all providers. A [`Provider`] serves a node and connects to nodes. A [`Link`]
//! is a client's connection to one life of a node.
//!
//! Every link keeps these promises, which the conformance suite (`tests/it/conformance`) checks for
//! each provider:
//!
//! 1. Operations of a link take effect at the target in the order in which they were posted, each
//!    batch up to its first refusal. A READ after a WRITE finds its bytes.
//! 2. A batch that completed without a refusal happened. A batch that completed with
//!    [`Reason::Disconnected`](crate::Reason::Disconnected) or
//!    [`Reason::Deadline`](crate::Reason::Deadline) may have happened, in part or as a whole, or
//!    may still happen. Every other refusal names one operation, which accessed no memory.
//! 3. When a WRITE completes, every later read of the target's memory sees it.
//! 4. An aligned word is never torn. Longer data may be.
//! 5. Atomic operations on a word are atomic with respect to each other, from all clients. The same
//!    holds for those of the node itself through [`Region`](crate::Region).
//! 6. A request is executed at most once, unless it is marked as idempotent. Its answer arrives at
//!    most once.
//! 7. A key that was revoked, or belongs to another epoch, is refused. `shm` cannot stop a broken
//!    process: see [`Node`].
//! 8. A link that is down stays down. [`Provider::connect`] makes a new one.
//!
//! Posting never blocks. A network provider queues a post. The queue is sent when a promise of the
//! link is awaited, polled or dropped, when [`Link::flush`] is called, or when it holds 64 KiB.
//! Therefore neighbouring posts share packets.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a link that fails completes everything in flight with a refusal.
//! Cost: the modules of the providers state it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use archipelago_base::{Epoch, Result};
use parking_lot::Mutex;

use crate::batch::{Attached, Batch};
use crate::body::{BULK_BYTES_MAX, Body, MESSAGE_BYTES_MAX};
use crate::ids::{ClientId, NodeId, RemoteKey};
use crate::node::{AtomicPath, Node, REQUESTS_MAX, reservation};
use crate::promise::Promise;
use crate::refusal::{Reason, Refusal};
use crate::traffic::TrafficClass;

/// Limit of the batches, requests and attachments that one link has in flight.
pub const IN_FLIGHT_MAX: usize = 1024;

/// Limit of the links that one listener serves at the same time.
pub const LINKS_MAX: usize = 1024;

/// A number that no other link of this process has.
pub(crate) fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The node at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The identifier of the node.
    pub node: NodeId,
    /// The life of the node.
    pub epoch: Epoch,
}

/// Counters of the messages and bytes that a link sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Number of posted batches.
    pub batches: u64,
    /// Number of operations in these batches.
    pub operations: u64,
    /// Number of times that the link gave bytes to the network, which is the number of packets if
    /// frames are small. It is 0 for one-sided operations of `shm`.
    pub packets: u64,
    /// Number of bytes that the link gave to the network.
    pub sent_bytes: u64,
}

/// A client's connection to one node. Any number of threads and tasks may use it in parallel.
pub trait Link: Send + Sync + fmt::Debug {
    /// The node at the other end.
    fn peer(&self) -> Peer;

    /// The client that this link belongs to.
    fn session(&self) -> &Arc<Session>;

    /// Attaches the region of a key to this link, until the link ends. The call is refused if the
    /// key belongs to another node or epoch, was revoked, or was never given. It costs a round
    /// trip.
    fn attach(&self, key: &RemoteKey) -> Promise<Result<Attached, Refusal>>;

    /// Ends an attachment and frees its resources, which is the mapping for `shm`.
    fn detach(&self, region: Attached);

    /// Whether this process knows, without a message, that the key of the region is invalid. A
    /// client of shared memory that posts nothing should check from time to time, because the node
    /// cannot reuse the memory until the client detaches. A link whose node can revoke keys without
    /// the client always returns false.
    fn is_revoked(&self, region: Attached) -> bool {
        let _nobody_waits = region;
        false
    }

    /// Posts a batch. The promise always returns it, with its outcomes.
    fn post(&self, batch: Batch) -> Promise<Batch>;

    /// Whether a batch is complete when [`Link::post`] returns, as over shared memory. A caller
    /// that must not wait checks this before it posts. The value may change, so the caller also
    /// checks the promise.
    fn completes_at_once(&self) -> bool {
        false
    }

    /// Prefetches the words at these offsets of a region, which the caller will write soon, if the
    /// link shares the memory. The call is a hint, and its order to operations is undefined.
    fn prefetch(&self, region: Attached, offsets: &[u64]) {
        let _not_here = (region, offsets);
    }

    /// Sends a request. [`Call`] describes numbers and retries.
    fn request(&self, call: Call<'_>) -> Promise<Result<Body, Refusal>>;

    /// Sends everything that is queued.
    fn flush(&self);

    /// Why the link is down; `None` while it is up.
    fn closed(&self) -> Option<Refusal>;

    /// Takes the link down. Everything in flight completes with [`Reason::Disconnected`].
    fn close(&self);

    /// Counters since the link came up.
    fn stats(&self) -> LinkStats;
}

/// A request before it is sent. By default it gets a new number, and it is not sent again if its
/// outcome is unknown.
///
/// # Exactly one execution
///
/// A caller that needs exactly one execution despite lost links takes a number
/// ([`Session::begin`]) and sends the request with [`Call::numbered`]. After
/// [`Reason::Disconnected`] or [`Reason::Deadline`] it connects again, and sends the same body with
/// [`Call::again`]. The node then returns the answer of the first execution, or refuses with
/// [`Reason::Forgotten`] if it no longer knows the session. [`Session::give_up`] ends the attempts.
///
/// # Idempotent and bulk requests
///
/// A request whose second execution changes nothing is marked with [`Call::idempotent`]. The node
/// does not remember it, so it costs the node no memory after its answer, and any number of them
/// may be open. A caller that gets no answer sends the request again as a new one.
///
/// A request of more than [`MESSAGE_BYTES_MAX`] bytes, or with an answer of more bytes, is marked
/// with [`Call::bulk`].
///
/// Both sides of a link bound the bytes of idempotent and bulk requests that are open
/// ([`RESERVED_BYTES_MAX`](crate::RESERVED_BYTES_MAX)). A request reserves its body and the largest
/// answer that it permits, so a caller that expects short answers says so with
/// [`Call::answer_bytes_max`].
///
/// ```
/// use std::time::Duration;
/// use archipelago_fabric::Call;
///
/// let second = Duration::from_secs(1);
/// // A READ of 1 MiB from a storage node, which the node may execute twice.
/// let read = Call::new(b"read chunk 7 at 0", second).idempotent().bulk().answer_bytes_max(1 << 20);
/// // A piece of a table, which the node acknowledges in a few bytes.
/// let piece = vec![0; 1 << 20];
/// let write = Call::new(&piece, second).idempotent().bulk().answer_bytes_max(64);
/// assert_eq!((read.body.len(), write.body.len()), (17, 1 << 20));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The bytes of the request, at most [`MESSAGE_BYTES_MAX`], or [`BULK_BYTES_MAX`] if it is
    /// bulk.
    pub body: &'a [u8],
    /// Further bytes of the body, which follow `body`.
    pub(crate) payload: &'a [u8],
    /// Time after which the request completes with [`Reason::Deadline`].
    pub deadline: Duration,
    /// Class of the request and its answer, by which a card orders them ([`paced`](crate::paced)).
    /// The default is the foreground.
    pub class: TrafficClass,
    pub(crate) repeats: Repeats,
    bulk: bool,
    answer_bytes_max: Option<usize>,
}

/// How a node distinguishes a request that arrives again from a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// By a number: the request gets the next number of the session when it is sent.
    Fresh,
    /// By a number from [`Session::begin`]. `retry` says whether the request was sent before.
    Numbered { number: u64, retry: bool },
    /// Not at all: the node executes every copy that arrives.
    Idempotent,
}

/// Sizes of a request that a link has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallSize {
    /// Limit of the answer in bytes.
    pub(crate) answer_bytes_max: usize,
    /// Bytes that the request reserves on its link.
    pub(crate) reserved_bytes: usize,
}

impl<'a> Call<'a> {
    /// Makes a request that gets a new number when it is sent.
    #[must_use]
    pub fn new(body: &'a [u8], deadline: Duration) -> Self {
        Self {
            body,
            payload: &[],
            deadline,
            class: TrafficClass::default(),
            repeats: Repeats::Fresh,
            bulk: false,
            answer_bytes_max: None,
        }
    }

    /// Adds bytes after the body. The node gets both as one body. So a caller that keeps the bytes
    /// elsewhere, for example to send them to several nodes, need not copy them into a body.
    #[must_use]
    pub fn with_payload(self, payload: &'a [u8]) -> Self {
        Self { payload, ..self }
    }

    /// Bytes of the body with its payload.
    pub(crate) fn body_bytes(&self) -> usize {
        self.body.len() + self.payload.len()
    }

    /// A copy of the body with its payload.
    pub(crate) fn whole_body(&self) -> Vec<u8> {
        [self.body, self.payload].concat()
    }

    /// Gives the request a class.
    #[must_use]
    pub fn in_class(self, class: TrafficClass) -> Self {
        Self { class, ..self }
    }

    /// The same call with another body and deadline, for code that keeps the whole body elsewhere.
    pub(crate) fn with_body<'b>(&self, body: &'b [u8], deadline: Duration) -> Call<'b> {
        let Call { class, repeats, bulk, answer_bytes_max, .. } = *self;
        Call { body, payload: &[], deadline, class, repeats, bulk, answer_bytes_max }
    }

    /// Largest answer that the caller expects, in bytes; 0 if it set no limit.
    pub(crate) fn expected_bytes(&self) -> u64 {
        self.answer_bytes_max.unwrap_or(0) as u64
    }

    /// Gives the request a number from [`Session::begin`].
    #[must_use]
    pub fn numbered(self, number: u64) -> Self {
        Self { repeats: Repeats::Numbered { number, retry: false }, ..self }
    }

    /// Marks the request as sent before, under this number.
    #[must_use]
    pub fn again(self, number: u64) -> Self {
        Self { repeats: Repeats::Numbered { number, retry: true }, ..self }
    }

    /// Marks the request as idempotent: the node may execute it more than once, and does not
    /// remember its answer. It has no number of the session.
    #[must_use]
    pub fn idempotent(self) -> Self {
        Self { repeats: Repeats::Idempotent, ..self }
    }

    /// Permits a body of [`BULK_BYTES_MAX`] bytes. The answer of a bulk request may have the same
    /// length if the request is idempotent as well. Otherwise the node must keep the answer, whose
    /// limit stays [`MESSAGE_BYTES_MAX`].
    #[must_use]
    pub fn bulk(self) -> Self {
        Self { bulk: true, ..self }
    }

    /// Limits the answer to `bytes`. The node answers [`Reason::TooLarge`] instead of a longer one.
    /// The default is the largest answer that the request may have.
    #[must_use]
    pub fn answer_bytes_max(self, bytes: usize) -> Self {
        Self { answer_bytes_max: Some(bytes), ..self }
    }

    /// Checks the sizes. Errors: [`Reason::TooLarge`] with the limit that the body or the answer
    /// exceeds.
    pub(crate) fn size(&self) -> Result<CallSize, Refusal> {
        let is_idempotent = self.repeats == Repeats::Idempotent;
        let body_max = if self.bulk { BULK_BYTES_MAX } else { MESSAGE_BYTES_MAX };
        let most = if self.bulk && is_idempotent { BULK_BYTES_MAX } else { MESSAGE_BYTES_MAX };
        let answer_bytes_max = self.answer_bytes_max.unwrap_or(most);
        let within = |bytes: usize, max: usize| match bytes > max {
            true => Err(Refusal::at(Reason::TooLarge, max as u64)),
            false => Ok(()),
        };
        within(self.body_bytes(), body_max)?;
        within(answer_bytes_max, most)?;
        let reserved_bytes = reservation(is_idempotent, self.body_bytes(), answer_bytes_max);
        Ok(CallSize { answer_bytes_max, reserved_bytes })
    }
}

/// The client's side of the removal of duplicates. A client has one session per node, which several
/// links use one after the other.
#[derive(Debug)]
pub struct Session {
    client: ClientId,
    state: Mutex<Numbers>,
}

#[derive(Debug)]
struct Numbers {
    next: u64,
    open: Vec<u64>,
    linked: bool,
}

impl Session {
    /// Makes a session of `client`, whose random number no other client may have.
    #[must_use]
    pub fn new(client: ClientId) -> Arc<Self> {
        let state = Numbers { next: 1, open: Vec::new(), linked: false };
        Arc::new(Self { client, state: Mutex::new(state) })
    }

    /// Makes a session with a random client number.
    #[must_use]
    pub fn fresh() -> Arc<Self> {
        Self::new(ClientId(archipelago_base::random::entropy_seed()))
    }

    /// The client of this session.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Takes a number for a request. Errors: [`Reason::Full`] if the oldest open number is
    /// [`REQUESTS_MAX`] lower, because the node keeps the answers of all numbers since.
    pub fn begin(&self) -> Result<u64, Refusal> {
        let mut state = self.state.lock();
        let oldest = state.open.iter().copied().min().unwrap_or(state.next);
        if state.next - oldest >= REQUESTS_MAX as u64 {
            return Err(Refusal::at(Reason::Full, REQUESTS_MAX as u64));
        }
        let number = state.next;
        state.next += 1;
        state.open.push(number);
        Ok(number)
    }

    /// Closes a number whose outcome is unknown. The client will not send it again.
    pub fn give_up(&self, number: u64) {
        let mut state = self.state.lock();
        state.open.retain(|&open| open != number);
    }

    /// The lowest open number. All lower numbers are answered or closed.
    pub(crate) fn oldest(&self) -> u64 {
        let state = self.state.lock();
        state.open.iter().copied().min().unwrap_or(state.next)
    }

    /// Whether the node has welcomed this session before.
    pub(crate) fn resumed(&self) -> bool {
        self.state.lock().linked
    }

    pub(crate) fn welcomed(&self) {
        self.state.lock().linked = true;
    }

    /// Records that a request completed. With `keep` its number stays open, so that the request can
    /// be sent again.
    pub(crate) fn completed(&self, number: u64, keep: bool) {
        if !keep {
            self.give_up(number);
        }
    }
}

/// The node to connect to, and the session of the client.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Address of the node, in the provider's form.
    pub address: String,
    /// Session of the client. Answers go to its newest link, so only one link of a session should
    /// be up.
    pub session: Arc<Session>,
    /// The only node that is accepted. The default accepts any node.
    pub node: Option<NodeId>,
    /// The only epoch that is accepted. The default accepts any epoch.
    pub epoch: Option<Epoch>,
    /// Time limit of the connection, and of operations that set none. The default is 5 s.
    pub deadline: Duration,
}

impl Connect {
    /// Accepts any node at `address`.
    #[must_use]
    pub fn to(address: impl Into<String>, session: &Arc<Session>) -> Self {
        Self {
            address: address.into(),
            session: Arc::clone(session),
            node: None,
            epoch: None,
            deadline: Duration::from_secs(5),
        }
    }
}

/// A transport: a way to reach the memory of nodes.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Name of the provider in settings and reports.
    fn name(&self) -> &'static str;

    /// The hardware that executes its atomic operations.
    fn atomic_path(&self) -> AtomicPath;

    /// Serves `node` at `address` until the listener is dropped.
    fn serve(&self, node: &Arc<Node>, address: &str) -> Result<Box<dyn Listener>>;

    /// Connects to a node. Errors: `Io` or `NotFound` if no node answers, `InvalidArgument` for
    /// another node and `Fenced` for another epoch than expected, `Unsupported` for another
    /// version.
    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>>;
}

/// The node's end of a provider. When it is dropped, its links go down.
pub trait Listener: Send + Sync + fmt::Debug {
    /// The address that clients give to [`Connect::to`].
    fn address(&self) -> &str;
}
