//! Writes a table: records in order, then the blocks that locate them.
//!
//! One job or one ingest writer owns a builder. Invariants:
//! 1. Records come in strictly ascending internal-key order (asserted).
//! 2. A block is cut before the record that would make it longer than `block_bytes`. So only a
//!    single large record makes a larger block.
//! 3. The index entry of a block of one record holds the record's key, trailer and expiry, if the
//!    value has at least [`LARGE_VALUE_BYTES`] and eight times the length of the key.
//! 4. The references of the table by value file are the sums over the references that were added.
//! 5. [`TableBuilder::finish`] syncs the file. Before it the file is not a table. After an error
//!    the builder must be dropped, and the file is garbage.
//!
//! Cost: each record costs two copies of its bytes, one hash of its key and two checksums, but no
//! allocation. Index and filter hashes stay in memory until the end: about 20 bytes a block, 8
//! bytes a key.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::checksum::{crc_append, hash64};
use archipelago_base::codec::{put_bytes, put_u64, put_varint};
use archipelago_base::{CfId, Error, FileNo, Result};
use archipelago_env::WritableFile;

use super::block::{Block, BlockCache};
use super::data_block::{DataBlockBuilder, common_prefix};
use super::filter;
use super::format::{Compressor, FOOTER_BYTES, Footer, Handle, RECORD_BYTES_MAX, seal_block};
use super::index::{IndexBuilder, RecordHead, separator};
use super::properties::{Properties, ValueArea};
use crate::cache::{BlockKey, BlockKind};
use crate::file_meta::FileMeta;
use crate::key::{self, Kind, TRAILER_BYTES as KEY_TRAILER_BYTES};
use crate::options::Compression;
use crate::table_content::ContentCounter;
use crate::tombstone::{RangeTombstone, Skyline};
use crate::value_ref::Reference;

/// Length in bytes of a value from which on the head of its record stands in the index.
pub(crate) const LARGE_VALUE_BYTES: usize = 32 << 10;

/// Options for writing a table.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// Data block size before compression, in bytes. Default 4 KiB.
    pub block_bytes: usize,
    /// Compression of data blocks. Default LZ4.
    pub compression: Compression,
    /// Bits per key of the filter; 0 for none. Default 10.
    pub bloom_bits_per_key: u32,
    /// Number of records between restart points. A look-up reads half as many, each at the cost of
    /// a cache miss. Default 4.
    pub restart_interval: usize,
    /// Limit in bytes up to which index and filter are one block each, which an open reader holds
    /// in memory. Above it, both are cut into partitions that go through the block cache. Default 2
    /// MiB.
    pub pinned_bytes_max: usize,
    /// Size of an index partition in bytes. Default 4 KiB.
    pub partition_bytes: usize,
    /// Time of writing that the table records, in Unix milliseconds. Default 0.
    pub created_unix_ms: u64,
    /// Column family that the table records. Default: the default one.
    pub cf: CfId,
    /// Name of the column family. Default empty. If a file for ingestion names a family, other
    /// families refuse it.
    pub cf_name: String,
    /// Name of the compaction filter that the records have passed, which the table records. Default
    /// none.
    pub compaction_filter: Option<String>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            block_bytes: 4 << 10,
            compression: Compression::Lz4,
            bloom_bits_per_key: 10,
            restart_interval: 4,
            pinned_bytes_max: 2 << 20,
            partition_bytes: 4 << 10,
            created_unix_ms: 0,
            cf: CfId::DEFAULT,
            cf_name: String::new(),
            compaction_filter: None,
        }
    }
}

/// Properties of a record that a job passes to the builder besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordRole {
    /// Whether the record is the first of its user key: an output may be cut before it.
    pub starts_key: bool,
    /// Whether the record comes from a block that users read.
    pub is_warm: bool,
    /// Whether the record is kept for a snapshot only, because a newer record of its key was
    /// written before it.
    pub is_shadowed: bool,
}

/// A file that was written and synced.
pub(super) struct Finished {
    /// Properties of the file.
    pub(super) properties: Properties,
    /// Random id that the file's blocks are bound to.
    pub(super) unique_id: [u8; 16],
    /// Length in bytes.
    pub(super) size_bytes: u64,
    /// CRC-32C of the whole file.
    pub(super) checksum: u32,
}

/// Writes one table file, record by record.
pub struct TableBuilder {
    out: Output,
    no: FileNo,
    options: TableOptions,
    block: DataBlockBuilder,
    compressor: Compressor,
    index: IndexBuilder,
    /// Handle of the last block, whose separator waits for the next key.
    pending: Option<Handle>,
    /// Head of the only record of the open block, if its value is large; then that of the last
    /// block.
    large: Option<RecordHead>,
    hashes: Vec<u64>,
    /// Number of hashes after the keys of each block were added.
    hashes_through: Vec<usize>,
    last_key: Vec<u8>,
    last_hash: u64,
    scratch: Vec<u8>,
    tombstones: Vec<RangeTombstone>,
    /// Approximate bytes of the tombstones in the file.
    tombstone_bytes: usize,
    properties: Properties,
    content: ContentCounter,
    middle_of_first: Vec<u8>,
    warmth: Option<Warmth>,
}

/// Puts written blocks that users will probably read into the block cache, because their records
/// come from blocks that were in it.
struct Warmth {
    cache: Arc<BlockCache>,
    /// Number of blocks that the cache had evicted when the table was begun.
    evicted: u64,
    /// Number of records of the open block. `warm` counts those that are warm.
    records: u32,
    warm: u32,
}

impl Warmth {
    /// Whether the block that ends here goes into the cache. While the cache has room, one warm
    /// record is enough. Else half of the records must be warm, so that blocks without readers
    /// evict nothing.
    fn ends_block(&mut self) -> bool {
        let (records, warm) = (std::mem::take(&mut self.records), std::mem::take(&mut self.warm));
        let has_room = self.cache.evicted() == self.evicted;
        warm > 0 && (has_room || 2 * warm >= records)
    }
}

/// The file, its length so far and its checksum.
pub(super) struct Output {
    file: Box<dyn WritableFile>,
    pub(super) path: PathBuf,
    pub(super) unique_id: [u8; 16],
    /// Bytes written so far.
    pub(super) offset: u64,
    crc: u32,
    buffer: Vec<u8>,
}

impl Output {
    /// Writes into the empty file `file`. The buffer has room for `buffer_bytes` at first.
    pub(super) fn new(
        file: Box<dyn WritableFile>,
        path: &Path,
        unique_id: [u8; 16],
        buffer_bytes: usize,
    ) -> Self {
        let buffer = Vec::with_capacity(buffer_bytes);
        Self { file, path: path.to_owned(), unique_id, offset: 0, crc: 0, buffer }
    }

    /// Writes a block and its trailer. The length of the payload must fit into 32 bits.
    pub(super) fn block(&mut self, payload: &[u8], kind: Compression) -> Result<Handle> {
        let handle = Handle { offset: self.offset, size: payload.len() as u32 };
        self.buffer.clear();
        self.buffer.extend_from_slice(payload);
        seal_block(&mut self.buffer, 0, kind, &self.unique_id, self.offset);
        self.write()?;
        Ok(handle)
    }

    /// Writes the content of the buffer to the file.
    fn write(&mut self) -> Result<()> {
        self.file.append(&self.buffer)?;
        self.crc = crc_append(self.crc, &self.buffer);
        self.offset += self.buffer.len() as u64;
        Ok(())
    }
}

impl std::fmt::Debug for TableBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableBuilder({}, {} records)", self.out.path.display(), self.entries())
    }
}

impl TableBuilder {
    /// Writes into the empty file `file`, which lies at `path` (for errors). `unique_id` must be
    /// new: no other file may have it.
    #[must_use]
    pub fn new(
        file: Box<dyn WritableFile>,
        path: &Path,
        no: FileNo,
        unique_id: [u8; 16],
        options: TableOptions,
    ) -> Self {
        let out = Output::new(file, path, unique_id, options.block_bytes * 2);
        Self::after(out, no, options)
    }

    /// Writes the blocks of a table after the bytes that `out` has already.
    pub(super) fn after(out: Output, no: FileNo, options: TableOptions) -> Self {
        let properties = Properties {
            smallest_seq: u64::MAX,
            bloom_bits_per_key: options.bloom_bits_per_key,
            created_unix_ms: options.created_unix_ms,
            cf: options.cf,
            cf_name: options.cf_name.clone(),
            ..Properties::default()
        };
        Self {
            out,
            no,
            content: ContentCounter::new(
                options.created_unix_ms,
                options.compression,
                options.compaction_filter.clone(),
            ),
            block: DataBlockBuilder::new(options.restart_interval, options.block_bytes),
            compressor: Compressor::new(options.compression),
            options,
            index: IndexBuilder::default(),
            pending: None,
            large: None,
            hashes: Vec::new(),
            hashes_through: Vec::new(),
            last_key: Vec::new(),
            last_hash: 0,
            scratch: Vec::new(),
            tombstones: Vec::new(),
            tombstone_bytes: 0,
            properties,
            middle_of_first: Vec::new(),
            warmth: None,
        }
    }

    /// Marks the file as a value file with `area` before the first data block. Its records hold
    /// handles.
    pub(super) fn over_values(mut self, area: ValueArea) -> Self {
        self.properties.value_area = Some(area);
        self
    }

    /// Marks the file as made for ingestion; its records must have sequence number 0.
    #[must_use]
    pub fn for_ingestion(mut self) -> Self {
        self.properties.for_ingestion = true;
        self
    }

    /// Puts blocks with warm records into `cache` ([`TableBuilder::add_as`]).
    #[must_use]
    pub fn warming(mut self, cache: &Arc<BlockCache>) -> Self {
        let (cache, evicted) = (Arc::clone(cache), cache.evicted());
        self.warmth = Some(Warmth { cache, evicted, records: 0, warm: 0 });
        self
    }

    /// Adds a record as [`TableBuilder::add`] does, with a role.
    ///
    /// Panics if a shadowed record does not follow another record of its key.
    #[inline]
    pub fn add_as(&mut self, internal_key: &[u8], value: &[u8], role: RecordRole) -> Result<()> {
        if role.is_shadowed {
            self.count_shadowed(internal_key, value)?;
        } else {
            self.content.end_shadowed();
        }
        self.add(internal_key, value)?;
        if let Some(warmth) = &mut self.warmth {
            warmth.records += 1;
            warmth.warm += u32::from(role.is_warm);
        }
        Ok(())
    }

    fn count_shadowed(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let user_key = key::user_key(internal_key);
        assert!(
            !self.last_key.is_empty() && key::user_key(&self.last_key) == user_key,
            "a record that no other shadows"
        );
        let seq_of = |encoded: &[u8]| key::trailer_seq(key::trailer(encoded)).0;
        let mut bytes = (user_key.len() + value.len()) as u64;
        if key::trailer(internal_key) as u8 == Kind::Indirect as u8 {
            bytes += self.reference(value)?.record_bytes();
        }
        self.content.add_shadowed(bytes, seq_of(internal_key), seq_of(&self.last_key));
        Ok(())
    }

    /// Adds a point record after all others.
    ///
    /// Panics if `internal_key` does not follow the last one, or is no internal key: a job that
    /// does this would write a file that loses records.
    pub fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        assert!(internal_key.len() >= KEY_TRAILER_BYTES, "not an internal key");
        if internal_key.len() + value.len() > RECORD_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a record of {} bytes is too large for a table (at most {RECORD_BYTES_MAX})",
                internal_key.len() + value.len(),
            )));
        }
        let user_key = key::user_key(internal_key);
        let trailer = key::trailer(internal_key);
        let first = self.last_key.is_empty();
        let mut same_key = false;
        let mut shared = 0;
        if !first {
            let last = key::user_key(&self.last_key);
            shared = common_prefix(last, user_key);
            same_key = shared == last.len() && shared == user_key.len();
            let ascending = match same_key {
                true => trailer < key::trailer(&self.last_key),
                false => last.get(shared) < user_key.get(shared),
            };
            assert!(ascending, "records out of order in {}", self.out.path.display());
        }
        if !self.block.is_empty() && self.block_is_full(internal_key.len() - shared, value.len()) {
            self.cut_block()?;
        }
        if let Some(handle) = self.pending.take() {
            self.index_block(handle, Some((user_key, same_key)));
        }
        if !same_key {
            self.last_hash = hash64(user_key);
            if self.options.bloom_bits_per_key > 0 {
                self.hashes.push(self.last_hash);
            }
        }
        let is_large = value.len() >= LARGE_VALUE_BYTES && value.len() / 8 >= internal_key.len();
        self.large = match is_large && self.block.is_empty() {
            true => RecordHead::of(trailer, value),
            false => None,
        };
        let new_in_block = !same_key || self.block.is_empty();
        self.block.add(internal_key, value, shared, new_in_block.then_some(self.last_hash));
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&internal_key[shared..]);
        if first {
            self.properties.smallest = user_key.to_vec();
        }
        self.content.add_key(!same_key);
        self.count(trailer, user_key.len(), value)
    }

    fn block_is_full(&self, key_bytes: usize, value_bytes: usize) -> bool {
        self.block.payload_bytes() + key_bytes + value_bytes + 6 > self.options.block_bytes
    }

    fn count(&mut self, trailer: u64, key_bytes: usize, value: &[u8]) -> Result<()> {
        let properties = &mut self.properties;
        properties.entries += 1;
        properties.raw_key_bytes += key_bytes as u64;
        properties.raw_value_bytes += value.len() as u64;
        let seq = key::trailer_seq(trailer).0;
        properties.smallest_seq = properties.smallest_seq.min(seq);
        properties.largest_seq = properties.largest_seq.max(seq);
        match Kind::from_byte(trailer as u8) {
            Some(Kind::Delete) => properties.deletions += 1,
            Some(Kind::Merge) => self.content.add_merge(),
            Some(Kind::PutExpiring) => {
                // A read reports a value that is too short for an expiry.
                let expiry = value.first_chunk().map_or(u64::MAX, |ms| u64::from_le_bytes(*ms));
                self.content.add_expiring((key_bytes + value.len()) as u64, expiry);
            }
            Some(Kind::Indirect) if self.properties.value_area.is_none() => {
                let reference = self.reference(value)?;
                let bytes = reference.record_bytes();
                let refs = &mut self.properties.refs;
                refs.add(reference.file_no.0, u64::from(reference.stored_bytes));
                if let Some(expiry) = reference.expiry_unix_ms {
                    self.content.add_expiring((key_bytes + value.len()) as u64 + bytes, expiry);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Decodes the reference that is the stored value of a record of this table.
    fn reference(&self, stored: &[u8]) -> Result<Reference> {
        Reference::decode(stored)
            .map_err(|bad| Error::corrupt(&self.out.path, self.out.offset, bad))
    }

    /// Adds a range tombstone, in any order; an empty one is ignored.
    pub fn add_tombstone(&mut self, tombstone: &RangeTombstone) -> Result<()> {
        if !tombstone.is_empty() {
            self.tombstone_bytes += tombstone.start.len() + tombstone.end.len() + 12;
            let properties = &mut self.properties;
            properties.range_deletions += 1;
            properties.smallest_seq = properties.smallest_seq.min(tombstone.seq.0);
            properties.largest_seq = properties.largest_seq.max(tombstone.seq.0);
            self.tombstones.push(tombstone.clone());
        }
        Ok(())
    }

    /// Approximate length of the file in bytes if it ended here.
    #[must_use]
    pub fn estimated_bytes(&self) -> u64 {
        let filter = filter::bloom_bytes(self.hashes.len(), self.options.bloom_bits_per_key);
        let tombstones = self.tombstone_bytes;
        let open = if self.block.is_empty() { 0 } else { self.block.payload_bytes() };
        self.out.offset + (open + self.index.estimated_bytes() + filter + tombstones) as u64 + 256
    }

    /// Number of point records that were added.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.properties.entries
    }

    /// Whether neither a record nor a tombstone was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.properties.entries == 0 && self.tombstones.is_empty()
    }

    /// The user key of the last record; `None` before the first.
    #[must_use]
    pub fn last_user_key(&self) -> Option<&[u8]> {
        if self.last_key.is_empty() { None } else { Some(key::user_key(&self.last_key)) }
    }

    fn cut_block(&mut self) -> Result<()> {
        if self.index.len() == 0 {
            self.middle_of_first.clear();
            self.middle_of_first
                .extend_from_slice(self.block.middle_key().map_or(&[], key::user_key));
        }
        let payload = self.block.finish();
        let warm = self.warmth.as_mut().is_some_and(Warmth::ends_block).then(|| payload.to_vec());
        let (payload, kind) = self.compressor.pack(payload)?;
        let handle = self.out.block(payload, kind)?;
        if let (Some(warmth), Some(payload)) = (&self.warmth, warm) {
            let block = Block::parse(BlockKind::Data, payload, &self.out.path, handle, u64::MAX)?;
            warmth.cache.insert(BlockKey::new(&self.out.unique_id, handle.offset), block);
        }
        self.block.reset();
        self.hashes_through.push(self.hashes.len());
        self.pending = Some(handle);
        self.properties.data_blocks += 1;
        Ok(())
    }

    /// Adds the last block to the index, after the next key is known: `next` is that key, and
    /// whether it equals the last one.
    fn index_block(&mut self, handle: Handle, next: Option<(&[u8], bool)>) {
        let last = key::user_key(&self.last_key);
        if let Some(record) = self.large.take() {
            let continues = matches!(next, Some((_, true)));
            return self.index.add_record(last, continues, record, handle);
        }
        match next {
            Some((_, true)) => {
                let trailer = key::trailer(&self.last_key);
                self.index.add(last, Some(trailer), handle, Handle::default());
            }
            Some((next, false)) => {
                separator(last, next, &mut self.scratch);
                self.index.add(&self.scratch, None, handle, Handle::default());
            }
            None => self.index.add(last, None, handle, Handle::default()),
        }
    }

    /// Writes the remaining blocks and syncs the file. Returns the file's metadata for the
    /// manifest.
    pub fn finish(self) -> Result<FileMeta> {
        let no = self.no;
        let Finished { properties, unique_id, size_bytes, checksum } = self.end()?;
        Ok(properties.to_meta(no, unique_id, size_bytes, checksum))
    }

    /// Writes the remaining blocks with the footer of a table or of a value file, and syncs the
    /// file.
    pub(super) fn end(mut self) -> Result<Finished> {
        if !self.block.is_empty() {
            self.cut_block()?;
        }
        if let Some(handle) = self.pending.take() {
            self.index_block(handle, None);
        }
        let area_bytes = self.properties.value_area.map_or(0, |area| area.bytes);
        self.properties.data_bytes = self.out.offset - area_bytes;
        let (index, filter, partitioned) = self.write_index_and_filter()?;
        let tombstones = self.write_tombstones()?;
        self.set_bounds();
        let deleted = Skyline::of(&self.tombstones);
        self.properties.content = std::mem::take(&mut self.content).finish(&deleted);
        let mut payload = Vec::new();
        self.properties.encode(&mut payload);
        let properties = self.out.block(&payload, Compression::None)?;
        let footer = Footer {
            layout: self.properties.layout(),
            filter,
            index,
            tombstones,
            properties,
            partitioned,
            unique_id: self.out.unique_id,
            file_bytes: self.out.offset + FOOTER_BYTES as u64,
        };
        self.out.buffer.clear();
        footer.encode(&mut self.out.buffer);
        self.out.write()?;
        self.out.file.sync()?;
        let Output { unique_id, offset: size_bytes, crc: checksum, .. } = self.out;
        Ok(Finished { properties: self.properties, unique_id, size_bytes, checksum })
    }

    fn write_index_and_filter(&mut self) -> Result<(Handle, Handle, bool)> {
        let bits = self.options.bloom_bits_per_key;
        let filter_bytes = filter::bloom_bytes(self.hashes.len(), bits);
        let whole = self.index.estimated_bytes() + filter_bytes <= self.options.pinned_bytes_max;
        if whole || self.index.len() < 2 {
            let filter = self.write_filter(0, self.hashes.len())?;
            let index = self.write_index(0, self.index.len())?;
            return Ok((index, filter, false));
        }
        let mut top = IndexBuilder::default();
        let mut start = 0;
        while start < self.index.len() {
            let mut end = start + 1;
            while end < self.index.len()
                && self.index.estimated_bytes_of(start, end + 1) <= self.options.partition_bytes
            {
                end += 1;
            }
            let filter = self.write_filter(self.first_hash(start), self.hashes_through[end - 1])?;
            let handle = self.write_index(start, end)?;
            top.add(self.index.key(end - 1), self.index.continues(end - 1), handle, filter);
            start = end;
        }
        let mut payload = Vec::new();
        top.encode(0, top.len(), true, &mut payload);
        let index = self.out.block(&payload, Compression::None)?;
        self.properties.index_bytes += payload.len() as u64;
        Ok((index, Handle::default(), true))
    }

    /// Index of the first hash of a partition that begins with block `start`. If the previous block
    /// ends between versions of a key, that key belongs to both.
    fn first_hash(&self, start: usize) -> usize {
        let Some(before) = start.checked_sub(1) else { return 0 };
        let first = self.hashes_through[before];
        let straddles = self.index.continues(before).is_some();
        if straddles { first.saturating_sub(1) } else { first }
    }

    fn write_filter(&mut self, first: usize, end: usize) -> Result<Handle> {
        let mut payload = Vec::new();
        filter::build(&self.hashes[first..end], self.options.bloom_bits_per_key, &mut payload);
        if payload.is_empty() {
            return Ok(Handle::default());
        }
        self.properties.filter_bytes += payload.len() as u64;
        self.out.block(&payload, Compression::None)
    }

    fn write_index(&mut self, start: usize, end: usize) -> Result<Handle> {
        let mut payload = Vec::new();
        self.index.encode(start, end, false, &mut payload);
        self.properties.index_bytes += payload.len() as u64;
        self.out.block(&payload, Compression::None)
    }

    fn write_tombstones(&mut self) -> Result<Handle> {
        if self.tombstones.is_empty() {
            return Ok(Handle::default());
        }
        self.tombstones.sort();
        let mut payload = Vec::new();
        put_varint(&mut payload, self.tombstones.len() as u64);
        for tombstone in &self.tombstones {
            put_bytes(&mut payload, &tombstone.start);
            put_bytes(&mut payload, &tombstone.end);
            put_u64(&mut payload, tombstone.seq.0);
        }
        self.out.block(&payload, Compression::None)
    }

    fn set_bounds(&mut self) {
        let blocks = self.index.len();
        let properties = &mut self.properties;
        if properties.entries > 0 {
            properties.largest = key::user_key(&self.last_key).to_vec();
            properties.median_key = match blocks {
                1 => std::mem::take(&mut self.middle_of_first),
                _ => self.index.key((blocks - 1) / 2).to_vec(),
            };
        }
        let pointless = properties.entries == 0;
        if let Some(first) = self.tombstones.first()
            && (pointless || *first.start < *properties.smallest)
        {
            properties.smallest = first.start.to_vec();
        }
        if let Some(end) = self.tombstones.iter().map(|tombstone| &tombstone.end).max()
            && (pointless || **end > *properties.largest)
        {
            properties.largest = end.to_vec();
            properties.largest_exclusive = true;
        }
        if pointless {
            properties.median_key = properties.smallest.clone();
        }
        properties.smallest_seq = properties.smallest_seq.min(properties.largest_seq);
    }
}
