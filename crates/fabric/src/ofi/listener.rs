//! The node's end of `ofi`. A TCP socket accepts clients, and one thread per link answers
//! attachments and requests. The card, or libfabric's own progress, executes one-sided operations.

use std::net::ToSocketAddrs;
use std::sync::Arc;

use archipelago_base::random::entropy_seed;
use archipelago_base::spawn::Joiner;
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::Ofi;
use super::control::Control;
use super::engine::Engine;
use super::ffi::{Domain, End, Registered};
use super::messages::Messages;
use crate::ids::RemoteKey;
use crate::link::Listener;
use crate::memory::Mapping;
use crate::node::card::{Claim, Registration};
use crate::node::{AtomicPath, LinkEnd, Node};
use crate::refusal::{Reason, Refusal};
use crate::stream::{Greeted, Incoming, OneSided, Registrar, Responder, Stream};
use crate::tcp::reception::{GREETING_DEADLINE, Reception, goodbye, listen};
use crate::tcp::socket::Socket;
use crate::wire::ofi::{Endpoints, OpenedOnCard};
use crate::wire::{Hello, Kind, Opened, Welcome, put_frame};

#[derive(Debug)]
pub(super) struct OfiNodeListener {
    address: String,
    shared: Arc<ListenerState>,
    accepting: Option<Joiner>,
}

#[derive(Debug)]
struct ListenerState {
    reception: Arc<Reception<Messages>>,
    domain: Arc<Domain>,
    claim: Claim,
    provider: Arc<str>,
}

impl OfiNodeListener {
    pub(super) fn open(node: &Arc<Node>, address: &str, ofi: &Ofi) -> Result<Self> {
        let (provider, secret) = (&ofi.name, ofi.secret.as_ref());
        let fail = |source| {
            let what = format!("cannot listen on {address}");
            Error::with_source(ErrorKind::Io, what, source)
        };
        let wanted = address.to_socket_addrs().map_err(fail)?.next();
        let Some(wanted) = wanted.filter(|wanted| !wanted.ip().is_unspecified()) else {
            return Err(Error::invalid(format!(
                "{address}: give the address of the interface whose card is to be used"
            )));
        };
        if secret.is_some() && !wanted.ip().to_canonical().is_loopback() {
            let what = format!(
                "{address}: a node with a secret cannot listen over ofi for other machines yet, \
                 because the messages of a link are not bound to its proof: use tcp, or a loopback \
                 address"
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let domain = super::open(provider, wanted.ip())?;
        let (listener, bound) = listen(wanted, secret)?;
        let bound = bound.to_string();
        let reception = Reception::new(node, &ofi.clock, secret)?;
        let number = crate::link::number();
        let claim = Claim { number, name: format!("a listener over {provider} at {bound}") };
        node.claim_card(&claim)?;
        let shared =
            Arc::new(ListenerState { reception, domain, claim, provider: Arc::clone(provider) });
        let mut opened = Self { address: bound, shared: Arc::clone(&shared), accepting: None };
        let at = Arc::clone(&shared);
        let serve = move |socket, hello: &Hello, welcome: &Welcome, incoming| {
            at.serve(socket, hello, welcome, incoming);
        };
        // If the thread does not start, dropping the listener releases the claim.
        opened.accepting = Some(shared.reception.open(listener, Arc::new(serve))?);
        Ok(opened)
    }
}

impl Listener for OfiNodeListener {
    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for OfiNodeListener {
    fn drop(&mut self) {
        let reception = &self.shared.reception;
        reception.end(self.accepting.take());
        reception.node.release_card(&self.shared.claim);
        reception.close_links();
    }
}

impl ListenerState {
    fn serve(self: &Arc<Self>, socket: Socket, hello: &Hello, welcome: &Welcome, in_: Incoming) {
        let ends = Engine::open_target(&self.domain).and_then(|operations| {
            Ok((operations, Messages::open(&self.domain)?, Control::new(socket, in_)?))
        });
        let (operations, messages, control) = match ends {
            Ok((operations, messages, control)) => (operations, messages, Arc::new(control)),
            Err(error) => return tracing::warn!(%error, "a link was not taken"),
        };
        let (Ok(operations_name), Ok(messages_name)) = (operations.name(), messages.name()) else {
            return tracing::warn!("an endpoint of libfabric has no name");
        };
        let mine = Endpoints {
            provider: self.provider.to_string(),
            operations: operations_name,
            messages: messages_name,
        };
        let listener = Arc::clone(self);
        let registrar = Registrations { end: operations, held: Mutex::default(), listener };
        let messages = Messages::new(messages, Arc::clone(&control));
        let greeted = Greeted::new(hello, welcome);
        let one_sided = OneSided::Registered(Box::new(registrar));
        let link = Responder::new(messages, greeted, AtomicPath::Card, one_sided);
        let as_end: Arc<dyn LinkEnd> = Arc::clone(&link) as Arc<dyn LinkEnd>;
        match self.reception.node.arrive(hello.client, &as_end, hello.resumed) {
            Ok(arrival) => {
                link.arrived(arrival);
                self.reception.remember(&link);
                if self.introduce(&link, &control, welcome, &mine) {
                    link.run(&self.reception.node, Incoming::new());
                }
                link.stream().shut();
                self.reception.node.depart(hello.client, arrival);
            }
            Err(refusal) => control.say_last(&goodbye(refusal)),
        }
    }

    /// Exchanges the names of endpoints with the client. Returns whether the link may run.
    fn introduce(
        &self,
        link: &Responder<Messages>,
        control: &Control,
        welcome: &Welcome,
        mine: &Endpoints,
    ) -> bool {
        let mut greeting = Vec::new();
        put_frame(&mut greeting, Kind::Welcome, 0, |body| welcome.encode(body));
        if self.reception.is_late(welcome) || control.tell(greeting, mine).is_err() {
            return false;
        }
        match control.hear(&*self.reception.clock, GREETING_DEADLINE) {
            Ok(theirs) if theirs.provider == mine.provider => {
                let joined = link.stream().join(&theirs.messages);
                if let Err(code) = joined {
                    tracing::warn!(%code, "a client's endpoints are not ones of libfabric");
                    self.reception.malformed(Reason::Protocol.into());
                }
                joined.is_ok()
            }
            Ok(_) => false,
            Err(refusal) => {
                // A client that leaves here uses another provider.
                if refusal.reason != Reason::Disconnected {
                    self.reception.malformed(refusal);
                }
                false
            }
        }
    }
}

impl Registration for Registered {
    fn place(&self) -> (u64, u64) {
        Registered::place(self)
    }
}

/// The registrations of a link.
struct Registrations {
    // The fields are dropped in this order. The endpoint of the client's operations ends first.
    // Then the memory is freed, to which the client may still have been writing when its key was
    // revoked.
    end: End,
    held: Mutex<Vec<Arc<Mapping>>>,
    listener: Arc<ListenerState>,
}

impl Registrar for Registrations {
    fn attach(&self, node: &Node, key: &RemoteKey, out: &mut Vec<u8>) -> bool {
        // A client whose operation was refused asks here, and connects again.
        Engine::hear_knocks(&self.end);
        let placed = node.attach_on_card(key, &self.listener.claim, |memory, rights| {
            let made = Registered::new(&self.listener.domain, memory, rights, entropy_seed());
            let made = made.map_err(|code| {
                tracing::warn!(%code, "memory was not registered with libfabric");
                Refusal::new(Reason::Exhausted)
            })?;
            Ok(Box::new(made) as Box<dyn Registration>)
        });
        let opened = placed.map(|placed| {
            let mut held = self.held.lock();
            if !held.iter().any(|held| Arc::ptr_eq(held, &placed.memory)) {
                held.push(Arc::clone(&placed.memory));
            }
            let len = placed.memory.bytes() as u64;
            OpenedOnCard { opened: Opened { len, rights: placed.rights }, place: placed.place }
        });
        OpenedOnCard::encode(&opened, out);
        opened.is_ok()
    }
}
