//! Looking a key up: its slots, the records that they name, and which of them is the key's.

use std::sync::Arc;

use archipelago_base::{Error, Result};

use super::Value;
use super::cached::Source;
use crate::format::{Candidates, Decoded, Head, KeyHash, Record, RecordRefused, Slot, SlotIndex};
use crate::node::Inner;
use crate::node::caching::Keep;
use crate::protocol::IndexProtocol as _;
use crate::table::{FromCopy, Range};
use crate::wire::{Assigned, Candidate, Grant, Message, Place};

/// The key's slot and record.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) index: SlotIndex,
    pub(super) slot: Slot,
    pub(super) expires_ms: u64,
}

/// What the index in the pool says of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Looked {
    pub(super) found: Option<Found>,
    /// A slot in which the key is being written or deleted one-sided.
    pub(super) pending: Option<Place>,
    /// Slots with the key's fingerprint that hold other keys.
    pub(super) others: Vec<Place>,
    /// The clock of the partition's node, at some time before.
    pub(super) stamp_us: u64,
    /// Until when the addresses hold, by this node's clock.
    pub(super) valid_ns: u64,
    /// Whether the write is for the word that was found alone.
    pub(super) exact: bool,
}

/// A record that one of the slots names.
pub(super) enum Read {
    /// Of another key.
    Other,
    /// The key's. `valid`: it was not superseded yet.
    Mine { value: Vec<u8>, expires_ms: u64, previous: Slot, valid: bool },
    /// Not there any more: the slot was old.
    Gone,
}

/// Whose record it is that a slot names.
enum Owner {
    Other,
    Mine { expires_ms: u64 },
    Gone,
}

pub(super) fn of_version(version: u8) -> Error {
    Error::unsupported(format!("a record of version {version} lies in the pool"))
}

fn places(slots: &[Candidate]) -> Vec<(SlotIndex, Slot)> {
    slots.iter().map(|slot| (SlotIndex(slot.index), Slot(slot.word))).collect()
}

impl Inner {
    /// Whose the records of slots are, read at once and without their values.
    async fn owners(&self, slots: &[Slot], key: &[u8], until_ns: u64) -> Result<Vec<Owner>> {
        let mut ranges: Vec<Range> = Vec::with_capacity(slots.len());
        ranges.extend(slots.iter().filter_map(|slot| self.table.head(*slot, key.len())));
        debug_assert_eq!(ranges.len(), slots.len());
        let all = self.table.read_named(&ranges, until_ns).await?;
        let owner = |bytes: Vec<u8>| {
            Ok(match Head::decode(&bytes) {
                Ok(Some(head)) if head.key == key => {
                    Owner::Mine { expires_ms: head.header.expires_ms }
                }
                // A key that does not fit in is longer.
                Ok(_) => Owner::Other,
                Err(RecordRefused::Version(version)) => return Err(of_version(version)),
                Err(_) => Owner::Gone,
            })
        };
        all.into_iter().map(owner).collect()
    }

    /// The records of slots, read at once.
    pub(super) async fn read_records(
        &self,
        slots: &[Slot],
        key: &[u8],
        until_ns: u64,
    ) -> Result<Vec<Read>> {
        let mut ranges: Vec<Range> = Vec::with_capacity(slots.len());
        ranges.extend(slots.iter().filter_map(|slot| self.table.record(*slot)));
        debug_assert_eq!(ranges.len(), slots.len());
        let all = self.table.read_named(&ranges, until_ns).await?;
        let mut records = Vec::with_capacity(all.len());
        for (bytes, range) in all.into_iter().zip(&ranges) {
            let bytes = self.table.read_rest(range.address, bytes, until_ns).await?;
            records.push(match Record::decode(&bytes, self.pool.block_bytes()) {
                Ok(Decoded::Record(record)) if record.key == key => Read::Mine {
                    value: record.value.to_vec(),
                    expires_ms: record.expires_ms,
                    previous: Slot(record.previous),
                    valid: record.valid,
                },
                Ok(Decoded::Record(_)) => Read::Other,
                Err(RecordRefused::Version(version)) => return Err(of_version(version)),
                _ => Read::Gone,
            });
        }
        Ok(records)
    }

    /// The value of a key, which is cached, too; the outer `None`: the slots were old, look again.
    /// `reads`: of the key, to be told along.
    pub(super) async fn find(
        self: &Arc<Self>,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        reads: u32,
        until_ns: u64,
    ) -> Result<Option<Option<Value>>> {
        let fetch = self.caching.begin_fetch(hash);
        let seen_ns = self.now_ns();
        let (candidates, source) = if entry.offloaded {
            match self.ask_proxy(entry, hash, reads).await? {
                Some((slots, grant)) => (slots, Source::of_proxy(entry, grant, seen_ns)),
                None => return Ok(None),
            }
        } else {
            let candidates =
                self.table.candidates(FromCopy::First, entry.shape, hash, until_ns).await?;
            let same = Self::named(&candidates, hash);
            let place = |(index, slot): (SlotIndex, Slot)| Candidate {
                index: index.0,
                word: slot.0,
                cache: false,
            };
            (same.into_iter().map(place).collect(), Source { seen_ns, ..Source::default() })
        };
        let slots: Vec<Slot> = candidates.iter().map(|candidate| Slot(candidate.word)).collect();
        let records = self.read_records(&slots, key, until_ns).await?;
        for (candidate, read) in candidates.into_iter().zip(records) {
            // The record of a dying slot counts until the slot is deleted, and is not worth
            // caching.
            let (slot, dying) = (Slot(candidate.word).undying(), Slot(candidate.word).is_dying());
            let Read::Mine { value, expires_ms, previous, valid } = read else {
                if matches!(read, Read::Gone) {
                    return Ok(None);
                }
                continue;
            };
            if !slot.is_pending() {
                // Nobody keeps what is superseded already, or was read while this node was no
                // member.
                if valid && !dying && self.table.holds_lease() {
                    let place = source.place(entry, SlotIndex(candidate.index), slot);
                    let pair = candidate.cache.then_some(Keep::Pair(&value, expires_ms));
                    let keep = pair.unwrap_or(Keep::Address);
                    self.caching.finish_fetch(fetch, (hash, key), place, keep);
                }
                let version = self.version(slot, seen_ns);
                return Ok(Some(Some(Value { bytes: value, expires_ms, version })));
            }
            if !previous.is_live() {
                return Ok(Some(None));
            }
            let before = self.read_records(&[previous], key, until_ns).await?.pop();
            return Ok(match before {
                Some(Read::Mine { value, expires_ms, .. }) => {
                    let version = self.version(previous, seen_ns);
                    Some(Some(Value { bytes: value, expires_ms, version }))
                }
                _ => None,
            });
        }
        Ok(Some(None))
    }

    /// The slots of a key, by the partition's proxy.
    async fn ask_proxy(
        self: &Arc<Self>,
        entry: Assigned,
        hash: KeyHash,
        reads: u32,
    ) -> Result<Option<(Vec<Candidate>, Grant)>> {
        let Assigned { partition, epoch, .. } = entry;
        let search = Message::Search { partition, epoch, hash: hash.0, reads };
        Ok(match self.ask_node(entry, &search).await? {
            Some(Message::Found { slots, grant }) => Some((slots, grant)),
            _ => None,
        })
    }

    /// Slots that name a record whose key may have this hash, or will.
    fn named(candidates: &Candidates, hash: KeyHash) -> Vec<(SlotIndex, Slot)> {
        let named = |slot: Slot| slot.is_live() || slot.is_pending();
        let fingerprint = hash.fingerprint();
        let same = |(_, slot): &(SlotIndex, Slot)| named(*slot) && slot.0 as u8 == fingerprint;
        candidates.all().filter(same).collect()
    }

    /// Slot and record of a key by the index in the pool; `None`: look again.
    pub(super) async fn look(
        self: &Arc<Self>,
        which: FromCopy,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Option<Looked>> {
        let same = if self.table.protocol.hides_index_at_proxy() {
            let Some((slots, _)) = self.ask_proxy(entry, hash, 0).await? else { return Ok(None) };
            places(&slots)
        } else {
            let candidates = self.table.candidates(which, entry.shape, hash, until_ns).await?;
            Self::named(&candidates, hash)
        };
        self.judge(same, key, until_ns).await
    }

    /// The same by the partition's proxy, for a write; and its clock from before it looked.
    pub(super) async fn look_at_proxy(
        self: &Arc<Self>,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Option<Looked>> {
        let Assigned { partition, epoch, .. } = entry;
        let locate = Message::Locate { partition, epoch, hash: hash.0 };
        let Some(Message::Found { slots, grant }) = self.ask_node(entry, &locate).await? else {
            return Ok(None);
        };
        let looked = self.judge(places(&slots), key, until_ns).await?;
        Ok(looked.map(|looked| Looked { stamp_us: grant.stamp_us, ..looked }))
    }

    /// Which of the slots is the key's, by the records that they name; `None`: look again.
    async fn judge(
        self: &Arc<Self>,
        same: Vec<(SlotIndex, Slot)>,
        key: &[u8],
        until_ns: u64,
    ) -> Result<Option<Looked>> {
        let slots: Vec<Slot> = same.iter().map(|(_, slot)| *slot).collect();
        let owners = self.owners(&slots, key, until_ns).await?;
        let mut looked = Looked::default();
        for ((index, slot), owner) in same.into_iter().zip(owners) {
            let place = Place { index: index.0, word: slot.0 };
            match owner {
                Owner::Gone => return Ok(None),
                Owner::Other => looked.others.push(place),
                Owner::Mine { .. } if slot.is_taken() => looked.pending = Some(place),
                Owner::Mine { expires_ms } => {
                    looked.found = Some(Found { index, slot, expires_ms });
                }
            }
        }
        Ok(Some(looked))
    }
}
