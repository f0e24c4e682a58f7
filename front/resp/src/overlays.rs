//! Changes of a transaction to all databases, while EXEC runs its commands.
//!
//! The session that runs the commands owns them. The first command that uses a database creates an
//! [`Overlay`] over it. At the end one atomic write applies the changes of all overlays, and the
//! order of the databases if SWAPDB was among the commands.
//!
//! Invariants:
//! 1. Overlay `number` lies over database `number` of the server. The order says which overlay a
//!    database shows. SWAPDB changes this order, and the final write changes that of the store.
//! 2. EXEC holds every stripe if the order changes ([`crate::locks`]).
//!
//! Cost: one overlay for each used database, and their changes.

use std::sync::{Arc, OnceLock};

use archipelago_base::Result;
use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::clock::Clock;
use parking_lot::Mutex;

use crate::databases::{DATABASES, Order};
use crate::options::ServerOptions;
use crate::overlay::Overlay;
use crate::store::{JointWrite, SpaceUse, Store};

/// Overlays of one transaction, and the order that it gives the databases.
pub(crate) struct Overlays {
    databases: Arc<[Arc<dyn Store>]>,
    clock: Arc<dyn Clock>,
    budget: Arc<ByteBudget>,
    bytes_max: u64,
    by_number: [OnceLock<Overlay>; DATABASES],
    order: Mutex<Order>,
}

impl Overlays {
    /// Overlays without changes over `databases`.
    pub(crate) fn new(databases: Arc<[Arc<dyn Store>]>, options: &ServerOptions) -> Self {
        Self {
            databases,
            clock: Arc::clone(&options.clock),
            budget: Arc::clone(&options.budget),
            bytes_max: options.limits.request_bytes_max as u64,
            by_number: Default::default(),
            order: Mutex::new(Order::IDENTITY),
        }
    }

    /// Database `index` as the transaction sees it.
    pub(crate) fn database(&self, index: usize) -> &Overlay {
        let number = self.order.lock().at(index);
        self.by_number[number].get_or_init(|| {
            let charge = self.budget.hold(MemoryClass::Request, 0);
            let (below, clock) = (Arc::clone(&self.databases[number]), Arc::clone(&self.clock));
            Overlay::new(below, clock, self.bytes_max, charge)
        })
    }

    /// Swaps two databases.
    pub(crate) fn swap(&self, a: usize, b: usize) {
        let mut order = self.order.lock();
        *order = order.swapped(a, b);
    }

    /// Bytes that the transaction has written.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_number.iter().filter_map(OnceLock::get).map(Overlay::bytes).sum()
    }

    /// Whether the transaction has written more than the largest request.
    pub(crate) fn is_too_large(&self) -> bool {
        self.bytes() > self.bytes_max
    }

    /// Calls `write` with all changes of the databases, which it applies atomically.
    pub(crate) fn commit(&self, write: impl FnOnce(&JointWrite<'_>) -> Result<()>) -> Result<()> {
        let used = self.by_number.iter().enumerate();
        let used = used.filter_map(|(number, overlay)| Some((number, overlay.get()?.changes())));
        let used: Vec<_> = used.collect();
        let writes = used.iter().map(|(number, changes)| (*number, changes.ops()));
        let writes = writes.filter(|(_, ops)| !ops.is_empty()).collect();
        let space_use = match used.iter().all(|(_, one)| one.space_use() == SpaceUse::Frees) {
            true => SpaceUse::Frees,
            false => SpaceUse::Takes,
        };
        write(&JointWrite { writes, order: *self.order.lock(), space_use })
    }
}
