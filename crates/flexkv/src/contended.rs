//! Keys of which a write of this node met another node's not long ago.
//!
//! A small table of marks, a word each: most of a key's hash, and a **credit**. A write that met
//! another's gives its key full credit; sets of a key with credit are delegated to its proxy
//! ([`crate::client`]). Each that met nobody there takes one off; at none the key is forgotten.
//!
//! A mark is a hint: one that is lost to another key of the same place, or was left by one, costs a
//! set a detour and nothing else. So the words are read and written without order, and two threads
//! that change one may lose a change.
//!
//! Cost: [`CONTENDED_BYTES`], and one word read per set.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::KeyHash;

const MARKS: usize = 512;
/// What the table takes of a node's memory limit.
pub(crate) const CONTENDED_BYTES: u64 = (MARKS * size_of::<AtomicU64>()) as u64;
/// The low bits of a word are its credit: those of the hash say where it lies.
const CREDIT_MASK: u64 = 0xf;
/// So many delegated sets in a row meet nobody before the next is not delegated.
const CREDIT_MAX: u64 = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Contended(Box<[AtomicU64; MARKS]>);

impl Default for Contended {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(0) }; MARKS]))
    }
}

impl Contended {
    /// Whether sets of the key are to be delegated.
    pub(crate) fn has(&self, hash: KeyHash) -> bool {
        let word = self.mark(hash).load(Ordering::Relaxed);
        word & CREDIT_MASK != 0 && word & !CREDIT_MASK == hash.0 & !CREDIT_MASK
    }

    /// A write of the key met another.
    pub(crate) fn met(&self, hash: KeyHash) {
        self.mark(hash).store(hash.0 & !CREDIT_MASK | CREDIT_MAX, Ordering::Relaxed);
    }

    /// A delegated set of the key met nobody.
    pub(crate) fn met_nobody(&self, hash: KeyHash) {
        if self.has(hash) {
            let word = self.mark(hash).load(Ordering::Relaxed);
            self.mark(hash).store(word - u64::from(word & CREDIT_MASK != 0), Ordering::Relaxed);
        }
    }

    /// The key's sets are not to be delegated any more.
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
    fn a_key_is_forgotten_when_its_sets_have_met_nobody_for_a_while() {
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
    fn a_place_belongs_to_the_key_that_met_last() {
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
