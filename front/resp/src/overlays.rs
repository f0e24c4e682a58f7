//! What a transaction changes in each of the databases while EXEC runs its commands.
//!
//! Owned by the session that runs the commands. An [`Overlay`] over a database is made when a
//! command first uses it. At the end the changes of all of them, and the order of the databases if
//! SWAPDB was among the commands, are one atomic write.
//!
//! Invariants:
//! 1. Overlay `number` lies over the server's database `number`. The order says which overlay a
//!    database shows; SWAPDB changes the order here, and that of the store when all is written.
//! 2. EXEC holds every stripe if the order changes ([`crate::locks`]).
//!
//! Cost: an overlay for each database that is used, besides what they write.

use std::sync::{Arc, OnceLock};

use archipelago_base::Result;
use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::clock::Clock;
use parking_lot::Mutex;

use crate::databases::{DATABASES, Order};
use crate::options::ServerOptions;
use crate::overlay::Overlay;
use crate::store::{JointWrite, Store};

/// The overlays of one transaction, and the order that it gives the databases.
pub(crate) struct Overlays {
    databases: Arc<[Arc<dyn Store>]>,
    clock: Arc<dyn Clock>,
    budget: Arc<ByteBudget>,
    bytes_max: u64,
    by_number: [OnceLock<Overlay>; DATABASES],
    order: Mutex<Order>,
}

impl Overlays {
    /// No changes over `databases`.
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

    /// What database `index` is inside the transaction.
    pub(crate) fn database(&self, index: usize) -> &Overlay {
        let number = self.order.lock().at(index);
        self.by_number[number].get_or_init(|| {
            let charge = self.budget.hold(MemoryClass::Request, 0);
            let (below, clock) = (Arc::clone(&self.databases[number]), Arc::clone(&self.clock));
            Overlay::new(below, clock, self.bytes_max, charge)
        })
    }

    /// Lets two databases change places.
    pub(crate) fn swap(&self, a: usize, b: usize) {
        let mut order = self.order.lock();
        *order = order.swapped(a, b);
    }

    /// Whether the transaction has written more than it may.
    pub(crate) fn is_too_large(&self) -> bool {
        let bytes: u64 = self.by_number.iter().filter_map(OnceLock::get).map(Overlay::bytes).sum();
        bytes > self.bytes_max
    }

    /// Has `write` apply everything to the databases, all or nothing.
    pub(crate) fn commit(&self, write: impl FnOnce(&JointWrite<'_>) -> Result<()>) -> Result<()> {
        let used = self.by_number.iter().enumerate();
        let used = used.filter_map(|(number, overlay)| Some((number, overlay.get()?.changes())));
        let used: Vec<_> = used.collect();
        let writes = used.iter().map(|(number, changes)| (*number, changes.ops()));
        let writes = writes.filter(|(_, ops)| !ops.is_empty()).collect();
        write(&JointWrite { writes, order: *self.order.lock() })
    }
}
