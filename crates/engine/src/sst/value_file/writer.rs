//! Writes a value file: value records as they come, then the blocks that locate them by key.
//!
//! One job owns a builder. Invariants:
//! 1. Records come in strictly ascending internal-key order (asserted). So values and keys lie in
//!    the same order, and value records lie without gaps from offset 0.
//! 2. A value is compressed if that saves at least an eighth, as a block is. The stored length of a
//!    reference counts the bytes in the file.
//! 3. [`ValueTableBuilder::finish`] syncs the file. Before that the file is no value file. After an
//!    error the builder must be dropped, and its owner removes the file as garbage.
//!
//! Failure: errors of the file system, and values over the limit.
//! Cost: a value is copied once, or compressed and copied, and enters two checksums. The keys stay
//! in memory until the file is complete, with shared prefixes and without offsets. A record takes
//! the part of its key that differs from the last one, and 8 to 14 bytes. For keys of 24 bytes this
//! is about 0.15 % of the file with values of 16 KiB, and about 4 % with values of 512 bytes.
//! [`ValueTableBuilder::charged_to`] counts that memory.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use archipelago_base::codec::{Reader, put_varint};
use archipelago_base::{Error, FileNo, Result, SeqNo};
use archipelago_env::WritableFile;

use super::StoredValue;
use crate::key::{self, Kind, VALUE_BYTES_MAX};
use crate::sst::TableOptions;
use crate::sst::builder::{Finished, Output, TableBuilder};
use crate::sst::data_block::common_prefix;
use crate::sst::format::Compressor;
use crate::sst::properties::ValueArea;
use crate::value_ref::{Reference, ValueFileMeta, ValueHandle};

/// Step in bytes by which the charge for the keys in memory grows.
const CHARGE_BYTES: usize = 64 << 10;

/// Writes one value file, record by record.
pub(crate) struct ValueTableBuilder {
    out: Output,
    no: FileNo,
    options: TableOptions,
    compressor: Compressor,
    keys: PendingKeys,
    raw_bytes: u64,
    charge: Option<Charge>,
}

impl std::fmt::Debug for ValueTableBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueTableBuilder({}, {} records)", self.out.path.display(), self.keys.records)
    }
}

impl ValueTableBuilder {
    /// Writes into the empty file `file`, which lies at `path` (for errors). `unique_id` must be
    /// new: no other file may have it. The builder uses the options for compression, column family,
    /// time and sizes of blocks; a value file has no filter.
    pub(crate) fn new(
        file: Box<dyn WritableFile>,
        path: &Path,
        no: FileNo,
        unique_id: [u8; 16],
        options: TableOptions,
    ) -> Self {
        let compressor = Compressor::new(options.compression);
        let options = TableOptions { bloom_bits_per_key: 0, compaction_filter: None, ..options };
        Self {
            out: Output::new(file, path, unique_id, options.block_bytes * 2),
            no,
            options,
            compressor,
            keys: PendingKeys::default(),
            raw_bytes: 0,
            charge: None,
        }
    }

    /// Counts the memory of the keys in `budget` as memory of a job, until the builder is dropped.
    #[must_use]
    pub(crate) fn charged_to(mut self, budget: &Arc<ByteBudget>) -> Self {
        self.charge = Some(budget.hold(MemoryClass::Job, 0));
        self
    }

    /// Adds the value of the record `(user_key, seq)` after all others, compressed if that pays.
    /// Returns the reference that the caller stores in the levels, with the offset and without an
    /// expiry.
    ///
    /// Panics if the record does not follow the last one.
    pub(crate) fn add(&mut self, user_key: &[u8], seq: SeqNo, value: &[u8]) -> Result<Reference> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a value of {} bytes is too long for a value file: at most {VALUE_BYTES_MAX}",
                value.len()
            )));
        }
        let (payload, compression) = self.compressor.pack(value)?;
        let handle = self.out.block(payload, compression)?;
        let at = ValueHandle {
            offset: handle.offset,
            stored_bytes: handle.size,
            raw_bytes: value.len() as u32,
        };
        Ok(self.push(user_key, seq, at))
    }

    /// Adds a value in the form in which another value file stores it. The payload gets a new
    /// frame, because its checksum is bound to file and offset. Result and panics are those of
    /// [`ValueTableBuilder::add`].
    pub(crate) fn add_stored(
        &mut self,
        user_key: &[u8],
        seq: SeqNo,
        value: &StoredValue<'_>,
    ) -> Result<Reference> {
        let handle = self.out.block(value.payload, value.compression)?;
        let at = ValueHandle {
            offset: handle.offset,
            stored_bytes: handle.size,
            raw_bytes: value.raw_bytes,
        };
        Ok(self.push(user_key, seq, at))
    }

    fn push(&mut self, user_key: &[u8], seq: SeqNo, at: ValueHandle) -> Reference {
        assert!(self.keys.is_before(user_key, seq), "out of order: {}", self.out.path.display());
        self.keys.push(user_key, seq, at);
        self.raw_bytes += u64::from(at.raw_bytes);
        let memory_bytes = self.keys.bytes.capacity();
        if let Some(charge) = &mut self.charge
            && memory_bytes as u64 >= charge.bytes() + CHARGE_BYTES as u64
        {
            charge.resize(memory_bytes as u64);
        }
        Reference {
            file_no: self.no,
            offset: Some(at.offset),
            stored_bytes: at.stored_bytes,
            raw_bytes: at.raw_bytes,
            expiry_unix_ms: None,
        }
    }

    /// Bytes of the value area so far: callers end the file when it has `value_file_bytes`.
    #[must_use]
    pub(crate) fn value_bytes(&self) -> u64 {
        self.out.offset
    }

    /// Writes the keys and syncs the file. Returns the file's metadata for the manifest, with the
    /// basis 0.
    /// Errors: `InvalidArgument` if no record was added.
    pub(crate) fn finish(self) -> Result<ValueFileMeta> {
        if self.keys.records == 0 {
            let path = self.out.path.display();
            return Err(Error::invalid(format!("{path}: a value file needs a record")));
        }
        let area = ValueArea { bytes: self.out.offset, raw_bytes: self.raw_bytes };
        let mut table = TableBuilder::after(self.out, self.no, self.options).over_values(area);
        let (mut internal_key, mut handle) = (Vec::new(), Vec::new());
        let mut keys = self.keys.replay();
        while let Some((seq, at)) = keys.next() {
            internal_key.clear();
            key::encode_into(&mut internal_key, &keys.user_key, seq, Kind::Indirect);
            handle.clear();
            at.encode(&mut handle);
            table.add(&internal_key, &handle)?;
        }
        let Finished { properties, unique_id, size_bytes, checksum } = table.end()?;
        Ok(ValueFileMeta {
            no: self.no.0,
            unique_id,
            size_bytes,
            checksum,
            keys_offset: area.bytes,
            smallest: properties.smallest,
            largest: properties.largest,
            smallest_seq: properties.smallest_seq,
            largest_seq: properties.largest_seq,
            records: properties.entries,
            created_unix_ms: properties.created_unix_ms,
            basis: 0,
        })
    }
}

/// The keys and lengths of all records so far. A record is `shared ++ own ++ own bytes of the user
/// key ++ sequence number ++ stored length ++ raw length - stored length`; all numbers are varints.
/// The offsets follow from the lengths, because value records lie without gaps.
#[derive(Debug, Default)]
struct PendingKeys {
    bytes: Vec<u8>,
    records: u64,
    last_user_key: Vec<u8>,
    last_seq: SeqNo,
}

impl PendingKeys {
    /// Whether the last record is before `(user_key, seq)` in internal-key order.
    fn is_before(&self, user_key: &[u8], seq: SeqNo) -> bool {
        self.records == 0
            || match self.last_user_key.as_slice().cmp(user_key) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => self.last_seq > seq,
                std::cmp::Ordering::Greater => false,
            }
    }

    fn push(&mut self, user_key: &[u8], seq: SeqNo, at: ValueHandle) {
        let shared = common_prefix(&self.last_user_key, user_key);
        let own = &user_key[shared..];
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, own.len() as u64);
        self.bytes.extend_from_slice(own);
        put_varint(&mut self.bytes, seq.0);
        put_varint(&mut self.bytes, u64::from(at.stored_bytes));
        put_varint(&mut self.bytes, u64::from(at.raw_bytes - at.stored_bytes));
        self.last_user_key.truncate(shared);
        self.last_user_key.extend_from_slice(own);
        self.last_seq = seq;
        self.records += 1;
    }

    fn replay(&self) -> Replay<'_> {
        Replay { reader: Reader::new(&self.bytes), user_key: Vec::new(), offset: 0 }
    }
}

/// A walk over [`PendingKeys`], which decodes what this process has encoded.
struct Replay<'a> {
    reader: Reader<'a>,
    /// Key of the record that [`Replay::next`] returned last.
    user_key: Vec<u8>,
    offset: u64,
}

impl Replay<'_> {
    fn next(&mut self) -> Option<(SeqNo, ValueHandle)> {
        let shared = self.reader.varint()? as usize;
        let own = self.reader.bytes()?;
        self.user_key.truncate(shared);
        self.user_key.extend_from_slice(own);
        let seq = SeqNo(self.reader.varint()?);
        let stored_bytes = self.reader.varint32()?;
        let raw_bytes = stored_bytes + self.reader.varint32()?;
        let at = ValueHandle { offset: self.offset, stored_bytes, raw_bytes };
        self.offset += at.record_bytes();
        Some((seq, at))
    }
}
