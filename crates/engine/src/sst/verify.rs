//! Reads a whole table and checks everything that can be checked.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::checksum::{crc_append, hash64};
use archipelago_base::{Error, FileNo, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, RandomFile};

use super::block::BlockCache;
use super::data_block::{Cursor, DataBlock};
use super::filter::BloomRef;
use super::format::{FOOTER_BYTES, Footer, Handle};
use super::index::{IndexBlock, IndexEntry, RecordHead};
use super::properties::{Properties, ValueArea};
use super::reader::{TableReader, decode_tombstones, read_payload};
use super::value_file::{self, ValueTable};
use crate::file_meta::FileMeta;
use crate::key::{self, KEY_BYTES_MAX, Kind, VALUE_BYTES_MAX};
use crate::tombstone::TombstoneSet;
use crate::value_ref::{Reference, ValueFileMeta, ValueHandle};

/// Bytes of the expiry before the value of a [`Kind::PutExpiring`] record.
const EXPIRY_BYTES: usize = 8;
/// Bytes of a key that an error shows.
const KEY_SHOWN_BYTES: usize = 64;
/// Number of bytes read at a time for the checksum of the file.
const CHUNK_BYTES: usize = 1 << 20;

impl TableReader {
    /// Reads the file again, past every cache, and checks all of it:
    /// - the checksum of the file (if the manifest has it) and of every block,
    /// - that blocks lie without gaps,
    /// - the order of records and their bounds in the index,
    /// - that filters contain their keys,
    /// - the counts in the properties, and the sums over the references.
    ///
    /// For a value file it also checks every value record, and that the handles tile the value
    /// area. Costs two reads of the whole file.
    pub fn verify(&self, context: IoContext) -> Result<()> {
        self.checked(context).map(drop)
    }

    /// Does the work of [`TableReader::verify`]. Returns the text of [`ForeignTable::unfit`].
    fn checked(&self, context: IoContext) -> Result<Option<String>> {
        let mut tail = [0; FOOTER_BYTES];
        let at = self.footer.file_bytes - FOOTER_BYTES as u64;
        self.file.read_exact_at(at, &mut tail, context)?;
        let layout = self.footer.layout;
        let footer = Footer::decode(&tail, &self.path, self.file.len(), layout)?;
        if footer != self.footer {
            return Err(Error::corrupt(
                &self.path,
                at,
                "footer: changed since the file was opened",
            ));
        }
        let mut check = Check::new(self, context);
        check.index()?;
        check.rest()?;
        check.counts()?;
        if let Some(expected) = self.checksum {
            let computed = checksum(&*self.file, context)?;
            if computed != expected {
                let what = format!(
                    "checksum of the file is {computed:#010x}, the manifest says {expected:#010x}"
                );
                return Err(Error::corrupt(&self.path, 0, what));
            }
        }
        Ok(check.unfit)
    }
}

/// CRC-32C of a whole file.
fn checksum(file: &dyn RandomFile, context: IoContext) -> Result<u32> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let (mut crc, mut at) = (0, 0);
    while at < file.len() {
        let len = (file.len() - at).min(CHUNK_BYTES as u64) as usize;
        file.read_exact_at(at, &mut chunk[..len], context)?;
        crc = crc_append(crc, &chunk[..len]);
        at += len as u64;
    }
    Ok(crc)
}

/// A table that was not written by this database.
#[derive(Clone, Debug)]
pub struct ForeignTable {
    /// Metadata as a manifest would have it. `global_seq` is `None`; the ingestion sets it.
    pub meta: FileMeta,
    /// Properties of the file.
    pub properties: Properties,
    /// Description of a record that no `SstWriter` writes, if there is one. Such a record is a
    /// second one of its key, exceeds the largest length, or lacks its expiry.
    pub unfit: Option<String>,
}

/// Verifies the file at `path`, which was made elsewhere, and derives its metadata as file `no`.
/// The errors are those of [`TableReader::open`] and [`TableReader::verify`].
pub fn read_foreign_table(
    file: &Arc<dyn RandomFile>,
    path: &Path,
    no: FileNo,
) -> Result<ForeignTable> {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(0, &budget);
    let reader = TableReader::open(Arc::clone(file), path, None, &cache, &budget)?;
    let context = IoContext::new(FileClass::Sst, IoPurpose::Ingest);
    let unfit = reader.checked(context)?;
    let crc = checksum(&**file, context)?;
    let properties = reader.properties.clone();
    let meta = properties.to_meta(no, reader.footer.unique_id, reader.footer.file_bytes, crc);
    Ok(ForeignTable { meta, properties, unfit })
}

/// Metadata of the open table, from the table itself, with the number and the checksum of `meta`.
pub(crate) fn opened_meta(table: &TableReader, meta: &FileMeta) -> FileMeta {
    let (footer, no) = (&table.footer, meta.file_no());
    table.properties.to_meta(no, footer.unique_id, footer.file_bytes, meta.checksum)
}

/// Metadata of the value file `file` at `path`, from the file itself, with the number, the checksum
/// and the basis of `meta`. The errors are those of [`TableReader::open`]. Costs the reads of the
/// index.
pub(crate) fn opened_value_meta(
    file: &Arc<dyn RandomFile>,
    path: &Path,
    meta: &ValueFileMeta,
    cache: &Arc<BlockCache>,
    budget: &Arc<ByteBudget>,
) -> Result<ValueFileMeta> {
    let found = ValueTable::open_foreign(file, path, meta.file_no(), cache, budget)?.meta;
    Ok(ValueFileMeta { checksum: meta.checksum, basis: meta.basis, ..found })
}

/// Verifies the value file `file` at `path`, which `meta` describes. The errors are those of
/// [`TableReader::verify`]. Costs two reads of the file.
pub fn verify_value_file(
    file: Arc<dyn RandomFile>,
    path: &Path,
    meta: &ValueFileMeta,
    context: IoContext,
) -> Result<()> {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(0, &budget);
    ValueTable::open(file, path, meta, &cache, &budget)?.verify(context)
}

/// Verifies the value file at `path`, which no manifest names, and derives its metadata as file
/// `no`. The errors are those of [`TableReader::verify`]. Costs two reads of the file.
pub fn read_foreign_value_file(
    file: &Arc<dyn RandomFile>,
    path: &Path,
    no: FileNo,
) -> Result<ValueFileMeta> {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(0, &budget);
    let found = ValueTable::open_foreign(file, path, no, &cache, &budget)?;
    let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
    found.keys.verify(context)?;
    Ok(ValueFileMeta { checksum: checksum(&**file, context)?, ..found.meta })
}

/// A check that is in progress.
struct Check<'a> {
    table: &'a TableReader,
    context: IoContext,
    /// End of the blocks that were checked so far.
    data_end: u64,
    /// Blocks after the data, to be checked for gaps.
    others: Vec<Handle>,
    last_key: Vec<u8>,
    /// First record that no `SstWriter` writes, as in [`ForeignTable::unfit`].
    unfit: Option<String>,
    seen: Properties,
    filter: Option<Vec<u8>>,
    /// The values of a value file whose handles were checked so far.
    values: ValueScan,
}

impl<'a> Check<'a> {
    fn new(table: &'a TableReader, context: IoContext) -> Self {
        let area = table.properties.value_area.map(|_| ValueArea { bytes: 0, raw_bytes: 0 });
        let seen = Properties { smallest_seq: u64::MAX, value_area: area, ..Properties::default() };
        let (last_key, others) = (Vec::new(), Vec::new());
        let (unfit, filter) = (None, None);
        let data_end = table.properties.data_start();
        let values = ValueScan::default();
        Self { table, context, data_end, others, last_key, unfit, seen, filter, values }
    }

    fn corrupt(&self, offset: u64, what: &str) -> Error {
        Error::corrupt(&self.table.path, offset, what)
    }

    fn read(&mut self, handle: Handle) -> Result<Vec<u8>> {
        let table = self.table;
        read_payload(&*table.file, &table.path, &table.footer, handle, self.context)
    }

    fn read_index(&mut self, handle: Handle) -> Result<IndexBlock> {
        let payload = self.read(handle)?;
        self.others.push(handle);
        self.seen.index_bytes += u64::from(handle.size);
        IndexBlock::parse(payload, self.table.footer.file_bytes)
            .map_err(|_| self.corrupt(handle.offset, "index block: malformed"))
    }

    fn read_filter(&mut self, handle: Handle) -> Result<()> {
        self.filter = None;
        if handle.is_some() {
            let payload = self.read(handle)?;
            BloomRef::new(&payload)
                .ok_or_else(|| self.corrupt(handle.offset, "filter block: malformed"))?;
            self.others.push(handle);
            self.seen.filter_bytes += u64::from(handle.size);
            self.filter = Some(payload);
        }
        Ok(())
    }

    /// Checks every index block and the data below.
    fn index(&mut self) -> Result<()> {
        let footer = &self.table.footer;
        let index = self.read_index(footer.index)?;
        if index.is_top() != footer.partitioned {
            return Err(self.corrupt(footer.index.offset, "index block: wrong level"));
        }
        if !footer.partitioned {
            self.read_filter(footer.filter)?;
            return self.data_blocks(&index, footer.index);
        }
        for position in 0..index.len() {
            let entry = index.entry(position);
            self.read_filter(entry.filter)?;
            let leaf = self.read_index(entry.handle)?;
            if leaf.is_top() || leaf.len() == 0 {
                return Err(self.corrupt(entry.handle.offset, "index block: wrong level"));
            }
            self.data_blocks(&leaf, entry.handle)?;
            self.check_bound(&index, &entry, footer.index)?;
        }
        Ok(())
    }

    fn data_blocks(&mut self, index: &IndexBlock, at: Handle) -> Result<()> {
        for position in 0..index.len() {
            let entry = index.entry(position);
            if entry.handle.offset != self.data_end {
                return Err(self.corrupt(entry.handle.offset, "data block: not behind the last"));
            }
            self.data_end = entry.handle.end().unwrap_or(u64::MAX);
            let payload = self.read(entry.handle)?;
            let block = DataBlock::parse(payload)
                .map_err(|_| self.corrupt(entry.handle.offset, "data block: malformed"))?;
            if let Some(record) = entry.record {
                self.check_head(index, &entry, record, &block)?;
            }
            self.records(&block, entry.handle)?;
            self.check_bound(index, &entry, at)?;
            self.seen.data_blocks += 1;
        }
        Ok(())
    }

    /// Checks that a block has the one record that its index entry describes.
    fn check_head(
        &self,
        index: &IndexBlock,
        entry: &IndexEntry<'_>,
        record: RecordHead,
        block: &DataBlock,
    ) -> Result<()> {
        let key = [index.prefix(), entry.suffix].concat();
        let mut cursor = Cursor::default();
        let mut has_one = cursor.seek_to_first(block).is_ok() && cursor.valid() && {
            let stored = key::trailer(cursor.key());
            key::user_key(cursor.key()) == key
                && stored == record.trailer
                && RecordHead::of(stored, cursor.value(block)) == Some(record)
        };
        has_one = has_one && cursor.next(block).is_ok() && !cursor.valid();
        let what = "index block: another record than the data block has";
        if has_one { Ok(()) } else { Err(self.corrupt(entry.handle.offset, what)) }
    }

    /// Checks that the separator of a block is not before its last key and that it says whether the
    /// key continues.
    fn check_bound(&self, index: &IndexBlock, entry: &IndexEntry<'_>, at: Handle) -> Result<()> {
        let separator = [index.prefix(), entry.suffix].concat();
        let last = key::user_key(&self.last_key);
        let fits = match entry.continues {
            None => separator.as_slice() >= last,
            Some(trailer) => separator == last && trailer == key::trailer(&self.last_key),
        };
        if fits { Ok(()) } else { Err(self.corrupt(at.offset, "index block: wrong separator")) }
    }

    fn records(&mut self, block: &DataBlock, handle: Handle) -> Result<()> {
        let malformed =
            || Error::corrupt(&self.table.path, handle.offset, "data block: malformed record");
        let mut cursor = Cursor::default();
        cursor.seek_to_first(block).map_err(|_| malformed())?;
        while cursor.valid() {
            if !self.last_key.is_empty() && key::compare(&self.last_key, cursor.key()).is_ge() {
                return Err(self.corrupt(handle.offset, "data block: records out of order"));
            }
            let (user_key, trailer) = (key::user_key(cursor.key()), key::trailer(cursor.key()));
            let hash = hash64(user_key);
            let known = self.filter.as_deref().and_then(BloomRef::new);
            if known.is_some_and(|filter| !filter.may_contain(hash)) {
                return Err(self.corrupt(handle.offset, "filter does not know a key of this block"));
            }
            let value = cursor.value(block);
            let repeats = !self.last_key.is_empty() && key::user_key(&self.last_key) == user_key;
            if let Some(what) = unfit(trailer, user_key, value, repeats) {
                let key = user_key.get(..KEY_SHOWN_BYTES).unwrap_or(user_key).escape_ascii();
                self.unfit.get_or_insert_with(|| format!("the record of key \"{key}\" {what}"));
            }
            let found = block.versions(user_key, trailer, hash).and_then(|mut all| all.next());
            if found != Ok(Some((trailer, value))) {
                return Err(self.corrupt(handle.offset, "data block: hash index misses a key"));
            }
            let is_new = self.last_key.is_empty() || key::user_key(&self.last_key) != user_key;
            self.seen.content.user_keys += u64::from(is_new);
            count(&mut self.seen, trailer, user_key, value)
                .map_err(|what| self.corrupt(handle.offset, &format!("data block: {what}")))?;
            if self.seen.value_area.is_some() {
                self.value(value, handle)?;
            }
            self.last_key.clear();
            self.last_key.extend_from_slice(cursor.key());
            cursor.next(block).map_err(|_| malformed())?;
        }
        Ok(())
    }

    /// Checks that the handle in a key block names the value record after the last one, and that
    /// the record is whole.
    fn value(&mut self, stored: &[u8], block: Handle) -> Result<()> {
        let (table, area_bytes) = (self.table, self.table.properties.data_start());
        let seen = self.seen.value_area.get_or_insert(ValueArea { bytes: 0, raw_bytes: 0 });
        let at = ValueHandle::decode(stored, area_bytes)
            .filter(|at| at.offset == seen.bytes)
            .ok_or_else(|| {
                let what = "key block: a handle that is not behind the last one";
                Error::corrupt(&table.path, block.offset, what)
            })?;
        seen.bytes += at.record_bytes();
        seen.raw_bytes += u64::from(at.raw_bytes);
        let record = self.values.take(&*table.file, at, area_bytes, self.context)?;
        value_file::unpack(record, at, &table.path, &table.footer.unique_id).map(drop)
    }

    /// Checks tombstones and properties, and that no gaps lie between the blocks.
    fn rest(&mut self) -> Result<()> {
        let table = self.table;
        let footer = &table.footer;
        if footer.tombstones.is_some() {
            let payload = self.read(footer.tombstones)?;
            let list = decode_tombstones(&payload, table.global_seq)
                .filter(|list| TombstoneSet::new(list) == *table.tombstones)
                .ok_or_else(|| {
                    self.corrupt(footer.tombstones.offset, "range tombstones: malformed")
                })?;
            let (low, high) = (&*table.properties.smallest, &*table.properties.largest);
            if list.iter().any(|tombstone| &*tombstone.start < low || &*tombstone.end > high) {
                let what = "range tombstones: one lies outside the bounds";
                return Err(self.corrupt(footer.tombstones.offset, what));
            }
            self.seen.range_deletions = list.len() as u64;
            self.others.push(footer.tombstones);
        }
        let payload = self.read(footer.properties)?;
        let properties = Properties::decode(&payload, &table.path, footer.properties.offset)?;
        if properties != table.properties {
            return Err(self.corrupt(footer.properties.offset, "properties: changed"));
        }
        self.others.push(footer.properties);
        self.others.sort_by_key(|handle| handle.offset);
        let mut end = self.data_end;
        for handle in &self.others {
            if handle.offset != end {
                return Err(self.corrupt(end, "bytes that belong to no block"));
            }
            end = handle.end().unwrap_or(u64::MAX);
        }
        if end != footer.file_bytes - FOOTER_BYTES as u64 {
            return Err(self.corrupt(end, "bytes that belong to no block"));
        }
        Ok(())
    }

    fn counts(&self) -> Result<()> {
        let (seen, said) = (&self.seen, &self.table.properties);
        let pairs = [
            ("entries", seen.entries, said.entries),
            ("deletions", seen.deletions, said.deletions),
            ("merge operands", seen.content.merges, said.content.merges),
            ("expiring records", seen.content.expiring, said.content.expiring),
            ("user keys", seen.content.user_keys, said.content.user_keys),
            ("earliest expiry", seen.content.expiry_ms[0], said.content.expiry_ms[0]),
            ("latest expiry", seen.content.expiry_ms[4], said.content.expiry_ms[4]),
            ("range tombstones", seen.range_deletions, said.range_deletions),
            ("key bytes", seen.raw_key_bytes, said.raw_key_bytes),
            ("value bytes", seen.raw_value_bytes, said.raw_value_bytes),
            ("data blocks", seen.data_blocks, said.data_blocks),
            ("data bytes", self.data_end - said.data_start(), said.data_bytes),
            ("index bytes", seen.index_bytes, said.index_bytes),
            ("filter bytes", seen.filter_bytes, said.filter_bytes),
        ];
        for (name, seen, said) in pairs {
            if seen != said {
                let what = format!("properties: {said} {name}, but the file has {seen}");
                return Err(self.corrupt(self.table.footer.properties.offset, &what));
            }
        }
        if seen.refs != said.refs {
            let what = format!(
                "properties: references {:?}, but the records have {:?}",
                said.refs.by_file(),
                seen.refs.by_file()
            );
            return Err(self.corrupt(self.table.footer.properties.offset, &what));
        }
        if seen.value_area != said.value_area {
            let what = "properties: another value area than the handles tile";
            return Err(self.corrupt(self.table.footer.properties.offset, what));
        }
        let bounded = seen.entries == 0
            || (said.smallest_seq <= seen.smallest_seq
                && seen.largest_seq <= said.largest_seq
                && said.smallest <= seen.smallest
                && key::user_key(&self.last_key) <= said.largest.as_slice());
        match bounded {
            true => Ok(()),
            false => Err(self.corrupt(
                self.table.footer.properties.offset,
                "properties: a record lies outside the bounds",
            )),
        }
    }
}

/// Reason for which a record may not be in a file for ingestion; `None` if it may.
fn unfit(trailer: u64, user_key: &[u8], value: &[u8], repeats: bool) -> Option<&'static str> {
    let kind = Kind::from_byte(trailer as u8);
    if kind == Some(Kind::Indirect) {
        return Some("has its value in a value file of another database");
    }
    let is_expiring = kind == Some(Kind::PutExpiring);
    let prefix = if is_expiring { EXPIRY_BYTES } else { 0 };
    match value.len().checked_sub(prefix) {
        None => Some("is shorter than its expiry"),
        Some(value) if value > VALUE_BYTES_MAX => Some("has a value that is too large"),
        Some(_) if user_key.len() > KEY_BYTES_MAX => Some("has a key that is too long"),
        Some(_) => repeats.then_some("is not the only one of its key"),
    }
}

/// Counts a record of a table, or of a value file if `seen` has a value area.
fn count(seen: &mut Properties, trailer: u64, user_key: &[u8], value: &[u8]) -> Result<(), String> {
    let kind = Kind::from_byte(trailer as u8);
    if seen.value_area.is_some() && kind != Some(Kind::Indirect) {
        return Err("a record without a separated value".to_owned());
    }
    let expiry_ms = match kind {
        Some(Kind::Delete) => {
            seen.deletions += 1;
            None
        }
        Some(Kind::Merge) => {
            seen.content.merges += 1;
            None
        }
        Some(Kind::PutExpiring) => {
            Some(value.first_chunk().map_or(u64::MAX, |ms| u64::from_le_bytes(*ms)))
        }
        Some(Kind::Indirect) if seen.value_area.is_none() => {
            let reference = Reference::decode(value).map_err(|bad| bad.to_string())?;
            seen.refs.add(reference.file_no.0, u64::from(reference.stored_bytes));
            reference.expiry_unix_ms
        }
        Some(Kind::Put | Kind::Indirect) => None,
        _ => return Err("record of unknown kind".to_owned()),
    };
    if let Some(expiry_ms) = expiry_ms {
        let content = &mut seen.content;
        let [earliest, .., latest] = content.expiry_ms;
        let earliest = if content.expiring == 0 { expiry_ms } else { earliest.min(expiry_ms) };
        content.expiry_ms = [earliest, 0, 0, 0, latest.max(expiry_ms)];
        content.expiring += 1;
    }
    if seen.entries == 0 {
        seen.smallest = user_key.to_vec();
    }
    seen.entries += 1;
    seen.raw_key_bytes += user_key.len() as u64;
    seen.raw_value_bytes += value.len() as u64;
    let seq = key::trailer_seq(trailer).0;
    seen.smallest_seq = seen.smallest_seq.min(seq);
    seen.largest_seq = seen.largest_seq.max(seq);
    Ok(())
}

/// Reads value records from front to back, in large steps.
#[derive(Debug, Default)]
struct ValueScan {
    bytes: Vec<u8>,
    /// Offset in the file at which `bytes` begin.
    at: u64,
}

impl ValueScan {
    /// Returns the value record at `at`, which must lie within the value area of `area_bytes`.
    fn take(
        &mut self,
        file: &dyn RandomFile,
        at: ValueHandle,
        area_bytes: u64,
        context: IoContext,
    ) -> Result<Vec<u8>> {
        let len = at.record_bytes();
        let end = self.at + self.bytes.len() as u64;
        if at.offset < self.at || at.offset + len > end {
            let step = len.max(CHUNK_BYTES as u64).min(area_bytes - at.offset);
            self.bytes.resize(step as usize, 0);
            self.at = at.offset;
            file.read_exact_at(at.offset, &mut self.bytes, context)?;
        }
        let start = (at.offset - self.at) as usize;
        Ok(self.bytes[start..start + len as usize].to_vec())
    }
}
