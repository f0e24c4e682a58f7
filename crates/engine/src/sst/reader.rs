//! An open table: its footer, properties, range tombstones, and the index and filter that stay in
//! memory. It reads blocks through the block cache.
//!
//! The table cache, readers of versions and iterators share it. It is immutable after opening, and
//! so thread-safe without a lock. Invariants:
//! 1. Every block is checked (checksum, position, frame) before it is used or cached.
//! 2. The memory of the reader is charged to `MemoryClass::TableReader` until it is dropped. Data
//!    blocks and partitions are in the block cache, which counts them.
//! 3. With a global sequence number every record reads with that number, whatever is stored.
//!
//! Failure: damage is an error that names file and offset. Nothing is cached then, and the next
//! read tries again.
//! Cost: a warm point look-up is one filter line, one search of an array of eight-byte heads, one
//! load of the block's slot, one in-block hash probe, and a scan of half a restart interval. A file
//! with partitions costs two more slots. Opening costs three to five reads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use archipelago_base::codec::Reader;
use archipelago_base::{Error, Result, SeqNo};
use archipelago_env::{FileClass, IoContext, IoPurpose, RandomFile};

use super::block::{Block, BlockCache, BlockGuard, BlockPinner, Spot};
use super::data_block::{DataBlockBuilder, Versions};
use super::filter::BloomRef;
use super::flat;
use super::format::{FOOTER_BYTES, Footer, Handle, Layout, TRAILER_BYTES, open_block};
use super::index::IndexBlock;
use super::properties::Properties;
use super::tail::Tail;
use crate::cache::{BlockKey, BlockKind, TimedRead};
use crate::file_meta::FileMeta;
use crate::key::{self, Kind};
use crate::lookup::{Found, Lookup, Visit};
use crate::tombstone::{RangeTombstone, TombstoneAccount, TombstoneSet};

/// Options for reading a table.
#[derive(Clone, Copy, Debug)]
pub struct TableReadOptions {
    /// Context of the reads: the reader and its purpose.
    pub context: IoContext,
    /// Whether blocks that are read are put into the block cache.
    pub fill_cache: bool,
    /// Readahead of iterators in bytes. With `fill_cache` it is the largest window that the
    /// operating system is asked to read once an iterator moves on sequentially (0: 256 KiB).
    /// Without `fill_cache`, and not 0, iterators read this many bytes at a time into a buffer of
    /// their own, past the block cache.
    pub readahead_bytes: u64,
    /// Fail with `Busy` if I/O would be needed.
    pub cache_only: bool,
    /// Whether values are not needed. Blocks of one large record are then not read, because the
    /// index has their keys. A value that is shown may be cut to its first eight bytes.
    pub keys_only: bool,
    /// Read a block of one large record only when its value is requested; for iterators of jobs.
    /// The job requests it with `InternalIterator::read_value`, which returns an error of that
    /// read.
    pub late_values: bool,
    /// Whether look-ups may use the Flat Index Cache, and those of garbage collection may fill it.
    /// Off only in tests that compare.
    pub flat_index: bool,
}

impl TableReadOptions {
    /// Options of a user's read: it fills the cache and may do I/O.
    #[must_use]
    pub fn foreground() -> Self {
        Self {
            context: IoContext::new(FileClass::Sst, IoPurpose::ForegroundRead),
            fill_cache: true,
            readahead_bytes: 0,
            cache_only: false,
            keys_only: false,
            late_values: false,
            flat_index: true,
        }
    }

    /// Options of a job's read: `readahead_bytes` at a time, past the cache.
    #[must_use]
    pub fn job(context: IoContext, readahead_bytes: u64) -> Self {
        let (fill_cache, cache_only, keys_only) = (false, false, false);
        let (late_values, flat_index) = (false, false);
        Self {
            context,
            fill_cache,
            readahead_bytes,
            cache_only,
            keys_only,
            late_values,
            flat_index,
        }
    }
}

/// An open table, ready to answer look-ups and scans.
pub struct TableReader {
    pub(super) file: Arc<dyn RandomFile>,
    pub(super) path: PathBuf,
    pub(super) footer: Footer,
    pub(super) properties: Properties,
    pub(super) tombstones: Arc<TombstoneSet>,
    /// The only index block, or the top one.
    pub(super) index: IndexBlock,
    /// The whole-file filter, if the table has one.
    filter: Option<Vec<u8>>,
    pub(super) global_seq: Option<SeqNo>,
    /// Checksum of the whole file, if the manifest has it.
    pub(super) checksum: Option<u32>,
    pub(super) cache: Arc<BlockCache>,
    _charge: Charge,
}

impl std::fmt::Debug for TableReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableReader({})", self.path.display())
    }
}

impl TableReader {
    /// Opens `file`, which lies at `path` (for errors). With `meta`, its length and unique id must
    /// be those of the manifest, and its global sequence number applies.
    pub fn open(
        file: Arc<dyn RandomFile>,
        path: &Path,
        meta: Option<&FileMeta>,
        cache: &Arc<BlockCache>,
        budget: &Arc<ByteBudget>,
    ) -> Result<Arc<Self>> {
        let expected = ExpectedFile {
            layout: Layout::Table,
            identity: meta.map(|meta| FileIdentity {
                size_bytes: meta.size_bytes,
                unique_id: meta.unique_id,
                checksum: meta.checksum,
            }),
            global_seq: meta.and_then(|meta| meta.global_seq).map(SeqNo),
            lowest: 0,
        };
        Self::open_as(file, path, &expected, cache, budget)
    }

    /// Opens a table without a [`FileMeta`]. It must be the file of `identity`.
    pub(crate) fn open_identified(
        file: Arc<dyn RandomFile>,
        path: &Path,
        identity: FileIdentity,
        cache: &Arc<BlockCache>,
        budget: &Arc<ByteBudget>,
    ) -> Result<Arc<Self>> {
        let (layout, identity) = (Layout::Table, Some(identity));
        let expected = ExpectedFile { layout, identity, global_seq: None, lowest: 0 };
        Self::open_as(file, path, &expected, cache, budget)
    }

    /// Opens the blocks of a table or of a value file.
    pub(super) fn open_as(
        file: Arc<dyn RandomFile>,
        path: &Path,
        expected: &ExpectedFile,
        cache: &Arc<BlockCache>,
        budget: &Arc<ByteBudget>,
    ) -> Result<Arc<Self>> {
        let context = IoContext::new(expected.layout.class(), IoPurpose::ForegroundRead);
        let mut tail = Tail::read(&*file, expected.lowest, context)?;
        let footer = read_footer(&tail, path, expected.layout, context)?;
        if let Some(identity) = &expected.identity {
            check_identity(&footer, identity, path)?;
        }
        let held = [footer.filter, footer.index, footer.tombstones, footer.properties];
        let first = held.iter().filter(|handle| handle.is_some()).map(|handle| handle.offset).min();
        // Partitions lie before all of these; they go through the cache and are not read here.
        tail.lengthen(first.unwrap_or(footer.properties.offset), context)?;
        let read = |handle: Handle| read_payload(&tail, path, &footer, handle, context);
        let properties =
            Properties::decode(&read(footer.properties)?, path, footer.properties.offset)?;
        check_layout(&properties, &footer, path)?;
        let global_seq = expected.global_seq;
        if global_seq.is_some() && properties.largest_seq != 0 {
            let what = "a global sequence number over records that have their own";
            return Err(Error::corrupt(path, footer.properties.offset, what));
        }
        let index = IndexBlock::parse(read(footer.index)?, footer.file_bytes)
            .ok()
            .filter(|index| index.is_top() == footer.partitioned)
            .ok_or_else(|| Error::corrupt(path, footer.index.offset, "index block: malformed"))?;
        let filter = match footer.filter.is_some() {
            true => Some(read(footer.filter)?),
            false => None,
        };
        if filter.as_deref().is_some_and(|filter| BloomRef::new(filter).is_none()) {
            return Err(Error::corrupt(path, footer.filter.offset, "filter block: malformed"));
        }
        let tombstones = match footer.tombstones.is_some() {
            true => {
                let payload = read(footer.tombstones)?;
                let list = decode_tombstones(&payload, global_seq).ok_or_else(|| {
                    Error::corrupt(path, footer.tombstones.offset, "range tombstones: malformed")
                })?;
                let budget = Arc::clone(budget);
                let account = TombstoneAccount { budget, class: MemoryClass::TableReader };
                TombstoneSet::charged_to(account).with(list)
            }
            false => TombstoneSet::default(),
        };
        drop(tail);
        let bytes = size_of::<Self>()
            + index.memory_bytes()
            + filter.as_ref().map_or(0, Vec::capacity)
            + footer.properties.size as usize;
        Ok(Arc::new(Self {
            file,
            path: path.to_owned(),
            footer,
            properties,
            tombstones: Arc::new(tombstones),
            index,
            filter,
            global_seq,
            checksum: expected.identity.as_ref().map(|identity| identity.checksum),
            cache: Arc::clone(cache),
            _charge: budget.hold(MemoryClass::TableReader, bytes as u64),
        }))
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Properties of the file.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Unique id to which the file's blocks are bound.
    #[must_use]
    pub fn unique_id(&self) -> &[u8; 16] {
        &self.footer.unique_id
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.footer.file_bytes
    }

    /// The file's range tombstones.
    #[must_use]
    pub fn tombstones(&self) -> &Arc<TombstoneSet> {
        &self.tombstones
    }

    /// Bytes of memory that the open reader holds besides the block cache.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self._charge.bytes() + self.tombstones.memory_bytes()
    }

    /// Whether the whole-file filter allows a key with this hash. True if there is no filter or it
    /// is partitioned. No I/O. Range tombstones are not in the filter.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        match self.filter.as_deref().and_then(BloomRef::new) {
            Some(filter) => filter.may_contain(hash),
            None => true,
        }
    }

    /// Whether one filter over all keys of the table is in memory.
    #[must_use]
    pub(crate) fn has_whole_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Visits the versions of a key that the look-up's snapshot sees, newest first, until the
    /// visitor breaks. Range tombstones are not considered.
    pub fn lookup(
        &self,
        lookup: &Lookup<'_>,
        options: &TableReadOptions,
        visit: &mut dyn FnMut(&Found<'_>) -> Visit,
    ) -> Result<()> {
        if !self.may_contain(lookup.hash) {
            return Ok(());
        }
        self.lookup_filtered(lookup, options, visit)
    }

    /// Looks up a key, as [`TableReader::lookup`] does, that [`TableReader::may_contain`] did not
    /// exclude.
    #[inline]
    pub(crate) fn lookup_filtered(
        &self,
        lookup: &Lookup<'_>,
        options: &TableReadOptions,
        visit: &mut dyn FnMut(&Found<'_>) -> Visit,
    ) -> Result<()> {
        let Some(trailer) = self.seek_trailer(lookup.snapshot) else { return Ok(()) };
        if !self.footer.partitioned {
            return self.lookup_in(&self.index, lookup, trailer, options, visit).map(|_| ());
        }
        let top = &self.index;
        for position in top.search(lookup.key, trailer)..top.len() {
            let entry = top.entry(position);
            if entry.filter.is_some() {
                let spot = top.filter_spot(position);
                let block = self.block(spot, entry.filter, BlockKind::Filter, options)?;
                let filter = block.filter().ok_or_else(|| self.mixed_up(entry.filter))?;
                if !filter.may_contain(lookup.hash) {
                    return Ok(());
                }
            }
            let spot = top.spot(position);
            let block = self.block(spot, entry.handle, BlockKind::Index, options)?;
            let leaf = block.index().ok_or_else(|| self.mixed_up(entry.handle))?;
            if self.lookup_in(leaf, lookup, trailer, options, visit)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Looks a key up through one index block; `Continue` if its versions go on in the next one.
    fn lookup_in(
        &self,
        index: &IndexBlock,
        lookup: &Lookup<'_>,
        trailer: u64,
        options: &TableReadOptions,
        visit: &mut dyn FnMut(&Found<'_>) -> Visit,
    ) -> Result<Visit> {
        let start = index.search(lookup.key, trailer);
        for position in start..index.len() {
            // Nothing below reads the position of a block that is in its slot, because that is a
            // cache miss.
            let handle = || index.place(position).handle;
            let key = || self.key_of(handle());
            if options.keys_only && index.place(position).has_record {
                let block = self.head_block(index, position)?;
                let outcome = self.lookup_in_block(&block, handle, lookup, trailer, visit)?;
                if outcome.is_break() || !index.place(position).continues {
                    return Ok(Visit::Break(()));
                }
                continue;
            }
            let block = match self.cache.get_at(index.spot(position), BlockKind::Data, key) {
                Some(block) => block,
                None => {
                    // A piece answers with the newest version only, which lies in the first block.
                    if position == start
                        && let Some((seq, outcome)) =
                            flat::lookup_newest(self, index, position, lookup, options, visit)
                    {
                        if outcome.is_continue() {
                            self.lookup_older(lookup, seq, options, visit)?;
                        }
                        return Ok(Visit::Break(()));
                    }
                    BlockGuard::Shared(self.read_block(handle(), BlockKind::Data, options)?)
                }
            };
            let outcome = self.lookup_in_block(&block, handle, lookup, trailer, visit)?;
            if outcome.is_break() || !index.place(position).continues {
                return Ok(Visit::Break(()));
            }
        }
        Ok(Visit::Continue(()))
    }

    /// Visits the remaining versions of a key, below `seq`, from data blocks alone.
    #[cold]
    pub(super) fn lookup_older(
        &self,
        lookup: &Lookup<'_>,
        seq: SeqNo,
        options: &TableReadOptions,
        visit: &mut dyn FnMut(&Found<'_>) -> Visit,
    ) -> Result<()> {
        let Some(snapshot) = seq.0.checked_sub(1).map(SeqNo) else { return Ok(()) };
        let lookup = Lookup { snapshot, ..*lookup };
        let options = TableReadOptions { flat_index: false, ..*options };
        self.lookup_filtered(&lookup, &options, visit)
    }

    /// Visits the key's versions in one block; `Continue` if the block ended before the key did.
    pub(super) fn lookup_in_block(
        &self,
        block: &Arc<Block>,
        handle: impl Fn() -> Handle,
        lookup: &Lookup<'_>,
        trailer: u64,
        visit: &mut dyn FnMut(&Found<'_>) -> Visit,
    ) -> Result<Visit> {
        let data = block.data().ok_or_else(|| self.mixed_up(handle()))?;
        let damaged = |_| self.damaged(handle());
        let pinner = BlockPinner(block);
        let mut versions: Versions<'_> =
            data.versions(lookup.key, trailer, lookup.hash).map_err(damaged)?;
        while let Some((stored, value)) = versions.next().map_err(damaged)? {
            let Some(kind) = Kind::from_byte(stored as u8) else {
                let what = format!("data block: record of unknown kind {}", stored as u8);
                return Err(Error::corrupt(&self.path, handle().offset, what));
            };
            let seq = self.global_seq.unwrap_or(key::trailer_seq(stored));
            if visit(&Found { seq, kind, value, pinner: Some(&pinner) }).is_break() {
                return Ok(Visit::Break(()));
            }
        }
        if versions.ran_out() { Ok(Visit::Continue(())) } else { Ok(Visit::Break(())) }
    }

    /// The trailer at which the versions begin that `snapshot` sees; `None` if it sees none.
    #[inline]
    pub(super) fn seek_trailer(&self, snapshot: SeqNo) -> Option<u64> {
        match self.global_seq {
            None => Some(key::pack(snapshot, Kind::SEEK)),
            Some(global) if global <= snapshot => Some(u64::MAX),
            Some(_) => None,
        }
    }

    /// A block in memory with the only record of the block at `position` of `index`, with its value
    /// cut to the expiry. It serves readers that want no values. The entry must have the record's
    /// head.
    pub(super) fn head_block(&self, index: &IndexBlock, position: usize) -> Result<Arc<Block>> {
        let entry = index.entry(position);
        let record = entry.record.ok_or_else(|| self.mixed_up(entry.handle))?;
        let mut internal_key = [index.prefix(), entry.suffix].concat();
        let hash = archipelago_base::checksum::hash64(&internal_key);
        internal_key.extend_from_slice(&record.trailer.to_le_bytes());
        let expiry = record.expiry.map(u64::to_le_bytes);
        let value = expiry.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let mut builder = DataBlockBuilder::new(1, internal_key.len() + 32);
        builder.add(&internal_key, value, 0, Some(hash));
        let payload = builder.finish().to_vec();
        let (kind, file_bytes) = (BlockKind::Data, self.footer.file_bytes);
        Block::parse(kind, payload, &self.path, entry.handle, file_bytes).map(Arc::new)
    }

    /// The block at `handle`, from its slot `spot`, the cache or the file.
    #[inline]
    pub(super) fn block(
        &self,
        spot: Spot<'_>,
        handle: Handle,
        kind: BlockKind,
        options: &TableReadOptions,
    ) -> Result<BlockGuard> {
        match self.cached_block(spot, handle, kind) {
            Some(block) => Ok(block),
            None => self.read_block(handle, kind, options).map(BlockGuard::Shared),
        }
    }

    /// The block, if it is in its slot or the cache.
    #[inline]
    pub(super) fn cached_block(
        &self,
        spot: Spot<'_>,
        handle: Handle,
        kind: BlockKind,
    ) -> Option<BlockGuard> {
        self.cache.get_at(spot, kind, || self.key_of(handle))
    }

    #[inline]
    pub(super) fn key_of(&self, handle: Handle) -> BlockKey {
        BlockKey::new(&self.footer.unique_id, handle.offset)
    }

    /// Removes the file's data blocks and pieces of the Flat Index Cache from the cache, for a file
    /// that is removed. It finds only blocks whose index partitions are in the cache.
    pub fn forget_blocks(&self) {
        let forget = |index: &IndexBlock| {
            for at in 0..index.len() {
                self.cache.remove(&self.key_of(index.place(at).handle));
                flat::forget_piece(self, index, at);
            }
        };
        if self.footer.partitioned {
            let leaves = (0..self.index.len()).map(|at| self.key_of(self.index.entry(at).handle));
            for leaf in leaves.filter_map(|key| self.cache.peek(&key)) {
                leaf.index().into_iter().for_each(forget);
            }
        }
        forget(&self.index);
    }

    /// Whether the block is in the cache. Does not count as a use of the block.
    pub(super) fn is_cached(&self, handle: Handle) -> bool {
        self.cache.contains(&self.key_of(handle))
    }

    /// The block, if it is in the cache, for callers that do not know its slot.
    pub(super) fn cached_by_key(&self, handle: Handle, kind: BlockKind) -> Option<Arc<Block>> {
        self.cache.get(&self.key_of(handle), kind)
    }

    /// The data block at `handle`, from the cache or the file, for callers that do not know its
    /// slot.
    pub(super) fn block_by_key(
        &self,
        handle: Handle,
        options: &TableReadOptions,
    ) -> Result<Arc<Block>> {
        match self.cached_by_key(handle, BlockKind::Data) {
            Some(block) => Ok(block),
            None => self.read_block(handle, BlockKind::Data, options),
        }
    }

    #[cold]
    fn read_block(
        &self,
        handle: Handle,
        kind: BlockKind,
        options: &TableReadOptions,
    ) -> Result<Arc<Block>> {
        if options.cache_only {
            return Err(self.would_need_io(handle));
        }
        let timed = self.begin_read(handle, options);
        let raw = read_raw(&*self.file, handle, options.context)?;
        if let Some(timed) = timed {
            timed.end();
        }
        self.admit(handle, kind, raw, options)
    }

    /// Notes that a block is read from the file, if the cache measures such reads.
    #[inline]
    pub(super) fn begin_read(
        &self,
        handle: Handle,
        options: &TableReadOptions,
    ) -> Option<TimedRead<'_>> {
        let meter = self.cache.meter()?;
        let is_for_user = options.context.purpose == IoPurpose::ForegroundRead;
        is_for_user.then(|| meter.begin(&self.key_of(handle), self.cache.evicted()))
    }

    /// Checks a block that was read, and caches it if the options say so.
    pub(super) fn admit(
        &self,
        handle: Handle,
        kind: BlockKind,
        raw: Vec<u8>,
        options: &TableReadOptions,
    ) -> Result<Arc<Block>> {
        let payload = open_block(raw, &self.path, &self.footer.unique_id, handle.offset)?;
        let block = Block::parse(kind, payload, &self.path, handle, self.footer.file_bytes)?;
        if !options.fill_cache {
            return Ok(Arc::new(block));
        }
        let key = BlockKey::new(&self.footer.unique_id, handle.offset);
        Ok(self.cache.insert(key, block))
    }

    pub(super) fn would_need_io(&self, handle: Handle) -> Error {
        Error::busy(format!("{}: would need I/O at {}", self.path.display(), handle.offset))
    }

    #[cold]
    pub(super) fn damaged(&self, handle: Handle) -> Error {
        Error::corrupt(&self.path, handle.offset, "data block: malformed record")
    }

    #[cold]
    pub(super) fn mixed_up(&self, handle: Handle) -> Error {
        Error::corrupt(&self.path, handle.offset, "block of another kind than the index says")
    }

    /// Approximate bytes of the file before `user_key`.
    pub fn approximate_offset(&self, user_key: &[u8]) -> Result<u64> {
        let options = TableReadOptions::foreground();
        let mut position = self.index.search(user_key, u64::MAX);
        if position == self.index.len() {
            return Ok(self.properties.data_end());
        }
        let entry = self.index.entry(position);
        if !self.footer.partitioned {
            return Ok(entry.handle.offset);
        }
        let spot = self.index.spot(position);
        let block = self.block(spot, entry.handle, BlockKind::Index, &options)?;
        let leaf = block.index().ok_or_else(|| self.mixed_up(entry.handle))?;
        position = leaf.search(user_key, u64::MAX);
        Ok(match position == leaf.len() {
            true => self.properties.data_end(),
            false => leaf.entry(position).handle.offset,
        })
    }

    /// At most `count` keys that cut the file into about equal parts, ascending, from the index in
    /// memory. A file with partitions has one key per partition. No I/O.
    #[must_use]
    pub fn index_keys(&self, count: usize) -> Vec<Vec<u8>> {
        let (prefix, entries) = (self.index.prefix(), self.index.len());
        let parts = (count + 1).min(entries.max(1));
        let mut keys: Vec<Vec<u8>> = (1..parts)
            .map(|part| {
                let entry = self.index.entry(part * entries / parts - 1);
                [prefix, entry.suffix].concat()
            })
            .collect();
        keys.dedup();
        keys
    }
}

/// Properties that a caller expects of a file that it opens.
pub(super) struct ExpectedFile {
    /// Type of the file.
    pub(super) layout: Layout,
    /// Identity of the file in the manifest; `None` for a file that no manifest names.
    pub(super) identity: Option<FileIdentity>,
    /// Sequence number of all records of an ingested table.
    pub(super) global_seq: Option<SeqNo>,
    /// Offset below which opening reads nothing.
    pub(super) lowest: u64,
}

/// Identity of a file in the manifest, so that another file is not taken for it.
#[derive(Clone, Copy)]
pub(crate) struct FileIdentity {
    /// Length in bytes.
    pub(crate) size_bytes: u64,
    /// Unique id to which the blocks are bound.
    pub(crate) unique_id: [u8; 16],
    /// CRC-32C of the whole file.
    pub(crate) checksum: u32,
}

fn check_identity(footer: &Footer, identity: &FileIdentity, path: &Path) -> Result<()> {
    let at = footer.file_bytes - FOOTER_BYTES as u64;
    if footer.file_bytes != identity.size_bytes {
        let what = format!(
            "the file has {} bytes, the manifest says {}",
            footer.file_bytes, identity.size_bytes
        );
        return Err(Error::corrupt(path, at, what));
    }
    if footer.unique_id != identity.unique_id {
        return Err(Error::corrupt(path, at, "unique id is not the one in the manifest"));
    }
    Ok(())
}

/// Refuses properties of a table in a value file, and properties of a value file in a table.
fn check_layout(properties: &Properties, footer: &Footer, path: &Path) -> Result<()> {
    let corrupt = |what| Err(Error::corrupt(path, footer.properties.offset, what));
    if properties.layout() != footer.layout {
        return corrupt("properties: a value area in a table, or none in a value file");
    }
    if footer.layout == Layout::Values {
        let is_plain = properties.refs.is_empty()
            && properties.range_deletions == 0
            && !footer.tombstones.is_some()
            && !footer.filter.is_some();
        if !is_plain || properties.data_start() > footer.file_bytes {
            return corrupt("properties: impossible in a value file");
        }
    }
    Ok(())
}

fn read_footer(
    file: &dyn RandomFile,
    path: &Path,
    layout: Layout,
    context: IoContext,
) -> Result<Footer> {
    let len = file.len();
    let Some(at) = len.checked_sub(FOOTER_BYTES as u64) else {
        let what = format!("footer: the file has only {len} bytes: not an SST, or cut off");
        return Err(Error::corrupt(path, 0, what));
    };
    let mut bytes = [0; FOOTER_BYTES];
    file.read_exact_at(at, &mut bytes, context)?;
    Footer::decode(&bytes, path, len, layout)
}

/// Reads a block with its trailer, without a check. The handle must lie within the file.
pub(super) fn read_raw(
    file: &dyn RandomFile,
    handle: Handle,
    context: IoContext,
) -> Result<Vec<u8>> {
    file.read_new(handle.offset, handle.size as usize + TRAILER_BYTES, context)
}

/// Reads, checks and decompresses a block.
pub(super) fn read_payload(
    file: &dyn RandomFile,
    path: &Path,
    footer: &Footer,
    handle: Handle,
    context: IoContext,
) -> Result<Vec<u8>> {
    let raw = read_raw(file, handle, context)?;
    open_block(raw, path, &footer.unique_id, handle.offset)
}

/// Decodes the range-tombstone block; `None` if it is malformed.
pub(super) fn decode_tombstones(
    bytes: &[u8],
    global_seq: Option<SeqNo>,
) -> Option<Vec<RangeTombstone>> {
    let mut reader = Reader::new(bytes);
    let count = reader.varint()?;
    let mut tombstones = Vec::new();
    for _ in 0..count {
        let (start, end) = (reader.bytes()?.into(), reader.bytes()?.into());
        let seq = SeqNo(reader.u64()?);
        let tombstone = RangeTombstone { start, end, seq: global_seq.unwrap_or(seq) };
        if tombstone.is_empty() || seq > SeqNo::MAX {
            return None;
        }
        tombstones.push(tombstone);
    }
    reader.is_empty().then_some(tombstones)
}
