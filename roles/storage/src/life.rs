//! The lives of a node, and whether the end of the last one may have lost unsynced bytes.
//!
//! The node keeps one [`LifeRecord`] in its metadata. It writes one when it opens and one when it
//! closes.
//!
//! Invariants:
//! 1. The number of a life is larger than that of every earlier one.
//! 2. The record of a new life becomes durable together with the consequences of the end of the
//!    last one. So a second crash during the opening leads to the same consequences.
//!
//! Thread-safety: plain values. Failure: errors of the metadata. Cost: one read and one sync.

use archipelago_base::codec::{Reader, put_u8, put_u64};
use archipelago_base::{Error, ErrorKind, Result};

use crate::meta::{Meta, MetaBatch, MetaSpace};

/// Version of the record.
const RECORD_VERSION: u8 = 1;
/// Key of the record.
const KEY: &[u8] = b"life";

/// Record of the present or last life in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifeRecord {
    /// Number of the life; the first one is 1.
    pub(crate) number: u64,
    /// Boot id of the machine; `None` if it is unknown.
    pub(crate) boot_id: Option<[u8; 16]>,
    /// Whether the node was closed, so that it has lost nothing.
    pub(crate) is_closed: bool,
}

/// Beginning of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// The new life.
    pub(crate) life: LifeRecord,
    /// Whether unsynced bytes of the last life may be lost: it was not closed, and the machine may
    /// have restarted since.
    pub(crate) may_have_lost_memory: bool,
}

impl LifeRecord {
    /// Begins a new life under `boot_id`.
    pub(crate) fn begin(meta: &Meta, boot_id: Option<[u8; 16]>) -> Result<Beginning> {
        let last = match meta.get(MetaSpace::Node, KEY)? {
            Some(bytes) => Some(Self::decode(&bytes)?),
            None => None,
        };
        let may_have_lost_memory = last.is_some_and(|last| {
            let is_same_boot = last.boot_id.is_some() && last.boot_id == boot_id;
            !last.is_closed && !is_same_boot
        });
        let number = last.map_or(0, |last| last.number) + 1;
        let life = Self { number, boot_id, is_closed: false };
        Ok(Beginning { life, may_have_lost_memory })
    }

    /// Adds the record to `batch`.
    pub(crate) fn put(&self, batch: &mut MetaBatch) {
        batch.put(MetaSpace::Node, KEY, &self.encode());
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        put_u8(&mut out, RECORD_VERSION);
        put_u64(&mut out, self.number);
        put_u8(&mut out, u8::from(self.is_closed));
        put_u8(&mut out, u8::from(self.boot_id.is_some()));
        out.extend_from_slice(&self.boot_id.unwrap_or_default());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let record = (|| {
            let is_known = reader.u8()? == RECORD_VERSION;
            let number = reader.u64()?;
            let (is_closed, has_boot_id) = (reader.u8()? != 0, reader.u8()? != 0);
            let boot_id: [u8; 16] = reader.take(16)?.try_into().ok()?;
            let boot_id = has_boot_id.then_some(boot_id);
            (is_known && reader.is_empty()).then_some(Self { number, boot_id, is_closed })
        })();
        record.ok_or_else(|| {
            let text = "the record of the node's last life cannot be read; it may be of another \
                        version";
            Error::new(ErrorKind::Corrupt, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use archipelago_env::FileSystem;
    use archipelago_env::mem::MemFs;

    use super::{LifeRecord, MetaBatch};
    use crate::meta::{Meta, MetaThreads};

    fn meta() -> Meta {
        let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
        Meta::open(&fs, Path::new("/node/meta"), MetaThreads::Caller).unwrap()
    }

    fn keep(meta: &Meta, life: LifeRecord) {
        let mut batch = MetaBatch::default();
        life.put(&mut batch);
        meta.write(&batch).unwrap();
    }

    fn loses(last: LifeRecord, boot_id: Option<[u8; 16]>) -> bool {
        let meta = meta();
        keep(&meta, last);
        let beginning = LifeRecord::begin(&meta, boot_id).unwrap();
        assert_eq!(beginning.life.number, last.number + 1);
        beginning.may_have_lost_memory
    }

    #[test]
    fn only_an_unclean_end_with_another_boot_loses_memory() {
        let (here, there) = (Some([1; 16]), Some([2; 16]));
        let killed = LifeRecord { number: 4, boot_id: here, is_closed: false };
        assert!(!loses(killed, here));
        assert!(loses(killed, there));
        assert!(loses(killed, None), "an unknown boot id proves nothing");
        assert!(loses(LifeRecord { boot_id: None, ..killed }, None));
        assert!(!loses(LifeRecord { is_closed: true, ..killed }, there));
    }

    #[test]
    fn first_life_has_lost_nothing() {
        let beginning = LifeRecord::begin(&meta(), None).unwrap();
        assert_eq!(beginning.life.number, 1);
        assert!(!beginning.may_have_lost_memory);
    }
}
