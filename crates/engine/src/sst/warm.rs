//! Data blocks of a table that the block cache holds, and reads of others into it.
//!
//! A job in another process puts nothing into the block cache of the database. Its owner therefore
//! compares the cached blocks of the inputs with the blocks of the outputs, and reads some of the
//! latter ([`crate::db::background::warm_outputs`]).
//!
//! Thread-safety: any thread may call any function.
//! Failure: a read error ends [`TableBlocks::warm`]; blocks that it has read stay in the cache.
//! Cost: [`TableBlocks::spans`] does no I/O and holds one separator for each data block.
//! [`TableBlocks::warm`] reads adjacent blocks in steps of at most [`READ_BYTES_MAX`]. It also
//! reads each index partition that is not in memory and may name wanted blocks.

use archipelago_base::Result;
use archipelago_env::{FileClass, IoContext, IoPurpose};

use super::format::{Handle, TRAILER_BYTES};
use super::index::IndexBlock;
use super::reader::{TableReadOptions, TableReader};
use crate::cache::BlockKind;

/// Largest number of bytes of one read. A block that is larger is read alone.
const READ_BYTES_MAX: u64 = 256 << 10;

/// Data blocks of a table with neighbouring keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockSpan {
    /// User key that none of the blocks exceeds, and that is below all later blocks.
    pub(crate) last: Vec<u8>,
    /// Bytes of the blocks in the file.
    pub(crate) bytes: u64,
    /// Number of the blocks.
    pub(crate) blocks: u64,
    /// Whether they are in the block cache.
    pub(crate) is_cached: bool,
}

/// Decisions of the caller of [`TableBlocks::warm`].
pub(crate) trait WarmChoice {
    /// Whether any block with keys above `after` and up to `last` may be wanted. At the start of
    /// the table, `after` is the bound that the caller gave.
    fn may_want(&mut self, after: Option<&[u8]>, last: &[u8]) -> bool;
    /// Whether a block of `bytes` with such keys is wanted. The blocks come in key order.
    fn wants(&mut self, after: Option<&[u8]>, last: &[u8], bytes: u64) -> bool;
    /// Waits until `bytes` of data blocks, or of an index partition, may be read; `false` ends the
    /// call without an error.
    fn waits_for(&mut self, bytes: u64) -> bool;
}

/// Adjacent blocks that one read fetches.
#[derive(Default)]
struct Run {
    handles: Vec<Handle>,
}

impl Run {
    fn bytes(&self) -> u64 {
        match (self.handles.first(), self.handles.last()) {
            (Some(first), Some(last)) => end_of(*last) - first.offset,
            _ => 0,
        }
    }

    /// Whether the block at `handle` continues the run within its bound.
    fn takes(&self, handle: Handle) -> bool {
        self.handles.last().is_none_or(|last| {
            end_of(*last) == handle.offset
                && self.bytes() + u64::from(handle.size) + TRAILER_BYTES as u64 <= READ_BYTES_MAX
        })
    }
}

fn end_of(handle: Handle) -> u64 {
    handle.offset + u64::from(handle.size) + TRAILER_BYTES as u64
}

fn key_at(index: &IndexBlock, position: usize) -> Vec<u8> {
    [index.prefix(), index.entry(position).suffix].concat()
}

/// The data blocks of a table, as its block cache knows them.
pub(crate) struct TableBlocks<'a>(pub(crate) &'a TableReader);

impl TableBlocks<'_> {
    /// The data blocks of the table in key order, those below an index partition that is not in
    /// memory as one span that is not cached. The call does no I/O and is no use of a block.
    pub(crate) fn spans(&self) -> Vec<BlockSpan> {
        let mut spans = Vec::new();
        if !self.0.footer.partitioned {
            self.add_spans(&self.0.index, &mut spans);
            return spans;
        }
        for position in 0..self.0.index.len() {
            let handle = self.0.index.place(position).handle;
            let leaf = self.0.cache.peek(&self.0.key_of(handle));
            if let Some(leaf) = leaf.as_ref().and_then(|leaf| leaf.index()) {
                self.add_spans(leaf, &mut spans);
                continue;
            }
            let blocks = self.0.properties.data_blocks / self.0.index.len() as u64;
            let bytes = self.0.properties.data_bytes / self.0.index.len() as u64;
            let last = key_at(&self.0.index, position);
            spans.push(BlockSpan { last, bytes, blocks: blocks.max(1), is_cached: false });
        }
        spans
    }

    fn add_spans(&self, index: &IndexBlock, spans: &mut Vec<BlockSpan>) {
        spans.extend((0..index.len()).map(|position| {
            let handle = index.place(position).handle;
            BlockSpan {
                last: key_at(index, position),
                bytes: u64::from(handle.size),
                blocks: 1,
                is_cached: self.0.is_cached(handle),
            }
        }));
    }

    /// Reads the data blocks that `choice` wants, and that are not there, into the block cache.
    /// `after` is a key below all keys of the table, if the caller knows one. Returns the number of
    /// the blocks and their bytes in the file.
    pub(crate) fn warm(
        &self,
        mut after: Option<Vec<u8>>,
        choice: &mut dyn WarmChoice,
    ) -> Result<(u64, u64)> {
        let context = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
        let options = TableReadOptions { context, ..TableReadOptions::foreground() };
        let mut read = (0, 0);
        if !self.0.footer.partitioned {
            self.warm_leaf(&self.0.index, after, choice, &options, &mut read)?;
            return Ok(read);
        }
        for position in 0..self.0.index.len() {
            let last = key_at(&self.0.index, position);
            if choice.may_want(after.as_deref(), &last) {
                let handle = self.0.index.place(position).handle;
                if !self.0.is_cached(handle) && !choice.waits_for(u64::from(handle.size)) {
                    break;
                }
                let spot = self.0.index.spot(position);
                let block = self.0.block(spot, handle, BlockKind::Index, &options)?;
                let leaf = block.index().ok_or_else(|| self.0.mixed_up(handle))?;
                if !self.warm_leaf(leaf, after, choice, &options, &mut read)? {
                    break;
                }
            }
            after = Some(last);
        }
        Ok(read)
    }

    /// [`TableBlocks::warm`] for the blocks of one index block; `false` if `choice` ended it.
    fn warm_leaf(
        &self,
        index: &IndexBlock,
        mut after: Option<Vec<u8>>,
        choice: &mut dyn WarmChoice,
        options: &TableReadOptions,
        read: &mut (u64, u64),
    ) -> Result<bool> {
        let mut run = Run::default();
        for position in 0..index.len() {
            let handle = index.place(position).handle;
            let last = key_at(index, position);
            let is_wanted = choice.wants(after.as_deref(), &last, u64::from(handle.size));
            after = Some(last);
            if !is_wanted || self.0.is_cached(handle) {
                continue;
            }
            if !run.takes(handle) && !self.read_run(&mut run, choice, options, read)? {
                return Ok(false);
            }
            run.handles.push(handle);
        }
        self.read_run(&mut run, choice, options, read)
    }

    fn read_run(
        &self,
        run: &mut Run,
        choice: &mut dyn WarmChoice,
        options: &TableReadOptions,
        read: &mut (u64, u64),
    ) -> Result<bool> {
        let (bytes, handles) = (run.bytes(), std::mem::take(&mut run.handles));
        let Some(first) = handles.first() else { return Ok(true) };
        if !choice.waits_for(bytes) {
            return Ok(false);
        }
        let all = self.0.file.read_new(first.offset, bytes as usize, options.context)?;
        for handle in &handles {
            let from = (handle.offset - first.offset) as usize;
            let raw = all[from..from + handle.size as usize + TRAILER_BYTES].to_vec();
            self.0.admit(*handle, BlockKind::Data, raw, options)?;
        }
        *read = (read.0 + handles.len() as u64, read.1 + bytes);
        Ok(true)
    }
}
