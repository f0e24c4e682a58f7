//! Other nodes, and how this node asks them.
//!
//! A question gets a number in the session with its node and is sent again under that number until
//! it is answered, so the other node executes it once. There is one route per life of a node and
//! class of question. A life of a node is a client of the pool.
//!
//! **Classes.** A session takes a limited number of questions after the oldest unanswered one. A
//! write is answered only after other nodes have dropped what they cached. If both questions used
//! one session, two nodes with many writes in flight at each other would wait until their cache
//! leases run out. Therefore questions are divided by what their answers wait for ([`Class`]). Each
//! class has a session of its own, and no answer waits for a question of its own or a later class.
//! A question may be asked in a later class than necessary. The look-up before a write uses the
//! class of writes. With two links, two threads on each side would poll in turn, which takes four
//! times as long in shared memory.
//!
//! Thread-safety: any thread may ask. A mutex guards the known nodes, and one per node its clock.
//! Failure: without an answer the caller asks again. If the other node lost the session, the call
//! ends with an error, and the caller does not know whether the question was executed.
//! Cost: one round trip.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, Result};
use archipelago_fabric::{Call, ClientId, Reach, Reason, Route, Session};
use parking_lot::Mutex;

use super::{Joined, Node, REQUEST, fabric_id};
use crate::wire::{Assigned, Grant, Member, Message, Why};

/// Number of a node, and the client of the pool that names one life of it. Both are zero for the
/// coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerIdentity {
    pub(crate) number: u32,
    pub(crate) client: ClientId,
}

impl PeerIdentity {
    fn is_coordinator(self) -> bool {
        self.client == ClientId(0)
    }
}

/// Another node, and the ways to it.
#[derive(Debug)]
pub(crate) struct Peer {
    identity: PeerIdentity,
    /// The routes to the node, by class.
    routes: [Route; Class::ALL.len()],
    endpoints: Vec<String>,
    /// The newest answer of the node, as far as its clock is concerned.
    heard: Mutex<Option<Heard>>,
}

/// Class of waits that an answer may need. Each class has its own session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The answer waits for no other node.
    Immediate,
    /// The answer waits for answers of class `Immediate` only. Questions of writes.
    Index,
    /// The answer waits for changes of the index at other nodes.
    Whole,
}

impl Class {
    const ALL: [Self; 3] = [Self::Immediate, Self::Index, Self::Whole];

    pub(crate) fn of(question: &Message) -> Self {
        match question {
            Message::Locate { .. }
            | Message::Write { .. }
            | Message::Settle { .. }
            | Message::Free { .. } => Self::Index,
            Message::Delegate { .. } => Self::Whole,
            _ => Self::Immediate,
        }
    }

    /// The client that asks in a session of this class, or the other way round the client behind
    /// such a session. Sessions of one client at one node must have different clients.
    pub(crate) fn client(self, client: ClientId) -> ClientId {
        const SALTS: [u64; Class::ALL.len()] = [0, 0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];
        ClientId(client.0 ^ SALTS[self as usize])
    }
}

/// The newest answer of a peer.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The peer's clock before it answered, in microseconds.
    stamp_us: u64,
    /// This node's clock when the answer arrived, in nanoseconds.
    at_ns: u64,
}

impl Heard {
    /// Whether the answer arrived less than `fresh_ns` before `now_ns`. Another thread may note an
    /// answer after the caller has read the clock, so `at_ns` may be the later of the two.
    fn is_fresh(self, now_ns: u64, fresh_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) < fresh_ns
    }
}

impl Peer {
    /// A node with no link yet. `asker` is the client that begins the sessions.
    fn new(
        identity: PeerIdentity,
        reach: &Arc<dyn Reach>,
        asker: ClientId,
        endpoints: Vec<String>,
    ) -> Arc<Self> {
        // Any node that answers at a manager's endpoint is the coordinator.
        let node = (!identity.is_coordinator()).then(|| fabric_id(identity.client));
        let routes = Class::ALL.map(|class| Route::new(reach, class.client(asker), node));
        Arc::new(Self { identity, routes, endpoints, heard: Mutex::default() })
    }

    fn is_coordinator(&self) -> bool {
        self.identity.is_coordinator()
    }

    /// The node's clock in microseconds, if the node answered within `fresh_ns` before `now_ns`.
    /// Its clock shows a later time by now.
    pub(crate) fn heard(&self, now_ns: u64, fresh_ns: u64) -> Option<u64> {
        let heard = *self.heard.lock();
        heard.filter(|heard| heard.is_fresh(now_ns, fresh_ns)).map(|heard| heard.stamp_us)
    }

    fn hear(&self, now_ns: u64, grant: Grant) {
        let mut heard = self.heard.lock();
        if heard.is_none_or(|heard| heard.stamp_us < grant.stamp_us) {
            *heard = Some(Heard { stamp_us: grant.stamp_us, at_ns: now_ns });
        }
    }
}

#[derive(Debug)]
pub(crate) struct Peers {
    reach: Arc<dyn Reach>,
    me: ClientId,
    known: Mutex<BTreeMap<ClientId, Arc<Peer>>>,
    coordinator: Arc<Peer>,
}

/// A request that was begun and is sent again until it is answered.
#[derive(Debug)]
pub(crate) struct Asked {
    bytes: Vec<u8>,
    class: Class,
    /// The session and the question's number in it, once the question was sent.
    number: Option<(Arc<Session>, u64)>,
    /// This node's clock before the question was sent for the first time.
    sent_ns: u64,
}

impl Drop for Asked {
    /// Tells the session that the question is not asked again.
    fn drop(&mut self) {
        if let Some((session, number)) = &self.number {
            session.give_up(*number);
        }
    }
}

impl Asked {
    pub(crate) fn new(message: &Message) -> Self {
        Self { bytes: message.encode(), class: Class::of(message), number: None, sent_ns: 0 }
    }

    /// A new question with the same content, for use after the old one was answered.
    pub(crate) fn anew(&self) -> Self {
        Self { bytes: self.bytes.clone(), class: self.class, number: None, sent_ns: 0 }
    }

    /// Whether the question may have arrived.
    pub(crate) fn was_sent(&self) -> bool {
        self.number.is_some()
    }
}

impl Peers {
    /// Knows no node but the coordinator. `asker` is the client that asks the coordinator. It
    /// differs from `me`, because `me` may ask the pool's manager at the same endpoint under other
    /// numbers.
    pub(crate) fn new(
        reach: Arc<dyn Reach>,
        me: ClientId,
        asker: ClientId,
        coordinator: Vec<String>,
    ) -> Self {
        let identity = PeerIdentity { number: 0, client: ClientId(0) };
        let coordinator = Peer::new(identity, &reach, asker, coordinator);
        Self { reach, me, known: Mutex::default(), coordinator }
    }

    pub(crate) fn coordinator(&self) -> &Arc<Peer> {
        &self.coordinator
    }

    pub(crate) fn peer(&self, member: &Member) -> Arc<Peer> {
        let mut known = self.known.lock();
        let peer = known.entry(member.client).or_insert_with(|| {
            let identity = PeerIdentity { number: member.number, client: member.client };
            Peer::new(identity, &self.reach, self.me, member.endpoints.clone())
        });
        Arc::clone(peer)
    }

    /// Closes the links to nodes that are no members, and forgets nodes that are gone. Other nodes
    /// are kept. A node that has just joined is known to some before the map names it. If it were
    /// forgotten and became known again, it would refuse the numbers of the new session, because it
    /// knows those of the old one.
    pub(crate) fn retain(&self, members: &[Member], gone: &[ClientId]) {
        let stays = |client: &ClientId| members.iter().any(|member| member.client == *client);
        let left: Vec<Arc<Peer>> = {
            let mut known = self.known.lock();
            let left = known.iter().filter(|(client, _)| !stays(client));
            let left = left.map(|(_, peer)| Arc::clone(peer)).collect();
            known.retain(|client, _| stays(client) || !gone.contains(client));
            left
        };
        for peer in left {
            peer.routes.iter().for_each(Route::hang_up);
        }
    }
}

impl Node {
    /// Asks once, for the first time or again. `Ok(None)` if there is no answer yet.
    pub(crate) async fn ask_once(&self, peer: &Peer, asked: &mut Asked) -> Result<Option<Message>> {
        self.ask_within(peer, asked, REQUEST).await
    }

    /// Asks once and waits for the answer for at most `within`.
    pub(crate) async fn ask_within(
        &self,
        peer: &Peer,
        asked: &mut Asked,
        within: Duration,
    ) -> Result<Option<Message>> {
        let route = &peer.routes[asked.class as usize];
        let Ok(link) = route.link(&peer.endpoints, within).await else { return Ok(None) };
        let call = Call::new(&asked.bytes, within);
        let call = match &asked.number {
            Some((_, number)) => call.again(*number),
            None => {
                let Ok(number) = link.session().begin() else { return Ok(None) };
                asked.sent_ns = self.now_ns();
                asked.number = Some((Arc::clone(link.session()), number));
                call.numbered(number)
            }
        };
        match link.request(call).await {
            Ok(body) => match Message::decode(&body) {
                Ok(Message::Declined { why: Why::Standby, .. }) if peer.is_coordinator() => {
                    // Another manager has the coordinator, so the next question is a new one.
                    route.go_on(&peer.endpoints);
                    *asked = asked.anew();
                    Ok(None)
                }
                Ok(message) => {
                    self.hear(peer, asked.sent_ns, &message);
                    Ok(Some(message))
                }
                Err(malformed) => Err(Error::unsupported(malformed.to_string())),
            },
            Err(refusal) if peer.is_coordinator() => {
                tracing::debug!(%refusal, "the coordinator does not answer");
                // Another manager may have the coordinator by now, and it knows no number of an
                // earlier question. Questions to the coordinator may be asked twice.
                route.go_on(&peer.endpoints);
                *asked = asked.anew();
                Ok(None)
            }
            Err(refusal) => match refusal.reason {
                Reason::Deadline | Reason::Full => Ok(None),
                Reason::Disconnected => {
                    link.close();
                    Ok(None)
                }
                _ => {
                    link.close();
                    Err(refusal.error("a request to another node"))
                }
            },
        }
    }

    /// Notes the other node's clock and lease from an answer.
    fn hear(&self, peer: &Peer, sent_ns: u64, answer: &Message) {
        let (Message::Found { grant, .. }
        | Message::Written { grant, .. }
        | Message::Declined { grant, .. }
        | Message::Renewed { grant }) = answer
        else {
            return;
        };
        peer.hear(self.now_ns(), *grant);
        self.caching.granted(peer.identity, sent_ns, *grant, || self.is_peer(peer));
    }

    /// Whether the map names the node as a member.
    pub(crate) fn is_peer(&self, peer: &Peer) -> bool {
        let map = self.joined().ok().map(Joined::map);
        let PeerIdentity { number, client } = peer.identity;
        let is_it = |member: &Member| member.number == number && member.client == client;
        map.is_some_and(|map| map.members.iter().any(is_it))
    }

    /// The member that works as this client of the pool. `None` if there is none.
    pub(crate) fn peer_of(&self, client: ClientId) -> Option<Arc<Peer>> {
        let map = self.joined().ok()?.map();
        let member = map.members.iter().find(|member| member.client == client)?;
        Some(self.peers.peer(member))
    }

    /// The node of a partition. `None` if this node is it.
    pub(crate) fn node_of(&self, entry: Assigned) -> Result<Option<Arc<Peer>>> {
        let joined = self.joined()?;
        if entry.node == joined.number() {
            return Ok(None);
        }
        let map = joined.map();
        let member = map.members.iter().find(|member| member.number == entry.node);
        let member = member.ok_or_else(|| Error::busy("the partition's node is no member"))?;
        Ok(Some(self.peers.peer(member)))
    }

    /// Asks until there is an answer.
    pub(crate) async fn ask(
        &self,
        peer: &Peer,
        message: &Message,
        until_ns: u64,
    ) -> Result<Message> {
        let mut asked = Asked::new(message);
        loop {
            if let Some(answer) = self.ask_once(peer, &mut asked).await? {
                return Ok(answer);
            }
            self.table.late(until_ns, format!("{} to another node", message.name()))?;
            self.pause().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Payload, Place};

    #[test]
    fn answer_noted_after_the_clock_was_read_is_fresh() {
        let heard = Heard { stamp_us: 7, at_ns: 1_000 };
        assert!(heard.is_fresh(900, 50));
        assert!(heard.is_fresh(1_049, 50));
        assert!(!heard.is_fresh(1_050, 50));
    }

    #[test]
    fn writes_ask_in_a_session_that_no_write_waits_for() {
        let locate = Message::Locate { partition: 1, epoch: 2, hash: 3 };
        let settle = Message::Settle { partition: 1, epoch: 2, place: Place { index: 4, word: 5 } };
        assert_eq!(Class::of(&locate), Class::Index);
        assert_eq!(Class::of(&settle), Class::Index);
        let invalidate = Message::Invalidate { hash: 3 };
        let search = Message::Search { partition: 1, epoch: 2, hash: 3, reads: 0 };
        for waited_for in [invalidate, search, Message::Renew {}] {
            assert_eq!(Class::of(&waited_for), Class::Immediate, "{waited_for:?}");
        }
        let delegate = Message::Delegate {
            partition: 1,
            epoch: 2,
            key: Payload(b"reef".to_vec()),
            value: Payload(Vec::new()),
            expires_ms: 0,
        };
        assert_eq!(Class::of(&delegate), Class::Whole);
    }
}
