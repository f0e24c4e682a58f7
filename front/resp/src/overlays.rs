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
use archipelago_base::budget::MemoryClass;
use parking_lot::Mutex;

use crate::databases::{DATABASES, JointWrite, Order};
use crate::overlay::Overlay;
use crate::shared::Shared;

/// See the module.
pub(crate) struct Overlays {
    shared: Arc<Shared>,
    by_number: [OnceLock<Overlay>; DATABASES],
    order: Mutex<Order>,
}

impl Overlays {
    /// No changes over the databases of `shared`.
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, by_number: Default::default(), order: Mutex::new(Order::IDENTITY) }
    }

    /// What database `index` is inside the transaction.
    pub(crate) fn database(&self, index: usize) -> &Overlay {
        let number = self.order.lock().at(index);
        self.by_number[number].get_or_init(|| {
            let options = &self.shared.options;
            Overlay::new(
                Arc::clone(&self.shared.databases[number]),
                Arc::clone(&options.clock),
                options.limits.request_bytes_max as u64,
                options.budget.hold(MemoryClass::Request, 0),
            )
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
        bytes > self.shared.options.limits.request_bytes_max as u64
    }

    /// Applies everything to the databases, all or nothing, for the client `writer`, and tells those
    /// who watch or track keys.
    pub(crate) fn commit(&self, writer: u64) -> Result<()> {
        let used = self.by_number.iter().enumerate();
        let used = used.filter_map(|(number, overlay)| Some((number, overlay.get()?.changes())));
        let used: Vec<_> = used.collect();
        let writes = used.iter().map(|(number, changes)| (*number, changes.ops()));
        let writes = writes.filter(|(_, ops)| !ops.is_empty()).collect();
        self.shared.write_joint(&JointWrite { writes, order: *self.order.lock() }, writer)
    }
}
