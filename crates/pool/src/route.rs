//! A way to ask a node or the manager, made again when it is down; for tasks.
//!
//! A route to the managers of a cluster has several ways, one per manager, and goes on to the next
//! when one does not answer or stands by.
//!
//! One session for as long as the route lives, so that numbers never begin again: a node that knows
//! a client's numbers would answer with what it answered before. One link at a time, for answers go
//! to a session's newest. Any number of tasks may ask at once. Cost: a round trip per question, two
//! more for the first.

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

/// How nodes are reached: by the providers of a process ([`Endpoints`](crate::Endpoints)), or over
/// a simulated network ([`Sim`]).
pub trait Reach: Send + Sync + fmt::Debug + 'static {
    /// Connects to who answers at one of `endpoints`; to no other than `peer`, if that is given.
    fn connect<'a>(
        &'a self,
        endpoints: &'a [String],
        session: &'a Arc<Session>,
        peer: Option<(NodeId, Epoch)>,
        deadline: Duration,
    ) -> Boxed<'a, Result<Arc<dyn Link>>>;
}

/// An endpoint is the provider's address alone.
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

/// An answer as it came; `Err(None)`: the link is of no use any more.
pub(crate) fn read_answer(answer: Result<Body, Refusal>) -> Result<Message, Option<Refusal>> {
    match answer {
        Ok(body) => Message::decode(&body).map_err(|_| Some(Reason::Protocol.into())),
        Err(refusal) => match refusal.reason {
            Reason::Full | Reason::Unanswered | Reason::TooLarge => Err(Some(refusal)),
            _ => Err(None),
        },
    }
}

/// Asks over a link and reads the answer. `Err(None)`: the link is of no use any more, and is down.
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

/// What [`ask`] could not, as an error; `who` was asked.
pub(crate) fn unasked(refusal: Option<Refusal>, who: impl fmt::Display) -> Error {
    match refusal {
        Some(refusal) => refusal.error(who),
        None => Error::new(ErrorKind::Busy, format!("{who} does not answer")),
    }
}

/// See the module.
#[derive(Debug)]
pub struct Route {
    reach: Arc<dyn Reach>,
    session: Arc<Session>,
    peer: Option<(NodeId, Epoch)>,
    link: Mutex<Option<Arc<dyn Link>>>,
    connecting: Gate,
    /// The way that is tried first.
    turn: AtomicUsize,
}

impl Route {
    /// As `client`; to no other than `peer`, if that is given. Nothing is sent yet.
    #[must_use]
    pub fn new(reach: &Arc<dyn Reach>, client: ClientId, peer: Option<(NodeId, Epoch)>) -> Self {
        let (session, link) = (Session::new(client), Mutex::new(None));
        let (reach, connecting, turn) = (Arc::clone(reach), Gate::default(), AtomicUsize::new(0));
        Self { reach, session, peer, link, connecting, turn }
    }

    fn up(&self) -> Option<Arc<dyn Link>> {
        self.link.lock().as_ref().filter(|link| link.closed().is_none()).cloned()
    }

    /// The link, made anew to one of `ways` if it is down.
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

    /// Asks once. Errors: nobody there, or no answer within `deadline`; whether the question
    /// arrived is then not known.
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

    /// What an answer says of the way that it came by: without one, and from a manager that stands
    /// by, the next question goes another way.
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

    /// Hangs up; the next question goes another way, if there is one.
    pub fn go_on(&self, ways: &[String]) {
        self.hang_up();
        self.turn_to_next(ways);
    }

    fn turn_to_next(&self, ways: &[String]) {
        if self.peer.is_none() && ways.len() > 1 {
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the link down; the next question makes a new one.
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
