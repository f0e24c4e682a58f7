//! Duplicates: the node executes a request once, whatever number of times it arrives.
//!
//! A client numbers its requests. Each request names the number below which the client has all
//! answers. The node keeps the other answers, so that a request that is sent again over a new link
//! gets the first answer. The node executes no request again whose answer it has dropped.
//! Idempotent requests do not reach this table.
//!
//! A client uses one link at a time, but the node may learn late which link that is. The greeting
//! of an abandoned link may arrive after the greeting of its successor. The node may notice the end
//! of a link after the next link has arrived. Therefore answers go to the link of the client's
//! latest request, or to the newest link if that link is down.
//!
//! Invariants:
//! 1. The node keeps answers of at most [`REQUESTS_MAX`] requests per client, of [`CLIENTS_MAX`]
//!    clients, and `KEPT_BYTES_MAX` of answers in all.
//! 2. At a limit the node drops the client that has had no link for the longest time. It never
//!    drops a client with a link.
//! 3. If the clients with links hold more than the limit, a client with unconfirmed answers gets no
//!    further answers.
//!
//! Thread-safety: none. The node keeps the state machine under a lock.
//! Failure: a request whose answer was dropped is refused as [`Reason::Forgotten`].
//! Cost: one look-up per request. An answer is copied once.

use std::collections::{BTreeMap, HashMap};

use crate::body::Body;
use crate::ids::ClientId;
use crate::refusal::{Reason, Refusal};

/// Limit of the requests of one client that wait for an answer or for its confirmation.
pub const REQUESTS_MAX: usize = 64;
/// Limit of the clients whose answers a node keeps.
pub const CLIENTS_MAX: usize = 4096;

/// Limit of the kept answers in bytes. Each client may exceed it by the answer of one request.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Limit of the links of one client that count as up. At most one of them is in use; the others
/// have ended, or will never carry a request.
const LINKS_MAX: usize = 8;

/// The outcome of a request: the body of the answer, or a refusal.
pub type Answer = Result<Body, Refusal>;

/// Action of the node for a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The node executes the request.
    Fresh,
    /// The request is being executed. Its answer goes to the client's current link.
    Running,
    /// The request was executed before. The node sends this answer.
    Answered(Answer),
    /// The node refuses the request.
    Refused(Refusal),
}

#[derive(Debug)]
pub(crate) struct Duplicates<L> {
    clients: HashMap<ClientId, Client<L>>,
    clients_max: usize,
    /// Bytes of all kept answers.
    kept_bytes: usize,
    kept_bytes_max: usize,
    /// Number of departures so far, which orders the clients without a link.
    departures: u64,
}

/// Facts about the arrival of a request at the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Number of the arrival of the link that carried it.
    pub(crate) arrival: u64,
    /// The client has the answers of all its requests below this number.
    pub(crate) oldest: u64,
    /// Whether the client sent the request before.
    pub(crate) retry: bool,
}

#[derive(Debug)]
struct Client<L> {
    /// The client has the answers of all its requests below this number.
    oldest: u64,
    /// The client had a session that this node does not know. Its retries are refused.
    lost: bool,
    entries: BTreeMap<u64, Option<Answer>>,
    /// The links that are up, by the number of their arrival. The fields after it have the latest
    /// number, and the number of the link of the client's latest request.
    links: BTreeMap<u64, L>,
    arrivals: u64,
    speaks: u64,
    gone_since: u64,
}

impl<L: Clone> Duplicates<L> {
    pub(crate) fn new(clients_max: usize) -> Self {
        let (clients, kept_bytes_max) = (HashMap::new(), KEPT_BYTES_MAX);
        Self { clients, clients_max, kept_bytes: 0, kept_bytes_max, departures: 0 }
    }

    /// Records that a link of `client` is up. `resumed` says that the client had a link before.
    /// Returns the number of the arrival, or `None` if the table is full of clients with links.
    pub(crate) fn arrive(&mut self, client: ClientId, link: L, resumed: bool) -> Option<u64> {
        if !self.clients.contains_key(&client) && self.clients.len() >= self.clients_max {
            self.forget_longest_gone()?;
        }
        let state = self.clients.entry(client).or_insert(Client {
            oldest: 0,
            lost: resumed,
            entries: BTreeMap::new(),
            links: BTreeMap::new(),
            arrivals: 0,
            speaks: 0,
            gone_since: 0,
        });
        if state.links.len() >= LINKS_MAX {
            state.links.pop_first();
        }
        state.arrivals += 1;
        state.speaks = state.arrivals;
        state.links.insert(state.arrivals, link);
        Some(state.arrivals)
    }

    /// Drops the client that has had no link for the longest time.
    fn forget_longest_gone(&mut self) -> Option<()> {
        let gone = self.clients.iter().filter(|(_, state)| state.links.is_empty());
        let longest = gone.min_by_key(|(_, state)| state.gone_since).map(|(id, _)| *id)?;
        let state = self.clients.remove(&longest)?;
        self.kept_bytes -= state.entries.values().map(kept).sum::<usize>();
        Some(())
    }

    /// Records that the link of an arrival is down.
    pub(crate) fn depart(&mut self, client: ClientId, arrival: u64) {
        self.departures += 1;
        if let Some(state) = self.clients.get_mut(&client) {
            state.links.remove(&arrival);
            if state.links.is_empty() {
                state.gone_since = self.departures;
            }
        }
    }

    /// Decides about request `number` of `client`.
    pub(crate) fn request(&mut self, client: ClientId, number: u64, delivery: Delivery) -> Verdict {
        let Delivery { arrival, oldest, retry } = delivery;
        let refused = |reason: Reason| Verdict::Refused(reason.into());
        let Some(state) = self.clients.get_mut(&client) else { return refused(Reason::Forgotten) };
        if state.links.contains_key(&arrival) {
            state.speaks = arrival;
        }
        if oldest > state.oldest && oldest <= number {
            state.oldest = oldest;
            let stays = state.entries.split_off(&oldest);
            self.kept_bytes -= state.entries.values().map(kept).sum::<usize>();
            state.entries = stays;
        }
        let is_over = self.kept_bytes >= self.kept_bytes_max && !state.entries.is_empty();
        if number < state.oldest {
            return refused(Reason::Forgotten);
        }
        match state.entries.get(&number) {
            Some(Some(answer)) => Verdict::Answered(answer.clone()),
            Some(None) => Verdict::Running,
            None if retry && state.lost => refused(Reason::Forgotten),
            None if state.entries.len() >= REQUESTS_MAX || is_over => refused(Reason::Full),
            None => {
                state.entries.insert(number, None);
                Verdict::Fresh
            }
        }
    }

    /// Number of the kept requests, and bytes of the kept answers.
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.clients.values().map(|state| state.entries.len()).sum(), self.kept_bytes)
    }

    /// Keeps the answer of an executed request, and returns the link that it goes to.
    pub(crate) fn answer(&mut self, client: ClientId, number: u64, answer: &Answer) -> Option<L> {
        let state = self.clients.get_mut(&client)?;
        let entry = state.entries.get_mut(&number)?;
        self.kept_bytes -= kept(entry);
        *entry = Some(answer.clone());
        self.kept_bytes += kept(entry);
        let newest = || state.links.last_key_value().map(|(_, link)| link);
        let link = state.links.get(&state.speaks).or_else(newest).cloned();
        while self.kept_bytes > self.kept_bytes_max && self.forget_longest_gone().is_some() {}
        link
    }
}

/// Bytes of a kept answer.
fn kept(answer: &Option<Answer>) -> usize {
    answer.as_ref().and_then(|answer| answer.as_ref().ok()).map_or(0, |body| body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);

    fn delivery(arrival: u64, oldest: u64, retry: bool) -> Delivery {
        Delivery { arrival, oldest, retry }
    }

    fn answer(text: &str) -> Answer {
        Ok(Body::copy(text.as_bytes()))
    }

    #[test]
    fn repeated_request_is_executed_once() {
        let mut node = Duplicates::new(4);
        node.arrive(A, "link 1", false);
        assert_eq!(node.request(A, 1, delivery(1, 1, false)), Verdict::Fresh);
        assert_eq!(node.request(A, 1, delivery(1, 1, true)), Verdict::Running);
        node.arrive(A, "link 2", true);
        assert_eq!(node.answer(A, 1, &answer("done")), Some("link 2"), "the newest link");
        assert_eq!(node.request(A, 1, delivery(2, 1, true)), Verdict::Answered(answer("done")));
        assert_eq!(node.request(A, 2, delivery(1, 2, false)), Verdict::Fresh, "2 confirms 1");
        assert_eq!(
            node.request(A, 1, delivery(1, 1, true)),
            Verdict::Refused(Reason::Forgotten.into())
        );
    }

    #[test]
    fn retry_without_a_known_session_is_refused() {
        let mut node = Duplicates::new(4);
        assert_eq!(
            node.request(A, 1, delivery(1, 1, true)),
            Verdict::Refused(Reason::Forgotten.into())
        );
        node.arrive(A, "link", true);
        assert_eq!(
            node.request(A, 1, delivery(1, 1, true)),
            Verdict::Refused(Reason::Forgotten.into())
        );
        assert_eq!(
            node.request(A, 2, delivery(1, 1, false)),
            Verdict::Fresh,
            "a new one is executed"
        );
        assert_eq!(node.request(A, 2, delivery(1, 1, true)), Verdict::Running);
    }

    #[test]
    fn kept_requests_and_clients_are_bounded() {
        let mut node = Duplicates::new(2);
        let first = node.arrive(A, (), false).expect("room");
        for number in 1..=REQUESTS_MAX as u64 {
            assert_eq!(node.request(A, number, delivery(1, 1, false)), Verdict::Fresh);
        }
        let over = REQUESTS_MAX as u64 + 1;
        assert_eq!(
            node.request(A, over, delivery(1, 1, false)),
            Verdict::Refused(Reason::Full.into())
        );
        assert_eq!(
            node.request(A, over, delivery(1, over + 9, false)),
            Verdict::Refused(Reason::Full.into())
        );
        node.arrive(ClientId(2), (), false).expect("room");
        assert_eq!(node.arrive(ClientId(3), (), false), None, "nobody is gone");
        node.depart(A, first);
        node.arrive(ClientId(3), (), false).expect("the place of the one who is gone");
        assert_eq!(
            node.request(A, 1, delivery(1, 1, true)),
            Verdict::Refused(Reason::Forgotten.into())
        );
    }

    #[test]
    fn client_without_a_link_for_longest_is_dropped_first() {
        let mut node = Duplicates { kept_bytes_max: 10, ..Duplicates::new(9) };
        let (long, short) = (answer(&"x".repeat(8)), answer("1234"));
        for client in 1..=3 {
            let link = node.arrive(ClientId(client), (), false).expect("room");
            assert_eq!(node.request(ClientId(client), 1, delivery(link, 1, false)), Verdict::Fresh);
            node.answer(ClientId(client), 1, if client == 3 { &long } else { &short });
            if client < 3 {
                node.depart(ClientId(client), link);
            }
        }
        assert_eq!((node.clients.len(), node.kept_bytes), (1, 8), "two were forgotten");
        assert_eq!(
            node.request(A, 1, delivery(1, 1, true)),
            Verdict::Refused(Reason::Forgotten.into())
        );
        // Clients with links are not dropped. A client that confirms nothing gets no more answers.
        let four = (ClientId(4), node.arrive(ClientId(4), (), false).expect("room"));
        assert_eq!(node.request(four.0, 1, delivery(four.1, 1, false)), Verdict::Fresh);
        node.answer(four.0, 1, &long);
        assert_eq!((node.clients.len(), node.kept_bytes), (2, 16));
        assert_eq!(
            node.request(four.0, 2, delivery(four.1, 1, false)),
            Verdict::Refused(Reason::Full.into())
        );
        assert_eq!(
            node.request(four.0, 2, delivery(four.1, 2, false)),
            Verdict::Fresh,
            "2 confirms 1"
        );
        assert_eq!(node.kept_bytes, 8);
    }

    #[test]
    fn end_of_an_old_link_keeps_the_new_one() {
        let mut node = Duplicates::new(2);
        let old = node.arrive(A, 1, false).expect("room");
        node.arrive(A, 2, true);
        node.depart(A, old);
        assert_eq!(node.request(A, 5, delivery(2, 1, false)), Verdict::Fresh);
        assert_eq!(node.answer(A, 5, &answer("x")), Some(2));
    }

    #[test]
    fn late_link_that_was_given_up_takes_no_answers() {
        let mut node = Duplicates::new(2);
        let used = node.arrive(A, 1, false).expect("room");
        let late = node.arrive(A, 2, false).expect("room");
        assert_eq!(node.request(A, 5, delivery(used, 1, false)), Verdict::Fresh);
        assert_eq!(node.answer(A, 5, &answer("x")), Some(1), "the link that it asked over");
        node.depart(A, late);
        assert_eq!(node.request(A, 6, delivery(used, 1, false)), Verdict::Fresh);
        assert_eq!(node.answer(A, 6, &answer("x")), Some(1), "it is not gone");
        node.depart(A, used);
        assert_eq!(node.answer(A, 6, &answer("x")), None);
        for _ in 0..20 {
            node.arrive(A, 3, true);
        }
        assert_eq!(node.clients[&A].links.len(), LINKS_MAX);
    }
}
