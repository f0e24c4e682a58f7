//! What this node has cached of the store, and on which leases it may serve that; the account of
//! its memory.
//!
//! Owned by the compute node. Under one lock: the [`LocalCache`] with the account of the memory
//! limit, the reads that it served and the proxies have not heard of, and the leases that this node
//! *holds* (those that it gives are in `proxy/invalidation.rs`).
//!
//! **What may be served.** A pair, or an address of a proxied partition: while the lease of that
//! partition's proxy holds under the session that it was cached in; of this node's own partitions
//! always, as its invalidations come through no network. An address of a partition without a proxy:
//! the record's valid bit decides. An address no longer than records stay as they are after they
//! were freed. Everything only at the partition's epoch, within its door, and while the pool's
//! lease holds; callers see to the last two.
//!
//! **The account.** The limit carries the cache ([`LocalCache`] has the table), the counts of
//! reads, and what the index of offloaded partitions takes ([`Caching::charge`]; given back when
//! the [`Charge`] is dropped). Buffers of requests under way are not in it.
//!
//! Invariants: 1. what is used never exceeds the limit; 2. nothing is cached that was invalidated
//! since it was asked for; 3. when a partition is paused, nothing of it stays
//! ([`Caching::paused`]), so nobody has anything of an earlier epoch; 4. a granter's new session
//! drops what was cached under the old one before it counts. Thread-safety: all of it; no lock is
//! held over an await. Cost of a hit: one lock, two or three entries looked at, a copy of the
//! value. Paper: §4.4 and Figure 8; leases are ours.

mod multi;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Error, Result};
use archipelago_pool::ClientId;
use parking_lot::Mutex;

use crate::cache::{Cached, FIXED_BYTES, Fetch, Finished, Hit, Kind, LocalCache, Place, Short};
use crate::contended::CONTENDED_BYTES;
use crate::format::{KeyHash, Slot};
use crate::ids::{ComputeId, PartitionId};
use crate::lease::{Adopted, Granted, Holder, Terms};
use crate::read_reports::{Counted, READS_WAIT_NS, Reads};
use crate::settings::{CacheMode, FlexKvSettings};
use crate::wire::{Assigned, Grant, Member};

pub(crate) use multi::Several;

/// Counts of reads that are due wait for so many others before they are sent at once.
const DUE_MAX: usize = 64;
/// For so many bytes of the limit, reads of one key are counted.
const BYTES_PER_COUNT: u64 = 4096;

/// What a node's cache has done and holds, and how its memory limit is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// Reads that a cached pair answered.
    pub pair_hits: u64,
    /// Reads that a cached address led to their record.
    pub address_hits: u64,
    /// Reads that found nothing that could be served.
    pub misses: u64,
    /// Cached addresses whose record was superseded when it was read.
    pub stale_addresses: u64,
    /// Writes whose slot the cache knew.
    pub resolved_writes: u64,
    /// Invalidations that this node sent as a proxy.
    pub invalidations_sent: u64,
    /// Of those: not acknowledged, the sharer's lease had to run out.
    pub invalidations_waited_out: u64,
    /// Invalidations that this node was sent.
    pub invalidations_received: u64,
    /// Entries that made room for others.
    pub evicted: u64,
    /// Entries that were invalidated, alone or with their partition or proxy.
    pub invalidated: u64,
    /// What was fetched and not kept, since it was invalidated on its way.
    pub refused: u64,
    /// Pairs now.
    pub pairs: u64,
    /// Addresses now.
    pub addresses: u64,
    /// Bytes: the limit.
    pub limit_bytes: u64,
    /// Bytes: in use.
    pub used_bytes: u64,
    /// Of those: slots and metadata of offloaded partitions.
    pub index_bytes: u64,
    /// Of those: cached addresses and pairs.
    pub entry_bytes: u64,
    /// Of those: what is there always.
    pub fixed_bytes: u64,
    /// Partitions that were to be offloaded to this node and did not fit.
    pub partitions_refused: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pair_hits: AtomicU64,
    pub(crate) address_hits: AtomicU64,
    misses: AtomicU64,
    pub(crate) stale_addresses: AtomicU64,
    pub(crate) resolved_writes: AtomicU64,
    pub(crate) invalidations_sent: AtomicU64,
    pub(crate) invalidations_waited_out: AtomicU64,
    pub(crate) invalidations_received: AtomicU64,
    pub(crate) partitions_refused: AtomicU64,
}

/// One more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A lease that another node gave this one.
#[derive(Debug)]
struct Held {
    client: ClientId,
    holder: Holder,
    /// Something was served on it since it was last renewed for that.
    used: bool,
}

#[derive(Debug)]
struct State {
    cache: LocalCache,
    reads: Reads,
    due: Vec<Counted>,
    held: Leases,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Caching {
    mode: CacheMode,
    terms: Terms,
    address_use_ns: u64,
    /// Of the limit: the counts of reads, and the marks of contended keys.
    count_bytes: u64,
    state: Mutex<State>,
    pub(crate) counters: Counters,
}

/// What the cache says of a key that is to be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The value. `due`: reads that are to be told now.
    Pair { value: Vec<u8>, expires_ms: u64, place: Place, due: Vec<Counted> },
    /// Where the record lies that may be the newest.
    Address(Place),
    /// Nothing; who asks now tells so many reads along.
    Nothing { reads: u32 },
}

/// What is to be cached of what a request brought.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep<'a> {
    /// The value and its expiry, if they fit; the address otherwise.
    Pair(&'a [u8], u64),
    Address,
    /// Where the slot is, for writes.
    Slot,
}

/// A pair that may be served. `due`: reads that are to be told now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) value: Vec<u8>,
    pub(crate) expires_ms: u64,
    pub(crate) word: Slot,
    pub(crate) due: Vec<Counted>,
}

/// Bytes that the index has of the limit; given back when dropped.
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

/// Who asks, for which partition as it is assigned now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) me: ComputeId,
    pub(crate) entry: Assigned,
    pub(crate) now_ns: u64,
}

/// Leases that others gave this node, by the granter's number.
type Leases = BTreeMap<u32, Held>;

/// Whether what was cached at `place` may be served.
fn may_serve(held: &mut Leases, place: &Place, asker: &Asker, is_pair: bool, use_ns: u64) -> bool {
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

/// Reads that are due for being told, if there are many.
fn take_due(due: &mut Vec<Counted>) -> Vec<Counted> {
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
        let reads = Reads::new(keys_max, READS_WAIT_NS);
        let due = Vec::with_capacity(DUE_MAX);
        let count_bytes =
            reads.bytes_max() + (DUE_MAX * size_of::<Counted>()) as u64 + CONTENDED_BYTES;
        cache.charge_index(count_bytes).map_err(short)?;
        let state = State { cache, reads, due, held: BTreeMap::new() };
        Ok(Self {
            mode: settings.cache,
            terms: settings.terms(),
            address_use_ns: settings.address_use_ns(),
            count_bytes,
            state: Mutex::new(state),
            counters: Counters::default(),
        })
    }

    pub(crate) fn mode(&self) -> CacheMode {
        self.mode
    }

    /// Whether a pair takes nothing else's place: a sixteenth of the limit is free.
    pub(crate) fn has_room(&self) -> bool {
        Self::room_in(&self.state.lock().cache)
    }

    fn room_in(cache: &LocalCache) -> bool {
        let limit = cache.limit_bytes();
        cache.used_bytes() <= limit - limit / 16
    }

    /// Bytes that the index of offloaded partitions may take at most.
    pub(crate) fn index_bytes_max(&self) -> u64 {
        self.state.lock().cache.limit_bytes() - FIXED_BYTES - self.count_bytes
    }

    /// Takes `bytes` of the limit for the index; entries make room for it.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> std::result::Result<Charge, Short> {
        self.state.lock().cache.charge_index(bytes)?;
        Ok(Charge { caching: Arc::clone(self), bytes })
    }

    /// A key that is to be read. A hit is counted, for the proxy and for people.
    pub(crate) fn read(&self, hash: KeyHash, key: &[u8], asker: &Asker) -> Lookup {
        let nothing = |reads| {
            count(&self.counters.misses);
            Lookup::Nothing { reads }
        };
        if self.mode == CacheMode::Off {
            return nothing(0);
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let servable = self.servable(state, hash, key, asker);
        let Some((place, kind)) = servable.filter(|(_, kind)| *kind != Kind::Slot) else {
            return nothing(state.reads.take(hash));
        };
        let is_pair = kind == Kind::Pair;
        if self.mode == CacheMode::Pairs && place.owner.is_some() {
            let told = state.reads.add(hash, place.partition, place.slot, asker.now_ns);
            match told {
                // It goes to the proxy along with a look-up, which may say that the pair is worth
                // caching by now.
                Some(told) if !is_pair && told.hash == hash => return nothing(told.reads),
                Some(told) => state.due.push(told),
                None => {}
            }
        }
        if !is_pair {
            return Lookup::Address(place);
        }
        count(&self.counters.pair_hits);
        let due = take_due(&mut state.due);
        match state.cache.get(hash, key).map(|hit| hit.cached) {
            Some(Cached::Pair { value, expires_ms }) => {
                Lookup::Pair { value: value.to_vec(), expires_ms, place, due }
            }
            _ => nothing(0),
        }
    }

    /// A pair that may be served; counted as [`Caching::read`] counts it. Otherwise nothing is
    /// counted.
    pub(crate) fn read_pair(&self, hash: KeyHash, key: &[u8], asker: &Asker) -> Option<Pair> {
        if self.mode != CacheMode::Pairs {
            return None;
        }
        let mut guard = self.state.lock();
        let State { cache, reads, due, held } = &mut *guard;
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
        count(&self.counters.pair_hits);
        let (value, due) = (value.to_vec(), take_due(due));
        Some(Pair { value, expires_ms, word: place.word, due })
    }

    /// Where the key's slot is, for a write; of a pair its expiry, too.
    pub(crate) fn place(
        &self,
        hash: KeyHash,
        key: &[u8],
        asker: &Asker,
    ) -> Option<(Place, Option<u64>)> {
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
        state: &mut State,
        hash: KeyHash,
        key: &[u8],
        asker: &Asker,
    ) -> Option<(Place, Kind)> {
        let Hit { place, cached } = state.cache.get(hash, key)?;
        let kind = cached.kind();
        let is_pair = kind == Kind::Pair;
        let serves = may_serve(&mut state.held, &place, asker, is_pair, self.address_use_ns);
        serves.then_some((place, kind))
    }

    /// Reads of the key that a request takes along.
    pub(crate) fn take_reads(&self, hash: KeyHash) -> u32 {
        self.state.lock().reads.take(hash)
    }

    /// A request is about to be sent whose answer may be cached.
    pub(crate) fn begin_fetch(&self, hash: KeyHash) -> Option<Fetch> {
        (self.mode != CacheMode::Off).then(|| self.state.lock().cache.begin_fetch(hash))
    }

    /// Caches what came of it.
    pub(crate) fn finish_fetch(
        &self,
        fetch: Option<Fetch>,
        (hash, key): (KeyHash, &[u8]),
        place: Place,
        keep: Keep<'_>,
    ) {
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
            // It was not invalidated until now, and nobody else is here.
            let fetch = state.cache.begin_fetch(hash);
            state.cache.finish_fetch(fetch, key, place, Cached::Address);
        }
    }

    /// The record at a cached address was the newest when it was read.
    pub(crate) fn renew(&self, hash: KeyHash, key: &[u8], place: Place) {
        count(&self.counters.address_hits);
        self.state.lock().cache.renew(hash, key, place);
    }

    pub(crate) fn invalidate(&self, hash: KeyHash) {
        self.state.lock().cache.invalidate(hash);
    }

    /// These partitions, which are in order, get other owners or shapes; nobody reads or writes
    /// them now.
    pub(crate) fn paused(&self, partitions: &[PartitionId]) {
        let mut state = self.state.lock();
        state.cache.invalidate_partitions(partitions);
        state.reads.forget(partitions);
        state.due.retain(|due| partitions.binary_search(&due.partition).is_err());
    }

    /// Forgets leases of nodes that are no members any more.
    pub(crate) fn retain(&self, members: &[Member]) {
        let stays = |number: u32, client| {
            members.iter().any(|member| member.number == number && member.client == client)
        };
        self.state.lock().held.retain(|number, held| stays(*number, held.client));
    }

    /// An answer of the node `number` to a request that was first sent at `sent_ns`. `is_member`:
    /// whether that node lives, by the map.
    pub(crate) fn granted(
        &self,
        (number, client): (u32, ClientId),
        sent_ns: u64,
        grant: Grant,
        is_member: impl FnOnce() -> bool,
    ) {
        if grant.session == 0 || self.mode == CacheMode::Off {
            return;
        }
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

    /// Counts that have waited long enough, and the nodes whose leases are in use and are to be
    /// renewed.
    pub(crate) fn to_tell(&self, now_ns: u64) -> (Vec<Counted>, Vec<u32>) {
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
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (counters, state) = (&self.counters, self.state.lock());
        let cache = &state.cache;
        let stats = cache.stats();
        CacheStatus {
            pair_hits: load(&counters.pair_hits),
            address_hits: load(&counters.address_hits),
            misses: load(&counters.misses),
            stale_addresses: load(&counters.stale_addresses),
            resolved_writes: load(&counters.resolved_writes),
            invalidations_sent: load(&counters.invalidations_sent),
            invalidations_waited_out: load(&counters.invalidations_waited_out),
            invalidations_received: load(&counters.invalidations_received),
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
            partitions_refused: load(&counters.partitions_refused),
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
    const PROXY: (u32, ClientId) = (2, ClientId(22));
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

    fn place(owner: Option<u32>) -> Place {
        Place {
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
        caching.finish_fetch(fetch, (hash, KEY), place(owner), keep);
    }

    fn read(caching: &Caching, asker: &Asker) -> &'static str {
        match caching.read(key_hash(KEY), KEY, asker) {
            Lookup::Pair { .. } => "pair",
            Lookup::Address(_) => "address",
            Lookup::Nothing { .. } => "nothing",
        }
    }

    #[test]
    fn a_pair_is_served_under_its_proxys_lease_and_session_alone() {
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
        // Another life at the same number: what the first said is void, and it is not heard any
        // more.
        caching.granted((2, ClientId(23)), 900_000, GRANT, || true);
        caching.granted(PROXY, 900_000, Grant { session: 9, ..GRANT }, || false);
        put(&caching, Some(2), Some(b"coral"));
        assert_eq!(read(&caching, &asker), "pair");
        caching.retain(&[]);
        assert_eq!(read(&caching, &asker), "nothing");
    }

    #[test]
    fn what_is_read_at_once_is_what_would_be_read() {
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
    fn own_partitions_need_no_lease_and_a_pause_leaves_nothing() {
        let caching = caching(1 << 20);
        put(&caching, Some(1), Some(b"coral"));
        assert_eq!(read(&caching, &asker(1, true, u64::MAX)), "pair");
        let fetch = caching.begin_fetch(key_hash(KEY));
        caching.paused(&[PartitionId(2), PartitionId(3)]);
        assert_eq!(read(&caching, &asker(1, true, 0)), "nothing");
        caching.finish_fetch(fetch, (key_hash(KEY), KEY), place(Some(1)), Keep::Pair(b"coral", 0));
        assert_eq!(read(&caching, &asker(1, true, 0)), "nothing", "it was asked for before");
    }

    #[test]
    fn an_address_lasts_as_long_as_records_do_and_is_looked_up_every_32_reads() {
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
    fn the_limit_carries_the_index_and_what_is_too_large_is_cached_as_an_address() {
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
