//! The part of a shard's image that a database keeps in memory while the records are elsewhere. It
//! is read from the image without the records.
//!
//! The header contains the positions of the sections. Range tombstones and filter are the last two.
//! So a reader needs two pieces of an image: its first [`ImageHead::BYTES`] bytes, and its tail.
//!
//! Thread-safety: plain values.
//! Failure: `Corrupt` if a checksum or a length is wrong.
//! Cost: a pass over the bytes of the two sections.

use std::ops::Range;
use std::sync::Arc;

use archipelago_base::{Result, SeqNo};

use super::{HEADER_BYTES, Header, Section, corrupt, read_tombstones};
use crate::memtable::filter::Filter;
use crate::tombstone::TombstoneSet;

/// The figures, the filter and the range tombstones of an image.
#[derive(Clone)]
pub struct ImageHead {
    /// Number of point records.
    pub entries: u64,
    /// Number of point records that are deletes.
    pub deletions: u64,
    /// Bytes of the records and tombstones, as the shard counted them.
    pub data_bytes: u64,
    /// Smallest sequence number, tombstones included.
    pub smallest_seq: SeqNo,
    /// Largest sequence number, tombstones included.
    pub largest_seq: SeqNo,
    /// Filter of the point records; `None` if the image has none.
    pub filter: Option<Filter>,
    /// All range tombstones.
    pub tombstones: Arc<TombstoneSet>,
}

impl std::fmt::Debug for ImageHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageHead").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl ImageHead {
    /// Length in bytes of an image's head, from which the position of the tail follows.
    pub const BYTES: usize = HEADER_BYTES;

    /// Offset of the records within an image of `image_bytes` that begins with `head`. `Corrupt` if
    /// the head is damaged.
    pub fn records_at(head: &[u8], image_bytes: u64) -> Result<u64> {
        let header = Header::decode_alone(head, image_bytes)?;
        Ok(header.span(Section::Records).at as u64)
    }

    /// The tail of an image of `image_bytes` that begins with `head`: its range tombstones and its
    /// filter, as a range of bytes of the image. `Corrupt` if the head is damaged.
    pub fn tail(head: &[u8], image_bytes: u64) -> Result<Range<u64>> {
        let header = Header::decode_alone(head, image_bytes)?;
        Ok(header.span(Section::Tombstones).at as u64..image_bytes)
    }

    /// Reads the head and the tail of an image of `image_bytes`. `Corrupt` if one is damaged.
    pub fn read(head: &[u8], tail: &[u8], image_bytes: u64) -> Result<Self> {
        let header = Header::decode_alone(head, image_bytes)?;
        let (tombstones, filter) = (header.span(Section::Tombstones), header.span(Section::Filter));
        if tail.len() != tombstones.len + filter.len {
            return Err(corrupt(tombstones.at, "the tail has another length"));
        }
        let (tombstone_bytes, filter_bytes) = tail.split_at(tombstones.len);
        header.check_section(Section::Tombstones as usize, tombstone_bytes, "tombstones")?;
        header.check_section(Section::Filter as usize, filter_bytes, "filter")?;
        let set = read_tombstones(tombstone_bytes)
            .ok_or_else(|| corrupt(tombstones.at, "tombstones: not decodable"))?;
        let filter = match filter_bytes {
            [] => None,
            bytes => Some(
                Filter::read(bytes)
                    .ok_or_else(|| corrupt(filter.at, "filter: not whole blocks"))?,
            ),
        };
        Ok(Self {
            entries: header.entries,
            deletions: header.deletions,
            data_bytes: header.data_bytes,
            smallest_seq: header.smallest_seq,
            largest_seq: header.largest_seq,
            filter,
            tombstones: Arc::new(set),
        })
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::budget::ByteBudget;
    use archipelago_base::checksum::hash64;

    use super::*;
    use crate::key::Kind;
    use crate::memtable::{Shard, SlabPool};
    use crate::tombstone::RangeTombstone;

    fn image() -> Vec<u8> {
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        for number in 0..500u32 {
            let seq = SeqNo(u64::from(number) + 10);
            shard.insert(format!("key-{number}").as_bytes(), seq, Kind::Put, b"coral");
        }
        let (start, end) = (b"a"[..].into(), b"b"[..].into());
        shard.insert_tombstone(RangeTombstone { start, end, seq: SeqNo(7) });
        shard.seal();
        let mut bytes = Vec::new();
        shard.write_image(&mut bytes).expect("an image");
        bytes
    }

    fn read(image: &[u8]) -> Result<ImageHead> {
        let (head, bytes) = (&image[..ImageHead::BYTES], image.len() as u64);
        let tail = ImageHead::tail(head, bytes)?;
        ImageHead::read(head, &image[tail.start as usize..tail.end as usize], bytes)
    }

    #[test]
    fn head_says_what_the_image_says() {
        let image = image();
        let head = read(&image).expect("whole");
        assert_eq!((head.entries, head.deletions), (500, 0));
        assert_eq!((head.smallest_seq, head.largest_seq), (SeqNo(7), SeqNo(509)));
        assert_eq!(head.tombstones.list().len(), 1);
        let filter = head.filter.as_ref().expect("a filter");
        assert!((0..500u32).all(|at| filter.may_contain(hash64(format!("key-{at}").as_bytes()))));
    }

    #[test]
    fn damage_of_head_and_tail_is_noticed() {
        let image = image();
        let tail = ImageHead::tail(&image, image.len() as u64).expect("whole").start as usize;
        for at in (0..ImageHead::BYTES).chain(tail..image.len()) {
            let mut damaged = image.clone();
            damaged[at] ^= 0x10;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
        let longer = image.len() as u64 + 1;
        assert!(ImageHead::tail(&image, longer).is_err());
        assert!(ImageHead::tail(&image[..100], image.len() as u64).is_err());
    }
}
