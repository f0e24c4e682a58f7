//! Point look-ups of many keys at once: the blocks that are not cached are read in one batch.

use std::sync::Arc;

use archipelago_base::Result;

use super::block::Block;
use super::format::{Handle, TRAILER_BYTES};
use super::index::IndexBlock;
use super::reader::{TableReadOptions, TableReader};
use crate::cache::BlockKind;
use crate::lookup::{Found, Lookup, Visit};

/// Most blocks that are held at a time, so that a huge batch does not pin the whole file.
const BLOCKS_MAX: usize = 256;

/// A key that the filter lets through, and the block it would be in.
struct Candidate {
    lookup: usize,
    trailer: u64,
    handle: Handle,
    continues: bool,
}

impl TableReader {
    /// Looks up keys, which are sorted ascending: visits the versions of each, with its position
    /// in `lookups`, until the visitor breaks for that key. One batch of file reads for all
    /// blocks that are not cached.
    pub fn multi_lookup(
        &self,
        lookups: &[Lookup<'_>],
        options: &TableReadOptions,
        visit: &mut dyn FnMut(usize, &Found<'_>) -> Visit,
    ) -> Result<()> {
        let candidates = self.candidates(lookups, options)?;
        let mut rest = candidates.as_slice();
        while !rest.is_empty() {
            let mut handles: Vec<Handle> = Vec::new();
            let mut taken = 0;
            for candidate in rest {
                if handles.last() != Some(&candidate.handle) {
                    if handles.len() == BLOCKS_MAX {
                        break;
                    }
                    handles.push(candidate.handle);
                }
                taken += 1;
            }
            let blocks = self.blocks(&handles, options)?;
            self.visit_candidates(&rest[..taken], lookups, &blocks, options, visit)?;
            rest = &rest[taken..];
        }
        Ok(())
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
                let _ = self.lookup_in_block(block, handle, lookup, trailer, &mut visit)?;
            }
        }
        Ok(())
    }

    /// Filters the keys and finds their blocks.
    fn candidates(
        &self,
        lookups: &[Lookup<'_>],
        options: &TableReadOptions,
    ) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::with_capacity(lookups.len());
        let mut leaf: Option<(usize, Arc<Block>)> = None;
        for (position, lookup) in lookups.iter().enumerate() {
            let Some(trailer) = self.seek_trailer(lookup.snapshot) else { continue };
            if !self.may_contain(lookup.hash) {
                continue;
            }
            if !self.footer.partitioned {
                candidates.extend(candidate(&self.index, position, lookup, trailer));
                continue;
            }
            let top = self.index.search(lookup.key, trailer);
            if top == self.index.len() {
                continue;
            }
            let entry = self.index.entry(top);
            if entry.filter.is_some() {
                let block = self.block(entry.filter, BlockKind::Filter, options)?;
                let filter = block.filter().ok_or_else(|| self.mixed_up(entry.filter))?;
                if !filter.may_contain(lookup.hash) {
                    continue;
                }
            }
            if leaf.as_ref().is_none_or(|(at, _)| *at != top) {
                leaf = Some((top, self.block(entry.handle, BlockKind::Index, options)?));
            }
            if let Some((_, block)) = &leaf {
                let index = block.index().ok_or_else(|| self.mixed_up(entry.handle))?;
                candidates.extend(candidate(index, position, lookup, trailer));
            }
        }
        Ok(candidates)
    }

    /// The blocks at `handles`, from the cache or in one batch of reads.
    fn blocks(
        &self,
        handles: &[Handle],
        options: &TableReadOptions,
    ) -> Result<Vec<(Handle, Arc<Block>)>> {
        let mut found: Vec<Option<Arc<Block>>> =
            handles.iter().map(|&handle| self.cached_block(handle, BlockKind::Data)).collect();
        let missing: Vec<usize> =
            (0..handles.len()).filter(|&index| found[index].is_none()).collect();
        if let Some(&first) = missing.first() {
            if options.cache_only {
                return Err(self.would_need_io(handles[first]));
            }
            let mut raws: Vec<Vec<u8>> = missing
                .iter()
                .map(|&index| vec![0; handles[index].size as usize + TRAILER_BYTES])
                .collect();
            let mut requests: Vec<(u64, &mut [u8])> = missing
                .iter()
                .zip(&mut raws)
                .map(|(&index, raw)| (handles[index].offset, raw.as_mut_slice()))
                .collect();
            self.file.read_many(&mut requests, options.context)?;
            for (&index, raw) in missing.iter().zip(raws) {
                found[index] = Some(self.admit(handles[index], BlockKind::Data, raw, options)?);
            }
        }
        Ok(handles.iter().copied().zip(found.into_iter().flatten()).collect())
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
    Some(Candidate { lookup: position, trailer, handle, continues })
}
