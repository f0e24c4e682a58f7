//! The operations of each thread, as a pure function of the seed, the thread and the operation's
//! number. So the acknowledged numbers alone determine the contents of the database.
//!
//! A thread writes only keys of its own. The only exceptions are the shared counters. All threads
//! add to them, but only in operations that also change the thread's own keys. The keys of a thread
//! are spread over the key space, so that its batches span buckets. Most of its writes go to one
//! place that moves, so that the load moves the boundaries of buckets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago::env::FileSystem;
use archipelago::{
    ColumnFamily, Db, IngestOptions, Result, SstWriter, TableOptions, WriteBatch, WriteOptions,
};

use crate::settings::{COUNTERS, FAMILIES, Rng};

/// Number of places in the key space in which each thread has keys.
const SLOTS: u64 = 16;
/// Number of keys of a thread in a slot.
const KEYS: u64 = 40;
/// Number of operations of a thread after which the place of most of them moves.
const STAY: u64 = 1500;
/// Number of counters to which all threads add.
const SHARED: u64 = 4;
/// One operation in this number is an ingestion, which waits for a flush.
const INGEST_ONE_IN: u32 = 200;

/// One change of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put { family: usize, key: Vec<u8>, value: Vec<u8> },
    Delete { family: usize, key: Vec<u8> },
    DeleteRange { family: usize, start: Vec<u8>, end: Vec<u8> },
    Add { key: Vec<u8>, count: u64 },
}

/// One operation. A check must find all of its changes, or none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) changes: Vec<Change>,
    pub(crate) sync: bool,
    /// Whether the changes, which are puts of one family, arrive as a table that is ingested.
    pub(crate) ingest: bool,
}

fn key(slot: u64, thread: u64, n: u64) -> Vec<u8> {
    format!("{slot:02}/t{thread:02}/{n:03}").into_bytes()
}

/// A key of `thread`, which exists or not.
pub(crate) fn any_key(rng: &mut Rng, thread: u64) -> Vec<u8> {
    key(rng.u64(..SLOTS), thread, rng.u64(..KEYS))
}

/// Thread to which the key belongs; `None` for a shared counter.
pub(crate) fn owner(key: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(key).ok()?;
    text.get(4..6)?.parse().ok()
}

fn shared_key(n: u64) -> Vec<u8> {
    format!("shared{n}").into_bytes()
}

/// Operation `n` of `thread`.
pub(crate) fn operation(seed: u64, thread: u64, n: u64) -> Operation {
    let mut rng =
        Rng::with_seed(seed ^ thread.rotate_left(32) ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let rng = &mut rng;
    let hot = n / STAY * 7 % SLOTS;
    let any = |rng: &mut Rng| {
        let slot = if rng.u32(..4) == 0 { rng.u64(..SLOTS) } else { hot };
        key(slot, thread, rng.u64(..KEYS))
    };
    let family = rng.usize(..FAMILIES.len());
    let stamp = format!("t{thread:02}-{n:09}-");
    if rng.u32(..INGEST_ONE_IN) == 0 {
        let (slot, first) = (rng.u64(..SLOTS), rng.u64(..KEYS));
        let keys = (first..KEYS.min(first + 4)).map(|n| key(slot, thread, n));
        let value = filled(rng, &stamp, 200);
        let put = |key| Change::Put { family, key, value: value.clone() };
        return Operation { changes: keys.map(put).collect(), sync: true, ingest: true };
    }
    let changes = match rng.u32(..100) {
        0..45 => vec![Change::Put { family, key: any(rng), value: filled(rng, &stamp, 1500) }],
        45..60 => vec![Change::Delete { family, key: any(rng) }],
        60..63 => {
            let (slot, from) = (rng.u64(..SLOTS), rng.u64(..KEYS));
            let to = from + rng.u64(1..KEYS);
            let (start, end) = (key(slot, thread, from), key(slot, thread, to.min(999)));
            vec![Change::DeleteRange { family, start, end }]
        }
        63..80 => vec![Change::Add { key: any(rng), count: rng.u64(1..100) }],
        _ => batch(rng, thread, &stamp),
    };
    Operation { changes, sync: rng.u32(..100) == 0, ingest: false }
}

/// Changes of one batch: the same stamp under several keys, over families and buckets, and
/// additions to counters.
fn batch(rng: &mut Rng, thread: u64, stamp: &str) -> Vec<Change> {
    let value = filled(rng, stamp, 200);
    let first = key(rng.u64(..SLOTS), thread, rng.u64(..KEYS));
    let mut changes = vec![Change::Put { family: 0, key: first, value: value.clone() }];
    for _ in 0..rng.u32(1..8) {
        let key = key(rng.u64(..SLOTS), thread, rng.u64(..KEYS));
        let family = rng.usize(..FAMILIES.len());
        changes.push(match rng.u32(..10) {
            0 => Change::Delete { family, key },
            1..3 => Change::Add { key, count: rng.u64(1..100) },
            3..5 => Change::Add { key: shared_key(rng.u64(..SHARED)), count: rng.u64(1..100) },
            _ => Change::Put { family, key, value: value.clone() },
        });
    }
    // The trace in the thread's own keys must not be undone by the batch itself.
    let trace = Change::Put { family: 0, key: key(0, thread, 0), value };
    changes.push(trace);
    changes
}

fn filled(rng: &mut Rng, stamp: &str, most: usize) -> Vec<u8> {
    let len = rng.usize(..most);
    let mut value = Vec::with_capacity(stamp.len() + len);
    value.extend_from_slice(stamp.as_bytes());
    value.resize(stamp.len() + len, b'a' + (len % 26) as u8);
    value
}

/// Targets of the operations of a thread.
pub(crate) struct Place<'a> {
    pub(crate) db: &'a Db,
    pub(crate) families: &'a [ColumnFamily],
    /// File system of the tables that will be ingested.
    pub(crate) fs: &'a Arc<dyn FileSystem>,
    /// Directory for the tables that will be ingested.
    pub(crate) scratch: &'a Path,
}

/// Ingests the puts of an operation.
fn ingest(place: &Place<'_>, thread: u64, operation: &Operation) -> Result<()> {
    let Place { db, families, fs, scratch } = place;
    let path = scratch.join(format!("table-{thread}"));
    let mut writer = SstWriter::create(fs, &path, TableOptions::default())?;
    let mut cf = &families[0];
    for change in &operation.changes {
        if let Change::Put { family, key, value } = change {
            cf = &families[*family];
            writer.put(key, value)?;
        }
    }
    writer.finish()?;
    db.ingest(cf, &[&path], &IngestOptions::default())
}

/// Carries out an operation of a thread.
pub(crate) fn perform(place: &Place<'_>, thread: u64, operation: &Operation) -> Result<()> {
    let Place { db, families, .. } = place;
    if operation.ingest {
        return ingest(place, thread, operation);
    }
    let mut batch = WriteBatch::new();
    for change in &operation.changes {
        match change {
            Change::Put { family, key, value } => batch.put_cf(families[*family].id(), key, value),
            Change::Delete { family, key } => batch.delete_cf(families[*family].id(), key),
            Change::DeleteRange { family, start, end } => {
                batch.delete_range_cf(families[*family].id(), start, end);
            }
            Change::Add { key, count } => {
                batch.merge_cf(families[COUNTERS].id(), key, &count.to_le_bytes());
            }
        }
    }
    let options = WriteOptions { sync: operation.sync, ..WriteOptions::default() };
    db.write(&batch, &options).map(|_| ())
}

/// Contents by family and key.
pub(crate) type Contents = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

/// State that a thread's operations have left so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    /// Keys that only this thread writes.
    pub(crate) own: Contents,
    /// Sum that the thread has added to each shared counter.
    pub(crate) shared: BTreeMap<Vec<u8>, u64>,
}

impl Model {
    /// Carries out an operation.
    pub(crate) fn apply(&mut self, operation: &Operation) {
        for change in &operation.changes {
            match change {
                Change::Put { family, key, value } => {
                    self.own.insert((*family, key.clone()), value.clone());
                }
                Change::Delete { family, key } => {
                    self.own.remove(&(*family, key.clone()));
                }
                Change::DeleteRange { family, start, end } => {
                    let range = (*family, start.clone())..(*family, end.clone());
                    let gone: Vec<_> = self.own.range(range).map(|(key, _)| key.clone()).collect();
                    gone.iter().for_each(|key| drop(self.own.remove(key)));
                }
                Change::Add { key, count } if owner(key).is_some() => {
                    let entry = self.own.entry((COUNTERS, key.clone())).or_default();
                    *entry = (number(entry) + count).to_le_bytes().to_vec();
                }
                Change::Add { key, count } => *self.shared.entry(key.clone()).or_default() += count,
            }
        }
    }
}

/// The value of a counter; absent is 0.
pub(crate) fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_depends_only_on_seed_thread_and_number() {
        assert_eq!(operation(1, 2, 3), operation(1, 2, 3));
        assert_ne!(operation(1, 2, 3), operation(1, 2, 4));
        assert_ne!(operation(1, 2, 3), operation(1, 3, 3));
    }

    #[test]
    fn threads_touch_only_their_own_keys_and_shared_counters() {
        for n in 0..2000 {
            for change in operation(5, 7, n).changes {
                match change {
                    Change::Put { key, .. } | Change::Delete { key, .. } => {
                        assert_eq!(owner(&key), Some(7));
                    }
                    Change::DeleteRange { start, end, .. } => {
                        assert_eq!((owner(&start), owner(&end)), (Some(7), Some(7)));
                        assert_eq!(start[..6], end[..6]);
                    }
                    Change::Add { key, .. } => {
                        assert!(owner(&key).is_none_or(|thread| thread == 7));
                    }
                }
            }
        }
    }
}
