//! The replacement of the root set: the driver of
//! [`RootChange`](super::super::register::caspaxos::root_change::RootChange).
//!
//! Any process may run it, and several may at the same time. The first one that makes its set the
//! value of [`ROOT_SET_NAME`] decides the next set; the others complete that one.
//!
//! Invariants:
//! 1. The steps begin only after the register of the old set names the next one, or a member of the
//!    old set does.
//! 2. A replacement that returned has activated a majority of the new set.
//!
//! Thread-safety: any number of tasks.
//! Failure: `Busy` if no majority of the old set, or none of the new one, answers in time. The
//! caller runs the replacement again, and it continues where it stopped.
//! Cost: one change of the register, and three messages per member; two of them are repeated for
//! each page of the values.

use archipelago_base::{Error, Result};

use super::super::StorageId;
use super::super::register::caspaxos::acceptor::{AcceptorAnswer, AcceptorRequest};
use super::super::register::caspaxos::proposer::{Operation, ProposalResult};
use super::super::register::caspaxos::root_change::RootChangeAction;
use super::super::register::caspaxos::{ROOT_SET_NAME, RootSet};
use super::super::wire::stored::{decode_enclosed, encode_enclosed};
use super::calls::{CallsInFlight, MemberAnswer};
use super::operation::Following;
use super::{NodeRegister, unexpected};
use crate::register::Versioned;

/// Successor of a root set, as the register has it.
enum Successor {
    /// The next set, which the steps of a replacement may install.
    Next(RootSet),
    /// The old set was replaced before, and its successor was replaced as well.
    Newer(RootSet),
}

impl Successor {
    fn of(old: &RootSet, known: RootSet) -> Self {
        if known.number == old.number + 1 { Self::Next(known) } else { Self::Newer(known) }
    }
}

/// End of the steps of a replacement.
enum ChangeEnd {
    /// The next set answers.
    Done,
    /// The old set has been left for another set.
    Superseded(RootSet),
}

impl NodeRegister {
    /// Replaces the root set `old` by a set with `members`, and returns the set that follows `old`.
    /// If another process replaced `old` first, the returned set has other members. A member of the
    /// new set that does not answer counts as down; [`Self::members_without_copy`] finds it when it
    /// returns.
    ///
    /// Errors: `Busy` if no majority of the old set, or none of the new one, answers in time.
    /// `InvalidArgument` for a set without members.
    pub async fn replace_root_set(
        &self,
        old: &RootSet,
        members: Vec<StorageId>,
    ) -> Result<RootSet> {
        if members.is_empty() {
            return Err(Error::invalid("a root set without members: name at least one node"));
        }
        let wanted = RootSet { number: old.number + 1, members };
        let mut next = match self.successor(old, wanted).await? {
            Successor::Next(next) => next,
            Successor::Newer(newer) => return Ok(self.learn(&newer)),
        };
        loop {
            match self.complete(old, &next).await? {
                ChangeEnd::Done => return Ok(self.learn(&next)),
                ChangeEnd::Superseded(known) if known.number == next.number => next = known,
                ChangeEnd::Superseded(newer) => return Ok(self.learn(&newer)),
            }
        }
    }

    /// Members of `root_set` that answer and do not count in it. They were down when the other
    /// members got the values of the previous set. A replacement by a set with the same members
    /// brings them in. A member that has the values and was not activated, because the process that
    /// copied them ended, is activated here.
    pub async fn members_without_copy(&self, root_set: &RootSet) -> Vec<StorageId> {
        let mut calls = CallsInFlight::new();
        for to in &root_set.members {
            let prefix = ROOT_SET_NAME.to_owned();
            let request = AcceptorRequest::Names { root_set: root_set.number, prefix };
            calls.push(*to, (), self.members.ask(*to, request));
        }
        let mut without = Vec::new();
        while let Some(MemberAnswer { from, answer, .. }) = calls.next().await {
            if let Some(AcceptorAnswer::WrongSet { known }) = answer {
                // A member of a later set has left this one.
                let is_later = |known: RootSet| known.number > root_set.number;
                if !known.is_some_and(is_later) {
                    without.push(from);
                }
            }
        }
        let mut calls = CallsInFlight::new();
        for to in &without {
            let request = AcceptorRequest::Activate { root_set: root_set.number };
            calls.push(*to, (), self.members.ask(*to, request));
        }
        while let Some(MemberAnswer { from, answer, .. }) = calls.next().await {
            if matches!(answer, Some(AcceptorAnswer::Activated)) {
                without.retain(|member| *member != from);
            }
        }
        without
    }

    /// Makes `wanted` the successor of `old`, unless it has one.
    async fn successor(&self, old: &RootSet, wanted: RootSet) -> Result<Successor> {
        let mut operation = Operation::Read;
        let give_up_ns = self.give_up_ns();
        loop {
            let alone = Following::OnlyThisSet;
            let result = self.run_in(old.clone(), alone, ROOT_SET_NAME, operation).await;
            let found = match result {
                Ok(ProposalResult::Swapped(_)) => return Ok(Successor::Next(wanted)),
                Ok(ProposalResult::Value(found) | ProposalResult::Lost(found)) => found,
                Ok(ProposalResult::Replaced(Some(known))) => {
                    return Ok(Successor::of(old, known));
                }
                Ok(other) => return Err(unexpected(ROOT_SET_NAME, &other)),
                // A change whose outcome is unknown shows in the next read.
                Err(error) if self.runtime.now_ns() >= give_up_ns => return Err(error),
                Err(_) => {
                    operation = Operation::Read;
                    continue;
                }
            };
            let version = found.as_ref().map_or(0, |found| found.version);
            let decode =
                |found: Versioned| decode_enclosed::<RootSet>(&ROOT_SET_NAME, &found.value);
            let named = found.map(decode).transpose()?;
            if let Some(named) = named.filter(|named| named.number > old.number) {
                return Ok(Successor::of(old, named));
            }
            let value = Some(encode_enclosed(&wanted));
            operation = Operation::Swap { expected: version, value };
        }
    }

    /// Runs the steps from `old` to `next`. After a majority of the new set answers, the other
    /// members get some more time, because a member that stays inactive counts as lost.
    async fn complete(&self, old: &RootSet, next: &RootSet) -> Result<ChangeEnd> {
        let give_up_ns = self.give_up_ns();
        let mut change = self.root_change(old, next);
        let (mut is_done, mut round) = (false, 0);
        loop {
            change.ask_again();
            let mut calls = CallsInFlight::new();
            let mut asked = 0;
            loop {
                while let Some(action) = change.next_action() {
                    match action {
                        RootChangeAction::Send { to, request } => {
                            asked += 1;
                            calls.push(to, (), self.members.ask(to, request));
                        }
                        RootChangeAction::Done => is_done = true,
                        RootChangeAction::Superseded(known) => {
                            return Ok(ChangeEnd::Superseded(known));
                        }
                    }
                }
                match calls.next().await {
                    Some(MemberAnswer { from, answer: Some(answer), .. }) => {
                        change.answered(from, answer);
                    }
                    Some(MemberAnswer { answer: None, .. }) => {}
                    None => break,
                }
            }
            let is_late = self.runtime.now_ns() >= give_up_ns;
            if is_done && (asked == 0 || is_late) {
                return Ok(ChangeEnd::Done);
            }
            if is_late {
                return Err(Error::busy(format!(
                    "the root set {} was not replaced by set {} in time: a majority of the old \
                     members and a majority of the new ones must answer; start them",
                    old.number, next.number
                )));
            }
            self.runtime.sleep(self.pause(round)).await;
            round += 1;
        }
    }
}
