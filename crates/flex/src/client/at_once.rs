//! Reads and sets that wait for nobody, several at a time: no task, no message, one look at the cache for all of them.
//!
//! | what | when |
//! | --- | --- |
//! | a read | this node has the pair in its cache and may serve it ([`crate::node::caching`]) |
//! | a set | this node is the partition's proxy and knows the key's slot from its cache, nobody else may have cached the key, no other write of it is under way, and all copies are in memory that this machine shares |
//!
//! What cannot be done so has not begun, and goes the long way ([`Inner::get`](crate::node::Inner), [`crate::combining`]).
//!
//! **A set** goes as any write of a proxied partition ([`crate::proxy`]), on one thread and under locks: the records are written to all their copies; then, for one
//! after another, under the lock of its partition, the old record's valid bit is cleared if somebody was told its address, the new word is written on all copies of
//! the index, and swapped here: the commit point. The cache is held from before that until the new pair lies in it, so whoever reads the key here finds the old
//! pair before the commit and the new one after. Of several sets of one key the later comes later; when one is not done at once, none behind it is.
//!
//! A copy that does not take the new word after another may have: the set is begun again, the long way, and overwrites it; the record
//! that was left is for a sweep.
//!
//! **A read** takes effect between a look at the clock and the look at the cache: see [`Inner::read_at_once`].
//!
//! Cost: of a set a lock for its partition, two doors, two copies of its bytes per copy, and per call one lock of the cache, one or two of the
//! heap; of a read a door and a lock for its partition. Some allocations per call, none per key.

use std::sync::Arc;

use archipelago_pool::OpenBlock;

use super::expired;
use crate::cache::Place;
use crate::directory::EXACT_NODES;
use crate::format::{INVALID_WORD, KeyHash, Record, Slot, key_hash};
use crate::gates::Inside;
use crate::ids::ComputeId;
use crate::lease::Stamp;
use crate::node::caching::{Asker, Several};
use crate::node::records::Written;
use crate::node::{ComputeNode, Count, Inner, Joined};
use crate::proxy::{AtOnce, Served};
use crate::settings::{CacheMode, Sabotage};
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
    /// Hands out what the first of `keys` hold, in their order, as far as this node has them cached and may serve them; how many. Never waits.
    /// `take` is called under a lock: it must not call this node.
    pub fn get_some_at_once(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        self.0.read_some_at_once(keys, take)
    }

    /// Does those of the sets (at most [`AT_ONCE_MAX`]) that can be done without waiting, in their order: bit *n* of the answer says that number *n* is done, as
    /// [`ComputeNode::set`] would have. The others have not begun.
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

impl Call<'_> {
    fn asker(&self, nth: usize) -> Asker {
        Asker { me: self.me, entry: self.keys.entries[nth], now_ns: self.now_ns }
    }
}

/// A set whose record is written.
struct Ready<'a> {
    nth: usize,
    served: &'a Served,
    record: Written,
    _door: Inside<'a>,
}

impl Inner {
    /// Whether this node goes by the book, and is a member.
    fn may_at_once(&self, now_ns: u64) -> bool {
        self.table.rival.is_none()
            && self.settings.sabotage == Sabotage::default()
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
        // Keys of which a set has to go the long way, and so all that follow.
        let mut long: Vec<KeyHash> = Vec::new();
        let Some((open, ready)) = self.make_ready(call, &served, &mut held, &mut long) else {
            return 0;
        };
        let alone = self.stands_alone(joined);
        let (mut done, mut superseded) = (0, Vec::with_capacity(sets.len()));
        for ready in ready {
            let hash = keys.hashes[ready.nth];
            let old = match long.contains(&hash) {
                true => Err(AtOnce::Not),
                false => self.commit_ready(call, &ready, (&open, alone), &mut held),
            };
            match old {
                Ok(old) => {
                    done |= 1 << ready.nth;
                    superseded.push(old);
                }
                Err(put) => {
                    long.push(hash);
                    match put {
                        AtOnce::Broken => self.want_sweep(),
                        _ => self.free_unpublished(ready.record),
                    }
                }
            }
        }
        drop(held);
        for count in [Count::Writes, Count::SetAtOnce] {
            self.counts.add_many(count, u64::from(u32::count_ones(done)));
        }
        let is_done = |(nth, _): &(usize, &Assigned)| done >> nth & 1 == 1;
        let partitions = keys.entries.iter().enumerate().filter(is_done);
        self.count_many(partitions.map(|(_, entry)| entry.partition), false);
        self.give_back(superseded, now_ns);
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

    /// Writes the records of those sets that can be done at once; the others' keys are `long`. `None`: none can.
    fn make_ready<'a>(
        &self,
        call: Call<'_>,
        served: &'a [Option<Arc<Served>>],
        held: &mut Several<'_>,
        long: &mut Vec<KeyHash>,
    ) -> Option<(Vec<Arc<OpenBlock>>, Vec<Ready<'a>>)> {
        let (mut wanted, mut records) = (Vec::with_capacity(call.sets.len()), Vec::new());
        records.reserve(call.sets.len());
        for (nth, set) in call.sets.iter().enumerate() {
            let hash = call.keys.hashes[nth];
            let place = held.place(nth, (hash, set.key), &call.asker(nth));
            let place = place.filter(|place| place.owner == Some(call.me));
            let served = served[nth].as_deref().filter(|_| call.keys.doors[nth].is_some());
            let door = served.and_then(|served| served.gate.try_enter(Served::DOOR));
            let (Some(place), Some(served), Some(door)) = (place, served, door) else {
                long.push(hash);
                continue;
            };
            if !long.contains(&hash) {
                wanted.push((nth, served, place, door));
                records.push((hash, self.record_of(set, place)));
            }
        }
        let slots = wanted.iter().map(|(_, served, place, _)| (*served, *place));
        let open = self.touch_copies(&slots)?;
        let written = self.write_records_at_once(&records, call.now_ns)?;
        let ready = wanted.into_iter().zip(written).map(|((nth, served, _, door), record)| Ready {
            nth,
            served,
            record,
            _door: door,
        });
        Some((open, ready.collect()))
    }

    /// Commits a set whose record is written, and caches the pair; the word that it superseded.
    fn commit_ready(
        &self,
        call: Call<'_>,
        ready: &Ready<'_>,
        (open, alone): (&[Arc<OpenBlock>], bool),
        held: &mut Several<'_>,
    ) -> Result<Slot, AtOnce> {
        let (nth, Call { me, now_ns, .. }) = (ready.nth, call);
        let (hash, set) = (call.keys.hashes[nth], &call.sets[nth]);
        // Again: another set of the key may have come before it.
        let place = held.place(nth, (hash, set.key), &call.asker(nth)).ok_or(AtOnce::Not)?;
        let worthy = match self.commit_at_once(ready, open, place, (me, alone), now_ns) {
            AtOnce::Done { worthy } => worthy,
            not => return Err(not),
        };
        let stamp = Stamp { epoch: call.keys.entries[nth].epoch, at_us: now_ns / 1000 };
        let word = ready.record.slot;
        let new = Place { word, session: 0, stamp, seen_ns: now_ns, ..place };
        held.written(nth, (hash, set.key), new, (set.value, set.expires_ms), worthy);
        Ok(place.word)
    }

    fn record_of<'a>(&self, set: &Set<'a>, place: Place) -> Record<'a> {
        let (previous, writer) = (place.word.0, self.pool.client().0);
        Record { expires_ms: set.expires_ms, previous, writer, ..Record::new(set.key, set.value) }
    }

    /// Whether no other node stands behind this one's bit in lists of sharers.
    fn stands_alone(&self, joined: &Joined) -> bool {
        let (map, mine) = (joined.map.read(), joined.number % EXACT_NODES);
        map.members
            .iter()
            .all(|other| other.number == joined.number || other.number % EXACT_NODES != mine)
    }

    /// The blocks of these slots, if all can be written at once; their words are fetched meanwhile.
    fn touch_copies<'a>(
        &self,
        slots: &(impl Iterator<Item = (&'a Served, Place)> + Clone),
    ) -> Option<Vec<Arc<OpenBlock>>> {
        let address =
            |(served, place): (&Served, Place)| self.table.slot(served.assigned.shape, place.slot);
        let mut open: Vec<Arc<OpenBlock>> = Vec::new();
        for slot in slots.clone().map(address) {
            if open.iter().all(|open| open.config.block != slot.block) {
                let known = self.pool.try_open(slot.block)?;
                open.push(
                    Some(known).filter(|open| open.is_writable() && open.completes_at_once())?,
                );
            }
        }
        for open in &open {
            let within = slots.clone().map(address).filter(|slot| slot.block == open.config.block);
            open.touch_at_once(&within.map(|slot| slot.offset));
        }
        Some(open)
    }

    fn commit_at_once(
        &self,
        ready: &Ready<'_>,
        open: &[Arc<OpenBlock>],
        place: Place,
        me: (ComputeId, bool),
        began_ns: u64,
    ) -> AtOnce {
        let Ready { served, record, .. } = ready;
        let (old, new) = (place.word, record.slot);
        let slot = self.table.slot(served.assigned.shape, place.slot);
        let Some(open) = open.iter().find(|open| open.config.block == slot.block) else {
            return AtOnce::Not;
        };
        // What the write acts on was seen after that.
        let until_ns = began_ns.saturating_add(self.settings.address_use_ns());
        let still = || {
            let now_ns = self.now_ns();
            now_ns < until_ns && self.table.held_lease(now_ns)
        };
        let copy = |clear: bool| {
            if clear && !self.clear_at_once(old) {
                return false;
            }
            let copied = open.write_at_once(&[(slot.offset, &new.0.to_le_bytes())]);
            copied.inspect_err(|refusal| self.pool.stale(open, *refusal)).is_ok()
        };
        served.overwrite((place.slot, old, new), me, still, copy)
    }

    /// Takes the valid bit off a record on all its copies; whether that was done.
    fn clear_at_once(&self, old: Slot) -> bool {
        let Some(range) = self.table.record(old) else { return false };
        let known = self.pool.try_open(range.address.block);
        let Some(open) = known.filter(|open| open.is_writable() && open.completes_at_once()) else {
            return false;
        };
        let cleared = open.write_at_once(&[(range.address.offset, &INVALID_WORD.to_le_bytes())]);
        cleared.inspect_err(|refusal| self.pool.stale(&open, *refusal)).is_ok()
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
