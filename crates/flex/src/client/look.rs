//! Looking a key up: its slots, the records that they name, and which of them is the key's.

use std::sync::Arc;

use archipelago_base::Result;

use super::Value;
use crate::format::{Decoded, KeyHash, Record, RecordRefused, Slot, SlotIndex};
use crate::node::Inner;
use crate::table::Range;
use crate::wire::{Assigned, Message, Place};

/// The key's slot and record.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) index: SlotIndex,
    pub(crate) slot: Slot,
    pub(crate) expires_ms: u64,
}

/// What the index in the pool says of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looked {
    pub(crate) found: Option<Found>,
    /// A slot in which the key is being written one-sided.
    pub(crate) pending: Option<Place>,
    /// Of the slot that was found.
    pub(crate) value: Option<Value>,
    /// Slots with the key's fingerprint that hold other keys.
    pub(crate) others: Vec<Place>,
    /// The clock of the partition's node, at some time before.
    pub(crate) stamp_us: u64,
    /// Until when the addresses hold, by this node's clock.
    pub(crate) valid_ns: u64,
}

/// A record that one of the slots names.
enum Read {
    /// Of another key.
    Other,
    /// The key's.
    Mine { value: Vec<u8>, expires_ms: u64, previous: Slot },
    /// Not there any more: the slot was old.
    Gone,
}

impl Inner {
    /// The records of slots, read at once.
    async fn read_records(&self, slots: &[Slot], key: &[u8], until_ns: u64) -> Result<Vec<Read>> {
        let mut ranges: Vec<Range> = Vec::with_capacity(slots.len());
        ranges.extend(slots.iter().filter_map(|slot| self.table.record(*slot)));
        debug_assert_eq!(ranges.len(), slots.len());
        let all = self.table.read(&ranges, until_ns).await?;
        let mut records = Vec::with_capacity(all.len());
        for (mut bytes, slot) in all.into_iter().zip(slots) {
            if let Ok(Decoded::Needs(_)) = Record::decode(&bytes, self.pool.block_bytes()) {
                bytes = self.table.read_record(*slot, until_ns).await?;
            }
            records.push(match Record::decode(&bytes, self.pool.block_bytes()) {
                Ok(Decoded::Record(record)) if record.key == key => Read::Mine {
                    value: record.value.to_vec(),
                    expires_ms: record.expires_ms,
                    previous: Slot(record.previous),
                },
                Ok(Decoded::Record(_)) => Read::Other,
                Err(RecordRefused::Version(version)) => {
                    let what = format!("a record of version {version} lies in the pool");
                    return Err(archipelago_base::Error::unsupported(what));
                }
                _ => Read::Gone,
            });
        }
        Ok(records)
    }

    /// The value of a key; the outer `None`: the slots were old, look again.
    pub(super) async fn find(
        self: &Arc<Self>,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Option<Option<Value>>> {
        let slots = if entry.offloaded {
            match self.ask_proxy(entry, hash).await? {
                Some(slots) => slots,
                None => return Ok(None),
            }
        } else {
            let candidates = self.table.candidates(entry.shape, hash, until_ns).await?;
            let fingerprint = hash.fingerprint();
            let named = |slot: &Slot| slot.is_live() || slot.is_pending();
            let same = candidates.all().map(|(_, slot)| slot).filter(named);
            same.filter(|slot| slot.0 as u8 == fingerprint).collect()
        };
        let records = self.read_records(&slots, key, until_ns).await?;
        for (slot, read) in slots.into_iter().zip(records) {
            let Read::Mine { value, expires_ms, previous } = read else {
                if matches!(read, Read::Gone) {
                    return Ok(None);
                }
                continue;
            };
            if !slot.is_pending() {
                return Ok(Some(Some(Value { bytes: value, expires_ms, version: slot })));
            }
            if !previous.is_live() {
                return Ok(Some(None));
            }
            let before = self.read_records(&[previous], key, until_ns).await?.pop();
            return Ok(match before {
                Some(Read::Mine { value, expires_ms, .. }) => {
                    Some(Some(Value { bytes: value, expires_ms, version: previous }))
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
    ) -> Result<Option<Vec<Slot>>> {
        let Assigned { partition, epoch, .. } = entry;
        let search = Message::Search { partition, epoch, hash: hash.0, reads: 0, session: 0 };
        match self.ask_node(entry, &search).await? {
            Some(Message::Found { slots, .. }) => {
                Ok(Some(slots.into_iter().map(|place| Slot(place.word)).collect()))
            }
            _ => Ok(None),
        }
    }

    /// Slot and record of a key by the index in the pool; `None`: look again.
    pub(crate) async fn look(
        &self,
        entry: Assigned,
        key: &[u8],
        hash: KeyHash,
        until_ns: u64,
    ) -> Result<Option<Looked>> {
        let candidates = self.table.candidates(entry.shape, hash, until_ns).await?;
        let fingerprint = hash.fingerprint();
        let named = |(_, slot): &(SlotIndex, Slot)| slot.is_live() || slot.is_pending();
        let same: Vec<(SlotIndex, Slot)> = candidates
            .all()
            .filter(named)
            .filter(|(_, slot)| slot.0 as u8 == fingerprint)
            .collect();
        self.look_at(same, key, until_ns).await
    }

    /// The same, of slots that hold the key's fingerprint.
    pub(crate) async fn look_at(
        &self,
        same: Vec<(SlotIndex, Slot)>,
        key: &[u8],
        until_ns: u64,
    ) -> Result<Option<Looked>> {
        let slots: Vec<Slot> = same.iter().map(|(_, slot)| *slot).collect();
        let records = self.read_records(&slots, key, until_ns).await?;
        let mut looked = Looked::default();
        for ((index, slot), read) in same.into_iter().zip(records) {
            let place = Place { index: index.0, word: slot.0 };
            match read {
                Read::Gone => return Ok(None),
                Read::Other => looked.others.push(place),
                Read::Mine { .. } if slot.is_pending() => looked.pending = Some(place),
                Read::Mine { value, expires_ms, .. } => {
                    looked.found = Some(Found { index, slot, expires_ms });
                    looked.value = Some(Value { bytes: value, expires_ms, version: slot });
                }
            }
        }
        Ok(Some(looked))
    }
}
