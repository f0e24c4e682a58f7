//! Tests of routes: the messages of any protocol, and managers that stand by.

use std::fmt;
use std::sync::Arc;

use archipelago_base::wire::Malformed;
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::sim::Model;
use archipelago_fabric::{
    ClientId, Handler, NodeId, Provider, Reach, Reply, Request, Route, RouteMessage, ask,
};

use crate::world::{LONG, Virtual};

/// A message of one word.
#[derive(Debug, PartialEq)]
struct Word(&'static str);

impl RouteMessage for Word {
    fn encode(&self) -> Vec<u8> {
        self.0.as_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let known = ["question", "standby", "answer"].into_iter();
        let mut of_bytes = known.filter(|word| word.as_bytes() == bytes);
        of_bytes.next().map(Self).ok_or(Malformed("an unknown word"))
    }

    fn standby(&self, asked: &dyn fmt::Display) -> Option<Error> {
        (self.0 == "standby").then(|| Error::busy(format!("{asked}: this manager stands by")))
    }
}

/// Answers every request with one word.
struct Says(&'static str);

impl Handler for Says {
    fn handle(&self, _request: Request<'_>, reply: Reply) {
        reply.send(self.0.as_bytes());
    }
}

#[test]
fn route_leaves_a_manager_that_stands_by() {
    let made = Virtual::new(1, &Model::quick());
    let other_host = made.simulation.host("other");
    let other = made.network.join(&other_host, Model::quick());
    let standby = made.network.node(NodeId(1), Epoch(1), Some(Box::new(Says("standby")))).unwrap();
    let acting = made.network.node(NodeId(2), Epoch(1), Some(Box::new(Says("answer")))).unwrap();
    let _listeners =
        (made.there.serve(&standby, "node").unwrap(), other.serve(&acting, "other").unwrap());
    let reach: Arc<dyn Reach> = Arc::new(made.here.clone());
    let task = made.client_host.spawn("client", async move {
        let route = Route::new(&reach, ClientId(7), None);
        let ways = ["node".to_owned(), "other".to_owned()];
        let refused = route.ask(&ways, &Word("question"), LONG).await.unwrap_err().to_string();
        assert!(refused.contains("node, other: this manager stands by"), "{refused}");
        assert_eq!(route.ask(&ways, &Word("question"), LONG).await.unwrap(), Word("answer"));
        // The answer of a manager counts if the client knows no other manager.
        let alone = Route::new(&reach, ClientId(8), None);
        let only = &ways[..1];
        assert_eq!(alone.ask(only, &Word("question"), LONG).await.unwrap(), Word("standby"));
        let link = alone.link(only, LONG).await.unwrap();
        let direct: Word = ask(&link, &Word("question"), LONG, "the manager").await.unwrap();
        assert_eq!(direct, Word("standby"));
    });
    made.simulation.block_on(task).unwrap();
}
