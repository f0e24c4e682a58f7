//! The node's end of `tcp`. The threads of the reception read frames and execute them.

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::spawn::Joiner;

use super::Tcp;
use super::reception::{Reception, listen, refuse};
use super::socket::Socket;
use crate::link::Listener;
use crate::node::{AtomicPath, LinkEnd, Node};
use crate::stream::{Greeted, Incoming, OneSided, Responder, Stream, send};
use crate::wire::{Hello, Kind, Welcome, put_frame};

#[derive(Debug)]
pub(super) struct TcpNodeListener {
    address: String,
    reception: Arc<Reception<Socket>>,
    accepting: Option<Joiner>,
}

impl TcpNodeListener {
    pub(super) fn open(node: &Arc<Node>, address: &str, tcp: &Tcp) -> Result<Self> {
        let (listener, bound) = listen(address, tcp.secret.as_ref())?;
        let reception = Reception::new(node, &tcp.clock, tcp.secret.as_ref())?;
        let at = Arc::clone(&reception);
        let accepting = reception.open(
            listener,
            Arc::new(move |socket, hello: &Hello, welcome: &Welcome, incoming| {
                serve(&at, socket, hello, welcome, incoming);
            }),
        )?;
        Ok(Self { address: bound.to_string(), reception, accepting: Some(accepting) })
    }
}

impl Listener for TcpNodeListener {
    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for TcpNodeListener {
    fn drop(&mut self) {
        self.reception.end(self.accepting.take());
        self.reception.close_links();
    }
}

fn serve(
    reception: &Reception<Socket>,
    socket: Socket,
    hello: &Hello,
    welcome: &Welcome,
    incoming: Incoming,
) {
    let greeted = Greeted::new(hello, welcome);
    let link = Responder::new(socket, greeted, AtomicPath::Processor, OneSided::Frames);
    let end: Arc<dyn LinkEnd> = Arc::clone(&link) as Arc<dyn LinkEnd>;
    let arrival = match reception.node.arrive(hello.client, &end, hello.resumed) {
        Ok(arrival) => arrival,
        Err(refusal) => return refuse(link.stream(), refusal),
    };
    link.arrived(arrival);
    reception.remember(&link);
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Welcome, 0, |body| welcome.encode(body));
    if !reception.is_late(welcome) && send(link.stream(), &out).is_ok() {
        link.run(&reception.node, incoming);
    }
    link.stream().shut();
    reception.node.depart(hello.client, arrival);
}
