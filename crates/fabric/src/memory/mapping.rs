//! Memory that another process can map: a sealed memfd and its mapping. This is the only `unsafe`
//! code of the crate besides the calls of libfabric.
//!
//! Invariants:
//! 1. The file has its full length, allocated, before it is mapped. Its creator has sealed it
//!    against shrinking and growing. A file of another process is mapped only after its seals and
//!    its length were checked. Therefore no access faults.
//! 2. `base` is the start of a shared, page-aligned mapping of `bytes` bytes until the value is
//!    dropped.
//! 3. All accesses use aligned `AtomicU64`, except to the words that [`Mapping::bell`] returns,
//!    which are always accessed as `AtomicU32`, and to words that nobody writes
//!    (`Mapping::plain_bytes`).
//! 4. This crate never stores to a mapping without the right to write, because callers check
//!    `writable` first. Such a store would end the process. It would not be undefined behaviour.
//!
//! The other process is not trusted: if it may write, it may change any byte at any moment.
//! Therefore a loaded value may be anything, and references to plain bytes exist only of memory
//! that no other process can write.
//!
//! Large pages: random accesses to large memory wait for address translations, and pages of 2 MiB
//! shorten these waits. The creator of 2 to 64 MiB therefore asks the kernel to use large pages
//! (`MADV_COLLAPSE`, Linux 6.1). Mappings of the same memory in other processes share them. If the
//! kernel refuses, the pages stay as they are.
//!
//! Thread-safety: any thread may call any method.
//! Failure: `Busy` if the machine lacks memory or descriptors.
//! Cost: two system calls. Up to 64 MiB the pages are prepared in advance. Larger memory takes a
//! page fault per page at the first access.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use archipelago_base::{Error, ErrorKind, Result};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fcntl_get_seals, fstat, ftruncate, memfd_create, open,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Shared memory of this process and of the processes that map it.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to this value until the drop, and all accesses are atomic
// (invariant 3). Any thread may therefore use it.
unsafe impl Send for Mapping {}
// SAFETY: the same reasons as for `Send`.
unsafe impl Sync for Mapping {}

/// Size up to which all pages of a mapping are prepared in advance, in bytes. A page fault costs
/// several times as much, and an operation would wait for it.
const AHEAD_BYTES_MAX: usize = 64 << 20;

/// Size of a large page, in bytes.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// The value of `MADV_COLLAPSE`, which not every C library defines.
const COLLAPSE: libc::c_int = 25;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Mapping {
    /// Allocates `bytes`, rounded up to 8, of zeroed memory. `name` appears in `/proc/PID/maps`.
    /// Errors: `Busy` if the machine lacks memory.
    pub fn create(name: &str, bytes: usize) -> Result<Self> {
        let bytes = bytes
            .checked_next_multiple_of(8)
            .filter(|&bytes| bytes > 0 && isize::try_from(bytes).is_ok())
            .ok_or_else(|| Error::invalid(format!("memory of {bytes} bytes: give 1 to 2^63")))?;
        let fail = |errno: Errno| {
            let kind = match errno {
                Errno::NOSPC | Errno::NOMEM => ErrorKind::Busy,
                _ => ErrorKind::Io,
            };
            let what = format!("cannot allocate {bytes} bytes of shared memory for {name}");
            Error::with_source(kind, what, std::io::Error::from(errno))
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(name, flags).map_err(fail)?;
        ftruncate(&file, bytes as u64).map_err(fail)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64).map_err(fail)?;
        fcntl_add_seals(&file, SEALS).map_err(fail)?;
        let mapped = Self::map(file, bytes, true).map_err(fail)?;
        mapped.ask_for_large_pages();
        Ok(mapped)
    }

    fn ask_for_large_pages(&self) {
        if !(LARGE_PAGE_BYTES..=AHEAD_BYTES_MAX).contains(&self.bytes) {
            return;
        }
        // SAFETY: the range is mapped while `self` lives. The advice changes no byte, and no code
        // depends on which physical pages hold the range.
        let refused =
            unsafe { libc::madvise(self.base.as_ptr().cast::<c_void>(), self.bytes, COLLAPSE) };
        if refused != 0 {
            let error = std::io::Error::last_os_error();
            tracing::debug!(%error, bytes = self.bytes, "shared memory stays on small pages");
        }
    }

    /// Maps memory of another process. The call is refused unless the memory is sealed against
    /// shrinking and has exactly `bytes`. Otherwise the other process could make an access fault.
    pub fn adopt(file: OwnedFd, bytes: usize, writable: bool) -> Result<Self> {
        let bad = |what: String| Error::invalid(format!("shared memory from a peer: {what}"));
        let fail = |errno: Errno| {
            let source = std::io::Error::from(errno);
            Error::with_source(ErrorKind::Io, "cannot map shared memory from a peer", source)
        };
        let seals = fcntl_get_seals(&file)
            .map_err(|errno| bad(format!("it is no memfd ({})", std::io::Error::from(errno))))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("it is not sealed against shrinking".to_owned()));
        }
        let size = fstat(&file).map_err(fail)?.st_size;
        if usize::try_from(size) != Ok(bytes) || bytes == 0 || !bytes.is_multiple_of(8) {
            return Err(bad(format!("it has {size} bytes, the peer said {bytes}")));
        }
        Self::map(file, bytes, writable).map_err(fail)
    }

    fn map(file: OwnedFd, bytes: usize, writable: bool) -> rustix::io::Result<Self> {
        let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let ahead = if bytes <= AHEAD_BYTES_MAX { MapFlags::POPULATE } else { MapFlags::empty() };
        let (protection, flags) = (ProtFlags::READ | write, MapFlags::SHARED | ahead);
        // SAFETY: the kernel chooses the address of the new mapping. The callers keep invariant 1.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
        Ok(Self { base, bytes, writable, file })
    }

    /// Length in bytes, a multiple of 8.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this process may store into the memory.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// The whole memory as words.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: by invariant 2 the range is mapped, readable and page aligned while `self` lives,
        // and holds `bytes / 8` words. An `AtomicU64` has the layout of a `u64`, every bit pattern
        // is valid, and invariant 3 keeps all accesses atomic and of one size.
        unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().cast::<AtomicU64>(), self.bytes / 8)
        }
    }

    /// The word of 4 bytes at byte `at`, for futexes. The layout of the caller ensures that nothing
    /// accesses these bytes through [`Mapping::words`].
    #[must_use]
    pub fn bell(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "a bell within the mapping");
        // SAFETY: the assertions ensure that the word lies within the mapping and is aligned. The
        // layout of the caller excludes accesses of other sizes (invariant 3).
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast::<u32>()) }
    }

    /// Bytes of the memory as a plain slice.
    ///
    /// # Safety
    ///
    /// While the slice is used, no thread of this process and no other process may store into an
    /// aligned word of 8 bytes that `range` touches.
    pub(crate) unsafe fn plain_bytes(&self, range: Range<usize>) -> &[u8] {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.bytes, "a range within the mapping");
        // SAFETY: the assertion and invariant 2 ensure that the range is mapped and readable. The
        // caller ensures that nobody stores into it. Loads of others are harmless.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), end - start) }
    }

    /// A descriptor for another process. Without `writable` that process can map it only for
    /// reading.
    pub fn share(&self, writable: bool) -> Result<OwnedFd> {
        let fail = |errno: Errno| {
            let source = std::io::Error::from(errno);
            Error::with_source(ErrorKind::Io, "cannot share memory with a client", source)
        };
        if writable {
            return self.file.try_clone().map_err(|source| {
                Error::with_source(ErrorKind::Io, "cannot share memory with a client", source)
            });
        }
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&self.file));
        open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(fail)
    }

    /// The memfd of this memory.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of `map`, and it is unmapped once. All references to it
        // borrow `self`. A failure leaves the range mapped, which is harmless.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    /// Makes an unsealed file, which must not be mapped.
    fn unsealed(bytes: u64) -> OwnedFd {
        let file = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = file.expect("a memfd");
        ftruncate(&file, bytes).expect("room");
        file
    }

    #[test]
    fn reader_cannot_map_the_words_for_writing() {
        let owner = Mapping::create("test", 4096).expect("memory");
        let reader = Mapping::adopt(owner.share(false).expect("a descriptor"), 4096, false);
        let reader = reader.expect("readable");
        owner.words()[511].store(7, Ordering::Relaxed);
        assert_eq!(reader.words()[511].load(Ordering::Relaxed), 7);
        let refused = Mapping::adopt(owner.share(false).expect("a descriptor"), 4096, true);
        assert!(refused.is_err(), "a read-only descriptor maps for reading only");
        let writer = Mapping::adopt(owner.share(true).expect("a descriptor"), 4096, true);
        writer.expect("writable").words()[0].store(9, Ordering::Relaxed);
        assert_eq!(reader.words()[0].load(Ordering::Relaxed), 9);
    }

    #[test]
    fn memory_that_its_owner_could_shrink_is_refused() {
        let refused = Mapping::adopt(unsealed(4096), 4096, true).expect_err("unsealed");
        assert!(refused.to_string().contains("not sealed"), "{refused}");
        let owner = Mapping::create("test", 4096).expect("memory");
        for lie in [0, 8, 4088, 8192] {
            let file = owner.share(true).expect("a descriptor");
            assert!(Mapping::adopt(file, lie, true).is_err(), "{lie} bytes");
        }
        let shrunk = ftruncate(owner.file(), 8);
        assert!(shrunk.is_err(), "the seals hold for the owner too");
    }
}
