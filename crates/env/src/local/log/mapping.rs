//! The mapped ring file: the only `unsafe` code of the log.
//!
//! Invariants:
//! 1. The file has [`FILE_BYTES`] allocated bytes before it is mapped, and is never shortened.
//!    Therefore no access faults.
//! 2. `base` is the start of a shared, writable mapping of that length until the drop.
//! 3. No code writes the bytes of the ring between `drained` and `appended`, and no code reads the
//!    others. The only appender ensures that by reading `drained` before it copies.
//!
//! Thread-safety: one appender, and any number of readers of `[drained, appended)`. `appended` and
//! `drained` are stored with release and loaded with acquire ordering. Failure: lack of space and
//! unsuitable file systems are errors of the creation. A device may still fail under a page that
//! was evicted, so pages are locked in memory if the limit permits it. Cost: no system call per
//! append.

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

// SAFETY: the value owns plain shared memory. Invariant 3 says which code accesses which bytes, and
// the words of the header are accessed atomically.
unsafe impl Send for Mapping {}
// SAFETY: the same reasons as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates, maps and prefaults `file`, whose content stays.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        match fallocate(file, FallocateFlags::empty(), 0, FILE_BYTES as u64) {
            Ok(()) => {}
            Err(errno) => return Err(errno.into()),
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address of the new mapping, and the file has the length.
        let base = unsafe { mmap(std::ptr::null_mut(), FILE_BYTES, protection, flags, file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
        let mapping = Self { base };
        let address = mapping.base.as_ptr().cast::<c_void>();
        // SAFETY: the range is the new mapping. Populating it does not change its content.
        match unsafe { madvise(address, FILE_BYTES, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not have this advice. The pages then fault one by one.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        // SAFETY: the range is the new mapping. The kernel may refuse because of the limit, which
        // is harmless.
        let _locked = unsafe { mlock(address, FILE_BYTES) };
        mapping.word(MAGIC_AT).store(MAGIC.to_le(), Ordering::Relaxed);
        mapping.word(VERSION_AT).store(VERSION.to_le(), Ordering::Relaxed);
        Ok(mapping)
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= PAGE_BYTES);
        // SAFETY: `at` is a constant of the layout, 8-byte aligned and within the header page of
        // the mapping, which lives as long as `self`. The word is only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast::<u64>()) }
    }

    /// Gives the empty ring to the segment of `incarnation`, which begins at offset 0.
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

    /// Copies `bytes` to the place of the segment's bytes from `offset` on. The caller is the only
    /// appender, and has checked that `offset + bytes.len() - drained <= RING_BYTES`.
    #[inline]
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() as u64 - self.drained() <= RING_BYTES as u64);
        let start = (offset % RING_BYTES as u64) as usize;
        let before_wrap = bytes.len().min(RING_BYTES - start);
        // `split_at` checks the length again. The rest fits before `start` because of the caller's
        // check.
        let (first, second) = bytes.split_at(before_wrap);
        assert!(second.len() <= start, "a record larger than the ring was copied into it");
        // SAFETY: both targets lie within the ring (start + first.len() <= RING_BYTES, and
        // second.len() <= start) and outside of `[drained, appended)`, so no code reads them. The
        // source is a slice, which cannot overlap memory that only this type points to.
        unsafe {
            let ring = self.base.as_ptr().add(PAGE_BYTES);
            std::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(start), first.len());
            std::ptr::copy_nonoverlapping(second.as_ptr(), ring, second.len());
        }
    }

    /// The ring's bytes from the segment's offset `from` on, up to `to` or the wrap. The caller has
    /// checked `drained <= from < to <= appended`, and does not advance `drained` while it uses
    /// them.
    pub(super) fn piece(&self, from: u64, to: u64) -> &[u8] {
        let start = (from % RING_BYTES as u64) as usize;
        let len = to.saturating_sub(from).min((RING_BYTES - start) as u64) as usize;
        // SAFETY: start + len <= RING_BYTES, so the range lies within the mapping. `set_appended`
        // published the bytes, and they are not written until `drained` passes them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(PAGE_BYTES + start), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of `new`, and it is unmapped once. No reference into it
        // outlives `self`. A failure leaves it mapped, which is harmless.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), FILE_BYTES) };
    }
}
