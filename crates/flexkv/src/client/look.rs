//! Looking a key up: its slots, the records that they name, and which of them has the key.
//!
//! Failure: a record that is no longer there makes the caller look again, because its slot was old.
//! Cost: the slots take one READ or one request, and the records one READ each, in parallel.

use archipelago_base::Result;

use super::Client;
use super::Value;
use super::cached::Source;
use crate::format::{
    Candidates, Decoded, HashedKey, Head, KeyHash, Record, RecordRefused, Slot, SlotIndex,
};
use crate::node::caching::Keep;
use crate::protocol::IndexProtocol as _;
use crate::table::{FromCopy, Range, unsupported_record};
use crate::wire::{Assigned, Candidate, Grant, Message, Place};

/// A key's slot, and the expiry of its record.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) index: SlotIndex,
    pub(super) slot: Slot,
    pub(super) expires_ms: u64,
}

/// Result of a look-up of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyLocation {
    pub(super) found: Option<Found>,
    /// A slot in which the key is being written or deleted one-sided.
    pub(super) pending: Option<Place>,
    /// Slots with the key's fingerprint that hold other keys.
    pub(super) others: Vec<Place>,
    /// The clock of the partition's node at some time before the look-up.
    pub(super) stamp_us: u64,
    /// Time by this node's clock until which the slots' words name the same records.
    pub(super) valid_ns: u64,
    /// Whether the write applies only to the word that was found.
    pub(super) exact: bool,
}

/// A record that one of the slots names.
pub(super) enum Read {
    /// The record of another key.
    Other,
    /// The key's record. `valid` says that it was not superseded yet.
    Mine { value: Vec<u8>, expires_ms: u64, previous: Slot, valid: bool },
    /// No record, because the slot was old.
    Gone,
}

/// The owner of the record that a slot names.
enum Owner {
    Other,
    Mine { expires_ms: u64 },
    Gone,
}

fn places(slots: &[Candidate]) -> Vec<(SlotIndex, Slot)> {
    slots.iter().map(|slot| (SlotIndex(slot.index), Slot(slot.word))).collect()
}

impl Client {
    /// The owners of the records of slots, read in parallel and without their values.
    async fn owners(&self, slots: &[Slot], key: &[u8], until_ns: u64) -> Result<Vec<Owner>> {
        let mut ranges: Vec<Range> = Vec::with_capacity(slots.len());
        ranges.extend(slots.iter().filter_map(|slot| self.node.table().head(*slot, key.len())));
        debug_assert_eq!(ranges.len(), slots.len());
        let all = self.node.table().read_named(&ranges, until_ns).await?;
        let owner = |bytes: Vec<u8>| {
            Ok(match Head::decode(&bytes) {
                Ok(Some(head)) if head.key == key => {
                    Owner::Mine { expires_ms: head.header.expires_ms }
                }
                // A key that does not fit into the range that was read is longer.
                Ok(_) => Owner::Other,
                Err(RecordRefused::Version(version)) => return Err(unsupported_record(version)),
                Err(_) => Owner::Gone,
            })
        };
        all.into_iter().map(owner).collect()
    }

    /// The records of slots, read in parallel.
    pub(super) async fn read_records(
        &self,
        slots: &[Slot],
        key: &[u8],
        until_ns: u64,
    ) -> Result<Vec<Read>> {
        let mut ranges: Vec<Range> = Vec::with_capacity(slots.len());
        ranges.extend(slots.iter().filter_map(|slot| self.node.table().record(*slot)));
        debug_assert_eq!(ranges.len(), slots.len());
        let all = self.node.table().read_named(&ranges, until_ns).await?;
        let mut records = Vec::with_capacity(all.len());
        for (bytes, range) in all.into_iter().zip(&ranges) {
            let bytes = self.node.table().read_rest(range.address, bytes, until_ns).await?;
            records.push(match Record::decode(&bytes, self.node.pool().block_bytes()) {
                Ok(Decoded::Record(record)) if record.key == key => Read::Mine {
                    value: record.value.to_vec(),
                    expires_ms: record.expires_ms,
                    previous: Slot(record.previous),
                    valid: record.valid,
                },
                Ok(Decoded::Record(_)) => Read::Other,
                Err(RecordRefused::Version(version)) => return Err(unsupported_record(version)),
                _ => Read::Gone,
            });
        }
        Ok(records)
    }

    /// Looks up the value of a key and caches it. The outer `None` means that the slots were old,
    /// so that the caller must look again. `reads` is the number of cached reads that the question
    /// reports.
    pub(super) async fn find(
        &self,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        reads: u32,
        until_ns: u64,
    ) -> Result<Option<Option<Value>>> {
        let fetch = self.node.caching().begin_fetch(hash);
        let seen_ns = self.node.now_ns();
        let (candidates, source) = if entry.offloaded {
            match self.ask_proxy(entry, hash, reads).await? {
                Some((slots, grant)) => (slots, Source::of_proxy(entry, grant, seen_ns)),
                None => return Ok(None),
            }
        } else {
            let candidates =
                self.node.table().candidates(FromCopy::First, entry.shape, hash, until_ns).await?;
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
                // A record that is already superseded, or was read while this node was no member,
                // is not cached.
                if valid && !dying && self.node.table().holds_lease() {
                    let place = source.place(entry, SlotIndex(candidate.index), slot);
                    let pair = candidate.cache.then_some(Keep::Pair(&value, expires_ms));
                    let keep = pair.unwrap_or(Keep::Address);
                    self.node.caching().finish_fetch(fetch, HashedKey { hash, key }, place, keep);
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

    /// The slots of a key according to the partition's proxy.
    async fn ask_proxy(
        &self,
        entry: Assigned,
        hash: KeyHash,
        reads: u32,
    ) -> Result<Option<(Vec<Candidate>, Grant)>> {
        let Assigned { partition, epoch, .. } = entry;
        let search = Message::Search { partition, epoch, hash: hash.0, reads };
        Ok(match self.proxy.ask_node(entry, &search).await? {
            Some(Message::Found { slots, grant }) => Some((slots, grant)),
            _ => None,
        })
    }

    /// The slots whose records may have a key with this hash, pending ones included.
    fn named(candidates: &Candidates, hash: KeyHash) -> Vec<(SlotIndex, Slot)> {
        let named = |slot: Slot| slot.is_live() || slot.is_pending();
        let fingerprint = hash.fingerprint();
        let same = |(_, slot): &(SlotIndex, Slot)| named(*slot) && slot.0 as u8 == fingerprint;
        candidates.all().filter(same).collect()
    }

    /// Looks a key up in the index in the pool. `None` if the caller must look again.
    pub(super) async fn look(
        &self,
        which: FromCopy,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Option<KeyLocation>> {
        let same = if self.node.table().protocol().hides_index_at_proxy() {
            // Only the partition's proxy has the index.
            let Some((slots, _)) = self.ask_proxy(entry, hash, 0).await? else { return Ok(None) };
            places(&slots)
        } else {
            let candidates =
                self.node.table().candidates(which, entry.shape, hash, until_ns).await?;
            Self::named(&candidates, hash)
        };
        self.judge(same, key, until_ns).await
    }

    /// Looks a key up at the partition's proxy, for a write. The result has the proxy's clock from
    /// before it looked.
    pub(super) async fn look_at_proxy(
        &self,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Option<KeyLocation>> {
        let Assigned { partition, epoch, .. } = entry;
        let locate = Message::Locate { partition, epoch, hash: hash.0 };
        let Some(Message::Found { slots, grant }) = self.proxy.ask_node(entry, &locate).await?
        else {
            return Ok(None);
        };
        let looked = self.judge(places(&slots), key, until_ns).await?;
        Ok(looked.map(|looked| KeyLocation { stamp_us: grant.stamp_us, ..looked }))
    }

    /// Finds the key's slot among slots by their records. `None` if the caller must look again.
    async fn judge(
        &self,
        same: Vec<(SlotIndex, Slot)>,
        key: &[u8],
        until_ns: u64,
    ) -> Result<Option<KeyLocation>> {
        let slots: Vec<Slot> = same.iter().map(|(_, slot)| *slot).collect();
        let owners = self.owners(&slots, key, until_ns).await?;
        let mut looked = KeyLocation::default();
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
