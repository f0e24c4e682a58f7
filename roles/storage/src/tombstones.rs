//! Tombstones: records of objects that a node has removed on request, so that an older request that
//! arrives later does not bring them back.
//!
//! A removal of a log, a release and an abandonment may overtake an append or a put that left the
//! same owner before. Such a request would create an object that no owner knows. [`Tombstones`]
//! belongs to the node. Logs and chunks ask it before they create an object, and report every
//! removal to it. `docs/formats/storage-metadata.md` has the byte table.
//!
//! A tombstone is needed only while requests of its epoch are served. So a removal under a larger
//! epoch ends all older tombstones of the volume. Within an epoch the newest [`GRAVES_MAX`] of each
//! kind stay. A request that is overtaken by so many removals may create a stray. The next owner of
//! the volume finds it in the list of the node and removes it.
//!
//! Invariants:
//! 1. A tombstone is in memory before the objects that the removal concerns are looked up. So a
//!    request either sees the tombstone, or is seen by the removal.
//! 2. A tombstone is durable with the removal that it belongs to.
//! 3. The number of tombstones of a volume is bounded.
//!
//! Thread-safety: any thread may call any method. One lock, which is never held over I/O.
//! Failure: a removal that cannot be made durable is refused. Its tombstone stays in memory, and a
//! repeated removal writes it again.
//! Cost: an entry of the metadata per removal, in the batch of the removal; a look-up per creation.

use std::collections::{BTreeMap, HashMap};

use archipelago_base::codec::{Reader, put_u8, put_u64};
use archipelago_base::{Epoch, Error, Result};
use archipelago_store::VolumeId;
use archipelago_store::nodes::wire::{RefusalWhy, Stamp};
use parking_lot::Mutex;

use crate::answer::Refusal;
use crate::meta::{Meta, MetaBatch, MetaSpace, Scan};

/// Largest number of tombstones of a volume of one kind.
const GRAVES_MAX: usize = 4096;
/// Version of the value of a tombstone.
const VERSION: u8 = 1;

/// Kind of a removal. Its code is the byte behind the volume in the key, so the codes never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Grave {
    /// All extents of a log.
    Log = 1,
    /// The unsealed chunks of a blob.
    Abandoned = 2,
    /// A blob that the volume does not keep any more.
    Released = 3,
}

impl Grave {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Log,
            2 => Self::Abandoned,
            3 => Self::Released,
            _ => return None,
        })
    }
}

/// The identity of a log or a blob.
type ObjectId = [u8; 16];

/// A tombstone as the metadata have it: its number, its kind and the object.
type FoundGrave = (u64, Grave, ObjectId);

/// Tombstones of one kind, by the order of the removals.
#[derive(Debug, Default)]
struct Row {
    order: BTreeMap<u64, ObjectId>,
    numbers: HashMap<ObjectId, u64>,
}

/// The tombstones of a volume.
#[derive(Debug, Default)]
struct Graveyard {
    /// Epoch of all of them.
    epoch: Epoch,
    next_number: u64,
    rows: HashMap<Grave, Row>,
}

impl Graveyard {
    /// Ends the tombstones of epochs before `epoch`.
    fn raise(&mut self, volume: VolumeId, epoch: Epoch, batch: &mut MetaBatch) {
        if epoch <= self.epoch {
            return;
        }
        for (grave, row) in self.rows.drain() {
            row.numbers.keys().for_each(|id| remove(batch, volume, grave, id));
        }
        self.epoch = epoch;
    }

    /// Adds a tombstone, or finds the known one. Returns its number, and the identity whose
    /// tombstone it replaces.
    fn add(&mut self, grave: Grave, id: ObjectId) -> (u64, Option<ObjectId>) {
        let row = self.rows.entry(grave).or_default();
        if let Some(number) = row.numbers.get(&id) {
            return (*number, None);
        }
        let number = self.next_number;
        self.next_number += 1;
        row.numbers.insert(id, number);
        row.order.insert(number, id);
        let oldest = if row.order.len() > GRAVES_MAX { row.order.pop_first() } else { None };
        let gone = oldest.map(|(_, gone)| gone);
        if let Some(gone) = &gone {
            row.numbers.remove(gone);
        }
        (number, gone)
    }
}

/// The tombstones of a node.
#[derive(Debug)]
pub(crate) struct Tombstones {
    volumes: Mutex<HashMap<VolumeId, Graveyard>>,
}

impl Tombstones {
    /// Reads the tombstones of the node, and removes those whose epoch is over.
    pub(crate) fn open(meta: &Meta) -> Result<Self> {
        let mut found: BTreeMap<(VolumeId, Epoch), Vec<FoundGrave>> = BTreeMap::new();
        meta.scan(MetaSpace::Tombstones, &[], &mut |key, value| {
            let (volume, grave, id) = parse_key(key)?;
            let (epoch, number) = parse_value(key, value)?;
            found.entry((volume, epoch)).or_default().push((number, grave, id));
            Ok(Scan::Continue)
        })?;
        let (mut volumes, mut batch) = (HashMap::new(), MetaBatch::default());
        // The epochs of a volume come in ascending order, so each epoch ends the tombstones of the
        // previous one.
        for ((volume, epoch), mut graves) in found {
            let graveyard: &mut Graveyard = volumes.entry(volume).or_default();
            graveyard.raise(volume, epoch, &mut batch);
            graves.sort_unstable_by_key(|(number, _, _)| *number);
            for (number, grave, id) in graves {
                graveyard.next_number = number;
                graveyard.add(grave, id);
            }
        }
        if !batch.is_empty() {
            meta.apply(&batch)?;
        }
        Ok(Self { volumes: Mutex::new(volumes) })
    }

    /// Adds tombstones of removals under `stamp`, whose epoch is promised. The caller makes `batch`
    /// durable together with the removals.
    pub(crate) fn bury(
        &self,
        stamp: Stamp,
        grave: Grave,
        ids: impl Iterator<Item = ObjectId>,
        batch: &mut MetaBatch,
    ) {
        let volume = stamp.volume;
        let mut volumes = self.volumes.lock();
        let graveyard = volumes.entry(volume).or_default();
        graveyard.raise(volume, stamp.epoch, batch);
        for id in ids {
            let (number, gone) = graveyard.add(grave, id);
            batch.put(MetaSpace::Tombstones, &key_of(volume, grave, &id), &value_of(stamp, number));
            if let Some(gone) = gone {
                remove(batch, volume, grave, &gone);
            }
        }
    }

    /// Whether the volume has removed an object in this way, under any epoch.
    pub(crate) fn contains(&self, volume: VolumeId, grave: Grave, id: ObjectId) -> bool {
        let volumes = self.volumes.lock();
        let row = volumes.get(&volume).and_then(|graveyard| graveyard.rows.get(&grave));
        row.is_some_and(|row| row.numbers.contains_key(&id))
    }

    /// Refuses to create an object under `stamp` that was removed under this epoch or a later one.
    /// `what` names the object.
    pub(crate) fn refuse(
        &self,
        stamp: Stamp,
        graves: &[Grave],
        id: ObjectId,
        what: impl std::fmt::Display,
    ) -> Result<(), Refusal> {
        let volumes = self.volumes.lock();
        let Some(graveyard) = volumes.get(&stamp.volume) else { return Ok(()) };
        let lies_in = |grave: &Grave| {
            graveyard.rows.get(grave).is_some_and(|row| row.numbers.contains_key(&id))
        };
        if stamp.epoch > graveyard.epoch || !graves.iter().any(lies_in) {
            return Ok(());
        }
        let text = format!("{what} was removed on this node before this request arrived");
        Err(Refusal::new(RefusalWhy::NotThere, text))
    }
}

fn key_of(volume: VolumeId, grave: Grave, id: &ObjectId) -> Vec<u8> {
    let mut key = Vec::with_capacity(33);
    key.extend_from_slice(&volume.0);
    put_u8(&mut key, grave as u8);
    key.extend_from_slice(id);
    key
}

fn value_of(stamp: Stamp, number: u64) -> Vec<u8> {
    let mut value = Vec::with_capacity(17);
    put_u8(&mut value, VERSION);
    put_u64(&mut value, stamp.epoch.0);
    put_u64(&mut value, number);
    value
}

fn remove(batch: &mut MetaBatch, volume: VolumeId, grave: Grave, id: &ObjectId) {
    batch.remove(MetaSpace::Tombstones, &key_of(volume, grave, id));
}

fn parse_key(key: &[u8]) -> Result<(VolumeId, Grave, ObjectId)> {
    let mut reader = Reader::new(key);
    let fields = (|| {
        let volume = VolumeId(reader.take(16)?.try_into().ok()?);
        let grave = Grave::from_code(reader.u8()?)?;
        let id = reader.take(16)?.try_into().ok()?;
        reader.is_empty().then_some((volume, grave, id))
    })();
    fields.ok_or_else(|| Error::internal(format!("a tombstone has the key {key:02x?}")))
}

fn parse_value(key: &[u8], value: &[u8]) -> Result<(Epoch, u64)> {
    let mut reader = Reader::new(value);
    let is_known = reader.u8() == Some(VERSION);
    let fields = reader.u64().zip(reader.u64());
    let fields = fields.filter(|_| is_known && reader.is_empty());
    fields.map(|(epoch, number)| (Epoch(epoch), number)).ok_or_else(|| {
        let text = format!(
            "the tombstone {key:02x?} cannot be read; a program of another version wrote it: use \
             that program"
        );
        Error::unsupported(text)
    })
}

/// Decodes `bytes` as the key and as the value of a tombstone.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_tombstone(bytes: &[u8]) {
    if let Ok((volume, grave, id)) = parse_key(bytes) {
        assert_eq!(key_of(volume, grave, &id), bytes);
    }
    if let Ok((epoch, number)) = parse_value(&[], bytes) {
        assert_eq!(value_of(Stamp { epoch, ..Stamp::default() }, number), bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use archipelago_env::FileSystem;
    use archipelago_env::mem::MemFs;

    use super::*;
    use crate::meta::MetaThreads;

    const VOLUME: VolumeId = VolumeId([7; 16]);

    fn meta(fs: &MemFs) -> Meta {
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        Meta::open(&fs, Path::new("/node/meta"), MetaThreads::Caller).unwrap()
    }

    fn stamp(epoch: u64) -> Stamp {
        Stamp { volume: VOLUME, epoch: Epoch(epoch) }
    }

    fn id(number: u64) -> ObjectId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        id
    }

    fn is_refused(tombstones: &Tombstones, epoch: u64, number: u64) -> bool {
        tombstones.refuse(stamp(epoch), &[Grave::Log], id(number), "it").is_err()
    }

    fn bury(tombstones: &Tombstones, meta: &Meta, epoch: u64, numbers: std::ops::Range<u64>) {
        let mut batch = MetaBatch::default();
        tombstones.bury(stamp(epoch), Grave::Log, numbers.map(id), &mut batch);
        meta.write(&batch).unwrap();
    }

    fn entries(meta: &Meta) -> usize {
        let mut count = 0;
        let mut visit = |_: &[u8], _: &[u8]| {
            count += 1;
            Ok(Scan::Continue)
        };
        meta.scan(MetaSpace::Tombstones, &[], &mut visit).unwrap();
        count
    }

    #[test]
    fn removed_object_is_refused_over_power_loss() {
        let fs = MemFs::new();
        let meta_of = meta(&fs);
        let tombstones = Tombstones::open(&meta_of).unwrap();
        bury(&tombstones, &meta_of, 3, 1..3);
        for seed in 0..4 {
            let meta = meta(&fs.crash_clone(seed));
            let tombstones = Tombstones::open(&meta).unwrap();
            assert!(is_refused(&tombstones, 3, 1) && is_refused(&tombstones, 2, 2));
            assert!(!is_refused(&tombstones, 3, 3) && !is_refused(&tombstones, 4, 1));
            let other = Stamp { volume: VolumeId([8; 16]), ..stamp(3) };
            assert!(tombstones.refuse(other, &[Grave::Log], id(1), "it").is_ok());
            let is_other_kind = tombstones.refuse(stamp(3), &[Grave::Released], id(1), "it");
            assert!(is_other_kind.is_ok());
        }
    }

    #[test]
    fn larger_epoch_ends_older_tombstones() {
        let fs = MemFs::new();
        let meta_of = meta(&fs);
        let tombstones = Tombstones::open(&meta_of).unwrap();
        bury(&tombstones, &meta_of, 3, 0..100);
        bury(&tombstones, &meta_of, 4, 200..201);
        assert_eq!(entries(&meta_of), 1);
        assert!(is_refused(&tombstones, 4, 200) && !is_refused(&tombstones, 4, 1));
    }

    #[test]
    fn number_of_tombstones_is_bounded_over_restarts() {
        let fs = MemFs::new();
        let meta_of = meta(&fs);
        let tombstones = Tombstones::open(&meta_of).unwrap();
        let most = GRAVES_MAX as u64;
        bury(&tombstones, &meta_of, 1, 0..most + 10);
        bury(&tombstones, &meta_of, 1, most..most + 10);
        assert_eq!(entries(&meta_of), GRAVES_MAX, "repeated removals add nothing");
        drop(meta_of);
        let meta_of = meta(&fs.kill_clone());
        let tombstones = Tombstones::open(&meta_of).unwrap();
        assert!(!is_refused(&tombstones, 1, 9) && is_refused(&tombstones, 1, 10));
        bury(&tombstones, &meta_of, 1, most + 10..most + 11);
        assert!(!is_refused(&tombstones, 1, 10), "the oldest one goes first");
        assert!(is_refused(&tombstones, 1, most + 10));
    }

    #[test]
    fn golden_bytes_of_a_tombstone_do_not_change() {
        let key = key_of(VOLUME, Grave::Released, &id(9));
        assert_eq!(key, [&[7; 16][..], &[3], &id(9)].concat());
        let value = value_of(stamp(0x0102), 5);
        assert_eq!(value, [1, 2, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parse_key(&key).unwrap(), (VOLUME, Grave::Released, id(9)));
        assert_eq!(parse_value(&key, &value).unwrap(), (Epoch(0x0102), 5));
        assert!(parse_key(&key[1..]).is_err() && parse_value(&key, &value[..16]).is_err());
    }
}
