//! Office: which of several managers acts.
//!
//! A cluster may run more than one manager, all started for the same memory nodes, 1 to N. At most
//! one **holds office** at a time; the others stand by. A state machine without clock, lock or I/O:
//! beats, answers and ticks come in with the time, questions come out.
//!
//! 1. A manager that stands by hears the beats of the memory nodes. A beat says for how long the
//!    node's promise to a manager still lasts.
//! 2. When a majority of the N nodes has been heard within a lease and is bound by no promise, it
//!    becomes a **candidate**: it chooses a term above every one that it has heard of, with a tag
//!    of its own in the lowest 16 bits, and asks all nodes for a promise.
//! 3. It holds office while promises of a majority last. It counts each from when it *sent* the
//!    question that was answered, and for a sixteenth less than the node counts from when it *got*
//!    the question. It asks again four times per lease.
//! 4. A candidate that gets no majority within two thirds of a lease stands by again and waits for
//!    a random time, at most a lease.
//! 5. A node that names a larger term ends candidacy and office.
//!
//! Invariants:
//! 1. Two managers never hold office at the same moment. Two majorities share a node. That node
//!    promised the larger term when its promise of the smaller one was over, and the holder of the
//!    smaller term had stopped counting it before. A node that lost its memory promises nothing for
//!    a lease ([`Promise`] invariant 3 in the memory role).
//! 2. Orders of a smaller term are refused by every node that has promised a larger one.
//! 3. A manager that takes office knows nothing and begins to gather reports; it grants no lease of
//!    its own before, and changes no block for longer than any lease that its forerunner granted
//!    (`core`).
//! 4. One that could not renew in time loses office for good: it stands by, and forgets what it
//!    knew. Another may have held office since, with nodes that have lost their memory by now.
//!
//! Failure: without a majority of the memory nodes nobody holds office; nodes and clients go on as
//! long as their leases last. Cost: a message to each node four times per lease. Clocks may differ
//! in rate by 6 %.
//!
//! [`Promise`]: ../../archipelago_memory/promise/struct.Promise.html

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_fabric::{ClientId, NodeId};
use archipelago_pool::wire::{Message, Why};

use crate::nodes::BEATS;

/// Questions per lease.
const RENEWALS: u64 = 4;
/// Bits of a term that tell managers apart.
const TAG_BITS: u32 = 16;

/// Which nodes promise, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfficeTerms {
    /// The memory nodes are 1 to this number.
    pub nodes: u32,
    /// How long a promise lasts.
    pub lease: Duration,
}

archipelago_base::fault_switches! {
    /// Steps of the election that a checker leaves out, to prove that it notices.
    OfficeSabotage {
        /// One promise suffices for the office.
        no_majority,
        /// A manager counts a promise in full, from the arrival of its answer.
        counts_from_answer,
    }
}

/// What a node's last beat, or refusal, said.
#[derive(Clone, Copy, Debug)]
struct NodeView {
    heard_ns: u64,
    /// The node is bound by no promise from then on, by this manager's clock.
    free_ns: u64,
}

#[derive(Clone, Debug)]
struct Candidacy {
    term: u64,
    since_ns: u64,
    asked_ns: u64,
    /// When the latest question was sent that each node answered with its promise.
    granted: BTreeMap<NodeId, u64>,
    /// Whether it has held office.
    held: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Office {
    me: ClientId,
    tag: u64,
    terms: OfficeTerms,
    rng: Rng,
    nodes: BTreeMap<NodeId, NodeView>,
    seen_term: u64,
    /// No candidacy begins before.
    try_ns: u64,
    candidacy: Option<Candidacy>,
    /// It lets others try first when it hears of nodes for the first time.
    defers: bool,
    sabotage: OfficeSabotage,
}

impl Office {
    /// A manager that stands by. `me` is its random id; `seed` makes its waits differ from others'.
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

    /// The same of one that leaves office to another manager for three leases from when it first
    /// hears of a node: who acts first is then known where both have just started.
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

    /// The memory nodes are 1 to this number.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.terms.nodes
    }

    /// What a node's beat is answered with while this manager does not act: it is met, and may ask
    /// for a promise.
    #[must_use]
    pub fn beat_answer(&self) -> Message {
        let beat_ms = (self.terms.lease.as_millis() as u64 / BEATS).max(1);
        Message::BeatIs { term: self.seen_term, manager: self.me, beat_ms, alone: false }
    }

    /// Whether promises of this node count.
    #[must_use]
    pub fn lists(&self, node: NodeId) -> bool {
        (1..=u64::from(self.terms.nodes)).contains(&node.0)
    }

    /// The term in which it holds office at `now_ns`.
    #[must_use]
    pub fn holds(&self, now_ns: u64) -> Option<u64> {
        let candidacy = self.candidacy.as_ref()?;
        (now_ns < self.until_ns(candidacy)).then_some(candidacy.term)
    }

    /// The term that it stands for, or holds office in.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.candidacy.as_ref().map(|candidacy| candidacy.term)
    }

    /// Until when promises of a majority last.
    fn until_ns(&self, candidacy: &Candidacy) -> u64 {
        let mut sent: Vec<u64> = candidacy.granted.values().copied().collect();
        sent.sort_unstable_by(|one, other| other.cmp(one));
        let Some(sent_ns) = sent.get(self.majority() - 1) else { return 0 };
        let lease_ns = self.lease_ns();
        let margin_ns = if self.sabotage.counts_from_answer() { 0 } else { lease_ns / 16 };
        sent_ns + lease_ns - margin_ns
    }

    /// A node beats: `term` is the newest that it has heard of, and its promise lasts for `held_ms`
    /// more.
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

    /// Somebody has promised this term.
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

    /// A node answered a question for its promise, which was sent at `sent_ns`.
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

    /// Time passed; whom to ask what. `floor`: no new term is smaller, so that terms of managers
    /// that ran alone are passed.
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

    /// Whether a majority was heard lately and is bound by no promise.
    fn may_stand(&self, now_ns: u64) -> bool {
        let lease_ns = self.lease_ns();
        let free = |view: &&NodeView| {
            view.free_ns <= now_ns && now_ns.saturating_sub(view.heard_ns) <= lease_ns
        };
        self.nodes.values().filter(free).count() >= self.majority()
    }
}
