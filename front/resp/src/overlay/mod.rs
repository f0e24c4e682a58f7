//! Changes of a transaction to one database, which its commands see while EXEC runs them.
//!
//! An overlay is a [`Store`] over another store. Writes stay in the overlay. Reads show the store
//! below as it would be after those writes. At the end one atomic write applies [`Changes::ops`] to
//! the store below, together with those of other databases ([`crate::overlays`]). So no other
//! client sees a part of a transaction, and a crash leaves all of it or nothing.
//!
//! Invariants:
//! 1. `points` holds the last change of each written key. A range delete removes the keys of its
//!    range from `points`, so every change in `points` is newer than all ranges in `cleared`.
//! 2. The ranges of `cleared` are disjoint and do not touch.
//! 3. The caller holds the stripes of all keys that the commands read or write, so the store below
//!    does not change meanwhile.
//! 4. The changes free space ([`Changes::space_use`]) if they only remove keys, and give records of
//!    the store below another expiry. A store on a full disk accepts them.
//!
//! Cost: a copy of each written value. A scan merges the written keys of its range with those of
//! the store below. Memory is charged to the byte budget and bounded. A transaction that writes
//! more than `bytes_max` ([`Overlay::bytes`]), or more than the share for values has room for, is
//! too large and must not be committed.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::budget::Charge;
use archipelago_base::clock::Clock;
use archipelago_base::{Error, Result};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::store::{
    Head, KEY_BYTES_MAX, KeyRange, Keyspace, Op, PinnedSlice, SpaceUse, Store, StoredValue, Visit,
    VisitKey,
};

/// Bytes that a change takes besides its key and value.
const ENTRY_BYTES: u64 = 96;

/// A value that a transaction has written, with its expiry.
struct Written {
    value: Vec<u8>,
    expires_at_ms: Option<u64>,
    space_use: SpaceUse,
}

/// Bytes that a change of `key` takes.
fn point_bytes(key: &[u8], point: &Option<Written>) -> u64 {
    let value_bytes = point.as_ref().map_or(0, |written| written.value.len());
    (key.len() + value_bytes) as u64 + ENTRY_BYTES
}

/// Bytes that a deleted range takes.
fn range_bytes(start: &[u8], end: Option<&[u8]>) -> u64 {
    (start.len() + end.map_or(0, <[u8]>::len)) as u64 + ENTRY_BYTES
}

/// The changes of a transaction to one database.
#[derive(Default)]
pub(crate) struct Changes {
    /// `None` for a key that was deleted.
    points: BTreeMap<Vec<u8>, Option<Written>>,
    /// Start and end of each deleted range. A range without an end extends to the last key.
    cleared: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Bytes of the changes in `points` and `cleared`.
    bytes: u64,
}

impl Changes {
    fn is_cleared(&self, key: &[u8]) -> bool {
        let before = self.cleared.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let last = before.last();
        last.is_some_and(|(_, end)| end.as_ref().is_none_or(|end| key < &end[..]))
    }

    fn clear(&mut self, start: &[u8], end: Option<&[u8]>) {
        if end.is_some_and(|end| end <= start) {
            return;
        }
        let to = end.map_or(Bound::Unbounded, Bound::Excluded);
        let covered = self.points.range::<[u8], _>((Bound::Included(start), to));
        let covered: Vec<Vec<u8>> = covered.map(|(key, _)| key.clone()).collect();
        for key in covered {
            if let Some(point) = self.points.remove(&key) {
                self.bytes -= point_bytes(&key, &point);
            }
        }
        let (mut start, mut end) = (start.to_vec(), end.map(<[u8]>::to_vec));
        // Ranges that overlap the new range, or touch it, become a part of it.
        let reaches = |range_end: &Option<Vec<u8>>, start: &[u8]| {
            range_end.as_ref().is_none_or(|range_end| &range_end[..] >= start)
        };
        while let Some((other, _)) = self
            .cleared
            .iter()
            .find(|(from, to)| end.as_ref().is_none_or(|end| *from <= end) && reaches(to, &start))
            .map(|(from, to)| (from.clone(), to.clone()))
        {
            let other_end = self.cleared.remove(&other).unwrap_or_default();
            self.bytes -= range_bytes(&other, other_end.as_deref());
            start = start.min(other);
            end = match (end, other_end) {
                (Some(a), Some(b)) => Some(a.max(b)),
                _ => None,
            };
        }
        self.bytes += range_bytes(&start, end.as_deref());
        self.cleared.insert(start, end);
    }

    /// The operations that apply the changes of the overlay to the store below.
    pub(crate) fn ops(&self) -> Vec<Op<'_>> {
        let mut ops: Vec<Op<'_>> = Vec::with_capacity(self.cleared.len() + self.points.len());
        for (start, end) in &self.cleared {
            ops.push(Op::DeleteRange { start, end: end.as_deref() });
        }
        for (key, point) in &self.points {
            ops.push(match point {
                Some(Written { value, expires_at_ms, .. }) => {
                    Op::Put { key, value, expires_at_ms: *expires_at_ms }
                }
                None => Op::Delete { key },
            });
        }
        ops
    }

    /// Effect of all changes on the space of the store below.
    pub(crate) fn space_use(&self) -> SpaceUse {
        let mut written = self.points.values().flatten();
        match written.any(|written| written.space_use == SpaceUse::Takes) {
            true => SpaceUse::Takes,
            false => SpaceUse::Frees,
        }
    }

    /// Effect of a write of `key`, which would have the effect `alone` without the changes before
    /// it. A value that is not in the store below takes space, also with another expiry.
    fn space_use_at(&self, key: &[u8], alone: SpaceUse) -> SpaceUse {
        let is_below = match self.points.get(key) {
            Some(Some(written)) => written.space_use == SpaceUse::Frees,
            Some(None) => false,
            None => !self.is_cleared(key),
        };
        if is_below { alone } else { SpaceUse::Takes }
    }

    fn put(&mut self, key: &[u8], written: Option<Written>) {
        self.bytes += point_bytes(key, &written);
        if let Some(old) = self.points.insert(key.to_vec(), written) {
            self.bytes -= point_bytes(key, &old);
        }
    }
}

/// A store that shows the changes of a transaction over another store.
pub(crate) struct Overlay {
    below: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    bytes_max: u64,
    changes: Mutex<(Changes, Charge)>,
    /// Bytes of the changes, for readers that may not wait for their lock.
    bytes: AtomicU64,
}

impl Overlay {
    /// An overlay without changes over `below`. Its memory is added to `charge`.
    pub(crate) fn new(
        below: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        bytes_max: u64,
        charge: Charge,
    ) -> Self {
        let changes = Mutex::new((Changes::default(), charge));
        Self { below, clock, bytes_max, changes, bytes: AtomicU64::new(0) }
    }

    /// Bytes that the transaction has written here.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The changes of the transaction. They are locked while the result is held.
    pub(crate) fn changes(&self) -> MappedMutexGuard<'_, Changes> {
        MutexGuard::map(self.changes.lock(), |(changes, _)| changes)
    }

    fn shown(&self, written: &Option<Written>) -> Option<StoredValue> {
        let written = written.as_ref().filter(|written| self.is_live(written))?;
        let value = PinnedSlice::owned(written.value.clone());
        Some(StoredValue { value, expires_at_ms: written.expires_at_ms })
    }

    fn is_live(&self, written: &Written) -> bool {
        written.expires_at_ms.is_none_or(|at_ms| at_ms > self.clock.unix_ms())
    }

    /// Shows a written key to the visitor of a scan, if the key exists.
    fn show(
        &self,
        key: &[u8],
        written: &Option<Written>,
        visit: &mut Visit<'_>,
    ) -> ControlFlow<()> {
        match written {
            Some(written) if self.is_live(written) => {
                visit(key, &written.value, written.expires_at_ms)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// The record at `key` according to the overlay. `None`: only the store below knows it.
    fn known(&self, changes: &Changes, key: &[u8]) -> Option<Option<StoredValue>> {
        match changes.points.get(key) {
            Some(written) => Some(self.shown(written)),
            None => changes.is_cleared(key).then_some(None),
        }
    }

    /// The value of `key` according to the overlay, without a copy. `None`: only the store below
    /// knows it.
    fn known_value<'c>(&self, changes: &'c Changes, key: &[u8]) -> Option<Option<&'c [u8]>> {
        match changes.points.get(key) {
            Some(written) => {
                let written = written.as_ref().filter(|written| self.is_live(written));
                Some(written.map(|written| &written.value[..]))
            }
            None => changes.is_cleared(key).then_some(None),
        }
    }

    /// Notes `ops`, whose effect on the space of the store below is `space_use`.
    fn change(&self, ops: &[Op<'_>], space_use: SpaceUse) -> Result<()> {
        for op in ops {
            // The store below would refuse the whole transaction for such a key.
            if let Op::Put { key, .. } | Op::Delete { key } = op
                && key.len() > KEY_BYTES_MAX
            {
                let len = key.len();
                return Err(Error::invalid(format!(
                    "a key of {len} bytes is too long: at most {KEY_BYTES_MAX}"
                )));
            }
        }
        let mut changes = self.changes.lock();
        let (changes, charge) = &mut *changes;
        for op in ops {
            match *op {
                Op::Put { key, value, expires_at_ms } => {
                    let space_use = changes.space_use_at(key, space_use);
                    let value = value.to_vec();
                    changes.put(key, Some(Written { value, expires_at_ms, space_use }));
                }
                Op::Delete { key } => changes.put(key, None),
                Op::DeleteRange { start, end } => changes.clear(start, end),
            }
        }
        charge.resize(changes.bytes);
        self.bytes.store(changes.bytes, Ordering::Relaxed);
        if changes.bytes > self.bytes_max {
            return Err(Error::invalid(format!(
                "the transaction writes more than {} bytes",
                self.bytes_max
            )));
        }
        Ok(())
    }

    /// Number of keys of the store below in a range.
    fn count_below(&self, start: &[u8], end: Option<&[u8]>) -> Result<u64> {
        let to = end.map_or(Bound::Unbounded, Bound::Excluded);
        let mut count = 0;
        self.below.scan_keys(KeyRange { from: Bound::Included(start), to }, false, &mut |_| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Shows the records of a range: those that the transaction has written, merged with those that
    /// `scan_below` shows.
    fn merge(
        &self,
        range: KeyRange<'_>,
        reverse: bool,
        visit: &mut Visit<'_>,
        scan_below: impl FnOnce(&mut Visit<'_>) -> Result<()>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let changes = self.changes.lock();
        let changes = &changes.0;
        let written = changes.points.range::<[u8], _>((range.from, range.to));
        let written: Box<dyn Iterator<Item = _>> =
            if reverse { Box::new(written.rev()) } else { Box::new(written) };
        let mut written = written.peekable();
        let mut flow = ControlFlow::Continue(());
        scan_below(&mut |key, value, expires_at_ms| {
            let comes_first = |other: &[u8]| if reverse { other > key } else { other < key };
            while flow.is_continue()
                && let Some((other, record)) = written.next_if(|(other, _)| comes_first(other))
            {
                flow = self.show(other, record, visit);
            }
            if flow.is_break() {
                return flow;
            }
            flow = match written.next_if(|(other, _)| other[..] == *key) {
                Some((other, record)) => self.show(other, record, visit),
                None if changes.is_cleared(key) => ControlFlow::Continue(()),
                None => visit(key, value, expires_at_ms),
            };
            flow
        })?;
        while flow.is_continue()
            && let Some((key, record)) = written.next()
        {
            flow = self.show(key, record, visit);
        }
        Ok(())
    }
}

impl Store for Overlay {
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        let changes = self.changes.lock();
        match self.known(&changes.0, key) {
            Some(known) => Ok(known),
            None => self.below.get(key),
        }
    }

    fn head(&self, key: &[u8]) -> Result<Option<Head>> {
        let changes = self.changes.lock();
        match changes.0.points.get(key) {
            Some(written) => {
                let written = written.as_ref().filter(|written| self.is_live(written));
                Ok(written.map(|written| Head { expires_at_ms: written.expires_at_ms }))
            }
            None if changes.0.is_cleared(key) => Ok(None),
            None => self.below.head(key),
        }
    }

    fn which_exist(&self, keys: &[&[u8]]) -> Result<Vec<bool>> {
        keys.iter().map(|key| self.exists(key)).collect()
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        let changes = self.changes.lock();
        let known: Vec<_> = keys.iter().map(|key| self.known(&changes.0, key)).collect();
        let unknown = keys.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<&[u8]> = unknown.map(|(key, _)| *key).collect();
        let mut below = match unknown.is_empty() {
            true => Vec::new(),
            false => self.below.multi_get(&unknown)?,
        }
        .into_iter();
        let value = |known: Option<Option<StoredValue>>| match known {
            Some(known) => known.map(|entry| entry.value),
            None => below.next().flatten(),
        };
        Ok(known.into_iter().map(value).collect())
    }

    /// The values of each run of keys that only the store below knows come from one call. All calls
    /// show one moment, because the stripes of the keys are held.
    fn multi_get_each(
        &self,
        keys: &[&[u8]],
        take: &mut dyn FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<()> {
        let changes = self.changes.lock();
        let changes = &changes.0;
        let is_unknown = |key: &&[u8]| self.known_value(changes, key).is_none();
        let (mut rest, mut flow) = (keys, ControlFlow::Continue(()));
        while flow.is_continue()
            && let Some((key, others)) = rest.split_first()
        {
            if let Some(value) = self.known_value(changes, key) {
                flow = take(value);
                rest = others;
                continue;
            }
            let run = rest.iter().take_while(|key| is_unknown(key)).count();
            let (unknown, others) = rest.split_at(run);
            self.below.multi_get_each(unknown, &mut |value| {
                flow = take(value);
                flow
            })?;
            rest = others;
        }
        Ok(())
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.change(ops, SpaceUse::Takes)
    }

    fn write_freeing(&self, ops: &[Op<'_>]) -> Result<()> {
        self.change(ops, SpaceUse::Frees)
    }

    fn version(&self, key: &[u8]) -> Result<Option<u64>> {
        self.below.version(key)
    }

    fn joint_writes(&self) -> Result<()> {
        self.below.joint_writes()
    }

    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()> {
        self.merge(range, reverse, visit, |each| self.below.scan(range, reverse, each))
    }

    fn scan_keys(
        &self,
        range: KeyRange<'_>,
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<()> {
        self.merge(range, reverse, &mut |key, _, _| visit(key), |each| {
            self.below.scan_keys(range, reverse, &mut |key| each(key, b"", None))
        })
    }

    fn approximate_count(&self) -> Result<u64> {
        let changes = self.changes.lock();
        let changes = &changes.0;
        let all = changes.cleared.get(&b""[..]).is_some_and(Option::is_none);
        let mut count = if all { 0 } else { self.below.approximate_count()? };
        if !all {
            for (start, end) in &changes.cleared {
                count = count.saturating_sub(self.count_below(start, end.as_deref())?);
            }
        }
        for (key, written) in &changes.points {
            let was = !changes.is_cleared(key) && self.below.exists(key)?;
            let is = written.as_ref().is_some_and(|written| self.is_live(written));
            match (was, is) {
                (true, false) => count = count.saturating_sub(1),
                (false, true) => count += 1,
                _ => {}
            }
        }
        Ok(count)
    }

    fn keyspace(&self) -> Result<Keyspace> {
        let below = self.below.keyspace()?;
        let keys = self.approximate_count()?;
        Ok(Keyspace { keys, expiring: below.expiring.min(keys), ..below })
    }

    fn expired_keys(&self) -> u64 {
        self.below.expired_keys()
    }

    fn info(&self) -> String {
        self.below.info()
    }

    fn would_stall(&self, write: bool) -> bool {
        self.below.would_stall(write)
    }
}

#[cfg(test)]
mod tests;
