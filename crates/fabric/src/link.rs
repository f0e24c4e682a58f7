//! The one interface of all providers: a [`Provider`] serves a node and connects to nodes; a
//! [`Link`] is a client's way to one node's life.
//!
//! What every link promises (the conformance suite, `tests/it/conformance`, runs over each
//! provider):
//!
//! 1. Operations of a link take effect at the target in the order in which they were posted, each
//!    batch up to its first refusal. A READ that follows a WRITE finds it.
//! 2. A batch that completed without a refusal happened. One that completed with
//!    [`Reason::Disconnected`](crate::Reason::Disconnected) or
//!    [`Reason::Deadline`](crate::Reason::Deadline) may have happened, in part, or may still
//!    happen; every other refusal names the one operation, which touched no memory.
//! 3. A WRITE's completion says that it is placed: everybody who reads the target's memory
//!    afterwards sees it.
//! 4. Words that are aligned are never torn; more than a word may be.
//! 5. Atomic operations on a word are atomic to each other, from whichever client, and to the
//!    node's own through [`Region`](crate::Region).
//! 6. A request is executed at most once, and its answer arrives at most once.
//! 7. A key that was revoked, or is of another epoch, is refused. (`shm` cannot stop a process that
//!    is broken: see [`Node`].)
//! 8. A link that is down stays down; a new one is made with [`Provider::connect`].
//!
//! Posting never blocks. A post over a network is queued; it leaves when a promise of the link is
//! waited for, polled or dropped, when [`Link::flush`] rings the doorbell, or when 64 KiB wait. So
//! posts that are made one after another share packets.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use archipelago_base::{Epoch, Result};
use parking_lot::Mutex;

use crate::batch::{Attached, Batch};
use crate::body::Body;
use crate::ids::{ClientId, NodeId, RemoteKey};
use crate::node::{AtomicPath, Node, REQUESTS_MAX};
use crate::promise::Promise;
use crate::refusal::{Reason, Refusal};

/// Batches, requests and attachments that one link has in flight, at most.
pub const IN_FLIGHT_MAX: usize = 1024;

/// Links that one listener serves at once, at most.
pub const LINKS_MAX: usize = 1024;

/// A number that no other link of this process has.
pub(crate) fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub epoch: Epoch,
}

/// What a link sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Batches posted.
    pub batches: u64,
    /// Operations in them.
    pub operations: u64,
    /// Times that bytes were handed to the network: with small frames, packets. 0 for one-sided
    /// operations of `shm`.
    pub packets: u64,
    /// Bytes handed to the network.
    pub sent_bytes: u64,
}

/// A client's way to one node. Any number of threads and tasks may use it at once.
pub trait Link: Send + Sync + fmt::Debug {
    /// Who is at the other end.
    fn peer(&self) -> Peer;

    /// The client that this link belongs to.
    fn session(&self) -> &Arc<Session>;

    /// Makes a key's region known to this link. Refused if the key is of another node or epoch, was
    /// revoked or never given. Costs a round trip; the attachment lasts as long as the link.
    fn attach(&self, key: &RemoteKey) -> Promise<Result<Attached, Refusal>>;

    /// Gives an attachment up: frees what it takes here (for `shm`, the mapping).
    fn detach(&self, region: Attached);

    /// Whether it is known here, without asking, that the region's key is not valid any more. Who
    /// shares memory and posts nothing should look now and then: until it detaches, nobody else
    /// gets the memory. Links over which a node needs nobody's help to revoke say no.
    fn is_revoked(&self, region: Attached) -> bool {
        let _nobody_waits = region;
        false
    }

    /// Posts a batch. It comes back with its outcomes, always.
    fn post(&self, batch: Batch) -> Promise<Batch>;

    /// Whether what is posted is done when [`Link::post`] returns, as over shared memory: who must
    /// not wait asks before. It may stop being so; the promise tells.
    fn completes_at_once(&self) -> bool {
        false
    }

    /// Asks the processor for the words at these offsets of a region, which are to be written soon,
    /// if it shares the memory. Says nothing about them, and is no operation: nothing depends on
    /// it.
    fn prefetch(&self, region: Attached, offsets: &[u64]) {
        let _not_here = (region, offsets);
    }

    /// Sends a request. See [`Call`] for numbers and retries.
    fn request(&self, call: Call<'_>) -> Promise<Result<Body, Refusal>>;

    /// Rings the doorbell: what was posted leaves now.
    fn flush(&self);

    /// `Some` once the link is down: why.
    fn closed(&self) -> Option<Refusal>;

    /// Takes the link down. What is in flight completes as [`Reason::Disconnected`].
    fn close(&self);

    /// Counters since the link came up.
    fn stats(&self) -> LinkStats;
}

/// A request to be sent. By default it gets a fresh number and, should its outcome be unknown,
/// nobody asks again.
///
/// For exactly one execution in spite of lost links: take a number ([`Session::begin`]), send with
/// [`Call::numbered`]; after [`Reason::Disconnected`] or [`Reason::Deadline`] connect again and
/// send the same body with [`Call::again`]. The node answers with the first execution's answer, or
/// refuses with [`Reason::Forgotten`] if it lost track. [`Session::give_up`] ends it otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked; at most [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    pub body: &'a [u8],
    /// After this long it completes with [`Reason::Deadline`].
    pub deadline: Duration,
    pub(crate) number: Option<u64>,
    pub(crate) retry: bool,
}

impl<'a> Call<'a> {
    /// A request with a number of its own.
    #[must_use]
    pub fn new(body: &'a [u8], deadline: Duration) -> Self {
        Self { body, deadline, number: None, retry: false }
    }

    /// The same under a number from [`Session::begin`].
    #[must_use]
    pub fn numbered(self, number: u64) -> Self {
        Self { number: Some(number), ..self }
    }

    /// The same under a number under which it was sent before.
    #[must_use]
    pub fn again(self, number: u64) -> Self {
        Self { number: Some(number), retry: true, ..self }
    }
}

/// The client's side of removing duplicates: one per client and node, kept over links.
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
    /// A session of the process's life `client`: a random number that no other client has.
    #[must_use]
    pub fn new(client: ClientId) -> Arc<Self> {
        let state = Numbers { next: 1, open: Vec::new(), linked: false };
        Arc::new(Self { client, state: Mutex::new(state) })
    }

    /// A session with a random client id.
    #[must_use]
    pub fn fresh() -> Arc<Self> {
        Self::new(ClientId(archipelago_base::random::entropy_seed()))
    }

    /// Whose it is.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// A number for a request. Full if the oldest open one is [`REQUESTS_MAX`] behind: the node
    /// keeps the answers of all since.
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

    /// Forgets a number whose outcome is unknown: it will not be asked for again.
    pub fn give_up(&self, number: u64) {
        let mut state = self.state.lock();
        state.open.retain(|&open| open != number);
    }

    /// All numbers below are answered or given up.
    pub(crate) fn oldest(&self) -> u64 {
        let state = self.state.lock();
        state.open.iter().copied().min().unwrap_or(state.next)
    }

    /// Whether the node welcomed this session before.
    pub(crate) fn resumed(&self) -> bool {
        self.state.lock().linked
    }

    pub(crate) fn welcomed(&self) {
        self.state.lock().linked = true;
    }

    /// A request completed. Its number stays open if `keep`: it may be asked again.
    pub(crate) fn completed(&self, number: u64, keep: bool) {
        if !keep {
            self.give_up(number);
        }
    }
}

/// Whom to connect to, and as who.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The provider's address of the node.
    pub address: String,
    /// As whom. Answers go to a session's newest link: give it one that is up at a time.
    pub session: Arc<Session>,
    /// Refuse another node than this. Default: any.
    pub node: Option<NodeId>,
    /// Refuse another epoch than this. Default: any.
    pub epoch: Option<Epoch>,
    /// For the connection, and for operations that set none. Default: 5 s.
    pub deadline: Duration,
}

impl Connect {
    /// To any node at `address`.
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

/// A way to reach memory.
pub trait Provider: Send + Sync + fmt::Debug {
    /// As it is named in settings and reports.
    fn name(&self) -> &'static str;

    /// What executes its atomics.
    fn atomic_path(&self) -> AtomicPath;

    /// Serves `node` at `address` until the listener is dropped.
    fn serve(&self, node: &Arc<Node>, address: &str) -> Result<Box<dyn Listener>>;

    /// Connects to a node. Errors: not there (`Io`, `NotFound`), another node or epoch than
    /// expected (`Fenced`), another version (`Unsupported`).
    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>>;
}

/// A node's door. Dropped, it closes: its links go down.
pub trait Listener: Send + Sync + fmt::Debug {
    /// What clients give to [`Connect::to`].
    fn address(&self) -> &str;
}
