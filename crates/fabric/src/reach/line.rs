//! A [`Route`] for threads: a call blocks its thread, and receives the answer on it.
//!
//! Thread-safety: any number of threads may ask at the same time.
//! Failure and cost: as for [`Route`].

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::block_on;
use archipelago_base::{Epoch, Result};

use super::{Endpoints, Reach, Route, RouteMessage, read_answer};
use crate::ids::{ClientId, NodeId};
use crate::link::{Call, Link};

/// A connection to a node or to the manager, for threads.
#[derive(Debug)]
pub struct Line {
    route: Route,
    ways: Vec<String>,
}

impl Line {
    /// A line from `client` to the node that answers at one of `ways`, and to `peer` only, if it is
    /// given. Sends nothing yet.
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

    /// Sends a request once. An error means that no node answered within `deadline`; the request
    /// may have arrived.
    pub fn ask<M: RouteMessage>(&self, message: &M, deadline: Duration) -> Result<M> {
        let link = self.link(deadline)?;
        let answer = link.request(Call::new(&message.encode(), deadline)).wait();
        self.route.heard(&self.ways, read_answer(&link, answer))
    }

    /// The link, which this call connects again if it is down.
    pub fn link(&self, deadline: Duration) -> Result<Arc<dyn Link>> {
        block_on(self.route.link(&self.ways, deadline))
    }

    /// Closes the link; the next request connects again.
    pub fn hang_up(&self) {
        self.route.hang_up();
    }
}
