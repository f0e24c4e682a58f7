//! The register on storage nodes: the driver that runs the operations of [`register`] over a
//! network.
//!
//! A [`NodeRegister`] belongs to a client. It proposes changes to the members of the root set,
//! follows the set to its successors, and repeats rounds that were outbid or lost their majority.
//!
//! | module | purpose |
//! | --- | --- |
//! | `calls` | requests in flight to members |
//! | `members` | the members behind a client of storage nodes |
//! | `operation` | one operation, from its first round to its outcome |
//! | `root` | the replacement of the root set |
//!
//! Invariants:
//! 1. Every change has an identity of its own, and every round a ballot of its own. The proposer is
//!    a random number, and a name has one running operation per driver.
//! 2. An operation continues over a replacement of the root set, and is applied at most once.
//! 3. An error says that the outcome is unknown if the change may have been applied. `Lost` means
//!    that it was not applied and never will be.
//!
//! Thread-safety: any thread may call any method. Operations on one name wait for each other.
//! Failure: an operation ends with `Busy` if no majority answers in time. A member that does not
//! answer, or is not a member, does not delay an operation while a majority answers.
//! Cost: a read takes one round trip, a change two. A list reads every name.
//!
//! [`register`]: super::register

mod calls;
mod members;
mod operation;
mod root;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::{Boxed, Gate, Runtime, wait_for};
use archipelago_base::{Error, Result};
use parking_lot::Mutex;

use super::StorageId;
use super::client::NodeClient;
use super::register::caspaxos::acceptor::{AcceptorAnswer, AcceptorRequest};
use super::register::caspaxos::proposer::{Operation, ProposalResult};
use super::register::caspaxos::root_change::{RootChange, RootChangeSabotage};
use super::register::caspaxos::{ChangeId, ROOT_SET_NAME, RootSet};
use crate::register::{Register, Swap, Versioned};

/// Time after which an operation without a majority fails.
const GIVE_UP: Duration = Duration::from_secs(10);

/// The members of the root set, as a driver reaches them.
pub(crate) trait RootMembers: Send + Sync + fmt::Debug + 'static {
    /// The newest root set that the managers name; without members if the cluster has none yet.
    fn root_set(&self) -> Boxed<'_, Result<RootSet>>;

    /// Sends a request to a member. `None` if no answer came; the request may have arrived.
    fn ask(&self, to: StorageId, request: AcceptorRequest) -> Boxed<'_, Option<AcceptorAnswer>>;
}

/// The register of a cluster, for one client.
#[derive(Debug)]
pub struct NodeRegister {
    members: Arc<dyn RootMembers>,
    runtime: Arc<dyn Runtime>,
    /// Identity of this driver in ballots and changes.
    proposer: u64,
    /// Number of the next change.
    sequence: AtomicU64,
    /// Largest counter of a ballot that the driver has used or seen, for all names.
    counter: AtomicU64,
    /// Newest root set that the driver knows.
    known: Mutex<RootSet>,
    /// Names with a running operation.
    running: Mutex<BTreeMap<String, Arc<Gate>>>,
    rng: Mutex<Rng>,
    give_up: Duration,
    /// Steps that replacements of the root set leave out.
    root_change: RootChangeSabotage,
}

impl NodeRegister {
    /// The register of the cluster of `client`. Sends nothing yet.
    #[must_use]
    pub fn new(client: &Arc<NodeClient>) -> Self {
        let members = Arc::new(members::ClientMembers(Arc::clone(client)));
        Self::over(members, Arc::clone(client.runtime()))
    }

    pub(crate) fn over(members: Arc<dyn RootMembers>, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            members,
            proposer: runtime.seed(),
            sequence: AtomicU64::new(0),
            counter: AtomicU64::new(0),
            known: Mutex::new(RootSet::default()),
            running: Mutex::new(BTreeMap::new()),
            rng: Mutex::new(Rng::with_seed(runtime.seed())),
            give_up: GIVE_UP,
            root_change: RootChangeSabotage::default(),
            runtime,
        }
    }

    /// The same register, whose replacements of the root set leave out the steps of `sabotage`.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotaged(self, sabotage: RootChangeSabotage) -> Self {
        Self { root_change: sabotage, ..self }
    }

    /// Time, in nanoseconds of the runtime, at which an operation that begins now gives up.
    fn give_up_ns(&self) -> u64 {
        self.runtime.now_ns().saturating_add(self.give_up.as_nanos() as u64)
    }

    fn next_change(&self) -> ChangeId {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        ChangeId { proposer: self.proposer, sequence }
    }

    /// Notes a root set. Returns the newest one that the driver knows.
    fn learn(&self, root_set: &RootSet) -> RootSet {
        let mut known = self.known.lock();
        if root_set.number > known.number {
            known.clone_from(root_set);
        }
        known.clone()
    }

    /// The steps from a root set to the next one.
    fn root_change(&self, old: &RootSet, next: &RootSet) -> RootChange {
        let change = RootChange::new(old.clone(), next.clone(), self.next_change());
        change.sabotaged(self.root_change)
    }

    /// The gate of a name, which lets one operation pass at a time.
    fn gate(&self, name: &str) -> Arc<Gate> {
        Arc::clone(self.running.lock().entry(name.to_owned()).or_default())
    }

    /// Forgets gates that no operation uses.
    fn forget_gates(&self) {
        self.running.lock().retain(|_, gate| Arc::strong_count(gate) > 1);
    }

    /// A random pause before round number `round`, so that two proposers do not outbid each other
    /// for long.
    fn pause(&self, round: u32) -> Duration {
        let longest_us = 2_000_u64 << round.min(7);
        Duration::from_micros(self.rng.lock().u64(longest_us / 4..longest_us))
    }

    /// Reads the value of `name`.
    pub(crate) async fn read_value(&self, name: &str) -> Result<Option<Versioned>> {
        match self.run(name, Operation::Read).await? {
            ProposalResult::Value(value) => Ok(value),
            other => Err(unexpected(name, &other)),
        }
    }

    /// Replaces the value of `name` if its version is `expected`; `None` removes it.
    pub(crate) async fn swap(
        &self,
        name: &str,
        expected: u64,
        value: Option<&[u8]>,
    ) -> Result<Swap> {
        if value.is_none() && expected == 0 {
            // A removal of no value is no change, and the value is not the expected one.
            return Ok(Swap::Lost(self.read_value(name).await?));
        }
        let value = value.map(<[u8]>::to_vec);
        match self.run(name, Operation::Swap { expected, value }).await? {
            ProposalResult::Swapped(version) => Ok(Swap::Done(version)),
            ProposalResult::Lost(value) => Ok(Swap::Lost(value)),
            other => Err(unexpected(name, &other)),
        }
    }

    /// All names that begin with `prefix` and have a value, sorted.
    pub(crate) async fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for name in self.ask_for_names(prefix).await? {
            // The register of the root set itself is not a value of a user.
            if name != ROOT_SET_NAME && self.read_value(&name).await?.is_some() {
                names.push(name);
            }
        }
        Ok(names)
    }
}

fn unexpected(name: &str, result: &ProposalResult) -> Error {
    Error::internal(format!("the register {name:?}: a proposal ended with {result:?}"))
}

impl Register for NodeRegister {
    fn read(&self, name: &str) -> Result<Option<Versioned>> {
        wait_for(&*self.runtime, self.read_value(name))
    }

    fn compare_and_swap(&self, name: &str, expected: u64, value: &[u8]) -> Result<Swap> {
        wait_for(&*self.runtime, self.swap(name, expected, Some(value)))
    }

    fn remove(&self, name: &str, expected: u64) -> Result<Swap> {
        wait_for(&*self.runtime, self.swap(name, expected, None))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        wait_for(&*self.runtime, self.names(prefix))
    }
}

#[cfg(test)]
mod tests;
