//! Reads and writes by what this node has cached.
//!
//! **A pair** that may be served is the newest value: its proxy commits no other before this node
//! has dropped it, or could no longer serve it ([`crate::node::caching`]). The read takes effect
//! when it is found.
//!
//! **An address** leads to a record. If that has its valid bit, it was the newest when it was read:
//! who supersedes it clears the bit on all copies before the commit, and the record's room is not
//! used again while anybody acts on its address. So every such read renews the address. Without the
//! bit the address is dropped, and the key looked up.
//!
//! **A write** needs the key's slot. A cached pair gives it with the word that is there now; a
//! cached address with one that was, which serves a `set`: the proxy takes the position alone if it
//! was confirmed within a slot lease, and one-sided the swap decides. Other conditions are only
//! judged by what is surely the newest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::Result;

use super::look::{Found, Looked, Read};
use super::{Value, Version, Write, expired};
use crate::cache::Place;
use crate::format::{KeyHash, Slot, SlotIndex, key_hash};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::Stamp;
use crate::node::caching::{Asker, Lookup, Pair, count};
use crate::node::{Count, Inner};
use crate::protocol::IndexProtocol as _;
use crate::table::FromCopy;
use crate::wire::{Assigned, Grant};

/// What the cache did for a read.
pub(super) enum Served {
    /// It had the value.
    Value(Value),
    /// Nothing; so many reads are to be told along with the look-up.
    Nothing { reads: u32 },
}

/// Under which of a proxy's leases something was learned; of this node's partitions, and of those
/// without a proxy, none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Source {
    pub(super) owner: Option<ComputeId>,
    pub(super) session: u64,
    pub(super) stamp_us: u64,
    pub(super) seen_ns: u64,
}

impl Source {
    /// The proxy's answer to a request before which this node's clock was `seen_ns`.
    pub(super) fn of_proxy(entry: Assigned, grant: Grant, seen_ns: u64) -> Self {
        let Grant { session, stamp_us, .. } = grant;
        Self { owner: Some(ComputeId(entry.node)), session, stamp_us, seen_ns }
    }

    pub(super) fn place(self, entry: Assigned, index: SlotIndex, word: Slot) -> Place {
        Place {
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

impl Inner {
    fn asker(&self, entry: Assigned) -> Result<Asker> {
        let me = ComputeId(self.joined()?.number);
        Ok(Asker { me, entry, now_ns: self.now_ns() })
    }

    /// The version that a slot's word names, which was the newest at some time from `since_ns` on.
    pub(super) fn version(&self, slot: Slot, since_ns: u64) -> Version {
        let until_ns = since_ns.saturating_add(self.settings.address_use_ns());
        Version { slot, until_ns }
    }

    /// A read that a cached pair answers without waiting for anybody; `None`: it is to be read
    /// properly, and nothing was counted.
    ///
    /// It takes effect between a look at the clock and the look at the cache. What lay there at the
    /// first, while this node was a member and held the proxy's lease, was the newest value then;
    /// what was put in since was the newest when it came.
    pub(crate) fn read_at_once(self: &Arc<Self>, key: &[u8]) -> Option<Option<Value>> {
        let joined = self.joined().ok()?;
        let now_ns = self.now_ns();
        if !self.table.protocol.serves_pairs_immediately() || !self.table.held_lease(now_ns) {
            return None;
        }
        let hash = key_hash(key);
        let partition = joined.geometry.partition(hash);
        let inside = joined.gates.try_enter(partition)?;
        let entry = joined.map.read().entries[partition.0 as usize];
        let asker = Asker { me: ComputeId(joined.number), entry, now_ns };
        let Pair { value, expires_ms, word, due } = self.caching.read_pair(hash, key, &asker)?;
        drop(inside);
        if !due.is_empty() {
            self.tell_reads(due);
        }
        self.counts.add(Count::Reads);
        self.count(entry.partition, true);
        let version = self.version(word, now_ns);
        let value = Value { bytes: value, expires_ms, version };
        Some(Some(value).filter(|value| !expired(value.expires_ms, self)))
    }

    /// A read by what is cached, within the partition's door. The caller looks at the pool's lease
    /// afterwards.
    pub(super) async fn read_cached(
        self: &Arc<Self>,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Served> {
        let asker = self.asker(entry)?;
        let place = match self.caching.read(hash, key, &asker) {
            Lookup::Nothing { reads } => return Ok(Served::Nothing { reads }),
            Lookup::Pair { value, expires_ms, place, due } => {
                if !due.is_empty() {
                    self.tell_reads(due);
                }
                let version = self.version(place.word, asker.now_ns);
                let value = Value { bytes: value, expires_ms, version };
                return Ok(Served::Value(value));
            }
            Lookup::Address(place) => place,
        };
        let seen_ns = self.now_ns();
        let heard_us = self.heard_of(entry)?.unwrap_or(0);
        if self.table.protocol.reads_buckets_with_record() {
            self.table.candidates(FromCopy::First, entry.shape, hash, until_ns).await?;
        }
        let read = self.read_records(&[place.word], key, until_ns).await?.pop();
        let in_time = self.now_ns() < place.seen_ns.saturating_add(self.settings.address_use_ns());
        if let Some(Read::Mine { value, expires_ms, valid: true, .. }) = read
            && in_time
            && self.table.holds_lease()
        {
            let at_us = place.stamp.at_us.max(heard_us);
            let place = Place { stamp: Stamp { at_us, ..place.stamp }, seen_ns, ..place };
            self.caching.renew(hash, key, place);
            let version = self.version(place.word, seen_ns);
            return Ok(Served::Value(Value { bytes: value, expires_ms, version }));
        }
        count(&self.caching.counters.stale_addresses);
        self.caching.invalidate(hash);
        Ok(Served::Nothing { reads: 0 })
    }

    /// The clock of the partition's proxy, as it was heard last.
    fn heard_of(&self, entry: Assigned) -> Result<Option<u64>> {
        let Some(peer) = self.node_of(entry)? else { return Ok(Some(self.now_us())) };
        Ok(peer.heard(self.now_ns(), self.settings.address_use_ns()))
    }

    /// The slot for a write, if the cache knows it.
    pub(super) fn look_cached(&self, entry: Assigned, write: &Write<'_>) -> Result<Option<Looked>> {
        // Before the cache is asked: what it has was there then, or later.
        let heard_us = self.heard_of(entry)?.unwrap_or(0);
        let asker = self.asker(entry)?;
        let Some((place, expires_ms)) = self.caching.place(write.hash, write.key, &asker) else {
            return Ok(None);
        };
        let sets = write.sets();
        if !sets && expires_ms.is_none() || !self.table.holds_lease() {
            return Ok(None);
        }
        self.caching.counters.resolved_writes.fetch_add(1, Ordering::Relaxed);
        let is_pair = expires_ms.is_some();
        let stamp_us = if is_pair { place.stamp.at_us.max(heard_us) } else { place.stamp.at_us };
        let found =
            Found { index: place.slot, slot: place.word, expires_ms: expires_ms.unwrap_or(0) };
        // A pair is the newest now; an address was when it was read.
        let since_ns = if is_pair { asker.now_ns } else { place.seen_ns };
        Ok(Some(Looked {
            found: Some(found),
            stamp_us,
            valid_ns: since_ns.saturating_add(self.settings.address_use_ns()),
            exact: !sets,
            ..Looked::default()
        }))
    }
}
