//! The promise of a memory node to obey one manager.
//!
//! [`MemoryCore`](crate::core::MemoryCore) owns a [`Promise`]. Several managers may run. Each of
//! them asks for a **promise**, and a manager holds office only with the promises of a majority of
//! the memory nodes (`archipelago_manager::office` has the whole protocol). The node makes a
//! promise only to a manager that answered a beat of this node, which it recognises by a random id.
//! A manager that runs alone asks for no promise. The node obeys it after its answer to a beat.
//!
//! Invariants:
//! 1. `term` never shrinks within a life of the node.
//! 2. A promise lasts for the requested lease, from the time at which the node gave or renewed it.
//!    Until it ends, the node promises no other term.
//! 3. A node that has just started may have made a promise in its previous life. Therefore it makes
//!    none for the length of a lease.
//! 4. The node takes orders only from the manager of the newest term.
//!
//! Thread-safety: none; the owner's lock guards the value.
//! Failure: the node refuses a promise with the newest term, or with the milliseconds to wait.
//! Cost: O(1) per message.

use std::collections::VecDeque;

use archipelago_fabric::ClientId;
use archipelago_pool::wire::{Refused, Why};

archipelago_base::fault_switches! {
    /// Steps of the promise protocol that a checker leaves out, to prove that the checks notice it.
    PromiseSabotage {
        /// A node that has just started promises immediately.
        no_grace,
        /// A node promises a larger term although its promise to another manager still lasts.
        no_patience,
    }
}

/// Number of managers that the node remembers.
const MET_MAX: usize = 16;

/// The state of a node's promises.
#[derive(Clone, Debug)]
pub struct Promise {
    began_ns: u64,
    term: u64,
    manager: Option<ClientId>,
    until_ns: u64,
    /// Managers that answered a beat, the latest at the end.
    met: VecDeque<ClientId>,
    sabotage: PromiseSabotage,
}

impl Promise {
    /// The promise of a node whose life begins at `now_ns` of its clock.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        let sabotage = PromiseSabotage::default();
        let met = VecDeque::new();
        Self { began_ns: now_ns, term: 0, manager: None, until_ns: 0, met, sabotage }
    }

    /// The same promise without the steps that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotaged(self, sabotage: PromiseSabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// Largest term that the node has promised or has got in a message; 0 before the first.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Nanoseconds until the promise ends.
    #[must_use]
    pub fn left_ns(&self, now_ns: u64) -> u64 {
        self.until_ns.saturating_sub(now_ns)
    }

    /// Promises to obey `from` in its `term` for `lease_ns`. The error says why the node refuses.
    pub fn ask(
        &mut self,
        now_ns: u64,
        from: ClientId,
        term: u64,
        lease_ns: u64,
    ) -> Result<(), Refused> {
        if !self.met.contains(&from) {
            return Err(Why::NotAllowed.into());
        }
        let renews = term == self.term && self.manager == Some(from);
        if !renews {
            if term <= self.term {
                return Err(Refused::at(Why::OldTerm, self.term));
            }
            let grace_ns = (self.began_ns + lease_ns).saturating_sub(now_ns);
            let grace_ns = if self.sabotage.no_grace() { 0 } else { grace_ns };
            let left_ns = if self.sabotage.no_patience() { 0 } else { self.left_ns(now_ns) };
            let wait_ns = grace_ns.max(left_ns);
            if wait_ns > 0 {
                return Err(Refused::at(Why::Promised, wait_ns.div_ceil(1_000_000)));
            }
        }
        (self.term, self.manager) = (term, Some(from));
        self.until_ns = self.until_ns.max(now_ns.saturating_add(lease_ns));
        Ok(())
    }

    /// Takes a manager's answer to a beat. The node obeys a manager that runs `alone` from now on,
    /// unless its term is smaller than a known one.
    pub fn meet(&mut self, term: u64, manager: ClientId, alone: bool) {
        if !self.met.contains(&manager) {
            self.met.push_back(manager);
            if self.met.len() > MET_MAX {
                self.met.pop_front();
            }
        }
        if !alone {
            return;
        }
        if term > self.term || (term == self.term && self.manager.is_none()) {
            (self.term, self.manager) = (term, Some(manager));
        }
    }

    /// Whether the node obeys an order of `from` in `term`.
    pub fn obeys(&self, from: ClientId, term: u64) -> Result<(), Refused> {
        if term < self.term {
            return Err(Refused::at(Why::OldTerm, self.term));
        }
        if self.manager != Some(from) || term != self.term {
            return Err(Why::NotAllowed.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 1_000_000_000;
    const ONE: ClientId = ClientId(1);
    const TWO: ClientId = ClientId(2);

    #[test]
    fn promise_lasts_for_its_lease_and_is_renewed_by_its_holder() {
        let mut node = Promise::new(0);
        assert_eq!(node.ask(LEASE, ONE, 5, LEASE), Err(Why::NotAllowed.into()), "a stranger");
        [ONE, TWO].into_iter().for_each(|manager| node.meet(9, manager, false));
        assert_eq!((node.term(), node.ask(LEASE, ONE, 5, LEASE)), (0, Ok(())));
        let wait = |ms| Err(Refused::at(Why::Promised, ms));
        assert_eq!(node.ask(LEASE + 1, TWO, 6, LEASE), wait(1000));
        assert_eq!(node.ask(LEASE * 3 / 2, ONE, 5, LEASE), Ok(()), "renewed");
        assert_eq!(node.ask(LEASE * 2, TWO, 6, LEASE), wait(500));
        assert_eq!(node.ask(LEASE * 5 / 2, TWO, 6, LEASE), Ok(()));
        let old = Err(Refused::at(Why::OldTerm, 6));
        assert_eq!(node.ask(LEASE * 9, ONE, 5, LEASE), old);
        assert_eq!((node.obeys(ONE, 5), node.obeys(TWO, 6)), (old, Ok(())));
        assert_eq!(node.obeys(ONE, 6), Err(Why::NotAllowed.into()));
    }

    #[test]
    fn node_that_has_just_started_promises_nothing_for_a_lease() {
        let mut node = Promise::new(7);
        node.meet(0, ONE, false);
        assert_eq!(node.ask(7, ONE, 5, LEASE), Err(Refused::at(Why::Promised, 1000)));
        assert_eq!(node.ask(7 + LEASE, ONE, 5, LEASE), Ok(()));
    }
}
