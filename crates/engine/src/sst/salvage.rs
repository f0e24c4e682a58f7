//! Reads the undamaged blocks of a damaged table.
//!
//! Each block has a checksum that is bound to the file's unique id and to the block's offset. So a
//! block that passes is a block of this table, whatever happened to the rest of the file. If the
//! index is whole, it names every data block. Without an index (a file that was cut has none) the
//! blocks are found one after the other, because they lie without gaps from offset 0. The end of a
//! block is the first offset at which its checksum matches.
//!
//! Invariants:
//! 1. A record is visited only if its whole block passed its checksum, parses, and is in order.
//! 2. Every key of the table of which a record was not visited lies in a lost range
//!    ([`TableSalvage::lost`]).
//! 3. The visited records are in ascending internal-key order.
//!
//! A read that fails counts as damage of the block, because a bad sector causes it. Only an error
//! of the visitor ends the salvage. Nothing is written. Cost: one read of the file; without an
//! index, one checksum step per byte in addition.

use std::path::Path;

use archipelago_base::checksum::{block_crc, crc_append};
use archipelago_base::{Result, SeqNo};
use archipelago_env::{FileClass, IoContext, IoPurpose, RandomFile};

use super::data_block::{Cursor, DataBlock};
use super::format::{FOOTER_BYTES, Footer, Handle, Layout, TRAILER_BYTES, open_block};
use super::index::IndexBlock;
use super::properties::Properties;
use super::reader::{decode_tombstones, read_payload, read_raw};
use crate::file_meta::FileMeta;
use crate::key::{self, KeyRange, Kind};
use crate::tombstone::RangeTombstone;

/// Number of bytes that a search for the end of a block reads at a time.
const SCAN_BYTES: u64 = 256 << 10;

/// Result of reading a damaged table.
#[derive(Clone, Debug, Default)]
pub struct TableSalvage {
    /// Number of records that were visited.
    pub records: u64,
    /// Ranges of which records are lost, in key order.
    pub lost: Vec<KeyRange>,
    /// The range tombstones; `None` if they are lost.
    pub tombstones: Option<Vec<RangeTombstone>>,
    /// Properties of the file, if they are undamaged.
    pub properties: Option<Properties>,
    /// Whether the file is not the table that the manifest names. Nothing was visited then.
    pub is_foreign: bool,
}

/// Receives records: encoded internal key and stored value.
pub type RecordVisitor<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Visits every undamaged record of `file`. `meta` is the table's metadata from a manifest. If it
/// has a global sequence number, records are visited with that number. Errors: those of `visit`.
pub fn salvage_table(
    file: &dyn RandomFile,
    path: &Path,
    meta: Option<&FileMeta>,
    visit: &mut RecordVisitor<'_>,
) -> Result<TableSalvage> {
    let mut salvage = Salvage::new(file, path, meta);
    if salvage.found.is_foreign {
        salvage.lose(None, None);
        return Ok(salvage.found);
    }
    salvage.read_tombstones();
    let Some(unique_id) = salvage.unique_id else {
        salvage.lose(None, None);
        return Ok(salvage.found);
    };
    match salvage.index() {
        Some(blocks) => salvage.by_index(&unique_id, &blocks, visit)?,
        None => salvage.by_scan(&unique_id, visit)?,
    }
    Ok(salvage.found)
}

/// A data block and the largest key that it may have.
struct IndexedBlock {
    handle: Handle,
    separator: Vec<u8>,
}

struct Salvage<'a> {
    file: &'a dyn RandomFile,
    path: &'a Path,
    footer: Option<Footer>,
    unique_id: Option<[u8; 16]>,
    global_seq: Option<SeqNo>,
    /// Smallest and largest key of the table, if they are known.
    bounds: Option<(Vec<u8>, Vec<u8>)>,
    /// Number of point records that the table had.
    entries: Option<u64>,
    /// Whether the table is known to have no range tombstones.
    without_tombstones: bool,
    last_key: Vec<u8>,
    found: TableSalvage,
}

fn context() -> IoContext {
    IoContext::new(FileClass::Sst, IoPurpose::Maintenance)
}

impl<'a> Salvage<'a> {
    fn new(file: &'a dyn RandomFile, path: &'a Path, meta: Option<&FileMeta>) -> Self {
        let footer = read_footer(file, path);
        let mut found = TableSalvage::default();
        if let (Some(footer), Some(meta)) = (&footer, meta) {
            found.is_foreign = footer.unique_id != meta.unique_id;
        }
        found.properties = footer.as_ref().and_then(|footer| {
            let payload = read_payload(file, path, footer, footer.properties, context()).ok()?;
            Properties::decode(&payload, path, footer.properties.offset).ok()
        });
        let said = found.properties.as_ref().filter(|_| !found.is_foreign);
        let bounds = meta
            .map(|meta| (meta.smallest.clone(), meta.largest.clone()))
            .or_else(|| said.map(|said| (said.smallest.clone(), said.largest.clone())));
        let entries = meta.map(|meta| meta.entries).or_else(|| said.map(|said| said.entries));
        let unique_id =
            meta.map(|meta| meta.unique_id).or_else(|| footer.as_ref().map(|f| f.unique_id));
        let without_tombstones = meta.is_some_and(|meta| meta.range_deletions == 0);
        Self {
            file,
            path,
            footer,
            unique_id,
            global_seq: meta.and_then(|meta| meta.global_seq).map(SeqNo),
            bounds,
            entries,
            without_tombstones,
            last_key: Vec::new(),
            found,
        }
    }

    /// Notes that records between two keys, both included, are lost. `None` stands for the bounds
    /// of the table.
    fn lose(&mut self, from: Option<&[u8]>, through: Option<&[u8]>) {
        let (low, high) = match &self.bounds {
            Some((low, high)) => (Some(low.as_slice()), Some(high.as_slice())),
            None => (None, None),
        };
        let start = from.max(low).unwrap_or_default().to_vec();
        // The end is exclusive, but the key itself may be lost.
        let end = match (through, high) {
            (Some(through), Some(high)) => Some(through.min(high)),
            (through, high) => through.or(high),
        };
        let end = end.map(|end| [end, &[0]].concat());
        let range = KeyRange { start, end };
        if range.is_empty() {
            return;
        }
        match self.found.lost.last_mut() {
            Some(last) if last.overlaps(&range) || last.end.as_ref() == Some(&range.start) => {
                last.end = range.end;
            }
            _ => self.found.lost.push(range),
        }
    }

    fn read_tombstones(&mut self) {
        self.found.tombstones = match &self.footer {
            Some(footer) if footer.tombstones.is_some() => {
                let read = read_payload(self.file, self.path, footer, footer.tombstones, context());
                read.ok().and_then(|bytes| decode_tombstones(&bytes, self.global_seq))
            }
            Some(_) => Some(Vec::new()),
            None if self.without_tombstones => Some(Vec::new()),
            None => None,
        };
    }

    /// Every data block that the index names; `None` if a part of the index is damaged.
    fn index(&self) -> Option<Vec<IndexedBlock>> {
        let footer = self.footer.as_ref()?;
        let read = |handle: Handle| {
            let payload = read_payload(self.file, self.path, footer, handle, context()).ok()?;
            IndexBlock::parse(payload, footer.file_bytes).ok()
        };
        let top = read(footer.index).filter(|index| index.is_top() == footer.partitioned)?;
        let mut blocks = Vec::new();
        let mut add = |index: &IndexBlock| {
            for position in 0..index.len() {
                let entry = index.entry(position);
                let separator = [index.prefix(), entry.suffix].concat();
                blocks.push(IndexedBlock { handle: entry.handle, separator });
            }
        };
        if !footer.partitioned {
            add(&top);
            return Some(blocks);
        }
        for position in 0..top.len() {
            let leaf = read(top.entry(position).handle).filter(|leaf| !leaf.is_top())?;
            add(&leaf);
        }
        Some(blocks)
    }

    fn by_index(
        &mut self,
        unique_id: &[u8; 16],
        blocks: &[IndexedBlock],
        visit: &mut RecordVisitor<'_>,
    ) -> Result<()> {
        for (position, block) in blocks.iter().enumerate() {
            let whole = read_raw(self.file, block.handle, context())
                .and_then(|raw| open_block(raw, self.path, unique_id, block.handle.offset))
                .ok()
                .and_then(|payload| DataBlock::parse(payload).ok())
                .filter(|data| self.is_in_order(data));
            match whole {
                Some(data) => self.visit(&data, visit)?,
                None => {
                    let before = position.checked_sub(1).map(|before| &blocks[before].separator);
                    self.lose(before.map(Vec::as_slice), Some(&block.separator));
                }
            }
        }
        Ok(())
    }

    fn by_scan(&mut self, unique_id: &[u8; 16], visit: &mut RecordVisitor<'_>) -> Result<()> {
        let mut at = 0;
        while self.entries.is_none_or(|entries| self.found.records < entries) {
            let Some((payload, end)) = self.next_block(unique_id, at) else { break };
            let data = DataBlock::parse(payload).ok().filter(|data| self.is_in_order(data));
            let Some(data) = data else { break };
            self.visit(&data, visit)?;
            at = end;
        }
        if self.entries != Some(self.found.records) {
            let last = (!self.last_key.is_empty()).then(|| key::user_key(&self.last_key).to_vec());
            self.lose(last.as_deref(), None);
        }
        Ok(())
    }

    /// The block that begins at `at`, decompressed, and its end: the first offset at which its
    /// checksum matches.
    fn next_block(&self, unique_id: &[u8; 16], at: u64) -> Option<(Vec<u8>, u64)> {
        let len = self.file.len();
        let mut bytes: Vec<u8> = Vec::new();
        let mut crc = block_crc(unique_id, at, &[]);
        let mut covered = 0;
        loop {
            let from = at + bytes.len() as u64;
            let take = SCAN_BYTES.min(len.saturating_sub(from)) as usize;
            let old = bytes.len();
            bytes.resize(old + take, 0);
            self.file.read_exact_at(from, &mut bytes[old..], context()).ok()?;
            while covered + TRAILER_BYTES <= bytes.len() {
                crc = crc_append(crc, &bytes[covered..=covered]);
                covered += 1;
                let stored = bytes[covered..].first_chunk::<4>()?;
                if covered > 1 && u32::from_le_bytes(*stored) == crc {
                    let raw = bytes[..covered + 4].to_vec();
                    let end = at + raw.len() as u64;
                    return open_block(raw, self.path, unique_id, at).ok().map(|out| (out, end));
                }
            }
            if take == 0 {
                return None;
            }
        }
    }

    /// Whether every record of a block can be read, follows the last visited record, and lies
    /// within the bounds of the table.
    fn is_in_order(&self, data: &DataBlock) -> bool {
        let mut last = self.last_key.clone();
        let mut cursor = Cursor::default();
        if cursor.seek_to_first(data).is_err() {
            return false;
        }
        while cursor.valid() {
            let encoded = cursor.key();
            let is_point = encoded.len() >= key::TRAILER_BYTES
                && Kind::from_byte(key::trailer(encoded) as u8)
                    .is_some_and(|kind| kind != Kind::RangeDelete);
            if !is_point || !last.is_empty() && key::compare(&last, encoded).is_ge() {
                return false;
            }
            let user_key = key::user_key(encoded);
            let inside = self.bounds.as_ref().is_none_or(|(low, high)| {
                low.as_slice() <= user_key && user_key <= high.as_slice()
            });
            if !inside {
                return false;
            }
            last.clear();
            last.extend_from_slice(encoded);
            if cursor.next(data).is_err() {
                return false;
            }
        }
        true
    }

    fn visit(&mut self, data: &DataBlock, visit: &mut RecordVisitor<'_>) -> Result<()> {
        let mut cursor = Cursor::default();
        let mut more = cursor.seek_to_first(data).is_ok();
        while more && cursor.valid() {
            self.last_key.clear();
            self.last_key.extend_from_slice(cursor.key());
            if let Some(global) = self.global_seq {
                cursor.set_trailer(global.0 << 8 | (key::trailer(&self.last_key) & 0xff));
            }
            visit(cursor.key(), cursor.value(data))?;
            self.found.records += 1;
            more = cursor.next(data).is_ok();
        }
        Ok(())
    }
}

fn read_footer(file: &dyn RandomFile, path: &Path) -> Option<Footer> {
    let at = file.len().checked_sub(FOOTER_BYTES as u64)?;
    let mut bytes = [0; FOOTER_BYTES];
    file.read_exact_at(at, &mut bytes, context()).ok()?;
    Footer::decode(&bytes, path, file.len(), Layout::Table).ok()
}
