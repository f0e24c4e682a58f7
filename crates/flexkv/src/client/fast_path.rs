//! Reads and sets that wait for nobody, several at a time: no task, no message, one look at the
//! cache for all of them.
//!
//! | what | when |
//! | --- | --- |
//! | a read | this node has the pair in its cache and may serve it ([`crate::node::caching`]) |
//! | a set | this node is the partition's proxy and knows the key's slot from its cache, or sees that the key has none; nobody else may have cached the key, no other write of it is under way, and all copies are in memory that this machine shares |
//!
//! What cannot be done so has not begun, and goes the long way ([`Inner::get`](crate::node::Inner),
//! [`crate::combining`]).
//!
//! **Sets** go as any write of a proxied partition ([`crate::proxy`]), on one thread and under
//! locks: the records are written to all their copies; then, under the locks of their partitions,
//! the old records' valid bits are cleared if somebody was told their addresses, the new words are
//! written on all copies of the index, and swapped here: the commit points. The cache is held from
//! before that until the new pairs lie in it, so whoever reads a key here finds the old pair before
//! the commit and the new one after. Of several sets of one key in a call the last is done, and
//! those before it with it: nobody could have read them.
//!
//! If a copy does not take a new word after another may have, all sets of the call have not
//! happened and go the long way, which waits until the words that their slots still hold are on all
//! copies again ([`Inner::set_back_later`]).
//!
//! **A read** takes effect between a look at the clock and the look at the cache: see
//! [`Inner::read_at_once`].
//!
//! Cost: of a set a lock for its partition, two doors, two copies of its bytes per copy, and per
//! call one lock of the cache, one or two of the heap, a batch for the records and one for the
//! index; of a read a door and a lock for its partition. Some allocations per call, none per key.
//! What a set touches lies anywhere (slots, what is known of keys, records that were freed long
//! ago), so each step asks for the memory of all sets before it uses any.

use std::sync::Arc;

use archipelago_base::ErrorKind::{Fenced, NotFound, Unsupported};
use archipelago_pool::{Address, BlockId, OpenBlock};

use super::expired;
use crate::cache::Place;
use crate::format::{INVALID_WORD, KeyHash, Record, Slot, SlotIndex, key_hash};
use crate::gates::Inside;
use crate::ids::{ComputeId, PartitionId};
use crate::lease::Stamp;
use crate::node::caching::{Asker, Several};
use crate::node::records::Written;
use crate::node::{ComputeNode, Count, Inner, Joined};
use crate::protocol::IndexProtocol as _;
use crate::proxy::{Ahead, AtOnce, Due, Overwrite, Served, Target, Writer, overwrite};
use crate::settings::CacheMode;
use crate::sharers::EXACT_NODES;
use crate::wire::Assigned;

/// So many keys are read or set in one call, at most.
pub const AT_ONCE_MAX: usize = 32;

/// A key that is to have a value, whatever it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Unix ms; 0: never.
    pub expires_ms: u64,
}

impl ComputeNode {
    /// Hands out what the first of `keys` hold, in their order, as far as this node has them cached
    /// and may serve them; how many. Never waits. `take` is called under a lock: it must not call
    /// this node.
    pub fn get_some_at_once(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        self.0.read_some_at_once(keys, take)
    }

    /// Does those of the sets (at most [`AT_ONCE_MAX`]) that can be done without waiting, in their
    /// order: bit *n* of the answer says that number *n* is done, as [`ComputeNode::set`] would
    /// have. The others have not begun.
    #[must_use]
    pub fn set_some_at_once(&self, sets: &[Set<'_>]) -> u32 {
        self.0.set_some_at_once(sets)
    }
}

/// The keys of a call: their hashes, the doors of their partitions, where they are assigned.
struct Keys<'a> {
    hashes: Vec<KeyHash>,
    doors: Vec<Option<Inside<'a>>>,
    entries: Vec<Assigned>,
}

impl<'a> Keys<'a> {
    fn enter<'k>(joined: &'a Joined, keys: impl ExactSizeIterator<Item = &'k [u8]>) -> Self {
        let hashes: Vec<KeyHash> = keys.map(key_hash).collect();
        let of = |hash: &KeyHash| joined.geometry.partition(*hash);
        let doors = hashes.iter().map(|hash| joined.gates.try_enter(of(hash))).collect();
        // Within the doors: entries stay what they are.
        let map = joined.map.read();
        let entries = hashes.iter().map(|hash| map.entries[of(hash).0 as usize]).collect();
        Self { hashes, doors, entries }
    }
}

/// Sets that are tried together.
#[derive(Clone, Copy)]
struct Call<'a> {
    sets: &'a [Set<'a>],
    keys: &'a Keys<'a>,
    me: ComputeId,
    /// When it began, by this node's clock.
    now_ns: u64,
}

impl<'a> Call<'a> {
    fn asker(&self, nth: usize) -> Asker {
        Asker { me: self.me, entry: self.keys.entries[nth], now_ns: self.now_ns }
    }

    fn key(&self, nth: usize) -> (KeyHash, &'a [u8]) {
        (self.keys.hashes[nth], self.sets[nth].key)
    }

    /// Number of the last set of the same key.
    fn last(&self, nth: usize) -> usize {
        let same = |&later: &usize| self.key(later) == self.key(nth);
        (nth + 1..self.sets.len()).rev().find(same).unwrap_or(nth)
    }
}

/// A set that may be done at once.
struct Wanted<'a> {
    nth: usize,
    served: &'a Arc<Served>,
    /// Of the word that it supersedes; `None`: the key seems to come in.
    place: Option<Place>,
    door: Inside<'a>,
}

impl<'a> Wanted<'a> {
    fn overwrite(&self, hash: KeyHash, new: Slot) -> Overwrite<'a> {
        let slot = self.place.map(|place| Target::Slot(place.slot, place.word));
        Overwrite { served: self.served, target: slot.unwrap_or(Target::Free(hash)), new }
    }
}

impl Inner {
    /// Whether this node goes by the book, and is a member.
    fn may_at_once(&self, now_ns: u64) -> bool {
        self.table.protocol.has_fast_path()
            && !self.table.sabotage.is_active()
            && self.table.held_lease(now_ns)
    }

    fn read_some_at_once(
        self: &Arc<Self>,
        keys: &[&[u8]],
        take: &mut dyn FnMut(Option<&[u8]>),
    ) -> usize {
        let Ok(joined) = self.joined() else { return 0 };
        let now_ns = self.now_ns();
        if !self.may_at_once(now_ns) || self.caching.mode() != CacheMode::Pairs {
            return 0;
        }
        let Keys { hashes, doors, entries } = Keys::enter(joined, keys.iter().copied());
        let served = self.proxy.get_all(entries.iter());
        let mut held = self.caching.several(&hashes);
        let (mut read, me) = (0, ComputeId(joined.number));
        for (nth, key) in keys.iter().enumerate() {
            if doors[nth].is_none() {
                break;
            }
            let asker = Asker { me, entry: entries[nth], now_ns };
            let pair = held.pair(nth, (hashes[nth], key), &asker);
            let Some((value, expires_ms, place)) = pair else { break };
            take(Some(value).filter(|_| !expired(expires_ms, self)));
            if let Some(served) = served[nth].as_ref().filter(|_| place.owner == Some(me)) {
                served.count_read(place.slot);
            }
            read += 1;
        }
        let due = held.take_due();
        drop(held);
        if !due.is_empty() {
            self.tell_reads(due);
        }
        self.counts.add_many(Count::Reads, read as u64);
        self.count_many(entries[..read].iter().map(|entry| entry.partition), true);
        read
    }

    fn set_some_at_once(self: &Arc<Self>, sets: &[Set<'_>]) -> u32 {
        let sets = &sets[..sets.len().min(AT_ONCE_MAX)];
        let Ok(joined) = self.joined() else { return 0 };
        let now_ns = self.now_ns();
        if !self.may_at_once(now_ns) || self.caching.mode() == CacheMode::Off {
            return 0;
        }
        let mut keys = Keys::enter(joined, sets.iter().map(|set| set.key));
        self.leave_those_led(&mut keys);
        let served = self.proxy.get_all(keys.entries.iter());
        let mut held = self.caching.several(&keys.hashes);
        for (nth, served) in served.iter().enumerate() {
            if let Some((served, slot)) = served.as_ref().zip(held.slot(nth)) {
                served.touch(slot);
            }
        }
        let call = Call { sets, keys: &keys, me: ComputeId(joined.number), now_ns };
        let wanted = self.wanted(call, &served, &mut held);
        let Some(open) = self.open_at_once(&wanted) else { return 0 };
        let records: Vec<(KeyHash, Record<'_>)> =
            wanted.iter().map(|set| self.record_of(call, set)).collect();
        let Some(written) = self.write_records_at_once(&records, now_ns) else { return 0 };
        let came = self.overwrite_at_once(call, (&wanted, &written), &open, joined);
        let (mut done, mut superseded) = (0, Vec::with_capacity(sets.len()));
        let mut ahead = Vec::new();
        for ((set, record), came) in wanted.into_iter().zip(written).zip(came) {
            match came {
                AtOnce::Done { index, old, worthy } => {
                    self.cache_at_once(call, set.nth, (index, record.slot), worthy, &mut held);
                    done |= 1 << set.nth;
                    superseded.extend(Some(old).filter(|old| old.is_live()));
                }
                AtOnce::Broken { index, old } => {
                    let write = set.overwrite(keys.hashes[set.nth], record.slot);
                    ahead.push((write.ahead(set.door, (index, old)), record));
                }
                AtOnce::Not => self.free_unpublished(record),
            }
        }
        drop(held);
        self.set_back_later(ahead);
        self.give_back(superseded, now_ns);
        for nth in 0..sets.len() {
            done |= (done >> call.last(nth) & 1) << nth;
        }
        for count in [Count::Writes, Count::SetAtOnce] {
            self.counts.add_many(count, u64::from(u32::count_ones(done)));
        }
        let is_done = |(nth, _): &(usize, &Assigned)| done >> nth & 1 == 1;
        let partitions = keys.entries.iter().enumerate().filter(is_done);
        self.count_many(partitions.map(|(_, entry)| entry.partition), false);
        done
    }

    /// Writes of these keys that are under way come first.
    fn leave_those_led(&self, keys: &mut Keys<'_>) {
        for (nth, led) in self.combining.led(&keys.hashes).into_iter().flatten().enumerate() {
            if led {
                keys.doors[nth] = None;
            }
        }
    }

    /// Those of the sets that can be done at once, of each key the last.
    fn wanted<'a>(
        &self,
        call: Call<'_>,
        served: &'a [Option<Arc<Served>>],
        held: &mut Several<'_>,
    ) -> Vec<Wanted<'a>> {
        let mut wanted = Vec::with_capacity(call.sets.len());
        for nth in (0..call.sets.len()).filter(|&nth| call.last(nth) == nth) {
            let place = held.place(nth, call.key(nth), &call.asker(nth));
            let place = place.filter(|place| place.owner == Some(call.me));
            let served = served[nth].as_ref().filter(|_| call.keys.doors[nth].is_some());
            if let Some(served) = served.filter(|served| served.words.is_some())
                && let Some(door) = served.gate.try_enter(Served::DOOR)
            {
                wanted.push(Wanted { nth, served, place, door });
            }
        }
        wanted
    }

    fn record_of<'a>(&self, call: Call<'a>, set: &Wanted<'_>) -> (KeyHash, Record<'a>) {
        let Set { key, value, expires_ms } = call.sets[set.nth];
        let previous = set.place.map_or(0, |place| place.word.0);
        let writer = self.pool.client().0;
        let record = Record { expires_ms, previous, writer, ..Record::new(key, value) };
        (call.keys.hashes[set.nth], record)
    }

    /// Commits sets whose records are written; what came of each.
    fn overwrite_at_once<'a>(
        &self,
        call: Call<'_>,
        (wanted, written): (&[Wanted<'a>], &[Written]),
        open: &[Arc<OpenBlock>],
        joined: &Joined,
    ) -> Vec<AtOnce> {
        let write = |(set, record): (&Wanted<'a>, &Written)| {
            set.overwrite(call.keys.hashes[set.nth], record.slot)
        };
        let writes: Vec<Overwrite<'_>> = wanted.iter().zip(written).map(write).collect();
        // What the writes act on was seen after that.
        let until_ns = call.now_ns.saturating_add(self.settings.address_use_ns());
        let still = || {
            let now_ns = self.now_ns();
            now_ns < until_ns && self.table.held_lease(now_ns)
        };
        let copy = |due: &[Due]| {
            due.iter().all(|due| !due.clear || self.clear_at_once(due.old))
                && self.copy_words(due, &writes, open)
        };
        let (me, alone) = (call.me, self.stands_alone(joined));
        overwrite(&writes, Writer { me, alone, now_us: call.now_ns / 1000 }, still, copy)
    }

    /// Writes the new words to all copies; whether that was done.
    fn copy_words(&self, due: &[Due], writes: &[Overwrite<'_>], open: &[Arc<OpenBlock>]) -> bool {
        let word = |due: &Due| {
            let Overwrite { served, new, .. } = writes[due.nth];
            (self.table.slot(served.assigned.shape, due.index), new.0.to_le_bytes())
        };
        let words: Vec<(Address, [u8; 8])> = due.iter().map(word).collect();
        open.iter().all(|open| {
            let here = words.iter().filter(|(slot, _)| slot.block == open.config.block);
            let words: Vec<(u64, &[u8])> =
                here.map(|(slot, bytes)| (slot.offset, &bytes[..])).collect();
            let copied = open.write_at_once(&words);
            copied.inspect_err(|refusal| self.pool.stale(open, *refusal)).is_ok()
        })
    }

    /// Set number `nth` was committed in this slot, with this word.
    fn cache_at_once(
        &self,
        call: Call<'_>,
        nth: usize,
        (slot, word): (SlotIndex, Slot),
        worthy: bool,
        held: &mut Several<'_>,
    ) {
        let (entry, seen_ns) = (&call.keys.entries[nth], call.now_ns);
        let place = Place {
            partition: PartitionId(entry.partition),
            slot,
            word,
            owner: Some(call.me),
            session: 0,
            stamp: Stamp { epoch: entry.epoch, at_us: seen_ns / 1000 },
            seen_ns,
        };
        let Set { value, expires_ms, .. } = call.sets[nth];
        held.written(nth, call.key(nth), place, (value, expires_ms), worthy);
    }

    /// Whether no other node stands behind this one's bit in lists of sharers.
    fn stands_alone(&self, joined: &Joined) -> bool {
        let (map, mine) = (joined.map.read(), joined.number % EXACT_NODES);
        map.members
            .iter()
            .all(|other| other.number == joined.number || other.number % EXACT_NODES != mine)
    }

    /// The blocks of these slots, if there are any and all can be written at once; their words are
    /// asked for.
    fn open_at_once(&self, wanted: &[Wanted<'_>]) -> Option<Vec<Arc<OpenBlock>>> {
        // A subtable lies in one block.
        let slot = |set: &Wanted<'_>| {
            let index = set.place.map_or_else(Default::default, |place| place.slot);
            self.table.slot(set.served.assigned.shape, index)
        };
        let mut open: Vec<Arc<OpenBlock>> = Vec::new();
        for block in wanted.iter().map(|set| slot(set).block) {
            if open.iter().all(|open| open.config.block != block) {
                open.push(self.writable_at_once(block)?);
            }
        }
        for open in &open {
            let known = wanted.iter().filter(|set| set.place.is_some()).map(slot);
            let here = known.filter(|slot| slot.block == open.config.block);
            open.prefetch(&here.map(|slot| slot.offset).collect::<Vec<_>>());
        }
        Some(open).filter(|open| !open.is_empty())
    }

    /// The block, if it is open and writes of it are done at once.
    pub(crate) fn writable_at_once(&self, block: BlockId) -> Option<Arc<OpenBlock>> {
        let known = self.pool.try_open(block);
        known.filter(|open| open.is_writable() && open.completes_at_once())
    }

    /// Takes the valid bit off a record on all its copies; whether that was done.
    fn clear_at_once(&self, old: Slot) -> bool {
        let Some(range) = self.table.record(old) else { return false };
        let Some(open) = self.writable_at_once(range.address.block) else { return false };
        let cleared = open.write_at_once(&[(range.address.offset, &INVALID_WORD.to_le_bytes())]);
        cleared.inspect_err(|refusal| self.pool.stale(&open, *refusal)).is_ok()
    }

    /// Writes to the copies what slots hold, where sets that were not committed may have left
    /// another word. Whoever takes one of the partitions waits for it.
    fn set_back_later(self: &Arc<Self>, ahead: Vec<(Ahead, Written)>) {
        if ahead.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        let task = async move {
            for (ahead, record) in ahead {
                if inner.set_back(&ahead).await {
                    inner.counts.add(Count::SetBack);
                    inner.free_unpublished(record);
                } else {
                    inner.want_sweep();
                }
            }
        };
        self.runtime.spawn("flex-back", Box::pin(task));
    }

    /// Whether the copies agree; `false`: this node was taken for dead, or they are gone.
    async fn set_back(&self, ahead: &Ahead) -> bool {
        let slot = self.table.slot(ahead.served.assigned.shape, ahead.index);
        let word = ahead.old.0.to_le_bytes();
        while let Err(error) = self.table.write(&[(slot, &word)], u64::MAX).await {
            if self.pool.is_evicted() || matches!(error.kind(), NotFound | Unsupported | Fenced) {
                tracing::warn!(%error, "copies of a slot are left to who takes its partition");
                return false;
            }
            tracing::debug!(%error, "a slot is set back");
            self.pause().await;
        }
        true
    }

    fn give_back(self: &Arc<Self>, mut superseded: Vec<Slot>, began_ns: u64) {
        if self.now_ns() >= began_ns.saturating_add(self.settings.address_use_ns()) {
            // A sweep may have found them by now, and they may be used again.
            return self.want_sweep();
        }
        self.free_own(&mut superseded);
        superseded.into_iter().for_each(|old| self.free_later(old));
    }
}
