//! A route: the connection of a task to a node or to the manager, which reconnects when it is down.
//!
//! A route to the managers of a cluster has one way per manager. It changes to the next way if a
//! manager does not answer or stands by. [`Reach`] says how an endpoint is connected.
//!
//! Invariants:
//! 1. A route has one session for its whole life, so its request numbers never begin again. A node
//!    would answer a repeated number with the answer that it gave before.
//! 2. A route has one link at a time, because a node sends answers over the newest link of a
//!    session.
//!
//! Thread-safety: any number of tasks may ask at the same time.
//! Failure: an error says that no answer came; the request may have arrived.
//! Cost: a round trip per request, and two more for the first.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::runtime::{Boxed, Gate};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{
    Body, Call, ClientId, Connect, Link, NodeId, Provider, Reason, Refusal, Session,
};
use parking_lot::Mutex;

use crate::wire::{Message, Why};

/// Connects to nodes: by the providers of a process ([`Endpoints`](crate::Endpoints)), or over a
/// simulated network ([`Sim`]).
pub trait Reach: Send + Sync + fmt::Debug + 'static {
    /// Connects to the node that answers at one of `endpoints`, and to `peer` only, if it is given.
    fn connect<'a>(
        &'a self,
        endpoints: &'a [String],
        session: &'a Arc<Session>,
        peer: Option<(NodeId, Epoch)>,
        deadline: Duration,
    ) -> Boxed<'a, Result<Arc<dyn Link>>>;
}

/// In the simulation, an endpoint is an address of the provider.
impl Reach for Sim {
    fn connect<'a>(
        &'a self,
        endpoints: &'a [String],
        session: &'a Arc<Session>,
        peer: Option<(NodeId, Epoch)>,
        deadline: Duration,
    ) -> Boxed<'a, Result<Arc<dyn Link>>> {
        Box::pin(async move {
            let Some(address) = endpoints.first() else {
                return Err(Error::not_found("the node has no endpoint"));
            };
            let mut to = Connect::to(address.as_str(), session);
            to.deadline = deadline;
            to.node = peer.map(|(node, _)| node);
            to.epoch = peer.map(|(_, epoch)| epoch);
            Provider::connect(self, to).await
        })
    }
}

/// Decodes an answer. `Err(None)` means that the link is unusable.
pub(crate) fn read_answer(answer: Result<Body, Refusal>) -> Result<Message, Option<Refusal>> {
    match answer {
        Ok(body) => Message::decode(&body).map_err(|_| Some(Reason::Protocol.into())),
        Err(refusal) => match refusal.reason {
            Reason::Full | Reason::Unanswered | Reason::TooLarge => Err(Some(refusal)),
            _ => Err(None),
        },
    }
}

/// Sends a request over a link and decodes the answer. `Err(None)` means that the link was unusable
/// and is closed.
pub(crate) async fn ask(
    link: &Arc<dyn Link>,
    message: &Message,
    deadline: Duration,
) -> Result<Message, Option<Refusal>> {
    let answer = link.request(Call::new(&message.encode(), deadline)).await;
    read_answer(answer).inspect_err(|refusal| {
        if refusal.is_none() {
            link.close();
        }
    })
}

/// The error for a request to `who` that [`ask`] could not execute.
pub(crate) fn unasked(refusal: Option<Refusal>, who: impl fmt::Display) -> Error {
    match refusal {
        Some(refusal) => refusal.error(who),
        None => Error::new(ErrorKind::Busy, format!("{who} does not answer")),
    }
}

/// A connection to a node, or to one of several managers.
#[derive(Debug)]
pub struct Route {
    reach: Arc<dyn Reach>,
    session: Arc<Session>,
    peer: Option<(NodeId, Epoch)>,
    link: Mutex<Option<Arc<dyn Link>>>,
    connecting: Gate,
    /// Index of the way to try first.
    turn: AtomicUsize,
}

impl Route {
    /// A route of `client`, and to `peer` only, if it is given. Sends nothing yet.
    #[must_use]
    pub fn new(reach: &Arc<dyn Reach>, client: ClientId, peer: Option<(NodeId, Epoch)>) -> Self {
        let (session, link) = (Session::new(client), Mutex::new(None));
        let (reach, connecting, turn) = (Arc::clone(reach), Gate::default(), AtomicUsize::new(0));
        Self { reach, session, peer, link, connecting, turn }
    }

    fn up(&self) -> Option<Arc<dyn Link>> {
        self.link.lock().as_ref().filter(|link| link.closed().is_none()).cloned()
    }

    /// The link. If it is down, this call connects to one of `ways`.
    pub async fn link(&self, ways: &[String], deadline: Duration) -> Result<Arc<dyn Link>> {
        if let Some(link) = self.up() {
            return Ok(link);
        }
        let _pass = self.connecting.enter().await;
        if let Some(link) = self.up() {
            return Ok(link);
        }
        let turn = self.turn.load(Ordering::Relaxed) % ways.len().max(1);
        let turned = if turn > 0 { [&ways[turn..], &ways[..turn]].concat() } else { Vec::new() };
        let ways = if turn > 0 { &turned[..] } else { ways };
        let linked = self.reach.connect(ways, &self.session, self.peer, deadline).await;
        let link = linked.inspect_err(|_| self.turn_to_next(ways))?;
        *self.link.lock() = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Sends a request once. An error means that no node answered within `deadline`; the request
    /// may have arrived.
    pub async fn ask(
        &self,
        ways: &[String],
        message: &Message,
        deadline: Duration,
    ) -> Result<Message> {
        let link = self.link(ways, deadline).await?;
        let asked = ask(&link, message, deadline).await;
        self.heard(ways, asked)
    }

    /// Decides by an answer whether the way stays. If there is no answer, or the manager stands by,
    /// the next request takes another way.
    pub(crate) fn heard(
        &self,
        ways: &[String],
        asked: Result<Message, Option<Refusal>>,
    ) -> Result<Message> {
        match asked {
            Ok(Message::Refuse { refused }) if refused.why == Why::Standby && ways.len() > 1 => {
                self.go_on(ways);
                Err(refused.error(ways.join(", ")))
            }
            Ok(message) => Ok(message),
            Err(refusal) => {
                if refusal.is_none() {
                    self.turn_to_next(ways);
                }
                Err(unasked(refusal, ways.join(", ")))
            }
        }
    }

    /// Closes the link; the next request takes another way, if there is one.
    pub fn go_on(&self, ways: &[String]) {
        self.hang_up();
        self.turn_to_next(ways);
    }

    fn turn_to_next(&self, ways: &[String]) {
        if self.peer.is_none() && ways.len() > 1 {
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Closes the link; the next request connects again.
    pub fn hang_up(&self) {
        let link = self.link.lock().take();
        if let Some(link) = link {
            link.close();
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        self.hang_up();
    }
}
