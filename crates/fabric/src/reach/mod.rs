//! How a client reaches nodes by endpoints, and asks them in the messages of a protocol.
//!
//! | part | file |
//! | --- | --- |
//! | [`Endpoints`]: endpoints as text, and the providers of a process that connect to them | `endpoint.rs` |
//! | [`Route`]: the connection of a task to a node or to one of several managers | `route.rs` |
//! | [`Line`]: a route for threads | `line.rs` |
//!
//! The pool, FlexKV and the store have messages of their own. A protocol whose requests and answers
//! travel over routes implements [`RouteMessage`].
//!
//! Thread-safety: any thread may call any method.
//! Failure and cost: each part states its own.

mod endpoint;
mod line;
mod route;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::Boxed;
use archipelago_base::wire::Malformed;
use archipelago_base::{Epoch, Error, ErrorKind, Result};

pub use endpoint::{Endpoints, endpoint};
pub use line::Line;
pub use route::Route;

use crate::body::Body;
use crate::ids::NodeId;
use crate::link::{Call, Connect, Link, Provider, Session};
use crate::refusal::{Reason, Refusal};
use crate::sim::Sim;

/// Connects to nodes: by the providers of a process ([`Endpoints`]), or over a simulated network
/// ([`Sim`]).
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

/// A message of a protocol whose requests and answers travel over routes.
pub trait RouteMessage: Sized {
    /// The bytes of this message, with the version of the protocol.
    fn encode(&self) -> Vec<u8>;

    /// Reads a message, to which all bytes must belong.
    fn decode(bytes: &[u8]) -> Result<Self, Malformed>;

    /// The error of an answer that says that its sender stands by, so that the client should ask
    /// another manager. `None` for every other message. `asked` names the endpoints that were
    /// asked.
    fn standby(&self, asked: &dyn fmt::Display) -> Option<Error>;
}

/// Sends a request over `link` and decodes the answer. Closes the link if it turns out to be
/// unusable. The errors name `peer`: `Busy` if no answer came in time.
pub async fn ask<M: RouteMessage>(
    link: &Arc<dyn Link>,
    message: &M,
    deadline: Duration,
    peer: impl fmt::Display,
) -> Result<M> {
    let answer = link.request(Call::new(&message.encode(), deadline)).await;
    read_answer(link, answer).map_err(|refusal| unanswered(refusal, peer))
}

/// Decodes an answer. `Err(None)` means that the link was unusable, and this function has closed
/// it.
fn read_answer<M: RouteMessage>(
    link: &Arc<dyn Link>,
    answer: Result<Body, Refusal>,
) -> Result<M, Option<Refusal>> {
    match answer {
        Ok(body) => M::decode(&body).map_err(|_| Some(Reason::Protocol.into())),
        Err(refusal) => match refusal.reason {
            Reason::Full | Reason::Unanswered | Reason::TooLarge => Err(Some(refusal)),
            _ => {
                link.close();
                Err(None)
            }
        },
    }
}

/// The error for a request to `peer` that got no answer.
fn unanswered(refusal: Option<Refusal>, peer: impl fmt::Display) -> Error {
    match refusal {
        Some(refusal) => refusal.error(peer),
        None => Error::new(ErrorKind::Busy, format!("{peer} does not answer")),
    }
}
