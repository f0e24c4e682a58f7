//! Keys and handles of a value file in memory.
//!
//! A garbage collection job looks up the keys of its inputs before it reads a value. A [`KeyList`]
//! holds them in one arena, in internal-key order, which is also the order of the value records in
//! the file. It is a plain value.
//!
//! Cost: a list takes the bytes of the user keys and 32 bytes for each record.

use archipelago_base::{Error, Result, SeqNo};

use crate::key;
use crate::sst::value_file::ValueKeys;
use crate::value_ref::ValueHandle;

/// A record of a [`KeyList`].
#[derive(Clone, Copy, Debug)]
struct ListedKey {
    /// End of the user key in the arena.
    key_end: u32,
    seq: SeqNo,
    handle: ValueHandle,
}

/// The keys of a value file with their handles, in internal-key order.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyList {
    arena: Vec<u8>,
    records: Vec<ListedKey>,
}

impl KeyList {
    /// Bytes of memory that a list takes for each record, without its user key.
    pub(crate) const RECORD_BYTES: u64 = size_of::<ListedKey>() as u64;

    /// The keys on a walk over a value file, from its position on. Errors: `Corrupt` if the file is
    /// damaged; `Unsupported` if its user keys take 4 GiB.
    pub(crate) fn read(mut keys: ValueKeys) -> Result<Self> {
        let mut list = Self::default();
        list.records.reserve_exact(usize::try_from(keys.records()).unwrap_or(0));
        while let Some((internal, handle)) = keys.current()? {
            list.arena.extend_from_slice(key::user_key(internal));
            let key_end = u32::try_from(list.arena.len())
                .map_err(|_| Error::unsupported("the keys of a value file take 4 GiB"))?;
            let seq = key::trailer_seq(key::trailer(internal));
            list.records.push(ListedKey { key_end, seq, handle });
            keys.advance();
        }
        // The arena has grown by doubling.
        list.arena.shrink_to_fit();
        Ok(list)
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// User key of record `at`.
    #[inline]
    pub(crate) fn user_key(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.records[at - 1].key_end };
        &self.arena[start as usize..self.records[at].key_end as usize]
    }

    /// Sequence number of record `at`.
    #[inline]
    pub(crate) fn seq(&self, at: usize) -> SeqNo {
        self.records[at].seq
    }

    /// Position and lengths of the value of record `at`.
    #[inline]
    pub(crate) fn handle(&self, at: usize) -> ValueHandle {
        self.records[at].handle
    }

    /// Bytes of memory that the list takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.arena.capacity() + self.records.capacity() * size_of::<ListedKey>()) as u64
    }
}
