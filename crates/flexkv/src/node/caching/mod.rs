//! What this node has cached of the store, the leases under which it may serve that, and the
//! account of its memory.
//!
//! The node owns one [`Caching`]. One lock guards the [`LocalCache`] with the account of the memory
//! limit, the reads that it served and has not reported, and the leases that this node *holds*. The
//! leases that it *gives* are in `proxy/invalidation.rs`.
//!
//! **What may be served.** The cache serves an entry only at the partition's current epoch. The
//! caller must be within the partition's gate, and must hold the pool's lease.
//!
//! - A pair, or an address in an offloaded partition, needs the lease of the partition's proxy, in
//!   the session in which it was cached. This node's own partitions need no lease, because their
//!   invalidations pass through no network.
//! - An address in a partition without a proxy may always be followed. The valid bit of the record
//!   decides.
//! - An address may be followed for at most an address lease, because freed records stay unchanged
//!   for that long.
//!
//! **The account.** The memory limit covers the cache ([`LocalCache`] has the table), the counts of
//! reads, and the index of offloaded partitions ([`Caching::charge`]; dropping the [`Charge`] gives
//! the bytes back). It does not cover the buffers of requests in progress.
//!
//! Invariants:
//! 1. The bytes in use never exceed the limit.
//! 2. Nothing is cached that was invalidated after it was requested.
//! 3. After a partition was paused ([`Caching::paused`]), nothing of it is cached. So no node has
//!    anything of an earlier epoch.
//! 4. When a granter begins a new session, everything cached under the old one is dropped before
//!    the new session counts.
//!
//! Thread-safety: any thread may call any method. No lock is held over an await.
//! Failure: an index that does not fit the limit is refused.
//! Cost: a hit takes one lock, reads two or three entries and copies the value. Paper: §4.4 and
//! Figure 8. The leases are an addition.

mod multi;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Error, Result};
use archipelago_pool::ClientId;
use parking_lot::Mutex;

use super::peers::PeerIdentity;
use crate::cache::{
    Cached, CachedSlot, EntryKind, FIXED_BYTES, Fetch, Finished, Hit, LocalCache, Short,
};
use crate::contended::CONTENDED_BYTES;
use crate::format::{HashedKey, KeyHash, Slot};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::{Adopted, Granted, Holder, Terms};
use crate::read_reports::{READS_WAIT_NS, ReadReport, ReadReports};
use crate::settings::{CacheMode, FlexKvSettings};
use crate::wire::{Assigned, Grant, Member};

pub(crate) use multi::{LockedCache, ServedPair, WrittenPair};

/// Number of due reports of reads after which they are sent without waiting for the next interval.
const DUE_MAX: usize = 64;
/// Bytes of the limit per key whose reads are counted.
const BYTES_PER_COUNT: u64 = 4096;

/// Counters and contents of a node's cache, and the use of its memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// Reads that a cached pair answered.
    pub pair_hits: u64,
    /// Reads that a cached address answered.
    pub address_hits: u64,
    /// Reads for which the cache could serve nothing.
    pub misses: u64,
    /// Cached addresses whose record was superseded when it was read.
    pub stale_addresses: u64,
    /// Writes whose slot was cached.
    pub resolved_writes: u64,
    /// Invalidations that this node sent as a proxy.
    pub invalidations_sent: u64,
    /// Invalidations that were not acknowledged, so that the sharer's lease had to run out.
    pub invalidations_waited_out: u64,
    /// Invalidations that this node received.
    pub invalidations_received: u64,
    /// Entries that were evicted for others.
    pub evicted: u64,
    /// Entries that were invalidated, alone or with their partition or proxy.
    pub invalidated: u64,
    /// Fetched values that were not cached, because they were invalidated on their way.
    pub refused: u64,
    /// Number of cached pairs.
    pub pairs: u64,
    /// Number of cached addresses.
    pub addresses: u64,
    /// The memory limit, in bytes.
    pub limit_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes of the slots and metadata of offloaded partitions.
    pub index_bytes: u64,
    /// Bytes of cached addresses and pairs.
    pub entry_bytes: u64,
    /// Bytes that are always in use.
    pub fixed_bytes: u64,
    /// Partitions that the coordinator offloaded to this node and that did not fit.
    pub partitions_refused: u64,
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CacheStat {
    PairHits,
    AddressHits,
    Misses,
    StaleAddresses,
    ResolvedWrites,
    InvalidationsSent,
    InvalidationsWaitedOut,
    InvalidationsReceived,
    PartitionsRefused,
}

/// Number of variants of [`CacheStat`].
const STATS: usize = CacheStat::PartitionsRefused as usize + 1;

/// A lease that another node gave this one.
#[derive(Debug)]
struct Held {
    client: ClientId,
    holder: Holder,
    /// Whether anything was served under the lease since this node last asked to renew it for that
    /// reason.
    used: bool,
}

/// State that the lock guards.
#[derive(Debug)]
struct CacheState {
    cache: LocalCache,
    reads: ReadReports,
    due: Vec<ReadReport>,
    held: Leases,
}

/// The cache of a node, with its leases and its account. See the head of the module.
#[derive(Debug)]
pub(crate) struct Caching {
    mode: CacheMode,
    terms: Terms,
    address_use_ns: u64,
    /// Bytes of the limit for the counts of reads and the marks of contended keys.
    count_bytes: u64,
    state: Mutex<CacheState>,
    stats: [AtomicU64; STATS],
}

/// Result of a cache look-up for a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The pair. `due` are the reports of reads that the caller must send now.
    Pair { value: Vec<u8>, expires_ms: u64, place: CachedSlot, due: Vec<ReadReport> },
    /// The address of a record that may be the newest.
    Address(CachedSlot),
    /// Nothing. The caller's request carries this number of reads.
    Nothing { reads: u32 },
}

/// Part of an answer that may be cached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep<'a> {
    /// The value and its expiry. If they do not fit, the address.
    Pair(&'a [u8], u64),
    Address,
    /// The position of the slot, for writes.
    Slot,
}

/// A pair that may be served. `due` are the reports of reads that the caller must send now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) value: Vec<u8>,
    pub(crate) expires_ms: u64,
    pub(crate) word: Slot,
    pub(crate) due: Vec<ReadReport>,
}

/// Bytes of the limit that the index uses. Dropping the charge gives them back.
#[derive(Debug)]
pub(crate) struct Charge {
    caching: Arc<Caching>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.caching.state.lock().cache.release_index(self.bytes);
    }
}

/// The node that reads its cache, and the entry of the key's partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) me: ComputeId,
    pub(crate) entry: Assigned,
    pub(crate) now_ns: u64,
}

/// The leases that other nodes gave this one, by the granter's number.
type Leases = BTreeMap<u32, Held>;

/// Whether the entry that was cached at `place` may be served.
fn may_serve(
    held: &mut Leases,
    place: &CachedSlot,
    asker: &Asker,
    is_pair: bool,
    use_ns: u64,
) -> bool {
    let Asker { me, entry, now_ns } = *asker;
    if place.partition.0 != entry.partition || place.stamp.epoch != entry.epoch {
        return false;
    }
    if !is_pair && now_ns >= place.seen_ns.saturating_add(use_ns) {
        return false;
    }
    let Some(owner) = place.owner else { return !entry.offloaded };
    if owner.0 != entry.node || !entry.offloaded {
        return false;
    }
    if owner == me {
        return true;
    }
    let Some(held) = held.get_mut(&owner.0) else { return false };
    let serves = held.holder.may_serve(now_ns, place.session);
    held.used |= serves;
    serves
}

/// Takes the due reports of reads, if there are many.
fn take_due(due: &mut Vec<ReadReport>) -> Vec<ReadReport> {
    if due.len() < DUE_MAX {
        return Vec::new();
    }
    std::mem::replace(due, Vec::with_capacity(DUE_MAX))
}

impl Caching {
    pub(crate) fn new(settings: &FlexKvSettings) -> Result<Self> {
        let limit = settings.memory_limit;
        let short =
            |short: Short| Error::invalid(format!("the memory limit is too small: {short}"));
        let mut cache = LocalCache::new(limit).map_err(short)?;
        let keys_max = (limit / BYTES_PER_COUNT).clamp(16, 4096) as usize;
        let reads = ReadReports::new(keys_max, READS_WAIT_NS);
        let due = Vec::with_capacity(DUE_MAX);
        let count_bytes =
            reads.bytes_max() + (DUE_MAX * size_of::<ReadReport>()) as u64 + CONTENDED_BYTES;
        cache.charge_index(count_bytes).map_err(short)?;
        let state = CacheState { cache, reads, due, held: BTreeMap::new() };
        Ok(Self {
            mode: settings.cache,
            terms: settings.terms(),
            address_use_ns: settings.address_use_ns(),
            count_bytes,
            state: Mutex::new(state),
            stats: Default::default(),
        })
    }

    /// Counts one event.
    #[inline]
    pub(crate) fn count(&self, stat: CacheStat) {
        self.stats[stat as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn mode(&self) -> CacheMode {
        self.mode
    }

    /// Whether a sixteenth of the limit is free, so that a pair displaces no other entry.
    pub(crate) fn has_room(&self) -> bool {
        Self::room_in(&self.state.lock().cache)
    }

    fn room_in(cache: &LocalCache) -> bool {
        let limit = cache.limit_bytes();
        cache.used_bytes() <= limit - limit / 16
    }

    /// Largest number of bytes that the index of offloaded partitions may take.
    pub(crate) fn index_bytes_max(&self) -> u64 {
        self.state.lock().cache.limit_bytes() - FIXED_BYTES - self.count_bytes
    }

    /// Takes `bytes` of the limit for the index, and evicts entries for them.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> std::result::Result<Charge, Short> {
        self.state.lock().cache.charge_index(bytes)?;
        Ok(Charge { caching: Arc::clone(self), bytes })
    }

    /// Looks up a key for a read. A hit is counted for the key's proxy and in the statistics.
    pub(crate) fn read(&self, hash: KeyHash, key: &[u8], asker: &Asker) -> Lookup {
        let nothing = |reads| {
            self.count(CacheStat::Misses);
            Lookup::Nothing { reads }
        };
        if self.mode == CacheMode::Off {
            return nothing(0);
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let servable = self.servable(state, hash, key, asker);
        let Some((place, kind)) = servable.filter(|(_, kind)| *kind != EntryKind::Slot) else {
            return nothing(state.reads.take(hash));
        };
        let is_pair = kind == EntryKind::Pair;
        if self.mode == CacheMode::Pairs && place.owner.is_some() {
            let told = state.reads.add(hash, place.partition, place.slot, asker.now_ns);
            match told {
                // The report goes to the proxy with a look-up. Its answer may say that the pair is
                // worth caching by now.
                Some(told) if !is_pair && told.hash == hash => return nothing(told.reads),
                Some(told) => state.due.push(told),
                None => {}
            }
        }
        if !is_pair {
            return Lookup::Address(place);
        }
        self.count(CacheStat::PairHits);
        let due = take_due(&mut state.due);
        match state.cache.get(hash, key).map(|hit| hit.cached) {
            Some(Cached::Pair { value, expires_ms }) => {
                Lookup::Pair { value: value.to_vec(), expires_ms, place, due }
            }
            _ => nothing(0),
        }
    }

    /// A pair that may be served. It is counted as [`Caching::read`] does. Without a pair nothing
    /// is counted.
    pub(crate) fn read_pair(&self, hash: KeyHash, key: &[u8], asker: &Asker) -> Option<Pair> {
        if self.mode != CacheMode::Pairs {
            return None;
        }
        let mut guard = self.state.lock();
        let CacheState { cache, reads, due, held } = &mut *guard;
        let Hit { place, cached: Cached::Pair { value, expires_ms } } = cache.get(hash, key)?
        else {
            return None;
        };
        if !may_serve(held, &place, asker, true, self.address_use_ns) {
            return None;
        }
        if place.owner.is_some() {
            due.extend(reads.add(hash, place.partition, place.slot, asker.now_ns));
        }
        self.count(CacheStat::PairHits);
        let (value, due) = (value.to_vec(), take_due(due));
        Some(Pair { value, expires_ms, word: place.word, due })
    }

    /// Place of the key's slot, for a write. If the pair is cached, also its expiry.
    pub(crate) fn place(
        &self,
        hash: KeyHash,
        key: &[u8],
        asker: &Asker,
    ) -> Option<(CachedSlot, Option<u64>)> {
        if self.mode == CacheMode::Off {
            return None;
        }
        let mut state = self.state.lock();
        let (place, _) = self.servable(&mut state, hash, key, asker)?;
        let expires_ms = match state.cache.get(hash, key)?.cached {
            Cached::Pair { expires_ms, .. } => Some(expires_ms),
            Cached::Address | Cached::Slot => None,
        };
        Some((place, expires_ms))
    }

    fn servable(
        &self,
        state: &mut CacheState,
        hash: KeyHash,
        key: &[u8],
        asker: &Asker,
    ) -> Option<(CachedSlot, EntryKind)> {
        let Hit { place, cached } = state.cache.get(hash, key)?;
        let kind = cached.kind();
        let is_pair = kind == EntryKind::Pair;
        let serves = may_serve(&mut state.held, &place, asker, is_pair, self.address_use_ns);
        serves.then_some((place, kind))
    }

    /// Takes the number of reads of the key that a request carries to the proxy.
    pub(crate) fn take_reads(&self, hash: KeyHash) -> u32 {
        self.state.lock().reads.take(hash)
    }

    /// Begins a request whose answer may be cached.
    pub(crate) fn begin_fetch(&self, hash: KeyHash) -> Option<Fetch> {
        (self.mode != CacheMode::Off).then(|| self.state.lock().cache.begin_fetch(hash))
    }

    /// Caches the answer to a request, unless the key was invalidated since the request.
    pub(crate) fn finish_fetch(
        &self,
        fetch: Option<Fetch>,
        key: HashedKey<'_>,
        place: CachedSlot,
        keep: Keep<'_>,
    ) {
        let HashedKey { hash, key } = key;
        let Some(fetch) = fetch else { return };
        let mut state = self.state.lock();
        let pair = match keep {
            Keep::Pair(value, expires_ms) if self.mode == CacheMode::Pairs => {
                Cached::Pair { value, expires_ms }
            }
            Keep::Slot => {
                state.cache.finish_fetch(fetch, key, place, Cached::Slot);
                return;
            }
            Keep::Pair(..) | Keep::Address => {
                state.cache.finish_fetch(fetch, key, place, Cached::Address);
                return;
            }
        };
        if state.cache.finish_fetch(fetch, key, place, pair) == Finished::TooLarge {
            // The key was not invalidated so far, and the lock is held.
            let fetch = state.cache.begin_fetch(hash);
            state.cache.finish_fetch(fetch, key, place, Cached::Address);
        }
    }

    /// Notes that the record at a cached address was the newest when it was read.
    pub(crate) fn renew(&self, hash: KeyHash, key: &[u8], place: CachedSlot) {
        self.count(CacheStat::AddressHits);
        self.state.lock().cache.renew(hash, key, place);
    }

    /// Drops the cached entry of a key.
    pub(crate) fn invalidate(&self, hash: KeyHash) {
        self.state.lock().cache.invalidate(hash);
    }

    /// Drops everything of these partitions, which are in ascending order. They get other owners or
    /// shapes, and no request reads or writes them now.
    pub(crate) fn paused(&self, partitions: &[PartitionId]) {
        let mut state = self.state.lock();
        state.cache.invalidate_partitions(partitions);
        state.reads.forget(partitions);
        state.due.retain(|due| partitions.binary_search(&due.partition).is_err());
    }

    /// Forgets the leases of nodes that are no longer members.
    pub(crate) fn retain(&self, members: &[Member]) {
        let stays = |number: u32, client| {
            members.iter().any(|member| member.number == number && member.client == client)
        };
        self.state.lock().held.retain(|number, held| stays(*number, held.client));
    }

    /// Takes the lease from an answer of `granter` to a request that was first sent at `sent_ns`.
    /// `is_member` says whether the map names the granter.
    pub(crate) fn granted(
        &self,
        granter: PeerIdentity,
        sent_ns: u64,
        grant: Grant,
        is_member: impl FnOnce() -> bool,
    ) {
        if grant.session == 0 || self.mode == CacheMode::Off {
            return;
        }
        let PeerIdentity { number, client } = granter;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.held.get(&number).is_none_or(|held| held.client != client) {
            if !is_member() {
                return;
            }
            let holder = Holder::new(self.terms);
            state.held.insert(number, Held { client, holder, used: false });
            state.cache.invalidate_owner(ComputeId(number));
        }
        let Some(held) = state.held.get_mut(&number) else { return };
        let lease_ns = grant.lease_us.saturating_mul(1000);
        let granted = Granted { session: grant.session, lease_ns };
        if held.holder.on_answer(sent_ns, granted) == Adopted::DropAll {
            state.cache.invalidate_owner(ComputeId(number));
            held.holder.dropped();
        }
    }

    /// Takes the reports of reads that have waited long enough, and the nodes whose leases are in
    /// use and must be renewed.
    pub(crate) fn take_reports(&self, now_ns: u64) -> (Vec<ReadReport>, Vec<u32>) {
        let mut state = self.state.lock();
        let mut due = std::mem::replace(&mut state.due, Vec::with_capacity(DUE_MAX));
        due.extend(std::iter::from_fn(|| state.reads.expired(now_ns)));
        let mut renew = Vec::new();
        for (number, held) in &mut state.held {
            if held.used && held.holder.wants_renewal(now_ns) {
                held.used = false;
                renew.push(*number);
            }
        }
        (due, renew)
    }

    pub(crate) fn status(&self) -> CacheStatus {
        let load = |stat: CacheStat| self.stats[stat as usize].load(Ordering::Relaxed);
        let state = self.state.lock();
        let cache = &state.cache;
        let stats = cache.stats();
        CacheStatus {
            pair_hits: load(CacheStat::PairHits),
            address_hits: load(CacheStat::AddressHits),
            misses: load(CacheStat::Misses),
            stale_addresses: load(CacheStat::StaleAddresses),
            resolved_writes: load(CacheStat::ResolvedWrites),
            invalidations_sent: load(CacheStat::InvalidationsSent),
            invalidations_waited_out: load(CacheStat::InvalidationsWaitedOut),
            invalidations_received: load(CacheStat::InvalidationsReceived),
            evicted: stats.evicted,
            invalidated: stats.invalidated,
            refused: stats.refused,
            pairs: stats.pairs,
            addresses: stats.addresses,
            limit_bytes: cache.limit_bytes(),
            used_bytes: cache.used_bytes(),
            index_bytes: cache.index_bytes() - self.count_bytes,
            entry_bytes: cache.used_bytes() - FIXED_BYTES - cache.index_bytes(),
            fixed_bytes: FIXED_BYTES + self.count_bytes,
            partitions_refused: load(CacheStat::PartitionsRefused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{SlotIndex, key_hash};
    use crate::lease::Stamp;
    use crate::read_reports::READS_DUE;
    use crate::wire::Shaped;

    const ME: ComputeId = ComputeId(1);
    const PROXY: PeerIdentity = PeerIdentity { number: 2, client: ClientId(22) };
    const KEY: &[u8] = b"reef";
    const GRANT: Grant = Grant { session: 5, lease_us: 200_000, stamp_us: 1 };

    fn caching(memory_limit: u64) -> Arc<Caching> {
        let settings = FlexKvSettings { memory_limit, ..FlexKvSettings::default() };
        Arc::new(Caching::new(&settings).expect("sound settings"))
    }

    fn asker(node: u32, offloaded: bool, now_ns: u64) -> Asker {
        let shape = Shaped { packed: 0, generation: 1, log2_buckets: 0 };
        let entry = Assigned { partition: 3, epoch: 4, node, offloaded, grow: false, shape };
        Asker { me: ME, entry, now_ns }
    }

    fn place(owner: Option<u32>) -> CachedSlot {
        CachedSlot {
            partition: PartitionId(3),
            slot: SlotIndex(6),
            word: Slot(8),
            owner: owner.map(ComputeId),
            session: GRANT.session,
            stamp: Stamp { epoch: 4, at_us: 1 },
            seen_ns: 0,
        }
    }

    fn put(caching: &Caching, owner: Option<u32>, pair: Option<&[u8]>) {
        let hash = key_hash(KEY);
        let fetch = caching.begin_fetch(hash);
        let keep = pair.map_or(Keep::Address, |value| Keep::Pair(value, 0));
        caching.finish_fetch(fetch, HashedKey { hash, key: KEY }, place(owner), keep);
    }

    fn read(caching: &Caching, asker: &Asker) -> &'static str {
        match caching.read(key_hash(KEY), KEY, asker) {
            Lookup::Pair { .. } => "pair",
            Lookup::Address(_) => "address",
            Lookup::Nothing { .. } => "nothing",
        }
    }

    #[test]
    fn pair_is_served_only_under_its_proxys_lease() {
        let caching = caching(1 << 20);
        caching.granted(PROXY, 0, GRANT, || false);
        put(&caching, Some(2), Some(b"coral"));
        let asker = asker(2, true, 1_000_000);
        assert_eq!(read(&caching, &asker), "nothing", "no member's lease");
        caching.granted(PROXY, 0, GRANT, || true);
        put(&caching, Some(2), Some(b"coral"));
        assert_eq!(read(&caching, &asker), "pair");
        assert_eq!(
            read(&caching, &Asker { now_ns: 200_000_000, ..asker }),
            "nothing",
            "it ran out"
        );
        let other = Assigned { epoch: 5, ..asker.entry };
        assert_eq!(read(&caching, &Asker { entry: other, ..asker }), "nothing", "an older epoch's");
        caching.granted(PROXY, 900_000, Grant { session: 6, ..GRANT }, || true);
        assert_eq!(read(&caching, &asker), "nothing", "the proxy has given up on that session");
        // Another life has the same number. The messages of the first life are void, and later ones
        // are ignored.
        caching.granted(PeerIdentity { client: ClientId(23), ..PROXY }, 900_000, GRANT, || true);
        caching.granted(PROXY, 900_000, Grant { session: 9, ..GRANT }, || false);
        put(&caching, Some(2), Some(b"coral"));
        assert_eq!(read(&caching, &asker), "pair");
        caching.retain(&[]);
        assert_eq!(read(&caching, &asker), "nothing");
    }

    #[test]
    fn fast_read_equals_ordinary_read() {
        let caching = caching(1 << 20);
        caching.granted(PROXY, 0, GRANT, || true);
        put(&caching, Some(2), Some(b"coral"));
        let asker = asker(2, true, 1_000_000);
        let late = Asker { now_ns: 200_000_000, ..asker };
        assert_eq!(caching.read_pair(key_hash(KEY), KEY, &late), None, "the lease ran out");
        let pair = caching.read_pair(key_hash(KEY), KEY, &asker).expect("served");
        assert_eq!((&pair.value[..], pair.word), (&b"coral"[..], Slot(8)));
        assert_eq!(caching.status().pair_hits, 1);
        assert_eq!(caching.take_reads(key_hash(KEY)), 1, "the proxy hears of it");
        caching.invalidate(key_hash(KEY));
        assert_eq!(caching.read_pair(key_hash(KEY), KEY, &asker), None);
    }

    #[test]
    fn own_partitions_need_no_lease_and_pause_drops_all() {
        let caching = caching(1 << 20);
        put(&caching, Some(1), Some(b"coral"));
        assert_eq!(read(&caching, &asker(1, true, u64::MAX)), "pair");
        let fetch = caching.begin_fetch(key_hash(KEY));
        caching.paused(&[PartitionId(2), PartitionId(3)]);
        assert_eq!(read(&caching, &asker(1, true, 0)), "nothing");
        let key = HashedKey { hash: key_hash(KEY), key: KEY };
        caching.finish_fetch(fetch, key, place(Some(1)), Keep::Pair(b"coral", 0));
        assert_eq!(read(&caching, &asker(1, true, 0)), "nothing", "it was asked for before");
    }

    #[test]
    fn address_lasts_an_address_lease_and_32_reads() {
        let caching = caching(1 << 20);
        put(&caching, None, None);
        let use_ns = FlexKvSettings::default().address_use_ns();
        assert_eq!(read(&caching, &asker(2, false, use_ns - 1)), "address");
        assert_eq!(read(&caching, &asker(2, false, use_ns)), "nothing");
        assert_eq!(read(&caching, &asker(2, true, 0)), "nothing", "it has a proxy by now");
        caching.granted(PROXY, 0, GRANT, || true);
        put(&caching, Some(2), None);
        let asker = asker(2, true, 1_000);
        for _ in 1..READS_DUE {
            assert_eq!(read(&caching, &asker), "address");
        }
        assert_eq!(caching.read_pair(key_hash(KEY), KEY, &asker), None, "and counts nothing");
        let due = caching.read(key_hash(KEY), KEY, &asker);
        assert_eq!(due, Lookup::Nothing { reads: READS_DUE });
        assert_eq!(read(&caching, &asker), "address", "it is still there");
    }

    #[test]
    fn limit_includes_index_and_large_pair_becomes_address() {
        let caching = caching(64 << 10);
        let room = caching.index_bytes_max();
        put(&caching, Some(1), Some(&[7; 60_000]));
        assert_eq!(read(&caching, &asker(1, true, 0)), "address");
        let index = caching.charge(room - 1000).expect("fits");
        assert_eq!(caching.status().index_bytes, room - 1000);
        assert_eq!(read(&caching, &asker(1, true, 0)), "nothing", "it made room");
        assert!(caching.charge(1001).is_err());
        let rest = caching.charge(1000).expect("to the byte");
        let status = caching.status();
        assert_eq!((status.used_bytes, status.entry_bytes), (status.limit_bytes, 0));
        drop((index, rest));
        assert_eq!(caching.status().used_bytes, caching.status().fixed_bytes);
        let settings = FlexKvSettings { memory_limit: 4000, ..FlexKvSettings::default() };
        assert!(Caching::new(&settings).is_err());
    }
}
