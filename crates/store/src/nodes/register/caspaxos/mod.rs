//! CASPaxos: a register with compare-and-swap on a set of acceptors (Rystsov, "CASPaxos: Replicated
//! State Machines without logs", 2018).
//!
//! Every operation on a name is one round of Paxos. The proposer asks all members for a promise of
//! its ballot. It learns the value with the largest accepted ballot from a majority, applies the
//! change, and asks all members to accept the result. A read needs no second phase if its majority
//! has accepted one and the same ballot of its root set. State machines without I/O do all of this:
//!
//! | module | purpose |
//! | --- | --- |
//! | [`acceptor`] | the state of one member |
//! | [`proposer`] | one operation of a client |
//! | [`root_change`] | the replacement of a member |
//!
//! Every change has an identity, and every value a version. If an answer was lost, the proposer
//! recognises its own change, or sees by the version that another change took its place. It reports
//! [`ProposalResult::Unknown`](proposer::ProposalResult::Unknown) if the value has moved on since.
//!
//! A member is replaced in four steps. An operator's command drives them, and any process may
//! repeat them:
//!
//! 1. The next root set becomes the value of the name [`ROOT_SET_NAME`], by compare-and-swap on
//!    the old set.
//! 2. A majority of the old set durably refuses messages with the old set's number, and answers
//!    with all its values, page by page.
//! 3. The members of the new set get all values of this majority with their ballots, page by page,
//!    and keep the larger ballot of each. A member has the copy when it has all pages.
//! 4. When a majority of the new set has the copy, its members that have it answer. If a member
//!    counted before it has its copy, it could be part of a majority that does not know the last
//!    write.
//!
//! So the steps need a majority of the old set and one of the new set. A member that is down
//! meanwhile, also a new one, gets its copy by a repetition of the steps or by the next change.
//!
//! A ballot begins with the number of the root set. Every ballot of a new set is therefore larger
//! than all ballots in a copy, even if the copy arrives late.
//!
//! Invariants:
//! 1. A member never accepts a ballot below its promise, and its promise survives its crash.
//! 2. At most one value is chosen per version of a name.
//! 3. No two sets answer at the same time: a majority of the old one has retired before a member of
//!    the new one is activated.
//!
//! Thread-safety: none; drivers own the values.
//! Failure: an operation waits for a majority. A member whose disk was emptied has another identity
//! and counts as lost.
//! Cost: two round trips and one sync per member and phase; a read without contention one.

pub mod acceptor;
pub mod proposer;
pub mod root_change;

use super::super::StorageId;

/// Name of the register whose value is the next root set, as the driver encodes it.
pub const ROOT_SET_NAME: &str = "root-set";

/// Number of a round: larger ballots win.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// Number of the root set that the round belongs to.
    pub root_set: u64,
    /// Grows with every round of a proposer.
    pub counter: u64,
    /// Identity of the proposer, which makes ballots unique.
    pub proposer: u64,
}

/// The members of a register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootSet {
    /// Number of the set; the next set has the next number, and the first one 1.
    pub number: u64,
    /// Nodes of the set.
    pub members: Vec<StorageId>,
}

impl RootSet {
    /// Number of members that decide.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }
}

/// Identity of a change: no two operations share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChangeId {
    /// Identity of the proposer.
    pub proposer: u64,
    /// Number of the operation of this proposer.
    pub sequence: u64,
}

/// A value as members store it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// Number of changes of the name, this one included.
    pub version: u64,
    /// The change that made the value.
    pub change: ChangeId,
    /// The value; `None` if it was removed.
    pub value: Option<Vec<u8>>,
}

/// A value and the ballot under which a member accepted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedValue {
    /// Ballot of the round.
    pub ballot: Ballot,
    /// The accepted value.
    pub value: StoredValue,
}

#[cfg(test)]
pub(in crate::nodes) mod tests;
