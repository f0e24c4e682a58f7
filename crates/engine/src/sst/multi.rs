//! Point look-ups of many keys in one batch: the blocks that are not cached are read together. Keys
//! that the Flat Index Cache answers need no block.

use std::sync::Arc;

use archipelago_base::Result;

use super::block::{Block, BlockGuard};
use super::flat;
use super::format::{Handle, TRAILER_BYTES};
use super::index::IndexBlock;
use super::reader::{TableReadOptions, TableReader};
use crate::cache::BlockKind;
use crate::lookup::{Found, Lookup, Visit};

/// Largest number of blocks that are held at a time, so that a huge batch does not pin the whole
/// file.
const BLOCKS_MAX: usize = 256;

/// A key that the filter does not exclude, and the block that may hold it.
pub(super) struct Candidate {
    /// Position of the key among the look-ups.
    pub(super) lookup: usize,
    trailer: u64,
    handle: Handle,
    /// The entry of its index block that names the block.
    pub(super) entry: usize,
    continues: bool,
}

impl TableReader {
    /// Looks up keys, which are sorted ascending. Visits the versions of each, with its position in
    /// `lookups`, until the visitor breaks for that key. All blocks that are not cached are read in
    /// one batch.
    pub fn multi_lookup(
        &self,
        lookups: &[Lookup<'_>],
        options: &TableReadOptions,
        visit: &mut dyn FnMut(usize, &Found<'_>) -> Visit,
    ) -> Result<()> {
        let mut candidates = Vec::with_capacity(lookups.len());
        let may_have_pieces = flat::may_have_pieces(self, options);
        self.for_each_candidate(lookups, options, |_, index, candidate| {
            if !may_have_pieces
                || !self.answer_from_piece(index, &candidate, lookups, options, visit)?
            {
                candidates.push(candidate);
            }
            Ok(())
        })?;
        let mut rest = candidates.as_slice();
        while !rest.is_empty() {
            let mut handles: Vec<(Handle, usize)> = Vec::new();
            let mut taken = 0;
            for candidate in rest {
                if handles.last().is_none_or(|last| last.0 != candidate.handle) {
                    if handles.len() == BLOCKS_MAX {
                        break;
                    }
                    handles.push((candidate.handle, candidate.entry));
                }
                taken += 1;
            }
            let blocks = self.blocks(&handles, options)?;
            self.visit_candidates(&rest[..taken], lookups, &blocks, options, visit)?;
            rest = &rest[taken..];
        }
        Ok(())
    }

    /// Answers a key whose data block is not cached from a cached piece of the Flat Index Cache.
    /// Returns whether a piece knew the key.
    fn answer_from_piece(
        &self,
        index: &IndexBlock,
        candidate: &Candidate,
        lookups: &[Lookup<'_>],
        options: &TableReadOptions,
        visit: &mut dyn FnMut(usize, &Found<'_>) -> Visit,
    ) -> Result<bool> {
        if self.is_cached(candidate.handle) {
            return Ok(false);
        }
        let lookup = &lookups[candidate.lookup];
        let mut visit = |found: &Found<'_>| visit(candidate.lookup, found);
        let entry = candidate.entry;
        match flat::lookup_newest(self, index, entry, lookup, options, &mut visit) {
            None => Ok(false),
            Some((_, Visit::Break(()))) => Ok(true),
            Some((seq, Visit::Continue(()))) => {
                self.lookup_older(lookup, seq, options, &mut visit)?;
                Ok(true)
            }
        }
    }

    fn visit_candidates(
        &self,
        candidates: &[Candidate],
        lookups: &[Lookup<'_>],
        blocks: &[(Handle, Arc<Block>)],
        options: &TableReadOptions,
        visit: &mut dyn FnMut(usize, &Found<'_>) -> Visit,
    ) -> Result<()> {
        let mut at = 0;
        for candidate in candidates {
            while blocks[at].0 != candidate.handle {
                at += 1;
            }
            let (lookup, trailer) = (&lookups[candidate.lookup], candidate.trailer);
            let mut visit = |found: &Found<'_>| visit(candidate.lookup, found);
            if candidate.continues {
                self.lookup(lookup, options, &mut visit)?;
            } else {
                let block = &blocks[at].1;
                let handle = candidate.handle;
                let _ = self.lookup_in_block(block, || handle, lookup, trailer, &mut visit)?;
            }
        }
        Ok(())
    }

    /// Filters the keys and finds their blocks. Passes each key that the filter does not exclude to
    /// `take`, in order. With it come the index partition (`None` for the only index block) and the
    /// index block that names its data block.
    pub(super) fn for_each_candidate(
        &self,
        lookups: &[Lookup<'_>],
        options: &TableReadOptions,
        mut take: impl FnMut(Option<&Arc<Block>>, &IndexBlock, Candidate) -> Result<()>,
    ) -> Result<()> {
        let mut leaf: Option<(usize, Arc<Block>)> = None;
        for (position, lookup) in lookups.iter().enumerate() {
            let Some(trailer) = self.seek_trailer(lookup.snapshot) else { continue };
            if !self.may_contain(lookup.hash) {
                continue;
            }
            if !self.footer.partitioned {
                if let Some(candidate) = candidate(&self.index, position, lookup, trailer) {
                    take(None, &self.index, candidate)?;
                }
                continue;
            }
            let top = self.index.search(lookup.key, trailer);
            if top == self.index.len() {
                continue;
            }
            let entry = self.index.entry(top);
            if entry.filter.is_some() {
                let spot = self.index.filter_spot(top);
                let block = self.block(spot, entry.filter, BlockKind::Filter, options)?;
                let filter = block.filter().ok_or_else(|| self.mixed_up(entry.filter))?;
                if !filter.may_contain(lookup.hash) {
                    continue;
                }
            }
            if leaf.as_ref().is_none_or(|(at, _)| *at != top) {
                let spot = self.index.spot(top);
                let block = self.block(spot, entry.handle, BlockKind::Index, options)?;
                leaf = Some((top, block.into_arc()));
            }
            if let Some((_, block)) = &leaf {
                let index = block.index().ok_or_else(|| self.mixed_up(entry.handle))?;
                if let Some(candidate) = candidate(index, position, lookup, trailer) {
                    take(Some(block), index, candidate)?;
                }
            }
        }
        Ok(())
    }

    /// The blocks at `handles` (with their entries in the index block), from the cache or from one
    /// batch of reads.
    fn blocks(
        &self,
        handles: &[(Handle, usize)],
        options: &TableReadOptions,
    ) -> Result<Vec<(Handle, Arc<Block>)>> {
        let cached = |&(handle, entry): &(Handle, usize)| match self.footer.partitioned {
            false => self
                .cached_block(self.index.spot(entry), handle, BlockKind::Data)
                .map(BlockGuard::into_arc),
            true => self.cached_by_key(handle, BlockKind::Data),
        };
        let mut found: Vec<Option<Arc<Block>>> = handles.iter().map(cached).collect();
        let handles = || handles.iter().map(|&(handle, _)| handle);
        let missing: Vec<(usize, Handle)> =
            handles().enumerate().filter(|&(index, _)| found[index].is_none()).collect();
        if let Some(&(_, first)) = missing.first() {
            if options.cache_only {
                return Err(self.would_need_io(first));
            }
            let ranges: Vec<(u64, usize)> = missing
                .iter()
                .map(|(_, handle)| (handle.offset, handle.size as usize + TRAILER_BYTES))
                .collect();
            for (_, handle) in &missing {
                // The time of a batch is not that of a read.
                let _untimed = self.begin_read(*handle, options);
            }
            let raws = self.file.read_many_new(&ranges, options.context)?;
            for (&(index, handle), raw) in missing.iter().zip(raws) {
                found[index] = Some(self.admit(handle, BlockKind::Data, raw, options)?);
            }
        }
        Ok(handles().zip(found.into_iter().flatten()).collect())
    }
}

fn candidate(
    index: &IndexBlock,
    position: usize,
    lookup: &Lookup<'_>,
    trailer: u64,
) -> Option<Candidate> {
    let at = index.search(lookup.key, trailer);
    if at == index.len() {
        return None;
    }
    let place = index.place(at);
    let (handle, continues) = (place.handle, place.continues);
    Some(Candidate { lookup: position, trailer, handle, entry: at, continues })
}
