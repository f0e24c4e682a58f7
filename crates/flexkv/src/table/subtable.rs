//! A subtable as a whole: how it is loaded, made equal on all copies, and made larger.
//!
//! Only the partition's node calls these functions, while the partition is paused, so no other
//! client writes its slots. They settle what a dead node left half done: the first copy decides,
//! and a pending slot gets its final word.
//!
//! Cost: READs and WRITEs of 64 KiB over the subtable, and some round trips per slot that differs.

use std::ops::RangeInclusive;

use archipelago_base::{Error, Result};
use archipelago_fabric::Batch;
use archipelago_pool::Address;

use super::{Range, SHORT_KEY_BYTES, Table};
use crate::format::{
    BUCKET_BYTES, Bucket, Decoded, Head, Header, INVALID_WORD, KEY_BYTES_MAX, KeyHash, Record,
    Slot, UNIT_BYTES, regrow,
};
use crate::ids::PartitionId;
use crate::wire::Shaped;

/// Largest number of bytes of one READ or WRITE.
const PART: u64 = 64 << 10;

/// The slots of a subtable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    pub(crate) words: Vec<u64>,
}

/// Changes of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// Number of slots that were pending or dying.
    pub(crate) pending: u64,
    /// Number of slots whose copies differed.
    pub(crate) differed: u64,
}

impl Table {
    /// Reads all copies of a subtable. The first copy comes first.
    async fn load_copies(&self, shape: Shaped, until_ns: u64) -> Result<Vec<Image>> {
        let start = self.address(shape.packed);
        let bytes = (BUCKET_BYTES as u64) << shape.log2_buckets;
        'again: loop {
            let open = self.open_writable(start).await?;
            let mut images = Vec::new();
            for copy in &open.copies {
                let mut image = Image::default();
                let mut at = 0;
                while at < bytes {
                    let mut batch = Batch::new();
                    let len = PART.min(bytes - at);
                    batch.read(copy.region, start.offset + at, len as u32);
                    let promise = copy.link.post(batch);
                    copy.link.flush();
                    let batch = promise.await;
                    if let Some((_, refusal)) = batch.refusal() {
                        self.again(&open, refusal, until_ns).await?;
                        continue 'again;
                    }
                    let words = batch.data(0).as_chunks::<8>().0.iter();
                    image.words.extend(words.map(|word| u64::from_le_bytes(*word)));
                    at += len;
                }
                images.push(image);
            }
            return Ok(images);
        }
    }

    /// Makes all copies equal to the first, and settles its pending slots. Returns the slots.
    /// `stamp` gives the word of a deleted slot. `hold` gets each record that will be superseded,
    /// before it is. `superseded` gets the records that were superseded, even if the call fails.
    pub(crate) async fn repair(
        &self,
        shape: Shaped,
        stamp: &mut (dyn FnMut() -> Slot + Send),
        hold: &mut (dyn FnMut(Slot) + Send),
        superseded: &mut Vec<Slot>,
        until_ns: u64,
    ) -> Result<(Image, Repaired)> {
        let mut images = self.load_copies(shape, until_ns).await?;
        let mut image = images.remove(0);
        let start = self.address(shape.packed);
        let mut done = Repaired::default();
        for at in 0..image.words.len() {
            let word = Slot(image.words[at]);
            let differs = images.iter().any(|other| other.words.get(at) != Some(&word.0));
            if !differs && !word.is_taken() || self.sabotage.no_repair() {
                continue;
            }
            let mut loses = Vec::new();
            let settled = if word.is_taken() {
                done.pending += 1;
                let (end, previous) = self.settled(word, stamp, until_ns).await?;
                loses.push(previous);
                loses.iter().for_each(|slot| hold(*slot));
                end
            } else {
                done.differed += 1;
                word
            };
            let address = Address { offset: start.offset + at as u64 * 8, ..start };
            let bytes = settled.0.to_le_bytes();
            self.write_backups(&[(address, &bytes)], until_ns).await?;
            self.write(&[(address, &bytes)], until_ns).await?;
            image.words[at] = settled.0;
            superseded.append(&mut loses);
        }
        Ok((image, done))
    }

    /// The final word of a pending or dying slot, and the word of the record that it supersedes.
    /// That record loses its valid bit here.
    pub(crate) async fn settled(
        &self,
        word: Slot,
        stamp: &mut (dyn FnMut() -> Slot + Send),
        until_ns: u64,
    ) -> Result<(Slot, Slot)> {
        if word.is_dying() {
            self.invalidate(word.undying(), until_ns).await?;
            return Ok((stamp(), word.undying()));
        }
        let bytes = self.read_record(word, until_ns).await?;
        let record = match Record::decode(&bytes, self.pool.block_bytes()) {
            Ok(Decoded::Record(record)) => record,
            other => {
                let what = format!("the record of a pending slot is not there: {other:?}");
                return Err(Error::unsupported(what));
            }
        };
        let previous = Slot(record.previous);
        self.invalidate(previous, until_ns).await?;
        Ok((word.to_live(), previous))
    }

    /// Clears a record's valid bit on all copies. No reader believes a cached address of it from
    /// then on.
    pub(crate) async fn invalidate(&self, slot: Slot, until_ns: u64) -> Result<()> {
        let Some(range) = self.record(slot).filter(|_| slot.is_live()) else { return Ok(()) };
        self.write(&[(range.address, &INVALID_WORD.to_le_bytes())], until_ns).await
    }

    /// Reads the whole record that a slot names.
    pub(crate) async fn read_record(&self, slot: Slot, until_ns: u64) -> Result<Vec<u8>> {
        let Some(range) = self.record(slot) else {
            return Err(Error::invalid("the slot names no record"));
        };
        let read = self.read_named(&[range], until_ns).await?.pop();
        self.read_rest(range.address, read.unwrap_or_default(), until_ns).await
    }

    /// Reads the rest of the record at `address`, of which the beginning was read.
    pub(crate) async fn read_rest(
        &self,
        address: Address,
        mut bytes: Vec<u8>,
        until_ns: u64,
    ) -> Result<Vec<u8>> {
        loop {
            let Ok(header) = Header::read(&bytes) else { return Ok(bytes) };
            let needs = header.map_or(UNIT_BYTES, |header| header.record_bytes());
            let (have, left) = (bytes.len() as u64, self.pool.block_bytes() - address.offset);
            if needs <= have || needs > left {
                return Ok(bytes);
            }
            let address = Address { offset: address.offset + have, ..address };
            let rest = Range { address, bytes: needs - have };
            bytes.extend(self.read_named(&[rest], until_ns).await?.into_iter().flatten());
        }
    }

    /// The hash of the key whose record a slot names. `None` if there is no such record.
    async fn read_hash(&self, slot: Slot, until_ns: u64) -> Result<Option<KeyHash>> {
        for key_bytes in [SHORT_KEY_BYTES, KEY_BYTES_MAX] {
            let Some(range) = self.head(slot, key_bytes) else { return Ok(None) };
            let read = self.read_named(&[range], until_ns).await?.pop().unwrap_or_default();
            match Head::decode(&read) {
                Ok(Some(head)) => return Ok(Some(KeyHash(head.header.hash))),
                Ok(None) => {}
                Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// A larger subtable with the same keys, as bytes, and the base-2 logarithm of its buckets.
    /// `sizes` are the logarithms to try. Fails if too many keys share their buckets.
    pub(crate) async fn regrown(
        &self,
        image: &Image,
        sizes: RangeInclusive<u32>,
        partition: PartitionId,
        until_ns: u64,
    ) -> Result<(u32, Vec<u8>)> {
        let mut entries: Vec<(KeyHash, Slot)> = Vec::new();
        for slot in image.words.iter().map(|word| Slot(*word)).filter(|slot| slot.is_live()) {
            let Some(hash) = self.read_hash(slot, until_ns).await? else {
                let what = format!("{partition}: the record of a slot {slot:?} is not there");
                return Err(Error::unsupported(what));
            };
            entries.push((hash, slot));
        }
        for log2 in sizes {
            if let Some(buckets) = regrow(entries.iter().copied(), log2) {
                return Ok((log2, buckets.iter().flat_map(Bucket::to_bytes).collect()));
            }
        }
        Err(Error::unsupported(format!(
            "{partition} cannot grow: too many keys share their buckets"
        )))
    }
}
