//! All keys of a value file, for garbage collection, compactions and verification.
//!
//! One job owns the keys. For garbage collection and verification, one contiguous read brings the
//! key part of the file (key blocks, index, properties, footer) into memory. A compaction reads the
//! keys in steps instead. Every block is checked when the walk reaches it.

use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use archipelago_base::{Error, Result};
use archipelago_env::{IoContext, RandomFile};

use crate::iter::InternalIterator;
use crate::key::{self, Kind};
use crate::sst::{TableIter, TableReadOptions, TableReader};
use crate::value_ref::ValueHandle;

/// Number of bytes that are copied from the key part at a time.
const STEP_BYTES: u64 = 64 << 10;

/// The end of a value file in memory.
#[derive(Debug)]
pub(super) struct KeyPart {
    pub(super) bytes: Vec<u8>,
    /// Offset in the file at which `bytes` begin; they reach to its end.
    pub(super) at: u64,
}

impl RandomFile for KeyPart {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _: IoContext) -> Result<()> {
        let from = offset.checked_sub(self.at).and_then(|from| usize::try_from(from).ok());
        let bytes = from.and_then(|from| self.bytes.get(from..from.checked_add(buf.len())?));
        let outside = || Error::internal(format!("a read at {offset} outside of the keys"));
        buf.copy_from_slice(bytes.ok_or_else(outside)?);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }
}

/// A walk over the keys of a value file in internal-key order.
#[derive(Debug)]
pub(crate) struct ValueKeys {
    iter: TableIter,
    table: Arc<TableReader>,
    value_bytes: u64,
    _charge: Charge,
}

impl ValueKeys {
    /// A walk that begins at the first key of `table`, which is in memory with `bytes` bytes.
    pub(super) fn new(
        table: &Arc<TableReader>,
        bytes: u64,
        budget: &Arc<ByteBudget>,
        context: IoContext,
    ) -> Self {
        let mut iter = table.iter(TableReadOptions::job(context, STEP_BYTES));
        iter.seek_to_first();
        Self {
            iter,
            value_bytes: table.properties().data_start(),
            table: Arc::clone(table),
            _charge: budget.hold(MemoryClass::Job, bytes),
        }
    }

    /// A walk over `table`, which lies in its file. It reads `step_bytes` at a time past the block
    /// cache, and needs a call of [`ValueKeys::seek`] first.
    pub(super) fn in_steps(
        table: &Arc<TableReader>,
        step_bytes: u64,
        budget: &Arc<ByteBudget>,
        context: IoContext,
    ) -> Self {
        Self {
            iter: table.iter(TableReadOptions::job(context, step_bytes)),
            value_bytes: table.properties().data_start(),
            table: Arc::clone(table),
            _charge: budget.hold(MemoryClass::Job, step_bytes),
        }
    }

    /// Moves to the first record at or after `internal_key`.
    pub(crate) fn seek(&mut self, internal_key: &[u8]) {
        self.iter.seek(internal_key);
    }

    /// The table of handles.
    pub(in crate::sst) fn table(&self) -> &Arc<TableReader> {
        &self.table
    }

    /// Number of keys in the file.
    #[must_use]
    pub(crate) fn records(&self) -> u64 {
        self.table.properties().entries
    }

    /// The internal key and the handle of the current record; `None` after the last one.
    pub(crate) fn current(&self) -> Result<Option<(&[u8], ValueHandle)>> {
        self.iter.status()?;
        if !self.iter.valid() {
            return Ok(None);
        }
        let internal_key = self.iter.key();
        let is_indirect = key::trailer(internal_key) as u8 == Kind::Indirect as u8;
        let handle = ValueHandle::decode(self.iter.value(), self.value_bytes);
        match handle.filter(|_| is_indirect) {
            Some(handle) => Ok(Some((internal_key, handle))),
            None => Err(Error::corrupt(
                self.table.path(),
                self.iter.block_offset(),
                "key block: a malformed record",
            )),
        }
    }

    /// Moves to the next record.
    pub(crate) fn advance(&mut self) {
        self.iter.next();
    }
}
