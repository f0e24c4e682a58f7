//! The mapped ring file: the only `unsafe` code of the log.
//!
//! Invariants: 1. the file has [`FILE_BYTES`] allocated bytes before it is mapped and is never
//! shrunk, so that no access faults; 2. `base` is the start of a shared, writable mapping of that
//! length until the drop; 3. the bytes of the ring between `drained` and `appended` are written
//! by nobody, those outside are read by nobody. The one appender keeps 3 by looking at
//! `drained` before it copies.
//!
//! Thread-safety: one appender, any number of readers of `[drained, appended)`; `appended` and
//! `drained` are published with release and read with acquire. Failure: no space and unfit file
//! systems show while the mapping is made, as errors. What is left is a device that fails under a
//! page that was evicted: pages are locked in memory where the limit allows it.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};

use super::layout::{
    APPENDED_AT, DRAINED_AT, FILE_BYTES, INCARNATION_AT, MAGIC, MAGIC_AT, PAGE_BYTES, RING_BYTES,
    VERSION, VERSION_AT,
};

#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
}

// SAFETY: the mapping is plain shared memory that belongs to this value; invariant 3 of the module
// says who may touch what, and the words in its header are accessed atomically.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates, maps and prefaults `file`. Its content stays.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        match fallocate(file, FallocateFlags::empty(), 0, FILE_BYTES as u64) {
            Ok(()) => {}
            Err(errno) => return Err(errno.into()),
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses; the file has the length.
        let base = unsafe { mmap(std::ptr::null_mut(), FILE_BYTES, protection, flags, file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
        let mapping = Self { base };
        let address = mapping.base.as_ptr().cast::<c_void>();
        // SAFETY: the range is the mapping just made; populating does not change its content.
        match unsafe { madvise(address, FILE_BYTES, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know the advice: the pages fault one by one.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        // SAFETY: the range is the mapping just made. Refused where the limit is low: no harm.
        let _locked = unsafe { mlock(address, FILE_BYTES) };
        mapping.word(MAGIC_AT).store(MAGIC.to_le(), Ordering::Relaxed);
        mapping.word(VERSION_AT).store(VERSION.to_le(), Ordering::Relaxed);
        Ok(mapping)
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= PAGE_BYTES);
        // SAFETY: `at` is one of the constants of the layout, 8-byte aligned and within the header
        // page of the mapping, which lives as long as `self`; the word is only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast::<u64>()) }
    }

    /// Gives the (empty) ring to the segment of `incarnation`, which begins at offset 0.
    pub(super) fn assign(&self, incarnation: u64) {
        self.word(INCARNATION_AT).store(0, Ordering::SeqCst);
        self.word(DRAINED_AT).store(0, Ordering::SeqCst);
        self.word(APPENDED_AT).store(0, Ordering::SeqCst);
        self.word(INCARNATION_AT).store(incarnation.to_le(), Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn appended(&self) -> u64 {
        u64::from_le(self.word(APPENDED_AT).load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn set_appended(&self, offset: u64) {
        self.word(APPENDED_AT).store(offset.to_le(), Ordering::Release);
    }

    #[inline]
    pub(super) fn drained(&self) -> u64 {
        u64::from_le(self.word(DRAINED_AT).load(Ordering::Acquire))
    }

    pub(super) fn set_drained(&self, offset: u64) {
        self.word(DRAINED_AT).store(offset.to_le(), Ordering::Release);
    }

    /// Copies `bytes` to where the segment's bytes from `offset` on lie. The caller is the one
    /// appender and has seen that `offset + bytes.len() - drained <= RING_BYTES`.
    #[inline]
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() as u64 - self.drained() <= RING_BYTES as u64);
        let start = (offset % RING_BYTES as u64) as usize;
        let before_wrap = bytes.len().min(RING_BYTES - start);
        // The length is checked once more by `split_at`, and that the rest fits before `start`
        // follows from the caller's promise.
        let (first, second) = bytes.split_at(before_wrap);
        assert!(second.len() <= start, "a record larger than the ring was copied into it");
        // SAFETY: both targets lie within the ring (start + first.len() <= RING_BYTES, and
        // second.len() <= start) and outside of `[drained, appended)`, so nobody reads them;
        // the source is a slice that cannot overlap memory that only this type hands out pointers
        // to.
        unsafe {
            let ring = self.base.as_ptr().add(PAGE_BYTES);
            std::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(start), first.len());
            std::ptr::copy_nonoverlapping(second.as_ptr(), ring, second.len());
        }
    }

    /// The ring's bytes from the segment's offset `from` on, up to `to` or the wrap. The caller
    /// has seen `drained <= from < to <= appended`, and keeps `drained` where it is while it uses
    /// them.
    pub(super) fn piece(&self, from: u64, to: u64) -> &[u8] {
        let start = (from % RING_BYTES as u64) as usize;
        let len = to.saturating_sub(from).min((RING_BYTES - start) as u64) as usize;
        // SAFETY: start + len <= RING_BYTES, so the range lies within the mapping; the bytes
        // were published by `set_appended` and are not written until `drained` passes them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(PAGE_BYTES + start), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of `new`, unmapped once; no reference into it outlives
        // `self`. Failure would leave it mapped, which harms nobody.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), FILE_BYTES) };
    }
}
