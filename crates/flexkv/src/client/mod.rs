//! The client: reads and writes of single keys.
//!
//! The compute node owns one [`Client`]. Every call is linearizable: it takes effect at one moment
//! between call and return. A write that ends with an error says whether it may have taken effect
//! ([`WriteError`]). A write of unknown effect never takes effect twice. Once the node has been
//! declared dead, it does not take effect any more.
//!
//! | file | task |
//! | --- | --- |
//! | `look.rs`, `cached.rs` | where a key's slot and record are, by the index or by the cache |
//! | `submit.rs` | the change of the index |
//! | `delegated.rs` | sets of contended keys, which the key's proxy performs |
//! | `fast_path.rs` | reads and sets that never wait |
//! | `notify.rs` | reports of cached reads, and renewals of leases |
//! | `rename/` | moves of a value to another key |
//!
//! **A read** gets the key's slots from the proxy, or one-sided, and reads the records that they
//! name. The record with the read's key counts. A pending slot stands for the record before it.
//!
//! **A write** looks the key up, writes the new record to all its copies and changes the slot. If
//! another write was faster, it looks again. Writes of one key by one node wait for each other
//! here, and sets are combined ([`crate::combining`]). If sets of different nodes meet at a slot,
//! the proxy accepts one of them. The other nodes remember the key ([`crate::contended`]) and leave
//! their next sets of it to the proxy, which combines them.
//!
//! **An unknown outcome.** If the proxy's node does not answer and then dies, the call asks until
//! the map says that the partition went on without that node. Then it looks. Either its record is
//! in the index, or it was superseded and has lost its valid bit, or it never was in the index and
//! never will be.
//!
//! Invariants:
//! 1. A write runs within the gate of its partition, except while it waits for the proxy of a
//!    contended key.
//! 2. At most one write per key and node is in progress, besides delegated sets.
//!
//! Thread-safety: any thread may call any method. No lock is held over an await.
//! Failure: a call that makes no progress within the settings' patience ends as busy.
//! Cost: a cached read costs one lock. Any other read takes two round trips, and a write at least
//! three.

mod cached;
mod delegated;
mod fast_path;
mod look;
mod notify;
mod rename;
mod submit;

use std::sync::Arc;

use archipelago_base::{Error, Result};

use crate::combining::{Combining, Entered};
use crate::contended::Contended;
use crate::format::{
    EXPIRY_MAX, HashedKey, KEY_BYTES_MAX, KeyHash, Record, Slot, key_hash, record_bytes,
};
use crate::node::caching::Keep;
use crate::node::records::Written;
use crate::node::{Node, PAUSE, Stat};
use crate::protocol::IndexProtocol as _;
use crate::proxy::Proxy;
use crate::table::FromCopy;
use crate::wire::{Assigned, Message, Why, WriteKind};
use crate::write_error::{WriteEffect, WriteError};

use cached::CachedRead;
use look::{Found, KeyLocation};
pub(crate) use notify::Notifier;
use submit::{Submitted, Unsettled};

pub use fast_path::{FAST_KEYS_MAX, Set};
pub(crate) use rename::rename;
pub use rename::{Destination, Renamed};

/// Number of tries after which a write doubles its pause.
const TRIES_PER_DOUBLING: u32 = 4;
/// Number of times that the pause of a write is doubled. The longest pause is some 5 ms.
const DOUBLINGS_MAX: u32 = 5;

/// A value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Bytes of the value.
    pub bytes: Vec<u8>,
    /// Unix time in milliseconds from which on the key counts as absent. 0 means never.
    pub expires_ms: u64,
    /// The version, for [`ComputeNode::compare_and_set`](crate::ComputeNode::compare_and_set).
    pub(crate) version: Version,
}

/// The record that a value was read from. Two versions are equal if they name the same slot word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Version {
    pub(crate) slot: Slot,
    /// Time by this node's clock until which the slot's word names only this record. An address
    /// lease after the record was freed, another value of the key may lie in its place under the
    /// same word.
    pub(crate) until_ns: u64,
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot
    }
}

impl Eq for Version {}

/// The condition under which a write applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum If {
    Always,
    Absent,
    Present,
    /// The key has this version, and the version's time is not over.
    Version(Version),
    /// The key has this version, which has expired.
    Expired(Slot),
}

impl If {
    /// Whether a record exists for a write with this condition. The write that removes expired
    /// records sees only those. Every other write sees only records that have not expired.
    pub(crate) fn counts(self, is_expired: bool) -> bool {
        matches!(self, Self::Expired(_)) == is_expired
    }

    /// Whether a write with this condition may replace `there`, the slot of a record that
    /// [counts](Self::counts) for it. The caller read the slot before `now_ns`.
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

/// A write that a caller asks for.
#[derive(Clone, Copy, Debug)]
struct Write<'a> {
    key: &'a [u8],
    hash: KeyHash,
    /// Value and expiry. `None` deletes the key.
    value: Option<(&'a [u8], u64)>,
    when: If,
    /// Whether another node asks, because this node is the key's proxy. Such a write is not passed
    /// on.
    delegated: bool,
}

impl Write<'_> {
    fn hashed_key(&self) -> HashedKey<'_> {
        HashedKey { hash: self.hash, key: self.key }
    }

    /// Whether the write sets the key without a condition.
    fn sets(&self) -> bool {
        self.when == If::Always && self.value.is_some()
    }

    /// Effect of the write on the index. `None` if there is none.
    fn kind(&self, found: Option<&Found>) -> Option<WriteKind> {
        match (found, self.value) {
            (Some(_), None) => Some(WriteKind::Delete),
            (Some(_), Some(_)) => Some(WriteKind::Update),
            (None, Some(_)) => Some(WriteKind::Insert),
            (None, None) => None,
        }
    }
}

/// Reads and writes of single keys. See the head of the module.
pub(crate) struct Client {
    node: Arc<Node>,
    proxy: Arc<Proxy>,
    notifier: Arc<Notifier>,
    /// Writes of this node's clients, by key.
    combining: Arc<Combining>,
    contended: Contended,
}

impl Client {
    pub(crate) fn new(node: Arc<Node>, proxy: Arc<Proxy>, notifier: Arc<Notifier>) -> Self {
        let (combining, contended) = (Arc::default(), Contended::default());
        Self { node, proxy, notifier, combining, contended }
    }

    /// Reads a key.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.node.stats().add(Stat::Reads);
        let (hash, until_ns) = (key_hash(key), self.node.until_ns());
        loop {
            let started_ns = self.node.now_ns();
            let (inside, entry) = self.node.enter(hash, until_ns).await?;
            let looked = match self.read_cached(entry, key, hash, until_ns).await? {
                CachedRead::Value(value) => Some(Some(value)),
                CachedRead::Nothing { reads } => {
                    self.find(entry, key, hash, reads, until_ns).await?
                }
            };
            drop(inside);
            let in_time = self.node.now_ns() - started_ns < self.node.settings().address_use_ns();
            if let Some(value) = looked
                && in_time
                && self.node.table().holds_lease()
            {
                self.node.count(entry.partition, true);
                return Ok(value.filter(|value| !self.node.is_expired(value.expires_ms)));
            }
            self.node.table().late(until_ns, "get")?;
            self.node.pause().await;
        }
    }

    /// Writes or deletes a key. Returns whether the write applied.
    pub(crate) async fn write(
        &self,
        key: &[u8],
        value: Option<(&[u8], u64)>,
        when: If,
    ) -> Result<bool, WriteError> {
        self.node.stats().add(Stat::Writes);
        // The limits are checked before the write is combined with others, because the others would
        // end with its error.
        self.check_limits(key, value).map_err(WriteError::without_effect)?;
        let write = Write { key, hash: key_hash(key), value, when, delegated: false };
        self.write_in_line(write).await.map(|(done, _)| done)
    }

    /// Deletes a key whose slot still holds `word`, if the record there has expired. It does not
    /// count as a client's call.
    pub(crate) async fn delete_expired(&self, key: &[u8], word: Slot) -> Result<bool, WriteError> {
        let (hash, when) = (key_hash(key), If::Expired(word));
        let write = Write { key, hash, value: None, when, delegated: true };
        self.write_in_line(write).await.map(|(done, _)| done)
    }

    /// Performs a write in its turn. Returns also whether no other write of the key was in progress
    /// at the same time.
    async fn write_in_line(&self, write: Write<'_>) -> Result<(bool, bool), WriteError> {
        let until_ns = self.node.until_ns();
        if !self.node.table().protocol().combines_writes() {
            // As published: each write on its own.
            return Ok((self.write_until(&write, until_ns).await?, true));
        }
        let sets = write.sets();
        if sets && self.is_left_to_proxy(&write) {
            // At the proxy it waits in one line with the sets of all nodes.
            return Ok((self.write_until(&write, until_ns).await?, false));
        }
        let mut alone = true;
        let lead = match self.combining.enter(write.hash, sets.then_some(write.key)) {
            Ok(lead) => lead,
            Err(waiting) => match waiting.await {
                Entered::Leads(lead) => {
                    alone = false;
                    if !sets {
                        // Sets that wait are combined. Other writes wait one by one, so one that
                        // waited too long gives up without a try.
                        let late = self
                            .node
                            .table()
                            .late(until_ns, "a write waited for others of its key");
                        late.map_err(WriteError::without_effect)?;
                    }
                    lead
                }
                Entered::Combined(result) => {
                    if result.is_ok() {
                        self.node.stats().add(Stat::Combined);
                        if let Ok(joined) = self.node.joined()
                            && !write.delegated
                        {
                            self.node.count(joined.geometry().partition(write.hash).0, false);
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

    async fn write_until(&self, write: &Write<'_>, until_ns: u64) -> Result<bool, WriteError> {
        let written = self.write_in_turns(write, until_ns).await;
        // The write may have left its record behind.
        written.inspect_err(|failed| {
            if failed.effect() == WriteEffect::Unknown {
                self.node.want_sweep();
            }
        })
    }

    async fn write_in_turns(&self, write: &Write<'_>, until_ns: u64) -> Result<bool, WriteError> {
        let mut unsettled: Option<Unsettled> = None;
        let (mut stuck, mut tries) = (0_u32, 0_u32);
        loop {
            let entered = self.node.enter(write.hash, until_ns).await;
            let (inside, entry) = entered.map_err(effect_of(&unsettled))?;
            let proxy = self.proxy_of_contended(write, entry).filter(|_| unsettled.is_none());
            let was_direct = proxy.is_none();
            let turn = match proxy {
                Some(peer) => {
                    // A change of the partition need not wait for the proxy's answer.
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
                    self.node.count(entry.partition, false);
                }
                return Ok(done);
            }
            let late = self.node.table().late(until_ns, "a write");
            late.map_err(effect_of(&unsettled))?;
            self.node.stats().add(Stat::Retries);
            let delegates = unsettled.is_none() && self.proxy_of_contended(write, entry).is_some();
            if was_direct && delegates {
                // At the proxy the set waits in line, so it need not pause here.
                continue;
            }
            // Each try writes a record, so a write that has tried often tries less often.
            for _ in 0..1_u32 << (tries / TRIES_PER_DOUBLING).min(DOUBLINGS_MAX) {
                self.node.pause().await;
            }
            tries += 1;
        }
    }

    /// Tries a write once. `None` if it must be tried again.
    async fn turn(
        &self,
        write: &Write<'_>,
        entry: Assigned,
        unsettled: &mut Option<Unsettled>,
        stuck: &mut u32,
        until_ns: u64,
    ) -> Result<Option<bool>, WriteError> {
        if let Some(mut open) = unsettled.take() {
            if open.entry == entry {
                // The same node serves the partition at the same epoch, so it knows the answer.
                return self.go_on(open, unsettled, until_ns).await;
            }
            match self.how_it_ended(write, entry, &mut open, until_ns).await? {
                Some(done) => return Ok(Some(done)),
                None => self.node.free_if_written(open.record),
            }
        }
        // Nothing was sent yet, so an error here has no effect.
        let not_done = WriteError::without_effect;
        let looked = match self.look_cached(entry, write).map_err(not_done)? {
            Some(looked) => looked,
            None => match self.look_for(entry, write, until_ns).await.map_err(not_done)? {
                Some(looked) => looked,
                None => return Ok(None),
            },
        };
        if let Some(pending) = looked.pending {
            // Another write of the key is in progress. If that lasts, its writer may be gone.
            *stuck += 1;
            if stuck.is_multiple_of(16) {
                self.ask_to_settle(entry, pending, until_ns).await.map_err(not_done)?;
            }
            return Ok(None);
        }
        let there = looked.found.as_ref().filter(|found| self.counts_for(write, found.expires_ms));
        if !write.when.applies(there.map(|found| found.slot), self.node.now_ns()) {
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

    /// Writes the new record, changes the slot that was found, and caches the written pair.
    async fn put_in(
        &self,
        write: &Write<'_>,
        entry: Assigned,
        kind: WriteKind,
        looked: &KeyLocation,
        until_ns: u64,
    ) -> Result<Submitted, WriteError> {
        let record = self.new_record(write, looked, until_ns).await;
        let record = record.map_err(WriteError::without_effect)?;
        let fetch = self.node.caching().begin_fetch(write.hash);
        let submitted = self.submit(write, entry, kind, looked, record, until_ns).await;
        if !matches!(submitted, Ok(Submitted::Done(_) | Submitted::Not)) || write.value.is_none() {
            // The outcome is unknown, or the cached entry is old.
            self.node.caching().invalidate(write.hash);
        }
        let Some((record, (value, expires_ms))) = record.zip(write.value) else { return submitted };
        match &submitted {
            Ok(Submitted::Done(done)) if self.node.table().holds_lease() => {
                let place = done.source.place(entry, done.index, record.slot);
                let keep = match done.cache {
                    true => Keep::Pair(value, expires_ms),
                    // The proxy does not know that this node has the address. So no read may follow
                    // it.
                    _ if entry.offloaded
                        && self.node.table().protocol().caches_slots_for_writes() =>
                    {
                        Keep::Slot
                    }
                    _ => Keep::Address,
                };
                self.node.caching().finish_fetch(fetch, write.hashed_key(), place, keep);
            }
            Ok(Submitted::Not | Submitted::Stale { .. } | Submitted::Full) => {
                self.node.free_unpublished(record);
            }
            Err(failed) if failed.effect() == WriteEffect::None => {
                self.node.free_unpublished(record);
            }
            _ => {}
        }
        submitted
    }

    /// Asks the coordinator for more room in a partition, and waits for a moment. Busy if a recent
    /// change found no memory for it, or if a larger subtable would make no room.
    async fn ask_to_grow(&self, entry: Assigned, until_ns: u64) -> Result<()> {
        let grow = Message::Grow { partition: entry.partition, epoch: entry.epoch };
        let coordinator = Arc::clone(self.node.peers().coordinator());
        match self.node.ask(&coordinator, &grow, until_ns).await {
            Ok(Message::Declined { why: Why::Full, .. }) => {
                let partition = entry.partition;
                return Err(Error::busy(format!(
                    "the memory nodes are full, or too many keys share their slots: partition {partition} takes no further key there before others are deleted"
                )));
            }
            Ok(_) => {}
            // The next try of the write asks again.
            Err(error) => tracing::debug!(%error, "the coordinator does not answer"),
        }
        self.node.runtime().sleep(PAUSE * 10).await;
        Ok(())
    }

    /// Looks a key up for a write, at the proxy or in the index in the pool. The result includes a
    /// time of the partition's node before the look-up.
    async fn look_for(
        &self,
        entry: Assigned,
        write: &Write<'_>,
        until_ns: u64,
    ) -> Result<Option<KeyLocation>> {
        let valid_ns = self.node.now_ns() + self.node.settings().address_use_ns();
        let looked = if entry.offloaded && self.node.table().protocol().looks_up_at_proxy() {
            // The proxy is asked, because the network cards of memory nodes are busier than
            // proxies.
            self.look_at_proxy(entry, write.key, write.hash, until_ns).await?
        } else {
            let Some(stamp_us) = self.stamp_of(entry).await? else { return Ok(None) };
            // A proxy compares the slot with its own. Without a proxy the first copy decides.
            let which = if entry.offloaded { FromCopy::Any } else { FromCopy::First };
            let looked = self.look(which, entry, write.key, write.hash, until_ns).await?;
            looked.map(|looked| KeyLocation { stamp_us, ..looked })
        };
        let Some(looked) = looked else { return Ok(None) };
        // Without the pool's lease, a position counts only together with its word.
        let exact = !write.sets() || !self.node.table().holds_lease();
        Ok(Some(KeyLocation { valid_ns, exact, ..looked }))
    }

    /// Decides a write that seems not to apply. The copies in the pool may be ahead of the proxy's
    /// slots by a write that is not committed. The caller must get an answer about committed
    /// values, so the key is read as `get` reads it.
    async fn declines(
        &self,
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
            if write.when.applies(slot, self.node.now_ns()) {
                return Ok(None);
            }
        }
        // The answer counts only if this node was a member when it read.
        Ok(self.node.table().holds_lease().then_some(false))
    }

    /// Writes the new record to all its copies. A deletion has no record.
    async fn new_record(
        &self,
        write: &Write<'_>,
        looked: &KeyLocation,
        until_ns: u64,
    ) -> Result<Option<Written>> {
        let Some((value, expires_ms)) = write.value else { return Ok(None) };
        let previous = looked.found.as_ref().map_or(0, |found| found.slot.0);
        let writer = self.node.client().0;
        let record = Record { expires_ms, previous, writer, ..Record::new(write.key, value) };
        self.node.write_record(&record, write.hash, until_ns).await.map(Some)
    }

    /// Whether a record with this expiry exists for `write`.
    fn counts_for(&self, write: &Write<'_>, expires_ms: u64) -> bool {
        write.when.counts(self.node.is_expired(expires_ms))
    }

    /// Refuses a write that exceeds a limit of the format.
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
        let block_bytes = self.node.pool().block_bytes();
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

impl rename::Keys for Client {
    async fn read_key(&self, key: &[u8]) -> Result<Option<Value>> {
        self.get(key).await
    }

    async fn write_key(
        &self,
        key: &[u8],
        value: Option<(&[u8], u64)>,
        when: If,
    ) -> Result<bool, WriteError> {
        self.write(key, value, when).await
    }
}

/// Chooses the constructor for the error of a write that has sent `unsettled`, and nothing else
/// that could take effect.
fn effect_of(unsettled: &Option<Unsettled>) -> fn(Error) -> WriteError {
    match unsettled {
        Some(_) => WriteError::of_unknown_effect,
        None => WriteError::without_effect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_of_an_expired_record_applies_to_no_record_that_lasts() {
        let word = Slot::live(1, 64, 2).expect("fits");
        let applies = |when: If, is_expired: bool| {
            when.applies(Some(word).filter(|_| when.counts(is_expired)), 0)
        };
        assert!(applies(If::Expired(word), true));
        assert!(!applies(If::Expired(word), false), "the key was written again under the word");
        assert!(!applies(If::Expired(Slot::EMPTY), true));
        assert!(applies(If::Present, false) && !applies(If::Present, true));
        assert!(applies(If::Absent, true) && !applies(If::Absent, false));
    }
}
