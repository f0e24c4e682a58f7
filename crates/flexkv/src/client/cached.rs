//! Reads and writes by what this node has cached.
//!
//! **A pair** that may be served is the newest value. Its proxy commits no other value before this
//! node has dropped the pair, or may no longer serve it (`node/caching/`). The read takes effect
//! when the cache finds the pair.
//!
//! **An address** leads to a record. If the record has its valid bit, it was the newest when it was
//! read. The node that supersedes it clears the bit on all copies before the commit. Its memory is
//! not reused while any node acts on the address. So each such read renews the address. Without the
//! bit, the address is dropped and the key is looked up.
//!
//! **A write** needs the key's slot. A cached pair gives it with the current word. A cached address
//! gives it with a former word, which suffices for a set. The proxy accepts a position that was
//! confirmed within a slot lease. One-sided, the swap decides. Other conditions need the newest
//! value.

use archipelago_base::Result;

use super::look::{Found, KeyLocation, Read};
use super::{Client, Value, Version, Write};
use crate::cache::CachedSlot;
use crate::format::{KeyHash, Slot, SlotIndex, key_hash};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::Stamp;
use crate::node::Stat;
use crate::node::caching::{Asker, CacheStat, Lookup, Pair};
use crate::protocol::IndexProtocol as _;
use crate::table::FromCopy;
use crate::wire::{Assigned, Grant};

/// Result of a read by the cache.
pub(super) enum CachedRead {
    /// The cache had the value.
    Value(Value),
    /// The cache had nothing. The look-up carries this number of reads to the proxy.
    Nothing { reads: u32 },
}

/// The proxy's lease under which an answer was learned. The default, without an owner, is for
/// partitions without a proxy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Source {
    pub(super) owner: Option<ComputeId>,
    pub(super) session: u64,
    pub(super) stamp_us: u64,
    pub(super) seen_ns: u64,
}

impl Source {
    /// The source of a proxy's answer to a request that was sent when this node's clock was
    /// `seen_ns`.
    pub(super) fn of_proxy(entry: Assigned, grant: Grant, seen_ns: u64) -> Self {
        let Grant { session, stamp_us, .. } = grant;
        Self { owner: Some(ComputeId(entry.node)), session, stamp_us, seen_ns }
    }

    pub(super) fn place(self, entry: Assigned, index: SlotIndex, word: Slot) -> CachedSlot {
        CachedSlot {
            partition: PartitionId(entry.partition),
            slot: index,
            word,
            owner: self.owner,
            session: self.session,
            stamp: Stamp { epoch: entry.epoch, at_us: self.stamp_us },
            seen_ns: self.seen_ns,
        }
    }
}

impl Client {
    fn asker(&self, entry: Assigned) -> Result<Asker> {
        let me = self.node.joined()?.me();
        Ok(Asker { me, entry, now_ns: self.node.now_ns() })
    }

    /// The version of a slot's word that was the newest at some time from `since_ns` on.
    pub(super) fn version(&self, slot: Slot, since_ns: u64) -> Version {
        let until_ns = since_ns.saturating_add(self.node.settings().address_use_ns());
        Version { slot, until_ns }
    }

    /// Reads a key without waiting, if its pair is cached and may be served. Otherwise `None`, and
    /// nothing is counted.
    ///
    /// The read takes effect between the reading of the clock and the look into the cache. A pair
    /// that lay in the cache at the first of these moments was the newest then, because this node
    /// was a member and held the proxy's lease. A pair that was put in since was the newest when it
    /// arrived.
    pub(crate) fn read_fast(&self, key: &[u8]) -> Option<Option<Value>> {
        let joined = self.node.joined().ok()?;
        let now_ns = self.node.now_ns();
        let table = self.node.table();
        if !table.protocol().serves_pairs_immediately() || !table.held_lease(now_ns) {
            return None;
        }
        let hash = key_hash(key);
        let partition = joined.geometry().partition(hash);
        let inside = joined.gates().try_enter(partition)?;
        let entry = joined.entry(partition);
        let asker = Asker { me: joined.me(), entry, now_ns };
        let Pair { value, expires_ms, word, due } =
            self.node.caching().read_pair(hash, key, &asker)?;
        drop(inside);
        if !due.is_empty() {
            self.notifier.report_reads(due);
        }
        self.node.stats().add(Stat::Reads);
        self.node.count(entry.partition, true);
        let version = self.version(word, now_ns);
        let value = Value { bytes: value, expires_ms, version };
        Some(Some(value).filter(|value| !self.node.is_expired(value.expires_ms)))
    }

    /// Reads a key by its cached entry, within the partition's gate. The caller checks the pool's
    /// lease afterwards.
    pub(super) async fn read_cached(
        &self,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<CachedRead> {
        let asker = self.asker(entry)?;
        let place = match self.node.caching().read(hash, key, &asker) {
            Lookup::Nothing { reads } => return Ok(CachedRead::Nothing { reads }),
            Lookup::Pair { value, expires_ms, place, due } => {
                if !due.is_empty() {
                    self.notifier.report_reads(due);
                }
                let version = self.version(place.word, asker.now_ns);
                let value = Value { bytes: value, expires_ms, version };
                return Ok(CachedRead::Value(value));
            }
            Lookup::Address(place) => place,
        };
        let seen_ns = self.node.now_ns();
        let heard_us = self.heard_of(entry)?.unwrap_or(0);
        if self.node.table().protocol().reads_buckets_with_record() {
            // If the address is old, reading the buckets now saves a round trip. The price is two
            // more READs for each read.
            self.node.table().candidates(FromCopy::First, entry.shape, hash, until_ns).await?;
        }
        let read = self.read_records(&[place.word], key, until_ns).await?.pop();
        let in_time = self.node.now_ns()
            < place.seen_ns.saturating_add(self.node.settings().address_use_ns());
        if let Some(Read::Mine { value, expires_ms, valid: true, .. }) = read
            && in_time
            && self.node.table().holds_lease()
        {
            let at_us = place.stamp.at_us.max(heard_us);
            let place = CachedSlot { stamp: Stamp { at_us, ..place.stamp }, seen_ns, ..place };
            self.node.caching().renew(hash, key, place);
            let version = self.version(place.word, seen_ns);
            return Ok(CachedRead::Value(Value { bytes: value, expires_ms, version }));
        }
        self.node.caching().count(CacheStat::StaleAddresses);
        self.node.caching().invalidate(hash);
        Ok(CachedRead::Nothing { reads: 0 })
    }

    /// The clock of the partition's proxy from its latest answer.
    fn heard_of(&self, entry: Assigned) -> Result<Option<u64>> {
        let Some(peer) = self.node.node_of(entry)? else { return Ok(Some(self.node.now_us())) };
        Ok(peer.heard(self.node.now_ns(), self.node.settings().address_use_ns()))
    }

    /// The slot for a write, if it is cached.
    pub(super) fn look_cached(
        &self,
        entry: Assigned,
        write: &Write<'_>,
    ) -> Result<Option<KeyLocation>> {
        // The clock is read before the look into the cache, so that the entry was valid at this
        // time or later.
        let heard_us = self.heard_of(entry)?.unwrap_or(0);
        let asker = self.asker(entry)?;
        let Some((place, expires_ms)) = self.node.caching().place(write.hash, write.key, &asker)
        else {
            return Ok(None);
        };
        let sets = write.sets();
        if !sets && expires_ms.is_none() || !self.node.table().holds_lease() {
            return Ok(None);
        }
        self.node.caching().count(CacheStat::ResolvedWrites);
        let is_pair = expires_ms.is_some();
        let stamp_us = if is_pair { place.stamp.at_us.max(heard_us) } else { place.stamp.at_us };
        let found =
            Found { index: place.slot, slot: place.word, expires_ms: expires_ms.unwrap_or(0) };
        // A pair is the newest now. An address was the newest when it was read.
        let since_ns = if is_pair { asker.now_ns } else { place.seen_ns };
        Ok(Some(KeyLocation {
            found: Some(found),
            stamp_us,
            valid_ns: since_ns.saturating_add(self.node.settings().address_use_ns()),
            exact: !sets,
            ..KeyLocation::default()
        }))
    }
}
