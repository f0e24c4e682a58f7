//! Mapped parts of files: the only `unsafe` code of the driver for byte-addressable devices.
//!
//! Invariants:
//! 1. When a range is mapped, it lies within the file, and its blocks are allocated if it will be
//!    written. The owner of a mapping ensures that the file is not shortened below the range.
//! 2. `base` is the start of a shared mapping of `len` bytes until the drop.
//! 3. A [`WriteWindow`] has one owner, which alone copies into it. A [`ReadMap`] copies bytes out
//!    and never returns a reference to them, because another process could change them.
//!
//! Thread-safety: as the types say. Failure: a medium that fails under a page ends the process with
//! SIGBUS, as for every user of a DAX mapping.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns plain shared memory, and invariant 3 says which code accesses it.
unsafe impl Send for Mapping {}
// SAFETY: the same reason as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, offset: u64, len: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address of the new mapping, and the range is in the file.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
        Ok(Self { base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of `new`, and it is unmapped once. A failure leaves it
        // mapped.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// A mapping of a whole file for reading.
#[derive(Debug)]
pub(super) struct ReadMap {
    mapping: Option<Mapping>,
}

impl ReadMap {
    /// Maps the first `len` bytes of `file`.
    pub(super) fn new(file: &File, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(Errno::FBIG))?;
        let mapping = match len {
            0 => None,
            _ => Some(Mapping::new(file, 0, len, ProtFlags::READ)?),
        };
        Ok(Self { mapping })
    }

    /// Copies from `offset` to `buf`. Returns `false` if the range is not within the mapping.
    #[inline]
    pub(super) fn copy_to(&self, offset: u64, buf: &mut [u8]) -> bool {
        let len = self.mapping.as_ref().map_or(0, |mapping| mapping.len) as u64;
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > len) {
            return false;
        }
        if let Some(mapping) = &self.mapping {
            // SAFETY: the check above ensures that the source lies within the mapping. The target
            // is a slice of the caller, which cannot overlap memory that only this type points to.
            unsafe {
                let from = mapping.base.as_ptr().add(offset as usize);
                std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len());
            }
        }
        true
    }
}

/// A mapping of a part of a file for writing.
#[derive(Debug)]
pub(super) struct WriteWindow {
    mapping: Mapping,
}

impl WriteWindow {
    /// Maps `len` bytes at `offset`, a multiple of the page size. Their blocks are allocated.
    pub(super) fn new(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let mapping = Mapping::new(file, offset, len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { mapping })
    }

    /// Copies `bytes` to `at` within the window. Panics if they do not fit.
    #[inline]
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.mapping.len), "a write beyond its window");
        // SAFETY: the assertion above ensures that the target lies within the mapping, which
        // `&mut self` owns.
        unsafe {
            let to = self.mapping.base.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Flushes the window to the medium.
    pub(super) fn flush(&self) -> io::Result<()> {
        let (base, len) = (self.mapping.base.as_ptr().cast::<c_void>(), self.mapping.len);
        // SAFETY: the range is the mapping, which lives as long as `self`.
        Ok(unsafe { msync(base, len, MsyncFlags::SYNC) }?)
    }
}
