//! The election of the manager in office, among several managers.
//!
//! A cluster may run several managers, all started for the same memory nodes, 1 to N. At most one
//! **holds office** at a time, and the others stand by. [`Office`] is a state machine without
//! clock, lock or I/O. It takes beats, answers and ticks with the time, and returns requests.
//!
//! 1. A manager that stands by receives the beats of the memory nodes. A beat says for how long the
//!    node's promise to a manager still lasts.
//! 2. It becomes a **candidate** when a majority of the N nodes has sent beats within a lease, and
//!    no promise binds these nodes. It chooses a term above all known terms, with a tag of its own
//!    in the lowest 16 bits, and asks all nodes for a promise.
//! 3. It holds office while the promises of a majority last. It counts a promise from the time at
//!    which it *sent* the request; the node counts from the time at which the request *arrived*.
//!    The manager's count is a sixteenth shorter. It asks again four times per lease.
//! 4. A candidate without a majority after two thirds of a lease stands by again. It waits for a
//!    random time of at most a lease.
//! 5. A node that names a larger term ends candidacy and office.
//!
//! Invariants:
//! 1. Two managers never hold office at the same time. Two majorities share a node. That node
//!    promised the larger term after its promise of the smaller one had ended. The holder of the
//!    smaller term had stopped counting that promise even earlier. A node that lost its memory
//!    promises nothing for a lease ([`Promise`] invariant 3 in the memory role).
//! 2. A node that has promised a larger term refuses orders of a smaller one.
//! 3. A manager that takes office knows nothing and begins to collect reports. Before it has them,
//!    it grants no lease of its own. It changes no block for longer than any lease that its
//!    predecessor granted (`core`).
//! 4. A manager that could not renew its promises in time loses its office and discards its state.
//!    Another manager may have held office since, and nodes may have lost their memory since.
//!
//! Thread-safety: none; the owner holds a lock.
//! Failure: without a majority of the memory nodes no manager holds office. Nodes and clients
//! continue as long as their leases last. The rates of clocks may differ by 6 %.
//! Cost: a message to each node four times per lease.
//!
//! [`Promise`]: ../../archipelago_memory/promise/struct.Promise.html

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::wire::{Message, Why};

use crate::nodes::BEATS;

/// Number of requests per lease.
const RENEWALS: u64 = 4;
/// Bits of a term that distinguish managers.
const TAG_BITS: u32 = 16;

/// The nodes that promise, and the length of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfficeTerms {
    /// Number of memory nodes, whose ids begin at 1.
    pub nodes: u32,
    /// Length of a promise.
    pub lease: Duration,
}

archipelago_base::fault_switches! {
    /// Steps of the election that a checker leaves out, to prove that the checks notice it.
    OfficeSabotage {
        /// One promise suffices for the office.
        no_majority,
        /// A manager counts a promise in full, from the arrival of its answer.
        counts_from_answer,
    }
}

/// Content of a node's last beat or refusal.
#[derive(Clone, Copy, Debug)]
struct NodeView {
    heard_ns: u64,
    /// Time, in nanoseconds of this manager's clock, from which on no promise binds the node.
    free_ns: u64,
}

#[derive(Clone, Debug)]
struct Candidacy {
    term: u64,
    since_ns: u64,
    asked_ns: u64,
    /// By node, the time at which the latest request that the node answered with a promise was
    /// sent.
    granted: BTreeMap<NodeId, u64>,
    /// Whether the candidate has held office.
    held: bool,
}

/// The election, from the view of one manager.
#[derive(Debug)]
pub struct Office {
    me: ClientId,
    tag: u64,
    terms: OfficeTerms,
    rng: Rng,
    nodes: BTreeMap<NodeId, NodeView>,
    seen_term: u64,
    /// Earliest time, in nanoseconds, of the next candidacy.
    try_ns: u64,
    candidacy: Option<Candidacy>,
    /// Whether the manager lets others try first after the first beat of a node.
    defers: bool,
    sabotage: OfficeSabotage,
}

impl Office {
    /// A manager that stands by. `me` is its random id. `seed` makes its waits differ from those of
    /// others.
    #[must_use]
    pub fn new(me: ClientId, terms: OfficeTerms, seed: u64) -> Self {
        Self {
            me,
            tag: me.0 & ((1 << TAG_BITS) - 1),
            terms,
            rng: Rng::with_seed(seed),
            nodes: BTreeMap::new(),
            seen_term: 0,
            try_ns: 0,
            candidacy: None,
            defers: false,
            sabotage: OfficeSabotage::default(),
        }
    }

    /// Makes the manager leave the office to others for three leases after the first beat of a
    /// node. So if several managers have just started, a manager without this setting becomes the
    /// first holder.
    #[must_use]
    pub fn deferring(self) -> Self {
        Self { defers: true, ..self }
    }

    /// The same manager without the steps that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotaged(self, sabotage: OfficeSabotage) -> Self {
        Self { sabotage, ..self }
    }

    fn lease_ns(&self) -> u64 {
        self.terms.lease.as_nanos() as u64
    }

    fn majority(&self) -> usize {
        if self.sabotage.no_majority() { 1 } else { self.terms.nodes as usize / 2 + 1 }
    }

    /// Number of memory nodes, whose ids begin at 1.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.terms.nodes
    }

    /// The answer to a beat while this manager stands by. After it, the node knows the manager,
    /// which may ask for a promise.
    #[must_use]
    pub fn beat_answer(&self) -> Message {
        let beat_ms = (self.terms.lease.as_millis() as u64 / BEATS).max(1);
        Message::BeatIs { term: self.seen_term, manager: self.me, beat_ms, alone: false }
    }

    /// Whether the promises of this node count.
    #[must_use]
    pub fn lists(&self, node: NodeId) -> bool {
        (1..=u64::from(self.terms.nodes)).contains(&node.0)
    }

    /// Term in which the manager holds office at `now_ns`.
    #[must_use]
    pub fn holds(&self, now_ns: u64) -> Option<u64> {
        let candidacy = self.candidacy.as_ref()?;
        (now_ns < self.until_ns(candidacy)).then_some(candidacy.term)
    }

    /// Term of the manager's candidacy or office.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.candidacy.as_ref().map(|candidacy| candidacy.term)
    }

    /// Time, in nanoseconds, until which the promises of a majority last.
    fn until_ns(&self, candidacy: &Candidacy) -> u64 {
        let mut sent: Vec<u64> = candidacy.granted.values().copied().collect();
        sent.sort_unstable_by(|one, other| other.cmp(one));
        let Some(sent_ns) = sent.get(self.majority() - 1) else { return 0 };
        let lease_ns = self.lease_ns();
        let margin_ns = if self.sabotage.counts_from_answer() { 0 } else { lease_ns / 16 };
        sent_ns + lease_ns - margin_ns
    }

    /// Takes a beat. `term` is the newest term that the node knows, and its promise lasts for
    /// another `held_ms`.
    pub fn on_beat(&mut self, now_ns: u64, node: NodeId, term: u64, held_ms: u64) {
        if self.lists(node) {
            if std::mem::take(&mut self.defers) {
                self.try_ns = now_ns + 3 * self.lease_ns();
            }
            let view = NodeView { heard_ns: now_ns, free_ns: now_ns + held_ms * 1_000_000 };
            self.nodes.insert(node, view);
            self.hear(now_ns, term);
        }
    }

    /// Takes a term that a node has promised.
    fn hear(&mut self, now_ns: u64, term: u64) {
        self.seen_term = self.seen_term.max(term);
        if self.term().is_some_and(|mine| mine < term) {
            self.stand_by(now_ns);
        }
    }

    fn stand_by(&mut self, now_ns: u64) {
        let lease_ns = self.lease_ns();
        self.candidacy = None;
        self.try_ns = now_ns + self.rng.u64(lease_ns / 8..lease_ns.max(8));
    }

    /// Takes a node's answer to a request for its promise, which was sent at `sent_ns`.
    pub fn on_answer(
        &mut self,
        now_ns: u64,
        node: NodeId,
        asked: &Message,
        sent_ns: u64,
        answer: &Message,
    ) {
        let Message::Promise { term, .. } = asked else { return };
        match answer {
            Message::Promised { term: promised } if promised == term => {
                let from_ns = if self.sabotage.counts_from_answer() { now_ns } else { sent_ns };
                let Some(mine) = self.candidacy.as_mut().filter(|mine| mine.term == *term) else {
                    return;
                };
                let latest = mine.granted.entry(node).or_insert(from_ns);
                *latest = from_ns.max(*latest);
                let held = self.holds(now_ns).is_some();
                if let Some(mine) = &mut self.candidacy {
                    mine.held |= held;
                }
            }
            Message::Refuse { refused } if refused.why == Why::OldTerm => {
                self.hear(now_ns, refused.number);
            }
            Message::Refuse { refused } if refused.why == Why::Promised => {
                let free_ns = now_ns + refused.number * 1_000_000;
                self.nodes.insert(node, NodeView { heard_ns: now_ns, free_ns });
            }
            _ => {}
        }
    }

    /// Handles the passing of time, and returns the requests that are due. No new term is smaller
    /// than `floor`, so that new terms exceed those of managers that ran alone.
    pub fn on_timer(&mut self, now_ns: u64, floor: u64) -> Vec<(NodeId, Message)> {
        let lease_ns = self.lease_ns();
        let holds = self.holds(now_ns).is_some();
        let is_over = |mine: &Candidacy| {
            let is_late = now_ns.saturating_sub(mine.since_ns) > lease_ns * 2 / 3;
            !holds && (mine.held || is_late)
        };
        if self.candidacy.as_ref().is_some_and(is_over) {
            self.stand_by(now_ns);
        }
        if self.candidacy.is_none() && now_ns >= self.try_ns && self.may_stand(now_ns) {
            let newest = self.seen_term.max(floor) >> TAG_BITS;
            let term = (newest + 1) << TAG_BITS | self.tag;
            self.seen_term = term;
            let granted = BTreeMap::new();
            let candidacy = Candidacy { term, since_ns: now_ns, asked_ns: 0, granted, held: false };
            self.candidacy = Some(candidacy);
        }
        let Some(mine) = &mut self.candidacy else { return Vec::new() };
        if mine.asked_ns > 0 && now_ns.saturating_sub(mine.asked_ns) < lease_ns / RENEWALS {
            return Vec::new();
        }
        mine.asked_ns = now_ns.max(1);
        let lease_ms = self.terms.lease.as_millis() as u64;
        let question = Message::Promise { term: mine.term, lease_ms };
        (1..=u64::from(self.terms.nodes)).map(|node| (NodeId(node), question.clone())).collect()
    }

    /// Whether a majority of the nodes sent beats lately, and no promise binds these nodes.
    fn may_stand(&self, now_ns: u64) -> bool {
        let lease_ns = self.lease_ns();
        let free = |view: &&NodeView| {
            view.free_ns <= now_ns && now_ns.saturating_sub(view.heard_ns) <= lease_ns
        };
        self.nodes.values().filter(free).count() >= self.majority()
    }
}
