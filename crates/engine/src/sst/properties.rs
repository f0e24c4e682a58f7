//! Properties of a file: counts, bounds, and how it was made.
//!
//! Stored as fields `tag (u8) ++ length (varint) ++ bytes`, with ascending tags; numbers are
//! varints. A reader may skip unknown tags from [`TAG_OPTIONAL`] on. It refuses any other unknown
//! tag.

use std::path::Path;

use archipelago_base::codec::{Reader, put_bytes, put_u8, put_varint};
use archipelago_base::{CfId, Error, FileNo, Result, SeqNo};

use super::format::Layout;
use crate::file_meta::FileMeta;
use crate::table_content::TableContent;
use crate::value_ref::{ValueRef, ValueRefs};

/// The only order of keys that exists.
const COMPARATOR: &[u8] = b"bytewise";
/// First of the tags that a reader may skip if it does not know them.
const TAG_OPTIONAL: u8 = 128;
/// Tag that marks a file as made for ingestion. Absent otherwise.
const TAG_FOR_INGESTION: u8 = 128;
/// Tag of the references by value file. Absent in a table without references.
const TAG_REFS: u8 = 129;
/// Tag of the value area. In every value file, and in no table.
const TAG_VALUE_AREA: u8 = 130;

/// The value area of a value file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueArea {
    /// Bytes of all value records with their trailers: the offset of the first data block.
    pub bytes: u64,
    /// Bytes of the users' values.
    pub raw_bytes: u64,
}

/// The properties block of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Number of point records.
    pub entries: u64,
    /// Number of point records that delete.
    pub deletions: u64,
    /// Number of range tombstones.
    pub range_deletions: u64,
    /// Bytes of user keys before encoding.
    pub raw_key_bytes: u64,
    /// Bytes of values before encoding.
    pub raw_value_bytes: u64,
    /// Bytes of data blocks as stored.
    pub data_bytes: u64,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// Bytes of index blocks as stored.
    pub index_bytes: u64,
    /// Bytes of filter blocks as stored.
    pub filter_bytes: u64,
    /// Smallest user key, as in [`FileMeta`].
    pub smallest: Vec<u8>,
    /// Largest user key or exclusive end, as in [`FileMeta`].
    pub largest: Vec<u8>,
    /// Whether `largest` is exclusive, as in [`FileMeta`].
    pub largest_exclusive: bool,
    /// Smallest sequence number.
    pub smallest_seq: u64,
    /// Largest sequence number.
    pub largest_seq: u64,
    /// Key in the middle of the file, as in [`FileMeta`].
    pub median_key: Vec<u8>,
    /// Bits per key of the filter; 0 without a filter.
    pub bloom_bits_per_key: u32,
    /// Time at which the file was written, in Unix milliseconds.
    pub created_unix_ms: u64,
    /// Column family for which the file was written.
    pub cf: CfId,
    /// Name of that column family at that time.
    pub cf_name: String,
    /// Space that a rewrite could free, as in [`FileMeta`].
    pub content: TableContent,
    /// Whether an `SstWriter` made the file: it belongs to no database, and its records have no
    /// sequence numbers.
    pub for_ingestion: bool,
    /// References of the table by value file. None in a value file.
    pub refs: ValueRefs,
    /// The value area of a value file; `None` in a table of the levels.
    pub value_area: Option<ValueArea>,
}

impl Properties {
    /// Type of the file.
    pub(super) fn layout(&self) -> Layout {
        if self.value_area.is_some() { Layout::Values } else { Layout::Table }
    }

    /// Offset of the first data block.
    pub(super) fn data_start(&self) -> u64 {
        self.value_area.map_or(0, |area| area.bytes)
    }

    /// Offset after the last data block.
    pub(super) fn data_end(&self) -> u64 {
        self.data_start().saturating_add(self.data_bytes)
    }

    /// Appends the payload of the properties block.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut scratch = Vec::new();
        let mut number = |out: &mut Vec<u8>, tag: u8, value: u64| {
            scratch.clear();
            put_varint(&mut scratch, value);
            put_u8(out, tag);
            put_bytes(out, &scratch);
        };
        for (tag, value) in self.numbers() {
            number(out, tag, value);
        }
        let mut content = Vec::new();
        self.content.encode(&mut content);
        let texts: [(u8, &[u8]); 7] = [
            (64, COMPARATOR),
            (65, &self.smallest),
            (66, &self.largest),
            (67, &self.median_key),
            (68, self.cf_name.as_bytes()),
            // Reserved for the encryption of the blocks; empty for none.
            (69, b""),
            (70, &content),
        ];
        for (tag, bytes) in texts {
            put_u8(out, tag);
            put_bytes(out, bytes);
        }
        if self.for_ingestion {
            put_u8(out, TAG_FOR_INGESTION);
            put_bytes(out, &[1]);
        }
        if !self.refs.is_empty() {
            put_u8(out, TAG_REFS);
            put_bytes(out, &encoded_refs(&self.refs));
        }
        if let Some(area) = self.value_area {
            let mut value = Vec::new();
            put_varint(&mut value, area.bytes);
            put_varint(&mut value, area.raw_bytes);
            put_u8(out, TAG_VALUE_AREA);
            put_bytes(out, &value);
        }
    }

    fn numbers(&self) -> [(u8, u64); 15] {
        [
            (1, self.entries),
            (2, self.deletions),
            (5, self.range_deletions),
            (6, self.raw_key_bytes),
            (7, self.raw_value_bytes),
            (8, self.data_bytes),
            (9, self.data_blocks),
            (10, self.index_bytes),
            (11, self.filter_bytes),
            (12, u64::from(self.largest_exclusive)),
            (13, self.smallest_seq),
            (14, self.largest_seq),
            (16, u64::from(self.bloom_bits_per_key)),
            (17, self.created_unix_ms),
            (18, u64::from(self.cf.0)),
        ]
    }

    /// Decodes the payload, which lies at `offset` of the file.
    pub(super) fn decode(bytes: &[u8], path: &Path, offset: u64) -> Result<Self> {
        let corrupt = |what: &str| Error::corrupt(path, offset, format!("properties: {what}"));
        let mut out = Self::default();
        let mut reader = Reader::new(bytes);
        let mut last = 0;
        let mut known = 0;
        while !reader.is_empty() {
            let tag = reader.u8().ok_or_else(|| corrupt("cut off"))?;
            let value = reader.bytes().ok_or_else(|| corrupt("cut off"))?;
            if tag <= last {
                return Err(corrupt("fields out of order"));
            }
            last = tag;
            match out.set(tag, value) {
                Field::Known => known += 1,
                Field::Optional => {}
                Field::Unknown if tag >= TAG_OPTIONAL => {}
                Field::Unsupported(what) => {
                    return Err(Error::unsupported(format!("{}: {what}", path.display())));
                }
                Field::Unknown | Field::Damaged => {
                    return Err(corrupt(&format!("field {tag} is not understood")));
                }
            }
        }
        if known != 22 {
            return Err(corrupt("fields are missing"));
        }
        if out.smallest_seq > out.largest_seq || out.largest_seq > SeqNo::MAX.0 {
            return Err(corrupt("impossible sequence numbers"));
        }
        Ok(out)
    }

    fn set(&mut self, tag: u8, value: &[u8]) -> Field {
        match tag {
            TAG_FOR_INGESTION if value == [1] => {
                self.for_ingestion = true;
                return Field::Optional;
            }
            TAG_FOR_INGESTION => return Field::Damaged,
            TAG_REFS => {
                return match decoded_refs(value) {
                    Some(refs) => {
                        self.refs = refs;
                        Field::Optional
                    }
                    None => Field::Damaged,
                };
            }
            TAG_VALUE_AREA => {
                let mut reader = Reader::new(value);
                let numbers = (reader.varint(), reader.varint(), reader.is_empty());
                let (Some(bytes), Some(raw_bytes), true) = numbers else { return Field::Damaged };
                self.value_area = Some(ValueArea { bytes, raw_bytes });
                return Field::Optional;
            }
            0 | 3 | 4 | 15 | 19..=63 | 71.. => return Field::Unknown,
            64 if value == COMPARATOR => {}
            64 => return Field::Unsupported("another comparator than bytewise"),
            65 => self.smallest = value.to_vec(),
            66 => self.largest = value.to_vec(),
            67 => self.median_key = value.to_vec(),
            68 => match std::str::from_utf8(value) {
                Ok(name) => self.cf_name = name.to_owned(),
                Err(_) => return Field::Damaged,
            },
            69 if value.is_empty() => {}
            69 => return Field::Unsupported("encrypted"),
            70 => {
                let mut reader = Reader::new(value);
                match TableContent::decode(&mut reader).filter(|_| reader.is_empty()) {
                    Some(content) => self.content = content,
                    None => return Field::Damaged,
                }
            }
            1..=18 => {
                let mut reader = Reader::new(value);
                let number = reader.varint().filter(|_| reader.is_empty());
                return match number.and_then(|number| self.set_number(tag, number)) {
                    Some(()) => Field::Known,
                    None => Field::Damaged,
                };
            }
        }
        Field::Known
    }

    fn set_number(&mut self, tag: u8, value: u64) -> Option<()> {
        match tag {
            1 => self.entries = value,
            2 => self.deletions = value,
            5 => self.range_deletions = value,
            6 => self.raw_key_bytes = value,
            7 => self.raw_value_bytes = value,
            8 => self.data_bytes = value,
            9 => self.data_blocks = value,
            10 => self.index_bytes = value,
            11 => self.filter_bytes = value,
            12 => {
                self.largest_exclusive = match value {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
            }
            13 => self.smallest_seq = value,
            14 => self.largest_seq = value,
            16 => self.bloom_bits_per_key = u32::try_from(value).ok()?,
            17 => self.created_unix_ms = value,
            18 => self.cf = CfId(u32::try_from(value).ok()?),
            _ => return None,
        }
        Some(())
    }

    /// Metadata of the file for the manifest.
    pub(super) fn to_meta(
        &self,
        no: FileNo,
        unique_id: [u8; 16],
        size_bytes: u64,
        checksum: u32,
    ) -> FileMeta {
        FileMeta {
            no: no.0,
            unique_id,
            size_bytes,
            checksum,
            smallest: self.smallest.clone(),
            largest: self.largest.clone(),
            largest_exclusive: self.largest_exclusive,
            smallest_seq: self.smallest_seq,
            largest_seq: self.largest_seq,
            entries: self.entries,
            deletions: self.deletions,
            range_deletions: self.range_deletions,
            raw_bytes: self.raw_key_bytes.saturating_add(self.raw_value_bytes),
            global_seq: None,
            median_key: self.median_key.clone(),
            created_unix_ms: self.created_unix_ms,
            content: self.content.clone(),
            refs: self.refs.clone(),
        }
    }
}

/// Encodes the property [`TAG_REFS`].
fn encoded_refs(refs: &ValueRefs) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in refs.by_file() {
        put_varint(&mut out, entry.no);
        put_varint(&mut out, entry.records);
        put_varint(&mut out, entry.bytes);
    }
    out
}

fn decoded_refs(bytes: &[u8]) -> Option<ValueRefs> {
    let mut reader = Reader::new(bytes);
    let mut refs = Vec::new();
    while !reader.is_empty() {
        let no = reader.varint()?;
        refs.push(ValueRef { no, records: reader.varint()?, bytes: reader.varint()? });
    }
    ValueRefs::new(refs).filter(|refs| !refs.is_empty())
}

enum Field {
    Known,
    /// A known field that is not in every file.
    Optional,
    Unknown,
    Damaged,
    Unsupported(&'static str),
}
