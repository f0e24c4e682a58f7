//! Anchors of a table: some of its index keys with the bytes between them, for cutting a
//! compaction into even parts ([`crate::compaction::subcompaction`]).
//!
//! Cost: no I/O; one pass over the index that the reader holds in memory. For a file with
//! partitions that is the top index: its anchors are partition ends, and the bytes between them are
//! estimated from the partitions' sizes.

use super::reader::TableReader;

/// A key at which a compaction of the file may be cut, and the bytes before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// A user key, in the file or between two of its keys.
    pub key: Vec<u8>,
    /// Approximate bytes of the file between the previous anchor and this one.
    pub bytes: u64,
}

/// At most `most` anchors (or one, if that is 0), ascending, with about equal bytes between them.
/// Together they account for all data bytes of the file.
pub(crate) fn anchors(table: &TableReader, most: usize) -> Vec<Anchor> {
    let (index, data_bytes) = (&table.index, table.properties.data_bytes);
    let sizes = (0..index.len()).map(|entry| u64::from(index.place(entry).handle.size));
    let total: u64 = sizes.clone().sum();
    if total == 0 {
        return Vec::new();
    }
    let most = most.max(1) as u64;
    let mut anchors = Vec::new();
    let (mut seen, mut told) = (0, 0);
    for (entry, size) in sizes.enumerate() {
        seen += size;
        let due = (anchors.len() as u64 + 1) * total / most;
        if seen < due && entry + 1 < index.len() {
            continue;
        }
        let through = (u128::from(data_bytes) * u128::from(seen) / u128::from(total)) as u64;
        let key = [index.prefix(), index.entry(entry).suffix].concat();
        anchors.push(Anchor { key, bytes: through - told });
        told = through;
    }
    anchors
}
