//! Look-ups through the Flat Index Cache, and the building of its pieces.
//!
//! A look-up of many keys goes from piece to piece. A piece that is cached answers its keys without
//! a read. A missing piece is built if the look-up wants at least half of its data blocks, counting
//! cached ones. Then the missing blocks are read in one batch, with one range for neighbours. They
//! do not enter the block cache, because the piece takes their place. The keys of all other pieces
//! are looked up in their data blocks. So a look-up reads at most about twice the blocks that it
//! would read without pieces, and in fewer ranges.
//!
//! A point read builds no piece: it reads one block, and a piece needs many. It uses a cached piece
//! if the data block is not cached.

use std::ops::Range;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result, SeqNo};

use super::{BELOW_ANOTHER, FlatBlock, FlatBuilder, KEY_BIT, PIECE_BYTES};
use crate::cache::{BlockKey, BlockKind};
use crate::key::{self, Kind};
use crate::lookup::{Found, Lookup, Visit};
use crate::sst::block::Block;
use crate::sst::data_block::{Cursor, DataBlock};
use crate::sst::format::{Handle, TRAILER_BYTES, open_block};
use crate::sst::index::IndexBlock;
use crate::sst::multi::Candidate;
use crate::sst::reader::{TableReadOptions, TableReader};
use crate::value_ref::Reference;

/// Largest number of pieces that are built at a time, which bounds the memory of their data blocks.
const PIECES_MAX: usize = 16;

/// Receives the results of [`lookup_references`]. They are the position of a key among the
/// look-ups, the sequence number of the record that decides it, and that record's reference. The
/// reference is `None` if the record's kind is not `Indirect`.
pub(crate) type VisitReference<'a> = &'a mut dyn FnMut(usize, SeqNo, Option<&Reference>);

/// Visits, for each of `lookups`, the newest reference at or below its snapshot. The look-ups are
/// sorted by key. A newer record of another kind may be visited instead of the reference, and also
/// if there is no reference. The caller must be correct either way.
pub(crate) fn lookup_references(
    table: &TableReader,
    lookups: &[Lookup<'_>],
    options: &TableReadOptions,
    visit: VisitReference<'_>,
) -> Result<()> {
    if !may_have_pieces(table, options) || !options.fill_cache || table.cache.capacity_bytes() == 0
    {
        let all: Vec<usize> = (0..lookups.len()).collect();
        return lookup_in_blocks(table, &all, lookups, options, visit);
    }
    let mut walk = Walk {
        table,
        lookups,
        options,
        visit,
        current: None,
        missing: Vec::new(),
        others: Vec::new(),
    };
    table.for_each_candidate(lookups, options, |leaf, index, candidate| {
        walk.add(leaf, index, &candidate)
    })?;
    walk.close()?;
    walk.build_missing()?;
    let Walk { visit, mut others, .. } = walk;
    // Groups come in key order, but their keys may be given up later, out of order.
    others.sort_unstable();
    lookup_in_blocks(table, &others, lookups, options, visit)
}

/// Whether pieces of the table may be cached and may be used.
pub(in crate::sst) fn may_have_pieces(table: &TableReader, options: &TableReadOptions) -> bool {
    options.flat_index
        && !table.properties.refs.is_empty()
        && table.global_seq.is_none()
        && table.cache.keeps(BlockKind::Flat)
}

/// Looks the keys at `positions` up in data blocks.
fn lookup_in_blocks(
    table: &TableReader,
    positions: &[usize],
    lookups: &[Lookup<'_>],
    options: &TableReadOptions,
    visit: VisitReference<'_>,
) -> Result<()> {
    let batch: Vec<Lookup<'_>> = positions.iter().map(|&at| lookups[at]).collect();
    let options = TableReadOptions { flat_index: false, ..*options };
    let mut failed = None;
    table.multi_lookup(&batch, &options, &mut |at, found| {
        let reference = match found.kind {
            Kind::Indirect => Reference::decode(found.value).map(Some),
            _ => Ok(None),
        };
        match reference {
            Ok(reference) => visit(positions[at], found.seq, reference.as_ref()),
            Err(why) => {
                let (path, key) = (table.path.display(), batch[at].key.escape_ascii());
                let what = format!("{path}: the reference of key \"{key}\": {why}");
                failed = Some(Error::new(ErrorKind::Corrupt, what));
            }
        }
        Visit::Break(())
    })?;
    failed.map_or(Ok(()), Err)
}

/// The keys of a look-up that one piece answers.
struct Group {
    /// The index partition of the piece; `None` for the only index block.
    leaf: Option<Arc<Block>>,
    /// Entries of the index whose blocks the piece covers.
    run: Range<usize>,
    /// Position of each key among the look-ups, and the index entry of its block; ascending.
    wanted: Vec<(usize, usize)>,
}

struct Walk<'a, 'v> {
    table: &'a TableReader,
    lookups: &'a [Lookup<'a>],
    options: &'a TableReadOptions,
    visit: VisitReference<'v>,
    current: Option<Group>,
    /// Groups whose pieces will be built.
    missing: Vec<Group>,
    /// Keys that no piece answers.
    others: Vec<usize>,
}

impl Walk<'_, '_> {
    /// Adds the next key, whose block an entry of `index` names.
    fn add(
        &mut self,
        leaf: Option<&Arc<Block>>,
        index: &IndexBlock,
        candidate: &Candidate,
    ) -> Result<()> {
        let (position, entry) = (candidate.lookup, candidate.entry);
        if let Some(group) = &mut self.current
            && group.run.contains(&entry)
            && group.leaf.as_ref().map(Arc::as_ptr) == leaf.map(Arc::as_ptr)
        {
            group.wanted.push((position, entry));
            return Ok(());
        }
        self.close()?;
        let (leaf, run) = (leaf.cloned(), run_of(index, entry));
        self.current = Some(Group { leaf, run, wanted: vec![(position, entry)] });
        Ok(())
    }

    /// Answers the keys of the current group, or notes how they will be answered.
    fn close(&mut self) -> Result<()> {
        let Some(group) = self.current.take() else { return Ok(()) };
        let index = index_of(self.table, group.leaf.as_ref())?;
        let key = piece_key(self.table, index, group.run.start);
        if let Some(block) = self.table.cache.get(&key, BlockKind::Flat) {
            let piece = block.flat().ok_or_else(|| self.table.mixed_up(handle(index, &group)))?;
            self.answer(&group, piece);
            return Ok(());
        }
        if self.options.cache_only || !is_worth_building(self.table, index, &group) {
            self.others.extend(group.wanted.iter().map(|&(position, _)| position));
            return Ok(());
        }
        self.missing.push(group);
        if self.missing.len() == PIECES_MAX { self.build_missing() } else { Ok(()) }
    }

    fn answer(&mut self, group: &Group, piece: &FlatBlock) {
        let mut from = 0;
        for &(position, _) in &group.wanted {
            let lookup = &self.lookups[position];
            if let Some(at) = piece.newest(lookup.key, lookup.snapshot, &mut from) {
                (self.visit)(position, piece.entries[at].seq(), Some(&piece.reference(at)));
            }
        }
    }

    /// Reads the blocks of all missing pieces in one batch, builds the pieces, and answers from
    /// them.
    fn build_missing(&mut self) -> Result<()> {
        let groups = std::mem::take(&mut self.missing);
        let mut spans = Vec::new();
        for group in &groups {
            let index = index_of(self.table, group.leaf.as_ref())?;
            let is_missing =
                |&at: &usize| !has_head(index, at) && !self.table.is_cached(index.place(at).handle);
            group.run.clone().filter(is_missing).for_each(|at| {
                Span::extend(&mut spans, index.place(at).handle);
            });
        }
        let mut requests: Vec<(u64, &mut [u8])> =
            spans.iter_mut().map(|span| (span.offset, span.bytes.as_mut_slice())).collect();
        if !requests.is_empty() {
            self.table.file.read_many(&mut requests, self.options.context)?;
        }
        for group in &groups {
            let index = index_of(self.table, group.leaf.as_ref())?;
            let Some(piece) = build(self.table, index, group, &spans, self.options)? else {
                self.others.extend(group.wanted.iter().map(|&(position, _)| position));
                continue;
            };
            let key = piece_key(self.table, index, group.run.start);
            let block = self.table.cache.insert(key, Block::of_flat(piece));
            let piece = block.flat().ok_or_else(|| self.table.mixed_up(handle(index, group)))?;
            self.answer(group, piece);
        }
        Ok(())
    }
}

/// A range of the file that is read in one piece.
struct Span {
    offset: u64,
    bytes: Vec<u8>,
}

impl Span {
    /// Adds a block to the last span if it follows that span, else to a new one.
    fn extend(spans: &mut Vec<Self>, handle: Handle) {
        let bytes = handle.size as usize + TRAILER_BYTES;
        match spans.last_mut() {
            Some(last) if last.offset + last.bytes.len() as u64 == handle.offset => {
                last.bytes.resize(last.bytes.len() + bytes, 0);
            }
            _ => spans.push(Self { offset: handle.offset, bytes: vec![0; bytes] }),
        }
    }

    /// The bytes of a block; `None` if no span has them.
    fn find(spans: &[Self], handle: Handle) -> Option<&[u8]> {
        let after = spans.partition_point(|span| span.offset <= handle.offset);
        let span = &spans[after.checked_sub(1)?];
        let start = usize::try_from(handle.offset - span.offset).ok()?;
        span.bytes.get(start..start + handle.size as usize + TRAILER_BYTES)
    }
}

fn index_of<'a>(table: &'a TableReader, leaf: Option<&'a Arc<Block>>) -> Result<&'a IndexBlock> {
    match leaf {
        Some(block) => block.index().ok_or_else(|| table.mixed_up(table.footer.index)),
        None => Ok(&table.index),
    }
}

fn handle(index: &IndexBlock, group: &Group) -> Handle {
    index.place(group.run.start).handle
}

/// The entries that share a piece with `entry`.
fn run_of(index: &IndexBlock, entry: usize) -> Range<usize> {
    let place = |at: usize| index.place(at).handle.offset / PIECE_BYTES;
    let shared = place(entry);
    let start = (0..entry).rev().take_while(|&at| place(at) == shared).last().unwrap_or(entry);
    let others = (entry + 1..index.len()).take_while(|&at| place(at) == shared).count();
    start..entry + 1 + others
}

fn piece_key(table: &TableReader, index: &IndexBlock, first: usize) -> BlockKey {
    let offset = index.place(first).handle.offset;
    BlockKey::new(&table.footer.unique_id, offset | KEY_BIT)
}

/// Removes the piece that begins at entry `at` from the cache, if one begins there.
pub(in crate::sst) fn forget_piece(table: &TableReader, index: &IndexBlock, at: usize) {
    if !table.properties.refs.is_empty() {
        table.cache.remove(&piece_key(table, index, at));
    }
}

/// Whether the index entry is enough for a piece, because it says that the block's only record is
/// no reference.
fn has_head(index: &IndexBlock, at: usize) -> bool {
    let is_other =
        |trailer: u64| Kind::from_byte(trailer as u8).is_some_and(|kind| kind != Kind::Indirect);
    index.place(at).has_record
        && index.entry(at).record.is_some_and(|record| is_other(record.trailer))
}

/// Whether at least half of the blocks that the piece needs are wanted or cached.
fn is_worth_building(table: &TableReader, index: &IndexBlock, group: &Group) -> bool {
    let mut wanted = group.wanted.iter().map(|&(_, entry)| entry).peekable();
    let (mut needed, mut at_hand) = (0, 0);
    for at in group.run.clone() {
        let mut is_wanted = false;
        while wanted.next_if_eq(&at).is_some() {
            is_wanted = true;
        }
        if has_head(index, at) {
            continue;
        }
        needed += 1;
        if is_wanted || table.is_cached(index.place(at).handle) {
            at_hand += 1;
        }
    }
    at_hand * 2 >= needed
}

/// Builds the piece of `group`, from the spans that were read and from cached blocks. A block that
/// the cache has evicted meanwhile is read.
fn build(
    table: &TableReader,
    index: &IndexBlock,
    group: &Group,
    spans: &[Span],
    options: &TableReadOptions,
) -> Result<Option<FlatBlock>> {
    let mut builder = FlatBuilder::default();
    for at in group.run.clone() {
        let handle = index.place(at).handle;
        if has_head(index, at) {
            let entry = index.entry(at);
            let record = entry.record.ok_or_else(|| table.mixed_up(handle))?;
            let user_key = [index.prefix(), entry.suffix].concat();
            builder.add(&user_key, key::trailer_seq(record.trailer), None);
            continue;
        }
        if let Some(raw) = Span::find(spans, handle) {
            let id = &table.footer.unique_id;
            let payload = open_block(raw.to_vec(), &table.path, id, handle.offset)?;
            let data = DataBlock::parse(payload).map_err(|_| table.damaged(handle))?;
            add_records(table, handle, &data, &mut builder)?;
        } else {
            let block = match table.cache.peek(&table.key_of(handle)) {
                Some(block) => block,
                None => table.block_by_key(handle, options)?,
            };
            let data = block.data().ok_or_else(|| table.mixed_up(handle))?;
            add_records(table, handle, data, &mut builder)?;
        }
    }
    Ok(builder.finish())
}

/// Adds every record of a data block.
fn add_records(
    table: &TableReader,
    handle: Handle,
    data: &DataBlock,
    builder: &mut FlatBuilder,
) -> Result<()> {
    let damaged = |_| table.damaged(handle);
    let mut cursor = Cursor::default();
    cursor.seek_to_first(data).map_err(damaged)?;
    while cursor.valid() {
        let (user_key, trailer) = (key::user_key(cursor.key()), key::trailer(cursor.key()));
        let reference = match Kind::from_byte(trailer as u8) {
            Some(Kind::Indirect) => match Reference::decode(cursor.value(data)) {
                Ok(reference) => Some(reference),
                Err(why) => {
                    let what =
                        format!("the reference of key \"{}\": {why}", user_key.escape_ascii());
                    return Err(Error::corrupt(&table.path, handle.offset, what));
                }
            },
            Some(_) => None,
            None => {
                let what = format!("data block: record of unknown kind {}", trailer as u8);
                return Err(Error::corrupt(&table.path, handle.offset, what));
            }
        };
        builder.add(user_key, key::trailer_seq(trailer), reference.as_ref());
        cursor.next(data).map_err(damaged)?;
    }
    Ok(())
}

/// Serves a point read whose data block, at `position` of `index`, is not cached. Visits the newest
/// version of the key that the look-up's snapshot sees, if a cached piece knows it. `None`: no
/// piece knows it, and nothing was visited. `Some(Continue)`: the visitor wants the versions below
/// the returned sequence number.
pub(in crate::sst) fn lookup_newest(
    table: &TableReader,
    index: &IndexBlock,
    position: usize,
    lookup: &Lookup<'_>,
    options: &TableReadOptions,
    visit: &mut dyn FnMut(&Found<'_>) -> Visit,
) -> Option<(SeqNo, Visit)> {
    if !may_have_pieces(table, options) {
        return None;
    }
    let key = piece_key(table, index, run_of(index, position).start);
    let block = table.cache.get(&key, BlockKind::Flat)?;
    let piece = block.flat()?;
    let at = piece.newest(lookup.key, lookup.snapshot, &mut 0)?;
    let entry = &piece.entries[at];
    if entry.has(BELOW_ANOTHER) {
        return None;
    }
    let reference = piece.reference(at);
    let mut value = Vec::with_capacity(reference.encoded_bytes());
    reference.encode(&mut value);
    let (seq, kind) = (entry.seq(), Kind::Indirect);
    let outcome = visit(&Found { seq, kind, value: &value, pinner: None });
    Some((seq, outcome))
}
