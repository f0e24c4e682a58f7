//! A [`Route`] for threads: whoever asks waits, and receives the answer by itself.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::block_on;
use archipelago_base::{Epoch, Result};
use archipelago_fabric::{Call, ClientId, Link, NodeId};

use crate::endpoint::Endpoints;
use crate::route::{Reach, Route, read_answer};
use crate::wire::Message;

/// See the module. Any number of threads may ask at once.
#[derive(Debug)]
pub struct Line {
    route: Route,
    ways: Vec<String>,
}

impl Line {
    /// A line to who answers at one of `ways`, as `client`; to no other than `peer`, if that is
    /// given. Nothing is sent yet.
    #[must_use]
    pub fn new(
        endpoints: &Arc<Endpoints>,
        ways: Vec<String>,
        client: ClientId,
        peer: Option<(NodeId, Epoch)>,
    ) -> Self {
        let reach: Arc<dyn Reach> = Arc::clone(endpoints) as Arc<dyn Reach>;
        Self { route: Route::new(&reach, client, peer), ways }
    }

    /// Asks once. Errors: nobody there, or no answer within `deadline`; whether the question
    /// arrived is then not known.
    pub fn ask(&self, message: &Message, deadline: Duration) -> Result<Message> {
        let link = self.link(deadline)?;
        let answer = link.request(Call::new(&message.encode(), deadline)).wait();
        let asked = read_answer(answer).inspect_err(|refusal| {
            if refusal.is_none() {
                link.close();
            }
        });
        self.route.heard(&self.ways, asked)
    }

    /// The link, made anew if it is down.
    pub fn link(&self, deadline: Duration) -> Result<Arc<dyn Link>> {
        block_on(self.route.link(&self.ways, deadline))
    }

    /// Takes the link down; the next question makes a new one.
    pub fn hang_up(&self) {
        self.route.hang_up();
    }
}
