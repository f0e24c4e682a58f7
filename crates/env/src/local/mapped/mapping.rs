//! Mapped parts of files: the only `unsafe` code of the byte-addressable driver.
//!
//! Invariants: 1. the mapped range lay within the file, with its blocks allocated where it is
//! written, when it was mapped; whoever owns a mapping sees to it that the file is not shortened
//! below the range while the mapping lives; 2. `base` is the start of a shared mapping of `len`
//! bytes until the drop; 3. a [`WriteWindow`] has one owner, which alone copies into it; what a
//! [`ReadMap`] shows is copied out and never handed out as a reference, because another process
//! could change it.
//!
//! What is left of failure: a medium that fails under a page ends the process with SIGBUS, as it
//! does for every user of a DAX mapping.

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

// SAFETY: plain shared memory that belongs to this value; invariant 3 says who touches it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, offset: u64, len: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses; the range is in the file.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
        Ok(Self { base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of `new`, unmapped once. Failure would leave it mapped.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// A whole file, to be read.
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

    /// Copies from `offset` to `buf`; `false` if that is not within the mapping.
    #[inline]
    pub(super) fn copy_to(&self, offset: u64, buf: &mut [u8]) -> bool {
        let len = self.mapping.as_ref().map_or(0, |mapping| mapping.len) as u64;
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > len) {
            return false;
        }
        if let Some(mapping) = &self.mapping {
            // SAFETY: the source lies within the mapping (checked above); the target is a slice
            // of the caller's, which cannot overlap memory that only this type points to.
            unsafe {
                let from = mapping.base.as_ptr().add(offset as usize);
                std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len());
            }
        }
        true
    }
}

/// A part of a file that is being written.
#[derive(Debug)]
pub(super) struct WriteWindow {
    mapping: Mapping,
}

impl WriteWindow {
    /// Maps `len` bytes at `offset` (a multiple of the page size), whose blocks are allocated.
    pub(super) fn new(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let mapping = Mapping::new(file, offset, len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { mapping })
    }

    /// Copies `bytes` to `at` within the window. Panics if they do not fit.
    #[inline]
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.mapping.len), "a write beyond its window");
        // SAFETY: the target lies within the mapping (asserted above), which `&mut self` owns.
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
