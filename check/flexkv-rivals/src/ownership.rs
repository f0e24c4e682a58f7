//! Ownership: a node sends each request to the owner of the key, which executes all of it.
//!
//! The owner of a key is the node that serves its partition. An [`OwnershipNode`] wraps a compute
//! node and the handler of its requests. It has two messages of its own, whose first byte no
//! message of FlexKV or of the pool has. An owner that does not execute a request answers with
//! FlexKV's *declined*. A request has a number of the session with the owner, and the sender
//! repeats it under that number until the owner answers. So the owner executes it once.
//!
//! Invariants:
//! 1. A node executes a request only while it is the owner, or as the product would.
//! 2. The sessions of this module differ from those of the compute node, because two sessions of
//!    one client at one node must differ.
//!
//! Thread-safety: any thread may call any method; one lock guards the routes.
//! Failure: a request ends as busy if the owner does not answer within the settings' patience. An
//! owner that dies takes the outcome of its requests with it.
//! Cost: a round trip with key and value, and the cost of the owner's write.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future as _;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Error, Result, wire_enum, wire_messages};
use archipelago_fabric::{
    Body, Call, ClientId, Handler, Reach, Reason, Reply, Request, Route, Session,
};
use archipelago_flexkv::wire::{self, Grant, Member, Payload, Why};
use archipelago_flexkv::{ComputeNode, WriteError, fabric_id};
use parking_lot::Mutex;

use crate::StoredValue;

/// Version of the messages; the first byte of each. The messages of FlexKV have the highest bit,
/// and those of the pool count from 1.
const VERSION: u8 = 0x7f;
/// Time without an answer after which a node repeats a request.
const REQUEST: Duration = Duration::from_millis(50);
/// Makes the sessions of this module differ from those of the compute node.
const SESSION_SALT: u64 = 0x94d0_49bb_1331_11eb;

/// Operation that an owner executes for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Set,
    Insert,
    Update,
    Delete,
}

wire_enum!(Operation { Get = 0, Set = 1, Insert = 2, Update = 3, Delete = 4 });

wire_messages! {
    /// Messages between a node and the owner of a key.
    Message, version VERSION {
    /// Node → owner: execute this operation.
    Execute = 1 {
        /// The key of the operation.
        key: Payload,
        /// The operation to execute.
        operation: Operation,
        /// The value of a write.
        value: Payload,
        /// Unix time in milliseconds; 0 means never.
        expires_ms: u64,
    }
    /// Owner → node: the operation was executed.
    Executed = 2 {
        /// Whether the condition of a write held, or the key of a read exists.
        is_done: bool,
        /// The value that was read.
        value: Payload,
        /// The expiry that was read.
        expires_ms: u64,
    }
    }
}

/// Whether a request's body is a message of this module.
#[must_use]
pub fn is_request(body: &[u8]) -> bool {
    body.first() == Some(&VERSION)
}

/// An owner's answer.
pub(crate) struct Answer {
    pub(crate) is_done: bool,
    pub(crate) value: StoredValue,
}

impl Answer {
    /// Reads an answer; `None` means that the owner declined.
    fn decode(body: &[u8]) -> Result<Option<Self>> {
        match Message::decode(body) {
            Ok(Message::Executed { is_done, value, expires_ms }) => {
                let value = StoredValue { bytes: value.0, expires_ms };
                Ok(Some(Self { is_done, value }))
            }
            Ok(Message::Execute { .. }) => {
                Err(Error::unsupported("a request instead of an answer"))
            }
            Err(_) if matches!(wire::Message::decode(body), Ok(wire::Message::Declined { .. })) => {
                Ok(None)
            }
            Err(malformed) => Err(Error::unsupported(malformed.to_string())),
        }
    }
}

/// A compute node that forwards the requests of its clients to the owners of their keys.
pub(crate) struct OwnershipNode {
    node: ComputeNode,
    runtime: Arc<dyn Runtime>,
    reach: Arc<dyn Reach>,
    /// Routes to the other nodes, by client.
    routes: Mutex<BTreeMap<ClientId, Arc<Route>>>,
}

impl fmt::Debug for OwnershipNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnershipNode({:?})", self.node)
    }
}

/// The handler of the wrapped node, and of the messages of this module.
struct OwnershipHandler {
    owner: Weak<OwnershipNode>,
    compute: Box<dyn Handler>,
}

impl Handler for OwnershipHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if !is_request(request.body) {
            return self.compute.handle(request, reply);
        }
        let Some(owner) = self.owner.upgrade() else { return };
        let message = match Message::decode(request.body) {
            Ok(message) => message,
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                return reply.send(declined());
            }
        };
        let runtime = Arc::clone(&owner.runtime);
        let mut task = Box::pin(async move {
            let answer = owner.execute(message).await;
            drop(owner);
            reply.send(answer);
        });
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn("ownership-request", task);
        }
    }
}

fn declined() -> Vec<u8> {
    wire::Message::Declined { why: Why::Busy, grant: Grant::default() }.encode()
}

/// A request to an owner that has no answer yet.
struct Forwarded {
    bytes: Vec<u8>,
    /// The session and the request's number in it, once it was sent.
    number: Option<(Arc<Session>, u64)>,
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        if let Some((session, number)) = &self.number {
            session.give_up(*number);
        }
    }
}

impl OwnershipNode {
    /// Wraps a node and the handler of its requests.
    pub(crate) fn wrap(
        node: ComputeNode,
        compute: Box<dyn Handler>,
        reach: Arc<dyn Reach>,
        runtime: Arc<dyn Runtime>,
    ) -> (Arc<Self>, Box<dyn Handler>) {
        let owner = Arc::new(Self { node, runtime, reach, routes: Mutex::default() });
        let handler = OwnershipHandler { owner: Arc::downgrade(&owner), compute };
        (owner, Box::new(handler))
    }

    /// Has the owner of `key` execute an operation. `None` means that this node is the owner.
    pub(crate) async fn forward(
        &self,
        key: &[u8],
        operation: Operation,
        value: &[u8],
        expires_ms: u64,
    ) -> Result<Option<Answer>> {
        let until_ns = self.node.patience_ends_ns();
        let payload = |bytes: &[u8]| Payload(bytes.to_vec());
        let message =
            Message::Execute { key: payload(key), operation, value: payload(value), expires_ms };
        loop {
            let Some(owner) = self.node.owner_of(key, until_ns).await? else { return Ok(None) };
            if let Some(answer) = self.ask(&owner, &message, until_ns).await? {
                return Ok(Some(answer));
            }
            self.node.check_patience(until_ns, "a request to the owner of a key")?;
            self.node.pause().await;
        }
    }

    /// Asks until the owner answers; `None` means that it declined.
    async fn ask(
        &self,
        owner: &Member,
        message: &Message,
        until_ns: u64,
    ) -> Result<Option<Answer>> {
        let mut forwarded = Forwarded { bytes: message.encode(), number: None };
        loop {
            if let Some(body) = self.ask_once(owner, &mut forwarded).await? {
                return Answer::decode(&body);
            }
            self.node.check_patience(until_ns, "a request to the owner of a key")?;
            self.node.pause().await;
        }
    }

    /// Asks once; `None` means that no answer came in time.
    async fn ask_once(&self, owner: &Member, forwarded: &mut Forwarded) -> Result<Option<Body>> {
        let route = self.route(owner.client);
        let Ok(link) = route.link(&owner.endpoints, REQUEST).await else { return Ok(None) };
        let call = Call::new(&forwarded.bytes, REQUEST);
        let call = match &forwarded.number {
            Some((_, number)) => call.again(*number),
            None => {
                let Ok(number) = link.session().begin() else { return Ok(None) };
                forwarded.number = Some((Arc::clone(link.session()), number));
                call.numbered(number)
            }
        };
        match link.request(call).await {
            Ok(body) => Ok(Some(body)),
            Err(refusal) => match refusal.reason {
                Reason::Deadline | Reason::Full => Ok(None),
                Reason::Disconnected => {
                    link.close();
                    Ok(None)
                }
                _ => {
                    link.close();
                    Err(refusal.error("a request to the owner of a key"))
                }
            },
        }
    }

    fn route(&self, owner: ClientId) -> Arc<Route> {
        let client = ClientId(self.node.client().0 ^ SESSION_SALT);
        let route = || Arc::new(Route::new(&self.reach, client, Some(fabric_id(owner))));
        Arc::clone(self.routes.lock().entry(owner).or_insert_with(route))
    }

    /// Executes an operation for another node.
    async fn execute(&self, message: Message) -> Vec<u8> {
        let Message::Execute { key, operation, value, expires_ms } = message else {
            return declined();
        };
        let (key, value) = (&key.0, &value.0);
        let done = match operation {
            Operation::Get => match self.node.get(key).await {
                Ok(Some(read)) => {
                    let (value, expires_ms) = (Payload(read.bytes), read.expires_ms);
                    return Message::Executed { is_done: true, value, expires_ms }.encode();
                }
                Ok(None) => Ok(false),
                Err(error) => Err(WriteError::without_effect(error)),
            },
            Operation::Set => self.node.set(key, value, expires_ms).await.map(|()| true),
            Operation::Insert => self.node.insert(key, value, expires_ms).await,
            Operation::Update => self.node.update(key, value, expires_ms).await,
            Operation::Delete => self.node.delete(key).await,
        };
        match done {
            Ok(is_done) => {
                Message::Executed { is_done, value: Payload::default(), expires_ms: 0 }.encode()
            }
            Err(error) => {
                tracing::debug!(%error, "a request of another node");
                declined()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execute() -> Message {
        let (key, value) = (Payload(b"reef".to_vec()), Payload(b"co".to_vec()));
        Message::Execute { key, operation: Operation::Update, value, expires_ms: 5 }
    }

    #[test]
    fn golden_bytes() {
        let hex = |message: &Message| -> String {
            message.encode().iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(&execute()), "7f0104726565660302636f0500000000000000");
        let value = Payload(b"co".to_vec());
        let executed = Message::Executed { is_done: true, value, expires_ms: 5 };
        assert_eq!(hex(&executed), "7f020102636f0500000000000000");
    }

    #[test]
    fn request_differs_from_messages_of_the_product() {
        let (request, declined) = (execute().encode(), declined());
        assert!(is_request(&request) && !is_request(&declined) && !is_request(&[]));
        assert!(!wire::is_ours(&request));
        assert!(wire::Message::decode(&request).is_err());
        assert!(archipelago_pool::wire::Message::decode(&request).is_err());
    }

    #[test]
    fn answer_of_an_owner_is_executed_declined_or_an_error() {
        let value = Payload(b"co".to_vec());
        let executed = Message::Executed { is_done: true, value, expires_ms: 5 }.encode();
        let answer = Answer::decode(&executed).unwrap().expect("an answer");
        assert!(answer.is_done);
        assert_eq!(answer.value, StoredValue { bytes: b"co".to_vec(), expires_ms: 5 });
        assert!(Answer::decode(&declined()).unwrap().is_none());
        assert!(Answer::decode(&execute().encode()).is_err());
        assert!(Answer::decode(&executed[..4]).is_err());
    }
}
