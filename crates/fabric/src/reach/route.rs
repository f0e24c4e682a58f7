//! A route: the connection of a task to a node or to the manager, which reconnects when it is down.
//!
//! A route to the managers of a cluster has one way per manager. It changes to the next way if a
//! manager does not answer or stands by ([`RouteMessage::standby`]). [`Reach`] says how an endpoint
//! is connected.
//!
//! Invariants:
//! 1. A route has one session for its whole life, so its request numbers never begin again. A node
//!    would answer a repeated number with the answer that it gave before.
//! 2. A route has one link at a time, because a node sends answers over the newest link of a
//!    session.
//!
//! Thread-safety: any number of tasks may ask at the same time.
//! Failure: an error says that no answer came; the request may have arrived.
//! Cost: a round trip per request, and two more for the first request of a link.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Gate;
use archipelago_base::{Epoch, Result};
use parking_lot::Mutex;

use super::{Reach, RouteMessage, read_answer, unanswered};
use crate::ids::{ClientId, NodeId};
use crate::link::{Call, Link, Session};
use crate::refusal::Refusal;

/// Writes the names of several ways, separated by commas.
struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
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
    pub async fn ask<M: RouteMessage>(
        &self,
        ways: &[String],
        message: &M,
        deadline: Duration,
    ) -> Result<M> {
        let link = self.link(ways, deadline).await?;
        let answer = link.request(Call::new(&message.encode(), deadline)).await;
        self.heard(ways, read_answer(&link, answer))
    }

    /// Keeps or changes the way after an answer. If there is no answer, or the manager stands by,
    /// the next request takes another way.
    pub(super) fn heard<M: RouteMessage>(
        &self,
        ways: &[String],
        asked: Result<M, Option<Refusal>>,
    ) -> Result<M> {
        match asked {
            Ok(message) if ways.len() > 1 => match message.standby(&Listed(ways)) {
                Some(error) => {
                    self.go_on(ways);
                    Err(error)
                }
                None => Ok(message),
            },
            Ok(message) => Ok(message),
            Err(refusal) => {
                if refusal.is_none() {
                    self.turn_to_next(ways);
                }
                Err(unanswered(refusal, Listed(ways)))
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
