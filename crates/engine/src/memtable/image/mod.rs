//! The image of a sealed shard: its records, a packed index, its tombstones and its filter, as
//! bytes that are searched where they land.
//!
//! Format: `docs/formats/sealed-shard.md`. [`Shard::write_image`] makes an image.
//! [`SealedImage::open`] checks every byte (lengths first, then five checksums) and needs no
//! fix-up: records keep their references, which are slab numbers and offsets. The checksums of
//! sections are XXH3-64, because records have CRC-32Cs of their own ([`checksum::hash64`]).
//!
//! Invariants: after `open` every section lies inside the image. Every access is checked against
//! its bounds again. So hostile bytes, even with correct checksums, lead to wrong or missing
//! records or to `Corrupt`, never to a panic or an endless loop.
//!
//! Thread-safety: immutable. Cost: opening reads all bytes once; a look-up allocates nothing.
//! Source: O³-LSM §4.2 and §4.4.

mod head;

use std::sync::Arc;

use archipelago_base::codec::{Reader, put_bytes, put_u32, put_u64};
use archipelago_base::prefetch::prefetch;
use archipelago_base::{Error, ErrorKind, Result, SeqNo, checksum};

use super::filter::may_contain_in;
use super::kv::{Record, RecordRef, UNIT_BYTES, place};
use super::packed::{self, Layout, Packed};
use super::search::{Past, Records, Target};
use super::{SealedShard, Shard};
use crate::iter::InternalIterator;
use crate::key::{self, KeyRef, Kind};
use crate::lookup::{Found, Lookup, Pinner, Visit};
use crate::pinned::{PinOwner, PinnedSlice};
use crate::tombstone::{RangeTombstone, TombstoneSet};

pub use head::ImageHead;

/// Version of the format that this program writes and reads.
pub const IMAGE_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"ARCHSHRD";
const SECTIONS: usize = 5;
const HEADER_BYTES: usize = 200;
/// The header's bytes before its checksum.
const HEADER_BODY_BYTES: usize = HEADER_BYTES - 8;

/// The sections in their order.
#[derive(Clone, Copy)]
enum Section {
    Directory,
    Records,
    Index,
    Tombstones,
    Filter,
}

impl Section {
    const NAMES: [&str; SECTIONS] = ["slab directory", "records", "index", "tombstones", "filter"];
}

impl Shard {
    /// Appends the shard's image to `out`. The shard must be sealed ([`Shard::seal`]).
    ///
    /// `InvalidArgument` if the shard is not sealed, or too large. Costs two passes over the
    /// records (copy and checksum) and a walk over their keys.
    pub fn write_image(&self, out: &mut Vec<u8>) -> Result<()> {
        if !self.is_sealed() {
            return Err(Error::invalid("a shard must be sealed before its image is written"));
        }
        let mut entries: Vec<RecordRef> = Vec::with_capacity(self.entries() as usize);
        self.each_record(|record| entries.push(record));
        let layout = Layout::new(entries.len())
            .ok_or_else(|| Error::invalid("the shard is too large for an image"))?;
        let start = out.len();
        out.resize(start + HEADER_BYTES, 0);
        let mut table = Vec::with_capacity(SECTIONS * 24);
        let mut from = out.len();
        let mut close = |out: &mut Vec<u8>| {
            out.resize(start + (out.len() - start).next_multiple_of(8), 0);
            put_u64(&mut table, (from - start) as u64);
            put_u64(&mut table, (out.len() - from) as u64);
            put_u64(&mut table, checksum::hash64(&out[from..]));
            from = out.len();
        };
        // SAFETY: the shard is sealed: no append is in flight and none begins.
        let slabs = unsafe { self.kv().filled() };
        let mut at = 0;
        for slab in &slabs {
            put_u64(out, at);
            put_u64(out, slab.len() as u64);
            at += slab.len() as u64;
        }
        close(out);
        out.reserve(at as usize);
        slabs.iter().for_each(|slab| out.extend_from_slice(slab));
        close(out);
        let (guess_record, guess_len) = self.tree().guess();
        // SAFETY: a record that the index holds.
        let user_key = |record| unsafe { key::user_key(self.kv().key(record)) };
        packed::write(out, &entries, &layout, self.tree().guess_bytes(self.kv()), user_key);
        close(out);
        write_tombstones(out, &self.tombstone_list());
        close(out);
        if let Some(filter) = self.filter() {
            filter.write(out);
        }
        close(out);
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        put_u32(&mut header, IMAGE_VERSION);
        put_u32(&mut header, HEADER_BYTES as u32);
        put_u64(&mut header, (out.len() - start) as u64);
        put_u64(&mut header, entries.len() as u64);
        put_u64(&mut header, self.deletions());
        put_u64(&mut header, self.data_bytes());
        put_u64(&mut header, self.smallest_seq().0);
        put_u64(&mut header, self.largest_seq().0);
        put_u32(&mut header, guess_record);
        put_u32(&mut header, guess_len as u32);
        header.extend_from_slice(&table);
        let crc = checksum::crc(&header);
        put_u32(&mut header, crc);
        put_u32(&mut header, 0);
        out[start..start + HEADER_BYTES].copy_from_slice(&header);
        Ok(())
    }
}

fn write_tombstones(out: &mut Vec<u8>, tombstones: &[RangeTombstone]) {
    put_u64(out, tombstones.len() as u64);
    for tombstone in tombstones {
        put_bytes(out, &tombstone.start);
        put_bytes(out, &tombstone.end);
        put_u64(out, tombstone.seq.0);
    }
}

fn corrupt(offset: usize, what: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("sealed shard image: corrupt at offset {offset}: {what}"),
    )
}

/// Start and length of a section.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    at: usize,
    len: usize,
}

impl Span {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.at..self.at + self.len]
    }
}

struct Header {
    entries: u64,
    deletions: u64,
    data_bytes: u64,
    smallest_seq: SeqNo,
    largest_seq: SeqNo,
    guess: (RecordRef, usize),
    spans: [Span; SECTIONS],
    /// Checksums of the sections.
    sums: [u64; SECTIONS],
}

impl Header {
    /// Checks header and section checksums.
    fn decode(bytes: &[u8]) -> Result<Self> {
        let header = Self::decode_alone(bytes, bytes.len() as u64)?;
        for (at, name) in Section::NAMES.iter().enumerate() {
            header.check_section(at, header.spans[at].of(bytes), name)?;
        }
        Ok(header)
    }

    fn check_section(&self, at: usize, bytes: &[u8], name: &str) -> Result<()> {
        if checksum::hash64(bytes) != self.sums[at] {
            return Err(corrupt(self.spans[at].at, format_args!("{name}: checksum mismatch")));
        }
        Ok(())
    }

    /// Checks only the header of an image of `len` bytes that begins with `bytes`.
    fn decode_alone(bytes: &[u8], len: u64) -> Result<Self> {
        let head = bytes
            .get(..HEADER_BYTES)
            .ok_or_else(|| corrupt(0, format_args!("{} bytes are too few", bytes.len())))?;
        if head[..8] != MAGIC {
            return Err(corrupt(0, "not the image of a memtable shard"));
        }
        let cut = || corrupt(0, "header cut off");
        let mut reader = Reader::new(&head[8..]);
        let version = reader.u32().ok_or_else(cut)?;
        if version != IMAGE_VERSION {
            return Err(Error::unsupported(format!(
                "sealed shard image of format {version}; this program reads {IMAGE_VERSION}"
            )));
        }
        let mut tail = Reader::new(&head[HEADER_BODY_BYTES..]);
        if tail.u32() != Some(checksum::crc(&head[..HEADER_BODY_BYTES])) || tail.u32() != Some(0) {
            return Err(corrupt(HEADER_BODY_BYTES, "header checksum mismatch"));
        }
        if reader.u32() != Some(HEADER_BYTES as u32) || reader.u64() != Some(len) {
            return Err(corrupt(12, format_args!("{len} bytes are not its length")));
        }
        let mut word = || reader.u64().ok_or_else(cut);
        let (entries, deletions, data_bytes) = (word()?, word()?, word()?);
        let (smallest_seq, largest_seq) = (SeqNo(word()?), SeqNo(word()?));
        let guess_record = reader.u32().ok_or_else(cut)?;
        let guess_len = reader.u32().ok_or_else(cut)? as usize;
        let (mut spans, mut sums) = ([Span::default(); SECTIONS], [0; SECTIONS]);
        let mut end = HEADER_BYTES as u64;
        for (section, name) in Section::NAMES.iter().enumerate() {
            let at = reader.u64().ok_or_else(cut)?;
            let bytes = reader.u64().ok_or_else(cut)?;
            let sum = reader.u64().ok_or_else(cut)?;
            let next = at.checked_add(bytes).filter(|&next| next <= len);
            let (true, Some(next)) = (at == end, next) else {
                return Err(corrupt(72, format_args!("{name}: impossible place {at}+{bytes}")));
            };
            spans[section] = Span { at: at as usize, len: bytes as usize };
            sums[section] = sum;
            end = next;
        }
        if end != len {
            return Err(corrupt(end as usize, "bytes after the last section"));
        }
        let guess = (guess_record, guess_len);
        Ok(Self { entries, deletions, data_bytes, smallest_seq, largest_seq, guess, spans, sums })
    }

    fn span(&self, section: Section) -> Span {
        self.spans[section as usize]
    }
}

fn read_directory(bytes: &[u8], at: usize, records_len: usize) -> Result<Vec<Span>> {
    let (words, rest) = bytes.as_chunks::<8>();
    let (pairs, odd) = words.as_chunks::<2>();
    if !rest.is_empty() || !odd.is_empty() {
        return Err(corrupt(at, "slab directory: not whole entries"));
    }
    let mut slabs = Vec::with_capacity(pairs.len());
    let mut end = 0usize;
    for pair in pairs {
        let [start, len] = pair.map(u64::from_le_bytes);
        let next = end.checked_add(len as usize).filter(|&next| next <= records_len);
        let (true, Some(next)) = (start == end as u64 && len % UNIT_BYTES as u64 == 0, next) else {
            return Err(corrupt(at, format_args!("slab directory: impossible slab {start}+{len}")));
        };
        slabs.push(Span { at: end, len: len as usize });
        end = next;
    }
    Ok(slabs)
}

/// A record's key; `None` if it is damaged or of a kind that no memtable holds.
fn decode_key(encoded: &[u8]) -> Option<KeyRef<'_>> {
    KeyRef::decode(encoded).filter(|key| key.kind.is_writable())
}

fn read_tombstones(bytes: &[u8]) -> Option<TombstoneSet> {
    let mut reader = Reader::new(bytes);
    let count = reader.u64()?;
    let mut tombstones = Vec::new();
    for _ in 0..count {
        let (start, end) = (reader.bytes()?.into(), reader.bytes()?.into());
        tombstones.push(RangeTombstone { start, end, seq: SeqNo(reader.u64()?) });
    }
    let is_padded = reader.rest().iter().all(|&byte| byte == 0);
    is_padded.then(|| TombstoneSet::default().with(tombstones))
}

struct Bytes<T>(T);

impl<T: AsRef<[u8]> + Send + Sync> PinOwner for Bytes<T> {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }
}

/// Position of a record in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    /// Offset of its first byte from the start of the image.
    pub at: u64,
    /// Length of the record in bytes, with its checksum and without padding.
    pub len: u64,
}

/// Decodes a record of an image that was fetched alone; `None` if the bytes are not one whole
/// record of a kind that a memtable holds, or if their checksum does not match.
#[must_use]
pub fn decode_record(bytes: &[u8]) -> Option<(KeyRef<'_>, &[u8])> {
    let record = Record::decode(bytes).filter(Record::is_intact)?;
    let (_, len) = record.stored_span();
    if len != bytes.len() {
        return None;
    }
    Some((decode_key(record.key)?, record.value))
}

/// A sealed shard as an image of bytes that is searched in place.
pub struct SealedImage {
    owner: Arc<dyn PinOwner>,
    header: Header,
    slabs: Vec<Span>,
    layout: Layout,
    tombstones: Arc<TombstoneSet>,
    /// Length of the image, checked when it was opened.
    len: usize,
}

/// The parts of an image, borrowed for one operation.
struct Parts<'a> {
    records: &'a [u8],
    slabs: &'a [Span],
    index: Packed<'a>,
    filter: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The bytes from a record's start to its slab's end.
    #[inline]
    fn tail(&self, record: RecordRef) -> Option<&'a [u8]> {
        let (slab, at) = place(record);
        self.slabs.get(slab)?.of(self.records).get(at..)
    }

    #[inline]
    fn record(&self, record: RecordRef) -> Option<Record<'a>> {
        Record::decode(self.tail(record)?)
    }
}

impl Records for Parts<'_> {
    #[inline]
    fn key(&self, record: RecordRef) -> Option<&[u8]> {
        Record::decode_key(self.tail(record)?)
    }
}

/// Pins a value by its position in the image.
struct ImagePinner<'a>(&'a Arc<dyn PinOwner>);

impl Pinner for ImagePinner<'_> {
    fn pin(&self, value: &[u8]) -> PinnedSlice {
        let base = self.0.bytes().as_ptr().addr();
        let at = value.as_ptr().addr().wrapping_sub(base);
        PinnedSlice::pinned(Arc::clone(self.0), at..at.wrapping_add(value.len()))
            .filter(|pinned| pinned.as_ptr() == value.as_ptr())
            .unwrap_or_else(|| PinnedSlice::owned(value.to_vec()))
    }
}

impl SealedImage {
    /// Opens an image. The bytes must not change while it lives.
    ///
    /// `Corrupt` if a length or a checksum is wrong, `Unsupported` if it is of another version.
    pub fn open(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Arc<Self>> {
        Self::open_owner(Arc::new(Bytes(bytes)))
    }

    /// Opens an image as [`SealedImage::open`] does, from bytes that already have an owner.
    pub fn open_owner(owner: Arc<dyn PinOwner>) -> Result<Arc<Self>> {
        let bytes = owner.bytes();
        let header = Header::decode(bytes)?;
        let directory = header.span(Section::Directory);
        let records = header.span(Section::Records);
        let slabs = read_directory(directory.of(bytes), directory.at, records.len)?;
        let index = header.span(Section::Index);
        let layout = usize::try_from(header.entries)
            .ok()
            .and_then(Layout::new)
            .filter(|layout| layout.bytes == index.len)
            .ok_or_else(|| corrupt(index.at, "index: length does not fit the entries"))?;
        let tombstones = header.span(Section::Tombstones);
        let tombstones = read_tombstones(tombstones.of(bytes))
            .ok_or_else(|| corrupt(tombstones.at, "tombstones: not decodable"))?;
        let filter = header.span(Section::Filter);
        if filter.len > 0 && may_contain_in(filter.of(bytes), 0).is_none() {
            return Err(corrupt(filter.at, "filter: not whole blocks"));
        }
        let (len, tombstones) = (bytes.len(), Arc::new(tombstones));
        let image = Self { header, slabs, layout, tombstones, len, owner };
        if image.guess_bytes(&image.parts()).is_none() {
            return Err(corrupt(64, "prefix guess: no such key"));
        }
        Ok(Arc::new(image))
    }

    fn parts(&self) -> Parts<'_> {
        let bytes = self.owner.bytes();
        assert_eq!(bytes.len(), self.len, "the owner of an image changed its length");
        let section = |section| self.header.span(section).of(bytes);
        Parts {
            records: section(Section::Records),
            slabs: &self.slabs,
            index: Packed::new(section(Section::Index), &self.layout),
            filter: section(Section::Filter),
        }
    }

    fn guess_bytes<'a>(&self, parts: &'a Parts<'_>) -> Option<&'a [u8]> {
        let (record, len) = self.header.guess;
        if len == 0 {
            return Some(&[]);
        }
        packed::checked_user_key(parts.key(record)?)?.get(..len)
    }

    fn damaged(&self) -> Error {
        corrupt(self.header.span(Section::Records).at, "records: a reference leads to no record")
    }

    fn search(&self, parts: &Parts<'_>, target: &Target<'_>, past: Past) -> Result<usize> {
        self.guess_bytes(parts)
            .and_then(|guess| parts.index.search(target, guess, past, parts))
            .ok_or_else(|| self.damaged())
    }

    /// Whether a key with this hash may be among the point records. Range tombstones are not
    /// included.
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        may_contain_in(self.parts().filter, hash).unwrap_or(true)
    }

    /// Shows `visit` the versions of a key that the snapshot sees, newest first, until it breaks.
    /// Values can be pinned, so that they stay in the image. `Corrupt` if a reference leads outside
    /// the records or a record's kind is unknown.
    pub fn lookup(
        &self,
        lookup: &Lookup<'_>,
        mut visit: impl FnMut(&Found<'_>) -> Visit,
    ) -> Result<()> {
        self.lookup_records(lookup, |found, _| visit(found))
    }

    /// Does the work of [`SealedImage::lookup`], and also passes the position of each version's
    /// record, for a reader that fetches it alone ([`decode_record`]).
    pub fn lookup_records(
        &self,
        lookup: &Lookup<'_>,
        mut visit: impl FnMut(&Found<'_>, RecordSpan) -> Visit,
    ) -> Result<()> {
        let parts = self.parts();
        let image_start = self.owner.bytes().as_ptr().addr();
        if may_contain_in(parts.filter, lookup.hash) == Some(false) {
            return Ok(());
        }
        let target = Target::new(lookup.key, key::pack(lookup.snapshot, Kind::SEEK));
        let first = self.search(&parts, &target, Past::Before)?;
        let pinner = ImagePinner(&self.owner);
        for at in first..self.header.entries as usize {
            let record = parts.record(parts.index.record(at)).ok_or_else(|| self.damaged())?;
            if key::user_key(record.key) != lookup.key {
                break;
            }
            let KeyRef { seq, kind, .. } = decode_key(record.key).ok_or_else(|| self.damaged())?;
            let found = Found { seq, kind, value: record.value, pinner: Some(&pinner) };
            let (at, len) = record.stored_span();
            let span = RecordSpan { at: (at - image_start) as u64, len: len as u64 };
            if visit(&found, span).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// A cursor over all point records.
    #[must_use]
    pub fn iter(self: &Arc<Self>) -> ImageIter {
        ImageIter::new(Arc::clone(self), false)
    }

    /// The range tombstones.
    #[must_use]
    pub fn tombstones(&self) -> Arc<TombstoneSet> {
        Arc::clone(&self.tombstones)
    }

    /// Number of point records.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.header.entries
    }

    /// Number of point records that are deletes.
    #[must_use]
    pub fn deletions(&self) -> u64 {
        self.header.deletions
    }

    /// Bytes of the records and tombstones, as the shard counted them.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.header.data_bytes
    }
}

impl SealedShard for SealedImage {
    fn verified_iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        Box::new(ImageIter::new(self, true))
    }
    fn tombstone_list(&self) -> Vec<RangeTombstone> {
        self.tombstones.list()
    }
    fn entries(&self) -> u64 {
        Self::entries(self)
    }
    fn data_bytes(&self) -> u64 {
        Self::data_bytes(self)
    }
    fn write_image(&self, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(self.owner.bytes());
        Ok(())
    }
    fn seq_range(&self) -> (SeqNo, SeqNo) {
        (self.header.smallest_seq, self.header.largest_seq)
    }
}

/// Number of records that a cursor prefetches. The records of a memtable lie in the order of
/// writing.
const AHEAD: usize = 6;

/// A cursor over a [`SealedImage`].
pub struct ImageIter {
    image: Arc<SealedImage>,
    /// Position in the index; the number of entries if the cursor is not valid.
    at: usize,
    key: Span,
    value: Span,
    verify: bool,
    status: Result<()>,
}

impl ImageIter {
    fn new(image: Arc<SealedImage>, verify: bool) -> Self {
        let at = image.header.entries as usize;
        Self { image, at, key: Span::default(), value: Span::default(), verify, status: Ok(()) }
    }

    fn end(&self) -> usize {
        self.image.header.entries as usize
    }

    fn fail(&mut self, error: Error) {
        self.at = self.end();
        self.status = Err(error);
    }

    /// Moves to the entry at `at`. The cursor becomes invalid at the end or if the record is
    /// damaged.
    fn settle(&mut self, at: usize) {
        self.at = at;
        self.status = Ok(());
        if at == self.end() {
            return;
        }
        let parts = self.image.parts();
        if let Some(ahead) = parts.index.get(at + AHEAD).and_then(|record| parts.tail(record)) {
            prefetch(ahead.as_ptr(), ahead.len().min(128));
        }
        let record = parts.record(parts.index.record(at));
        let record = record.filter(|record| !self.verify || record.is_intact());
        let Some(record) = record.filter(|record| decode_key(record.key).is_some()) else {
            let error = self.image.damaged();
            return self.fail(error);
        };
        let base = parts.records.as_ptr().addr();
        let span = |part: &[u8]| Span { at: part.as_ptr().addr() - base, len: part.len() };
        (self.key, self.value) = (span(record.key), span(record.value));
    }

    fn find(&mut self, target: &[u8], past: Past) -> Option<usize> {
        let found = self.image.search(&self.image.parts(), &Target::encoded(target), past);
        match found {
            Ok(at) => Some(at),
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn part(&self, span: Span) -> &[u8] {
        span.of(self.image.parts().records)
    }
}

impl InternalIterator for ImageIter {
    fn valid(&self) -> bool {
        self.at < self.end()
    }
    fn seek_to_first(&mut self) {
        self.settle(0);
    }
    fn seek_to_last(&mut self) {
        self.settle(self.end().saturating_sub(1));
    }
    fn seek(&mut self, target: &[u8]) {
        if let Some(at) = self.find(target, Past::Before) {
            self.settle(at);
        }
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        if let Some(past) = self.find(target, Past::Equal) {
            self.settle(past.checked_sub(1).unwrap_or(self.end()));
        }
    }
    fn next(&mut self) {
        debug_assert!(self.valid());
        let before = self.key;
        self.settle(self.at + 1);
        if self.verify
            && self.valid()
            && key::compare(self.part(before), self.part(self.key)).is_ge()
        {
            let at = self.image.header.span(Section::Index).at;
            self.fail(corrupt(at, "index: entries are not in order"));
        }
    }
    fn prev(&mut self) {
        debug_assert!(self.valid());
        self.settle(self.at.checked_sub(1).unwrap_or(self.end()));
    }
    fn key(&self) -> &[u8] {
        self.part(self.key)
    }
    fn value(&self) -> &[u8] {
        self.part(self.value)
    }
    fn status(&self) -> Result<()> {
        self.status.clone()
    }
}

#[cfg(test)]
mod tests;
