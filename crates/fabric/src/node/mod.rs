//! A node: the target's side. Memory that it gives keys to, and a handler for requests. It knows no
//! provider; any number of providers [`serve`](crate::Provider::serve) it at once.
//!
//! Invariants: 1. an operation that this process executes for a client goes through
//! [`Node::execute`], which checks key, rights and range before it touches memory; 2. a request
//! reaches the handler once ([`duplicates`]); 3. an epoch only grows, and ends all keys and links
//! of the one before.
//!
//! **Fencing.** A revocation is complete for providers that execute here (`tcp`) when it returns. A
//! `shm` client has the memory mapped: a well-behaved one looks at the control page before each
//! operation, one that was stopped in between, or that is broken, may still write. So memory that
//! another process has attached is not given to somebody else until that process has detached or
//! ended: [`Node::holders`] says who they are; the owner waits for them, or ends them.

#[cfg(feature = "ofi")]
pub(crate) mod card;
mod duplicates;
mod keys;
mod region;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::random::entropy_seed;
use archipelago_base::{Epoch, Error, Result};
use parking_lot::Mutex;

pub use duplicates::{Answer, CLIENTS_MAX, REQUESTS_MAX};
pub use keys::{AtomicPath, KEYS_MAX};
pub use region::Region;

pub(crate) use keys::{
    CONTROL_BYTES, CONTROL_EPOCH_WORD, CONTROL_HEADER_WORDS, CONTROL_MAGIC, CONTROL_MAGIC_WORD,
    Keys, allowed, invalid,
};

use crate::body::Body;
use crate::ids::{ClientId, NodeId, RegionId, RemoteKey, Rights};
use crate::memory;
use crate::refusal::{Reason, Refusal};
use duplicates::{Duplicates, Verdict};
use keys::KeyTable;

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Called once for each request, on a thread of the provider: an answer that needs time is
    /// given later, from elsewhere ([`Reply`] can be sent to another thread). Other requests of
    /// this client wait until it returns.
    fn handle(&self, request: Request<'_>, reply: Reply);
}

/// A request, as the handler sees it.
#[derive(Debug)]
pub struct Request<'a> {
    /// Who asks.
    pub client: ClientId,
    /// The client's number of it.
    pub number: u64,
    /// After this long the client no longer waits.
    pub deadline: Duration,
    /// What is asked.
    pub body: &'a [u8],
}

/// The right to answer one request. Dropped, it answers [`Reason::Unanswered`].
pub struct Reply {
    node: Arc<Node>,
    client: ClientId,
    number: u64,
    sent: bool,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({}, {})", self.client, self.number)
    }
}

impl Reply {
    /// Answers. A body over [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX) becomes a refusal.
    pub fn send(mut self, body: impl Into<Body>) {
        let body = body.into();
        self.sent = true;
        let answer = if body.len() > crate::MESSAGE_BYTES_MAX {
            Err(Refusal::at(Reason::TooLarge, crate::MESSAGE_BYTES_MAX as u64))
        } else {
            Ok(body)
        };
        self.node.answer(self.client, self.number, &answer);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            self.node.answer(self.client, self.number, &Err(Reason::Unanswered.into()));
        }
    }
}

/// A link's end at the target, as the node needs it.
pub(crate) trait LinkEnd: Send + Sync {
    fn answer(&self, number: u64, answer: &Answer);
    fn close(&self, refusal: Refusal);
}

/// A process that can reach a region without this node's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Whose link it is.
    pub client: ClientId,
    /// The process, as the kernel names it.
    pub pid: u32,
}

/// Counters since the node began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// One-sided operations that this process executed for clients (`shm` clients execute their
    /// own).
    pub operations: u64,
    /// Requests given to the handler.
    pub requests: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Operations, requests and attachments that were refused.
    pub refused: u64,
    /// Links closed because the client broke the protocol.
    pub malformed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) operations: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) malformed: AtomicU64,
}

/// See the module.
pub struct Node {
    id: NodeId,
    keys: Arc<KeyTable>,
    handler: Option<Box<dyn Handler>>,
    duplicates: Mutex<Duplicates<Weak<dyn LinkEnd>>>,
    /// (link, key's place, key's tag) of everything that is attached from another process.
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
    /// A node without memory. `epoch` is larger than that of every earlier life of the node;
    /// `handler` answers requests (without one they are refused).
    pub fn new(id: NodeId, epoch: Epoch, handler: Option<Box<dyn Handler>>) -> Result<Arc<Self>> {
        Self::with_seed(id, epoch, handler, entropy_seed())
    }

    /// The same, with keys that follow from `seed`: for runs that must repeat, and for nothing
    /// else, because who knows the seed can guess the keys.
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

    /// Who it is.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Which life.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.keys.epoch()
    }

    /// Allocates `bytes` of zeroed memory that keys can be given to. Busy if there is no room.
    pub fn allocate(&self, bytes: usize, path: AtomicPath) -> Result<Region> {
        Region::new(self.id, Arc::clone(&self.keys), bytes, path)
    }

    /// Makes a key invalid; whether it was valid. See the module for what that means.
    pub fn revoke(&self, key: &RemoteKey) -> bool {
        self.keys.revoke(key.region, key.tag)
    }

    /// Who has a region attached in a process of its own, by this key, valid or not.
    #[must_use]
    pub fn holders(&self, key: &RemoteKey) -> Vec<Holder> {
        let holders = self.holders.lock();
        let of_key =
            holders.iter().filter(|(_, region, tag)| (*region, *tag) == (key.region, key.tag));
        of_key.map(|(holder, ..)| *holder).collect()
    }

    /// Begins a new life without a restart: every key is invalid, every link is closed.
    pub fn advance_epoch(&self, epoch: Epoch) -> Result<()> {
        if !self.keys.advance(epoch) {
            return Err(Error::invalid(format!(
                "node {} is in epoch {}: it cannot go to {epoch}",
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

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NodeStats {
            operations: get(&self.counters.operations),
            requests: get(&self.counters.requests),
            duplicates: get(&self.counters.duplicates),
            refused: get(&self.counters.refused),
            malformed: get(&self.counters.malformed),
        }
    }

    // For providers.

    pub(crate) fn control(&self) -> &memory::Mapping {
        self.keys.control()
    }

    /// A link came up; the number of its arrival.
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

    /// What an attachment may open: the region's length and rights.
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

    /// A request came in over the link of that arrival; what to send at once, if anything.
    pub(crate) fn request(
        self: &Arc<Self>,
        request: Request<'_>,
        arrival: u64,
        (oldest, retry): (u64, bool),
    ) -> Option<Answer> {
        let (client, number) = (request.client, request.number);
        let verdict = self.duplicates.lock().request((client, arrival), number, oldest, retry);
        match verdict {
            Verdict::Fresh => {
                self.counters.requests.fetch_add(1, Ordering::Relaxed);
                let reply = Reply { node: Arc::clone(self), client, number, sent: false };
                if let Some(handler) = &self.handler {
                    handler.handle(request, reply);
                }
                None
            }
            Verdict::Running => {
                self.counters.duplicates.fetch_add(1, Ordering::Relaxed);
                None
            }
            Verdict::Answered(answer) => {
                self.counters.duplicates.fetch_add(1, Ordering::Relaxed);
                Some(answer)
            }
            Verdict::Refused(refusal) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                Some(Err(refusal))
            }
        }
    }

    fn answer(&self, client: ClientId, number: u64, answer: &Answer) {
        let link = self.duplicates.lock().answer(client, number, answer);
        if let Some(link) = link.and_then(|link| link.upgrade()) {
            link.answer(number, answer);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Clients that still have the memory mapped learn that nobody owns it.
        self.keys.advance(Epoch(self.epoch().0.saturating_add(1)));
    }
}

/// Whether a key is of this life of this node.
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
    /// Which right, where, how many bytes.
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

    /// Touches the memory; the old word of an atomic operation. The caller has checked the range.
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
