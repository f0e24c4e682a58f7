//! A network card in front of links: it orders what a process sends, and it can emulate a slower
//! network.
//!
//! A [`Card`] belongs to a client or a node. [`Paced`] decorates a provider or a [`Reach`], and
//! gives links that share the card. [`Card::handler`] decorates the handler of a node.
//!
//! **Order.** A message has the class of its call ([`TrafficClass`](crate::TrafficClass)). Log
//! appends go first, then the foreground, flushes, compactions and garbage collection. The last
//! three are background messages, which have a bounded number of bytes in flight. So a log append
//! does not wait behind an unbounded queue of the system or of the network. This is all that a card
//! does in production.
//!
//! **Emulation.** [`CardSettings`] may set a rate of the card in each direction, a rate of each
//! link, and a latency. Messages then wait in a schedule (`schedule/`), which cuts them into
//! slices, so that a log append overtakes a table in the middle of a message. Messages that arrive
//! take turns by link, because a receiver cannot order what others send. An answer that arrives
//! completes its promise when it has passed.
//!
//! A simulated network ([`sim`](crate::sim)) has a model of cards of its own. Code that runs in
//! virtual time awaits the promises of paced links: [`Promise::wait`](crate::Promise::wait) does
//! not run the simulation for them.
//!
//! Invariants:
//! 1. The promises of [`Link`] hold. Requests of different classes overtake each other. Requests of
//!    other classes than the foreground and one-sided operations also overtake each other.
//! 2. Messages of one link and class keep their order.
//! 3. A card without rates and latency delays background requests only.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a message that waits beyond its deadline completes with
//! [`Reason::Deadline`](crate::Reason::Deadline). A link with too many waiting bytes or messages
//! refuses with [`Reason::Full`](crate::Reason::Full).
//! Cost: without rates and latency, two counters for each message, a small allocation for each
//! request, and two short locks for each background request. Otherwise a copy of each message and a
//! switch to the pump in each direction.

mod bell;
mod core;
mod handler;
mod link;
mod schedule;
mod settings;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::{Boxed, Runtime};
use archipelago_base::{Epoch, Result};

use self::core::CardCore;
use self::handler::PacedHandler;
use self::link::PacedLink;
use crate::ids::NodeId;
use crate::link::{Connect, Link, Listener, Provider, Session};
use crate::node::{AtomicPath, Handler, Node};
use crate::promise::Promise;
use crate::reach::Reach;

pub use self::settings::{CardSettings, CardStats, Traffic};

/// A network card, which all links of a client or a node share. Clones are the same card.
#[derive(Clone)]
pub struct Card(Arc<CardCore>);

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Card({:?})", self.0.settings)
    }
}

impl Card {
    /// Makes a card that has a thread of its own, which suits nodes: handlers of delayed requests
    /// run on it. Errors: `InvalidArgument` for wrong settings; `Io` if the system starts no
    /// thread.
    pub fn on_thread(settings: &CardSettings) -> Result<Self> {
        CardCore::on_thread(settings).map(Self)
    }

    /// Makes a card that runs as a task of `runtime`, which must outlive it. Errors:
    /// `InvalidArgument` for wrong settings.
    pub fn over(settings: &CardSettings, runtime: &Arc<dyn Runtime>) -> Result<Self> {
        CardCore::over(settings, runtime).map(Self)
    }

    /// Puts a handler behind this card: its requests arrive and its answers leave at the card's
    /// pace.
    #[must_use]
    pub fn handler(&self, inner: Box<dyn Handler>) -> Box<dyn Handler> {
        Box::new(PacedHandler::new(&self.0, inner))
    }

    /// The counters since the card was made.
    #[must_use]
    pub fn stats(&self) -> CardStats {
        self.0.stats()
    }

    /// Puts a link behind this card. `deadline` applies to operations that set none.
    fn pace(&self, link: Arc<dyn Link>, deadline: Duration) -> Arc<dyn Link> {
        Arc::new(PacedLink::new(link, &self.0, deadline))
    }
}

/// A provider or a [`Reach`] whose links share a card.
#[derive(Debug)]
pub struct Paced<P: ?Sized> {
    card: Card,
    inner: Arc<P>,
}

impl<P: ?Sized> Paced<P> {
    /// Puts `card` in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<P>, card: &Card) -> Self {
        Self { card: card.clone(), inner }
    }
}

impl<P: Provider + ?Sized> Provider for Paced<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn atomic_path(&self) -> AtomicPath {
        self.inner.atomic_path()
    }

    /// Serves without the card, because the card of a node is in front of its handler
    /// ([`Card::handler`]).
    fn serve(&self, node: &Arc<Node>, address: &str) -> Result<Box<dyn Listener>> {
        self.inner.serve(node, address)
    }

    fn connect(&self, to: Connect) -> Promise<Result<Arc<dyn Link>>> {
        let (card, deadline) = (self.card.clone(), to.deadline);
        self.inner.connect(to).passing(move |link| link.map(|link| card.pace(link, deadline)))
    }
}

impl<P: Reach + ?Sized> Reach for Paced<P> {
    fn connect<'a>(
        &'a self,
        endpoints: &'a [String],
        session: &'a Arc<Session>,
        peer: Option<(NodeId, Epoch)>,
        deadline: Duration,
    ) -> Boxed<'a, Result<Arc<dyn Link>>> {
        Box::pin(async move {
            let link = self.inner.connect(endpoints, session, peer, deadline).await?;
            Ok(self.card.pace(link, deadline))
        })
    }
}
