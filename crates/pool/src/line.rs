//! A way to ask a node or the manager, made again when it is down.
//!
//! One session for as long as the line lives, so that numbers never begin again: a node that knows a client's numbers would answer
//! with what it answered before. Any number of threads may ask at once.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_fabric::{Call, ClientId, Link, NodeId, Reason, Refusal, Session};
use parking_lot::Mutex;

use crate::endpoint::Endpoints;
use crate::wire::Message;

/// Asks over a link and reads the answer. `Err(None)`: the link is of no use any more.
pub(crate) fn ask(
    link: &dyn Link,
    message: &Message,
    deadline: Duration,
) -> Result<Message, Option<Refusal>> {
    match link.request(Call::new(&message.encode(), deadline)).wait() {
        Ok(body) => Message::decode(&body).map_err(|_| Some(Reason::Protocol.into())),
        Err(refusal) => match refusal.reason {
            Reason::Full | Reason::Unanswered | Reason::TooLarge => Err(Some(refusal)),
            _ => Err(None),
        },
    }
}

/// See the module.
#[derive(Debug)]
pub struct Line {
    endpoints: Arc<Endpoints>,
    ways: Vec<String>,
    session: Arc<Session>,
    peer: Option<(NodeId, Epoch)>,
    link: Mutex<Option<Arc<dyn Link>>>,
}

impl Line {
    /// A line to who answers at one of `ways`, as `client`; to no other than `peer`, if that is given. Nothing is sent yet.
    #[must_use]
    pub fn new(
        endpoints: &Arc<Endpoints>,
        ways: Vec<String>,
        client: ClientId,
        peer: Option<(NodeId, Epoch)>,
    ) -> Self {
        let session = Session::new(client);
        Self { endpoints: Arc::clone(endpoints), ways, session, peer, link: Mutex::new(None) }
    }

    /// Asks once. Errors: nobody there, or no answer within `deadline`; whether the question arrived is then not known.
    pub fn ask(&self, message: &Message, deadline: Duration) -> Result<Message> {
        let link = self.link(deadline)?;
        ask(&*link, message, deadline).map_err(|refusal| {
            let Some(refusal) = refusal else {
                link.close();
                let what = format!("{} does not answer", self.ways.join(", "));
                return Error::new(ErrorKind::Busy, what);
            };
            refusal.error(self.ways.join(", "))
        })
    }

    /// The link, made anew if it is down.
    pub fn link(&self, deadline: Duration) -> Result<Arc<dyn Link>> {
        let mut known = self.link.lock();
        if let Some(link) = known.as_ref().filter(|link| link.closed().is_none()) {
            return Ok(Arc::clone(link));
        }
        let link = self.endpoints.connect(&self.ways, &self.session, self.peer, deadline)?;
        *known = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Takes the link down; the next question makes a new one.
    pub fn hang_up(&self) {
        if let Some(link) = self.link.lock().take() {
            link.close();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.hang_up();
    }
}
