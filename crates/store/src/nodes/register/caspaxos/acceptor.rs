//! A member of a root set: its promises, accepted values and membership.
//!
//! The driver makes the state durable before it sends an answer with `is_changed`.
//!
//! A name has a cell once the member has accepted a value for it. All other names share one
//! promise, so a read of a name that does not exist leaves no cell. The shared promise may be
//! larger than the promise that the member gave for such a name. That is safe, and costs a proposer
//! another round.
//!
//! The values of a member leave it and reach it in pages of names ([`CellPage`]), because they may
//! exceed a message. A retired member changes its cells by later values only, and drops none. So
//! the pages that it gives at different times have at least the values that it knew when it
//! retired.
//!
//! Invariants:
//! 1. The promise of a name never shrinks, and is at least the accepted ballot.
//! 2. A member answers proposers only while it is active in the set that they name.
//! 3. A member that has retired from a set never becomes active in it again.
//! 4. A copy changes nothing on a member that is already active in the new set.
//! 5. A member joins a set only with all pages of one sender, which it got one after the other. A
//!    page that does not continue the pages before it is refused.
//!
//! Thread-safety: none; the driver's lock guards the value.
//! Failure: a request for another set is answered with the set that the member knows.
//! Cost: O(log names) per request; a page of a copy is O(names of the page).

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{AcceptedValue, Ballot, ChangeId, RootSet, StoredValue};

/// Size of a page of cells, in bytes, from which on it gets no further cell.
pub const PAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a cell in a message, without its name and the bytes of its value.
const CELL_BYTES: usize = 96;

archipelago_base::fault_switches! {
    /// Steps of a member that a checker leaves out, to prove that it notices.
    AcceptorSabotage {
        /// Promises do not survive a crash.
        promise_not_durable,
        /// The first page of a copy counts as the whole copy.
        partial_copy,
    }
}

/// Promise and value of a member for one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterCell {
    /// Largest ballot that the member has promised.
    pub promised: Ballot,
    /// The value with the largest accepted ballot.
    pub accepted: Option<AcceptedValue>,
}

impl RegisterCell {
    /// Takes over what another member knows, if its ballots are larger.
    pub fn merge(&mut self, other: &Self) {
        self.promised = self.promised.max(other.promised);
        let ballot = |cell: &Self| cell.accepted.as_ref().map(|accepted| accepted.ballot);
        if ballot(other) > ballot(self) {
            self.accepted.clone_from(&other.accepted);
        }
    }
}

impl RegisterCell {
    /// Bytes of the cell of `name` in a message, at most.
    fn message_bytes(&self, name: &str) -> usize {
        let accepted = self.accepted.as_ref().and_then(|accepted| accepted.value.value.as_ref());
        CELL_BYTES + name.len() + accepted.map_or(0, Vec::len)
    }
}

/// A part of the cells of a member: those of consecutive names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellPage {
    /// Name after which the page begins; `None` for the first page.
    pub after: Option<String>,
    /// Names and cells.
    pub cells: BTreeMap<String, RegisterCell>,
    /// Whether cells of later names follow.
    pub has_more: bool,
}

impl CellPage {
    /// The page of `cells` that begins after the name `after`, of at most `bytes_max` bytes or of
    /// one cell.
    #[must_use]
    pub fn of(
        cells: &BTreeMap<String, RegisterCell>,
        after: Option<String>,
        bytes_max: usize,
    ) -> Self {
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = cells.range::<str, _>((from, Bound::Unbounded)).peekable();
        let mut page = BTreeMap::new();
        let mut bytes = 0;
        while let Some((name, cell)) = rest.peek() {
            bytes += cell.message_bytes(name);
            if bytes > bytes_max && !page.is_empty() {
                break;
            }
            page.insert((*name).clone(), (*cell).clone());
            rest.next();
        }
        let has_more = rest.peek().is_some();
        Self { after, cells: page, has_more }
    }

    /// The last name of the page.
    #[must_use]
    pub fn last(&self) -> Option<&String> {
        self.cells.keys().next_back()
    }
}

/// Progress of a copy to a member, while further pages are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// Number of the root set whose predecessor had the values.
    pub root_set: u64,
    /// Identity of the copy: no two senders share it.
    pub copy: ChangeId,
    /// Last name of the newest page.
    pub through: String,
}

/// The part of a member in root sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Membership {
    /// The node is no member.
    #[default]
    None,
    /// The member answers proposers of this set.
    Active(RootSet),
    /// The member has left a set for the next one. The variant has the members of that next set.
    Retired {
        /// The set that follows.
        next: RootSet,
    },
    /// The member has the values of the set's predecessor and waits for its activation.
    Joining(RootSet),
    /// The node was in an earlier membership, has dropped its values, and gets a copy.
    Copying {
        /// Number of the first set that the node may join.
        least: u64,
    },
}

impl Membership {
    /// Number of the first set that a node may join after it has dropped everything that it knows.
    fn least(&self) -> u64 {
        match self {
            Self::None => 0,
            // The node has dropped its promises and accepted values of this set, so it must not
            // join this set again.
            Self::Active(known) => known.number + 1,
            Self::Retired { next: known } | Self::Joining(known) => known.number,
            Self::Copying { least } => *least,
        }
    }
}

/// The durable state of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptorState {
    /// The part of the node in root sets.
    pub membership: Membership,
    /// Largest ballot that the member has promised for a name without a cell.
    pub promised_absent: Ballot,
    /// The copy of which the member has some pages.
    pub copy: Option<CopyProgress>,
    /// The names for which the member has accepted a value, or got one by a copy.
    pub cells: BTreeMap<String, RegisterCell>,
}

/// The durable state of a member without its cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptorHead {
    /// The part of the node in root sets.
    pub membership: Membership,
    /// Largest ballot that the member has promised for a name without a cell.
    pub promised_absent: Ballot,
    /// The copy of which the member has some pages.
    pub copy: Option<CopyProgress>,
}

impl AcceptorState {
    /// The state with this head and these cells.
    #[must_use]
    pub fn new(head: AcceptorHead, cells: BTreeMap<String, RegisterCell>) -> Self {
        let AcceptorHead { membership, promised_absent, copy } = head;
        Self { membership, promised_absent, copy, cells }
    }

    /// The state without its cells.
    #[must_use]
    pub fn head(&self) -> AcceptorHead {
        let (membership, copy) = (self.membership.clone(), self.copy.clone());
        AcceptorHead { membership, promised_absent: self.promised_absent, copy }
    }

    /// Takes over what another member knows about a name. A new cell has the promise that the name
    /// had without one.
    fn merge(&mut self, name: String, cell: &RegisterCell) {
        let promised = self.promised_absent;
        let absent = || RegisterCell { promised, accepted: None };
        self.cells.entry(name).or_insert_with(absent).merge(cell);
    }
}

/// A request to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptorRequest {
    /// Asks for the promise of a ballot.
    Prepare {
        /// Name of the register.
        name: String,
        /// Ballot of the round, which names the root set.
        ballot: Ballot,
    },
    /// Asks to accept a value.
    Accept {
        /// Name of the register.
        name: String,
        /// Ballot of the round, which names the root set.
        ballot: Ballot,
        /// The value to accept.
        value: StoredValue,
    },
    /// Asks for the names that begin with a prefix.
    Names {
        /// Number of the root set.
        root_set: u64,
        /// First part of the names.
        prefix: String,
    },
    /// Asks the member to leave the set before `next` for good, and to return a page of its values.
    Retire {
        /// The set that follows.
        next: RootSet,
        /// Name after which the page begins; `None` for the first page.
        after: Option<String>,
    },
    /// Copies a page of the values of the predecessor's majority to a member of a new set. A later
    /// copy may come from members of the set itself, which have the values of that majority.
    Install {
        /// The new set.
        root_set: RootSet,
        /// Identity of the copy: no two senders share it.
        copy: ChangeId,
        /// Names and values of the majority or of those members.
        page: CellPage,
    },
    /// Asks a member that has the copy to answer proposers.
    Activate {
        /// Number of the new set.
        root_set: u64,
    },
}

/// The answer of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptorAnswer {
    /// The ballot is promised.
    Promised {
        /// The promised ballot.
        ballot: Ballot,
        /// The value that the member accepted last.
        accepted: Option<AcceptedValue>,
    },
    /// The value of the ballot is accepted.
    Accepted {
        /// Ballot of the value.
        ballot: Ballot,
    },
    /// The member has promised a larger ballot.
    Outbid {
        /// Ballot of the request.
        ballot: Ballot,
        /// The promised ballot.
        promised: Ballot,
    },
    /// The names that the member knows, sorted. Some may have no value.
    Names(Vec<String>),
    /// The member does not answer for the set that the request names.
    WrongSet {
        /// The set that the member is in, or the one that follows it.
        known: Option<RootSet>,
    },
    /// The member has left the old set, and may be in the new one. The page has a part of its
    /// values.
    Retired(CellPage),
    /// The member has the pages of a copy through a name, and lacks later ones.
    Copied {
        /// Number of the new set.
        root_set: u64,
        /// Last name of these pages.
        through: String,
    },
    /// The member has the copy.
    Installed,
    /// The member answers proposers.
    Activated,
}

/// An answer, and whether the state must be durable before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandledRequest {
    /// The answer to send.
    pub answer: AcceptorAnswer,
    /// Whether the request changed the durable state.
    pub is_changed: bool,
}

impl HandledRequest {
    fn changed(answer: AcceptorAnswer) -> Self {
        Self { answer, is_changed: true }
    }

    fn unchanged(answer: AcceptorAnswer) -> Self {
        Self { answer, is_changed: false }
    }
}

/// A member of a root set.
#[derive(Clone, Debug)]
pub struct Acceptor {
    state: AcceptorState,
    page_bytes_max: usize,
    sabotage: AcceptorSabotage,
}

impl Acceptor {
    /// A member with its durable state: the default state for a node that was never a member.
    #[must_use]
    pub fn new(state: AcceptorState) -> Self {
        let (page_bytes_max, sabotage) = (PAGE_BYTES_MAX, AcceptorSabotage::default());
        Self { state, page_bytes_max, sabotage }
    }

    /// The same member with pages of at most `bytes_max` bytes or of one cell.
    #[cfg(test)]
    #[must_use]
    pub(in crate::nodes) fn paged(self, bytes_max: usize) -> Self {
        Self { page_bytes_max: bytes_max, ..self }
    }

    /// A member of the first root set of a cluster.
    #[must_use]
    pub fn founding(root_set: RootSet) -> Self {
        let membership = Membership::Active(root_set);
        Self::new(AcceptorState { membership, ..AcceptorState::default() })
    }

    /// The same member without the steps that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotaged(self, sabotage: AcceptorSabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// The state that must be durable.
    #[must_use]
    pub fn state(&self) -> &AcceptorState {
        &self.state
    }

    /// Handles a request.
    pub fn handle(&mut self, request: AcceptorRequest) -> HandledRequest {
        match request {
            AcceptorRequest::Prepare { name, ballot } if self.answers(ballot.root_set) => {
                self.prepare(&name, ballot)
            }
            AcceptorRequest::Accept { name, ballot, value } if self.answers(ballot.root_set) => {
                self.accept(name, AcceptedValue { ballot, value })
            }
            AcceptorRequest::Names { root_set, prefix } if self.answers(root_set) => {
                let names = self.state.cells.range(prefix.clone()..).map(|(name, _)| name);
                let names = names.take_while(|name| name.starts_with(&prefix)).cloned().collect();
                HandledRequest::unchanged(AcceptorAnswer::Names(names))
            }
            AcceptorRequest::Retire { next, after } => self.retire(next, after),
            AcceptorRequest::Install { root_set, copy, page } => self.install(root_set, copy, page),
            AcceptorRequest::Activate { root_set } => self.activate(root_set),
            AcceptorRequest::Prepare { .. }
            | AcceptorRequest::Accept { .. }
            | AcceptorRequest::Names { .. } => self.wrong_set(),
        }
    }

    fn answers(&self, root_set: u64) -> bool {
        matches!(&self.state.membership, Membership::Active(active) if active.number == root_set)
    }

    fn wrong_set(&self) -> HandledRequest {
        let known = match &self.state.membership {
            // A node that gets a copy may get that of another set instead.
            Membership::None | Membership::Copying { .. } => None,
            Membership::Active(known)
            | Membership::Retired { next: known }
            | Membership::Joining(known) => Some(known.clone()),
        };
        HandledRequest::unchanged(AcceptorAnswer::WrongSet { known })
    }

    fn prepare(&mut self, name: &str, ballot: Ballot) -> HandledRequest {
        let absent = self.state.promised_absent;
        let cell = self.state.cells.get_mut(name);
        let promised = cell.as_ref().map_or(absent, |cell| cell.promised);
        if ballot < promised {
            return HandledRequest::unchanged(AcceptorAnswer::Outbid { ballot, promised });
        }
        let accepted = match cell {
            Some(cell) => {
                cell.promised = ballot;
                cell.accepted.clone()
            }
            None => {
                self.state.promised_absent = ballot;
                None
            }
        };
        let answer = AcceptorAnswer::Promised { ballot, accepted };
        HandledRequest { answer, is_changed: !self.sabotage.promise_not_durable() }
    }

    fn accept(&mut self, name: String, accepted: AcceptedValue) -> HandledRequest {
        let ballot = accepted.ballot;
        let absent = self.state.promised_absent;
        let promised = self.state.cells.get(&name).map_or(absent, |cell| cell.promised);
        if ballot < promised {
            return HandledRequest::unchanged(AcceptorAnswer::Outbid { ballot, promised });
        }
        let cell = RegisterCell { promised: ballot, accepted: Some(accepted) };
        self.state.cells.insert(name, cell);
        HandledRequest::changed(AcceptorAnswer::Accepted { ballot })
    }

    fn retire(&mut self, next: RootSet, after: Option<String>) -> HandledRequest {
        let is_changed = match &self.state.membership {
            // A member that joins the old set has all values of the set before that one.
            Membership::Active(old) | Membership::Joining(old) if old.number + 1 == next.number => {
                true
            }
            // Another process has brought the member into the next set. The member still has all
            // values that it knew in the old set.
            Membership::Retired { next: known }
            | Membership::Joining(known)
            | Membership::Active(known)
                if *known == next =>
            {
                false
            }
            _ => return self.wrong_set(),
        };
        if is_changed {
            self.state.membership = Membership::Retired { next };
        }
        let page = CellPage::of(&self.state.cells, after, self.page_bytes_max);
        HandledRequest { answer: AcceptorAnswer::Retired(page), is_changed }
    }

    fn install(&mut self, root_set: RootSet, copy: ChangeId, page: CellPage) -> HandledRequest {
        let number = root_set.number;
        match &self.state.membership {
            // The member has the values of a retired majority already.
            Membership::Active(known) | Membership::Joining(known) if known.number == number => {
                return HandledRequest::unchanged(AcceptorAnswer::Installed);
            }
            Membership::Active(known)
            | Membership::Retired { next: known }
            | Membership::Joining(known)
                if known.number > number =>
            {
                return self.wrong_set();
            }
            Membership::Copying { least } if *least > number => return self.wrong_set(),
            // A correct sender never sends an empty page with more pages behind it.
            _ if page.has_more && page.cells.is_empty() => return self.wrong_set(),
            _ => {}
        }
        let last = page.last().cloned();
        if let Some(after) = &page.after {
            let progress = self.state.copy.as_ref();
            let progress = progress.filter(|it| it.root_set == number && it.copy == copy);
            match progress.map(|it| &it.through) {
                Some(through) if through == after => {}
                // The answer to this page was lost.
                Some(through) if page.has_more && last.as_ref().is_some_and(|it| it <= through) => {
                    let through = through.clone();
                    let answer = AcceptorAnswer::Copied { root_set: number, through };
                    return HandledRequest::unchanged(answer);
                }
                _ => return self.wrong_set(),
            }
        } else {
            self.begin_copy(&root_set);
        }
        for (name, cell) in page.cells {
            self.state.merge(name, &cell);
        }
        let lacks_pages = page.has_more && !self.sabotage.partial_copy();
        if let Some(through) = last.filter(|_| lacks_pages) {
            let progress = CopyProgress { root_set: number, copy, through: through.clone() };
            self.state.copy = Some(progress);
            return HandledRequest::changed(AcceptorAnswer::Copied { root_set: number, through });
        }
        self.state.copy = None;
        self.state.membership = Membership::Joining(root_set);
        HandledRequest::changed(AcceptorAnswer::Installed)
    }

    /// Leaves earlier sets for a copy of the values of `root_set`'s predecessor. A member of the
    /// predecessor keeps its values, and retires.
    fn begin_copy(&mut self, root_set: &RootSet) {
        match &self.state.membership {
            Membership::Active(old) | Membership::Joining(old)
                if old.number + 1 == root_set.number =>
            {
                self.state.membership = Membership::Retired { next: root_set.clone() };
            }
            Membership::Retired { next } if next.number == root_set.number => {}
            // The values that the node has from an earlier membership are outdated.
            earlier => {
                self.state.membership = Membership::Copying { least: earlier.least() };
                self.state.cells.clear();
            }
        }
    }

    fn activate(&mut self, root_set: u64) -> HandledRequest {
        match &self.state.membership {
            Membership::Joining(joining) if joining.number == root_set => {
                self.state.membership = Membership::Active(joining.clone());
                HandledRequest::changed(AcceptorAnswer::Activated)
            }
            Membership::Active(active) if active.number == root_set => {
                HandledRequest::unchanged(AcceptorAnswer::Activated)
            }
            _ => self.wrong_set(),
        }
    }
}
