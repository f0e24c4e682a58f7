//! An open value file: values by handle, handles by key.
//!
//! The table cache owns it; readers, iterators and jobs share it. Invariants:
//! 1. Every value record is checked (position, checksum, lengths) before it is used or cached.
//! 2. The index of the keys is read when a handle is first searched. It stays in memory, charged to
//!    `MemoryClass::TableReader`, until the reader is dropped. Key blocks and values are in the
//!    block cache, which counts them.
//! 3. A value enters the block cache as [`BlockKind::Value`] and is pinned for the caller like a
//!    data block. A value over a quarter of a shard of the cache does not enter it, because one
//!    read would evict most of the shard. The budget counts such a value until its last holder
//!    drops it.
//!
//! Thread-safety: any thread may call any method. Failure: damage is an error that names file and
//! offset. Nothing is cached then, and the next read tries again; other values stay readable.
//! Cost: opening reads nothing. A value whose offset is known costs one device read, and none if it
//! is cached. A search for a handle costs the read of a key block if that is not cached. The first
//! search also reads the index, with one or two reads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use archipelago_base::budget::ByteBudget;
use archipelago_base::{CfId, Error, FileNo, Result, SeqNo};
use archipelago_env::{IoContext, RandomFile};
use parking_lot::Mutex;

use super::ValueKeys;
use crate::cache::{BlockKey, BlockKind};
use crate::key::Kind;
use crate::lookup::{Lookup, Visit};
use crate::options::Compression;
use crate::pinned::{PinOwner, PinnedSlice};
use crate::sst::block::{Block, BlockCache};
use crate::sst::format::{FOOTER_BYTES, Layout, TRAILER_BYTES, check_block, decompress};
use crate::sst::reader::{ExpectedFile, FileIdentity, TableReadOptions, TableReader};
use crate::value_ref::{Reference, ValueFileMeta, ValueHandle};

/// Largest number of bytes of a key that an error shows.
const KEY_SHOWN_BYTES: usize = 64;
/// Bytes of the raw length before a compressed value.
const LENGTH_BYTES: usize = 4;

/// A value as a value file stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredValue<'a> {
    /// The stored bytes, without the trailer.
    pub(crate) payload: &'a [u8],
    /// Compression of the payload.
    pub(crate) compression: Compression,
    /// Bytes of the user's value.
    pub(crate) raw_bytes: u32,
}

/// The record whose value a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueKey<'a> {
    /// The user's key.
    pub(crate) user_key: &'a [u8],
    /// Sequence number of the record.
    pub(crate) seq: SeqNo,
}

/// An open value file.
pub struct ValueTable {
    file: Arc<dyn RandomFile>,
    path: PathBuf,
    no: FileNo,
    identity: FileIdentity,
    /// Length of the value area in bytes.
    value_bytes: u64,
    /// The table of handles, once it was opened.
    keys: ArcSwapOption<TableReader>,
    /// Held while `keys` is opened.
    opening: Mutex<()>,
    cache: Arc<BlockCache>,
    budget: Arc<ByteBudget>,
}

impl std::fmt::Debug for ValueTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueTable({})", self.path.display())
    }
}

/// Values that were read in one batch.
#[derive(Debug)]
pub(crate) struct ValueBatch {
    /// The values in the order in which they were wanted.
    pub(crate) values: Vec<PinnedSlice>,
    /// Number of values among them that came from the file and not from the cache.
    pub(crate) read: usize,
}

/// A value file that was opened without a manifest.
pub(in crate::sst) struct ForeignValueFile {
    /// The open file.
    pub(in crate::sst) table: Arc<ValueTable>,
    /// Metadata of the file as a manifest would have it, without the checksum.
    pub(in crate::sst) meta: ValueFileMeta,
    /// The table of handles.
    pub(in crate::sst) keys: Arc<TableReader>,
}

/// The context of a read of a value file, for the purpose of `context`.
fn value_context(context: IoContext) -> IoContext {
    IoContext { class: Layout::Values.class(), level: None, ..context }
}

impl ValueTable {
    /// Opens `file`, which lies at `path` (for errors) and must be the one that `meta` describes.
    /// Reads nothing: each value record is bound to the unique id of `meta`.
    pub(crate) fn open(
        file: Arc<dyn RandomFile>,
        path: &Path,
        meta: &ValueFileMeta,
        cache: &Arc<BlockCache>,
        budget: &Arc<ByteBudget>,
    ) -> Result<Arc<Self>> {
        if file.len() != meta.size_bytes {
            let what =
                format!("the file has {} bytes, the manifest says {}", file.len(), meta.size_bytes);
            return Err(Error::corrupt(path, file.len(), what));
        }
        let keys_end = meta.size_bytes.saturating_sub(FOOTER_BYTES as u64);
        if meta.keys_offset > keys_end {
            let what = format!("keys at {} of {} bytes", meta.keys_offset, meta.size_bytes);
            return Err(Error::corrupt(path, meta.keys_offset, what));
        }
        Ok(Arc::new(Self {
            file,
            path: path.to_owned(),
            no: meta.file_no(),
            identity: FileIdentity {
                size_bytes: meta.size_bytes,
                unique_id: meta.unique_id,
                checksum: meta.checksum,
            },
            value_bytes: meta.keys_offset,
            keys: ArcSwapOption::empty(),
            opening: Mutex::new(()),
            cache: Arc::clone(cache),
            budget: Arc::clone(budget),
        }))
    }

    /// Opens a value file that no manifest names, as file `no`, and derives its metadata. The
    /// checksum of the whole file is not known without a read of it and stays 0. Costs the reads of
    /// the index.
    pub(in crate::sst) fn open_foreign(
        file: &Arc<dyn RandomFile>,
        path: &Path,
        no: FileNo,
        cache: &Arc<BlockCache>,
        budget: &Arc<ByteBudget>,
    ) -> Result<ForeignValueFile> {
        let expected =
            ExpectedFile { layout: Layout::Values, identity: None, global_seq: None, lowest: 0 };
        let keys = TableReader::open_as(Arc::clone(file), path, &expected, cache, budget)?;
        let said = keys.properties();
        let meta = ValueFileMeta {
            no: no.0,
            unique_id: *keys.unique_id(),
            size_bytes: keys.file_bytes(),
            checksum: 0,
            keys_offset: said.data_start(),
            smallest: said.smallest.clone(),
            largest: said.largest.clone(),
            smallest_seq: said.smallest_seq,
            largest_seq: said.largest_seq,
            records: said.entries,
            created_unix_ms: said.created_unix_ms,
            basis: 0,
        };
        let table = Self::open(Arc::clone(file), path, &meta, cache, budget)?;
        Ok(ForeignValueFile { table, meta, keys })
    }

    /// The value at `at`, which is the hint of a reference to this very file, or a handle of
    /// [`ValueTable::locate`]. Costs one device read if the value is not cached.
    pub(crate) fn read_at(
        &self,
        at: ValueHandle,
        options: &TableReadOptions,
    ) -> Result<PinnedSlice> {
        match self.cached(at)? {
            Some(value) => Ok(value),
            None => self.read_uncached(at, options),
        }
    }

    /// The value at `at`, if it is in the block cache.
    pub(crate) fn cached(&self, at: ValueHandle) -> Result<Option<PinnedSlice>> {
        self.check_place(at)?;
        let block = self.cache.get(&self.key_of(at), BlockKind::Value);
        block.map(|block| self.pin(at, block)).transpose()
    }

    /// The value at `at`, which [`ValueTable::cached`] did not find.
    pub(crate) fn read_uncached(
        &self,
        at: ValueHandle,
        options: &TableReadOptions,
    ) -> Result<PinnedSlice> {
        if options.cache_only {
            return Err(self.would_need_io(at));
        }
        let (len, context) = (at.record_bytes() as usize, value_context(options.context));
        let raw = self.file.read_new(at.offset, len, context)?;
        self.admit(at, raw, options)
    }

    /// The values at `wanted`, in that order. One [`RandomFile::read_many_new`], sorted by offset,
    /// reads those that are not cached. All of them are in memory at the same time.
    pub(crate) fn read_many(
        &self,
        wanted: &[ValueHandle],
        options: &TableReadOptions,
    ) -> Result<ValueBatch> {
        let mut found: Vec<Option<PinnedSlice>> = Vec::with_capacity(wanted.len());
        let mut missing: Vec<(usize, ValueHandle)> = Vec::new();
        for (position, &at) in wanted.iter().enumerate() {
            let value = self.cached(at)?;
            if value.is_none() {
                missing.push((position, at));
            }
            found.push(value);
        }
        let read = missing.len();
        if let Some(&(_, first)) = missing.first() {
            if options.cache_only {
                return Err(self.would_need_io(first));
            }
            missing.sort_unstable_by_key(|(_, at)| at.offset);
            let ranges: Vec<(u64, usize)> =
                missing.iter().map(|(_, at)| (at.offset, at.record_bytes() as usize)).collect();
            let raws = self.file.read_many_new(&ranges, value_context(options.context))?;
            for (&(position, at), raw) in missing.iter().zip(raws) {
                found[position] = Some(self.admit(at, raw, options)?);
            }
        }
        Ok(ValueBatch { values: found.into_iter().flatten().collect(), read })
    }

    /// The value that `reference`, the stored value of the record `key`, names. `reference` names
    /// this file or an ancestor of it.
    pub(crate) fn read(
        &self,
        reference: &Reference,
        key: ValueKey<'_>,
        options: &TableReadOptions,
    ) -> Result<PinnedSlice> {
        self.read_at(self.handle_of(reference, key, options)?, options)
    }

    /// Position of the value of `reference` in this file. It is the hint if the reference names
    /// this very file, else the result of [`ValueTable::locate`]. `reference` is the stored value
    /// of the record `key`.
    pub(crate) fn handle_of(
        &self,
        reference: &Reference,
        key: ValueKey<'_>,
        options: &TableReadOptions,
    ) -> Result<ValueHandle> {
        if reference.file_no == self.no
            && let Some(at) = ValueHandle::hinted(reference)
        {
            return Ok(at);
        }
        self.located(reference, key, options)
    }

    /// Position of the value of `reference`, checked: it compares the hint of
    /// [`ValueTable::handle_of`] with the key blocks. For verification.
    pub(crate) fn checked_handle(
        &self,
        reference: &Reference,
        key: ValueKey<'_>,
        options: &TableReadOptions,
    ) -> Result<ValueHandle> {
        let at = self.located(reference, key, options)?;
        let hint = reference.offset.filter(|_| reference.file_no == self.no);
        if hint.is_some_and(|hint| hint != at.offset) {
            let what = format!(
                "the value of key \"{}\" @{} lies here, but its reference says offset {}",
                shown(key.user_key),
                key.seq,
                hint.unwrap_or(0)
            );
            return Err(Error::corrupt(&self.path, at.offset, what));
        }
        Ok(at)
    }

    /// Position of the value of `reference` by the key blocks, if its lengths are the same.
    fn located(
        &self,
        reference: &Reference,
        key: ValueKey<'_>,
        options: &TableReadOptions,
    ) -> Result<ValueHandle> {
        let at = self.locate(key, options)?;
        let lengths = (at.stored_bytes, at.raw_bytes);
        if lengths != (reference.stored_bytes, reference.raw_bytes) {
            let what = format!(
                "the value of key \"{}\" @{} has {} bytes stored and {} raw, but its reference \
                 says {} and {}",
                shown(key.user_key),
                key.seq,
                at.stored_bytes,
                at.raw_bytes,
                reference.stored_bytes,
                reference.raw_bytes
            );
            return Err(Error::corrupt(&self.path, at.offset, what));
        }
        Ok(at)
    }

    /// Position of the value of the record `key`, from the key blocks. Key blocks are cached as
    /// ordinary blocks.
    /// Errors: `Corrupt` if the file has no such record, because every reference of a version
    /// resolves.
    pub(crate) fn locate(
        &self,
        key: ValueKey<'_>,
        options: &TableReadOptions,
    ) -> Result<ValueHandle> {
        let table = self.key_table(options.cache_only)?;
        let options = TableReadOptions { context: value_context(options.context), ..*options };
        let lookup = Lookup::new(key.user_key, key.seq);
        let mut found = None;
        table.lookup(&lookup, &options, &mut |record| {
            if record.seq == key.seq && record.kind == Kind::Indirect {
                found = Some(ValueHandle::decode(record.value, self.value_bytes));
            }
            Visit::Break(())
        })?;
        match found {
            Some(Some(at)) => Ok(at),
            Some(None) => Err(self.corrupt_key(key, "a malformed handle")),
            None => Err(self.corrupt_key(key, "no value")),
        }
    }

    /// All keys of the file with their handles, in internal-key order, after one contiguous read of
    /// the key part. The keys in memory are charged to `MemoryClass::Job` until they are dropped.
    pub(crate) fn keys(&self, context: IoContext) -> Result<ValueKeys> {
        let len = (self.identity.size_bytes - self.value_bytes) as usize;
        let mut bytes = vec![0; len];
        let context = value_context(context);
        self.file.read_exact_at(self.value_bytes, &mut bytes, context)?;
        let part = super::keys::KeyPart { bytes, at: self.value_bytes };
        let table = self.open_keys(Arc::new(part))?;
        Ok(ValueKeys::new(&table, len as u64, &self.budget, context))
    }

    /// The keys of the file for a walk that reads `step_bytes` at a time past the block cache. The
    /// walk is not placed yet. Costs the reads of the index.
    pub(crate) fn keys_in_steps(&self, context: IoContext, step_bytes: u64) -> Result<ValueKeys> {
        let table = self.key_table(false)?;
        Ok(ValueKeys::in_steps(&table, step_bytes, &self.budget, value_context(context)))
    }

    /// Fills several ranges of the value area with one [`RandomFile::read_many`]. It serves callers
    /// that read windows over many records and then extract the records with
    /// [`ValueTable::stored`].
    pub(crate) fn read_ranges(
        &self,
        requests: &mut [(u64, &mut [u8])],
        context: IoContext,
    ) -> Result<()> {
        self.file.read_many(requests, value_context(context))
    }

    /// Checks a value record that was read from `at`, and returns its payload as it is stored.
    pub(crate) fn stored<'a>(&self, at: ValueHandle, record: &'a [u8]) -> Result<StoredValue<'a>> {
        self.check_place(at)?;
        if record.len() as u64 != at.record_bytes() {
            let what = format!("value: {} bytes where the handle says {at:?}", record.len());
            return Err(Error::corrupt(&self.path, at.offset, what));
        }
        stored_value(record, at, &self.path, &self.identity.unique_id)
    }

    /// Reads the file past every cache and checks all of it. It checks the checksums of the file
    /// and of every block and value record, that the keys are sorted, and that the handles tile the
    /// value area. It checks that every value has the length of its handle. Costs two reads of the
    /// whole file.
    pub(crate) fn verify(&self, context: IoContext) -> Result<()> {
        self.open_keys(Arc::clone(&self.file))?.verify(value_context(context))
    }

    /// Removes the key blocks and the values of the file, which is removed, from the cache.
    pub(crate) fn forget_blocks(&self) {
        if let Some(table) = self.keys.load_full() {
            table.forget_blocks();
        }
        self.cache.remove_values(&self.identity.unique_id);
    }

    /// The table of handles, opened if necessary.
    fn key_table(&self, cache_only: bool) -> Result<Arc<TableReader>> {
        if let Some(table) = self.keys.load_full() {
            return Ok(table);
        }
        if cache_only {
            let path = self.path.display();
            return Err(Error::busy(format!("{path}: would need I/O to read its index")));
        }
        let _opening = self.opening.lock();
        if let Some(table) = self.keys.load_full() {
            return Ok(table);
        }
        let table = self.open_keys(Arc::clone(&self.file))?;
        self.keys.store(Some(Arc::clone(&table)));
        Ok(table)
    }

    fn open_keys(&self, file: Arc<dyn RandomFile>) -> Result<Arc<TableReader>> {
        let expected = ExpectedFile {
            layout: Layout::Values,
            identity: Some(self.identity),
            global_seq: None,
            lowest: self.value_bytes,
        };
        let table = TableReader::open_as(file, &self.path, &expected, &self.cache, &self.budget)?;
        let said = table.properties().data_start();
        if said != self.value_bytes {
            let what =
                format!("the value area has {said} bytes, the manifest says {}", self.value_bytes);
            return Err(Error::corrupt(&self.path, table.footer.properties.offset, what));
        }
        Ok(table)
    }

    fn key_of(&self, at: ValueHandle) -> BlockKey {
        BlockKey::new(&self.identity.unique_id, at.offset)
    }

    fn check_place(&self, at: ValueHandle) -> Result<()> {
        if at.is_within(self.value_bytes) {
            return Ok(());
        }
        let what = format!(
            "value: {} bytes stored and {} raw do not fit into a value area of {} bytes",
            at.stored_bytes, at.raw_bytes, self.value_bytes
        );
        Err(Error::corrupt(&self.path, at.offset, what))
    }

    /// Checks a value record that was read, decompresses it, and caches it if the options say so.
    fn admit(
        &self,
        at: ValueHandle,
        raw: Vec<u8>,
        options: &TableReadOptions,
    ) -> Result<PinnedSlice> {
        let value = unpack(raw, at, &self.path, &self.identity.unique_id)?;
        if !options.fill_cache {
            return Ok(PinnedSlice::owned(value));
        }
        let block = self.cache.insert(self.key_of(at), Block::of_value(value));
        self.pin(at, block)
    }

    /// The bytes of a cached value.
    fn pin(&self, at: ValueHandle, block: Arc<Block>) -> Result<PinnedSlice> {
        let len = block.bytes().len();
        if !block.is_value() || len != at.raw_bytes as usize {
            let what = format!("value: {len} bytes where the reference says {}", at.raw_bytes);
            return Err(Error::corrupt(&self.path, at.offset, what));
        }
        let value = PinnedSlice::pinned(block, 0..len);
        Ok(value.expect("values are shorter than 4 GiB"))
    }

    fn would_need_io(&self, at: ValueHandle) -> Error {
        Error::busy(format!("{}: would need I/O at {}", self.path.display(), at.offset))
    }

    #[cold]
    fn corrupt_key(&self, key: ValueKey<'_>, has: &str) -> Error {
        let what = format!("{has} of key \"{}\" @{}", shown(key.user_key), key.seq);
        Error::corrupt(&self.path, self.value_bytes, what)
    }
}

/// Properties of a value file, from the file itself.
#[derive(Clone, Debug)]
pub(crate) struct DescribedValues {
    /// Metadata as a manifest would have it, without the checksum of the whole file.
    pub(crate) meta: ValueFileMeta,
    /// Column family of its values.
    pub(crate) cf: CfId,
}

/// Properties of the value file at `path`, from the file itself. Checks only its footer, its
/// properties and its index.
pub(crate) fn described_values(
    file: &Arc<dyn RandomFile>,
    path: &Path,
    no: FileNo,
) -> Result<DescribedValues> {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(0, &budget);
    let found = ValueTable::open_foreign(file, path, no, &cache, &budget)?;
    Ok(DescribedValues { cf: found.keys.properties().cf, meta: found.meta })
}

fn shown(key: &[u8]) -> String {
    key.get(..KEY_SHOWN_BYTES).unwrap_or(key).escape_ascii().to_string()
}

/// Checks the value record at `at`: its checksum, and its lengths against the handle.
pub(in crate::sst) fn stored_value<'a>(
    record: &'a [u8],
    at: ValueHandle,
    path: &Path,
    unique_id: &[u8; 16],
) -> Result<StoredValue<'a>> {
    let compression = check_block(record, path, unique_id, at.offset)?;
    let payload = &record[..record.len() - TRAILER_BYTES];
    let raw_bytes = match compression {
        Compression::None => Some(payload.len()),
        _ => payload.first_chunk::<LENGTH_BYTES>().map(|len| u32::from_le_bytes(*len) as usize),
    };
    if raw_bytes != Some(at.raw_bytes as usize) {
        let what = format!("value: {raw_bytes:?} raw bytes where the handle says {}", at.raw_bytes);
        return Err(Error::corrupt(path, at.offset, what));
    }
    Ok(StoredValue { payload, compression, raw_bytes: at.raw_bytes })
}

/// The user's value in the value record `raw`, which lies at `at`, after all checks.
pub(in crate::sst) fn unpack(
    mut raw: Vec<u8>,
    at: ValueHandle,
    path: &Path,
    unique_id: &[u8; 16],
) -> Result<Vec<u8>> {
    let stored = stored_value(&raw, at, path, unique_id)?;
    if stored.compression == Compression::None {
        raw.truncate(raw.len() - TRAILER_BYTES);
        return Ok(raw);
    }
    let mut value = Vec::new();
    decompress(stored.compression, stored.payload, &mut value)
        .map_err(|what| Error::corrupt(path, at.offset, what))?;
    Ok(value)
}
