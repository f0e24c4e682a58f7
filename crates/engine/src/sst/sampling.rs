//! Samples of a table's keys: the newest record of each key in some of its data blocks.
//!
//! The caller sets the number of blocks and keys. The blocks are spread evenly over the table.
//! Blocks over [`BLOCK_BYTES_MAX`] are left out, so that large values are not read. Cost: a block
//! is read through the block cache; for a file with partitions also a partition.

use archipelago_base::{Result, SeqNo};

use super::data_block::Cursor;
use super::format::Handle;
use super::reader::{TableReadOptions, TableReader};
use crate::cache::BlockKind;
use crate::key::{self, Kind};
use crate::value_ref::Reference;

/// Largest length in bytes of a stored block that is read for a sample.
const BLOCK_BYTES_MAX: u32 = 64 << 10;
/// Mean bytes of values per block from which on no block of the table is read.
const RAW_BLOCK_BYTES_MAX: u64 = 256 << 10;

/// The newest record of a key in its table.
#[derive(Clone, Debug)]
pub(crate) struct SampledKey {
    pub(crate) key: Vec<u8>,
    pub(crate) seq: SeqNo,
    pub(crate) kind: Kind,
    /// Expiry of the record (Unix milliseconds), if it has one. No separated value is read for it.
    pub(crate) expiry: Option<u64>,
}

/// Keys of one block.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampledBlock {
    /// Number of different keys in the block.
    pub(crate) keys: u64,
    /// Some of these keys, evenly spread.
    pub(crate) sampled: Vec<SampledKey>,
}

impl TableReader {
    /// Samples at most `blocks_max` blocks, and at most `keys_max` keys of each.
    pub(crate) fn sample(&self, blocks_max: usize, keys_max: usize) -> Result<Vec<SampledBlock>> {
        let raw = self.properties().raw_value_bytes / self.properties().data_blocks.max(1);
        if raw > RAW_BLOCK_BYTES_MAX {
            return Ok(Vec::new());
        }
        let options = TableReadOptions::foreground();
        let mut out = Vec::new();
        for handle in self.handles(blocks_max, &options)? {
            if handle.size <= BLOCK_BYTES_MAX {
                out.push(self.sample_block(handle, keys_max, &options)?);
            }
        }
        Ok(out)
    }

    /// Handles of at most `most` data blocks, evenly spread over the table.
    fn handles(&self, most: usize, options: &TableReadOptions) -> Result<Vec<Handle>> {
        let top = &self.index;
        let picked = picks(top.len(), most);
        if !self.footer.partitioned {
            return Ok(picked.map(|at| top.place(at).handle).collect());
        }
        let each = (most / top.len().max(1)).max(1);
        let mut handles = Vec::new();
        for at in picked {
            let place = top.entry(at).handle;
            let block = self.block(top.spot(at), place, BlockKind::Index, options)?;
            let leaf = block.index().ok_or_else(|| self.mixed_up(place))?;
            handles.extend(picks(leaf.len(), each).map(|at| leaf.place(at).handle));
        }
        Ok(handles)
    }

    fn sample_block(
        &self,
        handle: Handle,
        keys_max: usize,
        options: &TableReadOptions,
    ) -> Result<SampledBlock> {
        let block = self.block_by_key(handle, options)?;
        let data = block.data().ok_or_else(|| self.mixed_up(handle))?;
        let damaged = |_| self.damaged(handle);
        let mut all: Vec<SampledKey> = Vec::new();
        let mut cursor = Cursor::default();
        cursor.seek_to_first(data).map_err(damaged)?;
        while cursor.valid() {
            let (user_key, trailer) = (key::user_key(cursor.key()), key::trailer(cursor.key()));
            if all.last().is_none_or(|last| last.key != user_key) {
                let Some(kind) = Kind::from_byte(trailer as u8) else {
                    return Err(self.damaged(handle));
                };
                let expiry = expiry_of(kind, cursor.value(data));
                let seq = self.global_seq.unwrap_or(key::trailer_seq(trailer));
                all.push(SampledKey { key: user_key.to_vec(), seq, kind, expiry });
            }
            cursor.next(data).map_err(damaged)?;
        }
        let keys = all.len() as u64;
        let mut sampled = Vec::with_capacity(keys_max.min(all.len()));
        sampled.extend(picks(all.len(), keys_max).map(|at| all[at].clone()));
        Ok(SampledBlock { keys, sampled })
    }
}

/// The expiry in the stored value of a record, if it has one.
pub(crate) fn expiry_of(kind: Kind, stored: &[u8]) -> Option<u64> {
    match kind {
        Kind::PutExpiring => stored.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        Kind::Indirect => Reference::decode(stored).ok()?.expiry_unix_ms,
        _ => None,
    }
}

/// At most `most` of the positions below `len`, evenly spread.
fn picks(len: usize, most: usize) -> impl Iterator<Item = usize> {
    let count = len.min(most.max(1));
    // The middle of each part is picked.
    (0..count).map(move |part| (2 * part + 1) * len / (2 * count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_even_and_within_bounds() {
        assert_eq!(picks(0, 5).count(), 0);
        assert_eq!(picks(3, 5).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(picks(100, 4).collect::<Vec<_>>(), [12, 37, 62, 87]);
        assert_eq!(picks(7, 1).collect::<Vec<_>>(), [3]);
    }
}
