//! Keys whose writes by this node recently met writes of other nodes.
//!
//! A small table has one word per mark: most of a key's hash, and a **credit**. A write that met
//! another node's write gives its key full credit. Sets of a key with credit are delegated to its
//! proxy (`client/delegated.rs`). Each delegated set that met no other write takes one credit off.
//! At zero the key is forgotten.
//!
//! A mark is a hint. If a mark is lost to another key of the same position, or was left by one, a
//! set makes a detour and nothing else happens. So the words are read and written without ordering,
//! and two threads that change one may lose a change.
//!
//! Thread-safety: any thread may call any method.
//! Cost: [`CONTENDED_BYTES`], and one word read per set.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::KeyHash;

const MARKS: usize = 512;
/// Bytes of the table, which count towards a node's memory limit.
pub(crate) const CONTENDED_BYTES: u64 = (MARKS * size_of::<AtomicU64>()) as u64;
/// The bits of a word that hold its credit. The same bits of the hash give the word's position.
const CREDIT_MASK: u64 = 0xf;
/// Number of consecutive delegated sets without a meeting after which the next set is not
/// delegated.
const CREDIT_MAX: u64 = 8;

/// The table of marks. See the head of the module.
#[derive(Debug)]
pub(crate) struct Contended(Box<[AtomicU64; MARKS]>);

impl Default for Contended {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(0) }; MARKS]))
    }
}

impl Contended {
    /// Whether sets of the key are delegated.
    pub(crate) fn has(&self, hash: KeyHash) -> bool {
        let word = self.mark(hash).load(Ordering::Relaxed);
        word & CREDIT_MASK != 0 && word & !CREDIT_MASK == hash.0 & !CREDIT_MASK
    }

    /// Notes that a write of the key met another node's write.
    pub(crate) fn met(&self, hash: KeyHash) {
        self.mark(hash).store(hash.0 & !CREDIT_MASK | CREDIT_MAX, Ordering::Relaxed);
    }

    /// Notes that a delegated set of the key met no other write.
    pub(crate) fn met_nobody(&self, hash: KeyHash) {
        if self.has(hash) {
            let word = self.mark(hash).load(Ordering::Relaxed);
            self.mark(hash).store(word - u64::from(word & CREDIT_MASK != 0), Ordering::Relaxed);
        }
    }

    /// Ends the delegation of the key's sets.
    pub(crate) fn forget(&self, hash: KeyHash) {
        if self.has(hash) {
            self.mark(hash).store(0, Ordering::Relaxed);
        }
    }

    fn mark(&self, hash: KeyHash) -> &AtomicU64 {
        &self.0[hash.0 as usize % MARKS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_forgotten_after_sets_without_meeting() {
        let contended = Contended::default();
        let (reef, atoll) = (KeyHash(0x1234), KeyHash(0x1234 + MARKS as u64));
        assert!(!contended.has(reef));
        contended.met(reef);
        for _ in 1..CREDIT_MAX {
            contended.met_nobody(reef);
            contended.met_nobody(atoll);
        }
        assert!(contended.has(reef) && !contended.has(atoll));
        contended.met(reef);
        for _ in 0..CREDIT_MAX {
            assert!(contended.has(reef));
            contended.met_nobody(reef);
        }
        assert!(!contended.has(reef));
        contended.met_nobody(reef);
        assert!(!contended.has(reef), "no credit is no credit");
    }

    #[test]
    fn mark_belongs_to_the_key_that_met_last() {
        let contended = Contended::default();
        let (reef, atoll) = (KeyHash(7), KeyHash(7 + MARKS as u64));
        contended.met(reef);
        contended.met(atoll);
        assert!(contended.has(atoll) && !contended.has(reef));
        contended.forget(reef);
        assert!(contended.has(atoll));
        contended.forget(atoll);
        assert!(!contended.has(atoll));
        assert!(!contended.has(KeyHash(0)), "an empty place is nobody's");
    }
}
