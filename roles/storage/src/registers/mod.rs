//! The node as a member of a root set: an acceptor of CASPaxos whose state is durable.
//!
//! [`Registers`] belongs to the node. The protocol is
//! [`Acceptor`](archipelago_store::nodes::register::caspaxos::acceptor::Acceptor); this module
//! keeps its state in the metadata, one entry per name with a value and one for the rest.
//!
//! Invariants:
//! 1. A change is durable before an answer reveals it.
//! 2. The node becomes a member of the first root set only when its cluster is founded, and belongs
//!    to one cluster for ever.
//! 3. The membership is durable before the identity of the node names the cluster. After a crash in
//!    between, the node begins in the cluster again.
//! 4. The state in memory is the one that was applied to the metadata. If the metadata refuse a
//!    change, the state in memory stays as it was. So a repeated request makes the change anew, and
//!    never confirms a change that is only in memory.
//!
//! Thread-safety: one lock orders changes. Syncs run without it and are shared.
//! Failure: a change that cannot be made durable is refused. After a failed sync an answer that
//! reveals the change waits for a sync that succeeds.
//! Cost: a promise or an acceptance is one write and one sync of the metadata, and a copy of one
//! register. A step of a change of the root set copies all of them in memory, and writes those that
//! it changes.

use std::collections::BTreeMap;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::ClusterId;
use archipelago_store::nodes::register::caspaxos::RootSet;
use archipelago_store::nodes::register::caspaxos::acceptor::{
    Acceptor, AcceptorAnswer, AcceptorHead, AcceptorRequest, AcceptorState, Membership,
    RegisterCell,
};
use archipelago_store::nodes::wire::stored::{decode_checked, encode_checked};
use archipelago_store::nodes::wire::{RefusalWhy, StoreMessage};
use parking_lot::Mutex;

use crate::answer::{Outcome, Refusal};
use crate::devices::ClusterNotice;
use crate::identity::KnownCluster;
use crate::meta::{MetaBatch, MetaSpace, Scan};
use crate::parts::NodeParts;

/// Key of the state without the names.
const HEAD_KEY: &[u8] = &[0];
/// First byte of the key of a name, which follows it.
const NAME_TAG: u8 = 1;

/// Part of the state that a request may change.
#[derive(Clone, Debug)]
enum Change {
    /// One name changes, or the promise of all names without a value.
    Name(String),
    /// The rest of the state changes, and any number of names.
    All,
}

impl Change {
    /// The part of the state that `request` may change.
    fn of(request: &AcceptorRequest) -> Self {
        match request {
            AcceptorRequest::Prepare { name, .. } | AcceptorRequest::Accept { name, .. } => {
                Self::Name(name.clone())
            }
            AcceptorRequest::Install { .. }
            | AcceptorRequest::Retire { .. }
            | AcceptorRequest::Activate { .. }
            | AcceptorRequest::Names { .. } => Self::All,
        }
    }

    /// The part of the state that a request with this change reads and writes.
    fn part_of(&self, state: &AcceptorState) -> AcceptorState {
        match self {
            Self::Name(name) => {
                let cell = state.cells.get(name).map(|cell| (name.clone(), cell.clone()));
                AcceptorState::new(state.head(), BTreeMap::from_iter(cell))
            }
            Self::All => state.clone(),
        }
    }

    /// Puts the changed part back.
    fn put_back(&self, part: AcceptorState, state: &mut AcceptorState) {
        match self {
            Self::Name(_) => {
                state.promised_absent = part.promised_absent;
                state.cells.extend(part.cells);
            }
            Self::All => *state = part,
        }
    }
}

/// The node as a member of a root set.
#[derive(Debug)]
pub(crate) struct Registers {
    parts: NodeParts,
    /// The state that was applied to the metadata.
    state: Mutex<AcceptorState>,
}

impl Registers {
    /// Reads the state of the node as a member.
    pub(crate) fn open(parts: &NodeParts) -> Result<Self> {
        let mut head = AcceptorHead::default();
        let mut cells: BTreeMap<String, RegisterCell> = BTreeMap::new();
        parts.meta.scan(MetaSpace::Registers, &[], &mut |key, value| {
            match key.split_first() {
                Some((0, [])) => head = decode_checked(&"the metadata", value)?,
                Some((&NAME_TAG, name)) => {
                    let name = String::from_utf8(name.to_vec()).map_err(|_| {
                        let text = "the metadata: the name of a register is no text";
                        Error::new(ErrorKind::Corrupt, text)
                    })?;
                    let cell = decode_checked(&format_args!("register {name}"), value)?;
                    cells.insert(name, cell);
                }
                _ => {
                    let text = format!("the metadata: {key:02x?} is no key of a register");
                    return Err(Error::new(ErrorKind::Corrupt, text));
                }
            }
            Ok(Scan::Continue)
        })?;
        let state = Mutex::new(AcceptorState::new(head, cells));
        Ok(Self { parts: parts.clone(), state })
    }

    /// Answers a proposer, or a step of a change of the root set.
    pub(crate) fn handle(&self, request: AcceptorRequest) -> Outcome {
        let mut state = self.state.lock();
        let change = Change::of(&request);
        let mut acceptor = Acceptor::new(change.part_of(&state));
        let handled = acceptor.handle(request);
        if handled.is_changed {
            // The change is applied under the lock, so that changes of one name reach the metadata
            // in their order.
            self.parts.meta.apply(&changed(&state, acceptor.state(), &change))?;
            change.put_back(acceptor.state().clone(), &mut state);
        }
        let membership = state.membership.clone();
        drop(state);
        // An answer to a repeated step must not overtake the sync of the first one.
        let reveals_a_step = matches!(
            handled.answer,
            AcceptorAnswer::Retired(_)
                | AcceptorAnswer::Copied { .. }
                | AcceptorAnswer::Installed
                | AcceptorAnswer::Activated
        );
        if handled.is_changed || reveals_a_step {
            self.parts.counters.note_sync();
            self.parts.meta.sync()?;
        }
        if let (AcceptorAnswer::Activated, Membership::Active(root_set)) =
            (&handled.answer, membership)
        {
            self.learn(root_set)?;
        }
        Ok(StoreMessage::AcceptorIs { answer: handled.answer }.into())
    }

    /// Begins in a new cluster: as a member of its first root set, or as a node that knows it.
    pub(crate) fn found(&self, cluster: ClusterId, root_set: RootSet) -> Outcome {
        if let Some(known) = self.parts.devices.cluster() {
            let is_same = known.id == cluster && known.root_set == root_set;
            return if is_same {
                Ok(StoreMessage::Done {}.into())
            } else {
                Err(other_cluster(&known))
            };
        }
        if root_set.members.contains(&self.parts.storage) {
            self.become_member(&root_set)?;
        }
        let told = KnownCluster { id: cluster, root_set };
        match self.parts.devices.learn_cluster(told.clone())? {
            ClusterNotice::Known => Ok(StoreMessage::Done {}.into()),
            ClusterNotice::Other => Err(other_cluster(&told)),
        }
    }

    fn become_member(&self, root_set: &RootSet) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        match &state.membership {
            Membership::None => {
                let founding = Acceptor::founding(root_set.clone());
                self.parts.meta.write(&changed(&state, founding.state(), &Change::All))?;
                *state = founding.state().clone();
                Ok(())
            }
            // The node ended, or a sync failed, before its identity named the cluster.
            Membership::Active(known) if known == root_set => Ok(self.parts.meta.sync()?),
            known => {
                let text = format!("this node is a member of another root set: {known:?}");
                Err(Refusal::new(RefusalWhy::WrongCluster, text))
            }
        }
    }

    /// Keeps the set that the node has become active in.
    fn learn(&self, root_set: RootSet) -> Result<(), Refusal> {
        let Some(known) = self.parts.devices.cluster() else { return Ok(()) };
        self.parts.devices.learn_cluster(KnownCluster { id: known.id, root_set })?;
        Ok(())
    }
}

fn other_cluster(known: &KnownCluster) -> Refusal {
    let KnownCluster { id, root_set } = known;
    let text = format!("this node belongs to cluster {id} with root set {}", root_set.number);
    Refusal::new(RefusalWhy::WrongCluster, text)
}

fn name_key(name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 1);
    key.push(NAME_TAG);
    key.extend_from_slice(name.as_bytes());
    key
}

/// The entries of the metadata that a change from `before` to `state` replaces.
fn changed(before: &AcceptorState, state: &AcceptorState, change: &Change) -> MetaBatch {
    let mut batch = MetaBatch::default();
    for (name, cell) in &state.cells {
        if before.cells.get(name) != Some(cell) {
            batch.put(MetaSpace::Registers, &name_key(name), &encode_checked(cell));
        }
    }
    if let Change::All = change {
        let gone = before.cells.keys().filter(|name| !state.cells.contains_key(*name));
        gone.for_each(|name| batch.remove(MetaSpace::Registers, &name_key(name)));
    }
    let head = state.head();
    if before.head() != head {
        batch.put(MetaSpace::Registers, HEAD_KEY, &encode_checked(&head));
    }
    batch
}

#[cfg(test)]
mod tests;
