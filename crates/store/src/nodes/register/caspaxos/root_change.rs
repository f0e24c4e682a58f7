//! The replacement of a member of the root set: steps 2 to 4 in the head of [`caspaxos`](super).
//!
//! Before the driver begins, it has made the next set the value of the register's own name, or a
//! member of the old set has named the next set.
//!
//! A majority of the new set suffices for each step. So a new member that is lost before it has its
//! copy does not block the change. The set goes on like one with a member that is down, and the
//! next change replaces that member. A member that gets its copy later than the others accepts old
//! values late, as if their messages had been delayed. This is safe for two reasons. Every value
//! that the old set chose is in every copy. A value that the new set chose has a larger ballot than
//! all values of the old one.
//!
//! A member of the old set that was not active in it yet may retire as well. So the majority of the
//! old set that retires may differ from the majority that answered proposers. If such a member has
//! its copy, it knows all values that were chosen before the old set, and it has never accepted
//! anything in the old set. If it lacks its copy, it first gets a copy from a member that has
//! retired. The values of the old set that come with it count as accepted by the member, which has
//! not promised anything in the old set before.
//!
//! Values travel in pages of names. A member has retired when it has given all its pages. A member
//! has a copy when it has taken all pages of this change, one after the other. The member itself
//! says whether a page continues the pages before it. If it does not, the change begins with the
//! first page again. Later pages may also have values of members that retired after the first page
//! was sent. That changes nothing, because each name is a register of its own.
//!
//! Invariants:
//! 1. No member counts before it has the values of a retired majority itself.
//! 2. The new set answers only when a majority of it has the values.
//! 3. The steps may be repeated, also by several processes: retiring, copying and activating change
//!    nothing when they were done. If two processes copy to one member, the process that began last
//!    continues, and the earlier process begins again.
//!
//! Thread-safety: none; the caller owns the value.
//! Failure: the change waits for a majority of the old set, and for one of the new set. The driver
//! calls [`RootChange::ask_again`] after a pause.
//! Cost: one message per member and step, and one per page of the values in the second and third.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::super::StorageId;
use super::acceptor::{AcceptorAnswer, AcceptorRequest, CellPage, PAGE_BYTES_MAX, RegisterCell};
use super::{ChangeId, RootSet};

archipelago_base::fault_switches! {
    /// Steps of a change that a checker leaves out, to prove that it notices.
    RootChangeSabotage {
        /// Members count before they have the copy.
        no_copy,
    }
}

/// An action that the driver carries out for a change of the root set. The order of the actions
/// counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootChangeAction {
    /// Sends a request to a member of the old or the new set.
    Send {
        /// Member that gets it.
        to: StorageId,
        /// Request to deliver.
        request: AcceptorRequest,
    },
    /// A majority of the new set answers proposers.
    Done,
    /// The old set has been left for another set than the wanted one.
    Superseded(RootSet),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangePhase {
    Retiring,
    Installing,
    Activating,
    Done,
}

/// A change from one root set to the next.
#[derive(Debug)]
pub struct RootChange {
    old: RootSet,
    next: RootSet,
    /// Identity of the copies of this change.
    copy: ChangeId,
    phase: ChangePhase,
    /// Last names of the pages that members of the old set have given so far.
    retiring: BTreeMap<StorageId, String>,
    /// Members of the old set that have retired, and have given all their values.
    retired: BTreeSet<StorageId>,
    /// Members of the old set that got a copy of the set's values since the driver asked last.
    brought_in: BTreeSet<StorageId>,
    /// Last names of the pages that members have taken so far, by the set that they join.
    copied: BTreeMap<CopyTo, String>,
    /// Members of the new set that have the copy.
    installed: BTreeSet<StorageId>,
    /// Members of the new set that answer proposers.
    activated: BTreeSet<StorageId>,
    /// Everything that the retired majority knows about each name.
    cells: BTreeMap<String, RegisterCell>,
    page_bytes_max: usize,
    actions: VecDeque<RootChangeAction>,
    sabotage: RootChangeSabotage,
}

/// A copy to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CopyTo {
    member: StorageId,
    /// Number of the set that the member joins.
    root_set: u64,
}

impl RootChange {
    /// A change from `old` to `next`, which the register already names. No other change of any
    /// process has the identity `copy`.
    #[must_use]
    pub fn new(old: RootSet, next: RootSet, copy: ChangeId) -> Self {
        assert_eq!(next.number, old.number + 1, "root sets are numbered without gaps");
        Self {
            old,
            next,
            copy,
            phase: ChangePhase::Retiring,
            retiring: BTreeMap::new(),
            retired: BTreeSet::new(),
            brought_in: BTreeSet::new(),
            copied: BTreeMap::new(),
            installed: BTreeSet::new(),
            activated: BTreeSet::new(),
            cells: BTreeMap::new(),
            page_bytes_max: PAGE_BYTES_MAX,
            actions: VecDeque::new(),
            sabotage: RootChangeSabotage::default(),
        }
    }

    /// The same change without the steps that `sabotage` leaves out.
    #[must_use]
    pub fn sabotaged(self, sabotage: RootChangeSabotage) -> Self {
        Self { sabotage, ..self }
    }

    /// The same change with pages of at most `bytes_max` bytes or of one cell.
    #[cfg(test)]
    #[must_use]
    pub(in crate::nodes) fn paged(self, bytes_max: usize) -> Self {
        Self { page_bytes_max: bytes_max, ..self }
    }

    /// The next action of the driver.
    pub fn next_action(&mut self) -> Option<RootChangeAction> {
        self.actions.pop_front()
    }

    /// Sends the request of its present step to each member that has not answered it. The driver
    /// also begins with it.
    pub fn ask_again(&mut self) {
        match self.phase {
            ChangePhase::Retiring => {
                self.brought_in.clear();
                for to in self.old.members.clone() {
                    self.retire(to);
                }
            }
            ChangePhase::Installing | ChangePhase::Activating => {
                for to in self.next.members.clone() {
                    if !self.installed.contains(&to) {
                        self.install(to);
                    } else if self.phase == ChangePhase::Activating {
                        self.activate(to);
                    }
                }
            }
            ChangePhase::Done => {}
        }
    }

    /// Asks for the next page of a member, unless it has given all of them.
    fn retire(&mut self, to: StorageId) {
        if !self.retired.contains(&to) {
            let (next, after) = (self.next.clone(), self.retiring.get(&to).cloned());
            let request = AcceptorRequest::Retire { next, after };
            self.actions.push_back(RootChangeAction::Send { to, request });
        }
    }

    /// Gives a member of the old set that lacks its values those of the members that have retired,
    /// so that it can retire as well. A member that still refuses to retire gets no further request
    /// until the driver asks again, and then all pages anew.
    fn bring_in(&mut self, to: StorageId) {
        if self.retired.is_empty() {
            return;
        }
        if self.brought_in.insert(to) {
            self.copy_page(to, self.old.clone());
        } else {
            self.copied.remove(&CopyTo { member: to, root_set: self.old.number });
        }
    }

    fn install(&mut self, to: StorageId) {
        self.copy_page(to, self.next.clone());
    }

    /// Sends the next page to a member that joins `root_set`.
    fn copy_page(&mut self, to: StorageId, root_set: RootSet) {
        let copied = CopyTo { member: to, root_set: root_set.number };
        let after = self.copied.get(&copied).cloned();
        let page = CellPage::of(&self.cells, after, self.page_bytes_max);
        let request = AcceptorRequest::Install { root_set, copy: self.copy, page };
        self.actions.push_back(RootChangeAction::Send { to, request });
    }

    fn activate(&mut self, to: StorageId) {
        if !self.activated.contains(&to) {
            let request = AcceptorRequest::Activate { root_set: self.next.number };
            self.actions.push_back(RootChangeAction::Send { to, request });
        }
    }

    /// Notes the answer of a member.
    pub fn answered(&mut self, member: StorageId, answer: AcceptorAnswer) {
        match (self.phase, answer) {
            (ChangePhase::Retiring, AcceptorAnswer::Retired(page)) => {
                self.note_retired(member, page);
            }
            (ChangePhase::Retiring, AcceptorAnswer::Installed) => self.retire(member),
            (ChangePhase::Retiring, AcceptorAnswer::Copied { root_set, through })
                if root_set == self.old.number =>
            {
                self.note_copied(member, self.old.clone(), through);
            }
            (ChangePhase::Retiring, AcceptorAnswer::WrongSet { known })
                if known.as_ref().is_none_or(|known| known.number <= self.old.number) =>
            {
                self.bring_in(member);
            }
            (ChangePhase::Installing | ChangePhase::Activating, AcceptorAnswer::Installed) => {
                self.note_installed(member);
            }
            (
                ChangePhase::Installing | ChangePhase::Activating,
                AcceptorAnswer::Copied { root_set, through },
            ) if root_set == self.next.number => {
                self.note_copied(member, self.next.clone(), through);
            }
            (ChangePhase::Activating, AcceptorAnswer::Activated) => {
                let is_new = self.activated.insert(member);
                if is_new && self.activated.len() == self.next.majority() {
                    self.actions.push_back(RootChangeAction::Done);
                }
                if self.activated.len() == self.next.members.len() {
                    self.phase = ChangePhase::Done;
                }
            }
            (phase, AcceptorAnswer::WrongSet { known: Some(known) })
                if phase != ChangePhase::Done
                    && known.number >= self.next.number
                    && known != self.next =>
            {
                self.phase = ChangePhase::Done;
                self.actions.push_back(RootChangeAction::Superseded(known));
            }
            // Another process copies to the member, or the member has lost its place. A member may
            // also count as one with the copy because of a late answer about the old set's copy.
            (
                ChangePhase::Installing | ChangePhase::Activating,
                AcceptorAnswer::WrongSet { .. },
            ) => {
                self.copied.remove(&CopyTo { member, root_set: self.next.number });
                self.installed.remove(&member);
            }
            _ => {}
        }
    }

    /// Notes a page of a member that leaves the old set. The answer to an earlier request may come
    /// late, and has no page that is missing.
    fn note_retired(&mut self, member: StorageId, page: CellPage) {
        if self.retired.contains(&member) || self.retiring.get(&member) != page.after.as_ref() {
            return;
        }
        let last = page.last().cloned();
        for (name, cell) in page.cells {
            self.cells.entry(name).or_default().merge(&cell);
        }
        if page.has_more {
            if let Some(last) = last {
                self.retiring.insert(member, last);
                self.retire(member);
            }
            return;
        }
        self.retired.insert(member);
        if self.retired.len() >= self.old.majority() {
            if self.sabotage.no_copy() {
                self.cells.clear();
            }
            self.phase = ChangePhase::Installing;
            self.ask_again();
        }
    }

    /// Notes the pages that a member of `root_set` has taken, and sends the next one. Pages are
    /// taken in order, so a late answer names an earlier end.
    fn note_copied(&mut self, member: StorageId, root_set: RootSet, through: String) {
        let copied = CopyTo { member, root_set: root_set.number };
        if self.copied.get(&copied).is_none_or(|known| *known < through) {
            self.copied.insert(copied, through);
            self.copy_page(member, root_set);
        }
    }

    fn note_installed(&mut self, member: StorageId) {
        let is_new = self.installed.insert(member);
        if self.phase == ChangePhase::Installing && self.installed.len() >= self.next.majority() {
            self.phase = ChangePhase::Activating;
            for to in self.installed.clone() {
                self.activate(to);
            }
        } else if is_new && self.phase == ChangePhase::Activating {
            self.activate(member);
        }
    }
}
