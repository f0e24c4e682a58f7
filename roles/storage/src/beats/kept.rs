//! Orders of operators that a node keeps for managers that are started later. The node's metadata
//! contain these orders. `docs/formats/storage-metadata.md` has the byte table.
//!
//! Thread-safety: plain values. Failure: errors of the metadata, `Unsupported` for a record of
//! another version, and `Corrupt` for bytes that are no record. Cost: two reads when the node
//! opens.

use std::collections::BTreeSet;

use archipelago_base::codec::{Reader, put_u8, put_u64, put_varint};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_store::nodes::StorageId;

use crate::meta::{Meta, MetaBatch, MetaSpace};

/// Key under which the node keeps whether it drains: one byte, 0 or 1.
const DRAINS_KEY: &[u8] = b"draining";
/// Key of the record of the nodes that operators have given up.
const FORGOTTEN_KEY: &[u8] = b"forgotten";
/// Version of that record.
const FORGOTTEN_VERSION: u8 = 1;

/// Orders of operators, from the last answers of managers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptOrders {
    /// Whether the node is to be emptied.
    pub(super) is_draining: bool,
    /// Nodes that never return.
    pub(super) forgotten: BTreeSet<StorageId>,
}

impl KeptOrders {
    /// The orders that the metadata have.
    pub(super) fn load(meta: &Meta) -> Result<Self> {
        let drains = meta.get(MetaSpace::Node, DRAINS_KEY)?;
        let is_draining = drains.is_some_and(|kept| kept == [1]);
        let forgotten = match meta.get(MetaSpace::Node, FORGOTTEN_KEY)? {
            Some(bytes) => decode(&bytes)?,
            None => BTreeSet::new(),
        };
        Ok(Self { is_draining, forgotten })
    }

    /// Adds the orders to `batch`.
    pub(super) fn put(&self, batch: &mut MetaBatch) {
        batch.put(MetaSpace::Node, DRAINS_KEY, &[u8::from(self.is_draining)]);
        batch.put(MetaSpace::Node, FORGOTTEN_KEY, &encode(&self.forgotten));
    }
}

fn encode(forgotten: &BTreeSet<StorageId>) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    put_u8(&mut out, FORGOTTEN_VERSION);
    put_varint(&mut out, forgotten.len() as u64);
    forgotten.iter().for_each(|storage| put_u64(&mut out, storage.0));
    out
}

fn decode(bytes: &[u8]) -> Result<BTreeSet<StorageId>> {
    let mut reader = Reader::new(bytes);
    let object = "the record of the storage nodes that operators have given up";
    match reader.u8() {
        Some(FORGOTTEN_VERSION) => {}
        Some(version) => {
            return Err(Error::unsupported(format!(
                "{object} has version {version}; this program reads version {FORGOTTEN_VERSION}: \
                 use the program that wrote it"
            )));
        }
        None => return Err(Error::new(ErrorKind::Corrupt, format!("{object} is empty"))),
    }
    let read = |reader: &mut Reader<'_>| {
        let count = reader.varint32()?;
        let forgotten = (0..count).map(|_| reader.u64().map(StorageId));
        forgotten.collect::<Option<BTreeSet<StorageId>>>()
    };
    let forgotten = read(&mut reader).filter(|_| reader.is_empty());
    forgotten.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("{object} cannot be read")))
}

/// Decodes `bytes` as the record of the nodes that operators have given up.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_forgotten(bytes: &[u8]) {
    if let Ok(forgotten) = decode(bytes) {
        assert_eq!(decode(&encode(&forgotten)).ok(), Some(forgotten));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_the_record_do_not_change() {
        let forgotten = BTreeSet::from([StorageId(0x0102), StorageId(7)]);
        let bytes = encode(&forgotten);
        assert_eq!(bytes, [1, 2, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode(&bytes).unwrap(), forgotten);
        assert_eq!(decode(&encode(&BTreeSet::new())).unwrap(), BTreeSet::new());
    }

    #[test]
    fn record_that_is_cut_longer_or_of_another_version_is_refused() {
        let bytes = encode(&BTreeSet::from([StorageId(7)]));
        let kind = |bytes: &[u8]| decode(bytes).unwrap_err().kind();
        assert!((0..bytes.len()).all(|len| kind(&bytes[..len]) == ErrorKind::Corrupt));
        assert_eq!(kind(&[&bytes[..], &[0]].concat()), ErrorKind::Corrupt);
        assert_eq!(kind(&[2, 0]), ErrorKind::Unsupported);
        // A count that exceeds the bytes allocates nothing.
        assert_eq!(kind(&[1, 0xff, 0xff, 0xff, 0xff, 0x0f]), ErrorKind::Corrupt);
    }
}
