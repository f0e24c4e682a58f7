//! Readahead of a cursor over a table.
//!
//! With the block cache: after three consecutive blocks from the file, it asks the operating system
//! to read growing windows ahead. Past the cache: one large read fills a buffer from which blocks
//! are taken. Each block reuses the memory of the previous one. The buffer itself goes to the next
//! cursor ([`archipelago_base::buffers`]). One cursor owns the value.

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::buffers::Buffer;

use super::block::{Block, BlockGuard, Spot};
use super::format::{Handle, TRAILER_BYTES, open_block_into};
use super::reader::{TableReadOptions, TableReader, read_raw};
use crate::cache::BlockKind;

/// First window of readahead in bytes, doubled at every use.
const WINDOW_BYTES_MIN: u64 = 16 << 10;
/// Largest window in bytes, unless the options say otherwise.
const WINDOW_BYTES_MAX: u64 = 256 << 10;
/// Number of consecutive blocks from the file before readahead begins.
const SEQUENTIAL_BLOCKS: u32 = 3;

/// Readahead of one cursor, with the block cache or past it.
#[derive(Debug, Default)]
pub(super) struct Readahead {
    /// End of the last block that was read from the file.
    last_end: u64,
    sequential: u32,
    window_bytes: u64,
    /// Offset up to which the operating system was asked to read.
    asked_to: u64,
    buffer: Buffer,
    /// Number of bytes in the buffer that hold the file, from `buffer_at` on.
    buffered: usize,
    buffer_at: u64,
}

impl Readahead {
    pub(super) fn block(
        &mut self,
        table: &TableReader,
        spot: Spot<'_>,
        handle: Handle,
        options: &TableReadOptions,
        spare: Option<Arc<Block>>,
    ) -> Result<Arc<Block>> {
        if !options.fill_cache && options.readahead_bytes > 0 && !options.cache_only {
            return self.block_from_buffer(table, handle, options, spare);
        }
        if let Some(block) = table.cached_block(spot, handle, BlockKind::Data) {
            return Ok(BlockGuard::into_arc(block));
        }
        if options.cache_only {
            return Err(table.would_need_io(handle));
        }
        self.ask(table, handle, options);
        let timed = table.begin_read(handle, options);
        let raw = read_raw(&*table.file, handle, options.context)?;
        if let Some(timed) = timed {
            timed.end();
        }
        table.admit(handle, BlockKind::Data, raw, options)
    }

    /// Called before a block is read from the file. Asks for more bytes after it if the reads are
    /// sequential.
    fn ask(&mut self, table: &TableReader, handle: Handle, options: &TableReadOptions) {
        let end = handle.end().unwrap_or(u64::MAX);
        self.sequential = if handle.offset == self.last_end { self.sequential + 1 } else { 0 };
        self.last_end = end;
        if self.sequential < SEQUENTIAL_BLOCKS {
            self.window_bytes = 0;
            self.asked_to = 0;
            return;
        }
        if end.saturating_add(self.window_bytes / 2) <= self.asked_to {
            return;
        }
        let most = options.readahead_bytes.max(WINDOW_BYTES_MAX);
        self.window_bytes = self.window_bytes.saturating_mul(2).clamp(WINDOW_BYTES_MIN, most);
        let from = self.asked_to.max(handle.offset);
        let to = end.saturating_add(self.window_bytes).min(table.properties.data_end());
        if to > from {
            table.file.prefetch(from, to - from);
            self.asked_to = to;
        }
    }

    /// The block from the buffer, which is filled anew if it does not hold the block.
    pub(super) fn block_from_buffer(
        &mut self,
        table: &TableReader,
        handle: Handle,
        options: &TableReadOptions,
        spare: Option<Arc<Block>>,
    ) -> Result<Arc<Block>> {
        let len = handle.size as usize + TRAILER_BYTES;
        let start = match self.find(handle, len) {
            Some(start) => start,
            None => {
                self.fill(table, handle, len, options)?;
                0
            }
        };
        let mut payload = spare
            .and_then(|block| Arc::try_unwrap(block).ok())
            .map_or_else(Vec::new, Block::into_data_bytes);
        let raw = &self.buffer[start..start + len];
        let unique_id = &table.footer.unique_id;
        open_block_into(raw, &mut payload, &table.path, unique_id, handle.offset)?;
        let file_bytes = table.footer.file_bytes;
        Block::parse(BlockKind::Data, payload, &table.path, handle, file_bytes).map(Arc::new)
    }

    /// Position in the buffer of a block's `len` bytes; `None` if the buffer does not hold them.
    fn find(&self, handle: Handle, len: usize) -> Option<usize> {
        let start = usize::try_from(handle.offset.checked_sub(self.buffer_at)?).ok()?;
        (start.checked_add(len)? <= self.buffered).then_some(start)
    }

    fn fill(
        &mut self,
        table: &TableReader,
        handle: Handle,
        len: usize,
        options: &TableReadOptions,
    ) -> Result<()> {
        let rest = table.properties.data_end().saturating_sub(handle.offset);
        let bytes = options.readahead_bytes.min(rest).max(len as u64) as usize;
        if self.buffer.len() < bytes {
            self.buffer = Buffer::take(bytes);
        }
        self.buffered = 0;
        table.file.read_exact_at(handle.offset, &mut self.buffer[..bytes], options.context)?;
        (self.buffer_at, self.buffered) = (handle.offset, bytes);
        Ok(())
    }
}
