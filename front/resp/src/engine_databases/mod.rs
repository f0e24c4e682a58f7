//! Column family of an open database that each Redis database shows.
//!
//! The sixteen stores of one server share one [`EngineDatabases`] ([`crate::engine_store`]). A
//! family holds one keyspace: keyspace 0 is the default family, and keyspace `n` is
//! `archipelago.database.n`. The row `order` of the family `archipelago.databases.1` holds the
//! [`Order`] of the databases. Without the row each database shows the keyspace of its own number.
//! `docs/formats/databases.md` has the bytes, and
//! `docs/decisions/0056-redis-databases-as-column-families.md` the alternatives.
//!
//! Invariants:
//! 1. The first write that puts a record into a family creates the family. Reads and deletes create
//!    none.
//! 2. The order in memory equals the row, as the database itself reads it. Only
//!    [`EngineDatabases::change_order`] changes them. Its caller holds every stripe of
//!    [`crate::locks`], so no writer runs meanwhile, and writers need not check the epoch.
//! 3. `epoch` is odd while the order changes. A read that meets an odd epoch, or a different epoch
//!    at its end, is repeated. So no read sees a part of a write that changes the order, and none
//!    returns a record that its database did not show at some moment of the read.
//! 4. A read is tried [`OPTIMISTIC_ROUNDS`] times at most in that way. Then it runs once while it
//!    holds `changing`, which fixes the order. No read creates a family or changes the order,
//!    because both take `changing`.
//! 5. While the epoch is odd, the write is appended to the log and becomes visible. It is encoded,
//!    and waits for stalls and for disk space, before that. It is synced after that. So reads wait
//!    for none of these.
//!
//! Thread-safety: any thread may call any method. Failure: errors of the engine are returned. A row
//! that is no order is an error that names the row. After an error of a write that changes the
//! order, the row is read again, because the engine may have kept the write. Cost: a read adds
//! three loads of words that rarely change, and a write adds one. Neither takes a lock. A read that
//! has to wait for a change of the order tells the runtime, which lets other tasks run. A read-only
//! database shows the order and the families as they were at [`EngineDatabases::open`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use archipelago_base::clock::SystemClock;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_compute::DATABASE_FAMILIES;
use archipelago_engine::db::{ColumnFamily, Db, ReadOptions};
use archipelago_engine::disk_space::SpaceState;
use archipelago_engine::options::{CfOptions, WriteOptions};
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::databases::{DATABASES, Order};
use crate::engine_prefixes::EnginePrefixes;

/// Name of the family of the order. The number at its end is the version of its row.
const ORDER_FAMILY: &str = "archipelago.databases.1";

/// Key of the only row of that family.
const ORDER_ROW: &[u8] = b"order";

/// Number of times that a read runs without a lock before it fixes the order.
const OPTIMISTIC_ROUNDS: usize = 3;

/// Number of times that a change of the order checks whether writes of its families still stall,
/// and the pause between two checks. Together they take one second. After that the change stalls
/// while reads wait for it.
const STALL_LOOKS: usize = 100;
const STALL_PAUSE: Duration = Duration::from_millis(10);

/// The databases of one engine, shared by their stores.
pub(crate) struct EngineDatabases {
    pub(crate) db: Db,
    pub(crate) prefixes: EnginePrefixes,
    /// The families that exist, by the number of their keyspace.
    families: [OnceLock<ColumnFamily>; DATABASES],
    order_family: OnceLock<ColumnFamily>,
    /// The [`Order`] as a word.
    order: AtomicU64,
    epoch: AtomicU64,
    /// Whether a change of the order is under way, from its preparation to its sync.
    holds_writers: AtomicBool,
    /// Held while a family is created or the order changes.
    changing: Mutex<()>,
}

/// A family that may have to be created.
#[derive(Clone, Copy)]
enum StateFamily {
    Keyspace(usize),
    Order,
}

fn family_name(number: usize) -> String {
    format!("{DATABASE_FAMILIES}{number}")
}

fn known(family: ColumnFamily) -> OnceLock<ColumnFamily> {
    OnceLock::from(family)
}

impl EngineDatabases {
    /// The databases of `db`. `Corrupt` if the row of the order holds none.
    pub(crate) fn open(db: Db) -> Result<Self> {
        let names = db.list_families();
        let find = |name: &str| names.iter().any(|other| other == name).then(|| db.family(name));
        let mut families: [OnceLock<ColumnFamily>; DATABASES] = Default::default();
        families[0] = known(db.default_family().clone());
        for (number, family) in families.iter_mut().enumerate().skip(1) {
            if let Some(found) = find(&family_name(number)) {
                *family = known(found?);
            }
        }
        let order_family = find(ORDER_FAMILY).transpose()?.map(known).unwrap_or_default();
        let databases = Self {
            prefixes: EnginePrefixes::new(db.clone()),
            db,
            families,
            order_family,
            order: AtomicU64::new(Order::IDENTITY.to_word()),
            epoch: AtomicU64::new(0),
            holds_writers: AtomicBool::new(false),
            changing: Mutex::default(),
        };
        let order = databases.stored_order()?;
        databases.order.store(order.to_word(), Ordering::Release);
        Ok(databases)
    }

    /// The order that the row holds.
    fn stored_order(&self) -> Result<Order> {
        let Some(family) = self.order_family.get() else { return Ok(Order::IDENTITY) };
        let Some(row) = self.db.get_with(family, ORDER_ROW, &ReadOptions::default())? else {
            return Ok(Order::IDENTITY);
        };
        Order::from_bytes(&row).ok_or_else(|| {
            let shown = row.escape_ascii();
            Error::new(
                ErrorKind::Corrupt,
                format!(
                    "column family \"{ORDER_FAMILY}\" has \"{shown}\" instead of the order of the \
                     databases, which is each number from 0 to 15 once: restore a checkpoint, or \
                     write a row that docs/formats/databases.md allows"
                ),
            )
        })
    }

    /// The current order. It does not change while the caller holds a stripe.
    #[inline]
    pub(crate) fn order(&self) -> Order {
        Order::from_word(self.order.load(Ordering::Acquire))
    }

    /// The family that database `index` shows. `None` if the database was never written.
    #[inline]
    pub(crate) fn family(&self, index: usize) -> Option<&ColumnFamily> {
        self.families[self.order().at(index)].get()
    }

    /// The family of database `index` for a write of a record, which creates the family if
    /// necessary.
    #[inline]
    pub(crate) fn made_family(&self, index: usize) -> Result<&ColumnFamily> {
        let number = self.order().at(index);
        match self.families[number].get() {
            Some(family) => Ok(family),
            None => self.make(StateFamily::Keyspace(number)),
        }
    }

    /// The family of the order, which is created if necessary.
    pub(crate) fn made_order_family(&self) -> Result<&ColumnFamily> {
        match self.order_family.get() {
            Some(family) => Ok(family),
            None => self.make(StateFamily::Order),
        }
    }

    #[cold]
    fn make(&self, which: StateFamily) -> Result<&ColumnFamily> {
        let _one_at_a_time = self.changing.lock();
        let (place, name, options) = match which {
            StateFamily::Keyspace(number) => {
                let options = self.db.default_family().options().clone();
                (&self.families[number], family_name(number), options)
            }
            StateFamily::Order => {
                (&self.order_family, ORDER_FAMILY.to_owned(), CfOptions::default())
            }
        };
        if let Some(family) = place.get() {
            return Ok(family);
        }
        let made = self.db.create_family(&name, options)?;
        Ok(place.get_or_init(|| made))
    }

    /// Calls `read` with the family that database `index` shows. `None`: there is no family. It
    /// repeats the call if the order has changed meanwhile. `read` creates no family and changes no
    /// order.
    #[inline]
    pub(crate) fn read<T>(
        &self,
        index: usize,
        mut read: impl FnMut(&ColumnFamily) -> Result<T>,
    ) -> Result<Option<T>> {
        for _ in 0..OPTIMISTIC_ROUNDS {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch & 1 == 1 {
                self.wait_for_order(|| ());
                continue;
            }
            let found = self.family(index).map(&mut read).transpose();
            // The writer published the data of a later order before the later epoch.
            fence(Ordering::Acquire);
            if self.epoch.load(Ordering::Relaxed) == epoch {
                return found;
            }
        }
        self.wait_for_order(|| self.family(index).map(&mut read).transpose())
    }

    /// Calls `act` while no change of the order is under way. Meanwhile the runtime lets other
    /// threads run the tasks of this thread.
    #[cold]
    fn wait_for_order<T>(&self, act: impl FnOnce() -> T) -> T {
        let wait = || {
            let _one_at_a_time = self.changing.lock();
            act()
        };
        let is_worker = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if is_worker { tokio::task::block_in_place(wait) } else { wait() }
    }

    /// Whether a read would now wait for a change of the order.
    #[inline]
    pub(crate) fn holds_readers(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) & 1 == 1
    }

    /// Whether a write would now wait for the stripes that a change of the order holds.
    pub(crate) fn holds_writers(&self) -> bool {
        self.holds_writers.load(Ordering::Relaxed)
    }

    /// Runs `change`, which includes a change of the order. [`EngineDatabases::holds_writers`] is
    /// true meanwhile. The caller holds every stripe.
    pub(crate) fn holding_writers<T>(&self, change: impl FnOnce() -> T) -> T {
        self.holds_writers.store(true, Ordering::Relaxed);
        let done = change();
        self.holds_writers.store(false, Ordering::Relaxed);
        done
    }

    /// Key and value of the row for the order after `next`.
    pub(crate) fn row_after(&self, next: Order) -> (&'static [u8], [u8; DATABASES]) {
        (ORDER_ROW, self.order().then(next).to_bytes())
    }

    /// Waits for the stalls and the disk space that a write to the families of the databases
    /// `indexes` and to that of the order would wait for. The caller keeps writers out, so little
    /// can happen before the write. Therefore the call does not wait for the end of a delay by the
    /// storage pool, which may last for days.
    pub(crate) fn wait_for_writes(&self, indexes: impl Iterator<Item = usize>) -> Result<()> {
        let of_order = self.made_order_family()?;
        if self.db.would_stall(of_order) || self.db.space_state() != SpaceState::Roomy {
            // This write of the unchanged row waits for memory and space, or returns the reason for
            // which there is none.
            let row = self.order().to_bytes();
            self.db.put_with(of_order, ORDER_ROW, &row, &WriteOptions::default())?;
        }
        let clock = SystemClock::shared();
        for family in indexes.filter_map(|index| self.family(index)) {
            let mut looks = 0;
            while looks < STALL_LOOKS && self.db.is_behind(family) {
                clock.sleep(STALL_PAUSE);
                looks += 1;
            }
        }
        Ok(())
    }

    /// Calls `write`, which writes a batch with the row [`EngineDatabases::row_after`] `next`.
    /// Reads wait for it, so the batch must be complete. The caller keeps writers out, and syncs
    /// the write before they continue.
    pub(crate) fn change_order(
        &self,
        next: Order,
        write: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let changed = self.order().then(next);
        let epoch = self.epoch.load(Ordering::Relaxed);
        assert!(epoch & 1 == 0, "one change of the order at a time");
        self.epoch.store(epoch + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let written = write();
        let order = match &written {
            Ok(()) => changed,
            Err(_) => self.stored_order().unwrap_or(self.order()),
        };
        self.order.store(order.to_word(), Ordering::Release);
        self.epoch.store(epoch + 2, Ordering::Release);
        written
    }
}

#[cfg(test)]
mod tests;
