//! Row locks: which transaction may use a key, and which transactions wait for it.
//!
//! A database owns one table of locks. A transaction is an owner. It requests a row by column
//! family and key, shared or exclusive, and releases the row at its end. Rows need not exist as
//! records.
//!
//! Invariants:
//! 1. The holders of a row are one owner, or several that hold it shared.
//! 2. A row is granted in the order of the requests. A holder that requests a stronger mode goes
//!    first.
//! 3. An owner waits for at most one row. It is in that row's queue if and only if it is waiting.
//! 4. A request that would close a circle of waiting owners is refused before it waits, so no
//!    circle exists ([`super::waits_for`]).
//! 5. A row without holders is not in the table.
//!
//! Thread-safety: any thread may call any method. One mutex guards the table and is held for a few
//! map operations. An owner makes one call at a time.
//! Failure: a deadlock or a timeout is an error, after which the owner has the locks that it had
//! before. A waiting request calls the caller's check at least every [`LOOK`]; its error ends the
//! wait.
//! Cost: one short lock and a copy of the key for each request. A waiting thread sleeps. It wakes
//! for its grant, and every [`LOOK`] to read the database's clock.

use std::collections::{HashMap, VecDeque, hash_map};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::{CfId, Error, Result};
use parking_lot::{Condvar, Mutex};

use super::conflict::Conflict;
use super::waits_for::closes_cycle;

/// Longest sleep of a waiter between two readings of the clock, which need not be the system's.
const LOOK: Duration = Duration::from_millis(5);

/// Mode of a row lock: which locks of other owners it excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockMode {
    /// Other owners can lock the row shared, and not exclusively.
    Shared,
    /// Other owners cannot lock the row at all.
    Exclusive,
}

/// Number of an owner of locks.
pub(crate) type OwnerId = u64;

/// A row: a key of a column family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RowKey {
    pub(crate) cf: CfId,
    pub(crate) key: Box<[u8]>,
}

/// An owner's request for a row, waiting or granted.
struct Claim {
    owner: OwnerId,
    mode: LockMode,
}

struct Waiter {
    claim: Claim,
    granted: Arc<Condvar>,
}

#[derive(Default)]
struct Row {
    holders: Vec<Claim>,
    queue: VecDeque<Waiter>,
}

impl Row {
    /// Whether no other holder conflicts with `claim`.
    fn admits(&self, claim: &Claim) -> bool {
        self.holders.iter().all(|holder| !is_in_the_way(holder, claim))
    }

    fn is_held_by(&self, owner: OwnerId) -> bool {
        self.holders.iter().any(|holder| holder.owner == owner)
    }

    fn hold(&mut self, claim: Claim) {
        match self.holders.iter_mut().find(|holder| holder.owner == claim.owner) {
            Some(holder) => holder.mode = holder.mode.max(claim.mode),
            None => self.holders.push(claim),
        }
        let exclusive = self.holders.iter().any(|holder| holder.mode == LockMode::Exclusive);
        assert!(!exclusive || self.holders.len() == 1, "an exclusive lock has one holder");
    }
}

/// Whether `claim` has to wait for `other`.
fn is_in_the_way(other: &Claim, claim: &Claim) -> bool {
    other.owner != claim.owner
        && (other.mode == LockMode::Exclusive || claim.mode == LockMode::Exclusive)
}

#[derive(Default)]
struct Table {
    rows: HashMap<Arc<RowKey>, Row>,
    /// The row that each waiting owner waits for.
    waiting: HashMap<OwnerId, Arc<RowKey>>,
}

impl Table {
    /// Grants the row and returns `None`, or puts the owner into the row's queue. Then it returns
    /// the condition variable that will be notified of the grant.
    fn request(&mut self, row_key: &Arc<RowKey>, claim: Claim) -> Option<Arc<Condvar>> {
        let row = self.rows.entry(Arc::clone(row_key)).or_default();
        let is_holder = row.is_held_by(claim.owner);
        if row.admits(&claim) && (is_holder || row.queue.is_empty()) {
            row.hold(claim);
            return None;
        }
        let granted = Arc::new(Condvar::new());
        self.waiting.insert(claim.owner, Arc::clone(row_key));
        let waiter = Waiter { claim, granted: Arc::clone(&granted) };
        if is_holder {
            row.queue.push_front(waiter);
        } else {
            row.queue.push_back(waiter);
        }
        Some(granted)
    }

    /// The owners that a waiting owner waits for.
    fn blockers(&self, owner: OwnerId) -> Vec<OwnerId> {
        let Some(row) = self.waiting.get(&owner).and_then(|row_key| self.rows.get(row_key)) else {
            return Vec::new();
        };
        let is_own = |waiter: &Waiter| waiter.claim.owner == owner;
        let place = row.queue.iter().position(is_own).expect("a waiting owner is in the queue");
        let own = &row.queue[place].claim;
        let ahead = row.queue.iter().take(place).map(|waiter| &waiter.claim);
        let all = row.holders.iter().chain(ahead);
        all.filter(|other| is_in_the_way(other, own)).map(|other| other.owner).collect()
    }

    /// Grants the row to the waiters at the head of its queue that conflict with no holder.
    fn promote(&mut self, row_key: &RowKey) {
        let Some(row) = self.rows.get_mut(row_key) else { return };
        while let Some(head) = row.queue.front()
            && row.admits(&head.claim)
        {
            let waiter = row.queue.pop_front().expect("the queue has a head");
            self.waiting.remove(&waiter.claim.owner);
            row.hold(waiter.claim);
            waiter.granted.notify_one();
        }
        if row.holders.is_empty() {
            assert!(row.queue.is_empty(), "a free row is granted to the head of its queue");
            self.rows.remove(row_key);
        }
    }

    /// Takes a waiting owner out of its queue.
    fn withdraw(&mut self, owner: OwnerId) {
        let row_key = self.waiting.remove(&owner).expect("a waiting owner has a row");
        let row = self.rows.get_mut(&row_key).expect("a row with a queue is in the table");
        row.queue.retain(|waiter| waiter.claim.owner != owner);
        self.promote(&row_key);
    }

    fn release(&mut self, row_key: &Arc<RowKey>, owner: OwnerId) {
        let hash_map::Entry::Occupied(mut row) = self.rows.entry(Arc::clone(row_key)) else {
            panic!("a held row is in the table");
        };
        let Row { holders, queue } = row.get_mut();
        holders.retain(|holder| holder.owner != owner);
        let (is_free, is_wanted) = (holders.is_empty(), !queue.is_empty());
        if is_wanted {
            self.promote(row_key);
        } else if is_free {
            row.remove();
        }
    }
}

/// Limits on the wait of a request.
pub(crate) struct Patience<'a> {
    pub(crate) timeout: Duration,
    pub(crate) clock: &'a dyn Clock,
    /// Called while the request waits: an error ends the wait.
    pub(crate) check: &'a dyn Fn() -> Result<()>,
}

/// The row locks of a database and their queues.
#[derive(Default)]
pub(crate) struct RowLocks {
    table: Mutex<Table>,
    owners: AtomicU64,
}

impl std::fmt::Debug for RowLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = self.table.lock();
        f.debug_struct("RowLocks")
            .field("rows", &table.rows.len())
            .field("waiting", &table.waiting.len())
            .finish()
    }
}

impl RowLocks {
    /// Returns the number of a new owner.
    pub(crate) fn new_owner(&self) -> OwnerId {
        self.owners.fetch_add(1, Ordering::Relaxed)
    }

    /// Grants `owner` the row in `mode`, or leaves everything as it was. Errors: `Busy` with a
    /// [`Conflict`], or the error of the check in `patience`.
    pub(crate) fn acquire(
        &self,
        owner: OwnerId,
        row_key: &Arc<RowKey>,
        mode: LockMode,
        patience: &Patience<'_>,
    ) -> Result<()> {
        let mut table = self.table.lock();
        let Some(granted) = table.request(row_key, Claim { owner, mode }) else { return Ok(()) };
        if closes_cycle(owner, |of| table.blockers(of)) {
            table.withdraw(owner);
            return Err(refused(row_key, Conflict::Deadlock));
        }
        let limit_ns = u64::try_from(patience.timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = patience.clock.now_ns().saturating_add(limit_ns);
        loop {
            let left_ns = deadline_ns.saturating_sub(patience.clock.now_ns());
            let checked = match left_ns {
                0 => Err(refused(row_key, Conflict::LockTimeout)),
                _ => (patience.check)(),
            };
            if let Err(error) = checked {
                table.withdraw(owner);
                return Err(error);
            }
            granted.wait_for(&mut table, LOOK.min(Duration::from_nanos(left_ns)));
            if !table.waiting.contains_key(&owner) {
                return Ok(());
            }
        }
    }

    /// Releases rows that `owner` holds.
    pub(crate) fn release<'a>(
        &self,
        owner: OwnerId,
        row_keys: impl IntoIterator<Item = &'a Arc<RowKey>>,
    ) {
        let mut table = self.table.lock();
        row_keys.into_iter().for_each(|row_key| table.release(row_key, owner));
    }

    /// Number of locked rows, and of waiting owners.
    #[cfg(test)]
    fn counts(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.rows.len(), table.waiting.len())
    }
}

fn refused(row_key: &RowKey, conflict: Conflict) -> Error {
    let (key, cf) = (row_key.key.escape_ascii(), row_key.cf);
    conflict.error(match conflict {
        Conflict::Deadlock => format!(
            "locking key \"{key}\" of column family {cf} would make transactions wait for each \
             other for ever: roll back and run the transaction again"
        ),
        _ => format!(
            "key \"{key}\" of column family {cf} stayed locked by another transaction: roll back, \
             or allow a longer lock_timeout"
        ),
    })
}

#[cfg(test)]
mod tests {
    use archipelago_base::clock::{ManualClock, SystemClock};
    use archipelago_base::spawn::{Spawn, SystemSpawn};

    use super::LockMode::{Exclusive, Shared};
    use super::*;

    fn row(key: &[u8]) -> Arc<RowKey> {
        Arc::new(RowKey { cf: CfId(1), key: key.into() })
    }

    /// The outcome of a request that does not wait.
    fn ask(locks: &RowLocks, owner: OwnerId, key: &[u8], mode: LockMode) -> Option<Conflict> {
        let clock = ManualClock::new(0);
        let patience = Patience { timeout: Duration::ZERO, clock: &clock, check: &|| Ok(()) };
        let error = locks.acquire(owner, &row(key), mode, &patience).err()?;
        Some(Conflict::of(&error).unwrap())
    }

    /// Asks on a thread of its own, and returns when the request waits.
    fn ask_and_wait(
        locks: &Arc<RowLocks>,
        owner: OwnerId,
        key: &'static [u8],
        mode: LockMode,
    ) -> std::sync::mpsc::Receiver<Option<Conflict>> {
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = Arc::clone(locks);
        let ask = move || {
            let clock = SystemClock::new();
            let timeout = Duration::from_secs(600);
            let patience = Patience { timeout, clock: &clock, check: &|| Ok(()) };
            let asked = waiter.acquire(owner, &row(key), mode, &patience);
            tell.send(asked.err().and_then(|error| Conflict::of(&error))).unwrap();
        };
        drop(SystemSpawn.spawn("waiter", Box::new(ask)).unwrap());
        while !locks.table.lock().waiting.contains_key(&owner) {
            std::thread::yield_now();
        }
        told
    }

    #[test]
    fn shared_locks_admit_each_other_and_no_exclusive_one() {
        let locks = RowLocks::default();
        assert_eq!(ask(&locks, 1, b"k", Shared), None);
        assert_eq!(ask(&locks, 2, b"k", Shared), None);
        assert_eq!(ask(&locks, 3, b"k", Exclusive), Some(Conflict::LockTimeout));
        assert_eq!(ask(&locks, 1, b"k", Exclusive), Some(Conflict::LockTimeout));
        assert_eq!(ask(&locks, 3, b"other", Exclusive), None);
        locks.release(2, [&row(b"k")]);
        assert_eq!(ask(&locks, 1, b"k", Exclusive), None, "the only holder may have more");
        assert_eq!(ask(&locks, 2, b"k", Shared), Some(Conflict::LockTimeout));
        locks.release(1, [&row(b"k")]);
        locks.release(3, [&row(b"other")]);
        assert_eq!(locks.counts(), (0, 0));
    }

    #[test]
    fn released_row_goes_to_the_first_in_the_queue() {
        let locks = Arc::new(RowLocks::default());
        assert_eq!(ask(&locks, 1, b"k", Exclusive), None);
        let second = ask_and_wait(&locks, 2, b"k", Exclusive);
        let third = ask_and_wait(&locks, 3, b"k", Shared);
        let fourth = ask_and_wait(&locks, 4, b"k", Shared);
        locks.release(1, [&row(b"k")]);
        assert_eq!(second.recv().unwrap(), None);
        assert!(locks.table.lock().waiting.contains_key(&3));
        assert_eq!(ask(&locks, 5, b"k", Shared), Some(Conflict::LockTimeout), "the queue is first");
        locks.release(2, [&row(b"k")]);
        assert_eq!((third.recv().unwrap(), fourth.recv().unwrap()), (None, None));
        locks.release(3, [&row(b"k")]);
        locks.release(4, [&row(b"k")]);
        assert_eq!(locks.counts(), (0, 0));
    }

    #[test]
    fn request_that_closes_a_circle_is_refused() {
        let locks = Arc::new(RowLocks::default());
        for (owner, key) in [(1, b"a"), (2, b"b"), (3, b"c")] {
            assert_eq!(ask(&locks, owner, key, Exclusive), None);
        }
        let first = ask_and_wait(&locks, 1, b"b", Exclusive);
        let second = ask_and_wait(&locks, 2, b"c", Shared);
        assert_eq!(ask(&locks, 3, b"a", Exclusive), Some(Conflict::Deadlock));
        locks.release(3, [&row(b"c")]);
        assert_eq!(second.recv().unwrap(), None);
        locks.release(2, [&row(b"b")]);
        locks.release(2, [&row(b"c")]);
        assert_eq!(first.recv().unwrap(), None);
    }

    #[test]
    fn two_shared_holders_that_want_more_are_a_deadlock() {
        let locks = Arc::new(RowLocks::default());
        assert_eq!(ask(&locks, 1, b"k", Shared), None);
        assert_eq!(ask(&locks, 2, b"k", Shared), None);
        let first = ask_and_wait(&locks, 1, b"k", Exclusive);
        assert_eq!(ask(&locks, 2, b"k", Exclusive), Some(Conflict::Deadlock));
        locks.release(2, [&row(b"k")]);
        assert_eq!(first.recv().unwrap(), None);
    }

    #[test]
    fn wait_ends_when_the_clock_passes_the_timeout() {
        let locks = Arc::new(RowLocks::default());
        assert_eq!(ask(&locks, 1, b"k", Exclusive), None);
        let clock = ManualClock::new(0);
        let rounds = std::cell::Cell::new(0);
        let check = || {
            rounds.set(rounds.get() + 1);
            clock.advance(Duration::from_millis(400));
            Ok(())
        };
        let patience = Patience { timeout: Duration::from_secs(1), clock: &clock, check: &check };
        let error = locks.acquire(2, &row(b"k"), Exclusive, &patience).unwrap_err();
        assert_eq!((Conflict::of(&error), rounds.get()), (Some(Conflict::LockTimeout), 3));
        assert_eq!(locks.counts(), (1, 0));
    }

    #[test]
    fn failed_check_ends_a_wait() {
        let locks = RowLocks::default();
        assert_eq!(ask(&locks, 1, b"k", Shared), None);
        let clock = ManualClock::new(0);
        let check = || Err(Error::busy("closed"));
        let patience = Patience { timeout: Duration::from_secs(1), clock: &clock, check: &check };
        let error = locks.acquire(2, &row(b"k"), Exclusive, &patience).unwrap_err();
        assert_eq!(error.context(), "closed");
        assert_eq!(locks.counts(), (1, 0));
    }
}
