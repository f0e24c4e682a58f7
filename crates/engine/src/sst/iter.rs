//! A cursor over a table's records, forward and backward.
//!
//! One thread at a time owns the cursor. Invariants:
//! 1. The cursor is valid if and only if it is at a record of `block`; `leaf` and `position` name
//!    that block in the index.
//! 2. An error is kept in `status` and makes the cursor invalid. A seek starts again without it.
//! 3. With [`TableReadOptions::late_values`], a block of one large record is read when its value is
//!    requested. Before that the cursor has only the key and an expiry, from the index. If that
//!    read fails, `read_value` returns the error and `value` is empty. The next move of the cursor,
//!    even a seek, fails too. So a job of many inputs holds one large value at a time, however well
//!    it is compressed, and a record that it drops is never decoded. The block comes from the block
//!    cache, from the readahead buffer if it fits there, or from a read of its own.
//!
//! Cost: a step within a block copies the record's own key bytes, without an allocation. A step
//! back decodes a restart interval once and then walks the decoded records.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use archipelago_base::{Error, Result};

use super::block::Block;
use super::data_block::Cursor;
use super::format::{Handle, TRAILER_BYTES, open_block};
use super::index::IndexBlock;
use super::readahead::Readahead;
use super::reader::{TableReadOptions, TableReader, read_raw};
use crate::cache::BlockKind;
use crate::iter::InternalIterator;
use crate::key::{self, Kind};

/// A cursor over the records of one table.
#[derive(Debug)]
pub struct TableIter {
    table: Arc<TableReader>,
    options: TableReadOptions,
    /// Position in the top index; unused in a file of one index block.
    top: usize,
    /// The index partition that `position` is in; `None` in a file of one index block.
    leaf: Option<Arc<Block>>,
    position: usize,
    block: Option<Arc<Block>>,
    handle: Handle,
    /// The value of a record of which `block` has the head alone, once it was requested.
    late: Option<OnceCell<Result<LateValue>>>,
    /// Whether `block` was in the block cache when a job loaded it.
    warm: bool,
    cursor: Cursor,
    /// The readahead, which is borrowed for one block at a time.
    readahead: RefCell<Readahead>,
    status: Option<Error>,
}

/// A block of one large record that was read after the cursor had reached the record.
#[derive(Debug)]
struct LateValue {
    block: Arc<Block>,
    cursor: Cursor,
}

impl TableReader {
    /// A cursor over all point records.
    #[must_use]
    pub fn iter(self: &Arc<Self>, options: TableReadOptions) -> TableIter {
        TableIter {
            table: Arc::clone(self),
            options,
            top: 0,
            leaf: None,
            position: 0,
            block: None,
            handle: Handle::default(),
            late: None,
            warm: false,
            cursor: Cursor::default(),
            readahead: RefCell::default(),
            status: None,
        }
    }
}

/// Position in the index at which a placement begins.
#[derive(Clone, Copy)]
enum SeekPlace<'a> {
    First,
    Last,
    At(&'a [u8], u64),
}

impl TableIter {
    fn index(&self) -> Option<&IndexBlock> {
        if !self.table.footer.partitioned {
            return Some(&self.table.index);
        }
        self.leaf.as_ref()?.index()
    }

    /// Loads the index partition that entry `self.top` names.
    fn load_leaf(&mut self) -> Result<()> {
        let entry = self.table.index.entry(self.top);
        let spot = self.table.index.spot(self.top);
        let block = self.table.block(spot, entry.handle, BlockKind::Index, &self.options)?;
        let block = block.into_arc();
        if block.index().is_none_or(IndexBlock::is_top) {
            return Err(self.table.mixed_up(entry.handle));
        }
        self.leaf = Some(block);
        Ok(())
    }

    /// Moves the index position to `place`; false if there is no such block.
    fn place(&mut self, place: SeekPlace<'_>) -> Result<bool> {
        self.check_late()?;
        let find = |index: &IndexBlock| match place {
            SeekPlace::First => 0,
            SeekPlace::Last => index.len().saturating_sub(1),
            SeekPlace::At(user_key, trailer) => index.search(user_key, trailer),
        };
        if self.table.footer.partitioned {
            self.top = find(&self.table.index);
            if self.top >= self.table.index.len() {
                return Ok(false);
            }
            self.load_leaf()?;
        }
        let Some((position, len)) = self.index().map(|index| (find(index), index.len())) else {
            return Ok(false);
        };
        self.position = position;
        Ok(position < len)
    }

    /// Moves to the next block; false after the last.
    fn step_forward(&mut self) -> Result<bool> {
        self.position += 1;
        if self.position < self.index().map_or(0, IndexBlock::len) {
            return Ok(true);
        }
        if !self.table.footer.partitioned || self.top + 1 >= self.table.index.len() {
            return Ok(false);
        }
        self.top += 1;
        self.load_leaf()?;
        self.position = 0;
        Ok(self.index().is_some_and(|index| index.len() > 0))
    }

    /// Moves to the previous block; false before the first.
    fn step_back(&mut self) -> Result<bool> {
        if self.position > 0 {
            self.position -= 1;
            return Ok(true);
        }
        if !self.table.footer.partitioned || self.top == 0 {
            return Ok(false);
        }
        self.top -= 1;
        self.load_leaf()?;
        self.position = self.index().map_or(0, IndexBlock::len).saturating_sub(1);
        Ok(self.index().is_some_and(|index| index.len() > 0))
    }

    /// Loads the block at the index position.
    fn load_block(&mut self) -> Result<()> {
        let index = match &self.leaf {
            _ if !self.table.footer.partitioned => &self.table.index,
            Some(leaf) => leaf.index().ok_or_else(|| self.table.mixed_up(self.handle))?,
            None => return Ok(()),
        };
        let handle = index.place(self.position).handle;
        if self.block.is_some() && self.handle == handle {
            return Ok(());
        }
        let is_late = self.options.late_values;
        if (self.options.keys_only || is_late) && index.place(self.position).has_record {
            self.block = Some(self.table.head_block(index, self.position)?);
            self.late = is_late.then(OnceCell::new);
            self.handle = handle;
            self.warm = is_late && self.table.is_cached(handle);
            return Ok(());
        }
        self.late = None;
        let (spot, spare) = (index.spot(self.position), self.block.take());
        let block =
            self.readahead.get_mut().block(&self.table, spot, handle, &self.options, spare)?;
        if block.data().is_none() {
            return Err(self.table.mixed_up(handle));
        }
        self.block = Some(block);
        self.handle = handle;
        self.warm = !self.options.fill_cache && self.table.is_cached(handle);
        Ok(())
    }

    /// Returns the error of a value that could not be read, before the cursor moves on.
    fn check_late(&self) -> Result<()> {
        match self.late.as_ref().and_then(OnceCell::get) {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Reads the record whose key the cursor already has.
    fn read_late(&self) -> Result<LateValue> {
        let (table, handle) = (&self.table, self.handle);
        let block = self.late_block()?;
        let mut cursor = Cursor::default();
        let data = block.data().ok_or_else(|| table.mixed_up(handle))?;
        cursor.seek_to_first(data).map_err(|_| table.damaged(handle))?;
        if !cursor.valid() || key::user_key(cursor.key()) != key::user_key(self.cursor.key()) {
            return Err(table.mixed_up(handle));
        }
        Ok(LateValue { block, cursor })
    }

    /// The block of one large record at the cursor. A block that fits into the readahead is read
    /// through it, so that a table of such blocks is read in large steps.
    fn late_block(&self) -> Result<Arc<Block>> {
        let (table, handle) = (&self.table, self.handle);
        if self.warm
            && let Some(block) = table.cached_by_key(handle, BlockKind::Data)
        {
            return Ok(block);
        }
        if handle.size as usize + TRAILER_BYTES <= self.options.readahead_bytes as usize {
            let mut readahead = self.readahead.borrow_mut();
            return readahead.block_from_buffer(table, handle, &self.options, None);
        }
        let raw = read_raw(&*table.file, handle, self.options.context)?;
        let payload = open_block(raw, &table.path, &table.footer.unique_id, handle.offset)?;
        let file_bytes = table.footer.file_bytes;
        Block::parse(BlockKind::Data, payload, &table.path, handle, file_bytes).map(Arc::new)
    }

    #[cold]
    fn late_value<'a>(&self, late: &'a OnceCell<Result<LateValue>>) -> Result<&'a [u8]> {
        match late.get_or_init(|| self.read_late()) {
            Ok(late) => Ok(late.block.data().map_or(&[], |data| late.cursor.value(data))),
            Err(error) => Err(error.clone()),
        }
    }

    /// The value in `block`. For a late record it is the part that the index has.
    #[inline]
    fn present_value(&self) -> &[u8] {
        match self.block.as_ref().and_then(|block| block.data()) {
            Some(data) => self.cursor.value(data),
            None => &[],
        }
    }

    /// Offset of the block at the cursor, for errors.
    pub(super) fn block_offset(&self) -> u64 {
        self.handle.offset
    }

    /// Moves the cursor within the current block by `place`.
    #[inline]
    fn in_block(
        &mut self,
        act: impl FnOnce(
            &mut Cursor,
            &super::data_block::DataBlock,
        ) -> Result<(), super::data_block::Damaged>,
    ) -> Result<()> {
        let Some(data) = self.block.as_ref().and_then(|block| block.data()) else {
            self.cursor.invalidate();
            return Ok(());
        };
        act(&mut self.cursor, data).map_err(|_| self.table.damaged(self.handle))?;
        if self.cursor.valid() {
            self.present()?;
        }
        Ok(())
    }

    /// Checks the record's kind and applies the global sequence number, if there is one.
    #[inline]
    fn present(&mut self) -> Result<()> {
        let stored = key::trailer(self.cursor.key());
        if Kind::from_byte(stored as u8).is_none() {
            let what = format!("data block: record of unknown kind {}", stored as u8);
            return Err(Error::corrupt(&self.table.path, self.handle.offset, what));
        }
        if let Some(global) = self.table.global_seq {
            self.cursor.set_trailer(global.0 << 8 | (stored & 0xff));
        }
        Ok(())
    }

    /// Moves an invalid cursor to the first record of the next block that has one.
    fn forward_to_record(&mut self) -> Result<()> {
        self.check_late()?;
        while !self.cursor.valid() {
            if !self.step_forward()? {
                return Ok(());
            }
            self.load_block()?;
            self.in_block(Cursor::seek_to_first)?;
        }
        Ok(())
    }

    /// Moves an invalid cursor to the last record of the previous block.
    fn back_to_record(&mut self) -> Result<()> {
        self.check_late()?;
        while !self.cursor.valid() {
            if !self.step_back()? {
                return Ok(());
            }
            self.load_block()?;
            self.in_block(Cursor::seek_to_last)?;
        }
        Ok(())
    }

    fn try_seek(&mut self, target: &[u8]) -> Result<()> {
        if target.len() < key::TRAILER_BYTES {
            return Err(Error::invalid("the seek target is shorter than an internal key"));
        }
        let Some(global) = self.table.global_seq else { return self.seek_stored(target) };
        // All records are stored with sequence number 0 and one version per key.
        let wanted = key::trailer(target);
        self.seek_stored(&key::encode(
            key::user_key(target),
            archipelago_base::SeqNo::MAX,
            Kind::SEEK,
        ))?;
        if self.cursor.valid()
            && key::user_key(self.cursor.key()) == key::user_key(target)
            && (global.0 << 8 | (key::trailer(self.cursor.key()) & 0xff)) > wanted
        {
            self.try_next()?;
        }
        Ok(())
    }

    fn seek_stored(&mut self, target: &[u8]) -> Result<()> {
        let (user_key, trailer) = (key::user_key(target), key::trailer(target));
        if !self.place(SeekPlace::At(user_key, trailer))? {
            return Ok(());
        }
        self.load_block()?;
        self.in_block(|cursor, data| cursor.seek(data, target))?;
        self.forward_to_record()
    }

    fn try_seek_to_first(&mut self) -> Result<()> {
        if !self.place(SeekPlace::First)? {
            return Ok(());
        }
        self.load_block()?;
        self.in_block(Cursor::seek_to_first)?;
        self.forward_to_record()
    }

    fn try_seek_to_last(&mut self) -> Result<()> {
        if !self.place(SeekPlace::Last)? {
            return Ok(());
        }
        self.load_block()?;
        self.in_block(Cursor::seek_to_last)?;
        self.back_to_record()
    }

    fn try_seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.try_seek(target)?;
        if !self.cursor.valid() {
            return self.try_seek_to_last();
        }
        if key::compare(self.cursor.key(), target).is_gt() {
            return self.try_prev();
        }
        Ok(())
    }

    #[inline]
    fn try_next(&mut self) -> Result<()> {
        self.in_block(Cursor::next)?;
        if self.cursor.valid() {
            return Ok(());
        }
        self.forward_to_record()
    }

    fn try_prev(&mut self) -> Result<()> {
        self.in_block(Cursor::prev)?;
        if self.cursor.valid() {
            return Ok(());
        }
        self.back_to_record()
    }

    /// Begins a new placement and forgets an earlier error.
    fn begin(&mut self) {
        self.status = None;
        self.cursor.invalidate();
    }

    #[inline]
    fn end(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.status = Some(error);
            self.cursor.invalidate();
            self.block = None;
        }
    }
}

impl InternalIterator for TableIter {
    #[inline]
    fn valid(&self) -> bool {
        self.cursor.valid()
    }

    fn seek_to_first(&mut self) {
        self.begin();
        let outcome = self.try_seek_to_first();
        self.end(outcome);
    }

    fn seek_to_last(&mut self) {
        self.begin();
        let outcome = self.try_seek_to_last();
        self.end(outcome);
    }

    fn seek(&mut self, target: &[u8]) {
        self.begin();
        let outcome = self.try_seek(target);
        self.end(outcome);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        self.begin();
        let outcome = self.try_seek_for_prev(target);
        self.end(outcome);
    }

    #[inline]
    fn next(&mut self) {
        let outcome = self.try_next();
        self.end(outcome);
    }

    fn prev(&mut self) {
        let outcome = self.try_prev();
        self.end(outcome);
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        if let Some(late) = &self.late {
            return self.late_value(late).unwrap_or_default();
        }
        self.present_value()
    }

    #[inline]
    fn read_value(&self) -> Result<&[u8]> {
        match &self.late {
            Some(late) => self.late_value(late),
            None => Ok(self.present_value()),
        }
    }

    #[inline]
    fn expiry_bytes(&self) -> &[u8] {
        self.present_value()
    }

    fn is_warm(&self) -> bool {
        self.warm
    }

    fn status(&self) -> Result<()> {
        match &self.status {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}
