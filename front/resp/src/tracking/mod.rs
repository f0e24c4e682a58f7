//! Tracking table: the clients that may have cached each key (CLIENT TRACKING).
//!
//! A client that tracks keys is registered for each key that it reads. A write of the key, or its
//! expiry, puts an invalidation into the mailbox of the client ([`crate::invalidations`]) and ends
//! the registration. In the mode BCAST a client receives invalidations of every key that begins
//! with one of its prefixes instead. The server owns the table. Invariants:
//!
//! 1. A key is registered before its value is read, and a writer notifies after its write is
//!    visible. So a read either shows the write, or the writer finds the registration of the read.
//!    There may be needless invalidations, but none is missing. A client that obeys its
//!    invalidations therefore never keeps a value that is older than a write whose invalidation it
//!    has received.
//! 2. A writer notifies while it holds the stripes of its keys ([`crate::locks`]). A client that
//!    turns tracking on takes all stripes once before it continues. So a writer that saw no
//!    tracking client has made its write visible to everything that this client reads. Therefore
//!    one relaxed load is enough for writers while no client tracks keys.
//! 3. A registration holds the earliest deadline of the records that were read. The store does not
//!    report expiry, so upkeep notifies the clients within [`UPKEEP_PERIOD`] after the deadline.
//!    The deadline is read after the key is registered, and a write in between ends the
//!    registration.
//! 4. The table holds at most `keys_max` keys and `bytes_max` bytes. Keys beyond that are evicted,
//!    and their clients receive an invalidation as after a write.
//! 5. While a client of the mode BCAST is connected, reads of every connection note the deadlines
//!    of keys with its prefixes, because such a client may read through another connection. That
//!    includes RANGE with values, and a command that may write but has left the record unchanged.
//!
//! A client that has ended stays in the table until upkeep has passed its keys. Thread-safety: one
//! mutex guards the table. Cost: while no client tracks, one relaxed load for each command, of a
//! cache line that is written only when clients begin and end. Otherwise a write takes the mutex
//! once. So does a read that registers, which also reads the deadline of each key.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clients::Client;
use crate::invalidations::TrackingMode;
use crate::store::{KEY_BYTES_MAX, Op};

/// Pause between two rounds of upkeep.
pub(crate) const UPKEEP_PERIOD: Duration = Duration::from_millis(100);

/// Number of keys that upkeep handles while it holds the mutex.
const UPKEEP_KEYS: usize = 256;

/// The table may take one part in this many of the byte budget.
const BUDGET_PARTS: u64 = 16;

/// Bytes that the table may take even if the budget is tiny.
const TABLE_BYTES_MIN: u64 = 1 << 20;

/// Estimated bytes of a key in the table besides its name, of a client of the key, and of its
/// deadline.
const KEY_OVERHEAD_BYTES: u64 = 112;
const CLIENT_BYTES: u64 = 8;
const DEADLINE_BYTES: u64 = 48;

/// A key that clients may have cached.
#[derive(Default)]
struct TrackedKey {
    /// Clients in ascending order of their numbers, each once.
    clients: Vec<Arc<Client>>,
    deadline_ms: Option<u64>,
}

impl TrackedKey {
    fn bytes(&self, key: &[u8]) -> u64 {
        let deadline = if self.deadline_ms.is_some() { DEADLINE_BYTES } else { 0 };
        let clients = self.clients.len() as u64 * CLIENT_BYTES;
        key.len() as u64 + KEY_OVERHEAD_BYTES + clients + deadline
    }
}

/// A client that tracks keys, and its prefixes.
struct Tracker {
    client: Arc<Client>,
    prefixes: Vec<Box<[u8]>>,
}

#[derive(Default)]
struct Table {
    keys: BTreeMap<Arc<[u8]>, TrackedKey>,
    /// Deadline and key of each key that has a deadline.
    deadlines: BTreeSet<(u64, Arc<[u8]>)>,
    trackers: BTreeMap<u64, Tracker>,
    /// Clients of each prefix of the mode BCAST.
    prefixes: BTreeMap<Box<[u8]>, Vec<Arc<Client>>>,
    /// Number of prefixes of each length.
    prefix_lengths: BTreeMap<usize, usize>,
    /// Number of clients of all keys together.
    items: usize,
    bytes: u64,
    /// The key that was evicted last. The next key after it is the next victim.
    evicted: Option<Arc<[u8]>>,
    /// Position of the pass over the table that removes clients that have ended.
    sweep_at: Option<Arc<[u8]>>,
    /// Whether a client has ended since that pass began.
    must_sweep: bool,
}

/// Figures of the table for INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrackingFigures {
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    pub(crate) items: usize,
    pub(crate) prefixes: usize,
}

/// Figures that every command reads without the lock. They share their cache line with no other
/// figure, nor the adjacent line, which processors fetch together with it.
#[derive(Default)]
#[repr(align(128))]
struct Published {
    /// Number of clients that track keys.
    clients: AtomicUsize,
    /// Number of prefixes of the mode BCAST.
    prefixes: AtomicUsize,
}

impl Published {
    /// Stores the figures that have changed. A store removes the line from the caches of all other
    /// processors.
    fn publish(&self, table: &Table) {
        for (published, figure) in
            [(&self.clients, table.trackers.len()), (&self.prefixes, table.prefixes.len())]
        {
            if published.load(Ordering::Relaxed) != figure {
                published.store(figure, Ordering::Relaxed);
            }
        }
    }
}

/// The tracking table of one server.
pub(crate) struct Tracking {
    published: Published,
    /// 0 for no limit.
    keys_max: AtomicUsize,
    bytes_max: u64,
    budget: Arc<ByteBudget>,
    table: Mutex<(Table, Charge)>,
    begun: Notify,
}

impl Tracking {
    /// An empty table for at most `keys_max` keys (0 for no limit), which is charged to `budget`.
    pub(crate) fn new(keys_max: usize, budget: Arc<ByteBudget>) -> Self {
        let bytes_max = match budget.limit_bytes() {
            u64::MAX => u64::MAX,
            limit => (limit / BUDGET_PARTS).max(TABLE_BYTES_MIN),
        };
        let charge = budget.hold(MemoryClass::Request, 0);
        Self {
            published: Published::default(),
            keys_max: AtomicUsize::new(keys_max),
            bytes_max,
            budget,
            table: Mutex::new((Table::default(), charge)),
            begun: Notify::new(),
        }
    }

    /// Whether any client tracks.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.published.clients.load(Ordering::Relaxed) > 0
    }

    /// Whether any client tracks in the mode BCAST.
    pub(crate) fn has_prefixes(&self) -> bool {
        self.published.prefixes.load(Ordering::Relaxed) > 0
    }

    /// Highest number of keys in the table; 0 for no limit.
    pub(crate) fn keys_max(&self) -> usize {
        self.keys_max.load(Ordering::Relaxed)
    }

    /// Changes that limit. Upkeep evicts the keys beyond it.
    pub(crate) fn set_keys_max(&self, keys_max: usize) {
        self.keys_max.store(keys_max, Ordering::Relaxed);
    }

    pub(crate) fn figures(&self) -> TrackingFigures {
        let table = &self.table.lock().0;
        TrackingFigures {
            clients: table.trackers.len(),
            keys: table.keys.len(),
            items: table.items,
            prefixes: table.prefixes.len(),
        }
    }

    /// The prefixes of a client.
    pub(crate) fn prefixes_of(&self, client: u64) -> Vec<Box<[u8]>> {
        let table = &self.table.lock().0;
        table.trackers.get(&client).map(|tracker| tracker.prefixes.clone()).unwrap_or_default()
    }

    /// Turns tracking on for `client`, or changes its mode, and adds prefixes of the mode BCAST.
    /// The caller takes all stripes once before the client continues (invariant 2).
    pub(crate) fn begin(&self, client: &Arc<Client>, mode: TrackingMode, prefixes: &[&[u8]]) {
        self.change(|table| {
            let new = || Tracker { client: Arc::clone(client), prefixes: Vec::new() };
            let tracker = table.trackers.entry(client.id).or_insert_with(new);
            client.invalidations.begin(mode, self.budget.hold(MemoryClass::Request, 0));
            for prefix in prefixes {
                let clients = table.prefixes.entry((*prefix).into()).or_default();
                if clients.is_empty() {
                    *table.prefix_lengths.entry(prefix.len()).or_default() += 1;
                }
                if !clients.iter().any(|other| other.id == client.id) {
                    clients.push(Arc::clone(client));
                    tracker.prefixes.push((*prefix).into());
                    table.bytes += prefix_bytes(prefix);
                }
            }
        });
        self.begun.notify_one();
    }

    /// Turns tracking off for `client`, if it is on.
    pub(crate) fn end(&self, client: &Client) {
        if !client.invalidations.mode().is_on() {
            return;
        }
        self.change(|table| {
            client.invalidations.end();
            let tracker = table.trackers.remove(&client.id);
            for prefix in tracker.into_iter().flat_map(|tracker| tracker.prefixes) {
                table.leave_prefix(&prefix, client.id);
            }
            table.must_sweep = !table.keys.is_empty();
        });
    }

    /// Registers `client` for keys that it is about to read.
    pub(crate) fn register<'k>(&self, client: &Arc<Client>, keys: impl Iterator<Item = &'k [u8]>) {
        self.change(|table| {
            // No record has a longer key.
            for key in keys.filter(|key| key.len() <= KEY_BYTES_MAX) {
                table.register(client, key);
                self.evict_surplus(table);
            }
        });
    }

    /// Those of `keys` that have a prefix of the mode BCAST.
    pub(crate) fn with_prefix<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Vec<&'k [u8]> {
        let table = &self.table.lock().0;
        keys.filter(|key| table.prefixes_of(key).next().is_some()).collect()
    }

    /// Notes deadlines of records that are being read.
    pub(crate) fn note_deadlines(&self, deadlines: &[(&[u8], u64)]) {
        if !deadlines.is_empty() {
            self.change(|table| {
                for (key, at_ms) in deadlines {
                    table.note_deadline(key, *at_ms);
                    self.evict_surplus(table);
                }
            });
        }
    }

    /// Evicts the surplus that one more key has caused. After the limit was lowered, upkeep evicts
    /// the rest.
    fn evict_surplus(&self, table: &mut Table) {
        for _ in 0..2 {
            if !self.is_over(table) || !table.evict() {
                return;
            }
        }
    }

    /// Notifies clients of `ops`, which the client `writer` has written or may have written. Their
    /// stripes are held.
    #[cold]
    pub(crate) fn written(&self, ops: &[Op<'_>], writer: u64) {
        let mut removed = None;
        self.change(|table| {
            for op in ops {
                match *op {
                    Op::Put { key, expires_at_ms, .. } => {
                        table.invalidate(key, Some(writer));
                        if let Some(at_ms) = expires_at_ms {
                            table.note_deadline(key, at_ms);
                            self.evict_surplus(table);
                        }
                    }
                    Op::Delete { key } => table.invalidate(key, Some(writer)),
                    Op::DeleteRange { start: b"", end: None } => {
                        removed = Some(table.invalidate_all(writer));
                    }
                    Op::DeleteRange { start, end } => table.invalidate_range(start, end, writer),
                }
            }
        });
        // A large table is freed without the mutex.
        drop(removed);
    }

    /// Runs one step of upkeep: expiry by `now_ms`, eviction, and removal of clients that have
    /// ended. Returns whether there is more to do.
    pub(crate) fn keep_up(&self, now_ms: u64) -> bool {
        self.change(|table| {
            let mut left = UPKEEP_KEYS;
            while left > 0 && table.expire_one(now_ms) {
                left -= 1;
            }
            while left > 0 && self.is_over(table) && table.evict() {
                left -= 1;
            }
            let sweeps = table.sweep(left);
            left == 0 || sweeps
        })
    }

    /// Returns when there is a reason for upkeep.
    pub(crate) async fn must_keep_up(&self) {
        loop {
            let is_idle = {
                let table = &self.table.lock().0;
                table.trackers.is_empty() && table.keys.is_empty()
            };
            if !is_idle {
                return;
            }
            self.begun.notified().await;
        }
    }

    fn is_over(&self, table: &Table) -> bool {
        let keys_max = self.keys_max();
        keys_max > 0 && table.keys.len() > keys_max || table.bytes > self.bytes_max
    }

    /// Changes the table, and updates the values that are derived from it.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let (table, charge) = &mut *table;
        let done = change(table);
        if charge.bytes() != table.bytes {
            charge.resize(table.bytes);
        }
        self.published.publish(table);
        done
    }
}

fn prefix_bytes(prefix: &[u8]) -> u64 {
    2 * prefix.len() as u64 + KEY_OVERHEAD_BYTES
}

/// Adds `key` to the mailbox of `client`. A writer checks its own mailbox before it waits, so it is
/// not woken.
fn tell(client: &Client, key: &Arc<[u8]>, writer: Option<u64>) {
    if client.invalidations.add(key) && writer != Some(client.id) {
        client.wake();
    }
}

fn tell_all(client: &Client, writer: u64) {
    if client.invalidations.add_all() && writer != client.id {
        client.wake();
    }
}

/// Whether `client` receives no invalidations for writes of `writer`.
fn ignores(client: &Client, writer: Option<u64>) -> bool {
    writer == Some(client.id) && client.invalidations.mode().has(TrackingMode::NOLOOP)
}

/// Whether `client` receives invalidations of keys that it was registered for.
fn is_registered(client: &Client) -> bool {
    let mode = client.invalidations.mode();
    mode.is_on() && !mode.has(TrackingMode::BCAST)
}

impl Table {
    /// The prefixes of `key`, with their clients.
    fn prefixes_of<'t, 'k>(
        &'t self,
        key: &'k [u8],
    ) -> impl Iterator<Item = &'t Vec<Arc<Client>>> + use<'t, 'k> {
        let lengths = self.prefix_lengths.range(..=key.len());
        lengths.filter_map(|(length, _)| self.prefixes.get(&key[..*length]))
    }

    /// Removes a client from a prefix.
    fn leave_prefix(&mut self, prefix: &[u8], client: u64) {
        self.bytes -= prefix_bytes(prefix);
        let Some(clients) = self.prefixes.get_mut(prefix) else { return };
        clients.retain(|other| other.id != client);
        if clients.is_empty() {
            self.prefixes.remove(prefix);
            if let Some(count) = self.prefix_lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.prefix_lengths.remove(&prefix.len());
                }
            }
        }
    }

    fn register(&mut self, client: &Arc<Client>, key: &[u8]) {
        if !self.keys.contains_key(key) {
            self.insert(key.into(), TrackedKey::default());
        }
        if let Some(tracked) = self.keys.get_mut(key)
            && let Err(at) = tracked.clients.binary_search_by_key(&client.id, |other| other.id)
        {
            tracked.clients.insert(at, Arc::clone(client));
            self.items += 1;
            self.bytes += CLIENT_BYTES;
        }
    }

    /// Notes a deadline of `key`. The earliest one counts. It does nothing if no client needs it:
    /// the key was written since a client was registered, and has no prefix of the mode BCAST.
    fn note_deadline(&mut self, key: &[u8], at_ms: u64) {
        let (name, tracked) = match self.keys.remove_entry(key) {
            Some((name, tracked)) => {
                self.forget_costs(&name, &tracked);
                (name, tracked)
            }
            None if self.prefixes_of(key).next().is_none() => return,
            None => (key.into(), TrackedKey::default()),
        };
        let earliest = tracked.deadline_ms.map_or(at_ms, |other| other.min(at_ms));
        self.insert(name, TrackedKey { deadline_ms: Some(earliest), ..tracked });
    }

    fn insert(&mut self, name: Arc<[u8]>, tracked: TrackedKey) {
        self.bytes += tracked.bytes(&name);
        self.items += tracked.clients.len();
        if let Some(at_ms) = tracked.deadline_ms {
            self.deadlines.insert((at_ms, Arc::clone(&name)));
        }
        self.keys.insert(name, tracked);
    }

    /// Removes a key, which is no longer in `keys`, from everything that is derived from `keys`.
    fn forget_costs(&mut self, name: &Arc<[u8]>, tracked: &TrackedKey) {
        self.bytes -= tracked.bytes(name);
        self.items -= tracked.clients.len();
        if let Some(at_ms) = tracked.deadline_ms {
            self.deadlines.remove(&(at_ms, Arc::clone(name)));
        }
    }

    /// Notifies clients of `key`, which `writer` has changed, or which has expired or is evicted. A
    /// writer with NOLOOP stays registered, because it may keep the value that it has written.
    fn invalidate(&mut self, key: &[u8], writer: Option<u64>) {
        let mut name = None;
        if let Some((of_table, mut tracked)) = self.keys.remove_entry(key) {
            self.forget_costs(&of_table, &tracked);
            tracked.clients.retain(|client| {
                let stays = is_registered(client) && ignores(client, writer);
                if is_registered(client) && !stays {
                    tell(client, &of_table, writer);
                }
                stays
            });
            if !tracked.clients.is_empty() {
                self.insert(Arc::clone(&of_table), tracked);
            }
            name = Some(of_table);
        }
        for client in self.prefixes_of(key).flatten() {
            if !ignores(client, writer) {
                tell(client, name.get_or_insert_with(|| key.into()), writer);
            }
        }
    }

    /// Notifies clients of the keys from `start` on and before `end`. A client of the mode BCAST
    /// receives an invalidation of all keys if a key with its prefix may lie there, because the
    /// keys are not known.
    fn invalidate_range(&mut self, start: &[u8], end: Option<&[u8]>, writer: u64) {
        if end.is_some_and(|end| end <= start) {
            return;
        }
        let to = end.map_or(Bound::Unbounded, Bound::Excluded);
        let inside = self.keys.range::<[u8], _>((Bound::Included(start), to));
        let inside: Vec<Arc<[u8]>> = inside.map(|(key, _)| Arc::clone(key)).collect();
        inside.iter().for_each(|key| self.invalidate(key, Some(writer)));
        for (prefix, clients) in &self.prefixes {
            let may_touch = end.is_none_or(|end| &prefix[..] < end)
                && (start <= &prefix[..] || start.starts_with(prefix));
            for client in clients.iter().filter(|_| may_touch) {
                if !ignores(client, Some(writer)) {
                    tell_all(client, writer);
                }
            }
        }
    }

    /// Sends every client that tracks keys an invalidation of all keys. As in Redis that includes
    /// the writer. Returns the contents of the table.
    fn invalidate_all(&mut self, writer: u64) -> impl Sized + use<> {
        self.trackers.values().for_each(|tracker| tell_all(&tracker.client, writer));
        let of_prefixes: u64 = self
            .trackers
            .values()
            .flat_map(|tracker| &tracker.prefixes)
            .map(|prefix| prefix_bytes(prefix))
            .sum();
        (self.items, self.bytes) = (0, of_prefixes);
        (self.evicted, self.sweep_at, self.must_sweep) = (None, None, false);
        (std::mem::take(&mut self.keys), std::mem::take(&mut self.deadlines))
    }

    /// Notifies clients of one key whose deadline has passed at `now_ms`. Returns whether there was
    /// one.
    fn expire_one(&mut self, now_ms: u64) -> bool {
        let due = self.deadlines.first().filter(|(at_ms, _)| *at_ms <= now_ms);
        let Some(key) = due.map(|(_, key)| Arc::clone(key)) else { return false };
        self.invalidate(&key, None);
        true
    }

    /// The first key after `place`, or the first one at all.
    fn next_after(&self, place: Option<&Arc<[u8]>>) -> Option<Arc<[u8]>> {
        let after = place.and_then(|place| {
            let range = (Bound::Excluded(&place[..]), Bound::Unbounded);
            self.keys.range::<[u8], _>(range).next()
        });
        after.or_else(|| self.keys.first_key_value()).map(|(key, _)| Arc::clone(key))
    }

    /// Removes one key and notifies its clients. Returns whether there was one.
    fn evict(&mut self) -> bool {
        let Some(victim) = self.next_after(self.evicted.as_ref()) else { return false };
        self.invalidate(&victim, None);
        self.evicted = Some(victim);
        true
    }

    /// Removes clients that have ended from at most `most` keys. Returns whether there is more to
    /// do.
    fn sweep(&mut self, most: usize) -> bool {
        if most == 0 || (self.sweep_at.is_none() && !self.must_sweep) {
            return most == 0;
        }
        if self.sweep_at.is_none() {
            self.must_sweep = false;
        }
        let from = match &self.sweep_at {
            Some(place) => Bound::Excluded(&place[..]),
            None => Bound::Unbounded,
        };
        let range = self.keys.range::<[u8], _>((from, Bound::Unbounded));
        let keys: Vec<Arc<[u8]>> = range.take(most).map(|(key, _)| Arc::clone(key)).collect();
        for key in &keys {
            let Some((name, mut tracked)) = self.keys.remove_entry(key) else { continue };
            self.forget_costs(&name, &tracked);
            tracked.clients.retain(|client| is_registered(client));
            let is_for_prefix =
                tracked.deadline_ms.is_some() && self.prefixes_of(&name).next().is_some();
            if is_for_prefix || !tracked.clients.is_empty() {
                self.insert(name, tracked);
            }
        }
        self.sweep_at = if keys.len() < most { None } else { keys.last().cloned() };
        self.sweep_at.is_some() || self.must_sweep
    }
}

#[cfg(test)]
mod tests;
