//! Requests are executed once: duplicates are known by (client, number).
//!
//! A client numbers its requests and says with each one below which number all are answered. The
//! node keeps the answer of every other one, so that a request that is sent again, over a new link,
//! gets the answer of the first. Bounds: [`REQUESTS_MAX`] per client, [`CLIENTS_MAX`] clients, and
//! [`KEPT_BYTES_MAX`] of answers in all; the node forgets a client without a link first, and of
//! several the one that has had no link for the longest time. It refuses a request whose answer it
//! has forgotten, and never executes it again. While the clients that have links hold more than
//! that, a client that has not confirmed its answers gets no further ones.
//!
//! A client has one link at a time, and the node may learn of it late: of a link that the client
//! gave up before it was greeted, after the one that it made instead, or of the end of a link after
//! the next has come. So answers go to the link that the client speaks over: that of its latest
//! request, or the newest if that is down.
//!
//! A pure state machine: no clock, no lock; the node keeps it under one.

use std::collections::{BTreeMap, HashMap};

use crate::body::Body;
use crate::ids::ClientId;
use crate::refusal::{Reason, Refusal};

/// Requests of one client that are not answered, or whose answer it has not confirmed.
pub const REQUESTS_MAX: usize = 64;
/// Clients whose answers a node keeps.
pub const CLIENTS_MAX: usize = 4096;

/// Bytes of the answers that a node keeps; one request of each client more may be answered.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Links of one client that are known to be up, at most: all but one of them have ended or will
/// never be used.
const LINKS_MAX: usize = 8;

/// What a request got.
pub type Answer = Result<Body, Refusal>;

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Execute it.
    Fresh,
    /// It is being executed: its answer goes to the client's newest link.
    Running,
    /// It was executed: send this.
    Answered(Answer),
    /// Refuse it.
    Refused(Refusal),
}

#[derive(Debug)]
pub(crate) struct Duplicates<L> {
    clients: HashMap<ClientId, Client<L>>,
    clients_max: usize,
    /// Bytes of all answers.
    kept_bytes: usize,
    kept_bytes_max: usize,
    /// Counts departures, to know who is gone longest.
    departures: u64,
}

#[derive(Debug)]
struct Client<L> {
    /// All below are confirmed.
    oldest: u64,
    /// Requests of earlier links are not known here: a retry is refused.
    lost: bool,
    entries: BTreeMap<u64, Option<Answer>>,
    /// Links that are up, by the number of their arrival; the latest number; the number of the link
    /// that it speaks over.
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

    /// A link of `client` is up; `resumed` if it had one before. The number of the arrival, for
    /// [`Duplicates::depart`]; `None` if all clients that are known have links.
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

    /// Forgets a client without a link, if there is one.
    fn forget_longest_gone(&mut self) -> Option<()> {
        let gone = self.clients.iter().filter(|(_, state)| state.links.is_empty());
        let longest = gone.min_by_key(|(_, state)| state.gone_since).map(|(id, _)| *id)?;
        let state = self.clients.remove(&longest)?;
        self.kept_bytes -= state.entries.values().map(kept).sum::<usize>();
        Some(())
    }

    /// The link of that arrival is down.
    pub(crate) fn depart(&mut self, client: ClientId, arrival: u64) {
        self.departures += 1;
        if let Some(state) = self.clients.get_mut(&client) {
            state.links.remove(&arrival);
            if state.links.is_empty() {
                state.gone_since = self.departures;
            }
        }
    }

    /// A request came in over the link of that arrival.
    pub(crate) fn request(
        &mut self,
        (client, arrival): (ClientId, u64),
        number: u64,
        oldest: u64,
        retry: bool,
    ) -> Verdict {
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

    /// A request was executed: keeps the answer, and says where to send it.
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

/// Bytes that an answer takes.
fn kept(answer: &Option<Answer>) -> usize {
    answer.as_ref().and_then(|answer| answer.as_ref().ok()).map_or(0, |body| body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);

    fn answer(text: &str) -> Answer {
        Ok(Body::copy(text.as_bytes()))
    }

    #[test]
    fn a_request_is_executed_once_however_often_it_comes() {
        let mut node = Duplicates::new(4);
        node.arrive(A, "link 1", false);
        assert_eq!(node.request((A, 1), 1, 1, false), Verdict::Fresh);
        assert_eq!(node.request((A, 1), 1, 1, true), Verdict::Running);
        node.arrive(A, "link 2", true);
        assert_eq!(node.answer(A, 1, &answer("done")), Some("link 2"), "the newest link");
        assert_eq!(node.request((A, 2), 1, 1, true), Verdict::Answered(answer("done")));
        assert_eq!(node.request((A, 1), 2, 2, false), Verdict::Fresh, "2 confirms 1");
        assert_eq!(node.request((A, 1), 1, 1, true), Verdict::Refused(Reason::Forgotten.into()));
    }

    #[test]
    fn a_retry_that_nobody_remembers_is_refused() {
        let mut node = Duplicates::new(4);
        assert_eq!(node.request((A, 1), 1, 1, true), Verdict::Refused(Reason::Forgotten.into()));
        node.arrive(A, "link", true);
        assert_eq!(node.request((A, 1), 1, 1, true), Verdict::Refused(Reason::Forgotten.into()));
        assert_eq!(node.request((A, 1), 2, 1, false), Verdict::Fresh, "a new one is executed");
        assert_eq!(node.request((A, 1), 2, 1, true), Verdict::Running);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut node = Duplicates::new(2);
        let first = node.arrive(A, (), false).expect("room");
        for number in 1..=REQUESTS_MAX as u64 {
            assert_eq!(node.request((A, 1), number, 1, false), Verdict::Fresh);
        }
        let over = REQUESTS_MAX as u64 + 1;
        assert_eq!(node.request((A, 1), over, 1, false), Verdict::Refused(Reason::Full.into()));
        assert_eq!(
            node.request((A, 1), over, over + 9, false),
            Verdict::Refused(Reason::Full.into())
        );
        node.arrive(ClientId(2), (), false).expect("room");
        assert_eq!(node.arrive(ClientId(3), (), false), None, "nobody is gone");
        node.depart(A, first);
        node.arrive(ClientId(3), (), false).expect("the place of the one who is gone");
        assert_eq!(node.request((A, 1), 1, 1, true), Verdict::Refused(Reason::Forgotten.into()));
    }

    #[test]
    fn answers_of_the_longest_gone_make_room_for_new_ones() {
        let mut node = Duplicates { kept_bytes_max: 10, ..Duplicates::new(9) };
        let (long, short) = (answer(&"x".repeat(8)), answer("1234"));
        for client in 1..=3 {
            let link = node.arrive(ClientId(client), (), false).expect("room");
            assert_eq!(node.request((ClientId(client), link), 1, 1, false), Verdict::Fresh);
            node.answer(ClientId(client), 1, if client == 3 { &long } else { &short });
            if client < 3 {
                node.depart(ClientId(client), link);
            }
        }
        assert_eq!((node.clients.len(), node.kept_bytes), (1, 8), "two were forgotten");
        assert_eq!(node.request((A, 1), 1, 1, true), Verdict::Refused(Reason::Forgotten.into()));
        // Clients with links are not forgotten: who does not confirm gets no more.
        let four = (ClientId(4), node.arrive(ClientId(4), (), false).expect("room"));
        assert_eq!(node.request(four, 1, 1, false), Verdict::Fresh);
        node.answer(four.0, 1, &long);
        assert_eq!((node.clients.len(), node.kept_bytes), (2, 16));
        assert_eq!(node.request(four, 2, 1, false), Verdict::Refused(Reason::Full.into()));
        assert_eq!(node.request(four, 2, 2, false), Verdict::Fresh, "2 confirms 1");
        assert_eq!(node.kept_bytes, 8);
    }

    #[test]
    fn an_old_links_departure_does_not_cut_the_new_one() {
        let mut node = Duplicates::new(2);
        let old = node.arrive(A, 1, false).expect("room");
        node.arrive(A, 2, true);
        node.depart(A, old);
        assert_eq!(node.request((A, 2), 5, 1, false), Verdict::Fresh);
        assert_eq!(node.answer(A, 5, &answer("x")), Some(2));
    }

    #[test]
    fn a_link_that_was_given_up_and_comes_late_takes_no_answers() {
        let mut node = Duplicates::new(2);
        let used = node.arrive(A, 1, false).expect("room");
        let late = node.arrive(A, 2, false).expect("room");
        assert_eq!(node.request((A, used), 5, 1, false), Verdict::Fresh);
        assert_eq!(node.answer(A, 5, &answer("x")), Some(1), "the link that it asked over");
        node.depart(A, late);
        assert_eq!(node.request((A, used), 6, 1, false), Verdict::Fresh);
        assert_eq!(node.answer(A, 6, &answer("x")), Some(1), "it is not gone");
        node.depart(A, used);
        assert_eq!(node.answer(A, 6, &answer("x")), None);
        for _ in 0..20 {
            node.arrive(A, 3, true);
        }
        assert_eq!(node.clients[&A].links.len(), LINKS_MAX);
    }
}
