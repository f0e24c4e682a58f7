//! The storage part of the manager: the members of a cluster of storage nodes.
//!
//! [`StorageRpc`] owns the state machine, which is [`MemberTable`] of the store's crate. It answers
//! the messages of storage nodes, clients and operators with it. The manager's listeners receive
//! them together with the messages of the pool, from which they differ in the first byte.
//!
//! | part | file |
//! | --- | --- |
//! | the handler and the timer | `mod.rs` |
//! | the replacement of the root set | `root.rs` |
//! | the task that repairs | `repair.rs` |
//!
//! Invariants:
//! 1. A manager that stands by, or that another manager has replaced, decides nothing and only
//!    takes beats ([`ManagerPart`]).
//! 2. The part keeps nothing on disk. Beats can rebuild all of its state.
//! 3. At most one replacement of the root set runs.
//!
//! Thread-safety: any thread may call any method. One lock guards the table.
//! Failure: a malformed request is refused and logged. A replacement that failed is tried again.
//! Cost: one short lock per request. An idle cluster costs two beats per node and second.

mod repair;
mod root;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use archipelago_base::clock::Clock;
use archipelago_base::random::entropy_seed;
use archipelago_fabric::{Endpoints, Reply, Request};
use archipelago_store::nodes::members::{ManagerPart, MemberTable, MemberTerms};
use archipelago_store::nodes::repairs::RepairManager;
use archipelago_store::nodes::wire::{
    RefusalWhy, Refused, StorageClusterStatus, StoreMessage, envelope,
};
use parking_lot::Mutex;

use crate::core::ManagerCore;
use crate::rpc::ManagerRpc;

/// Answers the messages of the store with the list of members.
#[derive(Debug)]
pub(crate) struct StorageRpc {
    table: Mutex<MemberTable>,
    clock: Arc<dyn Clock>,
    /// Interface of the pool's manager, which knows whether this manager acts.
    pool: Arc<ManagerRpc>,
    endpoints: Arc<Endpoints>,
    /// Endpoints of this manager, at which its own client asks for the members.
    ways: OnceLock<Vec<String>>,
    /// Whether a replacement of the root set runs.
    is_replacing: AtomicBool,
    /// Time, in nanoseconds, at which the root set is checked next.
    look_ns: AtomicU64,
    /// Time, in nanoseconds, at which the next search for members without a copy begins.
    copies_ns: AtomicU64,
    terms: MemberTerms,
    /// Repairs, once this manager listens.
    repairs: OnceLock<Arc<RepairManager>>,
}

impl StorageRpc {
    /// A manager without members.
    pub(crate) fn new(
        terms: MemberTerms,
        pool: &Arc<ManagerRpc>,
        endpoints: &Arc<Endpoints>,
        clock: &Arc<dyn Clock>,
    ) -> Arc<Self> {
        let table = MemberTable::new(terms, entropy_seed(), clock.now_ns());
        Arc::new(Self {
            table: Mutex::new(table),
            clock: Arc::clone(clock),
            pool: Arc::clone(pool),
            endpoints: Arc::clone(endpoints),
            ways: OnceLock::new(),
            is_replacing: AtomicBool::new(false),
            look_ns: AtomicU64::new(0),
            copies_ns: AtomicU64::new(0),
            terms,
            repairs: OnceLock::new(),
        })
    }

    /// The present part of this manager.
    fn part(&self) -> ManagerPart {
        let is_deposed = self.pool.look(ManagerCore::is_deposed).unwrap_or(false);
        match self.pool.is_acting() && !is_deposed {
            true => ManagerPart::Acts,
            false => ManagerPart::StandsBy,
        }
    }

    /// Answers a request.
    pub(crate) fn handle(&self, request: &Request<'_>, reply: Reply) {
        let answer = match envelope::open(request.body) {
            Ok((message, [])) => {
                let part = self.part();
                let mut table = self.table.lock();
                if message == (StoreMessage::StorageStatus {}) {
                    self.note_repairs(&mut table, part);
                }
                table.handle(self.clock.now_ns(), part, &message)
            }
            Ok((message, _)) => malformed(request, &format!("{} with a payload", message.name())),
            Err(error) => malformed(request, &error.to_string()),
        };
        reply.send(envelope::seal(&answer, &[]));
    }

    /// The status of all storage nodes; `None` while this manager does not act.
    pub(crate) fn status(&self) -> Option<StorageClusterStatus> {
        let part = self.part();
        (part == ManagerPart::Acts).then(|| {
            let mut table = self.table.lock();
            self.note_repairs(&mut table, part);
            table.status(self.clock.now_ns())
        })
    }

    /// Sets the endpoints of the manager, which listens now.
    pub(crate) fn reached_at(self: &Arc<Self>, ways: Vec<String>) {
        // The call happens once.
        let _known = self.ways.set(ways.clone());
        self.start_repairs(ways);
    }

    /// Handles the passing of time. The driver calls it in short intervals.
    pub(crate) fn tick(self: &Arc<Self>) {
        let part = self.part();
        self.table.lock().on_timer(self.clock.now_ns(), part);
        self.watch_root_set();
    }
}

/// The refusal of a request that cannot be read.
fn malformed(request: &Request<'_>, what: &str) -> StoreMessage {
    tracing::warn!(client = %request.client, what, "a request was refused");
    Refused::new(RefusalWhy::Malformed, what).into()
}

#[cfg(test)]
mod tests;
