//! Changes of keys by the commands of a session, and the clients that are notified of them.
//!
//! Commands of a transaction change its overlays and notify nobody. EXEC writes all changes of the
//! overlays and notifies then.
//!
//! Invariants:
//! 1. A change holds the stripes of its keys until the clients are notified. [`Session::modify`]
//!    takes the stripe of its key. The callers of all other methods hold them.
//! 2. A write that failed may have happened nevertheless. So clients that track keys are notified
//!    of it as well.
//! 3. [`Session::put`] and [`Session::modify`] remove a key whose new expiry has passed.
//!
//! Thread-safety: as that of the session.
//! Failure: a refusal of the store reaches the command, after clients that track keys are notified.
//! Cost: that of the store, and two reads of shared counters if no client watches or tracks keys.

use super::Session;
use crate::databases::Order;
use crate::locks::KeyGuard;
use crate::refusal::{Handled, Refusal};
use crate::store::{Change, JointWrite, Moved, Op, SpaceUse, Store, StoredValue};

impl Session {
    /// Writes `ops` to the selected database atomically. The caller holds their stripes.
    pub(crate) fn write(&self, ops: &[Op<'_>]) -> Handled {
        let done = self.store().write(ops);
        self.tell_written(ops, done.is_ok());
        Ok(done?)
    }

    /// Writes operations to several databases atomically. The caller holds their stripes.
    pub(crate) fn write_joint(&self, writes: Vec<(usize, Vec<Op<'_>>)>) -> Handled {
        match &self.overlays {
            None => {
                let (order, space_use) = (Order::IDENTITY, SpaceUse::Takes);
                let change = JointWrite { writes, order, space_use };
                self.shared.write_joint(&change, self.client.id)?;
            }
            Some(overlays) => {
                for (index, ops) in &writes {
                    overlays.database(*index).write(ops)?;
                }
            }
        }
        Ok(())
    }

    /// Swaps two databases. The caller holds every stripe.
    pub(crate) fn swap_databases(&self, a: usize, b: usize) -> Handled {
        match &self.overlays {
            None => {
                let order = Order::IDENTITY.swapped(a, b);
                let (writes, space_use) = (Vec::new(), SpaceUse::Takes);
                let change = JointWrite { writes, order, space_use };
                self.shared.write_joint(&change, self.client.id)?;
            }
            Some(overlays) => overlays.swap(a, b),
        }
        Ok(())
    }

    /// Removes `keys` and returns how many existed. The keys differ, and the caller holds their
    /// stripes.
    pub(crate) fn remove(&self, keys: &[&[u8]]) -> Result<usize, Refusal> {
        let removed = self.store().remove(keys);
        if !matches!(removed, Ok(0)) {
            self.tell_tracking(|| keys.iter().map(|key| Op::Delete { key }).collect());
        }
        Ok(removed?)
    }

    /// Moves a value to another key in a store that cannot write two keys at one moment.
    pub(crate) fn rename(
        &self,
        from: &[u8],
        to: &[u8],
        overwrites: bool,
    ) -> Result<Moved, Refusal> {
        let moved = self.store().rename(from, to, overwrites);
        // After an error the new key may have been written.
        if !matches!(moved, Ok(Moved::NoSource | Moved::DestinationExists)) {
            let put = Op::Put { key: to, value: b"", expires_at_ms: None };
            self.tell_written(&[put, Op::Delete { key: from }], moved.is_ok());
        }
        Ok(moved?)
    }

    /// Notifies clients that watch or track keys of `ops`, whose stripes are held. A transaction
    /// notifies when it is committed. A write that failed may have happened nevertheless, so
    /// clients that track keys are notified of it as well.
    #[inline]
    pub(super) fn tell_written(&self, ops: &[Op<'_>], is_done: bool) {
        if self.is_inside() {
            return;
        }
        if is_done {
            self.shared.watches.tell(self.database.get(), ops);
        }
        if self.shared.tracking.is_active() {
            self.shared.tracking.written(ops, self.client.id);
        }
    }

    /// Notifies clients that track keys of the operations that `ops` returns, if there are such
    /// clients.
    #[inline]
    fn tell_tracking<'k>(&self, ops: impl FnOnce() -> Vec<Op<'k>>) {
        if !self.is_inside() && self.shared.tracking.is_active() {
            self.shared.tracking.written(&ops(), self.client.id);
        }
    }

    /// Writes `value` to `key`. If the expiry has passed, it removes the key. The caller holds the
    /// stripe of the key.
    pub(crate) fn put(&self, key: &[u8], value: &[u8], expires_at_ms: Option<u64>) -> Handled {
        let gone = expires_at_ms.is_some_and(|at| at <= self.shared.now_ms());
        let op = if gone { Op::Delete { key } } else { Op::Put { key, value, expires_at_ms } };
        self.write(&[op])
    }

    /// Reads `key` and atomically applies the change that `decide` chooses. A change whose expiry
    /// has passed removes the key. Returns what `decide` returned with the applied change. A
    /// refusal changes nothing. The store may call `decide` several times.
    pub(crate) fn modify<'c, T>(
        &self,
        key: &[u8],
        mut decide: impl FnMut(Option<&StoredValue>) -> Result<(Change<'c>, T), Refusal>,
    ) -> Result<T, Refusal> {
        let _guard = if self.is_inside() { KeyGuard::None } else { self.shared.locks.lock(key) };
        let (mut told, mut puts, mut changes, mut new_expiry) = (None, false, false, None);
        let mut deadline_ms = None;
        let done = self.store().modify(key, &mut |entry| {
            deadline_ms = entry.and_then(|entry| entry.expires_at_ms);
            let (change, tells) = match decide(entry) {
                Ok((change, tells)) => (change, Ok(tells)),
                Err(refusal) => (Change::Keep, Err(refusal)),
            };
            told = Some(tells);
            let at_ms = match &change {
                Change::Put { expires_at_ms, .. } | Change::Expire(expires_at_ms) => *expires_at_ms,
                Change::Keep | Change::Delete => None,
            };
            let expired = at_ms.is_some_and(|at| at <= self.shared.now_ms());
            let change = if expired { Change::Delete } else { change };
            puts = matches!(change, Change::Put { .. });
            (changes, new_expiry) = (change != Change::Keep, at_ms.filter(|_| !expired));
            change
        });
        if changes {
            let op = || vec![Op::Put { key, value: b"", expires_at_ms: new_expiry }];
            self.tell_tracking(op);
        } else if let Some(at_ms) = deadline_ms {
            self.note_deadline(key, at_ms);
        }
        done?;
        if puts && !self.is_inside() {
            self.shared.watches.tell_put(self.database.get(), key);
        }
        told.unwrap_or(Err(Refusal::fixed("ERR the store did not look at the key")))
    }
}
