//! Reads and sets that never wait, several at a time: no task, no message, and one look into the
//! cache for all of them.
//!
//! | call | conditions |
//! | --- | --- |
//! | a read | This node has the pair in its cache and may serve it (`node/caching/`). |
//! | a set | This node is the partition's proxy. It knows the key's slot from its cache, or sees
//! that the key has none. No other node may have cached the key, no other write of it is in
//! progress, and all copies lie in memory that this machine shares. |
//!
//! A call that does not meet these conditions has not begun, and takes the ordinary path
//! ([`Client::get`], [`crate::combining`]).
//!
//! **Sets** follow the steps of any write of an offloaded partition (`proxy/write.rs`), on one
//! thread and under locks:
//!
//! 1. The records are written to all their copies.
//! 2. Under the locks of their partitions, the valid bits of old records are cleared if another
//!    node was given their addresses. Then the new words are written to all copies of the index.
//! 3. The words are swapped in memory, which are the commit points.
//!
//! The cache stays locked from before step 2 until it holds the new pairs. So a reader on this node
//! finds the old pair before the commit and the new pair after it. If one call sets a key several
//! times, only the last set is performed, and the earlier ones succeed with it, because no reader
//! could have seen them.
//!
//! If a copy does not take a new word after another copy may have taken one, no set of the call has
//! happened. All of them take the ordinary path, which waits until the copies hold the words of
//! their slots again ([`Client::restore_later`]).
//!
//! **A read** takes effect between the reading of the clock and the look into the cache
//! ([`Client::read_fast`]).
//!
//! Thread-safety: any thread may call.
//! Failure: a set that is not performed has no effect.
//! Cost: a set takes a lock of its partition, enters two gates, and copies its bytes twice per
//! copy. A call takes one lock of the cache, one or two of the pieces, and one batch each for the
//! records and the index. A read enters a gate and takes a lock of its partition. A call allocates
//! a few times, whatever the number of keys. The memory that sets touch is seldom in a processor
//! cache, so each step prefetches the memory of all sets before it uses any.

use std::sync::Arc;

use archipelago_base::ErrorKind::{Fenced, NotFound, Unsupported};
use archipelago_pool::{Address, OpenBlock};

use super::Client;
use crate::cache::CachedSlot;
use crate::format::{HashedKey, INVALID_WORD, KeyHash, Record, Slot, SlotIndex, key_hash};
use crate::gates::Inside;
use crate::ids::{ComputeId, PartitionId};
use crate::lease::Stamp;
use crate::node::caching::{Asker, LockedCache, ServedPair, WrittenPair};
use crate::node::records::Written;
use crate::node::{Joined, Stat};
use crate::protocol::IndexProtocol as _;
use crate::proxy::{
    FastOutcome, Overwrite, PlacedWrite, ServedPartition, Target, UncommittedSlot, Writer,
    overwrite,
};
use crate::settings::CacheMode;
use crate::sharers::EXACT_NODES;
use crate::wire::Assigned;

/// Largest number of keys that one call reads or sets.
pub const FAST_KEYS_MAX: usize = 32;

/// A set of one key, without a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    /// The key to set.
    pub key: &'a [u8],
    /// The key's new value.
    pub value: &'a [u8],
    /// Expiry in Unix milliseconds. 0 means never.
    pub expires_ms: u64,
}

/// The keys of a call: their hashes, the gates of their partitions, and the partitions' entries.
struct CallKeys<'a> {
    hashes: Vec<KeyHash>,
    gates: Vec<Option<Inside<'a>>>,
    entries: Vec<Assigned>,
}

impl<'a> CallKeys<'a> {
    fn enter<'k>(joined: &'a Joined, keys: impl ExactSizeIterator<Item = &'k [u8]>) -> Self {
        let hashes: Vec<KeyHash> = keys.map(key_hash).collect();
        let of = |hash: &KeyHash| joined.geometry().partition(*hash);
        let gates = hashes.iter().map(|hash| joined.gates().try_enter(of(hash))).collect();
        // Within the gates, entries stay as they are.
        let entries = joined.entries_of(&hashes);
        Self { hashes, gates, entries }
    }
}

/// The sets of one call.
#[derive(Clone, Copy)]
struct FastCall<'a> {
    sets: &'a [Set<'a>],
    keys: &'a CallKeys<'a>,
    me: ComputeId,
    /// This node's clock when the call began.
    now_ns: u64,
}

impl<'a> FastCall<'a> {
    fn asker(&self, nth: usize) -> Asker {
        Asker { me: self.me, entry: self.keys.entries[nth], now_ns: self.now_ns }
    }

    fn key(&self, nth: usize) -> HashedKey<'a> {
        HashedKey { hash: self.keys.hashes[nth], key: self.sets[nth].key }
    }

    /// Number of the last set of the same key in the call.
    fn last(&self, nth: usize) -> usize {
        let same = |&later: &usize| self.key(later) == self.key(nth);
        (nth + 1..self.sets.len()).rev().find(same).unwrap_or(nth)
    }
}

/// A set that may take the fast path.
struct FastSet<'a> {
    nth: usize,
    served: &'a Arc<ServedPartition>,
    /// The slot of the word that the set supersedes. `None` if the key seems to be new.
    place: Option<CachedSlot>,
    inside: Inside<'a>,
}

/// Sets whose records are written, and the blocks of their slots.
#[derive(Clone, Copy)]
struct Prepared<'a> {
    wanted: &'a [FastSet<'a>],
    written: &'a [Written],
    open: &'a [Arc<OpenBlock>],
}

/// Slot in which a set was committed, and its word.
#[derive(Clone, Copy)]
struct Stored {
    index: SlotIndex,
    word: Slot,
    /// Whether the pair is worth caching.
    worthy: bool,
}

impl<'a> FastSet<'a> {
    fn overwrite(&self, hash: KeyHash, new: Slot) -> Overwrite<'a> {
        let slot = self.place.map(|place| Target::Slot(place.slot, place.word));
        Overwrite { served: self.served, target: slot.unwrap_or(Target::Free(hash)), new }
    }
}

impl Client {
    /// Whether this node follows the whole protocol and is a member.
    fn is_fast_path_open(&self, now_ns: u64) -> bool {
        let table = self.node.table();
        table.protocol().has_fast_path()
            && !table.sabotage().is_active()
            && table.held_lease(now_ns)
    }

    /// Reads the first keys of `keys`, as far as the cache may serve them. Returns the number of
    /// keys that it served.
    pub(crate) fn read_many_fast(
        &self,
        keys: &[&[u8]],
        take: &mut dyn FnMut(Option<&[u8]>),
    ) -> usize {
        let Ok(joined) = self.node.joined() else { return 0 };
        let now_ns = self.node.now_ns();
        if !self.is_fast_path_open(now_ns) || self.node.caching().mode() != CacheMode::Pairs {
            return 0;
        }
        let CallKeys { hashes, gates, entries } = CallKeys::enter(joined, keys.iter().copied());
        let served = self.proxy.get_all(entries.iter());
        let mut held = self.node.caching().lock_for(&hashes);
        let (mut read, me) = (0, joined.me());
        for (nth, key) in keys.iter().enumerate() {
            if gates[nth].is_none() {
                break;
            }
            let asker = Asker { me, entry: entries[nth], now_ns };
            let pair = held.pair(nth, HashedKey { hash: hashes[nth], key }, &asker);
            let Some(ServedPair { value, expires_ms, place }) = pair else { break };
            take(Some(value).filter(|_| !self.node.is_expired(expires_ms)));
            if let Some(served) = served[nth].as_ref().filter(|_| place.owner == Some(me)) {
                served.count_read(place.slot);
            }
            read += 1;
        }
        let due = held.take_due();
        drop(held);
        if !due.is_empty() {
            self.notifier.report_reads(due);
        }
        self.node.stats().add_many(Stat::Reads, read as u64);
        self.node.count_many(entries[..read].iter().map(|entry| entry.partition), true);
        read
    }

    /// Performs those of the sets that need no waiting. Bit *n* of the result stands for set *n*.
    pub(crate) fn set_many_fast(self: &Arc<Self>, sets: &[Set<'_>]) -> u32 {
        let sets = &sets[..sets.len().min(FAST_KEYS_MAX)];
        let Ok(joined) = self.node.joined() else { return 0 };
        let now_ns = self.node.now_ns();
        if !self.is_fast_path_open(now_ns) || self.node.caching().mode() == CacheMode::Off {
            return 0;
        }
        let mut keys = CallKeys::enter(joined, sets.iter().map(|set| set.key));
        self.leave_those_led(&mut keys);
        let served = self.proxy.get_all(keys.entries.iter());
        let mut held = self.node.caching().lock_for(&keys.hashes);
        for (nth, served) in served.iter().enumerate() {
            if let Some((served, slot)) = served.as_ref().zip(held.slot(nth)) {
                served.touch(slot);
            }
        }
        let call = FastCall { sets, keys: &keys, me: joined.me(), now_ns };
        let wanted = self.wanted(call, &served, &mut held);
        let Some(open) = self.open_copies(&wanted) else { return 0 };
        let records: Vec<(KeyHash, Record<'_>)> =
            wanted.iter().map(|set| self.record_of(call, set)).collect();
        let Some(written) = self.node.write_records_fast(&records, now_ns) else { return 0 };
        let prepared = Prepared { wanted: &wanted, written: &written, open: &open };
        let came = self.commit_sets(call, prepared, joined);
        let (mut done, mut superseded) = (0, Vec::with_capacity(sets.len()));
        let mut ahead = Vec::new();
        for ((set, record), came) in wanted.into_iter().zip(written).zip(came) {
            match came {
                FastOutcome::Committed { index, old, worthy } => {
                    self.cache_set(
                        call,
                        &set,
                        Stored { index, word: record.slot, worthy },
                        &mut held,
                    );
                    done |= 1 << set.nth;
                    superseded.extend(Some(old).filter(|old| old.is_live()));
                }
                FastOutcome::Broken(slot) => {
                    let write = set.overwrite(keys.hashes[set.nth], record.slot);
                    ahead.push((write.keep_uncommitted(set.inside, slot), record));
                }
                FastOutcome::NotDone => self.node.free_unpublished(record),
            }
        }
        drop(held);
        self.restore_later(ahead);
        self.give_back(superseded, now_ns);
        for nth in 0..sets.len() {
            done |= (done >> call.last(nth) & 1) << nth;
        }
        for count in [Stat::Writes, Stat::FastSets] {
            self.node.stats().add_many(count, u64::from(u32::count_ones(done)));
        }
        let is_done = |(nth, _): &(usize, &Assigned)| done >> nth & 1 == 1;
        let partitions = keys.entries.iter().enumerate().filter(is_done);
        self.node.count_many(partitions.map(|(_, entry)| entry.partition), false);
        done
    }

    /// Leaves out keys of which a write is in progress, because that write comes first.
    fn leave_those_led(&self, keys: &mut CallKeys<'_>) {
        for (nth, led) in self.combining.led(&keys.hashes).into_iter().flatten().enumerate() {
            if led {
                keys.gates[nth] = None;
            }
        }
    }

    /// The sets that may take the fast path. Of several sets of one key, only the last one counts.
    fn wanted<'a>(
        &self,
        call: FastCall<'_>,
        served: &'a [Option<Arc<ServedPartition>>],
        held: &mut LockedCache<'_>,
    ) -> Vec<FastSet<'a>> {
        let mut wanted = Vec::with_capacity(call.sets.len());
        for nth in (0..call.sets.len()).filter(|&nth| call.last(nth) == nth) {
            let place = held.place(nth, call.key(nth), &call.asker(nth));
            let place = place.filter(|place| place.owner == Some(call.me));
            let served = served[nth].as_ref().filter(|_| call.keys.gates[nth].is_some());
            if let Some(served) = served.filter(|served| served.is_offloaded())
                && let Some(inside) = served.try_enter()
            {
                wanted.push(FastSet { nth, served, place, inside });
            }
        }
        wanted
    }

    fn record_of<'a>(&self, call: FastCall<'a>, set: &FastSet<'_>) -> (KeyHash, Record<'a>) {
        let Set { key, value, expires_ms } = call.sets[set.nth];
        let previous = set.place.map_or(0, |place| place.word.0);
        let writer = self.node.client().0;
        let record = Record { expires_ms, previous, writer, ..Record::new(key, value) };
        (call.keys.hashes[set.nth], record)
    }

    /// Commits sets whose records are written. Returns the result of each.
    fn commit_sets(
        &self,
        call: FastCall<'_>,
        prepared: Prepared<'_>,
        joined: &Joined,
    ) -> Vec<FastOutcome> {
        let Prepared { wanted, written, open } = prepared;
        let mut writes: Vec<Overwrite<'_>> = Vec::with_capacity(wanted.len());
        for (set, record) in wanted.iter().zip(written) {
            writes.push(set.overwrite(call.keys.hashes[set.nth], record.slot));
        }
        // The call looked at the cache after `call.now_ns`, so the entries that it saw are valid
        // until then.
        let until_ns = call.now_ns.saturating_add(self.node.settings().address_use_ns());
        let still = || {
            let now_ns = self.node.now_ns();
            now_ns < until_ns && self.node.table().held_lease(now_ns)
        };
        let copy = |due: &[PlacedWrite]| {
            due.iter().all(|due| !due.clear || self.clear_record(due.old))
                && self.copy_words(due, &writes, open)
        };
        let (me, alone) = (call.me, self.stands_alone(joined));
        overwrite(&writes, Writer { me, alone, now_us: call.now_ns / 1000 }, still, copy)
    }

    /// Writes the new words to all copies. Returns whether every copy took its word.
    fn copy_words(
        &self,
        due: &[PlacedWrite],
        writes: &[Overwrite<'_>],
        open: &[Arc<OpenBlock>],
    ) -> bool {
        let word = |due: &PlacedWrite| {
            let Overwrite { served, new, .. } = writes[due.nth];
            (self.node.table().slot(served.shape(), due.index), new.0.to_le_bytes())
        };
        let words: Vec<(Address, [u8; 8])> = due.iter().map(word).collect();
        open.iter().all(|open| {
            let here = words.iter().filter(|(slot, _)| slot.block == open.config.block);
            let words: Vec<(u64, &[u8])> =
                here.map(|(slot, bytes)| (slot.offset, &bytes[..])).collect();
            let copied = open.write_at_once(&words);
            copied.inspect_err(|refusal| self.node.pool().stale(open, *refusal)).is_ok()
        })
    }

    /// Caches a set that was committed.
    fn cache_set(
        &self,
        call: FastCall<'_>,
        set: &FastSet<'_>,
        stored: Stored,
        held: &mut LockedCache<'_>,
    ) {
        let (nth, seen_ns) = (set.nth, call.now_ns);
        let entry = &call.keys.entries[nth];
        let place = CachedSlot {
            partition: PartitionId(entry.partition),
            slot: stored.index,
            word: stored.word,
            owner: Some(call.me),
            session: 0,
            stamp: Stamp { epoch: entry.epoch, at_us: seen_ns / 1000 },
            seen_ns,
        };
        let Set { value, expires_ms, .. } = call.sets[nth];
        let written = WrittenPair { value, expires_ms, place, worthy: stored.worthy };
        held.written(nth, call.key(nth), written);
    }

    /// Whether no other node shares this node's bit in lists of sharers.
    fn stands_alone(&self, joined: &Joined) -> bool {
        let (me, mine) = (joined.number(), joined.number() % EXACT_NODES);
        joined.all_members(|other| other.number == me || other.number % EXACT_NODES != mine)
    }

    /// The blocks of the slots, if there are any and each of them takes writes immediately. The
    /// words of the slots are prefetched.
    fn open_copies(&self, wanted: &[FastSet<'_>]) -> Option<Vec<Arc<OpenBlock>>> {
        // A subtable lies in one block.
        let slot = |set: &FastSet<'_>| {
            let index = set.place.map_or_else(Default::default, |place| place.slot);
            self.node.table().slot(set.served.shape(), index)
        };
        let mut open: Vec<Arc<OpenBlock>> = Vec::new();
        for block in wanted.iter().map(|set| slot(set).block) {
            if open.iter().all(|open| open.config.block != block) {
                open.push(self.node.fast_block(block)?);
            }
        }
        for open in &open {
            let known = wanted.iter().filter(|set| set.place.is_some()).map(slot);
            let here = known.filter(|slot| slot.block == open.config.block);
            open.prefetch(&here.map(|slot| slot.offset).collect::<Vec<_>>());
        }
        Some(open).filter(|open| !open.is_empty())
    }

    /// Clears a record's valid bit on all its copies. Returns whether every copy took it.
    fn clear_record(&self, old: Slot) -> bool {
        let Some(range) = self.node.table().record(old) else { return false };
        let Some(open) = self.node.fast_block(range.address.block) else { return false };
        let cleared = open.write_at_once(&[(range.address.offset, &INVALID_WORD.to_le_bytes())]);
        cleared.inspect_err(|refusal| self.node.pool().stale(&open, *refusal)).is_ok()
    }

    /// Restores the copies of slots after sets that were not committed, because copies may hold the
    /// sets' words. A change of a partition waits until its slots are restored.
    fn restore_later(self: &Arc<Self>, ahead: Vec<(UncommittedSlot, Written)>) {
        if ahead.is_empty() {
            return;
        }
        let client = Arc::clone(self);
        let task = async move {
            for (ahead, record) in ahead {
                if client.restore(&ahead).await {
                    client.node.stats().add(Stat::Restored);
                    client.node.free_unpublished(record);
                } else {
                    client.node.want_sweep();
                }
            }
        };
        self.node.runtime().spawn("flex-back", Box::pin(task));
    }

    /// Restores the copies of one slot. `false` if this node was declared dead or the copies are
    /// gone.
    async fn restore(&self, ahead: &UncommittedSlot) -> bool {
        let slot = self.node.table().slot(ahead.shape(), ahead.slot().index);
        let word = ahead.slot().old.0.to_le_bytes();
        while let Err(error) = self.node.table().write(&[(slot, &word)], u64::MAX).await {
            if self.node.pool().is_evicted()
                || matches!(error.kind(), NotFound | Unsupported | Fenced)
            {
                tracing::warn!(%error, "the next node of the partition repairs the copies of a slot");
                return false;
            }
            tracing::debug!(%error, "a slot is set back");
            self.node.pause().await;
        }
        true
    }

    /// Gives back the records that a call superseded.
    fn give_back(&self, mut superseded: Vec<Slot>, began_ns: u64) {
        if self.node.now_ns() >= began_ns.saturating_add(self.node.settings().address_use_ns()) {
            // A sweep may have freed the records by now, and their memory may be in use again.
            return self.node.want_sweep();
        }
        self.node.free_own(&mut superseded);
        superseded.into_iter().for_each(|old| self.node.free_later(old));
    }
}
