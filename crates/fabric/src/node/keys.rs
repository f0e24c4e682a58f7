//! The key table of a node: the valid keys, and the regions that they open.
//!
//! Each key has one word in a control page, which clients of `shm` map for reading. A correct
//! client therefore sees a revocation before its next operation. The same words decide about
//! operations that the node executes itself.
//!
//! Invariants:
//! 1. The word of a key holds its tag while the key is valid. Otherwise it holds the generation
//!    alone, which is 0 before the first key.
//! 2. The 48 random bits of a tag are never all zero.
//! 3. An index is used again only with the next generation.
//! 4. An operation that the node executes holds the lock of the table, shared. None of them is
//!    still running when a revocation returns.
//!
//! Thread-safety: any thread may call any method.
//! Failure: `Busy` if the table is full.
//! Cost: one shared lock per operation that the node executes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::ids::{NodeId, RegionId, RemoteKey, Rights, TAG_RANDOM, generation};
use crate::memory::Mapping;
use crate::refusal::{Reason, Refusal};

/// Limit of the keys that are valid at the same time.
pub const KEYS_MAX: usize = 4096;

/// Length of the control page in bytes: a header of [`CONTROL_HEADER_WORDS`], then a word per key.
pub(crate) const CONTROL_BYTES: usize = (CONTROL_HEADER_WORDS + KEYS_MAX) * 8;
pub(crate) const CONTROL_HEADER_WORDS: usize = 8;
pub(crate) const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"ARCHFCTL");
pub(crate) const CONTROL_MAGIC_WORD: usize = 0;
pub(crate) const CONTROL_EPOCH_WORD: usize = 1;

/// The hardware that executes the atomic operations of a region. A region has one path, because
/// processors and network cards are not atomic to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtomicPath {
    /// Processors of the node's host, for `shm`, `tcp` and the node itself.
    #[default]
    Processor,
    /// The network card, or its substitute in libfabric, for `ofi`.
    Card,
}

/// The memory that a valid key opens.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) tag: u64,
    pub(crate) rights: Rights,
    pub(crate) path: AtomicPath,
    pub(crate) memory: Arc<Mapping>,
    /// Registration with a card, which ends with the key.
    #[cfg(feature = "ofi")]
    pub(super) registered: Option<super::card::OnCard>,
}

#[derive(Debug)]
pub(crate) struct KeyTable {
    control: Arc<Mapping>,
    opened: RwLock<Vec<Option<Opened>>>,
    rng: Mutex<Rng>,
}

impl KeyTable {
    pub(crate) fn new(epoch: Epoch, seed: u64) -> Result<Self> {
        let control = Arc::new(Mapping::create("archipelago-keys", CONTROL_BYTES)?);
        control.words()[CONTROL_EPOCH_WORD].store(epoch.0, Ordering::Relaxed);
        control.words()[CONTROL_MAGIC_WORD].store(CONTROL_MAGIC, Ordering::Release);
        Ok(Self { control, opened: RwLock::new(Vec::new()), rng: Mutex::new(Rng::with_seed(seed)) })
    }

    pub(crate) fn control(&self) -> &Mapping {
        &self.control
    }

    fn word(&self, region: usize) -> &AtomicU64 {
        &self.control.words()[CONTROL_HEADER_WORDS + region]
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.control.words()[CONTROL_EPOCH_WORD].load(Ordering::Acquire))
    }

    /// Makes a new key for `memory`.
    pub(crate) fn grant(
        &self,
        node: NodeId,
        memory: &Arc<Mapping>,
        rights: Rights,
        path: AtomicPath,
    ) -> Result<RemoteKey> {
        let mut opened = self.opened.write();
        let place = match opened.iter().position(Option::is_none) {
            Some(place) => place,
            None if opened.len() < KEYS_MAX => {
                opened.push(None);
                opened.len() - 1
            }
            None => {
                let what = format!("node {node} has given {KEYS_MAX} keys: revoke some first");
                return Err(Error::new(ErrorKind::Busy, what));
            }
        };
        let word = self.word(place);
        let next = generation(word.load(Ordering::Relaxed)).wrapping_add(1);
        let random = self.rng.lock().u64(1..=TAG_RANDOM);
        let tag = u64::from(next) << 48 | random;
        let memory = Arc::clone(memory);
        let len = memory.bytes() as u64;
        opened[place] = Some(Opened {
            tag,
            rights,
            path,
            memory,
            #[cfg(feature = "ofi")]
            registered: None,
        });
        word.store(tag, Ordering::Release);
        let region = RegionId(place as u32);
        Ok(RemoteKey { node, epoch: self.epoch(), region, tag, len, rights })
    }

    /// Makes a key invalid, and waits for operations that this node executes with it. Returns
    /// whether the key was valid.
    pub(crate) fn revoke(&self, region: RegionId, tag: u64) -> bool {
        let mut opened = self.opened.write();
        let place = region.0 as usize;
        let Some(slot) = opened.get_mut(place) else { return false };
        if slot.as_ref().is_none_or(|opened| opened.tag != tag) {
            return false;
        }
        self.word(place).store(tag & !TAG_RANDOM, Ordering::SeqCst);
        *slot = None;
        true
    }

    /// Makes every key invalid and sets a later epoch. Returns false and changes nothing if `epoch`
    /// is not later.
    pub(crate) fn advance(&self, epoch: Epoch) -> bool {
        let mut opened = self.opened.write();
        if epoch <= self.epoch() {
            return false;
        }
        self.control.words()[CONTROL_EPOCH_WORD].store(epoch.0, Ordering::SeqCst);
        for (place, slot) in opened.iter_mut().enumerate() {
            if let Some(opened) = slot.take() {
                self.word(place).store(opened.tag & !TAG_RANDOM, Ordering::SeqCst);
            }
        }
        true
    }

    /// Changes the entry of a valid key.
    #[cfg(feature = "ofi")]
    pub(super) fn change<T>(
        &self,
        region: RegionId,
        tag: u64,
        change: impl FnOnce(&mut Opened) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut opened = self.opened.write();
        match opened.get_mut(region.0 as usize) {
            Some(Some(opened)) if opened.tag == tag => change(opened),
            Some(_) => Err(invalid(self.word(region.0 as usize).load(Ordering::Acquire), tag)),
            None => Err(Reason::UnknownKey.into()),
        }
    }

    /// Changes the entries of all valid keys.
    #[cfg(feature = "ofi")]
    pub(super) fn change_all(&self, change: impl FnMut(&mut Opened)) {
        self.opened.write().iter_mut().flatten().for_each(change);
    }

    /// Locks the table, shared, so that no key is revoked while the lock is held.
    pub(crate) fn hold(&self) -> Keys<'_> {
        Keys { table: self, opened: self.opened.read() }
    }
}

/// The shared lock of the table.
pub(crate) struct Keys<'a> {
    table: &'a KeyTable,
    opened: RwLockReadGuard<'a, Vec<Option<Opened>>>,
}

impl Keys<'_> {
    pub(crate) fn open(&self, region: RegionId, tag: u64) -> Result<&Opened, Refusal> {
        let place = region.0 as usize;
        let Some(slot) = self.opened.get(place) else {
            return Err(Reason::UnknownKey.into());
        };
        match slot {
            Some(opened) if opened.tag == tag => Ok(opened),
            _ => Err(invalid(self.table.word(place).load(Ordering::Acquire), tag)),
        }
    }
}

/// The refusal of a key with `tag` while the control page holds `word`.
pub(crate) fn invalid(word: u64, tag: u64) -> Refusal {
    let (now, given) = (generation(word), generation(tag));
    // An earlier generation, or the current generation without a valid key.
    let over = given != now && now.wrapping_sub(given) < 1 << 15;
    let ended = given == now && word & TAG_RANDOM == 0 && word != 0;
    Refusal::new(if over || ended { Reason::Revoked } else { Reason::UnknownKey })
}

/// Checks that `len` bytes at `offset` of a region of `bytes` may be accessed with the right
/// `need`.
#[inline]
pub(crate) fn allowed(
    rights: Rights,
    bytes: u64,
    need: Rights,
    offset: u64,
    len: u64,
) -> Result<(), Refusal> {
    if !rights.allow(need) {
        return Err(Reason::NoRight.into());
    }
    if need == Rights::ATOMIC && !offset.is_multiple_of(8) {
        return Err(Reason::Misaligned.into());
    }
    match offset.checked_add(len) {
        Some(end) if end <= bytes => Ok(()),
        _ => Err(Refusal::at(Reason::OutOfRange, bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_guessed_and_reused_keys_have_different_reasons() {
        let table = KeyTable::new(Epoch(3), 1).expect("memory");
        let memory = Arc::new(Mapping::create("test", 64).expect("memory"));
        let give = || table.grant(NodeId(1), &memory, Rights::ALL, AtomicPath::Processor);
        let first = give().expect("room");
        let reason = |key: &RemoteKey| {
            table.hold().open(key.region, key.tag).map(|_| ()).map_err(|r| r.reason)
        };
        assert_eq!(reason(&first), Ok(()));
        let guessed = RemoteKey { tag: first.tag ^ 1, ..first };
        assert_eq!(reason(&guessed), Err(Reason::UnknownKey));
        assert!(!table.revoke(guessed.region, guessed.tag), "a guess revokes nothing");
        assert!(table.revoke(first.region, first.tag));
        assert_eq!(reason(&first), Err(Reason::Revoked));
        let second = give().expect("room");
        assert_eq!(second.region, first.region, "the place is used again");
        assert_eq!(reason(&second), Ok(()));
        assert_eq!(reason(&first), Err(Reason::Revoked));
        let never = RemoteKey { region: RegionId(9), ..first };
        assert_eq!(reason(&never), Err(Reason::UnknownKey));
        assert!(!table.advance(Epoch(3)), "epochs grow");
        assert!(table.advance(Epoch(4)));
        assert_eq!(reason(&second), Err(Reason::Revoked));
        assert_eq!(give().expect("room").epoch, Epoch(4));
    }

    #[test]
    fn range_past_the_end_is_refused() {
        let check =
            |need, offset, len| allowed(Rights::ALL, 64, need, offset, len).map_err(|r| r.reason);
        assert_eq!(check(Rights::READ, 0, 64), Ok(()));
        assert_eq!(check(Rights::READ, 64, 0), Ok(()));
        assert_eq!(check(Rights::READ, 1, 64), Err(Reason::OutOfRange));
        assert_eq!(check(Rights::READ, u64::MAX, 2), Err(Reason::OutOfRange));
        assert_eq!(check(Rights::ATOMIC, 60, 8), Err(Reason::Misaligned));
        assert_eq!(check(Rights::ATOMIC, 64, 8), Err(Reason::OutOfRange));
        let read_only = allowed(Rights::READ, 64, Rights::WRITE, 0, 1).map_err(|r| r.reason);
        assert_eq!(read_only, Err(Reason::NoRight));
    }

    #[test]
    fn full_table_gives_no_keys() {
        let table = KeyTable::new(Epoch(1), 1).expect("memory");
        let memory = Arc::new(Mapping::create("test", 8).expect("memory"));
        let give = || table.grant(NodeId(1), &memory, Rights::READ, AtomicPath::Processor);
        for _ in 0..KEYS_MAX {
            give().expect("room");
        }
        assert_eq!(give().expect_err("full").kind(), ErrorKind::Busy);
    }
}
