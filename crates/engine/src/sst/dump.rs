//! Prints a table or a value file as text for a human reader.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{Error, ErrorKind, FileNo, Result};
use archipelago_env::{IoContext, RandomFile};

use super::block::BlockCache;
use super::format::Layout;
use super::properties::ValueArea;
use super::reader::{TableReadOptions, TableReader};
use super::value_file::{ValueKeys, ValueTable};
use crate::iter::InternalIterator;
use crate::key::{KeyRef, Kind};
use crate::value_ref::Reference;

/// Length in bytes of the magic number at the end of a file.
const MAGIC_BYTES: u64 = 8;
/// Bytes of a table that a dump reads at a time.
const READAHEAD_BYTES: u64 = 1 << 20;

/// Records that a dump shows besides the properties of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpedRecords {
    /// Largest number of records.
    pub records_max: usize,
    /// Whether the records of a value file are shown with their values.
    pub with_values: bool,
}

/// Prints the table or value file `file`, which lies at `path`: its properties, its range
/// tombstones, and the records that `shown` asks for. `context` is the context of the reads.
/// Errors: `Corrupt` if the file is neither, or if a part that was read is damaged.
pub fn dump_file(
    file: &Arc<dyn RandomFile>,
    path: &Path,
    shown: DumpedRecords,
    context: IoContext,
) -> Result<String> {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(0, &budget);
    let mut text = String::new();
    if is_value_file(&**file, context)? {
        let table = ValueTable::open_foreign(file, path, FileNo(0), &cache, &budget)?.table;
        table.dump(&mut text, shown, context)?;
    } else {
        let table = TableReader::open(Arc::clone(file), path, None, &cache, &budget)?;
        let options = TableReadOptions::job(context, READAHEAD_BYTES);
        table.dump(&mut text, shown.records_max, options)?;
    }
    Ok(text)
}

/// Whether `file` ends with the magic number of value files.
fn is_value_file(file: &dyn RandomFile, context: IoContext) -> Result<bool> {
    let Some(at) = file.len().checked_sub(MAGIC_BYTES) else { return Ok(false) };
    let mut magic = [0; MAGIC_BYTES as usize];
    file.read_exact_at(at, &mut magic, context)?;
    Ok(Layout::of(&magic) == Some(Layout::Values))
}

fn failed(_: std::fmt::Error) -> Error {
    Error::new(ErrorKind::Io, "cannot write the dump")
}

impl TableReader {
    /// Writes properties and range tombstones, and with `records` at most that many records. A
    /// failed write to `out` is an error of kind `Io`.
    pub fn dump(
        self: &Arc<Self>,
        out: &mut dyn Write,
        records: usize,
        options: TableReadOptions,
    ) -> Result<()> {
        self.dump_head(out).map_err(failed)?;
        for tombstone in self.tombstones.list() {
            let (start, end) = (tombstone.start.escape_ascii(), tombstone.end.escape_ascii());
            writeln!(out, "delete range \"{start}\"..\"{end}\" @{}", tombstone.seq)
                .map_err(failed)?;
        }
        let mut iter = self.iter(options);
        iter.seek_to_first();
        for _ in 0..records {
            if !iter.valid() {
                break;
            }
            if let Some(key) = KeyRef::decode(iter.key()) {
                let (name, value) = (key.user_key.escape_ascii(), shown_value(key, iter.value()));
                writeln!(out, "\"{name}\" @{} {:?} {value}", key.seq, key.kind).map_err(failed)?;
            }
            iter.next();
        }
        iter.status()
    }

    fn dump_head(&self, out: &mut dyn Write) -> std::fmt::Result {
        let p = &self.properties;
        writeln!(out, "file                {}", self.path.display())?;
        writeln!(out, "bytes               {}", self.footer.file_bytes)?;
        let id = u128::from_be_bytes(self.footer.unique_id);
        writeln!(out, "unique id           {id:032x}")?;
        writeln!(out, "format version      {}", self.footer.layout.version())?;
        writeln!(out, "column family       {} \"{}\"", p.cf, p.cf_name.escape_debug())?;
        writeln!(out, "created (unix ms)   {}", p.created_unix_ms)?;
        writeln!(out, "records             {}", p.entries)?;
        writeln!(out, "  deletions         {}", p.deletions)?;
        writeln!(out, "  merge operands    {}", p.content.merges)?;
        writeln!(out, "  expiring          {}", p.content.expiring)?;
        let [earliest, .., latest] = p.content.expiry_ms;
        if p.content.expiring > 0 {
            writeln!(out, "    between (unix ms) {earliest} and {latest}")?;
        }
        writeln!(out, "  for snapshots     {}", p.content.shadowed)?;
        writeln!(out, "user keys           {}", p.content.user_keys)?;
        writeln!(out, "range deletions     {}", p.range_deletions)?;
        writeln!(out, "smallest key        \"{}\"", p.smallest.escape_ascii())?;
        let exclusive = if p.largest_exclusive { " (exclusive)" } else { "" };
        writeln!(out, "largest key         \"{}\"{exclusive}", p.largest.escape_ascii())?;
        writeln!(out, "median key          \"{}\"", p.median_key.escape_ascii())?;
        writeln!(out, "sequence numbers    {}..={}", p.smallest_seq, p.largest_seq)?;
        if let Some(global) = self.global_seq {
            writeln!(out, "  read as           {global}")?;
        }
        writeln!(
            out,
            "raw bytes           {} keys, {} values",
            p.raw_key_bytes, p.raw_value_bytes
        )?;
        if let Some(ValueArea { bytes, raw_bytes }) = p.value_area {
            writeln!(out, "value area          {bytes} bytes, {raw_bytes} before compression")?;
        }
        for file in p.refs.by_file() {
            let (records, bytes) = (file.records, file.bytes);
            let no = file.no;
            writeln!(out, "separated values    {records} in file {no:06}, {bytes} bytes there")?;
        }
        writeln!(out, "data                {} bytes, {} blocks", p.data_bytes, p.data_blocks)?;
        let levels = if self.footer.partitioned { 2 } else { 1 };
        writeln!(out, "index               {} bytes, {levels} level(s)", p.index_bytes)?;
        let bits = p.bloom_bits_per_key;
        writeln!(out, "filter              {} bytes, {bits} bits a key", p.filter_bytes)?;
        let filter = p.content.compaction_filter.as_deref().unwrap_or("none");
        writeln!(out, "compaction filter   {}", filter.escape_debug())?;
        writeln!(out, "compression         {:?}", p.content.compression)
    }
}

/// The stored value of a record of a table, as readable text.
fn shown_value(key: KeyRef<'_>, stored: &[u8]) -> String {
    if key.kind != Kind::Indirect {
        return format!("\"{}\"", stored.escape_ascii());
    }
    let Reference { file_no, offset, stored_bytes, raw_bytes, expiry_unix_ms } =
        match Reference::decode(stored) {
            Ok(reference) => reference,
            Err(bad) => return format!("\"{}\" ({bad})", stored.escape_ascii()),
        };
    let mut text = format!("in file {:06}", file_no.0);
    if let Some(offset) = offset {
        text += &format!(" at {offset}");
    }
    text += &format!(": {raw_bytes} bytes, {stored_bytes} stored");
    if let Some(expiry) = expiry_unix_ms {
        text += &format!(", expires at {expiry} (unix ms)");
    }
    text
}

impl ValueTable {
    /// Writes the properties of the value file, and the keys that `shown` asks for, with their
    /// handles.
    pub(super) fn dump(
        &self,
        out: &mut dyn Write,
        shown: DumpedRecords,
        context: IoContext,
    ) -> Result<()> {
        let mut keys: ValueKeys = self.keys(context)?;
        keys.table().dump_head(out).map_err(failed)?;
        let options = TableReadOptions::job(context, READAHEAD_BYTES);
        for _ in 0..shown.records_max {
            let Some((internal_key, at)) = keys.current()? else { break };
            if let Some(key) = KeyRef::decode(internal_key) {
                let (name, seq, offset) = (key.user_key.escape_ascii(), key.seq, at.offset);
                let (raw, stored) = (at.raw_bytes, at.stored_bytes);
                write!(out, "\"{name}\" @{seq} at {offset}: {raw} bytes, {stored} stored")
                    .map_err(failed)?;
            }
            let value = if shown.with_values { Some(self.read_at(at, &options)?) } else { None };
            match value {
                Some(value) => writeln!(out, " \"{}\"", value.escape_ascii()),
                None => writeln!(out),
            }
            .map_err(failed)?;
            keys.advance();
        }
        keys.current().map(drop)
    }
}
