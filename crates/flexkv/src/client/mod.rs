//! What callers see: get, set, insert, update, delete, compare-and-set.
//!
//! All are linearizable: each takes effect at one moment between call and return. A write that ends
//! with an error says whether it may have taken effect ([`WriteError`]). One of unknown effect does
//! not take effect later, once the node has been taken for dead, and never twice.
//!
//! **Reading.** The slots of the key (from the proxy, or one-sided), then the records that they
//! name; the one whose key it is counts. Of a pending slot, what was there before counts.
//! **Writing.** Look; write the new record to all its copies; change the slot (`submit.rs`); if
//! somebody else was faster, look again.
//!
//! Writes of one key by one node do not meet in the index: they wait for each other here, and sets
//! are combined ([`crate::combining`]).
//!
//! Of sets of different nodes that meet at a key's slot, the proxy takes one; the others' nodes
//! remember the key ([`crate::contended`]), and leave their next sets of it to the proxy, records
//! and all, where they are combined (`delegated.rs`).
//!
//! What this node has cached shortens both (`cached.rs`): a read that finds the pair sends nothing,
//! one that finds the address reads the record alone; a write that finds either need not look.
//!
//! **An outcome that is not known** (the proxy's node does not answer, then dies): the call asks
//! until it is answered, or until the map says that the partition went on without that node. Then
//! it looks: its record is in the index, or was (whoever superseded it cleared its valid bit), or
//! never was and never will be.

mod cached;
mod delegated;
mod fast_path;
mod keys;
mod look;
mod notify;
mod rename;
mod scan;
mod submit;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;

use archipelago_base::{Error, Result};

use crate::combining::Entered;
use crate::format::{EXPIRY_MAX, KEY_BYTES_MAX, KeyHash, Record, Slot, key_hash, record_bytes};
use crate::gates::Inside;
use crate::node::caching::Keep;
use crate::node::records::Written;
use crate::node::{ComputeNode, Count, Inner};
use crate::protocol::IndexProtocol as _;
use crate::table::FromCopy;
use crate::wire::{Assigned, WriteKind};
use crate::write_error::{WriteEffect, WriteError};

use cached::Served;
use look::{Found, Looked};
use submit::{Submitted, Unsettled};

pub use fast_path::{AT_ONCE_MAX, Set};
pub use rename::{Destination, Renamed};
pub use scan::{ScanLimits, ScanStep, ScannedKey};

use std::sync::Arc;
use std::time::Duration;

/// After so many tries a write pauses twice as long, and so on.
const TRIES_AT_ONCE: u32 = 4;
/// So often the pause of a write is doubled: to some 5 ms.
const DOUBLINGS_MAX: u32 = 5;

/// A value as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Unix ms from which on the key counts as absent; 0: never.
    pub expires_ms: u64,
    /// Which version it is, for [`ComputeNode::compare_and_set`].
    pub(crate) version: Version,
}

/// Which record a value was read of. Two are equal if they name the same place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Version {
    pub(crate) slot: Slot,
    /// Until when the slot's word names this record alone, by this node's clock: an address lease
    /// after it was freed, another value of the key may lie in its place under the same word.
    pub(crate) until_ns: u64,
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot
    }
}

impl Eq for Version {}

/// When a write applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum If {
    Always,
    Absent,
    Present,
    /// This version, before its time is over.
    Version(Version),
    /// This version, which may have expired.
    Expired(Slot),
}

impl If {
    /// Whether a write with this condition may replace `there`, the slot of a record that has not
    /// expired. The caller read the slot before `now_ns`.
    pub(crate) fn applies(self, there: Option<Slot>, now_ns: u64) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => there.is_none(),
            Self::Present => there.is_some(),
            Self::Version(read) => there == Some(read.slot) && now_ns < read.until_ns,
            Self::Expired(version) => there == Some(version),
        }
    }
}

/// A write, as it was asked for.
#[derive(Clone, Copy, Debug)]
struct Write<'a> {
    key: &'a [u8],
    hash: KeyHash,
    /// `None`: delete.
    value: Option<(&'a [u8], u64)>,
    when: If,
    /// Asked for by another node, of which this one is the proxy: not handed on.
    delegated: bool,
}

impl Write<'_> {
    /// Whether it sets the key, whatever is there.
    fn sets(&self) -> bool {
        self.when == If::Always && self.value.is_some()
    }

    /// What it does to the index; `None`: nothing.
    fn kind(&self, found: Option<&Found>) -> Option<WriteKind> {
        match (found, self.value) {
            (Some(_), None) => Some(WriteKind::Delete),
            (Some(_), Some(_)) => Some(WriteKind::Update),
            (None, Some(_)) => Some(WriteKind::Insert),
            (None, None) => None,
        }
    }
}

impl ComputeNode {
    /// The value of a key. Waits while its partition changes; busy if that takes longer than the
    /// settings' patience.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        if let Some(value) = self.get_at_once(key) {
            return Ok(value);
        }
        // Apart: what is read at once is not to carry a task of kilobytes.
        Box::pin(self.0.get(key)).await
    }

    /// As [`ComputeNode::get`], if this node has the pair in its cache and may serve it; the outer
    /// `None`: it is to be read with [`ComputeNode::get`]. Never waits.
    #[must_use]
    pub fn get_at_once(&self, key: &[u8]) -> Option<Option<Value>> {
        self.0.read_at_once(key)
    }

    /// Sets a key, whether it is there or not. `expires_ms`: Unix milliseconds; 0: never. On return
    /// the value is on all copies, and every node reads it.
    pub async fn set(&self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<(), WriteError> {
        self.0.write(key, Some((value, expires_ms)), If::Always).await.map(|_| ())
    }

    /// Sets a key that is not there; whether it was not.
    pub async fn insert(
        &self,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<bool, WriteError> {
        self.0.write(key, Some((value, expires_ms)), If::Absent).await
    }

    /// Sets a key that is there; whether it was.
    pub async fn update(
        &self,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<bool, WriteError> {
        self.0.write(key, Some((value, expires_ms)), If::Present).await
    }

    /// Sets a key that still has the value that was read; whether it had. `None`: that is not
    /// there. Busy, without effect, if it was read an address lease ago: it is to be read again.
    pub async fn compare_and_set(
        &self,
        key: &[u8],
        read: Option<&Value>,
        value: &[u8],
        expires_ms: u64,
    ) -> Result<bool, WriteError> {
        let when = read.map_or(If::Absent, |read| If::Version(read.version));
        let done = self.0.write(key, Some((value, expires_ms)), when).await?;
        self.known_of(read, done)
    }

    /// What is known of a value that was read by whether a write for it was done.
    fn known_of(&self, read: Option<&Value>, done: bool) -> Result<bool, WriteError> {
        let is_over = |read: &Value| self.0.now_ns() >= read.version.until_ns;
        match read.is_some_and(is_over) && !done {
            true => Err(WriteError::without_effect(Error::busy(
                "a write depends on a value that was read too long ago: read it again",
            ))),
            false => Ok(done),
        }
    }

    /// Reads a key, makes a new value of it, and sets that if nobody was faster; again if somebody
    /// was. `None` from `change` leaves the key as it is. What was set.
    pub async fn read_modify_write(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<&Value>) -> Option<(Vec<u8>, u64)>,
    ) -> Result<Option<Vec<u8>>, WriteError> {
        let until_ns = self.0.until_ns();
        let not_done = WriteError::without_effect;
        loop {
            let read = self.get(key).await.map_err(not_done)?;
            let Some((value, expires_ms)) = change(read.as_ref()) else { return Ok(None) };
            if self.compare_and_set(key, read.as_ref(), &value, expires_ms).await? {
                return Ok(Some(value));
            }
            let late = self.0.table.late(until_ns, "read-modify-write: others were always faster");
            late.map_err(not_done)?;
            self.0.pause().await;
        }
    }

    /// Removes a key that still has the value that was read; whether it had. Busy, without effect,
    /// if it was read an address lease ago: it is to be read again.
    pub async fn compare_and_delete(&self, key: &[u8], read: &Value) -> Result<bool, WriteError> {
        let done = self.0.write(key, None, If::Version(read.version)).await?;
        self.known_of(Some(read), done)
    }

    /// Removes a key; whether it was there.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, WriteError> {
        self.0.write(key, None, If::Present).await
    }
}

/// What a node needs that forwards whole requests.
#[cfg(feature = "index-protocol")]
impl ComputeNode {
    /// The node that serves the partition of `key`; `None` means this node. Waits while the
    /// partition changes; busy if that lasts until `until_ns`.
    pub async fn owner_of(&self, key: &[u8], until_ns: u64) -> Result<Option<crate::wire::Member>> {
        let (_inside, entry) = self.0.enter(key_hash(key), until_ns).await?;
        let joined = self.0.joined()?;
        if entry.node == joined.number {
            return Ok(None);
        }
        let map = Arc::clone(&joined.map.read());
        let owner = map.members.iter().find(|member| member.number == entry.node);
        let owner = owner.ok_or_else(|| Error::busy("the partition's node is no member"))?;
        Ok(Some(owner.clone()))
    }

    /// The time, in nanoseconds of this node's clock, at which a call that begins now gives up.
    #[must_use]
    pub fn patience_ends_ns(&self) -> u64 {
        self.0.until_ns()
    }

    /// An error if `until_ns` has passed, or if this node was evicted from the pool.
    pub fn check_patience(&self, until_ns: u64, task: &str) -> Result<()> {
        self.0.table.late(until_ns, task)
    }

    /// Waits as long as this node waits before it repeats a request.
    pub async fn pause(&self) {
        self.0.pause().await;
    }
}

/// Unix time by the system that the runtime lives in: expiries are compared with it.
fn expired(expires_ms: u64, inner: &Inner) -> bool {
    expires_ms != 0 && inner.unix_ms() >= expires_ms
}

impl Inner {
    pub(crate) fn unix_ms(&self) -> u64 {
        self.runtime.unix_ms()
    }

    /// Into a partition, and its entry in the map.
    pub(crate) async fn enter(
        &self,
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<(Inside<'_>, Assigned)> {
        let joined = self.joined()?;
        let partition = joined.geometry.partition(hash);
        if let Some(inside) = joined.gates.try_enter(partition) {
            let entry = joined.map.read().entries[partition.0 as usize];
            return Ok((inside, entry));
        }
        let left_ns = until_ns.saturating_sub(self.now_ns());
        let mut entering = pin!(joined.gates.enter(partition));
        let mut waiting = self.runtime.sleep(Duration::from_nanos(left_ns));
        let inside = poll_fn(|context| {
            if let Poll::Ready(inside) = entering.as_mut().poll(context) {
                return Poll::Ready(Some(inside));
            }
            waiting.as_mut().poll(context).map(|()| None)
        });
        let Some(inside) = inside.await else {
            return Err(Error::busy(format!("{partition} is being moved, for too long")));
        };
        let entry = joined.map.read().entries[partition.0 as usize];
        Ok((inside, entry))
    }

    pub(crate) async fn get(self: &Arc<Self>, key: &[u8]) -> Result<Option<Value>> {
        self.counts.add(Count::Reads);
        let (hash, until_ns) = (key_hash(key), self.until_ns());
        loop {
            let started_ns = self.now_ns();
            let (inside, entry) = self.enter(hash, until_ns).await?;
            let looked = match self.read_cached(entry, key, hash, until_ns).await? {
                Served::Value(value) => Some(Some(value)),
                Served::Nothing { reads } => self.find(entry, key, hash, reads, until_ns).await?,
            };
            drop(inside);
            let in_time = self.now_ns() - started_ns < self.settings.address_use_ns();
            if let Some(value) = looked
                && in_time
                && self.table.holds_lease()
            {
                self.count(entry.partition, true);
                return Ok(value.filter(|value| !expired(value.expires_ms, self)));
            }
            self.table.late(until_ns, "get")?;
            self.pause().await;
        }
    }

    pub(crate) async fn write(
        self: &Arc<Self>,
        key: &[u8],
        value: Option<(&[u8], u64)>,
        when: If,
    ) -> Result<bool, WriteError> {
        self.counts.add(Count::Writes);
        // Before it is combined with others, which would end with its error.
        self.check_limits(key, value).map_err(WriteError::without_effect)?;
        let write = Write { key, hash: key_hash(key), value, when, delegated: false };
        self.write_in_line(write).await.map(|(done, _)| done)
    }

    /// Deletes a key whose slot still holds `word`, whatever its expiry. It counts as nobody's
    /// call.
    pub(crate) async fn delete_expired(
        self: &Arc<Self>,
        key: &[u8],
        word: Slot,
    ) -> Result<bool, WriteError> {
        let (hash, when) = (key_hash(key), If::Expired(word));
        let write = Write { key, hash, value: None, when, delegated: true };
        self.write_in_line(write).await.map(|(done, _)| done)
    }

    /// A write in its turn; and whether no other write of the key was there meanwhile.
    async fn write_in_line(self: &Arc<Self>, write: Write<'_>) -> Result<(bool, bool), WriteError> {
        let until_ns = self.until_ns();
        if !self.table.protocol.combines_writes() {
            return Ok((self.write_until(&write, until_ns).await?, true));
        }
        let sets = write.sets();
        if sets && self.is_left_to_proxy(&write) {
            // In one line there with those of all nodes.
            return Ok((self.write_until(&write, until_ns).await?, false));
        }
        let mut alone = true;
        let lead = match self.combining.enter(write.hash, sets.then_some(write.key)) {
            Ok(lead) => lead,
            Err(waiting) => match waiting.await {
                Entered::Leads(lead) => {
                    alone = false;
                    if !sets {
                        // Sets come through together; a long line of others is not tried one by
                        // one.
                        let late =
                            self.table.late(until_ns, "a write waited for others of its key");
                        late.map_err(WriteError::without_effect)?;
                    }
                    lead
                }
                Entered::Combined(result) => {
                    if result.is_ok() {
                        self.counts.add(Count::Combined);
                        if let Ok(joined) = self.joined()
                            && !write.delegated
                        {
                            self.count(joined.geometry.partition(write.hash).0, false);
                        }
                    }
                    return result.map(|done| (done, false));
                }
            },
        };
        let written = self.write_until(&write, until_ns).await;
        alone &= !lead.has_company();
        lead.end(&written);
        written.map(|done| (done, alone))
    }

    async fn write_until(
        self: &Arc<Self>,
        write: &Write<'_>,
        until_ns: u64,
    ) -> Result<bool, WriteError> {
        let written = self.write_in_turns(write, until_ns).await;
        // Its record may have been left behind.
        written.inspect_err(|failed| {
            if failed.effect() == WriteEffect::Unknown {
                self.want_sweep();
            }
        })
    }

    async fn write_in_turns(
        self: &Arc<Self>,
        write: &Write<'_>,
        until_ns: u64,
    ) -> Result<bool, WriteError> {
        let mut unsettled: Option<Unsettled> = None;
        let (mut stuck, mut tries) = (0_u32, 0_u32);
        loop {
            let entered = self.enter(write.hash, until_ns).await;
            let (inside, entry) = entered.map_err(effect_of(&unsettled))?;
            let proxy = self.proxy_of_contended(write, entry).filter(|_| unsettled.is_none());
            let was_direct = proxy.is_none();
            let turn = match proxy {
                Some(peer) => {
                    // Whoever moves the partition need not wait for it.
                    drop(inside);
                    self.delegate(write, entry, &peer, until_ns).await
                }
                None => {
                    let turn = self.turn(write, entry, &mut unsettled, &mut stuck, until_ns).await;
                    drop(inside);
                    turn
                }
            };
            if let Some(done) = turn? {
                if !write.delegated {
                    self.count(entry.partition, false);
                }
                return Ok(done);
            }
            let late = self.table.late(until_ns, "a write");
            late.map_err(effect_of(&unsettled))?;
            self.counts.add(Count::Retries);
            let delegates = unsettled.is_none() && self.proxy_of_contended(write, entry).is_some();
            if was_direct && delegates {
                // In line there it waits no longer than it has to.
                continue;
            }
            // Each try writes a record: who has to wait for longer tries less often.
            for _ in 0..1_u32 << (tries / TRIES_AT_ONCE).min(DOUBLINGS_MAX) {
                self.pause().await;
            }
            tries += 1;
        }
    }

    /// One try. `None`: again.
    async fn turn(
        self: &Arc<Self>,
        write: &Write<'_>,
        entry: Assigned,
        unsettled: &mut Option<Unsettled>,
        stuck: &mut u32,
        until_ns: u64,
    ) -> Result<Option<bool>, WriteError> {
        if let Some(mut open) = unsettled.take() {
            if open.entry == entry {
                // The same node at the same epoch: it knows.
                return self.go_on(open, unsettled, until_ns).await;
            }
            match self.how_it_ended(write, entry, &mut open, until_ns).await? {
                Some(done) => return Ok(Some(done)),
                None => self.free_if_written(open.record),
            }
        }
        // What is not sent yet has no effect.
        let not_done = WriteError::without_effect;
        let looked = match self.look_cached(entry, write).map_err(not_done)? {
            Some(looked) => looked,
            None => match self.look_for(entry, write, until_ns).await.map_err(not_done)? {
                Some(looked) => looked,
                None => return Ok(None),
            },
        };
        if let Some(pending) = looked.pending {
            // Another write of the key is under way; one that stays so has lost its writer.
            *stuck += 1;
            if stuck.is_multiple_of(16) {
                self.ask_to_settle(entry, pending, until_ns).await.map_err(not_done)?;
            }
            return Ok(None);
        }
        let there = looked.found.as_ref().filter(|found| self.counts_for(write, found.expires_ms));
        if !write.when.applies(there.map(|found| found.slot), self.now_ns()) {
            return self.declines(write, entry, until_ns).await.map_err(not_done);
        }
        let Some(kind) = write.kind(looked.found.as_ref()) else { return Ok(Some(false)) };
        match self.put_in(write, entry, kind, &looked, until_ns).await? {
            Submitted::Done(_) | Submitted::Stale { is_written: true } => Ok(Some(true)),
            Submitted::Not if entry.offloaded => {
                self.contended.met(write.hash);
                Ok(None)
            }
            Submitted::Not | Submitted::Stale { .. } | Submitted::Fenced => Ok(None),
            Submitted::Full => {
                self.ask_to_grow(entry, until_ns).await.map_err(not_done)?;
                Ok(None)
            }
            Submitted::Unknown(open) => {
                *unsettled = Some(open);
                Ok(None)
            }
        }
    }

    /// Writes the new record, and changes the slot that was found; what was written is cached.
    async fn put_in(
        self: &Arc<Self>,
        write: &Write<'_>,
        entry: Assigned,
        kind: WriteKind,
        looked: &Looked,
        until_ns: u64,
    ) -> Result<Submitted, WriteError> {
        let record = self.new_record(write, looked, until_ns).await;
        let record = record.map_err(WriteError::without_effect)?;
        let fetch = self.caching.begin_fetch(write.hash);
        let submitted = self.submit(write, entry, kind, looked, record, until_ns).await;
        if !matches!(submitted, Ok(Submitted::Done(_) | Submitted::Not)) || write.value.is_none() {
            // Nobody knows, or what was cached is old.
            self.caching.invalidate(write.hash);
        }
        let Some((record, (value, expires_ms))) = record.zip(write.value) else { return submitted };
        match &submitted {
            Ok(Submitted::Done(done)) if self.table.holds_lease() => {
                let place = done.source.place(entry, done.index, record.slot);
                let keep = match done.cache {
                    true => Keep::Pair(value, expires_ms),
                    // The proxy takes the address for one that nobody was told.
                    _ if entry.offloaded && self.table.protocol.caches_slots_for_writes() => {
                        Keep::Slot
                    }
                    _ => Keep::Address,
                };
                self.caching.finish_fetch(fetch, (write.hash, write.key), place, keep);
            }
            Ok(Submitted::Not | Submitted::Stale { .. } | Submitted::Full) => {
                self.free_unpublished(record);
            }
            Err(failed) if failed.effect() == WriteEffect::None => self.free_unpublished(record),
            _ => {}
        }
        submitted
    }

    /// Slot and record by the proxy, or by the index in the pool, as they are from some moment on
    /// that is known by the clock of the partition's node.
    async fn look_for(
        self: &Arc<Self>,
        entry: Assigned,
        write: &Write<'_>,
        until_ns: u64,
    ) -> Result<Option<Looked>> {
        let valid_ns = self.now_ns() + self.settings.address_use_ns();
        let looked = if entry.offloaded && self.table.protocol.looks_up_at_proxy() {
            // The cards of memory nodes have more to do than proxies.
            self.look_at_proxy(entry, write.key, write.hash, until_ns).await?
        } else {
            let Some(stamp_us) = self.stamp_of(entry).await? else { return Ok(None) };
            // A server compares the slot with its own; without one the first copy has the last
            // word.
            let which = if entry.offloaded { FromCopy::Any } else { FromCopy::First };
            let looked = self.look(which, entry, write.key, write.hash, until_ns).await?;
            looked.map(|looked| Looked { stamp_us, ..looked })
        };
        let Some(looked) = looked else { return Ok(None) };
        // A position that is no longer a member's knowledge counts only with its word.
        let exact = !write.sets() || !self.table.holds_lease();
        Ok(Some(Looked { valid_ns, exact, ..looked }))
    }

    /// It seems that a write does not apply. The copies in the pool may be ahead of a proxy's
    /// slots, by a write that is not committed: what a caller is told must be true of what is
    /// committed, so it is read as `get` does.
    async fn declines(
        self: &Arc<Self>,
        write: &Write<'_>,
        entry: Assigned,
        until_ns: u64,
    ) -> Result<Option<bool>> {
        if entry.offloaded {
            let Some(there) = self.find(entry, write.key, write.hash, 0, until_ns).await? else {
                return Ok(None);
            };
            let there = there.filter(|value| self.counts_for(write, value.expires_ms));
            let slot = there.map(|value| value.version.slot);
            if write.when.applies(slot, self.now_ns()) {
                return Ok(None);
            }
        }
        // Seen while this node was a member.
        Ok(self.table.holds_lease().then_some(false))
    }

    /// The new record on all its copies; a deletion has none.
    async fn new_record(
        self: &Arc<Self>,
        write: &Write<'_>,
        looked: &Looked,
        until_ns: u64,
    ) -> Result<Option<Written>> {
        let Some((value, expires_ms)) = write.value else { return Ok(None) };
        let previous = looked.found.as_ref().map_or(0, |found| found.slot.0);
        let writer = self.pool.client().0;
        let record = Record { expires_ms, previous, writer, ..Record::new(write.key, value) };
        self.write_record(&record, write.hash, until_ns).await.map(Some)
    }

    /// Whether a record with this expiry is there, as far as `write` is concerned.
    fn counts_for(&self, write: &Write<'_>, expires_ms: u64) -> bool {
        matches!(write.when, If::Expired(_)) || !expired(expires_ms, self)
    }

    /// Says which limit of the format a write exceeds.
    fn check_limits(&self, key: &[u8], value: Option<(&[u8], u64)>) -> Result<()> {
        if key.len() > KEY_BYTES_MAX {
            let bytes = key.len();
            let what = format!("a key of {bytes} bytes: a key has at most {KEY_BYTES_MAX}");
            return Err(Error::invalid(what));
        }
        let Some((value, expires_ms)) = value else { return Ok(()) };
        if expires_ms > EXPIRY_MAX {
            return Err(Error::invalid(format!(
                "an expiry at {expires_ms} ms since 1970: the latest that a store over remote memory keeps is {EXPIRY_MAX} (2^48 - 1)"
            )));
        }
        let block_bytes = self.pool.block_bytes();
        let bytes = record_bytes(key.len(), value.len());
        if bytes.is_none_or(|bytes| bytes > block_bytes) {
            let (key, value) = (key.len(), value.len());
            return Err(Error::invalid(format!(
                "a key of {key} and a value of {value} bytes do not fit a block of {block_bytes} bytes"
            )));
        }
        Ok(())
    }
}

/// The error of a write that has sent `unsettled` and nothing else that could take effect.
fn effect_of(unsettled: &Option<Unsettled>) -> fn(Error) -> WriteError {
    match unsettled {
        Some(_) => WriteError::of_unknown_effect,
        None => WriteError::without_effect,
    }
}
