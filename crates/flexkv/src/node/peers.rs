//! Other nodes, and how they are asked.
//!
//! A question gets a number of the session with the node and is sent again under it until it is
//! answered: the node executes it once. [`Unasked::Unknown`]: nobody knows what came of it. One
//! route per node's life and class of question; a life is a client of the pool.
//!
//! **Classes.** A session takes so many questions beyond the oldest that is not answered. A write
//! is answered when others have dropped what they cached, so were both asked in one session, two
//! nodes with enough writes under way at each other would wait until the leases of their caches run
//! out. Questions are answered at once, or wait for such alone, or wait for those too ([`Class`]);
//! each class has a session of its own, and none waits for its own or a later one. A question may
//! be asked in a later class than its own, and where a key is that is to be written is: it comes
//! before the write, and over two links two threads on each side would look in turn (in shared
//! memory four times the time of both, 42 µs for 9).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, Result};
use archipelago_fabric::{Call, ClientId, Reason, Session};
use archipelago_pool::{Reach, Route};
use parking_lot::Mutex;

use super::{Inner, REQUEST, fabric_id};
use crate::wire::{Grant, Member, Message, Why};

/// A node.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its number, and which life of it; of the coordinator zeros.
    who: (u32, ClientId),
    /// By class.
    routes: [Route; Class::ALL.len()],
    endpoints: Vec<String>,
    /// Its clock in µs, as its last answer said, and when that was here.
    heard: Mutex<Option<Heard>>,
}

/// What the answers to questions of a session wait for, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Nobody.
    AtOnce,
    /// The answers of others that come at once. What writes ask.
    Index,
    /// Changes of the index at other nodes.
    Whole,
}

impl Class {
    const ALL: [Self; 3] = [Self::AtOnce, Self::Index, Self::Whole];

    pub(crate) fn of(question: &Message) -> Self {
        match question {
            Message::Locate { .. }
            | Message::Write { .. }
            | Message::Settle { .. }
            | Message::Free { .. } => Self::Index,
            Message::Delegate { .. } => Self::Whole,
            _ => Self::AtOnce,
        }
    }

    /// Who asks in a session of this class, and who is behind that: sessions of one client at one
    /// node must differ.
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
    /// `asker`: as whom its sessions are begun.
    fn new(
        who: (u32, ClientId),
        (reach, asker): (&Arc<dyn Reach>, ClientId),
        endpoints: Vec<String>,
    ) -> Arc<Self> {
        // The coordinator is whoever answers at a manager's door.
        let node = (who.1 != ClientId(0)).then(|| fabric_id(who.1));
        let routes = Class::ALL.map(|class| Route::new(reach, class.client(asker), node));
        Arc::new(Self { who, routes, endpoints, heard: Mutex::default() })
    }

    fn is_coordinator(&self) -> bool {
        self.who.1 == ClientId(0)
    }

    /// The peer's clock in microseconds, if the peer answered within `fresh_ns` before `now_ns`. Its
    /// clock shows a later time by now.
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
    pub(crate) coordinator: Arc<Peer>,
}

/// A question that was begun and not answered; to be asked again.
#[derive(Debug)]
pub(crate) struct Asked {
    bytes: Vec<u8>,
    class: Class,
    /// The session and its number of it, once it was sent.
    number: Option<(Arc<Session>, u64)>,
    /// This node's clock before it was sent for the first time.
    sent_ns: u64,
}

impl Drop for Asked {
    /// Nobody will ask again.
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

    /// The same question, to be asked as a new one: it was answered.
    pub(crate) fn anew(&self) -> Self {
        Self { bytes: self.bytes.clone(), class: self.class, number: None, sent_ns: 0 }
    }

    /// Whether it may have arrived.
    pub(crate) fn was_sent(&self) -> bool {
        self.number.is_some()
    }
}

impl Peers {
    /// `asker`: as whom the coordinator is asked. Another than `me`: it may be reached at the
    /// pool's manager, of whom `me` asks other things under numbers of its own.
    pub(crate) fn new(
        reach: &Arc<dyn Reach>,
        me: ClientId,
        asker: ClientId,
        coordinator: Vec<String>,
    ) -> Self {
        let coordinator = Peer::new((0, ClientId(0)), (reach, asker), coordinator);
        Self { reach: Arc::clone(reach), me, known: Mutex::default(), coordinator }
    }

    pub(crate) fn peer(&self, member: &Member) -> Arc<Peer> {
        let mut known = self.known.lock();
        let peer = known.entry(member.client).or_insert_with(|| {
            let asker = (&self.reach, self.me);
            Peer::new((member.number, member.client), asker, member.endpoints.clone())
        });
        Arc::clone(peer)
    }

    /// Hangs up on who is no member, and forgets who is gone. Others are kept: one who has just
    /// joined is known to some before the map names him, and were he forgotten and then known
    /// again, he would refuse the numbers of the new session, since he knows those of the old one.
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

impl Inner {
    /// Asks once, or once more. `Ok(None)`: no answer yet.
    pub(crate) async fn ask_once(&self, peer: &Peer, asked: &mut Asked) -> Result<Option<Message>> {
        self.ask_within(peer, asked, REQUEST).await
    }

    /// The same, for so long.
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
                    // Another session has its answers: what is asked next is another question.
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
                // It may be another manager's by now, which knows no number of an earlier question;
                // asked twice, each is answered alike.
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

    /// Takes in what an answer says of the other's clock, and of its lease.
    fn hear(&self, peer: &Peer, sent_ns: u64, answer: &Message) {
        let (Message::Found { grant, .. }
        | Message::Written { grant, .. }
        | Message::Declined { grant, .. }
        | Message::Renewed { grant }) = answer
        else {
            return;
        };
        peer.hear(self.now_ns(), *grant);
        self.caching.granted(peer.who, sent_ns, *grant, || self.is_peer(peer));
    }

    /// Whether the node lives, by the map.
    pub(crate) fn is_peer(&self, peer: &Peer) -> bool {
        let map = self.joined().ok().map(|joined| Arc::clone(&joined.map.read()));
        let is_it = |member: &Member| (member.number, member.client) == peer.who;
        map.is_some_and(|map| map.members.iter().any(is_it))
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
    fn a_write_asks_in_one_session_and_in_none_that_a_write_waits_for() {
        let locate = Message::Locate { partition: 1, epoch: 2, hash: 3 };
        let settle = Message::Settle { partition: 1, epoch: 2, place: Place { index: 4, word: 5 } };
        assert_eq!(Class::of(&locate), Class::Index);
        assert_eq!(Class::of(&settle), Class::Index);
        let invalidate = Message::Invalidate { hash: 3 };
        let search = Message::Search { partition: 1, epoch: 2, hash: 3, reads: 0 };
        for waited_for in [invalidate, search, Message::Renew {}] {
            assert_eq!(Class::of(&waited_for), Class::AtOnce, "{waited_for:?}");
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
