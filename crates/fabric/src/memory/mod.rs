//! Memory that other processes reach: a [`Mapping`] and the operations on its words.
//!
//! Access: shared bytes are accessed only as aligned words of 8 bytes with atomic instructions. The
//! loads of READ and the stores of WRITE are relaxed. A WRITE of a part of a word uses
//! compare-and-swap, so that the other bytes of the word are not lost. Therefore no access is a
//! data race in the sense of the language, whatever other threads and processes do.
//!
//! Torn reads: a word is never torn. A READ of several words may return any mixture of old and new
//! words of concurrent WRITEs. A reader that needs more consistency checks the bytes with a
//! checksum, with a version before and after them, or with a word that is swapped last.
//!
//! Ordering: a READ acquires everything that was written before the words that it found. A WRITE
//! releases before its first word. A reader that sees a word of the WRITE, or a later operation of
//! the batch, sees everything before it. A full fence after a batch makes its WRITEs visible to all
//! processors before the completion is reported.
//!
//! Thread-safety: any thread may call any function. Failure: none, because the callers check the
//! ranges.

mod mapping;

use std::sync::atomic::{AtomicU64, Ordering, fence};

pub use mapping::Mapping;

/// Size of a word, in bytes.
pub const WORD_BYTES: usize = 8;

/// Copies from `words`, from byte `offset` on. The caller has checked the range.
pub fn read(words: &[AtomicU64], offset: usize, out: &mut [u8]) {
    let mut at = offset / WORD_BYTES;
    let skip = offset % WORD_BYTES;
    let mut out = out;
    if skip > 0 && !out.is_empty() {
        let take = out.len().min(WORD_BYTES - skip);
        let (head, rest) = out.split_at_mut(take);
        head.copy_from_slice(&words[at].load(Ordering::Relaxed).to_ne_bytes()[skip..skip + take]);
        out = rest;
        at += 1;
    }
    let (body, tail) = out.as_chunks_mut::<WORD_BYTES>();
    let whole = body.len();
    for (chunk, word) in body.iter_mut().zip(&words[at..at + whole]) {
        *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if !tail.is_empty() {
        let take = tail.len();
        let last = words[at + whole].load(Ordering::Relaxed).to_ne_bytes();
        tail.copy_from_slice(&last[..take]);
    }
    fence(Ordering::Acquire);
}

/// Copies into `words`, from byte `offset` on. The caller has checked the range.
pub(crate) fn write(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    fence(Ordering::Release);
    let mut at = offset / WORD_BYTES;
    let skip = offset % WORD_BYTES;
    let mut bytes = bytes;
    if skip > 0 && !bytes.is_empty() {
        let take = bytes.len().min(WORD_BYTES - skip);
        let (head, rest) = bytes.split_at(take);
        replace_part(&words[at], skip, head);
        bytes = rest;
        at += 1;
    }
    let (body, tail) = bytes.as_chunks::<WORD_BYTES>();
    let whole = body.len();
    for (chunk, word) in body.iter().zip(&words[at..at + whole]) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    if !tail.is_empty() {
        replace_part(&words[at + whole], 0, tail);
    }
}

/// Replaces the bytes of a word from byte `skip` on with `part`. The other bytes stay.
fn replace_part(word: &AtomicU64, skip: usize, part: &[u8]) {
    let replaced = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[skip..skip + part.len()].copy_from_slice(part);
        Some(u64::from_ne_bytes(bytes))
    };
    let _old = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replaced);
}

/// Stores `new` if the word equals `expect`. Returns the old value.
#[inline]
pub fn compare_swap(word: &AtomicU64, expect: u64, new: u64) -> u64 {
    match word.compare_exchange(expect, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(old) | Err(old) => old,
    }
}

/// Adds to the word, wrapping. Returns the old value.
#[inline]
pub(crate) fn fetch_add(word: &AtomicU64, add: u64) -> u64 {
    word.fetch_add(add, Ordering::SeqCst)
}

/// Makes all earlier writes of this thread visible to all processors.
#[inline]
pub(crate) fn publish() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn every_range_reads_back_and_keeps_its_neighbours() {
        for offset in 0..24 {
            for len in 0..=(32 - offset) {
                let memory = words(4);
                write(&memory, 0, &[0xee; 32]);
                let bytes: Vec<u8> = (1..=len as u8).collect();
                write(&memory, offset, &bytes);
                let mut all = [0; 32];
                read(&memory, 0, &mut all);
                assert!(all[..offset].iter().all(|&b| b == 0xee), "{offset} {len}");
                assert_eq!(all[offset..offset + len], bytes);
                assert!(all[offset + len..].iter().all(|&b| b == 0xee), "{offset} {len}");
                let mut part = vec![0; len];
                read(&memory, offset, &mut part);
                assert_eq!(part, bytes);
            }
        }
    }

    #[test]
    fn writers_of_neighbouring_bytes_lose_nothing() {
        let memory = words(1);
        std::thread::scope(|scope| {
            for byte in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 0..=255 {
                        write(memory, byte * 2, &[round, round]);
                    }
                });
            }
        });
        let mut all = [0; 8];
        read(&memory, 0, &mut all);
        assert_eq!(all, [255; 8]);
    }
}
